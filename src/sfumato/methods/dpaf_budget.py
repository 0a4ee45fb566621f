"""DPAF's budgets: parts of ε, as its paper divides it, as shares of one budget that is calibrated as a whole.

The paper adds its parts' ε up. Here a part has the share of the squared noise budget that a Gaussian sum of its ε (and the whole
δ) would have of the sum of all: 1 ÷ σ². What the parts cost together is then found exactly, and is ε. Everything here is public.
"""

from __future__ import annotations

import math
from dataclasses import replace

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.methods.base import Method
from sfumato.methods.settings import setting
from sfumato.privacy import Budget
from sfumato.privacy.query import gaussian_noise

PARTS = ("conv1", "conv2", "aggregates")  # that are paid for
REST = "rest"
_REMEDY = "name an ε, a percentage or rest for each, such as 0.1,rest,0.1 or 20%,60%,20%"


def parts_of(split: str) -> list[float | str]:
    """An ε, a percentage of ε as a text, or “rest”, each."""
    found: list[float | str] = []
    for word in (part.strip() for part in split.split(",")):
        number = word.removesuffix("%")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if word != REST and not 0 < value < math.inf:
            raise BadInput(f"dpaf's split has a part {word!r}; {_REMEDY}.")
        found.append(word if word == REST or word.endswith("%") else value)
    if found.count(REST) > 1:
        raise BadInput(f"dpaf's split has more than one rest; {_REMEDY}.")
    return found


def split_shares(split: str, budget: Budget, names: tuple[str, ...]) -> tuple[float, ...]:
    """Of the squared noise budget, one for each of `names`; they add up to 1."""
    parts = parts_of(split)
    if len(parts) != len(names):
        raise BadInput(
            f"dpaf's split has {len(parts)} parts and there are {len(names)} to pay for: {', '.join(names)}; {_REMEDY}."
        )
    if not math.isfinite(budget.epsilon):  # none has noise that counts
        return tuple(1 / len(parts) for _ in parts)
    each = [
        budget.epsilon * float(p[:-1]) / 100 if isinstance(p, str) and p != REST else p
        for p in parts
    ]
    spent = math.fsum(e for e in each if isinstance(e, float))
    left = budget.epsilon - spent
    if (left <= 0 and REST in parts) or left < -1e-9 * budget.epsilon:
        raise BadInput(
            f"dpaf's split {split} does not fit into ε = {budget.epsilon:g}; give the parts less, or the budget more."
        )
    squares = []
    for e in each:
        part = replace(budget, epsilon=e if isinstance(e, float) else left)
        squares.append(gaussian_noise(part) ** -2)
    return tuple(square / math.fsum(squares) for square in squares)


class Divided(Method):
    """A method whose budget is divided over conv1, conv2 and the aggregates."""

    first_share: float = setting(
        "Part of the squared noise budget for the first phase.", default=0.1, above=0, below=1
    )
    filter_share: float = setting(
        "Part of the squared noise budget for conv2's gradients; the aggregates get the rest.",
        default=0.1,
        above=0,
        below=1,
    )
    split: str | None = setting(
        "Parts of ε for conv1 (if it is paid for by itself), conv2 and the aggregates, such as 0.1,rest,0.1 in the paper or "
        "20%,60%,20%, as shares of one budget, in place of first_share and filter_share; auto: these.",
        default=None,
    )

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        if self.split is not None:
            parts_of(self.split)
        elif self.first_share + self.filter_share >= 1:
            raise BadInput(
                "dpaf's first_share and filter_share must leave something for the aggregates; their sum must be below 1, not "
                f"{self.first_share + self.filter_share:g}."
            )

    def shares(self, phase: str, budget: Budget) -> tuple[float, ...]:
        """Of the squared noise budget: conv1's, where it is paid for by itself, conv2's, and the aggregates'."""
        names = ("conv2", "aggregates") if phase in ("random", "joint") else PARTS
        if self.split is not None:
            return split_shares(self.split, budget, names)
        paid = (self.first_share, self.filter_share)[-len(names) + 1 :]
        return *paid, 1 - math.fsum(paid)
