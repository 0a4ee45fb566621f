"""Embeddings against the exact kernel, and the loss against a loop."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato.data import Batch, Dataset
from sfumato.errors import BadInput
from sfumato.generators.embedding import CountedByClass, MeanEmbedding
from sfumato.methods.counts import apportion
from sfumato.privacy import Budget, Ledger, Neighbours, PrivateData
from sfumato.public.fourier import FourierFeatures


def gaussian_kernel(x: torch.Tensor, s: float) -> torch.Tensor:
    return torch.exp(-torch.cdist(x.double(), x.double()).square() / (2 * s))


def test_inner_products_of_features_converge_to_the_gaussian_kernel():
    x = torch.rand(20, 1, 6, 6)
    exact = gaussian_kernel(x.flatten(1), 4.0)
    errors = []
    for features in (200, 20_000):
        phi = FourierFeatures(36, features, 4.0, seed=1)(Batch(x, None)).double()
        errors.append(float((phi @ phi.T - exact).abs().max()))
    assert errors[1] < 0.03
    assert errors[1] < errors[0] / 3  # the error falls as one over the root of their number
    # Another length scale is another kernel: the check can fail.
    wrong = gaussian_kernel(x.flatten(1), 8.0)
    assert float((phi @ phi.T - wrong).abs().max()) > 0.1
    # One, not up to the root of two.
    assert torch.allclose(phi.norm(dim=1), torch.ones(20).double(), atol=1e-5)


@pytest.mark.parametrize(
    ("features", "scale"), [(3, 1.0), (0, 1.0), (10, 0.0), (10, math.nan), (10, -1.0)]
)
def test_senseless_features_are_refused(features, scale):
    with pytest.raises(BadInput):
        FourierFeatures(4, features, scale, seed=0)


def released(
    labels: np.ndarray, neighbours: Neighbours = Neighbours.ZERO_OUT, *, noise: bool = False
):
    n = len(labels)
    pixels = np.random.default_rng(0).integers(0, 256, (n, 1, 4, 4), dtype=np.uint8)
    data = Dataset.from_arrays(pixels, labels, classes=3)
    phi = CountedByClass(FourierFeatures(16, 40, 3.0, seed=0), 3)

    def silent(count, scale, on_fraction=None):
        return np.zeros(count, dtype=np.int64)

    more = {} if noise else {"discrete_sampler": silent}
    private = PrivateData(
        data, Ledger(Budget(epsilon=5.0, delta=1e-5, neighbours=neighbours)), **more
    )
    release = private.noisy_sum(phi, 4.0, label="e")
    return data, phi, MeanEmbedding.of(release, phi, size=private.public_size)


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_without_noise_the_release_is_the_class_means_and_shares(neighbours):
    labels = np.repeat([0, 1, 2], [300, 150, 50])
    data, phi, embedding = released(labels, neighbours)
    rows = phi.phi(data.take(np.arange(len(data))))
    for c in range(3):
        assert torch.allclose(embedding.mean[c], rows[labels == c].sum(dim=0) / 500, atol=2e-4)
    assert torch.allclose(embedding.shares, torch.tensor([0.6, 0.3, 0.1]), atol=0.11)


def test_the_loss_is_the_squared_mmd_by_a_loop_over_pairs():
    labels = np.repeat([0, 1, 2], [300, 150, 50])
    _data, phi, embedding = released(labels)
    embedding = MeanEmbedding(embedding.mean, torch.tensor([0.5, 0.3, 0.2]), 0.0)
    generated = torch.rand(3, 5, 1, 4, 4)
    features = torch.stack([phi.phi(Batch(g, None)) for g in generated]).double()
    expected = 0.0
    for rows, mean, weight in zip(features, embedding.mean.double(), embedding.shares, strict=True):
        pairs = sum(float(rows[i] @ rows[j]) for i in range(5) for j in range(5) if i != j) / 20
        cross = float(rows.mean(dim=0) @ mean)
        expected += float(weight**2 * pairs - 2 * weight * cross + mean.square().sum())
    found = embedding.mmd2(features.sum(dim=1).float(), 5, 1.0, slice(None))
    assert float(found) == pytest.approx(expected, abs=1e-5)


def test_the_loss_of_the_truth_is_zero_on_average_and_of_a_lie_is_not():
    rng = torch.Generator().manual_seed(0)
    pool = torch.rand(4000, 1, 4, 4, generator=rng)
    phi = FourierFeatures(16, 200, 1.0, seed=0)
    features = phi(Batch(pool, None)).double()
    embedding = MeanEmbedding(features.mean(dim=0, keepdim=True).float(), torch.ones(1), 0.0)

    def loss(eight: torch.Tensor) -> float:
        return float(embedding.mmd2(eight.sum(dim=0)[None].float(), 8, 1.0, slice(None)))

    draws = [loss(features[torch.randint(4000, (8,), generator=rng)]) for _ in range(400)]
    spread = np.std(draws) / 20
    # A biased estimate would sit near (1 − ‖μ‖²)/8 = 0.1 instead.
    assert abs(np.mean(draws)) < 5 * spread
    assert spread < 0.01
    assert loss(phi(Batch(pool[:8] * 0, None))) > 0.2


def test_the_noise_of_the_mean_is_the_noise_of_the_sum_over_n():
    labels = np.arange(500) % 3
    _, _, embedding = released(labels, noise=True)
    _, _, exact = released(labels)
    difference = (embedding.mean - exact.mean).std()
    assert float(difference) == pytest.approx(embedding.noise_std, rel=0.35)


def test_apportioning_keeps_proportions_exactly_and_every_record():
    generator = torch.Generator().manual_seed(0)
    labels = apportion(torch.tensor([0.5, 0.25, 0.25, 0.0]), 10, generator)
    assert np.bincount(labels, minlength=4).tolist() in ([5, 3, 2, 0], [5, 2, 3, 0])
    assert len(apportion(torch.tensor([1 / 3] * 3), 100, generator)) == 100


def test_self_pairs_are_those_of_a_record_with_itself():
    """With them the distance is the plain squared one of the means; without them it is less by known terms."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(2, 5, 8, generator=draw), dim=2)
    mean = torch.randn(2, 8, generator=draw)
    plain = MeanEmbedding(mean=mean, shares=torch.tensor([0.3, 0.7]), noise_std=0.0)
    paired = replace(plain, self_pairs=True)
    sums = rows.sum(dim=1)
    wanted = sum(
        float((mean[k] - plain.shares[k] * rows[k].mean(dim=0)).square().sum()) for k in range(2)
    )
    assert float(paired.mmd2(sums, 5, 1.0, slice(None))) == pytest.approx(wanted, rel=1e-5)
    assert float(plain.mmd2(sums, 5, 1.0, slice(None))) < wanted
