"""The contract of everything that is summed over records: S(A ∪ {x}) − S(A) = S({x}), exactly.

Whatever sees several records at once may let one of them change what the others contribute: by a decision for a whole block, by a
faster way for good batches, by the last bit of a product that depends on the size of a batch. The noise covers one record's own
contribution and nothing else. So the sum over many records is compared with the sum of the records' sums, one by one, at
numbers of records on both sides of every boundary in the code, with records that were made to break it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.privacy import BoundedSum, OuterSum, RecordMap, enforced_bound
from sfumato.privacy.bounding import summand_of
from sfumato.privacy.units import SHARES, shares_of

# Sizes of the chunks that records go through on their way to a sum: readers, engine, maps, gradients.
BOUNDARIES = (16, 32, 64, 128, 200, 256, 512, 1024)
# On both sides of each, and all small numbers.
COUNTS: tuple[int, ...] = tuple(
    sorted(
        {*range(71), *range(510, 516), *range(1022, 1027)}.union(
            *({size - 1, size, size + 1} for size in BOUNDARIES)
        )
    )
)
_ORDINARY = 12  # ordinary records among the adversarial ones
_TINY = 1e-45
_HUGE = 3e38

Sum = Callable[[Batch], Tensor]


def adversarial_records(schema: Schema, *, seed: int = 0, whole: bool = False) -> Batch:
    """Some ordinary records, and those that a sum must stand: NaN, infinite, huge, denormal, out of range, of no class.

    The last class has no record at all. `whole`: images as bytes.
    """
    random = torch.Generator().manual_seed(seed)
    if whole and schema.kind != "images":
        raise ValueError("only images come as bytes")
    if whole:
        rows = torch.randint(0, 256, (_ORDINARY, *schema.shape), generator=random).to(torch.uint8)
        edges = [torch.full(schema.shape, value, dtype=torch.uint8) for value in (0, 1, 128, 255)]
    else:
        rows = _ordinary(schema, random)
        edges = list(_edges(rows[0], random))
    values = torch.stack([*rows, *edges])
    if not schema.labelled:
        return Batch(values, None)
    used = max(1, schema.n_classes - 1)
    labels = torch.randint(0, used, (len(values),), generator=random)
    labels[3::7] = -1  # what a label of no known class becomes
    return Batch(values, labels)


def _ordinary(schema: Schema, random: torch.Generator) -> Tensor:
    if schema.kind == "images":
        return torch.rand(_ORDINARY, *schema.shape, generator=random)
    columns = []
    for column in schema.columns:
        if column.low is not None and column.high is not None:
            share = torch.rand(_ORDINARY, generator=random)
            columns.append(column.low + share * (column.high - column.low))
        else:
            codes = torch.randint(0, len(column.categories), (_ORDINARY,), generator=random)
            columns.append(codes.to(torch.float32))
    return torch.stack(columns, dim=1)


def _edges(row: Tensor, random: torch.Generator) -> Iterable[Tensor]:
    bad = (float("nan"), float("inf"), -float("inf"), _HUGE, -_HUGE, _TINY, -_TINY)
    for value in (*bad, 0.0, -0.0, 0.5, 1.0, -1.0, 99.0, 1e10):
        yield torch.full_like(row, value)
    for value in bad:  # in one place, which is enough
        one = row.clone()
        one.view(-1)[int(torch.randint(0, one.numel(), (1,), generator=random))] = value
        yield one


def shuffled_records(records: Batch, count: int, *, seed: int = 0) -> tuple[Batch, Tensor]:
    """`count` of `records`, each again and again in no order, and which of them each one is."""
    random = torch.Generator().manual_seed(seed)
    chosen = torch.randint(0, len(records), (count,), generator=random)
    return _taken(records, chosen), chosen


def check_additive(
    total: Sum,
    records: Batch,
    *,
    counts: Sequence[int] = COUNTS,
    splits: int = 3,
    seed: int = 0,
) -> Tensor:
    """S of any number of `records` is the sum of their own: at all `counts`, in any order and any division.

    `total` gives S of a batch in whole numbers. Returns S({x}) for each of `records`, (records, …).
    """
    alone = torch.stack([total(_taken(records, torch.tensor([i]))) for i in range(len(records))])
    _claim(not alone.is_floating_point(), "A sum over records must be one of whole numbers.")
    _claim(bool((total(_taken(records, torch.arange(0))) == 0).all()), "S of no records is not 0.")
    many, chosen = shuffled_records(records, max(counts), seed=seed)
    running, before = torch.zeros_like(alone[0]), 0
    for count in sorted(counts):
        running = running + alone[chosen[before:count]].sum(dim=0)
        before = count
        _claim(
            torch.equal(total(_taken(many, torch.arange(count))), running),
            f"S of {count} records is not the sum of their own: a record changes what others contribute.",
        )
    random = torch.Generator().manual_seed(seed)
    for _ in range(splits):
        order = torch.randperm(len(many), generator=random)
        cuts = torch.randint(0, len(many) + 1, (4,), generator=random).sort().values.tolist()
        parts = [order[a:b] for a, b in itertools.pairwise([0, *cuts, len(many)])]
        found = sum((total(_taken(many, part)) for part in parts), torch.zeros_like(running))
        _claim(
            torch.equal(found, running),
            "S depends on the order of the records, or on how they are divided.",
        )
    return alone


def check_map(
    phi: RecordMap,
    schema: Schema,
    *,
    records: Batch | None = None,
    counts: Sequence[int] = COUNTS,
    seed: int = 0,
) -> None:
    """A map keeps its contract behind the wall: additive, bounded, and each record's contribution its own, bit by bit.

    `records` are tried besides those of `adversarial_records` that fit the schema.
    """
    pools = [(adversarial_records(schema, seed=seed), counts)]
    if schema.kind == "images":  # as bytes, which maps turn into the same pixels
        pools.append((adversarial_records(schema, seed=seed, whole=True), BOUNDARIES))
    if records is not None:
        pools.append((records, counts))
    summand = summand_of(phi)
    limit = enforced_bound(phi)
    for pool, numbers in pools:
        alone = check_additive(summand, pool, counts=numbers, seed=seed)
        lengths = (alone.to(torch.float64) * summand.grid).flatten(1).norm(dim=1)
        _claim(bool((lengths <= limit).all()), f"A contribution is longer than {limit:g}.")
        _check_rows(summand, pool, seed)
        _check_units(phi, pool, alone, seed)


def _check_rows(summand: BoundedSum | OuterSum, pool: Batch, seed: int) -> None:
    """Each row is what it is alone, wherever it stands and whoever stands beside it."""
    own = [_rows(summand, _taken(pool, torch.tensor([i]))) for i in range(len(pool))]
    alone = torch.cat(own)
    for count in (len(pool), 77, 1030):
        many, chosen = shuffled_records(pool, count, seed=seed + count)
        _claim(
            torch.equal(_rows(summand, many), alone[chosen]),
            "A record's contribution depends on its place in a batch or on the records beside it.",
        )


def _check_units(phi: RecordMap, pool: Batch, alone: Tensor, seed: int) -> None:
    """Records of a unit count by their shares, to the last bit, so that a unit is no longer than a record may be."""
    summand = summand_of(phi, SHARES)
    random = torch.Generator().manual_seed(seed)
    for count in (1, 77, 1030):
        many, chosen = shuffled_records(pool, count, seed=seed + count)
        units = torch.randint(0, max(1, count // 9), (count,), generator=random)
        shares = torch.from_numpy(shares_of(units.unique(return_inverse=True)[1].numpy(), 7))
        expected = torch.tensordot(shares, alone[chosen], dims=1)
        _claim(
            torch.equal(summand(replace(many, shares=shares)), expected),
            "A record with shares does not count as many times as it has of them.",
        )
        first = units == units[0]
        unit = summand(replace(_taken(many, first.nonzero()[:, 0]), shares=shares[first]))
        length = float((unit.to(torch.float64) * summand.grid).norm())
        _claim(length <= enforced_bound(phi), "A unit adds more than one record may.")


def _rows(summand: BoundedSum | OuterSum, batch: Batch) -> Tensor:
    if isinstance(summand, BoundedSum):
        return summand.rows(batch)
    return torch.cat(summand.units(batch), dim=1)


def _taken(records: Batch, chosen: Tensor) -> Batch:
    labels = None if records.labels is None else records.labels[chosen]
    return Batch(records.values[chosen], labels)


def _claim(truth: bool, otherwise: str) -> None:
    if not truth:
        raise AssertionError(otherwise)
