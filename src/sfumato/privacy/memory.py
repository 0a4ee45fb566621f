"""What was computed of private records, kept while several sums go over them: inside the wall, and no longer than the fit.

A memory holds PRIVATE values. Methods get one from `Gate.remember` only, which forgets all of it when the fit ends. Sent to
another process, where no fit ends, it takes nothing along and remembers nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sfumato.data import Batch

_MEMORY = 2**30  # bytes


class Remembered:
    """A function of a batch's values that is computed once for each content, as long as there is room.

    **Guarantee**: the function is not shown labels, so records that differ by their label alone are the same to it; and what
    it gave is handed out as it was given: whoever writes to it is told, since other sums would see what was written.
    """

    def __init__(self, compute: Callable[[Batch], Tensor]) -> None:
        self._compute = compute
        self._kept: dict[bytes, tuple[Tensor, int]] = {}
        self._room = _MEMORY

    def __call__(self, batch: Batch) -> Tensor:
        key = _digest(batch.values)
        if key in self._kept:
            rows, version = self._kept[key]
            if rows._version != version:
                raise ValueError("what was remembered of records was written to; work on a copy")
            return rows
        rows = self._compute(Batch(batch.values, None))
        self._room -= rows.numel() * rows.element_size()
        if self._room > 0:
            self._kept[key] = (rows, rows._version)
        return rows

    def __reduce__(self) -> tuple[Any, ...]:
        return _forgetful, (Remembered, self._compute)

    def forget(self) -> None:
        self._kept.clear()
        self._room = 0


class RememberedRows:
    """A function of records, (n, …) → (n, numbers), computed once for each record: for samples that meet them again and again.

    **Guarantee**: the function is shown one record at a time, so that the last bits of a record's numbers do not tell how many
    others were met before it, nor which.
    """

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        self._compute = compute
        self._kept: dict[bytes, Tensor] = {}
        self._room = _MEMORY

    def __call__(self, records: Tensor) -> Tensor:
        if not len(records):
            return self._compute(records)
        keys = [_digest(record) for record in records]
        found: dict[bytes, Tensor] = {}
        for place, key in enumerate(keys):
            if key in self._kept or key in found:
                continue
            # One at a time: in company, a row's last digits could depend on how many of the others are new. A copy: a view
            # would keep the whole batch.
            row = found[key] = self._compute(records[place : place + 1])[0].clone()
            size = row.numel() * row.element_size()
            if self._room >= size:
                self._kept[key] = row
                self._room -= size
        return torch.stack([found[key] if key in found else self._kept[key] for key in keys])

    def __reduce__(self) -> tuple[Any, ...]:
        return _forgetful, (RememberedRows, self._compute)

    def forget(self) -> None:
        self._kept.clear()
        self._room = 0


def _forgetful(kind: Any, compute: Callable[[Any], Tensor]) -> Remembered | RememberedRows:
    memory: Remembered | RememberedRows = kind(compute)
    memory.forget()
    return memory


def _digest(values: Tensor) -> bytes:
    form = f"{values.dtype} {tuple(values.shape)}".encode()
    return hashlib.blake2b(form + values.numpy().tobytes(), digest_size=16).digest()
