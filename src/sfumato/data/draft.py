"""A schema to be filled in: what the header of a table says, and placeholders for what nobody may read off its rows.

Names come from the header, kinds from the types in it (a .csv has none). Ranges, categories and classes are left open, with a
comment that says where they come from: a code book, a form, common knowledge. No row is read, not even for a guess.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from sfumato.data.schema import MISSING
from sfumato.data.tables import PlainTable
from sfumato.errors import BadInput
from sfumato.files import check_file

RANGE = (
    "Fill in the least and the largest value that can occur, from public knowledge (a code book, a form, common sense). Not the "
    "ones in the data: they belong to two persons."
)
CATEGORIES = (
    "List every value that can occur, as the file spells it, from a code book and not from the data: a rare value in the list "
    "tells that somebody has it."
)
EITHER = "numerical (of type real, integer or date) with low and high, or categorical or ordinal with categories?"
TEXT = (
    "A .csv does not say what its columns hold, so say it: kind numerical with low and high, the least and the largest value "
    "that can occur, or kind categorical (ordinal, if they have an order) with categories, every value that can occur. From "
    "public knowledge (a code book, a form), not from the data. "
)
# A number with or without a unit of thousands, per cent or currency; digits with the marks of dates and times between them.
_VALUE = re.compile(
    r"[+-]?[$€£]?[\d.,]*\d[\d.,]*([eE][+-]?\d+)?\s*[%€$£]?|\d+([-/.: T]\d+)+Z?", re.ASCII
)
WHOLE = (
    "Fill in what is null from public knowledge, then delete the comments if you like. Leave out columns that are not to be made "
    "(names, numbers of patients: say those by --unit). A column to be predicted is no feature: move its name to label and its "
    "values to classes. sfumato schema check FILE says what is still missing."
)


def draft(
    path: Path, label: str | None = None, *, header_is_stated: bool = False
) -> dict[str, Any]:
    """A schema file for a table with the blanks left blank; `label` is the column to be predicted, if one is.

    `header_is_stated`: the caller has looked, and the first line of a .csv has names even where they are numbers or dates (2019).
    """
    check_file(path)
    table = PlainTable(path)
    header, types = table.header, table.types
    if not header:
        raise BadInput(f"{path} has no header; write the names of its columns into the first line.")
    if len(set(header)) < len(header):
        raise BadInput(
            f"Two columns of {path} have one name in its first line, the header; rename or remove one, or write the names above "
            "the records if that line is one."
        )
    if header_is_stated and not all(name.strip() for name in header):
        raise BadInput(f"A column of {path} has no name in the first line; write one there.")
    if not types and not header_is_stated and any(_like_data(name) for name in header):
        raise BadInput(
            f"The first line of {path} is taken for the names of its columns and looks like a record (a number, a date, an empty "
            "field), which must not reach a public file; write the names into a line above it, or, if they are names (2019), add "
            "--header."
        )
    if label is not None and label not in header:
        raise BadInput(
            f"{path} has no column {label!r} in its first line, the header; correct --label."
        )
    facts: dict[str, Any] = {"kind": "table", "comment": WHOLE if types else TEXT + WHOLE}
    if label is not None:
        facts |= {"label": label, "classes": None}
    columns = [_column(name, types.get(name)) for name in header if name != label]
    return facts | {"columns": columns}


def _like_data(name: str) -> bool:
    """Whether a field of a .csv's first line is rather a record's: empty, missing, a number, a date or a time."""
    text = name.strip()
    return text in MISSING or _VALUE.fullmatch(text) is not None


def _column(name: str, kind: Any) -> dict[str, Any]:
    if kind is None:
        return {"name": name, "kind": None, "comment": EITHER}
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return {"name": name, "kind": "categorical", "categories": ["false", "true"]}
    whole = {"low": None, "high": None, "comment": RANGE}
    if pa.types.is_integer(kind):
        return {"name": name, "kind": "numerical", "type": "integer", **whole}
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return {"name": name, "kind": "numerical", **whole}
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return {"name": name, "kind": "numerical", "type": "date", **whole}
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return {"name": name, "kind": "categorical", "categories": None, "comment": CATEGORIES}
    raise BadInput(
        f"Column {name!r} holds {kind}, which is neither numbers, dates nor text; convert or remove it."
    )
