"""Sums over groups and shards: what one record can move, what it costs by a second route, and nothing else comes out."""

from __future__ import annotations

import itertools
import math

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from runs import charge, silent
from sfumato.data import Batch, Dataset, Schema
from sfumato.data.sources import ArraySource
from sfumato.errors import BadInput, PlanMismatch
from sfumato.privacy import (
    Budget,
    FeatureMap,
    GroupSum,
    Ledger,
    Neighbours,
    PrivacyStatement,
    PrivateData,
    ShardStates,
    ShardSum,
    calibrate,
    epsilon_of,
    noise,
)
from stores import store_in

RELATION = {
    Neighbours.ADD_REMOVE: dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    Neighbours.ZERO_OUT: dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    Neighbours.REPLACE_ONE: dp_accounting.NeighboringRelation.REPLACE_ONE,
}
SAMPLED = [Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE]


# -- the price, by a second route --------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", SAMPLED)
def test_the_price_is_that_of_dp_accountings_own_events(neighbours):
    rate, steps, m = 0.02, 300, 1.4
    for summands, scale, relation in (
        ("groups", m / 2, RELATION[neighbours]),
        ("shards", m, RELATION[Neighbours.REPLACE_ONE]),
    ):
        sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(scale))
        accountant = PLDAccountant(relation, value_discretization_interval=4e-4)
        accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, steps))
        found = epsilon_of(
            (charge(m, summands=summands, rate=rate, steps=steps),), 1e-5, neighbours
        )
        assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)


def hockey_stick(first, second, epsilon: float, cell: float) -> float:
    """max over both directions of ∫ (p − e^ε q)₊"""
    return max(
        np.maximum(0, p - math.exp(epsilon) * q).sum() * cell
        for p, q in ((first, second), (second, first))
    )


LINE = np.linspace(-40, 40, 200_001)


def on_the_line(rate: float, sigma: float, place: float):
    return (1 - rate) * norm.pdf(LINE, 0, sigma) + rate * norm.pdf(LINE, place, sigma)


@pytest.mark.parametrize(
    ("summands", "neighbours"),
    [("groups", Neighbours.ADD_REMOVE), *(("shards", relation) for relation in SAMPLED)],
)
@pytest.mark.parametrize(("rate", "sigma", "epsilon"), [(0.1, 1.0, 0.8), (0.02, 0.7, 0.5)])
def test_one_step_is_the_integral_of_its_two_mixtures(summands, neighbours, rate, sigma, epsilon):
    if summands == "groups":
        # Without the record the answer is at u = 0 (any other base is a shift); with it, sampled, at the far side of the ball: 2.
        sigma *= 2
        pair = norm.pdf(LINE, 0, sigma), on_the_line(rate, sigma, 2.0)
    else:  # the drawn shard says +1 with the record and −1 without it
        pair = on_the_line(rate, sigma, 1.0), on_the_line(rate, sigma, -1.0)
    delta = hockey_stick(*pair, epsilon, LINE[1] - LINE[0])
    found = epsilon_of((charge(sigma, summands=summands, rate=rate),), delta, neighbours)
    assert found == pytest.approx(epsilon, rel=3e-3)
    assert found >= epsilon * (1 - 1e-6)


PLANE = np.meshgrid(np.linspace(-9, 9, 301), np.linspace(-9, 9, 301))
CELL = (18 / 300) ** 2


def in_the_plane(rate: float, sigma: float, place: np.ndarray):
    def at(x, y):
        return norm.pdf(PLANE[0], x, sigma) * norm.pdf(PLANE[1], y, sigma)

    return (1 - rate) * at(0, 0) + rate * at(*place)


@pytest.mark.parametrize("degrees", [0, 40, 90, 140])
def test_summands_that_point_elsewhere_cost_no_more_than_is_charged(degrees):
    rate, epsilon = 0.15, 0.4
    turned = np.array([math.cos(math.radians(degrees)), math.sin(math.radians(degrees))])
    shards = in_the_plane(rate, 1.1, np.array([1.0, 0.0])), in_the_plane(rate, 1.1, turned)
    if delta := hockey_stick(*shards, epsilon, CELL):
        for neighbours in SAMPLED:
            assert (
                epsilon_of((charge(1.1, summands="shards", rate=rate),), delta, neighbours)
                >= epsilon
            )
    if degrees <= 60:  # two answers in one ball of radius 1, each 2 from a third: at most 60° apart
        groups = (
            in_the_plane(rate, 2.2, np.array([2.0, 0.0])),
            in_the_plane(rate, 2.2, 2 * turned),
        )
        if delta := hockey_stick(*groups, epsilon, CELL):
            price = epsilon_of(
                (charge(2.2, summands="groups", rate=rate),), delta, Neighbours.REPLACE_ONE
            )
            assert price >= epsilon


@pytest.mark.parametrize("summands", ["groups", "shards"])
@pytest.mark.parametrize("neighbours", SAMPLED)
def test_without_sampling_either_is_a_gaussian_of_sensitivity_two(summands, neighbours):
    plain = (charge(2.0),)
    found = epsilon_of((charge(4.0, summands=summands),), 1e-5, neighbours)
    assert found == pytest.approx(epsilon_of(plain, 1e-5, Neighbours.ADD_REMOVE), rel=1e-9)


@pytest.mark.parametrize("neighbours", SAMPLED)
@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_groups_and_shards_never_cost_less_than_records(neighbours, rate):
    def cost(summands):
        return epsilon_of((charge(3.0, summands=summands, rate=rate, steps=50),), 1e-5, neighbours)

    assert cost("groups") >= cost("records")
    assert cost("shards") >= cost("records")
    if neighbours is not Neighbours.REPLACE_ONE:
        assert min(cost("groups"), cost("shards")) > cost("records")


@pytest.mark.parametrize("neighbours", SAMPLED)
@pytest.mark.parametrize("summands", ["groups", "shards"])
def test_a_calibrated_plan_fits_its_ledger_and_is_told_as_it_is(summands, neighbours):
    def plan(m):
        return (
            charge(20 * m, label="counts"),
            charge(m, summands=summands, rate=0.02, steps=200),
        )

    budget = Budget(epsilon=2.0, delta=1e-5, neighbours=neighbours)
    ledger = Ledger(budget)
    for one in plan(calibrate(plan, budget)):
        ledger.charge(one)
    assert 0.99 * 2.0 < ledger.spent() <= 2.0
    told = PrivacyStatement.of(ledger).to_json()
    release = told["releases"][1]
    assert release["summands"] == summands
    assert release["sensitivity"] == pytest.approx(2 * release["bound"])
    under = told["epsilon_under"]
    assert under["replace-one"] >= under["zero-out"] * (1 - 1e-3)


@pytest.mark.parametrize(
    "bad",
    [{"summands": "people"}, {"summands": "shards", "replace_ratio": math.sqrt(2)}],
)
def test_a_charge_for_something_unproved_is_refused(bad):
    with pytest.raises(BadInput):
        charge(1.0, **bad)


# -- what one record can move ------------------------------------------------------------------------------------------


def records(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 1, 2, 2), dtype=np.uint8)


def private(images: np.ndarray, **more) -> PrivateData:
    return PrivateData(Dataset.from_arrays(images), Ledger(Budget(epsilon=1e4, delta=1e-5)), **more)


def steps_over(data: PrivateData, summed, summands: str, rate: float = 1.0, steps: int = 1):
    return data.poisson_steps(
        rate,
        steps,
        1.0,
        bound=summed.enforced,
        label="steps",
        dimension=summed.dim,
        summands=summands,
    )


def ask(step, summed: GroupSum | ShardSum) -> torch.Tensor:
    return step.noisy_shards(summed) if isinstance(summed, ShardSum) else step.noisy_groups(summed)


def parts_of(
    kind: str, answer, parts: int = 1, prepare=lambda *_: None, **more
) -> GroupSum | ShardSum:
    """A sum over so many groups or shards."""
    if kind == "groups":
        return GroupSum(answer, groups=parts, **more)
    return ShardSum(answer, states=ShardStates(prepare, shards=parts), **more)


def wild(values: list[float]):
    """A function of a group that one record can throw anywhere: it picks its answer by the bytes of all records."""

    def answer(group: Batch, *_) -> torch.Tensor:
        code = int(group.values.to(torch.int64).sum()) + 7 * len(group)
        return torch.tensor([values[(code + i) % len(values)] for i in range(3)])

    return answer


NUMBERS = st.lists(
    st.one_of(
        st.floats(-1e30, 1e30),
        st.sampled_from([math.nan, math.inf, -math.inf, 1e-300, 1e300, 0.0, 1.0, -1.0]),
    ),
    min_size=1,
    max_size=7,
)


def one_record_differs(images: np.ndarray) -> list[np.ndarray]:
    other = images.copy()
    other[-1] = 255 - other[-1]
    return [images[:-1], other]


@pytest.mark.parametrize("kind", ["groups", "shards"])
@given(values=NUMBERS, bound=st.sampled_from([1e-3, 1.0, 250.0]), parts=st.integers(1, 3))
@settings(max_examples=60)
def test_one_neighbour_moves_one_part_and_the_sum_by_twice_the_bound_at_most(
    kind, values, bound, parts
):
    images, coins = records(6), np.array([0, 1, 2, 0, 1, 2]) % parts
    summed = parts_of(kind, wild(values), parts, dim=3, bound=bound)

    def answer(images: np.ndarray, drawn: list[int]) -> torch.Tensor:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(noise, "random_parts", lambda count, _: coins[:count])
            if kind == "shards":  # groups divide what was drawn
                patch.setattr(noise, "poisson_mask", lambda n, rate: np.isin(np.arange(n), drawn))
            data = private(images, fast_sampler=silent)
            again = parts_of(kind, wild(values), parts, dim=3, bound=bound)
            return ask(next(steps_over(data, again, kind)), again).double()

    # In single precision the answer itself is rounded, after the noise.
    rounding = parts * bound * 2.0**-22
    everything = list(range(parts))
    for neighbour in one_record_differs(images):  # in its last record
        moved = answer(images, everything) - answer(neighbour, everything)
        assert float(moved.norm()) <= 2 * summed.enforced + rounding
        if kind == "shards":
            for part in everything:
                before, after = (answer(one, [part]) for one in (images, neighbour))
                assert float(after.norm()) <= summed.enforced + rounding
                assert part == coins[-1] or torch.equal(before, after)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_answer_that_is_not_finite_counts_for_nothing(value):
    summed = GroupSum(lambda group: torch.tensor([1.0, value]), dim=2, bound=1.0)
    assert torch.equal(summed.units(torch.tensor([1.0, value])), torch.zeros(2, dtype=torch.int64))
    data = private(records(4), fast_sampler=silent)
    assert float(next(steps_over(data, summed, "groups")).noisy_groups(summed).abs().sum()) == 0


def test_an_answer_within_the_bound_is_left_as_it_is():
    summed = GroupSum(lambda group: torch.zeros(2), dim=2, bound=2.0)
    units = summed.units(torch.tensor([0.6, -0.8]))
    assert torch.allclose(units.double() * summed.grid, torch.tensor([0.6, -0.8]).double())
    long = summed.units(torch.tensor([30.0, 40.0])).double() * summed.grid
    assert torch.allclose(long, torch.tensor([1.2, 1.6], dtype=torch.float64))


# -- neighbours: one record moves its own group or shard, and no other ---------------------------------------------------


ODD = [math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, 0.0, -0.0, 1.0, 1e10]


def summed_floats(group: Batch, *_) -> torch.Tensor:
    """The sum of a group's records and, beside it, its mean: what NaN, infinity and huge numbers spoil."""
    flat = group.values.flatten(1)
    return torch.cat([flat.sum(dim=0), flat.mean(dim=0)])


def summands(data: np.ndarray, coins: np.ndarray, parts: int, kind: str) -> list[torch.Tensor]:
    """Each part's own summand as the wall adds it up, by drawing or dividing such that it is alone."""
    found = []
    for number in range(parts):
        summed = parts_of(kind, summed_floats, parts, dim=8, bound=1.0)
        with pytest.MonkeyPatch.context() as patch:
            inside = coins == number
            patch.setattr(noise, "random_parts", lambda n, k, coins=coins: coins[:n])
            if kind == "groups":
                patch.setattr(noise, "random_parts", lambda n, k, n_=number: np.full(n, n_))
                patch.setattr(noise, "poisson_mask", lambda n, rate, inside=inside: inside[:n])
            else:
                patch.setattr(noise, "poisson_mask", lambda n, rate, k=number: np.arange(n) == k)
            source = Dataset(ArraySource(data, None), Schema(kind="images", shape=(1, 2, 2)), "x")
            ledger = Ledger(Budget(epsilon=1e4, delta=1e-5))
            private_data = PrivateData(source, ledger, fast_sampler=silent)
            found.append(ask(next(steps_over(private_data, summed, kind)), summed).double())
    return found


@pytest.mark.parametrize("kind", ["groups", "shards"])
def test_a_neighbour_of_any_value_that_comes_or_goes_moves_its_own_part_alone(kind):
    data = np.random.default_rng(1).random((30, 1, 2, 2), dtype=np.float32)
    coins = np.random.default_rng(2).integers(0, 5, 30)
    coins[coins == 3] = 2
    coins[7] = 3  # the only record of its part, which is empty without it
    whole = summands(data, coins, 5, kind)
    enforced = GroupSum(summed_floats, dim=8, bound=1.0).enforced * (1 + 2.0**-22)

    def moves_only(place: int, after: list[torch.Tensor]) -> None:
        for number in range(5):
            assert float(after[number].norm()) <= enforced
            assert number == coins[place] or torch.equal(whole[number], after[number])

    for place in (0, 7, 13, 29):
        rest = np.delete(np.arange(30), place)
        without = summands(data[rest], coins[rest], 5, kind)
        moves_only(place, without)
        if place == 7:
            assert not without[3].any() and whole[3].any()
    for value in ODD:
        changed = data.copy()
        changed[13] = value
        moves_only(13, summands(changed, coins, 5, kind))


@pytest.mark.parametrize("kind", ["groups", "shards"])
def test_the_sum_is_that_of_its_parts_whatever_their_number_or_order_of_neighbours(kind):
    data = np.random.default_rng(3).random((64, 1, 2, 2), dtype=np.float32)
    for parts in (1, 2, 9, 64):
        coins = np.random.default_rng(parts).integers(0, parts, 64)
        summed = GroupSum(summed_floats, dim=8, bound=1.0, groups=parts)
        units = torch.zeros(8, dtype=torch.int64)
        for number in np.unique(coins):
            units += summed(Batch(torch.from_numpy(data[coins == number]), None))
        expected = units.double() * summed.grid
        found = sum(summands(data, coins, parts, kind))
        assert torch.allclose(found, expected, atol=parts * 2.0**-22)


def test_a_neighbours_group_is_clipped_alike_wherever_its_numbers_lie():
    # Version 0.1.0 took a library's norm, whose order of additions is the library's own.
    summed = GroupSum(summed_floats, dim=1003, bound=0.5)
    value = torch.randn(1003, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = summed.units(value)
    for offset in range(1, 9):
        store = torch.zeros(1020, dtype=torch.float64)
        store[offset : offset + 1003] = value
        assert torch.equal(summed.units(store[offset : offset + 1003]), expected)
        wide = torch.zeros(1003, offset + 1, dtype=torch.float64)
        wide[:, offset] = value
        assert torch.equal(summed.units(wide[:, offset]), expected)


@pytest.mark.parametrize("dim", [1, 1000, 2_000_003])
def test_no_neighbours_group_is_longer_than_is_charged_however_many_numbers_it_has(dim):
    summed = GroupSum(summed_floats, dim=dim, bound=1.0)
    large = torch.full((dim,), 1e-8, dtype=torch.float64)
    large[0] = 1.0
    for value in (large, torch.full((dim,), 3e38), torch.full((dim,), 1e-300)):
        units = summed.units(value.double())
        exact = math.sqrt(sum(int(u) ** 2 for u in units.tolist()))
        assert exact * summed.grid <= summed.enforced


# -- samples, groups and shards ----------------------------------------------------------------------------------------


def test_groups_divide_the_sample_and_shards_the_data():
    images = records(50)
    sizes: list[list[int]] = []

    def size(group: Batch, *_) -> torch.Tensor:
        sizes[-1].append(len(group))
        return torch.tensor([float(len(group))])

    for kind, afresh in (("groups", True), ("shards", False)):  # every step, or once
        sizes.clear()
        summed = parts_of(kind, size, 4, dim=1, bound=1e3)
        for step in steps_over(private(images, fast_sampler=silent), summed, kind, 1.0, 5):
            sizes.append([])
            assert float(ask(step, summed)) == pytest.approx(50, abs=1e-3)
        assert (len({tuple(s) for s in sizes}) > 1) is afresh


def test_shards_are_drawn_at_their_rate_and_whole():
    summed = parts_of("shards", lambda *_: torch.ones(1), 40, dim=1, bound=1.0)
    steps = steps_over(private(records(2000), fast_sampler=silent), summed, "shards", 0.1, 200)
    drawn = [float(step.noisy_shards(summed)) for step in steps]
    assert np.mean(drawn) == pytest.approx(4, abs=5 * 1.9 / 200**0.5)
    assert 0.5 < np.var(drawn) / 3.6 < 1.8


def test_parts_are_fair_and_a_record_more_moves_no_other_by_design():
    parts = noise.random_parts(30_000, 3)
    assert np.allclose(np.bincount(parts, minlength=3) / 30_000, 1 / 3, atol=0.02)
    assert not np.array_equal(noise.random_parts(99, 3), noise.random_parts(99, 3))


def test_an_empty_sample_is_noise_and_its_function_is_not_asked():
    def never(*_):
        raise AssertionError("asked about no record")

    for kind, parts in (("groups", 3), ("shards", 30)):
        summed = parts_of(kind, never, parts, never, dim=40, bound=1.0)
        for step in steps_over(private(records(3)), summed, kind, 1e-9, 5):
            assert float(ask(step, summed).std()) > 0.3


def test_the_noise_has_the_charged_scale():
    summed = GroupSum(lambda group: torch.zeros(20_000), dim=20_000, bound=3.0)
    found = next(steps_over(private(records(3)), summed, "groups")).noisy_groups(summed)
    assert float(found.std()) == pytest.approx(summed.enforced, rel=0.025)


def test_a_wrong_number_of_answers_is_refused_without_telling_a_size():
    summed = GroupSum(lambda group: torch.zeros(len(group)), dim=3, bound=1.0)
    with pytest.raises(ValueError, match="must return 3 numbers") as refused:
        next(steps_over(private(records(29)), summed, "groups")).noisy_groups(summed)
    assert "29" not in str(refused.value)


def test_a_step_answers_only_what_it_was_paid_for():
    class Ones(FeatureMap):
        dim, bound = 1, 0.5

        def __call__(self, batch):
            return torch.ones(len(batch), 1) / 2

    groups, shards = (
        parts_of(kind, lambda *_: torch.zeros(1), dim=1, bound=1.0) for kind in ("groups", "shards")
    )
    asks = {
        "records": lambda step: step.noisy_sum(Ones()),
        "groups": lambda step: step.noisy_groups(groups),
        "shards": lambda step: step.noisy_shards(shards),
    }
    for paid, asked in itertools.product(asks, asks):
        step = next(steps_over(private(records(4)), groups, paid))
        if paid == asked:
            asks[asked](step)
        else:
            with pytest.raises(PlanMismatch, match=f"over {paid}, not over {asked}"):
                asks[asked](step)
    large = GroupSum(lambda group: torch.zeros(1), dim=1, bound=2.0)
    with pytest.raises(PlanMismatch, match="bound"):
        next(steps_over(private(records(4)), groups, "groups")).noisy_groups(large)


def test_what_a_function_draws_does_not_move_the_common_random_numbers():
    summed = GroupSum(lambda group: torch.randn(3), dim=3, bound=1.0)
    torch.manual_seed(5)
    expected = torch.randn(4)
    torch.manual_seed(5)
    next(steps_over(private(records(9)), summed, "groups")).noisy_groups(summed)
    assert torch.equal(torch.randn(4), expected)


# -- states of shards --------------------------------------------------------------------------------------------------


def remembering(log: list[tuple[int, int]]):
    """Two phases of states that count, and an answer that tells its state and then spoils it."""

    def prepare(batch: Batch, earlier, random: torch.Generator):
        log.append((int(batch.values.to(torch.int64).sum()), 0 if earlier is None else earlier[0]))
        return [(0 if earlier is None else earlier[0]) + 1, float(torch.rand(1, generator=random))]

    def answer(batch: Batch, state, random: torch.Generator) -> torch.Tensor:
        told = torch.tensor([float(state[0]), state[1], float(torch.rand(1, generator=random))])
        state[0] = 99
        return told

    first = ShardStates(prepare, shards=3)
    second = ShardStates(prepare, shards=3, earlier=first)
    third = ShardStates(prepare, shards=3, earlier=second)
    return [ShardSum(answer, dim=3, bound=1e3, states=s) for s in (first, second, third)]


def drawn(schedule: list[int | None]) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """The un-noised answer to the last of three steps, one a phase, when step i draws shard schedule[i] alone."""
    log: list[tuple[int, int]] = []
    sums = remembering(log)
    turn = iter(schedule)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "random_parts", lambda count, parts: np.arange(count) % parts)
        patch.setattr(noise, "poisson_mask", lambda count, rate: np.arange(count) == next(turn))
        steps = steps_over(
            private(records(9), fast_sampler=silent), sums[0], "shards", 0.5, len(schedule)
        )
        for step, summed in zip(steps, sums, strict=True):
            last = step.noisy_shards(summed)
    return last, log


def test_an_answer_does_not_depend_on_which_steps_drew_the_shard():
    always, _ = drawn([1, 1, 1])
    for schedule in ([None, None, 1], [1, None, 1], [None, 1, 1], [0, 2, 1]):
        assert torch.equal(drawn(schedule)[0], always)
    assert float(always[0]) == pytest.approx(3, abs=1e-4)  # all three phases, made up for


def test_a_state_is_made_once_and_never_from_a_spoilt_one():
    _, log = drawn([1, 1, 1])
    assert [earlier for _, earlier in log] == [0, 1, 2]
    assert len({shard for shard, _ in log}) == 1


def test_states_of_another_division_are_not_taken_over():
    first = ShardStates(lambda *_: None, shards=3)
    with pytest.raises(BadInput, match="divided as before"):
        ShardStates(lambda *_: None, shards=4, earlier=first)
    with pytest.raises(BadInput, match="at least one part"):
        GroupSum(lambda group: torch.zeros(1), dim=1, bound=1.0, groups=0)


# -- going on after an interruption ------------------------------------------------------------------------------------


@pytest.mark.parametrize("summands", ["groups", "shards"])
def test_answered_steps_are_answered_the_same_again_and_not_read_again(summands, tmp_path):
    asked: list[int] = []

    def answer(batch: Batch, *_) -> torch.Tensor:
        asked.append(1)
        return torch.ones(4)

    def answers(count: int) -> list[torch.Tensor]:
        store = store_in(tmp_path)
        data = private(records(20), store=store)
        summed = parts_of(summands, answer, dim=4, bound=1.0)
        steps = steps_over(data, summed, summands, 1.0, 6)
        found = [ask(step, summed) for step, _ in zip(steps, range(count), strict=False)]
        store.close()
        return found

    first = answers(3)
    second = answers(6)
    assert len(asked) == 6
    assert all(torch.equal(a, b) for a, b in zip(first, second[:3], strict=True))
    assert not torch.equal(second[3], second[4])
