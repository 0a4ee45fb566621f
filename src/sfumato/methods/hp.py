"""DP-HP: Hermite polynomial features for private data generation (Vinaroz et al. 2022; thesis, app. C).

    1.  φ(x) ∈ ℝ^(C+1)                 Hermite features of one number, a short ordered series of the Gaussian kernel   (public)
    2.  μ̃ˢ = 1/n (Σ [φ(x₁), …, φ(x_D)]/√D ⊗ y + noise)      sum kernel: every number's distribution            (one release)
    3.  μ̃ᵖ_r = 1/n (Σ φ(x_i) ⊗ φ(x_j) ⊗ y + noise)          product kernel: random coordinates, R rounds       (R releases)
    4.  min over θ   ‖μ̃ᵖ_r − E …‖² + γ ‖μ̃ˢ − E …‖²                                                               (free)

In tables a category's feature is its one-hot vector, in both kernels.

Private: the records, in steps 2 and 3 only. Public: shape, ranges, categories and classes (Schema), orders, length scale, and the
seed that draws the rounds' coordinates.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from torch import nn

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators.embedding import COUNT_WEIGHT
from sfumato.methods.base import Workspace
from sfumato.methods.distances import HermiteDistance
from sfumato.methods.matched import Matched, embedded, embedding_query
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query
from sfumato.public.hermite import Hermite, ProductKernel, SumKernel
from sfumato.public.tabular import Block, TableCodec

_SUM = "sum kernel"
# Numbers that one product kernel may release, all classes together; coordinates whose product is wider are drawn again.
_MOST_NUMBERS = 2**24
_MOST_DRAWS = 10_000
# What a record adds to its class's count, against at most 1 for its features: in tables rare classes must be counted well.
_COUNT = {"images": COUNT_WEIGHT, "table": 0.3}
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
    BATCH = {"images": 200, "table": 500}

    order: int = setting("Order of the Hermite features in the sum kernel.", default=100, low=1)
    product_order: int = setting(
        "Order of the Hermite features in the product kernel.", default=20, low=1, high=511
    )
    product_dims: int = setting(
        "Pixels or columns that go into one product kernel; the numbers released grow as product_order to this power.",
        default=2,
        low=2,
        high=8,
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
        "Weight of one kernel's loss against the other's: of the one that `gamma_on` names.",
        default=10.0,
        above=0,
        free=True,
    )
    gamma_on: str = setting(
        "Which kernel's loss gamma weighs: sum, as in the paper for images, or product, as in the paper for tables.",
        default="sum",
        choices=("sum", "product"),
        free=True,
    )
    length_scale: float | None = setting(
        "Squared length scale of the kernel on numbers in [0, 1], a public constant; auto: 0.15 for images, 0.005 for tables.",
        default=None,
        above=0,
    )
    hidden: int | None = setting(
        "Width of the generator's dense layers; auto: 500 for images, 200 for tables.", default=None
    )
    network: str = setting(
        "The generator: auto (classed for images, dense for tables), conv, classed (own layers per class), dense.",
        default="auto",
    )
    batch: int | None = setting(
        "Generated records per training step, as many of each class; auto: 200 for images, 500 for tables.",
        default=None,
    )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        kernel, products = self._kernels(schema)
        share = self.product_share / max(1, len(products))
        count = _COUNT[schema.kind]
        embedding = embedding_query(
            _SUM, schema, kernel.dim, kernel.bound, count, share=1 - self.product_share
        )
        # With no products the shares do not matter: there is one query.
        asked = [
            embedding,
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
        return self.with_tone(schema, asked)

    def _fit(self, data: Gate, run: Workspace) -> None:
        self._kernel, products = self._kernels(data.schema)
        self._embedding = embedded(data, _SUM, self._kernel, _COUNT[data.schema.kind])
        self._products = []
        for r, phi in enumerate(products):
            self._products.append((phi, self._embedding.beside(data.sum(_round(r), phi))))
        self.shares_ = self._embedding.shares
        self.match(data.schema, run)
        self.learn_tone(data)

    def distance(self, network: nn.Module) -> HermiteDistance:
        released = (self._kernel, self._embedding, self._products)
        weights = (self.gamma, 1.0) if self.gamma_on == "sum" else (1.0, self.gamma)
        return HermiteDistance(network, *released, weights, self._batch)

    def _kernels(self, schema: Schema) -> tuple[SumKernel, list[ProductKernel]]:
        """The sum kernel, and the rounds' product kernels over coordinates drawn by the public seed."""
        codec = self.plain_codec(schema)
        scale = self.length_scale or _LENGTH_SCALE[schema.kind]
        stretch = _STRETCH[schema.kind]
        parts: list[int | Block] = (
            codec.parts if isinstance(codec, TableCodec) else list(range(codec.numbers))
        )
        dims = min(self.product_dims, max(2, len(parts)))
        rounds = min(self.rounds, math.comb(len(parts), dims))
        draw = np.random.RandomState(self.seed)  # its stream is frozen for ever
        features = Hermite(self.product_order, scale, stretch)
        products: dict[tuple[int, ...], ProductKernel] = {}
        for _ in range(_MOST_DRAWS):
            if len(products) == rounds:
                break
            each = tuple(sorted(draw.choice(len(parts), dims, replace=False).tolist()))
            kernel = ProductKernel(codec, features, [parts[i] for i in each], schema.n_classes)
            if kernel.segments * kernel.left * kernel.right <= _MOST_NUMBERS:
                products[each] = kernel
        if rounds and not products:
            raise BadInput(
                f"Every product of {dims} columns at order {self.product_order} has more than {_MOST_NUMBERS:,} numbers to "
                "release; give a smaller product_dims or product_order."
            )
        return SumKernel(codec, Hermite(self.order, scale, stretch)), list(products.values())


def _round(r: int) -> str:
    return f"product kernel {r + 1}"
