"""DP-MEPF's matching: the distance of a generator from the released embedding, which generator to keep, and which samples.

The three losses estimate ‖μ̃ − E φ(G)‖² in a metric of the caller's:
- mmd: without bias, from the pairs of two different generated records;
- averaged: its gradient at a running mean of the generator's embedding, which is far less noisy than a batch's own;
- moving-average: a free vector follows the difference of means by Adam (dos Santos et al. 2019), as in the paper.

Released numbers, generated pictures and public features only: all of it is post-processing.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.generators.embedding import MeanEmbedding
from sfumato.methods.distances import by_class, class_by_class
from sfumato.methods.saved import Record
from sfumato.public.perceptual import PerceptualFeatures

FINAL_SEED, FINAL_RECORDS = 20_230_801, 1000  # any constant: all generators are judged alike
_AT_ONCE = 100
_MEMORY = 0.7  # share of the running mean that a step keeps
# Adam's constants for the moving average (dos Santos et al. 2019).
_BETA1, _BETA2, _EPSILON = 0.5, 0.999, 1e-8
_STATE: dict[str, tuple[str, ...]] = {
    "mmd": (),
    "averaged": ("running",),
    "moving-average": ("average", "first", "second"),
}
LOSSES = tuple(_STATE)
# The rule for checking samples: generated records that it is made from, and numbers that their features may take.
_RULE_RECORDS, _RULE_NUMBERS = 3000, 2**26
_RULE_AGREES = 0.5  # with this share of the generator's pictures, or it is not used
_DIRECTIONS = 1000  # most directions of the spread that count
_RIDGE = 0.3  # added to every direction's variance, in units of the mean; the noise's variance where that is larger


@dataclass(frozen=True)
class Target:
    """A released embedding and the map it was made with.

    `metric` (directions, features), if given, says in which directions and at which scale differences count: a choice made after
    the release.
    """

    phi: PerceptualFeatures
    embedding: MeanEmbedding
    metric: Tensor | None = None

    def seen(self, features: Tensor) -> Tensor:
        """Features, one row for each record or class, in the metric."""
        return features if self.metric is None else features @ self.metric.T.to(features.device)

    @property
    def noise(self) -> float:
        """The expected squared length of a class's noise in the metric."""
        lengths = (
            self.embedding.mean.shape[1] if self.metric is None else self.metric.square().sum()
        )
        return float(lengths) * self.embedding.noise_std**2


class PerceptualDistance(nn.Module):
    """Step 3's loss and step 4's choice. A module, so that its state is in the checkpoints of the training loop."""

    shares: Tensor
    emphasis: Tensor
    labels: Tensor
    mean: Tensor
    stop_mean: Tensor
    best_score: Tensor

    def __init__(
        self,
        generator: nn.Module,
        target: Target,
        stopping: Target | None = None,
        *,
        batch: int,
        steps: int,
        loss: str = "mmd",
        average_rate: float = 1e-3,
        checks: int = 20,
        stop_records: int = 1000,
        short: bool = False,
    ) -> None:
        super().__init__()
        self.generator, self.target, self.stopping = generator, target, stopping
        self.kind, self.average_rate = loss, average_rate
        self.short = short
        self.checks = {steps * k // checks for k in range(checks)}
        self.stop_records = stop_records
        embedding = target.embedding
        self.classes = len(embedding.shares)
        self.per_class = max(2, batch // self.classes)
        self.register_buffer("shares", embedding.shares, persistent=False)
        self.register_buffer("emphasis", embedding.emphasis, persistent=False)
        labels = class_by_class(self.classes, self.per_class)
        self.register_buffer("labels", labels, persistent=False)
        self.register_buffer("mean", target.seen(embedding.mean), persistent=False)
        for name in _STATE[loss]:
            self.register_buffer(name, torch.zeros_like(self.mean))
        if stopping is not None:
            stop_mean = stopping.seen(stopping.embedding.mean)
            self.register_buffer("stop_mean", stop_mean, persistent=False)
            self.register_buffer("best_score", torch.tensor(math.inf))
            for index, value in enumerate(generator.state_dict().values()):
                self.register_buffer(f"best{index}", value.clone())

    def loss(self, step: int, random: torch.Generator) -> Tensor:
        if self.stopping is not None and step in self.checks:
            self._keep_if_better()
        rows = self._features(random)  # (records, features)
        if self.kind == "mmd":
            return self._distance(self.target.seen(rows), self.per_class, self.target, self.mean)
        # Means first, metric second: the two commute, and there are few means.
        means = rows.view(self.classes, self.per_class, -1).mean(dim=1) * self.shares[:, None]
        means = self.target.seen(means)  # (classes, directions), as the release has them
        if self.kind == "averaged":
            return self._at_running_mean(means, step)
        return self._against_average(means, step)

    def _features(self, random: torch.Generator) -> Tensor:
        """Of a batch of pictures. Short numbers, if wanted, in both networks only: distances are sums of thousands."""
        phi = self.target.phi
        # Not every device has short numbers, and one that has none is not to be asked.
        where = self.shares.device.type
        with torch.autocast(where, torch.bfloat16) if self.short else nullcontext():
            layers = phi.encoder(self.generator(self.labels, random).float())
        return phi.of_layers([layer.float() for layer in layers])

    def _at_running_mean(self, means: Tensor, step: int) -> Tensor:
        """2⟨m̄ − μ̃, m⟩, where m is the batch's embedding and m̄ its running mean: the gradient of ‖m − μ̃‖² with less noise."""
        running = self.get_buffer("running")
        with torch.no_grad():
            running.lerp_(means, 1 - min(_MEMORY, step / (step + 1)))
        return 2 * (self.emphasis[:, None] * (running - self.mean) * means).sum()

    def _against_average(self, means: Tensor, step: int) -> Tensor:
        """The loss of dos Santos et al. (2019): a free vector follows the difference of means by Adam."""
        # In units of a typical entry, so that one learning rate serves all numbers of features and classes.
        unit = len(means) * math.sqrt(means.shape[1])
        gap = (self.mean - means) * unit
        average, first, second = (self.get_buffer(name) for name in _STATE["moving-average"])
        with torch.no_grad():
            slope = average - gap
            first.lerp_(slope, 1 - _BETA1)
            second.mul_(_BETA2).addcmul_(slope, slope, value=1 - _BETA2)
            ahead = first / (1 - _BETA1 ** (step + 1))
            spread = (second / (1 - _BETA2 ** (step + 1))).sqrt_().add_(_EPSILON)
            average.addcdiv_(ahead, spread, value=-self.average_rate)
        return 2 * (self.emphasis[:, None] * average * gap).sum() / unit**2

    def _distance(self, rows: Tensor, per_class: int, target: Target, mean: Tensor) -> Tensor:
        """An unbiased estimate of ‖μ̃ − E φ(G)‖², less the noise's own energy; `rows` are sorted by class in equal numbers, or of
        all classes together.

        As in `MeanEmbedding.mmd2`, the products of a generated record with itself are left out.
        """
        apart = self._apart(target)
        shares = self.shares if apart else self.shares.new_ones(1)
        sums, norm2 = by_class(rows, len(shares))  # (classes, dim), (classes,)
        pairs = (sums.square().sum(dim=1) - per_class * norm2) / (per_class * (per_class - 1))
        cross = shares * (sums * mean).sum(dim=1) / per_class
        terms = shares.square() * pairs - 2 * cross
        terms = terms + mean.square().sum(dim=1) - target.noise
        return (self.emphasis * terms).sum() if apart else terms.sum()

    def _apart(self, target: Target) -> bool:
        """Whether its embedding is of each class, or of all together."""
        return len(target.embedding.shares) == self.classes

    # -- during and after training: which generator to keep ----------------------------------------------------------

    @torch.no_grad()
    def made(self, target: Target, random: torch.Generator, records: int) -> tuple[Tensor, Tensor]:
        """The features of about `records` pictures and their labels, sorted: as many of each class, or, where the target is all
        together, by the classes' shares."""
        labels = class_by_class(self.classes, max(2, records // self.classes))
        if not self._apart(target):
            upto = (self.shares.cpu().double().cumsum(0) * records).round().long()
            labels = torch.arange(self.classes).repeat_interleave(upto.diff(prepend=upto[:1] * 0))
        labels = labels.to(self.shares.device)
        training = self.generator.training
        self.generator.eval()
        rows = [target.phi.of(self.generator(some, random)) for some in labels.split(_AT_ONCE)]
        self.generator.train(training)
        return torch.cat(rows), labels

    def _score(self, target: Target, mean: Tensor, random: torch.Generator, records: int) -> float:
        rows, _ = self.made(target, random, records)
        return float(self._distance(target.seen(rows), len(rows) // len(mean), target, mean))

    def _keep_if_better(self) -> None:
        assert self.stopping is not None
        random = torch.Generator().manual_seed(FINAL_SEED)
        score = self._score(self.stopping, self.stop_mean, random, self.stop_records)
        if score < float(self.best_score):
            self.best_score.fill_(score)
            for index, value in enumerate(self.generator.state_dict().values()):
                self.get_buffer(f"best{index}").copy_(value)

    def final(self, random: torch.Generator, records: int) -> float:
        """Leave the generator that the second release prefers, if there is one; its distance, to choose among generators by."""
        if self.stopping is not None:
            self._keep_if_better()
            names = self.generator.state_dict().keys()
            best = {name: self.get_buffer(f"best{i}") for i, name in enumerate(names)}
            self.generator.load_state_dict(best)
        return self._score(self.target, self.mean, random, records)

    def rule(self) -> Discriminant | None:
        """How to tell a picture's class by the released embedding; None where there are no classes to tell apart.

        Where most pictures fail, because the noise is large or the generator poor, drawing again costs much and helps little:
        then there is none either.
        """
        phi, embedding = self.target.phi, self.target.embedding
        there = embedding.shares > 0
        if int(there.sum()) < 2:
            return None
        some = max(2, min(_RULE_RECORDS, _RULE_NUMBERS // phi.dim))
        made = self.made(self.target, torch.Generator().manual_seed(FINAL_SEED + 1), some)
        rows, labels = (part.cpu() for part in made)
        rows, labels = rows[there[labels]], labels[there[labels]]
        found = Discriminant.of(embedding, rows, labels)
        if float((found(rows) == labels).float().mean()) < _RULE_AGREES:
            return None
        return found.before(phi)


@dataclass(frozen=True)
class Discriminant(Record):
    """A linear rule that tells classes apart by their released embeddings, for checking a generator's pictures.

    The released mean of each class is a mean over the private records themselves; a generator comes near it on average, and some
    of its pictures belong to the wrong class all the same. Fisher's linear discriminant needs the means and how records spread
    around them, which the generator's own pictures show.

    `weights` (classes, dim) and `offsets` (classes,): a row of features belongs where weights · row + offset is greatest.
    """

    weights: Tensor
    offsets: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, dim) → (n,) classes"""
        return (rows @ self.weights.T + self.offsets).argmax(dim=1)

    def before(self, phi: PerceptualFeatures) -> Discriminant:
        """The same rule for features that φ has not yet centred (nor clipped, which the rule leaves out)."""
        if phi.centre is None or phi.radius is None:
            return self
        weights = self.weights / phi.radius
        return Discriminant(weights, self.offsets - weights @ phi.centre.cpu())

    @classmethod
    def of(cls, embedding: MeanEmbedding, rows: Tensor, labels: Tensor) -> Discriminant:
        """From released means and the features of generated pictures.

        With S the pictures' covariance around their class means, in its principal directions and with a ridge, and m̃_c the
        released mean of class c: the class of least (x − m̃_c)ᵀ S⁻¹ (x − m̃_c), classes being equally likely. The noise in m̃_c adds
        to that distance by a known amount on average, more for a rare class, which is taken off. A class without records wins
        nothing.
        """
        shares = embedding.shares[:, None]
        there = shares[:, 0] > 0
        means = torch.where(there[:, None], embedding.mean / shares.clamp(min=1e-9), 0.0)
        around = rows - _class_means(rows, labels, len(means))[labels]
        directions, variances = _principal(around, _DIRECTIONS)
        noise = (embedding.noise_std / shares[:, 0].clamp(min=1e-9)) ** 2  # of m̃_c, each direction
        ridge = torch.maximum(_RIDGE * variances.mean(), noise[there].mean())
        precision = 1 / (variances + ridge).clamp(min=1e-20)
        seen = means @ directions.T  # (classes, directions)
        offsets = -0.5 * (seen.square() @ precision - noise * precision.sum())
        return cls(
            weights=(seen * precision) @ directions,
            offsets=torch.where(there, offsets, -torch.inf),
        )


def _class_means(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows)
    return sums / torch.bincount(labels, minlength=classes).clamp(min=1)[:, None]


def _principal(centred: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The principal directions (k, dim) of centred rows and the variances along them, by the smaller of the two Gram matrices."""
    n, dim = centred.shape
    small = centred @ centred.T if n <= dim else centred.T @ centred
    values, vectors = torch.linalg.eigh(small.to(torch.float64))
    largest = max(float(values[-1]), 1e-30)
    chosen = torch.arange(len(values)).flip(0)[:most]
    chosen = chosen[values[chosen] > 1e-6 * largest]
    values, vectors = values[chosen], vectors[:, chosen].to(centred.dtype)
    lengths = values.sqrt()[:, None].to(centred.dtype)
    directions = vectors.T if n > dim else (vectors.T @ centred) / lengths
    return directions, (values / n).to(centred.dtype)
