"""Parts that methods of several kinds have: paid steps over Poisson samples, and grain on sampled pixels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sfumato.methods.base import Method
from sfumato.methods.settings import setting


class Stepped(Method):
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
