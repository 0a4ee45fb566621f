"""Pretraining: learns, goes on where it stopped, says what it saw, and is loud about what it takes for public."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from sfumato.cli.pretrain import pretrain
from sfumato.data import Batch, Dataset
from sfumato.errors import BadInput, CorruptArtifact, RunConflict
from sfumato.generators import training
from sfumato.public import list_networks, pretraining
from sfumato.public.architectures import LPIPS
from sfumato.public.autoencoder import AutoencoderCodec
from sfumato.public.codec import load_codec
from sfumato.public.network import Network, Preprocessing, activations, lpips
from sfumato.public.pretraining import Schedule, pretrain_codec, pretrain_extractor, pretrain_pca
from sfumato.public.resolve import get_codec
from sfumato.public.weights import get_network


def bars(n: int = 200, *, labelled: bool = True) -> Dataset:
    """Upright and level bars at random places."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 2
    pixels = np.zeros((n, 1, 12, 12), dtype=np.uint8)
    for i, at in enumerate(rng.integers(0, 10, n)):
        if labels[i]:
            pixels[i, 0, :, at : at + 2] = 255
        else:
            pixels[i, 0, at : at + 2] = 255
    given = {"classes": 2, "labels": labels} if labelled else {}
    return Dataset.from_arrays(pixels, name="bars", **given)


def schedule(steps: int, **more: object) -> Schedule:
    return Schedule(steps=steps, batch=16, learning_rate=5e-3, **more)


def test_a_codec_learns_its_public_pictures(tmp_path):
    public = bars()
    codec = pretrain_codec(public, tmp_path / "c.safetensors", schedule(40), dim=8, width=8)
    pixels = public.take(np.arange(0, 200, 20)).pixels()
    untrained = AutoencoderCodec.untrained((1, 12, 12), 8, 8, seed=0)
    before = (untrained.decode(untrained.encode(Batch(pixels, None))) - pixels).square().mean()
    assert codec.card.quality["mean_squared_error"] < 0.75 * float(before)
    assert codec.card.records is None  # not told of a set that is not published
    assert codec.card.settings["steps"] == 40
    opened = get_codec(str(tmp_path / "c.safetensors"), public.schema)
    assert torch.equal(opened.encode(Batch(pixels, None)), codec.encode(Batch(pixels, None)))
    assert opened.card == codec.card
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]  # no checkpoint is left


def test_a_stopped_training_goes_on_to_the_same_codec(tmp_path, monkeypatch):
    public = bars(60)
    whole = pretrain_codec(public, tmp_path / "whole.safetensors", schedule(8), dim=4, width=8)
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", -1.0)

    def stop(record):
        if record["step"] == 5 and not going_on:
            raise KeyboardInterrupt

    going_on = False
    out = tmp_path / "part.safetensors"
    with pytest.raises(KeyboardInterrupt):
        pretrain_codec(public, out, schedule(8, log=stop), dim=4, width=8)
    assert not out.exists()
    assert (tmp_path / ".part.safetensors.checkpoint").exists()
    going_on = True
    resumed = pretrain_codec(public, out, schedule(8, log=stop, resume=True), dim=4, width=8)
    pixels = public.take(np.arange(5)).pixels()
    assert torch.equal(resumed.encode(Batch(pixels, None)), whole.encode(Batch(pixels, None)))


class Edges(nn.Module):
    """In the place of VGG16: two layers of fixed random filters."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.features = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
        with torch.no_grad():
            for weights in self.parameters():
                weights.copy_(torch.randn(weights.shape, generator=random) * 0.3)


@pytest.fixture
def seer(monkeypatch):
    """A small network of LPIPS's form, which sees pictures of 4 pixels and more."""
    body = LPIPS(Edges(), (1, 3), (8, 8))
    for head in body.heads:
        head.data.fill_(1.0)
    known = next(info for info in list_networks() if info.name == "lpips-vgg16")
    network = Network(replace(known, preprocessing=Preprocessing(least=4)), body)
    monkeypatch.setattr(pretraining, "get_network", lambda name, progress: network)
    return network


def test_a_codec_may_learn_by_lpips_and_says_whose_eyes_it_had(tmp_path, seer):
    public, found = bars(), {}
    for weight in (0.0, 1.0):
        out = tmp_path / f"{weight}.safetensors"
        codec = pretrain_codec(public, out, schedule(150), dim=8, width=8, perceptual=weight)
        pixels = public.take(np.arange(0, 200, 20)).pixels()  # those kept out
        back = codec.decode(codec.encode(Batch(pixels, None)))
        found[weight] = float(lpips(seer, back, pixels).mean())
    assert found[1.0] < 0.9 * found[0.0]
    assert codec.card.quality["lpips"] == pytest.approx(found[1.0], rel=1e-3)
    assert codec.card.settings["perceptual"] == 1.0
    assert codec.card.trained_on == ("bars", "imagenet-1k", "bapps")
    assert codec.card.saw("imagenet-1k")
    seen_little = Dataset.from_arrays(np.zeros((50, 3, 3), np.uint8), name="dots")
    with pytest.raises(BadInput, match="at least 4 pixels a side, and these have 3"):
        pretrain_codec(seen_little, tmp_path / "x", schedule(1), dim=4, width=8, perceptual=1.0)


def test_short_numbers_train_nearly_the_same_codec(tmp_path):
    pixels, made = bars().take(np.arange(8)).pixels(), {}
    for precision in ("float32", "bfloat16"):
        how = schedule(3, precision=precision)
        codec = pretrain_codec(bars(), tmp_path / precision, how, dim=8, width=8)
        made[precision] = codec.encode(Batch(pixels, None))
        assert all(value.dtype == torch.float32 for value in codec.network.state_dict().values())
    assert not torch.equal(made["float32"], made["bfloat16"])
    assert torch.cosine_similarity(made["float32"], made["bfloat16"], dim=1).min() > 0.9
    with pytest.raises(BadInput, match="float32 or bfloat16"):
        pretrain_codec(bars(), tmp_path / "x", schedule(1, precision="half"), dim=8, width=8)


def test_an_extractor_tells_its_classes_apart_and_is_known_by_its_path(tmp_path):
    path = tmp_path / "e.safetensors"
    network, card = pretrain_extractor(bars(), path, schedule(30), width=8)
    assert card.quality["accuracy"] > 0.8
    again = get_network(str(path))
    pixels = bars().take(np.arange(6)).pixels()
    assert torch.equal(again(pixels), network(pixels))
    assert again.info.trained_on == ("bars",)
    layers = again.info.layers
    assert layers[0] == "stem" and len(layers) == 7
    seen = activations(again, pixels, layers)
    assert all((part >= 0).all() for part in seen.values())
    alone = activations(again, pixels[2:3], layers)
    for layer in layers:  # row-wise
        assert torch.allclose(seen[layer][2], alone[layer][0], atol=1e-5)
    assert not any(isinstance(m, nn.modules.batchnorm._NormBase) for m in again.body.modules())


def test_an_extractor_that_is_damaged_or_none_is_refused(tmp_path):
    path = tmp_path / "e.safetensors"
    pretrain_extractor(bars(80), path, schedule(1), width=8)
    content = path.read_bytes()
    for damaged in (content[:-40], content.replace(b'\\"width\\": 8', b'\\"width\\": 9')):
        path.write_bytes(damaged)
        with pytest.raises(CorruptArtifact):
            get_network(str(path))
    pretrain_pca(bars(), tmp_path / "p.safetensors", dim=3)
    with pytest.raises(BadInput, match="holds no extractor"):
        get_network(str(tmp_path / "p.safetensors"))


def test_what_cannot_be_learnt_from_is_refused(tmp_path):
    out = tmp_path / "x.safetensors"
    with pytest.raises(BadInput, match="no labels"):
        pretrain_extractor(bars(labelled=False), out, schedule(1))
    for n, steps, how, words in (
        (30, 1, {}, "too few"),
        (200, 1, {"noise": 3.0}, "noise"),
        (200, 1, {"perceptual": -1.0}, "perceptual must be 0 or more"),
        (200, 1, {"width": 12}, "multiple of 8"),
        (200, 0, {}, "at least one step"),
    ):
        with pytest.raises(BadInput, match=words):
            pretrain_codec(bars(n), out, schedule(steps), **how)
    out.write_text("mine")
    for make, how in ((pretrain_codec, [schedule(1)]), (pretrain_pca, [])):
        with pytest.raises(RunConflict, match="exists already"):
            make(bars(), out, *how)
    assert out.read_text() == "mine"


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """The command, on a file of bars unless told otherwise."""
    bars().save(tmp_path / "bars.npz")

    def invoke(arguments: str, public: str = str(tmp_path / "bars.npz")):
        words = ["--public", public, "--out", str(tmp_path / "x.safetensors"), "--quiet"]
        done = CliRunner().invoke(pretrain, words + arguments.split(), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done, str(tmp_path / "x.safetensors")

    return invoke


def test_the_command_says_that_everything_is_treated_as_public_even_when_quiet(run):
    done, path = run("--kind pca --dim 4")
    assert "treated as PUBLIC" in done.stderr
    assert "no ε covers them" in done.stderr
    assert load_codec(path).dim == 4


def test_the_command_trains_a_codec_and_prints_its_card(run):
    done, path = run("--dim 4 --width 8 --steps 2 --json")
    card = json.loads(done.stdout)["card"]
    assert card["trained_on"] == ["bars.npz"]
    assert card["quality"]["mean_squared_error"] > 0
    assert load_codec(path).card.to_json() == card


def test_a_set_that_stands_for_private_data_is_pointed_out(run):
    done, path = run("--kind extractor --width 8 --steps 1", public="digits")
    assert "Do not use it on private data drawn from digits itself" in done.stderr
    assert "accuracy" in done.stdout
    assert get_network(path).info.trained_on == ("digits:train",)
