"""DP-MGE: a Gaussian of private features, decoded by a public decoder ("Large-scale public data improves differentially
private image generation quality", §3.1).

    1.  v = codec.encode(x), ‖v‖ ≤ 1                        a public encoder                              (public)
    2.  Σ [v, v², 1] or Σ [v, 1] ⊗ [v, 1] + noise           by class: one joint release                   (the release)
    3.  μ = Σv / n,  S = Σvvᵀ / n − μμᵀ                      shrunk, and repaired to a covariance          (free)
    4.  v ~ N(μ, S),  x = codec.decode(v)                   as many pictures as one likes                 (free)

Private: the records, in step 2 only. Public: the codec (`sfumato.public`), the Schema, the weights of the parts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.methods.base import Workspace
from sfumato.methods.counts import Counts
from sfumato.methods.decoded import Decoded
from sfumato.methods.moments import Moments, symmetric
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.methods.tone import Toned
from sfumato.privacy import Budget, Gate, Query, Release
from sfumato.public.codec import Facts, ImageCodec

_LABEL = "feature moments"
# Squared weights of features, squares and count in one vector of length 1. Squares get the most: a variance is smaller than
# a mean.
_MEAN, _SQUARE, _COUNT = 0.20, 0.70, 0.10
# Squared weights of features and of the constant beside them, for second moments.
_OUTER_FEATURE, _OUTER_COUNT = 0.80, 0.20
# Squares of a unit vector of d numbers of equal size have length 1/√d, of normal ones √3/√d; beyond this many times 1/√d
# they are clipped.
_SQUARE_SPREAD = 3.0


class Mge(Decoded, Toned):
    """DP-MGE for labelled and unlabelled images.

    **Guarantee**: one release, filed by class, of vectors of length ≤ 1 (`DiagonalMoments`, `OuterMoments`), its Gaussian noise
    calibrated to the budget exactly. What follows is post-processing.

    Differs from the paper: mean and variance are parts of *one* calibrated release; the paper makes two, each calibrated to
    the whole (ε, δ), and calls the pair (ε, δ): at ε = 1, δ = 1e-5 that is really ε = 1.47. Classes and their counts; full
    or low-rank covariance; class estimates shrink towards the pooled one by their noise, and negative variances are repaired
    without changing their sum; any codec. Under replace-one the sensitivity with full or low-rank covariance is √2 times the
    bound, not 2.
    """

    info = MethodInfo(
        name="mge",
        title="DP-MGE",
        paper="“Large-Scale Public Data Improves Differentially Private Image Generation Quality”, §3.1",
        kinds=("images",),
        public="optional",
        summary="Noisy mean and variance of public features by class; Gaussian samples are decoded by a public decoder.",
    )

    covariance: str = setting(
        "diagonal (as the paper), full, or low-rank: what is kept of the features' covariance.",
        default="diagonal",
        choices=("diagonal", "full", "low-rank"),
    )
    rank: int = setting(
        "Directions that a low-rank covariance keeps; the rest of the variance is spread evenly.",
        default=16,
        low=1,
        free=True,
    )
    spread: float = setting(
        "Standard deviation of samples relative to the released one; below 1: fewer odd pictures, less variety.",
        default=1.0,
        low=0,
        high=10,
        free=True,
    )
    seed: int = setting(
        "Unused: the fit is a formula. Kept so that every method has one.", default=0, free=True
    )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        return self.with_tone(
            schema, [self._rows.query(self.codec_facts(schema), schema.n_classes)]
        )

    @property
    def _rows(self) -> type[DiagonalMoments | OuterMoments]:
        return DiagonalMoments if self.covariance == "diagonal" else OuterMoments

    def _fit(self, data: Gate, run: Workspace) -> None:
        codec = self.open_codec(data.schema, run)
        rows = self._rows(codec)
        moments = rows.read(data.sum(_LABEL, rows))
        self.shares_ = Counts.of(moments.counts, moments.noise[2], data.public_size).shares
        self.mean_ = moments.means().to(torch.float32)
        rank = self.rank if self.covariance == "low-rank" else None
        self.root_ = moments.roots(codec.unit, rank).to(torch.float32)
        self.learn_tone(data)

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        mean, root = self.mean_[labels], self.root_[labels]
        normal = self.spread * torch.randn(mean.shape, generator=random)  # (n, dim)
        step = root * normal if root.ndim == 2 else torch.einsum("nij,nj->ni", root, normal)
        return self.toned(self.decode((mean + step) * self.codec_.bound, random))

    def _earlier(self, state: dict[str, Tensor]) -> dict[str, Any]:
        return {**super()._earlier(state), "mean_": state["mean"], "root_": state["root"]}


# -- step 2: what is summed --------------------------------------------------------------------------------------------


class _Encoded:
    """Rows made of a codec's vectors, in the unit ball."""

    def __init__(self, codec: ImageCodec) -> None:
        self._codec, self._facts = codec, codec.facts
        self.public_parts = codec.public_parts

    def vectors(self, batch: Batch) -> Tensor:
        return self._codec.encode(batch) / self._facts.bound


class DiagonalMoments(_Encoded):
    """[a v, b q, w] filed by class, with v in the unit ball, q = v² clipped to length r and divided by r, a² + b² + w² = 1.

    r is 1, or less where the codec's vectors are unit and so spread over their numbers that v² is always short: a public
    constant.

    **Guarantee**: ‖v‖ ≤ 1 by the codec and ‖q‖ ≤ 1 by clipping, so the row's length is at most √(a² + b² + w²) = 1. Row-wise
    as the codec is.
    """

    @staticmethod
    def query(facts: Facts, n_classes: int) -> Query:
        return Query(label=_LABEL, shape=(2 * facts.dim + 1,), segments=max(1, n_classes))

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        v = self.vectors(batch)
        squares = v.square()
        lengths = torch.linalg.vector_norm(squares, dim=1, keepdim=True)
        q = squares / lengths.clamp(min=square_bound(self._facts))
        ones = torch.full((len(v), 1), math.sqrt(_COUNT))
        rows = torch.cat([math.sqrt(_MEAN) * v, math.sqrt(_SQUARE) * q, ones], dim=1)
        return rows, batch.labels

    def read(self, release: Release) -> Moments:
        value, noise, d = release.value, release.noise_std, self._facts.dim
        mean, count = math.sqrt(_MEAN), math.sqrt(_COUNT)
        square = math.sqrt(_SQUARE) / square_bound(self._facts)
        return Moments(
            sums=value[:, :d] / mean,
            seconds=value[:, d:-1] / square,
            counts=value[:, -1] / count,
            noise=(noise / mean, noise / square, noise / count),
        )


def square_bound(facts: Facts) -> float:
    """The length that squares are clipped to, r above."""
    return min(1.0, _SQUARE_SPREAD / math.sqrt(facts.dim)) if facts.unit else 1.0


class OuterMoments(_Encoded):
    """[s v, t] ⊗ [s v, t] filed by class, s² + t² = 1: second moments, features and count in one symmetric matrix.

    **Guarantee**: ‖[s v, t]‖² ≤ s² + t² = 1 since ‖v‖ ≤ 1 by the codec, so the product's length is at most 1. The summands
    are a ⊗ a: replacement moves the sum by √2 at most, means included.
    """

    @staticmethod
    def query(facts: Facts, n_classes: int) -> Query:
        shape = (facts.dim + 1, facts.dim + 1)
        return Query(label=_LABEL, shape=shape, symmetric=True, segments=max(1, n_classes))

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        v = self.vectors(batch) * math.sqrt(_OUTER_FEATURE)
        return torch.cat([v, torch.full((len(v), 1), math.sqrt(_OUTER_COUNT))], dim=1), batch.labels

    def read(self, release: Release) -> Moments:
        width = self._facts.dim + 1
        # Both halves carry noise of their own: their mean has less.
        value = symmetric(release.value.view(-1, width, width))
        cross, noise = math.sqrt(_OUTER_FEATURE * _OUTER_COUNT), release.noise_std / math.sqrt(2)
        return Moments(
            sums=value[:, -1, :-1] / cross,
            seconds=value[:, :-1, :-1] / _OUTER_FEATURE,
            counts=value[:, -1, -1] / _OUTER_COUNT,
            noise=(noise / cross, noise / _OUTER_FEATURE, release.noise_std / _OUTER_COUNT),
        )
