"""`sfumato reproduce`: a table of a paper made again, and ours beside the paper's.

The table goes to standard output, progress and failures to standard error. Torch is imported when the command runs.
"""

from __future__ import annotations

from pathlib import Path

import click

from sfumato.cli.options import (
    engine_option,
    export_options,
    out_option,
    output_options,
    progress_for,
)
from sfumato.cli.printing import print_json, print_table, say
from sfumato.errors import BadInput


@click.command("reproduce")
@click.argument("table", required=False, metavar="NAME|FILE.toml")
@click.option("--list", "listed", is_flag=True, help="The tables that can be made again.")
@click.option(
    "--quick",
    is_flag=True,
    help="Few steps, samples and seeds: to see in minutes that it runs. The numbers are no results.",
)
@click.option("--seeds", type=click.IntRange(1), help="Only the first so many seeds.")
@click.option("--only", default="", metavar="WORD,…", help="Only methods whose names hold a word.")
@click.option("--data", default="", metavar="NAME,…", help="Only these data sets.")
@click.option("--epsilons", default="", metavar="NUMBER,…", help="Only these ε; inf for ∞.")
@click.option("--metrics", default="", metavar="NAME,…", help="Only these metrics.")
@out_option(
    "FOLDER",
    "Where comparisons and finished cells are kept.  [default: runs/reproduce/NAME]",
    required=False,
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    show_default="one a core",
    help="Processes at a time, at most one a core; each needs the memory of a fit.",
)
@engine_option
@export_options
@output_options
@click.pass_context
def reproduce(
    context: click.Context,
    table: str | None,
    listed: bool,
    quick: bool,
    seeds: int | None,
    only: str,
    data: str,
    epsilons: str,
    metrics: str,
    out: Path | None,
    jobs: int | None,
    engine: str | None,
    latex: Path | None,
    markdown: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Make a table of one of the papers again, by the paper's settings and protocol, and print ours beside it.

    Most take hours on a small machine: interrupt it at any time and type the same command again, finished cells are
    kept; or take a part by --seeds, --only, --data, --epsilons and --metrics, and more of it later in the same folder.
    Below the table stand both protocols and all that is known to differ. FOLDER gets reproduction.md, .tex and .json, and
    a comparison for each data set. The numbers are computed on real data and not covered by ε.

    \b
    Example:
      sfumato reproduce --list
      sfumato reproduce merf/table-3 --quick
      sfumato reproduce merf/table-3 --latex table.tex
      sfumato reproduce merf/marginals --only PrivBayes --data adult-discrete --seeds 1
    """
    from sfumato.report import comparison
    from sfumato.report.export import export
    from sfumato.report.reproduce import COLUMNS, as_table, part_of, read_table, table_names
    from sfumato.report.reproduce import reproduce as run

    if listed or table is None:
        names = table_names()
        if as_json:
            print_json(names)
            return
        print_table(("Name", "What it shows"), list(names.items()))
        if not listed:
            raise BadInput("No table is named; type sfumato reproduce NAME, with one of the above.")
        return
    wanted = part_of(
        read_table(table, quick=quick),
        seeds=seeds,
        only=only,
        data=data,
        epsilons=epsilons,
        metrics=metrics,
    )
    if out is None:
        stem = Path(table).name.removesuffix(".toml") if table.endswith(".toml") else table
        out = Path("runs/reproduce") / f"{stem.replace('/', '-')}{'-quick' if quick else ''}"
    found = run(wanted, out, jobs=jobs, engine=engine, progress=progress_for(quiet))
    shown = as_table(found)
    export(shown, latex, markdown)
    if as_json:
        print_json(found.to_json())
    else:
        click.echo(shown.title)
        print_table(COLUMNS, shown.rows)
        for note in shown.notes:
            click.echo(note)
        click.echo(f"Written to {out / 'reproduction.md'} (also .tex and .json).")
    for failure in found.failures:
        say(f"Error: {comparison.failure_sentence(failure)}")
    if found.failures:
        context.exit(int(found.failures[0]["exit_code"]))
