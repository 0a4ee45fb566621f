"""The matched kind: mean embeddings are released once, and a generator is trained until its own embeddings match them.

The kind owns the network, its training, retries and samples; a method adds its features and the distance. All of it comes after
the releases: it reads no private row, and may be done again with another network, learning rate or training seed (`refit`). The
distance is made of released numbers only, so choosing among generators by it is free as well.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators.devices import moved
from sfumato.generators.embedding import CountedByClass, MeanEmbedding
from sfumato.generators.networks import (
    ClassedGenerator,
    ConvGenerator,
    DenseGenerator,
    PointsGenerator,
    seeded,
)
from sfumato.methods.base import Workspace
from sfumato.methods.distances import Distance, EmbeddingDistance
from sfumato.methods.distances import (
    by_class as by_class,  # where methods written for 0.4 look for it
)
from sfumato.methods.parts import Grained, Trained
from sfumato.methods.settings import LARGEST_SEED, setting
from sfumato.methods.tone import Toned
from sfumato.privacy import FeatureMap, Gate, Query
from sfumato.public.tabular import PixelCodec, TableCodec, plain_codec

_WIDTHS = r"[1-9][0-9]{0,4}d?(,[1-9][0-9]{0,4}d?)*"
_POINTS = 1_000  # of each class, where points take the network's place


class MatchedImages(Trained, Grained, Toned):
    """A method of images whose generator is trained on released embeddings alone.

    After a fit, `loss_` is the final distance: comparable between generators trained from one and the same release.
    """

    AUTO: ClassVar[str] = "conv"  # what network=auto is for images
    HIDDEN: ClassVar[Mapping[str, int]] = {"images": 200, "table": 200}  # what hidden=auto is
    BATCH: ClassVar[Mapping[str, int]] = {"images": 100, "table": 500}  # what batch=auto is
    PAIRS: ClassVar[Mapping[str, bool]] = {"images": False, "table": True}  # self_pairs=auto
    DECAY: ClassVar[float] = 0.9
    # Seed and number of the records that all generators are judged on: any constants.
    FINAL: ClassVar[tuple[int, int]] = (20_210_413, 4000)

    latent: int | None = setting(
        "Normal numbers that go into the generator; auto: 5 for images, 10 for tables.",
        default=None,
        low=1,
        free=True,
    )
    hidden: int | None = setting(
        "Width of the generator's dense layers; auto: 200.", default=None, low=1, free=True
    )
    network: str = setting(
        "The generator: auto (conv), conv, classed (conv, own layers per class).",
        default="auto",
        choices=("auto", "conv", "classed"),
        free=True,
    )
    steps: int = setting("Training steps of the generator.", default=3_000, low=1, free=True)
    batch: int | None = setting(
        "Generated records per training step, as many of each class; auto: 100 for images, 500 for tables.",
        default=None,
        low=1,
        free=True,
    )
    learning_rate: float = setting(
        "Adam's learning rate, at the start.", default=0.01, above=0, free=True
    )
    decays: int = setting(
        "How many equal parts the training has; the learning rate is multiplied by 0.9 after each.",
        default=5,
        low=1,
        free=True,
    )
    restarts: int = setting(
        "Generators trained from the one release; the one with the least distance is kept.",
        default=1,
        low=1,
        free=True,
    )
    training_seed: int | None = setting(
        "Public seed of the generator's start and training; auto: the same as seed.",
        default=None,
        low=0,
        high=LARGEST_SEED,
        free=True,
    )

    @abstractmethod
    def distance(self, network: nn.Module) -> Distance:
        """Of `network` from what `_fit` asked for."""

    def build(self, schema: Schema) -> None:
        self.generator_ = self._network(schema, self._first_seed)

    def auto(self, schema: Schema) -> str:
        """What network=auto is."""
        return self.AUTO

    def generator(self, kind: str, schema: Schema) -> nn.Module:
        """A network of this kind, with random weights."""
        made = ClassedGenerator if kind == "classed" else ConvGenerator
        return made(schema.shape, schema.n_classes, self.latent or 5, self._hidden(schema))

    def _hidden(self, schema: Schema) -> int:
        return self.hidden or self.HIDDEN[schema.kind]

    def _network(self, schema: Schema, seed: int, auto: str | None = None) -> nn.Module:
        kind = (auto or self.auto(schema)) if self.network == "auto" else self.network
        return seeded(seed, self.generator, kind, schema)

    @property
    def _first_seed(self) -> int:
        return self.seed if self.training_seed is None else self.training_seed

    def match(self, schema: Schema, run: Workspace) -> Distance:
        """Train `restarts` generators and keep the one that matches the releases best; its distance."""
        best: tuple[float, nn.Module, Distance] | None = None
        device = self.place
        for restart in range(self.restarts):
            seed = self._first_seed + restart
            network = self._network(schema, seed)
            distance = self.distance(network)
            apart = device.type != "cpu" and isinstance(distance, EmbeddingDistance)
            if apart:  # DP-MEPF's, whose features are on the device already, is where they are
                distance = moved(distance, device)
            minimise(
                distance if isinstance(distance, nn.Module) else network,
                distance.loss,
                run,
                steps=self.steps,
                seed=seed,
                rate=lambda step: (
                    self.learning_rate * self.DECAY ** (step * self.decays // self.steps)
                ),
                stage="" if self.restarts == 1 else f"restart {restart}",
            )
            judge, records = self.FINAL
            with torch.no_grad():
                final = distance.final(torch.Generator().manual_seed(judge), records)
            if apart:
                network.to("cpu")  # samples are drawn on the processor
            run.log({"event": "matched", "training_seed": seed, "loss": final})
            if best is None or final < best[0]:
                best = final, network, distance
        assert best is not None
        self.loss_, self.generator_, distance = best
        return distance

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        return self.toned(self.grained(self.made(labels, random), random))

    def made(self, labels: Tensor, random: torch.Generator) -> Tensor:
        """What the generator makes of these labels, before grain."""
        made: Tensor = self.generator_(labels, random)
        return made

    def _earlier(self, state: dict[str, Tensor]) -> dict[str, Any]:
        if "network.own" not in state and isinstance(self.generator_, ClassedGenerator):
            self.generator_ = self._network(self.schema_, 0, auto="conv")  # auto in 0.1.0
        loss = float(state.get("loss", torch.tensor(math.nan)))  # a run of 0.1.0 has none
        return {**super()._earlier(state), "loss_": loss}


class Matched(MatchedImages):
    """The same for tables as well, and with dense generators."""

    layers: int = setting(
        "Dense hidden layers of a dense generator; the convolutional one has one.",
        default=2,
        low=1,
        free=True,
    )
    widths: str | None = setting(
        "Widths of a dense generator's hidden layers, in place of hidden and layers: numbers with commas between, such as "
        "200,500,500,200, or times the numbers that it makes (one-hot places count), such as 4d,2d; auto: hidden, as often as "
        "layers says.",
        default=None,
        free=True,
    )
    network: str = setting(
        "The generator: auto (conv for images, dense for tables), conv, classed (conv, own layers per class), dense, or points "
        "(no network: 1,000 points of each class are moved).",
        default="auto",
        choices=("auto", "conv", "classed", "dense", "points"),
    )
    self_pairs: bool | None = setting(
        "Whether the distance counts each generated record with itself, as in the papers; without, it is unbiased; none for "
        "auto: in tables, but for pearl.",
        default=None,
        free=True,
    )
    squash: float | None = setting(
        "Columns whose public range reaches beyond this are compressed by asinh before scaling; none: no column is.",
        default=100.0,
        above=0,
    )

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        if self.network in ("conv", "classed") and schema.kind == "table":
            raise BadInput(
                f"{self.info.name}'s network={self.network} makes images and this data set is a table; use auto, dense or points."
            )
        if self.widths is None:
            return
        if not re.fullmatch(_WIDTHS, self.widths):
            raise BadInput(
                f"{self.info.name}'s widths are whole numbers with commas between, such as 200,500 or 4d,2d, not {self.widths!r}."
            )
        kind = self.auto(schema) if self.network == "auto" else self.network
        if self.hidden is not None or kind != "dense":
            remedy = "set network=dense" if kind != "dense" else "leave hidden out"
            raise BadInput(
                f"{self.info.name}'s widths are those of a dense generator, in place of hidden; {remedy}, or leave widths out."
            )

    def embedded(
        self, data: Gate, label: str, phi: FeatureMap, count_weight: float
    ) -> MeanEmbedding:
        """Ask for a mean embedding; distances from it have self-pairs or not."""
        pairs = self.PAIRS[data.schema.kind] if self.self_pairs is None else self.self_pairs
        return replace(embedded(data, label, phi, count_weight), self_pairs=pairs)

    @property
    def _batch(self) -> int:
        return self.batch or self.BATCH[self.schema_.kind]

    def plain_codec(self, schema: Schema) -> PixelCodec | TableCodec:
        return plain_codec(schema, self.squash)

    def auto(self, schema: Schema) -> str:
        return "dense" if schema.kind == "table" else super().auto(schema)

    def generator(self, kind: str, schema: Schema) -> nn.Module:
        table = schema.kind == "table"
        if kind not in ("dense", "points") and not table:
            return super().generator(kind, schema)
        codec = self.plain_codec(schema)
        form: dict[str, Any] = {
            "blocks": [block.size for block in codec.blocks],
            "optional": [(number, block.start) for number, block in codec.optional],
            "shape": None if table else schema.shape,
        }
        facts = codec.numbers, schema.n_classes
        if kind == "points":
            return PointsGenerator(*facts, _POINTS, **form)
        latent = self.latent or (10 if table else 5)
        return DenseGenerator(*facts, latent, self._widths(schema, codec.dim), **form)

    def _widths(self, schema: Schema, made: int) -> list[int]:
        """Of the hidden layers of a dense generator that makes so many numbers."""
        if self.widths is None:
            return [self._hidden(schema)] * self.layers
        parts = self.widths.split(",")
        return [int(part.removesuffix("d")) * (made if part.endswith("d") else 1) for part in parts]

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        if self.schema_.kind == "table":
            return self.plain_codec(self.schema_).finish(self.made(labels, random), random)
        return super()._sample(labels, random)


def minimise(
    network: nn.Module,
    loss: Callable[[int, torch.Generator], Tensor],
    run: Workspace,
    *,
    steps: int,
    seed: int,
    rate: Callable[[int], float],
    stage: str = "",
) -> None:
    """Train the network by Adam on `loss(step, random)`, at the learning rate `rate(step)`; leaves it in evaluation mode."""
    adam = torch.optim.Adam(network.parameters(), lr=rate(0), fused=True)
    random = torch.Generator().manual_seed(seed)
    training = run.training(
        "Training the generator", random, stage=stage, network=network, adam=adam
    )
    network.train()
    for step in training(steps):
        adam.param_groups[0]["lr"] = rate(step)
        adam.zero_grad(set_to_none=True)
        value = loss(step, random)
        value.backward()
        adam.step()
        training.facts["loss"] = value.detach()
    network.eval()


def embedding_query(
    label: str,
    schema: Schema,
    dim: int,
    bound: float,
    count_weight: float,
    *,
    classes: int | None = None,
    **more: Any,
) -> Query:
    """[φ(x), w] filed by class: beside the features a constant, whose sum is w times the number of records of the class.

    `classes`: 0 for all of them together; None for those of the schema.
    """
    return Query(
        label=label,
        shape=(dim + 1,),
        bound=math.hypot(bound, count_weight),
        segments=max(1, schema.n_classes if classes is None else classes),
        **more,
    )


def embedded(
    data: Gate,
    label: str,
    phi: FeatureMap,
    count_weight: float,
    given: Sequence[Tensor] = (),
    classes: int | None = None,
) -> MeanEmbedding:
    """Ask for a mean embedding; `given` are the released numbers that φ is made with, `classes` as in its query."""
    rows = CountedByClass(phi, data.schema.n_classes if classes is None else classes, count_weight)
    release = data.sum(label, rows, given=given)
    return MeanEmbedding.of(release, rows, size=data.public_size)
