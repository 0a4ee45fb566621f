"""Bounds are enforced, not believed: feature maps, and the exact sum of their clipped rows.

A feature map turns each record into a vector of L2 norm at most `bound`, on its own. The wall does not trust it:
`BoundedSum` clips every row, zeroes rows that are not finite, and rounds each number onto a public grid. Sums of grid points are
whole numbers and therefore exact: no rounding error adds to the sensitivity, and any split of the records over threads
or machines gives the same total to the last bit. A wrong bound costs accuracy, never privacy.

What rounding and the inexact floating-point norm can add to a row's length is covered by `enforced_bound`, a few ten-thousandths
above the map's own bound; it is the enforced bound that the ledger is charged with.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sfumato.data import Batch

# The grid is this many binary digits finer than the bound: far below any useful noise, and coarse enough for sums of
# hundreds of float32 rows to be exact.
_GRID_DIGITS = 18
# Squares are added in float32 in blocks of this many, so that their sum is off by at most 1026 · 2⁻²⁴ < 1.01 · 2⁻¹⁴ of itself.
_BLOCK = 1024
_NORM_SLACK = 2.0**-14
_EXACT_FLOAT32 = 2.0**24


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

    def into(self, batch: Batch, out: Tensor) -> None:
        """Write the transpose of `self(batch)` into `out`, (dim, n); a map may override this to save a copy."""
        out.copy_(self(batch).T)

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
    """The public grid for contributions of norm ≤ `bound`: a power of two between 2⁻¹⁹ and 2⁻¹⁸ of it."""
    return 2.0 ** (math.floor(math.log2(bound)) - _GRID_DIGITS)


def enforced_bound(phi: FeatureMap) -> float:
    """The length that no row exceeds after bounding, whatever φ returned.

    Proof. A row passes unclipped if its computed squared norm is ≤ bound² · (1 + 2⁻¹⁴), room for a map whose norm is the bound
    itself up to rounding. The computed value is at least 1 − 1.01 · 2⁻¹⁴ of the true one, so the true squared norm is
    ≤ bound² · (1 + 2⁻¹³ + 2⁻²⁰) and the norm ≤ bound · (1 + 2⁻¹³). A clipped row is scaled to `bound` in double precision and stored in single:
    ≤ bound · (1 + 2⁻²³). Rounding to the grid moves each of `dim` entries by at most grid/2 ≤ bound · 2⁻¹⁹, hence the row by at
    most √dim · bound · 2⁻¹⁹.
    """
    return phi.bound * (1 + 2 * _NORM_SLACK + math.sqrt(phi.dim) * 2.0 ** -(_GRID_DIGITS + 1))


class BoundedSum:
    """Adds up φ over a batch, in whole grid units: what an engine computes on each piece of the data.

    **Guarantee**: leaving out any one record moves the result by a vector of L2 norm ≤ enforced_bound(φ) ÷ grid.
    """

    def __init__(self, phi: FeatureMap) -> None:
        self.phi = phi
        self.grid = grid_of(phi.bound)
        self.shape = (phi.segments, phi.dim)

    def __call__(self, batch: Batch) -> Tensor:
        """The sum over the batch in grid units, (segments, dim), int64."""
        with torch.no_grad():
            total = torch.empty(self.shape, dtype=torch.int64)
            rows = self._bounded(batch)
            segment = self.phi.segment_of(batch)
            if segment is None:
                member = rows.new_ones(1, len(rows))
            else:
                member = (segment[None, :] == torch.arange(self.phi.segments)[:, None]).to(rows.dtype)
            # Block by block, so that what is read again is still in the processor's cache.
            for start in range(0, self.phi.dim, _BLOCK):
                block = slice(start, start + _BLOCK)
                total[:, block] = _exact_product(member, self._on_grid(rows[:, block]))
            return total

    def rows(self, batch: Batch) -> Tensor:
        """Each record's contribution after bounding, in grid units, (n, dim)."""
        with torch.no_grad():
            return self._on_grid(self._bounded(batch))

    def _bounded(self, batch: Batch) -> Tensor:
        rows = self.phi(batch)
        if rows.shape != (len(batch), self.phi.dim):
            raise ValueError(
                f"{type(self.phi).__name__} returned {tuple(rows.shape)} for {len(batch)} records and dim {self.phi.dim}"
            )
        return bounded(rows, self.phi.bound, self.phi.non_negative)

    def _on_grid(self, rows: Tensor) -> Tensor:
        return (rows * (1 / self.grid)).round_()  # a power of two: the product is exact


def _exact_product(member: Tensor, units: Tensor) -> Tensor:
    """member (zeros and ones) times whole numbers, without a rounding error."""
    low, high = torch.aminmax(units.T if units.T.is_contiguous() else units)
    if len(units) * max(-float(low), float(high)) > _EXACT_FLOAT32:
        units, member = units.to(torch.float64), member.to(torch.float64)  # exact up to 2⁵³
    return (member @ units).to(torch.int64)


def bounded(rows: Tensor, bound: float, non_negative: bool = False) -> Tensor:
    """Clip each row to norm ≤ `bound`; rows with NaN or infinity become zero."""
    if rows.dtype not in (torch.float32, torch.float64):
        rows = rows.to(torch.float32)
    if non_negative:
        rows = rows.clamp(min=0)
    unfit = ~(_squared_norms(rows) <= bound**2 * (1 + _NORM_SLACK))  # true for NaN as well
    if bool(unfit.any()):
        rows = rows.clone()
        rows[unfit] = _clipped(rows[unfit], bound).to(rows.dtype)
    return rows


def _squared_norms(rows: Tensor) -> Tensor:
    """(n, dim) → (n,) in double precision, never less than 1 − 1.01 · 2⁻¹⁴ of the true value."""
    total = torch.zeros(len(rows), dtype=torch.float64)
    for block in rows.split(_BLOCK, dim=1):
        # A product with ones, not sum(): it is fast in either memory layout.
        total += block.square() @ block.new_ones(block.shape[1])
    # Squares below the smallest normal number are lost; they cannot matter beside a normal bound.
    return total


def _clipped(rows: Tensor, bound: float) -> Tensor:
    rows = rows.to(torch.float64)
    rows = torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, 0.0)
    # Squares of huge values overflow: divide by the largest entry first.
    largest = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-300)
    rows = rows / largest
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows * torch.minimum(bound / norms.clamp(min=1e-300), largest)
