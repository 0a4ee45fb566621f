"""Textures of private pictures beside those of draws: what is asked, and how it is read.

Features are put in units of the draws' own spread around the draws' own mean, so that a record's have length about √dim and what
is left of their class means is how records differ from draws. That is public: draws cost nothing. Two sums are asked for:

    class textures            features ÷ radius, by class
    texture second moment     their leading coordinates, around the draws' class means: a ⊗ a of coordinates ÷ reach

Both are clipped to length 1. What departs from the draws' own by no more than noise is not believed (Wiener).
Private: the records, inside `data.sum` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.methods.base import Workspace
from sfumato.methods.moments import (
    leading,
    positive,
    scaled,
    shrunk_moments,
    square_query,
    symmetric,
    wiener,
)
from sfumato.methods.parts import Draw, Shortened
from sfumato.methods.settings import setting
from sfumato.privacy import Gate, Query
from sfumato.public.perceptual import SCATTERING, layers_of, trained_on
from sfumato.public.products import row_product
from sfumato.public.texture import Texture, textured

MEANS, MOMENT = "class textures", "texture second moment"
_SPLIT = 0.8  # of the share, for the class means
# Two numbers: of wavelets alone, and where a network looks on.
_WIDTH = (100, 200)  # coordinates with a second moment
_DRAWS = (10, 6000)  # for each feature; at most
_ROOM = (1.3, 2.0)  # lengths beyond this, against the draws' typical one, are clipped
_LEAST = 1e-4  # unit or length, where draws are all the same
_WINDOW = 9  # neighbouring features that tell together how strong their signal is


def _width(texture: Texture) -> int:
    return min(_WIDTH[texture.encoder is not None], texture.dim)


class Textured(Shortened):
    """A method that asks for textures, of wavelets or of a public network too."""

    encoder: str = setting(
        "What sees textures: scattering alone (no public data), or a public network beside it, such as resnet18, or the file of "
        "a pretrained extractor: for photographs.",
        default=SCATTERING,
    )
    size: int | None = setting(
        "Side of the pictures that a network of `encoder` sees; auto: their own, at least 64, or the only one it takes.",
        default=None,
        low=1,
        high=4096,
    )

    def texture(self, schema: Schema, weights: bool = True, **more: Any) -> Texture:
        """Without weights it has a size only."""
        if self.encoder == SCATTERING:
            return Texture(schema.shape)
        seen = layers_of(self.encoder, schema.shape, size=self.size, weights=weights, **more)
        return Texture(schema.shape, encoder=seen)

    def texture_queries(self, schema: Schema, share: float) -> list[Query]:
        texture, classes = self.texture(schema, weights=False), max(1, schema.n_classes)
        return [
            Query(label=MEANS, shape=(texture.dim,), segments=classes, share=_SPLIT * share),
            square_query(MOMENT, _width(texture), (1 - _SPLIT) * share),
        ]

    def check_unseen(self, run: Workspace) -> None:
        run.check_unseen(f"The network {self.encoder}", trained_on(self.encoder))

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        name = self.info.name
        if not textured(schema.shape):
            raise BadInput(
                f"{name} makes images of at least 4 × 4 pixels; enlarge them with --image-size."
            )
        if self.size is not None and self.encoder == SCATTERING:
            raise BadInput(
                f"{name}'s size is for networks, and scattering sees pictures as they are; leave it out."
            )
        self.texture(schema, weights=False)  # a name that is none is told before a row is read


@dataclass(frozen=True, eq=False)
class Textures:
    """Features as draws have them, in units of the draws' spread: what records are compared with, and the units to do it in."""

    texture: Texture
    centre: Tensor  # (dim,)
    scale: Tensor  # (dim,)
    means: Tensor  # (classes, dim)
    axes: Tensor  # (dim, width): from features to coordinates, halfway to equal variances
    moment: Tensor  # (width, width), of coordinates around the means of their class
    radius: float  # of features
    reach: float  # of coordinates

    @classmethod
    def of(cls, texture: Texture, shares: Tensor, draw: Draw, random: torch.Generator) -> Textures:
        """Of draws (as bytes), as many of each class that is present."""
        present = (shares > 0).nonzero().squeeze(1)
        each = max(2, min(_DRAWS[0] * texture.dim, _DRAWS[1]) // len(present))
        labels = present.repeat_interleave(each)
        with torch.no_grad():
            rows = torch.cat(
                [texture(Batch(draw(some, random), None).pixels()) for some in labels.split(1000)]
            )
        centre, spread = rows.mean(0), rows.std(0)
        # Features that hardly vary among draws must not be blown up.
        # A network's deep layers hardly tell draws apart, and records well: there the unit is not below half a usual number.
        small = [0.1 * spread[: texture.blocks[0]].mean()]
        small += [0.5 * part.square().mean().sqrt() for part in rows.split(texture.blocks, 1)[1:]]
        least = torch.stack(small).repeat_interleave(torch.tensor(texture.blocks))
        scale = (spread.square() + least.square()).sqrt().clamp(min=_LEAST)
        rows = (rows - centre) / scale
        means = torch.zeros(len(shares), texture.dim)
        means[present] = rows.view(len(present), each, -1).mean(1)
        within = rows - means[labels]
        width, room = _width(texture), _ROOM[texture.encoder is not None]
        values, vectors = leading(within.T @ within / len(rows), width, random)
        axes = (vectors / values.clamp(min=_LEAST) ** 0.25).contiguous()
        coordinates = row_product(within, axes)
        weights = (shares[labels] / shares[labels].sum())[:, None]
        return cls(
            texture=texture,
            centre=centre,
            scale=scale,
            means=means,
            axes=axes,
            # Directions in which draws do not vary at all (a constant picture) are as good as any other.
            moment=(coordinates * weights).T @ coordinates + 1e-6 * torch.eye(width),
            radius=max(_LEAST, room * float(rows.norm(dim=1).mean())),
            reach=max(_LEAST, room * float(coordinates.norm(dim=1).mean())),
        )

    def features(self, pixels: Tensor, short: bool = False) -> Tensor:
        """(n, dim), row by row."""
        made: Tensor = self.texture(pixels, short)
        return (made - self.centre) / self.scale

    def coordinates(self, features: Tensor, labels: Tensor) -> Tensor:
        """(n, width), row by row; of a label that is no class, around the first one's mean."""
        return row_product(features - self.means[labels.clamp(min=0)], self.axes)

    def asked(self, data: Gate, shares: Tensor, size: float) -> Target:
        """Both sums; `size` is the public or released number of records."""
        given = (self.centre, self.scale)

        def of_class(batch: Batch) -> tuple[Tensor, Tensor | None]:
            return self.features(batch.pixels()), batch.labels

        def around(batch: Batch) -> tuple[Tensor, Tensor | None]:
            labels = batch.labels
            known = torch.zeros(len(batch), dtype=torch.int64) if labels is None else labels
            segment = None if labels is None else labels.clamp(max=0)
            return self.coordinates(self.features(batch.pixels()), known), segment

        release = data.sum(MEANS, scaled(of_class, self.radius), given=(*given, self.radius))
        present = shares > 0
        counts = (shares[present] * size).clamp(min=1.0).double()
        seen = release.value.view(len(shares), -1)[present] * self.radius / counts[:, None]
        away = seen - self.means[present]
        means = self.means.clone()
        doubts = release.noise_std * self.radius / counts
        means[present] += wiener(away, doubts, _WINDOW).float()
        parts = (*given, self.means, self.axes, self.reach)
        release = data.sum(MOMENT, scaled(around, self.reach), given=parts)
        unit, width = self.reach**2 / max(1.0, size), len(self.moment)
        moment = shrunk_moments(
            symmetric(release.value.view(1, width, width)) * unit,
            self.moment.double(),
            torch.tensor([release.noise_std * unit], dtype=torch.float64),
        )
        # No variance below a fiftieth of what draws have: noise may leave less than nothing.
        drawn = self.moment.diagonal().double()
        return Target(means, positive(moment[0], drawn, 0.02).float())


@dataclass(frozen=True, eq=False)
class Target:
    """The records' own, as far as they could be told from noise."""

    means: Tensor  # (classes, dim)
    moment: Tensor  # (width, width)
