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
from sfumato.methods import Dre, dre
from sfumato.methods.counts import LABEL, _ones, count_query
from sfumato.privacy import Budget, Neighbours, Query, epsilon_of, memory
from sfumato.privacy.memory import RememberedRows
from sfumato.privacy.query import plan
from sfumato.public.perceptual import Encoder

BUDGET = Budget(epsilon=3.0, delta=1e-4)
SMALL = {"codec": "dct:16", "steps": 80, "rate": 0.2, "public_batch": 200, "width": 4}


def pictures(kinds: np.ndarray, seed: int, name: str, *, labelled: bool) -> Dataset:
    """Eight-pixel pictures of three kinds: bright left, bright right, bright middle; with noise."""
    rng = np.random.default_rng(seed)
    pixels = rng.normal(60, 20, (len(kinds), 1, 8, 8))
    for kind, columns in enumerate((slice(0, 3), slice(5, 8), slice(3, 5))):
        pixels[kinds == kind, :, :, columns] += 120
    images = pixels.clip(0, 255).astype(np.uint8)
    return Dataset.from_arrays(
        images, kinds if labelled else None, classes=3 if labelled else None, name=name
    )


def public(labelled: bool = True) -> Dataset:
    return pictures(np.arange(900) % 3, 1, "public", labelled=labelled)


def bright(images: np.ndarray) -> np.ndarray:
    """Which kind each picture is."""
    x = images[:, 0].astype(float)
    parts = [x[:, :, 0:3].mean((1, 2)), x[:, :, 5:8].mean((1, 2)), x[:, :, 3:5].mean((1, 2))]
    return np.argmax(parts, axis=0)


def test_the_weight_falls_on_the_public_records_like_the_private_ones():
    private = pictures(np.repeat([0, 2], 500), 2, "private", labelled=False)
    fitted = Dre(**SMALL).fit(private, BUDGET, public=public())
    told = next(r for r in fitted.log_ if r["event"] == "weights")["of public classes"]
    # Two thirds if nothing is learnt; 0.972 ± 0.013 in forty fits, whose noise has no seed: five deviations are left.
    assert told[0] + told[2] > 0.9
    assert sum(told) == pytest.approx(1, abs=1e-3)
    kinds = np.bincount(bright(fitted.sample(600).images), minlength=3) / 600
    assert kinds[1] < 0.15
    assert abs(kinds[0] - kinds[2]) < 0.4


def test_with_labels_each_class_has_a_ratio_of_its_own_and_public_labels_are_not_needed():
    # The private classes are the other way round than the public ones.
    kinds = np.arange(1200) % 3
    plain = pictures(kinds, 2, "private", labelled=True)
    private = Dataset.from_arrays(plain.images, 2 - kinds, classes=3, name="private")
    sample = Dre(**SMALL).fit(private, BUDGET, public=public(labelled=False)).sample(600)
    # 0.98 ± 0.02 in eight fits; a third if nothing is learnt.
    assert np.mean(bright(sample.images) == 2 - sample.labels) > 0.8


def test_weights_are_probabilities_and_sharpness_makes_them_surer():
    private = pictures(np.zeros(500, dtype=int), 2, "private", labelled=False)
    fitted = Dre(**SMALL).fit(private, BUDGET, public=public())
    plain = fitted.public_weights()
    assert torch.allclose(plain.sum(dim=1), torch.ones(1, dtype=torch.float64))
    assert bool((plain >= 0).all())
    fitted.sharpness = 4.0
    assert float(fitted.public_weights().square().sum()) > float(plain.square().sum())


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
    private = pictures(np.zeros(50, dtype=int), 2, "private", labelled=False)
    tiny = Dre(**{**SMALL, "steps": 3, "learning_rate": 1e-4}).fit(private, BUDGET, public=public())
    weights = tiny.public_weights() * len(public())
    assert torch.allclose(weights, torch.ones_like(weights), atol=0.05)


def test_it_asks_for_public_data():
    private = pictures(np.zeros(50, dtype=int), 2, "private", labelled=False)
    with pytest.raises(BadInput, match="public"):
        Dre(**SMALL).fit(private, BUDGET)


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize(("rate", "steps"), [(0.01, 1000), (0.2, 100), (1.0, 20)])
def test_counts_cost_a_few_per_cent_and_no_more(neighbours, rate, steps):
    series = Query(label="steps", shape=(1,), rate=rate, steps=steps)
    queries, spent = [count_query(public().schema), series], rate * steps**0.5
    (alone,), both = plan([series], 3 / spent), plan(queries, 3 / spent / 1.02**0.5)
    assert [charge.label for charge in both] == [LABEL, "steps"]
    assert both[1].noise_multiplier == pytest.approx(alone.noise_multiplier)
    apart, together = (epsilon_of(p, 1e-5, neighbours) for p in ((alone,), both))
    assert apart < together < 1.05 * apart


def test_counts_count():
    data = pictures(np.repeat([0, 2], [5, 3]), 2, "private", labelled=True)
    rows, segment = _ones(data.take(np.arange(8)))
    assert rows.tolist() == [[1.0]] * 8
    assert segment.tolist() == [0] * 5 + [2] * 3


class Halves(Encoder):
    """Stands in for a network: the mean brightness of the left, the right and the middle."""

    taps, widths, non_negative = ("halves",), (3,), True

    def forward(self, pixels):
        parts = [pixels[..., 0:3], pixels[..., 5:8], pixels[..., 3:5]]
        return [torch.stack([part.mean((1, 2, 3)) for part in parts], dim=1)]


def test_another_network_than_the_codec_may_tell_private_from_public(monkeypatch):
    monkeypatch.setattr(dre, "make_encoder", lambda *args, **kwargs: Halves())
    private = pictures(np.repeat([0, 2], 500), 2, "private", labelled=False)
    # One number a picture: the codec alone could not tell the kinds apart.
    settings = {**SMALL, "codec": "dct:1", "encoder": "resnet18"}
    method = Dre(**settings)
    (_, steps) = plan_of(method, private.schema, 1.0)
    assert steps.dimension == (3 + 1) * 4 + (4 + 1)
    fitted = method.fit(private, BUDGET, public=public())
    told = next(r for r in fitted.log_ if r["event"] == "weights")["of public classes"]
    assert told[0] + told[2] > 0.9


def test_the_network_sees_each_record_once_and_is_forgotten(monkeypatch):
    seen: list[int] = []

    class Counting(Halves):
        def forward(self, pixels):
            seen.append(int(pixels.flatten(1).any(dim=1).sum()))  # batches are filled up with zeros
            return super().forward(pixels)

    monkeypatch.setattr(dre, "make_encoder", lambda *args, **kwargs: Counting())
    private = pictures(np.repeat([0, 2], 300), 2, "private", labelled=False)
    fitted = Dre(**SMALL, encoder="resnet18").fit(private, BUDGET, public=public())
    # And, as a check, two micro-batches of random images.
    assert sum(seen) <= len(public()) + len(private) + 140
    gc.collect()
    assert not [held for held in gc.get_objects() if type(held) is RememberedRows]
    assert len(fitted.sample(5)) == 5


def test_remembered_rows_are_those_that_were_computed():
    asked: list[Tensor] = []

    def doubled(rows: Tensor) -> Tensor:
        asked.append(rows)
        return 2 * rows

    kept = RememberedRows(doubled)
    rows = torch.arange(8.0).view(4, 2)
    twice = rows[[0, 2, 0]]
    assert torch.equal(kept(twice), 2 * twice)
    assert torch.equal(kept(rows), 2 * rows)
    assert torch.equal(torch.cat(asked), rows[[0, 2, 1, 3]])
    assert {len(one) for one in asked} == {1}  # so that no other row has a part in it
    assert torch.equal(kept(rows.flip(0)), 2 * rows.flip(0))
    assert kept(rows[:0]).shape == (0, 2)


def test_memory_that_is_full_forgets_nothing_asked_for(monkeypatch):
    monkeypatch.setattr(memory, "_MEMORY", 16)  # two rows of two numbers
    kept = RememberedRows(lambda rows: rows + 1)
    rows = torch.arange(12.0).view(6, 2)
    for _ in range(2):
        assert torch.equal(kept(rows), rows + 1)
    assert len(kept._kept) == 2


def test_a_network_that_was_trained_on_the_private_set_is_refused():
    private = pictures(np.zeros(50, dtype=int), 2, "private", labelled=False)
    private.published_as = "cifar10:train"
    with pytest.raises(BadInput, match="trained on cifar10"):
        Dre(**SMALL, encoder="resnet18-cifar10").fit(private, BUDGET, public=public())


def test_a_layer_without_an_encoder_is_refused():
    with pytest.raises(BadInput, match="layer goes with an encoder"):
        plan_of(Dre(**SMALL, layer="layer3"), public().schema, 1.0)
