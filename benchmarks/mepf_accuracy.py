"""DP-MEPF on Fashion-MNIST and MNIST: accuracy on real test images of classifiers trained on synthetic ones, ε = 1.

Prints a Markdown table: mean over seeds and the range, beside the paper's own numbers (replace-one, its own accounting).

    python benchmarks/mepf_accuracy.py [--seeds 3] [--data fashion-mnist,mnist] [--neighbours replace-one,zero-out]
        [--metrics logreg,mlp] [--samples 20000] [--keep 1,0.9] [--set steps=500 …] [--runs FOLDER]

The public network is ImageNet's ResNet18, its input resized to 32 pixels;
all settings are the same for both data sets. Less grain than by default suits these two classifiers; a CNN wants more.
With --runs each fit is saved there and a finished one is not made again.
--keep: the share of the samples that stays (`sfumato sample --keep`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

import sfumato
from sfumato.methods import Mepf, Synthesizer

SETTINGS = {
    "encoder": "resnet18",
    "size": "32",
    "taps": "pixels,relu,layer1",
    "pool": "8",
    "balance": "true",
    "steps": "700",
    "learning_rate": "0.015",
    "grain": "0.05",
}
PUBLISHED = {  # thesis, app. D: DP-MEPF (φ1, φ2) at ε = 1
    "fashion-mnist": {"logreg": "75.4", "mlp": "74.7"},
    "mnist": {"logreg": "82.5", "mlp": "89.3"},
}


def cell(
    data: str, neighbours: str, seed: int, settings: dict[str, str], arguments: argparse.Namespace
) -> tuple[list[list[float]], float | None]:
    """Accuracies in per cent, and the processor seconds of the fit on one thread; None if some of it was there already."""
    train, test = (sfumato.load(f"{data}:{split}") for split in ("train", "test"))
    budget = sfumato.Budget(epsilon=1.0, delta=1e-5, neighbours=sfumato.Neighbours(neighbours))
    folder = Path(arguments.runs) / f"{data}-{neighbours}-{seed}" if arguments.runs else None
    whole, began = folder is None or not folder.exists(), time.process_time()
    if folder is not None and (folder / "manifest.json").exists():
        fitted = Synthesizer.load(folder)
    else:
        method = Mepf.from_settings(settings, seed=seed)
        fitted = method.fit(
            train, budget, out=folder, resume=folder is not None and folder.exists()
        )
    seconds = time.process_time() - began if whole else None
    found: list[list[float]] = []
    for keep in map(float, arguments.keep.split(",")):
        result = sfumato.evaluate(
            fitted.sample(arguments.samples, seed=seed, keep=keep),
            test,
            metrics=[f"accuracy.{m}" for m in arguments.metrics.split(",")],
            seed=seed,
        )
        found.append([100 * metric.value for metric in result.metrics])
    print(
        data,
        neighbours,
        seed,
        found,
        "–" if seconds is None else f"{seconds:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    return found, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", default="fashion-mnist,mnist")
    parser.add_argument("--neighbours", default="replace-one,zero-out")
    parser.add_argument("--metrics", default="logreg,mlp")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--keep", default="1,0.9")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--runs", help="keep the fits here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings = {**SETTINGS, **dict(pair.split("=", 1) for pair in arguments.set)}
    metrics = arguments.metrics.split(",")
    print("| ε = 1, δ = 1e-5 | " + " | ".join(metrics) + " | fit, s of one core |")
    print("|---|" + "---|" * (len(metrics) + 1))
    for data in arguments.data.split(","):
        for neighbours in arguments.neighbours.split(","):
            rows = [
                cell(data, neighbours, seed, settings, arguments) for seed in range(arguments.seeds)
            ]
            times = [s for _, s in rows if s is not None]
            seconds = f"{statistics.median(times):.0f}" if times else "–"
            for index, keep in enumerate(arguments.keep.split(",")):
                columns = list(zip(*(found[index] for found, _ in rows), strict=True))
                shown = [f"{statistics.mean(v):.1f} ({min(v):.1f}–{max(v):.1f})" for v in columns]
                title = f"{data}, {neighbours}, keep {keep}, seeds: {arguments.seeds}, mean (range)"
                print(f"| {title} | " + " | ".join(shown) + f" | {seconds} |", flush=True)
        published = PUBLISHED.get(data, {})
        shown = [f"*{published.get(m, '–')}*" for m in metrics]
        print(f"| *{data}, published, replace-one* | " + " | ".join(shown) + " | |", flush=True)


if __name__ == "__main__":
    main()
