"""Samples in shards: a folder of Parquet files, each with a public seed of its own, drawn one after another or on a cluster.

    part-00000.parquet …   the records; shard k is what `sample(records, seed=…)` gives with its own number and seed
    schema.json            their schema, so that the folder is a data set (`sfumato.load`)
    shards.json            of which run, with which seeds

A shard is there whole or not at all, so whoever types the same again goes on with those that are missing. Everything here is
public: samples cost nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.data.writers import write_table, written_schema
from sfumato.engines import Engine, engine_of
from sfumato.errors import BadInput, RunConflict
from sfumato.files import make_folder, read_json, sweep, write_json
from sfumato.methods.base import Method
from sfumato.methods.run import SavedRun
from sfumato.methods.selection import check_keep
from sfumato.methods.settings import LARGEST_SEED, check_number, check_seed

MANIFEST = "shards.json"
SHARD_SIZE = 100_000
_FORMAT = 1


def sample_shards(
    run: Path | str,
    out: Path | str,
    n: int,
    *,
    classes: Sequence[str] | None = None,
    seed: int = 0,
    keep: float = 1.0,
    size: int = SHARD_SIZE,
    engine: Engine | str | None = None,
    on_records: Callable[[int], None] | None = None,
) -> Path:
    """Draw `n` records (of some `classes`) from a finished run into the folder `out`, `size` in a shard; shards that are there
    already are kept.

    On a cluster, `run` and `out` must be paths that its machines see as well. `on_records` is told how many were done.
    """
    run, out = Path(run), Path(out)
    check_seed(seed)
    check_keep(keep)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise BadInput(f"A shard holds at least one record, not {size!r}.")
    method = _loaded(run.absolute())
    if method.info.makes != "records":
        raise BadInput(f"{method.info.name} is a classifier and makes no samples.")
    check_number(min(n, size), method.schema_)
    method._shares(classes)  # raises for what is no class, before anything is made
    shards = _shards(n, size, seed)
    told = _manifest(run, n, size, seed, keep, shards)
    if classes is not None:
        told["classes"] = list(classes)
    used = engine_of(engine)
    try:
        _begin(out, told, method)
        missing = [shard for shard in shards if not (out / shard.file).exists()]
        done = n - sum(shard.records for shard in missing)
        if on_records is not None and done:
            on_records(done)
        draw = _Draw(run.absolute(), out.absolute(), keep, classes)
        for place, _ in used.each(draw, missing):
            if on_records is not None:
                on_records(missing[place].records)
    finally:
        if used is not engine:
            used.close()
    return out


@dataclass(frozen=True)
class _Shard:
    file: str
    records: int
    seed: int


def _shards(n: int, size: int, seed: int) -> list[_Shard]:
    """Seeds that follow each other from a place that `seed` is hashed to: no two alike in a folder, others for other seeds."""
    digest = hashlib.sha256(f"shards of seed {seed}".encode()).digest()
    first, count = int.from_bytes(digest[:4], "big"), -(-n // size)
    digits = max(5, len(str(count - 1)))
    return [
        _Shard(
            f"part-{number:0{digits}d}.parquet",
            min(size, n - number * size),
            (first + number) % (LARGEST_SEED + 1),
        )
        for number in range(count)
    ]


def _manifest(
    run: Path, n: int, size: int, seed: int, keep: float, shards: list[_Shard]
) -> dict[str, Any]:
    with SavedRun(run) as saved:
        name = saved.fingerprint
    return {
        "format": _FORMAT,
        "run": name,
        "n": n,
        "shard_size": size,
        "seed": seed,
        "keep": keep,
        "shards": [vars(shard) for shard in shards],
    }


def _begin(out: Path, told: dict[str, Any], method: Method) -> None:
    manifest = out / MANIFEST
    if out.exists() and not out.is_dir():
        raise RunConflict(f"{out} is a file; give --out a folder.")
    if manifest.exists():
        if read_json(manifest) != told:
            raise RunConflict(
                f"{out} holds shards of another run, number, seed, size or classes; give --out another folder, or the same "
                "options to go on."
            )
        sweep(out)  # what a process that was killed left
        return
    if out.is_dir() and any(out.iterdir()):
        raise RunConflict(f"{out} is a folder that already exists; give --out another name.")
    make_folder(out)
    # Samples of images are bytes.
    write_json(out / "schema.json", written_schema(method.schema_, np.dtype(np.uint8)).to_json())
    write_json(manifest, told)


@dataclass(frozen=True)
class _Draw:
    """One shard, wherever this runs."""

    run: Path
    out: Path
    keep: float
    classes: Sequence[str] | None

    def __call__(self, shard: _Shard) -> None:
        made = _loaded(self.run).sample(
            shard.records, classes=self.classes, seed=shard.seed, keep=self.keep
        )
        write_table(made, self.out / shard.file)


@lru_cache(maxsize=2)
def _loaded(run: Path) -> Method:
    return Method.load(run)
