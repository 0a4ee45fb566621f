"""The best of many samples: a generator's slips left out, by the generator's own lights.

A generator that matches noisy averages may draw, among many good sevens, some that look like nines: averages hardly see them,
and whoever learns from the samples learns them as sevens. Most samples of a class are right, so a classifier that learnt from
others of the same generator knows better. Everything here is made of samples: post-processing, at no cost to privacy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from sfumato.errors import BadInput

TEACHING = 8_000  # samples that the classifier learns from
_SEED = 2**40 + 1  # of these, beyond the seeds that a user can give
_SIDE = 32  # pixels a side that the classifier sees at most

Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


def check_keep(keep: float) -> None:
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0.1 <= keep <= 1:
        raise BadInput(
            f"keep is the share of the drawn images that stay, from 0.1 to 1 (0.75, say), not {keep!r}."
        )


def most_likely(draw: Draw, n: int, keep: float, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """`n` of n ÷ `keep` labelled images: the same share of each class, and those likeliest to be of it."""
    images, labels = draw(math.ceil(n / keep), random)
    best = np.lexsort((-_belief(draw, images, labels), labels.numpy()))  # by class, likeliest first
    counts = np.bincount(labels.numpy())
    ends = np.cumsum(counts)
    chosen = [
        best[end - count : end - count + some]
        for end, count, some in zip(ends, counts, _shares(counts, n), strict=True)
    ]
    kept = torch.from_numpy(np.sort(np.concatenate(chosen)))  # as they were drawn
    return images[kept], labels[kept]


def _shares(counts: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """`n` in the proportions of `counts`, in whole numbers, none above its count: largest remainders."""
    whole, left = np.divmod(counts * n, counts.sum())
    whole[np.argsort(-left, kind="stable")[: n - whole.sum()]] += 1
    return whole


def _belief(draw: Draw, images: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """How likely each image's label is to a classifier that has seen other samples; 0 if it has seen none of that class."""
    # Here: scikit-learn takes a second to be imported, which every command would wait for.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    lessons, known = draw(TEACHING, torch.Generator().manual_seed(_SEED))
    if len(known.unique()) == 1:
        return (labels == known[0]).numpy().astype(np.float64)
    teacher = MLPClassifier((100,), alpha=0.01, max_iter=8, random_state=0)
    with warnings.catch_warnings():
        # A few epochs are meant: more of them learn the slips.
        warnings.simplefilter("ignore", ConvergenceWarning)
        teacher.fit(_seen(lessons), known.numpy())
    likely = np.concatenate([teacher.predict_proba(_seen(some)) for some in images.split(4096)])
    full = np.zeros((len(labels), int(max(labels.max(), known.max())) + 1))
    full[:, teacher.classes_] = likely
    return full[np.arange(len(labels)), labels.numpy()]


def _seen(images: Tensor) -> NDArray[np.float32]:
    """Images, made small, as rows of numbers in [0, 1]."""
    pixels = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    if max(pixels.shape[2:]) > _SIDE:
        high, wide = (min(side, _SIDE) for side in pixels.shape[2:])
        pixels = functional.adaptive_avg_pool2d(pixels, (high, wide))
    return pixels.flatten(1).numpy()
