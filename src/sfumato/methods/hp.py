"""DP-HP: Hermite polynomial features for private data generation (Vinaroz et al. 2022; thesis, app. C).

    1.  φ(x) ∈ ℝ^(C+1)                 Hermite features of one number, a short ordered series of the Gaussian kernel   (public)
    2.  μ̃ˢ = 1/n (Σ [φ(x₁), …, φ(x_D)]/√D ⊗ y + noise)      sum kernel: every number's distribution            (one release)
    3.  μ̃ᵖ_r = 1/n (Σ φ(x_i) ⊗ φ(x_j) ⊗ y + noise)          product kernel: few random coordinates, R rounds   (R releases)
    4.  min over θ   ‖μ̃ᵖ_r − E …‖² + γ ‖μ̃ˢ − E …‖²                                                               (free)

In tables a category's feature is its one-hot vector, in both kernels.

Private: the records, in steps 2 and 3 only. Public: shape, ranges, categories and classes (Schema), orders, length scale, and the
seed that draws the rounds' coordinates.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators.embedding import CountedByClass, MeanEmbedding
from sfumato.methods.base import Workspace
from sfumato.methods.matching import Matched, by_class
from sfumato.methods.registry import register
from sfumato.privacy import Plan, PrivateData, charge_of
from sfumato.public.hermite import Hermite, OnGrid, ProductKernel, SumKernel
from sfumato.public.tabular import Block, TableEncoding

_SUM = "sum kernel"
_WIDEST = 2**18


@register(
    "hp",
    title="DP-HP",
    paper="Vinaroz et al. 2022, “Hermite Polynomial Features for Private Data Generation”",
    kinds=("images", "table"),
    summary="Noisy mean embeddings in Hermite polynomial features: every coordinate, and a few at a time together.",
)
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

    HELP = {
        "order": "Order of the Hermite features in the sum kernel.",
        "product_order": "Order of the Hermite features in the product kernel.",
        "product_dims": "Coordinates that go into one product kernel.",
        "rounds": "How many times the coordinates of the product kernel are drawn; each is a release. 0 for none.",
        "product_share": "Part of the squared noise budget that goes to the product kernels, between 0 and 1.",
        "gamma": "Weight of the sum kernel's loss against the product kernel's.",
        "length_scale": "Squared length scale of the kernel on numbers in [0, 1], a public constant; auto: 0.15 for images, "
        "0.005 for tables.",
        "stretch": "Numbers x in [0, 1] are placed at stretch · (x − ½) for the Hermite features; auto: at x itself for images, "
        "6 for tables.",
        "squash": "Columns whose public range reaches beyond this are compressed by asinh before scaling; none: no column is.",
        "latent": "Normal numbers that go into the generator; auto: 5 for images, 10 for tables.",
        "hidden": "Width of the generator's dense layers; auto: 500 for images, 200 for tables.",
        "layers": "Dense hidden layers of a dense generator; the convolutional one has one.",
        "network": "The generator: auto (classed for images, dense for tables), conv, classed (own layers per class), dense.",
        "steps": "Training steps of the generator.",
        "batch": "Generated records per training step, spread evenly over the classes; auto: 200 for images, 500 for tables.",
        "learning_rate": "Adam's learning rate, at the start.",
        "decays": "How many equal parts the training has; the learning rate is multiplied by 0.9 after each.",
        "grain": "Standard deviation of the grain added to sampled pixels in [0, 1], a public constant; 0 for none.",
        "restarts": "Generators trained from the same releases; the one with the least matching loss is kept.",
        "training_seed": "Public seed of the generator's start and training; auto: the same as seed.",
        "seed": "Public seed of the rounds' coordinates and the generator; privacy noise never has a seed.",
    }
    RELEASED_BY = (
        "order",
        "product_order",
        "product_dims",
        "rounds",
        "product_share",
        "length_scale",
        "stretch",
        "squash",
        "seed",
    )

    def __init__(
        self,
        *,
        order: int = 100,
        product_order: int = 20,
        product_dims: int = 2,
        rounds: int = 10,
        product_share: float = 0.2,
        gamma: float = 10.0,
        length_scale: float | None = None,
        stretch: float | None = None,
        squash: float | None = 100.0,
        latent: int | None = None,
        hidden: int | None = None,
        layers: int = 2,
        network: str = "auto",
        steps: int = 3_000,
        batch: int | None = None,
        learning_rate: float = 0.01,
        decays: int = 5,
        grain: float = 0.05,
        restarts: int = 1,
        training_seed: int | None = None,
        seed: int = 0,
    ) -> None:
        self.order = order
        self.product_order = product_order
        self.product_dims = product_dims
        self.rounds = rounds
        self.product_share = product_share
        self.gamma = gamma
        self.length_scale = length_scale
        self.stretch = stretch
        self.squash = squash
        self.latent = latent
        self.hidden = hidden
        self.layers = layers
        self.network = network
        self.steps = steps
        self.batch = batch
        self.learning_rate = learning_rate
        self.decays = decays
        self.grain = grain
        self.restarts = restarts
        self.training_seed = training_seed
        self.seed = seed

    def _auto(self, schema: Schema) -> str:
        return "classed" if schema.kind == "images" else "dense"

    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        self._check(schema)
        counted, products = self._maps(schema)
        first, other = self._multipliers(noise_multiplier, len(products))
        return (
            charge_of(counted, first, label=_SUM),
            *(charge_of(phi, other, label=_round(r)) for r, phi in enumerate(products)),
        )

    def _fit(self, data: PrivateData, noise_multiplier: float, workspace: Workspace) -> None:
        counted, products = self._maps(data.schema)
        first, other = self._multipliers(noise_multiplier, len(products))
        whole = MeanEmbedding.release(data, counted, first, label=_SUM)
        workspace.log({"event": "release", "label": _SUM})
        rounds = []
        for r, phi in enumerate(products):
            rounds.append(whole.beside(data.noisy_sum(phi, other, label=_round(r))))
            workspace.log({"event": "release", "label": _round(r)})
        batch = self.batch or (200 if data.schema.kind == "images" else 500)
        phi_sum = counted.phi
        assert isinstance(phi_sum, SumKernel)

        def matching_of(network: nn.Module) -> _Matching:
            pairs = list(zip(products, rounds, strict=True))
            return _Matching(network, phi_sum, whole, pairs, self.gamma, batch)

        self._match(matching_of, whole.shares, data.schema, workspace)

    def _maps(self, schema: Schema) -> tuple[CountedByClass, list[ProductKernel]]:
        """The sum kernel with counts, and the rounds' product kernels over coordinates drawn by the public seed."""
        encoding = self._encoding(schema)
        images = schema.kind == "images"
        scale = self.length_scale or (0.15 if images else 0.005)
        stretch = self.stretch or (None if images else 6.0)
        sums = SumKernel(encoding, Hermite(self.order, scale, stretch))
        counted = CountedByClass(sums, schema.n_classes, 0.1 if images else 0.3)
        parts: list[int | Block] = (
            encoding.parts if isinstance(encoding, TableEncoding) else list(range(encoding.numbers))
        )
        dims = min(self.product_dims, len(parts))
        rounds = min(self.rounds, math.comb(len(parts), dims)) if dims > 1 else 0
        features = Hermite(self.product_order, scale, stretch)
        draw = np.random.RandomState(self.seed)  # its stream is frozen for ever
        chosen: dict[tuple[int, ...], None] = {}
        while len(chosen) < rounds:
            chosen[tuple(sorted(draw.choice(len(parts), dims, replace=False).tolist()))] = None
        products = [
            ProductKernel(encoding, features, [parts[i] for i in each], schema.n_classes)
            for each in chosen
        ]
        return counted, products

    def _multipliers(self, noise_multiplier: float, rounds: int) -> tuple[float, float]:
        """The noise multipliers of the sum kernel and of each round; their μ² add up to that of `noise_multiplier`."""
        if not rounds:
            return noise_multiplier, noise_multiplier
        return (
            noise_multiplier / math.sqrt(1 - self.product_share),
            noise_multiplier / math.sqrt(self.product_share / rounds),
        )

    def _latent(self, schema: Schema) -> int:
        return self.latent or (5 if schema.kind == "images" else 10)

    def _hidden(self, schema: Schema) -> int:
        return self.hidden or (500 if schema.kind == "images" else 200)

    def _check(self, schema: Schema) -> None:
        self._check_matched(schema, "order", "product_order", "product_dims")
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 0:
            raise self._bad("rounds", "a whole number of at least 0")
        if not 0 < self.product_share < 1:
            raise self._bad(
                "product_share", "strictly between 0 and 1 (rounds=0 leaves products out)"
            )
        if not (self.gamma > 0 and math.isfinite(self.gamma)):
            raise self._bad("gamma", "positive")
        for name in ("length_scale", "stretch"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise self._bad(name, "positive")
        if self.rounds and (self.product_order + 1) ** self.product_dims > _WIDEST:
            raise BadInput(
                f"hp's product kernel would have ({self.product_order} + 1)^{self.product_dims} numbers; lower product_order "
                "or product_dims."
            )


def _round(r: int) -> str:
    return f"product kernel {r + 1}"


class _Matching:
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
        self.encoding, self.scale = kernel.encoding, kernel.scale
        self.classes = len(embedding.shares)
        self.emphasis = embedding.emphasis
        self.per_class = max(2, batch // self.classes)
        self.labels = self._labels(self.per_class)
        numbers, orders = self.encoding.numbers, kernel.features.order + 1
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
        numbers = self.encoding.numbers
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
        numbers = self.encoding.numbers
        left, right = phi.of(made[:, :numbers], made[:, numbers:])
        grouped = [side.view(self.classes, per_class, -1) for side in (left, right)]
        sums = (grouped[0].transpose(1, 2) @ grouped[1]).flatten(1)  # (classes, left · right)
        norm2 = (grouped[0].square().sum(dim=2) * grouped[1].square().sum(dim=2)).mean(dim=1)
        return target.mmd2(sums, per_class, norm2, slice(None), self.emphasis)
