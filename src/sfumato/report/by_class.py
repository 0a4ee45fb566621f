"""How a classifier did class by class, for a report: the confusion as a table with shades, or of many classes the worst of each.

What is shown are shares of real records, NOT covered by ε; the page puts them under the badge of their accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sfumato.errors import CorruptArtifact
from sfumato.evaluation.metrics import ByClass

# More columns fit no page; of more classes each has a line with what it is most often taken for.
_MOST_COLUMNS = 20
_MOST_LINES = 40
_SHORT = 4


@dataclass(frozen=True)
class Cell:
    """A share in percent, and how dark it is: from 0 to 1."""

    text: str
    shade: float


@dataclass(frozen=True)
class ClassLine:
    """One class: what its records were taken for (in the order of the classes, where there are few), and in brief."""

    name: str
    cells: list[Cell]
    recall: str
    precision: str
    taken_for: str


@dataclass(frozen=True)
class ClassTable:
    lines: list[ClassLine]
    matrix: bool
    short: bool  # the names, so that they fit above columns
    left_out: int


def class_table(metric: Mapping[str, Any], file: object) -> ClassTable | None:
    """None where the metric is not told by class; `file` is what an error names."""
    told = metric.get("by_class")
    if told is None:
        return None
    try:
        found = ByClass.from_json(told)
        size = len(found.classes)
        if {len(found.recall), len(found.precision), len(found.confusion)} != {size}:
            raise ValueError
        matrix = "confusion" in told and size <= _MOST_COLUMNS
        lines = [_line(found, code, matrix) for code in range(min(size, _MOST_LINES))]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CorruptArtifact(
            f"{file} is damaged; measure again by sfumato evaluate, or remove it."
        ) from error
    short = all(len(line.name) <= _SHORT for line in lines)
    return ClassTable(lines, matrix, short, max(0, size - _MOST_LINES))


def _line(found: ByClass, code: int, matrix: bool) -> ClassLine:
    row = found.confusion[code]
    others = [(share, found.classes[b]) for b, share in enumerate(row) if share and b != code]
    share, other = max(others, default=(0.0, ""))
    return ClassLine(
        name=str(found.classes[code]),
        cells=[_cell(share) for share in row] if matrix else [],
        recall=_percent(found.recall[code]),
        precision=_percent(found.precision[code]),
        taken_for=f"{other} ({_percent(share)})" if other else "–",
    )


def _cell(share: float | None) -> Cell:
    if share is None:
        return Cell("–", 0.0)
    percent = round(100 * share)
    return Cell(str(percent) if percent else "", min(1.0, max(0.0, float(share))))


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
