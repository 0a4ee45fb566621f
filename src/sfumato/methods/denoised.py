"""The denoised kind: a network that learns, by paid steps, what is left to know of a noisy picture once a prior has spoken.

    D(x, s, y) = M(x, s, y) + c(s) · F(x, M, s, y)

x is a picture of pixels in [−1, 1] with noise of deviation s, M its posterior mean under the prior, in closed form, F the network
(`methods.denoising`).
Samples are starts with noise that is taken away in a few steps; after each, half of what is left is drawn anew.

The kind (`Denoised`) owns settings, the steps, their loss and the sampler; a method gives the prior, the starts, and what is
known before the steps. Private: the records, in the paid steps only.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators.denoiser import Denoiser
from sfumato.generators.gan import move_average
from sfumato.generators.networks import seeded
from sfumato.methods.base import Workspace
from sfumato.methods.capacity import usual_records
from sfumato.methods.denoising import Noised, denoising_loss, scale, seen
from sfumato.methods.parts import Trained
from sfumato.methods.posterior import Prior, spaced
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query
from sfumato.privacy.accounting import calibrate
from sfumato.privacy.query import gaussian_noise, plan

STEPS = "denoiser gradients"
# At r = records ÷ noise of a single sum (`capacity`): 16,000 is 60,000 records at ε = 1. Steps that served there and at ε = 10.
_USUAL, _USUAL_STEPS, _POWER = 16_000.0, 100.0, 0.9
_QUIET = 2.0  # noise multiplier of a single sum; ε = 1 has 3.7, ε = 10 has 0.5
_LEAST_SAMPLE = 128  # records in a step, where noise sets no limit
_LEAST_STEPS = 20  # fewer would leave more noise in the network than they teach it


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a setting by time stands for; on one core, of pictures of 28 pixels."""

    visits: int  # of records, in all paid steps
    levels: int
    width: int
    free_steps: int


EFFORTS = {
    "minutes": Effort(visits=200_000, levels=1, width=24, free_steps=400),
    "hour": Effort(visits=800_000, levels=2, width=24, free_steps=1_500),
    "hours": Effort(visits=1_000_000, levels=3, width=40, free_steps=3_000),
}


@dataclass(frozen=True, kw_only=True)
class Size:
    """Public, of settings, budget and number of records."""

    rate: float
    steps: int  # 0: no step would teach more than its noise unlearns
    levels: int
    width: int
    free_steps: int


class Denoised(Trained):
    """A prior in closed form, and a network beside it that is trained by DP-SGD."""

    FOLLOWS_SIZE = True
    AT_ONCE = 2000

    effort: str = setting(
        "How long it may take, on one core and with pictures of 28 pixels: sets steps, rate, levels and width that are auto.",
        default="minutes",
        choices=tuple(EFFORTS),
    )
    steps: int | None = setting(
        "Steps of the denoiser, each paid for; none of its own accord where noise would drown them.",
        default=None,
        low=1,
    )
    rate: float | None = setting(
        "Share of the records in a step's Poisson sample; expected batch = rate × number of records.",
        default=None,
        above=0,
        high=1,
    )
    levels: int | None = setting(
        "Noise levels at which each record of a step is seen; its gradient is their mean.",
        default=None,
        low=1,
        high=1_000,
    )
    width: int | None = setting(
        "Channels of the network at half size; twice as many at a quarter.",
        default=None,
        low=1,
    )
    clip: float = setting(
        "Norm to which each record's gradient is clipped; so small that nearly all are as long as each other.",
        default=0.01,
        low=1e-6,
        high=1e6,
    )
    learning_rate: float = setting("Adam's learning rate.", default=2e-3, above=0)
    decay: float = setting("Decay of the network's moving average.", default=0.95, low=0, below=1)
    low: float = setting(
        "Least noise level, of pixels in [−1, 1]; samples end there.", default=0.05, above=0
    )
    high: float = setting("Largest noise level that is learnt.", default=1.5, above=0)
    start: float | None = setting(
        "Noise level that samples start from; none for auto: 0.8, 0.6 at a small ε, and high where there is nothing but noise.",
        default=None,
        above=0,
    )
    stages: int = setting(
        "Steps in which a sample's noise is taken away.", default=7, low=1, high=10_000
    )
    fresh: float = setting(
        "Share of the noise that is drawn anew after each of these steps.",
        default=0.5,
        low=0,
        high=1,
    )
    free_steps: int | None = setting(
        "Steps on pictures that cost nothing, before the first paid one.", default=None, low=0
    )
    class_from: float | None = setting(
        "Noise level below which the network is not told the class; auto: never told it where the prior knows it already.",
        default=None,
        low=0,
    )

    # -- what a method writes ------------------------------------------------------------------------------------

    @abstractmethod
    def known_queries(self, schema: Schema, budget: Budget) -> list[Query]:
        """What is asked before the steps."""

    @abstractmethod
    def part(self, budget: Budget) -> float:
        """The share of the squared noise budget that these have."""

    @abstractmethod
    def know(self, data: Gate, run: Workspace) -> float:
        """Ask it; the number of records, or its estimate."""

    @abstractmethod
    def prior(self, levels: list[float] | None = None) -> Prior:
        """What is known, prepared for these levels, or for those of the training."""

    @abstractmethod
    def begin(self, labels: Tensor, random: torch.Generator) -> Tensor:
        """Pictures that samples start from, (n, C, H, W) in [−1, 1]."""

    @property
    def looks(self) -> int:
        """Pictures that the network sees: the noisy one, and what the prior makes of it."""
        return 2

    @property
    def usual_class_from(self) -> float:
        """Where nothing is said: a network that is told the class leaves a mark of it in its pictures, which real ones lack."""
        return math.inf

    def warm_up(self, network: nn.Module, steps: int, run: Workspace) -> None:
        """What the network learns for nothing before the first paid step: here nothing."""

    def finish(self, run: Workspace) -> None:
        """What is learnt of samples once the network is trained: here nothing."""

    # -- written once --------------------------------------------------------------------------------------------

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        if min(schema.shape[1:]) < 4:
            raise BadInput(
                f"{self.info.name} makes images of at least 4 × 4 pixels; enlarge them with --image-size."
            )
        if self.low >= self.high or not self.low < (self.start or self.high) <= self.high:
            raise BadInput(
                f"{self.info.name} takes noise away from start down to low, within low and high; choose low < start ≤ high."
            )

    def size(self, budget: Budget, records: int | None) -> Size:
        effort = EFFORTS[self.effort]
        n = records or usual_records(budget.delta)
        visits = effort.visits
        if self.steps is None:
            growth = (n / gaussian_noise(budget) / _USUAL) ** _POWER
            wanted = _USUAL_STEPS * growth * math.sqrt(visits / EFFORTS["minutes"].visits)
            steps = round(min(wanted, visits / _LEAST_SAMPLE)) if wanted >= _LEAST_STEPS else 0
        else:
            steps = self.steps
        return Size(
            steps=steps,
            rate=self.rate or min(1.0, visits / (max(1, steps) * n)),
            levels=self.levels or effort.levels,
            width=self.width or effort.width,
            free_steps=effort.free_steps if self.free_steps is None else self.free_steps,
        )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        known, size = self.known_queries(schema, budget), self.size(budget, schema.records)
        if not size.steps:
            return known
        parameters = sum(p.numel() for p in self.network(schema).parameters())
        steps = Query(
            label=STEPS,
            shape=(parameters,),
            bound=self.clip,
            rate=size.rate,
            steps=size.steps,
            over="gradients",
        )
        share = _share_of(tuple(known), steps, self.part(budget), budget)
        return [*known, replace(steps, share=share)]

    def network(self, schema: Schema) -> Denoiser:
        """A fresh one; that of the samples is `denoiser_`."""
        width = self.width or EFFORTS[self.effort].width
        told_from = self.usual_class_from if self.class_from is None else self.class_from
        facts = schema.shape, schema.n_classes, width, self.looks, told_from
        return seeded(self.seed, Denoiser, *facts)

    def build(self, schema: Schema) -> None:
        self.denoiser_: nn.Module = self.network(schema)

    def _fit(self, data: Gate, run: Workspace) -> None:
        size = self.size(data.budget, data.public_size)
        records = self.know(data, run)
        self.begin_: float = 0.0
        if not size.steps:
            run.progress.note(
                f"{self.info.name}: so few records for so much noise teach a network nothing; samples are the starts."
            )
            return
        random = torch.Generator().manual_seed(self.seed)
        network = self.denoiser_.to(self.place)
        if not run.resumed():
            self.warm_up(network, size.free_steps, run)
        ema = copy.deepcopy(network).requires_grad_(False)
        adam = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        training = run.training(
            "Training the denoiser", random, network=network, ema=ema, adam=adam
        )
        noised = Noised(self.prior(), size.levels, self.looks)
        for step in training(data.steps(STEPS)):
            step.gradient(network, denoising_loss, inputs=noised, over=size.rate * records)
            adam.step()
            move_average(ema, network, self.decay)
        self.denoiser_ = ema.cpu().eval()
        self.begin_ = self.start or self.usual_start(data.budget)
        self.finish(run)

    def usual_start(self, budget: Budget) -> float:
        """Where nothing is said: a level that hides edges and leaves shapes; the less is learnt, the lower."""
        return min(self.high, 0.8 if gaussian_noise(budget) < _QUIET else 0.6)

    # -- samples -------------------------------------------------------------------------------------------------

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        return (self.denoised(labels, random) + 1) / 2

    def denoised(self, labels: Tensor, random: torch.Generator) -> Tensor:
        """(n, C, H, W), about [−1, 1]"""
        x = self.begin(labels, random)
        if not self.begin_:
            return x
        prior = self._sampling_prior()
        x = x + float(prior.levels[0]) * torch.randn(x.shape, generator=random)
        for number, level in enumerate(prior.levels.tolist()):
            mean = prior.mean_at(x, labels, number)
            each = torch.full((len(x),), level)
            clean = mean + scale(each) * self.denoiser_(
                seen(x, mean, each, self.looks), each, labels
            )
            if number + 1 == len(prior.levels):
                return clean
            kept = (x - clean) / level
            drawn = torch.randn(x.shape, generator=random)
            noise = math.sqrt(1 - self.fresh) * kept + math.sqrt(self.fresh) * drawn
            x = clean + float(prior.levels[number + 1]) * noise
        raise AssertionError("there is at least one level")

    def _sampling_prior(self) -> Prior:
        """Prepared once for all samples of a fit."""
        key = self.denoiser_, self.begin_
        kept: tuple[object, Prior] | None = getattr(self, "_prepared", None)
        if kept is None or kept[0] != key:
            kept = key, self.prior(spaced(self.begin_, self.low, self.stages + 1))
            self._prepared = kept
        return kept[1]


@lru_cache(maxsize=64)
def _share_of(known: tuple[Query, ...], steps: Query, part: float, budget: Budget) -> float:
    """The share at which `steps` cost what the budget has left when `known` costs `part` of it, squared.

    `plan` takes a step's cost for (rate ÷ multiplier)², which holds for loud noise; with quiet steps of small samples it is far
    from it, and the steps would take the budget of what goes before them.
    """
    noise = gaussian_noise(budget) / math.sqrt(part)
    before = plan(known, noise)
    multiplier = calibrate(lambda m: (*before, steps.charge(m)), budget)
    whole = math.fsum(query.share for query in known)
    assert steps.steps is not None
    return whole * steps.steps * (noise * steps.rate / multiplier) ** 2
