"""`sfumato data list · get · info`: the data sets known by name.

Everything printed is public: what a named set is, under which licence it comes, and whether it is
in the cache. Torch takes seconds to import, so a command imports what it needs when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sfumato.cli.options import debug_option, json_option, progress_for, quiet_option
from sfumato.cli.printing import print_json, print_table
from sfumato.errors import BadInput

if TYPE_CHECKING:
    from sfumato.data import NamedSet


@click.group(name="data")
@debug_option
def data() -> None:
    """List, fetch and describe the data sets known by name.

    \b
    Example:
      sfumato data list
      sfumato data get digits
      sfumato data info adult
    """


@data.command("list")
@json_option
@debug_option
def list_sets(as_json: bool) -> None:
    """List the data sets known by name; nothing is fetched.

    \b
    Example:
      sfumato data list
      sfumato data list --json
    """
    from sfumato.data import list_named

    entries = list_named()
    if as_json:
        keys = ("name", "about", "licence", "use", "sizes", "cached")
        print_json([{key: entry.to_json()[key] for key in keys} for entry in entries])
        return
    print_table(
        ("Name", "Records", "Use as", "Cached", "What it is", "Licence"),
        [
            (
                entry.name,
                _sizes(entry),
                entry.use,
                "yes" if entry.cached else "no",
                entry.about,
                entry.licence,
            )
            for entry in entries
        ],
    )
    click.echo("Type sfumato data info NAME for more on one, sfumato data get NAME to fetch it.")


@data.command("get")
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@quiet_option
@debug_option
def get(names: Sequence[str], quiet: bool) -> None:
    """Fetch data sets into the cache and check them, so that later runs need no connection.

    \b
    Example:
      sfumato data get digits
      sfumato data get fashion-mnist mnist
    """
    entries = [_find(name) for name in names]  # a misspelt name fails before anything is fetched
    for entry in entries:
        folder = entry.fetch(progress=progress_for(quiet))
        click.echo(f"{entry.name}: {_sizes(entry)} records in {folder}")
        click.echo(f"Licence: {entry.licence}.")


@data.command("info")
@click.argument("name")
@json_option
@debug_option
def info(name: str, as_json: bool) -> None:
    """Show the public facts of the data set called NAME; nothing is fetched.

    \b
    Example:
      sfumato data info digits
      sfumato data info adult --json
    """
    entry = _find(name)
    if as_json:
        print_json(entry.to_json())
        return
    schema = entry.schema
    click.echo(f"{entry.name}: {entry.about}")
    click.echo(f"Records: {_sizes(entry)}")
    if schema.kind == "images":
        channels, height, width = schema.shape
        click.echo(f"Pictures: {height}×{width}, {'gray' if channels == 1 else 'colour'}")
    shown = ", ".join(schema.classes[:10]) + (", …" if schema.n_classes > 10 else "")
    click.echo(f"Classes: {schema.n_classes} ({shown})")
    click.echo(f"Use as: {'private data' if entry.use == 'private' else 'public data'}")
    click.echo(f"Licence: {entry.licence}")
    click.echo(f"From: {'; else '.join(source.about for source in entry.sources)}")
    click.echo(f"Cached: {'yes' if entry.cached else f'no; type sfumato data get {entry.name}'}")
    if entry.note:
        click.echo(f"Note: {entry.note}.")
    if schema.kind == "table":
        print_table(
            ("Column", "Kind", "Range or categories", "May be missing"),
            [
                (
                    column.name,
                    column.kind,
                    f"{column.low:g} … {column.high:g}"
                    if column.low is not None and column.high is not None
                    else ", ".join(column.categories),
                    "yes" if column.missing else "no",
                )
                for column in schema.columns
            ],
        )


def _find(name: str) -> NamedSet:
    from sfumato.data.catalogue import find_named, unknown_set

    found = find_named(name)
    if found is None:
        raise unknown_set(name)
    if ":" in name:
        raise BadInput(f"{name!r} names one split; type {found[0].name} for the whole set.")
    return found[0]


def _sizes(entry: NamedSet) -> str:
    return " + ".join(f"{size:,} {split}" for split, size in entry.sizes.items())
