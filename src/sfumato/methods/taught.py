"""The taught kind: paid, noisy gradients of generated images, back-propagated through the generator.

    repeat `steps` times:
        X = G(z, y), labels y drawn from the released shares                                            (free)
        the noisy gradient of some loss with respect to X, of all images at once                        (a paid step)
        back-propagated through G; Adam; a moving average of G                                          (free)

The kind owns settings, the loop, the moving average and samples; a method says what gradient it asks for. The generator reaches
the records only through these gradients. Public: the Schema, all settings; after their release the noisy class counts.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sfumato.data import Schema
from sfumato.generators.gan import move_average
from sfumato.generators.networks import ConvGenerator, seeded
from sfumato.methods.base import Workspace
from sfumato.methods.counts import count, count_query
from sfumato.methods.parts import Grained, Stepped
from sfumato.methods.settings import setting
from sfumato.methods.tone import Toned
from sfumato.privacy import Gate, Query
from sfumato.privacy.gate import Paid
from sfumato.privacy.query import Over

LABEL = "image gradients"
DECAY = 0.98  # of the generator's moving average
_BETAS = (0.9, 0.99)

# What a paid step answers of images as they are seen, (batch, numbers), and their labels: a mean gradient, flat.
ImageGradient = Callable[[Paid, Tensor, Tensor], Tensor]


class Taught(Stepped, Grained, Toned):
    """A conditional generator of images that learns from noisy gradients of what it made."""

    rate: float = setting(default=0.016)
    steps: int = setting("Generator steps, each paid for.", default=1_500)
    clip: float = setting(
        "Norm to which a summand, a gradient of all generated images together, is clipped.",
        default=0.5,
    )
    batch: int = setting(
        "Generated images per step; one alone has no distribution.", default=100, low=2
    )
    learning_rate: float = setting("Adam's learning rate of the generator.", default=2e-3, above=0)
    latent: int = setting("Normal numbers that go into the generator.", default=10, low=1)
    hidden: int = setting("Width of the generator's dense layer.", default=200, low=1)
    grain: float = setting(default=0.0, free=False)

    @abstractmethod
    def image_gradient(self, schema: Schema) -> ImageGradient:
        """What a fit asks of the records; what it must know of earlier steps of the fit, the function keeps."""

    def seen(self, images: Tensor) -> Tensor:
        """What gradients are asked of, (n, numbers): here the pixels themselves."""
        return images.flatten(1)

    def asked(self, schema: Schema, over: Over, parts: int) -> list[Query]:
        """Counts, then the paid steps: sums over parts of the records, each clipped as one vector."""
        numbers = self.batch * self.seen(torch.zeros(1, *schema.shape)).numel()
        steps = Query(label=LABEL, shape=(numbers,), over=over, parts=parts, **self.sampled)
        return self.with_tone(schema, [count_query(schema), steps])

    def build(self, schema: Schema) -> None:
        facts = schema.shape, schema.n_classes, self.latent, self.hidden
        self.generator_: nn.Module = seeded(self.seed, ConvGenerator, *facts)

    def _fit(self, data: Gate, run: Workspace) -> None:
        self.shares_ = count(data).shares
        generator, gradient_of = self.generator_.to(self.place), self.image_gradient(data.schema)
        ema = copy.deepcopy(generator).requires_grad_(False)
        adam = torch.optim.Adam(generator.parameters(), lr=self.learning_rate, betas=_BETAS)
        random = torch.Generator().manual_seed(self.seed)
        training = run.training(
            "Training the generator", random, generator=generator, ema=ema, adam=adam
        )
        for step in training(data.steps(LABEL)):
            labels = torch.multinomial(self.shares_, self.batch, replacement=True, generator=random)
            labels = labels.to(self.place)
            seen = self.seen(generator(labels, random))  # (batch, numbers)
            gradient = gradient_of(step, seen.detach(), labels)
            adam.zero_grad()
            seen.backward(gradient.view_as(seen).to(self.place))
            adam.step()
            move_average(ema, generator, DECAY)
        self.generator_ = ema.cpu().eval()
        self.learn_tone(data)

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        return self.toned(self.grained(self.generator_(labels, random), random))
