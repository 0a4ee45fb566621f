"""`sfumato verify · export`: what anyone can do with a run folder that he was handed, without the data."""

from __future__ import annotations

from pathlib import Path

import click

from sfumato.cli.options import (
    debug_option,
    json_option,
    out_option,
    run_argument,
    warn_not_private,
)
from sfumato.cli.printing import print_json
from sfumato.errors import BadInput, RunConflict


@click.command()
@run_argument
@json_option
@debug_option
@click.pass_context
def verify(context: click.Context, /, run: Path, as_json: bool) -> None:
    """Check a finished RUN: everything there, unchanged, and costing no more than its statement says.

    ε is worked out again from the charges by a second route; every file is compared with the run's store. The exit code is 0 if
    all checks pass, 4 if the statement promises too little, 5 if something is missing, changed or from elsewhere.

    \b
    Example:
      sfumato verify runs/first
      sfumato verify runs/first --json
    """
    from sfumato.report.verify import lines
    from sfumato.report.verify import verify as verified

    found = verified(run)
    if as_json:
        print_json(found.to_json())
    else:
        for line in lines(found):
            click.echo(line)
    if not found.passed:
        context.exit(found.code)


@click.command()
@run_argument
@out_option(
    "FOLDER",
    "Make a folder of its own to hand on, in place of refreshing the files of the run.",
    required=False,
)
@debug_option
def export(run: Path, out: Path | None) -> None:
    """Write the files that people read (statement, settings, generator, samples, log) again from the store of a finished RUN.

    \b
    Example:
      sfumato export runs/first
      sfumato export runs/first --out to-hand-on
    """
    from sfumato.methods import SavedRun
    from sfumato.methods.run import export_to, write_exports

    with SavedRun(run) as saved:
        if saved.version == 1:
            raise BadInput(
                f"{run} is a run of version 0.1.0, whose files are all it has; copy the folder."
            )
        if out is None:
            write_exports(saved)
        elif out.exists():
            raise RunConflict(f"{out} already exists; give --out another name.")
        else:
            export_to(saved, out)
        names = ", ".join(saved.exports())
        warn_not_private(saved.statement)
    click.echo(f"Wrote {names} in {out or run}.")
