"""A space whose vectors are remembered while a fit lasts; what it holds is PRIVATE."""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.data import Batch
from sfumato.privacy.memory import Remembered, RememberedRows
from sfumato.public.spaces import Space

__all__ = ["Remembered", "RememberedRows", "RememberingSpace"]


class RememberingSpace(Space):
    """Another space whose vectors are remembered: for one in which encoding is a network's work."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self.dim, self.radius, self.prior = space.dim, space.radius, space.prior
        self.places, self.ranged = space.places, space.ranged
        self._vectors = Remembered(space.encode)

    def encode(self, batch: Batch) -> Tensor:
        return self._vectors(batch)

    def raw(self, vectors: Tensor) -> Tensor:
        return self._space.raw(vectors)

    def finish(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return self._space.finish(raw, generator)

    def seen(self, batch: Batch) -> Tensor:
        return self._space.seen(batch)
