"""Codecs: bounded, row-wise, saved whole, and told by their cards."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from sfumato.data import Batch, Dataset, Schema
from sfumato.errors import BadInput, CorruptArtifact
from sfumato.privacy import BoundedSum, Query
from sfumato.privacy.gate import _map_of
from sfumato.public import adain as adain_module
from sfumato.public.adain import AdainCodec
from sfumato.public.architectures import ResNet
from sfumato.public.autoencoder import AutoencoderCodec
from sfumato.public.codec import Card, ImageCodec, codec_from_state, load_codec, read_header
from sfumato.public.icgan import IcGanCodec, InstanceGenerator, convert_ic_gan
from sfumato.public.linear import CosineCodec, DctCodec, PcaCodec
from sfumato.public.resolve import codec_facts, get_codec
from sfumato.testing import check_map

GRAY, COLOUR, ODD = (1, 28, 28), (3, 32, 32), (3, 10, 6)


def pictures(n: int, shape: tuple[int, ...], *, name: str = "public pictures") -> Dataset:
    rng = np.random.default_rng(0)
    smooth = rng.random((n, shape[0], 4, 4)).repeat(16, axis=2).repeat(16, axis=3)
    pixels = smooth[:, :, : shape[1], : shape[2]]
    return Dataset.from_arrays((pixels * 255).astype(np.uint8), name=name)


def schema(shape: tuple[int, ...]) -> Schema:
    return Schema(kind="images", shape=shape)


@pytest.fixture
def small_vgg(monkeypatch):
    """Features of the right shape from the pixels themselves, and a decoder that reads three of the channels back."""

    def cells(network, pixels, layers, *, size):
        x = F.interpolate(
            pixels.expand(-1, 3, -1, -1) if pixels.shape[1] == 1 else pixels, size=(size, size)
        )
        x = F.avg_pool2d(x, 8) * 40
        return {"relu4_1": torch.cat([x, torch.zeros(len(x), 509, *x.shape[2:])], dim=1)}

    def decoder(features):
        return F.interpolate(features[:, :3] / 40, scale_factor=8)

    monkeypatch.setattr(adain_module, "activations", cells)
    monkeypatch.setattr(adain_module, "get_network", lambda name: decoder)


def tiny_ic_gan_files(folder, *, spectral: bool = True):
    """A random generator in the published names (spectral norms and all), and a random ResNet."""
    torch.manual_seed(0)
    generator = InstanceGenerator(
        [(16, 16, False), (16, 8, True)], chunk=4, instance=512, embedding=6
    )
    state = {k: torch.randn_like(v) * 0.3 for k, v in generator.state_dict().items()}
    state = {k: v.abs() + 0.5 if k.endswith("stored_var") else v for k, v in state.items()}
    normed = [k for k in state if k.endswith(".weight") and "gain" not in k and "bias" not in k]
    for name in normed if spectral else ():
        state[name.replace(".weight", ".u0")] = torch.randn(1, len(state[name]))
        state[name.replace(".weight", ".sv0")] = torch.ones(1)
    # The published file has a class embedding that is not used.
    state["shared.weight"] = torch.randn(10, 6)
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "G.safetensors")
    encoder = ResNet([1, 1, 1, 1], small_stem=True)
    renamed = {f"module.{k}": v.contiguous() for k, v in encoder.state_dict().items()}
    save_file(renamed, folder / "resnet.safetensors")
    return state


@pytest.fixture
def ic_gan(tmp_path):
    state = tiny_ic_gan_files(tmp_path)
    names = (f"{name}.safetensors" for name in ("G", "resnet", "ic-gan"))
    codec = convert_ic_gan(*(tmp_path / name for name in names), shape=(1, 12, 12), side=16)
    codec.published = state
    return codec


CODECS: dict[str, ImageCodec] = {
    "dct": DctCodec(GRAY, 20),
    "dct colour": DctCodec(ODD),
    "pca": PcaCodec.fit(pictures(60, ODD), 10),
    "autoencoder": AutoencoderCodec.untrained(GRAY, 16, 8, seed=0),
    "autoencoder, odd size": AutoencoderCodec.untrained(ODD, 4, 8, seed=0),
}


@pytest.mark.parametrize("name", CODECS)
def test_every_vector_is_within_the_bound_and_every_picture_within_its_range(name):
    codec = CODECS[name]
    torch.manual_seed(1)
    pixels = torch.rand(12, *codec.shape)
    pixels[5:10].round_()
    pixels[10], pixels[11] = 0, 1
    vectors = codec.encode(Batch(pixels, None))
    assert vectors.shape == (12, codec.dim)
    lengths = vectors.double().norm(dim=1)
    assert (lengths <= codec.bound * (1 + 1e-5)).all()
    if codec.unit:
        assert torch.allclose(lengths, torch.full_like(lengths, codec.bound), atol=1e-5)
    for asked in (vectors, torch.randn(3, codec.dim) * 100, torch.zeros(2, codec.dim)):
        decoded = codec.decode(asked)
        assert decoded.shape == (len(asked), *codec.shape)
        assert torch.isfinite(decoded).all()
        assert decoded.min() >= 0 and decoded.max() <= 1


@pytest.mark.parametrize("name", CODECS)
def test_no_row_depends_on_another_and_the_wall_can_sum_them(name):
    codec = CODECS[name]
    phi = _map_of(Query(label="vectors", shape=(codec.dim,), bound=codec.bound), codec.encode)
    check_map(phi, schema(codec.shape), counts=(1, 2, 17, 65, 130))
    pixels = torch.rand(4, *codec.shape)
    summed = BoundedSum(phi)
    rows = summed.rows(Batch(pixels, None)).double() * summed.grid
    assert torch.allclose(rows, codec.encode(Batch(pixels, None)).double(), atol=1e-4)
    pixels[1:] = math.nan
    assert (
        torch.isnan(codec.encode(Batch(pixels, None))[1:]).any(dim=1).all()
    )  # so the wall leaves it out


@pytest.mark.parametrize("name", CODECS)
def test_a_saved_codec_gives_the_same_vectors_pictures_and_card(name, tmp_path):
    codec = CODECS[name]
    codec.save(tmp_path / "codec.safetensors")
    pixels = torch.rand(4, *codec.shape, generator=torch.Generator().manual_seed(0))
    vectors = codec.encode(Batch(pixels, None))
    inside = codec_from_state({k: v.clone() for k, v in codec.state().items()})
    for again in (load_codec(tmp_path / "codec.safetensors"), inside):
        assert type(again) is type(codec)
        assert torch.equal(again.encode(Batch(pixels, None)), vectors)
        assert torch.equal(again.decode(vectors), codec.decode(vectors))
        assert again.card == codec.card
        assert again.facts == codec.facts
    assert read_header(tmp_path / "codec.safetensors")["card"] == codec.card.to_json()


def test_the_two_bases_of_cosines_have_the_axis_of_green_by_different_signs():
    """Both must stay as they are: what saved runs have learnt would else come out in the opposite colour."""
    shape, green = (3, 5, 7), torch.tensor([-0.1, 0.2, -0.1]).view(1, 3, 1, 1)
    batch = Batch((0.5 + green).expand(1, *shape), None)
    length = math.sqrt(35) * float(green.norm())
    for codec, sign in ((CosineCodec(schema(shape)), -1), (DctCodec(shape, 105), 1)):
        vector = codec.encode(batch)[0] * getattr(codec, "radius", 1.0)
        assert int((vector.abs() > 1e-5).sum()) == 1
        assert float(vector.sum()) == pytest.approx(sign * length, rel=1e-5)
        assert torch.allclose(codec.decode(codec.encode(batch)), batch.values, atol=1e-5)


# -- pixels in a basis -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 7)])
def test_all_frequencies_together_give_every_picture_back(shape):
    codec = DctCodec(shape, math.prod(shape))
    pixels = torch.rand(5, *shape)
    assert torch.allclose(codec.decode(codec.encode(Batch(pixels, None))), pixels, atol=1e-5)
    gram = codec.basis @ codec.basis.T
    assert torch.allclose(gram, torch.eye(len(gram)), atol=1e-5)


def test_distances_are_those_of_pictures_and_the_bound_is_reached_and_not_passed():
    codec = DctCodec((1, 8, 8), 64)
    pixels = torch.rand(2, 1, 8, 8)
    between = codec.encode(Batch(pixels, None)).diff(dim=0).norm() * codec.radius
    assert float(between) == pytest.approx(float(pixels.diff(dim=0).norm()), rel=1e-4)
    codec = DctCodec((1, 8, 8))
    extreme = torch.stack([torch.zeros(1, 8, 8), torch.ones(1, 8, 8)])
    assert torch.allclose(codec.encode(Batch(extreme, None)).norm(dim=1), torch.ones(2), atol=1e-6)


def test_brightness_comes_before_colour_and_low_frequencies_first():
    codec = DctCodec((3, 8, 8), 12)
    gray = torch.rand(1, 1, 8, 8).expand(1, 3, 8, 8)
    spent_on_colour = int((codec.encode(Batch(gray, None)).abs() < 1e-6).sum())
    assert 2 <= spent_on_colour <= 6  # at most half, and at least the two colours of the whole
    flat = torch.full((1, 3, 8, 8), 0.7)
    assert torch.allclose(codec.decode(codec.encode(Batch(flat, None))), flat, atol=1e-5)


def test_components_of_public_pictures_describe_pictures_like_them_best():
    mixed = np.random.default_rng(1).random((300, 6)) @ np.random.default_rng(2).random((6, 256))
    public = Dataset.from_arrays((mixed / mixed.max()).reshape(300, 1, 16, 16).astype(np.float32))
    pixels = public.take(np.arange(50)).pixels()
    pca, dct = PcaCodec.fit(public, 12), DctCodec((1, 16, 16), 12)
    errors = [
        float((c.decode(c.encode(Batch(pixels, None))) - pixels).square().mean())
        for c in (pca, dct)
    ]
    assert errors[0] < 0.2 * errors[1]
    assert torch.equal(PcaCodec.fit(public, 12).basis, pca.basis)  # one data set, one codec
    outlier = torch.ones(1, 1, 16, 16) * torch.eye(16)
    assert float(pca.encode(Batch(outlier, None)).norm()) <= 1 + 1e-6


def test_the_card_says_what_was_seen():
    public = pictures(60, ODD, name="cifar10:train")
    public.published_as = "cifar10:train"
    card = PcaCodec.fit(public, 5).card
    assert card.trained_on == ("cifar10:train",)
    assert card.records == 60
    assert "Krizhevsky" in card.licence
    assert len(card.sha256) == 64
    assert card.saw("cifar10:test") and card.saw("cifar10")
    assert not card.saw("mnist")
    other = pictures(60, ODD).images.copy()
    other[0, 0, 0, 0] ^= 1
    changed = Dataset.from_arrays(other, name="cifar10:train")
    changed.published_as = "cifar10:train"
    assert PcaCodec.fit(changed, 5).card.sha256 not in ("", card.sha256)
    assert not DctCodec(GRAY).card.trained_on


@pytest.mark.parametrize("name", ["patients.npz", "cifar10:train", "cifar10:patients"])
def test_the_card_tells_neither_number_nor_hash_of_rows_that_are_not_published(name, tmp_path):
    """A file may carry a published set's name: what counts is where the rows came from."""
    codec = PcaCodec.fit(pictures(60, ODD, name=name), 5)
    assert (codec.card.records, codec.card.sha256) == (None, "")
    assert codec.card.licence.startswith("not stated")
    whole = codec.save(tmp_path / "codec.safetensors").read_bytes()
    assert hashlib.sha256(pictures(60, ODD).images.tobytes()).hexdigest().encode() not in whole


def test_what_an_old_card_tells_of_unpublished_rows_is_dropped_when_it_is_read():
    old = {"about": "old", "trained_on": ["patients.npz"], "records": 317, "sha256": 64 * "a"}
    card = Card.from_json(old)
    assert (card.records, card.sha256) == (None, "")
    named = Card.from_json({**old, "trained_on": ["cifar10:train"]})
    assert (named.records, named.sha256) == (317, 64 * "a")
    damaged = Card.from_json({**old, "trained_on": [7, None]})
    assert damaged.records is None
    weights = Card.from_json({**old, "trained_on": ["imagenet-1k"], "records": 0})
    assert weights.sha256  # of converted weights, not of rows


# -- by name -----------------------------------------------------------------------------------------------------------


def test_codecs_by_name_fit_their_facts(tmp_path, small_vgg):
    public = pictures(80, COLOUR)
    PcaCodec.fit(public, 7).save(tmp_path / "pca.safetensors")
    AutoencoderCodec.untrained(COLOUR, 16, 8, seed=0).save(tmp_path / "mine.safetensors")
    specs = ["dct", "dct:9", "pca", "pca:5", f"pca:{tmp_path / 'pca.safetensors'}"]
    specs += [str(tmp_path / "mine.safetensors"), "adain", "adain:6"]
    for spec in specs:
        codec = get_codec(spec, public.schema, public=public)
        assert codec.facts == codec_facts(spec, public.schema), spec
        assert codec.encode(Batch(torch.rand(2, *COLOUR), None)).shape == (2, codec.dim)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dtc", "no codec called"),
        ("dct:zero", "whole number"),
        ("dct:0", "ask for 1 to"),
        ("dct:99999", "ask for 1 to"),
        ("pca:99999", "1 to 784"),
        ("nowhere.safetensors", "no codec file"),
        ("ic-gan:nowhere.safetensors", "no codec file"),
        ("", "name or path"),
    ],
)
def test_a_codec_that_is_not_there_is_named_with_a_remedy(spec, message):
    with pytest.raises(BadInput, match=message):
        get_codec(spec, schema(GRAY))


def test_misuse_is_refused_with_a_reason(tmp_path):
    path = DctCodec(GRAY).save(tmp_path / "dct.safetensors")
    for spec, shape, public, words in (
        ("pca:4", GRAY, None, "fitted on public data"),
        ("pca:4", GRAY, pictures(50, ODD), "of that shape"),
        ("pca:40", ODD, pictures(30, ODD), "fewer components"),
        ("adain", (1, 8, 8), None, "at least 24 pixels"),
        (str(path), COLOUR, None, "pretrain one of that shape"),
        (f"pca:{path}", GRAY, None, "not pca"),
    ):
        with pytest.raises(BadInput, match=words):
            get_codec(spec, schema(shape), public=public)
    with pytest.raises(BadInput, match="resize them"):
        DctCodec(GRAY).encode(Batch(torch.rand(2, *COLOUR), None))
    with pytest.raises(BadInput, match="decodes vectors of 64"):
        DctCodec(GRAY).decode(torch.rand(2, 3))


def test_a_damaged_or_foreign_file_is_refused(tmp_path):
    path = PcaCodec.fit(pictures(60, ODD), 5).save(tmp_path / "codec.safetensors")
    content = path.read_bytes()
    for damaged, words in (
        (content[: len(content) // 2], None),
        (content.replace(b'\\"dim\\": 5', b'\\"dim\\": 6'), "does not fit"),
        (content.replace(b'\\"kind\\": \\"pca\\"', b'\\"kind\\": \\"pcx\\"'), "does not know"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(CorruptArtifact, match=words):
            load_codec(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(BadInput, match="holds no codec"):
        load_codec(path)


# -- networks ----------------------------------------------------------------------------------------------------------


def test_an_autoencoder_has_no_layer_that_mixes_rows():
    for codec in (CODECS["autoencoder"], CODECS["autoencoder, odd size"]):
        assert isinstance(codec, AutoencoderCodec)
        kinds = {type(m) for m in codec.network.modules()}
        assert not any(issubclass(k, nn.modules.batchnorm._NormBase) for k in kinds)
        assert not codec.network.training
        assert not any(p.requires_grad for p in codec.network.parameters())


@pytest.mark.parametrize(
    "shape", [(1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 128, 128), (1, 9, 13)]
)
def test_an_autoencoder_fits_any_size(shape):
    codec = AutoencoderCodec.untrained(shape, 8, 8, seed=0)
    assert codec.decode(codec.encode(Batch(torch.rand(2, *shape), None))).shape == (2, *shape)


def test_adain_keeps_what_its_cells_hold(small_vgg):
    for shape in (GRAY, COLOUR, (3, 96, 96)):
        codec = AdainCodec(shape)
        flat = torch.full((2, *shape), 0.25)
        assert codec.encode(Batch(flat, None)).shape == (2, 8192)
        assert torch.allclose(codec.decode(codec.encode(Batch(flat, None))), flat, atol=1e-3)
        assert (codec.encode(Batch(torch.ones(1, *shape), None)).norm(dim=1) <= 1 + 1e-6).all()


def test_adain_on_components_says_all_that_it_saw(small_vgg, tmp_path):
    public = pictures(80, COLOUR, name="cifar10:train")
    codec = get_codec("adain:6", public.schema, public=public)
    assert codec.card.trained_on == ("imagenet-1k", "ms-coco", "wikiart", "cifar10:train")
    pixels = public.take(np.arange(5)).pixels()
    codec.save(tmp_path / "a.safetensors")
    assert torch.equal(
        load_codec(tmp_path / "a.safetensors").encode(Batch(pixels, None)),
        codec.encode(Batch(pixels, None)),
    )


def test_an_ic_gan_in_its_published_names_becomes_a_codec(ic_gan, tmp_path):
    pixels = torch.rand(3, 1, 12, 12)
    vectors = ic_gan.encode(Batch(pixels, None))
    assert vectors.shape == (3, 512)
    assert torch.allclose(vectors.norm(dim=1), torch.ones(3), atol=1e-5)
    assert ic_gan.decode(vectors).shape == (3, 1, 12, 12)
    assert ic_gan.generator.resolution == 16
    again = get_codec(f"ic-gan:{tmp_path / 'ic-gan.safetensors'}", schema((1, 12, 12)))
    assert isinstance(again, IcGanCodec)
    assert torch.equal(again.encode(Batch(pixels, None)), vectors)
    assert again.card.trained_on == ("imagenet-1k",)


def test_the_noise_of_an_ic_gan_is_the_callers(ic_gan):
    vectors = ic_gan.encode(Batch(torch.rand(2, 1, 12, 12), None))
    drawn = [
        ic_gan.decode(vectors, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(ic_gan.decode(vectors), ic_gan.decode(vectors))


def test_spectral_norms_are_divided_out_as_the_generator_would(ic_gan):
    weight, u = ic_gan.published["linear.weight"], ic_gan.published["linear.u0"]
    v = u @ weight / (u @ weight).norm()
    sigma = (weight @ v.T).norm()
    assert torch.allclose(ic_gan.generator.linear.weight, weight / sigma, rtol=1e-4)


def test_an_ic_gan_that_does_not_fit_is_refused(tmp_path):
    state = tiny_ic_gan_files(tmp_path, spectral=False)
    encoder = tmp_path / "resnet.safetensors"
    wider = (".gain.weight", "bn1.bias.weight", "bn2.bias.weight")
    for name in [k for k in state if k.endswith(wider)]:
        state[name] = torch.randn(len(state[name]), state[name].shape[1] + 6)
    save_file(state, tmp_path / "by-class.safetensors")
    for generator, words in (
        ("resnet.safetensors", "not the state"),
        ("by-class.safetensors", "class as well"),
        ("nowhere.pth", "no file"),
    ):
        with pytest.raises(BadInput, match=words):
            convert_ic_gan(tmp_path / generator, encoder, tmp_path / "x", shape=(3, 16, 16))


def test_a_card_survives_its_json():
    card = Card(
        about="φ", trained_on=("a", "b:train"), records=3, settings={"x": 1}, quality={"y": 0.5}
    )
    assert Card.from_json(json.loads(json.dumps(card.to_json()))) == card
