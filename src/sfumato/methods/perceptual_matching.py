"""DP-MEPF's matching: the distance between released perceptual embeddings and a generator's, and which generator to keep.

The three losses estimate ‖μ̃ − E φ(G)‖² in a metric of the caller's:
- mmd: without bias, from the pairs of two different generated records;
- averaged: its gradient at a running mean of the generator's embedding, which is far less noisy than a batch's own;
- moving-average: a free vector follows the difference of means by Adam (dos Santos et al. 2019), as in the paper.

Released numbers and public features only: all of it is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.generators.embedding import MeanEmbedding
from sfumato.methods.matching import by_class
from sfumato.public.perceptual import Encoder, PerceptualFeatures

STOP_CHECKS, STOP_RECORDS = 20, 1000
FINAL_SEED = 20_230_801
_AT_ONCE = 100
# Adam's constants for the moving average (dos Santos et al. 2019).
_BETA1, _BETA2, _EPSILON = 0.5, 0.999, 1e-8
_STATE: dict[str, tuple[str, ...]] = {
    "mmd": (),
    "averaged": ("running",),
    "moving-average": ("average", "first", "second"),
}
LOSSES = tuple(_STATE)


@dataclass(frozen=True)
class Part:
    """One released embedding and the map it was made with; `pooled`: over all classes.

    `metric` (directions, features), if given, says in which directions and at which scale differences count: a choice made after
    the release.
    """

    phi: PerceptualFeatures
    embedding: MeanEmbedding
    pooled: bool = False
    metric: Tensor | None = None

    def seen(self, features: Tensor) -> Tensor:
        """Features, one row for each record or class, in the metric."""
        return features if self.metric is None else features @ self.metric.T

    @property
    def noise(self) -> float:
        """The expected squared length of a class's noise in the metric."""
        lengths = (
            self.embedding.mean.shape[1] if self.metric is None else self.metric.square().sum()
        )
        return float(lengths) * self.embedding.noise_std**2


class PerceptualMatching(nn.Module):
    """Step 3's loss and step 4's choice. A module, so that its state is in the checkpoints of the training loop."""

    shares: Tensor
    emphasis: Tensor
    labels: Tensor
    best_score: Tensor
    judge: Tensor

    def __init__(
        self,
        generator: nn.Module,
        encoder: Encoder,
        parts: list[Part],
        judged: Part | None,
        *,
        batch: int,
        steps: int,
        loss: str = "mmd",
        average_rate: float = 1e-3,
        memory: float = 0.7,
    ) -> None:
        super().__init__()
        self.generator = generator
        self._encoder = (encoder,)  # in a tuple: frozen weights do not belong into checkpoints
        self.parts, self.judged = parts, judged
        self.loss, self.average_rate, self.memory = loss, average_rate, memory
        self.checks = {steps * k // STOP_CHECKS for k in range(STOP_CHECKS // 5, STOP_CHECKS)}
        embedding = parts[0].embedding
        self.classes = len(embedding.shares)
        self.per_class = max(2, batch // self.classes)
        self.register_buffer("shares", embedding.shares, persistent=False)
        self.register_buffer("emphasis", embedding.emphasis, persistent=False)
        self.register_buffer("labels", self._labels(self.per_class), persistent=False)
        for index, part in enumerate(parts):
            target = part.seen(part.embedding.mean)
            self.register_buffer(f"target{index}", target, persistent=False)
            for name in _STATE[loss]:
                self.register_buffer(f"{name}{index}", torch.zeros_like(target))
        if judged is not None:
            self.register_buffer("judge", judged.seen(judged.embedding.mean), persistent=False)
            self.register_buffer("best_score", torch.tensor(math.inf))
            for index, value in enumerate(generator.state_dict().values()):
                self.register_buffer(f"best{index}", value.clone())

    def _labels(self, per_class: int) -> Tensor:
        return torch.arange(self.classes).repeat_interleave(per_class)

    def step_loss(self, step: int, generator: torch.Generator) -> Tensor:
        if self.judged is not None and step in self.checks:
            self._keep_if_better()
        # One pass of the encoder serves all maps.
        raw = self._encoder[0](self.generator(self.labels, generator))
        total = self.shares.new_zeros(())
        for index, part in enumerate(self.parts):
            rows, target = part.phi.of_taps(raw), getattr(self, f"target{index}")
            if self.loss == "mmd":
                total = total + self._distance(part.seen(rows), self.per_class, part, target)
            elif self.loss == "averaged":
                total = total + self._at_running_mean(rows, part, target, index, step)
            else:
                total = total + self._against_average(rows, part, target, index, step)
        return total

    def _means(self, rows: Tensor, part: Part) -> tuple[Tensor, Tensor]:
        """The batch's embedding as the release has it, in the metric, and the weight of each of its rows.

        Means first, metric second: the two commute, and there are few means.
        """
        means = rows.view(self.classes, self.per_class, -1).mean(dim=1) * self.shares[:, None]
        if part.pooled:
            return part.seen(means.sum(dim=0, keepdim=True)), self.shares.new_ones(1, 1)
        return part.seen(means), self.emphasis[:, None]

    def _at_running_mean(
        self, rows: Tensor, part: Part, target: Tensor, index: int, step: int
    ) -> Tensor:
        """2⟨m̄ − μ̃, m⟩, where m is the batch's embedding and m̄ its running mean: the gradient of ‖m − μ̃‖² with less noise."""
        means, weights = self._means(rows, part)
        running = getattr(self, f"running{index}")
        with torch.no_grad():
            running.lerp_(means, 1 - min(self.memory, step / (step + 1)))
        return 2 * (weights * (running - target) * means).sum()

    def _distance(self, rows: Tensor, per_class: int, part: Part, target: Tensor) -> Tensor:
        """An unbiased estimate of ‖μ̃ − E φ(G)‖², less the noise's own energy; `rows` are sorted by class in equal numbers.

        As in `MeanEmbedding.mmd2`, the products of a generated record with itself are left out.
        """
        sums, norm2 = by_class(rows, self.classes)  # (classes, dim), (classes,)
        pairs = (sums.square().sum(dim=1) - per_class * norm2) / (per_class * (per_class - 1))
        noise = part.noise
        if not part.pooled:
            cross = self.shares * (sums * target).sum(dim=1) / per_class
            terms = self.shares.square() * pairs - 2 * cross
            terms = terms + target.square().sum(dim=1) - noise
            return (self.emphasis * terms).sum()
        # Pooled: ‖Σ_c π_c m_c‖², where only products within a class can be of a record with itself.
        means = sums / per_class
        pooled = (self.shares[:, None] * means).sum(dim=0)
        within = self.shares.square() * (means.square().sum(dim=1) - pairs)
        cross = (pooled * target[0]).sum()
        return pooled.square().sum() - within.sum() - 2 * cross + target.square().sum() - noise

    def _against_average(
        self, rows: Tensor, part: Part, target: Tensor, index: int, step: int
    ) -> Tensor:
        """The loss of dos Santos et al. (2019): a free vector follows the difference of means by Adam."""
        means, weights = self._means(rows, part)
        # In units of a typical entry, so that one learning rate serves all numbers of features and classes.
        unit = len(means) * math.sqrt(means.shape[1])
        gap = (target - means) * unit
        average, first, second = (
            getattr(self, f"{name}{index}") for name in ("average", "first", "second")
        )
        with torch.no_grad():
            slope = average - gap
            first.lerp_(slope, 1 - _BETA1)
            second.mul_(_BETA2).addcmul_(slope, slope, value=1 - _BETA2)
            ahead = first / (1 - _BETA1 ** (step + 1))
            spread = (second / (1 - _BETA2 ** (step + 1))).sqrt_().add_(_EPSILON)
            average.addcdiv_(ahead, spread, value=-self.average_rate)
        return 2 * (weights * average * gap).sum() / unit**2

    # -- after and during training: judging -------------------------------------------------------------------------

    @torch.no_grad()
    def _judgement(
        self, part: Part, target: Tensor, generator: torch.Generator, records: int
    ) -> float:
        rows, _ = self.made(part, generator, records)
        return float(self._distance(part.seen(rows), len(rows) // self.classes, part, target))

    @torch.no_grad()
    def made(self, part: Part, generator: torch.Generator, records: int) -> tuple[Tensor, Tensor]:
        """The features of about `records` pictures, as many of each class, and their labels, sorted."""
        labels = self._labels(max(2, records // self.classes)).to(self.shares.device)
        training = self.generator.training
        self.generator.eval()
        rows = [part.phi.of(self.generator(some, generator)) for some in labels.split(_AT_ONCE)]
        self.generator.train(training)
        return torch.cat(rows), labels

    def _keep_if_better(self) -> None:
        assert self.judged is not None
        random = torch.Generator().manual_seed(FINAL_SEED)
        score = self._judgement(self.judged, self.judge, random, STOP_RECORDS)
        if score < float(self.best_score):
            self.best_score.fill_(score)
            for index, value in enumerate(self.generator.state_dict().values()):
                getattr(self, f"best{index}").copy_(value)

    def finish(self) -> None:
        """Leave the generator that the second release prefers, if there is one."""
        if self.judged is not None:
            self._keep_if_better()
            names = self.generator.state_dict().keys()
            self.generator.load_state_dict(
                {n: getattr(self, f"best{i}") for i, n in enumerate(names)}
            )

    def final(self, generator: torch.Generator, records: int) -> float:
        """The matching loss on more records, to choose among generators by."""
        return sum(
            self._judgement(part, getattr(self, f"target{index}"), generator, records)
            for index, part in enumerate(self.parts)
        )
