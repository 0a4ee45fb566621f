"""What several commands share: their options, what those mean, and how data and run folders are opened.

Torch takes seconds to import, so a function imports what it needs when it runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sfumato.cli.printing import say
from sfumato.errors import BadInput, RunConflict

if TYPE_CHECKING:
    from sfumato.data import Dataset, Schema
    from sfumato.methods import Method
    from sfumato.privacy import Budget, PrivacyStatement
    from sfumato.progress import Progress

# The names of `privacy.Neighbours`, which only comes with torch, and `--help` is to stay quick; a test holds them together.
NEIGHBOURS = ("zero-out", "add-remove", "replace-one")
# What a caller may state about the data behind a path; `facts_options` have these names.
FACTS = (
    "image_size",
    "channels",
    "classes",
    "bits",
    "value_range",
    "labels",
    "fit",
    "schema_file",
)

F = TypeVar("F", bound=Callable[..., Any])


def _stack(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


facts_options = _stack(
    click.option(
        "--image-size", type=click.IntRange(1), help="Height and width of the images, for a folder."
    ),
    click.option(
        "--channels", type=click.Choice(["1", "3"]), help="1 for gray, 3 for colour, for a folder."
    ),
    click.option("--classes", metavar="N|A,B,…", help="Number or names of the classes."),
    click.option(
        "--bits",
        type=click.IntRange(1, 32),
        help="Bits that the pixels use, where they are not bytes: 12 for most scans.",
    ),
    click.option(
        "--range",
        "value_range",
        type=(float, float),
        metavar="LOW HIGH",
        help="The stored numbers that stand for black and white, such as 0 1 or -1024 3071.",
    ),
    click.option(
        "--labels",
        metavar="TABLE:COLUMN",
        help="Where the classes of pictures in one folder stand: labels.csv:finding, a line for each file; needs --classes.",
    ),
    click.option(
        "--fit",
        type=click.Choice(["stretch", "pad", "crop"]),
        help="How pictures of other sizes become --image-size: stretched, padded with black bars, or cropped to the middle.  "
        "[default: stretch]",
    ),
    click.option(
        "--schema",
        "schema_file",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="JSON file with the public facts (shape, ranges, columns, classes); a table needs one.",
    ),
)


unit_options = _stack(
    click.option(
        "--unit",
        metavar="record|folder|RULE|COLUMN",
        help="Who is protected, where a person may have several records: a regular expression with one group over each file's "
        "path ('patient_(\\d+)'), folder (each file's innermost one), a DICOM field (PatientID), a column of a table or of "
        "the one that has the labels (patient_id, patients.csv:patient_id), or an array of an .npz.",
    ),
    click.option(
        "--per-unit",
        type=click.IntRange(1),
        metavar="K",
        help="How many records of a unit count at most, drawn at random (64); a unit counts once however many it has.",
    ),
)
# How `unit_options` are called.
UNIT = ("unit", "per_unit")


def out_option(
    metavar: str,
    about: str,
    *,
    file: bool = False,
    default: Path | None = None,
    required: bool = True,
) -> Callable[[F], F]:
    """`--out`: where a command writes, a folder or a `file`."""
    # click takes a default of None for one that was given, and then asks for nothing.
    more: dict[str, Any] = {} if default is None else {"default": default}
    return click.option(
        "--out",
        required=required and default is None,
        **more,
        metavar=metavar,
        type=click.Path(path_type=Path, dir_okay=not file),
        help=about,
    )


def _data_option(required: bool) -> Callable[[F], F]:
    return click.option(
        "--data",
        "spec",
        required=required,
        metavar="NAME|PATH",
        help="A named set (fashion-mnist:train) or a path.",
    )


class _Epsilon(click.ParamType):
    """A number, or the word inf and no other spelling of it: no slip of the keyboard is to cost all privacy."""

    name = "number|inf"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise BadInput(f"--epsilon is a number, not {value!r}; 1 is a common choice.") from None
        if math.isinf(number) and value not in ("inf", math.inf):
            raise BadInput(
                f"--epsilon {value} is no number; 1 is a common choice, and the word inf is for a fit without any privacy."
            )
        return number


def _budget_options(required: bool) -> Callable[[F], F]:
    return _stack(
        click.option(
            "--epsilon",
            type=_Epsilon(),
            required=required,
            help="Privacy budget ε; there is no default. The word inf: NO PRIVACY, next to no noise, for a paper's row at ε = ∞; "
            "everything made says so, and no ledger takes it.",
        ),
        click.option(
            "--delta", type=float, required=required, help="Privacy budget δ; there is no default."
        ),
        click.option(
            "--neighbours",
            type=click.Choice(NEIGHBOURS),
            default="zero-out",
            help="How two neighbouring data sets differ.",
        ),
    )


data_option, budget_options = _data_option(True), _budget_options(True)
# `fit` may have the data and the budget of an earlier run instead, and says itself what is missing.
fit_data_option, fit_budget_options = _data_option(False), _budget_options(False)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the method; repeat for more. `sfumato methods METHOD` lists them with their defaults.",
)
public_option = click.option(
    "--public",
    "public_spec",
    metavar="NAME|PATH",
    help="Public data for a method that uses some (sfumato methods says which); a folder is resized to the private data.",
)


def ledger_option(about: str) -> Callable[[F], F]:
    return click.option(
        "--ledger",
        "ledger_folder",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help=about,
    )


preset_option = click.option(
    "--preset",
    metavar="NAME[:DATA]",
    help="Settings as the paper has them for this data set: paper, or fast (the paper's, cut down for two cores); --set wins. "
    "paper:adult takes those for Adult. `sfumato methods METHOD --preset paper` lists them with their sources.",
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    help="Public randomness only; the noise never comes from a seed.",
)


def _known_engine(context: click.Context, option: click.Parameter, given: str | None) -> str | None:
    # Before torch is imported; `engines.engine_of` makes it.
    if given is not None and given != "local" and given.partition(":")[0] != "ray":
        raise BadInput(f"There is no engine {given!r}; use local, ray, or ray:ADDRESS.")
    return given


engine_option = click.option(
    "--engine",
    metavar="NAME",
    callback=_known_engine,
    help="Where the work runs: local (the default), ray (a cluster of this machine's cores), or ray:ADDRESS of a cluster that "
    "can read the same paths; the same numbers from each.",
)


def _file_option(flag: str, about: str) -> Callable[[F], F]:
    return click.option(
        flag, metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help=about
    )


export_options = _stack(
    _file_option("--latex", "Also write the table to FILE as LaTeX (booktabs)."),
    _file_option("--markdown", "Also write the table to FILE as Markdown."),
)
quiet_option = click.option(
    "--quiet", "-q", is_flag=True, help="No progress; only results, warnings, errors."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace the file PATH if it exists."
)
run_argument = click.argument("run", type=click.Path(path_type=Path))
debug_option = click.option("--debug", is_flag=True, hidden=True, expose_value=False)
output_options = _stack(quiet_option, json_option, debug_option)


def progress_for(quiet: bool) -> Progress:
    from sfumato.progress import ConsoleProgress, Progress

    return Progress() if quiet else ConsoleProgress()


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
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


def parse_facts(
    image_size: int | None,
    channels: str | None,
    classes: str | None,
    schema_file: Path | None,
    bits: int | None = None,
    value_range: tuple[float, float] | None = None,
    labels: str | None = None,
    fit: str | None = None,
) -> dict[str, Any]:
    """The public facts a caller states about a path, as keyword arguments of `sfumato.load`."""
    facts: dict[str, Any] = {
        "image_size": image_size,
        "channels": None if channels is None else int(channels),
        "classes": None,
        "schema": None,
        "bits": bits,
        "value_range": value_range,
        "labels": labels,
        "fit": fit,
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
        from sfumato.data.loading import read_schema

        facts["schema"] = read_schema(schema_file)
    return facts


def budget_of(epsilon: float, delta: float, neighbours: str) -> Budget:
    from sfumato.privacy import Budget, Neighbours

    if epsilon == math.inf:
        return Budget.none(delta=delta, neighbours=neighbours)
    return Budget(epsilon=epsilon, delta=delta, neighbours=Neighbours(neighbours))


def synthesizer_of(
    name: str,
    settings: Mapping[str, str],
    seed: int | None = None,
    *,
    preset: str | None = None,
    data: str = "",
    epsilon: float | None = None,
) -> Method:
    """The method with the settings of a preset, if one is named, under those given; says what the preset lacks."""
    from sfumato.methods import get_method

    method = get_method(name)
    given = dict(settings)
    if seed is not None and "seed" not in given:
        given["seed"] = str(seed)
    if preset is None:
        return method.from_settings(given)
    from sfumato.methods.presets import find_preset

    kind, _, chosen = preset.partition(":")
    found = find_preset(method, kind, data=chosen or data, epsilon=epsilon, given=given)
    for remark in found.remarks():
        say(f"Note: {remark}")
    return method.from_settings(given, **found.values)


def warn_not_private(statement: PrivacyStatement) -> None:
    """Also where all else is quiet: of a run without privacy nothing is handed on in silence."""
    from sfumato.privacy.statement import NOT_PRIVATE

    if not statement.private:
        say(NOT_PRIVATE)


def warn_large_delta(budget: Budget, size: int | None) -> None:
    # Under add-remove the number of records is itself private, so not even a warning may depend on it.
    warning = budget.warning(size) if budget.neighbours.size_is_public else None
    if warning:
        say(f"Warning: {warning}")


def as_plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return as_plain(value.to_json())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): as_plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_plain(v) for v in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return str(value)


def load_data(spec: str | Path, progress: Progress, **facts: Any) -> Dataset:
    from sfumato.data import load

    return load(spec, progress=progress, **facts)


# Where labels stand and how numbers are read may differ between two sets of the same schema.
_BESIDE = frozenset(["labels", "fit", "bits", "value_range"])


def load_stated(
    spec: str, progress: Progress, facts: dict[str, Any], known: Schema | None
) -> Dataset:
    """Data to compare: a named set knows its facts, a path takes those stated, else those of its counterpart."""
    from sfumato.data import list_named
    from sfumato.data.dataset import stated_range
    from sfumato.data.loading import load_like

    if any(spec.partition(":")[0] == entry.name for entry in list_named()):
        return load_data(spec, progress)
    stated = {key: value for key, value in facts.items() if value is not None}
    if not stated and known is not None:
        return load_like(spec, known, progress=progress)
    if known is not None and known.kind == "images" and not {*stated} - _BESIDE:
        stated["value_range"] = stated_range(stated.pop("bits", None), stated.get("value_range"))
        schema = dataclasses.replace(known, value_range=None)
        return load_like(spec, known, progress=progress, schema=schema, **stated)
    return load_data(spec, progress, **stated)


def refuse_existing(out: Path, overwrite: bool = False) -> None:
    if out.exists() and not overwrite:
        raise RunConflict(f"{out} already exists; give --out another name, or add --overwrite.")


def check_run_folder(out: Path, resume: bool) -> bool:
    """Whether there is something to resume; refuses a folder that holds other things."""
    from sfumato.methods.run import holds_nothing

    if out.exists() and not out.is_dir():
        raise RunConflict(f"{out} is a file; give --out a folder that does not exist yet.")
    if not out.is_dir():
        return False
    if not is_run(out):
        if not holds_nothing(out):
            raise RunConflict(f"{out} is not empty and holds no run; give --out a new folder.")
        return False
    if not resume:
        raise RunConflict(
            f"{out} already holds a run; give --out another folder, or add --resume to go on with it."
        )
    return True


def is_run(path: Path) -> bool:
    from sfumato.methods import is_run

    return is_run(path)
