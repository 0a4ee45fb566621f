"""ε a second time: an interval around it, worked out from saved charges by code that calibrates nothing.

`privacy.accounting` prices plans by the two tails of a Gaussian and by dp-accounting's PLD. Here the charges are read anew:
plain Gaussians by integrating one tail, Poisson-sampled ones by `privacy.losses`, a convolution with proved bounds on both
sides. A stated ε below the interval is a false statement; one far above it is not what these charges cost.

Everything here is public; no row is ever seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from sfumato.privacy.accounting import Charge
from sfumato.privacy.budget import Neighbours
from sfumato.privacy.losses import Sampled, epsilon_bounds, gaussian_epsilon

# Two ways to add up doubles differ by less.
_ROUNDING = 1e-7
# How far above the interval a true statement may lie: grids that are coarse, and plans that no grid fits, are priced higher.
_ABOVE = 0.05


def second_epsilon(
    charges: Iterable[Charge], delta: float, neighbours: Neighbours
) -> tuple[float, float]:
    """[low, high] with low ≤ ε ≤ high, where ε at this δ is that of the worst pair of laws that the charges stand for.

    Within seconds, whatever the charges are; where no convolution fits into that, the interval is wide and still right.
    """
    square, sampled = 0.0, []
    for charge in charges:
        own = charge.noise_multiplier  # noise ÷ bound of one summand
        replaced = neighbours is Neighbours.REPLACE_ONE
        if charge.rate < 1:
            # Groups: one record moves a summand across its ball, twice the bound. Shards: it changes a drawn unit, always.
            reach = 2.0 if charge.summands == "groups" else 1.0
            sampled.append(
                Sampled(
                    rate=charge.rate,
                    shift=reach / own,
                    steps=charge.steps,
                    replaced=replaced or charge.summands == "shards",
                )
            )
            continue
        apart = 2.0 if charge.summands != "records" else charge.replace_ratio if replaced else 1.0
        square += charge.steps * (apart / own) * (apart / own)
    mu = math.sqrt(square)
    if not sampled:
        if mu == 0:
            return 0.0, 0.0
        return gaussian_epsilon(mu, delta * (1 + _ROUNDING)) * (1 - _ROUNDING), gaussian_epsilon(
            mu, delta * (1 - _ROUNDING)
        ) * (1 + _ROUNDING)
    return epsilon_bounds(mu, tuple(sampled), delta)


def agrees(stated: float, interval: tuple[float, float]) -> bool:
    """Whether `stated` is an ε that charges of this interval may have been given: not below it, and not absurdly above."""
    low, high = interval
    return low * (1 - _ROUNDING) <= stated <= high * (1 + _ABOVE) + 1e-6
