"""Numbers that papers have published, as `published.toml` holds them: table by table, each with its place and its protocol.

A table's facts, a column's and a row's together say what one cell is. Everything here is public.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

from sfumato.report.words import package_text


@dataclass(frozen=True, kw_only=True)
class Published:
    """One number: what it is of, its value (shares, not per cent), and the text that was printed.

    `epsilon` is infinite for real data and for fits without noise; `relation` is then "none". `source` names place and table
    ("S3:1437, app. B, Table 1"), `protocol` what must be alike before it is compared. `superseded` says why another number is to
    be preferred; an `ablation` studies one setting; a number of a `figure` is from the authors' plot files.
    """

    data: str
    metric: str
    method: str
    epsilon: float
    value: float
    printed: str
    spread: float | None
    relation: str
    paper: str
    line: int | None
    source: str
    protocol: str
    superseded: str
    ablation: bool
    figure: bool


def published_numbers(data: str, *, everything: bool = False) -> list[Published]:
    """The papers' numbers on a data set; superseded ones and ablations only if `everything` is asked for."""
    return [
        number
        for number in all_published()
        if number.data == data and (everything or not (number.superseded or number.ablation))
    ]


def paper_titles() -> dict[str, str]:
    return dict(_file()["papers"])


@cache
def all_published() -> tuple[Published, ...]:
    return tuple(
        _number(table, {**table, **column, **row}, printed)
        for table in _file()["tables"]
        for row in table["rows"]
        for column, printed in zip(table["columns"], row["values"], strict=True)
        if printed
    )


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(package_text("published.toml"))


def _number(table: dict[str, Any], facts: dict[str, Any], text: str) -> Published:
    share = table.get("unit") == "%"
    printed, _, spread = text.partition(" ± ")
    value = Decimal(printed).scaleb(-2 if share else 0)  # keeps the digits
    epsilon, line, paper = float(facts["epsilon"]), facts.get("line"), table["paper"]
    place = f"{paper}:{line}, {table['table']}" if line else paper_titles()[paper]
    # A table by classifier has the score in its columns and the classifier in its rows; one by encoder likewise.
    metric = ".".join(part for part in (facts["metric"], facts.get("classifier", "")) if part)
    method = ", ".join(part for part in (facts["method"], facts.get("variant", "")) if part)
    return Published(
        data=facts["data"],
        metric=metric,
        method=method,
        epsilon=epsilon,
        value=float(value),
        printed=str(value),
        spread=float(Decimal(spread).scaleb(-2 if share else 0)) if spread else None,
        relation="none" if math.isinf(epsilon) else facts["relation"],
        paper=paper,
        line=line,
        source=place,
        protocol=table.get("protocol", ""),
        superseded=table.get("superseded", ""),
        ablation=table.get("ablation", False),
        figure=table.get("figure", False),
    )
