"""What notebooks show of an object: small pieces of HTML without style sheets, scripts or links.

Whoever calls this decides what may be shown; nothing here looks at data. All text is escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    top = "".join(f"<th style='text-align:left'>{escape(str(cell))}</th>" for cell in head)
    body = "".join(
        "<tr>"
        + "".join(f"<td style='text-align:left'>{escape(str(cell))}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def card(title: str, *parts: str) -> str:
    return f"<div><strong>{escape(title)}</strong>{''.join(parts)}</div>"


def paragraph(text: str) -> str:
    return f"<p style='max-width:60em'>{escape(text)}</p>"


def picture(png: bytes, described: str) -> str:
    data = base64.b64encode(png).decode("ascii")
    return f"<img alt='{escape(described, quote=True)}' src='data:image/png;base64,{data}'>"
