"""Sums of outer products: bounded whatever the map returns, exact, and priced by their true sensitivity."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runs import ENTRIES, still
from sfumato.data import Batch, Dataset
from sfumato.errors import BadInput
from sfumato.privacy import (
    Budget,
    Ledger,
    Neighbours,
    OuterMap,
    OuterSum,
    PrivateData,
    balanced,
    charge_of,
    enforced_bound,
)

ROWS = hnp.arrays(np.float32, st.tuples(st.integers(1, 4), st.just(5)), elements=ENTRIES)


class Split(OuterMap):
    """The first two columns times the last three, or all five times themselves; claims any bound."""

    def __init__(self, left_bound: float, right_bound: float, *, symmetric: bool = False) -> None:
        self.left, self.right = (5, 5) if symmetric else (2, 3)
        self.left_bound, self.right_bound = left_bound, right_bound
        self.symmetric = symmetric
        self.segments = 2

    def factors(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        rows = batch.values
        return (rows, rows) if self.symmetric else (rows[:, :2], rows[:, 2:])

    def segment_of(self, batch: Batch) -> torch.Tensor | None:
        return batch.labels


class Blocks(OuterMap):
    """Three products side by side: of numbers 0 and 1 with 2, of 3 and 4 with 5, and of 6 and 7 with 8; claims any bound."""

    blocks, left, right = 3, 2, 1

    def __init__(self, left_bound: float, right_bound: float) -> None:
        self.left_bound, self.right_bound = left_bound, right_bound

    def factors(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        each = batch.values.view(-1, 3, 3)
        return each[:, :, :2].reshape(-1, 6), each[:, :, 2]


def products(phi: OuterMap, rows: np.ndarray, labels: np.ndarray | None = None) -> np.ndarray:
    summand = OuterSum(phi)
    codes = np.zeros(len(rows), np.int64) if labels is None else labels
    return np.stack(
        [
            summand(Batch(torch.tensor(row[None]), torch.tensor(code[None]))).numpy().ravel()
            * summand.grid
            for row, code in zip(rows, codes, strict=True)
        ]
    )


@given(rows=ROWS, left=st.floats(1e-6, 1e6), right=st.floats(1e-6, 1e6), symmetric=st.booleans())
@settings(max_examples=150)
def test_no_product_is_longer_than_what_is_charged(rows, left, right, symmetric):
    phi = Split(left, left if symmetric else right, symmetric=symmetric)
    assert (np.linalg.norm(products(phi, rows), axis=1) <= enforced_bound(phi)).all()


@given(
    rows=hnp.arrays(np.float32, st.tuples(st.integers(1, 4), st.just(9)), elements=ENTRIES),
    left=st.floats(1e-6, 1e6),
    right=st.floats(1e-6, 1e6),
)
@settings(max_examples=150)
def test_no_products_side_by_side_are_longer_together_than_what_is_charged(rows, left, right):
    phi = Blocks(left, right)
    assert (np.linalg.norm(products(phi, rows), axis=1) <= enforced_bound(phi)).all()


def test_products_side_by_side_are_those_of_each_block_clipped_as_one():
    rows = np.array([[3.0, 0, 1, 0, 4, -1, 0, 0, 0.5], [0.3, 0, 2, 0, 0, 0, 0, 0.4, 1]], np.float32)
    # The first record's left factors have norm 5 together and become 1; of right factors only the 2 is too long.
    expected = np.array([[0.6, 0, 0, -0.8, 0, 0], [0.3, 0, 0, 0, 0, 0.4]])
    assert np.allclose(products(Blocks(1.0, 1.0), rows), expected, atol=1e-4)
    # Every left factor at the bound: only together are they too long.
    greedy = np.tile(np.array([1.0, 0, 1], np.float32), 3)[None]
    assert np.linalg.norm(products(Blocks(1.0, 1.0), greedy)) == pytest.approx(1.0, abs=1e-3)
    summand = OuterSum(Blocks(1.0, 1.0))
    whole = summand(Batch(torch.tensor(rows), None)).double() * summand.grid
    assert np.allclose(whole.numpy().ravel(), expected.sum(0), atol=1e-4)
    assert summand.phi.dim == 6


@given(rows=ROWS, codes=st.lists(st.integers(0, 1), min_size=4, max_size=4))
@settings(max_examples=150)
def test_replacing_a_record_moves_a_second_moment_by_root_two_at_most(rows, codes):
    phi = Split(1.0, 1.0, symmetric=True)
    one = products(phi, rows, np.array(codes[: len(rows)]))
    worst = max(np.linalg.norm(a - b) for a in one for b in one)
    assert worst <= math.sqrt(2) * enforced_bound(phi)
    assert charge_of(phi, 1.0, label="m").sensitivity(Neighbours.REPLACE_ONE) == pytest.approx(
        math.sqrt(2) * enforced_bound(phi)
    )
    assert charge_of(Split(1.0, 1.0), 1.0, label="m").replace_ratio == 2.0


def test_the_sum_is_the_plain_one_and_does_not_depend_on_the_split():
    rng = np.random.default_rng(0)
    rows = torch.tensor(rng.uniform(-0.4, 0.4, (500, 5)), dtype=torch.float32)
    labels = torch.tensor(rng.integers(-1, 2, 500))
    summand = OuterSum(Split(1.0, 1.0))
    whole = summand(Batch(rows, labels))
    parts = sum(summand(Batch(rows[i : i + 7], labels[i : i + 7])) for i in range(0, 500, 7))
    assert torch.equal(whole, parts)
    exact = torch.stack(
        [
            rows[labels == code, :2].double().T @ rows[labels == code, 2:].double()
            for code in range(2)
        ]
    ).view(2, 6)
    assert torch.allclose(whole.double() * summand.grid, exact, atol=500 * 2.0**-15)
    # Label −1 counts for nothing.
    assert not torch.allclose(
        whole.double().sum(0) * summand.grid,
        (rows[:, :2].double().T @ rows[:, 2:].double()).ravel(),
        atol=1e-3,
    )


def test_a_row_with_one_number_that_is_not_finite_counts_for_nothing():
    phi = Split(1.0, 1.0)
    assert not products(phi, np.array([[math.nan, 1, 1, 1, 1]], np.float32)).any()
    assert not products(phi, np.array([[1, 1, 1, 1, math.inf]], np.float32)).any()
    assert products(phi, np.array([[1, 1, 1, 1, 1]], np.float32)).any()


def test_balancing_keeps_the_products_of_every_block():
    left, right = torch.randn(6, 3, 2), torch.randn(6, 3, 4)
    right[2, 1] = 0
    a, b = (side.view(6, 3, -1) for side in balanced(left.flatten(1), right.flatten(1), 3))
    product = torch.einsum("nma,nmb->nmab", a, b)
    assert torch.allclose(product, torch.einsum("nma,nmb->nmab", left, right), atol=1e-6)
    assert torch.allclose(b.norm(dim=2), (right != 0).any(2).float(), atol=1e-6)


def test_balancing_keeps_the_products():
    left, right = torch.randn(6, 3), torch.randn(6, 4)
    right[2] = 0
    a, b = balanced(left, right)
    assert torch.allclose(a[:, :, None] * b[:, None], left[:, :, None] * right[:, None], atol=1e-6)
    assert torch.allclose(b.norm(dim=1), (right != 0).any(1).float(), atol=1e-6)


def test_bad_bounds_are_refused():
    with pytest.raises(BadInput, match="bound"):
        OuterSum(Split(0.0, 1.0))
    with pytest.raises(BadInput, match="symmetric"):
        OuterSum(Split(1.0, 2.0, symmetric=True))
    several = Split(1.0, 1.0, symmetric=True)
    several.blocks = 2
    with pytest.raises(BadInput, match="a symmetric one no more"):
        OuterSum(several)


def test_the_wall_releases_a_second_moment_with_the_noise_it_charged():
    images = np.random.default_rng(1).integers(0, 256, (300, 1, 2, 2), dtype=np.uint8)

    class Moments(OuterMap):
        left = right = 4
        left_bound = right_bound = 2.0
        symmetric = True

        def factors(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
            rows = batch.pixels().flatten(1)
            return rows, rows

    budget = Budget(epsilon=1e3, delta=1e-5)
    data = PrivateData(Dataset.from_arrays(images), Ledger(budget), discrete_sampler=still)
    release = data.noisy_sum(Moments(), 2.0, label="moments")
    flat = images.reshape(300, 4) / 255.0
    assert np.allclose(release.value.numpy().reshape(4, 4), flat.T @ flat, atol=300 * 2.0**-12)
    assert release.noise_std == pytest.approx(2.0 * 4.0, rel=1e-3)
    steps = data.poisson_steps(
        1.0, 2, 2.0, bound=enforced_bound(Moments()), label="steps", dimension=16
    )
    noisy = next(steps).noisy_sum(Moments()).numpy().reshape(4, 4)
    assert np.abs(noisy - flat.T @ flat).max() < 6 * 8.0
    assert np.abs(noisy - flat.T @ flat).max() > 1e-3
