"""Image folders: files decoded in threads, a batch ahead of the reader, in a fixed order.

The names of class sub-folders are PUBLIC (they are the classes); the pictures and how many there
are in each are PRIVATE. A damaged picture is named by its path and nothing else. Each picture is
decoded by its own header and the stated range, alone; what its header leaves open (which numbers
of sixteen bits, whole numbers or floating point are black and white) must be stated, and is never
guessed from pixels.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from PIL import Image, ImageOps

from sfumato.data.schema import Schema, ValueRange
from sfumato.data.sources import Array, Rows, Scale, Source, eight_bits, unsettled
from sfumato.errors import BadInput

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
)
# What those endings promise; a file of another kind under such a name is refused, not tried.
_FORMATS = ("PNG", "JPEG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM")
# A picture with more pixels is refused by its header, before it is unpacked.
MOST_PIXELS = 1 << 25
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
    names = [unquote(entry.name) for entry in _entries(folder) if _is_folder(entry)]
    if all(name.isascii() and name.isdigit() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


class FolderSource(Source):
    """Pictures below a folder, by class in the order of the schema and then by path."""

    def __init__(
        self,
        folder: Path,
        schema: Schema,
        *,
        threads: int | None = None,
        fallback: ValueRange | None = None,
    ) -> None:
        self._folder = folder
        self._shape = schema.shape
        self._range = schema.value_range
        self._fallback = fallback
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

    def paths(self) -> Iterator[str]:
        """Where each record lies below the folder, with / between the parts."""
        return (Path(os.path.relpath(file, self._folder)).as_posix() for file in self._files)

    def blocks(self, size: int) -> Iterator[Rows]:
        with self._pool() as pool:
            ahead: list[Callable[[], Rows]] = []
            for start in range(0, len(self), size):
                ahead.append(self._decoding(pool, np.arange(start, min(start + size, len(self)))))
                if len(ahead) == 2:
                    yield ahead.pop(0)()
            for finish in ahead:
                yield finish()

    def part(self, start: int, stop: int) -> Source:
        some = copy.copy(self)
        # Another process may work in another folder.
        some._files = [str(Path(file).absolute()) for file in self._files[start:stop]]
        some._labels = None if self._labels is None else self._labels[start:stop]
        return some

    def take(self, indices: Array) -> Rows:
        with self._pool() as pool:
            # Starting a thread costs more than a few pictures do.
            return self._decoding(pool if len(indices) > _TASK else None, indices)()

    @contextlib.contextmanager
    def _pool(self) -> Iterator[ThreadPoolExecutor]:
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="sfumato-decode")
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _decoding(self, pool: ThreadPoolExecutor | None, chosen: Array) -> Callable[[], Rows]:
        """Let the pool decode the chosen pictures; what is returned waits for them."""
        files = [self._files[index] for index in chosen]
        values = np.empty((len(files), *self._shape), np.uint8)
        waits: list[Callable[[], None]] = []
        for at in range(0, len(files), _TASK):
            work = partial(self._decode_into, files[at : at + _TASK], values[at : at + _TASK])
            waits.append(work if pool is None else pool.submit(work).result)

        def finish() -> Rows:
            for wait in waits:
                wait()
            return values, None if self._labels is None else self._labels[chosen]

        return finish

    def _decode_into(self, files: list[str], values: Array) -> None:
        for file, row in zip(files, values, strict=True):
            row[...] = decode(file, row.shape, self._range, self._fallback)


# ---------------------------------------------------------------------------------------- decoding


def decode(
    file: str,
    shape: tuple[int, ...],
    value_range: ValueRange | None = None,
    fallback: ValueRange | None = None,
) -> Array:
    """One picture as uint8 (C, H, W): upright, on white if transparent, gray or RGB, resized.

    `value_range` says which stored numbers are black and white; `fallback` serves where the
    picture's header settles none.
    """
    channels, height, width = shape
    try:
        with Image.open(file, formats=_FORMATS) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise BadInput(
                    f"{file} has more than {MOST_PIXELS:,} pixels by its header; make it smaller or remove it."
                )
            if opened.format == "TIFF" and getattr(opened, "is_animated", False):
                raise BadInput(
                    f"{file} holds several pictures; save each as a file of its own, since a file is one record."
                )
            picture = _bytes(file, opened, value_range, fallback)
            if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or (
                "transparency" in picture.info
            ):
                picture = picture.convert("RGBA")
                white = Image.new("RGBA", picture.size, "white")
                picture = Image.alpha_composite(white, picture)
            if picture.mode == "CMYK":
                picture = picture.convert("RGB")
            picture = picture.convert("L" if channels == 1 else "RGB")
            if picture.size != (width, height):
                picture = picture.resize((width, height), Image.Resampling.BICUBIC)
            pixels = np.asarray(picture)
    except BadInput:
        raise
    # Pillow's decoders meet damage with a dozen kinds of exception, struct.error and IndexError among them.
    except Exception as error:
        raise BadInput(
            f"{file} is truncated, damaged or no picture; replace or remove it."
        ) from error
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _bytes(
    file: str, opened: Any, stated: ValueRange | None, fallback: ValueRange | None
) -> Image.Image:
    """The picture in eight bits a channel, where black is 0 and white is 255."""
    tags = getattr(opened, "tag_v2", {})
    white_is_zero, signed = tags.get(262) == 0, tags.get(339) == (2,)
    mode, depth = opened.mode, _depth(file, opened, tags)
    upright = ImageOps.exif_transpose(opened)
    if mode in ("LAB", "HSV"):
        raise BadInput(f"{file} is in {mode} colours; convert it to RGB.")
    if mode.startswith("I") or mode == "F":
        scale = _deep_scale(file, opened, stated or fallback)
        pixels = np.asarray(upright)
        if tags.get(258) == (32,) and tags.get(339, (1,)) == (1,):
            pixels = pixels.view(np.uint32)  # Pillow takes them for signed
        return _eight_bits(pixels, scale, white_is_zero, opened.info.get("transparency"))
    if depth > 8:
        # Pillow keeps the upper eight of sixteen bits of colour: right if all sixteen are used, black if twelve are.
        if (stated or fallback) != (0.0, 65535.0):
            raise BadInput(
                f"{file} has more than eight bits a colour, which are read only in their full range; pass "
                "bits=16 (--bits 16) if they use it, else convert it to eight bits."
            )
        return upright
    if not signed and (stated is None or stated == (0.0, 255.0)):
        return upright
    # Pillow has stretched fewer bits over eight, turned white to zero or looked up a palette: the stored numbers are gone.
    kept = mode == "1" or (mode in ("L", "RGB") and depth == 8 and not white_is_zero)
    if signed or stated is None or not kept or stated[0] < 0 or stated[1] > 255:
        raise BadInput(
            f"{file} does not store numbers in the stated range; correct the range, leave it out, or convert "
            "the picture to eight bits."
        )
    return _eight_bits(np.asarray(upright), Scale(*stated))


def _eight_bits(
    pixels: Array, scale: Scale, white_is_zero: bool = False, clear: Any = None
) -> Image.Image:
    shades = np.empty(pixels.shape, np.uint8)
    for top in range(0, len(pixels), 64):  # a strip at a time: the picture may be large
        stored = pixels[top : top + 64]
        unit = scale(stored).clip(0.0, 1.0)
        if white_is_zero:
            unit = np.float32(1.0) - unit
        if isinstance(clear, int):
            unit = np.where(stored == clear, np.float32(1.0), unit)
        shades[top : top + 64] = eight_bits(unit)
    return Image.fromarray(shades)


def _deep_scale(file: str, opened: Any, stated: ValueRange | None) -> Scale:
    """How the numbers that Pillow gives for a deep picture become 0 … 1."""
    if opened.format == "PPM" and opened.mode != "F":
        # Pillow stretches 0 … maxval, which the header states, over sixteen bits.
        most = _maxval(file)
        low, high = stated or (0.0, float(most))
        return Scale(low * 65535.0 / most, high * 65535.0 / most)
    if stated is None:
        kind = np.dtype(np.float32) if opened.mode == "F" else np.dtype(np.uint16)
        raise unsettled(f"The pixels of {file}", kind)
    if opened.mode.startswith("I;16") and (stated[0] < 0 or stated[1] > 65535):
        raise BadInput(
            f"{file} has sixteen bits without a sign, which cannot hold the stated range {stated[0]:g} … "
            f"{stated[1]:g}; correct the range."
        )
    return Scale(*stated)


def _depth(file: str, opened: Any, tags: Any) -> int:
    """The bits of a channel as the file's header says, where Pillow's mode does not tell."""
    if opened.format == "TIFF":
        return max(tags.get(258, (8,)))
    if opened.format == "PNG":
        with Path(file).open("rb") as stream:
            return stream.read(25)[24]
    if opened.format == "PPM" and opened.mode in ("L", "RGB"):
        return 8 if _maxval(file) == 255 else 7  # Pillow stretches any other to eight bits
    return 8


def _maxval(file: str) -> int:
    with Path(file).open("rb") as stream:
        head = re.sub(rb"#[^\r\n]*[\r\n]", b" ", stream.read(4096))
    most = int(head.split(maxsplit=4)[3])
    if not 0 < most < 65536:
        raise ValueError("maxval")
    return most


# ----------------------------------------------------------------------------------------- listing


def _by_class(folder: Path, classes: tuple[str, ...]) -> list[list[str]]:
    code = {name: index for index, name in enumerate(classes)}
    found: list[list[str]] = [[] for _ in classes]
    listing = _Listing()
    for entry in _entries(folder):
        if _is_folder(entry):
            name = entry.name if entry.name in code else unquote(entry.name)
            if name not in code:
                raise BadInput(
                    f"The folder {entry.path} is none of the classes; add it to the schema's "
                    "classes or remove it."
                )
            found[code[name]] += listing.pictures(entry.path)
        elif _is_picture(entry.name):
            raise BadInput(
                f"{entry.path} lies beside the class folders and has no class; move it into one "
                "of them."
            )
    listing.check()
    return found


def _pictures(folder: Path) -> list[str]:
    listing = _Listing()
    found = listing.pictures(str(folder))
    listing.check()
    return found


class _Listing:
    """The pictures below folders, each counted once: a record that a link shows twice would count as two people's."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()
        self._plain: set[str] = set()
        self._links: list[str] = []

    def pictures(self, folder: str) -> list[str]:
        """Depth first, by name."""
        found: list[str] = []
        waiting = [iter(self._enter(folder))]
        while waiting:
            entry = next(waiting[-1], None)
            if entry is None:
                waiting.pop()
            elif _is_folder(entry):
                waiting.append(iter(self._enter(entry.path)))
            elif _is_picture(entry.name):
                if not entry.is_file():  # to open a pipe would wait for ever
                    raise BadInput(f"{entry.path} is no file, or a link to nothing; remove it.")
                found.append(entry.path)
                if entry.is_symlink():
                    self._links.append(entry.path)
                else:
                    self._plain.add(entry.path)
        return found

    def _enter(self, folder: str) -> list[os.DirEntry[str]]:
        entries = _entries(Path(folder))
        place = os.stat(folder)  # noqa: PTH116
        if (place.st_dev, place.st_ino) in self._seen:
            raise BadInput(
                f"{folder} leads to a folder that was read already, so its pictures would count twice; remove "
                "the link."
            )
        self._seen.add((place.st_dev, place.st_ino))
        return entries

    def check(self) -> None:
        """Refuse a link to a picture that is itself among the pictures."""
        if not self._links:
            return
        plain = {os.path.realpath(file) for file in self._plain}
        for link in self._links:
            if os.path.realpath(link) in plain:
                raise BadInput(
                    f"{link} is a link to another picture of the set, which would count twice; remove it."
                )


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listing:
            entries = [entry for entry in listing if not entry.name.startswith(".")]
    except OSError as error:
        raise BadInput(
            f"Cannot read {folder}: {error.strerror or error}; check the path."
        ) from error
    return sorted(entries, key=lambda entry: entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        raise BadInput(
            f"Cannot follow {entry.path}: {error.strerror or error}; remove the link."
        ) from error


def _is_picture(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES
