"""Pictures in a column of a Parquet file, as Hugging Face's `datasets` keeps them: {bytes, path} with a label beside it.

Names of classes that the file's own header carries (a ClassLabel) are PUBLIC, as those in an .npz are; cells are PRIVATE.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sfumato.data.decoding import decode
from sfumato.data.schema import Schema, ValueRange
from sfumato.data.sources import Rows, of_size
from sfumato.data.tables import (
    PlainTable,
    check_countable,
    class_code,
    label_code,
    parquet_file,
    reading,
)
from sfumato.errors import BadInput

_AT_ONCE = 64  # pictures as they are packed, which may be large
LABELS = ("label", "labels")


class PictureColumn(PlainTable):
    """A Parquet file with a picture in a cell, streamed."""

    def __init__(
        self, path: Path, schema: Schema, label: str | None, fallback: ValueRange | None = None
    ) -> None:
        super().__init__(path)
        column, self._label, self._fallback = picture_column(path), label, fallback
        assert column is not None
        self._column: str = column
        self.schema = schema
        told = class_label(path)
        self._names = told[1] if told is not None and told[0] == label else ()
        if label is not None and self.header.count(label) != 1:
            raise BadInput(
                f"{path} has no column {label!r} with the classes; name one by --labels (labels=), or leave classes out."
            )
        if label is not None and not self._names and pa.types.is_integer(self.types[label]):
            check_countable(
                schema.classes,
                f"the column {label!r} of {path}",
                "write the names as text there, or state other names",
            )

    def between(self, size: int, start: int, stop: int | None) -> Iterator[Rows]:
        kinds = {self._column: None} | ({self._label: None} if self._label else {})
        pieces = self._pieces(_AT_ONCE, kinds, start, stop)
        with ThreadPoolExecutor(min(8, (os.cpu_count() or 1) + 1)) as pool:
            yield from of_size(size, (self._decoded(piece, pool) for piece in pieces))

    def _decoded(self, piece: pa.Table, pool: ThreadPoolExecutor) -> Rows:
        with reading(self.path):
            cells = piece.column(self._column).combine_chunks().field("bytes").to_pylist()
            told = piece.column(self._label).to_pylist() if self._label else None
        values = np.empty((len(piece), *self.schema.shape), np.uint8)
        for row, picture in zip(values, pool.map(self._picture, cells), strict=True):
            row[...] = picture
        codes = None if told is None else np.array([self._code(cell) for cell in told], np.int64)
        return values, codes

    def _picture(self, content: Any) -> Any:
        if not isinstance(content, bytes):
            raise BadInput(
                f"{self.path} has a record whose picture is not in the file; embed the pictures (embed_external_files=True)."
            )
        schema = self.schema
        return decode(
            f"A picture in {self.path}",
            schema.shape,
            schema.value_range,
            self._fallback,
            fit=schema.fit,
            content=content,
        )

    def _code(self, cell: Any) -> int:
        # A ClassLabel is kept by its number among the names in the header, which may spell other numbers.
        if type(cell) is int and 0 <= cell < len(self._names):
            return class_code(self._names[cell], self.schema.classes)
        return label_code(cell, self.schema.classes)


def picture_column(path: Path) -> str | None:
    """The column with pictures, by the header alone: `image` if there are several, None where there is none."""
    fields = _layout(path)
    found = [
        f.name
        for f in fields
        if pa.types.is_struct(f.type)
        and any(child.name == "bytes" and _is_binary(child.type) for child in f.type)
    ]
    return "image" if "image" in found else next(iter(found), None)


def class_label(path: Path) -> tuple[str, tuple[str, ...]] | None:
    """The column with labels and the names of its classes, where the header of the file says so."""
    facts = (_layout(path).metadata or {}).get(b"huggingface")
    try:
        features = json.loads(facts or b"{}")["info"]["features"]
        named = {
            name: tuple(str(label) for label in feature["names"])
            for name, feature in features.items()
            if feature.get("_type") == "ClassLabel"
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    column = next((name for name in (*LABELS, *named) if name in named), None)
    return None if column is None else (column, named[column])


def _layout(path: Path) -> Any:
    with reading(path), parquet_file(path) as file:
        return file.schema_arrow


def _is_binary(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
