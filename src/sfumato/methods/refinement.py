"""Ratio refinement: draw more than is wanted, and keep what looks most like the private records (DP-DRE turned inwards).

A mixture of Gaussians has the right means and covariances and the wrong texture. Scattering features see texture, and they
need no training. DP-DRE tells private from public features; here the base distribution is the private mixture itself, which may
be drawn from for ever.

    1.  a portrait of an image: scattering features, whitened by the draws' own covariance within classes      (free)
    2.  one linear classifier of 2C classes, real or drawn, each of class c, by full-batch gradient descent:
        the gradients of the real records are noisy sums, those of the draws are free                          (paid steps)
    3.  draw several times as many as wanted; keep in each class those with the highest log p(real, y | portrait) (free)

A record's gradient is the product of its 2C errors and its portrait, so its length is known in closed form and the sum over
records is one matrix product. Private: the records, in step 2 only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.privacy import Charge, OuterMap, PrivateData, Step, balanced, enforced_bound
from sfumato.public.products import row_product
from sfumato.public.remembered import Remembered
from sfumato.public.scattering import Scattering

STEPS = 60
WIDTH = 400  # whitened features
_LABEL = "refinement"
_SCALES = 2
_MOST_FEATURES = 5000
_DRAWS = 5  # for each feature, to whiten by and to tell records from
_CONSTANT = 0.3  # beside a portrait of length about 1
_RATE, _MOMENTUM = 4.0, 0.9
# Noise of a step ÷ number of records up to which the rate is as it stands; above, steps shorten in proportion.
_QUIET = 1e-3
_PIECE = 2000

Draw = Callable[[Tensor, torch.Generator], Tensor]  # labels → records


def refinable(schema: Schema) -> bool:
    """Scattering wants images of a few pixels a side."""
    return schema.kind == "images" and min(schema.shape[1:]) >= 2**_SCALES


def charge_for(schema: Schema, noise_multiplier: float) -> Charge:
    """What the steps cost, from public facts alone."""
    phi = Gradients.shaped(schema)
    return Charge(
        label=_LABEL,
        bound=enforced_bound(phi),
        noise_multiplier=noise_multiplier * math.sqrt(STEPS),
        steps=STEPS,
        dimension=phi.dim,
    )


@dataclass(frozen=True)
class Portraits:
    """Scattering features, whitened to length about 1, and a constant."""

    centre: Tensor  # (features,)
    mixing: Tensor  # (features, width)

    @classmethod
    def by(
        cls, schema: Schema, shares: Tensor, draw: Draw, generator: torch.Generator
    ) -> tuple[Portraits, Tensor, Tensor]:
        """Whitened by draws of the generator; also the portraits of these draws and their classes."""
        scattering = _scattering(schema)
        present = (shares > 0).nonzero().squeeze(1)
        each = max(50, _DRAWS * scattering.dim // len(present))
        parts = []
        square = torch.zeros(scattering.dim, scattering.dim)
        for code in present.tolist():
            features = _features(scattering, draw(torch.full((each,), code), generator))
            parts.append(features)
            around = features - features.mean(0)
            square.addmm_(around.T, around)
        rows = torch.cat(parts)
        centre = rows.mean(0)
        square /= len(rows)
        values, vectors = _leading(square, min(WIDTH, scattering.dim), generator)
        # Directions in which draws hardly vary (a constant picture) must not be blown up.
        values = values.clamp(min=max(1e-8, 1e-5 * float(values[0])))
        portraits = cls(centre, (vectors / (values * len(values)).sqrt()).contiguous())
        return portraits, portraits.of(rows), present.repeat_interleave(each)

    def of(self, features: Tensor) -> Tensor:
        rows = row_product(features - self.centre, self.mixing)
        return torch.nn.functional.pad(rows, (0, 1), value=_CONSTANT)

    def __call__(self, schema: Schema, records: Tensor) -> Tensor:
        return self.of(_features(_scattering(schema), records))


class Gradients(OuterMap):
    """(p − e_y) ⊗ portrait: the gradient of the cross entropy of a linear classifier, for a real record of class y.

    **Guarantee**: balanced, so that the right factor has norm 1 and the left one, the whole gradient's length, is clipped to 1.
    Row-wise. Records whose label is none of the classes count for nothing.
    """

    left_bound = right_bound = 1.0

    def __init__(
        self, classes: int, width: int, portrait: Callable[[Batch], Tensor] | None
    ) -> None:
        self.left, self.right = 2 * classes, width + 1
        self._portrait = portrait
        self.weights = torch.zeros(self.left, self.right)

    @classmethod
    def shaped(cls, schema: Schema, portrait: Callable[[Batch], Tensor] | None = None) -> Gradients:
        width = min(WIDTH, _scattering(schema).dim)
        return cls(max(1, schema.n_classes), width, portrait)

    def factors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if self._portrait is None:
            raise ValueError("a map made for a plan has no view of records")
        rows = self._portrait(batch)
        labels = batch.labels
        if labels is None:
            labels = torch.zeros(len(batch), dtype=torch.int64)
        errors = _errors(row_product(rows, self.weights.T), labels.clamp(min=0))
        return balanced(torch.where(labels[:, None] >= 0, errors, 0.0), rows)


@dataclass(frozen=True)
class Selection:
    """Scores candidates by log p(real, y | portrait) and keeps the best."""

    portraits: Portraits
    weights: Tensor  # (2 · classes, width + 1)
    schema: Schema

    @classmethod
    def learnt(
        cls,
        data: PrivateData,
        noise_multiplier: float,
        shares: Tensor,
        size: float,
        draw: Draw,
        seen: Callable[[Batch], Tensor],
        seed: int,
        on_step: Callable[[Step], None],
    ) -> Selection:
        """The classifier of real and drawn; `size` is the public or released number of records.

        `seen` gives the pixels of real records, less what no draw can have: else that alone would tell the two apart.
        """
        schema, random = data.schema, torch.Generator().manual_seed(seed)
        portraits, drawn, codes = Portraits.by(schema, shares, draw, random)
        remembered = Remembered(lambda batch: portraits(schema, seen(batch)))
        phi = Gradients.shaped(schema, remembered)
        charge = charge_for(schema, noise_multiplier)
        steps = data.poisson_steps(
            charge.rate,
            charge.steps,
            charge.noise_multiplier,
            bound=charge.bound,
            label=charge.label,
            dimension=charge.dimension,
        )
        # The draws are as many of each class; weighted, they have the classes' shares as the real records do.
        weight = (shares[codes] / shares[codes].sum())[:, None]
        rate = _RATE / max(1.0, charge.noise_std / size / _QUIET)
        velocity, mean = torch.zeros_like(phi.weights), torch.zeros_like(phi.weights)
        for step in steps:
            real = step.noisy_sum(phi).view_as(phi.weights).to(torch.float32) / size
            errors = _errors(drawn @ phi.weights.T, codes + phi.left // 2)
            velocity = _MOMENTUM * velocity + 0.5 * (real + (errors * weight).T @ drawn)
            phi.weights = phi.weights - rate * velocity
            # Averaging the second half takes out most of the noise.
            if step.index >= STEPS // 2:
                mean += phi.weights / (STEPS - STEPS // 2)
            on_step(step)
        return cls(portraits, mean, schema)

    def scores(self, records: Tensor, labels: Tensor) -> Tensor:
        logits = self.portraits(self.schema, records) @ self.weights.T
        return logits.log_softmax(1).gather(1, labels[:, None]).squeeze(1)

    def draw(
        self, labels: Tensor, draw: Draw, generator: torch.Generator, candidates_each: int
    ) -> Tensor:
        """A record for each label: of so many candidates a label, each class's best."""
        wanted = labels.repeat_interleave(candidates_each)
        candidates = draw(wanted, generator)
        # In pieces: a portrait is made of thousands of features.
        pieces = zip(candidates.split(_PIECE), wanted.split(_PIECE), strict=True)
        scores = torch.cat([self.scores(records, codes) for records, codes in pieces])
        chosen = torch.empty_like(labels)
        for code in labels.unique().tolist():
            places = (labels == code).nonzero().squeeze(1)
            of_class = (wanted == code).nonzero().squeeze(1)
            best = scores[of_class].argsort(descending=True, stable=True)[: len(places)]
            # In random order, lest a record's place tell its rank.
            chosen[places] = of_class[best[torch.randperm(len(best), generator=generator)]]
        return candidates[chosen]

    def tensors(self) -> dict[str, Tensor]:
        return {**dict(self._portrait_tensors()), "refinement.weights": self.weights}

    def _portrait_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for part in fields(Portraits):
            yield f"refinement.{part.name}", getattr(self.portraits, part.name)

    @classmethod
    def restored(cls, tensors: dict[str, Tensor], schema: Schema) -> Selection:
        parts = {part.name: tensors[f"refinement.{part.name}"] for part in fields(Portraits)}
        return cls(Portraits(**parts), tensors["refinement.weights"], schema)


def _errors(logits: Tensor, codes: Tensor) -> Tensor:
    """Softmax minus the indicator of the true class, (n, 2C)."""
    errors = logits.softmax(1)
    return errors.scatter_add_(1, codes[:, None], torch.full((len(codes), 1), -1.0))


def _scattering(schema: Schema) -> Scattering:
    channels, height, width = schema.shape
    return _scattering_of(channels, height, width)


@lru_cache(maxsize=4)
def _scattering_of(channels: int, height: int, width: int) -> Scattering:
    """Maps of at most 8 × 8 places, and as many angles as memory is good for."""
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
