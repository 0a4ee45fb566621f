"""How often a private classifier is right on held-out records: the one measurement of a method that makes no records.

It reads real records, so like every metric it is NOT covered by ε.
"""

from __future__ import annotations

import time

import torch

from sfumato.data import Dataset
from sfumato.errors import BadInput
from sfumato.evaluation.metrics import Measurement, Metric
from sfumato.methods import LinearMaps, Method
from sfumato.published import BADGE

CLASSIFIER = "classifier.accuracy"
_AT_ONCE = 1_000


def judge_classifier(model: Method, real: Dataset, *, size_is_public: bool = False) -> Metric:
    """The share of labelled records of `real` whose class `model` predicts, with its 95 % interval."""
    if not isinstance(model, LinearMaps):
        raise BadInput(f"{model.info.name} makes records and no predictions; judge its samples.")
    start = time.perf_counter()
    marks = []
    with torch.inference_mode():
        for batch in real.batches(_AT_ONCE):
            if batch.labels is None:
                raise BadInput(f"{real.name} has no labels; give labelled records.")
            marks.append(model.model_.scores(batch).argmax(dim=1) == batch.labels)
    found = Measurement.of_hits(torch.cat(marks))
    told = size_is_public or real.published_as is not None
    described = f"{real.name} ({len(real):,} records)" if told else real.name
    return Metric(
        name=CLASSIFIER,
        value=found.value,
        low=found.low,
        high=found.high,
        source=f"real data {described}; not covered by ε",
        seconds=time.perf_counter() - start,
        badge=BADGE,
    )
