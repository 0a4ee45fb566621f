"""What was computed of a batch of records, kept while passes go over the same batches.

A memory holds PRIVATE values, so it must end with the fit: make one inside `_fit`, and let nothing that a method keeps refer
to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from sfumato.data import Batch
from sfumato.public.spaces import Space

_MEMORY = 2**30  # bytes


class Remembered:
    """A function of a batch that is computed once for each content, as long as there is room."""

    def __init__(self, compute: Callable[[Batch], Tensor]) -> None:
        self._compute = compute
        self._kept: dict[bytes, Tensor] = {}
        self._room = _MEMORY

    def __call__(self, batch: Batch) -> Tensor:
        key = hashlib.blake2b(batch.values.numpy().tobytes(), digest_size=16).digest()
        rows = self._kept.get(key)
        if rows is None:
            rows = self._compute(batch)
            self._room -= rows.numel() * rows.element_size()
            if self._room > 0:
                self._kept[key] = rows
        return rows


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
        keys = [
            hashlib.blake2b(record.numpy().tobytes(), digest_size=16).digest() for record in records
        ]
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


class RememberingSpace(Space):
    """Another space whose vectors are remembered: for one in which encoding is a network's work."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self.dim, self.radius, self.prior = space.dim, space.radius, space.prior
        self.places, self.ranged = space.places, space.ranged
        self._vectors = Remembered(space.encode)

    def encode(self, batch: Batch) -> Tensor:
        return self._vectors(batch)

    def raw(self, vectors: Tensor) -> Tensor:
        return self._space.raw(vectors)

    def finish(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return self._space.finish(raw, generator)

    def seen(self, batch: Batch) -> Tensor:
        return self._space.seen(batch)
