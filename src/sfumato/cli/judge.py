"""`sfumato evaluate · report`: how useful the synthetic records are, and the page that says so.

A metric is computed from real records and NOT covered by ε; it says which ones. Everything else on the page is public.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfumato import published
from sfumato.cli.options import (
    engine_option,
    facts_options,
    is_run,
    ledger_option,
    load_stated,
    output_options,
    parse_facts,
    progress_for,
    run_argument,
    seed_option,
)
from sfumato.cli.printing import print_json, print_table, say
from sfumato.errors import BadInput
from sfumato.files import write_json

if TYPE_CHECKING:
    from sfumato.progress import Progress

DEFAULT_SAMPLE = 60_000

_show_real_option = click.option(
    "--show-real",
    metavar="NAME|PATH",
    help="Real test or public images to put beside the samples on the report page, which then PUBLISHES them; "
    "ε does not cover that.",
)


@click.command()
@click.argument("target", metavar="RUN|PATH")
@click.option(
    "--real",
    required=True,
    metavar="NAME|PATH",
    help="Real records to judge with (fashion-mnist:test).",
)
@click.option(
    "-n",
    "--number",
    "n",
    type=click.IntRange(1),
    help=f"Records to draw from a RUN.  [default: the size of its data, else {DEFAULT_SAMPLE}]",
)
@click.option(
    "--preset",
    "--protocol",
    "preset",
    type=click.Choice(("quick", "paper", "dpimagebench", "full")),
    help="A set of metrics: three classifiers, those of the papers, the networks of DPImageBench in small (an hour; with "
    "--train also under its own rule), or all.  [default: quick]",
)
@click.option(
    "--metrics",
    metavar="NAME,…",
    help="Metrics by name or family (accuracy.cnn,fid,prd), with those of --preset if both are given.",
)
@click.option(
    "--train",
    metavar="NAME|PATH",
    help="The real records the method was fitted on, for the metrics that look for copies of them and for better baselines.",
)
@click.option(
    "--baselines/--no-baselines",
    default=True,
    help="What accuracies are held against: the commonest class, noisy class means at the same ε, and the same classifiers "
    "trained on real records.",
)
@click.option(
    "--by-class",
    is_flag=True,
    help="Also print recall and precision of each class, and what it is taken for, for every accuracy.*.",
)
@click.option(
    "--precision",
    type=click.Choice(("float32", "bfloat16")),
    default="float32",
    show_default=True,
    help="Numbers in the networks that look at images or learn them; bfloat16 takes half the time where the processor has it.",
)
@_show_real_option
@seed_option
@engine_option
@facts_options
@output_options
def evaluate(
    target: str,
    real: str,
    n: int | None,
    preset: str | None,
    metrics: str | None,
    train: str | None,
    baselines: bool,
    by_class: bool,
    precision: str,
    show_real: str | None,
    seed: int,
    engine: str | None,
    quiet: bool,
    as_json: bool,
    **facts: Any,
) -> None:
    """Measure how useful synthetic records are: train classifiers on them, test on REAL ones.

    The numbers come from real records and are not covered by ε. For a RUN they are also kept in its
    metrics.json, where `sfumato report` finds them; with --show-real the report is written at once.
    docs/evaluation.md lists the metrics.

    Beside accuracies stand baselines. They learn from the training records if --train gives them, else from one half of
    --real and are scored on the other. Noisy class means are only played: no budget is spent on them.

    \b
    Example:
      sfumato evaluate runs/first --real fashion-mnist:test
      sfumato evaluate runs/first --real fashion-mnist:test --metrics accuracy.cnn,fid
      sfumato evaluate synthetic.npz --real fashion-mnist:test --classes 10 --json
    """
    from sfumato.evaluation.baselines import outcome

    wanted = {
        "preset": preset,
        "metrics": [m.strip() for m in metrics.split(",") if m.strip()] if metrics else None,
        "engine": engine,
        "baselines": baselines,
        "precision": precision,
    }
    run = Path(target) if is_run(Path(target)) else None
    if show_real is not None and run is None:
        raise BadInput(
            "--show-real goes on the page of a run, and this is a file of records; give a run folder or leave it out."
        )
    progress = progress_for(quiet)
    result = judge(target, real, n, seed, progress, parse_facts(**facts), train, wanted)
    page = None if run is None or show_real is None else write_page(run, show_real, progress)
    if as_json:
        print_json(result)
        return
    from sfumato.evaluation.metrics import EVALUATED

    print_table(
        EVALUATED,
        [
            (
                metric["name"],
                f"{metric['value']:.4f}",
                "–"
                if metric["low"] == metric["high"]
                else f"{metric['low']:.4f} – {metric['high']:.4f}",
                metric["source"],
            )
            for metric in result["metrics"]
        ],
    )
    if verdict := outcome(result["metrics"]):
        click.echo(f"The best accuracy: {verdict}")
    if by_class:
        _print_classes(result["metrics"])
    click.echo(
        f"{result['metrics_are'].capitalize()}, unless it says “synthetic data only”. Measuring costs no budget."
    )
    if run is not None and not quiet:
        following = page or f"Next: sfumato report {shlex.quote(target)}"
        click.echo(f"Kept in {run / 'metrics.json'}. {following}")


def _print_classes(metrics: Sequence[Mapping[str, Any]]) -> None:
    from sfumato.evaluation.metrics import BY_CLASS, ByClass

    for metric in metrics:
        if told := metric.get("by_class"):
            click.echo(f"{metric['name']} by class:")
            print_table(BY_CLASS, ByClass.from_json(told).rows())


@click.command()
@run_argument
@click.option(
    "--with",
    "beside",
    multiple=True,
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Another run, or the folder of a comparison, to plot beside this one: accuracy against ε; repeat for more.",
)
@_show_real_option
@ledger_option(
    "The data set's ledger that the run stands in: what all runs on the data cost together."
)
@click.option(
    "--audit",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What `sfumato audit run RUN --data … --json` (or audit mechanism) printed; of a method on its data it is NOT covered "
    "by ε, and the page says so.",
)
@click.option(
    "--release",
    "releases",
    multiple=True,
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="A file or folder made by `sample` that is to be given away: the page names it by its SHA-256; repeat for more.",
)
@click.option("--by", metavar="NAME", help="Who signs.")
@click.option("--role", metavar="TEXT", help="In what role.")
@click.option("--date", metavar="TEXT", help="When; the page tells no time by itself.")
@click.option("--decision", metavar="TEXT", help="What was decided about the release.")
@click.option(
    "--pdf",
    is_flag=True,
    help="Also RUN/report.pdf, printed by Chromium, Chrome or Edge if one is installed.",
)
@output_options
def report(
    run: Path,
    beside: tuple[Path, ...],
    show_real: str | None,
    ledger_folder: Path | None,
    audit: Path | None,
    releases: tuple[Path, ...],
    by: str | None,
    role: str | None,
    date: str | None,
    decision: str | None,
    pdf: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write RUN/report.html (one page that needs no network), report.md and report.json.

    The page begins with what somebody who signs must know: who is protected and how strongly, what may be concluded, the
    warnings, what `sfumato verify` finds, and the fingerprint of what is released. What --by, --role, --date and --decision
    leave open is there to fill in by hand.

    \b
    Example:
      sfumato report runs/first
      sfumato report runs/first --with runs/second --with runs/comparison
      sfumato report runs/first --show-real fashion-mnist:test
      sfumato report runs/first --ledger ledgers/photos --audit audit.json
      sfumato report runs/first --release synthetic.npz --by "A. Steward" --role "data steward" --decision release --pdf
    """
    from sfumato.report.pdf import write_pdf
    from sfumato.report.signing import Signature

    page = write_page(
        run,
        show_real,
        progress_for(quiet),
        beside,
        ledger_folder,
        audit=audit,
        releases=releases,
        signature=Signature(by=by or "", role=role or "", date=date or "", decision=decision or ""),
    )
    printed = write_pdf(page) if pdf else None
    if as_json:
        print_json(
            {
                "html": str(page),
                "md": str(page.with_suffix(".md")),
                "json": str(page.with_suffix(".json")),
                **({} if printed is None else {"pdf": str(printed)}),
            }
        )
    else:
        click.echo(page)
        if printed is not None:
            click.echo(printed)


def judge(
    target: str,
    real_spec: str,
    n: int | None,
    seed: int,
    progress: Progress,
    facts: dict[str, Any],
    train_spec: str | None = None,
    wanted: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of metrics.json for a run, which keeps it, or for a data path."""
    from sfumato.evaluation import Fitted, evaluate
    from sfumato.methods import SavedRun, load
    from sfumato.report.signing import measured_on_itself

    run = Path(target) if is_run(Path(target)) else None
    size, told, fitted = None, False, None
    if run is None:
        real = load_stated(real_spec, progress, facts, None)
        synthetic = load_stated(target, progress, facts, real.schema)
    else:
        synthesizer = load(run)
        with SavedRun(run) as saved:
            size = saved.config["data"]["size"]  # none under add-remove, where it is private
            told = size is not None and saved.unit.single  # else it is that of units
            fitted = Fitted(saved.budget, size)
        n = n or size or DEFAULT_SAMPLE
        with progress.stage(f"Sampling {n:,} records", n) as stage:
            synthetic = synthesizer.sample(n, seed=seed)
            stage.advance(n)
        real = load_stated(real_spec, progress, facts, synthetic.schema)
    train = (
        None if train_spec is None else load_stated(train_spec, progress, facts, synthetic.schema)
    )
    result = evaluate(
        synthetic,
        real,
        train=train,
        size_is_public=told,
        fitted=fitted,
        seed=seed,
        progress=progress,
        **{"baselines": True, **(wanted or {})},
    ).to_json()
    if run is not None:
        published.check("metrics", result)
        write_json(run / "metrics.json", result, mode=0o600)
        with SavedRun(run) as saved:
            same = measured_on_itself(saved)
        if same is not None:
            say(f"Warning: {same}")
    return result


def write_page(
    run: Path,
    show_real: str | None = None,
    progress: Progress | None = None,
    beside: Sequence[Path] = (),
    ledger: Path | None = None,
    **signed: Any,
) -> Path:
    from sfumato.methods import SavedRun
    from sfumato.public.loading import load_public
    from sfumato.report import write_report

    with SavedRun(run) as saved:  # an unfinished one is refused
        real = None if show_real is None else load_public(show_real, saved.schema, progress)
    for other in filter(is_run, beside):
        SavedRun(other).close()
    page = write_report(run, real=real, beside=beside, ledger=ledger, **signed)
    if real is not None:
        say(
            f"Warning: {page} now shows real records of {real.name}; whoever gets the page gets them, and ε does not "
            "cover that."
        )
    told = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))["verified"]
    if told is not None and not told["passed"]:
        say(
            f"Warning: {run} does not pass its checks, and the page says so; see sfumato verify {run}."
        )
    return page
