"""Samples of one method at several ε, as one picture: a row of images for each ε, the same latent numbers in every row.

    python benchmarks/sample_grids.py [--method merf] [--epsilons 10,5,2,1,0.2] [--set KEY=VALUE …] [--out PICTURE]

Synthetic images only. Zero-out, δ = 1e-5, Fashion-MNIST, seed 0.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import sfumato
from sfumato.methods import get_method

PER_CLASS = 2


def chosen(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The first few images of each class, side by side, (height, width)."""
    picked = [images[labels == c][:PER_CLASS, 0] for c in range(int(labels.max()) + 1)]
    return np.concatenate([image for some in picked for image in some], axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="merf")
    parser.add_argument("--epsilons", default="10,5,2,1,0.2")
    parser.add_argument("--data", default="fashion-mnist:train")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    default = Path(__file__).parent.parent / "docs" / "images" / f"{arguments.method}-epsilons.png"
    data = sfumato.load(arguments.data)
    epsilons = arguments.epsilons.split(",")
    figure, axes = plt.subplots(len(epsilons), 1, figsize=(10, 0.62 * len(epsilons)))
    for axis, epsilon in zip(np.atleast_1d(axes), epsilons, strict=True):
        began = time.process_time()
        method = get_method(arguments.method).from_settings(
            dict(pair.split("=", 1) for pair in arguments.set), seed=0
        )
        method.fit(data, sfumato.Budget(epsilon=float(epsilon), delta=1e-5))
        made = method.sample(1_000, seed=0)
        assert made.labels is not None
        axis.imshow(chosen(made.images, made.labels), cmap="gray", vmin=0, vmax=255)
        axis.set(xticks=[], yticks=[])
        axis.set_ylabel(f"ε = {epsilon}", rotation=0, ha="right", va="center", fontsize=9)
        print(epsilon, f"{time.process_time() - began:.0f} s", file=sys.stderr, flush=True)
    figure.subplots_adjust(left=0.08, right=0.995, top=0.99, bottom=0.01, hspace=0.05)
    figure.savefig(arguments.out or default, dpi=100, metadata={"Software": None})


if __name__ == "__main__":
    main()
