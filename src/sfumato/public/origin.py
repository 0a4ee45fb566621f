"""Where a codec comes from: the card of something made of public data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from sfumato.data import Batch, Dataset, find_named
from sfumato.public.codec import Card


def card_of(
    public: Dataset,
    about: str,
    seen: Iterable[Batch],
    *,
    quality: Mapping[str, float] | None = None,
    also: Sequence[str] = (),
    **settings: Any,
) -> Card:
    """The card of something made of the records `seen` of a public data set; `also`: what made it that was itself made of others.

    Their number and hash are told of a set that is published under a name, and of no other: the card goes where the codec goes,
    and what was given as public may turn out not to be.
    """
    records, sha256 = (None, "") if public.published_as is None else _fingerprint(seen)
    return Card(
        about=about,
        trained_on=(public.name, *also),
        records=records,
        licence=_licence(public),
        sha256=sha256,
        settings=settings,
        quality=quality or {},
    )


def _fingerprint(seen: Iterable[Batch]) -> tuple[int, str]:
    digest, records = hashlib.sha256(), 0
    for batch in seen:
        digest.update(batch.pixels().mul(255).round().to(torch.uint8).numpy().tobytes())
        records += len(batch)
    return records, digest.hexdigest()


def _licence(public: Dataset) -> str:
    named = find_named(public.published_as) if public.published_as else None
    return named[0].licence if named else "not stated; see the public data"
