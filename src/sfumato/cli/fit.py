"""`sfumato methods · plan · fit · sample`: from the list of methods to synthetic records.

A plan is made from public facts alone; a fit reads private rows through the wall only; a sample costs nothing.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from sfumato.cli.ledger import status, told_ledger, told_plan, upwards
from sfumato.cli.options import (
    FACTS,
    UNIT,
    as_plain,
    budget_of,
    budget_options,
    check_run_folder,
    data_option,
    debug_option,
    engine_option,
    facts_options,
    fit_budget_options,
    fit_data_option,
    json_option,
    ledger_option,
    load_data,
    out_option,
    output_options,
    overwrite_option,
    parse_facts,
    parse_settings,
    preset_option,
    progress_for,
    public_option,
    quiet_option,
    refuse_existing,
    run_argument,
    seed_option,
    set_option,
    synthesizer_of,
    unit_options,
    warn_large_delta,
    warn_not_private,
)
from sfumato.cli.printing import print_json, print_table
from sfumato.errors import BadInput, RunConflict

if TYPE_CHECKING:
    from sfumato.data import Dataset, Schema
    from sfumato.data.units import Unit
    from sfumato.methods import Method, SavedRun
    from sfumato.progress import Progress


@click.command()
@click.argument("name", required=False)
@json_option
@click.option(
    "--markdown",
    is_flag=True,
    help="Print all settings, or with --preset all presets, as a page of documentation.",
)
@click.option(
    "--preset",
    metavar="NAME[:DATA]",
    help="Show a preset of the method (paper, fast), for every data set or for one, with the source of each number.",
)
@debug_option
def methods(name: str | None, as_json: bool, markdown: bool, preset: str | None) -> None:
    """List the methods, or show the settings of the one called NAME.

    \b
    Example:
      sfumato methods
      sfumato methods merf
      sfumato methods merf --preset paper
      sfumato methods mepf --preset fast:cifar10
      sfumato methods --json
      sfumato methods --markdown
    """
    from sfumato.methods import get_method, list_methods

    if preset is not None and markdown:
        click.echo(_presets_page([name] if name else [i.name for i in list_methods()], preset))
        return
    if preset is not None:
        if name is None:
            raise BadInput(
                "--preset shows one method's; name it: sfumato methods merf --preset paper."
            )
        _show_preset(get_method(name), preset, as_json)
        return
    if markdown:
        click.echo(_settings_page([name] if name else [i.name for i in list_methods()]))
        return
    if name is None:
        infos = list_methods()
        if as_json:
            print_json(as_plain(infos))
            return
        print_table(
            ("Method", "Paper", "Data", "Makes", "Public data", "Sound?", "What it does"),
            [
                (
                    info.name,
                    info.paper,
                    ", ".join(info.kinds),
                    info.makes,
                    info.public,
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
    if as_json:
        told = [s.to_json() for s in method.settings()]
        print_json({**as_plain(info), "parameters": told})
        return
    click.echo(f"{info.name}: {info.title}")
    click.echo(f"Paper: {info.paper}")
    click.echo(
        f"Data: {', '.join(info.kinds)}; makes: {info.makes}; public data (--public): {info.public}; "
        f"{'sound' if info.sound else 'UNSOUND: its guarantee does not hold as the paper states it'}."
    )
    click.echo(info.summary)
    print_table(
        ("Setting (--set)", "Takes", "Default", "Meaning"),
        [
            (s.name, s.wanted, "auto" if s.default is None else str(s.default), s.help)
            for s in method.settings()
        ],
    )


def _show_preset(method: type[Method], preset: str, as_json: bool) -> None:
    from sfumato.methods.presets import list_presets, shown

    kind, _, data = preset.partition(":")
    found = [p for p in list_presets(method, kind) if not data or p.data == data]
    if not found:
        known = ", ".join(p.data for p in list_presets(method, kind))
        raise BadInput(
            f"{method.info.name} has no preset {kind!r} for {data!r}; it has one for {known}."
        )
    if as_json:
        print_json([p.to_json() for p in found])
        return
    defaults = {
        s.name: "auto" if s.default is None else shown(s.default) for s in method.settings()
    }
    for each in found:
        click.echo(f"{method.info.name}, preset {kind} for {each.data}: {each.protocol}")
        print_table(
            ("Setting", "Preset", "When", "Default", "Source"),
            [
                (
                    c.name,
                    shown(c.value),
                    c.condition,
                    defaults[c.name],
                    c.source + (f" (paper: {c.instead})" if c.instead is not None else ""),
                )
                for c in each.settings
            ],
        )
        for lack, why in each.missing.items():
            click.echo(f"Missing: {lack}: {why}.")
        click.echo()


def _presets_page(names: list[str], kind: str) -> str:
    """docs/presets.md: the paper's settings beside ours, and what is missing of them."""
    from sfumato.methods import get_method
    from sfumato.methods.presets import list_presets, preset_names, shown

    lines = [
        "# The papers' settings",
        "",
        f"What `--preset {kind}` sets, method by method and data set by data set (`sfumato methods --markdown --preset {kind}`",
        "prints this page). S3:1437 is line 1437 of paper S3 (`sfumato published` names the papers); *code* is the authors'",
        "public code, where the text is silent; *0.1 n* is a share of the training records. A row for some ε is taken at the",
        "nearest ε. *Missing* is what the paper has and sfumato lacks: with such a gap a run is near the paper and not the",
        "paper's, and the command says so.",
    ]
    for name in names:
        cls = get_method(name)
        defaults = {s.name: shown(s.default) for s in cls.settings()}
        if kind not in preset_names(cls):
            continue
        lines += ["", f"## `{name}`", ""]
        for each in list_presets(cls, kind):
            lines += [f"### `{name}`, {each.data}", "", f"{each.protocol}.", ""]
            if each.settings:
                lines += ["| setting | paper | here by default | source |", "|---|---|---|---|"]
            for c in each.settings:
                value = f"`{shown(c.value)}`" + (f", {c.condition}" if c.when else "")
                lines.append(f"| `{c.name}` | {value} | `{defaults[c.name]}` | {c.source} |")
            if each.missing:
                lines += ["", *(f"- Missing, {lack}: {why}." for lack, why in each.missing.items())]
            lines.append("")
        lines.pop()
    return "\n".join(lines)


def _settings_page(names: list[str]) -> str:
    """docs/settings.md, from the declarations."""
    from sfumato.methods import get_method
    from sfumato.methods.presets import preset_names

    lines = [
        "# Settings",
        "",
        "Every setting of every method, from the line that declares it (`sfumato methods --markdown` prints this page). On the",
        "command line: `--set name=value`; in Python: a keyword of the class. A *free* setting may differ when a saved release",
        "is used again (`fit --from-release`, in Python `refit`).",
        "",
        "A *preset* sets many at once, as the method's paper has them for a data set: `sfumato fit merf --preset paper`, in",
        'Python `Merf.preset("paper", data="mnist")`. `sfumato methods merf --preset paper` prints every number with the line',
        "of the paper that has it, and what the paper has and sfumato lacks. `fast` is the paper's, cut down to what two",
        "cores do; it says what it changes. `--set` wins over a preset.",
    ]
    for name in names:
        cls = get_method(name)
        lines += ["", f"## `{name}`", "", f"{cls.info.title}: {cls.info.summary}", ""]
        lines += ["| setting | takes | default | meaning |", "|---|---|---|---|"]
        for s in cls.settings():
            default = "auto" if s.default is None else f"`{s.default}`"
            free = " *Free.*" if s.free else ""
            lines.append(f"| `{s.name}` | {s.wanted} | {default} | {s.help}{free} |")
        for preset, data in preset_names(cls).items():
            lines += ["", f"Preset `{preset}` for {', '.join(f'`{d}`' for d in data)}."]
    return "\n".join(lines)


@click.command()
@click.argument("method")
@data_option
@budget_options
@preset_option
@set_option
@unit_options
@ledger_option("Say what this run would bring the data set's ledger to; nothing is reserved.")
@facts_options
@json_option
@debug_option
def plan(
    method: str,
    spec: str,
    epsilon: float,
    delta: float,
    neighbours: str,
    preset: str | None,
    settings: tuple[str, ...],
    unit: str | None,
    per_unit: int | None,
    ledger_folder: Path | None,
    as_json: bool,
    **facts: Any,
) -> None:
    """Show what METHOD would release and how much noise the budget asks for; nothing is spent.

    Made of public facts. Where the relation makes the number of records, or of units, one of them, it is counted if no header
    tells it: of a .csv, or by what --unit names. Nothing else of a row is read, and nothing at all under add-remove.

    \b
    Example:
      sfumato plan merf --data fashion-mnist:train --epsilon 1 --delta 1e-5
      sfumato plan merf --data digits:train --epsilon 2 --delta 1e-5 --neighbours replace-one --json
      sfumato plan merf --data scans/ --image-size 64 --unit 'patient_(\\d+)' --epsilon 1 --delta 1e-5
      sfumato plan merf --data digits:train --epsilon 2 --delta 1e-5 --ledger ledgers/digits
    """
    from sfumato.data import load, schema_of
    from sfumato.data.units import RECORD, RECORDS
    from sfumato.privacy.units import size_of

    budget = budget_of(epsilon, delta, neighbours)
    synthesizer = synthesizer_of(
        method, parse_settings(settings), preset=preset, data=spec, epsilon=epsilon
    )
    stated = parse_facts(**facts)
    schema, size = schema_of(spec, **stated)
    protected, read = RECORDS, "No row was read."
    public = budget.neighbours.size_is_public
    if unit not in (None, RECORD) or per_unit is not None or (size is None and public):
        data = load(spec, **stated, unit=unit, per_unit=per_unit)
        protected, size = data.unit, size_of(data) if public else None
        if size is not None:
            what = "how many there are" if protected.single else "whose they are"
            read = f"Of the rows nothing was read but {what}, to count {_counted(size, protected)}."
    warn_large_delta(budget, size)
    statement = synthesizer.promise(schema, budget, protected, size=size)
    charges, spent, under = statement.charges, statement.epsilon, statement.epsilon_under()
    booked = None
    if ledger_folder is not None:
        from sfumato.privacy import DataSetLedger

        with DataSetLedger(ledger_folder) as book:
            book.check_kind(budget, protected)
            booked = told_plan(book, charges)
    if as_json:
        kept = ["epsilon", "delta", "neighbours", "unit", "budget", "releases", "epsilon_under"]
        kept += ["sound", "claimed", "private"]  # told of what is not
        promised = statement.to_json()
        print_json(
            {
                "method": method,
                "data": spec,
                "size": size if public else None,
                **{key: promised[key] for key in kept if key in promised},
                **({} if booked is None else {"ledger": booked}),
            }
        )
        return
    n = f" (n = {_counted(size, protected)})" if size is not None and public else ""
    click.echo(
        f"{method} on {spec}{n} would spend ε = {spent:.4g} at δ = {budget.delta:g} "
        f"under {budget.neighbours.value}, where {budget.neighbours.meaning(protected)}, on:"
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
    if not statement.sound:
        click.echo(click.wrap_text(statement.paragraph(), width=100))
    if booked is not None:
        verdict = "" if booked["fits"] else ", which is too much: it would be refused"
        click.echo(
            f"Ledger {ledger_folder}: {status(booked)} This run would bring it to {upwards(booked['total'])}{verdict}."
        )
    click.echo(read)


def _counted(size: int, unit: Unit) -> str:
    return f"{size:,} {unit.name if size == 1 else unit.plural}"


@click.command()
@click.argument("method")
@fit_data_option
@fit_budget_options
@out_option("RUN", "The run folder to make.")
@public_option
@click.option(
    "--from-release",
    "earlier",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Train again from what this finished run released, in place of --data and a budget; nothing is spent.",
)
@seed_option
@preset_option
@set_option
@click.option(
    "--resume", is_flag=True, help="Go on with an unfinished run; nothing is spent twice."
)
@ledger_option(
    "Reserve this run in the data set's ledger before a row is read, or be refused (sfumato ledger init)."
)
@engine_option
@click.option("--allow-empty", is_flag=True, help="Go on though a class has no record.")
@unit_options
@facts_options
@output_options
@click.pass_context
def fit(
    context: click.Context,
    /,
    method: str,
    spec: str | None,
    epsilon: float | None,
    delta: float | None,
    neighbours: str,
    out: Path,
    public_spec: str | None,
    earlier: Path | None,
    seed: int,
    preset: str | None,
    settings: tuple[str, ...],
    resume: bool,
    ledger_folder: Path | None,
    engine: str | None,
    allow_empty: bool,
    unit: str | None,
    per_unit: int | None,
    quiet: bool,
    as_json: bool,
    **facts: Any,
) -> None:
    """Make a private generator with METHOD and keep it, with its privacy statement, in the folder RUN.

    \b
    Example:
      sfumato fit merf --data fashion-mnist:train --epsilon 1 --delta 1e-5 --out runs/first
      sfumato fit merf --data digits:train --epsilon 2 --delta 1e-5 --out runs/digits --set steps=500
      sfumato fit merf --data mnist:train --preset paper --neighbours replace-one --epsilon 1 --delta 1e-5 --out runs/paper
      sfumato fit merf --data photos/ --image-size 32 --channels 3 --epsilon 4 --delta 1e-6 --out runs/photos
      sfumato fit merf --data photos/ --image-size 32 --epsilon 1 --delta 1e-6 --out runs/one --ledger ledgers/photos
      sfumato fit merf --data scans/ --image-size 64 --unit '(?P<patient>person\\d+)' --epsilon 1 --delta 1e-6 --out runs/scans
      sfumato fit merf --data shards/ --epsilon 1 --delta 1e-9 --out runs/large --engine ray
      sfumato fit merf --from-release runs/first --set steps=6000 --out runs/longer
      sfumato fit merf --data mnist:train --preset paper --epsilon inf --delta 1e-5 --out runs/NOT-PRIVATE
    """
    progress = progress_for(quiet)
    given = parse_settings(settings)
    if earlier is not None:
        from sfumato.methods import SavedRun

        _refuse_with_release(context)
        if _was_given(context, "seed"):
            given = {"seed": str(seed), **given}
        with SavedRun(earlier) as saved:
            synthesizer = _trained_again(method, saved, given, public_spec, out, resume, progress)
            spec = str(saved.config["data"]["name"])
        made = f"{method}, trained again from what {earlier} released; no private row was read and nothing was spent"
    else:
        if spec is None or epsilon is None or delta is None:
            missing = {"--data": spec, "--epsilon": epsilon, "--delta": delta}
            first = next(option for option, value in missing.items() if value is None)
            raise BadInput(
                f"{first} is missing and has no default; give it, or train again from a finished run by --from-release RUN."
            )
        budget = budget_of(epsilon, delta, neighbours)
        synthesizer = synthesizer_of(method, given, seed, preset=preset, data=spec, epsilon=epsilon)
        resume = check_run_folder(out, resume)
        stated = parse_facts(**facts)
        data = load_data(spec, progress, **stated, unit=unit, per_unit=per_unit)
        public = _public(public_spec, data.schema, progress)
        from sfumato.data import schema_of
        from sfumato.privacy.units import size_of

        if ledger_folder is not None:
            # Not even to count is a row read before the run is reserved.
            warn_large_delta(budget, schema_of(spec, **stated)[1] if data.unit.single else None)
        elif budget.neighbours.size_is_public:
            warn_large_delta(budget, size_of(data))
        synthesizer.fit(
            data,
            budget,
            public=public,
            out=out,
            resume=resume,
            allow_empty=allow_empty,
            ledger=ledger_folder,
            engine=engine,
            progress=progress,
        )
        made = f"{method} from {spec}"
    statement = synthesizer.statement_
    warn_not_private(statement)
    booked = None if ledger_folder is None else _told_ledger(ledger_folder)
    if as_json:
        told = {"run": str(out), "statement": as_plain(statement)}
        print_json(told if booked is None else {**told, "ledger": booked})
        return
    if quiet:
        click.echo(out)
        return
    product = "classifier" if synthesizer.info.makes == "classifier" else "generator"
    click.echo(f"Made {out}: a {product} by {made}.")
    click.echo(click.wrap_text(statement.paragraph(), width=100))
    if booked is not None:
        if earlier is not None:
            said = "Training again costs nothing; nothing was reserved. "
        elif resume:
            said = "A resumed run uses its reservation and costs nothing more. "
        else:
            said = ""
        click.echo(f"{said}Ledger {ledger_folder}: {status(booked)}")
    elif resume:
        click.echo("Going on with a run costs nothing more than it had promised.")
    real = spec.removesuffix(":train") + ":test" if spec.endswith(":train") else "REAL"
    run = shlex.quote(str(out))
    click.echo("Next:")
    ending = "csv" if synthesizer.schema_.kind == "table" else "npz"
    if product == "generator":
        click.echo(f"  sfumato sample {run} -n 10000 --out synthetic.{ending}")
        click.echo(f"  sfumato evaluate {run} --real {real}")
    else:
        click.echo(f"  sfumato explain {run} --data {real} --out why.html")
    click.echo(f"  sfumato report {run}")
    click.echo(f"  sfumato verify {run}")


def _told_ledger(folder: Path) -> dict[str, Any]:
    from sfumato.privacy import DataSetLedger

    with DataSetLedger(folder) as book:
        return told_ledger(book)


def _public(spec: str | None, like: Schema, progress: Progress) -> Dataset | None:
    from sfumato.public.loading import load_public

    return None if spec is None else load_public(spec, like, progress)


# What an earlier run has settled already: its data, their public facts, and the budget.
_SETTLED = ("spec", "epsilon", "delta", "neighbours", "preset", "engine", *UNIT, *FACTS)


def _was_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def _refuse_with_release(context: click.Context) -> None:
    for name in _SETTLED:
        if _was_given(context, name):
            option = next(p.opts[0] for p in context.command.params if p.name == name)
            raise BadInput(
                f"{option} has no place beside --from-release: all is as in the earlier run but for --set; leave it out."
            )


def _trained_again(
    method: str,
    earlier: SavedRun,
    given: dict[str, str],
    public_spec: str | None,
    out: Path,
    resume: bool,
    progress: Progress,
) -> Method:
    """`refit` with the earlier run's settings, but for those given."""
    from sfumato.methods import get_method

    cls, config = get_method(method), earlier.config
    if config["method"] != cls.info.name:
        raise BadInput(
            f"{earlier.path} is a run of {config['method']}, not of {cls.info.name}; type sfumato fit {config['method']}."
        )
    synthesizer = cls.from_settings(given, **config["settings"])
    resume = check_run_folder(out, resume)
    public = _public(public_spec, earlier.schema, progress)
    return synthesizer.refit(earlier.path, public=public, out=out, resume=resume, progress=progress)


@click.command()
@run_argument
@click.option(
    "-n", "--number", "n", type=click.IntRange(1), required=True, help="How many records to make."
)
@out_option(
    "PATH",
    "A .npz, .csv, .parquet (images: as Hugging Face keeps them) or .tar (WebDataset) file, or a folder of PNGs.",
)
@click.option(
    "--class",
    "classes",
    multiple=True,
    metavar="NAME",
    help="Records of this class only; repeat for more, which then come in their released shares.",
)
@seed_option
@click.option(
    "--keep",
    type=float,
    default=1.0,
    metavar="SHARE",
    help="Of the labelled images that are drawn, keep this share: those that look most like their class. "
    "Meant for a generator's slips; try 0.75.",
)
@click.option(
    "--shard-size",
    type=click.IntRange(1),
    help="Make PATH a folder of Parquet shards of so many records, each with a seed of its own; the same command again goes on "
    "with those that are missing.  [default with --engine: 100,000]",
)
@engine_option
@overwrite_option
@quiet_option
@debug_option
def sample(
    run: Path,
    n: int,
    out: Path,
    classes: tuple[str, ...],
    seed: int,
    keep: float,
    shard_size: int | None,
    engine: str | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Draw synthetic records from a finished RUN; this spends nothing, however many are drawn.

    PATH.origin.json, beside them, says which run they are of: `card` and `report --release` ask for it.

    \b
    Example:
      sfumato sample runs/first -n 60000 --out synthetic.npz
      sfumato sample runs/first -n 1000 --out pictures/ --seed 1
      sfumato sample runs/first -n 1000 --out synthetic.parquet --overwrite
      sfumato sample runs/first -n 1000 --out synthetic.tar
      sfumato sample runs/first -n 500 --out boots.npz --class "Ankle boot" --class Sandal
      sfumato sample runs/first -n 60000 --out clean.npz --keep 0.75
      sfumato sample runs/first -n 10_000_000 --out shards/ --engine ray
    """
    from sfumato.data.writers import check_format
    from sfumato.methods import SavedRun, load
    from sfumato.report.origin import write_origin

    if engine is not None or shard_size is not None:
        _sample_shards(run, n, out, classes, seed, keep, shard_size, engine, overwrite, quiet)
        return
    check_format(out)
    _check_sample_path(out, overwrite)
    with SavedRun(run) as saved:
        check_format(out, saved.schema.kind)
        chosen = _classes(saved, classes)
    synthesizer = load(run)
    with progress_for(quiet).stage(f"Sampling {n:,} records", n) as stage:
        synthetic = synthesizer.sample(n, classes=chosen, seed=seed, keep=keep)
        stage.advance(n)
    synthetic.save(out)
    write_origin(run, out, n=n, seed=seed)
    warn_not_private(synthesizer.statement_)
    click.echo(
        out
        if quiet
        else f"Made {out}: {n:,} synthetic records{_of(classes)} from {run} (seed {seed}); this cost nothing."
    )


def _classes(run: SavedRun, named: tuple[str, ...]) -> list[str] | None:
    """The classes asked for by `--class`, each once; all of them if none is."""
    known = run.schema.classes
    for name in named:
        if not known:
            raise BadInput(f"{run.path} makes records without classes; leave --class out.")
        if name not in known:
            shown = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
            raise BadInput(f"{run.path} has no class {name!r}; its classes are {shown}.")
    return list(dict.fromkeys(named)) or None


def _of(classes: tuple[str, ...]) -> str:
    return f" of {', '.join(dict.fromkeys(classes))}" if classes else ""


def _sample_shards(
    run: Path,
    n: int,
    out: Path,
    classes: tuple[str, ...],
    seed: int,
    keep: float,
    size: int | None,
    engine: str | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    from sfumato.data.writers import is_file_format
    from sfumato.methods import SavedRun
    from sfumato.methods.shards import SHARD_SIZE, sample_shards
    from sfumato.report.origin import write_origin

    if is_file_format(out) or overwrite:
        raise BadInput(
            "--engine and --shard-size make a folder of Parquet shards, which is never overwritten; give --out the name of a "
            "new folder, or leave them out."
        )
    size = size or SHARD_SIZE
    with SavedRun(run) as saved:
        chosen = _classes(saved, classes)
        warn_not_private(saved.statement)
    with progress_for(quiet).stage(f"Sampling {n:,} records", n) as stage:
        sample_shards(
            run,
            out,
            n,
            classes=chosen,
            seed=seed,
            keep=keep,
            size=size,
            engine=engine,
            on_records=stage.advance,
        )
    write_origin(run, out, n=n, seed=seed)
    click.echo(
        out
        if quiet
        else f"Made {out}: {n:,} synthetic records{_of(classes)} from {run} in {-(-n // size):,} Parquet shards (seed {seed}; "
        "shards.json has that of each); this cost nothing."
    )


def _check_sample_path(out: Path, overwrite: bool) -> None:
    from sfumato.data.writers import is_file_format

    if out.is_dir():
        if is_file_format(out) or any(out.iterdir()):
            raise RunConflict(f"{out} is a folder that already exists; give --out another name.")
    else:
        refuse_existing(out, overwrite)
