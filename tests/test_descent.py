"""Paid steps are neither repeated nor skipped, wherever a run is torn."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.data import Batch, Dataset
from sfumato.errors import CorruptArtifact, PlanMismatch
from sfumato.methods import SavedRun
from sfumato.methods.base import Workspace
from sfumato.methods.descent import TrainingState, descend
from sfumato.methods.run import EXPORTS
from sfumato.privacy import (
    Budget,
    Charge,
    FeatureMap,
    GradientSum,
    Ledger,
    PrivateData,
    enforced_bound,
    enforced_gradient_bound,
)
from sfumato.privacy.store import STORE
from sfumato.progress import Progress
from stores import store_in
from waits import wait_for

STEPS = 12
CHARGE = Charge(
    label="gradients",
    bound=enforced_gradient_bound(1.0),
    noise_multiplier=1.0,
    rate=0.5,
    steps=STEPS,
    dimension=17,
)


class Killed(Exception):
    pass


class Counting(Dataset):
    """Counts how often rows are asked for."""

    reads = 0

    def take(self, indices):
        Counting.reads += 1
        return super().take(indices)


def rows() -> Dataset:
    images = np.random.default_rng(0).integers(0, 256, (40, 1, 4, 4), dtype=np.uint8)
    plain = Dataset.from_arrays(images)
    Counting.reads = 0
    return Counting(plain._source, plain.schema, plain.name)


def train(
    folder: Path,
    *,
    die_at: int | None = None,
    seconds: float = 1e9,
    answers=None,
    scale: float = 1.0,
):
    """A small training; it dies after the answer to step `die_at` and before that step is applied."""
    store = store_in(folder)
    data = PrivateData(rows(), Ledger(Budget(epsilon=100.0, delta=1e-5)), store=store)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 1), nn.Flatten(0))
    gradients = GradientSum(network, lambda net, x: net(x).square(), bound=1.0)
    state = TrainingState(
        {"network": network},
        {"network": torch.optim.Adam(network.parameters(), lr=0.1)},
        {"draws": torch.zeros(1)},
        torch.Generator().manual_seed(3),
    )
    try:
        for step in descend(
            data,
            CHARGE,
            state,
            Workspace(store, Progress()),
            title="Training",
            checkpoint_seconds=seconds,
        ):
            noisy = step.noisy_gradient(gradients)
            if answers is not None:
                answers.append((step.index, noisy.clone()))
            if step.index == die_at:
                raise Killed
            gradients.assign(noisy / 20)
            state.optimisers["network"].step()
            state.tensors["draws"] += torch.randn(1, generator=state.random)
    finally:
        store.close()
    return [p.detach().clone() for p in network.parameters()] + [state.tensors["draws"].clone()]


@pytest.mark.parametrize("die_at", [0, 1, 7, STEPS - 1])
@pytest.mark.parametrize("seconds", [-1.0, 1e9])
def test_a_torn_training_is_given_the_same_answers_and_ends_in_the_same_place(
    die_at, seconds, tmp_path
):
    first: list = []
    with pytest.raises(Killed):
        train(tmp_path, die_at=die_at, seconds=seconds, answers=first)
    second: list = []
    end = train(tmp_path, seconds=seconds, answers=second)
    # Not a row is read for a step that was answered, and no step is left out.
    assert Counting.reads == STEPS - 1 - die_at
    assert [index for index, _ in second] == list(range(second[0][0], STEPS))
    told = dict(first)
    for index, answer in second:
        if index in told:
            assert torch.equal(answer, told[index])
    # What was never interrupted, with these same answers, ends with the same numbers.
    every = {**dict(second), **told}
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 1), nn.Flatten(0))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.1)
    gradients = GradientSum(network, lambda net, x: net(x).square(), bound=1.0)
    random, draws = torch.Generator().manual_seed(3), torch.zeros(1)
    for index in range(STEPS):
        gradients.assign(every[index] / 20)
        optimiser.step()
        draws += torch.randn(1, generator=random)
    whole = [*(p.detach() for p in network.parameters()), draws]
    assert all(torch.equal(a, b) for a, b in zip(end, whole, strict=True))


def test_a_training_torn_many_times_reads_each_step_once(tmp_path):
    reads = 0
    seen: dict[int, torch.Tensor] = {}
    for die_at in (2, 3, 3, 8, None):
        answers: list = []
        with contextlib.suppress(Killed):
            train(tmp_path, die_at=die_at, answers=answers)
        reads += Counting.reads
        for index, answer in answers:
            assert torch.equal(seen.setdefault(index, answer), answer)
    assert reads == STEPS
    assert set(seen) == set(range(STEPS))


def test_a_finished_series_is_not_begun_again(tmp_path):
    end = train(tmp_path)
    again = train(tmp_path)
    assert Counting.reads == 0
    assert all(torch.equal(a, b) for a, b in zip(end, again, strict=True))


def edit(folder: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / STORE)) as db, db:
        for statement in statements:
            db.execute(statement)


def rows_of(folder: Path) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(folder / STORE)) as db:
        return db.execute("SELECT step, digest, value FROM answers ORDER BY step").fetchall()


def test_an_answer_that_was_changed_is_refused_and_not_answered_again(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=5)
    edit(tmp_path, "UPDATE answers SET value = zeroblob(68) WHERE step = 3")
    with pytest.raises(CorruptArtifact, match="spends the budget again"):
        train(tmp_path)
    assert Counting.reads == 0


@pytest.mark.parametrize("lost", ["checkpoint", "answers"])
def test_a_lost_half_of_the_state_is_refused(lost, tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=7, seconds=-1.0)
    edit(tmp_path, "DELETE FROM checkpoints" if lost == "checkpoint" else "DELETE FROM answers")
    with pytest.raises(CorruptArtifact, match="do not belong together"):
        train(tmp_path)
    assert Counting.reads == 0


def test_a_damaged_checkpoint_is_named_with_its_price(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=7, seconds=-1.0)
    edit(tmp_path, "UPDATE checkpoints SET content = substr(content, 1, length(content) - 40)")
    with pytest.raises(CorruptArtifact, match="checkpoint"):
        train(tmp_path)


def test_steps_of_another_plan_are_refused(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=3)
    other = Charge(label="gradients", bound=1.0, noise_multiplier=2.0, rate=0.5, steps=STEPS)
    with pytest.raises(CorruptArtifact, match="another plan"):
        store_in(tmp_path).settled(other)


def test_checkpoints_keep_the_store_short_and_remember_what_was_answered(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=9, seconds=-1.0)
    kept = [step for step, _, value in rows_of(tmp_path) if value is not None]
    assert kept == [9]
    assert [step for step, _, _ in rows_of(tmp_path)] == list(range(10))


class Pixels(FeatureMap):
    dim, bound = 16, 1.0

    def __call__(self, batch: Batch) -> torch.Tensor:
        return batch.pixels().flatten(1) / 4


def test_plain_noisy_sums_are_journalled_as_well(tmp_path):
    def answers(stop: int) -> list[torch.Tensor]:
        store = store_in(tmp_path)
        data = PrivateData(rows(), Ledger(Budget(epsilon=100.0, delta=1e-5)), store=store)
        steps = data.poisson_steps(0.5, 6, 1.0, bound=enforced_bound(Pixels()), label="sums")
        found = [step.noisy_sum(Pixels()) for step, _ in zip(steps, range(stop), strict=False)]
        store.close()
        return found

    first = answers(3)
    second = answers(6)
    assert Counting.reads == 3
    assert first[0].dtype == second[0].dtype == torch.float64
    assert first[0].shape == second[0].shape == (1, 16)
    assert all(torch.equal(a, b) for a, b in zip(first, second[:3], strict=True))


def test_a_replayed_step_answers_once_too(tmp_path):
    for _ in range(2):
        store = store_in(tmp_path)
        data = PrivateData(rows(), Ledger(Budget(epsilon=100.0, delta=1e-5)), store=store)
        step = next(data.poisson_steps(0.5, 6, 1.0, bound=enforced_bound(Pixels()), label="sums"))
        step.noisy_sum(Pixels())
        with pytest.raises(PlanMismatch, match="used already"):
            step.noisy_sum(Pixels())
        store.close()


FIT = """
import sys, numpy as np, torch
torch.set_num_threads(1)
import sfumato
from sfumato.data import Dataset
rng = np.random.default_rng(0)
data, public = (Dataset.from_arrays(rng.integers(0, 256, (200, 1, 8, 8), dtype=np.uint8)) for _ in range(2))
method = sfumato.get_method("dre")(codec="dct:16", rate=0.1, steps=400, public_batch=20)
method.fit(data, sfumato.Budget(epsilon=2.0, delta=1e-4), public=public, out=sys.argv[1], resume="resume" in sys.argv)
"""


def test_a_killed_fit_goes_on_with_the_very_answers_it_was_given(tmp_path):
    script = tmp_path / "fit.py"
    script.write_text(textwrap.dedent(FIT))
    run = tmp_path / "run"
    first = subprocess.Popen([sys.executable, script, run], stderr=subprocess.DEVNULL)
    wait_for(
        lambda: (run / STORE).exists() and steps_answered(run) > 20, "20 answered steps", first
    )
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    before = dict(answers_in(run))
    assert not SavedRun(run, unfinished=True).finished
    subprocess.run([sys.executable, script, run, "resume"], check=True)
    saved = SavedRun(run)
    after = {a.step: a.digest for a in saved.answers() if a.charge.steps > 1}
    assert len(after) == 400
    assert {step: after[step] for step in before} == before
    assert {p.name for p in run.iterdir()} == {STORE, "run.lock", *EXPORTS}
    steps = [r["step"] for r in saved.log if r["event"] == "step"]
    assert steps == sorted(set(steps))
    assert steps[-1] == 400


def answers_in(run: Path) -> list[tuple[int, str]]:
    """Of the paid steps of a run that a process is, or was, working on."""
    try:
        with contextlib.closing(sqlite3.connect(run / STORE, timeout=60)) as db:
            return db.execute(
                "SELECT step, digest FROM answers WHERE charge LIKE '%\"steps\": 400%'"
            ).fetchall()
    except sqlite3.OperationalError:  # its tables are not made yet
        return []


def steps_answered(run: Path) -> int:
    return len(answers_in(run))
