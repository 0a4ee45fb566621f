"""The book of what was spent. A charge is written before its answer is computed, and refused if it would exceed the budget.

Refused means: nothing was summed, no noise was drawn, nothing was released. Of reading no more is promised: a table of text
is read, to be counted, when it is opened. What was read then stays in this machine's memory.
"""

from __future__ import annotations

import threading

from sfumato.errors import BudgetExceeded
from sfumato.privacy.accounting import Charge, Plan, epsilon_of
from sfumato.privacy.budget import Budget

# Re-evaluating a plan adds floats in another order; this absorbs the rounding and nothing else.
_ROUNDING = 1 + 1e-9


class Ledger:
    """Adds up charges against one budget; safe to use from several threads."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._charges: list[Charge] = []
        self._lock = threading.Lock()

    @property
    def charges(self) -> Plan:
        return tuple(self._charges)

    def charge(self, charge: Charge) -> None:
        """Write down `charge`, or raise `BudgetExceeded` and write nothing."""
        with self._lock:
            wanted = (*self._charges, charge)
            cost = cost_within(wanted, self.budget)
            if not fits(cost, self.budget):
                raise BudgetExceeded(
                    f"Release {charge.label!r} would bring the total to epsilon = {cost:.4g} and the budget is "
                    f"{self.budget.epsilon:.4g}; nothing was released. Use more noise or a larger budget."
                )
            self._charges.append(charge)

    def spent(self) -> float:
        """ε of everything charged so far, at the budget's δ and relation."""
        return spent_on(self.charges, self.budget)


def fits(cost: float, budget: Budget) -> bool:
    return cost <= budget.epsilon * _ROUNDING


def cost_within(charges: Plan, budget: Budget) -> float:
    """ε of the charges at the budget's δ and relation, to be held against its ε."""
    # Near the budget's ε, on the very grid that `calibrate` used: what it found to fit is found to fit again.
    cost = epsilon_of(charges, budget.delta, budget.neighbours, near=budget.epsilon)
    if fits(cost, budget):
        return cost
    # Every route gives an upper bound, so the least of them holds: a coarser grid must not refuse what fits.
    return min(cost, epsilon_of(charges, budget.delta, budget.neighbours))


def spent_on(charges: Plan, budget: Budget) -> float:
    """The same to be told: as small as can be shown."""
    cost = cost_within(charges, budget)
    if cost > 0.9 * budget.epsilon:
        return cost
    # Far from the budget its grid is too coarse.
    return min(cost, epsilon_of(charges, budget.delta, budget.neighbours))
