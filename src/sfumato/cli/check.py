"""`sfumato check`: the owner's look at private data before anything is spent.

What it prints is PRIVATE, and it says so first; nothing is written but by `--out`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sfumato.cli.options import (
    facts_options,
    out_option,
    output_options,
    overwrite_option,
    parse_facts,
    progress_for,
    public_option,
    refuse_existing,
    unit_options,
)
from sfumato.cli.printing import print_json, say
from sfumato.errors import BadInput


@click.command()
@click.argument("spec", metavar="DATA")
@click.option("--epsilon", type=float, help="With --delta: what to expect of a fit at this ε.")
@click.option("--delta", type=float, help="Held against 1/n.")
@public_option
@out_option(
    "FILE",
    "Keep the outcome as JSON, readable by you alone; it is private.",
    file=True,
    required=False,
)
@overwrite_option
@unit_options
@facts_options
@output_options
def check(
    spec: str,
    epsilon: float | None,
    delta: float | None,
    public_spec: str | None,
    out: Path | None,
    overwrite: bool,
    unit: str | None,
    per_unit: int | None,
    quiet: bool,
    as_json: bool,
    **facts: Any,
) -> None:
    """Look at private DATA as their owner may, before anything is spent: what is wrong with them, and what to expect.

    Unreadable files, sizes, depth and range, empty classes, cells that are missing or misspelt, persons with several records,
    records that stand there twice or in the public data. What is printed is PRIVATE. Exit code 2 if a fit would be refused or
    would learn something else than was meant.

    \b
    Example:
      sfumato check scans/ --image-size 64 --channels 1
      sfumato check scans/ --image-size 64 --unit PatientID --epsilon 3 --delta 1e-5
      sfumato check visits.csv --epsilon 1 --delta 1e-6
      sfumato check digits:train --public font-digits --epsilon 1 --delta 1e-5
    """
    from sfumato.files import write_json
    from sfumato.methods.run import inside_run
    from sfumato.report.checking import PRIVATE
    from sfumato.report.checking import check as look

    if out is not None:
        if inside_run(out):
            raise BadInput(
                f"{out} would lie in the folder of a run, which is handed on, and the outcome is private; give --out a place "
                "elsewhere."
            )
        refuse_existing(out, overwrite)
    found = look(
        spec,
        public=public_spec,
        epsilon=epsilon,
        delta=delta,
        progress=progress_for(quiet),
        unit=unit,
        per_unit=per_unit,
        **parse_facts(**facts),
    )
    if out is not None:
        write_json(out, found.to_json(), mode=0o600)
    if as_json:
        say(PRIVATE)
        print_json(found.to_json())
    else:
        click.echo(str(found))
    if found.problems:
        more = len(found.problems)
        raise BadInput(
            f"{spec} is not ready for a fit: {more} problem{'s' if more > 1 else ''} above; nothing was spent."
        )
