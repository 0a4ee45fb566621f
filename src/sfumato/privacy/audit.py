"""An audit of the wall: neighbours built to be told apart, the real noise, and how well they are told apart.

What the accountant says is an upper bound on ε, proved on paper. This module measures from the other side: it asks the wall
(`PrivateData`, its samplers, its ledger) about made-up records with and without one of them, tries to tell the two apart, and
turns the success into a lower bound on ε that holds with a stated confidence. A lower bound above the claim refutes the claim,
whatever the cause: too little noise, a clipping that does not clip, a record that moves what others contribute. Three parts:

1. *Distances.* With the samplers replaced by silent ones the wall's answers to two neighbours differ by what the noise has to
   hide. It must not be more than the sensitivity that is charged. No statistics; every pair that was built is tried.
2. *Many pairs side by side* (as in Steinke, Nasr and Jagielski 2023): each of some hundred records is in the data or not by a
   coin of its own, and moves the answer along a direction of its own, orthogonal to all others. One release gives that many
   tests. They are independent if the noise is what it is claimed to be, and only then: this part can refute the claim with the
   stated confidence, but noise that is correlated between the numbers of an answer is for part 3 and for the directions, which
   are not only the axes.
3. *One pair a release*: the pairs farthest apart, each answer drawn anew; independent whatever the wall does.

**The statistic.** For two Gaussians of one width, and for mixtures of them along one line, the likelihood ratio is monotone in
the projection of the answer on the line between the centres; by Neyman and Pearson no test does better than a threshold on it.

**From errors to ε.** Let α be the probability to say "with" without the record, β that to say "without" with it.
- Clopper and Pearson (1934): if k of n independent trials hit, the probability p of a hit is below the upper γ-quantile of
  Beta(k + 1, n − k) except with probability γ, whatever p is: the set of p not refuted by P[Bin(n, p) ≤ k] ≤ γ. The threshold is
  chosen on other draws than those that are counted, so that the trials are independent given it. With γ for each of α and β both
  upper bounds α⁺, β⁺ hold except with 2γ; the failures of all tests of an audit add up to at most 1 − confidence.
- *Region of (ε, δ)* (Kairouz, Oh and Viswanath 2015): every test of an (ε, δ)-private mechanism has 1 − β ≤ e^ε α + δ, and the
  same with the two data sets exchanged. Hence ε ≥ ln((1 − δ − β⁺) ÷ α⁺) in both directions. It assumes nothing, but at δ = 1e-5
  the event that shows a Gaussian's ε is one in a hundred thousand, which thousands of draws do not see.
- *Curve of the claim* (Dong, Roth and Su 2022; used for audits by Nasr et al. 2023): what the wall claims is not one (ε, δ) but a
  Gaussian, or a sampled one, of a certain shift μ, and with it the best power at every α. The least shift μ⁻ at which power
  1 − β⁺ is possible at level α⁺ is above the claimed one only if the claim is false (but for the failures counted above). The
  ε that the accountant gives for μ⁻ at the claimed δ is then the lower bound: sound as a refutation, and as an estimate of ε if
  the answer's law is of that family.

Everything here is public: the records are made up, and no private row comes near. It draws noise through the wall alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import beta as beta_law
from torch import Tensor

from sfumato.data import Batch, Dataset, Schema
from sfumato.data.sources import ArraySource
from sfumato.data.units import Unit, Units
from sfumato.privacy.accounting import Charge, calibrate, epsilon_of
from sfumato.privacy.bounding import RecordMap
from sfumato.privacy.budget import Budget, Neighbours
from sfumato.privacy.gate import Rows, _map_of
from sfumato.privacy.gradients import GradientSum
from sfumato.privacy.groups import GroupSum, ShardSum
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.query import Query
from sfumato.privacy.wall import PrivateData, Step

Numbers = NDArray[np.float64]

DELTA = 1e-5
# Steps that one series of an audit pays for; a series of thousands would be priced for longer than it takes.
_SERIES = 64
_PER_UNIT = 7  # records that count of a unit
_QUANTILES = np.linspace(0.01, 0.99, 50)
_FARTHEST = 60.0  # deviations of the noise
# Of all draws this part chooses the threshold, the rest is counted.
_CHOOSING = 0.2
_LUCK = 0.01
_CENTRAL = (0.25, 0.75)
# Steps answer in single precision, so two answers may be further apart than the sums by this part of their length.
_SINGLE = 2.0**-22


@dataclass(frozen=True)
class Pair:
    """Two neighbouring data sets."""

    name: str
    without: Batch
    present: Batch


@dataclass(frozen=True)
class SideBySide:
    """`count` pairs in one data set: `records(coins)` has the record k, or its other, by coins[k], which moves the answer
    along `directions[k]`, orthogonal to all others.
    """

    count: int
    records: Callable[[Tensor], Batch]
    directions: Tensor  # (count, numbers of an answer), of length 1


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One mechanism of the wall, what is asked of it, and neighbours that are as bad as they get."""

    name: str
    query: Query
    schema: Schema
    neighbours: Neighbours
    epsilon: float
    asked: Rows | GradientSum | GroupSum | ShardSum
    pairs: tuple[Pair, ...]
    side_by_side: SideBySide | None = None
    effort: float = 1.0  # draws, against those of other mechanisms: little noise is seen with few
    # How many records the unit of each record brings, in turns: as many copies of it. None: a record is a unit.
    copies: tuple[int, ...] = ()


@dataclass(frozen=True)
class Bound:
    """A lower bound on ε at the claimed δ, and what it was found with."""

    pair: str
    draws: int
    lower: float
    upper: float  # the other end of the interval of the same test
    region: float  # the lower bound that assumes nothing
    false_positive: float  # α⁺
    false_negative: float  # β⁺

    def to_json(self) -> dict[str, Any]:
        return {
            "pair": self.pair,
            "draws": self.draws,
            "epsilon_lower": self.lower,
            "epsilon_upper": self.upper,
            "epsilon_lower_region": self.region,
            "false_positive_rate_at_most": self.false_positive,
            "false_negative_rate_at_most": self.false_negative,
        }


@dataclass(frozen=True)
class Finding:
    """What the audit found of one mechanism."""

    mechanism: str
    neighbours: Neighbours
    charge: Charge
    epsilon: float
    delta: float
    distance: float
    farthest: str  # the pair whose answers are that far apart
    pairs: int
    bounds: tuple[Bound, ...]
    room: float  # what single precision may add to the distance

    @property
    def sensitivity(self) -> float:
        return self.charge.sensitivity(self.neighbours)

    @property
    def best(self) -> Bound:
        return max(self.bounds, key=lambda bound: bound.lower)

    @property
    def too_far(self) -> bool:
        return not self.distance <= self.sensitivity + self.room

    @property
    def told_apart(self) -> bool:
        return self.best.lower > self.epsilon

    @property
    def passed(self) -> bool:
        return not (self.too_far or self.told_apart)

    def to_json(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism,
            "neighbours": self.neighbours.value,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "epsilon_lower": self.best.lower,
            "epsilon_upper": self.best.upper,
            "ratio": self.best.lower / self.epsilon,
            "sensitivity": self.sensitivity,
            "sensitivity_measured": self.distance,
            "farthest_pair": self.farthest,
            "pairs": self.pairs,
            "passed": self.passed,
            "bounds": [bound.to_json() for bound in self.bounds],
            "charge": self.charge.to_json(),
        }


def audit(
    mechanisms: Sequence[Mechanism],
    *,
    draws: int,
    alone: int,
    pairs_alone: int = 1,
    confidence: float = 0.999,
    seed: int = 0,
    on_finding: Callable[[Finding], None] | None = None,
) -> list[Finding]:
    """Every mechanism with about `draws` draws on each side, and `alone` for each of `pairs_alone` pairs drawn by themselves.

    If all claims hold, all lower bounds are at most their claims with probability ≥ `confidence`. `seed` chooses coins only.
    """
    tests = sum(
        2 * ((m.side_by_side is not None) + min(pairs_alone, len(m.pairs))) for m in mechanisms
    )
    failure = (1 - confidence) / max(1, tests)
    random = torch.Generator().manual_seed(seed)
    found = []
    for mechanism in mechanisms:
        finding = _audited(
            mechanism,
            draws=math.ceil(draws * mechanism.effort),
            alone=alone,
            pairs_alone=pairs_alone,
            failure=failure,
            random=random,
        )
        found.append(finding)
        if on_finding is not None:
            on_finding(finding)
    return found


def _audited(
    mechanism: Mechanism,
    *,
    draws: int,
    alone: int,
    pairs_alone: int,
    failure: float,
    random: torch.Generator,
) -> Finding:
    asked = Asked(mechanism)
    known: dict[int, Tensor] = {}  # many pairs have one data set in common

    def answer(records: Batch) -> Tensor:
        if id(records) not in known:
            known[id(records)] = asked.silent(records)
        return known[id(records)]

    silent = [(answer(pair.without), answer(pair.present), pair) for pair in mechanism.pairs]
    # An answer that is no number is as far from any other as can be.
    distances = [float((one - other).norm().nan_to_num(nan=math.inf)) for one, other, _ in silent]
    order = sorted(range(len(silent)), key=lambda i: -distances[i])
    single = asked.charge.sampler == "floating" and not isinstance(asked.phi, RecordMap)
    room = _SINGLE * max(float(v.norm()) for pair in silent for v in pair[:2]) if single else 0.0
    bounds = []
    if mechanism.side_by_side is not None:
        name = f"{mechanism.side_by_side.count} pairs side by side"
        drawn = _side_by_side(asked, mechanism.side_by_side, draws, random)
        bounds.append(_bound(name, *drawn, asked=asked, failure=failure))
    # Where nothing stands side by side, the pairs themselves take all draws.
    count = alone if mechanism.side_by_side is not None else draws
    for i in order[:pairs_alone]:
        without, present, pair = silent[i]
        drawn = _alone(asked, pair, without, present, count)
        bounds.append(_bound(pair.name, *drawn, asked=asked, failure=failure))
    return Finding(
        mechanism.name,
        mechanism.neighbours,
        asked.charge,
        asked.claimed(asked.charge),
        DELTA,
        distances[order[0]],
        mechanism.pairs[order[0]].name,
        len(silent),
        tuple(bounds),
        room,
    )


# -- asking the wall -----------------------------------------------------------------------------------------------------


class Asked:
    """The wall, asked one question of a mechanism over and over, with the noise that its claim is calibrated to."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._schema = mechanism.schema
        self._query = mechanism.query
        self._neighbours = mechanism.neighbours
        self._copies = mechanism.copies
        self.phi: RecordMap | GradientSum | GroupSum | ShardSum = (
            mechanism.asked
            if isinstance(mechanism.asked, GradientSum | GroupSum | ShardSum)
            else _map_of(mechanism.query, mechanism.asked)
        )
        budget = Budget(epsilon=mechanism.epsilon, delta=DELTA, neighbours=mechanism.neighbours)
        noise = calibrate(lambda m: (self._one(m),), budget)
        self.charge = self._one(noise)
        self._budget = budget

    def _one(self, noise_multiplier: float) -> Charge:
        """What one answer costs, a step of a series too."""
        charge = self._query.charge(noise_multiplier)
        return replace(charge, steps=1)

    def claimed(self, charge: Charge) -> float:
        return epsilon_of((charge,), DELTA, self._neighbours)

    def answers(self, records: Batch, times: int) -> Tensor:
        """(times, numbers): as many answers about the same records, each with its own noise."""
        if times == 0:
            return torch.empty(0, self.charge.dimension, dtype=torch.float64)
        return torch.stack(list(self._answers(self._rows(records), times)))

    def silent(self, records: Batch) -> Tensor:
        """(numbers,): what the wall would answer without noise, of all records."""
        samplers = {"discrete_sampler": _no_units, "fast_sampler": _no_noise}
        return next(self._answers(self._rows(records), 1, rate=1.0, **samplers))

    def _rows(self, records: Batch) -> Dataset:
        # Not by `from_values`: records that no reader would let through must do no harm either.
        labels = None if records.labels is None else records.labels.numpy()
        values = records.values.numpy()
        if not self._copies:
            return Dataset(ArraySource(values, labels), self._schema, "made up")
        unit = np.repeat(np.arange(len(values)), np.resize(self._copies, len(values)))
        unit = np.random.default_rng(0).permutation(unit)  # a unit's records lie anywhere
        source = ArraySource(values[unit], None if labels is None else labels[unit])
        about = Unit("unit", "made up", _PER_UNIT)
        return Dataset(source, self._schema, "made up", units=Units(about, unit.tolist, "made up"))

    def _answers(
        self, rows: Dataset, times: int, rate: float | None = None, **samplers: Any
    ) -> Iterator[Tensor]:
        charge, label = self.charge, self._query.label
        if self._query.steps is None:
            assert isinstance(self.phi, RecordMap)
            for _ in range(times):
                # Its own ledger, with room for what was claimed and nothing more.
                private = PrivateData(rows, Ledger(self._budget), **samplers)
                release = private.noisy_sum(self.phi, charge.noise_multiplier, label=label)
                yield release.value.to(torch.float64).flatten()
            return
        while times > 0:
            steps = min(times, _SERIES)
            budget = replace(self._budget, epsilon=1e6)
            private = PrivateData(rows, Ledger(budget), **samplers)
            for step in private.poisson_steps(
                charge.rate if rate is None else rate,
                steps,
                charge.noise_multiplier,
                bound=self._query.enforced,
                label=label,
                dimension=charge.dimension,
                summands=charge.summands,
            ):
                yield self._step(step).to(torch.float64).flatten()
            times -= steps

    def _step(self, step: Step) -> Tensor:
        if isinstance(self.phi, GradientSum):
            return step.noisy_gradient(self.phi)
        if isinstance(self.phi, GroupSum):
            return step.noisy_groups(self.phi)
        if isinstance(self.phi, ShardSum):
            return step.noisy_shards(self.phi)
        return step.noisy_sum(self.phi)

    # -- the claim's curve -----------------------------------------------------------------------------------------------

    @property
    def shift(self) -> float:
        """How far the claim says that one record moves the answer, in deviations of the noise.

        Of a sample: how far if it is drawn, from where the answer is without it.
        """
        if self.charge.rate == 1.0:
            return self.charge.sensitivity_ratio(self._neighbours) / self.charge.noise_multiplier
        return 1 / self.charge.event_multiplier

    def power(self, level: float, shift: float) -> float:
        """The best probability to say "with" of the data with the record, when it is said without it with probability `level`.

        Proof: N(0, 1) against N(μ, 1) at rate 1; against (1 − q) N(0, 1) + q N(μ, 1) where a record is in the sample or not; and
        (1 − q) N(0, 1) + q N(−μ, 1) against (1 − q) N(0, 1) + q N(μ, 1) where one of the sampled is replaced. The ratio of the
        densities grows along the line in all three, so the best test is a threshold t (Neyman and Pearson).
        """
        rate = self.charge.rate
        if rate == 1.0:
            return float(ndtr(ndtri(level) + shift))
        replaced = self.charge.summands == "shards" or self._neighbours is Neighbours.REPLACE_ONE
        if not replaced:
            return float((1 - rate) * level + rate * ndtr(ndtri(level) + shift))
        # t from the level: false alarms fall as it grows.
        low, high = -40.0 - shift, 40.0
        for _ in range(80):
            middle = (low + high) / 2
            alarms = (1 - rate) * ndtr(-middle) + rate * ndtr(-middle - shift)
            low, high = (middle, high) if alarms > level else (low, middle)
        return float((1 - rate) * ndtr(-low) + rate * ndtr(shift - low))

    def least_shift(self, level: float, power: float) -> float:
        """The least shift at which `power` can be had at `level`; 0 where it takes none."""
        low, high = 0.0, _FARTHEST
        if power <= level:
            return low
        if level <= 0 or power >= 1 or self.power(level, high) < power:
            return high
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.power(level, middle) < power else (low, middle)
        return low

    def epsilon_at(self, shift: float) -> float:
        """The accountant's ε at the claimed δ if the shift were this one: less noise, or more."""
        if shift <= 0:
            return 0.0
        multiplier = self.charge.noise_multiplier * self.shift / shift
        return self.claimed(replace(self.charge, noise_multiplier=multiplier))


def _no_units(count: int, *_: Any) -> NDArray[np.int64]:
    return np.zeros(count, dtype=np.int64)


def _no_noise(shape: tuple[int, ...], _: float) -> Numbers:
    return np.zeros(shape)


# -- draws ---------------------------------------------------------------------------------------------------------------


def _side_by_side(
    asked: Asked, pairs: SideBySide, draws: int, random: torch.Generator
) -> tuple[Numbers, Numbers]:
    """Projections without and with the record, about `draws` of each, from as many releases as that takes."""
    without, present = [], []
    for _ in range(math.ceil(2 * draws / pairs.count)):
        coins = torch.randint(0, 2, (pairs.count,), generator=random) == 1
        found = pairs.directions @ asked.answers(pairs.records(coins), 1)[0]
        without.append(found[~coins])
        present.append(found[coins])
    return torch.cat(without).numpy(), torch.cat(present).numpy()


def _alone(
    asked: Asked, pair: Pair, without: Tensor, present: Tensor, draws: int
) -> tuple[Numbers, Numbers]:
    line = present - without
    line = line / line.norm().clamp(min=1e-300)
    one, other = (
        ((asked.answers(records, draws) - without) @ line).numpy()
        for records in (pair.without, pair.present)
    )
    return one, other


# -- statistics ----------------------------------------------------------------------------------------------------------


def clopper_pearson(hits: int, trials: int, failure: float) -> tuple[float, float]:
    """Two ends, each of which the probability of a hit passes with probability at most `failure` (Clopper and Pearson 1934)."""
    low = 0.0 if hits == 0 else float(beta_law.ppf(failure, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta_law.ppf(1 - failure, hits + 1, trials - hits))
    return low, high


def region_epsilon(false_positive: float, false_negative: float, delta: float) -> float:
    """The least ε at which a test with such errors is possible at δ, in this direction (Kairouz, Oh and Viswanath 2015)."""
    power = 1 - delta - false_negative
    if power <= 0 or false_positive <= 0:
        return 0.0
    return max(0.0, math.log(power / false_positive))


@dataclass(frozen=True)
class _Errors:
    """What a threshold gets wrong: numbers of draws, and both ends of the intervals."""

    false_positive: tuple[float, float]
    false_negative: tuple[float, float]

    @classmethod
    def at(cls, threshold: float, without: Numbers, present: Numbers, failure: float) -> _Errors:
        return cls(
            clopper_pearson(int((without > threshold).sum()), len(without), failure),
            clopper_pearson(int((present <= threshold).sum()), len(present), failure),
        )

    @property
    def sum(self) -> float:
        return sum(self.false_positive) + sum(self.false_negative)

    def region(self) -> float:
        """In both directions: "with" is said above the threshold, or "without" below it."""
        (_, a), (_, b) = self.false_positive, self.false_negative
        return max(region_epsilon(a, b, DELTA), region_epsilon(b, a, DELTA))


def _bound(name: str, without: Numbers, present: Numbers, *, asked: Asked, failure: float) -> Bound:
    """Thresholds from the first draws, one for each of the two bounds; the errors from all others.

    Each bound fails with probability at most `failure`: half of it for each of its two error rates.
    """
    cut = max(1, int(_CHOOSING * min(len(without), len(present))))
    first = without[:cut], present[:cut]
    middle = (first[0].mean() + first[1].mean()) / 2
    together = np.concatenate(first)
    thresholds = np.unique(np.append(np.quantile(together, _QUANTILES), middle))
    # How they are chosen is free; narrow intervals, since wide ones of few draws say nothing of any threshold.
    tried = [_Errors.at(float(t), *first, _LUCK) for t in thresholds]

    def least_shift(errors: _Errors, end: int) -> float:
        return asked.least_shift(errors.false_positive[end], 1 - errors.false_negative[end])

    def best(value: Callable[[_Errors], float], low: float = 0.0, high: float = 1.0) -> float:
        # Of equals, as where the two do not overlap at all, the one in the middle.
        ends = np.quantile(together, [low, high])
        key = [
            (bool(ends[0] <= t <= ends[1]), value(e), -e.sum, -abs(float(t - middle)))
            for e, t in zip(tried, thresholds, strict=True)
        ]
        return float(thresholds[max(range(len(key)), key=lambda i: key[i])])

    # Gaussians are best told apart between their centres; farther out a threshold looks well by luck more often.
    chosen = best(lambda errors: least_shift(errors, 1), *_CENTRAL)
    rest = without[cut:], present[cut:]
    curve = _Errors.at(chosen, *rest, failure / 2)
    region = _Errors.at(best(_Errors.region), *rest, failure / 2).region()
    lower = asked.epsilon_at(least_shift(curve, 1))
    upper = asked.epsilon_at(least_shift(curve, 0))
    return Bound(
        pair=name,
        draws=len(without) + len(present),
        lower=max(lower, region),
        upper=max(upper, region),
        region=region,
        false_positive=curve.false_positive[1],
        false_negative=curve.false_negative[1],
    )
