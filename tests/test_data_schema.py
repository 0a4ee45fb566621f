"""A schema holds public facts, refuses nonsense and survives JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data import Column, Schema
from sfumato.errors import BadInput

names = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=8)


@st.composite
def columns(draw: st.DrawFn, name: str) -> Column:
    missing = draw(st.booleans())
    if draw(st.booleans()):
        low = draw(st.floats(-1e6, 1e6))
        high = low + draw(st.floats(1.0, 1e6))
        return Column(name=name, kind="numerical", low=low, high=high, missing=missing)
    kind = draw(st.sampled_from(["categorical", "ordinal"]))
    categories = tuple(draw(st.lists(names, min_size=1, max_size=5, unique=True)))
    return Column(name=name, kind=kind, categories=categories, missing=missing)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    classes = tuple(draw(st.lists(names, max_size=5, unique=True)))
    if draw(st.booleans()):
        side = st.integers(1, 64)
        shape = (draw(st.sampled_from([1, 3])), draw(side), draw(side))
        return Schema(kind="images", shape=shape, classes=classes)
    used = draw(st.lists(names, min_size=2, max_size=6, unique=True))
    return Schema(
        kind="table",
        columns=tuple(draw(columns(name)) for name in used[1:]),
        classes=classes,
        label=used[0] if classes else None,
    )


@given(schemas())
@settings(max_examples=60, deadline=None)
def test_a_schema_comes_back_from_json_text_unchanged(schema):
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_the_derived_facts_follow_from_the_stated_ones():
    images = Schema(kind="images", shape=(3, 4, 5), classes=("a", "b"))
    assert (images.dim, images.n_classes, images.labelled) == (60, 2, True)
    age = Column(name="age", kind="numerical", low=0, high=120)
    table = Schema(kind="table", columns=(age,))
    assert (table.shape, table.dim, table.n_classes, table.labelled) == ((1,), 1, 0, False)


def test_lists_from_json_and_tuples_from_code_make_equal_hashable_schemas():
    a = Schema(kind="images", shape=[1, 2, 2], classes=["x"])
    b = Schema(kind="images", shape=(1, 2, 2), classes=("x",))
    assert a == b
    assert hash(a) == hash(b)


@pytest.mark.parametrize(
    ("columns", "given"), [(3, "int"), (("a", "b"), "str"), ([{"name": "a"}], "dict")]
)
def test_what_is_no_column_is_told_as_such(columns, given):
    with pytest.raises(BadInput, match=f"given as {given}; write Column"):
        Schema(kind="table", columns=columns)


AGE = {"name": "age", "kind": "numerical", "low": 0, "high": 1}
X = {"name": "x", "kind": "categorical", "categories": ["a"]}
PICTURE: dict[str, Any] = {"kind": "images", "shape": [1, 2, 2]}


@pytest.mark.parametrize(
    "facts",
    [
        *([], {}, {"kind": "sounds", "shape": [1]}, {"kind": "images"}),
        *(PICTURE | {"shape": shape} for shape in ([28, 28], [2, 28, 28], [1, 0, 28], "128")),
        PICTURE | {"shape": [1, 28.0, 28]},
        *(PICTURE | {"classes": classes} for classes in ("ab", ["a", "a"], [""], [" a"], [1])),
        PICTURE | {"colour": True},
        PICTURE | {"label": "y"},
        {"kind": "table"},
        {"kind": "table", "columns": {}},
        {"kind": "table", "columns": [AGE, AGE]},
        {"kind": "table", "columns": [AGE], "shape": [2]},
        {"kind": "table", "columns": [AGE], "label": "y"},
        {"kind": "table", "columns": [AGE], "classes": ["a"]},
        {"kind": "table", "columns": [AGE], "classes": ["a"], "label": "age"},
        *(
            {"kind": "table", "columns": [column]}
            for column in (
                {"name": "x"},
                {"name": "x", "kind": "fuzzy"},
                {"name": "x", "kind": "numerical"},
                AGE | {"low": 1},
                AGE | {"high": float("inf")},
                AGE | {"low": float("nan")},
                AGE | {"categories": ["a"]},
                AGE | {"missing": "yes"},
                {"name": "x", "kind": "categorical"},
                X | {"kind": "ordinal", "categories": ["a", "a"]},
                X | {"kind": "ordinal", "low": 0},
            )
        ),
    ],
)
def test_a_schema_that_contradicts_itself_is_refused_with_a_sentence(facts):
    with pytest.raises(BadInput, match=r"[;,] .*\.$"):
        Schema.from_json(facts)
