"""The samplers draw what they say: right scales are accepted, wrong ones rejected, and seeds are nowhere."""

from __future__ import annotations

import inspect
import math
import os

import numpy as np
import pytest
from scipy import stats

from sfumato.privacy import noise
from sfumato.privacy.accounting import delta_of_gaussian


@pytest.fixture(scope="module")
def draws() -> np.ndarray:
    return noise.discrete_gaussian(40_000, 1000.0)


def verdict(sample: np.ndarray, std: float) -> bool:
    """Whether `sample` passes as N(0, std²): Kolmogorov-Smirnov and a two-sided test of the variance, at 1e-6 each."""
    variance = float(np.sum((sample / std) ** 2))
    tail = 2 * min(stats.chi2.cdf(variance, len(sample)), stats.chi2.sf(variance, len(sample)))
    return stats.kstest(sample / std, "norm").pvalue > 1e-6 and tail > 1e-6


def test_both_gaussians_have_their_scale_and_no_other(draws):
    for sample, std in ((draws, 1000.0), (noise.FastGaussian()((40_000,), 0.37), 0.37)):
        assert verdict(sample, std)
        for wrong in (0.95, 1.05, 0.5, 2.0):
            assert not verdict(sample, std * wrong)


def test_small_scales_follow_the_discrete_law_exactly():
    scale, sample = 0.8, noise.discrete_gaussian(40_000, 0.8)
    support = np.arange(-2, 3)  # every cell has hundreds of draws
    weights = np.exp(-(support**2) / (2 * scale**2))
    observed = np.array([(sample == z).sum() for z in support])
    expected = weights / weights.sum() * observed.sum()
    assert stats.chisquare(observed, expected).pvalue > 1e-6
    rounded = np.diff(
        stats.norm.cdf(np.append(support, 3) - 0.5, scale=scale)
    )  # a rounded Gaussian is another law
    assert stats.chisquare(observed, rounded / rounded.sum() * observed.sum()).pvalue < 1e-6


def test_no_two_calls_and_no_two_chunks_repeat(draws):
    assert not np.array_equal(draws[:8192], draws[8192:16384])
    assert not np.array_equal(noise.discrete_gaussian(64, 1e6), noise.discrete_gaussian(64, 1e6))
    assert not np.array_equal(noise.FastGaussian()((64,), 1.0), noise.FastGaussian()((64,), 1.0))


def test_large_scales_do_not_saturate():
    sample = noise.discrete_gaussian(4000, 2.0**45)
    assert verdict(sample.astype(np.float64), 2.0**45)


def test_no_sampler_takes_or_keeps_a_seed():
    for name, value in inspect.getmembers(noise, inspect.isfunction):
        assert "seed" not in inspect.signature(value).parameters, name
    assert "seed" not in inspect.signature(noise.FastGaussian.__init__).parameters


@pytest.mark.parametrize("rate", [0.003, 0.1, 0.77])
def test_poisson_masks_have_their_rate_and_vary_in_size(rate):
    count = 20_000
    sizes = np.array([noise.poisson_mask(count, rate).sum() for _ in range(60)])
    z = (sizes.mean() - count * rate) / math.sqrt(count * rate * (1 - rate) / len(sizes))
    assert abs(z) < 5
    # A fixed-size sample would have no spread at all: Poisson sampling is what the accountant assumes.
    spread = sizes.var(ddof=1) / (count * rate * (1 - rate))
    assert 0.4 < spread < 2.0


def test_every_record_has_its_own_coin():
    masks = np.stack([noise.poisson_mask(40, 0.5) for _ in range(3000)]).astype(float)
    correlation = np.corrcoef(masks.T) - np.eye(40)
    assert np.abs(correlation).max() < 0.12
    assert noise.poisson_mask(5, 1.0).all()


def test_on_a_fine_grid_the_discrete_gaussian_costs_what_the_gaussian_costs():
    # Exact δ of the discrete mechanism at scale s units and shift s·μ: the difference to the closed form falls with s.
    mu, epsilon = 0.5, 1.0
    gaps = []
    for scale in (16, 128, 1024):
        shift = round(mu * scale)
        z = np.arange(-12 * scale, 12 * scale + 1)
        weight = np.exp(-(z.astype(float) ** 2) / (2 * scale**2))
        p = weight / weight.sum()
        q = np.concatenate(
            [np.zeros(shift), p[:-shift]]
        )  # the neighbour's output, moved by the shift
        delta = np.maximum(0, q - math.exp(epsilon) * p).sum()
        gaps.append(abs(delta / delta_of_gaussian(shift / scale, epsilon) - 1))
    assert gaps[0] < 1e-2
    assert gaps[2] < gaps[0] / 100
    # The wall's grid puts at least 2¹⁸ units into one bound.
    assert gaps[2] < 1e-5


def test_the_key_of_the_fast_generator_is_all_of_128_bits_from_the_operating_system(monkeypatch):
    asked: list[int] = []
    real = os.urandom

    def counted(size: int) -> bytes:
        asked.append(size)
        return real(size)

    monkeypatch.setattr(os, "urandom", counted)
    keys = [noise.FastGaussian()._generator.bit_generator.state["state"]["key"] for _ in range(3)]
    assert asked == [16] * 3
    assert len({tuple(key) for key in keys}) == 3
    # Nothing is mixed away: the key is the entropy itself.
    monkeypatch.setattr(os, "urandom", lambda size: bytes(range(size)))
    key = noise.FastGaussian()._generator.bit_generator.state["state"]["key"]
    assert key.tobytes() == bytes(range(16))
