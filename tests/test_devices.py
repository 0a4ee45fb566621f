"""Free training on another device: every tensor goes along, and nothing but the last digits may change.

There is no GPU to test on; torch's `meta` device, which has shapes and no numbers, refuses what is left behind.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import sfumato
from data import digits, shop
from sfumato.errors import BadInput
from sfumato.generators import devices
from sfumato.generators.devices import DEVICES, device_of, moved
from sfumato.methods import find_methods
from sfumato.methods.distances import EmbeddingDistance
from sfumato.methods.matched import MatchedImages

MATCHED = [n for n, cls in find_methods().items() if issubclass(cls, MatchedImages)]
META = torch.device("meta")


class Done(Exception):
    """Enough was seen."""


def tiny(name: str, **more) -> MatchedImages:
    cls = find_methods()[name]
    return cls(**{**cls.TINY, **more})


def test_the_kind_has_the_setting_and_it_comes_after_the_releases():
    assert {"merf", "hp", "mepf"} <= set(MATCHED)
    for name in MATCHED:
        (found,) = (s for s in find_methods()[name].settings() if s.name == "device")
        assert found.free and found.choices == DEVICES and found.default == "cpu"


@pytest.mark.parametrize(
    "name", [n for n in MATCHED if n != "mepf"]
)  # whose distance is a module, and moves itself
@pytest.mark.parametrize(
    ("make", "network"),
    # `classed` looks labels up, which have no values here.
    [(lambda: digits(60), "conv"), (lambda: digits(60), "dense"), (lambda: shop(60), "dense")],
)
def test_loss_and_gradient_are_computed_where_the_generator_is(name, make, network, monkeypatch):
    seen = []

    def instead(trained, loss, run, **_):
        if isinstance(trained, nn.Module) and next(trained.parameters()).device == META:
            seen.append(trained)
            for step in range(3):
                value = loss(step, torch.Generator().manual_seed(0))
                assert value.device == META
                value.backward()
            assert all(p.grad is None or p.grad.device == META for p in trained.parameters())
        raise Done

    monkeypatch.setattr("sfumato.methods.matched.minimise", instead)
    monkeypatch.setattr("sfumato.methods.matched.device_of", lambda _: META)
    with pytest.raises(Done):
        tiny(name, network=network).fit(make(), epsilon=3, delta=1e-5, allow_empty=True)
    assert len(seen) == 1


@pytest.mark.parametrize("name", [n for n in MATCHED if n != "mepf"])
def test_moving_changes_no_number(name, monkeypatch):
    """To the processor itself, by the same copies that a GPU would be given."""
    data, given = digits(60), {"epsilon": 3.0, "delta": 1e-5}
    built: list[EmbeddingDistance] = []
    cls = find_methods()[name]
    plain = cls.distance
    monkeypatch.setattr(cls, "distance", lambda self, n: built.append(plain(self, n)) or built[-1])
    tiny(name).fit(data, **given)
    (distance,) = built

    def told() -> list[float]:
        with torch.no_grad():
            losses = [distance.loss(s, torch.Generator().manual_seed(1)) for s in range(3)]
            final = distance.final(torch.Generator().manual_seed(1), 40)
        return [float(loss) for loss in losses] + [final]

    before, network = told(), distance.network
    distance = moved(distance, torch.device("cpu"))
    assert told() == before and distance.network is network


def test_what_is_moved_is_all_of_it_and_the_original_stays():
    class Held:
        def __init__(self):
            self.parts = [torch.ones(2), {"a": (torch.zeros(3), "text")}]
            self.number = 4

    Held.__module__ = "sfumato.example"
    held = Held()
    there = moved(held, META)
    assert there.parts[0].device == META and there.parts[1]["a"][0].device == META
    assert there.parts[1]["a"][1] == "text" and there.number == 4
    assert held.parts[0].device.type == "cpu" and held.parts[1]["a"][0].device.type == "cpu"


@pytest.mark.parametrize(
    ("cuda", "mps", "auto"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")]
)
def test_auto_takes_the_best_there_is_and_others_are_refused_where_they_are_not(
    monkeypatch, cuda, mps, auto
):
    monkeypatch.setattr(devices.torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(devices.torch.backends.mps, "is_available", lambda: mps)
    assert device_of("auto").type == auto and device_of("cpu").type == "cpu"
    for name, there in (("cuda", cuda), ("mps", mps)):
        if there:
            assert device_of(name).type == name
        else:
            with pytest.raises(BadInput, match="device=auto"):
                device_of(name)


def test_auto_fits_and_samples():
    model = sfumato.Merf(**{**sfumato.Merf.TINY, "device": "auto"}).fit(
        digits(40), epsilon=3, delta=1e-5
    )
    assert next(model.generator_.parameters()).device.type == "cpu"
    assert np.isfinite(model.loss_) and len(model.sample(5)) == 5
