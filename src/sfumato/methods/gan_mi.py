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

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.generators.gan import HeadedCritic, VectorGenerator, move_average
from sfumato.methods.base import Workspace
from sfumato.methods.counting import count, with_counts
from sfumato.methods.counts import apportion
from sfumato.methods.descent import TrainingState, descend
from sfumato.methods.latent import LatentSynthesizer
from sfumato.methods.registry import register
from sfumato.privacy import Charge, GradientSum, Plan, PrivateData, enforced_gradient_bound, records

_LABEL = "critic gradients"
_BETAS = (0.5, 0.9)


@register(
    "gan-mi",
    title="DP-GAN-MI",
    paper="“Large-Scale Public Data Improves Differentially Private Image Generation Quality”, baseline DP-GAN-MI",
    kinds=("images",),
    public="optional",
    summary="A Wasserstein network in the latent space of a public decoder; its critic has noisy gradients.",
)
class GanMi(LatentSynthesizer):
    """DP-GAN-MI for labelled and unlabelled images.

    **Guarantee**: two charges, composed and calibrated jointly: noisy class counts (bound 1), and `steps` Poisson-sampled sums of
    the critic's gradients, each record's (with its generated companion and the penalty between them) clipped as one to `clip`;
    sums are divided by the expected size of a sample.

    Differs from the paper: the penalty is that of WGAN-GP, between a record and its companion; labels, for each of which the
    critic has a number of its own; a generator step after every critic step; any codec; a moving average of the generator.
    """

    HELP = {
        "codec": "Public codec: dct, dct:K, pca:K (with --public), adain, ic-gan:PATH or the path of a pretrained one.",
        "rate": "Share of the records in a step's Poisson sample; expected batch = rate × number of records.",
        "steps": "Critic steps, each paid for.",
        "critic_steps": "Critic steps for each generator step.",
        "clip": "Norm to which each record's gradient is clipped.",
        "penalty": "Weight λ of the gradient penalty.",
        "batch": "Generated vectors per generator step.",
        "learning_rate": "Adam's learning rate of generator and critic.",
        "latent": "Normal numbers that go into the generator.",
        "width": "Width of the dense layers; 32 or 128 in the paper.",
        "decay": "Decay of the generator's moving average.",
        "grain": "Standard deviation of the grain added to sampled pixels in [0, 1], a public constant; 0 for none.",
        "seed": "Public seed of the networks and of generated vectors; privacy noise never has a seed.",
    }

    def __init__(
        self,
        *,
        codec: str = "dct",
        rate: float = 0.02,
        steps: int = 1_000,
        critic_steps: int = 1,
        clip: float = 1.0,
        penalty: float = 10.0,
        batch: int = 256,
        learning_rate: float = 3e-3,
        latent: int = 25,
        width: int = 32,
        decay: float = 0.98,
        grain: float = 0.05,
        seed: int = 0,
    ) -> None:
        self.codec = codec
        self.rate = rate
        self.steps = steps
        self.critic_steps = critic_steps
        self.clip = clip
        self.penalty = penalty
        self.batch = batch
        self.learning_rate = learning_rate
        self.latent = latent
        self.width = width
        self.decay = decay
        self.grain = grain
        self.seed = seed

    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        self._check()
        return self._charges(schema, noise_multiplier)

    def _charges(self, schema: Schema, noise_multiplier: float) -> tuple[Charge, Charge]:
        dim = self._facts(schema).dim
        critic = HeadedCritic(dim, schema.n_classes, self.width)
        steps = Charge(
            label=_LABEL,
            bound=enforced_gradient_bound(self.clip),
            noise_multiplier=noise_multiplier,
            rate=self.rate,
            steps=self.steps,
            dimension=sum(p.numel() for p in critic.parameters()),
            sampler="floating",
        )
        return with_counts(schema, steps)

    def _fit(self, data: PrivateData, noise_multiplier: float, workspace: Workspace) -> None:
        counts, steps = self._charges(data.schema, noise_multiplier)
        self.codec_ = self._open_codec(data.schema, workspace)
        counted = count(data, counts)
        workspace.log({"event": "release", "label": counts.label})
        self.shares_ = counted.shares
        generator, critic = self._networks(data.schema)
        average = copy.deepcopy(generator).requires_grad_(False)
        of_generator, of_critic = (
            torch.optim.Adam(network.parameters(), lr=self.learning_rate, betas=_BETAS)
            for network in (generator, critic)
        )
        gradients = GradientSum(
            critic, self._critic_loss, bound=self.clip, inputs=self._with_companion(generator)
        )
        state = TrainingState(
            {"generator": generator, "critic": critic, "average": average},
            {"generator": of_generator, "critic": of_critic},
            random=torch.Generator().manual_seed(self.seed),
        )
        for step in descend(data, steps, state, workspace, title="Training the critic"):
            gradients.assign(step.noisy_gradient(gradients) / (self.rate * counted.size))
            of_critic.step()
            if (step.index + 1) % self.critic_steps == 0:
                labels = torch.multinomial(
                    self.shares_, self.batch, replacement=True, generator=state.random
                )
                of_generator.zero_grad()
                made = generator(labels, state.random)
                loss = -critic(made, self._one_hot(labels)).mean()
                loss.backward()
                of_generator.step()
                move_average(average, generator, self.decay)
                state.facts["generator loss"] = float(loss.detach())
        self.generator_ = average

    def _critic_loss(
        self,
        critic: Callable[..., Tensor],
        real: Tensor,
        made: Tensor,
        between: Tensor,
        label: Tensor,
    ) -> Tensor:
        def score(vector: Tensor, one_hot: Tensor) -> Tensor:
            return critic(vector[None], one_hot[None])[0]

        slope = vmap(grad(score))(between, label)
        # The root of zero has no derivative, and a critic may be flat to begin with.
        penalty = ((slope.square().sum(dim=1) + 1e-12).sqrt() - 1).square()
        return critic(made, label) - critic(real, label) + self.penalty * penalty

    def _with_companion(
        self, generator: VectorGenerator
    ) -> Callable[[Batch, torch.Generator], tuple[Tensor, ...]]:
        def inputs(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
            pixels, *labels = records(batch, random)
            label = labels[0] if labels else torch.zeros(len(pixels), dtype=torch.int64)
            real = self.codec_.encode(pixels) / self._unit()
            with torch.no_grad():
                made = generator(label, random)
            share = torch.rand(len(real), 1, generator=random)
            return real, made, share * real + (1 - share) * made, self._one_hot(label)

        return inputs

    def _sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        labels = apportion(self.shares_, n, generator)
        images = torch.empty(n, *self.schema_.shape, dtype=torch.uint8)
        for at in torch.arange(n).split(1000):
            with torch.no_grad():
                vectors = self.generator_(labels[at], generator) * self._unit()
            pixels = self.codec_.decode(vectors, generator=generator)
            pixels += torch.randn(pixels.shape, generator=generator) * self.grain
            images[at] = (pixels.clamp_(0, 1) * 255).round().to(torch.uint8)
        return images, labels if self.schema_.labelled else None

    def _state(self) -> dict[str, Tensor]:
        network = {f"network.{name}": value for name, value in self.generator_.state_dict().items()}
        return {**network, "shares": self.shares_, **self._codec_state()}

    def _restore(self, state: dict[str, Tensor]) -> None:
        self.shares_ = state["shares"]
        self._restore_codec(state)
        self.generator_ = self._networks(self.schema_)[0]
        prefix = "network."
        self.generator_.load_state_dict(
            {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
        )

    def _unit(self) -> float:
        """The size of a number in a vector of the greatest length: networks like numbers of about 1."""
        return self.codec_.bound / self.codec_.dim**0.5

    def _one_hot(self, labels: Tensor) -> Tensor:
        return functional.one_hot(labels, max(1, self.schema_.n_classes)).to(torch.float32)

    def _networks(self, schema: Schema) -> tuple[VectorGenerator, HeadedCritic]:
        dim, classes = self.codec_.dim, schema.n_classes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return (
                VectorGenerator(dim, classes, self.latent, self.width),
                HeadedCritic(dim, classes, self.width),
            )

    def _check(self) -> None:
        for name in ("steps", "critic_steps", "batch", "latent", "width"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadInput(
                    f"gan-mi's {name} must be a whole number of at least 1, not {value!r}."
                )
        for name in ("clip", "learning_rate", "penalty"):
            if not getattr(self, name) > 0:
                raise BadInput(f"gan-mi's {name} must be positive, not {getattr(self, name)}.")
        if not 0 < self.rate <= 1:
            raise BadInput(f"gan-mi's rate must lie in (0, 1], not {self.rate}.")
        if not 0 <= self.decay < 1:
            raise BadInput(f"gan-mi's decay must lie in [0, 1), not {self.decay}.")
        if not 0 <= self.grain <= 1:
            raise BadInput(f"gan-mi's grain must lie between 0 and 1, not {self.grain}.")
