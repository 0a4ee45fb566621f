"""GS-WGAN: critics that know their shard and the public history and nothing else, steps that learn, resumption."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pictures import shaded
from plans import plan_of
from sfumato.data import Batch
from sfumato.errors import BadInput
from sfumato.methods import GsWgan, gswgan, taught
from sfumato.methods.gswgan import Critics
from sfumato.privacy import Budget, Neighbours, epsilon_of

TINY = {**GsWgan.TINY, "critic_steps": 2}
SMALL = {"WARM_STEPS": 4, "PHASE_STEPS": 2, "CRITIC_WIDTH": 8, "CRITIC_BATCH": 8}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small critics of a few steps; a test may ask for others."""

    def made(**constants):
        for name, value in constants.items():
            monkeypatch.setattr(gswgan, name, value)

    made(**SMALL)
    return made


def shard(value: int, labelled: bool = True) -> Batch:
    return shaded(value, 20, labelled=labelled).take(np.arange(20))


def critics(labelled: bool = True) -> Critics:
    method = GsWgan(**TINY)
    source = torch.Generator().manual_seed(0)
    labels = torch.arange(12) % 2 if labelled else torch.zeros(12, dtype=torch.int64)
    images = torch.rand(12, 1, 8, 8, generator=source)
    return Critics(method.seen(images), labels, method, shaded(0, labelled=labelled).schema)


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("labelled", [True, False])
def test_a_trained_critic_wants_images_to_become_like_its_shard(labelled, small):
    small(WARM_STEPS=40, CRITIC_RATE=0.01)
    trained = critics(labelled)
    for value, sign in ((250, -1), (5, 1)):
        critic = trained.caught_up(shard(value, labelled), None, seeded())
        gradient = trained.gradient(shard(value, labelled), critic, seeded())
        assert gradient.shape == (12 * 16,)
        assert sign * float(gradient.mean()) > 0  # minimised: brighter for a bright shard


def test_critics_are_functions_of_shard_history_and_public_seeds():
    found = []
    for _ in range(2):
        critic = critics().caught_up(shard(9), None, seeded())
        found.append(critics().gradient(shard(9), critic, seeded(4)))
        torch.rand(5)  # not of the common random numbers
    assert torch.equal(*found)


def test_records_that_make_no_sense_are_left_out():
    values = torch.full((4, 1, 8, 8), 0.5)
    values[1] = math.nan
    mixed = Batch(values, torch.tensor([0, 0, -1, 1]))
    pixels, labels = critics().real(mixed)
    assert pixels.shape == (2, 16)
    assert labels.tolist() == [[1, 0], [0, 1]]
    senseless = Batch(values[1:2], torch.tensor([0]))
    critic = critics().caught_up(senseless, None, seeded())
    assert bool(torch.isfinite(critics().gradient(senseless, critic, seeded())).all())


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 10, 7)])
def test_shrinking_keeps_the_length_of_smooth_images(shape):
    method = GsWgan(shrink=2)
    flat = torch.ones(2, *shape) * 0.3
    seen = method.seen(flat)
    assert seen.shape == (2, shape[0] * -(-shape[1] // 2) * -(-shape[2] // 2))
    if shape[2] % 2 == 0:
        assert torch.allclose(seen.norm(dim=1), flat.flatten(1).norm(dim=1))
    assert torch.equal(GsWgan(shrink=1).seen(flat), flat.flatten(1))


def test_every_relation_pays_for_the_replacement_of_a_critic():
    plan = plan_of(GsWgan(**TINY), shaded(9).schema, 3.0)
    assert plan[1].summands == "shards"
    prices = [epsilon_of(plan[1:], 1e-5, relation) for relation in Neighbours]
    assert max(prices) == pytest.approx(min(prices), rel=1e-9)


@pytest.mark.parametrize("labelled", [True, False])
def test_with_a_generous_budget_samples_become_as_bright_as_the_records(
    labelled, small, monkeypatch
):
    small(WARM_STEPS=40, CRITIC_WIDTH=16, CRITIC_BATCH=16, CRITIC_RATE=0.005)
    monkeypatch.setattr(taught, "DECAY", 0.5)
    settings = {**TINY, "steps": 60, "batch": 24, "shards": 2, "rate": 1.0, "hidden": 16}
    method = GsWgan(**settings, learning_rate=0.005)
    fitted = method.fit(shaded(220, labelled=labelled), Budget(epsilon=2e4, delta=1e-4))
    assert fitted.sample(60, seed=0).images.mean() > 170


def test_no_critic_is_in_a_finished_run(tmp_path):
    GsWgan(**TINY).fit(shaded(200), Budget(epsilon=5.0, delta=1e-4), out=tmp_path / "run")
    for path in (tmp_path / "run").rglob("*"):
        assert b"critic" not in path.name.encode()
        if path.suffix == ".safetensors":
            assert b"layers.0.weight" not in path.read_bytes()  # the name of a critic's weights


def test_images_are_not_shrunk_below_a_pixel():
    with pytest.raises(BadInput, match="shrink must not exceed"):
        plan_of(GsWgan(**TINY, shrink=9), shaded(1).schema, 1.0)
