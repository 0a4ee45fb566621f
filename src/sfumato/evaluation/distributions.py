"""Distributions of images: precision and recall (PRD) and different bins (NDB) over clusters; diversity within classes.

PRD (Sajjadi et al. 2018): the features of both sets together are clustered into 20; from the two histograms p (real) and q
(synthetic) come pairs α(λ) = Σ min(λp, q), β(λ) = Σ min(p, q/λ), one for each trade-off λ; F₈ weighs recall, F₁⸝₈ precision. NDB
(Richardson & Weiss 2018): 50 Voronoi bins of the real images; a bin differs if a two-sample test at 5 % says so. Both read
real images and are not covered by ε.

Diversity: the mean LPIPS distance (Zhang et al. 2018) of two synthetic images of one class. A generator that repeats itself has
a small one. Pairs share no image, so they are independent and the interval is that of a mean. `diversity.lpips` reads
synthetic images only; `diversity.lpips-real` measures real ones, as the value to compare with, and is not covered by ε.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import numpy as np
import torch
from sklearn.cluster import KMeans

from sfumato.errors import BadInput
from sfumato.evaluation.frechet import INCEPTION
from sfumato.evaluation.metrics import (
    NORMAL_95,
    Array,
    Comparison,
    Family,
    Measurement,
    Step,
    around,
    first_few,
    joined,
    normal,
    register,
)

CLUSTERS = 20
BINS = 50
_RUNS = 5
_REPLICATES = 200
LPIPS = "lpips-alexnet"
LEAST_SIDE = 64  # AlexNet's first layers shrink an image eightfold before a distance is taken
_PAIRS = 1000
_BATCH = 50


# ------------------------------------------------------------------------- histograms over clusters


def prd_curve(real: Array, synthetic: Array, angles: int = 1001) -> tuple[Array, Array]:
    """Precision and recall (…, angles) of histograms (…, clusters) that sum to one; λ = tan of equally spaced angles."""
    slope = np.tan(np.linspace(1e-6, math.pi / 2 - 1e-6, angles))[:, None]
    p, q = real[..., None, :], synthetic[..., None, :]
    precision = np.minimum(p * slope, q).sum(-1)
    recall = precision / slope[:, 0]
    return precision.clip(0, 1), recall.clip(0, 1)


def prd_scores(real: Array, synthetic: Array, beta: float = 8.0) -> tuple[Array, Array]:
    """(max F_β, max F_{1/β}) of the curve: recall-heavy and precision-heavy."""
    precision, recall = prd_curve(real, synthetic)

    def best(weight: float) -> Array:
        below = weight**2 * precision + recall
        scores = (1 + weight**2) * precision * recall / np.where(below > 0, below, 1.0)
        return scores.max(-1)

    return best(beta), best(1 / beta)


def cluster_counts(
    real: Array, synthetic: Array, clusters: int, seed: int, *, on: str
) -> tuple[Array, Array]:
    """How many records of each set fall into k-means clusters fitted `on` "both" sets or the "real" one."""
    fitted = np.concatenate([real, synthetic]) if on == "both" else real
    distinct = len(np.unique(fitted, axis=0))
    model = KMeans(min(clusters, distinct), n_init=1, random_state=seed)
    model.fit(fitted)
    first, second = (
        np.bincount(model.predict(rows), minlength=clusters) for rows in (real, synthetic)
    )
    return first, second


def different_bins(real: Array, synthetic: Array) -> Array:
    """Which bins (…, bins) of two histograms of counts differ at the 5 % level (pooled two-proportion z-test)."""
    n, m = real.sum(-1, keepdims=True), synthetic.sum(-1, keepdims=True)
    pooled = (real + synthetic) / (n + m)
    deviation = np.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    gap = np.abs(real / n - synthetic / m)
    return gap > NORMAL_95 * deviation


def _sets(
    comparison: Comparison, features: str, seed: int, step: Step, least: int
) -> tuple[Array, Array, list[str]]:
    fake, true = comparison.both_features(features, seed, step, least)
    notes = [comparison.drawn_note(features)]
    if bool((fake == fake[:1]).all()):
        notes.append("all synthetic records have the same features")
    return true.numpy(), fake.numpy(), notes


def _measure_prd(which: int, comparison: Comparison, seed: int, step: Step) -> Measurement:
    real, synthetic, notes = _sets(comparison, INCEPTION, seed, step, CLUSTERS)

    def compute() -> tuple[Array, Array]:
        """Scores (2,) and their bootstrap replicates (2, replicates), averaged over runs of k-means."""
        draw = np.random.default_rng(seed)
        # Clusters of the union favour the larger set, so the sets are cut to one size, as in the paper.
        size = min(len(real), len(synthetic))
        scores, replicates = np.zeros((_RUNS, 2)), np.zeros((_RUNS, 2, _REPLICATES))
        for run in range(_RUNS):
            true, fake = (
                rows[draw.choice(len(rows), size, replace=False)] for rows in (real, synthetic)
            )
            p, q = (c / size for c in cluster_counts(true, fake, CLUSTERS, seed + run, on="both"))
            scores[run] = prd_scores(p, q)
            again = (draw.multinomial(size, share, _REPLICATES) / size for share in (p, q))
            replicates[run] = prd_scores(next(again), next(again))
            step(0.0)
        return scores.mean(0), replicates

    scores, replicates = comparison.once(("prd", seed), compute)
    step(0.1)
    value = float(scores[which])
    # One run's spread: runs share their records, so their mean is not steadier than that.
    spread = [around(value, replicates[run, which]) for run in range(_RUNS)]
    low, high = (float(np.mean([pair[end] for pair in spread])) for end in (0, 1))
    return Measurement.of_share(value, (low, high), *notes)


_PRD = Family("Precision and recall of distributions", "More is better.", "share")
for _which, (_name, _weighed) in enumerate((("f8", "recall (F8)"), ("f1-8", "precision (F1/8)"))):
    register(
        f"prd.{_name}",
        f"precision-recall of distributions, weighing {_weighed}",
        title=_weighed,
        family=_PRD,
        kinds=("images",),
    )(partial(_measure_prd, _which))


@register(
    "ndb",
    f"share of {BINS} bins of the real images that hold another share of synthetic ones (NDB/K)",
    title="bins that differ (NDB)",
    family=Family(
        "Shares of similar images", "Less is better; 0.05 is expected of equal sets.", "share"
    ),
    kinds=("images",),
)
def ndb(comparison: Comparison, seed: int, step: Step) -> Measurement:
    real, synthetic, notes = _sets(comparison, "pixels", seed, step, BINS)
    # As in the paper, every pixel counts alike; a constant one says nothing.
    scale = real.std(0)
    scale[scale == 0] = 1.0
    counts = cluster_counts(real / scale, synthetic / scale, BINS, seed, on="real")
    step(0.1)
    used = counts[0] + counts[1] > 0
    value = float(different_bins(*counts)[used].mean())
    draw = np.random.default_rng(seed)
    again = [draw.multinomial(count.sum(), count / count.sum(), _REPLICATES) for count in counts]
    interval = around(value, different_bins(*again)[:, used].mean(1))
    notes.append("0.05 is expected of equal distributions, more of larger samples that differ")
    return Measurement.of_share(value, interval, *notes)


# ------------------------------------------------------------------------- diversity within classes


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


def _measure_diversity(
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
            notes.append(f"no two images of {first_few(lonely)}")
    if not values.any():
        notes.append("all images of a class are the same")
    return Measurement(float(values.mean()), max(0.0, low), high, joined(notes))


def _large(pixels: torch.Tensor) -> torch.Tensor:
    side = min(pixels.shape[2:])
    if side >= LEAST_SIDE:
        return pixels
    return torch.nn.functional.interpolate(
        pixels, scale_factor=LEAST_SIDE / side, mode="bilinear", align_corners=False
    )


_register_diversity = partial(
    register,
    family=Family(
        "Diversity within a class", "LPIPS distance; good is as much as the real images have."
    ),
    kinds=("images",),
)
_register_diversity(
    "diversity.lpips",
    "mean LPIPS distance of two synthetic images of one class",
    title="synthetic images",
    reads="nothing",
)(partial(_measure_diversity, "synthetic"))
_register_diversity(
    "diversity.lpips-real",
    "mean LPIPS distance of two real images of one class, to compare with",
    title="real images, to compare with",
)(partial(_measure_diversity, "real"))
