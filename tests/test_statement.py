"""Several records of one person, the sampler of every release, and statements of earlier versions."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom, norm

from plans import plan_of
from runs import charge, no_more_work_than
from sfumato.data import Schema
from sfumato.errors import BadInput, PlanMismatch
from sfumato.methods import get_method
from sfumato.privacy import (
    Budget,
    Charge,
    Ledger,
    Neighbours,
    PrivacyStatement,
    Step,
    calibrate,
    epsilon_of,
)
from sfumato.privacy.accounting import epsilon_of_gaussian, epsilon_of_k
from sfumato.privacy.statement import told_epsilon_k
from sfumato.testing.methods import small_images

BUDGET = Budget(epsilon=1.0, delta=1e-5)


def stated(plan: tuple[Charge, ...], budget: Budget = BUDGET) -> PrivacyStatement:
    epsilon = epsilon_of(plan, budget.delta, budget.neighbours)
    return PrivacyStatement(budget=budget, epsilon=epsilon, charges=plan)


# -- several records of one person ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "told"), [(1.0, {"2": 2.154, "5": 6.165, "10": 14.42}), (10.0, {"10": 284.5})]
)
def test_neighbours_that_differ_in_several_records_cost_more_than_k_times_epsilon(epsilon, told):
    budget = Budget(epsilon=epsilon, delta=1e-5)
    plan = (charge(calibrate(lambda m: (charge(m),), budget)),)
    found = stated(plan, budget).to_json()["epsilon_k"]
    assert list(found) == ["2", "5", "10"]
    for count, value in found.items():
        assert value > int(count) * epsilon
        assert value == pytest.approx(told.get(count, value), rel=1e-3)


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "records", "grid"),
    [(0.01, 1.2, 300, 2, 2e-3), (0.3, 2.0, 20, 5, 5e-3)],
)
def test_several_sampled_records_agree_with_dp_accountings_mixtures(
    rate, sigma, steps, records, grid
):
    counts = list(range(records + 1))
    mixture = pld.from_mixture_gaussian_mechanism(
        sigma, counts, binom.pmf(counts, records, rate), value_discretization_interval=grid
    )
    reference = mixture.self_compose(steps).get_epsilon_for_delta(1e-5)
    plan = (charge(sigma, rate=rate, steps=steps),)
    for neighbours in (Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT):
        found = epsilon_of_k(plan, 1e-5, neighbours, records)
        assert found == pytest.approx(reference, rel=5e-3)
        # Its grid is pessimistic, so ours may lie a little below.
        assert found >= reference * (1 - 2e-3)


def laws(rows: np.ndarray, rate: float, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The density on a plane of the noisy sum of `rows`, each in by its own coin."""
    found = np.zeros_like(x)
    for inside in itertools.product([0, 1], repeat=len(rows)):
        weight = rate ** sum(inside) * (1 - rate) ** (len(rows) - sum(inside))
        a, b = np.asarray(inside) @ rows
        found += weight * np.exp(-((x - a) ** 2 + (y - b) ** 2) / 2) / (2 * math.pi)
    return found


def hockey_stick(first: np.ndarray, second: np.ndarray, epsilon: float, area: float) -> float:
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum() * area)


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_neighbours_of_three_records_in_any_directions_are_no_worse_than_in_a_line(rate):
    # The worst pair of `privacy.losses` against rows built to beat it: in a line, crossed, opposed, at random.
    draw = np.random.default_rng(0)
    x, y = np.meshgrid(np.linspace(-10, 10, 251), np.linspace(-10, 10, 251))
    area, length = (20 / 250) ** 2, 0.9
    line = np.array([[length, 0.0]] * 3)
    crossed = length * np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    angles = draw.uniform(0, 2 * math.pi, (3, 3))
    tried = [line, -line, crossed, *(length * np.stack([np.cos(a), np.sin(a)], 1) for a in angles)]
    nothing = laws(np.zeros((0, 2)), rate, x, y)
    all_laws = [laws(rows, rate, x, y) for rows in tried]
    plan = (charge(1 / length, rate=rate),)
    for epsilon in (0.2, 1.0, 2.0):

        def apart(first: np.ndarray, second: np.ndarray, epsilon: float = epsilon) -> float:
            ways = ((first, second), (second, first))
            return max(hockey_stick(a, b, epsilon, area) for a, b in ways)

        worst = {
            Neighbours.ADD_REMOVE: apart(all_laws[0], nothing),
            Neighbours.REPLACE_ONE: apart(all_laws[0], all_laws[1]),
        }
        for first, second in itertools.combinations(all_laws, 2):
            assert apart(first, second) <= worst[Neighbours.REPLACE_ONE] * (1 + 1e-9) + 1e-15
        for first in all_laws:
            assert apart(first, nothing) <= worst[Neighbours.ADD_REMOVE] * (1 + 1e-9) + 1e-15
        for neighbours, delta in worst.items():
            # That worst pair is what is charged: tight, and not below.
            found = epsilon_of_k(plan, delta, neighbours, 3)
            assert epsilon * (1 - 1e-3) <= found <= epsilon * 1.01


@pytest.mark.parametrize("summands", ["groups", "shards"])
def test_neighbours_of_two_records_in_groups_or_shards_cost_no_more_than_charged(summands):
    # One step of an explicit mechanism on the line: a record turns what it is in from −C to +C, the worst it can do.
    rate, sigma = 0.4, 2.0
    x = np.linspace(-40, 40, 400_001)

    def law(values: list[float], chances: list[float]) -> np.ndarray:
        return np.sum(
            [p * norm.pdf(x, v, sigma) for p, v in zip(chances, values, strict=True)], axis=0
        )

    chances = [(1 - rate) ** 2, 2 * rate * (1 - rate), rate**2]
    if summands == "groups":  # two groups stand at −1; each record that is in turns its own
        first, second = law([-2.0, 0.0, 2.0], chances), law([-2.0], [1.0])
    else:  # two shards, drawn by coins; with the records they say +1, without −1
        first, second = law([0.0, 1.0, 2.0], chances), law([0.0, -1.0, -2.0], chances)
    for epsilon in (0.3, 1.0):
        delta = max(
            np.trapezoid(np.maximum(0, a - math.exp(epsilon) * b), x)
            for a, b in ((first, second), (second, first))
        )
        plan = (charge(sigma, rate=rate, summands=summands),)
        found = epsilon_of_k(plan, delta, Neighbours.ADD_REMOVE, 2)
        assert epsilon * (1 - 1e-6) <= found <= epsilon * 1.01


def test_plain_sums_of_several_records_are_the_closed_form_under_every_relation():
    plan = (charge(4.0, replace_ratio=math.sqrt(2)), charge(9.0, steps=3, summands="groups"))
    for neighbours, first in ((Neighbours.ZERO_OUT, 1.0), (Neighbours.REPLACE_ONE, math.sqrt(2))):
        mu = math.sqrt((first / 4) ** 2 + 3 * (2 / 9) ** 2)
        for records in (1, 2, 10):
            found = epsilon_of_k(plan, 1e-5, neighbours, records)
            assert found == pytest.approx(epsilon_of_gaussian(records * mu, 1e-5), rel=1e-9)


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_the_statement_tells_several_records_where_it_used_to_say_k_times(neighbours):
    budget = Budget(epsilon=1.0, delta=1e-5, neighbours=neighbours)
    plan = (charge(3.0, rate=0.02, steps=200), charge(12.0))
    with no_more_work_than(300):
        told = stated(plan, budget).to_json()
    values = [told["epsilon"], *told["epsilon_k"].values()]
    assert values == sorted(values)
    assert json.loads(json.dumps(told))["epsilon_k"] == told["epsilon_k"]
    text = told["paragraph"] + " ".join(told["not_covered"])
    assert "k times" not in text
    for word in ("for two", "for five", "for ten", "together"):
        assert word in told["paragraph"]
        assert word in told["not_covered"][-1]


def test_next_to_no_noise_has_an_epsilon_for_several_records_too():
    told = stated((charge(0.001, rate=0.1, steps=50), charge(3.0))).to_json()
    assert told["epsilon"] < told["epsilon_k"]["2"] < told["epsilon_k"]["10"] < math.inf


def test_a_statement_of_version_0_1_0_is_read_and_its_several_records_are_worked_out():
    plan = (charge(3.0, rate=0.02, steps=200), charge(12.0))
    told = stated(plan).to_json()
    old = {key: value for key, value in told.items() if key != "epsilon_k"}
    old["releases"] = [
        {key: value for key, value in r.items() if key != "sampler"} for r in told["releases"]
    ]
    assert told_epsilon_k(told) == told["epsilon_k"]
    assert told_epsilon_k(old) == pytest.approx(told["epsilon_k"])
    for broken in (
        {},
        {"epsilon_k": 3},
        old | {"releases": [{"label": "x"}]},
        old | {"epsilon": "1"},
    ):
        assert told_epsilon_k(broken) is None


# -- the sampler is part of the charge -----------------------------------------------------------------------------


def test_one_step_at_rate_one_is_not_called_exact_discrete_noise(tmp_path):
    data = small_images(40)
    method = get_method("gan")(steps=1, rate=1.0, critic_steps=1, batch=4)
    promised = method.promise(data.schema, BUDGET)
    method.fit(data, BUDGET)
    for statement in (promised, method.statement_):
        noise = {r["label"]: r["noise"] for r in statement.to_json()["releases"]}
        counts, steps = noise.values()
        assert "discrete" in counts
        assert "floating-point" in steps
    assert promised.charges == method.statement_.charges


@pytest.mark.parametrize("name", ["gan", "gan-mi", "dre", "llm", "dpaf", "sinkhorn", "gs-wgan"])
def test_every_series_of_steps_is_promised_as_floating_point_whatever_its_rate(name):
    schema = Schema(kind="images", shape=(1, 16, 16), classes=("a", "b"))
    known = {p.name for p in get_method(name).settings()}
    settings = {"rate": 1.0, "steps": 1, "epochs": 1, "first_steps": 1, "asymmetry": 1}
    method = get_method(name)(**{k: v for k, v in settings.items() if k in known})
    plan = plan_of(method, schema, 1.0)
    assert {c.sampler for c in plan if c.label != "class counts"} == {"floating"}


def test_the_wall_refuses_to_answer_a_discrete_charge_with_floating_point_noise():
    def answer(index, phi):
        raise AssertionError("a row was read")

    discrete = charge(1.0, dimension=4)
    assert discrete.sampler == "discrete"
    step = Step(0, discrete, answer)
    with pytest.raises(PlanMismatch, match="discrete noise"):
        step._answered(None, 1.0, "records")  # type: ignore[arg-type]


def test_charges_of_version_0_1_0_load_and_keep_their_meaning():
    old = {"label": "x", "bound": 1.0, "noise_multiplier": 2.0, "rate": 1.0, "steps": 1}
    old |= {"dimension": 3, "replace_ratio": 2.0, "summands": "records"}
    assert Charge(**old).sampler == "discrete"  # type: ignore[arg-type]
    for change in ({"rate": 0.5}, {"steps": 2}, {"summands": "groups"}):
        assert Charge(**(old | change)).sampler == "floating"  # type: ignore[arg-type]
    for sampler in ("discrete", "floating"):
        whole = Charge(**old, sampler=sampler)  # type: ignore[arg-type]
        assert Charge(**json.loads(json.dumps(whole.to_json()))) == whole
    ledger = Ledger(BUDGET)
    ledger.charge(charge(4.0, sampler="floating"))
    assert PrivacyStatement.of(ledger).to_json()["releases"][0]["sampler"] == "floating"


@pytest.mark.parametrize(
    "bad",
    [
        {"sampler": "none"},
        {"sampler": "discrete", "rate": 0.5},
        {"sampler": "discrete", "summands": "shards"},
    ],
)
def test_a_sampler_that_the_wall_does_not_have_is_refused(bad):
    with pytest.raises(BadInput):
        charge(1.0, **bad)
