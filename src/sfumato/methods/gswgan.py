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

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.generators.gan import HeadedCritic
from sfumato.generators.networks import seeded
from sfumato.generators.wasserstein import WassersteinCritic
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.methods.taught import ImageGradient, Taught
from sfumato.privacy import Budget, Query, ShardStates, records
from sfumato.privacy.gate import Paid

# The critics: steps before the generator's first, steps of each phase after it, records per step.
WARM_STEPS, PHASE_STEPS, CRITIC_BATCH = 30, 4, 64
# Their dense layers, Adam's learning rate, the weight of the gradient penalty.
CRITIC_WIDTH, CRITIC_RATE, PENALTY = 64, 2e-3, 10.0


class GsWgan(Taught):
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

    info = MethodInfo(
        name="gs-wgan",
        title="GS-WGAN",
        paper="Chen, Orekondy and Fritz 2020, “GS-WGAN: A Gradient-Sanitized Approach for Learning DP Generators”",
        summary="A generator taught by many critics, each with a shard of the records; what they say of its images is noisy.",
    )
    TINY: ClassVar = {
        "shards": 4,
        "rate": 0.5,
        "steps": 5,
        "batch": 12,
        "latent": 4,
        "hidden": 8,
        "phase": 2,
    }

    shards: int = setting(
        "Parts of the records, each with a critic of its own; some dozens of records in each are enough.",
        default=1000,
        low=1,
    )
    rate: float = setting(
        "Probability that a step draws a shard; shards × rate critics are asked in a step on average.",
        default=0.1,
    )
    steps: int = setting(default=200)
    clip: float = setting(
        "Norm to which a critic's gradient, of all generated images together, is clipped; √batch if all slopes are 1.",
        default=10.0,
    )
    shrink: int = setting(
        "Factor by which images are shrunk before a critic sees them; 1 for not at all. Fewer numbers need less noise.",
        default=2,
        low=1,
    )
    phase: int = setting("Generator steps after which all critics catch up.", default=10, low=1)
    critic_steps: int = setting(
        "Critic steps of a drawn critic against the images of the step; 0: it is asked as it last caught up.",
        default=0,
        low=0,
        below=10**6,
    )
    learning_rate: float = setting(default=1e-3)

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        if self.shrink > min(schema.shape[1:]):
            raise BadInput(f"gs-wgan's shrink must not exceed the images, not {self.shrink}.")

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        return self.asked(schema, "shards", self.shards)

    def seen(self, images: Tensor) -> Tensor:
        """What a critic sees of images, (n, numbers): means of squares of `shrink` × `shrink` pixels, of unchanged length."""
        means = functional.avg_pool2d(images, self.shrink, ceil_mode=True)
        return means.flatten(1) * self.shrink

    def image_gradient(self, schema: Schema) -> ImageGradient:
        states: ShardStates | None = None  # what lasts of the critics; the wall has their weights

        def gradient(step: Paid, images: Tensor, labels: Tensor) -> Tensor:
            nonlocal states
            critics = Critics(images, labels, self, schema)
            if states is None or step.index % self.phase == 0:
                states = ShardStates(critics.caught_up, shards=self.shards, earlier=states)
            return step.shards(critics.gradient, states) / (self.shards * self.rate)

        return gradient


class Critics:
    """What happens to critics in a step with generated images (n, numbers): they are trained against them and asked about them.

    Its methods are called inside the wall, with a shard and its critic; all that it keeps is public.
    """

    def __init__(self, images: Tensor, labels: Tensor, how: GsWgan, schema: Schema) -> None:
        self.how, self.classes = how, max(1, schema.n_classes)
        self.images, self.labels = images, self._one_hot(labels)

    def caught_up(
        self, shard: Batch, earlier: WassersteinCritic | None, random: torch.Generator
    ) -> WassersteinCritic:
        """The shard's critic, trained against these images from what it was before."""
        critic = earlier or self.new()
        self._train(critic, shard, PHASE_STEPS if earlier else WARM_STEPS, random)
        return critic

    def gradient(self, shard: Batch, critic: WassersteinCritic, random: torch.Generator) -> Tensor:
        """∇ of −Σ D(x, y) with respect to the images, flat, after `critic_steps` more steps."""
        self._train(critic, shard, self.how.critic_steps, random)
        return -critic.slope(self.images, self.labels).flatten()

    def new(self) -> WassersteinCritic:
        """Every critic begins as this public one."""
        facts = self.images.shape[1], self.classes, CRITIC_WIDTH
        network = seeded(self.how.seed + 1, HeadedCritic, *facts).to(self.images.device)
        # What a critic says of an image should be what it learnt, and not the random weights that it began with.
        next(network.parameters()).data.mul_(0.1)
        return WassersteinCritic(network, penalty=PENALTY, learning_rate=CRITIC_RATE)

    def real(self, shard: Batch) -> tuple[Tensor, Tensor]:
        """What critics see of a shard's records, and one-hot labels; without any not finite or of no known class."""
        pixels, *labels = records(shard, torch.Generator())
        label = labels[0] if labels else torch.zeros(len(pixels), dtype=torch.int64)
        known = torch.isfinite(pixels).flatten(1).all(dim=1)
        place = self.images.device
        return self.how.seen(pixels[known]).to(place), self._one_hot(label[known]).to(place)

    def _train(
        self, critic: WassersteinCritic, shard: Batch, steps: int, random: torch.Generator
    ) -> None:
        real, label = self.real(shard)
        if len(real) == 0:
            return
        for _ in range(steps):
            one = torch.randint(len(real), (CRITIC_BATCH,), generator=random).to(real.device)
            made = torch.randint(len(self.images), (CRITIC_BATCH,), generator=random)
            other = made.to(real.device)
            between = torch.rand(CRITIC_BATCH, 1, generator=random).to(real.device)
            critic.learn((real[one], label[one]), (self.images[other], self.labels[other]), between)

    def _one_hot(self, labels: Tensor) -> Tensor:
        return functional.one_hot(labels, self.classes).to(torch.float32)
