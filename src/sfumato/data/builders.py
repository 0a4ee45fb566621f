"""How the sets of the catalogue are made from their archives, and how they lie in the cache.

A builder turns the raw files of a source into the set's files; the catalogue names it by a short key. Archives are read
member by member: nothing in them is run, and no path inside them is followed. Everything in this module is public.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from sfumato.data.dataset import Dataset
from sfumato.data.fetch import archive_members, run_tool
from sfumato.data.schema import Column, Schema
from sfumato.data.sources import (
    Array,
    ArraySource,
    Rows,
    Source,
    as_stored,
    channels_first,
    from_files,
    idx_header,
    npy_header,
)
from sfumato.data.tables import TableFile, encode_columns
from sfumato.errors import BadInput
from sfumato.progress import Progress


@dataclass(frozen=True)
class Contents:
    """What the catalogue says of a source's raw files: their names, the schema of what is in them, a table's columns.

    `cells` are the widths of the cells that numbers are put into; the `first` so many records are the training set.
    """

    files: tuple[str, ...]
    schema: Schema
    header: tuple[str, ...] = ()
    cells: Mapping[str, int] = field(default_factory=dict)
    first: int = 0


# From the folder of the raw files into the folder where the set's own are made.
Builder = Callable[[Contents, Path, Path, Progress], None]

# ------------------------------------------------------------------------------- files in a cache

_IDX_PARTS = {"train": "train", "test": "t10k"}


def open_arrays(folder: Path, split: str, values: str = "values", labelled: bool = True) -> Source:
    stored = npy_header(folder / f"{split}-{values}.npy")
    labels = npy_header(folder / f"{split}-labels.npy") if labelled else None
    return from_files(stored, labels, as_stored)


def open_part(folder: Path, split: str, odd: bool, codes: Sequence[int]) -> Source:
    """Every second record, from the second on if `odd`, where it has one of these codes; its label is then the code's place."""
    whole = open_arrays(folder, split)
    values, labels = whole.take(np.arange(int(odd), len(whole), 2))
    assert labels is not None
    kept = np.isin(labels, codes)
    return ArraySource(values[kept], np.searchsorted(codes, labels[kept]))


def write_arrays(staging: Path, split: str, values: Array, labels: Iterable[int] | Array) -> None:
    np.save(staging / f"{split}-values.npy", np.ascontiguousarray(values))
    np.save(staging / f"{split}-labels.npy", np.asarray(labels, np.int64))


def every_fifth(size: int) -> dict[str, Array]:
    """A split by position alone, for sets that come without one: every fifth record is a test."""
    test = np.arange(size) % 5 == 0
    return {"train": np.flatnonzero(~test), "test": np.flatnonzero(test)}


def _write_fifths(staging: Path, values: Array, labels: Array) -> None:
    for split, chosen in every_fifth(len(values)).items():
        write_arrays(staging, split, values[chosen], labels[chosen])


def open_idx(folder: Path, split: str) -> Source:
    """The layout of MNIST."""
    part = _IDX_PARTS[split]
    images = idx_header(folder / f"{part}-images-idx3-ubyte")
    labels = idx_header(folder / f"{part}-labels-idx1-ubyte")
    return from_files(images, labels, channels_first)


def _write_idx(path: Path, array: Array) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


# --------------------------------------------------------------------------------------- pictures


def build_digits(staging: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    for split, chosen in every_fifth(len(images)).items():
        part = _IDX_PARTS[split]
        _write_idx(staging / f"{part}-images-idx3-ubyte", images[chosen])
        _write_idx(staging / f"{part}-labels-idx1-ubyte", digits.target[chosen])


_CIFAR_BATCHES = {
    "train": tuple(f"data_batch_{index}" for index in range(1, 6)),
    "test": ("test_batch",),
}


def build_cifar_binary(contents: Contents, raw: Path, staging: Path, progress: Progress) -> None:
    """The published archive: a byte of label and 3072 of picture, channel by channel."""
    members = archive_members(raw / contents.files[0], lambda path: path.endswith(".bin"))
    found = {Path(path).stem: packed.read() for path, packed in members}
    for split, batches in _CIFAR_BATCHES.items():
        joined = b"".join(found[batch] for batch in batches)
        records = np.frombuffer(joined, np.uint8).reshape(-1, 3073)
        images = records[:, 1:].reshape(-1, *contents.schema.shape)
        write_arrays(staging, split, images, records[:, 0])


def build_cifar_pictures(contents: Contents, raw: Path, staging: Path, progress: Progress) -> None:
    """The npm package: a PNG a batch, whose rows are pictures of 1024 pixels."""
    with progress.stage("Unpacking pictures", 6) as stage:
        for split, batches in _CIFAR_BATCHES.items():
            images = []
            for batch in batches:
                with Image.open(raw / f"{batch}.png") as picture:
                    pixels = np.asarray(picture.convert("RGB"))  # (10000, 1024, 3)
                images.append(pixels.transpose(0, 2, 1).reshape(-1, *contents.schema.shape))
                stage.advance()
            labels = json.loads((raw / f"{split}_lables.json").read_text())
            write_arrays(staging, split, np.concatenate(images), labels)


_XRAY_SIDES = (28, 64, 128)


def _xray_members(
    archive: zipfile.ZipFile, split: str, classes: tuple[str, ...]
) -> list[tuple[str, int]]:
    found = []
    for code, name in enumerate(classes):
        folder = f"sofiimg/datasets/pneumonia/{split}/{name.upper()}/"
        found += [
            (member, code)
            for member in sorted(archive.namelist())
            if member.startswith(folder) and member.endswith(".jpeg")
        ]
    return found


def build_xrays(contents: Contents, raw: Path, staging: Path, progress: Progress) -> None:
    """Photographs in a wheel, gray, in each of three sizes."""
    classes = contents.schema.classes
    with zipfile.ZipFile(raw / contents.files[0]) as archive:
        members = {split: _xray_members(archive, split, classes) for split in ("train", "test")}
        total = sum(len(some) for some in members.values())
        with progress.stage("Resizing X-rays", total) as stage:
            for split, some in members.items():
                pixels = {
                    side: np.empty((len(some), 1, side, side), np.uint8) for side in _XRAY_SIDES
                }
                for index, (member, _) in enumerate(some):
                    with Image.open(io.BytesIO(archive.read(member))) as picture:
                        gray = picture.convert("L")
                    for side in _XRAY_SIDES:
                        small = gray.resize((side, side), Image.Resampling.BOX)
                        pixels[side][index, 0] = np.asarray(small)
                    stage.advance()
                for side in _XRAY_SIDES:
                    np.save(staging / f"{split}-{side}.npy", pixels[side])
                labels = np.array([code for _, code in some], np.int64)
                np.save(staging / f"{split}-labels.npy", labels)
                patients = np.array([_xray_patient(member) for member, _ in some], np.int64)
                np.save(staging / f"{split}-patient.npy", patients)


def _xray_patient(member: str) -> int:
    """Whose picture it is: person12_bacteria_48.jpeg, IM-0011-0001.jpeg; the two series number their patients apart."""
    found = re.search(r"/(?:person(\d+)|\S*IM-(\d+))[^/]*$", member)
    if found is None:
        raise BadInput(f"{member} does not say whose picture it is; the package has changed.")
    return int(found[1]) if found[1] else 1_000_000 + int(found[2])


_PHOTO_SIDE = 32
_PHOTO_CUTS = (0, 30, 60)  # where squares of half the side begin, in photographs of 120 pixels


def build_photographs(contents: Contents, raw: Path, staging: Path, progress: Progress) -> None:
    """Square photographs in a wheel, each as ten small pictures: the whole, and nine squares of half the side, left to right."""
    with zipfile.ZipFile(raw / contents.files[0]) as archive:
        members = [m for m in sorted(archive.namelist()) if re.search(r"/starter/s\d+\.jpg$", m)]
        made = np.empty((len(members), 10, 3, _PHOTO_SIDE, _PHOTO_SIDE), np.uint8)
        with progress.stage("Cutting photographs", len(members)) as stage:
            for views, member in zip(made, members, strict=True):
                with Image.open(io.BytesIO(archive.read(member))) as picture:
                    photo = picture.convert("RGB")
                cuts = [(x, y, x + 60, y + 60) for y in _PHOTO_CUTS for x in _PHOTO_CUTS]
                for view, box in zip(views, [(0, 0, *photo.size), *cuts], strict=True):
                    small = photo.resize((_PHOTO_SIDE,) * 2, Image.Resampling.BOX, box=box)
                    view[:] = np.asarray(small).transpose(2, 0, 1)
                stage.advance()
    for split, chosen in every_fifth(
        len(made)
    ).items():  # of photographs, so that no view of one is in both
        np.save(staging / f"{split}-values.npy", made[chosen].reshape(-1, *made.shape[2:]))


_DRAWINGS_EACH = 100


def build_drawings(contents: Contents, raw: Path, staging: Path, progress: Progress) -> None:
    """A gzipped file a class with a drawing a line: 784 numbers in [0, 1] of three decimals."""
    classes = contents.schema.classes
    wanted = {f"package/src/drawings/{name}.ndjson.gz": name for name in classes}
    drawn: dict[str, Array] = {}
    with progress.stage("Reading drawings", len(classes)) as stage:
        for path, packed in archive_members(raw / contents.files[0], wanted.__contains__):
            lines = gzip.decompress(packed.read()).decode("utf-8").splitlines()
            ink = np.array([json.loads(line) for line in lines if line.strip()], np.float64)
            drawn[wanted[path]] = np.rint(255 * ink.reshape(-1, 1, 28, 28)).astype(np.uint8)
            stage.advance()
    images = np.stack([drawn[name][:_DRAWINGS_EACH] for name in classes])  # (345, 100, 1, 28, 28)
    labels = np.repeat(np.arange(len(classes)), images.shape[1])
    _write_fifths(staging, images.reshape(-1, 1, 28, 28), labels)


_FACE_CODE = (16, 16, 8)
# Where each layer's kernel and bias begin in the decoder's file, whose bytes the wheel's SHA-256
# fixes; a reader of HDF5 would be a whole dependency for five arrays.
_DECODER_LAYERS = (
    ((3, 3, 8, 8), 23256, 19172),
    ((3, 3, 16, 8), 27608, 19204),
    ((3, 3, 32, 16), 34576, 19268),
    ((3, 3, 32, 3), 13656, 19160),
)


def _read_decoder(file: bytes) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Kernels as (out, in, 3, 3) of plain convolutions, and biases."""
    layers = []
    for index, (shape, kernel_at, bias_at) in enumerate(_DECODER_LAYERS):
        size = int(np.prod(shape))
        kernel = np.frombuffer(file, "<f4", size, kernel_at).reshape(shape)
        if index < 3:
            # Keras keeps a transposed convolution as (h, w, out, in); with stride 1 it is a plain
            # one with the kernel turned round.
            kernel = kernel[::-1, ::-1].transpose(2, 3, 0, 1)
            outs = shape[2]
        else:
            kernel = kernel.transpose(3, 2, 0, 1)
            outs = shape[3]
        bias = np.frombuffer(file, "<f4", outs, bias_at)
        layers.append((torch.tensor(kernel.copy()), torch.tensor(bias.copy())))
    return layers


def decode_faces(codes: Array, decoder: list[tuple[torch.Tensor, torch.Tensor]]) -> Array:
    """Pictures (n, 3, 64, 64) in uint8 of codes (n, 2048): the decoder's 128×128, halved."""
    x = torch.from_numpy(np.array(codes, np.float32)).reshape(-1, *_FACE_CODE)
    x = x.permute(0, 3, 1, 2)  # (n, 8, 16, 16)
    with torch.no_grad():
        for kernel, bias in decoder[:3]:
            x = torch.relu(torch.nn.functional.conv2d(x, kernel, bias, padding=1))
            x = torch.nn.functional.interpolate(x, scale_factor=2, mode="nearest")
        kernel, bias = decoder[3]
        x = torch.sigmoid(torch.nn.functional.conv2d(x, kernel, bias, padding=1))
        x = torch.nn.functional.avg_pool2d(x, 2)  # (n, 3, 64, 64)
        return x.mul(255).round().to(torch.uint8).numpy()


def build_faces(contents: Contents, raw: Path, staging: Path, progress: Progress) -> None:
    """Codes of an autoencoder, a file a group, and the decoder that makes faces of them."""
    groups = [name.replace(" ", "_") for name in contents.schema.classes]
    images: list[Array] = []
    with zipfile.ZipFile(raw / contents.files[0]) as archive:
        decoder = _read_decoder(archive.read("face_hunters/decodeur.h5"))
        with progress.stage("Decoding faces", len(groups)) as stage:
            for group in groups:
                packed = io.BytesIO(archive.read(f"face_hunters/img_{group}.csv.npy"))
                codes = np.load(packed, allow_pickle=False)  # (1000, 2048)
                blocks = range(0, len(codes), 50)
                images.append(
                    np.concatenate([decode_faces(codes[at : at + 50], decoder) for at in blocks])
                )
                stage.advance()
    labels = np.repeat(np.arange(len(images)), [len(some) for some in images])
    _write_fifths(staging, np.concatenate(images), labels)


SIDE, BOX = 28, 20
_POINTS = 96
_DIGITS = "0123456789"
_SUFFIXES = (".ttf", ".otf")


def render_digits(typeface: bytes) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    """The digits (10, 28, 28) of a typeface, or None where it cannot tell all ten apart.

    Each is drawn large, cut out, scaled to fit 20×20 pixels and centred in 28×28, white on black, as MNIST does it.
    """
    try:
        font = ImageFont.truetype(
            io.BytesIO(typeface), _POINTS, layout_engine=ImageFont.Layout.BASIC
        )
        digits = [_render(font, digit) for digit in _DIGITS]
    except (OSError, ValueError):  # a damaged or bitmap-only font
        return None
    if any(digit is None for digit in digits):
        return None
    drawn = np.stack([np.asarray(digit) for digit in digits])  # (10, 28, 28)
    return drawn if len({digit.tobytes() for digit in drawn}) == len(_DIGITS) else None


def _render(font: ImageFont.FreeTypeFont, digit: str) -> Image.Image | None:
    room = 4 * _POINTS
    canvas = Image.new("L", (room, room), 0)
    ImageDraw.Draw(canvas).text((_POINTS, _POINTS), digit, fill=255, font=font)
    ink = canvas.getbbox()
    if ink is None:
        return None
    glyph = canvas.crop(ink)
    scale = BOX / max(glyph.size)
    width, height = (max(1, round(side * scale)) for side in glyph.size)
    glyph = glyph.resize((width, height), Image.Resampling.BOX)
    picture = Image.new("L", (SIDE, SIDE), 0)
    picture.paste(glyph, ((SIDE - width) // 2, (SIDE - height) // 2))
    return picture


def build_typefaces(contents: Contents, raw: Path, staging: Path, progress: Progress) -> None:
    """Every typeface in Debian packages, which nothing installs; one that draws what an earlier one did is left out."""
    faces: dict[bytes, np.ndarray[Any, np.dtype[np.uint8]]] = {}
    packages = sorted(raw / name for name in contents.files)
    with progress.stage("Rendering digits", len(packages)) as stage:
        for package in packages:
            unpacked = raw / package.stem
            run_tool(["dpkg-deb", "--extract", str(package), str(unpacked)], raw)
            for file in sorted(unpacked.rglob("*")):
                if file.suffix.lower() in _SUFFIXES and file.is_file() and not file.is_symlink():
                    digits = render_digits(file.read_bytes())
                    if digits is not None:
                        faces.setdefault(digits.tobytes(), digits)
            stage.advance()
    drawn = np.stack(list(faces.values()))  # (typefaces, 10, 28, 28)
    # By typeface, so that no test digit is drawn in a typeface of the training set.
    for split, chosen in every_fifth(len(drawn)).items():
        images = drawn[chosen].reshape(-1, 1, SIDE, SIDE)
        write_arrays(staging, split, images, np.tile(np.arange(10), len(chosen)))


# ----------------------------------------------------------------------------------------- tables

_MISSING = "?"
_ROWS_AT_ONCE = 20_000


def build_text_table(contents: Contents, raw: Path, staging: Path, progress: Progress) -> None:
    """Two files of text without a header, for training and for testing."""
    for split, name in zip(("train", "test"), contents.files, strict=True):
        with (raw / name).open(encoding="utf-8", newline="") as lines:
            rows = _checked_rows(_text_blocks(lines, contents), contents, name, progress)
        write_arrays(staging, split, *rows)


def build_counted_table(contents: Contents, raw: Path, staging: Path, progress: Progress) -> None:
    """Text without a header, all columns made discrete, unlabelled: a file for each split, or one whose `first` rows train."""
    known = {column.name: column for column in contents.schema.columns}

    def category(column: Column, cell: str) -> str:
        """A number's cell, counted from 0 in public steps, or the name itself; what has no place goes to the last one."""
        if column.name in contents.cells:
            cell = str(int(cell) // contents.cells[column.name])
            last = int(column.categories[-1])
            return cell if int(cell) <= last else column.categories[-1]
        return (
            "another" if "another" in column.categories and cell not in column.categories else cell
        )

    def read(name: str) -> Array:
        with (raw / name).open(encoding="utf-8", newline="") as lines:
            rows = csv.reader(lines, skipinitialspace=True)
            columns = zip(*(row for row in rows if len(row) == len(contents.header)), strict=True)
            made = {
                column: [category(known[column], cell.strip().removesuffix(".")) for cell in cells]
                for column, cells in zip(contents.header, columns, strict=True)
                if column in known
            }
        values, _ = encode_columns(made, contents.schema)
        Dataset.from_values(values, schema=contents.schema)
        return values

    parts = [read(name) for name in contents.files]
    if contents.first:
        parts = [parts[0][: contents.first], parts[0][contents.first :]]
    for split, part in zip(("train", "test"), parts, strict=True):
        np.save(staging / f"{split}-values.npy", np.ascontiguousarray(part))


def build_payments(contents: Contents, raw: Path, staging: Path, progress: Progress) -> None:
    """One .csv with a header and no split."""
    (name,) = contents.files
    blocks = TableFile(raw / name, contents.schema).blocks(_ROWS_AT_ONCE)
    _write_fifths(staging, *_checked_rows(blocks, contents, name, progress))


def _text_blocks(lines: Iterator[str], contents: Contents) -> Iterator[Rows]:
    """Rows of comma-separated text without a header, as the schema's numbers and codes.

    Blanks around a cell are dropped and "?" is a missing value; columns that the schema does not
    name are left out; a full stop after the label, as in Adult's test file, is dropped.
    """
    header, schema = contents.header, contents.schema
    kinds = {column.name: column.kind for column in schema.columns}
    rows = (row for row in csv.reader(lines, skipinitialspace=True) if len(row) == len(header))
    while block := list(islice(rows, _ROWS_AT_ONCE)):
        columns: dict[str, Any] = {}
        for name, cells in zip(header, zip(*block, strict=True), strict=True):
            if name == schema.label:
                columns[name] = [cell.strip().removesuffix(".") for cell in cells]
            elif kinds.get(name) == "numerical":
                columns[name] = np.array(cells, np.float64)
            elif name in kinds:
                trimmed = (" ".join(cell.split()) for cell in cells)
                columns[name] = [None if cell == _MISSING else cell for cell in trimmed]
        yield encode_columns(columns, schema)


def _checked_rows(
    blocks: Iterator[Rows], contents: Contents, name: str, progress: Progress
) -> tuple[Array, Array]:
    """All values and labels; rows that do not fit the schema are refused."""
    with progress.stage(f"Reading {name}", 1) as stage:
        values, labels = (np.concatenate(part) for part in zip(*blocks, strict=True))
        Dataset.from_values(values, labels, schema=contents.schema)
        stage.advance()
    return values, labels
