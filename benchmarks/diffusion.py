"""`diffusion` beside the toned mixture at equal ε: cells as small JSON files, and a table.

    python benchmarks/diffusion.py [--epsilons E,…] [--rows NAME,…] [--seeds N] [--only-show]
    python benchmarks/diffusion.py --speed

A cell is a row (`mixture`, or one of `diffusion`), ε (δ = 1e-5, zero-out) and a seed. Fitted to 55,000 of Fashion-MNIST's
training images; the other 5,000 tell the loss by noise level, the mean square of what the denoiser misses in units of c(s)², of
the mixture's closed form alone and with the network. 30,000 samples are judged by the test images: accuracy of a CNN trained on
them, and the Fréchet distance in a CNN that was trained on the real ones (`frechet.judge`).

Fits are kept under `runs/diffusion` and go on where they were stopped; cells that are kept in `benchmarks/results/diffusion` are
not made again. `--speed`: milliseconds of one core for a record and noise level of a paid step.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sfumato
from sfumato.data import Batch, Dataset, Schema
from sfumato.files import write_json
from sfumato.generators.mixture import GaussianMixture
from sfumato.methods.denoising import Noised, denoising_loss, scale, seen
from sfumato.methods.posterior import Gray, Known, spaced
from sfumato.privacy import GradientSum

KEPT = Path(__file__).parent / "results" / "diffusion"
DELTA, SAMPLES, HELD_OUT = 1e-5, 30_000, 5000
LEVELS = (0.08, 0.2, 0.45, 1.0)
# Settings of `diffusion` by row, and what a row is called.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixture": ("mixture, toned", {}),
    "minutes": ("diffusion, effort=minutes", {}),
    "told": (
        "diffusion, effort=minutes, the network told the class",
        {"class_from": 0.0},
    ),
    "hour": ("diffusion, effort=hour", {"effort": "hour"}),
}


def halves() -> tuple[Dataset, Dataset]:
    """Records to fit, and records to take the loss of."""
    whole = sfumato.load("fashion-mnist:train")
    rows = np.random.default_rng(0).permutation(len(whole))
    parts = (np.sort(rows[HELD_OUT:]), np.sort(rows[:HELD_OUT]))
    first, second = (
        Dataset.from_arrays(whole.images[part], whole.labels[part], classes=10) for part in parts
    )
    return first, second


@torch.no_grad()
def losses(fitted: sfumato.Diffusion, data: Dataset) -> dict[str, list[float]]:
    """By noise level, of the closed form and of the denoiser."""
    clean = torch.from_numpy(data.images).float() / 127.5 - 1
    labels = torch.from_numpy(data.labels)
    prior, random = fitted.prior(list(LEVELS)), torch.Generator().manual_seed(0)
    found: dict[str, list[float]] = {"closed form": [], "denoiser": []}
    for number, level in enumerate(LEVELS):
        parts = []
        for some, own in zip(clean.split(500), labels.split(500), strict=True):
            each = torch.full((len(some),), level)
            noisy = some + level * torch.randn(some.shape, generator=random)
            mean = prior.mean_at(noisy, own, number)
            missed = (some - mean) / scale(each)
            told = fitted.denoiser_(seen(noisy, mean, each, fitted.looks), each, own)
            parts.append((float(missed.square().mean()), float((missed - told).square().mean())))
        for key, values in zip(found, zip(*parts, strict=True), strict=True):
            found[key].append(round(float(np.mean(values)), 3))
    return found


def cell(row: str, epsilon: float, seed: int, runs: Path, data: list[Dataset]) -> dict[str, Any]:
    fit, held, train, test = data
    method = (
        sfumato.Mixture(seed=seed)
        if row == "mixture"
        else sfumato.Diffusion(**ROWS[row][1], seed=seed)
    )
    out = runs / f"{row}-{epsilon:g}-{seed}"
    began, before = time.process_time(), out.exists()
    method.fit(fit, sfumato.Budget(epsilon=epsilon, delta=DELTA), out=out, resume=before)
    # Of a fit that was stopped on the way, only what came after is known.
    told: dict[str, Any] = {} if before else {"fit, CPU s": round(time.process_time() - began)}
    if isinstance(method, sfumato.Diffusion):
        told["loss"] = losses(method, held)
    began = time.process_time()
    made = method.sample(SAMPLES, seed=seed)
    made = Dataset.from_values(made.values, made.labels, schema=test.schema)
    told["sample, CPU s"] = round(time.process_time() - began)
    names = ["accuracy.cnn", "frechet.judge"]
    for metric in sfumato.evaluate(made, test, metrics=names, train=train, seed=seed).metrics:
        told[metric.name] = round(metric.value, 4)
    return told


def table(cells: dict[tuple[float, str], list[dict[str, Any]]]) -> list[str]:
    levels = ", ".join(f"{level:g}" for level in LEVELS)
    lines = [
        f"| Fashion-MNIST, δ = 1e-5 | CNN | Fréchet, judge | loss at s = {levels}: closed form | with the network | fit, CPU s |",
        "|---|---|---|---|---|---|",
    ]
    order = list(ROWS)
    for (epsilon, row), found in sorted(
        cells.items(), key=lambda c: (c[0][0], order.index(c[0][1]))
    ):
        means = [
            np.mean([one[name] for one in found]) for name in ("accuracy.cnn", "frechet.judge")
        ]
        loss = found[0].get("loss", {})
        told = [
            " / ".join(f"{v:.2f}" for v in loss.get(k, ())) or "–"
            for k in ("closed form", "denoiser")
        ]
        taken = [str(one["fit, CPU s"]) for one in found if "fit, CPU s" in one]
        lines.append(
            f"| ε = {epsilon:g}, {ROWS[row][0]}, {len(found)} seed(s) | {100 * means[0]:.1f} | {means[1]:.2f} "
            f"| {told[0]} | {told[1]} | "
            f"{', '.join(taken) or '–'} |"
        )
    return lines


def made_up(dim: int, classes: int, clusters: int, width: int) -> GaussianMixture:
    """With clusters of covariances of their own; of no data."""
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return 0.1 * torch.randn(*shape, generator=random)

    return GaussianMixture(
        means=normal(classes, dim),
        basis=torch.linalg.qr(normal(dim, width))[0],
        weights=torch.full((classes, clusters), 1 / clusters),
        offsets=normal(classes, clusters, width),
        factors=normal(classes, clusters, width, width),
        residual=normal(dim).abs(),
    )


def speed() -> None:
    """A paid step with DPDM's prior, and with that of a mixture as large as ε = 10 makes it on 60,000 records."""
    schema = Schema(kind="images", shape=(1, 28, 28), classes=tuple(map(str, range(10))))
    random = torch.Generator().manual_seed(0)
    batch = Batch(
        torch.rand(512, 1, 28, 28, generator=random),
        torch.randint(10, (512,), generator=random),
    )
    print(
        "| network | prior | parameters | levels | ms a record and level |\n|---|---|---|---|---|"
    )
    noise = spaced(1.5, 0.05, 16)
    priors = {"none": Gray(noise), "mixture": Known(made_up(784, 10, 20, 126), schema, noise)}
    for width, levels, prior in (
        (24, 1, "none"),
        (24, 1, "mixture"),
        (24, 2, "mixture"),
        (40, 1, "mixture"),
    ):
        method = sfumato.Diffusion(width=width)
        network = method.network(schema)
        torch.nn.init.normal_(network.last.weight, std=0.05)
        noised = Noised(priors[prior], levels, 2)
        gradients = GradientSum(network, denoising_loss, bound=0.01, inputs=noised)
        gradients.check(schema)
        taken = []
        for _ in range(3):
            began = time.process_time()
            gradients(batch)
            taken.append(1e3 * (time.process_time() - began) / len(batch) / levels)
        print(
            f"| width {width} | {prior} | {gradients.dim:,} | {levels} | {min(taken):.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="mixture,minutes", help=",".join(ROWS))
    parser.add_argument("--epsilons", default="1,10")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/diffusion"))
    parser.add_argument("--only-show", action="store_true", help="make no cell")
    parser.add_argument("--speed", action="store_true", help="time paid steps instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.speed:
        speed()
        return
    cells: dict[tuple[float, str], list[dict[str, Any]]] = {}
    data: list[Dataset] = []
    for epsilon in map(float, arguments.epsilons.split(",")):
        for row in arguments.rows.split(","):
            for seed in range(arguments.seeds):
                path = KEPT / f"{row}-{epsilon:g}-{seed}.json"
                if not path.exists() and not arguments.only_show:
                    if not data:
                        names = ("fashion-mnist:train", "fashion-mnist:test")
                        data = [*halves(), *(sfumato.load(name) for name in names)]
                    write_json(path, cell(row, epsilon, seed, arguments.runs, data))
                if path.exists():
                    got = json.loads(path.read_text(encoding="utf-8"))
                    cells.setdefault((epsilon, row), []).append(got)
    print("\n".join(table(cells)))


if __name__ == "__main__":
    main()
