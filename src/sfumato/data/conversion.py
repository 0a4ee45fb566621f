"""A Dataset as other libraries hold data: Arrow, pandas, Hugging Face; single records and parts of it; what a notebook shows.

Rows are as private here as in the data set they come from: a conversion is the caller's own act. What is shown unasked, by a
notebook that displays whatever stands last in a cell, is the schema; rows, and how many there are, only of synthetic sets and of
those published under a name.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from PIL import Image

from sfumato import notebook
from sfumato.data.sources import Array, ArraySource, eight_bits
from sfumato.data.tables import LABEL, arrow_schema, decode_rows
from sfumato.errors import BadInput

if TYPE_CHECKING:
    from sfumato.data.dataset import Batch, Dataset
    from sfumato.data.schema import Schema

IMAGE = "image"
_ROWS = 1024  # converted at a time
_SHOWN = 8  # rows of a table, or images of a class, in a notebook


# ------------------------------------------------------------------------------------------- parts


def chosen(data: Dataset, index: Any) -> Any:
    """`data[index]`."""
    if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
        at = int(index)
        if not -len(data) <= at < len(data):
            raise IndexError("row number outside the data set")  # ends a plain `for`
        batch = data.take([at % len(data)])
        return batch.values[0].numpy(), -1 if batch.labels is None else int(batch.labels[0])
    if data.units is not None:
        raise BadInput(
            "Some of the records would no longer tell whose they all are; choose from the data without units."
        )
    if isinstance(index, slice):
        rows = np.arange(len(data))[index]
    else:
        rows = np.asarray(index)
        if rows.dtype.kind == "b" and rows.shape == (len(data),):
            rows = np.flatnonzero(rows)
        elif rows.dtype.kind in "iu" and rows.ndim == 1:
            rows = np.where(rows < 0, rows + len(data), rows)
        else:
            raise BadInput(
                "Records are chosen by a number, a slice, a list of numbers or a mask as long as the data; pass one of those."
            )
    batch = data.take(rows)
    labels = None if batch.labels is None else batch.labels.numpy()
    source = ArraySource(batch.values.numpy(), labels)
    some = type(data)(source, data.schema, data.name, published_as=data.published_as)
    some.synthetic = data.synthetic
    return some


# ----------------------------------------------------------------------------------- other libraries


def png_bytes(pixels: Array) -> bytes:
    """One image (C, H, W) of bytes as a PNG."""
    stream = io.BytesIO()
    picture_of(pixels).save(stream, "PNG")
    return stream.getvalue()


def picture_of(pixels: Array) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(_plane(pixels)))


def _plane(pixels: Array) -> Array:
    return pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)


def hf_layout(schema: Schema) -> pa.Schema:
    """The columns of images as Hugging Face's `datasets` keeps them, which reads their kinds from the metadata."""
    features: dict[str, Any] = {IMAGE: {"_type": "Image"}}
    fields = [pa.field(IMAGE, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))]
    if schema.labelled:
        features[LABEL] = {"names": list(schema.classes), "_type": "ClassLabel"}
        fields.append(pa.field(LABEL, pa.int64()))
    told = json.dumps({"info": {"features": features}}, ensure_ascii=False)
    return pa.schema(fields, metadata={"huggingface": told})


def hf_batch(batch: Batch, layout: pa.Schema) -> pa.RecordBatch:
    """Images of a batch by `hf_layout`, in eight bits; a label of no known class is null."""
    pictures = [
        {"bytes": png_bytes(pixels), "path": None} for pixels in eight_bits(batch.values.numpy())
    ]
    columns = [pa.array(pictures, layout.field(IMAGE).type)]
    if batch.labels is not None:
        codes = batch.labels.numpy()
        columns.append(pa.array(codes, pa.int64(), mask=codes < 0))
    return pa.record_batch(columns, schema=layout)


def to_arrow(data: Dataset) -> pa.Table:
    schema = data.schema
    if schema.kind == "images":
        layout = hf_layout(schema)
        batches = [hf_batch(batch, layout) for batch in data.batches(_ROWS)]
    else:
        layout = arrow_schema(schema, np.float32)
        batches = [
            decode_rows(
                batch.values.numpy(),
                None if batch.labels is None else batch.labels.numpy(),
                schema,
                layout,
            )
            for batch in data.batches(_ROWS)
        ]
    return pa.Table.from_batches(batches, layout)


def to_pandas(data: Dataset) -> Any:
    pandas = _needed("pandas", "pandas")
    schema = data.schema
    label = schema.label or LABEL
    if schema.kind == "table":
        frame = to_arrow(data).to_pandas()
        listed = {c.name: c.categories for c in schema.columns if c.categories}
        if schema.labelled:
            listed[label] = schema.classes
        ordered = {c.name for c in schema.columns if c.kind == "ordinal"}
        for name, categories in listed.items():
            kind = pandas.CategoricalDtype(list(categories), ordered=name in ordered)
            frame[name] = frame[name].astype(kind)
        return frame
    columns: dict[str, Any] = {IMAGE: [_plane(pixels) for pixels in data.images]}
    if (labels := data.labels) is not None:
        columns[label] = pandas.Categorical.from_codes(labels, list(schema.classes))
    return pandas.DataFrame(columns)


def to_polars(data: Dataset) -> Any:
    return _needed("polars", "polars").from_arrow(to_arrow(data))


def to_hf(data: Dataset) -> Any:
    library = _needed("datasets", "sfumato[hf]")
    table, label = to_arrow(data), data.schema.label
    if data.schema.kind == "table" and label is not None:
        features = library.Features.from_arrow_schema(table.schema)
        features[label] = library.ClassLabel(names=list(data.schema.classes))
        codes = features[label].str2int(table.column(label).to_pylist())
        place = table.column_names.index(label)
        table = table.set_column(place, label, pa.array(codes, pa.int64()))
        return library.Dataset(table.cast(features.arrow_schema))
    return library.Dataset(table)


def _needed(module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise BadInput(
            f"This needs {module}, which is not installed; install it by pip install '{package}'."
        ) from None


# --------------------------------------------------------------------------------------- notebooks


def shown(data: Dataset) -> str:
    """What a notebook shows of a data set."""
    schema = data.schema
    facts: list[tuple[str, Any]] = [("kind", schema.kind)]
    if schema.kind == "images":
        facts.append(("channels × height × width", " × ".join(map(str, schema.shape))))
        if schema.value_range is not None:
            facts.append(("value range", "{:g} … {:g}".format(*schema.value_range)))
    if schema.labelled:
        few = ", ".join(schema.classes[:20]) + (", …" if schema.n_classes > 20 else "")
        facts.append((f"classes ({schema.n_classes})", few))
    open_ = data.synthetic or data.published_as is not None
    if open_:
        facts.insert(0, ("records", f"{len(data):,}"))
    elif not data.unit.single:
        facts.append(("unit of privacy", data.unit.name))
    parts = [notebook.table(("Public fact", ""), facts)]
    if schema.kind == "table":
        columns = [
            (
                c.name,
                c.kind,
                ", ".join(c.categories[:20]) + (", …" if len(c.categories) > 20 else "")
                if c.categories
                else f"{c.low:g} … {c.high:g}",
            )
            for c in schema.columns
        ]
        parts.append(notebook.table(("Column", "Kind", "Range or categories"), columns))
    if open_:
        parts.append(_rows(data))
    else:
        parts.append(notebook.paragraph("Rows may be private and are not shown."))
    said = "synthetic" if data.synthetic else "published" if open_ else "data set"
    return notebook.card(f"{data.name} ({said})", *parts)


def _rows(data: Dataset) -> str:
    from sfumato.data.pictures import sample_grid

    if data.schema.kind == "images":
        some = data[: min(len(data), max(1, data.schema.n_classes) * 40)]
        stream = io.BytesIO()
        sample_grid(some, per_class=_SHOWN).save(stream, "PNG")
        return notebook.picture(stream.getvalue(), f"Some images of {data.name}")
    some = to_arrow(data[:_SHOWN])
    return notebook.table(some.column_names, [list(row.values()) for row in some.to_pylist()])
