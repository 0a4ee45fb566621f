"""Fixed local features of pictures, and readouts of them as two released sums a noise level would teach them: `ridge.py`.

Features φ of every pixel, weights shared by all pixels: 1, patches of the pictures that are seen, ReLU of random 7 × 7 filters of
these, which fade with distance, each at a width of its own; a third are plain windows. A record gives its means over pixels of
φφᵀ and of φ times what is wanted, scaled together until both are within their bounds. Draws of a mixture are free: φ is whitened
by them, the bounds are the medians of what they give, and their readout is what the ridge is drawn towards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

NOISES, SIDE, AT_ONCE = 3, 7, 25


class Pictures(Protocol):
    seen: Tensor  # (n, pictures, H, W)
    wanted: Tensor  # (n, pixels)


class Features:
    """(n, pictures, H, W) → (n, pixels, p): 1, patches from the middle outwards, filters; then the same of half the size."""

    def __init__(self, draws: Tensor, count: int, sizes: tuple[int, ...], seed: int) -> None:
        random, at = torch.Generator().manual_seed(seed), torch.arange(SIDE) - SIDE // 2
        self.far, self.sizes = (at[:, None] ** 2 + at**2).flatten()[:, None], sizes
        ring = torch.maximum(at.abs()[:, None], at.abs()).flatten()
        self.order = ring.repeat(draws.shape[1]).argsort(stable=True)
        self.filters = [self._drawn(self._patches(draws, k), count, random) for k in sizes]

    def _patches(self, pictures: Tensor, size: int) -> Tensor:
        padded = F.pad(F.avg_pool2d(pictures, size), (SIDE // 2,) * 4, mode="replicate")
        return F.unfold(padded, SIDE).mT[..., self.order]  # (n, pixels, pictures · 49)

    def _drawn(self, patches: Tensor, count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Filters that fade with distance, a third of them plain windows, and offsets; answers to the draws have deviation 1."""
        pictures = patches.shape[2] // SIDE**2
        width = 0.5 * 6 ** torch.rand(count, generator=random)
        shape = torch.randn(pictures, SIDE**2, count, generator=random)
        plain = torch.rand(count, generator=random) < 1 / 3
        shape = torch.where(plain, torch.randn(pictures, 1, count, generator=random), shape)
        drawn = (shape * torch.exp(-self.far / (2 * width**2))).flatten(0, 1)[self.order]
        answers = patches.flatten(0, 1) @ drawn
        offsets = 0.7 * torch.randn(count, generator=random)
        return drawn / answers.std(0), offsets - answers.mean(0) / answers.std(0)

    def __call__(self, pictures: Tensor) -> Tensor:
        n, _, height, width = pictures.shape
        found = [torch.ones(n, height * width, 1)]
        for size, (filters, offsets) in zip(self.sizes, self.filters, strict=True):
            patches = self._patches(pictures, size)
            both = torch.cat([patches, (patches @ filters + offsets).relu_()], 2)
            if size > 1:
                small = both.mT.unflatten(2, (height // size, width // size))
                both = F.interpolate(small, scale_factor=size, mode="bilinear").flatten(2).mT
            found.append(both)
        return torch.cat(found, 2)


def readout(moment: Tensor, cross: Tensor, start: Tensor, ridge: float | Tensor) -> Tensor:
    """Weights that are drawn towards `start`."""
    values, vectors = torch.linalg.eigh(moment.double())
    rest = vectors.T @ (cross.double() - moment.double() @ start.double())
    return start.double() + vectors @ (rest / (values.clamp(min=0) + ridge))


class Ridge:
    """One layer at one level: features whitened by the draws. `ends`: how many of the first are tried; all if none is named."""

    def __init__(self, features: Features, ends: tuple[int, ...], draws: Pictures) -> None:
        whole = features(draws.seen).flatten(0, 1)
        moment = whole.T @ whole / len(whole)
        deviations = moment.diagonal().sqrt().clamp(min=1e-3)  # a filter may never answer
        moment = moment / deviations / deviations[:, None] + 1e-4 * torch.eye(len(moment))
        root = torch.linalg.cholesky(moment.double()).float()
        inverse = torch.linalg.solve_triangular(root, torch.eye(len(root)), upper=False)
        # Of the whitened features none needs one that comes after it.
        self.features, self.white = features, inverse.T / deviations[:, None]
        self.ends = ends or (len(root),)

    def _each(self, some: Pictures) -> Iterator[tuple[int, Tensor, Tensor]]:
        """What some records at a time would give, for each of `ends`: (n, e · e) and (n, e)"""
        for seen, wanted in zip(some.seen.split(AT_ONCE), some.wanted.split(AT_ONCE), strict=True):
            phi = self.features(seen) @ self.white
            products, crosses = phi.mT @ phi / phi.shape[1], (wanted[:, None] @ phi)[:, 0]
            for number, e in enumerate(self.ends):
                yield number, products[:, :e, :e].flatten(1), crosses[:, :e] / phi.shape[1]

    def _moments(self, some: Pictures, bounds: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """For each of `ends`: (2, e · e + e), the means of what records give and of that within the bounds; median norms."""
        means = [torch.zeros(2, e * e + e) for e in self.ends]
        norms: list[list[Tensor]] = [[] for _ in self.ends]
        for number, products, crosses in self._each(some):
            norms[number].append(torch.stack([products.norm(dim=1), crosses.norm(dim=1)]))
            kept = (bounds[number][:, None] / norms[number][-1]).amin(0).clamp(max=1)
            weights = torch.stack([torch.ones_like(kept), kept]) / len(some.seen)
            means[number] += weights @ torch.cat([products, crosses], 1)
        return means, [torch.cat(own, 1).median(1).values for own in norms]

    def learn(self, records: Pictures, draws: Pictures, noise: float) -> dict[str, list[Tensor]]:
        """Weights for each of `ends`, by what they are learnt of; of noisy means, whose noise is so many bounds, NOISES."""
        free, bounds = self._moments(draws, [torch.full((2,), torch.inf) for _ in self.ends])
        means, _ = self._moments(records, bounds)
        random = torch.Generator().manual_seed(0)
        found: dict[str, list[Tensor]] = {"draws": [], "none": [], "noisy": []}
        for e, bound, drawn, both in zip(self.ends, bounds, free, means, strict=True):
            of_draws, plain, kept = ((m[:-e].view(e, e), m[-e:]) for m in (drawn[0], *both))
            start, std = readout(*of_draws, torch.zeros(e), 0.03), noise * bound
            found["draws"].append(start)
            found["none"].append(readout(*plain, start, 1e-4))
            for _ in range(NOISES):
                loud = std[0] * torch.randn(e, e, generator=random)
                moment = kept[0] + (loud + loud.T) / 2
                cross = kept[1] + std[1] * torch.randn(e, generator=random)
                # As strong as the largest eigenvalue of the noise.
                found["noisy"].append(readout(moment, cross, start, std[0] * math.sqrt(2 * e)))
        return found

    def tell(self, some: Pictures, weights: list[Tensor]) -> Iterator[Tensor]:
        """Some pictures at a time: what each of the weights makes of them, (n, pixels, weights)"""
        wide = [F.pad(w, (0, len(self.white) - len(w))) for w in weights]
        through = self.white @ torch.stack(wide, 1).float()
        for seen in some.seen.split(AT_ONCE):
            yield self.features(seen) @ through
