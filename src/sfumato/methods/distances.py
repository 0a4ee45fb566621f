"""Distances of a generator from released mean embeddings: what the matched kind minimises.

Each is an unbiased estimate of ‖μ̃ − E φ(G)‖² by `MeanEmbedding.mmd2`, from as many generated records of every class: of DP-MERF's
random Fourier features a block of frequencies at a time, of DP-HP's Hermite features by way of a grid. DP-MEPF's own are in
`mepf_matching`. Released numbers and generated records only: all of it is post-processing.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from sfumato.generators.embedding import MeanEmbedding
from sfumato.public.fourier import FourierFeatures
from sfumato.public.hermite import OnGrid, ProductKernel, SumKernel
from sfumato.public.tabular import HeterogeneousFourier


class Distance(Protocol):
    """Between the released embeddings and a generator's. One that remembers something from step to step is a module around the
    generator: checkpoints hold it then."""

    def loss(self, step: int, random: torch.Generator) -> Tensor:
        """An unbiased estimate on a batch, for a training step."""

    def final(self, random: torch.Generator, records: int) -> float:
        """The same on all features and `records` generated records, to choose by."""


class EmbeddingDistance:
    """Of plain records, numbers first and one-hot categories after them."""

    def __init__(self, network: nn.Module, embedding: MeanEmbedding, batch: int) -> None:
        self.network, self.embedding = network, embedding
        self.classes, self.emphasis = len(embedding.shares), embedding.emphasis
        self.per_class = max(2, batch // self.classes)
        self.labels = class_by_class(self.classes, self.per_class)

    def loss(self, step: int, random: torch.Generator) -> Tensor:
        made = self.network(self.labels, random).flatten(1)
        return self.at_step(step, made, self.per_class)

    def final(self, random: torch.Generator, records: int) -> float:
        per_class = max(2, records // self.classes)
        labels = class_by_class(self.classes, per_class).to(self.labels.device)
        return self.on_all(self.network(labels, random).flatten(1), per_class)

    @abstractmethod
    def at_step(self, step: int, made: Tensor, per_class: int) -> Tensor:
        """Of generated records, `per_class` of each class, on the features whose turn it is."""

    @abstractmethod
    def on_all(self, made: Tensor, per_class: int) -> float: ...


class FourierDistance(EmbeddingDistance):
    """On a block of the frequencies at a time: they are drawn independently, so taking the blocks in turn is a random choice."""

    def __init__(
        self,
        network: nn.Module,
        phi: FourierFeatures | HeterogeneousFourier,
        embedding: MeanEmbedding,
        batch: int,
        block: int,
    ) -> None:
        super().__init__(network, embedding, batch)
        self.fourier = phi if isinstance(phi, FourierFeatures) else phi.fourier
        self.category_scale = 1.0 if isinstance(phi, FourierFeatures) else phi.category_scale
        self.frequencies = self.fourier.dim // 2 if self.fourier else 0
        self.blocks = max(1, round(self.frequencies / block))

    def at_step(self, step: int, made: Tensor, per_class: int) -> Tensor:
        block = step % self.blocks
        start, stop = (self.frequencies * b // self.blocks for b in (block, block + 1))
        return self._on(made, per_class, start, stop)

    def on_all(self, made: Tensor, per_class: int) -> float:
        parts = [self.at_step(block, made, per_class) for block in range(self.blocks)]
        return float(torch.stack(parts).mean())

    def roots(self, start: int, stop: int) -> Tensor | None:
        """The roots of these features' weights, whose mean over the frequencies is 1; None where all weigh alike."""
        return None

    def _on(self, made: Tensor, per_class: int, start: int, stop: int) -> Tensor:
        """Numbers on frequencies `start` … `stop`, scaled up to all of them, and all categories."""
        total = made.new_zeros(())
        numbers = self.fourier.frequencies.shape[1] if self.fourier else 0
        if self.fourier is not None:
            # (block, classes · per_class)
            angles = self.fourier.frequencies[start:stop] @ made[:, :numbers].T
            waves = torch.cat([angles.cos(), angles.sin()]) / self.frequencies**0.5
            sums = waves.view(len(waves), self.classes, per_class).sum(dim=2).T
            columns = torch.arange(start, stop, device=made.device)
            columns = torch.cat([columns, columns + self.frequencies])
            share = (stop - start) / self.frequencies
            target = replace(self.embedding, mean=self.embedding.mean[:, columns])
            if (roots := self.roots(start, stop)) is not None:
                target, sums = replace(target, mean=target.mean * roots), sums * roots
            total = target.mmd2(sums, per_class, share, slice(None), self.emphasis) / share
        if made.shape[1] > numbers:
            sums, norm2 = by_class(made[:, numbers:] * self.category_scale, self.classes)
            rest = slice(2 * self.frequencies, None)
            total = total + self.embedding.mmd2(sums, per_class, norm2, rest, self.emphasis)
        return total


class HermiteDistance(EmbeddingDistance):
    """The sum kernel and the product kernel of one round, the rounds in turn, each by its weight: 1 and γ, or γ and 1."""

    def __init__(
        self,
        network: nn.Module,
        kernel: SumKernel,
        embedding: MeanEmbedding,
        products: list[tuple[ProductKernel, MeanEmbedding]],
        weights: tuple[float, float],
        batch: int,
    ) -> None:
        super().__init__(network, embedding, batch)
        self.products, self.scale = products, kernel.scale
        self.sum_weight, self.product_weight = weights
        self.numbers, orders = kernel.codec.numbers, kernel.features.order + 1
        self.grid = OnGrid(kernel.features) if self.numbers else None
        if self.grid is not None:
            values = embedding.mean[:, : orders * self.numbers].to(torch.float64)
            turned = values.view(self.classes, orders, self.numbers).mT @ self.grid.rotation
            self.number_target = replace(embedding, mean=turned.flatten(1).to(torch.float32))
        self.category_target = replace(embedding, mean=embedding.mean[:, orders * self.numbers :])

    def at_step(self, step: int, made: Tensor, per_class: int) -> Tensor:
        total = self.sum_weight * self._sum_distance(made, per_class)
        if self.products:
            product = self.products[step % len(self.products)]
            total = total + self.product_weight * self._product_distance(made, per_class, *product)
        return total

    def on_all(self, made: Tensor, per_class: int) -> float:
        total = self.sum_weight * float(self._sum_distance(made, per_class))
        parts = [float(self._product_distance(made, per_class, *p)) for p in self.products]
        return total + (self.product_weight * sum(parts) / len(parts) if parts else 0.0)

    def _sum_distance(self, made: Tensor, per_class: int) -> Tensor:
        total, every = made.new_zeros(()), slice(None)
        if self.grid is not None:
            grouped = made[:, : self.numbers].view(self.classes, per_class, self.numbers)
            sums, squares = self.grid.sums(grouped)
            sums, norm2 = sums.flatten(1) * self.scale, squares * self.scale**2 / per_class
            total = self.number_target.mmd2(sums, per_class, norm2, every, self.emphasis)
        if made.shape[1] > self.numbers:
            sums, norm2 = by_class(made[:, self.numbers :] * self.scale, self.classes)
            target = self.category_target
            total = total + target.mmd2(sums, per_class, norm2, every, self.emphasis)
        return total

    def _product_distance(
        self, made: Tensor, per_class: int, phi: ProductKernel, target: MeanEmbedding
    ) -> Tensor:
        left, right = phi.of(made[:, : self.numbers], made[:, self.numbers :])
        grouped = [side.view(self.classes, per_class, -1) for side in (left, right)]
        sums = (grouped[0].transpose(1, 2) @ grouped[1]).flatten(1)  # (classes, left · right)
        norm2 = (grouped[0].square().sum(dim=2) * grouped[1].square().sum(dim=2)).mean(dim=1)
        return target.mmd2(sums, per_class, norm2, slice(None), self.emphasis)


def class_by_class(classes: int, per_class: int) -> Tensor:
    """Labels of as many records of every class, sorted."""
    return torch.arange(classes).repeat_interleave(per_class)


def by_class(rows: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Σ rows of each class (classes, width) and the mean of ‖row‖² (classes,), rows being sorted by class in equal numbers."""
    grouped = rows.view(classes, -1, rows.shape[1])
    return grouped.sum(dim=1), grouped.square().sum(dim=2).mean(dim=1)
