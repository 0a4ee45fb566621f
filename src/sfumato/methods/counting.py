"""Class counts as a release of their own, for the methods whose other releases are gradients.

Public after the release: noisy counts, the classes' shares, and the number of records that gradients are divided by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.privacy import Charge, FeatureMap, PrivateData, charge_of

LABEL = "class counts"
# The counts' part of the squared noise budget μ²: a count of thousands needs little.
_SHARE = 0.02


class ClassCounts(FeatureMap):
    """1 for every record, filed by class.

    **Guarantee**: each contribution is the number 1, so the bound is 1; no row depends on another.
    """

    dim = 1
    bound = 1.0
    non_negative = True

    def __init__(self, schema: Schema) -> None:
        self.segments = max(1, schema.n_classes)
        self.labelled = schema.labelled

    def __call__(self, batch: Batch) -> Tensor:
        return torch.ones(len(batch), 1)

    def segment_of(self, batch: Batch) -> Tensor | None:
        return batch.labels if self.labelled else None


@dataclass(frozen=True)
class Counted:
    """What the counts say: the classes' shares (non-negative, sum 1), and the number of records or its estimate."""

    shares: Tensor  # (classes,) float32
    size: float


def with_counts(schema: Schema, steps: Charge) -> tuple[Charge, Charge]:
    """The plan of a gradient method: counts, then the paid steps.

    The steps spend about steps · rate² ÷ multiplier² of μ² (exactly so when the noise is large); the counts get a fiftieth of
    that.
    """
    multiplier = steps.noise_multiplier / (steps.rate * math.sqrt(steps.steps * _SHARE))
    return charge_of(ClassCounts(schema), multiplier, label=LABEL), steps


def count(data: PrivateData, charge: Charge) -> Counted:
    """Pay for and take the counts."""
    release = data.noisy_sum(ClassCounts(data.schema), charge.noise_multiplier, label=LABEL)
    counts = release.value[:, 0]
    size = data.public_size
    n = float(size) if size is not None else max(1.0, float(counts.sum()))
    # A count below its own noise may belong to a class without records: it keeps no share.
    floor = min(2 * release.noise_std, 0.5 * n / len(counts))
    kept = torch.where(counts > floor, counts, 0.0)
    if float(kept.sum()) <= 0:
        kept = torch.ones_like(counts)
    return Counted(shares=(kept / kept.sum()).to(torch.float32), size=n)
