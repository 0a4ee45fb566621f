"""DP-DRE against DP-MGE where the private data are some classes of a public superset: their paper's setting, at a small size.

Private: three classes of the first half of a training set, unlabelled. Public: the second half, all classes; no record is in
both.
Both methods use the same codec (64 principal components of the public half). Compared with the test images of the three classes;
`FD` is the Fréchet distance and PRD the precision and recall of distributions, both in those 64 components instead of Inception's
features (with --inception in these); NDB in pixels. `weight` is the share of DRE's weight that falls on public records of the
right three classes. ε = 1000 stands for no privacy. Prints a Markdown table.

    python benchmarks/dre_modes.py [--data fashion-mnist] [--classes 1,7,8] [--seeds 1] [--epsilons 1000,10,3,1,0.1] [--inception]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

import sfumato
from sfumato.codecs import get_codec
from sfumato.data import Dataset

CODEC = "pca:64"
METRICS = {"fid": "FD", "prd.f8": "PRD F8", "prd.f1-8": "PRD F1/8", "ndb": "NDB/K"}


def halves(name: str, classes: list[int]) -> tuple[Dataset, Dataset, Dataset]:
    """Private, public, and held-out records."""
    train, test = (sfumato.load(f"{name}:{split}") for split in ("train", "test"))
    images, labels, half = train.images, train.labels, len(train) // 2
    private = Dataset.from_arrays(images[:half][np.isin(labels[:half], classes)], name="private")
    public = Dataset.from_arrays(
        images[half:], labels[half:], classes=train.schema.classes, name="public"
    )
    return private, public, Dataset.from_arrays(test.images[np.isin(test.labels, classes)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--classes", default="1,7,8")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epsilons", default="1000,10,3,1,0.1")
    parser.add_argument("--inception", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    classes = [int(c) for c in arguments.classes.split(",")]
    private, public, held_out = halves(arguments.data, classes)
    codec = get_codec(CODEC, public.schema, public=public)

    def components(pixels: Tensor) -> Tensor:
        return codec.encode(pixels)

    networks: dict[str, Callable[[Tensor], Tensor]] = {}
    if not arguments.inception:
        networks["fid-inception"] = components
    columns = ["weight", *METRICS.values(), "fit, s"]
    print(
        f"| {arguments.data}, private classes {arguments.classes} | " + " | ".join(columns) + " |"
    )
    print("|---|" + "---|" * len(columns))
    for epsilon in (float(e) for e in arguments.epsilons.split(",")):
        for name in ("dre", "mge"):
            rows = []
            for seed in range(arguments.seeds):
                began = time.perf_counter()
                method = sfumato.get_method(name)(codec=CODEC, seed=seed, grain=0.0)
                budget = sfumato.Budget(epsilon=epsilon, delta=1e-5)
                method.fit(private, budget, public=public)
                seconds = time.perf_counter() - began
                weight = float("nan")
                if name == "dre":
                    told = next(r for r in method.log_ if r["event"] == "weights")
                    weight = sum(told["of public classes"][c] for c in classes)
                sample = method.sample(len(held_out), seed=seed)
                found = sfumato.evaluate(
                    sample, held_out, metrics=list(METRICS), networks=networks, seed=seed
                ).metrics
                rows.append([weight, *(m.value for m in found), seconds])
                print(name, epsilon, seed, rows[-1], file=sys.stderr, flush=True)
            means = [statistics.mean(column) for column in zip(*rows, strict=True)]
            shown = ["–" if v != v else f"{v:.3g}" for v in means]
            print(
                f"| {method.info.title}, ε = {epsilon:g} | " + " | ".join(shown) + " |", flush=True
            )


if __name__ == "__main__":
    main()
