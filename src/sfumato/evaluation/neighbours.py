"""Nearest neighbours: precision, recall, density, coverage; and whether training records were memorised.

Precision and recall (Kynkäänniemi et al. 2019), density and coverage (Naeem et al. 2020) describe each set by balls that reach
to every record's fifth neighbour within its own set. The memorisation check compares how near synthetic records come to
the TRAINING records with how near unseen test records come (Meehan et al. 2020). Distances are Euclidean, computed block by
block in float64. All of these read real records; memorisation reads the real TRAINING data. Not covered by ε.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy.stats import mannwhitneyu

from sfumato.errors import BadInput
from sfumato.evaluation.classifiers import encoder
from sfumato.evaluation.frechet import INCEPTION
from sfumato.evaluation.metrics import (
    Comparison,
    Family,
    Measure,
    Measurement,
    Step,
    joined,
    normal,
    register,
)

NEIGHBOURS = 5
_BLOCK = 512  # rows of a block: 512 × 60,000 distances take 250 MB


@dataclass(frozen=True)
class Manifolds:
    """Per record: is a synthetic one among the real, a real one among the synthetic, how densely, and is it covered."""

    precise: torch.Tensor  # (synthetic,) bool
    recalled: torch.Tensor  # (real,) bool
    dense: torch.Tensor  # (synthetic,) real balls around the record, divided by k
    covered: torch.Tensor  # (real,) bool


def manifolds(
    synthetic: torch.Tensor,
    real: torch.Tensor,
    *,
    k: int = NEIGHBOURS,
    block: int = _BLOCK,
    step: Step = lambda share: None,
) -> Manifolds:
    if min(len(synthetic), len(real)) <= k:
        raise BadInput(
            f"Precision and recall by {k} nearest neighbours need at least {k + 1} records of each set; give more."
        )
    # Distances do not change when both sets move; small coordinates keep their digits.
    centre = real.double().mean(0)
    fake, true = synthetic.double() - centre, real.double() - centre
    fake_reach, true_reach = _reach(fake, k, block, step), _reach(true, k, block, step)
    precise, dense = [], []
    recalled = torch.zeros(len(true), dtype=torch.bool)
    nearest = torch.full((len(true),), torch.inf, dtype=torch.float64)
    for start in range(0, len(fake), block):
        squares = _squares(fake[start : start + block], true)  # (block, real)
        inside = _inside(squares, true_reach)
        precise.append(inside.any(1))
        dense.append(inside.sum(1) / k)
        recalled |= _inside(squares, fake_reach[start : start + block, None]).any(0)
        nearest = torch.minimum(nearest, squares.min(0).values)
        step(0.0)
    covered = _inside(nearest, true_reach)
    return Manifolds(torch.cat(precise), recalled, torch.cat(dense), covered)


def nearest(
    queries: torch.Tensor,
    among: torch.Tensor,
    *,
    block: int = _BLOCK,
    step: Step = lambda share: None,
) -> torch.Tensor:
    """The distance of each query to its nearest record: (queries,) float64."""
    centre = among.double().mean(0)
    others = among.double() - centre
    found = []
    for part in queries.split(block):
        found.append(_squares(part.double() - centre, others).min(1).values.sqrt())
        step(0.0)
    return torch.cat(found)


def _inside(squares: torch.Tensor, reach: torch.Tensor) -> torch.Tensor:
    """Within the open ball, as Naeem et al. have it; a hair inside, so that rounding does not decide about its rim.

    A copy is inside whatever the reach: among equal images every ball is empty.
    """
    return (squares < reach * (1 - 1e-9)) | (squares == 0)


def _squares(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Squared distances (m, n), never negative, by one matrix product."""
    found = left.square().sum(1)[:, None] + right.square().sum(1)[None, :]
    scale = found.clone()
    found.addmm_(left, right.T, alpha=-2)
    # What rounding leaves of equal rows is zero: sets with copies must not depend on it.
    return torch.where(found <= 1e-13 * scale, 0.0, found)


def _reach(rows: torch.Tensor, k: int, block: int, step: Step) -> torch.Tensor:
    """Squared distance to the k-th nearest other record of the same set."""
    found = []
    for start in range(0, len(rows), block):
        squares = _squares(rows[start : start + block], rows)
        index = torch.arange(len(squares))
        squares[index, start + index] = torch.inf
        found.append(squares.kthvalue(k, dim=1).values)
        step(0.0)
    return torch.cat(found)


# ------------------------------------------------------------------------- precision and recall


def _measure_prdc(
    features: str, what: str, comparison: Comparison, seed: int, step: Step
) -> Measurement:
    fake, true = comparison.both_features(features, seed, step)
    found = comparison.once(("prdc", features, seed), lambda: manifolds(fake, true, step=step))
    step(0.1)
    notes = [comparison.drawn_note(features)]
    for rows, role in ((fake, "synthetic"), (true, "real")):
        if bool((rows == rows[:1]).all()):
            notes.append(f"all {role} records have the same features")
    if what == "density":
        low, high = normal(found.dense.numpy())
        return Measurement(float(found.dense.mean()), max(0.0, low), high, joined(notes))
    marks = {"precision": found.precise, "recall": found.recalled, "coverage": found.covered}[what]
    return Measurement.of_hits(marks, *notes)


_MEANINGS = {
    "precision": "share of synthetic images within the real ones' neighbourhoods",
    "recall": "share of real images within the synthetic ones' neighbourhoods",
    "density": "how many real neighbourhoods hold a synthetic image, over k (about 1 for equal distributions)",
    "coverage": "share of real images with a synthetic one in their neighbourhood",
}
for _name, _features, _space, _heading in (
    ("prdc", INCEPTION, "Inception features", "Fidelity and diversity"),
    ("prdc-pixels", "pixels", "pixels", "Fidelity and diversity, in pixels"),
):
    _family = Family(
        _heading,
        f"Neighbourhoods {'of' if _features == 'pixels' else 'in'} {_space}. Precision and density: synthetic images look "
        "real; recall and coverage: the variety of the real ones is there. More is better; density may exceed 1.",
        "share",
    )
    for _what, _meaning in _MEANINGS.items():
        register(
            f"{_name}.{_what}",
            f"{_meaning}; k = {NEIGHBOURS}, {_space}",
            title=_what,
            family=_family,
            presets=("dpimagebench",) if _name == "prdc" else (),
            kinds=("images",),
        )(partial(_measure_prdc, _features, _what))


# ------------------------------------------------------------------------- memorisation


@dataclass(frozen=True)
class Memorisation:
    """Distances to the nearest training record, and to test and as many training records."""

    synthetic: torch.Tensor  # synthetic → all training records
    test: torch.Tensor  # test → all training records
    to_some: torch.Tensor  # synthetic → as many training records as there are test records
    to_test: torch.Tensor  # synthetic → test records


def _memorisation(comparison: Comparison, seed: int, step: Step) -> Memorisation:
    def compute() -> Memorisation:
        encode = encoder(comparison.schema, comparison.synthetic[0])

        def prepared(rows: torch.Tensor) -> torch.Tensor:
            return encode(rows).flatten(1)

        fake = prepared(comparison.synthetic[0][comparison.chosen("synthetic", seed)])
        test = prepared(comparison.real[0][comparison.chosen("real", seed)])
        train = prepared(comparison.train[0])
        size = min(len(test), len(train))
        draw = np.random.default_rng(seed)
        some = torch.from_numpy(draw.choice(len(train), size, replace=False))
        others = torch.from_numpy(draw.choice(len(test), size, replace=False))
        return Memorisation(
            nearest(fake, train, step=step),
            nearest(test, train, step=step),
            nearest(fake, train[some], step=step),
            nearest(fake, test[others], step=step),
        )

    found = comparison.once(("memorisation", seed), compute)
    step(1.0)
    return found


def _loud(comparison: Comparison, more: str = "") -> str:
    parts = (
        "READS THE REAL TRAINING DATA: it measures leakage, so publish it only where that is acceptable",
        comparison.drawn_note(),
        more,
    )
    return joined(parts)


_MEMORISATION = Family(
    "Signs of memorised records",
    "Are synthetic records nearer to the training records than chance has it? Expected: 0.01 suspiciously near, 0.5 nearer "
    "to training than to test records. Passing is no proof of privacy.",
    "share",
)


def _train_metric(name: str, title: str, summary: str) -> Callable[[Measure], Measure]:
    return register(
        f"memorisation.{name}",
        f"{summary}; reads the training data",
        title=title,
        family=_MEMORISATION,
        reads="train",
    )


@_train_metric(
    "share",
    "suspiciously near to a training record",
    "share of synthetic records nearer to a training record than 99 % of test records are (0.01 expected)",
)
def share(comparison: Comparison, seed: int, step: Step) -> Measurement:
    found = _memorisation(comparison, seed, step)
    limit = found.test.quantile(0.01, interpolation="lower")
    copies = int((found.synthetic == 0).sum())
    more = f"{copies:,} synthetic records equal a training record" if copies else ""
    return Measurement.of_hits(found.synthetic < limit, _loud(comparison, more))


@_train_metric(
    "p",
    "p-value: nearer than test records",
    "p-value of a rank test that synthetic records lie nearer to the training set than test records do",
)
def p(comparison: Comparison, seed: int, step: Step) -> Measurement:
    found = _memorisation(comparison, seed, step)
    value = float(
        mannwhitneyu(found.synthetic.numpy(), found.test.numpy(), alternative="less").pvalue
    )
    more = (
        "synthetic records smoother than real ones also give small values; see memorisation.nearer"
    )
    return Measurement(value, value, value, _loud(comparison, more))


@_train_metric(
    "nearer",
    "nearer to training than to test records",
    "share of synthetic records nearer to training than to as many test records (0.5 expected)",
)
def nearer(comparison: Comparison, seed: int, step: Step) -> Measurement:
    found = _memorisation(comparison, seed, step)
    ties = (found.to_some == found.to_test).double() / 2
    wins = (found.to_some < found.to_test).double() + ties
    return Measurement.of_share(float(wins.mean()), normal(wins.numpy()), _loud(comparison))
