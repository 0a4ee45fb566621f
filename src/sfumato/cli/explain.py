"""`sfumato explain`: what a private classifier looks at, on some records and as a whole.

The classifier is public by its guarantee. The records that are explained are the reader's own choice and are NOT covered by ε: a
page that shows them publishes them.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfumato.cli.options import (
    debug_option,
    facts_options,
    json_option,
    load_stated,
    parse_facts,
    progress_for,
    quiet_option,
)
from sfumato.cli.printing import print_json, print_table
from sfumato.errors import BadInput, RunConflict
from sfumato.files import atomic_path, write_text

if TYPE_CHECKING:
    from PIL import Image

    from sfumato.data import Schema
    from sfumato.methods.explanations import Explanation

_FORMATS = (".png", ".html")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}}
img{{max-width:100%;image-rendering:pixelated}} table{{border-collapse:collapse}} td,th{{padding:.2rem .8rem .2rem 0}}
td,th{{text-align:left}}
</style></head><body>
<h1>{title}</h1>
<p>{guarantee}</p>
{parts}
</body></html>
"""


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
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
@click.option(
    "--out",
    required=True,
    metavar="PATH",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A .png picture, or a .html page with the filters too.",
)
@click.option("--overwrite", is_flag=True, help="Replace the file PATH if it exists.")
@facts_options
@quiet_option
@json_option
@debug_option
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

    if out.suffix.lower() not in _FORMATS:
        raise BadInput(f"Cannot write {out.name}; end --out with .png or .html.")
    if out.exists() and not overwrite:
        raise RunConflict(f"{out} already exists; give --out another name, or add --overwrite.")
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
        write_text(out, _page(run, model.statement_.paragraph(), told, spec, filters))
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


def _page(
    run: Path, guarantee: str, told: Explanation | None, spec: str | None, filters: Image.Image
) -> str:
    parts = []
    if told is not None:
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in _rows(told)
        )
        parts.append(
            f"<h2>Some records of {html.escape(spec or '')}</h2>"
            "<p>Each record, and the maps of its predicted class that weigh most. Red speaks for the class, blue against it. "
            "These records are shown as they are: ε does not cover them.</p>"
            f"{_image(told.picture(), 'Records and their strongest maps')}"
            f"<table><tr><th>Class</th><th>Probability</th><th>Maps (weight)</th></tr>{rows}</table>"
        )
    parts.append(
        "<h2>All classes</h2><p>The longest maps of every class, one row a class, on one scale. They are made of released "
        "weights, so the guarantee above covers them.</p>"
        f"{_image(filters, 'Filters of every class')}"
    )
    return _PAGE.format(
        title=f"What the classifier in {html.escape(run.name)} looks at",
        guarantee=html.escape(guarantee),
        parts="\n".join(parts),
    )


def _image(picture: Image.Image, alternative: str) -> str:
    stream = io.BytesIO()
    picture.save(stream, format="PNG")
    encoded = base64.b64encode(stream.getvalue()).decode()
    return f'<p><img alt="{alternative}" src="data:image/png;base64,{encoded}"></p>'
