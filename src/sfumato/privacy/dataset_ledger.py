"""The ledger of a data set: what all runs on the same records cost together, held against one limit.

A run keeps its own budget; ten runs on the same data keep ten, and together they cost more than any of them says. A data
set's ledger composes the charges of all its runs *as one mechanism*, at its own δ and relation, and refuses the run that
would pass its limit. (ε, δ) of the runs are never added; what a run's own δ is does not matter here.

**Order of a fit under a ledger**, and why:

1. *Reserve*, from public facts alone, before a row is read: the plan's charges, composed with all that was reserved before,
   in one transaction. Two processes at once: SQLite lets one write at a time, so the second sees what the first reserved.
2. *Look*: rows are counted, inspected, compared with public data, and the ledger is asked whether they are its own
   (`recognise`). Nothing of that is an answer. Whoever is refused here asked nothing, and the reservation is given back.
3. *Begin*: from here on the reservation stands, whatever happens. Only now can a row enter a noisy sum.

A crash in between leaves a reservation too many, never one too few: the same run folder finds it again.

**What is proved.** Runs that are planned in advance compose as the accountant says, whatever they are. If later runs are chosen
by looking at earlier results, their noise and steps included, the figure still holds for Gaussian sums over all records (Smith
and Thakurta 2022: of them only Σ μ² counts, and the limit bounds it). With Poisson-sampled steps it need not: stopping when a
composed privacy curve is reached is no valid filter in general (arXiv 2602.06756). `adaptive` tells which it is.

**One reservation, one run.** The run's store has a random name in the ledger and a token, its *turn*, which changes in both
places whenever the run is entered or begun; while a process works on it, it holds a lock beside the ledger. So of several
copies of an unfinished run one can go on: the others hold an old turn and are refused. What remains: a copy that is taken
*while* a process works on the run, and goes on after that process was killed, answers again what was answered after the
copying; nobody has seen those answers but who looks into the folder that was left.

**The ledger knows its data** by a keyed fingerprint of the rows as methods see them (`overlap.fingerprint`), in any order,
labels left out: the same pictures filed under other classes are the same people. Whose they are, where units are stated, is part
of it: charges of runs that protect records and of runs that protect persons bound different things, and are not composed. It and
its key never leave the file.

PRIVATE: the file (mode 0600, its folder 0700): fingerprint, key, and which runs were refused or given up, which may depend
on the records. PUBLIC by the guarantee: the limit, the plans, what they cost. No clock is kept. Whoever may write the file
may change it: the ledger binds those who use it, and is no proof for others.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hmac
import json
import math
import os
import re
import secrets
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sfumato.data import Dataset
from sfumato.data.units import RECORDS, Unit, unit_stated
from sfumato.errors import (
    BadInput,
    BudgetExceeded,
    CorruptArtifact,
    OutOfResources,
    RunConflict,
    SfumatoError,
    out_of_resources,
)
from sfumato.files import as_path, atomic_path
from sfumato.privacy.accounting import Plan, epsilon_of
from sfumato.privacy.budget import Budget
from sfumato.privacy.claim import refuse_network
from sfumato.privacy.database import Database, as_json, connected, lose_nothing
from sfumato.privacy.ledger import cost_within, fits, spent_on
from sfumato.privacy.overlap import fingerprint
from sfumato.privacy.query import Query, calibrated, plan
from sfumato.privacy.statement import rounded_up
from sfumato.privacy.store import STORE, RunStore, charge_from

LEDGER = "ledger.sqlite"
FORMAT = 1
# How long a process waits for another that is pricing its plan: Poisson-sampled ones take seconds.
_PATIENCE = 600.0
_NAME = re.compile(r"[0-9a-f]{32}")
_LONGEST_UNIT = 200
# No run is proposed below this, and none with more noise than this many times its own.
_LEAST_PROPOSED, _MOST_NOISE = 0.01, 1e4

# reserved: nothing was asked; begun: perhaps something; finished: everything; given up: only what stands was.
_STATES = ("reserved", "begun", "finished", "given up")
_TABLES = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE runs (number INTEGER PRIMARY KEY, run TEXT NOT NULL UNIQUE, label TEXT NOT NULL, "
    "method TEXT NOT NULL, charges TEXT NOT NULL, turn TEXT NOT NULL, state TEXT NOT NULL)",
)


@dataclass(frozen=True, kw_only=True)
class LedgerRun:
    """A run as the ledger has it; all of it public but that it is there."""

    run: str  # its random name
    label: str  # the name of its folder when it came
    method: str
    charges: Plan
    turn: str
    state: str


class DataSetLedger(Database):
    """The ledger in a folder, opened. Use it in a `with` statement, or `close` it.

    **Guarantee**: all charges of all its runs, as one mechanism, cost at most `limit`, at its δ and under its relation; for runs
    that were chosen by looking at the results of others, while `adaptive`.
    """

    NAME = "the ledger"
    REMEDY = "restore it from a copy, or what was spent is forgotten"

    folder: Path

    def __init__(self, folder: Path | str) -> None:
        self.folder = as_path(folder)
        self._guard = threading.Lock()
        if not self.path.is_file():
            raise BadInput(
                f"There is no ledger in {self.folder}; check the path, or make one with `sfumato ledger init`."
            )
        refuse_network(self.folder, "keep the ledger on a local disk")
        if self.path.stat().st_mode & 0o077:
            raise BadInput(
                f"{self.path} can be read by others, and it holds the key that knows the data; type chmod 600 for it."
            )
        mode = "rw" if os.access(self.folder, os.W_OK) and os.access(self.path, os.W_OK) else "ro"
        with self._explained():
            self._db = connected(self.path, mode, patience=_PATIENCE)
            if mode == "rw":
                lose_nothing(self._db)
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    @classmethod
    def make(cls, folder: Path | str, limit: Budget, *, unit: str | None = None) -> DataSetLedger:
        """A new, empty ledger; the folder is made, or was empty.

        `unit` is whom the limit protects, as the fits will name it; where it is not said, the first run tells it.
        """
        folder = as_path(folder)
        if unit is not None and not (
            unit.strip() and unit.isprintable() and len(unit) <= _LONGEST_UNIT
        ):
            raise BadInput(
                f"A unit is named by a few words in one line, such as record or patient, not by {unit[:40]!r}."
            )
        if not limit.private:
            raise BadInput("A limit of epsilon = inf is none; give a ledger a finite --epsilon.")
        if (folder / LEDGER).exists():
            raise RunConflict(f"{folder} already holds a ledger; choose another folder.")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunConflict(f"{folder} is not empty; give the ledger a folder of its own.")
        epsilon_of(
            _one_sum(limit), limit.delta, limit.neighbours
        )  # a limit that can be accounted for
        facts = {
            "format": FORMAT,
            "name": secrets.token_hex(16),
            "key": secrets.token_hex(32),
            **limit.to_json(),
            **({} if unit is None else {"unit": unit_stated(unit)}),
        }
        refuse_network(folder, "keep the ledger on a local disk")
        made = not folder.exists()
        try:
            with atomic_path(folder / LEDGER, mode=0o600) as temporary:
                _write_new(temporary, facts)
            folder.chmod(0o700)
        except BaseException as error:
            if made:  # nothing is left of what could not be made
                with contextlib.suppress(OSError):
                    folder.rmdir()
            if isinstance(error, sqlite3.Error):
                raise cls.explained(error, folder) from error
            raise
        return cls(folder)

    # -- what stands in it -------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        return self.folder / LEDGER

    @property
    def name(self) -> str:
        """A random one: what is filed under it was paid for here."""
        return self._name

    @property
    def limit(self) -> Budget:
        return self._limit

    @property
    def unit(self) -> str | None:
        """Whom the limit protects: a record, or what the owner of the data calls it; None until somebody has said it."""
        found = self._fact("unit")
        if found is not None and not isinstance(found, str):
            raise self._damaged("its unit")
        return found

    def runs(self) -> list[LedgerRun]:
        """In the order in which they came."""
        with self._explained():
            rows = self._connection.execute(
                "SELECT run, label, method, charges, turn, state FROM runs ORDER BY number"
            ).fetchall()
        return [self._run(row) for row in rows]

    def charges(self, *, but: str = "") -> Plan:
        """Of all runs, or of all but one, as one plan."""
        return tuple(c for run in self.runs() if run.run != but for c in run.charges)

    def spent(self) -> float:
        """ε of everything reserved, at the ledger's δ: an upper bound."""
        return spent_on(self.charges(), self.limit)

    @property
    def adaptive(self) -> bool:
        """Whether the figure also holds for runs whose noise and steps were chosen by looking at earlier results."""
        return all(c.rate == 1.0 for c in self.charges())

    def after(self, epsilon: float) -> float:
        """ε of everything with one more run of one Gaussian sum at (`epsilon`, the ledger's δ)."""
        return self.with_plan(_one_sum(replace(self.limit, epsilon=epsilon)))

    def with_plan(self, charges: Plan) -> float:
        """ε of everything with these charges more."""
        return spent_on((*self.charges(), *charges), self.limit)

    def alone(self, run: LedgerRun) -> float:
        return epsilon_of(run.charges, self.limit.delta, self.limit.neighbours)

    # -- reserve -----------------------------------------------------------------------------------------------------

    def reserve(
        self,
        store: RunStore,
        charges: Plan,
        budget: Budget,
        *,
        method: str,
        plan_at: Callable[[Budget], Plan] | None = None,
        unit: Unit = RECORDS,
    ) -> Reservation:
        """Reserve the charges of the run in `store`, or find its reservation again. Reads no row.

        Raises `BudgetExceeded` if all charges together would pass the limit; then nothing was changed. `plan_at` is what the run
        would promise at another budget: it serves to say which ε would fit.
        """
        self.check_kind(budget, unit)
        wanted, new = store.charges if store.begun else charges, False
        entry, known = self._entry(store), store.entry is not None
        lock = _Lock(self.folder / f"{entry['run']}.lock", store.folder)
        try:
            if not known:
                store.write_entry(entry)
            with self._transaction() as db:
                new = self._find(entry["run"]) is None
                entry = self._enter(db, store, entry, wanted, method)
            if not new:  # a new one has its turn already, and nothing can fail any more
                store.write_entry(entry)
        except Exception as error:
            lock.drop(remove=not known)
            if not known:
                # Nothing was reserved, so nothing refers to it.
                store.write_entry(None) if store.begun else store.discard()
            if isinstance(error, _Passed):
                raise self._refusal(error.cost, entry["run"], wanted, budget, plan_at) from None
            raise
        except BaseException:
            lock.drop(remove=False)
            raise
        return Reservation(self, store, entry["run"], lock, new=new)

    def check_kind(self, budget: Budget, unit: Unit = RECORDS) -> None:
        """Raise unless relation and unit are this ledger's: others do not add up with it.

        Of units the name is compared here; whose each record is, is a part of the data (`Reservation.recognise`).
        """
        if not budget.private:
            raise BadInput(
                f"A run at epsilon = inf has no privacy, so the ledger in {self.folder} cannot hold it to a limit: whatever the "
                "limit, it would be passed; give a finite --epsilon, or fit research rows on data that no ledger guards."
            )
        if budget.neighbours is not self.limit.neighbours:
            ours, theirs = self.limit.neighbours.value, budget.neighbours.value
            raise BadInput(
                f"The ledger in {self.folder} is kept under {ours} and this run promises under {theirs}: the two protect against "
                f"different changes and do not add up; give --neighbours {ours}, or use a ledger under {theirs}."
            )
        if self.unit in (None, unit.name):
            return
        remedy = (
            f"call the unit so in the rule, --unit '(?P<{self.unit}>…)', "
            if unit.by_unnamed_rule and str(self.unit).isidentifier()
            else ""
        )
        raise BadInput(
            f"The ledger in {self.folder} is kept for each {self.unit} and this run protects each {unit.name}: the two count "
            f"different people as one and do not add up; {remedy}fit with the ledger's unit, or use a ledger for this one "
            "(sfumato ledger init --unit)."
        )

    def _enter(
        self,
        db: sqlite3.Connection,
        store: RunStore,
        entry: dict[str, Any],
        wanted: Plan,
        method: str,
    ) -> dict[str, Any]:
        found = self._find(entry["run"])
        if found is None:
            self._check_limit((*self.charges(), *wanted))
            label = (
                "in memory" if store.folder is None else Path(os.path.realpath(store.folder)).name
            )
            state = "begun" if store.begun else "reserved"
            row = (entry["run"], label, method, _of(wanted), entry["turn"], state)
            db.execute(
                "INSERT INTO runs (run, label, method, charges, turn, state) VALUES (?, ?, ?, ?, ?, ?)",
                row,
            )
            return {**entry, "next": None}
        self._check_turn(found, entry, store)
        if found.charges != wanted:
            if store.begun or found.state != "reserved":
                raise RunConflict(
                    f"The run in {store.folder} has reserved another plan in the ledger in {self.folder}; resume it with the "
                    "settings it began with, or give it up by `sfumato ledger release-unused`."
                )
            # Nobody was answered under the old plan: the new one takes its place.
            self._check_limit((*self.charges(but=found.run), *wanted))
            db.execute(
                "UPDATE runs SET charges = ?, method = ? WHERE run = ?",
                (_of(wanted), method, found.run),
            )
        state = "begun" if store.begun else found.state
        return self._turned(db, store, {**entry, "turn": found.turn}, state)

    def _turned(
        self, db: sqlite3.Connection, store: RunStore, entry: dict[str, Any], state: str
    ) -> dict[str, Any]:
        """A new turn: first the store knows both, then the ledger has the new one; the caller leaves the store with that."""
        turn = secrets.token_hex(16)
        store.write_entry({**entry, "next": turn})
        db.execute("UPDATE runs SET turn = ?, state = ? WHERE run = ?", (turn, state, entry["run"]))
        return {**entry, "turn": turn, "next": None}

    def _entry(self, store: RunStore) -> dict[str, Any]:
        found = store.entry
        if found is None:
            return {
                "ledger": self._name,
                "run": secrets.token_hex(16),
                "turn": secrets.token_hex(16),
                "next": None,
            }
        if found.get("ledger") != self._name:
            raise RunConflict(
                f"The run in {store.folder} stands in another ledger than the one in {self.folder}; give that one."
            )
        if not _NAME.fullmatch(str(found.get("run"))):
            raise CorruptArtifact(
                f"The run in {store.folder} is damaged (its place in the ledger); restore the run folder from a copy."
            )
        return found

    def _check_turn(self, found: LedgerRun, entry: dict[str, Any], store: RunStore) -> None:
        if found.state == "finished" and not store.finished:
            raise RunConflict(
                f"Another copy of the run in {store.folder} is finished, and the two have one reservation; use that one, "
                "or begin a new run."
            )
        if found.state == "given up" and not store.abandoned:
            raise RunConflict(
                f"Another copy of the run in {store.folder} was given up, so this one cannot go on; begin a new run."
            )
        if found.turn not in (entry.get("turn"), entry.get("next")):
            raise RunConflict(
                f"Another copy of the run in {store.folder} has gone on, and the two have one reservation; go on with that "
                "one, or begin a new run."
            )

    def _check_limit(self, charges: Plan) -> None:
        cost = cost_within(charges, self.limit)
        if not fits(cost, self.limit):
            raise _Passed(cost)

    def _refusal(
        self,
        cost: float,
        run: str,
        wanted: Plan,
        budget: Budget,
        plan_at: Callable[[Budget], Plan] | None,
    ) -> BudgetExceeded:
        others = self.charges(but=run)
        spent = spent_on(others, self.limit)
        left = _rounded_down(self.limit.epsilon - spent, 4)
        most = self._largest(others, wanted, budget, plan_at)
        remedy = (
            "no further run fits"
            if most is None
            else f"a run of epsilon = {most:g} at delta = {budget.delta:g} would still fit"
        )
        return BudgetExceeded(
            f"This run would bring all runs on this data to epsilon = {rounded_up(cost):.4g} at delta = {self.limit.delta:g}; "
            f"the ledger in {self.folder} allows {self.limit.epsilon:g}, of which {rounded_up(spent):.4g} is spent and "
            f"{left:.4g} left; no row was read, and {remedy}."
        )

    def _largest(
        self,
        others: Plan,
        wanted: Plan,
        budget: Budget,
        plan_at: Callable[[Budget], Plan] | None,
    ) -> float | None:
        """The largest ε, rounded down, at which the run would fit: its own plan with more noise, tried by a promise at that ε."""

        def fitting(charges: Plan) -> bool:
            return fits(cost_within((*others, *charges), self.limit), self.limit)

        def louder(factor: float) -> Plan:
            return tuple(replace(c, noise_multiplier=factor * c.noise_multiplier) for c in wanted)

        low, high = 1.0, _MOST_NOISE
        if not fitting(louder(high)):
            return None
        while high / low > 1.002:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if fitting(louder(middle)) else (middle, high)
        most = epsilon_of(louder(high), budget.delta, budget.neighbours)
        for _ in range(8):
            most = _rounded_down(most)
            if most < _LEAST_PROPOSED:
                return None
            with contextlib.suppress(SfumatoError):
                if plan_at is None or fitting(plan_at(replace(budget, epsilon=most))):
                    return most
            most *= 0.97
        return None

    # -- afterwards --------------------------------------------------------------------------------------------------

    def settle(self, store: RunStore) -> None:
        """Note that a run is finished, if that was lost in a crash. Costs nothing."""
        entry = store.entry
        if entry is None or entry.get("ledger") != self._name or not store.finished:
            return
        with self._transaction() as db:
            db.execute(
                "UPDATE runs SET state = 'finished' WHERE run = ? AND state = 'begun' AND turn IN (?, ?)",
                (entry.get("run"), entry.get("turn"), entry.get("next")),
            )

    def release_unused(self, run: Path | str) -> tuple[Plan, Plan]:
        """Give the unfinished run in the folder `run` up for ever; returns what comes back to the ledger and what stands.

        A charge comes back if the run's store has no answer under its label: an answer is kept before anybody sees it, so nobody
        has seen one. The store is marked first, so that no moment is left in which the charge is free and the run could ask.
        """
        folder = as_path(run)
        if not (folder / STORE).is_file():
            raise BadInput(
                f"There is no run with a store in {folder}; give the --out of a `sfumato fit`."
            )
        store = RunStore(folder)
        try:
            if store.entry is None:
                raise BadInput(f"The run in {folder} stands in no ledger; nothing is reserved.")
            entry = self._entry(store)
            if store.finished:
                raise RunConflict(
                    f"The run in {folder} is finished and gives nothing back: it asked all that it reserved."
                )
            lock = _Lock(self.folder / f"{entry['run']}.lock", folder)
            try:
                found = self._find(entry["run"])
                if found is None:
                    raise BadInput(
                        f"The ledger in {self.folder} has no reservation of the run in {folder}."
                    )
                self._check_turn(found, entry, store)
                return self._give_back(found, store)
            finally:
                lock.drop(remove=False)
        finally:
            store.close()

    def _give_back(self, found: LedgerRun, store: RunStore) -> tuple[Plan, Plan]:
        asked = {answer.label for answer in store.answers()}
        back = tuple(c for c in found.charges if c.label not in asked)
        kept = tuple(c for c in found.charges if c.label in asked)
        store.abandon()
        with self._transaction() as db:
            db.execute(
                "UPDATE runs SET charges = ?, state = 'given up' WHERE run = ?",
                (_of(kept), found.run),
            )
        return back, kept

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    def __enter__(self) -> DataSetLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- SQLite ------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        with self._explained():
            sound = self._connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
            names = {r[0] for r in self._connection.execute("SELECT name FROM sqlite_master")}
        if not sound or not {"facts", "runs"} <= names:
            raise self._damaged("it lacks its tables or pages")
        if (found := self._fact("format")) != FORMAT:
            raise CorruptArtifact(
                f"{self.path} is of format {found}, not {FORMAT}; use the version of sfumato that wrote it."
            )
        try:
            self._limit = Budget(
                epsilon=self._fact("epsilon"),
                delta=self._fact("delta"),
                neighbours=self._fact("neighbours"),
            )
            self._name = str(self._fact("name"))
            self._key = bytes.fromhex(str(self._fact("key")))
        except (BadInput, ValueError) as error:
            raise self._damaged("its limit or key") from error
        if len(self._key) != 32 or not _NAME.fullmatch(self._name):
            raise self._damaged("its name or key")
        _ = self.unit

    def _fact(self, name: str) -> Any:
        with self._explained():
            row = self._connection.execute(
                "SELECT value FROM facts WHERE name = ?", (name,)
            ).fetchone()
        try:
            return None if row is None else json.loads(row[0])
        except (TypeError, ValueError) as error:
            raise self._damaged(f"its {name}") from error

    def _find(self, run: str) -> LedgerRun | None:
        with self._explained():
            row = self._connection.execute(
                "SELECT run, label, method, charges, turn, state FROM runs WHERE run = ?", (run,)
            ).fetchone()
        return None if row is None else self._run(row)

    def _run(self, row: tuple[Any, ...]) -> LedgerRun:
        run, label, method, charges, turn, state = row
        try:
            plan = tuple(charge_from(c) for c in json.loads(charges))
        except (TypeError, ValueError, AttributeError, BadInput) as error:
            raise self._damaged("a charge that cannot be read") from error
        if state not in _STATES or not all(isinstance(v, str) for v in row):
            raise self._damaged("a run that makes no sense")
        return LedgerRun(run=run, label=label, method=method, charges=plan, turn=turn, state=state)


class Reservation:
    """The charges of one run, held for it; the run's place in the ledger is locked until `close`."""

    def __init__(
        self, ledger: DataSetLedger, store: RunStore, run: str, lock: _Lock, *, new: bool
    ) -> None:
        self._ledger, self._store, self._run, self._lock = ledger, store, run, lock
        self._new, self._begun = new, False

    def recognise(self, data: Dataset) -> None:
        """Raise unless `data` are the ledger's own; the first that come are. Reads them once; nothing is answered."""
        ledger = self._ledger
        found = fingerprint(data, ledger._key)
        with ledger._transaction() as db:
            known = ledger._fact("fingerprint")
            if known is None:
                db.execute("INSERT INTO facts VALUES ('fingerprint', ?)", (as_json(found),))
                named = ("unit", as_json(data.unit.name))
                db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", named)
            elif not hmac.compare_digest(str(known), found):
                raise BadInput(
                    f"{data.name} is not the data that the ledger in {ledger.folder} was begun with (or is read with another "
                    "size or schema, or with other units: what protects records and what protects persons does not add up); "
                    "nothing was asked. Give the same data and --unit, or make a ledger for these."
                )

    def begin(self) -> None:
        """From here on something may be asked, and nothing is given back without a proof."""
        self._begun = True
        entry = self._ledger._entry(self._store)
        with self._ledger._transaction() as db:
            entry = self._ledger._turned(db, self._store, entry, "begun")
        self._store.write_entry(entry)

    def withdraw(self) -> None:
        """The fit failed: give back what nobody asked and nobody can ask any more.

        Before `begin` that is everything, if it was reserved just now or nothing was ever begun under it. After it a run in a
        folder keeps all, since it can be resumed; one in memory is gone, and keeps what it asked.
        """
        found = self._ledger._find(self._run)
        if found is None or found.state == "finished":
            return
        if self._begun:
            if self._store.folder is None:
                self._ledger._give_back(found, self._store)
            return
        if not self._new and found.state != "reserved":
            return
        with self._ledger._transaction() as db:
            db.execute("DELETE FROM runs WHERE run = ?", (self._run,))
        self._store.write_entry(None) if self._store.begun else self._store.discard()
        self._lock.drop(remove=True)

    def finish(self) -> None:
        with self._ledger._transaction() as db:
            db.execute("UPDATE runs SET state = 'finished' WHERE run = ?", (self._run,))
        self._lock.drop(remove=True)

    def close(self) -> None:
        self._lock.drop(remove=False)


class _Passed(SfumatoError):
    """What it would come to; told in full once the ledger is free for others again."""

    def __init__(self, cost: float) -> None:
        super().__init__(cost)
        self.cost = cost


class _Lock:
    """One process at a time works on a run, whichever copy of its folder it has; the system drops the lock when it ends."""

    def __init__(self, path: Path, run: Path | None) -> None:
        self._path, self._handle = path, -1
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            while True:
                self._handle = os.open(path, flags, 0o600)
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever removed the file before it was locked left a lock that nobody else can meet.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(self._handle), path.stat()):
                        return
                os.close(self._handle)
                self._handle = -1
        except OSError as error:
            if self._handle >= 0:
                os.close(self._handle)
            if error.errno in (errno.EAGAIN, errno.EACCES) and self._handle >= 0:
                raise RunConflict(
                    f"Another process is working on a copy of the run in {run}; wait for it."
                ) from None
            if (lack := out_of_resources(error)) is not None:
                raise OutOfResources(lack.args[0], str(path.parent)) from error
            raise BadInput(
                f"Cannot write in {path.parent}: {error.strerror}; the ledger's folder must be writable."
            ) from error

    def drop(self, *, remove: bool) -> None:
        """`remove` the file where nobody can come for it any more."""
        if self._handle >= 0:
            if remove:
                self._path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = -1


def _write_new(path: Path, facts: dict[str, Any]) -> None:
    with contextlib.closing(connected(path, "rw")) as db:
        lose_nothing(db)
        db.execute("BEGIN IMMEDIATE")
        for statement in _TABLES:
            db.execute(statement)
        db.executemany(
            "INSERT INTO facts VALUES (?, ?)", [(k, as_json(v)) for k, v in facts.items()]
        )
        db.execute("COMMIT")


def _one_sum(budget: Budget) -> Plan:
    queries = [Query(label="one sum", shape=(1,))]
    return plan(queries, calibrated(queries, budget))


def _of(charges: Plan) -> str:
    return as_json([c.to_json() for c in charges])


def _rounded_down(epsilon: float, digits: int = 2) -> float:
    if epsilon <= 0:
        return 0.0
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(epsilon)))
    return math.floor(epsilon * scale * (1 + 1e-12)) / scale
