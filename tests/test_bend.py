"""Samples that are bent: each picture by itself, free, and only where it is asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfumato.data import Column, Dataset, Schema
from sfumato.errors import BadInput
from sfumato.methods import Gan, Merf, Method, Mixture, find_methods
from sfumato.methods.parts import Bent
from sfumato.methods.tone import Toned
from sfumato.privacy import Budget
from sfumato.public.bending import Bends, bent

BUDGET = Budget(epsilon=5.0, delta=1e-5)


def dots(n: int, side: int = 28) -> torch.Tensor:
    """A blurred dot in the middle, whose centre of mass tells where it went."""
    steps = torch.arange(side) - (side - 1) / 2
    bump = torch.exp(-steps.square() / 8)
    return (bump[:, None] * bump).expand(n, 1, side, side).clone()


def centres(pictures: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(pictures.shape[-1]) - (pictures.shape[-1] - 1) / 2
    weights = pictures / pictures.sum((2, 3), keepdim=True)
    return torch.stack([(weights.sum(2) * steps).sum(2), (weights.sum(3) * steps).sum(2)], 2)[:, 0]


@pytest.fixture(scope="module")
def fitted() -> Mixture:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (300, 1, 8, 8), dtype=np.uint8)
    data = Dataset.from_arrays(images, np.arange(300) % 3, classes=3)
    return Mixture(seed=0).fit(data, BUDGET)


@pytest.mark.parametrize("bends", [Bends(0, 0.2, 0), Bends(0, 0, 0.2)])
def test_pictures_move_by_what_was_said(bends):
    """A shift of deviation s moves a dot by s · side ÷ 2 pixels; between bent places the deviation is less, and not nothing."""
    random = torch.Generator().manual_seed(0)
    found = centres(bent(dots(2000), 0.5, random, bends))
    expected = 0.5 * 0.2 * 14
    assert found.mean(0).abs().max() < 5 * expected / 2000**0.5
    if bends.shift:
        assert found.std(0).numpy() == pytest.approx(expected, rel=0.1)
    else:
        assert bool(((found.std(0) > 0.4 * expected) & (found.std(0) < 1.1 * expected)).all())


def test_a_turn_leaves_the_middle_where_it_is():
    random = torch.Generator().manual_seed(0)
    pictures = dots(200)
    found = bent(pictures, 1.0, random, Bends(0.3, 0, 0))
    assert centres(found).abs().max() < 0.3
    assert float((found - pictures).abs().amax((1, 2, 3)).median()) > 0.05


def test_degree_nought_changes_nothing():
    pictures = torch.rand(5, 3, 9, 12, generator=torch.Generator().manual_seed(0))
    found = bent(pictures, 0.0, torch.Generator().manual_seed(0))
    assert torch.allclose(found, pictures, atol=1e-4)


def test_every_method_that_draws_pixels_can_bend_them_and_none_does_by_itself():
    kinds = [kind for kind in find_methods().values() if issubclass(kind, Toned)]
    assert len(kinds) > 10
    for kind in kinds:
        assert issubclass(kind, Bent)
        assert kind().bend == 0


def test_bent_samples_have_the_labels_of_the_others(fitted):
    plain = fitted.sample(90, seed=3)
    fitted.bend = 0.5
    try:
        found = fitted.sample(90, seed=3)
        again = fitted.sample(90, seed=3)
    finally:
        fitted.bend = 0.0
    assert np.array_equal(found.labels, plain.labels)
    assert np.array_equal(found.images, again.images)
    assert not np.array_equal(found.images, plain.images)
    assert np.array_equal(fitted.sample(90, seed=3).images, plain.images)


def test_bending_is_free_on_a_saved_release(fitted, tmp_path):
    fitted.save(tmp_path / "first")
    bending = Mixture(seed=0, bend=0.4).refit(tmp_path / "first")
    assert bending.statement_.to_json()["releases"] == fitted.statement_.to_json()["releases"]
    bending.save(tmp_path / "second")
    again = Method.load(tmp_path / "second")
    assert again.get_params()["bend"] == 0.4
    found, plain = again.sample(30, seed=1), fitted.sample(30, seed=1)
    assert np.array_equal(found.images, bending.sample(30, seed=1).images)
    assert not np.array_equal(found.images, plain.images)


@pytest.mark.parametrize("kind", [Mixture, Merf, Gan])
def test_tables_are_not_bent(kind):
    columns = tuple(Column(name=n, kind="numerical", low=0, high=1) for n in "ab")
    schema = Schema(kind="table", columns=columns)
    with pytest.raises(BadInput, match="no tables"):
        kind(bend=0.2).promise(schema, BUDGET)
    kind().promise(schema, BUDGET)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan"), "much"])
def test_a_degree_lies_from_nought_to_one(wrong):
    with pytest.raises(BadInput, match="bend"):
        Mixture(bend=wrong)
