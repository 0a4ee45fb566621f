"""A person counts once: how much each record counts of its unit.

**The mechanism.** A unit of k records (or the k = `at_most` of more that were drawn) adds the *mean* of its records' vectors to
every sum, so that one unit moves a sum by no more than one record may. *Proof.* Every record's summand is a vector u of whole
numbers of grid units with ‖u‖ ≤ B, enforced record by record and by that record alone (`bounding`, `gradients`). A unit's records
get shares a₁ … a_k, whole numbers ≥ 0 that add up to A = `SHARES` (1 if one record of a unit counts); sums are taken of a·u on a
grid A times finer. A unit then adds Σ aᵢ·uᵢ, of norm ≤ Σ aᵢ·‖uᵢ‖ ≤ A·B fine units, which is B: the bound of one record, to the
last bit and in whatever classes its records lie. What else is used of summands holds for such means as well: vectors without
negative entries have means without, so replacing a unit moves the sum by √2 · B; means of a ⊗ a are positive semi-definite, and
⟨U, V⟩ ≥ 0 for such U, V gives the same.

Of a Poisson-sampled sum the *units* are sampled, each with all its records; groups and shards are made of units. So all that is
proved of records there (`groups`, `accounting`) holds of units, with the same charges. Each record's gradient is clipped by
itself and the mean taken of what remains, which keeps the fast forms of norms; it is not longer than the bound either.

A·mean is a whole number only if k divides A; the shares differ by one at most, and which records have one more, as which are
drawn of too many, is decided by OS entropy, for each unit on its own and never by the order of records.

If every record is a unit of its own, shares are all A, and the sums are those over records.

PRIVATE: which record is whose, shares, the number of records. PUBLIC, where the relation makes it so: the number of units.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from sfumato.data import Batch, Dataset
from sfumato.data.sources import Array
from sfumato.data.units import MOST_PER_UNIT

# Parts that a unit is divided into. A power of two, so that finer grids are powers of two as well, and small enough for sums of
# products of millions of units to stay within 64 bits.
SHARES = 256
assert SHARES >= MOST_PER_UNIT


class UnitRows(Dataset):
    """The rows with each record's share, and the records of some units: what the wall reads.

    Where nothing else is stated each record is a unit, and these are the data as they are.
    """

    def __init__(self, rows: Dataset) -> None:
        super().__init__(
            rows._source, rows.schema, rows.name, published_as=rows.published_as, units=rows.units
        )
        self._rows = rows
        # That a unit has; None where records are units.
        self.shares = None if rows.units is None else shares_for(rows.unit.at_most)
        self._unit_of: NDArray[np.int64] | None = None
        self._share: torch.Tensor | None = None

    @property
    def count(self) -> int:
        """The number of units."""
        return len(self) if self.units is None else int(self._read().max(initial=-1)) + 1

    def batches(self, size: int) -> Iterator[Batch]:
        batches = self._rows.batches(size)
        return batches if self.units is None else self._shared(batches)

    def take(self, indices: Array | Sequence[int]) -> Batch:
        batch = self._rows.take(indices)
        if self.units is None:
            return batch
        self._read()
        assert self._share is not None
        return replace(batch, shares=self._share[torch.from_numpy(np.asarray(indices))])

    def part(self, number: int, parts: int) -> Dataset:
        """Records that follow each other, each with the share that it has in the whole."""
        if self.units is None:
            return UnitRows(self._rows.part(number, parts))
        self._read()
        assert self._share is not None
        start, stop = self.cuts(len(self), parts)[number : number + 2]
        return _SomeShared(self, start, stop, self._share[start:stop].clone())

    def records_of(self, drawn: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The records that count of the units where `drawn` is true, in their order."""
        if self.units is None:
            return drawn.nonzero()[0]
        unit_of = self._read()
        assert self._share is not None
        return (drawn[unit_of] & (self._share.numpy() > 0)).nonzero()[0]

    def of_records(
        self, values: NDArray[np.int64], records: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """What `values` says of the unit of each of these records."""
        return values[records] if self.units is None else values[self._read()[records]]

    def _shared(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        self._read()
        assert self._share is not None
        start = 0
        for batch in batches:
            yield replace(batch, shares=self._share[start : start + len(batch)])
            start += len(batch)

    def _read(self) -> NDArray[np.int64]:
        if self._unit_of is None:
            assert self.units is not None
            self._unit_of = self.units.codes(len(self))
            self._share = torch.from_numpy(shares_of(self._unit_of, self.units.about.at_most))
        return self._unit_of


class _SomeShared(Dataset):
    """Some records of several units with their shares; whose they are is not told, so that nothing can be drawn of them."""

    def __init__(self, whole: UnitRows, start: int, stop: int, share: torch.Tensor) -> None:
        super().__init__(whole._source.part(start, stop), whole.schema, whole.name)
        self._share = share

    def batches(self, size: int) -> Iterator[Batch]:
        start = 0
        for batch in super().batches(size):
            yield replace(batch, shares=self._share[start : start + len(batch)])
            start += len(batch)

    def take(self, indices: Array | Sequence[int]) -> Batch:
        shares = self._share[torch.from_numpy(np.asarray(indices))]
        return replace(super().take(indices), shares=shares)


def shares_for(at_most: int) -> int:
    """How many shares a unit has, of which at most so many records count: a public number."""
    return 1 if at_most == 1 else SHARES


def shares_of(unit_of: NDArray[np.int64], at_most: int) -> NDArray[np.int64]:
    """(records,): the shares of records in their units, by OS entropy; those of a unit add up to `shares_for(at_most)`."""
    whole = shares_for(at_most)
    coins = np.frombuffer(os.urandom(8 * len(unit_of)), dtype=np.uint64)
    # By unit, and within a unit at random: a record's place is a draw of its own.
    order = np.lexsort((coins, unit_of))
    sizes = np.bincount(unit_of)
    starts = np.cumsum(sizes) - sizes
    unit = unit_of[order]
    place = np.arange(len(order)) - starts[unit]
    counted = np.minimum(sizes, at_most)[unit]
    shares = np.zeros(len(order), np.int64)
    shares[order] = np.where(place < counted, whole // counted + (place < whole % counted), 0)
    return shares


def size_of(data: Dataset) -> int:
    """The number of units in a data set: private unless the relation makes it public. Reads whose records they are."""
    return UnitRows(data).count
