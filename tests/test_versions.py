"""Runs of version 0.1.0 stay readable: one small run of every method, as that version wrote it, on random pixels."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sfumato.data import Dataset
from sfumato.errors import BadInput, CorruptArtifact, RunConflict
from sfumato.files import read_json, sha256_of, write_json
from sfumato.methods import Merf, SavedRun, get_method, list_methods, load
from sfumato.privacy import Budget

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
    for part in (p for p in (old / "merf").rglob("*") if p.is_file()):
        target = tmp_path / "run" / part.relative_to(old / "merf")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(part.read_bytes())
    return tmp_path / "run"


def test_every_method_has_a_run_of_version_0_1_0():
    assert set(RUNS) == {info.name for info in list_methods()}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_0_1_0_is_loaded_with_its_own_statement(name, old):
    method = load(old / name)
    assert method.statement_.epsilon == EXPECTED[f"{name}:epsilon"]
    told = read_json(old / name / "statement.json")
    assert [c.noise_multiplier for c in method.statement_.charges] == [
        r["noise_multiplier"] for r in told["releases"]
    ]
    if name in EXPECTED:
        shown = method.sample(3, seed=5).images.reshape(-1)[:24]
        assert (
            abs(shown.astype(int) - EXPECTED[name]).max() <= 1
        )  # another machine may round otherwise


@pytest.mark.parametrize("name", RUNS)
def test_another_calibration_does_not_lock_anyone_out(name, old, tmp_path, monkeypatch):
    import sfumato.methods.base as base

    honest = base.calibrated
    monkeypatch.setattr(
        base, "calibrated", lambda asked, budget: honest(asked, budget) * (1 + 1e-6)
    )
    again = load(old / name)
    assert again.statement_.epsilon == EXPECTED[f"{name}:epsilon"]
    cls = get_method(name)
    run = SavedRun(old / name)
    still = {s.name for s in cls.settings()}
    method = cls(**{k: v for k, v in run.config["settings"].items() if k in still})
    once = all(q.steps is None for q in method.queries(again.schema_, run.budget))
    if once and cls.info.public != "required" and name != "mixture":
        method.refit(old / name, out=tmp_path / "again")
        assert method.statement_ == again.statement_
        assert [r.units.tolist() for r in SavedRun(tmp_path / "again").releases()] == [
            r.units.tolist() for r in SavedRun(old / name).releases()
        ]


def test_a_run_of_0_1_0_can_be_saved_as_a_new_one(old, tmp_path):
    load(old / "merf").save(tmp_path / "new")
    again = SavedRun(tmp_path / "new")
    assert again.version == 2
    assert again.statement.epsilon == EXPECTED["merf:epsilon"]


def _rewrite(run: Path, name: str, content: object) -> None:
    """What an attacker does: change a file, and its hash in the manifest."""
    write_json(run / name, content)
    manifest = read_json(run / "manifest.json")
    manifest["sha256"][name] = sha256_of(run / name)
    write_json(run / "manifest.json", manifest)


def test_an_edited_epsilon_is_noticed_even_with_its_hash_rewritten(merf):
    told = read_json(merf / "statement.json")
    _rewrite(merf, "statement.json", told | {"epsilon": 0.001})
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


def test_an_old_folder_is_neither_taken_nor_gone_on_with(merf):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 1, 8, 8), dtype=np.uint8)
    data = Dataset.from_arrays(pixels, np.arange(60) % 3, classes=3)
    before = {p: p.read_bytes() for p in merf.rglob("*") if p.is_file()}
    for resume in (False, True):
        with pytest.raises(RunConflict):
            Merf().fit(data, Budget(epsilon=2.0, delta=1e-4), out=merf, resume=resume)
    assert {p: p.read_bytes() for p in before} == before
