"""Residual networks: the generator of DP-MEPF for colour images and larger sizes (thesis, app. D), which sees noise and labels
only, and ResNet9, of which a critic is made by group normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.generators.gan import group_norm


class ResNetGenerator(nn.Module):
    """Normals and a one-hot label → 4×4 → residual blocks that double the side → [0, 1].

    The number of blocks follows the size: 3 for 28 and 32 pixels (512 → 256 → 128 → 64 channels at `width` 64), 4 for 64, 5 for
    128. Sizes that are no power of two are cut from the next larger image.
    """

    def __init__(
        self, shape: tuple[int, ...], n_classes: int, latent: int, width: int = 64
    ) -> None:
        super().__init__()
        channels, height, wide = shape
        self.shape = (channels, height, wide)
        self.n_classes, self.latent = n_classes, latent
        blocks = max(1, round(math.log2(max(height, wide) / 4)))
        self.base = (math.ceil(height / 2**blocks), math.ceil(wide / 2**blocks))
        # No wider than the 32-pixel network: more channels at 4×4 cost much and bring little.
        widths = [width * 2 ** min(3, blocks - i) for i in range(blocks + 1)]
        self.first = nn.ConvTranspose2d(latent + n_classes, widths[0], self.base)
        self.blocks = nn.Sequential(*(_UpBlock(a, b) for a, b in pairwise(widths)))
        self.norm = nn.BatchNorm2d(widths[-1])
        self.last = nn.Conv2d(widths[-1], channels, 3, padding=1)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """(n,) labels → (n, channels, height, width) in [0, 1]"""
        # Drawn on the processor, so that a seed gives the same noise on every device.
        noise = torch.randn(len(labels), self.latent, generator=generator).to(labels.device)
        if self.n_classes:
            noise = torch.cat(
                [noise, functional.one_hot(labels, self.n_classes).to(noise.dtype)], dim=1
            )
        x = self.first(noise[:, :, None, None]).contiguous(memory_format=torch.channels_last)
        x = self.last(functional.relu(self.norm(self.blocks(x))))
        _, height, wide = self.shape
        top, left = (x.shape[2] - height) // 2, (x.shape[3] - wide) // 2
        return (torch.tanh(x[:, :, top : top + height, left : left + wide]) + 1) / 2


class _UpBlock(nn.Module):
    """Twice the side by nearest neighbours: BN, ReLU, up, conv, BN, ReLU, conv, and a 1×1 way around."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.around = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.interpolate(functional.relu(self.norm1(x)), scale_factor=2)
        inner = self.conv2(functional.relu(self.norm2(self.conv1(inner))))
        # A 1×1 convolution and a repetition of pixels may change places: a quarter of the work.
        return inner + functional.interpolate(self.around(x), scale_factor=2)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def conv(
    width: int,
    wider: int,
    kernel: int = 3,
    stride: int = 1,
    padding: int = 1,
    norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(width, wider, kernel, stride, padding, bias=False), norm(wider), nn.ReLU()
    )


def resnet9(
    channels: int,
    width: int,
    norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
    doublings: int = 0,
) -> list[nn.Module]:
    """(n, channels, ≥ 8, ≥ 8) → (n, 2 · width): 3×3 convolutions with normalisation and ReLU (64; 128 by a 5×5 of stride 2;
    residual; 256; pool; residual; 128), global max-pooling. One more residual block for each of `doublings` beyond 32 pixels."""
    w = width

    def block(size: int) -> nn.Module:
        return Residual(nn.Sequential(conv(size, size, norm=norm), conv(size, size, norm=norm)))

    more = [[nn.MaxPool2d(2, ceil_mode=True), block(4 * w)] for _ in range(doublings)]
    return [
        conv(channels, w, norm=norm),
        conv(w, 2 * w, 5, 2, 2, norm=norm),
        block(2 * w),
        conv(2 * w, 4 * w, norm=norm),
        nn.MaxPool2d(2, ceil_mode=True),
        block(4 * w),
        *(layer for pair in more for layer in pair),
        # Maps of fewer than 3×3 positions, from images below 12 pixels, need the padding.
        conv(4 * w, 2 * w, norm=norm),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
    ]


class ResNet9Critic(nn.Module):
    """ResNet9 with group normalisation, so images one by one → a number for each class, of which a label takes its own."""

    def __init__(self, shape: tuple[int, ...], n_classes: int, width: int = 64) -> None:
        super().__init__()
        doublings = max(0, round(math.log2(max(shape[1:]) / 32)))
        self.layers = nn.Sequential(*resnet9(shape[0], width, group_norm, doublings))
        self.score = nn.Linear(2 * width, max(1, n_classes))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """(n, channels, height, width) in [0, 1], (n,) labels → (n,)"""
        return self.score(self.layers(2 * images - 1)).gather(1, labels[:, None])[:, 0]
