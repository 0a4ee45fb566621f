"""DP-GAN-MI: a small adversarial network in the latent space of a public decoder (Chen et al. 2021; "Large-scale public data
improves differentially private image generation quality", algorithm 2): a Wasserstein critic with a gradient penalty, trained
by DP-SGD.

    repeat `steps` times:
        critic:     g = ∇ [D(v') − D(v) + λ (‖∇D(u)‖ − 1)²]  for a record's vector v, a generated v' and a u between the two;
                    clipped as one gradient, summed over a Poisson sample, + noise                          (a paid step)
        generator:  every `critic_steps` critic steps, minimise −D(G(z, y)); keep a moving average           (free)
    sample: x = codec.decode(G(z, y))                                                                       (free)

Private: the records, through the critic's gradients and a noisy count of the classes. Public: codec, Schema, all settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from sfumato.data import Batch, Schema
from sfumato.generators.gan import HeadedCritic, VectorGenerator
from sfumato.generators.networks import seeded
from sfumato.methods.adversarial import Adversarial, labelled
from sfumato.methods.base import Workspace
from sfumato.methods.decoded import Decoded
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Gate
from sfumato.privacy.gradients import Inputs


class GanMi(Decoded, Adversarial):
    """DP-GAN-MI for labelled and unlabelled images.

    **Guarantee**: two charges, composed and calibrated jointly: noisy class counts (bound 1), and `steps` Poisson-sampled sums of
    the critic's gradients, each record's (with its generated companion and the penalty between them) clipped as one to `clip`;
    sums are divided by the expected size of a sample.

    Differs from the paper: the penalty is that of WGAN-GP, between a record and its companion; labels, for each of which the
    critic has a number of its own; a generator step after every critic step; any codec; a moving average of the generator.
    """

    info = MethodInfo(
        name="gan-mi",
        title="DP-GAN-MI",
        paper="“Large-Scale Public Data Improves Differentially Private Image Generation Quality”, baseline DP-GAN-MI",
        summary="A Wasserstein network in the latent space of a public decoder; its critic has noisy gradients.",
        public="optional",
    )
    TINY: ClassVar = {
        "codec": "dct:16",
        "rate": 0.5,
        "steps": 6,
        "batch": 12,
        "latent": 4,
        "width": 8,
    }

    steps: int = setting(default=1_000)
    critic_steps: int = setting(default=1)
    penalty: float = setting("Weight λ of the gradient penalty.", default=10.0, above=0)
    batch: int = setting("Generated vectors per generator step.", default=256)
    learning_rate: float = setting("Adam's learning rate of generator and critic.", default=3e-3)
    latent: int = setting(default=25)
    width: int = setting("Width of the dense layers; 32 or 128 in the paper.", default=32)
    decay: float = setting(default=0.98)

    def build(self, schema: Schema) -> None:
        # A loaded run has its own codec, and the file that it came from may be gone.
        facts = self.codec_.facts if hasattr(self, "codec_") else self.codec_facts(schema)
        self.generator_: nn.Module = self._networks(facts.dim, schema)[0]

    def critic(self, schema: Schema) -> nn.Module:
        return self._networks(self.codec_facts(schema).dim, schema)[1]

    def _networks(self, dim: int, schema: Schema) -> tuple[VectorGenerator, HeadedCritic]:
        classes = schema.n_classes
        return seeded(
            self.seed,
            lambda: (
                VectorGenerator(dim, classes, self.latent, self.width),
                HeadedCritic(dim, classes, self.width),
            ),
        )

    def _fit(self, data: Gate, run: Workspace) -> None:
        self.open_codec(data.schema, run)
        super()._fit(data, run)

    def inputs(self, generator: nn.Module) -> Inputs:
        """A record's vector, a generated companion of its class, a point between the two, and the class."""

        def with_companion(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
            pixels, labels = labelled(batch, random)
            real = self.codec_.encode(Batch(pixels, None)) / self._unit  # (n, dim)
            with torch.no_grad():
                made = generator(labels.to(self.place), random).cpu()  # (n, dim)
            share = torch.rand(len(real), 1, generator=random)
            return real, made, share * real + (1 - share) * made, self._one_hot(labels)

        return with_companion

    def critic_loss(self, critic: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """D(v') − D(v) + λ (‖∇D(u)‖ − 1)² of each record."""
        real, made, between, one_hot = inputs

        def score(vector: Tensor, one_hot: Tensor) -> Tensor:
            return critic(vector[None], one_hot[None])[0]

        slope = vmap(grad(score))(between, one_hot)  # (n, dim)
        # The root of zero has no derivative, and a critic may be flat to begin with.
        penalty = ((slope.square().sum(dim=1) + 1e-12).sqrt() - 1).square()
        return critic(made, one_hot) - critic(real, one_hot) + self.penalty * penalty

    def generator_loss(self, critic: nn.Module, made: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = -critic(made, self._one_hot(labels))
        return loss

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        return self.toned(self.decode(self.generator_(labels, random) * self._unit, random))

    @property
    def _unit(self) -> float:
        """The size of a number in a vector of the greatest length: networks like numbers of about 1."""
        return self.codec_.bound / self.codec_.dim**0.5

    def _one_hot(self, labels: Tensor) -> Tensor:
        return functional.one_hot(labels, max(1, self.schema_.n_classes)).to(torch.float32)
