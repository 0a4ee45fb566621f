"""The audit of whole methods: the theorems hold where they are tight, honest methods pass, broken ones are caught."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import linprog

import sfumato
from runs import refused, run, succeed
from sfumato.data import Batch
from sfumato.errors import BadInput
from sfumato.methods import Gan, Merf, Mixture, get_method
from sfumato.privacy import Budget, Charge, Neighbours, OuterSum, PrivateData, bounding, noise
from sfumato.privacy.accounting import calibrate, epsilon_of
from sfumato.privacy.gate import _map_of
from sfumato.privacy.one_run import (
    SHARES,
    Curve,
    Guesses,
    claim_lower,
    epsilon_lower,
    guess,
    p_value,
    refuted,
)
from sfumato.testing import canaries
from sfumato.testing.canaries import audit_method, made_up
from sfumato.testing.methods import OF_MANY, small_images, small_table

FOUR = Budget(epsilon=4.0, delta=1e-5)
TINY = {**Merf.TINY, "features": 1_000}


def gaussian(multiplier: float) -> tuple[Charge, ...]:
    return (Charge(label="x", bound=1.0, noise_multiplier=multiplier),)


# -- theorems ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("given_away", [0.0, 1e-3, 0.02])
def test_randomised_response_is_refuted_as_seldom_as_is_said_and_half_its_epsilon_is(
    epsilon, given_away
):
    """Coins by randomised response, and all of them in the open with probability δ: private at (ε, δ), and no more."""
    m = r = 200
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    right = np.arange(r + 1)
    law = (1 - given_away) * stats.binom.pmf(right, r, q)
    law[r] += given_away
    values = np.array([p_value(Guesses(m, r, int(v)), epsilon, given_away) for v in right])
    assert (np.diff(values) <= 1e-12).all()
    for failure in (1e-4, 0.01, 0.05, 0.3):
        assert law[values < failure].sum() <= failure
    half = [epsilon_lower(Guesses(m, r, int(v)), 0.0, 0.05) for v in (r * q, r)]
    assert 0.3 * epsilon < half[0] < epsilon < half[1] or epsilon < 1


def test_without_delta_the_p_value_is_the_binomial_tail_and_delta_can_only_raise_it():
    seen = Guesses(1_000, 100, 80)
    q = 1 / (1 + math.exp(-1.0))
    assert p_value(seen, 1.0, 0.0) == pytest.approx(stats.binom.sf(79, 100, q))
    # By hand: the steepest way from 80 down, over all numbers of coins that may be given away.
    tail = [stats.binom.sf(v - 1, 100, q) for v in range(81)]
    gain = max((tail[80 - i] - tail[80]) / i for i in range(1, 81))
    assert p_value(seen, 1.0, 1e-5) == pytest.approx(tail[80] + 2 * 1_000 * 1e-5 * gain)
    assert p_value(seen, 1.0, 1.0) == 1.0
    low = epsilon_lower(seen, 1e-5, 0.05)
    assert p_value(seen, low - 1e-3, 1e-5) < 0.05 <= p_value(seen, low + 1e-3, 1e-5)
    assert epsilon_lower(Guesses(100, 50, 25), 1e-5, 0.05) == 0.0


def most_probable(seen: Guesses, curve: Curve) -> float:
    """P[V ≥ c] at most, over all laws of V that the inequalities of the proof allow: a linear programme."""
    m, r, c = seen.canaries, seen.guessed, seen.right
    right = np.arange(r + 1)
    rows, limits = [], []
    for v in range(1, r + 1):
        present = np.where(right >= v, right / m, 0.0)
        without = np.where(right >= v - 1, (r - right) / m, 0.0)
        for slope, offset in zip(curve.slopes, curve.offsets, strict=True):
            rows.append(present - slope * without)
            limits.append(offset)
    found = linprog(
        -(right >= c).astype(float), rows, limits, [np.ones(r + 1)], [1.0], bounds=(0, 1)
    )
    assert found.success
    return -found.fun


@pytest.mark.parametrize(
    ("canaries_", "guessed", "right"), [(12, 12, 10), (40, 10, 9), (20, 20, 14)]
)
def test_the_curve_refutes_what_no_law_of_right_guesses_allows_and_nothing_else(
    canaries_, guessed, right
):
    seen = Guesses(canaries_, guessed, right)
    plan = gaussian(1.5)
    points = [(epsilon_of(plan, d, Neighbours.ZERO_OUT), d) for d in (1e-4, 0.01, 0.1, 0.2, 0.3)]
    curve = Curve.through(points)
    most = most_probable(seen, curve)
    assert 0.01 < most < 1
    assert refuted(seen, curve, most * 1.001)
    assert not refuted(seen, curve, most * 0.999)


def test_the_curve_through_points_is_on_the_safe_side_of_the_gaussian_and_near_it():
    plan = gaussian(1.0)
    exact = Curve.of(plan, Neighbours.ZERO_OUT)
    rough = Curve.through([(epsilon_of(plan, d, Neighbours.ZERO_OUT), d) for d in (1e-3, 0.1, 0.3)])
    for present in np.linspace(0.001, 0.999, 50):
        assert rough.without(present) <= exact.without(present) + 1e-9
        assert rough.without(present) >= 0.5 * exact.without(present) - 0.01
    assert exact.without(0.5) == pytest.approx(stats.norm.cdf(-1.0))


def test_a_gaussian_is_not_refuted_and_a_quarter_of_its_noise_is():
    multiplier = calibrate(gaussian, FOUR)
    plan, random = gaussian(multiplier), np.random.default_rng(0)
    lower, broken = [], []
    for _ in range(20):
        coins = random.random(1_000) < 0.5
        draws = random.standard_normal(1_000)
        for part, kept in ((1, lower), (4, broken)):
            seen = guess(coins + draws * multiplier / part, coins)
            kept.append(claim_lower(seen, plan, 1e-5, FOUR.neighbours, 0.05 / len(SHARES)))
    assert max(lower) < 4 < min(broken)
    assert float(np.mean(lower)) > 1.0


def test_sampled_steps_have_a_curve_too():
    plan = (Charge(label="x", bound=1.0, noise_multiplier=1.0, rate=0.3, steps=5),)
    seen = [Guesses(400, 100, 93)]
    lower = claim_lower(seen, plan, 1e-5, Neighbours.ZERO_OUT, 0.05)
    assert lower > epsilon_lower(seen[0], 1e-5, 0.05) > 1.0
    assert claim_lower([Guesses(400, 100, 50)], plan, 1e-5, Neighbours.ZERO_OUT, 0.05) == 0.0


def test_guesses_are_as_many_whatever_the_coins_are():
    scores = np.arange(100.0)
    coins = scores >= 50
    assert [(g.guessed, g.right) for g in guess(scores, coins)] == [(50, 50), (24, 24), (12, 12)]
    assert [(g.guessed, g.right) for g in guess(scores, ~coins)] == [(50, 0), (24, 0), (12, 0)]


# -- honest methods ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", list(Neighbours))
def test_an_honest_method_passes_and_its_releases_tell_of_the_canaries(relation):
    budget = Budget(epsilon=8.0, delta=1e-5, neighbours=relation)
    data = small_images()
    found = audit_method(Merf(**TINY), data, budget, canaries=300, samples=200)
    assert found.passed, found.sentences()
    assert 0.3 < found.white_box.lower < 8
    assert found.samples_lower is not None and found.samples_lower < 2
    (one,) = found.answers
    # Black and white noise is at the bound; two of it are not opposite.
    assert one.moved == pytest.approx(one.charge.sensitivity(relation), rel=0.5)
    assert one.off == 0 and 0.9 < one.noise < 1.1


def test_products_filed_rows_and_sampled_steps_are_watched_too():
    # As if of many records, or the mixture asks for sums of vectors alone.
    mixed = audit_method(Mixture(**Mixture.TINY), small_images(), OF_MANY, canaries=48, samples=100)
    assert mixed.passed, mixed.sentences()
    assert len(mixed.answers) > 5 and all(a.scored and a.off == 0 for a in mixed.answers)
    taught = audit_method(Gan(**Gan.TINY), small_images(), FOUR, canaries=48, samples=100)
    assert taught.passed, taught.sentences()
    gradients = taught.answers[1]
    assert gradients.scored and gradients.numbers == 6 * gradients.charge.dimension


def test_a_plan_that_follows_the_number_of_records_is_told_the_walls_number():
    """Half of the canaries are away, and under zero-out nobody may see it: neither the promise nor what is asked."""
    budget, data = Budget(epsilon=8.0, delta=1e-5), small_images()
    plans = [Mixture().promise(data.schema, budget, size=n).charges for n in (120, 180)]
    assert len(plans[0]) < len(plans[1])
    found = audit_method(Mixture(), data, budget, canaries=120, samples=100)
    assert found.passed, found.sentences()
    assert [a.charge.label for a in found.answers] == [c.label for c in plans[1]]


def test_own_gradients_are_those_that_the_wall_adds():
    """The parts that scores are made of are, together, the wall's own sum."""
    from sfumato.privacy import GradientSum

    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3), torch.nn.Tanh())

    def loss(network, x, labels):
        return (network(x) * torch.arange(3.0)).sum(1) + labels

    phi = GradientSum(network, loss, bound=0.5)
    records = made_up(small_images().schema, 20)
    each = canaries.gradients_of(phi, records)
    assert each.norm(dim=1) == pytest.approx(torch.full((20,), 0.5), abs=1e-4)
    assert each.sum(0).double() == pytest.approx(phi(records), abs=1e-3)


def test_what_a_record_adds_to_products_side_by_side_is_what_the_wall_adds():
    cls, schema = get_method("llm"), small_images().schema
    how = cls(**cls.TINY, basis="random", per_map=True)
    (query,) = how.queries(schema, FOUR)
    assert len(query.shape) == 3
    how.build(schema)
    summand = OuterSum(_map_of(query, how.model_.gradients))
    records = made_up(schema, 20)
    parts = canaries._Parts.of(summand, records)
    each = torch.stack([summand(record)[0] for record in one_by_one(records)]).double()
    assert torch.allclose(parts.inner(), each @ each.T, rtol=1e-12)
    weights = torch.arange(20, dtype=torch.float64)
    assert torch.equal(parts.sum(weights, summand.shape)[0], weights @ each)
    answer = torch.randn(summand.shape, dtype=torch.float64)
    assert torch.allclose(parts.with_answer(answer), each @ answer[0])


def one_by_one(records: Batch) -> list[Batch]:
    return [Batch(records.values[[i]], records.labels[[i]]) for i in range(len(records))]


def test_a_table_and_a_classifier_can_be_audited():
    found = audit_method(Merf(**TINY), small_table(), FOUR, canaries=48, samples=100)
    assert found.passed, found.sentences()
    cls = get_method("llm")
    told = audit_method(cls(**cls.TINY), small_images(), FOUR, canaries=48)
    assert told.passed and told.black_box == ()


def test_canaries_that_are_the_same_picture_by_chance_are_no_false_alarm(monkeypatch):
    same = made_up(small_images().schema, 1)

    def alike(schema, count, seed=0):
        return Batch(same.values.expand(count, -1, -1, -1), same.labels.expand(count))

    monkeypatch.setattr(canaries, "made_up", alike)
    found = audit_method(Merf(**Merf.TINY), small_images(), FOUR, canaries=30, samples=50)
    assert found.passed, found.sentences()


def test_zero_out_tells_a_method_the_same_number_whatever_the_coins_are():
    seen = []

    class Counting(Merf):
        def _fit(self, data, run):
            seen.append(data.public_size)
            super()._fit(data, run)

    for coins in (np.zeros(30, bool), np.ones(30, bool)):
        audit_method(
            Counting(**Merf.TINY), small_images(), FOUR, canaries=30, samples=50, coins=coins
        )
    assert seen == [90, 90]


# -- broken ones -------------------------------------------------------------------------------------------------------------


def quieter(monkeypatch, part: float) -> None:
    exact, fast = noise._measurement, noise.FastGaussian.__call__
    monkeypatch.setattr(noise, "_measurement", lambda scale: exact(scale * part))
    monkeypatch.setattr(
        noise.FastGaussian, "__call__", lambda self, shape, std: fast(self, shape, std * part)
    )


@pytest.mark.parametrize("cls", [Merf, Gan])
def test_half_the_noise_is_noticed(monkeypatch, cls):
    quieter(monkeypatch, 0.5)
    found = audit_method(cls(**cls.TINY), small_images(), FOUR, canaries=24, samples=50)
    assert not found.passed
    last = found.answers[-1]
    assert last.quiet and last.noise < 0.9
    assert any("noise" in sentence for sentence in found.sentences())


def test_noise_that_is_missing_is_noticed_by_guesses_too(monkeypatch):
    quieter(monkeypatch, 0.01)
    one = Budget(epsilon=1.0, delta=1e-5)
    found = audit_method(Merf(**TINY), small_images(), one, canaries=400, samples=50)
    assert found.told_apart and found.white_box.lower > found.epsilon
    assert found.answers[0].quiet


def test_a_chunk_rule_that_doubles_a_record_is_noticed(monkeypatch):
    honest = bounding.BoundedSum._of_part

    def last_counts_twice(self, part: Batch, times: torch.Tensor):
        again = torch.zeros_like(times)
        again[times.nonzero()[-1]] = 1
        return honest(self, part, times) + honest(self, part, again)

    monkeypatch.setattr(bounding.BoundedSum, "_of_part", last_counts_twice)
    found = audit_method(Merf(**Merf.TINY), small_images(), FOUR, canaries=48, samples=50)
    assert not found.passed
    assert found.answers[0].off > 0.1
    assert "add up to" in found.sentences()[0]


def test_a_method_that_leaks_rows_into_its_samples_is_noticed(monkeypatch):
    kept: list[torch.Tensor] = []
    honest, reading = PrivateData.noisy_sum, []

    def noisy_sum(self, *given, **more):
        reading.append(True)  # from here on the map is shown the data
        try:
            return honest(self, *given, **more)
        finally:
            reading.clear()

    monkeypatch.setattr(PrivateData, "noisy_sum", noisy_sum)

    class Leaking(Merf):
        """Keeps what passes its map, which the rules for methods forbid, and gives it out as samples."""

        def _fit(self, data, run):
            asked = data.sum

            def sum_and_keep(label, rows, **more):
                class Spy(type(rows)):
                    def filed(self, batch):
                        if reading:
                            kept.append(batch.values.clone())
                        return super().filed(batch)

                rows.__class__ = Spy
                return asked(label, rows, **more)

            data.sum = sum_and_keep
            super()._fit(data, run)

        def _sample(self, labels, random):
            rows = torch.cat(kept)
            return rows[torch.randint(len(rows), (len(labels),), generator=random)]

    one = Budget(epsilon=1.0, delta=1e-5)
    found = audit_method(Leaking(**Merf.TINY), small_images(), one, canaries=200, samples=4_000)
    assert not found.passed
    nearest = found.black_box[0]
    assert nearest.lower > 1 > found.white_box.lower
    assert nearest.guesses[0].right > 0.8 * nearest.guesses[0].guessed
    assert nearest.name in found.sentences()[0]


# -- the command -------------------------------------------------------------------------------------------------------------

WORDS = ("--data", "digits:train", "--canaries", "48", "-q")
SMALL = [w for k, v in Merf.TINY.items() for w in ("--set", f"{k}={v}")]


def test_the_command_tells_bounds_marks_them_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("audit", "run", "merf", *WORDS, "--epsilon", "4", "--delta", "1e-5", *SMALL)
    text = succeed(*words).stdout
    assert "answers of the wall" in text and "NOT covered by ε" in text
    assert "Nothing passes its claim" in text
    told = json.loads(succeed(*words, "--json").stdout)
    assert "NOT covered" in told["source"] and told["passed"] is True
    assert {a["attack"] for a in told["black_box"]} == {
        "samples: nearest distance",
        "samples: classifier",
    }
    assert list(tmp_path.iterdir()) == []


def test_a_run_stands_for_its_method_settings_and_budget_and_is_left_as_it_is(tmp_path):
    out = tmp_path / "run"
    Merf(**Merf.TINY).fit(sfumato.load("digits:train"), Budget(epsilon=2.0, delta=1e-5), out=out)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    for config in (out, out / "config.json"):
        told = json.loads(succeed("audit", "run", config, *WORDS, "--json").stdout)
        assert (told["method"], told["epsilon"]) == ("merf", pytest.approx(2.0))
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    (tmp_path / "other.json").write_text("{}")
    assert "no configuration of a run" in refused(
        2, "audit", "run", tmp_path / "other.json", *WORDS
    )


def test_a_missing_budget_and_too_few_canaries_are_refused():
    assert "--epsilon" in refused(2, "audit", "run", "merf", *WORDS)
    assert run("audit", "run", "merf", "--data", "digits:train", "--canaries", "3").exit_code == 2
    with pytest.raises(BadInput, match="at least"):
        audit_method(Merf(**Merf.TINY), small_images(), FOUR, canaries=3)


def test_a_broken_method_has_an_exit_code_and_a_sentence(monkeypatch):
    quieter(monkeypatch, 0.5)
    result = run("audit", "run", "merf", *WORDS, "--epsilon", "4", "--delta", "1e-5", *SMALL)
    assert result.exit_code == 8
    assert "times what is charged for" in result.stderr
