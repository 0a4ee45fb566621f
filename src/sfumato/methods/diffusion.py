"""Diffusion: a denoiser that learns only what the mixture does not know; sfumato's own, after DPDM (Dockhorn et al. 2023).

    0.  `mixture`: means, covariances and clusters of each class, and the tones               (its releases: a part of the budget)
    1.  the posterior mean of a noisy picture under it, in closed form                         (free)
    2.  a small U-Net beside that learns from the mixture's own draws                          (free)
    3.  and from the records: gradients at random noise levels, clipped, noisy                 (paid steps)
    4.  draw: of the mixture, plus noise, which is taken away in a few steps; the tone curve   (free)

A mixture knows where clothes, digits or bones lie and not what an edge is; noise hides edges first, so that the network has to
learn only what is seen at short range, and little noise goes a long way. With `base=none` there is no mixture, and the method is
DPDM: a denoiser from scratch, at every noise level, from pure noise (`--preset dpdm`).

Private: the records, in 0 and 3 only.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from sfumato.data import Batch, Schema
from sfumato.methods.base import Workspace
from sfumato.methods.capacity import Capacity, capacity_of, usual_records
from sfumato.methods.counts import apportion, count, count_query
from sfumato.methods.denoised import Denoised
from sfumato.methods.denoising import Noised, train_freely
from sfumato.methods.mixture import Mixture
from sfumato.methods.posterior import Gray, Known, Prior, spaced
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.methods.tone import ToneCurve, Toned, gray_levels
from sfumato.privacy import Budget, Gate, Query
from sfumato.privacy.query import gaussian_noise

_COUNTS = 0.02  # of the squared budget, where there is no mixture: class counts
_GRAY_LEVELS = 256
_TONE_DRAWS = 1000


class Diffusion(Denoised, Toned):
    """A mixture, and a denoiser beside it.

    **Guarantee**: the sums of `mixture` (its own guarantee), and `steps` Poisson-sampled sums of the network's gradients, each
    record's clipped to `clip`, whatever its noise and levels; sums are divided by the expected size of a sample. All are
    calibrated jointly. Noise that hides a record from the network is no privacy noise and is not counted. Draws, free training
    and samples use what was released.

    Differs from DPDM: see the page; `--preset dpdm` says what it cannot carry.
    """

    info = MethodInfo(
        name="diffusion",
        title="Diffusion",
        paper="sfumato's own; base=none: Dockhorn et al. 2023, “Differentially Private Diffusion Models”",
        summary="A mixture, and a denoiser beside it that learns from noisy gradients what the mixture does not know.",
    )
    TINY: ClassVar = {
        "rate": 1.0,
        "steps": 1,
        "levels": 1,
        "width": 4,
        "free_steps": 1,
        "stages": 2,
    }

    base: str = setting(
        "What is known before the denoiser: the mixture, or none, which is DPDM.",
        default="mixture",
        choices=("mixture", "none"),
    )
    share: float | None = setting(
        "Share of the squared noise budget that the mixture has; none for auto: 0.6 at ε = 1, a third at ε = 10.",
        default=None,
        above=0,
        below=1,
    )
    tone: bool = setting(
        "Whether pixels are mapped to a released histogram of gray levels, as in mixture.",
        default=True,
    )

    def known_queries(self, schema: Schema, budget: Budget) -> list[Query]:
        if self.base == "none":
            return [count_query(schema)]
        return self._mixture(self.part(budget)).queries(schema, budget)

    def part(self, budget: Budget) -> float:
        if self.base == "none":
            return _COUNTS
        usual = 0.6 - (0.6 - 1 / 3) * math.log10(budget.epsilon)
        return self.share or min(max(usual, 1 / 3), 0.85)

    def know(self, data: Gate, run: Workspace) -> float:
        if self.base == "none":
            counts = count(data)
            self.shares_ = counts.shares
            return counts.size
        mixture = self._mixture(self.part(data.budget))
        mixture.schema_ = data.schema
        mixture._fit(data, run)
        self.mixture_, self.range_, self.shares_ = mixture.mixture_, mixture.range_, mixture.shares_
        self.mixture_tone_: ToneCurve | None = mixture.tone_
        self.tone_: ToneCurve | None = None
        return mixture._size

    def prior(self, levels: list[float] | None = None) -> Prior:
        if self.base == "none":
            return Gray(levels or spaced(self.high, self.low, _GRAY_LEVELS))
        count = Known.most_levels(self.mixture_)
        return Known(self.mixture_, self.schema_, levels or spaced(self.high, self.low, count))

    @property
    def looks(self) -> int:
        return 1 if self.base == "none" else 2

    def usual_start(self, budget: Budget) -> float:
        return self.high if self.base == "none" else super().usual_start(budget)

    def begin(self, labels: Tensor, random: torch.Generator) -> Tensor:
        if self.base == "none":
            return torch.zeros(len(labels), *self.schema_.shape)
        return self._drawn_images(labels, random).to(torch.float32) / 127.5 - 1

    def warm_up(self, network: nn.Module, steps: int, run: Workspace) -> None:
        if self.base == "none" or not steps:
            return

        def draw(n: int, random: torch.Generator) -> Batch:
            labels = torch.multinomial(self.shares_, n, replacement=True, generator=random)
            known = labels if self.schema_.labelled else None
            return Batch(self._drawn_images(labels, random), known)

        noised = Noised(self.prior(), 1, self.looks)
        train_freely(network, noised, draw, steps, self.learning_rate, self.seed, run)

    def finish(self, run: Workspace) -> None:
        """A tone curve of the denoised pictures: what the mixture's toned draws have is what was released."""
        if self.base == "none" or self.mixture_tone_ is None:
            return
        random = torch.Generator().manual_seed(self.seed)
        labels = apportion(self.shares_, _TONE_DRAWS, random)
        toned = self._drawn_images(labels, random)
        channels = self.schema_.shape[0]
        shares = gray_levels(Batch(toned, None))[0].mean(0) * math.sqrt(channels)
        with torch.no_grad():
            made = (self.denoised(labels, random).flatten(1) + 1) / 2
        self.tone_ = ToneCurve.to(shares.view(channels, -1), 0.0, made)

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        return self.toned(super()._sample(labels, random))

    # -- the mixture ---------------------------------------------------------------------------------------------

    def _mixture(self, part: float) -> _Part:
        made = _Part(tone=self.tone, seed=self.seed)
        made.part = part
        return made

    def _drawn_images(self, labels: Tensor, random: torch.Generator) -> Tensor:
        """Draws of the mixture with its tones, as bytes."""
        mixture = self._mixture(1.0)
        mixture.schema_, mixture.mixture_, mixture.range_ = self.schema_, self.mixture_, self.range_
        mixture.tone_ = self.mixture_tone_
        return mixture._records(labels, random)


class _Part(Mixture):
    """A mixture that has a part of a budget: it asks for as much as that is good for."""

    part = 1.0

    def _capacity(self, dim: int, schema: Schema, budget: Budget, records: int | None) -> Capacity:
        n = records or usual_records(budget.delta)
        noise = gaussian_noise(budget) / math.sqrt(self.part)
        return capacity_of(dim, max(1, schema.n_classes), n, noise)
