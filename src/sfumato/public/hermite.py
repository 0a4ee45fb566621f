"""Hermite polynomial features of the Gaussian kernel (DP-HP: Vinaroz et al. 2022; thesis, app. C).

Mehler's formula writes the Gaussian kernel of one number as a series with ordered, quickly falling terms,
exp(−(t − t')² · ρ/(1 − ρ²)) = Σ_k φ_k(t) φ_k(t'); the features are its first C + 1 terms. For records of many numbers there are
the sum kernel, the average over all coordinates, and the product kernel over a few of them. Everything here is public.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from sfumato.data import Batch
from sfumato.errors import BadInput
from sfumato.privacy import FeatureMap, OuterMap
from sfumato.public.tabular import Block, PlainCodec, TableCodec

_GRID = 20_000
_MOST_NUMBERS = 2**24  # that one product kernel may release
_MOST_DRAWS = 10_000  # of the parts of products


def rho_of(length_scale: float) -> float:
    """Mehler's ρ for the kernel exp(−(t − t')² / 2s): the root in (0, 1) of ρ/(1 − ρ²) = 1/(2s).

    ρ = −s + √(s² + 1); written as 1/(s + √(s² + 1)), which loses no digits for large s.
    """
    return 1 / (length_scale + math.sqrt(length_scale**2 + 1))


def hermite(t: Tensor, order: int, rho: float) -> Iterator[Tensor]:
    """φ_0(t), …, φ_order(t), by the stable recursion of the scaled terms (thesis, app. C, eq. 91)."""
    previous = (1 - rho**2) ** 0.25 * torch.exp(-rho / (1 + rho) * t.square())
    yield previous
    if order == 0:
        return
    current = math.sqrt(2 * rho) * t * previous
    yield current
    for k in range(1, order):
        following = t * current * math.sqrt(2 * rho / (k + 1)) - previous * (
            rho * math.sqrt(k / (k + 1))
        )
        previous, current = current, following
        yield current


class Hermite:
    """φ: [0, 1] → ℝ^(order + 1) for one number x, at t = x, or with `stretch` a at t = a · (x − ½).

    `length_scale` is the squared length s of the kernel in units of x. A stretch of a few units lets a low order follow a short
    length: order C resolves lengths of about 1/√C in units of t.

    **Guarantee**: ‖φ(x)‖ ≤ `bound` for every x in [0, 1], and `bound` ≤ 1.
    The paper's bound is 1: by Mehler's formula at t = t' the infinite sum of squares is 1, and the features are part of it.
    The sharper bound is proved by a grid. Let S(t) = ‖φ(t)‖². From H_k' = 2k·H_{k−1},
    φ_k' = √(2ρk)·φ_{k−1} − (2ρt/(1 + ρ))·φ_k, hence ‖φ'(t)‖ ≤ (√(2ρC) + |t|)·‖φ(t)‖ (since 2ρ/(1 + ρ) ≤ 1), and
    |S'| = 2|⟨φ, φ'⟩| ≤ L·S with L = 2(√(2ρC) + max|t|). By Grönwall's inequality S at any point is at most e^(L·h/2) times S
    at the nearest point of a grid of spacing h, so sup S ≤ e^(L·h/2) · max over the grid; with 20,000 steps the
    factor is below 1.001 at order 100. Values on the grid are computed in double precision, whose error (below 1e−9 by a
    generous margin: each of C steps adds a few units of 1e−16) is covered by a factor 1 + 1e−9.
    """

    def __init__(self, order: int, length_scale: float, stretch: float | None = None) -> None:
        if not (length_scale > 0 and math.isfinite(length_scale)):
            raise BadInput(f"length_scale must be positive and finite, not {length_scale}.")
        if stretch is not None and not (stretch > 0 and math.isfinite(stretch)):
            raise BadInput(f"stretch must be positive and finite, not {stretch}.")
        if order < 0:
            raise BadInput(f"The order of Hermite features must be at least 0, not {order}.")
        self.order = order
        self.length_scale = length_scale
        self.stretch = stretch
        self.rho = rho_of(length_scale * (stretch or 1.0) ** 2)
        self.bound = _bound(order, self.rho, *self._ends)

    @property
    def _ends(self) -> tuple[float, float]:
        return (0.0, 1.0) if self.stretch is None else (-self.stretch / 2, self.stretch / 2)

    def place(self, x: Tensor) -> Tensor:
        return x if self.stretch is None else self.stretch * (x - 0.5)

    def terms(self, x: Tensor) -> Iterator[Tensor]:
        """φ_0(x), …, φ_order(x), each of the shape of `x`."""
        return hermite(self.place(x), self.order, self.rho)

    def __call__(self, x: Tensor) -> Tensor:
        """(…) → (…, order + 1)"""
        return torch.stack(list(self.terms(x)), dim=-1)


@lru_cache(maxsize=64)
def _bound(order: int, rho: float, low: float, high: float) -> float:
    t = torch.linspace(low, high, _GRID + 1, dtype=torch.float64)
    squares = torch.zeros_like(t)
    for term in hermite(t, order, rho):
        squares += term.square()
    rate = 2 * (math.sqrt(2 * rho * order) + max(abs(low), abs(high)))
    reach = (high - low) / _GRID / 2
    return min(1.0, math.sqrt(float(squares.max()) * math.exp(rate * reach)) * (1 + 1e-9))


class SumKernel(FeatureMap):
    """The sum kernel: Hermite features of every number and the one-hots of every category, each ÷ √(number of parts).

    Feature k of number d is entry k·numbers + d; the one-hots follow. The kernel is the average over columns of the Gaussian
    kernel of numbers and of equality of categories.

    **Guarantee**: with D numbers and B blocks, ‖·‖² ≤ (D·b² + B) ÷ (D + B) where b is the bound of `Hermite`, since every number
    lies in [0, 1] and every block holds at most one 1. Row-wise: terms are computed number by number.
    """

    def __init__(self, codec: PlainCodec, features: Hermite) -> None:
        self.codec = codec
        self.features = features
        numbers, blocks = codec.numbers, len(codec.blocks)
        self.parts = numbers + blocks
        self.dim = (features.order + 1) * numbers + codec.places
        self.bound = math.sqrt((numbers * features.bound**2 + blocks) / self.parts)

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.parts)

    def __call__(self, batch: Batch) -> Tensor:
        rows = torch.empty(len(batch), self.dim)
        for start, piece, scale in self.pieces(batch):
            torch.mul(piece.T, scale, out=rows[:, start : start + len(piece)])
        return rows

    def pieces(self, batch: Batch) -> Iterator[tuple[int, Tensor, float]]:
        numbers, hot = self.codec.parts_of(batch)
        numbers = numbers.T.contiguous()  # (numbers, n): features as rows, as the sum wants them
        start = 0
        if len(numbers):
            for term in self.features.terms(numbers):
                yield start, term, self.scale
                start += len(term)
        if hot.shape[1]:
            yield start, hot.T, self.scale


class ProductKernel(OuterMap):
    """The product kernel over a few parts of a record (numbers, or blocks of categories): all products of their features.

    The tensor product of the parts' features is written as an outer product of two of about equal width, so that the sum over
    records is one matrix product.

    **Guarantee**: the norm of a tensor product is the product of the norms: ≤ b for each number, b the bound of `Hermite`, and
    ≤ 1 for each block; filed under the record's class, whose block alone is not zero. Row-wise.
    """

    def __init__(
        self,
        codec: PlainCodec,
        features: Hermite,
        parts: Sequence[int | Block],
        n_classes: int = 0,
    ) -> None:
        self.codec = codec
        self.segments = max(1, n_classes)
        self.labelled = n_classes > 0
        self.features = features
        self.parts = tuple(parts)
        middle = (len(self.parts) + 1) // 2
        self._sides = self.parts[:middle], self.parts[middle:]
        self.left, self.right = (math.prod(map(self._width, side)) for side in self._sides)
        self.left_bound, self.right_bound = (
            math.prod(1.0 if isinstance(part, Block) else features.bound for part in side)
            for side in self._sides
        )

    def _width(self, part: int | Block) -> int:
        return part.size if isinstance(part, Block) else self.features.order + 1

    def segment_of(self, batch: Batch) -> Tensor | None:
        return batch.labels if self.labelled else None

    def factors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.of(*self.codec.parts_of(batch))

    def of(self, numbers: Tensor, hot: Tensor) -> tuple[Tensor, Tensor]:
        """The two factors of encoded records, (n, left) and (n, right); differentiable."""
        left, right = (self._tensor_product(side, numbers, hot) for side in self._sides)
        return left, right

    def _tensor_product(self, side: Sequence[int | Block], numbers: Tensor, hot: Tensor) -> Tensor:
        product = numbers.new_ones(len(numbers), 1)
        for part in side:
            factor = (
                hot[:, part.start : part.start + part.size]
                if isinstance(part, Block)
                else self.features(numbers[:, part])
            )
            product = (product[:, :, None] * factor[:, None, :]).flatten(1)
        return product


def drawn_products(
    codec: PlainCodec,
    features: Hermite,
    n_classes: int,
    *,
    dims: int,
    rounds: int,
    seed: int,
    cut: int | None = None,
) -> list[ProductKernel]:
    """`rounds` product kernels over `dims` parts each, all different, that the public seed draws; fewer where there are no more.

    What would have more than 2²⁴ numbers to release, all classes together, is drawn again. With `cut`, what would have more than
    so many first loses its last parts until it has not, down to two.
    """
    parts: list[int | Block] = (
        codec.parts if isinstance(codec, TableCodec) else list(range(codec.numbers))
    )
    dims = min(dims, max(2, len(parts)))
    rounds = min(rounds, math.comb(len(parts), 2 if cut else dims))
    draw = np.random.RandomState(seed)  # its stream is frozen for ever
    products: dict[tuple[int, ...], ProductKernel] = {}
    for _ in range(100 * rounds if cut else _MOST_DRAWS):
        if len(products) == rounds:
            break
        each = draw.choice(len(parts), dims, replace=False).tolist()
        while True:
            chosen = tuple(sorted(each))
            kernel = ProductKernel(codec, features, [parts[i] for i in chosen], n_classes)
            numbers = kernel.segments * kernel.left * kernel.right
            if cut is None or numbers <= cut or len(each) == 2:
                break
            each.pop()
        if numbers <= _MOST_NUMBERS:
            products[chosen] = kernel
    if rounds and not products:
        raise BadInput(
            f"Every product of {2 if cut else dims} columns at order {features.order} has more than {_MOST_NUMBERS:,} numbers to "
            "release; give a smaller product_dims or product_order, or rounds=0."
        )
    return list(products.values())


class OnGrid:
    """Hermite features of many numbers at once through a table of their values: what makes training on them quick.

    Sums of features over records are linear in the histogram of the records' numbers. Each number is spread over its two
    neighbours on a grid (which is linear interpolation, of relative error below 1/8·(step/length)² ≈ 3e−4), the histograms are
    multiplied by the table, and gradients flow back through the weights. The table is rotated to its principal axes and
    those without any length on [0, 1] are dropped: `rotation` takes released numbers to the same axes, where the dropped ones
    hold nothing but noise.
    """

    def __init__(self, features: Hermite) -> None:
        step = math.sqrt(features.length_scale) / 20
        self.points = min(4096, max(32, math.ceil(1 / step) + 1))
        table = features(torch.linspace(0, 1, self.points, dtype=torch.float64))
        _, lengths, axes = torch.linalg.svd(table, full_matrices=False)
        kept = lengths > 1e-4 * lengths[0]
        self.rotation = axes[kept].T  # (order + 1, axes), orthonormal columns
        self.table = (table @ self.rotation).to(torch.float32)  # (points, axes)
        self.squares = self.table.square().sum(dim=1)

    @property
    def axes(self) -> int:
        return self.table.shape[1]

    def sums(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(classes, n, numbers) → Σ φ (classes, numbers, axes) and Σ ‖φ‖² over records and numbers (classes,)."""
        classes, _, numbers = x.shape
        place = x * (self.points - 1)
        low = place.detach().floor().clamp(0, self.points - 2)
        part = place - low
        cells = torch.arange(classes * numbers, device=x.device).view(classes, 1, numbers)
        index = (cells * self.points + low.to(torch.int64)).flatten()
        weights = torch.cat([(1 - part).flatten(), part.flatten()])
        flat = x.new_zeros(classes * numbers * self.points)
        flat = flat.scatter_add(0, torch.cat([index, index + 1]), weights)
        histogram = flat.view(classes, numbers, self.points)
        return histogram @ self.table, histogram.sum(dim=1) @ self.squares
