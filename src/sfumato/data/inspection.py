"""A look at private rows by their owner, before anything is paid: are they plainly not what was stated?

What is found here depends on PRIVATE rows and is no part of any release: it is told to whoever starts
the fit, as an error that stops it, and written nowhere. A single bad record (a NaN, an unknown label)
is none of this: it counts for nothing behind the wall, silently, as the guarantee demands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sfumato.data.dataset import Batch, Dataset
from sfumato.data.schema import Column, Schema
from sfumato.data.sources import ArraySource
from sfumato.errors import BadInput

_NUMBERS = 1 << 22
# A record is off its range when this share of its numbers is; the corners of a round scan are a fifth of it.
_OFF = 1 / 3
# Nearly all: what a column that may be empty must be to be called unreadable.
_NEARLY_ALL = 0.99


def refuse_implausible(data: Dataset, *, allow_empty: bool = False) -> None:
    """Read `data` once and raise BadInput if it is plainly not what its schema states.

    That is: in most records many numbers are not finite or lie outside the stated range; most labels are no
    stated class; a column is unreadable in most records; or, unless `allow_empty`, a class has no record.

    All but the last need a majority of at least two records, so that no single record brings them about among
    sound ones. The outcome is for the operator; it must not be published.
    """
    schema = data.schema
    count = _Count(schema)
    source = data._source
    if isinstance(source, ArraySource) and source.stored.dtype == np.uint8 and not source.scale:
        # Bytes cannot leave their range, so labels alone are looked at.
        labels = data.labels
        if labels is None:
            return
        count.add_labels(torch.from_numpy(labels))
    else:
        # Large pictures a few at a time: nobody should need more memory to look than to learn.
        for batch in data.batches(max(1, min(1024, _NUMBERS // schema.dim))):
            count.add(batch)
    if count.records == 0:
        raise BadInput(f"{data.name} holds no record; check the path and the split.")
    if count.most(count.off_range):
        low, high = schema.value_range or (0.0, 1.0)
        raise BadInput(
            f"Most records of {data.name} lie outside the stated range {low:g} … {high:g} or are no numbers; "
            "state the range of the stored numbers by --range LOW HIGH or --bits N (value_range=, bits=)."
        )
    for column, off, empty in zip(schema.columns, count.off_column, count.empty, strict=True):
        count.check_column(data.name, column, int(off), int(empty))
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


@dataclass
class _Count:
    schema: Schema
    records: int = 0
    off_range: int = 0
    unknown: int = 0

    def __post_init__(self) -> None:
        self.seen = torch.zeros(self.schema.n_classes, dtype=torch.bool)
        self.off_column = np.zeros(len(self.schema.columns), np.int64)
        self.empty = np.zeros(len(self.schema.columns), np.int64)

    def add(self, batch: Batch) -> None:
        if batch.labels is not None:
            self.add_labels(batch.labels)
        else:
            self.records += len(batch)
        if self.schema.kind == "table":
            self._add_table(batch.values)
        elif batch.values.dtype != torch.uint8:
            rows = batch.values.flatten(1)
            inside = (rows >= 0.0) & (rows <= 1.0)  # false for NaN
            self.off_range += int(((~inside).float().mean(1) > _OFF).sum())

    def add_labels(self, labels: torch.Tensor) -> None:
        self.records += len(labels)
        known = labels[labels >= 0]
        self.unknown += len(labels) - len(known)
        self.seen[known] = True

    def _add_table(self, rows: torch.Tensor) -> None:
        for index, column in enumerate(self.schema.columns):
            cells = rows[:, index]
            empty = cells.isnan()
            self.empty[index] += int(empty.sum())
            if column.low is not None and column.high is not None:
                off = (cells < np.float32(column.low)) | (cells > np.float32(column.high))
                self.off_column[index] += int(off.sum())

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
