"""Data behind an address (s3://, gs://, https://, …), through fsspec: read as streams where they are, never copied to disk.

A `UrlPath` has of a path what readers of streams use. Arrays are mapped into memory, which no address can be, so those must be
here. Every picture or block is fetched when it is read, and again when it is read again: for DP-SGD, which takes records from all
over, bring the data here first. Credentials are fsspec's business (its environment variables and configuration): an address is
kept with what is made from the data, so one with a password or a token in it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import IO, Any
from urllib.parse import unquote

import numpy as np

from sfumato.data.decoding import SUFFIXES
from sfumato.data.folders import FolderSource, PictureSource
from sfumato.data.schema import Schema, ValueRange
from sfumato.errors import BadInput, printable

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::[A-Za-z0-9+.-]+)*://")


def is_address(spec: object) -> bool:
    return isinstance(spec, str) and _ADDRESS.match(spec) is not None


def without_secrets(address: str) -> str:
    """An address as it may be shown: no user and password, and no query."""
    return printable(re.sub(r"://.*@", "://", address).partition("?")[0])


def refuse_secrets(address: object) -> None:
    """Raise where an address holds what opens it: it would be kept in configurations, cells and logs."""
    if not is_address(address):
        return
    assert isinstance(address, str)
    # A name before the @ alone is no secret (abfs://CONTAINER@ACCOUNT, sftp://USER@HOST), but to a web server it may be a token.
    if re.search(r"://.*:.*@|https?://[^/]*@|\?", address):
        raise BadInput(
            f"The address {without_secrets(address)} came with a user, a password, a query or a token in it, and addresses are "
            "kept with the results; give it without, and the credentials by fsspec's environment variables or configuration."
        )


class UrlPath:
    """A file or folder behind an address."""

    def __init__(self, address: str, place: tuple[Any, str] | None = None) -> None:
        self._address = address
        if place is None:
            with _Reached(self):
                import fsspec

                place = fsspec.core.url_to_fs(address)
        self._files: Any = place[0]
        self._path: str = place[1]

    def __str__(self) -> str:
        return without_secrets(self._address)

    @property
    def name(self) -> str:
        return PurePosixPath(self._path).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self._path).suffix

    def absolute(self) -> UrlPath:
        return self

    def with_name(self, name: str) -> UrlPath:
        return self._other(str(PurePosixPath(self._path).with_name(name)))

    def __truediv__(self, name: str) -> UrlPath:
        return self._other(f"{self._path.rstrip('/')}/{name}")

    def is_dir(self) -> bool:
        with _Reached(self):
            return bool(self._files.isdir(self._path))

    def is_file(self) -> bool:
        with _Reached(self):
            return bool(self._files.isfile(self._path))

    def stat(self) -> SimpleNamespace:
        """The size alone."""
        with _Reached(self):
            return SimpleNamespace(st_size=int(self._files.size(self._path) or 0))

    def open(self, mode: str = "rb") -> IO[bytes]:
        with _Reached(self):
            stream: IO[bytes] = self._files.open(self._path, mode)
            return stream

    def read(self) -> bytes:
        with _Reached(self):
            return bytes(self._files.cat_file(self._path))

    def files(self) -> list[str]:
        """Every file below this folder by its path below it, sorted; what begins with a dot is left out."""
        with _Reached(self):
            root = self._path.rstrip("/") + "/"
            found = [path.removeprefix(root) for path in self._files.find(self._path)]
        return sorted(p for p in found if not any(part.startswith(".") for part in p.split("/")))

    def _other(self, path: str) -> UrlPath:
        with _Reached(self):
            return UrlPath(self._files.unstrip_protocol(path), (self._files, path))


class RemoteFolder(FolderSource):
    """Pictures below an address, in the order of a `FolderSource`; each is fetched when it is read."""

    def __init__(
        self, folder: UrlPath, schema: Schema, *, fallback: ValueRange | None = None
    ) -> None:
        PictureSource.__init__(self, schema, fallback=fallback)
        self._home, self._classes, self.told = folder, schema.classes, None
        names = pictures_below(folder)
        if schema.labelled:
            code = {name: index for index, name in enumerate(schema.classes)}
            filed: list[list[str]] = [[] for _ in schema.classes]
            for name in names:
                home, below, _ = name.partition("/")
                home = home if home in code else unquote(home)
                if not below or home not in code:
                    raise BadInput(
                        f"{printable(name)} below {folder} is in none of the classes' folders; move it, or add the class."
                    )
                filed[code[home]].append(name)
            sizes = [len(some) for some in filed]
            self._labels = np.repeat(np.arange(len(filed), dtype=np.int64), sizes)
            names = [name for some in filed for name in some]
        self._files = names
        if not names:
            raise BadInput(f"{folder} holds no pictures ({', '.join(sorted(SUFFIXES))}).")

    def paths(self) -> Iterator[str]:
        return iter(self._files)

    def part(self, start: int, stop: int) -> RemoteFolder:
        import copy

        some = copy.copy(self)
        some._files = self._files[start:stop]
        some._labels = None if self._labels is None else self._labels[start:stop]
        return some

    def _picture(self, index: int) -> tuple[str, bytes | None]:
        file = self._home / self._files[index]
        return str(file), file.read()


def pictures_below(folder: UrlPath) -> list[str]:
    return [n for n in folder.files() if PurePosixPath(n).suffix.lower() in SUFFIXES]


def classes_below(folder: UrlPath) -> tuple[str, ...]:
    """The class names that folders below the address spell; () where pictures lie beside each other."""
    names = {unquote(name.partition("/")[0]) for name in pictures_below(folder) if "/" in name}
    if all(name.isascii() and name.isdigit() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


class _Reached:
    """Whatever an address, its library or the network fails with becomes one sentence."""

    def __init__(self, path: UrlPath) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, FileNotFoundError):
            raise BadInput(f"There is nothing at {self._path}; check the address.") from None
        if isinstance(error, ImportError):
            raise BadInput(
                f"To read {self._path} another package is needed: pip install fsspec and the one for such addresses (s3fs, "
                "gcsfs, adlfs, aiohttp for https)."
            ) from error
        if isinstance(error, Exception) and not isinstance(error, BadInput):
            raise BadInput(
                f"Cannot read {self._path} ({type(error).__name__}); check the address, the connection and your credentials."
            ) from error
