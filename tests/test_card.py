"""Cards of a release: what others' tools read can be read by them, and nothing stands there that the run does not publish."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runs import BUDGET, arrays_in, refused, succeed
from sfumato.errors import BadInput, CorruptArtifact, NotPublishable
from sfumato.methods import Merf, SavedRun
from sfumato.report.card import Stated, write_card, yaml_text

EVIL = 'a "quoted" name: with # and \\ and <b>'


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on images and on a table, with samples of each and a measurement."""
    folder = tmp_path_factory.mktemp("card")
    data = arrays_in(folder, train=317, test=60)
    tiny = ["--set", "features=16", "--set", "steps=5", *BUDGET, "-q"]
    words = ["--data", data["train"], "--classes", 2, "--neighbours", "add-remove"]
    succeed("fit", "merf", *words, *tiny, "--out", folder / "images")
    judge = ["--real", data["test"], "-n", 50, "--metrics", "accuracy.logreg", "--no-baselines"]
    succeed("evaluate", folder / "images", *judge, "-q")
    succeed("sample", folder / "images", "-n", 12, "--out", folder / "images.npz", "-q")
    columns = [
        {"name": "age", "kind": "numerical", "low": 0, "high": 100},
        {"name": "town | east", "kind": "categorical", "categories": ["a", "b"]},
    ]
    schema = {"kind": "table", "columns": columns, "label": "ill", "classes": ["no", "yes"]}
    (folder / "rows.schema.json").write_text(json.dumps(schema))
    draw = np.random.default_rng(0)
    rows = [f"{draw.integers(1, 99)},{'ab'[i % 2]},{('no', 'yes')[i % 2]}" for i in range(80)]
    (folder / "rows.csv").write_text("age,town | east,ill\n" + "\n".join(rows))
    succeed("fit", "merf", "--data", folder / "rows.csv", *tiny, "--out", folder / "table")
    for suffix in ("csv", "parquet"):
        out = folder / f"table.{suffix}"
        succeed("sample", folder / "table", "-n", 30, "--out", out, "-q")
    return folder


def cards(run: Path, out: Path, **how: Any) -> dict[str, str]:
    return {p.name: p.read_text(encoding="utf-8") for p in write_card(run, out, **how)}


@pytest.mark.parametrize("file", ["images.npz", "table.csv", "table.parquet", None])
def test_mlcroissant_takes_the_metadata_and_reads_the_records(made, tmp_path, file, monkeypatch):
    mlcroissant = pytest.importorskip("mlcroissant", reason="mlcroissant is not installed")
    monkeypatch.setenv("CROISSANT_CACHE", str(tmp_path / "cache"))
    run = made / (file or "images").partition(".")[0]
    release = made / file if file else None
    stated = Stated(
        curators=(EVIL,), licence="cc-by-4.0", date="2026-01-31", url="https://example.org/x"
    )
    write_card(run, tmp_path, release=release, stated=stated)
    # Beside the file, as it is published.
    if release is not None:
        (tmp_path / release.name).write_bytes(release.read_bytes())
    found = mlcroissant.Dataset(jsonld=str(tmp_path / "croissant.json"))
    issues = found.metadata.ctx.issues
    assert not issues.errors
    assert all("citeAs" in warning for warning in issues.warnings)
    assert found.metadata.name.startswith("Synthetic")
    if file and file.startswith("table"):
        records = list(found.records("records"))
        assert len(records) == 30
        (first, *_) = records
        assert set(first) == {"records/age", "records/town_east", "records/ill"}
        assert first["records/ill"] in (b"no", b"yes")


def test_the_registry_has_its_fields_and_blanks_say_so(made, tmp_path):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    found = cards(made / "images", tmp_path)
    (name,) = (n for n in found if n.endswith(".yaml"))
    assert re.fullmatch(r"[a-z0-9_]+\.yaml", name)  # the registry's own rule
    entry = yaml.safe_load(found[name])
    assert set(entry) == {"url_slug", "status", "tier", "deployment"}
    assert (entry["status"], entry["tier"]) == ("Draft", 3)
    told = entry["deployment"]
    needed = {"name", "data_curators", "description", "intended_use", "data_product_type"}
    assert needed | {"data_product_region", "publication_date"} == set(told["basic"])
    assert told["basic"]["data_product_type"] == "Synthetic data"
    assert told["dp_variant"]["variant_name"] == "Approximate DP"
    assert told["deployment_model"]["model_name"] == "Central"
    assert told["deployment_model"]["release_type"] == "One release"
    loss = told["privacy_loss"]
    epsilon = json.loads((made / "images" / "statement.json").read_text())["epsilon"]
    assert isinstance(loss["privacy_parameters"]["epsilon"], float)
    assert epsilon <= loss["privacy_parameters"]["epsilon"] <= epsilon * 1.001  # never less
    assert loss["privacy_parameters"]["delta"] == 1e-5
    assert "added or taken away" in loss["privacy_unit_details"]
    assert set(told) >= {"accounting", "implementation", "administrative"}
    assert 'intended_use: "" # fill in' in found[name]
    stated = Stated(curators=(EVIL, "B"), use=EVIL, region="Europe", sector="Healthcare")
    entry = yaml.safe_load(cards(made / "images", tmp_path, stated=stated)[name])
    basic = entry["deployment"]["basic"]
    assert (basic["data_curators"], basic["intended_use"]) == ([EVIL, "B"], EVIL)
    assert basic["data_product_sector"] == "Healthcare"


def test_the_dataset_card_has_front_matter_that_the_hub_reads(made, tmp_path):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    stated = Stated(name=EVIL, licence="cc-by-4.0")
    release = made / "table.parquet"
    readme = cards(made / "table", tmp_path, release=release, stated=stated)["README.md"]
    begin, front, rest = readme.split("---\n", 2)
    assert begin == ""
    facts = yaml.safe_load(front)
    assert facts["pretty_name"] == EVIL
    assert facts["license"] == "cc-by-4.0"
    assert facts["task_categories"] == ["tabular-classification"]
    assert facts["size_categories"] == ["n<1K"]
    assert facts["configs"][0]["data_files"] == [{"split": "train", "path": "table.parquet"}]
    assert {"synthetic", "differential-privacy"} <= set(facts["tags"])
    assert "<b>" not in rest and "&lt;b&gt;" in rest
    assert "(ε = 1, δ = 10⁻⁵)-differential privacy" in rest
    front = cards(made / "table", tmp_path)["README.md"].split("---\n")[1]
    assert "license" not in front and "configs" not in front  # not guessed


def test_only_what_is_published_stands_on_the_cards(made, tmp_path, monkeypatch):
    """Under add-remove the number of records is private; metrics come only when asked for, with their badge."""
    texts = cards(made / "images", tmp_path)
    for text in texts.values():
        assert "317" not in re.sub(r"[0-9a-f]{64}", "", text)
        assert str(made) not in text
        assert "logistic regression" not in text
    readme = cards(made / "images", tmp_path, metrics=True)["README.md"]
    (line,) = (x for x in readme.splitlines() if "logistic regression" in x)
    assert "computed on real data, not covered by ε" in line
    config = SavedRun.config.func  # what a run says beyond the list is not carried on
    monkeypatch.setattr(
        SavedRun, "config", property(lambda self: config(self) | {"host": "private-host"})
    )
    assert not any("private-host" in t for t in cards(made / "images", tmp_path).values())
    monkeypatch.setattr("sfumato.report.card.fingerprints", lambda *_: {"x": {"seconds": 1}})
    with pytest.raises(NotPublishable):
        write_card(made / "images", tmp_path)


def test_the_checklist_knows_what_it_can_and_leaves_blanks(made, tmp_path):
    text = cards(made / "images", tmp_path)["nist-sp-800-226.md"]
    assert "ε = 1, δ = 10⁻⁵" in text
    assert "________ (their number is private)" in text
    for asked in ("Unit of privacy", "Floating point", "Model of trust", "with what consent?"):
        assert asked in text
    assert "| How long are they kept? | ________ |" in text
    zero_out = cards(made / "table", tmp_path)["nist-sp-800-226.md"]
    assert "it is below it" in zero_out


def test_a_run_that_is_not_sound_has_nothing_to_publish(made, tmp_path, monkeypatch):
    monkeypatch.setattr(Merf, "info", dataclasses.replace(Merf.info, sound=False))
    with pytest.raises(BadInput, match="no guarantee to publish"):
        write_card(made / "images", tmp_path)


def test_the_command_writes_beside_the_run_and_never_over_what_was_filled_in(made):
    run = made / "images"
    lines = succeed("card", run).stdout.split()
    assert [Path(line).parent for line in lines] == [run / "card"] * 4
    (run / "card" / "README.md").write_text("filled in by hand")
    assert "already exists" in refused(6, "card", run)
    assert (run / "card" / "README.md").read_text() == "filled in by hand"
    succeed("card", run, "--overwrite", "--json")
    assert (run / "card" / "README.md").read_text() != "filled in by hand"
    succeed("verify", run)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--date", "31.1.2026"], "is no date"),
        (["--sector", "Magic"], "sectors"),
        (["--url", "example.org"], "no address"),
        (["--release", "nothing.npz"], "There is no"),
        (["--use", "two\nlines"], "one line"),
    ],
)
def test_wrong_words_get_one_sentence(made, tmp_path, words, said):
    assert said in refused(2, "card", made / "images", "--out", tmp_path / "x", *words)


def test_a_file_of_other_records_is_refused(made, tmp_path):
    other = arrays_in(tmp_path, size=4, other=5)["other"]
    for run, release in (("images", other), ("images", made / "table.csv")):
        refused(2, "card", made / run, "--out", tmp_path / "x", "--release", release)


def test_yaml_is_read_back_as_it_was_given():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    given = {
        "text": EVIL,
        "word": "yes",
        "small": 1e-05,
        "large": 1e30,
        "odd": 2.5e-7,
        "flag": False,
        "none": None,
        "n": 3,
        "list": ["a", "- b", ""],
        "nested": {"deeper": {"x": 0.1}, "rows": [{"a": 1, "b": [1, 2]}, {"a": 2, "b": ["c"]}]},
        "line": "two\nlines\u2028and\x7fmore",
    }
    found = yaml.safe_load(yaml_text(given))
    assert found == given
    assert math.isclose(found["small"], 1e-5)


def test_a_run_that_was_changed_gets_no_card(made, tmp_path):
    run = tmp_path / "changed"
    shutil.copytree(made / "images", run)
    write_card(run, tmp_path / "before")
    generator = bytearray((run / "generator.safetensors").read_bytes())
    generator[-1] ^= 1
    (run / "generator.safetensors").write_bytes(generator)
    with pytest.raises(CorruptArtifact, match=r"does not pass its checks.*another generator"):
        write_card(run, tmp_path / "after")
    assert not (tmp_path / "after").exists()
    assert "does not pass its checks" in succeed("report", run, "-q").stderr
    assert "does not pass" not in succeed("report", made / "images", "-q").stderr


def test_what_comes_next_for_a_table_is_a_format_of_tables(made, tmp_path):
    tiny = ["--set", "features=16", "--set", "steps=5", *BUDGET]
    shown = succeed(
        "fit", "merf", "--data", made / "rows.csv", *tiny, "--out", tmp_path / "t"
    ).stdout
    assert "--out synthetic.csv" in shown and ".npz" not in shown
