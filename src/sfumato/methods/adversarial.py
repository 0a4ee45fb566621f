"""The adversarial kind: a critic that sees records through paid, noisy gradients, and a generator that sees the critic.

The kind (`Adversarial`) owns settings, queries, the loop and the moving average; a method gives the two networks and their
losses (`adversarial_losses`). Networks of pixels are shared (`ImageAdversarial`), and so are those of tables
(`RecordAdversarial`) and of a codec's vectors (`LatentAdversarial`).
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.generators.gan import (
    HeadedCritic,
    ImageCritic,
    ImageGenerator,
    TableCritic,
    TableGenerator,
    VectorGenerator,
    move_average,
)
from sfumato.generators.networks import seeded
from sfumato.methods.adversarial_losses import LINE, RECORD, Logistic, Losses, labelled
from sfumato.methods.base import Workspace
from sfumato.methods.counts import count, count_query
from sfumato.methods.decoded import Encoded
from sfumato.methods.parts import Grained, Stepped
from sfumato.methods.settings import setting
from sfumato.methods.tone import Toned
from sfumato.privacy import Budget, Gate, Query, gradient_query
from sfumato.privacy.gradients import Inputs
from sfumato.public.tabular import TableCodec

CRITIC = "critic gradients"
BETAS = (0.5, 0.9)


class Adversarial(Stepped, Toned):
    """Generator and critic; the critic is trained by DP-SGD."""

    steps: int = setting("Critic steps, each paid for.", default=2_000)
    critic_steps: int = setting("Critic steps for each generator step.", default=3, low=1)
    batch: int = setting("Generated images per step.", default=128, low=1)
    learning_rate: float = setting("Adam's learning rate of the generator.", default=1e-3, above=0)
    latent: int = setting("Normal numbers that go into the generator.", default=32, low=1)
    width: int = setting("Channels of generator and critic at the full size.", default=16, low=1)
    decay: float = setting("Decay of the generator's moving average.", default=0.99, low=0, below=1)

    @property
    def critic_rate(self) -> float:
        """Adam's learning rate of the critic."""
        return self.learning_rate

    # -- what a method writes ------------------------------------------------------------------------------------

    @abstractmethod
    def critic(self, schema: Schema) -> nn.Module:
        """A fresh critic; `build` makes the generator."""

    @property
    def losses(self) -> Losses:
        return Logistic()

    @property
    def encode(self) -> Callable[[Tensor], Tensor] | None:
        """What the critic sees of pixels; None: pixels."""
        return None

    def inputs(self, generator: nn.Module) -> Inputs:
        """What the critic's loss is given of a batch of records."""
        return self.losses.inputs(self.encode, generator)

    def warm_up(
        self, generator: nn.Module, critic: nn.Module, random: torch.Generator, run: Workspace
    ) -> None:
        """What is done on public data before the first paid step: here nothing."""

    # -- written once --------------------------------------------------------------------------------------------

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        gradients = gradient_query(CRITIC, self.critic(schema), **self.sampled)
        return self.with_tone(schema, [count_query(schema), gradients])

    def _fit(self, data: Gate, run: Workspace) -> None:
        counts = count(data)
        self.shares_ = counts.shares
        random = torch.Generator().manual_seed(self.seed)
        generator, critic = self.generator_.to(self.place), self.critic(data.schema).to(self.place)
        adam = torch.optim.Adam(generator.parameters(), lr=self.learning_rate, betas=BETAS)
        critic_adam = torch.optim.Adam(critic.parameters(), lr=self.critic_rate, betas=BETAS)
        if not run.resumed():
            self.warm_up(generator, critic, random, run)
        ema = copy.deepcopy(generator).requires_grad_(False)
        training = run.training(
            "Training the critic",
            random,
            generator=generator,
            critic=critic,
            ema=ema,
            adam=adam,
            critic_adam=critic_adam,
        )
        losses, inputs = self.losses, self.inputs(generator)
        for step in training(data.steps(CRITIC)):
            step.gradient(critic, losses.of_record, inputs=inputs, over=self.rate * counts.size)
            training.facts |= self.critic_step(generator, critic, critic_adam, random)
            if (step.index + 1) % self.critic_steps == 0:
                loss = self.generator_step(generator, critic, adam, random)
                training.facts["generator loss"] = loss
                move_average(ema, generator, self.decay)
        self.generator_ = ema.cpu().eval()
        self.learn_tone(data)

    def labels(self, random: torch.Generator, n: int | None = None) -> Tensor:
        many = self.batch if n is None else n
        drawn = torch.multinomial(self.shares_, many, replacement=True, generator=random)
        return drawn.to(self.place)

    def critic_step(
        self,
        generator: nn.Module,
        critic: nn.Module,
        adam: torch.optim.Optimizer,
        random: torch.Generator,
    ) -> dict[str, float]:
        """Make the step. The gradient of records is in place; that of generated images is added, unless the records' has it.
        What there is to tell of it."""
        told = {}
        if not self.losses.pairs:
            labels = self.labels(random)
            with torch.no_grad():
                made = generator(labels, random)
            loss = self.losses.of_made(critic, made, labels).mean()
            loss.backward()
            told["critic loss, generated"] = float(loss.detach())
        adam.step()
        return told

    def generator_step(
        self,
        generator: nn.Module,
        critic: nn.Module,
        adam: torch.optim.Optimizer,
        random: torch.Generator,
    ) -> float:
        labels = self.labels(random)
        adam.zero_grad()
        loss = self.losses.of_generator(critic, generator(labels, random), labels).mean()
        loss.backward()
        adam.step()
        return float(loss.detach())


class ImageAdversarial(Adversarial, Grained):
    """Convolutional generator and critic: the one makes pixels, and the other sees them."""

    critic_rate: float = setting("Adam's learning rate of the critic.", default=1e-3, above=0)
    grain: float = setting(default=0.0, free=False)

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        if schema.kind == "images" and min(schema.shape[1:]) < 4:
            raise BadInput(
                f"{self.info.name} makes images of at least 4 × 4 pixels; enlarge them with --image-size."
            )

    def build(self, schema: Schema) -> None:
        facts = schema.shape, schema.n_classes, self.latent, self.width
        self.generator_: nn.Module = seeded(self.seed, ImageGenerator, *facts)

    def critic(self, schema: Schema) -> nn.Module:
        return seeded(self.seed + 1, ImageCritic, schema.shape, schema.n_classes, self.width)

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        return self.toned(self.grained(self.generator_(labels, random), random))


class RecordAdversarial(ImageAdversarial):
    """The same for tables as well: dense networks on numbers in [0, 1] and one-hot categories, as the public Schema has them."""

    width: int = setting(
        "Channels of generator and critic at the full size; for a table, an eighth of the units of their dense layers.",
        default=16,
    )

    def build(self, schema: Schema) -> None:
        if schema.kind == "images":
            super().build(schema)
            return
        codec, width = TableCodec(schema), 8 * self.width
        self.generator_ = seeded(
            self.seed,
            lambda: TableGenerator(
                codec.numbers,
                schema.n_classes,
                self.latent,
                [width, width],
                blocks=[block.size for block in codec.blocks],
                optional=[(number, block.start) for number, block in codec.optional],
            ),
        )

    def critic(self, schema: Schema) -> nn.Module:
        if schema.kind == "images":
            return super().critic(schema)
        facts = TableCodec(schema).dim, schema.n_classes, 8 * self.width
        return seeded(self.seed + 1, TableCritic, *facts)

    def inputs(self, generator: nn.Module) -> Inputs:
        if self.schema_.kind == "images":
            return super().inputs(generator)
        codec = TableCodec(self.schema_)

        def encoded(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
            parts = torch.cat(codec.parts_of(batch), dim=1)  # (n, numbers + places)
            return labelled(Batch(parts, batch.labels), random)

        return encoded

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        if self.schema_.kind == "images":
            return super()._sample(labels, random)
        return TableCodec(self.schema_).finish(self.generator_(labels, random), random)


class LatentAdversarial(Encoded, Adversarial, Grained):
    """Dense generator and critic of four layers each: the one makes a codec's vectors, and the other sees them. Without a codec
    it is whatever stands behind it in the method's bases."""

    penalty: float = setting(
        "Weight λ of the gradient penalty; 10 is usual on the line.", default=1.0, above=0
    )
    penalty_at: str = setting(
        "Where the Wasserstein critic's slope is held: record (small, at the record; the paper's) or line (near 1, between a "
        "record and its companion; WGAN-GP's).",
        default=RECORD,
        choices=(LINE, RECORD),
    )

    def latent_networks(self, dim: int, schema: Schema) -> tuple[VectorGenerator, HeadedCritic]:
        classes = schema.n_classes
        return seeded(
            self.seed,
            lambda: (
                VectorGenerator(dim, classes, self.latent, self.width),
                HeadedCritic(dim, classes, self.width),
            ),
        )

    def build(self, schema: Schema) -> None:
        if self.codec is None:
            super().build(schema)
            return
        # A loaded run has its own codec, and the file that it came from may be gone.
        facts = self.codec_.facts if hasattr(self, "codec_") else self.codec_facts(schema)
        self.generator_: nn.Module = self.latent_networks(facts.dim, schema)[0]

    def critic(self, schema: Schema) -> nn.Module:
        if self.codec is None:
            return super().critic(schema)  # type: ignore[safe-super]
        return self.latent_networks(self.codec_facts(schema).dim, schema)[1]

    def _fit(self, data: Gate, run: Workspace) -> None:
        if self.codec is not None:
            self.open_codec(data.schema, run)
        super()._fit(data, run)

    @property
    def encode(self) -> Callable[[Tensor], Tensor] | None:
        if self.codec is None:
            return None
        return lambda pixels: self.codec_.encode(Batch(pixels, None)) / self._unit

    @property
    def _unit(self) -> float:
        """The size of a number in a vector of the greatest length: networks like numbers of about 1."""
        return self.codec_.bound / self.codec_.dim**0.5

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        made = self.generator_(labels, random)
        if self.codec is not None:
            made = self.codec_.decode(made * self._unit, generator=random)
        return self.toned(self.grained(made, random))
