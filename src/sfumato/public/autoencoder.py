"""A convolutional autoencoder on the unit sphere, trained by `sfumato pretrain` on public pictures.

The encoder gives a direction in R^dim; the decoder is conditioned on that instance at every scale, as IC-GAN's generator is
(each block is scaled and shifted by a linear function of the vector). Training decodes vectors with a little noise, so that
neighbours on the sphere decode to similar pictures and a vector that no picture has still decodes to one. Group norms only:
no row sees another.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.errors import BadInput
from sfumato.public.codec import Card, ImageCodec, codec_kind

_LEAST_SIDE = 8  # pictures are halved down to about this
_GROUP = 8  # channels that a group norm takes together


@codec_kind
class AutoencoderCodec(ImageCodec):
    """v = encoder(x) / ‖encoder(x)‖, decoded by a network that is conditioned on v.

    **Guarantee**: ‖v‖ = 1 for every finite picture, by `Codec.encode`.
    """

    kind = "autoencoder"
    unit = True

    def __init__(self, network: Autoencoder) -> None:
        self.network = network.eval().requires_grad_(False)
        self.shape = network.shape
        self.dim = network.dim

    @classmethod
    def untrained(cls, shape: tuple[int, ...], dim: int, width: int, *, seed: int) -> Self:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            codec = cls(Autoencoder(shape, dim, width))
        codec.card = Card(about="an autoencoder before its training")
        return codec

    def _encode(self, pixels: Tensor) -> Tensor:
        return self.network.encode(pixels)

    def _decode(self, vectors: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.network.decode(vectors)

    def _tensors(self) -> dict[str, Tensor]:
        return dict(self.network.state_dict())

    def _settings(self) -> dict[str, Any]:
        return {"width": self.network.width}

    @classmethod
    def _from_tensors(
        cls, tensors: dict[str, Tensor], shape: tuple[int, ...], dim: int, settings: dict[str, Any]
    ) -> Self:
        with torch.device("meta"):  # no time for random weights that are replaced at once
            network = Autoencoder(shape, dim, settings["width"])
        network.load_state_dict(tensors, assign=True)
        return cls(network)


class Autoencoder(nn.Module):
    """Pictures of `shape` ↔ directions in R^dim; `width` is the number of channels at half the size."""

    def __init__(self, shape: tuple[int, ...], dim: int, width: int = 32) -> None:
        super().__init__()
        if dim < 2 or width < _GROUP or width % _GROUP:
            raise BadInput(
                f"An autoencoder needs dim of at least 2 and a width that is a multiple of {_GROUP}, not {dim} and {width}."
            )
        self.shape = tuple(shape)
        self.dim = dim
        self.width = width
        channels, height, width_ = self.shape
        levels = max(1, round(math.log2(max(height, width_) / _LEAST_SIDE)))
        self.block = 2**levels
        self.padded = tuple(-(-side // self.block) * self.block for side in (height, width_))
        self.base = tuple(side // self.block for side in self.padded)
        # Half the size at once, by folding 2×2 pixels into channels: full-size convolutions cost the most and tell the least.
        widths = [min(width * 2**level, 4 * width) for level in range(levels)]
        self.fold = nn.Conv2d(4 * channels, widths[0], 3, padding=1)
        down: list[nn.Module] = [_Residual(widths[0])]
        for narrow, wide in itertools.pairwise(widths):
            down += [nn.Conv2d(narrow, wide, 4, stride=2, padding=1), _Residual(wide)]
        self.down = nn.Sequential(*down)
        inside = widths[-1] * math.prod(self.base)
        self.to_vector = nn.Sequential(
            nn.GroupNorm(_GROUP, widths[-1]), nn.SiLU(), nn.Flatten(), nn.Linear(inside, dim)
        )
        self.from_vector = nn.Linear(dim, inside)
        self.up = nn.ModuleList()
        for wide, narrow in zip([*widths[::-1]], [*widths[::-1][1:], None], strict=True):
            self.up.append(_Conditioned(wide, dim))
            if narrow is not None:
                self.up.append(nn.ConvTranspose2d(wide, narrow, 4, stride=2, padding=1))
        self.last_norm = nn.GroupNorm(_GROUP, widths[0])
        self.unfold = nn.Conv2d(widths[0], 4 * channels, 3, padding=1)

    def encode(self, pixels: Tensor) -> Tensor:
        """(n, C, H, W) in [0, 1] → (n, dim), of any length"""
        missing = [full - side for full, side in zip(self.padded, self.shape[1:], strict=True)]
        if any(missing):
            pixels = F.pad(pixels, (0, missing[1], 0, missing[0]), mode="replicate")
        x = self.fold(F.pixel_unshuffle(2 * pixels - 1, 2))
        return self.to_vector(self.down(x))

    def decode(self, vectors: Tensor) -> Tensor:
        """(n, dim) unit vectors → (n, C, H, W) in (0, 1)"""
        v = vectors * math.sqrt(self.dim)  # entries of about 1
        x = self.from_vector(v).view(len(v), -1, *self.base)
        for layer in self.up:
            x = layer(x, v) if isinstance(layer, _Conditioned) else layer(x)
        x = F.pixel_shuffle(self.unfold(F.silu(self.last_norm(x))), 2)
        return torch.sigmoid(x[:, :, : self.shape[1], : self.shape[2]])


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(_GROUP, width)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(F.silu(self.norm(x)))))


class _Conditioned(nn.Module):
    """A residual block, scaled and shifted by the instance's vector."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(_GROUP, width, affine=False)
        self.modulate = nn.Linear(dim, 2 * width)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor, v: Tensor) -> Tensor:
        scale, shift = self.modulate(v)[:, :, None, None].chunk(2, dim=1)
        y = F.silu(self.norm(x) * (1 + scale) + shift)
        return x + self.second(F.silu(self.first(y)))
