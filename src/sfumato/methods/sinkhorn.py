"""DP-Sinkhorn: a generator that minimises an optimal-transport divergence to the records (Cao et al. 2021).

    repeat `steps` times:
        X = G(z, y), labels y drawn from the released shares                                            (free)
        for every group Y of a Poisson sample of the records:
            ∇_X of the Sinkhorn divergence OT(X, Y) − ½ OT(X, X) − ½ OT(Y, Y), clipped as a whole to norm `clip`
        the sum over groups + noise, back-propagated through G                                          (a paid step)

No critic and no saddle point: the gradient of what the generator made is all that is asked of the records. Private: the records.
Public: the Schema, all settings; after their release the noisy class counts.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.generators.gan import move_average
from sfumato.methods.base import Workspace
from sfumato.methods.counting import count, with_counts
from sfumato.methods.descent import TrainingState, descend
from sfumato.methods.images import ImageSynthesizer
from sfumato.methods.registry import register
from sfumato.methods.transport import squared_distances, transport_gradient, transport_plan
from sfumato.privacy import Charge, GroupSum, Plan, PrivateData, enforced_group_bound

_LABEL = "image gradients"


@register(
    "sinkhorn",
    title="DP-Sinkhorn",
    paper="Cao et al. 2021, “Don't Generate Me: Training Differentially Private Generative Models with Sinkhorn Divergence”",
    kinds=("images",),
    summary="A generator that minimises an optimal-transport divergence; gradients of its images are clipped and noisy.",
)
class Sinkhorn(ImageSynthesizer):
    """DP-Sinkhorn for labelled and unlabelled images.

    **Guarantee**: two charges, composed and calibrated jointly: noisy class counts (bound 1), and `steps` sums over the groups of
    a Poisson sample. A group's summand depends on all of its records together, so it is clipped as one vector, all generated
    images at once, and one record may move it by 2 · `clip` under every relation: that is charged (`privacy.groups`). Sizes of
    samples and groups stay inside; a sum is divided by the number of groups, which is public.

    Differs from the paper: a sample is divided into several groups, each with a clipped gradient of its own, since noise is paid
    per record and not per group (`groups=1` is the paper's); sensitivity 2 · clip; records are weighed so that each class has the
    share of the generated labels, where the paper leaves unequal class counts to the transport; full debiasing; a convolutional
    generator that a CPU can train, and its moving average.
    """

    HELP = {
        "rate": "Share of the records in a step's Poisson sample.",
        "groups": "Groups that a sample is divided into; each gives one clipped gradient, from rate × records ÷ groups records.",
        "steps": "Generator steps, each paid for.",
        "clip": "Norm to which a group's gradient, of all generated images together, is clipped.",
        "batch": "Generated images per step.",
        "entropy": "Weight of the entropy, as a share of the greatest squared distance between two images.",
        "iterations": "Sinkhorn iterations.",
        "label_weight": "Length of a label beside its image, as a share of the greatest distance between two images.",
        "learning_rate": "Adam's learning rate.",
        "latent": "Normal numbers that go into the generator.",
        "hidden": "Width of the generator's dense layer.",
        "decay": "Decay of the generator's moving average.",
        "grain": "Standard deviation of the grain added to sampled pixels in [0, 1], a public constant; 0 for none.",
        "seed": "Public seed of the network and of generated images; privacy noise never has a seed.",
    }

    def __init__(
        self,
        *,
        rate: float = 0.016,
        groups: int = 16,
        steps: int = 1_500,
        clip: float = 0.5,
        batch: int = 100,
        entropy: float = 0.005,
        iterations: int = 20,
        label_weight: float = 0.25,
        learning_rate: float = 2e-3,
        latent: int = 10,
        hidden: int = 200,
        decay: float = 0.98,
        grain: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.rate = rate
        self.groups = groups
        self.steps = steps
        self.clip = clip
        self.batch = batch
        self.entropy = entropy
        self.iterations = iterations
        self.label_weight = label_weight
        self.learning_rate = learning_rate
        self.latent = latent
        self.hidden = hidden
        self.decay = decay
        self.grain = grain
        self.seed = seed

    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        self._check()
        return self._charges(schema, noise_multiplier)

    def _charges(self, schema: Schema, noise_multiplier: float) -> tuple[Charge, Charge]:
        dim = self.batch * schema.dim
        steps = Charge(
            label=_LABEL,
            bound=enforced_group_bound(dim, self.clip),
            noise_multiplier=noise_multiplier,
            rate=self.rate,
            steps=self.steps,
            dimension=dim,
            summands="groups",
        )
        return with_counts(schema, steps)

    def _fit(self, data: PrivateData, noise_multiplier: float, workspace: Workspace) -> None:
        counts, steps = self._charges(data.schema, noise_multiplier)
        self.shares_ = count(data, counts).shares
        workspace.log({"event": "release", "label": counts.label})
        generator = self._generator(data.schema)
        average = copy.deepcopy(generator).requires_grad_(False)
        optimiser = torch.optim.Adam(
            generator.parameters(), lr=self.learning_rate, betas=(0.9, 0.99)
        )
        state = TrainingState(
            {"generator": generator, "average": average},
            {"generator": optimiser},
            random=torch.Generator().manual_seed(self.seed),
        )
        for step in descend(data, steps, state, workspace, title="Training the generator"):
            labels = torch.multinomial(
                self.shares_, self.batch, replacement=True, generator=state.random
            )
            images = generator(labels, state.random)
            divergence = _Divergence(images.detach(), labels, self)
            gradient = step.noisy_groups(
                GroupSum(
                    divergence.gradient, dim=images.numel(), bound=self.clip, groups=self.groups
                )
            )
            optimiser.zero_grad()
            images.backward((gradient / self.groups).view_as(images))
            optimiser.step()
            move_average(average, generator, self.decay)
        self.generator_ = average.eval()

    def _check(self) -> None:
        self._check_settings(
            whole=("groups", "steps", "batch", "iterations", "latent", "hidden"),
            positive=("clip", "entropy", "learning_rate"),
            below_one=("decay", "grain"),
        )
        if self.batch < 2:
            raise BadInput("sinkhorn's batch must be at least 2: one image has no distribution.")
        if not 0 < self.rate <= 1:
            raise BadInput(f"sinkhorn's rate must lie in (0, 1], not {self.rate}.")
        if not self.label_weight >= 0:
            raise BadInput(
                f"sinkhorn's label_weight must not be negative, not {self.label_weight}."
            )


class _Divergence:
    """The Sinkhorn divergence between generated images and a group of records, as a function of the generated images.

    Its public half, the transport of the generated images to themselves, is computed once.
    """

    def __init__(self, images: Tensor, labels: Tensor, how: Sinkhorn) -> None:
        self.labels, self.iterations = labels, how.iterations
        self.classes = int(labels.max()) + 1
        self.entropy = how.entropy * images[0].numel()
        self.length = how.label_weight * images[0].numel() ** 0.5
        self.pixels = images.flatten(1)
        self.weights = torch.full((len(images),), 1 / len(images))
        self.own = self._toward(self.pixels, labels, self.weights, self.weights)

    def gradient(self, group: Batch) -> Tensor:
        """∇ of OT(X, Y) − ½ OT(X, X) with respect to the generated images X, flat; OT(Y, Y) does not depend on them."""
        records = group.pixels().flatten(1)
        labels = torch.zeros(len(records), dtype=torch.int64)
        if group.labels is not None:
            labels = group.labels
        known = torch.isfinite(records).all(dim=1) & torch.isin(labels, self.labels)
        records, labels = records[known], labels[known]
        if len(records) == 0:
            return torch.zeros(self.pixels.numel())
        # Each class of the group weighs what it weighs among the generated images; images of a class that it lacks rest.
        size = max(self.classes, int(labels.max()) + 1)
        made = torch.bincount(self.labels, self.weights, minlength=size)
        b = (made / torch.bincount(labels, minlength=size).clamp(min=1))[labels]
        present = torch.isin(self.labels, labels)
        a = torch.where(present, self.weights, 0.0)
        toward = self._toward(records, labels, a, b)
        return torch.where(present[:, None], toward - self.own, 0.0).flatten()

    def _toward(self, points: Tensor, labels: Tensor, a: Tensor, b: Tensor) -> Tensor:
        cost = squared_distances(self.pixels, points)
        cost = cost + 2 * self.length**2 * (self.labels[:, None] != labels)
        plan = transport_plan(cost, a, b, self.entropy, self.iterations)
        return transport_gradient(self.pixels, points, plan)
