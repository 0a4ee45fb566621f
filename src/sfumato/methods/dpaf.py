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
from typing import Any

import torch
from torch import nn

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators.dpaf import Discriminator, Encoder
from sfumato.generators.gan import ImageGenerator
from sfumato.methods.aggregation import AggregatedFeatures, FeaturesAndLabel, FilterGradients
from sfumato.methods.base import Workspace
from sfumato.methods.counting import count, with_counts
from sfumato.methods.descent import beside, descend
from sfumato.methods.dpaf_phases import Game, classify, classify_as_published
from sfumato.methods.gan import Gan
from sfumato.methods.registry import register
from sfumato.privacy import Charge, Plan, PrivateData, enforced_bound, enforced_gradient_bound

_FIRST_PHASES = ("dp-sgd", "random")
# Noise of the published first phase's "plain SGD", in units of one record: next to none, and charged for what it is.
_NEXT_TO_NO_NOISE = 1e-3
_UNCOUNTED = ("first conv2 gradients", "first features")


@register(
    "dpaf",
    title="DPAF",
    paper="“DPAF: Image Synthesis via Differentially Private Aggregation in Forward Phase”",
    kinds=("images",),
    summary="An adversarial network whose discriminator sees noisy sums of normalised feature maps.",
)
class Dpaf(Gan):
    """DPAF for labelled and unlabelled images.

    **Guarantee**: up to four charges, composed and calibrated jointly: noisy class counts (bound 1), the classifier's gradients
    (each record's clipped to `clip`), conv2's gradients (the same), and sums of normalised feature maps (norm at most √(m·h·w) by
    construction, and clipped to it); all but the counts over Poisson samples, and divided by expected sizes.
    `paper_variant=True` has no such guarantee: see `claimed_plan`.

    Differs from the paper: every part of the first phase's classifier is trained with noise, or conv1 is random; aggregates are
    by class, and the label enters behind them; conv2's gradients are taken at the noisy aggregate (the paper's, at the exact one,
    make each record's gradient depend on all others), over a sample of their own; budgets are composed, not added; a moving
    average of the generator.
    """

    HELP = {
        "rate": "Share of the records in a step's Poisson sample; expected sample = rate × number of records.",
        "steps": "Aggregation steps, each paid for.",
        "asymmetry": "conv2 is trained at every so many-th step, on so many times the records; μ in the paper.",
        "critic_steps": "Discriminator steps for each generator step.",
        "first_phase": "How conv1 comes about: dp-sgd (a classifier, trained with noise; needs labels) or random.",
        "first_steps": "Steps of the first phase.",
        "first_share": "Part of the squared noise budget for the first phase.",
        "filter_share": "Part of the squared noise budget for conv2's gradients; the aggregates get the rest.",
        "clip": "Norm to which gradients are clipped; conv2's in units of the median for generated images.",
        "keep": "Part of a record's conv2 gradient that is kept, the entries largest in size; 1 for all.",
        "batch": "Generated images per step.",
        "learning_rate": "Adam's learning rate of the generator.",
        "critic_rate": "Adam's learning rate of the discriminator.",
        "latent": "Normal numbers that go into the generator.",
        "width": "Channels of the generator at the full size.",
        "maps": "Channels of conv1, and feature maps of conv2, which are aggregated.",
        "decay": "Decay of the generator's moving average.",
        "grain": "Standard deviation of the grain added to sampled pixels in [0, 1], a public constant; 0 for none.",
        "paper_variant": "The first phase as published, which is UNSOUND: the statement then tells the true ε, a huge one.",
        "seed": "Public seed of the networks and of generated images; privacy noise never has a seed.",
    }

    def __init__(
        self,
        *,
        rate: float = 0.01,
        steps: int = 800,
        asymmetry: int = 8,
        critic_steps: int = 1,
        first_phase: str = "random",
        first_steps: int = 100,
        first_share: float = 0.1,
        filter_share: float = 0.1,
        clip: float = 1.0,
        keep: float = 0.9,
        batch: int = 160,
        learning_rate: float = 2e-3,
        critic_rate: float = 2e-3,
        latent: int = 32,
        width: int = 8,
        maps: int = 16,
        decay: float = 0.99,
        grain: float = 0.0,
        paper_variant: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            rate=rate,
            steps=steps,
            critic_steps=critic_steps,
            clip=clip,
            batch=batch,
            learning_rate=learning_rate,
            critic_rate=critic_rate,
            latent=latent,
            width=width,
            decay=decay,
            grain=grain,
            seed=seed,
        )
        self.asymmetry = asymmetry
        self.first_phase = first_phase
        self.first_steps = first_steps
        self.first_share = first_share
        self.filter_share = filter_share
        self.keep = keep
        self.maps = maps
        self.paper_variant = paper_variant

    # -- the plan ------------------------------------------------------------------------------------------------

    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        self._check(schema)
        return tuple(self._mechanisms(schema, noise_multiplier).values())

    def claimed_plan(self, schema: Schema, noise_multiplier: float) -> Plan | None:
        """What the paper counts of its own first phase: conv1's gradients, and not what steers them."""
        if not self.paper_variant:
            return None
        self._check(schema)
        charges = self._mechanisms(schema, noise_multiplier)
        return tuple(charge for name, charge in charges.items() if name not in _UNCOUNTED)

    def _mechanisms(self, schema: Schema, noise_multiplier: float) -> dict[str, Charge]:
        """By name, in the order in which they are paid."""
        network, first = self._discriminator(schema), self._first_phase(schema)
        phi = AggregatedFeatures(network.encoder, schema)
        filters = self._filter_gradients(network.encoder)
        first_share = 0.0 if first == "random" else self.first_share
        aggregates = _sampled(
            noise_multiplier,
            1 - first_share - self.filter_share,
            label="aggregated features",
            bound=enforced_bound(phi),
            rate=self.rate,
            steps=self.steps,
            dimension=phi.segments * phi.dim,
        )
        counts, aggregates = with_counts(schema, aggregates)
        found = {"counts": counts}
        if first != "random":
            alone = first == "published"
            trained: nn.Module = network.encoder.conv1 if alone else network
            found["first"] = _sampled(
                noise_multiplier,
                first_share,
                label=f"classifier {'conv1 ' if alone else ''}gradients",
                bound=enforced_gradient_bound(self.clip),
                rate=self.rate,
                steps=self.first_steps,
                dimension=sum(p.numel() for p in trained.parameters()),
            )
            found |= self._uncounted(network.encoder, schema) if alone else {}
        found["conv2"] = _sampled(
            noise_multiplier,
            self.filter_share,
            label="conv2 gradients",
            bound=enforced_bound(filters),
            rate=min(1.0, self.asymmetry * self.rate),
            steps=self.steps // self.asymmetry,
            dimension=filters.dim,
        )
        return {**found, "aggregates": aggregates}

    def _uncounted(self, encoder: Encoder, schema: Schema) -> dict[str, Charge]:
        """What the published first phase reads with next to no noise. The paper leaves it out; a ledger cannot."""
        maps = (self._filter_gradients(encoder), FeaturesAndLabel(encoder, schema))
        return {
            name: Charge(
                label=f"{name.replace('first', 'classifier')}, next to no noise",
                bound=enforced_bound(phi),
                noise_multiplier=_NEXT_TO_NO_NOISE,
                rate=self.rate,
                steps=self.first_steps,
                dimension=phi.dim,
                sampler="floating",
            )
            for name, phi in zip(_UNCOUNTED, maps, strict=True)
        }

    def _first_phase(self, schema: Schema) -> str:
        if self.paper_variant:
            return "published"
        return self.first_phase if schema.labelled else "random"

    def _filter_gradients(self, encoder: Encoder) -> FilterGradients:
        return FilterGradients(encoder, torch.zeros(1), bound=self.clip, keep=self.keep)

    # -- the work ------------------------------------------------------------------------------------------------

    def _fit(self, data: PrivateData, noise_multiplier: float, workspace: Workspace) -> None:
        charges = self._mechanisms(data.schema, noise_multiplier)
        counted = count(data, charges["counts"])
        workspace.log({"event": "release", "label": charges["counts"].label})
        self.shares_ = counted.shares
        network = self._discriminator(data.schema)
        if "first" in charges:
            first = classify_as_published if self.paper_variant else classify
            classifier = self._discriminator(data.schema)
            first(data, charges, classifier, counted.size, self, workspace)
            network.encoder.conv1.load_state_dict(classifier.encoder.conv1.state_dict())
        network.encoder.conv1.requires_grad_(False)
        aggregates = charges["aggregates"]
        game = Game(self._generator(data.schema), network, counted, aggregates, self)
        filters = beside(data, charges["conv2"], workspace, every=self.asymmetry)
        phi = AggregatedFeatures(network.encoder, data.schema)
        state = game.state
        for step in descend(data, aggregates, state, workspace, title="Training the discriminator"):
            real = game.averages(step.noisy_sum(phi))
            learns = (step.index + 1) % self.critic_steps == 0
            images, features = game.make(grad=learns)
            state.facts["discriminator loss"] = game.head_step(real, features)
            if learns:
                state.facts["generator loss"] = game.generator_step(features)
            if (step.index + 1) % self.asymmetry == 0:
                game.filter_step(next(filters), charges["conv2"], real, images)
        self.generator_ = game.average

    def _generator(self, schema: Schema) -> ImageGenerator:
        # Measured: four fifths of the time on a CPU.
        return super()._generator(schema).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _discriminator(self, schema: Schema) -> Discriminator:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + 1)
            return Discriminator(schema.shape, schema.n_classes, self.maps)

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        for setting in ("asymmetry", "first_steps", "maps"):
            value = getattr(self, setting)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadInput(
                    f"dpaf's {setting} must be a whole number of at least 1, not {value!r}."
                )
        if self.first_phase not in _FIRST_PHASES:
            raise BadInput(
                f"dpaf's first_phase must be one of {', '.join(_FIRST_PHASES)}, not {self.first_phase!r}."
            )
        if self.asymmetry > self.steps:
            raise BadInput(
                "dpaf's asymmetry must not exceed its steps, or conv2 would never be trained; use more steps."
            )
        if not 0 < self.keep <= 1:
            raise BadInput(f"dpaf's keep must lie in (0, 1], not {self.keep}.")
        shares = (self.first_share, self.filter_share)
        if not all(share > 0 for share in shares) or not sum(shares) < 1:
            raise BadInput(
                "dpaf's first_share and filter_share must be positive and leave something for the aggregates; their sum "
                f"must be below 1, not {sum(shares):g}."
            )
        if self.paper_variant and not schema.labelled:
            raise BadInput(
                "dpaf's paper_variant trains a classifier first and these data have no labels; leave paper_variant out."
            )


def _sampled(
    noise_multiplier: float, share: float, *, rate: float, steps: int, **what: Any
) -> Charge:
    """Steps that spend `share` of μ²: about steps · rate² ÷ multiplier², exactly so when the noise is large."""
    multiplier = noise_multiplier * rate * math.sqrt(steps / share)
    return Charge(noise_multiplier=multiplier, rate=rate, steps=steps, sampler="floating", **what)
