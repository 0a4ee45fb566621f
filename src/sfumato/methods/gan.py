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

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.generators.gan import ImageCritic, ImageGenerator, move_average
from sfumato.methods.base import Workspace
from sfumato.methods.counting import count, with_counts
from sfumato.methods.descent import TrainingState, descend
from sfumato.methods.images import ImageSynthesizer
from sfumato.methods.registry import register
from sfumato.privacy import Charge, GradientSum, Plan, PrivateData, enforced_gradient_bound, records

_LABEL = "critic gradients"
_BETAS = (0.5, 0.9)


@register(
    "gan",
    title="DP-GAN / DP-CGAN",
    paper="Xie et al. 2018, “Differentially Private Generative Adversarial Network”; Torkzadehmahani et al. 2019, “DP-CGAN”",
    kinds=("images",),
    summary="A conditional adversarial network; its critic is trained with clipped, noisy gradients.",
)
class Gan(ImageSynthesizer):
    """DP-CGAN with labels, DP-GAN without.

    **Guarantee**: two charges, composed and calibrated jointly: noisy class counts (bound 1), and `steps` Poisson-sampled sums of
    the critic's gradients, each record's clipped to `clip`; sums are divided by the expected size of a sample. The generator
    reaches the records only through the critic's released gradients.

    Differs from the papers: gradients of generated images are neither clipped nor noised, since no record enters them; group
    normalisation instead of batch normalisation, which mixes records; several critic steps a generator step and large samples;
    samples come from a moving average of the generator; classes in their noisy proportions.
    """

    HELP = {
        "rate": "Share of the records in a step's Poisson sample; expected batch = rate × number of records.",
        "steps": "Critic steps, each paid for.",
        "critic_steps": "Critic steps for each generator step.",
        "clip": "Norm to which each record's gradient is clipped.",
        "batch": "Generated images per step.",
        "learning_rate": "Adam's learning rate of the generator.",
        "critic_rate": "Adam's learning rate of the critic.",
        "latent": "Normal numbers that go into the generator.",
        "width": "Channels of generator and critic at the full size.",
        "decay": "Decay of the generator's moving average.",
        "grain": "Standard deviation of the grain added to sampled pixels in [0, 1], a public constant; 0 for none.",
        "seed": "Public seed of the networks and of generated images; privacy noise never has a seed.",
    }

    def __init__(
        self,
        *,
        rate: float = 0.02,
        steps: int = 2_000,
        critic_steps: int = 3,
        clip: float = 1.0,
        batch: int = 128,
        learning_rate: float = 1e-3,
        critic_rate: float = 1e-3,
        latent: int = 32,
        width: int = 16,
        decay: float = 0.99,
        grain: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.rate = rate
        self.steps = steps
        self.critic_steps = critic_steps
        self.clip = clip
        self.batch = batch
        self.learning_rate = learning_rate
        self.critic_rate = critic_rate
        self.latent = latent
        self.width = width
        self.decay = decay
        self.grain = grain
        self.seed = seed

    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        self._check(schema)
        return self._charges(schema, noise_multiplier)

    def _charges(self, schema: Schema, noise_multiplier: float) -> tuple[Charge, Charge]:
        steps = Charge(
            label=_LABEL,
            bound=enforced_gradient_bound(self.clip),
            noise_multiplier=noise_multiplier,
            rate=self.rate,
            steps=self.steps,
            dimension=sum(p.numel() for p in self._critic(schema).parameters()),
            sampler="floating",
        )
        return with_counts(schema, steps)

    def _fit(self, data: PrivateData, noise_multiplier: float, workspace: Workspace) -> None:
        counts, steps = self._charges(data.schema, noise_multiplier)
        counted = count(data, counts)
        workspace.log({"event": "release", "label": counts.label})
        self.shares_ = counted.shares
        generator, critic = self._generator(data.schema), self._critic(data.schema)
        random = torch.Generator().manual_seed(self.seed)
        checkpoint = workspace.checkpoint_of()
        if checkpoint is None or not checkpoint.exists():
            self._pretrain(generator, critic, workspace, random)
        average = copy.deepcopy(generator).requires_grad_(False)
        game = _Game(generator, critic, self.shares_, self)
        gradients = GradientSum(critic, _taken_for_generated, bound=self.clip, inputs=_labelled)
        state = TrainingState(
            {"generator": generator, "critic": critic, "average": average},
            {"generator": game.of_generator, "critic": game.of_critic},
            random=random,
        )
        for step in descend(data, steps, state, workspace, title="Training the critic"):
            gradients.assign(step.noisy_gradient(gradients) / (self.rate * counted.size))
            state.facts["critic loss, generated"] = game.critic_step(random)
            if (step.index + 1) % self.critic_steps == 0:
                state.facts["generator loss"] = game.generator_step(random)
                move_average(average, generator, self.decay)
        self.generator_ = average

    def _pretrain(
        self,
        generator: ImageGenerator,
        critic: ImageCritic,
        workspace: Workspace,
        random: torch.Generator,
    ) -> None:
        """What is done on public data before the first paid step: here nothing."""

    def _generator(self, schema: Schema) -> ImageGenerator:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return ImageGenerator(schema.shape, schema.n_classes, self.latent, self.width)

    def _critic(self, schema: Schema) -> ImageCritic:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + 1)
            return ImageCritic(schema.shape, schema.n_classes, self.width)

    def _check(self, schema: Schema) -> None:
        name = self.info.name
        wholes = ["steps", "critic_steps", "batch", "latent", "width"]
        for setting in [*wholes, *(["public_steps"] if hasattr(self, "public_steps") else [])]:
            value = getattr(self, setting)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadInput(
                    f"{name}'s {setting} must be a whole number of at least 1, not {value!r}."
                )
        for setting in ("clip", "learning_rate", "critic_rate"):
            if not getattr(self, setting) > 0:
                raise BadInput(
                    f"{name}'s {setting} must be positive, not {getattr(self, setting)}."
                )
        if not 0 < self.rate <= 1:
            raise BadInput(f"{name}'s rate must lie in (0, 1], not {self.rate}.")
        if not 0 <= self.decay < 1:
            raise BadInput(f"{name}'s decay must lie in [0, 1), not {self.decay}.")
        if not 0 <= self.grain <= 1:
            raise BadInput(f"{name}'s grain must lie between 0 and 1, not {self.grain}.")
        if min(schema.shape[1:]) < 4:
            raise BadInput(
                f"{name} makes images of at least 4 × 4 pixels; enlarge them with --image-size."
            )


@register(
    "gan-ft",
    title="DP-GAN-FT",
    paper="“Large-Scale Public Data Improves Differentially Private Image Generation Quality”, baseline DP-GAN-FT",
    kinds=("images",),
    public="required",
    summary="A network trained on public images, then fine-tuned with a critic of noisy gradients.",
)
class GanFt(Gan):
    """DP-GAN-FT: `gan`, begun from a generator and critic trained on public images.

    **Guarantee**: as `gan`; the public training reads no private record.

    Differs from the paper: the network makes pixels itself, where the paper's makes a vector that IC-GAN turns into an image
    (that is `gan-mi` with a codec); public labels are used if the public classes are the private ones, else drawn at random.
    """

    HELP = {**Gan.HELP, "public_steps": "Critic steps on public images before the first paid step."}

    def __init__(
        self,
        *,
        public_steps: int = 1_500,
        rate: float = 0.02,
        steps: int = 1_000,
        critic_steps: int = 3,
        clip: float = 1.0,
        batch: int = 128,
        learning_rate: float = 1e-3,
        critic_rate: float = 1e-3,
        latent: int = 32,
        width: int = 16,
        decay: float = 0.99,
        grain: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            rate=rate,
            steps=steps,
            critic_steps=critic_steps,
            clip=clip,
            batch=batch,
            learning_rate=learning_rate,
            critic_rate=critic_rate,
            latent=latent,
            width=width,
            decay=decay,
            grain=grain,
            seed=seed,
        )
        self.public_steps = public_steps

    def _pretrain(
        self,
        generator: ImageGenerator,
        critic: ImageCritic,
        workspace: Workspace,
        random: torch.Generator,
    ) -> None:
        public = workspace.public
        assert public is not None  # `fit` saw to it
        images = torch.from_numpy(public.images)
        same = public.schema.labelled and public.schema.classes == self.schema_.classes
        labels = torch.from_numpy(public.labels) if same else None
        game = _Game(generator, critic, self.shares_, self)
        with workspace.progress.stage("Training on public images", self.public_steps) as stage:
            for step in range(self.public_steps):
                chosen = torch.randint(len(images), (self.batch,), generator=random)
                label = labels[chosen].clamp(min=0) if labels is not None else game.labels(random)
                game.of_critic.zero_grad()
                real = Batch(images[chosen], None).pixels()
                _taken_for_generated(critic, real, label).mean().backward()
                game.critic_step(random)
                if (step + 1) % self.critic_steps == 0:
                    game.generator_step(random)
                stage.advance(1)


class _Game:
    """The free half of the training: generated images for the critic, and the generator's own steps."""

    def __init__(
        self, generator: ImageGenerator, critic: ImageCritic, shares: Tensor, how: Gan
    ) -> None:
        self.generator, self.critic, self.shares, self.batch = generator, critic, shares, how.batch
        self.of_critic = torch.optim.Adam(critic.parameters(), lr=how.critic_rate, betas=_BETAS)
        self.of_generator = torch.optim.Adam(
            generator.parameters(), lr=how.learning_rate, betas=_BETAS
        )

    def labels(self, random: torch.Generator) -> Tensor:
        return torch.multinomial(self.shares, self.batch, replacement=True, generator=random)

    def critic_step(self, random: torch.Generator) -> float:
        """Add the gradient of generated images to that of real ones, which is in place, and make the step."""
        labels = self.labels(random)
        with torch.no_grad():
            images = self.generator(labels, random)
        loss = functional.softplus(self.critic(images, labels)).mean()
        loss.backward()
        self.of_critic.step()
        return float(loss.detach())

    def generator_step(self, random: torch.Generator) -> float:
        labels = self.labels(random)
        self.of_generator.zero_grad()
        loss = _taken_for_generated(self.critic, self.generator(labels, random), labels).mean()
        loss.backward()
        self.of_generator.step()
        return float(loss.detach())


def _taken_for_generated(critic: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """−log D(x, y): large where an image looks generated."""
    return functional.softplus(-critic(images, labels))


def _labelled(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
    pixels, *labels = records(batch, random)
    return pixels, labels[0] if labels else torch.zeros(len(pixels), dtype=torch.int64)
