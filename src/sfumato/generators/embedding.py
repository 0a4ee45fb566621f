"""The mean embedding of a data set: one noisy sum, and the loss that matches a generator to it (thesis, app. B).

The kernel mean embedding of the private records, μ = 1/n Σ φ(xᵢ) filed by class, is released once. Training a generator
means moving its own embedding towards the released one: the squared distance is the maximum mean discrepancy (MMD). The
released numbers are public; everything done with them is post-processing and free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sfumato.data import Batch
from sfumato.errors import BadInput
from sfumato.privacy import Budget, FeatureMap, Release
from sfumato.privacy.bounding import enforced_vector_bound
from sfumato.privacy.query import gaussian_noise

COUNT_WEIGHT = 0.1  # what a record of images adds to its class's count, against 1 for its features


class CountedByClass(FeatureMap):
    """[φ(x), w]: the features of a record and a constant, filed under the record's class.

    The sum then holds, for each class, the sum of its features and w times its number of records: one joint vector, so that a
    change of label, which touches two classes, is counted once and rightly (DESIGN, trap 4).

    **Guarantee**: ‖[φ(x), w]‖ ≤ √(φ.bound² + w²), and the zeros of the other classes add nothing. With w = 0.1 and a unit φ the
    counts cost half a per cent more noise. Row-wise because φ is.
    """

    def __init__(self, phi: FeatureMap, n_classes: int, count_weight: float = COUNT_WEIGHT) -> None:
        self.phi = phi
        self.count_weight = count_weight
        self.dim = phi.dim + 1
        self.segments = max(1, n_classes)
        self.labelled = n_classes > 0
        self.bound = math.hypot(phi.bound, count_weight)
        self.non_negative = phi.non_negative

    def __call__(self, batch: Batch) -> Tensor:
        return torch.cat([self.phi(batch), torch.full((len(batch), 1), self.count_weight)], dim=1)

    def pieces(self, batch: Batch) -> Iterator[tuple[int, Tensor, float]]:
        yield from self.phi.pieces(batch)
        yield self.phi.dim, torch.ones(1, len(batch)), self.count_weight

    def public_parts(self) -> tuple[Tensor, ...]:
        return self.phi.public_parts()

    def segment_of(self, batch: Batch) -> Tensor | None:
        return batch.labels if self.labelled else None


@dataclass(frozen=True)
class MeanEmbedding:
    """A released mean embedding: `mean` (classes, dim) = Σ φ / n per class, and the classes' noisy shares."""

    mean: Tensor
    shares: Tensor  # (classes,), non-negative, sum 1
    noise_std: float  # of each entry of `mean`
    size: float = 1.0  # what the sums were divided by: the number of records, or its noisy estimate
    self_pairs: bool = (
        False  # whether a distance counts each generated record with itself, as the papers' do
    )

    @classmethod
    def of(cls, release: Release, phi: CountedByClass, *, size: int | None) -> MeanEmbedding:
        """Read a release; `size` is the public number of records, or None to divide by the noisy count."""
        value = release.value  # (classes, dim + 1)
        counts = value[:, -1] / phi.count_weight
        n = float(size) if size is not None else max(1.0, float(counts.sum()))
        # A count below its own noise may belong to a class without records: it keeps no share.
        floor = 2 * release.noise_std / phi.count_weight
        kept = torch.where(counts > min(floor, 0.5 * n / len(counts)), counts, 0.0)
        if float(kept.sum()) <= 0:
            kept = torch.ones_like(counts)
        return cls(
            mean=(value[:, :-1] / n).to(torch.float32),
            shares=(kept / kept.sum()).to(torch.float32),
            noise_std=release.noise_std / n,
            size=n,
        )

    def beside(self, release: Release) -> MeanEmbedding:
        """Another release over the same records, without counts of its own: divided by the same n, with the same shares."""
        mean = (release.value / self.size).to(torch.float32)
        return replace(self, mean=mean, noise_std=release.noise_std / self.size)

    @property
    def emphasis(self) -> Tensor:
        """(classes,): weights that let every class count alike, 1 where all are of one size (thesis, app. B, eq. 18).

        A class of share π has an embedding of length about π, so its term in the loss is of order π²; unweighted, a rare
        class would hardly be learnt. A class without a share has no weight.
        """
        shares = self.shares
        even = 1 / (len(shares) * shares.clamp(min=1e-9)).square()
        return torch.where(shares > 0, even, 0.0)

    def mmd2(
        self,
        sums: Tensor,
        per_class: int,
        norm2: float | Tensor,
        columns: slice | Tensor,
        emphasis: Tensor | None = None,
    ) -> Tensor:
        """An unbiased estimate of the squared MMD between the private records and a generator, on some features.

        `sums` (classes, features) are Σ φ over `per_class` generated records of each class, `norm2` the squared norm of
        φ on these features (the same for every record, or its mean in each class, (classes,)), `columns` which features they
        are, `emphasis` a weight for each class's term.

        The square of an average over b records counts every record with itself, which pulls a generator towards too little
        variety when b is small; those b terms are known (b · norm2) and taken out, unless `self_pairs` are wanted. So is the
        noise's own energy.
        """
        target = self.mean[:, columns]
        cross = self.shares * (sums * target).sum(dim=1) / per_class  # (classes,)
        squares = sums.square().sum(dim=1)
        pairs = (squares - per_class * norm2) / (per_class * (per_class - 1))
        if self.self_pairs:
            pairs = squares / per_class**2
        constant = target.square().sum(dim=1) - target.shape[1] * self.noise_std**2
        terms = self.shares.square() * pairs - 2 * cross + constant
        return terms.sum() if emphasis is None else (emphasis * terms).sum()


# -- how many random features --------------------------------------------------------------------------------------------


def error_bound(features: float, noise_std: float) -> float:
    """Proposition 3.1 of the thesis: a bound on E|noisy random-feature MMD² − exact MMD²|.

    D τ² + 4√2 τ Γ((D+1)/2)/Γ(D/2) + 8 √(2π/D), for D features and noise of standard deviation τ on each entry of the mean
    embedding (the thesis writes τ = 2σ/m: sensitivity 2/m under replacement, noise multiplier σ). The first two terms are the
    noise, which grows with D; the last is the randomness of the features, which falls.
    """
    ratio = math.exp(math.lgamma((features + 1) / 2) - math.lgamma(features / 2))
    noise = features * noise_std**2 + 4 * math.sqrt(2) * noise_std * ratio
    return noise + 8 * math.sqrt(2 * math.pi / features)


def suggest_features(n: int, budget: Budget, *, most: int = 1_000_000) -> int:
    """The even number of random features, at most `most`, at which the bound of Proposition 3.1 is least.

    `n` is the public number of records (of one class, if the rarest class matters: its own mean has n of its own). For small
    noise the answer is close to √(2π) · n ÷ σ with σ the noise multiplier of the mechanism: D ∝ n·ε. The bound is a guide and not
    tight: it treats all features as equally useful, so far fewer often do as well.
    """
    from scipy.optimize import minimize_scalar  # a second to import, and only this needs it

    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise BadInput(f"n must be a whole number of records of at least 1, not {n!r}.")
    if not isinstance(budget, Budget):
        raise BadInput(
            f"The budget is given as {type(budget).__name__}; pass sfumato.Budget(epsilon=…, delta=…)."
        )
    bound = math.hypot(1.0, COUNT_WEIGHT)
    noise_std = gaussian_noise(budget) * enforced_vector_bound(bound) / n
    found = minimize_scalar(
        lambda log_d: error_bound(math.exp(log_d), noise_std),
        bounds=(math.log(2), math.log(max(2, most))),
        method="bounded",
    )
    return max(2, 2 * round(math.exp(float(found.x)) / 2))
