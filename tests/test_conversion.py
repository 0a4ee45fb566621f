"""Records out to other libraries, some of them by class or label, and what a notebook shows of them and of private ones."""

from __future__ import annotations

import io

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

import sfumato
from data import SHOP, digits, shop, stripes
from sfumato.data import Dataset
from sfumato.errors import BadInput
from sfumato.evaluation.metrics import Evaluation, Metric

BUDGET = sfumato.Budget(epsilon=8.0, delta=1e-5)


@pytest.fixture(scope="module")
def model() -> sfumato.Mixture:
    return sfumato.Mixture().fit(digits(300), BUDGET)


@pytest.fixture(scope="module")
def made(model) -> Dataset:
    return model.sample(40, seed=1)


@pytest.fixture(scope="module")
def table() -> Dataset:
    return shop(50)


# ------------------------------------------------------------------------------------------ sample


def test_without_a_seed_each_sample_is_another_and_tells_its_seed(model):
    first, second = model.sample(20), model.sample(20)
    assert not np.array_equal(first.images, second.images)
    seed = int(first.name.partition("seed ")[2].rstrip(")"))
    again = model.sample(20, seed=seed)
    assert np.array_equal(again.images, first.images)
    assert np.array_equal(again.labels, first.labels)


def test_labels_ask_for_very_records_and_classes_for_kinds(model):
    asked = [3, 3, 9, 0, 3]
    for labels in (asked, np.array(asked), torch.tensor(asked), [str(code) for code in asked]):
        made = model.sample(labels=labels, seed=0)
        assert made.labels.tolist() == asked and made.images.shape == (5, 1, 8, 8)
    some = model.sample(30, classes=["7", 2], seed=0)
    assert set(some.labels.tolist()) == {7, 2}
    assert set(model.sample(9, classes=4, keep=0.5).labels.tolist()) == {4}
    # The released shares among those asked for.
    shares = model.shares_[[2, 7]] / model.shares_[[2, 7]].sum()
    counts = np.bincount(model.sample(1000, classes=(2, 7)).labels, minlength=10)[[2, 7]]
    assert np.abs(counts / 1000 - shares.numpy()).max() <= 1e-3


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        ({}, "whole number"),
        ({"n": 3, "labels": [1]}, "leave n"),
        ({"labels": [1], "classes": [1]}, "leave n"),
        ({"labels": []}, "names or codes"),
        ({"labels": 3}, "names or codes"),
        ({"labels": [10]}, "none of the classes"),
        ({"labels": [-1]}, "none of the classes"),
        ({"labels": [True]}, "none of the classes"),
        ({"n": 3, "classes": ["shoe"]}, "none of the classes"),
        ({"n": 3, "classes": []}, "names or codes"),
    ],
)
def test_classes_that_are_not_there_are_refused(model, asked, remedy):
    with pytest.raises(BadInput, match=remedy):
        model.sample(**asked)


def test_records_without_classes_have_none_to_ask_for():
    bare = sfumato.Mixture().fit(Dataset.from_arrays(digits(80).images), BUDGET)
    with pytest.raises(BadInput, match="no classes"):
        bare.sample(3, classes=[0])


def test_a_run_is_loaded_from_its_folder(model, tmp_path):
    model.save(tmp_path / "run")
    again = sfumato.load_run(tmp_path / "run")
    assert np.array_equal(again.sample(9, seed=2).images, model.sample(9, seed=2).images)


# ----------------------------------------------------------------------------------- other libraries


def test_images_as_a_hugging_face_dataset(made):
    hf = made.to_hf()
    assert hf.features == datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=[str(code) for code in range(10)]),
        }
    )
    assert hf["label"] == made.labels.tolist()
    assert all(
        np.array_equal(np.asarray(p), i[0]) for p, i in zip(hf["image"], made.images, strict=True)
    )
    back = sfumato.as_dataset(hf, image_size=8, channels=1)
    assert np.array_equal(back.images, made.images) and back.schema == made.schema


def test_images_as_arrow_and_pandas(made):
    arrow = made.to_arrow()
    cell = arrow.column("image")[3].as_py()
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(cell["bytes"]))), made.images[3, 0])
    frame = made.to_pandas()
    assert np.array_equal(np.stack(frame["image"]), made.images[:, 0])
    assert frame["label"].cat.categories.tolist() == list(made.schema.classes)
    assert np.array_equal(frame["label"].cat.codes, made.labels)
    colour = stripes(6, channels=3).to_pandas()
    assert colour["image"][0].shape == (8, 8, 3)


def test_a_table_as_pandas_arrow_and_hugging_face(table):
    frame = table.to_pandas()
    assert list(frame) == [c.name for c in SHOP.columns] + ["bought"]
    assert frame["size"].cat.ordered and not frame["colour"].cat.ordered
    for form in (frame, table.to_arrow(), table.to_polars(), table.to_hf()):
        back = sfumato.as_dataset(form, schema=SHOP)
        assert np.array_equal(back.values, table.values, equal_nan=True)
        assert np.array_equal(back.labels, table.labels)
    assert table.to_hf().features["bought"].names == ["no", "yes"]


def test_a_library_that_is_not_there_is_named(made, monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(BadInput, match=r"pip install 'sfumato\[hf\]'"):
        made.to_hf()


# ----------------------------------------------------------------------------------------- records


def test_records_by_number_slice_list_and_mask(made):
    row, label = made[3]
    assert np.array_equal(row, made.images[3]) and label == made.labels[3]
    assert np.array_equal(made[-1][0], made.images[-1])
    for index in (slice(2, 9, 3), [5, 5, -1], np.arange(4), made.labels == 3):
        some = made[index]
        assert np.array_equal(some.images, made.images[index])
        assert np.array_equal(some.labels, made.labels[index]) and some.synthetic
    assert len(list(made)) == len(made)  # a plain `for` ends
    with pytest.raises(IndexError):
        made[40]
    with pytest.raises(BadInput, match="mask"):
        made["7"]
    whose = Dataset.from_arrays(made.images, unit=np.arange(40) // 2)
    with pytest.raises(BadInput, match="without units"):
        whose[:3]


# --------------------------------------------------------------------------------------- notebooks


def test_a_notebook_shows_no_row_and_no_number_of_private_records(table):
    rows = digits(57)
    for data, number in ((rows, "57"), (table, "50")):
        html = data._repr_html_()
        assert "may be private" in html and "<img" not in html
        assert number not in html.replace("digits", "")
    age = table.to_pandas()["height"][0]
    assert f"{age}"[:6] not in table._repr_html_()
    assert "green" in table._repr_html_()  # a category is a public fact
    assert "<img" not in rows[:9]._repr_html_()  # nor does a part


def test_a_notebook_shows_what_is_synthetic_or_published(model, made):
    for data in (made, made[:5], sfumato.load("digits:test")):
        html = data._repr_html_()
        assert "data:image/png;base64," in html and f"{len(data):,}" in html
    shown = model._repr_html_()
    assert "fitted" in shown and "data:image/png" in shown and "ε = 8" in shown
    assert "not fitted" in sfumato.Merf()._repr_html_()
    for label in (c.label for c in model.statement_.charges):
        assert label in model.statement_._repr_html_()


def test_names_are_escaped():
    odd = Dataset.from_arrays(
        np.zeros((2, 4, 4), np.uint8), [0, 1], classes=["<b>", "a&b"], name="<i>"
    )
    html = odd._repr_html_()
    assert "<b>" not in html and "<i>" not in html and "&lt;b&gt;" in html


def test_an_evaluation_prints_as_a_table():
    found = [
        Metric(
            name="accuracy.cnn",
            value=0.91234,
            low=0.9,
            high=0.92,
            source="real data x",
            seconds=1.0,
        ),
        Metric(name="fid", value=12.5, low=12.5, high=12.5, source="real data x", seconds=1.0),
    ]
    text = str(Evaluation(metrics=tuple(found), n=4000, seed=0))
    lines = text.splitlines()
    assert lines[2].split() == [
        "accuracy.cnn",
        "0.9123",
        "0.9000",
        "–",
        "0.9200",
        "real",
        "data",
        "x",
    ]
    assert lines[3].split()[:3] == ["fid", "12.5000", "–"]
    assert lines[2].index("real") == lines[3].index("real")
    assert "not covered by ε" in lines[-1] and "1.0" not in text  # no durations
    html = Evaluation(metrics=tuple(found), n=4000, seed=0)._repr_html_()
    assert "0.9123" in html and "not covered by ε" in html
