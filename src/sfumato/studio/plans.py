"""The plan explorer: what a method would release at a budget, and with how much noise. Public facts alone; no row is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from sfumato.data import Schema, list_named
from sfumato.data.units import RECORD, RECORDS, Unit
from sfumato.errors import BadInput, SfumatoError
from sfumato.methods import SavedRun, get_method, list_methods
from sfumato.methods.expectation import Expectation, expect
from sfumato.privacy import Budget, DataSetLedger, Neighbours
from sfumato.privacy.ledger import fits
from sfumato.report.words import bound, guess, number, power
from sfumato.studio.folder import Found, Run

DELTAS = ("1e-3", "1e-4", "1e-5", "1e-6", "1e-7", "1e-8", "1e-9")
_LONGEST = 60


@dataclass(frozen=True)
class Question:
    """What the form asks; it begins with the values here."""

    method: str = "mixture"
    data: str = ""
    epsilon: str = "1"
    delta: str = "1e-5"
    neighbours: str = "zero-out"
    unit: str = ""  # as in the run whose data they are, else a record
    size: str = ""
    ledger: str = ""

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> Question:
        known = {k: v.strip()[:_LONGEST] for k, v in asked.items() if k in cls.__annotations__}
        return cls(**known)


@dataclass(frozen=True)
class Answer:
    error: str = ""
    warning: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    releases: list[tuple[str, ...]] = field(default_factory=list)
    several: list[tuple[str, str, str]] = field(default_factory=list)
    ledger: str = ""
    expected: list[str] = field(default_factory=list)
    measured: list[tuple[str, str, str, str]] = field(default_factory=list)


def choices(found: Found) -> dict[str, Any]:
    """What the form offers: methods that make records, named sets, and the data of runs in the folder."""
    return {
        "methods": [m.name for m in list_methods()],
        "sets": [f"{entry.name}:{entry.splits[0]}" for entry in list_named()],
        "runs": list(found.runs),
        "deltas": DELTAS,
        "relations": [n.value for n in Neighbours],
        "ledgers": list(found.ledgers),
    }


def completed(asked: Question, found: Found) -> Question:
    """With the unit that the run protects whose data they are, where no other is asked for."""
    if asked.unit:
        return asked
    try:
        return replace(asked, unit=_known(asked, found).unit.name)
    except SfumatoError:  # which `answer` tells
        return replace(asked, unit=RECORD)


def answer(asked: Question, found: Found, runs: list[Run]) -> Answer:
    try:
        return _answer(asked, found, runs)
    except SfumatoError as error:
        return Answer(error=str(error))


def _answer(asked: Question, found: Found, runs: list[Run]) -> Answer:
    budget = Budget(
        epsilon=_number(asked.epsilon, "ε"),
        delta=_number(asked.delta, "δ"),
        neighbours=Neighbours.parse(asked.neighbours),
    )
    known = _known(asked, found)
    schema, size, name, unit = known.schema, known.size, known.name, known.unit
    if asked.unit and asked.unit != unit.name:
        unit = RECORDS if asked.unit == RECORD else Unit(asked.unit, "what you will state", 64)
        size = None  # how many of those there are nobody has said
    if asked.size:
        records = _number(asked.size, "n")
        if not 1 <= records < math.inf:
            raise BadInput(f"n must be a number of records, not {asked.size!r}.")
        size = int(records)
    method = get_method(asked.method).from_settings({})
    statement = method.promise(schema, budget, unit, size=size)
    epsilon, relation = statement.epsilon, budget.neighbours
    told = None if size is None else _expectation(schema, size, budget)
    signals = {} if told is None else _signals(told, asked.method)
    others = [
        f"{k}: ε = {bound(v)}" for k, v in statement.epsilon_under().items() if k != relation.value
    ]
    return Answer(
        warning=(budget.warning(size) or "") if relation.size_is_public else "",
        facts=[
            *(
                [("n", f"{size:,} {unit.plural}")]
                if size is not None and relation.size_is_public
                else []
            ),
            ("Promised", f"ε = {bound(epsilon)}, δ = {power(budget.delta)} for one {unit.name}"),
            ("Neighbours", relation.meaning(unit)),
            ("Best guess", f"at most {guess(epsilon, budget.delta)}; a coin 50 %"),
            ("Noisy sums", f"{sum(c.steps for c in statement.charges):,}"),
            ("Other relations", "; ".join(others) or "none apply"),
        ],
        releases=[
            (
                c.label,
                f"{c.dimension:,}",
                number(c.sensitivity(relation)),
                number(c.noise_std),
                number(c.noise_multiplier),
                f"{c.rate:.3g}",
                f"{c.steps:,}",
                signals.get(c.label, "–"),
            )
            for c in statement.charges
        ],
        several=[
            (count, bound(value), guess(value, budget.delta))
            for count, value in statement.epsilon_k().items()
        ],
        ledger=_ledger(asked.ledger, found, budget, unit, statement.charges),
        expected=[] if told is None else _expected(told),
        measured=_measured(asked.method, name, runs),
    )


def _number(text: str, what: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if math.isnan(found):
        raise BadInput(f"{what} must be a number, not {text!r}.")
    return found


@dataclass(frozen=True)
class _Known:
    """What is public of the data: of a run, as many of its units as it says there are."""

    schema: Schema
    size: int | None
    name: str
    unit: Unit = RECORDS


def _known(asked: Question, found: Found) -> _Known:
    for entry in list_named():
        for split in entry.splits:
            if asked.data in (f"{entry.name}:{split}", entry.name):
                return _Known(entry.schema, entry.sizes[split], f"{entry.name}:{split}")
    if asked.data not in found.runs:
        raise BadInput("Choose the data: a named set, or those of a run in this folder.")
    with SavedRun(found.runs[asked.data], unfinished=True) as saved:
        size, name = saved.config["data"].get("size"), saved.config["data"]["name"]
        return _Known(saved.schema, size if isinstance(size, int) else None, name, saved.unit)


def _ledger(name: str, found: Found, budget: Budget, unit: Unit, charges: Any) -> str:
    if not name:
        return ""
    if name not in found.ledgers:
        raise BadInput("There is no such ledger here.")
    path: Path = found.ledgers[name]
    with DataSetLedger(path) as book:
        book.check_kind(budget, unit)
        spent, total, limit = book.spent(), book.with_plan(charges), book.limit
    verdict = "" if fits(total, limit) else ", which is too much: it would be refused"
    return (
        f"ε = {bound(spent)} of {limit.epsilon:g} is spent at δ = {power(limit.delta)}; this run would bring it to "
        f"{bound(total)}{verdict}."
    )


@lru_cache(maxsize=128)
def _expectation(schema: Schema, size: int, budget: Budget) -> Expectation:
    return expect(schema, size, budget)


def _signals(told: Expectation, method: str) -> dict[str, str]:
    """How loud each release of the method typically is against its noise."""
    parts = next((o.parts for o in told.outlooks if o.method == method), ())
    return {p.label: f"{p.signal_to_noise:.2g}" + ("" if p.seen else ", drowns") for p in parts}


def _expected(told: Expectation) -> list[str]:
    """The recommended method and the band of public sets; as private as the number of records that was typed."""
    found = [f"Recommended: {told.recommended}; {told.reason}."] if told.recommended else []
    if told.band is not None:
        found.append(told.band.told(told.classes))
    return found


def _measured(method: str, data: str, runs: list[Run]) -> list[tuple[str, str, str, str]]:
    """What runs of this folder reached with the method on these data: the only band of accuracy that is known here."""
    return [
        (
            run.name,
            run.told["epsilon"],
            f"{100 * min(scores):.1f} – {100 * max(scores):.1f} %",
            run.best["badge"] if run.best else "",
        )
        for run in sorted(runs, key=lambda r: r.epsilon)
        if run.method == method and run.data == data
        if (scores := [m["value"] for m in run.metrics if m["name"].startswith("accuracy.")])
    ]
