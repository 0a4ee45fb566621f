"""Texture: what a picture looks like at short range, by place: scattering features and local tones. No training, no public data.

    scattering   |x ∗ ψ|, averaged over cells: where there are edges, and of which direction (`public.scattering`)
    tones        in each cell, the shares of its pixels by gray level: membership falls linearly from a level to its neighbours
    layers       of a public network, if one is given: what it sees, averaged over larger and larger cells

All are means over a cell, so that they say what is there and not where exactly; all have derivatives, so that pictures can be
moved until their features are the wanted ones. Everything here is public: the filters are constants, and so are the weights.
"""

from __future__ import annotations

import copy
import math
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.public.perceptual import Encoder
from sfumato.public.scattering import Scattering

_LEVELS = 8
_CELLS = 8  # a side, at most
_SCALES = 2
_ROWS = 32  # pictures at a time


def textured(shape: tuple[int, ...]) -> bool:
    """Whether pictures are large enough to have any."""
    return min(shape[1:]) >= 2**_SCALES


@lru_cache(maxsize=8)
def scattering_of(shape: tuple[int, int, int], most: int) -> Scattering:
    """Maps of at most 8 × 8 places, and as many angles as `most` features allow."""
    _, height, width = shape
    scales = max(_SCALES, math.ceil(math.log2(max(height, width) / _CELLS)))
    scales = min(scales, int(math.log2(min(height, width))))
    for angles in (8, 6, 4, 3, 2):
        scattering = Scattering(shape, scales=scales, angles=angles)
        if scattering.dim <= most:
            break
    return scattering


class Texture(nn.Module):
    """`Texture(shape)(pixels)`: (n, channels, height, width) in [0, 1] → (n, dim); row i is a function of picture i alone.

    With an `encoder` its layers come last; `short`: that network, and nothing else, in short numbers.
    """

    levels: Tensor

    def __init__(
        self, shape: tuple[int, ...], most: int = 3000, encoder: Encoder | None = None
    ) -> None:
        super().__init__()
        channels, height, width = shape
        # Its own: it may be moved to a device, and the kept one is everybody's.
        self.scattering = copy.deepcopy(scattering_of((channels, height, width), most))
        self.cell = 2**self.scattering.scales
        grid = (math.ceil(height / self.cell), math.ceil(width / self.cell))
        self.tones = channels * _LEVELS * grid[0] * grid[1]
        self.encoder = encoder
        seen = () if encoder is None else encoder.widths
        self.blocks = [self.scattering.dim + self.tones, *seen]  # each of numbers in its own unit
        self.dim = sum(self.blocks)
        self.register_buffer("levels", torch.linspace(0, 1, _LEVELS), persistent=False)

    def forward(self, pixels: Tensor, short: bool = False) -> Tensor:
        # A few at a time: their tones are eight numbers for every pixel before they are averaged.
        tones = torch.cat([self._tones(some) for some in pixels.split(_ROWS)])
        layers: list[Tensor] = []
        if self.encoder is not None:
            with torch.autocast(pixels.device.type, torch.bfloat16, enabled=short):
                layers = [layer.float() for layer in self.encoder(pixels)]
        return torch.cat([self.scattering(pixels), tones, *layers], dim=1)

    def _tones(self, pixels: Tensor) -> Tensor:
        """Shares by channel, level and cell; cells at the lower and right edge may be smaller."""
        apart = (
            pixels[:, :, None] - self.levels[:, None, None]
        ).abs()  # (n, channels, levels, h, w)
        member = (1 - apart * (_LEVELS - 1)).clamp(min=0).flatten(1, 2)
        return functional.avg_pool2d(member, self.cell, ceil_mode=True).flatten(1)
