"""PEARL: private embeddings and adversarial reconstruction learning (Liew, Takahashi and Ueno 2022).

    1.  t₁ … t_F ~ ω₀ = N(0, I/s)                    frequencies, by a public seed                                 (public)
    2.  φ̃(t) = 1/n (Σ exp(i t·x) ⊗ y + noise)        the characteristic function there, real and imaginary part    (the release)
    3.  max over ω, min over θ   Σ_j ω(t_j)/ω₀(t_j) |φ̃(t_j) − E exp(i t_j·G_θ(z, y)) ⊗ y|²                         (free)

The release is DP-MERF's: the real and imaginary parts of exp(i t·x) are its cosines and sines. What is new is step 3: the
frequencies are weighed anew, by a critic ω = N(0, diag(e^{2a})/s) that looks for those where the generator is worst. It is
trained on the release alone, so that it is free.

Private: the records, in step 2 only. Public: all that DP-MERF has, and `reach`.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from sfumato.generators.embedding import MeanEmbedding
from sfumato.methods.distances import FourierDistance
from sfumato.methods.merf import Merf
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.public.fourier import FourierFeatures
from sfumato.public.tabular import HeterogeneousFourier

_BATCH = {"images": 100, "table": 500}


class Pearl(Merf):
    """PEARL for images and tables, labelled or not, balanced or not.

    **Guarantee**: DP-MERF's: one release of Σ [φ(x), w] filed by class, whose bound `Merf` proves. The critic sees released
    numbers only, so re-weighing is post-processing.

    Differs from the paper: classes are filed apart in the release, with their counts, where the paper puts labels beside the
    records; the length scale is a public constant where the paper estimates one from private records with a part of the budget;
    weights are made to have mean 1, and none is more than `reach` times another: ratios of densities in hundreds of
    dimensions would leave a single frequency; the noise's own energy and the self-pairs of a batch are taken out of the
    objective, so that the critic does not chase noise; sampled pixels get a little grain.
    """

    info = MethodInfo(
        name="pearl",
        title="PEARL",
        paper="Liew et al. 2022, “PEARL: Data Synthesis via Private Embeddings and Adversarial Reconstruction Learning”",
        summary="One noisy characteristic function; a generator matches it while a critic weighs its frequencies anew.",
        kinds=("images", "table"),
    )
    PAIRS: ClassVar = {"images": False, "table": False}  # its critic would make the most of them
    TINY: ClassVar = {"features": 64, "steps": 12, "batch": 20, "hidden": 16, "block": 16}

    features: int | None = setting(
        "Numbers that are released: real and imaginary parts of the characteristic function at half as many frequencies; auto: "
        "10,000 for images, 2,000 for tables.",
        default=None,
    )
    reach: float = setting(
        "How many times a frequency may weigh what another does; 1 is DP-MERF.",
        default=10.0,
        low=1,
        high=1e6,
        free=True,
    )

    def distance(self, network: nn.Module) -> Reweighed:
        batch = self.batch or _BATCH[self.schema_.kind]
        return Reweighed(network, self._phi, self._embedding, batch, self.block, self.reach)


class Reweighed(FourierDistance, nn.Module):
    """Step 3's objective: its gradient with respect to the critic's scales is turned round, so that one optimiser serves both."""

    def __init__(
        self,
        network: nn.Module,
        phi: FourierFeatures | HeterogeneousFourier,
        embedding: MeanEmbedding,
        batch: int,
        block: int,
        reach: float,
    ) -> None:
        nn.Module.__init__(self)
        FourierDistance.__init__(self, network, phi, embedding, batch, block)
        self.limit = max(math.log(reach) / 2, 1e-6)
        numbers = self.fourier.frequencies.shape[1] if self.fourier else 0
        self.scales = nn.Parameter(torch.zeros(numbers))  # a

    def roots(self, start: int, stop: int) -> Tensor | None:
        """Of weights while it is trained; afterwards generators with other critics are compared alike."""
        return self.weights(start, stop).sqrt().repeat(2) if self.training else None

    def weights(self, start: int, stop: int) -> Tensor:
        """ω(t)/ω₀(t) of these frequencies, within reach of each other, of mean 1."""
        assert self.fourier is not None
        squares = self.fourier.frequencies[start:stop].square()
        squares = squares / squares.mean()  # t² s, about 1
        logits = -0.5 * squares @ torch.expm1(-2 * _turn_round(self.scales))
        logits = self.limit * torch.tanh((logits - logits.mean()) / self.limit)
        return torch.softmax(logits, dim=0) * len(logits)


def _turn_round(values: Tensor) -> Tensor:
    """The same, with the gradient turned round: who minimises the rest maximises these."""
    return 2 * values.detach() - values
