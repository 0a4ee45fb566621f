"""DP-HP: Hermite polynomial features for private data generation (Vinaroz et al. 2022; thesis, app. C).

    1.  φ(x) ∈ ℝ^(C+1)                 Hermite features of one number, a short ordered series of the Gaussian kernel   (public)
    2.  μ̃ˢ = 1/n (Σ [φ(x₁), …, φ(x_D)]/√D ⊗ y + noise)      sum kernel: every number's distribution            (one release)
    3.  μ̃ᵖ_r = 1/n (Σ φ(x_i) ⊗ φ(x_j) ⊗ y + noise)          product kernel: two random coordinates, R rounds   (R releases)
    4.  min over θ   ‖μ̃ᵖ_r − E …‖² + γ ‖μ̃ˢ − E …‖²                                                               (free)

In tables a category's feature is its one-hot vector, in both kernels.

Private: the records, in steps 2 and 3 only. Public: shape, ranges, categories and classes (Schema), orders, length scale, and the
seed that draws the rounds' coordinates.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.data import Schema
from sfumato.generators.embedding import MeanEmbedding
from sfumato.methods.base import Workspace
from sfumato.methods.matched import Matched, by_class, embedded, embedding_query
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query
from sfumato.public.hermite import Hermite, OnGrid, ProductKernel, SumKernel
from sfumato.public.tabular import Block, TableCodec

_SUM = "sum kernel"
_DIMS = 2  # coordinates that go into one product kernel
# What a record adds to its class's count, against at most 1 for its features: in tables rare classes must be counted well.
_COUNT = {"images": 0.1, "table": 0.3}
_BATCH = {"images": 200, "table": 500}
_LENGTH_SCALE = {"images": 0.15, "table": 0.005}
# Numbers x in [0, 1] are placed at stretch · (x − ½); None: at x itself.
_STRETCH = {"images": None, "table": 6.0}


class Hp(Matched):
    """DP-HP for images and tables, labelled or not.

    **Guarantee**: 1 + R releases calibrated jointly: the sum kernel's with `1 − product_share` of the squared noise budget, each
    round of the product kernel's with an equal part of the rest. The bounds are those of `SumKernel` (with a count beside it) and
    `ProductKernel`, sharper than the paper's 1 where the order is too low for the kernel. Everything after is post-processing.

    Differs from the paper: the shares are of the squared noise budget and calibrated jointly, where the paper splits ε
    and δ; all rounds are released before the training, which takes them in turn; class counts ride in the first
    release; the loss leaves out the self-pairs of a batch and is evaluated on a grid (`OnGrid`); sampled pixels get a
    little grain; tables: product kernels take categorical columns as well, numbers lie on [−3, 3] instead of [0, 1] so that a
    low order resolves them, and no length scale is computed from private records.
    """

    info = MethodInfo(
        name="hp",
        title="DP-HP",
        paper="Vinaroz et al. 2022, “Hermite Polynomial Features for Private Data Generation”",
        kinds=("images", "table"),
        summary="Noisy mean embeddings in Hermite polynomial features: every coordinate, and a few at a time together.",
    )
    TINY: ClassVar = {
        "order": 6,
        "product_order": 3,
        "rounds": 2,
        "steps": 12,
        "batch": 20,
        "hidden": 16,
    }
    AUTO = "classed"
    HIDDEN = {"images": 500, "table": 200}
    FORMER = {"product_dims": _DIMS}

    order: int = setting("Order of the Hermite features in the sum kernel.", default=100, low=1)
    product_order: int = setting(
        "Order of the Hermite features in the product kernel.", default=20, low=1, high=511
    )
    rounds: int = setting(
        "How many times the coordinates of the product kernel are drawn; each is a release. 0 for none.",
        default=10,
        low=0,
    )
    product_share: float = setting(
        "Part of the squared noise budget that goes to the product kernels, between 0 and 1.",
        default=0.2,
        above=0,
        below=1,
    )
    gamma: float = setting(
        "Weight of the sum kernel's loss against the product kernel's.",
        default=10.0,
        above=0,
        free=True,
    )
    length_scale: float | None = setting(
        "Squared length scale of the kernel on numbers in [0, 1], a public constant; auto: 0.15 for images, 0.005 for tables.",
        default=None,
        above=0,
    )
    hidden: int | None = setting(
        "Width of the generator's dense layers; auto: 500 for images, 200 for tables.",
        default=None,
        low=1,
        free=True,
    )
    network: str = setting(
        "The generator: auto (classed for images, dense for tables), conv, classed (own layers per class), dense.",
        default="auto",
        choices=("auto", "conv", "classed", "dense"),
        free=True,
    )
    batch: int | None = setting(
        "Generated records per training step, as many of each class; auto: 200 for images, 500 for tables.",
        default=None,
        low=1,
        free=True,
    )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        kernel, products = self._kernels(schema)
        share = self.product_share / max(1, len(products))
        # With no products the shares do not matter: there is one query.
        return [
            embedding_query(
                _SUM,
                schema,
                kernel.dim,
                kernel.bound,
                _COUNT[schema.kind],
                share=1 - self.product_share,
            ),
            *(
                Query(
                    label=_round(r),
                    shape=(phi.left, phi.right),
                    bound=phi.bound,
                    segments=phi.segments,
                    share=share,
                )
                for r, phi in enumerate(products)
            ),
        ]

    def _fit(self, data: Gate, run: Workspace) -> None:
        self._kernel, products = self._kernels(data.schema)
        self._embedding = embedded(data, _SUM, self._kernel, _COUNT[data.schema.kind])
        self._products = []
        for r, phi in enumerate(products):
            self._products.append((phi, self._embedding.beside(data.sum(_round(r), phi))))
        self.shares_ = self._embedding.shares
        self.match(data.schema, run)

    def distance(self, network: nn.Module) -> _Distance:
        batch = self.batch or _BATCH[self.schema_.kind]
        return _Distance(network, self._kernel, self._embedding, self._products, self.gamma, batch)

    def _kernels(self, schema: Schema) -> tuple[SumKernel, list[ProductKernel]]:
        """The sum kernel, and the rounds' product kernels over coordinates drawn by the public seed."""
        codec = self.plain_codec(schema)
        scale = self.length_scale or _LENGTH_SCALE[schema.kind]
        stretch = _STRETCH[schema.kind]
        parts: list[int | Block] = (
            codec.parts if isinstance(codec, TableCodec) else list(range(codec.numbers))
        )
        rounds = min(self.rounds, math.comb(len(parts), _DIMS))
        draw = np.random.RandomState(self.seed)  # its stream is frozen for ever
        chosen: dict[tuple[int, ...], None] = {}
        while len(chosen) < rounds:
            chosen[tuple(sorted(draw.choice(len(parts), _DIMS, replace=False).tolist()))] = None
        features = Hermite(self.product_order, scale, stretch)
        products = [
            ProductKernel(codec, features, [parts[i] for i in each], schema.n_classes)
            for each in chosen
        ]
        return SumKernel(codec, Hermite(self.order, scale, stretch)), products


def _round(r: int) -> str:
    return f"product kernel {r + 1}"


class _Distance:
    """Step 4's loss: product kernel of one round + γ · sum kernel."""

    def __init__(
        self,
        network: nn.Module,
        kernel: SumKernel,
        embedding: MeanEmbedding,
        products: list[tuple[ProductKernel, MeanEmbedding]],
        gamma: float,
        batch: int,
    ) -> None:
        self.network, self.products, self.gamma = network, products, gamma
        self.codec, self.scale = kernel.codec, kernel.scale
        self.classes = len(embedding.shares)
        self.emphasis = embedding.emphasis
        self.per_class = max(2, batch // self.classes)
        self.labels = self._labels(self.per_class)
        numbers, orders = self.codec.numbers, kernel.features.order + 1
        self.grid = OnGrid(kernel.features) if numbers else None
        if self.grid is not None:
            values = embedding.mean[:, : orders * numbers].to(torch.float64)
            turned = values.view(self.classes, orders, numbers).transpose(1, 2) @ self.grid.rotation
            self.number_target = replace(embedding, mean=turned.flatten(1).to(torch.float32))
        self.category_target = replace(embedding, mean=embedding.mean[:, orders * numbers :])

    def _labels(self, per_class: int) -> Tensor:
        return torch.arange(self.classes).repeat_interleave(per_class)

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        made = self.network(self.labels, generator).flatten(1)
        total = self.gamma * self._sum_distance(made, self.per_class)
        if self.products:
            total = total + self._product_distance(
                made, self.per_class, *self.products[step % len(self.products)]
            )
        return total

    def final(self, generator: torch.Generator, records: int) -> float:
        per_class = max(2, records // self.classes)
        made = self.network(self._labels(per_class), generator).flatten(1)
        total = self.gamma * float(self._sum_distance(made, per_class))
        parts = [
            float(self._product_distance(made, per_class, *product)) for product in self.products
        ]
        return total + (sum(parts) / len(parts) if parts else 0.0)

    def _sum_distance(self, made: Tensor, per_class: int) -> Tensor:
        total = made.new_zeros(())
        numbers = self.codec.numbers
        if self.grid is not None:
            grouped = made[:, :numbers].view(self.classes, per_class, numbers)
            sums, squares = self.grid.sums(grouped)
            norm2 = squares * self.scale**2 / per_class
            total = self.number_target.mmd2(
                sums.flatten(1) * self.scale, per_class, norm2, slice(None), self.emphasis
            )
        if made.shape[1] > numbers:
            sums, norm2 = by_class(made[:, numbers:] * self.scale, self.classes)
            total = total + self.category_target.mmd2(
                sums, per_class, norm2, slice(None), self.emphasis
            )
        return total

    def _product_distance(
        self, made: Tensor, per_class: int, phi: ProductKernel, target: MeanEmbedding
    ) -> Tensor:
        numbers = self.codec.numbers
        left, right = phi.of(made[:, :numbers], made[:, numbers:])
        grouped = [side.view(self.classes, per_class, -1) for side in (left, right)]
        sums = (grouped[0].transpose(1, 2) @ grouped[1]).flatten(1)  # (classes, left · right)
        norm2 = (grouped[0].square().sum(dim=2) * grouped[1].square().sum(dim=2)).mean(dim=1)
        return target.mmd2(sums, per_class, norm2, slice(None), self.emphasis)
