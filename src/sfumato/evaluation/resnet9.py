"""ResNet9, the classifier that the papers train on synthetic colour images.

The layers are those of the CIFAR-10 example of FFCV, which the papers name: 3×3 convolutions with batch norm and ReLU
(64; 128 by a 5×5 of stride 2; residual; 256; pool; residual; 128), global max-pooling, a linear layer times 0.2. SGD
with momentum 0.9, weight decay 5e-4, label smoothing 0.1, flips and shifts by up to 2 pixels. Trained on
synthetic images only.

Differs from the papers: 8 epochs with a one-cycle rate instead of 24, since these run on a processor, not on a GPU.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from sfumato.evaluation.classifiers import Step


class _Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def _conv(width: int, wider: int, kernel: int = 3, stride: int = 1, padding: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(width, wider, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(wider),
        nn.ReLU(),
    )


class ResNet9:
    """Images of at least 8×8, any number of channels; smaller sets are shown more often, at most 40 times."""

    batch = 256
    epochs = 8
    most_epochs = 40
    least_images = 60_000
    peak = 0.2
    width = 64

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, rows: torch.Tensor, codes: torch.Tensor, n_classes: int, step: Step) -> None:
        n = len(rows)
        epochs = min(self.most_epochs, max(self.epochs, math.ceil(self.least_images / n)))
        draw = torch.Generator().manual_seed(self.seed)
        self.network_ = self._build(rows.shape[1], n_classes, draw)
        batches = math.ceil(n / self.batch)
        optimizer = torch.optim.SGD(
            self.network_.parameters(), lr=self.peak, momentum=0.9, weight_decay=5e-4
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.peak, total_steps=epochs * batches + 1, pct_start=0.2
        )
        for _ in range(epochs):
            for index in torch.randperm(n, generator=draw).chunk(batches):
                step(1.0 / (epochs * batches))
                logits = 0.2 * self.network_(_jittered(rows[index], draw))
                loss = functional.cross_entropy(logits, codes[index], label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
        self.network_.eval()

    @torch.no_grad()
    def predict(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.network_(part).argmax(1) for part in rows.split(500)])

    def _build(self, channels: int, n_classes: int, draw: torch.Generator) -> nn.Module:
        w = self.width
        with torch.device("meta"):
            network = nn.Sequential(
                _conv(channels, w),
                _conv(w, 2 * w, 5, 2, 2),
                _Residual(nn.Sequential(_conv(2 * w, 2 * w), _conv(2 * w, 2 * w))),
                _conv(2 * w, 4 * w),
                nn.MaxPool2d(2, ceil_mode=True),
                _Residual(nn.Sequential(_conv(4 * w, 4 * w), _conv(4 * w, 4 * w))),
                # Maps of fewer than 3×3 positions, from images below 12 pixels, need the padding.
                _conv(4 * w, 2 * w, padding=1),
                nn.AdaptiveMaxPool2d(1),
                nn.Flatten(),
                nn.Linear(2 * w, n_classes, bias=False),
            )
        network = network.to_empty(device="cpu")
        with torch.no_grad():
            for layer in network.modules():
                if isinstance(layer, (nn.Conv2d, nn.Linear)):
                    bound = 1.0 / math.sqrt(layer.weight[0].numel())  # torch's own initialisation
                    layer.weight.uniform_(-bound, bound, generator=draw)
                elif isinstance(layer, nn.BatchNorm2d):
                    layer.reset_parameters()
        return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _jittered(images: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Half of the images mirrored, all shifted by up to two pixels (one shift a batch) with edges repeated."""
    flip = torch.rand(len(images), 1, 1, 1, generator=draw) < 0.5
    images = torch.where(flip, images.flip(3), images)
    down, right = (int(s) for s in torch.randint(0, 5, (2,), generator=draw))
    height, width = images.shape[2:]
    padded = functional.pad(images, (2, 2, 2, 2), mode="replicate")
    moved = padded[:, :, down : down + height, right : right + width]
    return moved.contiguous(memory_format=torch.channels_last)
