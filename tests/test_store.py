"""The store of a run: one answer a price, whole, kept by one process, and nothing that looks like it taken for it."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runs import charge
from sfumato.errors import BadInput, CorruptArtifact, OutOfResources, PlanMismatch, RunConflict
from sfumato.methods.run import SavedRun, claim, holds_nothing
from sfumato.privacy import Charge, Release, RunStore
from sfumato.privacy import claim as claims
from sfumato.privacy.store import STORE, Question, SavedStore
from stores import store_in

SUM = charge(2.0, label="the sum", bound=1.0, dimension=6)
STEPS = charge(2.0, label="steps", rate=0.5, steps=4, dimension=3)


def a_release(seed: int = 0, charge: Charge = SUM) -> Release:
    units = torch.randint(-(2**40), 2**40, (2, 3), generator=torch.Generator().manual_seed(seed))
    return Release(units=units, grid=2.0**-18, charge=charge)


def kept_in(folder: Path) -> Path:
    """A folder whose store holds one answer and is closed."""
    store = store_in(folder, SUM)
    store.keep(a_release())
    store.close()
    return folder


def edit(folder: Path, statement: str, *values: object) -> None:
    with contextlib.closing(sqlite3.connect(folder / STORE)) as db, db:
        db.execute(statement, values)


def test_what_is_kept_is_given_back_to_the_last_bit(tmp_path):
    store, release = store_in(tmp_path, SUM), a_release()
    assert store.find(SUM) is None
    store.keep(release)
    store.close()
    again = store_in(tmp_path, SUM).find(SUM)
    assert torch.equal(again.units, release.units)
    assert (again.grid, again.charge) == (release.grid, release.charge)


def test_a_label_is_answered_once_and_for_ever(tmp_path):
    store = store_in(tmp_path, SUM, STEPS)
    store.keep(a_release())
    with pytest.raises(PlanMismatch, match="answered already"):
        store.keep(a_release(seed=1))
    steps = store.steps(STEPS)
    steps.keep(0, torch.ones(3))
    with pytest.raises(PlanMismatch, match="answered already"):
        steps.keep(0, torch.zeros(3))
    steps.forget(1)
    with pytest.raises(PlanMismatch, match="answered already"):
        steps.keep(0, torch.zeros(3))
    with pytest.raises(PlanMismatch, match="answered already"):
        steps.find(0)
    assert torch.equal(store.find(SUM).units, a_release().units)


def test_what_was_not_promised_is_not_asked_and_a_promise_is_kept_to_the_last_digit(tmp_path):
    store = store_in(tmp_path, SUM)
    with pytest.raises(PlanMismatch, match="not promised"):
        store.settled(STEPS)
    for change in ({"noise_multiplier": 1.9}, {"bound": 1.001}):
        with pytest.raises(CorruptArtifact, match="another plan"):
            store.settled(replace(SUM, **change))


def test_an_answer_keeps_the_charge_it_was_paid_with(tmp_path):
    # Another version of the software may add a little slack to a bound: the saved charge is the truth.
    store = store_in(tmp_path, SUM)
    store.keep(a_release())
    now = replace(SUM, bound=1.001, noise_multiplier=2.0000001)
    assert store.settled(now) == SUM
    assert store.find(now).charge == SUM
    with pytest.raises(CorruptArtifact, match="another plan"):
        store.settled(replace(SUM, dimension=7))


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        ("UPDATE answers SET value = zeroblob(48) WHERE number = 1", "were changed"),
        ("UPDATE answers SET charge = replace(charge, 'er\": 2.0', 'er\": 9.0')", "follow"),
        ("UPDATE answers SET label = 'other' WHERE number = 2", "follow"),
        ("DELETE FROM answers WHERE number = 2", "follow"),
        ("UPDATE answers SET type = 'pickle' WHERE number = 1", "answer to"),
        ("UPDATE answers SET shape = '[7]' WHERE number = 1", "answer to"),
        ("UPDATE answers SET charge = 'nonsense' WHERE number = 1", "charge"),
    ],
)
def test_a_mixed_or_changed_state_is_refused(damage, word, tmp_path):
    others = [charge(2.0, label=str(i), dimension=6) for i in range(3)]
    store = store_in(tmp_path, *others)
    for number, one in enumerate(others):
        store.keep(a_release(number, one))
    assert len(list(store.answers())) == 3
    store.close()
    edit(tmp_path, damage)
    with pytest.raises(CorruptArtifact, match=word):
        list(SavedStore(tmp_path).answers())


class Map:
    def __init__(self, parts: torch.Tensor) -> None:
        self.parts = parts

    def public_parts(self) -> tuple[torch.Tensor, ...]:
        return (self.parts,)


def test_an_answer_is_not_used_with_another_map(tmp_path):
    store, frequencies = store_in(tmp_path, SUM), torch.randn(5, 7)
    store.keep(a_release(), Question.of(Map(frequencies)))
    assert store.find(SUM, Question.of(Map(frequencies * (1 + 1e-7)))) is not None
    for other in (-frequencies, frequencies[:4], frequencies * 1.01):
        with pytest.raises(CorruptArtifact, match="another map"):
            store.find(SUM, Question.of(Map(other)))


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00", b"nonsense" * 1000])
def test_a_file_that_is_no_store_is_refused_or_was_never_begun(content, tmp_path):
    (tmp_path / STORE).write_bytes(content)
    if content:
        with pytest.raises(CorruptArtifact):
            RunStore(tmp_path)
    else:  # killed right after the file was made
        store = RunStore(tmp_path)
        assert not store.begun
        assert not (tmp_path / STORE).exists()
        store.close()


def test_a_cut_or_overwritten_store_is_refused(tmp_path):
    kept_in(tmp_path)
    whole = (tmp_path / STORE).read_bytes()
    for damaged in (whole[:-4096], whole[:5000], whole[:100] + bytes(4096) + whole[4196:]):
        (tmp_path / STORE).write_bytes(damaged)
        with pytest.raises((CorruptArtifact, BadInput)):
            list(SavedStore(tmp_path).answers())


# -- one process ---------------------------------------------------------------------------------------------------------


CLAIM = """
import sys, time
from pathlib import Path
from sfumato.privacy import RunStore
store = RunStore(Path(sys.argv[1]))
print("claimed", flush=True)
time.sleep(600)
"""


def test_a_folder_is_claimed_by_one_process_at_a_time_and_a_killed_one_lets_go(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", CLAIM, tmp_path / "run"], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "claimed\n"
    with pytest.raises(RunConflict, match="Another process"):
        RunStore(tmp_path / "run")
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    store = claim(tmp_path / "run", {}, resume=False)  # its leftovers count as nothing
    with pytest.raises(RunConflict, match="Another process"):
        RunStore(tmp_path / "run")  # not twice in one process either
    assert not store.begun
    store.close()


def test_a_folder_in_which_nothing_was_begun_is_given_up_without_a_trace(tmp_path):
    RunStore(tmp_path / "run").close(abandon=True)
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    RunStore(tmp_path / "mine").close(abandon=True)
    assert (tmp_path / "mine").is_dir()
    begun = store_in(tmp_path / "begun", SUM)
    begun.close(abandon=True)
    assert (tmp_path / "begun" / STORE).exists()


def test_leftovers_of_dead_writers_are_swept_and_other_files_are_not(tmp_path):
    (tmp_path / ".config.json.0a1b2c3d.part").mkdir()
    (tmp_path / ".config.json.0a1b2c3d.part" / "config.json").write_text("half")
    assert holds_nothing(tmp_path)
    RunStore(tmp_path).close()
    assert {p.name for p in tmp_path.iterdir()} == {"run.lock"}
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(RunConflict, match="not empty"):
        claim(tmp_path, {}, resume=False)
    assert (tmp_path / "letter.txt").read_text() == "mine"


def test_a_network_file_system_is_refused(tmp_path, monkeypatch):
    mounts = f"server:/home {tmp_path} nfs4 rw 0 0\n/dev/sda / ext4 rw 0 0\n"
    honest = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda self, *a, **k: mounts if str(self) == "/proc/self/mounts" else honest(self, *a, **k),
    )
    with pytest.raises(BadInput, match="network file system"):
        claims.Claim(tmp_path / "run")


def test_run_folders_are_for_their_owner_alone(tmp_path):
    kept_in(tmp_path / "run")
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "run").iterdir()} == {0o600}


# -- machines that fail ----------------------------------------------------------------------------------------------------


def test_a_full_disk_loses_nothing_and_keeps_nothing_by_half(tmp_path):
    store = store_in(tmp_path, SUM)
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    large = charge(2.0, label="the sum", bound=1.0, dimension=60_000)
    big = Release(units=torch.ones(1, 60_000, dtype=torch.int64), grid=1.0, charge=large)
    with pytest.raises(OutOfResources, match="disk is full"):
        store.keep(big)
    assert list(store.answers()) == []
    store.close()
    again = store_in(tmp_path, SUM)
    again.keep(a_release())
    assert torch.equal(again.find(SUM).units, a_release().units)


def test_an_interrupt_in_the_middle_of_a_transaction_undoes_it(tmp_path):
    store = store_in(tmp_path, SUM)

    def interrupted() -> None:
        with store._transaction() as db:
            db.execute("DELETE FROM plan")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert store.charges == (SUM,)
    store.keep(a_release())
    assert store.find(SUM) is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_gets_one_sentence(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(BadInput, match="can be written"):
        RunStore(tmp_path / "run")


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_impossible_names_get_one_sentence(name, tmp_path):
    with pytest.raises(BadInput):
        RunStore(tmp_path / name)
    with pytest.raises(BadInput):
        SavedRun(tmp_path / name)


def test_out_of_file_handles_is_called_so(tmp_path, monkeypatch):
    def none_left(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(claims.os, "open", none_left)
    with pytest.raises((OutOfResources, BadInput)):
        RunStore(tmp_path / "run")


def test_a_copy_in_memory_or_in_another_folder_is_the_same_run(tmp_path):
    store = store_in(tmp_path / "a", SUM)
    store.keep(a_release())
    memory = store.snapshot()
    store.close()
    copy = memory.copy_to(tmp_path / "b")
    assert torch.equal(copy.find(SUM).units, a_release().units)
    copy.close()
    assert [a.digest for a in SavedStore(tmp_path / "b").answers()] == [
        a.digest for a in memory.answers()
    ]
    with pytest.raises(RunConflict):
        memory.copy_to(tmp_path / "b")


def test_a_sealed_store_does_not_tell_how_it_came_about(tmp_path):
    def sealed(folder: Path, checkpoints: int) -> bytes:
        store = store_in(folder, SUM, STEPS)
        store.keep(a_release())
        steps = store.steps(STEPS)
        for step in range(4):
            steps.keep(step, torch.full((3,), float(step)))
            for _ in range(checkpoints):
                store.checkpoint().write(step, {"weights": torch.ones(5000)})
        store.finish({"generator.safetensors": b"weights"})
        store.close()
        return (folder / STORE).read_bytes()

    assert sealed(tmp_path / "quick", 0) == sealed(tmp_path / "slow", 7)


def test_a_run_killed_before_its_store_was_tidied_is_tidied_later(tmp_path, monkeypatch):
    store = store_in(tmp_path, SUM)
    store.keep(a_release())
    monkeypatch.setattr(RunStore, "tidy", lambda self: None)
    store.finish({})
    monkeypatch.undo()
    store.close()
    untidy = (tmp_path / STORE).read_bytes()
    again = RunStore(tmp_path)
    assert again.finished
    again.tidy()
    again.close()
    tidy = (tmp_path / STORE).read_bytes()
    assert tidy != untidy
    assert tidy[24:28] == b"\0\0\0\x01"
    assert [a.digest for a in SavedStore(tmp_path).answers()]


def test_what_is_committed_is_synced_with_the_removal_of_its_journal(tmp_path):
    # Anything less than EXTRA (3) loses answers to a power cut: `python -m sfumato.testing.crash power` shows it.
    for folder in (tmp_path / "new", tmp_path / "new", tmp_path / "sealed"):
        store = store_in(folder, SUM)
        if folder.name == "sealed":
            store.keep(a_release())
            store.finish({})
        assert store._connection.execute("PRAGMA synchronous").fetchone() == (3,)
        assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        store.close()
