"""A fresh Poisson sample of some rows, drawn where they are: what an engine sums over in one paid step.

Every unit is in on its own coin of OS entropy. So where units are records, the samples of parts, drawn part by part on whichever
machines hold them, make up a sample of the whole; units of several records, which may lie in several parts, are drawn in one
place. Coins, samples and their sizes are PRIVATE: they live in the process that draws them while it sums, no seed of them exists,
and nothing but the sum leaves it. The sum goes in pieces, so that an unlucky large sample costs time and not memory: a worker
that ran out of it and was started again would draw smaller samples than were paid for.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sfumato.data import Batch, Dataset
from sfumato.privacy import noise
from sfumato.privacy.bounding import BoundedSum, OuterSum
from sfumato.privacy.gradients import GradientSum
from sfumato.privacy.units import UnitRows


class PoissonSum:
    """Σ over a sample of `rate` of the units of the rows it is given; another sample each time, also of the same rows."""

    def __init__(self, summand: BoundedSum | OuterSum | GradientSum, rate: float) -> None:
        self._summand, self._rate = summand, rate
        self.rows_at_once = summand.rows_at_once
        gradients = isinstance(summand, GradientSum)
        self.shape = (summand.dim,) if isinstance(summand, GradientSum) else summand.shape
        # Sums of gradients are whole multiples of several units, exact in double precision (`privacy.gradients`).
        self.dtype = torch.float64 if gradients else torch.int64

    def batches(self, rows: Dataset) -> Iterator[Batch]:
        if isinstance(self._summand, GradientSum):
            self._summand.check(rows.schema)
        if not isinstance(rows, UnitRows):
            raise TypeError("units are drawn where it is known whose records these are")
        chosen = rows.records_of(noise.poisson_mask(rows.count, self._rate))
        for start in range(0, len(chosen), self.rows_at_once):
            yield rows.take(chosen[start : start + self.rows_at_once])

    def __call__(self, batch: Batch) -> Tensor:
        return self._summand(batch)
