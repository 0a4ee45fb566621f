"""Tables as numbers and one-hots: any row is tamed, and what was encoded comes back."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sfumato.data import Batch, Column, Dataset, Schema
from sfumato.generators import DenseGenerator
from sfumato.methods import Merf
from sfumato.privacy import BoundedSum, Budget, enforced_bound
from sfumato.public.fourier import FourierFeatures
from sfumato.public.hermite import Hermite, SumKernel
from sfumato.public.tabular import HeterogeneousFourier, TableCodec

SCHEMA = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", low=0, high=90),
        Column(name="gain", kind="numerical", low=-5, high=99_999, missing=True),
        Column(name="work", kind="categorical", categories=("a", "b", "c"), missing=True),
        Column(name="sex", kind="categorical", categories=("f", "m")),
        Column(name="level", kind="ordinal", categories=("low", "mid", "high", "top")),
        Column(name="score", kind="ordinal", categories=("0", "1", "2"), missing=True),
    ),
)
CODEC = TableCodec(SCHEMA)
ROWS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.just(6)),
    elements=st.one_of(
        st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 1.0, 2.0, 3.0, 99.5, 1e30]),
        st.floats(-200, 2e5, width=32),
    ),
)


def batch(rows: list[list[float]]) -> Batch:
    return Batch(torch.tensor(rows), None)


def test_columns_become_numbers_and_blocks_as_the_schema_says():
    assert CODEC.numbers == 4  # two numerical, two ordinal
    assert [block.size for block in CODEC.blocks] == [2, 4, 2, 2]
    nan = math.nan
    numbers, hot = CODEC.parts_of(batch([[45, 99_999, 1, 0, 3, 1], [0, nan, nan, 1, 0, nan]]))
    assert numbers[0].tolist() == pytest.approx([0.5, 1.0, 1.0, 0.5])
    assert numbers[1].tolist() == pytest.approx([0.0, 0.5, 0.0, 0.5])
    assert hot[0].tolist() == [1, 0, 0, 1, 0, 0, 1, 0, 1, 0]
    assert hot[1].tolist() == [0, 1, 0, 0, 0, 1, 0, 1, 0, 1]


def test_wide_columns_are_compressed_by_a_public_rule_only():
    plain, squashed = TableCodec(SCHEMA, None), CODEC
    row = batch([[45, 3.0, 0, 0, 0, 0]])
    assert float(plain.parts_of(row)[0][0, 1]) == pytest.approx(8 / 100_004, rel=1e-4)
    assert 0.2 < float(squashed.parts_of(row)[0][0, 1]) < 0.5
    assert torch.equal(plain.parts_of(row)[0][:, 0], squashed.parts_of(row)[0][:, 0])


@given(rows=ROWS)
def test_any_row_is_tamed(rows):
    numbers, hot = CODEC.parts_of(Batch(torch.from_numpy(rows), None))
    assert bool(((numbers >= 0) & (numbers <= 1)).all())
    for block in CODEC.blocks:
        part = hot[:, block.start : block.start + block.size]
        assert bool(((part == 0) | (part == 1)).all())
        assert bool((part.sum(dim=1) <= 1).all())


@given(rows=ROWS)
@pytest.mark.parametrize(
    "phi",
    [
        HeterogeneousFourier(CODEC, FourierFeatures(4, 40, 0.3, seed=0)),
        HeterogeneousFourier(TableCodec(SCHEMA, None), None),
        HeterogeneousFourier(CODEC, FourierFeatures(4, 40, 0.3, seed=0), by_length=True),
        SumKernel(CODEC, Hermite(15, 0.01, 6.0)),
    ],
)
def test_bounds_hold_on_any_row_and_the_wall_never_clips(phi, rows):
    values = Batch(torch.from_numpy(rows), None)
    norms = phi(values).double().norm(dim=1)
    assert bool((norms <= phi.bound * (1 + 1e-6)).all())
    summand = BoundedSum(phi)
    assert float((summand.rows(values) * summand.grid).norm(dim=1).max()) <= enforced_bound(phi)
    for i in range(len(rows)):
        alone = phi(Batch(values.values[i : i + 1], None))
        assert torch.allclose(alone[0], phi(values)[i], atol=1e-5)


def test_the_bound_of_mixed_records_is_root_two_and_reached():
    phi = HeterogeneousFourier(CODEC, FourierFeatures(4, 40, 0.3, seed=0))
    assert phi.bound == pytest.approx(math.sqrt(2))
    row = phi(batch([[45, 10, 1, 0, 3, 1]]))
    assert float(row.norm()) == pytest.approx(math.sqrt(2), rel=1e-5)
    numbers_only = Schema(kind="table", columns=SCHEMA.columns[:1])
    fourier = FourierFeatures(1, 10, 1.0, seed=0)
    assert HeterogeneousFourier(TableCodec(numbers_only), fourier).bound == 1.0


def test_by_length_categories_are_divided_by_all_places_of_their_one_hots():
    """The paper's d_cat: four blocks of 4, 2, 2 and 2 places here, so a record's categories have length √(4/10)."""
    phi = HeterogeneousFourier(CODEC, FourierFeatures(4, 40, 0.3, seed=0), by_length=True)
    assert (len(CODEC.blocks), CODEC.places) == (4, 10)
    assert phi.bound == pytest.approx(math.sqrt(1.4))
    row = phi(batch([[45, 10, 1, 0, 3, 1]]))
    assert float(row.norm()) == pytest.approx(math.sqrt(1.4), rel=1e-5)
    assert float(row[0, 40:].sum()) == pytest.approx(4 / math.sqrt(10), rel=1e-5)
    budget = Budget(epsilon=1.0, delta=1e-5)
    for weight, squared in (("columns", 2.0), ("length", 1.4)):
        merf = Merf(features=40, category_weight=weight)
        (query,) = merf.queries(SCHEMA, budget)
        assert query.bound == pytest.approx(math.sqrt(squared + 0.3**2))
        assert merf._feature_map(SCHEMA).bound == pytest.approx(math.sqrt(squared))


def test_inner_products_are_the_sum_of_the_two_kernels():
    phi = HeterogeneousFourier(CODEC, FourierFeatures(4, 40_000, 0.3, seed=1))
    rows = batch([[45, 10, 1, 0, 3, 1], [50, 2000, 1, 1, 2, 1], [10, 0, 0, 0, 3, 2]])
    numbers, hot = CODEC.parts_of(rows)
    gauss = torch.exp(-torch.cdist(numbers, numbers).square() / 0.6)
    found = phi(rows) @ phi(rows).T
    assert torch.allclose(found, gauss + hot @ hot.T / 4, atol=0.03)


def test_what_was_encoded_comes_back():
    nan = math.nan
    rows = [[45, 1234.5, 1, 0, 3, 1], [0, nan, nan, 1, 0, nan], [90, -5, 2, 1, 1, 2]]
    encoded = torch.cat(CODEC.parts_of(batch(rows)), dim=1)
    back = CODEC.finish(encoded, torch.Generator().manual_seed(0))
    assert np.allclose(back.numpy(), rows, rtol=1e-4, atol=1e-3, equal_nan=True)


def test_decoded_records_always_fit_the_schema():
    generator = torch.Generator().manual_seed(0)
    encoded = torch.rand(500, CODEC.numbers + CODEC.places, generator=generator) * 1.2 - 0.1
    values = CODEC.finish(encoded, generator).numpy()
    Dataset.from_values(values, None, schema=SCHEMA)  # raises if a value leaves range or categories
    assert np.isnan(values[:, 1]).any()
    assert not np.isnan(values[:, 0]).any()


def test_categories_are_drawn_with_their_probabilities():
    encoded = torch.zeros(4000, CODEC.numbers + CODEC.places)
    encoded[:, CODEC.numbers + 2 : CODEC.numbers + 6] = torch.tensor([0.5, 0.3, 0.0, 0.2])
    codes = CODEC.finish(encoded, torch.Generator().manual_seed(0))[:, 2]
    assert float((codes == 0).float().mean()) == pytest.approx(0.5, abs=0.03)
    assert float(codes.isnan().float().mean()) == pytest.approx(0.2, abs=0.03)
    assert not bool((codes == 2).any())


def test_a_generator_of_tables_makes_numbers_and_probabilities():
    blocks = [block.size for block in CODEC.blocks]
    optional = [(number, block.start) for number, block in CODEC.optional]
    network = DenseGenerator(CODEC.numbers, 3, 5, [16, 16], blocks=blocks, optional=optional)
    made = network(torch.arange(60) % 3, torch.Generator().manual_seed(0))
    assert made.shape == (60, CODEC.numbers + CODEC.places)
    assert bool(((made >= 0) & (made <= 1)).all())
    for block in CODEC.blocks:
        start = CODEC.numbers + block.start
        assert torch.allclose(made[:, start : start + block.size].sum(dim=1), torch.ones(60))
    # A missing number lies in the middle, and its indicator is certain, as in an encoded record.
    missing = made[:, CODEC.numbers + 1]
    assert set(missing.tolist()) == {0.0, 1.0}
    assert bool((made[missing == 1, 1] == 0.5).all())
    made[:, CODEC.numbers + 1].sum().backward()
    assert any(bool(p.grad.abs().sum() > 0) for p in network.parameters() if p.grad is not None)
