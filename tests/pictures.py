"""Made-up pictures with something to learn in them, for tests of several methods."""

from __future__ import annotations

import numpy as np

from sfumato.data import Dataset

__all__ = ["halves", "shaded", "striped"]


def shaded(value: int = 200, n: int = 80, *, seed: int = 0, labelled: bool = True) -> Dataset:
    """Two classes alike: every pixel is about `value`."""
    pixels = np.random.default_rng(seed).normal(value, 10, (n, 1, 8, 8))
    return dataset(pixels.clip(0, 255).astype(np.uint8), np.arange(n) % 2, labelled, 2)


def striped(
    kinds: np.ndarray | int = 90,
    *,
    shape: tuple[int, ...] = (1, 8, 8),
    seed: int = 1,
    labelled: bool = True,
    name: str = "arrays",
) -> Dataset:
    """Three kinds of picture, by which third of the rows is bright; a number of them is a third of each."""
    kinds = np.arange(kinds) % 3 if isinstance(kinds, int) else kinds
    pixels = np.random.default_rng(seed).integers(0, 100, (len(kinds), *shape), dtype=np.uint8)
    third = shape[1] // 3
    for picture, kind in zip(pixels, kinds, strict=True):
        picture[:, third * kind : third * (kind + 1)] += 120
    return dataset(pixels, kinds, labelled, 3, name)


def halves(n: int = 3000, seed: int = 0) -> Dataset:
    """Two classes, real numbers: the left half is bright, or the right one, more or less so."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    pixels = rng.normal(0.3, 0.03, (n, 1, 8, 8))
    bright = rng.normal(0.3, 0.08, n)
    for picture, label, more in zip(pixels, labels, bright, strict=True):
        picture[..., 4 * label : 4 * label + 4] += more
    return dataset(pixels.clip(0, 1).astype(np.float32), labels, True, 2)


def dataset(pixels: np.ndarray, labels: np.ndarray, labelled: bool, classes: int, name="arrays"):
    if not labelled:
        return Dataset.from_arrays(pixels, name=name)
    return Dataset.from_arrays(pixels, labels, classes=classes, name=name)
