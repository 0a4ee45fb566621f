"""The mixture's capacity where noise is low: clusters, directions and covariances, one setting a row.

`quickdraw` (345 things in ten groups) and `font-digits` are public stand-ins: a set of n records gets the ε at which noise ÷ n is
that of 60,000 records at --epsilon. `fashion-mnist` or `mnist`: five sixths of the training images are fitted at --epsilon itself
and the last sixth is the test; test splits of these are not read. Prints a Markdown table.

    python benchmarks/mixture_capacity.py [--data quickdraw] [--epsilon 10] [--seeds 1] [--samples 12000] [--settings default,…]
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from typing import Any

import torch
from mixture_latent import parts
from mixture_proxies import DELTA, RECORDS, stand_in

import sfumato
from sfumato.data import Dataset
from sfumato.methods import mixture
from sfumato.methods.mixture import Capacity
from sfumato.privacy import Charge, calibrate
from sfumato.privacy.accounting import epsilon_of_gaussian

STAND_INS = ("quickdraw", "font-digits")
# Fields of `Capacity` and what they are multiplied by, or the number they are set to.
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "half the clusters": {"clusters": 0.5},
    "twice the clusters": {"clusters": 2.0},
    "four times the clusters": {"clusters": 4.0},
    "twice the basis": {"basis": 2.0, "by_class": 2.0},
    "covariances of clusters, 20 directions": {"own": 20},
    "covariances of clusters, 50 directions": {"own": 50},
    "half the clusters with covariances, 50": {"clusters": 0.5, "own": 50},
}


def changed(capacity: Capacity, changes: dict[str, Any]) -> Capacity:
    """The capacity with some of its numbers multiplied (float) or set (int), none larger than it can be."""
    numbers = dataclasses.asdict(capacity)
    for name, by in changes.items():
        numbers[name] = by if isinstance(by, int) else max(1, round(numbers[name] * by))
    numbers["basis"] = min(numbers["basis"], numbers["band"])
    for name in ("by_class", "coordinates", "own"):
        numbers[name] = min(numbers[name], numbers["basis"])
    return Capacity(**numbers)


def budget_for(data: str, train: Dataset, epsilon: float) -> sfumato.Budget:
    if data in STAND_INS:
        target = sfumato.Budget(epsilon=epsilon, delta=DELTA)
        noise = calibrate(lambda m: (Charge(label="x", bound=1.0, noise_multiplier=m),), target)
        epsilon = epsilon_of_gaussian(RECORDS / len(train) / noise, DELTA)
    return sfumato.Budget(epsilon=epsilon, delta=DELTA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="quickdraw")
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--samples", type=int, default=12_000)
    parser.add_argument("--settings", default="; ".join(SETTINGS), help="rows, divided by ';'")
    parser.add_argument("--metrics", default="logreg,mlp,cnn")
    parser.add_argument("--refine", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train, test = (stand_in if arguments.data in STAND_INS else parts)(arguments.data)
    budget = budget_for(arguments.data, train, arguments.epsilon)
    names = arguments.metrics.split(",")
    print(f"| {arguments.data}, ε = {arguments.epsilon:g} | " + " | ".join(names) + " | CPU s |")
    print("|---|" + "---|" * (len(names) + 1))
    plain = Capacity.of
    for title in (title.strip() for title in arguments.settings.split(";")):
        rows = []
        for seed in range(arguments.seeds):
            began = time.process_time()
            rule = lambda *facts, of=plain, by=SETTINGS[title]: changed(of(*facts), by)  # noqa: E731
            mixture.Capacity.of = rule  # type: ignore[method-assign, assignment]
            model = sfumato.Mixture(refine=arguments.refine, seed=seed).fit(train, budget)
            sample = model.sample(arguments.samples, seed=seed)
            seconds = time.process_time() - began
            metrics = [f"accuracy.{name}" for name in names]
            found = sfumato.evaluate(sample, test, metrics=metrics, seed=seed).metrics
            rows.append([*(100 * m.value for m in found), seconds])
            print(title, seed, rows[-1], file=sys.stderr, flush=True)
        shown = [f"{statistics.mean(column):.1f}" for column in zip(*rows, strict=True)]
        print(f"| {title} | " + " | ".join(shown) + " |", flush=True)
    print(
        f"\nMean of {arguments.seeds} seed(s), {arguments.samples:,} samples, fitted at ε = {budget.epsilon:.3g}."
    )


if __name__ == "__main__":
    main()
