"""One record changes its own summand of a gradient sum and nothing else.

S(A ∪ x) = S(A) + S(x) to the last bit, and ‖S(x)‖ ≤ enforced, for records built to break either.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.methods import get_method
from sfumato.methods.adversarial_losses import labelled as _labelled
from sfumato.methods.adversarial_losses import looks_generated as _taken_for_generated
from sfumato.privacy import GradientSum, gradients
from sfumato.privacy.gradients import _squares, records
from sfumato.privacy.units import SHARES, shares_of

SIDE = 6
IMAGES = Schema(kind="images", shape=(1, SIDE, SIDE), classes=("a", "b", "c"))


class Body(nn.Module):
    """Layers between a picture with its label and one number."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layers(x).flatten(1).square().sum(dim=1) * (1 + y)


class Twice(nn.Module):
    """A layer called twice, and one that is part of two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(SIDE, SIDE)
        self.norm = nn.LayerNorm(SIDE)
        self.again = nn.Sequential(self.dense, nn.Tanh())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(self.again(self.dense(x[:, 0]))).square().sum(dim=(1, 2)) - y


class TwoTerms(nn.Module):
    """Linear layers called once for each of two terms: two positions of one record."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(SIDE * SIDE, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x.flatten(1)
        return (self.dense(x) - self.dense(x.roll(1, dims=1))).square().sum(dim=1)


class Words(nn.Module):
    """Codes with repetitions through an embedding, which a label goes through as well."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 5, padding_idx=3)
        self.last = nn.Linear(5, 3, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        code = (x.flatten(1).nan_to_num(0).clamp(0, 1) * 3.99).long()
        found = self.last(self.embedding(code)).sum(dim=1) + self.last(self.embedding(y))
        return found.square().sum(dim=1)


class Label(nn.Module):
    """An embedding at one position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, SIDE * SIDE)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.embedding(y) * x.flatten(1)).sum(dim=1)


class Tied(nn.Module):
    """A weight that is used outside its layer: only the slow way sees all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(SIDE * SIDE, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (torch.tanh(self.dense(x.flatten(1))) @ self.dense.weight).square().sum(dim=1)


class Everything(nn.Module):
    """All kinds of layers that have a fast way, one after the other, dilated and without a bias too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 6, 3, stride=2, padding=1),
            nn.GroupNorm(2, 6),
            nn.ReLU(),
            nn.Conv2d(6, 4, 3, padding=2, dilation=2, bias=False),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 3, 4, stride=2, padding=1),
            nn.Flatten(),
            nn.LayerNorm(3 * SIDE * SIDE),
            nn.Linear(3 * SIDE * SIDE, 5),
            nn.Tanh(),
        )
        self.label, self.last = nn.Embedding(3, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.last(self.layers(x) + self.label(y)).squeeze(1)


def through(network, x: Tensor, y: Tensor) -> Tensor:
    return 3 * network(x, y)


def steep(network, x: Tensor, y: Tensor) -> Tensor:
    """A gradient penalty, which book-keeping cannot do."""
    slope = torch.func.vmap(torch.func.grad(lambda one, k: network(one[None], k[None])[0]))(x, y)
    return (slope.flatten(1).square().sum(dim=1) + 1e-6).sqrt()


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    fast: bool = True
    loss: Callable[..., Tensor] = through


def wide(*shape: int) -> Callable[[], nn.Module]:
    return lambda: Body(
        nn.Flatten(), nn.Linear(SIDE * SIDE, shape[0]), nn.Tanh(), nn.Linear(*shape)
    )


CASES = {
    "linear": Case(
        lambda: Body(nn.Flatten(), nn.Linear(SIDE * SIDE, 5), nn.ReLU(), nn.Linear(5, 2))
    ),
    "linear, whole lines": Case(wide(16, 32)),
    "linear, wide": Case(wide(17, 1100)),
    "linear, positions": Case(lambda: Body(nn.Linear(SIDE, 7), nn.ReLU(), nn.Linear(7, 3))),
    "linear, positions, wide": Case(
        lambda: Body(nn.Linear(SIDE, 500), nn.ReLU(), nn.Linear(500, 600))
    ),
    "linear, two terms": Case(TwoTerms),
    "twice": Case(Twice),
    "conv": Case(
        lambda: Body(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 5, 2, stride=2, bias=False))
    ),
    "conv, in place": Case(lambda: Body(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True)), fast=False),
    "conv, one position": Case(lambda: Body(nn.Conv2d(1, 4, SIDE), nn.Conv2d(4, 2, 1))),
    "conv, whole lines": Case(lambda: Body(nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3))),
    "transposed": Case(lambda: Body(nn.ConvTranspose2d(1, 3, 4, stride=2, padding=1), nn.ReLU())),
    "group norm": Case(lambda: Body(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU())),
    "layer norm": Case(lambda: Body(nn.LayerNorm((SIDE, SIDE)), nn.Linear(SIDE, 2))),
    "words": Case(Words),
    "label": Case(Label),
    "vmap, tied": Case(Tied, fast=False),
    "everything": Case(Everything),
    "vmap, groups": Case(
        lambda: Body(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=2)), fast=False
    ),
    "vmap, instance norm": Case(
        lambda: Body(nn.Conv2d(1, 3, 3), nn.InstanceNorm2d(3, affine=True)), fast=False
    ),
    "vmap, penalty": Case(
        lambda: Body(nn.Flatten(), nn.Linear(SIDE * SIDE, 4), nn.Tanh()), False, steep
    ),
}


def raw(batch: Batch, random: torch.Generator | None = None) -> tuple[Tensor, ...]:
    """As `records`, but values beyond [0, 1] stay what they are."""
    assert batch.labels is not None
    unknown = (batch.labels < 0).view(-1, 1, 1, 1)
    return batch.values.masked_fill(unknown, math.nan), batch.labels.clamp(min=0)


@cache
def summed(name: str, bound: float = 1.0, rows_at_once: int = 512) -> GradientSum:
    torch.manual_seed(3)
    case = CASES[name]
    made = GradientSum(case.make(), case.loss, bound=bound, inputs=raw, rows_at_once=rows_at_once)
    made.check(IMAGES)
    assert made._fast == case.fast
    assert made._rows == min(64, rows_at_once)
    return made


def hostile(n: int, seed: int = 0) -> Batch:
    """Records of every bad kind, in turns."""
    source = torch.Generator().manual_seed(seed)
    values = torch.randn(n, 1, SIDE, SIDE, generator=source)
    labels = torch.randint(3, (n,), generator=source)
    for i in range(n):
        match i % 13:
            case 1:
                values[i] *= 1e-3  # within the bound
            case 2:
                values[i] *= 1e6  # far beyond
            case 3:
                values[i, 0, 1, 2] = math.nan
            case 4:
                values[i, 0, 2, 1] = -math.inf
            case 5:
                values[i] *= 1e30  # finite, and overflows on the way
            case 6:
                values[i] *= 1e-42  # denormal
            case 7:
                values[i] = 0
            case 8:
                labels[i] = -1
            case 9:
                values[i] = 1e5 * values[i].sign()
            case 10:
                values[i, 0, : SIDE // 2] = 1e4  # terms that cancel
                values[i, 0, SIDE // 2 :] = -1e4
            case 11:
                values[i] = 1e12
    return Batch(values, labels)


def some(batch: Batch, places: slice | Tensor | list[int]) -> Batch:
    assert batch.labels is not None
    return Batch(batch.values[places], batch.labels[places])


@pytest.mark.parametrize("name", CASES)
def test_neighbour_sums_differ_by_one_summand_at_every_count(name):
    # Layers too wide for many passes go four records at a time, past three boundaries.
    most, rows = (13, 4) if "positions, wide" in name else (70, 512)
    sums, batch = summed(name, rows_at_once=rows), hostile(most)
    total = torch.zeros(sums.dim, dtype=torch.float64)
    longest = 0.0
    for n in range(most):
        assert torch.equal(sums(some(batch, slice(n))), total), n
        alone = sums(some(batch, [n]))
        longest = max(longest, float(alone.norm()))
        total = total + alone
    assert torch.equal(sums(batch), total)
    assert 0.99 * sums.bound < longest <= sums.enforced


@pytest.mark.parametrize("name", ["linear", "conv", "words"])
def test_neighbour_sums_differ_by_one_summand_at_large_counts(name):
    sums, kinds = summed(name), hostile(39)
    alone = torch.stack([sums(some(kinds, [i])) for i in range(39)])
    batch = some(kinds, torch.arange(1026) % 39)
    for n in (*range(510, 516), *range(1022, 1027)):
        times = torch.bincount(torch.arange(n) % 39, minlength=39).to(torch.float64)
        expected = (times[:, None] * alone).sum(dim=0)
        assert torch.equal(sums(some(batch, slice(n))), expected), n


@pytest.mark.parametrize("name", CASES)
def test_neighbour_order_and_split_change_no_bit(name):
    rows, n = (4, 15) if "positions, wide" in name else (512, 150)
    sums, batch = summed(name, rows_at_once=rows), hostile(n, seed=2)
    whole, step = sums(batch), n // 3 - 3
    assert torch.equal(sums(some(batch, torch.randperm(n))), whole)
    assert torch.equal(sum(sums(some(batch, slice(i, i + step))) for i in range(0, n, step)), whole)


@pytest.mark.parametrize("name", CASES)
def test_neighbour_units_of_several_records_move_a_sum_by_no_more_than_one_may(name):
    rows, n = (4, 13) if "positions, wide" in name else (512, 70)
    sums, batch = summed(name, rows_at_once=rows), hostile(n)
    alone = torch.stack([sums(some(batch, [i])) for i in range(n)])
    for units in (n, n // 3, 2, 1):
        unit = torch.arange(n) % units
        shares = torch.from_numpy(shares_of(unit.numpy(), 16))
        found = sums(replace(batch, shares=shares))
        assert torch.equal(found, (shares[:, None] * alone).sum(dim=0))
        mine = unit == 0
        without = sums(replace(some(batch, ~mine), shares=shares[~mine]))
        assert float((found - without).norm()) <= SHARES * sums.enforced


@pytest.mark.parametrize("name", ["linear, positions", "conv", "twice", "words", "vmap, tied"])
@pytest.mark.parametrize("most", [1, 3_000])
def test_neighbour_sums_do_not_depend_on_how_many_records_are_formed_at_once(
    name, most, monkeypatch
):
    sums, batch = summed(name), hostile(70)
    before = sums(batch)
    monkeypatch.setattr(gradients, "_FORMED", most)
    monkeypatch.setattr(gradients, "_MATERIALISED", most)
    assert torch.equal(sums(batch), before) or "vmap" in name  # other shapes, other last digits
    assert torch.equal(sums(some(batch, slice(69))) + sums(some(batch, [69])), sums(batch))


@given(
    name=st.sampled_from([n for n in CASES if "wide" not in n]),
    seed=st.integers(0, 2**32),
    n=st.integers(0, 8),
    scale=st.sampled_from([1e-42, 1e-20, 1e-6, 1e-2, 1.0, 1e3, 1e9, 1e18, 1e30]),
    offset=st.sampled_from([0.0, 1.0, 1e4, -1e15]),
    bound=st.sampled_from([1e-6, 1.0, 1e6]),
)
@settings(max_examples=850)
def test_neighbour_sums_of_arbitrary_records(name, seed, n, scale, offset, bound):
    sums = summed(name, bound, rows_at_once=4)
    source = torch.Generator().manual_seed(seed)
    values = torch.randn(n + 1, 1, SIDE, SIDE, generator=source)
    values = (values + offset) * scale * torch.rand(n + 1, 1, 1, 1, generator=source)
    batch = Batch(values, torch.randint(-1, 3, (n + 1,), generator=source))
    one = sums(some(batch, [n]))
    assert float(one.norm()) <= sums.enforced
    assert torch.equal(sums(batch), sums(some(batch, slice(n))) + one)


# -- the holes of version 0.1.0 ------------------------------------------------------------------------------------------


def test_neighbour_samples_of_a_wide_gan_around_a_block():
    schema = Schema(kind="images", shape=(1, 28, 28), classes=tuple("0123456789"))
    method = get_method("gan")(width=96)
    sums = GradientSum(method.critic(schema), _taken_for_generated, bound=1.0, inputs=_labelled)
    one = torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    alone = sums(Batch(one, torch.tensor([3])))
    assert float(alone.norm()) <= sums.enforced
    for n in (32, 33, 65):
        found = sums(Batch(one.expand(n, 1, 28, 28), torch.full((n,), 3)))
        assert torch.equal(found, n * alone)


class Positions(nn.Module):
    """A linear layer at many positions."""

    def __init__(self, positions: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs, bias=False)
        self.shape = (positions, inputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x.view(len(x), *self.shape))


def test_neighbour_records_whose_terms_cancel_move_nothing():
    sign = torch.tensor([1.0, -1.0]).repeat(32).view(1, 64, 1)
    sums = GradientSum(
        Positions(64, 4, 1), lambda net, x: (net(x) * sign).sum(dim=(1, 2)), bound=1.0
    )
    source = torch.Generator().manual_seed(0)
    for scale in (1e3, 3e4, 1e6):
        pairs = torch.randn(256, 32, 1, 4, generator=source) * scale
        values = pairs.expand(256, 32, 2, 4).reshape(256, 256)
        shuffled = torch.cat([pairs, pairs[:, torch.randperm(32, generator=source)]], dim=2)
        for rows in (values, shuffled.reshape(256, 256)):
            one = sums(Batch(rows[:1], None))
            assert float(one.norm()) <= sums.enforced
            assert torch.equal(sums(Batch(rows, None)), sums(Batch(rows[1:], None)) + one)


@pytest.mark.parametrize("fill", [0.5, 0.63, 0.7, 0.99])
def test_a_neighbour_with_millions_of_equal_numbers_is_not_longer_than_the_bound(fill):
    sums = GradientSum(
        Positions(96, 2048, 1024),
        lambda net, x: net(x).sum(dim=(1, 2)),
        bound=1.0,
        rows_at_once=1,
    )
    found = float(sums(Batch(torch.full((1, 96 * 2048), fill / 96), None)).norm())
    assert 0.999 < found <= sums.enforced


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 3_000_001])
def test_norms_are_never_too_small(count):
    source = torch.Generator().manual_seed(count)
    ends = torch.tensor([1e-30, 1e-19, 1e15])
    rows = [torch.full((count,), c) for c in (1.0, 0.7, 1e-25)]
    rows += [torch.randn(count, generator=source), ends.repeat(-(-count // 3))[:count]]
    for row in rows:
        true = float(row.double().square().sum())
        assert true <= float(_squares(row[None])[0]) <= true * 1.001 + count * 1e-37


def test_neighbours_of_a_network_that_is_set_to_training_later():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8, affine=False)
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), norm, nn.Linear(8, 1)).eval()
    sums = GradientSum(network, lambda net, x, y: 50 * net(x)[:, 0].square(), bound=1.0, inputs=raw)
    sums.check(IMAGES)
    batch = hostile(30)
    before, mean = sums(batch), norm.running_mean.clone()
    network.train()
    assert torch.equal(sums(batch), before)
    assert torch.equal(norm.running_mean, mean)
    other = Batch(batch.values.clone(), batch.labels)
    other.values[0] = 100.0
    assert float((sums(other) - before).norm()) <= 2 * sums.enforced


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers, nn.Flatten(0))


def plain(network, x: Tensor, y: Tensor) -> Tensor:
    return network(x)


def test_a_loss_that_sets_the_mode_and_a_network_that_was_changed_are_refused():
    network = flat(nn.Linear(36, 2), nn.Linear(2, 1)).eval()
    sums = GradientSum(network, lambda net, x, y: net.train()(x), bound=1.0)
    with pytest.raises(BadInput, match="another mode"):
        sums(hostile(2))
    sums = GradientSum(network, plain, bound=1.0)
    network[1].requires_grad_(False)
    with pytest.raises(BadInput, match="new GradientSum"):
        sums(hostile(2))


def test_buffers_that_change_in_a_call_are_refused_and_those_of_the_network_are_followed():
    dropout = flat(nn.Dropout(0.5), nn.Linear(36, 1))  # as random numbers of its own are
    with pytest.raises(BadInput):
        GradientSum(dropout, plain, bound=1.0).check(IMAGES)
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(36, 4))
    network = flat(layer, nn.Linear(4, 1))
    with pytest.raises(BadInput, match="buffers"):
        GradientSum(network, plain, bound=1.0).check(IMAGES)
    GradientSum(network.eval(), plain, bound=1.0).check(IMAGES)

    norm = nn.BatchNorm1d(36, affine=False)
    sums = GradientSum(flat(norm, nn.Linear(36, 1)).eval(), plain, bound=1.0)
    batch = Batch(torch.rand(3, 1, SIDE, SIDE), torch.zeros(3, dtype=torch.int64))
    before = sums(batch)
    norm.running_mean.fill_(0.5)  # as a checkpoint would
    assert not torch.equal(sums(batch), before)


# -- shapes and places ---------------------------------------------------------------------------------------------------


def test_neighbours_are_always_seen_in_micro_batches_of_one_size():
    seen = []

    def watched(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
        seen.append(len(batch))
        return raw(batch)

    network = CASES["linear"].make()
    sums = GradientSum(network, through, bound=1.0, inputs=watched)
    for n in (0, 1, 2, 63, 64, 65, 130):
        sums(hostile(n))
    assert set(seen) == {64}
    assert len(seen) == 0 + 1 + 1 + 1 + 1 + 2 + 3


@pytest.mark.parametrize("where", ["network", "inputs"])
def test_neighbours_go_one_at_a_time_where_places_matter(where):
    def placed(x: Tensor) -> Tensor:
        return x * (1 + 2e-7 * (torch.arange(len(x)) % 2)[:, None, None, None])

    class Placed(Body):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return super().forward(placed(x) if where == "network" else x, y)

    def inputs(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
        x, y = raw(batch)
        return placed(x) if where == "inputs" else x, y

    sums = GradientSum(Placed(nn.Flatten(), nn.Linear(36, 3)), through, bound=1.0, inputs=inputs)
    sums.check(IMAGES)
    assert sums._fast
    assert sums._rows == 1
    batch = hostile(12)
    alone = sum(sums(some(batch, [i])) for i in range(12))
    assert torch.equal(sums(batch), alone)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float64])
def test_neighbours_in_other_precisions(precision):
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 700), nn.Tanh(), nn.Linear(700, 3))
    network.to(precision)

    def loss(net, x: Tensor, y: Tensor) -> Tensor:
        return net(x.to(precision)).square().sum(dim=1)

    sums = GradientSum(network, loss, bound=1.0, inputs=raw)
    batch = hostile(13)
    alone = [sums(some(batch, [i])) for i in range(13)]
    assert all(float(one.norm()) <= sums.enforced for one in alone)
    assert torch.equal(sums(batch), sum(alone))


def test_a_path_that_changes_with_the_records_is_refused():
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(36, 36)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            x = self.dense(x.flatten(1))
            if float(x.detach().abs().max()) > 1e3:
                x = self.dense(x)
            return x.sum(dim=1)

    sums = GradientSum(Moody(), through, bound=1.0, inputs=raw)
    sums.check(IMAGES)
    values = torch.rand(3, 1, SIDE, SIDE)
    labels = torch.zeros(3, dtype=torch.int64)
    sums(Batch(values, labels))
    with pytest.raises(BadInput, match="another path"):
        sums(Batch(values * 1e6, labels))


def test_neighbours_of_unknown_class_are_nothing_with_the_plain_inputs():
    sums = GradientSum(CASES["conv"].make(), through, bound=1.0, inputs=records)
    batch = hostile(40)
    known = batch.labels >= 0
    assert torch.equal(sums(batch), sums(some(batch, known)))
