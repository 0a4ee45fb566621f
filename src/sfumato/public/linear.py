"""Pixels in a public basis: cosines (DCT), or the principal components of public data (PCA).

All are v = B (x − centre) / radius with orthonormal rows B, and decode by the transpose: straight lines in one space are
straight lines in the other, so means and covariances of vectors are those of pictures. Public: the DCT is a formula, PCA
reads public data.

- `CosineCodec`: as many frequencies as a picture has, up to 2,048, at the scale of pixels: where `mixture` lives;
- `DctCodec`, `PcaCodec`: few numbers in the unit ball, for noisy moments; by name (`get_codec`);
- `TurnedCodec`: any codec's vectors along the principal axes of public ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from sfumato.data import Batch, Dataset, Schema
from sfumato.errors import BadInput
from sfumato.files import Record
from sfumato.public.codec import Card, Codec, ImageCodec, codec_kind
from sfumato.public.origin import card_of
from sfumato.public.products import row_product
from sfumato.public.tabular import PixelCodec, TableCodec

# As many numbers as an 8×8 thumbnail, with a coarser one for the colours: few enough for noisy second moments. Chosen by
# single trials of DP-MGE on font digits taken for private, where 64 frequencies beat 144.
DEFAULT_GRAY, DEFAULT_COLOUR = 64, 96
# The public records that a PCA reads, and the pixels of them that it holds at once.
_PCA_RECORDS, _PCA_PIXELS = 10_000, 200_000_000
# Public records that tell how variance falls along the axes of a codec: each is encoded once.
_AXES_RECORDS = 2000
# An axis on which public records hardly vary may matter for private ones all the same.
_LEAST = 1e-3
# Share of the public records that the radius leaves unclipped.
_COVERED = 0.99


# Coefficients that `CosineCodec` keeps: all of 28×28, the frequencies that carry structure in larger ones.
MOST_COEFFICIENTS = 2048
# Colour differences vary less than brightness.
_CHROMA = 0.1


def cosines(side: int) -> Tensor:
    """(side, side) float64, orthonormal; row k holds k half-waves over `side` points (DCT-II)."""
    k = torch.arange(side, dtype=torch.float64)
    waves = torch.cos(math.pi / side * (k[None, :] + 0.5) * k[:, None]) * math.sqrt(2 / side)
    waves[0] /= math.sqrt(2)
    return waves


def lowest_cosines(shape: tuple[int, ...], count: int) -> Tensor:
    """(count, pixels): orthonormal waves over pictures, lowest frequencies first; all channels of one before the next."""
    channels, height, width = shape
    # Frequencies in waves per picture.
    squared = torch.arange(height)[:, None] ** 2 + torch.arange(width)[None, :] ** 2
    order = squared.flatten().argsort(stable=True)[: -(-count // channels)]
    waves = torch.einsum("ay,bx->abyx", cosines(height).float(), cosines(width).float())
    waves = waves.flatten(0, 1)[order].flatten(1)  # (frequencies, pixels)
    by_channel = torch.einsum("fp,cd->fcdp", waves, torch.eye(channels))
    return by_channel.reshape(-1, math.prod(shape))[:count].contiguous()


def _opponent(sign: int, dtype: torch.dtype) -> Tensor:
    """An orthonormal rotation of red, green, blue to brightness, red–blue, and green–magenta.

    `sign` turns the last axis around. The two codecs of cosines have it by different signs, and both must: what saved runs of
    `mixture` (−1), and of `mge`, `gan-mi` and `dre` in "dct" (1), have learnt along it would else be decoded in the opposite
    colour.
    """
    axes = torch.tensor([[1.0, 1, 1], [1, 0, -1], [-sign, 2 * sign, -sign]], dtype=dtype)
    return axes / torch.linalg.vector_norm(axes, dim=1, keepdim=True)


class CosineCodec(PixelCodec):
    """Images in an orthonormal cosine basis, centred on mid-gray; the `MOST_COEFFICIENTS` lowest frequencies.

    Lengths and inner products are those of pixels. The prior: smooth images have little energy in high frequencies, a fact of
    natural pictures and not of anybody's data.

    **Guarantee**: the basis is orthonormal and every centred pixel lies in [−½, ½], so ‖encode(x)‖ ≤ ½·√pixels.
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        channels, height, width = schema.shape
        self._rows, self._columns = cosines(height).float(), cosines(width).float()
        self._colours = _opponent(-1, torch.float32) if channels == 3 else None
        side = max(height, width)
        down = torch.arange(height, dtype=torch.float64) * side / height
        across = torch.arange(width, dtype=torch.float64) * side / width
        # Frequency in half-waves along the longer side.
        squared = down[:, None] ** 2 + across[None, :] ** 2
        strength = torch.full((channels,), _CHROMA, dtype=torch.float64)
        strength[0] = 1.0
        prior = (strength[:, None, None] * (1 + squared / 4) ** -1.2).flatten()
        self._order = prior.argsort(descending=True, stable=True)[:MOST_COEFFICIENTS]
        self._prior = prior[self._order]
        self.dim = len(self._order)

    def prior(self) -> Tensor:
        return self._prior

    def encode(self, batch: Batch) -> Tensor:
        return self.waves(batch.pixels())

    def waves(self, pixels: Tensor) -> Tensor:
        """(n, C, H, W) → (n, dim), of any numbers: `raw` turned around, as far as the frequencies are kept."""
        waves = row_product(pixels - 0.5, self._columns.T)
        waves = row_product(waves.mT.contiguous(), self._rows.T).mT
        if self._colours is not None:
            # Number by number: libraries compute a product with three columns by the place of a record in its batch.
            mixed = [waves[:, c, None] * self._colours[:, c, None, None] for c in range(3)]
            waves = mixed[0] + mixed[1] + mixed[2]
        return waves.flatten(1)[:, self._order]

    def raw(self, vectors: Tensor) -> Tensor:
        waves = torch.zeros(len(vectors), self.numbers)
        waves[:, self._order] = vectors
        waves = waves.view(len(vectors), *self.shape)
        if self._colours is not None:
            waves = torch.einsum("oc,nohw->nchw", self._colours, waves)
        waves = row_product(row_product(self._rows.T, waves), self._columns)
        return waves.add_(0.5).flatten(1)


def schema_codec(schema: Schema) -> Codec:
    """The codec that needs nothing but a schema: cosines of images, columns of a table."""
    return CosineCodec(schema) if schema.kind == "images" else TableCodec(schema)


class LinearCodec(ImageCodec):
    """v = B (x − centre) / radius, decoded by x = centre + radius · Bᵀ v."""

    def __init__(
        self, shape: tuple[int, ...], basis: Tensor, centre: Tensor, radius: float
    ) -> None:
        self.shape = tuple(shape)
        self.basis = basis  # (dim, C·H·W), orthonormal rows
        self.centre = centre  # (C·H·W,)
        self.radius = radius
        self.dim = len(basis)

    def _encode(self, pixels: Tensor) -> Tensor:
        return row_product(pixels.flatten(1) - self.centre, self.basis.T) / self.radius

    def _decode(self, vectors: Tensor, generator: torch.Generator | None) -> Tensor:
        return (self.centre + self.radius * (vectors @ self.basis)).view(-1, *self.shape)


@codec_kind
class DctCodec(LinearCodec):
    """The lowest frequencies of a picture: no data, any size, gray or colour.

    **Guarantee**: ‖v‖ ≤ 1 without clipping: pixels lie in [0, 1], so ‖x − ½‖ ≤ ½√(C·H·W) = radius, and orthonormal rows
    lengthen nothing.

    Colour goes through brightness and two colour differences (orthonormal as well); a colour difference is kept to half the
    frequency, since eyes and natural pictures have little detail there.
    """

    kind = "dct"

    def __init__(self, shape: tuple[int, ...], dim: int | None = None) -> None:
        dim = dct_dim(shape, dim)
        pixels = math.prod(shape)
        super().__init__(
            shape, _dct_basis(shape, dim), torch.full((pixels,), 0.5), math.sqrt(pixels) / 2
        )
        self.card = Card(about=f"the {dim} lowest frequencies of pictures; made of no data")

    def _tensors(self) -> dict[str, Tensor]:
        return {"basis": torch.zeros(0)}  # a formula; safetensors wants one tensor

    @classmethod
    def _from_tensors(
        cls, tensors: dict[str, Tensor], shape: tuple[int, ...], dim: int, settings: dict[str, Any]
    ) -> Self:
        return cls(shape, dim)


def dct_dim(shape: tuple[int, ...], dim: int | None) -> int:
    """How many frequencies `dct` or `dct:K` means for pictures of `shape`."""
    pixels = math.prod(shape)
    if dim is None:
        return min(pixels, DEFAULT_GRAY if shape[0] == 1 else DEFAULT_COLOUR)
    if not 1 <= dim <= pixels:
        raise BadInput(
            f"dct:{dim} asks for {dim} frequencies, and pictures of shape {tuple(shape)} have {pixels}; ask for 1 to {pixels}."
        )
    return dim


def _dct_basis(shape: tuple[int, ...], dim: int) -> Tensor:
    channels, height, width = shape
    double = torch.float64
    mix = _opponent(1, double) if channels == 3 else torch.eye(channels, dtype=double)
    rows, columns = cosines(height), cosines(width)
    order = [
        ((y * y + x * x) * (1 if channel == 0 or channels != 3 else 4), channel, y, x)
        for channel in range(channels)
        for y in range(height)
        for x in range(width)
    ]
    chosen = sorted(order)[:dim]
    waves = [torch.einsum("c,h,w->chw", mix[c], rows[y], columns[x]) for _, c, y, x in chosen]
    return torch.stack(waves).flatten(1).to(torch.float32)


@codec_kind
class PcaCodec(LinearCodec):
    """The principal components of public pictures.

    **Guarantee**: ‖v‖ ≤ 1, by clipping at a radius that holds 99 % of the public records.
    """

    kind = "pca"

    @classmethod
    def fit(cls, public: Dataset, dim: int | None = None, *, seed: int = 0) -> PcaCodec:
        """From public records, a random 10,000 of them at most."""
        schema = public.schema
        if schema.kind != "images":
            raise BadInput("A codec is for images, and this public data set is a table.")
        records = min(len(public), _PCA_RECORDS, max(64, _PCA_PIXELS // schema.dim))
        dim = pca_dim(schema.shape, dim)
        if dim >= records:
            raise BadInput(
                f"pca:{dim} needs more than {dim} public records, and there are {len(public)}; ask for fewer components."
            )
        chosen = np.random.default_rng(seed).permutation(len(public))[:records]
        batch = public.take(np.sort(chosen))
        rows, centre, radius = principal_components(batch.pixels().flatten(1), dim, seed=seed)
        codec = cls(schema.shape, rows, centre, radius)
        codec.made_of = public
        codec.card = card_of(
            public, f"{dim} principal components of public pictures", [batch], seed=seed
        )
        return codec

    def _tensors(self) -> dict[str, Tensor]:
        return {"basis": self.basis, "centre": self.centre}

    def _settings(self) -> dict[str, Any]:
        return {"radius": self.radius}

    @classmethod
    def _from_tensors(
        cls, tensors: dict[str, Tensor], shape: tuple[int, ...], dim: int, settings: dict[str, Any]
    ) -> Self:
        return cls(shape, tensors["basis"], tensors["centre"], float(settings["radius"]))


def pca_dim(shape: tuple[int, ...], dim: int | None) -> int:
    """How many components `pca` or `pca:K` means for pictures of `shape`."""
    most = math.prod(shape)
    if dim is None:
        return min(64, most)
    if not 1 <= dim <= most:
        raise BadInput(f"pca:{dim} must ask for 1 to {most} components of these pictures.")
    return dim


def principal_components(rows: Tensor, dim: int, *, seed: int) -> tuple[Tensor, Tensor, float]:
    """Of public rows (n, width): orthonormal components (dim, width), the mean, and a radius that holds 99 % of the rows."""
    centre = rows.mean(dim=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        extra = min(dim + 16, *rows.shape)
        basis = torch.svd_lowrank(rows - centre, q=extra, niter=4)[2][:, :dim].T.contiguous()
    # Signs of components are arbitrary: fix them, so that one data set gives one codec.
    basis = basis * torch.where(basis.sum(dim=1, keepdim=True) < 0, -1.0, 1.0)
    lengths = torch.linalg.vector_norm((rows - centre) @ basis.T, dim=1)
    return basis, centre, max(1e-6, float(torch.quantile(lengths, _COVERED)))


# -- another codec's vectors along principal axes ------------------------------------------------------------------------


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


class TurnedCodec(Codec):
    """A codec's vectors along the principal axes of public ones.

    **Guarantee**: the axes are orthonormal, so ‖encode(x)‖ is that of the codec turned; row-wise as that is.
    """

    def __init__(self, codec: Codec, axes: Axes, prior: Tensor | None = None) -> None:
        self.codec, self.axes = codec, axes  # what a run keeps; the prior serves a fit only
        self.dim, self.bound, self._prior = codec.dim, codec.bound, prior

    @classmethod
    def along(cls, codec: Codec, public: Dataset, *, seed: int) -> TurnedCodec:
        """With axes and prior from public records."""
        chosen = np.random.default_rng(seed).permutation(len(public))[:_AXES_RECORDS]
        return cls(codec, *Axes.along(codec.encode(public.take(np.sort(chosen)))))

    def prior(self) -> Tensor:
        return super().prior() if self._prior is None else self._prior

    def encode(self, batch: Batch) -> Tensor:
        return self.axes.into(self.codec.encode(batch))

    def raw(self, vectors: Tensor) -> Tensor:
        return self.axes.back(vectors)

    def finish(self, raw: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.codec.decode(raw, generator=generator)

    def seen(self, batch: Batch) -> Tensor:
        return self.codec.seen(batch)
