"""The mixture's private part: which sums are released, in what order, and the parameters that are read off them.

Every step uses what the steps before it released: a centre and a radius to clip to, class means, a basis. The maps' bounds
are constants all the same, so `releases` can list them before a row is read. Private: the records, inside `noisy_sum` only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.data import Batch
from sfumato.generators.mixture import GaussianMixture
from sfumato.generators.moments import (
    FiledSquare,
    FiledVector,
    View,
    above_edge,
    positive,
    shrunk_moments,
    smoothed,
    symmetric,
    wiener,
)
from sfumato.methods.base import Workspace
from sfumato.methods.clusters import COUNT, OWN_MOMENTS, Clusters, round_label
from sfumato.privacy import PrivateData, RecordMap
from sfumato.public.products import row_product
from sfumato.public.spaces import Space

# Shares of the squared noise budget; they add up to 1, but for clusters' own moments, which stand beside them.
_ROUGH, _LENGTH, _MEANS, _POOLED, _CLASSES, _LLOYD = 0.01, 0.005, 0.095, 0.35, 0.25, 0.28
_OWN = 0.35
_NOISE_AT_ONE = 3.73  # the noise multiplier of ε = 1, δ = 1e-5 under zero-out


@dataclass(frozen=True)
class Capacity:
    """How much is asked of the records: a public rule of the schema and the noise multiplier."""

    band: int  # axes of the pooled second moment
    basis: int  # directions that classes and clusters are described in
    by_class: int  # directions with a second moment of each class's own
    clusters: int  # in each class
    coordinates: int  # that clusters are told apart by
    rounds: int
    own: int  # directions with a second moment of each cluster's own

    @classmethod
    def of(cls, dim: int, n_classes: int, noise_multiplier: float, own: int = 0) -> Capacity:
        """For vectors of `dim` numbers; `own` directions with a second moment of each cluster's own are asked for."""
        classes = max(1, n_classes)
        # Four times less noise is good for twice as many parameters of each kind; at 1 stand ε = 1, δ = 1e-5 under zero-out.
        growth = min(max(math.sqrt(_NOISE_AT_ONE / noise_multiplier), 0.5), 2.5)
        band = min(dim, 324)
        basis = min(band, round(80 * math.sqrt(growth)))
        return cls(
            band=band,
            basis=basis,
            by_class=min(basis, max(4, math.isqrt(250_000 // classes))),
            clusters=max(2, round(growth * min(24, max(4, 80 // classes)))),
            coordinates=min(basis, round(16 * growth)),
            rounds=3,
            own=min(own, basis),
        )


def releases(dim: int, n_classes: int, capacity: Capacity) -> list[tuple[str, RecordMap, float]]:
    """Label, map and share of every release, in order; the maps have bounds and sizes and no view of records."""
    classes = max(1, n_classes)
    maps: list[tuple[str, RecordMap, float]] = [
        ("rough mean", FiledVector(dim, count_weight=COUNT), _ROUGH),
        ("length", _length(), _LENGTH),
        ("class means", FiledVector(dim, segments=classes, count_weight=COUNT), _MEANS),
        ("length within classes", _length(), _LENGTH),
        ("squared length within classes", _length(), _LENGTH),
        ("pooled second moment", FiledSquare(capacity.band), _POOLED),
        (
            "class second moments",
            FiledSquare(capacity.by_class, segments=classes),
            _CLASSES,
        ),
    ]
    for number in range(capacity.rounds):
        clusters = FiledVector(
            capacity.coordinates, segments=classes * capacity.clusters, count_weight=COUNT
        )
        maps.append((round_label(number), clusters, _LLOYD / capacity.rounds))
    if capacity.own:
        own = FiledSquare(capacity.own, segments=classes * capacity.clusters)
        maps.append((OWN_MOMENTS, own, _OWN))
    return maps


def all_shares(capacity: Capacity) -> float:
    return 1.0 + (_OWN if capacity.own else 0.0)


def _length(view: View | None = None, radius: float = 1.0) -> FiledVector:
    phi = FiledVector(1, view=view, radius=radius)
    phi.non_negative = True
    return phi


class Estimation:
    """The steps one after the other; each keeps what the next ones need."""

    def __init__(
        self,
        data: PrivateData,
        space: Space,
        capacity: Capacity,
        noise: Callable[[float], float],
        workspace: Workspace,
        seed: int,
    ) -> None:
        self.data, self.space, self.workspace = data, space, workspace
        self.capacity, self.noise = capacity, noise
        self.classes = max(1, data.schema.n_classes)
        self.labelled = data.schema.labelled
        self.random = torch.Generator().manual_seed(seed)

    def mixture(self) -> GaussianMixture:
        self._locate()
        self._class_means()
        self._pooled_moment()
        self._class_moments()
        return Clusters(self, _LLOYD, _OWN).mixture()

    def sum(self, label: str, share: float, phi: RecordMap) -> tuple[Tensor, float]:
        """A release: value (segments, dim) and the standard deviation of its noise."""
        release = self.data.noisy_sum(phi, self.noise(share), label=label)
        self.workspace.log({"event": "release", "label": label})
        return release.value, release.noise_std

    def _segment(self, batch: Batch) -> Tensor | None:
        return batch.labels if self.labelled else None

    def _known(self, batch: Batch) -> Tensor | None:
        """One segment for all; records whose label is none of the classes are left out everywhere."""
        return None if batch.labels is None else batch.labels.clamp(max=0)

    # -- 0. where, and how far ------------------------------------------------------------------------------------

    def _locate(self) -> None:
        space = self.space
        value, noise = self.sum(
            "rough mean",
            _ROUGH,
            FiledVector(
                space.dim,
                count_weight=COUNT,
                radius=space.radius,
                view=lambda b: (space.encode(b), self._known(b)),
            ),
        )
        size = self.data.public_size
        # Where the number of records is private, their noisy count must do; the noise of it is then the least that is sure.
        count = float(size) if size is not None else max(float(value[0, -1]), noise) / COUNT
        mean = value[:, :-1] * space.radius / count
        self.centre = wiener(mean, torch.tensor([noise * space.radius / count]), 8)[0].float()
        reach = 2 * space.radius

        def length(batch: Batch) -> tuple[Tensor, Tensor | None]:
            around = space.encode(batch) - self.centre
            return torch.linalg.vector_norm(around, dim=1, keepdim=True), self._known(batch)

        value, _ = self.sum("length", _LENGTH, _length(length, reach))
        self.radius = _radius(float(value) * reach / count, space.radius)

    # -- 1. class means ---------------------------------------------------------------------------------------------

    def _class_means(self) -> None:
        space, radius = self.space, self.radius
        value, noise = self.sum(
            "class means",
            _MEANS,
            FiledVector(
                space.dim,
                segments=self.classes,
                count_weight=COUNT,
                radius=radius,
                view=lambda b: (space.encode(b) - self.centre, self._segment(b)),
            ),
        )
        counts, doubt = value[:, -1] / COUNT, noise / COUNT
        size = self.data.public_size
        total = float(size) if size is not None else max(1.0, float(counts.sum()))
        present = counts > min(2 * doubt, 0.5 * total / self.classes)
        if not bool(present.any()):
            present = torch.ones_like(present)
        # Counts below their own noise would blow a sum up to a mean.
        self.counts = torch.where(present, counts, 0.0).clamp(min=0.0)
        if float(self.counts.sum()) <= 0:
            self.counts = torch.full_like(counts, total / self.classes)
        self.shares = self.counts / self.counts.sum()
        self.present = self.counts > 0
        self.size = float(self.counts.sum())
        sums = value[:, :-1] * radius  # (classes, dim)
        pooled = sums[self.present].sum(0) / self.size
        spread = noise * radius * math.sqrt(int(self.present.sum())) / self.size
        pooled = wiener(pooled[None], torch.tensor([spread]), 8)[0]
        means = pooled.repeat(self.classes, 1)
        own = sums[self.present] / self.counts[self.present, None] - pooled
        doubts = noise * radius / self.counts[self.present]
        window = max(1, 24 // int(self.present.sum()))
        means[self.present] += wiener(own, doubts, window)
        self.means = (means + self.centre).float()

    # -- 2. pooled second moment and basis --------------------------------------------------------------------------

    def _within(self, batch: Batch) -> Tensor:
        """Records around their class mean, (n, dim)."""
        vectors = self.space.encode(batch)
        if self.labelled:
            assert batch.labels is not None
            return vectors - self.means[batch.labels.clamp(min=0)]
        return vectors - self.means[0]

    def _pooled_moment(self) -> None:
        band, space = self.capacity.band, self.space
        # Halfway to equal variances: high frequencies are heard over the noise without drowning the low ones.
        prior = (space.prior[:band] / space.prior[0]) ** 0.25
        lift = (1 / prior).float()

        def lifted(batch: Batch) -> Tensor:
            return self._within(batch)[:, :band] * lift

        def length(batch: Batch) -> Tensor:
            return torch.linalg.vector_norm(lifted(batch), dim=1, keepdim=True)

        reach = 4 * self.radius
        value, _ = self.sum(
            "length within classes",
            _LENGTH,
            _length(lambda b: (length(b), self._known(b)), reach),
        )
        radius = _radius(float(value) * reach / self.size, reach)
        value, _ = self.sum(
            "squared length within classes",
            _LENGTH,
            _length(lambda b: ((length(b) / (3 * radius)) ** 2, self._known(b))),
        )
        squared = float(value) * 9 * radius**2 / self.size
        value, noise = self.sum(
            "pooled second moment",
            _POOLED,
            FiledSquare(band, radius=radius, view=lambda b: (lifted(b), self._known(b))),
        )
        scale = radius**2 / self.size
        seen = symmetric(value.view(band, band)) * scale
        noise *= scale / math.sqrt(2)  # off the diagonal, after symmetrising
        kept = above_edge(seen, noise)
        rest = smoothed(seen.diagonal() - kept.diagonal(), 24).clamp(min=0)
        # Clipping shortened the long records; their squared length was asked for apart.
        trace = float((kept.diagonal() + rest).sum())
        self.stretch = min(max(squared / max(trace, 1e-12), 1.0), 3.0)
        moment = (kept + rest.diag()) * (prior[:, None] * prior) * self.stretch
        moment += torch.eye(band, dtype=moment.dtype) * max(
            1e-9, 1e-6 * float(moment.trace()) / band
        )
        values, vectors = torch.linalg.eigh(moment)
        width = self.capacity.basis
        self.spectrum = values.flip(0)[:width].clamp(min=1e-9)
        basis = vectors.flip(1)[:, :width]
        residual = (moment.diagonal() - (basis**2 * self.spectrum).sum(1)).clamp(min=0)
        # Above the band, the residual falls on as the prior does.
        tail = space.prior[band:] / space.prior[max(0, band - 32) : band].mean()
        last = residual[max(0, band - 32) :].mean()
        self.residual = torch.cat([residual, last * tail]).sqrt()
        self.basis = torch.zeros(space.dim, width, dtype=torch.float64)
        self.basis[:band] = basis
        self._axes = self.basis[:band].float()

    def latent(self, batch: Batch) -> Tensor:
        """Records around their class mean, in the basis, (n, width)."""
        return row_product(self._within(batch)[:, : self.capacity.band], self._axes)

    # -- 3. class second moments ------------------------------------------------------------------------------------

    def _class_moments(self) -> None:
        width = self.capacity.by_class
        root = self.spectrum[:width] ** 0.25
        lift = (1 / root).float()
        target = (root**2).diag()  # the pooled moment in these coordinates
        radius = math.sqrt(float(target.trace()))
        value, noise = self.sum(
            "class second moments",
            _CLASSES,
            FiledSquare(
                width,
                segments=self.classes,
                radius=radius,
                view=lambda b: (self.latent(b)[:, :width] * lift, self._segment(b)),
            ),
        )
        self.moments = self.spectrum.diag().repeat(self.classes, 1, 1)
        present = self.present.nonzero().squeeze(1)
        counts = self.counts[present]
        seen = symmetric(value.view(-1, width, width)[present]) * radius**2 / counts[:, None, None]
        pooled_trace = float((seen.diagonal(dim1=1, dim2=2).sum(1) * counts).sum() / counts.sum())
        # Clipping shortened these as well; on average their trace is the pooled one.
        seen = seen * min(max(radius**2 / max(pooled_trace, 1e-12), 1.0), 3.0)
        doubts = noise * radius**2 / counts
        moments = shrunk_moments(seen, target, doubts) * (root[:, None] * root)
        spectrum = self.spectrum[:width].expand(len(present), -1)
        self.moments[present, :width, :width] = positive(moments, spectrum, 0.02)


def _radius(typical: float, largest: float) -> float:
    """A radius to clip to: a little more than a typical length, and never senseless when noise drowned it."""
    return min(max(1.05 * typical, 0.02 * largest), largest)
