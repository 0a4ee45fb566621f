"""What `sfumato check` may expect, from public sets alone: src/sfumato/methods/expected.toml.

    python benchmarks/expectations.py [--data runs/data]

*Curves*: the cells of `benchmarks/capacity.py` (mixture, logistic regression on samples) over n ÷ noise a class, with what the
same classifier reaches when it learns from the real records (`prepare.py quickdraw-ten` makes the drawings); of tables the area
under the ROC curve, of Adult and Census, on 10,000 of the *training* rows that no fit saw. *Signals*: how long
the mean summand of a release is against its bound, from fits with hardly any noise, on digits, font-digits and 8,000 rows of
Adult; for a release filed by class, of one class. The median of the sets is kept.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from itertools import product
from pathlib import Path

import numpy as np
import torch
from capacity import DELTA, EPSILONS, KEPT, SIZES, halves

import sfumato
from sfumato.data import Dataset
from sfumato.files import write_json, write_text
from sfumato.privacy.query import gaussian_noise

TABLES = {"adult": (500, 2_000, 8_000, 22_000), "census": (2_000, 20_000, 150_000)}
HELD_OUT, SAMPLES, AREA = 10_000, 10_000, "roc.logreg"
OUT = Path(__file__).parent.parent / "src" / "sfumato" / "methods" / "expected.toml"
FITTED = {
    "mixture": {},
    "merf": {"steps": 1},
    "hp": {"steps": 1},
    "mge": {},
}
LOUD = sfumato.Budget(epsilon=1000.0, delta=DELTA)


def curve(name: str, kind: str, classes: int, real: float, points: dict) -> list[str]:
    """One set: `points` are scores by number of records and ε."""
    what = "area under the ROC curve" if kind == "table" else "accuracy"
    lines = ["", "[[curve]]", f'set = "{name}"', f'kind = "{kind}"', f"classes = {classes}"]
    lines += [
        f"real = {real:.3f}",
        f"# n ÷ noise a class, {what} of a classifier trained on samples",
    ]
    rows = []
    for (n, epsilon), got in points.items():
        noise = gaussian_noise(sfumato.Budget(epsilon=epsilon, delta=DELTA))
        rows.append((n / noise / classes, statistics.mean(got)))
    return [*lines, "points = [", *(f"  [{r:.4g}, {score:.3f}]," for r, score in sorted(rows)), "]"]


def of_tables() -> list[str]:
    """By cells of their own, which are kept; what is kept is not made again."""
    lines = []
    for name, sizes in TABLES.items():
        whole = sfumato.load(f"{name}:train")
        rows = np.random.default_rng(0).permutation(len(whole))
        held, fitted = taken(whole, rows[:HELD_OUT]), rows[HELD_OUT:]
        points: dict[tuple[int, float], list[float]] = {}
        for n, epsilon, seed in product(sizes, EPSILONS, range(2)):
            path = KEPT / f"{name}-{n}-{epsilon:g}-{seed}.json"
            if not path.exists():
                spent = sfumato.Budget(epsilon=epsilon, delta=DELTA)
                made = sfumato.Mixture(seed=seed).fit(taken(whole, fitted[:n]), spent)
                write_json(path, {"mixture": score(made.sample(SAMPLES, seed=seed), held)})
            cell = json.loads(path.read_text(encoding="utf-8"))
            points.setdefault((n, epsilon), []).append(cell["mixture"])
        real = score(taken(whole, fitted), held)
        lines += curve(name, "table", whole.schema.n_classes, real, points)
    return lines


def score(made: Dataset, held: Dataset) -> float:
    """Where noise left one class alone, there is nothing to learn: a guess."""
    if len(np.unique(made.labels)) < 2:
        return 0.5
    return sfumato.evaluate(made, held, metrics=[AREA]).metrics[0].value


def taken(data: Dataset, rows: np.ndarray) -> Dataset:
    some = data.take(rows)
    return Dataset.from_values(some.values.numpy(), some.labels.numpy(), schema=data.schema)


def curves(data: Path) -> list[str]:
    lines = []
    for name, sizes in SIZES.items():
        points: dict[tuple[int, float], list[float]] = {}
        for file in sorted(KEPT.glob(f"{name}-*.json")):
            found = re.fullmatch(rf"{name}-(\d+)-([\d.]+)-\d+", file.stem)
            if found and int(found[1]) in sizes:
                cell = json.loads(file.read_text(encoding="utf-8"))
                points.setdefault((int(found[1]), float(found[2])), []).append(cell["mixture"])
        if not points:
            continue
        train, test = halves(name, data)
        real = sfumato.evaluate(train, test, metrics=["accuracy.logreg"]).metrics[0].value
        lines += curve(name, "images", train.schema.n_classes, real, points)
    return lines


def stand_ins() -> list[Dataset]:
    small = taken(sfumato.load("adult:train"), np.arange(8000))
    return [sfumato.load("digits:train"), sfumato.load("font-digits:train"), small]


def signals() -> list[str]:
    found: dict[str, dict[str, list[float]]] = {}
    for data in stand_ins():
        for name, settings in FITTED.items():
            method = sfumato.get_method(name)
            if data.schema.kind not in method.info.kinds:
                continue
            model = method(**settings).fit(data, LOUD)
            for release in model._store.releases():
                value, segments = release.value, len(release.value)
                length = float(value.norm()) * math.sqrt(segments)
                each = length / (len(data) * release.charge.bound)
                found.setdefault(name, {}).setdefault(release.label, []).append(each)
    lines = []
    for name, labels in found.items():
        lines += ["", f"[signal.{name}]"]
        lines += [f'"{label}" = {statistics.median(got):.2g}' for label, got in labels.items()]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("runs/data"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    head = [
        "# Made by `python benchmarks/expectations.py` from public sets; what it means is said there.",
    ]
    write_text(OUT, "\n".join([*head, *signals(), *curves(arguments.data), *of_tables()]) + "\n")


if __name__ == "__main__":
    main()
