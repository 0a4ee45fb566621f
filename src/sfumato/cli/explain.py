"""`sfumato explain`: what a private classifier looks at, on some records and as a whole.

The classifier is public by its guarantee. The records that are explained are the reader's own choice and are NOT covered by ε: a
page that shows them publishes them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfumato.cli.options import (
    facts_options,
    load_stated,
    out_option,
    output_options,
    overwrite_option,
    parse_facts,
    progress_for,
    refuse_existing,
    run_argument,
)
from sfumato.cli.printing import print_json, print_table
from sfumato.errors import BadInput
from sfumato.files import atomic_path, write_text

if TYPE_CHECKING:
    from sfumato.data import Schema
    from sfumato.methods.explanations import Explanation

_FORMATS = (".png", ".html")


@click.command()
@run_argument
@click.option(
    "--data",
    "spec",
    metavar="NAME|PATH",
    help="Records to explain (fashion-mnist:test); without it the picture shows the classifier's filters.",
)
@click.option(
    "-n", "--number", "n", type=click.IntRange(1, 20), default=8, help="How many of the records."
)
@click.option("--first", type=click.IntRange(0), default=0, help="Number of the first record.")
@click.option(
    "--top", type=click.IntRange(1), default=3, help="How many maps to show for each record."
)
@out_option("PATH", "A .png picture, or a .html page with the filters too.", file=True)
@overwrite_option
@facts_options
@output_options
def explain(
    run: Path,
    spec: str | None,
    n: int,
    first: int,
    top: int,
    out: Path,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
    **facts: Any,
) -> None:
    """Show why the classifier in RUN decides as it does: its strongest linear maps for some records.

    Red pixels or terms speak for the class, blue ones against it. The records shown are not covered by ε.

    \b
    Example:
      sfumato explain runs/llm --data fashion-mnist:test --out why.png
      sfumato explain runs/llm --data fashion-mnist:test -n 12 --top 2 --out why.html
      sfumato explain runs/llm --out filters.png
    """
    from sfumato.classifier import LocallyLinearMaps
    from sfumato.report.pictures import data_uri
    from sfumato.report.words import render

    if out.suffix.lower() not in _FORMATS:
        raise BadInput(f"Cannot write {out.name}; end --out with .png or .html.")
    refuse_existing(out, overwrite)
    model = LocallyLinearMaps.load(run)
    told = None
    if spec is not None:
        import numpy as np

        data = load_stated(spec, progress_for(quiet), parse_facts(**facts), model.schema_)
        if first >= len(data):
            raise BadInput(f"{spec} has no record number {first}; give --first a smaller number.")
        batch = data.take(np.arange(first, min(first + n, len(data))))
        told = model.explain(
            type(data).from_values(batch.values.numpy(), schema=_unlabelled(data.schema)),
            top=min(top, model.maps),
        )
    filters = model.filters().picture()
    if out.suffix.lower() == ".png":
        with atomic_path(out) as temporary:
            (told.picture() if told else filters).save(temporary, format="PNG")
    else:
        content = {
            "title": f"What the classifier in {run.name} looks at",
            "guarantee": model.statement_.paragraph(),
            "data": spec,
            "records": _rows(told) if told else [],
            "strongest": data_uri(told.picture()) if told else "",
            "filters": data_uri(filters),
        }
        write_text(out, render("explanation.html.jinja", content))
    if as_json:
        print_json({"out": str(out), "records": told.to_json() if told else []})
    elif quiet:
        click.echo(out)
    else:
        if told:
            print_table(
                ("Record", "Class", "Probability", "Maps (weight)"),
                [(str(first + i), *row) for i, row in enumerate(_rows(told))],
            )
        click.echo(f"Made {out}.")


def _unlabelled(schema: Schema) -> Schema:
    """The same without classes: what is explained is a prediction, whatever the label."""
    return dataclasses.replace(schema, classes=(), label=None)


def _rows(told: Explanation) -> list[tuple[str, str, str]]:
    names = told.schema.classes
    return [
        (
            names[code],
            f"{100 * p[code]:.1f} %",
            ", ".join(f"#{m} ({100 * w:.0f} %)" for m, w in zip(maps, weights, strict=True)),
        )
        for code, p, maps, weights in zip(
            told.codes, told.probabilities, told.maps, told.weights, strict=True
        )
    ]
