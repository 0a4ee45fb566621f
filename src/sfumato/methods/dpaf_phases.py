"""The two phases of DPAF, and what they ask of the wall: a classifier that leaves its conv1, then generator and discriminator.

What a phase learns of the records are the answers of paid steps; all else is computed from them and is public. Rows are of
bounded length, and no record's row depends on another record, since all that the rows share (the networks, the slope of the loss)
is public when they are computed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.data import Batch, Schema
from sfumato.generators.devices import moved
from sfumato.generators.dpaf import Discriminator, Encoder
from sfumato.generators.gan import move_average
from sfumato.methods.adversarial import BETAS
from sfumato.methods.base import Workspace
from sfumato.methods.counts import Counts
from sfumato.privacy import Gate, Paid, Query, Series, gradient_query

if TYPE_CHECKING:
    from sfumato.methods.dpaf import Dpaf

CLASSIFIER = "classifier gradients"
PUBLISHED_CONV1 = "classifier conv1 gradients"
PUBLISHED_CONV2 = "classifier conv2 gradients, next to no noise"
PUBLISHED_FEATURES = "classifier features, next to no noise"
_STAGE = "classifier"
_TITLE = "Training the classifier"
_CLASSIFIER_RATE = 2e-3
# Noise of the published first phase's "plain SGD", in units of one record: next to none, and charged for what it is.
_NEXT_TO_NO_NOISE = 1e-3

# -- rows ----------------------------------------------------------------------------------------------------------------------


def features_by_class(encoder: Encoder) -> Callable[[Batch], tuple[Tensor, Tensor | None]]:
    """A record's feature maps SIN(conv2(conv1(x))), filed by class: the aggregation DPAGG of the paper.

    Each of m maps of h × w numbers has norm √(h·w), or 0 if it is constant; so the record's norm is at most √(m·h·w), which for
    square maps is the paper's √m·p. A record lies in one class's block, so this holds for the joint vector.
    """

    def rows(batch: Batch) -> tuple[Tensor, Tensor | None]:
        with torch.no_grad():
            return encoder(_pixels(batch, encoder)).flatten(1), batch.labels  # (n, m · h · w), (n,)

    return rows


def features_and_label(encoder: Encoder, classes: int) -> Callable[[Batch], Tensor]:
    """A record's feature maps and its one-hot label, which is zero for a label of no known class: norm ≤ √(m·h·w + 1)."""

    def rows(batch: Batch) -> Tensor:
        assert batch.labels is not None
        one_hot = batch.labels[:, None] == torch.arange(classes)
        with torch.no_grad():
            return torch.cat([encoder(_pixels(batch, encoder)).flatten(1).cpu(), one_hot], dim=1)

    return rows


def _pixels(batch: Batch, encoder: Encoder) -> Tensor:
    """Where the encoder is."""
    return batch.pixels().to(encoder.conv2.weight.device)


class FilterGradients:
    """A record's gradient of ⟨slope, SIN(conv2(conv1(x)))⟩ with respect to conv2, compressed, in multiples of `unit`.

    `slopes` (classes, maps, h, w) are those of the loss at an aggregate that was released, so public. With A the average of the
    features, ∂loss/∂conv2 = Σ over records of these gradients ÷ number of records. One object serves all steps, since the wall
    finds out about rows once; slopes and unit change between them.
    """

    def __init__(
        self, encoder: Encoder, slopes: Tensor, *, bound: float, keep: float, unit: float = 1.0
    ) -> None:
        self.encoder, self.slopes = encoder, slopes
        self.bound, self.keep, self.unit = bound, keep, unit

    def __call__(self, batch: Batch) -> Tensor:
        found = self.gradients(_pixels(batch, self.encoder), batch.labels)
        rows = compressed(found.cpu(), self.keep) / self.unit
        # Clipped here as well, which the wall would have to do row by row.
        rows *= (self.bound / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)).clamp(max=1.0)
        return rows if batch.labels is None else rows * (batch.labels >= 0)[:, None]

    def gradients(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """(n, weights and biases): each record's own, from conv2's input and the gradient of its output."""
        conv2 = self.encoder.conv2
        with torch.no_grad():
            low = self.encoder.low(images)
        with torch.enable_grad():
            maps = conv2(low).detach().requires_grad_()
            by_class = labels is not None and len(self.slopes) > 1
            slopes = self.slopes
            if by_class:
                slopes = slopes[labels.clamp(min=0).to(slopes.device)]  # type: ignore[union-attr]
            total = (self.encoder.normalised(maps) * slopes).sum()
            (back,) = torch.autograd.grad(total, maps)  # (n, maps, h, w)
        assert not isinstance(conv2.padding, str)
        patches = functional.unfold(
            low, conv2.kernel_size, stride=conv2.stride, padding=conv2.padding
        )
        weights = torch.bmm(back.flatten(2), patches.mT)  # (n, maps, inputs · 9)
        return torch.cat([weights.flatten(1), back.sum(dim=(2, 3))], dim=1)


def compressed(rows: Tensor, keep: float) -> Tensor:
    """Each row with only its `keep` part of entries that are largest in size (Lin et al. 2018); ties are kept."""
    dropped = math.floor((1 - keep) * rows.shape[1] + 1e-9)
    if dropped == 0:
        return rows
    sizes = rows.abs()
    # Eight times as fast as torch.kthvalue.
    least = np.partition(sizes.numpy(), dropped, axis=1)[:, dropped : dropped + 1]
    return torch.where(sizes >= torch.from_numpy(least), rows, 0.0)


# -- the first phase -----------------------------------------------------------------------------------------------------------


def first_queries(how: Dpaf, network: Discriminator, schema: Schema) -> list[Query]:
    """The first phase; as published, with what the paper reads without noise and leaves out of its account."""
    encoder, phase = network.encoder, how.phase(schema)
    first = partial(
        gradient_query,
        bound=how.clip,
        share=how.first_share,
        rate=how.rate,
        steps=how.first_steps,
    )
    if phase != "published":
        return [first(CLASSIFIER, network)] if phase == "dp-sgd" else []
    conv1 = first(PUBLISHED_CONV1, encoder.conv1)
    conv2 = first(PUBLISHED_CONV2, encoder.conv2, over="records", noise=_NEXT_TO_NO_NOISE)
    features = math.prod(encoder.shape)
    aggregate = replace(
        conv2,
        label=PUBLISHED_FEATURES,
        shape=(features + schema.n_classes,),
        bound=math.sqrt(features + 1),
    )
    return [conv1, conv2, aggregate]


def train_classifier(
    how: Dpaf, network: Discriminator, size: float, data: Gate, run: Workspace
) -> None:
    """The first phase, sound: all parts of the classifier are trained with noisy gradients, without an aggregation."""
    adam = torch.optim.Adam(network.parameters(), lr=_CLASSIFIER_RATE)
    training = run.training(_TITLE, torch.Generator(), stage=_STAGE, network=network, adam=adam)
    for step in training(data.steps(CLASSIFIER)):
        step.gradient(network, _cross_entropy, over=how.rate * size)
        adam.step()


def train_as_published(
    how: Dpaf, network: Discriminator, size: float, data: Gate, run: Workspace
) -> None:
    """The first phase as the paper prints it, **unsound**: only conv1's gradients carry noise.

    The classifier guesses the shares of the classes in an aggregate of features. What the paper reads without noise (aggregates
    and shares, and through them conv3 and FC; the gradients of conv2) is read here with next to none, and paid for.
    """
    encoder, head, classes = network.encoder, network.head, data.schema.n_classes
    adams: dict[str, torch.optim.Optimizer] = {
        f"{name} adam": torch.optim.Adam(part.parameters(), lr=_CLASSIFIER_RATE)
        for name, part in (("conv1", encoder.conv1), ("conv2", encoder.conv2), ("head", head))
    }
    encoder.conv2.requires_grad_(False)  # its gradients are answers; those of records are conv1's
    slope = torch.zeros(1, *encoder.shape, device=how.place)
    filters = FilterGradients(encoder, slope, bound=how.clip, keep=how.keep)

    def along_slope(network: Callable[..., Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return (network(images) * slope).flatten(1).sum(dim=1)

    rows, expected = features_and_label(encoder, classes), how.rate * size
    conv1, conv2 = data.steps(PUBLISHED_CONV1), data.steps(PUBLISHED_CONV2)
    training = run.training(_TITLE, torch.Generator(), stage=_STAGE, network=network, **adams)
    for step in training(data.steps(PUBLISHED_FEATURES), beside={conv1: 1, conv2: 1}):
        answer = (step.sum(rows)[0].to(torch.float32) / expected).to(how.place)
        features = answer[:-classes].view(1, *encoder.shape).requires_grad_()
        head.zero_grad()
        loss = functional.mse_loss(head(features).softmax(dim=1)[0], answer[-classes:])
        loss.backward()
        assert features.grad is not None
        # In a direction only: the steps of Adam do not depend on the length.
        slope.copy_(functional.normalize(features.grad.flatten(), dim=0).view_as(slope))
        _assign(encoder.conv2, next(conv2).sum(filters)[0] / expected)
        next(conv1).gradient(encoder, along_slope, over=expected)
        for adam in adams.values():
            adam.step()


def _cross_entropy(network: Callable[..., Tensor], images: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(network(images), labels, reduction="none")


def _assign(module: nn.Module, gradient: Tensor) -> None:
    parts = gradient.to(torch.float32).split([p.numel() for p in module.parameters()])
    for parameter, part in zip(module.parameters(), parts, strict=True):
        parameter.grad = part.view_as(parameter).to(parameter.device, copy=True)


# -- the second phase ----------------------------------------------------------------------------------------------------------


class DpafTraining:
    """Generator against discriminator; conv1 is frozen, and records come in as noisy averages of their features only."""

    def __init__(
        self,
        how: Dpaf,
        network: Discriminator,
        counts: Counts,
        aggregates: Series,
        filters: Series,
        run: Workspace,
    ) -> None:
        counts = moved(counts, how.place)
        self.generator, self.network = how.generator_.to(how.place), network
        self.decay = how.decay
        self.ema = copy.deepcopy(self.generator).requires_grad_(False)
        self.random = torch.Generator().manual_seed(how.seed)
        self.adam, self.head_adam, self.conv2_adam = (
            torch.optim.Adam(module.parameters(), lr=rate, betas=BETAS)
            for module, rate in (
                (self.generator, how.learning_rate),
                (network.head, how.critic_rate),
                (network.encoder.conv2, how.critic_rate),
            )
        )
        self.training = run.training(
            "Training the discriminator",
            self.random,
            generator=self.generator,
            network=network,
            ema=self.ema,
            adam=self.adam,
            head_adam=self.head_adam,
            conv2_adam=self.conv2_adam,
        )
        self.present = counts.shares.nonzero()[:, 0]  # classes that have records
        self.weights = counts.shares[self.present]
        self.each = max(1, how.batch // len(self.present))
        self.labels = self.present.repeat_interleave(self.each)
        # Expected sizes of samples: of each class, and of all records for conv2.
        self.expected = (aggregates.query.rate * counts.size * self.weights).clamp(min=1.0)
        self.expected_filters = filters.query.rate * counts.size
        # The noise of a class's average; averages of generated images get as much, or the noise would tell them apart.
        self.noise_std = aggregates.noise_std / self.expected
        slopes = torch.zeros(len(counts.shares), *network.encoder.shape, device=how.place)
        self.filters = FilterGradients(network.encoder, slopes, bound=how.clip, keep=how.keep)

    def averages(self, sums: Tensor) -> Tensor:
        """Noisy sums by class → averages of the classes that have records, (present, maps, h, w)."""
        rows = sums.to(torch.float32).to(self.present.device)[self.present] / self.expected[:, None]
        return rows.view(-1, *self.network.encoder.shape)

    def generated(self, *, grad: bool) -> tuple[Tensor, Tensor]:
        """As many generated images of every class, class after class, and their features."""
        with torch.set_grad_enabled(grad):
            images = self.generator(self.labels, self.random)
            return images, self.network.encoder(images)

    def head_step(self, real: Tensor, features: Tensor) -> None:
        """conv3 and FC: post-processing of what was released."""
        self.head_adam.zero_grad()
        loss = self._loss(real, -1) + self._loss(self._averaged(features.detach()), 1)
        loss.backward()
        self.head_adam.step()
        self.training.facts["discriminator loss"] = loss.detach()

    def generator_step(self, features: Tensor) -> None:
        """−log D of single images: the generator learns to make an image, not an average of them."""
        self.adam.zero_grad()
        loss = functional.softplus(-self.network.logit(features, self.labels)).mean()
        loss.backward()
        self.adam.step()
        move_average(self.ema, self.generator, self.decay)
        self.training.facts["generator loss"] = loss.detach()

    def conv2_step(self, step: Paid, real: Tensor, images: Tensor) -> None:
        """conv2: the records' part of the gradient by a paid step, the generated images' part as it is."""
        encoder, filters = self.network.encoder, self.filters
        at = real.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self._loss(at, -1), at)  # (present, maps, h, w)
        filters.slopes[self.present] = slope / self.weights.view(-1, 1, 1, 1)
        images = images.detach()
        lengths = filters.gradients(images, self.labels).norm(dim=1)
        filters.unit = float(lengths.median().clamp(min=1e-8))
        noisy = step.sum(filters)[0] * filters.unit / self.expected_filters
        loss = self._loss(self._averaged(encoder(images)), 1)
        own = torch.autograd.grad(loss, list(encoder.conv2.parameters()))
        _assign(encoder.conv2, torch.cat([part.flatten().cpu() for part in own]) + noisy)
        self.conv2_adam.step()

    def _averaged(self, features: Tensor) -> Tensor:
        """Averages of generated images' features by class, as noisy as those of records."""
        means = features.unflatten(0, (len(self.present), self.each)).mean(dim=1)
        noise = torch.randn(means.shape, generator=self.random).to(means.device)
        return means + noise * self.noise_std.view(-1, 1, 1, 1)

    def _loss(self, averages: Tensor, sign: int) -> Tensor:
        """Cross-entropy, classes by their shares: −log D for records (sign −1), −log(1 − D) for generated images (sign 1)."""
        logits = self.network.logit(averages, self.present)
        return (functional.softplus(sign * logits) * self.weights).sum()
