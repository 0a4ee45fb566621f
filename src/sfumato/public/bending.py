"""Pictures moved, turned and bent at random: variations of public pictures, and poses for samples. Public randomness alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_PLACES = 4  # a side, between which a picture is bent


@dataclass(frozen=True)
class Bends:
    """How far pictures are bent at degree 1: deviations of the entries of an affine map, of a shift, and of the shifts of 4 × 4
    places besides. A picture reaches from −1 to 1."""

    turn: float
    shift: float
    bend: float


VARIED = Bends(turn=0.15, shift=0.15, bend=0.12)


def bent(pictures: Tensor, degree: float, random: torch.Generator, bends: Bends = VARIED) -> Tensor:
    """Each picture under a random smooth map of its own; beyond its edge it goes on as at the edge."""
    n, size = len(pictures), list(pictures.shape[2:])
    entries = torch.randn(n, 2, 3, generator=random)
    apart = torch.randn(n, 2, _PLACES, _PLACES, generator=random)
    spread = torch.tensor([degree * bends.turn, degree * bends.turn, degree * bends.shift])
    maps = torch.eye(2, 3) + spread * entries
    places = functional.affine_grid(maps, [n, 1, *size], align_corners=False)  # (n, H, W, 2)
    moved = functional.interpolate(apart, size=size, mode="bicubic", align_corners=True)
    places = places + degree * bends.bend * moved.permute(0, 2, 3, 1)
    # Bicubic: a picture is bent once a round, and what is bilinear blurs it every time.
    found = functional.grid_sample(
        pictures, places, mode="bicubic", padding_mode="border", align_corners=False
    )
    return found.clamp(0, 1)
