"""Random Fourier features of the Gaussian kernel (Rahimi and Recht 2007), as DP-MERF uses them (thesis, app. B).

k(x, x') = exp(−‖x − x'‖² / 2s) is approximated by φ(x)·φ(x') with φ(x) = [cos(Wx), sin(Wx)] / √F for F frequencies W ~ N(0, I/s).
Everything here is public: frequencies come from a public seed, the squared length scale s is a constant of the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sfumato.data import Batch
from sfumato.errors import BadInput
from sfumato.privacy import FeatureMap

# Frequencies at a time: enough for a product at full speed, few enough to find the angles in the cache.
_BLOCK = 1000


class FourierFeatures(FeatureMap):
    """φ(x) = [cos(Wx), sin(Wx)] / √F, of `features` = 2F numbers.

    **Guarantee**: ‖φ(x)‖₂ = 1 for every finite x, since cos² + sin² = 1 for each of the F frequencies and the sum is
    divided by F. (Cosines with a random offset would have norm up to √2: DESIGN, trap 3.) Row-wise: row i is a
    function of record i alone.

    With several length scales s₁ … s_K the frequencies take them in turn: φ is then the concatenation, each part scaled by
    √(F_k / F), of the features of K Gaussian kernels, and the kernel their average. The norm is 1 by the same proof, so
    several scales are one release of one vector and cost what one scale costs.
    """

    bound = 1.0

    def __init__(
        self, input_dim: int, features: int, length_scale: float | Sequence[float], *, seed: int
    ) -> None:
        if features < 2 or features % 2:
            raise BadInput(
                f"features must be an even number of at least 2 (sines and cosines come in pairs), not {features}."
            )
        scales = (
            (float(length_scale),)
            if isinstance(length_scale, int | float)
            else tuple(float(s) for s in length_scale)
        )
        if not scales or not all(s > 0 and math.isfinite(s) for s in scales):
            raise BadInput(f"length_scale must be positive and finite, not {length_scale}.")
        self.dim = features
        self.length_scales = scales
        generator = torch.Generator().manual_seed(seed)
        # (F, input_dim): this layout, with records as columns of the product, is the fast one on CPUs.
        turn = torch.tensor(scales)[torch.arange(features // 2) % len(scales)]
        directions = torch.randn(features // 2, input_dim, generator=generator)
        self.frequencies = directions / turn.sqrt()[:, None]

    def public_parts(self) -> tuple[Tensor, ...]:
        return (self.frequencies,)

    def __call__(self, batch: Batch) -> Tensor:
        rows = torch.empty(len(batch), self.dim)
        for start, piece, scale in self.pieces(batch):
            torch.mul(piece.T, scale, out=rows[:, start : start + len(piece)])
        return rows

    def pieces(self, batch: Batch) -> Iterator[tuple[int, Tensor, float]]:
        flat = batch.pixels().flatten(1) if batch.values.ndim == 4 else batch.values
        half = self.dim // 2
        scale = 1 / math.sqrt(half)
        # The same two blocks of memory for all pieces: they stay in the cache.
        angles, sines = torch.empty(2, min(_BLOCK, half), len(flat))
        for start in range(0, half, _BLOCK):
            block = self.frequencies[start : start + _BLOCK]
            theta = torch.mm(block, flat.T, out=angles[: len(block)])  # (block, n)
            sine = torch.sin(theta, out=sines[: len(block)])
            yield start, theta.cos_(), scale
            yield half + start, sine, scale
