"""Pixels: a noisy mean and variance of every pixel in every class. No paper; the smallest method whose samples vary by the data.

    1.  Σ over records of class c of [x, x², w]        one sum, filed by class        (the release)
    2.  draw: each pixel by itself, from N(mean, variance) of the label's class       (free)

Private: the records, in step 1 only. Public: shape and classes (Schema), all settings.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.methods.base import Method, Workspace
from sfumato.methods.counts import Counts
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query

_MOMENTS = "moments of pixels"


class Pixels(Method):
    """Independent pixels for images, labelled or not.

    **Guarantee**: one release of Σ [x ÷ √(2d), x² ÷ √(2d), w] filed by class, where d is the number of pixels. Pixels lie in
    [0, 1], so each of the first two parts has a squared norm ≤ ½, and the row a norm ≤ √(1 + w²); no entry is negative. All
    after the release is post-processing.
    """

    info = MethodInfo(
        name="pixels",
        title="Pixels",
        paper="an example: examples/plugin of sfumato",
        summary="A mean and a variance of every pixel in every class.",
    )
    TINY: ClassVar = {"spread": 0.5}

    count_weight: float = setting(
        "What a record adds to its class's count, against 1 for its pixels.", default=0.1, above=0
    )
    spread: float = setting(
        "How far samples lie around their class's mean; 1 is the released variance.",
        default=1.0,
        low=0,
        high=2,
        free=True,
    )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        moments = Query(
            label=_MOMENTS,
            shape=(2 * schema.dim + 1,),
            bound=math.hypot(1.0, self.count_weight),
            segments=max(1, schema.n_classes),
            non_negative=True,
        )
        return [moments]

    def _fit(self, data: Gate, run: Workspace) -> None:
        unit = math.sqrt(2 * data.schema.dim)

        def rows(batch: Batch) -> tuple[Tensor, Tensor | None]:
            pixels = batch.pixels().flatten(1)  # (n, d)
            count = torch.full((len(batch), 1), self.count_weight)
            return torch.cat([pixels / unit, pixels.square() / unit, count], dim=1), batch.labels

        release = data.sum(_MOMENTS, rows)
        counts = release.value[:, -1] / self.count_weight  # (classes,)
        found = Counts.of(counts, release.noise_std / self.count_weight, data.public_size)
        self.shares_ = found.shares
        size = (found.shares * found.size).clamp(min=1.0)[:, None]
        means, squares = (release.value[:, :-1] * unit / size).chunk(2, dim=1)  # (classes, d) each
        means = means.clamp(0, 1)
        # No number in [0, 1] with mean m varies more than m (1 − m): what the noise adds beyond that is cut off, for free.
        variances = (squares - means.square()).clamp(min=0).minimum(means * (1 - means))
        self.means_, self.deviations_ = means.float(), variances.sqrt().float()

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        around = torch.randn(len(labels), self.means_.shape[1], generator=random)
        made = self.means_[labels] + self.spread * self.deviations_[labels] * around
        return made.view(-1, *self.schema_.shape)
