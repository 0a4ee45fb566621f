"""What the command line prints: JSON and tables on standard output, sentences on standard error."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence

import click

from sfumato.errors import printable

_LONGEST = 2_000


def say(text: str) -> None:
    """A warning or an error; whoever closed standard error does not want it."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(text, err=True)


def one_line(message: object) -> str:
    """A message as one line of moderate length, whatever name or value it quotes."""
    text = printable(" ".join(str(message).split()))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}"


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if sys.stdout is None:
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, highlight=False, width=140, no_color=True)
    console.print(table)
