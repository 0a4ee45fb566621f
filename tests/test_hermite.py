"""Hermite features against Mehler's formula, their bound against a dense grid, and the quick route against the plain one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import eval_hermite

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.privacy import OuterSum, enforced_bound
from sfumato.public.hermite import Hermite, OnGrid, ProductKernel, SumKernel, hermite, rho_of
from sfumato.public.tabular import Block, plain_codec

CASES = [(100, 0.005, None), (20, 0.005, None), (20, 0.15, None), (5, 0.3, 4.0), (30, 0.004, 6.0)]


def test_rho_is_the_papers_for_its_two_length_scales():
    assert rho_of(0.005) == pytest.approx(0.99501, abs=5e-6)
    assert rho_of(0.15) == pytest.approx(0.86119, abs=5e-6)
    for s in (1e-6, 0.2, 3.0, 1e6):
        rho = rho_of(s)
        assert 0 < rho < 1
        assert rho / (1 - rho**2) == pytest.approx(1 / (2 * s), rel=1e-6)


def test_the_recursion_gives_the_terms_by_their_definition():
    rho, x = rho_of(0.15), np.linspace(-1.5, 2, 9)
    found = Hermite(30, 0.15)(torch.from_numpy(x)).numpy()
    for k in range(31):
        root = math.sqrt(rho**k / (2.0**k * math.factorial(k)))
        direct = (1 - rho**2) ** 0.25 * root * eval_hermite(k, x) * np.exp(-rho / (1 + rho) * x**2)
        assert np.allclose(found[:, k], direct, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("scale", "stretch"), [(0.15, None), (0.02, 5.0), (0.05, 3.0)])
def test_inner_products_converge_to_the_gaussian_kernel_as_the_order_grows(scale, stretch):
    x = torch.linspace(0, 1, 40, dtype=torch.float64)
    exact = torch.exp(-(x[:, None] - x).square() / (2 * scale))
    errors = []
    for order in (4, 12, 60):
        phi = Hermite(order, scale, stretch)(x)
        errors.append(float((phi @ phi.T - exact).abs().max()))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 2e-4
    # Another kernel: the check can fail.
    assert float((phi @ phi.T - exact.square()).abs().max()) > 0.1


@pytest.mark.parametrize(("order", "scale", "stretch"), CASES)
def test_the_bound_holds_on_a_grid_that_is_not_its_own_and_is_nearly_reached(order, scale, stretch):
    features = Hermite(order, scale, stretch)
    x = torch.cat([torch.linspace(0, 1, 33_331), torch.rand(5000)]).to(torch.float64)
    longest = float(features(x).norm(dim=1).max())
    assert longest <= features.bound <= 1.0
    assert features.bound <= longest * 1.002


def test_the_papers_bound_of_one_is_improved_on_where_the_order_is_low():
    assert Hermite(100, 0.005).bound ** 2 == pytest.approx(0.686, abs=2e-3)
    assert Hermite(20, 0.005).bound ** 2 == pytest.approx(0.357, abs=2e-3)


@given(st.integers(1, 40), st.floats(1e-3, 2.0), st.sampled_from([None, 2.0, 8.0]), st.floats(0, 1))
def test_the_derivative_obeys_the_inequality_that_the_proof_rests_on(order, scale, stretch, x):
    features = Hermite(order, scale, stretch)
    t = features.place(torch.tensor(x, dtype=torch.float64)).requires_grad_()
    squares = sum(term.square() for term in hermite(t, order, features.rho))
    (slope,) = torch.autograd.grad(squares, t)
    rate = 2 * (math.sqrt(2 * features.rho * order) + abs(float(t.detach())))
    assert abs(float(slope)) <= rate * float(squares) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("order", "scale", "stretch"),
    [(-1, 1.0, None), (3, 0.0, None), (3, math.nan, None), (3, 1, -2.0)],
)
def test_senseless_features_are_refused(order, scale, stretch):
    with pytest.raises(BadInput):
        Hermite(order, scale, stretch)


def images(n: int = 6) -> tuple[Schema, Batch]:
    schema = Schema(kind="images", shape=(1, 3, 4), classes=("a", "b"))
    return schema, Batch(torch.rand(n, 1, 3, 4), torch.arange(n) % 2)


def test_the_sum_kernel_is_the_average_of_the_coordinates_kernels():
    schema, batch = images()
    features = Hermite(40, 0.3)
    phi = SumKernel(plain_codec(schema), features)(batch).double()
    x = batch.values.flatten(1).double()
    exact = torch.exp(-(x[:, None] - x).square() / 0.6).mean(dim=2)
    assert torch.allclose(phi @ phi.T, exact, atol=1e-4)
    assert (phi.norm(dim=1) <= SumKernel(plain_codec(schema), features).bound + 1e-6).all()


@pytest.mark.parametrize("parts", [[3, 7], [0, 5, 11], [2, 4, 6, 8]])
def test_the_product_kernel_is_the_product_of_the_coordinates_kernels(parts):
    schema, batch = images()
    kernel = ProductKernel(plain_codec(schema), Hermite(16, 0.5), parts)
    left, right = (side.double() for side in kernel.factors(batch))
    found = (left @ left.T) * (right @ right.T)
    x = batch.values.flatten(1)[:, parts].double()
    exact = torch.exp(-(x[:, None] - x).square().sum(dim=2) / 1.0)
    assert torch.allclose(found, exact, atol=2e-3)
    assert (left.norm(dim=1) <= kernel.left_bound + 1e-6).all()
    assert (right.norm(dim=1) <= kernel.right_bound + 1e-6).all()
    assert kernel.dim == 17 ** len(parts)


def test_products_are_filed_by_class_and_bounded_as_charged():
    schema, batch = images()
    kernel = ProductKernel(plain_codec(schema), Hermite(4, 0.5), [0, 1], 2)
    summand = OuterSum(kernel)
    whole = summand(batch)
    assert whole.shape == (2, 25)
    for code in range(2):
        chosen = Batch(batch.values[code::2], batch.labels[code::2])
        assert torch.equal(summand(chosen)[code], whole[code])
    one = summand(Batch(batch.values[:1], batch.labels[:1])).double() * summand.grid
    assert float(one.norm()) <= enforced_bound(kernel)
    unknown = summand(Batch(batch.values, torch.full((6,), -1)))
    assert not unknown.any()


def test_blocks_of_categories_enter_a_product_as_they_are():
    schema, _ = images()
    kernel = ProductKernel(plain_codec(schema), Hermite(3, 0.5), [Block(0, 2), 1])
    numbers, hot = torch.rand(5, 12), torch.eye(2)[[0, 1, 1, 0, 1]]
    left, right = kernel.of(numbers, hot)
    assert torch.equal(left, hot)
    assert torch.allclose(right, Hermite(3, 0.5)(numbers[:, 1]))
    assert kernel.left_bound == 1.0


@pytest.mark.parametrize(("order", "scale", "stretch"), CASES)
def test_sums_on_the_grid_are_the_sums_of_features(order, scale, stretch):
    features = Hermite(order, scale, stretch)
    grid = OnGrid(features)
    x = torch.rand(2, 7, 3)
    sums, squares = grid.sums(x)
    direct = features(x.double()).sum(dim=1)  # (classes, numbers, order + 1)
    assert torch.allclose(sums.double(), direct @ grid.rotation, atol=4e-3)
    lengths = features(x.double()).square().sum(dim=(1, 2, 3))
    assert torch.allclose(squares.double(), lengths, rtol=2e-3)
    # What the rotation leaves out has no length for any number in [0, 1].
    lost = direct - direct @ grid.rotation @ grid.rotation.T
    assert float(lost.norm()) < 1e-3 * float(direct.norm())


def test_gradients_through_the_grid_are_those_of_the_features():
    features = Hermite(20, 0.15)
    grid = OnGrid(features)
    random = torch.Generator().manual_seed(1)
    x = torch.rand(1, 4, 2, generator=random).requires_grad_()
    weights = torch.randn(2, grid.axes, generator=random)
    (found,) = torch.autograd.grad((grid.sums(x)[0] * weights).sum(), x)
    exact = features(x.double()).sum(dim=1) @ grid.rotation
    (expected,) = torch.autograd.grad((exact * weights).sum(), x)
    # a chord's slope for a tangent's: half a step of a twentieth of the length away
    assert torch.allclose(found, expected, atol=0.05 * float(expected.abs().max()))
