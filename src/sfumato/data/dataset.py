"""Dataset: rows behind a public Schema, handed out in batches; reading, taking and saving.

The Schema is PUBLIC, the rows and their number are PRIVATE when the data set is. Errors name
columns and files, never values or counts. A dataset streams: `batches` holds a few batches in
memory whatever the size of the file behind it. `len` of a .csv file reads it through; whoever
stands outside the wall and asks for it has read private rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset

from sfumato.data.schema import Schema, ValueRange, checked_range, class_names, range_of_bits
from sfumato.data.sources import (
    Array,
    ArraySource,
    MappedSource,
    Rows,
    Source,
    channels_first,
    check_label_type,
    image_shape,
    pixel_scale,
)
from sfumato.data.units import RECORDS, Unit, Units, by_column, unit_of
from sfumato.errors import BadInput
from sfumato.files import as_path

if TYPE_CHECKING:
    from sfumato.progress import Progress


@dataclass(frozen=True)
class Batch:
    """Some rows.

    `values` are images (m, C, H, W) as uint8 or float32, or a table (m, d) as float32 with
    categories as codes and missing values as NaN; `labels` are int64 (m,), −1 where a label is no known class. `shares` are the
    wall's: how much each record counts of its unit (`privacy.units`), None where a record is a unit.
    """

    # Rows are private: a batch that ends up in a log shows none.
    values: torch.Tensor = field(repr=False)
    labels: torch.Tensor | None = field(repr=False)
    shares: torch.Tensor | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.values)

    def pixels(self) -> torch.Tensor:
        """Images as float32 in [0, 1]; a NaN stays NaN."""
        if self.values.ndim != 4:
            raise BadInput("A batch of a table has no pixels; use its `values`.")
        if self.values.dtype == torch.uint8:
            return self.values.to(torch.float32).div_(255.0)
        return self.values.clamp(0.0, 1.0)


class Dataset:
    """Rows behind a public Schema.

    `published_as` is set for the named sets only: anyone can fetch these very rows, so what is computed from them may be kept.
    `units` says whose records these are, where a person may have several. `synthetic` is set for what a method has made: of
    that and of published rows a notebook shows some, of any other set its schema alone.
    """

    synthetic = False
    labels_from: str | None = (
        None  # what `labels` was given, without its folder, if anything: public
    )

    def __init__(
        self,
        source: Source,
        schema: Schema,
        name: str,
        *,
        published_as: str | None = None,
        units: Units | None = None,
    ) -> None:
        self._source = source
        self.schema = schema
        self.name = name
        self.published_as = published_as
        self.units = units

    def __len__(self) -> int:
        return len(self._source)

    def __repr__(self) -> str:
        # The number of rows may be private, so it is not part of what a log shows.
        schema = self.schema
        facts = f"{schema.kind}, shape={schema.shape}, classes={schema.n_classes}"
        return f"Dataset({self.name!r}, {facts})"

    def _repr_html_(self) -> str:
        """In a notebook: the schema; rows, and their number, only of sets that are synthetic or published under a name."""
        from sfumato.data.conversion import shown

        return shown(self)

    def __getitem__(self, index: Any) -> Any:
        """One record as (row, label), −1 for none; of a slice, mask or list of indices, a Dataset of those records."""
        from sfumato.data.conversion import chosen

        return chosen(self, index)

    @property
    def unit(self) -> Unit:
        """What the unit of privacy is: public."""
        return RECORDS if self.units is None else self.units.about

    @property
    def random_access(self) -> bool:
        """Whether `take` is cheap; otherwise it reads the data from the front."""
        return self._source.random_access

    def batches(self, size: int) -> Iterator[Batch]:
        """All rows in order, `size` at a time; the last batch may be shorter."""
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise BadInput(f"A batch size of {size!r} is not a positive whole number; pass one.")
        return (self._batch(rows) for rows in self._source.blocks(int(size)))

    def take(self, indices: Array | Sequence[int]) -> Batch:
        """The rows at `indices`, in that order; repeats are allowed."""
        chosen = np.asarray(indices)
        if chosen.size == 0:
            chosen = chosen.astype(np.int64).reshape(0)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise BadInput(
                "`indices` must be a one-dimensional array of whole numbers; pass row numbers."
            )
        chosen = chosen.astype(np.int64, copy=False)
        if chosen.size and (chosen.min() < 0 or chosen.max() >= len(self)):
            raise BadInput(
                "`indices` reach outside the data set; row numbers run from 0 to len − 1."
            )
        return self._batch(self._source.take(chosen))

    @property
    def in_memory(self) -> int:
        """Bytes of the arrays that would travel with the rows; 0 where they are read from files."""
        source = self._source
        if not isinstance(source, ArraySource) or isinstance(source, MappedSource):
            return 0
        return source.stored.nbytes + (0 if source.labels is None else source.labels.nbytes)

    def part(self, number: int, parts: int) -> Dataset:
        """Part `number` of `parts`: records that follow each other, `Dataset.cuts` says which; read where it is asked for."""
        if self.units is not None:
            raise BadInput(
                "Records of one unit may lie in several parts, which then no longer tell whose they are; divide the data without "
                "units."
            )
        start, stop = self.cuts(len(self), parts)[number : number + 2]
        return Dataset(
            self._source.part(start, stop), self.schema, self.name, published_as=self.published_as
        )

    @staticmethod
    def cuts(size: int, parts: int) -> list[int]:
        """The public rule of division: part k of `parts` is records cuts[k] … cuts[k + 1] − 1, so an array with an entry for
        each record is divided alike."""
        return [size * number // parts for number in range(parts + 1)]

    def _batch(self, rows: Rows) -> Batch:
        values, labels = rows
        if values.dtype != np.uint8 and values.dtype != np.float32:
            values = values.astype(np.float32)
        return Batch(_tensor(values), self._codes(labels))

    def _codes(self, labels: Array | None) -> torch.Tensor | None:
        if labels is None or not self.schema.labelled:
            return None
        codes = labels.astype(np.int64)
        codes[(codes < 0) | (codes >= self.schema.n_classes)] = -1
        return torch.from_numpy(codes)

    # ------------------------------------------------------------------------------- whole arrays

    @property
    def values(self) -> Array:
        """All rows as one array, in memory (a view where the source already is an array)."""
        if isinstance(self._source, ArraySource):
            return self._batch((self._source.values, None)).values.numpy()
        return self._everything()[0]

    @property
    def images(self) -> Array:
        """All images (n, C, H, W) as one array, uint8 or float32."""
        if self.schema.kind != "images":
            raise BadInput("This data set is a table and has no images; use `values`.")
        return self.values

    @property
    def labels(self) -> Array | None:
        """All labels (n,) int64, or None when unlabelled."""
        if not self.schema.labelled:
            return None
        if isinstance(self._source, ArraySource):
            codes = self._codes(self._source.labels)
            return None if codes is None else codes.numpy()
        return self._everything()[1]

    def _everything(self) -> Rows:
        batches = list(self.batches(4096))
        if not batches:
            raise BadInput(f"{self.name} holds no rows; check the file.")
        values = torch.cat([batch.values for batch in batches]).numpy()
        labels = [batch.labels for batch in batches if batch.labels is not None]
        return values, torch.cat(labels).numpy() if labels else None

    def torch(self) -> TorchDataset[tuple[torch.Tensor, int]]:
        """A map-style torch data set of (float32 row, label); images in [0, 1], no label is −1."""
        return _TorchView(self)

    def to_arrow(self) -> Any:
        """An Arrow table: of a table its columns with names in place of codes, of images a column of PNGs and one of labels, with
        the features that Hugging Face's `datasets` reads."""
        from sfumato.data.conversion import to_arrow

        return to_arrow(self)

    def to_pandas(self) -> Any:
        """A DataFrame: of a table its columns, of images one of arrays (H×W or H×W×3) and one of labels."""
        from sfumato.data.conversion import to_pandas

        return to_pandas(self)

    def to_polars(self) -> Any:
        """A polars DataFrame of the columns of `to_arrow`."""
        from sfumato.data.conversion import to_polars

        return to_polars(self)

    def to_hf(self) -> Any:
        """A Hugging Face `datasets.Dataset`, with images in a column `Image` and classes as `ClassLabel`."""
        from sfumato.data.conversion import to_hf

        return to_hf(self)

    # ------------------------------------------------------------------------------------- making

    @classmethod
    def from_arrays(
        cls,
        images: Any,
        labels: Any = None,
        *,
        classes: Sequence[str] | int | None = None,
        bits: int | None = None,
        value_range: ValueRange | None = None,
        unit: Any = None,
        per_unit: int | None = None,
        name: str = "arrays",
    ) -> Dataset:
        """Images N×C×H×W, N×H×W or N×H×W×3 in a public range.

        Bytes are 0 … 255 and booleans false or true by their type. Floating point is 0 … 1 unless
        `value_range` says which numbers stand for black and white; other whole numbers need it, or
        `bits`. The array is here in full, so floating point that leaves its range is refused.
        `labels` are whole numbers 0 … classes − 1; `classes` is their number or their names.
        `unit` has a value for each record, the same for records of one person: a person is then what is protected, and at
        most `per_unit` records of each count.
        """
        pixels = np.asarray(images)
        stated = stated_range(bits, value_range)
        if stated is None and pixels.dtype.kind == "f":
            stated = (0.0, 1.0)
        scale = pixel_scale(pixels.dtype, stated)
        shape = image_shape(pixels.shape)
        pixels = channels_first(pixels)
        if labels is not None and classes is None:
            raise BadInput(
                "Labels came without `classes`; pass classes=10 or the names of the classes, "
                "since their number must "
                "be a public fact and not be read off the labels."
            )
        if labels is None and classes is not None:
            raise BadInput(
                "`classes` came without labels; pass the labels too, or leave `classes` out."
            )
        names = () if classes is None else class_names(classes)
        schema = Schema(kind="images", shape=shape, classes=names, value_range=stated)
        if scale is not None:
            pixels = scale(pixels)
        return cls.from_values(
            pixels, labels, schema=schema, unit=unit, per_unit=per_unit, name=name
        )

    @classmethod
    def from_values(
        cls,
        values: Any,
        labels: Any = None,
        *,
        schema: Schema,
        unit: Any = None,
        per_unit: int | None = None,
        name: str = "arrays",
    ) -> Dataset:
        """Rows in the form a Batch has them, checked against `schema`; `unit` as in `from_arrays`.

        Images (n, C, H, W), bytes or floating point in 0 … 1 whatever the schema's `value_range`
        (that is of stored numbers), or a table (n, d) of numbers and category codes.
        """
        rows = np.asarray(values)
        if len(rows.shape) == 0 or len(rows) == 0:
            raise BadInput("The data holds no rows; pass at least one.")
        if rows.shape[1:] != schema.shape:
            raise BadInput(
                f"Rows have shape {rows.shape[1:]} and the schema says {schema.shape}; make them "
                "agree."
            )
        if schema.kind == "images":
            if rows.dtype != np.uint8 and rows.dtype.kind != "f":
                raise BadInput(
                    f"Rows of images have type {rows.dtype}; give uint8 or floating point in 0..1, or use "
                    "`from_arrays` with a range."
                )
            rows = _native(rows)
            _check_range(rows, schema)
        else:
            if rows.dtype.kind not in "iuf":
                raise BadInput(
                    f"Rows have type {rows.dtype}; give numbers, with categories as codes."
                )
            rows = rows.astype(np.float32, copy=False)
            _check_table(rows, schema)
        source = ArraySource(rows, _checked_labels(labels, len(rows), schema))
        units = None if unit is None else units_of(unit, per_unit, len(rows), name)
        return cls(source, schema, name, units=units)

    @classmethod
    def from_table(
        cls,
        columns: Mapping[str, Any],
        schema: Schema,
        name: str = "table",
        *,
        unit: str | None = None,
        per_unit: int | None = None,
    ) -> Dataset:
        """A table from a mapping of names to arrays, or a DataFrame; categories by their names.

        `unit` is a column that is the same for records of one person, and need not be in the schema.
        """
        from sfumato.data.tables import encode_columns

        values, labels = encode_columns(columns, schema)
        data = cls.from_values(values, labels, schema=schema, name=name)
        if unit is not None:
            if unit not in columns:
                raise BadInput(f"The table has no column {unit!r}; name one that tells the unit.")
            data.units = units_of(columns[unit], per_unit, len(data), name, unit)
        return data

    def check(self) -> None:
        """Read everything once and raise BadInput where rows do not fit the schema.

        Files are opened without reading a row, so a misspelt category or a too narrow range
        shows here. This is for the owner of the data: its outcome depends on private rows
        and is no part of any release.
        """
        for batch in self.batches(4096):
            if batch.labels is not None and bool((batch.labels < 0).any()):
                raise BadInput(
                    f"Some labels of {self.name} are not among its classes; add the class to the "
                    "schema."
                )
            if self.schema.kind == "images":
                _check_range(batch.values.numpy(), self.schema)
            else:
                _check_table(batch.values.numpy(), self.schema)

    def save(self, path: str | Path, *, progress: Progress | None = None) -> Path:
        """Write .npz, .csv, .parquet (by the ending of `path`) or a folder of PNGs, or nothing."""
        from sfumato.data.writers import save

        return save(self, as_path(path), progress)


class _TorchView(TorchDataset[tuple[torch.Tensor, int]]):
    def __init__(self, data: Dataset) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        # torch's loader asks for a whole batch here; an IndexError ends a plain `for`.
        if any(not -len(self) <= index < len(self) for index in indices):
            raise IndexError("row number outside the data set")
        if not self._data.random_access:
            values, labels = self._data._everything()
            schema, name = self._data.schema, self._data.name
            self._data = Dataset(ArraySource(values, labels), schema, name)
        batch = self._data.take(np.array([index % len(self) for index in indices]))
        rows = batch.pixels() if self._data.schema.kind == "images" else batch.values
        labels_ = [-1] * len(batch) if batch.labels is None else batch.labels.tolist()
        return list(zip(rows, labels_, strict=True))


def units_of(
    values: Any, per_unit: int | None, records: int, name: str, column: str | None = None
) -> Units:
    """Units by one value a record, which are here in full."""
    found = np.asarray(values)
    if found.ndim != 1 or len(found) != records or found.dtype.kind not in "iuUSOb":
        raise BadInput(
            "`unit` must be a flat array of whole numbers or text, one for each record; pass such a one."
        )
    about = unit_of(
        column or "unit",
        "one value for each record" if column is None else f"the column {column!r}",
        per_unit,
    )
    keys = list(by_column(found.tolist(), column or "unit"))
    return Units(about, lambda: keys, name)


def _tensor(values: Array) -> torch.Tensor:
    # torch refuses negative strides and warns about read-only memory; only then is a batch copied.
    if not (values.flags.writeable and values.flags.aligned) or any(
        stride < 0 for stride in values.strides
    ):
        values = values.copy()
    return torch.from_numpy(values)


def _native(values: Array) -> Array:
    if values.dtype == np.uint8:
        return values
    return values.astype(np.float32, copy=False)


def stated_range(bits: int | None, value_range: Any) -> ValueRange | None:
    """The range that a caller stated in one of two ways, or None."""
    if bits is not None and value_range is not None:
        raise BadInput("Both `bits` and `value_range` are stated; state one of the two.")
    if bits is not None:
        return range_of_bits(bits)
    return None if value_range is None else checked_range(value_range)


def _check_range(images: Array, schema: Schema) -> None:
    if images.dtype == np.uint8:
        return
    for start in range(0, len(images), 4096):
        block = images[start : start + 4096]
        if not np.isfinite(block).all():
            raise BadInput("Images hold NaN or infinity; replace these pixels or drop the records.")
        if block.min() < 0.0 or block.max() > 1.0:
            low, high = schema.value_range or (0.0, 1.0)
            raise BadInput(
                f"Images reach outside their range {low:g} … {high:g}; state the public range of their "
                "numbers by value_range=(LOW, HIGH), or clip them."
            )


def _check_table(rows: Array, schema: Schema) -> None:
    for index, column in enumerate(schema.columns):
        values = rows[:, index]
        if np.isinf(values).any():
            raise BadInput(
                f"Column {column.name!r} holds infinity; replace it or drop the records."
            )
        absent = np.isnan(values)
        if absent.any():
            if not column.missing:
                raise BadInput(
                    f"Column {column.name!r} has missing values or values outside its categories; "
                    "set "
                    '"missing": true, complete its categories, or drop the records.'
                )
            values = values[~absent]
        if column.low is not None and column.high is not None:
            low, high = np.float32(column.low), np.float32(column.high)
            if (values < low).any() or (values > high).any():
                raise BadInput(
                    f"Column {column.name!r} leaves its public range {column.low:g} … "
                    f"{column.high:g}; widen the "
                    "range in the schema or clip the column."
                )
        else:
            known = (values >= 0) & (values < len(column.categories)) & (values == np.floor(values))
            if not known.all():
                raise BadInput(
                    f"Column {column.name!r} holds codes that are none of its categories; "
                    "complete the list."
                )


def _checked_labels(labels: Any, size: int, schema: Schema) -> Array | None:
    if labels is None:
        if schema.labelled:
            raise BadInput(
                "The schema has classes and no labels came; pass labels or an unlabelled schema."
            )
        return None
    codes = np.asarray(labels)
    if codes.ndim != 1 or len(codes) != size:
        raise BadInput(
            "Labels must be one whole number a record; pass a flat array as long as the data."
        )
    check_label_type(codes.dtype)
    if not schema.labelled:
        raise BadInput("Labels came and the schema has no classes; name the classes in the schema.")
    if codes.min() < 0 or codes.max() >= schema.n_classes:
        raise BadInput(
            f"Some labels lie outside 0 … {schema.n_classes - 1}; recode them or pass the right "
            "`classes`."
        )
    return codes
