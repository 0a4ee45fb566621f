"""GS-WGAN: a generator that learns from the sanitised gradients of many critics, each trained on its own shard of the records
(Chen, Orekondy and Fritz 2020).

    divide the records into `shards` at random; each shard has a Wasserstein critic of its own, inside the wall
    repeat `steps` times:
        X = G(z, y), labels y drawn from the released shares                                            (free)
        draw every shard with probability `rate`; for each drawn one:
            ∇_X of its critic's opinion of X, clipped as a whole to norm `clip`
            (`critic_steps` > 0: of a copy trained against X for so many steps, without noise, and then forgotten)
        the sum over drawn shards + noise, back-propagated through G                                    (a paid step)
    every `phase` steps all critics catch up with the generator as it then is, without noise

The critics never leave the wall, so they need no noise; only the gradients of the generated images do. Private: the records, the
shards, the critics, which were drawn. Public: the Schema, all settings; after their release the noisy class counts.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch.nn import functional

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.generators.gan import HeadedCritic, move_average
from sfumato.generators.wasserstein import WassersteinCritic
from sfumato.methods.base import Workspace
from sfumato.methods.counting import count, with_counts
from sfumato.methods.descent import TrainingState, descend
from sfumato.methods.images import ImageSynthesizer
from sfumato.methods.registry import register
from sfumato.privacy import (
    Charge,
    Plan,
    PrivateData,
    ShardStates,
    ShardSum,
    enforced_group_bound,
    records,
)

_LABEL = "image gradients"


@register(
    "gs-wgan",
    title="GS-WGAN",
    paper="Chen, Orekondy and Fritz 2020, “GS-WGAN: A Gradient-Sanitized Approach for Learning DP Generators”",
    kinds=("images",),
    summary="A generator taught by many critics, each with a shard of the records; what they say of its images is noisy.",
)
class GsWgan(ImageSynthesizer):
    """GS-WGAN for labelled and unlabelled images.

    **Guarantee**: two charges, composed and calibrated jointly: noisy class counts (bound 1), and `steps` sums over shards, each
    drawn with probability `rate`. A drawn critic's gradient, of all generated images at once, is clipped as one vector; a record
    changes one critic and so replaces one such vector by another: every relation is charged as a replacement (`privacy.groups`).
    For the steps to compose, a critic must not remember which steps drew it. So the critics that last are functions of their
    shards and of the released history alone: all of them catch up with the public generator at the same public times, whether
    drawn or not (computed when first needed, which changes nothing), and what a drawn critic learns in its step is forgotten.

    Differs from the paper: critics that forget (the paper's go on from where they were last drawn); several drawn in a step,
    since noise is paid per shard drawn; one charge for the gradient of a whole batch (the published code accounts per image,
    which under-counts, since one draw feeds them all); dense critics that a CPU can train, which see images at half their
    size (their gradients are then fewer numbers to hide); a convolutional generator and its moving average; no local generators
    to warm the critics up.
    """

    HELP = {
        "shards": "Parts of the records, each with a critic of its own; some dozens of records in each are enough.",
        "rate": "Probability that a step draws a shard; shards × rate critics are asked in a step on average.",
        "steps": "Generator steps, each paid for.",
        "clip": "Norm to which a critic's gradient, of all generated images together, is clipped; √batch if all slopes are 1.",
        "batch": "Generated images per step.",
        "shrink": "Factor by which images are shrunk before a critic sees them; 1 for not at all. Fewer numbers need less noise.",
        "phase": "Generator steps after which all critics catch up.",
        "warm_steps": "Critic steps of the first phase, before the generator's first step.",
        "phase_steps": "Critic steps to catch up in each phase after it.",
        "critic_steps": "Critic steps of a drawn critic against the images of the step; 0: it is asked as it last caught up.",
        "critic_batch": "Records per critic step.",
        "critic_width": "Width of the critics' dense layers.",
        "critic_rate": "Adam's learning rate of the critics.",
        "penalty": "Weight of the critics' gradient penalty.",
        "learning_rate": "Adam's learning rate of the generator.",
        "latent": "Normal numbers that go into the generator.",
        "hidden": "Width of the generator's dense layer.",
        "decay": "Decay of the generator's moving average.",
        "grain": "Standard deviation of the grain added to sampled pixels in [0, 1], a public constant; 0 for none.",
        "seed": "Public seed of the networks and of generated images; privacy noise never has a seed.",
    }

    def __init__(
        self,
        *,
        shards: int = 1000,
        rate: float = 0.1,
        steps: int = 200,
        clip: float = 10.0,
        batch: int = 100,
        shrink: int = 2,
        phase: int = 10,
        warm_steps: int = 30,
        phase_steps: int = 4,
        critic_steps: int = 0,
        critic_batch: int = 64,
        critic_width: int = 64,
        critic_rate: float = 2e-3,
        penalty: float = 10.0,
        learning_rate: float = 1e-3,
        latent: int = 10,
        hidden: int = 200,
        decay: float = 0.98,
        grain: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.shards = shards
        self.rate = rate
        self.steps = steps
        self.clip = clip
        self.batch = batch
        self.shrink = shrink
        self.phase = phase
        self.warm_steps = warm_steps
        self.phase_steps = phase_steps
        self.critic_steps = critic_steps
        self.critic_batch = critic_batch
        self.critic_width = critic_width
        self.critic_rate = critic_rate
        self.penalty = penalty
        self.learning_rate = learning_rate
        self.latent = latent
        self.hidden = hidden
        self.decay = decay
        self.grain = grain
        self.seed = seed

    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        self._check(schema)
        return self._charges(schema, noise_multiplier)

    def _charges(self, schema: Schema, noise_multiplier: float) -> tuple[Charge, Charge]:
        dim = self.batch * self._seen(torch.zeros(1, *schema.shape)).numel()
        steps = Charge(
            label=_LABEL,
            bound=enforced_group_bound(dim, self.clip),
            noise_multiplier=noise_multiplier,
            rate=self.rate,
            steps=self.steps,
            dimension=dim,
            summands="shards",
        )
        return with_counts(schema, steps)

    def _fit(self, data: PrivateData, noise_multiplier: float, workspace: Workspace) -> None:
        counts, steps = self._charges(data.schema, noise_multiplier)
        self.shares_ = count(data, counts).shares
        workspace.log({"event": "release", "label": counts.label})
        generator = self._generator(data.schema)
        average = copy.deepcopy(generator).requires_grad_(False)
        optimiser = torch.optim.Adam(
            generator.parameters(), lr=self.learning_rate, betas=(0.9, 0.99)
        )
        state = TrainingState(
            {"generator": generator, "average": average},
            {"generator": optimiser},
            random=torch.Generator().manual_seed(self.seed),
        )
        critics: ShardStates | None = None
        for step in descend(data, steps, state, workspace, title="Training the generator"):
            labels = torch.multinomial(
                self.shares_, self.batch, replacement=True, generator=state.random
            )
            seen = self._seen(generator(labels, state.random))
            lesson = _Lesson(seen.detach(), self._one_hot(labels), self)
            if critics is None or step.index % self.phase == 0:
                critics = ShardStates(lesson.catch_up, shards=self.shards, earlier=critics)
            gradient = step.noisy_shards(
                ShardSum(lesson.opinion, dim=seen.numel(), bound=self.clip, states=critics)
            )
            optimiser.zero_grad()
            seen.backward(gradient.view_as(seen) / (self.shards * self.rate))
            optimiser.step()
            move_average(average, generator, self.decay)
        self.generator_ = average.eval()

    def new_critic(self) -> WassersteinCritic:
        """Every critic begins as this public one."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + 1)
            dim = self._seen(torch.zeros(1, *self.schema_.shape)).numel()
            network = HeadedCritic(dim, self.schema_.n_classes, self.critic_width)
        # What a critic says of an image should be what it learnt, and not the random weights that it began with.
        next(network.parameters()).data.mul_(0.1)
        return WassersteinCritic(network, penalty=self.penalty, learning_rate=self.critic_rate)

    def _seen(self, images: Tensor) -> Tensor:
        """What a critic sees of images, (n, numbers): means of squares of `shrink` × `shrink` pixels, of unchanged length."""
        means = functional.avg_pool2d(images, self.shrink, ceil_mode=True)
        return means.flatten(1) * self.shrink

    def _one_hot(self, labels: Tensor) -> Tensor:
        return functional.one_hot(labels, max(1, self.schema_.n_classes)).to(torch.float32)

    def real(self, shard: Batch) -> tuple[Tensor, Tensor]:
        """What critics see of a shard's records, and one-hot labels; without any not finite or of no known class."""
        pixels, *labels = records(shard, torch.Generator())
        label = labels[0] if labels else torch.zeros(len(pixels), dtype=torch.int64)
        known = torch.isfinite(pixels).flatten(1).all(dim=1)
        return self._seen(pixels[known]), self._one_hot(label[known])

    def _check(self, schema: Schema) -> None:
        self._check_settings(
            whole=(
                "shards",
                "steps",
                "batch",
                "shrink",
                "phase",
                "warm_steps",
                "phase_steps",
                "critic_batch",
                "critic_width",
                "latent",
                "hidden",
            ),
            positive=("clip", "critic_rate", "penalty", "learning_rate"),
            below_one=("decay", "grain"),
        )
        if isinstance(self.critic_steps, bool) or self.critic_steps not in range(10**6):
            raise BadInput(
                f"gs-wgan's critic_steps must be a whole number of at least 0, not {self.critic_steps!r}."
            )
        if self.shrink > min(schema.shape[1:]):
            raise BadInput(f"gs-wgan's shrink must not exceed the images, not {self.shrink}.")
        if self.batch < 2:
            raise BadInput("gs-wgan's batch must be at least 2, for the generator's normalisation.")
        if not 0 < self.rate <= 1:
            raise BadInput(f"gs-wgan's rate must lie in (0, 1], not {self.rate}.")


class _Lesson:
    """Generated images that critics are trained against and asked about; all that is public in a step."""

    def __init__(self, images: Tensor, labels: Tensor, how: GsWgan) -> None:
        self.images, self.labels, self.how = images, labels, how

    def catch_up(
        self, shard: Batch, earlier: WassersteinCritic | None, random: torch.Generator
    ) -> WassersteinCritic:
        """The shard's critic, trained against these images from what it was before."""
        steps = self.how.phase_steps if earlier else self.how.warm_steps
        critic = earlier or self.how.new_critic()
        self._teach(critic, shard, steps, random)
        return critic

    def opinion(self, shard: Batch, critic: WassersteinCritic, random: torch.Generator) -> Tensor:
        """∇ of −Σ D(x, y) with respect to the images, flat, after a few more steps."""
        self._teach(critic, shard, self.how.critic_steps, random)
        return -critic.slope(self.images, self.labels).flatten()

    def _teach(
        self, critic: WassersteinCritic, shard: Batch, steps: int, random: torch.Generator
    ) -> None:
        real, label = self.how.real(shard)
        if len(real) == 0:
            return
        size = self.how.critic_batch
        for _ in range(steps):
            one = torch.randint(len(real), (size,), generator=random)
            other = torch.randint(len(self.images), (size,), generator=random)
            between = torch.rand(size, 1, generator=random)
            critic.learn((real[one], label[one]), (self.images[other], self.labels[other]), between)
