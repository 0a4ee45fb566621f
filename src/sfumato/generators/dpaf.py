"""The networks of DPAF: a discriminator (and classifier) of three parts, the first two of which treat images one by one.

    images → conv1 → conv2 → SIN ┤ aggregation over records, elsewhere ├ → conv3 → FC → one number a class

SIN is the simplified instance normalisation of the paper (its equation 1): every feature map of every image is given mean 0 and
variance 1, without parameters, so that its length is known. Nothing here knows of privacy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

_SLOPE = 0.2
# A map whose variance is below this part of its largest square is constant up to rounding.
_FLAT = 1e-10
_VANISHING = 1e-24


def simplified_instance_norm(maps: Tensor) -> Tensor:
    """(n, m, h, w) → the same with mean 0 and variance 1 over every map; a constant map becomes zero.

    **Guarantee**: the L2 norm of a normalised map is √(h·w), since its h·w squares have mean 1; that of a constant map is 0.
    """
    centred = maps - maps.mean(dim=(2, 3), keepdim=True)
    variance = centred.square().mean(dim=(2, 3), keepdim=True)
    largest = maps.detach().abs().amax(dim=(2, 3), keepdim=True)
    flat = variance <= _FLAT * largest.square() + _VANISHING
    # Divided by 1 where flat, before the root: a root of zero has no derivative.
    return torch.where(flat, 0.0, centred / torch.where(flat, 1.0, variance).sqrt())


class Encoder(nn.Module):
    """conv1 and conv2: images → normalised feature maps of at most 8 × 8.

    conv1 halves the image until its longer side is at most 16 (once for 28 or 32 pixels, three times for 128), conv2 is a single
    layer and halves it once more.
    """

    def __init__(self, shape: tuple[int, ...], maps: int) -> None:
        super().__init__()
        channels, *size = shape
        halvings = max(0, math.ceil(math.log2(max(size) / 16)))
        layers: list[nn.Module] = []
        for stride in [2] * halvings or [1]:
            layers += [
                nn.Conv2d(channels, maps, 5, stride=stride, padding=2),
                nn.LeakyReLU(_SLOPE),
            ]
            channels = maps
        self.conv1 = nn.Sequential(*layers)
        self.conv2 = nn.Conv2d(maps, maps, 3, stride=2, padding=1)
        times = halvings + 1
        self.shape = (maps, *(math.ceil(side / 2**times) for side in size))

    def low(self, images: Tensor) -> Tensor:
        """What conv1 makes of images in [0, 1]."""
        return self.conv1(2 * images - 1)

    def normalised(self, maps: Tensor) -> Tensor:
        """What becomes of conv2's output: a non-linearity and SIN."""
        return simplified_instance_norm(functional.leaky_relu(maps, _SLOPE))

    def forward(self, images: Tensor) -> Tensor:
        """(n, channels, height, width) in [0, 1] → (n, *shape)"""
        return self.normalised(self.conv2(self.low(images)))


def convolutions(module: nn.Module) -> list[nn.Conv2d]:
    """In the order of its parameters."""
    return [part for part in module.modules() if isinstance(part, nn.Conv2d)]


class Head(nn.Module):
    """conv3 and FC: feature maps, of one image or averaged over many, → one number for every class (one if there are none)."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        maps, height, wide = shape
        self.conv3 = nn.Conv2d(maps, 2 * maps, 3, stride=2, padding=1)
        size = 2 * maps * math.ceil(height / 2) * math.ceil(wide / 2)
        self.fc = nn.Linear(size, max(1, n_classes))

    def forward(self, features: Tensor) -> Tensor:
        """(n, maps, h, w) → (n, classes)"""
        return self.fc(functional.leaky_relu(self.conv3(features), _SLOPE).flatten(1))


class Discriminator(nn.Module):
    """Encoder and head; the outputs are a classifier's logits, or a discriminator's for each claimed class.

    `conv1_std` is the spread of conv1's weights; None for torch's own.
    """

    def __init__(
        self, shape: tuple[int, ...], n_classes: int, maps: int, conv1_std: float | None = None
    ) -> None:
        super().__init__()
        self.encoder = Encoder(shape, maps)
        self.head = Head(self.encoder.shape, n_classes)
        if conv1_std is not None:
            for conv in convolutions(self.encoder.conv1):
                nn.init.normal_(conv.weight, std=conv1_std)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images))

    def logit(self, features: Tensor, labels: Tensor) -> Tensor:
        """(n, maps, h, w), (n,) → (n,): large for what looks real and of that class"""
        return self.head(features).gather(1, labels[:, None])[:, 0]
