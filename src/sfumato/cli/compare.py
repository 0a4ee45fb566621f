"""`sfumato compare`: methods × ε × seeds on one data set, from a small TOML file; `sfumato published`: the papers' numbers.

The table goes to standard output, progress and failures to standard error. Torch is imported when the command runs.
"""

from __future__ import annotations

from pathlib import Path

import click

from sfumato.cli.options import (
    debug_option,
    engine_option,
    export_options,
    json_option,
    ledger_option,
    out_option,
    output_options,
    progress_for,
)
from sfumato.cli.printing import print_json, print_table, say
from sfumato.errors import BadInput


@click.command("compare")
@click.argument("file", metavar="FILE.toml", type=click.Path(path_type=Path, dir_okay=False))
@out_option("FOLDER", "Where the comparison is written and its finished cells are kept.")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    show_default="one a core",
    help="Processes at a time, at most one a core; each needs the memory of a fit.",
)
@engine_option
@ledger_option(
    "Hold all fits of the comparison, with all other runs on these data, to the limit of this ledger (sfumato ledger init)."
)
@click.option(
    "--all-published",
    is_flag=True,
    help="Also the papers' numbers that a later text supersedes, and their ablations.",
)
@export_options
@output_options
@click.pass_context
def compare(
    context: click.Context,
    file: Path,
    out: Path,
    jobs: int | None,
    engine: str | None,
    ledger_folder: Path | None,
    all_published: bool,
    latex: Path | None,
    markdown: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare methods over ε and seeds on one data set, beside published numbers.

    FILE.toml names the data, epsilons, delta and methods; its other keys have defaults: neighbours = "zero-out",
    seeds = [0], samples = 60000, keep = 1.0, precision = "float32" (of networks that judge; bfloat16 takes half the time
    where the processor has it), preset = "quick". Type the same command again to go on with an interrupted comparison:
    finished cells are kept. On private data every fit costs: with --ledger all of them are priced together
    before the first. FOLDER gets comparison.md, .csv, .json, .html and curve.png. The
    numbers are computed on real data and not covered by ε. A published number comes with its place in the
    paper (S3:1437 is a line of it), its relation and its protocol; compare only what was measured alike.
    --latex and --markdown write one compact table, a row for each method, to be put into a paper.

    \b
    A file for it:
      data = "digits"
      epsilons = [1.0, 10.0]
      delta = 1e-5
      samples = 2000
      metrics = ["accuracy.logreg"]
      [methods.merf]
      steps = 300

    \b
    Example:
      sfumato compare examples/compare.toml --out runs/comparison
      sfumato compare examples/compare.toml --out runs/comparison --engine ray:auto
      sfumato compare mine.toml --out runs/mine --ledger ledgers/mine
      sfumato compare examples/compare.toml --out runs/comparison --latex table.tex
    """
    from sfumato.report import comparison
    from sfumato.report.export import compact, export
    from sfumato.report.grid import compare as run

    config = comparison.read_config(file)
    outcome = run(
        config,
        out,
        jobs=jobs,
        engine=engine,
        ledger=ledger_folder,
        progress=progress_for(quiet),
        all_published=all_published,
    )
    export(compact(outcome), latex, markdown)
    if as_json:
        print_json(outcome.to_json())
    else:
        print_table(comparison.COLUMNS, comparison.table(outcome.rows))
        for remark in comparison.remarks(outcome):
            click.echo(remark)
        click.echo(f"Written to {out / 'comparison.html'} (also .md, .csv, .json and curve.png).")
    for failure in outcome.failures:
        say(f"Error: {comparison.failure_sentence(failure)}")
    if outcome.failures:
        context.exit(int(outcome.failures[0]["exit_code"]))


@click.command("published")
@click.argument("data", required=False)
@click.option("--metric", metavar="NAME", help="Only this metric, or this family of metrics.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also numbers that a later text supersedes, and ablations.",
)
@json_option
@debug_option
def published(data: str | None, metric: str | None, everything: bool, as_json: bool) -> None:
    """List the numbers that papers have published on DATA, or the data sets that there are numbers for.

    Each comes with its place (S3:1437 is a line of paper S3), its relation and, with --json, its protocol: compare
    only what was measured alike. ε = ∞ is real data or a fit without noise.

    \b
    Example:
      sfumato published
      sfumato published cifar10 --metric fid
      sfumato published adult --json
    """
    import math

    from sfumato.report.papers import all_published, paper_titles, published_numbers

    if data is None:
        counts: dict[str, int] = {}
        for number in all_published():
            counts[number.data] = counts.get(number.data, 0) + 1
        if as_json:
            print_json(counts)
            return
        print_table(("Data", "Numbers"), [(name, str(n)) for name, n in sorted(counts.items())])
        click.echo("Type sfumato published DATA to see them.")
        return
    found = [
        number
        for number in published_numbers(data.partition(":")[0], everything=everything)
        if metric in (None, number.metric, number.metric.partition(".")[0])
    ]
    if not found:
        of = f" of {metric}" if metric else ""
        raise BadInput(
            f"No number{of} on {data!r} is known; type sfumato published for the data sets."
        )
    if as_json:
        print_json(
            [{**vars(n), "epsilon": n.epsilon if math.isfinite(n.epsilon) else None} for n in found]
        )
        return
    print_table(
        ("Metric", "ε", "Relation", "Method", "Value", "Source"),
        [
            (
                n.metric,
                "∞" if math.isinf(n.epsilon) else f"{n.epsilon:g}",
                n.relation,
                n.method,
                n.printed + (f" ± {n.spread:g}" if n.spread is not None else ""),
                n.source + ("; superseded" if n.superseded else ""),
            )
            for n in sorted(found, key=lambda n: (n.metric, n.epsilon))
        ],
    )
    for key in dict.fromkeys(n.paper for n in found):
        click.echo(f"{key}: {paper_titles()[key]}.")
