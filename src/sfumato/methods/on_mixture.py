"""The part of methods that begin with draws of a mixture, which has a part of their budget and is fitted first.

    class Transport(OnMixture):
        queries:  self.mixture_queries(schema, budget, 0.7)     what the mixture asks of that part of a budget
        _fit:     size = self.fit_mixture(data, run, 0.7)        learnt as `mixture_`, `range_`, `shares_`, `mixture_tone_`
                  self.tone_again(made)                          at the end: the same histogram for what the method makes of draws
        _sample:  self.drawn_images(labels, random)              draws with their tones

Private: the records, in the mixture's own sums only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.methods.base import Workspace
from sfumato.methods.capacity import Capacity, capacity_of, usual_records
from sfumato.methods.counts import apportion
from sfumato.methods.mixture import Mixture
from sfumato.methods.parts import Draw
from sfumato.methods.settings import setting
from sfumato.methods.tone import ToneCurve, Toned, gray_levels
from sfumato.privacy import Budget, Gate, Query
from sfumato.privacy.query import gaussian_noise

_TONE_DRAWS = 1000


class OnMixture(Toned):
    """A method that fits a mixture first, and makes something of its draws."""

    share: float | None = setting(
        "Share of the squared noise budget that the mixture has; none for auto.",
        default=None,
        above=0,
        below=1,
    )
    tone: bool = setting(
        "Whether pixels are mapped to a released histogram of gray levels, as in mixture.",
        default=True,
    )

    def mixture_queries(self, schema: Schema, budget: Budget, part: float) -> list[Query]:
        return self._mixture(part).queries(schema, budget)

    def fit_mixture(self, data: Gate, run: Workspace, part: float) -> float:
        """The number of records, or its estimate."""
        mixture = self._mixture(part)
        mixture.schema_ = data.schema
        mixture._fit(data, run)
        self.mixture_, self.range_, self.shares_ = mixture.mixture_, mixture.range_, mixture.shares_
        self.mixture_tone_: ToneCurve | None = mixture.tone_
        self.tone_ = None
        return mixture._size

    def drawn_images(self, labels: Tensor, random: torch.Generator) -> Tensor:
        """Draws of the mixture with its tones, as bytes."""
        mixture = self._mixture(1.0)
        mixture.schema_, mixture.mixture_, mixture.range_ = self.schema_, self.mixture_, self.range_
        mixture.tone_ = self.mixture_tone_
        return mixture._records(labels, random)

    def tone_again(self, made: Draw) -> None:
        """`tone_`, of pixels in [0, 1] that are made of draws: what the mixture's toned draws have is what was released."""
        if self.mixture_tone_ is None:
            return
        random = torch.Generator().manual_seed(self.seed)
        labels = apportion(self.shares_, _TONE_DRAWS, random)
        channels = self.schema_.shape[0]
        toned = gray_levels(Batch(self.drawn_images(labels, random), None))[0]
        shares = toned.mean(0) * math.sqrt(channels)
        with torch.no_grad():
            pixels = made(labels, random).flatten(1)
        self.tone_ = ToneCurve.to(shares.view(channels, -1), 0.0, pixels)

    def _mixture(self, part: float) -> _Part:
        made = _Part(tone=self.tone, seed=self.seed)
        made.part = part
        return made


class _Part(Mixture):
    """A mixture that has a part of a budget: it asks for as much as that is good for."""

    part = 1.0

    def _capacity(self, dim: int, schema: Schema, budget: Budget, records: int | None) -> Capacity:
        n = records or usual_records(budget.delta)
        noise = gaussian_noise(budget) / math.sqrt(self.part)
        return capacity_of(dim, max(1, schema.n_classes), n, noise)
