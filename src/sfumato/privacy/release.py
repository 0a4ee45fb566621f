"""A release: numbers that have left the wall, with the charge that paid for them. Saved first, reusable for ever.

What it holds is public by the guarantee: the noisy sum in whole grid units and its description.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sfumato.errors import BadInput, CorruptArtifact
from sfumato.files import check_file
from sfumato.privacy.accounting import Charge


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

    @classmethod
    def of_version_1(cls, path: Path) -> Release:
        """A release as version 0.1.0 saved it: one safetensors file each."""
        check_file(path)
        try:
            with safe_open(path, framework="pt") as stored:
                description: dict[str, Any] = json.loads((stored.metadata() or {})["release"])
                units = stored.get_tensor("units")
            charge = Charge(**description["charge"])
            grid = float(description["grid"])
        except (SafetensorError, KeyError, TypeError, ValueError, OSError, BadInput) as error:
            raise CorruptArtifact(
                f"{path} is not a whole release ({type(error).__name__}); restore the file, since making it again "
                "spends the budget again."
            ) from error
        if units.dtype != torch.int64 or units.ndim != 2 or units.numel() != charge.dimension:
            raise CorruptArtifact(
                f"{path} holds other numbers than its description says; restore the file."
            )
        return cls(units=units, grid=grid, charge=charge)
