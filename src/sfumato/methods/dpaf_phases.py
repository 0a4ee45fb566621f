"""The two phases of DPAF, and what they ask of the wall: a classifier that leaves its conv1, then generator and discriminator.

Two ablations of the paper have no first phase: conv1 learns in the discriminator, by gradients of its own (S4, table 5) or by one
gradient with conv2's (table 6).

What a phase learns of the records are the answers of paid steps; all else is computed from them and is public. Rows are of
bounded length, and no record's row depends on another record, since all that the rows share (the networks, the slope of the loss)
is public when they are computed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.data import Batch
from sfumato.generators.devices import moved
from sfumato.generators.dpaf import Discriminator, Encoder, convolutions
from sfumato.generators.gan import move_average
from sfumato.methods.adversarial import BETAS
from sfumato.methods.base import Workspace
from sfumato.methods.counts import Counts
from sfumato.privacy import Gate, Query, Series, gradient_query

if TYPE_CHECKING:
    from sfumato.methods.dpaf import Dpaf

CONV1, CONV2, JOINT = "conv1 gradients", "conv2 gradients", "conv1 and conv2 gradients"
CLASSIFIER = "classifier gradients"
PUBLISHED_CONV1 = "classifier conv1 gradients"
PUBLISHED_CONV2 = "classifier conv2 gradients, next to no noise"
PUBLISHED_FEATURES = "classifier features, next to no noise"
_STAGE = "classifier"
_TITLE = "Training the classifier"
_CLASSIFIER_RATE = 2e-3
# Noise of the published first phase's "plain SGD", in units of one record: next to none, and charged for what it is.
_NEXT_TO_NO_NOISE = 1e-3
_DEEP_ROWS = 64  # images at a time whose patches of conv1 are laid out

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
    """A record's gradient of ⟨slope, SIN(conv2(conv1(x)))⟩ with respect to some layers, compressed, in multiples of `unit`.

    `slopes` (classes, maps, h, w) are those of the loss at an aggregate that was released, so public. With A the average of the
    features, ∂loss/∂conv2 = Σ over records of these gradients ÷ number of records. One object serves all steps, since the wall
    finds out about rows once; slopes and unit change between them. `of` is the part of the encoder, conv2 where nothing is said.
    """

    def __init__(
        self,
        encoder: Encoder,
        slopes: Tensor,
        *,
        bound: float,
        keep: float,
        unit: float = 1.0,
        of: nn.Module | None = None,
    ) -> None:
        self.encoder, self.slopes = encoder, slopes
        self.bound, self.keep, self.unit = bound, keep, unit
        self.layers = convolutions(of or encoder.conv2)

    def __call__(self, batch: Batch) -> Tensor:
        found = self.gradients(_pixels(batch, self.encoder), batch.labels)
        rows = compressed(found.cpu(), self.keep) / self.unit
        # Clipped here as well, which the wall would have to do row by row.
        rows *= (self.bound / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)).clamp(max=1.0)
        return rows if batch.labels is None else rows * (batch.labels >= 0)[:, None]

    def gradients(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """(n, weights and biases): each record's own, from every layer's input and the gradient of its output."""
        if labels is not None and len(self.slopes) > 1:
            slopes = self.slopes[labels.clamp(min=0).to(self.slopes.device)]
        else:
            slopes = self.slopes.expand(len(images), -1, -1, -1)
        if self.layers == [self.encoder.conv2]:
            return self._gradients(images, slopes)
        pairs = zip(images.split(_DEEP_ROWS), slopes.split(_DEEP_ROWS), strict=True)
        return torch.cat([self._gradients(*pair) for pair in pairs])

    def _gradients(self, images: Tensor, slopes: Tensor) -> Tensor:
        x = 2 * images - 1
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []
        for layer in [*self.encoder.conv1, self.encoder.conv2]:
            # Nothing is asked of what comes before the first of the layers.
            with torch.set_grad_enabled(bool(outputs)):
                made = layer(x)
            if layer in self.layers:
                inputs.append(x.detach())
                outputs.append(made if outputs else made.requires_grad_())
            x = made
        with torch.enable_grad():
            total = (self.encoder.normalised(x) * slopes).sum()
            backs = torch.autograd.grad(total, outputs)  # (n, maps, h, w) each
        parts: list[Tensor] = []
        for layer, low, back in zip(self.layers, inputs, backs, strict=True):
            assert not isinstance(layer.padding, str)
            patches = functional.unfold(
                low, layer.kernel_size, stride=layer.stride, padding=layer.padding
            )
            weights = torch.bmm(back.flatten(2), patches.mT)  # (n, maps, inputs · 9)
            parts += [weights.flatten(1), back.sum(dim=(2, 3))]
        return torch.cat(parts, dim=1)


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


def first_queries(
    how: Dpaf, network: Discriminator, phase: str, classes: int, share: float
) -> list[Query]:
    """The first phase; as published, with what the paper reads without noise and leaves out of its account."""
    if phase not in ("dp-sgd", "published"):
        return []
    encoder = network.encoder
    first = partial(
        gradient_query,
        bound=how.clip,
        share=share,
        rate=how.rate,
        steps=how.first_steps,
    )
    if phase == "dp-sgd":
        return [first(CLASSIFIER, network)]
    conv1 = first(PUBLISHED_CONV1, encoder.conv1)
    conv2 = first(PUBLISHED_CONV2, encoder.conv2, over="records", noise=_NEXT_TO_NO_NOISE)
    features = math.prod(encoder.shape)
    aggregate = replace(
        conv2,
        label=PUBLISHED_FEATURES,
        shape=(features + classes,),
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


def filters_of(encoder: Encoder, phase: str) -> dict[str, nn.Module]:
    """What of the encoder learns in the second phase, each by steps of its own: conv2, or conv1 as well."""
    if phase == "joint":
        return {JOINT: encoder}
    return (
        {CONV1: encoder.conv1, CONV2: encoder.conv2}
        if phase == "separate"
        else {CONV2: encoder.conv2}
    )


def filter_queries(how: Dpaf, encoder: Encoder, phase: str, shares: Sequence[float]) -> list[Query]:
    """Their gradients; `shares` are conv1's, where it has steps of its own here, and conv2's, or that of both as one."""
    query = partial(
        gradient_query,
        over="records",
        bound=how.clip,
        rate=how.rate_of_filters,
        steps=how.steps // how.asymmetry,
    )
    parts = filters_of(encoder, phase)
    return [
        query(label, part, share=share)
        for (label, part), share in zip(parts.items(), shares[-len(parts) :], strict=True)
    ]


class DpafTraining:
    """Generator against discriminator; records come in as noisy averages of their features, and of gradients of the filters."""

    def __init__(
        self,
        how: Dpaf,
        network: Discriminator,
        counts: Counts,
        aggregates: Series,
        filters: dict[Series, nn.Module],
        run: Workspace,
    ) -> None:
        counts = moved(counts, how.place)
        self.generator, self.network = how.generator_.to(how.place), network
        self.decay = how.decay
        self.ema = copy.deepcopy(self.generator).requires_grad_(False)
        self.random = torch.Generator().manual_seed(how.seed)
        self.adam = torch.optim.Adam(self.generator.parameters(), lr=how.learning_rate, betas=BETAS)
        critic = partial(torch.optim.Adam, lr=how.critic_rate, betas=BETAS)
        self.head_adam = critic(network.head.parameters())
        self.filter_adams = {part: critic(part.parameters()) for part in filters.values()}
        # Under the names that checkpoints know.
        names = [series.query.label.removesuffix(" gradients") for series in filters]
        adams: dict[str, Any] = {
            f"{n}_adam": a for n, a in zip(names, self.filter_adams.values(), strict=True)
        }
        self.training = run.training(
            "Training the discriminator",
            self.random,
            generator=self.generator,
            network=network,
            ema=self.ema,
            adam=self.adam,
            head_adam=self.head_adam,
            **adams,
        )
        self.present = counts.shares.nonzero()[:, 0]  # classes that have records
        self.weights = counts.shares[self.present]
        self.each = max(1, how.batch // len(self.present))
        self.labels = self.present.repeat_interleave(self.each)
        # Expected sizes of samples: of each class, and of all records for filters.
        self.expected = (aggregates.query.rate * counts.size * self.weights).clamp(min=1.0)
        self.expected_filters = how.rate_of_filters * counts.size
        # The noise of a class's average; averages of generated images get as much, or the noise would tell them apart.
        self.noise_std = aggregates.noise_std / self.expected
        self.slopes = torch.zeros(len(counts.shares), *network.encoder.shape, device=how.place)
        made = partial(FilterGradients, network.encoder, self.slopes, bound=how.clip, keep=how.keep)
        self.filters = {series: (part, made(of=part)) for series, part in filters.items()}

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

    def filter_step(self, real: Tensor, images: Tensor) -> None:
        """conv2 (and conv1): the records' part of the gradient by a paid step, the generated images' part as it is."""
        at = real.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self._loss(at, -1), at)  # (present, maps, h, w)
        self.slopes[self.present] = slope / self.weights.view(-1, 1, 1, 1)
        images = images.detach()
        loss = self._loss(self._averaged(self.network.encoder(images)), 1)
        for series, (part, rows) in self.filters.items():
            lengths = rows.gradients(images, self.labels).norm(dim=1)
            rows.unit = float(lengths.median().clamp(min=1e-8))
            noisy = next(series).sum(rows)[0] * rows.unit / self.expected_filters
            own = torch.autograd.grad(loss, list(part.parameters()), retain_graph=True)
            _assign(part, torch.cat([numbers.flatten().cpu() for numbers in own]) + noisy)
        for adam in self.filter_adams.values():
            adam.step()

    def _averaged(self, features: Tensor) -> Tensor:
        """Averages of generated images' features by class, as noisy as those of records."""
        means = features.unflatten(0, (len(self.present), self.each)).mean(dim=1)
        noise = torch.randn(means.shape, generator=self.random).to(means.device)
        return means + noise * self.noise_std.view(-1, 1, 1, 1)

    def _loss(self, averages: Tensor, sign: int) -> Tensor:
        """Cross-entropy, classes by their shares: −log D for records (sign −1), −log(1 − D) for generated images (sign 1)."""
        logits = self.network.logit(averages, self.present)
        return (functional.softplus(sign * logits) * self.weights).sum()
