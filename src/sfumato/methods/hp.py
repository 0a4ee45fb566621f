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

from typing import Any, ClassVar

from torch import nn

from sfumato.data import Schema
from sfumato.generators.embedding import COUNT_WEIGHT
from sfumato.methods.base import Workspace
from sfumato.methods.distances import HermiteDistance
from sfumato.methods.matched import Matched, embedding_query
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query
from sfumato.public.hermite import Hermite, ProductKernel, SumKernel, drawn_products

_SUM = "sum kernel"
# With product_dims=auto a product of more numbers loses columns: exact noise takes five seconds for as many.
_CUT = 2**18
# What a record adds to its class's count, against at most 1 for its features: in tables rare classes must be counted well.
_COUNT = {"images": COUNT_WEIGHT, "table": 0.3}
# What auto is. Tables: the paper's products of five columns, half of the budget and equal weights, for discrete Adult (S3:2754).
_NAMES = ("product_dims", "product_order", "rounds", "product_share", "gamma", "length_scale")
_AUTO = {
    "images": dict(zip(_NAMES, (2, 20, 10, 0.2, 10.0, 0.15), strict=True)),
    "table": dict(zip(_NAMES, (5, 10, 8, 0.5, 1.0, 0.005), strict=True)),
}
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
    product_order: int | None = setting(
        "Order of the Hermite features in the product kernel; auto: 20 for images, 10 for tables.",
        default=None,
        low=1,
        high=511,
    )
    product_dims: int | None = setting(
        "Pixels or columns that go into one product kernel, whose numbers grow as product_order to this power; auto: 2 for "
        "images, 5 for tables, or fewer columns where the product would have more than 262,144 numbers.",
        default=None,
        low=2,
        high=8,
    )
    rounds: int | None = setting(
        "How often the coordinates of the product kernel are drawn, a release each; 0 for none; auto: 10, 8 for tables.",
        default=None,
        low=0,
    )
    product_share: float | None = setting(
        "Part of the squared noise budget for the product kernels, between 0 and 1; auto: 0.2 for images, 0.5 for tables.",
        default=None,
        above=0,
        below=1,
    )
    gamma: float | None = setting(
        "Weight of the loss of the kernel that `gamma_on` names, against the other's; auto: 10 for images, 1 for tables.",
        default=None,
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
        share, count = self._value("product_share", schema), _COUNT[schema.kind]
        # With no products the shares do not matter: there is one query.
        asked = [
            embedding_query(_SUM, schema, kernel.dim, kernel.bound, count, share=1 - share),
            *(
                Query(
                    label=_round(r),
                    shape=(phi.left, phi.right),
                    bound=phi.bound,
                    segments=phi.segments,
                    share=share / len(products),
                )
                for r, phi in enumerate(products)
            ),
        ]
        return self.with_tone(schema, asked)

    def _fit(self, data: Gate, run: Workspace) -> None:
        self._kernel, products = self._kernels(data.schema)
        self._embedding = self.embedded(data, _SUM, self._kernel, _COUNT[data.schema.kind])
        self._products = []
        for r, phi in enumerate(products):
            self._products.append((phi, self._embedding.beside(data.sum(_round(r), phi))))
        self.shares_ = self._embedding.shares
        self.match(data.schema, run)
        self.learn_tone(data)

    def distance(self, network: nn.Module) -> HermiteDistance:
        released = (self._kernel, self._embedding, self._products)
        gamma = self._value("gamma", self.schema_)
        weights = (gamma, 1.0) if self.gamma_on == "sum" else (1.0, gamma)
        return HermiteDistance(network, *released, weights, self._batch)

    def auto_of(self, name: str, schema: Schema) -> Any:
        # For tables, earlier versions had other numbers, and five columns that are not cut are another release.
        return _AUTO["images"].get(name) if schema.kind == "images" else None

    def _value(self, name: str, schema: Schema) -> Any:
        given = getattr(self, name)
        return _AUTO[schema.kind][name] if given is None else given

    def _kernels(self, schema: Schema) -> tuple[SumKernel, list[ProductKernel]]:
        """The sum kernel, and the rounds' product kernels over coordinates drawn by the public seed."""
        codec = self.plain_codec(schema)
        form = self._value("length_scale", schema), _STRETCH[schema.kind]
        products = drawn_products(
            codec,
            Hermite(self._value("product_order", schema), *form),
            schema.n_classes,
            dims=self._value("product_dims", schema),
            rounds=self._value("rounds", schema),
            seed=self.seed,
            cut=_CUT if self.product_dims is None and schema.kind == "table" else None,
        )
        return SumKernel(codec, Hermite(self.order, *form)), products


def _round(r: int) -> str:
    return f"product kernel {r + 1}"
