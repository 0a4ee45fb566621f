"""A query is declared once: what it says of its rows is enforced, what was not promised is not answered."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sfumato.data import Batch, Dataset
from sfumato.errors import BadInput, PlanMismatch
from sfumato.privacy import (
    BoundedSum,
    Budget,
    FeatureMap,
    Gate,
    Ledger,
    Neighbours,
    PrivateData,
    Query,
    epsilon_of,
)
from sfumato.privacy.bounding import summand_of
from sfumato.privacy.gate import _map_of
from sfumato.privacy.query import calibrated, claimed, gaussian_noise, plan
from sfumato.public.fourier import FourierFeatures
from sfumato.testing import COUNTS, adversarial_records, check_additive

BUDGET = Budget(epsilon=1.0, delta=1e-5)
LOUD = Budget(epsilon=1e5, delta=1e-5)


def data(n: int = 40, classes: int | None = 3) -> Dataset:
    pixels = np.random.default_rng(0).integers(0, 256, (n, 1, 4, 4), dtype=np.uint8)
    labels = None if classes is None else np.arange(n) % classes
    return Dataset.from_arrays(pixels, labels, classes=classes)


def gate(*queries: Query, budget: Budget = LOUD, rows: Dataset | None = None) -> Gate:
    charges = plan(queries, calibrated(queries, budget))
    private = PrivateData(rows or data(), Ledger(Budget(epsilon=1.01e5, delta=1e-5)))
    return Gate(private, queries, charges, budget)


def pixels(batch: Batch) -> torch.Tensor:
    return batch.pixels().flatten(1)


# -- declarations ---------------------------------------------------------------------------------------------------


def test_shares_are_of_the_squared_noise_budget_and_need_not_add_up():
    one, two = (Query(label=str(i), shape=(3,), share=s) for i, s in enumerate((3.0, 1.0)))
    first, second = plan([one, two], 5.0)
    assert first.noise_multiplier == pytest.approx(5.0 * math.sqrt(4 / 3))
    assert second.noise_multiplier == pytest.approx(5.0 * math.sqrt(4 / 1))
    alone = plan([Query(label="alone", shape=(3,))], 5.0)
    for relation in Neighbours:
        assert epsilon_of((first, second), 1e-5, relation) == pytest.approx(
            epsilon_of(alone, 1e-5, relation)
        )


@pytest.mark.parametrize("relation", list(Neighbours))
def test_a_series_beside_a_sum_meets_the_budget(relation):
    queries = [
        Query(label="counts", shape=(1,), segments=3, non_negative=True, share=0.02),
        Query(label="steps", shape=(50,), rate=0.02, steps=300, over="gradients"),
    ]
    budget = Budget(epsilon=1.0, delta=1e-5, neighbours=relation)
    charges = plan(queries, calibrated(queries, budget))
    assert epsilon_of(charges, 1e-5, relation) == pytest.approx(1.0, rel=2e-3)
    assert epsilon_of(charges, 1e-5, relation) <= 1.0 + 1e-9
    # About a fiftieth of the budget goes to the counts.
    counts, steps = charges
    spent = (1 / counts.noise_multiplier**2) / (300 * (0.02 / steps.noise_multiplier) ** 2)
    assert spent == pytest.approx(0.02)


def test_the_sampler_follows_from_how_a_query_is_asked():
    assert Query(label="a", shape=(2,)).charge(1.0).sampler == "discrete"
    assert Query(label="a", shape=(2,), steps=1).charge(1.0).sampler == "floating"
    assert Query(label="a", shape=(2,), steps=1, over="gradients").charge(1.0).sampler == "floating"


def test_the_square_root_of_two_is_for_what_is_enforced_once_and_for_nothing_else():
    ratio = {
        "plain": Query(label="a", shape=(2,)),
        "non-negative": Query(label="a", shape=(2,), non_negative=True),
        "square": Query(label="a", shape=(2, 2), symmetric=True),
        "sampled": Query(label="a", shape=(2,), non_negative=True, steps=3, rate=0.5),
    }
    found = {name: q.charge(1.0).replace_ratio for name, q in ratio.items()}
    root = math.sqrt(2)
    assert found == {"plain": 2.0, "non-negative": root, "square": root, "sampled": 2.0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"share": 0.0},
        {"share": math.nan},
        {"rate": 0.5},
        {"over": "groups"},
        {"shape": (2, 2, 2, 2)},
        {"shape": (2, 2), "non_negative": True},
        {"shape": (2,), "symmetric": True},
        {"shape": (2, 3), "symmetric": True},
        {"shape": (0,)},
        {"rate": 1.5, "steps": 2},
        {"segments": 0},
        {"steps": 0},
        {"over": "gradients", "steps": 2, "non_negative": True},
        {"over": "groups", "steps": 2, "parts": 0},
    ],
)
def test_a_senseless_query_is_refused(wrong):
    with pytest.raises(BadInput, match="Query 'a'"):
        Query(**{"label": "a", "shape": (2,), **wrong})


def test_what_a_paper_leaves_out_is_charged_and_told_apart():
    queries = [Query(label="counted", shape=(2,)), Query(label="not", shape=(2,), noise=1e-3)]
    charges = plan(queries, calibrated(queries, BUDGET))
    assert claimed(charges, queries) == charges[:1]
    assert epsilon_of(charges[:1], 1e-5, BUDGET.neighbours) == pytest.approx(1.0)
    assert epsilon_of(charges, 1e-5, BUDGET.neighbours) > 1e4
    assert claimed(charges[:1], queries[:1]) is None


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_the_noise_of_a_budget_is_that_of_one_sum(epsilon):
    budget = Budget(epsilon=epsilon, delta=1e-5)
    charges = (Query(label="a", shape=(7,), bound=3.0).charge(gaussian_noise(budget)),)
    assert epsilon_of(charges, 1e-5, budget.neighbours) == pytest.approx(epsilon)


# -- enforced -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        Query(label="vector", shape=(16,), bound=0.7),
        Query(label="filed", shape=(16,), bound=2.0, segments=3),
        Query(label="never negative", shape=(16,), non_negative=True, segments=3),
        Query(label="square", shape=(16, 16), symmetric=True, bound=0.5),
        Query(label="product", shape=(16, 3), bound=1.5, segments=3),
    ],
    ids=lambda q: q.label,
)
def test_a_neighbour_moves_a_query_by_its_own_summand_and_that_is_bounded(query):
    def rows(batch: Batch):
        flat = batch.pixels().flatten(1) * 9 - 3
        what = flat if len(query.shape) == 1 or query.symmetric else (flat, flat[:, :3])
        return (what, batch.labels) if query.segments > 1 else what

    pool = adversarial_records(data().schema)
    summand = summand_of(_map_of(query, rows))
    alone = check_additive(summand, pool, counts=COUNTS)
    lengths = (alone.double() * summand.grid).flatten(1).norm(dim=1)
    assert (lengths <= query.enforced).all()
    assert lengths.max() > 0.9 * query.bound  # not by making everything small
    if query.non_negative:
        assert (alone >= 0).all()


@given(st.floats(-1e30, 1e30), st.integers(0, 2**31))
@settings(max_examples=150)
def test_no_row_is_longer_than_its_query_says(scale, seed):
    query = Query(label="rows", shape=(16,), bound=0.25)
    random = torch.Generator().manual_seed(seed)
    direction = torch.randn(1, 16, generator=random)
    summand = summand_of(_map_of(query, lambda batch: (direction * scale).expand(len(batch), 16)))
    found = summand(Batch(torch.zeros(1, 1, 4, 4), None)).double() * summand.grid
    assert found.norm() <= query.enforced


def test_a_feature_map_goes_its_own_fast_way_and_gives_the_same():
    phi = FourierFeatures(16, 64, 1.0, seed=0)
    query = Query(label="features", shape=(64,))
    fast = gate(query).sum("features", phi)
    slow = gate(query).sum("features", lambda batch: phi(batch))
    apart = 7 * math.sqrt(2) * fast.noise_std + 1e-4  # seven deviations of two noises, and a grid
    assert (fast.value - slow.value).abs().max() < apart
    with pytest.raises(ValueError, match="promised rows of 64"):
        gate(query).sum("features", FourierFeatures(16, 32, 1.0, seed=0))


def test_rows_of_another_width_or_without_their_segment_are_refused():
    with pytest.raises(ValueError, match="a row of 16 numbers"):
        gate(Query(label="a", shape=(16,))).sum("a", lambda batch: pixels(batch)[:, :5])
    with pytest.raises(ValueError, match="no segment"):
        gate(Query(label="a", shape=(16,), segments=3)).sum("a", pixels)


class Ones(FeatureMap):
    """1 for every record, in no segment of its own."""

    dim = 1
    bound = 1.0

    def __call__(self, batch: Batch) -> torch.Tensor:
        return torch.ones(len(batch), 1)


class Filed(Ones):
    """The same, said to be filed, and filed nowhere: all in block 0."""

    segments = 3


def test_a_neighbour_is_filed_in_one_segment_even_where_a_map_names_none():
    query = Query(label="a", shape=(1,), segments=3)
    with pytest.raises(ValueError, match="in 3 segments"):
        gate(query).sum("a", Ones())
    summand = summand_of(_map_of(query, Filed()))
    alone = summand(Batch(torch.zeros(1, 1, 4, 4), None)).double() * summand.grid
    assert alone.flatten().tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("shape", [(1,), (4, 4)])
@pytest.mark.parametrize(
    "segment",
    [
        lambda n: torch.zeros(n, 5, dtype=torch.int64),
        lambda n: torch.arange(3).repeat(n, 1),
        lambda n: torch.zeros(n),
        lambda n: torch.zeros(1, dtype=torch.int64),
        lambda n: torch.zeros(n, dtype=torch.bool),
    ],
    ids=["many", "all", "float", "one for all", "truth"],
)
def test_a_neighbour_that_names_several_segments_is_refused(shape, segment):
    query = Query(label="a", shape=shape, segments=3, symmetric=len(shape) == 2)

    def rows(batch: Batch):
        return torch.ones(len(batch), shape[0]) / 2, segment(len(batch))

    with pytest.raises(ValueError, match=r"shape \(n,\)"):
        summand_of(_map_of(query, rows))(Batch(torch.zeros(7, 1, 4, 4), None))


def test_a_neighbour_that_is_too_long_has_no_row_computed_again():
    """The others' rows are those that were measured: a plain function is asked once a batch, whatever is in it."""
    calls: list[int] = []

    def rows(batch: Batch) -> torch.Tensor:
        calls.append(len(batch))
        flat = pixels(batch)
        return torch.where(flat.sum(dim=1, keepdim=True) > 15, 1e6, 1.0 * len(calls)) * flat / 4

    summand = summand_of(_map_of(Query(label="a", shape=(16,)), rows))
    batch = Batch(torch.rand(16, 1, 4, 4, generator=torch.Generator().manual_seed(0)) / 2, None)
    summand(batch)  # finds out about sizes
    calls.clear()
    batch.values[3] = 1.0
    summand(batch)
    assert len(calls) == 1


def test_a_map_in_pieces_that_answers_otherwise_the_second_time_is_refused():
    class Fickle(FeatureMap):
        dim, bound, calls = 16, 0.08, 0

        def __call__(self, batch: Batch) -> torch.Tensor:
            return pixels(batch)

        def pieces(self, batch: Batch):
            self.calls += 1
            yield 0, pixels(batch).T, 0.1 + 1e-3 * self.calls

    long = torch.ones(1, 1, 4, 4)
    with pytest.raises(ValueError, match="when it is asked again"):
        BoundedSum(Fickle())(Batch(torch.cat([torch.full((6, 1, 4, 4), 0.1), long]), None))


@pytest.mark.parametrize("starts", [(0,), (0, 8, 8), (0, 12)], ids=["missing", "twice", "beyond"])
def test_a_map_that_leaves_a_feature_out_or_gives_one_twice_releases_nothing_else(starts):
    class Torn(FeatureMap):
        dim, bound = 16, 4.0

        def __call__(self, batch: Batch) -> torch.Tensor:
            return pixels(batch)

        def pieces(self, batch: Batch):
            for start in starts:
                yield start, torch.ones(8, len(batch)), 1.0

    batch = Batch(torch.zeros(4, 1, 4, 4), None)
    if starts == (0,):
        assert BoundedSum(Torn())(batch)[0, 8:].abs().sum() == 0  # not what lay in memory
    else:
        with pytest.raises(ValueError, match="twice, or one too many"):
            BoundedSum(Torn())(batch)


def test_a_memory_knows_no_labels_and_cannot_be_written_to():
    opened = gate(Query(label="a", shape=(16,)))
    seen: list[torch.Tensor | None] = []

    def encode(batch: Batch) -> torch.Tensor:
        seen.append(batch.labels)
        return pixels(batch).clone()

    encoded = opened.remember(encode)
    values = torch.rand(4, 1, 4, 4)
    for label in (0, 1):
        encoded(Batch(values, torch.full((4,), label)))
    assert seen == [None]
    encoded(Batch(values, None)).mul_(2)
    with pytest.raises(ValueError, match="written to"):
        encoded(Batch(values, None))


# -- asked ----------------------------------------------------------------------------------------------------------


def test_a_sum_is_the_sum_and_its_noise_is_known_before():
    query = Query(label="pixels", shape=(16,), bound=4.0, segments=3)
    opened = gate(query)
    std = opened.noise_std("pixels")
    release = opened.sum("pixels", lambda batch: (pixels(batch), batch.labels))
    assert release.noise_std == std
    images = data().images.reshape(40, 16) / 255
    exact = np.stack([images[data().labels == c].sum(0) for c in range(3)])
    assert np.allclose(release.value.numpy(), exact, atol=6 * std + 1e-2)


def test_what_was_not_promised_or_was_answered_is_not_answered():
    opened = gate(Query(label="a", shape=(16,)), Query(label="b", shape=(16,), steps=2, rate=0.5))
    with pytest.raises(PlanMismatch, match="was not promised"):
        opened.sum("c", pixels)
    with pytest.raises(PlanMismatch, match="series of steps"):
        opened.sum("b", pixels)
    with pytest.raises(PlanMismatch, match="one sum over all records"):
        opened.steps("a")
    opened.sum("a", pixels)
    with pytest.raises(PlanMismatch):
        opened.sum("a", pixels)
    opened.close()
    with pytest.raises(PlanMismatch, match="the fit is over"):
        opened.sum("a", pixels)


def test_a_promise_of_other_queries_is_not_this_methods():
    one, other = (Query(label=name, shape=(2,)) for name in "ab")
    with pytest.raises(PlanMismatch, match="other queries"):
        Gate(PrivateData(data(), Ledger(BUDGET)), [one], plan([other], 4.0), BUDGET)


def test_a_step_answers_once_and_only_by_the_kind_that_was_paid_for():
    series = gate(Query(label="a", shape=(16,), steps=2, rate=1.0)).steps("a")
    with pytest.raises(PlanMismatch, match="not begun"):
        next(series)
    steps = series.begin()
    first, second = next(steps), next(steps)
    with pytest.raises(PlanMismatch, match="used already"):
        first.sum(pixels)  # the second was handed out meanwhile
    assert second.sum(pixels).shape == (1, 16)
    with pytest.raises(PlanMismatch, match="used already"):
        second.sum(pixels)


def test_gradients_of_another_network_than_promised_are_refused():
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    query = Query(label="g", shape=(7,), steps=1, over="gradients")
    (step,) = gate(query, rows=data(classes=2)).steps("g").begin()
    with pytest.raises(PlanMismatch, match="7 parameters, and there are 34"):
        step.gradient(network, lambda net, x, y: net(x)[:, 0])


def test_a_memory_ends_with_the_fit():
    opened = gate(Query(label="a", shape=(16,)))
    seen: list[int] = []

    def encode(batch: Batch) -> torch.Tensor:
        seen.append(len(batch))
        return pixels(batch)

    encoded = opened.remember(encode)
    batch = next(iter(data().batches(10)))
    assert torch.equal(encoded(batch), encoded(batch))
    assert len(seen) == 1
    opened.close()
    assert not encoded._kept  # what it held was private
    encoded(batch)
    assert len(seen) == 2
    assert not encoded._kept
