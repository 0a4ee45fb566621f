"""What DPAF asks of the wall: sums of normalised feature maps (its aggregation layer), and of the gradients of conv2.

Both are row-wise maps of bounded length: no record's row depends on another record, since all that the rows share (the networks,
the slope of the loss) is public when they are computed.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sfumato.data import Batch, Schema
from sfumato.generators.dpaf import Encoder
from sfumato.privacy import FeatureMap


class AggregatedFeatures(FeatureMap):
    """A record's feature maps SIN(conv2(conv1(x))), filed by class: the aggregation DPAGG of the paper.

    **Guarantee**: each of m maps of h × w numbers has norm √(h·w), or 0 if it is constant; so the record's norm is at most
    √(m·h·w), which for square maps is the paper's √m·p. A record lies in one class's block, so this holds for the joint vector.
    """

    def __init__(self, encoder: Encoder, schema: Schema) -> None:
        self.encoder = encoder
        self.dim = math.prod(encoder.shape)
        self.bound = math.sqrt(self.dim)
        self.segments = max(1, schema.n_classes)
        self._labelled = schema.labelled

    def __call__(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            return self.encoder(batch.pixels()).flatten(1)

    def segment_of(self, batch: Batch) -> Tensor | None:
        return batch.labels if self._labelled else None


class FeaturesAndLabel(FeatureMap):
    """A record's feature maps and its one-hot label: what the classifier of the published first phase aggregates.

    **Guarantee**: the norm is at most √(m·h·w + 1), by `AggregatedFeatures`; a label of no known class counts as none.
    """

    def __init__(self, encoder: Encoder, schema: Schema) -> None:
        self.encoder = encoder
        self.classes = schema.n_classes
        self.dim = math.prod(encoder.shape) + self.classes
        self.bound = math.sqrt(math.prod(encoder.shape) + 1)

    def __call__(self, batch: Batch) -> Tensor:
        assert batch.labels is not None
        one_hot = batch.labels[:, None] == torch.arange(self.classes)
        with torch.no_grad():
            return torch.cat([self.encoder(batch.pixels()).flatten(1), one_hot], dim=1)


class FilterGradients(FeatureMap):
    """A record's gradient of ⟨slope, SIN(conv2(conv1(x)))⟩ with respect to conv2, compressed, in multiples of `unit`.

    `slopes` (classes, maps, h, w) are those of the loss at an aggregate that was released, so public. With A the average of the
    features, ∂loss/∂conv2 = Σ over records of these gradients ÷ number of records.

    **Guarantee**: the wall clips every row to `bound`; a row depends on its record and public numbers only.
    """

    def __init__(
        self, encoder: Encoder, slopes: Tensor, *, bound: float, keep: float, unit: float = 1.0
    ) -> None:
        self.encoder, self.slopes = encoder, slopes.detach()
        self.dim = sum(p.numel() for p in encoder.conv2.parameters())
        self.bound, self.keep, self.unit = bound, keep, unit

    def __call__(self, batch: Batch) -> Tensor:
        rows = compressed(self.gradients(batch.pixels(), batch.labels), self.keep) / self.unit
        # Clipped here as well, which the wall would have to do row by row.
        rows *= (self.bound / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)).clamp(max=1.0)
        return rows if batch.labels is None else rows * (batch.labels >= 0)[:, None]

    def gradients(self, images: Tensor, labels: Tensor | None) -> Tensor:
        """(n, weights and biases): each record's own, from conv2's input and the gradient of its output."""
        conv2 = self.encoder.conv2
        with torch.no_grad():
            low = self.encoder.low(images)
        with torch.enable_grad():
            maps = conv2(low).detach().requires_grad_()
            by_class = labels is not None and len(self.slopes) > 1
            slopes = self.slopes[labels.clamp(min=0)] if by_class else self.slopes  # type: ignore[union-attr]
            total = (self.encoder.normalised(maps) * slopes).sum()
            (back,) = torch.autograd.grad(total, maps)  # (n, maps, h, w)
        assert not isinstance(conv2.padding, str)
        patches = functional.unfold(
            low, conv2.kernel_size, stride=conv2.stride, padding=conv2.padding
        )
        weights = torch.bmm(back.flatten(2), patches.mT)  # (n, maps, inputs · 9)
        return torch.cat([weights.flatten(1), back.sum(dim=(2, 3))], dim=1)


def compressed(rows: Tensor, keep: float) -> Tensor:
    """Each row with only its `keep` part of entries that are largest in size (Lin et al. 2018); ties are kept."""
    dropped = math.floor((1 - keep) * rows.shape[1] + 1e-9)
    if dropped == 0:
        return rows
    sizes = rows.abs()
    # Eight times as fast as torch.kthvalue.
    least = np.partition(sizes.numpy(), dropped, axis=1)[:, dropped : dropped + 1]
    return torch.where(sizes >= torch.from_numpy(least), rows, 0.0)
