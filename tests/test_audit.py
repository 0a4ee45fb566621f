"""The audit: its statistics are right, the wall passes, and a broken wall does not."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from scipy import stats

from sfumato.cli import audit as command
from sfumato.cli import main as cli
from sfumato.data import Batch
from sfumato.privacy import Neighbours, bounding, gate, gradients, noise
from sfumato.privacy.audit import (
    DELTA,
    Asked,
    Finding,
    Mechanism,
    audit,
    clopper_pearson,
    region_epsilon,
)
from sfumato.testing import neighbours
from sfumato.testing.neighbours import mechanisms

ZERO = Neighbours.ZERO_OUT

# An honest wall fails a test of this file once in a million runs.
CONFIDENCE = 1 - 1e-6


def some(*names: str, counts: tuple[int, ...] = (15,)) -> list[Mechanism]:
    """The strongest of the quick audit's mechanisms of these names."""
    every = {
        m.name: m for m in mechanisms(counts=counts) if m.name != "sum" or m.neighbours is ZERO
    }
    return [every[name] for name in names]


def found(
    *names: str, draws: int = 1_000, alone: int = 60, **more: tuple[int, ...]
) -> list[Finding]:
    return audit(some(*names, **more), draws=draws, alone=alone, confidence=CONFIDENCE)


# -- statistics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trials", [1, 20, 1000])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_clopper_pearson_ends_are_where_the_binomial_tail_is_the_failure(trials, share):
    hits = round(share * trials)
    low, high = clopper_pearson(hits, trials, 1e-4)
    if hits < trials:
        assert stats.binom.cdf(hits, trials, high) == pytest.approx(1e-4, rel=1e-6)
    else:
        assert high == 1.0
    if hits:
        assert stats.binom.sf(hits - 1, trials, low) == pytest.approx(1e-4, rel=1e-6)
    else:
        assert low == 0.0


def test_region_is_that_of_epsilon_and_delta():
    # Randomised response of ε = 1 at δ = 0.1: it reveals the bit with probability δ.
    said = 0.9 * math.e / (1 + math.e) + 0.1
    wrong = 0.9 / (1 + math.e)
    assert region_epsilon(wrong, 1 - said, 0.1) == pytest.approx(1.0)
    assert region_epsilon(0.5, 0.5, 1e-5) == 0.0
    assert region_epsilon(0.1, 1.0, 1e-5) == 0.0


@pytest.mark.parametrize(
    "name", ["sum", "non-negative sum", "Poisson-sampled sum, rate 0.5", "groups", "shards"]
)
def test_the_least_shift_undoes_the_power_and_gives_back_the_claim(name):
    asked = Asked(some(name)[0])
    for level in (1e-4, 0.05, 0.5, 0.9):
        power = asked.power(level, asked.shift)
        assert power > level
        assert asked.least_shift(level, power) == pytest.approx(asked.shift, rel=1e-6)
        assert asked.least_shift(level, level) == 0.0
    assert asked.epsilon_at(asked.shift) == pytest.approx(asked.claimed(asked.charge), rel=1e-9)
    assert asked.epsilon_at(2 * asked.shift) > 1.5 * asked.claimed(asked.charge)


def test_no_power_is_beyond_the_region_of_the_claimed_epsilon():
    """Two routes to the same claim: the curve of a mechanism lies inside the region of its ε at every δ."""
    for mechanism in mechanisms(full=True, counts=(0,)):
        asked = Asked(mechanism)
        epsilon = asked.claimed(asked.charge)
        for level in np.geomspace(1e-9, 0.5, 40):
            power = asked.power(float(level), asked.shift)
            assert power <= math.exp(epsilon) * level + DELTA * (1 + 1e-6), mechanism.name


# -- the wall ------------------------------------------------------------------------------------------------------------


def test_every_mechanism_of_the_wall_passes():
    every = mechanisms(counts=(15,))
    results = audit(every, draws=500, alone=20, confidence=CONFIDENCE)
    for one in results:
        assert one.passed, one.to_json()
        # The neighbours are as far apart as is charged for, to a thousandth: otherwise the audit would look away.
        assert one.distance >= one.sensitivity * (1 - 2e-3), one.mechanism


def test_records_on_both_sides_of_every_chunk_move_sums_by_what_is_charged():
    mechanism = some("sum filed by class", counts=neighbours.CROSSINGS)[0]
    (one,) = audit([mechanism], draws=10, alone=1)
    assert not one.too_far
    assert one.pairs > 100


def test_lower_bounds_are_near_the_claim():
    (one,) = audit(some("sum"), draws=8_000, alone=20)
    assert 0.6 * one.epsilon < one.best.lower <= one.epsilon < one.best.upper


def test_gradients_go_the_ways_they_are_named_for():
    for mechanism in mechanisms(counts=(0,)):
        asked = mechanism.asked
        if not isinstance(asked, gradients.GradientSum):
            continue
        asked.check(mechanism.schema)
        layers = (
            asked._recorded_layers((torch.zeros(asked._rows, asked.dim),)) if asked._fast else []
        )
        assert asked._fast == ("vmap" not in mechanism.name)
        products = [p for layer in layers for p in layer.products()]
        assert bool(products) == ("products" in mechanism.name)


# -- a broken wall -------------------------------------------------------------------------------------------------------


def test_half_the_noise_is_noticed(monkeypatch):
    exact, fast = noise._measurement, noise.FastGaussian.__call__
    monkeypatch.setattr(noise, "_measurement", lambda scale: exact(scale / 2))
    monkeypatch.setattr(
        noise.FastGaussian, "__call__", lambda self, shape, std: fast(self, shape, std / 2)
    )
    for one in found("sum", "outer product", "gradients, vmap", "groups", draws=2_000):
        assert one.told_apart and not one.too_far, one.mechanism


def test_noise_that_is_the_same_in_every_number_is_noticed(monkeypatch):
    """Each number of an answer alone is as noisy as ever, so only spread directions can show it."""
    exact = noise._measurement

    def one_for_all(scale):
        draw = exact(scale)
        return lambda zeros: draw([0]) * len(zeros)

    monkeypatch.setattr(noise, "_measurement", one_for_all)
    (one,) = found("sum", draws=4_000)
    assert one.told_apart and not one.too_far


def test_a_rule_for_short_blocks_is_noticed(monkeypatch):
    honest = bounding._Rounded._parts

    def last_of_a_short_block(self, batch):
        for part, times in honest(self, batch):
            count = int((times > 0).sum())
            if count < len(part):
                part.values[: count - 1] = math.nan
            yield part, times

    monkeypatch.setattr(bounding._Rounded, "_parts", last_of_a_short_block)
    for one in found("sum filed by class", "outer product", draws=10):
        assert one.too_far, one.mechanism


def test_clipping_at_twice_the_bound_is_noticed(monkeypatch):
    honest = bounding.clipped
    monkeypatch.setattr(bounding, "clipped", lambda rows, bound: honest(rows, 2 * bound))
    weights = gradients._clip_weights
    monkeypatch.setattr(gradients, "_clip_weights", lambda s, bound: weights(s, 2 * bound))
    for one in found("sum", "symmetric outer product", "gradients, formed rows", draws=10):
        assert one.too_far, one.mechanism


def test_labels_of_a_block_that_are_rewritten_are_noticed(monkeypatch):
    honest = gate._Vectors.filed

    def of_the_highest_class(self, batch: Batch):
        segment, pieces = honest(self, batch)
        return segment.max().expand_as(segment), pieces

    monkeypatch.setattr(gate._Vectors, "filed", of_the_highest_class)
    (one,) = found("sum filed by class", draws=10, alone=500)
    assert one.too_far and one.told_apart


# -- the command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(neighbours, "mechanisms", lambda full: some("sum", "groups"))
    monkeypatch.setattr(command, "CONFIDENCE", CONFIDENCE)
    monkeypatch.setattr(command, "QUICK", command.Effort(1_500, 10, 1))


def run(*words: str):
    return CliRunner().invoke(cli.app, ["audit", "mechanism", *words])


def test_the_table_has_claim_and_measurement(small):
    result = run("--quick")
    assert result.exit_code == 0, result.stderr
    assert "ε claimed" in result.stdout and "groups" in result.stdout
    assert "No lower bound passes its claim" in result.stdout


def test_a_broken_claim_has_an_exit_code_and_a_sentence(small, monkeypatch):
    exact = noise._measurement
    monkeypatch.setattr(noise, "_measurement", lambda scale: exact(scale / 3))
    result = run("--json")
    assert result.exit_code == command.BROKEN == 8
    assert command.BROKEN in cli.EXIT_CODES
    told = json.loads(result.stdout)
    assert [m["passed"] for m in told["mechanisms"]] == [False, True]
    assert "sum under zero-out: ε is at least" in result.stderr
