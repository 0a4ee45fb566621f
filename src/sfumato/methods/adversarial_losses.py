"""What critics and generators of the adversarial kind minimise.

- `Logistic`: −log D of real records, which are paid for, and −log(1 − D) of generated ones, which are free (Goodfellow 2014);
- `Wasserstein`: D(v') − D(v) and a penalty on D's slope, of a record v and a generated companion v' of its class, as one
  gradient (“Large-scale public data …”, algorithm 2; Gulrajani et al. 2017).

Private: what `inputs` makes of records, inside the wall. Public: the losses, and everything about generated images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from sfumato.data import Batch
from sfumato.privacy import records
from sfumato.privacy.gradients import Inputs

LINE, RECORD = "line", "record"
Critic = Callable[..., Tensor]  # (n, …), (n,) labels → (n,)


class Losses(ABC):
    """Of a critic and a generator; a critic gives every image (or vector) with its label a number, more for real ones."""

    # Whether a record and a generated companion share one clipped gradient; else what is generated is trained on for free.
    pairs: ClassVar[bool]

    @abstractmethod
    def inputs(self, encode: Callable[[Tensor], Tensor] | None, generator: nn.Module) -> Inputs:
        """What `of_record` is given of a batch of records; `encode` makes vectors of pixels, None: pixels are seen."""

    @abstractmethod
    def of_record(self, critic: Critic, *inputs: Tensor) -> Tensor:
        """The critic's loss of each record by itself, (n,)."""

    @abstractmethod
    def of_made(self, critic: Critic, made: Tensor, labels: Tensor) -> Tensor:
        """The critic's loss of what was generated, (n,): read where `pairs` is false."""

    @abstractmethod
    def of_generator(self, critic: Critic, made: Tensor, labels: Tensor) -> Tensor:
        """(n,)"""


class Logistic(Losses):
    """−log D."""

    pairs = False

    def inputs(self, encode: Callable[[Tensor], Tensor] | None, generator: nn.Module) -> Inputs:
        if encode is None:
            return labelled

        def encoded(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
            pixels, labels = labelled(batch, random)
            return encode(pixels), labels

        return encoded

    def of_record(self, critic: Critic, *inputs: Tensor) -> Tensor:
        return looks_generated(critic, *inputs)

    def of_made(self, critic: Critic, made: Tensor, labels: Tensor) -> Tensor:
        return functional.softplus(critic(made, labels))

    def of_generator(self, critic: Critic, made: Tensor, labels: Tensor) -> Tensor:
        return looks_generated(critic, made, labels)


@dataclass(frozen=True)
class Wasserstein(Losses):
    """D(v') − D(v) + λ · penalty: of D's slope at a point between v and v' (`at` line: (‖∇D‖ − 1)², WGAN-GP's) or at the record
    (`at` record: ‖∇D‖, algorithm 2's)."""

    penalty: float
    at: str = LINE
    pairs = True

    def inputs(self, encode: Callable[[Tensor], Tensor] | None, generator: nn.Module) -> Inputs:
        """A record, a generated companion of its class, the point whose slope is looked at, and the class.

        Companions need a generator that makes each by itself, without batch normalisation.
        """

        def with_companion(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
            real, labels = labelled(batch, random)
            real = real if encode is None else encode(real)  # (n, dim)
            place = next(generator.parameters()).device
            with torch.no_grad():
                made = generator(labels.to(place), random).cpu()  # (n, dim)
            if self.at == RECORD:
                return real, made, real, labels
            share = torch.rand(len(real), *[1] * (real.ndim - 1), generator=random)
            return real, made, share * real + (1 - share) * made, labels

        return with_companion

    def of_record(self, critic: Critic, *inputs: Tensor) -> Tensor:
        real, made, point, labels = inputs

        def score(vector: Tensor, label: Tensor) -> Tensor:
            return critic(vector[None], label[None])[0]

        slope = vmap(grad(score))(point, labels).flatten(1)
        # The root of zero has no derivative, and a critic may be flat to begin with.
        norm = (slope.square().sum(dim=1) + 1e-12).sqrt()
        penalty = norm if self.at == RECORD else (norm - 1).square()
        return critic(made, labels) - critic(real, labels) + self.penalty * penalty

    def of_made(self, critic: Critic, made: Tensor, labels: Tensor) -> Tensor:
        return critic(made, labels)

    def of_generator(self, critic: Critic, made: Tensor, labels: Tensor) -> Tensor:
        return -critic(made, labels)


def looks_generated(critic: Critic, images: Tensor, labels: Tensor) -> Tensor:
    """−log D(x, y): large where an image looks generated."""
    return functional.softplus(-critic(images, labels))


def labelled(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
    """Pixels and labels of records; one class where there are none."""
    pixels, *labels = records(batch, random)
    return pixels, labels[0] if labels else torch.zeros(len(pixels), dtype=torch.int64)
