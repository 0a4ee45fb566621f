"""Likelihood of synthetic points where the density is known: the 25 Gaussians of `gaussians-2d`.

The score of the mean-embedding papers: the mean of −log p(x, y) over the synthetic points under the exact joint density.
Less is better, down to the entropy of the mixture; a generator that sits on one centre scores below that, so
`modes.covered` belongs beside it. The density is public: no real record is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sfumato.data import Schema, gaussians, schema_of
from sfumato.errors import BadInput
from sfumato.evaluation.metrics import Comparison, Measurement, Step, normal, register, wilson

Array = np.ndarray[Any, Any]

# −E log p(x, y) of the mixture itself, were the Gaussians not to overlap: log 25 + log(2πe·0.2²).
ENTROPY = math.log(len(gaussians.CENTRES)) + math.log(2 * math.pi * math.e * gaussians.SIGMA**2)


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


@register(
    "nll",
    "mean −log p(x, y) of the synthetic points under the exact density (gaussians-2d)",
    kinds=("table",),
    presets=("paper",),
    reads="nothing",
    where=_is_mixture,
)
def nll(comparison: Comparison, seed: int, step: Step) -> Measurement:
    losses = negative_log_likelihood(*_points(comparison))
    step(1.0)
    value = float(losses.mean())
    note = f"points of the mixture itself score {ENTROPY:.3f}; published values are 0.690 larger by their normalisation"
    return Measurement(value, *normal(losses), note)


@register(
    "modes.covered",
    "share of the 25 Gaussians that the synthetic points cover (gaussians-2d)",
    kinds=("table",),
    presets=("paper",),
    reads="nothing",
    where=_is_mixture,
)
def covered(comparison: Comparison, seed: int, step: Step) -> Measurement:
    marks = modes_covered(*_points(comparison))
    step(1.0)
    hits = int(marks.sum())
    return Measurement(hits / len(marks), *wilson(hits, len(marks)), f"{hits} of {len(marks)}")
