"""The one training loop: it learns, and an interruption changes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.checkpoints import FileCheckpoint
from sfumato.errors import CorruptArtifact, SfumatoError
from sfumato.generators import ClassedGenerator, ConvGenerator, Training, train
from sfumato.generators.networks import DoublingConv
from sfumato.methods import SavedRun, Synthesizer
from sfumato.methods.run import EXPORTS
from sfumato.privacy.store import STORE
from waits import wait_for


def problem() -> tuple[nn.Module, object]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def loss(step: int, generator: torch.Generator) -> torch.Tensor:
        x = torch.randn(16, 3, generator=generator)
        return (network(x) - x.sum(dim=1, keepdim=True)).square().mean()

    return network, loss


def weights(network: nn.Module) -> list[torch.Tensor]:
    return [v.clone() for v in network.state_dict().values()]


def test_training_lowers_the_loss_and_logs_it():
    network, loss = problem()
    records: list[dict] = []
    train(network, loss, Training(steps=400, learning_rate=0.01, log=records.append))
    assert records[-1]["step"] == 400
    assert np.mean([r["loss"] for r in records[-5:]]) < 0.3 * np.mean(
        [r["loss"] for r in records[:5]]
    )
    assert not network.training


def test_a_resumed_training_ends_with_the_very_same_network(tmp_path):
    whole, loss = problem()
    train(whole, loss, Training(steps=60, learning_rate=0.01, seed=4))

    class Stop(Exception):
        pass

    torn, loss = problem()

    def interrupted(step: int, generator: torch.Generator) -> torch.Tensor:
        if step == 37:
            raise Stop
        return loss(step, generator)

    how = Training(
        steps=60,
        learning_rate=0.01,
        seed=4,
        checkpoint=FileCheckpoint(tmp_path / "c.safetensors"),
        checkpoint_seconds=0.0,
    )
    with pytest.raises(Stop):
        train(torn, interrupted, how)
    assert FileCheckpoint(tmp_path / "c.safetensors").step == 37
    resumed, loss = problem()
    nn.init.zeros_(resumed[0].weight)  # the checkpoint, not the start, must decide
    train(resumed, loss, how)
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(resumed), strict=True))


def test_a_damaged_checkpoint_says_that_training_again_is_free(tmp_path):
    path = tmp_path / "c.safetensors"
    path.write_bytes(b"nonsense")
    network, loss = problem()
    with pytest.raises(CorruptArtifact, match="costs no privacy"):
        train(network, loss, Training(steps=5, learning_rate=0.01, checkpoint=FileCheckpoint(path)))


def test_the_learning_rate_falls_by_a_tenth_each_round():
    how = Training(steps=100, learning_rate=1.0, rounds=5, decay=0.9)
    assert [how.rate_at(s) for s in (0, 19, 20, 99)] == pytest.approx([1.0, 1.0, 0.9, 0.9**4])


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 8, 8), (3, 32, 32), (3, 33, 17), (1, 5, 6)])
@pytest.mark.parametrize("n_classes", [0, 4])
def test_generators_make_any_size(shape, n_classes):
    generator = ConvGenerator(shape, n_classes, latent=5, hidden=12)
    made = generator(torch.zeros(6, dtype=torch.int64), torch.Generator().manual_seed(0))
    assert made.shape == (6, *shape)
    assert bool((made >= 0).all() and (made <= 1).all())


def test_the_folded_convolution_is_upsampling_then_convolving():
    torch.manual_seed(0)
    layer = DoublingConv(3, 2)
    x = torch.randn(4, 3, 6, 7)
    wide = nn.functional.interpolate(
        nn.functional.pad(x, (2, 2, 2, 2), mode="replicate"), scale_factor=2, mode="bilinear"
    )
    plain = layer.convolution(wide)[:, :, 2:-2, 2:-2]
    assert torch.allclose(layer(x), plain, atol=1e-5)
    assert layer(x).shape == (4, 2, 12, 14)


FIT = """
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
    script.write_text(textwrap.dedent(FIT))
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
    assert len(Synthesizer.load(run).sample(10)) == 10


def _log_of(run: Path) -> list[dict]:
    try:
        return SavedRun(run, unfinished=True).log
    except SfumatoError:  # not begun yet
        return []


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 10, 7)])
@pytest.mark.parametrize("classes", [0, 3])
def test_a_classed_generator_draws_each_class_with_its_own_layers(shape, classes):
    torch.manual_seed(0)
    generator = ClassedGenerator(shape, classes, 5, 12, texture=True).eval()
    with torch.no_grad():
        generator.own.normal_()
        generator.template.normal_()
    labels = torch.tensor([2, 0, 1, 1, 2]) if classes else torch.zeros(5, dtype=torch.int64)
    seeded = [torch.Generator().manual_seed(4) for _ in range(2)]
    images = generator(labels, seeded[0])
    assert images.shape == (5, *shape)
    assert float(images.min()) >= 0
    assert float(images.max()) <= 1
    # A second route: one matrix for each record.
    noise = torch.randn(5, 5, generator=seeded[1])
    matrices = generator.common + generator.own[labels]
    mixed = torch.einsum("nl,nlh->nh", noise, matrices)
    expected = torch.relu(mixed * generator.gain[labels] + generator.shift[labels])
    assert torch.allclose(generator._begin(noise, labels), expected, atol=1e-5)


def test_what_one_class_learns_leaves_the_others_alone():
    torch.manual_seed(0)
    generator = ClassedGenerator((1, 8, 8), 2, 4, 6).eval()
    labels = torch.tensor([0, 1, 0, 1])
    before = generator(labels, torch.Generator().manual_seed(1))
    with torch.no_grad():
        generator.own[1] += 1
        generator.template[1] += 1
    after = generator(labels, torch.Generator().manual_seed(1))
    assert torch.equal(before[labels == 0], after[labels == 0])
    assert not torch.allclose(before[labels == 1], after[labels == 1])
