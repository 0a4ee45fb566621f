"""`sfumato card`: what goes beside a release when it is published."""

from __future__ import annotations

from pathlib import Path

import click

from sfumato.cli.options import (
    debug_option,
    json_option,
    out_option,
    refuse_existing,
    run_argument,
)
from sfumato.cli.printing import print_json


@click.command()
@run_argument
@out_option("DIR", "The folder to write into.  [default: RUN/card]", required=False)
@click.option(
    "--release",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file of synthetic records that is published: its name, SHA-256, size and columns go on the cards.",
)
@click.option("--name", metavar="TEXT", help="What the release is called.")
@click.option(
    "--curator",
    "curators",
    multiple=True,
    metavar="NAME",
    help="Who publishes it; repeat for more.",
)
@click.option("--license", "licence", metavar="ID", help="Its licence (cc-by-4.0).")
@click.option("--use", metavar="TEXT", help="What it is meant for.")
@click.option("--region", metavar="TEXT", help="The region it describes.")
@click.option("--sector", metavar="NAME", help="Healthcare, Finance, …")
@click.option("--date", metavar="YYYY-MM-DD", help="When it is published.")
@click.option("--url", metavar="URL", help="Where it can be had.")
@click.option(
    "--with-metrics",
    "metrics",
    is_flag=True,
    help="Put what `evaluate` measured into README.md: computed on real data, NOT covered by ε.",
)
@click.option("--overwrite", is_flag=True, help="Replace cards that are there already.")
@json_option
@debug_option
def card(
    run: Path,
    out: Path | None,
    release: Path | None,
    name: str | None,
    curators: tuple[str, ...],
    licence: str | None,
    use: str | None,
    region: str | None,
    sector: str | None,
    date: str | None,
    url: str | None,
    metrics: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write what goes beside a release of RUN: a Hugging Face dataset card, Croissant metadata, an entry for OpenDP's
    registry of deployments, and a checklist along NIST SP 800-226.

    They tell what the run publishes by its guarantee and what you state here; the rest is left blank for you to fill in.

    \b
    Example:
      sfumato card runs/first
      sfumato card runs/first --release synthetic.parquet --out to-publish
      sfumato card runs/first --curator "City Hospital" --license cc-by-4.0 --use research --region Europe --date 2026-01-31
    """
    from sfumato.report.card import CROISSANT, NIST, README, Stated, write_card

    folder = out or run / "card"
    for file in (README, CROISSANT, NIST):
        refuse_existing(folder / file, overwrite)
    stated = Stated(
        name=name or "",
        curators=curators,
        licence=licence or "",
        use=use or "",
        region=region or "",
        sector=sector or "",
        date=date or "",
        url=url or "",
    )
    made = write_card(run, folder, release=release, stated=stated, metrics=metrics)
    if as_json:
        print_json([str(path) for path in made])
        return
    for path in made:
        click.echo(path)
