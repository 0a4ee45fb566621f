"""Tables of the papers made again: `sfumato reproduce merf/table-3` runs what `tables/merf/table-3.toml` says.

Such a file is one or several comparisons (`report.comparison`) and what they stand beside:

    title = "…"; paper = "S3"; tables = ["app. B, Table 9"]     which numbers of published.toml
    differs = ["…"]                                             what our protocol has otherwise than the paper's
    epsilons, delta, neighbours, seeds, samples, metrics, …     as a comparison's file has them, for all grids
    [[grids]] data = "mnist"                                    a comparison each, with what is its own; beside = "celeba-64":
                                                                the paper's set, where ours must be another
    [methods."DP-MERF"] method = "merf", preset = "paper"       called as published.toml calls it, to stand in one row with it
    [quick] …                                                   what --quick changes: a check that it runs, not a result

Cells are kept and gone on with as in every comparison. The files are package data, so an installed sfumato has them.

Public: settings, plans, the papers' numbers. Every number of ours was computed on real data and is NOT covered by ε.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from sfumato import published
from sfumato._version import __version__
from sfumato.engines import Engine
from sfumato.errors import BadInput
from sfumato.evaluation.classified import OF_THE_FIT
from sfumato.files import as_path, check_file, write_json
from sfumato.methods import get_method
from sfumato.methods.presets import find_preset
from sfumato.progress import Progress
from sfumato.published import BADGE
from sfumato.report.comparison import (
    Config,
    Outcome,
    Row,
    how_judged,
    parse_config,
    reads_real,
    shown_epsilon,
)
from sfumato.report.export import Table, export
from sfumato.report.grid import compare
from sfumato.report.papers import Published, all_published, paper_titles

_OWN = ("title", "paper", "tables", "differs", "grids", "quick")
COLUMNS = ("Data", "Metric", "Method", "ε", "Paper", "Ours", "Range over seeds", "Seeds")


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table to be made again: which one, our comparisons, and what is known to differ."""

    name: str
    title: str
    paper: str
    tables: tuple[str, ...]
    differs: tuple[str, ...]
    grids: tuple[Config, ...]
    beside: tuple[str, ...]  # for each grid the data set of the paper's numbers
    quick: bool

    def numbers(self) -> list[Published]:
        """The paper's numbers on these data sets and metrics, in the paper's order."""
        wanted = {
            (data, metric)
            for grid, data in zip(self.grids, self.beside, strict=True)
            for metric in grid.metrics
        }
        return [
            number
            for number in all_published()
            if number.paper == self.paper
            and number.source.partition(", ")[2] in self.tables
            and any(
                (number.data, name) in wanted
                for name in (number.metric, number.metric.partition(".")[0])
            )
        ]


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What came of it: rows with the paper's number and ours, and the comparisons behind them."""

    table: PaperTable
    rows: list[Row]
    outcomes: list[Outcome]
    folder: Path

    @property
    def failures(self) -> list[dict[str, Any]]:
        return [failure for outcome in self.outcomes for failure in outcome.failures]

    def to_json(self) -> dict[str, Any]:
        """The content of reproduction.json."""
        return {
            "sfumato": __version__,
            "name": self.table.name,
            "title": self.table.title,
            "quick": self.table.quick,
            "metrics_are": BADGE,
            "rows": self.rows,
            "notes": notes(self),
        }


# ------------------------------------------------------------------------- the files


def table_names() -> dict[str, str]:
    """Every table that can be made again, with its title."""
    folder = files("sfumato.report") / "tables"
    found = {
        f"{method.name}/{path.name.removesuffix('.toml')}": _parsed(path.read_text("utf-8"))
        for method in folder.iterdir()
        if method.is_dir()
        for path in method.iterdir()
        if path.name.endswith(".toml")
    }
    return {name: found[name]["title"] for name in sorted(found)}


def read_table(name: str, *, quick: bool = False) -> PaperTable:
    """The table called so ("merf/table-3"), or of a TOML file of one's own."""
    if name.endswith(".toml"):
        path = as_path(name)
        try:
            check_file(path)
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise BadInput(f"Cannot read {path}: {error.strerror}; check the path.") from error
        except UnicodeDecodeError as error:
            raise BadInput(f"{path} is not TOML ({error}); correct it there.") from error
    else:
        if name not in table_names():
            raise BadInput(
                f"There is no table {name!r}; type sfumato reproduce --list to see those there are."
            )
        text = (files("sfumato.report") / "tables" / f"{name}.toml").read_text("utf-8")
    try:
        return _table(name, _parsed(text), quick)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from error


def part_of(
    table: PaperTable,
    *,
    seeds: int | None = None,
    only: str = "",
    data: str = "",
    epsilons: str = "",
    metrics: str = "",
) -> PaperTable:
    """The first `seeds` seeds of the table, the methods whose names hold a word of `only`, these data sets, ε and metrics.

    Cells are those of the whole table: whoever has time later goes on with it in the same folder. Those of fewer metrics are
    cells of their own.
    """
    try:
        asked = [float(word.replace("∞", "inf")) for word in epsilons.split(",") if word]
    except ValueError as error:
        raise BadInput(
            f"--epsilons takes numbers with commas between, inf for ∞, not {epsilons!r}."
        ) from error
    grids, beside = [], []
    for grid, theirs in zip(table.grids, table.beside, strict=True):
        chosen = {n: v for n, v in grid.variants.items() if any(w in n for w in only.split(","))}
        levels = tuple(e for e in grid.epsilons if not asked or e in asked)
        judged = tuple(m for m in grid.metrics if not metrics or m in metrics.split(","))
        if chosen and levels and judged and (not data or grid.data in data.split(",")):
            part = replace(grid, variants=chosen, seeds=grid.seeds[:seeds])
            grids.append(replace(part, epsilons=levels, metrics=judged))
            beside.append(theirs)
    if not grids:
        has: dict[str, dict[str, None]] = {"methods": {}, "data": {}, "ε": {}, "metrics": {}}
        for grid in table.grids:
            words = (grid.variants, [grid.data], map(shown_epsilon, grid.epsilons), grid.metrics)
            for known, more in zip(has.values(), words, strict=True):
                known.update(dict.fromkeys(more))
        told = "; ".join(f"{what} {', '.join(known)}" for what, known in has.items())
        raise BadInput(f"Nothing is left of {table.name}; it has {told}.")
    return replace(table, grids=tuple(grids), beside=tuple(beside))


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"It is not TOML ({error}); correct it there.") from error


def _table(name: str, given: Mapping[str, Any], quick: bool) -> PaperTable:
    for key, kind in (("title", str), ("paper", str), ("tables", list), ("grids", list)):
        if not isinstance(given.get(key), kind) or not given[key]:
            raise BadInput(f"{key} is missing, or not of its kind; merf/table-3 is an example.")
    _check_kinds(given)
    if given["paper"] not in paper_titles():
        raise BadInput(f"paper must be one of {', '.join(paper_titles())}.")
    common = {key: value for key, value in given.items() if key not in _OWN}
    changes = dict(given.get("quick", {})) if quick else {}
    if quick and not changes:
        raise BadInput("There is no [quick] in it; leave --quick out.")
    most = changes.pop("grids", len(given["grids"]))
    wholes = [_grid(common, grid, changes) for grid in given["grids"][:most]]
    beside = [whole.pop("beside", whole.get("data", "")) for whole in wholes]
    told = [str(line) for line in given.get("differs", ())]
    configs = tuple(parse_config(whole) for whole in wholes)  # first: it says what is wrong
    for whole in wholes:
        told += [line for line in _preset_remarks(whole) if line not in told]
    return PaperTable(
        name=name,
        title=given["title"],
        paper=given["paper"],
        tables=tuple(given["tables"]),
        differs=tuple(told),
        grids=configs,
        beside=tuple(beside),
        quick=quick,
    )


def _check_kinds(given: Mapping[str, Any]) -> None:
    """Refuse what is of another kind than a table's file has it; what a comparison has, `parse_config` looks at."""
    texts, tables = "a list of texts in quotes", "a table, as in merf/table-3"
    for key in ("tables", "differs"):
        found = given.get(key, [])
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise BadInput(f"{key} must be {texts}.")
    quick = given.get("quick", {})
    if not all(isinstance(part, dict) for part in (quick, *given["grids"])):
        raise BadInput(f"quick and every one of grids must be {tables}.")
    most = quick.get("grids", 1)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise BadInput("grids in [quick] must be how many of them are made, from 1.")
    for part in (given, quick, *given["grids"]):
        methods = part.get("methods", {})
        if not isinstance(methods, dict) or not all(isinstance(m, dict) for m in methods.values()):
            raise BadInput(f"methods, and every one of them, must be {tables}.")
        if not isinstance(part.get("beside", ""), str):
            raise BadInput("beside must be the name of the paper's set in quotes.")


def _grid(
    common: Mapping[str, Any], grid: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """A comparison as its own file would have it; settings of methods are laid over each other, all else is replaced."""
    methods: dict[str, dict[str, Any]] = {}
    for part in (common, grid):
        for name, settings in part.get("methods", {}).items():
            methods[name] = {**methods.get(name, {}), **settings}
    for name, settings in changes.get("methods", {}).items():
        if name in methods:
            methods[name] |= settings
    return {**common, **grid, **changes, "methods": methods}


def _preset_remarks(grid: Mapping[str, Any]) -> list[str]:
    """What the presets used lack of the paper's settings, or change; for whichever ε it is said."""
    found: dict[str, None] = {}
    for name, settings in grid["methods"].items():
        preset = str(settings.get("preset", ""))
        if not preset:
            continue
        kind, _, chosen = preset.partition(":")
        cls = get_method(str(settings.get("method", name)))
        data = chosen or grid.get("data") or grid["train"]
        for epsilon in grid["epsilons"]:
            preset_of = find_preset(cls, kind, data=data, epsilon=epsilon, given=settings)
            found |= dict.fromkeys(preset_of.remarks())
    return list(found)


# ------------------------------------------------------------------------- the work


def reproduce(
    table: PaperTable,
    out: Path | str,
    *,
    jobs: int | None = None,
    engine: Engine | str | None = None,
    progress: Progress | None = None,
) -> Reproduction:
    """Run the cells that `out` does not hold yet, and put our numbers beside the paper's: reproduction.json, .md and .tex."""
    out = Path(out)
    outcomes = [
        compare(grid, out / folder, jobs=jobs, engine=engine, progress=progress)
        for grid, folder in zip(table.grids, _folders(table.grids), strict=True)
    ]
    found = Reproduction(
        table=table, rows=side_by_side(table, outcomes), outcomes=outcomes, folder=out
    )
    facts = found.to_json()
    published.check("reproduction", facts)
    write_json(out / "reproduction.json", facts)
    export(as_table(found), out / "reproduction.tex", out / "reproduction.md")
    return found


def _folders(grids: Sequence[Config]) -> list[str]:
    """A folder for each grid, by its data; where several are on one set they are numbered."""
    names = [grid.data.replace("/", "-").replace(":", "-") for grid in grids]
    return [
        name if names.count(name) == 1 else f"{name}-{names[:place].count(name) + 1}"
        for place, name in enumerate(names)
    ]


def side_by_side(table: PaperTable, outcomes: Sequence[Outcome]) -> list[Row]:
    """A row for each metric, method and ε that either has; what the paper calls by our name and ε stands in ours."""
    theirs: dict[tuple[str, str, str, float], Published] = {}
    for number in table.numbers():
        theirs.setdefault((number.data, number.metric, number.method, number.epsilon), number)
    rows: list[Row] = []
    made = [
        {
            (row["metric"], row["method"], _epsilon(row)): row
            for row in outcome.rows
            if not row["published"]
        }
        for outcome in outcomes
    ]
    mine = {(data, *key) for data, ours in zip(table.beside, made, strict=True) for key in ours}
    for place, (grid, data, ours) in enumerate(zip(table.grids, table.beside, made, strict=True)):
        shown = grid.data if data == grid.data else f"{grid.data} (the paper's: {data})"
        # A number of the paper's stands once: beside ours, or where its data set comes first.
        first = data not in table.beside[:place]
        there = [
            key[1:]
            for key in theirs
            if key[0] == data and (key[1:] in ours or (first and key not in mine))
        ]
        for metric in dict.fromkeys(key[0] for key in (*ours, *there)):
            keys = dict.fromkeys(key for key in (*there, *ours) if key[0] == metric)
            rows += [_row(shown, key, theirs.get((data, *key)), ours.get(key)) for key in keys]
    return rows


def _epsilon(row: Row) -> float:
    return math.inf if row["epsilon"] is None else float(row["epsilon"])


def _row(data: str, key: tuple[str, str, float], number: Published | None, ours: Row | None) -> Row:
    metric, method, epsilon = key
    row: Row = {"data": data, "metric": metric, "method": method}
    row["epsilon"] = epsilon if math.isfinite(epsilon) else None
    row |= {"paper": number.value if number else None, "printed": number.printed if number else ""}
    row["spread"] = number.spread if number else None
    row["source"] = number.source if number else ""
    for key_of in ("mean", "low", "high", "seeds"):
        row[key_of] = ours[key_of] if ours else None
    return row


# ------------------------------------------------------------------------- what is shown


def as_table(found: Reproduction) -> Table:
    """The rows as text, the paper's number and ours with equally many digits; rows that only the paper has are slanted."""
    return Table(
        title=f"{found.table.title}, {', '.join(found.table.tables)}",
        columns=COLUMNS,
        rows=[_shown(row) for row in found.rows],
        slanted=frozenset(i for i, row in enumerate(found.rows) if row["mean"] is None),
        notes=notes(found),
    )


def _shown(row: Row) -> tuple[str, ...]:
    digits = len(row["printed"].partition(".")[2]) if row["printed"] else None
    form = f".{max(digits, 1)}f" if digits is not None else ".4g"
    spread = "" if row["spread"] is None else f" ± {row['spread']:{form}}"
    several = row["mean"] is not None and row["seeds"] > 1
    return (
        row["data"],
        row["metric"],
        row["method"],
        shown_epsilon(row["epsilon"]),
        f"{row['printed']}{spread}" if row["printed"] else "–",
        "–" if row["mean"] is None else f"{row['mean']:{form}}",
        f"{row['low']:{form}} … {row['high']:{form}}" if several else "–",
        "–" if row["mean"] is None else str(row["seeds"]),
    )


def notes(found: Reproduction) -> list[str]:
    """Both protocols, and what is known to differ."""
    table = found.table
    protocols = dict.fromkeys(number.protocol for number in table.numbers())
    first = table.grids[0]
    kept = how_judged(first)
    records = first.metrics[:1] not in {(name,) for name in OF_THE_FIT}
    samples = f", {first.samples:,} synthetic records each{kept}" if records else ""
    fits = sum(len(outcome.cells) for outcome in found.outcomes)
    missing = sum(len(outcome.missing) for outcome in found.outcomes)
    real = any(map(reads_real, found.outcomes))
    begin = f"Every number of ours is {BADGE}; each" if real else "Each"
    return [
        *(
            ["QUICK: few steps, samples and seeds, to see that it runs. These are no results."]
            if table.quick
            else []
        ),
        f"{table.paper} is {paper_titles()[table.paper]}.",
        *(f"The paper's protocol: {words}." for words in protocols if words),
        f"Ours: {first.neighbours}, δ = {first.delta:g}, mean and range over {len(first.seeds)} seed(s){samples}.",
        *(f"Differs: {words}" + ("" if words.endswith(".") else ".") for words in table.differs),
        f"{begin} row's ε is that of the samples of ONE fit, and the {fits} fits made here add up.",
        *(
            ["Our rows at ε = ∞ are made with next to no noise and are NOT PRIVATE."]
            if any(math.inf in grid.epsilons for grid in table.grids)
            else []
        ),
        *([f"{missing} cell(s) failed; a mean is over the cells there are."] if missing else []),
    ]
