"""`sfumato schema draft · check · json`: the file with the public facts of a table.

A draft is made of the header alone, and a check reads the schema file only: no row is read.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from sfumato.cli.options import debug_option, out_option, refuse_existing
from sfumato.cli.printing import print_json
from sfumato.errors import BadInput, printable


@click.group(name="schema")
@debug_option
def schema() -> None:
    """Write and check the file with the public facts of a table; no row is read.

    \b
    Example:
      sfumato schema draft visits.csv --label outcome
      sfumato schema check visits.schema.json
      sfumato schema json > sfumato-schema.json
    """


@schema.command("draft")
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--label", metavar="COLUMN", help="The column to be predicted, if one is.")
@click.option(
    "--header",
    is_flag=True,
    help="The first line has names, though some are numbers or dates (2019); else such a line is taken for a record.",
)
@out_option(
    "FILE", "Where to write it; beside the table if left out, - to print it.", required=False
)
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@debug_option
def draft(table: Path, label: str | None, header: bool, out: Path | None, overwrite: bool) -> None:
    """Write a schema for TABLE (.csv or .parquet) with blanks to fill in; no row is read.

    Names and types come from the header. Ranges, categories and classes stay null: they must come from public knowledge, and
    comments in the file say why.

    \b
    Example:
      sfumato schema draft visits.csv --label outcome
      sfumato schema draft sales.csv --header
      sfumato schema draft visits.parquet --out -
    """
    from sfumato.data.draft import draft as drafted
    from sfumato.data.writers import schema_beside
    from sfumato.files import write_json

    facts = drafted(table, label, header_is_stated=header)
    if out is not None and str(out) == "-":
        print_json(facts)
        return
    out = out or schema_beside(table)
    refuse_existing(out, overwrite)
    write_json(out, facts)
    click.echo(f"Made {out} from the header of {table}; no row was read.")
    names = [facts["label"]] if label else []
    names += [column["name"] for column in facts["columns"]]
    click.echo(f"Line 1 is taken for the header; columns: {', '.join(map(printable, names))}.")
    click.echo("If these are values of a record, delete the file and write the names above them.")
    click.echo("Fill in what is null from public knowledge, then:")
    click.echo(f"  sfumato schema check {out}")


@schema.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@debug_option
def check(file: Path) -> None:
    """Say everything that is wrong with, or missing in, a schema FILE; no data are read.

    \b
    Example:
      sfumato schema check visits.schema.json
    """
    from sfumato.data.loading import read_facts
    from sfumato.data.schema import mistakes

    found = mistakes(read_facts(file))
    for sentence in found:
        click.echo(sentence)
    if found:
        raise BadInput(
            f"{file} is not a schema yet: {len(found)} sentence{'s' if len(found) > 1 else ''} above."
        )
    click.echo(f"{file} is a sound schema.")


@schema.command("json")
@debug_option
def json_() -> None:
    """Print what a schema file may hold as a JSON Schema: editors then complete and check as you type.

    Save it beside your schema and begin that with "$schema": "./sfumato-schema.json".

    \b
    Example:
      sfumato schema json > sfumato-schema.json
    """
    from sfumato.data.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
