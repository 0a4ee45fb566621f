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
from sfumato.generators.networks import seeded
from sfumato.methods.base import Workspace
from sfumato.privacy import Gate, Query, gradient_query

PRIVATE = "private"
LABEL = "private encoder"
LAYERS = ("relu1", "relu2")
_WIDTHS = (16, 32)
_CLIP, _LEARNING_RATE = 1.0, 2e-3


def extractor(schema: Schema, seed: int = 0) -> nn.Module:
    """Two strided convolutions and a linear classifier."""
    return seeded(seed, _layers, schema)


def _layers(schema: Schema) -> nn.Module:
    channels, height, width = schema.shape
    first, second = _WIDTHS
    places = math.ceil(math.ceil(height / 2) / 2) * math.ceil(math.ceil(width / 2) / 2)
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


def encoder_query(network: nn.Module, *, share: float, rate: float, steps: int) -> Query:
    """What training the extractor asks for."""
    return gradient_query(LABEL, network, bound=_CLIP, share=share, rate=rate, steps=steps)


def train_extractor(network: nn.Module, data: Gate, run: Workspace, *, seed: int) -> None:
    """Take the paid steps. Adam is the same for gradients of any scale, so sums need not become means."""
    adam = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE)
    random = torch.Generator().manual_seed(seed)
    training = run.training(
        "Training the private encoder", random, stage="encoder", extractor=network, adam=adam
    )
    for step in training(data.steps(LABEL)):
        step.gradient(network, _mistaken)
        adam.step()
    network.eval()


def _mistaken(network: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(network(pixels), labels, reduction="none")
