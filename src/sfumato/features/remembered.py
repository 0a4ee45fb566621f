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
from sfumato.features.spaces import Space

_MEMORY = 2**30  # bytes
_ROWS = 64  # records at a time, always as many: what a record becomes must not depend on how many others are new


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

    **Guarantee**: the function is shown batches of one size only, filled up with zeros, so that the last bits of a record's
    numbers do not tell how many others were met before it.
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
        new = [place for place, key in enumerate(keys) if key not in self._kept]
        found: dict[bytes, Tensor] = {}
        if new:
            computed = self._computed(records[new])
            # A copy of each row: a view would keep the whole batch.
            found = {keys[place]: row.clone() for place, row in zip(new, computed, strict=True)}
            size = computed[0].numel() * computed.element_size()
            for key, row in found.items():
                if self._room >= size:
                    self._kept[key] = row
                    self._room -= size
        return torch.stack([found[key] if key in found else self._kept[key] for key in keys])

    def _computed(self, records: Tensor) -> Tensor:
        parts = []
        for part in records.split(_ROWS):
            filled = records.new_zeros((_ROWS, *records.shape[1:]))
            filled[: len(part)] = part
            parts.append(self._compute(filled)[: len(part)])
        return torch.cat(parts)


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
