"""The mixture in the latent of a public autoencoder, against the mixture of pixels: classifiers trained on samples.

The autoencoder saw Quick, Draw! only; it is trained first (minutes) unless `--codec` names its file. "Axes" means that the
latent's axes are ordered by public drawings. Font digits are taken for private, or five sixths of a named training set
(`--data fashion-mnist`) whose last sixth is the test: of named sets, only the font digits' test split is read. Markdown table.

    python benchmarks/mixture_latent.py [--codec FILE] [--data font-digits] [--epsilons 1,10] [--seeds 1] [--refine]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import sfumato
from sfumato.data import Dataset
from sfumato.public.pretraining import Schedule, pretrain_codec

PUBLIC, STEPS = "quickdraw:train", 1200


def parts(name: str) -> tuple[Dataset, Dataset]:
    """Private records, and others to test on."""
    train = sfumato.load(f"{name}:train")
    if name == "font-digits":
        return train, sfumato.load(f"{name}:test")
    held = np.arange(len(train)) % 6 == 5
    return tuple(  # type: ignore[return-value]
        Dataset.from_arrays(
            train.images[rows], train.labels[rows], classes=train.schema.classes, name=title
        )
        for rows, title in ((~held, f"{name}, five sixths"), (held, f"{name}, a sixth"))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codec", type=Path)
    parser.add_argument("--data", default="font-digits")
    parser.add_argument("--epsilons", default="1,10")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--metrics", default="logreg,cnn")
    parser.add_argument("--refine", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        public = sfumato.load(PUBLIC)
        path = arguments.codec
        if path is None:
            path = Path(folder) / "codec.safetensors"
            pretrain_codec(public, path, Schedule(steps=STEPS))
        compare(
            arguments,
            {"pixels": (None, None), "latent": (path, None), "latent, axes": (path, public)},
        )


def compare(
    arguments: argparse.Namespace, kinds: dict[str, tuple[Path | None, Dataset | None]]
) -> None:
    private, test = parts(arguments.data)
    names = arguments.metrics.split(",")
    kind = "refined" if arguments.refine else "plain"
    print(f"| {arguments.data}, {kind}, δ = 1e-5, zero-out | " + " | ".join(names) + " | CPU s |")
    print("|---|" + "---|" * (len(names) + 1))
    for epsilon in (float(e) for e in arguments.epsilons.split(",")):
        for title, (path, public) in kinds.items():
            rows = []
            for seed in range(arguments.seeds):
                began = time.process_time()
                codec = None if path is None else str(path)
                model = sfumato.Mixture(codec=codec, refine=arguments.refine, seed=seed)
                model.fit(private, sfumato.Budget(epsilon=epsilon, delta=1e-5), public=public)
                sample = model.sample(arguments.samples, seed=seed)
                seconds = time.process_time() - began
                metrics = [f"accuracy.{name}" for name in names]
                found = sfumato.evaluate(sample, test, metrics=metrics, seed=seed).metrics
                rows.append([*(100 * m.value for m in found), seconds])
                print(title, epsilon, seed, rows[-1], file=sys.stderr, flush=True)
            shown = [f"{statistics.mean(column):.1f}" for column in zip(*rows, strict=True)]
            print(f"| {title}, ε = {epsilon:g} | " + " | ".join(shown) + " |", flush=True)
    print(f"\nMean of {arguments.seeds} seed(s), {arguments.samples:,} samples.")


if __name__ == "__main__":
    main()
