"""The network of a denoiser: a small U-Net that looks at a noisy picture and at what is known of it already.

Made of layers whose per-record gradients the wall adds up fast (convolutions, dense layers, an embedding), without normalisation;
two pixels by two are one place of the first maps, so that the work is a quarter of that at full size. For pictures of any size,
filled up at the lower and right edge to a multiple of 4.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

_WAVES = 8  # by which a noise level is told


class Denoiser(nn.Module):
    """(n, looks · C, H, W), noise levels (n,), labels (n,) → (n, C, H, W); zero before it has learnt anything.

    `width` channels at half size, twice as many at a quarter; 78,000 parameters at width 24 (gray, ten classes).
    Where the level is below `class_from` the network is not told the label.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        n_classes: int,
        width: int = 24,
        looks: int = 2,
        class_from: float = 0.0,
    ) -> None:
        super().__init__()
        channels, low = shape[0], 2 * width
        self.class_from = class_from
        self.level = nn.Linear(2 * _WAVES, width)
        self.label = nn.Embedding(n_classes, width) if n_classes > 1 else None
        self.told = nn.ModuleList(nn.Linear(width, size) for size in (width, low, width))
        self.first = nn.Conv2d(4 * looks * channels, width, 3, padding=1)
        self.fine = nn.Conv2d(width, width, 3, padding=1)
        self.down = nn.Conv2d(width, low, 3, stride=2, padding=1)
        self.coarse = nn.ModuleList(nn.Conv2d(low, low, 3, padding=1) for _ in range(2))
        self.up = nn.ConvTranspose2d(low, width, 2, stride=2)
        self.joined = nn.Conv2d(2 * width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 4 * channels, 3, padding=1)
        for parameter in self.last.parameters():
            nn.init.zeros_(parameter)

    def forward(self, looks: Tensor, levels: Tensor, labels: Tensor) -> Tensor:
        height, wide = looks.shape[2:]
        told = functional.silu(self._told(levels, labels))
        fine, coarse, joined = (layer(told)[:, :, None, None] for layer in self.told)
        x = functional.pad(looks, (0, -wide % 4, 0, -height % 4), mode="replicate")
        x = functional.silu(self.first(functional.pixel_unshuffle(x, 2)) + fine)
        kept = functional.silu(self.fine(x)) + x
        x = functional.silu(self.down(kept) + coarse)
        x = x + self.coarse[1](functional.silu(self.coarse[0](x)))
        x = self.up(functional.silu(x))
        x = functional.silu(self.joined(torch.cat([kept, x], dim=1)) + joined)
        made: Tensor = functional.pixel_shuffle(self.last(x), 2)
        return made[:, :, :height, :wide]

    def _told(self, levels: Tensor, labels: Tensor) -> Tensor:
        """(n, width) of level and label."""
        waves = torch.arange(-2, _WAVES - 2, device=levels.device)
        angles = levels.log()[:, None] * (math.pi / 2 * 2.0**waves / 2)
        told: Tensor = self.level(torch.cat([angles.cos(), angles.sin()], dim=1))
        if self.label is None:
            return told
        return told + self.label(labels) * (levels >= self.class_from)[:, None]
