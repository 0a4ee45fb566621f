"""Bounds are enforced, not believed: feature maps, and the exact sum of their clipped rows.

A feature map turns each record into a vector of L2 norm at most `bound`, on its own. The wall does not trust it:
`BoundedSum` clips every row, zeroes rows that are not finite, and truncates each number *towards zero* onto a public grid.
Truncation cannot lengthen a row, so the bound holds exactly on the grid; and sums of grid points are integers, so they
are exact too: no rounding error adds to the sensitivity, and any split of the records over threads or machines gives
the same total to the last bit. A wrong bound costs accuracy, never privacy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sfumato.data import Batch

# The grid is this many binary digits finer than the bound: far below any useful noise, and exact in float32 rows.
_GRID_DIGITS = 24


class FeatureMap(ABC):
    """A row-wise map with a proved norm bound.

    **Guarantee** (each subclass proves it in its docstring): for every possible record, ‖φ(x)‖₂ ≤ `bound`; no row
    of the result depends on another row of the batch.

    A map may file each row under one of `segments` classes (`segment_of`): the joint vector has `segments` blocks of
    `dim` numbers, all zero but one, so its norm is the row's own.
    """

    dim: int
    bound: float
    segments: int = 1
    non_negative: bool = False

    @abstractmethod
    def __call__(self, batch: Batch) -> Tensor:
        """(n records) → (n, dim)"""

    def segment_of(self, batch: Batch) -> Tensor | None:
        """The block of each row, (n,); a value outside 0 … segments−1 drops the row. None: all in block 0."""
        return None

    @property
    def replace_ratio(self) -> float:
        """Sensitivity under replacement ÷ bound.

        For u, v without negative entries ⟨u, v⟩ ≥ 0, so ‖u − v‖² ≤ ‖u‖² + ‖v‖² ≤ 2·bound². Enforced by clamping.
        """
        return math.sqrt(2) if self.non_negative else 2.0


def grid_of(bound: float) -> float:
    """The public grid for contributions of norm ≤ `bound`: a power of two, about 2⁻²⁴ of it."""
    return 2.0 ** (math.floor(math.log2(bound)) - _GRID_DIGITS)


class BoundedSum:
    """Adds up φ over a batch, in whole grid units: what an engine computes on each piece of the data.

    **Guarantee**: replacing any one record by nothing moves the result by a vector of L2 norm ≤ bound ÷ grid.
    """

    def __init__(self, phi: FeatureMap) -> None:
        self.phi = phi
        self.grid = grid_of(phi.bound)
        self.shape = (phi.segments, phi.dim)

    def __call__(self, batch: Batch) -> Tensor:
        """The sum over the batch in grid units, (segments, dim), int64."""
        with torch.no_grad():
            units = self.rows(batch)  # (n, dim) float64, whole numbers
            segment = self.phi.segment_of(batch)
            if segment is None:
                total = units.sum(dim=0, keepdim=True)
            else:
                blocks = torch.arange(self.phi.segments)
                member = (segment[None, :] == blocks[:, None]).to(torch.float64)  # (segments, n)
                total = (units.T @ member.T).T if _is_transposed(units) else member @ units
            return total.to(torch.int64)

    def rows(self, batch: Batch) -> Tensor:
        """Each record's contribution after bounding, in grid units, (n, dim)."""
        rows = self.phi(batch)
        if rows.shape != (len(batch), self.phi.dim):
            raise ValueError(
                f"{type(self.phi).__name__} returned {tuple(rows.shape)} for {len(batch)} records and dim {self.phi.dim}"
            )
        return bounded_units(rows, self.phi.bound, self.grid, self.phi.non_negative)


def _is_transposed(rows: Tensor) -> bool:
    return rows.stride(0) < rows.stride(1)


def bounded_units(rows: Tensor, bound: float, grid: float, non_negative: bool = False) -> Tensor:
    """Clip each row to norm ≤ `bound` and truncate onto the grid; rows with NaN or infinity become zero.

    The clipping itself happens in floating point and may miss by a rounding error; the check that follows is on whole
    numbers in double precision, and shortens what is still too long.
    """
    if rows.dtype not in (torch.float32, torch.float64):
        rows = rows.to(torch.float32)
    if non_negative:
        rows = rows.clamp(min=0)
    norms = torch.linalg.vector_norm(rows, dim=1)
    if not bool(torch.isfinite(norms).all()):
        rows = rows.to(torch.float64)
        rows = torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, 0.0)
        # Squares of huge finite values overflow: take the norm of the row divided by its largest entry.
        largest = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-300)
        norms = torch.linalg.vector_norm(rows / largest, dim=1)
        rows = rows / largest
        norms = norms.clamp(min=1e-300)
        factor = torch.minimum(bound / norms, largest[:, 0]) / grid
    else:
        factor = (bound / norms.clamp(min=bound)) / grid
    units = (rows * factor[:, None].to(rows.dtype)).trunc_().to(torch.float64)
    limit = bound / grid
    for _ in range(4):
        squares = torch.linalg.vector_norm(units, dim=1).square_()
        over = squares > limit**2 * (1 - 1e-12)
        if not bool(over.any()):
            return units
        shorten = (limit * (1 - 1e-9)) / squares[over].sqrt()
        units[over] = (units[over] * shorten[:, None]).trunc_()
    raise AssertionError("a truncated row is still longer than its bound")
