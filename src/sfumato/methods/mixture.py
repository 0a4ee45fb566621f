"""Mixture: Gaussians in a privately learnt basis, sfumato's own default. No network, no public data, seconds to fit.

The Gaussians live where a public codec puts records: pixels in cosines and columns of a table, or, with the setting `codec`, the
latent of one whose decoder makes the images.

    0.  where the records lie, and how far they spread: a rough mean and three lengths            (four small releases)
    1.  class sums and counts, shrunk coefficient by coefficient towards the pooled mean           (release)
    2.  the pooled second moment around the class means, taken out of its noise: a basis           (release)
    3.  each class's second moment in that basis, shrunk towards the pooled one                    (release)
    4.  Lloyd's algorithm in each class, a few coordinates, started from draws of step 3            (a release a round)
    5.  draw: class, cluster, Gaussian in the basis, residual around it, back to records            (free)
    6.  refine: learn to tell draws from records, and keep the draws that look most like them       (paid gradient steps)

Everything private is a sum of bounded vectors behind the wall. What a step needs to know of the records (a radius to clip to, a
centre) it has from the releases before it, so the queries are fixed before a row is read.

Public: the schema, the codec and its prior (how variance falls with frequency in pictures), all settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.generators.mixture import GaussianMixture, RangeFit
from sfumato.methods.base import Workspace, as_bytes
from sfumato.methods.capacity import WIDEST, Capacity, capacity_of, usual_records
from sfumato.methods.clusters import COUNT, OWN_MOMENTS, clustered, round_label
from sfumato.methods.counts import apportion
from sfumato.methods.decoded import Encoded
from sfumato.methods.moments import (
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
from sfumato.methods.refinement import (
    Refinement,
    WhitenedFeatures,
    refinable,
    refinement_query,
)
from sfumato.methods.registry import MethodInfo
from sfumato.methods.saved import part
from sfumato.methods.settings import setting
from sfumato.methods.tone import ToneCurve, tone_query
from sfumato.privacy import Budget, Gate, Query, Release
from sfumato.privacy.query import gaussian_noise
from sfumato.public.codec import Codec
from sfumato.public.linear import Axes, TurnedCodec, schema_codec
from sfumato.public.products import row_product

_REFINEMENT = 1 / 3  # its share of the squared noise budget, against the sum of the others
_MOST_NUMBERS = 50_000_000  # in covariances of all clusters
_RANGE_DRAWS = 4000
CLASS_MOMENTS = "class second moments"


class Mixture(Encoded):
    """Gaussian mixtures by class in a privately learnt basis.

    **Guarantee**: ten sums over all records (an eleventh with `cluster_directions`, and 60 gradients with `refine`), each of
    vectors of norm ≤ 1, of such a vector and a count (≤ √1.16), or of products of two vectors of norm ≤ 1, each with Gaussian
    noise, calibrated jointly and exactly. Centres, radii and bases that a sum uses were released before it or are public, so
    composition is the adaptive one of Gaussian mechanisms. All else is post-processing.
    """

    info = MethodInfo(
        name="mixture",
        title="Mixture",
        paper="sfumato's own",
        kinds=("images", "table"),
        public="optional",
        summary="Private means, covariances and clusters of each class in a private basis; samples in seconds, no network.",
    )
    TINY: ClassVar = {"candidates": 2}
    AT_ONCE = 4000
    FOLLOWS_SIZE = True

    refine: bool = setting(
        "Whether to draw more images than wanted and keep those most like the private ones: better for linear classifiers, not "
        "for networks, and minutes instead of seconds; tables are not refined.",
        default=False,
    )
    candidates: int = setting(
        "With refine: how many images are drawn for each one kept.",
        default=4,
        low=1,
        high=100,
        free=True,
    )
    tone: bool = setting(
        "Whether drawn pixels are mapped to a released histogram of gray levels, where records and noise are good for one; "
        "not with a codec, and not for tables.",
        default=True,
    )
    codec: str | None = setting(
        "Public codec whose latent replaces pixels: none, dct:K, pca:K (with --public), or a pretrained one's path.",
        default=None,
    )
    cluster_directions: int | None = setting(
        "Directions in which each cluster has a covariance of its own; 0: none; None: as many as records and noise are good for.",
        default=None,
        low=0,
    )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        dim = schema_codec(schema).dim if self.codec is None else self.codec_facts(schema).dim
        classes = max(1, schema.n_classes)
        size = self._capacity(dim, schema, budget, schema.records)
        clusters = classes * size.clusters
        if size.own and clusters * size.basis**2 > _MOST_NUMBERS:
            raise BadInput(
                "mixture's cluster_directions are too much for so many classes and clusters; set it to 0."
            )
        shares = size.shares
        asked = [
            _mean("rough mean", dim, shares.rough),
            _length("length", shares.length),
            _mean("class means", dim, shares.means, segments=classes),
            _length("length within classes", shares.length),
            _length("squared length within classes", shares.length),
        ]
        if size.band:
            asked.append(_square("pooled second moment", size.band, shares.pooled))
        if size.by_class:
            moments = _square(CLASS_MOMENTS, size.by_class, shares.classes, segments=classes)
            asked.append(moments)
        if size.rounds:
            share = shares.clusters / size.rounds
            around = _mean("", size.coordinates, share, segments=clusters)
            asked += [replace(around, label=round_label(number)) for number in range(size.rounds)]
        if size.own:
            asked.append(_square(OWN_MOMENTS, size.own, shares.own, segments=clusters))
        if shares.tone and self._tones(schema):
            asked.append(tone_query(schema, shares.tone))
        if self._refines(schema):
            share = _REFINEMENT * math.fsum(query.share for query in asked)
            asked.append(refinement_query(schema, share))
        return asked

    def _capacity(self, dim: int, schema: Schema, budget: Budget, records: int | None) -> Capacity:
        return capacity_of(
            dim,
            max(1, schema.n_classes),
            records or usual_records(budget.delta),
            gaussian_noise(budget),
            self.cluster_directions,
        )

    def _uses_public(self) -> bool:
        return self.codec is not None

    def _refines(self, schema: Schema) -> bool:
        return self.refine and refinable(schema)

    def _tones(self, schema: Schema) -> bool:
        return self.tone and schema.kind == "images" and self.codec is None

    def _fit(self, data: Gate, run: Workspace) -> None:
        codec = self._opened(data.schema, run)
        size = self._capacity(codec.dim, data.schema, data.budget, data.public_size)
        run.progress.note(f"mixture: {size.why}.")
        encode = codec.encode if self.codec is None else data.remember(codec.encode)
        random = torch.Generator().manual_seed(self.seed)
        place = locate(data, codec, encode)
        classes = class_means(data, place, encode, faint=not size.band)
        pooled = pooled_moment(data, codec, classes, place.radius, size)
        moments = class_moments(data, classes, pooled, size.by_class)
        self.mixture_ = clustered(data, classes, pooled, moments, size, random)
        self.shares_ = classes.shares.to(torch.float32)
        self.tone_: ToneCurve | None = None
        self.range_, draws = self._range_fit()
        if size.shares.tone and self._tones(data.schema):
            self.tone_ = ToneCurve.learnt(data, classes.size, self.range_(draws))
        self.refinement_: Refinement | None = None
        if self._refines(data.schema):
            self.refinement_ = Refinement.learnt(
                data, run, self.shares_, classes.size, self._records, self._codec.seen, self.seed
            )

    # -- the codec, and back from it ---------------------------------------------------------------------------------

    def _opened(self, schema: Schema, run: Workspace) -> Codec:
        """The codec with a prior, which only a fit needs: from public records, where there are any."""
        if self.codec is None:
            return schema_codec(schema)
        codec = self.open_codec(schema, run)
        if run.public is None:
            self.axes_: Axes | None = None
            return codec
        turned = TurnedCodec.along(codec, run.public, seed=self.seed)
        self.axes_ = turned.axes
        return turned

    @property
    def _codec(self) -> Codec:
        if self.codec is None:
            return schema_codec(self.schema_)
        return self.codec_ if self.axes_ is None else TurnedCodec(self.codec_, self.axes_)

    def _range_fit(self) -> tuple[RangeFit, Tensor]:
        """And the draws that it was fitted to.

        One for all classes: of a class's own, the noise in its mean would make a mark that tells the class.
        """
        codec, random = self._codec, torch.Generator().manual_seed(self.seed)
        if not codec.ranged:
            return RangeFit.none(codec.dim), torch.zeros(0, codec.dim)
        labels = apportion(self.shares_, _RANGE_DRAWS, random)
        draws = codec.raw(self.mixture_.draw(labels, random))
        return RangeFit.to(self.shares_ @ codec.raw(self.mixture_.means), draws), draws

    def _records(self, labels: Tensor, random: torch.Generator) -> Tensor:
        codec = self._codec
        raw = self.range_(codec.raw(self.mixture_.draw(labels, random)))
        tone: ToneCurve | None = getattr(self, "tone_", None)  # runs before 0.4 have none
        records = codec.finish(raw if tone is None else tone(raw), random)
        return as_bytes(records) if self.schema_.kind == "images" else records

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        if self.refinement_ is None:
            return self._records(labels, random)
        return self.refinement_.draw(self.schema_, labels, self._records, random, self.candidates)

    def _earlier(self, state: dict[str, Tensor]) -> dict[str, Any]:
        def kept(cls: type[Any]) -> Any:
            return cls(**{field.name: state[field.name] for field in fields(cls)})

        axes, chosen = part(state, "axes."), part(state, "refinement.")
        found = {"mixture_": kept(GaussianMixture), "range_": kept(RangeFit)}
        found["axes_"] = Axes(**axes) if axes else None
        found["refinement_"] = found["tone_"] = None
        if chosen:
            features = WhitenedFeatures(chosen["centre"], chosen["mixing"])
            found["refinement_"] = Refinement(features, chosen["weights"])
        return {**super()._earlier(state), **found}


# -- what is asked for ---------------------------------------------------------------------------------------------------


def _mean(label: str, dim: int, share: float, *, segments: int = 1) -> Query:
    """Vectors in the unit ball, and a count beside them."""
    bound = math.hypot(1, COUNT)
    return Query(label=label, shape=(dim + 1,), bound=bound, segments=segments, share=share)


def _length(label: str, share: float) -> Query:
    return Query(label=label, shape=(1,), non_negative=True, share=share)


def _square(label: str, dim: int, share: float, *, segments: int = 1) -> Query:
    """Second moments of vectors in the unit ball."""
    return Query(label=label, shape=(dim, dim), symmetric=True, segments=segments, share=share)


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


Encode = Callable[[Batch], Tensor]  # (n records) → (n, numbers), row-wise

# -- 0. where, and how far -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    centre: Tensor  # (dim,)
    radius: float


def locate(data: Gate, codec: Codec, encode: Encode) -> Place:
    release = data.sum(
        "rough mean",
        counted(lambda batch: (encode(batch), _known(batch)), codec.bound, COUNT),
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
        counted(lambda batch: (encode(batch) - place.centre, batch.labels), radius, COUNT),
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
