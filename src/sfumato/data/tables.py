"""Tables: names and numbers, turned into float32 rows and back by the public schema.

Categories become their codes in the schema's order, missing values NaN, labels their class code.
Ranges and categories are PUBLIC and come from the schema; the cells are PRIVATE, so no error quotes
one (Arrow's own messages do, and are therefore never passed on).

**Guarantee**: a cell is read by the schema and the file's layout alone. No type is inferred from
rows, and nothing is decided for a block of them, so a record changes what it is itself and no other
record; a record that breaks the form of the file stops the reading for good, wherever it stands.
In a .csv one line is one record: a line that is no well-formed record (a stray or unclosed quote,
too few or too many fields, a NUL) is refused by its number.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from sfumato.data.schema import MISSING, Column, Schema, ValueRange
from sfumato.data.sources import Array, Rows, Scale, StreamSource, pixel_scale
from sfumato.errors import BadInput, SfumatoError

LABEL = "label"
# A .csv is read so many bytes at a time, and no line may be longer than the second number (or 64 a column).
CSV_BYTES = 1 << 18
_LINE_BYTES = 1 << 20
_HEADER_BYTES = 1 << 24
PARQUET_ROWS = 8192
# A column of a row group that claims to unpack to so much, from a thousandth of it, is refused.
_UNPACKED_BYTES = 1 << 30

# ------------------------------------------------------------------------------- cells to numbers


def pixel_names(schema: Schema) -> list[str]:
    return [f"pixel_{index}" for index in range(schema.dim)]


def column_names(schema: Schema) -> list[str]:
    """The columns of a file that holds data of this schema, the label last."""
    if schema.kind == "images":
        return pixel_names(schema) + ([LABEL] if schema.labelled else [])
    return [c.name for c in schema.columns] + ([schema.label] if schema.label else [])


def encode_columns(columns: Mapping[str, Any], schema: Schema) -> Rows:
    """A mapping or DataFrame as rows; it is here in full, so an unknown category is refused."""
    if not isinstance(schema, Schema) or schema.kind != "table":
        raise BadInput('`from_table` needs a schema of kind "table"; use `from_arrays` for images.')
    if not hasattr(columns, "__getitem__") or not hasattr(columns, "__contains__"):
        raise BadInput(
            f"The columns are given as {type(columns).__name__}; pass a mapping of their names to arrays, or a DataFrame."
        )
    absent = [name for name in column_names(schema) if name not in columns]
    if absent:
        raise BadInput(f"The table lacks the columns {absent}; add them or correct the schema.")
    arrays = {}
    numerical = {
        c.name: _date if c.type == "date" else _number for c in schema.columns if c.low is not None
    }
    categories = {column.name: column.categories for column in schema.columns}
    for name in column_names(schema):
        try:
            if name in numerical:
                arrays[name] = _arrow(columns[name], numerical[name])
            else:
                lookup = _lookup(categories.get(name, schema.classes))
                arrays[name] = _arrow(columns[name], lookup.name)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise BadInput(
                f"Column {name!r} holds something else than numbers or text as its schema says; convert it."
            ) from None
    if len({len(array) for array in arrays.values()}) != 1:
        raise BadInput("The columns are not equally long; give every column one value a record.")
    for column in schema.columns:
        if column.categories:
            _refuse_unknown(arrays[column.name], column.name, column.categories)
    if schema.label:
        _refuse_unknown(arrays[schema.label], schema.label, schema.classes, missing=True)
    return _encode(arrays, schema)


def _arrow(values: Any, convert: Callable[[Any], float | str | date | None]) -> pa.Array:
    """A column as an Arrow array; one of Python objects is converted cell by cell, so that no cell decides its type."""
    if isinstance(values, pa.Array):
        return values
    if hasattr(values, "dtype") and values.dtype != object:
        array = pa.array(values, from_pandas=True)
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    kind = pa.float64() if convert is _number else pa.date32() if convert is _date else pa.string()
    return pa.array([None if _absent(value) else convert(value) for value in values], kind)


def _absent(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def _number(value: Any) -> float:
    if isinstance(value, (int, float, Decimal, np.integer, np.floating)) and not isinstance(
        value, bool
    ):
        return float(value)
    raise TypeError("no number")


def _date(value: Any) -> date:
    if isinstance(value, datetime):
        return value.date()
    return value if isinstance(value, date) else date.fromisoformat(value)


def _refuse_unknown(
    array: pa.Array, name: str, categories: tuple[str, ...], *, missing: bool = False
) -> None:
    codes = _codes(array, name, categories)
    unknown = codes.null_count - (0 if missing else array.null_count)
    if unknown > 0:
        raise BadInput(
            f"Column {name!r} holds values that are none of its categories; complete the list in "
            "the schema."
        )


def _encode(arrays: Mapping[str, pa.Array], schema: Schema) -> Rows:
    size = len(next(iter(arrays.values())))
    values = np.empty((size, len(schema.columns)), np.float32)
    for index, column in enumerate(schema.columns):
        array = arrays[column.name]
        if column.kind == "numerical":
            values[:, index] = _numbers(array, column)
        else:
            codes = _codes(array, column.name, column.categories).cast(pa.float32())
            values[:, index] = codes.to_numpy(zero_copy_only=False)
    labels = None
    if schema.label:
        labels = _labels(arrays[schema.label], schema)
    return values, labels


def _labels(array: pa.Array, schema: Schema) -> Array:
    codes = pc.fill_null(_codes(array, schema.label or LABEL, schema.classes), -1)
    return np.asarray(codes.to_numpy(zero_copy_only=False), np.int64)


def _numbers(array: pa.Array, column: Column) -> Array:
    plain = pa.types
    kind = array.type
    if plain.is_null(kind):
        return np.full(len(array), np.nan, np.float32)
    if column.type == "date":
        return _days(array, column)
    if not (plain.is_integer(kind) or plain.is_floating(kind) or plain.is_decimal(kind)):
        raise BadInput(
            f"Column {column.name!r} is numerical in the schema and {kind} in the data; convert "
            "one of them."
        )
    numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        return np.asarray(numbers, np.float32)


def _days(array: pa.Array, column: Column) -> Array:
    """Dates, moments, or text like 2024-12-31, as the number of the day."""
    plain, kind = pa.types, array.type
    text = plain.is_string(kind) or plain.is_large_string(kind) or plain.is_string_view(kind)
    if not (plain.is_date(kind) or plain.is_timestamp(kind) or text):
        raise BadInput(
            f"Column {column.name!r} holds dates by the schema and {kind} in the data; convert one of them."
        )
    try:
        plainly = array.cast(pa.string()) if text else array
        days = plainly.cast(pa.date32(), safe=False).cast(pa.int32()).cast(pa.float64())
    except pa.ArrowException:
        raise BadInput(
            f"Column {column.name!r} holds something else than dates like 2024-12-31; convert it."
        ) from None
    return np.asarray(days.to_numpy(zero_copy_only=False), np.float32)


def _codes(array: pa.Array, name: str, categories: tuple[str, ...]) -> pa.Array:
    """The code of each cell, null where it is missing or none of the categories; see `_Lookup`."""
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), pa.int32())
    try:
        # Only to look up each distinct value once: the code is a function of the cell.
        coded = array if isinstance(array, pa.DictionaryArray) else array.dictionary_encode()
        lookup = _lookup(categories)
        codes = [lookup.code(value) for value in _plain(coded.dictionary)]
        return pa.array(codes, pa.int32()).take(coded.indices)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise BadInput(
            f"Column {name!r} has categories and is {array.type}; convert it to text or numbers."
        ) from None


def _plain(values: pa.Array) -> Sequence[Any]:
    kind = values.type
    if pa.types.is_floating(kind):
        # Keeps the type: 0.1 in 32 bits is written "0.1".
        return list(values.to_numpy(zero_copy_only=False).astype(kind.to_pandas_dtype()))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return list(values.to_pylist())
    return list(values.cast(pa.string()).to_pylist())


_NUMERAL = re.compile(r"[+-]?\d{1,40}(\.\d{0,40})?([eE][+-]?\d{1,2})?", re.ASCII)


class _Lookup:
    """Which category a cell is, by the cell alone.

    Text is the category that it spells, blanks around it aside; a number is the category that spells this
    number (1, 1.0 and −0.0 are "1", "1" and "0"; "1.0" and "1e10" are spellings too); a truth value is the
    category "true" or "false" in any case. All else is none of the categories.
    """

    def __init__(self, categories: Sequence[str]) -> None:
        self._categories = tuple(categories)
        self._texts = {text: code for code, text in enumerate(categories)}
        self._numbers: dict[str, int] = {}
        self._truths: dict[str, int] = {}
        for code, text in enumerate(categories):
            self._truths.setdefault(text.lower(), code)
            if _NUMERAL.fullmatch(text):
                self._numbers.setdefault(_written_out(Decimal(text)), code)

    def code(self, value: Any) -> int | None:
        if isinstance(value, str):
            return self._texts.get(value.strip())
        if isinstance(value, (bool, np.bool_)):
            return self._truths.get("true" if value else "false")
        if isinstance(value, (int, np.integer)):
            return self._of_number(str(int(value)))
        if isinstance(value, (float, np.floating)):
            if not np.isfinite(value):
                return None
            # The shortest decimal that reads back as this number; + 0.0 drops the sign of a zero.
            return self._of_number(np.format_float_positional(value + value.__class__(0), trim="-"))
        if isinstance(value, Decimal):
            return self._of_number(_written_out(value)) if value.is_finite() else None
        return None

    def name(self, value: Any) -> str:
        """The category of a Python object, or some text that is none."""
        if isinstance(value, str):
            return value
        if isinstance(value, date):
            return str(value)
        if not isinstance(value, (bool, int, float, Decimal, np.generic)):
            raise TypeError("neither text nor number")
        code = self.code(value)
        return "" if code is None else self._categories[code]

    def _of_number(self, text: str) -> int | None:
        found = self._texts.get(text)
        return self._numbers.get(text) if found is None else found


@functools.lru_cache(maxsize=256)
def _lookup(categories: tuple[str, ...]) -> _Lookup:
    return _Lookup(categories)


def class_code(cell: Any, classes: tuple[str, ...]) -> int:
    """The code of the class that a cell names, −1 where it names none."""
    code = _lookup(classes).code(cell)
    return -1 if code is None else code


def whole_number(cell: Any) -> int | None:
    """A cell that is a whole number, whatever type it has it in; text and truth values are none."""
    if isinstance(cell, (bool, np.bool_)):
        return None
    if isinstance(cell, (int, np.integer)):
        return int(cell)
    whole = isinstance(cell, (float, np.floating)) and float(cell).is_integer()
    return int(cell) if whole else None


def label_code(cell: Any, classes: tuple[str, ...]) -> int:
    """The code of a label that may be a name or a count: the class that it names, else the one at that place; −1 for neither.

    By the cell alone, and only for classes of which no number names one and counts another (`check_countable`).
    """
    code, number = class_code(cell, classes), whole_number(cell)
    if code < 0 and number is not None and 0 <= number < len(classes):
        return number
    return code


def countable(classes: Sequence[str]) -> bool:
    """Whether every number that names a class counts the same one, or none."""
    names = tuple(classes)
    return all(class_code(place, names) in (-1, place) for place in range(len(names)))


def check_countable(classes: Sequence[str], what: str, remedy: str) -> None:
    """Refuse classes by whose names a number could be one class and by their order another: no record may settle it."""
    if not countable(classes):
        raise BadInput(
            f"The classes are called by numbers that do not count them (0, 1, …), so a number in {what} could be a name or a "
            f"place; {remedy}."
        )


def _written_out(number: Decimal) -> str:
    """A number in decimal digits without an exponent or needless zeros."""
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    text = text.lstrip("+")
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    digits = digits.lstrip("0") or "0"
    if digits.startswith("."):
        digits = "0" + digits
    return digits if digits == "0" else sign + digits


# ------------------------------------------------------------------------------- numbers to cells


_WRITTEN = {"real": pa.float32(), "integer": pa.int64(), "date": pa.date32()}


def whole_numbers(values: Array, schema: Schema) -> Array:
    """The rows with columns of integers and dates rounded to such, inside their range; missing ones stay missing."""
    rounded = values
    for index, column in enumerate(schema.columns):
        if column.type != "real":
            rounded = values.copy() if rounded is values else rounded
            rounded[:, index] = np.rint(values[:, index])
    return rounded


def arrow_schema(schema: Schema, pixel: Any) -> pa.Schema:
    """The columns of a written file; pixels keep their type, categories and classes are text."""
    if schema.kind == "images":
        kind = pa.uint8() if pixel == np.uint8 else pa.float32()
        fields = [(name, kind) for name in pixel_names(schema)]
    else:
        fields = [
            (c.name, _WRITTEN[c.type] if c.low is not None else pa.string()) for c in schema.columns
        ]
    if schema.labelled:
        fields.append((schema.label or LABEL, pa.string()))
    return pa.schema(fields)


def decode_rows(values: Array, labels: Array | None, schema: Schema, layout: pa.Schema) -> Any:
    """Rows as an Arrow record batch with names in place of codes."""
    flat = values.reshape(len(values), -1)
    columns = []
    for index in range(flat.shape[1]):
        column = flat[:, index]
        if schema.kind == "table" and schema.columns[index].categories:
            columns.append(_names(column, schema.columns[index].categories))
        elif schema.kind == "table":
            columns.append(_written(column, schema.columns[index]))
        else:
            columns.append(pa.array(np.ascontiguousarray(column)))
    if labels is not None:
        columns.append(_names(np.where(labels < 0, np.nan, labels), schema.classes))
    return pa.record_batch(columns, schema=layout)


def _written(numbers: Array, column: Column) -> pa.Array:
    if column.type == "real":
        return pa.array(numbers, pa.float32(), from_pandas=True)
    absent = np.isnan(numbers)
    whole = np.rint(np.where(absent, 0, numbers)).astype(np.int64)
    if column.type == "integer":
        return pa.array(whole, pa.int64(), mask=absent)
    return pa.array(whole.astype(np.int32), pa.int32(), mask=absent).cast(pa.date32())


def _names(codes: Array, names: Sequence[str]) -> pa.Array:
    absent = np.isnan(codes)
    indices = pa.array(np.where(absent, 0, codes).astype(np.int32), mask=absent)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string())).cast(pa.string())


# ------------------------------------------------------------------------------------------ files


class TableFile(StreamSource):
    """A .csv or .parquet file with the columns of a schema, streamed in constant memory.

    `len` of a .csv reads it through: whoever asks has read private rows, though nothing but their
    number comes of it.
    """

    def __init__(self, path: Path, schema: Schema, *, fallback: ValueRange | None = None) -> None:
        self.path = path
        self.schema = schema
        self._parquet = path.suffix.lower() == ".parquet"
        self._size: int | None = None
        self._pixel: np.dtype[Any] = np.dtype(np.uint8)
        self._scale: Scale | None = None
        self._header = self._parquet_header() if self._parquet else self._csv_header()
        wanted, there = column_names(schema), set(self._header)
        absent = [name for name in wanted if name not in there]
        if absent:
            shown = f"{absent[:5]}{' and more' if len(absent) > 5 else ''}"
            raise BadInput(
                f"{path} lacks the columns {shown}; correct the file's header or the schema."
            )
        if len(there) < len(self._header):
            twice = [name for name in wanted if self._header.count(name) > 1]
            if twice:
                raise BadInput(f"{path} has two columns {twice[0]!r}; rename or remove one.")
        if schema.kind == "images":
            self._settle(fallback)
        self._lines = _csv_lines(len(self._header))

    def known_size(self) -> int | None:
        """The number of rows when the file's header tells it, without reading a row."""
        return self._size

    def __len__(self) -> int:
        if self._size is None:
            self._size = sum(self._records(block) for block in self._csv_blocks())
        return self._size

    def blocks(self, size: int) -> Iterator[Rows]:
        return self.between(size, 0, None)

    def between(self, size: int, start: int, stop: int | None) -> Iterator[Rows]:
        """Row groups and lines before `start` are not turned into rows; lines are looked at, to count them."""
        for piece in _rebatched(self._pieces(size, self._kinds(), start, stop), size):
            yield self._rows(piece)

    def cells(self, name: str) -> Iterator[Any]:
        """One column, whether the schema has it or not: text in a .csv, else as it is stored."""
        for piece in self._pieces(PARQUET_ROWS, {name: pa.string()}):
            with reading(self.path):
                cells = piece.column(name).to_pylist()
            yield from cells

    def texts(self, names: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
        """Cells of several columns as they are stored, some records at a time; PRIVATE, for the owner's eyes."""
        for piece in self._pieces(PARQUET_ROWS, dict.fromkeys(names, pa.string())):
            with reading(self.path):
                cells = piece.to_pydict()
            yield cells

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(self._header)

    def __getstate__(self) -> dict[str, Any]:
        # Another process may work in another folder.
        return {**vars(self), "path": self.path.absolute()}

    def _pieces(
        self, size: int, kinds: dict[str, Any], start: int = 0, stop: int | None = None
    ) -> Iterator[pa.Table]:
        """The columns named in `kinds`, as these types in a .csv; rows from `start` up to `stop`."""
        if self._parquet:
            return self._parquet_pieces(size, list(kinds), start, stop)
        return self._csv_pieces(kinds, start, stop)

    def _rows(self, piece: pa.Table) -> Rows:
        arrays = {name: piece.column(name).combine_chunks() for name in column_names(self.schema)}
        if self.schema.kind == "table":
            try:
                return _encode(arrays, self.schema)
            except BadInput as error:
                raise BadInput(f"{self.path}: {error}") from None
        values = np.empty((len(piece), self.schema.dim), self._pixel)
        for index, name in enumerate(pixel_names(self.schema)):
            if arrays[name].null_count:
                raise BadInput(
                    f"{self.path} has empty cells among the pixels; complete or drop the records."
                )
            values[:, index] = arrays[name].to_numpy(zero_copy_only=False)
        labels = _labels(arrays[LABEL], self.schema) if self.schema.labelled else None
        if self._scale is not None:
            values = self._scale(values)
        return values.reshape(-1, *self.schema.shape), labels

    def _settle(self, fallback: ValueRange | None) -> None:
        """The type of the pixels and their range; a .csv holds bytes unless a range is stated."""
        stated = self.schema.value_range
        if not self._parquet:
            if stated is not None:
                self._pixel, self._scale = np.dtype(np.float64), Scale(*stated)
            return
        kinds = {self._layout.field(name).type for name in pixel_names(self.schema)}
        try:
            (kind,) = kinds
            self._pixel = np.dtype(kind.to_pandas_dtype())
        except (ValueError, TypeError, NotImplementedError):
            raise BadInput(
                f"The pixels in {self.path} are not of one type of numbers; store all as uint8."
            ) from None
        if stated is None and self._pixel != np.uint8 and self._pixel.kind != "b" and fallback:
            self.schema = replace(self.schema, value_range=fallback)
        try:
            self._scale = pixel_scale(self._pixel, self.schema.value_range)
        except BadInput as error:
            raise BadInput(f"{self.path}: {error}") from None

    # ------------------------------------------------------------------------------------ parquet

    def _parquet_header(self) -> list[str]:
        with reading(self.path), parquet_file(self.path) as file:
            self._size = file.metadata.num_rows
            self._layout = file.schema_arrow
            return list(self._layout.names)

    def _parquet_pieces(
        self, size: int, names: list[str], start: int, stop: int | None
    ) -> Iterator[pa.Table]:
        # One row group at a time, each through a small buffer: Arrow would read far ahead.
        options = {"buffer_size": 1 << 16, "pre_buffer": False}
        rows = 0
        with reading(self.path), parquet_file(self.path, **options) as file:
            for group in range(file.num_row_groups):
                facts = file.metadata.row_group(group)
                end = rows + facts.num_rows
                if end <= start or (stop is not None and rows >= stop):
                    rows = end
                    continue
                self._refuse_bomb(facts)
                for batch in file.iter_batches(
                    min(size, PARQUET_ROWS), row_groups=[group], columns=names, use_threads=False
                ):
                    piece = pa.table({name: _dense(batch.column(name)) for name in names})
                    yield _inside(piece, rows, start, stop)
                    rows += len(batch)
                if rows != end:
                    raise BadInput(f"{self.path} is damaged; restore it from its original.")
            if rows != self._size:
                raise BadInput(f"{self.path} is damaged; restore it from its original.")

    def _refuse_bomb(self, group: Any) -> None:
        for index in range(group.num_columns):
            column = group.column(index)
            unpacked, packed = column.total_uncompressed_size, column.total_compressed_size
            if unpacked > _UNPACKED_BYTES and unpacked > 1000 * packed:
                raise BadInput(
                    f"{self.path} would unpack to far more than it holds; write it again from its original."
                )

    # ---------------------------------------------------------------------------------------- csv

    def _csv_header(self) -> list[str]:
        try:
            with self.path.open("rb") as stream:
                line = stream.readline(_HEADER_BYTES)
            if len(line) == _HEADER_BYTES:
                raise csv.Error
            text = line.decode("utf-8-sig").rstrip("\r\n")
            if line and not _csv_lines(None).fullmatch(text.encode() + b"\n"):
                raise csv.Error
            return next(csv.reader([text], strict=True), [])
        except FileNotFoundError:
            raise BadInput(f"There is no {self.path}; check the path.") from None
        except (OSError, ValueError, csv.Error):
            raise BadInput(
                f"{self.path} does not begin with a line of column names in UTF-8; convert it."
            ) from None

    def _csv_blocks(self) -> Iterator[bytes]:
        """The lines below the header in blocks of whole, well-formed ones."""
        size = max(CSV_BYTES, 16 * len(self._header))
        longest = max(_LINE_BYTES, 64 * len(self._header))
        number = 2
        with reading(self.path), self.path.open("rb") as stream:
            stream.readline()
            rest = b""
            while True:
                chunk = stream.read(size)
                block = rest + (chunk or b"\n" * bool(rest))
                cut = block.rfind(b"\n") + 1
                block, rest = block[:cut], block[cut:]
                if len(block) > longest:
                    for line in block.split(b"\n"):
                        if len(line) > longest:
                            raise self._malformed(number)
                        number += 1
                    number -= block.count(b"\n") + 1
                if len(rest) > longest:
                    raise self._malformed(number + block.count(b"\n"))
                good = self._lines.match(block)
                end = good.end() if good else 0
                if end != len(block):
                    raise self._malformed(number + block.count(b"\n", 0, end))
                if block:
                    yield block
                    number += block.count(b"\n")
                if not chunk:
                    return

    def _malformed(self, number: int) -> BadInput:
        return BadInput(
            f"Line {number} of {self.path} is not one record of {len(self._header)} fields (a stray or "
            "unclosed quote, a line break inside a field, a missing or extra comma, a NUL, or far too long); "
            "correct or remove it."
        )

    def _records(self, block: bytes) -> int:
        lines = block.count(b"\n")
        if len(self._header) == 1:
            return lines
        # In a file of several columns an empty line is none.
        if block[:1] in b"\r\n" or b"\n\n" in block or b"\n\r\n" in block:
            return sum(1 for line in block.splitlines() if line)
        return lines

    def _needs(self, place: int) -> str:
        name = self._header[place]
        numerical = {
            c.name: "dates like 2024-12-31" if c.type == "date" else "numbers"
            for c in self.schema.columns
            if c.low is not None
        }
        if self.schema.kind == "images" and name != LABEL:
            what = "whole numbers from 0 to 255" if self._scale is None else "numbers"
        else:
            what = numerical.get(name, "text in UTF-8")
        return f"{what} in column {name!r}"

    def _kinds(self) -> dict[str, Any]:
        schema = self.schema
        kinds: dict[str, Any] = {name: pa.string() for name in column_names(schema)}
        if schema.kind == "images":
            pixel = pa.uint8() if self._scale is None else pa.float64()
            return kinds | dict.fromkeys(pixel_names(schema), pixel)
        numbers = {c.name: c.type for c in schema.columns if c.low is not None}
        return kinds | {
            name: pa.date32() if kind == "date" else pa.float64() for name, kind in numbers.items()
        }

    def _csv_pieces(
        self, kinds: dict[str, Any], start: int, stop: int | None
    ) -> Iterator[pa.Table]:
        places = {name: str(index) for index, name in enumerate(self._header)}
        parse = pa_csv.ParseOptions(
            newlines_in_values=False,
            # In a file of one column an empty line is a record with a missing value.
            ignore_empty_lines=len(self._header) > 1,
        )
        convert = pa_csv.ConvertOptions(
            column_types={places[name]: kind for name, kind in kinds.items()},
            include_columns=[places[name] for name in kinds],
            null_values=list(MISSING),
            strings_can_be_null=False,
        )
        rows = 0
        for block in self._csv_blocks():
            records = self._records(block)
            if rows + records <= start:
                rows += records
                continue
            if stop is not None and rows >= stop:
                return
            read = pa_csv.ReadOptions(
                use_threads=False,
                block_size=len(block) + 1,
                column_names=[str(index) for index in range(len(self._header))],
            )
            with reading(self.path, self._needs):
                table = pa_csv.read_csv(
                    pa.BufferReader(block),
                    read_options=read,
                    parse_options=parse,
                    convert_options=convert,
                )
                if len(table) != records:
                    raise BadInput(f"{self.path} cannot be read line by line; check its quotes.")
            yield _inside(table.rename_columns(list(kinds)), rows, start, stop)
            rows += records


class PlainTable(TableFile):
    """A table without a schema, of which single columns are read by `cells`."""

    @property
    def types(self) -> dict[str, Any]:
        """The type of each column as a .parquet's header has it; a .csv has none."""
        return {f.name: f.type for f in self._layout} if self._parquet else {}

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in (".csv", ".parquet"):
            raise BadInput(f"{path} is no table; give a .csv or .parquet.")
        self.path = path
        self._parquet = path.suffix.lower() == ".parquet"
        self._size = None
        self._header = self._parquet_header() if self._parquet else self._csv_header()
        self._lines = _csv_lines(len(self._header))

    def _needs(self, place: int) -> str:
        return f"text in UTF-8 in column {self._header[place]!r}"


def parquet_file(path: Any, **options: Any) -> Any:
    """A file that Arrow opens, or, behind an address, a stream that is opened for it."""
    return pq.ParquetFile(path if isinstance(path, Path) else path.open("rb"), **options)


def _csv_lines(columns: int | None) -> re.Pattern[bytes]:
    """Well-formed lines of so many fields, or empty: quotes only around a field, doubled inside it.

    Possessive throughout, so that a match takes time in proportion to the bytes, and ends where the
    first malformed line begins.
    """
    field = rb'(?:"(?:[^"\r\n\0]|"")*+"|[^",\r\n\0]*+)'
    more = b"*+" if columns is None else b"{%d}+" % max(columns - 1, 0)
    return re.compile(b"(?:(?:%s(?:,%s)%s)?+\r?\n)*+" % (field, field, more))


class reading:  # noqa: N801  reads like a word in `with`
    """Turns Arrow's errors, which quote cells, into sentences that do not."""

    def __init__(self, path: Path, needs: Callable[[int], str] | None = None) -> None:
        self.path = path
        self.needs = needs

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise BadInput(f"There is no {self.path}; check the path.") from None
        # Damage takes many forms in Arrow: its own exceptions, OSError, ValueError, OverflowError.
        if isinstance(error, Exception) and not isinstance(error, SfumatoError):
            cell = re.search(r"In CSV column #(\d+)", str(error))
            if cell and self.needs:
                raise BadInput(
                    f"{self.path} holds something else than {self.needs(int(cell[1]))}; correct the "
                    "file or the schema."
                ) from None
            raise BadInput(
                f"{self.path} is truncated, damaged or not a table; restore it from its original."
            ) from None


def _dense(array: pa.Array) -> pa.Array:
    # Row groups have dictionaries of their own, which joining them would have to reconcile.
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _inside(piece: pa.Table, first: int, start: int, stop: int | None) -> pa.Table:
    """Of rows that begin with number `first`, those from `start` up to `stop`."""
    skipped = max(0, start - first)
    kept = len(piece) - skipped if stop is None else min(len(piece), stop - first) - skipped
    return piece if (skipped, kept) == (0, len(piece)) else piece.slice(skipped, max(0, kept))


def _rebatched(pieces: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """The same rows cut into tables of exactly `size`, but for the last."""
    held: list[pa.Table] = []
    rows = 0
    for piece in pieces:
        held.append(piece)
        rows += len(piece)
        while rows >= size:
            joined = pa.concat_tables(held)
            yield joined.slice(0, size)
            rest = joined.slice(size)
            held, rows = ([rest] if len(rest) else []), len(rest)
    if rows:
        yield pa.concat_tables(held)
