"""The one training loop: it learns, tells only what may be told, and an interruption changes nothing, of free or paid steps."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.checkpoints import FileCheckpoint
from sfumato.data import Batch, Dataset
from sfumato.errors import CorruptArtifact, NotPublishable, PlanMismatch, SfumatoError
from sfumato.generators import training as module
from sfumato.generators.training import Training
from sfumato.methods import Merf, Method, SavedRun
from sfumato.methods.base import Workspace
from sfumato.methods.run import EXPORTS
from sfumato.privacy import (
    Budget,
    FeatureMap,
    Gate,
    Ledger,
    PrivateData,
    Query,
    RunStore,
    enforced_bound,
)
from sfumato.privacy.store import STORE
from sfumato.progress import Progress, Stage
from stores import store_in
from waits import wait_for

NEVER, ALWAYS = 1e9, -1.0  # seconds between checkpoints


class Killed(Exception):
    pass


def equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


# -- free steps ----------------------------------------------------------------------------------------------------------


def learn(
    steps: int = 60, *, die_at: int | None = None, start: float | None = None, **how
) -> list[torch.Tensor]:
    """A small training with all kinds of parts; it dies in step `die_at`."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 1)
    )
    network.to(memory_format=torch.channels_last)  # fused Adam goes through memory in order
    if start is not None:
        nn.init.constant_(network[0].weight, start)
    adam = torch.optim.Adam(network.parameters(), lr=0.01, fused=True)
    random, total = torch.Generator().manual_seed(4), torch.zeros(1)
    training = Training("Learning", random, network=network, adam=adam, total=total, **how)
    for step in training(steps):
        if step == die_at:
            raise Killed
        x = torch.randn(16, 2, 3, 3, generator=random)
        adam.zero_grad()
        loss = (network(x)[:, 0] - x.mean(dim=(1, 2, 3))).square().mean()
        loss.backward()
        adam.step()
        total += loss.detach()
        training.facts["loss"] = loss.detach()
    return [*(v.clone() for v in network.state_dict().values()), total]


def test_training_lowers_the_loss_and_logs_it_a_hundred_times():
    records: list[dict] = []
    learn(400, log=records.append)
    assert [r["step"] for r in records] == list(range(4, 401, 4))
    assert {r["steps"] for r in records} == {400}
    losses = [r["loss"] for r in records]
    assert np.mean(losses[-5:]) < 0.3 * np.mean(losses[:5])


class Watched(Progress):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, float]] = []
        self.done, self.facts = 0.0, {}

    @contextlib.contextmanager
    def stage(self, title: str, total: float) -> Iterator[Stage]:
        self.stages.append((title, total))
        yield self  # type: ignore[misc]

    def advance(self, amount: float = 1.0, **facts: float | str) -> None:
        self.done += amount
        self.facts |= facts


def test_progress_is_told_of_every_step_and_of_those_before_an_interruption(tmp_path):
    checkpoint = FileCheckpoint(tmp_path / "c.safetensors")
    with patch.object(module, "CHECKPOINT_SECONDS", ALWAYS), pytest.raises(Killed):
        learn(die_at=37, checkpoint=checkpoint)
    watched = Watched()
    learn(checkpoint=checkpoint, progress=watched)
    assert watched.stages == [("Learning", 60)]
    assert watched.done == 60
    assert set(watched.facts) == {"loss", "steps/s"}


@pytest.mark.parametrize("die_at", [0, 1, 37, 59])
def test_a_resumed_training_ends_with_the_very_same_numbers(die_at, tmp_path):
    checkpoint = FileCheckpoint(tmp_path / "c.safetensors")
    with patch.object(module, "CHECKPOINT_SECONDS", ALWAYS), pytest.raises(Killed):
        learn(die_at=die_at, checkpoint=checkpoint)
    assert checkpoint.step == die_at
    # The checkpoint, not the start, must decide.
    resumed = learn(checkpoint=checkpoint, start=0.0 if die_at else None)
    assert equal(resumed, learn())


def test_checkpoints_are_written_every_few_seconds_and_no_oftener(tmp_path):
    written = []

    class Counted(FileCheckpoint):
        def write(self, step, tensors):
            written.append(step)

    clock = iter(np.arange(0, 1e6, 0.75))  # looked at once a step, and after a checkpoint
    with patch.object(module.time, "monotonic", lambda: float(next(clock))):
        learn(checkpoint=Counted(tmp_path / "c"))
    assert len(written) >= 3
    assert all(10 <= later - one <= 15 for one, later in itertools.pairwise(written))


@pytest.mark.parametrize("content", [b"", b"nonsense"])
def test_a_damaged_checkpoint_says_that_training_again_is_free(content, tmp_path):
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    with pytest.raises(CorruptArtifact, match="costs no privacy"):
        learn(checkpoint=FileCheckpoint(path))


def _without_a_part(tensors: dict) -> None:
    tensors.pop("total")


def _with_a_part_of_another(tensors: dict) -> None:
    tensors["critic:0.weight"] = torch.zeros(3)


def _of_another_shape(tensors: dict) -> None:
    tensors["network:0.weight"] = torch.zeros(2, 2)


def _of_another_optimiser(tensors: dict) -> None:
    tensors["adam:99:exp_avg"] = torch.zeros(3)


@pytest.mark.parametrize(
    "changed", [_without_a_part, _with_a_part_of_another, _of_another_shape, _of_another_optimiser]
)
def test_a_checkpoint_of_another_training_is_refused_as_a_whole(changed, tmp_path):
    checkpoint = FileCheckpoint(tmp_path / "c.safetensors")
    with patch.object(module, "CHECKPOINT_SECONDS", ALWAYS), pytest.raises(Killed):
        learn(die_at=3, checkpoint=checkpoint)
    step, tensors = checkpoint.read()
    changed(tensors)
    checkpoint.write(step, tensors)
    with pytest.raises(CorruptArtifact, match="not a whole checkpoint of this training"):
        learn(checkpoint=checkpoint)


def test_what_is_logged_in_a_run_goes_by_the_list_of_what_may_be_told(tmp_path):
    store = store_in(tmp_path)
    run = Workspace(store, Progress())
    training = run.training("Training", torch.Generator())
    for _ in training(3):
        training.facts["loss"] = torch.tensor(2.0)
    assert [(r["step"], r["loss"]) for r in store.read_log()] == [(1, 2.0), (2, 2.0), (3, 2.0)]
    training.facts["records in the sample"] = 17
    with pytest.raises(NotPublishable, match="records in the sample"):
        list(training(3))
    assert len(store.read_log()) == 3
    # Stages before the last are not logged: their steps would be told twice.
    list(run.training("Before", torch.Generator(), stage="first")(3))
    assert len(store.read_log()) == 3
    store.close()


def test_a_run_without_a_folder_keeps_no_checkpoint():
    run = Workspace(RunStore(), Progress())
    assert run.checkpoint_of() is None
    assert not run.resumed()
    assert len(list(run.training("Training", torch.Generator())(3))) == 3


def test_the_learning_rate_of_a_matched_method_falls_by_a_tenth_each_round():
    images = np.random.default_rng(0).integers(0, 256, (30, 1, 4, 4), dtype=np.uint8)
    rates, plain = [], torch.optim.Adam.step

    def watched(self, *rest, **more):
        rates.append(self.param_groups[0]["lr"])
        return plain(self, *rest, **more)

    with patch.object(torch.optim.Adam, "step", watched):
        Merf(features=8, steps=20, decays=5, learning_rate=1.0, batch=4, hidden=4).fit(
            Dataset.from_arrays(images), Budget(epsilon=1.0, delta=1e-5)
        )
    assert [rates[s] for s in (0, 3, 4, 19)] == pytest.approx([1.0, 1.0, 0.9, 0.9**4])


# -- paid steps ----------------------------------------------------------------------------------------------------------

STEPS, EVERY = 12, 3
PAID = Query(label="gradients", shape=(17,), rate=0.5, steps=STEPS, over="gradients")
BESIDE = Query(label="pixels", shape=(16,), rate=0.5, steps=STEPS // EVERY)


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


def scores(network: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    return network(pixels).square()


def brightness(batch: Batch) -> torch.Tensor:
    return batch.pixels().flatten(1) / 4


class Work:
    """A small training: what it changes, and how an answer changes it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(16, 1), nn.Flatten(0))
        self.adam = torch.optim.Adam(self.network.parameters(), lr=0.1)
        self.draws, self.random = torch.zeros(1), torch.Generator().manual_seed(3)
        self.mean = torch.zeros(16, dtype=torch.float64)

    @property
    def gradient(self) -> torch.Tensor:
        return torch.cat([p.grad.flatten() for p in self.network.parameters()])

    def assign(self, gradient: torch.Tensor) -> None:
        weight, bias = self.network.parameters()
        weight.grad, bias.grad = gradient[None, :16].clone(), gradient[16:].clone()

    def apply(self) -> None:
        self.adam.step()
        self.draws += torch.randn(1, generator=self.random)

    @property
    def numbers(self) -> list[torch.Tensor]:
        return [*(p.detach().clone() for p in self.network.parameters()), self.draws, self.mean]


Answers = dict[tuple[str, int], torch.Tensor]


def train(
    folder: Path,
    *,
    die_at: int | None = None,
    seconds: float = NEVER,
    answers: Answers | None = None,
    beside: bool = False,
    start: float | None = None,
) -> list[torch.Tensor]:
    """It dies after the answer to step `die_at` and before that step is applied; it sets out from the number `start`."""
    told: Answers = {} if answers is None else answers
    queries = [BESIDE, PAID] if beside else [PAID]
    charges = tuple(query.charge(1.0) for query in queries)
    store = store_in(folder)
    ledger = Ledger(Budget(epsilon=100.0, delta=1e-5))
    data = Gate(PrivateData(rows(), ledger, store=store), queries, charges)
    work = Work()
    if start is not None:
        nn.init.constant_(work.network[1].weight, start)
    training = Workspace(store, Progress()).training(
        "Training",
        work.random,
        network=work.network,
        adam=work.adam,
        draws=work.draws,
        mean=work.mean,
    )
    other = data.steps("pixels") if beside else None
    try:
        with patch.object(module, "CHECKPOINT_SECONDS", seconds):
            steps = training(data.steps("gradients"), {other: EVERY} if other else None)
            for step in steps:
                step.gradient(work.network, scores, over=20)
                told["gradients", step.index] = work.gradient
                if step.index == die_at:
                    raise Killed
                work.apply()
                if other is not None and (step.index + 1) % EVERY == 0:
                    paid = next(other)
                    told["pixels", paid.index] = answer = paid.sum(brightness)[0]
                    work.mean += answer / 20
    finally:
        store.close()
    assert ledger.charges == charges
    return work.numbers


def uninterrupted(answers: Answers) -> list[torch.Tensor]:
    """What comes of these answers in one go."""
    work = Work()
    for index in range(STEPS):
        work.assign(answers["gradients", index])
        work.apply()
        if ("pixels", index // EVERY) in answers and (index + 1) % EVERY == 0:
            work.mean += answers["pixels", index // EVERY] / 20
    return work.numbers


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("die_at", [0, 1, 7, STEPS - 1])
@pytest.mark.parametrize("seconds", [ALWAYS, NEVER])
def test_a_torn_training_is_given_the_same_answers_and_ends_in_the_same_place(
    die_at, seconds, beside, tmp_path
):
    first: Answers = {}
    with pytest.raises(Killed):
        train(tmp_path, die_at=die_at, seconds=seconds, answers=first, beside=beside)
    second: Answers = {}
    # What came before the first step is in the checkpoint: it is not done again, and need not be the same.
    end = train(tmp_path, seconds=seconds, answers=second, beside=beside, start=7.0)
    # Not a row is read for a step that was answered, and no step is left out.
    left_beside = STEPS // EVERY - die_at // EVERY if beside else 0
    assert Counting.reads == STEPS - 1 - die_at + left_beside
    again = [index for label, index in second if label == "gradients"]
    assert again == list(range(die_at if seconds == ALWAYS else 0, STEPS))
    assert all(torch.equal(second[key], first[key]) for key in second.keys() & first.keys())
    # What was never interrupted, with these same answers, ends with the same numbers.
    assert equal(end, uninterrupted({**second, **first}))


@pytest.mark.parametrize("beside", [False, True])
def test_a_training_torn_many_times_reads_each_step_once(beside, tmp_path):
    reads = 0
    seen: Answers = {}
    for die_at in (2, 3, 3, 8, None):
        answers: Answers = {}
        with contextlib.suppress(Killed):
            train(tmp_path, die_at=die_at, answers=answers, beside=beside)
        reads += Counting.reads
        for key, answer in answers.items():
            assert torch.equal(seen.setdefault(key, answer), answer)
    assert reads == len(seen) == STEPS + (STEPS // EVERY if beside else 0)


@pytest.mark.parametrize("beside", [False, True])
def test_a_finished_series_is_not_begun_again(beside, tmp_path):
    end = train(tmp_path, beside=beside)
    again = train(tmp_path, beside=beside)
    assert Counting.reads == 0
    assert equal(end, again)


def edit(folder: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / STORE)) as db, db:
        for statement in statements:
            db.execute(statement)


def rows_of(folder: Path, label: str) -> list[tuple]:
    asked = "SELECT step, digest, value FROM answers WHERE label = ? ORDER BY step"
    with contextlib.closing(sqlite3.connect(folder / STORE)) as db:
        return db.execute(asked, (label,)).fetchall()


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
        train(tmp_path, die_at=7, seconds=ALWAYS)
    edit(tmp_path, "DELETE FROM checkpoints" if lost == "checkpoint" else "DELETE FROM answers")
    with pytest.raises(CorruptArtifact, match="do not belong together"):
        train(tmp_path)
    assert Counting.reads == 0


def test_a_damaged_checkpoint_is_named_with_its_price(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=7, seconds=ALWAYS)
    edit(tmp_path, "UPDATE checkpoints SET content = substr(content, 1, length(content) - 40)")
    with pytest.raises(CorruptArtifact, match="checkpoint"):
        train(tmp_path)


def test_steps_of_another_plan_are_refused(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=3)
    other = PAID.charge(2.0)
    with pytest.raises(CorruptArtifact, match="another plan"):
        store_in(tmp_path).settled(other)


def test_checkpoints_keep_the_store_short_and_remember_what_was_answered(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=9, seconds=ALWAYS, beside=True)
    for label, answered, kept in (("gradients", 10, [9]), ("pixels", 3, [])):
        found = rows_of(tmp_path, label)
        assert [step for step, _, value in found if value is not None] == kept
        assert [step for step, _, _ in found] == list(range(answered))


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


# -- whole fits, killed --------------------------------------------------------------------------------------------------


MATCHED = """
import sys, torch
torch.set_num_threads(1)
import sfumato
data = sfumato.load("digits:train")
method = sfumato.Merf(features=400, steps=800, batch=40, hidden=32, block=50)
method.fit(data, sfumato.Budget(epsilon=2.0, delta=1e-4), out=sys.argv[1], resume="resume" in sys.argv)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_fit_goes_on_from_its_release_and_spends_nothing_again(how, tmp_path):
    script = tmp_path / "fit.py"
    script.write_text(textwrap.dedent(MATCHED))
    run = tmp_path / "run"
    first = subprocess.Popen(
        [sys.executable, script, run],
        stderr=subprocess.DEVNULL,
        # What runs in the background of a shell ignores an interrupt, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for(lambda: len(_log_of(run)) > 3, "the first steps in the log", first)
    os.kill(first.pid, how)
    first.wait()
    saved = SavedRun(run, unfinished=True)
    assert not saved.finished
    kept, statement = [a.digest for a in saved.answers()], saved.statement_json
    assert len(kept) == 1
    subprocess.run([sys.executable, script, run, "resume"], check=True)
    saved = SavedRun(run)
    assert [a.digest for a in saved.answers()] == kept  # the same noise: nothing was released twice
    assert saved.statement_json == statement
    steps = [r["step"] for r in saved.log if r["event"] == "step"]
    assert steps == sorted(set(steps))
    assert steps[-1] == 800
    assert {p.name for p in run.iterdir()} == {STORE, "run.lock", *EXPORTS}
    assert len(Method.load(run).sample(10)) == 10


def _log_of(run: Path) -> list[dict]:
    try:
        return SavedRun(run, unfinished=True).log
    except SfumatoError:  # not begun yet
        return []


GRADUAL = """
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
    script.write_text(textwrap.dedent(GRADUAL))
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
