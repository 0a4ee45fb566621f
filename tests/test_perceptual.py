"""Perceptual features: lengths, bounds and rows hold whatever the network; public centre and weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.data import Batch, Dataset
from sfumato.errors import BadInput
from sfumato.public.network import Network
from sfumato.public.perceptual import (
    NetworkEncoder,
    PerceptualFeatures,
    ScatteringEncoder,
    make_encoder,
    public_centre,
    public_rows,
)
from sfumato.public.pretrained import SmallResNet, save_extractor
from sfumato.public.weights import list_networks

SHAPE = (1, 8, 8)


def small_network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
    ).eval()


def encoder(layers=("2", "4"), **settings) -> NetworkEncoder:
    return NetworkEncoder(small_network(), layers, SHAPE, **settings)


def batch_of(n: int = 5, seed: int = 0) -> Batch:
    return Batch(torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(seed)), None)


def test_features_are_the_paper_formula():
    network = small_network()
    batch = batch_of()
    first = network[:3](batch.values)
    raw = torch.cat([first.flatten(1), network[3:](first).flatten(1)], dim=1)
    squares = raw.square()
    wanted = torch.cat(
        [
            raw / raw.norm(dim=1, keepdim=True),
            0.5 * squares / squares.norm(dim=1, keepdim=True),
        ],
        dim=1,
    )
    phi = PerceptualFeatures(encoder(), second_weight=0.5)
    assert phi.dim == 2 * (4 * 64 + 6 * 16)
    assert torch.allclose(phi(batch), wanted, atol=1e-6)
    only = PerceptualFeatures(encoder(("4",)), moments=1)
    last = network(batch.values).flatten(1)
    assert torch.allclose(only(batch), last / last.norm(dim=1, keepdim=True), atol=1e-6)


@pytest.mark.parametrize("moments", [1, 2])
@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_the_length_is_the_bound_however_large_the_activations(moments, balance, scale):
    network = small_network()
    with torch.no_grad():
        network[0].weight.mul_(scale)
        network[0].bias.mul_(scale)
    made = NetworkEncoder(network, ("2", "4"), SHAPE)
    phi = PerceptualFeatures(made, moments=moments, balance=balance, second_weight=2.0)
    lengths = phi(batch_of()).double().norm(dim=1)
    assert phi.bound == pytest.approx(math.sqrt(1 + (4 if moments == 2 else 0)))
    assert torch.allclose(lengths, torch.full_like(lengths, phi.bound), rtol=1e-5)


def test_an_image_that_the_network_does_not_see_gives_zero_not_nan():
    network = nn.Sequential(nn.Conv2d(1, 3, 3, bias=False), nn.ReLU()).eval()
    phi = PerceptualFeatures(NetworkEncoder(network, ("1",), SHAPE))
    black = torch.zeros(2, *SHAPE, requires_grad=True)
    features = phi.of(black)
    assert torch.equal(features, torch.zeros_like(features))
    features.sum().backward()
    assert torch.isfinite(black.grad).all()


def test_each_layer_has_the_same_length_when_balanced():
    phi = PerceptualFeatures(encoder(), moments=1, balance=True)
    rows = phi(batch_of())
    for layer in (rows[:, :256], rows[:, 256:]):
        assert torch.allclose(layer.norm(dim=1), torch.tensor(0.5).sqrt(), atol=1e-5)


def test_a_network_that_mixes_records_is_refused_at_once_and_later():
    training = small_network().train()
    with pytest.raises(BadInput, match="training mode"):
        NetworkEncoder(training, ("2",), SHAPE)
    without = nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.ReLU()).eval()
    with pytest.raises(BadInput, match="without running statistics"):
        NetworkEncoder(without, ("1",), SHAPE)
    network = small_network()
    before = network[1].running_mean.clone()
    made = NetworkEncoder(network, ("2",), SHAPE)
    made.train()
    assert not network[1].training  # the encoder cannot be put into training mode …
    PerceptualFeatures(made)(batch_of())
    assert torch.equal(network[1].running_mean, before)
    network[1].train()
    with pytest.raises(BadInput, match="training mode"):  # … and its insides are watched
        PerceptualFeatures(made)(batch_of())


def test_only_features_without_negative_entries_get_the_smaller_sensitivity():
    assert PerceptualFeatures(encoder()).replace_ratio == pytest.approx(math.sqrt(2))
    assert PerceptualFeatures(encoder(("0", "2"))).replace_ratio == 2  # before the ReLU
    phi = PerceptualFeatures(encoder())
    rows = public_rows(phi, Dataset.from_arrays(batch_of(20).values.numpy()), 20)
    centre, radius = public_centre(rows)
    assert PerceptualFeatures(encoder(), centre=centre, radius=radius).replace_ratio == 2
    gaps = (rows[:, None] - rows[None]).norm(dim=2)
    assert float(gaps.max()) <= math.sqrt(2) * phi.bound


def test_gradients_reach_the_pixels_and_not_the_weights():
    network = small_network()
    phi = PerceptualFeatures(NetworkEncoder(network, ("4",), SHAPE))
    pixels = batch_of().values.requires_grad_()
    phi.of(pixels)[:, 0].sum().backward()
    assert float(pixels.grad.abs().max()) > 0
    assert all(p.grad is None and not p.requires_grad for p in network.parameters())


def test_memory_is_bounded_by_the_rows_that_pass_at_once():
    seen = []
    network = small_network()
    network.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    phi = PerceptualFeatures(NetworkEncoder(network, ("4",), SHAPE))
    phi(batch_of(1000))
    assert max(seen) <= 128
    assert sum(seen[1:]) == 1000  # the first was the image of zeros that found the width


def test_layers_are_averaged_to_few_places_and_images_resized():
    assert encoder(pool=2).widths == (4 * 4, 6 * 4)
    assert encoder(size=16).widths == (4 * 256, 6 * 64)
    whole, pooled = encoder(("2",)), encoder(("2",), pool=1)
    pixels = batch_of().values
    wanted = whole(pixels)[0].view(5, 4, 64).mean(2)
    assert torch.allclose(pooled(pixels)[0], wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("of_encoder", "of_features"),
    [
        *(({"layers": ()}, {}), ({"layers": ("9",)}, {}), ({"pool": 0}, {}), ({"size": -1}, {})),
        ({}, {"moments": 3}),
        ({}, {"second_weight": 0.0}),
        ({}, {"centre": torch.zeros(704)}),
        ({}, {"centre": torch.zeros(3), "radius": 1.0}),
        ({}, {"centre": torch.zeros(704), "radius": 0.0}),
    ],
)
def test_senseless_settings_are_refused(of_encoder, of_features):
    with pytest.raises(BadInput):
        PerceptualFeatures(encoder(**of_encoder), **of_features)


# -- public centre ---------------------------------------------------------------------------------------------------


def test_centred_features_are_clipped_to_the_public_radius():
    phi = PerceptualFeatures(encoder())
    rows = phi(batch_of(200))
    centre, radius = public_centre(rows, covered=0.5)
    centred = PerceptualFeatures(encoder(), centre=centre, radius=radius)
    assert centred.bound == 1
    found = centred(batch_of(200))
    lengths = found.norm(dim=1)
    assert (lengths <= 1 + 1e-5).all()
    inside = lengths < 1 - 1e-5
    assert 0.4 < float(inside.float().mean()) < 0.6
    assert torch.allclose(found[inside], ((rows - centre) / radius)[inside], atol=1e-5)


# -- encoders by name ------------------------------------------------------------------------------------------------


def test_a_pretrained_extractor_serves_by_its_path(tmp_path):
    card = {"about": "a test", "trained_on": [], "licence": "none needed"}
    settings = {"classes": 3, "width": 8, "repeats": 1, "stride": 1}
    path = save_extractor(tmp_path / "own.safetensors", SmallResNet(**settings), settings, card)
    made = make_encoder(str(path), SHAPE, pool=4)
    assert made.taps[0] == "stem"
    assert len(made.taps) == 7
    assert made.non_negative
    phi = PerceptualFeatures(made)
    assert torch.allclose(phi(batch_of()).norm(dim=1), torch.tensor(math.sqrt(2)), atol=1e-5)


def test_an_encoder_without_weights_has_the_widths_of_the_real_one():
    info = next(i for i in list_networks() if i.name == "alexnet")
    settings: dict = {"size": 32, "pool": 2}
    real = NetworkEncoder(Network(info, info.build()), ("relu1", "relu3"), SHAPE, **settings)
    outline = make_encoder("alexnet", SHAPE, layers=("relu1", "relu3"), weights=False, **settings)
    assert (outline.widths, outline.taps) == (real.widths, real.taps)
    assert outline.non_negative
    assert real.non_negative


@pytest.mark.parametrize("name", ["vgg16", "vgg19", "resnet18", "resnet18-cifar10", "alexnet"])
def test_named_networks_have_a_usual_choice_of_layers(name):
    made = make_encoder(name, (3, 32, 32), weights=False, size=32)
    assert made.non_negative
    if name == "vgg19":
        assert len(made.taps) == 16
        assert sum(made.widths) == 303_104  # the paper's number of features at 32 pixels


def test_features_of_scattering_are_found_again_by_order():
    assert make_encoder("scattering", SHAPE).taps == ("order0", "order1", "order2")
    with pytest.raises(BadInput, match="takes no layers"):
        make_encoder("scattering", SHAPE, size=32)
    made = ScatteringEncoder((2, 12, 12))
    pixels = torch.rand(3, 2, 12, 12)
    together = torch.cat(made(pixels), dim=1)
    whole = made.scattering(pixels)
    assert together.shape == whole.shape
    assert np.allclose(together.sort(dim=1).values, whole.sort(dim=1).values)


def test_the_papers_taps_are_every_convolution_larger_than_one():
    """47,104 numbers of a ResNet18 at 32 pixels (S3:3550, 3574): its 17 convolutions of 7×7 and 3×3."""
    encoder = make_encoder(
        "resnet18", (3, 32, 32), layers=("convolutions",), size=32, weights=False
    )
    assert len(encoder.taps) == 17 and sum(encoder.widths) == 47_104
    assert not encoder.non_negative
