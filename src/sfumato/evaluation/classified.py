"""What is measured of a fitted method itself, not of its samples: a private classifier's accuracy, DP-DRE's weights.

The first reads real records and is NOT covered by ε, like every metric on them; the second reads none.
"""

from __future__ import annotations

import time

import torch

from sfumato.data import Dataset
from sfumato.errors import BadInput
from sfumato.evaluation.metrics import Measurement, Metric
from sfumato.methods import Dre, LinearMaps, Method
from sfumato.published import BADGE

CLASSIFIER, SUPERCLASS = "classifier.accuracy", "superclass.weight"
OF_THE_FIT = (
    CLASSIFIER,
    SUPERCLASS,
)  # in a comparison they are named alone, and no samples are drawn
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


def judge_weights(model: Method, public: Dataset | None) -> Metric:
    """How much of DP-DRE's weight lies on public records of the private classes, by the names of the classes.

    It is made of the released discriminator and of public labels alone, so it is covered by ε.
    """
    told = [row for row in model.log_ if row["event"] == "weights"]
    if not isinstance(model, Dre) or public is None or not told:
        raise BadInput(f"{SUPERCLASS} is of dre with labelled public data; leave it out.")
    known = set(model.schema_.classes)
    if not known & set(public.schema.classes):
        raise BadInput(f"{public.name} has no class that the private data have; name them alike.")
    start = time.perf_counter()
    pairs = zip(public.schema.classes, told[0]["of public classes"], strict=False)
    weight = sum(share for name, share in pairs if name in known)
    return Metric(
        name=SUPERCLASS,
        value=weight,
        low=weight,
        high=weight,
        source=f"synthetic data only: weights of {public.name}, by its labels; no private record was read",
        seconds=time.perf_counter() - start,
        badge="",
    )
