"""Tables of the papers, from the cells that are filed in `benchmarks/results/papers`: nothing is run, so it takes seconds.

    python benchmarks/papers.py [NAME …]     such as merf/table-3; without a name, all of which there are cells

Cells come from `sfumato reproduce NAME --out benchmarks/results/papers/NAME-WITH-A-DASH …`, a part at a time (`--seeds`,
`--data`, `--epsilons`, `--only`, `--metrics`); whoever has time goes on there. Rows of metrics that no cell has are left out, and
each row says of how many seeds it is. A cell counts while its settings are still those of the table.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from sfumato.methods import get_method
from sfumato.report.comparison import Config, Outcome, rows_of
from sfumato.report.export import as_markdown
from sfumato.report.reproduce import (
    Reproduction,
    as_table,
    read_table,
    side_by_side,
    table_names,
)

PAPERS = Path(__file__).parent / "results" / "papers"


def is_of(cell: dict[str, Any], config: Config, name: str) -> bool:
    """Whether a filed cell is one of this method's in this grid; settings that came later are as they are built in."""
    variant = config.variants[name]
    epsilon = math.inf if cell["epsilon"] is None else cell["epsilon"]
    if epsilon not in config.epsilons or cell["seed"] not in config.seeds:
        return False
    today = variant.at(epsilon)
    # A cell from before a setting was there had what is built in.
    before = {s.name: s.default for s in get_method(variant.method).settings()} | cell["settings"]
    facts = {"train": config.train, "test": config.test, "method": variant.method}
    facts |= {"neighbours": config.neighbours, "delta": config.delta, "samples": config.samples}
    before.pop("seed", None)
    return before == today and all(cell[key] == value for key, value in facts.items())


def filed(config: Config, folder: Path) -> Outcome:
    """What `compare` would have said of the cells that there are; a number that two cells have counts once."""
    found, seen = [], set()
    for path in sorted(folder.glob("*/cells/*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        cell = result["cell"]
        for name in config.variants:
            if is_of(cell, config, name):
                keys = [(name, cell["epsilon"], cell["seed"], m["name"]) for m in result["metrics"]]
                new = [m for m, k in zip(result["metrics"], keys, strict=True) if k not in seen]
                seen.update(keys)
                found.append((name, cell, {**result, "metrics": new}))
    seeds = tuple(s for s in config.seeds if s in {cell["seed"] for _, cell, _ in found})
    return Outcome(
        config=replace(config, seeds=seeds),
        rows=rows_of(config, found),
        cells=[{"name": name} for name, _, _ in found],
        failures=[],
        notes=[],
        kept=len(found),
        folder=folder,
    )


def table(name: str) -> str:
    """The table as Markdown, ours beside the paper's; "" where no cell is filed."""
    whole, folder = read_table(name), PAPERS / name.replace("/", "-")
    outcomes = [filed(config, folder) for config in whole.grids]
    kept = [place for place, outcome in enumerate(outcomes) if outcome.kept]
    if not kept:
        return ""
    outcomes = [outcomes[place] for place in kept]
    part = replace(
        whole,
        grids=tuple(outcome.config for outcome in outcomes),
        beside=tuple(whole.beside[place] for place in kept),
    )
    rows = side_by_side(part, outcomes)
    ours = {(row["data"], row["metric"]) for row in rows if row["mean"] is not None}
    rows = [row for row in rows if (row["data"], row["metric"]) in ours]
    return as_markdown(
        as_table(Reproduction(table=part, rows=rows, outcomes=outcomes, folder=folder))
    )


def main() -> None:
    made = map(table, sys.argv[1:] or table_names())
    print("\n".join(text for text in made if text))


if __name__ == "__main__":
    main()
