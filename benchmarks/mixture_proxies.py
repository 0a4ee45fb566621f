"""How the mixture's settings were chosen: variants on public stand-ins, at the noise per record of ε = 1 and 60,000 records.

The stand-ins are `font-digits` and `quickdraw` with its 345 things grouped in ten by k-means on their mean pictures; both are
public data. A set of n records is fitted with the ε at which noise ÷ n is that of 60,000 records at ε = 1, δ = 1e-5. Neither
Fashion-MNIST nor MNIST is read.

    python benchmarks/mixture_proxies.py [--seeds 1] [--samples 12000] [--variants default,…] [--jobs 2]
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import torch

import sfumato
from sfumato.data import Dataset
from sfumato.generators.mixture import RangeFit
from sfumato.methods import mixture
from sfumato.privacy.accounting import epsilon_of_gaussian

DELTA, RECORDS, NOISE = 1e-5, 60_000, 3.7306  # the noise multiplier of ε = 1 under zero-out
SHARES = ("_MEANS", "_POOLED", "_CLASSES", "_LLOYD")
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "means 25 %": dict(zip(SHARES, (0.25, 0.29, 0.21, 0.225), strict=True)),
    "pooled moment 20 %": dict(zip(SHARES, (0.095, 0.2, 0.4, 0.28), strict=True)),
    "clusters 15 %": dict(zip(SHARES, (0.095, 0.4, 0.33, 0.15), strict=True)),
    "clipped without range fit": {"range": False},
    "without residual": {"residual": 0.0},
    "refined": {"refine": True},
}


def stand_in(name: str) -> tuple[Dataset, Dataset]:
    train, test = (sfumato.load(f"{name}:{split}") for split in ("train", "test"))
    if name != "quickdraw":
        return train, test
    labels = train.labels
    assert labels is not None and test.labels is not None
    pixels = train.images.reshape(len(train), -1).astype(np.float32) / 255
    things = np.stack([pixels[labels == code].mean(0) for code in range(train.schema.n_classes)])
    centres = things[np.random.default_rng(0).choice(len(things), 10, replace=False)]
    for _ in range(50):
        group = ((things[:, None] - centres) ** 2).sum(2).argmin(1)
        centres = np.stack([things[group == k].mean(0) for k in range(10)])
    return tuple(  # type: ignore[return-value]
        Dataset.from_arrays(part.images, group[part.labels], classes=10, name=part.name)
        for part in (train, test)
    )


class _Plain(RangeFit):
    """Clipping as it comes."""

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        return raw


def cell(name: str, variant: str, seed: int, samples: int) -> list[float]:
    torch.set_num_threads(1)
    changes = VARIANTS[variant]
    for key, value in changes.items():
        if key.startswith("_"):
            setattr(mixture, key, value)
    train, test = stand_in(name)
    epsilon = epsilon_of_gaussian(RECORDS / len(train) / NOISE, DELTA)
    model = sfumato.Mixture(refine=changes.get("refine", False), seed=seed)
    model.fit(train, sfumato.Budget(epsilon=epsilon, delta=DELTA))
    if not changes.get("range", True):
        model.range_ = _Plain(**vars(model.range_))
    if "residual" in changes:
        residual = model.mixture_.residual * changes["residual"]
        model.mixture_ = dataclasses.replace(model.mixture_, residual=residual)
    synthetic = model.sample(samples, seed=seed)
    result = sfumato.evaluate(
        synthetic, test, metrics=["accuracy.logreg", "accuracy.cnn"], seed=seed
    )
    found = [100 * metric.value for metric in result.metrics]
    print(name, variant, seed, found, file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--samples", type=int, default=12_000)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--data", default="quickdraw,font-digits")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    names, variants = arguments.data.split(","), arguments.variants.split(",")
    # One cell a process: a variant changes the module's constants.
    with ProcessPoolExecutor(
        arguments.jobs,
        mp_context=multiprocessing.get_context("spawn"),
        max_tasks_per_child=1,
    ) as pool:
        futures = {
            (name, variant, seed): pool.submit(cell, name, variant, seed, arguments.samples)
            for name in names
            for variant in variants
            for seed in range(arguments.seeds)
        }
        done = {key: future.result() for key, future in futures.items()}
    print("| variant | " + " | ".join(f"{name}, LR | {name}, CNN" for name in names) + " |")
    print("|---|" + "---|" * (2 * len(names)))
    for variant in variants:
        shown = []
        for name in names:
            results = [done[name, variant, seed] for seed in range(arguments.seeds)]
            shown += [f"{statistics.mean(v):.1f}" for v in zip(*results, strict=True)]
        print(f"| {variant} | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    main()
