"""Bounds are enforced, not believed: feature maps, and the exact sum of their clipped rows.

A feature map turns each record into a vector of L2 norm at most `bound`, on its own. The wall does not trust it:
`BoundedSum` rounds each number onto a public grid, clips every row that is too long, and zeroes rows that are not finite. Sums of
grid points are whole numbers and therefore exact: S(A ∪ {x}) − S(A) = S({x}) to the last bit, for any split of the records over
batches, threads or machines. A wrong bound costs accuracy, never privacy.

For that, a record's whole numbers must be a function of that record alone, and floating point makes this harder than it looks:
- *Decisions.* Whether a row is clipped is decided by that row's own norm, found by additions whose order is fixed here, number by
  number, so that neither the place of a row in its batch nor its neighbours can change a bit of it (`_squares`). A row that is
  clipped sends no other row another way.
- *Shapes.* Libraries compute the same product with other last bits when a batch has another size or the row another place in it,
  and a last bit can flip a grid unit of *every* other record at once. So maps see batches of a few public sizes only, filled up
  with rows that belong to nobody, in memory of the same alignment, and the sizes are those for which this machine was
  seen to give a public record the same bits at every place (`_Rounded.sizes`). A map that decides by numbers (the nearest of
  some, the largest) hides their last bits in what it returns, and shows them for that check (`decides`).

What rounding and the inexact norm can add to a row's length is covered by `enforced_bound`, less than a ten-thousandth above the
map's own bound; it is the enforced bound that the ledger is charged with.

Public: grids, bounds, sizes of batches. Private: rows, norms, which rows were clipped and how many.
"""

from __future__ import annotations

import math
import secrets
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from typing import Any, final

import torch
from torch import Tensor

from sfumato.data import Batch
from sfumato.errors import BadInput
from sfumato.privacy.arithmetic import exact_arithmetic

# The grid is this many binary digits finer than the bound: far below any useful noise, and coarse enough for sums of
# hundreds of float32 rows to be exact.
_GRID_DIGITS = 18
# Features of a map that gives all at once are gone through this many at a time, to stay in the cache.
_BLOCK = 1024
# Room, in the squared norm, for maps whose norm is the bound itself up to rounding.
_SLACK = 2.0**-14
_EXACT_FLOAT32 = 2.0**24
_LEAST_BOUND = 1e-12
# Factors of a product have fewer digits, so that sums of products are exact in double precision (2 · 16 + 21 ≤ 53).
_FACTOR_DIGITS = 15
# Records in a batch: at most the first number, fewer for wide maps; the others are for what is left over.
_SIZES = (1024, 128, 16)
_NUMBERS = 2**24  # in a batch, at most
# Public records of the check of sizes: no divisor of a size, so that each of them meets every place of a vector register.
_PUBLIC = 7
_MOST_MET = 1000


Piece = tuple[int, Tensor, float]


class Pieces:
    """The rows of a batch in pieces, as often as one goes through them."""

    def __init__(self, again: Callable[[], Iterator[Piece]]) -> None:
        self._again = again

    def __iter__(self) -> Iterator[Piece]:
        return self._again()


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

    def pieces(self, batch: Batch) -> Iterator[Piece]:
        """The transpose of `self(batch)` in pieces: (first feature, (features, n), positive factor), every feature once.

        A map may override this to compute piece after piece, so that each is still in the processor's cache when it is used and
        the whole never lies in memory. A piece is read before the next is asked for, and never written to.
        """
        return self._in_pieces(self(batch), len(batch))

    def _in_pieces(self, rows: Tensor, count: int) -> Iterator[Piece]:
        if rows.shape != (count, self.dim):
            raise ValueError(
                f"{type(self).__name__} must return a row of {self.dim} numbers for every record"
            )
        for start in range(0, self.dim, _BLOCK):
            yield start, rows[:, start : start + _BLOCK].T, 1.0

    def filed(self, batch: Batch) -> tuple[Tensor | None, Pieces]:
        """The segment of each row, and the rows in pieces: all that the wall asks of a batch, in one call."""
        if type(self).pieces is not FeatureMap.pieces:
            return self.segment_of(batch), Pieces(lambda: self.pieces(batch))
        rows = self(batch)
        return self.segment_of(batch), Pieces(lambda: self._in_pieces(rows, len(batch)))

    def public_parts(self) -> tuple[Tensor, ...]:
        """What the map is made of, public or released: a run that goes on with another map is refused (`privacy.store`)."""
        return ()

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

    With `blocks` a record has that many products side by side, a_m(x) ⊗ b_m(x): gradients of several linear layers. All a_m
    together have norm ≤ `left_bound`, each b_m by itself ≤ `right_bound`, and
    Σ_m ‖a_m‖²·‖b_m‖² ≤ right_bound² · Σ_m ‖a_m‖² ≤ bound².
    """

    left: int
    right: int
    left_bound: float
    right_bound: float
    blocks: int = 1
    segments: int = 1
    symmetric: bool = False

    @abstractmethod
    def factors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(n records) → (n, blocks · left), (n, blocks · right); with `symmetric` the second is ignored."""

    def filed(self, batch: Batch) -> tuple[Tensor | None, tuple[Tensor, Tensor]]:
        """The segment of each row, and both factors, in one call."""
        return self.segment_of(batch), self.factors(batch)

    def public_parts(self) -> tuple[Tensor, ...]:
        """As in `FeatureMap`."""
        return ()

    def segment_of(self, batch: Batch) -> Tensor | None:
        """As in `FeatureMap`."""
        return None

    @property
    def dim(self) -> int:
        return self.blocks * self.left * self.right

    @property
    def bound(self) -> float:
        return self.left_bound * self.right_bound

    @final
    @property
    def replace_ratio(self) -> float:
        return math.sqrt(2) if self.symmetric else 2.0


RecordMap = FeatureMap | OuterMap


# What maps decide by, while it is found out about one; None otherwise.
_DECIDING: ContextVar[list[Tensor] | None] = ContextVar("_DECIDING", default=None)


def decides(numbers: Tensor) -> Tensor:
    """`numbers` (n, …) themselves, by which a map chooses for each record: a segment, a cell, the nearest of some points.

    Whether a library computes them alike at every place cannot be seen in what is chosen, where the last bits matter for records
    that lie between two choices alone, and for all of these at once. So the check of sizes sees them (`_Rounded.sizes`).
    """
    found = _DECIDING.get()
    if found is not None:
        found.append(numbers.detach().cpu().reshape(len(numbers), -1).T)
    return numbers


@contextmanager
def _deciding() -> Iterator[list[Tensor]]:
    found: list[Tensor] = []
    token = _DECIDING.set(found)
    try:
        yield found
    finally:
        _DECIDING.reset(token)


def balanced(left: Tensor, right: Tensor, blocks: int = 1) -> tuple[Tensor, Tensor]:
    """The same products with ‖right‖ = 1, in each block: only their joint length is then to be clipped, on the left."""
    a, b = (side.unflatten(1, (blocks, -1)) for side in (left, right))
    lengths = torch.linalg.vector_norm(b, dim=2, keepdim=True)
    return (a * lengths).flatten(1), (b / lengths.clamp(min=1e-30)).flatten(1)


def grid_of(bound: float, digits: int = _GRID_DIGITS) -> float:
    """The public grid for contributions of norm ≤ `bound`: a power of two between 2⁻ᵈ⁻¹ and 2⁻ᵈ of it, d = `digits`."""
    return 2.0 ** (math.floor(math.log2(bound)) - digits)


def enforced_bound(phi: RecordMap) -> float:
    """The length that no record's contribution exceeds, whatever φ returned.

    Proof for a `FeatureMap`, for any `dim` in pieces of fewer than 2³⁰ features. A row that passes consists of whole numbers of
    grid units, and it is these that are measured, so rounding to the grid adds nothing. Each square goes through k ≤ 31
    roundings to float32 (its own, and a tree of additions) and those of the sum over pieces, in double precision. All terms
    are ≥ 0, so the result is at least (1 − 2⁻²⁴)ᵏ · (1 − 2⁻⁵³)^pieces ≥ 1 − γ with γ = 2⁻¹⁸ of the true value. The row passes if
    the result is ≤ bound² · (1 + 2⁻¹⁴); its length is then ≤ bound · √((1 + 2⁻¹⁴) ÷ (1 − γ)) < bound · (1 + 2⁻¹⁴). Any other row
    is scaled to ≤ bound · √(1 + 2⁻¹⁴) · (1 + 2⁻⁴⁰) in double precision and rounded towards zero, which lengthens nothing.

    Proof for an `OuterMap`. Each factor is scaled to its bound in double precision (`clipped`: ≤ bound · (1 + 2⁻⁴⁰)) and rounded
    to its grid, which moves each of its entries by at most grid/2 ≤ bound · 2⁻¹⁶; the norm of a product is the product of the
    norms. Of blocks, the left factors are scaled and rounded as one vector of blocks · left numbers and each right factor by
    itself, so that the same holds of the sum of squares (see `OuterMap`).
    """
    if isinstance(phi, OuterMap):
        left = phi.blocks * phi.left
        return enforced_product_bound(left, phi.right, phi.left_bound, phi.right_bound)
    return enforced_vector_bound(phi.bound)


def enforced_vector_bound(bound: float) -> float:
    """The same of vectors that are clipped to `bound`."""
    return bound * (1 + _SLACK)


def enforced_product_bound(left: int, right: int, left_bound: float, right_bound: float) -> float:
    """The same of products of `left` and `right` numbers whose factors are clipped to their bounds."""
    stretch = [
        1 + 2.0**-40 + math.sqrt(width) * 2.0 ** -(_FACTOR_DIGITS + 1) for width in (left, right)
    ]
    return left_bound * right_bound * stretch[0] * stretch[1] * (1 + 2.0**-40)


@dataclass
class _Found:
    """What was found out about a map, see `_Rounded.sizes`; all of it public."""

    sizes: tuple[int, ...]
    sums: int = 0  # that the map was used in


_FOUND: weakref.WeakKeyDictionary[RecordMap, dict[Any, _Found]] = weakref.WeakKeyDictionary()
# The same for maps that came from another process, by a random name that each has had since it was first sent: a worker that
# meets a map again need not find out again. What another machine found is not taken over.
_NAMES: weakref.WeakKeyDictionary[RecordMap, str] = weakref.WeakKeyDictionary()
_MET: dict[str, dict[Any, _Found]] = {}


def _arrived(
    kind: Callable[[Any, int | None], _Rounded], phi: RecordMap, shares: int | None, name: str
) -> _Rounded:
    if len(_MET) > _MOST_MET:
        _MET.clear()
    _NAMES[phi] = name
    _FOUND[phi] = _MET.setdefault(name, {})
    return kind(phi, shares)


class _Rounded(ABC):
    """What sums of vectors and of products have in common: records are shown to φ in batches of public sizes.

    `rows_at_once` is the largest of them, a good number to read at a time; a batch of any other length is divided and filled up.
    """

    phi: RecordMap

    def __init__(self, width: int, shares: int | None) -> None:
        self.rows_at_once: int = _most_rows(width)
        # Of a unit, where a record counts as many times as it has of them; None: a record is a unit, and has none.
        self._shares = shares
        self._sizes: dict[Any, tuple[int, ...]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        name = _NAMES.setdefault(self.phi, secrets.token_hex(8))
        return _arrived, (type(self), self.phi, self._shares, name)

    @abstractmethod
    def _raw(self, batch: Batch) -> Iterator[Tensor]:
        """All that φ says of a batch, before bounding: tensors of (numbers, n)."""

    def _parts(self, batch: Batch) -> Iterator[tuple[Batch, Tensor]]:
        """The batch in parts of public sizes, and how many times each row counts; those that fill up stand behind all others."""
        sizes = self.sizes(batch)
        times = _times(batch, self._shares)
        start = 0
        for size in sizes:
            # Filled up where a good part of it is real; the last size takes what is left.
            least = 1 if size == sizes[-1] else size // (2 if size == sizes[0] else 4)
            while (left := len(batch) - start) >= least:
                count = min(left, size)
                real = torch.zeros(size, dtype=times.dtype)
                real[:count] = times[start : start + count]
                yield _filled(batch, start, count, size), real
                start += count

    def sizes(self, batch: Batch) -> tuple[int, ...]:
        """The sizes of the batches that φ is shown, largest first, from public facts: the map, and the form of a record.

        Whether a library gives a row the same bits at every place of a batch, and in batches of other sizes, is a matter of its
        control flow, which depends on shapes and places and never on values. So it is found out, for each map and form of
        records, with a few public records repeated all over a batch: sizes where some row differs from its first occurrence, or
        from its occurrence in the largest good size, are not used. If none is good, records are shown one by one. The cost is
        that of about 1,200 records more; a map that is used in many sums is looked at again at the 2nd, 4th, 8th, …, since
        weights that are still zero hide what comes later.
        """
        form = (
            tuple(batch.values.shape[1:]),
            batch.values.dtype,
            batch.labels is None,
            torch.get_num_threads(),
        )
        if form not in self._sizes:
            menu = (self.rows_at_once, *(size for size in _SIZES if size < self.rows_at_once))
            found = _FOUND.setdefault(self.phi, {}).setdefault(form, _Found(menu))
            found.sums += 1
            if found.sums.bit_count() == 1:
                found.sizes = self._good_sizes(batch, found.sizes)
            self._sizes[form] = found.sizes
        return self._sizes[form]

    def _good_sizes(self, batch: Batch, sizes: tuple[int, ...]) -> tuple[int, ...]:
        good: list[int] = []
        reference: list[Tensor] = []
        for size in sizes:
            firsts: list[Tensor] = []
            with _deciding() as decided:
                # In this order: what was decided by is known when all was returned.
                for numbers in chain(self._raw(_public(batch, size)), decided):
                    firsts.append(numbers[:, :_PUBLIC].clone())
                    if not _same(numbers[:, _PUBLIC:], numbers[:, :-_PUBLIC]):
                        break
                else:
                    if not good:
                        reference = firsts
                    if all(_same(*pair) for pair in zip(reference, firsts, strict=True)):
                        good.append(size)
        return tuple(good) or (1,)


class BoundedSum(_Rounded):
    """Adds up φ over a batch, in whole grid units: what an engine computes on each piece of the data.

    **Guarantee**: S(A ∪ {x}) − S(A) = S({x}) exactly, and ‖S({x})‖₂ ≤ enforced_bound(φ) ÷ grid, for any records, if φ is row-wise
    and the library it calls computes alike what it computed alike for public records (`sizes`). With `shares` the same holds of
    units in place of records (`privacy.units`).
    """

    def __init__(self, phi: FeatureMap, shares: int | None = None) -> None:
        check_bound(phi.bound)
        super().__init__(phi.dim, shares)
        self.phi: FeatureMap = phi
        self._grid = grid_of(phi.bound)  # of a record's row
        self.grid = self._grid / (shares or 1)  # of sums
        self.shape: tuple[int, ...] = (phi.segments, phi.dim)
        self._reach = phi.bound * math.sqrt(1 + _SLACK)

    @exact_arithmetic()
    def __call__(self, batch: Batch) -> Tensor:
        """The sum over the batch in grid units, (segments, dim), int64."""
        total = torch.zeros(self.shape, dtype=torch.int64)
        with torch.no_grad():
            for part, times in self._parts(batch):
                total += self._of_part(part, times)
        return total

    def _of_part(self, part: Batch, times: Tensor) -> Tensor:
        total = torch.zeros(self.shape, dtype=torch.int64)
        squares = torch.zeros(len(part), dtype=torch.float64)
        segment, pieces = self.phi.filed(part)
        member = self._member(_checked_segment(segment, len(part)), times)
        # In hope that no row is too long, all are added up on the way.
        for start, units, _, _ in self._units(pieces):
            total[:, start : start + len(units)] = self._sum(units, member)
            squares += _squares(units)
        unfit = self._unfit(squares)
        if not len(unfit):
            return total
        # Once more without those, and then with what remains of them: the others' numbers are the same as before.
        long = torch.zeros(self.phi.dim, len(unfit), dtype=torch.float64)
        again = torch.zeros(len(part), dtype=torch.float64)
        for start, units, piece, factor in self._units(pieces):
            features = slice(start, start + len(units))
            long[features] = piece[:, unfit].to(torch.float64) * factor
            again += _squares(units.index_fill_(1, unfit, 0.0))
            total[:, features] = self._sum(units, member)
        # What is added must be what was measured.
        if not torch.equal(again, squares.index_fill_(0, unfit, 0.0)):
            raise ValueError(
                f"{type(self.phi).__name__} gives a record other numbers when it is asked again; it must be a function of it"
            )
        shortened = self._shortened(long)
        for start in range(0, self.phi.dim, _BLOCK):
            features = slice(start, start + _BLOCK)
            total[:, features] += self._sum(shortened[features], member[unfit]).to(torch.int64)
        return total

    @exact_arithmetic()
    def rows(self, batch: Batch) -> Tensor:
        """Each record's row after bounding, in units of its grid, (n, dim)."""
        found = [torch.empty(0, self.phi.dim)]
        with torch.no_grad():
            for part, _ in self._parts(batch):
                rows = torch.zeros(self.phi.dim, len(part))
                squares = torch.zeros(len(part), dtype=torch.float64)
                pieces = self.phi.filed(part)[1]
                for start, units, _, _ in self._units(pieces):
                    rows[start : start + len(units)] = units
                    squares += _squares(units)
                unfit = self._unfit(squares)
                long = torch.zeros(self.phi.dim, len(unfit), dtype=torch.float64)
                for start, units, piece, factor in self._units(pieces) if len(unfit) else ():
                    long[start : start + len(units)] = piece[:, unfit].to(torch.float64) * factor
                rows[:, unfit] = self._shortened(long)
                found.append(rows.T)
        # Only the last part is filled up.
        return torch.cat(found)[: len(batch)]

    def _units(self, pieces: Pieces) -> Iterator[tuple[int, Tensor, Tensor, float]]:
        """φ in pieces: (first feature, whole grid units (features, n), the piece itself, its factor); every feature once."""
        scratch = torch.empty(0)
        met = torch.zeros(self.phi.dim, dtype=torch.bool)
        for start, piece, factor in pieces:
            place = met[start : start + len(piece)]
            if len(place) != len(piece) or bool(place.any()):
                raise ValueError(
                    f"{type(self.phi).__name__} gives a feature twice, or one too many"
                )
            place.fill_(True)
            # One scratch block for all pieces stays in the cache; fresh memory each time would not.
            if scratch.shape != piece.shape:
                scratch = torch.empty(piece.shape)
            units = torch.mul(piece.to(torch.float32), factor / self._grid, out=scratch).round_()
            if self.phi.non_negative:
                units.clamp_(min=0)
            yield start, units, piece, factor

    def _unfit(self, squares: Tensor) -> Tensor:
        """Which rows are too long, or not finite; each by its own norm."""
        limit = (self.phi.bound / self._grid) ** 2 * (1 + _SLACK)
        return (~(squares <= limit)).nonzero()[:, 0]  # NaN is unfit as well

    def _shortened(self, long: Tensor) -> Tensor:
        """Rows (dim, k) scaled to the length at which clipping begins, in grid units rounded towards zero; float32."""
        if self.phi.non_negative:
            long = long.clamp(min=0)
        kept = clipped(long.T, self._reach).div_(self._grid).trunc_()
        return kept.T.to(torch.float32)  # whole numbers below 2²⁴

    def _raw(self, batch: Batch) -> Iterator[Tensor]:
        segment, pieces = self.phi.filed(batch)
        if segment is not None:
            yield segment[None]
        for _, piece, _ in pieces:
            yield piece

    def _member(self, segment: Tensor | None, times: Tensor) -> Tensor:
        """(n, segments): how many times each row counts in each block; all but one are zero."""
        if segment is None:
            if self.phi.segments == 1:
                return times[:, None].to(torch.float32)
            segment = torch.zeros(len(times), dtype=torch.int64)  # all in block 0, and in no other
        # Columns up to a multiple of 16 make the product twice as fast.
        columns = torch.arange(-(-self.phi.segments // 16) * 16)
        inside = (segment[:, None] == columns) & (columns < self.phi.segments)
        return (inside * times[:, None]).to(torch.float32)

    def _sum(self, units: Tensor, member: Tensor) -> Tensor:
        """Whole numbers (features, n) added up by block, (segments, features), without a rounding error."""
        low, high = torch.aminmax(units.T if units.T.is_contiguous() else units)
        if len(member) * (self._shares or 1) * max(-float(low), float(high)) > _EXACT_FLOAT32:
            units, member = units.to(torch.float64), member.to(torch.float64)  # exact up to 2⁵³
        return (units @ member).T[: self.phi.segments]


class OuterSum(_Rounded):
    """Adds up a ⊗ b over a batch, in whole grid units, by one matrix product a class.

    **Guarantee**: as `BoundedSum`. Both factors are clipped and rounded to whole numbers of at most 2¹⁶ before the product, so
    every product and every sum of up to 2²¹ of them is exact in double precision, or of 2¹³ that count up to 2⁸ times.
    """

    def __init__(self, phi: OuterMap, shares: int | None = None) -> None:
        check_bound(phi.left_bound)
        check_bound(phi.right_bound)
        if phi.symmetric and (phi.left != phi.right or phi.left_bound != phi.right_bound):
            raise BadInput("A symmetric product needs two equal factors; give one width and bound.")
        if phi.blocks < 1 or (phi.symmetric and phi.blocks > 1):
            raise BadInput("A product has at least one block, and a symmetric one no more.")
        # Factors of several blocks are wide and their products small, so that fewer records at a time are faster.
        width = phi.blocks * (phi.left + phi.right)
        super().__init__(4 * width if phi.blocks > 1 else width, shares)
        self.phi: OuterMap = phi
        self.grids = tuple(grid_of(b, _FACTOR_DIGITS) for b in (phi.left_bound, phi.right_bound))
        self.grid = self.grids[0] * self.grids[1] / (shares or 1)
        self.shape: tuple[int, ...] = (phi.segments, phi.dim)

    @exact_arithmetic()
    def __call__(self, batch: Batch) -> Tensor:
        """The sum over the batch in grid units, (segments, blocks · left · right), int64."""
        total = torch.zeros(self.shape, dtype=torch.int64)
        times = _times(batch, self._shares)
        for start in range(0, len(batch), self.rows_at_once):
            left, right, segment = self._bounded(batch, start)
            if self._shares is not None:
                left = left * times[start : start + len(left), None]
            for code in segment.unique().tolist():
                if 0 <= code < self.phi.segments:
                    chosen = (segment == code).nonzero()[:, 0]
                    total[code] += self.added(left[chosen], right[chosen]).to(torch.int64)
        return total

    def added(self, left: Tensor, right: Tensor) -> Tensor:
        """Σ over rows of their products, in double precision, (dim,)."""
        a, b = (side.unflatten(1, (self.phi.blocks, -1)).transpose(0, 1) for side in (left, right))
        return (a.mT @ b).flatten()

    @exact_arithmetic()
    def units(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Each record's two factors after bounding, whole numbers of grid units in double precision."""
        starts = range(0, max(1, len(batch)), self.rows_at_once)
        found = [self._bounded(batch, start)[:2] for start in starts]
        left, right = (torch.cat(sides) for sides in zip(*found, strict=True))
        return left, right

    def _bounded(self, batch: Batch, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Both factors of `rows_at_once` records from `start` on, in grid units, and the segment of each."""
        rows = slice(start, start + self.rows_at_once)
        labels, shares = (None if t is None else t[rows] for t in (batch.labels, batch.shares))
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        with torch.no_grad():
            behind = len(batch.values[rows])
            for part, _ in self._parts(Batch(batch.values[rows], labels, shares)):
                count = min(len(part), behind)
                behind -= count
                segment, factors = self.phi.filed(part)
                segment = _checked_segment(segment, len(part))
                if segment is None:
                    segment = torch.zeros(count, dtype=torch.int64)
                left, right = self._units(factors, len(part))
                found.append((left[:count], right[:count], segment[:count]))
        if len(found) == 1:  # nothing to copy
            return found[0]
        none = [torch.empty(0, width, dtype=torch.float64) for width in self._widths]
        found.append((none[0], none[1], torch.empty(0, dtype=torch.int64)))
        left, right, segment = (torch.cat(one) for one in zip(*found, strict=True))
        return left, right, segment

    @property
    def _widths(self) -> tuple[int, int]:
        return self.phi.blocks * self.phi.left, self.phi.blocks * self.phi.right

    def _units(self, factors: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
        left, right = self._checked(factors, count)
        # A record with a number that is not finite in either factor counts for nothing: its left one is zero.
        fit = _finite(left) & _finite(right)
        first = clipped(torch.where(fit[:, None], left, 0.0), self.phi.left_bound)
        first = first.div_(self.grids[0]).round_()
        if self.phi.symmetric:
            return first, first
        each = right.reshape(-1, self.phi.right)
        second = clipped(each, self.phi.right_bound).div_(self.grids[1]).round_()
        return first, second.view_as(right)

    def _checked(self, factors: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
        for rows, width in zip(factors, self._widths, strict=True):
            if rows.shape != (count, width):
                raise ValueError(
                    f"{type(self.phi).__name__} must return a row of {width} numbers for every record"
                )
        return factors

    def _raw(self, batch: Batch) -> Iterator[Tensor]:
        segment, factors = self.phi.filed(batch)
        if segment is not None:
            yield segment[None]
        for rows in self._checked(factors, len(batch)):
            yield rows.T


def summand_of(phi: RecordMap, shares: int | None = None) -> BoundedSum | OuterSum:
    return OuterSum(phi, shares) if isinstance(phi, OuterMap) else BoundedSum(phi, shares)


def _times(batch: Batch, shares: int | None) -> Tensor:
    """(n,): how many times each record counts."""
    if (batch.shares is None) != (shares is None):
        raise ValueError("records of units come with their shares, and others with none")
    if batch.shares is None:
        return torch.ones(len(batch), dtype=torch.int64)
    check_shares(batch.shares, len(batch))
    if len(batch) and int(batch.shares.max()) > (shares or 0):
        raise ValueError("a record counts for more than its unit")
    return batch.shares


def check_shares(shares: Tensor, records: int) -> None:
    """One share for each record: fewer would be spread over all of them."""
    if shares.shape != (records,) or bool((shares < 0).any()):
        raise ValueError("every record of a unit has one share, of at least 0")


def _checked_segment(segment: Tensor | None, count: int) -> Tensor | None:
    """One block for each record, or a record would be counted more than once."""
    if segment is None:
        return None
    whole = not (segment.is_floating_point() or segment.is_complex() or segment.dtype == torch.bool)
    if segment.shape != (count,) or not whole:
        raise ValueError("the segment of a record is one whole number; give a tensor of shape (n,)")
    return segment


def check_bound(bound: float) -> None:
    if not _LEAST_BOUND <= bound <= 1 / _LEAST_BOUND:
        raise BadInput(
            f"The bound of a feature map must lie between {_LEAST_BOUND:g} and {1 / _LEAST_BOUND:g}, not {bound:g}; "
            "scale the features."
        )


def clipped(rows: Tensor, bound: float) -> Tensor:
    """Rows (n, width) scaled down to norm ≤ bound · (1 + 2⁻⁴⁰), in double precision; one that is not finite becomes zero.

    Each row's bits are a function of that row alone, wherever it stands: see `_added`. The norm is off by at most the
    log₂(width) + 4 roundings of its terms, each 2⁻⁵³, and the product with the quotient by two more.
    """
    rows = rows.to(torch.float64)
    rows = torch.where(_finite(rows)[:, None], rows, 0.0)
    # Squares of huge values overflow: divide by the largest entry first.
    largest = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-300)
    rows = rows / largest
    norms = _added(rows.T.square()).sqrt()[:, None]
    return rows * torch.minimum(bound / norms.clamp(min=1e-300), largest)


def _finite(rows: Tensor) -> Tensor:
    """(n, width) → (n,): whether all numbers of a row are finite; their largest size tells, and is found faster."""
    return torch.isfinite(rows.abs().amax(dim=1))


def _squares(units: Tensor) -> Tensor:
    """(features, n) float32 → (n,): squared norms, at least 1 − 2⁻¹⁹ of the true value for any number of features below 2³⁰."""
    return _added(units.square()).to(torch.float64)


def _added(terms: Tensor) -> Tensor:
    """(k, n) → (n,): the sum over the first axis, by a tree of additions of whole rows; `terms` is used up.

    One addition is rounded alike at every place of memory; a library's own sum, or a product with ones, takes its terms in an
    order that depends on the place. Each term goes through ⌈log₂ k⌉ roundings.
    """
    count = len(terms)
    while count > 1:
        half = count // 2
        terms[:half] += terms[count - half : count]
        count -= half
    return terms[0]


def _most_rows(width: int) -> int:
    """Large enough for fast products and small enough for memory, a multiple of 16; `width`: numbers that a record becomes."""
    return max(16, min(_SIZES[0], _NUMBERS // max(width, 1)) // 16 * 16)


def _filled(batch: Batch, start: int, count: int, size: int) -> Batch:
    """`count` records in fresh memory for `size`, with zeros of no class for the rest.

    Fresh even if nothing is to be filled up: how records lie in memory must not depend on where a file or a sample put them.
    """
    values = batch.values.new_zeros((size, *batch.values.shape[1:]))
    values[:count] = batch.values[start : start + count]
    if batch.labels is None:
        return Batch(values, None)
    labels = batch.labels.new_full((size,), -1)
    labels[:count] = batch.labels[start : start + count]
    return Batch(values, labels)


def _public(batch: Batch, size: int) -> Batch:
    """Public records of the form of a batch's, `_PUBLIC` of them over and over."""
    random = torch.Generator().manual_seed(0)
    shape, kind = (_PUBLIC, *batch.values.shape[1:]), batch.values.dtype
    values = torch.rand(shape, generator=random)
    if kind == torch.uint8:
        values *= 255
    elif batch.values.ndim == 2:
        # Columns of a table have any range.
        values *= 10.0 ** torch.arange(-1.0, _PUBLIC - 1)[:, None]
    turn = torch.arange(size) % _PUBLIC
    labels = None if batch.labels is None else torch.zeros(size, dtype=batch.labels.dtype)
    return Batch(values.to(kind)[turn], labels)


def _same(one: Tensor, other: Tensor) -> bool:
    if torch.equal(one, other):
        return True
    both = one.isnan() & other.isnan()
    return bool(((one == other) | both).all())
