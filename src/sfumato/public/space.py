"""The latent of a public codec as a space for mixtures: vectors in, decoded pictures out.

Pixels are a poor place for Gaussians: their means and mixtures are blurred. A decoder that was made of public pictures turns a
vector that no picture has into a picture all the same. Public: the codec, and the public records that its axes are ordered by.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sfumato.data import Batch, Dataset
from sfumato.files import Record
from sfumato.public.codec import Codec
from sfumato.public.products import row_product
from sfumato.public.spaces import MOST_COEFFICIENTS, Space, as_bytes

# Public records that tell how variance falls along the axes: each is encoded once.
_RECORDS = 2000
# An axis on which public records hardly vary may matter for private ones all the same.
_LEAST = 1e-3


@dataclass(frozen=True)
class Axes(Record):
    """Orthonormal axes of a latent space, those with the largest variance among public vectors first."""

    order: Tensor  # (dim,) a permutation of the codec's numbers
    turn: Tensor  # (k, k) orthonormal: principal directions of the first k of them

    @classmethod
    def along(cls, vectors: Tensor) -> tuple[Axes, Tensor]:
        """From public vectors (n, dim); also their variances along the axes."""
        n, dim = vectors.shape
        around = (vectors - vectors.mean(0)).double()
        variances = around.square().mean(0)
        order = variances.argsort(descending=True, stable=True)
        lead = min(dim, MOST_COEFFICIENTS)
        first = around[:, order[:lead]]
        square = first.T @ first / n
        # With few records some directions have no variance by chance alone.
        share = lead / (lead + n)
        square = (1 - share) * square + share * square.trace() / lead * torch.eye(lead)
        values, directions = torch.linalg.eigh(square)
        variances = torch.cat([values.flip(0), variances[order[lead:]]])
        variances = variances.clamp(min=max(1e-30, _LEAST * float(variances.max())))
        return cls(order, directions.flip(1).to(torch.float32).contiguous()), variances

    def into(self, vectors: Tensor) -> Tensor:
        rows = vectors[:, self.order]
        lead = len(self.turn)
        return torch.cat([row_product(rows[:, :lead], self.turn), rows[:, lead:]], dim=1)

    def back(self, rows: Tensor) -> Tensor:
        lead = len(self.turn)
        vectors = torch.empty_like(rows)
        vectors[:, self.order] = torch.cat([rows[:, :lead] @ self.turn.T, rows[:, lead:]], dim=1)
        return vectors


class CodecSpace(Space):
    """Images as the vectors of a codec.

    **Guarantee**: the axes are orthonormal, so ‖encode(x)‖ = ‖codec.encode(x)‖ ≤ codec.bound; row-wise as the codec is.
    """

    ranged = False  # a decoder keeps pixels in [0, 1] itself

    def __init__(self, codec: Codec, axes: Axes | None = None, prior: Tensor | None = None) -> None:
        self.codec = codec
        self.dim = self.places = codec.dim
        self.radius = codec.bound
        self.prior = torch.ones(codec.dim, dtype=torch.float64) if prior is None else prior
        self.axes = axes  # all that must be saved; the prior serves a fit only

    @classmethod
    def ordered(cls, codec: Codec, public: Dataset | None, *, seed: int) -> CodecSpace:
        """With axes and prior from public records; without any, the codec's own axes and a flat prior."""
        if public is None:
            return cls(codec)
        chosen = np.random.default_rng(seed).permutation(len(public))[:_RECORDS]
        vectors = codec.encode(public.take(np.sort(chosen)).pixels())
        return cls(codec, *Axes.along(vectors))

    def encode(self, batch: Batch) -> Tensor:
        vectors = self.codec.encode(batch.pixels())
        return vectors if self.axes is None else self.axes.into(vectors)

    def raw(self, vectors: Tensor) -> Tensor:
        return vectors if self.axes is None else self.axes.back(vectors)

    def finish(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return as_bytes(self.codec.decode(raw, generator=generator))

    def seen(self, batch: Batch) -> Tensor:
        """What the codec gives back of a picture, in the levels that samples have; NaN stays for the wall to drop."""
        return self.codec.decode(self.codec.encode(batch.pixels())).mul_(255).round_().div_(255)
