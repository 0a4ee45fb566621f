"""Entropic optimal transport between two weighted sets of points, and its gradient (Cuturi 2013; Feydy et al. 2019).

    OT(a, b) = min over plans π with margins a and b of  Σ π_ij c_ij + ε KL(π | a ⊗ b),    c_ij = ‖x_i − y_j‖²

Sinkhorn's iterations for the dual potentials f, g run on logarithms where ε is too small for floating point. At their fixed
point π_ij = a_i b_j exp((f_i + g_j − c_ij)/ε), and by the envelope theorem the gradient of OT with respect to x_i is
Σ_j π_ij 2 (x_i − y_j): the iterations themselves need no differentiating. Knows nothing of privacy.
"""

from __future__ import annotations

import torch
from torch import Tensor

# exp(±this) and products of a few such numbers are far inside double precision.
_RANGE = 250.0


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """(m, d), (n, d) → (m, n)"""
    squares = x.square().sum(dim=1)[:, None] + y.square().sum(dim=1)
    return torch.addmm(squares, x, y.T, alpha=-2).clamp_(min=0)


def transport_plan(cost: Tensor, a: Tensor, b: Tensor, entropy: float, iterations: int) -> Tensor:
    """The plan (m, n) with row sums a and column sums b; points of weight zero are left out.

    The last half-iteration is one over rows, so that row sums hold exactly and column sums to the accuracy of the iterations.
    """
    scaled = cost.to(torch.float64) / entropy
    a, b = a.to(torch.float64), b.to(torch.float64)
    plan = _by_logarithms if float(scaled.max()) > _RANGE else _by_factors
    return plan(scaled, a, b, iterations).to(cost.dtype)


def _by_factors(scaled: Tensor, a: Tensor, b: Tensor, iterations: int) -> Tensor:
    """The same iterations on exp(f/ε) and exp(g/ε): matrix products, several times as fast."""
    kernel = (-scaled).exp()
    v = b
    u = a / (kernel @ v)
    for _ in range(iterations):
        v = b / (u @ kernel)
        u = a / (kernel @ v)
    return u[:, None] * kernel * v


def _by_logarithms(scaled: Tensor, a: Tensor, b: Tensor, iterations: int) -> Tensor:
    log_a, log_b = a.log(), b.log()  # −∞ where a weight is zero
    g = torch.zeros_like(b)
    f = -torch.logsumexp(log_b + g - scaled, dim=1)
    for _ in range(iterations):
        g = -torch.logsumexp((log_a + f)[:, None] - scaled, dim=0)
        f = -torch.logsumexp(log_b + g - scaled, dim=1)
    return (log_a[:, None] + log_b + f[:, None] + g - scaled).exp()


def transport_gradient(x: Tensor, y: Tensor, plan: Tensor) -> Tensor:
    """∇ of Σ π_ij ‖x_i − y_j‖² with respect to x for a fixed plan, (m, d)."""
    return 2 * (plan.sum(dim=1, keepdim=True) * x - plan @ y)
