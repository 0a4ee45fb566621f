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

from sfumato.report.comparison import Outcome, parse_config
from sfumato.report.export import compact
from sfumato.report.grid import compare

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


def table(outcome: Outcome) -> list[str]:
    """The compact table of `sfumato compare --markdown`, and how long a fit took."""
    found, config = compact(outcome), outcome.config
    lines = [_line([found.title, *found.columns[1:], "fit, s (1 thread, wall clock)"])]
    lines.append("|---|" + "---|" * len(found.columns))
    for place, row in enumerate(found.rows):
        if place in found.slanted:
            lines.append(_line([*(c if c == "–" else f"*{c}*" for c in row), ""]))
            continue
        name = list(config.variants)[place]
        # Known of the cells that were run now; what is kept in files has no times.
        keys = [c["key"] for c in outcome.cells if c["name"] == name]
        took = [outcome.seconds[key]["fit"] for key in keys if key in outcome.seconds]
        lines.append(_line([*row, f"{statistics.median(took):.0f}" if took else "–"]))
    return lines


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


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
