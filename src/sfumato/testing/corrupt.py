"""Damaged files of every format that is read: each ends in records or in a sentence, never in another exception.

The damage is deterministic: the same seed gives the same bytes.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import random
import struct
import tarfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from sfumato.data import Column, Schema, load
from sfumato.errors import SfumatoError

Corruption = Callable[[bytearray, random.Random, bytes], bytes]

_N, _SIDE = 12, 6
TABLE = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", low=0, high=120),
        Column(name="job", kind="categorical", categories=("clerk", "nurse"), missing=True),
    ),
    label="ill",
    classes=("0", "1"),
)
PIXELS = Schema(kind="images", shape=(1, 2, 2), classes=("0", "1"))


# ------------------------------------------------------------------------------------- corruptions


def _truncate(data: bytearray, rng: random.Random, other: bytes) -> bytes:
    return bytes(data[: rng.randrange(len(data) + 1)])


def _flip(data: bytearray, rng: random.Random, other: bytes) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _overwrite(data: bytearray, rng: random.Random, other: bytes) -> bytes:
    for _ in range(rng.choice((1, 4, 16))):
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x0A, 0x22, 0x7F, 0x80, 0xFF))
    return bytes(data)


def _head(data: bytearray, rng: random.Random, other: bytes) -> bytes:
    """Damage where the sizes stand."""
    data[rng.randrange(min(64, len(data)))] = rng.randrange(256)
    return bytes(data)


def _slice(data: bytearray, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data))
    return start, min(len(data), start + rng.choice((1, 2, 4, 8, 64, 512)))


def _duplicate(data: bytearray, rng: random.Random, other: bytes) -> bytes:
    start, stop = _slice(data, rng)
    return bytes(data[:stop] + data[start:])


def _delete(data: bytearray, rng: random.Random, other: bytes) -> bytes:
    start, stop = _slice(data, rng)
    return bytes(data[:start] + data[stop:])


def _zero(data: bytearray, rng: random.Random, other: bytes) -> bytes:
    start, stop = _slice(data, rng)
    data[start:stop] = bytes(stop - start)
    return bytes(data)


def _ones(data: bytearray, rng: random.Random, other: bytes) -> bytes:
    start, stop = _slice(data, rng)
    data[start:stop] = b"\xff" * (stop - start)
    return bytes(data)


def _swap_heads(data: bytearray, rng: random.Random, other: bytes) -> bytes:
    cut = rng.choice((4, 8, 16, 64))
    return other[:cut] + bytes(data[cut:])


def _foreign(data: bytearray, rng: random.Random, other: bytes) -> bytes:
    return other


def _nothing(data: bytearray, rng: random.Random, other: bytes) -> bytes:
    return b""


CORRUPTIONS: dict[str, Corruption] = {
    "truncate": _truncate,
    "flip": _flip,
    "overwrite": _overwrite,
    "head": _head,
    "duplicate": _duplicate,
    "delete": _delete,
    "zero": _zero,
    "ones": _ones,
    "swap heads": _swap_heads,
    "foreign": _foreign,
    "empty": _nothing,
}


def corrupt(data: bytes, kind: str, seed: int, other: bytes = b"") -> bytes:
    """`data` damaged in one of the `CORRUPTIONS`; `other` is a file of another format."""
    if not data:
        return other
    return CORRUPTIONS[kind](bytearray(data), random.Random(seed), other)


# ------------------------------------------------------------------------------- one of each format


def sound_files() -> dict[str, bytes]:
    """A small sound file of every format that is read, by a name with the right ending."""
    rng = np.random.default_rng(0)
    bytes_ = rng.integers(0, 256, (_N, _SIDE, _SIDE), dtype=np.uint8)
    labels = np.arange(_N) % 2
    names = np.array(["0", "1"])
    files = {
        "stored.npz": _npz(np.savez, images=bytes_, labels=labels, classes=names),
        "packed.npz": _npz(np.savez_compressed, images=bytes_, labels=labels, classes=names),
        "float.npz": _npz(
            np.savez, images=bytes_ / np.float32(255), value_range=np.array([0.0, 1.0])
        ),
        "x-images-idx3-ubyte": _idx(bytes_),
        "x-images-idx3-ubyte.gz": gzip.compress(_idx(bytes_), mtime=0),
        "table.csv": b"age,job,ill\n"
        + b"".join(b'%d,"clerk",%d\n' % (n, n % 2) for n in range(_N)),
        "table.parquet": _parquet(
            age=np.arange(float(_N)), job=["nurse", None] * (_N // 2), ill=labels
        ),
        "pixels.csv": b"pixel_0,pixel_1,pixel_2,pixel_3,label\n" + b"1,2,3,4,1\n" * _N,
        "pixels.parquet": _parquet(
            **{f"pixel_{i}": bytes_[:, 0, i] for i in range(4)}, label=labels.astype(str)
        ),
    }
    gray, deep = Image.fromarray(bytes_[0]), Image.fromarray(bytes_[0].astype(np.uint16) * 257)
    colour = Image.fromarray(rng.integers(0, 256, (_SIDE, _SIDE, 3), dtype=np.uint8))
    real = Image.fromarray(bytes_[0] / np.float32(255))
    files |= {
        "gray.png": _picture(gray, "PNG"),
        "deep.png": _picture(deep, "PNG"),
        "palette.png": _picture(colour.convert("P"), "PNG"),
        "clear.png": _picture(colour.convert("RGBA"), "PNG"),
        "colour.jpg": _picture(colour, "JPEG"),
        "print.jpg": _picture(colour.convert("CMYK"), "JPEG"),
        "colour.gif": _picture(colour, "GIF"),
        "colour.bmp": _picture(colour, "BMP"),
        "colour.webp": _picture(colour, "WEBP"),
        "gray.tif": _picture(gray, "TIFF"),
        "packed.tif": _picture(colour, "TIFF", compression="tiff_lzw"),
        "deep.tif": _picture(deep, "TIFF"),
        "real.tif": _picture(real, "TIFF"),
        "gray.pgm": _picture(gray, "PPM"),
        "colour.ppm": _picture(colour, "PPM"),
        "schema.json": json.dumps(PIXELS.to_json()).encode(),
        "sample.tar": _tar({"a.png": _picture(gray, "PNG"), "a.cls": b"1"}),
        "hub.parquet": _parquet(
            image=[{"bytes": _picture(gray, "PNG"), "path": "a.png"}] * 3, label=[0, 1, 1]
        ),
    }
    if importlib.util.find_spec("pydicom"):
        files["gray.dcm"] = _dicom(bytes_[0])
    return files


def _npz(writer: Callable[..., None], **arrays: Any) -> bytes:
    stream = io.BytesIO()
    writer(stream, **arrays)
    return stream.getvalue()


def _idx(array: np.ndarray) -> bytes:
    sizes = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def _parquet(**columns: Any) -> bytes:
    stream = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), stream)
    return bytes(stream.getvalue())


def _picture(picture: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def _tar(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def _dicom(pixels: np.ndarray) -> bytes:
    """A gray picture of bytes, field by field: group, element, kind, length, value."""

    def field(group: int, element: int, kind: bytes, value: bytes) -> bytes:
        value += (b"\0" if kind == b"UI" else b" ") * (len(value) % 2)
        size = struct.pack("<H", len(value)) if kind != b"OB" else struct.pack("<HI", 0, len(value))
        return struct.pack("<HH", group, element) + kind + size + value

    def short(element: int, value: int) -> bytes:
        return field(0x28, element, b"US", struct.pack("<H", value))

    meta = field(2, 0x10, b"UI", b"1.2.840.10008.1.2.1")  # plain, little-endian
    meta = field(2, 0, b"UL", struct.pack("<I", len(meta))) + meta
    facts = field(0x10, 0x20, b"LO", b"p1") + short(2, 1) + field(0x28, 4, b"CS", b"MONOCHROME2")
    facts += short(0x10, len(pixels)) + short(0x11, pixels.shape[1])
    facts += short(0x100, 8) + short(0x101, 8) + short(0x102, 7) + short(0x103, 0)
    return bytes(128) + b"DICM" + meta + facts + field(0x7FE0, 0x10, b"OB", pixels.tobytes())


# -------------------------------------------------------------------------------------------- fuzz


def read_whole(folder: Path, name: str, data: bytes) -> int:
    """Write `data` under `name` (a key of `sound_files`), open it with the facts it needs, and read every record."""
    path = folder / name
    path.write_bytes(data)
    facts: dict[str, Any] = {}
    if name.startswith("table."):
        facts = {"schema": TABLE}
    elif name.startswith("pixels."):
        facts = {"schema": PIXELS}
    elif name in ("sample.tar", "hub.parquet"):
        facts = {"image_size": 8, "channels": 1, "classes": 2}
    elif path.suffix not in (".npz", ".gz") and "-ubyte" not in name:
        if path.suffix == ".json":
            (folder / "0").mkdir(exist_ok=True)
            Image.new("L", (2, 2)).save(folder / "0" / "a.png")
        else:
            facts = {"image_size": 8, "channels": 1 if "gray" in name else 3}
            facts["bits"] = 16 if "deep" in name else None
            facts["value_range"] = (0.0, 1.0) if "real" in name else None
        path = folder
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = load(path, **facts)
        seen = sum(len(batch) for batch in opened.batches(5))
        return seen + len(opened)


def fuzz_files(folder: Path, calls: int, *, seed: int = 0) -> Counter[str]:
    """Read `calls` damaged files, each in a fresh folder below `folder`, and count how they ended.

    Raises AssertionError, naming the call, the file and the damage, if one ends in anything but records or
    a SfumatoError.
    """
    files = sound_files()
    names = sorted(files)
    kinds = sorted(CORRUPTIONS)
    ends: Counter[str] = Counter()
    for call in range(calls):
        rng = random.Random(f"{seed} {call}")
        name, kind = names[call % len(names)], rng.choice(kinds)
        other = files[rng.choice(names)]
        damaged = corrupt(files[name], kind, rng.randrange(2**32), other)
        place = folder / f"{seed}-{call}"
        place.mkdir(parents=True)
        try:
            read_whole(place, name, damaged)
        except SfumatoError as error:
            sentence = str(error)
            assert sentence.endswith(".") and "\n" not in sentence, f"{name}: {sentence}"
            ends[type(error).__name__] += 1
        except Exception as error:
            raise AssertionError(
                f"Call {call} of seed {seed}: {name}, damaged by {kind!r}, ended in {type(error).__name__}."
            ) from error
        else:
            ends["records"] += 1
    return ends
