"""What releases cost together: exact for plain Gaussians, privacy loss distributions for Poisson-sampled ones.

A `Charge` describes one mechanism as frozen data: `steps` Gaussian sums, each over a Poisson sample of `rate`, whose
noise has standard deviation `noise_multiplier · bound`. One convention everywhere: the noise multiplier is the noise
divided by the *bound of one record's contribution*, whatever the relation. How far one record can move the sum, in units
of the bound, is `Charge.sensitivity_ratio(neighbours)`: 1, or 2 (or √2, proved) when a record may be replaced, and 2 wherever
the summands are functions of several records (`Summands`).

- Rate 1: k Gaussians compose exactly into one with μ² = Σ (ratio ÷ noise multiplier)², and
  δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) (Balle and Wang 2018; Dong, Roth and Su 2022). No slack, microseconds.
- Rate < 1: dp-accounting's PLD with the pessimistic discretisation, so ε is an upper bound; the grid is chosen so that
  the slack stays below 0.05 % of ε. Trap: under replacement `PLDAccountant` doubles the sensitivity itself, while
  `RdpAccountant` does not; here the events handed to it are always in units of the bound.

Everything here is public; no row is ever seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from scipy.optimize import brentq
from scipy.special import log_ndtr

from sfumato.errors import BadInput
from sfumato.privacy.budget import Budget, Neighbours

if TYPE_CHECKING:
    from dp_accounting import DpEvent

# The coarsest and finest steps of the privacy loss grid: beyond them PLD is either too loose or too slow.
_GRID_COARSEST, _GRID_FINEST = 4e-3, 2e-5

# Sampled steps with less noise than this are priced as if unsampled: their losses of thousands fit no grid, and protect nobody.
_LEAST_NOISE = 1e-2

# What one summand of a noisy sum is a function of; `privacy.groups` has the sums and the proofs.
Summands = Literal["records", "groups", "shards"]


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One promised mechanism: `steps` noisy sums of contributions of norm ≤ `bound`, each over a Poisson sample of `rate`.

    Contributions are those of single `records`; of `groups` that a Poisson sample of records is divided into; or of fixed
    `shards` of the data, of which each step takes a Poisson sample.
    """

    label: str
    bound: float
    noise_multiplier: float
    rate: float = 1.0
    steps: int = 1
    dimension: int = 0  # numbers released per step; for the statement only
    replace_ratio: float = (
        2.0  # sensitivity under replacement ÷ bound; √2 where contributions are never negative
    )
    summands: Summands = "records"

    def __post_init__(self) -> None:
        if not (self.bound > 0 and math.isfinite(self.bound)):
            raise BadInput(
                f"Release {self.label!r}: the bound must be positive and finite, not {self.bound}."
            )
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise BadInput(
                f"Release {self.label!r}: the noise multiplier must be positive and finite, not {self.noise_multiplier}; "
                "a release without noise has no guarantee."
            )
        if not 0 < self.rate <= 1:
            raise BadInput(
                f"Release {self.label!r}: the sampling rate must lie in (0, 1], not {self.rate}."
            )
        if self.steps < 1:
            raise BadInput(
                f"Release {self.label!r}: there must be at least one step, not {self.steps}."
            )
        if not math.sqrt(2) - 1e-12 <= self.replace_ratio <= 2:
            raise BadInput(f"Release {self.label!r}: the replacement ratio must lie in [√2, 2].")
        if self.summands not in get_args(Summands):
            raise BadInput(
                f"Release {self.label!r}: a sum is over records, groups or shards, not over {self.summands!r}."
            )
        if self.summands != "records" and self.replace_ratio != 2.0:
            raise BadInput(
                f"Release {self.label!r}: a smaller replacement ratio than 2 is proved for sums over records only."
            )

    @property
    def noise_std(self) -> float:
        return self.noise_multiplier * self.bound

    def sensitivity_ratio(self, neighbours: Neighbours) -> float:
        """How far one record can move the sum, in units of the bound.

        A smaller ratio than 2 is used at rate 1 only: two orthogonal contributions are then as far apart as two collinear
        ones of length bound/√2, but each is still `bound` away from the empty sample that Poisson sampling mixes in.

        A function of several records can go from anywhere in its ball to anywhere else when one of them comes, goes or changes.
        """
        if self.summands != "records":
            return 2.0
        if neighbours is not Neighbours.REPLACE_ONE:
            return 1.0
        return self.replace_ratio if self.rate == 1.0 else 2.0

    def sensitivity(self, neighbours: Neighbours) -> float:
        return self.bound * self.sensitivity_ratio(neighbours)

    @property
    def event_multiplier(self) -> float:
        """The noise ÷ how far a sampled unit (a record, or a shard) can be from its absence: for groups twice the bound."""
        return self.noise_multiplier / (2.0 if self.summands == "groups" else 1.0)

    def event(self) -> DpEvent:
        """The same as a dp-accounting event; for shards to be read under replace-one, whatever happens to a record."""
        import dp_accounting

        event: DpEvent = dp_accounting.GaussianDpEvent(self.event_multiplier)
        if self.rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(self.rate, event)
        return event if self.steps == 1 else dp_accounting.SelfComposedDpEvent(event, self.steps)

    def describe_event(self) -> str:
        """The event in one line, as the statement prints it."""
        text = f"Gaussian(noise_multiplier={self.event_multiplier:.6g})"
        if self.rate < 1:
            text = f"PoissonSampled(rate={self.rate:.6g}, {text})"
        if self.summands == "shards":
            text = f"ReplaceOneShard({text})"
        return text if self.steps == 1 else f"{self.steps} × {text}"

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "bound": self.bound,
            "noise_multiplier": self.noise_multiplier,
            "rate": self.rate,
            "steps": self.steps,
            "dimension": self.dimension,
            "replace_ratio": self.replace_ratio,
            "summands": self.summands,
        }


Plan = tuple[Charge, ...]


def delta_of_gaussian(mu: float, epsilon: float) -> float:
    """δ at ε of a Gaussian mechanism with sensitivity ÷ noise std = μ, without cancellation in the tails."""
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(-math.exp(first) * math.expm1(min(second - first, 0.0)))


@lru_cache(maxsize=4096)
def epsilon_of_gaussian(mu: float, delta: float) -> float:
    """ε at δ of a Gaussian mechanism with sensitivity ÷ noise std = μ, rounded up."""
    if delta_of_gaussian(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of_gaussian(mu, high) > delta:
        high *= 2
    root = brentq(lambda e: delta_of_gaussian(mu, e) - delta, 0.0, high, xtol=1e-13, rtol=1e-13)
    while delta_of_gaussian(mu, root) > delta:
        root *= 1 + 1e-12
    return float(root)


def _gaussian_mu(plan: Iterable[Charge], neighbours: Neighbours) -> float:
    return math.sqrt(
        math.fsum(
            c.steps * (c.sensitivity_ratio(neighbours) / c.noise_multiplier) ** 2
            for c in plan
            if c.rate == 1.0
        )
    )


def epsilon_of(
    plan: Plan, delta: float, neighbours: Neighbours, *, near: float | None = None
) -> float:
    """ε at δ of the whole plan, an upper bound: exact where no charge is Poisson-sampled.

    `near` is about how large the answer will be, if that is known (a ledger near its budget): it saves finding out.
    """
    if not plan:
        return 0.0
    if any(c.rate < 1.0 and c.noise_multiplier < _LEAST_NOISE for c in plan):
        # An upper bound: sampling only takes away from what a step gives away. A ratio below 2 is proved at rate 1 only.
        plan = tuple(c if c.rate == 1.0 else replace(c, rate=1.0, replace_ratio=2.0) for c in plan)
    if all(c.rate == 1.0 for c in plan):
        return epsilon_of_gaussian(_gaussian_mu(plan, neighbours), delta)
    if near is not None:
        return _pld_epsilon(plan, delta, neighbours, _grid_for(plan, near))
    rough = _pld_epsilon(plan, delta, neighbours, _GRID_COARSEST)
    if rough == 0:
        return 0.0
    return min(rough, _pld_epsilon(plan, delta, neighbours, _grid_for(plan, rough)))


def _grid_for(plan: Plan, epsilon: float) -> float:
    """A grid whose pessimism stays below about 0.06 % of ε.

    Discretising adds about (0.4 + 0.8/ε) · steps · grid² to ε (measured for ε from 0.1 to 10 and up to 100,000 steps), and ε is
    read off to a grid point.
    """
    steps = sum(c.steps for c in plan if c.rate < 1.0)
    grid = min(math.sqrt(6e-4 * epsilon / ((0.4 + 0.8 / epsilon) * steps)), epsilon / 1000)
    return min(_GRID_COARSEST, max(_GRID_FINEST, grid))


@lru_cache(maxsize=256)
def _pld_epsilon(plan: Plan, delta: float, neighbours: Neighbours, grid: float) -> float:
    # Seconds to import, and only plans with Poisson sampling need it.
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    relation = {
        Neighbours.ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
        Neighbours.ZERO_OUT: NeighboringRelation.REPLACE_SPECIAL,
        Neighbours.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
    }[neighbours]
    total = pld.identity(value_discretization_interval=grid)
    for charge in plan:
        if charge.rate < 1.0:
            total = total.compose(
                pld.from_gaussian_mechanism(
                    charge.event_multiplier,
                    value_discretization_interval=grid,
                    sampling_prob=charge.rate,
                    # To a shard, every change of one of its records is a replacement.
                    neighboring_relation=NeighboringRelation.REPLACE_ONE
                    if charge.summands == "shards"
                    else relation,
                ).self_compose(charge.steps)
            )
    mu = _gaussian_mu(plan, neighbours)
    if mu > 0:
        # A plain Gaussian is the same under every relation once its sensitivity is folded into μ.
        total = total.compose(
            pld.from_gaussian_mechanism(
                1 / mu,
                value_discretization_interval=grid,
                neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            )
        )
    return float(total.get_epsilon_for_delta(delta))


def calibrate(plan: Callable[[float], Plan], budget: Budget) -> float:
    """The least noise multiplier m for which `plan(m)` stays within the budget.

    Never on the unsafe side: the value returned has been evaluated and found within. For plain Gaussians it is optimal to
    1e-10; with Poisson sampling to 0.1 %. `plan` must spend less as m grows.
    """
    first = plan(1.0)
    if not first:
        raise BadInput("The plan releases nothing, so there is nothing to calibrate.")
    target = math.log(budget.epsilon)
    if all(c.rate == 1.0 for c in first):
        return _least(
            lambda m: epsilon_of(plan(m), budget.delta, budget.neighbours),
            budget.epsilon,
            1.0,
            1e-10,
        )
    fine = _grid_for(first, budget.epsilon)
    coarse = 6 * fine

    def cost(multiplier: float, grid: float) -> float:
        return _pld_epsilon(plan(multiplier), budget.delta, budget.neighbours, grid)

    # The pessimism of the grid falls as its square, so two coarse looks foretell what the fine grid will say.
    multiplier = _least(
        lambda m: cost(m, 2 * coarse), budget.epsilon, _clt_guess(plan, budget), 0.02
    )
    at_coarse = cost(multiplier, coarse)
    excess = max(0.0, (cost(multiplier, 2 * coarse) - at_coarse) / 3) * (1 - 1 / 36)

    def foretold(m: float) -> float:
        return max(cost(m, coarse) - excess, 1e-9)

    low, at_low = multiplier, math.log(foretold(multiplier))
    high = multiplier * math.exp(at_low - target) * (1.0 if abs(at_low - target) > 1e-3 else 1.002)
    slope = -1.0
    for _ in range(3):
        at_high = math.log(foretold(high))
        slope = min(-0.2, (at_high - at_low) / math.log(high / low))
        low, at_low = high, at_high
        if abs(at_high - target) < 1e-4:
            break
        high = high * math.exp((target - at_high) / slope)
    # Aim a hair inside and look with the fine grid; what is returned has been seen to fit.
    steep, multiplier, fits = abs(slope), high, None
    for _ in range(4):
        multiplier *= 1 + 1e-4
        inside = target - math.log(cost(multiplier, fine))
        if inside >= 0:
            fits = multiplier
            if inside <= 3e-4 * steep:
                break
        multiplier *= math.exp(-inside / steep)
    while fits is None:
        multiplier *= 1 + 5e-4
        fits = multiplier if cost(multiplier, fine) <= budget.epsilon else None
    # Below this much noise sampled steps are priced as if unsampled, far above such a budget: rather a little more noise.
    least = min(c.noise_multiplier for c in plan(fits) if c.rate < 1.0)
    return fits * max(1.0, _LEAST_NOISE * (1 + 1e-9) / least)


def _clt_guess(plan: Callable[[float], Plan], budget: Budget) -> float:
    """A starting point: Poisson-sampled Gaussians as one Gaussian with μ² = Σ steps · rate² · (e^(1/m²) − 1) (Bu et al. 2020)."""

    def cost(multiplier: float) -> float:
        mu2 = 0.0
        for c in plan(multiplier):
            shift = (c.sensitivity_ratio(budget.neighbours) / c.noise_multiplier) ** 2
            mu2 += c.steps * (shift if c.rate == 1.0 else c.rate**2 * math.expm1(min(shift, 50.0)))
        return epsilon_of_gaussian(math.sqrt(mu2), budget.delta)

    return _least(cost, budget.epsilon, 1.0, 1e-3)


def _least(cost: Callable[[float], float], epsilon: float, start: float, tolerance: float) -> float:
    """The least argument with cost ≤ ε, from above, to a relative `tolerance`: bracket from `start`, then halve."""
    high, stride = start, 1.0 + max(0.1, min(1.0, 8 * tolerance))
    while cost(high) > epsilon:
        high *= stride
        if high > 1e9:
            raise BadInput(
                f"No amount of noise reaches epsilon = {epsilon:g}; ask for a larger epsilon or delta."
            )
    low = high / stride
    while cost(low) <= epsilon:
        high, low = low, low / stride
        if low < 1e-6:
            return high
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        if cost(middle) <= epsilon:
            high = middle
        else:
            low = middle
    return high
