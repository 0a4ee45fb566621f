"""The ledger of a data set: all runs on it cost no more together than it allows, whatever fails and however many ask."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

import sfumato
from sfumato.cli import main as cli
from sfumato.data import Dataset
from sfumato.data.sources import Rows, Source
from sfumato.data.units import PathRule, Unit, unit_of
from sfumato.errors import (
    BadInput,
    BudgetExceeded,
    CorruptArtifact,
    OutOfResources,
    RunConflict,
)
from sfumato.methods.base import Method
from sfumato.privacy import (
    Budget,
    Charge,
    DataSetLedger,
    Neighbours,
    Release,
    RunStore,
    epsilon_of,
)
from sfumato.privacy import dataset_ledger as module
from sfumato.privacy.dataset_ledger import LEDGER, Reservation
from sfumato.privacy.overlap import fingerprint

DELTA = 1e-5
ONE = Budget(epsilon=1.0, delta=DELTA)
LIMIT = Budget(epsilon=1.6, delta=DELTA)
# Two of these are ε = 1.47 at δ = 1e-5, three are 1.83.
SUM = Charge(label="a sum", bound=1.0, noise_multiplier=3.7303, dimension=6)
OTHER = Charge(label="another", bound=1.0, noise_multiplier=8.0, dimension=6)
STEPS = Charge(label="steps", bound=1.0, noise_multiplier=1.5, rate=0.01, steps=200, dimension=3)


def pictures(n: int = 60, seed: int = 0, name: str = "pictures") -> Dataset:
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (n, 8, 8), dtype=np.uint8)
    return Dataset.from_arrays(images, np.arange(n) % 2, classes=2, name=name)


def merf() -> Method:
    return sfumato.Merf(**sfumato.Merf.TINY)


def untrained() -> Method:
    return sfumato.Mge(**sfumato.Mge.TINY)


def make(folder: Path, limit: Budget = LIMIT) -> Path:
    DataSetLedger.make(folder, limit).close()
    return folder


def spent(folder: Path) -> float:
    with DataSetLedger(folder) as book:
        return book.spent()


def states(folder: Path) -> list[str]:
    with DataSetLedger(folder) as book:
        return [run.state for run in book.runs()]


def edit(folder: Path, statement: str, *values: object) -> None:
    with contextlib.closing(sqlite3.connect(folder / LEDGER)) as db, db:
        db.execute(statement, values)


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in args])


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return make(tmp_path / "ledger")


# -- the limit ------------------------------------------------------------------------------------------------------


def test_the_third_of_three_runs_of_1_is_refused_against_a_limit_of_1_6(tmp_path):
    folder = tmp_path / "ledger"
    assert run("ledger", "init", folder, "--epsilon", "1.6", "--delta", "1e-5").exit_code == 0
    tiny = [w for k, v in sfumato.Merf.TINY.items() for w in ("--set", f"{k}={v}")]
    fit = ["fit", "merf", "--data", "digits:train", "--delta", "1e-5", *tiny, "--ledger", folder]
    for name in ("first", "second"):
        done = run(*fit, "--epsilon", "1", "--out", tmp_path / name)
        assert done.exit_code == 0, done.output
    assert "ε = 1.466 of 1.6 at δ = 1e-05 under zero-out is spent by 2 runs" in done.stdout
    refused = run(*fit, "--epsilon", "1", "--out", tmp_path / "third")
    assert refused.exit_code == 4
    assert "to epsilon = 1.835 at delta = 1e-05" in refused.stderr
    assert "1.466 is spent and 0.1348 left; no row was read" in refused.stderr
    assert "epsilon = 0.55 at delta = 1e-05 would still fit" in refused.stderr
    assert not (tmp_path / "third").exists()
    assert spent(folder) == pytest.approx(1.4652, abs=1e-4)
    done = run(*fit, "--epsilon", "0.55", "--out", tmp_path / "third")  # as it was told
    assert done.exit_code == 0, done.output
    assert 1.59 < spent(folder) <= 1.6


def test_all_charges_are_priced_as_one_mechanism_at_the_ledgers_delta(tmp_path):
    folder = make(tmp_path / "ledger", Budget(epsilon=5.0, delta=1e-6))
    for charge in (SUM, STEPS, STEPS):
        with DataSetLedger(folder) as book:
            # A run's own δ and ε do not enter.
            book.reserve(RunStore(), (charge,), ONE, method="a test")
    together = epsilon_of((SUM, STEPS, STEPS), 1e-6, Neighbours.ZERO_OUT)
    alone = sum(epsilon_of((c,), 1e-6, Neighbours.ZERO_OUT) for c in (SUM, STEPS, STEPS))
    assert spent(folder) == pytest.approx(together, rel=2e-3)
    assert "decided on in advance" in run("ledger", "show", folder).stdout
    assert spent(folder) < 0.95 * alone


def test_what_is_refused_changes_nothing_and_what_fits_is_told(ledger):
    with DataSetLedger(ledger) as book:
        for _ in range(2):
            book.reserve(RunStore(), (SUM,), ONE, method="a test")
        before = (ledger / LEDGER).read_bytes()
        with pytest.raises(BudgetExceeded, match=r"epsilon = 0\.5\d? at") as refusal:
            book.reserve(RunStore(), (SUM,), ONE, method="a test")
        assert "to epsilon = 1.836 at" in str(refusal.value)
        assert (ledger / LEDGER).read_bytes() == before
        assert book.after(0.5) < 1.6 < book.after(1.0)


def test_a_full_ledger_says_that_nothing_fits(tmp_path):
    with DataSetLedger.make(tmp_path / "ledger", ONE) as book:
        exact = module._one_sum(ONE)
        book.reserve(RunStore(), exact, ONE, method="a test")
        with pytest.raises(BudgetExceeded, match="no further run fits"):
            book.reserve(RunStore(), exact, ONE, method="a test")


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_another_relation_is_refused_with_the_reason(ledger, relation):
    budget = Budget(epsilon=0.1, delta=DELTA, neighbours=Neighbours(relation))
    with pytest.raises(BadInput, match=f"under zero-out and this run promises under {relation}"):
        merf().fit(pictures(), budget, ledger=ledger)
    assert states(ledger) == []


def test_a_variant_that_is_not_sound_is_refused(ledger):
    method = sfumato.Dpaf(**{**sfumato.Dpaf.TINY, "paper_variant": True})
    with pytest.raises(BadInput, match="unsound"):
        method.fit(pictures(), ONE, ledger=ledger)
    assert states(ledger) == []


# -- before a row is read -------------------------------------------------------------------------------------------


class Untouchable(Source):
    def __len__(self) -> int:
        raise AssertionError("a row was counted")

    def blocks(self, size: int) -> Iterator[Rows]:
        raise AssertionError("a row was read")

    def take(self, indices: Any) -> Rows:
        raise AssertionError("a row was read")


def test_no_row_is_read_or_counted_before_the_reservation(ledger, tmp_path):
    data = Dataset(Untouchable(), pictures().schema, "untouchable")
    with DataSetLedger(ledger) as book:
        for _ in range(2):
            book.reserve(RunStore(), (SUM,), ONE, method="a test")
    with pytest.raises(BudgetExceeded):
        merf().fit(data, ONE, out=tmp_path / "run", ledger=ledger)
    assert not (tmp_path / "run").exists()
    # What fits is read, and there the rows object; nothing was asked, so it is given back.
    with pytest.raises(AssertionError, match="counted"):
        merf().fit(data, Budget(epsilon=0.1, delta=DELTA), out=tmp_path / "run", ledger=ledger)
    assert len(states(ledger)) == 2
    assert not (tmp_path / "run").exists()


def test_a_plan_that_follows_the_number_of_records_counts_them_only_where_that_is_public(
    ledger, tmp_path
):
    data = Dataset(Untouchable(), pictures().schema, "untouchable")
    private = Budget(epsilon=1.0, delta=DELTA, neighbours=Neighbours.ADD_REMOVE)
    # Refused by the ledger, which is of another relation, before anybody counts.
    with pytest.raises(BadInput, match="kept under zero-out"):
        sfumato.Mixture().fit(data, private, out=tmp_path / "run", ledger=ledger)
    with pytest.raises(AssertionError, match="counted"):
        sfumato.Mixture().fit(data, ONE, out=tmp_path / "run", ledger=ledger)
    assert states(ledger) == []
    assert not (tmp_path / "run").exists()


def test_a_table_is_not_read_on_the_command_line_before_the_reservation(
    ledger, tmp_path, monkeypatch
):
    from sfumato.data.tables import TableFile

    column = {"name": "a", "kind": "numerical", "low": 0, "high": 1}
    schema = {"kind": "table", "shape": [1], "classes": [], "columns": [column]}
    table = tmp_path / "table.csv"
    table.write_text("a\n" + "0.5\n" * 20)
    (tmp_path / "table.schema.json").write_text(json.dumps(schema))
    with DataSetLedger(ledger) as book:
        for _ in range(2):
            book.reserve(RunStore(), (SUM,), ONE, method="a test")

    def refuse(self: TableFile) -> int:
        raise AssertionError("a row was counted")

    monkeypatch.setattr(TableFile, "__len__", refuse)
    words = ("--epsilon", "1", "--delta", "1e-5", "--out", tmp_path / "run", "--ledger", ledger)
    refused = run("fit", "merf", "--data", table, *words)
    assert refused.exit_code == 4, refused.output


# -- whose data -----------------------------------------------------------------------------------------------------


def test_the_same_rows_in_another_order_and_under_other_labels_are_the_same_data(ledger):
    data, key = pictures(), bytes(range(32))
    order = np.random.default_rng(1).permutation(len(data))
    again = Dataset.from_arrays(
        data.images[order, 0], np.zeros(len(data), int), classes=2, name="again"
    )
    assert fingerprint(data, key) == fingerprint(again, key)
    assert fingerprint(data, key) != fingerprint(data, bytes(32))
    merf().fit(data, Budget(epsilon=0.5, delta=DELTA), ledger=ledger)
    merf().fit(again, Budget(epsilon=0.5, delta=DELTA), ledger=ledger, allow_empty=True)
    assert states(ledger) == ["finished", "finished"]


def test_a_row_more_less_or_twice_is_other_data():
    data, key = pictures(), bytes(range(32))
    images = data.images[:, 0]
    for other in (images[1:], np.concatenate([images, images[:1]]), np.r_[images[1:], images[1:2]]):
        labels = np.zeros(len(other), int)
        assert fingerprint(Dataset.from_arrays(other, labels, classes=2), key) != fingerprint(
            data, key
        )


def test_a_second_folder_with_the_same_images_is_told(ledger, tmp_path):
    pictures().save(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for name in ("one", "two"):
        data = sfumato.load(tmp_path / name, image_size=8, channels=1)
        merf().fit(data, Budget(epsilon=0.5, delta=DELTA), ledger=ledger)
    assert len(states(ledger)) == 2


def test_other_data_are_refused_and_the_reservation_is_given_back(ledger, tmp_path):
    merf().fit(pictures(), Budget(epsilon=0.5, delta=DELTA), ledger=ledger)
    before = spent(ledger)
    with pytest.raises(BadInput, match="not the data that the ledger"):
        merf().fit(
            pictures(seed=1), Budget(epsilon=0.5, delta=DELTA), out=tmp_path / "run", ledger=ledger
        )
    assert (spent(ledger), states(ledger)) == (before, ["finished"])
    assert not (tmp_path / "run").exists()
    assert sorted(p.name for p in ledger.iterdir()) == [LEDGER]


def of_persons(unit) -> Dataset:
    data = pictures()
    return Dataset.from_arrays(data.images[:, 0], data.labels, classes=2, unit=unit)


def test_runs_that_protect_others_do_not_add_up_in_one_ledger(ledger):
    persons = np.arange(len(pictures())) // 3
    merf().fit(of_persons(persons), Budget(epsilon=0.5, delta=DELTA), ledger=ledger)
    before = spent(ledger)
    for other in (pictures(), of_persons(persons[::-1] // 2), of_persons(np.roll(persons, 1))):
        with pytest.raises(
            BadInput, match=r"with other units|each unit and this run protects each record"
        ):
            merf().fit(other, Budget(epsilon=0.5, delta=DELTA), ledger=ledger)
    assert (spent(ledger), states(ledger)) == (before, ["finished"])
    # What the persons are called, and the order of records, is nothing.
    order = np.random.default_rng(2).permutation(len(persons))
    data = pictures()
    same = Dataset.from_arrays(
        data.images[order, 0], data.labels[order], classes=2, unit=[f"p{i}" for i in persons[order]]
    )
    merf().fit(same, Budget(epsilon=0.5, delta=DELTA), ledger=ledger)
    assert len(states(ledger)) == 2


def test_a_record_without_a_unit_is_refused_before_anything_is_paid(tmp_path):
    limit = Budget(epsilon=1, delta=DELTA, neighbours="add-remove")
    folder = tmp_path / "ledger"
    DataSetLedger.make(folder, limit).close()
    (tmp_path / "t.csv").write_text("who,x\n" + "a,0.5\n" * 20 + ",0.2\n")
    schema = sfumato.Schema.from_json(
        {"kind": "table", "columns": [{"name": "x", "kind": "numerical", "low": 0, "high": 1}]}
    )
    method = sfumato.get_method("mixture")
    data = sfumato.load(tmp_path / "t.csv", schema=schema, unit="who")
    with pytest.raises(BadInput, match="Some records have no 'who'"):
        method(**method.TINY).fit(data, limit, out=tmp_path / "run", ledger=folder)
    assert (spent(folder), states(folder)) == (0.0, [])


def test_a_refused_first_run_leaves_no_fingerprint(ledger):
    images = pictures(seed=1).images[:, 0]
    lopsided = Dataset.from_arrays(images, np.zeros(len(images), int), classes=2)
    with pytest.raises(BadInput, match="without any record"):
        merf().fit(lopsided, ONE, ledger=ledger)
    assert states(ledger) == []
    merf().fit(pictures(), ONE, ledger=ledger)


def test_key_and_fingerprint_stay_in_the_file(ledger, tmp_path):
    out = tmp_path / "run"
    merf().fit(pictures(), ONE, out=out, ledger=ledger)
    with DataSetLedger(ledger) as book:
        secret = [book._key.hex(), str(book._fact("fingerprint"))]
    shown = run("ledger", "show", ledger, "--json").stdout + run("ledger", "show", ledger).stdout
    kept = b"".join(p.read_bytes() for p in out.iterdir())
    for text in secret:
        assert len(text) == 64
        assert text not in shown
        assert text.encode() not in kept
    assert str(ledger).encode() not in kept  # nor where it lies
    assert stat.S_IMODE((ledger / LEDGER).stat().st_mode) == 0o600
    assert stat.S_IMODE(ledger.stat().st_mode) == 0o700


# -- crashes and copies ---------------------------------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> int:
    """The exit status of a process that does it.

    It must train no network: where another test has had gradients computed on a device, torch refuses them in a child.
    """
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(function: Callable[..., Any]) -> Callable[..., Any]:
    def work(*args: object, **kwargs: object) -> None:
        function(*args, **kwargs)
        die()

    return work


MOMENTS = {
    "reserved": (Reservation, "recognise", die),
    "recognised": (Reservation, "recognise", after(Reservation.recognise)),
    "turning": (RunStore, "write_entry", after(RunStore.write_entry)),
    "begun in the ledger": (Reservation, "begin", after(Reservation.begin)),
    "begun": (RunStore, "begin", after(RunStore.begin)),
    "answering": (RunStore, "keep", die),
    "answered": (RunStore, "keep", after(RunStore.keep)),
    "sealed": (Reservation, "finish", die),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_was_killed_goes_on_with_its_one_reservation(
    ledger, tmp_path, monkeypatch, moment
):
    data, out = pictures(), tmp_path / "run"
    owner, name, deed = MOMENTS[moment]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, deed)
        assert (
            in_child(lambda: untrained().fit(data, ONE, out=out, ledger=ledger)) == -signal.SIGKILL
        )
    assert len(states(ledger)) == (0 if moment == "turning" else 1)
    untrained().fit(data, ONE, out=out, ledger=ledger, resume=sfumato.methods.is_run(out))
    assert states(ledger) == ["finished"]
    assert spent(ledger) == pytest.approx(1.0)


@pytest.mark.parametrize("write", range(1, 6))
def test_killed_at_any_change_of_turn_it_still_goes_on(ledger, tmp_path, monkeypatch, write):
    data, out, seen = pictures(), tmp_path / "run", []
    original = RunStore.write_entry

    def counted(self: RunStore, entry: Any) -> None:
        original(self, entry)
        seen.append(entry)
        if len(seen) == write:
            die()

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "write_entry", counted)
        in_child(lambda: merf().fit(data, ONE, out=out, ledger=ledger))
    merf().fit(data, ONE, out=out, ledger=ledger, resume=sfumato.methods.is_run(out))
    assert states(ledger) == ["finished"]


def test_before_it_began_a_killed_run_may_change_its_plan(ledger, tmp_path, monkeypatch):
    data, out = pictures(), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Reservation, "recognise", die)
        in_child(lambda: merf().fit(data, ONE, out=out, ledger=ledger))
    merf().fit(data, Budget(epsilon=0.5, delta=DELTA), out=out, ledger=ledger)
    assert states(ledger) == ["finished"]
    assert spent(ledger) == pytest.approx(0.5)


def unfinished(data: Dataset, out: Path, ledger: Path | None, monkeypatch: Any) -> None:
    """A run that was killed right after its answer."""
    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "keep", after(RunStore.keep))
        status = in_child(lambda: merf().fit(data, ONE, out=out, ledger=ledger))
    assert status == -signal.SIGKILL


def test_of_two_copies_of_an_unfinished_run_one_goes_on(ledger, tmp_path, monkeypatch):
    data, one, two = pictures(), tmp_path / "one", tmp_path / "two"
    unfinished(data, one, ledger, monkeypatch)
    shutil.copytree(one, two)
    with monkeypatch.context() as patch:  # the copy goes on, and fails
        patch.setattr(RunStore, "finish", die)
        in_child(lambda: merf().fit(data, ONE, out=two, ledger=ledger, resume=True))
    with pytest.raises(RunConflict, match="has gone on"):
        merf().fit(data, ONE, out=one, ledger=ledger, resume=True)
    with pytest.raises(RunConflict, match="has gone on"), DataSetLedger(ledger) as book:
        book.release_unused(one)
    merf().fit(data, ONE, out=two, ledger=ledger, resume=True)
    with pytest.raises(RunConflict, match="is finished"):
        merf().fit(data, ONE, out=one, ledger=ledger, resume=True)
    assert states(ledger) == ["finished"]


def test_a_copy_waits_while_the_run_is_worked_on(ledger, tmp_path):
    store = RunStore(tmp_path / "one")
    with DataSetLedger(ledger) as book:
        held = book.reserve(store, (SUM,), ONE, method="a test")
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        with pytest.raises(RunConflict, match="working on a copy"), DataSetLedger(ledger) as other:
            other.reserve(RunStore(tmp_path / "two"), (SUM,), ONE, method="a test")
        held.close()


def test_a_run_in_a_ledger_is_resumed_with_that_ledger_only(ledger, tmp_path, monkeypatch):
    data, out = pictures(), tmp_path / "run"
    unfinished(data, out, ledger, monkeypatch)
    with pytest.raises(RunConflict, match="--ledger"):
        merf().fit(data, ONE, out=out, resume=True)
    with pytest.raises(RunConflict, match="another ledger"):
        merf().fit(data, ONE, out=out, resume=True, ledger=make(tmp_path / "other"))
    with pytest.raises(BadInput, match="not the data"):
        merf().fit(pictures(seed=1), ONE, out=out, resume=True, ledger=ledger)
    assert states(ledger) == ["begun"]
    merf().fit(data, ONE, out=out, resume=True, ledger=ledger)


def test_a_run_begun_without_a_ledger_pays_when_it_goes_on_under_one(ledger, tmp_path, monkeypatch):
    data, out = pictures(), tmp_path / "run"
    unfinished(data, out, None, monkeypatch)
    tight = make(tmp_path / "tight", Budget(epsilon=0.5, delta=DELTA))
    with pytest.raises(BudgetExceeded):
        merf().fit(data, ONE, out=out, resume=True, ledger=tight)
    merf().fit(data, ONE, out=out, resume=True, ledger=ledger)
    assert states(ledger) == ["finished"]
    assert spent(ledger) == pytest.approx(1.0)


# -- given back -----------------------------------------------------------------------------------------------------


def begun(ledger: Path, out: Path, *answered: Charge) -> None:
    """An unfinished run that promised two sums."""
    with DataSetLedger(ledger) as book, contextlib.closing(RunStore(out)) as store:
        held = book.reserve(store, (SUM, OTHER), ONE, method="a test")
        held.begin()
        store.begin({"method": "a test"}, {"epsilon": 1.0}, (SUM, OTHER), 1.0)
        for charge in answered:
            store.keep(Release(units=torch.ones(6, dtype=torch.int64), grid=1.0, charge=charge))
        held.close()


@pytest.mark.parametrize("answered", [(), (SUM,), (SUM, OTHER)])
def test_only_what_was_never_asked_is_given_back(ledger, tmp_path, answered):
    out = tmp_path / "run"
    begun(ledger, out, *answered)
    done = run("ledger", "release-unused", out, "--ledger", ledger, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["kept"] == [c.label for c in answered]
    assert told["given_back"] == [c.label for c in (SUM, OTHER)[len(answered) :]]
    assert spent(ledger) == pytest.approx(epsilon_of(answered, DELTA, Neighbours.ZERO_OUT))
    again = run("ledger", "release-unused", out, "--ledger", ledger)
    assert (again.exit_code, "nothing" in again.stdout) == (0, True)
    with pytest.raises(RunConflict, match="given up"):
        merf().fit(pictures(), ONE, out=out, ledger=ledger, resume=True)


def test_a_run_that_never_began_gives_everything_back_and_stays_given_up(
    ledger, tmp_path, monkeypatch
):
    data, out = pictures(), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Reservation, "recognise", die)
        in_child(lambda: merf().fit(data, ONE, out=out, ledger=ledger))
    assert spent(ledger) == pytest.approx(1.0)
    with DataSetLedger(ledger) as book:
        assert len(book.release_unused(out)[0]) == 1
    assert spent(ledger) == 0
    with pytest.raises(RunConflict, match="given up"):
        merf().fit(data, ONE, out=out, ledger=ledger)


def test_a_copy_of_a_run_that_was_given_up_cannot_go_on(ledger, tmp_path, monkeypatch):
    data, out = pictures(), tmp_path / "run"
    unfinished(data, out, ledger, monkeypatch)
    shutil.copytree(out, tmp_path / "copy")
    with DataSetLedger(ledger) as book:
        back, kept = book.release_unused(out)
    assert (len(back), len(kept)) == (0, 1)
    with pytest.raises(RunConflict, match="was given up"):
        merf().fit(data, ONE, out=tmp_path / "copy", ledger=ledger, resume=True)


def test_the_store_is_marked_before_anything_is_given_back(ledger, tmp_path, monkeypatch):
    out = tmp_path / "run"
    begun(ledger, out)
    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "abandon", after(RunStore.abandon))
        in_child(lambda: DataSetLedger(ledger).release_unused(out))
    assert states(ledger) == ["begun"]
    assert spent(ledger) > 1
    with pytest.raises(RunConflict, match="given up"):
        merf().fit(pictures(), ONE, out=out, ledger=ledger, resume=True)
    with DataSetLedger(ledger) as book:
        assert len(book.release_unused(out)[0]) == 2
    assert spent(ledger) == 0


def test_a_finished_run_and_a_stranger_give_nothing_back(ledger, tmp_path):
    data = pictures()
    merf().fit(data, ONE, out=tmp_path / "done", ledger=ledger)
    merf().fit(data, ONE, out=tmp_path / "stranger")
    with DataSetLedger(ledger) as book:
        with pytest.raises(RunConflict, match="gives nothing back"):
            book.release_unused(tmp_path / "done")
        with pytest.raises(BadInput, match="stands in no ledger"):
            book.release_unused(tmp_path / "stranger")
        with pytest.raises(BadInput, match="no run"):
            book.release_unused(tmp_path / "nowhere")
        assert not (tmp_path / "nowhere").exists()
    assert spent(ledger) == pytest.approx(1.0)


@pytest.mark.parametrize(("asked", "cost"), [(False, 0.0), (True, 1.0)])
def test_a_run_in_memory_that_fails_keeps_what_it_asked(ledger, monkeypatch, asked, cost):
    original = RunStore.keep

    def keep(self: RunStore, *args: Any, **kwargs: Any) -> None:
        if asked:
            original(self, *args, **kwargs)
        raise RuntimeError("broken")

    monkeypatch.setattr(RunStore, "keep", keep)
    with pytest.raises(RuntimeError, match="broken"):
        merf().fit(pictures(), ONE, ledger=ledger)
    assert spent(ledger) == pytest.approx(cost)


# -- two at once ----------------------------------------------------------------------------------------------------


def pairs(tmp_path: Path, count: int) -> None:
    limit = Budget(epsilon=1.2, delta=DELTA)  # one run fits, two do not
    for pair in range(count):
        folder = make(tmp_path / f"ledger-{pair}", limit)
        gate, opened = os.pipe()

        def work(name: str, folder: Path = folder, gate: int = gate, opened: int = opened) -> None:
            os.close(opened)
            os.read(gate, 1)  # until both are there
            store = RunStore(tmp_path / name)
            with DataSetLedger(folder) as book:
                try:
                    book.reserve(store, (SUM,), ONE, method="a test").begin()
                except BudgetExceeded:
                    os._exit(4)

        children = []
        for name in (f"{pair}-one", f"{pair}-two"):
            child = os.fork()
            if child == 0:
                with contextlib.suppress(Exception):
                    work(name)
                    os._exit(0)
                os._exit(1)
            children.append(child)
        os.close(gate)
        os.close(opened)
        codes = sorted(os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children)
        assert codes == [0, 4]
        assert states(folder) == ["begun"]


def test_of_two_processes_at_once_one_passes(tmp_path):
    pairs(tmp_path, 10)


@pytest.mark.slow
def test_of_two_processes_at_once_one_passes_fifty_times(tmp_path):
    pairs(tmp_path, 50)


@pytest.mark.slow
def test_of_two_commands_at_once_one_passes(tmp_path):
    folder = make(tmp_path / "ledger", Budget(epsilon=1.2, delta=DELTA))
    tiny = [w for k, v in sfumato.Merf.TINY.items() for w in ("--set", f"{k}={v}")]
    words = ["fit", "merf", "--data", "digits:train", "--epsilon", "1", "--delta", "1e-5", *tiny]
    fits = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "sfumato", *words),
                *("--out", tmp_path / name, "--ledger", folder, "-q"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    told = "".join(fit.communicate()[1] for fit in fits)
    assert sorted(fit.returncode for fit in fits) == [0, 4], told
    assert "1.466" in told
    assert states(folder) == ["finished"]


# -- what is told ---------------------------------------------------------------------------------------------------


def test_show_tells_runs_bar_and_what_another_would_bring(ledger, tmp_path):
    assert "No run stands" in run("ledger", "show", ledger).stdout
    merf().fit(pictures(), ONE, out=tmp_path / "first", ledger=ledger)
    text = run("ledger", "show", ledger).stdout
    assert "first" in text
    assert "█" * 25 + "░" * 15 + " ε = 1 of 1.6" in text
    assert "Another run at ε = 0.5 would bring it to 1.147." in text
    assert "Another run at ε = 1 would bring it to 1.466." in text
    told = json.loads(run("ledger", "show", ledger, "--json").stdout)
    assert [set(r) for r in told["runs"]] == [
        {"run", "label", "method", "epsilon", "sums", "state"}
    ]
    assert told["adaptive"] is True  # Gaussian sums compose whoever chooses them
    assert "in advance" not in text
    assert told["runs"][0]["epsilon"] == pytest.approx(1.0)
    assert told["spent"] + told["left"] == pytest.approx(1.6)


def test_resume_and_train_again_cost_nothing_and_say_so(ledger, tmp_path, monkeypatch):
    data, out = sfumato.load("digits:train"), tmp_path / "run"
    unfinished(data, out, ledger, monkeypatch)
    tiny = [w for k, v in sfumato.Merf.TINY.items() for w in ("--set", f"{k}={v}")]
    words = ["--data", "digits:train", "--epsilon", "1", "--delta", "1e-5", *tiny]
    fit = ["fit", "merf", *words, "--out", out, "--ledger", ledger, "--resume"]
    for _ in range(2):  # unfinished, then finished
        done = run(*fit)
        assert done.exit_code == 0, done.output
        assert "uses its reservation and costs nothing more" in done.stdout
        assert states(ledger) == ["finished"]
    again = ["fit", "merf", "--from-release", out, "--out", tmp_path / "again"]
    done = run(*again, "--ledger", ledger)
    assert done.exit_code == 0, done.output
    assert "costs nothing; nothing was reserved" in done.stdout
    done = run("sample", out, "-n", "10", "--out", tmp_path / "few.npz")
    assert "this cost nothing" in done.stdout
    assert spent(ledger) == pytest.approx(1.0)
    assert run("verify", out).exit_code == 0
    assert run("report", out).exit_code == 0
    with DataSetLedger(ledger) as book:
        assert book.runs()[0].run[:8] in (out / "report.html").read_text()


def test_the_page_tells_what_all_runs_cost_together_only_where_there_is_a_ledger(ledger, tmp_path):
    data, first, alone = pictures(), tmp_path / "first", tmp_path / "alone"
    for name in (first, tmp_path / "second"):
        merf().fit(data, ONE, out=name, ledger=ledger)
    merf().fit(data, ONE, out=alone)
    assert run("report", alone).exit_code == 0
    assert "this run stands in no ledger" in (alone / "report.html").read_text()
    assert json.loads((alone / "report.json").read_text())["ledger"] is None
    assert run("report", first).exit_code == 0
    page = (first / "report.html").read_text()
    assert "this run stands in no ledger" not in page
    assert "All runs on this data" in page and "1.466" not in page
    assert run("report", first, "--ledger", ledger).exit_code == 0
    told = json.loads((first / "report.json").read_text())["ledger"]
    assert told["this_run"] == pytest.approx(1.0) and told["unit"] == "record"
    assert told["together"] == pytest.approx(1.466, abs=1e-3)
    assert told["left"] + told["together"] == pytest.approx(told["limit"]) == 1.6
    for text in (first / "report.html", first / "report.md"):
        found = text.read_text()
        assert "1.466" in found or "1.47" in found
        assert "0.1348" in found or "0.134" in found
    # Whoever names a ledger that the run is not in is told so, and the page stays as it was.
    other = make(tmp_path / "other")
    assert run("report", first, "--ledger", other).exit_code == 2
    assert run("report", alone, "--ledger", ledger).exit_code == 2
    assert json.loads((first / "report.json").read_text())["ledger"] == told


def test_a_plan_says_what_it_would_bring_the_ledger_to_and_reserves_nothing(ledger):
    merf().fit(pictures(), ONE, ledger=ledger)
    words = ["plan", "merf", "--data", "digits:train", "--delta", "1e-5", "--ledger", ledger]
    done = run(*words, "--epsilon", "1")
    assert done.exit_code == 0, done.output
    assert "would bring it to 1.466." in done.stdout
    assert "too much" in run(*words, "--epsilon", "1.5").stdout
    told = json.loads(run(*words, "--epsilon", "1", "--json").stdout)["ledger"]
    assert told["fits"] is True and told["total"] == pytest.approx(1.466, abs=1e-3)
    assert states(ledger) == ["finished"]
    refused = run(*words, "--epsilon", "1", "--neighbours", "replace-one")
    assert refused.exit_code == 2 and "do not add up" in refused.stderr


def test_a_ledger_is_for_one_unit_and_refuses_runs_for_another(tmp_path):
    folder = tmp_path / "patients"
    done = run("ledger", "init", folder, "--epsilon", "2", "--delta", "1e-5", "--unit", "patient")
    assert done.exit_code == 0 and "for each patient" in done.stdout
    with DataSetLedger(folder) as book:
        assert book.unit == "patient"
    with pytest.raises(BadInput, match="each patient and this run protects each record"):
        merf().fit(pictures(), ONE, out=tmp_path / "run", ledger=folder)
    assert not (tmp_path / "run").exists() and states(folder) == []
    assert json.loads(run("ledger", "show", folder, "--json").stdout)["unit"] == "patient"
    assert "units: patient" in run("ledger", "show", folder).stdout
    for unit in ("", " ", "two\nlines", "x" * 300):
        words = ("--epsilon", "1", "--delta", "1e-5", "--unit", unit)
        assert run("ledger", "init", tmp_path / "bad", *words).exit_code == 2
        assert not (tmp_path / "bad").exists()


def test_a_run_of_the_ledgers_own_unit_is_taken(tmp_path):
    folder = tmp_path / "patients"
    DataSetLedger.make(folder, LIMIT, unit="patient_id").close()
    column = Unit("patient", "the column 'patient_id'", 64)
    with DataSetLedger(folder) as book, contextlib.closing(RunStore()) as store:
        book.reserve(store, (OTHER,), ONE, method="a test", unit=column).close()
        assert [one.state for one in book.runs()] == ["reserved"]


@pytest.mark.parametrize(
    ("option", "name"),
    [
        (r"(patient\d+)", "unit"),
        (r"(?P<patient>patient\d+)", "patient"),
        ("patients.csv:patient_id", "patient"),
        ("patients.csv:patient_id:scan", "patient"),
        ("PatientID", "patient"),
        ("ward (old)", "ward (old)"),
    ],
)
def test_a_ledger_takes_the_unit_as_a_fit_states_it(tmp_path, option, name):
    words = ("--epsilon", "1", "--delta", "1e-5", "--unit", option)
    told = run("ledger", "init", tmp_path / "book", *words)
    assert told.exit_code == 0 and f"for each {name}." in told.output
    with DataSetLedger(tmp_path / "book") as book:
        assert book.unit == name


def test_a_rule_without_a_name_is_told_how_to_be_the_ledgers_unit(tmp_path):
    DataSetLedger.make(tmp_path / "book", LIMIT, unit="patient").close()
    unnamed = unit_of("unit", PathRule(r"(p\d+)", labelled=False).read_from, None)
    with DataSetLedger(tmp_path / "book") as book, contextlib.closing(RunStore()) as store:
        with pytest.raises(BadInput, match=re.escape("'(?P<patient>…)'")):
            book.reserve(store, (OTHER,), ONE, method="a test", unit=unnamed)
        with pytest.raises(BadInput) as other:
            book.reserve(store, (OTHER,), ONE, method="a test", unit=Unit("ward", "x", 2))
        assert "?P<" not in str(other.value)


def test_the_first_run_tells_a_ledger_its_unit_if_nobody_did(ledger):
    with DataSetLedger(ledger) as book:
        assert book.unit is None
    merf().fit(pictures(), Budget(epsilon=0.5, delta=DELTA), ledger=ledger)
    with DataSetLedger(ledger) as book, contextlib.closing(RunStore()) as store:
        assert book.unit == "record"
        with pytest.raises(BadInput, match="each record and this run protects each patient"):
            book.reserve(store, (OTHER,), ONE, method="a test", unit=Unit("patient", "x", 2))


# -- damage ---------------------------------------------------------------------------------------------------------


def test_a_ledger_is_made_once_in_a_folder_of_its_own(ledger, tmp_path):
    with pytest.raises(RunConflict, match="already holds a ledger"):
        DataSetLedger.make(ledger, LIMIT)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with pytest.raises(RunConflict, match="not empty"):
        DataSetLedger.make(tmp_path / "full", LIMIT)
    assert run("ledger", "init", ledger, "--epsilon", "1", "--delta", "1e-5").exit_code == 6
    assert run("ledger", "init", tmp_path / "x", "--epsilon", "0", "--delta", "1e-5").exit_code == 2
    assert not (tmp_path / "x").exists()


def test_a_missing_ledger_leaves_no_run_behind(tmp_path):
    with pytest.raises(BadInput, match="There is no ledger"):
        merf().fit(pictures(), ONE, out=tmp_path / "run", ledger=tmp_path / "nowhere")
    assert not (tmp_path / "run").exists()
    assert run("ledger", "show", tmp_path / "nowhere").exit_code == 2


def test_a_damaged_ledger_is_refused_in_a_sentence(ledger, tmp_path):
    merf().fit(pictures(), Budget(epsilon=0.5, delta=DELTA), ledger=ledger)
    whole = (ledger / LEDGER).read_bytes()
    damages: dict[str, Callable[[], Any]] = {
        "garbage": lambda: (ledger / LEDGER).write_bytes(b"no database" * 100),
        "cut": lambda: (ledger / LEDGER).write_bytes(whole[: len(whole) // 2]),
        "empty": lambda: (ledger / LEDGER).write_bytes(b""),
        "charge": lambda: edit(ledger, "UPDATE runs SET charges = '[{}]'"),
        "state": lambda: edit(ledger, "UPDATE runs SET state = 'odd'"),
        "limit": lambda: edit(ledger, "UPDATE facts SET value = '-1' WHERE name = 'epsilon'"),
        "unit": lambda: edit(ledger, "INSERT OR REPLACE INTO facts VALUES ('unit', '3')"),
        "key": lambda: edit(ledger, "UPDATE facts SET value = '\"ab\"' WHERE name = 'key'"),
        "format": lambda: edit(ledger, "UPDATE facts SET value = '9' WHERE name = 'format'"),
    }
    for name, damage in damages.items():
        (ledger / LEDGER).write_bytes(whole)
        damage()
        shown = run("ledger", "show", ledger)
        assert (shown.exit_code, shown.stderr.count("\n")) == (5, 1), (name, shown.output)
        with pytest.raises(CorruptArtifact):
            merf().fit(pictures(), ONE, out=tmp_path / "run", ledger=ledger)
        assert not (tmp_path / "run").exists()


def test_a_ledger_that_others_can_read_is_refused(ledger):
    (ledger / LEDGER).chmod(0o644)
    with pytest.raises(BadInput, match="chmod 600"):
        DataSetLedger(ledger)


def test_a_ledger_that_cannot_be_written_is_shown_and_refuses_runs(ledger, tmp_path, monkeypatch):
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: mode != os.W_OK and allowed(p, mode))
    assert run("ledger", "show", ledger).exit_code == 0
    with pytest.raises(BadInput, match="cannot be used"), DataSetLedger(ledger) as book:
        book.reserve(RunStore(tmp_path / "run"), (SUM,), ONE, method="a test")
    assert states(ledger) == []


def test_a_full_disk_leaves_the_ledger_as_it_was(ledger, tmp_path):
    many = tuple(Charge(label=f"sum {i}", bound=1.0, noise_multiplier=1e3) for i in range(1000))
    with DataSetLedger(ledger) as book:
        book._db.execute("PRAGMA max_page_count = 5")
        with pytest.raises(OutOfResources, match="disk is full"):
            book.reserve(RunStore(tmp_path / "run"), many, ONE, method="a test")
        assert book.runs() == []
    assert states(ledger) == []


def test_a_ledger_that_could_not_be_made_leaves_nothing(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(module, "_write_new", full)
    with pytest.raises(OutOfResources):
        DataSetLedger.make(tmp_path / "ledger", LIMIT)
    assert list(tmp_path.iterdir()) == []
