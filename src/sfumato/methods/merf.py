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

from torch import nn

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators.embedding import COUNT_WEIGHT
from sfumato.methods.base import Workspace
from sfumato.methods.distances import FourierDistance
from sfumato.methods.matched import Matched, embedding_query
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query
from sfumato.public.fourier import FourierFeatures
from sfumato.public.tabular import HeterogeneousFourier

_LABEL = "mean embedding"
# What a record adds to its class's count, against 1 for its features: in tables rare classes must be counted well.
_COUNT = {"images": COUNT_WEIGHT, "table": 0.3}
_FEATURES = {"images": 10_000, "table": 2_000}


class Merf(Matched):
    """DP-MERF for images and tables, labelled or not, balanced or not.

    **Guarantee**: one release of Σ [φ(x), w] filed by class. Images: ‖φ(x)‖ = 1 and w = 0.1, hence bound √1.01. Tables:
    ‖φ(x)‖ ≤ √2 (numbers 1, categories 1) and w = 0.3, hence bound √2.09; with `category_weight="length"` categories add their
    columns ÷ their places in place of 1. The Gaussian noise is calibrated to the budget exactly. Everything after the release
    is post-processing.

    Differs from the paper: class counts ride in the same release (half a per cent more noise), so imbalanced and absent classes
    are handled and the number of records may be private; of images the loss leaves out the b self-pairs of a batch
    (`self_pairs`); each step matches a random block of the frequencies, an unbiased estimate of the same loss at a fraction of
    its cost; sampled pixels get a little grain. Tables: categories are divided by the root of their number of columns, where
    the paper takes the length of the one-hot vector (`category_weight`); length scales are public constants where the paper
    takes the median distance of private records; a batch holds as many records of each class as of any other.
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
        asked = embedding_query(_LABEL, schema, dim, bound, _COUNT[schema.kind])
        return self.with_tone(schema, [asked])

    def _fit(self, data: Gate, run: Workspace) -> None:
        self._phi = self._feature_map(data.schema)
        self._embedding = self.embedded(data, _LABEL, self._phi, _COUNT[data.schema.kind])
        self.shares_ = self._embedding.shares
        self.match(data.schema, run)
        self.learn_tone(data)

    def distance(self, network: nn.Module) -> FourierDistance:
        return FourierDistance(network, self._phi, self._embedding, self._batch, self.block)

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
