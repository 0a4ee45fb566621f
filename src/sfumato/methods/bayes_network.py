"""Columns of a table as places, and a Bayesian network over them: what PrivBayes is made of.

Private: the records that `OneHot` and `Cells` are given, row by row. Public: their sizes, and networks, which come of released
counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.privacy import decides
from sfumato.public.tabular import Block, TableCodec


class OneHot:
    """A record as one place for each column: the class first, where there is one, then a table's columns in order.

    What is no known category, and no number, has no place and adds nothing in its column.
    """

    def __init__(self, schema: Schema, squash: float | None, bins: int) -> None:
        self.codec, self.bins, self.classes = TableCodec(schema, squash), bins, schema.n_classes
        absent = {number for number, _ in self.codec.optional}
        self._blocks = dict(self.codec.optional)
        ordinal = [
            len(c.categories) if c.kind == "ordinal" else None
            for c in schema.columns
            if c.kind != "categorical"
        ]
        self._cuts = [bins if levels is None else levels for levels in ordinal]
        sizes = [
            part.size if isinstance(part, Block) else self._cuts[part] + (part in absent)
            for part in self.codec.parts
        ]
        self.sizes = ([self.classes] if self.classes else []) + sizes
        self.columns, self.places = len(self.sizes), sum(self.sizes)
        self._ordinal = [levels is not None for levels in ordinal]

    def codes(self, batch: Batch) -> Tensor:
        """(n, columns): the place of each record in each column, −1 for none."""
        numbers, hot = self.codec.parts_of(batch)
        decides(numbers)
        found = []
        if self.classes:
            labels = batch.labels if batch.labels is not None else torch.full((len(batch),), -1)
            found.append(torch.where((labels >= 0) & (labels < self.classes), labels, -1))
        for part in self.codec.parts:
            if isinstance(part, Block):
                places = hot[:, part.start : part.start + part.size]
                found.append(torch.where(places.sum(dim=1) > 0, places.argmax(dim=1), -1))
                continue
            cuts, x = self._cuts[part], numbers[:, part]
            code = (x * (cuts - 1)).round() if self._ordinal[part] else (x * cuts).floor()
            code = code.clamp(0, cuts - 1).to(torch.int64)
            if part in self._blocks:
                missing = hot[:, self._blocks[part].start + 1] > 0
                code = torch.where(missing, cuts, code)
            found.append(code)
        return torch.stack(found, dim=1)

    def __call__(self, batch: Batch) -> Tensor:
        """h(x), (n, places)"""
        codes, rows = self.codes(batch), torch.zeros(len(batch), self.places)
        start = 0
        for column, size in enumerate(self.sizes):
            there = codes[:, column, None] == torch.arange(size)
            rows[:, start : start + size] = there.to(torch.float32)
            start += size
        return rows

    def records(self, codes: Tensor, random: torch.Generator) -> Tensor:
        """Records with these places; numbers are drawn evenly within their bins."""
        numbers = torch.zeros(len(codes), self.codec.numbers)
        hot = torch.zeros(len(codes), self.codec.places)
        for part, code in zip(self.codec.parts, codes.T[bool(self.classes) :], strict=True):
            if isinstance(part, Block):
                hot.scatter_(1, (part.start + code)[:, None], 1.0)
                continue
            cuts, missing = self._cuts[part], code == self._cuts[part]
            within = torch.rand(len(code), generator=random)
            if self._ordinal[part]:
                numbers[:, part] = code / max(1, cuts - 1)
            else:
                numbers[:, part] = (code + within) / cuts
            if part in self._blocks:
                start = self._blocks[part].start
                hot[:, start], hot[:, start + 1] = (~missing).float(), missing.float()
        return self.codec.finish(torch.cat([numbers, hot], dim=1), random)


@dataclass(frozen=True)
class Cells:
    """A 1 at the cell of each column with its parents; a record without a place in one of them adds nothing there."""

    hot: OneHot
    parents: list[list[int]]
    most: int

    def __call__(self, batch: Batch) -> Tensor:
        codes = self.hot.codes(batch)
        rows = torch.zeros(len(batch), self.hot.columns * self.most)
        for column, parents in enumerate(family[1:] for family in self.parents):
            place, there = torch.zeros(len(batch), dtype=torch.int64), codes[:, column] >= 0
            for parent in parents:
                place = place * self.hot.sizes[parent] + codes[:, parent]
                there = there & (codes[:, parent] >= 0)
            place = place * self.hot.sizes[column] + codes[:, column]
            found = column * self.most + torch.where(there, place, 0)
            rows.scatter_add_(1, found[:, None], there.to(torch.float32)[:, None])
        return rows


def network(hot: OneHot, pairs: Tensor, most_parents: int, most_cells: float) -> list[list[int]]:
    """For each column [its turn, its parents …], from noisy counts of all pairs (places, places): greedily, as the paper does.

    First the class, or else the column that tells most about all others; then again and again the column that the best parents
    among the earlier ones tell most about. A parent is taken as long as the cells fit into `most_cells`.
    """
    told = mutual_information(hot, pairs)
    first = 0 if hot.classes else int(told.sum(dim=1).argmax())
    families: dict[int, list[int]] = {first: [0]}
    while len(families) < hot.columns:
        best: tuple[float, int, list[int]] = (-1.0, -1, [])
        for column in (c for c in range(hot.columns) if c not in families):
            chosen, cells, sum_told = list[int](), float(hot.sizes[column]), 0.0
            for parent in sorted(families, key=lambda p: -float(told[column, p])):
                if len(chosen) < most_parents and cells * hot.sizes[parent] <= most_cells:
                    chosen.append(parent)
                    cells *= hot.sizes[parent]
                    sum_told += float(told[column, parent])
            best = max(best, (sum_told, column, chosen), key=lambda found: found[0])
        families[best[1]] = [len(families), *best[2]]
    return [families[column] for column in range(hot.columns)]


def mutual_information(hot: OneHot, pairs: Tensor) -> Tensor:
    """(columns, columns), in nats, of noisy counts; what is negative counts as nothing."""
    starts = [sum(hot.sizes[:c]) for c in range(hot.columns)]
    told = torch.zeros(hot.columns, hot.columns, dtype=torch.float64)
    for a in range(hot.columns):
        for b in range(a):
            block = pairs[
                starts[a] : starts[a] + hot.sizes[a], starts[b] : starts[b] + hot.sizes[b]
            ]
            joint = block.to(torch.float64).clamp(min=0)
            joint = joint / joint.sum().clamp(min=1e-12)
            apart = joint.sum(dim=1, keepdim=True) * joint.sum(dim=0, keepdim=True)
            ratio = torch.where(joint > 0, joint / apart.clamp(min=1e-300), 1.0)
            told[a, b] = told[b, a] = float((joint * ratio.log()).sum())
    return told


def enumerate_in_order(families: list[list[int]]) -> list[tuple[int, list[int]]]:
    """Columns with their parents, each after its parents."""
    return [
        (c, families[c][1:]) for c in sorted(range(len(families)), key=lambda c: families[c][0])
    ]
