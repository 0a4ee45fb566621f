"""A feature extractor trained on the private records themselves, by DP-SGD, for when there is no public one (thesis, app. F).

A small classifier learns to tell the classes apart; every gradient step is a charged noisy sum. Its hidden layers then serve as
DP-MEPF's features: they are post-processing of those sums, so a map that may be shown and applied to every record. It has
no normalisation over records, hence it is row-wise.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.methods.base import Workspace
from sfumato.methods.descent import TrainingState, descend
from sfumato.privacy import (
    Charge,
    GradientSum,
    PrivateData,
    enforced_gradient_bound,
)
from sfumato.privacy.gradients import records
from sfumato.public.perceptual import AnchoredEncoder, Encoder, NetworkEncoder

PRIVATE = "private"
LABEL = "private encoder"
LAYERS = ("relu1", "relu2")
_WIDTHS = (16, 32)
_CLIP, _LEARNING_RATE = 1.0, 2e-3


def extractor(schema: Schema, seed: int = 0) -> nn.Module:
    """Two strided convolutions and a linear classifier."""
    channels, height, width = schema.shape
    first, second = _WIDTHS
    places = math.ceil(math.ceil(height / 2) / 2) * math.ceil(math.ceil(width / 2) / 2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, first, 5, stride=2, padding=2),
                relu1=nn.ReLU(),
                conv2=nn.Conv2d(first, second, 3, stride=2, padding=1),
                relu2=nn.ReLU(),
                flat=nn.Flatten(),
                classes=nn.Linear(second * places, max(1, schema.n_classes)),
            )
        )


def private_charge(
    schema: Schema, noise_multiplier: float, *, share: float, rate: float, steps: int
) -> Charge:
    """What training the extractor costs: about `share` of the squared noise budget.

    Many sampled steps are together about as good as one release at noise multiplier σ/(rate·√steps); calibration
    is exact whatever this rule of thumb gives.
    """
    if not schema.labelled:
        raise BadInput(
            "A private encoder learns to tell classes apart and these data have none; take encoder=scattering, which needs "
            "neither labels nor public data."
        )
    return Charge(
        label=LABEL,
        bound=enforced_gradient_bound(_CLIP),
        noise_multiplier=noise_multiplier * rate * math.sqrt(steps / share),
        rate=rate,
        steps=steps,
        dimension=sum(p.numel() for p in extractor(schema).parameters()),
        sampler="floating",
    )


def train_extractor(
    data: PrivateData, charge: Charge, workspace: Workspace, *, seed: int
) -> nn.Module:
    """Take the paid steps. Adam is the same for gradients of any scale, so sums need not become means."""
    network = extractor(data.schema, seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE)
    gradients = GradientSum(network, _mistaken, bound=_CLIP, inputs=records)
    state = TrainingState(
        {"extractor": network},
        {"extractor": optimiser},
        random=torch.Generator().manual_seed(seed),
    )
    steps = descend(
        data, charge, state, workspace, title="Training the private encoder", stage="encoder"
    )
    for step in steps:
        gradients.assign(step.noisy_gradient(gradients))
        optimiser.step()
    return network.eval()


def extractor_encoder(
    network: nn.Module,
    shape: tuple[int, ...],
    *,
    taps: tuple[str, ...] | None,
    pool: int | None,
    anchor: bool,
) -> Encoder:
    """The extractor's layers as features."""
    made = NetworkEncoder(network.eval(), taps or LAYERS, shape, pool=pool)
    return AnchoredEncoder(made, shape) if anchor else made


def _mistaken(network: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(network(pixels), labels, reduction="none")
