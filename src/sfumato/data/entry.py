"""What a named data set is: its public facts, its licence, its sources and how its cache is read.

Everything in this module is public.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sfumato.data.dataset import Dataset
from sfumato.data.fetch import FetchSource, ensure, is_cached
from sfumato.data.schema import Schema
from sfumato.data.sources import Array, Source, as_stored, from_files, npy_header
from sfumato.errors import BadInput
from sfumato.progress import Progress

Use = Literal["private", "public"]


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """A public data set.

    `sizes` maps a split to its number of records, `files` a file in the cache to its SHA-256.
    `use` says what experiments take the set for: the stand-in of the private data, or the public
    data that a method may learn from. Sets with the same `store` share one cache folder and one
    download. A set is `exact` when its files are the published bytes or follow from them by
    whole-number work; otherwise (pictures decoded or rendered here) another version of a library
    may change some pixels, and then the records' number and shape are checked instead.
    """

    name: str
    about: str
    licence: str
    use: Use
    schema: Schema
    sizes: Mapping[str, int]
    files: Mapping[str, str]
    sources: tuple[FetchSource, ...]
    open: Callable[[Path, str], Source]
    note: str = ""
    store: str = ""
    exact: bool = True

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    @property
    def cached(self) -> bool:
        """Whether the set is in the cache, so that `load` needs no connection."""
        return is_cached(self.store or self.name, self.files)

    def fetch(self, *, progress: Progress | None = None) -> Path:
        """The cache folder with the set's files, fetched if they are not there yet."""
        fits = None if self.exact else self._fits
        return ensure(self.store or self.name, self.files, self.sources, progress, fits=fits)

    def load(self, split: str = "train", *, progress: Progress | None = None) -> Dataset:
        """One split, fetched into the cache if it is not there yet."""
        if split not in self.sizes:
            raise BadInput(
                f"{self.name} has no split {split!r}; use "
                f"{' or '.join(f'{self.name}:{s}' for s in self.splits)}."
            )
        folder = self.fetch(progress=progress)
        name = f"{self.name}:{split}"
        return Dataset(self.open(folder, split), self.schema, name, published_as=name)

    def to_json(self) -> dict[str, Any]:
        """All facts but the code; nothing is fetched."""
        return {
            "name": self.name,
            "about": self.about,
            "licence": self.licence,
            "use": self.use,
            "note": self.note,
            "sizes": dict(self.sizes),
            "schema": self.schema.to_json(),
            "sources": [source.about for source in self.sources],
            "files": dict(self.files),
            "exact": self.exact,
            "cached": self.cached,
        }

    def _fits(self, folder: Path) -> bool:
        try:
            for split, size in self.sizes.items():
                source = self.open(folder, split)
                values, _ = next(source.blocks(1))
                if len(source) != size or values.shape[1:] != self.schema.shape:
                    return False
        except (BadInput, StopIteration):
            return False
        return True


# ------------------------------------------------------------------------------- arrays in a cache

_PARTS = ("values", "labels")


def array_files(*hashes: str) -> dict[str, str]:
    """SHA-256s in the layout of `write_arrays`: train values and labels, test values and labels."""
    names = (f"{split}-{part}.npy" for split in ("train", "test") for part in _PARTS)
    return dict(zip(names, hashes, strict=True))


def open_arrays(folder: Path, split: str) -> Source:
    values = npy_header(folder / f"{split}-values.npy")
    return from_files(values, npy_header(folder / f"{split}-labels.npy"), as_stored)


def write_arrays(workshop: Path, split: str, values: Array, labels: Iterable[int] | Array) -> None:
    np.save(workshop / f"{split}-values.npy", np.ascontiguousarray(values))
    np.save(workshop / f"{split}-labels.npy", np.asarray(labels, np.int64))


def every_fifth(size: int) -> dict[str, Array]:
    """A split by position alone, for sets that come without one: every fifth record is a test."""
    test = np.arange(size) % 5 == 0
    return {"train": np.flatnonzero(~test), "test": np.flatnonzero(test)}
