"""The shapes of the public networks, as plain torch modules with torchvision's key names.

VGG (Simonyan and Zisserman 2015), AlexNet (Krizhevsky 2014), ResNet (He et al. 2016), the VGG19 and
decoder pair of AdaIN (Huang and Belongie 2017), LPIPS (Zhang et al. 2018) and the Inception of the FID
(Heusel et al. 2017). Only the layers whose weights can be had are here: VGG and AlexNet end at their
last convolution. No layer that can be tapped is written to in place, so that a hook sees what the layer
gave. Everything in this module is public.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VGG16_BLOCKS = (2, 2, 3, 3, 3)
VGG19_BLOCKS = (2, 2, 4, 4, 4)
_VGG_WIDTHS = (64, 128, 256, 512, 512)


class VGG(nn.Module):
    """The convolutions of VGG, ending with the last ReLU: torchvision's `features`, no pool5."""

    def __init__(self, blocks: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = 3
        for block, (repeats, wider) in enumerate(zip(blocks, _VGG_WIDTHS, strict=True)):
            if block:
                layers.append(nn.MaxPool2d(2))
            for _ in range(repeats):
                layers += [nn.Conv2d(width, wider, 3, padding=1), nn.ReLU()]
                width = wider
        self.features = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        return self.features(images)


class NormalisedVGG19(nn.Sequential):
    """The VGG19 that AdaIN's decoder inverts: a 1×1 convolution in front, reflection padding.

    The 1×1 convolution turns RGB in [0, 1] into the BGR of the original network, so pixels go in
    as they are. Max pools round up. Keys are those of the published file ("0.weight", "2.weight", …).
    """

    def __init__(self) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, 3, 1)]
        width = 3
        for block, (repeats, wider) in enumerate(zip(VGG19_BLOCKS, _VGG_WIDTHS, strict=True)):
            if block:
                layers.append(nn.MaxPool2d(2, ceil_mode=True))
            for _ in range(repeats):
                layers += [nn.ReflectionPad2d(1), nn.Conv2d(width, wider, 3), nn.ReLU()]
                width = wider
        super().__init__(*layers)


class AdaINDecoder(nn.Sequential):
    """From relu4_1 of `NormalisedVGG19` back to RGB: (n, 512, h, w) → (n, 3, 8h, 8w), about [0, 1]."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for wide, narrow, grow in (
            (512, 256, True),
            (256, 256, False),
            (256, 256, False),
            (256, 256, False),
            (256, 128, True),
            (128, 128, False),
            (128, 64, True),
            (64, 64, False),
        ):
            layers += [nn.ReflectionPad2d(1), nn.Conv2d(wide, narrow, 3), nn.ReLU()]
            if grow:
                layers.append(nn.Upsample(scale_factor=2, mode="nearest"))
        super().__init__(*layers, nn.ReflectionPad2d(1), nn.Conv2d(64, 3, 3))


class AlexNet(nn.Module):
    """The convolutions of torchvision's AlexNet, ending with the fifth ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.features(images)


# ----------------------------------------------------------------------------------------- ResNet


class _BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, width: int, inner: int, stride: int, eps: float, stride_first: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, inner, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner, eps=eps)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(inner, inner, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner, eps=eps)
        self.downsample = _shortcut(width, inner, stride, eps)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class _Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, width: int, inner: int, stride: int, eps: float, stride_first: bool) -> None:
        super().__init__()
        first, second = (stride, 1) if stride_first else (1, stride)
        self.conv1 = nn.Conv2d(width, inner, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(inner, eps=eps)
        self.conv2 = nn.Conv2d(inner, inner, 3, second, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner, eps=eps)
        self.conv3 = nn.Conv2d(inner, 4 * inner, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * inner, eps=eps)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(width, 4 * inner, stride, eps)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


def _shortcut(width: int, wider: int, stride: int, eps: float) -> nn.Sequential | None:
    if stride == 1 and width == wider:
        return None
    return nn.Sequential(
        nn.Conv2d(width, wider, 1, stride, bias=False), nn.BatchNorm2d(wider, eps=eps)
    )


class ResNet(nn.Module):
    """ResNet with torchvision's keys; gives logits.

    `small_stem` is the habit for CIFAR: a 3×3 convolution and no max pool. `stride_first` puts the
    stride of a bottleneck on its first convolution, as the paper and Keras do, not on the second.
    """

    def __init__(
        self,
        repeats: Sequence[int],
        *,
        bottleneck: bool = False,
        classes: int = 1000,
        small_stem: bool = False,
        stride_first: bool = False,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        block = _Bottleneck if bottleneck else _BasicBlock
        if small_stem:
            self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        else:
            self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64, eps=eps)
        self.relu = nn.ReLU()
        self.maxpool = nn.Identity() if small_stem else nn.MaxPool2d(3, 2, 1)
        width = 64
        stages: list[nn.Sequential] = []
        for stage, count in enumerate(repeats):
            inner = 64 * 2**stage
            blocks: list[nn.Module] = []
            for index in range(count):
                stride = 2 if stage and not index else 1
                blocks.append(block(width, inner, stride, eps, stride_first))
                width = inner * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.avgpool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x))


# ------------------------------------------------------------------------------------------ LPIPS


class LPIPS(nn.Module):
    """Learned perceptual image patch similarity, as an embedding.

    LPIPS compares the channel-normalised activations f of five layers: the sum over layers of the
    spatial mean of Σ_c w_c (f_c(a) − f_c(b))², with w ≥ 0. So it is the squared Euclidean distance
    of e(x) = (√(w_c / positions) · f_c(x)) over layers, channels and positions; `forward` gives e.

    **Guarantee**: ‖e(x)‖² ≤ Σ over layers of max_c w_c for every x, as f has at most unit norm at
    each position.
    """

    def __init__(self, net: VGG | AlexNet, taps: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        self.net = net
        self.taps = tuple(taps)
        self.heads = nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in widths)

    def forward(self, images: Tensor) -> Tensor:
        parts: list[Tensor] = []
        x = images
        for index, layer in enumerate(self.net.features):
            x = layer(x)
            if index in self.taps:
                weights = self.heads[self.taps.index(index)]  # (channels,)
                # Clamped only where all channels are zero: there the root has no derivative.
                norm = x.square().sum(1, keepdim=True).clamp_min(1e-20).sqrt()  # (batch, 1, h, w)
                positions = x.shape[2] * x.shape[3]
                part = x / (norm + 1e-10) * (weights / positions).sqrt().view(1, -1, 1, 1)
                parts.append(part.flatten(1))
        return torch.cat(parts, 1)  # (batch, features)


# -------------------------------------------------------------------------------------- Inception


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
    """The Inception-v3 of the FID, of 5 December 2015: (n, 3, 299, 299) in [−1, 1) → (n, 2048).

    It differs from torchvision's Inception in three ways that matter to the FID: average pools leave
    the padding out of the mean, the last mixed block pools with a maximum, and batch norm has no
    scale. Batch norms are folded into the convolutions when the weights are converted, so a
    convolution here has a bias and nothing follows it but the ReLU. Layers are named as in the source.
    """

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
