"""Ratio refinement: draw more than is wanted, and keep what looks most like the private records (DP-DRE turned inwards).

A mixture of Gaussians has the right means and covariances and the wrong texture. Scattering features see texture, and they
need no training. Where DP-DRE trains a discriminator between private and public features, here the base distribution is the
private mixture itself, which may be sampled for ever, so nearly everything about the discriminator is free:

    1.  a portrait of an image: scattering features, whitened by the draws' own covariance within classes    (free)
    2.  the private records' mean portrait in every class, around the draws'                                 (one release)
    3.  2C Gaussians of unit covariance, real and drawn in each class: log p(real, y | portrait) in closed form (free)
    4.  draw four times as many as wanted; keep in each class the quarter with the highest log p             (free)

Step 3 is linear discriminant analysis with 2C classes, of which C are known without noise. Private: the records, in step 2 only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.features.moments import FiledVector, View, wiener
from sfumato.features.scattering import Scattering

WIDTH = 400  # whitened features
_SCALES = 2
_MOST_FEATURES = 5000
_DRAWS = 10_000  # to whiten by
_REACH = 1.1  # clipping radius ÷ the length that a whitened portrait of a draw has

Draw = Callable[[Tensor, torch.Generator], Tensor]  # labels → records


def refinable(schema: Schema) -> bool:
    """Scattering wants images of a few pixels a side."""
    return schema.kind == "images" and min(schema.shape[1:]) >= 2**_SCALES


def width_of(schema: Schema) -> int:
    return min(WIDTH, _scattering(schema).dim)


def release_map(schema: Schema, view: View | None = None) -> FiledVector:
    """The sum of portraits around the draws' class means, each divided by its radius, filed by class."""
    width = width_of(schema)
    return FiledVector(
        width,
        segments=max(1, schema.n_classes),
        radius=_REACH * math.sqrt(width),
        view=view,
    )


@dataclass(frozen=True)
class Portraits:
    """Whitened scattering features, and where each class of draws lies in them."""

    centre: Tensor  # (features,)
    mixing: Tensor  # (features, width)
    drawn: Tensor  # (classes, width)

    @classmethod
    def by(
        cls, schema: Schema, shares: Tensor, draw: Draw, generator: torch.Generator
    ) -> Portraits:
        """Whitened by draws of the generator, as many of each class that has records."""
        scattering = _scattering(schema)
        present = (shares > 0).nonzero().squeeze(1)
        each = max(50, _DRAWS // len(present))
        sums = torch.zeros(len(shares), scattering.dim, dtype=torch.float64)
        square = torch.zeros(scattering.dim, scattering.dim)
        for code in present.tolist():
            features = _features(scattering, draw(torch.full((each,), code), generator))
            mean = features.mean(0)
            sums[code] = mean
            features -= mean
            square.addmm_(features.T, features)
        means = sums.to(torch.float32)
        centre = means[present].mean(0)
        square /= each * len(present)
        values, vectors = _leading(square, min(WIDTH, scattering.dim), generator)
        # Directions in which draws hardly vary (a constant picture) must not be blown up.
        values = values.clamp(min=max(1e-8, 1e-5 * float(values[0])))
        mixing = vectors / values.sqrt()
        means[shares <= 0] = centre
        return cls(centre, mixing, (means - centre) @ mixing)

    def __call__(self, scattering: Scattering, records: Tensor) -> Tensor:
        return (_features(scattering, records) - self.centre) @ self.mixing

    def view(self, schema: Schema) -> View:
        """What of a private record goes into the release."""
        scattering = _scattering(schema)

        def around(batch: Batch) -> tuple[Tensor, Tensor | None]:
            labels = batch.labels if schema.labelled else None
            own = self.drawn[0] if labels is None else self.drawn[labels.clamp(min=0)]
            return self(scattering, batch.pixels()) - own, labels

        return around


@dataclass(frozen=True)
class Selection:
    """Scores candidates by log p(real, y | portrait) and keeps the best."""

    portraits: Portraits
    real: Tensor  # (classes, width)
    schema: Schema

    @classmethod
    def of(
        cls, portraits: Portraits, schema: Schema, sums: Tensor, noise_std: float, counts: Tensor
    ) -> Selection:
        """From the release: `sums` (classes, width) in units of the radius, and the classes' counts."""
        real = portraits.drawn.clone()
        present = counts > 0
        radius = release_map(schema).radius
        moved = sums[present] * radius / counts[present, None]
        doubts = noise_std * radius / counts[present]
        real[present] += wiener(moved, doubts, 8).to(torch.float32)
        return cls(portraits, real, schema)

    def scores(self, scattering: Scattering, records: Tensor, labels: Tensor) -> Tensor:
        rows = self.portraits(scattering, records)
        both = torch.cat([self.real, self.portraits.drawn])
        # −½‖z − μ‖² up to the part that all 2C share.
        logits = rows @ both.T - 0.5 * both.square().sum(1)
        return logits.gather(1, labels[:, None]).squeeze(1) - logits.logsumexp(1)

    def draw(
        self, labels: Tensor, draw: Draw, generator: torch.Generator, candidates_each: int
    ) -> Tensor:
        """A record for each label: of so many candidates a label, each class's best."""
        scattering = _scattering(self.schema)
        wanted = labels.repeat_interleave(candidates_each)
        candidates = draw(wanted, generator)
        scores = self.scores(scattering, candidates, wanted)
        chosen = torch.empty_like(labels)
        for code in labels.unique().tolist():
            places = (labels == code).nonzero().squeeze(1)
            of_class = (wanted == code).nonzero().squeeze(1)
            best = scores[of_class].argsort(descending=True, stable=True)[: len(places)]
            # In random order, lest a record's place tell its rank.
            chosen[places] = of_class[best[torch.randperm(len(best), generator=generator)]]
        return candidates[chosen]

    def tensors(self) -> dict[str, Tensor]:
        portraits = {
            f"portrait.{f.name}": getattr(self.portraits, f.name) for f in fields(Portraits)
        }
        return {**portraits, "portrait.real": self.real}

    @classmethod
    def restored(cls, tensors: dict[str, Tensor], schema: Schema) -> Selection:
        portraits = Portraits(**{f.name: tensors[f"portrait.{f.name}"] for f in fields(Portraits)})
        return cls(portraits, tensors["portrait.real"], schema)


def _scattering(schema: Schema) -> Scattering:
    channels, height, width = schema.shape
    return _scattering_of(channels, height, width)


@lru_cache(maxsize=4)
def _scattering_of(channels: int, height: int, width: int) -> Scattering:
    """Maps of at most 8 × 8 places where the image is small enough for two scales, and as many angles as memory is good for."""
    scales = max(_SCALES, math.ceil(math.log2(max(height, width) / 8)))
    scales = min(scales, int(math.log2(min(height, width))))
    for angles in (8, 6, 4, 3, 2):
        scattering = Scattering((channels, height, width), scales=scales, angles=angles)
        if scattering.dim <= _MOST_FEATURES:
            break
    return scattering


def _leading(matrix: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """About the `count` largest eigenvalues and their vectors, by subspace iteration: a twentieth of the time of them all."""
    size = len(matrix)
    tried = min(size, count + 40)
    vectors = torch.randn(size, tried, generator=generator)
    for _ in range(6):
        vectors = torch.linalg.qr(matrix @ vectors)[0]
    values, within = torch.linalg.eigh(vectors.T @ matrix @ vectors)
    return values.flip(0)[:count], (vectors @ within.flip(1))[:, :count]


@torch.no_grad()
def _features(scattering: Scattering, records: Tensor) -> Tensor:
    pixels = records.to(torch.float32) / 255 if records.dtype == torch.uint8 else records
    features: Tensor = scattering(pixels)
    return features
