"""DP-DRE: the ratio finds the private part of the public data, and weights are what they say."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch import Tensor

from plans import plan_of
from sfumato.data import Dataset
from sfumato.errors import BadInput
from sfumato.methods import Dre
from sfumato.methods.counts import LABEL, _ones, count_query
from sfumato.privacy import Budget, Neighbours, Query, epsilon_of, memory
from sfumato.privacy.memory import RememberedRows
from sfumato.privacy.query import plan
from sfumato.public import perceptual
from sfumato.public.perceptual import Encoder

BUDGET = Budget(epsilon=3.0, delta=1e-4)
SMALL = {"codec": "dct:16", "steps": 80, "rate": 0.2, "public_batch": 200, "width": 4}
COLUMNS = (slice(0, 3), slice(5, 8), slice(3, 5))


def pictures(kinds: np.ndarray, seed: int = 2, *, labelled: bool = False) -> Dataset:
    """Eight-pixel pictures of three kinds: bright left, bright right, bright middle; with noise."""
    rng = np.random.default_rng(seed)
    pixels = rng.normal(60, 20, (len(kinds), 1, 8, 8))
    for kind, columns in enumerate(COLUMNS):
        pixels[kinds == kind, :, :, columns] += 120
    images, labels = pixels.clip(0, 255).astype(np.uint8), kinds if labelled else None
    return Dataset.from_arrays(images, labels, classes=3 if labelled else None)


PUBLIC = pictures(np.arange(900) % 3, 1, labelled=True)
LEFT = pictures(np.zeros(50, dtype=int))
OUTER = pictures(np.repeat([0, 2], 500))


def told(fitted: Dre) -> list[float]:
    return next(r for r in fitted.log_ if r["event"] == "weights")["of public classes"]


def bright(images: np.ndarray) -> np.ndarray:
    """Which kind each picture is."""
    return np.argmax([images[:, 0, :, part].mean((1, 2)) for part in COLUMNS], axis=0)


def test_the_weight_falls_on_the_public_records_like_the_private_ones():
    fitted = Dre(**SMALL).fit(OUTER, BUDGET, public=PUBLIC)
    # Two thirds if nothing is learnt; 0.972 ± 0.013 in forty fits, whose noise has no seed: five deviations are left.
    assert told(fitted)[0] + told(fitted)[2] > 0.9
    assert sum(told(fitted)) == pytest.approx(1, abs=1e-3)
    kinds = np.bincount(bright(fitted.sample(600, seed=0).images), minlength=3) / 600
    assert kinds[1] < 0.15
    assert abs(kinds[0] - kinds[2]) < 0.4
    # Weights are probabilities, and sharpness makes them surer.
    plain = fitted.public_weights()
    assert torch.allclose(plain.sum(dim=1), torch.ones(1, dtype=torch.float64))
    assert bool((plain >= 0).all())
    fitted.sharpness = 4.0
    assert float(fitted.public_weights().square().sum()) > float(plain.square().sum())
    # With none of it all public records are alike: the paper's check.
    fitted.sharpness = 0.0
    even = fitted.public_weights()
    assert torch.allclose(even, torch.full_like(even, 1 / even.shape[1]))


def test_with_labels_each_class_has_a_ratio_of_its_own_and_public_labels_are_not_needed():
    # The private classes are the other way round than the public ones.
    kinds = np.arange(1200) % 3
    private = Dataset.from_arrays(pictures(kinds).images, 2 - kinds, classes=3)
    public = pictures(np.arange(900) % 3, 1)
    sample = Dre(**SMALL).fit(private, BUDGET, public=public).sample(600, seed=0)
    # 0.98 ± 0.02 in eight fits; a third if nothing is learnt.
    assert np.mean(bright(sample.images) == 2 - sample.labels) > 0.8


def test_as_in_the_paper_weights_are_proportional_to_d_over_one_minus_d():
    method = Dre(cap=False, sharpness=1.0)
    chances = torch.tensor([[0.2], [0.5], [0.8]])
    method.log_ratio_ = torch.logit(chances)
    ratios = (chances / (1 - chances))[:, 0].double()
    assert torch.allclose(method.public_weights()[0], ratios / ratios.sum())


def test_the_cap_is_the_ratio_that_half_of_the_weight_lies_above():
    method = Dre(cap=True, sharpness=1.0)
    method.log_ratio_ = torch.tensor([100.0, 1.0, 0.0, 0.0]).log().nan_to_num(neginf=-50.0)[:, None]
    assert torch.allclose(
        method.public_weights()[0, :1], torch.tensor([100 / 101]).double(), atol=1e-3
    )
    method.log_ratio_ = torch.tensor([4.0, 3.0, 2.0, 1.0]).log()[:, None]  # 3 and above: 7 of 10
    expected = torch.tensor([3.0, 3.0, 2.0, 1.0]).double() / 9
    assert torch.allclose(method.public_weights()[0], expected)


def test_without_information_all_public_records_weigh_nearly_the_same():
    settings = {**SMALL, "steps": 3, "learning_rate": 1e-4}
    weights = Dre(**settings).fit(LEFT, BUDGET, public=PUBLIC).public_weights() * len(PUBLIC)
    assert torch.allclose(weights, torch.ones_like(weights), atol=0.05)


def test_what_it_cannot_learn_with_is_refused():
    with pytest.raises(BadInput, match="public"):
        Dre(**SMALL).fit(LEFT, BUDGET)
    with pytest.raises(BadInput, match="layer goes with an encoder"):
        plan_of(Dre(**SMALL, layer="layer3"), PUBLIC.schema, 1.0)
    published = pictures(np.zeros(50, dtype=int))
    for name in (
        "cifar10:train",
        "cifar10-vehicles:train",
    ):  # what the network was trained on, and a part
        published.published_as = name
        with pytest.raises(BadInput, match="trained on cifar10"):
            Dre(**SMALL, encoder="resnet18-cifar10").fit(published, BUDGET, public=PUBLIC)


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize(("rate", "steps"), [(0.01, 1000), (0.2, 100), (1.0, 20)])
def test_counts_cost_a_few_per_cent_and_no_more(neighbours, rate, steps):
    series = Query(label="steps", shape=(1,), rate=rate, steps=steps)
    queries, spent = [count_query(PUBLIC.schema), series], rate * steps**0.5
    (alone,), both = plan([series], 3 / spent), plan(queries, 3 / spent / 1.02**0.5)
    assert [charge.label for charge in both] == [LABEL, "steps"]
    assert both[1].noise_multiplier == pytest.approx(alone.noise_multiplier)
    apart, together = (epsilon_of(p, 1e-5, neighbours) for p in ((alone,), both))
    assert apart < together < 1.05 * apart


def test_counts_count():
    data = pictures(np.repeat([0, 2], [5, 3]), labelled=True)
    rows, segment = _ones(data.take(np.arange(8)))
    assert rows.tolist() == [[1.0]] * 8
    assert segment.tolist() == [0] * 5 + [2] * 3


class Halves(Encoder):
    """Stands in for a network: the mean brightness of the left, the right and the middle."""

    taps, widths, non_negative = ("halves",), (3,), True
    seen = 0

    def forward(self, pixels):
        Halves.seen += int(pixels.flatten(1).any(dim=1).sum())  # batches are filled up with zeros
        return [torch.stack([pixels[..., part].mean((1, 2, 3)) for part in COLUMNS], dim=1)]


def test_another_network_than_the_codec_sees_each_record_once_and_is_forgotten(monkeypatch):
    monkeypatch.setattr(perceptual, "make_encoder", lambda *args, **kwargs: Halves())
    # One number a picture: the codec alone could not tell the kinds apart.
    method = Dre(**{**SMALL, "codec": "dct:1", "encoder": "resnet18"})
    (_, steps) = plan_of(method, OUTER.schema, 1.0)
    assert steps.dimension == (3 + 1) * 4 + (4 + 1)
    fitted = method.fit(OUTER, BUDGET, public=PUBLIC)
    assert told(fitted)[0] + told(fitted)[2] > 0.9
    # And, as a check, two micro-batches of random images.
    assert 0 < Halves.seen <= len(PUBLIC) + len(OUTER) + 140
    gc.collect()
    assert not [held for held in gc.get_objects() if type(held) is RememberedRows]
    assert len(fitted.sample(5, seed=0)) == 5


@pytest.mark.parametrize("full", [False, True])
def test_remembered_rows_are_those_that_were_computed(full, monkeypatch):
    asked: list[Tensor] = []

    def doubled(rows: Tensor) -> Tensor:
        asked.append(rows)
        return 2 * rows

    if full:
        monkeypatch.setattr(memory, "_MEMORY", 16)  # two rows of two numbers
    kept = RememberedRows(doubled)
    rows = torch.arange(8.0).view(4, 2)
    for some in (rows[[0, 2, 0]], rows, rows.flip(0)):
        assert torch.equal(kept(some), 2 * some)
    assert {len(one) for one in asked} == {1}  # so that no other row has a part in it
    if full:
        assert len(kept._kept) == 2
    else:
        assert torch.equal(torch.cat(asked), rows[[0, 2, 1, 3]])
    assert kept(rows[:0]).shape == (0, 2)
