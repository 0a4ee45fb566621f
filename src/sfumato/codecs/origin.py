"""Where a codec comes from: the card of something made of public data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from sfumato.codecs.codec import Card
from sfumato.data import Batch, Dataset, find_named


def card_of(
    public: Dataset,
    about: str,
    seen: Iterable[Batch],
    *,
    quality: Mapping[str, float] | None = None,
    **settings: Any,
) -> Card:
    """The card of something made of the records `seen` of a public data set."""
    digest, records = hashlib.sha256(), 0
    for batch in seen:
        digest.update(batch.pixels().mul(255).round().to(torch.uint8).numpy().tobytes())
        records += len(batch)
    return Card(
        about=about,
        trained_on=(public.name,),
        records=records,
        licence=_licence(public.name),
        sha256=digest.hexdigest(),
        settings=settings,
        quality=quality or {},
    )


def _licence(name: str) -> str:
    named = find_named(name) if name else None
    return named[0].licence if named else "not stated; see the public data"
