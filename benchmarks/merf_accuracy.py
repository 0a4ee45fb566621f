"""DP-MERF on Fashion-MNIST: accuracy on real test images of classifiers trained on synthetic ones.

Prints a Markdown table: mean over seeds and the range, beside the paper's own numbers (ε = 1, relation replace-one).

    python benchmarks/merf_accuracy.py [--seeds 3] [--epsilons 1] [--metrics logreg,mlp,cnn] [--data fashion-mnist]
                                       [--neighbours replace-one,zero-out] [--images 60000] [--processes 2]

`--metrics logreg,mlp,mean12 --images 10000` measures the mean of the papers' twelve classifiers in bearable time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import torch

import sfumato

PUBLISHED = {  # thesis, app. B; relation replace-one, the paper's own accounting
    ("fashion-mnist", 1.0): {"logreg": "73", "mlp": "74", "mean12": "62"},
    ("fashion-mnist", 0.2): {"logreg": "71", "mlp": "70", "mean12": "53"},
    ("mnist", 1.0): {"logreg": "77", "mlp": "81", "mean12": "65"},
    ("mnist", 0.2): {"logreg": "77", "mlp": "77", "mean12": "61"},
}


def cell(
    data: str, epsilon: float, neighbours: str, seed: int, metrics: list[str], images: int
) -> tuple[list[float], float]:
    """Accuracies in per cent, and the seconds of fit and sampling on one thread."""
    torch.set_num_threads(1)
    train, test = (sfumato.load(f"{data}:{split}") for split in ("train", "test"))
    began = time.perf_counter()
    budget = sfumato.Budget(epsilon=epsilon, delta=1e-5, neighbours=sfumato.Neighbours(neighbours))
    synthetic = sfumato.Merf(seed=seed).fit(train, budget).sample(images, seed=seed)
    seconds = time.perf_counter() - began
    result = sfumato.evaluate(
        synthetic, test, metrics=[f"accuracy.{m}" for m in metrics], seed=seed
    )
    found = [100 * metric.value for metric in result.metrics]
    print(data, epsilon, neighbours, seed, found, file=sys.stderr, flush=True)
    return found, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", default="1")
    parser.add_argument("--metrics", default="logreg,mlp,cnn")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--neighbours", default="replace-one,zero-out")
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    relations = arguments.neighbours.split(",")
    metrics = arguments.metrics.split(",")
    epsilons = [float(e) for e in arguments.epsilons.split(",")]
    cells = [
        (epsilon, neighbours, seed)
        for epsilon in epsilons
        for neighbours in relations
        for seed in range(arguments.seeds)
    ]
    # A process per core, one thread each: faster in all than one run after another on all cores.
    with ProcessPoolExecutor(
        arguments.processes, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        futures = {
            c: pool.submit(cell, arguments.data, *c, metrics, arguments.images) for c in cells
        }
        done = {c: future.result() for c, future in futures.items()}
    head = f"| {arguments.data}, δ = 1e-5, {arguments.images:,} synthetic images | "
    print(head + " | ".join(metrics) + " | fit, s (1 thread) |")
    print("|---|" + "---|" * (len(metrics) + 1))
    for epsilon in epsilons:
        for neighbours in relations:
            rows = [done[epsilon, neighbours, seed] for seed in range(arguments.seeds)]
            columns = list(zip(*(found for found, _ in rows), strict=True))
            cells_shown = [f"{statistics.mean(v):.1f} ({min(v):.1f}–{max(v):.1f})" for v in columns]
            seconds = statistics.median(s for _, s in rows)
            print(
                f"| ε = {epsilon:g}, {neighbours}, {arguments.seeds} seeds: mean (range) | "
                + " | ".join(cells_shown)
                + f" | {seconds:.0f} |"
            )
        published = PUBLISHED.get((arguments.data, epsilon), {})
        shown = " | ".join(f"*{published.get(m, '–')}*" for m in metrics)
        print(f"| *published, ε = {epsilon:g}, replace-one, 60,000 images* | {shown} | |")


if __name__ == "__main__":
    main()
