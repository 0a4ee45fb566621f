"""Where a file of synthetic records came from: a note beside it, so that no run's guarantee is put on what it did not draw.

`sfumato sample` writes FILE.origin.json: the SHA-256 of the run's generator and of the file, and whether there is any privacy.
A card or report names only a file whose note tells of its own run and of these very bytes. A note can be forged; it is there
against mistakes: the private table itself, or a file drawn at ε = ∞, with the card of a private run.

Public: all of it. The hash of a file without a note is never told, since the file might be the private one.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from sfumato._version import __version__
from sfumato.errors import BadInput
from sfumato.files import read_json, sha256_of, write_json
from sfumato.methods import SavedRun

FORMAT = 1


def note_of(path: Path) -> Path:
    """Beside a file or folder."""
    return path.with_name(f"{path.name}.origin.json")


def write_origin(run: Path, path: Path, *, n: int, seed: int) -> None:
    """Note that `path` was drawn from `run`."""
    with SavedRun(run) as saved:
        made, private = hashlib.sha256(saved.generator).hexdigest(), saved.statement.private
    write_json(
        note_of(path),
        {
            "format": FORMAT,
            "sfumato": __version__,
            "generator": made,
            "private": private,
            "records": n,
            "seed": seed,
            "sha256": hash_of(path),
        },
    )


def checked_hash(run: SavedRun, path: Path) -> str:
    """The SHA-256 of what was drawn from `run`; raises unless its note says so."""
    if not path.exists():
        raise BadInput(f"There is no {path} to release; give a file or folder that `sample` made.")
    again = f"draw it again by sfumato sample {run.path} --out {path.name}"
    if not note_of(path).is_file():
        raise BadInput(
            f"Nothing says that {path} was drawn from the run in {run.path} ({note_of(path).name} is not beside it), so the "
            f"run's guarantee cannot be put on it; {again}."
        )
    note = read_json(note_of(path))
    if note.get("generator") != hashlib.sha256(run.generator).hexdigest():
        raise BadInput(
            f"{path} was drawn from another run than that in {run.path}, whose guarantee says nothing of it; {again}."
        )
    found = hash_of(path)
    if note.get("sha256") != found:
        raise BadInput(f"{path} was changed after it was drawn; {again}.")
    return found


def hash_of(path: Path) -> str:
    """Of a folder, the hash of what `sha256sum` prints of its files in the order of their names."""
    if path.is_file():
        return sha256_of(path)
    files = sorted(p for p in path.rglob("*") if p.is_file())
    if not files:
        raise BadInput(f"{path} is empty; give a file or folder that `sample` made.")
    lines = "".join(f"{sha256_of(p)}  {p.relative_to(path).as_posix()}\n" for p in files)
    return hashlib.sha256(lines.encode()).hexdigest()
