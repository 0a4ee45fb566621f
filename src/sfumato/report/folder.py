"""Reading a run folder for the report: every file is checked before a line of the page is made.

All files of a run are public by its guarantee, except metrics.json, whose numbers measure real data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from sfumato.data import Schema
from sfumato.errors import BadInput, CorruptArtifact
from sfumato.files import read_json
from sfumato.methods import SavedRun

_REMEDY = "restore the file or make the run again"


@dataclass(frozen=True)
class RunFacts:
    """What the files of one run say."""

    path: Path
    config: dict[str, Any]
    schema: Schema
    statement: dict[str, Any]
    metrics: dict[str, Any] | None
    losses: tuple[tuple[int, float], ...]  # (step, loss) in the order of steps
    steps: int | None  # how many steps were planned
    fingerprint: str  # of the release; empty while the run is not finished


def read_run(path: Path) -> RunFacts:
    run = SavedRun(path, unfinished=True)
    try:
        config = run.config
        try:
            schema = Schema.from_json(config["schema"])
        except BadInput as error:
            raise CorruptArtifact(
                f"The schema of the run in {path} is damaged ({error}); {_REMEDY}."
            ) from error
        statement = _statement(path / "statement.json", run.statement_json)
        metrics_file = path / "metrics.json"
        metrics = _metrics(metrics_file) if metrics_file.exists() else None
        losses, steps = _curve(run.log)
        fingerprint = run.fingerprint if run.finished else ""
    finally:
        run.close()
    return RunFacts(path, config, schema, statement, metrics, losses, steps, fingerprint)


def _statement(path: Path, found: Any) -> dict[str, Any]:
    number = (int, float)
    statement = _fields(
        path,
        found,
        {
            "epsilon": number,
            "delta": number,
            "neighbours": str,
            "unit": str,
            "releases": list,
            "epsilon_under": dict,
            "not_covered": list,
            "paragraph": str,
        },
    )
    if not statement["epsilon"] >= 0 or not 0 <= statement["delta"] < 1:
        raise CorruptArtifact(f"{path} promises an impossible ε or δ; {_REMEDY}.")
    for index, release in enumerate(statement["releases"]):
        _fields(
            path,
            release,
            {
                "label": str,
                "bound": number,
                "sensitivity": number,
                "noise_std": number,
                "event": str,
            },
            f"releases[{index}]",
        )
    for relation in statement["epsilon_under"]:
        _fields(path, statement["epsilon_under"], {relation: number}, "epsilon_under")
    several = statement.get("epsilon_k")
    if several is not None:
        _fields(path, several, {}, "epsilon_k")
        _fields(path, several, dict.fromkeys(several, number), "epsilon_k")
    if not all(isinstance(line, str) for line in statement["not_covered"]):
        raise CorruptArtifact(f'"not_covered" in {path} is not a list of sentences; {_REMEDY}.')
    return statement


def _metrics(path: Path) -> dict[str, Any]:
    number = (int, float)
    metrics = _fields(path, read_json(path), {"metrics": list})
    for index, metric in enumerate(metrics["metrics"]):
        where = f"metrics[{index}]"
        _fields(path, metric, {"name": str, "value": number, "source": str}, where)
        for end in ("low", "high"):
            if metric.get(end) is not None:
                _fields(path, metric, {end: number}, where)
    return metrics


def _curve(log: list[dict[str, Any]]) -> tuple[tuple[tuple[int, float], ...], int | None]:
    """(step, loss) of the training, and how many steps were planned."""
    losses: dict[int, float] = {}
    steps: int | None = None
    for record in log:
        if record.get("event") != "step":
            continue
        step, loss = record.get("step"), record.get("loss")
        if isinstance(step, int) and _is_number(loss) and math.isfinite(loss):
            losses[step] = float(loss)
        if isinstance(record.get("steps"), int):
            steps = record["steps"]
    return tuple(sorted(losses.items())), steps


def _fields(path: Path, facts: Any, wanted: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    place = f"{where} in {path}" if where else str(path)
    if not isinstance(facts, dict):
        raise CorruptArtifact(f"{place} is not a JSON object; {_REMEDY}.")
    for name, kind in wanted.items():
        if name not in facts:
            raise CorruptArtifact(f'{place} lacks "{name}"; {_REMEDY}.')
        value = facts[name]
        good = _is_number(value) if kind == (int, float) else isinstance(value, kind)
        if not good or (_is_number(value) and not math.isfinite(value)):
            raise CorruptArtifact(
                f'"{name}" in {place} has a value that makes no sense there; {_REMEDY}.'
            )
    return facts


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
