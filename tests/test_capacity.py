"""The mixture's capacity: it grows with records and ε alike, leaves what is not asked to the rest, and is told in a sentence."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest

from sfumato.data import Dataset, Schema
from sfumato.methods import Mixture
from sfumato.methods.capacity import WIDEST, capacity_of, usual_records
from sfumato.privacy import Budget, Neighbours
from sfumato.progress import Progress

GRAY = Schema(kind="images", shape=(1, 8, 8), classes=tuple("0123456789"))
ORDERED = ("band", "basis", "by_class", "clusters", "coordinates", "own")


def test_only_records_divided_by_noise_matter():
    assert capacity_of(784, 10, 6000, 1.0).shares == capacity_of(784, 10, 60_000, 10.0).shares
    one, other = (asdict(capacity_of(784, 10, n, m)) for n, m in ((6000, 1.0), (60_000, 10.0)))
    assert {k: one[k] for k in ORDERED} == {k: other[k] for k in ORDERED}


@pytest.mark.parametrize("classes", [1, 2, 10, 300])
@pytest.mark.parametrize("dim", [2, 64, 784, 2048])
def test_more_records_never_buy_less_and_means_never_get_a_larger_share(classes, dim):
    before = None
    for records in np.geomspace(1, 1e8, 60).astype(int).tolist():
        size = capacity_of(dim, classes, records, 3.73)
        assert size.basis <= (size.band or min(dim, WIDEST)) <= dim
        assert max(size.by_class, size.coordinates, size.own) <= size.basis
        assert (size.clusters > 1) == (size.rounds > 0)
        for steps, share in (
            (size.band, size.shares.pooled),
            (size.by_class, size.shares.classes),
            (size.rounds, size.shares.clusters),
            (size.own, size.shares.own),
        ):
            assert (steps > 0) == (share > 0)
        if before is not None:
            assert all(getattr(size, name) >= getattr(before, name) for name in ORDERED)
            assert size.shares.means <= before.shares.means
        before = size
    assert before is not None and before.band and before.rounds


def test_what_is_asked_follows_the_number_of_records_where_that_is_public():
    budget = Budget(epsilon=1.0, delta=1e-5)
    asked = {
        size: [c.label for c in Mixture().promise(GRAY, budget, size=size).charges]
        for size in (100, 1437, 60_000)
    }
    assert "pooled second moment" not in asked[100]
    assert "pooled second moment" in asked[1437] and "class second moments" not in asked[1437]
    assert "clusters, round 3" in asked[60_000]
    # Where it is private, it is not used even if somebody tells.
    private = Budget(epsilon=1.0, delta=1e-5, neighbours=Neighbours.ADD_REMOVE)
    plans = [Mixture().promise(GRAY, private, size=size) for size in (100, 60_000, None)]
    assert plans[0] == plans[1] == plans[2]


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_a_fit_keeps_the_promise_for_its_number_of_records(neighbours):
    rng = np.random.default_rng(0)
    data = Dataset.from_arrays(rng.random((300, 1, 8, 8)), np.arange(300) % 10, classes=10)
    budget = Budget(epsilon=1.0, delta=1e-5, neighbours=neighbours)
    fitted = Mixture().fit(data, budget)
    assert fitted.statement_ == Mixture().promise(data.schema, budget, size=300)
    assert (fitted.mixture_.weights.shape[1] == 1) == neighbours.size_is_public


def test_a_fit_says_what_was_chosen_and_why_from_public_numbers():
    said = []

    class Listening(Progress):
        def note(self, text: str) -> None:
            said.append(text)

    data = Dataset.from_arrays(np.random.default_rng(0).random((300, 1, 8, 8)))
    Mixture().fit(data, Budget(epsilon=1.0, delta=1e-5), progress=Listening())
    assert any("n ÷ noise: 300 ÷ 3.73" in text for text in said)


def test_where_the_number_is_private_delta_stands_for_it():
    assert usual_records(1e-5) == 30_000
    assert usual_records(1e-300) == 1_000_000_000
    assert usual_records(0.9) >= 1


def test_few_records_at_a_small_budget_teach_as_much_as_their_noisy_means():
    """Ten patterns of 64 pixels, 1,000 records: the samples' own class means lie nearer to the truth than plain noisy ones."""
    rng = np.random.default_rng(0)
    patterns = rng.random((10, 8, 8)) > 0.5
    labels = np.arange(1000) % 10
    pixels = np.clip(0.2 + 0.6 * patterns[labels] + rng.normal(0, 0.2, (1000, 8, 8)), 0, 1)
    data = Dataset.from_arrays(pixels[:, None].astype(np.float32), labels, classes=10)
    budget = Budget(epsilon=1.0, delta=1e-5)
    sample = Mixture().fit(data, budget).sample(4000, seed=0)
    made = np.stack([sample.images[sample.labels == c].mean((0, 1)) / 255 for c in range(10)])
    truth = np.stack([pixels[labels == c].mean(0) for c in range(10)])
    # A record's vector around mid-gray is at most 4 long: noise of a class mean with the whole budget.
    plain = 3.73 * math.hypot(1, 0.4) * 4 / 100
    assert float(np.sqrt(((made - truth) ** 2).mean())) < plain
