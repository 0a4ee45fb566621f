"""What an accuracy is held against: the least that is worth having, and the most that can be hoped for.

- `baseline.majority`: one and the same answer for every record, the one that is right most often;
- `baseline.class-means`: a logistic regression that knows nothing but one noisy mean of each class, released with the whole
  budget of the run: the simplest private method there is;
- `ceiling.NAME`: the classifier NAME trained on real records in place of synthetic ones.

All of them read real records and are NOT covered by ε. The noisy means are played, not released: a charged release would spend
budget on a number that makes no data, so their noise is drawn here, by the public seed, and nothing of them but the accuracy is
told. Real records to learn from are the training records, where they are given; else one half of the held-out records, and the
other half is scored. A ceiling from few records is lower than it could be, and its note says where it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from sfumato.data import Batch
from sfumato.errors import BadInput
from sfumato.evaluation.classifiers import LogisticRegression
from sfumato.evaluation.metrics import (
    Comparison,
    Family,
    Measurement,
    MetricInfo,
    Step,
    list_metrics,
    register,
)
from sfumato.privacy.query import gaussian_noise
from sfumato.public.linear import schema_codec

MAJORITY, CLASS_MEANS, CEILING = "baseline.majority", "baseline.class-means", "ceiling."
# Beside a row of length 1 stands its count, of this length: shares of the noise as in benchmarks/capacity.py.
_COUNT = 0.4
# So many copies of each mean does the regression learn from; fewer would let its penalty matter more.
_COPIES = 400

_BASELINES = Family(
    "Baselines", "What can be had without synthetic records; an accuracy should be above them.", "%"
)
_CEILINGS = Family(
    "Ceiling",
    "The same classifiers trained on real records; few of them teach less than many would.",
    "%",
)


def _learners(comparison: Comparison, seed: int) -> tuple[Comparison, str]:
    real = comparison.real_alone(seed)
    if comparison.has_train:
        return real, "learnt from the REAL TRAINING records, so publish it only where that is fine"
    return real, "learnt from one half of the held-out records, scored on the other"


@register(
    MAJORITY,
    "accuracy of the best answer that is the same for every record",
    title="always the commonest class",
    family=_BASELINES,
    where=lambda schema: schema.labelled,
    beside=True,
)
def majority(comparison: Comparison, seed: int, step: Step) -> Measurement:
    labels = comparison.real[1]
    if labels is None:
        raise BadInput("Accuracy needs labelled data and these have no classes; leave it out.")
    step(1.0)
    return Measurement.of_hits(labels == labels.mode().values)


@register(
    CLASS_MEANS,
    "accuracy of a logistic regression that knows one noisy mean a class, at the run's budget",
    title="noisy class means at the same ε",
    family=_BASELINES,
    reads="either",
    where=lambda schema: schema.labelled,
    beside=True,
)
def class_means(comparison: Comparison, seed: int, step: Step) -> Measurement:
    """One release, with the whole budget, of the sum and the number of the records of each class."""
    fitted = comparison.fitted
    if fitted is None:
        raise BadInput(
            "Noisy class means need the budget of a run; give a run folder (fitted=), or leave them out."
        )
    real, told = _learners(comparison, seed)
    (rows, labels), (scored, truth) = real.synthetic, real.real
    records = fitted.size or (len(rows) if comparison.has_train else None)
    if records is None:
        raise BadInput(
            "Noisy class means need the number of records, which is private under add-remove; give the training records too "
            "(--train), or leave them out."
        )
    assert labels is not None and truth is not None
    codec, classes = schema_codec(comparison.schema), comparison.schema.n_classes
    known = codec.encode(Batch(rows, None)) / codec.bound  # (n, dim), of length 1 at most
    hot = torch.nn.functional.one_hot(labels, classes).to(known)  # (n, classes)
    draw = torch.Generator().manual_seed(seed)
    std = gaussian_noise(fitted.budget) * math.hypot(1.0, _COUNT)
    # As large as the fitted set would make them, whatever the number of records here.
    larger = records / len(rows)
    sums = larger * (hot.T @ known)
    sums += std * torch.randn(sums.shape, generator=draw)
    counts = larger * hot.sum(0) + std / _COUNT * torch.randn(classes, generator=draw)
    means = codec.bound * sums / counts.clamp(min=1.0)[:, None]  # (classes, dim)
    tested = codec.encode(Batch(scored, None))
    if comparison.schema.kind == "images":  # what lies beyond black and white is noise
        clipped = codec.raw(means).clamp(0, 1).view(classes, *comparison.schema.shape)
        means = codec.encode(Batch(clipped, None))
    # The optimum lies in the span of what is learnt from, so nothing is lost by going there.
    span = torch.linalg.qr((means - means.mean(0)).T.double()).Q.float()
    model = LogisticRegression(seed)
    model.fit(
        (means @ span).repeat(_COPIES, 1), torch.arange(classes).repeat(_COPIES), classes, step
    )
    return Measurement.of_hits(model.predict(tested @ span) == truth, told)


def _ceiling(info: MetricInfo, comparison: Comparison, seed: int, step: Step) -> Measurement:
    real, told = _learners(comparison, seed)
    labels, truth = real.synthetic[1], real.real[1]
    if labels is not None and truth is not None and len(labels.unique()) < 2:
        step(1.0)
        return Measurement.of_hits(truth == labels[0], told)
    found = info.measure(real, seed, step)
    # What a classifier remarks of its records is about synthetic ones, and these are not.
    return Measurement(found.value, found.low, found.high, told)


for _info in [m for m in list_metrics() if m.name.startswith("accuracy.")]:
    register(
        _info.name.replace("accuracy.", CEILING),
        _info.summary.replace("the synthetic data", "real records"),
        title=_info.title,
        family=_CEILINGS,
        kinds=_info.kinds,
        reads="either",
        where=_info.where,
        beside=True,
    )(partial(_ceiling, _info))


# ------------------------------------------------------------------------- what they say of an accuracy


def held_against(metrics: Sequence[Mapping[str, Any]], name: str) -> dict[str, Mapping[str, Any]]:
    """The baselines that were measured beside the accuracy `name`, by their own names."""
    wanted = (MAJORITY, CLASS_MEANS, name.replace("accuracy.", CEILING))
    return {m["name"]: m for m in metrics if m["name"] in wanted}


def outcome(metrics: Sequence[Mapping[str, Any]]) -> str:
    """One sentence if the best accuracy is no better, or not clearly better, than a baseline; else nothing."""
    scores = [m for m in metrics if m["name"].startswith("accuracy.")]
    if not scores:
        return ""
    best = max(scores, key=lambda m: m["value"])
    low = best["value"] if best.get("low") is None else best["low"]
    for name, words in _WORDS.items():
        beaten = held_against(metrics, best["name"]).get(name)
        if beaten is None or low > beaten["value"]:
            continue
        told = f"{words[0]} ({100 * beaten['value']:.1f} % right)"
        if best["value"] <= beaten["value"]:
            return f"this is no better than {told}: {words[1]}."
        return f"this is not clearly better than {told}."
    return ""


# The weaker baseline first: whoever does not pass it need not be told of the other.
_WORDS = {
    MAJORITY: (
        "always answering with the commonest class",
        "for telling the classes apart these records are of no use",
    ),
    CLASS_MEANS: (
        "a release of noisy class means at the same ε",
        "for telling the classes apart a far simpler release would do as well",
    ),
}
