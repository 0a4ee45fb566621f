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
from sfumato.methods.counts import count, count_query
from sfumato.methods.denoised import Denoised
from sfumato.methods.denoising import Noised, train_freely
from sfumato.methods.on_mixture import OnMixture
from sfumato.methods.posterior import Gray, Known, Prior, spaced
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query

_COUNTS = 0.02  # of the squared budget, where there is no mixture: class counts
_GRAY_LEVELS = 256


class Diffusion(Denoised, OnMixture):
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
    )

    def known_queries(self, schema: Schema, budget: Budget) -> list[Query]:
        if self.base == "none":
            return [count_query(schema)]
        return self.mixture_queries(schema, budget, self.part(budget))

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
        return self.fit_mixture(data, run, self.part(data.budget))

    def prior(self, levels: list[float] | None = None) -> Prior:
        if self.base == "none":
            return Gray(levels or spaced(self.high, self.low, _GRAY_LEVELS))
        count = Known.most_levels(self.mixture_)
        return Known(self.mixture_, self.schema_, levels or spaced(self.high, self.low, count))

    @property
    def looks(self) -> int:
        return 1 if self.base == "none" else 2

    @property
    def usual_class_from(self) -> float:
        return 0.0 if self.base == "none" else super().usual_class_from

    def usual_start(self, budget: Budget) -> float:
        return self.high if self.base == "none" else super().usual_start(budget)

    def begin(self, labels: Tensor, random: torch.Generator) -> Tensor:
        if self.base == "none":
            return torch.zeros(len(labels), *self.schema_.shape)
        return self.drawn_images(labels, random).to(torch.float32) / 127.5 - 1

    def warm_up(self, network: nn.Module, steps: int, run: Workspace) -> None:
        if self.base == "none" or not steps:
            return

        def draw(n: int, random: torch.Generator) -> Batch:
            labels = torch.multinomial(self.shares_, n, replacement=True, generator=random)
            known = labels if self.schema_.labelled else None
            return Batch(self.drawn_images(labels, random), known)

        noised = Noised(self.prior(), 1, self.looks)
        train_freely(network, noised, draw, steps, self.learning_rate, self.seed, run)

    def finish(self, run: Workspace) -> None:
        """A tone curve of the denoised pictures, as they are before one."""
        if self.base == "mixture":
            self.tone_again(lambda labels, random: (self.denoised(labels, random) + 1) / 2)

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        return self.toned(super()._sample(labels, random))
