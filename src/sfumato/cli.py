"""The command line: `sfumato methods · plan · fit · sample · evaluate · report · compare · data · demo`.

Results go to standard output, progress and warnings to standard error, and the exit code says what happened (see
`EXIT_CODES`). Everything printed is public: a plan is made from public facts, a statement and a sample come from behind
the wall, and a metric says which real records it was computed from. An error never quotes a private value: sfumato's
own errors are one sentence, anything else is named by its type only.

Torch and scikit-learn take seconds to import, so a verb imports what it needs when it runs and `--help` stays quick.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import errno
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from sfumato._version import __version__
from sfumato.compare_cli import compare as compare_command
from sfumato.data_cli import data as data_group
from sfumato.errors import BadInput, CorruptArtifact, DataUnavailable, RunConflict, SfumatoError
from sfumato.printing import print_json, print_table
from sfumato.storage import read_json, write_json

if TYPE_CHECKING:
    from sfumato.data import Dataset, Schema
    from sfumato.methods import Synthesizer
    from sfumato.privacy import Budget
    from sfumato.progress import Progress

EXIT_CODES = {
    0: "done",
    1: "an unexpected error (a bug)",
    2: "bad input: a wrong option, value, name or file",
    3: "a data set could not be fetched from any of its sources",
    4: "the privacy budget would be exceeded, or a method spent something else than it promised",
    5: "a saved file is damaged",
    6: "the output already exists, or a resumed run was asked for other settings",
    7: "the machine ran out of memory or disk space",
    130: "interrupted",
}
OUT_OF_RESOURCES = 7
INTERRUPTED = 130

DEFAULT_SAMPLE = 60_000
DEMO_EPSILON, DEMO_DELTA, DEMO_SEED = 1.0, 1e-5, 0
DEMO_FALLBACK = "digits"
NEIGHBOURS = ("zero-out", "add-remove", "replace-one")
FILE_FORMATS = (".npz", ".csv", ".parquet")
# A folder may be called anything, but these endings show that a file was meant.
NOT_FORMATS = (".npy", ".png", ".jpg", ".jpeg", ".zip", ".gz", ".json", ".pt", ".pth", ".h5")

F = TypeVar("F", bound=Callable[..., Any])


# ── errors and the way out ────────────────────────────────────────────────────────────────────────────────────────────


class _Commands(click.Group):
    """A group whose every ending is one sentence and an exit code, whoever calls it."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> NoReturn:
        given = list(sys.argv[1:] if args is None else args)
        extra.pop("standalone_mode", None)
        extra["prog_name"] = "sfumato"
        try:
            code = super().main(given, standalone_mode=False, **extra)
            sys.stdout.flush()
        except BaseException as error:
            if isinstance(error, SystemExit):
                raise
            if "--debug" in given and isinstance(error, Exception) and not _is_usage(error):
                raise
            code = _explain(error, given)
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order one uses them, which is the order of this file

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            guess = f"Did you mean {near[0]}? " if near else ""
            raise BadInput(
                f"There is no command {name!r}. {guess}The commands are "
                f"{', '.join(self.list_commands(ctx))}; type sfumato --help."
            )
        return super().resolve_command(ctx, args)


def _is_usage(error: BaseException) -> bool:
    return isinstance(error, click.exceptions.Exit | click.Abort | click.ClickException)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def _explain(error: BaseException, args: list[str]) -> int:
    """Say on standard error, in one sentence, why the command ended; returns the exit code."""
    again = shlex.join(["sfumato", *args])
    if next((a for a in args if not a.startswith("-")), "") == "fit" and "--resume" not in args:
        again += " --resume"
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SfumatoError):
        _say(f"Error: {_one_line(error)}")
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        _say(f"Interrupted; nothing is lost: type {again} to go on.")
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        message = _one_line(error.format_message()).rstrip(".")
        context = getattr(error, "ctx", None)
        verb = context.command_path if context is not None else "sfumato"
        _say(f"Error: {message}; type {verb} --help to see what it takes.")
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        # The reader (head, less) left: there is nobody to tell, and the last flush must not fail either.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" while writing {error.filename}" if error.filename else ""
        _say(f"Error: The disk is full{where}; free some space and type {again} to go on.")
        return OUT_OF_RESOURCES
    if _is_out_of_memory(error):
        _say(
            "Error: The machine ran out of memory; close other programs, or make the batches or the "
            "method smaller (sfumato methods NAME lists its settings for --set)."
        )
        return OUT_OF_RESOURCES
    if isinstance(error, OSError) and error.filename:
        _say(
            f"Error: Cannot use {error.filename}: {error.strerror or type(error).__name__}; "
            "check the path and its permissions."
        )
        return BadInput.exit_code
    _say(
        f"Error: Something unexpected happened ({type(error).__name__}), which is a bug in sfumato; "
        f"type {shlex.join(['sfumato', '--debug', *args])} to see where."
    )
    return 1


def _one_line(message: object) -> str:
    return " ".join(str(message).split())


def _is_out_of_memory(error: BaseException) -> bool:
    # Torch reports a failed allocation on the CPU as a plain RuntimeError.
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error))
    )


# ── options shared by several verbs ───────────────────────────────────────────────────────────────────────────────────


def _stack(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_facts_options = _stack(
    click.option(
        "--image-size", type=click.IntRange(1), help="Height and width of the images, for a folder."
    ),
    click.option(
        "--channels", type=click.Choice(["1", "3"]), help="1 for gray, 3 for colour, for a folder."
    ),
    click.option("--classes", metavar="N|A,B,…", help="Number or names of the classes."),
    click.option(
        "--schema",
        "schema_file",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="JSON file with the public facts (shape, ranges, columns, classes); a table needs one.",
    ),
)
_data_option = click.option(
    "--data",
    "spec",
    required=True,
    metavar="NAME|PATH",
    help="A named set (fashion-mnist:train) or a path.",
)
_budget_options = _stack(
    click.option(
        "--epsilon", type=float, required=True, help="Privacy budget ε; there is no default."
    ),
    click.option(
        "--delta", type=float, required=True, help="Privacy budget δ; there is no default."
    ),
    click.option(
        "--neighbours",
        type=click.Choice(NEIGHBOURS),
        default="zero-out",
        show_default=True,
        help="How two neighbouring data sets differ.",
    ),
)
_set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the method; repeat for more. `sfumato methods METHOD` lists them with their defaults.",
)
_seed_option = click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Public randomness only; the noise never comes from a seed.",
)
_quiet_option = click.option(
    "--quiet", "-q", is_flag=True, help="No progress; only results, warnings, errors."
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_debug_option = click.option("--debug", is_flag=True, hidden=True, expose_value=False)


def _progress(quiet: bool) -> Progress:
    from sfumato.progress import ConsoleProgress, Progress

    return Progress() if quiet else ConsoleProgress()


def _parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise BadInput(f"--set takes KEY=VALUE, not {pair!r}; for example --set steps=500.")
        if key in settings:
            raise BadInput(f"--set {key} was given twice; keep one of the two.")
        settings[key] = value.strip()
    return settings


def _facts(
    image_size: int | None, channels: str | None, classes: str | None, schema_file: Path | None
) -> dict[str, Any]:
    """The public facts a caller states about a path, as keyword arguments of `sfumato.load`."""
    facts: dict[str, Any] = {
        "image_size": image_size,
        "channels": None if channels is None else int(channels),
        "classes": None,
        "schema": None,
    }
    if classes is not None:
        text = classes.strip()
        if text.isascii() and text.isdigit():
            facts["classes"] = int(text)
        else:
            names = [name.strip() for name in text.split(",")]
            if not all(names):
                raise BadInput(
                    f"--classes takes a number or names with commas between them, not {classes!r}; "
                    "for example --classes 10 or --classes cat,dog."
                )
            facts["classes"] = names
    if schema_file is not None:
        from sfumato.data import Schema

        facts["schema"] = Schema.from_json(read_json(schema_file))
    return facts


def _budget(epsilon: float, delta: float, neighbours: str) -> Budget:
    from sfumato.privacy import Budget, Neighbours

    return Budget(epsilon=epsilon, delta=delta, neighbours=Neighbours(neighbours))


def _synthesizer(name: str, settings: Mapping[str, str], seed: int | None = None) -> Synthesizer:
    from sfumato.methods import get_method

    method = get_method(name)
    given = dict(settings)
    if seed is not None and "seed" not in given:
        given["seed"] = str(seed)
    return method.from_settings(given)


def _warn_large_delta(budget: Budget, size: int | None) -> None:
    # Under add-remove the number of records is itself private, so not even a warning may depend on it.
    warning = budget.warning(size) if budget.neighbours.size_is_public else None
    if warning:
        _say(f"Warning: {warning}")


def _as_json(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return _as_json(value.to_json())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _as_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _as_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_json(v) for v in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return str(value)


# ── the verbs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog="Exit codes: "
    + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    + ".",
)
@click.version_option(__version__, prog_name="sfumato")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.pass_context
def app(context: click.Context) -> None:
    """Differentially private synthetic data with a guarantee that anyone can check.

    \b
    Example:
      sfumato demo
      sfumato methods
      sfumato plan merf --data fashion-mnist:train --epsilon 1 --delta 1e-5
      sfumato fit merf --data fashion-mnist:train --epsilon 1 --delta 1e-5 --out runs/first
      sfumato sample runs/first -n 60000 --out synthetic.npz
      sfumato evaluate runs/first --real fashion-mnist:test
      sfumato report runs/first
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@app.command()
@click.argument("name", required=False)
@_json_option
@_debug_option
def methods(name: str | None, as_json: bool) -> None:
    """List the methods, or show the settings of the one called NAME.

    \b
    Example:
      sfumato methods
      sfumato methods merf
      sfumato methods --json
    """
    from sfumato.methods import get_method, list_methods

    if name is None:
        infos = list_methods()
        if as_json:
            print_json(_as_json(infos))
            return
        print_table(
            ("Method", "Paper", "Data", "Public data?", "Sound?", "What it does"),
            [
                (
                    info.name,
                    info.paper,
                    ", ".join(info.kinds),
                    "needed" if info.needs_public else "no",
                    "yes" if info.sound else "NO",
                    info.summary,
                )
                for info in infos
            ],
        )
        click.echo("Type sfumato methods NAME to see the settings of one of them.")
        return
    method = get_method(name)
    info = method.info
    parameters = method.parameters()
    if as_json:
        print_json({**_as_json(info), "parameters": _as_json(parameters)})
        return
    click.echo(f"{info.name}: {info.title}")
    click.echo(f"Paper: {info.paper}")
    click.echo(
        f"Data: {', '.join(info.kinds)}; public data {'needed' if info.needs_public else 'not needed'}; "
        f"{'sound' if info.sound else 'UNSOUND: its guarantee does not hold as the paper states it'}."
    )
    click.echo(info.summary)
    print_table(
        ("Setting (--set)", "Type", "Default", "Meaning"),
        [
            (p.name, p.type, "auto" if p.default is None else str(p.default), p.help)
            for p in parameters
        ],
    )


@app.command()
@click.argument("method")
@_data_option
@_budget_options
@_set_option
@_facts_options
@_json_option
@_debug_option
def plan(
    method: str,
    spec: str,
    epsilon: float,
    delta: float,
    neighbours: str,
    settings: tuple[str, ...],
    as_json: bool,
    **facts: Any,
) -> None:
    """Show what METHOD would release and how much noise the budget asks for; no row is read.

    \b
    Example:
      sfumato plan merf --data fashion-mnist:train --epsilon 1 --delta 1e-5
      sfumato plan merf --data digits:train --epsilon 2 --delta 1e-5 --neighbours replace-one --json
    """
    from sfumato.data import schema_of
    from sfumato.privacy import PrivacyStatement, calibrate, epsilon_of

    budget = _budget(epsilon, delta, neighbours)
    synthesizer = _synthesizer(method, _parse_settings(settings))
    schema, size = schema_of(spec, **_facts(**facts))
    _warn_large_delta(budget, size)
    noise_multiplier = calibrate(lambda m: synthesizer.plan(schema, m), budget)
    charges = synthesizer.plan(schema, noise_multiplier)
    spent = epsilon_of(charges, budget.delta, budget.neighbours)
    statement = PrivacyStatement(budget=budget, epsilon=spent, charges=charges)
    under = statement.epsilon_under()
    if as_json:
        kept = ("epsilon", "delta", "neighbours", "unit", "budget", "releases", "epsilon_under")
        promised = statement.to_json()
        print_json(
            {
                "method": method,
                "data": spec,
                "noise_multiplier": noise_multiplier,
                **{key: promised[key] for key in kept},
            }
        )
        return
    click.echo(
        f"{method} on {spec} would spend ε = {spent:.4g} at δ = {budget.delta:g} "
        f"under {budget.neighbours.value}, where {budget.neighbours.meaning}, on:"
    )
    print_table(
        (
            "Release",
            "Numbers",
            "Bound",
            "Sensitivity",
            "Noise std",
            "Noise ÷ bound",
            "Rate",
            "Steps",
        ),
        [
            (
                c.label,
                f"{c.dimension:,}",
                f"{c.bound:.4g}",
                f"{c.sensitivity(budget.neighbours):.4g}",
                f"{c.noise_std:.5g}",
                f"{c.noise_multiplier:.5g}",
                f"{c.rate:.4g}",
                f"{c.steps:,}",
            )
            for c in charges
        ],
    )
    others = ", ".join(f"{v:.4g} ({k})" for k, v in under.items() if k != budget.neighbours.value)
    if others:
        click.echo(f"The same noise read under other relations: ε = {others}.")
    click.echo("No row was read.")


@app.command()
@click.argument("method")
@_data_option
@_budget_options
@click.option(
    "--out",
    required=True,
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="The run folder to make.",
)
@_seed_option
@_set_option
@click.option(
    "--resume", is_flag=True, help="Go on with an unfinished run; nothing is spent twice."
)
@_facts_options
@_quiet_option
@_json_option
@_debug_option
def fit(
    method: str,
    spec: str,
    epsilon: float,
    delta: float,
    neighbours: str,
    out: Path,
    seed: int,
    settings: tuple[str, ...],
    resume: bool,
    quiet: bool,
    as_json: bool,
    **facts: Any,
) -> None:
    """Make a private generator with METHOD and keep it, with its privacy statement, in the folder RUN.

    \b
    Example:
      sfumato fit merf --data fashion-mnist:train --epsilon 1 --delta 1e-5 --out runs/first
      sfumato fit merf --data digits:train --epsilon 2 --delta 1e-5 --out runs/digits --set steps=500
      sfumato fit merf --data photos/ --image-size 32 --channels 3 --epsilon 4 --delta 1e-6 --out runs/photos
    """
    budget = _budget(epsilon, delta, neighbours)
    synthesizer = _synthesizer(method, _parse_settings(settings), seed)
    resume = _check_run_folder(out, resume)
    progress = _progress(quiet)
    data = _load(spec, progress, **_facts(**facts))
    if budget.neighbours.size_is_public:
        _warn_large_delta(budget, len(data))
    synthesizer.fit(data, budget, out=out, resume=resume, progress=progress)
    statement = synthesizer.statement_
    if as_json:
        print_json({"run": str(out), "statement": _as_json(statement)})
        return
    if quiet:
        click.echo(out)
        return
    click.echo(f"Made {out}: a generator by {method} from {spec}.")
    click.echo(click.wrap_text(statement.paragraph(), width=100))
    real = spec.removesuffix(":train") + ":test" if spec.endswith(":train") else "REAL"
    click.echo("Next:")
    click.echo(f"  sfumato sample {shlex.quote(str(out))} -n 10000 --out synthetic.npz")
    click.echo(f"  sfumato evaluate {shlex.quote(str(out))} --real {real}")
    click.echo(f"  sfumato report {shlex.quote(str(out))}")


def _check_run_folder(out: Path, resume: bool) -> bool:
    """Whether there is something to resume; refuses a folder that holds other things."""
    if out.exists() and not out.is_dir():
        raise RunConflict(f"{out} is a file; give --out a folder that does not exist yet.")
    if not out.is_dir() or not any(out.iterdir()):
        return False
    if not _is_run(out):
        raise RunConflict(f"{out} is not empty and holds no run; give --out a new folder.")
    if not resume:
        raise RunConflict(
            f"{out} already holds a run; give --out another folder, or add --resume to go on with it."
        )
    return True


def _load(spec: str | Path, progress: Progress, **facts: Any) -> Dataset:
    from sfumato.data import load

    return load(spec, progress=progress, **facts)


@app.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "-n", "--number", "n", type=click.IntRange(1), required=True, help="How many records to make."
)
@click.option(
    "--out",
    required=True,
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="A .npz, .csv or .parquet file, or a folder of images.",
)
@_seed_option
@click.option("--overwrite", is_flag=True, help="Replace the file PATH if it exists.")
@_quiet_option
@_debug_option
def sample(run: Path, n: int, out: Path, seed: int, overwrite: bool, quiet: bool) -> None:
    """Draw synthetic records from a finished RUN; this spends nothing, however many are drawn.

    \b
    Example:
      sfumato sample runs/first -n 60000 --out synthetic.npz
      sfumato sample runs/first -n 1000 --out pictures/ --seed 1
      sfumato sample runs/first -n 1000 --out synthetic.parquet --overwrite
    """
    from sfumato.methods import load

    _check_sample_path(out, overwrite)
    synthesizer = load(run)
    with _progress(quiet).stage(f"Sampling {n:,} records", n) as stage:
        synthetic = synthesizer.sample(n, seed=seed)
        stage.advance(n)
    synthetic.save(out)
    click.echo(out if quiet else f"Made {out}: {n:,} synthetic records from {run} (seed {seed}).")


def _check_sample_path(out: Path, overwrite: bool) -> None:
    if out.suffix.lower() in NOT_FORMATS:
        raise BadInput(
            f"Cannot write {out.suffix} files; end --out with {', '.join(FILE_FORMATS)}, or name a folder."
        )
    if out.is_dir():
        if out.suffix.lower() in FILE_FORMATS or any(out.iterdir()):
            raise RunConflict(f"{out} is a folder that already exists; give --out another name.")
    elif out.exists() and not overwrite:
        raise RunConflict(f"{out} already exists; give --out another name, or add --overwrite.")


def _is_run(path: Path) -> bool:
    return (path / "config.json").is_file()


def _run_config(run: Path) -> dict[str, Any]:
    config = read_json(run / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("data"), dict):
        raise CorruptArtifact(
            f"{run / 'config.json'} is damaged; restore the run folder from a copy."
        )
    return config


@app.command()
@click.argument("target", metavar="RUN|PATH")
@click.option(
    "--real",
    required=True,
    metavar="NAME|PATH",
    help="Real records to judge with (fashion-mnist:test).",
)
@click.option(
    "-n",
    "--number",
    "n",
    type=click.IntRange(1),
    help=f"Records to draw from a RUN.  [default: the size of its data, else {DEFAULT_SAMPLE}]",
)
@click.option(
    "--preset",
    type=click.Choice(("quick", "paper", "full")),
    help="A set of metrics: three classifiers, those of the papers, or all.  [default: quick]",
)
@click.option(
    "--metrics",
    metavar="NAME,…",
    help="Metrics by name or family (accuracy.cnn,fid,prd), with those of --preset if both are given.",
)
@click.option(
    "--train",
    metavar="NAME|PATH",
    help="The real records the method was fitted on, for the metrics that look for copies of them.",
)
@_seed_option
@_facts_options
@_quiet_option
@_json_option
@_debug_option
def evaluate(
    target: str,
    real: str,
    n: int | None,
    preset: str | None,
    metrics: str | None,
    train: str | None,
    seed: int,
    quiet: bool,
    as_json: bool,
    **facts: Any,
) -> None:
    """Measure how useful synthetic records are: train classifiers on them, test on REAL ones.

    The numbers come from real records and are not covered by ε. For a RUN they are also kept in its
    metrics.json, where `sfumato report` finds them. docs/evaluation.md lists the metrics.

    \b
    Example:
      sfumato evaluate runs/first --real fashion-mnist:test
      sfumato evaluate runs/first --real fashion-mnist:test --metrics accuracy.cnn,fid
      sfumato evaluate synthetic.npz --real fashion-mnist:test --classes 10 --json
    """
    wanted = {
        "preset": preset,
        "metrics": [m.strip() for m in metrics.split(",") if m.strip()] if metrics else None,
    }
    result = _evaluate(target, real, n, seed, _progress(quiet), _facts(**facts), train, wanted)
    if as_json:
        print_json(result)
        return
    print_table(
        ("Metric", "Value", "95 % interval", "From"),
        [
            (
                metric["name"],
                f"{metric['value']:.4f}",
                "–"
                if metric["low"] == metric["high"]
                else f"{metric['low']:.4f} – {metric['high']:.4f}",
                metric["source"],
            )
            for metric in result["metrics"]
        ],
    )
    if _is_run(Path(target)) and not quiet:
        click.echo(
            f"Kept in {Path(target) / 'metrics.json'}. Next: sfumato report {shlex.quote(target)}"
        )


@app.command()
@click.argument("run", type=click.Path(path_type=Path))
@_quiet_option
@_json_option
@_debug_option
def report(run: Path, quiet: bool, as_json: bool) -> None:
    """Write RUN/report.html (one page that needs no network), report.md and report.json.

    \b
    Example:
      sfumato report runs/first
    """
    page = _report(run)
    if as_json:
        print_json(
            {
                "html": str(page),
                "md": str(page.with_suffix(".md")),
                "json": str(page.with_suffix(".json")),
            }
        )
    else:
        click.echo(page)


def _evaluate(
    target: str,
    real_spec: str,
    n: int | None,
    seed: int,
    progress: Progress,
    facts: dict[str, Any],
    train_spec: str | None = None,
    wanted: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of metrics.json for a run, which keeps it, or for a data path."""
    from sfumato.evaluation import evaluate
    from sfumato.methods import load

    run = Path(target) if _is_run(Path(target)) else None
    if run is None:
        real = _load_stated(real_spec, progress, facts, None)
        synthetic = _load_stated(target, progress, facts, real.schema)
    else:
        synthesizer = load(run)
        n = n or _run_config(run)["data"].get("size") or DEFAULT_SAMPLE
        with progress.stage(f"Sampling {n:,} records", n) as stage:
            synthetic = synthesizer.sample(n, seed=seed)
            stage.advance(n)
        real = _load_stated(real_spec, progress, facts, synthetic.schema)
    train = (
        None if train_spec is None else _load_stated(train_spec, progress, facts, synthetic.schema)
    )
    result = evaluate(
        synthetic, real, train=train, seed=seed, progress=progress, **(wanted or {})
    ).to_json()
    if run is not None:
        write_json(run / "metrics.json", result)
    return result


def _load_stated(
    spec: str, progress: Progress, facts: dict[str, Any], known: Schema | None
) -> Dataset:
    """Data to compare: a named set knows its facts, a path takes those stated, else those of its counterpart."""
    from sfumato.data import list_named

    if any(spec.partition(":")[0] == entry.name for entry in list_named()):
        return _load(spec, progress)
    stated = {key: value for key, value in facts.items() if value is not None}
    if not stated and known is not None:
        stated = {"schema": known}
    return _load(spec, progress, **stated)


def _report(run: Path) -> Path:
    from sfumato.methods import RunFolder
    from sfumato.report import write_report

    RunFolder(run).check()
    return write_report(run)


# ── the demo ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@app.command()
@click.option(
    "--out",
    default=Path("runs/demo"),
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="The run folder to make.",
)
@click.option(
    "--data",
    "name",
    default="fashion-mnist",
    metavar="NAME",
    help="A named set with train and test.",
)
@_set_option
@_quiet_option
@_debug_option
def demo(out: Path, name: str, settings: tuple[str, ...], quiet: bool) -> None:
    """From nothing to a report: fit DP-MERF at ε = 1, δ = 1e-5, judge it on real test images.

    Without a network it goes on with scikit-learn's 8×8 digits. A second time, what is already there is used again.

    \b
    Example:
      sfumato demo
      sfumato demo --out runs/demo --data digits
    """
    progress = _progress(quiet)
    progress.note(
        f"The demo fits DP-MERF to {name} at ε = {DEMO_EPSILON:g}, δ = {DEMO_DELTA:g}, judges the synthetic "
        "images on real ones and writes a report; the first time this takes a few minutes."
    )
    budget = _budget(DEMO_EPSILON, DEMO_DELTA, "zero-out")
    given = _parse_settings(settings)
    try:
        data = _load(f"{name}:train", progress)
        _load(f"{name}:test", progress)
    except DataUnavailable as error:
        if name == DEMO_FALLBACK:
            raise
        _say(f"{_one_line(error)}")
        _say(
            f"No source of {name} answered, so the demo goes on with {DEMO_FALLBACK}, which needs no download."
        )
        name = DEMO_FALLBACK
        data = _load(f"{name}:train", progress)
    synthesizer = _synthesizer("merf", given, DEMO_SEED)
    state = _demo_state(out, f"{name}:train", synthesizer, budget)
    if state == "another":
        _say(f"{out} holds a demo with other data or settings, which is now {_move_aside(out)}.")
    if state == "finished":
        progress.note(f"{out} already holds this finished run; fitting is skipped.")
    else:
        if state == "started":
            progress.note(f"Going on with the unfinished run in {out}.")
        synthesizer.fit(data, budget, out=out, resume=state == "started", progress=progress)
    result = _known_metrics(out, f"{name}:test")
    if result is None:
        result = _evaluate(str(out), f"{name}:test", None, DEMO_SEED, progress, {})
    else:
        progress.note(f"It was already judged on {name}:test; its metrics.json is used again.")
    page = _report(out)

    scores = {metric["name"]: metric["value"] for metric in result["metrics"]}
    accuracy = ", ".join(
        f"{100 * value:.1f} % ({key.removeprefix('accuracy.')})"
        for key, value in scores.items()
        if key.startswith("accuracy.")
    )
    click.echo(
        f"\nMade a private generator of {name} images with DP-MERF: ε = {DEMO_EPSILON:g}, δ = {DEMO_DELTA:g}."
    )
    click.echo(
        f"Classifiers trained on its synthetic images reach on real test images: {accuracy}."
    )
    run = shlex.quote(str(out))
    click.echo(f"  the report      {page}   (open it in a browser)")
    click.echo(f"  the guarantee   {out / 'statement.json'}")
    click.echo(f"  some images     {out / 'samples.png'}")
    # `make demo` users have not activated .venv, so the command is given as it can be typed.
    command = "sfumato" if _on_path() else ".venv/bin/sfumato"
    click.echo("Next:")
    click.echo(f"  {command} sample {run} -n 60000 --out synthetic.npz")
    click.echo(f"  {command} plan merf --data {name}:train --epsilon 0.5 --delta 1e-5")
    click.echo(f"  {command} --help")


def _on_path() -> bool:
    import shutil

    return shutil.which("sfumato") is not None or not Path(".venv/bin/sfumato").exists()


def _demo_state(out: Path, data: str, synthesizer: Synthesizer, budget: Budget) -> str:
    """What is in the demo's folder: "nothing", this run "started" or "finished", or "another" demo's run."""
    from sfumato.methods import RunFolder

    if not _check_run_folder(out, resume=True):
        return "nothing"
    config = _run_config(out)
    if config.get("method") != "merf" or config.get("budget") != budget.to_json():
        raise RunConflict(f"{out} holds a run that is not the demo's; give --out another folder.")
    if config["data"].get("name") != data or config.get("settings") != _as_json(
        synthesizer.get_params()
    ):
        return "another"
    return "finished" if RunFolder(out).finished else "started"


def _move_aside(out: Path) -> Path:
    number = 1
    while (moved := out.with_name(f"{out.name}.{number}")).exists():
        number += 1
    out.rename(moved)
    return moved


def _known_metrics(run: Path, real: str) -> dict[str, Any] | None:
    """What was measured on `real`, unless it is missing, damaged or older than the run's generator."""
    path = run / "metrics.json"
    try:
        if path.stat().st_mtime < (run / "generator.safetensors").stat().st_mtime:
            return None
        known: dict[str, Any] = read_json(path)
        sources = [metric["source"] for metric in known["metrics"]]
        return known if sources and all(f"{real} " in source for source in sources) else None
    except (OSError, SfumatoError, KeyError, TypeError):
        return None


app.add_command(compare_command)
app.add_command(data_group)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show ε shows a question mark; it must not end the command.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    app.main()
