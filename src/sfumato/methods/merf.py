"""DP-MERF: differentially private mean embeddings with random features (Harder, Adamczewski and Park 2021; thesis, app. B).

    1.  φ(x) = [cos(Wx), sin(Wx)] / √F        random Fourier features, ‖φ(x)‖ = 1             (public)
    2.  μ̃  = 1/n (Σ φ(xᵢ) ⊗ yᵢ + noise)      one noisy sum, filed by class                    (the release)
    3.  min over θ  ‖ μ̃ − E φ(G_θ(z, y)) ⊗ y ‖²   train a generator to have the same embedding    (free)

For tables φ sees the numbers, scaled by their public ranges, and the one-hot categories ÷ √(their number) stand beside it.

Private: the records, in step 2 only. Public: shape, ranges, categories and classes (Schema), the squared length scales, W's seed.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators.embedding import MeanEmbedding
from sfumato.methods.base import Workspace
from sfumato.methods.matched import Matched, by_class, embedded, embedding_query
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query
from sfumato.privacy.bounding import enforced_vector_bound
from sfumato.privacy.query import gaussian_noise
from sfumato.public.fourier import FourierFeatures
from sfumato.public.tabular import HeterogeneousFourier

_LABEL = "mean embedding"
# What a record adds to its class's count, against 1 for its features: in tables rare classes must be counted well.
_COUNT = {"images": 0.1, "table": 0.3}
_FEATURES = {"images": 10_000, "table": 2_000}
_BATCH = {"images": 100, "table": 500}


class Merf(Matched):
    """DP-MERF for images and tables, labelled or not, balanced or not.

    **Guarantee**: one release of Σ [φ(x), w] filed by class. Images: ‖φ(x)‖ = 1 and w = 0.1, hence bound √1.01. Tables:
    ‖φ(x)‖ ≤ √2 (numbers 1, categories 1) and w = 0.3, hence bound √2.09; with `category_weight="length"` categories add their
    columns ÷ their places in place of 1. The Gaussian noise is calibrated to the budget exactly. Everything after the release
    is post-processing.

    Differs from the paper: class counts ride in the same release (half a per cent more noise), so imbalanced and absent
    classes are handled and the number of records may be private; the loss leaves out the b self-pairs of a batch; each step
    matches a random block of the frequencies, an unbiased estimate of the same loss at a fraction of its cost; sampled
    pixels get a little grain. Tables: categories are divided by the root of their number of columns, where the paper takes the
    length of the one-hot vector (`category_weight`); length scales are public constants where the paper takes the median distance
    of private records; a batch holds as many records of each class as of any other.
    """

    info = MethodInfo(
        name="merf",
        title="DP-MERF",
        paper="Harder et al. 2021, “DP-MERF: Differentially Private Mean Embeddings with Random Features”",
        summary="One noisy mean embedding in random Fourier features; a small generator is trained to match it.",
        kinds=("images", "table"),
    )
    TINY: ClassVar = {"features": 64, "steps": 12, "batch": 20, "hidden": 16, "block": 16}

    features: int | None = setting(
        "Number of random features, in pairs of sine and cosine; more follow the kernel better and take more noise in all; auto: "
        "10,000 for images, 2,000 for tables.",
        default=None,
        low=2,
        multiple=2,
    )
    length_scales: str | None = setting(
        "Squared length scales such as 120,12 of the kernel on numbers in [0, 1], public constants: the average of their "
        "kernels in one release; auto: 127/784 per pixel, a wide and a narrow one for tables.",
        default=None,
    )
    category_weight: str = setting(
        "By what categories are divided: columns (their number), or length (that of their one-hot vector, as in the paper, so "
        "that they weigh less against numbers).",
        default="columns",
        choices=("columns", "length"),
    )
    block: int = setting(
        "Frequencies compared in one training step; fewer is faster and noisier.",
        default=500,
        low=1,
        free=True,
    )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        codec = self.plain_codec(schema)
        dim = (self._features(schema) if codec.numbers else 0) + codec.places
        divisor = codec.places if self.category_weight == "length" else len(codec.blocks)
        bound = math.sqrt((codec.numbers > 0) + len(codec.blocks) / max(1, divisor))
        return [embedding_query(_LABEL, schema, dim, bound, _COUNT[schema.kind])]

    def _fit(self, data: Gate, run: Workspace) -> None:
        self._phi = self._feature_map(data.schema)
        self._embedding = embedded(data, _LABEL, self._phi, _COUNT[data.schema.kind])
        self.shares_ = self._embedding.shares
        self.match(data.schema, run)

    def distance(self, network: nn.Module) -> _Distance:
        batch = self.batch or _BATCH[self.schema_.kind]
        return _Distance(network, self._phi, self._embedding, batch, self.block)

    def _features(self, schema: Schema) -> int:
        return self.features or _FEATURES[schema.kind]

    def _scales(self, schema: Schema) -> tuple[float, ...]:
        if self.length_scales is not None:
            return tuple(float(part) for part in self.length_scales.split(","))
        if schema.kind == "images":
            # The papers' constant for Fashion-MNIST, scaled by the number of pixels since squared distances grow with it.
            return (127 / 784 * schema.dim,)
        numbers = max(1, self.plain_codec(schema).numbers)
        return (0.1 * numbers, 0.01 * numbers)

    def _feature_map(self, schema: Schema) -> FourierFeatures | HeterogeneousFourier:
        codec = self.plain_codec(schema)
        fourier = FourierFeatures(
            max(1, codec.numbers), self._features(schema), self._scales(schema), seed=self.seed
        )
        if schema.kind == "images":
            return fourier
        by_length = self.category_weight == "length"
        return HeterogeneousFourier(codec, fourier if codec.numbers else None, by_length)

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        try:
            right = all(scale > 0 and math.isfinite(scale) for scale in self._scales(schema))
        except ValueError:
            right = False
        if not right:
            raise BadInput(
                f"merf's length_scales are positive numbers with commas between, not {self.length_scales!r}."
            )


class _Distance:
    """Step 3's loss: the squared distance between the released embedding and the generator's, on a block of frequencies."""

    def __init__(
        self,
        network: nn.Module,
        phi: FourierFeatures | HeterogeneousFourier,
        embedding: MeanEmbedding,
        batch: int,
        block: int,
    ) -> None:
        self.network, self.embedding = network, embedding
        self.fourier = phi if isinstance(phi, FourierFeatures) else phi.fourier
        self.category_scale = 1.0 if isinstance(phi, FourierFeatures) else phi.category_scale
        self.classes = len(embedding.shares)
        self.emphasis = embedding.emphasis
        self.per_class = max(2, batch // self.classes)
        self.labels = self._labels(self.per_class)
        self.frequencies = self.fourier.dim // 2 if self.fourier else 0
        self.blocks = max(1, round(self.frequencies / block))

    def _labels(self, per_class: int) -> Tensor:
        return torch.arange(self.classes).repeat_interleave(per_class)

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        made = self.network(self.labels, generator).flatten(1)
        # Frequencies are drawn independently, so taking the blocks in turn is a random choice already.
        block = step % self.blocks
        start, stop = (self.frequencies * b // self.blocks for b in (block, block + 1))
        return self._distance(made, self.per_class, start, stop)

    def final(self, generator: torch.Generator, records: int) -> float:
        per_class = max(2, records // self.classes)
        made = self.network(self._labels(per_class), generator).flatten(1)
        steps = range(self.blocks)
        bounds = [self.frequencies * b // self.blocks for b in (*steps, self.blocks)]
        parts = [self._distance(made, per_class, bounds[b], bounds[b + 1]) for b in steps]
        return float(torch.stack(parts).mean())

    def _distance(self, made: Tensor, per_class: int, start: int, stop: int) -> Tensor:
        """Numbers on frequencies `start` … `stop`, scaled up to all of them, and all categories."""
        total = made.new_zeros(())
        numbers = self.fourier.frequencies.shape[1] if self.fourier else 0
        if self.fourier is not None:
            # (block, classes · per_class)
            angles = self.fourier.frequencies[start:stop] @ made[:, :numbers].T
            waves = torch.cat([angles.cos(), angles.sin()]) / self.frequencies**0.5
            sums = (
                waves.view(len(waves), self.classes, per_class).sum(dim=2).T
            )  # (classes, 2 · block)
            columns = torch.arange(start, stop)
            columns = torch.cat([columns, columns + self.frequencies])
            share = (stop - start) / self.frequencies
            total = self.embedding.mmd2(sums, per_class, share, columns, self.emphasis) / share
        if made.shape[1] > numbers:
            sums, norm2 = by_class(made[:, numbers:] * self.category_scale, self.classes)
            rest = slice(2 * self.frequencies, None)
            total = total + self.embedding.mmd2(sums, per_class, norm2, rest, self.emphasis)
        return total


# -- how many features ------------------------------------------------------------------------------------------------


def error_bound(features: float, noise_std: float) -> float:
    """Proposition 3.1 of the thesis: a bound on E|noisy random-feature MMD² − exact MMD²|.

    D τ² + 4√2 τ Γ((D+1)/2)/Γ(D/2) + 8 √(2π/D), for D features and noise of standard deviation τ on each entry of the mean
    embedding (the thesis writes τ = 2σ/m: sensitivity 2/m under replacement, noise multiplier σ). The first two terms are the
    noise, which grows with D; the last is the randomness of the features, which falls.
    """
    ratio = math.exp(math.lgamma((features + 1) / 2) - math.lgamma(features / 2))
    noise = features * noise_std**2 + 4 * math.sqrt(2) * noise_std * ratio
    return noise + 8 * math.sqrt(2 * math.pi / features)


def suggest_features(n: int, budget: Budget, *, most: int = 1_000_000) -> int:
    """The even number of random features, at most `most`, at which the bound of Proposition 3.1 is least.

    `n` is the public number of records (of one class, if the rarest class matters: its own mean has n of its own). For small
    noise the answer is close to √(2π) · n ÷ σ with σ the noise multiplier of the mechanism: D ∝ n·ε. The bound is a guide and not
    tight: it treats all features as equally useful, so far fewer often do as well.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise BadInput(f"n must be a whole number of records of at least 1, not {n!r}.")
    bound = math.hypot(1.0, _COUNT["images"])
    noise_std = gaussian_noise(budget) * enforced_vector_bound(bound) / n
    found = minimize_scalar(
        lambda log_d: error_bound(math.exp(log_d), noise_std),
        bounds=(math.log(2), math.log(max(2, most))),
        method="bounded",
    )
    return max(2, 2 * round(math.exp(float(found.x)) / 2))
