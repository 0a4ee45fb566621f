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
from typing import ClassVar

import torch
from torch import Tensor

from sfumato.data import Schema
from sfumato.methods.base import Method, Workspace
from sfumato.methods.bayes_network import Cells, OneHot, enumerate_in_order, network
from sfumato.methods.counts import Counts
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query

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
        hot = OneHot(schema, self.squash, self.bins)
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

    def _most(self, hot: OneHot) -> int:
        """Cells of each column: at least those of the column by itself."""
        return max(self.cells, *hot.sizes)

    def build(self, schema: Schema) -> None:
        self._hot = OneHot(schema, self.squash, self.bins)

    def _fit(self, data: Gate, run: Workspace) -> None:
        hot, most = self._hot, self._most(self._hot)
        pairs = data.sum(_PAIRS, hot).value.view(hot.places, hot.places)
        pairs = (pairs + pairs.T) / 2
        n = float(data.public_size or max(1.0, float(pairs.diagonal().sum()) / hot.columns))
        useful = n / (self.usefulness * data.noise_std(_CELLS))
        self.parents_ = network(hot, pairs, self.parents, min(most, useful))
        cells = Cells(hot, self.parents_, most)
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
