"""The contract of a reader: a record is what it is, whatever is read with it.

Everything behind the wall rests on this: a sum over records has the sensitivity of one summand only if
adding a record to a file adds that record's row and leaves every other row as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from sfumato.data import Dataset
from sfumato.errors import BadInput

R = TypeVar("R")
Row = tuple[bytes, int]

# Numbers of records on both sides of every block that a reader or the engine makes.
COUNTS = (*range(71), *range(510, 516), *range(1022, 1027))
BATCHES = (1, 64, 1024)


def check_reader(
    open_with: Callable[[Sequence[R]], Dataset],
    records: Sequence[R],
    *,
    counts: Iterable[int] = COUNTS,
    batches: Sequence[int] = BATCHES,
) -> None:
    """Raise AssertionError unless the rows of a file are those that its records give one by one.

    `open_with` writes a file (or folder) with the records given and opens it; `records` are sound and
    adversarial ones. Each is read alone first: it gives one row, or is refused. Then, for every number in
    `counts`, a file of so many of those that gave a row is read with one of `records` more (they take turns):
    if that one was refused alone, so is the file; else the rows are those that its records gave alone, in
    whatever order, by `batches`, `take` and `len` alike. If that holds, then two files that differ by a record
    give rows that differ by that record's row.
    """
    alone = [_rows_or_none(open_with, [record], batches) for record in records]
    for index, rows in enumerate(alone):
        assert rows is None or rows.total() == 1, f"record {index} alone is not one row"
    sound = [index for index, rows in enumerate(alone) if rows is not None]
    assert sound, "no record can be read alone"
    for count in counts:
        others = [sound[place % len(sound)] for place in range(count)]
        expected: Counter[Row] = Counter()
        for index in others:
            expected.update(alone[index])
        for index, record in enumerate(records):
            if (index + count) % 3:
                continue
            place = (0, count // 2, count)[(count // 3 + index) % 3]
            given = [records[other] for other in others]
            given.insert(place, record)
            # Thousands of tiny batches take long and show no more than a few dozen.
            sizes = [size for size in batches if count <= 64 * size] or [max(batches)]
            rows = _rows_or_none(open_with, given, [sizes[(count // 3) % len(sizes)]])
            where = f"record {index} at place {place} among {count} others"
            own = alone[index]
            if own is None:
                assert rows is None, f"{where} was refused alone and is read here"
            else:
                assert rows is not None, f"{where} was read alone and is refused here"
                assert rows == expected + own, f"{where} changes other rows"


def _rows_or_none(
    open_with: Callable[[Sequence[R]], Dataset], records: Sequence[R], batches: Sequence[int]
) -> Counter[Row] | None:
    """The rows as a multiset, or None where the file is refused."""
    try:
        data = open_with(records)
        found = [_rows(data, size) for size in batches]
        taken = data.take(np.arange(len(data)))
        labels = None if taken.labels is None else taken.labels.numpy()
        found.append(Counter(_keys(taken.values.numpy(), labels)))
    except BadInput:
        return None
    assert all(rows == found[0] for rows in found), "the rows depend on the size of the batch"
    assert len(data) == found[0].total() == len(records), "the number of rows is wrong"
    return found[0]


def _rows(data: Dataset, size: int) -> Counter[Row]:
    rows: Counter[Row] = Counter()
    for batch in data.batches(size):
        labels = None if batch.labels is None else batch.labels.numpy()
        rows.update(_keys(batch.values.numpy(), labels))
    return rows


def _keys(values: np.ndarray, labels: np.ndarray | None) -> list[Row]:
    if values.dtype != np.uint8:
        values = np.where(
            np.isnan(values), np.float32(np.nan), values
        )  # one NaN is as good as another
    codes = [-1] * len(values) if labels is None else labels.tolist()
    return [(row.tobytes(), int(code)) for row, code in zip(values, codes, strict=True)]
