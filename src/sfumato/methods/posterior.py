"""What is known of a noisy picture before any network looks at it: its posterior mean under a prior, in closed form.

A mixture's record v = mean[y] + basis · z + residual ∘ h, z of cluster k normal around offset[y, k] with covariance C = F Fᵀ,
is seen as x = v + σ · noise. With R = diag(residual² + σ²), G = basisᵀ R⁻¹ basis and S = (C⁻¹ + G)⁻¹ = F (1 + Fᵀ G F)⁻¹ Fᵀ:

    u = basisᵀ R⁻¹ (x − mean) − G offset                        what is seen of z around its offset
    ln p(k | x) = ln weight + ½ uᵀ S u + offsetᵀ u + ½ offsetᵀ G offset − ½ ln |1 + Fᵀ G F| + what no cluster changes
    E[v | x] = x − σ² R⁻¹ (x − mean − basis · Σ p(k | x) (offset + S u))

so that the work is in the basis, a hundred numbers, whatever the size of the picture. Nothing here is private but what is seen,
and of that every row is computed by itself.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from sfumato.data import Schema
from sfumato.generators.mixture import GaussianMixture
from sfumato.public.linear import CosineCodec

SPREAD = 0.5  # of pixels in [−1, 1] around gray, where nothing is known of them
_MOST_NUMBERS = 100_000_000  # in the matrices of all noise levels
_MOST_LEVELS = 16


def spaced(high: float, low: float, count: int) -> list[float]:
    """`count` noise levels from `high` down to `low`, evenly on a logarithmic scale."""
    return torch.logspace(math.log10(high), math.log10(low), count, dtype=torch.float64).tolist()


class Prior(Protocol):
    """Pictures as they are known; pixels lie in [−1, 1], and noise levels are deviations in that scale."""

    levels: Tensor  # (levels,): those that were prepared

    def mean(self, noisy: Tensor, labels: Tensor, which: Tensor) -> Tensor:
        """(n, C, H, W) with noise of level `which` (n,) → posterior means; every row by itself, to its last digit."""

    def mean_at(self, noisy: Tensor, labels: Tensor, level: int) -> Tensor:
        """The same where all have one level, and rows may be computed together."""


class Gray:
    """Independent pixels around mid-gray: the preconditioning of a denoiser that starts from nothing (EDM)."""

    def __init__(self, levels: list[float]) -> None:
        self.levels = torch.tensor(levels)
        self._kept = SPREAD**2 / (SPREAD**2 + self.levels**2)

    def mean(self, noisy: Tensor, labels: Tensor, which: Tensor) -> Tensor:
        return noisy * self._kept[which][:, None, None, None]

    def mean_at(self, noisy: Tensor, labels: Tensor, level: int) -> Tensor:
        return noisy * self._kept[level]


class Known:
    """Pictures whose cosines a mixture of Gaussians describes."""

    def __init__(self, mixture: GaussianMixture, schema: Schema, levels: list[float]) -> None:
        self._codec = CosineCodec(schema)
        self.levels = torch.tensor(levels)
        # In the codec's scale, where pixels lie in [0, 1].
        self._at = [LevelPosterior(mixture, level / 2) for level in levels]

    @staticmethod
    def most_levels(mixture: GaussianMixture) -> int:
        """How many can be prepared in memory that a machine has."""
        return max(2, min(_MOST_LEVELS, _MOST_NUMBERS // max(1, mixture.factors.numel())))

    def mean(self, noisy: Tensor, labels: Tensor, which: Tensor) -> Tensor:
        vectors = self._codec.waves(noisy / 2 + 0.5)
        found = torch.empty_like(vectors)
        for row, (level, label) in enumerate(zip(which.tolist(), labels.tolist(), strict=True)):
            found[row] = self._at[level].of_class(vectors[row : row + 1], label)[0]
        return self._back(found, noisy)

    def mean_at(self, noisy: Tensor, labels: Tensor, level: int) -> Tensor:
        vectors = self._codec.waves(noisy / 2 + 0.5)
        found = torch.empty_like(vectors)
        for label in labels.unique().tolist():
            rows = (labels == label).nonzero()[:, 0]
            found[rows] = self._at[level].of_class(vectors[rows], label)
        return self._back(found, noisy)

    def _back(self, vectors: Tensor, like: Tensor) -> Tensor:
        return 2 * self._codec.raw(vectors).view_as(like) - 1


class LevelPosterior:
    """A mixture seen through noise of one level: all that does not depend on the record is computed once."""

    def __init__(self, mixture: GaussianMixture, level: float) -> None:
        self._mixture, self._variance = mixture, level**2
        self._precision = 1 / (mixture.residual.square() + level**2)  # (dim,)
        self._seen = mixture.basis * self._precision[:, None]  # (dim, width)
        inner = mixture.basis.T @ self._seen  # G
        factors, offsets = mixture.factors, mixture.offsets
        root = torch.linalg.cholesky(factors.mT @ inner @ factors + torch.eye(len(inner)))
        half = torch.linalg.solve_triangular(root, factors.mT, upper=False)
        self._shrunk = half.mT @ half  # S, (classes, clusters or 1, width, width)
        self._pulled = offsets @ inner  # G offset, (classes, clusters, width)
        self._shift = offsets - (self._shrunk @ self._pulled[..., None])[..., 0]
        volume = root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        self._constant = mixture.weights.log() - volume - 0.5 * (offsets * self._pulled).sum(-1)

    def of_class(self, vectors: Tensor, label: int) -> Tensor:
        """(n, dim), all of one class → their posterior means."""
        mixture = self._mixture
        around = vectors - mixture.means[label]
        seen = around @ self._seen  # (n, width)
        offsets, shrunk = mixture.offsets[label], self._shrunk[label]
        solved = (seen @ shrunk.flatten(0, 1).T).view(len(seen), -1, seen.shape[1])
        centre = solved + self._shift[label]  # offset + S u, (n, clusters, width)
        quadratic = ((seen[:, None] - self._pulled[label]) * (centre - offsets)).sum(2)
        chance = (self._constant[label] + seen @ offsets.T + 0.5 * quadratic).softmax(1)
        expected = (chance[:, None] @ centre)[:, 0]
        left = (around - expected @ mixture.basis.T) * self._precision
        return vectors - self._variance * left
