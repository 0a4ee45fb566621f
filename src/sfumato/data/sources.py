"""Where rows come from: arrays, memory-mapped files, and streams that are read front to back.

A source hands out blocks of rows in a fixed order and knows nothing of privacy. Rows are PRIVATE:
no error raised here quotes a value, a count or a label; a file's path and a column's name may be
named. What a record becomes depends on its own bytes and on public facts (stored type, stated
range) alone, never on the block it is read with.

Headers are believed only as far as the file's own size bears them out, and nothing is unpacked
before its size is known to be sane.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import tokenize
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import accumulate, repeat
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, cast

import numpy as np

from sfumato.data.schema import MOST_CLASSES, ValueRange
from sfumato.errors import BadInput

Array = np.ndarray[Any, Any]
Rows = tuple[Array, Array | None]

# A scan (for `take` on a stream) holds this many rows at a time.
SCAN_ROWS = 1024
_SKIPPED_ROWS = 1024
# No .npy header of an array of numbers is longer, nor any list of class names.
_HEADER_BYTES = 1 << 14
_NAMES_BYTES = 1 << 24
# What a damaged file makes of Python's and numpy's readers; anything but Ctrl-C or a real lack of memory.
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    tokenize.TokenError,
)


class Source(ABC):
    """Rows in a fixed order: `values` (m, *shape) and `labels` (m,) or None."""

    random_access: ClassVar[bool] = True

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def blocks(self, size: int) -> Iterator[Rows]:
        """All rows in order, `size` at a time, the last block perhaps shorter."""

    @abstractmethod
    def take(self, indices: Array) -> Rows:
        """The rows at `indices` (valid, any order, repeats allowed)."""

    def part(self, start: int, stop: int) -> Source:
        """The rows from `start` up to `stop` as a source of their own; sent to another machine, it takes no other row along."""
        raise BadInput(
            f"{type(self).__name__} cannot be divided over machines; use the local engine."
        )


class StreamSource(Source):
    """A source that can only be read front to back."""

    random_access: ClassVar[bool] = False

    def between(self, size: int, start: int, stop: int) -> Iterator[Rows]:
        """`blocks` of the rows from `start` up to `stop` alone; a file that can skip what comes before does so."""
        raise NotImplementedError

    def part(self, start: int, stop: int) -> Source:
        return _StreamPart(self, start, stop)

    def take(self, indices: Array) -> Rows:
        order = np.argsort(indices, kind="stable")
        wanted = indices[order]
        values: Array | None = None
        labels: Array | None = None
        start = done = 0
        for block, block_labels in self.blocks(SCAN_ROWS):
            if values is None:
                values = np.empty((len(indices), *block.shape[1:]), block.dtype)
                labels = (
                    None if block_labels is None else np.empty(len(indices), block_labels.dtype)
                )
            stop = int(np.searchsorted(wanted, start + len(block)))
            values[order[done:stop]] = block[wanted[done:stop] - start]
            if labels is not None and block_labels is not None:
                labels[order[done:stop]] = block_labels[wanted[done:stop] - start]
            start, done = start + len(block), stop
            if done == len(indices):
                break
        if values is None:
            raise BadInput("The data holds no rows; check the file.")
        return values, labels


class _StreamPart(StreamSource):
    """Some rows of a stream that follow each other."""

    def __init__(self, whole: StreamSource, start: int, stop: int) -> None:
        self._whole, self._start, self._stop = whole, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def blocks(self, size: int) -> Iterator[Rows]:
        return self._whole.between(size, self._start, self._stop)

    def part(self, start: int, stop: int) -> Source:
        return _StreamPart(self._whole, self._start + start, self._start + stop)


class JoinedSource(StreamSource):
    """The rows of several sources, one after another: the shards of a folder."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)
        # Of an instance, not of the class: shards that can be mapped are as good as one array.
        self.random_access = all(s.random_access for s in sources)  # type: ignore[misc]
        self._starts: list[int] | None = None

    def __len__(self) -> int:
        return self._ends()[-1]

    def blocks(self, size: int) -> Iterator[Rows]:
        return of_size(size, (rows for source in self.sources for rows in source.blocks(size)))

    def take(self, indices: Array) -> Rows:
        if not self.random_access:
            return super().take(indices)
        starts = np.array(self._ends()[:-1])
        shard = np.searchsorted(starts, indices, side="right") - 1
        found: Rows | None = None
        for number in np.unique(shard).tolist():
            here = np.flatnonzero(shard == number)
            values, labels = self.sources[number].take(indices[here] - starts[number])
            if found is None:
                found = (
                    np.empty((len(indices), *values.shape[1:]), values.dtype),
                    None if labels is None else np.empty(len(indices), labels.dtype),
                )
            found[0][here] = values
            if found[1] is not None and labels is not None:
                found[1][here] = labels
        return self.sources[0].take(indices) if found is None else found

    def part(self, start: int, stop: int) -> Source:
        ends = self._ends()
        return JoinedSource(
            [
                source.part(max(start, first) - first, min(stop, last) - first)
                for source, first, last in zip(self.sources, ends, ends[1:], strict=False)
                if max(start, first) < min(stop, last)
            ]
        )

    def _ends(self) -> list[int]:
        """Where each source begins, and where the last one ends; counting a .csv reads it through."""
        if self._starts is None:
            self._starts = [0, *accumulate(len(source) for source in self.sources)]
        return self._starts


def of_size(size: int, blocks: Iterator[Rows]) -> Iterator[Rows]:
    """The same rows in blocks of exactly `size`, but for the last."""
    held: list[Rows] = []
    count = 0
    for block in blocks:
        held.append(block)
        count += len(block[0])
        while count >= size:
            values, labels = _joined(held)
            yield values[:size], None if labels is None else labels[:size]
            count -= size
            held = [(values[size:], None if labels is None else labels[size:])] if count else []
    if count:
        yield _joined(held)


def _joined(blocks: list[Rows]) -> Rows:
    if len(blocks) == 1:
        return blocks[0]
    labels = [codes for _, codes in blocks if codes is not None]
    return np.concatenate([values for values, _ in blocks]), np.concatenate(
        labels
    ) if labels else None


@dataclass(frozen=True)
class Scale:
    """Stored numbers to 0 … 1 by a public range: low becomes 0, high becomes 1, NaN stays NaN."""

    low: float
    high: float

    def __call__(self, stored: Array) -> Array:
        if (self.low, self.high) == (0.0, 1.0):
            return stored.astype(np.float32, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            unit = (stored.astype(np.float64) - self.low) / (self.high - self.low)
            return unit.astype(np.float32)


def eight_bits(unit: Array) -> Array:
    """Pixels of 0 … 1 as bytes: what lies outside is cut off, a pixel that is no number becomes black, bytes stay."""
    if unit.dtype == np.uint8:
        return unit
    whole = np.nan_to_num(unit, nan=0.0).clip(0.0, 1.0) * np.float32(255.0)
    return np.rint(whole).astype(np.uint8)


class ArraySource(Source):
    """Arrays in memory, or mapped from a file; blocks are views, nothing is copied unless scaled."""

    def __init__(self, values: Array, labels: Array | None, scale: Scale | None = None) -> None:
        self.stored = values
        self.labels = labels
        self.scale = scale

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def values(self) -> Array:
        return self._scaled(self.stored)

    def blocks(self, size: int) -> Iterator[Rows]:
        for start in range(0, len(self), size):
            stop = start + size
            labels = None if self.labels is None else self.labels[start:stop]
            yield self._scaled(self.stored[start:stop]), labels

    def take(self, indices: Array) -> Rows:
        labels = None if self.labels is None else self.labels[indices]
        return self._scaled(self.stored[indices]), labels

    def part(self, start: int, stop: int) -> Source:
        labels = None if self.labels is None else self.labels[start:stop]
        return ArraySource(self.stored[start:stop], labels, self.scale)

    def _scaled(self, stored: Array) -> Array:
        return stored if self.scale is None else self.scale(stored)


@dataclass(frozen=True)
class Stored:
    """An array inside a file: its type and shape as stored, where it begins, how it is packed."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    member: str | None = None
    packing: str = "plain"  # plain (can be mapped), gzip, zip
    fortran: bool = False

    @property
    def mappable(self) -> bool:
        return self.packing == "plain"

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process may work in another folder.
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        return partial(Stored, **{**state, "path": self.path.absolute()}), ()

    def map(self) -> Array:
        # Copy-on-write: torch wants writable memory, the file must never change.
        order: Literal["F", "C"] = "F" if self.fortran else "C"
        try:
            return np.memmap(
                self.path, self.dtype, "c", offset=self.offset, shape=self.shape, order=order
            )
        except _DAMAGE as error:
            raise _unreadable(self.path) from error

    def open(self) -> IO[bytes]:
        """A stream placed at the first byte of the array."""
        try:
            if self.packing == "zip":
                # The member keeps the archive's file open until it is closed itself.
                with zipfile.ZipFile(self.path) as archive:
                    stream = archive.open(self.member or "")
            else:
                stream = _open_packed(self.path, self.packing)
            _exactly(stream, self.offset, self.path)
            return stream
        except _DAMAGE as error:
            raise _unreadable(self.path) from error

    def blocks(self, size: int, first: int = 0, stop: int | None = None) -> Iterator[Array]:
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        stop = self.shape[0] if stop is None else stop
        with self.open() as stream:
            for start in range(
                0, first, _SKIPPED_ROWS
            ):  # what is packed is unpacked to be passed over
                _exactly(stream, min(_SKIPPED_ROWS, first - start) * row_bytes, self.path)
            for start in range(first, stop, size):
                rows = min(size, stop - start)
                data = _exactly(stream, rows * row_bytes, self.path)
                yield np.frombuffer(data, self.dtype).reshape(rows, *self.shape[1:])


@dataclass(frozen=True)
class _Files:
    """Values and labels inside files, how they are arranged as rows, and how they become 0 … 1."""

    values: Stored
    labels: Stored | None
    arrange: Callable[[Array], Array]
    scale: Scale | None


class FileSource(StreamSource):
    """Images and labels inside compressed files, read front to back in constant memory."""

    def __init__(self, files: _Files) -> None:
        self._files = files

    def __len__(self) -> int:
        return self._files.values.shape[0]

    def blocks(self, size: int) -> Iterator[Rows]:
        return self.between(size, 0, len(self))

    def between(self, size: int, start: int, stop: int) -> Iterator[Rows]:
        stored, scale = self._files, self._files.scale
        codes: Iterator[Array | None] = repeat(None)
        if stored.labels is not None:
            codes = stored.labels.blocks(size, start, stop)
        for values, labels in zip(stored.values.blocks(size, start, stop), codes, strict=False):
            arranged = stored.arrange(values)
            yield arranged if scale is None else scale(arranged), labels


class MappedSource(ArraySource):
    """Arrays mapped from uncompressed files; travels to another process as paths, not as rows."""

    def __init__(self, files: _Files, start: int = 0, stop: int | None = None) -> None:
        self._files, self._start = files, start
        rows = slice(start, stop)
        labels = None if files.labels is None else files.labels.map()[rows]
        super().__init__(files.arrange(files.values.map())[rows], labels, files.scale)

    def part(self, start: int, stop: int) -> Source:
        return MappedSource(self._files, self._start + start, self._start + stop)

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedSource, (self._files, self._start, self._start + len(self))


def from_files(
    values: Stored,
    labels: Stored | None,
    arrange: Callable[[Array], Array],
    scale: Scale | None = None,
) -> Source:
    if labels is not None and labels.shape != values.shape[:1]:
        raise BadInput(
            f"The images in {values.path} and their labels are not equally many; give one label "
            "an image."
        )
    mappable = values.mappable and (labels is None or labels.mappable)
    return (MappedSource if mappable else FileSource)(_Files(values, labels, arrange, scale))


# ---------------------------------------------------------------------------------- image layouts


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(channels, height, width) of N×C×H×W, N×H×W or N×H×W×3; in doubt, channels come first."""
    if len(shape) == 3:
        return 1, shape[1], shape[2]
    if len(shape) == 4 and shape[1] in (1, 3):
        return shape[1], shape[2], shape[3]
    if len(shape) == 4 and shape[3] in (1, 3):
        return shape[3], shape[1], shape[2]
    raise BadInput(
        "Images must be an array N×C×H×W, N×H×W or N×H×W×3 with 1 or 3 channels; this one has "
        "shape "
        f"N×{'×'.join(map(str, shape[1:])) or '…'}, so reshape it first."
    )


def channels_first(images: Array) -> Array:
    """The same memory seen as N×C×H×W."""
    if images.ndim == 3:
        return images[:, None]
    if images.shape[1] in (1, 3):
        return images
    return np.moveaxis(images, 3, 1)


def as_stored(values: Array) -> Array:
    """The arrangement of arrays that need none."""
    return values


def pixel_scale(dtype: np.dtype[Any], stated: ValueRange | None) -> Scale | None:
    """How stored pixels become 0 … 1; None where they are bytes of 0 … 255, which stay as they are.

    The stored type settles the range of bytes and of booleans. It settles no other: sixteen bits
    may hold twelve, and floating point anything, so there the range must be stated. Nothing is
    guessed from values.
    """
    if dtype.kind not in "biuf":
        raise BadInput(f"Images have type {dtype}; give whole numbers, floating point or booleans.")
    if stated is None:
        if dtype == np.uint8:
            return None
        if dtype.kind == "b":
            return Scale(0.0, 1.0)
        raise unsettled(f"Images of type {dtype}", dtype)
    low, high = stated
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            raise BadInput(
                f"Images have type {dtype}, which cannot hold the stated range {low:g} … {high:g}; "
                "state the range of the file's own numbers."
            )
    return None if dtype == np.uint8 and (low, high) == (0.0, 255.0) else Scale(low, high)


def unsettled(what: str, dtype: np.dtype[Any]) -> BadInput:
    """The error for pixels whose range their stored type does not settle."""
    remedy = "pass value_range=(0, 1) or whatever it is (--range 0 1)"
    if dtype.kind in "iu":
        remedy = (
            "pass bits=12 or bits=16 (--bits 12), or value_range=(LOW, HIGH) (--range LOW HIGH)"
        )
    return BadInput(
        f"{what} do not say which numbers stand for black and white; {remedy}, or write "
        '"value_range" into the schema, since reading it off the pixels would be a leak.'
    )


def check_label_type(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "iu":
        raise BadInput(f"Labels have type {dtype}; give whole numbers from 0 to classes − 1.")


# ------------------------------------------------------------------------------------ npz and idx


def npz_members(path: Path) -> dict[str, Stored]:
    """The arrays of an .npz by name, from their headers alone."""
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.filename.endswith(".npy"):
                    found[info.filename.removesuffix(".npy")] = _npy_header(path, archive, info)
    except BadInput:
        raise
    except _DAMAGE as error:
        raise _unreadable(path) from error
    return found


def npy_header(path: Path) -> Stored:
    """The array in a .npy file, from its header alone."""
    try:
        with path.open("rb") as stream:
            shape, fortran, dtype, offset = _npy_facts(stream)
        size = path.stat().st_size
    except _DAMAGE as error:
        raise _unreadable(path) from error
    if dtype.hasobject or size != offset + dtype.itemsize * math.prod(shape):
        raise _unreadable(path)
    return Stored(path, dtype, shape, offset, None, "plain", fortran)


def _npy_facts(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    version = np.lib.format.read_magic(stream)
    first = version == (1, 0)
    prefix = stream.read(2 if first else 4)
    length = int.from_bytes(prefix, "little")
    if length > _HEADER_BYTES:
        raise ValueError("header too long")
    # numpy would read whatever length the file claims before it looks at it.
    header = io.BytesIO(prefix + stream.read(length))
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(header)
    if any(isinstance(side, bool) or side < 0 for side in shape):
        raise ValueError("negative side")
    return shape, fortran, dtype, 8 + len(prefix) + length


def _npy_header(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Stored:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadInput(
            f"{path} is packed in a way that numpy never uses; save it with np.savez_compressed."
        )
    with archive.open(info) as stream:
        shape, fortran, dtype, offset = _npy_facts(stream)
    if dtype.hasobject:
        raise BadInput(
            f"{path} holds Python objects, which sfumato never loads; save plain arrays of "
            "numbers or text."
        )
    if info.file_size != offset + dtype.itemsize * math.prod(shape):
        raise _unreadable(path)
    if info.compress_type != zipfile.ZIP_STORED:
        if fortran and len(shape) > 1:
            raise BadInput(
                f"{path} is compressed and in Fortran order; save np.ascontiguousarray(…) of the "
                "images."
            )
        return Stored(path, dtype, shape, offset, info.filename, "zip")
    with path.open("rb") as raw:
        # The lengths in the local header, not those of the directory, say where the data begins.
        raw.seek(info.header_offset)
        local = _exactly(raw, 30, path)
        start = info.header_offset + 30
        start += int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
    return Stored(path, dtype, shape, start + offset, info.filename, "plain", fortran)


def read_names(stored: Stored) -> tuple[str, ...]:
    """A small array of text or numbers (class names: public facts), as text."""
    return tuple(str(name) for name in _read_small(stored, "USiub"))


def read_range(stored: Stored) -> ValueRange:
    """The range that a writer stated inside its file."""
    numbers = _read_small(stored, "iuf").tolist()
    if len(numbers) != 2:
        raise _unreadable(stored.path)
    return float(numbers[0]), float(numbers[1])


def _read_small(stored: Stored, kinds: str) -> Array:
    size = stored.dtype.itemsize * math.prod(stored.shape)
    fits = len(stored.shape) == 1 and stored.shape[0] <= MOST_CLASSES and size <= _NAMES_BYTES
    if not fits or stored.dtype.kind not in kinds:
        raise _unreadable(stored.path)
    with stored.open() as stream:
        data = _exactly(stream, size, stored.path)
    try:
        array = np.frombuffer(data, stored.dtype)
        array.tolist()  # text that is none fails here
    except _DAMAGE as error:
        raise _unreadable(stored.path) from error
    return array


def idx_header(path: Path) -> Stored:
    """The header of an IDX file (the format of MNIST), plain or .gz."""
    packing = "gzip" if path.suffix == ".gz" else "plain"
    try:
        with _open_packed(path, packing) as stream:
            magic = _exactly(stream, 4, path)
            if magic[:3] != b"\x00\x00\x08" or magic[3] not in (1, 3, 4):
                raise BadInput(
                    f"{path} is not an IDX file of bytes; check that it is the right file."
                )
            sizes = np.frombuffer(_exactly(stream, 4 * magic[3], path), ">u4")
        stored_bytes = path.stat().st_size
    except _DAMAGE as error:
        raise _unreadable(path) from error
    shape = tuple(int(size) for size in sizes)
    offset = 4 + 4 * len(shape)
    if packing == "plain" and stored_bytes != offset + math.prod(shape):
        raise _unreadable(path)
    return Stored(path, np.dtype(np.uint8), shape, offset, None, packing)


def _open_packed(path: Path, packing: str) -> IO[bytes]:
    stream = gzip.open(path) if packing == "gzip" else path.open("rb")  # noqa: SIM115
    return cast("IO[bytes]", stream)


def _exactly(stream: IO[bytes], size: int, path: Path) -> bytes:
    try:
        data = stream.read(size)
    except _DAMAGE as error:
        raise _unreadable(path) from error
    if len(data) != size:
        raise _unreadable(path)
    return data


def _unreadable(path: Path) -> BadInput:
    try:
        path.stat()
    except FileNotFoundError:
        return BadInput(f"There is no {path}; check the path.")
    except (OSError, ValueError):
        pass
    return BadInput(f"{path} is truncated, damaged or not readable; restore it from its original.")
