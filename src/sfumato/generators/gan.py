"""Generators and critics of adversarial networks, for images of 8 to 128 pixels a side, for tables and for a codec's vectors.

Group normalisation throughout, never batch normalisation: a critic is trained with gradients of single records, so no record may
change what another one looks like to it. Critics are made of layers whose per-record gradients the wall adds up fast.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.generators.networks import DenseGenerator

_GROUP = 8  # channels normalised together
SLOPE = 0.2  # of dense critics' rectifiers, below zero


def _doublings(shape: tuple[int, ...]) -> int:
    """How often to double from a base of at most 8 pixels a side."""
    return max(1, math.ceil(math.log2(max(shape[1:]) / 8)))


def group_norm(channels: int) -> nn.GroupNorm:
    """As many groups of `_GROUP` channels or more as the channels can be divided into."""
    most = max(1, channels // _GROUP)
    return nn.GroupNorm(max(n for n in range(1, most + 1) if channels % n == 0), channels)


class ImageGenerator(nn.Module):
    """Normals and a one-hot label → a dense layer → nearest-neighbour doublings with 3×3 convolutions → [0, 1].

    `width` channels at full size, twice as many at each halving, four times at most.
    """

    def __init__(self, shape: tuple[int, ...], n_classes: int, latent: int, width: int) -> None:
        super().__init__()
        channels, height, wide = shape
        self.shape, self.n_classes, self.latent = (channels, height, wide), n_classes, latent
        times = _doublings(shape)
        self.base = (math.ceil(height / 2**times), math.ceil(wide / 2**times))
        sizes = [width * min(4, 2**level) for level in range(times, -1, -1)]
        self.first = nn.Linear(latent + n_classes, sizes[0] * self.base[0] * self.base[1])
        self.norms = nn.ModuleList(group_norm(size) for size in sizes)
        self.blocks = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(sizes))
        self.last = nn.Conv2d(sizes[-1], channels, 3, padding=1)

    def forward(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """(n,) labels → (n, channels, height, width) in [0, 1]"""
        x = self.first(_seeds(labels, self.latent, self.n_classes, generator))
        x = functional.relu(self.norms[0](x.view(len(labels), -1, *self.base)))
        for norm, block in zip(list(self.norms)[1:], self.blocks, strict=True):
            x = functional.relu(norm(block(functional.interpolate(x, scale_factor=2))))
        return torch.sigmoid(self.last(x))[:, :, : self.shape[1], : self.shape[2]]


class ImageCritic(nn.Module):
    """Strided 4×4 convolutions → a number for each class, of which a label takes its own: no label can be overlooked."""

    def __init__(self, shape: tuple[int, ...], n_classes: int, width: int) -> None:
        super().__init__()
        channels, height, wide = shape
        times = _doublings(shape)
        sizes = [channels] + [width * min(4, 2**level) for level in range(times)]
        self.blocks = nn.ModuleList(
            nn.Conv2d(a, b, 4, stride=2, padding=1) for a, b in pairwise(sizes)
        )
        self.norms = nn.ModuleList(group_norm(size) for size in sizes[1:])
        for _ in range(times):
            height, wide = height // 2, wide // 2
        self.score = nn.Linear(sizes[-1] * height * wide, max(1, n_classes))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """(n, channels, height, width) in [0, 1], (n,) labels → (n,)"""
        x = 2 * images - 1
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = functional.leaky_relu(norm(block(x)), 0.2)
        return self.score(x.flatten(1)).gather(1, labels[:, None])[:, 0]


class VectorGenerator(nn.Module):
    """Normals and a one-hot label → dense layers → a vector; four layers, as DP-GAN-MI has them."""

    def __init__(self, dim: int, n_classes: int, latent: int, width: int) -> None:
        super().__init__()
        self.n_classes, self.latent = n_classes, latent
        self.layers = _dense(latent + n_classes, width, dim)

    def forward(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """(n,) labels → (n, dim)"""
        return self.layers(_seeds(labels, self.latent, self.n_classes, generator))


class HeadedCritic(nn.Module):
    """A vector → dense layers → a number for each class, of which a label takes its own: no label can be overlooked."""

    def __init__(self, dim: int, n_classes: int, width: int) -> None:
        super().__init__()
        self.layers = _dense(dim, width, max(1, n_classes))

    def forward(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """(n, dim), (n,) labels → (n,)"""
        return self.layers(vectors).gather(1, labels[:, None])[:, 0]


class TableGenerator(DenseGenerator):
    """A `DenseGenerator` that draws its categories while it is trained, and the gradient passes straight through.

    Records have one category a column; a critic would tell probabilities from them at a glance.
    """

    def forward(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """(n,) labels → (n, numbers + places): ones and zeros in training, probabilities afterwards"""
        made = super().forward(labels, generator)
        if not self.training or not self.blocks:
            return made
        parts = [made[:, : self.numbers]]
        for soft in made[:, self.numbers :].split(self.blocks, dim=1):
            place = torch.multinomial(soft.detach() + 1e-12, 1, generator=generator)
            drawn = torch.zeros_like(soft).scatter_(1, place, 1.0)
            parts.append(drawn + (soft - soft.detach()))
        return torch.cat(parts, dim=1)


class TableCritic(nn.Module):
    """Numbers in [0, 1] and one-hots → dense layers → a number for each class, of which a record gets that of its label."""

    def __init__(self, dim: int, n_classes: int, width: int) -> None:
        super().__init__()
        self.layers = _dense(dim, width, max(1, n_classes))

    def forward(self, records: Tensor, labels: Tensor) -> Tensor:
        """(n, dim), (n,) labels → (n,)"""
        return self.layers(2 * records - 1).gather(1, labels[:, None])[:, 0]


class RatioNetwork(nn.Sequential):
    """(n, dim) → (n, classes): a small discriminator with a number for each class, its log-ratio; 0 everywhere to begin with."""

    def __init__(self, dim: int, width: int, classes: int) -> None:
        hidden, heads = nn.Linear(dim, width), nn.Linear(width, classes)
        nn.init.zeros_(heads.weight)
        nn.init.zeros_(heads.bias)
        super().__init__(hidden, nn.LeakyReLU(0.2), heads)


def _dense(inputs: int, width: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(inputs, width), nn.LeakyReLU(SLOPE)]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def _seeds(labels: Tensor, latent: int, n_classes: int, generator: torch.Generator) -> Tensor:
    # Drawn on the processor, so that a seed gives the same noise on every device.
    noise = torch.randn(len(labels), latent, generator=generator).to(labels.device)
    if not n_classes:
        return noise
    return torch.cat([noise, functional.one_hot(labels, n_classes).to(noise.dtype)], dim=1)


@torch.no_grad()
def move_average(average: nn.Module, network: nn.Module, decay: float) -> None:
    """The exponential moving average of a network's weights: average ← decay · average + (1 − decay) · network.

    The running statistics of normalisations move along.
    """
    for kept, new in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
        if kept.is_floating_point():
            kept.lerp_(new, 1 - decay)
