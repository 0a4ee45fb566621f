"""A codec of one's own: passed as an object, frozen, row by row, bounded; its run is loaded where it is made again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import sfumato
from data import digits
from sfumato.data import Batch
from sfumato.errors import BadInput, CorruptArtifact
from sfumato.public import get_codec, own, own_codec

SHAPE = (1, 8, 8)
GIVEN = {"classes": 10, "epsilon": 8.0, "delta": 1e-5}


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    monkeypatch.setattr(own, "_OWN", {})


def nets(dim: int = 12, seed: int = 0) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(seed)
    # An orthonormal map and its inverse on the range: decoding gives back what encoding kept.
    basis = torch.linalg.qr(torch.randn(64, dim))[0]
    down, up = nn.Linear(64, dim), nn.Linear(dim, 64)
    with torch.no_grad():
        down.weight.copy_(basis.T / 8)
        up.weight.copy_(basis * 8)
        down.bias.copy_(-(basis.T @ torch.full((64,), 0.3)) / 8)
        up.bias.fill_(0.3)
    return nn.Sequential(nn.Flatten(), down), nn.Sequential(up, nn.Unflatten(1, SHAPE))


def made(name: str = "mine", **more) -> own.OwnCodec:
    return own_codec(name, *nets(), shape=SHAPE, dim=12, **more)


def test_vectors_have_the_stated_bound_and_the_object_is_a_setting():
    codec = made(bound=0.25)
    batch = Batch(torch.from_numpy(digits(50).images), None)
    assert float(codec.encode(batch).norm(dim=1).max()) <= 0.25 * (1 + 1e-6)
    method = sfumato.Mixture(codec=codec)
    assert method.codec == "own:mine" and method.get_params()["codec"] == "own:mine"
    assert get_codec("own:mine", digits(5).schema) is codec
    (query, *_) = method.queries(digits(5).schema, sfumato.Budget(epsilon=1, delta=1e-5))
    assert query.shape[-1] >= 1


@pytest.mark.parametrize("name", ["mixture", "mge"])
def test_methods_work_in_it_and_their_runs_are_loaded_where_it_is_known(tmp_path, name):
    data = digits(200)
    model = sfumato.fit(name, data, epsilon=8, delta=1e-5, codec=made(), out=tmp_path / "run")
    sample = model.sample(30, seed=0)
    assert sample.images.shape == (30, *SHAPE)
    # Another encoder under the name does not matter: the run has its own weights.
    own._OWN.clear()
    own_codec("mine", *nets(seed=7), shape=SHAPE, dim=12)
    assert np.array_equal(
        sfumato.load_run(tmp_path / "run").sample(30, seed=0).images, sample.images
    )
    own._OWN.clear()
    with pytest.raises(BadInput, match=r"own_codec\('mine'"):
        sfumato.load_run(tmp_path / "run")
    own_codec("mine", *nets(dim=9), shape=SHAPE, dim=9)
    with pytest.raises(CorruptArtifact, match="does not fit"):
        sfumato.load_run(tmp_path / "run")


def test_plain_functions_will_do():
    encode, decode = nets()
    codec = own_codec("plain", lambda x: encode(x), lambda v: decode(v), shape=SHAPE, dim=12)
    model = sfumato.fit("mixture", digits(100), epsilon=8, delta=1e-5, codec=codec)
    assert codec.state().keys() == {"description"}
    assert model.sample(5).images.shape == (5, *SHAPE)


def test_what_was_given_is_copied_and_stays_frozen():
    encode, decode = nets()
    encode = nn.Sequential(
        encode, nn.BatchNorm1d(12)
    )  # with running statistics: harmless in evaluation mode
    codec = own_codec("normed", encode, decode, shape=SHAPE, dim=12)
    batch = Batch(torch.from_numpy(digits(20).images), None)
    before = codec.encode(batch)
    encode.train()
    encode(torch.rand(9, *SHAPE))
    codec.encoder.train()  # asked to train, it stays as it is
    with torch.no_grad():
        next(encode.parameters()).zero_()
    assert torch.equal(codec.encode(batch), before)
    assert not any(p.requires_grad for p in codec.encoder.parameters())


def test_what_mixes_rows_draws_or_has_another_size_is_refused():
    encode, decode = nets()
    mixing = nn.Sequential(encode, nn.BatchNorm1d(12, track_running_stats=False))
    for encoder, remedy in (
        (lambda x: encode(x) - encode(x).mean(0), "mixes the rows"),
        (mixing, "batch norm|any number of rows"),
        (lambda x: encode(x) + torch.rand(len(x), 12), "each time"),
        (lambda x: encode(x)[:, :5], "correct `dim`"),
        (lambda x: encode(x) * torch.nan, "not finite"),
        (lambda x: None, "NoneType"),
        (lambda x: x @ torch.zeros(3, 3), "any number of rows"),
        (7, "cannot be called"),
    ):
        with pytest.raises(BadInput, match=remedy):
            own_codec("x", encoder, decode, shape=SHAPE, dim=12)
    assert not own._OWN
    for wrong in ({"dim": 0}, {"bound": 0}, {"shape": (8, 8)}, {"name": "a b"}):
        facts = {"name": "x", "shape": SHAPE, "dim": 12} | wrong
        with pytest.raises(BadInput):
            own_codec(facts.pop("name"), encode, decode, **facts)


def test_a_codec_that_saw_the_private_set_is_refused():
    codec = made(trained_on=["digits"])
    with pytest.raises(BadInput, match="was trained on digits"):
        sfumato.fit("mixture", "digits:test", epsilon=1, delta=1e-5, codec=codec)
    with pytest.raises(BadInput, match="shape"):
        sfumato.fit("mixture", np.zeros((9, 4, 4), np.uint8), epsilon=1, delta=1e-5, codec=codec)


class Remembers(torch.nn.Module):
    """Adds up what it sees, in a buffer and in an attribute, and lets it slip into what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(64))
        self.calls = 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.seen += rows.flatten(1).sum(0)
        self.calls += 1
        return rows.flatten(1)[:, :16] + 1e-3 * self.seen[:16] * (self.calls > 2)


def test_a_network_keeps_nothing_of_the_rows_it_sees(tmp_path):
    made = own_codec(
        "remembers",
        Remembers(),
        lambda vectors: vectors.repeat(1, 4).view(-1, 1, 8, 8),
        shape=(1, 8, 8),
        dim=16,
    )
    first = made.encode(Batch(torch.rand(5, 1, 8, 8), None))
    rows = torch.rand(7, 1, 8, 8)
    alone = made.encode(Batch(rows, None))
    assert first.shape == (5, 16)
    # Whatever came before, the same rows give the same vectors, and nothing of them is saved.
    made.encode(Batch(torch.rand(90, 1, 8, 8), None))
    assert torch.equal(made.encode(Batch(rows, None)), alone)
    assert not bool(made._tensors()["encoder.network.seen"].any())
