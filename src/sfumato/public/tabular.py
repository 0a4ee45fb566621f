"""Records as their own numbers in [0, 1] and one-hot categories, from the public Schema alone; and back again.

These codecs know nothing but the Schema: ranges, categories and whether a column may be missing are PUBLIC facts, so encoding
private rows leaks nothing and needs no fitting. It must stand any row, because files are streamed unchecked: numbers are
clipped to their range, an unknown category or a missing value gets a place of its own or none.

The heterogeneous feature map of DP-MERF (thesis, app. B, §4.3) is built on it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.privacy import FeatureMap
from sfumato.public.codec import Codec
from sfumato.public.fourier import FourierFeatures

_UNKNOWN = 0.5  # where a missing number is put: the middle of the range


@dataclass(frozen=True)
class Block:
    """One-hot places `start` … `start + size − 1` of an encoded record."""

    start: int
    size: int


class PlainCodec(Codec):
    """Records ↔ (`numbers` in [0, 1], one-hot `blocks`), side by side and taken around ½ as vectors.

    **Guarantee**: for any row whatever, the numbers lie in [0, 1] and every block holds at most a single 1, zeros otherwise (a
    pixel that is NaN stays so; the wall drops that row); so each place adds at most ¼ to a vector's squared length. Row-wise.
    """

    ranged = True
    numbers: int
    blocks: tuple[Block, ...] = ()
    names: tuple[str, ...] = ()  # of a table's numbers and places; none for images
    # Numbers that may be missing, and the block (present, missing) that says so.
    optional: tuple[tuple[int, Block], ...] = ()

    @property
    def places(self) -> int:
        """How many one-hot places there are."""
        return sum(block.size for block in self.blocks)

    @abstractmethod
    def parts_of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(n records) → (n, numbers), (n, places)"""

    def encode(self, batch: Batch) -> Tensor:
        return torch.cat(self.parts_of(batch), dim=1) - 0.5

    def raw(self, vectors: Tensor) -> Tensor:
        return vectors + 0.5


class PixelCodec(PlainCodec):
    """Images are numbers only."""

    def __init__(self, schema: Schema) -> None:
        self.shape = schema.shape
        self.dim = self.numbers = schema.dim
        self.bound = 0.5 * math.sqrt(schema.dim)

    def parts_of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        pixels = batch.pixels().flatten(1)
        return pixels, pixels.new_zeros(len(pixels), 0)

    def finish(self, raw: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return raw.clamp(0, 1).view(-1, *self.shape)

    def seen(self, batch: Batch) -> Tensor:
        return batch.pixels()  # all of them


class TableCodec(PlainCodec):
    """Numerical and ordinal columns scaled to [0, 1] by their public range, categorical ones one-hot.

    `squash`: a numerical column whose public range reaches beyond this number is compressed by x ↦ asinh(x) first, which is
    x near 0 and ±log 2|x| far out. Amounts of money and other numbers of unknown spread have ranges set wide for safety;
    scaled as they are, nearly all records would fall into one point. None: no column is compressed. A public rule on
    public ranges.

    A categorical column that may be missing has one place more; a numerical or ordinal one that may be missing has a block of
    two (present, missing) and lies in the middle of its range where it is.
    """

    def __init__(self, schema: Schema, squash: float | None = 100.0) -> None:
        self.schema = schema
        self._ranges: list[tuple[int, float, float, bool]] = []  # column, low, high, squashed
        self._hot: list[tuple[int, int, Block]] = []  # column, categories, block
        blocks: list[Block] = []
        optional = []
        start = 0
        # Which numbers or block each column has: what a product over columns picks from.
        self.parts: list[int | Block] = []
        for index, column in enumerate(schema.columns):
            if column.kind == "categorical":
                block = Block(start, len(column.categories) + column.missing)
                self._hot.append((index, len(column.categories), block))
                self.parts.append(block)
            else:
                low, high = 0.0, max(1.0, len(column.categories) - 1.0)
                if column.kind == "numerical":
                    assert column.low is not None and column.high is not None
                    low, high = column.low, column.high
                wide = column.kind == "numerical" and column.type != "date" and squash is not None
                squashed = wide and max(abs(low), abs(high)) > (squash or 0.0)
                self.parts.append(len(self._ranges))
                self._ranges.append((index, low, high, squashed))
                if not column.missing:
                    continue
                block = Block(start, 2)
                optional.append((len(self._ranges) - 1, block))
            blocks.append(block)
            start += block.size
        self.numbers = len(self._ranges)
        self.blocks = tuple(blocks)
        self.optional = tuple(optional)
        self.dim = self.numbers + self.places
        self.bound = 0.5 * math.sqrt(self.dim)
        self.names = tuple(_names(schema))

    def parts_of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        values = batch.values.to(torch.float64)
        numbers = torch.empty(len(batch), self.numbers)
        hot = torch.zeros(len(batch), self.places)
        absent = {}
        for number, (index, low, high, squashed) in enumerate(self._ranges):
            x = values[:, index].clamp(low, high)
            if squashed:
                x, low, high = x.asinh(), math.asinh(low), math.asinh(high)
            absent[number] = x.isnan()
            numbers[:, number] = ((x - low) / (high - low)).nan_to_num(_UNKNOWN).clamp(0, 1)
        for index, categories, block in self._hot:
            known = values[:, index, None] == torch.arange(categories)  # NaN equals nothing
            hot[:, block.start : block.start + categories] = known.to(torch.float32)
            if block.size > categories:
                hot[:, block.start + categories] = (~known.any(dim=1)).to(torch.float32)
        for number, block in self.optional:
            hot[:, block.start] = (~absent[number]).to(torch.float32)
            hot[:, block.start + 1] = absent[number].to(torch.float32)
        return numbers, hot

    def finish(self, raw: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(n, numbers + places), probabilities in place of ones and zeros → records; categories are drawn."""
        values, raw = torch.empty(len(raw), len(self.schema.columns)), raw.clamp(0, 1)
        numbers, hot = raw[:, : self.numbers].to(torch.float64), raw[:, self.numbers :]

        def drawn(block: Block) -> Tensor:
            shares = hot[:, block.start : block.start + block.size] + 1e-12
            return torch.multinomial(shares, 1, generator=generator)[:, 0]

        for number, (index, low, high, squashed) in enumerate(self._ranges):
            x = numbers[:, number]
            if self.schema.columns[index].kind == "ordinal":
                values[:, index] = (x * (len(self.schema.columns[index].categories) - 1)).round()
            elif squashed:
                ends = math.asinh(low), math.asinh(high)
                values[:, index] = (ends[0] + x * (ends[1] - ends[0])).sinh().to(torch.float32)
            else:
                values[:, index] = (low + x * (high - low)).to(torch.float32)
            # Rounding must not carry a number out of its range.
            values[:, index] = values[:, index].clamp(_single(low), _single(high))
        for number, block in self.optional:
            index = self._ranges[number][0]
            values[:, index] = torch.where(drawn(block) == 1, math.nan, values[:, index])
        for index, categories, block in self._hot:
            code = drawn(block)
            values[:, index] = torch.where(code == categories, math.nan, code.to(torch.float32))
        return values


def _names(schema: Schema) -> list[str]:
    """Of the numbers, then of the one-hot places."""
    numbers, hot = [], []
    for column in schema.columns:
        if column.kind == "categorical":
            hot += [f"{column.name} = {category}" for category in column.categories]
            hot += [f"{column.name} missing"] * column.missing
        else:
            numbers.append(column.name)
            hot += [f"{column.name} there", f"{column.name} missing"] * column.missing
    return [*numbers, *hot]


def _single(x: float) -> float:
    return float(torch.tensor(x, dtype=torch.float32))


def plain_codec(schema: Schema, squash: float | None = 100.0) -> PixelCodec | TableCodec:
    return PixelCodec(schema) if schema.kind == "images" else TableCodec(schema, squash)


class HeterogeneousFourier(FeatureMap):
    """[φ(numbers), one-hots ÷ √d]: the sum of a Gaussian kernel and of the number of equal categories, by d.

    d is the number of blocks, or with `by_length` that of all places of the one-hots together.

    **Guarantee**: ‖·‖² = ‖φ‖² + (ones) ÷ d ≤ 1 + (blocks) ÷ d, since φ is of norm 1 and each of the blocks holds at most one 1;
    where there are no numbers the first term is missing. Row-wise because codec and φ are.
    """

    def __init__(
        self, codec: PlainCodec, fourier: FourierFeatures | None, by_length: bool = False
    ) -> None:
        self.codec = codec
        self.fourier = fourier
        self.divisor = max(1, codec.places if by_length else len(codec.blocks))
        self.bound = math.sqrt((fourier is not None) + len(codec.blocks) / self.divisor)
        self.dim = (fourier.dim if fourier else 0) + codec.places

    @property
    def category_scale(self) -> float:
        return 1 / math.sqrt(self.divisor)

    def __call__(self, batch: Batch) -> Tensor:
        numbers, hot = self.codec.parts_of(batch)
        waves = [self.fourier(Batch(numbers, None))] if self.fourier else []
        return torch.cat([*waves, hot * self.category_scale], dim=1)
