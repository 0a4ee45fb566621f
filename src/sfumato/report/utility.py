"""Privacy and utility: this run's accuracy beside that of other runs and comparisons, each at its ε.

Compared are only numbers of one metric, computed on the same real records, for generators of the same data, with ε read
under one relation. They measure real data and are NOT covered by ε.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.errors import BadInput, CorruptArtifact
from sfumato.evaluation.metrics import family_of, title_of
from sfumato.files import read_json
from sfumato.methods import SavedRun
from sfumato.report.pictures import Plot, Point, epsilon_plot
from sfumato.report.words import bound, power


@dataclass(frozen=True)
class Entry:
    """One generator: where from, how private, and its metrics by name."""

    name: str
    method: str
    data: str
    delta: float
    epsilon_under: dict[str, float]
    metrics: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Utility:
    """The plot, its table (number, name, method, ε, value, interval) and a sentence for each entry left out."""

    title: str
    relation: str
    plot: Plot
    rows: list[tuple[str, str, str, str, str, str]]
    left_out: list[str]


def utility(run: SavedRun, beside: Sequence[Path]) -> Utility | None:
    """None without others to compare with."""
    if not beside:
        return None
    own, relation = _of_run(run), run.told_statement["neighbours"]
    others = [entry for path in beside for entry in _read(Path(path))]
    shares = [name for name in own.metrics if family_of(name).unit]
    common = {name: [e for e in others if _same(own, e, name, relation)] for name in shares}
    metric = max(shares, key=lambda name: len(common[name]), default=None)
    if metric is None or not common[metric]:
        raise BadInput(
            f"None of the others was measured as {run.path.name} was; type sfumato evaluate for each with the same --real, and "
            f"give runs on {own.data} whose ε is known under {relation}."
        )
    entries = [own, *common[metric]]
    points, rows = [], []
    for number, entry in enumerate(entries, 1):
        found, epsilon = entry.metrics[metric], entry.epsilon_under[relation]
        value, low, high = (float(found[key]) for key in ("value", "low", "high"))
        points.append(Point(str(number), epsilon, value, low, high, own=entry is own))
        delta = "" if entry.delta == own.delta else f" (δ = {power(entry.delta)})"
        interval = f"{100 * low:.1f} – {100 * high:.1f} %" if low < high else ""
        rows.append(
            (
                str(number),
                entry.name + (" (this run)" if entry is own else ""),
                entry.method,
                bound(epsilon) + delta,
                f"{100 * value:.1f} %",
                interval,
            )
        )
    left_out = [e.name for e in others if e not in common[metric]]
    return Utility(
        title=f"{family_of(metric).title}, {title_of(metric)}",
        relation=relation,
        plot=epsilon_plot(points),
        rows=rows,
        left_out=left_out,
    )


def _same(own: Entry, other: Entry, metric: str, relation: str) -> bool:
    if metric not in other.metrics or relation not in other.epsilon_under:
        return False
    same_records = own.metrics[metric]["source"] == other.metrics[metric]["source"]
    return same_records and own.data == other.data and other.epsilon_under[relation] > 0


def _read(path: Path) -> list[Entry]:
    if (path / "comparison.json").is_file():
        return _of_comparison(path / "comparison.json")
    with SavedRun(path, unfinished=True) as run:
        return [_of_run(run)]


def _of_run(run: SavedRun) -> Entry:
    metrics = {}
    for metric in run.metrics:
        ends = {key: metric["value"] for key in ("low", "high") if metric.get(key) is None}
        metrics[metric["name"]] = metric | ends
    return Entry(
        name=run.path.name,
        method=run.config["method"],
        data=run.config["data"]["name"],
        delta=run.told_statement["delta"],
        epsilon_under=run.told_statement["epsilon_under"],
        metrics=metrics,
    )


def _of_comparison(path: Path) -> list[Entry]:
    """The comparison's own rows: the mean over seeds, and their range for an interval."""
    found = read_json(path)
    try:
        config = found["config"]
        rows: dict[tuple[str, float], dict[str, Any]] = {}
        for row in found["rows"]:
            if not row["published"]:
                metric = {"value": row["mean"], "low": row["low"], "high": row["high"]}
                place = rows.setdefault((row["method"], row["epsilon"]), {})
                place[row["metric"]] = metric | {"source": row["source"]}
        return [
            Entry(
                name=path.parent.name,
                method=method,
                data=Path(config["train"]).name,
                delta=config["delta"],
                epsilon_under={config["neighbours"]: epsilon},
                metrics=metrics,
            )
            for (method, epsilon), metrics in rows.items()
        ]
    except (KeyError, TypeError) as error:
        raise CorruptArtifact(
            f"{path} is damaged; type sfumato compare again with the same --out."
        ) from error
