"""PEARL: DP-MERF's release, and weights of frequencies that a critic raises where the generator is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from sfumato import Budget, Merf, load
from sfumato.generators.embedding import MeanEmbedding
from sfumato.methods import Pearl
from sfumato.methods.distances import FourierDistance
from sfumato.methods.pearl import Reweighed
from sfumato.public.fourier import FourierFeatures

TINY = {"features": 64, "steps": 12, "batch": 20, "hidden": 16, "block": 16}
BUDGET = Budget(epsilon=1.0, delta=1e-5)


class Points(nn.Module):
    """A generator of two numbers: normal around a learnt place."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(2))

    def forward(self, labels: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        return 0.1 * torch.randn(len(labels), 2, generator=random) + self.place


def embedding(phi: FourierFeatures) -> MeanEmbedding:
    """Of records around (1, 0): the first coordinate is where `Points` is wrong."""
    rows = torch.randn(5_000, 2, generator=torch.Generator().manual_seed(3)) * 0.1
    rows = rows + torch.tensor([1.0, 0.0])
    angles = rows @ phi.frequencies.T
    mean = torch.cat([angles.cos(), angles.sin()], dim=1).mean(dim=0) / (phi.dim // 2) ** 0.5
    return MeanEmbedding(mean=mean[None], shares=torch.ones(1), noise_std=0.0)


def objective(reach: float = 10.0) -> Reweighed:
    phi = FourierFeatures(2, 400, 0.5, seed=0)
    return Reweighed(Points(), phi, embedding(phi), 200, 1_000, reach).train()


def test_the_release_is_dp_merfs() -> None:
    schema = load("digits:train").schema
    ours, theirs = Pearl(**TINY).promise(schema, BUDGET), Merf(**TINY).promise(schema, BUDGET)
    assert ours.charges == theirs.charges and ours.sound


def test_weights_have_mean_one_and_stay_within_reach() -> None:
    found = objective(reach=4.0)
    assert found.weights(0, 200).tolist() == pytest.approx([1.0] * 200)
    with torch.no_grad():
        found.scales += torch.tensor([3.0, -3.0])
    weights = found.weights(0, 200).detach()
    assert float(weights.mean()) == pytest.approx(1.0, rel=1e-5)
    assert 1.5 < float(weights.max() / weights.min()) <= 4.0 + 1e-4


def test_with_a_reach_of_one_it_is_dp_merf() -> None:
    found = objective(reach=1.0)
    plain = FourierDistance(found.network, found.fourier, found.embedding, 200, 1_000)
    with torch.no_grad():
        found.scales += 1.0
        ours = found.loss(0, torch.Generator().manual_seed(1))
        theirs = plain.loss(0, torch.Generator().manual_seed(1))
    assert float(ours) == pytest.approx(float(theirs), rel=1e-4)


def test_one_optimiser_moves_the_generator_down_and_the_critic_up() -> None:
    """The gradient with respect to a is that of minus the objective, by finite differences."""
    found = objective()
    found.loss(0, torch.Generator().manual_seed(1)).backward()
    assert found.scales.grad is not None
    for coordinate in range(2):
        values = []
        for shift in (0.01, -0.01):
            moved = objective()
            with torch.no_grad():
                moved.scales[coordinate] += shift
                values.append(float(moved.loss(0, torch.Generator().manual_seed(1))))
        slope = (values[0] - values[1]) / 0.02
        assert float(found.scales.grad[coordinate]) == pytest.approx(-slope, rel=0.02, abs=1e-4)


def test_the_critic_finds_where_the_generator_is_wrong() -> None:
    found = objective()
    optimiser = torch.optim.SGD([found.scales], lr=0.5)
    before = float(found.loss(0, torch.Generator().manual_seed(1)).detach())
    for step in range(30):
        optimiser.zero_grad()
        found.loss(0, torch.Generator().manual_seed(step)).backward()
        optimiser.step()
    after = float(found.loss(0, torch.Generator().manual_seed(1)).detach())
    assert after > 1.1 * before
    # Frequencies along the coordinate that is wrong tell more than those across.
    assert abs(float(found.scales[0].detach())) > abs(float(found.scales[1].detach()))


def test_noise_alone_gives_the_critic_nothing_to_find() -> None:
    found = objective()
    with torch.no_grad():
        found.network.place += torch.tensor([1.0, 0.0])
    noisy = found.embedding.mean + 0.05 * torch.randn(
        1, 400, generator=torch.Generator().manual_seed(5)
    )
    found.embedding = replace(found.embedding, mean=noisy, noise_std=0.05)
    assert abs(float(found.loss(0, torch.Generator().manual_seed(1)))) < 0.3  # 1.0 is its energy


def test_a_fit_trains_samples_and_is_taken_up_again(tmp_path) -> None:
    data = load("digits:train")
    model = Pearl(**TINY).fit(data, BUDGET, out=tmp_path / "run")
    assert len(model.sample(20)) == 20
    again = Pearl(**{**TINY, "reach": 2.0}).refit(tmp_path / "run")
    assert again.statement_ == model.statement_
