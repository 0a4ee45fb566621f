"""What the methods that end with a conditional image generator share: the network, samples of it, and how it is kept.

Nothing here sees a record: the generator was trained on what came through the wall.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators.networks import ConvGenerator
from sfumato.methods.base import Synthesizer
from sfumato.methods.counts import apportion


class ImageSynthesizer(Synthesizer):
    """Samples: labels in their noisy shares (`shares_`), images from `generator_`."""

    latent: int
    hidden: int
    grain: float
    shares_: Tensor
    generator_: nn.Module

    def _sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        labels = apportion(self.shares_, n, generator)
        images = torch.empty(n, *self.schema_.shape, dtype=torch.uint8)
        for at in torch.arange(n).split(1000):
            with torch.no_grad():
                pixels = self.generator_(labels[at], generator)
            pixels += torch.randn(pixels.shape, generator=generator) * self.grain
            images[at] = (pixels.clamp(0, 1) * 255).round().to(torch.uint8)
        return images, labels if self.schema_.labelled else None

    def _state(self) -> dict[str, Tensor]:
        network = {f"network.{name}": value for name, value in self.generator_.state_dict().items()}
        return {**network, "shares": self.shares_}

    def _restore(self, state: dict[str, Tensor]) -> None:
        self.shares_ = state["shares"]
        self.generator_ = self._generator(self.schema_)
        prefix = "network."
        self.generator_.load_state_dict(
            {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
        )
        self.generator_.eval()

    def _generator(self, schema: Schema) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return ConvGenerator(schema.shape, schema.n_classes, self.latent, self.hidden)

    def _check_settings(
        self, *, whole: tuple[str, ...], positive: tuple[str, ...], below_one: tuple[str, ...]
    ) -> None:
        """Whole numbers of at least 1, positive numbers, and shares in [0, 1)."""
        name = self.info.name
        for setting in whole:
            value = getattr(self, setting)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadInput(
                    f"{name}'s {setting} must be a whole number of at least 1, not {value!r}."
                )
        for setting in positive:
            if not getattr(self, setting) > 0:
                raise BadInput(
                    f"{name}'s {setting} must be positive, not {getattr(self, setting)}."
                )
        for setting in below_one:
            if not 0 <= getattr(self, setting) < 1:
                raise BadInput(
                    f"{name}'s {setting} must lie in [0, 1), not {getattr(self, setting)}."
                )
