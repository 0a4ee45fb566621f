"""What a locally linear classifier has to say for itself, as arrays and as pictures.

An `Explanation` is about some records (which it shows: they are not covered by any guarantee), a `FilterBank` about the
classifier alone (made of released weights: public). Red speaks for the class, blue against it, white says nothing.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sfumato.data import Schema
from sfumato.data.sources import Array
from sfumato.errors import BadInput

_LEAST_HEIGHT = 56  # small images are enlarged to this without smoothing
_PAD = 4
_TEXT = 12
_AGAINST, _FOR = np.array([33, 102, 172]), np.array([178, 24, 43])
_MOST_BARS = 8


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The strongest maps of a class for each of n records.

    The score of the class is Σ weight · score over its maps, and each map's score is filter · record + bias, so nearly all of the
    decision is in what is shown whenever the first weights are near 1 in sum.
    """

    schema: Schema
    features: tuple[str, ...]  # of a table, encoded; () for images
    inputs: Array = field(repr=False)  # (n, encoded): the records as the classifier sees them
    codes: Array  # (n,) the class that is explained
    probabilities: Array  # (n, classes)
    maps: Array  # (n, top) which maps of the class, strongest first
    weights: Array  # (n, top) σ, their part in the class score
    scores: Array  # (n, top) g, what they give the record
    filters: Array = field(repr=False)  # (n, top, encoded)

    def __len__(self) -> int:
        return len(self.codes)

    def contributions(self) -> Array:
        """(n, encoded): how much each number of the record adds to the score of the class, over the maps shown."""
        mixed = np.einsum("nt,ntd->nd", self.weights, self.filters)
        return mixed * self.inputs

    def captions(self) -> list[list[str]]:
        """For each record, a line on the record and one on each of its maps."""
        classes = self.schema.classes
        return [
            [
                f"{classes[code]}: {100 * p[code]:.0f} %",
                *(f"#{m}: {100 * w:.0f} %" for m, w in zip(maps, weights, strict=True)),
            ]
            for code, p, maps, weights in zip(
                self.codes, self.probabilities, self.maps, self.weights, strict=True
            )
        ]

    def picture(self) -> Image.Image:
        """A row a record: the record itself, then its strongest filters with their weights (tables: their largest terms)."""
        if self.schema.kind == "table":
            return self._bars()
        rows = []
        for record, filters in zip(self.inputs, self.filters, strict=True):
            shown = [_pixels(record, self.schema), *_signed(filters, self.schema)]
            rows.append(shown)
        return _sheet(rows, self.captions())

    def _bars(self) -> Image.Image:
        """A panel a record: the terms that speak loudest for and against its class."""
        if len(self) > 20:
            raise BadInput(
                "A picture shows at most 20 records of a table; explain fewer at a time."
            )
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.5, 0.6 + 2.1 * len(self)), layout="constrained")
        panels = figure.subplots(len(self), 1, squeeze=False)[:, 0]
        for panel, terms, caption in zip(
            panels, self.contributions(), self.captions(), strict=True
        ):
            order = np.argsort(-np.abs(terms))[:_MOST_BARS][::-1]
            colours = ["#b2182b" if terms[i] > 0 else "#2166ac" for i in order]
            panel.barh([self.features[i] for i in order], terms[order], color=colours)
            panel.axvline(0, color="black", linewidth=0.8)
            panel.set_title(f"{caption[0]}   maps {', '.join(caption[1:])}", fontsize=9, loc="left")
            panel.tick_params(labelsize=8)
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=110)
        return Image.open(stream).convert("RGB")

    def to_json(self) -> list[dict[str, Any]]:
        """The same without the filters themselves: one object a record."""
        classes = self.schema.classes
        return [
            {
                "class": classes[code],
                "probabilities": {c: round(float(v), 6) for c, v in zip(classes, p, strict=True)},
                "maps": [
                    {"map": int(m), "weight": float(w), "score": float(g)}
                    for m, w, g in zip(maps, weights, scores, strict=True)
                ],
            }
            for code, p, maps, weights, scores in zip(
                self.codes, self.probabilities, self.maps, self.weights, self.scores, strict=True
            )
        ]


@dataclass(frozen=True, kw_only=True)
class FilterBank:
    """Every map of every class in the space of the records: g = weights · record + bias."""

    schema: Schema
    features: tuple[str, ...]
    weights: Array = field(repr=False)  # (classes, maps, encoded)
    biases: Array = field(repr=False)  # (classes, maps)

    def images(self) -> Array:
        """(classes, maps, channels, height, width)"""
        if self.schema.kind != "images":
            raise BadInput("The filters of a table are no images; use `weights` and `features`.")
        return self.weights.reshape(*self.weights.shape[:2], *self.schema.shape)

    def picture(self, most: int = 10) -> Image.Image:
        """A row a class with its `most` longest filters, on one scale: idle ones are pale (tables: a heat map)."""
        if self.schema.kind == "table":
            return self._heat(most)
        rows, captions = [], []
        for name, filters in zip(self.schema.classes, self.weights, strict=True):
            order = np.argsort(-np.linalg.norm(filters, axis=1), kind="stable")[:most]
            rows.append(_signed(filters[order], self.schema))
            captions.append([f"{name} #{order[0]}", *(f"#{i}" for i in order[1:])])
        return _sheet(rows, captions)

    def _heat(self, most: int) -> Image.Image:
        from matplotlib.figure import Figure

        order = np.argsort(-np.linalg.norm(self.weights, axis=2), axis=1, kind="stable")[:, :most]
        rows = np.concatenate([w[o] for w, o in zip(self.weights, order, strict=True)])
        names = [
            f"{name} #{i}" for name, o in zip(self.schema.classes, order, strict=True) for i in o
        ]
        figure = Figure(
            figsize=(2 + 0.17 * len(self.features), 2.2 + 0.2 * len(rows)), layout="constrained"
        )
        axes = figure.subplots()
        most_ = float(np.abs(rows).max()) or 1.0
        axes.imshow(rows, cmap="RdBu_r", vmin=-most_, vmax=most_, aspect="auto")
        axes.set_xticks(range(len(self.features)), self.features, rotation=90, fontsize=6)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=110)
        return Image.open(stream).convert("RGB")


def _pixels(record: Array, schema: Schema) -> Array:
    """A record as it is, (height, width, 3) uint8."""
    image = np.round(255 * record.reshape(schema.shape)).clip(0, 255).astype(np.uint8)
    return np.repeat(image, 3 // len(image), axis=0).transpose(1, 2, 0)


def _signed(filters: Array, schema: Schema) -> list[Array]:
    """Filters from blue over white to red on one scale, so that idle ones are pale; (height, width, 3) uint8 each.

    Colour channels are added up.
    """
    images = filters.reshape(-1, *schema.shape).sum(axis=1)
    strength = (images / (np.abs(images).max() or 1.0))[..., None]
    end = np.where(strength > 0, _FOR, _AGAINST)
    return list(np.round(255 + np.abs(strength) * (end - 255)).astype(np.uint8))


def _sheet(rows: Sequence[Sequence[Array]], captions: Sequence[Sequence[str]]) -> Image.Image:
    """Rows of pictures with a line of text under each."""
    height, width = rows[0][0].shape[:2]
    scale = max(1, -(-_LEAST_HEIGHT // height))
    cell = (width * scale + 2 * _PAD, height * scale + _TEXT + 2 * _PAD)
    font = ImageFont.load_default(size=10)
    # The longest caption sets the width of the columns, so that none runs into the next.
    widest = max(font.getlength(text) for row in captions for text in row)
    cell = (max(cell[0], int(widest) + 2 * _PAD), cell[1])
    sheet = Image.new("RGB", (cell[0] * max(map(len, rows)), cell[1] * len(rows)), "white")
    draw = ImageDraw.Draw(sheet)
    for r, (pictures, texts) in enumerate(zip(rows, captions, strict=True)):
        for c, (picture, text) in enumerate(zip(pictures, texts, strict=True)):
            left, top = c * cell[0] + _PAD, r * cell[1] + _PAD
            shown = Image.fromarray(picture).resize(
                (width * scale, height * scale), Image.Resampling.NEAREST
            )
            sheet.paste(shown, (left, top))
            draw.text((left, top + height * scale), text, fill="black", font=font)
    return sheet
