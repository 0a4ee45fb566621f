"""Parts of a data set: contiguous, complete, read by whoever holds them; and folders of shards, which are read as one."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from data import write_idx
from sfumato.data import Column, Dataset, Schema, load
from sfumato.errors import BadInput

SIZE = 23
TABLE = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", low=0, high=200),
        Column(name="job", kind="categorical", categories=("a", "b")),
    ),
    label="ill",
    classes=("no", "yes"),
)


def images(size: int = SIZE) -> Dataset:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (size, 1, 4, 4), dtype=np.uint8)
    return Dataset.from_arrays(pixels, np.arange(size) % 3, classes=3)


def table(size: int = SIZE) -> Dataset:
    values = np.stack([np.arange(size), np.arange(size) % 2], axis=1).astype(np.float32)
    return Dataset.from_values(values, np.arange(size) // 2 % 2, schema=TABLE)


def mapped(folder: Path) -> Dataset:
    return load(images().save(folder / "images.npz"))


def packed(folder: Path) -> Dataset:
    data = images()
    np.savez_compressed(folder / "packed.npz", images=data.images, labels=data.labels)
    return load(folder / "packed.npz", classes=3)


def plain_array(folder: Path) -> Dataset:
    data = images()
    np.save(folder / "images.npy", data.images)
    np.save(folder / "labels.npy", data.labels)
    return load(folder / "images.npy", classes=3)


def idx(folder: Path) -> Dataset:
    data = images()
    write_idx(folder / "train-images-idx3-ubyte.gz", data.images[:, 0])
    write_idx(folder / "train-labels-idx1-ubyte.gz", data.labels.astype(np.uint8))
    return load(folder / "train-images-idx3-ubyte.gz", classes=3)


def csv(folder: Path) -> Dataset:
    return load(table().save(folder / "table.csv"))


def parquet(folder: Path) -> Dataset:
    path = table().save(folder / "table.parquet")
    pq.write_table(pq.read_table(path), path, row_group_size=5)
    return load(path)


def pictures(folder: Path) -> Dataset:
    return load(images().save(folder / "pictures"))


def shards_of_npz(folder: Path) -> Dataset:
    (folder / "shards").mkdir()
    for number, size in enumerate((9, 1, SIZE - 10)):
        start = (0, 9, 10)[number]
        batch = images().take(np.arange(start, start + size))
        part = Dataset.from_arrays(batch.values.numpy(), batch.labels.numpy(), classes=3)
        part.save(folder / "shards" / f"{number}.npz")
    return load(folder / "shards")


def shards_of_tables(folder: Path) -> Dataset:
    (folder / "shards").mkdir()
    for number in range(3):
        table().part(number, 3).save(folder / "shards" / f"{number}.parquet")
    return load(folder / "shards")


READERS: list[Callable[[Path], Dataset]] = [
    lambda folder: images(),
    lambda folder: table(),
    mapped,
    packed,
    plain_array,
    idx,
    csv,
    parquet,
    pictures,
    shards_of_npz,
    shards_of_tables,
]
NAMES = [*("images", "table"), *(reader.__name__ for reader in READERS[2:])]


@pytest.mark.parametrize("reader", READERS, ids=NAMES)
def test_parts_are_the_records_in_order_also_in_another_process(reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = reader(Path())
    whole = data.take(np.arange(SIZE))
    for parts in (1, 2, 7, SIZE + 3):
        cuts = Dataset.cuts(SIZE, parts)
        sent = [pickle.dumps(data.part(number, parts)) for number in range(parts)]
        os.chdir("/")  # where a worker may stand
        some = [pickle.loads(part) for part in sent]  # noqa: S301
        assert [len(part) for part in some] == np.diff(cuts).tolist()
        for number, part in enumerate(some):
            rows = np.arange(cuts[number], cuts[number + 1])
            met = [batch for size in (2, 100) for batch in part.batches(size)]
            if not len(rows):
                assert met == []
                continue
            assert np.concatenate([b.values.numpy() for b in met]).tolist() == (
                np.concatenate([whole.values.numpy()[rows]] * 2).tolist()
            )
            assert np.concatenate([b.labels.numpy() for b in met]).tolist() == (
                [*whole.labels[rows].tolist()] * 2
            )
            backwards = part.take(np.arange(len(part))[::-1])
            assert np.array_equal(backwards.values.numpy(), whole.values.numpy()[rows[::-1]])
            assert np.array_equal(backwards.labels.numpy(), whole.labels.numpy()[rows[::-1]])
        monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("reader", READERS, ids=NAMES)
def test_parts_of_parts(reader, tmp_path):
    data = reader(tmp_path)
    part = data.part(1, 3).part(1, 2)
    cuts = Dataset.cuts(SIZE, 3)
    within = Dataset.cuts(cuts[2] - cuts[1], 2)
    rows = np.arange(cuts[1] + within[1], cuts[2])
    assert np.array_equal(part.values, data.take(rows).values.numpy())


def test_a_part_in_memory_takes_no_other_record_along():
    data = images(10_000)
    assert len(pickle.dumps(data.part(3, 100))) < len(pickle.dumps(data)) / 50


def test_a_part_of_a_file_travels_as_a_path(tmp_path):
    data = load(images(10_000).save(tmp_path / "many.npz"))
    assert len(pickle.dumps(data.part(0, 2))) < 4000


def test_row_groups_before_a_part_are_not_read(tmp_path, monkeypatch):
    data = parquet(tmp_path)
    read = []
    original = pq.ParquetFile.iter_batches

    def spied(self, *args, row_groups, **more):
        read.extend(row_groups)
        return original(self, *args, row_groups=row_groups, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spied)
    list(data.part(1, 2).batches(4))  # records 11 … 22 of groups of five
    assert read == [2, 3, 4]


def test_a_line_that_is_no_record_stops_every_part_that_reads_as_far(tmp_path):
    path = table().save(tmp_path / "table.csv")
    data = load(path)
    len(data)
    lines = path.read_text().splitlines()
    lines[-1] = '"' + lines[-1]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(BadInput, match="is not one record"):
        list(data.part(6, 7).batches(8))


def test_a_folder_of_shards_is_one_data_set(tmp_path):
    data = shards_of_npz(tmp_path)
    assert (len(data), data.random_access) == (SIZE, True)
    assert np.array_equal(data.images, images().images)
    assert [len(batch) for batch in data.batches(8)] == [8, 8, 7]


def test_shards_that_do_not_belong_together_are_refused(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    images().save(folder / "a.npz")
    Dataset.from_arrays(np.zeros((3, 1, 5, 5), np.uint8), [0, 1, 2], classes=3).save(
        folder / "b.npz"
    )
    with pytest.raises(BadInput, match="different schemas"):
        load(folder)
    (folder / "b.npz").unlink()
    table().save(folder / "c.parquet")
    with pytest.raises(BadInput, match="several kinds"):
        load(folder)


def test_a_table_of_labels_beside_pictures_is_no_shard(tmp_path):
    folder = images().save(tmp_path / "pictures")
    (folder / "people.csv").write_text("name\n")
    assert len(load(folder)) == SIZE
