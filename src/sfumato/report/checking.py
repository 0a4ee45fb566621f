"""`sfumato.check`: what the owner of the data should know before anything is spent, and what to expect of a fit.

Its outcome is made of PRIVATE rows: it names files and counts, is not covered by any ε, and is for the owner's screen. Nothing is
written. Reading is done in `data.examination` and `privacy.overlap`; here it is put together and put into words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfumato.data import Dataset, as_dataset
from sfumato.data.examination import Examination, Finding, examine
from sfumato.data.folders import PictureSource
from sfumato.data.sources import JoinedSource
from sfumato.errors import BadInput
from sfumato.methods.expectation import Expectation, expect
from sfumato.privacy import Budget, refuse_overlap
from sfumato.privacy.overlap import repeated
from sfumato.progress import Progress
from sfumato.public.loading import load_public

PRIVATE = (
    "PRIVATE: what follows is made of the private records themselves. It is for the owner of the data; ε does not cover it. Do "
    "not publish it, send it, or keep it in a log."
)
_SHOWN = 3


@dataclass(frozen=True)
class Check:
    """What was found. PRIVATE: see `sfumato.report.checking`."""

    name: str
    unit: str
    records: int = field(repr=False)
    units: int | None = field(repr=False)
    by_class: dict[str, int] = field(repr=False)
    findings: tuple[Finding, ...] = field(repr=False)
    expectation: Expectation | None = field(repr=False)

    @property
    def problems(self) -> tuple[Finding, ...]:
        """What would stop a fit, or make it learn something else than was meant."""
        return tuple(finding for finding in self.findings if finding.level == "problem")

    def to_json(self) -> dict[str, Any]:
        return {
            "private": PRIVATE,
            "data": self.name,
            "unit": self.unit,
            "records": self.records,
            "units": self.units,
            "classes": self.by_class,
            "findings": [finding.to_json() for finding in self.findings],
            "expectation": None if self.expectation is None else self.expectation.to_json(),
        }

    def __str__(self) -> str:
        return "\n".join(_text(self))


def check(
    data: Any,
    y: Any = None,
    *,
    public: Dataset | str | Path | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    progress: Progress | None = None,
    **stated: Any,
) -> Check:
    """Look at `data` (with labels `y` and whatever is `stated`, as `as_dataset` takes them) as their owner may, before
    anything is spent.

    Unreadable files, sizes, depth and range as stored beside what was stated, empty and tiny classes, cells that are missing or
    misspelt, persons with several records, records that stand there twice, private records in `public`, δ against 1/n; and with
    `epsilon` and `delta`, what to expect of a fit. `print` it. The outcome is PRIVATE; nothing is written.
    """
    if isinstance(data, str | Path):
        stated["progress"] = progress
    opened = as_dataset(data, y, **stated)
    if (epsilon is None) != (delta is None):
        raise BadInput("What to expect needs both epsilon and delta; give both or neither.")
    budget = None if epsilon is None or delta is None else Budget(epsilon=epsilon, delta=delta)
    beside = public
    if public is not None and not isinstance(public, Dataset):
        beside = load_public(public, opened.schema, progress)
    found = examine(opened, progress)
    if found.readable:
        _doubles(found, opened, beside)
    counted = found.records if found.units is None else found.units
    expectation = None
    if budget is not None and counted:
        warning = budget.warning(counted)
        if warning:
            found.add("warning", "delta", warning[0].upper() + warning[1:])
        expectation = expect(opened.schema, counted, budget, public=beside is not None)
    order = {"problem": 0, "warning": 1, "note": 2}
    return Check(
        opened.name,
        opened.unit.name,
        found.records,
        found.units,
        found.by_class,
        tuple(sorted(found.findings, key=lambda finding: order[finding.level])),
        expectation,
    )


# ----------------------------------------------------------------------------------------- doubles


def _doubles(found: Examination, data: Dataset, public: Any) -> None:
    if public is not None:
        try:
            refuse_overlap(data, public)
        except BadInput as error:
            found.add("problem", "public", str(error))
    seen = repeated(data, public)
    names = _names(data)
    if seen.blank:
        found.add("warning", "blank", f"{_many(seen.blank, 'picture')} of one colour all over.")
    if seen.same:
        extra = sum(len(group) - 1 for group in seen.same)
        images = data.schema.kind == "images"
        found.add(
            "warning" if images else "note",
            "repeated",
            f"{_many(extra, 'record')} more than there are different ones: {_examples(seen.same, names)}.",
        )
    for torn, what, why in (
        (seen.torn_classes, "classes", "a label must be wrong"),
        (seen.torn_units, data.unit.plural, "they may be one and the same"),
    ):
        if torn:
            found.add(
                "warning",
                "repeated",
                f"{_many(torn, 'record')} of these are in several {what}: {why}.",
            )
    if seen.alike:
        found.add(
            "note",
            "alike",
            f"{_many(len(seen.alike), 'group')} of pictures look alike, though not to the pixel: {_examples(seen.alike, names)}. "
            "If they are of one person, say so by --unit.",
        )
    if seen.alike_public:
        found.add(
            "warning",
            "public",
            f"{_many(seen.alike_public, 'private picture')} that look like a public one; if it is a copy, the guarantee is void.",
        )


def _names(data: Dataset) -> Callable[[int], str]:
    """What to call a record: its file, or its number, counted from 1."""
    source = data._source
    leaves = list(source.sources) if isinstance(source, JoinedSource) else [source]
    if all(isinstance(leaf, PictureSource) for leaf in leaves):
        paths = [
            path for leaf in leaves if isinstance(leaf, PictureSource) for path in leaf.paths()
        ]
        return paths.__getitem__
    return lambda number: f"record {number + 1}"


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _examples(groups: Sequence[Sequence[int]], name: Callable[[int], str]) -> str:
    told = [" = ".join(name(number) for number in group[:_SHOWN]) for group in groups[:_SHOWN]]
    return "; ".join(told) + (" …" if len(groups) > _SHOWN else "")


# ------------------------------------------------------------------------------------------- words


def _text(found: Check) -> list[str]:
    lines = [PRIVATE, ""]
    whose = "" if found.units is None else f" of {found.units:,} units ({found.unit})"
    lines += [f"{found.name}: {found.records:,} records{whose}."]
    if found.by_class:
        each = ", ".join(f"{name} {n:,}" for name, n in list(found.by_class.items())[:12])
        lines += [f"By class: {each}{' …' if len(found.by_class) > 12 else ''}."]
    lines += [""]
    lines += [f"{f.level:8} {f.topic:11} {f.text}" for f in found.findings]
    if not found.problems:
        lines += ["Nothing was found that would stop a fit."]
    if found.expectation is not None:
        lines += ["", *expectation_text(found.expectation)]
    return lines


def expectation_text(told: Expectation) -> list[str]:
    """What to expect, in sentences and a few lines of numbers."""
    lines = [
        f"What to expect: n ÷ noise = {told.records:,} ÷ {told.noise:.3g}, {told.each:.3g} a class."
        if told.classes
        else f"What to expect: n ÷ noise = {told.records:,} ÷ {told.noise:.3g} = {told.each:.3g}.",
    ]
    for outlook in told.outlooks:
        faint = outlook.faintest
        lines += [
            f"  {outlook.method:10} {outlook.seen} of {len(outlook.parts)} releases stand above their noise; faintest: "
            f"{faint.label} ({faint.numbers:,} numbers), signal ÷ noise {faint.signal_to_noise:.2g}"
        ]
    for outlook in told.outlooks:
        if outlook.method == told.recommended:
            lines += [f"Recommended: {told.recommended}: {told.reason}."]
            lines += [
                f"  {part.label:30} {part.numbers:9,} numbers, signal ÷ noise {part.signal_to_noise:.2g}"
                + ("" if part.seen else ": drowns")
                for part in outlook.parts
            ]
    if told.band is not None:
        lines += [told.band.told(told.classes)]
    lines += [
        "Signals are those of public sets, so this is a guess about yours; nothing but the number of records and classes went in."
    ]
    return lines
