"""Pixels keeps the contract that every method keeps, and draws what it was shown."""

import numpy as np
import pytest
from sfumato_pixels.pixels import Pixels

from sfumato.data import Dataset
from sfumato.privacy import Budget
from sfumato.testing.methods import CHECKS, cases_of


@pytest.mark.parametrize("check", CHECKS)
def test_the_contract(check):
    for case in cases_of(Pixels):
        CHECKS[check](case)


def test_samples_have_the_mean_and_the_variance_of_their_class():
    rng, labels = np.random.default_rng(0), np.arange(4_000) % 2
    centre = np.where(labels == 0, 80, 160)[:, None, None]
    images = np.clip(rng.normal(centre, 20, (4_000, 4, 4)), 0, 255).astype(np.uint8)
    data = Dataset.from_arrays(images, labels, classes=2)
    made = Pixels().fit(data, Budget(epsilon=10.0, delta=1e-5)).sample(labels=labels, seed=0)
    for c, mean in enumerate((80, 160)):
        pixels = made.images[labels == c].astype(float)
        # Noise of ε = 10 on 2,000 records of 16 pixels: some 0.3 gray levels a mean, some 3 a deviation.
        assert np.abs(pixels.mean(axis=0) - mean).mean() < 5
        assert abs(pixels.std(axis=0).mean() - 20) < 10
