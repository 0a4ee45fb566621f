"""DP-MERF and DP-HP on tables: classifiers trained on synthetic records, tested on real ones; and marginals.

    python benchmarks/table_accuracy.py [--data adult,census,credit] [--methods merf,hp] [--seeds 3] [--epsilons 1]
    python benchmarks/table_accuracy.py --marginals --data adult --epsilons 0.3,0.1

As in the papers, the commonest class is thinned out to a fixed share of its records (adult 0.4, census 0.4, credit 0.005), here
among the synthetic and the test records alike; the method itself is fitted on the whole training set. ROC and PRC are the
mean of the twelve classifiers, of hard decisions as the papers' numbers appear to be ("hard") and of scores. At most
10,000 synthetic and 10,000 test records are used, drawn by the seed. Settings are the methods' defaults.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np
import torch

import sfumato
from sfumato.data import Dataset
from sfumato.methods import get_method

THINNED = {"adult": 0.4, "census": 0.4, "credit": 0.005}
MOST = 10_000
METRICS = ("roc-hard.mean12", "prc-hard.mean12", "roc.mean12", "prc.mean12")
PUBLISHED = {  # thesis, app. B table 1 and app. C table 2; ε = 1, replace-one
    ("adult", "merf"): ("0.650", "0.564"),
    ("adult", "hp"): ("0.688", "0.632"),
    ("census", "merf"): ("0.686", "0.358"),
    ("census", "hp"): ("0.699", "0.328"),
    ("credit", "merf"): ("0.772", "0.637"),
    ("credit", "hp"): ("0.786", "0.744"),
}
MARGINALS = {  # thesis, app. C, table 1: Adult, 3-way
    ("adult", "merf", 0.3): "0.405",
    ("adult", "merf", 0.1): "0.480",
    ("adult", "hp", 0.3): "0.332",
    ("adult", "hp", 0.1): "0.377",
}


def chosen(data: Dataset, keep: np.ndarray) -> Dataset:
    batch = data.take(keep)
    labels = None if batch.labels is None else batch.labels.numpy()
    return Dataset.from_values(batch.values.numpy(), labels, schema=data.schema, name=data.name)


def thinned(data: Dataset, common: int, share: float, seed: int) -> Dataset:
    """At most MOST records, of the commonest class only `share` of those there are."""
    draw = np.random.default_rng(seed)
    labels = data.labels
    assert labels is not None
    kept = np.flatnonzero((labels != common) | (draw.random(len(labels)) < share))
    return chosen(data, np.sort(draw.permutation(kept)[:MOST]))


def synthetic(data: str, name: str, epsilon: float, neighbours: str, seed: int) -> Dataset:
    train = sfumato.load(f"{data}:train")
    budget = sfumato.Budget(epsilon=epsilon, delta=1e-5, neighbours=sfumato.Neighbours(neighbours))
    return get_method(name)(seed=seed).fit(train, budget).sample(len(train), seed=seed)


def scores(data: str, name: str, epsilon: float, neighbours: str, seed: int) -> list[float]:
    began = time.process_time()
    made = synthetic(data, name, epsilon, neighbours, seed)
    fitted = time.process_time() - began
    test = sfumato.load(f"{data}:test")
    labels = test.labels
    assert labels is not None
    common = int(np.bincount(labels).argmax())
    made, test = (thinned(part, common, THINNED[data], seed) for part in (made, test))
    result = sfumato.evaluate(made, test, metrics=list(METRICS), seed=seed)
    found = [metric.value for metric in result.metrics]
    print(data, name, epsilon, neighbours, seed, [round(v, 4) for v in found], file=sys.stderr)
    print(
        f"  fit {fitted:.0f} s, in all {time.process_time() - began:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    return found


def marginals(data: str, name: str, epsilon: float, neighbours: str, seed: int) -> list[float]:
    made = synthetic(data, name, epsilon, neighbours, seed)
    test = sfumato.load(f"{data}:test")
    result = sfumato.evaluate(made, test, metrics=["marginals.3way"], seed=seed)
    found = [metric.value for metric in result.metrics]
    print(data, name, epsilon, neighbours, seed, found, file=sys.stderr, flush=True)
    return found


def shown(rows: list[list[float]]) -> str:
    columns = zip(*rows, strict=True)
    return " | ".join(f"{statistics.mean(v):.3f} ({min(v):.3f}–{max(v):.3f})" for v in columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="adult,census,credit")
    parser.add_argument("--methods", default="merf,hp")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", default="1")
    parser.add_argument("--neighbours", default="replace-one")
    parser.add_argument("--marginals", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measure = marginals if arguments.marginals else scores
    head = ["3-way marginals (TV)"] if arguments.marginals else [m.split(".")[0] for m in METRICS]
    print("| δ = 1e-5, mean (range) | " + " | ".join(head) + " |\n|---|" + "---|" * len(head))
    for data in arguments.data.split(","):
        for name in arguments.methods.split(","):
            for epsilon in map(float, arguments.epsilons.split(",")):
                rows = [
                    measure(data, name, epsilon, arguments.neighbours, seed)
                    for seed in range(arguments.seeds)
                ]
                title = (
                    f"{data}, {name}, ε = {epsilon:g}, {arguments.neighbours}, {len(rows)} seeds"
                )
                print(f"| {title} | {shown(rows)} |", flush=True)
                if arguments.marginals:
                    published = (MARGINALS.get((data, name, epsilon), "–"),)
                elif epsilon == 1:
                    published = (*PUBLISHED.get((data, name), ("–", "–")), "", "")
                else:
                    continue
                numbers = " | ".join(f"*{p}*" if p else "" for p in published)
                print(f"| *{data}, {name}, ε = {epsilon:g}, published, replace-one* | {numbers} |")


if __name__ == "__main__":
    main()
