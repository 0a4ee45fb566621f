"""DP-MERF on Fashion-MNIST: accuracy on real test images of classifiers trained on 60,000 synthetic ones.

Prints a Markdown table: mean over seeds and the range, beside the paper's own numbers (ε = 1, relation replace-one).

    python benchmarks/merf_accuracy.py [--seeds 3] [--epsilons 1] [--metrics logreg,mlp,cnn] [--data fashion-mnist]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import sfumato

PUBLISHED = {  # thesis, app. B; relation replace-one, the paper's own accounting
    ("fashion-mnist", 1.0): {"logreg": "73", "mlp": "74"},
    ("fashion-mnist", 0.2): {"logreg": "71", "mlp": "70"},
    ("mnist", 1.0): {"logreg": "77", "mlp": "81"},
    ("mnist", 0.2): {"logreg": "77", "mlp": "77"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", default="1")
    parser.add_argument("--metrics", default="logreg,mlp,cnn")
    parser.add_argument("--data", default="fashion-mnist")
    arguments = parser.parse_args()
    metrics = arguments.metrics.split(",")
    train, test = (sfumato.load(f"{arguments.data}:{split}") for split in ("train", "test"))
    print(f"| {arguments.data}, δ = 1e-5 | " + " | ".join(metrics) + " | seconds to fit |")
    print("|---|" + "---|" * (len(metrics) + 1))
    for epsilon in (float(e) for e in arguments.epsilons.split(",")):
        for neighbours in ("replace-one", "zero-out"):
            found: dict[str, list[float]] = {m: [] for m in metrics}
            seconds = []
            for seed in range(arguments.seeds):
                began = time.perf_counter()
                budget = sfumato.Budget(
                    epsilon=epsilon, delta=1e-5, neighbours=sfumato.Neighbours(neighbours)
                )
                synthetic = sfumato.Merf(seed=seed).fit(train, budget).sample(60_000, seed=seed)
                seconds.append(time.perf_counter() - began)
                result = sfumato.evaluate(
                    synthetic, test, metrics=[f"accuracy.{m}" for m in metrics], seed=seed
                )
                for name, metric in zip(metrics, result.metrics, strict=True):
                    found[name].append(100 * metric.value)
                print(
                    epsilon,
                    neighbours,
                    seed,
                    {m: v[-1] for m, v in found.items()},
                    file=sys.stderr,
                    flush=True,
                )
            cells = [
                f"{statistics.mean(v):.1f} ({min(v):.1f}–{max(v):.1f})" for v in found.values()
            ]
            print(
                f"| ε = {epsilon:g}, {neighbours}, {arguments.seeds} seeds: mean (range) | "
                + " | ".join(cells)
                + f" | {statistics.median(seconds):.0f} |"
            )
        published = PUBLISHED.get((arguments.data, epsilon), {})
        print(
            f"| *published, ε = {epsilon:g}, replace-one* | "
            + " | ".join(f"*{published.get(m, '–')}*" for m in metrics)
            + " | |"
        )


if __name__ == "__main__":
    main()
