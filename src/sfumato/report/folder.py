"""Reading a run folder for the report: every file is checked before a line of the page is made.

All files of a run are public by its guarantee, except metrics.json, whose numbers measure real data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from sfumato.data import Schema
from sfumato.errors import BadInput, CorruptArtifact
from sfumato.storage import read_json

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
    seconds: float | None  # how long the training took


def read_run(path: Path) -> RunFacts:
    if not path.is_dir():
        raise BadInput(
            f"There is no run folder {path}; make one with `sfumato fit … --out {path}`."
        )
    config_file = path / "config.json"
    if not config_file.exists():
        raise BadInput(
            f"{path} is no run folder, it has no config.json; give the folder that `sfumato fit` made."
        )
    config = _fields(
        config_file,
        read_json(config_file),
        {"method": str, "settings": dict, "data": dict, "schema": dict},
    )
    _fields(config_file, config["data"], {"name": str}, "data")
    try:
        schema = Schema.from_json(config["schema"])
    except BadInput as error:
        raise CorruptArtifact(
            f"The schema in {config_file} is damaged ({error}); {_REMEDY}."
        ) from error
    statement_file = path / "statement.json"
    if not statement_file.exists():
        raise CorruptArtifact(
            f"{statement_file} is missing, and without it nothing is promised; {_REMEDY}."
        )
    statement = _statement(statement_file)
    metrics_file = path / "metrics.json"
    metrics = _metrics(metrics_file) if metrics_file.exists() else None
    losses, steps, seconds = _log(path / "log.jsonl")
    return RunFacts(path, config, schema, statement, metrics, losses, steps, seconds)


def _statement(path: Path) -> dict[str, Any]:
    number = (int, float)
    statement = _fields(
        path,
        read_json(path),
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


def _log(path: Path) -> tuple[tuple[tuple[int, float], ...], int | None, float | None]:
    """The curve; a line that a crash cut short, or of another kind, is passed over."""
    losses: dict[int, float] = {}
    steps: int | None = None
    seconds: float | None = None
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if not isinstance(record, dict) or record.get("event") != "step":
                continue
            step, loss = record.get("step"), record.get("loss")
            if isinstance(step, int) and _is_number(loss) and math.isfinite(loss):
                losses[step] = float(loss)  # a resumed run repeats steps; the last word counts
            if isinstance(record.get("steps"), int):
                steps = record["steps"]
            if _is_number(record.get("seconds")):
                seconds = float(record["seconds"])
    return tuple(sorted(losses.items())), steps, seconds


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
