"""The two phases of DPAF: a classifier that leaves its conv1, and the game between generator and discriminator.

What a phase learns of the records are the answers of paid steps; all else is computed from them and is public.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from sfumato.generators.dpaf import Discriminator
from sfumato.generators.gan import ImageGenerator, move_average
from sfumato.methods.aggregation import FeaturesAndLabel, FilterGradients
from sfumato.methods.base import Workspace
from sfumato.methods.counting import Counted
from sfumato.methods.descent import TrainingState, beside, descend
from sfumato.privacy import Charge, GradientSum, PrivateData, Step

if TYPE_CHECKING:
    from sfumato.methods.dpaf import Dpaf

_STAGE = "classifier"
_TITLE = "Training the classifier"
_BETAS = (0.5, 0.9)
_CLASSIFIER_RATE = 2e-3
_Charges = Mapping[str, Charge]


def classify(
    data: PrivateData,
    charges: _Charges,
    network: Discriminator,
    size: float,
    how: Dpaf,
    workspace: Workspace,
) -> None:
    """The first phase, sound: all parts of the classifier are trained with noisy gradients, without an aggregation."""
    optimiser = torch.optim.Adam(network.parameters(), lr=_CLASSIFIER_RATE)
    gradients = GradientSum(network, _cross_entropy, bound=how.clip)
    state = TrainingState({"network": network}, {"network": optimiser})
    charge = charges["first"]
    for step in descend(data, charge, state, workspace, title=_TITLE, stage=_STAGE):
        gradients.assign(step.noisy_gradient(gradients) / (charge.rate * size))
        optimiser.step()


def classify_as_published(
    data: PrivateData,
    charges: _Charges,
    network: Discriminator,
    size: float,
    how: Dpaf,
    workspace: Workspace,
) -> None:
    """The first phase as the paper prints it, **unsound**: only conv1's gradients carry noise.

    The classifier guesses the shares of the classes in an aggregate of features. What the paper reads without noise (aggregates
    and shares, and through them conv3 and FC; the gradients of conv2) is read here with next to none, and paid for.
    """
    encoder, head = network.encoder, network.head
    parts = {"conv1": encoder.conv1, "conv2": encoder.conv2, "head": head}
    optimisers: dict[str, torch.optim.Optimizer] = {
        name: torch.optim.Adam(part.parameters(), lr=_CLASSIFIER_RATE)
        for name, part in parts.items()
    }
    slope = torch.zeros(1, *encoder.shape)
    encoder.conv2.requires_grad_(False)
    conv1 = GradientSum(encoder, _along(slope), bound=how.clip)
    encoder.conv2.requires_grad_(True)
    state = TrainingState({"network": network}, optimisers)
    phi = FeaturesAndLabel(encoder, data.schema)
    filters = FilterGradients(encoder, slope, bound=how.clip, keep=how.keep)
    expected = charges["first"].rate * size
    of_conv1, of_conv2 = (
        beside(data, charges[name], workspace, stage=_STAGE)
        for name in ("first", "first conv2 gradients")
    )
    for step in descend(
        data, charges["first features"], state, workspace, title=_TITLE, stage=_STAGE
    ):
        answer = step.noisy_sum(phi)[0].to(torch.float32) / expected
        features = answer[: -phi.classes].view(1, *encoder.shape).requires_grad_()
        shares = answer[-phi.classes :]
        optimisers["head"].zero_grad()
        loss = functional.mse_loss(head(features).softmax(dim=1)[0], shares)
        loss.backward()
        assert features.grad is not None
        # In a direction only: the steps of Adam do not depend on the length.
        slope.copy_(functional.normalize(features.grad.flatten(), dim=0).view_as(slope))
        _assign(encoder.conv2, next(of_conv2).noisy_sum(filters)[0] / expected)
        encoder.conv2.requires_grad_(False)
        conv1.assign(next(of_conv1).noisy_gradient(conv1) / expected)
        encoder.conv2.requires_grad_(True)
        for optimiser in optimisers.values():
            optimiser.step()


def _cross_entropy(network: Callable[..., Tensor], images: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(network(images), labels, reduction="none")


def _along(slope: Tensor) -> Callable[..., Tensor]:
    def loss(network: Callable[..., Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return (network(images) * slope).flatten(1).sum(dim=1)

    return loss


def _assign(module: torch.nn.Module, gradient: Tensor) -> None:
    parts = gradient.to(torch.float32).split([p.numel() for p in module.parameters()])
    for parameter, part in zip(module.parameters(), parts, strict=True):
        parameter.grad = part.view_as(parameter).clone()


class Game:
    """Generator against discriminator; conv1 is frozen, and records come in as noisy averages of their features only."""

    def __init__(
        self,
        generator: ImageGenerator,
        network: Discriminator,
        counted: Counted,
        aggregates: Charge,
        how: Dpaf,
    ) -> None:
        self.generator, self.network, self.how = generator, network, how
        self.average = copy.deepcopy(generator).requires_grad_(False)
        self.size, self.classes = counted.size, len(counted.shares)
        self.present = counted.shares.nonzero()[:, 0]
        self.weights = counted.shares[self.present]
        self._expected = (aggregates.rate * counted.size * self.weights).clamp(min=1.0)
        # The noise of a class's average; averages of generated images get as much, or the noise would tell them apart.
        self._spread = aggregates.noise_std / self._expected
        self._each = max(1, how.batch // len(self.present))
        rates = {"generator": how.learning_rate, "head": how.critic_rate, "conv2": how.critic_rate}
        trained = {"generator": generator, "head": network.head, "conv2": network.encoder.conv2}
        # One map for all steps: what the wall finds out about a map, it finds out once.
        slopes = torch.zeros(self.classes, *network.encoder.shape)
        self._filters = FilterGradients(network.encoder, slopes, bound=how.clip, keep=how.keep)
        self._adam: dict[str, torch.optim.Optimizer] = {
            name: torch.optim.Adam(trained[name].parameters(), lr=rate, betas=_BETAS)
            for name, rate in rates.items()
        }
        self.state = TrainingState(
            {"generator": generator, "network": network, "average": self.average},
            self._adam,
            random=torch.Generator().manual_seed(how.seed),
        )

    def averages(self, sums: Tensor) -> Tensor:
        """Noisy sums by class → averages of the classes that have records, (present, maps, h, w)."""
        return _over(sums[self.present].to(torch.float32), self._expected).view(
            -1, *self.network.encoder.shape
        )

    def make(self, *, grad: bool) -> tuple[Tensor, Tensor]:
        """As many generated images of every class, class after class, and their features."""
        with torch.set_grad_enabled(grad):
            images = self.generator(self._labels(), self.state.random)
            return images, self.network.encoder(images)

    def head_step(self, real: Tensor, features: Tensor) -> float:
        """conv3 and FC: post-processing of what was released."""
        self._adam["head"].zero_grad()
        loss = self._loss(real, -1) + self._loss(self._averaged(features.detach()), 1)
        loss.backward()
        self._adam["head"].step()
        return float(loss.detach())

    def generator_step(self, features: Tensor) -> float:
        """−log D of single images: the generator learns to make an image, not an average of them."""
        self._adam["generator"].zero_grad()
        loss = functional.softplus(-self.network.verdict(features, self._labels())).mean()
        loss.backward()
        self._adam["generator"].step()
        move_average(self.average, self.generator, self.how.decay)
        return float(loss.detach())

    def filter_step(self, step: Step, charge: Charge, real: Tensor, images: Tensor) -> None:
        """conv2: the records' part of the gradient by a paid step, the generated images' part as it is."""
        encoder = self.network.encoder
        at = real.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self._loss(at, -1), at)
        slopes = torch.zeros(self.classes, *encoder.shape)
        slopes[self.present] = _over(slope, self.weights)
        images = images.detach()
        phi = self._filters
        phi.slopes = slopes
        phi.unit = float(phi.gradients(images, self._labels()).norm(dim=1).median().clamp(min=1e-8))
        noisy = step.noisy_sum(phi)[0] * phi.unit / (charge.rate * self.size)
        loss = self._loss(self._averaged(encoder(images)), 1)
        own = torch.autograd.grad(loss, list(encoder.conv2.parameters()))
        _assign(encoder.conv2, torch.cat([part.flatten() for part in own]) + noisy)
        self._adam["conv2"].step()

    def _labels(self) -> Tensor:
        return self.present.repeat_interleave(self._each)

    def _averaged(self, features: Tensor) -> Tensor:
        """Averages of generated images' features by class, as noisy as those of records."""
        means = features.unflatten(0, (len(self.present), self._each)).mean(dim=1)
        noise = torch.randn(means.shape, generator=self.state.random)
        return means + noise * self._spread.view(-1, 1, 1, 1)

    def _loss(self, averages: Tensor, sign: int) -> Tensor:
        """Cross-entropy, classes by their shares: −log D for records (sign −1), −log(1 − D) for generated images (sign 1)."""
        verdict = self.network.verdict(averages, self.present)
        return (functional.softplus(sign * verdict) * self.weights).sum()


def _over(rows: Tensor, divisor: Tensor) -> Tensor:
    return rows / divisor.view(-1, *[1] * (rows.ndim - 1))
