"""The seam for engines, and the one that runs here: streaming, on all cores, in constant memory.

An engine is given the rows and a *summand*: which batches of some rows it goes over, and a function from a batch to a tensor of
whole numbers. Because whole numbers add up exactly in any order, a cluster engine may compute the totals of parts wherever they
lie (`summed`) and add them; noise is added once, by the wall, to the grand total. An engine never sees noise, never decides which
records count, and never returns anything per record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from sfumato.data import Batch, Dataset

T = TypeVar("T")
R = TypeVar("R")


class Summand(Protocol):
    shape: tuple[int, ...]
    rows_at_once: int  # a good size of a batch, from public facts; any other gives the same total

    def __call__(self, batch: Batch) -> Tensor: ...


class SampledSummand(Summand, Protocol):
    """A summand that draws, by the wall's own code, which of some rows it goes over; drawn where the rows are, and not told."""

    dtype: torch.dtype

    def batches(self, rows: Dataset) -> Iterator[Batch]: ...


class Engine(Protocol):
    def total(
        self,
        rows: Dataset,
        summand: Summand,
        *,
        on_fraction: Callable[[float], None] | None = None,
    ) -> Tensor:
        """Σ summand(batch) over all records, or over those that a `SampledSummand` draws; int64, or the summand's own type."""
        ...

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[int, R]]:
        """`work` of each item with its place, as they are done; for work on public things, such as drawing samples."""
        ...

    def close(self) -> None:
        """The engine is needed no more."""
        ...


def summed(
    rows: Dataset, summand: Summand, on_fraction: Callable[[float], None] | None = None
) -> Tensor:
    """The total of some rows: what every engine computes of each part."""
    batches: Any = getattr(summand, "batches", None)
    total = torch.zeros(summand.shape, dtype=getattr(summand, "dtype", torch.int64))
    done = 0
    for batch in rows.batches(summand.rows_at_once) if batches is None else batches(rows):
        total += summand(batch)
        done += len(batch)
        if on_fraction is not None:
            on_fraction(done / max(len(rows), 1))
    return total


class LocalEngine:
    """One process: batches stream past, torch uses all cores inside each."""

    def total(
        self,
        rows: Dataset,
        summand: Summand,
        *,
        on_fraction: Callable[[float], None] | None = None,
    ) -> Tensor:
        return summed(rows, summand, on_fraction)

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[tuple[int, R]]:
        return enumerate(map(work, items))

    def close(self) -> None:
        pass
