"""First and second moments of records as noisy sums, and how to read them: shrinkage, noise edges, repairs.

Releasing: a *view* turns a batch into vectors and the segment each is filed under. `FiledVector` sums the vectors (and counts
them), `FiledSquare` their outer products; both divide by a radius first, so that a bound is 1 whatever the radius is and a plan
can be written before the radius is known. The radius itself must be public or released.

Reading: a released moment is truth plus Gaussian noise of known size, so the noise can be reckoned with. All of that is
post-processing of released numbers, free of charge.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sfumato.data import Batch
from sfumato.privacy import FeatureMap, OuterMap

# Row-wise: (n records) → vectors (n, dim) and the segment of each, or None for one segment.
View = Callable[[Batch], tuple[Tensor, Tensor | None]]


class _Viewed:
    """Computes a view once a batch, though the wall asks for vectors and segments apart."""

    def __init__(self, view: View | None) -> None:
        self._view = view
        self._seen: tuple[Batch, tuple[Tensor, Tensor | None]] | None = None

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        if self._view is None:
            raise ValueError("a map made for a plan has no view of records")
        if self._seen is None or self._seen[0] is not batch:
            self._seen = (batch, self._view(batch))
        return self._seen[1]


class FiledVector(FeatureMap):
    """[clip(v, radius) / radius, w] of a record's vector v, filed under its segment. With w = 0 there is no count.

    **Guarantee**: the first part is clipped to norm 1 here, so the row's norm is at most √(1 + w²), reached only where it
    should be; the count is never scaled down with a long vector. Row-wise if the view is.
    """

    def __init__(
        self,
        dim: int,
        *,
        segments: int = 1,
        count_weight: float = 0.0,
        radius: float = 1.0,
        view: View | None = None,
    ) -> None:
        self.dim = dim + (count_weight > 0)
        self.segments = segments
        self.count_weight = count_weight
        self.radius = radius
        self.bound = math.hypot(1.0, count_weight)
        self._vectors = _Viewed(view)

    def __call__(self, batch: Batch) -> Tensor:
        rows = clipped(self._vectors(batch)[0] / self.radius, 1.0)
        if self.count_weight > 0:
            count = torch.full((len(batch), 1), self.count_weight)
            rows = torch.cat([rows, count], dim=1)
        return rows

    def public_parts(self) -> tuple[Tensor, ...]:
        return (torch.tensor([self.radius]),)

    def segment_of(self, batch: Batch) -> Tensor | None:
        return self._vectors(batch)[1]


class FiledSquare(OuterMap):
    """clip(v, radius) ⊗ clip(v, radius) / radius² of a record's vector v, filed under its segment.

    **Guarantee**: factors of norm ≤ 1, products of norm ≤ 1. Symmetric, so replacing a record moves the sum by √2 at most.
    """

    symmetric = True
    left_bound = right_bound = 1.0

    def __init__(
        self, dim: int, *, segments: int = 1, radius: float = 1.0, view: View | None = None
    ) -> None:
        self.left = self.right = dim
        self.segments = segments
        self.radius = radius
        self._vectors = _Viewed(view)

    def factors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        rows = self._vectors(batch)[0] / self.radius
        return rows, rows

    def public_parts(self) -> tuple[Tensor, ...]:
        return (torch.tensor([self.radius]),)

    def segment_of(self, batch: Batch) -> Tensor | None:
        return self._vectors(batch)[1]


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
    total = torch.nn.functional.pad(values.cumsum(-1), (1, 0))
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


def positive(matrix: Tensor, scale: Tensor, floor: float) -> Tensor:
    """The matrix with eigenvalues, relative to diag(scale), not below `floor`; batches welcome."""
    root = scale.clamp(min=1e-12).sqrt()
    relative = matrix / (root[..., :, None] * root[..., None, :])
    values, vectors = torch.linalg.eigh(symmetric(relative))
    values = values.clamp(min=floor)
    repaired = (vectors * values[..., None, :]) @ vectors.mT
    return repaired * (root[..., :, None] * root[..., None, :])
