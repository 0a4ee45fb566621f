"""What to expect of a fit before it is paid for: which releases stand above their noise, and how well it went elsewhere.

Two things are put together. *The plan*: noise and size of every release at this budget, which is public arithmetic. *Typical
signals*: how long the mean summand of such a release is against its bound, and how a classifier fared that learnt from samples,
as measured on public sets (`expected.toml`, made by `benchmarks/expectations.py`). Neither looks at the data in question; only
their number and that of their classes go in. Where the number is private, so is what comes out.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from sfumato.data import Schema
from sfumato.errors import SfumatoError
from sfumato.methods.base import Method
from sfumato.methods.registry import get_method, list_methods
from sfumato.privacy import Budget
from sfumato.privacy.query import Query, gaussian_noise, plan

# Where no public set says it: sums of records, and gradients or other series, whose mean is mostly cancelled.
USUAL_SIGNAL = 0.3
SERIES_SIGNAL = 0.1
MEASURED_CLASSES = 10  # of every set whose curve is known
_FIRST = "mixture"


@dataclass(frozen=True)
class Part:
    """One release: how long its signal is, typically, against its noise. Above 1 it can be seen."""

    label: str
    numbers: int
    signal_to_noise: float

    @property
    def seen(self) -> bool:
        return self.signal_to_noise >= 1

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "numbers": self.numbers,
            "signal_to_noise": _rounded(self.signal_to_noise),
        }


@dataclass(frozen=True)
class Outlook:
    """One method at this budget."""

    method: str
    parts: tuple[Part, ...]

    @property
    def seen(self) -> int:
        return sum(part.seen for part in self.parts)

    @property
    def faintest(self) -> Part:
        return min(self.parts, key=lambda part: part.signal_to_noise)

    def to_json(self) -> dict[str, Any]:
        return {"method": self.method, "parts": [part.to_json() for part in self.parts]}


@dataclass(frozen=True)
class Band:
    """How a classifier trained on samples fared on public sets at this n ÷ noise a class, easy sets and hard ones.

    Of pictures its accuracy, of tables, where classes are of any size, the area under the ROC curve.
    """

    kind: str
    low: float
    high: float
    share_low: float  # of what the same classifier reaches with the real records
    share_high: float
    sets: tuple[str, ...]
    beyond: bool  # n ÷ noise lies outside what was measured

    def told(self, classes: int) -> str:
        """In a sentence or two, for somebody with so many classes."""
        if self.kind == "table":
            what = "an area under the ROC curve (a guess: 50 %) of "
            where = f"{', '.join(self.sets)}, tables of two classes"
        else:
            what, where = "", f"{', '.join(self.sets)}: ten classes, 8×8 to 28×28 pixels"
        # Of fewer than ten classes one is guessed right more often than the band's lower end says.
        few = self.kind != "table" and 2 <= classes < MEASURED_CLASSES
        return (
            f"On public sets ({where}) a logistic regression trained on samples of {_FIRST} reached {what}{self.low:.0%} (hard "
            f"sets) to {self.high:.0%} (easy ones) at this n ÷ noise a class, which is {self.share_low:.0%} to "
            f"{self.share_high:.0%} of what real records give."
            + (
                f" Of your {classes} classes a guess is right {1 / classes:.0%} of the time, so go by the shares."
                if few
                else ""
            )
            + (" That is beyond what was measured; take it with care." if self.beyond else "")
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "roc" if self.kind == "table" else "accuracy": [
                _rounded(self.low),
                _rounded(self.high),
            ],
            "share_of_real": [_rounded(self.share_low), _rounded(self.share_high)],
            "sets": list(self.sets),
            "beyond_what_was_measured": self.beyond,
        }


@dataclass(frozen=True)
class Expectation:
    """What to expect; as private as the number of records it was made of."""

    records: int
    noise: float
    classes: int
    outlooks: tuple[Outlook, ...]
    recommended: str | None
    reason: str
    band: Band | None

    @property
    def each(self) -> float:
        """n ÷ noise a class: the mean of a class's vectors of length 1 is known to one part in so many."""
        return self.records / self.noise / max(1, self.classes)

    def to_json(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "noise": _rounded(self.noise),
            "n_over_noise_a_class": _rounded(self.each),
            "recommended": self.recommended,
            "reason": self.reason,
            "band": None if self.band is None else self.band.to_json(),
            "methods": [outlook.to_json() for outlook in self.outlooks],
        }


def expect(schema: Schema, records: int, budget: Budget, *, public: bool = False) -> Expectation:
    """For so many records (units, where persons have several) of this schema; `public` says whether there are public data."""
    noise = gaussian_noise(budget)
    outlooks = []
    for info in list_methods():
        suitable = schema.kind in info.kinds and info.makes == "records" and info.sound
        if not suitable or (info.needs_public and not public):
            continue
        outlook = _outlook(get_method(info.name), schema, records, budget, noise)
        if outlook is not None:
            outlooks.append(outlook)
    outlooks.sort(key=lambda outlook: (-outlook.seen / len(outlook.parts), outlook.method))
    each = records / noise / max(1, schema.n_classes)
    recommended, reason = _recommended(outlooks, schema.kind)
    band = _band(each, schema.kind) if schema.labelled else None
    return Expectation(records, noise, schema.n_classes, tuple(outlooks), recommended, reason, band)


def _outlook(
    method: type[Method], schema: Schema, records: int, budget: Budget, noise: float
) -> Outlook | None:
    """None for a method that cannot be planned without more settings."""
    try:
        made = method()
        made.check(schema)
        sized = made._sized(schema, budget, records)
        queries = made.queries(sized, budget)
        # Exact for sums over all records, near enough for samples, whose exact account takes seconds a method.
        charges = plan(queries, noise)
    except SfumatoError:
        return None
    signals = _measured().get("signal", {}).get(method.info.name, {})
    parts = []
    for query, charge in zip(queries, charges, strict=True):
        signal = _signal(query, signals.get(query.label))
        # A sum over a class has so many records; steps ask the same question again and again.
        summed = records * query.rate / query.segments
        # Of a matrix it is enough that its leading directions stand out of the noise (Wigner, as in `capacity`).
        spread = 2 * query.shape[0] if query.symmetric else query.dim
        length = charge.noise_std * math.sqrt(spread)
        ratio = summed * signal * charge.bound * math.sqrt(query.steps or 1) / length
        parts.append(Part(query.label, charge.dimension, ratio))
    return Outlook(method.info.name, tuple(parts)) if parts else None


def _signal(query: Query, measured: float | None) -> float:
    if measured is not None:
        return measured
    return USUAL_SIGNAL if query.steps is None else SERIES_SIGNAL


def _recommended(outlooks: list[Outlook], kind: str) -> tuple[str | None, str]:
    by_name = {outlook.method: outlook for outlook in outlooks}
    if _FIRST not in by_name:
        best = outlooks[0].method if outlooks else None
        return best, "most of its releases stand above their noise"
    outlook = by_name[_FIRST]
    why = "it asks only what this n ÷ noise can answer, takes seconds, and did best of the methods that were compared at ε = 1 "
    why += (
        "on Fashion-MNIST (benchmarks/RESULTS.md)"
        if kind == "images"
        else "on Adult (docs/check.md)"
    )
    if outlook.seen == 0:
        why += (
            "; but even its releases drown in the noise: expect little of any method at this budget"
        )
    return _FIRST, why


def _band(each: float, kind: str) -> Band | None:
    low_, high_, shares, names, beyond = math.inf, -math.inf, [], [], True
    for curve in _measured().get("curve", []):
        if curve["kind"] != kind:
            continue
        points = np.array(curve["points"], np.float64)
        # Cells of several sizes may stand at nearly the same place: a curve that never falls goes through their middle.
        at, accuracy = np.log(points[:, 0]), np.maximum.accumulate(points[:, 1])
        found = float(np.interp(math.log(each), at, accuracy))
        beyond = beyond and not points[0, 0] <= each <= points[-1, 0]
        low_, high_ = min(low_, found), max(high_, found)
        shares.append(min(1.0, found / curve["real"]))
        names.append(str(curve["set"]))
    if not names:
        return None
    return Band(kind, low_, high_, min(shares), max(shares), tuple(names), beyond)


@cache
def _measured() -> dict[str, Any]:
    text = resources.files("sfumato.methods").joinpath("expected.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")
