"""A person counts once: whose records they are, and that all of them together move a sum by no more than one record may."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import sfumato
from runs import refused, silent, still, succeed
from sfumato.data import Batch, Dataset, Schema, load
from sfumato.data.units import RECORDS, Unit, Units
from sfumato.errors import BadInput
from sfumato.methods import get_method
from sfumato.privacy import (
    Budget,
    FeatureMap,
    GroupSum,
    Ledger,
    OuterMap,
    PrivateData,
    ShardStates,
    ShardSum,
    enforced_bound,
)
from sfumato.privacy.bounding import summand_of
from sfumato.privacy.units import SHARES, UnitRows, shares_of, size_of

WIDE = Budget(epsilon=1e6, delta=0.1)


class Pixels(FeatureMap):
    """Pixels by class."""

    dim, bound, segments, non_negative = 16, 1.0, 2, True

    def __call__(self, batch: Batch) -> torch.Tensor:
        return batch.pixels().flatten(1) / 4

    def segment_of(self, batch: Batch) -> torch.Tensor | None:
        return batch.labels


class Squares(OuterMap):
    left = right = 16
    left_bound = right_bound = 1.0
    symmetric = True

    def factors(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        rows = batch.pixels().flatten(1) / 4
        return rows, rows


class Whose(FeatureMap):
    """One-hot of what the first pixel says: whose record it is."""

    dim, bound = 64, 1.0

    def __call__(self, batch: Batch) -> torch.Tensor:
        return torch.nn.functional.one_hot(batch.values[:, 0, 0, 0].long() % 64, 64).float()


def images(units: np.ndarray, per_unit: int | None = None, seed: int = 0) -> Dataset:
    """A record for each entry of `units`, whose first pixel tells its unit."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(units), 1, 4, 4), dtype=np.uint8)
    pixels[:, 0, 0, 0] = units
    labels = np.arange(len(units)) % 2
    return Dataset.from_arrays(pixels, labels, classes=2, unit=units, per_unit=per_unit)


def behind_the_wall(data: Dataset) -> PrivateData:
    """The wall without noise."""
    return PrivateData(data, Ledger(WIDE), discrete_sampler=still, fast_sampler=silent)


# -- shares ------------------------------------------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8), at_most=st.integers(1, 256))
@settings(max_examples=200)
def test_shares_of_a_unit_add_up_to_one_record_whoever_is_drawn(sizes, at_most):
    unit_of = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    shares = shares_of(unit_of, at_most)
    whole = 1 if at_most == 1 else SHARES
    for unit, size in enumerate(sizes):
        mine = shares[unit_of == unit]
        assert mine.sum() == whole
        counted = mine[mine > 0]
        assert len(counted) == min(size, at_most)
        assert counted.max() - counted.min() <= 1


def test_which_records_are_drawn_does_not_follow_their_order():
    drawn = np.array([shares_of(np.zeros(4, np.int64), 2) > 0 for _ in range(4_000)]).mean(axis=0)
    assert np.abs(drawn - 0.5).max() < 5 * 0.5 / np.sqrt(4_000)
    more = np.array([shares_of(np.zeros(3, np.int64), 3) == 86 for _ in range(3_000)]).mean(axis=0)
    assert np.abs(more - 1 / 3).max() < 5 * np.sqrt(2 / 9 / 3_000)


# -- sums --------------------------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32 - 1),
    units=st.integers(1, 6),
    n=st.integers(1, 40),
    at_most=st.sampled_from([1, 2, 7, 64, 256]),
    phi=st.sampled_from([Pixels(), Squares()]),
)
@settings(max_examples=300, deadline=None)
def test_neighbour_all_images_of_a_unit_move_a_sum_by_at_most_the_bound(
    seed, units, n, at_most, phi
):
    random = np.random.default_rng(seed)
    unit_of = random.integers(0, units, n)
    rows = UnitRows(images(unit_of, at_most, seed % 1000))
    batch = rows.take(np.arange(n))
    summand = summand_of(phi, rows.shares)
    keep = torch.from_numpy(unit_of != unit_of[0])
    assert batch.labels is not None
    assert batch.shares is not None
    without = Batch(batch.values[keep], batch.labels[keep], batch.shares[keep])
    moved = (summand(batch) - summand(without)).to(torch.float64) * summand.grid
    assert float(moved.norm()) <= enforced_bound(phi)
    # Replaced by anybody else's, it moves by the ratio that is charged.
    other = replace(
        batch, values=torch.where(keep.view(-1, 1, 1, 1), batch.values, 255 - batch.values)
    )
    moved = (summand(batch) - summand(other)).to(torch.float64) * summand.grid
    assert float(moved.norm()) <= phi.replace_ratio * enforced_bound(phi)


@pytest.mark.parametrize("phi", [Pixels(), Squares()], ids=["filed", "product"])
@pytest.mark.parametrize("at_most", [1, 64])
def test_neighbour_units_whose_shares_were_lost_are_refused(phi, at_most):
    rows = UnitRows(images(np.repeat(np.arange(3), 2), at_most))
    batch, summand = rows.take(np.arange(6)), summand_of(phi, rows.shares)
    assert batch.shares is not None
    for shares in (None, batch.shares[:1], batch.shares * 2 * SHARES, -batch.shares):
        with pytest.raises(ValueError, match=r"share|counts for more"):
            summand(replace(batch, shares=shares))
    with pytest.raises(ValueError, match="share"):
        summand_of(phi)(batch)


def test_the_sum_is_over_the_means_of_units():
    unit_of = np.array([0, 1, 0, 2, 1, 0, 0, 2])
    data = images(unit_of)
    found = behind_the_wall(data).noisy_sum(Pixels(), 1.0, label="x").value
    pixels = torch.from_numpy(data.images).flatten(1).double() / 255 / 4
    labels = torch.from_numpy(data.labels)
    expected = torch.zeros(2, 16, dtype=torch.float64)
    for unit in range(3):
        mine = torch.from_numpy(unit_of == unit)
        for code in range(2):
            expected[code] += (pixels * (mine & (labels == code))[:, None]).sum(0) / mine.sum()
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("per_unit", [1, 64])
@pytest.mark.parametrize("phi", [Pixels(), Squares()], ids=["filed", "product"])
def test_a_set_where_each_record_is_a_unit_gives_the_sums_of_records(per_unit, phi):
    n = 1100
    rng = np.random.default_rng(1)
    pixels, labels = rng.integers(0, 256, (n, 1, 4, 4), dtype=np.uint8), rng.integers(0, 2, n)
    plain = Dataset.from_arrays(pixels, labels, classes=2)
    own = Dataset.from_arrays(pixels, labels, classes=2, unit=rng.permutation(n), per_unit=per_unit)
    sums = [behind_the_wall(d).noisy_sum(phi, 1.0, label="x") for d in (plain, own)]
    assert torch.equal(sums[0].value, sums[1].value)
    assert sums[0].charge == sums[1].charge
    if per_unit == 1:
        assert torch.equal(sums[0].units, sums[1].units)
    stepped = []
    for data in (plain, own):
        steps = behind_the_wall(data).poisson_steps(
            1.0, 1, 1.0, bound=enforced_bound(phi), label="x"
        )
        stepped.append(next(steps).noisy_sum(phi))
    assert torch.equal(*stepped)


@pytest.mark.parametrize("name", ["merf", "mixture", "gan", "gs-wgan", "sinkhorn"])
def test_plans_do_not_change_with_units(name):
    method = get_method(name)(**get_method(name).TINY)
    schema, budget = images(np.arange(4)).schema, Budget(epsilon=1, delta=1e-5)
    schema = replace(schema, shape=(1, 16, 16))
    patient = Unit("patient", "the column 'patient_id'", 64)
    plain, own = method.promise(schema, budget), method.promise(schema, budget, patient)
    assert plain.charges == own.charges
    assert plain.epsilon == own.epsilon


def test_poisson_samples_are_of_whole_units():
    unit_of = np.random.default_rng(2).permutation(np.repeat(np.arange(64), 5))
    wall = behind_the_wall(images(unit_of))
    sizes = []
    for step in wall.poisson_steps(0.5, 200, 1.0, bound=enforced_bound(Whose()), label="x"):
        found = step.noisy_sum(Whose())[0]
        assert set(found.tolist()) <= {0.0, 1.0}
        sizes.append(float(found.sum()))
    # Units, not records, are drawn by the rate: 32 of 64 with a deviation of 4.
    assert abs(np.mean(sizes) - 32) < 5 * 4 / np.sqrt(200)
    assert np.std(sizes) > 2.5


def told(batch: Batch) -> torch.Tensor:
    """How many records of each unit a group has."""
    return torch.bincount(batch.values[:, 0, 0, 0].long(), minlength=64).to(torch.float32)


def test_groups_and_shards_hold_whole_units():
    unit_of = np.random.default_rng(3).permutation(np.repeat(np.arange(64), 3))
    wall = behind_the_wall(images(unit_of))
    seen: list[torch.Tensor] = []

    def note(batch: Batch, *_: object) -> torch.Tensor:
        seen.append(told(batch))
        return torch.zeros(1)

    groups = GroupSum(note, dim=1, bound=1.0, groups=4)
    steps = wall.poisson_steps(0.7, 5, 1.0, bound=groups.enforced, label="g", summands="groups")
    for step in steps:
        step.noisy_groups(groups)
    states = ShardStates(lambda *_: None, shards=5)
    shards = ShardSum(note, dim=1, bound=1.0, states=states)
    steps = wall.poisson_steps(0.7, 5, 1.0, bound=shards.enforced, label="s", summands="shards")
    for step in steps:
        step.noisy_shards(shards)
    assert len(seen) > 20
    assert set(torch.cat(seen).tolist()) == {0.0, 3.0}


def test_of_a_unit_with_many_records_as_many_as_stated_count():
    wall = behind_the_wall(images(np.repeat(np.arange(4), 30), per_unit=8))
    seen: list[torch.Tensor] = []

    def note(batch: Batch) -> torch.Tensor:
        seen.append(told(batch))
        return torch.zeros(1)

    groups = GroupSum(note, dim=1, bound=1.0)
    steps = wall.poisson_steps(1.0, 1, 1.0, bound=groups.enforced, label="g", summands="groups")
    next(steps).noisy_groups(groups)
    assert seen[0][:4].tolist() == [8.0] * 4
    found = wall.noisy_sum(Whose(), 1.0, label="x").value[0]
    assert found[:4].tolist() == [1.0] * 4


def test_the_number_of_units_is_what_is_public():
    data = images(np.array([0, 0, 1, 5, 5, 5]))
    assert size_of(data) == 3
    assert behind_the_wall(data).size == 3
    assert "3" not in repr(data.units)


# -- readers -----------------------------------------------------------------------------------------------------------------


def scans(folder: Path, *, nested: bool = False, patients: int = 6) -> Path:
    """Pictures of patients in two classes: NORMAL/person3_1.png, or NORMAL/person3/1.png."""
    rng = np.random.default_rng(0)
    for patient in range(patients):
        for number in range(patient + 1):
            kind = "NORMAL" if (patient + number) % 2 else "SICK"
            name = f"person{patient}/{number}.png" if nested else f"person{patient}_{number}.png"
            file = folder / kind / name
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(file)
    return folder


def sizes(data: Dataset) -> list[int]:
    assert data.units is not None
    return sorted(np.bincount(data.units.codes(len(data))).tolist())


@pytest.mark.parametrize("nested", [False, True])
def test_units_of_a_folder(tmp_path, nested):
    folder = scans(tmp_path / "scans", nested=nested)
    rule = "folder" if nested else r"(?P<patient>person\d+)"
    data = load(folder, image_size=8, channels=1, unit=rule)
    assert sizes(data) == [1, 2, 3, 4, 5, 6]  # the same person in both classes is one
    assert data.unit.name == ("folder" if nested else "patient")


def test_units_of_tables_and_arrays(tmp_path):
    who = ["b", "a", "b", "c", "b"]
    schema = Schema.from_json(
        {"kind": "table", "columns": [{"name": "x", "kind": "numerical", "low": 0, "high": 1}]}
    )
    table = pa.table({"x": [0.1] * 5, "patient_id": who})
    pq.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("patient_id,x\n" + "".join(f"{w},0.1\n" for w in who))
    for name in ("t.parquet", "t.csv"):
        data = load(tmp_path / name, schema=schema, unit="patient_id")
        assert sizes(data) == [1, 1, 3]
        assert data.unit == Unit("patient", "the column 'patient_id'", 64)
        assert [len(b) for b in data.batches(2)] == [2, 2, 1]
    pixels = np.zeros((5, 4, 4), np.uint8)
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", images=pixels, patient=np.array(who))
        assert sizes(load(tmp_path / "a.npz", unit="patient", per_unit=2)) == [1, 1, 3]
    columns = {"x": [0.1] * 5, "patient_id": who}
    assert sizes(Dataset.from_table(columns, schema, unit="patient_id")) == [1, 1, 3]
    assert load("digits:train", unit="record").unit == RECORDS


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ({"unit": "person("}, "no regular expression"),
        ({"unit": r"person\d+"}, "exactly one group"),
        ({"unit": r"person(\d+)_(\d+)"}, "exactly one group"),
        ({"unit": r"nobody(\d+)"}, "Some records have no unit by that rule"),
        ({"unit": "folder"}, "Some records have no folder of their own"),
        ({"unit": r"person(\d+)", "per_unit": 0}, "At most 1 to 256 records"),
        ({"unit": r"person(\d+)", "per_unit": 1000}, "At most 1 to 256 records"),
        ({"unit": "(person\udcff)"}, "What a unit is called must be text in UTF-8"),
        ({"per_unit": 5}, "say by --unit what a unit is"),
        ({"unit": np.zeros(3)}, "`unit` must be a flat array"),
        ({"unit": ["a"] * 21 + [None]}, "`unit` must be a flat array"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused_in_one_sentence(tmp_path, stated, sentence):
    folder = scans(tmp_path / "scans")
    with pytest.raises(BadInput, match=re.escape(sentence)):
        size_of(load(folder, image_size=8, channels=1, **stated))


def test_missing_and_unknown_units_are_refused_without_a_cell(tmp_path):
    (tmp_path / "t.csv").write_text("who,x\nsecret,0.1\n,0.2\n")
    schema = Schema.from_json(
        {"kind": "table", "columns": [{"name": "x", "kind": "numerical", "low": 0, "high": 1}]}
    )
    with pytest.raises(BadInput, match="Some records have no 'who'") as error:
        size_of(load(tmp_path / "t.csv", schema=schema, unit="who"))
    assert "secret" not in str(error.value)
    with pytest.raises(BadInput, match="no column 'whom'"):
        load(tmp_path / "t.csv", schema=schema, unit="whom")
    np.savez(tmp_path / "a.npz", images=np.zeros((3, 4, 4), np.uint8), who=np.zeros(2, np.int64))
    with pytest.raises(BadInput, match="not one whole number or text for each record"):
        load(tmp_path / "a.npz", unit="who")
    with pytest.raises(BadInput, match="does not say what a unit 'else' is"):
        load(tmp_path / "a.npz", unit="else")


NUMBERS = Schema.from_json(
    {"kind": "table", "columns": [{"name": "x", "kind": "numerical", "low": 0, "high": 1}]}
)


def test_blanks_around_a_name_make_no_other_person(tmp_path):
    (tmp_path / "t.csv").write_text('who,x\n7,0.1\n 7,0.1\n7 ,0.1\n"7",0.1\n07,0.1\n')
    assert sizes(load(tmp_path / "t.csv", schema=NUMBERS, unit="who")) == [1, 4]


@pytest.mark.parametrize("cell", ["NA", "nan", "null", "?", "None", "  "])
def test_a_unit_that_is_written_as_missing_is_nobody(tmp_path, cell):
    (tmp_path / "t.csv").write_text(f"who,x\na,0.1\n{cell},0.1\n{cell},0.1\n")
    with pytest.raises(BadInput, match="Some records have no 'who'"):
        size_of(load(tmp_path / "t.csv", schema=NUMBERS, unit="who"))
    pixels = np.zeros((3, 4, 4), np.uint8)
    for values in (["a", cell, cell], np.array([b"a", b"", b""]), ["a", float("nan"), "b"]):
        with pytest.raises(BadInput, match="Some records have no 'unit'"):
            Dataset.from_arrays(pixels, unit=values)


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        (pa.array([[1], [1]]), "something else than numbers or text"),
        (pa.array([{"a": 1}, {"a": 2}]), "something else than numbers or text"),
        (pa.array([2**62, 1], pa.timestamp("us")), "not a table"),
        (pa.array([b"", b"a"]), "Some records have no 'who'"),
    ],
)
def test_cells_that_tell_no_unit_are_refused_without_a_cell(tmp_path, cells, sentence):
    pq.write_table(pa.table({"x": [0.1] * 2, "who": cells}), tmp_path / "t.parquet")
    with pytest.raises(BadInput, match=sentence) as error:
        size_of(load(tmp_path / "t.parquet", schema=NUMBERS, unit="who"))
    assert str(2**62) not in str(error.value)
    assert error.value.__context__ is None or error.value.__suppress_context__


def test_of_two_columns_of_one_name_none_tells_the_unit(tmp_path):
    (tmp_path / "t.csv").write_text("who,who,x\n1,2,0.1\n1,3,0.1\n")
    with pytest.raises(BadInput, match="has two columns 'who'"):
        load(tmp_path / "t.csv", schema=NUMBERS, unit="who")


@pytest.mark.parametrize("rule", ["(a){99999999999}", "(" * 5000 + ")" * 5000])
def test_a_rule_beyond_counting_is_refused(tmp_path, rule):
    with pytest.raises(BadInput, match="no regular expression"):
        load(scans(tmp_path / "scans"), image_size=8, channels=1, unit=rule)


# -- plans ---


@pytest.mark.parametrize("relation", ["zero-out", "replace-one", "add-remove"])
def test_a_plan_counts_units_where_their_number_is_public_and_is_what_a_fit_does(
    tmp_path, monkeypatch, relation
):
    rng = np.random.default_rng(0)
    (tmp_path / "t.csv").write_text(
        "x,y,who\n"
        + "".join(f"{a:.3f},{b:.3f},p{i % 60}\n" for i, (a, b) in enumerate(rng.random((300, 2))))
    )
    (tmp_path / "t.schema.json").write_text(json.dumps(NUMBERS.to_json()))
    words = ("mixture", "--data", tmp_path / "t.csv", "--unit", "who", "--neighbours", relation)
    words += ("--epsilon", 8, "--delta", 0.02)  # above 1/60
    read: list[int] = []
    counted = Units.codes
    monkeypatch.setattr(Units, "codes", lambda *a: read.append(1) or counted(*a))
    told = succeed("plan", *words)
    plan = json.loads(succeed("plan", *words, "--json").stdout)
    if relation == "add-remove":
        assert not read and plan["size"] is None and "No row was read" in told.stdout
        assert "Warning" not in told.stderr and "60" not in told.stdout
        return
    assert plan["size"] == 60 and "(n = 60 whos)" in told.stdout
    assert "nothing was read but whose they are, to count 60 whos" in told.stdout
    assert "not below 1/n = 0.017" in told.stderr  # of units, not 0.0033 of records
    succeed("fit", *words, "--out", tmp_path / "run", "--quiet")
    assert plan["releases"] == json.loads((tmp_path / "run/statement.json").read_text())["releases"]


# -- runs --------------------------------------------------------------------------------------------------------------------


def test_a_run_says_whom_it_protects_and_not_how_many_records_there_are(tmp_path):
    folder = scans(tmp_path / "scans", patients=45)  # 1035 records
    out = tmp_path / "run"
    facts = ("--data", folder, "--image-size", 8, "--channels", 1)
    who = ("--unit", r"(?P<patient>person\d+)", "--per-unit", 4)
    budget = ("--epsilon", 30, "--delta", 1e-4)  # no noise can lose a class
    tiny = ("--set", "features=20", "--set", "steps=2")
    planned = succeed("plan", "merf", *facts, *budget, *who, *tiny).output
    assert "one patient with all its records is left out" in planned
    assert "(n = 45 patients)" in planned
    made = succeed("fit", "merf", *facts, *budget, *who, *tiny, "--out", out)
    assert "one patient with all its records" in made.output
    assert "at most 4" in made.output or "more than 4" in made.output
    config = json.loads((out / "config.json").read_text())
    assert config["data"]["size"] == 45
    assert config["unit"]["name"] == "patient"
    statement = json.loads((out / "statement.json").read_text())
    assert statement["unit"] == "one patient"
    assert statement["units"]["at_most"] == 4
    succeed("verify", out)
    real = (
        "--real",
        folder,
        "--train",
        folder,
        "--metrics",
        "memorisation.share,curve.effective",
        "-n",
        20,
    )
    judged = succeed("evaluate", out, *real, "--quiet").output
    page = succeed("report", out)
    told = (out / "report.html").read_text()
    assert "one patient" in told
    assert "person" in told  # the rule
    for file in out.iterdir():
        if file.suffix in (".json", ".jsonl", ".html"):
            words = re.sub(r"data:[^\s\"')]*", "", file.read_text())
            assert not re.search(r"\b1,?035\b", words), file
    assert not re.search(r"1,?035", made.output + page.output + planned + judged)
    # What is loaded, resumed or trained again says the same.
    assert sfumato.Merf.load(out).statement_.unit.name == "patient"
    again = tmp_path / "again"
    succeed("fit", "merf", "--from-release", out, "--set", "steps=3", "--out", again)
    assert json.loads((again / "statement.json").read_text())["unit"] == "one patient"
    changed = tmp_path / "changed"
    shutil.copytree(out, changed)
    with contextlib.closing(sqlite3.connect(changed / "run.sqlite")) as db, db:
        db.execute(
            "UPDATE facts SET value = replace(value, '\"at_most\": 4', '\"at_most\": 1') WHERE name = 'config'"
        )
    assert "protects others than the settings say" in refused(5, "report", changed)
    succeed("fit", "merf", *facts, *budget, *who, *tiny, "--out", out, "--resume")
    sentence = refused(6, "fit", "merf", *facts, *budget, *tiny, "--out", out, "--resume")
    assert "begun with other settings (unit)" in sentence


@pytest.mark.parametrize("name", ["merf", "hp", "mixture", "gan", "sinkhorn", "gs-wgan", "llm"])
def test_methods_fit_persons_with_several_images(name):
    rng = np.random.default_rng(0)
    unit = np.repeat(np.arange(40), 3)
    pixels = rng.integers(0, 256, (120, 1, 16, 16), dtype=np.uint8)
    data = Dataset.from_arrays(pixels, np.arange(120) % 2, classes=2, unit=unit)
    cls = get_method(name)
    made = cls(**cls.TINY).fit(data, Budget(epsilon=1, delta=1e-3))
    assert made.statement_.unit.name == "unit"
    if made.info.makes == "records":
        assert len(made.sample(6, seed=0)) == 6
