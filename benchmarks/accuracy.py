"""Accuracy: `sfumato compare` on TOML files, as a short Markdown table for each, and a picture of the first.

    python benchmarks/accuracy.py FILE.toml … [--vary KEY=VALUE,VALUE …] [--only WORD,…] [--out runs] [--jobs 2] [--picture PNG]

Each cell is the mean over seeds and the range, accuracies in per cent; below, in italics, what the papers report, with their own
accounting and protocols. `--vary` runs every file once for each combination of these top-level keys (`data`, `neighbours`,
`keep`, `epsilons`, …), `--only` the methods whose names hold one of the words. Finished cells are kept in `--out`, so a run
that was interrupted goes on. What a file needs besides named sets, its first lines say.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

from sfumato.methods import get_method
from sfumato.report.comparison import Outcome, parse_config
from sfumato.report.grid import compare

SHORT = {"accuracy.logreg": "LR", "accuracy.mlp": "MLP", "accuracy.cnn": "CNN"}
LISTS = ("epsilons", "seeds")


def value_of(text: str) -> Any:
    """A number if it is one, else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def variations(vary: list[str]) -> list[dict[str, Any]]:
    """What each combination of `KEY=VALUE,VALUE` sets."""
    named = [
        [(key, [v] if key in LISTS else v) for v in map(value_of, values.split(","))]
        for key, _, values in (pair.partition("=") for pair in vary)
    ]
    return [dict(chosen) for chosen in product(*named)]


def chosen(methods: Any, words: list[str]) -> Any:
    """The methods of a file whose names hold one of the words."""
    if isinstance(methods, dict):
        return {n: m for n, m in methods.items() if any(w in n for w in words)}
    return [m for m in methods if any(w in m.get("label", m["name"]) for w in words)]


def cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    scale, form = (100, ".1f") if row["metric"].startswith("accuracy.") else (1, ".4g")
    if row["published"]:
        digits = max(0, len(row["printed"].partition(".")[2]) - (2 if scale == 100 else 0))
        return f"*{scale * row['mean']:.{digits}f}*"
    mean, low, high = (f"{scale * row[edge]:{form}}" for edge in ("mean", "low", "high"))
    return f"{mean} ({low}–{high})" if row["seeds"] > 1 else mean


def table(outcome: Outcome) -> list[str]:
    config, rows = outcome.config, outcome.rows
    ours = [r for r in rows if not r["published"]]
    metrics = list(dict.fromkeys(r["metric"] for r in ours))
    columns = [(e, m) for e in config.epsilons for m in metrics]
    found = {
        (r["method"], r["published"], column, r["metric"]): r
        for r in rows
        for column in config.epsilons
        if r["epsilon"] is not None and abs(r["epsilon"] / column - 1) < 0.05
    }
    kept = "" if config.keep == 1 else f", keep {config.keep:g}"
    what = f"seeds: {len(config.seeds)}, {config.samples:,} samples{kept}"
    heads = [f"ε = {e:g}: {SHORT.get(m, m)}" for e, m in columns]
    first = f"{config.data}, {config.neighbours}, δ = {config.delta:g}, {what}"
    lines = [f"| {first} | " + " | ".join(heads) + " | fit, s (1 thread, wall clock) |"]
    lines.append("|---|" + "---|" * (len(heads) + 1))
    for name, variant in config.variants.items():
        # Known of the cells that were run now; what is kept in files has no times.
        keys = [c["key"] for c in outcome.cells if c["name"] == name]
        took = [outcome.seconds[key]["fit"] for key in keys if key in outcome.seconds]
        title = get_method(variant.method).info.title
        cells = [cell(found.get((name, False, *column))) for column in columns]
        seconds = f"{statistics.median(took):.0f}" if took else "–"
        lines.append(f"| {title} (`{name}`) | {' | '.join(cells)} | {seconds} |")
    for name in dict.fromkeys(r["method"] for r in rows if r["published"]):
        cells = [cell(found.get((name, True, *column))) for column in columns]
        if any(c != "–" for c in cells):
            theirs = {r["epsilon"] for r in rows if r["method"] == name and r["published"]}
            odd = theirs - {None, *config.epsilons}
            near = [e for e in odd if any(abs(e / ours - 1) < 0.05 for ours in config.epsilons)]
            at = f" at ε = {near[0]:g}" if near else ""
            lines.append(f"| *{name}, published{at}* | {' | '.join(cells)} | |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.toml")
    parser.add_argument("--vary", nargs="*", default=[], metavar="KEY=VALUE,VALUE")
    parser.add_argument("--only", default="", help="the methods whose names hold one of the words")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--picture", type=Path, help="the first privacy–utility curve")
    arguments = parser.parse_args()
    for file, changes in product(arguments.files, variations(arguments.vary)):
        given = tomllib.loads(file.read_text(encoding="utf-8")) | changes
        given["methods"] = chosen(given["methods"], arguments.only.split(","))
        names = (str(v).strip("[]").replace("/", "-") for v in changes.values())
        outcome = compare(
            parse_config(given), arguments.out / "-".join([file.stem, *names]), jobs=arguments.jobs
        )
        print("\n".join(table(outcome)), flush=True)
        for failure in outcome.failures:
            print(f"\nFailed: {failure}")
        print()
        if arguments.picture:
            shutil.copyfile(outcome.folder / "curve.png", arguments.picture)
            arguments.picture = None


if __name__ == "__main__":
    main()
