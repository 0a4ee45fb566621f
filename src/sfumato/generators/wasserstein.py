"""A small Wasserstein critic with a gradient penalty (Gulrajani et al. 2017) whose training step needs no automatic derivatives.

A dense network D with leaky rectifiers is linear around almost every point, so the gradient of its penalty, a derivative of a
derivative, is one more pass forwards. With m_l the rectifiers' slopes at the point, s its label's row of the last layer:

    slope of D at x̂:        v₃ = s·m₃,  v₂ = (v₃ W₃)·m₂,  v₁ = (v₂ W₂)·m₁,  g = v₁ W₁
    penalty λ(|g| − 1)²:    u = 2λ (|g| − 1) g / |g|;  t₁ = (W₁ u)·m₁,  t₂ = (W₂ t₁)·m₂,  t₃ = (W₃ t₂)·m₃
    its gradient:           ∂W_l = v_l ⊗ t_{l−1} with t₀ = u,  ∂s = t₃,  none for the offsets

which is the gradient of D itself, δ_l ⊗ a_{l−1}, with v for δ and t for the activations a: all rows take the same passes.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from sfumato.generators.gan import SLOPE, HeadedCritic

_BETAS = (0.5, 0.9)
_Rows = tuple[Tensor, Tensor]


class WassersteinCritic:
    """The weights of a `HeadedCritic` in one vector, their optimiser, and the step of WGAN-GP on them."""

    def __init__(self, network: HeadedCritic, *, penalty: float, learning_rate: float) -> None:
        layers = [layer for layer in network.layers if isinstance(layer, nn.Linear)]
        self._shapes = [tuple(p.shape) for layer in layers for p in (layer.weight, layer.bias)]
        self.penalty = penalty
        self.vector = nn.utils.parameters_to_vector(network.layers.parameters()).detach()
        self.optimiser = torch.optim.Adam([self.vector], lr=learning_rate, betas=_BETAS, fused=True)
        self._shared = False

    def __deepcopy__(self, memo: dict[int, object]) -> WassersteinCritic:
        """A copy shares weights and optimiser until it learns: most are asked for an opinion only."""
        twin = copy.copy(self)
        twin._shared = True
        return twin

    def __call__(self, vectors: Tensor, one_hot: Tensor) -> Tensor:
        """(n, dim), (n, classes; 1 without labels) → (n,)"""
        weights, offsets = self._layers(self.vector)
        activations, _ = _forwards(vectors, weights, offsets)
        return ((activations[-1] @ weights[-1].T + offsets[-1]) * one_hot).sum(dim=1)

    def slope(self, vectors: Tensor, one_hot: Tensor) -> Tensor:
        """The gradient of each vector's score with respect to the vector, (n, dim)."""
        weights, offsets = self._layers(self.vector)
        _, slopes = _forwards(vectors, weights, offsets)
        return _backwards(one_hot, weights, slopes)[0] @ weights[0]

    def learn(self, real: _Rows, made: _Rows, between: Tensor) -> None:
        """A step of Adam on the mean of D(made) − D(real) + λ(|∇D(x̂)| − 1)², x̂ between the two by `between`, label as real."""
        if self._shared:
            self.vector, self.optimiser = copy.deepcopy((self.vector, self.optimiser))
            self._shared = False
        self.vector.grad = self.gradient(real, made, between)
        self.optimiser.step()

    def gradient(self, real: _Rows, made: _Rows, between: Tensor) -> Tensor:
        """Of that mean, with respect to the vector of weights."""
        n = len(real[0])
        weights, offsets = self._layers(self.vector)
        mixed = torch.lerp(made[0], real[0], between)
        activations, slopes = _forwards(torch.cat([made[0], real[0], mixed]), weights, offsets)
        said = torch.cat([made[1] / n, real[1] / -n, real[1]])  # ∂ of the loss by each score
        deltas = [*_backwards(said, weights, slopes), said]
        slope = deltas[0][2 * n :] @ weights[0]
        # The root of zero has no derivative, and a critic may be flat to begin with.
        length = (slope.square().sum(dim=1, keepdim=True) + 1e-12).sqrt()
        signal = slope * ((length - 1) / length * (2 * self.penalty / n))
        found = torch.empty_like(self.vector)
        at_weights, at_offsets = self._layers(found)
        for layer, (delta, activation) in enumerate(zip(deltas, activations, strict=True)):
            activation[2 * n :] = signal
            torch.mm(delta.T, activation, out=at_weights[layer])
            torch.sum(delta[: 2 * n], dim=0, out=at_offsets[layer])
            if layer < len(slopes):
                signal = (signal @ weights[layer].T) * slopes[layer][2 * n :]
        return found

    def _layers(self, vector: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Weights and offsets of each layer, as views of the vector."""
        parts = vector.split([torch.Size(shape).numel() for shape in self._shapes])
        views = [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]
        return views[::2], views[1::2]


def _forwards(
    rows: Tensor, weights: list[Tensor], offsets: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """What goes into each layer, and the rectifiers' slopes after each but the last."""
    activations, slopes = [rows], []
    above, below = rows.new_tensor(1.0), rows.new_tensor(SLOPE)
    for weight, offset in zip(weights[:-1], offsets[:-1], strict=True):
        linear = torch.addmm(offset, activations[-1], weight.T)
        slopes.append(torch.where(linear > 0, above, below))
        activations.append(linear * slopes[-1])
    return activations, slopes


def _backwards(said: Tensor, weights: list[Tensor], slopes: list[Tensor]) -> list[Tensor]:
    """∂ by what comes out of each layer but the last, first layer first; `said` is ∂ by the last one's."""
    deltas = [said]
    for weight, slope in zip(reversed(weights[1:]), reversed(slopes), strict=True):
        deltas.insert(0, (deltas[0] @ weight) * slope)
    return deltas[:-1]
