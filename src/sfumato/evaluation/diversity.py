"""Diversity within classes: the mean LPIPS distance (Zhang et al. 2018) of two synthetic images of one class.

A generator that repeats itself has a small one. Pairs share no image, so they are independent and the interval is that of a
mean. `diversity.lpips` reads synthetic images only; `diversity.lpips-real` measures real ones, as the value to compare with, and
is not covered by ε.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
import torch

from sfumato.errors import BadInput
from sfumato.evaluation.metrics import Comparison, Measurement, Step, normal, register

LPIPS = "lpips-alexnet"
LEAST_SIDE = 64  # AlexNet's first layers shrink an image eightfold before a distance is taken
_PAIRS = 1000
_BATCH = 50


def class_pairs(labels: torch.Tensor | None, size: int, most: int, seed: int) -> torch.Tensor:
    """(pairs, 2) indices of records of one class, each record at most once, classes as even as they can be."""
    codes = torch.zeros(size, dtype=torch.int64) if labels is None else labels
    draw = np.random.default_rng(seed)
    by_class = []
    for code in codes.unique():
        members = draw.permutation(torch.nonzero(codes == code)[:, 0].numpy())
        pairs = members[: len(members) // 2 * 2].reshape(-1, 2)
        by_class.append(pairs)
    each = max(1, most // max(1, len(by_class)))
    found = np.concatenate([pairs[:each] for pairs in by_class])
    return torch.from_numpy(found)


def _measure(
    role: Literal["synthetic", "real"], comparison: Comparison, seed: int, step: Step
) -> Measurement:
    rows, labels = comparison.synthetic if role == "synthetic" else comparison.real
    pairs = class_pairs(labels, len(rows), _PAIRS, seed)
    if len(pairs) < 2:
        raise BadInput(
            f"Diversity needs at least two pairs of {role} images of one class; give more records."
        )
    embed = comparison.network(LPIPS)
    distances = []
    with torch.inference_mode():
        for part in pairs.split(_BATCH):
            first, second = (embed(_large(rows[part[:, side]])) for side in (0, 1))
            distances.append((first - second).double().square().sum(1))
            step(len(part) / len(pairs))
    values = torch.cat(distances).numpy()
    low, high = normal(values)
    schema = comparison.schema
    notes = []
    if schema.labelled and labels is not None:
        counts = torch.bincount(labels, minlength=schema.n_classes)
        lonely = [name for name, n in zip(schema.classes, counts, strict=True) if n < 2]
        if lonely:
            shown = ", ".join(lonely[:5]) + (", …" if len(lonely) > 5 else "")
            notes.append(f"no two images of {shown}")
    if not values.any():
        notes.append("all images of a class are the same")
    return Measurement(float(values.mean()), max(0.0, low), high, "; ".join(notes))


def _large(pixels: torch.Tensor) -> torch.Tensor:
    side = min(pixels.shape[2:])
    if side >= LEAST_SIDE:
        return pixels
    return torch.nn.functional.interpolate(
        pixels, scale_factor=LEAST_SIDE / side, mode="bilinear", align_corners=False
    )


register(
    "diversity.lpips",
    "mean LPIPS distance of two synthetic images of one class",
    kinds=("images",),
    reads="nothing",
)(partial(_measure, "synthetic"))
register(
    "diversity.lpips-real",
    "mean LPIPS distance of two real images of one class, to compare with",
    kinds=("images",),
)(partial(_measure, "real"))
