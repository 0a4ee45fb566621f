"""The DP-SGD engine: per-record gradients are those of a loop, and no record moves the sum by more than was paid for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from runs import silent
from sfumato.data import Batch, Dataset
from sfumato.errors import BadInput, PlanMismatch
from sfumato.privacy import Budget, GradientSum, Ledger, PrivateData, enforced_gradient_bound
from sfumato.privacy.gradients import records
from test_neighbours_gradients import CASES, IMAGES, SIDE, through


def fresh(name: str = "conv") -> nn.Module:
    torch.manual_seed(1)
    return CASES[name].make()


def two_terms(network, x: Tensor, y: Tensor, fake: Tensor) -> Tensor:
    """A private record and its generated companion."""
    return through(network, x, y) - through(network, fake, y)


def with_companion(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
    return *records(batch, random), torch.rand(len(batch), 1, SIDE, SIDE, generator=random)


def batch_of(n: int, seed: int = 0) -> Batch:
    source = torch.Generator().manual_seed(seed)
    return Batch(torch.rand(n, 1, SIDE, SIDE, generator=source), torch.arange(n) % 3)


def by_loop(network: nn.Module, loss, tensors: tuple[Tensor, ...], bound: float) -> Tensor:
    """(n, dim): each record's gradient, clipped in double precision."""
    rows = []
    for i in range(len(tensors[0])):
        network.zero_grad()
        loss(network, *(t[i : i + 1] for t in tensors)).sum().backward()
        parts = [
            torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in network.parameters()
        ]
        rows.append(torch.cat([p.flatten() for p in parts]).double())
    found = torch.stack(rows)
    return found * (bound / found.norm(dim=1, keepdim=True)).clamp(max=1)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("bound", "rows_at_once"), [(1e-3, 4), (0.05, 5), (1e3, 64)])
def test_the_sum_is_that_of_a_loop_over_records(name, bound, rows_at_once):
    network, loss, batch = fresh(name), CASES[name].loss, batch_of(9)
    gradients = GradientSum(network, loss, bound=bound, rows_at_once=rows_at_once)
    gradients.check(IMAGES)
    assert gradients._fast == CASES[name].fast
    agree(gradients(batch), network, loss, records(batch, None), bound)


def agree(found: Tensor, network: nn.Module, loss, tensors: tuple[Tensor, ...], bound: float):
    expected = by_loop(network, loss, tensors, bound).sum(dim=0)
    assert torch.allclose(found, expected, rtol=2e-3, atol=2e-3 * expected.abs().max())


def test_two_data_terms_are_clipped_as_one_gradient():
    network, batch = fresh(), batch_of(9)
    fakes = torch.rand(9, 1, SIDE, SIDE)

    def with_these(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
        made = torch.zeros(len(batch), 1, SIDE, SIDE)
        made[:9] = fakes[: len(batch)]
        return *records(batch, random), made

    gradients = GradientSum(network, two_terms, bound=0.05, inputs=with_these)
    assert gradients._fast
    agree(gradients(batch), network, two_terms, (*records(batch, None), fakes), 0.05)


@pytest.mark.parametrize(
    "mixing",
    [nn.BatchNorm2d(1), nn.InstanceNorm2d(1, track_running_stats=True), nn.SyncBatchNorm(1)],
)
def test_layers_that_mix_records_are_refused_by_type(mixing):
    network = nn.Sequential(mixing, nn.Flatten(), nn.Linear(SIDE * SIDE, 1))
    with pytest.raises(BadInput, match="mixes records"):
        GradientSum(network, through, bound=1.0)
    GradientSum(
        network.eval(), through, bound=1.0
    )  # with fixed statistics it treats records one by one


class Centred(nn.Module):
    """Mixes records in a way that no list of types knows."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(SIDE * SIDE, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.dense(x - x.mean(dim=0)).squeeze(1)


def test_inputs_that_mix_records_are_refused_by_trial():
    def standardised(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
        x, y = records(batch, random)
        return x / x.max(), y

    with pytest.raises(BadInput, match="another's row"):
        GradientSum(fresh(), through, bound=1.0, inputs=standardised).check(IMAGES)


@pytest.mark.parametrize("loss", [lambda n, x, y: n(x, y).mean(), lambda n, x, y: n(x, y)[:, None]])
def test_a_loss_that_is_not_one_number_per_record_is_refused(loss):
    with pytest.raises(BadInput, match="one number per record"):
        GradientSum(fresh(), loss, bound=1.0).check(IMAGES)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "no known class"])
def test_a_record_that_is_not_finite_or_of_no_class_counts_for_nothing(bad):
    batch = batch_of(6)
    if isinstance(bad, str):
        batch.labels[2] = -1
    else:
        batch.values[2, 0, 3, 3] = bad
    inputs = records if isinstance(bad, str) else lambda b, r: (b.values, b.labels)
    gradients = GradientSum(fresh(), through, bound=0.05, inputs=inputs)
    rest = [i for i in range(6) if i != 2]
    others = Batch(batch.values[rest], batch.labels[rest])
    assert torch.allclose(gradients(batch), gradients(others), atol=1e-6)


def test_a_gradient_that_overflows_counts_for_nothing_and_spoils_nothing():
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE * SIDE, 3), nn.ReLU(), nn.Linear(3, 1), nn.Flatten(0)
    )

    def loss(net, x, y):
        return net(x * 1e15).square()

    batch = batch_of(5)
    batch.values[1:] *= 1e-15
    found = GradientSum(network, loss, bound=1.0)(batch)
    others = Batch(batch.values[1:], batch.labels[1:])
    assert bool(torch.isfinite(found).all())
    assert torch.allclose(found, GradientSum(network, loss, bound=1.0)(others), atol=1e-6)


def test_the_enforced_bound_is_a_thousandth_above():
    assert 1 < enforced_gradient_bound(2.0) / 2.0 < 1.002


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf, 1e-9])
def test_a_senseless_bound_is_refused(bound):
    with pytest.raises(BadInput, match="bound"):
        GradientSum(fresh(), through, bound=bound)


def test_frozen_parameters_have_no_part_in_the_gradient():
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(SIDE * SIDE, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)
    )
    network[1].requires_grad_(False)
    gradients = GradientSum(network, lambda n, x, y: n(x), bound=1.0)
    assert gradients.dim == 5
    gradients.assign(torch.arange(5.0))
    assert network[1].weight.grad is None
    assert network[3].bias.grad.tolist() == [4.0]
    gradients.check(IMAGES)
    with pytest.raises(BadInput, match="no parameter"):
        GradientSum(network.requires_grad_(False), through, bound=1.0)


# -- through the wall ----------------------------------------------------------------------------------------------------


PIXELS = np.random.default_rng(0).integers(0, 256, (60, 1, SIDE, SIDE), dtype=np.uint8)


def steps_of(sums: GradientSum, rate: float, n: int = 60, multiplier: float = 1.0, **more):
    data = Dataset.from_arrays(PIXELS[:n], np.arange(n) % 3, classes=3)
    private = PrivateData(data, Ledger(Budget(epsilon=500.0, delta=1e-5)), **more)
    return private.poisson_steps(rate, 3, multiplier, bound=sums.enforced, label="steps")


def test_a_step_gives_the_sum_over_its_sample_and_only_once():
    gradients = GradientSum(fresh(), through, bound=0.01)
    steps = steps_of(gradients, 1.0, fast_sampler=silent)
    step = next(steps)
    everything = Batch(torch.from_numpy(PIXELS), torch.arange(60) % 3)
    assert torch.allclose(step.noisy_gradient(gradients).double(), gradients(everything), atol=1e-5)
    with pytest.raises(PlanMismatch, match="used already"):
        step.noisy_gradient(gradients)
    with pytest.raises(PlanMismatch, match="paid for"):
        next(steps).noisy_gradient(GradientSum(fresh(), through, bound=0.02))


def test_the_noise_on_a_gradient_has_the_promised_scale():
    network = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 200))
    gradients = GradientSum(network, lambda net, x, y: net(x).sum(dim=1) * 0, bound=2.0)
    for step in steps_of(gradients, 0.1, multiplier=1.5):
        found = step.noisy_gradient(gradients)
        assert float(found.std()) == pytest.approx(1.5 * gradients.enforced, rel=0.04)


def test_an_empty_sample_is_noise_and_not_an_error():
    gradients = GradientSum(fresh("linear, wide"), through, bound=1.0)  # 20,000 numbers
    for step in steps_of(gradients, 1e-9, n=2):
        assert float(step.noisy_gradient(gradients).std()) > 0.9


def test_a_mixing_network_is_refused_before_a_row_is_read():
    class Unread(Dataset):
        def take(self, indices):
            raise AssertionError("a row was read")

    images = np.zeros((4, 1, SIDE, SIDE), dtype=np.uint8)
    plain = Dataset.from_arrays(images, np.arange(4) % 3, classes=3)
    data = PrivateData(
        Unread(plain._source, plain.schema, "unread"), Ledger(Budget(epsilon=50.0, delta=1e-5))
    )
    gradients = GradientSum(Centred(), through, bound=1.0)
    step = next(data.poisson_steps(1.0, 1, 1.0, bound=gradients.enforced, label="steps"))
    with pytest.raises(BadInput, match="depends on another record"):
        step.noisy_gradient(gradients)


def test_companions_are_drawn_from_a_generator_that_nobody_keeps():
    seen: list[torch.Generator] = []

    def watched(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
        seen.append(random)
        return with_companion(batch, random)

    gradients = GradientSum(fresh(), two_terms, bound=1.0, inputs=watched)
    state = torch.random.get_rng_state()
    first, second = gradients(batch_of(4)), gradients(batch_of(4))
    assert not torch.equal(first, second)  # fresh companions
    assert torch.equal(torch.random.get_rng_state(), state)  # and not from the lasting generator
    assert seen[0].initial_seed() != seen[1].initial_seed()
