"""gaussians-2d: the mixture of 25 Gaussians of the mean-embedding papers, with its exact density.

DP-MERF (thesis app. B, eq. 20) and DP-HP (app. C, §5.1): Gaussians of standard deviation 0.2 on the
points of a 5×5 grid of unit spacing, five to each of 5 classes, the class of row r and column c
being (2r + c) mod 5, so that equal classes never touch. 4000 points from each, one in ten kept for
testing: 90,000 + 10,000. The data is drawn, so everything about it is PUBLIC; as a private set it
serves to see what a method loses.

The score of the papers is the negative log-likelihood −log p(x, y) of the generated points,
`-joint_log_density(points, labels).mean()`. Differs from the papers: their code normalises each
Gaussian by √(2π)·σ, as in one dimension, instead of 2π·σ², so that a published value is larger
than the exact one by log(1/(√(2π)·0.2)) = 0.6904 a point.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.data.builders import write_arrays
from sfumato.errors import BadInput

Floats = np.ndarray[Any, np.dtype[np.float64]]

GRID = 5
CLASSES = 5
SIGMA = 0.2
POINTS_EACH = 4000
TEST_EACH = 400
_SEED = 0

CENTRES: Floats = np.array([(r, c) for r in range(GRID) for c in range(GRID)], np.float64)
CENTRE_CLASSES = np.array([(2 * r + c) % CLASSES for r in range(GRID) for c in range(GRID)])


def log_density(points: Any) -> Floats:
    """log p(x) of each point (n, 2) under the whole mixture."""
    return _log_sum(_log_components(points))


def class_log_density(points: Any, label: int) -> Floats:
    """log p(x | y = label): the five Gaussians of one class alone."""
    if label not in range(CLASSES):
        raise BadInput(f"There is no class {label!r} in gaussians-2d; use 0 to {CLASSES - 1}.")
    mine = np.equal(CENTRE_CLASSES, label)
    return _log_sum(_log_components(points)[:, mine]) + math.log(len(CENTRES) / mine.sum())


def joint_log_density(points: Any, labels: Any) -> Floats:
    """log p(x, y) of each point and its label, whose negative mean is the papers' score."""
    components = _log_components(points)
    codes = np.asarray(labels)
    if codes.shape != (len(components),):
        raise BadInput("Points and labels are not equally many; pass one label a point.")
    others = codes[:, None] != CENTRE_CLASSES[None, :]  # (n, 25)
    return _log_sum(np.where(others, -np.inf, components))


def _log_components(points: Any) -> Floats:
    """log of each Gaussian's share of the density at each point, (n, 25)."""
    x = np.asarray(points, np.float64)
    if x.ndim != 2 or x.shape[1] != 2:
        raise BadInput("Points of gaussians-2d are pairs of numbers; pass an array (n, 2).")
    squares = ((x[:, None, :] - CENTRES[None, :, :]) ** 2).sum(axis=2)  # (n, 25)
    share = math.log(len(CENTRES)) + math.log(2 * math.pi * SIGMA**2)
    return np.asarray(-squares / (2 * SIGMA**2) - share)


def _log_sum(terms: Floats) -> Floats:
    top = terms.max(axis=1)
    # A label outside 0 … 4 belongs to no Gaussian: its density is 0, its logarithm −∞, not NaN.
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(safe + np.log(np.exp(terms - safe[:, None]).sum(axis=1)))


def draw(staging: Path) -> None:
    """Make the files of the set."""
    # RandomState's stream is frozen for ever; that of numpy's newer generators may change.
    stream = np.random.RandomState(_SEED)
    noise = stream.standard_normal((len(CENTRES), POINTS_EACH, 2))
    points = (CENTRES[:, None, :] + SIGMA * noise).astype(np.float32)  # (25, 4000, 2)
    for split, chosen in (("train", slice(TEST_EACH, None)), ("test", slice(TEST_EACH))):
        some = points[:, chosen].swapaxes(0, 1)  # point by point, so that classes alternate
        labels = np.tile(CENTRE_CLASSES, len(some))
        write_arrays(staging, split, some.reshape(-1, 2), labels)
