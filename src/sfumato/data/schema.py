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
from typing import Any, Literal, get_args

from sfumato.errors import BadInput

ColumnKind = Literal["numerical", "categorical", "ordinal"]
SchemaKind = Literal["images", "table"]
ValueRange = tuple[float, float]
Fit = Literal["stretch", "pad", "crop"]

# More is a slip of the pen or a file made to exhaust the memory, and is refused before anything is allocated.
MOST_NUMBERS = 1 << 24  # in one record
MOST_PIXELS = 1 << 25  # in one picture as it is stored, by its header, before it is unpacked
MOST_CLASSES = 1 << 16
# What stands for an empty cell among numbers in text, and tells no unit. An empty category is none of the categories.
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")


@dataclass(frozen=True, kw_only=True)
class Column:
    """One feature column of a table.

    `numerical` needs a public range `low` < `high`; `categorical` and `ordinal` need their
    `categories` (for `ordinal` in their order). `missing` says whether a record may leave the
    column empty.
    """

    name: str
    kind: ColumnKind
    low: float | None = None
    high: float | None = None
    categories: tuple[str, ...] = ()
    missing: bool = False

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
        if self.kind == "numerical":
            if self.categories:
                raise BadInput(
                    f"Numerical column {self.name!r} lists categories; remove them or make it "
                    "categorical."
                )
            low = _finite(self.low, f"`low` of column {self.name!r}")
            high = _finite(self.high, f"`high` of column {self.name!r}")
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
            what = f"The categories of column {self.name!r}"
            object.__setattr__(self, "categories", _names(self.categories, what))
            if not self.categories:
                raise BadInput(
                    f"Column {self.name!r} is {self.kind} and has no categories; list every value "
                    "it can take."
                )

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.kind == "numerical":
            facts |= {"low": self.low, "high": self.high}
        else:
            facts["categories"] = list(self.categories)
        if self.missing:
            facts["missing"] = True
        return facts

    @classmethod
    def from_json(cls, facts: Any) -> Column:
        known = ("name", "kind", "low", "high", "categories", "missing")
        facts = _object(facts, known, "A column of the schema")
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
        object.__setattr__(self, "columns", tuple(self.columns))
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
        if not self.columns or not all(isinstance(c, Column) for c in self.columns):
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
        known = ("kind", "shape", "classes", "columns", "label", "value_range", "fit")
        facts = dict(_object(facts, known, "The schema"))
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


def _check_name(name: Any, what: str) -> None:
    # Surrounding blanks are trimmed from files on reading, and an empty cell means missing.
    if not isinstance(name, str) or not name or name != name.strip() or not name.isprintable():
        raise BadInput(
            f"{what} must be text without blanks around it or line breaks in it; {name!r} is not."
        )


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


def _object(facts: Any, known: tuple[str, ...], what: str) -> Mapping[str, Any]:
    if not isinstance(facts, Mapping):
        raise BadInput(f"{what} is not a JSON object; write it between braces.")
    unknown = sorted(str(key) for key in facts if key not in known)
    if unknown:
        raise BadInput(f"{what} has unknown keys {unknown}; the known ones are {', '.join(known)}.")
    return facts
