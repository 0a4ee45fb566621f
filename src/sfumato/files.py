"""Files that are whole or absent: atomic writes, hashes and the cache folder.

A write happens in a hidden folder beside its target, `.NAME.TOKEN.part`, is flushed to disk, and then renamed; the folder that
got the name is flushed too. So a full disk, Ctrl-C, kill -9 or a power cut leaves either the old file or the new one, never a
half. It is a folder, not a file, because libraries make temporary files of their own beside what they write (safetensors does):
all of it goes away together. The writer holds a lock on the folder as long as it lives, so that `sweep` can tell what a dead
process left behind from what another one is writing.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

from sfumato.errors import BadInput, CorruptArtifact, SfumatoError, out_of_resources, printable

# Ours, and those of version 0.1.0, which were files.
_LEFTOVER = re.compile(r"\..+\.[a-z0-9_]{8}\.part", re.DOTALL)
# A name may have 255 bytes and a character four of them; the rest of ours takes 15.
_NAME_CHARACTERS = 60
# Files this process is writing: a second signal may cut a `finally` short, and then the exit cleans up.
_OPEN: dict[Path, int] = {}


def cache_folder() -> Path:
    """`$SFUMATO_CACHE`, or `sfumato` in the user's cache folder."""
    chosen = os.environ.get("SFUMATO_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sfumato"


def as_path(value: object) -> Path:
    """`value` as a path that the system can at least look for; whether something is there is another question."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise BadInput(f"A path is text or a Path, not {type(value).__name__}; give one.")
    if value == "":
        raise BadInput("A path is empty; give one.")
    path = Path(value)
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, ValueError) as error:
        raise BadInput(f"Cannot use {shown(path)}: {_cause(error)}; check the path.") from error
    return path


@contextlib.contextmanager
def atomic_path(path: Path, *, mode: int | None = None) -> Iterator[Path]:
    """Yield an empty temporary file; on success it takes the place of `path` in one step, for good.

    With `mode` the file gets just these permissions (0o600), and so does its folder if it has to be made (0o700); without, both
    are what the user's umask says. Until it is finished nobody else can read it.
    """
    path = Path(path)
    staging = path.parent / f".{path.name[:_NAME_CHARACTERS]}.{secrets.token_hex(4)}.part"
    temporary = staging / path.name
    try:
        try:
            _check_target(path)
            make_folder(path.parent, mode=mode)
            _open_staging(temporary)
            handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
            ordinary = stat.S_IMODE(os.fstat(handle).st_mode)
            os.close(handle)
        except (OSError, ValueError) as error:
            _refuse_write(path, error, "choose a folder that can be written to")
        try:
            yield temporary
            with temporary.open("rb+") as stream:
                os.fchmod(stream.fileno(), ordinary if mode is None else mode)
                os.fsync(stream.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        except SfumatoError:
            raise
        except Exception as error:
            if not isinstance(error, OSError) and out_of_resources(error) is None:
                raise
            _refuse_write(path, error, "free some space or choose another folder")
    finally:
        _close_staging(temporary)


@contextlib.contextmanager
def atomic_folder(path: Path, *, mode: int | None = None, flush: bool = True) -> Iterator[Path]:
    """The same for a new folder of plain files: made beside its place, every file and name flushed, renamed in one step.

    It may take the place of an empty folder. Without `flush` its files may lie in folders of their own, and a power cut may
    take them: flushing thousands of pictures one by one would take longer than making them.
    """
    path = Path(path)
    staging = path.parent / f".{path.name[:_NAME_CHARACTERS]}.{secrets.token_hex(4)}.part"
    made = staging / path.name
    try:
        try:
            make_folder(path.parent)
            _open_staging(made)
            made.mkdir(mode=0o777 if mode is None else 0o700)
            yield made
            for file in made.iterdir() if flush else ():
                with file.open("rb+") as stream:
                    if mode is not None:
                        os.fchmod(stream.fileno(), mode)
                    os.fsync(stream.fileno())
            sync_folder(made)
            made.rename(path)
            sync_folder(path.parent)
        except SfumatoError:
            raise
        except Exception as error:
            if not isinstance(error, OSError | ValueError) and out_of_resources(error) is None:
                raise
            _refuse_write(path, error, "free some space or choose another folder")
    finally:
        _close_staging(made)


def write_text(path: Path, text: str, *, mode: int | None = None) -> None:
    """UTF-8; half a character (of a file name that is no UTF-8) becomes its escape, which JSON reads back."""
    with atomic_path(path, mode=mode) as temporary:
        temporary.write_bytes(text.encode("utf-8", errors="backslashreplace"))


def write_json(path: Path, value: Any, *, mode: int | None = None) -> None:
    """Strict JSON: a NaN or infinity is a bug of the writer, not a token to pass on."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n", mode=mode)


def read_json(path: Path) -> Any:
    """What strict JSON says; a file that is missing, no file at all or no JSON gets one sentence."""
    path = Path(path)
    check_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptArtifact(
            f"{shown(path)} cannot be read as JSON ({_cause(error)}); restore the file or make the run again."
        ) from error


def check_file(path: Path) -> None:
    """Refuse what is not an ordinary file before it is opened: reading a pipe or a device may never end."""
    try:
        kind = Path(path).stat().st_mode
    except FileNotFoundError:
        raise BadInput(
            f"There is no {shown(path)}; check the path of the run or data folder."
        ) from None
    except (OSError, ValueError) as error:
        raise BadInput(
            f"Cannot read {shown(path)}: {_cause(error)}; check the path and its permissions."
        ) from error
    if not stat.S_ISREG(kind):
        what = "a folder" if stat.S_ISDIR(kind) else "a pipe or device"
        raise BadInput(f"{shown(path)} is {what}; give an ordinary file.")


def sha256_of(path: Path) -> str:
    check_file(path)
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def shown(path: Path | str) -> str:
    """A path as one line of moderate length, for a sentence."""
    text = printable(str(path))
    return text if len(text) <= 300 else f"{text[:150]}…{text[-100:]}"


def make_folder(path: Path, *, mode: int | None = None) -> None:
    """Make `path` and what is missing above it, so that a power cut keeps them; `mode` is for `path` alone, if it is new.

    A folder's permissions are those of its files, with the right to enter wherever there is one to read (0o600: 0o700).
    """
    path = Path(path)
    missing = []
    for folder in (path, *path.parents):
        if folder.is_dir():
            break
        missing.append(folder)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700 if folder == path and mode is not None else 0o777)
            if folder == path and mode is not None:
                folder.chmod(mode | (mode & 0o444) >> 2)
            sync_folder(folder.parent)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk: only then does a rename, a new file or a removal outlive a power cut."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # a folder one may write to or pass through, but not list
        return
    try:
        os.fsync(handle)
    except OSError as error:
        # Some file systems cannot flush a folder by itself; they do it with the file.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def sweep(folder: Path) -> list[Path]:
    """Remove from `folder` what dead writers left there, and nothing else; returns what is gone.

    A leftover has our name and no process holds its lock. What is being written now, what cannot be locked, and links are left.
    """
    gone = []
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []
    for name in sorted(names):
        if not _LEFTOVER.fullmatch(name):
            continue
        path = Path(folder) / name
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_same(handle, path):
                    continue
                kind = os.fstat(handle).st_mode
                if stat.S_ISDIR(kind):
                    shutil.rmtree(path)
                elif stat.S_ISREG(kind):
                    path.unlink()
                else:
                    continue
                gone.append(path)
            finally:
                os.close(handle)
    if gone:
        sync_folder(Path(folder))
    return gone


def close_writers() -> None:
    """Remove what interrupted writes of this process left; called when it ends."""
    for temporary in list(_OPEN):
        _close_staging(temporary)


atexit.register(close_writers)
# A forked child neither writes its parent's files nor tidies them up.
os.register_at_fork(after_in_child=_OPEN.clear)


def _open_staging(temporary: Path) -> None:
    """Make the folder and lock it; it is remembered before it exists, so that no moment is left in which it can be lost."""
    staging = temporary.parent
    _OPEN[temporary] = -1
    while True:
        staging.mkdir(mode=0o700)
        try:
            handle = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # swept before it was locked
            continue
        _OPEN[temporary] = handle
        # On a file system without locks nobody can lock it, so nobody sweeps it either.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        if _is_same(handle, staging):
            return
        _OPEN[temporary] = -1
        os.close(handle)


def _close_staging(temporary: Path) -> None:
    handle = _OPEN.get(temporary)
    if handle is None:
        return
    try:
        # These two need no file handle, and there may be none left.
        temporary.unlink(missing_ok=True)
        temporary.parent.rmdir()
    except (OSError, ValueError):
        shutil.rmtree(temporary.parent, ignore_errors=True)
    # Forgotten before it is closed: a signal between the two must not make it be closed twice.
    del _OPEN[temporary]
    if handle >= 0:
        os.close(handle)


def _is_same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def _check_target(path: Path) -> None:
    """A rename would replace a device or fail on a folder after all the work."""
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(kind):
        raise OSError(errno.EINVAL, "It is a pipe or device")


def _refuse_write(path: Path, error: Exception, remedy: str) -> NoReturn:
    lack = out_of_resources(error)
    if lack is not None:
        raise type(lack)(lack.args[0], shown(path)) from error
    raise BadInput(f"Cannot write {shown(path)}: {_cause(error)}; {remedy}.") from error


def _cause(error: BaseException) -> str:
    """Why, without quoting what was in the file."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeEncodeError):
        return "the name holds half a character"
    if isinstance(error, UnicodeDecodeError):
        return "it is no UTF-8 text"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error) or type(error).__name__


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


class Record:
    """Base of frozen dataclasses of tensors and plain values that are saved by name, see `methods.saved`."""

    kinds: ClassVar[dict[str, type[Record]]] = {}

    def __init_subclass__(cls) -> None:
        Record.kinds[cls.__name__] = cls

    @classmethod
    def among(cls, values: Mapping[str, Any]) -> Self:
        """The record whose fields are found by their names among other values."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})  # type: ignore[arg-type]
