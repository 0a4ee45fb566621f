"""PrivBayes: a Bayesian network of a table's columns (Zhang et al. 2017), chosen and filled by noisy sums.

    1.  h(x) ∈ {0, 1}^P                        a record's one-hot places: categories, classes, bins of numbers          (public)
    2.  Σ h(x) ⊗ h(x) + noise                  every marginal of one and of two columns                        (the first release)
    3.  columns one by one, each with the earlier ones that tell most about it for parents                              (free)
    4.  Σ [1 at the cell of (column, parents)] + noise, of all columns together                               (the second release)
    5.  sample: labels, then column after column given its parents                                                      (free)

Private: the records, in steps 2 and 4 only. Public: columns, ranges, categories and classes (Schema), bins and limits, and the
network, which comes of the first release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.methods.base import Method, Workspace
from sfumato.methods.counts import Counts
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query
from sfumato.public.tabular import Block, TableCodec

_PAIRS, _CELLS = "pairs of columns", "columns and their parents"


class Privbayes(Method):
    """PrivBayes for tables, labelled or not.

    **Guarantee**: two releases, calibrated jointly. The first sums h ⊗ h with ‖h‖ ≤ √columns, since each column has at most one
    place, the class included; the second sums vectors with at most one 1 for each column, of length ≤ √columns and never
    negative. Row-wise: a row is a function of its record and, in the second, of the released network. Everything else is
    post-processing.

    Differs from the paper: the network is not chosen by the exponential mechanism, once a column, but read off one noisy sum of
    all pairs, charged like any other; what parents tell together is taken to be the sum of what each tells; Gaussian noise,
    calibrated jointly, for (ε, δ) where the paper has Laplace noise and δ = 0; the class comes first, so that samples can be had
    by class; numbers are cut into bins of equal width on their public ranges and drawn evenly within them.
    """

    info = MethodInfo(
        name="privbayes",
        title="PrivBayes",
        paper="Zhang et al. 2017, “PrivBayes: Private Data Release via Bayesian Networks”",
        summary="A Bayesian network of the columns, chosen and filled by noisy marginals.",
        kinds=("table",),
    )
    TINY: ClassVar = {"bins": 4, "cells": 64}

    parents: int = setting("Parents that a column may have.", default=2, low=1, high=8)
    bins: int = setting("Bins of a numerical column, of equal width.", default=16, low=2, high=1024)
    cells: int = setting(
        "Most cells of a column and its parents together; what is unused costs nothing.",
        default=4_096,
        low=2,
        high=2**20,
    )
    usefulness: float = setting(
        "How many times its own noise the average cell must hold, before a parent is taken (the paper's θ).",
        default=4.0,
        above=0,
        free=False,
    )
    structure_share: float = setting(
        "Part of the squared noise budget for the first release, which chooses the network.",
        default=0.3,
        above=0,
        below=1,
    )
    squash: float | None = setting(
        "Columns whose public range reaches beyond this are compressed by asinh before they are cut; none: no column is.",
        default=100.0,
        above=0,
    )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        hot = _OneHot(schema, self.squash, self.bins)
        return [
            Query(
                label=_PAIRS,
                shape=(hot.places, hot.places),
                bound=float(hot.columns),
                symmetric=True,
                share=self.structure_share,
            ),
            Query(
                label=_CELLS,
                shape=(hot.columns * self._most(hot),),
                bound=math.sqrt(hot.columns),
                non_negative=True,
                share=1 - self.structure_share,
            ),
        ]

    def _most(self, hot: _OneHot) -> int:
        """Cells of each column: at least those of the column by itself."""
        return max(self.cells, *hot.sizes)

    def build(self, schema: Schema) -> None:
        self._hot = _OneHot(schema, self.squash, self.bins)

    def _fit(self, data: Gate, run: Workspace) -> None:
        hot, most = self._hot, self._most(self._hot)
        pairs = data.sum(_PAIRS, hot).value.view(hot.places, hot.places)
        pairs = (pairs + pairs.T) / 2
        n = float(data.public_size or max(1.0, float(pairs.diagonal().sum()) / hot.columns))
        useful = n / (self.usefulness * data.noise_std(_CELLS))
        self.parents_ = network(hot, pairs, self.parents, min(most, useful))
        cells = _Cells(hot, self.parents_, most)
        given = [torch.tensor(each, dtype=torch.int64) for each in self.parents_]
        released = data.sum(_CELLS, cells, given=given)
        self.cells_ = released.value.view(hot.columns, most).to(torch.float32)
        if hot.classes:
            counts = self.cells_[0, : hot.sizes[0]].to(torch.float64)
            self.shares_ = Counts.of(counts, released.noise_std, data.public_size).shares
        else:
            self.shares_ = torch.ones(1)

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        hot = self._hot
        drawn = torch.zeros(len(labels), hot.columns, dtype=torch.int64)
        for column, parents in enumerate_in_order(self.parents_):
            if hot.classes and column == 0:
                drawn[:, 0] = labels
                continue
            width = hot.sizes[column] * math.prod(hot.sizes[p] for p in parents)
            table = self.cells_[column, :width].view(-1, hot.sizes[column]).clamp(min=0)
            # Where parents were never seen together, the column is drawn as it is by itself.
            alone = table.sum(dim=0) + 1e-6
            odds = torch.where(table.sum(dim=1, keepdim=True) > 0, table, alone)
            place = torch.zeros(len(labels), dtype=torch.int64)
            for parent in parents:
                place = place * hot.sizes[parent] + drawn[:, parent]
            drawn[:, column] = torch.multinomial(odds[place], 1, generator=random)[:, 0]
        return hot.records(drawn, random)


class _OneHot:
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
class _Cells:
    """A 1 at the cell of each column with its parents; a record without a place in one of them adds nothing there."""

    hot: _OneHot
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


def network(hot: _OneHot, pairs: Tensor, most_parents: int, most_cells: float) -> list[list[int]]:
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


def mutual_information(hot: _OneHot, pairs: Tensor) -> Tensor:
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
