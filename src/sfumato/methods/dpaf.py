"""DPAF: a conditional adversarial network whose discriminator sees records only as noisy sums of their feature maps ("DPAF: Image
synthesis via differentially private aggregation in forward phase").

    first phase:    conv1 of a classifier conv1 → conv2 → conv3 → FC, trained with noisy gradients; or random
    then, with conv1 frozen, repeat `steps` times:
        aggregate:  A_y = Σ over a Poisson sample of SIN(conv2(conv1(x))), by class, + noise, ÷ expected size     (a paid step)
        head:       conv3 and FC tell A_y from the same average of generated images                             (free)
        conv2:      every μ-th time, each record's gradient of ⟨∂loss/∂A_y, SIN(conv2(conv1(x)))⟩, its largest
                    entries, clipped, summed over a sample μ times as large, + noise                             (a paid step)
        generator:  minimise −log D(G(z, y), y), features of single images going straight to conv3              (free)

Private: the records, in the paid steps and in a noisy count of the classes. Public: the Schema, all settings.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators.dpaf import Discriminator
from sfumato.generators.networks import seeded
from sfumato.methods.adversarial import ImageAdversarial
from sfumato.methods.base import Workspace
from sfumato.methods.counts import count, count_query
from sfumato.methods.dpaf_budget import Divided
from sfumato.methods.dpaf_phases import (
    CONV2,
    DpafTraining,
    features_by_class,
    filter_queries,
    filters_of,
    first_queries,
    train_as_published,
    train_classifier,
)
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query

_AGGREGATES = "aggregated features"


class Dpaf(Divided, ImageAdversarial):
    """DPAF for labelled and unlabelled images.

    **Guarantee**: up to four charges, composed and calibrated jointly: noisy class counts (bound 1), the classifier's gradients
    (each record's clipped to `clip`), conv2's gradients (the same), and sums of normalised feature maps (norm at most √(m·h·w) by
    construction, and clipped to it); all but the counts over Poisson samples, and divided by expected sizes.
    `paper_variant=True` has no such guarantee: what the paper leaves out of its account is charged all the same, and the
    statement calls the rest a claim.

    Differs from the paper: every part of the first phase's classifier is trained with noise, or conv1 is random; aggregates are
    by class, and the label enters behind them; conv2's gradients are taken at the noisy aggregate (at the exact one, as in the
    paper, each depends on all records), over a sample of their own; budgets are composed, not added; a moving average of G.
    """

    info = MethodInfo(
        name="dpaf",
        title="DPAF",
        paper="“DPAF: Image Synthesis via Differentially Private Aggregation in Forward Phase”",
        summary="An adversarial network whose discriminator sees noisy sums of normalised feature maps.",
    )
    TINY: ClassVar = {"rate": 0.5, "steps": 6, "batch": 12, "latent": 4, "width": 4, "maps": 4} | {
        "asymmetry": 3,
        "first_phase": "dp-sgd",
        "first_steps": 2,
    }

    rate: float = setting(default=0.01)
    steps: int = setting("Aggregation steps, each paid for.", default=800)
    asymmetry: int = setting(
        "conv2 is trained at every so many-th step, on so many times the records; μ in the paper.",
        default=8,
        low=1,
    )
    critic_steps: int = setting("Discriminator steps for each generator step.", default=1)
    first_phase: str = setting(
        "How conv1 comes about: dp-sgd (a classifier, trained with noise; needs labels), random; without a first phase, two "
        "ablations of the paper: separate (trained in the discriminator), joint (there, with conv2 as one gradient).",
        default="random",
        choices=("dp-sgd", "random", "separate", "joint"),
    )
    conv1_std: float | None = setting(
        "Standard deviation of conv1's random weights, 0.02 in the paper where they stay random; auto: torch's own.",
        default=None,
        above=0,
    )
    first_steps: int = setting("Steps of the first phase.", default=100, low=1)
    clip: float = setting(
        "Norm to which gradients are clipped; conv2's in units of the median for generated images.",
        default=1.0,
    )
    keep: float = setting(
        "Part of a record's conv2 gradient that is kept, the entries largest in size; 1 for all.",
        default=0.9,
        above=0,
        high=1,
    )
    batch: int = setting(default=160)
    learning_rate: float = setting(default=2e-3)
    critic_rate: float = setting("Adam's learning rate of the discriminator.", default=2e-3)
    width: int = setting("Channels of the generator at the full size.", default=8)
    maps: int = setting(
        "Channels of conv1, and feature maps of conv2, which are aggregated.", default=16, low=1
    )
    paper_variant: bool = setting(
        "The first phase as published, which is UNSOUND: the statement then tells the true ε, a huge one.",
        default=False,
    )

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        if self.asymmetry > self.steps:
            raise BadInput(
                "dpaf's asymmetry must not exceed its steps, or conv2 would never be trained; use more steps."
            )
        if self.paper_variant and not schema.labelled:
            raise BadInput(
                "dpaf's paper_variant trains a classifier first and these data have no labels; leave paper_variant out."
            )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        network, phase = self.critic(schema), self.phase(schema)
        *shares, rest = self.shares(phase, budget)
        first = first_queries(self, network, phase, schema.n_classes, shares[0])
        filters = filter_queries(self, network.encoder, phase, shares)
        features = math.prod(network.encoder.shape)
        aggregates = Query(
            label=_AGGREGATES,
            shape=(features,),
            bound=math.sqrt(features),
            segments=max(1, schema.n_classes),
            share=rest,
            rate=self.rate,
            steps=self.steps,
        )
        # Counts have a share beside 1 for all others.
        return self.with_tone(schema, [count_query(schema), *first, *filters, aggregates])

    def phase(self, schema: Schema) -> str:
        """How conv1 comes about with these data."""
        if self.paper_variant:
            return "published"
        return (
            "random" if self.first_phase == "dp-sgd" and not schema.labelled else self.first_phase
        )

    @property
    def rate_of_filters(self) -> float:
        return min(1.0, self.asymmetry * self.rate)

    def build(self, schema: Schema) -> None:
        super().build(schema)
        # Measured: four fifths of the time on a CPU.
        self.generator_ = self.generator_.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def critic(self, schema: Schema) -> Discriminator:
        facts = (schema.shape, schema.n_classes, self.maps, self.conv1_std)
        return seeded(self.seed + 1, Discriminator, *facts)

    def _fit(self, data: Gate, run: Workspace) -> None:
        counts = count(data)
        self.shares_ = counts.shares
        network = self.critic(data.schema).to(self.place)
        if (phase := self.phase(data.schema)) in ("dp-sgd", "published"):
            train_first = train_as_published if phase == "published" else train_classifier
            classifier = self.critic(data.schema).to(self.place)
            train_first(self, classifier, counts.size, data, run)
            network.encoder.conv1.load_state_dict(classifier.encoder.conv1.state_dict())
        learning = filters_of(network.encoder, phase)
        network.encoder.conv1.requires_grad_(list(learning) != [CONV2])
        aggregates = data.steps(_AGGREGATES)
        filters = {data.steps(label): part for label, part in learning.items()}
        second = DpafTraining(self, network, counts, aggregates, filters, run)
        rows = features_by_class(network.encoder)
        for step in second.training(aggregates, beside=dict.fromkeys(filters, self.asymmetry)):
            real = second.averages(step.sum(rows))
            generator_learns = (step.index + 1) % self.critic_steps == 0
            images, features = second.generated(grad=generator_learns)
            second.head_step(real, features)
            if generator_learns:
                second.generator_step(features)
            if (step.index + 1) % self.asymmetry == 0:
                second.filter_step(real, images)
        self.generator_ = second.ema.cpu().eval()
        self.learn_tone(data)
