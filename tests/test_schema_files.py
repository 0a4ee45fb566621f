"""Schema files: drafted from a header, checked with every mistake named, the same for editors as for us; integers and dates."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import sfumato
from sfumato.cli.main import app
from sfumato.data import Column, Dataset, Schema, as_dataset, load
from sfumato.data.draft import draft
from sfumato.data.schema import json_schema, mistakes
from sfumato.data.tables import PlainTable
from sfumato.errors import BadInput

DOCS = Path(__file__).parent.parent / "docs"
VISITS = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", type="integer", low=0, high=110, missing=True),
        Column(name="seen", kind="numerical", type="date", low="2019-01-01", high="2024-12-31"),
        Column(name="sex", kind="categorical", categories=("f", "m")),
    ),
    label="outcome",
    classes=("home", "ward"),
)
CSV = "age,seen,sex,outcome\n40,2020-02-29,f,home\n,2019-01-01,m,ward\n7,2024-12-31,f,ward\n"
DAYS = [
    (datetime.date.fromisoformat(d) - datetime.date(1970, 1, 1)).days
    for d in ("2020-02-29", "2019-01-01", "2024-12-31")
]


def arrow() -> pa.Table:
    dates = [datetime.date(2020, 2, 29), datetime.date(2019, 1, 1), datetime.date(2024, 12, 31)]
    return pa.table(
        {
            "age": pa.array([40, None, 7], pa.int32()),
            "seen": pa.array(dates, pa.date32()),
            "sex": ["f", "m", "f"],
            "outcome": ["home", "ward", "ward"],
        }
    )


# -------------------------------------------------------------------------------- integers and dates


def test_dates_are_read_from_every_kind_of_table(tmp_path):
    (tmp_path / "v.csv").write_text(CSV)
    pq.write_table(arrow(), tmp_path / "v.parquet")
    moments = arrow().set_column(1, "seen", arrow()["seen"].cast(pa.timestamp("us")))
    pq.write_table(moments, tmp_path / "m.parquet")
    text = arrow().set_column(1, "seen", arrow()["seen"].cast(pa.string()))
    pq.write_table(text, tmp_path / "t.parquet")
    frame = pd.DataFrame(arrow().to_pydict())
    found = [
        load(tmp_path / name, schema=VISITS)
        for name in ("v.csv", "v.parquet", "m.parquet", "t.parquet")
    ]
    found += [Dataset.from_table(frame, VISITS)]
    found += [Dataset.from_table(frame.assign(seen=pd.to_datetime(frame["seen"])), VISITS)]
    for data in found:
        assert data.values[:, 1].tolist() == DAYS
        assert data.values[[0, 2], 0].tolist() == [40, 7] and np.isnan(data.values[1, 0])


@pytest.mark.parametrize("cell", ["31.12.2024", "2024-13-01", "yesterday", "20241231"])
def test_what_is_no_date_is_refused_and_not_quoted(tmp_path, cell):
    (tmp_path / "v.csv").write_text(CSV.replace("2024-12-31", cell))
    with pytest.raises(BadInput, match="dates like 2024-12-31 in column 'seen'") as refusal:
        _ = load(tmp_path / "v.csv", schema=VISITS).values
    assert cell not in str(refusal.value)
    text = arrow().set_column(1, "seen", pa.array(["2020-02-29", cell, None]))
    pq.write_table(text, tmp_path / "t.parquet")
    with pytest.raises(BadInput, match="dates like"):
        _ = load(tmp_path / "t.parquet", schema=VISITS).values


def test_integers_and_dates_come_out_as_such(tmp_path):
    rng = np.random.default_rng(0)
    n = 300
    columns = {
        "age": rng.integers(0, 110, n),
        "seen": np.datetime64("2019-01-01") + rng.integers(0, 2000, n),
        "sex": rng.choice(["f", "m"], n),
        "outcome": rng.choice(["home", "ward"], n),
    }
    data = Dataset.from_table(columns, VISITS)
    model = sfumato.Mixture().fit(data, sfumato.Budget(epsilon=5, delta=1e-4))
    sample = model.sample(200, seed=0)
    numbers = sample.values[:, :2]
    known = numbers[~np.isnan(numbers)]
    assert (known == np.rint(known)).all() and len(np.unique(known)) > 20
    sample.save(tmp_path / "s.csv")
    line = (tmp_path / "s.csv").read_text().splitlines()[1].split(",")
    assert line[0] == "" or line[0].isdigit()
    assert datetime.date(2019, 1, 1) <= datetime.date.fromisoformat(line[1].strip('"'))
    sample.save(tmp_path / "s.parquet")
    kinds = pq.read_schema(tmp_path / "s.parquet")
    assert kinds.field("age").type == pa.int64() and kinds.field("seen").type == pa.date32()
    for name in ("s.csv", "s.parquet"):
        assert np.array_equal(load(tmp_path / name).values, sample.values, equal_nan=True)


def test_a_range_of_dates_is_written_as_text_and_read_again():
    facts = VISITS.to_json()
    assert facts["columns"][1] == {
        "name": "seen",
        "kind": "numerical",
        "low": "2019-01-01",
        "high": "2024-12-31",
        "type": "date",
    }
    assert Schema.from_json(facts) == VISITS
    assert "type" not in Column(name="x", kind="numerical", low=0, high=1).to_json()


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (
            {"type": "date", "low": "1.1.2020", "high": "2021-01-01"},
            "`low` of column 'x' is no date",
        ),
        ({"type": "integer", "low": 0.5, "high": 3}, "no whole number"),
        ({"type": "text", "low": 0, "high": 3}, "real, integer or date"),
        ({"low": "2020-01-01", "high": "2021-01-01"}, "no finite number"),
        ({"kind": "categorical", "categories": ["a"], "type": "date"}, "only numerical ones do"),
    ],
)
def test_a_type_that_does_not_fit_is_refused(facts, sentence):
    with pytest.raises(BadInput, match=sentence):
        Column.from_json({"name": "x", "kind": "numerical", **facts})


# -------------------------------------------------------------------------------------------- drafts


def test_a_draft_reads_no_row(tmp_path, monkeypatch):
    pq.write_table(arrow(), tmp_path / "v.parquet")
    (tmp_path / "v.csv").write_text(CSV)
    monkeypatch.setattr(PlainTable, "_pieces", lambda *_: pytest.fail("a row was read"))
    found = draft(tmp_path / "v.parquet", "outcome")
    assert found["label"] == "outcome" and found["classes"] is None
    by_name = {column["name"]: column for column in found["columns"]}
    assert list(by_name) == ["age", "seen", "sex"]
    assert (by_name["age"]["kind"], by_name["age"]["type"]) == ("numerical", "integer")
    assert by_name["seen"]["type"] == "date" and by_name["seen"]["low"] is None
    assert by_name["sex"]["categories"] is None
    text = json.dumps(found) + json.dumps(draft(tmp_path / "v.csv"))
    for private in ("40", "2020", "home", "ward"):
        assert private not in text
    assert all(column["kind"] is None for column in draft(tmp_path / "v.csv")["columns"])


def test_a_draft_is_no_schema_until_it_is_filled_in(tmp_path):
    (tmp_path / "v.csv").write_text(CSV)
    runner = CliRunner()
    made = runner.invoke(app, ["schema", "draft", str(tmp_path / "v.csv"), "--label", "outcome"])
    assert made.exit_code == 0 and "no row was read" in made.output
    file = tmp_path / "v.schema.json"
    checked = runner.invoke(app, ["schema", "check", str(file)])
    assert checked.exit_code == 2 and "Column 3: Column 'sex'" in checked.output
    again = runner.invoke(app, ["schema", "draft", str(tmp_path / "v.csv")])
    assert again.exit_code == 6
    facts = json.loads(file.read_text())
    for column, told in zip(facts["columns"], VISITS.to_json()["columns"], strict=True):
        column.update(told)
    facts["classes"] = ["home", "ward"]
    file.write_text(json.dumps(facts))
    assert runner.invoke(app, ["schema", "check", str(file)]).exit_code == 0
    assert load(tmp_path / "v.csv").schema == VISITS


@pytest.mark.parametrize(
    "row",
    [
        "1957-03-02,Smith,ill",
        "Smith,67",
        "Smith,-1.5e3",
        "Smith,",
        "Smith,12:30",
        "Smith,1.234,5",
        "a,NA",
        "Smith,3/4/57",
    ],
)
def test_a_record_in_the_first_line_does_not_become_a_schema(tmp_path, row):
    table, out = tmp_path / "v.csv", tmp_path / "v.schema.json"
    table.write_text(f"{row}\nJones,1,2\n")
    refused = CliRunner().invoke(app, ["schema", "draft", str(table)])
    assert refused.exit_code == 2 and not out.exists()
    assert "looks like a record" in refused.output and "Smith" not in refused.output


def test_numbers_are_names_when_the_owner_says_so_and_the_schema_reads_the_table(tmp_path):
    table, out = tmp_path / "v.csv", tmp_path / "v.schema.json"
    table.write_text("region,2019,2020-06\n" + "north,3,4\n" * 9)
    refused = CliRunner().invoke(app, ["schema", "draft", str(table)])
    assert refused.exit_code == 2 and "--header" in refused.output and not out.exists()
    made = CliRunner().invoke(app, ["schema", "draft", str(table), "--header"])
    assert made.exit_code == 0 and "columns: region, 2019, 2020-06." in made.output
    facts = json.loads(out.read_text())
    facts["columns"][0] |= {"kind": "categorical", "categories": ["north", "south"]}
    for column in facts["columns"][1:]:
        column |= {"kind": "numerical", "low": 0, "high": 10}
    out.write_text(json.dumps(facts))
    assert load(table).values[0].tolist() == [0, 3, 4]


def test_a_column_without_a_name_is_refused_whatever_is_said(tmp_path):
    (tmp_path / "v.csv").write_text("2019,\n1,2\n")
    refused = CliRunner().invoke(app, ["schema", "draft", str(tmp_path / "v.csv"), "--header"])
    assert refused.exit_code == 2 and "no name" in refused.output


def test_what_was_taken_for_the_header_is_shown(tmp_path):
    (tmp_path / "v.csv").write_text("age_2,x1,outcome\n1,2,3\n")
    made = CliRunner().invoke(app, ["schema", "draft", str(tmp_path / "v.csv"), "--label", "x1"])
    assert made.exit_code == 0
    assert "Line 1 is taken for the header; columns: x1, age_2, outcome." in made.output


@pytest.mark.parametrize("text", ["2020-01-01", "1970-01-02"])
@pytest.mark.parametrize("dtype", ["str", "string", object])
def test_dates_in_a_column_of_text_are_read(text, dtype):
    low, high = "1900-01-01", "2030-01-01"
    day = {"name": "d", "kind": "numerical", "type": "date", "low": low, "high": high}
    schema = Schema.from_json({"kind": "table", "columns": [day]})
    frame = pd.DataFrame({"d": pd.Series([text, "2021-01-01"], dtype=dtype)})
    days = [(np.datetime64(t) - np.datetime64("1970-01-01")).astype(int) for t in frame["d"]]
    assert as_dataset(frame, schema=schema).values[:, 0].tolist() == days


@pytest.mark.parametrize(
    ("name", "content", "label", "sentence"),
    [
        ("v.csv", b"a,a\n1,2\n", None, "Two columns of .* have one name"),
        ("v.csv", b"a,b\n1,2\n", "c", "no column 'c'"),
        ("v.csv", b"", None, "no header"),
        ("v.txt", b"a,b\n", None, "no table"),
        ("v.parquet", b"PAR1", None, "truncated, damaged"),
    ],
)
def test_what_cannot_be_drafted_is_refused(tmp_path, name, content, label, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=sentence):
        draft(tmp_path / name, label)


# --------------------------------------------------------------------------------------- JSON Schema

COLUMN = {"name": "x", "kind": "numerical", "low": 0, "high": 1}
SOUND = [
    VISITS.to_json(),
    {
        "kind": "images",
        "shape": [1, 8, 8],
        "classes": ["a", "b"],
        "value_range": [0, 1],
        "fit": "pad",
    },
    {"$schema": "./x.json", "comment": ["why", "not"], "kind": "table", "columns": [COLUMN]},
    *(entry.schema.to_json() for entry in sfumato.data.list_named()),
]
WRONG = [
    [],
    {"kind": "pictures", "shape": [1, 8, 8]},
    {"kind": "images"},
    {"kind": "images", "shape": [8, 8]},
    {"kind": "images", "shape": [1, 8, 8], "columns": [COLUMN]},
    {"kind": "images", "shape": [1, 8, 8], "fit": "squeeze"},
    {"kind": "images", "shape": [1, 8, 8], "value_range": [0]},
    {"kind": "table"},
    {"kind": "table", "columns": [{"name": "x", "kind": "numerical", "low": 0}]},
    {"kind": "table", "columns": [{**COLUMN, "categories": ["a"]}]},
    {"kind": "table", "columns": [{**COLUMN, "maximum": 3}]},
    {"kind": "table", "columns": [{"name": "x", "kind": "categorical"}]},
    {"kind": "table", "columns": [{"name": "x", "kind": "ordinal", "categories": ["a", "a"]}]},
    {"kind": "table", "columns": [COLUMN], "label": "y"},
    {"kind": "table", "columns": [COLUMN], "fit": "pad"},
]


def test_editors_and_sfumato_agree_about_schema_files():
    rules = jsonschema.Draft202012Validator(json_schema())
    rules.check_schema(json_schema())
    for facts in SOUND:
        rules.validate(facts)
        assert mistakes(facts) == []
    for facts in WRONG:
        assert not rules.is_valid(facts), facts
        assert mistakes(facts), facts


def test_the_file_for_editors_is_what_the_code_says():
    assert json.loads((DOCS / "sfumato-schema.json").read_text()) == json_schema()


def test_every_mistake_is_named(tmp_path):
    file = tmp_path / "x.schema.json"
    columns = [{"name": "a", "kind": "numerical", "low": 2, "high": 1}, {"name": "b"}, COLUMN]
    file.write_text(json.dumps({"kind": "table", "columns": columns}))
    assert len(mistakes(json.loads(file.read_text()))) == 2
    (tmp_path / "x.csv").write_text("a,b,x\n1,2,3\n")
    with pytest.raises(BadInput, match=r"low must be less.*\(1 more; sfumato schema check"):
        load(tmp_path / "x.csv")
    file.write_text('{"kind": "table",\n "columns": [}')
    with pytest.raises(BadInput, match="in line 2"):
        load(tmp_path / "x.csv")
