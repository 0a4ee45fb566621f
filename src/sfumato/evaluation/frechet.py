"""Fréchet and kernel distances: how far the features of synthetic images lie from those of real ones.

Features are the 2048 pooled activations of the FID's Inception network (public weights). FID (Heusel et al. 2017) is the
Fréchet distance of the two Gaussians with the features' moments, |m₁ − m₂|² + tr(S₁ + S₂ − 2(S₁S₂)^½); KID (Bińkowski et
al. 2018) is the squared MMD with the kernel (x·y/dim + 1)³, estimated without bias.

Inception has learnt photographs. `frechet.judge` takes the same distance where these very images are told apart: in the last
hidden layer of the project's convolutional network, trained on the REAL TRAINING images with a fixed seed. All of these read
real images and are not covered by ε.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from scipy.stats import t as student
from torch import nn

from sfumato.errors import BadInput, SfumatoError
from sfumato.evaluation.classifiers import ConvNet
from sfumato.evaluation.metrics import (
    NORMAL_95,
    Array,
    Comparison,
    Family,
    Measurement,
    Step,
    colour,
    in_short,
    joined,
    register,
)
from sfumato.files import atomic_path

INCEPTION = "fid-inception"
_DISTANCES = Family("Distance of the images", "Between Inception features; less is better.")
_JUDGED = Family(
    "Distance to a judge of these images",
    "Between features of a network trained on the real training images; less is better. Only numbers of one data set compare.",
)
_JUDGE_SEED = 0  # one network for all runs on a data set, whatever their seed
_CHUNK = 1024
PAPER_SAMPLES, PAPER_RECORDS = 5_000, 60_000  # of fid.paper; all of CIFAR-10's training images


class Moments:
    """Mean and covariance of rows that come in pieces, in float64; how they are cut changes rounding only.

    Pieces are merged about their own means (Chan et al. 1983), so a large common offset costs no digits.
    """

    def __init__(self) -> None:
        self.n = 0
        self.mean: Array = np.zeros(0)
        self._scatter: Array = np.zeros((0, 0))

    def add(self, rows: Any) -> None:
        rows = np.asarray(rows, np.float64)
        m = len(rows)
        if m == 0:
            return
        centre = rows.mean(0)
        scatter = (rows - centre).T @ (rows - centre)
        if self.n == 0:
            self.n, self.mean, self._scatter = m, centre, scatter
            return
        gap, total = centre - self.mean, self.n + m
        self._scatter += scatter + np.outer(gap, gap) * (self.n * m / total)
        self.mean = self.mean + gap * (m / total)
        self.n = total

    @property
    def covariance(self) -> Array:
        """Unbiased, with n − 1 below."""
        if self.n < 2:
            raise BadInput(
                "A covariance needs at least two records of each set; give more records."
            )
        return self._scatter / (self.n - 1)


@dataclass(frozen=True)
class FrechetDistance:
    """The distance, its standard error, and the part of it that finite samples of equal distributions would show."""

    value: float
    error: float
    bias: float


def moments_of(features: Any, chunk: int = _CHUNK) -> Moments:
    found = Moments()
    for start in range(0, len(features), chunk):
        found.add(features[start : start + chunk])
    return found


def frechet_distance(first: Moments, second: Moments) -> float:
    """|m₁ − m₂|² + tr S₁ + tr S₂ − 2 Σ√λ, λ the eigenvalues of S₁^½ S₂ S₁^½.

    That matrix is symmetric and has the eigenvalues of S₁S₂, so no square root of an unsymmetric matrix, which fails
    for singular covariances, is needed.
    """
    cov1, cov2 = first.covariance, second.covariance
    root, _ = _roots(cov1)
    product = root @ cov2 @ root
    eigenvalues = np.linalg.eigvalsh((product + product.T) / 2)
    gap = first.mean - second.mean
    shared = float(np.sqrt(eigenvalues.clip(min=0.0)).sum())
    # Rounding may leave a tiny negative number for equal sets.
    return max(0.0, float(gap @ gap + np.trace(cov1) + np.trace(cov2) - 2 * shared))


def frechet(first: Any, second: Any) -> FrechetDistance:
    """The Fréchet distance of two feature sets (n, dim) with its standard error and its bias.

    The error is the delta method's: the distance is smooth in the moments, and its slope in the covariances is
    I − T with T = S₁^(−½)(S₁^½ S₂ S₁^½)^½ S₁^(−½), the optimal map between the Gaussians; each record's influence then has a
    closed form. The bias is the mean distance of two samples of one Gaussian with the second set's covariance, to second order:
    (1/n₁ + 1/n₂)(tr S + ½ Σᵢⱼ (1 + δᵢⱼ) λᵢλⱼ/(λᵢ + λⱼ)).
    """
    one, two = moments_of(first), moments_of(second)
    cov1, cov2 = one.covariance, two.covariance
    # Three decompositions in all: at 2048 features each takes seconds.
    root, inverse = _roots(cov1)
    middle, back = _roots(root @ cov2 @ root)
    gap = one.mean - two.mean
    value = max(0.0, float(gap @ gap + np.trace(cov1) + np.trace(cov2) - 2 * np.trace(middle)))
    error2 = 0.0
    # The map from the second Gaussian to the first is the inverse of the other: S₁^½ (S₁^½ S₂ S₁^½)^(−½) S₁^½.
    for rows, own, way, sign in (
        (first, one, inverse @ middle @ inverse, 1.0),
        (second, two, root @ back @ root, -1.0),
    ):
        influence = []
        for start in range(0, len(rows), _CHUNK):
            x = np.asarray(rows[start : start + _CHUNK], np.float64) - own.mean
            quadratic = np.square(x).sum(1) - ((x @ way) * x).sum(1)
            influence.append(2 * sign * (x @ gap) + quadratic)
        error2 += float(np.concatenate(influence).var(ddof=1)) / own.n
    return FrechetDistance(value, math.sqrt(error2), _bias(cov2, one.n, two.n))


def _bias(covariance: Array, n1: int, n2: int) -> float:
    values = np.linalg.eigvalsh(covariance).clip(min=0.0)
    values = values[values > 1e-12 * max(values.max(), 1e-300)]
    pairs = np.outer(values, values) / np.add.outer(values, values)
    return float((1 / n1 + 1 / n2) * (values.sum() + 0.5 * (pairs.sum() + np.trace(pairs))))


def _roots(matrix: Array) -> tuple[Array, Array]:
    """M^½ and, on its range, M^(−½) of a symmetric matrix without negative eigenvalues."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    deviations = np.sqrt(values.clip(min=0.0))
    keep = deviations > 1e-6 * max(float(deviations.max()), 1e-300)
    inverse = np.where(keep, 1.0 / np.where(keep, deviations, 1.0), 0.0)
    return (vectors * deviations) @ vectors.T, (vectors * inverse) @ vectors.T


def kernel_distance(
    first: Any, second: Any, *, seed: int, subset: int = 1000, subsets: int = 100
) -> tuple[float, float, float]:
    """KID and its 95 % interval: the mean of unbiased estimates on random subsets.

    Differs from the paper: subsets are cut from one shuffle without overlap, shuffle after shuffle, so those of a shuffle are
    independent and their spread gives an honest interval; and they shrink until a shuffle gives ten of them.
    """
    least = min(len(first), len(second))
    if least < 2:
        raise BadInput("KID needs at least two records of each set; give more records.")
    size = max(2, min(subset, least // 10))
    blocks = least // size
    draw = np.random.default_rng(seed)
    rounds = max(1, math.ceil(subsets / blocks))
    found = np.empty((rounds, blocks))
    for shuffle in range(rounds):
        left, right = draw.permutation(len(first)), draw.permutation(len(second))
        for block in range(blocks):
            part = slice(block * size, (block + 1) * size)
            found[shuffle, block] = _mmd(first[left[part]], second[right[part]])
    value = float(found.mean())
    if blocks < 2:
        return value, value, value
    # More shuffles smooth the estimate, but the records stay the same: the spread of one shuffle counts.
    spread = math.sqrt(float(found.var(axis=1, ddof=1).mean()) / blocks)
    half = float(student.ppf(0.975, blocks - 1)) * spread
    return value, value - half, value + half


def _mmd(first: Any, second: Any) -> float:
    x, y = np.asarray(first, np.float64), np.asarray(second, np.float64)
    m, dim = x.shape

    def kernel(a: Array, b: Array) -> Array:
        return (a @ b.T / dim + 1.0) ** 3

    within = 0.0
    for rows in (x, y):
        gram = kernel(rows, rows)
        within += float(gram.sum() - np.trace(gram)) / (m * (m - 1))
    return within - 2.0 * float(kernel(x, y).mean())


@register(
    "fid",
    "Fréchet distance of Inception features (less is better)",
    title="Fréchet distance (FID)",
    family=_DISTANCES,
    kinds=("images",),
    # The papers give it for colour only.
    presets=lambda schema: ("paper", "dpimagebench") if colour(schema) else ("dpimagebench",),
)
def fid(comparison: Comparison, seed: int, step: Step) -> Measurement:
    synthetic, real = comparison.both_features(INCEPTION, seed, step)
    found = frechet(synthetic, real)
    step(0.1)
    notes = [comparison.drawn_note(INCEPTION)]
    least, dim = min(len(synthetic), len(real)), synthetic.shape[1]
    if least <= dim:
        rank = f": a covariance has rank at most {least - 1:,} of {dim:,}"
        notes.append(
            f"fewer records than features{rank if comparison.tells_size('real') else ''}, so the "
            f"estimate is too high, by roughly {found.bias:.3g}; compare only at equal sample sizes"
        )
    elif found.bias > 0.01 * found.value:
        notes.append(f"about {found.bias:.3g} of it is the bias of finite samples")
    half = NORMAL_95 * found.error
    return Measurement(found.value, max(0.0, found.value - half), found.value + half, joined(notes))


@register(
    "fid.paper",
    "FID of 5,000 synthetic images against the real training images, as DP-MEPF's papers have it (less is better)",
    title="Fréchet distance (FID), 5,000 samples, training data",
    family=_DISTANCES,
    kinds=("images",),
    reads="train",
)
def fid_paper(comparison: Comparison, seed: int, step: Step) -> Measurement:
    synthetic = comparison.features("synthetic", INCEPTION, seed, step, most=PAPER_SAMPLES)
    step(0.2)
    train = comparison.features("train", INCEPTION, seed, step, most=PAPER_RECORDS)
    step(0.7)
    found = frechet(synthetic, train)
    step(0.1)
    notes = ["READS THE REAL TRAINING DATA, as the papers do", in_short(comparison.precision)]
    if len(synthetic) < PAPER_SAMPLES:
        notes.append(
            f"of {len(synthetic):,} samples where the papers have {PAPER_SAMPLES:,}, so it is higher, by roughly {found.bias:.3g}"
            if comparison.tells_size("train")
            else f"of {len(synthetic):,} samples where the papers have {PAPER_SAMPLES:,}, so it is higher"
        )
    if len(train) == PAPER_RECORDS and comparison.tells_size("train"):
        notes.append(f"at most {PAPER_RECORDS:,} training images are looked at")
    half = NORMAL_95 * found.error
    note = joined(notes)
    return Measurement(found.value, max(0.0, found.value - half), found.value + half, note)


@register(
    "kid",
    "kernel distance of Inception features, unbiased (less is better, 0 for equal distributions)",
    title="kernel distance (KID)",
    family=_DISTANCES,
    kinds=("images",),
)
def kid(comparison: Comparison, seed: int, step: Step) -> Measurement:
    synthetic, real = comparison.both_features(INCEPTION, seed, step)
    value, low, high = kernel_distance(synthetic, real, seed=seed)
    step(0.1)
    return Measurement(value, low, high, comparison.drawn_note(INCEPTION))


@register(
    "frechet.judge",
    "Fréchet distance in the last hidden layer of a CNN trained on the real training images (less is better)",
    title="Fréchet distance, CNN of the real images",
    family=_JUDGED,
    kinds=("images",),
    presets=("dpimagebench",),
    reads="train",
    where=lambda schema: schema.n_classes >= 2,
)
def judge(comparison: Comparison, seed: int, step: Step) -> Measurement:
    body = _judge(comparison, lambda share: step(0.8 * share))
    rows = {
        "synthetic": comparison.synthetic[0][comparison.chosen("synthetic", seed)],
        "real": comparison.real[0][comparison.chosen("real", seed)],
    }
    synthetic, real = (_hidden(body, part) for part in rows.values())
    step(0.1)
    found = frechet(synthetic, real)
    step(0.1)
    half = NORMAL_95 * found.error
    loud = "READS THE REAL TRAINING DATA: its network learnt from them, so publish it only where that is acceptable"
    bias = (
        f"about {found.bias:.3g} of it is the bias of finite samples"
        if found.bias > 0.01 * found.value
        else ""
    )
    note = joined((loud, comparison.drawn_note(), bias))  # the judge keeps float32
    return Measurement(found.value, max(0.0, found.value - half), found.value + half, note)


def _judge(comparison: Comparison, step: Step) -> nn.Module:
    """All but the last layer of the trained network; of published images it is kept, since anyone can train it."""
    left = 1.0

    def counted(share: float) -> None:
        nonlocal left
        left -= share
        step(share)

    def make() -> nn.Module:
        rows, labels = comparison.train
        assert labels is not None
        present = labels.unique()
        if len(present) < 2:
            raise BadInput(
                "The training images given are all of one class, so a network has nothing to learn; pass all of them."
            )
        classifier, kept = ConvNet(_JUDGE_SEED), comparison.kept_judge(f"cnn.seed{_JUDGE_SEED}")
        if kept is not None and kept.exists():
            try:
                return classifier.restored(rows.shape[1:], len(present), load_file(kept))[0]
            except (SafetensorError, RuntimeError, OSError):
                kept.unlink(missing_ok=True)  # damaged: trained again
        classifier.fit(rows, torch.searchsorted(present, labels), len(present), counted)
        if kept is not None:
            state = {k: v.contiguous() for k, v in classifier.network_.state_dict().items()}
            with suppress(SfumatoError, OSError), atomic_path(kept) as temporary:
                save_file(state, temporary)
        return classifier.network_[0]

    body = comparison.once("judge", make)
    step(max(0.0, left))
    return body


@torch.no_grad()
def _hidden(body: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([body(part) for part in rows.split(500)])
