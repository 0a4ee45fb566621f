"""Paid steps are neither repeated nor skipped, wherever a run is torn."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.data import Batch, Dataset
from sfumato.errors import CorruptArtifact, PlanMismatch, RunConflict
from sfumato.methods import RunFolder
from sfumato.methods.base import Workspace
from sfumato.methods.descent import TrainingState, descend
from sfumato.privacy import (
    Budget,
    Charge,
    FeatureMap,
    GradientSum,
    Ledger,
    PrivateData,
    ReleaseStore,
    enforced_bound,
    enforced_gradient_bound,
)
from sfumato.privacy.journal import Journal
from sfumato.progress import Progress

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


def train(folder: Path, *, die_at: int | None = None, seconds: float = 1e9, answers=None):
    """A small training; it dies after the answer to step `die_at` and before that step is applied."""
    run = RunFolder(folder)
    store = ReleaseStore(run.releases)
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
            Workspace(run, Progress()),
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


def journal_of(folder: Path) -> Path:
    return next(RunFolder(folder).releases.glob("*.journal"))


def test_a_record_cut_short_was_never_used_and_is_made_anew(tmp_path):
    first: list = []
    with pytest.raises(Killed):
        train(tmp_path, die_at=5, answers=first)
    path = journal_of(tmp_path)
    whole = path.read_bytes()
    for cut in (1, 10, 70):  # inside the checksum, the numbers, the head
        path.write_bytes(whole[:-cut])
        second: list = []
        with pytest.raises(Killed):
            train(tmp_path, die_at=5, answers=second)
        assert Counting.reads == 1
        assert all(torch.equal(a[1], b[1]) for a, b in zip(first[:5], second[:5], strict=True))
        assert not torch.equal(first[5][1], second[5][1])


def test_damage_in_the_middle_is_refused_and_not_answered_again(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=5)
    path = journal_of(tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(CorruptArtifact, match="spends the budget again"):
        train(tmp_path)
    assert Counting.reads == 0


@pytest.mark.parametrize("place", [0, 4, 12, 13, 20, 25, 60, 130])
def test_damage_anywhere_in_a_record_that_others_follow_is_refused(place, tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=5)
    path = journal_of(tmp_path)
    content = bytearray(path.read_bytes())
    content[content.index(b"STEP", content.index(b"STEP") + 1) + place] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(CorruptArtifact, match="spends the budget again"):
        train(tmp_path)


@pytest.mark.parametrize("lost", ["checkpoint", "journal"])
def test_a_lost_half_of_the_state_is_refused(lost, tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=7, seconds=-1.0)
    (RunFolder(tmp_path).checkpoint if lost == "checkpoint" else journal_of(tmp_path)).unlink()
    with pytest.raises(CorruptArtifact, match="do not belong together"):
        train(tmp_path)
    assert Counting.reads == 0


def test_a_damaged_checkpoint_is_named_with_its_price(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=7, seconds=-1.0)
    path = RunFolder(tmp_path).checkpoint
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CorruptArtifact):
        train(tmp_path)


def test_steps_of_another_plan_are_refused(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=3)
    other = Charge(label="gradients", bound=1.0, noise_multiplier=2.0, rate=0.5, steps=STEPS)
    with pytest.raises(CorruptArtifact, match="another plan"):
        Journal(journal_of(tmp_path), other)


def test_two_processes_cannot_answer_one_step_each(tmp_path):
    first = Journal(tmp_path / "a" / "steps.journal", CHARGE)
    with pytest.raises(RunConflict, match="Another process"):
        Journal(tmp_path / "a" / "steps.journal", CHARGE)
    first.close()
    Journal(tmp_path / "a" / "steps.journal", CHARGE).close()


def test_checkpoints_keep_the_journal_short(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=9, seconds=-1.0)
    one = 17 * 4
    assert journal_of(tmp_path).stat().st_size < 600 + 2 * one


def test_a_finished_run_is_cleaned_of_its_journal(tmp_path):
    train(tmp_path)
    run = RunFolder(tmp_path)
    assert list(run.releases.iterdir())
    run.clean()
    assert not list(run.releases.iterdir())
    assert not run.checkpoint.exists()


class Pixels(FeatureMap):
    dim, bound = 16, 1.0

    def __call__(self, batch: Batch) -> torch.Tensor:
        return batch.pixels().flatten(1) / 4


def test_plain_noisy_sums_are_journalled_as_well(tmp_path):
    def answers(stop: int) -> list[torch.Tensor]:
        store = ReleaseStore(tmp_path)
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
        store = ReleaseStore(tmp_path)
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
    run = RunFolder(tmp_path / "run")
    first = subprocess.Popen([sys.executable, script, run.path], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(run.read_log()) < 8 and time.monotonic() < deadline:
        time.sleep(0.02)
        assert first.poll() is None, "the fit ended before it could be interrupted"
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert not run.finished
    before = journal_of(run.path).read_bytes()
    subprocess.run([sys.executable, script, run.path, "resume"], check=True)
    assert run.finished
    assert before.count(b"STEP") > 20
    assert not list(run.releases.glob("*.journal"))
    assert not list(run.path.glob("checkpoint*"))
    steps = [r["step"] for r in run.read_log() if r["event"] == "step"]
    assert steps == sorted(set(steps))
    assert steps[-1] == 400
