"""The cosine basis (DCT-II): what pixels, the `dct` codec and linear maps see of a picture when they see frequencies.

A formula; everything here is public.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cosines(side: int) -> Tensor:
    """(side, side) float64, orthonormal; row k holds k half-waves over `side` points."""
    k = torch.arange(side, dtype=torch.float64)
    waves = torch.cos(math.pi / side * (k[None, :] + 0.5) * k[:, None]) * math.sqrt(2 / side)
    waves[0] /= math.sqrt(2)
    return waves
