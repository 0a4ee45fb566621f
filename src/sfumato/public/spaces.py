"""Spaces: where a mixture lives. A record becomes a bounded vector and back, by public facts alone.

- `PixelSpace`: images in their orthonormal cosine basis (DCT), colours in opponent axes, lowest frequencies first. Lengths and
  inner products are those of pixels.
- `TableSpace`: numbers scaled by their public range, categories as indicators. A vector is as long as its parts.

Each space says how large a vector can be (`radius`) and how variance is expected to fall along its axes (`prior`): smooth images
have little energy in high frequencies, a fact of natural pictures and not of anybody's data. The latent space of a public
codec is one too (`sfumato.public.space`). Everything here is public.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.public.cosines import cosines
from sfumato.public.products import row_product
from sfumato.public.tabular import TableEncoding

# Coefficients of an image that are modelled: all of 28×28, the frequencies that carry structure in larger ones.
MOST_COEFFICIENTS = 2048
# Colour differences vary less than brightness.
_CHROMA = 0.1


class Space(ABC):
    """Records as vectors.

    **Guarantee**: ‖encode(x)‖₂ ≤ `radius` for every record without NaN; row-wise. (The wall clips in any case.)
    """

    dim: int
    radius: float
    prior: Tensor  # (dim,) expected variances up to a common factor, largest first, float64
    places: int  # numbers that a record is finished from
    ranged: bool = True  # whether these are the record's own, each in [0, 1]

    @abstractmethod
    def encode(self, batch: Batch) -> Tensor:
        """(n records) → (n, dim) float32"""

    @abstractmethod
    def raw(self, vectors: Tensor) -> Tensor:
        """(n, dim) → (n, places): the numbers that a vector stands for; `ranged` ones may still lie outside [0, 1]."""

    @abstractmethod
    def finish(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        """(n, places) → records as a data set holds them, after clipping to [0, 1]."""

    def seen(self, batch: Batch) -> Tensor:
        """(n, C, H, W) in [0, 1]: images as far as this space can tell them; row-wise."""
        return batch.pixels()


class PixelSpace(Space):
    """Images in an orthonormal cosine basis, centred on mid-gray; the `MOST_COEFFICIENTS` lowest frequencies.

    **Guarantee**: the basis is orthonormal and every centred pixel lies in [−½, ½], so ‖encode(x)‖ ≤ ½·√pixels.
    """

    def __init__(self, schema: Schema) -> None:
        channels, height, width = schema.shape
        self.shape, self.places = schema.shape, schema.dim
        self.radius = 0.5 * math.sqrt(schema.dim)
        self._rows, self._columns = cosines(height).float(), cosines(width).float()
        self._colours = _opponent() if channels == 3 else None
        side = max(height, width)
        down = torch.arange(height, dtype=torch.float64) * side / height
        across = torch.arange(width, dtype=torch.float64) * side / width
        squared = (
            down[:, None] ** 2 + across[None, :] ** 2
        )  # frequency in half-waves along the longer side
        power = (1 + squared / 4) ** -1.2
        strength = torch.full((channels,), _CHROMA, dtype=torch.float64)
        strength[0] = 1.0
        prior = (strength[:, None, None] * power).flatten()
        order = prior.argsort(descending=True, stable=True)[:MOST_COEFFICIENTS]
        self.dim = len(order)
        self.prior = prior[order]
        self._order = order

    def encode(self, batch: Batch) -> Tensor:
        waves = row_product(batch.pixels() - 0.5, self._columns.T)
        waves = row_product(waves.mT.contiguous(), self._rows.T).mT
        if self._colours is not None:
            # Number by number: libraries compute a product with three columns by the place of a record in its batch.
            mixed = [waves[:, c, None] * self._colours[:, c, None, None] for c in range(3)]
            waves = mixed[0] + mixed[1] + mixed[2]
        flat = waves.flatten(1)
        return flat[:, self._order]

    def raw(self, vectors: Tensor) -> Tensor:
        waves = torch.zeros(len(vectors), self.places)
        waves[:, self._order] = vectors
        waves = waves.view(len(vectors), *self.shape)
        if self._colours is not None:
            waves = torch.einsum("oc,nohw->nchw", self._colours, waves)
        return (self._rows.T @ waves @ self._columns).add_(0.5).flatten(1)

    def finish(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return as_bytes(raw).view(len(raw), *self.shape)


class TableSpace(Space):
    """Columns side by side: numbers scaled by their public range, categories as indicators (`TableEncoding`), all around ½.

    **Guarantee**: every place lies in [0, 1] before ½ is taken off, so each of them adds at most ¼ to the squared length.
    """

    def __init__(self, schema: Schema) -> None:
        self._encoding = TableEncoding(schema)
        self.dim = self.places = self._encoding.numbers + self._encoding.places
        self.radius = 0.5 * math.sqrt(self.dim)
        self.prior = torch.ones(self.dim, dtype=torch.float64)

    def encode(self, batch: Batch) -> Tensor:
        return torch.cat(self._encoding.encode(batch), dim=1) - 0.5

    def raw(self, vectors: Tensor) -> Tensor:
        return vectors + 0.5

    def finish(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return self._encoding.decode(raw.clamp(0, 1), generator)


def as_bytes(pixels: Tensor) -> Tensor:
    return pixels.clamp(0, 1).mul_(255).round_().to(torch.uint8)


def space_of(schema: Schema) -> Space:
    return PixelSpace(schema) if schema.kind == "images" else TableSpace(schema)


def _opponent() -> Tensor:
    """An orthonormal rotation of red, green, blue to brightness, red–blue, and green–magenta."""
    axes = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]])
    return axes / axes.norm(dim=1, keepdim=True)
