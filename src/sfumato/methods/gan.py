"""DP-GAN and DP-CGAN: an adversarial network whose critic is trained by DP-SGD (Xie et al. 2018; Torkzadehmahani et al. 2019),
from scratch or, DP-GAN-FT, from a network that was trained on public data first; that one in pixels (the DP-GAN of DP-MEPF's
tables) or on a codec's vectors with a Wasserstein loss (“Large-scale public data …”, algorithm 2; see `gan_mi`).

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

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.generators.networks import seeded
from sfumato.generators.resnet import ResNet9Critic, ResNetGenerator
from sfumato.methods.adversarial import (
    BETAS,
    ImageAdversarial,
    LatentAdversarial,
    RecordAdversarial,
)
from sfumato.methods.adversarial_losses import Losses, Wasserstein
from sfumato.methods.base import Workspace
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting

PUBLIC_BATCH = 128  # public records in a step of the public training


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


class GanFt(LatentAdversarial, ImageAdversarial):
    """DP-GAN-FT: `gan`, begun from a generator and critic trained on public images. With `codec` both work on a codec's vectors
    and begin from public ones, and `loss` may be the paper's.

    **Guarantee**: as `gan`; with the Wasserstein loss a record's gradient is clipped together with that of its generated
    companion. The public training reads no private record.

    Differs from the paper (`--preset paper` has its networks and loss): by default the network makes pixels itself; the codec
    stays as it is, where the paper trains IC-GAN's generator and discriminator together with the vectors' networks; no
    checkpoint is chosen on real data; public labels are used if the public classes are the private ones, else drawn at random.
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

    codec: str | None = setting(
        "Public codec whose vectors the networks make and see: dct, dct:K, pca:K, adain, ic-gan:PATH or the path of a pretrained "
        "one; none: pixels.",
        default=None,
    )
    network: str = setting(
        "Networks of pixels: conv (small), or resnet9 (DP-MEPF's residual generator, ResNet9 with group norms as critic).",
        default="conv",
        choices=("conv", "resnet9"),
    )
    loss: str = setting(
        "What the critic minimises: logistic (−log D, a record alone is clipped), or wasserstein (with a codec; a record and a "
        "generated companion are clipped as one).",
        default="logistic",
        choices=("logistic", "wasserstein"),
    )
    width: int = setting(
        "Channels of generator and critic at the full size; with a codec, width of the dense layers.",
        default=16,
    )
    public_steps: int = setting(
        "Critic steps on public images before the first paid step.", default=1_500, low=1
    )
    public_rate: float | None = setting(
        "Adam's learning rate of both networks on public images; auto: those of the paid steps.",
        default=None,
        above=0,
    )
    steps: int = setting(default=1_000)

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        if self.loss == "wasserstein" and self.codec is None:
            raise BadInput(
                "gan-ft's loss=wasserstein is for a codec's vectors; name a codec, or leave loss out."
            )
        if self.network != "conv" and self.codec is not None:
            raise BadInput(
                f"gan-ft's network={self.network} makes pixels and codec={self.codec} vectors; leave out one of them."
            )

    @property
    def losses(self) -> Losses:
        wasserstein = self.loss == "wasserstein"
        return Wasserstein(self.penalty, self.penalty_at) if wasserstein else super().losses

    def build(self, schema: Schema) -> None:
        super().build(schema)
        if self.network == "resnet9":
            facts = schema.shape, schema.n_classes, self.latent, self.width
            self.generator_ = seeded(self.seed, ResNetGenerator, *facts)

    def critic(self, schema: Schema) -> nn.Module:
        if self.network == "resnet9":
            facts = schema.shape, schema.n_classes, self.width
            return seeded(self.seed + 1, ResNet9Critic, *facts)
        return super().critic(schema)

    def warm_up(
        self, generator: nn.Module, critic: nn.Module, random: torch.Generator, run: Workspace
    ) -> None:
        public = run.public
        assert public is not None  # `fit` saw to it
        images = torch.from_numpy(public.images)
        same = public.schema.labelled and public.schema.classes == self.schema_.classes
        known = torch.from_numpy(public.labels) if same else None
        rates = self.public_rate or self.learning_rate, self.public_rate or self.critic_rate
        adam, critic_adam = (
            torch.optim.Adam(network.parameters(), lr=rate, betas=BETAS)
            for network, rate in zip((generator, critic), rates, strict=True)
        )
        losses, inputs = self.losses, self.inputs(generator)
        with run.progress.stage("Training on public images", self.public_steps) as stage:
            for step in range(self.public_steps):
                chosen = torch.randint(len(images), (PUBLIC_BATCH,), generator=random)
                drawn = self.labels(random, PUBLIC_BATCH) if known is None else known[chosen]
                batch = Batch(images[chosen], drawn.clamp(min=0).cpu())
                critic_adam.zero_grad()
                seen = (part.to(self.place) for part in inputs(batch, random))
                losses.of_record(critic, *seen).mean().backward()
                self.critic_step(generator, critic, critic_adam, random)
                if (step + 1) % self.critic_steps == 0:
                    self.generator_step(generator, critic, adam, random)
                stage.advance(1)
