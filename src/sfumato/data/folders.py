"""Pictures below a folder or in a .tar (WebDataset): decoded in threads, a batch ahead of the reader, in a fixed order.

The names of class sub-folders are PUBLIC (they are the classes); the pictures, how many there are in each, and what a table
beside them says of each (`data.beside`) are PRIVATE. A damaged picture is named by its path and nothing else.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import tarfile
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import quote, unquote

import numpy as np

from sfumato.data.beside import FileTable
from sfumato.data.decoding import SUFFIXES, StoredFacts, decode, stored_facts
from sfumato.data.dicom import DICOM, UnitTag
from sfumato.data.schema import Schema, ValueRange
from sfumato.data.sources import Array, Rows, Source
from sfumato.data.tables import check_countable, class_code, label_code
from sfumato.errors import BadInput, printable

# Pictures per task: enough to hide the cost of a hand-over, few enough to share the work.
_TASK = 16
_LABEL_BYTES = 4096  # of a class name in a .cls
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


class PictureSource(Source):
    """Pictures that are decoded one by one, each by itself; where they lie is the child's business."""

    def __init__(
        self, schema: Schema, *, threads: int | None = None, fallback: ValueRange | None = None
    ) -> None:
        self._shape = schema.shape
        self._range = schema.value_range
        self._fit = schema.fit
        self._fallback = fallback
        self._threads = threads or min(8, (os.cpu_count() or 1) + 1)
        self._labels: Array | None = None

    @abstractmethod
    def paths(self) -> Iterator[str]:
        """Where each record lies below the folder or in the archive, with / between the parts."""

    def looked_at(self) -> Iterator[tuple[str, StoredFacts | BadInput]]:
        """What every file holds as it is stored, or why it cannot be read; PRIVATE, for the owner's eyes."""

        def look(index: int) -> tuple[str, StoredFacts | BadInput]:
            file, content = self._picture(index)
            try:
                decode(
                    file, self._shape, self._range, self._fallback, fit=self._fit, content=content
                )
                return file, stored_facts(file, content)
            except BadInput as error:
                return file, error

        with self._pool() as pool:
            for start in range(0, len(self), 64 * _TASK):
                yield from pool.map(look, range(start, min(start + 64 * _TASK, len(self))))

    @property
    def dicom(self) -> bool:
        """Whether these are DICOM files, by the name of the first."""
        return Path(next(self.paths(), "")).suffix.lower() in DICOM

    def header_field(self, tag: UnitTag) -> Iterator[str]:
        """What a field of each DICOM file's header says, "" where it says nothing or is no such file; PRIVATE."""

        def look(index: int) -> str:
            file, content = self._picture(index)
            if Path(file).suffix.lower() not in DICOM:
                return ""
            with Path(file).open("rb") if content is None else io.BytesIO(content) as stream:
                return tag(file, stream)

        with self._pool() as pool:
            for start in range(0, len(self), 64 * _TASK):
                yield from pool.map(look, range(start, min(start + 64 * _TASK, len(self))))

    @abstractmethod
    def _picture(self, index: int) -> tuple[str, bytes | None]:
        """What to call a picture, and its bytes where that is no path."""

    def labels(self) -> Array | None:
        """(n,) int64; PRIVATE."""
        return self._labels

    def blocks(self, size: int) -> Iterator[Rows]:
        with self._pool() as pool:
            ahead: list[Callable[[], Rows]] = []
            for start in range(0, len(self), size):
                ahead.append(self._decoding(pool, np.arange(start, min(start + size, len(self)))))
                if len(ahead) == 2:
                    yield ahead.pop(0)()
            for finish in ahead:
                yield finish()

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
        labels = self.labels()
        values = np.empty((len(chosen), *self._shape), np.uint8)
        waits: list[Callable[[], None]] = []
        for at in range(0, len(chosen), _TASK):
            work = partial(self._decode_into, chosen[at : at + _TASK], values[at : at + _TASK])
            waits.append(work if pool is None else pool.submit(work).result)

        def finish() -> Rows:
            for wait in waits:
                wait()
            return values, None if labels is None else labels[chosen]

        return finish

    def _decode_into(self, chosen: Array, values: Array) -> None:
        for index, row in zip(chosen.tolist(), values, strict=True):
            file, content = self._picture(index)
            row[...] = decode(
                file, row.shape, self._range, self._fallback, fit=self._fit, content=content
            )


class FolderSource(PictureSource):
    """Pictures below a folder, by class in the order of the schema and then by path; or by path, with labels from a table."""

    def __init__(
        self,
        folder: Path,
        schema: Schema,
        *,
        told: FileTable | None = None,
        threads: int | None = None,
        fallback: ValueRange | None = None,
    ) -> None:
        super().__init__(schema, threads=threads, fallback=fallback)
        self._folder = folder
        self._classes = schema.classes
        self.told = told
        if schema.labelled and told is None:
            found = _by_class(folder, schema.classes)
            self._labels = np.repeat(
                np.arange(len(found), dtype=np.int64), [len(files) for files in found]
            )
            self._files = [file for files in found for file in files]
        else:
            self._files = _pictures(folder)
        if not self._files:
            raise BadInput(
                f"{folder} holds no pictures ({', '.join(sorted(SUFFIXES))}); check the path."
            )

    def __len__(self) -> int:
        return len(self._files)

    def paths(self) -> Iterator[str]:
        return (Path(os.path.relpath(file, self._folder)).as_posix() for file in self._files)

    def labels(self) -> Array | None:
        if self._labels is None and self.told is not None and self._classes:
            cells = self.told.cells(self.told.label, self.paths())
            codes = (class_code(cell, self._classes) for cell in cells)
            self._labels = np.fromiter(codes, np.int64, len(self))
        return self._labels

    def empty_classes(self) -> list[str]:
        """Class folders without a picture, by the listing alone; none where labels stand in a table, which would be read."""
        if self._labels is None or self.told is not None:
            return []
        there = np.bincount(self._labels, minlength=len(self._classes))
        return [name for name, size in zip(self._classes, there, strict=True) if not size]

    def part(self, start: int, stop: int) -> Source:
        labels = self.labels()
        some = copy.copy(self)
        # Another process may work in another folder.
        some._files = [str(Path(file).absolute()) for file in self._files[start:stop]]
        some._labels = None if labels is None else labels[start:stop]
        some.told = None
        return some

    def _picture(self, index: int) -> tuple[str, bytes | None]:
        return self._files[index], None


class _Member(NamedTuple):
    name: str
    offset: int
    size: int
    label: tuple[str, int, int] | None  # what its .cls is called, where it is, and how long


class TarSource(PictureSource):
    """The samples of an uncompressed .tar as WebDataset writes them: KEY.png (or another picture) with its class in KEY.cls
    (a number that counts the classes, or a name), or in KEY.cls.txt (a name, whatever it is spelt like).

    Members are found by the archive's own list, which is read when it is opened; pictures and labels are read later, each where
    it lies.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        *,
        threads: int | None = None,
        fallback: ValueRange | None = None,
    ) -> None:
        super().__init__(schema, threads=threads, fallback=fallback)
        self._path = path
        self._classes = schema.classes
        self._members = _samples(path, labelled=schema.labelled)
        if any(member.label and not _by_name(member.label[0]) for member in self._members):
            check_countable(
                schema.classes,
                f"a .cls of {path}",
                "state their number (--classes 3) or other names where it counts them, or put the names into .cls.txt",
            )

    def __len__(self) -> int:
        return len(self._members)

    @property
    def home(self) -> str:
        """What the archive is called, beside others."""
        return self._path.name

    def paths(self) -> Iterator[str]:
        return (member.name for member in self._members)

    def labels(self) -> Array | None:
        if self._labels is None and self._classes:
            with self._path.open("rb") as stream:
                codes = (self._label(stream, member) for member in self._members)
                self._labels = np.fromiter(codes, np.int64, len(self))
        return self._labels

    def _label(self, stream: IO[bytes], member: _Member) -> int:
        assert member.label is not None
        name, offset, length = member.label
        stream.seek(offset)
        text = stream.read(length).decode("utf-8", "replace").strip()
        code = class_code(text, self._classes)
        # WebDataset's .cls is a number; where names are stated it counts them.
        count = text.isascii() and text.isdigit() and len(text) < 20 and not _by_name(name)
        return label_code(int(text), self._classes) if code < 0 and count else code

    def part(self, start: int, stop: int) -> Source:
        labels = self.labels()
        some = copy.copy(self)
        some._path = self._path.absolute()
        some._members = self._members[start:stop]
        some._labels = None if labels is None else labels[start:stop]
        return some

    def _picture(self, index: int) -> tuple[str, bytes | None]:
        member = self._members[index]
        with self._path.open("rb") as stream:
            stream.seek(member.offset)
            content = stream.read(member.size)
        return f"{self._path}/{member.name}", content


def _samples(path: Path, *, labelled: bool) -> list[_Member]:
    """The samples of an archive in the order of their pictures."""
    found: dict[str, dict[str, tuple[str, int, int]]] = {}
    try:
        size = path.stat().st_size
        with path.open("rb") as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                if name.startswith("."):
                    continue
                if member.islnk() or member.issym():
                    raise BadInput(
                        f"{path} has {printable(member.name)} as a link to another file, whose record would count twice; pack "
                        "the files themselves (tar --hard-dereference --dereference), each once."
                    )
                if not member.isreg():
                    continue
                if member.issparse() or not 0 <= member.size <= size - member.offset_data:
                    raise tarfile.ReadError
                stem, _, ending = name.partition(".")
                parts = found.setdefault(f"{folder}/{stem}", {})
                if parts.setdefault(ending.lower(), _place(member)) != _place(member):
                    raise BadInput(
                        f"{path} has {printable(member.name)} twice; keep one of the two."
                    )
    except (tarfile.TarError, OSError, ValueError, OverflowError, UnicodeError) as error:
        raise BadInput(
            f"{path} is truncated, damaged or no .tar; restore it, or unpack it if it is compressed."
        ) from error
    samples = []
    for key, parts in found.items():
        pictures = [place for ending, place in parts.items() if f".{ending}" in SUFFIXES]
        told = printable(key.lstrip("/"))
        if len(pictures) != 1:
            raise BadInput(
                f"{path} has {'no picture' if not pictures else 'several pictures'} for {told}; a sample is one picture with its "
                ".cls."
            )
        label = parts.get("cls", parts.get("cls.txt"))
        if labelled and "cls" in parts and "cls.txt" in parts:
            raise BadInput(f"{path} has {told}.cls and {told}.cls.txt; keep one of the two.")
        if labelled and (label is None or label[2] > _LABEL_BYTES):
            raise BadInput(
                f"{path} has no {told}.cls with its class; add it, or leave classes out."
            )
        name, offset, length = pictures[0]
        samples.append(_Member(name, offset, length, label if labelled else None))
    if not samples:
        raise BadInput(f"{path} holds no pictures; check the path.")
    return samples


def _by_name(label: str) -> bool:
    return label.lower().endswith(".txt")


def _place(member: tarfile.TarInfo) -> tuple[str, int, int]:
    return member.name, member.offset_data, member.size


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
