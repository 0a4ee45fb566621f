"""The privacy statement: what was promised to whom, every release that was made, and what ε does not cover.

Written for two readers: a script (`to_json`) and a person who has to sign it (`paragraph`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sfumato import notebook
from sfumato.data.units import RECORDS, Unit
from sfumato.errors import BadInput
from sfumato.privacy.accounting import Charge, Plan, epsilon_of, epsilon_of_k
from sfumato.privacy.budget import Budget, Neighbours
from sfumato.privacy.ledger import Ledger

_NOT_COVERED = (
    "The schema (image size, value range, columns, categories, class names) is taken as public knowledge.",
    "That public data, codecs and networks used here are public is the word of whoever ran this; only exact copies of private "
    "records in them are looked for, where both are at hand, and that a run exists says that none was found.",
    "Metrics computed on real data (held-out accuracy and the like) are measurements of that data and are not "
    "covered by ε; publish them only if that is acceptable.",
    "Choices made by looking at the private data outside this run (settings tried, runs repeated, records picked) cost "
    "privacy that this statement does not count; several runs on the same data add up.",
    "Running times, memory use and other side channels of the machine are not covered.",
)
_UNSOUND = (
    "This run keeps no promise: it follows a paper that leaves some of what it reads out of its account, so the ε that the paper "
    "claims does not hold."
)
_NO_PRIVACY = (
    "This run keeps no promise: it was made at ε = ∞, with next to no noise, to be compared with a paper's row. Whatever is in "
    "it may show the private records."
)
NOT_PRIVATE = "NOT PRIVATE: made at ε = ∞, with next to no noise; for research rows only, never to be given away."
# For how many units of one person ε is told.
_SEVERAL = {2: "two", 5: "five", 10: "ten"}
_TOGETHER = {
    Neighbours.ADD_REMOVE: "added or taken away together",
    Neighbours.ZERO_OUT: "left out together",
    Neighbours.REPLACE_ONE: "replaced together",
}
_NOISE = {
    "discrete": "exact discrete Gaussian (OpenDP)",
    "floating": "floating-point Gaussian seeded from OS entropy",
}
_COUNTED_ONCE = (
    "records of one {name} count together as one, by their mean; where there are more than {at_most}, "
    "as many are drawn at random"
)


@dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    """(ε, δ) and the receipts behind it."""

    budget: Budget
    epsilon: float  # what the releases cost, never more than the budget if all of them are counted
    charges: Plan
    claimed: Plan | None = (
        None  # of a variant that is not sound: the part of the charges that its paper counts
    )
    unit: Unit = RECORDS  # who is protected

    @property
    def sound(self) -> bool:
        """Whether the budget is kept; if not, ε is still what the releases cost, and the budget only what a paper claims.

        A run without privacy keeps none.
        """
        return self.claimed is None and self.private

    @property
    def private(self) -> bool:
        """Whether there is a budget at all; not at ε = ∞ (`Budget.none`)."""
        return self.budget.private

    @classmethod
    def of(cls, ledger: Ledger, unit: Unit = RECORDS) -> PrivacyStatement:
        return cls(budget=ledger.budget, epsilon=ledger.spent(), charges=ledger.charges, unit=unit)

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

    def epsilon_k(self) -> dict[str, float]:
        """ε at the same δ for two, five and ten units of one person, under the budget's relation; upper bounds that never fall.

        **Guarantee**: k units (records, if nothing else was stated) added, left out or replaced together, as the relation has it,
        are protected with the ε told for k (`epsilon_of_k` has the proof). That is more than k times the ε of one.
        """
        found, least = {}, self.epsilon
        for count in _SEVERAL:
            least = max(
                least, epsilon_of_k(self.charges, self.budget.delta, self.budget.neighbours, count)
            )
            found[str(count)] = least
        return found

    def _several(self) -> str:
        told = ", ".join(
            f"ε = {_upwards(value)} for {_SEVERAL[int(count)]}"
            for count, value in self.epsilon_k().items()
        )
        return f"{told}, {_TOGETHER[self.budget.neighbours]}, at the same δ"

    @property
    def not_covered(self) -> tuple[str, ...]:
        return (
            *(() if self.claimed is None else (_UNSOUND,)),
            *(() if self.private else (_NO_PRIVACY,)),
            *self._size_is_public(),
            *_NOT_COVERED,
            self._beyond_the_unit(),
        )

    def _size_is_public(self) -> tuple[str, ...]:
        if not self.budget.neighbours.size_is_public:
            return ()
        return (f"The number of {self.unit.plural} is taken as public knowledge.",)

    def _beyond_the_unit(self) -> str:
        if self.unit.single:
            who = "The unit is one record. A person with several records is protected less"
        else:
            who = (
                f"The unit is one {self.unit.name}, as {self.unit.read_from} tells; that this is right is the word of whoever "
                f"ran this. Somebody with several {self.unit.plural} there is protected less"
            )
        return f"{who}: {self._several()} (group privacy)."

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

    def __str__(self) -> str:
        return self.paragraph()

    def paragraph(self) -> str:
        if not self.private:
            return self._no_privacy()
        claim = self.claim()
        return self._guarantee() if claim is None else self._warning(claim)

    def _warning(self, claim: dict[str, Any]) -> str:
        left_out = ", ".join(f"“{label}”" for label in claim["not_counted"])
        return (
            f"NOT SOUND: this run has no privacy guarantee worth the name. Its paper claims (ε = {_upwards(claim['epsilon'])}, "
            f"δ = {_plain(self.budget.delta)})-differential privacy for it, and that claim is wrong: it leaves out {left_out}, "
            "which were read from the private records as well, with next to no noise. All that was read costs up to "
            f"ε = {_upwards(self.epsilon)} at that δ, under the relation “{self.budget.neighbours.value}” "
            f"({self.budget.neighbours.meaning(self.unit)}), and such an ε protects nobody. Treat everything in this run, "
            "samples included, as if it showed the private records; it is here to be compared with the paper. Fit without the "
            "setting that makes it unsound for a run with a guarantee."
        )

    def _no_privacy(self) -> str:
        return (
            "NOT PRIVATE: this run was made at ε = ∞ and has no privacy guarantee at all. Its sums were clipped as in a private "
            "run and carry next to no noise; what was read from the private records "
            f"({', '.join(f'“{c.label}”' for c in self.charges)}) would cost ε = {_upwards(self.epsilon)} at "
            f"δ = {_plain(self.budget.delta)}, which protects nobody. Treat everything in this run, samples included, as if it "
            "showed the private records. It is here to be compared with a paper's row at ε = ∞; fit with a finite ε for a run "
            "with a guarantee."
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
            f"privacy. The unit of privacy is {self._who()}, under the relation “{self.budget.neighbours.value}”: "
            f"{self.budget.neighbours.meaning(self.unit)}. Whatever anyone could conclude about one {self.unit.name} from what "
            f"this covers, the odds of it change by a factor of at most e^ε when that {self.unit.name} is changed so, except "
            "with probability δ. "
            f"What was taken from the private records is {count} noisy sum{'' if count == 1 else 's'} ({names}), no more; "
            "all that follows, what was learnt and whatever is made with it, is computed from those sums and costs nothing more. "
            f"Read under other relations at the same δ, the same run has {others}. "
            f"For several {self.unit.plural} {'of one person' if self.unit.single else 'together'} it has {self._several()}."
        )

    def _who(self) -> str:
        if self.unit.single:
            return "one record"
        once = _COUNTED_ONCE.format(name=self.unit.name, at_most=self.unit.at_most)
        return f"one {self.unit.whole} (told by {self.unit.read_from}; {once})"

    def _repr_html_(self) -> str:
        relation = self.budget.neighbours
        rows = [
            (
                c.label,
                c.dimension,
                f"{c.bound:.4g}",
                f"{c.sensitivity(relation):.4g}",
                f"{c.noise_std:.4g}",
                c.steps,
            )
            for c in self.charges
        ]
        head = ("Release", "Numbers", "Bound", "Sensitivity", "Noise std", "Steps")
        title = f"ε = {_upwards(self.epsilon)}, δ = {_plain(self.budget.delta)}, {relation.value}"
        return notebook.card(
            title if self.sound else f"NOT SOUND: {title}",
            notebook.paragraph(self.paragraph()),
            notebook.table(head, rows),
        )

    def to_json(self) -> dict[str, Any]:
        neighbours = self.budget.neighbours
        return {
            "epsilon": self.epsilon,
            "delta": self.budget.delta,
            "neighbours": neighbours.value,
            "unit": f"one {self.unit.name}",
            **({} if self.unit.single else {"units": self.unit.to_json()}),
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
                    "sampler": c.sampler,
                    "noise": _NOISE[str(c.sampler)],
                    "event": c.describe_event(),
                }
                for c in self.charges
            ],
            "epsilon_under": self.epsilon_under(),
            "epsilon_k": self.epsilon_k(),
            "not_covered": list(self.not_covered),
            "paragraph": self.paragraph(),
            # Of sound runs nothing is added, so that their statements stay as they were.
            **({} if self.claimed is None else {"sound": False, "claimed": self.claim()}),
            **({} if self.private else {"sound": False, "private": False}),
        }


def told_epsilon_k(statement: Mapping[str, Any]) -> dict[str, float] | None:
    """`epsilon_k` of a statement as it was saved; worked out from its releases where it is of version 0.1.0, which had none.

    None where the statement does not say enough.
    """
    try:
        if "epsilon_k" in statement:
            return {str(count): float(value) for count, value in statement["epsilon_k"].items()}
        charges = tuple(
            Charge(**{name: release[name] for name in _CHARGED if name in release})
            for release in statement["releases"]
        )
        budget = Budget(
            epsilon=statement["epsilon"],
            delta=statement["delta"],
            neighbours=statement["neighbours"],
        )
        known = PrivacyStatement(budget=budget, epsilon=budget.epsilon, charges=charges)
        return known.epsilon_k()
    except (AttributeError, KeyError, TypeError, ValueError, BadInput):
        return None


_CHARGED = tuple(field.name for field in fields(Charge))


def rounded_up(bound: float, digits: int = 4) -> float:
    """To so many digits, never downwards: a bound must not be told smaller than it is."""
    if bound <= 0 or not math.isfinite(bound):
        return bound
    # The hair taken off first keeps 1 from becoming 1.001 for the sake of the last bit.
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(bound)))
    return math.ceil(bound * (1 - 1e-9) * scale) / scale


def _upwards(epsilon: float) -> str:
    return f"{rounded_up(epsilon):.4g}"


def _plain(delta: float) -> str:
    """1e-05 as people write it: 1e-5."""
    mantissa, _, exponent = f"{delta:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa
