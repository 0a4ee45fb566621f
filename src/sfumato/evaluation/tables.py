"""Metrics of tables alone: marginals, and the likelihood of points whose density is known.

**Marginals**: how far apart two tables are on every few columns at once. The α-way error of PrivBayes and the papers: for each
set of α feature columns, half the L1 distance (total variation) of the two joint histograms; averaged over all sets, or over 300
drawn at random if there are more. Numbers are put into 15 bins of equal width on the Schema's public range, missing values into
a cell of their own. Reads real rows; not covered by ε. Three kinds: `marginals.3way` against the held-out rows;
`marginals-train.3way` against the TRAINING rows and over all sets, as the papers say that they measure; `marginals-paper.3way`
the same with the cells of the authors' code (DP-HP's `submat_joint`), whose histograms have one bin too few: the two largest
codes of a column share a cell, and a column of two values counts for nothing. Published numbers are of that kind, and smaller: on
the authors' DP-MERF sample (𝒟*, ε = 1) it gives the printed 0.235, every value in its own cell 0.266.

**Likelihood** of synthetic points where the density is known: the 25 Gaussians of `gaussians-2d`. The score of the
mean-embedding papers: the mean of −log p(x, y) over the synthetic points under the exact joint density. Less is better, down to
the entropy of the mixture; a generator that sits on one centre scores below that, so `modes.covered` belongs beside it. The
density is public: no real record is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Literal

import numpy as np
import torch

from sfumato.data import Schema, gaussians, schema_of
from sfumato.errors import BadInput
from sfumato.evaluation.metrics import (
    Array,
    Comparison,
    Family,
    Measurement,
    Step,
    around,
    normal,
    register,
)

BINS = 15
_MOST = 300
_EVERY = 1_000_000
_REPLICATES = 30
# −E log p(x, y) of the mixture itself, were the Gaussians not to overlap: log 25 + log(2πe·0.2²).
ENTROPY = math.log(len(gaussians.CENTRES)) + math.log(2 * math.pi * math.e * gaussians.SIGMA**2)


# ------------------------------------------------------------------------- marginals


def discretise(schema: Schema, rows: torch.Tensor, bins: int = BINS) -> tuple[Array, Array]:
    """Codes (n, columns) and how many codes each column has; the last one stands for a missing value."""
    codes, sizes = [], []
    for index, column in enumerate(schema.columns):
        values = rows[:, index].double().numpy()
        absent = np.isnan(values)
        filled = np.where(absent, 0.0, values)
        if column.kind == "numerical":
            assert column.low is not None and column.high is not None
            share = (filled - column.low) / (column.high - column.low)
            size = bins
            code = np.floor(np.clip(share, 0.0, 1.0) * bins).astype(np.int64).clip(0, bins - 1)
        else:
            size = len(column.categories)
            code = filled.astype(np.int64).clip(0, size - 1)
        codes.append(np.where(absent, size, code))
        sizes.append(size + 1)
    return np.stack(codes, 1), np.array(sizes)


def subsets(columns: int, alpha: int, seed: int, most: int = _MOST) -> list[tuple[int, ...]]:
    """All sets of `alpha` columns, or `most` different ones drawn by `seed`."""
    if math.comb(columns, alpha) <= most:
        return list(combinations(range(columns), alpha))
    draw = np.random.default_rng(seed)
    found: dict[tuple[int, ...], None] = {}
    while len(found) < most:
        found[tuple(sorted(draw.choice(columns, alpha, replace=False).tolist()))] = None
    return list(found)


def joint_cells(first: Array, second: Array, sizes: Array) -> tuple[Array, Array, int]:
    """The cell of each row of two tables of codes, numbered over the cells that occur."""
    both = np.concatenate([first, second])
    flat = np.zeros(len(both), np.int64)
    for column in range(both.shape[1]):
        # Numbering afresh after every column keeps the numbers small however wide the columns are.
        flat = np.unique(flat * int(sizes[column]) + both[:, column], return_inverse=True)[1]
    return flat[: len(first)], flat[len(first) :], int(flat.max()) + 1


def total_variation(p: Array, q: Array) -> float:
    return 0.5 * float(np.abs(p - q).sum())


def fewer_cells(codes: Array, sizes: Array) -> tuple[Array, Array]:
    """Codes as the authors' histograms see them: the two largest of a column, missing values aside, are one."""
    last = np.maximum(sizes - 3, 0)  # `sizes` counts a cell for missing values
    absent = codes == sizes - 1
    return np.where(absent, last + 1, np.minimum(codes, last)), last + 2


Kind = Literal["test", "train", "paper"]


def _measure_marginals(
    alpha: int, kind: Kind, comparison: Comparison, seed: int, step: Step
) -> Measurement:
    schema = comparison.schema
    columns = len(schema.columns)
    if columns < alpha:
        raise BadInput(
            f"A {alpha}-way marginal needs {alpha} feature columns and this table has {columns}; leave it out."
        )
    held = comparison.real if kind == "test" else comparison.train
    (real, sizes), (fake, _) = (
        discretise(schema, rows) for rows in (held[0], comparison.synthetic[0])
    )
    if kind == "paper":
        (real, fewer), (fake, _) = (fewer_cells(codes, sizes) for codes in (real, fake))
        sizes = fewer
    n, m = len(real), len(fake)
    draw = np.random.default_rng(seed)
    again = [
        (
            draw.multinomial(n, np.full(n, 1 / n)) / n,
            draw.multinomial(m, np.full(m, 1 / m)) / m,
        )
        for _ in range(_REPLICATES)
    ]
    chosen = subsets(columns, alpha, seed, _MOST if kind == "test" else _EVERY)
    values, replicates, floor = [], np.zeros(_REPLICATES), 0.0
    for subset in chosen:
        index = list(subset)
        true, made, cells = joint_cells(real[:, index], fake[:, index], sizes[index])
        p, q = np.bincount(true, minlength=cells) / n, np.bincount(made, minlength=cells) / m
        values.append(total_variation(p, q))
        for k, (w, v) in enumerate(again):
            replicates[k] += total_variation(
                np.bincount(true, w, minlength=cells), np.bincount(made, v, minlength=cells)
            ) / len(chosen)
        floor += float(np.sqrt(p * (1 - p) * (1 / n + 1 / m) / (2 * math.pi)).sum()) / len(chosen)
        step(1.0 / len(chosen))
    value = float(np.mean(values))
    whole = math.comb(columns, alpha)
    of = f"all {whole:,}" if len(chosen) == whole else f"{len(chosen)} of {whole:,}"
    note = f"mean over {of} sets of columns"
    # The floor follows from the number of records, which of training data may be private.
    if kind == "test" or comparison.tells_size("train"):
        note += f"; two samples of one distribution would show about {floor:.3f}"
    return Measurement.of_share(value, around(value, replicates), _LOUD[kind], note)


_TRAINING = (
    "against the TRAINING rows: it measures them, so publish it only where that is acceptable"
)
_LOUD: dict[Kind, str] = {
    "test": "",
    "train": _TRAINING,
    "paper": f"{_TRAINING}; cells of the authors' code, the two largest values of a column in one",
}
_MARGINALS = Family(
    "Distance of marginals", "Total variation, from 0 to 1; less is better.", "share"
)
_COUNTS = {2: "two", 3: "three", 4: "four"}
_AGAINST: dict[Kind, tuple[str, str, str]] = {
    "test": ("marginals", "", ""),
    "train": ("marginals-train", ", all sets, against the TRAINING rows", ", training rows"),
    "paper": (
        "marginals-paper",
        ", all sets, against the TRAINING rows, in the cells of the papers' code",
        ", training rows, the papers' cells",
    ),
}
for _kind, (_stem, _more, _short) in _AGAINST.items():
    for _alpha, _count in _COUNTS.items():
        register(
            f"{_stem}.{_alpha}way",
            f"mean total variation distance of {_alpha}-way marginals{_more} (less is better)",
            title=f"{_count} columns at a time{_short}",
            family=_MARGINALS,
            kinds=("table",),
            presets=("paper",) if _kind == "test" and _alpha > 2 else (),
            reads="test" if _kind == "test" else "train",
            where=partial(lambda alpha, schema: len(schema.columns) >= alpha, _alpha),
        )(partial(_measure_marginals, _alpha, _kind))


# ------------------------------------------------------------------------- likelihood


def negative_log_likelihood(
    points: Array,
    labels: Array,
    log_density: Callable[[Array, Array], Array] = gaussians.joint_log_density,
) -> Array:
    """−log p(x, y) of each point."""
    return -np.asarray(log_density(points, labels), np.float64)


def modes_covered(points: Array, labels: Array) -> Array:
    """Which Gaussians (25,) hold, within three deviations and with the right label, a tenth of the points due to them."""
    gaps = points[:, None, :] - gaussians.CENTRES[None, :, :]  # (n, 25, 2)
    near = np.square(gaps).sum(2) <= (3 * gaussians.SIGMA) ** 2
    near &= labels[:, None] == gaussians.CENTRE_CLASSES[None, :]
    return near.sum(0) >= max(1.0, 0.1 * len(points) / len(gaussians.CENTRES))


def _is_mixture(schema: Schema) -> bool:
    wanted, _ = schema_of("gaussians-2d")
    return schema.columns == wanted.columns and schema.n_classes == wanted.n_classes


def _points(comparison: Comparison) -> tuple[Array, Array]:
    if not _is_mixture(comparison.schema):
        raise BadInput(
            "The exact density is known for gaussians-2d only; evaluate on gaussians-2d:test or leave this metric out."
        )
    rows, labels = comparison.synthetic
    assert labels is not None
    if not bool(rows.isfinite().all()):
        raise BadInput("Some synthetic points hold NaN or infinity; drop these records.")
    return rows.double().numpy(), labels.numpy()


_register = partial(
    register, kinds=("table",), presets=("paper",), reads="nothing", where=_is_mixture
)


@_register(
    "nll",
    "mean −log p(x, y) of the synthetic points under the exact density (gaussians-2d)",
    title="negative log-likelihood",
    family=Family("Likelihood under the exact density", "Less is better."),
)
def nll(comparison: Comparison, seed: int, step: Step) -> Measurement:
    losses = negative_log_likelihood(*_points(comparison))
    step(1.0)
    value = float(losses.mean())
    note = f"points of the mixture itself score {ENTROPY:.3f}; published values are 0.690 larger by their normalisation"
    return Measurement(value, *normal(losses), note)


@_register(
    "modes.covered",
    "share of the 25 Gaussians that the synthetic points cover (gaussians-2d)",
    title="Gaussians covered",
    family=Family("Modes", "Share of the 25 Gaussians; more is better.", "share"),
)
def covered(comparison: Comparison, seed: int, step: Step) -> Measurement:
    marks = modes_covered(*_points(comparison))
    step(1.0)
    return Measurement.of_hits(marks, f"{int(marks.sum())} of {len(marks)}")
