"""The store of a run: what was promised, what was answered and what came of it, in one SQLite file with one writer.

A noisy answer is paid for once, so it must be kept once, whole, and never be given a second time with other noise. Hence:

- **One transaction an answer.** The charge, its sampler, the noisy numbers and a digest of the question are committed together,
  and synced to the disk, before anybody sees the answer. A process that is killed, or a machine that loses power, before that has
  shown nothing; after it the answer is there for ever.
- **Write-once.** An answer has a label and a step, and the same label and step cannot be written again, by anyone. The values of
  steps that a checkpoint has behind it are dropped, their rows stay: they are known to be answered.
- **One writer.** A folder is claimed (`privacy.claim`) before a row is read and until the run is sealed.
- **A chain.** Each row carries the SHA-256 of its value and of the row before it, so that a row of another run, or a lost one, is
  noticed and refused.

Everything in it is public by the guarantee: plan, noisy answers, what was trained on them. The map that a question was asked with
is remembered by a few numbers of its public parts (`Question`), so that a run is not continued with another map.

A copied run folder can be continued twice, each copy with noise of its own; nothing in a folder can prevent that, but a ledger
of the data set can (`privacy.dataset_ledger`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from sfumato.errors import (
    BadInput,
    CorruptArtifact,
    OutOfResources,
    PlanMismatch,
    RunConflict,
)
from sfumato.files import atomic_path, sync_folder
from sfumato.privacy.accounting import Charge, Plan
from sfumato.privacy.claim import Claim
from sfumato.privacy.database import Database, as_json, connected, lose_nothing
from sfumato.privacy.release import Release

STORE = "run.sqlite"
FORMAT = 2

# SQLite's own limit is a gigabyte a value; what comes near it is no release.
_LARGEST = 900_000_000
# Between versions of the software a bound may gain a little slack; an answer keeps the charge it was given under.
_ANSWERED_ALIKE = 0.05
_PROMISED_ALIKE = 1e-9
# The public parts of a map may be computed anew when a run goes on, with the rounding of another number of threads.
_SAME_MAP = 1e-4

_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE plan (position INTEGER PRIMARY KEY, label TEXT NOT NULL UNIQUE, charge TEXT NOT NULL);
CREATE TABLE answers (
  number INTEGER PRIMARY KEY, label TEXT NOT NULL, step INTEGER NOT NULL, charge TEXT NOT NULL, question TEXT NOT NULL,
  grid REAL NOT NULL, type TEXT NOT NULL, shape TEXT NOT NULL, value BLOB, digest TEXT NOT NULL, chain TEXT NOT NULL,
  UNIQUE (label, step));
CREATE TABLE checkpoints (stage TEXT PRIMARY KEY, step INTEGER NOT NULL, content BLOB NOT NULL);
CREATE TABLE log (number INTEGER PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE parts (name TEXT PRIMARY KEY, content BLOB NOT NULL, digest TEXT NOT NULL);
"""
_TYPES: dict[str, np.dtype[Any]] = {
    "int64": np.dtype("<i8"),
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
}


@dataclass(frozen=True)
class Question:
    """What an answer was an answer to: the kind of map, and two numbers (Σ, Σ²) of each of its public parts."""

    kind: str
    numbers: tuple[float, ...] = ()

    @classmethod
    def of(cls, phi: Any) -> Question:
        """`phi.public_parts()` are tensors that are public or were released; a map without it is known by its kind alone."""
        parts: Iterable[Tensor] = getattr(phi, "public_parts", tuple)()
        numbers: list[float] = []
        for part in parts:
            flat = part.detach().cpu().reshape(-1).to(torch.float64)
            numbers += [float(flat.sum()), float(flat.square().sum())]
        return cls(getattr(phi, "kind", type(phi).__name__), tuple(numbers))

    def is_like(self, other: Question) -> bool:
        if self.kind != other.kind or len(self.numbers) != len(other.numbers):
            return False
        pairs = zip(self.numbers, other.numbers, strict=True)
        scale = max((abs(n) for n in self.numbers), default=0.0)
        return all(
            a == b or math.isclose(a, b, rel_tol=_SAME_MAP, abs_tol=_SAME_MAP * scale)
            for a, b in pairs
        )

    def to_text(self) -> str:
        return json.dumps({"kind": self.kind, "numbers": self.numbers})

    @classmethod
    def of_text(cls, text: str) -> Question:
        found = json.loads(text)
        return cls(found["kind"], tuple(found["numbers"]))


@dataclass(frozen=True)
class Answer:
    """One row: what was answered, or, where the value was dropped, that it was."""

    number: int
    label: str
    step: int
    charge: Charge
    question: Question
    grid: float
    value: Tensor | None
    digest: str


class RunStore(Database):
    """The store of the run in `folder`, opened to write; without a folder, in memory.

    **Guarantee**: at most one answer is ever kept for a label and step, and `keep` returns only after it is on the disk.
    """

    NAME = "the store of the run"
    REMEDY = "restore the file, since answering again spends the budget again"

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = Path(folder) if folder is not None else None
        self._guard = threading.Lock()
        self._claim = Claim(self.folder) if self.folder is not None else None
        if self.folder is None:
            self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._db.executescript(_TABLES)
        elif (self.folder / STORE).exists():
            try:
                self._open()
            except BaseException:
                self.close()
                raise

    # -- beginning and end -------------------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether a plan was written down: before that the folder holds nothing that was paid for."""
        return self._db is not None and self.fact("config") is not None

    @property
    def finished(self) -> bool:
        if not self.begun:
            return False
        state = self.fact("state")
        if state not in ("begun", "finished", "abandoned"):
            raise self._damaged("it does not say whether the run is finished")
        return bool(state == "finished")

    @property
    def abandoned(self) -> bool:
        """Whether the run was given up for ever: what it never asked went back to a data set's ledger."""
        return self._db is not None and self.fact("state") == "abandoned"

    def abandon(self) -> None:
        """Give up a run that is not finished; it can never go on."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO facts VALUES ('state', '\"abandoned\"')")

    @property
    def entry(self) -> dict[str, Any] | None:
        """Where the run stands in a data set's ledger (`privacy.dataset_ledger`): random names, none of them private."""
        found = None if self._db is None else self.fact("ledger")
        return None if found is None else self._record(found)

    def write_entry(self, entry: Mapping[str, Any] | None) -> None:
        """Keep or, with None, forget it. It may come before `begin`: the charges are reserved before a row is read."""
        if self.folder is not None and self._db is None:
            self._make()
        with self._transaction() as db:
            db.execute("DELETE FROM facts WHERE name = 'ledger'")
            if entry is not None:
                db.execute("INSERT INTO facts VALUES ('ledger', ?)", (as_json(entry),))

    def discard(self) -> None:
        """Take away the file of a run that was never begun."""
        if self.folder is not None and self._db is not None and not self.begun:
            self._db.close()
            self._db = None
            self.path.unlink(missing_ok=True)

    def begin(
        self,
        config: Mapping[str, Any],
        statement: Mapping[str, Any],
        charges: Plan,
        noise_multiplier: float,
    ) -> None:
        """Write down what is promised, before a row is read."""
        labels = [c.label for c in charges]
        if len(set(labels)) < len(labels):
            raise PlanMismatch(
                "Two releases of a plan have one label; every release needs its own."
            )
        if self.folder is not None and self._db is None:
            self._make()
        with self._transaction() as db:
            facts = {
                "format": FORMAT,
                "state": "begun",
                "config": config,
                "statement": statement,
                "noise_multiplier": noise_multiplier,
            }
            db.executemany(
                "INSERT INTO facts VALUES (?, ?)", [(k, as_json(v)) for k, v in facts.items()]
            )
            db.executemany(
                "INSERT INTO plan VALUES (?, ?, ?)",
                [(i, c.label, as_json(c.to_json())) for i, c in enumerate(charges)],
            )

    def finish(self, parts: Mapping[str, bytes]) -> None:
        """Seal the run: its products, and no more checkpoints or values of steps. Together, or not at all."""
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO parts VALUES (?, ?, ?)",
                [(name, content, _sha256(content)) for name, content in parts.items()],
            )
            db.execute("DELETE FROM checkpoints")
            for label in [c.label for c in self.charges if not is_release(c)]:
                db.execute("UPDATE answers SET value = NULL WHERE label = ?", (label,))
            db.execute("UPDATE facts SET value = '\"finished\"' WHERE name = 'state'")
            db.execute("INSERT INTO facts VALUES ('seal', ?)", (as_json(self.seal()),))
        self.tidy()

    def tidy(self) -> None:
        """The file of a finished run anew, with what is in it and nothing of how it came there; done once.

        What was dropped leaves holes, and SQLite counts transactions: how many checkpoints there were tells how long a training
        took, and that how many records there are. A crash or a full disk meanwhile loses nothing: the run is sealed.
        """
        if self.folder is None or _head(self.path)[24:28] == b"\0\0\0\x01":  # SQLite's own count
            return
        with (
            contextlib.suppress(OutOfResources, BadInput),
            atomic_path(self.path, mode=0o600) as temporary,
        ):
            with self._explained():
                self._connection.execute("VACUUM INTO ?", (temporary.absolute().as_uri(),))
            self._connection.close()
            self._db = None
        if self._db is not None:
            self._connection.close()
        self._connect("rw")

    def close(self, *, abandon: bool = False) -> None:
        """Let go of the run; with `abandon`, of a folder in which nothing was begun without a trace."""
        with contextlib.suppress(sqlite3.Error):
            if self._db is not None and self.folder is not None:
                self._db.close()
        if self.folder is not None:
            self._db = None
        if self._claim is not None:
            self._claim.drop(remove=abandon and not (self._claim.folder / STORE).exists())
            self._claim = None

    def snapshot(self) -> RunStore:
        """A copy in memory."""
        copy = RunStore()
        with self._guard:
            self._connection.backup(copy._connection)
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        """A fitted method can be copied and pickled with what it was fitted on: the store in memory, all of it public."""
        if self.folder is not None:
            raise TypeError("a store that is open on the disk cannot be copied")
        return RunStore._of_bytes, (self._connection.serialize(),)

    @staticmethod
    def _of_bytes(content: bytes) -> RunStore:
        store = RunStore()
        store._connection.deserialize(content)
        return store

    def copy_to(self, folder: Path) -> RunStore:
        """The same run in a new folder, opened to write."""
        target = RunStore(folder)
        if target.begun:
            target.close()
            raise RunConflict(f"{folder} already holds a run; choose another folder.")
        target._make(tables=False)
        with self._guard, target._explained():
            self._connection.backup(target._connection)
        return target

    # -- facts, plan, log ----------------------------------------------------------------------------------------------

    def fact(self, name: str) -> Any:
        with self._explained():
            row = self._connection.execute(
                "SELECT value FROM facts WHERE name = ?", (name,)
            ).fetchone()
        return None if row is None else self._parsed(row[0])

    def record(self, name: str) -> dict[str, Any]:
        """A fact that is a JSON object."""
        return self._record(self.fact(name))

    @property
    def noise_multiplier(self) -> float:
        """What the plan was calibrated to."""
        return self._positive(self.fact("noise_multiplier"), "noise multiplier")

    @property
    def epsilon(self) -> float:
        """What was promised."""
        return self._positive(self.record("statement").get("epsilon"), "ε")

    def _positive(self, found: Any, name: str) -> float:
        if isinstance(found, bool) or not isinstance(found, int | float) or not found > 0:
            raise self._damaged(f"its {name} is no positive number")
        return float(found)

    @property
    def charges(self) -> Plan:
        """The plan, in order."""
        with self._explained():
            rows = self._connection.execute("SELECT charge FROM plan ORDER BY position").fetchall()
        return tuple(self._charge(text) for (text,) in rows)

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a record; a number that is not finite becomes none, which JSON has."""
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        with self._transaction() as db:
            db.execute("INSERT INTO log (record) VALUES (?)", (as_json(finite),))

    def read_log(self) -> list[dict[str, Any]]:
        with self._explained():
            rows = self._connection.execute("SELECT record FROM log ORDER BY number").fetchall()
        return [self._record(self._parsed(text)) for (text,) in rows]

    def rewind_log(self, step: int) -> None:
        """Forget what a training that goes on from `step` will log again: later steps, and all that is no step."""
        with self._transaction() as db:
            rows = db.execute("SELECT number, record FROM log").fetchall()
            again = [
                (number,)
                for number, text in rows
                if (r := self._record(self._parsed(text))).get("event") != "step"
                or not isinstance(r.get("step"), int)
                or r["step"] > step
            ]
            db.executemany("DELETE FROM log WHERE number = ?", again)

    # -- answers -------------------------------------------------------------------------------------------------------

    def settled(self, charge: Charge) -> Charge:
        """The charge that this question is asked under: the promised one, or the one that its answer was paid with.

        They are the same but for rounding, and for what another version of the software adds to a bound: an answer that was
        paid for is not lost for that.
        """
        answered = self._first(charge.label)
        if answered is not None:
            if not _alike(answered, charge, _ANSWERED_ALIKE):
                raise self._another_plan(charge.label)
            return answered
        plan = self.charges
        if not plan:
            return charge
        promised = next((c for c in plan if c.label == charge.label), None)
        if promised is None:
            raise PlanMismatch(
                f"Release {charge.label!r} was not promised; no row was read for it."
            )
        if not _alike(promised, charge, _PROMISED_ALIKE):
            raise self._another_plan(charge.label)
        return promised

    def find(self, charge: Charge, question: Question | None = None) -> Release | None:
        """The release that was made under this label, if there is one."""
        found = self._answer(charge.label, 0)
        if found is None:
            return None
        self._check(found, charge, question)
        if found.value is None:
            raise self._damaged("a release without its numbers")
        return Release(units=found.value, grid=found.grid, charge=found.charge)

    def keep(self, release: Release, question: Question | None = None) -> None:
        """Write down a release; only then may it be used."""
        self._keep(release.charge, 0, release.units, release.grid, question)

    def adopt(self, answers: Iterable[Answer]) -> None:
        """Take over what another run released, once; it was paid for there."""
        for answer in answers:
            if self._first(answer.label) is None and answer.value is not None:
                self._keep(answer.charge, answer.step, answer.value, answer.grid, answer.question)

    def steps(self, charge: Charge) -> StepAnswers:
        """The answers to a series of paid steps."""
        return StepAnswers(self, charge)

    def answers(self) -> Iterator[Answer]:
        """Every answer in the order in which they were given; raises at the first that is not what was written."""
        previous = ""
        with self._explained():
            rows = self._connection.execute("SELECT * FROM answers ORDER BY number")
            for row in rows:
                found = self._row(row)
                try:
                    chain = _chain(previous, row)
                except (TypeError, ValueError) as error:
                    raise self._damaged("a row that was never written so") from error
                if chain != row[10]:
                    raise self._damaged(
                        f"the answer to {found.label!r} does not follow the one before it"
                    )
                previous = row[10]
                yield found

    def releases(self) -> list[Release]:
        """The releases that were made once, with their values."""
        return [
            Release(units=a.value, grid=a.grid, charge=a.charge)
            for a in self.answers()
            if a.value is not None and is_release(a.charge)
        ]

    def _first(self, label: str) -> Charge | None:
        with self._explained():
            row = self._connection.execute(
                "SELECT charge FROM answers WHERE label = ? ORDER BY step LIMIT 1", (label,)
            ).fetchone()
        return None if row is None else self._charge(row[0])

    def _answer(self, label: str, step: int) -> Answer | None:
        with self._explained():
            row = self._connection.execute(
                "SELECT * FROM answers WHERE label = ? AND step = ?", (label, step)
            ).fetchone()
        return None if row is None else self._row(row)

    def _check(self, found: Answer, charge: Charge, question: Question | None) -> None:
        if not _alike(found.charge, charge, _ANSWERED_ALIKE):
            raise self._another_plan(charge.label)
        if question is not None and found.question.kind and not found.question.is_like(question):
            raise CorruptArtifact(
                f"Release {charge.label!r} was made with another map than this run has now, so it tells something else; go on "
                "with the public data, settings and number of threads of the first run, or begin a new one, which spends anew."
            )

    def _keep(
        self, charge: Charge, step: int, value: Tensor, grid: float, question: Question | None
    ) -> None:
        numbers = value.detach().contiguous().numpy()
        kind = str(numbers.dtype)
        content: bytes = numbers.astype(_TYPES[kind], copy=False).tobytes()
        if len(content) > _LARGEST:
            raise BadInput(
                f"Release {charge.label!r} has {numbers.size:,} numbers, more than a run can keep; make the method smaller."
            )
        # In memory nobody goes on after a crash: what was answered is remembered, the numbers of steps are not.
        kept = content if self.folder is not None or is_release(charge) else None
        asked = (question or Question("")).to_text()
        with self._transaction() as db:
            last = db.execute(
                "SELECT number, chain FROM answers ORDER BY number DESC LIMIT 1"
            ).fetchone() or (0, "")
            row: list[Any] = [last[0] + 1, charge.label, step, as_json(charge.to_json()), asked]
            row += [grid, kind, as_json(list(numbers.shape)), kept, _sha256(content)]
            try:
                db.execute(
                    f"INSERT INTO answers VALUES ({', '.join('?' * 11)})",
                    [*row, _chain(last[1], row)],
                )
            except sqlite3.IntegrityError:
                raise PlanMismatch(
                    f"{charge.label!r} was answered already; one answer was paid for, and it stands."
                ) from None

    def _row(self, row: tuple[Any, ...]) -> Answer:
        number, label, step, charge, question, grid, kind, shape, content, digest, _ = row
        try:
            value = None
            if content is not None:
                if _sha256(content) != digest:
                    raise ValueError("its numbers were changed")
                values = np.frombuffer(content, _TYPES[kind]).reshape(json.loads(shape))
                value = torch.from_numpy(values.astype(values.dtype.newbyteorder("="), copy=True))
            return Answer(
                number=int(number),
                label=str(label),
                step=int(step),
                charge=self._charge(charge),
                question=Question.of_text(question),
                grid=float(grid),
                value=value,
                digest=str(digest),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"the answer to {label!r}: {error}") from error

    # -- checkpoints and products ----------------------------------------------------------------------------------------

    def checkpoint(self, stage: str = "") -> StoredCheckpoint:
        return StoredCheckpoint(self, stage)

    def parts(self) -> dict[str, bytes]:
        """What was made of the answers, by file name."""
        with self._explained():
            rows = self._connection.execute("SELECT name, content, digest FROM parts").fetchall()
        for name, content, digest in rows:
            if not isinstance(content, bytes) or _sha256(content) != digest:
                raise self._damaged(f"{name} was changed")
        return {name: content for name, content, _ in rows}

    def seal(self) -> str:
        """A digest of everything that makes up the finished run; `finish` writes it down as the fact "seal"."""
        with self._explained():
            last = self._connection.execute(
                "SELECT chain FROM answers ORDER BY number DESC LIMIT 1"
            )
            parts = self._connection.execute("SELECT name, digest FROM parts ORDER BY name")
            promised = [self.fact("config"), self.fact("statement"), self.fact("noise_multiplier")]
            charges = [c.to_json() for c in self.charges]
            return _sha256(as_json([promised, charges, last.fetchone(), parts.fetchall()]).encode())

    def check_file(self) -> None:
        """Raise unless SQLite finds every page of the file in order."""
        with self._explained():
            found = self._connection.execute("PRAGMA integrity_check").fetchall()
        if found != [("ok",)]:
            raise self._damaged("SQLite finds its pages out of order")

    # -- SQLite --------------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        assert self.folder is not None
        return self.folder / STORE

    def _make(self, *, tables: bool = True) -> None:
        """A new, empty file that only its owner can read."""
        with self._explained():
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            self._connect("rw")
            if tables:
                with self._transaction() as db:
                    for statement in _TABLES.split(";")[:-1]:
                        db.execute(statement)
            sync_folder(self.path.parent)

    def _open(self) -> None:
        with self._explained():
            self._connect("rw")
            names = {r[0] for r in self._connection.execute("SELECT name FROM sqlite_master")}
        if not names:
            # Killed between making the file and its tables: nothing was begun.
            self._connection.close()
            self._db = None
            self.path.unlink()
        elif not {"facts", "plan", "answers"} <= names:
            raise self._damaged("it lacks its tables")
        elif (found := self.fact("format")) not in (None, FORMAT):
            raise CorruptArtifact(
                f"{self.path} is of format {found}, not {FORMAT}; use the version of sfumato that wrote it."
            )
        elif self.fact("config") is None and self.fact("ledger") is None:
            self._connection.close()
            self._db = None
            self.path.unlink()

    def _connect(self, mode: str) -> None:
        self._db = connected(self.path, mode)
        lose_nothing(self._db)

    def _parsed(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (TypeError, ValueError) as error:
            raise self._damaged("a line that is not JSON") from error

    def _record(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._damaged("a value that should be a JSON object")
        return value

    def _charge(self, text: str) -> Charge:
        try:
            return charge_from(json.loads(text))
        except (TypeError, ValueError, KeyError, AttributeError, BadInput) as error:
            raise self._damaged("a charge that cannot be read") from error

    def _another_plan(self, label: str) -> CorruptArtifact:
        return CorruptArtifact(
            f"Release {label!r} was made under another plan; resume with the settings of the first run or use a new folder."
        )


class StepAnswers:
    """The answers to one series of paid steps."""

    def __init__(self, store: RunStore, charge: Charge) -> None:
        self._store, self.charge = store, charge

    def begin(self, start: int) -> None:
        """Check that the series can go on at step `start`: those before it were answered, and no later answer was dropped."""
        with self._store._explained():
            rows = self._store._connection.execute(
                "SELECT step, value IS NULL FROM answers WHERE label = ?", (self.charge.label,)
            ).fetchall()
        answered = {step for step, _ in rows}
        dropped = {step for step, gone in rows if gone}
        whole = set(range(start)) <= answered and not any(step >= start for step in dropped)
        if not whole and self._store.folder is not None:
            raise CorruptArtifact(
                f"The checkpoint and the paid steps in {self._store.path} do not belong together; restore the file, or begin a "
                "new run, which spends the budget anew."
            )

    def find(self, step: int, question: Question | None = None) -> Tensor | None:
        """The answer that this step was given, if it was answered before."""
        found = self._store._answer(self.charge.label, step)
        if found is None:
            return None
        self._store._check(found, self.charge, question)
        if found.value is None:
            raise PlanMismatch(
                f"Step {step} of {self.charge.label!r} was answered already; one answer was paid for, and it stands."
            )
        return found.value

    def keep(self, step: int, answer: Tensor, question: Question | None = None) -> None:
        """Write down the answer to `step`; only then may it be used."""
        self._store._keep(self.charge, step, answer, 1.0, question)

    def forget(self, before: int) -> None:
        """Drop the values of steps before `before`: a checkpoint holds what came of them. That they were answered stays."""
        with self._store._transaction() as db:
            db.execute(
                "UPDATE answers SET value = NULL WHERE label = ? AND step < ?",
                (self.charge.label, before),
            )


class StoredCheckpoint:
    """Where a training of one stage keeps what it needs to go on; one transaction each time."""

    def __init__(self, store: RunStore, stage: str) -> None:
        self._store, self._stage = store, stage

    @property
    def step(self) -> int:
        """The steps behind it; 0 where there is none."""
        with self._store._explained():
            row = self._store._connection.execute(
                "SELECT step FROM checkpoints WHERE stage = ?", (self._stage,)
            ).fetchone()
        return 0 if row is None else int(row[0])

    def exists(self) -> bool:
        return self.read() is not None

    def read(self) -> tuple[int, dict[str, Tensor]] | None:
        with self._store._explained():
            row = self._store._connection.execute(
                "SELECT step, content FROM checkpoints WHERE stage = ?", (self._stage,)
            ).fetchone()
        if row is None:
            return None
        try:
            return int(row[0]), tensors_of(row[1])
        except (SafetensorError, TypeError, ValueError) as error:
            raise self._store._damaged("its checkpoint") from error

    def write(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        content = packed(tensors)
        with self._store._transaction() as db:
            db.execute(
                "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", (self._stage, step, content)
            )

    def damaged(self, error: Exception) -> CorruptArtifact:
        return self._store._damaged(f"its checkpoint: {type(error).__name__}")


class SavedStore(RunStore):
    """The store of a run, opened to read; nothing in the folder is claimed or changed.

    With `empty`, a store whose making was cut short is taken for one in which nothing was begun.
    """

    def __init__(self, folder: Path, *, empty: bool = False) -> None:
        self.folder = Path(folder)
        self._guard = threading.Lock()
        self._claim = None
        with self._explained():
            # To read what a killed process left, SQLite must be allowed to undo its unfinished transaction.
            self._connect("rw" if os.access(self.folder, os.W_OK) else "ro")
            names = {r[0] for r in self._connection.execute("SELECT name FROM sqlite_master")}
        self._unmade = not names
        if not names:
            if empty:
                return
            raise BadInput(
                f"The run in {folder} is not finished; go on with it by `sfumato fit … --resume`."
            )
        if not {"facts", "plan", "answers", "parts", "log"} <= names:
            raise self._damaged("it lacks its tables")
        found = self.fact("format")
        if found not in (None, FORMAT):
            raise CorruptArtifact(
                f"{self.path} is of format {found}, not {FORMAT}; use the version of sfumato that wrote it."
            )

    @property
    def begun(self) -> bool:
        return not self._unmade and super().begun

    def _connect(self, mode: str) -> None:
        self._db = connected(self.path, mode)
        self._db.execute("PRAGMA query_only = ON")


def packed(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file. Copies: networks may share memory, which the format does not allow."""
    return bytes_of({name: t.detach().contiguous().clone() for name, t in tensors.items()})


def charge_from(found: Mapping[str, Any]) -> Charge:
    """A charge from its JSON, which may be another version's, or a statement's with more in it."""
    known = {f.name for f in fields(Charge)}
    return Charge(**{key: value for key, value in found.items() if key in known})


def is_release(charge: Charge) -> bool:
    """Whether the charge buys one exact release, kept for ever, and not a series of steps."""
    return charge.sampler == "discrete"


def _alike(first: Charge, second: Charge, tolerance: float) -> bool:
    same = replace(second, bound=first.bound, noise_multiplier=first.noise_multiplier)
    return first == same and all(
        math.isclose(getattr(first, name), getattr(second, name), rel_tol=tolerance)
        for name in ("bound", "noise_multiplier")
    )


def _chain(previous: str, row: Iterable[Any]) -> str:
    """A digest of a row, less its value, and of the one before it."""
    number, label, step, charge, question, grid, kind, shape, _, digest, *_ = row
    return _sha256(
        as_json(
            [previous, number, label, step, charge, question, grid, kind, shape, digest]
        ).encode()
    )


def _head(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(100)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
