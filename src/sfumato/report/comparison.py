"""A comparison of methods × ε × seeds on one data set: what its TOML file asks for, what was found, and the files about it.

`grid.compare` runs it. Anything wrong with the TOML file is a sentence that names the key. What was found are rows: ours beside
the papers', each with its ε, its relation and its source; comparison.json, .csv, .md, .html and curve.png show them.

Public: the samples' guarantee, settings, plans. NOT covered by ε: every metric, since it reads real records; each output
says so.
"""

from __future__ import annotations

import csv
import io
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sfumato import published
from sfumato._version import __version__
from sfumato.data import find_named
from sfumato.data.catalogue import unknown_set
from sfumato.data.remote import refuse_secrets
from sfumato.errors import BadInput
from sfumato.evaluation.metrics import badge_of, check_precision, family_of, in_short, title_of
from sfumato.files import as_path, atomic_path, check_file, write_json, write_text
from sfumato.methods import Method, get_method
from sfumato.methods.presets import find_preset
from sfumato.methods.selection import check_keep
from sfumato.privacy import Budget, Neighbours
from sfumato.published import BADGE
from sfumato.report.papers import Published, paper_titles, published_numbers
from sfumato.report.pictures import Mark, Point, epsilon_plot
from sfumato.report.words import markdown, render

Cell = dict[str, Any]
Row = dict[str, Any]

FORMAT = 1
COLUMNS = ("Metric", "ε", "Relation", "Method", "Mean", "Range over seeds", "Seeds", "Source")
_MOST_PANELS = 6
_RELATIONS = {"not stated": "relation not stated", "none": "NOT PRIVATE"}
DEFAULTS = {
    "neighbours": "zero-out",
    "seeds": [0],
    "samples": 60_000,
    "keep": 1.0,
    "precision": "float32",
    "preset": "quick",
}
FACTS = ("image_size", "channels", "classes", "bits", "value_range", "labels", "fit")
_KEYS = (
    *("data", "train", "test", "epsilons", "delta", "neighbours"),
    *("seeds", "samples", "keep", "precision"),
)
_ENTRY = ("name", "label", "public", "settings")


# ------------------------------------------------------------------------- what is asked for


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A method with its settings, all of them but the seed, and the public data it gets.

    `by_epsilon`: what a preset sets otherwise at some ε, under that ε as text.
    `decoder_only`: the method is left out, and private records themselves go through its codec: the most that the codec's decoder
    can do, at ε = ∞, NOT PRIVATE.
    """

    method: str
    settings: dict[str, Any]
    public: str | None = None
    by_epsilon: dict[str, dict[str, Any]] = field(default_factory=dict)
    decoder_only: bool = False

    def at(self, epsilon: float) -> dict[str, Any]:
        """The settings at this ε."""
        return {**self.settings, **self.by_epsilon.get(f"{epsilon:g}", {})}


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a comparison's TOML file says, checked. `variants` are the methods by the names shown."""

    data: str  # as shown; a named set's name, so that its published numbers are found
    train: str
    test: str
    facts: dict[str, Any]
    epsilons: tuple[float, ...]
    delta: float
    neighbours: str
    seeds: tuple[int, ...]
    samples: int
    keep: float
    precision: str
    metrics: tuple[str, ...]
    preset: str
    variants: dict[str, Variant]


def read_config(path: Path | str) -> Config:
    """A comparison's TOML file; anything wrong with it is a sentence that names the key."""
    path = as_path(path)
    try:
        check_file(path)
        text = path.read_text(encoding="utf-8")
        return parse_config(tomllib.loads(text, parse_float=_spelt_out))
    except OSError as error:
        raise BadInput(f"Cannot read {path}: {error.strerror}; check the path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not TOML ({error}); correct it there.") from error
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def _spelt_out(number: str) -> float:
    """ε = ∞ stands for no privacy, so it is written inf; a number that is too large for one is a mistake."""
    found = float(number)
    if math.isinf(found) and "inf" not in number:
        raise BadInput(f"{number} is too large for a number; write inf if that is meant.")
    return found


def parse_config(given: Mapping[str, Any]) -> Config:
    """The same from a mapping."""
    known = (*_KEYS, "metrics", "preset", *FACTS, "methods")
    for key in given:
        if key not in known:
            raise BadInput(f"There is no key {key!r}; the keys are {', '.join(known)}.")
    if "metrics" in given and "preset" in given:
        raise BadInput("Both metrics and preset are given; keep one of the two.")
    values = {**DEFAULTS, **given}
    shown, train, test = _data(given)
    epsilons = _numbers(values, "epsilons", "[0.2, 1.0, 10.0]", infinite=True)
    if min(epsilons) <= 0:
        raise BadInput("epsilons must be positive numbers; write epsilons = [1.0].")
    (delta,) = _numbers({"delta": [given["delta"]]} if "delta" in given else {}, "delta", "1e-5")
    seeds = _numbers(values, "seeds", "[0, 1, 2]")
    if not all(isinstance(s, int) and 0 <= s < 2**32 for s in seeds):
        raise BadInput("seeds must be whole numbers from 0 to 4294967295; write seeds = [0, 1, 2].")
    samples = values["samples"]
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise BadInput("samples must be a whole number of at least 1; write samples = 60000.")
    metrics = values.get("metrics", [])
    if not isinstance(metrics, list) or not all(isinstance(m, str) for m in metrics):
        raise BadInput('metrics must be a list of names; write metrics = ["accuracy.logreg"].')
    if "metrics" in given and not metrics:
        raise BadInput('metrics is empty; name one or write preset = "quick" in its place.')
    check_keep(values["keep"])
    check_precision(values["precision"])
    budget = Budget(epsilon=1.0, delta=delta, neighbours=Neighbours.parse(values["neighbours"]))
    return Config(
        data=shown,
        train=train,
        test=test,
        facts={key: given[key] for key in FACTS if key in given},
        epsilons=tuple(sorted(float(e) for e in epsilons)),
        delta=budget.delta,
        neighbours=budget.neighbours.value,
        seeds=tuple(int(s) for s in seeds),
        samples=samples,
        keep=float(values["keep"]),
        precision=values["precision"],
        metrics=tuple(metrics),
        preset="" if metrics else str(values["preset"]),
        variants=_variants(given.get("methods"), train, tuple(float(e) for e in epsilons)),
    )


def _numbers(
    values: Mapping[str, Any], key: str, example: str, *, infinite: bool = False
) -> tuple[int | float, ...]:
    found = values.get(key)
    numbers = [x for x in found if _is_number(x, infinite)] if isinstance(found, list) else []
    if not numbers or len({*numbers}) != len(found or []):
        what = "a number" if key == "delta" else "a list of different numbers"
        missing = "is missing; it " if found is None else ""
        raise BadInput(f"{key} {missing}must be {what}; write {key} = {example}.")
    return tuple(numbers)


def _is_number(value: Any, infinite: bool = False) -> bool:
    """A finite number, or where ε may be inf (no privacy) that."""
    number = not isinstance(value, bool) and isinstance(value, int | float)
    return number and (math.isfinite(value) or (infinite and value == math.inf))


def _data(given: Mapping[str, Any]) -> tuple[str, str, str]:
    specs = {key: given[key] for key in ("data", "train", "test") if key in given}
    for key, spec in specs.items():
        if not isinstance(spec, str) or not spec:
            raise BadInput(f'{key} must be a name or path in quotes; write {key} = "digits".')
        refuse_secrets(spec)
    if set(specs) == {"train", "test"}:
        private, held_out = find_named(specs["train"]), find_named(specs["test"])
        # Published numbers are for this way round only.
        splits = (private[1], held_out[1]) if private and held_out else None
        if private and held_out and private[0] is held_out[0] and splits == ("train", "test"):
            return private[0].name, specs["train"], specs["test"]
        return specs["train"], specs["train"], specs["test"]
    if set(specs) != {"data"}:
        raise BadInput('Give the data by data = "digits" alone, or by both train = and test =.')
    name = specs["data"]
    found = find_named(name.partition(":")[0])
    if found is None:
        raise unknown_set(name)
    if ":" in name or not {"train", "test"} <= set(found[0].splits):
        raise BadInput(
            f"data = {name!r} must be a set with train and test; else use train = and test =."
        )
    return found[0].name, f"{found[0].name}:train", f"{found[0].name}:test"


def _variants(tables: Any, data: str, epsilons: tuple[float, ...]) -> dict[str, Variant]:
    """From [methods.NAME] tables, or a list of [[methods]] with name, label, public and settings."""
    if not isinstance(tables, dict | list) or not tables:
        raise BadInput("No method is named; add a table such as [methods.merf].")
    if isinstance(tables, dict):
        return {
            name: _variant(name, f"methods.{name}", table, data, epsilons)
            for name, table in tables.items()
        }
    found: dict[str, Variant] = {}
    for number, entry in enumerate(tables, 1):
        where = f"methods {number}"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise BadInput(f'[[methods]] number {number} has no name; write name = "merf".')
        for key in entry:
            if key not in _ENTRY:
                raise BadInput(
                    f"[[methods]] number {number} has no key {key!r}; its keys are {', '.join(_ENTRY)}."
                )
        label: Any = entry.get("label", entry["name"])
        settings = entry.get("settings", {})
        if not isinstance(settings, dict):
            raise BadInput(
                f"settings of [[methods]] number {number} must be a table; write settings = {{ steps = 500 }}."
            )
        if label in found:
            raise BadInput(f"Two [[methods]] are called {label!r}; give one of them a label.")
        public = {"public": entry["public"]} if "public" in entry else {}
        whole = {**settings, **public, "method": entry["name"]}
        found[label] = _variant(label, where, whole, data, epsilons)
    return found


def _variant(name: Any, where: str, table: Any, data: str, epsilons: tuple[float, ...]) -> Variant:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise BadInput(f"[{where}] must have a name that can be shown.")
    if not isinstance(table, dict):
        raise BadInput(f"{where} must be a table of settings; write [methods.merf].")
    settings = dict(table)
    method, public = settings.pop("method", name), settings.pop("public", None)
    preset, decoder_only = settings.pop("preset", None), settings.pop("decoder_only", False)
    if not isinstance(decoder_only, bool):
        raise BadInput(f"[{where}] decoder_only must be true or false.")
    if decoder_only and math.inf not in epsilons:
        raise BadInput(
            f"[{where}] decoder_only shows private records themselves, without any noise; add inf to epsilons, or leave it out."
        )
    if preset is not None and (not isinstance(preset, str) or not preset):
        raise BadInput(f'[{where}] preset must be a name in quotes; write preset = "paper".')
    if public is not None and (not isinstance(public, str) or not public):
        raise BadInput(
            f'[{where}] public must be a name or path in quotes; write public = "mnist".'
        )
    refuse_secrets(public)
    if "seed" in settings:
        raise BadInput(f"[{where}] sets seed; the list seeds does that for all methods.")
    texts = {}
    for key, value in settings.items():
        if not isinstance(value, str | bool) and not _is_number(value):
            raise BadInput(f"[{where}] {key} must be a number, text, true or false.")
        texts[key] = str(value).lower() if isinstance(value, bool) else str(value)
    hint = "" if "method" in table else f' (or name it by method = "…" in [{where}])'
    try:
        cls = get_method(str(method))
        hint = ""
        full = [_settings_at(cls, texts, preset, data, epsilon) for epsilon in epsilons]
    except BadInput as error:
        raise BadInput(f"[{where}] {error}{hint}") from error
    if decoder_only and full[0].get("codec") is None:
        raise BadInput(
            f"[{where}] decoder_only is for methods with a codec, and {cls.info.name} has none here."
        )
    others = {
        f"{epsilon:g}": {key: value for key, value in found.items() if full[0][key] != value}
        for epsilon, found in zip(epsilons, full, strict=True)
    }
    return Variant(
        method=cls.info.name,
        settings=full[0],
        public=public,
        by_epsilon={epsilon: changed for epsilon, changed in others.items() if changed},
        decoder_only=decoder_only,
    )


def _settings_at(
    cls: type[Method], given: Mapping[str, str], preset: str | None, data: str, epsilon: float
) -> dict[str, Any]:
    """All settings but the seed: those given, over those of the preset (paper, or paper:adult) for this data set and ε."""
    more: dict[str, Any] = {}
    if preset:
        kind, _, chosen = preset.partition(":")
        more = find_preset(cls, kind, data=chosen or data, epsilon=epsilon, given=given).values
    full = cls.from_settings(given, **more).get_params()
    full.pop("seed", None)
    return full


# ------------------------------------------------------------------------- what was found


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What `compare` found: a row for each metric, ε and method, the cells, and a sentence for each cell that failed.

    `failures` and `seconds` (of the cells that were run now) may depend on private records; they are for the operator, and
    `to_json`, the content of comparison.json, has neither.
    """

    config: Config
    rows: list[Row]
    cells: list[Cell]
    failures: list[dict[str, Any]]
    notes: list[str]
    kept: int
    folder: Path
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        finite = [e if math.isfinite(e) else None for e in self.config.epsilons]  # JSON has no ∞
        return {
            "format": FORMAT,
            "sfumato": __version__,
            "metrics_are": BADGE,
            "config": {**asdict(self.config), "epsilons": finite},
            "rows": self.rows,
            "cells": self.cells,
            "missing": self.missing,
            "notes": self.notes,
        }

    @property
    def missing(self) -> list[dict[str, Any]]:
        """The cells that failed, without the reason."""
        return [{key: f[key] for key in ("name", "epsilon", "seed")} for f in self.failures]


def how_judged(config: Config) -> str:
    """What departs from all samples and float32, to be put behind the number of samples; empty if nothing does."""
    kept = "" if config.keep == 1 else f"the most typical {100 * config.keep:g} % of those drawn"
    return "".join(f", {words}" for words in (kept, in_short(config.precision)) if words)


def rows_of(
    config: Config, results: Sequence[tuple[str, Cell, Cell]], *, all_published: bool = False
) -> list[Row]:
    """A row for each metric, ε and method: ours, then the papers'; ε is None where there is no privacy."""
    values: dict[tuple[str, float | None, str], list[dict[str, Any]]] = {}
    for name, cell, result in results:
        for metric in result["metrics"]:
            values.setdefault((metric["name"], cell["epsilon"], name), []).append(metric)
    rows: list[Row] = []
    for (metric, epsilon, name), found in values.items():
        numbers = [m["value"] for m in found]
        mean, low, high = sum(numbers) / len(numbers), min(numbers), max(numbers)
        relation = config.neighbours if epsilon is not None else "none"
        row = {"metric": metric, "epsilon": epsilon, "relation": relation, "method": name}
        row |= {"mean": mean, "low": low, "high": high, "seeds": len(numbers), "published": False}
        sound = get_method(config.variants[name].method).info.sound
        unsound = "" if sound else "; ACCOUNTING NOT SOUND"
        unsound += "" if epsilon is not None else "; NOT PRIVATE"
        rows.append(row | {"source": found[0]["source"] + unsound, "badge": badge_of(found[0])})
    order = list(dict.fromkeys(row["metric"] for row in rows))
    for number in published_numbers(config.data, everything=all_published) if order else []:
        if number.metric in order:
            private = math.isfinite(number.epsilon)
            row = {"metric": number.metric, "epsilon": number.epsilon if private else None}
            row |= {"relation": number.relation, "method": number.method, "mean": number.value}
            row |= {"low": None, "high": None, "seeds": None, "printed": number.printed}
            notes = {"protocol": number.protocol, "superseded": number.superseded}
            rows.append(row | {"published": True, "source": _place(number), "badge": ""} | notes)
    return sorted(
        rows, key=lambda r: (order.index(r["metric"]), r["epsilon"] or math.inf, r["published"])
    )


def _place(number: Published) -> str:
    drawn = " (the authors' plot files)" if number.figure else ""
    old = "SUPERSEDED; " if number.superseded else ""
    return f"published: {old}{number.source}{drawn}"


def shown_epsilon(epsilon: float | None) -> str:
    """ε of a row or cell; None is ∞, without privacy."""
    return "∞" if epsilon is None or math.isinf(epsilon) else f"{epsilon:g}"


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The rows as text, under `COLUMNS`."""
    lines: list[tuple[str, ...]] = [
        (
            row["metric"],
            shown_epsilon(row["epsilon"]),
            _RELATIONS.get(row["relation"]) or row["relation"],
            row["method"] + (" (published)" if row["published"] else ""),
            row.get("printed") or f"{row['mean']:.4g}",
            "–" if row["published"] else f"{row['low']:.4g} … {row['high']:.4g}",
            "–" if row["published"] else str(row["seeds"]),
            row["source"],
        )
        for row in rows
    ]
    return lines


def remarks(outcome: Outcome) -> list[str]:
    """What a reader must know beside the table."""
    config = outcome.config
    kept = how_judged(config)
    return [
        f"Each row of ours is {config.neighbours} (ε, δ)-differential privacy with δ = {config.delta:g} for the samples of "
        f"ONE fit; the {len(outcome.cells)} fits made here are as many releases of the same data, and add up.",
        *(
            [
                "Rows at ε = ∞ are made with next to no noise and are NOT PRIVATE: they are there to be compared with a paper's, "
                "and nothing of them may be given away."
            ]
            if math.inf in config.epsilons
            else []
        ),
        *(
            [
                f"Every number of ours is {BADGE}; choosing a method or setting by it is not covered either."
            ]
            if reads_real(outcome)
            else []
        ),
        *(
            [
                f"Not every cell is there: {missing_sentence(outcome)}; a mean is over the cells there are."
            ]
            if outcome.missing
            else []
        ),
        f"Mean and range are over {len(config.seeds)} seed(s), {config.samples:,} synthetic records each{kept}. "
        "Published numbers come with the papers' own accounting, relation and protocol.",
        *_protocols(outcome.rows),
        *outcome.notes,
    ]


def _protocols(rows: Sequence[Row]) -> list[str]:
    """What stands behind the published numbers shown: which paper a letter means, and how each table was measured."""
    theirs = [row for row in rows if row["published"]]
    told: dict[str, list[str]] = {}
    for row in theirs:
        words = "; ".join(part for part in (row["protocol"], row["superseded"]) if part)
        place = row["source"].removeprefix("published: ").removeprefix("SUPERSEDED; ")
        place = place.partition(":")[0] + ", " + place.partition(", ")[2] if ":" in place else place
        if words and place not in told.setdefault(words, []):
            told[words].append(place)
    used = [key for key in paper_titles() if any(f"{key}:" in row["source"] for row in theirs)]
    titles = [f"{key} is {paper_titles()[key]}" for key in used]
    return [
        *(
            ["; ".join(titles) + ". A number after the colon is a line of its text."]
            if used
            else []
        ),
        *(f"Protocol of {' and '.join(places)}: {words}." for words, places in told.items()),
    ]


def reads_real(outcome: Outcome) -> bool:
    """Whether a number of ours was computed on real records; of DP-DRE's weights none is."""
    return any(row["badge"] for row in outcome.rows if not row["published"])


def missing_sentence(outcome: Outcome) -> str:
    return "; ".join(
        f"{cell['name']}, ε = {shown_epsilon(cell['epsilon'])}, seed {cell['seed']}"
        for cell in outcome.missing
    )


def failure_sentence(failure: Mapping[str, Any]) -> str:
    return (
        f"{failure['name']}, ε = {shown_epsilon(failure['epsilon'])}, seed {failure['seed']}: "
        f"{failure['error']}"
    )


# ------------------------------------------------------------------------- the files


def write_comparison(outcome: Outcome) -> None:
    out, config = outcome.folder, outcome.config
    facts = outcome.to_json()
    published.check("comparison", facts)
    write_json(out / "comparison.json", facts)
    keys = ("metric", "epsilon", "relation", "method", "mean", "low", "high", "seeds", "published")
    more = ("delta", "source", "badge", "printed", "protocol", "superseded")
    text = io.StringIO()
    writer = csv.DictWriter(text, [*keys, *more], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"delta": None if r["published"] else config.delta, **r} for r in outcome.rows)
    write_text(out / "comparison.csv", text.getvalue())

    lines = [f"# Comparison on {markdown(config.data)}", ""]
    lines += [f"- {markdown(remark)}" for remark in remarks(outcome)]
    lines += ["", _line(COLUMNS), _line(["---"] * len(COLUMNS)), *map(_line, table(outcome.rows))]
    lines += ["", "![Privacy and utility](curve.png)"] if outcome.cells else []
    write_text(out / "comparison.md", "\n".join(lines) + "\n")

    if outcome.cells:
        with atomic_path(out / "curve.png") as temporary:
            temporary.write_bytes(_curve(outcome.rows))
    content = {
        "config": config,
        "panels": _panels(outcome.rows) if outcome.cells else [],
        "remarks": remarks(outcome),
        "missing": missing_sentence(outcome),
        "version": __version__,
    }
    write_text(out / "comparison.html", render("comparison.html.jinja", content))


def _panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One metric each: its title, its plot with a line per method, and its rows as text."""
    panels = []
    for metric in dict.fromkeys(row["metric"] for row in rows):
        # Where there is no privacy there is no place on the axis.
        ours_first = sorted(
            (row for row in rows if row["metric"] == metric and row["epsilon"] is not None),
            key=lambda row: (row["published"], row["method"]),
        )
        points = [
            Point(
                row["method"],
                row["epsilon"],
                row["mean"],
                row["mean"] if row["low"] is None else row["low"],
                row["mean"] if row["high"] is None else row["high"],
                own=not row["published"],
            )
            for row in ours_first
        ]
        family = family_of(metric)
        share = bool(family.unit) and all(p.low >= 0 and p.high <= 1 for p in points)
        plot = epsilon_plot(points, share=share) if points else None
        series: dict[tuple[str, bool], list[Mark]] = {}
        for row, mark in zip(ours_first, plot.marks if plot else (), strict=True):
            series.setdefault((row["method"], row["published"]), []).append(mark)
        panels.append(
            {
                "name": metric,
                "title": f"{family.title}: {title_of(metric)}",
                "reading": family.reading,
                "badge": next(
                    (r["badge"] for r in rows if r["metric"] == metric and r["badge"]), ""
                ),
                "sources": list(
                    dict.fromkeys(
                        r["source"] for r in rows if r["metric"] == metric and not r["published"]
                    )
                ),
                "plot": plot,
                "series": [(*key, marks) for key, marks in series.items()],
                "rows": [
                    (cells, row)
                    for cells, row in zip(table(rows), rows, strict=True)
                    if row["metric"] == metric
                ],
            }
        )
    return panels


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(markdown, cells)) + " |"


def _curve(rows: Sequence[Row]) -> bytes:
    """For Markdown, each metric against ε: a line per method with its range over seeds, hollow marks for published numbers."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    paper, ink = "#fffdfa", "#2a2420"
    metrics = list(dict.fromkeys(row["metric"] for row in rows))[:_MOST_PANELS]
    figure = Figure(figsize=(8, 3.6 * len(metrics)), facecolor=paper, layout="constrained")
    axes = figure.subplots(len(metrics), squeeze=False)[:, 0]
    places: dict[tuple[bool, str], int] = {}  # one style for a method in all panels
    for axis, metric in zip(axes, metrics, strict=True):
        lines: dict[tuple[bool, str], list[Row]] = {}
        for row in rows:
            if row["metric"] == metric and row["epsilon"] is not None:
                lines.setdefault((row["published"], row["method"]), []).append(row)
        # In the order of the last point, as the eye meets them from above.
        order = sorted(lines.items(), key=lambda item: (item[0][0], -item[1][-1]["mean"]))
        for (theirs, name), line in order:
            i = places.setdefault((theirs, name), sum(theirs == known for known, _ in places))
            x, mean = [row["epsilon"] for row in line], [row["mean"] for row in line]
            name = name.replace("$", r"\$")
            style: dict[str, Any] = {"color": colormaps["tab10"](i % 10), "lw": 0.8}
            if theirs:
                style |= {"marker": "osD^v<>P*X"[i % 10], "mfc": "none", "ls": ":"}
                axis.plot(x, mean, label=f"{name} (published)", **style)
            else:
                low, high = (
                    [r["mean"] - r["low"] for r in line],
                    [r["high"] - r["mean"] for r in line],
                )
                style |= {"marker": "osD^"[i // 10 % 4], "ls": ("-", "--")[i // 10 % 2], "lw": 1.6}
                # A little aside, so that marks do not hide each other.
                aside = [e * (1 + 0.015 * (i % 10 - 4.5)) for e in x]
                axis.errorbar(aside, mean, (low, high), capsize=3, label=name, **style)
        axis.set(xscale="log", xlabel="ε (log scale)", facecolor=paper)
        ours = {row["epsilon"] for (theirs, _), line in lines.items() if not theirs for row in line}
        others = {row["epsilon"] for line in lines.values() for row in line} - ours
        ticks = sorted(ours | {e for e in others if all(abs(e / o - 1) > 0.2 for o in ours)})
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.set_title(f"{metric} – on real data, not covered by ε", color=ink, fontsize=10)
        axis.tick_params(which="both", colors=ink)
        axis.xaxis.label.set_color(ink)
        for spine in axis.spines.values():
            spine.set_color(ink)
        axis.grid(alpha=0.25)
        place = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "frameon": False}
        if lines:  # else there is no ε but ∞, and only the tables tell something
            axis.legend(labelcolor=ink, fontsize=8, **place)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    return buffer.getvalue()
