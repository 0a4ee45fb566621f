"""A release: numbers that have left the wall, with the charge that paid for them. Saved first, reusable for ever.

What is saved is public by the guarantee: the noisy sum in whole grid units and its description, in one safetensors file.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sfumato.errors import CorruptArtifact
from sfumato.privacy.accounting import Charge
from sfumato.privacy.journal import Journal
from sfumato.storage import atomic_path


@dataclass(frozen=True, kw_only=True)
class Release:
    """A noisy sum over all records: `value` = Σ φ(x) + discrete Gaussian noise of standard deviation `noise_std`."""

    units: Tensor  # (segments, dim) int64, in multiples of the grid
    grid: float
    charge: Charge

    @property
    def value(self) -> Tensor:
        """(segments, dim) float64"""
        return self.units.to(torch.float64) * self.grid

    @property
    def label(self) -> str:
        return self.charge.label

    @property
    def noise_std(self) -> float:
        return self.charge.noise_std

    def save(self, path: Path) -> None:
        description = {"format": 1, "grid": self.grid, "charge": self.charge.to_json()}
        with atomic_path(path) as temporary:
            save_file(
                {"units": self.units.contiguous()},
                temporary,
                metadata={"release": json.dumps(description)},
            )

    @classmethod
    def load(cls, path: Path) -> Release:
        try:
            with safe_open(path, framework="pt") as stored:
                description: dict[str, Any] = json.loads((stored.metadata() or {})["release"])
                units = stored.get_tensor("units")
            charge = Charge(**description["charge"])
            grid = float(description["grid"])
        except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
            raise CorruptArtifact(
                f"{path} is not a whole release ({type(error).__name__}); restore the file, since making it again "
                "spends the budget again."
            ) from error
        if units.dtype != torch.int64 or units.ndim != 2 or units.numel() != charge.dimension:
            raise CorruptArtifact(
                f"{path} holds other numbers than its description says; restore the file."
            )
        return cls(units=units, grid=grid, charge=charge)


class ReleaseStore:
    """A run's releases: in memory, and one file a label where there is a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = Path(folder) if folder is not None else None
        self.releases: dict[str, Release] = {}
        self._journals: list[Journal] = []

    @staticmethod
    def file_name(label: str) -> str:
        return re.sub(r"[^A-Za-z0-9._-]+", "-", label) + ".safetensors"

    def find(self, charge: Charge) -> Release | None:
        """The saved release that this very charge paid for, if there is one."""
        release = self.releases.get(charge.label)
        if release is None:
            path = self.folder / self.file_name(charge.label) if self.folder is not None else None
            if path is None or not path.exists():
                return None
            release = Release.load(path)
        if release.charge != charge:
            raise CorruptArtifact(
                f"Release {charge.label!r} was made under another plan; resume with the settings of the first run or use "
                "a new folder."
            )
        self.releases[release.label] = release
        return release

    def keep(self, release: Release) -> None:
        if self.folder is not None:
            release.save(self.folder / self.file_name(release.label))
        self.releases[release.label] = release

    def journal(self, charge: Charge) -> Journal | None:
        """The journal of a series of paid steps, where there is a folder to keep it in."""
        if self.folder is None:
            return None
        path = (self.folder / self.file_name(charge.label)).with_suffix(".journal")
        self._journals.append(Journal(path, charge))
        return self._journals[-1]

    def close(self) -> None:
        """Let go of the journals, so that another process, or this one again, may go on with the run."""
        while self._journals:
            self._journals.pop().close()
