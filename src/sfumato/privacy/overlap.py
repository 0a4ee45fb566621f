"""Private records among the public ones: looked for before anything is charged, and refused.

A method may do what it likes with public data and with codecs and networks made of them; if they hold private records,
the guarantee is void. So rows are compared as the methods see them (after the schema; images in 256 levels, labels left
out) by keyed digests:

- public against private data: the key is drawn from the operating system for one comparison and forgotten with it;
- codecs and networks: `remember` keeps digests of what a file was made of in the local cache, under a secret of that
  cache, and nothing of it in the file itself, which is published. Folder and files are the user's alone (0700, 0600).

One common record is enough for a refusal, except images of one colour all over (blank scans, black frames) and table
rows without any value: such a record tells nothing of anybody, and two honest sets may share it. Public rows in common
are not left out instead, for then the result would depend on which private records there are.

PRIVATE: the rows, and the outcome. A refusal is an exception for the operator's eyes; it names neither records nor
their number, and nothing writes it to a file. What this cannot see: copies that were resized, cropped, moved, or changed
in any pixel, and files made elsewhere. There, "public" is the operator's word, and the statement says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfumato.data import Batch, Dataset
from sfumato.data.sources import Array
from sfumato.errors import BadInput, CorruptArtifact
from sfumato.files import cache_folder, sha256_of

_SIZE = 16  # bytes: two of 10⁹ rows agree by chance with a probability below 10⁻²⁰
_ROWS_AT_ONCE = 1024
_PATCHES = 16
_DIGEST = np.dtype(f"S{_SIZE}")

Digests = np.ndarray[Any, np.dtype[np.bytes_]]


def refuse_overlap(private: Dataset, public: Dataset) -> None:
    """Raise BadInput if a private record stands in `public` too. Reads both once; holds 16 bytes a public record."""
    key = secrets.token_bytes(32)
    if _meets(private, _all_digests(public, key), key):
        raise BadInput(
            f"Private records of {private.name} stand in the public data {public.name} too, which voids the guarantee; give "
            "public data without them."
        )


def refuse_trained_on(private: Dataset, artifact: Path | str) -> None:
    """Raise BadInput if the codec or network in the file `artifact` was made, in this cache's sight, of private records.

    `artifact` is a path, or a setting that ends in one ("pca:codec.safetensors"). What is no file, and a file without a record in
    the cache, passes.
    """
    record = _record_of(artifact)
    if record is not None and _meets(private, record, _secret()):
        raise BadInput(
            f"{artifact} was trained on private records of {private.name}, so its weights are not public and the guarantee "
            "would be void; take one that was trained on other data."
        )


def remember(artifact: Path, public: Dataset) -> None:
    """Keep in the local cache that the file `artifact`, by its content, was made of the rows of `public`."""
    _write(_place(artifact), _all_digests(public, _secret()).tobytes())


def keyed_digest(content: bytes) -> str:
    """Under the secret of the local cache: the same for the same content, and of no use to anyone without that cache."""
    return hashlib.blake2b(content, key=_secret(), digest_size=_SIZE).hexdigest()


def fingerprint(data: Dataset, key: bytes) -> str:
    """Of the rows as methods see them, whatever their order and labels; of no use to anyone without `key`. Reads `data` once.

    A keyed digest of the sorted keyed digests of all rows, 16 bytes a record while it is worked out. PRIVATE, like the key.
    Where units are stated it is of units, each by its rows, whatever they are called: the same rows divided among other
    persons have another fingerprint, since what is charged for them protects others.
    """
    found = [np.empty(0, _DIGEST), *_digests(data, key, blanks=True)]
    rows, kind = np.concatenate(found), b""
    if data.units is not None:
        rows, kind = _by_unit(rows, data.units.codes(len(rows)), key), b"units"
    return hashlib.blake2b(
        np.sort(rows).tobytes(), key=key, digest_size=32, person=kind
    ).hexdigest()


def _by_unit(rows: Digests, unit_of: Array, key: bytes) -> Digests:
    """A digest for each unit, of those of its rows in whatever order."""
    order = np.lexsort((rows, unit_of))
    ends = np.cumsum(np.bincount(unit_of))[:-1]
    each = (
        hashlib.blake2b(mine.tobytes(), key=key, digest_size=_SIZE, person=b"unit").digest()
        for mine in np.split(rows[order], ends)
    )
    return np.frombuffer(b"".join(each), _DIGEST)


@dataclass(frozen=True)
class Repeats:
    """Records that stand in the data more than once, by their numbers; PRIVATE, for the owner's eyes."""

    same: list[list[int]]  # to the last pixel or cell
    alike: list[list[int]]  # pictures that agree in what is light and dark
    blank: int  # pictures of one colour all over, which are in neither list
    torn_classes: int = 0  # of `same`: groups with several labels,
    torn_units: int = 0  # or of several units
    alike_public: int = 0  # private pictures that look like a public one


def repeated(data: Dataset, public: Dataset | None = None) -> Repeats:
    """Equal records, and pictures that look alike. Reads `data` once and holds 32 bytes a record, by a key that is forgotten."""
    key = secrets.token_bytes(32)
    images = data.schema.kind == "images"
    rows, looks, blank = [np.empty(0, _DIGEST)], [np.empty(0, _DIGEST)], [np.empty(0, bool)]
    labels = [np.empty(0, np.int64)]
    for batch in data.batches(_ROWS_AT_ONCE):
        rows.append(_digested(batch, key, blanks=True))
        if batch.labels is not None:
            labels.append(batch.labels.numpy())
        if images:
            found, one_colour = _looks(batch, key)
            looks.append(found)
            blank.append(one_colour)
    same, empty = np.concatenate(rows), np.concatenate(blank)
    if not images:
        return Repeats(_groups(same), [], 0)
    seen = np.concatenate(looks)
    counted = np.flatnonzero(~empty)
    alike = [g for g in _groups(seen, counted) if len(set(same[g].tolist())) > 1]
    shared = 0
    if public is not None and public.schema.shape == data.schema.shape:
        theirs = [_looks(batch, key)[0] for batch in public.batches(_ROWS_AT_ONCE)]
        shared = int(np.isin(seen[counted], np.concatenate([seen[:0], *theirs])).sum())
    groups = _groups(same, counted)
    units = None if data.units is None else data.units.codes(len(same))
    return Repeats(
        groups,
        alike,
        int(empty.sum()),
        _torn(groups, np.concatenate(labels) if data.schema.labelled else None),
        _torn(groups, units),
        shared,
    )


def _torn(groups: list[list[int]], codes: Array | None) -> int:
    """How many groups have records of several codes."""
    return 0 if codes is None else sum(len(set(codes[g].tolist())) > 1 for g in groups)


def _groups(digests: Digests, counted: Array | None = None) -> list[list[int]]:
    """The numbers of records whose digests agree, where more than one does."""
    numbers = np.arange(len(digests)) if counted is None else counted
    order = numbers[np.argsort(digests[numbers], kind="stable")]
    ends = np.flatnonzero(digests[order][1:] != digests[order][:-1]) + 1
    return sorted(g.tolist() for g in np.split(order, ends) if len(g) > 1)


def _looks(batch: Batch, key: bytes) -> tuple[Digests, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The average hash of each picture (which of at most 16 × 16 patches are lighter than the whole) and whether it is blank."""
    gray = batch.pixels().nan_to_num(0.0).mean(1, keepdim=True)  # (n, 1, h, w)
    height, width = (min(_PATCHES, side) for side in gray.shape[2:])
    patches = torch.nn.functional.adaptive_avg_pool2d(gray, (height, width)).flatten(1)
    lighter = (patches > patches.mean(1, keepdim=True)).numpy()
    packed = np.packbits(lighter, axis=1)
    found = [hashlib.blake2b(row.tobytes(), key=key, digest_size=_SIZE).digest() for row in packed]
    flat = gray.flatten(1)
    return np.frombuffer(b"".join(found), _DIGEST), (flat == flat[:, :1]).all(1).numpy()


# -- digests ------------------------------------------------------------------------------------------------------


def _meets(private: Dataset, known: Digests, key: bytes) -> bool:
    """Whether a row of `private` has a digest among the sorted ones of `known`."""
    if len(known) == 0:
        return False
    for found in _digests(private, key):
        place = np.searchsorted(known, found).clip(max=len(known) - 1)
        if bool((known[place] == found).any()):
            return True
    return False


def _all_digests(data: Dataset, key: bytes) -> Digests:
    """Sorted, each once."""
    found = list(_digests(data, key))
    return np.unique(np.concatenate(found)) if found else np.empty(0, _DIGEST)


def _digests(data: Dataset, key: bytes, *, blanks: bool = False) -> Iterator[Digests]:
    """Of every row that is not blank, or of all, a batch at a time."""
    for batch in data.batches(_ROWS_AT_ONCE):
        yield _digested(batch, key, blanks)


def _digested(batch: Batch, key: bytes, blanks: bool) -> Digests:
    start = hashlib.blake2b(key=key, digest_size=_SIZE)

    def digest(row: np.ndarray[Any, Any]) -> bytes:
        state = start.copy()
        state.update(row.data)
        return state.digest()

    return np.frombuffer(b"".join(map(digest, _seen(batch, blanks))), _DIGEST)


def _seen(batch: Batch, blanks: bool = False) -> np.ndarray[Any, Any]:
    """The rows that are not blank, or all, one form for each: images in 256 levels (n, pixels), tables as float32."""
    if batch.values.ndim == 4:
        levels = batch.values
        if levels.dtype != torch.uint8:
            levels = batch.pixels().nan_to_num(0.0).mul(255).round().to(torch.uint8)
        flat = levels.flatten(2)  # (n, channels, pixels)
        blank = (flat == flat[:, :, :1]).flatten(1).all(dim=1)
        rows = flat.flatten(1)
    else:
        rows = batch.values.to(torch.float32)
        blank = rows.isnan().all(dim=1)
        # One bit pattern for each value: −0 is 0, and a missing one is missing.
        rows = torch.where(rows.isnan(), torch.nan, rows + 0.0)
    return np.ascontiguousarray((rows if blanks else rows[~blank]).numpy())


# -- what files were made of, in the local cache -----------------------------------------------------------------------


def _folder() -> Path:
    return cache_folder() / "made-of"


def _secret() -> bytes:
    """The key of this cache, drawn once. Two processes that draw at the same time end with the same one."""
    path = _folder() / "secret"
    if not path.exists():
        _write(path, secrets.token_bytes(32), replace=False)
    try:
        found = path.read_bytes()
    except OSError as error:
        raise _no_access(path, error) from error
    if len(found) != 32:
        raise CorruptArtifact(
            f"{path} is damaged, and the records beside it cannot be read without it; restore it, or delete its folder."
        )
    return found


def _place(artifact: Path) -> Path:
    """Where the record of a file lies: under a keyed digest of its content, so that a renamed copy is known too."""
    return _folder() / keyed_digest(sha256_of(artifact).encode())


def _record_of(artifact: Path | str) -> Digests | None:
    """The sorted digests of what a file was made of, where the cache has a record of it."""
    path = _file_in(str(artifact))
    if path is None or not (_folder() / "secret").exists():
        return None
    place = _place(path)
    try:
        return np.frombuffer(place.read_bytes(), _DIGEST) if place.exists() else None
    except (OSError, ValueError) as error:
        raise CorruptArtifact(
            f"What {path} was made of cannot be read from {place}; correct its permissions, or delete it if you know that none "
            "of it is private."
        ) from error


def _file_in(setting: str) -> Path | None:
    for text in (setting, setting.partition(":")[2]):
        with contextlib.suppress(OSError, ValueError):  # too long for a path, or no path at all
            if text and Path(text).is_file():
                return Path(text)
    return None


def _write(path: Path, content: bytes, *, replace: bool = True) -> None:
    """The whole file or none, readable by its owner only; with `replace=False` what is there already stays."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        temporary = path.with_name(f".{secrets.token_hex(8)}.part")
        try:
            handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            if replace:
                temporary.replace(path)
            else:
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _no_access(path, error) from error


def _no_access(path: Path, error: OSError) -> BadInput:
    return BadInput(
        f"Cannot keep in {path.parent} what this file was made of ({error.strerror or error}); set SFUMATO_CACHE to a folder "
        "that can be written to."
    )
