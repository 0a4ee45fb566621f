"""From guesses about many records in one training to a lower bound on ε.

Each of m records ("canaries") is in the data, or not, by a fair coin S_i of its own; the mechanism runs once; from what it
released, and from nothing else that depends on the coins, somebody guesses r of the coins, a number fixed in advance, and
says nothing about the others. V guesses are right. How many can be right if the mechanism is as private as it is said to be?

**At (ε, δ)** (Steinke, Nasr and Jagielski 2023, Theorem 5.2). *Proof, in short.* For δ = 0: given the answer and the coins
before it, a coin has odds within e^±ε of even, so a guess is right with probability at most q = e^ε ÷ (1 + e^ε), whatever
went before; hence V is at most a binomial W ~ Bin(r, q) in stochastic order. For δ > 0 a coin may besides be given away: the
numbers of coins that are, F, has a mean of at most 2 m δ (δ for either value, doubled since it is counted given the answer),
and V ≤ W + F. With g(i) = P[v − i ≤ W < v], P[V ≥ v] ≤ P[W ≥ v] + E[g(F)] ≤ P[W ≥ v] + 2 m δ · max_i g(i) ÷ i. That is
`p_value`. The largest ε that it refutes is a lower bound that assumes nothing.

**At the claim's curve** (Mahloujifar, Melis and Chaudhuri 2024). What the accountant is told is not one (ε, δ) but a
trade-off: every event that has probability x without a record has at most F(x) with it, and the reverse, F concave and
growing. *Proof.* Let p_j = P[V = j]. Choose one of the m records at random. That it was guessed, rightly, and v or more
guesses were right: Σ_{j ≥ v} (j ÷ m) p_j =: A(v). Turn its coin and keep the answer: then it was guessed wrongly and v − 1 or
more were right, which has probability Σ_{j ≥ v−1} ((r − j) ÷ m) p_j =: H(v − 1). Given all other coins the two are one event
under two neighbours, so A(v) ≤ F(H(v − 1)), for averages too, F being concave. Now suppose P[V ≥ c] ≥ τ and build up, from c
down to 0, the least mass P(v) = Σ_{j ≥ v} p_j r ÷ m that these inequalities allow: a = τ c ÷ m, h = τ (r − c) ÷ m, and for v
= c … 1: h' = max(h, F⁻¹(a)), a' = a + (h' − h) (v − 1) ÷ (r − v + 1). Let κ(v) = v ÷ r. The true A, P = A + H stay above it
in this sense: P ≥ a + h and A − a ≥ κ(v) (P − a − h). At c that holds as A ≥ κ(c) P there. From v to v − 1 both add mass with
the part κ(v − 1) < κ(v) in A, which keeps the second; and where h' = F⁻¹(a) ≤ F⁻¹(A) ≤ H', P' − a' − h' ≥ A' − a' ≥ κ(v − 1)
(P' − a' − h'), so the first is kept as well. At 0 all mass is there: P = r ÷ m. If a + h comes out larger, P[V ≥ c] < τ. That
is `refuted`.

The trade-off is the accountant's own: from ε at several δ, ε(δ), F(x) = min over δ of e^ε x + δ and 1 − e^−ε (1 − δ − x). A
minimum over fewer δ is larger, so it errs on the safe side. To turn a refutation into an ε, all noise of the claim is scaled:
the ε of the most noise with which the guesses would be too good is the lower bound (for laws of that family; as a refutation
it holds anyway).

Public: nothing here sees a record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri
from scipy.stats import binom

from sfumato.privacy.accounting import Plan, _gaussian_mu, epsilon_of
from sfumato.privacy.budget import Neighbours

Numbers = NDArray[np.float64]
# How many of the canaries are guessed: those about which the scores are surest. (Guesses about all of them never bound more.)
SHARES = (0.5, 0.25, 0.125)
_LARGEST = 40.0
_DELTAS = (1e-5, 0.01, 0.05, 0.1, 0.2, 0.35, 0.6)
# The noise of a claim is scaled up or down by at most this, in steps of this.
_MOST_SCALED, _FINE = 64.0, 1.03


@dataclass(frozen=True)
class Guesses:
    """How many of `canaries` coins were guessed, and how many of the guesses were right."""

    canaries: int
    guessed: int
    right: int


def guess(scores: Numbers, coins: NDArray[np.bool_]) -> tuple[Guesses, ...]:
    """For each of `SHARES`: "in" is guessed of the highest scores, "out" of the lowest, as many of either.

    The numbers are fixed and the scores know nothing of the coins, so each of them is a guesser of the theorem.
    """
    order = np.argsort(scores, kind="stable")
    found = []
    for share in SHARES:
        half = int(share * len(scores) / 2)
        right = int((~coins[order[:half]]).sum() + coins[order[len(order) - half :]].sum())
        found.append(Guesses(len(scores), 2 * half, right))
    return tuple(found)


# -- at (ε, δ) -----------------------------------------------------------------------------------------------------------


def p_value(seen: Guesses, epsilon: float, delta: float) -> float:
    """At most how probable it is that so many guesses are right if the mechanism is (ε, δ)-private."""
    m, r, v = seen.canaries, seen.guessed, seen.right
    q = float(expit(epsilon))
    tail = float(binom.sf(v - 1, r, q))
    gained = np.cumsum(binom.pmf(np.arange(v - 1, -1, -1), r, q))  # g(1), g(2), …
    steepest = float((gained / np.arange(1, v + 1)).max(initial=0.0))
    return min(1.0, tail + 2 * m * delta * steepest)


def epsilon_lower(seen: Guesses, delta: float, failure: float) -> float:
    """The largest ε that the guesses refute at δ, but for a probability of `failure`; 0 if there is none."""
    return _largest(lambda epsilon: p_value(seen, epsilon, delta) < failure, _LARGEST)


def _largest(refuted: Callable[[float], bool], most: float) -> float:
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, most
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


# -- at the claim's curve ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """F⁻¹: at least how probable an event is without a record, given how probable it is with it."""

    slopes: Numbers
    offsets: Numbers
    mu: float | None = None  # of a plain Gaussian, whose curve is known in closed form

    @classmethod
    def gaussian(cls, mu: float) -> Curve:
        return cls(np.empty(0), np.empty(0), mu)

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Curve:
        """From (ε, δ) that all hold at once, in both directions."""
        epsilon, delta = np.array(points, dtype=np.float64).T
        return cls(
            np.concatenate([np.exp(epsilon), np.exp(-epsilon)]),
            np.concatenate([delta, 1 - np.exp(-epsilon) * (1 - delta)]),
        )

    @classmethod
    def of(cls, plan: Plan, neighbours: Neighbours) -> Curve:
        """What the accountant says of the plan."""
        if all(c.rate == 1.0 for c in plan):
            return cls.gaussian(_gaussian_mu(plan, neighbours))
        return cls.through([(epsilon_of(plan, d, neighbours), d) for d in _DELTAS])

    def without(self, present: float) -> float:
        if self.mu is not None:
            return float(ndtr(ndtri(min(present, 1.0)) - self.mu))
        return max(0.0, float(((present - self.offsets) / self.slopes).max()))


def refuted(seen: Guesses, curve: Curve, failure: float) -> bool:
    """Whether so many right guesses have a probability below `failure` under the curve."""
    m, r, c = seen.canaries, seen.guessed, seen.right
    a, h, most = failure * c / m, failure * (r - c) / m, r / m
    for v in range(c, 0, -1):
        next_h = max(h, curve.without(a))
        if next_h > h:
            a, h = a + (next_h - h) * (v - 1) / (r - v + 1), next_h
        if a + h > most:
            return True
    return False


def claim_lower(
    seen: Sequence[Guesses], plan: Plan, delta: float, neighbours: Neighbours, failure: float
) -> float:
    """ε, at δ, of the most noise in place of the claim's with which one of the guesses would be too good; 0 if there is none."""

    def scaled(noise: float) -> Plan:
        return tuple(replace(c, noise_multiplier=c.noise_multiplier * noise) for c in plan)

    def too_good(noise: float) -> bool:
        curve = Curve.of(scaled(noise), neighbours)
        return any(refuted(one, curve, failure) for one in seen)

    # More noise is refuted sooner: find where that ends.
    low, high = 1.0, 1.0
    if too_good(1.0):
        while low > 1 / _MOST_SCALED and too_good(low / 2):
            low /= 2
        low, high = low / 2, low
    else:
        while high < _MOST_SCALED and not too_good(high * 2):
            high *= 2
        if high >= _MOST_SCALED:
            return 0.0
        low, high = high, high * 2
    while high / low > _FINE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if too_good(middle) else (middle, high)
    return epsilon_of(scaled(high), delta, neighbours)
