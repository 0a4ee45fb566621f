"""Rows as classifiers and distances take them: images as they are, tables as numbers.

The scale of a table's numbers comes from the *synthetic* rows, which are public; no real row is read to prepare others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sfumato.data import Schema


def encoder(schema: Schema, rows: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Images as they are; a table's categories one-hot, its numbers standardised by the *synthetic* rows.

    A missing number becomes the mean and sets an extra column; a missing category sets none of its columns.
    """
    if schema.kind == "images":
        return lambda images: images
    means, scales = rows.nanmean(0), torch.ones(rows.shape[1])
    means = means.nan_to_num(0.0)
    deviations = (rows - means).square().nanmean(0).sqrt().nan_to_num(0.0)
    scales = torch.where(deviations > 0, deviations, torch.ones_like(deviations))

    def encode(table: torch.Tensor) -> torch.Tensor:
        parts = []
        for index, column in enumerate(schema.columns):
            values = table[:, index]
            absent = values.isnan()
            if column.kind == "categorical":
                codes = torch.arange(len(column.categories))
                parts.append((values[:, None] == codes).float())  # NaN equals nothing
                continue
            parts.append(((values - means[index]) / scales[index]).nan_to_num(0.0)[:, None])
            if column.missing:
                parts.append(absent.float()[:, None])
        return torch.cat(parts, 1)

    return encode
