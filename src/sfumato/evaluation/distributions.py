"""Histograms over clusters: precision and recall of distributions (PRD), and the number of different bins (NDB).

PRD (Sajjadi et al. 2018): the features of both sets together are clustered into 20; from the two histograms p (real) and q
(synthetic) come pairs α(λ) = Σ min(λp, q), β(λ) = Σ min(p, q/λ), one for each trade-off λ; F₈ weighs recall, F₁⸝₈ precision. NDB
(Richardson & Weiss 2018): 50 Voronoi bins of the real images; a bin differs if a two-sample test at 5 % says so. Both read
real images and are not covered by ε.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from sklearn.cluster import KMeans

from sfumato.errors import BadInput
from sfumato.evaluation.frechet import INCEPTION
from sfumato.evaluation.metrics import Comparison, Measurement, Step, around, register

Array = np.ndarray[Any, Any]
CLUSTERS = 20
BINS = 50
_RUNS = 5
_REPLICATES = 200


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
    return gap > 1.959963984540054 * deviation


def _sets(
    comparison: Comparison, features: str, seed: int, step: Step, least: int
) -> tuple[Array, Array, list[str]]:
    fake = comparison.features("synthetic", features, seed, step)
    step(0.4)
    true = comparison.features("real", features, seed, step)
    step(0.4)
    if min(len(fake), len(true)) < least:
        raise BadInput(f"This metric needs at least {least} images of each set; give more records.")
    notes = [comparison.drawn_note()]
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
    step(0.2)
    value = float(scores[which])
    # One run's spread: runs share their records, so their mean is not steadier than that.
    spread = [around(value, replicates[run, which]) for run in range(_RUNS)]
    low, high = (float(np.mean([pair[end] for pair in spread])) for end in (0, 1))
    return Measurement(value, max(0.0, low), min(1.0, high), "; ".join(filter(None, notes)))


register("prd.f8", "precision-recall of distributions, weighing recall (F8)", kinds=("images",))(
    partial(_measure_prd, 0)
)
register(
    "prd.f1-8", "precision-recall of distributions, weighing precision (F1/8)", kinds=("images",)
)(partial(_measure_prd, 1))


@register(
    "ndb",
    f"share of {BINS} bins of the real images that hold another share of synthetic ones (NDB/K)",
    kinds=("images",),
)
def ndb(comparison: Comparison, seed: int, step: Step) -> Measurement:
    real, synthetic, notes = _sets(comparison, "pixels", seed, step, BINS)
    # As in the paper, every pixel counts alike; a constant one says nothing.
    scale = real.std(0)
    scale[scale == 0] = 1.0
    counts = cluster_counts(real / scale, synthetic / scale, BINS, seed, on="real")
    step(0.2)
    used = counts[0] + counts[1] > 0
    value = float(different_bins(*counts)[used].mean())
    draw = np.random.default_rng(seed)
    again = [draw.multinomial(count.sum(), count / count.sum(), _REPLICATES) for count in counts]
    low, high = around(value, different_bins(*again)[:, used].mean(1))
    notes.append("0.05 is expected of equal distributions, more of larger samples that differ")
    return Measurement(value, max(0.0, low), min(1.0, high), "; ".join(filter(None, notes)))
