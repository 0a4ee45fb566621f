"""The adversarial methods on Fashion-MNIST: accuracy on real test images of classifiers trained on 20,000 synthetic ones.

Schedules are what one CPU thread trains in minutes. `gan-ft` takes MNIST as its public images. Prints a Markdown table: mean over
seeds, beside published numbers of the family (their papers' own accounting, GPUs).

    python benchmarks/gan_accuracy.py [--seeds 1] [--epsilons 10] [--methods gan,gan-ft,gan-mi] [--metrics logreg,mlp,cnn]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch

import sfumato

SETTINGS: dict[str, dict[str, float]] = {
    "gan": {"rate": 0.01, "steps": 600, "critic_steps": 1, "learning_rate": 2e-3},
    "gan-ft": {"rate": 0.01, "steps": 300, "public_steps": 400, "critic_steps": 1},
    "gan-mi": {"rate": 0.01, "steps": 600},
    "dpaf": {},
    "sinkhorn": {},
    "gs-wgan": {},
}
PUBLIC = {"gan-ft": "mnist:train"}
PUBLISHED = {
    ("GS-WGAN", 10.0): {"logreg": "68", "mlp": "65", "cnn": "65"},
    ("DPAF", 10.0): {"cnn": "64.0"},
    ("DP-Sinkhorn", 10.0): {"logreg": "75.1", "mlp": "74.6", "cnn": "71.1"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epsilons", default="10")
    parser.add_argument("--methods", default="gan,gan-ft,gan-mi")
    parser.add_argument("--metrics", default="logreg,mlp,cnn")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    metrics = arguments.metrics.split(",")
    train, test = (sfumato.load(f"fashion-mnist:{split}") for split in ("train", "test"))
    print("| Fashion-MNIST, δ = 1e-5, zero-out | " + " | ".join(metrics) + " | fit, s (1 thread) |")
    print("|---|" + "---|" * (len(metrics) + 1))
    for epsilon in (float(e) for e in arguments.epsilons.split(",")):
        for name in arguments.methods.split(","):
            rows = []
            for seed in range(arguments.seeds):
                public = sfumato.load(PUBLIC[name]) if name in PUBLIC else None
                method = sfumato.get_method(name)(seed=seed, **SETTINGS[name])
                began = time.perf_counter()
                method.fit(train, sfumato.Budget(epsilon=epsilon, delta=1e-5), public=public)
                seconds = time.perf_counter() - began
                synthetic = method.sample(20_000, seed=seed)
                wanted = [f"accuracy.{m}" for m in metrics]
                found = sfumato.evaluate(synthetic, test, metrics=wanted, seed=seed).metrics
                rows.append([*(100 * m.value for m in found), seconds])
                print(name, epsilon, seed, rows[-1], file=sys.stderr, flush=True)
            means = [statistics.mean(column) for column in zip(*rows, strict=True)]
            shown = [f"{v:.1f}" for v in means[:-1]] + [f"{means[-1]:.0f}"]
            title = f"{method.info.title}, ε = {epsilon:g}, {arguments.seeds} seed(s)"
            print(f"| {title} | " + " | ".join(shown) + " |", flush=True)
        for (paper, at), numbers in PUBLISHED.items():
            if at == epsilon:
                shown = [f"*{numbers.get(m, '–')}*" for m in metrics]
                print(f"| *{paper}, published, ε = {epsilon:g}* | " + " | ".join(shown) + " | |")


if __name__ == "__main__":
    main()
