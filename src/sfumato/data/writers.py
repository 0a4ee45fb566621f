"""Saving a data set as .npz, .csv, .parquet, .tar (WebDataset) or a folder of PNGs: all or nothing, streaming.

What is written is whatever the data set holds; the schema that goes beside it (`schema.json`) is
PUBLIC. Images of bytes are PNGs in a column of .parquet, as Hugging Face's `datasets` keeps them.
Floating point images go into .npz and .parquet in the units of their schema's range, which
is written with them (in .parquet a column a pixel), and are rounded to 8 bits in .csv and PNG.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import io
import os
import tarfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from sfumato.data.conversion import hf_batch, hf_layout, picture_of, png_bytes
from sfumato.data.folders import folder_name
from sfumato.data.schema import Schema
from sfumato.data.sources import Array, eight_bits
from sfumato.data.tables import LABEL, arrow_schema, countable, decode_rows
from sfumato.errors import BadInput
from sfumato.files import atomic_folder, atomic_path, write_json
from sfumato.progress import Progress

if TYPE_CHECKING:
    from sfumato.data.dataset import Dataset

FORMATS = (".npz", ".csv", ".parquet", ".tar")
# A folder may be called anything, but these endings show that a file was meant.
_NO_FOLDER = frozenset(
    [
        ".png",
        ".jpg",
        ".jpeg",
        ".gif",
        ".npy",
        ".zip",
        ".gz",
        ".tgz",
        ".json",
        ".tsv",
        ".txt",
        ".xlsx",
        ".h5",
        ".hdf5",
        ".pt",
        ".pth",
        ".pkl",
        ".feather",
        ".arrow",
        ".bmp",
        ".dcm",
        ".idx",
        ".jsonl",
        ".ods",
        ".tif",
        ".tiff",
        ".webp",
        ".xls",
    ]
)


# Beside class folders: each file with its class, as Hugging Face's `imagefolder` and other loaders read it.
LISTING = "metadata.csv"


def schema_beside(path: Path) -> Path:
    """Where a schema lies: `adult.schema.json` beside `adult.csv`, `schema.json` in a folder."""
    if path.is_dir():
        return path / "schema.json"
    name = path.name.removesuffix(".gz")
    stem = (
        Path(name).stem
        if Path(name).suffix in (".npz", ".npy", ".csv", ".parquet", ".tar")
        else name
    )
    return path.with_name(f"{stem}.schema.json")


def is_file_format(path: Path) -> bool:
    """Whether the ending shows that a file is meant, of a kind that is written or of another."""
    return path.suffix.lower() in (*FORMATS, *_NO_FOLDER)


def check_format(path: Path, kind: str = "images") -> None:
    """Raise unless data of this kind ("images", "table") can be saved under such a name; looks at nothing but the name."""
    suffix = path.suffix.lower()
    wanted = ".csv or .parquet" if kind == "table" else f"{', '.join(FORMATS)}, or name a folder"
    if suffix in _NO_FOLDER:
        raise BadInput(f"Cannot save a data set as {suffix}; end the path in {wanted}.")
    if suffix not in FORMATS and (near := difflib.get_close_matches(suffix, FORMATS, 1, 0.7)):
        raise BadInput(
            f"There is no format {suffix} (did you mean {near[0]}?); end the path in {wanted}."
        )
    if kind == "table" and suffix not in (".csv", ".parquet"):
        how = f"as {suffix}" if suffix in FORMATS else "as a folder of pictures"
        raise BadInput(f"A table cannot be saved {how}; end the path in {wanted}.")


def save(data: Dataset, path: Path, progress: Progress | None) -> Path:
    progress = progress or Progress()
    check_format(path, data.schema.kind)
    kind = path.suffix.lower()
    if kind == ".npz":
        _save_npz(data, path, progress)
    elif kind in (".csv", ".parquet"):
        _save_table(data, path, progress)
    elif kind == ".tar":
        _save_tar(data, path, progress)
    else:
        _save_folder(data, path, progress)
    return path


def _save_npz(data: Dataset, path: Path, progress: Progress) -> None:
    size = _size(data)
    with (
        atomic_path(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
        progress.stage(f"Writing {path.name}", size) as stage,
    ):
        labels = []
        first = next(data.batches(1)).values.numpy()
        with _member(archive, "images", first.dtype, (size, *data.schema.shape)) as stream:
            for batch in data.batches(_rows_at_once(data)):
                stored = _in_units(batch.values.numpy(), data.schema)
                stream.write(np.ascontiguousarray(stored).data)
                if batch.labels is not None:
                    labels.append(batch.labels.numpy())
                stage.advance(len(batch))
        facts: dict[str, Array] = {}
        if data.schema.labelled:
            facts = {"labels": np.concatenate(labels), "classes": np.array(data.schema.classes)}
        stated = written_schema(data.schema, first.dtype).value_range
        if stated is not None:
            facts["value_range"] = np.array(stated)
        for name, array in facts.items():
            with _member(archive, name, array.dtype, array.shape) as stream:
                stream.write(array.tobytes())


@contextlib.contextmanager
def _member(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> Iterator[Any]:
    # A ZipInfo of our own has a fixed date: the same data gives the same bytes.
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
        facts = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(stream, facts)
        yield stream


def _save_table(data: Dataset, path: Path, progress: Progress) -> None:
    written = write_table(data, path, progress)
    write_json(schema_beside(path), written.to_json())


def write_table(data: Dataset, path: Path, progress: Progress | None = None) -> Schema:
    """A .csv or .parquet file without the schema beside it, which is returned."""
    progress = progress or Progress()
    text = path.suffix.lower() == ".csv"
    size = _size(data)
    first = next(data.batches(1)).values.numpy()
    # Rounding floating point to a PNG would lose what a .parquet can keep.
    pictures = data.schema.kind == "images" and not text and first.dtype == np.uint8
    columns = arrow_schema(data.schema, np.uint8 if text else first.dtype)
    layout = hf_layout(data.schema) if pictures else columns
    with (
        atomic_path(path) as temporary,
        progress.stage(f"Writing {path.name}", size) as stage,
        _table_writer(temporary, layout, text) as writer,
    ):
        for batch in data.batches(_rows_at_once(data)):
            stage.advance(len(batch))
            if pictures:
                writer.write_batch(hf_batch(batch, layout))
                continue
            values = batch.values.numpy()
            if data.schema.kind == "images":
                values = eight_bits(values) if text else _in_units(values, data.schema)
            labels = None if batch.labels is None else batch.labels.numpy()
            writer.write_batch(decode_rows(values, labels, data.schema, layout))
    return written_schema(data.schema, np.dtype(np.uint8) if text else first.dtype)


def _table_writer(path: Path, layout: Any, text: bool) -> Any:
    return pa_csv.CSVWriter(path, layout) if text else pq.ParquetWriter(path, layout)


def _save_tar(data: Dataset, path: Path, progress: Progress) -> None:
    """WebDataset: 00000.png and, beside it, 00000.cls with the number of its class (or .cls.txt with its name)."""
    size = _size(data)
    digits = max(5, len(str(size - 1)))
    classes = data.schema.classes
    # Where names of classes are numbers, but not those that count them, a .cls could be read as a name.
    told = [
        ("cls", str(code)) if countable(classes) else ("cls.txt", name)
        for code, name in enumerate(classes)
    ]
    number = 0
    with (
        atomic_path(path) as temporary,
        tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as archive,
        progress.stage(f"Writing {path.name}", size) as stage,
    ):
        for batch in data.batches(256):
            codes = None if batch.labels is None else _known(batch.labels.tolist())
            for row, pixels in enumerate(eight_bits(batch.values.numpy())):
                _add(archive, f"{number:0{digits}d}.png", png_bytes(pixels))
                if codes is not None:
                    ending, label = told[codes[row]]
                    _add(archive, f"{number:0{digits}d}.{ending}", label.encode())
                number += 1
            stage.advance(len(batch))
    write_json(schema_beside(path), written_schema(data.schema, np.dtype(np.uint8)).to_json())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # no clock, no user: the same data give the same bytes
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _known(codes: list[int]) -> list[int]:
    if min(codes) < 0:
        raise BadInput(
            "A record without a known class cannot go into a class folder or a .tar; save as .npz."
        )
    return codes


def _save_folder(data: Dataset, path: Path, progress: Progress) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise BadInput(
            f"{path} exists and is not an empty folder; choose another path or remove it."
        )
    size = _size(data)
    digits = max(5, len(str(size - 1)))
    with (
        atomic_folder(path, flush=False) as folder,
        progress.stage(f"Writing {path.name}", size) as stage,
    ):
        homes = [folder / folder_name(name) for name in data.schema.classes] or [folder]
        for home in homes:
            home.mkdir(exist_ok=True)
        start = 0
        listed: list[tuple[str, str]] = []
        with ThreadPoolExecutor(min(8, (os.cpu_count() or 1) + 1)) as pool:
            for batch in data.batches(256):
                pixels = eight_bits(batch.values.numpy())
                codes = [0] * len(batch) if batch.labels is None else _known(batch.labels.tolist())
                files = [
                    homes[code] / f"{start + row:0{digits}d}.png" for row, code in enumerate(codes)
                ]
                list(pool.map(_write_png, pixels, files))
                if data.schema.labelled:
                    names = (data.schema.classes[code] for code in codes)
                    places = (file.relative_to(folder).as_posix() for file in files)
                    listed += zip(places, names, strict=True)
                start += len(batch)
                stage.advance(len(batch))
        written = written_schema(data.schema, np.dtype(np.uint8))
        write_json(folder / "schema.json", written.to_json())
        if listed:
            with (folder / LISTING).open("w", encoding="utf-8", newline="") as stream:
                csv.writer(stream, lineterminator="\n").writerows([("file_name", LABEL), *listed])


def _write_png(pixels: Array, file: Path) -> None:
    picture_of(pixels).save(file, "PNG")


def written_schema(schema: Schema, dtype: np.dtype[Any]) -> Schema:
    """The schema of what is written: bytes settle their range, floating point states its own."""
    if schema.kind != "images":
        return schema
    floating = dtype != np.uint8
    return replace(schema, value_range=(schema.value_range or (0.0, 1.0)) if floating else None)


def _in_units(images: Array, schema: Schema) -> Array:
    if images.dtype == np.uint8 or schema.value_range in (None, (0.0, 1.0)):
        return images
    low, high = schema.value_range
    return (images.astype(np.float64) * (high - low) + low).astype(np.float32)


def _size(data: Dataset) -> int:
    size = len(data)
    if size == 0:
        raise BadInput("The data holds no rows; there is nothing to save.")
    return size


def _rows_at_once(data: Dataset) -> int:
    return max(1, min(8192, (1 << 20) // data.schema.dim))
