"""Additivity of every reader: a file with one record more gives that record's row more, and no other row changes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from data import write_idx
from sfumato.data import Column, Dataset, Schema, load
from sfumato.data.builders import open_arrays, write_arrays
from sfumato.data.tables import CSV_BYTES, PARQUET_ROWS
from sfumato.errors import BadInput
from sfumato.testing.readers import COUNTS, check_reader

NAN, INF = float("nan"), float("inf")
FEW = (*range(0, 70, 7), 510, 513, 1023, 1024, 1025)
AGE = Column(name="age", kind="numerical", low=0, high=120, missing=True)
JOB = Column(name="job", kind="categorical", categories=("a", "b", "NA", "1.5"), missing=True)
TABLE = Schema(kind="table", columns=(AGE, JOB), label="code", classes=("0", "1", "49301234567"))


def fresh(folder: Path, name: str) -> Callable[[], Path]:
    """A new path with this name at every call."""
    return lambda: Path(tempfile.mkdtemp(dir=folder)) / name


# ------------------------------------------------------------------------------------------- tables

LINES = [
    b"40,a,1",
    b"41.5,b,0",
    b'"42","a","1"',
    b'43,"a",1\r',
    b',"",',
    b"NA,NA,NA",
    b"nan,?,-0.0",
    b"-0.0, a ,0.5",
    b"1e400,zebra,49301234567",
    b"inf,a,4.9301234567e10",
    b"40,1.5,1.0",
    b"40,'a,1",
    "40,\N{ZERO WIDTH NO-BREAK SPACE}a,1".encode(),
    b"40," + b"x" * 5000 + b",1",
    # Refused, alone and among others:
    b'40,"a,1',
    b'40,a",1',
    b'40,"a"b,1',
    b'40,a"b"c,1',
    b"40,a",
    b"40,a,1,2",
    b"40,a\0,1",
    b"40,a\rb,1",
    b"x,a,1",
    b"40,\xff,1",
    b'"',
    b"40," + b"y" * (1 << 20) + b",1",
]


def csv_reader(folder: Path, schema: Schema, header: bytes, *, end: bytes = b"\n") -> Any:
    path = fresh(folder, "t.csv")

    def open_with(lines: Sequence[bytes]) -> Dataset:
        file = path()
        file.write_bytes(header + b"\n" + b"\n".join(lines) + end)
        return load(file, schema=schema)

    return open_with


@pytest.mark.parametrize("end", [b"\n", b""])
def test_neighbour_csv_lines_are_records(tmp_path, end):
    counts = COUNTS if end else FEW
    check_reader(csv_reader(tmp_path, TABLE, b"age,job,code", end=end), LINES, counts=counts)


def test_neighbour_csv_with_a_mark_of_its_encoding_and_of_windows(tmp_path):
    check_reader(
        csv_reader(tmp_path, TABLE, b"\xef\xbb\xbfcode,age,job\r"),
        [b"1,40,a\r", b"0,41,b\r", b"0,42,b", b"2,?,\r", b'1,"40,a\r', b"1,40,a,b\r"],
        counts=FEW,
    )


def test_neighbour_csv_blocks_of_bytes(tmp_path):
    """Lines of 4 KiB, so that a few dozen of them cross the block that is read at once."""
    pad = b"x" * 4080
    lines = [pad + b",%d,a,1" % n for n in (1, 2, 3)]
    lines += [b'"' + pad + b",9,a,1", pad + b'",9,a,1', b'"' + pad + b'",9,b,0', pad + b",,,\r"]
    around = CSV_BYTES // len(lines[0])
    check_reader(
        csv_reader(tmp_path, TABLE, b"note,age,job,code"),
        lines,
        counts=[*range(around - 3, around + 4), 2 * around, 2 * around + 1],
    )


def test_neighbour_csv_of_one_column_counts_empty_lines(tmp_path):
    schema = Schema(kind="table", columns=(AGE,))
    lines = [b"1", b"2.5", b"", b'""', b"\r", b"?", b'"', b"1,2", b"x"]
    check_reader(csv_reader(tmp_path, schema, b"age"), lines, counts=FEW)


@pytest.mark.parametrize("value_range", [None, (-1.0, 1.0)])
def test_neighbour_csv_of_pixels(tmp_path, value_range):
    schema = Schema(kind="images", shape=(1, 1, 2), classes=("0", "1"), value_range=value_range)
    lines = [b"0,1,1", b"1,0,0", b"0,0,7", b"0.5,1,1", b"300,0,1", b",1,1", b'0,"1,1', b"-1,1,0"]
    check_reader(csv_reader(tmp_path, schema, b"pixel_0,pixel_1,label"), lines, counts=FEW)


def parquet_reader(folder: Path, schema: Schema, layout: pa.Schema, **options: Any) -> Any:
    path = fresh(folder, "t.parquet")

    def open_with(rows: Sequence[tuple[Any, ...]]) -> Dataset:
        columns = [
            pa.array(list(cells), f.type)
            for cells, f in zip(zip(*rows, strict=True), layout, strict=True)
        ]
        file = path()
        pq.write_table(pa.table(columns, schema=layout), file, **options)
        return load(file, schema=schema)

    return open_with


CODES: dict[Any, list[Any]] = {
    pa.float64(): [1.0, 0.0, -0.0, 0.5, 49301234567.0, 1e18, NAN, INF, None, 1e300],
    pa.float32(): [1.0, -0.0, 0.5, 0.1, NAN, None, 1e30],
    pa.int64(): [1, 0, 49301234567, -1, 2**62, None],
    pa.uint64(): [1, 0, 49301234567, 2**64 - 1, None],
    pa.string(): ["1", " 0 ", "1.0", "49301234567", "", "NA", "zebra", "x" * 5000, None],
    pa.bool_(): [True, False, None],
    pa.decimal128(20, 3): [*map(Decimal, ("1.000", "-0.000", "0.5", "49301234567")), None],
    pa.date32(): [0, 20_000, None],
    pa.binary(): [b"1", b"0", b"\xff", None],
    pa.dictionary(pa.int8(), pa.string()): ["1", "0", "zebra", None],
}


@pytest.mark.parametrize("kind", CODES, ids=str)
def test_neighbour_parquet_codes_of_every_type(tmp_path, kind):
    layout = pa.schema([("age", pa.float64()), ("job", pa.string()), ("code", kind)])
    records = [(40.0, "a", code) for code in CODES[kind]]
    counts = COUNTS if kind == pa.float64() else FEW
    check_reader(parquet_reader(tmp_path, TABLE, layout, row_group_size=50), records, counts=counts)


def test_neighbour_parquet_cells_and_row_groups(tmp_path):
    layout = pa.schema([("age", pa.float64()), ("job", pa.float32()), ("code", pa.string())])
    ages, jobs = [40.0, None, NAN, INF, -1e308, 1e-320, 0.5], [1.5, None, 1.0, 0.5, -0.0, 3.0, 1e30]
    records = [(age, job, "1") for age, job in zip(ages, jobs, strict=True)]
    check_reader(parquet_reader(tmp_path, TABLE, layout, row_group_size=64), records, counts=FEW)
    around = [PARQUET_ROWS - 1, PARQUET_ROWS, PARQUET_ROWS + 1]
    check_reader(
        parquet_reader(tmp_path, TABLE, layout), records[:3], counts=around, batches=[10_000]
    )


def test_neighbour_parquet_of_floating_point_pixels(tmp_path):
    schema = Schema(kind="images", shape=(1, 1, 2), classes=("0", "1"), value_range=(-1.0, 1.0))
    layout = pa.schema([("pixel_0", pa.float32()), ("pixel_1", pa.float32()), ("label", pa.int8())])
    odd = [0.0, -1.0, 1.0, 7.0, NAN, INF, 1e-40, None]
    records = [(value, 0.5, index % 3) for index, value in enumerate(odd)]
    check_reader(parquet_reader(tmp_path, schema, layout), records, counts=FEW)


FRAME: list[tuple[Any, Any, Any]] = [
    (40, "a", "1"),
    (41.5, " b ", 0),
    (None, None, 1.0),
    (NAN, 1.5, -0.0),
    (1, "NA", 49301234567),
    (2, Decimal("1.50"), 49301234567.0),
    (np.float32(3), pd.NA, np.int8(1)),
    # Refused:
    (40, "zebra", "1"),
    (500, "a", "1"),
    (INF, "a", "1"),
    ("40", "a", "1"),
    (True, "a", "1"),
    (40, "a", 0.5),
    (40, b"a", "1"),
    (40, ["a"], "1"),
    (10**400, "a", "1"),
]


@pytest.mark.parametrize("form", ["frame", "lists"])
def test_neighbour_frames_of_mixed_objects(form):
    def open_with(rows: Sequence[tuple[Any, ...]]) -> Dataset:
        columns = dict(zip(("age", "job", "code"), map(list, zip(*rows, strict=True)), strict=True))
        if form == "frame":
            return Dataset.from_table(pd.DataFrame(columns, dtype=object), TABLE)
        return Dataset.from_table(columns, TABLE)

    check_reader(open_with, FRAME, counts=FEW)


# ------------------------------------------------------------------------------------------- arrays

BYTES = [(np.full((2, 2), v, np.uint8), label) for v, label in ((0, 0), (255, 1), (7, 9), (9, -1))]
ODD = [0.0, 1.0, -1.0, 7.0, NAN, INF, -INF, 1e-40, 3e38]
FLOATS = [(np.full((2, 2), v, np.float32), index % 3) for index, v in enumerate(ODD)]


@pytest.mark.parametrize("writer", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("records", [BYTES, FLOATS], ids=["bytes", "floats"])
def test_neighbour_npz(tmp_path, writer, records):
    path = fresh(tmp_path, "x.npz")

    def open_with(rows: Sequence[tuple[Any, int]]) -> Dataset:
        file = path()
        writer(file, images=np.stack([r[0] for r in rows]), labels=np.array([r[1] for r in rows]))
        stated = (-1.0, 1.0) if rows[0][0].dtype == np.float32 else None
        return load(file, classes=2, value_range=stated)

    check_reader(open_with, records, counts=COUNTS if writer is np.savez else FEW)


def test_neighbour_arrays_in_memory():
    def open_with(rows: Sequence[tuple[Any, int]]) -> Dataset:
        labels = np.array([r[1] for r in rows])
        return Dataset.from_arrays(
            np.stack([r[0] for r in rows]), labels, classes=2, value_range=(-1.0, 1.0)
        )

    check_reader(open_with, FLOATS)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_neighbour_idx(tmp_path, end):
    path = fresh(tmp_path, f"train-images-idx3-ubyte{end}")

    def open_with(rows: Sequence[tuple[Any, int]]) -> Dataset:
        file = path()
        write_idx(file, np.stack([r[0] for r in rows]))
        write_idx(file.with_name(f"train-labels-idx1-ubyte{end}"), np.array([r[1] for r in rows]))
        return load(file, classes=2)

    check_reader(open_with, BYTES, counts=FEW)


def test_neighbour_arrays_of_named_sets(tmp_path):
    path = fresh(tmp_path, "x")
    schema = Schema(kind="images", shape=(1, 2, 2), classes=("0", "1"))

    def open_with(rows: Sequence[tuple[Any, int]]) -> Dataset:
        folder = path().parent
        write_arrays(folder, "train", np.stack([r[0][None] for r in rows]), [r[1] for r in rows])
        return Dataset(open_arrays(folder, "train"), schema, "named")

    check_reader(open_with, BYTES)


# ----------------------------------------------------------------------------------------- pictures


def test_neighbour_pictures_in_a_folder(tmp_path):
    def save(name: str, picture: Image.Image, **options: Any) -> bytes:
        file = tmp_path / name
        picture.save(file, **options)
        return file.read_bytes()

    exif = Image.Exif()
    exif[274] = 6
    ramp = np.arange(16, dtype=np.uint8).reshape(4, 4) * 16
    good = save("a.png", Image.fromarray(ramp))
    records = [
        (".png", good),
        (".jpg", save("b.jpg", Image.fromarray(ramp), exif=exif)),
        (".png", save("c.png", Image.new("RGBA", (9, 3), (255, 0, 0, 0)))),
        (".gif", save("d.gif", Image.fromarray(ramp).convert("P"))),
        (".png", save("e.png", Image.fromarray(ramp > 99))),
        (".pgm", b"P5 4 4 4095\n" + (ramp.astype(">u2") * 16).tobytes()),
        # Refused:
        (".png", save("f.png", Image.fromarray(ramp.astype(np.uint16) * 16))),
        (".tif", save("g.tif", Image.fromarray(ramp / np.float32(255)))),
        (".png", good[:-20]),
        (".png", b""),
        (".png", b"%PDF-1.4"),
    ]
    path = fresh(tmp_path, "x")

    def open_with(rows: Sequence[tuple[str, bytes]]) -> Dataset:
        folder = path().parent
        for index, (end, data) in enumerate(rows):
            (folder / f"{index:05d}{end}").write_bytes(data)
        return load(folder, image_size=4, channels=1)

    # Sixteen pictures are a task of a thread.
    check_reader(
        open_with, records, counts=[0, 1, 2, 3, *range(14, 18), *range(30, 35), 63, 64, 65]
    )


# ------------------------------------------------------------------------- what the wall then adds up


def counts_of(data: Dataset) -> torch.Tensor:
    """How many records each class has, by batches of the size that sums are made of."""
    counts = torch.zeros(data.schema.n_classes)
    for batch in data.batches(1024):
        assert batch.labels is not None
        counts += torch.bincount(batch.labels[batch.labels >= 0], minlength=len(counts))
    return counts


@pytest.mark.parametrize(
    ("good", "classes"),
    [(1.0, ("0", "1")), (-0.0, ("0", "1")), (49301234567.0, ("49301234567", "0"))],
)
def test_neighbour_class_counts_move_by_one_when_an_odd_number_comes(tmp_path, good, classes):
    schema = Schema(kind="table", columns=(AGE,), label="code", classes=classes)
    found = []
    for name, last in (("a", good), ("b", 0.5)):
        codes = np.full(1000, good)
        codes[-1] = last
        file = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"age": np.full(1000, 40.0), "code": codes}), file)
        found.append(counts_of(load(file, schema=schema)))
    assert found[0].max() == 1000
    assert (found[0] - found[1]).norm() == 1


def test_neighbour_two_stray_quotes_swallow_no_record_between_them(tmp_path):
    path = tmp_path / "t.csv"
    for first, second in (('"x', "y"), ("x", '"y'), ('"x', 'y"'), ('"secret', '"y')):
        lines = ["40,a,1"] * 1000
        lines[10], lines[990] = f"40,{first},1", f"40,{second},1"
        path.write_text("age,job,code\n" + "\n".join(lines) + "\n")
        with pytest.raises(BadInput, match=r"Line (12|992) of ") as caught:
            counts_of(load(path, schema=TABLE))
        assert "secret" not in str(caught.value)
