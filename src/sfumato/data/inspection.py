"""A look at private rows by their owner, before anything is paid: are they plainly not what was stated?

What is found here depends on PRIVATE rows and is no part of any release: it is told to whoever starts
the fit, as an error that stops it, and written nowhere. A single bad record (a NaN, an unknown label)
is none of this: it counts for nothing behind the wall, silently, as the guarantee demands.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from sfumato.data.dataset import Batch, Dataset
from sfumato.data.folders import FolderSource
from sfumato.data.schema import Column, Schema
from sfumato.data.sources import ArraySource
from sfumato.errors import BadInput

_NUMBERS = 1 << 22
# A record is off its range when this share of its numbers is; the corners of a round scan are a fifth of it.
_OFF = 1 / 3
# Nearly all: what a column that may be empty must be to be called unreadable.
_NEARLY_ALL = 0.99


def refuse_implausible(
    data: Dataset, *, allow_empty: bool = False, total: Total | None = None
) -> None:
    """Read `data` once and raise BadInput if it is plainly not what its schema states.

    What is looked at are counts, so `total` may add them up wherever the records are (`Engine.total`).

    That is: in most records many numbers are not finite or lie outside the stated range; most labels are no
    stated class; a column is unreadable in most records; or, unless `allow_empty`, a class has no record.

    All but the last need a majority of at least two records, so that no single record brings them about among
    sound ones. The outcome is for the operator; it must not be published.
    """
    schema = data.schema
    look = _Look(schema)
    source = data._source
    if isinstance(source, ArraySource) and source.stored.dtype == np.uint8 and not source.scale:
        # Bytes cannot leave their range, so labels alone are looked at.
        if source.labels is None or not schema.labelled:
            return
        some = range(0, len(source), _NUMBERS)
        pieces = (data._codes(source.labels[start : start + _NUMBERS]) for start in some)
        found = (look.of_labels(piece) for piece in pieces if piece is not None)
        count = _Count(schema, sum(found, look.none()))
    elif total is not None:
        count = _Count(schema, total(data, look))
    else:
        batches = data.batches(look.rows_at_once)
        count = _Count(schema, sum((look(batch) for batch in batches), look.none()))
    if count.records == 0:
        raise BadInput(f"{data.name} holds no record; check the path and the split.")
    if count.most(count.off_range):
        low, high = schema.value_range or (0.0, 1.0)
        raise BadInput(
            f"Most records of {data.name} lie outside the stated range {low:g} … {high:g} or are no numbers; "
            "state the range of the stored numbers by --range LOW HIGH or --bits N (value_range=, bits=)."
        )
    for column, off, empty in zip(schema.columns, count.off_column, count.empty, strict=True):
        count.check_column(data.name, column, off, empty)
    if schema.labelled:
        if count.most(count.unknown):
            raise BadInput(
                f"Most labels of {data.name} are none of the stated classes; state the classes as the file "
                "spells them (--classes, or `classes` in the schema)."
            )
        if not allow_empty and not bool(count.seen.all()):
            raise BadInput(
                f"{data.name} has a class without any record; labels count from 0, so recode labels that count "
                "from 1, correct --classes, or pass --allow-empty (allow_empty=True) if that is so."
            )


def refuse_empty_folders(data: Dataset) -> None:
    """Raise BadInput if a class folder holds no picture, by the listing alone: no row is read for it."""
    source = data._source
    empty = source.empty_classes() if isinstance(source, FolderSource) else []
    if empty:
        raise BadInput(
            f"{data.name} has no picture of {', '.join(empty[:5])}{' and more' if len(empty) > 5 else ''}; correct the class "
            "folders or --classes, or pass --allow-empty (allow_empty=True) if that is so."
        )


class _Look:
    """What is counted of a batch, (numbers,) int64: see `_Count`, which takes it apart."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.shape: tuple[int, ...] = (3 + schema.n_classes + 2 * len(schema.columns),)
        # Large pictures a few at a time: nobody should need more memory to look than to learn.
        self.rows_at_once = max(1, min(1024, _NUMBERS // schema.dim))

    def none(self) -> torch.Tensor:
        return torch.zeros(self.shape, dtype=torch.int64)

    def __call__(self, batch: Batch) -> torch.Tensor:
        labels = batch.labels
        found = self.none() if labels is None else self.of_labels(labels)
        found[0] = len(batch)
        if self.schema.kind == "table":
            found[3 + self.schema.n_classes :] = self._of_table(batch.values)
        elif batch.values.dtype != torch.uint8:
            rows = batch.values.flatten(1)
            inside = (rows >= 0.0) & (rows <= 1.0)  # false for NaN
            found[1] = ((~inside).float().mean(1) > _OFF).sum()
        return found

    def of_labels(self, labels: torch.Tensor) -> torch.Tensor:
        found, known = self.none(), labels[labels >= 0]
        classes = self.schema.n_classes
        found[0], found[2] = len(labels), len(labels) - len(known)
        found[3 : 3 + classes] = torch.bincount(known, minlength=classes)[:classes]
        return found

    def _of_table(self, rows: torch.Tensor) -> torch.Tensor:
        off, empty = torch.zeros(2, len(self.schema.columns), dtype=torch.int64)
        for index, column in enumerate(self.schema.columns):
            cells = rows[:, index]
            empty[index] = cells.isnan().sum()
            if column.low is not None and column.high is not None:
                beyond = (cells < np.float32(column.low)) | (cells > np.float32(column.high))
                off[index] = beyond.sum()
        return torch.cat([off, empty])


# Adds up what `_Look` counts of the batches of a data set.
Total = Callable[[Dataset, _Look], torch.Tensor]


class _Count:
    def __init__(self, schema: Schema, found: torch.Tensor) -> None:
        self.records, self.off_range, self.unknown = found[:3].tolist()
        of_classes, columns = found[3 : 3 + schema.n_classes], found[3 + schema.n_classes :]
        self.seen = of_classes > 0
        self.off_column, self.empty = columns.view(2, -1).tolist()

    def most(self, number: int) -> bool:
        return number >= 2 and 2 * number > self.records

    def check_column(self, name: str, column: Column, off: int, empty: int) -> None:
        if self.most(off):
            raise BadInput(
                f"Most values of column {column.name!r} of {name} lie outside its range; correct `low` and "
                "`high` in the schema."
            )
        enough = empty > _NEARLY_ALL * self.records if column.missing else True
        if self.most(empty) and enough:
            raise BadInput(
                f"Column {column.name!r} of {name} is empty or none of its categories in most records; spell "
                "the categories as the file does, or leave the column out of the schema."
            )
