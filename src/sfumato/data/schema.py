"""The public facts of a data set: its shape, its columns and their ranges, its classes.

Everything here is PUBLIC: it is written down by a person who knows the domain, or is part of a
file's layout, and is never computed from rows. A range, a category list or a class count read off
private rows would be a leak that no accountant sees, so this module has no function that takes
data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, Literal, get_args

from sfumato.errors import BadInput

ColumnKind = Literal["numerical", "categorical", "ordinal"]
ColumnType = Literal["real", "integer", "date"]
SchemaKind = Literal["images", "table"]
ValueRange = tuple[float, float]
Fit = Literal["stretch", "pad", "crop"]

# More is a slip of the pen or a file made to exhaust the memory, and is refused before anything is allocated.
MOST_NUMBERS = 1 << 24  # in one record
MOST_PIXELS = 1 << 25  # in one picture as it is stored, by its header, before it is unpacked
MOST_CLASSES = 1 << 16
EPOCH = date(1970, 1, 1)
# What stands for an empty cell among numbers in text, and tells no unit. An empty category is none of the categories.
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")


# The keys of a schema file and what may stand there, for `from_json` and for editors (`json_schema`).
_REMARKS = ("comment", "$schema")
_COMMENT = {"description": "A remark for people; not read."}
_NAMES = {"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": True}
COLUMN_KEYS: dict[str, Any] = {
    "name": {"type": "string", "minLength": 1, "description": "As the file's header spells it."},
    "kind": {
        "enum": list(get_args(ColumnKind)),
        "description": "numerical: numbers or dates in a range; ordinal: categories in their order.",
    },
    "type": {
        "enum": list(get_args(ColumnType)),
        "default": "real",
        "description": "Of a numerical column: what its numbers are, and what samples will have.",
    },
    "low": {
        "type": ["number", "string"],
        "description": "The least value that can occur, from public knowledge; of dates 2019-01-01.",
    },
    "high": {
        "type": ["number", "string"],
        "description": "The largest value that can occur, from public knowledge.",
    },
    "categories": {
        **_NAMES,
        "minItems": 1,
        "description": "Every value that can occur, from a code book and not from the data.",
    },
    "missing": {
        "type": "boolean",
        "default": False,
        "description": "Whether a record may leave the column empty.",
    },
    "comment": _COMMENT,
}
SCHEMA_KEYS: dict[str, Any] = {
    "kind": {"enum": list(get_args(SchemaKind)), "description": "What the records are."},
    "shape": {
        "type": "array",
        "items": {"type": "integer", "minimum": 1},
        "description": "Of images: [channels, height, width], with 1 or 3 channels.",
    },
    "classes": {**_NAMES, "description": "The values of the label, in the order of their codes."},
    "columns": {
        "type": "array",
        "minItems": 1,
        "items": {"$ref": "#/$defs/column"},
        "description": "Of a table: its features; other columns of the file are ignored.",
    },
    "label": {"type": "string", "description": "Of a table: the column that holds the class."},
    "value_range": {
        "type": "array",
        "items": {"type": "number"},
        "minItems": 2,
        "maxItems": 2,
        "description": "Of images: the stored numbers that stand for black and white, if no bytes.",
    },
    "fit": {
        "enum": list(get_args(Fit)),
        "default": "stretch",
        "description": "How pictures of other sizes become that of `shape`.",
    },
    "comment": _COMMENT,
    "$schema": {"type": "string", "description": "Where editors find this description."},
}


def json_schema() -> dict[str, Any]:
    """What a schema file may hold, as a JSON Schema (draft 2020-12) for editors and other programs.

    It says of each key what `from_json` says; what binds several keys together, such as low < high, is for the latter.
    """
    numerical = {"properties": {"kind": {"const": "numerical"}}}
    column = {
        "type": "object",
        "properties": COLUMN_KEYS,
        "required": ["name", "kind"],
        "additionalProperties": False,
        "if": numerical,
        "then": {"required": ["low", "high"], "not": {"required": ["categories"]}},
        "else": {
            "required": ["categories"],
            "not": {"anyOf": [{"required": [key]} for key in ("low", "high", "type")]},
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The public facts of a data set, for sfumato",
        "description": "From public knowledge only: a range or a list read off private rows would be a leak.",
        "type": "object",
        "properties": SCHEMA_KEYS,
        "required": ["kind"],
        "additionalProperties": False,
        "if": {"properties": {"kind": {"const": "table"}}},
        "then": {
            "required": ["columns"],
            "dependentRequired": {"label": ["classes"], "classes": ["label"]},
            "not": {"anyOf": [{"required": [key]} for key in ("value_range", "fit")]},
        },
        "else": {
            "required": ["shape"],
            "properties": {"shape": {"minItems": 3, "maxItems": 3}},
            "not": {"anyOf": [{"required": [key]} for key in ("columns", "label")]},
        },
        "$defs": {"column": column},
    }


def mistakes(facts: Any) -> list[str]:
    """Every sentence that is to be said of a schema file, column by column; none of a sound one."""
    found = []
    columns = facts.get("columns") if isinstance(facts, Mapping) else None
    for place, column in enumerate(columns if isinstance(columns, list) else [], 1):
        try:
            Column.from_json(column)
        except BadInput as error:
            found.append(f"Column {place}: {error}")
    if not found:
        try:
            Schema.from_json(facts)
        except BadInput as error:
            found.append(str(error))
    return found


@dataclass(frozen=True, kw_only=True)
class Column:
    """One feature column of a table.

    `numerical` needs a public range `low` < `high`; `categorical` and `ordinal` need their
    `categories` (for `ordinal` in their order). `missing` says whether a record may leave the
    column empty. The numbers of a column are `real`, or of type `integer` or `date`, and samples are
    of that type too; a date is the number of days since 1970-01-01, and its range may be written as text.
    """

    name: str
    kind: ColumnKind
    low: float | None = None
    high: float | None = None
    categories: tuple[str, ...] = ()
    missing: bool = False
    type: ColumnType = "real"

    def __post_init__(self) -> None:
        _check_name(self.name, "A column's name")
        if self.kind not in get_args(ColumnKind):
            raise BadInput(
                f"Column {self.name!r} has kind {self.kind!r}; use numerical, categorical or "
                "ordinal."
            )
        if not isinstance(self.missing, bool):
            raise BadInput(
                f"`missing` of column {self.name!r} is neither true nor false; write one of them."
            )
        if self.type not in get_args(ColumnType):
            raise BadInput(
                f"Column {self.name!r} has type {self.type!r}; use real, integer or date."
            )
        if self.kind == "numerical":
            if self.categories:
                raise BadInput(
                    f"Numerical column {self.name!r} lists categories; remove them or make it "
                    "categorical."
                )
            low, high = (
                self._end(end, f"`{side}` of column {self.name!r}")
                for side, end in (("low", self.low), ("high", self.high))
            )
            if not low < high:
                raise BadInput(
                    f"Column {self.name!r} has low {low:g} and high {high:g}; low must be less "
                    "than high."
                )
            object.__setattr__(self, "low", low)
            object.__setattr__(self, "high", high)
        else:
            if self.low is not None or self.high is not None:
                raise BadInput(
                    f"Column {self.name!r} is {self.kind} and has `low` or `high`; only numerical "
                    "ones do."
                )
            if self.type != "real":
                raise BadInput(
                    f"Column {self.name!r} is {self.kind} and has a `type`; only numerical ones do."
                )
            what = f"The categories of column {self.name!r}"
            object.__setattr__(self, "categories", _names(self.categories, what))
            if not self.categories:
                raise BadInput(
                    f"Column {self.name!r} is {self.kind} and has no categories; list every value "
                    "it can take."
                )

    def _end(self, end: Any, what: str) -> float:
        """An end of the range as a finite number; of integers a whole one, of dates the day."""
        if self.type == "date" and isinstance(end, str):
            try:
                return float((date.fromisoformat(end) - EPOCH).days)
            except ValueError:
                raise BadInput(f"{what} is no date; write it as 2024-12-31.") from None
        number = _finite(end, what)
        if self.type != "real" and number != math.floor(number):
            raise BadInput(f"{what} is no whole number; write one, as the column's type says.")
        return number

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.kind == "numerical":
            ends = {"low": self.low, "high": self.high}
            if self.type == "date":
                ends = {side: _day(end) for side, end in ends.items()}
            facts |= ends | ({} if self.type == "real" else {"type": self.type})
        else:
            facts["categories"] = list(self.categories)
        if self.missing:
            facts["missing"] = True
        return facts

    @classmethod
    def from_json(cls, facts: Any) -> Column:
        facts = _object(facts, COLUMN_KEYS, "A column of the schema")
        for key in ("name", "kind"):
            if key not in facts:
                raise BadInput(f"A column of the schema has no {key!r}; add it.")
        return cls(**facts)


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What anyone may know about a data set before a row is read.

    `shape` is (channels, height, width) for images and (number of feature columns,) for a
    table, where it may be left out. `classes` names the labels in the order of their codes;
    `()` means unlabelled. In a table, `columns` are the features and `label` is the name of the
    column that holds the class. `value_range` says which stored numbers of an image stand for
    black and white, in the units of its file; None leaves that to the stored type, which settles
    it for bytes (0 … 255), and means 0 … 1 for floating point rows of a Batch. `fit` says how a
    picture of another size is brought to `shape`: stretched, padded with black bars, or cropped to its middle; like `records` it
    is no fact of the rows' form, so it is written down and not compared.
    `records` is how many records there are, where somebody who may tell has said so (a fit, of a
    relation that makes the number public); it is a fact of one part of the data and not of their
    form, so it is neither compared nor written down.

    Guarantee: two schemas are equal exactly when their public facts are, and
    `from_json(to_json())` is the identity.
    """

    kind: SchemaKind
    shape: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    label: str | None = None
    value_range: ValueRange | None = None
    fit: Fit = field(default="stretch", compare=False)
    records: int | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(SchemaKind):
            raise BadInput(f'A schema has kind {self.kind!r}; use "images" or "table".')
        object.__setattr__(self, "classes", _names(self.classes, "The classes"))
        object.__setattr__(self, "shape", _whole_numbers(self.shape))
        object.__setattr__(self, "columns", _columns(self.columns))
        if self.value_range is not None:
            object.__setattr__(self, "value_range", checked_range(self.value_range))
        if self.fit not in get_args(Fit):
            raise BadInput(f"`fit` is {self.fit!r}; use stretch, pad or crop.")
        if self.kind == "images":
            self._check_images()
        else:
            self._check_table()

    def _check_images(self) -> None:
        if len(self.shape) != 3 or self.shape[0] not in (1, 3) or min(self.shape) < 1:
            raise BadInput(
                f"Images have shape {list(self.shape)}; write [channels, height, width] with 1 or "
                "3 channels."
            )
        if self.dim > MOST_NUMBERS:
            raise BadInput(
                f"Images of shape {list(self.shape)} are larger than sfumato reads; state a smaller size."
            )
        if self.columns or self.label is not None:
            raise BadInput(
                'A schema of images has `columns` or `label`; these belong to kind "table", '
                "remove them."
            )

    def _check_table(self) -> None:
        if self.value_range is not None:
            raise BadInput(
                "A table's schema has `value_range`; give each column its `low` and `high` instead."
            )
        if self.fit != "stretch":
            raise BadInput(
                "A table's schema has `fit`, which is how pictures are resized; remove it."
            )
        if not self.columns:
            raise BadInput("A table's schema needs at least one column; list its feature columns.")
        names = [column.name for column in self.columns]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise BadInput(
                f"Columns {repeated} are listed twice in the schema; list each one once."
            )
        if self.shape == ():
            object.__setattr__(self, "shape", (len(names),))
        if self.shape != (len(names),):
            raise BadInput(
                f"The schema has shape {list(self.shape)} and {len(names)} columns; leave `shape` "
                "out."
            )
        if (self.label is None) != (not self.classes):
            raise BadInput(
                "A table with a label needs both `label` (the column's name) and `classes` (its "
                "values); give both."
            )
        if self.label is not None:
            _check_name(self.label, "The label column's name")
            if self.label in names:
                raise BadInput(
                    f"The label {self.label!r} is also a feature column; list it only as `label`."
                )

    @property
    def labelled(self) -> bool:
        return bool(self.classes)

    @property
    def n_classes(self) -> int:
        """The number of classes; 0 when unlabelled."""
        return len(self.classes)

    @property
    def dim(self) -> int:
        """How many numbers one record holds, its label aside."""
        return math.prod(self.shape)

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"kind": self.kind, "shape": list(self.shape)}
        if self.classes:
            facts["classes"] = list(self.classes)
        if self.kind == "table":
            facts["columns"] = [column.to_json() for column in self.columns]
            if self.label is not None:
                facts["label"] = self.label
        if self.value_range is not None:
            facts["value_range"] = list(self.value_range)
        if self.fit != "stretch":
            facts["fit"] = self.fit
        return facts

    @classmethod
    def from_json(cls, facts: Any) -> Schema:
        facts = _object(facts, SCHEMA_KEYS, "The schema")
        if "kind" not in facts:
            raise BadInput('The schema has no "kind"; add "kind": "images" or "kind": "table".')
        columns = facts.get("columns", ())
        if not isinstance(columns, (list, tuple)):
            raise BadInput("`columns` of the schema is not a list; write a list of columns.")
        facts["columns"] = tuple(Column.from_json(column) for column in columns)
        return cls(**facts)


def class_names(classes: Sequence[str] | int) -> tuple[str, ...]:
    """The names of the classes: as given, or "0" … for a number of them."""
    if isinstance(classes, bool) or (isinstance(classes, int) and classes < 1):
        raise BadInput(f"`classes` is {classes}; pass how many classes there are, or their names.")
    if isinstance(classes, int):
        if classes > MOST_CLASSES:
            raise BadInput(
                f"`classes` is more than {MOST_CLASSES:,}; state how many classes there are, or their names."
            )
        return tuple(str(code) for code in range(classes))
    names = _names(classes, "The classes")
    if not names:
        raise BadInput("`classes` is empty; pass how many classes there are, or their names.")
    return names


def range_of_bits(bits: int) -> ValueRange:
    """The range of whole numbers of that many bits: 0 … 2^bits − 1."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 32:
        raise BadInput(f"`bits` is {bits!r}; state how many bits a pixel has, from 1 to 32.")
    return 0.0, float(2**bits - 1)


def checked_range(given: Any) -> ValueRange:
    """A stated range as two finite numbers, the lower one first."""
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        raise BadInput(
            "`value_range` is not a pair of numbers; write the values of black and white, such as [0, 4095]."
        )
    low, high = (_finite(value, "An end of `value_range`") for value in given)
    if not low < high or not math.isfinite(high - low):
        raise BadInput(
            f"`value_range` is {low:g} to {high:g}; the first number must be less than the second."
        )
    return low, high


def _names(names: Iterable[Any], what: str) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise BadInput(f"{what} are not a list of names; write a list.")
    given = tuple(names)
    for name in given:
        _check_name(name, f"{what}: every name")
    if len(set(given)) != len(given):
        raise BadInput(f"{what} repeat a name; list each one once.")
    return given


def _columns(columns: Any) -> tuple[Column, ...]:
    given = tuple(columns) if isinstance(columns, Iterable) else (columns,)
    for column in given:
        if not isinstance(column, Column):
            raise BadInput(
                f"A column of the schema is given as {type(column).__name__}; write Column(name=…, kind=…, …) for each."
            )
    return given


def _check_name(name: Any, what: str) -> None:
    # Surrounding blanks are trimmed from files on reading, and an empty cell means missing.
    if not isinstance(name, str) or not name or name != name.strip() or not name.isprintable():
        raise BadInput(
            f"{what} must be text without blanks around it or line breaks in it; {name!r} is not."
        )


def _day(number: float | None) -> Any:
    try:
        return str(EPOCH + timedelta(days=number or 0.0))
    except OverflowError:  # a day that no calendar has; the number says it too
        return number


def _finite(value: Any, what: str) -> float:
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise BadInput(f"{what} is no finite number; state a finite public range.")
    return number


def _whole_numbers(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, (list, tuple)) or not all(
        isinstance(side, int) and not isinstance(side, bool) for side in shape
    ):
        raise BadInput(f"`shape` of the schema is {shape!r}; write a list of whole numbers.")
    return tuple(shape)


def _object(facts: Any, known: Mapping[str, Any], what: str) -> dict[str, Any]:
    """What is known of a JSON object; a comment is for people, `$schema` for their editors."""
    if not isinstance(facts, Mapping):
        raise BadInput(f"{what} is not a JSON object; write it between braces.")
    unknown = sorted(str(key) for key in facts if key not in known)
    if unknown:
        raise BadInput(f"{what} has unknown keys {unknown}; the known ones are {', '.join(known)}.")
    return {key: value for key, value in facts.items() if key not in _REMARKS}
