"""The second route to ε: right by itself, and never above what is stated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from runs import charge, no_more_work_than
from sfumato.privacy import Budget, Neighbours, calibrate, epsilon_of
from sfumato.privacy.accounting import delta_of_gaussian, epsilon_of_gaussian
from sfumato.privacy.losses import Sampled, epsilon_bounds, gaussian_epsilon
from sfumato.privacy.verification import agrees, second_epsilon


def test_the_published_gaussian_is_found_again():
    low, high = second_epsilon([charge(3.730632)], 1e-5, Neighbours.ZERO_OUT)
    assert low == pytest.approx(1.0, rel=1e-6)
    assert low < high < low + 1e-6
    low, high = second_epsilon([charge(3.730632)], 1e-5, Neighbours.REPLACE_ONE)
    assert 2.15 < low < high < 2.16
    assert second_epsilon([], 1e-5, Neighbours.ZERO_OUT) == (0.0, 0.0)


@given(mu=st.floats(1e-6, 1e4), exponent=st.floats(-290, -0.1))
@settings(max_examples=150)
def test_two_formulas_for_a_gaussian_agree(mu, exponent):
    delta = 10**exponent
    first, second = epsilon_of_gaussian(mu, delta), gaussian_epsilon(mu, delta)
    assert first == pytest.approx(second, rel=1e-6, abs=1e-6 * mu)


@pytest.mark.parametrize(
    ("rate", "sigma", "epsilon"), [(0.1, 1.0, 0.8), (0.02, 0.7, 0.5), (0.4, 3.0, 0.2)]
)
@pytest.mark.parametrize("replaced", [False, True])
def test_one_sampled_step_is_the_integral_of_its_two_laws(rate, sigma, epsilon, replaced):
    x = np.linspace(-25 * sigma, 25 * sigma, 2_000_001)
    with_it = (1 - rate) * norm.pdf(x, 0, sigma) + rate * norm.pdf(x, 1, sigma)
    without = with_it[::-1] if replaced else norm.pdf(x, 0, sigma)
    delta = max(
        np.trapezoid(np.maximum(0, a - math.exp(epsilon) * b), x)
        for a, b in ((with_it, without), (without, with_it))
    )
    relation = Neighbours.REPLACE_ONE if replaced else Neighbours.ADD_REMOVE
    found = epsilon_of((charge(sigma, rate=rate),), delta, relation)
    assert epsilon * (1 - 1e-6) <= found <= epsilon * 1.003  # pessimistic, never optimistic
    low, high = second_epsilon([charge(sigma, rate=rate)], delta, relation)
    assert low <= epsilon * (1 + 1e-6)
    assert epsilon * (1 - 1e-6) <= high <= epsilon * 1.003


@pytest.mark.parametrize("steps", [1, 1_000, 100_000])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
def test_convolution_contains_the_closed_form(steps, delta):
    # Drawn all but always, n steps are one Gaussian: what transforms round away would show here.
    nearly_all = Sampled(rate=1 - 1e-12, shift=1 / math.sqrt(steps), steps=steps)
    low, high = epsilon_bounds(0.0, (nearly_all,), delta)
    truth = gaussian_epsilon(1.0, delta)
    assert low <= truth <= high
    assert high - low < 0.01 * truth


@pytest.mark.parametrize("neighbours", list(Neighbours))
@pytest.mark.parametrize(
    "plan",
    [
        (charge(1.2, rate=0.01, steps=1500), charge(8.0)),
        (charge(2.0, rate=0.3, steps=20, summands="groups"),),
        (charge(1.0, rate=0.02, steps=400, summands="shards"), charge(5.0)),
        (charge(0.7, rate=0.002, steps=5_000), charge(0.05)),
    ],
)
def test_what_is_stated_lies_in_a_narrow_interval(plan, neighbours):
    low, high = second_epsilon(plan, 1e-5, neighbours)
    assert low <= epsilon_of(plan, 1e-5, neighbours) <= high * 1.002
    assert high < low * 1.01


def test_both_ends_hold_against_dp_accounting_on_a_fine_grid():
    one = pld.from_gaussian_mechanism(1.0, sampling_prob=0.05, value_discretization_interval=5e-4)
    epsilon = one.self_compose(100).get_epsilon_for_delta(1e-6)
    low, high = second_epsilon([charge(1.0, rate=0.05, steps=100)], 1e-6, Neighbours.ADD_REMOVE)
    assert low <= epsilon
    assert high >= epsilon * (1 - 2e-3)
    assert high < low * 1.01


def test_a_changed_epsilon_is_found_out():
    budget = Budget(epsilon=1.0, delta=1e-5)

    def plan(m):
        return (charge(m, rate=0.02, steps=300), charge(4 * m))

    charges = plan(calibrate(plan, budget))
    interval = second_epsilon(charges, budget.delta, budget.neighbours)
    assert agrees(epsilon_of(charges, 1e-5, budget.neighbours), interval)
    for wrong in (0.001, 0.98, 1.5, 100.0):
        assert not agrees(wrong, interval)
    # And so is less noise than was stated for.
    less = tuple(charge(c.noise_multiplier * 0.98, rate=c.rate, steps=c.steps) for c in charges)
    assert not agrees(1.0, second_epsilon(less, budget.delta, budget.neighbours))


def test_next_to_no_noise_stated_as_unsampled_is_no_false_statement():
    plan = (charge(0.001, rate=0.05, steps=40), charge(1.0))
    for neighbours in Neighbours:
        stated = epsilon_of(plan, 1e-5, neighbours)
        assert agrees(stated, second_epsilon(plan, 1e-5, neighbours))


@given(
    plan=st.lists(
        st.builds(
            charge,
            st.floats(-4, 5).map(lambda e: 10.0**e),
            rate=st.one_of(
                st.just(1.0), st.floats(-12, 0).map(lambda e: 10.0**e), st.floats(0.5, 1)
            ),
            steps=st.floats(0, 7).map(lambda e: int(10**e)),
            summands=st.sampled_from(["records", "groups", "shards"]),
        ),
        min_size=1,
        max_size=4,
    ),
    exponent=st.floats(-14, -0.1),
    neighbours=st.sampled_from(Neighbours),
)
# Losses of 1e-14, of which double precision knows two digits: their law once had chances below nothing, to the power of 10,000.
@example(
    plan=[charge(1e4, rate=1e-8), charge(1e4, rate=1e-10, steps=10_000)],
    exponent=-1.0,
    neighbours=Neighbours.ADD_REMOVE,
)
@settings(max_examples=25, phases=[phase for phase in Phase if phase is not Phase.explain])
def test_any_charges_are_verified_with_bounded_work(plan, exponent, neighbours):
    with no_more_work_than(400):
        low, high = second_epsilon(plan, 10**exponent, neighbours)
    assert 0 <= low <= high
    alone = math.hypot(
        *(
            math.sqrt(c.steps) * c.sensitivity_ratio(neighbours) / c.noise_multiplier
            for c in plan
            if c.rate == 1
        )
    )
    if 1e-3 < alone < 1e3:  # what is released besides can only add
        assert delta_of_gaussian(alone, high * (1 + 1e-6) + 1e-9) <= 10**exponent
