"""Every method that makes images, side by side: `sfumato compare` on one file a data set, as a short table and a picture.

    python benchmarks/every_method.py [examples/every-method.toml …] [--out runs] [--jobs 2]
                                      [--picture docs/images/every-method.png]

Each cell is the mean over seeds (and the range) of the accuracy, in per cent, on real test images of a classifier trained on
synthetic ones; below, in italics, what the papers report, with their own accounting and protocols. Finished cells are kept, so a
run that was interrupted goes on. The picture is the privacy–utility curve of the first file.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from pathlib import Path
from typing import Any

from sfumato.comparison import compare
from sfumato.comparison.config import read_config
from sfumato.methods import get_method

FILES = (
    "examples/every-method.toml",
    "examples/gradients-mnist.toml",
)
SHORT = {"accuracy.logreg": "LR", "accuracy.mlp": "MLP", "accuracy.cnn": "CNN"}


def cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    if row["published"]:
        return f"*{100 * row['mean']:.3g}*"
    spread = f" ({100 * row['low']:.1f}–{100 * row['high']:.1f})" if row["seeds"] > 1 else ""
    return f"{100 * row['mean']:.1f}{spread}"


def table(
    rows: list[dict[str, Any]], titles: dict[str, str], seconds: dict[str, list[float]], data: str
) -> list[str]:
    ours = [r for r in rows if not r["published"]]
    metrics = list(dict.fromkeys(r["metric"] for r in ours))
    epsilons = sorted({r["epsilon"] for r in ours})
    columns = [(e, m) for e in epsilons for m in metrics]
    found = {
        (r["method"], r["published"], column, r["metric"]): r
        for r in rows
        for column in epsilons
        if abs(r["epsilon"] / column - 1) < 0.05
    }
    heads = [f"ε = {e:g}: {SHORT.get(m, m)}" for e, m in columns]
    lines = [f"| {data} | " + " | ".join(heads) + " | fit, s (1 thread, wall clock) |"]
    lines.append("|---|" + "---|" * (len(heads) + 1))
    for name, title in titles.items():
        cells = [cell(found.get((name, False, *column))) for column in columns]
        took = f"{statistics.median(seconds[name]):.0f}" if seconds[name] else "–"
        lines.append(f"| {title} | {' | '.join(cells)} | {took} |")
    for name in dict.fromkeys(r["method"] for r in rows if r["published"]):
        cells = [cell(found.get((name, True, *column))) for column in columns]
        if any(c != "–" for c in cells):
            odd = {r["epsilon"] for r in rows if r["method"] == name and r["published"]} - set(
                epsilons
            )
            near = [e for e in odd if any(abs(e / column - 1) < 0.05 for column in epsilons)]
            at = f" at ε = {near[0]:g}" if near else ""
            lines.append(f"| *{name}, published{at}* | {' | '.join(cells)} | |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    for file in map(Path, arguments.files):
        config, out = read_config(file), arguments.out / file.stem
        outcome = compare(config, out, jobs=arguments.jobs)
        seconds: dict[str, list[float]] = {}
        for done in outcome.cells:
            # Known of the cells that were run now; what is kept in files has no times.
            known = outcome.seconds.get(done["key"])
            seconds.setdefault(done["name"], []).extend([known["fit"]] if known else [])
        titles = {
            name: f"{get_method(variant.method).info.title} (`{name}`)"
            for name, variant in config.variants.items()
            if name in seconds
        }
        data = f"{config.data}, {config.neighbours}, seeds: {len(config.seeds)}, {config.samples:,} images"
        print("\n".join(table(outcome.rows, titles, seconds, data)), flush=True)
        for failure in outcome.failures:
            print(f"\nFailed: {failure}")
        print()
        if arguments.picture and file == Path(arguments.files[0]):
            shutil.copyfile(out / "curve.png", arguments.picture)


if __name__ == "__main__":
    main()
