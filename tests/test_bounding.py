"""The bound holds on any row at all, and the sum is exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runs import ENTRIES
from sfumato.data import Batch
from sfumato.errors import BadInput
from sfumato.privacy import BoundedSum, FeatureMap, enforced_bound
from sfumato.privacy.bounding import grid_of


class Liar(FeatureMap):
    """Returns its rows as they are, whatever bound it claims."""

    def __init__(
        self, dim: int, bound: float, *, segments: int = 1, non_negative: bool = False
    ) -> None:
        self.dim, self.bound, self.segments, self.non_negative = dim, bound, segments, non_negative

    def __call__(self, batch: Batch) -> torch.Tensor:
        return batch.values

    def segment_of(self, batch: Batch) -> torch.Tensor | None:
        return batch.labels


def contributions(rows: np.ndarray, bound: float, **more: bool) -> np.ndarray:
    """Each record's contribution to the sum, alone in a batch of its own, as the engine would add it."""
    summand = BoundedSum(Liar(rows.shape[1], bound, **more))  # type: ignore[arg-type]
    return np.stack(
        [summand(Batch(torch.tensor(row[None]), None)).numpy()[0] * summand.grid for row in rows]
    )


@given(
    rows=hnp.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 40)), elements=ENTRIES),
    bound=st.sampled_from([1e-6, 0.1, 1.0, 1.0049, 7.3, 1e6]),
)
@settings(max_examples=300)
def test_no_row_moves_the_sum_by_more_than_the_enforced_bound(rows, bound):
    limit = enforced_bound(Liar(rows.shape[1], bound))
    alone = contributions(rows, bound)
    assert (np.linalg.norm(alone, axis=1) <= limit).all()
    # The slack of the enforced bound is a few ten-thousandths, not a licence.
    assert limit <= bound * 1.0002


@given(
    rows=hnp.arrays(np.float32, st.tuples(st.integers(2, 5), st.integers(1, 30)), elements=ENTRIES),
    bound=st.sampled_from([0.5, 1.0, 30.0]),
)
@settings(max_examples=200)
def test_non_negative_rows_replace_each_other_within_root_two(rows, bound):
    alone = contributions(rows, bound, non_negative=True)
    limit = math.sqrt(2) * enforced_bound(Liar(rows.shape[1], bound))
    for u in alone:
        for v in alone:
            assert np.linalg.norm(u - v) <= limit * (1 + 1e-12)


@given(
    rows=hnp.arrays(np.float32, st.tuples(st.integers(1, 60), st.integers(1, 8)), elements=ENTRIES),
    cut=st.integers(0, 60),
)
@settings(max_examples=200)
def test_the_sum_is_the_same_in_any_split_to_the_last_bit(rows, cut):
    summand = BoundedSum(Liar(rows.shape[1], 1.0))
    whole = summand(Batch(torch.tensor(rows), None))
    cut = min(cut, len(rows))
    parts = [rows[:cut], rows[cut:][::-1]]
    split = sum(summand(Batch(torch.tensor(p.copy()), None)) for p in parts if len(p))
    assert torch.equal(whole, split)


def test_exactness_survives_sums_that_float32_cannot_hold():
    # 4,096 rows of one full-length coordinate: 2³¹ units, far beyond float32's 2²⁴.
    rows = torch.ones(4096, 1) * (1 - 2.0**-18)
    total = BoundedSum(Liar(1, 1.0))(Batch(rows, None))
    assert int(total) == 4096 * (2**18 - 1)


def bounded(rows: torch.Tensor, bound: float) -> torch.Tensor:
    summand = BoundedSum(Liar(rows.shape[1], bound))
    return summand.rows(Batch(rows, None)) * summand.grid


def test_rows_within_the_bound_pass_unchanged_up_to_the_grid():
    rows = torch.randn(50, 20)
    rows /= rows.norm(dim=1, keepdim=True)
    assert torch.allclose(bounded(rows, 1.0), rows, atol=grid_of(1.0))


@pytest.mark.parametrize(
    ("row", "kept"), [([3.0, 4.0], [0.6, 0.8]), ([3e38, -3e38], [0.5**0.5, -(0.5**0.5)])]
)
def test_a_long_row_is_scaled_not_cut_and_keeps_its_direction(row, kept):
    assert torch.allclose(bounded(torch.tensor([row]), 1.0), torch.tensor([kept]), atol=1e-4)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_bad_entry_silences_its_row_and_no_other(value):
    rows = torch.tensor([[0.5, value], [0.25, 0.5]])
    assert torch.equal(bounded(rows, 1.0), torch.tensor([[0.0, 0.0], [0.25, 0.5]]))


def test_a_wide_row_at_the_bound_stays_within_it():
    # 300,000 features, as perceptual features have: rounding errors add up most here.
    row = torch.full((3, 300_000), 1 / math.sqrt(300_000)) * torch.tensor([[1.0], [1.0001], [1.01]])
    summand = BoundedSum(Liar(300_000, 1.0))
    lengths = np.linalg.norm(summand.rows(Batch(row, None)).double().numpy() * summand.grid, axis=1)
    assert (lengths <= enforced_bound(summand.phi)).all()
    assert lengths[2] == pytest.approx(1.0, abs=2e-3)


def test_rows_are_filed_by_label_and_unknown_labels_are_dropped():
    rows = torch.tensor([[1.0], [0.5], [0.25], [0.125]])
    labels = torch.tensor([1, 0, -1, 7])
    total = BoundedSum(Liar(1, 1.0, segments=3))(Batch(rows, labels)).double() * grid_of(1.0)
    assert total[:, 0].tolist() == [0.5, 1.0, 0.0]


def test_a_map_of_the_wrong_width_is_an_error_not_a_broadcast():
    with pytest.raises(ValueError, match="a row of 3 numbers for every record") as told:
        BoundedSum(Liar(3, 1.0))(Batch(torch.ones(77, 4), None))
    assert "77" not in str(told.value)  # how many records were sampled is private


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_any_floating_type_is_bounded_alike(dtype):
    rows = torch.tensor([[3.0, 4.0], [0.25, 0.5]], dtype=dtype)
    summand = BoundedSum(Liar(2, 1.0))
    total = summand(Batch(rows, None)).double() * summand.grid
    assert torch.allclose(total, torch.tensor([[0.85, 1.3]], dtype=torch.float64), atol=1e-4)


@pytest.mark.parametrize("bound", [1e-25, 1e25])
def test_bounds_whose_squares_float32_cannot_tell_from_zero_are_refused(bound):
    with pytest.raises(BadInput, match="must lie between"):
        BoundedSum(Liar(2, bound))


def test_tiny_entries_cannot_slip_under_the_least_bound():
    # Their squares vanish in float32; the row must still be within the bound it is charged with.
    rows = np.full((2, 4000), 3e-20, dtype=np.float32)
    phi = Liar(4000, 1e-12)
    assert (np.linalg.norm(contributions(rows, 1e-12), axis=1) <= enforced_bound(phi)).all()
