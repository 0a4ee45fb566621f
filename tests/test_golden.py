"""The methods promise and sample what is pinned in `tests/golden`; see `golden.py`."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

import golden
from sfumato.privacy import PrivateData, gradients, noise


@pytest.mark.parametrize("method", golden.methods())
def test_the_charges_of_a_method_are_those_pinned(method):
    pinned = golden.known(golden.CHARGES)
    found = {
        str(one): golden.differences(one.made(), pinned[str(one)])
        for one in golden.promises(method)
    }
    assert {name: other for name, other in found.items() if other} == {}


@pytest.mark.parametrize("fit", golden.FITS, ids=str)
def test_the_samples_of_a_fit_with_a_fixed_wall_are_those_pinned(fit):
    with golden.fixed_wall():
        made = fit.made()
    assert golden.far(made, golden.known(golden.SAMPLES)[str(fit)]) == []


def test_every_method_is_pinned_and_nothing_else():
    assert {fit.method for fit in golden.FITS} == set(golden.methods()) == set(golden.VARIANTS)
    every = [str(one) for method in golden.methods() for one in golden.promises(method)]
    assert list(golden.known(golden.CHARGES)) == every
    assert list(golden.known(golden.SAMPLES)) == [str(fit) for fit in golden.FITS]


def test_the_wall_has_chance_again_afterwards():
    def parts():
        default = PrivateData.__init__.__kwdefaults__["discrete_sampler"]
        names = ("discrete_gaussian", "FastGaussian", "poisson_mask", "random_parts")
        return [default, *(getattr(noise, name) for name in names), gradients.os]

    before, threads, state = parts(), torch.get_num_threads(), torch.get_rng_state()
    with contextlib.suppress(KeyError), golden.fixed_wall():
        assert all(one is not other for one, other in zip(parts(), before, strict=True))
        first = noise.FastGaussian()((3,), 1.0)
        raise KeyError
    assert all(one is other for one, other in zip(parts(), before, strict=True))
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    with golden.fixed_wall():
        assert np.array_equal(noise.FastGaussian()((3,), 2.0), 2 * first)
