"""Where a training keeps what it needs to go on: tensors by name, and how many steps they have behind them.

A run keeps its checkpoints in its store (`privacy.store`); training on public data alone keeps one in a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sfumato.errors import CorruptArtifact
from sfumato.files import atomic_path, check_file


class Checkpoint(Protocol):
    """One place for one training; `write` replaces what was there, whole or not at all."""

    @property
    def step(self) -> int:
        """How many steps it has behind it; 0 where there is none."""

    def exists(self) -> bool: ...

    def read(self) -> tuple[int, dict[str, Tensor]] | None: ...

    def write(self, step: int, tensors: Mapping[str, Tensor]) -> None: ...

    def damaged(self, error: Exception) -> CorruptArtifact:
        """What to raise when what was read does not fit the training."""


class FileCheckpoint:
    """A checkpoint in a safetensors file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @property
    def step(self) -> int:
        found = self.read()
        return 0 if found is None else found[0]

    def exists(self) -> bool:
        return self.path.exists()

    def read(self) -> tuple[int, dict[str, Tensor]] | None:
        if not self.exists():
            return None
        check_file(self.path)
        try:
            with safe_open(self.path, framework="pt") as stored:
                step = int(json.loads(stored.metadata()["checkpoint"])["step"])
                return step, {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
            raise self.damaged(error) from error

    def write(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        with atomic_path(self.path) as temporary:
            save_file(
                {name: t.detach().contiguous().clone() for name, t in tensors.items()},
                temporary,
                metadata={"checkpoint": json.dumps({"step": step})},
            )

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def damaged(self, error: Exception) -> CorruptArtifact:
        return CorruptArtifact(
            f"{self.path} is not a whole checkpoint of this training ({type(error).__name__}); delete it and resume: training "
            "starts again and costs no privacy."
        )
