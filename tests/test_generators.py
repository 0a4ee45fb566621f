"""Generators of images: any size, folded convolutions by a second route, layers of a class that are its own."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from sfumato.generators import ClassedGenerator, ConvGenerator, ResNetGenerator
from sfumato.generators.gan import ImageGenerator
from sfumato.generators.networks import DoublingConv, PointsGenerator

SHAPES = [(1, 28, 28), (1, 8, 8), (3, 32, 32), (3, 33, 17), (1, 5, 6), (3, 10, 6), (3, 64, 64)]
SHAPES += [(1, 128, 128), (3, 10, 7)]
MAKERS = {
    "conv": partial(ConvGenerator, latent=5, hidden=12),
    "classed": partial(ClassedGenerator, latent=5, hidden=12, texture=True),
    "resnet": partial(ResNetGenerator, latent=5, width=2),
    "gan": partial(ImageGenerator, latent=5, width=4),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("classes", [0, 4])
@pytest.mark.parametrize("name", MAKERS)
def test_generators_make_any_size(name, classes, shape):
    labels = torch.arange(4) % max(1, classes)
    made = MAKERS[name](shape, classes)(labels, torch.Generator().manual_seed(0)).detach()
    assert made.shape == (4, *shape)
    assert 0 <= float(made.min()) < float(made.max()) <= 1


@pytest.mark.parametrize(("side", "blocks"), [(28, 3), (32, 3), (64, 4), (128, 5)])
def test_the_residual_generator_has_the_papers_depths_and_widths(side, blocks):
    assert len(ResNetGenerator((1, side, side), 10, 8, width=2).blocks) == blocks
    papers = ResNetGenerator((3, 32, 32), 10, 90)
    assert papers.first.weight.shape == (100, 512, 4, 4)
    assert [block.conv2.out_channels for block in papers.blocks] == [256, 128, 64]


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


@pytest.mark.parametrize("classes", [0, 3])
def test_a_classed_generator_draws_each_class_with_its_own_layers(classes):
    torch.manual_seed(0)
    generator = ClassedGenerator((3, 10, 7), classes, 5, 12, texture=True).eval()
    with torch.no_grad():
        generator.own.normal_()
    labels = torch.tensor([2, 0, 1, 1, 2]) if classes else torch.zeros(5, dtype=torch.int64)
    # By a second route: one matrix for each record.
    noise = torch.randn(5, 5)
    mixed = torch.einsum("nl,nlh->nh", noise, generator.common + generator.own[labels])
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


def test_points_are_drawn_from_those_of_the_class_and_moved_alone():
    generator = PointsGenerator(2, 3, 5, blocks=[4])
    with torch.no_grad():
        generator.points[:, :, :2] = torch.arange(3.0)[:, None, None]  # each class somewhere else
    labels = torch.tensor([0, 2, 2, 1] * 50)
    made = generator(labels, torch.Generator().manual_seed(0))
    assert torch.allclose(made[:, 0], torch.sigmoid(labels.to(torch.float32)))
    assert torch.allclose(made[:, 2:].sum(dim=1), torch.ones(200))
    assert len(made[labels == 2, 2].unique()) == 5  # all of the class's points
    made[labels == 2].square().sum().backward()
    moved = generator.points.grad.abs().sum(dim=(1, 2))
    assert moved[2] > 0 and moved[:2].tolist() == [0, 0]
    images = PointsGenerator(12, 0, 7, shape=(3, 2, 2))
    made = images(torch.zeros(4, dtype=torch.int64), torch.Generator().manual_seed(0))
    assert made.shape == (4, 3, 2, 2) and 0 <= float(made.min().detach()) <= 1
