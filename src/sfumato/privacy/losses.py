"""Privacy losses of noisy sums over Poisson samples, for one record or several of one person, bounded from both sides.

Units are standard deviations of the noise. A mechanism here is a `Sampled` sum: each of k records is in with
probability q, and whoever is in moves the sum by at most `shift`. Given how many of the k are in, the answer is
Gaussian, so its law is a mixture of Gaussians with binomial weights. Plain Gaussians (rate 1) come as one μ.

**Which two laws are worst.** Let P = Σ pᵢ N(vᵢ, I) and Q = Σ rⱼ N(wⱼ, I) in any dimension with ‖vᵢ‖ ≤ aᵢ and ‖wⱼ‖ ≤
bⱼ. Then for every γ ≥ 0 the hockey-stick divergence of P from Q is at most that of Σ pᵢ N(aᵢ, 1) from Σ rⱼ N(−bⱼ, 1),
on the line.
*Proof.* Let z be N(0, I). The divergence is E (X − γY)₊ with X = Σ pᵢ exp(⟨vᵢ, z⟩ − ‖vᵢ‖²/2) and Y = Σ rⱼ exp(⟨wⱼ, z⟩
− ‖wⱼ‖²/2): the mean of a convex function of a sum of random variables, whose laws alone are known if only the norms
are. Among all joint laws with given marginals a sum is largest in the convex order when its terms rise and fall
together (Kaas, Dhaene and Goovaerts 2000). With one normal Z, pᵢ exp(‖vᵢ‖ Z − ‖vᵢ‖²/2) and −γ rⱼ exp(−‖wⱼ‖ Z −
‖wⱼ‖²/2) have these marginals and all rise with Z; their sum is what the claim has on the right, with the norms in
place of the bounds. Larger norms are larger in the convex order, since exp(B(t) − t/2) of a Brownian motion B is a
martingale in t = norm²; and the largest sum grows with each of its terms, because E (Σ Tᵢ − d)₊ of terms that rise
together is the least Σ E (Tᵢ − dᵢ)₊ over all dᵢ with sum d. ∎

Hence, for k records that come, go or change together, everything else fixed (averaging over other records' coins
cannot raise the divergence), with S the set of those that are in:
- records of norm ≤ C, added or left out: v_S = Σ x, ‖v_S‖ ≤ |S|·C, against w = 0, in both directions;
- records replaced: v_S = Σ x and w_S = Σ x' around the sum of all others, both of norm ≤ |S|·C, hence ±|S|·C;
- groups (`privacy.groups`): the |S| records change at most |S| groups by 2C each, so records of norm 2C;
- shards: k records lie in at most k shards, each of which is drawn by its own coin and changes inside its ball of
  radius C: replaced "records" of norm C under every relation; fewer shards are the case that some of them have norm
  0.
The laws of all steps multiply, given what was released before (Zhu, Dong and Wang 2022).

**Two bounds from one convolution** (after Gopi, Lee and Wutschitz 2021; nothing is shared with dp-accounting's PLD).
The loss Y of a step is rounded to the nearest multiple of h and shifted to keep its mean. The n roundings are
independent, of mean 0 and in intervals of width h, so by Hoeffding they sum to more than t = h·√(n·ln(2/η)/2) with
probability at most η. With δ̃ of the rounded sum, δ̃(ε + t) − η ≤ δ(ε) ≤ δ̃(ε − t) + η. Losses beyond a range that
Chernoff's bound gives a probability of at most η wrap around, which costs another η. The law of the rounded sum is a
product of Fourier transforms.

Everything here is public; no row is ever seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft
from scipy.special import erfcx, gammaln, log_ndtr, ndtr

Array = NDArray[np.floating[Any]]

# How far normals are followed: beyond this a normal is with probability 2e-24.
_REACH = 10.0
# The longest arrays, of places x and of losses; they bound time and memory.
_MOST_PLACES, _MOST_LOSSES = 1 << 17, 1 << 20
# The share of δ that the bounds give to each event they leave out.
_SHARE_LEFT_OUT = 1e-6
_MOST_MECHANISMS = 64
# Sums that one person moves further than this, in deviations of the noise, need no fine account.
_FARTHEST = 1e5
_CHUNK = 1 << 15


class OutOfReach(Exception):
    """The losses fit no array of bounded length, or δ is too near to the rounding of doubles."""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """`steps` sums, in each of which every one of `records` units is with probability `rate`, moving it by ≤ `shift` deviations.

    `replaced`: the units are changed into others rather than left out.
    """

    rate: float
    shift: float
    steps: int
    records: int = 1
    replaced: bool = False

    def __post_init__(self) -> None:
        assert 0 < self.rate < 1 and self.shift > 0 and self.steps > 0 and self.records > 0

    @property
    def farthest(self) -> float:
        """How far apart the two sums can be."""
        return self.shift * self.records * (2 if self.replaced else 1)

    @property
    def log_weights(self) -> Array:
        k, j = self.records, np.arange(self.records + 1)
        choose = gammaln(k + 1) - gammaln(j + 1) - gammaln(k - j + 1)
        return np.asarray(choose + j * math.log(self.rate) + (k - j) * math.log1p(-self.rate))

    @property
    def shifts(self) -> Array:
        return self.shift * np.arange(self.records + 1)

    def tilt(self, x: Array) -> tuple[Array, Array]:
        """ln of (the mixture ÷ the standard normal) at x, and its slope."""
        value, slope = np.empty_like(x), np.empty_like(x)
        weights, shifts = self.log_weights[:, None], self.shifts[:, None]
        for start in range(0, len(x), _CHUNK):
            part = slice(start, start + _CHUNK)
            terms = weights + shifts * (x[part] - shifts / 2)
            top = terms.max(axis=0)
            terms = np.exp(terms - top)
            total = terms.sum(axis=0)
            value[part] = top + np.log(total)
            slope[part] = (shifts * terms).sum(axis=0) / total
        return value, slope

    def loss(self, x: Array) -> tuple[Array, Array]:
        """ln of (the law with the records ÷ the law without, or with others) at x, and its slope, which is positive."""
        value, slope = self.tilt(x)
        if not self.replaced:
            return value, slope
        other, other_slope = self.tilt(-x)
        return value - other, slope + other_slope

    def cdf(self, x: Array) -> Array:
        """Of the mixture."""
        found = np.zeros_like(x)
        for log_weight, shift in zip(self.log_weights, self.shifts, strict=True):
            found += math.exp(log_weight) * ndtr(x - shift)
        return found

    def places(self) -> Array:
        """A grid of x on which integrals over the laws are exact to rounding: the loss is analytic within π/shift of the line."""
        if not 1e-9 < self.farthest < _FARTHEST:
            raise OutOfReach
        step = min(0.05, 0.2 / self.shift)
        low = -_REACH - (self.shift * self.records if self.replaced else 0.0)
        count = math.ceil((self.shift * self.records + _REACH - low) / step)
        if count > _MOST_PLACES:
            raise OutOfReach
        return low + step * np.arange(count + 1)


def epsilon_bounds(mu: float, sampled: tuple[Sampled, ...], delta: float) -> tuple[float, float]:
    """[low, high] around ε at δ of a Gaussian with shift `mu` beside sampled sums, over both directions.

    The bounds hold for the worst of all data; where no convolution can be afforded, they are those that need none.
    """
    low, high = simple_lower_bound(mu, delta), simple_upper_bound(mu, sampled, delta)
    if not sampled:
        return low, high
    directions = (True,) if all(s.replaced for s in sampled) else (True, False)
    try:
        found = [_convolved(mu, sampled, delta, forward) for forward in directions]
    except OutOfReach:
        return low, high
    low = max(low, *(one[0] for one in found))
    return low, max(low, min(high, max(one[1] for one in found)))


def simple_lower_bound(mu: float, delta: float) -> float:
    """ε of the plain Gaussians alone: what else is released cannot make it smaller."""
    return gaussian_epsilon(mu, delta) * (1 - 1e-9) if mu > 0 else 0.0


def simple_upper_bound(mu: float, sampled: tuple[Sampled, ...], delta: float) -> float:
    """The lesser of two bounds that need no convolution: nothing sampled, and Rényi's."""
    together = math.hypot(mu, *(math.sqrt(s.steps) * s.farthest for s in sampled))
    plain = gaussian_epsilon(together, delta) * (1 + 1e-9)
    return min(plain, _renyi_epsilon(mu, sampled, delta)) if sampled else plain


# -- plain Gaussians -----------------------------------------------------------------------------------------------


def log_gaussian_delta(mu: float, epsilon: float) -> float:
    """ln δ at ε of a Gaussian with shift μ, by integrating its tail where two tails that are subtracted would cancel.

    With u = ε/μ − μ/2, δ = ∫₀^∞ (1 − e^{−μs}) φ(u + s) ds: every term is positive. The two tails in closed form are, relative to
    e^{−u²/2}/2, Mills' ratios erfcx(u/√2) and erfcx((u + μ)/√2).
    """
    u = epsilon / mu - mu / 2
    if mu > 1:
        if u < -8:
            return math.log1p(-math.exp(log_ndtr(u)) - math.exp(epsilon + log_ndtr(-u - mu)))
        ratios = float(erfcx(u / math.sqrt(2)) - erfcx((u + mu) / math.sqrt(2)))
        return -u * u / 2 + math.log(ratios / 2)
    end = min(40.0 / max(u, 1e-3), max(-u, 0.0) + 12.0)
    nodes, weights = _legendre()
    s = end * nodes
    terms = -u * s - s * s / 2 + np.log(-np.expm1(-mu * s))
    top = float(terms.max())
    total = end * float(np.dot(weights, np.exp(terms - top)))
    return top + math.log(total) - u * u / 2 - math.log(2 * math.pi) / 2


@lru_cache(maxsize=1)
def _legendre() -> tuple[Array, Array]:
    """Gauss and Legendre's places and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return (nodes + 1) / 2, weights / 2


@lru_cache(maxsize=4096)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at δ of a Gaussian with shift μ, to about 1e-10 of itself."""
    if mu <= 0:
        return 0.0
    high = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))  # P(loss > this) ≤ δ
    if mu > 1e5 or not math.isfinite(high):
        return high
    if mu < 1e-100:
        return 0.0 if mu <= delta else high
    target = math.log(delta)
    if log_gaussian_delta(mu, 0.0) <= target:
        return 0.0
    low = 0.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if log_gaussian_delta(mu, middle) > target:
            low = middle
        else:
            high = middle
    return high


# -- Rényi divergences ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _renyi_epsilon(mu: float, sampled: tuple[Sampled, ...], delta: float) -> float:
    """An upper bound on ε from Rényi divergences (Canonne, Kamath and Steinke 2020, prop. 12); infinite where none is found.

    ∫ P^α Q^{1−α} of two mixtures is an integral over the line of a function whose peak lies within α·farthest of 0.
    """
    farthest = max(s.farthest for s in sampled)
    if len(sampled) > _MOST_MECHANISMS or not 1e-9 < farthest < _FARTHEST or mu > _FARTHEST:
        return math.inf
    orders = 1 + np.geomspace(0.02, max(0.1, 60 / farthest), 48)
    worst = np.zeros(len(orders))
    try:
        for forward in (True, False):
            total = orders * mu * mu / 2
            for one in sampled:
                total = total + one.steps * _renyi(
                    one, orders, forward, _MOST_PLACES // (4 + len(sampled))
                )
            worst = np.maximum(worst, total)
    except OutOfReach:
        return math.inf
    epsilons = worst + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(np.min(epsilons)) * (1 + 1e-9) + 1e-15)


def _renyi(one: Sampled, orders: Array, forward: bool, most: int) -> Array:
    """The Rényi divergences of one step, rounded up, from at most `most` places."""
    reach = float(orders[-1]) * one.farthest + _REACH + 3
    step = min(0.05, 0.2 / one.shift, 0.25 / math.sqrt(1 + reach * one.shift * one.records))
    count = math.ceil(2 * reach / step)
    if count > most:
        raise OutOfReach
    x = -reach + step * np.arange(count + 1)
    tilt = one.tilt(x)[0]
    other = one.tilt(-x)[0] if one.replaced else np.zeros_like(x)
    upper, lower = (tilt, other) if forward else (other, tilt)
    log_normal = -x * x / 2 + math.log(step) - math.log(2 * math.pi) / 2
    found = np.empty(len(orders))
    for index, order in enumerate(orders):
        terms = log_normal + order * upper + (1 - order) * lower
        top = terms.max()
        found[index] = (top + math.log(np.exp(terms - top).sum())) / (order - 1)
    # A divergence is not negative; rounding is, at times.
    return np.maximum(found, 0.0) * (1 + 1e-9) + 1e-14 / (orders - 1)


def transform_rounding(steps: int) -> float:
    """By how much doubles may put δ wrong when a transform is taken to the power `steps`; measured well below."""
    return 1e-14 + 3e-17 * steps


def extent(mu: float, sampled: tuple[Sampled, ...]) -> float:
    """About how long the arrays of all losses of a plan are, times their grid: those of single steps and that of the sum."""
    if len(sampled) > _MOST_MECHANISMS or mu > _FARTHEST:
        return math.inf
    longest = 0.0
    try:
        for forward in (True, False):
            steps = [_Step.of(s, forward, 1e-24) for s in sampled]
            lowest, highest = _range(mu, sampled, steps, 1e-15)
            single = math.fsum(s.high - s.low for s in steps) + 2 * _REACH * mu
            longest = max(longest, 5 * single + 2 * (highest - lowest))
    except OutOfReach:
        return math.inf
    return longest


# -- the convolution -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """The loss of one sum in one direction: places, their probabilities and losses, cut where nearly nothing lies beyond."""

    sampled: Sampled
    forward: bool
    x: Array
    mass: Array
    loss: Array  # rising with x; cut to [low, high]
    low: float
    high: float

    @classmethod
    def of(cls, sampled: Sampled, forward: bool, left_out: float) -> _Step:
        x = sampled.places()
        log_mass = -x * x / 2 - math.log(2 * math.pi) / 2 + math.log(x[1] - x[0])
        if forward:
            log_mass = log_mass + sampled.tilt(x)[0]
        elif sampled.replaced:
            log_mass = log_mass + sampled.tilt(-x)[0]
        mass = np.exp(log_mass)
        mass /= mass.sum()
        loss = np.maximum.accumulate(sampled.loss(x)[0])
        # Two places further than need be: the sums are over places, the tails between them.
        first = max(0, int(np.searchsorted(np.cumsum(mass), left_out)) - 2)
        last = len(x) - 1 - max(0, int(np.searchsorted(np.cumsum(mass[::-1]), left_out)) - 2)
        low, high = float(loss[first]), float(loss[last])
        return cls(sampled, forward, x, mass, np.clip(loss, low, high), low, high)

    @property
    def sign(self) -> int:
        return 1 if self.forward else -1

    def mean(self) -> float:
        return self.sign * float(np.dot(self.mass, self.loss))

    def cumulants(self, orders: Array) -> Array:
        """ln E exp(order · loss), at every order."""
        found = np.empty(len(orders))
        with np.errstate(divide="ignore"):
            log_mass = np.log(self.mass)
        for index, order in enumerate(orders):
            terms = log_mass + order * self.sign * self.loss
            top = terms.max()
            found[index] = top + math.log(np.exp(terms - top).sum())
        return found

    def rounded(self, grid: float) -> tuple[int, Array, float]:
        """The law of the loss on multiples of `grid`: the first multiple, probabilities, and the largest error of a boundary."""
        first, last = round(self.low / grid), round(self.high / grid)
        edges = (np.arange(first, last) + 0.5) * grid
        x, error = self._inverse(edges)
        if self.forward:
            below = self.sampled.cdf(x)
        elif self.sampled.replaced:
            below = 1 - self.sampled.cdf(-x)
        else:
            below = ndtr(x)
        # Where losses hardly differ in their last digits, neighbouring boundaries may stand in the wrong order. Each is within
        # `error` of its place, and so is the highest up to it.
        below = np.maximum.accumulate(below) if len(below) else below
        mass = np.diff(np.concatenate([[0.0], below, [1.0]]))
        return (first, mass, error) if self.forward else (-last, mass[::-1], error)

    def _inverse(self, edges: Array) -> tuple[Array, float]:
        """Where the loss is `edges`: between two places, then by Newton's steps; with the largest error in the loss."""
        if len(edges) == 0:
            return edges, 0.0
        right = np.clip(np.searchsorted(self.loss, edges), 1, len(self.x) - 1)
        low, high = self.x[right - 1], self.x[right]
        at_low, at_high = self.loss[right - 1], self.loss[right]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(at_high > at_low, (edges - at_low) / (at_high - at_low), 0.5)
            x = low + np.clip(share, 0.0, 1.0) * (high - low)
            for _ in range(3):
                value, slope = self.sampled.loss(x)
                moved = x - (value - edges) / slope
                x = np.where(np.isfinite(moved), np.clip(moved, low, high), x)
        return x, float(np.abs(self.sampled.loss(x)[0] - edges).max())


@lru_cache(maxsize=256)
def _convolved(
    mu: float, sampled: tuple[Sampled, ...], delta: float, forward: bool
) -> tuple[float, float]:
    """Bounds on ε at δ in one direction."""
    count = sum(s.steps for s in sampled) + (mu > 0)
    rounding = transform_rounding(count)
    if mu > _FARTHEST or delta < 30 * rounding or count > 10**9 or len(sampled) > _MOST_MECHANISMS:
        raise OutOfReach
    left_out = _SHARE_LEFT_OUT * delta
    steps = [_Step.of(s, forward, left_out / (2 * count)) for s in sampled]
    lowest, highest = _range(mu, sampled, steps, left_out)
    # Half of the spread that rounding adds is what one looks for; more losses than the cap are not worth their time.
    wanted = math.sqrt(count * math.log(2 / left_out) / 2) / 4e-4
    most = max(16, (_MOST_LOSSES // len(sampled)).bit_length() - 1)
    losses = 1 << min(max(16, math.ceil(math.log2(wanted))), most)
    grid = max(
        (highest - lowest) / losses,
        max((s.high - s.low for s in steps), default=0.0) / losses,
        1e-300,
    )
    transform = np.ones(losses // 2 + 1, dtype=np.complex128)
    mean_error = error = 0.0
    for step in steps:
        first, mass, worst = step.rounded(grid)
        error = max(error, worst)
        at = np.arange(first, first + len(mass))
        n = step.sampled.steps
        mean_error += n * (step.mean() - grid * float(np.dot(mass, at)))
        transform *= rfft(np.bincount(at % losses, weights=mass, minlength=losses)) ** n
    if mu > 0:
        mean = mu * mu / 2
        start = math.floor((mean - _REACH * mu) / grid)
        if 2 * _REACH * mu / grid > 4 * losses:
            raise OutOfReach
        at = np.arange(start, math.ceil((mean + _REACH * mu) / grid) + 1)
        below = ndtr(((at[:-1] + 0.5) * grid - mean) / mu)
        mass = np.diff(np.concatenate([[0.0], below, [1.0]]))
        mean_error += mean - grid * float(np.dot(mass, at))
        transform *= rfft(np.bincount(at % losses, weights=mass, minlength=losses))
    chances = irfft(transform, losses)
    # Each place stands for all losses that differ by whole turns; the one within the range is meant.
    start = math.ceil((lowest - mean_error) / grid)
    values = (start + np.arange(losses)) * grid + mean_error
    chances = np.roll(chances, -(start % losses))
    width = grid + 2 * error
    slack = min(width * math.sqrt(count * math.log(2 / left_out) / 2), width * count)
    lost = 6 * left_out + rounding
    low = _read(values, chances, delta + lost, -2 * slack) - slack
    return max(0.0, low), max(0.0, _read(values, chances, delta - lost, -2 * slack) + slack)


def _range(
    mu: float, sampled: tuple[Sampled, ...], steps: list[_Step], left_out: float
) -> tuple[float, float]:
    """Where the total loss lies but for a probability of `left_out` on each side, by Chernoff's bound."""
    variance = mu * mu
    for s, step in zip(sampled, steps, strict=True):
        apart = step.loss - step.sign * step.mean()
        variance += s.steps * float(np.dot(step.mass, apart * apart))
    mean = mu * mu / 2 + math.fsum(s.sampled.steps * abs(s.mean()) for s in steps)
    # A loss that hardly varies gets a range all the same.
    spread = max(math.sqrt(variance), 1e-6 * mean)
    if not 0 < spread < math.inf:
        raise OutOfReach
    sizes = np.geomspace(1e-3, 1e2, 60) / spread
    ends = []
    for sign in (-1, 1):
        orders = sign * sizes
        total = orders * mu * mu / 2 + (orders * mu) ** 2 / 2
        for s, step in zip(sampled, steps, strict=True):
            total = total + s.steps * step.cumulants(orders)
        bounds = (total - math.log(left_out)) / orders
        ends.append(float(np.nanmin(bounds) if sign > 0 else np.nanmax(bounds)))
    margin = 0.02 * (ends[1] - ends[0])  # for what rounding adds
    if not (math.isfinite(margin) and margin > 0):
        raise OutOfReach
    return ends[0] - margin, ends[1] + margin


def _read(values: Array, chances: Array, delta: float, least: float) -> float:
    """The ε at which E (1 − e^{ε − loss})₊ is δ; negative ones down to `least`, which is told for all below."""

    # δ(ε) ≤ P(loss > ε), and δ(ε − 1) ≥ P(loss > ε)·(1 − 1/e): this is where to look.
    beyond = np.cumsum(chances[::-1])[::-1]
    top = min(int(np.count_nonzero(beyond > delta)) + 1, len(values) - 1)
    bottom = max(int(np.count_nonzero(beyond > delta / 0.63)) - 1, 0)
    low, high = max(float(values[bottom]) - 1.0, least), float(values[top])
    first = int(np.searchsorted(values, low))
    values, chances = values[first:], chances[first:]

    def excess(epsilon: float) -> float:
        start = int(np.searchsorted(values, epsilon))
        return float(np.dot(chances[start:], -np.expm1(epsilon - values[start:])))

    if excess(low) <= delta:
        return low
    precision = 0.01 * float(values[1] - values[0])
    while high - low > precision:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if excess(middle) > delta:
            low = middle
        else:
            high = middle
    return high
