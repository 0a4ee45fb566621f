"""Wavelet scattering (Mallat 2012; Bruna and Mallat 2013): features of images that need no training and no public data.

    order 0   S₀x        = x ∗ φ
    order 1   S₁x[λ]     = |x ∗ ψ_λ| ∗ φ              λ = (scale, angle)
    order 2   S₂x[λ, λ'] = ||x ∗ ψ_λ| ∗ ψ_λ'| ∗ φ     λ' of a coarser scale than λ

with Morlet wavelets ψ and a smooth φ of the coarsest scale, sampled every 2^scales pixels. As in a fast wavelet transform, a
pyramid gives the scales: an image is blurred and halved, and the same small wavelets are used at every resolution.
Beyond the edge the image is zero. Everything here is public: the filters are constants.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from sfumato.errors import BadInput

# The usual constants: width of the envelope and frequency of a wavelet at its own resolution; it ends after `_REACH` pixels.
_SIGMA, _FREQUENCY, _REACH = 0.8, 3 * math.pi / 4, 3
_BLUR = (1 / 8, 3 / 8, 3 / 8, 1 / 8)  # before every halving
_SMOOTH = 1e-3  # rounds the modulus off at zero, where it has no derivative
_ROWS = 32  # images at a time: their maps stay in the processor's cache
_BLOCK = 4  # a side, of the pixels whose derivatives are computed together


class Scattering(nn.Module):
    """`Scattering(shape)(pixels)`: (n, channels, height, width) in [0, 1] → (n, dim), by two layers of wavelets.

    Features lie as (channels, paths, ⌈height/2^scales⌉, ⌈width/2^scales⌉); the paths are order 0, order 1 by scale and angle,
    order 2 by both scales and angles. They are never negative for pixels that are not.

    **Guarantee**: ‖S x − S y‖ ≤ ‖x − y‖, so in particular ‖S x‖ ≤ ‖x‖. The blur b, with |b̂| ≤ 1, and the wavelets satisfy
    |b̂(ω)|² + ½ Σ (|ψ̂(ω)|² + |ψ̂(−ω)|²) ≤ 1 at every frequency (Littlewood–Paley; the wavelets are scaled to it), so what a real
    image hands to the next resolution and to its wavelets has no more energy together than the image. Leaving out positions,
    zeros beyond the edge and the rounded modulus ρ(z) = √(|z|² + s²) − s expand no difference either; the claim
    follows resolution by resolution and layer by layer. Row-wise: row i is a function of image i alone. Derivatives exist
    everywhere.
    """

    waves: Tensor
    blur: Tensor
    back: Tensor

    def __init__(self, shape: tuple[int, ...], scales: int = 2, angles: int = 8) -> None:
        super().__init__()
        channels, height, width = shape
        if scales < 1 or angles < 1:
            raise BadInput(
                f"Scattering needs at least one scale and one angle, not {scales} and {angles}."
            )
        if min(height, width) < 2**scales:
            raise BadInput(
                f"Scattering with {scales} scales needs images of at least {2**scales} pixels a side, not {height}×{width}; "
                "take fewer scales."
            )
        self.shape = (channels, height, width)
        self.scales, self.angles = scales, angles
        self.paths = 1 + scales * angles + angles**2 * scales * (scales - 1) // 2
        self.grid = (math.ceil(height / 2**scales), math.ceil(width / 2**scales))
        self.dim = channels * self.paths * self.grid[0] * self.grid[1]
        waves, blur = _filters(angles)
        self.register_buffer("waves", waves, persistent=False)  # (2 · angles, 1, 7, 7)
        self.register_buffer("blur", blur, persistent=False)  # (1, 1, 4, 4)
        self.register_buffer("back", _in_blocks(waves), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        if tuple(pixels.shape[1:]) != self.shape:
            raise BadInput(
                f"This scattering takes images of shape {self.shape}, not {tuple(pixels.shape[1:])}."
            )
        if len(pixels) == 0:
            return pixels.new_zeros(0, self.dim)
        return torch.cat([self._scatter(part) for part in pixels.split(_ROWS)])

    def orders(self) -> Tensor:
        """The order, 0, 1 or 2, of every feature, (dim,)."""
        first = self.scales * self.angles
        order = torch.tensor([0] + [1] * first + [2] * (self.paths - 1 - first))
        places = self.grid[0] * self.grid[1]
        return order.repeat_interleave(places).repeat(self.shape[0])

    def _scatter(self, pixels: Tensor) -> Tensor:
        x = pixels.flatten(0, 1).unsqueeze(1)  # (n · channels, 1, height, width)
        count = len(x)
        first, second = [], []
        for scale in range(self.scales):
            maps = self._modulus(x)  # (n · channels · angles, 1, h, w)
            x = self._halved(x)
            coarse = maps
            for further in range(scale + 1, self.scales + 1):
                coarse = self._halved(coarse)
                if further < self.scales:
                    again = self._modulus(coarse)
                    for _ in range(self.scales - further):
                        again = self._halved(again)
                    second.append(again.view(count, -1, *self.grid))
            first.append(coarse.view(count, -1, *self.grid))
        return torch.cat([x, *first, *second], dim=1).view(len(pixels), self.dim)

    def _modulus(self, x: Tensor) -> Tensor:
        """(m, 1, h, w) → (m · angles, 1, h, w)"""
        real, imaginary = _Waves.apply(x, self.waves, self.back).chunk(2, dim=1)
        modulus = torch.addcmul(real.square(), imaginary, imaginary)
        modulus = modulus.add_(_SMOOTH**2).sqrt() - _SMOOTH
        return modulus.flatten(0, 1).unsqueeze(1)

    def _halved(self, x: Tensor) -> Tensor:
        made: Tensor = _Halved.apply(x, self.blur)
        return made


class _Waves(torch.autograd.Function):
    """Convolution with the wavelets. Its derivative is one with a single channel as its result, which libraries are slow at;
    with the pixels of a block as channels it takes a seventh of the time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, waves: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        ctx.sides = x.shape[2:]
        return functional.conv2d(x, waves, padding=_REACH)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        shifts = [_shift(side) for side in ctx.sides]
        blocks = functional.conv2d(
            slope, back, stride=_BLOCK, padding=[_REACH + shift for shift in shifts]
        )
        pixels = functional.pixel_shuffle(blocks, _BLOCK)
        rows, columns = (
            slice(shift, shift + side) for shift, side in zip(shifts, ctx.sides, strict=True)
        )
        return pixels[:, :, rows, columns], None, None


class _Halved(torch.autograd.Function):
    """Blur, then every second pixel. Its derivative is two products of matrices: a twentieth of the library's time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, blur: Tensor) -> Tensor:
        ctx.sides = x.shape[2:]
        bottom, right = (side % 2 for side in ctx.sides)
        if bottom or right:
            x = functional.pad(x, (0, right, 0, bottom))
        return functional.conv2d(x, blur, stride=2, padding=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        rows, columns = (_halving(side).to(slope) for side in ctx.sides)
        return rows @ slope @ columns.T, None


@lru_cache(maxsize=32)
def _halving(side: int) -> Tensor:
    """(side, ⌈side/2⌉): what each pixel of a line gives to the pixels of the halved one."""
    given = torch.zeros(side + 3, (side + 1) // 2)
    for pixel in range((side + 1) // 2):
        given[2 * pixel : 2 * pixel + 4, pixel] = torch.tensor(_BLUR)
    return given[1 : side + 1].contiguous()


def _in_blocks(waves: Tensor) -> Tensor:
    """(16, maps, 10, 10): the wavelets turned round, once for every pixel of a block, at that pixel's place."""
    count, reach = len(waves), waves.shape[-1]
    side = reach + _BLOCK - 1
    made = torch.zeros(_BLOCK, _BLOCK, count, side, side)
    for row in range(_BLOCK):
        for column in range(_BLOCK):
            made[row, column, :, row : row + reach, column : column + reach] = waves[:, 0].flip(
                1, 2
            )
    return made.flatten(0, 1)


def _shift(side: int) -> int:
    """By how much blocks begin before the first pixel, so that with zeros on both sides alike they reach beyond the last."""
    return next(
        shift
        for shift in range(_BLOCK)
        if _BLOCK * ((side + 2 * shift - _BLOCK) // _BLOCK + 1) >= side + shift
    )


def _filters(angles: int) -> tuple[Tensor, Tensor]:
    kernels = torch.stack([_morlet(angle, angles) for angle in range(angles)])
    line = torch.tensor(_BLUR, dtype=torch.float64)
    blur = line[:, None] * line[None, :]
    # The largest factor that the Littlewood–Paley sum allows; it is smooth, so a fine grid finds its maximum to 1e-3.
    side = 256
    power = torch.fft.fft2(kernels, s=(side, side)).abs().square().sum(0)
    power = (power + power.flip(0, 1).roll((1, 1), (0, 1))) / 2
    room = 1 - torch.fft.fft2(blur, s=(side, side)).abs().square()
    room, power = (
        room.flatten()[1:],
        power.flatten()[1:],
    )  # at frequency 0 there is nothing to share
    factor = math.sqrt(float((room / power.clamp(min=1e-12)).min()) * (1 - 1e-2))
    waves = torch.cat([kernels.real, kernels.imag]) * factor
    return waves.to(torch.float32).unsqueeze(1), blur.to(torch.float32)[None, None]


def _morlet(angle: int, angles: int) -> Tensor:
    """(7, 7) complex: a wave across the angle under a Gaussian longer along it; its mean is zero."""
    slant = min(1.0, 4 / angles)
    line = torch.arange(-_REACH, _REACH + 1, dtype=torch.float64)
    y, x = torch.meshgrid(line, line, indexing="ij")
    theta = math.pi * angle / angles
    across = x * math.cos(theta) + y * math.sin(theta)
    along = y * math.cos(theta) - x * math.sin(theta)
    envelope = torch.exp(-(across.square() + (slant * along).square()) / (2 * _SIGMA**2))
    wave = envelope * torch.exp(1j * _FREQUENCY * across)
    return wave - envelope * (wave.sum() / envelope.sum())
