"""Image folders: files decoded in threads, a batch ahead of the reader, in a fixed order.

The names of class sub-folders are PUBLIC (they are the classes); the pictures and how many there
are in each are PRIVATE. A damaged picture is named by its path and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np
from PIL import Image, ImageOps

from sfumato.data.schema import Schema
from sfumato.data.sources import Array, Rows, Source
from sfumato.errors import BadInput

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
)
# Pictures per task: enough to hide the cost of a hand-over, few enough to share the work.
_TASK = 16
_PLAIN = frozenset(" !#$&'()+,;=@[]^_`{}~-.")


def folder_name(class_name: str) -> str:
    """A class name as a folder name: "T-shirt/top" becomes "T-shirt%2Ftop"."""
    name = "".join(
        letter if letter.isalnum() or letter in _PLAIN else quote(letter, safe="")
        for letter in class_name
    )
    return "%2E" + name[1:] if name.startswith(".") else name


def class_folders(folder: Path) -> tuple[str, ...]:
    """The class names that the sub-folders spell; () for a flat folder.

    Numbers are sorted by size, names by the alphabet.
    """
    names = [unquote(entry.name) for entry in _entries(folder) if entry.is_dir()]
    if all(name.isascii() and name.isdigit() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


class FolderSource(Source):
    """Pictures below a folder, by class in the order of the schema and then by path."""

    def __init__(self, folder: Path, schema: Schema, *, threads: int | None = None) -> None:
        self._shape = schema.shape
        self._threads = threads or min(8, (os.cpu_count() or 1) + 1)
        if schema.labelled:
            found = _by_class(folder, schema.classes)
            self._labels: Array | None = np.repeat(
                np.arange(len(found), dtype=np.int64), [len(files) for files in found]
            )
            self._files = [file for files in found for file in files]
        else:
            self._labels = None
            self._files = _pictures(folder)
        if not self._files:
            raise BadInput(
                f"{folder} holds no pictures ({', '.join(sorted(SUFFIXES))}); check the path."
            )

    def __len__(self) -> int:
        return len(self._files)

    def blocks(self, size: int) -> Iterator[Rows]:
        with ThreadPoolExecutor(self._threads, thread_name_prefix="sfumato-decode") as pool:
            waiting: list[tuple[Array, int, int, list[Future[None]]]] = []
            try:
                for start in range(0, len(self), size):
                    stop = min(start + size, len(self))
                    waiting.append(self._submit(pool, start, stop))
                    if len(waiting) == 2:
                        yield self._finish(waiting.pop(0))
                while waiting:
                    yield self._finish(waiting.pop(0))
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def take(self, indices: Array) -> Rows:
        values = np.empty((len(indices), *self._shape), np.uint8)
        files = [self._files[index] for index in indices]
        if len(files) <= _TASK:
            _decode_into(files, values)
        else:
            with ThreadPoolExecutor(self._threads) as pool:
                tasks = _tasks(pool, files, values)
                try:
                    for task in tasks:
                        task.result()
                finally:
                    pool.shutdown(wait=True, cancel_futures=True)
        return values, None if self._labels is None else self._labels[indices]

    def _submit(
        self, pool: ThreadPoolExecutor, start: int, stop: int
    ) -> tuple[Array, int, int, list[Future[None]]]:
        values = np.empty((stop - start, *self._shape), np.uint8)
        return values, start, stop, _tasks(pool, self._files[start:stop], values)

    def _finish(self, block: tuple[Array, int, int, list[Future[None]]]) -> Rows:
        values, start, stop, tasks = block
        for task in tasks:
            task.result()
        return values, None if self._labels is None else self._labels[start:stop]


def _tasks(pool: ThreadPoolExecutor, files: list[str], values: Array) -> list[Future[None]]:
    return [
        pool.submit(_decode_into, files[at : at + _TASK], values[at : at + _TASK])
        for at in range(0, len(files), _TASK)
    ]


def _decode_into(files: list[str], values: Array) -> None:
    for file, row in zip(files, values, strict=True):
        row[...] = decode(file, row.shape)


def decode(file: str, shape: tuple[int, ...]) -> Array:
    """One picture as uint8 (C, H, W): upright, on white if transparent, gray or RGB, resized."""
    channels, height, width = shape
    try:
        with Image.open(file) as opened:
            picture = ImageOps.exif_transpose(opened)
            if picture.mode.startswith("I"):
                # Sixteen-bit gray (medical pictures): Pillow would cut off above 255.
                deep = np.asarray(picture).astype(np.int64).clip(0, 65535) >> 8
                picture = Image.fromarray(deep.astype(np.uint8))
            elif picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
                picture = picture.convert("RGBA")
                white = Image.new("RGBA", picture.size, "white")
                picture = Image.alpha_composite(white, picture)
            picture = picture.convert("L" if channels == 1 else "RGB")
            if picture.size != (width, height):
                picture = picture.resize((width, height), Image.Resampling.BICUBIC)
            pixels = np.asarray(picture)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise BadInput(
            f"{file} is truncated, damaged or no picture; replace or remove it."
        ) from error
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _by_class(folder: Path, classes: tuple[str, ...]) -> list[list[str]]:
    code = {name: index for index, name in enumerate(classes)}
    found: list[list[str]] = [[] for _ in classes]
    for entry in _entries(folder):
        if entry.is_dir():
            name = entry.name if entry.name in code else unquote(entry.name)
            if name not in code:
                raise BadInput(
                    f"The folder {entry.path} is none of the classes; add it to the schema's "
                    "classes or remove it."
                )
            found[code[name]] += _pictures(Path(entry.path))
        elif _is_picture(entry.name):
            raise BadInput(
                f"{entry.path} lies beside the class folders and has no class; move it into one "
                "of them."
            )
    return found


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listing:
            entries = [entry for entry in listing if not entry.name.startswith(".")]
    except OSError as error:
        raise BadInput(
            f"Cannot read {folder}: {error.strerror or error}; check the path."
        ) from error
    return sorted(entries, key=lambda entry: entry.name)


def _is_picture(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES


def _pictures(folder: Path) -> list[str]:
    found: list[str] = []
    for entry in _entries(folder):
        if entry.is_dir():
            found += _pictures(Path(entry.path))
        elif _is_picture(entry.name):
            found.append(entry.path)
    return found
