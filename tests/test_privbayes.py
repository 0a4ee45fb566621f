"""PrivBayes: places and marginals counted a second time, a network that finds what depends on what, samples that follow it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from sfumato import Budget, Column, Dataset, Neighbours, Schema
from sfumato.data import Batch
from sfumato.methods import Privbayes
from sfumato.methods.bayes_network import Cells, OneHot, mutual_information, network

NONE = Budget.none(delta=1e-5)


def schema(labelled: bool = True) -> Schema:
    return Schema(
        kind="table",
        columns=(
            Column(name="colour", kind="categorical", categories=("r", "g", "b"), missing=True),
            Column(name="copy", kind="categorical", categories=("r", "g", "b")),
            Column(name="height", kind="numerical", low=0.0, high=8.0, missing=True),
            Column(name="grade", kind="ordinal", categories=("low", "mid", "high")),
        ),
        classes=("no", "yes") if labelled else (),
        label="label" if labelled else None,
    )


def records(n: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """colour follows the class, copy is colour, height is of no one's, grade follows height."""
    draw = np.random.default_rng(0)
    label = draw.integers(0, 2, n)
    colour = np.where(draw.random(n) < 0.9, label, 2).astype(float)
    height = draw.uniform(0, 8, n)
    grade = np.clip(height // 3, 0, 2)
    copy = colour.copy()
    colour[:30] = np.nan
    height[30:60] = np.nan
    return np.stack([colour, copy, height, grade], axis=1).astype(np.float32), label


def table(n: int = 3000) -> Dataset:
    values, labels = records(n)
    return Dataset.from_values(values, labels, schema=schema())


def test_places_are_the_records_and_back() -> None:
    hot = OneHot(schema(), 100.0, 8)
    assert hot.sizes == [2, 4, 3, 9, 3]
    values, labels = records(200)
    batch = Batch(torch.from_numpy(values), torch.from_numpy(labels))
    codes = hot.codes(batch)
    assert (codes[:, 0] == batch.labels).all()
    assert (codes[:30, 1] == 3).all() and (codes[30:60, 3] == 8).all()  # missing
    assert (codes[60:, 3] == torch.from_numpy(values[60:, 2]).floor()).all()
    rows = hot(batch)
    assert rows.sum(dim=1).tolist() == [hot.columns] * 200
    again = hot.records(codes, torch.Generator().manual_seed(0))
    assert np.isnan(again[:30, 0]).all() and np.isnan(again[30:60, 2]).all()
    np.testing.assert_array_equal(again[30:, 0], values[30:, 0])
    np.testing.assert_array_equal(again[:, 3], values[:, 3])
    np.testing.assert_array_equal(again[60:, 2].floor(), np.floor(values[60:, 2]))


def test_what_is_no_category_has_no_place_and_adds_nothing() -> None:
    hot = OneHot(schema(), 100.0, 8)
    batch = Batch(torch.tensor([[7.0, 7.0, 1.0, 0.0]]), torch.tensor([5]))
    codes = hot.codes(batch)
    assert codes[0].tolist() == [-1, 3, -1, 1, 0]  # a column that may be missing takes it for that
    assert float(hot(batch).sum()) == 3
    cells = Cells(hot, [[0], [1, 0], [2, 1], [3], [4, 3]], 64)(batch)
    assert (
        float(cells.sum()) == 2
    )  # neither the class, nor what has it or copy for itself or a parent


def test_no_row_is_longer_than_the_bound_that_is_charged() -> None:
    method = Privbayes(bins=4, cells=64)
    pairs, cells = method.queries(schema(), NONE)
    hot = OneHot(schema(), 100.0, 4)
    values, labels = records(500)
    batch = Batch(torch.from_numpy(values), torch.from_numpy(labels))
    assert float(hot(batch).square().sum(dim=1).max()) <= pairs.bound
    rows = Cells(hot, [[0], [1, 0], [2, 1], [3], [4, 3, 0]], 64)(batch)
    assert float(rows.norm(dim=1).max()) <= cells.bound + 1e-6 and float(rows.min()) == 0


def test_mutual_information_is_that_of_the_formula() -> None:
    hot = OneHot(schema(), 100.0, 4)
    values, labels = records()
    rows = hot(Batch(torch.from_numpy(values), torch.from_numpy(labels))).to(torch.float64)
    told = mutual_information(hot, rows.T @ rows)
    codes = hot.codes(Batch(torch.from_numpy(values), torch.from_numpy(labels))).numpy()
    for a, b in itertools.combinations(range(hot.columns), 2):
        joint = np.histogram2d(codes[:, a], codes[:, b], (hot.sizes[a], hot.sizes[b]))[0]
        joint /= joint.sum()
        apart = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
        some = joint > 0
        wanted = (joint[some] * np.log(joint[some] / apart[some])).sum()
        assert float(told[a, b]) == pytest.approx(wanted, abs=1e-9)


def test_the_network_finds_who_follows_whom_and_keeps_to_its_limits() -> None:
    hot = OneHot(schema(), 100.0, 4)
    values, labels = records()
    rows = hot(Batch(torch.from_numpy(values), torch.from_numpy(labels))).to(torch.float64)
    families = network(hot, rows.T @ rows, 1, 64)
    assert families[0] == [0]  # the class comes first
    assert families[1][1:] == [2] or families[2][1:] == [1]  # colour and its copy
    assert families[3][1:] == [4] or families[4][1:] == [3]  # grade and height
    turns = [family[0] for family in families]
    assert sorted(turns) == list(range(hot.columns))
    for family in families:
        assert all(turns[parent] < family[0] for parent in family[1:])
    assert all(len(family) == 1 for family in network(hot, rows.T @ rows, 2, 1))


def test_without_noise_samples_have_the_table_s_marginals() -> None:
    made = Privbayes(bins=8).fit(table(), NONE).sample(20_000)
    values, labels = made.values, made.labels
    assert labels is not None
    real, real_labels = records()
    assert labels.mean() == pytest.approx(real_labels.mean(), abs=0.02)
    assert np.isnan(values[:, 0]).mean() == pytest.approx(0.01, abs=0.005)
    for label in (0, 1):
        ours = (values[labels == label, 1] == label).mean()
        assert ours == pytest.approx((real[real_labels == label, 1] == label).mean(), abs=0.02)
    both = ~np.isnan(values[:, 2])
    low = values[both & (values[:, 3] == 0), 2]
    assert (low < 3.01).mean() > 0.95  # grade follows height


@pytest.mark.parametrize("relation", list(Neighbours))
def test_a_private_fit_keeps_its_promise(relation: Neighbours) -> None:
    budget = Budget(epsilon=1.0, delta=1e-5, neighbours=relation)
    model = Privbayes(bins=4).fit(table(), budget)
    assert model.statement_.epsilon <= 1.0
    assert [c.label for c in model.statement_.charges] == [
        "pairs of columns",
        "columns and their parents",
    ]
    values = model.sample(2_000)
    assert values.labels is not None and 0.3 < values.labels.mean() < 0.7
    same = values.values[:, 0] == values.values[:, 1]
    assert same.mean() > 0.7  # the copy is still one


def test_an_unlabelled_table_is_made_too() -> None:
    values, _ = records(500)
    data = Dataset.from_values(values, None, schema=schema(labelled=False))
    made = Privbayes(bins=4).fit(data, NONE).sample(100)
    assert made.labels is None and made.values.shape == (100, 4)
