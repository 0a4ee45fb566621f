"""Made-up pictures with something to learn in them, for tests of several methods."""

from __future__ import annotations

import numpy as np

from sfumato.data import Dataset

__all__ = ["halves", "shaded", "striped"]


def shaded(value: int = 200, n: int = 80, *, seed: int = 0, labelled: bool = True) -> Dataset:
    """Two classes alike: every pixel is about `value`."""
    pixels = np.random.default_rng(seed).normal(value, 10, (n, 1, 8, 8))
    return _dataset(pixels.clip(0, 255).astype(np.uint8), np.arange(n) % 2, 2 if labelled else None)


def striped(
    n: int = 90, *, shape: tuple[int, ...] = (1, 8, 8), seed: int = 1, labelled: bool = True
) -> Dataset:
    """Three classes, told apart by which third of the rows is bright."""
    labels = np.arange(n) % 3
    pixels = np.random.default_rng(seed).integers(0, 100, (n, *shape), dtype=np.uint8)
    third = shape[1] // 3
    for picture, label in zip(pixels, labels, strict=True):
        picture[:, third * label : third * (label + 1)] += 120
    return _dataset(pixels, labels, 3 if labelled else None)


def halves(n: int = 3000, seed: int = 0) -> Dataset:
    """Two classes, real numbers: the left half is bright, or the right one, more or less so."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    pixels = rng.normal(0.3, 0.03, (n, 1, 8, 8))
    bright = rng.normal(0.3, 0.08, n)
    for picture, label, more in zip(pixels, labels, bright, strict=True):
        picture[..., 4 * label : 4 * label + 4] += more
    return _dataset(pixels.clip(0, 1).astype(np.float32), labels, 2)


def _dataset(pixels: np.ndarray, labels: np.ndarray, classes: int | None) -> Dataset:
    return Dataset.from_arrays(pixels, None if classes is None else labels, classes=classes)
