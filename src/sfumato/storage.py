"""Files that are whole or absent: atomic writes, hashes and the cache folder.

A write goes to a temporary file beside its target, is flushed to disk and then renamed, so that a full disk, Ctrl-C or
kill -9 leaves either the old file or the new one, never a half.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sfumato.errors import BadInput, CorruptArtifact


def cache_folder() -> Path:
    """`$SFUMATO_CACHE`, or `sfumato` in the user's cache folder."""
    chosen = os.environ.get("SFUMATO_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sfumato"


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path`; on success it takes the place of `path` in one step."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise BadInput(
            f"Cannot write {path}: {error.strerror or error}; choose a folder that can be written to."
        ) from error
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        # mkstemp makes private files (0600); a result is an ordinary file of the user's.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except OSError as error:
        raise BadInput(
            f"Cannot write {path}: {error.strerror or error}; free some space or choose another folder."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Strict JSON: a NaN or infinity is a bug of the writer, not a token to pass on."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"There is no {path}; check the path of the run or data folder.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CorruptArtifact(
            f"{path} cannot be read as JSON ({error}); restore the file or make the run again."
        ) from error


def sha256_of(path: Path) -> str:
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
