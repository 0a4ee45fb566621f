"""What is promised: a budget (ε, δ) under a relation that says what "one record differs" means.

Everything here is public.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from numbers import Integral, Real
from typing import Any

from sfumato.data.units import RECORDS, Unit
from sfumato.errors import BadInput


class Neighbours(Enum):
    """Which two data sets the guarantee makes hard to tell apart.

    With every record's contribution of L2 norm at most `bound`, the sum over records moves by at most `bound` under the
    first two and by at most `2 · bound` under the third (√2 · bound if contributions have no negative entry). Where a unit of
    several records is protected (`privacy.units`), read "unit" for "record".
    """

    ADD_REMOVE = "add-remove"  # one record more or less; the number of records itself is private
    ZERO_OUT = "zero-out"  # one record's contribution is replaced by nothing; the number of records is public
    REPLACE_ONE = (
        "replace-one"  # one record becomes any other record; the number of records is public
    )

    @property
    def size_is_public(self) -> bool:
        return self is not Neighbours.ADD_REMOVE

    def change(self, unit: Unit = RECORDS) -> str:
        """How two neighbouring data sets differ."""
        how = {
            Neighbours.ADD_REMOVE: "is added or taken away",
            Neighbours.ZERO_OUT: "is left out of every computation",
            Neighbours.REPLACE_ONE: "is replaced by any other",
        }[self]
        return f"one {unit.whole} {how}"

    def told_size(self, unit: Unit = RECORDS) -> str:
        told = (
            f"the number of {unit.plural} is {'public' if self.size_is_public else 'private too'}"
        )
        return told if unit.single else f"{told}, that of records private"

    def meaning(self, unit: Unit = RECORDS) -> str:
        return f"{self.change(unit)} ({self.told_size(unit)})"

    @classmethod
    def parse(cls, text: str | Neighbours) -> Neighbours:
        if isinstance(text, Neighbours):
            return text
        try:
            return cls(text.strip().lower().replace("_", "-"))
        except (ValueError, AttributeError, TypeError):
            known = ", ".join(n.value for n in cls)
            raise BadInput(
                f"Unknown neighbours relation {text!r}; choose one of {known}."
            ) from None


def real(value: object, what: str) -> float:
    """`value` as a float, if it is a real number (NumPy's count, truth values and text do not)."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BadInput(f"{_sentence(what)} must be a number, not {type(value).__name__}.")
    try:
        return float(value)
    except OverflowError:
        raise BadInput(f"{_sentence(what)} is too large for a number of 64 bits.") from None


def whole(value: object, what: str) -> int:
    """`value` as an int, if it is a whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise BadInput(f"{_sentence(what)} must be a whole number, not {type(value).__name__}.")
    return int(value)


def _sentence(what: str) -> str:
    return what if what.startswith(("epsilon", "delta")) else what[0].upper() + what[1:]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that may be spent: (ε, δ)-differential privacy under `neighbours`. No value has a default but the relation.

    `Budget.none(delta=…)` is for a paper's rows at ε = ∞: next to no noise (`accounting.NO_NOISE`), the same bounds, and NO
    PRIVACY, which everything made with it says. It has to be asked for by that name: an infinite ε alone is refused.
    """

    epsilon: float
    delta: float
    neighbours: Neighbours = Neighbours.ZERO_OUT
    private: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "neighbours", Neighbours.parse(self.neighbours))
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, real(getattr(self, name), name))
        if self.private is not True and self.private is not False:
            raise BadInput("A budget's `private` is true or false.")
        if not self.private and self.epsilon != math.inf:
            raise BadInput(
                "A budget without privacy has no epsilon; write Budget.none(delta=…), or leave private=False out."
            )
        if self.private and not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise BadInput(
                f"epsilon must be a positive finite number, not {self.epsilon}; 1 is a common choice."
            )
        if not 0 < self.delta < 1:
            raise BadInput(
                f"delta must lie strictly between 0 and 1, not {self.delta}; choose it well below 1 ÷ number of records."
            )

    def warning(self, size: int | None) -> str | None:
        """A sentence when δ ≥ 1/n, where publishing one record outright would already satisfy δ. `size` must be public."""
        if size and self.delta >= 1 / size:
            return (
                f"delta = {self.delta:g} is not below 1/n = {1 / size:.2g}: a mechanism that publishes one whole record "
                f"would pass it; choose delta below {0.1 / size:.1g}."
            )
        return None

    @classmethod
    def none(cls, *, delta: float, neighbours: Neighbours | str = Neighbours.ZERO_OUT) -> Budget:
        """No privacy at all: the papers' ε = ∞, to be compared with and never to be given away."""
        relation = Neighbours.parse(neighbours)
        return cls(epsilon=math.inf, delta=delta, neighbours=relation, private=False)

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {"epsilon": self.epsilon if self.private else None}
        told |= {"delta": self.delta, "neighbours": self.neighbours.value}
        # Of budgets nothing is added, so that what is saved of them stays as it was.
        return told if self.private else {**told, "private": False}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Budget:
        """As `to_json` told it; raises TypeError or BadInput where that cannot be."""
        if told.get("private", True) is False and told.get("epsilon", 0) is None:
            return cls.none(delta=told["delta"], neighbours=told["neighbours"])
        return cls(**told)
