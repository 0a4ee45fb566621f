"""Records that lie between two choices: where they stand, and who else is there, must not choose for them."""

import pytest
import torch

from sfumato.data import Batch, Column, Schema
from sfumato.methods.clusters import around_nearest, nearest_centre
from sfumato.methods.evolve import nearest
from sfumato.methods.moments import counted
from sfumato.privacy import BoundedSum, FeatureMap, GradientSum, Query, decides, records
from sfumato.privacy.gate import _map_of
from sfumato.privacy.gradients import _Trial
from sfumato.public.linear import CosineCodec


def _between(choice, first, second):
    """Neighbouring numbers on the way from `first` to `second` between which the choice changes."""
    chosen = choice(first)
    while True:
        middle = (first + second) / 2
        if torch.equal(middle, first) or torch.equal(middle, second):
            return first, second
        first, second = (middle, second) if choice(middle) == chosen else (first, middle)


def _rows_between(place, width, draws=40):
    """Rows near a border, as it is for a row in the middle of a batch."""
    random = torch.Generator().manual_seed(1)

    def choice(row):
        return int(place(row.expand(128, -1).contiguous())[64])

    found = []
    for _ in range(draws):
        first, second = torch.randn(2, width, generator=random)
        if choice(first) != choice(second):
            found += _between(choice, first, second)
    return found


def _check_others_stay(phi, place, width):
    total = BoundedSum(phi)

    def added(rows):
        return total(Batch(rows, None))

    rows = _rows_between(place, width)
    for row in rows:
        chosen = place(row.expand(1024, -1).contiguous())
        last = (chosen == chosen[-1]).nonzero()[:, 0]
        # Where one choice is made there, and, if all choose alike, everywhere; counts that cross the sizes of batches.
        for count in (511, 1000):
            before = torch.zeros(count, width)
            before[last[last < count]] = row
            more = added(torch.cat([row[None], before])) - added(before)
            assert torch.equal(more, added(row[None]))
    assert len(rows) > 20


@pytest.mark.parametrize(("width", "clusters"), [(16, 30), (17, 31), (25, 53)])
def test_a_record_leaves_others_in_their_clusters(width, clusters):
    random = torch.Generator().manual_seed(1)
    centres = torch.randn(1, clusters, width, generator=random)
    used, lift = torch.ones(1, clusters, dtype=torch.bool), torch.ones(width)
    closest = nearest_centre(centres, used, lift)
    around = counted(around_nearest(lambda batch: batch.values, closest, centres, lift), 3.0)
    phi = _map_of(Query(label="clusters", shape=(width + 1,), segments=clusters), around)
    _check_others_stay(phi, lambda rows: closest(Batch(rows, None), rows)[1], width)


@pytest.mark.parametrize(("axes", "pictures"), [(7, 5), (7, 8), (243, 8)])
def test_a_record_leaves_others_their_votes(axes, pictures):
    known = torch.randn(pictures, axes, generator=torch.Generator().manual_seed(1))
    votes = nearest(lambda batch: batch.values, known, 1)
    query = Query(label="votes", shape=(1,), segments=pictures, non_negative=True)
    _check_others_stay(_map_of(query, votes), lambda rows: votes(Batch(rows, None))[1], axes)


class _Sides(FeatureMap):
    """On which side of zero a number lies that is a hair larger in every other place."""

    dim, bound, segments = 1, 1.0, 2

    def __init__(self, shown):
        self._shown = shown

    def _numbers(self, batch):
        return batch.values[:, 0] - 0.3 + 1e-7 * (torch.arange(len(batch)) % 2)

    def segment_of(self, batch):
        numbers = self._numbers(batch)
        return ((decides(numbers) if self._shown else numbers) > 0).to(torch.int64)

    def __call__(self, batch):
        return torch.ones(len(batch), 1)


def test_numbers_that_a_map_decides_by_are_tried_too():
    rows = Batch(torch.full((40, 3), 0.3), None)
    assert BoundedSum(_Sides(shown=True)).sizes(rows) == (1,)
    # What is hidden cannot be seen; outside of the check nothing is kept.
    assert BoundedSum(_Sides(shown=False)).sizes(rows) == (1024, 128, 16)
    assert decides(rows.values) is rows.values


def _table(width):
    columns = [Column(name=f"x{i}", kind="numerical", low=0, high=1) for i in range(width)]
    return Schema(kind="table", columns=tuple(columns))


def _noisy_product(matrix):
    """Inputs with noise of each record's own, behind a product."""

    def inputs(batch, random):
        (values,) = records(batch, random)
        noise = torch.randn(len(values), values.shape[1], generator=random)
        return ((values + noise) @ matrix,)

    return inputs


def test_inputs_that_draw_are_tried_in_every_place_too():
    schema = _table(81)
    place = torch.device("cpu")

    def moved(batch, random):
        (values,) = _noisy_product(torch.eye(81))(batch, random)
        return (values * (1 + 1e-6 * (torch.arange(len(values)) % 2))[:, None],)

    assert _Trial(schema, _noisy_product(torch.eye(81)), 64, place).place_is_nothing()
    assert not _Trial(schema, moved, 64, place).place_is_nothing()
    assert _Trial(schema, moved, 1, place).place_is_nothing()


def test_a_sum_of_gradients_takes_records_one_by_one_where_noise_hides_their_places():
    schema = _table(3)
    network = torch.nn.Linear(3, 1)

    def moved(batch, random):
        (values,) = _noisy_product(torch.eye(3))(batch, random)
        return (values * (1 + 1e-6 * (torch.arange(len(values)) % 2))[:, None],)

    for inputs, rows in ((_noisy_product(torch.eye(3)), 64), (moved, 1)):
        gradients = GradientSum(
            network, lambda network, x: network(x)[:, 0], bound=1.0, inputs=inputs
        )
        gradients.check(schema)
        assert gradients._rows == rows


@pytest.mark.parametrize("side", [5, 8, 9, 11, 13, 28])
@pytest.mark.parametrize("channels", [1, 3])
def test_waves_become_the_same_picture_in_every_place(channels, side):
    codec = CosineCodec(Schema(kind="images", shape=(channels, side, side)))
    for vector in torch.randn(3, codec.dim, generator=torch.Generator().manual_seed(0)):
        found = codec.raw(vector.expand(64, -1).contiguous())
        assert torch.equal(found, found[:1].expand_as(found))
