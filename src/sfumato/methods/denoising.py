"""What a denoiser learns from a record: the record at random noise levels, and what is missing from the prior's guess at it.

    D(x, s, y) = M(x, s, y) + c(s) · F([x ÷ √(s² + ½), M(x, s, y)], s, y),      c(s) = ½ s ÷ √(s² + ¼)

so that F, the network, should say (clean − M) ÷ c(s). The records that come here are private, or are made up and cost nothing:
every row is computed by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.data import Batch
from sfumato.methods.adversarial_losses import labelled
from sfumato.methods.base import Workspace
from sfumato.methods.posterior import SPREAD, Prior

_FREE_BATCH = 128


def scale(levels: Tensor) -> Tensor:
    """c(s), (n, 1, 1, 1)"""
    found = SPREAD * levels / (levels.square() + SPREAD**2).sqrt()
    return found[:, None, None, None]


def seen(noisy: Tensor, mean: Tensor, levels: Tensor, looks: int) -> Tensor:
    """What the network is given: the picture at about unit length, and the prior's mean if it says more."""
    shrunk = noisy / (levels.square() + 0.5).sqrt()[:, None, None, None]
    return shrunk if looks == 1 else torch.cat([shrunk, mean], dim=1)


@dataclass(frozen=True, eq=False)
class Noised:
    """Records at some noise levels each, one from each part of the range, what the network sees of them and what it should say.

    Levels and noise are each record's own, drawn from the generator that is given; every row is computed by itself.
    """

    prior: Prior
    levels: int
    looks: int

    def __call__(self, batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
        pixels, labels = labelled(batch, random)
        clean, (n, count) = 2 * pixels - 1, (len(pixels), self.levels)
        spread = (torch.arange(count) + torch.rand(n, count, generator=random)) / count
        which = (spread * len(self.prior.levels)).long().clamp(max=len(self.prior.levels) - 1)
        drawn = torch.randn(n, count, *clean.shape[1:], generator=random)
        levels = self.prior.levels[which]  # (n, count)
        looks, wanted = [], []
        for k in range(count):
            noisy = clean + levels[:, k, None, None, None] * drawn[:, k]
            mean = self.prior.mean(noisy, labels, which[:, k])
            looks.append(seen(noisy, mean, levels[:, k], self.looks))
            wanted.append((clean - mean) / scale(levels[:, k]))
        return torch.stack(looks, 1), torch.stack(wanted, 1), levels, labels


def denoising_loss(
    network: Callable[..., Tensor], looks: Tensor, wanted: Tensor, levels: Tensor, labels: Tensor
) -> Tensor:
    """(n,): the mean square of what the network misses, over pixels and a record's levels."""
    each = [
        (network(looks[:, k], levels[:, k], labels) - wanted[:, k]).square().mean(dim=(1, 2, 3))
        for k in range(looks.shape[1])
    ]
    return torch.stack(each).mean(dim=0)


def train_freely(
    network: nn.Module,
    noised: Noised,
    draw: Callable[[int, torch.Generator], Batch],
    steps: int,
    learning_rate: float,
    seed: int,
    run: Workspace,
) -> None:
    """Steps on pictures that cost nothing."""
    random, place = torch.Generator().manual_seed(seed), next(network.parameters()).device
    adam = torch.optim.Adam(network.parameters(), lr=learning_rate)
    training = run.training(
        "Training on draws of the mixture", random, stage="draws", network=network, adam=adam
    )
    for _ in training(steps):
        with torch.no_grad():
            inputs = [part.to(place) for part in noised(draw(_FREE_BATCH, random), random)]
        adam.zero_grad()
        denoising_loss(network, *inputs).mean().backward()
        adam.step()
    adam.zero_grad()
