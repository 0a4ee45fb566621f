"""Training on another device: every tensor goes along, and no number changes but by what the device computes.

There is no GPU to test on. torch's `meta` device, which has shapes and no numbers, refuses what is left behind; on a device that
only pretends to be one (`pretend`) whole fits run, and the wall is tried with what a bad one would compute.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pretend
import sfumato
from data import digits, shop, stripes
from sfumato.data import Batch, Dataset
from sfumato.engines import LocalEngine
from sfumato.errors import BadInput
from sfumato.generators import devices
from sfumato.generators.devices import DEVICES, device_of, moved
from sfumato.generators.training import Training
from sfumato.methods import Method, find_methods
from sfumato.methods.distances import EmbeddingDistance
from sfumato.methods.matched import MatchedImages
from sfumato.methods.parts import Trained
from sfumato.privacy import PrivateData
from sfumato.privacy.gradients import GradientSum
from sfumato.privacy.groups import GroupSum

TRAINED = [n for n, cls in find_methods().items() if issubclass(cls, Trained)]
MATCHED = [n for n, cls in find_methods().items() if issubclass(cls, MatchedImages)]
META = torch.device("meta")


class Done(Exception):
    """Enough was seen."""


def tiny(name: str, **more) -> MatchedImages:
    cls = find_methods()[name]
    return cls(**{**cls.TINY, **more})


def test_whatever_trains_has_the_setting():
    without = set(find_methods()) - set(TRAINED)
    assert without == {"evolve", "mge", "mixture", "privbayes"}  # which train no network
    for name in TRAINED:
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
    monkeypatch.setattr("sfumato.methods.parts.device_of", lambda _: META)
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
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(devices.torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(devices.torch.backends.mps, "is_available", lambda: mps)
    assert device_of("auto").type == auto and device_of("cpu").type == "cpu"
    for name, there in (("cuda", cuda), ("mps", mps)):
        if there:
            assert device_of(name).type == name
        else:
            with pytest.raises(BadInput, match="device=auto"):
                device_of(name)
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == cuda


def test_auto_fits_and_samples():
    model = sfumato.Merf(**{**sfumato.Merf.TINY, "device": "auto"}).fit(
        digits(40), epsilon=3, delta=1e-5
    )
    assert next(model.generator_.parameters()).device.type == "cpu"
    assert np.isfinite(model.loss_) and len(model.sample(5)) == 5


def test_a_device_that_is_not_there_is_refused_before_anything_is_paid(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("merf", "gan"):
        with pytest.raises(BadInput, match="device=auto"):
            tiny(name, device="cuda").fit(digits(40), epsilon=3, delta=1e-5, out=tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_workers_of_a_cluster_have_no_part_in_a_device(monkeypatch):
    monkeypatch.setattr("sfumato.methods.parts.device_of", lambda _: META)

    engine: Any = type("Cluster", (), dict(vars(LocalEngine)))()
    with pytest.raises(BadInput, match="engine=local"):
        tiny("gan").fit(digits(40), epsilon=3, delta=1e-5, engine=engine)


# -- whole fits on a device that pretends to be one --------------------------------------------------------------------------


@pytest.fixture
def same_draws(monkeypatch) -> Callable[[], None]:
    """After a call of it, the wall draws the same noise and samples as after any other."""

    def start() -> None:
        coins, noise = np.random.default_rng(5), np.random.default_rng(6)

        def drawn(count: int, scale: float, *_: Any) -> Any:
            return np.rint(noise.standard_normal(count) * scale).astype(np.int64)

        monkeypatch.setattr(os, "urandom", coins.bytes)
        monkeypatch.setitem(PrivateData.__init__.__kwdefaults__, "discrete_sampler", drawn)

    return start


def values_of(model: Method) -> Tensor:
    if model.info.makes != "records":
        return model.model_.weights  # type: ignore[attr-defined]
    made = next(iter(model.sample(20, seed=3).batches(20))).values
    return made.to(torch.float64)


def unlabelled(n: int) -> Dataset:
    return Dataset.from_arrays(digits(n).images)


QUICK = [("gan", {}, digits), ("llm", {}, shop), ("sinkhorn", {}, digits)]
SLOW: list[tuple[str, dict[str, Any], Callable[[int], Dataset]]] = [
    *((name, {}, digits) for name in TRAINED if name not in ("gan", "sinkhorn")),
    *(
        (n, {}, unlabelled)
        for n in ("gan", "gan-mi", "gs-wgan", "sinkhorn", "dpaf", "diffusion", "dre")
    ),
    *((n, {}, shop) for n in ("merf", "hp", "pearl")),
    ("dpaf", {"paper_variant": True}, digits),
    ("gs-wgan", {"critic_steps": 2}, digits),
    ("mepf", {"encoder": "private", "encoder_steps": 2}, digits),
    ("mepf", {"stop": True}, digits),
    ("mepf", {"loss": "moving-average"}, unlabelled),
    ("merf", {"network": "classed"}, digits),
    ("diffusion", {"base": "none"}, digits),
]


@pytest.mark.parametrize(
    "double",
    [
        pytest.param(True, id="double"),  # cuda
        pytest.param(False, id="single", marks=pytest.mark.slow),  # mps
    ],
)
@pytest.mark.parametrize(
    ("name", "settings", "make"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_a_fit_there_ends_with_the_numbers_that_it_has_here(
    name, settings, make, double, same_draws, monkeypatch
):
    given: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "allow_empty": True}
    if find_methods()[name].info.public == "required":
        given["public"] = stripes(100)
    if name == "transport":
        given["epsilon"] = 1e4  # else so few records show no textures, and nothing is trained
    digits_of = {"cpu": torch.float64, "pretend": torch.float64 if double else torch.float32}
    for place in ("sfumato.generators.devices", "sfumato.methods.sinkhorn"):
        monkeypatch.setattr(f"{place}.precise", lambda device: digits_of[device.type])
    same_draws()
    here = values_of(tiny(name, **settings).fit(make(60), **given))
    with pretend.pretended(double=double) as device:
        monkeypatch.setattr("sfumato.methods.parts.device_of", lambda _: device)
        pretend.OPERATIONS.clear()
        same_draws()
        model = tiny(name, **settings).fit(make(60), **given)
    assert sum(pretend.OPERATIONS.values()) > 100  # something was computed there
    there = values_of(model)
    # Of images, one gray level: strides of memory may change the last digit of a product.
    off = 1.0 if model.schema_.kind == "images" and model.info.makes == "records" else 1e-5
    torch.testing.assert_close(there, here, rtol=0, atol=off, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gan", "llm", "dpaf", "sinkhorn"])
def test_a_fit_that_was_interrupted_there_goes_on_there(name, tmp_path, monkeypatch):
    written, saves = Training._save, iter(range(9))

    def interrupted(self: Training, step: int) -> None:
        written(self, step)
        if next(saves) == 3:
            raise KeyboardInterrupt

    given: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "out": tmp_path / "run"}
    monkeypatch.setattr("sfumato.generators.training.CHECKPOINT_SECONDS", 0.0)
    with pretend.pretended() as device:
        monkeypatch.setattr("sfumato.methods.parts.device_of", lambda _: device)
        with monkeypatch.context() as only:
            only.setattr(Training, "_save", interrupted)
            with pytest.raises(KeyboardInterrupt):
                tiny(name).fit(digits(60), **given)
        tiny(name).fit(digits(60), resume=True, **given)
    assert sfumato.load_run(tmp_path / "run").statement_.epsilon <= 3


# -- the wall and a device that cannot be trusted ---------------------------------------------------------------------------


class Classifier(nn.Sequential):
    """A layer whose gradients are formed, and one whose gradients are products."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 10)
        )


def mistaken(network: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> Tensor:
    return 30 * functional.cross_entropy(network(images), labels, reduction="none")


def shorter(found: Tensor) -> Tensor:
    """Eight digits, as a GPU may take for products."""
    return found.to(torch.bfloat16).to(found.dtype)


def larger(found: Tensor) -> Tensor:
    return found * 1e6


def endless(found: Tensor) -> Tensor:
    return found / 0


def by_place(found: Tensor) -> Tensor:
    """Other last digits in other places of a batch."""
    return found * (1 + 1e-6 * torch.arange(len(found)).view(-1, *[1] * (found.ndim - 1)))


def each_time(found: Tensor) -> Tensor:
    """Other last digits each time."""
    return found * (1 + 1e-5 * torch.rand(()))


def some(batch: Batch, rows: slice) -> Batch:
    assert batch.labels is not None
    return Batch(batch.values[rows], batch.labels[rows])


@pytest.mark.parametrize(
    ("wrong", "vmapped"),
    [
        *(
            (wrong, vmapped)
            for wrong in (None, shorter, larger, endless)
            for vmapped in (False, True)
        ),
        (by_place, False),
        pytest.param(by_place, True, marks=pytest.mark.slow),
    ],
)
def test_a_record_moves_the_sum_by_no_more_than_its_bound_whatever_a_device_computes(
    wrong, vmapped
):
    torch.manual_seed(0)
    n = 5 if wrong is by_place else 66  # more than a micro-batch, which is a single record there
    data = digits(n)
    batch = next(iter(data.batches(n)))
    here = Classifier()
    plain = GradientSum(here, mistaken, bound=1.0)
    plain.check(data.schema)
    wanted = plain(batch)
    with pretend.pretended(wrong=wrong) as device:
        there = Classifier().to(device)
        there.load_state_dict(here.state_dict())
        summed = GradientSum(there, mistaken, bound=1.0)
        summed._fast = summed._fast and not vmapped
        if wrong is not endless:  # of which nothing is left to compare
            summed.check(data.schema)
        found, one_less = summed(batch), summed(some(batch, slice(0, n - 1)))
        alone = [summed(some(batch, slice(i, i + 1))) for i in (0, n - 2, n - 1)]
    assert found.device.type == "cpu" and found.isfinite().all()
    assert torch.equal(found - one_less, alone[2])
    assert all(float(one.norm()) <= summed.enforced for one in alone)
    assert summed._rows == (1 if wrong is by_place else plain._rows)
    if wrong is None and not vmapped:
        assert torch.equal(found, wanted)


def test_a_device_with_other_numbers_each_time_is_refused():
    torch.manual_seed(0)
    with pretend.pretended(wrong=each_time) as device:
        summed = GradientSum(Classifier().to(device), mistaken, bound=1.0)
        with pytest.raises(BadInput, match="cannot be computed"):
            summed.check(digits(5).schema)


def test_a_network_on_two_devices_or_moved_on_the_way_is_refused():
    network = Classifier()
    summed = GradientSum(network, mistaken, bound=1.0)
    with pretend.pretended() as device:
        network[3].to(device)
        with pytest.raises(BadInput, match="several devices"):
            GradientSum(network, mistaken, bound=1.0)
        network.to(device)
        with pytest.raises(BadInput, match="moved"):
            summed(next(iter(digits(5).batches(5))))


def test_what_a_device_answers_of_a_group_is_clipped_here():
    batch = next(iter(digits(20).batches(20)))
    with pretend.pretended(wrong=larger) as device:

        def answer(group: Batch) -> Tensor:
            images = group.pixels().flatten(1).to(device)
            return (images.T @ images).flatten()

        found = GroupSum(answer, dim=64 * 64, bound=2.0)
        value = found(batch).to(torch.float64) * found.grid
    assert value.device.type == "cpu" and 1.99 < float(value.norm()) <= found.enforced
