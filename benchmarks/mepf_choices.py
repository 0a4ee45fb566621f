"""DP-MEPF's choices, one at a time: encoders and what they were trained on, and each switch, at a small size.

    python benchmarks/mepf_choices.py [--records 30000] [--steps 250] [--seeds 1] [--rows NAME,…] [--pretraining 600]

Private: the first 30,000 training images of Fashion-MNIST; judged on the last 10,000 of the training set, so that nothing here is
chosen by the test set. ε = 1, δ = 1e-5, zero-out unless a row says otherwise. Public data, where a row needs some: Quick Draw.
The base is the setting of mepf_accuracy.py without `warp` and `checked`, which are rows of their own.
The small ResNets differ in their public set alone (`sfumato pretrain --kind extractor`, 600 steps of 64 images).
Differences of a point between rows of one seed say little.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import sfumato
from sfumato.data import Dataset
from sfumato.methods import Mepf
from sfumato.privacy import calibrate
from sfumato.public.pretraining import Schedule, pretrain_extractor

BASE: dict[str, Any] = {
    "encoder": "resnet18",
    "size": 32,
    "taps": "pixels,relu,layer1",
    "pool": 8,
    "balance": True,
    "learning_rate": 0.015,
    "warp": 0.0,
    "checked": False,
    "grain": 0.08,
}
ROWS: dict[str, dict[str, Any]] = {
    "the base: ResNet18, ImageNet": {},
    "ResNet18, trained on CIFAR-10": {"encoder": "resnet18-cifar10"},
    "VGG16, ImageNet": {"encoder": "vgg16", "taps": "pixels,relu1_2,relu2_2"},
    "scattering: no public data": {
        "encoder": "scattering",
        "taps": None,
        "size": None,
        "pool": None,
    },
    "small ResNet, trained on Quick Draw": {"public_set": "quickdraw:train"},
    "small ResNet, trained on CIFAR-10": {"public_set": "cifar10:train"},
    "small ResNet, trained on font digits": {"public_set": "font-digits:train"},
    "trained on the private data": {
        "encoder": "private",
        "taps": None,
        "size": None,
    },
    "φ₁ alone": {"moments": 1},
    "without balance": {"balance": False},
    "centred on Quick Draw's mean": {"centre": True, "public": True},
    "early stopping": {"stop": True},
    "moving-average loss": {"loss": "moving-average", "average_rate": 0.05},
    "mmd loss": {"loss": "mmd"},
    "rare directions stretched (weigh 0.5)": {"weigh": 0.5},
    "DP-MERF's generator (network=conv)": {"network": "conv"},
    "pictures moved (warp 0.07)": {"warp": 0.07},
    "samples checked": {"checked": True},
    "moved and checked": {"warp": 0.07, "checked": True, "grain": 0.05},
    "replace-one": {"neighbours": "replace-one"},
    "replace-one, priced at 2 instead of √2": {"neighbours": "replace-one", "dear": True},
}


def extractor(public_set: str, folder: Path, steps: int) -> dict[str, Any]:
    """The settings of an encoder that learns from a public set first."""
    path = folder / f"{public_set.replace(':', '-')}.safetensors"
    if not path.exists():
        pretrain_extractor(sfumato.load(public_set), path, Schedule(steps=steps))
    return {"encoder": str(path), "taps": "pixels,stem,stage1.1,stage2.1", "size": None}


def dear(method: Mepf, schema: sfumato.Schema, budget: sfumato.Budget) -> sfumato.Budget:
    """The budget whose noise is √2 times that of `budget`: what a sensitivity of 2 would ask for."""

    def noise(epsilon: float) -> float:
        return calibrate(
            lambda multiplier: method.plan(schema, multiplier),
            sfumato.Budget(epsilon=epsilon, delta=budget.delta, neighbours=budget.neighbours),
        )

    wanted, low, high = 2**0.5 * noise(budget.epsilon), 0.3 * budget.epsilon, budget.epsilon
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if noise(middle) < wanted else (middle, high)
    return sfumato.Budget(epsilon=high, delta=budget.delta, neighbours=budget.neighbours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=30_000)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--pretraining", type=int, default=600, help="steps of the small ResNets")
    parser.add_argument("--rows", help="the rows whose names hold one of these words")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train = sfumato.load("fashion-mnist:train")
    images, labels, classes = train.images, train.labels, train.schema.classes
    assert labels is not None
    n = arguments.records
    private = Dataset.from_arrays(images[:n], labels[:n], classes=classes, name="private")
    held_out = Dataset.from_arrays(images[50_000:], labels[50_000:], classes=classes)
    public = sfumato.load("quickdraw:train")
    print(
        f"| ε = 1, {n:,} records, {arguments.steps} steps, seeds: {arguments.seeds} | LR | MLP | fit, CPU s |"
    )
    print("|---|---|---|---|")
    wanted = arguments.rows.split(",") if arguments.rows else [""]
    kept = tempfile.TemporaryDirectory()
    for name, changed in ROWS.items():
        if not any(word in name for word in wanted):
            continue
        found = []
        for seed in range(arguments.seeds):
            settings = {**BASE, **changed, "steps": arguments.steps, "seed": seed}
            relation = sfumato.Neighbours(settings.pop("neighbours", "zero-out"))
            public_set = settings.pop("public_set", None)
            if public_set is not None:
                settings |= extractor(public_set, Path(kept.name), arguments.pretraining)
            costly, uses = settings.pop("dear", False), settings.pop("public", False)
            method = Mepf(**settings)
            budget = sfumato.Budget(epsilon=1.0, delta=1e-5, neighbours=relation)
            if costly:
                budget = dear(method, private.schema, budget)
            began = time.process_time()
            method.fit(private, budget, public=public if uses else None)
            seconds = time.process_time() - began
            result = sfumato.evaluate(
                method.sample(5_000, seed=seed),
                held_out,
                metrics=["accuracy.logreg", "accuracy.mlp"],
                seed=seed,
            )
            found.append([*(100 * m.value for m in result.metrics), seconds])
            print(name, seed, found[-1], file=sys.stderr, flush=True)
        means = [statistics.mean(column) for column in zip(*found, strict=True)]
        print(f"| {name} | {means[0]:.1f} | {means[1]:.1f} | {means[2]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
