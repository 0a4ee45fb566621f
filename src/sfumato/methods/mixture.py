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
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from sfumato.data import Schema
from sfumato.generators.mixture import GaussianMixture, RangeFit
from sfumato.methods.base import Workspace, as_bytes
from sfumato.methods.capacity import Capacity, capacity_of, usual_records
from sfumato.methods.clusters import OWN_MOMENTS, clustered, round_label
from sfumato.methods.counts import apportion
from sfumato.methods.decoded import Turned
from sfumato.methods.estimation import (
    CLASS_MOMENTS,
    class_means,
    class_moments,
    locate,
    pooled_moment,
)
from sfumato.methods.moments import counted_query, length_query, square_query
from sfumato.methods.refinement import Refinement, refinable, refinement_query
from sfumato.methods.registry import MethodInfo
from sfumato.methods.saved import part
from sfumato.methods.settings import setting
from sfumato.methods.tone import ToneCurve, Toned, tone_query
from sfumato.privacy import Budget, Gate, Query
from sfumato.privacy.query import gaussian_noise
from sfumato.public.linear import Axes

_REFINEMENT = 1 / 3  # its share of the squared noise budget, against the sum of the others
_RANGE_DRAWS = 4000


class Mixture(Turned, Toned):
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
    cluster_directions: int | None = setting(
        "Directions in which each cluster has a covariance of its own; 0: none; None: as many as records and noise are good for.",
        default=None,
        low=0,
    )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        dim, classes = self.turned_dim(schema), max(1, schema.n_classes)
        size = self._capacity(dim, schema, budget, schema.records)
        shares, clusters = size.shares, classes * size.clusters
        asked = [
            counted_query("rough mean", dim, shares.rough),
            length_query("length", shares.length),
            counted_query("class means", dim, shares.means, segments=classes),
            length_query("length within classes", shares.length),
            length_query("squared length within classes", shares.length),
        ]
        if size.band:
            asked.append(square_query("pooled second moment", size.band, shares.pooled))
        if size.by_class:
            moments = square_query(CLASS_MOMENTS, size.by_class, shares.classes, segments=classes)
            asked.append(moments)
        if size.rounds:
            share = shares.clusters / size.rounds
            around = counted_query("", size.coordinates, share, segments=clusters)
            asked += [replace(around, label=round_label(number)) for number in range(size.rounds)]
        if size.own:
            asked.append(square_query(OWN_MOMENTS, size.own, shares.own, segments=clusters))
        if shares.tone and self.tones(schema):
            asked.append(tone_query(schema, shares.tone))
        if self._refines(schema):
            share = _REFINEMENT * math.fsum(query.share for query in asked)
            asked.append(refinement_query(schema, share))
        return asked

    def _capacity(self, dim: int, schema: Schema, budget: Budget, records: int | None) -> Capacity:
        classes, noise = max(1, schema.n_classes), gaussian_noise(budget)
        records = records or usual_records(budget.delta)
        size = capacity_of(dim, classes, records, noise, self.cluster_directions)
        return size.checked(classes)

    def _refines(self, schema: Schema) -> bool:
        return self.refine and refinable(schema)

    def tones(self, schema: Schema) -> bool:
        return super().tones(schema) and self.codec is None

    def _fit(self, data: Gate, run: Workspace) -> None:
        codec = self.turned_codec(data.schema, run)
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
        self._size = classes.size  # for who builds on it
        self.tone_: ToneCurve | None = None
        self.range_, draws = self._range_fit()
        if size.shares.tone and self.tones(data.schema):
            self.tone_ = ToneCurve.learnt(data, classes.size, self.range_(draws))
        self.refinement_: Refinement | None = None
        if self._refines(data.schema):
            self.refinement_ = Refinement.learnt(
                data, run, self.shares_, classes.size, self._records, self.turned.seen, self.seed
            )

    def _range_fit(self) -> tuple[RangeFit, Tensor]:
        """And the draws that it was fitted to.

        One for all classes: of a class's own, the noise in its mean would make a mark that tells the class.
        """
        codec, random = self.turned, torch.Generator().manual_seed(self.seed)
        if not codec.ranged:
            return RangeFit.none(codec.dim), torch.zeros(0, codec.dim)
        labels = apportion(self.shares_, _RANGE_DRAWS, random)
        draws = codec.raw(self.mixture_.draw(labels, random))
        return RangeFit.to(self.shares_ @ codec.raw(self.mixture_.means), draws), draws

    def _records(self, labels: Tensor, random: torch.Generator) -> Tensor:
        codec = self.turned
        raw = self.range_(codec.raw(self.mixture_.draw(labels, random)))
        records = codec.finish(self.toned(raw), random)
        return as_bytes(records) if self.schema_.kind == "images" else records

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        if self.refinement_ is None:
            return self._records(labels, random)
        return self.refinement_.draw(self.schema_, labels, self._records, random, self.candidates)

    def _earlier(self, state: dict[str, Tensor]) -> dict[str, Any]:
        axes = part(state, "axes.")
        return {
            **super()._earlier(state),
            "mixture_": GaussianMixture.among(state),
            "range_": RangeFit.among(state),
            "axes_": Axes(**axes) if axes else None,
            "tone_": None,
            "refinement_": Refinement.earlier(part(state, "refinement.")),
        }
