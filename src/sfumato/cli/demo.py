"""`sfumato demo`: from nothing to a report, once."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfumato.cli.judge import judge, write_page
from sfumato.cli.options import (
    as_plain,
    budget_of,
    check_run_folder,
    debug_option,
    load_data,
    out_option,
    parse_settings,
    progress_for,
    quiet_option,
    set_option,
    synthesizer_of,
)
from sfumato.cli.printing import one_line, say
from sfumato.errors import DataUnavailable, RunConflict, SfumatoError
from sfumato.published import BADGE

if TYPE_CHECKING:
    from sfumato.methods import Method
    from sfumato.privacy import Budget

DEMO_EPSILON, DEMO_DELTA, DEMO_SEED = 1.0, 1e-5, 0
DEMO_FALLBACK = "digits"
DEMO_METHOD = "mixture"


@click.command()
@out_option("RUN", "The run folder to make.", default=Path("runs/demo"))
@click.option(
    "--data",
    "name",
    default="fashion-mnist",
    metavar="NAME",
    help="A named set with train and test.",
)
@set_option
@quiet_option
@debug_option
def demo(out: Path, name: str, settings: tuple[str, ...], quiet: bool) -> None:
    """From nothing to a report: fit `mixture` at ε = 1, δ = 1e-5, judge it on real test images.

    Without a network it goes on with scikit-learn's 8×8 digits. A second time, what is already there is used again.

    \b
    Example:
      sfumato demo
      sfumato demo --out runs/demo --data digits
    """
    progress = progress_for(quiet)
    progress.note(
        f"The demo fits {DEMO_METHOD} to {name} at ε = {DEMO_EPSILON:g}, δ = {DEMO_DELTA:g}, judges the synthetic "
        "images on real ones and writes a report; the first time this takes a few minutes."
    )
    budget = budget_of(DEMO_EPSILON, DEMO_DELTA, "zero-out")
    given = parse_settings(settings)
    try:
        data = load_data(f"{name}:train", progress)
        load_data(f"{name}:test", progress)
    except DataUnavailable as error:
        if name == DEMO_FALLBACK:
            raise
        say(f"{one_line(error)}")
        say(
            f"No source of {name} answered, so the demo goes on with {DEMO_FALLBACK}, which needs no download."
        )
        name = DEMO_FALLBACK
        data = load_data(f"{name}:train", progress)
    synthesizer = synthesizer_of(DEMO_METHOD, given, DEMO_SEED)
    state = _demo_state(out, f"{name}:train", synthesizer, budget)
    if state == "another":
        say(f"{out} holds a demo with other data or settings, which is now {_move_aside(out)}.")
    if state == "finished":
        progress.note(f"{out} already holds this finished run; fitting is skipped.")
    else:
        if state == "started":
            progress.note(f"Going on with the unfinished run in {out}.")
        synthesizer.fit(data, budget, out=out, resume=state == "started", progress=progress)
    metrics = _known_metrics(out, f"{name}:test")
    if metrics is None:
        metrics = judge(str(out), f"{name}:test", None, DEMO_SEED, progress, {})["metrics"]
    else:
        progress.note(f"It was already judged on {name}:test; its metrics.json is used again.")
    page = write_page(out)

    scores = {metric["name"]: metric["value"] for metric in metrics}
    accuracy = ", ".join(
        f"{100 * value:.1f} % ({key.removeprefix('accuracy.')})"
        for key, value in scores.items()
        if key.startswith("accuracy.")
    )
    click.echo(
        f"\nMade a private generator of {name} images with {DEMO_METHOD}: ε = {DEMO_EPSILON:g}, δ = {DEMO_DELTA:g}."
    )
    click.echo(
        f"Classifiers trained on its synthetic images reach on real test images: {accuracy} – {BADGE}."
    )
    run = shlex.quote(str(out))
    click.echo(f"  the report      {page}   (open it in a browser)")
    click.echo(f"  the guarantee   {out / 'statement.json'}")
    click.echo(f"  some images     {out / 'samples.png'}")
    # `make demo` users have not activated .venv, so the command is given as it can be typed.
    command = "sfumato" if _on_path() else ".venv/bin/sfumato"
    click.echo("Next:")
    click.echo(f"  {command} sample {run} -n 60000 --out synthetic.npz")
    click.echo(f"  {command} plan {DEMO_METHOD} --data {name}:train --epsilon 0.5 --delta 1e-5")
    click.echo(
        f"  {command} demo --out runs/refined --set refine=true   (better for linear classifiers, in minutes)"
    )
    click.echo(f"  {command} --help")


def _on_path() -> bool:
    return shutil.which("sfumato") is not None or not Path(".venv/bin/sfumato").exists()


def _demo_state(out: Path, data: str, synthesizer: Method, budget: Budget) -> str:
    """What is in the demo's folder: "nothing", this run "started" or "finished", or "another" demo's run."""
    from sfumato.methods import SavedRun

    if not check_run_folder(out, resume=True):
        return "nothing"
    with SavedRun(out, unfinished=True) as saved:
        config, finished = saved.config, saved.finished
    if config.get("method") != DEMO_METHOD or config.get("budget") != budget.to_json():
        raise RunConflict(f"{out} holds a run that is not the demo's; give --out another folder.")
    if config["data"].get("name") != data or config.get("settings") != as_plain(
        synthesizer.get_params()
    ):
        return "another"
    return "finished" if finished else "started"


def _move_aside(out: Path) -> Path:
    number = 1
    while (moved := out.with_name(f"{out.name}.{number}")).exists():
        number += 1
    out.rename(moved)
    return moved


def _known_metrics(run: Path, real: str) -> list[dict[str, Any]] | None:
    """What was measured on `real`, unless it is missing, damaged or older than the run's generator."""
    from sfumato.methods.run import GENERATOR, METRICS, SavedRun

    try:
        if (run / METRICS).stat().st_mtime < (run / GENERATOR).stat().st_mtime:
            return None
        with SavedRun(run) as saved:
            known = saved.metrics
    except (OSError, SfumatoError):
        return None
    return known if known and all(f"{real} " in metric["source"] for metric in known) else None
