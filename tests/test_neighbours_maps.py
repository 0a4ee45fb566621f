"""One record moves its own summand and no other: every map, every boundary, rows that were built to break it."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import sfumato
from runs import silent, still
from sfumato.data import Batch, Column, Dataset, Schema
from sfumato.data.sources import ArraySource
from sfumato.engines import LocalEngine
from sfumato.generators.dpaf import Encoder
from sfumato.generators.embedding import CountedByClass
from sfumato.methods.dpaf_phases import features_and_label
from sfumato.methods.linear_maps import Model
from sfumato.methods.llm import LinearMaps
from sfumato.methods.mge import OuterMoments
from sfumato.privacy import (
    BoundedSum,
    Budget,
    FeatureMap,
    Ledger,
    OuterMap,
    PrivateData,
    Query,
    RecordMap,
    bounding,
    enforced_bound,
    noise,
)
from sfumato.privacy.bounding import summand_of
from sfumato.privacy.gate import Rows, _map_of
from sfumato.privacy.memory import RememberedRows
from sfumato.public.autoencoder import AutoencoderCodec
from sfumato.public.fourier import FourierFeatures
from sfumato.public.hermite import Hermite, ProductKernel, SumKernel
from sfumato.public.linear import CosineCodec, DctCodec
from sfumato.public.perceptual import (
    NetworkEncoder,
    PerceptualFeatures,
    ScatteringEncoder,
)
from sfumato.public.products import row_product
from sfumato.public.tabular import HeterogeneousFourier, plain_codec
from sfumato.testing import (
    BOUNDARIES,
    COUNTS,
    adversarial_records,
    check_additive,
    check_map,
    shuffled_records,
)

FEW = (*range(20), *BOUNDARIES, 1025)
SOURCE = Path(sfumato.__file__).parent
IMAGES = Schema(kind="images", shape=(1, 8, 8), classes=("a", "b", "c"))
SMALL = Schema(kind="images", shape=(1, 4, 4), classes=("a", "b", "c"))
COLOUR = Schema(kind="images", shape=(3, 9, 7))
TABLE = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", low=0, high=90, missing=True),
        Column(name="sum", kind="numerical", low=-1e6, high=1e6),
        Column(name="height", kind="numerical", low=1, high=2.3),
        Column(name="colour", kind="categorical", categories=("red", "green"), missing=True),
        Column(name="kind", kind="categorical", categories=("x", "y", "z")),
        Column(name="size", kind="ordinal", categories=("s", "m", "l")),
    ),
    classes=("no", "yes", "perhaps"),
    label="label",
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def convolutions() -> NetworkEncoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 10, 3, stride=2),
            nn.ReLU(),
        )
    return NetworkEncoder(body.eval(), ("2", "4"), IMAGES.shape)


def dpaf_encoder() -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Encoder(IMAGES.shape, 4).requires_grad_(False)


def asked(dim: int, bound: float, rows: Rows, segments: int = 1) -> RecordMap:
    """A row function as the wall takes it."""
    return _map_of(Query(label="rows", shape=(dim,), bound=bound, segments=segments), rows)


def linear_maps() -> RecordMap:
    method = LinearMaps(maps=2, clip=0.3)
    (query,) = method.queries(IMAGES, Budget(epsilon=1.0, delta=1e-5))
    return _map_of(query, Model(method, IMAGES).gradients)


def outer_moments() -> RecordMap:
    codec = DctCodec(COLOUR.shape, 9)
    return _map_of(OuterMoments.query(codec.facts, 0), OuterMoments(codec))


def counted(phi: FeatureMap, schema: Schema) -> CountedByClass:
    return CountedByClass(phi, schema.n_classes)


# Every public map, small, in the forms that methods use, and rows of methods in forms that the contract of methods (`CHECKS`)
# does not try: unprojected maps, features with a label beside them. Narrow ones are those that libraries treat by place.
MAPS: dict[str, tuple[Schema, Callable[[], RecordMap]]] = {
    "fourier": (IMAGES, lambda: counted(FourierFeatures(64, 50, 1.0, seed=0), IMAGES)),
    "fourier, narrow": (COLOUR, lambda: FourierFeatures(189, 6, (0.5, 2.0), seed=0)),
    "fourier, two blocks": (IMAGES, lambda: FourierFeatures(64, 2018, 1.0, seed=0)),
    "fourier, table": (
        TABLE,
        lambda: counted(
            HeterogeneousFourier(plain_codec(TABLE), FourierFeatures(4, 30, 1.0, seed=0)), TABLE
        ),
    ),
    "sum kernel": (
        IMAGES,
        lambda: counted(SumKernel(plain_codec(IMAGES), Hermite(6, 1.0)), IMAGES),
    ),
    "sum kernel, table": (
        TABLE,
        lambda: counted(SumKernel(plain_codec(TABLE), Hermite(9, 0.1, 3.0)), TABLE),
    ),
    "product kernel": (
        IMAGES,
        lambda: ProductKernel(plain_codec(IMAGES), Hermite(3, 1.0), (0, 9, 63), 3),
    ),
    "product kernel, table": (
        TABLE,
        lambda: ProductKernel(plain_codec(TABLE), Hermite(3, 1.0), plain_codec(TABLE).parts[:4], 3),  # type: ignore[union-attr]
    ),
    "perceptual": (
        IMAGES,
        lambda: counted(PerceptualFeatures(convolutions(), second_weight=0.5), IMAGES),
    ),
    "perceptual, balanced": (
        IMAGES,
        lambda: PerceptualFeatures(convolutions(), moments=1, balance=True),
    ),
    "perceptual, centred": (
        SMALL,
        lambda: PerceptualFeatures(
            ScatteringEncoder(SMALL.shape), moments=1, centre=torch.full((81,), 0.05), radius=0.3
        ),
    ),
    "codec": (IMAGES, lambda: asked(7, 1.0, DctCodec(IMAGES.shape, 7).encode)),
    "codec, cosines": (
        COLOUR,
        lambda: asked(COLOUR.dim, COLOUR.dim**0.5 / 2, CosineCodec(COLOUR).encode),
    ),
    "codec, network": (
        IMAGES,
        lambda: asked(6, 1.0, AutoencoderCodec.untrained(IMAGES.shape, 6, 8, seed=0).encode),
    ),
    "outer moments": (COLOUR, outer_moments),
    "aggregated, label": (
        IMAGES,
        lambda: asked(67, math.sqrt(65), features_and_label(dpaf_encoder(), 3)),
    ),
    "linear maps": (IMAGES, linear_maps),
}


@cache
def made(name: str) -> tuple[Schema, RecordMap]:
    schema, make = MAPS[name]
    return schema, make()


class Plain(FeatureMap):
    """Its rows as they are, whatever bound it claims."""

    def __init__(self, dim: int, bound: float = 1.0, *, segments: int = 1, positive: bool = False):
        self.dim, self.bound, self.segments, self.non_negative = dim, bound, segments, positive

    def __call__(self, batch: Batch) -> Tensor:
        return batch.values

    def segment_of(self, batch: Batch) -> Tensor | None:
        return batch.labels


class Narrow(FeatureMap):
    """A product with few columns, which libraries compute by the place of a row."""

    dim, bound = 10, 2.0

    def __init__(self, even: bool = False) -> None:
        self._matrix = random(13, 10, seed=3) / 6
        self._even = even

    def __call__(self, batch: Batch) -> Tensor:
        if self._even:
            return row_product(batch.values, self._matrix)
        return batch.values @ self._matrix


class Pair(OuterMap):
    """The first two columns times the others."""

    left_bound = right_bound = 1.0

    def __init__(self, right: int, *, symmetric: bool = False) -> None:
        self.left, self.right, self.symmetric = (right if symmetric else 2), right, symmetric
        self.width = right if symmetric else 2 + right

    def factors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        rows = batch.values
        return (rows, rows) if self.symmetric else (rows[:, :2], rows[:, 2:])


def taken(batch: Batch, chosen: list[int] | Tensor) -> Batch:
    labels = None if batch.labels is None else batch.labels[chosen]
    return Batch(batch.values[chosen], labels)


def at_the_bound(dim: int, bound: float, count: int = 40) -> Tensor:
    """Rows whose norm is the bound, the length at which clipping begins, and last bits to both sides of either."""
    rows = random(count, dim, seed=dim).double()
    rows /= rows.norm(dim=1, keepdim=True)
    lengths = bound * torch.tensor([1.0, math.sqrt(1 + 2.0**-14)], dtype=torch.float64)
    nudge = 1 + torch.linspace(-4e-7, 4e-7, count // 2, dtype=torch.float64)
    return (rows * (lengths[:, None] * nudge).flatten()[:, None]).float()


# -- every map, every boundary -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAPS)
def test_a_neighbour_moves_only_its_own_summand(name):
    schema, phi = made(name)
    # A slow map says no more at every small number than a quick one of its kind.
    check_map(phi, schema, counts=FEW if phi.dim > 1000 else COUNTS)


@pytest.mark.parametrize(
    "phi",
    [
        *(Plain(d, 0.7, positive=p) for d in (1, 3, 30, 1023, 1030) for p in (False, True)),
        *(Plain(17, bound) for bound in (1e-6, 0.1, 7.3, 1e6)),
        *(Pair(5, symmetric=symmetric) for symmetric in (False, True)),
    ],
    ids=lambda phi: f"{type(phi).__name__} {phi.dim}",
)
def test_a_neighbour_at_the_bound_or_beyond_it(phi):
    width, bound = (phi.dim, phi.bound) if isinstance(phi, Plain) else (phi.width, 1.0)
    edges = torch.tensor([math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, 0.0, -1e3])
    spoilt = at_the_bound(width, bound)
    spoilt[::5, 0], spoilt[1::7, -1] = math.nan, 3e38
    rows = torch.cat([at_the_bound(width, bound), spoilt, edges[:, None].expand(-1, width)])
    summand = summand_of(phi)
    alone = check_additive(summand, Batch(rows, None), counts=FEW)
    lengths = (alone.double() * summand.grid).flatten(1).norm(dim=1)
    assert float(lengths.max()) <= enforced_bound(phi)


def test_no_map_is_without_its_neighbours():
    def below(cls: type) -> set[type]:
        return {cls}.union(*(below(child) for child in cls.__subclasses__()))

    def parts(phi: object) -> set[type]:
        inner = [value for value in vars(phi).values() if isinstance(value, FeatureMap | OuterMap)]
        return {type(phi)}.union(*(parts(one) for one in inner))

    known = {
        cls
        for cls in below(FeatureMap) | below(OuterMap)
        if cls.__module__.startswith("sfumato.") and cls not in (FeatureMap, OuterMap)
    }
    tried = set().union(*(parts(made(name)[1]) for name in MAPS))
    assert {cls.__name__ for cls in known - tried} == set()
    # Maps of modules that are not imported here would be missed: all of them are.
    declared = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        declared |= set(re.findall(r"^class (\w+)\((?:FeatureMap|OuterMap)\)", text, re.M))
    assert declared <= {cls.__name__ for cls in known}


def test_every_chunk_that_records_go_through_has_neighbours_on_both_sides():
    """Constants of modules on the way from a data set to a sum."""
    elsewhere = {
        "public/fourier.py": "_BLOCK",  # frequencies, not records
        "privacy/bounding.py": "_BLOCK",  # features
        "public/perceptual.py": "_PUBLIC_ROWS",  # public records
        "methods/refinement.py": "_PIECE",  # draws
        "methods/mepf_matching.py": "_AT_ONCE",  # generated records
        "privacy/noise.py": "_CHUNK",  # numbers of noise
        "privacy/losses.py": "_CHUNK",  # points of a grid of privacy losses
    }
    found = {}
    for folder in ("public", "privacy", "engines", "methods", "generators"):
        for path in sorted((SOURCE / folder).glob("*.py")):
            name = path.relative_to(SOURCE).as_posix()
            for constant, value in re.findall(
                r"^(\w*(?:ROWS|BLOCK|AT_ONCE|CHUNK|PIECE|SIZES)\w*)[^=\n]*= ([^#\n]*)",
                path.read_text(encoding="utf-8"),
                re.M,
            ):
                if elsewhere.get(name) != constant:
                    found[name, constant] = np.ravel(ast.literal_eval(value))
    assert len(found) >= 7
    for what, sizes in found.items():
        for size in sizes:
            assert {size - 1, size, size + 1} <= set(COUNTS), what
    assert {*range(71), *range(510, 516), *range(1022, 1027)} <= set(COUNTS)


# -- one decision a row ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38, 5.0])
def test_a_neighbour_that_is_clipped_changes_no_borderline_row(bad):
    # A row whose squared norm, beside a count of 0.1, is the limit up to its last bits: version 0.1.0 let it pass, and clipped it
    # once a neighbour was clipped, since the whole batch then went another way.
    dim = 1030
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1024, dim, generator=generator)
    nudge = 1 + (torch.rand(1024, 1, generator=generator) - 0.5) * 2e-7
    length = math.sqrt(1.01 * (1 + 2.0**-14) - 0.01)
    rows = (rows / rows.double().norm(dim=1, keepdim=True) * length * nudge).float()
    summand = BoundedSum(CountedByClass(Plain(dim), 0))
    silent, loud = torch.zeros(2, 1, dim)
    loud[0, 0] = bad
    own = summand(Batch(loud, None)) - summand(Batch(silent, None))
    for others in (rows[687].expand(1023, dim), rows[:1023]):
        without, beside = (summand(Batch(torch.cat([others, x]), None)) for x in (silent, loud))
        assert torch.equal(beside - without, own)


def test_a_clipped_neighbour_is_as_long_as_the_longest_that_is_not():
    summand = BoundedSum(Plain(50))
    row = random(1, 50)
    row /= row.norm()
    lengths = [
        float(summand.rows(Batch(row * factor, None)).double().norm() * summand.grid)
        for factor in (1.00003, 1.00004, 1.5, 1e30)
    ]
    assert max(lengths) - min(lengths) < 2e-5  # no jump where clipping begins
    assert max(lengths) <= enforced_bound(summand.phi)


@pytest.mark.parametrize("dim", [1024, 5000, 200_000])
def test_no_neighbour_hides_length_in_rounding(dim):
    # One large number and many whose squares vanish beside it, one after the other, in single precision.
    large = torch.full((dim,), 1.0)
    large[1:] = math.sqrt(2.0**-25 * 0.999)
    rows = torch.stack([large * s for s in (0.9, 0.97, 0.99, 0.999, 0.9999, 0.99999, 1.0, 1.01)])
    phi = Plain(dim)
    summand = BoundedSum(phi)
    found = summand.rows(Batch(rows, None)).double() * summand.grid
    assert float(found.norm(dim=1).max()) <= enforced_bound(phi)
    assert enforced_bound(phi) <= 1 + 2.0**-14  # for any number of features


# -- shapes and places -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("even", [False, True])
def test_a_neighbours_place_changes_no_bit(even):
    rows = Batch(random(700, 13, seed=1) / 3, None)
    summand = BoundedSum(Narrow(even))
    alone = torch.cat([summand.rows(taken(rows, [i])) for i in range(100)])
    for shift in (0, 1, 5, 16):
        assert torch.equal(summand.rows(rows)[shift:100], alone[shift:])
        assert torch.equal(
            summand.rows(taken(rows, torch.arange(shift, 700)))[:80], alone[shift:][:80]
        )


def test_a_narrow_product_that_is_filled_up_is_shown_whole_batches_of_neighbours():
    batch = Batch(torch.zeros(1, 13), None)
    assert BoundedSum(Narrow(even=True)).sizes(batch) == (1024, 128, 16)
    rows = random(50, 13)
    matrix = random(13, 4)
    assert torch.allclose(row_product(rows, matrix), rows @ matrix, atol=1e-5)
    assert torch.equal(row_product(rows, random(13, 40)), rows @ random(13, 40))


class ByPlace(FeatureMap):
    """As a library might: the last bits of a row depend on its place, in some sizes of batches."""

    dim, bound = 3, 10.0

    def __init__(self, bad: Callable[[int], bool]) -> None:
        self._bad = bad
        self.weight = 1.0

    def __call__(self, batch: Batch) -> Tensor:
        n = len(batch)
        places = torch.arange(n, dtype=torch.float32)[:, None]
        return batch.values * (1 + self.weight * 1e-6 * places * self._bad(n))


class BySize(FeatureMap):
    """Another last bit in batches of 16."""

    dim, bound = 3, 10.0

    def __call__(self, batch: Batch) -> Tensor:
        return batch.values * (1 + 1e-6 * (len(batch) == 16))


@pytest.mark.parametrize(
    ("phi", "left"),
    [
        (ByPlace(lambda n: False), (1024, 128, 16)),
        (ByPlace(lambda n: n == 128), (1024, 16)),
        (ByPlace(lambda n: n > 100), (16,)),
        (ByPlace(lambda n: n > 1), (1,)),
        (BySize(), (1024, 128)),
    ],
)
def test_sizes_that_treat_neighbours_by_place_or_otherwise_are_not_used(phi, left):
    summand = BoundedSum(phi)
    rows = Batch(random(40, 3), None)
    assert summand.sizes(rows) == left
    check_additive(summand, rows, counts=(0, 1, 2, 15, 16, 17, 40, 127, 129, 300, 1025))


def test_a_map_whose_weights_were_zero_at_first_is_looked_at_again_before_its_neighbours_differ():
    phi = ByPlace(lambda n: n > 1)
    phi.weight = 0.0
    rows = Batch(random(40, 3), None)
    assert BoundedSum(phi).sizes(rows) == (1024, 128, 16)
    phi.weight = 1.0
    second = BoundedSum(phi)
    assert second.sizes(rows) == (1,)
    check_additive(second, rows, counts=(0, 1, 17, 40))
    assert BoundedSum(phi).sizes(rows) == (1,)  # and stays so


def test_neighbours_of_a_wide_map_whose_batches_are_small(monkeypatch):
    monkeypatch.setattr(bounding, "_NUMBERS", 30 * 50)
    summand = BoundedSum(Plain(30))
    rows = Batch(at_the_bound(30, 1.0), None)
    assert summand.sizes(rows) == (48, 16)
    check_additive(summand, rows, counts=(*range(20), 23, 24, 25, 47, 48, 49, 71, 72, 73, 96, 97))


def test_rows_that_fill_up_a_batch_are_no_neighbours():
    class Normalised(FeatureMap):
        """Zero has no direction: the filling becomes NaN; or it is far too long."""

        dim, bound = 4, 1.0
        shift = 0.0

        def __call__(self, batch: Batch) -> Tensor:
            return batch.values / batch.values.norm(dim=1, keepdim=True) + self.shift

    for shift in (0.0, 50.0):
        phi = Normalised()
        phi.shift = shift
        check_additive(BoundedSum(phi), Batch(random(20, 4), None), counts=(0, 1, 3, 16, 17, 130))


def test_where_a_neighbour_lies_in_memory_changes_no_bit():
    schema, phi = made("fourier, table")
    batch = adversarial_records(schema)
    summand = summand_of(phi)
    expected = summand(batch)
    for offset in range(1, 9):
        store = torch.zeros(batch.values.numel() + 16)
        moved = store[offset : offset + batch.values.numel()].view_as(batch.values)
        moved.copy_(batch.values)
        assert torch.equal(summand(Batch(moved, batch.labels)), expected)


def test_a_memory_of_records_does_not_tell_how_many_neighbours_were_new():
    shapes = set()

    def compute(rows: Tensor) -> Tensor:
        shapes.add(tuple(rows.shape))
        return rows @ random(5, 40)

    rows = random(200, 5)
    fresh, warm = RememberedRows(compute), RememberedRows(compute)
    warm(rows[:130])
    assert torch.equal(warm(rows), fresh(rows))
    assert len(shapes) == 1


# -- the engine and the wall -------------------------------------------------------------------------------------------


def dataset(batch: Batch, schema: Schema) -> Dataset:
    labels = None if batch.labels is None else batch.labels.numpy()
    return Dataset(ArraySource(batch.values.numpy(), labels), schema, "made up")


class Pieces:
    """An engine that divides the records otherwise, and adds them up backwards."""

    def __init__(self, size: int) -> None:
        self.size = size

    def total(self, rows, summand, *, on_fraction=None):
        parts = [summand(batch) for batch in rows.batches(self.size)]
        return sum(reversed(parts), torch.zeros(summand.shape, dtype=torch.int64))


@pytest.mark.parametrize(
    "name", ["fourier", "fourier, table", "outer moments", "aggregated, label"]
)
def test_engines_that_divide_neighbours_otherwise_give_the_same_total(name):
    schema, phi = made(name)
    many, _ = shuffled_records(adversarial_records(schema), 1100)
    data, summand = dataset(many, schema), summand_of(phi)
    expected = LocalEngine().total(data, summand)
    for size in (1, 7, 1000, 1100, 5000)[name.startswith("aggregated") :]:
        assert torch.equal(Pieces(size).total(data, summand), expected)


@pytest.mark.parametrize("name", ["fourier", "sum kernel, table", "linear maps", "perceptual"])
@pytest.mark.parametrize("count", [0, 128, 1024])
def test_a_neighbour_moves_a_release_by_its_own_summand(name, count):
    schema, phi = made(name)
    pool = adversarial_records(schema)
    many, _ = shuffled_records(pool, count + 1, seed=count)

    def released(batch: Batch) -> Tensor:
        ledger = Ledger(Budget(epsilon=1e3, delta=1e-5))
        data = PrivateData(dataset(batch, schema), ledger, discrete_sampler=still)
        return data.noisy_sum(phi, 5.0, label="x").units

    whole = released(many)
    for place in {0, count // 2, count}:
        others = [i for i in range(count + 1) if i != place]
        without = released(taken(many, others)) if count else torch.zeros_like(whole)
        assert torch.equal(whole - without, summand_of(phi)(taken(many, [place])))


@pytest.mark.parametrize("name", ["linear maps", "aggregated, label", "sum kernel, table"])
def test_a_neighbour_in_a_sample_moves_a_step_by_its_own_summand(name, monkeypatch):
    schema, phi = made(name)
    many, _ = shuffled_records(adversarial_records(schema), 140)
    data = PrivateData(
        dataset(many, schema), Ledger(Budget(epsilon=1e3, delta=1e-5)), fast_sampler=silent
    )
    steps = data.poisson_steps(
        0.5, 20, 9.0, bound=enforced_bound(phi), label="s", dimension=phi.segments * phi.dim
    )
    summand = summand_of(phi)

    def answer(sample: list[int]) -> Tensor:
        mask = np.zeros(140, bool)
        mask[sample] = True
        monkeypatch.setattr(noise, "poisson_mask", lambda count, rate: mask)
        return next(steps).noisy_sum(phi) / summand.grid

    for sample, x in (
        ([], 5),
        (list(range(15)), 99),
        (list(range(1, 128)), 0),
        (list(range(139)), 139),
    ):
        moved = answer(sorted([*sample, x])) - answer(sample)
        assert torch.equal(moved, summand(taken(many, [x])).double())


# -- the checks themselves ---------------------------------------------------------------------------------------------


class Mixing(Plain):
    """Takes the batch's mean off."""

    def __call__(self, batch: Batch) -> Tensor:
        return batch.values - batch.values.nan_to_num(0, 0, 0).mean(dim=0)


class Deciding(Plain):
    """Chooses a unit for the whole batch by its largest number."""

    def __call__(self, batch: Batch) -> Tensor:
        return batch.values / 2 if float(batch.values.nan_to_num().max()) > 50 else batch.values


@pytest.mark.parametrize("cls", [Mixing, Deciding])
def test_a_map_in_which_neighbours_meet_is_told_from_one_in_which_they_do_not(cls):
    table = Schema(
        kind="table",
        columns=tuple(Column(name=f"c{i}", kind="numerical", low=-1, high=1) for i in range(4)),
    )
    check_map(Plain(4), table)
    with pytest.raises(AssertionError, match="record"):
        check_map(cls(4), table)
    with pytest.raises(AssertionError, match="not 0"):
        check_additive(lambda batch: torch.ones(3, dtype=torch.int64), Batch(random(5, 4), None))
    with pytest.raises(AssertionError, match="whole numbers"):
        check_additive(lambda batch: batch.values.sum(0), Batch(random(5, 4), None))
    with pytest.raises(AssertionError, match="not the sum of their own"):
        check_additive(  # as one that forgets a last block of a single record
            lambda batch: batch.values[: len(batch) // 32 * 32 or None].sum(0).long(),
            Batch(torch.ones(5, 4), None),
        )


# -- any map, any rows, any division -----------------------------------------------------------------------------------


@st.composite
def situations(draw) -> tuple[str, Tensor, list[int], int]:
    """A map, which records of its pool there are, where they are divided, and the place of the neighbour."""
    name = draw(st.sampled_from(sorted(MAPS)))
    count = draw(st.one_of(st.integers(1, 40), st.integers(120, 136)))
    seed = draw(st.integers(0, 2**32 - 1))
    chosen = torch.randint(0, 10**6, (count,), generator=torch.Generator().manual_seed(seed))
    cuts = sorted(draw(st.lists(st.integers(0, count), max_size=3)))
    return name, chosen, cuts, draw(st.integers(0, count - 1))


@given(situation=situations(), whole=st.booleans())
@settings(max_examples=1200)
def test_any_neighbour_of_any_records_in_any_division(situation, whole):
    name, chosen, cuts, place = situation
    schema, phi = made(name)
    pool = adversarial_records(schema, seed=3, whole=whole and schema.kind == "images")
    records = taken(pool, chosen % len(pool))
    summand = summand_of(phi)
    bounds = [0, *cuts, len(chosen)]
    divided = sum(
        (summand(taken(records, torch.arange(a, b))) for a, b in itertools.pairwise(bounds)),
        torch.zeros(summand.shape, dtype=torch.int64),
    )
    others = [i for i in range(len(chosen)) if i != place]
    assert torch.equal(divided - summand(taken(records, others)), summand(taken(records, [place])))
