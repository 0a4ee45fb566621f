"""The privacy statement: what was promised to whom, every release that was made, and what ε does not cover.

Written for two readers: a script (`to_json`) and a person who has to sign it (`paragraph`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sfumato.privacy.accounting import Plan, epsilon_of
from sfumato.privacy.budget import Budget, Neighbours
from sfumato.privacy.ledger import Ledger

_NOT_COVERED = (
    "The schema (image size, value range, columns, categories, class names) is taken as public knowledge.",
    "That public data, codecs and networks used here are public is the word of whoever ran this; exact copies of private "
    "records in them are looked for where both are at hand, and nothing else is.",
    "Metrics computed on real data (held-out accuracy and the like) are measurements of that data and are not "
    "covered by ε; publish them only if that is acceptable.",
    "Choices made by looking at the private data outside this run (settings tried, runs repeated, records picked) cost "
    "privacy that this statement does not count; several runs on the same data add up.",
    "The unit is one record: a person with k records has at most k times the ε (group privacy).",
    "Running times, memory use and other side channels of the machine are not covered.",
)
_UNSOUND = (
    "This run keeps no promise: it follows a paper that leaves some of what it reads out of its account, so the ε that the paper "
    "claims does not hold."
)
_SIZE_IS_PUBLIC = "The number of records is taken as public knowledge."


@dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    """(ε, δ) and the receipts behind it."""

    budget: Budget
    epsilon: float  # what the releases cost, never more than the budget if all of them are counted
    charges: Plan
    claimed: Plan | None = (
        None  # of a variant that is not sound: the part of the charges that its paper counts
    )

    @property
    def sound(self) -> bool:
        """Whether the budget is kept; if not, ε is still what the releases cost, and the budget only what a paper claims."""
        return self.claimed is None

    @classmethod
    def of(cls, ledger: Ledger) -> PrivacyStatement:
        return cls(budget=ledger.budget, epsilon=ledger.spent(), charges=ledger.charges)

    def epsilon_under(self) -> dict[str, float]:
        """ε at the same δ for every relation that holds for this run.

        A run that takes the number of records as public says nothing under add-remove; the other way round holds.
        """
        relations = [Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE]
        if not self.budget.neighbours.size_is_public:
            relations.insert(0, Neighbours.ADD_REMOVE)
        return {
            r.value: self.epsilon
            if r is self.budget.neighbours
            else epsilon_of(self.charges, self.budget.delta, r)
            for r in relations
        }

    @property
    def not_covered(self) -> tuple[str, ...]:
        return (
            *(() if self.sound else (_UNSOUND,)),
            *((_SIZE_IS_PUBLIC,) if self.budget.neighbours.size_is_public else ()),
            *_NOT_COVERED,
        )

    def claim(self) -> dict[str, Any] | None:
        """What a paper says of a variant that is not sound: no guarantee."""
        if self.claimed is None:
            return None
        return {
            "epsilon": epsilon_of(
                self.claimed,
                self.budget.delta,
                self.budget.neighbours,
                near=self.budget.epsilon,
            ),
            "counted": [c.label for c in self.claimed],
            "not_counted": [c.label for c in self.charges if c not in self.claimed],
        }

    def paragraph(self) -> str:
        claim = self.claim()
        return self._guarantee() if claim is None else self._warning(claim)

    def _warning(self, claim: dict[str, Any]) -> str:
        left_out = ", ".join(f"“{label}”" for label in claim["not_counted"])
        return (
            f"NOT SOUND: this run has no privacy guarantee worth the name. Its paper claims (ε = {_upwards(claim['epsilon'])}, "
            f"δ = {_plain(self.budget.delta)})-differential privacy for it, and that claim is wrong: it leaves out {left_out}, "
            "which were read from the private records as well, with next to no noise. All that was read costs up to "
            f"ε = {_upwards(self.epsilon)} at that δ, under the relation “{self.budget.neighbours.value}” "
            f"({self.budget.neighbours.meaning}), and such an ε protects nobody. Treat everything in this run, samples included, "
            "as if it showed the private records; it is here to be compared with the paper. Fit without the setting that makes "
            "it unsound for a run with a guarantee."
        )

    def _guarantee(self) -> str:
        names = ", ".join(
            f"“{c.label}”" if c.steps == 1 else f"“{c.label}” in {c.steps} steps"
            for c in self.charges
        )
        count = sum(c.steps for c in self.charges)
        others = "; ".join(
            f"{name}: ε = {_upwards(value)}"
            for name, value in self.epsilon_under().items()
            if name != self.budget.neighbours.value
        )
        return (
            "Everything in this run but the metrics marked as computed on real data satisfies "
            f"(ε = {_upwards(self.epsilon)}, δ = {_plain(self.budget.delta)})-differential "
            f"privacy. The unit of privacy is one record, under the relation “{self.budget.neighbours.value}”: "
            f"{self.budget.neighbours.meaning}. Whatever anyone could conclude about one record from what this covers, "
            "the odds of it change by a factor of at most e^ε when that record is changed so, except with probability δ. "
            f"The private records were read for {count} noisy sum{'' if count == 1 else 's'} ({names}) and for nothing else; "
            "all that follows, what was learnt and whatever is made with it, is computed from those sums and costs nothing more. "
            f"Read under other relations at the same δ, the same run has {others}."
        )

    def to_json(self) -> dict[str, Any]:
        neighbours = self.budget.neighbours
        return {
            "epsilon": self.epsilon,
            "delta": self.budget.delta,
            "neighbours": neighbours.value,
            "unit": "one record",
            "budget": self.budget.to_json(),
            "releases": [
                {
                    "label": c.label,
                    "bound": c.bound,
                    "sensitivity": c.sensitivity(neighbours),
                    "noise_std": c.noise_std,
                    "noise_multiplier": c.noise_multiplier,
                    "rate": c.rate,
                    "steps": c.steps,
                    "dimension": c.dimension,
                    "replace_ratio": c.replace_ratio,
                    "summands": c.summands,
                    "noise": "exact discrete Gaussian (OpenDP)"
                    if c.rate == 1.0 and c.steps == 1
                    else "floating-point Gaussian seeded from OS entropy",
                    "event": c.describe_event(),
                }
                for c in self.charges
            ],
            "epsilon_under": self.epsilon_under(),
            "not_covered": list(self.not_covered),
            "paragraph": self.paragraph(),
            # Of sound runs nothing is added, so that their statements stay as they were.
            **({} if self.sound else {"sound": False, "claimed": self.claim()}),
        }


def _upwards(epsilon: float) -> str:
    """ε to four digits, rounded up: a bound must not be told smaller than it is."""
    if epsilon == 0:
        return "0"
    # The hair taken off first keeps 1 from becoming 1.001 for the sake of the last bit.
    digits = 3 - math.floor(math.log10(epsilon))
    return f"{math.ceil(epsilon * (1 - 1e-9) * 10**digits) / 10**digits:.4g}"


def _plain(delta: float) -> str:
    """1e-05 as people write it: 1e-5."""
    mantissa, _, exponent = f"{delta:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
