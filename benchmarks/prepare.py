"""Parts of named sets that some files of `benchmarks/accuracy` fit and judge, written once into `runs/data`.

    python benchmarks/prepare.py NAME …

- `fashion-mnist`: of its training images the first 30,000 and the last 10,000, to test on; and five sixths and every sixth one;
- `quickdraw-ten`: Quick, Draw! with its 345 things grouped in ten by k-means on their mean pictures, a public stand-in for a
  private set, and the ε at which its noise per record is that of 60,000 records at ε = 1 and 10.

No test split of Fashion-MNIST is read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import sfumato
from sfumato.data import Dataset
from sfumato.privacy import Budget, Charge, calibrate
from sfumato.privacy.accounting import epsilon_of_gaussian

DELTA, RECORDS = 1e-5, 60_000


def write(path: Path, data: Dataset, rows: np.ndarray, group: np.ndarray | None = None) -> None:
    assert data.labels is not None
    labels = data.labels[rows] if group is None else group[data.labels[rows]]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, images=data.images[rows], labels=labels)
    print(f"{path}: {len(rows):,} records")


def fashion(out: Path) -> None:
    train = sfumato.load("fashion-mnist:train")
    rows = np.arange(len(train))
    for name, kept in {
        "first-30000": rows < 30_000,
        "last-10000": rows >= 50_000,
        "five-sixths": rows % 6 != 5,
        "a-sixth": rows % 6 == 5,
    }.items():
        write(out / f"fashion-mnist-{name}.npz", train, np.flatnonzero(kept))


def quickdraw_ten(out: Path) -> None:
    train, test = (sfumato.load(f"quickdraw:{split}") for split in ("train", "test"))
    pixels = train.images.reshape(len(train), -1).astype(np.float32) / 255
    codes = range(train.schema.n_classes)
    things = np.stack([pixels[train.labels == code].mean(0) for code in codes])
    centres = things[np.random.default_rng(0).choice(len(things), 10, replace=False)]
    for _ in range(50):
        group = ((things[:, None] - centres) ** 2).sum(2).argmin(1)
        centres = np.stack([things[group == k].mean(0) for k in range(10)])
    for part, name in ((train, "train"), (test, "test")):
        write(out / f"quickdraw-ten-{name}.npz", part, np.arange(len(part)), group)
    for epsilon in (1.0, 10.0):
        print(f"noise of ε = {epsilon:g}: fit at ε = {stand_in_epsilon(len(train), epsilon):.3g}")


def stand_in_epsilon(records: int, epsilon: float) -> float:
    """The ε at which noise ÷ records is that of 60,000 records at `epsilon`, zero-out."""
    budget = Budget(epsilon=epsilon, delta=DELTA)
    noise = calibrate(lambda m: (Charge(label="x", bound=1.0, noise_multiplier=m),), budget)
    return epsilon_of_gaussian(RECORDS / records / noise, DELTA)


NAMES = {"fashion-mnist": fashion, "quickdraw-ten": quickdraw_ten}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("runs/data"))
    arguments = parser.parse_args()
    for name in arguments.names:
        NAMES[name](arguments.out)


if __name__ == "__main__":
    main()
