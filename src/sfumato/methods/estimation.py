"""The mixture's first private parts: where records lie, the means of classes, the second moment of all and of each class.

    0.  a rough mean and three lengths: where to clip, and how far                                  (four small releases)
    1.  class sums and counts, shrunk coefficient by coefficient towards the pooled mean             (a release)
    2.  the pooled second moment around the class means, taken out of its noise: a basis             (a release)
    3.  each class's second moment in that basis, shrunk towards the pooled one                      (a release)

What a step needs to know of the records it has from the releases before it. Private: the records, inside `data.sum` only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.data import Batch
from sfumato.methods.capacity import WIDEST, Capacity
from sfumato.methods.moments import (
    COUNT,
    above_edge,
    counted,
    lengths,
    positive,
    scaled,
    shrunk_moments,
    smoothed,
    symmetric,
    wiener,
)
from sfumato.privacy import Gate, Release
from sfumato.public.codec import Codec
from sfumato.public.products import row_product

CLASS_MOMENTS = "class second moments"
Encode = Callable[[Batch], Tensor]  # (n records) → (n, numbers), row-wise


def _known(batch: Batch) -> Tensor | None:
    """One segment for all; records whose label is none of the classes are left out everywhere."""
    return None if batch.labels is None else batch.labels.clamp(max=0)


def _radius(typical: float, largest: float) -> float:
    """A radius to clip to: a little more than a typical length, and never senseless when noise drowned it."""
    return min(max(1.05 * typical, 0.02 * largest), largest)


def _mean_of(release: Release, unit: float, size: float, guess: float) -> float:
    """The mean of one number a record, given in `unit`s; where noise drowns it, what one would guess without looking."""
    doubt = release.noise_std * unit / size
    weight = guess**2 / (guess**2 + 4 * doubt**2)  # the guess is good to half of itself
    return guess + weight * (float(release.value) * unit / size - guess)


# -- 0. where, and how far -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    centre: Tensor  # (dim,)
    radius: float


def locate(data: Gate, codec: Codec, encode: Encode) -> Place:
    release = data.sum(
        "rough mean",
        counted(lambda batch: (encode(batch), _known(batch)), codec.bound),
        given=(codec.bound,),
    )
    value, noise = release.value, release.noise_std
    # Where the number of records is private, their noisy count must do; the noise of it is then the least that is sure.
    count = float(data.public_size or max(float(value[0, -1]), noise) / COUNT)
    mean = value[:, :-1] * codec.bound / count
    centre = wiener(mean, torch.tensor([noise * codec.bound / count]), 8)[0].float()
    reach = 2 * codec.bound
    total = data.sum(
        "length",
        lengths(lambda batch: (encode(batch) - centre, _known(batch)), reach),
        given=(centre, reach),
    )
    typical = _mean_of(total, reach, count, 0.5 * codec.bound)
    return Place(centre, _radius(typical, codec.bound))


# -- 1. class means --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Classes:
    counts: Tensor  # (classes,), 0 where there are no records
    means: Tensor  # (classes, dim) float32
    within: Encode  # records around their class mean, (n, dim)

    @property
    def size(self) -> float:
        return float(self.counts.sum())

    @property
    def shares(self) -> Tensor:
        return self.counts / self.counts.sum()

    @property
    def present(self) -> Tensor:
        return self.counts > 0


def class_means(data: Gate, place: Place, encode: Encode, *, faint: bool) -> Classes:
    """`faint`: noise is louder than most coefficients, so that only many of them together tell how strong they are."""
    classes, radius = max(1, data.schema.n_classes), place.radius
    release = data.sum(
        "class means",
        counted(lambda batch: (encode(batch) - place.centre, batch.labels), radius),
        given=(place.centre, radius),
    )
    value, noise = release.value, release.noise_std
    seen, doubt = value[:, -1] / COUNT, noise / COUNT
    total = float(data.public_size or max(1.0, float(seen.sum())))
    # Classes are taken for equally frequent as far as noise explains that they seem not to be.
    even = total / classes
    differ = max(0.0, float((seen - even).square().mean()) - doubt**2)
    seen = even + (seen - even) * (differ / (differ + doubt**2))
    present = seen > min(2 * doubt, 0.5 * total / classes)
    if not bool(present.any()):
        present = torch.ones_like(present)
    # Counts below their own noise would blow a sum up to a mean.
    counts = torch.where(present, seen, 0.0).clamp(min=0.0)
    if float(counts.sum()) <= 0:
        counts = torch.full_like(seen, total / classes)
    present, size = counts > 0, float(counts.sum())
    sums = value[:, :-1] * radius  # (classes, dim)
    pooled = sums[present].sum(0) / size
    spread = noise * radius * math.sqrt(int(present.sum())) / size
    pooled = wiener(pooled[None], torch.tensor([spread]), 8)[0]
    means = pooled.repeat(classes, 1)
    own = sums[present] / counts[present, None] - pooled
    window = 24 if faint else max(1, 24 // int(present.sum()))
    means[present] += wiener(own, noise * radius / counts[present], window)
    means = (means + place.centre).float()

    def within(batch: Batch) -> Tensor:
        around = means[0] if batch.labels is None else means[batch.labels.clamp(min=0)]
        return encode(batch) - around

    return Classes(counts, means, within)


# -- 2. pooled second moment and basis ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pooled:
    spectrum: Tensor  # (basis,)
    basis: Tensor  # (dim, basis) float32, orthonormal columns
    residual: Tensor  # (dim,) standard deviations
    latent: Encode  # records around their class mean, in the basis, (n, basis)


def pooled_moment(
    data: Gate, codec: Codec, classes: Classes, radius: float, size: Capacity
) -> Pooled:
    band, reach = size.band or min(codec.dim, WIDEST), 4 * radius
    # Halfway to equal variances: high frequencies are heard over the noise without drowning the low ones.
    expected = codec.prior()
    prior = (expected[:band] / expected[0]) ** 0.25
    lift = (1 / prior).float()

    def lifted(batch: Batch) -> tuple[Tensor, Tensor | None]:
        return classes.within(batch)[:, :band] * lift, _known(batch)

    given = (classes.means, lift)
    total = data.sum("length within classes", lengths(lifted, reach), given=(*given, reach))
    radius = _radius(_mean_of(total, reach, classes.size, 1.5 * radius), reach)
    squares = lengths(lifted, 3 * radius, power=2)
    total = data.sum("squared length within classes", squares, given=(*given, radius))
    squared = max(_mean_of(total, 9 * radius**2, classes.size, radius**2), 0.1 * radius**2)
    if size.band:
        release = data.sum("pooled second moment", scaled(lifted, radius), given=(*given, radius))
        scale = radius**2 / classes.size
        seen = symmetric(release.value.view(band, band)) * scale
        # Off the diagonal, symmetrising has taken out half of the noise's variance.
        kept = above_edge(seen, release.noise_std * scale / math.sqrt(2))
        rest = smoothed(seen.diagonal() - kept.diagonal(), 24).clamp(min=0)
        # Clipping shortened the long records; their squared length was asked for apart.
        trace = float((kept.diagonal() + rest).sum())
        stretch = min(max(squared / max(trace, 1e-12), 1.0), 3.0)
        moment = (kept + rest.diag()) * (prior[:, None] * prior) * stretch
    else:
        # Variance falls as the prior says, and is as large as records are long.
        moment = (prior**4 * size.spread**2 * squared / (prior**2).sum()).diag()
    moment += torch.eye(band, dtype=moment.dtype) * max(1e-9, 1e-6 * float(moment.trace()) / band)
    values, vectors = torch.linalg.eigh(moment)
    spectrum = values.flip(0)[: size.basis].clamp(min=1e-9)
    leading = vectors.flip(1)[:, : size.basis]
    residual = (moment.diagonal() - (leading**2 * spectrum).sum(1)).clamp(min=0)
    # Above the band, the residual falls on as the prior does.
    tail = expected[band:] / expected[max(0, band - 32) : band].mean()
    residual = torch.cat([residual, residual[max(0, band - 32) :].mean() * tail]).sqrt()
    basis = torch.zeros(codec.dim, size.basis)
    basis[:band] = axes = leading.float()
    return Pooled(
        spectrum, basis, residual, lambda batch: row_product(classes.within(batch)[:, :band], axes)
    )


# -- 3. class second moments -------------------------------------------------------------------------------------------------


def class_moments(data: Gate, classes: Classes, pooled: Pooled, width: int) -> Tensor:
    """(classes, basis, basis); the first `width` directions have a second moment of each class's own."""
    moments = pooled.spectrum.diag().repeat(len(classes.counts), 1, 1)
    if not width:
        return moments
    root = pooled.spectrum[:width] ** 0.25
    lift = (1 / root).float()
    target = (root**2).diag()  # the pooled moment in these coordinates
    radius = math.sqrt(float(target.trace()))
    release = data.sum(
        CLASS_MOMENTS,
        scaled(lambda batch: (pooled.latent(batch)[:, :width] * lift, batch.labels), radius),
        given=(classes.means, pooled.basis, lift, radius),
    )
    present = classes.present.nonzero().squeeze(1)
    counts = classes.counts[present]
    value = release.value.view(-1, width, width)[present]
    seen = symmetric(value) * radius**2 / counts[:, None, None]
    trace = float((seen.diagonal(dim1=1, dim2=2).sum(1) * counts).sum() / counts.sum())
    # Clipping shortened these as well; on average their trace is the pooled one.
    seen = seen * min(max(radius**2 / max(trace, 1e-12), 1.0), 3.0)
    doubts = release.noise_std * radius**2 / counts
    own = shrunk_moments(seen, target, doubts) * (root[:, None] * root)
    spectrum = pooled.spectrum[:width].expand(len(present), -1)
    moments[present, :width, :width] = positive(own, spectrum, 0.02)
    return moments
