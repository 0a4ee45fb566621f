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
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor

from sfumato.data import Batch
from sfumato.errors import BadInput

# The grid is this many binary digits finer than the bound: far below any useful noise, and coarse enough for sums of
# hundreds of float32 rows to be exact.
_GRID_DIGITS = 18
# Squares are added in float32 in blocks of this many, so that their sum is off by at most 1026 · 2⁻²⁴ < 1.01 · 2⁻¹⁴ of itself.
_BLOCK = 1024
_NORM_SLACK = 2.0**-14
_EXACT_FLOAT32 = 2.0**24
_LEAST_BOUND = 1e-12
# Factors of a product have fewer digits, so that sums of products are exact in double precision (2 · 16 + 21 ≤ 53).
_FACTOR_DIGITS = 15
_FACTOR_ROWS = 2**16


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

    def pieces(self, batch: Batch) -> Iterator[tuple[int, Tensor, float]]:
        """The transpose of `self(batch)` in pieces: (first feature, (features, n), positive factor), every feature once.

        A map may override this to compute piece after piece, so that each is still in the processor's cache when it is used and
        the whole never lies in memory. A piece is read before the next is asked for, and never written to.
        """
        rows = self(batch)
        if rows.shape != (len(batch), self.dim):
            raise ValueError(
                f"{type(self).__name__} must return a row of {self.dim} numbers for every record"
            )
        for start in range(0, self.dim, _BLOCK):
            yield start, rows[:, start : start + _BLOCK].T, 1.0

    def segment_of(self, batch: Batch) -> Tensor | None:
        """The block of each row, (n,); a value outside 0 … segments−1 drops the row. None: all in block 0."""
        return None

    @final
    @property
    def replace_ratio(self) -> float:
        """Sensitivity under replacement ÷ bound; less than 2 only by what `BoundedSum` enforces, never by a map's word.

        For u, v without negative entries ⟨u, v⟩ ≥ 0, so ‖u − v‖² ≤ ‖u‖² + ‖v‖² ≤ 2·bound². Enforced by clamping.
        """
        return math.sqrt(2) if self.non_negative else 2.0


class OuterMap(ABC):
    """A row-wise map to a product a(x) ⊗ b(x) of two bounded vectors: second moments, and gradients of linear layers.

    The sum of n such products is one matrix product, so the rows of left·right numbers are never formed.

    **Guarantee** (each subclass proves it): ‖a(x)‖₂ ≤ `left_bound` and ‖b(x)‖₂ ≤ `right_bound`, hence the product's norm is at
    most `bound`, their product; no row depends on another. With `symmetric`, b is a itself: the summands a ⊗ a are positive
    semi-definite, ‖u ⊗ u − v ⊗ v‖² = ‖u‖⁴ + ‖v‖⁴ − 2⟨u, v⟩² ≤ 2·bound², so replacement moves the sum by √2·bound at most.
    """

    left: int
    right: int
    left_bound: float
    right_bound: float
    segments: int = 1
    symmetric: bool = False

    @abstractmethod
    def factors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(n records) → (n, left), (n, right); with `symmetric` the second is ignored."""

    def segment_of(self, batch: Batch) -> Tensor | None:
        """As in `FeatureMap`."""
        return None

    @property
    def dim(self) -> int:
        return self.left * self.right

    @property
    def bound(self) -> float:
        return self.left_bound * self.right_bound

    @final
    @property
    def replace_ratio(self) -> float:
        return math.sqrt(2) if self.symmetric else 2.0


RecordMap = FeatureMap | OuterMap


def balanced(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The same products with ‖right‖ = 1: only their joint length is then to be clipped, on the left."""
    lengths = torch.linalg.vector_norm(right, dim=1, keepdim=True)
    return left * lengths, right / lengths.clamp(min=1e-30)


def grid_of(bound: float, digits: int = _GRID_DIGITS) -> float:
    """The public grid for contributions of norm ≤ `bound`: a power of two between 2⁻ᵈ⁻¹ and 2⁻ᵈ of it, d = `digits`."""
    return 2.0 ** (math.floor(math.log2(bound)) - digits)


def enforced_bound(phi: RecordMap) -> float:
    """The length that no row exceeds after bounding, whatever φ returned.

    Proof for an `OuterMap`. Each factor is scaled to its bound in double precision (≤ bound · (1 + 2⁻⁴⁰)) and rounded to its
    grid, which moves each of its entries by at most grid/2 ≤ bound · 2⁻¹⁶; the norm of a product is the product of the norms.

    Proof for a `FeatureMap`. A row passes unclipped if its computed squared norm is ≤ bound² · (1 + 2⁻¹⁴), room for a map
    whose norm is the bound itself up to rounding. The computed value is at least 1 − 1.01 · 2⁻¹⁴ of the true one, so the true
    squared norm is ≤ bound² · (1 + 2⁻¹³ + 2⁻²⁰) and the norm ≤ bound · (1 + 0.51 · 2⁻¹³); multiplying by a piece's factor and by
    1 ÷ grid adds at most 2⁻²² of it. A clipped row is scaled to `bound` in double precision and stored in single:
    ≤ bound · (1 + 2⁻²³). Rounding to the grid moves each of `dim` entries by at most
    grid/2 ≤ bound · 2⁻¹⁹, hence the row by at most √dim · bound · 2⁻¹⁹.
    """
    if isinstance(phi, OuterMap):
        stretch = [
            1 + 2.0**-40 + math.sqrt(width) * 2.0 ** -(_FACTOR_DIGITS + 1)
            for width in (phi.left, phi.right)
        ]
        return phi.bound * stretch[0] * stretch[1] * (1 + 2.0**-40)
    return phi.bound * (1 + 2 * _NORM_SLACK + math.sqrt(phi.dim) * 2.0 ** -(_GRID_DIGITS + 1))


class BoundedSum:
    """Adds up φ over a batch, in whole grid units: what an engine computes on each piece of the data.

    **Guarantee**: leaving out any one record moves the result by a vector of L2 norm ≤ enforced_bound(φ) ÷ grid.
    """

    def __init__(self, phi: FeatureMap) -> None:
        # Far outside this range squares underflow in float32, and a row longer than its bound could look like zero.
        check_bound(phi.bound)
        self.phi = phi
        self.grid = grid_of(phi.bound)
        self.shape: tuple[int, ...] = (phi.segments, phi.dim)

    def __call__(self, batch: Batch) -> Tensor:
        """The sum over the batch in grid units, (segments, dim), int64."""
        with torch.no_grad():
            total = torch.zeros(self.shape, dtype=torch.int64)
            if len(batch) == 0:
                return total
            member = self._member(batch)
            squares = torch.zeros(len(batch), dtype=torch.float64)
            scratch = torch.empty(0)
            # In hope that no row is too long, bounds are checked on the way and the sum is thrown away if one is.
            for start, piece, factor in self.phi.pieces(batch):
                piece = piece.to(torch.float32)
                if self.phi.non_negative:
                    piece = piece.clamp(min=0)
                # One scratch block for all pieces stays in the cache; fresh memory each time would not.
                if scratch.shape != piece.shape:
                    scratch = torch.empty_like(piece, memory_format=torch.contiguous_format)
                squares += _squares(piece, scratch) * factor**2
                units = torch.mul(piece, factor / self.grid, out=scratch).round_()
                total[:, start : start + len(piece)] = self._sum(units, member)
            if bool(self._too_long(squares).any()):
                rows = self.rows(batch)
                for start in range(0, self.phi.dim, _BLOCK):
                    block = slice(start, start + _BLOCK)
                    total[:, block] = self._sum(rows[:, block].T, member)
            return total

    def rows(self, batch: Batch) -> Tensor:
        """Each record's contribution after bounding, in grid units, (n, dim)."""
        with torch.no_grad():
            rows = torch.empty(self.phi.dim, len(batch))
            for start, piece, factor in self.phi.pieces(batch):
                torch.mul(piece, factor, out=rows[start : start + len(piece)])
            rows = rows.T
            if self.phi.non_negative:
                rows = rows.clamp(min=0)
            unfit = self._too_long(_squares(rows.T, torch.empty_like(rows.T)))
            rows[unfit] = clipped(rows[unfit], self.phi.bound).to(rows.dtype)
            return (rows * (1 / self.grid)).round_()

    def _member(self, batch: Batch) -> Tensor:
        """(n, segments) zeros and ones: which block each row belongs to."""
        segment = self.phi.segment_of(batch)
        if segment is None:
            return torch.ones(len(batch), 1)
        # Columns up to a multiple of 16 make the product twice as fast.
        columns = torch.arange(-(-self.phi.segments // 16) * 16)
        return ((segment[:, None] == columns) & (columns < self.phi.segments)).to(torch.float32)

    def _sum(self, units: Tensor, member: Tensor) -> Tensor:
        """Whole numbers (features, n) added up by block, (segments, features), without a rounding error."""
        low, high = torch.aminmax(units.T if units.T.is_contiguous() else units)
        if len(member) * max(-float(low), float(high)) > _EXACT_FLOAT32:
            units, member = units.to(torch.float64), member.to(torch.float64)  # exact up to 2⁵³
        return (units @ member).T[: self.phi.segments]

    def _too_long(self, squares: Tensor) -> Tensor:
        return ~(squares <= self.phi.bound**2 * (1 + _NORM_SLACK))  # true for NaN as well


class OuterSum:
    """Adds up a ⊗ b over a batch, in whole grid units, by one matrix product a class.

    **Guarantee**: as `BoundedSum`. Both factors are clipped and rounded to whole numbers of at most 2¹⁶ before the product, so
    every product and every sum of up to 2²¹ of them is exact in double precision.
    """

    def __init__(self, phi: OuterMap) -> None:
        check_bound(phi.left_bound)
        check_bound(phi.right_bound)
        if phi.symmetric and (phi.left != phi.right or phi.left_bound != phi.right_bound):
            raise BadInput("A symmetric product needs two equal factors; give one width and bound.")
        self.phi = phi
        self.grids = tuple(grid_of(b, _FACTOR_DIGITS) for b in (phi.left_bound, phi.right_bound))
        self.grid = self.grids[0] * self.grids[1]
        self.shape: tuple[int, ...] = (phi.segments, phi.dim)

    def __call__(self, batch: Batch) -> Tensor:
        """The sum over the batch in grid units, (segments, left · right), int64."""
        with torch.no_grad():
            total = torch.zeros(self.phi.segments, self.phi.left, self.phi.right, dtype=torch.int64)
            if len(batch) == 0:
                return total.view(self.shape)
            left, right = self.units(batch)
            segment = self.phi.segment_of(batch)
            if segment is None:
                segment = torch.zeros(len(batch), dtype=torch.int64)
            for block in torch.arange(len(batch)).split(_FACTOR_ROWS):
                for code in segment[block].unique().tolist():
                    if 0 <= code < self.phi.segments:
                        chosen = block[segment[block] == code]
                        total[code] += (left[chosen].T @ right[chosen]).to(torch.int64)
            return total.view(self.shape)

    def units(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Each record's two factors after bounding, whole numbers of grid units in double precision."""
        left, right = self.phi.factors(batch)
        for rows, width in ((left, self.phi.left), (right, self.phi.right)):
            if rows.shape != (len(batch), width):
                raise ValueError(
                    f"{type(self.phi).__name__} must return a row of {width} numbers for every record"
                )
        # A record with a number that is not finite in either factor counts for nothing.
        fit = torch.isfinite(left).all(dim=1) & torch.isfinite(right).all(dim=1)
        first = clipped(torch.where(fit[:, None], left, 0.0), self.phi.left_bound)
        first = first.div_(self.grids[0]).round_()
        if self.phi.symmetric:
            return first, first
        second = clipped(torch.where(fit[:, None], right, 0.0), self.phi.right_bound)
        return first, second.div_(self.grids[1]).round_()


def summand_of(phi: RecordMap) -> BoundedSum | OuterSum:
    return OuterSum(phi) if isinstance(phi, OuterMap) else BoundedSum(phi)


def check_bound(bound: float) -> None:
    if not _LEAST_BOUND <= bound <= 1 / _LEAST_BOUND:
        raise BadInput(
            f"The bound of a feature map must lie between {_LEAST_BOUND:g} and {1 / _LEAST_BOUND:g}, not {bound:g}; "
            "scale the features."
        )


def _squares(piece: Tensor, scratch: Tensor) -> Tensor:
    """(features, n) → (n,): squared norms in double precision, never less than 1 − 1.01 · 2⁻¹⁴ of the true value."""
    total = torch.zeros(piece.shape[1], dtype=torch.float64)
    for block in torch.square(piece, out=scratch).split(_BLOCK):
        # A product with ones, not sum(): it is fast in either memory layout.
        total += block.new_ones(len(block)) @ block
    # Squares below the smallest normal number (entries below 1e-19) are lost: less than 1e-12 of any bound we take, for a
    # million features and more.
    return total


def clipped(rows: Tensor, bound: float) -> Tensor:
    rows = rows.to(torch.float64)
    rows = torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, 0.0)
    # Squares of huge values overflow: divide by the largest entry first.
    largest = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-300)
    rows = rows / largest
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows * torch.minimum(bound / norms.clamp(min=1e-300), largest)
