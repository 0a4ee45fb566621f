"""Grids of images, for samples.png and the report."""

from __future__ import annotations

import numpy as np
from PIL import Image

from sfumato.data.dataset import Dataset
from sfumato.data.sources import eight_bits


def sample_grid(
    dataset: Dataset, per_class: int = 10, *, pad: int = 2, least_height: int = 44
) -> Image.Image:
    """One row a class with `per_class` images each (unlabelled: ten rows), small images enlarged without smoothing.

    A class with fewer images leaves the rest of its row blank.
    """
    channels, height, width = dataset.schema.shape
    images = eight_bits(dataset.images)
    labels = dataset.labels
    if labels is None:
        rows = [np.arange(r * per_class, min((r + 1) * per_class, len(images))) for r in range(10)]
        rows = [row for row in rows if len(row)]
    else:
        rows = [np.flatnonzero(labels == c)[:per_class] for c in range(dataset.schema.n_classes)]
    scale = max(1, -(-least_height // height))
    cell_h, cell_w = height * scale + pad, width * scale + pad
    canvas = np.full((len(rows) * cell_h + pad, per_class * cell_w + pad, 3), 255, dtype=np.uint8)
    for r, row in enumerate(rows):
        for c, index in enumerate(row):
            picture = images[index].repeat(scale, axis=1).repeat(scale, axis=2).transpose(1, 2, 0)
            if channels != 3:
                picture = picture[:, :, :1].repeat(3, axis=2)
            top, left = pad + r * cell_h, pad + c * cell_w
            canvas[top : top + height * scale, left : left + width * scale] = picture
    return Image.fromarray(canvas)
