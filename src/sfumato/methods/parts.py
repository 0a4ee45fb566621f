"""Parts that methods of several kinds have: networks to train, paid steps over Poisson samples, grain on sampled pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sfumato.data import Schema
from sfumato.engines import Engine, LocalEngine
from sfumato.errors import BadInput
from sfumato.generators.devices import DEVICES, device_of
from sfumato.methods.base import Method
from sfumato.methods.settings import setting
from sfumato.public.bending import Bends, bent

Draw = Callable[[Tensor, torch.Generator], Tensor]  # labels → that many records
# At bend = 0.5 what teaches a CNN most of MNIST, by a slice of its training images: of 28 pixels a side each moves by one or two.
_HANDWRITING = Bends(turn=0.3, shift=0.13, bend=0.17)


class Trained(Method):
    """A method that trains a network, on the processor or on a GPU. Samples are drawn on the processor.

    **Guarantee**: none of it depends on the device. Records are read, and what comes of them is clipped, rounded and added up, on
    the processor; a device computes what networks say of them in between, and the wall takes it for what it is.
    """

    device: str = setting(
        "Where networks are trained: cpu, cuda, mps, or auto for the best there is. The wall's sums are added on the processor.",
        default="cpu",
        choices=DEVICES,
        free=True,
    )

    @property
    def place(self) -> torch.device:
        return device_of(self.device)

    def _check_machine(self, engine: Engine) -> None:
        if self.place.type != "cpu" and not isinstance(engine, LocalEngine):
            raise BadInput(
                f"device={self.device} is this machine's, and the workers of a cluster have no part in it; take device=cpu, or "
                "engine=local."
            )


class Shortened(Method):
    """A method that may train with networks in short numbers."""

    precision: str = setting(
        "Numbers in networks while the generator is trained: float32, or bfloat16, twice as fast on processors that have it; "
        "releases, distances and samples are in float32.",
        default="float32",
        choices=("float32", "bfloat16"),
        free=True,
    )

    @property
    def in_short(self) -> bool:
        return self.precision == "bfloat16"


class Stepped(Trained):
    """A method that learns by paid steps, each a sum over a fresh Poisson sample of the records."""

    rate: float = setting(
        "Share of the records in a step's Poisson sample; expected batch = rate × number of records.",
        default=0.02,
        above=0,
        high=1,
    )
    steps: int = setting("Steps, each paid for.", default=1_000, low=1)
    clip: float = setting("Norm to which each record's gradient is clipped.", default=1.0, above=0)

    @property
    def sampled(self) -> dict[str, Any]:
        """What the query of the steps is told of these settings."""
        return {"bound": self.clip, "rate": self.rate, "steps": self.steps}


class Bent(Method):
    """A method whose sampled pictures may be bent: a public belief, that things stay what they are when bent, and free.

    A few Gaussians, or a small network, draw a class in a few poses. Records come in more, and a network that learns from samples
    in a few poses knows no others.
    """

    bend: float = setting(
        "How far each sampled picture is moved, turned and bent at random, from 0 (not at all) to 1: for things that stay what "
        "they are when bent, as handwriting does; not for tables.",
        default=0.0,
        low=0,
        high=1,
        free=True,
    )

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        if self.bend and schema.kind != "images":
            raise BadInput(f"{self.info.name} can bend pictures and no tables; leave out bend.")

    def _finished(self, records: Tensor, random: torch.Generator) -> Tensor:
        if not self.bend:
            return records
        pixels = records.float() / 255 if records.dtype == torch.uint8 else records
        return bent(pixels, self.bend, random, _HANDWRITING)


class Grained(Method):
    """A method whose sampled pixels may get a little noise of their own: a public constant, and free."""

    grain: float = setting(
        "Standard deviation of the grain added to sampled pixels in [0, 1], a public constant; 0 for none.",
        default=0.05,
        low=0,
        high=1,
        free=True,
    )

    def grained(self, pixels: Tensor, random: torch.Generator) -> Tensor:
        """In place. A generator of few dimensions leaves most directions without variance, and a linear classifier trained on its
        samples builds on them; a little grain takes that away."""
        return pixels.add_(torch.randn(pixels.shape, generator=random), alpha=self.grain)
