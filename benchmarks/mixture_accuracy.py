"""The mixture on real test images: accuracy of classifiers trained on 60,000 synthetic ones, and the time to make them.

Prints a Markdown table: mean over seeds and the range, beside the best published numbers.

    python benchmarks/mixture_accuracy.py [--data fashion-mnist,mnist] [--epsilons 1] [--seeds 3] [--refine both] [--jobs 2]
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

# Classifiers trained on synthetic data only; each paper's own accounting.
PUBLISHED = {
    ("fashion-mnist", 1.0): ("DP-FETA (DPImageBench), on GPUs", {"cnn": "81.7"}),
    ("mnist", 1.0): ("DP-FETA (DPImageBench), on GPUs", {"cnn": "95.6"}),
    ("fashion-mnist", 10.0): ("DP-FETA (DPImageBench), on GPUs", {"cnn": "87.3"}),
    ("mnist", 10.0): ("DP-FETA (DPImageBench), on GPUs", {"cnn": "98.1"}),
}
Cell = tuple[str, float, str, bool, int]


def cell(
    data: str, epsilon: float, neighbours: str, refine: bool, seed: int, metrics: list[str], n: int
) -> tuple[list[float], float]:
    """Accuracies in per cent, and the processor seconds of fit and sampling on one thread."""
    torch.set_num_threads(1)
    train, test = (sfumato.load(f"{data}:{split}") for split in ("train", "test"))
    began = time.process_time()
    budget = sfumato.Budget(epsilon=epsilon, delta=1e-5, neighbours=sfumato.Neighbours(neighbours))
    synthetic = sfumato.Mixture(refine=refine, seed=seed).fit(train, budget).sample(n, seed=seed)
    seconds = time.process_time() - began
    names = [m if "." in m else f"accuracy.{m}" for m in metrics]
    result = sfumato.evaluate(synthetic, test, metrics=names, seed=seed)
    found = [100 * metric.value for metric in result.metrics]
    print(
        data, epsilon, neighbours, refine, seed, found, round(seconds), file=sys.stderr, flush=True
    )
    return found, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="fashion-mnist,mnist")
    parser.add_argument("--epsilons", default="1")
    parser.add_argument("--neighbours", default="zero-out,replace-one")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--metrics", default="logreg,mlp,cnn")
    parser.add_argument("--refine", choices=["no", "yes", "both"], default="both")
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    metrics = arguments.metrics.split(",")
    kinds = {"no": [False], "yes": [True], "both": [False, True]}[arguments.refine]
    rows = [
        (data, float(epsilon), neighbours, refine)
        for data in arguments.data.split(",")
        for epsilon in arguments.epsilons.split(",")
        for neighbours in arguments.neighbours.split(",")
        for refine in kinds
    ]
    # A process per core, one thread each: faster in all than one run after another on all cores.
    with ProcessPoolExecutor(
        arguments.jobs, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        futures = {
            (row, seed): pool.submit(cell, *row, seed, metrics, arguments.samples)
            for row in rows
            for seed in range(arguments.seeds)
        }
        done = {key: future.result() for key, future in futures.items()}
    print("| δ = 1e-5 | " + " | ".join(metrics) + " | fit and sample, s (1 thread) |")
    print("|---|" + "---|" * (len(metrics) + 1))
    for row in rows:
        data, epsilon, neighbours, refine = row
        results = [done[row, seed] for seed in range(arguments.seeds)]
        columns = zip(*(found for found, _ in results), strict=True)
        shown = [f"{statistics.mean(v):.1f} ({min(v):.1f}–{max(v):.1f})" for v in columns]
        seconds = statistics.median(s for _, s in results)
        kind = "refined" if refine else "plain"
        print(
            f"| {data}, ε = {epsilon:g}, {neighbours}, {kind}, {arguments.seeds} seeds: mean (range) | "
            + " | ".join(shown)
            + f" | {seconds:.0f} |"
        )
    for key in dict.fromkeys((data, epsilon) for data, epsilon, _, _ in rows):
        if key in PUBLISHED:
            name, numbers = PUBLISHED[key]
            shown = [f"*{numbers.get(m, '–')}*" for m in metrics]
            print(f"| *{key[0]}, ε = {key[1]:g}: {name}* | " + " | ".join(shown) + " | |")


if __name__ == "__main__":
    main()
