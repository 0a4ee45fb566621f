"""A linear rule that tells classes apart by their released embeddings, for judging a generator's pictures.

The released mean of each class is a mean over the private records themselves; a generator comes near it on average, and some of
its pictures belong to the wrong class all the same. Fisher's linear discriminant needs the means and how records spread around
them, which the generator's own pictures show. Released numbers and generated pictures only: all of it is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.generators.embedding import MeanEmbedding
from sfumato.public.perceptual import PerceptualFeatures

DIRECTIONS = 1000  # most directions of the spread that count
_RIDGE = 0.3  # added to every direction's variance, in units of the mean; the noise's variance where that is larger


@dataclass(frozen=True)
class Discriminant:
    """`weights` (classes, dim) and `offsets` (classes,): a row of features belongs where weights · row + offset is greatest."""

    weights: Tensor
    offsets: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, dim) → (n,) classes"""
        return (rows @ self.weights.T + self.offsets).argmax(dim=1)

    def before(self, phi: PerceptualFeatures) -> Discriminant:
        """The same rule for features that φ has not yet centred and projected (nor clipped, which the rule leaves out)."""
        weights, offsets = self.weights, self.offsets
        if phi.basis is not None:
            weights = weights @ phi.basis
        if phi.centre is not None and phi.radius is not None:
            weights = weights / phi.radius
            offsets = offsets - weights @ phi.centre
        return Discriminant(weights, offsets)

    @classmethod
    def of(cls, embedding: MeanEmbedding, rows: Tensor, labels: Tensor) -> Discriminant:
        """From released means and the features of generated pictures.

        With S the pictures' covariance around their class means, in its principal directions and with a ridge, and m̃_c the
        released mean of class c: the class of least (x − m̃_c)ᵀ S⁻¹ (x − m̃_c), classes being equally likely. The noise in m̃_c adds
        to that distance by a known amount on average, more for a rare class, which is taken off. A class without records wins
        nothing.
        """
        shares = embedding.shares[:, None]
        there = shares[:, 0] > 0
        means = torch.where(there[:, None], embedding.mean / shares.clamp(min=1e-9), 0.0)
        around = rows - _class_means(rows, labels, len(means))[labels]
        directions, variances = _principal(around, DIRECTIONS)
        noise = (embedding.noise_std / shares[:, 0].clamp(min=1e-9)) ** 2  # of m̃_c, each direction
        ridge = torch.maximum(_RIDGE * variances.mean(), noise[there].mean())
        precision = 1 / (variances + ridge).clamp(min=1e-20)
        seen = means @ directions.T  # (classes, directions)
        offsets = -0.5 * (seen.square() @ precision - noise * precision.sum())
        return cls(
            weights=(seen * precision) @ directions,
            offsets=torch.where(there, offsets, -torch.inf),
        )


def _class_means(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows)
    return sums / torch.bincount(labels, minlength=classes).clamp(min=1)[:, None]


def _principal(centred: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The principal directions (k, dim) of centred rows and the variances along them, by the smaller of the two Gram matrices."""
    n, dim = centred.shape
    small = centred @ centred.T if n <= dim else centred.T @ centred
    values, vectors = torch.linalg.eigh(small.to(torch.float64))
    largest = max(float(values[-1]), 1e-30)
    chosen = torch.arange(len(values)).flip(0)[:most]
    chosen = chosen[values[chosen] > 1e-6 * largest]
    values, vectors = values[chosen], vectors[:, chosen].to(centred.dtype)
    lengths = values.sqrt()[:, None].to(centred.dtype)
    directions = vectors.T if n > dim else (vectors.T @ centred) / lengths
    return directions, (values / n).to(centred.dtype)
