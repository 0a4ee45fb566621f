"""How much a mixture asks of its records: a public rule of their number, the noise of the budget, the classes and the dimension.

The one number that matters is r = records ÷ noise multiplier of a single sum at the budget: the mean of n vectors of length 1 is
known to 1/r in each coordinate, whatever n and ε are by themselves. A class's mean is known to classes/r, a matrix of width d
shows what stands out of √(2d)/r (Wigner). So a step is taken where r says that it will see something, and what is not asked
leaves its share of the budget to the rest:

    r small                   class means around the pooled one, a covariance as smooth pictures have it, as long as records are
    from r ≈ 16 √(2 axes)     the pooled second moment, and with it a basis
    from r ≈ 700              a histogram of gray levels
    from r ÷ classes ≈ 80     a second moment of each class's own
    from r ÷ classes ≈ 200    clusters in each class, the more the larger r
    from r ÷ classes ≈ 3,000  a second moment of each cluster's own (ε ≈ 3 for ten classes of 6,000 records)

The numbers were chosen on public stand-ins (`benchmarks/capacity.py`). Everything here is public and known before a row is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sfumato.errors import BadInput

WIDEST = 324  # axes of the pooled second moment
_USUAL = 16_000.0  # r of 60,000 records at ε = 1, δ = 1e-5 under zero-out, where today's sizes were found
_MEANS_SEEN = (
    100.0  # r below which the spread of records would hide what little is known of class means
)
_EDGES_OVER = 16.0  # r ÷ √(2 axes) from which leading directions stand out of the noise
_CLASS_SEEN = 80.0  # r ÷ classes
_CLUSTERS_SEEN = 200.0
_SPREAD_SEEN = 3000.0
_TONE_SEEN = 100.0  # r of a histogram alone whose shares are known to a hundredth
_MOST_BY_CLASS = 250_000  # numbers in the classes' second moments
_MOST_NUMBERS = 50_000_000  # in covariances of all clusters


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Of the squared noise budget, against one another; of steps that are not taken, 0."""

    rough: float
    length: float  # each of three
    means: float
    pooled: float
    classes: float
    clusters: float  # all rounds
    own: float
    tone: float


@dataclass(frozen=True, kw_only=True)
class Capacity:
    band: int  # axes of the pooled second moment; 0: the space's prior stands for it
    basis: int  # directions that classes and clusters are described in
    by_class: int  # directions with a second moment of each class's own; 0: all have the pooled one
    clusters: int  # in each class
    coordinates: int  # that clusters are told apart by
    rounds: int  # of Lloyd's algorithm; 0: a class is one Gaussian
    own: int  # directions with a second moment of each cluster's own; 0: clusters of a class share one
    spread: float  # of samples around class means that hardly stand out of their noise, against that of records
    shares: Shares
    why: str  # in a sentence, of public numbers

    def checked(self, classes: int) -> Capacity:
        """Itself, unless the covariances of all clusters are too many numbers to hold."""
        if self.own and classes * self.clusters * self.basis**2 > _MOST_NUMBERS:
            raise BadInput(
                "mixture's cluster_directions are too much for so many classes and clusters; set it to 0."
            )
        return self


def usual_records(delta: float) -> int:
    """A guess where the number of records is private: δ is chosen below 1/n, and not far below it."""
    return max(1, round(min(0.3 / delta, 1e9)))


def capacity_of(
    dim: int, classes: int, records: int, noise_multiplier: float, own: int | None = None
) -> Capacity:
    """For vectors of `dim` numbers; `own` directions with a second moment of each cluster's own, None as many as pay."""
    axes = min(dim, WIDEST)
    r = records / noise_multiplier
    each = r / classes
    pooled = r >= _EDGES_OVER * math.sqrt(2 * axes)
    several = pooled and each >= _CLASS_SEEN
    growth = min(math.sqrt(r / _USUAL), 2.5)
    basis = min(axes, max(8, round(80 * math.sqrt(growth))))
    by_class = min(basis, max(4, math.isqrt(_MOST_BY_CLASS // classes)), round(40 * each / 150))
    clusters = min(round(0.2 * math.sqrt(each)), 60) if several and each >= _CLUSTERS_SEEN else 1
    rounds = 3 if clusters > 1 else 0
    if own is None:
        own = 50 if each >= _SPREAD_SEEN else 0
    own = min(own, basis) if rounds else 0
    # The fainter the records, the more of the budget their means need.
    means = min(0.8, 0.095 * max(1.0, _USUAL / r) ** 0.42)
    shares = Shares(
        rough=min(0.05, 0.1 * means),
        length=min(0.02, 0.005 * max(1.0, _USUAL / r) ** 0.42),
        means=means,
        pooled=0.4 if pooled else 0.0,
        classes=0.28 if several else 0.0,
        clusters=0.28 if rounds else 0.0,
        own=0.35 if own else 0.0,
        # A hundredth of the pixels more or less at a level can be told from noise, or no histogram is asked for.
        tone=max(0.0025, (_TONE_SEEN / r) ** 2) if r >= 7 * _TONE_SEEN else 0.0,
    )
    return Capacity(
        band=axes if pooled else 0,
        basis=basis,
        by_class=by_class if several else 0,
        clusters=clusters,
        coordinates=min(basis, max(4, round(16 * growth))),
        rounds=rounds,
        own=own,
        spread=min(1.0, r / _MEANS_SEEN),
        shares=shares,
        why=_told(records, noise_multiplier, r, each, pooled, several, clusters, own),
    )


def _told(
    records: int,
    noise: float,
    r: float,
    each: float,
    pooled: bool,
    several: bool,
    clusters: int,
    own: int,
) -> str:
    known = f"n ÷ noise: {records:,} ÷ {noise:.3g} = {r:.3g}, {each:.3g} a class"
    if not pooled:
        return (
            f"{known}: class means and a covariance of fixed shape, since more would drown in noise"
        )
    if not several:
        return f"{known}: class means and one covariance for all classes"
    text = f"{known}: a covariance for each class"
    if clusters > 1:
        text += f", {clusters} clusters in each"
    if own:
        text += f", and in {own} directions one for each cluster"
    return text
