"""Runs of version 0.1.0 stay readable: one small run of every method, as that version wrote it, on random pixels."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

import sfumato.methods.base as base
from sfumato.errors import BadInput, CorruptArtifact, RunConflict
from sfumato.files import read_json, sha256_of, write_json
from sfumato.methods import Merf, SavedRun, get_method, list_methods, load
from sfumato.testing.methods import BUDGET, small_images

KEPT = Path(__file__).parent / "runs-0.1.0.zip"
with zipfile.ZipFile(KEPT) as _archive:
    EXPECTED = json.loads(_archive.read("expected.json"))
RUNS = sorted({name.partition("/")[0] for name in zipfile.ZipFile(KEPT).namelist() if "/" in name})


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    with zipfile.ZipFile(KEPT) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def merf(old: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(old / "merf", tmp_path / "run"))


def test_every_method_has_a_run_of_version_0_1_0():
    # The thirteen that there were; those that came since have none.
    assert len(RUNS) == 13
    assert set(RUNS) <= {info.name for info in list_methods()}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_0_1_0_is_loaded_with_its_own_statement(name, old):
    method = load(old / name)
    assert method.statement_.epsilon == EXPECTED[f"{name}:epsilon"]
    told = [r["noise_multiplier"] for r in read_json(old / name / "statement.json")["releases"]]
    assert [c.noise_multiplier for c in method.statement_.charges] == told
    if name in EXPECTED:  # another machine may round otherwise
        shown = method.sample(3, seed=5).images.reshape(-1)[:24]
        assert abs(shown.astype(int) - EXPECTED[name]).max() <= 1


@pytest.mark.parametrize("name", RUNS)
def test_another_calibration_does_not_lock_anyone_out(name, old, tmp_path, monkeypatch):
    honest = base.calibrated
    monkeypatch.setattr(base, "calibrated", lambda *asked: honest(*asked) * (1 + 1e-6))
    again, cls, run = load(old / name), get_method(name), SavedRun(old / name)
    assert again.statement_.epsilon == EXPECTED[f"{name}:epsilon"]
    still = {s.name for s in cls.settings()}
    method = cls(**{k: v for k, v in run.config["settings"].items() if k in still})
    once = all(q.steps is None for q in method.queries(again.schema_, run.budget))
    if once and cls.info.public != "required" and name != "mixture":
        method.refit(old / name, out=tmp_path / "again")
        assert method.statement_ == again.statement_
        released = [SavedRun(place).releases() for place in (tmp_path / "again", old / name)]
        first, second = ([r.units.tolist() for r in some] for some in released)
        assert first == second


def test_a_run_of_0_1_0_can_be_saved_as_a_new_one(old, tmp_path):
    load(old / "merf").save(tmp_path / "new")
    again = SavedRun(tmp_path / "new")
    assert again.version == 2
    assert again.statement.epsilon == EXPECTED["merf:epsilon"]


def test_an_edited_epsilon_is_noticed_even_with_its_hash_rewritten(merf):
    """What an attacker does: change a file, and its hash in the manifest."""
    write_json(merf / "statement.json", read_json(merf / "statement.json") | {"epsilon": 0.001})
    manifest = read_json(merf / "manifest.json")
    manifest["sha256"]["statement.json"] = sha256_of(merf / "statement.json")
    write_json(merf / "manifest.json", manifest)
    with pytest.raises(CorruptArtifact, match="cost more than"):
        load(merf)


@pytest.mark.parametrize("hashes", [[], {}, None, "none", {"config.json": "0"}])
def test_an_emptied_manifest_is_no_manifest(hashes, merf):
    write_json(merf / "manifest.json", {"format": 1, "sha256": hashes})
    with pytest.raises(CorruptArtifact):
        load(merf)


@pytest.mark.parametrize("part", ["config.json", "statement.json", "generator.safetensors"])
def test_a_changed_or_missing_file_is_named(part, merf):
    content = bytearray((merf / part).read_bytes())
    content[len(content) // 2] ^= 1
    (merf / part).write_bytes(bytes(content))
    with pytest.raises(CorruptArtifact, match=part):
        load(merf)
    (merf / part).unlink()
    with pytest.raises((CorruptArtifact, BadInput)):
        load(merf)


def test_a_swapped_release_is_noticed(merf, old):
    release = next((merf / "release").iterdir())
    release.write_bytes(next((old / "mge" / "release").iterdir()).read_bytes())
    with pytest.raises(CorruptArtifact):
        load(merf)


@pytest.mark.parametrize("resume", [False, True])
def test_an_old_folder_is_neither_taken_nor_gone_on_with(resume, merf):
    before = {p: p.read_bytes() for p in merf.rglob("*") if p.is_file()}
    with pytest.raises(RunConflict):
        Merf().fit(small_images(), BUDGET, out=merf, resume=resume)
    assert {p: p.read_bytes() for p in before} == before
