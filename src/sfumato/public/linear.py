"""Pixels in a public basis: low frequencies (DCT), or the principal components of public data (PCA).

Both are v = B (x − centre) / radius with orthonormal rows B, and decode by the transpose: straight lines in one space are
straight lines in the other, so means and covariances of vectors are those of pictures. Public: the DCT is a formula, PCA
reads public data.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from sfumato.data import Dataset
from sfumato.errors import BadInput
from sfumato.public.codec import Card, Codec, codec_kind
from sfumato.public.cosines import cosines
from sfumato.public.origin import card_of
from sfumato.public.products import row_product

# As many numbers as an 8×8 thumbnail, with a coarser one for the colours: few enough for noisy second moments. Chosen by
# single trials of DP-MGE on font digits taken for private, where 64 frequencies beat 144.
DEFAULT_GRAY, DEFAULT_COLOUR = 64, 96
# The public records that a PCA reads, and the pixels of them that it holds at once.
_PCA_RECORDS, _PCA_PIXELS = 10_000, 200_000_000
# Share of the public records that the radius leaves unclipped.
_COVERED = 0.99


class LinearCodec(Codec):
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
    mix = torch.eye(channels, dtype=torch.float64)
    if channels == 3:  # brightness, red against blue, green against both
        mix = torch.tensor([[1.0, 1, 1], [1, 0, -1], [-1, 2, -1]], dtype=torch.float64)
        mix = mix / torch.linalg.vector_norm(mix, dim=1, keepdim=True)
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
