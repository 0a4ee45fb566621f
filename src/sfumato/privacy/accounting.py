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
- Every plan is priced in bounded time. Where the grid would be too long it is made coarser, which errs on the safe side, and
  the least of all upper bounds at hand counts: that one, the convolution of `privacy.losses`, Rényi's, and the price of the plan
  with nothing sampled.
- Several records of one person: `epsilon_of_k`. At the same δ they cost more than k times the ε of one.

Everything here is public; no row is ever seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from scipy.special import log_ndtr

from sfumato.errors import BadInput
from sfumato.privacy.budget import Budget, Neighbours, real, whole
from sfumato.privacy.losses import (
    Sampled,
    epsilon_bounds,
    extent,
    simple_upper_bound,
    transform_rounding,
)

if TYPE_CHECKING:
    from dp_accounting import DpEvent

# The finest grid of privacy losses: below it the second differences that PLD is made of drown in rounding.
_GRID_FINEST = 1e-8
# The longest arrays of losses that PLD is asked for: about half a second.
_MOST_LOSSES = 120_000
# Where PLD is not asked: it takes exp(loss), every charge takes its time, and few points that are composed often take for ever.
_LARGEST_PLD_EPSILON, _MOST_PLD_CHARGES, _MOST_PLD_STEPS, _LEAST_PLD_RATE = 600.0, 16, 10**6, 1e-9
_MOST_PLD_NOISE = 1e12

# Sampled steps with less noise than this are priced as if unsampled, as version 0.1.0 did: such losses protect nobody.
LEAST_SAMPLED_NOISE = 1e-2

# Budgets that noise is worked out for. Below, the noise drowns everything, sums of billions of records too; above, it protects
# nobody: the odds may change by more than e to the millionth power.
SMALLEST_EPSILON, LARGEST_EPSILON, SMALLEST_DELTA = 1e-6, 1e6, 1e-300

# The noise, in units of one sum's bound, of a budget without privacy: too little to be seen in any sum, and never zero, so that
# every line that draws it, divides by it or prices it is the one that ordinary runs go through. ε comes to about 10¹².
NO_NOISE = 1e-6

# What one summand of a noisy sum is a function of; `privacy.groups` has the sums and the proofs.
Summands = Literal["records", "groups", "shards"]

# Which sampler of `privacy.noise` makes the noise: exact and discrete, or floating-point.
Sampler = Literal["discrete", "floating"]


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One promised mechanism: `steps` noisy sums of contributions of norm ≤ `bound`, each over a Poisson sample of `rate`.

    Contributions are those of single `records`; of `groups` that a Poisson sample of records is divided into; or of fixed
    `shards` of the data, of which each step takes a Poisson sample. `sampler` says which noise is added, and the wall refuses
    to answer with another. Left out, as in charges of version 0.1.0, it is discrete for one sum over all records and
    floating-point for all else.
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
    sampler: Sampler | None = None  # never None once made

    def __post_init__(self) -> None:
        named = f"Release {self.label!r}: the "
        for name in ("bound", "noise_multiplier", "rate", "replace_ratio"):
            what = named + name.replace("_", " ")
            object.__setattr__(self, name, real(getattr(self, name), what))
        object.__setattr__(self, "steps", whole(self.steps, named + "number of steps"))
        object.__setattr__(self, "dimension", whole(self.dimension, named + "dimension"))
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
        if not 1 <= self.steps <= 10**12:
            raise BadInput(
                f"Release {self.label!r}: there must be at least one step and at most 10¹², not {self.steps}."
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

        if self.sampler is None:
            once = self.rate == 1.0 and self.steps == 1 and self.summands == "records"
            object.__setattr__(self, "sampler", "discrete" if once else "floating")
        if self.sampler not in get_args(Sampler):
            raise BadInput(
                f"Release {self.label!r}: noise is discrete or floating, not {self.sampler!r}."
            )
        if self.sampler == "discrete" and (self.rate < 1 or self.summands != "records"):
            raise BadInput(
                f"Release {self.label!r}: discrete noise is drawn for sums over all records only."
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
            "sampler": self.sampler,
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
    # The loss is N(μ²/2, μ²), and exceeds this with probability at most δ.
    high = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    if mu > 1e5 or not math.isfinite(high):
        return high
    if mu < 1e-9:
        # The laws differ by less than μ/√(2π) in all.
        return 0.0 if mu / math.sqrt(2 * math.pi) <= delta else high
    if mu < 1e-2:
        # Two tails this alike leave nine digits of their difference: keep away from the last.
        delta *= 1 - 1e-7
    if delta_of_gaussian(mu, 0.0) <= delta:
        return 0.0
    low = 0.0
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if delta_of_gaussian(mu, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def _gaussian_mu(plan: Iterable[Charge], neighbours: Neighbours) -> float:
    return math.hypot(
        *(
            math.sqrt(c.steps) * (c.sensitivity_ratio(neighbours) / c.noise_multiplier)
            for c in plan
            if c.rate == 1.0
        )
    )


def _sampled(plan: Plan, neighbours: Neighbours, records: int = 1) -> tuple[Sampled, ...]:
    """The Poisson-sampled charges as what `privacy.losses` prices, like ones together."""
    steps: dict[tuple[float, float, bool], int] = {}
    for c in plan:
        if c.rate < 1.0:
            # To a shard, every change of one of its records is a replacement.
            replaced = c.summands == "shards" or neighbours is Neighbours.REPLACE_ONE
            key = c.rate, 1 / c.event_multiplier, replaced
            steps[key] = steps.get(key, 0) + c.steps
    return tuple(
        Sampled(rate=rate, shift=shift, steps=count, records=records, replaced=replaced)
        for (rate, shift, replaced), count in steps.items()
    )


def _as_accounted(plan: Plan) -> Plan:
    """The plan, without sampling where some sampled step has next to no noise.

    An upper bound: sampling only takes away from what a step gives away. A ratio below 2 is proved at rate 1 only.
    """
    if not any(c.rate < 1.0 and c.noise_multiplier < LEAST_SAMPLED_NOISE for c in plan):
        return plan
    return tuple(c if c.rate == 1.0 else replace(c, rate=1.0, replace_ratio=2.0) for c in plan)


def _check_delta(delta: float) -> float:
    delta = real(delta, "delta")
    if not SMALLEST_DELTA <= delta < 1:
        raise BadInput(
            f"delta must lie between {SMALLEST_DELTA:g} and 1 to be accounted for, not {delta:g}."
        )
    return delta


def epsilon_of(
    plan: Plan, delta: float, neighbours: Neighbours, *, near: float | None = None
) -> float:
    """ε at δ of the whole plan, an upper bound: exact where no charge is Poisson-sampled.

    `near` is about how large the answer will be, if that is known (a ledger near its budget): it saves finding out.
    """
    delta = _check_delta(delta)
    if not plan:
        return 0.0
    plan = _as_accounted(plan)
    mu = _gaussian_mu(plan, neighbours)
    if all(c.rate == 1.0 for c in plan):
        return epsilon_of_gaussian(mu, delta)
    if near is not None:
        return _priced(plan, delta, neighbours, near)
    found = simple_upper_bound(mu, _sampled(plan, neighbours), delta)
    for _ in range(3):
        # The grid follows the answer, which may be far below the first bound.
        earlier = found
        found = min(found, _priced(plan, delta, neighbours, found)) if found > 0 else 0.0
        if found > earlier / 2:
            break
    return found


def epsilon_of_k(plan: Plan, delta: float, neighbours: Neighbours, records: int) -> float:
    """An upper bound on ε, at the same δ, for `records` records of one person that come, go or change together.

    Proof: a sum over all records moves by at most `records` times as much, by the triangle inequality, so plain Gaussians have
    `records` · μ. Of a Poisson sample each of the records is a part by its own coin; `privacy.losses` has the pair of laws
    that is worst then, for records, groups and shards.
    """
    delta = _check_delta(delta)
    if not plan:
        return 0.0
    plan = _as_accounted(plan)
    mu = records * _gaussian_mu(plan, neighbours)
    if all(c.rate == 1.0 for c in plan):
        return epsilon_of_gaussian(mu, delta)
    return epsilon_bounds(mu, _sampled(plan, neighbours, records), delta)[1]


@lru_cache(maxsize=1024)
def _priced(plan: Plan, delta: float, neighbours: Neighbours, near: float) -> float:
    """The least of the upper bounds that can be had in bounded time; PLD on the grid for `near`, where it can be had."""
    mu, sampled = _gaussian_mu(plan, neighbours), _sampled(plan, neighbours)
    simple = simple_upper_bound(mu, sampled, delta)
    if simple == 0.0:
        return 0.0
    wanted = _grid_for(plan, near)
    grid = max(wanted, extent(mu, sampled) / _MOST_LOSSES)
    asked = (
        delta >= 100 * transform_rounding(sum(s.steps for s in sampled))
        and simple <= _LARGEST_PLD_EPSILON
        and len(sampled) <= _MOST_PLD_CHARGES
        and all(s.steps <= _MOST_PLD_STEPS and s.rate >= _LEAST_PLD_RATE for s in sampled)
        and math.isfinite(grid)
    )
    if not asked:
        return epsilon_bounds(mu, sampled, delta)[1]
    found = min(simple, _pld_epsilon(plan, delta, neighbours, grid))
    return found if grid <= 4 * wanted else min(found, epsilon_bounds(mu, sampled, delta)[1])


def _grid_for(plan: Plan, epsilon: float) -> float:
    """A grid whose pessimism stays below about 0.06 % of ε.

    Discretising adds about (0.4 + 0.8/ε) · steps · grid² to ε (measured for ε from 0.1 to 10 and up to 100,000 steps), and ε is
    read off to a grid point.
    """
    steps = sum(c.steps for c in plan if c.rate < 1.0)
    grid = min(math.sqrt(6e-4 * epsilon / ((0.4 + 0.8 / epsilon) * steps)), epsilon / 1000)
    return max(_GRID_FINEST, grid)


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
    steps: dict[tuple[float, float, bool], int] = {}
    for charge in plan:
        if charge.rate < 1.0:
            # Less noise than there is, where its square would be no number: an upper bound.
            multiplier = min(charge.event_multiplier, _MOST_PLD_NOISE)
            key = multiplier, charge.rate, charge.summands == "shards"
            steps[key] = steps.get(key, 0) + charge.steps
    for (multiplier, rate, shards), count in steps.items():
        total = total.compose(
            pld.from_gaussian_mechanism(
                multiplier,
                value_discretization_interval=grid,
                sampling_prob=rate,
                # To a shard, every change of one of its records is a replacement.
                neighboring_relation=NeighboringRelation.REPLACE_ONE if shards else relation,
            ).self_compose(count)
        )
    mu = _gaussian_mu(plan, neighbours)
    if mu > 0:
        # A plain Gaussian is the same under every relation once its sensitivity is folded into μ.
        total = total.compose(
            pld.from_gaussian_mechanism(
                min(1 / mu, _MOST_PLD_NOISE),
                value_discretization_interval=grid,
                neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            )
        )
    return float(total.get_epsilon_for_delta(delta))


def calibrate(plan: Callable[[float], Plan], budget: Budget) -> float:
    """The least noise multiplier m for which `plan(m)` stays within the budget.

    Never on the unsafe side: the value returned has been evaluated and found within. For plain Gaussians it is optimal to
    1e-10; with Poisson sampling to 0.1 % for the budgets in use (ε from 0.01 to 100, δ from 1e-10 to 0.01), to about 1 % for
    others. `plan` must spend less as m grows. A budget without privacy gets `NO_NOISE`.
    """
    if not budget.private:
        return NO_NOISE
    if not SMALLEST_EPSILON <= budget.epsilon <= LARGEST_EPSILON:
        raise BadInput(
            f"Noise is worked out for epsilon from {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}, not for "
            f"{budget.epsilon:g}: with less nothing is left of the data, with more nothing is protected. "
            "Values from 0.1 to 10 are usual."
        )
    _check_delta(budget.delta)
    first = plan(1.0)
    if not first:
        raise BadInput("The plan releases nothing, so there is nothing to calibrate.")
    delta, neighbours, target = budget.delta, budget.neighbours, budget.epsilon
    if all(c.rate == 1.0 for c in first):
        return _least(lambda m: epsilon_of(plan(m), delta, neighbours), target, 1.0, 1e-10)

    def simple(m: float) -> float:
        known = plan(m)
        return simple_upper_bound(
            _gaussian_mu(known, neighbours), _sampled(known, neighbours), delta
        )

    def excess(m: float) -> float:
        """ln of ε ÷ the budget's, within what a search can use."""
        cost = epsilon_of(plan(m), delta, neighbours, near=target)
        return max(math.log(cost / target), -3.0) if cost > 0 else -3.0

    # A bound that needs no PLD gives the side that fits; the root lies not far below.
    fits, at_fits = (m := _least(simple, target, 1.0, 0.01)), excess(m)
    while at_fits > 0:  # rounding only: what is returned has been seen to fit
        fits *= 1.02
        at_fits = excess(fits)
    # Where nobody sets a budget, a hundredth is near enough; the search takes its time in use only.
    hair = 3e-4 if 1e-2 <= target <= 1e2 and delta <= 1e-2 else 1e-2
    slope, breaks = 1.0, 0.0
    for _ in range(12):
        if at_fits >= -hair * slope or (breaks and fits / breaks <= 1 + hair):
            break
        # Aim a hair inside, along the line through the two ends; never beyond them.
        step = -at_fits / slope - hair / 3
        guess = fits * math.exp(-min(step, 1.0))
        if breaks and not breaks < guess < fits:
            guess = math.sqrt(breaks * fits)
        at_guess = excess(guess)
        if guess != fits and at_guess > -3.0:
            slope = min(30.0, max(0.2, (at_guess - at_fits) / math.log(fits / guess)))
        if at_guess <= 0:
            fits, at_fits = guess, at_guess
        else:
            breaks = guess
    return fits


def _least(cost: Callable[[float], float], epsilon: float, start: float, tolerance: float) -> float:
    """The least argument with cost ≤ ε, from above, to a relative `tolerance`: bracket from `start`, then halve."""
    high = start
    while cost(high) > epsilon:
        high *= 2
        if high > 1e12:
            raise BadInput(
                f"No amount of noise reaches epsilon = {epsilon:g}; ask for a larger epsilon or delta."
            )
    low = high / 2
    while cost(low) <= epsilon:
        high, low = low, low / 2
        if low < 1e-6:
            return high
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        if cost(middle) <= epsilon:
            high = middle
        else:
            low = middle
    return high
