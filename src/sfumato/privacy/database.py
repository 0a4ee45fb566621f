"""SQLite files that hold what was paid for: connections, transactions, and SQLite's errors as sentences of our own.

A run's store and a data set's ledger are such files. One process writes at a time; after COMMIT nothing is in memory only.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from sfumato.errors import BadInput, CorruptArtifact, OutOfResources, RunConflict, out_of_resources


class Database(ABC):
    """What the two have in common; `NAME` and `REMEDY` are for the sentences."""

    NAME: ClassVar[str]
    REMEDY: ClassVar[str]

    folder: Path | None  # None: in memory
    _guard: threading.Lock
    _db: sqlite3.Connection | None = None

    @property
    @abstractmethod
    def path(self) -> Path: ...

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise BadInput(f"{self._called()} in {self.folder} is not open; open it again.")
        return self._db

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._guard, self._explained():
            db = self._connection
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self.explained(error, self.folder) from error
        except UnicodeDecodeError as error:
            raise self._damaged("text that is no text") from error

    @classmethod
    def explained(cls, error: sqlite3.Error, folder: Path | None) -> Exception:
        """The same as an error that a user can act on."""
        text, lack = str(error), out_of_resources(error)
        if lack is not None:
            return OutOfResources(lack.args[0], str(folder))
        if "locked" in text:
            return RunConflict(
                f"Another process is working on {cls.NAME} in {folder}; wait for it."
            )
        if "readonly" in text or "unable to open" in text or "I/O" in text:
            return BadInput(
                f"{cls._called()} in {folder} cannot be used ({text}); check the folder's permissions, free space and limits."
            )
        return CorruptArtifact(f"{cls._called()} in {folder} is damaged ({text}); {cls.REMEDY}.")

    def _damaged(self, what: str) -> CorruptArtifact:
        place = "in memory" if self.folder is None else self.path
        return CorruptArtifact(f"{self._called()} {place} is damaged ({what}); {self.REMEDY}.")

    @classmethod
    def _called(cls) -> str:
        return cls.NAME[0].upper() + cls.NAME[1:]


def connected(path: Path, mode: str, *, patience: float = 60.0) -> sqlite3.Connection:
    """`mode` is SQLite's: "rw", or "ro"."""
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=patience,
    )
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def lose_nothing(db: sqlite3.Connection) -> None:
    """A rollback journal whose removal is synced as well: after COMMIT nothing is in memory only."""
    db.execute("PRAGMA journal_mode = DELETE")
    db.execute("PRAGMA synchronous = EXTRA")


def as_json(value: Any) -> str:
    """Strict JSON: a NaN or infinity is a bug of the writer, not a token to pass on."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
