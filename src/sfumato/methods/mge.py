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

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.methods.base import Workspace
from sfumato.methods.counts import apportion
from sfumato.methods.latent import LatentSynthesizer
from sfumato.methods.registry import register
from sfumato.privacy import FeatureMap, OuterMap, Plan, PrivateData, Release, charge_of
from sfumato.public.codec import Codec, EncodedFeatures, Facts

_LABEL = "feature moments"
COVARIANCES = ("diagonal", "full", "low-rank")
# Squared weights of features, squares and count in one vector of length 1. Squares get the most: a variance is smaller than
# a mean.
_MEAN, _SQUARE, _COUNT = 0.20, 0.70, 0.10
# Squared weights of features and of the constant beside them, for second moments.
_OUTER_FEATURE, _OUTER_COUNT = 0.80, 0.20
# Squares of a unit vector of d numbers of equal size have length 1/√d, of normal ones √3/√d; beyond this many times 1/√d
# they are clipped.
_SQUARE_SPREAD = 3.0


@register(
    "mge",
    title="DP-MGE",
    paper="“Large-Scale Public Data Improves Differentially Private Image Generation Quality”, §3.1",
    kinds=("images",),
    public="optional",
    summary="Noisy mean and variance of public features by class; Gaussian samples are decoded by a public decoder.",
)
class Mge(LatentSynthesizer):
    """DP-MGE for labelled and unlabelled images.

    **Guarantee**: one release, filed by class, of vectors of length ≤ 1 (`Moments`, `OuterMoments`), its Gaussian noise
    calibrated to the budget exactly. What follows is post-processing.

    Differs from the paper: mean and variance are parts of *one* calibrated release; the paper makes two, each calibrated to
    the whole (ε, δ), and calls the pair (ε, δ): at ε = 1, δ = 1e-5 that is really ε = 1.47. Classes and their counts; full
    or low-rank covariance; class estimates shrink towards the pooled one by their noise, and negative variances are repaired
    without changing their sum; any codec. Under replace-one the sensitivity with full or low-rank covariance is √2 times the
    bound, not 2.
    """

    HELP = {
        "codec": "Public codec: dct, dct:K, pca:K (with --public), adain, ic-gan:PATH or the path of a pretrained one.",
        "covariance": "diagonal (as the paper), full, or low-rank: what is kept of the features' covariance.",
        "rank": "Directions that a low-rank covariance keeps; the rest of the variance is spread evenly.",
        "spread": "Standard deviation of samples relative to the released one; below 1: fewer odd pictures, less variety.",
        "grain": "Standard deviation of the grain added to sampled pixels in [0, 1], a public constant; 0 for none.",
        "seed": "Unused: the fit is a formula. Kept so that every method has one.",
    }
    RELEASED_BY = ("codec", "covariance")

    def __init__(
        self,
        *,
        codec: str = "dct",
        covariance: str = "diagonal",
        rank: int = 16,
        spread: float = 1.0,
        grain: float = 0.05,
        seed: int = 0,
    ) -> None:
        self.codec = codec
        self.covariance = covariance
        self.rank = rank
        self.spread = spread
        self.grain = grain
        self.seed = seed

    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        self._check()
        return (charge_of(self._map(self._facts(schema), schema), noise_multiplier, label=_LABEL),)

    def _fit(self, data: PrivateData, noise_multiplier: float, workspace: Workspace) -> None:
        self.codec_ = self._open_codec(data.schema, workspace)
        phi = self._map(self.codec_.facts, data.schema, self.codec_)
        release = data.noisy_sum(phi, noise_multiplier, label=_LABEL)
        workspace.log({"event": "release", "label": _LABEL})
        moments = phi.read(release)
        self.shares_ = moments.shares(data.public_size).to(torch.float32)
        self.mean_ = moments.means().to(torch.float32)
        rank = self.rank if self.covariance == "low-rank" else None
        self.root_ = moments.roots(self.codec_.unit, rank).to(torch.float32)

    def _sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        labels = apportion(self.shares_, n, generator)
        images = torch.empty(n, *self.schema_.shape, dtype=torch.uint8)
        for at in torch.arange(n).split(1000):
            chosen = labels[at]
            normal = self.spread * torch.randn(
                len(at), self.mean_.shape[1], generator=generator
            )  # (batch, dim)
            root = self.root_[chosen]
            step = root * normal if root.ndim == 2 else torch.einsum("nij,nj->ni", root, normal)
            vectors = (self.mean_[chosen] + step) * self.codec_.bound
            pixels = self.codec_.decode(vectors, generator=generator)
            pixels += torch.randn(pixels.shape, generator=generator) * self.grain
            images[at] = (pixels.clamp_(0, 1) * 255).round().to(torch.uint8)
        return images, labels if self.schema_.labelled else None

    def _state(self) -> dict[str, Tensor]:
        ours = {"shares": self.shares_, "mean": self.mean_, "root": self.root_}
        return {**ours, **self._codec_state()}

    def _restore(self, state: dict[str, Tensor]) -> None:
        self.shares_, self.mean_, self.root_ = state["shares"], state["mean"], state["root"]
        self._restore_codec(state)

    def _map(self, facts: Facts, schema: Schema, codec: Codec | None = None) -> _Moments:
        kind = DiagonalMoments if self.covariance == "diagonal" else OuterMoments
        return kind(facts, schema.n_classes, codec)

    def _check(self) -> None:
        if self.covariance not in COVARIANCES:
            raise BadInput(
                f"mge's covariance must be {', '.join(COVARIANCES[:-1])} or {COVARIANCES[-1]}, not {self.covariance!r}."
            )
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise BadInput(f"mge's rank must be a whole number of at least 1, not {self.rank!r}.")
        if not 0 <= self.grain <= 1:
            raise BadInput(f"mge's grain must lie between 0 and 1, not {self.grain}.")
        if not 0 <= self.spread <= 10:
            raise BadInput(f"mge's spread must lie between 0 and 10, not {self.spread}.")


# -- step 2: what is summed --------------------------------------------------------------------------------------------


class DiagonalMoments(FeatureMap):
    """[a v, b q, w] filed by class, with v in the unit ball, q = v² clipped to length r and divided by r, a² + b² + w² = 1.

    r is 1, or less where the codec's vectors are unit and so spread over their numbers that v² is always short: a public
    constant.

    **Guarantee**: ‖v‖ ≤ 1 by the codec and ‖q‖ ≤ 1 by clipping, so the row's length is at most √(a² + b² + w²) = 1. Row-wise
    as the codec is.
    """

    bound = 1.0

    def __init__(self, facts: Facts, n_classes: int, codec: Codec | None = None) -> None:
        self._encoded = EncodedFeatures(codec) if codec is not None else None
        self._scale = facts.bound
        self.width = facts.dim
        self.dim = 2 * facts.dim + 1
        self.segments = max(1, n_classes)
        self.labelled = n_classes > 0
        self.square_bound = min(1.0, _SQUARE_SPREAD / math.sqrt(facts.dim)) if facts.unit else 1.0

    def public_parts(self) -> tuple[Tensor, ...]:
        return () if self._encoded is None else self._encoded.public_parts()

    def segment_of(self, batch: Batch) -> Tensor | None:
        return batch.labels if self.labelled else None

    def __call__(self, batch: Batch) -> Tensor:
        assert self._encoded is not None
        v = self._encoded(batch) / self._scale
        squares = v.square()
        lengths = torch.linalg.vector_norm(squares, dim=1, keepdim=True)
        q = squares / lengths.clamp(min=self.square_bound)
        ones = torch.full((len(v), 1), math.sqrt(_COUNT))
        return torch.cat([math.sqrt(_MEAN) * v, math.sqrt(_SQUARE) * q, ones], dim=1)

    def read(self, release: Release) -> DiagonalReading:
        value, d = release.value, self.width
        noise = release.noise_std
        return DiagonalReading(
            sums=value[:, :d] / math.sqrt(_MEAN),
            seconds=value[:, d:-1] * self.square_bound / math.sqrt(_SQUARE),
            counts=value[:, -1] / math.sqrt(_COUNT),
            noise=(
                noise / math.sqrt(_MEAN),
                noise * self.square_bound / math.sqrt(_SQUARE),
                noise / math.sqrt(_COUNT),
            ),
        )


class OuterMoments(OuterMap):
    """[s v, t] ⊗ [s v, t] filed by class, s² + t² = 1: second moments, features and count in one symmetric matrix.

    **Guarantee**: ‖[s v, t]‖² ≤ s² + t² = 1 since ‖v‖ ≤ 1 by the codec, so the product's length is at most 1. The summands
    are a ⊗ a: replacement moves the sum by √2 at most (`OuterMap`), means included.
    """

    symmetric = True
    left_bound = right_bound = 1.0

    def __init__(self, facts: Facts, n_classes: int, codec: Codec | None = None) -> None:
        self._encoded = EncodedFeatures(codec) if codec is not None else None
        self._scale = facts.bound
        self.left = self.right = facts.dim + 1
        self.segments = max(1, n_classes)
        self.labelled = n_classes > 0

    def public_parts(self) -> tuple[Tensor, ...]:
        return () if self._encoded is None else self._encoded.public_parts()

    def segment_of(self, batch: Batch) -> Tensor | None:
        return batch.labels if self.labelled else None

    def factors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        assert self._encoded is not None
        v = self._encoded(batch) * (math.sqrt(_OUTER_FEATURE) / self._scale)
        rows = torch.cat([v, torch.full((len(v), 1), math.sqrt(_OUTER_COUNT))], dim=1)
        return rows, rows

    def read(self, release: Release) -> OuterReading:
        value = release.value.view(self.segments, self.left, self.left)
        # Both halves carry noise of their own: their mean has less.
        value = (value + value.transpose(1, 2)) / 2
        cross = math.sqrt(_OUTER_FEATURE * _OUTER_COUNT)
        noise = release.noise_std / math.sqrt(2)
        return OuterReading(
            sums=value[:, -1, :-1] / cross,
            seconds=value[:, :-1, :-1] / _OUTER_FEATURE,
            counts=value[:, -1, -1] / _OUTER_COUNT,
            noise=(noise / cross, noise / _OUTER_FEATURE, release.noise_std / _OUTER_COUNT),
        )


_Moments = DiagonalMoments | OuterMoments


# -- step 3: what the release tells ------------------------------------------------------------------------------------


class _Reading:
    """A released set of moments: sums (classes, dim), second moments, counts (classes,), and the noise of an entry of each."""

    def __init__(
        self, sums: Tensor, seconds: Tensor, counts: Tensor, noise: tuple[float, float, float]
    ) -> None:
        self._sums, self._seconds, self._counts, self._noise = sums, seconds, counts, noise
        self._sizes = counts.clamp(min=1.0)

    def shares(self, size: int | None) -> Tensor:
        """The classes' shares; a count below its own noise may belong to a class without records and keeps none."""
        n = float(size) if size is not None else max(1.0, float(self._counts.sum()))
        floor = min(2 * self._noise[2], 0.5 * n / len(self._counts))
        kept = torch.where(self._counts > floor, self._counts, 0.0)
        if float(kept.sum()) <= 0:
            kept = torch.ones_like(kept)
        return kept / kept.sum()

    def means(self) -> Tensor:
        """(classes, dim), each shrunk towards the mean of all by its noise and kept in the unit ball."""
        weights = self._sizes / self._sizes.sum()
        means = self._sums / self._sizes[:, None]
        means = shrunk(means, weights, self._noise[0] / self._sizes)
        lengths = torch.linalg.vector_norm(means, dim=1, keepdim=True)
        return means / lengths.clamp(min=1.0)

    def _totals(self, unit: bool, traces: Tensor) -> Tensor:
        """The variance over all directions by class: E‖v‖² − ‖μ‖², with ‖v‖ = 1 known of a unit codec."""
        most = 1 - self.means().square().sum(dim=1)
        return most if unit else traces.clamp(min=0.0).minimum(most)


class DiagonalReading(_Reading):
    def roots(self, unit: bool, rank: int | None) -> Tensor:
        """(classes, dim) standard deviations."""
        variances = self._seconds / self._sizes[:, None] - self.means().square()
        totals = self._totals(unit, variances.sum(dim=1))
        variances = shrunk(variances, self._sizes / self._sizes.sum(), self._noise[1] / self._sizes)
        return torch.stack(
            [onto_simplex(v, float(t)) for v, t in zip(variances, totals, strict=True)]
        ).sqrt()


class OuterReading(_Reading):
    def roots(self, unit: bool, rank: int | None) -> Tensor:
        """(classes, dim, dim): a root of each covariance."""
        means = self.means()
        covariances = self._seconds / self._sizes[:, None, None]
        covariances = covariances - means[:, :, None] * means[:, None, :]
        totals = self._totals(unit, covariances.diagonal(dim1=1, dim2=2).sum(dim=1))
        flat = shrunk(
            covariances.flatten(1), self._sizes / self._sizes.sum(), self._noise[1] / self._sizes
        )
        roots = []
        for covariance, total in zip(flat.view_as(covariances), totals, strict=True):
            values, vectors = torch.linalg.eigh(covariance)
            values = onto_simplex(values, float(total))
            if rank is not None and rank < len(values):
                rest = values[:-rank]
                values = torch.cat([rest.mean().expand(len(rest)), values[-rank:]])
            roots.append(vectors * values.sqrt())
        return torch.stack(roots)


def shrunk(rows: Tensor, weights: Tensor, noise_std: Tensor) -> Tensor:
    """Rows (classes, dim) drawn towards their weighted mean, as far as its noise explains the distance (James–Stein)."""
    centre = (weights[:, None] * rows).sum(dim=0)
    away = rows - centre
    explained = rows.shape[1] * noise_std.square() / away.square().sum(dim=1).clamp(min=1e-300)
    return centre + (1 - explained).clamp(min=0.0)[:, None] * away


def onto_simplex(values: Tensor, total: float) -> Tensor:
    """The nearest vector without negative entries whose sum is `total`.

    For eigenvalues this is the likeliest positive semi-definite matrix of that trace under Gaussian noise of equal size
    (Smolin, Gambetta and Smith 2012); cutting negative ones off alone would leave their noise in the sum.
    """
    total = max(0.0, total)
    ordered = values.sort(descending=True).values
    excess = (ordered.cumsum(0) - total) / torch.arange(1, len(values) + 1, dtype=values.dtype)
    # The largest number of entries that stay positive after all of them are lowered alike.
    count = int((ordered - excess > 0).sum())
    return (values - excess[max(0, count - 1)]).clamp(min=0.0)
