"""The one training loop: it learns, tells only what may be told, and an interruption changes nothing, of free or paid steps."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
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
from sfumato.testing.methods import small_images
from stores import store_in
from waits import wait_for

NEVER, ALWAYS = 1e9, -1.0  # seconds between checkpoints
LOOSE = Budget(epsilon=100.0, delta=1e-5)


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
        self.stages, self.done, self.facts = [], 0.0, {}

    @contextlib.contextmanager
    def stage(self, title: str, total: float) -> Iterator[Stage]:
        self.stages.append((title, total))
        yield self  # type: ignore[misc]

    def advance(self, amount: float = 1.0, **facts: float | str) -> None:
        self.done += amount
        self.facts |= facts


@pytest.mark.parametrize("die_at", [0, 1, 37, 59])
def test_a_resumed_training_ends_with_the_very_same_numbers(die_at, tmp_path):
    checkpoint, watched = FileCheckpoint(tmp_path / "c.safetensors"), Watched()
    with patch.object(module, "CHECKPOINT_SECONDS", ALWAYS), pytest.raises(Killed):
        learn(die_at=die_at, checkpoint=checkpoint)
    assert checkpoint.step == die_at
    # The checkpoint, not the start, must decide.
    start = 0.0 if die_at else None
    assert equal(learn(checkpoint=checkpoint, start=start, progress=watched), learn())
    # Progress is told of every step, of those before the interruption too.
    assert watched.stages == [("Learning", 60)]
    assert watched.done == 60
    assert set(watched.facts) == {"loss", "steps/s"}


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


@pytest.mark.parametrize(
    "other",
    [
        {"total": None},
        {"critic:0.weight": torch.zeros(3)},
        {"network:0.weight": torch.zeros(2, 2)},
        {"adam:99:exp_avg": torch.zeros(3)},
    ],
)
def test_a_checkpoint_of_another_training_is_refused_as_a_whole(other, tmp_path):
    checkpoint = FileCheckpoint(tmp_path / "c.safetensors")
    with patch.object(module, "CHECKPOINT_SECONDS", ALWAYS), pytest.raises(Killed):
        learn(die_at=3, checkpoint=checkpoint)
    step, tensors = checkpoint.read()
    tensors = {name: value for name, value in (tensors | other).items() if value is not None}
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
    # Stages before the last are not logged: their steps would be told twice.
    list(run.training("Before", torch.Generator(), stage="first")(3))
    assert len(store.read_log()) == 3
    store.close()
    nowhere = Workspace(RunStore(), Progress())  # a run without a folder keeps no checkpoint
    assert nowhere.checkpoint_of() is None
    assert not nowhere.resumed()
    assert len(list(nowhere.training("Training", torch.Generator())(3))) == 3


def test_the_learning_rate_of_a_matched_method_falls_by_a_tenth_each_round():
    rates, plain = [], torch.optim.Adam.step

    def watched(self, *rest, **more):
        rates.append(self.param_groups[0]["lr"])
        return plain(self, *rest, **more)

    method = Merf(features=8, steps=20, decays=5, learning_rate=1.0, batch=4, hidden=4)
    with patch.object(torch.optim.Adam, "step", watched):
        method.fit(small_images(30), LOOSE)
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
    plain = small_images(40, shape=(1, 4, 4), labelled=False)
    Counting.reads = 0
    return Counting(plain._source, plain.schema, plain.name)


def scores(network: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    return network(pixels).square()


class Pixels(FeatureMap):
    dim, bound = 16, 1.0

    def __call__(self, batch: Batch) -> torch.Tensor:
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
    ledger = Ledger(LOOSE)
    data = Gate(PrivateData(rows(), ledger, store=store), queries, charges, LOOSE)
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
                    told["pixels", paid.index] = answer = paid.sum(Pixels())[0]
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
    reads, end = 0, None
    seen: Answers = {}
    for die_at in (2, 3, 3, 8, None):
        answers: Answers = {}
        with contextlib.suppress(Killed):
            end = train(tmp_path, die_at=die_at, answers=answers, beside=beside)
        reads += Counting.reads
        for key, answer in answers.items():
            assert torch.equal(seen.setdefault(key, answer), answer)
    assert reads == len(seen) == STEPS + (STEPS // EVERY if beside else 0)
    # What is finished is not begun again.
    assert equal(end, train(tmp_path, beside=beside))
    assert Counting.reads == 0


@pytest.mark.parametrize(
    ("seconds", "damage", "message"),
    [
        (
            NEVER,
            "UPDATE answers SET value = zeroblob(68) WHERE step = 3",
            "spends the budget again",
        ),
        (ALWAYS, "DELETE FROM checkpoints", "do not belong together"),
        (ALWAYS, "DELETE FROM answers", "do not belong together"),
        (ALWAYS, "UPDATE checkpoints SET content = substr(content, 1, 40)", "checkpoint"),
    ],
)
def test_a_damaged_state_is_refused_and_nothing_answered_again(seconds, damage, message, tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=7, seconds=seconds)
    with contextlib.closing(sqlite3.connect(tmp_path / STORE)) as db, db:
        db.execute(damage)
    with pytest.raises(CorruptArtifact, match=message):
        train(tmp_path)
    assert Counting.reads == 0


def test_checkpoints_keep_the_store_short_and_remember_what_was_answered(tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, die_at=9, seconds=ALWAYS, beside=True)
    asked = "SELECT step, value FROM answers WHERE label = ? ORDER BY step"
    for label, answered, kept in (("gradients", 10, [9]), ("pixels", 3, [])):
        with contextlib.closing(sqlite3.connect(tmp_path / STORE)) as db:
            found = db.execute(asked, (label,)).fetchall()
        assert [step for step, value in found if value is not None] == kept
        assert [step for step, _ in found] == list(range(answered))
    with pytest.raises(CorruptArtifact, match="another plan"):
        store_in(tmp_path).settled(PAID.charge(2.0))


def test_plain_noisy_sums_are_journalled_as_well_and_answer_once(tmp_path):
    def answers(stop: int) -> list[torch.Tensor]:
        store = store_in(tmp_path)
        data = PrivateData(rows(), Ledger(LOOSE), store=store)
        steps = data.poisson_steps(0.5, 6, 1.0, bound=enforced_bound(Pixels()), label="sums")
        found = []
        for step, _ in zip(steps, range(stop), strict=False):
            found.append(step.noisy_sum(Pixels()))
            with pytest.raises(PlanMismatch, match="used already"):
                step.noisy_sum(Pixels())
        store.close()
        return found

    first = answers(3)
    second = answers(6)
    assert Counting.reads == 3
    assert first[0].dtype == second[0].dtype == torch.float64
    assert first[0].shape == second[0].shape == (1, 16)
    assert all(torch.equal(a, b) for a, b in zip(first, second[:3], strict=True))


# -- whole fits, killed --------------------------------------------------------------------------------------------------


KILLED = """
import sys, torch
torch.set_num_threads(1)
import sfumato
from sfumato.testing.methods import small_images
if sys.argv[2] == "merf":  # free steps from one release
    method, public = sfumato.Merf(features=400, steps=800, batch=40, hidden=32, block=50), None
else:  # paid steps
    method = sfumato.Dre(codec="dct:16", rate=0.1, steps=400, public_batch=20)
    public = small_images(200, seed=2, labelled=False)
budget = sfumato.Budget(epsilon=2.0, delta=1e-4)
data, how = small_images(200, labelled=False), {"resume": "resume" in sys.argv, "public": public}
method.fit(data, budget, out=sys.argv[1], **how)
"""


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("merf", signal.SIGKILL),
        pytest.param("merf", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("dre", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_killed_fit_goes_on_with_the_very_answers_it_was_given(name, how, tmp_path):
    (tmp_path / "fit.py").write_text(KILLED)
    run, command = tmp_path / "run", [sys.executable, tmp_path / "fit.py", tmp_path / "run", name]
    first = subprocess.Popen(
        command,
        stderr=subprocess.DEVNULL,
        # What runs in the background of a shell ignores an interrupt, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )

    def begun() -> bool:
        try:
            return len(SavedRun(run, unfinished=True).log) > 3
        except SfumatoError:
            return False

    wait_for(begun, "the first steps in the log", first)
    os.kill(first.pid, how)
    first.wait()

    def answers(saved: SavedRun) -> dict[tuple[str, int], str]:
        return {(a.label, a.step): a.digest for a in saved.answers()}

    saved = SavedRun(run, unfinished=True)
    assert not saved.finished
    before, statement = answers(saved), saved.statement_json
    saved.close()
    subprocess.run([*command, "resume"], check=True)
    saved = SavedRun(run)
    after, steps = answers(saved), [r["step"] for r in saved.log if r["event"] == "step"]
    assert len(after) == (1 if name == "merf" else 401)
    # The same noise: nothing was released twice.
    assert before
    assert {key: after[key] for key in before} == before
    assert saved.statement_json == statement
    assert steps == sorted(set(steps))
    assert steps[-1] == (800 if name == "merf" else 400)
    assert {p.name for p in run.iterdir()} == {STORE, "run.lock", *EXPORTS}
    assert len(Method.load(run).sample(10, seed=0)) == 10
