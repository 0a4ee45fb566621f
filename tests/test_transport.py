"""Transport: textures and what is asked of them, by a second route; draws that are moved until they have them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

import sfumato
from sfumato.data import Batch, Dataset, Schema
from sfumato.errors import BadInput
from sfumato.methods import Method, Transport
from sfumato.methods.moments import scaled
from sfumato.methods.textures import MEANS, MOMENT, Textures
from sfumato.privacy import BoundedSum, Budget, Query, enforced_bound
from sfumato.privacy.gate import _map_of
from sfumato.public import own_encoder, perceptual
from sfumato.public.perceptual import layers_of
from sfumato.public.texture import Texture
from sfumato.testing.sums import check_map

GRAY = Schema(kind="images", shape=(1, 8, 8), classes=("a", "b"))
PLENTY = Budget(epsilon=300.0, delta=1e-5)


def edged(n: int, seed: int = 0) -> Dataset:
    """Bars at random places, upright in one class and level in the other: no Gaussian has their edges."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    images = np.zeros((n, 8, 8), np.uint8)
    for image, label, place in zip(images, labels, rng.integers(0, 6, n), strict=True):
        bar = image.T if label else image
        bar[place : place + 2] = 255
    return Dataset.from_arrays(images, labels, classes=2)


@pytest.fixture(scope="module")
def fitted() -> Transport:
    """Without tones, so that draws are clouds. With so many steps the distance falls to 0.28 of the draws', deviation 0.04."""
    return Transport(steps=150, width=8, batch=32, stay=0.0, tone=False).fit(edged(600), PLENTY)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 13), (1, 28, 28)])
def test_tones_of_a_cell_are_shares_and_rows_are_by_themselves(shape):
    random = torch.Generator().manual_seed(0)
    pixels = torch.rand(5, *shape, generator=random)
    texture = Texture(shape)
    rows = texture(pixels)
    assert rows.shape == (5, texture.dim)
    tones = rows[:, -texture.tones :].view(5, shape[0], 8, -1)
    assert torch.allclose(tones.sum(2), torch.ones(5, shape[0], tones.shape[-1]), atol=1e-5)
    # The mean gray of a cell is the mean of its levels: linear membership keeps it.
    cell = texture.cell
    first = pixels[:, :, :cell, :cell].mean((2, 3))
    told = (tones[..., 0] * torch.linspace(0, 1, 8)).sum(2)
    assert torch.allclose(told, first, atol=1e-5)
    assert torch.equal(texture(pixels[2:3])[0], rows[2])


def test_the_sums_ask_what_they_say_and_no_row_is_longer_than_the_bound():
    draws = edged(400).images
    random = torch.Generator().manual_seed(0)

    def draw(labels: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        picked = torch.randint(len(draws), (len(labels),), generator=random)
        return torch.from_numpy(draws)[picked]

    textures = Textures.of(Texture((1, 8, 8)), torch.tensor([0.5, 0.5]), draw, random)
    means, moment = Transport().texture_queries(GRAY, 1.0)
    assert (means.label, moment.label) == (MEANS, MOMENT)
    assert means.shape == (textures.texture.dim,) and means.segments == 2
    hostile = torch.zeros(4, 1, 8, 8)
    hostile[1] = 1.0
    hostile[2, :, ::2] = 1.0
    hostile[3] = math.nan
    labels = torch.tensor([0, 1, 1, 0])
    # As `asked` forms them, at a tenth of the radius: every row is too long and must be clipped.
    phi = _map_of(
        means, lambda b: (textures.features(b.pixels()) / (0.1 * textures.radius), b.labels)
    )
    for row in range(4):
        one = Batch(hostile[row : row + 1], labels[row : row + 1])
        total = BoundedSum(phi)(one).double() * BoundedSum(phi).grid
        wanted = 0.0 if row == 3 else 1.0
        assert float(total.norm()) == pytest.approx(wanted, abs=2e-2)
        assert float(total.norm()) <= enforced_bound(phi)


def test_without_noise_to_speak_of_the_records_own_textures_are_read():
    """By a second route: class means and second moments of features computed here."""
    data = edged(600)
    found: dict[str, object] = {}

    class Watched(Transport):
        def _distance(self, textures, target, random):  # type: ignore[no-untyped-def]
            found.update(textures=textures, target=target)
            return super()._distance(textures, target, random)

    Watched.info = Transport.info
    Watched(steps=1, width=4, batch=8).fit(data, PLENTY)
    textures, target = found["textures"], found["target"]
    pixels, labels = torch.from_numpy(data.images) / 255, torch.from_numpy(data.labels)
    features = textures.features(pixels)
    lengths = features.norm(dim=1) / textures.radius
    own = features / lengths.clamp(min=1)[:, None]  # the wall clips
    means = torch.stack([own[labels == c].mean(0) for c in range(2)])
    assert (means - target.means).abs().max() < 0.05
    around = textures.coordinates(features, labels)
    around = around / (around.norm(dim=1) / textures.reach).clamp(min=1)[:, None]
    moment = around.T @ around / len(around)
    assert (moment - target.moment).abs().max() < 0.05 * float(moment.diagonal().max())


def test_moved_draws_have_the_records_textures_more_than_the_draws(fitted):
    data = edged(1000, seed=1)
    texture = Texture((1, 8, 8))
    real = texture(torch.from_numpy(data.images) / 255).mean(0)
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(1000) % 2
    plain = texture(fitted.drawn_images(labels, random).float() / 255).mean(0)
    moved = fitted.sample(1000, seed=0)
    made = texture(torch.from_numpy(moved.images) / 255).mean(0)
    assert float((made - real).norm()) < 0.6 * float((plain - real).norm())


def test_the_network_is_not_told_the_class(fitted):
    """What tells a class beside its shape would be learnt by whoever learns from samples."""
    pixels = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    first = fitted._moved(pixels, torch.Generator().manual_seed(1))
    assert torch.equal(first, fitted._moved(pixels, torch.Generator().manual_seed(1)))
    assert fitted.network_.label is None


def test_a_share_of_samples_stays_as_it_was_drawn(fitted):
    labels = torch.arange(400) % 2

    def made(share: float) -> torch.Tensor:
        fitted.set_params(unmoved=share)
        try:
            return fitted._sample(labels, torch.Generator().manual_seed(0))
        finally:
            fitted.set_params(unmoved=0.0)

    draws = fitted._starts(labels, torch.Generator().manual_seed(0))
    moved = made(0.0)
    assert torch.equal(made(1.0), draws)
    both = made(0.3)
    stays = (both == draws).flatten(1).all(1)
    assert torch.equal(both[~stays], moved[~stays])
    assert not (moved == draws).flatten(1).all(1).any()
    assert abs(int(stays.sum()) - 120) < 5 * math.sqrt(400 * 0.3 * 0.7)


def test_few_records_get_the_mixture_alone():
    few = edged(60)
    budget = Budget(epsilon=1.0, delta=1e-3)
    promised = Transport().promise(few.schema, budget, size=len(few))
    assert MEANS not in [charge.label for charge in promised.charges]
    promised = Transport().promise(few.schema, budget, size=60_000)
    assert MEANS in [charge.label for charge in promised.charges]
    fit = Transport().fit(few, budget)
    labels = torch.arange(10) % 2
    made = fit._sample(labels, torch.Generator().manual_seed(0))
    drawn = fit.drawn_images(labels, torch.Generator().manual_seed(0))
    assert torch.equal((made * 255).round().byte(), drawn)


def test_a_network_may_be_trained_anew_on_what_was_released(fitted, tmp_path):
    first = Transport(steps=2, width=4, batch=8).fit(edged(300), PLENTY, out=tmp_path / "first")
    again = Transport(steps=3, width=6, batch=8, stay=0.0).refit(
        tmp_path / "first", out=tmp_path / "second"
    )
    assert again.statement_ == first.statement_
    loaded = Method.load(tmp_path / "second")
    assert np.array_equal(loaded.sample(6, seed=0).images, again.sample(6, seed=0).images)
    with pytest.raises(BadInput, match="shapes the release"):
        Transport(steps=2, width=4, batch=8, share=0.5).refit(tmp_path / "first")


def test_pictures_of_a_few_pixels_are_refused():
    data = Dataset.from_arrays(np.zeros((20, 3, 3), np.uint8), np.zeros(20, int), classes=2)
    with pytest.raises(BadInput, match="at least 4 × 4"):
        sfumato.Transport().fit(data, PLENTY, allow_empty=True)


@pytest.mark.parametrize(("gray", "tone"), [(0, True), (100, False), (255, False)])
def test_pictures_that_are_all_the_same_are_drawn_as_they_are(gray, tone):
    images = np.full((200, 8, 8), gray, np.uint8)
    data = Dataset.from_arrays(images, np.arange(200) % 2, classes=2)
    fitted = Transport(steps=3, width=4, batch=8, tone=tone).fit(data, PLENTY)
    made = fitted.sample(20, seed=0).images.astype(float)
    assert all(bool(p.isfinite().all()) for p in fitted.network_.parameters())
    assert abs(made - gray).mean() < 8


# -- with a network that looks on ----------------------------------------------------------------------------------------


@pytest.fixture
def seeing() -> Iterator[str]:
    """A network of one's own with two layers, one of many numbers."""
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(1, 40, 3, padding=1), nn.ReLU(), nn.Conv2d(40, 6, 3, stride=2), nn.ReLU()
    )
    yield own_encoder("seeing", body, shape=(1, 8, 8), layers=["1", "3"]).spec
    perceptual.OWN.clear()


def test_layers_are_averaged_until_they_have_few_numbers(seeing, monkeypatch):
    pixels = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    wide = layers_of(seeing, (1, 8, 8))
    assert wide.widths == (40 * 16, 6 * 9)
    monkeypatch.setattr(perceptual, "_MOST_OF_A_LAYER", 160)
    narrow = layers_of(seeing, (1, 8, 8))
    assert narrow.widths == (40 * 4, 6 * 9)
    first, second = wide(pixels)[0].view(5, 40, 2, 2, 2, 2), narrow(pixels)[0].view(5, 40, 2, 2)
    assert torch.allclose(first.mean((3, 5)), second, atol=1e-6)
    texture = Texture((1, 8, 8), encoder=wide)
    rows = texture(pixels)
    assert rows.shape == (5, texture.dim) and sum(texture.blocks) == texture.dim
    assert torch.equal(rows[:, : -640 - 54], Texture((1, 8, 8))(pixels))
    assert torch.allclose(texture(pixels[3:4])[0], rows[3], atol=1e-6)


def test_what_a_network_sees_of_records_is_released_and_bounded(seeing):
    data, found = edged(600), {}

    class Watched(Transport):
        def _distance(self, textures, target, random):  # type: ignore[no-untyped-def]
            found.update(textures=textures, target=target)
            return super()._distance(textures, target, random)

    Watched.info = Transport.info
    fit = Watched(steps=1, width=4, batch=8, encoder=seeing).fit(data, PLENTY)
    charges = {charge.label: charge for charge in fit.statement_.charges}
    plain = Transport().promise(data.schema, PLENTY, size=600)
    dims = {charge.label: charge.dimension for charge in plain.charges}
    assert charges[MEANS].dimension == dims[MEANS] + 2 * (40 * 16 + 6 * 9)
    textures, target = found["textures"], found["target"]
    # By a second route: the network itself, averaged by hand, in the units that draws gave.
    pixels, labels = torch.from_numpy(data.images) / 255, torch.from_numpy(data.labels)
    body = perceptual.OWN["seeing"].network
    with torch.no_grad():
        low = body[:2](pixels)
        high = body[2:](low)
    low = low.view(600, 40, 4, 2, 4, 2).mean((3, 5))
    seen = torch.cat([low.flatten(1), high.flatten(1)], dim=1)
    there = slice(textures.texture.blocks[0], None)
    whole = textures.features(pixels)
    seen = (seen - textures.centre[there]) / textures.scale[there]
    assert torch.allclose(seen, whole[:, there], atol=1e-4)
    seen = seen / (whole.norm(dim=1) / textures.radius).clamp(min=1)[:, None]
    means = torch.stack([seen[labels == c].mean(0) for c in range(2)])
    assert (means - target.means[:, there]).abs().max() < 0.05
    # Whatever it says of whatever record, a sum is that of the records one by one, each no longer than the bound.
    query = Query(label="x", shape=(textures.texture.dim,), segments=2)

    def of_class(batch: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        return textures.features(batch.pixels()), batch.labels

    check_map(_map_of(query, scaled(of_class, 0.1 * textures.radius)), GRAY, counts=(1, 3, 33))


def test_draws_come_nearer_to_what_the_network_sees_of_records(seeing):
    """Of the draws' distance 0.66 is left after so many steps, deviation 0.06."""
    how = {"steps": 150, "width": 8, "batch": 32, "stay": 0.0, "tone": False}
    fitted = Transport(**how, encoder=seeing, precision="bfloat16").fit(edged(600), PLENTY)
    labels, looks = torch.arange(8000) % 2, layers_of(seeing, (1, 8, 8))

    def seen(images: object) -> torch.Tensor:
        return torch.cat([part.mean(0) for part in looks(torch.as_tensor(images).float() / 255)])

    wanted = seen(edged(8000, seed=1).images)
    plain = seen(fitted.drawn_images(labels, torch.Generator().manual_seed(0)))
    made = seen(fitted.sample(8000, seed=0).images)
    assert float((made - wanted).norm()) < 0.97 * float((plain - wanted).norm())


def test_networks_that_are_not_public_here_or_are_none_are_refused_before_a_row_is_read():
    colour = Dataset.from_arrays(
        np.zeros((600, 3, 32, 32), np.uint8), np.arange(600) % 10, classes=10
    )
    with pytest.raises(BadInput, match="no-such-network"):
        Transport(encoder="no-such-network").promise(colour.schema, PLENTY, size=600)
    with pytest.raises(BadInput, match="size is for networks"):
        Transport(size=64).promise(colour.schema, PLENTY, size=600)
    colour.published_as = "cifar10:train"
    with pytest.raises(BadInput, match="trained on cifar10"):
        Transport(encoder="resnet18-cifar10", steps=1).fit(colour, PLENTY)
