"""First and second moments of records as noisy sums, and how to read them: shrinkage, noise edges, repairs.

Releasing: a *view* turns a batch into vectors and the segment each is filed under. `counted` are the vectors with a count beside
them, `scaled` factors of their outer products, `lengths` their norms; each has its query beside it. All are divided by a radius
first, so that a bound is 1 whatever the radius is and a query can be written before the radius is known. The radius itself must
be public or released.

Reading: a released moment is truth plus Gaussian noise of known size, so the noise can be reckoned with. All of that is
post-processing of released numbers, free of charge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from sfumato.data import Batch
from sfumato.privacy import Query

# Row-wise: (n records) → vectors (n, dim) and the segment of each, or None for one segment.
View = Callable[[Batch], tuple[Tensor, Tensor | None]]


COUNT = 0.4  # of a count beside a vector of length 1


def counted_query(label: str, dim: int, share: float, *, segments: int = 1) -> Query:
    """Vectors in the unit ball, and a count beside them."""
    bound = math.hypot(1, COUNT)
    return Query(label=label, shape=(dim + 1,), bound=bound, segments=segments, share=share)


def counted(view: View, radius: float) -> View:
    """[clip(v, radius) ÷ radius, 0.4]: norms ≤ √1.16, and the count is never scaled down with a long vector."""

    def rows(batch: Batch) -> tuple[Tensor, Tensor | None]:
        vectors, segment = view(batch)
        return functional.pad(clipped(vectors / radius, 1.0), (0, 1), value=COUNT), segment

    return rows


def square_query(label: str, dim: int, share: float, *, segments: int = 1) -> Query:
    """Second moments of vectors in the unit ball."""
    return Query(label=label, shape=(dim, dim), symmetric=True, segments=segments, share=share)


def scaled(view: View, radius: float) -> View:
    """v ÷ radius: a factor of second moments, which the wall clips to norm 1."""

    def rows(batch: Batch) -> tuple[Tensor, Tensor | None]:
        vectors, segment = view(batch)
        return vectors / radius, segment

    return rows


def length_query(label: str, share: float) -> Query:
    return Query(label=label, shape=(1,), non_negative=True, share=share)


def lengths(view: View, radius: float, power: int = 1) -> View:
    """(‖v‖ ÷ radius)^power, one number a record, which the wall clips to 1."""

    def rows(batch: Batch) -> tuple[Tensor, Tensor | None]:
        vectors, segment = view(batch)
        return (torch.linalg.vector_norm(vectors, dim=1, keepdim=True) / radius) ** power, segment

    return rows


def clipped(rows: Tensor, radius: float) -> Tensor:
    """Rows scaled down to norm ≤ radius; a row with NaN stays NaN for the wall to drop."""
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows * (radius / norms.clamp(min=radius))


# -- reading noisy moments -----------------------------------------------------------------------------------------


def smoothed(values: Tensor, window: int) -> Tensor:
    """Moving averages along the last axis over `window` neighbours, fewer at the ends."""
    window = min(window, values.shape[-1])
    if window <= 1:
        return values
    total = functional.pad(values.cumsum(-1), (1, 0))
    index = torch.arange(values.shape[-1])
    low, high = (
        (index - window // 2).clamp(min=0),
        (index + (window + 1) // 2).clamp(max=values.shape[-1]),
    )
    return (total[..., high] - total[..., low]) / (high - low)


def wiener(noisy: Tensor, noise_std: Tensor, window: int) -> Tensor:
    """Each entry of `noisy` (groups, dim) times signal² ÷ (signal² + noise²), `noise_std` (groups,) or (groups, 1).

    The signal's variance is estimated from the entries themselves: squares minus the known noise, averaged over the groups
    (precise ones count more) and over `window` neighbouring coordinates.
    """
    variance = noise_std.reshape(-1, 1) ** 2  # (groups, 1)
    weight = 1 / variance
    energy = ((noisy**2 - variance) * weight).sum(0) / weight.sum(0)
    signal = smoothed(energy, window).clamp(min=0)
    return noisy * (signal / (signal + variance).clamp(min=1e-300))


def symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def shrunk_moments(
    seen: Tensor, target: Tensor, doubts: Tensor, chance: Tensor | None = None
) -> Tensor:
    """Symmetric matrices `seen` (groups, d, d) drawn entry by entry to `target`, by signal² ÷ (signal² + noise²).

    `doubts` (groups,) is the noise of a diagonal entry, of which others have 1/√2 after symmetrising; `chance` is a further
    variance of each entry, of few records for one.
    """
    width = seen.shape[-1]
    variance = doubts[:, None, None] ** 2 * (0.5 + 0.5 * torch.eye(width, dtype=seen.dtype))
    if chance is not None:
        variance = variance + chance
    departure = seen - target
    weight = 1 / doubts**2
    energy = ((departure**2 - variance) * weight[:, None, None]).sum(0) / weight.sum()
    signal = smoothed(smoothed(energy, 5).T, 5).T.clamp(min=0)
    return target + departure * (signal / (signal + variance))


def above_edge(matrix: Tensor, noise_std: float) -> Tensor:
    """A noisy positive semi-definite matrix with the noise taken out, as far as it stands out of the noise.

    The eigenvalues of symmetric noise (off-diagonal `noise_std`) fill [−e, e] with e = 2·noise_std·√d (Wigner). A component λ of
    the truth above e/2 shows as λ + e²/4λ, with an eigenvector turned away from its own; √(λ̂² − e²) is the best factor of the
    seen direction in squared error (Gavish and Donoho 2017, for additive noise). What lies under the edge is left out.
    """
    values, vectors = torch.linalg.eigh(matrix)
    edge = 2 * noise_std * math.sqrt(len(matrix))
    kept = torch.where(values > edge, (values**2 - edge**2).clamp(min=0).sqrt(), 0.0)
    return (vectors * kept) @ vectors.T


def leading(matrix: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """About the `count` largest eigenvalues and their vectors, by subspace iteration: a twentieth of the time of them all."""
    size = len(matrix)
    tried = min(size, count + 40)
    vectors = torch.randn(size, tried, generator=generator)
    for _ in range(6):
        vectors = torch.linalg.qr(matrix @ vectors)[0]
    values, within = torch.linalg.eigh(vectors.T @ matrix @ vectors)
    return values.flip(0)[:count], (vectors @ within.flip(1))[:, :count]


def positive(matrix: Tensor, scale: Tensor, floor: float) -> Tensor:
    """The matrix with eigenvalues, relative to diag(scale), not below `floor`; batches welcome."""
    root = scale.clamp(min=1e-12).sqrt()
    relative = matrix / (root[..., :, None] * root[..., None, :])
    values, vectors = torch.linalg.eigh(symmetric(relative))
    values = values.clamp(min=floor)
    repaired = (vectors * values[..., None, :]) @ vectors.mT
    return repaired * (root[..., :, None] * root[..., None, :])


# -- Gaussians of each class -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moments:
    """Released moments of vectors in the unit ball, by class: means and covariances of them."""

    sums: Tensor  # (classes, dim)
    seconds: Tensor  # (classes, dim), or (classes, dim, dim) with all products
    counts: Tensor  # (classes,)
    noise: tuple[float, float, float]  # in an entry of each

    @property
    def _sizes(self) -> Tensor:
        return self.counts.clamp(min=1.0)

    def means(self) -> Tensor:
        """(classes, dim), each shrunk towards the mean of all by its noise and kept in the unit ball."""
        means = self._shrunk(self.sums / self._sizes[:, None], self.noise[0])
        lengths = torch.linalg.vector_norm(means, dim=1, keepdim=True)
        return means / lengths.clamp(min=1.0)

    def roots(self, unit: bool, rank: int | None) -> Tensor:
        """Standard deviations (classes, dim), or a root of each covariance (classes, dim, dim), of `rank` directions."""
        return self._diagonal_roots(unit) if self.seconds.ndim == 2 else self._roots(unit, rank)

    def _diagonal_roots(self, unit: bool) -> Tensor:
        variances = self.seconds / self._sizes[:, None] - self.means().square()
        totals = self._totals(unit, variances.sum(dim=1))
        variances = self._shrunk(variances, self.noise[1])
        repaired = [onto_simplex(v, float(t)) for v, t in zip(variances, totals, strict=True)]
        return torch.stack(repaired).sqrt()

    def _roots(self, unit: bool, rank: int | None) -> Tensor:
        means = self.means()
        covariances = self.seconds / self._sizes[:, None, None]
        covariances = covariances - means[:, :, None] * means[:, None, :]
        totals = self._totals(unit, covariances.diagonal(dim1=1, dim2=2).sum(dim=1))
        flat = self._shrunk(covariances.flatten(1), self.noise[1])
        roots = []
        for covariance, total in zip(flat.view_as(covariances), totals, strict=True):
            values, vectors = torch.linalg.eigh(covariance)
            values = onto_simplex(values, float(total))
            if rank is not None and rank < len(values):
                rest = values[:-rank]
                values = torch.cat([rest.mean().expand(len(rest)), values[-rank:]])
            roots.append(vectors * values.sqrt())
        return torch.stack(roots)

    def _totals(self, unit: bool, traces: Tensor) -> Tensor:
        """The variance over all directions by class: E‖v‖² − ‖μ‖², with ‖v‖ = 1 known of a unit codec."""
        most = 1 - self.means().square().sum(dim=1)
        return most if unit else traces.clamp(min=0.0).minimum(most)

    def _shrunk(self, rows: Tensor, noise: float) -> Tensor:
        return shrunk(rows, self._sizes / self._sizes.sum(), noise / self._sizes)


def shrunk(rows: Tensor, weights: Tensor, noise_std: Tensor) -> Tensor:
    """Rows (classes, dim) drawn towards their weighted mean, as far as its noise explains the distance (James–Stein)."""
    centre = (weights[:, None] * rows).sum(dim=0)
    away = rows - centre
    explained = rows.shape[1] * noise_std.square() / away.square().sum(dim=1).clamp(min=1e-300)
    return centre + (1 - explained).clamp(min=0.0)[:, None] * away


def onto_simplex(values: Tensor, total: float) -> Tensor:
    """The nearest vector without negative entries whose sum is `total`.

    For eigenvalues this is the likeliest positive semi-definite matrix of that trace under Gaussian noise of equal size
    (Smolin, Gambetta and Smith 2012); cutting negative ones off alone would leave their noise in the sum.
    """
    total = max(0.0, total)
    ordered = values.sort(descending=True).values
    excess = (ordered.cumsum(0) - total) / torch.arange(1, len(values) + 1, dtype=values.dtype)
    # The largest number of entries that stay positive after all of them are lowered alike.
    count = int((ordered - excess > 0).sum())
    return (values - excess[max(0, count - 1)]).clamp(min=0.0)
