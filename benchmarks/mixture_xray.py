"""The mixture on a small medical set: chest X-rays (2,532 records, 64 px), a CNN trained on samples, tested on real images.

Prints a Markdown table of the area under the ROC curve and accuracy; chance is 50 for the first, for the second the share of the
larger class.

    python benchmarks/mixture_xray.py [--epsilons 1,3,10] [--seeds 3] [--samples 5000] [--refine no]
"""

from __future__ import annotations

import argparse
import statistics
import sys

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

import sfumato
from sfumato.data import Dataset
from sfumato.evaluation.classifiers import ConvNet


def judged(synthetic: Dataset, test: Dataset, seed: int) -> tuple[float, float]:
    """Area under the ROC curve and accuracy, in per cent, on the real test images."""
    classifier = ConvNet(seed)
    pixels = torch.from_numpy(synthetic.images).float() / 255
    assert synthetic.labels is not None and test.labels is not None
    classifier.fit(pixels, torch.from_numpy(synthetic.labels), 2, lambda _: None)
    with torch.no_grad():
        parts = (torch.from_numpy(test.images).float() / 255).split(500)
        logits = torch.cat([classifier.network_(part) for part in parts])
    scores = (logits[:, 1] - logits[:, 0]).numpy()
    return 100 * float(roc_auc_score(test.labels, scores)), 100 * float(
        np.mean((scores > 0) == test.labels)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilons", default="1,3,10")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--refine", choices=["no", "yes"], default="no")
    arguments = parser.parse_args()
    train, test = (sfumato.load(f"chest-xray:{split}") for split in ("train", "test"))
    assert test.labels is not None
    print("| chest-xray, 64 px, δ = 1e-5, zero-out | AUC | accuracy |")
    print("|---|---|---|")
    for epsilon in (float(e) for e in arguments.epsilons.split(",")):
        found = []
        for seed in range(arguments.seeds):
            model = sfumato.Mixture(refine=arguments.refine == "yes", seed=seed)
            model.fit(train, sfumato.Budget(epsilon=epsilon, delta=1e-5))
            found.append(judged(model.sample(arguments.samples, seed=seed), test, seed))
            print(epsilon, seed, found[-1], file=sys.stderr, flush=True)
        shown = [
            f"{statistics.mean(v):.1f} ({min(v):.1f}–{max(v):.1f})"
            for v in zip(*found, strict=True)
        ]
        print(
            f"| ε = {epsilon:g}, {arguments.seeds} seeds: mean (range) | "
            + " | ".join(shown)
            + " |"
        )
    larger = 100 * max(np.bincount(test.labels)) / len(test)
    print(f"| *larger class* | *50.0* | *{larger:.1f}* |")


if __name__ == "__main__":
    main()
