"""Tables: names and numbers, turned into float32 rows and back by the public schema.

Categories become their codes in the schema's order, missing values NaN, labels their class code.
Ranges and categories are PUBLIC and come from the schema; the cells are PRIVATE, so no error quotes
one (Arrow's own messages do, and are therefore never passed on).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from sfumato.data.schema import Column, Schema
from sfumato.data.sources import Array, Rows, StreamSource
from sfumato.errors import BadInput

LABEL = "label"
# What stands for an empty cell in a .csv, unless the schema names it as a category or class.
_MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")

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
    if schema.kind != "table":
        raise BadInput('`from_table` needs a schema of kind "table"; use `from_arrays` for images.')
    absent = [name for name in column_names(schema) if name not in columns]
    if absent:
        raise BadInput(f"The table lacks the columns {absent}; add them or correct the schema.")
    arrays = {}
    for name in column_names(schema):
        try:
            arrays[name] = _arrow(columns[name])
        except (pa.ArrowException, TypeError, ValueError):
            raise BadInput(
                f"Column {name!r} mixes types or holds objects; make it all numbers or all text."
            ) from None
    if len({len(array) for array in arrays.values()}) != 1:
        raise BadInput("The columns are not equally long; give every column one value a record.")
    for column in schema.columns:
        if column.categories:
            _refuse_unknown(arrays[column.name], column.name, column.categories)
    if schema.label:
        _refuse_unknown(arrays[schema.label], schema.label, schema.classes, missing=True)
    return _encode(arrays, schema)


def _arrow(values: Any) -> pa.Array:
    array = pa.array(values if hasattr(values, "dtype") else list(values), from_pandas=True)
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


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
    if not (plain.is_integer(kind) or plain.is_floating(kind) or plain.is_decimal(kind)):
        raise BadInput(
            f"Column {column.name!r} is numerical in the schema and {kind} in the data; convert "
            "one of them."
        )
    numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        return np.asarray(numbers, np.float32)


def _codes(array: pa.Array, name: str, categories: tuple[str, ...]) -> pa.Array:
    """The code of each cell, null where it is missing or none of the categories."""
    known = list(categories)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    if pa.types.is_boolean(array.type):
        known = [category.lower() for category in known]
    elif pa.types.is_floating(array.type):
        # Whole numbers that became floating point because some are missing: "1", not "1.0".
        whole = array.cast(pa.int64(), safe=False)
        if pc.all(pc.equal(whole.cast(array.type, safe=False), array)).as_py() is not False:
            array = whole
    try:
        text = pc.utf8_trim_whitespace(array.cast(pa.string()))
    except (pa.ArrowException, TypeError):
        raise BadInput(
            f"Column {name!r} has categories and is {array.type}; convert it to text or numbers."
        ) from None
    return pc.index_in(text, value_set=pa.array(known, pa.string()))


# ------------------------------------------------------------------------------- numbers to cells


def arrow_schema(schema: Schema, pixel: Any) -> pa.Schema:
    """The columns of a written file; pixels keep their type, categories and classes are text."""
    if schema.kind == "images":
        kind = pa.uint8() if pixel == np.uint8 else pa.float32()
        fields = [(name, kind) for name in pixel_names(schema)]
    else:
        fields = [
            (c.name, pa.float32() if c.kind == "numerical" else pa.string()) for c in schema.columns
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
            columns.append(pa.array(column, pa.float32(), from_pandas=True))
        else:
            columns.append(pa.array(np.ascontiguousarray(column)))
    if labels is not None:
        columns.append(_names(np.where(labels < 0, np.nan, labels), schema.classes))
    return pa.record_batch(columns, schema=layout)


def _names(codes: Array, names: Sequence[str]) -> pa.Array:
    absent = np.isnan(codes)
    indices = pa.array(np.where(absent, 0, codes).astype(np.int32), mask=absent)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string())).cast(pa.string())


# ------------------------------------------------------------------------------------------ files


class TableFile(StreamSource):
    """A .csv or .parquet file with the columns of a schema, streamed in constant memory."""

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path = path
        self.schema = schema
        self._parquet = path.suffix.lower() == ".parquet"
        self._size: int | None = None
        self._pixel: Any = np.uint8
        self._header: list[str] = []
        self._header = self._parquet_header() if self._parquet else _csv_header(path)
        there = set(self._header)
        absent = [name for name in column_names(schema) if name not in there]
        if absent:
            shown = f"{absent[:5]}{' and more' if len(absent) > 5 else ''}"
            raise BadInput(
                f"{path} lacks the columns {shown}; correct the file's header or the schema."
            )

    def known_size(self) -> int | None:
        """The number of rows when the file's header tells it, without reading a row."""
        return self._size

    def __len__(self) -> int:
        if self._size is None:
            names = column_names(self.schema)
            self._size = sum(len(piece) for piece in self._csv_pieces([names[-1]]))
        return self._size

    def blocks(self, size: int) -> Iterator[Rows]:
        pieces = self._parquet_pieces(size) if self._parquet else self._csv_pieces(None)
        for piece in _rebatched(pieces, size):
            yield self._rows(piece)

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
        return values.reshape(-1, *self.schema.shape), labels

    # ------------------------------------------------------------------------------------ parquet

    def _parquet_header(self) -> list[str]:
        with self._reading(), pq.ParquetFile(self.path) as file:
            self._size = file.metadata.num_rows
            layout = file.schema_arrow
        if self.schema.kind == "images":
            kinds = {
                layout.field(name).type for name in pixel_names(self.schema) if name in layout.names
            }
            if kinds - {pa.uint8()}:
                if not all(pa.types.is_floating(kind) for kind in kinds):
                    raise BadInput(
                        f"The pixels in {self.path} are not of one type; store uint8 in 0..255 or "
                        "floating point in 0..1."
                    )
                self._pixel = np.float32
        return list(layout.names)

    def _parquet_pieces(self, size: int) -> Iterator[pa.Table]:
        names = column_names(self.schema)
        # One row group at a time, each through a small buffer: Arrow would read far ahead.
        options = {"buffer_size": 1 << 16, "pre_buffer": False}
        with self._reading(), pq.ParquetFile(self.path, **options) as file:
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(
                    min(size, 8192), row_groups=[group], columns=names, use_threads=False
                ):
                    yield pa.Table.from_batches([batch]).select(names)

    # ---------------------------------------------------------------------------------------- csv

    def _csv_pieces(self, columns: list[str] | None) -> Iterator[pa.Table]:
        schema = self.schema
        kinds: dict[str, Any] = {name: pa.string() for name in column_names(schema)}
        if schema.kind == "images":
            kinds |= {name: pa.uint8() for name in pixel_names(schema)}
        else:
            kinds |= {c.name: pa.float64() for c in schema.columns if c.kind == "numerical"}
        taken = set(schema.classes) | {name for c in schema.columns for name in c.categories}
        with self._reading():
            reader = pa_csv.open_csv(
                self.path,
                # A block must hold a whole line, and lines of pixels are long; Arrow reads up to 32
                # blocks ahead, so they stay small otherwise.
                read_options=pa_csv.ReadOptions(
                    use_threads=False, block_size=max(1 << 18, 16 * schema.dim)
                ),
                parse_options=pa_csv.ParseOptions(
                    newlines_in_values=True,
                    # In a file of one column an empty line is a record with a missing value.
                    ignore_empty_lines=len(self._header) > 1,
                ),
                convert_options=pa_csv.ConvertOptions(
                    column_types=kinds,
                    include_columns=columns or column_names(schema),
                    null_values=[mark for mark in _MISSING if mark not in taken],
                    strings_can_be_null=True,
                ),
            )
            with reader:
                for batch in reader:
                    yield pa.Table.from_batches([batch])

    def _reading(self) -> _Reading:
        return _Reading(self.path, self._header)


class _Reading:
    """Turns Arrow's errors, which quote cells, into sentences that do not."""

    def __init__(self, path: Path, header: list[str]) -> None:
        self.path = path
        self.header = header

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise BadInput(f"There is no {self.path}; check the path.") from None
        if isinstance(error, (pa.ArrowException, OSError, UnicodeDecodeError)):
            cell = re.search(r"In CSV column #(\d+)", str(error))
            if cell:
                name = self.header[int(cell[1])]
                need = "whole numbers from 0 to 255" if name.startswith("pixel_") else "numbers"
                raise BadInput(
                    f"{self.path} holds something else than {need} in column {name!r}; correct "
                    "the file or the schema."
                ) from None
            raise BadInput(
                f"{self.path} is truncated, damaged or not a table; restore it from its original."
            ) from None


def _csv_header(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return next(csv.reader(stream), [])
    except FileNotFoundError:
        raise BadInput(f"There is no {path}; check the path.") from None
    except (OSError, UnicodeDecodeError, csv.Error):
        raise BadInput(f"{path} is not a readable .csv file in UTF-8; convert it.") from None


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
