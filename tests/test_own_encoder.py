"""A network of one's own as DP-MEPF's encoder: frozen, row by row, bounded; its run is loaded where it is made again."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pretend
import sfumato
from data import digits, stripes
from sfumato.data import Batch
from sfumato.errors import BadInput, CorruptArtifact
from sfumato.privacy.bounding import BoundedSum, enforced_bound
from sfumato.public import own_encoder, perceptual
from sfumato.public.perceptual import PerceptualFeatures, make_encoder

SHAPE = (1, 8, 8)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    perceptual.OWN.clear()


def network(width: int = 6, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * width, 12)
    )


def tiny(encoder: object, **more: object) -> sfumato.Mepf:
    return sfumato.Mepf(**{**sfumato.Mepf.TINY, "encoder": encoder, **more})


def test_the_object_is_a_setting_and_its_layers_are_features():
    encoder = own_encoder("mine", network(), shape=SHAPE, layers=["1"])
    method = tiny(encoder)
    assert method.encoder == "own:mine" and method.get_params()["encoder"] == "own:mine"
    assert encoder.widths == (6 * 64,) and encoder.non_negative
    assert own_encoder("end", network(), shape=SHAPE).widths == (12,)
    assert not perceptual.OWN["end"].non_negative
    pooled = make_encoder("own:mine", SHAPE, layers=["0", "1"], pool=2)
    assert pooled.widths == (24, 24) and not pooled.non_negative  # a convolution's may be negative
    (query,) = method.queries(digits(5).schema, sfumato.Budget(epsilon=1, delta=1e-5))
    assert query.shape == (6 * 64 + 1,) and query.non_negative


def test_what_a_network_says_is_as_long_as_was_charged_whatever_it_is():
    """Features of any length, also none: they are divided by it, and the wall clips."""
    images = torch.from_numpy(digits(140).images)
    for scale in (1e-12, 1.0, 1e12):
        body = network()
        with torch.no_grad():
            body[3].weight.mul_(scale)
        encoder = own_encoder("scaled", body, shape=SHAPE)
        phi = PerceptualFeatures(encoder, moments=2)
        summed = BoundedSum(phi)
        whole, less, one = (
            summed(Batch(images[rows], None))
            for rows in (slice(0, 129), slice(0, 128), slice(128, 129))  # beside a size of batches
        )
        assert torch.equal(whole - less, one)
        assert float(one.double().norm()) * summed.grid <= enforced_bound(phi)


@pytest.mark.parametrize("layers", [None, ["1"]])
def test_a_run_has_the_weights_and_is_loaded_where_the_name_is_known(tmp_path, layers):
    own_encoder("mine", network(), shape=SHAPE, layers=layers)
    model = tiny("own:mine").fit(digits(60), epsilon=5, delta=1e-5, out=tmp_path / "run")
    sample = model.sample(20, seed=0).images
    # Other weights under the name do not matter: the run has its own.
    own_encoder("mine", network(seed=7), shape=SHAPE, layers=layers)
    again = sfumato.load_run(tmp_path / "run")
    assert torch.equal(
        again.encoder_.network.state_dict()[
            name := next(iter(again.encoder_.network.state_dict()))
        ],
        model.encoder_.network.state_dict()[name],
    )
    assert np.array_equal(again.sample(20, seed=0).images, sample)
    perceptual.OWN.clear()
    with pytest.raises(BadInput, match=r"own_encoder\('mine'"):
        sfumato.load_run(tmp_path / "run")
    own_encoder("mine", network(width=5), shape=SHAPE, layers=layers)
    with pytest.raises(CorruptArtifact):
        sfumato.load_run(tmp_path / "run")


def test_functions_and_other_methods_take_it_too():
    body = network().eval()
    own_encoder("plain", lambda x: body(x), shape=SHAPE)
    assert len(tiny("own:plain").fit(digits(40), epsilon=5, delta=1e-5).sample(5)) == 5
    own_encoder("mine", network(), shape=SHAPE, layers=["1"])
    ratio = sfumato.Dre(**{**sfumato.Dre.TINY, "encoder": "own:mine"})
    given = {"epsilon": 5.0, "delta": 1e-5, "public": stripes(50), "allow_empty": True}
    assert len(ratio.fit(digits(40), **given).sample(5)) == 5


def test_what_was_given_is_copied_and_stays_frozen():
    body = nn.Sequential(network(), nn.BatchNorm1d(12))  # with running statistics
    encoder = own_encoder("normed", body, shape=SHAPE)
    pixels = torch.rand(7, *SHAPE)
    before = encoder(pixels)[0]
    body.train()
    body(torch.rand(9, *SHAPE))
    encoder.train()
    with torch.no_grad():
        next(body.parameters()).zero_()
    assert torch.equal(encoder(pixels)[0], before)
    assert not any(p.requires_grad for p in encoder.parameters())


class Remembers(nn.Module):
    """Adds up what it sees, and lets it slip into what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(64))
        self.calls = 0

    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen += rows.flatten(1).sum(0)
        self.calls += 1
        return rows.flatten(1)[:, :16] + 1e-3 * self.seen[:16] * (self.calls > 4)


def test_a_network_keeps_nothing_of_private_rows():
    encoder = own_encoder("remembers", Remembers(), shape=SHAPE)
    kept = encoder.network.network.seen.clone()  # of the noise that it was tried with
    rows = torch.rand(7, *SHAPE)
    with torch.no_grad():
        alone = encoder(rows)[0]
        for _ in range(6):
            encoder(torch.rand(90, *SHAPE))
        assert torch.equal(encoder(rows)[0], alone)
    assert torch.equal(encoder.network.network.seen, kept) and encoder.network.network.calls < 5


def test_what_cannot_serve_is_refused():
    body = network().eval()
    mixing = nn.Sequential(network(), nn.BatchNorm1d(12, track_running_stats=False))
    for wrong, remedy in (
        (lambda x: body(x) - body(x).mean(0), "mixes the rows"),
        (mixing, "batch normalisation"),
        (lambda x: body(x) + torch.rand(len(x), 12), "each time"),
        (lambda x: body(x) * torch.nan, "not finite"),
        (lambda x: [body(x)], "gives a list"),
        (lambda x: x @ torch.zeros(3, 3), "correct `shape`"),
        (lambda x: body(x).detach(), "no finite derivative"),
        (lambda x: x.round().flatten(1), "no finite derivative"),
        (7, "cannot be called"),
    ):
        with pytest.raises(BadInput, match=remedy):
            own_encoder("x", wrong, shape=SHAPE)
    assert not perceptual.OWN
    for given in ({"shape": (8, 8)}, {"shape": 8}, {"shape": SHAPE, "layers": ["none"]}):
        with pytest.raises(BadInput):
            own_encoder("x", body, **given)
    with pytest.raises(BadInput, match="no layers"):
        own_encoder("x", lambda x: body(x), shape=SHAPE, layers=["1"])
    with pytest.raises(BadInput, match="a word such as"):
        own_encoder("a b", body, shape=SHAPE)
    with pytest.raises(BadInput, match="own_encoder"):
        tiny(body)
    with pytest.raises(BadInput, match="own_codec"):
        sfumato.Mixture(codec=body)


def test_one_that_saw_the_private_set_or_other_shapes_is_refused_before_payment(tmp_path):
    encoder = own_encoder("mine", network(), shape=SHAPE, trained_on=["digits"])
    with pytest.raises(BadInput, match="was trained on digits"):
        tiny(encoder).fit(sfumato.load("digits:test"), epsilon=1, delta=1e-5)
    with pytest.raises(BadInput, match="was made for pictures of shape"):
        tiny(encoder).fit(stripes(40, size=12), epsilon=1, delta=1e-5, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_it_goes_to_the_device_with_the_generator(monkeypatch):
    encoder = own_encoder("mine", network(), shape=SHAPE, layers=["1"])
    with pretend.pretended() as device:
        monkeypatch.setattr("sfumato.methods.parts.device_of", lambda _: device)
        pretend.OPERATIONS.clear()
        model = tiny(encoder).fit(digits(40), epsilon=5, delta=1e-5)
        assert pretend.OPERATIONS["aten::convolution"] > 0
    assert next(model.encoder_.parameters()).device.type == "cpu"
    assert len(model.sample(5)) == 5


@pytest.mark.slow
def test_the_example_of_the_docs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / "own_encoder.py"))
    assert np.load("samples.npz")["images"].shape == (100, 1, 8, 8)
