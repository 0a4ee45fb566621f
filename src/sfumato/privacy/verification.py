"""ε a second time: an interval around it, worked out from saved charges by code that calibrates nothing.

`privacy.accounting` prices plans by the two tails of a Gaussian and by dp-accounting's PLD. Here the charges are read anew:
plain Gaussians by integrating one tail, Poisson-sampled ones by `privacy.losses`, a convolution with proved bounds on both
sides. A stated ε below the interval is a false statement; one far above it is not what these charges cost.

Everything here is public; no row is ever seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from sfumato.privacy.accounting import LEAST_SAMPLED_NOISE, Charge
from sfumato.privacy.budget import Neighbours
from sfumato.privacy.losses import Sampled, epsilon_bounds, gaussian_epsilon

# Two ways to add up doubles differ by less.
_ROUNDING = 1e-7
# How far above the interval a true statement may lie: coarse grids, those of version 0.1.0 above all, err on the safe side.
_ABOVE, _ABOVE_ALL = 0.25, 1e-3


def second_epsilon(
    charges: Iterable[Charge], delta: float, neighbours: Neighbours
) -> tuple[float, float]:
    """[low, high] with low ≤ ε ≤ high, where ε at this δ is that of the worst pair of laws that the charges stand for.

    Within seconds, whatever the charges are; where no convolution fits into that, the interval is wide and still right.
    """
    charges = tuple(charges)
    low, high = _interval(charges, delta, neighbours)
    if any(c.rate < 1 and c.noise_multiplier < LEAST_SAMPLED_NOISE for c in charges):
        # What is stated for next to no noise is the price without sampling: more than need be, and no false statement.
        plain = [c if c.rate == 1 else replace(c, rate=1.0, replace_ratio=2.0) for c in charges]
        high = max(high, _interval(plain, delta, neighbours)[1])
    return low, high


def agrees(stated: float, interval: tuple[float, float]) -> bool:
    """Whether `stated` is an ε that charges of this interval may have been given: not below it, and not absurdly above."""
    low, high = interval
    return low * (1 - _ROUNDING) <= stated <= high * (1 + _ABOVE) + _ABOVE_ALL


def _interval(
    charges: Iterable[Charge], delta: float, neighbours: Neighbours
) -> tuple[float, float]:
    replaced = neighbours is Neighbours.REPLACE_ONE
    plain, steps = list[float](), dict[tuple[float, float, bool], int]()
    for charge in charges:
        if charge.rate == 1:
            ratio = (
                2.0 if charge.summands != "records" else charge.replace_ratio if replaced else 1.0
            )
            plain.append(math.sqrt(charge.steps) * ratio / charge.noise_multiplier)
            continue
        # Groups: one record moves a summand across its ball, twice the bound. Shards: it changes a unit that is drawn, always.
        shift = (2.0 if charge.summands == "groups" else 1.0) / charge.noise_multiplier
        alike = (charge.rate, shift, replaced or charge.summands == "shards")
        steps[alike] = steps.get(alike, 0) + charge.steps
    mu = math.hypot(*plain)
    if steps:
        sampled = (
            Sampled(rate=rate, shift=shift, replaced=other, steps=count)
            for (rate, shift, other), count in steps.items()
        )
        return epsilon_bounds(mu, tuple(sampled), delta)
    low = gaussian_epsilon(mu, delta * (1 + _ROUNDING)) * (1 - _ROUNDING)
    return low, gaussian_epsilon(mu, delta * (1 - _ROUNDING)) * (1 + _ROUNDING)
