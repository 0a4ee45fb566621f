"""DP-GAN and DP-CGAN: an adversarial network whose critic is trained by DP-SGD (Xie et al. 2018; Torkzadehmahani et al. 2019),
from scratch or, DP-GAN-FT, from a network that was trained on public data first.

    repeat `steps` times:
        critic:     clipped gradients of −log D(x, y) over a Poisson sample of the records, + noise,        (a paid step)
                    + the plain gradient of −log(1 − D(G(z, y), y))                                         (free)
        generator:  after every few critic steps, minimise −log D(G(z, y), y); keep a moving average        (free)

Only the critic sees records, and only through noisy gradients; the generator sees the critic. Private: the records. Public: the
Schema, the public data of DP-GAN-FT, all settings.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from sfumato.data import Batch
from sfumato.methods.adversarial import (
    BETAS,
    ImageAdversarial,
    RecordAdversarial,
    looks_generated,
)
from sfumato.methods.base import Workspace
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting


class Gan(RecordAdversarial):
    """DP-CGAN with labels, DP-GAN without, for images and tables.

    **Guarantee**: two charges, composed and calibrated jointly: noisy class counts (bound 1), and `steps` Poisson-sampled sums of
    the critic's gradients, each record's clipped to `clip`; sums are divided by the expected size of a sample. The generator
    reaches the records only through the critic's released gradients.

    Differs from the papers: gradients of generated images are neither clipped nor noised, since no record enters them; group
    normalisation instead of batch normalisation, which mixes records; several critic steps a generator step and large samples;
    samples come from a moving average of the generator; classes in their noisy proportions; in tables categories are drawn
    before the critic sees them, and the gradient passes straight through.
    """

    info = MethodInfo(
        name="gan",
        title="DP-GAN / DP-CGAN",
        paper="Xie et al. 2018, “Differentially Private Generative Adversarial Network”; Torkzadehmahani et al. 2019, “DP-CGAN”",
        summary="A conditional adversarial network; its critic is trained with clipped, noisy gradients.",
        kinds=("images", "table"),
    )
    TINY: ClassVar = {"rate": 0.5, "steps": 6, "batch": 12, "latent": 4, "width": 4}


class GanFt(ImageAdversarial):
    """DP-GAN-FT: `gan`, begun from a generator and critic trained on public images.

    **Guarantee**: as `gan`; the public training reads no private record.

    Differs from the paper: the network makes pixels itself, where the paper's makes a vector that IC-GAN turns into an image
    (that is `gan-mi` with a codec); public labels are used if the public classes are the private ones, else drawn at random.
    """

    info = MethodInfo(
        name="gan-ft",
        title="DP-GAN-FT",
        paper="“Large-Scale Public Data Improves Differentially Private Image Generation Quality”, baseline DP-GAN-FT",
        summary="A network trained on public images, then fine-tuned with a critic of noisy gradients.",
        public="required",
    )
    TINY: ClassVar = {
        "rate": 0.5,
        "steps": 6,
        "batch": 12,
        "latent": 4,
        "width": 4,
        "public_steps": 3,
    }

    public_steps: int = setting(
        "Critic steps on public images before the first paid step.", default=1_500, low=1
    )
    steps: int = setting(default=1_000)

    def warm_up(
        self, generator: nn.Module, critic: nn.Module, random: torch.Generator, run: Workspace
    ) -> None:
        public = run.public
        assert public is not None  # `fit` saw to it
        images = torch.from_numpy(public.images)
        same = public.schema.labelled and public.schema.classes == self.schema_.classes
        known = torch.from_numpy(public.labels) if same else None
        adam = torch.optim.Adam(generator.parameters(), lr=self.learning_rate, betas=BETAS)
        critic_adam = torch.optim.Adam(critic.parameters(), lr=self.critic_rate, betas=BETAS)
        with run.progress.stage("Training on public images", self.public_steps) as stage:
            for step in range(self.public_steps):
                chosen = torch.randint(len(images), (self.batch,), generator=random)
                labels = self.labels(random) if known is None else known[chosen].clamp(min=0)
                critic_adam.zero_grad()
                real, labels = (
                    Batch(images[chosen], None).pixels().to(self.place),
                    labels.to(self.place),
                )
                looks_generated(critic, real, labels).mean().backward()
                self.critic_step(generator, critic, critic_adam, random)
                if (step + 1) % self.critic_steps == 0:
                    self.generator_step(generator, critic, adam, random)
                stage.advance(1)
