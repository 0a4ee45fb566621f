"""Fetching public data sets: several sources for the same bytes, each checked by its SHA-256.

A source puts files into a workshop folder; `ensure` checks every one of them against the registered
hash and only then moves it into the cache, so that an interrupted or tampered download leaves
nothing behind. Nothing here touches private data.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sfumato.errors import BadInput, CorruptArtifact, DataUnavailable
from sfumato.progress import Progress
from sfumato.storage import atomic_path, cache_folder, read_json, sha256_of, write_json

CONNECT_SECONDS = 4.0
TOOL_SECONDS = 600.0
_RECEIPT = "verified.json"


class SourceFailed(Exception):  # noqa: N818
    """One source could not give the files; says why in a few words."""


class FetchSource(Protocol):
    """A place to get all files of a data set from."""

    @property
    def about(self) -> str:
        """A few words for messages."""

    def fetch(self, workshop: Path, names: tuple[str, ...], progress: Progress) -> None:
        """Put files called `names` into `workshop`, or raise SourceFailed."""


@dataclass(frozen=True)
class Web:
    """Files below one address; with `.gz` added and unpacked when `gzipped`."""

    base: str
    gzipped: bool = True

    @property
    def about(self) -> str:
        return self.base

    def fetch(self, workshop: Path, names: tuple[str, ...], progress: Progress) -> None:
        with progress.stage(f"Fetching from {self.base}", len(names)) as stage:
            for name in names:
                remote = name + ".gz" if self.gzipped else name
                try:
                    with (
                        urllib.request.urlopen(
                            self.base + remote, timeout=CONNECT_SECONDS
                        ) as answer,
                        (workshop / remote).open("wb") as target,
                    ):
                        shutil.copyfileobj(answer, target)
                except urllib.error.HTTPError as error:
                    raise SourceFailed(f"it answered {error.code}") from error
                except urllib.error.URLError as error:
                    raise SourceFailed(f"no connection ({error.reason})") from error
                except (OSError, EOFError, ValueError, http.client.HTTPException) as error:
                    raise SourceFailed(
                        f"the transfer broke off ({type(error).__name__})"
                    ) from error
                if self.gzipped:
                    unpack_gzip(workshop / remote, workshop / name)
                stage.advance()


@dataclass(frozen=True)
class DebianPackage:
    """Files inside a Debian package: apt downloads and dpkg unpacks it, without root or install."""

    package: str
    folder: str
    gzipped: bool = True

    @property
    def about(self) -> str:
        return f"the Debian package {self.package}"

    def fetch(self, workshop: Path, names: tuple[str, ...], progress: Progress) -> None:
        unpacked = Path("/")
        if not self._present(unpacked, names):
            unpacked = workshop / "unpacked"
            with progress.stage(f"Fetching {self.about}", 1) as stage:
                package = self._download(workshop)
                run_tool(["dpkg-deb", "--extract", str(package), str(unpacked)], workshop)
                stage.advance()
        if not self._present(unpacked, names):
            raise SourceFailed("the package does not hold the files")
        for name in names:
            inside = unpacked / self.folder / name
            if self.gzipped:
                unpack_gzip(inside.with_name(name + ".gz"), workshop / name)
            else:
                shutil.copyfile(inside, workshop / name)

    def _present(self, root: Path, names: tuple[str, ...]) -> bool:
        suffix = ".gz" if self.gzipped else ""
        return all((root / self.folder / (name + suffix)).is_file() for name in names)

    def _download(self, workshop: Path) -> Path:
        download = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root"]
        try:
            run_tool([*download, "download", self.package], workshop)
        except SourceFailed:
            # The machine's package lists may be empty; private ones need no root, change nothing.
            state, store = workshop / "apt" / "state", workshop / "apt" / "cache"
            for folder in (state / "lists" / "partial", store / "archives" / "partial"):
                folder.mkdir(parents=True, exist_ok=True)
            private = ["-o", f"Dir::State={state}", "-o", f"Dir::Cache={store}"]
            run_tool([*download, *private, "update"], workshop)
            run_tool([*download, *private, "download", self.package], workshop)
        packages = sorted(workshop.glob(f"{self.package}_*.deb"))
        if not packages:
            raise SourceFailed("apt-get downloaded nothing")
        return packages[-1]


@dataclass(frozen=True)
class NpmPackage:
    """Files inside an npm package of a pinned version; `npm pack` downloads and runs no script."""

    package: str
    sha256: str
    folder: str

    @property
    def about(self) -> str:
        return f"the npm package {self.package}"

    def fetch(self, workshop: Path, names: tuple[str, ...], progress: Progress) -> None:
        with progress.stage(f"Fetching {self.about}", 1) as stage:
            run_tool(["npm", "pack", "--silent", "--ignore-scripts", self.package], workshop)
            archives = sorted(workshop.glob("*.tgz"))
            if len(archives) != 1:
                raise SourceFailed("npm downloaded nothing")
            if sha256_of(archives[0]) != self.sha256:
                raise SourceFailed("the archive has another SHA-256 than the registered one")
            unpack_tar(archives[0], workshop, {f"{self.folder}/{name}": name for name in names})
            stage.advance()


@dataclass(frozen=True)
class Built:
    """Files made on this machine, from a package that is installed anyway."""

    about: str
    build: Callable[[Path], None]

    def fetch(self, workshop: Path, names: tuple[str, ...], progress: Progress) -> None:
        try:
            self.build(workshop)
        except ImportError as error:
            raise SourceFailed(f"{error.name or 'a package'} is not installed") from error


def ensure(
    name: str,
    files: Mapping[str, str],
    sources: tuple[FetchSource, ...],
    progress: Progress | None = None,
) -> Path:
    """The cache folder of data set `name`, all of `files` (name → SHA-256) there and checked."""
    progress = progress or Progress()
    folder = cache_folder() / "data" / name
    if _verified(folder, files):
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"Cannot write to the cache {folder}: {error.strerror or error}; set SFUMATO_CACHE to "
            "another folder."
        ) from error
    with _alone(folder):
        if _verified(folder, files):  # another process was first
            return folder
        failures: list[str] = []
        for leftover in folder.glob(".fetch-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if not _adopt_placed(folder, files, failures):
            _fetch_any(folder, files, sources, progress, failures)
        _write_receipt(folder, files)
    return folder


def _fetch_any(
    folder: Path,
    files: Mapping[str, str],
    sources: tuple[FetchSource, ...],
    progress: Progress,
    failures: list[str],
) -> None:
    for source in sources:
        try:
            with _workshop(folder) as workshop:
                source.fetch(workshop, tuple(files), progress)
                for name, expected in files.items():
                    _check_hash(workshop / name, name, expected)
                for name in files:
                    _move_in(workshop / name, folder / name)
            return
        except SourceFailed as failure:
            failures.append(f"{source.about}: {failure}")
    raise DataUnavailable(
        f"The data set {folder.name} could not be had ({'; '.join(failures)}). Try again with a "
        "connection, or put "
        f"{', '.join(files)} (plain or as .gz) into {folder} by hand."
    )


def _check_hash(path: Path, name: str, expected: str) -> None:
    if not path.is_file():
        raise SourceFailed(f"{name} is not there")
    if sha256_of(path) != expected:
        raise SourceFailed(f"{name} has another SHA-256 than the registered one")


def _adopt_placed(folder: Path, files: Mapping[str, str], failures: list[str]) -> bool:
    """Use files that someone put into the cache folder by hand, plain or as .gz."""
    for name, expected in files.items():
        plain, packed = folder / name, folder / (name + ".gz")
        try:
            if plain.is_file():
                _check_hash(plain, name, expected)
            elif packed.is_file():
                with _workshop(folder) as workshop:
                    unpack_gzip(packed, workshop / name)
                    _check_hash(workshop / name, name, expected)
                    _move_in(workshop / name, plain)
            else:
                return False
        except SourceFailed as failure:
            failures.append(f"the cache folder: {failure}")
            return False
    return True


def _move_in(source: Path, target: Path) -> None:
    with atomic_path(target) as temporary:
        source.replace(temporary)


@contextlib.contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time fetch; without file locks, atomic renames alone must do."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        stream = (folder / ".lock").open("w")
    except OSError as error:
        raise BadInput(
            f"Cannot write to the cache {folder}: {error.strerror or error}; set SFUMATO_CACHE to "
            "another folder."
        ) from error
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _stamp(path: Path) -> list[int]:
    facts = path.stat()
    return [facts.st_size, facts.st_mtime_ns]


def _write_receipt(folder: Path, files: Mapping[str, str]) -> None:
    receipt = {name: [expected, *_stamp(folder / name)] for name, expected in files.items()}
    write_json(folder / _RECEIPT, receipt)


def _verified(folder: Path, files: Mapping[str, str]) -> bool:
    """Whether every file is the one whose hash was checked, going by its size and time."""
    if not (folder / _RECEIPT).is_file():
        return False
    try:
        receipt = read_json(folder / _RECEIPT)
        return all(
            receipt.get(name) == [expected, *_stamp(folder / name)]
            for name, expected in files.items()
        )
    except (OSError, CorruptArtifact, BadInput, AttributeError):
        return False


# -------------------------------------------------------------------------------------- unpacking


def unpack_gzip(source: Path, target: Path) -> None:
    try:
        with gzip.open(source) as packed, target.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceFailed(f"{source.name} is damaged") from error


def unpack_tar(archive: Path, workshop: Path, members: Mapping[str, str]) -> None:
    """Copy members to files of chosen names; no path inside the archive is ever followed."""
    try:
        with tarfile.open(archive) as tar:
            for member, name in members.items():
                packed = tar.extractfile(member)
                if packed is None:
                    raise SourceFailed(f"{member} is not a file")
                with packed, (workshop / name).open("wb") as plain:
                    shutil.copyfileobj(packed, plain)
    except KeyError as error:
        raise SourceFailed("the archive does not hold the files") from error
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise SourceFailed("the archive is damaged") from error


def run_tool(command: list[str], folder: Path) -> None:
    """Run a package tool quietly inside `folder`."""
    if shutil.which(command[0]) is None:
        raise SourceFailed(f"{command[0]} is not installed")
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TOOL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SourceFailed(f"{command[0]} did not finish in time") from error
    except OSError as error:
        raise SourceFailed(f"{command[0]} could not be run") from error
    if done.returncode != 0:
        raise SourceFailed(f"{command[0]} failed")
