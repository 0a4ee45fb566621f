"""Data as other libraries hold them: `as_dataset` takes arrays, tables, torch and Hugging Face data sets, a name or a path.

What anyone may know beforehand (classes, ranges, categories, the size of pictures) is PUBLIC and must be stated, or be settled by
a type (a byte is 0 … 255) or by a header that somebody wrote (the names in a Hugging Face `ClassLabel`, as the folder names of
pictures are). It is never read off rows, which are PRIVATE: no error quotes one. One item is one record, read once and kept in
memory.

No library is imported for this; what is passed brings its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from sfumato.data.dataset import Dataset, stated_range
from sfumato.data.decoding import on_white, shaped
from sfumato.data.loading import load
from sfumato.data.schema import Fit, Schema, ValueRange, class_names
from sfumato.data.sources import Array, Scale, eight_bits, unsettled
from sfumato.data.tables import check_countable, encode_columns, label_code, whole_number
from sfumato.errors import BadInput

FACTS = (
    *("schema", "classes", "value_range", "bits", "image_size", "channels", "unit", "per_unit"),
    "name",
)
# What `load` takes of a path besides.
READING = ("labels", "fit", "progress")
# What items of a torch data set may call their picture and their class.
_KEYS = (("image", "images", "pixel_values"), ("label", "labels"))
_TAKEN = (
    "NumPy arrays or torch tensors, a torch Dataset or DataLoader, a pandas, polars or Arrow table, a Hugging Face dataset, "
    "a path, or the name of a data set"
)


def as_dataset(
    what: Any,
    y: Any = None,
    *,
    schema: Schema | None = None,
    classes: Sequence[str] | int | None = None,
    value_range: ValueRange | None = None,
    bits: int | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    unit: Any = None,
    per_unit: int | None = None,
    name: str | None = None,
    **reading: Any,
) -> Dataset:
    """A `Dataset` of whatever holds the records.

    * Arrays (NumPy, torch, lists): images N×C×H×W, N×H×W or N×H×W×3, with labels `y` and `classes`; bytes are 0 … 255,
      floating point is 0 … 1 unless `value_range` (or `bits`) says otherwise. A flat array N×d needs a `schema`.
    * A torch `Dataset` or `DataLoader`: items are an image, (image, label), or a mapping with "image" (or "pixel_values") and
      "label" (or "labels"); of a loader its data set is read, each record once, whatever it shuffles, repeats or drops.
    * A table (pandas, polars, Arrow, a mapping of names to columns): needs a `schema`, since ranges and categories are public
      facts; the label is a column of it, or `y`.
    * A Hugging Face dataset: a table, or images in a column `Image` with at most one `ClassLabel`; pictures need `image_size`
      (and `channels`, 3 if left out), as a folder's do.
    * A path or a name: as `load` takes it, with any other argument (`reading`) that it has.

    `unit` says whose each record is: a value for each record, or of a table the name of a column; at most `per_unit` records of
    one count.
    """
    facts = _Facts(schema, classes, value_range, bits, image_size, channels, unit, per_unit, name)
    if per_unit is not None and unit is None:
        raise BadInput(
            "`per_unit` says how many records of a unit count; say by unit= whose they are."
        )
    if isinstance(what, Dataset):
        if y is not None or facts.stated:
            raise BadInput(
                "A sfumato Dataset has its labels and its public facts with it; pass it alone, or make it of its arrays anew."
            )
        return what
    if isinstance(what, (str, Path)):
        if y is not None:
            raise BadInput(
                "A path or name brings its labels with it and `y` was given too; leave `y` out."
            )
        stated = {key: value for key, value in facts.given().items() if key != "name"}
        return load(what, **stated, **reading)
    for key in reading:
        if key in READING:
            raise TypeError(f"The argument {key!r} is for paths and names only; leave it out.")
        near = difflib.get_close_matches(key, FACTS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(FACTS)}."
        raise TypeError(f"There is no argument {key!r}; {hint}")
    kind = type(what).__module__.partition(".")[0]
    if kind == "datasets":
        return _of_hugging_face(what, y, facts)
    if kind in ("pandas", "polars") or isinstance(what, (Mapping, pa.Table, pa.RecordBatch)):
        return _of_table(what, y, facts)
    if isinstance(what, (DataLoader, TorchDataset)):
        return _of_torch(what, y, facts)
    if hasattr(what, "toarray"):
        raise BadInput("A sparse matrix is not read; pass X.toarray().")
    if isinstance(what, (list, tuple)) and len(what) and isinstance(what[0], Image.Image):
        return facts.of_images(_stacked(what, facts), y)
    return facts.of_images(_array(what), y)


class _Facts:
    """What the caller stated, and how rows become a data set by it."""

    def __init__(self, *stated: Any) -> None:
        self._given = dict(zip(FACTS, stated, strict=True))
        (self.schema, self.classes, value_range, bits, self.image_size, self.channels) = stated[:6]
        (self.unit, self.per_unit, self.name) = stated[6:]
        if self.schema is not None and not isinstance(self.schema, Schema):
            raise BadInput(
                f"`schema` is {_kind(self.schema, 'a')}; pass a sfumato.Schema (Schema.from_json takes what json.load reads)."
            )
        self.value_range = stated_range(bits, value_range)

    def given(self) -> dict[str, Any]:
        return {key: value for key, value in self._given.items() if value is not None}

    @property
    def stated(self) -> bool:
        return bool(self.given())

    @property
    def shape(self) -> tuple[int, ...]:
        """The size that pictures are brought to; it must be stated."""
        if self.schema is not None and self.schema.kind == "images":
            return self.schema.shape
        if self.image_size is None:
            raise BadInput(
                "The size of the pictures is not stated; pass image_size= (and channels=), or a schema of images, since reading "
                "it off a private picture would be a leak."
            )
        return (self.channels or 3, self.image_size, self.image_size)

    def of_images(self, rows: Array, y: Any) -> Dataset:
        """A data set of arrays: images, or with a table's schema rows of numbers and category codes."""
        schema, name = self.schema, self.name or "arrays"
        if isinstance(self.unit, str):
            raise BadInput(
                f"`unit` is the text {self.unit!r}, which names a column, and arrays have none; pass an array with a value for "
                "each record."
            )
        units = {"unit": self.unit, "per_unit": self.per_unit}
        if schema is not None and schema.kind == "table":
            return Dataset.from_values(
                rows, _codes(y, schema.classes), schema=schema, name=name, **units
            )
        if rows.ndim == 2:
            if schema is None:
                raise BadInput(
                    "A flat array does not say whether its numbers are pixels or columns; pass schema= (a sfumato.Schema of a "
                    "table or of images), or shape images as N×H×W or N×C×H×W."
                )
            if rows.shape[1] != schema.dim:
                raise BadInput(
                    f"Rows have {rows.shape[1]} numbers and images of shape {schema.shape} have {schema.dim}; make them agree."
                )
            rows = rows.reshape(-1, *schema.shape)
        names = self._names(schema)
        stated = self.value_range
        if schema is not None:
            if stated is not None and stated != schema.value_range:
                raise BadInput(
                    "`value_range` and the schema differ; state the range in one of the two."
                )
            stated = schema.value_range
        made = Dataset.from_arrays(
            rows, _codes(y, names or ()), classes=names, value_range=stated, name=name, **units
        )
        if schema is not None and made.schema.shape != schema.shape:
            raise BadInput(
                f"Images have shape {made.schema.shape} and the schema says {schema.shape}; make them agree."
            )
        size, channels = self.image_size, self.channels
        if (size is not None and made.schema.shape[1:] != (size, size)) or (
            channels not in (None, made.schema.shape[0])
        ):
            raise BadInput(
                f"The images are {made.schema.shape}; arrays are not resized, so leave image_size and channels out."
            )
        return made

    def _names(self, schema: Schema | None) -> tuple[str, ...] | None:
        stated = None if self.classes is None else class_names(self.classes)
        if schema is None:
            return stated
        if stated is not None and stated != schema.classes:
            raise BadInput("`classes` and the schema differ; name the classes in one of the two.")
        return schema.classes or None


# ------------------------------------------------------------------------------------------ arrays


def _numbers(what: torch.Tensor) -> Array:
    if what.layout != torch.strided or what.is_meta:
        raise BadInput(
            "A sparse tensor, or one on the meta device, is not read; pass a dense one that holds its numbers (x.to_dense())."
        )
    what = what.detach().cpu()
    # NumPy has no short kind of floating point with eight digits.
    return (what.float() if what.dtype == torch.bfloat16 else what).numpy()


def _array(what: Any) -> Array:
    if isinstance(what, torch.Tensor):
        return _numbers(what)
    if isinstance(what, (list, tuple)) and what:
        if isinstance(what[0], Mapping):
            raise BadInput("A list of rows is no table; pass pandas.DataFrame(rows) and a schema.")
        if len(what) == 2 and all(hasattr(part, "shape") for part in what):
            raise BadInput(
                "Records and labels came as one pair; pass them one after the other, as in fit(X, y)."
            )
    try:
        rows = np.asarray(what)
    except (TypeError, ValueError):  # a ragged list
        rows = np.asarray(None)
    if rows.ndim < 2 or rows.dtype.kind not in "biuf":
        if isinstance(what, np.ndarray) and what.ndim:
            raise BadInput(
                f"A NumPy array with {what.ndim} axes of type {what.dtype} holds no records; pass bytes or floating point, a "
                "record in each row (np.stack makes one array of many)."
            )
        kind = "None" if what is None else _kind(what)
        raise BadInput(f"{kind} is no data set; pass {_TAKEN}.")
    return rows


def _codes(labels: Any, names: Sequence[str]) -> Any:
    """Labels as class codes: a whole number is a code and text the class that it names, each cell by itself.

    An array's own type says the same of all its cells. A list has none, and to give it one would let a single text turn the
    numbers of all others into names.
    """
    if labels is None:
        return None
    if isinstance(labels, torch.Tensor):
        return _numbers(labels)
    cells = _cells(labels)
    if cells is None:
        return np.asarray(labels)
    if not names:
        if any(isinstance(cell, str) for cell in cells):
            raise BadInput(
                "Labels are text and the classes are not stated; pass classes=[…], the names in their order."
            )
        return np.zeros(len(cells), np.int64)  # refused for want of classes
    place = {name: index for index, name in enumerate(names)}
    codes = [place.get(cell) if isinstance(cell, str) else whole_number(cell) for cell in cells]
    if any(code is None or not 0 <= code < len(names) for code in codes):
        raise BadInput(
            "Some labels are none of the stated classes; complete `classes`, or correct the labels."
        )
    return np.array(codes, np.int64)


def _cells(labels: Any) -> list[Any] | None:
    """Labels one by one where each has a type of its own, or is text; None of an array of numbers."""
    if not isinstance(labels, (list, tuple)):
        labels = np.asarray(labels)
        if labels.dtype.kind not in "USO" or labels.ndim != 1:
            return None
    return [_plain_cell(cell) for cell in labels]


def _plain_cell(cell: Any) -> Any:
    if isinstance(cell, torch.Tensor):
        cell = cell.detach().cpu().numpy()
    return cell.item() if isinstance(cell, (np.ndarray, np.generic)) and cell.ndim == 0 else cell


def _kind(what: Any, article: str = "A") -> str:
    kind = type(what)
    home = kind.__module__.partition(".")[0]
    name = kind.__name__ if home == "builtins" else f"{home}.{kind.__name__}"
    return f"{article}{'n' if name[0] in 'AEIOUaeiou' else ''} {name}"


# ------------------------------------------------------------------------------------------ tables


def _of_table(what: Any, y: Any, facts: _Facts) -> Dataset:
    if hasattr(what, "collect") and type(what).__name__ == "LazyFrame":
        what = what.collect()
    if type(what).__name__ == "Series":
        raise BadInput("One column alone is no table; pass a DataFrame.")
    schema = facts.schema
    if schema is not None and schema.kind == "images":
        if hasattr(what, "to_numpy"):
            return facts.of_images(_array(what.to_numpy()), y)
        raise BadInput(
            "The schema is of images and a table was given; pass the images as an array."
        )
    if schema is None:
        raise BadInput(
            'The columns are not described: pass schema=sfumato.Schema(kind="table", columns=…), since ranges, categories and '
            "classes are public facts that must not be read off the rows (docs/data.md shows one)."
        )
    for fact in ("classes", "value_range", "bits", "image_size", "channels"):
        if fact in facts.given():
            raise BadInput(f"`{fact}` does not go with a table; its schema says it.")
    columns = _columns(what)
    if isinstance(y, str):
        if y != schema.label:
            raise BadInput(
                f"`y` names the column {y!r} and the schema's label is {schema.label!r}; make them agree."
            )
        y = None
    if y is not None:
        if schema.label is None:
            raise BadInput(
                "Labels came and the schema has no label; name the label and its classes in the schema."
            )
        if schema.label in columns:
            raise BadInput(
                f"The table has the label {schema.label!r} as a column and `y` was given too; leave one of them out."
            )
        columns = {**columns, schema.label: _column(y, schema.classes)}
    name = facts.name or "table"
    if facts.unit is None or isinstance(facts.unit, str):
        return Dataset.from_table(columns, schema, name, unit=facts.unit, per_unit=facts.per_unit)
    values, labels = encode_columns(columns, schema)
    return Dataset.from_values(
        values, labels, schema=schema, unit=facts.unit, per_unit=facts.per_unit, name=name
    )


def _columns(what: Any) -> dict[str, Any]:
    """Columns by name; those of Arrow and polars as Arrow arrays."""
    if type(what).__module__.partition(".")[0] == "polars":
        what = what.to_arrow()
    if isinstance(what, pa.RecordBatch):
        what = pa.table(what)
    if isinstance(what, pa.Table):
        return {name: _plain(what.column(name)) for name in what.column_names}
    return {name: what[name] for name in what}


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """One array; of text in the one form that is looked up in."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    text = (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
    return (column.cast(pa.string()) if text else column).combine_chunks()


def _column(y: Any, classes: tuple[str, ...]) -> Any:
    """Labels beside a table, each by itself: the name of a class, or the place of one."""
    if type(y).__module__.partition(".")[0] == "polars":
        y = y.to_arrow()
    if isinstance(y, (pa.Array, pa.ChunkedArray)):
        cells = y.to_pylist()
    else:
        if isinstance(y, torch.Tensor):
            y = y.detach().cpu().numpy()
        found = y if isinstance(y, (list, tuple)) else np.atleast_1d(np.asarray(y))
        cells = [_plain_cell(cell) for cell in found]
    if any(whole_number(cell) is not None for cell in cells):
        check_countable(classes, "`y`", "pass the names of the classes as text")
    codes = [label_code(cell, classes) for cell in cells]
    if any(code < 0 for code in codes):
        raise BadInput(
            "Some labels are none of the schema's classes; complete the classes, or correct the labels."
        )
    return np.asarray(classes, object)[codes]


# ------------------------------------------------------------------------------------ Hugging Face


def _of_hugging_face(what: Any, y: Any, facts: _Facts) -> Dataset:
    kind = type(what).__name__
    if kind.endswith("DatasetDict"):
        raise BadInput(
            f'This holds several splits ({", ".join(map(str, what))}); pass one of them, such as data["train"].'
        )
    if kind != "Dataset":
        raise BadInput(
            f"A datasets.{kind} streams, and its records cannot be counted once; pass a datasets.Dataset "
            "(load_dataset(…, streaming=False))."
        )
    kinds = {name: type(feature).__name__ for name, feature in what.features.items()}
    pictures = [name for name, found in kinds.items() if found in ("Image", "Array2D", "Array3D")]
    if not pictures:
        columns = {
            name: _named_classes(what, name) if found == "ClassLabel" else _hf_column(what, name)
            for name, found in kinds.items()
        }
        return _of_table(columns, y, facts)
    if len(pictures) > 1:
        raise BadInput(
            f"A record has several pictures ({', '.join(pictures)}); keep one column by select_columns."
        )
    labels = [name for name, found in kinds.items() if found == "ClassLabel"]
    if y is None and len(labels) > 1:
        raise BadInput(
            f"A record has several labels ({', '.join(labels)}); name one by y=, or keep one by select_columns."
        )
    chosen = y if isinstance(y, str) else (labels[0] if y is None and labels else None)
    if chosen is not None:
        if chosen not in kinds:
            raise BadInput(f"The dataset has no column {chosen!r}; name its label.")
        if facts.classes is None and facts.schema is None and kinds[chosen] == "ClassLabel":
            facts.classes = tuple(what.features[chosen].names)
        y = _hf_column(what, chosen).to_numpy(zero_copy_only=False)
    if isinstance(facts.unit, str):
        if facts.unit not in kinds:
            raise BadInput(
                f"The dataset has no column {facts.unit!r}; name one that tells the unit."
            )
        facts.unit = np.asarray(_hf_column(what, facts.unit).to_pylist())
    (column,) = pictures
    some = what.select_columns([column])
    if kinds[column] == "Image":
        # As numbers of its own header, whatever format or transform the dataset was given for training.
        rows = _stacked((record[column] for record in some.with_format(None)), facts)
        facts.image_size = facts.channels = None
    else:
        stored = np.dtype(what.features[column].dtype)
        rows = np.asarray(some.with_format("numpy")[:][column]).astype(stored)
    return facts.of_images(rows, y)


def _hf_column(what: Any, name: str) -> pa.Array:
    return _plain(what.with_format("arrow")[:].column(name))


def _named_classes(what: Any, name: str) -> pa.Array:
    """A column of class codes by the names that stand in the dataset's features; −1 and null have none."""
    names = what.features[name].names
    codes = _hf_column(what, name).to_numpy(zero_copy_only=False)
    absent = ~(codes >= 0)  # NaN too
    indices = pa.array(np.where(absent, 0, codes).astype(np.int32), mask=absent)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string())).cast(pa.string())


# ------------------------------------------------------------------------------------------- torch


def _of_torch(what: Any, y: Any, facts: _Facts) -> Dataset:
    if isinstance(what, DataLoader):
        what = (
            what.dataset
        )  # a sampler may repeat or leave out records, and a repeated one would count twice
    if isinstance(what, TensorDataset):
        values, *labels = (_numbers(tensor) for tensor in what.tensors)
        if len(labels) > 1:
            raise BadInput(
                "Items of the torch data set are more than (record, label); pass one that gives those two."
            )
        return facts.of_images(values, _one_label(labels, y))
    items = list(_items(what))
    if not items:
        raise BadInput("The torch data set holds no items; pass at least one.")
    pairs = [_pair(item) for item in items]
    if len({label is None for _, label in pairs}) > 1:
        raise BadInput(
            "Some items of the torch data set have a label and some have none; make them alike."
        )
    rows = _stacked((row for row, _ in pairs), facts)
    own: list[Any] = [] if pairs[0][1] is None else [[label for _, label in pairs]]
    return facts.of_images(rows, _one_label(own, y))


def _items(what: Any) -> Iterator[Any]:
    if isinstance(what, IterableDataset):
        yield from what
        return
    try:
        size = len(what)
    except TypeError:
        raise BadInput(
            "The torch data set has no length, so its records cannot be read each once; give it __len__, or pass arrays."
        ) from None
    for index in range(size):
        yield what[index]


def _pair(item: Any) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        images, labels = ([key for key in item if key in names] for names in _KEYS)
        if len(images) == 1 and len(labels) <= 1:
            item = tuple(item[key] for key in (*images, *labels))
    if isinstance(item, (tuple, list)):
        if len(item) == 1:
            return item[0], None
        if len(item) == 2:
            label = item[1]
            if isinstance(label, (torch.Tensor, np.ndarray)) and label.ndim == 0:
                label = label.item()
            if isinstance(label, (int, np.integer, str)) and not isinstance(label, bool):
                return item[0], label
    elif isinstance(item, (torch.Tensor, np.ndarray, Image.Image)):
        return item, None
    raise BadInput(
        "Items of the torch data set are neither a record nor (record, label), nor a mapping with one image and one label, with "
        "a class as whole number or text; wrap it so that they are."
    )


def _one_label(own: list[Any], y: Any) -> Any:
    if own and y is not None:
        raise BadInput(
            "The torch data set has labels and `y` was given too; leave one of them out."
        )
    return own[0] if own else y


# ---------------------------------------------------------------------------------------- pictures


def _stacked(rows: Iterable[Any], facts: _Facts) -> Array:
    """Records as one array; Pillow's pictures are brought to the stated size."""
    rows = iter(rows)
    first = list(islice(rows, 1))
    if not first:
        raise BadInput("The data holds no rows; pass at least one.")
    if isinstance(first[0], Image.Image):
        shape, stated = facts.shape, facts.value_range
        fit: Fit = "stretch"
        if facts.schema is not None:
            stated, fit = facts.schema.value_range, facts.schema.fit
        made = [pixels_of(picture, shape, stated, fit) for picture in _chain(first, rows)]
        facts.value_range = None  # they are bytes now
        if facts.schema is not None:
            facts.schema = replace(facts.schema, value_range=None)
        facts.image_size = facts.channels = None
        return np.stack(made)
    found = [
        row.detach().cpu().numpy() if isinstance(row, torch.Tensor) else np.asarray(row)
        for row in _chain(first, rows)
    ]
    if len({(row.shape, row.dtype) for row in found}) > 1:
        raise BadInput("Records are not all of one shape and type; bring them to one.")
    return np.stack(found)


def _chain(first: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
    yield from first
    yield from rest


def pixels_of(
    picture: Any, shape: tuple[int, ...], stated: ValueRange | None = None, fit: Fit = "stretch"
) -> Array:
    """A picture of Pillow's as uint8 (C, H, W): upright, on white if transparent, gray or RGB, brought to the size by `fit`."""
    if not isinstance(picture, Image.Image):
        raise BadInput("Some records are pictures and some are not; make them alike.")
    upright = ImageOps.exif_transpose(picture)
    mode = upright.mode
    if mode in ("LAB", "HSV"):
        raise BadInput(f"A picture is in {mode} colours; convert it to RGB.")
    if mode.startswith("I") or mode == "F":
        if stated is None:
            kind = np.dtype(np.float32) if mode == "F" else np.dtype(np.uint16)
            raise unsettled("The pixels of the pictures", kind)
        unit = Scale(*stated)(np.asarray(upright)).clip(0.0, 1.0)
        upright = Image.fromarray(eight_bits(unit))
    elif stated not in (None, (0.0, 255.0)):
        if mode not in ("L", "RGB"):
            raise BadInput(
                "A picture does not store numbers in the stated range; correct the range, or leave it out."
            )
        upright = Image.fromarray(eight_bits(Scale(*stated)(np.asarray(upright)).clip(0.0, 1.0)))
    return shaped(on_white(upright), shape, fit)
