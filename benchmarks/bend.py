"""What bending samples does: one fit of the mixture, samples at several degrees, a CNN judged by records no fit saw.

    python benchmarks/bend.py [--sets NAME,…] [--epsilon E] [--degrees D,…]

Fitted to five sixths of a set's TRAINING images, judged by the last sixth: no test image is looked at. 20,000 samples, 5,000 of
small sets; the bends are a function of a public seed, the same for every set.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

import sfumato
from sfumato.data import Dataset

DELTA, SEED = 1e-5, 0
SETS = "mnist,font-digits,fashion-mnist,chest-xray"


def sixths(name: str) -> tuple[Dataset, Dataset]:
    whole = sfumato.load(f"{name}:train")
    rows = np.random.default_rng(SEED).permutation(len(whole))
    halves = (
        whole.take(np.sort(rows[len(rows) // 6 :])),
        whole.take(np.sort(rows[: len(rows) // 6])),
    )
    first, second = (
        Dataset.from_values(half.values.numpy(), half.labels.numpy(), schema=whole.schema)
        for half in halves
    )
    return first, second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--degrees", default="0,0.1,0.25,0.5,1")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    degrees = [float(degree) for degree in arguments.degrees.split(",")]
    shown = " | ".join(f"bend {degree:g}" for degree in degrees)
    print(f"| CNN, %: set, records fitted | {shown} |\n|---|{'---|' * len(degrees)}", flush=True)
    for name in arguments.sets.split(","):
        train, held = sixths(name)
        budget = sfumato.Budget(epsilon=arguments.epsilon, delta=DELTA)
        fitted = sfumato.Mixture(seed=SEED).fit(train, budget)
        scores = []
        for degree in degrees:
            fitted.bend = degree
            made = fitted.sample(20_000 if len(train) > 20_000 else 5_000, seed=SEED)
            scores.append(
                sfumato.evaluate(made, held, metrics=["accuracy.cnn"], seed=SEED).metrics[0].value
            )
        told = " | ".join(f"{100 * score:.1f}" for score in scores)
        print(f"| {name}, {len(train):,} | {told} |", flush=True)


if __name__ == "__main__":
    main()
