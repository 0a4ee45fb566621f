"""Data sets known by name: the registry and how a name is looked up.

To add one: describe it with a `NamedSet` (its public facts, licence, sources, SHA-256s and how a
split is opened from the cache folder) in the module of its kind, and list it here. Everything in
this module is public.
"""

from __future__ import annotations

import difflib

from sfumato.data.entry import NamedSet
from sfumato.data.fonts import FONT_DIGITS
from sfumato.data.gaussians import GAUSSIANS_2D
from sfumato.data.image_sets import IMAGE_SETS
from sfumato.data.table_sets import TABLE_SETS
from sfumato.errors import BadInput

_REGISTRY = {entry.name: entry for entry in (*IMAGE_SETS, FONT_DIGITS, *TABLE_SETS, GAUSSIANS_2D)}


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
    return BadInput(
        f"There is no data set or file called {spec!r}; {_near(spec)}The known names are "
        f"{', '.join(_REGISTRY)}, and "
        "anything else must be the path of a folder, .npz, .csv, .parquet or IDX file."
    )


def unknown_set(name: str) -> BadInput:
    """The error where only a data set's name will do."""
    return BadInput(
        f"There is no data set called {name!r}; {_near(name)}The known names are "
        f"{', '.join(_REGISTRY)}."
    )


def _near(spec: str) -> str:
    name = spec.partition(":")[0].lower()
    near = difflib.get_close_matches(name, _REGISTRY, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}? " if near else ""
