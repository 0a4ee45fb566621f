"""Scattering: does not expand, forgives small shifts, sees each image alone, and works at any size."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from sfumato.errors import BadInput
from sfumato.public.scattering import Scattering


def smooth_images(n: int, size: int = 28) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(n, 1, 6, 6, generator=generator)
    inner = torch.nn.functional.interpolate(coarse, size=size - 8, mode="bicubic").clamp(0, 1)
    return torch.nn.functional.pad(inner, (4, 4, 4, 4))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 13, 9)])
@pytest.mark.parametrize("scales", [1, 2, 3])
def test_scattering_expands_no_image_and_no_difference(shape, scales):
    scattering = Scattering(shape, scales)
    generator = torch.Generator().manual_seed(1)
    first, second = torch.rand(2, 5, *shape, generator=generator)
    second[0] = 0
    second[1, :, ::2] = 1  # stripes and checks carry all energy at the highest frequencies
    second[2] = first[2] + 1e-3 * torch.randn(shape, generator=generator)
    gap = (scattering(first) - scattering(second)).flatten(1).norm(dim=1)
    assert (gap <= (first - second).flatten(1).norm(dim=1) * (1 + 1e-5)).all()
    assert (scattering(first).norm(dim=1) <= first.flatten(1).norm(dim=1)).all()
    assert torch.equal(scattering(torch.zeros(1, *shape)), torch.zeros(1, scattering.dim))


def test_the_littlewood_paley_sum_stays_below_one_and_comes_near_it():
    scattering = Scattering((1, 16, 16), 2, 8)
    waves = torch.complex(scattering.waves[:8, 0].double(), scattering.waves[8:, 0].double())
    side = 97  # another grid than the one that set the factor
    power = torch.fft.fft2(waves, s=(side, side)).abs().square().sum(0)
    power = (power + power.flip(0, 1).roll((1, 1), (0, 1))) / 2
    blur = torch.fft.fft2(scattering.blur[0, 0].double(), s=(side, side)).abs().square()
    total = power + blur
    assert float(total.max()) <= 1
    assert float(total[0].min()) > 0.7  # nothing along an axis is lost
    assert float(waves.sum((1, 2)).abs().max()) < 1e-6  # wavelets have no mean


def test_a_shift_by_a_pixel_moves_features_far_less_than_pixels():
    images = smooth_images(20)
    shifted = images.roll(1, dims=3)

    def moved(features: Callable[[torch.Tensor], torch.Tensor]) -> float:
        here, there = features(images), features(shifted)
        return float(((here - there).norm(dim=1) / here.norm(dim=1)).mean())

    assert moved(Scattering((1, 28, 28), 3)) < 0.5 * moved(lambda x: x.flatten(1))
    assert moved(Scattering((1, 28, 28), 3)) < moved(Scattering((1, 28, 28), 1))


def test_first_order_tells_the_direction_of_stripes():
    scattering = Scattering((1, 32, 32), 2, 4)
    position = torch.arange(32.0)
    wave = 0.5 + 0.5 * torch.cos(3 * math.pi / 4 * position)
    upright = wave[None, :].expand(32, 32)
    features = scattering(torch.stack([upright, upright.T])[:, None]).view(2, -1, *scattering.grid)
    finest = features[:, 1:5, 2:-2, 2:-2].mean((2, 3))  # by angle
    assert finest[0].argmax() == 0
    assert finest[1].argmax() == 2
    assert finest[0, 0] > 3 * finest[0, 2]


def test_features_are_as_many_as_said_and_none_is_negative():
    scattering = Scattering((2, 17, 12), 2, 6)
    whole = scattering(torch.rand(5, 2, 17, 12))
    assert whole.shape == (5, scattering.dim)
    assert scattering.dim == 2 * (1 + 12 + 36) * 5 * 3
    assert scattering.orders().shape == (scattering.dim,)
    assert (whole >= 0).all()


def test_gradients_are_finite_even_for_a_black_image():
    scattering = Scattering((1, 8, 8), 2, 4)
    images = torch.zeros(2, 1, 8, 8, requires_grad=True)
    scattering(images).sum().backward()
    assert torch.isfinite(images.grad).all()
    assert float(images.grad.abs().max()) > 0


def test_senseless_settings_and_images_of_another_shape_are_refused():
    for shape, scales, angles in (((1, 8, 8), 4, 8), ((1, 28, 28), 0, 8), ((1, 28, 28), 2, 0)):
        with pytest.raises(BadInput):
            Scattering(shape, scales, angles)
    with pytest.raises(BadInput, match="takes images of shape"):
        Scattering((1, 28, 28))(torch.zeros(1, 1, 32, 32))


@pytest.mark.parametrize("sides", [(4, 4), (7, 9), (14, 5), (28, 28), (33, 18)])
def test_derivatives_by_blocks_are_those_of_the_plain_convolutions(sides, monkeypatch):
    scattering = Scattering((2, *sides), scales=2, angles=3)
    pixels = torch.rand(5, 2, *sides, requires_grad=True)
    toward = torch.randn(5, scattering.dim)
    (quick,) = torch.autograd.grad((scattering(pixels) * toward).sum(), pixels)

    def waves(x, waves, back):
        return functional.conv2d(x, waves, padding=3)

    def halved(x, blur):
        bottom, right = (side % 2 for side in x.shape[2:])
        return functional.conv2d(
            functional.pad(x, (0, right, 0, bottom)), blur, stride=2, padding=1
        )

    monkeypatch.setattr("sfumato.public.scattering._Waves.apply", waves)
    monkeypatch.setattr("sfumato.public.scattering._Halved.apply", halved)
    (plain,) = torch.autograd.grad((scattering(pixels) * toward).sum(), pixels)
    assert torch.allclose(quick, plain, rtol=1e-4, atol=1e-5)
