"""DP-MGE: its sensitivity by a second route, its reading of the release, and the trap of its claim."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pictures import halves
from plans import plan_of
from sfumato.data import Batch, Dataset
from sfumato.errors import BadInput
from sfumato.methods import Mge
from sfumato.methods.mge import DiagonalMoments, OuterMoments, square_bound
from sfumato.methods.moments import onto_simplex, shrunk
from sfumato.privacy import (
    BoundedSum,
    Budget,
    Charge,
    Ledger,
    Neighbours,
    OuterMap,
    OuterSum,
    PrivateData,
    calibrate,
    charge_of,
    enforced_bound,
    epsilon_of,
)
from sfumato.privacy.gate import _map_of
from sfumato.public.autoencoder import AutoencoderCodec
from sfumato.public.codec import Codec, Facts
from sfumato.public.linear import DctCodec

SHAPE = (1, 8, 8)
BUDGET = Budget(epsilon=2.0, delta=1e-5)
RATIOS = {"diagonal": 2.0, "full": math.sqrt(2), "low-rank": math.sqrt(2)}


def silent(size: int, scale: float, report: object = None) -> np.ndarray:
    return np.zeros(size, dtype=np.int64)


def map_of(kind: type[DiagonalMoments | OuterMoments], codec: Codec, classes: int):
    return _map_of(kind.query(codec.facts, classes), kind(codec))


def read_exactly(kind: type[DiagonalMoments | OuterMoments], codec: Codec, data: Dataset):
    private = PrivateData(data, Ledger(BUDGET), discrete_sampler=silent)
    found = kind(codec).read(private.noisy_sum(map_of(kind, codec, 2), 10.0, label="x"))
    return replace(found, noise=(0.0, 0.0, 0.0))  # none was drawn, so none is to be reckoned with


# -- the trap ----------------------------------------------------------------------------------------------------------


def test_two_releases_each_calibrated_to_epsilon_cost_half_as_much_again():
    """The paper's Claim 1 calibrates mean and variance each to (ε, δ) and calls the pair (ε, δ)."""

    def one(m: float) -> tuple[Charge, ...]:
        return (Charge(label="mean", bound=1.0, noise_multiplier=m),)

    budget = Budget(epsilon=1.0, delta=1e-5)
    m = calibrate(one, budget)
    pair = (*one(m), Charge(label="variance", bound=1.0, noise_multiplier=m))
    claimed = epsilon_of(one(m), 1e-5, Neighbours.ZERO_OUT)
    spent = epsilon_of(pair, 1e-5, Neighbours.ZERO_OUT)
    assert claimed == pytest.approx(1.0, abs=1e-6)
    assert spent == pytest.approx(1.47, abs=0.005)


@pytest.mark.parametrize("covariance", RATIOS)
def test_mean_variance_and_counts_are_one_release_priced_by_what_the_wall_enforces(covariance):
    (charge,) = plan_of(Mge(covariance=covariance), halves(4).schema, 1.0)
    assert charge.replace_ratio == RATIOS[covariance]


# -- sensitivity -------------------------------------------------------------------------------------------------------


def adversarial(codec) -> torch.Tensor:
    """Pictures far apart, near each other, opposite, flat and of one pixel."""
    torch.manual_seed(0)
    noise = torch.rand(12, *SHAPE)
    spikes = torch.eye(64)[:6].view(6, *SHAPE)
    waves = codec.decode(torch.eye(codec.dim)[:6] * 3)
    flat = torch.stack([torch.zeros(SHAPE), torch.ones(SHAPE)])
    return torch.cat(
        [noise, noise.round(), 1 - noise.round(), spikes, 1 - spikes, waves, 1 - waves, flat]
    )


def maps():
    dct = DctCodec(SHAPE)
    unit = AutoencoderCodec.untrained(SHAPE, 16, 8, seed=0)
    return {
        f"{kind.__name__} {codec.kind}": (map_of(kind, codec, 3), codec)
        for codec in (dct, unit)
        for kind in (DiagonalMoments, OuterMoments)
    }


@pytest.mark.parametrize("name", maps())
def test_no_record_and_no_exchange_of_records_moves_the_sum_further_than_charged(name):
    phi, codec = maps()[name]
    pixels = adversarial(codec)
    rows = []
    for label in (0, 1):
        batch = Batch(pixels, torch.full((len(pixels),), label))
        if isinstance(phi, OuterMap):
            summed = OuterSum(phi)
            left, right = summed.units(batch)
            row = (left[:, :, None] * right[:, None, :]).flatten(1)
        else:
            summed = BoundedSum(phi)
            row = summed.rows(batch).double()
        placed = torch.zeros(len(row), 3, phi.dim, dtype=torch.float64)
        placed[:, label] = row * summed.grid
        rows.append(placed.flatten(1))
    joint = torch.cat(rows)
    assert (joint.norm(dim=1) <= enforced_bound(phi)).all()
    assert joint.norm(dim=1).max() > 0.8  # the bound is not slack either
    furthest = torch.cdist(joint, joint).max()
    charge = charge_of(phi, 1.0, label="x")
    assert furthest <= charge.sensitivity(Neighbours.REPLACE_ONE) * (1 + 1e-6)
    if isinstance(phi, OuterMap):
        assert charge.sensitivity(Neighbours.REPLACE_ONE) < 1.49  # not 2


def test_squares_of_a_spread_out_codec_are_released_on_a_finer_scale():
    facts = Facts(kind="x", shape=SHAPE, dim=64, bound=1.0, unit=True)
    assert square_bound(facts) == pytest.approx(3 / 8)
    free = Facts(kind="x", shape=SHAPE, dim=64, bound=1.0, unit=False)
    assert square_bound(free) == 1.0


# -- reading -----------------------------------------------------------------------------------------------------------


def test_without_noise_the_release_gives_the_moments_of_every_class():
    data, codec = halves(), DctCodec(SHAPE)
    vectors = codec.encode(Batch(torch.from_numpy(data.images), None)).double()
    diagonal, outer = (read_exactly(kind, codec, data) for kind in (DiagonalMoments, OuterMoments))
    for c in (0, 1):
        ours = vectors[torch.from_numpy(data.labels) == c]
        for reading in (diagonal, outer):
            assert torch.allclose(reading.means()[c], ours.mean(dim=0), atol=1e-4)
            assert float(reading.counts[c]) == pytest.approx(len(ours), rel=1e-4)
        std = diagonal.roots(False, None)[c]
        assert torch.allclose(std.square(), ours.var(dim=0), atol=1e-4)
        root = outer.roots(False, None)[c]
        assert torch.allclose(root @ root.T, torch.cov(ours.T), atol=1e-4)


def test_a_low_rank_covariance_keeps_the_trace_and_the_largest_directions():
    data, codec = halves(), DctCodec(SHAPE)
    outer = read_exactly(OuterMoments, codec, data)
    full, low = outer.roots(False, None), outer.roots(False, 2)
    for a, b in zip(full, low, strict=True):
        assert float((a**2).sum()) == pytest.approx(float((b**2).sum()), rel=1e-6)
        values = torch.linalg.eigvalsh(b @ b.T)
        assert torch.allclose(values[:-2], values[:-2].mean().expand(62), atol=1e-9)
        assert torch.allclose(values[-1], torch.linalg.eigvalsh(a @ a.T)[-1], atol=1e-9)


def test_projection_onto_the_simplex_is_the_nearest_point():
    torch.manual_seed(0)
    for _ in range(20):
        values = torch.randn(9, dtype=torch.float64)
        nearest = onto_simplex(values, 1.3)
        assert (nearest >= 0).all()
        assert float(nearest.sum()) == pytest.approx(1.3)
        others = (
            torch.distributions.Dirichlet(torch.ones(9, dtype=torch.float64)).sample((500,)) * 1.3
        )
        gap = (nearest - values).norm()
        assert ((others - values).norm(dim=1) >= gap - 1e-12).all()
    assert torch.equal(onto_simplex(torch.tensor([-1.0, -2.0]), -3.0), torch.zeros(2))


def test_shrinking_beats_not_shrinking_when_noise_is_large_and_does_nothing_when_there_is_none():
    torch.manual_seed(0)
    truth = torch.randn(5, 40, dtype=torch.float64) * 0.1
    weights = torch.full((5,), 0.2, dtype=torch.float64)
    noisy = truth + torch.randn(5, 40, dtype=torch.float64)
    better = shrunk(noisy, weights, torch.ones(5, dtype=torch.float64))
    assert (better - truth).norm() < 0.7 * (noisy - truth).norm()
    still = shrunk(truth, weights, torch.zeros(5, dtype=torch.float64))
    assert torch.allclose(still, truth)


# -- the method --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance", RATIOS)
def test_samples_follow_their_classes(covariance):
    method = Mge(covariance=covariance, rank=4, grain=0.0)
    sample = method.fit(halves(4000), Budget(epsilon=20.0, delta=1e-5)).sample(400, seed=0)
    pixels = sample.images / 255
    first, second = (pixels[sample.labels == c].mean(axis=(0, 1)) for c in (0, 1))
    assert first[:, :4].mean() - first[:, 4:].mean() == pytest.approx(0.3, abs=0.05)
    assert second[:, 4:].mean() - second[:, :4].mean() == pytest.approx(0.3, abs=0.05)
    bright = pixels[sample.labels == 0][:, 0, :, :4].mean(axis=(1, 2))
    assert bright.std() == pytest.approx(0.08, rel=0.4)


def test_public_data_give_the_components():
    fitted = Mge(codec="pca:4").fit(halves(60), BUDGET, public=halves(200, seed=1))
    assert fitted.codec_.card.trained_on == ("arrays",)
    assert any(r["event"] == "codec" and r["card"]["trained_on"] == ["arrays"] for r in fitted.log_)
    with pytest.raises(BadInput, match="fitted on public data"):
        Mge(codec="pca:4").fit(halves(60), BUDGET)
    with pytest.raises(BadInput, match="no codec called"):
        plan_of(Mge(codec="vae"), halves(4).schema, 1.0)
