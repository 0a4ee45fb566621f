"""A mixture of Gaussians by class in a low-dimensional basis, with a residual around it: parameters and draws.

x = mean[y] + basis · (offset[y, k] + factor[y, k] · g) + residual ∘ h with normal g, h and cluster k ~ weight[y]. Knows
nothing of privacy: its parameters are whatever it is given.

Records live in [0, 1] and Gaussians do not. Clipping draws would lift the mean of a dark pixel and take variance from it, so
`RangeFit` moves and stretches each number beforehand: after clipping, mean and variance are those of the Gaussian again, or,
where no number in [0, 1] could have them, as near as one comes. Vectors that a codec decodes need none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.files import Record

# Of the largest variance, mean · (1 − mean), that a number in [0, 1] can have.
_ATTAINABLE = 0.9
_ROUNDS = 8


@dataclass(frozen=True)
class GaussianMixture(Record):
    means: Tensor  # (classes, dim)
    basis: Tensor  # (dim, width), orthonormal columns
    weights: Tensor  # (classes, clusters), rows sum to 1
    offsets: Tensor  # (classes, clusters, width)
    factors: Tensor  # (classes, clusters or 1, width, width)
    residual: Tensor  # (dim,) standard deviations

    def draw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """One vector a label, (n, dim)."""
        n, width = len(labels), self.basis.shape[1]
        clusters = torch.multinomial(
            self.weights[labels], 1, replacement=True, generator=generator
        ).squeeze(1)
        normal = torch.randn(n, width, generator=generator)
        apart = self.factors.shape[1] > 1
        groups = labels * self.weights.shape[1] + clusters if apart else labels
        latent = self.offsets[labels, clusters]  # (n, width)
        for group in groups.unique().tolist():
            chosen = (groups == group).nonzero().squeeze(1)
            latent[chosen] += normal[chosen] @ self.factors.flatten(0, 1)[group].T
        vectors = torch.addmm(self.means[labels], latent, self.basis.T)
        return vectors.addcmul_(
            torch.randn(n, len(self.residual), generator=generator), self.residual
        )


@dataclass(frozen=True)
class RangeFit(Record):
    """y ↦ centre + shift + scale · (y − centre) for each place, to be clipped to [0, 1] afterwards."""

    centre: Tensor  # (places,)
    shift: Tensor
    scale: Tensor

    @classmethod
    def none(cls, places: int) -> RangeFit:
        """Leaves every number as it is."""
        return cls(torch.zeros(places), torch.zeros(places), torch.ones(places))

    @classmethod
    def to(cls, centre: Tensor, draws: Tensor) -> RangeFit:
        """From the wanted means (places,) and draws before clipping (many, places)."""
        mean = centre.clamp(0.001, 0.999)
        around = draws - centre
        variance = torch.minimum(around.var(dim=0), _ATTAINABLE * mean * (1 - mean))
        shift, scale = torch.zeros_like(centre), torch.ones_like(centre)
        for _ in range(_ROUNDS):
            clipped = (scale * around + (centre + shift)).clamp_(0, 1)
            shift = (shift + mean - clipped.mean(dim=0)).clamp_(-1, 1)
            change = (variance / clipped.var(dim=0).clamp(min=1e-8)).sqrt().clamp_(0.7, 1.4)
            scale = (scale * change).clamp_(0.02, 3)
        return cls(centre, shift, scale)

    def __call__(self, raw: Tensor) -> Tensor:
        return (raw - self.centre).mul_(self.scale).add_(self.centre + self.shift)
