"""The mixture's last private part: clusters in each class, and where noise is low a covariance of each cluster's own.

    1.  start from k-means on draws of each class's Gaussian                                   (free)
    2.  Lloyd's algorithm: sums and counts around the nearest centre, by class and cluster      (a release a round)
    3.  covariances within clusters: what the class has left, the same for all of them          (free)
    4.  second moments around each cluster's mean, shrunk towards that                          (a release, if asked for)

Private: the records, inside `data.sum` only. Class means, basis and class moments were released before.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sfumato.data import Batch
from sfumato.generators.mixture import GaussianMixture
from sfumato.methods.capacity import Capacity
from sfumato.methods.estimation import Classes, Pooled
from sfumato.methods.moments import (
    COUNT,
    View,
    clipped,
    counted,
    positive,
    scaled,
    shrunk_moments,
    symmetric,
)
from sfumato.privacy import Gate, decides

_COUNTABLE = 5.0  # a cluster's records ÷ the noise of their count
OWN_MOMENTS = "cluster second moments"
# Records and their vectors in the basis → class, nearest centre, and the segment of the two, −1 where the label is no class.
Nearest = Callable[[Batch, Tensor], tuple[Tensor, Tensor, Tensor]]


def round_label(number: int) -> str:
    return f"clusters, round {number + 1}"


def clustered(
    data: Gate,
    classes: Classes,
    pooled: Pooled,
    moments: Tensor,
    size: Capacity,
    random: torch.Generator,
) -> GaussianMixture:
    """The mixture, from class moments (classes, basis, basis) that are known."""
    if not size.rounds:
        return _one_each(classes, pooled, moments)
    width = size.coordinates
    # Only as many clusters as can be counted: the others lie where no record comes.
    doubt = data.noise_std(round_label(0)) / COUNT
    usable = (classes.counts / (_COUNTABLE * doubt)).clamp(min=1, max=size.clusters)
    used = torch.arange(size.clusters) < usable.floor()[:, None]  # (classes, clusters)
    root = pooled.spectrum[:width] ** 0.25
    lift = (1 / root).float()
    inner = moments[:, :width, :width] / (root[:, None] * root)
    factor = torch.linalg.cholesky(inner).float()
    centres, radius = _start(factor, used, classes.present, random)
    counts = used.to(torch.float64)
    for number in range(size.rounds):
        nearest = nearest_centre(centres, used, lift)
        around = around_nearest(pooled.latent, nearest, centres, lift)
        given = (classes.means, pooled.basis, centres, lift, radius)
        release = data.sum(round_label(number), counted(around, radius), given=given)
        value = release.value.view(len(used), size.clusters, width + 1)
        seen = value[..., -1] / COUNT
        moves = value[..., :-1] * radius / seen.clamp(min=1.0)[..., None]
        error = release.noise_std * radius / seen.clamp(min=1.0)
        # James and Stein: a move no longer than its noise is not made.
        trust = (1 - width * error**2 / (moves**2).sum(-1).clamp(min=1e-30)).clamp(min=0)
        trust = torch.where(used & (seen > 2 * doubt), trust, 0.0)
        centres = centres + clipped(moves * trust[..., None], radius).float()
        counts = torch.where(used & (seen > doubt), seen, 0.0)
    weights = torch.where(counts.sum(1, keepdim=True) > 0, counts, used.to(counts.dtype))
    weights = weights / weights.sum(1, keepdim=True)
    offsets, factors = _within(moments, pooled.spectrum, centres.double() * root, weights)
    if size.own:
        factors = _own_factors(data, classes, pooled, nearest, offsets, factors, counts, size.own)
    return GaussianMixture(
        means=classes.means.contiguous(),
        basis=pooled.basis,
        weights=weights.float(),
        offsets=offsets.float().contiguous(),
        factors=factors.float().contiguous(),
        residual=pooled.residual.float(),
    )


def _one_each(classes: Classes, pooled: Pooled, moments: Tensor) -> GaussianMixture:
    """A class is one Gaussian."""
    each = len(classes.counts)
    return GaussianMixture(
        means=classes.means.contiguous(),
        basis=pooled.basis,
        weights=torch.ones(each, 1),
        offsets=torch.zeros(each, 1, moments.shape[-1]),
        factors=torch.linalg.cholesky(moments).float()[:, None].contiguous(),
        residual=pooled.residual.float(),
    )


# -- Lloyd's rounds ---------------------------------------------------------------------------------------------------


def _start(
    factor: Tensor, used: Tensor, present: Tensor, random: torch.Generator
) -> tuple[Tensor, float]:
    """Starting centres by plain k-means on draws of each class's Gaussian, and the usual distance to the nearest."""
    clusters = used.shape[1]
    draws = torch.randn(1500, factor.shape[-1], generator=random) @ factor.mT
    centres = draws[:, :clusters].clone()  # of draws (classes, 1500, width)
    distance = torch.zeros(())
    for _ in range(6):
        apart = torch.where(used[:, None], torch.cdist(draws, centres), math.inf)
        distance, nearest = apart.min(dim=2)
        member = torch.nn.functional.one_hot(nearest, clusters).to(draws.dtype)
        held = member.sum(1)
        moved = (member.mT @ draws) / held.clamp(min=1)[..., None]
        centres = torch.where(held[..., None] > 0, moved, centres)
    return centres, max(1e-6, float(distance[present].mean()))


def nearest_centre(centres: Tensor, used: Tensor, lift: Tensor) -> Nearest:
    """Of the centres (classes, clusters, width) that are used, the nearest of a record's class."""
    clusters, width = centres.shape[1:]

    def nearest(batch: Batch, latent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        labels = batch.labels
        if labels is None:
            labels = torch.zeros(len(batch), dtype=torch.int64)
        known = labels.clamp(min=0)
        # One distance after another: the products that torch takes for many centres have other last bits elsewhere.
        distance = decides(
            torch.cdist(
                (latent[:, :width] * lift)[:, None],
                centres[known],
                compute_mode="donot_use_mm_for_euclid_dist",
            )[:, 0]
        )
        place = torch.where(used[known], distance, math.inf).argmin(dim=1)
        return known, place, torch.where(labels >= 0, known * clusters + place, -1)

    return nearest


def around_nearest(
    latent: Callable[[Batch], Tensor], nearest: Nearest, centres: Tensor, lift: Tensor
) -> View:
    def around(batch: Batch) -> tuple[Tensor, Tensor]:
        rows = latent(batch)
        label, place, segment = nearest(batch, rows)
        return rows[:, : centres.shape[-1]] * lift - centres[label, place], segment

    return around


# -- covariances ------------------------------------------------------------------------------------------------------


def _within(
    moments: Tensor, spectrum: Tensor, centres: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Means of the clusters (classes, clusters, basis), and factors (classes, 1, basis, basis) of what the class has left."""
    few = centres.shape[-1]
    centres = centres - (weights[..., None] * centres).sum(1, keepdim=True)
    # The other coordinates of a cluster's mean: their regression on the first few.
    offsets = torch.linalg.solve(moments[:, :few, :few], centres.mT).mT @ moments[:, :few, :]
    between = (offsets * weights[..., None]).mT @ offsets
    within = positive(moments - between, spectrum.expand(len(moments), -1), 0.02)
    return offsets, torch.linalg.cholesky(within)[:, None]


def _own_factors(
    data: Gate,
    classes: Classes,
    pooled: Pooled,
    nearest: Nearest,
    offsets: Tensor,
    factors: Tensor,
    counts: Tensor,
    own: int,
) -> Tensor:
    """(classes, clusters, basis, basis): the leading coordinates as released by cluster, the rest as the class has it."""
    clusters = offsets.shape[1]
    root = pooled.spectrum[:own] ** 0.25
    lift, centres = (1 / root).float(), offsets[..., :own].float()
    first = factors[:, 0, :own, :own]  # (classes, own, own)
    target = first @ first.mT / (root[:, None] * root)
    typical = float(classes.shares @ target.diagonal(dim1=1, dim2=2).sum(1))
    radius = math.sqrt(typical)

    def around(batch: Batch) -> tuple[Tensor, Tensor]:
        latent = pooled.latent(batch)
        label, place, segment = nearest(batch, latent)
        return (latent[:, :own] - centres[label, place]) * lift, segment

    given = (classes.means, pooled.basis, centres, lift, radius)
    release = data.sum(OWN_MOMENTS, scaled(around, radius), given=given)
    # The centres that records were told by have not moved since they were counted.
    held, sizes = counts.flatten() > 0, counts.flatten().clamp(min=1.0)
    seen = symmetric(release.value.view(-1, own, own)) * radius**2
    trace = float((seen.diagonal(dim1=1, dim2=2).sum(1) * held).sum())
    # Clipping shortened the long records; on average the trace is the classes' own.
    seen *= min(max(typical * float(counts.sum()) / max(trace, 1e-12), 1.0), 3.0)
    wanted = target.repeat_interleave(clusters, dim=0)
    diagonal = wanted.diagonal(dim1=1, dim2=2)
    chance = wanted**2 + diagonal[:, :, None] * diagonal[:, None, :]
    each, doubts = sizes[:, None, None], release.noise_std * radius**2 / sizes
    moments = shrunk_moments(seen / each, wanted, doubts, chance / each)
    moments = torch.where(held[:, None, None], moments, wanted)
    spectrum = pooled.spectrum[:own].expand(len(moments), -1)
    moments = positive(moments * (root[:, None] * root), spectrum, 0.02)
    lead = torch.linalg.cholesky(moments).unflatten(0, counts.shape)
    whole = factors.repeat(1, clusters, 1, 1)
    # Given the leading coordinates, the others are as in the class: L₂₁ L₁₁⁻¹ is their regression, L₂₂ what remains.
    regression = torch.linalg.solve_triangular(
        first, factors[:, 0, own:, :own], upper=False, left=False
    )
    whole[..., :own, :own] = lead
    whole[..., own:, :own] = regression[:, None] @ lead
    return whole
