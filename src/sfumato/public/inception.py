"""The Inception-v3 of the FID: the network of 5 December 2015, up to its 2048 pooled features.

It differs from torchvision's Inception in three ways that matter to the FID: average pools leave the
padding out of the mean, the last mixed block pools with a maximum, and batch norm has no scale.
Batch norms are folded into the convolutions when the weights are converted, so a convolution here
has a bias and nothing follows it but the ReLU. Public.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _Conv(nn.Conv2d):
    """A convolution and its ReLU; in place, since nothing else reads the convolution's output."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(super().forward(x))


def _conv(width: int, wider: int, kernel: int | tuple[int, int], stride: int = 1) -> _Conv:
    """Padded to keep the size, or not at all where a stride shrinks it."""
    tall, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (0, 0) if stride == 2 else (tall // 2, wide // 2)
    return _Conv(width, wider, (tall, wide), stride, padding)


class _Tower(nn.Sequential):
    """Convolutions named as in the source: conv, conv_1, conv_2, …, after an optional pool."""

    def __init__(self, *convolutions: nn.Module, pool: nn.Module | None = None) -> None:
        super().__init__()
        if pool is not None:
            self.add_module("pool", pool)
        for index, convolution in enumerate(convolutions):
            self.add_module(f"conv_{index}" if index else "conv", convolution)


class _Mixed(nn.Module):
    """Branches side by side, joined along the channels."""

    def __init__(self, **branches: nn.Module) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.children()], 1)


def _average() -> nn.Module:
    return nn.AvgPool2d(3, 1, 1, count_include_pad=False)


def _mixed_a(width: int, pooled: int) -> _Mixed:
    return _Mixed(
        conv=_conv(width, 64, 1),
        tower=_Tower(_conv(width, 48, 1), _conv(48, 64, 5)),
        tower_1=_Tower(_conv(width, 64, 1), _conv(64, 96, 3), _conv(96, 96, 3)),
        tower_2=_Tower(_conv(width, pooled, 1), pool=_average()),
    )


def _mixed_b() -> _Mixed:
    return _Mixed(
        conv=_conv(288, 384, 3, 2),
        tower=_Tower(_conv(288, 64, 1), _conv(64, 96, 3), _conv(96, 96, 3, 2)),
        pool=nn.MaxPool2d(3, 2),
    )


def _mixed_c(w: int) -> _Mixed:
    return _Mixed(
        conv=_conv(768, 192, 1),
        tower=_Tower(_conv(768, w, 1), _conv(w, w, (1, 7)), _conv(w, 192, (7, 1))),
        tower_1=_Tower(
            _conv(768, w, 1),
            _conv(w, w, (7, 1)),
            _conv(w, w, (1, 7)),
            _conv(w, w, (7, 1)),
            _conv(w, 192, (1, 7)),
        ),
        tower_2=_Tower(_conv(768, 192, 1), pool=_average()),
    )


def _mixed_d() -> _Mixed:
    return _Mixed(
        tower=_Tower(_conv(768, 192, 1), _conv(192, 320, 3, 2)),
        tower_1=_Tower(
            _conv(768, 192, 1),
            _conv(192, 192, (1, 7)),
            _conv(192, 192, (7, 1)),
            _conv(192, 192, 3, 2),
        ),
        pool=nn.MaxPool2d(3, 2),
    )


class _MixedE(nn.Module):
    """Two branches fork once more at their end."""

    def __init__(self, width: int, pool: nn.Module) -> None:
        super().__init__()
        self.conv = _conv(width, 320, 1)
        self.tower_conv = _conv(width, 384, 1)
        self.tower_mixed_conv = _conv(384, 384, (1, 3))
        self.tower_mixed_conv_1 = _conv(384, 384, (3, 1))
        self.tower_1_conv = _conv(width, 448, 1)
        self.tower_1_conv_1 = _conv(448, 384, 3)
        self.tower_1_mixed_conv = _conv(384, 384, (1, 3))
        self.tower_1_mixed_conv_1 = _conv(384, 384, (3, 1))
        self.tower_2_pool = pool
        self.tower_2_conv = _conv(width, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.tower_conv(x)
        b = self.tower_1_conv_1(self.tower_1_conv(x))
        return torch.cat(
            [
                self.conv(x),
                self.tower_mixed_conv(a),
                self.tower_mixed_conv_1(a),
                self.tower_1_mixed_conv(b),
                self.tower_1_mixed_conv_1(b),
                self.tower_2_conv(self.tower_2_pool(x)),
            ],
            1,
        )


class FIDInception(nn.Sequential):
    """(n, 3, 299, 299) in [−1, 1) → (n, 2048); layers are named as in the source."""

    def __init__(self) -> None:
        super().__init__()
        for name, layer in {
            "conv": _conv(3, 32, 3, 2),
            "conv_1": _Conv(32, 32, 3),
            "conv_2": _conv(32, 64, 3),
            "pool0": nn.MaxPool2d(3, 2),
            "conv_3": _conv(64, 80, 1),
            "conv_4": _Conv(80, 192, 3),
            "pool1": nn.MaxPool2d(3, 2),
            "mixed": _mixed_a(192, 32),
            "mixed_1": _mixed_a(256, 64),
            "mixed_2": _mixed_a(288, 64),
            "mixed_3": _mixed_b(),
            "mixed_4": _mixed_c(128),
            "mixed_5": _mixed_c(160),
            "mixed_6": _mixed_c(160),
            "mixed_7": _mixed_c(192),
            "mixed_8": _mixed_d(),
            "mixed_9": _MixedE(1280, _average()),
            "mixed_10": _MixedE(2048, nn.MaxPool2d(3, 1, 1)),
            "pool3": nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        }.items():
            self.add_module(name, layer)


def fold_batch_norms(source: dict[str, Tensor]) -> dict[str, Tensor]:
    """The source's weight, beta, mean and var of each convolution as one weight and one bias.

    Its batch norm has no scale and adds 0.001 to the variance: relu(beta + (Wx − mean) / √(var + 0.001)).
    """
    folded: dict[str, Tensor] = {}
    for key, weight in source.items():
        layer, _, kind = key.rpartition(".")
        if kind != "weight":
            continue
        beta, mean, var = (source[f"{layer}.{name}"].double() for name in ("beta", "mean", "var"))
        gain = (var + 1e-3).rsqrt()
        folded[f"{layer}.weight"] = (weight.double() * gain.view(-1, 1, 1, 1)).float()
        folded[f"{layer}.bias"] = (beta - mean * gain).float()
    return folded
