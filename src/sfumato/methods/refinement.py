"""Ratio refinement: draw more than is wanted, and keep what looks most like the private records (DP-DRE turned inwards).

A mixture of Gaussians has the right means and covariances and the wrong texture. Scattering features see texture, and they
need no training. DP-DRE tells private from public features; here the base distribution is the private mixture itself, which may
be drawn from for ever.

    1.  scattering features of an image, whitened by the draws' own covariance within classes                  (free)
    2.  one linear classifier of 2C classes, real or drawn, each of class c, by full-batch gradient descent:
        the gradients of the real records are noisy sums, those of the draws are free                          (paid steps)
    3.  draw several times as many as wanted; keep in each class those with the highest log p(real, y | features) (free)

A record's gradient is the product of its 2C errors and its features, so its length is known in closed form and the sum over
records is one matrix product. Private: the records, in step 2 only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.files import Record
from sfumato.methods.base import Workspace
from sfumato.methods.moments import leading
from sfumato.methods.parts import Draw
from sfumato.privacy import Gate, Query, balanced
from sfumato.public.products import row_product
from sfumato.public.scattering import Scattering
from sfumato.public.texture import scattering_of, textured

STEPS = 60
WIDTH = 400  # whitened features
LABEL = "refinement"
_MOST_FEATURES = 5000
_DRAWS = 5  # for each feature, to whiten by and to tell records from
_CONSTANT = 0.3  # beside features of length about 1
_RATE, _MOMENTUM = 4.0, 0.9
# Noise of a step ÷ number of records up to which the rate is as it stands; above, steps shorten in proportion.
_QUIET = 1e-3
_PIECE = 2000


def refinable(schema: Schema) -> bool:
    """Scattering wants images of a few pixels a side."""
    return schema.kind == "images" and textured(schema.shape)


def refinement_query(schema: Schema, share: float) -> Query:
    """Gradients of the classifier: 2C errors ⊗ features, each product clipped to norm 1."""
    shape = (2 * max(1, schema.n_classes), min(WIDTH, _scattering(schema).dim) + 1)
    return Query(label=LABEL, shape=shape, steps=STEPS, share=share)


@dataclass(frozen=True)
class WhitenedFeatures(Record):
    """Scattering features, whitened to length about 1, and a constant."""

    centre: Tensor  # (features,)
    mixing: Tensor  # (features, width)

    @classmethod
    def by(
        cls, schema: Schema, shares: Tensor, draw: Draw, random: torch.Generator
    ) -> tuple[WhitenedFeatures, Tensor, Tensor]:
        """Whitened by draws of the generator; also the whitened features of these draws and their classes."""
        scattering = _scattering(schema)
        present = (shares > 0).nonzero().squeeze(1)
        each = max(50, _DRAWS * scattering.dim // len(present))
        parts = []
        square = torch.zeros(scattering.dim, scattering.dim)
        for code in present.tolist():
            features = _features(scattering, draw(torch.full((each,), code), random))
            parts.append(features)
            around = features - features.mean(0)
            square.addmm_(around.T, around)
        rows = torch.cat(parts)
        values, vectors = leading(square / len(rows), min(WIDTH, scattering.dim), random)
        # Directions in which draws hardly vary (a constant picture) must not be blown up.
        values = values.clamp(min=max(1e-8, 1e-5 * float(values[0])))
        whitened = cls(rows.mean(0), (vectors / (values * len(values)).sqrt()).contiguous())
        return whitened, whitened.of(rows), present.repeat_interleave(each)

    def of(self, features: Tensor) -> Tensor:
        rows = row_product(features - self.centre, self.mixing)
        return torch.nn.functional.pad(rows, (0, 1), value=_CONSTANT)

    def __call__(self, schema: Schema, records: Tensor) -> Tensor:
        return self.of(_features(_scattering(schema), records))


@dataclass(frozen=True)
class Refinement(Record):
    """Scores candidates by log p(real, y | features) and keeps the best."""

    features: WhitenedFeatures
    weights: Tensor  # (2 · classes, width + 1)

    @classmethod
    def earlier(cls, state: Mapping[str, Tensor]) -> Refinement | None:
        """As versions before 0.3 wrote it."""
        if not state:
            return None
        return cls(WhitenedFeatures(state["centre"], state["mixing"]), state["weights"])

    @classmethod
    def learnt(
        cls,
        data: Gate,
        run: Workspace,
        shares: Tensor,
        size: float,
        draw: Draw,
        seen: Callable[[Batch], Tensor],
        seed: int,
    ) -> Refinement:
        """The classifier of real and drawn; `size` is the public or released number of records.

        `seen` gives the pixels of real records, less what no draw can have: else that alone would tell the two apart.
        """
        schema, random = data.schema, torch.Generator().manual_seed(seed)
        features, drawn, codes = WhitenedFeatures.by(schema, shares, draw, random)
        of_records = data.remember(lambda batch: features(schema, seen(batch)))
        # The draws are as many of each class; weighted, they have the classes' shares as the real records do.
        weight = (shares[codes] / shares[codes].sum())[:, None]
        rate = _RATE / max(1.0, data.noise_std(LABEL) / size / _QUIET)
        weights = torch.zeros(2 * len(shares), drawn.shape[1])
        velocity, mean = torch.zeros_like(weights), torch.zeros_like(weights)
        gradients = record_gradients(of_records, weights)
        training = run.training(
            "Telling draws from records",
            random,
            stage=LABEL,
            weights=weights,
            velocity=velocity,
            mean=mean,
        )
        for step in training(data.steps(LABEL)):
            real = step.sum(gradients).view_as(weights).to(torch.float32) / size
            errors = _errors(drawn @ weights.T, codes + len(shares))
            velocity.copy_(_MOMENTUM * velocity + 0.5 * (real + (errors * weight).T @ drawn))
            weights -= rate * velocity
            # Averaging the second half takes out most of the noise.
            if step.index >= STEPS // 2:
                mean += weights / (STEPS - STEPS // 2)
        return cls(features, mean)

    def scores(self, schema: Schema, records: Tensor, labels: Tensor) -> Tensor:
        logits = self.features(schema, records) @ self.weights.T
        return logits.log_softmax(1).gather(1, labels[:, None]).squeeze(1)

    def draw(
        self, schema: Schema, labels: Tensor, draw: Draw, random: torch.Generator, each: int
    ) -> Tensor:
        """A record for each label: of `each` candidates a label, each class's best."""
        wanted = labels.repeat_interleave(each)
        candidates = draw(wanted, random)
        # In pieces: there are thousands of features.
        pieces = zip(candidates.split(_PIECE), wanted.split(_PIECE), strict=True)
        scores = torch.cat([self.scores(schema, records, codes) for records, codes in pieces])
        chosen = torch.empty_like(labels)
        for code in labels.unique().tolist():
            places = (labels == code).nonzero().squeeze(1)
            of_class = (wanted == code).nonzero().squeeze(1)
            best = scores[of_class].argsort(descending=True, stable=True)[: len(places)]
            # In random order, lest a record's place tell its rank.
            chosen[places] = of_class[best[torch.randperm(len(best), generator=random)]]
        return candidates[chosen]


def record_gradients(
    features: Callable[[Batch], Tensor], weights: Tensor
) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    """(p − e_y) ⊗ features: the gradient of the cross entropy of a linear classifier, for a real record of class y.

    **Guarantee**: balanced, so that the right factor has norm 1 and the left one, the whole gradient's length, is what the wall
    clips to 1. Row-wise. Records whose label is none of the classes count for nothing.
    """

    def gradients(batch: Batch) -> tuple[Tensor, Tensor]:
        rows, labels = features(batch), batch.labels
        if labels is None:
            labels = torch.zeros(len(batch), dtype=torch.int64)
        errors = _errors(row_product(rows, weights.T), labels.clamp(min=0))
        return balanced(torch.where(labels[:, None] >= 0, errors, 0.0), rows)

    return gradients


def _errors(logits: Tensor, codes: Tensor) -> Tensor:
    """Softmax minus the indicator of the true class, (n, 2C)."""
    errors = logits.softmax(1)
    return errors.scatter_add_(1, codes[:, None], torch.full((len(codes), 1), -1.0))


def _scattering(schema: Schema) -> Scattering:
    channels, height, width = schema.shape
    return scattering_of((channels, height, width), _MOST_FEATURES)


@torch.no_grad()
def _features(scattering: Scattering, records: Tensor) -> Tensor:
    pixels = records.to(torch.float32) / 255 if records.dtype == torch.uint8 else records
    features: Tensor = scattering(pixels)
    return features
