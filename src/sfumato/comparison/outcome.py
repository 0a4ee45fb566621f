"""What a comparison found, as rows: ours beside the papers', each with its ε, its relation and its source."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from sfumato._version import __version__
from sfumato.comparison.cells import Cell
from sfumato.comparison.config import Config
from sfumato.evaluation.metrics import badge_of
from sfumato.published import BADGE

FORMAT = 1
COLUMNS = ("Metric", "ε", "Relation", "Method", "Mean", "Range over seeds", "Seeds", "Source")

Row = dict[str, Any]


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
        return {
            "format": FORMAT,
            "sfumato": __version__,
            "metrics_are": BADGE,
            "config": asdict(self.config),
            "rows": self.rows,
            "cells": self.cells,
            "missing": self.missing,
            "notes": self.notes,
        }

    @property
    def missing(self) -> list[dict[str, Any]]:
        """The cells that failed, without the reason."""
        return [{key: f[key] for key in ("name", "epsilon", "seed")} for f in self.failures]


def published(data: str) -> list[dict[str, Any]]:
    """The papers' numbers on a named data set."""
    text = (files("sfumato.comparison") / "published.toml").read_text(encoding="utf-8")
    return [number for number in tomllib.loads(text)["numbers"] if number["data"] == data]


def rows_of(config: Config, results: Sequence[tuple[str, Cell, Cell]]) -> list[Row]:
    from sfumato.methods import get_method

    values: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    for name, cell, result in results:
        for metric in result["metrics"]:
            values.setdefault((metric["name"], cell["epsilon"], name), []).append(metric)
    rows: list[Row] = []
    for (metric, epsilon, name), found in values.items():
        numbers = [m["value"] for m in found]
        mean, low, high = sum(numbers) / len(numbers), min(numbers), max(numbers)
        row = {"metric": metric, "epsilon": epsilon, "relation": config.neighbours, "method": name}
        row |= {"mean": mean, "low": low, "high": high, "seeds": len(numbers), "published": False}
        sound = get_method(config.variants[name].method).info.sound
        unsound = "" if sound else "; ACCOUNTING NOT SOUND"
        rows.append(row | {"source": found[0]["source"] + unsound, "badge": badge_of(found[0])})
    order = list(dict.fromkeys(row["metric"] for row in rows))
    for number in published(config.data) if order else []:
        if number["metric"] in order:
            row = {key: number[key] for key in ("metric", "epsilon", "relation", "method")}
            row |= {"mean": number["value"], "low": None, "high": None, "seeds": None}
            theirs = {"source": f"published: {number['source']}", "badge": ""}
            rows.append(row | {"published": True} | theirs)
    return sorted(rows, key=lambda r: (order.index(r["metric"]), r["epsilon"], r["published"]))


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The rows as text, under `COLUMNS`."""
    return [
        (
            row["metric"],
            f"{row['epsilon']:g}",
            "relation not stated" if row["relation"] == "not stated" else row["relation"],
            row["method"] + (" (published)" if row["published"] else ""),
            f"{row['mean']:.4g}",
            "–" if row["published"] else f"{row['low']:.4g} … {row['high']:.4g}",
            "–" if row["published"] else str(row["seeds"]),
            row["source"],
        )
        for row in rows
    ]


def remarks(outcome: Outcome) -> list[str]:
    """What a reader must know beside the table."""
    config = outcome.config
    kept = "" if config.keep == 1 else f", the most typical {100 * config.keep:g} % of those drawn"
    return [
        f"Each row of ours is {config.neighbours} (ε, δ)-differential privacy with δ = {config.delta:g} for the samples of "
        f"ONE fit; the {len(outcome.cells)} fits made here are as many releases of the same data, and add up.",
        f"Every number of ours is {BADGE}; choosing a method or setting by it is not covered either.",
        *(
            [
                f"Not every cell is there: {missing_sentence(outcome)}; a mean is over the cells there are."
            ]
            if outcome.missing
            else []
        ),
        f"Mean and range are over {len(config.seeds)} seed(s), {config.samples:,} synthetic records each{kept}. "
        "Published numbers come with the papers' own accounting, relation and protocol.",
        *outcome.notes,
    ]


def missing_sentence(outcome: Outcome) -> str:
    return "; ".join(
        f"{cell['name']}, ε = {cell['epsilon']:g}, seed {cell['seed']}" for cell in outcome.missing
    )


def failure_sentence(failure: Mapping[str, Any]) -> str:
    return (
        f"{failure['name']}, ε = {failure['epsilon']:g}, seed {failure['seed']}: {failure['error']}"
    )
