"""Whatever holds the records gives the same Dataset; public facts are stated; a wrong thing gets a sentence with the remedy."""

from __future__ import annotations

import inspect

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from PIL import Image
from scipy.sparse import csr_array
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data import Dataset as TorchDataset

import sfumato
from data import SHOP, digits, shop
from sfumato.data import Dataset, Schema, as_dataset
from sfumato.engines import LocalEngine
from sfumato.errors import BadInput
from sfumato.methods import find_methods

NAMES = tuple("abcdefghij")


@pytest.fixture(scope="module")
def images() -> tuple[np.ndarray, np.ndarray]:
    data = digits(40)
    return data.images, data.labels


def same(made: Dataset, images: np.ndarray, labels: np.ndarray | None) -> bool:
    if labels is None:
        return made.labels is None and np.array_equal(made.images, images)
    return np.array_equal(made.images, images) and np.array_equal(made.labels, labels)


class Pairs(TorchDataset):
    """A torch data set as people write them: (picture, class)."""

    def __init__(self, images, labels, wrap=torch.from_numpy):
        self.images, self.labels, self.wrap = images, labels, wrap

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.wrap(self.images[index]), int(self.labels[index])


class Stream(IterableDataset):
    def __init__(self, images):
        self.images = images

    def __iter__(self):
        return iter(torch.from_numpy(self.images))


class Mappings(Pairs):
    """As Hugging Face's trainers want them."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return {"pixel_values": image, "labels": label, "index": index}


def picture(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image[0])


# ------------------------------------------------------------------------------------------ images


@pytest.mark.parametrize(
    "given",
    [
        lambda x, y: ((x, y), {"classes": 10}),
        lambda x, y: ((x[:, 0], y.astype(np.int16)), {"classes": 10}),
        lambda x, y: ((torch.from_numpy(x), torch.from_numpy(y)), {"classes": 10}),
        lambda x, y: ((x.tolist(), y.tolist()), {"classes": 10, "bits": 8}),
        lambda x, y: ((x, np.array(NAMES)[y]), {"classes": NAMES}),
        lambda x, y: ((x, pd.Series(np.array(NAMES)[y])), {"classes": NAMES}),
        lambda x, y: (
            (x.reshape(len(x), -1), y),
            {"schema": Schema(kind="images", shape=(1, 8, 8), classes=NAMES)},
        ),
        lambda x, y: (
            (pd.DataFrame(x.reshape(len(x), -1)), y),
            {"schema": Schema(kind="images", shape=(1, 8, 8), classes=NAMES)},
        ),
        lambda x, y: ((Pairs(x, y),), {"classes": 10}),
        lambda x, y: ((Pairs(x, y, picture),), {"classes": 10, "image_size": 8, "channels": 1}),
        lambda x, y: ((Subset(Pairs(x, y), range(len(x))),), {"classes": 10}),
        lambda x, y: ((TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),), {"classes": 10}),
        lambda x, y: ((Mappings(x, y),), {"classes": 10}),
        lambda x, y: ((DataLoader(Mappings(x, y), 7),), {"classes": 10}),
        lambda x, y: ((Stream(x), y), {"classes": 10}),
        lambda x, y: (
            ([picture(i) for i in x], y),
            {"classes": 10, "image_size": 8, "channels": 1},
        ),
        lambda x, y: ((hugging(x, y),), {"image_size": 8, "channels": 1}),
        lambda x, y: ((hugging(x, y).with_format("torch"),), {"image_size": 8, "channels": 1}),
        lambda x, y: (
            (datasets.Dataset.from_dict({"x": x[:, 0], "y": y}, features=flat_features()), "y"),
            {"classes": 10},
        ),
    ],
)
def test_images_come_from_anything(images, given):
    arguments, facts = given(*images)
    made = as_dataset(*arguments, **facts)
    if made.images.dtype == np.uint8:
        assert same(made, *images)
    else:  # a list of numbers is whole numbers of no settled range
        assert np.allclose(made.images * 255, images[0], atol=1e-4)
        assert np.array_equal(made.labels, images[1])
    assert made.schema.n_classes == 10


def hugging(images: np.ndarray, labels: np.ndarray) -> datasets.Dataset:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=list(NAMES)),
            "patient": datasets.Value("string"),
        }
    )
    whose = [f"p{index // 2}" for index in range(len(images))]
    rows = {"image": [picture(i) for i in images], "label": labels, "patient": whose}
    return datasets.Dataset.from_dict(rows, features=features)


def flat_features() -> datasets.Features:
    return datasets.Features({"x": datasets.Array2D((8, 8), "uint8"), "y": datasets.Value("int64")})


def test_a_loader_is_read_a_record_at_a_time_each_once(images):
    """A record that a sampler repeats would count as several people's, and its contribution would pass the bound."""
    data = Pairs(*images)
    often = WeightedRandomSampler([1.0] + [0.0] * 39, 200)
    for loader in (
        DataLoader(data, batch_size=7, shuffle=True, drop_last=True),
        DataLoader(data, batch_size=7, sampler=often),
    ):
        assert same(as_dataset(loader, classes=10), *images)


def test_names_of_classes_come_from_the_features_of_a_hugging_face_dataset(images):
    made = as_dataset(hugging(*images), image_size=8, channels=1)
    assert made.schema.classes == NAMES
    by_patient = as_dataset(hugging(*images), image_size=8, channels=1, unit="patient")
    assert by_patient.unit.name == "unit"
    assert np.array_equal(by_patient.units.codes(40), np.arange(40) // 2)


def test_pictures_are_brought_to_the_stated_size_and_colour():
    wide = [Image.new("RGB", (30, 20), "red"), Image.new("LA", (4, 9), (0, 0))]
    made = as_dataset(wide, image_size=6)
    assert made.schema.shape == (3, 6, 6)
    assert (made.images[0] == np.array([255, 0, 0])[:, None, None]).all()
    assert (made.images[1] == 255).all()  # transparent: on white
    padded = as_dataset(wide[:1], schema=Schema(kind="images", shape=(3, 6, 6), fit="pad"))
    assert (padded.images[0, 0, 1:5] == 255).all() and not padded.images[0, 0, [0, 5]].any()
    deep = [Image.fromarray(np.full((5, 5), 2048, np.uint16))]
    twelve = as_dataset(deep, image_size=5, channels=1, bits=12)
    assert (twelve.images == 128).all()
    with pytest.raises(BadInput, match="bits=12"):
        as_dataset(deep, image_size=5, channels=1)


def test_floats_keep_the_rule_of_from_arrays(images):
    unit = images[0].astype(np.float32) / 255
    assert np.allclose(as_dataset(unit).images, unit)
    with pytest.raises(BadInput, match="value_range"):
        as_dataset(unit * 2 - 1)
    assert np.allclose(as_dataset(unit * 2 - 1, value_range=(-1, 1)).images, unit, atol=1e-6)
    with pytest.raises(BadInput, match="black and white"):
        as_dataset(images[0].astype(np.int32))


def test_short_floats_are_read_too():
    images = torch.rand(5, 1, 8, 8).to(torch.bfloat16)
    for what in (images, TensorDataset(images)):
        assert np.array_equal(as_dataset(what).images, images.float().numpy())


def test_a_path_a_name_and_a_dataset(tmp_path, images):
    data = Dataset.from_arrays(*images, classes=10)
    assert as_dataset(data) is data
    data.save(tmp_path / "x.npz")
    assert same(as_dataset(tmp_path / "x.npz"), *images)
    assert as_dataset("digits:test").published_as == "digits:test"
    with pytest.raises(BadInput, match="alone"):
        as_dataset(data, images[1])
    with pytest.raises(BadInput, match="leave `y` out"):
        as_dataset("digits:test", images[1])


# ------------------------------------------------------------------------------------------ tables


@pytest.fixture(scope="module")
def table() -> Dataset:
    return shop(60)


@pytest.fixture(scope="module")
def frame(table) -> pd.DataFrame:
    rows = {
        c.name: np.array([*c.categories, None])[table.values[:, i].astype(int)]
        if c.categories
        else table.values[:, i]
        for i, c in enumerate(SHOP.columns)
    }
    return pd.DataFrame(rows | {"bought": np.array(SHOP.classes)[table.labels]})


@pytest.mark.parametrize(
    "given",
    [
        lambda f: (f,),
        lambda f: (f, "bought"),
        lambda f: (f.drop(columns="bought"), f["bought"]),
        lambda f: (f.drop(columns="bought"), (f["bought"] == "yes").astype(int)),
        lambda f: (
            f.drop(columns="bought"),
            torch.tensor((f["bought"] == "yes").to_numpy().astype(int)),
        ),
        lambda f: (f.astype({"colour": "category"}),),
        lambda f: (pl.from_pandas(f),),
        lambda f: (pl.from_pandas(f).lazy(),),
        lambda f: (pl.from_pandas(f).with_columns(pl.col("size").cast(pl.Categorical)),),
        lambda f: (pl.from_pandas(f).drop("bought"), pl.Series(f["bought"].to_list())),
        lambda f: (pa.Table.from_pandas(f),),
        lambda f: (pa.Table.from_pandas(f).to_batches()[0],),
        lambda f: ({name: f[name].to_numpy() for name in f},),
        lambda f: (datasets.Dataset.from_pandas(f),),
        lambda f: (datasets.Dataset.from_pandas(f).class_encode_column("bought"),),
    ],
)
def test_tables_come_from_anything(table, frame, given):
    made = as_dataset(*given(frame), schema=SHOP)
    assert np.array_equal(made.values, table.values, equal_nan=True)
    assert np.array_equal(made.labels, table.labels)


def test_rows_of_codes_with_a_schema_are_a_table(table):
    made = as_dataset(table.values, table.labels, schema=SHOP)
    assert np.array_equal(made.values, table.values, equal_nan=True)


def test_a_unit_is_a_column_or_an_array(frame):
    whose = [f"p{index // 3}" for index in range(60)]
    by_column = as_dataset(frame.assign(person_id=whose), schema=SHOP, unit="person_id", per_unit=4)
    by_array = as_dataset(frame, schema=SHOP, unit=whose)
    for made in (by_column, by_array):
        assert np.array_equal(made.units.codes(60), np.arange(60) // 3)
    assert by_column.unit.name == "person" and by_column.unit.at_most == 4


# ------------------------------------------------------------------------------------ wrong things


@pytest.mark.parametrize(
    ("what", "facts", "remedy"),
    [
        (None, {}, "NumPy arrays"),
        (3.5, {}, "NumPy arrays"),
        (object(), {}, "pass NumPy arrays"),
        ([[1, 2], [3]], {}, "NumPy arrays"),
        (np.array(["a"]), {}, "np.stack"),
        (np.zeros((3, 8, 8), complex), {}, "complex128"),
        ((np.zeros((3, 8, 8)), np.zeros(3)), {}, r"fit\(X, y\)"),
        ([{"a": 1}, {"a": 2}], {"schema": SHOP}, "pandas.DataFrame"),
        (np.zeros((3, 4)), {}, "schema="),
        (np.zeros((3, 9)), {"schema": Schema(kind="images", shape=(1, 2, 2))}, "make them agree"),
        (np.zeros((3, 8, 8)), {"schema": {"kind": "images"}}, "Schema.from_json"),
        (np.zeros((3, 8, 8)), {"image_size": 4}, "not resized"),
        (np.zeros((3, 8, 8)), {"unit": "patient"}, "a value for each record"),
        (csr_array(np.eye(3)), {}, "toarray"),
        (pd.DataFrame({"a": [1]}), {}, "schema=sfumato.Schema"),
        (pl.DataFrame({"a": [1]}), {}, "schema=sfumato.Schema"),
        (pd.Series([1]), {"schema": SHOP}, "DataFrame"),
        (pd.DataFrame({"a": [1]}), {"schema": SHOP}, "lacks the columns"),
        (pd.DataFrame({"a": [1]}), {"schema": SHOP, "classes": 2}, "its schema says it"),
        ([Image.new("L", (3, 3))], {}, "image_size="),
        (
            datasets.DatasetDict(train=datasets.Dataset.from_dict({"a": [1]})),
            {},
            r'data\["train"\]',
        ),
        (datasets.Dataset.from_dict({"a": [1]}), {}, "schema=sfumato.Schema"),
        (datasets.Dataset.from_dict({"a": [1]}).to_iterable_dataset(), {}, "streaming=False"),
        (Pairs([{}], [0], dict), {"classes": 2}, "give whole numbers"),
        (TensorDataset(*[torch.zeros(2, 1, 8, 8)] * 3), {}, r"\(record, label\)"),
    ],
)
def test_a_wrong_thing_gets_a_sentence_with_the_remedy(what, facts, remedy):
    with pytest.raises(BadInput, match=remedy):
        as_dataset(what, **facts)


def test_labels_without_stated_classes_are_refused_wherever_they_come_from(images):
    x, y = images
    for arguments in ((x, y), (Pairs(x, y),), (x, np.array(NAMES)[y])):
        with pytest.raises(BadInput, match="classes"):
            as_dataset(*arguments)
    with pytest.raises(BadInput, match="complete `classes`"):
        as_dataset(x, np.array(NAMES)[y], classes=NAMES[:3])


# --------------------------------------------------------------------------------------------- fit


def test_fit_takes_arrays_and_a_budget_in_numbers(images):
    model = sfumato.fit(
        "mixture", *images, classes=10, epsilon=2, delta=1e-5, seed=3, allow_empty=True
    )
    assert isinstance(model, sfumato.Mixture) and model.seed == 3
    assert model.statement_.budget == sfumato.Budget(epsilon=2, delta=1e-5)
    budget = sfumato.Budget(epsilon=2, delta=1e-5, neighbours="replace-one")
    again = sfumato.Mixture().fit(*images, budget, classes=10, allow_empty=True)
    assert again.statement_.budget == budget
    by_name = sfumato.fit(
        sfumato.Mixture, "digits:test", epsilon=2, delta=1e-3, neighbours="add-remove"
    )
    assert by_name.statement_.budget.neighbours is sfumato.Neighbours.ADD_REMOVE


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({}, "epsilon= and delta="),
        ({"epsilon": 1}, "epsilon= and delta="),
        ({"budget": sfumato.Budget(epsilon=1, delta=1e-5), "epsilon": 1}, "one of the two"),
        ({"budget": 1.0}, "sfumato.Budget"),
        ({"epsilon": 1, "delta": 1e-5, "public": np.zeros(3)}, "as_dataset"),
    ],
)
def test_a_budget_or_public_data_that_make_no_sense_get_a_sentence(images, given, remedy):
    with pytest.raises(BadInput, match=remedy):
        sfumato.fit("mixture", *images, classes=10, **given)


def test_a_misspelt_argument_is_told(images):
    with pytest.raises(TypeError, match="did you mean classes"):
        sfumato.fit("mixture", *images, clases=10, epsilon=1, delta=1e-5)
    with pytest.raises(BadInput, match="pass its name"):
        sfumato.fit(3, *images)


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"device": "cuda"}, TypeError, "mixture has no setting 'device'.*settings are refine"),
        ({"sed": 3}, TypeError, "did you mean seed"),
        ({"labels": "labels.csv:finding"}, TypeError, "'labels' is for paths and names only"),
        ({"per_unit": 3}, BadInput, "say by unit= whose they are"),
        ({"engine": 3}, BadInput, "engine is given as int"),
        ({"engine": LocalEngine}, BadInput, "engine is given as type"),
        ({"progress": True}, BadInput, "Progress is given as bool"),
        ({"allow_empty": "no"}, BadInput, "`allow_empty` is 'no'; pass True or False"),
        ({"stand_in": 1}, BadInput, "`stand_in` is 1; pass True or False"),
        ({"resume": "no"}, BadInput, "`resume` is 'no'; pass True or False"),
        ({"resume": True}, BadInput, "pass it as out="),
    ],
)
def test_a_wrong_argument_is_told_before_a_row_is_read(images, monkeypatch, given, kind, words):
    def read(*_, **__):
        raise AssertionError("a row was read")

    monkeypatch.setattr("sfumato.methods.base.refuse_implausible", read)
    with pytest.raises(kind, match=words):
        sfumato.fit("mixture", *images, classes=10, epsilon=1, delta=1e-5, **given)


def test_a_setting_that_is_passed_to_fit_is_sent_to_its_place(images):
    with pytest.raises(
        TypeError, match=r"'seed' is a setting of mixture; pass it to Mixture\(seed=…\)"
    ):
        sfumato.Mixture().fit(*images, classes=10, epsilon=1, delta=1e-5, seed=3)
    with pytest.raises(BadInput, match="a class or an object"):
        sfumato.fit(sfumato.Method, *images, classes=10, epsilon=1, delta=1e-5)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda schema: sfumato.Mixture().promise(schema, 1.0), "of Schema and float"),
        (
            lambda _: sfumato.Mixture().promise(None, sfumato.Budget(epsilon=1, delta=1e-5)),
            "NoneType",
        ),
        (lambda _: sfumato.Merf.preset("paper", data=3), "not for int"),
        (lambda _: sfumato.suggest_features(100, 2), "budget is given as int"),
        (lambda _: Dataset.from_table({"a": [1]}, None), 'schema of kind "table"'),
        (lambda _: Dataset.from_table(3, SHOP), "columns are given as int"),
        (lambda _: sfumato.evaluate("x.npz", "y.npz", fitted=3), "sfumato.evaluation.Fitted"),
    ],
)
def test_a_wrong_thing_gets_a_sentence_from_the_calls_beside_fit_too(ask, words):
    with pytest.raises(BadInput, match=words):
        ask(digits(5).schema)


def test_a_budget_stands_in_its_place_and_a_statement_prints_as_its_paragraph(images):
    budget = sfumato.Budget(epsilon=2, delta=1e-5)
    made = sfumato.fit("mixture", *images, budget, classes=10, allow_empty=True)
    assert made.statement_.budget == budget and str(made.statement_) == made.statement_.paragraph()


@pytest.mark.parametrize(
    "records", [torch.zeros(5, 8, 8).to_sparse(), torch.zeros(5, 8, 8, device="meta")]
)
def test_a_tensor_without_its_numbers_is_refused(records):
    with pytest.raises(BadInput, match="dense one that holds its numbers"):
        as_dataset(records)
    with pytest.raises(BadInput, match="dense one that holds its numbers"):
        as_dataset(np.zeros((5, 8, 8), np.uint8), records[:, 0, 0], classes=2)


def test_labels_to_draw_come_from_polars_too_and_nothing_else_breaks(images):
    made = sfumato.fit("mixture", *images, classes=10, epsilon=5, delta=1e-5, allow_empty=True)
    assert made.sample(labels=pl.Series([3, 8]), seed=0).labels.tolist() == [3, 8]
    for wrong in ([[0, 1]], [None], [{}], np.zeros((2, 2), int)):
        with pytest.raises(BadInput, match="none of the classes"):
            made.sample(labels=wrong)


def test_no_setting_of_a_method_is_called_as_an_argument_of_fit():
    taken = set(inspect.signature(sfumato.Method.fit).parameters)
    taken |= set(inspect.signature(as_dataset).parameters)
    for cls in find_methods().values():
        assert not taken & {s.name for s in cls.settings()}


class Told(TorchDataset):
    def __init__(self, labels):
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return np.full((8, 8), index, np.uint8), self.labels[index]


@pytest.mark.parametrize("last", [0, 1, "1", "0", 1.0, np.int8(1), torch.tensor(1)])
def test_the_type_of_one_label_re_files_no_other_record(last):
    wanted = [0, 0, 0, {"1": 0, "0": 1}.get(last, int(last))]
    images = np.zeros((4, 8, 8), np.uint8)
    for labels in ([0, 0, 0, last], pd.Series([0, 0, 0, last], dtype=object)):
        assert as_dataset(images, labels, classes=["1", "0"]).labels.tolist() == wanted
    if not isinstance(last, float):
        assert as_dataset(Told([0, 0, 0, last]), classes=["1", "0"]).labels.tolist() == wanted


TOLD = {"kind": "table", "columns": [{"name": "a", "kind": "numerical", "low": 0, "high": 9}]}


@pytest.mark.parametrize("last", [1, "p", 1.0, np.uint8(1)])
def test_the_type_of_one_label_beside_a_table_re_files_no_other_record(last):
    schema = Schema.from_json({**TOLD, "label": "y", "classes": ["n", "p"]})
    for y in ([0, 1, last], pd.Series([0, 1, last], dtype=object)):
        assert as_dataset({"a": [1, 2, 3]}, y, schema=schema).labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "y", [[0, 0, 1], [0, "1", "1"], np.array([0.0, 1, 1]), pa.array([0, 1, 1])]
)
def test_numbers_that_name_one_class_and_count_another_are_refused_beside_a_table(y):
    schema = Schema.from_json({**TOLD, "label": "y", "classes": ["1", "0"]})
    with pytest.raises(BadInput, match="could be a name or a place; pass the names"):
        as_dataset({"a": [1, 2, 3]}, y, schema=schema)
    named = as_dataset({"a": [1, 2, 3]}, ["0", "0", "1"], schema=schema)
    assert named.labels.tolist() == [1, 1, 0]


@pytest.mark.parametrize("wrong", [2, -1, 2**70, 0.5, np.nan, None, True, "x", [0]])
def test_a_label_that_is_no_class_is_refused_wherever_it_stands(wrong):
    schema = Schema.from_json({**TOLD, "label": "y", "classes": ["n", "p"]})
    with pytest.raises(BadInput):
        as_dataset(np.zeros((2, 8, 8), np.uint8), [0, wrong], classes=["n", "p"])
    with pytest.raises(BadInput):
        as_dataset({"a": [1, 2]}, [0, wrong], schema=schema)
