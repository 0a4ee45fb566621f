"""Datasets over arrays: what is accepted, what is refused, and that nothing is copied on the way."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader

from data import digits
from sfumato.data import Batch, Column, Dataset, Schema
from sfumato.errors import BadInput

RNG = np.random.default_rng(0)


def pictures(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((5, 7, 9), (1, 7, 9)),
        ((5, 1, 7, 9), (1, 7, 9)),
        ((5, 3, 7, 9), (3, 7, 9)),
        ((5, 7, 9, 3), (3, 7, 9)),
        ((5, 7, 9, 1), (1, 7, 9)),
        ((5, 3, 7, 3), (3, 7, 3)),
    ],
)
def test_every_usual_layout_becomes_channels_first(given, expected):
    images = pictures(*given)
    data = Dataset.from_arrays(images)
    assert data.schema.shape == expected
    if given[-1] in (1, 3) and given[1] not in (1, 3):
        assert np.array_equal(data.images, images.transpose(0, 3, 1, 2))
    else:
        assert np.array_equal(data.images, images.reshape(5, *expected))


def test_batches_of_bytes_share_memory_with_the_array():
    images = pictures(10, 4, 4)
    for start, batch in zip((0, 4, 8), Dataset.from_arrays(images).batches(4), strict=True):
        assert np.shares_memory(batch.values.numpy(), images[start : start + 4])
    floats = images.astype(np.float32) / 255
    batch = next(Dataset.from_arrays(floats).batches(3))
    assert np.shares_memory(batch.values.numpy(), floats)


def test_batches_keep_order_and_the_last_one_is_shorter():
    data = digits()
    batches = list(data.batches(500))
    assert [len(b) for b in batches] == [500, 500, 500, 297]
    assert np.array_equal(torch.cat([b.values for b in batches]).numpy(), data.images)
    labels = torch.cat([b.labels for b in batches if b.labels is not None])
    assert labels.dtype == torch.int64
    assert np.array_equal(labels.numpy(), load_digits().target)


def test_take_follows_the_order_asked_for_and_repeats():
    images = pictures(6, 2, 2)
    data = Dataset.from_arrays(images, np.arange(6), classes=6)
    batch = data.take(np.array([5, 0, 5]))
    assert batch.labels is not None
    assert batch.labels.tolist() == [5, 0, 5]
    assert np.array_equal(batch.values.numpy()[:, 0], images[[5, 0, 5]])
    assert len(data.take(np.array([], dtype=np.int64))) == 0
    assert len(data.take([])) == 0


@pytest.mark.parametrize(
    ("ask", "wrong"),
    [
        *((Dataset.take, np.array(indices)) for indices in ([-1], [6], [0.5], [[0]], [True])),
        *((Dataset.batches, size) for size in (0, -1, 2.0, True)),
    ],
)
def test_what_is_no_row_number_or_batch_size_is_refused(ask, wrong):
    with pytest.raises(BadInput):
        ask(Dataset.from_arrays(pictures(6, 2, 2)), wrong)


def test_pixels_lie_in_the_unit_interval_and_nan_stays():
    bytes_ = Batch(torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8), None).pixels()
    assert bytes_.dtype == torch.float32
    assert bytes_.flatten().tolist() == pytest.approx([0.0, 0.2, 1.0])
    floats = Batch(torch.tensor([[[[-1.0, 0.5, 7.0, float("nan")]]]]), None)
    assert floats.pixels().flatten()[:3].tolist() == [0.0, 0.5, 1.0]
    assert floats.pixels().isnan().sum() == 1
    assert floats.values[0, 0, 0, 0] == -1.0, "pixels() must not change the batch"
    with pytest.raises(BadInput):
        Batch(torch.zeros(2, 3), None).pixels()


@pytest.mark.parametrize(
    "images",
    [
        *(np.full((2, 3, 3), value) for value in (np.nan, np.inf, 1.5, -0.1, 255.0)),
        *(np.zeros((2, 3, 3), kind) for kind in (np.int64, np.uint16, complex)),
        *(np.zeros(shape, np.uint8) for shape in ((0, 3, 3), (2, 0, 3), (4,), (4, 4))),
        *(np.zeros(shape, np.uint8) for shape in ((2, 5, 3, 4), (2, 1, 1, 3, 4))),
        np.array([["a"]]),
        np.array([None, 3], dtype=object),
        np.uint8(3),
    ],
)
def test_unusable_images_are_refused(images):
    with pytest.raises(BadInput, match=r"\.$"):
        Dataset.from_arrays(images)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        *(([0, 1], 2), ([0, 1, 2], 2), ([0, 1, -1], 2), ([0.0, 1.0, 1.0], 2)),
        *((["a", "b", "b"], 2), ([[0], [1], [1]], 2), (None, 2)),
        *(([0, 1, 1], classes) for classes in (0, ["a", "a"], [], True)),
    ],
)
def test_unusable_labels_are_refused(labels, classes):
    with pytest.raises(BadInput, match=r"\.$"):
        Dataset.from_arrays(
            pictures(3, 2, 2), None if labels is None else np.array(labels), classes=classes
        )


def test_the_number_of_classes_is_never_read_off_the_labels():
    with pytest.raises(BadInput, match="pass classes=10"):
        Dataset.from_arrays(pictures(3, 2, 2), np.array([0, 1, 2]))


def test_errors_quote_no_private_value():
    secret = 0.123456
    images = np.full((2, 3, 3), secret)
    images[1, 1, 1] = 4242.0
    with pytest.raises(BadInput) as caught:
        Dataset.from_arrays(images)
    assert "4242" not in str(caught.value)
    assert "0.123" not in str(caught.value)


def test_odd_memory_layouts_are_read_without_a_warning():
    images = pictures(4, 6, 6)
    frozen = images.copy()
    frozen.flags.writeable = False
    big_endian = (images / np.float32(255)).astype(">f4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (images[:, ::-1], frozen, big_endian):
            batch = next(Dataset.from_arrays(given).batches(4))
            assert np.array_equal(batch.values.numpy()[:, 0], given)


def test_the_torch_view_gives_float_images_and_int_labels():
    images = pictures(7, 4, 4)
    view = Dataset.from_arrays(images, np.arange(7) % 3, classes=3).torch()
    image, label = view[4]
    assert image.dtype == torch.float32
    assert torch.allclose(image[0], torch.from_numpy(images[4]) / 255)
    assert label == 1
    assert type(label) is int
    loaded = list(DataLoader(view, batch_size=3))
    assert [len(x) for x, _ in loaded] == [3, 3, 1]
    assert torch.cat([y for _, y in loaded]).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert len(list(view)) == 7, "a plain loop must end"
    assert Dataset.from_arrays(images).torch()[0][1] == -1


def test_the_printed_form_does_not_tell_the_number_of_rows():
    assert "4321" not in repr(Dataset.from_arrays(np.zeros((4321, 1, 1), np.uint8)))


# ---------------------------------------------------------------------------------------- tables

ADULT = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", low=0, high=120),
        Column(name="job", kind="categorical", categories=("clerk", "nurse"), missing=True),
        Column(name="school", kind="ordinal", categories=("1", "2", "3")),
    ),
    label="income",
    classes=("low", "high"),
)
ROWS: dict[str, Any] = {
    "age": np.array([30, 40, 50]),
    "job": np.array(["nurse", None, "clerk"], dtype=object),
    "school": np.array([3, 1, 2]),
    "income": np.array(["low", "high", "low"]),
    "extra": np.array([object()] * 3),
}


@pytest.mark.parametrize("kind", ["mapping", "frame", "categorical frame", "lists"])
def test_a_table_is_coded_by_the_schema(kind):
    given: Any = ROWS
    if kind != "mapping":
        given = pd.DataFrame({k: v for k, v in ROWS.items() if k != "extra"})
    if kind == "categorical frame":
        given["job"] = given["job"].astype("category")
        given["income"] = given["income"].astype("category")
        given["school"] = [3.0, 1.0, 2.0]
    if kind == "lists":
        given = {k: list(v) for k, v in ROWS.items()}
    data = Dataset.from_table(given, ADULT)
    assert data.values.dtype == np.float32
    expected = [[30, 1, 2], [40, np.nan, 0], [50, 0, 1]]
    assert np.array_equal(data.values, expected, equal_nan=True)
    assert data.labels is not None
    assert data.labels.tolist() == [0, 1, 0]
    with pytest.raises(BadInput):
        _ = data.images


@pytest.mark.parametrize(
    "change",
    [
        {"age": np.array([30, 40, 500])},
        {"age": np.array([30, np.nan, 50])},
        {"age": np.array([30, np.inf, 50])},
        {"age": np.array(["30", "40", "50"])},
        {"age": np.array([30, 40])},
        {"age": [30, "x", 50]},
        {"job": np.array(["nurse", "pilot", "clerk"])},
        {"school": np.array([3, 1, 4])},
        {"school": np.array([3.0, np.nan, 1.0])},
        {"income": np.array(["low", "middle", "low"])},
        {"income": np.array(["low", None, "low"], dtype=object)},
        {"job": np.array([b"\xff", b"a", b"b"])},
    ],
)
def test_a_table_that_leaves_its_schema_is_refused_by_column(change):
    with pytest.raises(BadInput) as caught:
        Dataset.from_table({**ROWS, **change}, ADULT)
    sentence = str(caught.value)
    assert next(iter(change)) in sentence or "columns" in sentence
    for private in ("500", "pilot", "middle"):
        assert private not in sentence


@pytest.mark.parametrize(
    ("rows", "schema", "words"),
    [
        ({k: v for k, v in ROWS.items() if k != "income"}, ADULT, "income"),
        ({k: v[:0] for k, v in ROWS.items()}, ADULT, "no rows"),
        (ROWS, Schema(kind="images", shape=(1, 2, 2)), "from_arrays"),
    ],
)
def test_what_is_no_table_of_the_schema_is_refused(rows, schema, words):
    with pytest.raises(BadInput, match=words):
        Dataset.from_table(rows, schema)


def test_rows_of_codes_are_checked_against_the_schema():
    good = np.array([[1.0, np.nan, 2.0]])
    assert len(Dataset.from_values(good, np.array([1]), schema=ADULT)) == 1
    for bad in ([[1.0, 2.0, 0.0]], [[1.0, 0.5, 0.0]], [[-1.0, 0.0, 0.0]], [[1.0, 0.0]]):
        with pytest.raises(BadInput):
            Dataset.from_values(np.array(bad), np.array([1]), schema=ADULT)
    with pytest.raises(BadInput):
        Dataset.from_values(good, None, schema=ADULT)
