"""The mixture's last private part: clusters in each class, and where noise is low a covariance of each cluster's own.

    1.  start from k-means on draws of each class's Gaussian                                   (free)
    2.  Lloyd's algorithm: sums and counts around the nearest centre, by class and cluster      (a release a round)
    3.  covariances within clusters: what the class has left, the same for all of them          (free)
    4.  second moments around each cluster's mean, shrunk towards that                          (a release, if asked for)

Private: the records, inside `Estimation.sum` only. Class means, basis and class moments were released before.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sfumato.data import Batch
from sfumato.generators.mixture import GaussianMixture
from sfumato.generators.moments import (
    FiledSquare,
    FiledVector,
    clipped,
    positive,
    shrunk_moments,
    symmetric,
)

if TYPE_CHECKING:
    from sfumato.methods.estimation import Estimation

COUNT = 0.4  # of a count beside a vector of length 1
_COUNTABLE = 5.0  # a cluster's records ÷ the noise of their count
OWN_MOMENTS = "cluster second moments"


def round_label(number: int) -> str:
    return f"clusters, round {number + 1}"


class Clusters:
    """Clusters of a mixture whose class moments are known; `lloyd` and `own` are shares of the squared noise budget."""

    def __init__(self, known: Estimation, lloyd: float, own: float) -> None:
        self.known, self.own = known, own
        capacity = known.capacity
        self.clusters, self.width = capacity.clusters, capacity.coordinates
        self.share = lloyd / capacity.rounds
        # Only as many clusters as can be counted: the others lie where no record comes.
        self.doubt = known.noise(self.share) * math.hypot(1, COUNT) / COUNT
        usable = (known.counts / (_COUNTABLE * self.doubt)).clamp(min=1, max=self.clusters)
        self.used = torch.arange(self.clusters) < usable.floor()[:, None]  # (classes, clusters)

    def mixture(self) -> GaussianMixture:
        known = self.known
        centres, weights = self._lloyd()
        offsets, factors = self._within(centres, weights)
        if known.capacity.own:
            factors = self._own_factors(offsets, factors)
        return GaussianMixture(
            means=known.means.contiguous(),
            basis=known.basis.float().contiguous(),
            weights=weights.float(),
            offsets=offsets.float().contiguous(),
            factors=factors.float().contiguous(),
            residual=known.residual.float(),
        )

    # -- Lloyd's rounds ---------------------------------------------------------------------------------------------

    def _lloyd(self) -> tuple[Tensor, Tensor]:
        """Centres (classes, clusters, coordinates) and weights (classes, clusters)."""
        known, width, used = self.known, self.width, self.used
        root = known.spectrum[:width] ** 0.25
        self.lift = (1 / root).float()
        inner = known.moments[:, :width, :width] / (root[:, None] * root)
        centres, radius = self._start(torch.linalg.cholesky(inner).float())
        weights = used.to(torch.float64)
        for number in range(known.capacity.rounds):
            self.assigning = centres
            value, noise = known.sum(
                round_label(number),
                self.share,
                FiledVector(
                    width,
                    segments=known.classes * self.clusters,
                    count_weight=COUNT,
                    radius=radius,
                    view=self._around_nearest,
                ),
            )
            value = value.view(known.classes, self.clusters, width + 1)
            counts = value[..., -1] / COUNT
            steps = value[..., :-1] * radius / counts.clamp(min=1.0)[..., None]
            error = noise * radius / counts.clamp(min=1.0)
            # James and Stein: a move no longer than its noise is not made.
            trust = (1 - width * error**2 / (steps**2).sum(-1).clamp(min=1e-30)).clamp(min=0)
            trust = torch.where(used & (counts > 2 * self.doubt), trust, 0.0)
            centres = centres + (clipped(steps * trust[..., None], radius)).float()
            weights = torch.where(used & (counts > self.doubt), counts, 0.0)
        self.counts = weights
        weights = torch.where(weights.sum(1, keepdim=True) > 0, weights, used.to(weights.dtype))
        return centres.double() * root, weights / weights.sum(1, keepdim=True)

    def _start(self, factor: Tensor) -> tuple[Tensor, float]:
        """Starting centres by plain k-means on draws of each class's Gaussian, and the usual distance to the nearest."""
        clusters, used = self.clusters, self.used
        draws = torch.randn(1500, factor.shape[-1], generator=self.known.random) @ factor.mT
        centres = draws[:, :clusters].clone()  # of draws (classes, 1500, width)
        distance = torch.zeros(())
        for _ in range(6):
            apart = torch.where(used[:, None], torch.cdist(draws, centres), math.inf)
            distance, nearest = apart.min(dim=2)
            member = torch.nn.functional.one_hot(nearest, clusters).to(draws.dtype)
            held = member.sum(1)
            moved = (member.mT @ draws) / held.clamp(min=1)[..., None]
            centres = torch.where(held[..., None] > 0, moved, centres)
        return centres, max(1e-6, float(distance[self.known.present].mean()))

    def _nearest(self, batch: Batch, latent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Class and nearest centre of each record, and the segment of the two; −1 where the label is no class."""
        labels = batch.labels if self.known.labelled else None
        if labels is None:
            labels = torch.zeros(len(batch), dtype=torch.int64)
        known = labels.clamp(min=0)
        rows = latent[:, : self.width] * self.lift
        distance = torch.cdist(rows[:, None], self.assigning[known])[:, 0]
        nearest = torch.where(self.used[known], distance, math.inf).argmin(dim=1)
        return known, nearest, torch.where(labels >= 0, known * self.clusters + nearest, -1)

    def _around_nearest(self, batch: Batch) -> tuple[Tensor, Tensor]:
        latent = self.known.latent(batch)
        label, nearest, segment = self._nearest(batch, latent)
        return latent[:, : self.width] * self.lift - self.assigning[label, nearest], segment

    # -- covariances ------------------------------------------------------------------------------------------------

    def _within(self, centres: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Means of the clusters (classes, clusters, basis), and factors (classes, 1, basis, basis) of what the class has left."""
        moments, few = self.known.moments, self.width
        centres = centres - (weights[..., None] * centres).sum(1, keepdim=True)
        # The other coordinates of a cluster's mean: their regression on the first few.
        inner = moments[:, :few, :few]
        offsets = torch.linalg.solve(inner, centres.mT).mT @ moments[:, :few, :]
        between = (offsets * weights[..., None]).mT @ offsets
        spectrum = self.known.spectrum.expand(self.known.classes, -1)
        within = positive(moments - between, spectrum, 0.02)
        return offsets, torch.linalg.cholesky(within)[:, None]

    def _own_factors(self, offsets: Tensor, factors: Tensor) -> Tensor:
        """(classes, clusters, basis, basis): the leading coordinates as released by cluster, the rest as the class has it."""
        known, own, clusters = self.known, self.known.capacity.own, self.clusters
        root = known.spectrum[:own] ** 0.25
        lift, around = (1 / root).float(), offsets[..., :own].float()
        first = factors[:, 0, :own, :own]  # (classes, own, own)
        target = first @ first.mT / (root[:, None] * root)
        typical = float(known.shares @ target.diagonal(dim1=1, dim2=2).sum(1))
        radius = math.sqrt(typical)

        def view(batch: Batch) -> tuple[Tensor, Tensor]:
            latent = known.latent(batch)
            label, nearest, segment = self._nearest(batch, latent)
            return (latent[:, :own] - around[label, nearest]) * lift, segment

        value, noise = known.sum(
            OWN_MOMENTS,
            self.own,
            FiledSquare(own, segments=known.classes * clusters, radius=radius, view=view),
        )
        # The centres that records were told by have not moved since they were counted.
        counts = self.counts.flatten().clamp(min=1.0)
        seen = symmetric(value.view(-1, own, own)) * radius**2
        trace = float((seen.diagonal(dim1=1, dim2=2).sum(1) * (self.counts.flatten() > 0)).sum())
        # Clipping shortened the long records; on average the trace is the classes' own.
        seen *= min(max(typical * float(self.counts.sum()) / max(trace, 1e-12), 1.0), 3.0)
        wanted = target.repeat_interleave(clusters, dim=0)
        diagonal = wanted.diagonal(dim1=1, dim2=2)
        chance = wanted**2 + diagonal[:, :, None] * diagonal[:, None, :]
        moments = shrunk_moments(
            seen / counts[:, None, None],
            wanted,
            noise * radius**2 / counts,
            chance / counts[:, None, None],
        )
        moments = torch.where((self.counts.flatten() > 0)[:, None, None], moments, wanted)
        spectrum = known.spectrum[:own].expand(len(moments), -1)
        moments = positive(moments * (root[:, None] * root), spectrum, 0.02)
        lead = torch.linalg.cholesky(moments).unflatten(0, (known.classes, clusters))
        whole = factors.repeat(1, clusters, 1, 1)
        # Given the leading coordinates, the others are as in the class: L₂₁ L₁₁⁻¹ is their regression, L₂₂ what remains.
        regression = torch.linalg.solve_triangular(
            first, factors[:, 0, own:, :own], upper=False, left=False
        )
        whole[..., :own, :own] = lead
        whole[..., own:, :own] = regression[:, None] @ lead
        return whole
