"""Opening a PUBLIC data set beside a private one: in the private set's shape, where a folder lets itself be resized.

Public data may be read freely; the private set gives its schema only, which is public too.
"""

from __future__ import annotations

from pathlib import Path

from sfumato.data import Dataset, Schema, find_named, load
from sfumato.data.loading import load_like
from sfumato.data.remote import is_address
from sfumato.errors import BadInput
from sfumato.progress import Progress

PublicData = Dataset  # that may be read freely; methods know no other


def load_public(spec: str | Path, like: Schema, progress: Progress | None = None) -> PublicData:
    """The public set `spec`, a name or a path, for a private one with the schema `like`.

    A folder of pictures is read in the size and channels of `like`; a table without a schema of its own and labels without
    names take those of `like`, and so do pixels whose range their file leaves open. Whether the shapes agree is for the method
    to check.
    """
    path = Path(spec)
    if find_named(str(spec)) is not None:
        return load(str(spec), progress=progress)
    if like.kind == "images" and (path.is_dir() or (is_address(spec) and not path.suffix)):
        return load_like(spec, like, image_size=like.shape[1], channels=like.shape[0], fit=like.fit)
    try:
        return load_like(spec, like, schema=None)
    except BadInput:
        if not path.is_file():
            raise
    return (
        load_like(path, like)
        if like.kind == "table"
        else load_like(path, like, classes=like.classes)
    )
