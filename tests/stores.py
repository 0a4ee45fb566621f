"""A store for tests of the wall: begun once in a folder, and opened again after that."""

from __future__ import annotations

from pathlib import Path

from sfumato.privacy import Charge, RunStore


def store_in(folder: Path, *charges: Charge) -> RunStore:
    """Without charges nothing is promised, and anything may be asked."""
    store = RunStore(folder)
    if not store.begun:
        store.begin({"method": "a test"}, {"epsilon": 1.0}, charges, 1.0)
    return store
