"""Samples in shards: what is drawn, what is kept, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from runs import refused, succeed
from sfumato.data import Column, Dataset, Schema, load
from sfumato.errors import BadInput, RunConflict
from sfumato.methods import Merf, Method
from sfumato.methods.shards import MANIFEST, sample_shards
from sfumato.privacy import Budget

# Little noise, so that no class is lost in it.
BUDGET = Budget(epsilon=500.0, delta=1e-5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 1, 8, 8), dtype=np.uint8)
    data = Dataset.from_arrays(pixels, np.arange(60) % 2, classes=2)
    out = tmp_path_factory.mktemp("runs") / "run"
    Merf(**Merf.TINY).fit(data, BUDGET, out=out)
    return out


def test_a_shard_is_the_sample_with_its_own_seed_and_the_folder_is_a_data_set(run, tmp_path):
    out = sample_shards(run, tmp_path / "shards", 250, size=100, seed=3)
    told = json.loads((out / MANIFEST).read_text())
    assert [shard["records"] for shard in told["shards"]] == [100, 100, 50]
    assert len({shard["seed"] for shard in told["shards"]}) == 3
    method = Method.load(run)
    for shard in told["shards"]:
        again = method.sample(shard["records"], seed=shard["seed"])
        kept = load(out / shard["file"], schema=again.schema)
        assert np.array_equal(kept.images, again.images)
        assert np.array_equal(kept.labels, again.labels)
    whole = load(out)
    assert (len(whole), whole.schema) == (250, method.schema_)


def test_other_seeds_have_other_shards(run, tmp_path):
    seeds = []
    for seed in (0, 1):
        out = sample_shards(run, tmp_path / str(seed), 30, size=10, seed=seed)
        seeds.append({s["seed"] for s in json.loads((out / MANIFEST).read_text())["shards"]})
    assert not seeds[0] & seeds[1]


def test_only_what_is_missing_is_drawn_again(run, tmp_path):
    done: list[int] = []
    out = sample_shards(run, tmp_path / "shards", 250, size=100, on_records=done.append)
    assert done == [100, 100, 50]
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "part-00001.parquet").unlink()
    kept = (out / "part-00000.parquet").stat().st_mtime_ns
    done.clear()
    sample_shards(run, out, 250, size=100, on_records=done.append)
    assert done == [150, 100]
    assert (out / "part-00000.parquet").stat().st_mtime_ns == kept
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first


def test_shards_of_something_else_are_not_mixed(run, tmp_path):
    out = sample_shards(run, tmp_path / "shards", 20, size=10)
    for other in ({"n": 30}, {"size": 5}, {"seed": 1}, {"keep": 0.5}, {"classes": ["1"]}):
        with pytest.raises(RunConflict, match="another run, number, seed, size or classes"):
            sample_shards(run, out, **{"n": 20, "size": 10, **other})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(RunConflict, match="already exists"):
        sample_shards(run, tmp_path / "mine", 20)
    with pytest.raises(BadInput, match="at least one record"):
        sample_shards(run, tmp_path / "none", 20, size=0)
    with pytest.raises(BadInput, match="none of the classes"):
        sample_shards(run, tmp_path / "none", 20, classes=["boot"])
    assert not (tmp_path / "none").exists()


def test_tables_keep_names_and_ranges(tmp_path):
    schema = Schema(
        kind="table",
        columns=(
            Column(name="age", kind="numerical", low=0, high=90),
            Column(name="job", kind="categorical", categories=("a", "b")),
        ),
        label="ill",
        classes=("no", "yes"),
    )
    values = np.stack([np.arange(60), np.arange(60) % 2], axis=1).astype(np.float32)
    data = Dataset.from_values(values, np.arange(60) % 2, schema=schema)
    Merf(**Merf.TINY).fit(data, BUDGET, out=tmp_path / "run")
    out = sample_shards(tmp_path / "run", tmp_path / "shards", 25, size=10)
    whole = load(out)
    whole.check()
    assert (len(whole), whole.schema) == (25, schema)


def test_on_the_command_line(run, tmp_path):
    out = tmp_path / "shards"
    told = succeed("sample", run, "-n", "2_50", "--shard-size", 100, "--out", out).output
    assert "250 synthetic records" in told
    assert "3 Parquet shards" in told
    assert len(load(out)) == 250
    line = refused(2, "sample", run, "-n", 10, "--engine", "local", "--out", tmp_path / "x.npz")
    assert "folder of Parquet shards" in line
    assert "no engine 'dask'" in refused(
        2, "sample", run, "-n", 10, "--engine", "dask", "--out", tmp_path / "x"
    )
    succeed("sample", run, "-n", 25, "--shard-size", 10, "--class", "1", "--out", tmp_path / "ones")
    assert (load(tmp_path / "ones").labels == 1).all()
