"""The critic of GS-WGAN: its closed-form gradient against automatic derivatives of the same loss."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.generators.gan import HeadedCritic
from sfumato.generators.wasserstein import WassersteinCritic


class Headed(HeadedCritic):
    def forward(self, vectors: torch.Tensor, one_hot: torch.Tensor) -> torch.Tensor:
        return super().forward(vectors, one_hot.argmax(dim=1))


def networks(classes: int, *, penalty: float = 10.0) -> tuple[HeadedCritic, WassersteinCritic]:
    torch.manual_seed(classes)
    network = Headed(5, classes, 7).to(torch.float64)
    for parameter in network.parameters():  # unlike a fresh network's, every number counts
        parameter.data = torch.randn_like(parameter)
    return network, WassersteinCritic(network, penalty=penalty, learning_rate=0.1)


def rows(classes: int, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(max(1, classes), (n,), generator=source)
    one_hot = torch.eye(max(1, classes), dtype=torch.float64)[labels]
    return torch.randn(n, 5, generator=source, dtype=torch.float64), one_hot


def by_autograd(network, penalty, real, made, between) -> torch.Tensor:
    mixed = (between * real[0] + (1 - between) * made[0]).requires_grad_()
    slope = torch.autograd.grad(network(mixed, real[1]).sum(), mixed, create_graph=True)[0]
    loss = network(*made) - network(*real) + penalty * (slope.norm(dim=1) - 1).square()
    parts = torch.autograd.grad(
        loss.mean(), list(network.parameters()), allow_unused=True, materialize_grads=True
    )
    return torch.cat([part.flatten() for part in parts])


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([0, 1, 2, 10]), st.integers(1, 9), st.floats(0.01, 100), st.integers(0, 999))
def test_the_gradient_is_that_of_automatic_derivatives(classes, n, penalty, seed):
    network, critic = networks(classes, penalty=penalty)
    real, made = rows(classes, n, seed), rows(classes, n, seed + 1000)
    between = torch.rand(n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    expected = by_autograd(network, penalty, real, made, between)
    found = critic.gradient(real, made, between)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-8 * float(expected.abs().max()))


@pytest.mark.parametrize("classes", [0, 3])
def test_score_and_slope_are_the_networks(classes):
    network, critic = networks(classes)
    vectors, one_hot = rows(classes, 6, 0)
    assert torch.allclose(critic(vectors, one_hot), network(vectors, one_hot))
    vectors.requires_grad_()
    expected = torch.autograd.grad(network(vectors, one_hot).sum(), vectors)[0]
    assert torch.allclose(critic.slope(vectors.detach(), one_hot), expected)


def test_a_step_is_adams_and_a_flat_critic_stays_finite():
    network, critic = networks(2)
    real, made = rows(2, 8, 0), rows(2, 8, 1)
    between = torch.full((8, 1), 0.5, dtype=torch.float64)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.1, betas=(0.5, 0.9))
    for _ in range(3):
        gradient = by_autograd(network, 10.0, real, made, between)
        sizes = [p.numel() for p in network.parameters()]
        for parameter, part in zip(network.parameters(), gradient.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)
        optimiser.step()
        critic.learn(real, made, between)
    trained = torch.nn.utils.parameters_to_vector(network.parameters())
    assert torch.allclose(critic.vector, trained, rtol=1e-6)
    critic.vector.zero_()
    assert bool(torch.isfinite(critic.gradient(real, made, between)).all())


def test_copies_learn_alone_and_alike():
    _, critic = networks(2)
    before = critic.vector.clone()
    between = torch.full((4, 1), 0.5, dtype=torch.float64)
    critic.learn(rows(2, 4, 2), rows(2, 4, 3), between)  # so that its optimiser has a past
    kept, twins = critic.vector.clone(), [copy.deepcopy(critic) for _ in range(2)]
    for twin in twins:
        twin.learn(rows(2, 4, 0), rows(2, 4, 1), between)
    assert torch.equal(critic.vector, kept)
    assert torch.equal(twins[0].vector, twins[1].vector)
    assert not torch.equal(kept, before)
    assert not torch.equal(twins[0].vector, kept)
    critic.learn(rows(2, 4, 0), rows(2, 4, 1), between)
    assert torch.equal(critic.vector, twins[0].vector)
