"""What the mean-embedding methods share: a generator trained to match released embeddings, retries for free, samples.

Everything here comes after the releases: it is post-processing, reads no private row, and may be done again with another
network, learning rate or training seed (`refit`). The matching loss is made of released numbers only, so choosing among
generators by it is free as well.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators import ClassedGenerator, ConvGenerator, DenseGenerator, Training, train
from sfumato.methods.base import Synthesizer, Workspace
from sfumato.public.tabular import Encoding, encoding_of

NETWORKS = ("auto", "conv", "classed", "dense")
_AT_ONCE = 1000
_FINAL_SEED = 20_210_413  # any constant: all generators are judged on the same draw
_FINAL_RECORDS = 4000


class Matching(Protocol):
    """The distance between the released embeddings and a generator's."""

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        """An unbiased estimate on a batch, for a training step."""
        ...

    def final(self, generator: torch.Generator, records: int) -> float:
        """The same on all features and `records` generated records, to choose by."""
        ...


class Matched(Synthesizer):
    """A method whose generator is trained on released embeddings alone.

    After a fit, `loss_` is the final matching loss: comparable between generators trained from one and the same release.
    """

    latent: (
        Any  # a whole number; None where a method has its own choice, in `_latent` and `_hidden`
    )
    hidden: Any
    layers: int
    network: str
    steps: int
    learning_rate: float
    decays: int = 5
    grain: float
    squash: float | None
    restarts: int
    training_seed: int | None

    shares_: Tensor
    generator_: nn.Module
    loss_: float

    @abstractmethod
    def _latent(self, schema: Schema) -> int:
        """How many normal numbers go into the generator."""

    def _hidden(self, schema: Schema) -> int:
        """The width of the generator's dense layers."""
        return int(self.hidden)

    def _encoding(self, schema: Schema) -> Encoding:
        return encoding_of(schema, self.squash)

    def _auto(self, schema: Schema) -> str:
        """What network=auto is."""
        return "conv" if schema.kind == "images" else "dense"

    def _kind(self, schema: Schema) -> str:
        return self._auto(schema) if self.network == "auto" else self.network

    def _network(self, schema: Schema, kind: str, seed: int = 0) -> nn.Module:
        latent = self._latent(schema)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if kind != "dense":
                made = ClassedGenerator if kind == "classed" else ConvGenerator
                return made(schema.shape, schema.n_classes, latent, self._hidden(schema))
            encoding = self._encoding(schema)
            return DenseGenerator(
                encoding.numbers,
                schema.n_classes,
                latent,
                [self._hidden(schema)] * self.layers,
                blocks=[block.size for block in encoding.blocks],
                optional=[(number, block.start) for number, block in encoding.optional],
                shape=schema.shape if schema.kind == "images" else None,
            )

    def _match(
        self,
        matching_of: Callable[[nn.Module], Matching],
        shares: Tensor,
        schema: Schema,
        workspace: Workspace,
    ) -> None:
        """Train `restarts` generators and keep the one that matches the releases best."""
        self.shares_ = shares
        first = self.seed if self.training_seed is None else self.training_seed
        best: tuple[float, nn.Module] | None = None
        for restart in range(self.restarts):
            network = self._network(schema, self._kind(schema), first + restart)
            matching = matching_of(network)
            alone = self.restarts == 1
            train(
                network,
                matching.loss,
                Training(
                    steps=self.steps,
                    learning_rate=self.learning_rate,
                    rounds=self.decays,
                    seed=first + restart,
                    checkpoint=workspace.checkpoint_of("" if alone else f"restart {restart}"),
                    log=workspace.log if alone else partial(_log_restart, workspace, restart),
                    progress=workspace.progress,
                ),
            )
            with torch.no_grad():
                loss = matching.final(torch.Generator().manual_seed(_FINAL_SEED), _FINAL_RECORDS)
            workspace.log({"event": "matched", "training_seed": first + restart, "loss": loss})
            if best is None or loss < best[0]:
                best = loss, network
        assert best is not None
        self.loss_, self.generator_ = best

    def _sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        schema = self.schema_
        labels = apportion(self.shares_, n, generator)
        self.generator_.eval()
        with torch.no_grad():
            made = torch.cat([self._draw(some, generator) for some in labels.split(_AT_ONCE)])
        if schema.kind == "table":
            records = self._encoding(schema).decode(made, generator)
        else:
            # A generator of few dimensions leaves most directions without variance, and a linear classifier trained on its
            # samples builds on them; a little grain takes that away.
            grain = torch.randn(made.shape, generator=generator)
            made = made.add_(grain, alpha=self.grain).clamp_(0, 1)
            records = (made * 255).round().to(torch.uint8)
        return records, labels if schema.labelled else None

    def _draw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """What the generator makes for these labels."""
        made: Tensor = self.generator_(labels, generator)
        return made

    def _state(self) -> dict[str, Tensor]:
        state = {f"network.{name}": value for name, value in self.generator_.state_dict().items()}
        loss = torch.tensor(self.loss_, dtype=torch.float64)
        return {**state, "shares": self.shares_, "loss": loss}

    def _restore(self, state: dict[str, Tensor]) -> None:
        self.shares_ = state["shares"]
        self.loss_ = float(state.get("loss", math.nan))  # a run of 0.1.0 has none
        kind = self._kind(self.schema_)
        if self.network == "auto" and kind == "classed" and "network.own" not in state:
            kind = "conv"  # what auto was in 0.1.0
        self.generator_ = self._network(self.schema_, kind)
        self.generator_.load_state_dict(
            {
                name.removeprefix("network."): t
                for name, t in state.items()
                if name.startswith("network.")
            }
        )
        self.generator_.eval()

    def _check_matched(self, schema: Schema, *whole: str) -> None:
        """Refuse senseless settings; `whole` are this method's own settings that must be whole numbers."""
        for name in ("latent", "hidden", "layers", "steps", "batch", "decays", "restarts", *whole):
            value: Any = getattr(self, name)
            if value is None and name not in ("layers", "steps", "decays", "restarts"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise self._bad(name, "a whole number of at least 1")
        if not self.learning_rate > 0:
            raise self._bad("learning_rate", "positive")
        if not 0 <= self.grain <= 1:
            raise self._bad("grain", "between 0 and 1")
        if self.squash is not None and not self.squash > 0:
            raise self._bad("squash", "positive, or none to compress no column")
        if self.network not in NETWORKS:
            raise self._bad("network", f"one of {', '.join(NETWORKS)}")
        if self.network in ("conv", "classed") and schema.kind == "table":
            raise BadInput(
                f"{self.info.name}'s network={self.network} makes images and this data set is a table; use auto or dense."
            )

    def _bad(self, name: str, wanted: str) -> BadInput:
        return BadInput(f"{self.info.name}'s {name} must be {wanted}, not {getattr(self, name)!r}.")


def _log_restart(workspace: Workspace, restart: int, record: dict[str, Any]) -> None:
    workspace.log({**record, "restart": restart})


def by_class(rows: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Σ rows of each class (classes, width) and the mean of ‖row‖² (classes,), rows being sorted by class in equal numbers."""
    grouped = rows.view(classes, -1, rows.shape[1])
    return grouped.sum(dim=1), grouped.square().sum(dim=2).mean(dim=1)


def apportion(shares: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """`n` labels in the proportion of `shares` (largest remainders), in random order."""
    exact = shares.to(torch.float64) / shares.to(torch.float64).sum() * n
    counts = exact.floor().to(torch.int64)
    missing = n - int(counts.sum())
    counts[(exact - counts).argsort(descending=True, stable=True)[:missing]] += 1
    labels = torch.arange(len(shares)).repeat_interleave(counts)
    return labels[torch.randperm(n, generator=generator)]
