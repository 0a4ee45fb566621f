"""A DP-SGD step against the same step without privacy: time and peak memory.

A convolutional critic of 215,573 parameters with group normalisation on 28×28 images, batch 512, Adam, one thread. The ways take
turns and processor time is measured, so that a busy machine changes little; each one's memory is measured in a process of its
own (Linux). Prints a Markdown table.

    python benchmarks/dpsgd_speed.py [--batch 512] [--rounds 15]
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.data import Dataset
from sfumato.privacy import Budget, GradientSum, Ledger, PrivateData

ROUNDS_FOR_MEMORY = 3


def critic() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 4, stride=2, padding=1),
        nn.GroupNorm(8, 32),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, stride=2, padding=1),
        nn.GroupNorm(8, 64),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 58),
        nn.LeakyReLU(0.2),
        nn.Linear(58, 1),
        nn.Flatten(0),
    )


def rows(batch: int) -> Dataset:
    pixels = np.random.default_rng(0).integers(0, 256, (batch, 1, 28, 28), dtype=np.uint8)
    return Dataset.from_arrays(pixels)


def per_record(network: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.softplus(-network(x))


def without_privacy(batch: int) -> Callable[[], None]:
    network, data = critic(), rows(batch)
    optimiser = torch.optim.Adam(network.parameters(), fused=True)

    def step() -> None:
        optimiser.zero_grad()
        per_record(network, data.take(np.arange(batch)).pixels()).mean().backward()
        optimiser.step()

    return step


def through_the_wall(batch: int, fast: bool) -> Callable[[], None]:
    network, data = critic(), rows(batch)
    optimiser = torch.optim.Adam(network.parameters(), fused=True)
    gradients = GradientSum(network, per_record, bound=1.0)
    gradients._fast = fast
    private = PrivateData(data, Ledger(Budget(epsilon=1e6, delta=1e-5)))
    # Rate 1, so that every way sees the same 512 records.
    steps = private.poisson_steps(1.0, 10_000, 1.0, bound=gradients.enforced, label="steps")

    def step() -> None:
        gradients.assign(next(steps).noisy_gradient(gradients) / batch)
        optimiser.step()

    return step


def opacus_ghost(batch: int) -> Callable[[], None]:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    data = rows(batch)
    network = GradSampleModuleFastGradientClipping(
        critic(), max_grad_norm=1.0, use_ghost_clipping=True
    )
    optimiser = DPOptimizerFastGradientClipping(
        torch.optim.Adam(network.parameters(), fused=True),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=batch,
    )
    criterion = DPLossFastGradientClipping(
        network, optimiser, nn.BCEWithLogitsLoss(reduction="mean"), "mean"
    )

    def step() -> None:
        optimiser.zero_grad()
        x = data.take(np.arange(batch)).pixels()
        criterion(network(x), torch.ones(batch)).backward()
        optimiser.step()

    return step


WAYS: dict[str, Callable[[int], Callable[[], None]]] = {
    "without privacy": without_privacy,
    "DP-SGD, book-keeping (the default)": lambda batch: through_the_wall(batch, True),
    "DP-SGD, vmap (the fallback)": lambda batch: through_the_wall(batch, False),
}
if importlib.util.find_spec("opacus"):
    WAYS["DP-SGD, Opacus ghost clipping"] = opacus_ghost


def highest() -> float:
    """The highest mark of this process's memory, in megabytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def memory(way: str, batch: int) -> float:
    """Megabytes that the steps add to what their process held before."""
    torch.set_num_threads(1)
    step = WAYS[way](batch)
    Path("/proc/self/clear_refs").write_text("5")  # sets the mark to the present
    before = highest()
    for _ in range(ROUNDS_FOR_MEMORY):
        step()
    return highest() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    steps = {way: make(arguments.batch) for way, make in WAYS.items()}
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for round_ in range(arguments.rounds + 1):
        for way, step in steps.items():
            if "fallback" in way and round_ > 2:
                continue
            began = time.process_time()
            step()
            if round_:  # the first one warms up
                taken[way].append(1000 * (time.process_time() - began))
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        peaks = {way: pool.apply(memory, (way, arguments.batch)) for way in WAYS}
    base, base_memory = taken["without privacy"], peaks["without privacy"]
    print(
        f"| step of {arguments.batch} records | CPU ms, median | times | peak memory, MB | times |"
    )
    print("|---|---|---|---|---|")
    for way in WAYS:
        ratio = statistics.median(a / b for a, b in zip(taken[way], base, strict=False))
        print(
            f"| {way} | {statistics.median(taken[way]):.0f} | {ratio:.2f} | {peaks[way]:.0f} | "
            f"{peaks[way] / base_memory:.2f} |"
        )


if __name__ == "__main__":
    main()
