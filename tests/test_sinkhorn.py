"""DP-Sinkhorn: transport by a second route, gradients by finite differences, groups that cannot spoil it, resumption."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from pictures import shaded
from plans import plan_of
from sfumato.data import Batch
from sfumato.methods import Sinkhorn, sinkhorn, taught
from sfumato.methods.sinkhorn import (
    Divergence,
    squared_distances,
    transport_gradient,
    transport_plan,
)
from sfumato.privacy import Budget


def points(m: int, d: int, seed: int) -> torch.Tensor:
    return torch.rand(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(m: int, seed: int) -> torch.Tensor:
    raw = points(1, m, seed)[0] + 0.2
    return raw / raw.sum()


def entropic_value(cost, plan, a, b, entropy) -> float:
    kl = (plan * (plan / (a[:, None] * b)).clamp(min=1e-300).log()).sum() - plan.sum() + 1
    return float((plan * cost).sum() + entropy * kl)


X, Y = points(6, 2, 0), points(5, 2, 1)
A, B = weights(6, 2), weights(5, 3)
COST = torch.cdist(X, Y).square()


# -- transport -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entropy", [1.0, 0.05, 0.003])
def test_a_plan_has_the_margins_it_was_asked_for(entropy):
    plan = transport_plan(squared_distances(X, Y), A, B, entropy, 3000)
    assert bool((plan >= 0).all())
    assert torch.allclose(plan.sum(dim=1), A, atol=1e-9)
    assert torch.allclose(plan.sum(dim=0), B, atol=1e-5)


def test_with_little_entropy_the_plan_is_the_solution_of_the_linear_program():
    rows = [np.kron(np.eye(6)[i], np.ones(5)) for i in range(6)]
    columns = [np.kron(np.ones(6), np.eye(5)[j]) for j in range(5)]
    solved = linprog(
        COST.flatten().numpy(), A_eq=np.array(rows + columns), b_eq=np.concatenate([A, B])
    )
    plan = transport_plan(squared_distances(X, Y), A, B, 1e-3, 20_000)
    assert float((plan * COST).sum()) == pytest.approx(solved.fun, rel=1e-3)
    assert np.allclose(plan.flatten().numpy(), solved.x, atol=5e-3)


def test_with_much_entropy_the_plan_is_independent():
    assert torch.allclose(transport_plan(COST, A, B, 1e4, 20), A[:, None] * B, atol=1e-5)


def test_logarithms_and_factors_are_the_same_iterations():
    first, second = (
        way(COST / 0.02, A, B, 7) for way in (sinkhorn._by_factors, sinkhorn._by_logarithms)
    )
    assert torch.allclose(first, second, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("entropy", [0.02, 1e-5])
def test_points_of_no_weight_are_left_out(entropy):
    a, b = A.clone(), B.clone()
    a[2], b[1] = 0.0, 0.0
    plan = transport_plan(COST, a / a.sum(), b / b.sum(), entropy, 50)
    assert bool(torch.isfinite(plan).all())
    assert float(plan[2].sum()) == float(plan[:, 1].sum()) == 0.0


def test_the_gradient_is_that_of_the_entropic_value_by_finite_differences():
    def value(x):
        cost = squared_distances(x, Y)
        return entropic_value(cost, transport_plan(cost, A, B, 0.1, 500), A, B, 0.1)

    found = transport_gradient(X, Y, transport_plan(COST, A, B, 0.1, 500))
    for i, j in ((0, 0), (3, 1), (5, 0)):
        moved = torch.zeros_like(X)
        moved[i, j] = 1e-5
        slope = (value(X + moved) - value(X - moved)) / 2e-5
        assert float(found[i, j]) == pytest.approx(slope, rel=1e-4, abs=1e-7)


# -- the divergence of a group -------------------------------------------------------------------------------------------


def made(n: int = 8, classes: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return points(n, 4, seed).float().view(n, 1, 2, 2), torch.arange(n) % classes


def divergence(images, labels, **more) -> Divergence:
    return Divergence(images.flatten(1), labels, Sinkhorn(entropy=0.02, iterations=300, **more))


@pytest.mark.parametrize("labelled", [True, False])
def test_the_divergence_is_stationary_where_both_sets_agree(labelled):
    images, labels = made(classes=2 if labelled else 1)
    told = labels if labelled else None
    gradient = divergence(images, labels).gradient(Batch(images, told))
    assert float(gradient.abs().max()) < 1e-5
    other = divergence(images, labels).gradient(Batch(images * 0.2, told))
    assert float(other.abs().max()) > 1e-2


def test_images_go_towards_records_of_their_own_class():
    images, labels = made()
    group = Batch(torch.stack([torch.full((1, 2, 2), float(c)) for c in (0, 1)]), torch.arange(2))
    gradient = divergence(images, labels, label_weight=1.0).gradient(group).view(8, -1)
    assert bool((gradient[labels == 0].sum(dim=1) > 0).all())  # down to black
    assert bool((gradient[labels == 1].sum(dim=1) < 0).all())  # up to white


def test_classes_weigh_what_the_generated_labels_say_however_many_records_there_are():
    images, labels = made()
    dark, light = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    few = Batch(torch.cat([dark, light]), torch.tensor([0, 1]))
    many = Batch(torch.cat([dark] + [light] * 5), torch.tensor([0] + [1] * 5))
    both = [divergence(images, labels, label_weight=1.0).gradient(g) for g in (few, many)]
    assert torch.allclose(*both, atol=1e-5)


def test_records_that_make_no_sense_are_left_out_and_a_missing_class_rests():
    images, labels = made()
    good = torch.rand(3, 1, 2, 2)
    bad = torch.full((3, 1, 2, 2), math.nan)
    alone = divergence(images, labels).gradient(Batch(good, torch.zeros(3, dtype=torch.int64)))
    mixed = Batch(torch.cat([good, bad, good]), torch.tensor([0, 0, 0, 0, 1, 1, -1, -1, 7]))
    assert torch.allclose(divergence(images, labels).gradient(mixed), alone, atol=1e-6)
    assert float(alone.view(8, -1)[labels == 1].abs().max()) == 0.0
    nothing = Batch(bad, torch.zeros(3, dtype=torch.int64))
    assert float(divergence(images, labels).gradient(nothing).abs().max()) == 0.0


# -- the method ----------------------------------------------------------------------------------------------------------


def test_one_record_is_charged_with_twice_the_clip_under_every_relation():
    _, steps = plan_of(Sinkhorn(**Sinkhorn.TINY, clip=0.7), shaded(9).schema, 3.0)
    assert steps.summands == "groups"
    assert steps.bound == pytest.approx(0.7, rel=1e-5)
    assert steps.dimension == 12 * 64


@pytest.mark.parametrize("labelled", [True, False])
def test_with_a_generous_budget_samples_become_as_bright_as_the_records(labelled, monkeypatch):
    monkeypatch.setattr(taught, "DECAY", 0.5)
    settings = {**Sinkhorn.TINY, "rate": 1.0, "steps": 60, "batch": 24}
    method = Sinkhorn(**settings, learning_rate=0.02)
    fitted = method.fit(shaded(220, labelled=labelled), Budget(epsilon=2e4, delta=1e-4))
    assert (
        fitted.sample(60, seed=0).images.mean() > 160
    )  # 127 to begin with; 228 to 251 in six fits
