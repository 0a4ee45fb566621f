"""DP-Sinkhorn: a generator that minimises an optimal-transport divergence to the records (Cao et al. 2021).

    repeat `steps` times:
        X = G(z, y), labels y drawn from the released shares                                            (free)
        for every group Y of a Poisson sample of the records:
            ∇_X of the Sinkhorn divergence OT(X, Y) − ½ OT(X, X) − ½ OT(Y, Y), clipped as a whole to norm `clip`
        the sum over groups + noise, back-propagated through G                                          (a paid step)

No critic and no saddle point: the gradient of what the generator made is all that is asked of the records. The second half of the
file is entropic optimal transport between weighted points (Cuturi 2013; Feydy et al. 2019):

    OT(a, b) = min over plans π with margins a and b of  Σ π_ij c_ij + ε KL(π | a ⊗ b),    c_ij = ‖x_i − y_j‖²

Sinkhorn's iterations for the dual potentials f, g run on logarithms where ε is too small for floating point. At their fixed
point π_ij = a_i b_j exp((f_i + g_j − c_ij)/ε), and by the envelope theorem the gradient of OT with respect to x_i is
Σ_j π_ij 2 (x_i − y_j): the iterations themselves need no differentiating.

Private: the records. Public: the Schema, all settings; after their release the noisy class counts.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.generators.devices import precise
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.methods.taught import ImageGradient, Taught
from sfumato.privacy import Budget, Query
from sfumato.privacy.gate import Paid

_RANGE = 250.0  # exp(±this) and products of a few such numbers are far inside double precision


class Sinkhorn(Taught):
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

    info = MethodInfo(
        name="sinkhorn",
        title="DP-Sinkhorn",
        paper="Cao et al. 2021, “Don't Generate Me: Training Differentially Private Generative Models with Sinkhorn Divergence”",
        summary="A generator that minimises an optimal-transport divergence; gradients of its images are clipped and noisy.",
    )
    TINY: ClassVar = {"rate": 0.5, "groups": 2, "steps": 5, "batch": 12, "latent": 4, "hidden": 8}

    groups: int = setting(
        "Groups that a sample is divided into; each gives one clipped gradient, from rate × records ÷ groups records.",
        default=16,
        low=1,
    )
    entropy: float = setting(
        "Weight of the entropy, as a share of the greatest squared distance between two images.",
        default=0.005,
        above=0,
    )
    iterations: int = setting("Sinkhorn iterations.", default=20, low=1)
    label_weight: float = setting(
        "Length of a label beside its image, as a share of the greatest distance between two images.",
        default=0.25,
        low=0,
    )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        return self.asked(schema, "groups", self.groups)

    def image_gradient(self, schema: Schema) -> ImageGradient:
        def gradient(step: Paid, images: Tensor, labels: Tensor) -> Tensor:
            return step.groups(Divergence(images, labels, self).gradient) / self.groups

        return gradient


class Divergence:
    """The Sinkhorn divergence between generated images and a group of records, as a function of the generated images.

    Its public half, the transport of the generated images to themselves, is computed once.
    """

    def __init__(self, images: Tensor, labels: Tensor, how: Sinkhorn) -> None:
        numbers = images.shape[1]
        self.images, self.labels, self.iterations = images, labels, how.iterations
        self.entropy = how.entropy * numbers
        self.label_cost = 2 * (how.label_weight * numbers**0.5) ** 2  # of two other labels
        self.classes = int(labels.max()) + 1
        self.weights = torch.full((len(images),), 1 / len(images), device=images.device)
        self.own = self._toward(images, labels, self.weights, self.weights)

    def gradient(self, group: Batch) -> Tensor:
        """∇ of OT(X, Y) − ½ OT(X, X) with respect to the generated images X, flat; OT(Y, Y) does not depend on them."""
        records = group.pixels().flatten(1).to(self.images.device)
        labels = (
            torch.zeros(len(records), dtype=torch.int64) if group.labels is None else group.labels
        )
        labels = labels.to(self.images.device)
        known = torch.isfinite(records).all(dim=1) & torch.isin(labels, self.labels)
        records, labels = records[known], labels[known]
        if len(records) == 0:
            return torch.zeros(self.images.numel())
        # Each class of the group weighs what it weighs among the generated images; images of a class that it lacks rest.
        size = max(self.classes, int(labels.max()) + 1)
        made = self.weights.new_zeros(size).index_add_(0, self.labels, self.weights)
        b = (made / torch.bincount(labels, minlength=size).clamp(min=1))[labels]
        present = torch.isin(self.labels, labels)
        a = torch.where(present, self.weights, 0.0)
        toward = self._toward(records, labels, a, b)
        return torch.where(present[:, None], toward - self.own, 0.0).flatten()

    def _toward(self, points: Tensor, labels: Tensor, a: Tensor, b: Tensor) -> Tensor:
        cost = squared_distances(self.images, points)
        cost = cost + self.label_cost * (self.labels[:, None] != labels)
        plan = transport_plan(cost, a, b, self.entropy, self.iterations)
        return transport_gradient(self.images, points, plan)


# -- entropic optimal transport, which knows nothing of privacy ---------------------------------------------------------------


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """(m, d), (n, d) → (m, n)"""
    squares = x.square().sum(dim=1)[:, None] + y.square().sum(dim=1)
    return torch.addmm(squares, x, y.T, alpha=-2).clamp_(min=0)


def transport_plan(cost: Tensor, a: Tensor, b: Tensor, entropy: float, iterations: int) -> Tensor:
    """The plan (m, n) with row sums a and column sums b; points of weight zero are left out.

    The last half-iteration is one over rows, so that row sums hold exactly and column sums to the accuracy of the iterations.
    """
    kind = precise(cost.device)
    scaled, a, b = cost.to(kind) / entropy, a.to(kind), b.to(kind)
    within = kind == torch.float64 and float(scaled.max()) <= _RANGE
    plan = _by_factors if within else _by_logarithms
    return plan(scaled, a, b, iterations).to(cost.dtype)


def _by_factors(scaled: Tensor, a: Tensor, b: Tensor, iterations: int) -> Tensor:
    """The same iterations on exp(f/ε) and exp(g/ε): matrix products, several times as fast."""
    kernel = (-scaled).exp()
    v = b
    u = a / (kernel @ v)
    for _ in range(iterations):
        v = b / (u @ kernel)
        u = a / (kernel @ v)
    return u[:, None] * kernel * v


def _by_logarithms(scaled: Tensor, a: Tensor, b: Tensor, iterations: int) -> Tensor:
    log_a, log_b = a.log(), b.log()  # −∞ where a weight is zero
    g = torch.zeros_like(b)
    f = -torch.logsumexp(log_b + g - scaled, dim=1)
    for _ in range(iterations):
        g = -torch.logsumexp((log_a + f)[:, None] - scaled, dim=0)
        f = -torch.logsumexp(log_b + g - scaled, dim=1)
    return (log_a[:, None] + log_b + f[:, None] + g - scaled).exp()


def transport_gradient(x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
    """∇ of Σ π_ij ‖x_i − y_j‖² with respect to x for a fixed plan, (m, d)."""
    return 2 * (plan.sum(dim=1, keepdim=True) * x - plan @ y)
