"""DP-LLM: accuracy of the private classifier on the real test records, and the time of a fit.

Prints a Markdown table: mean over seeds and the range, beside the paper's own numbers.

    python benchmarks/llm_accuracy.py [--seeds 3] [--data mnist,fashion-mnist] [--epsilons 2,0.5] [--set KEY=VALUE …]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import torch

import sfumato
from sfumato.methods import LinearMaps

PUBLISHED = {  # thesis, app. A: the paper's own accounting (moments accountant, shuffled batches)
    ("mnist", 2.0): "94.2",
    ("mnist", 0.5): "91.8",
    ("fashion-mnist", 2.0): "83.2",
    ("fashion-mnist", 0.5): "80.7",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", default="mnist,fashion-mnist")
    parser.add_argument("--epsilons", default="2,0.5")
    parser.add_argument("--neighbours", default="zero-out")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in arguments.set)
    torch.set_num_threads(1)
    print(
        f"| δ = 1e-5, {arguments.neighbours} | accuracy, {arguments.seeds} seeds: mean (range) "
        "| published | fit, CPU s (1 thread) |"
    )
    print("|---|---|---|---|")
    for name in arguments.data.split(","):
        train, test = (sfumato.load(f"{name}:{split}") for split in ("train", "test"))
        for epsilon in (float(e) for e in arguments.epsilons.split(",")):
            budget = sfumato.Budget(
                epsilon=epsilon,
                delta=1e-5,
                neighbours=sfumato.Neighbours(arguments.neighbours),
            )
            found, seconds = [], []
            for seed in range(arguments.seeds):
                # Time of this process, not of the clock: others may be at work on the machine.
                began = time.process_time()
                method = LinearMaps.from_settings(settings, seed=seed)
                model = sfumato.LocallyLinearMaps(**method.get_params()).fit(train, budget)
                seconds.append(time.process_time() - began)
                found.append(100 * model.score(test))
                print(name, epsilon, seed, found[-1], seconds[-1], file=sys.stderr, flush=True)
            shown = f"{statistics.mean(found):.1f} ({min(found):.1f}–{max(found):.1f})"
            published = PUBLISHED.get((name, epsilon), "–")
            print(
                f"| {name}, ε = {epsilon:g} | {shown} | *{published}* | {statistics.median(seconds):.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
