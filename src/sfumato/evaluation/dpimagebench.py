"""The judges of DPImageBench in small, under its rule and under an honest one.

The benchmark (Gong et al. 2025) trains a WideResNet, a ResNet and a ResNeXt on the synthetic images, keeps of each the epoch that
is best on *real* validation images, and prints the best of the three. That looks at real records three times before the score, so
the same three networks are also told as they are after their last epoch, which nobody chose.

Here they are small enough for a processor: widths 16, 32, 64, two blocks a stage, six epochs with a one-cycle rate. The
validation images are drawn from the real training set, of which the benchmark keeps a part away from the synthesizer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from sfumato.evaluation.classifiers import ImageNetwork
from sfumato.evaluation.downstream import labelled, train_on
from sfumato.evaluation.metrics import Comparison, Family, Measurement, Step, register
from sfumato.generators.resnet import Residual, conv

_VALIDATION = 5_000  # real images, at most a tenth of the training set
_LOUD = "CHOSEN ON REAL TRAINING DATA, as the benchmark does: it flatters, and publishing it tells of them"


class Judge(ImageNetwork):
    """A residual network of three stages; `block` makes one block of a stage."""

    batch = 128
    epochs = 6
    most_epochs = 30
    peak = 4e-3
    widths: ClassVar[tuple[int, ...]] = (16, 32, 64)

    def block(self, width: int, wider: int, stride: int) -> nn.Module:
        raise NotImplementedError

    def _build(self, shape: torch.Size, n_classes: int) -> nn.Sequential:
        stages: list[nn.Module] = [conv(shape[0], self.widths[0])]
        width = self.widths[0]
        for stage, wider in enumerate(self.widths):
            stages += [self.block(width, wider, 1 if stage == 0 else 2)]
            stages += [self.block(wider, wider, 1)]
            width = wider
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, n_classes)]
        return nn.Sequential(*stages, *head)

    def _optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            self.network_.parameters(), lr=self.peak, weight_decay=5e-4, fused=True
        )

    def _loss(
        self, images: torch.Tensor, codes: torch.Tensor, draw: torch.Generator
    ) -> torch.Tensor:
        return functional.cross_entropy(self.network_(images).float(), codes)


class _Skip(nn.Module):
    """x → shortcut(x) + inner(x), where the shape changes."""

    def __init__(self, inner: nn.Module, width: int, wider: int, stride: int) -> None:
        super().__init__()
        self.inner = inner
        self.shortcut = nn.Conv2d(width, wider, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.shortcut(x) + self.inner(x)
        return found


def _around(inner: nn.Module, width: int, wider: int, stride: int) -> nn.Module:
    same = width == wider and stride == 1
    return Residual(inner) if same else _Skip(inner, width, wider, stride)


class ResNet(Judge):
    """He et al. 2016: convolution, batch norm, ReLU, convolution, batch norm, and a ReLU after the sum."""

    def block(self, width: int, wider: int, stride: int) -> nn.Module:
        inner = nn.Sequential(
            conv(width, wider, stride=stride),
            nn.Conv2d(wider, wider, 3, padding=1, bias=False),
            nn.BatchNorm2d(wider),
        )
        return nn.Sequential(_around(inner, width, wider, stride), nn.ReLU())


class WideResNet(Judge):
    """Zagoruyko and Komodakis 2016: batch norm and ReLU before each convolution, and twice the width."""

    widths = (32, 64, 128)
    epochs = 4

    def block(self, width: int, wider: int, stride: int) -> nn.Module:
        inner = nn.Sequential(
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, wider, 3, stride, 1, bias=False),
            nn.BatchNorm2d(wider),
            nn.ReLU(),
            nn.Conv2d(wider, wider, 3, padding=1, bias=False),
        )
        return _around(inner, width, wider, stride)


class ResNext(Judge):
    """Xie et al. 2017: the middle convolution of a bottleneck in eight groups."""

    groups = 8

    def block(self, width: int, wider: int, stride: int) -> nn.Module:
        grouped = nn.Conv2d(
            wider, wider, 3, stride, padding=1, groups=min(self.groups, wider), bias=False
        )
        inner = nn.Sequential(
            conv(width, wider, 1, padding=0),
            grouped,
            nn.BatchNorm2d(wider),
            nn.ReLU(),
            nn.Conv2d(wider, wider, 1, bias=False),
            nn.BatchNorm2d(wider),
        )
        return nn.Sequential(_around(inner, width, wider, stride), nn.ReLU())


JUDGES: dict[str, tuple[str, type[Judge]]] = {
    "wrn": ("WideResNet", WideResNet),
    "resnet": ("ResNet", ResNet),
    "resnext": ("ResNeXt", ResNext),
}


@dataclass(frozen=True)
class Judged:
    """What a network says of the test images after its last epoch, and after the one that validation images chose."""

    last: torch.Tensor  # (n,) predicted
    chosen: torch.Tensor | None  # None where there was nothing to choose by
    epoch: int
    notes: tuple[str, ...]


def _judged(name: str, comparison: Comparison, seed: int, step: Step) -> Judged:
    build = JUDGES[name][1]
    left = 1.0

    def counted(share: float) -> None:
        nonlocal left
        left -= share
        step(share)

    def compute() -> Judged:
        network = build(seed)
        best: list[tuple[float, int, torch.Tensor]] = []
        assert comparison.synthetic[1] is not None
        present = comparison.synthetic[1].unique()
        if comparison.has_train:
            rows, labels = _validation(comparison, seed)

            def look(epoch: int) -> None:
                right = float((present[network.predict(rows)] == labels).float().mean())
                if not best or right > best[0][0]:
                    best[:] = [(right, epoch, present[network.predict(comparison.real[0])])]

            network.watch = look
        outcome = train_on(comparison, network, comparison.synthetic, counted)
        chosen, epoch = (best[0][2], best[0][1]) if best else (None, 0)
        return Judged(outcome.predicted, chosen, epoch, outcome.notes)

    found = comparison.once(("dpimagebench", name, seed), compute)
    step(max(0.0, left))
    return found


def _validation(comparison: Comparison, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows, labels = comparison.train
    assert labels is not None
    size = min(_VALIDATION, max(1, len(rows) // 10))
    index = torch.from_numpy(np.random.default_rng(seed).choice(len(rows), size, replace=False))
    return rows[index], labels[index]


def _right(comparison: Comparison, predicted: torch.Tensor, *notes: str) -> Measurement:
    labels = comparison.real[1]
    assert labels is not None
    return Measurement.of_hits(predicted == labels, *notes)


def _last(name: str, comparison: Comparison, seed: int, step: Step) -> Measurement:
    found = _judged(name, comparison, seed, step)
    return _right(comparison, found.last, *found.notes)


def _chosen(comparison: Comparison, seed: int, step: Step) -> Measurement:
    """The benchmark's number: the best of three networks, each at the epoch that real validation images chose."""
    _ = comparison.train  # told before an hour of training if it is missing
    each: list[tuple[Measurement, str]] = []
    for name, (title, _kind) in JUDGES.items():
        found = _judged(name, comparison, seed, lambda share: step(share / len(JUDGES)))
        assert found.chosen is not None
        note = f"{title} after epoch {found.epoch}"
        each.append((_right(comparison, found.chosen, _LOUD, note, *found.notes), note))
    return max(each, key=lambda one: one[0].value)[0]


_FAMILY = Family(
    "DPImageBench's judges, in small",
    "Residual networks trained on synthetic images only and scored on real ones; more is better. *Best of three* follows the "
    "benchmark's rule, which looks at real images; the others are told after their last epoch.",
    "%",
)
_register: Callable[..., Callable[..., object]] = partial(
    register, family=_FAMILY, kinds=("images",), presets=("dpimagebench",), where=labelled
)
for _name, (_title, _) in JUDGES.items():
    _register(
        f"dpimagebench.{_name}",
        f"accuracy of a small {_title} trained on the synthetic data, after its last epoch",
        title=_title,
    )(partial(_last, _name))
_register(
    "dpimagebench.best",
    "best of the three networks, each at its best epoch on real training images; reads the training data",
    title="best of three, epoch chosen on real images",
    reads="train",
)(_chosen)
