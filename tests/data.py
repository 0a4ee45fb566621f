"""Small sets that several tests share: made up, or scikit-learn's digits. (`sfumato.testing.methods` has plain noise.)"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from sfumato.data import Column, Dataset, Schema

SHOP = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", low=0, high=100, missing=True),
        Column(name="colour", kind="categorical", categories=("red", "green", "blue")),
        Column(name="size", kind="ordinal", categories=("s", "m", "l")),
        Column(name="height", kind="numerical", low=-1, high=1),
        Column(name="weight", kind="numerical", low=-1, high=1),
    ),
    classes=("no", "yes"),
    label="bought",
)


def digits(n: int | None = None) -> Dataset:
    """The first scikit-learn digits, as bytes."""
    raw = load_digits()
    images = np.rint(raw.images[:n] * (255 / 16)).astype(np.uint8)
    return Dataset.from_arrays(images, raw.target[:n], classes=10, name="digits")


def stripes(
    n: int = 60, seed: int = 0, *, classes: int = 3, channels: int = 1, size: int = 8
) -> Dataset:
    """Images that are easy to tell apart: a bright row whose place is the class, in noise."""
    codes = np.arange(n) % classes
    pixels = np.random.default_rng(seed).uniform(0, 0.3, (n, channels, size, size))
    pixels[np.arange(n), :, codes] += 0.6
    name = f"stripes-{seed}"
    return Dataset.from_arrays(pixels.astype(np.float32), codes, classes=classes, name=name)


def shop(n: int = 400, seed: int = 0) -> Dataset:
    """Who is tall has mostly bought; some ages are missing."""
    draw = np.random.default_rng(seed)
    age, height, weight = draw.uniform([0, -1, -1], [100, 1, 1], (n, 3)).T
    age[draw.uniform(size=n) < 0.1] = np.nan
    rows = np.stack([age, *draw.integers(0, 3, (2, n)), height, weight], 1).astype(np.float32)
    bought = height + 0.3 * draw.standard_normal(n) > 0.2
    return Dataset.from_values(rows, bought.astype(np.int64), schema=SHOP, name=f"shop-{seed}")


def png(side: int, bits: int, kind: int, rows: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A square PNG of any depth and kind, which Pillow would not write; `rows` have their filter bytes."""

    def packed(tag: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + tag + data + struct.pack(">I", zlib.crc32(tag + data))

    head = struct.pack(">IIBBBBB", side, side, bits, kind, 0, 0, 0)
    parts = [(b"IHDR", head), *chunks, (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed(*part) for part in parts)


def write_idx(path: Path, array: np.ndarray) -> None:
    """As MNIST's files are; packed if the name ends in .gz."""
    sizes = np.array(array.shape, ">u4").tobytes()
    raw = bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(raw, 1) if path.suffix == ".gz" else raw)
