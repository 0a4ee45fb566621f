"""Class counts: how many records each class has, released with noise, and what may be concluded from it.

Public after the release: noisy counts, the classes' shares, and the number of records that sums are divided by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.privacy import Gate, Query

LABEL = "class counts"
_SHARE = (
    0.02  # of the squared noise budget beside 1 for the rest: a count of thousands needs little
)


@dataclass(frozen=True)
class Counts:
    """What noisy counts say: the classes' shares, and the number of records or its estimate."""

    shares: Tensor  # (classes,) float32, non-negative, sum 1
    size: float

    @classmethod
    def of(cls, counts: Tensor, noise_std: float, size: int | None) -> Counts:
        """From noisy counts (classes,); `size` is the public number of records, None where it is private.

        A count below its own noise may belong to a class without records: it keeps no share.
        """
        n = float(size) if size is not None else max(1.0, float(counts.sum()))
        kept = torch.where(counts > min(2 * noise_std, 0.5 * n / len(counts)), counts, 0.0)
        if float(kept.sum()) <= 0:
            kept = torch.ones_like(counts)
        return cls((kept / kept.sum()).to(torch.float32), n)


def count_query(schema: Schema, share: float = _SHARE) -> Query:
    """1 for every record, filed by class: bound 1."""
    classes = max(1, schema.n_classes)
    return Query(label=LABEL, shape=(1,), segments=classes, non_negative=True, share=share)


def count(data: Gate) -> Counts:
    """Ask for the counts."""
    release = data.sum(LABEL, _ones)
    return Counts.of(release.value[:, 0], release.noise_std, data.public_size)


def _ones(batch: Batch) -> tuple[Tensor, Tensor | None]:
    return torch.ones(len(batch), 1), batch.labels


def apportion(shares: Tensor, n: int, random: torch.Generator) -> Tensor:
    """`n` labels in the proportion of `shares` (largest remainders), in random order."""
    exact = shares.to(torch.float64) / shares.to(torch.float64).sum() * n
    counts = exact.floor().to(torch.int64)
    missing = n - int(counts.sum())
    counts[(exact - counts).argsort(descending=True, stable=True)[:missing]] += 1
    labels = torch.arange(len(shares)).repeat_interleave(counts)
    return labels[torch.randperm(n, generator=random)]


def class_codes(asked: Any, schema: Schema, what: str = "classes") -> Tensor:
    """Classes by their names or codes, as a caller asks for them, as codes (m,)."""
    if not schema.labelled:
        raise BadInput(f"These records have no classes; leave `{what}` out.")
    for listed in ("tolist", "to_list"):  # of NumPy, torch, pandas; of polars
        if hasattr(asked, listed):
            asked = getattr(asked, listed)()
    if isinstance(asked, str) or not isinstance(asked, Sequence) or not len(asked):
        raise BadInput(f"`{what}` is no list of classes; pass their names or codes.")
    code: dict[Any, int] = {name: index for index, name in enumerate(schema.classes)}
    found = []
    for one in asked:
        whole = isinstance(one, Integral) and not isinstance(one, bool)
        named = code.get(one, -1) if isinstance(one, str) else -1
        at = int(one) if whole and 0 <= one < schema.n_classes else named
        if at < 0:
            shown = ", ".join(schema.classes[:10]) + (", …" if schema.n_classes > 10 else "")
            raise BadInput(
                f"`{what}` asks for {one!r}, which is none of the classes; pass codes 0 … {schema.n_classes - 1} or names "
                f"({shown})."
            )
        found.append(at)
    return torch.tensor(found, dtype=torch.int64)
