"""What lies in a folder: runs, comparisons and ledgers, each by a name that the page asks for it by.

A name from a request is looked up among those that were found and never becomes part of a path, so nothing outside the folder can
be asked for. Links are not followed.

Reads what is public by a run's guarantee, metrics, which wear their badge, and no data.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from sfumato.data import Dataset
from sfumato.errors import BadInput, SfumatoError
from sfumato.evaluation.baselines import held_against
from sfumato.evaluation.metrics import badge_of, title_of
from sfumato.methods import SavedRun, is_run, load
from sfumato.privacy.dataset_ledger import LEDGER
from sfumato.report.page import first_rows
from sfumato.report.pictures import Curve, SampleRow, curve, sample_rows
from sfumato.report.signing import info_of, two_sentences, warnings_of
from sfumato.report.words import bound, guess, power

_DEEPEST, _MOST = 4, 2_000  # folders below the root, and folders looked at
_SEED = 0


@dataclass
class Found:
    """Paths by name, in the order of the names."""

    runs: dict[str, Path] = field(default_factory=dict)
    comparisons: dict[str, Path] = field(default_factory=dict)
    ledgers: dict[str, Path] = field(default_factory=dict)


def look(root: Path) -> Found:
    found = Found()
    for path in _folders(root):
        name = path.relative_to(root).as_posix() if path != root else root.resolve().name or "."
        if is_run(path):
            found.runs[name] = path
        elif (path / "comparison.html").is_file():
            found.comparisons[name] = path
        elif (path / LEDGER).is_file():
            found.ledgers[name] = path
    return found


def _folders(root: Path) -> Iterator[Path]:
    waiting, seen = [(root, 0)], 0
    while waiting and seen < _MOST:
        path, depth = waiting.pop()
        seen += 1
        yield path
        if depth == _DEEPEST or is_run(path):
            continue
        try:
            with os.scandir(path) as entries:
                inner = sorted(
                    (e.name for e in entries if e.is_dir(follow_symlinks=False)), reverse=True
                )
        except OSError:
            continue
        waiting += [(path / name, depth + 1) for name in inner if not name.startswith(".")]


def named(paths: dict[str, Path], name: str | None) -> Path:
    if name is None or name not in paths:
        raise BadInput("There is no such run here; go back to the list.")
    return paths[name]


# ------------------------------------------------------------------------------- one run


@dataclass(frozen=True)
class Progress:
    """How far a fit is: releases made of those promised, and steps of training."""

    released: int
    promised: int
    step: int
    steps: int
    curve: Curve | None


@dataclass(frozen=True)
class Run:
    """A run as the pages show it; of one that cannot be read the sentence that says why."""

    name: str
    path: Path
    error: str = ""
    finished: bool = False
    method: str = ""
    data: str = ""
    epsilon: float = 0.0
    told: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    progress: Progress | None = None
    has_report: bool = False

    @property
    def kin(self) -> tuple[Any, ...]:
        """Runs of one method on the same data under one relation: a slider over ε goes through them."""
        return self.data, self.method, self.told.get("relation"), self.told.get("unit")

    @property
    def best(self) -> dict[str, Any] | None:
        scores = [m for m in self.metrics if m["name"].startswith("accuracy.")]
        return max(scores, key=lambda m: m["value"], default=None)


def read_run(name: str, path: Path) -> Run:
    try:
        with SavedRun(path, unfinished=True) as saved:
            return _run(name, path, saved)
    except SfumatoError as error:
        return Run(name=name, path=path, error=str(error))


def _run(name: str, path: Path, saved: SavedRun) -> Run:
    statement, info = saved.told_statement, info_of(saved)
    epsilon, delta = float(statement["epsilon"]), float(statement["delta"])
    measured = saved.metrics
    makes = info.makes if info else "records"
    return Run(
        name=name,
        path=path,
        finished=saved.finished,
        method=saved.config["method"],
        data=saved.config["data"]["name"],
        epsilon=epsilon,
        told={
            "epsilon": bound(epsilon),
            "delta": power(delta),
            "relation": statement["neighbours"],
            "unit": statement["unit"],
            "guess": guess(epsilon, delta),
            "sound": bool(statement.get("sound", True)),
            "sentences": two_sentences(statement, saved.unit.name, saved.unit.single, makes),
            "warnings": warnings_of(saved),
            "paragraph": statement["paragraph"],
            "title": info.title if info else saved.config["method"],
            "makes": makes,
            "ledger": saved.ledger_name,
            "size": saved.config["data"].get("size"),
        },
        metrics=[
            {
                "name": m["name"],
                "title": title_of(m["name"]),
                "value": float(m["value"]),
                "badge": badge_of(m),
                "beside": list(held_against(measured, m["name"]).values())
                if m["name"].startswith("accuracy.")
                else [],
            }
            for m in measured
        ],
        progress=None if saved.finished else _progress(saved),
        has_report=(path / "report.html").is_file(),
    )


def _progress(saved: SavedRun) -> Progress:
    answered = {answer.label for answer in saved.answers()}
    steps = [r for r in saved.log if r.get("event") == "step"]
    last = steps[-1] if steps else {}
    return Progress(
        released=len(answered),
        promised=len(saved.charges),
        step=_whole(last.get("step")),
        steps=_whole(last.get("steps")),
        curve=curve(saved.losses),
    )


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


@dataclass(frozen=True)
class Samples:
    """The first records that a run's generator draws: images by class, or rows of a table."""

    rows: list[SampleRow]
    table: dict[str, Any] | None
    small: bool


def samples_of(run: Run) -> Samples:
    """Drawn once and kept while the page runs; the same seed gives the same records each time."""
    if not run.finished or run.told["makes"] != "records":
        raise BadInput(f"{run.name} has no samples: it is not finished, or makes none.")
    with SavedRun(run.path) as saved:
        return _drawn(run.path, saved.fingerprint)


@lru_cache(maxsize=64)
def _drawn(path: Path, fingerprint: str) -> Samples:
    method = load(path)
    drawn: Dataset = method.sample(max(50, 20 * method.schema_.n_classes), seed=_SEED)
    schema = drawn.schema
    if schema.kind != "images":
        return Samples([], first_rows(drawn), False)
    return Samples(sample_rows(drawn), None, max(schema.shape[1:]) <= 112)
