"""The seam for engines, and the one that runs here: streaming, on all cores, in constant memory.

An engine is given the rows and a *summand*: a function from a batch to a tensor of integers. Because integers add up
exactly in any order, a cluster engine may compute the totals of shards wherever they lie and add them; noise is added
once, by the wall, to the grand total. An engine never sees noise and never returns anything per record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from sfumato.data import Batch, Dataset


class Summand(Protocol):
    shape: tuple[int, ...]
    rows_at_once: int  # a good size of a batch, from public facts; any other gives the same total

    def __call__(self, batch: Batch) -> Tensor: ...


class Engine(Protocol):
    def total(
        self,
        rows: Dataset,
        summand: Summand,
        *,
        on_fraction: Callable[[float], None] | None = None,
    ) -> Tensor:
        """Σ summand(batch) over all records, int64."""
        ...


class LocalEngine:
    """One process: batches stream past, torch uses all cores inside each."""

    def total(
        self,
        rows: Dataset,
        summand: Summand,
        *,
        on_fraction: Callable[[float], None] | None = None,
    ) -> Tensor:
        total = torch.zeros(summand.shape, dtype=torch.int64)
        done = 0
        for batch in rows.batches(summand.rows_at_once):
            total += summand(batch)
            done += len(batch)
            if on_fraction is not None:
                on_fraction(done / max(len(rows), 1))
        return total
