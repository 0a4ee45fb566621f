"""What `sfumato check` may expect, from public sets alone: src/sfumato/methods/expected.toml.

    python benchmarks/expectations.py [--data runs/data]

*Curves*: the cells of `benchmarks/capacity.py` (mixture, logistic regression on samples) over n ÷ noise a class, with what the
same classifier reaches when it learns from the real records (`prepare.py quickdraw-ten` makes the drawings). *Signals*: how long
the mean summand of a release is against its bound, from fits with hardly any noise, on digits, font-digits and 8,000 rows of
Adult; for a release filed by class, of one class. The median of the sets is kept.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from pathlib import Path

import numpy as np
import torch
from capacity import DELTA, KEPT, SIZES, halves

import sfumato
from sfumato.data import Dataset
from sfumato.files import write_text
from sfumato.privacy.query import gaussian_noise

OUT = Path(__file__).parent.parent / "src" / "sfumato" / "methods" / "expected.toml"
FITTED = {
    "mixture": {},
    "merf": {"steps": 1},
    "hp": {"steps": 1},
    "mge": {},
}
LOUD = sfumato.Budget(epsilon=1000.0, delta=DELTA)


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
        classes = train.schema.n_classes
        lines += ["", "[[curve]]", f'set = "{name}"', f"classes = {classes}"]
        lines += [
            f"real = {real:.3f}",
            "# n ÷ noise a class, accuracy of a classifier trained on samples",
            "points = [",
        ]
        rows = []
        for (n, epsilon), got in points.items():
            noise = gaussian_noise(sfumato.Budget(epsilon=epsilon, delta=DELTA))
            rows.append((n / noise / classes, statistics.mean(got)))
        lines += [f"  [{r:.4g}, {accuracy:.3f}]," for r, accuracy in sorted(rows)]
        lines += ["]"]
    return lines


def stand_ins() -> list[Dataset]:
    adult = sfumato.load("adult:train")
    rows = adult.take(np.arange(8000))
    small = Dataset.from_values(rows.values.numpy(), rows.labels.numpy(), schema=adult.schema)
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
    write_text(OUT, "\n".join([*head, *signals(), *curves(arguments.data)]) + "\n")


if __name__ == "__main__":
    main()
