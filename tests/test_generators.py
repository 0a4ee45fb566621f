"""Generators of images: any size, folded convolutions by a second route, layers of a class that are its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sfumato.generators import ClassedGenerator, ConvGenerator
from sfumato.generators.networks import DoublingConv


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 32, 32), (3, 33, 17), (1, 5, 6)])
@pytest.mark.parametrize("n_classes", [0, 4])
def test_generators_make_any_size(shape, n_classes):
    generator = ConvGenerator(shape, n_classes, latent=5, hidden=12)
    made = generator(torch.zeros(6, dtype=torch.int64), torch.Generator().manual_seed(0))
    assert made.shape == (6, *shape)
    assert bool((made >= 0).all() and (made <= 1).all())


def test_the_folded_convolution_is_upsampling_then_convolving():
    torch.manual_seed(0)
    layer = DoublingConv(3, 2)
    x = torch.randn(4, 3, 6, 7)
    wide = nn.functional.interpolate(
        nn.functional.pad(x, (2, 2, 2, 2), mode="replicate"), scale_factor=2, mode="bilinear"
    )
    plain = layer.convolution(wide)[:, :, 2:-2, 2:-2]
    assert torch.allclose(layer(x), plain, atol=1e-5)
    assert layer(x).shape == (4, 2, 12, 14)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 10, 7)])
@pytest.mark.parametrize("classes", [0, 3])
def test_a_classed_generator_draws_each_class_with_its_own_layers(shape, classes):
    torch.manual_seed(0)
    generator = ClassedGenerator(shape, classes, 5, 12, texture=True).eval()
    with torch.no_grad():
        generator.own.normal_()
        generator.template.normal_()
    labels = torch.tensor([2, 0, 1, 1, 2]) if classes else torch.zeros(5, dtype=torch.int64)
    seeded = [torch.Generator().manual_seed(4) for _ in range(2)]
    images = generator(labels, seeded[0])
    assert images.shape == (5, *shape)
    assert float(images.min()) >= 0
    assert float(images.max()) <= 1
    # A second route: one matrix for each record.
    noise = torch.randn(5, 5, generator=seeded[1])
    matrices = generator.common + generator.own[labels]
    mixed = torch.einsum("nl,nlh->nh", noise, matrices)
    expected = torch.relu(mixed * generator.gain[labels] + generator.shift[labels])
    assert torch.allclose(generator._begin(noise, labels), expected, atol=1e-5)


def test_what_one_class_learns_leaves_the_others_alone():
    torch.manual_seed(0)
    generator = ClassedGenerator((1, 8, 8), 2, 4, 6).eval()
    labels = torch.tensor([0, 1, 0, 1])
    before = generator(labels, torch.Generator().manual_seed(1))
    with torch.no_grad():
        generator.own[1] += 1
        generator.template[1] += 1
    after = generator(labels, torch.Generator().manual_seed(1))
    assert torch.equal(before[labels == 0], after[labels == 0])
    assert not torch.allclose(before[labels == 1], after[labels == 1])
