"""The mixture's capacity over a grid of records and ε, beside noisy class means: cells as small JSON files, a table, a picture.

    python benchmarks/capacity.py [--sets NAME,…] [--epsilons E,…] [--picture PNG] [--only-show]

A cell is a set, a number of its training records, ε (δ = 1e-5, zero-out) and a seed: `mixture` with its defaults, and *noisy
class means*, the least that a method must beat: one release of class sums around mid-gray and counts with the whole budget, every
sample its class's mean. Logistic regression trained on 4,000 samples, scored on records that no fit saw.

Public stand-ins: `font-digits`, Quick, Draw! in ten groups (`prepare.py quickdraw-ten`); of sets whose results are reported
elsewhere a part of the *training* records is held out and the test records are not read: every fifth of `digits`, every sixth
of Fashion-MNIST's (`prepare.py fashion-mnist`). Cells that are kept in `benchmarks/results/capacity` are not made again.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch

import sfumato
from sfumato.data import Dataset
from sfumato.files import write_json
from sfumato.methods.capacity import capacity_of
from sfumato.privacy.query import gaussian_noise
from sfumato.public.linear import schema_codec

HERE = Path(__file__).parent
KEPT = HERE / "results" / "capacity"
SAMPLES, DELTA, COUNT = 4000, 1e-5, 0.4
SIZES = {
    "digits": (500, 1149),
    "font-digits": (500, 1500, 5740),
    "quickdraw-ten": (500, 5000, 27_600),
    "fashion-mnist": (50_000,),
}
EPSILONS = (0.2, 1.0, 3.0, 10.0)


def of_arrays(images: np.ndarray, labels: np.ndarray, classes: int) -> Dataset:
    return Dataset.from_arrays(images, labels, classes=classes)


def halves(name: str, data: Path) -> tuple[Dataset, Dataset]:
    """Records to fit and records to judge by."""
    if name == "digits":
        train = sfumato.load("digits:train")
        out = np.arange(len(train)) % 5 == 4
        parts = [(train.images[rows], train.labels[rows]) for rows in (~out, out)]
    elif name == "font-digits":
        return sfumato.load("font-digits:train"), sfumato.load("font-digits:test")
    else:
        ends = {"quickdraw-ten": ("train", "test"), "fashion-mnist": ("five-sixths", "a-sixth")}
        files = [np.load(data / f"{name}-{end}.npz") for end in ends[name]]
        parts = [(file["images"], file["labels"]) for file in files]
    train, test = (of_arrays(images, labels, 10) for images, labels in parts)
    return train, test


def some(data: Dataset, n: int, seed: int) -> Dataset:
    rows = np.random.default_rng(seed).permutation(len(data))[:n]
    return of_arrays(data.images[rows], data.labels[rows], data.schema.n_classes)


def noisy_means(data: Dataset, budget: sfumato.Budget) -> Dataset:
    """Records of length at most ½√pixels around mid-gray, with a count beside them, filed by class."""
    rows = data.images.reshape(len(data), -1) / 255 - 0.5
    radius = 0.5 * math.sqrt(rows.shape[1])
    noise = np.random.default_rng()
    std = gaussian_noise(budget) * math.hypot(1, COUNT)
    classes = data.schema.n_classes
    means = []
    for code in range(classes):
        own = rows[data.labels == code]
        total = own.sum(0) + radius * noise.normal(0, std, rows.shape[1])
        count = len(own) + noise.normal(0, std) / COUNT
        means.append(np.clip(total / max(count, 1.0) + 0.5, 0, 1))
    labels = np.arange(SAMPLES) % classes
    images = np.rint(255 * np.stack(means)).astype(np.uint8).reshape(-1, *data.images.shape[1:])
    return of_arrays(images[labels], labels, classes)


def cell(train: Dataset, test: Dataset, n: int, epsilon: float, seed: int) -> dict[str, object]:
    budget = sfumato.Budget(epsilon=epsilon, delta=DELTA)
    given = some(train, n, seed)

    def score(made: Dataset) -> float:
        return sfumato.evaluate(made, test, metrics=["accuracy.logreg"], seed=seed).metrics[0].value

    fitted = sfumato.Mixture(seed=seed).fit(given, budget)
    size = capacity_of(schema_codec(train.schema).dim, 10, n, gaussian_noise(budget))
    return {
        "mixture": round(score(fitted.sample(SAMPLES, seed=seed)), 4),
        "noisy class means": round(score(noisy_means(given, budget)), 4),
        "chosen": size.why,
    }


def found(name: str, n: int, epsilon: float, seed: int) -> Path:
    return KEPT / f"{name}-{n}-{epsilon:g}-{seed}.json"


def table(cells: dict[tuple[str, int, float], list[dict[str, float]]]) -> list[str]:
    epsilons = sorted({key[2] for key in cells})
    lines = ["| set, records fitted | " + " | ".join(f"ε = {e:g}" for e in epsilons) + " |"]
    lines.append("|---|" + "---|" * len(epsilons))
    for name, n in dict.fromkeys(key[:2] for key in cells):
        row = []
        for epsilon in epsilons:
            got = cells.get((name, n, epsilon))
            if not got:
                row.append("–")
                continue
            ours, plain = (
                100 * float(np.mean([c[key] for c in got]))
                for key in ("mixture", "noisy class means")
            )
            row.append(f"**{ours:.1f}** / {plain:.1f}")
        lines.append(f"| {name}, {n:,} | " + " | ".join(row) + " |")
    return lines


def picture(cells: dict[tuple[str, int, float], list[dict[str, float]]], path: Path) -> None:
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(key[0] for key in cells))
    figure, axes = plt.subplots(
        1, len(names), figsize=(3.1 * len(names), 3), sharey=True, layout="constrained"
    )
    for axis, name in zip(np.atleast_1d(axes), names, strict=True):
        for shade, n in enumerate(sorted({key[1] for key in cells if key[0] == name})):
            points = sorted((k[2], got) for k, got in cells.items() if k[:2] == (name, n))
            for kind, style in (("mixture", "o-"), ("noisy class means", "x:")):
                means = [100 * float(np.mean([c[kind] for c in got])) for _, got in points]
                label = f"{n:,} records" if kind == "mixture" else None
                axis.plot([e for e, _ in points], means, style, color=f"C{shade}", label=label)
        axis.set_xscale("log")
        axis.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
        axis.minorticks_off()
        axis.set(title=name, xlabel="ε", ylim=(0, 100))
        axis.legend(fontsize=7, loc="lower right")
    np.atleast_1d(axes)[0].set_ylabel("logistic regression, %")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default=",".join(SIZES))
    parser.add_argument("--epsilons", default=",".join(f"{e:g}" for e in EPSILONS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path("runs/data"))
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--only-show", action="store_true", help="make no cell")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cells: dict[tuple[str, int, float], list[dict[str, float]]] = {}
    for name in arguments.sets.split(","):
        parts = None
        for n in SIZES[name]:
            for epsilon in map(float, arguments.epsilons.split(",")):
                for seed in range(arguments.seeds):
                    path = found(name, n, epsilon, seed)
                    if not path.exists() and not arguments.only_show:
                        parts = parts or halves(name, arguments.data)
                        write_json(path, cell(*parts, n, epsilon, seed))
                    if path.exists():
                        got = json.loads(path.read_text(encoding="utf-8"))
                        cells.setdefault((name, n, epsilon), []).append(got)
    print("\n".join(table(cells)))
    if arguments.picture:
        picture(cells, arguments.picture)


if __name__ == "__main__":
    main()
