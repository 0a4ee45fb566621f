"""`sfumato ledger init · show · release-unused`: what all runs on the same data cost together, held against one limit.

What is printed is made of plans, which are public; that a run stands here, or was given up, is for the owner of the data. Torch
takes seconds to import, so a command imports what it needs when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfumato.cli.options import budget_of, budget_options, debug_option, json_option, run_argument
from sfumato.cli.printing import print_json, print_table

if TYPE_CHECKING:
    from sfumato.privacy import DataSetLedger, Plan

_BAR = 40  # characters
_ANOTHER = (0.5, 1.0)  # runs that `show` works out in advance

folder_argument = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


@click.group(name="ledger")
@debug_option
def ledger() -> None:
    """Keep one limit over all runs on the same data: make a ledger, show it, give back what was never asked.

    \b
    Example:
      sfumato ledger init ledgers/photos --epsilon 3 --delta 1e-6
      sfumato ledger show ledgers/photos
      sfumato ledger release-unused runs/stopped --ledger ledgers/photos
    """


@ledger.command("init")
@folder_argument
@budget_options
@click.option(
    "--unit",
    metavar="NAME|RULE|COLUMN",
    help="Whom the limit protects, by name (record, patient) or as the fits state it by --unit; if left out, the first run says "
    "it. A run that protects another unit is refused.",
)
@debug_option
def init(folder: Path, epsilon: float, delta: float, neighbours: str, unit: str | None) -> None:
    """Make the ledger of a data set in the new folder DIR: what all runs on it may cost together.

    The first `sfumato fit … --ledger DIR` tells it which data it is for. Its δ is for all runs together, whatever theirs are.

    \b
    Example:
      sfumato ledger init ledgers/photos --epsilon 3 --delta 1e-6
      sfumato ledger init ledgers/photos --epsilon 3 --delta 1e-6 --neighbours replace-one
    """
    from sfumato.privacy import DataSetLedger

    limit = budget_of(epsilon, delta, neighbours)
    with DataSetLedger.make(folder, limit, unit=unit) as book:
        whom = book.unit
    click.echo(
        f"Made {folder}: all runs on this data may cost ε = {limit.epsilon:g} at δ = {limit.delta:g} under "
        f"{limit.neighbours.value}{'' if whom is None else f', for each {whom}'}. "
        f"Keep the folder to yourself; add --ledger {folder} to every fit on the data."
    )


@ledger.command("show")
@folder_argument
@json_option
@debug_option
def show(folder: Path, as_json: bool) -> None:
    """Show what the runs in the ledger DIR cost together, and what another would bring it to; costs nothing.

    \b
    Example:
      sfumato ledger show ledgers/photos
      sfumato ledger show ledgers/photos --json
    """
    from sfumato.privacy import DataSetLedger

    with DataSetLedger(folder) as book:
        told = told_ledger(book)
    if as_json:
        print_json(told)
        return
    if told["runs"]:
        print_table(
            ("Run", "Method", "ε alone", "Noisy sums", "State", "Name"),
            [
                (
                    run["label"],
                    run["method"],
                    upwards(run["epsilon"]),
                    f"{run['sums']:,}",
                    run["state"],
                    run["run"][:8],
                )
                for run in told["runs"]
            ],
        )
    else:
        click.echo("No run stands in this ledger.")
    click.echo(f"{_bar(told['spent'], told['epsilon'])} {status(told)}")
    if not told["adaptive"]:
        click.echo(
            "Some of it are Poisson-sampled steps, so the figure is that of runs decided on in advance, not by looking at "
            "earlier results."
        )
    for another in told["another"]:
        verdict = "" if another["fits"] else ", which is too much"
        click.echo(
            f"Another run at ε = {another['epsilon']:g} would bring it to {upwards(another['total'])}{verdict}."
        )


@ledger.command("release-unused")
@run_argument
@click.option(
    "--ledger",
    "folder",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="The ledger in which the run has a reservation.",
)
@json_option
@debug_option
def release_unused(run: Path, folder: Path, as_json: bool) -> None:
    """Give the unfinished RUN up for ever and give back to the ledger what it never asked.

    What was answered stays paid for. A finished run gives nothing back.

    \b
    Example:
      sfumato ledger release-unused runs/stopped --ledger ledgers/photos
    """
    from sfumato.privacy import DataSetLedger

    with DataSetLedger(folder) as book:
        back, kept = book.release_unused(run)
        told = told_ledger(book)
    if as_json:
        labels = {"given_back": [c.label for c in back], "kept": [c.label for c in kept]}
        print_json({"run": str(run), **labels, "ledger": told})
        return
    named = ", ".join(f"“{c.label}”" for c in back) or "nothing: all that it reserved was asked"
    click.echo(f"The run in {run} is given up and cannot be resumed. It gave back {named}.")
    click.echo(f"{folder}: {status(told)}")


def told_ledger(book: DataSetLedger) -> dict[str, Any]:
    """What `show` tells: no key, no fingerprint, no clock."""
    from sfumato.privacy.ledger import fits

    runs, limit, spent = book.runs(), book.limit, book.spent()
    after = {epsilon: book.after(epsilon) for epsilon in _ANOTHER}
    return {
        **limit.to_json(),
        "unit": book.unit,
        "spent": spent,
        "left": max(0.0, limit.epsilon - spent),
        "adaptive": book.adaptive,
        "runs": [
            {
                "run": run.run,
                "label": run.label,
                "method": run.method,
                "epsilon": book.alone(run),
                "sums": sum(c.steps for c in run.charges),
                "state": run.state,
            }
            for run in runs
        ],
        "another": [
            {"epsilon": epsilon, "total": total, "fits": fits(total, limit)}
            for epsilon, total in after.items()
        ],
    }


def status(told: dict[str, Any]) -> str:
    count = len(told["runs"])
    return (
        f"ε = {upwards(told['spent'])} of {told['epsilon']:g} at δ = {told['delta']:g} under {told['neighbours']} is spent "
        f"by {'1 run' if count == 1 else f'{count} runs together'}"
        + ("." if told["unit"] in (None, "record") else f"; units: {told['unit']}.")
    )


def told_plan(book: DataSetLedger, charges: Plan) -> dict[str, Any]:
    """What a plan would bring the ledger to; nothing is reserved."""
    from sfumato.privacy.ledger import fits

    total = book.with_plan(charges)
    return {"total": total, "fits": fits(total, book.limit), **told_ledger(book)}


def upwards(epsilon: float) -> str:
    from sfumato.privacy.statement import rounded_up

    return f"{rounded_up(epsilon):.4g}"


def _bar(spent: float, limit: float) -> str:
    full = min(_BAR, round(_BAR * spent / limit))
    return "█" * full + "░" * (_BAR - full)
