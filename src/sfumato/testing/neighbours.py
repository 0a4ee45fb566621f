"""Neighbouring data sets made to be told apart, for every mechanism of the wall: what `sfumato audit mechanism` tries.

The worst record is one at its bound, or far beyond it, along a direction that nobody else takes; beside records that a sum must
stand (`adversarial_records`), in data sets whose sizes lie on both sides of every chunk, or in a class that is otherwise empty.
All records are made up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sfumato.data import Batch, Column, Schema
from sfumato.privacy import GradientSum, GroupSum, Neighbours, Query, ShardStates, ShardSum
from sfumato.privacy.audit import Mechanism, Pair, SideBySide
from sfumato.testing.sums import adversarial_records, shuffled_records

# Records beside the one that comes or goes: with it, the next chunk of a reader, engine, map or gradient begins or is full.
CROSSINGS = (0, 15, 16, 63, 64, 127, 128, 511, 512, 1023, 1024)
_FEW = (0, 15, 63, 127, 511, 1023)
# Beside so many no part of three is ever empty (once in 10⁹ draws at rate 0.5), so the others' summands are always the same.
_FILLED = (127, 128, 255, 511, 1023)
# What a canary's row is multiplied with: at the bound, beyond it, far beyond it.
_LENGTHS = (1.0, 2.0, 1e6)
# Pairs that stand side by side in one release.
_WIDE, _FILED, _NARROW = 256, 128, 128
_MARK = 7.0  # no other record has it
_ROOT = math.sqrt(0.5)
# Records of units, in turns, and how many units stand beside: with their records, past the chunks of a reader and of a map.
_COPIES, _UNITS = (20, 1, 3), (0, 16, 127)

_ADDED, _REPLACED, _ZERO = (
    Neighbours.ADD_REMOVE,
    Neighbours.REPLACE_ONE,
    Neighbours.ZERO_OUT,
)


def mechanisms(*, full: bool = False, counts: Sequence[int] | None = None) -> list[Mechanism]:
    """Every mechanism of the wall with its neighbours; `full`: under all relations, at several ε, beside all `CROSSINGS`."""
    if counts is None:
        counts = CROSSINGS if full else _FEW
    found = [
        _plain(1, _ZERO, (15,), 8),
        _plain(2, _ZERO, (15,), 3),
        _plain(4, _ZERO, counts),
        _plain(4, _REPLACED, counts),
        _non_negative(4, counts),
        _filed(4, _ADDED, counts),
        _product(4, counts),
        _second_moment(4, counts),
        *(_gradients(route, 4, _ZERO, counts) for route in ROUTES),
        _sampled(4, counts),
        _of_units(_plain(4, _ZERO, _UNITS)),
        _of_units(_gradients("products", 4, _ZERO, _UNITS)),
        _groups(4, counts),
        _groups(4, _FILLED, parts=3),
        _shards(4, counts),
        _shards(4, _FILLED, parts=3),
    ]
    if full:
        found += [
            _plain(4, _ADDED, counts),
            _plain(1, _REPLACED, counts, 6),
            _filed(1, _ZERO, counts, 6),
            _filed(4, _REPLACED, counts),
            *(_gradients(route, 4, _REPLACED, counts) for route in ROUTES),
            *(_gradients(route, 4, _ADDED, counts, rate=0.5) for route in ROUTES),
            _sampled(2, counts, rate=0.2, effort=4),
            _of_units(_plain(4, _REPLACED, _UNITS)),
            _of_units(_filed(4, _ADDED, _UNITS)),
            _of_units(_product(4, _UNITS)),
            _of_units(_second_moment(4, _UNITS)),
            *(_of_units(_gradients(route, 4, _ADDED, _UNITS, rate=0.5)) for route in ROUTES),
            _of_units(_groups(4, _UNITS, rate=0.5)),
            _of_units(_shards(4, _UNITS, rate=0.5)),
            *(_groups(4, *kind, rate=0.5) for kind in ((counts, 1), (_FILLED, 3))),
            *(_shards(4, *kind, rate=0.5) for kind in ((counts, 1), (_FILLED, 3))),
        ]
    return found


def _of_units(mechanism: Mechanism) -> Mechanism:
    """The same where units are protected: of one record, of a few, and of more than count."""
    return replace(mechanism, name=f"{mechanism.name}, of units", copies=_COPIES)


# -- records -------------------------------------------------------------------------------------------------------------


def table(width: int, classes: int = 0) -> Schema:
    """Records of `width` numbers from −1 to 1."""
    columns = tuple(
        Column(name=f"x{i}", kind="numerical", low=-1.0, high=1.0) for i in range(width)
    )
    return Schema(
        kind="table",
        shape=(width,),
        columns=columns,
        label="class" if classes else None,
        classes=tuple(f"class {i}" for i in range(classes)),
    )


def _joined(first: Batch, second: Batch) -> Batch:
    values = torch.cat([first.values, second.values])
    if first.labels is None or second.labels is None:
        return Batch(values, None)
    return Batch(values, torch.cat([first.labels, second.labels]))


def _nothing(record: Batch) -> Batch:
    """A record that counts for nothing, of the same class: what zero-out puts in its place."""
    return Batch(torch.full_like(record.values, math.nan), record.labels)


def neighbours(
    schema: Schema,
    relation: Neighbours,
    worst: Sequence[Batch],
    counts: Sequence[int] = CROSSINGS,
) -> Iterator[Pair]:
    """Pairs under `relation`: each of `worst` beside all counts, and every adversarial record beside the first two of them.

    Under replace-one the first of `worst` becomes another, or an adversarial one. Under the other relations, which cost the same,
    a record comes and goes, at the end or at the front, or it becomes one that counts for nothing.
    """
    pool = adversarial_records(schema)
    singles = [
        Batch(pool.values[i : i + 1], None if pool.labels is None else pool.labels[i : i + 1])
        for i in range(len(pool))
    ]
    for place, count in enumerate(counts):
        others = shuffled_records(pool, count, seed=count)[0]
        before = _joined(others, worst[0]) if relation is Neighbours.REPLACE_ONE else others
        for number, record in enumerate([*worst, *(singles if place < 2 else [])], start=1):
            name = f"record {number} beside {count}"
            yield Pair(name, before, _joined(others, record))
            if relation is not Neighbours.REPLACE_ONE and 0 < number <= len(worst):
                yield Pair(f"{name}, in front", others, _joined(record, others))
                zeroed = _joined(others, _nothing(record))
                yield Pair(f"{name}, for nothing", zeroed, _joined(others, record))


def _one(values: Tensor, label: int | None = None) -> Batch:
    labels = None if label is None else torch.tensor([label])
    return Batch(values[None].to(torch.float32), labels)


def _basis(width: int) -> Tensor:
    """Orthogonal directions (width, width): half of them axes, half (Hadamard's) spread over many numbers, to which noise that is
    not independent from number to number would show."""
    half = width // 2
    spread = torch.ones(1, 1, dtype=torch.float64)
    while len(spread) < half:
        spread = torch.cat([torch.cat([spread, spread], 1), torch.cat([spread, -spread], 1)])
    return torch.block_diag(torch.eye(half, dtype=torch.float64), spread / math.sqrt(half))


def _lengths(count: int) -> Tensor:
    return torch.tensor(_LENGTHS, dtype=torch.float64)[torch.arange(count) % len(_LENGTHS)][:, None]


def _canaries(
    present: Tensor,
    directions: Tensor,
    *,
    other: Tensor | None = None,
    labels: Tensor | None = None,
    absent: bool = False,
) -> SideBySide:
    """Each row of `present` is in the data, or by the coin `other`'s, or nothing in its place, or nothing at all (`absent`)."""
    one = present.to(torch.float32)
    zero = torch.full_like(one, math.nan) if other is None else other.to(torch.float32)

    def records(coins: Tensor) -> Batch:
        values = torch.where(coins[:, None], one, zero)
        if absent:
            return Batch(values[coins], None if labels is None else labels[coins])
        return Batch(values, labels)

    return SideBySide(len(present), records, directions)


# -- sums ----------------------------------------------------------------------------------------------------------------


def _values(batch: Batch) -> Tensor:
    return batch.values


def _by_class(batch: Batch) -> tuple[Tensor, Tensor]:
    assert batch.labels is not None
    return batch.values, batch.labels


def _plain(
    epsilon: float, relation: Neighbours, counts: Sequence[int], effort: float = 1
) -> Mechanism:
    schema, basis = table(_WIDE), _basis(_WIDE)
    rows = basis * _lengths(_WIDE)
    replaced = relation is _REPLACED
    worst = [_one(rows[i]) for i in (0, 1, _WIDE - 1)]
    if replaced:
        worst.append(_one(-rows[0]))
    return Mechanism(
        name="sum",
        query=Query(label="sum", shape=(_WIDE,)),
        schema=schema,
        neighbours=relation,
        epsilon=epsilon,
        asked=_values,
        pairs=tuple(neighbours(schema, relation, worst, counts)),
        side_by_side=_canaries(rows, basis, other=-rows if replaced else None),
        effort=effort,
    )


def _non_negative(epsilon: float, counts: Sequence[int]) -> Mechanism:
    """Replaced: two axes are √2 apart, and the negative side is clamped."""
    schema, axes = table(_WIDE), torch.eye(_WIDE, dtype=torch.float64)
    rows, half = axes * _lengths(_WIDE), _WIDE // 2
    worst = [_one(rows[0]), _one(rows[1]), _one(-rows[0])]
    return Mechanism(
        name="non-negative sum",
        query=Query(label="sum", shape=(_WIDE,), non_negative=True),
        schema=schema,
        neighbours=_REPLACED,
        epsilon=epsilon,
        asked=_values,
        pairs=tuple(neighbours(schema, _REPLACED, worst, counts)),
        side_by_side=_canaries(rows[:half], (axes[:half] - axes[half:]) * _ROOT, other=rows[half:]),
    )


def _filed(
    epsilon: float, relation: Neighbours, counts: Sequence[int], effort: float = 1
) -> Mechanism:
    """Each canary is the only record of its class."""
    schema, classes = table(2, _FILED), torch.arange(_FILED)
    turned = torch.tensor([[1.0, 0.0], [_ROOT, _ROOT], [_ROOT, -_ROOT]], dtype=torch.float64)
    rows = turned[classes % 3]
    directions = torch.zeros(_FILED, _FILED, 2, dtype=torch.float64)
    directions[classes, classes] = rows
    last = _FILED - 1
    worst = [_one(rows[0], last), _one(2 * rows[1], last), _one(-1e6 * rows[0], last)]
    replaced = relation is _REPLACED
    return Mechanism(
        name="sum filed by class",
        query=Query(label="sum", shape=(2,), segments=_FILED),
        schema=schema,
        neighbours=relation,
        epsilon=epsilon,
        asked=_by_class,
        pairs=tuple(neighbours(schema, relation, worst, counts)),
        side_by_side=_canaries(
            rows * _lengths(_FILED),
            directions.flatten(1),
            labels=classes,
            other=-rows if replaced else None,
            absent=relation is _ADDED,
        ),
        effort=effort,
    )


def _two_factors(batch: Batch) -> tuple[tuple[Tensor, Tensor], Tensor]:
    assert batch.labels is not None
    return (batch.values[:, :2], batch.values[:, 2:]), batch.labels


def _product(epsilon: float, counts: Sequence[int]) -> Mechanism:
    schema, classes = table(4, _FILED), torch.arange(_FILED)
    turned = torch.tensor([[1.0, 0, 1, 0], [_ROOT, _ROOT, _ROOT, -_ROOT]], dtype=torch.float64)
    rows = turned[classes % 2]
    directions = torch.zeros(_FILED, _FILED, 2, 2, dtype=torch.float64)
    directions[classes, classes] = rows[:, :2, None] * rows[:, None, 2:]
    last = _FILED - 1
    worst = [_one(rows[0], last), _one(3 * rows[1], last), _one(1e6 * rows[0], last)]
    return Mechanism(
        name="outer product",
        query=Query(label="product", shape=(2, 2), segments=_FILED),
        schema=schema,
        neighbours=_ZERO,
        epsilon=epsilon,
        asked=_two_factors,
        pairs=tuple(neighbours(schema, _ZERO, worst, counts)),
        side_by_side=_canaries(rows * _lengths(_FILED), directions.flatten(1), labels=classes),
    )


def _second_moment(epsilon: float, counts: Sequence[int]) -> Mechanism:
    """a ⊗ a of two axes are √2 apart; of opposite vectors they are the same."""
    schema, classes = table(2, _FILED), torch.arange(_FILED)
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    directions = torch.zeros(_FILED, _FILED, 2, 2, dtype=torch.float64)
    directions[classes, classes] = torch.diag(torch.tensor([_ROOT, -_ROOT], dtype=torch.float64))
    last = _FILED - 1
    worst = [_one(rows[0], last), _one(2 * rows[1], last), _one(1e6 * rows[1], 0)]
    return Mechanism(
        name="symmetric outer product",
        query=Query(label="product", shape=(2, 2), segments=_FILED, symmetric=True),
        schema=schema,
        neighbours=_REPLACED,
        epsilon=epsilon,
        asked=_by_class,
        pairs=tuple(neighbours(schema, _REPLACED, worst, counts)),
        side_by_side=_canaries(
            rows[:1] * _lengths(_FILED),
            directions.flatten(1),
            other=rows[1:].expand(_FILED, 2),
            labels=classes,
        ),
    )


def _sampled(
    epsilon: float, counts: Sequence[int], rate: float = 0.5, effort: float = 4
) -> Mechanism:
    schema, basis = table(_WIDE), _basis(_WIDE)
    rows = basis * _lengths(_WIDE)
    worst = [_one(rows[0]), _one(rows[1]), _one(rows[-1])]
    return Mechanism(
        name=f"Poisson-sampled sum, rate {rate:g}",
        query=Query(label="sum", shape=(_WIDE,), rate=rate, steps=1),
        schema=schema,
        neighbours=_ZERO,
        epsilon=epsilon,
        asked=_values,
        pairs=tuple(neighbours(schema, _ZERO, worst, counts)),
        side_by_side=_canaries(rows, basis),
        effort=effort,
    )


# -- gradients: networks whose gradient is the record itself, on each of the wall's ways -----------------------------------------


class _Products(nn.Module):
    """A linear layer called once: the gradient is a product that is never formed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(_NARROW, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[:, 0]


class _FormedRows(_Products):
    """The same layer at two positions: the gradient of each record is formed."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.stack([x, torch.zeros_like(x)], dim=1)).sum(dim=(1, 2))


class _Bare(nn.Module):
    """A parameter of no known layer: one gradient a record, by `torch.func.vmap`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(_NARROW))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def _output(network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return network(x)


ROUTES: dict[str, type[nn.Module]] = {
    "products": _Products,
    "formed rows": _FormedRows,
    "vmap": _Bare,
}


def _gradients(
    route: str, epsilon: float, relation: Neighbours, counts: Sequence[int], rate: float = 1.0
) -> Mechanism:
    schema, basis = table(_NARROW), _basis(_NARROW)
    rows = basis * _lengths(_NARROW)
    replaced = relation is _REPLACED
    worst = [_one(rows[0]), _one(rows[1]), _one(rows[-1])]
    if replaced:
        worst.append(_one(-rows[0]))
    sampled = "" if rate == 1 else f", rate {rate:g}"
    return Mechanism(
        name=f"gradients, {route}{sampled}",
        query=Query(label="gradients", shape=(_NARROW,), over="gradients", rate=rate, steps=1),
        schema=schema,
        neighbours=relation,
        epsilon=epsilon,
        asked=GradientSum(ROUTES[route](), _output, bound=1.0),
        pairs=tuple(neighbours(schema, relation, worst, counts)),
        side_by_side=_canaries(
            rows, basis, other=-rows if replaced else None, absent=relation is _ADDED
        ),
    )


# -- groups and shards: a function that is turned around by one record ---------------------------------------------------------


def _turned(group: Batch) -> Tensor:
    """Far beyond the bound, to the side that says whether the marked record is there."""
    marked = bool((group.values == _MARK).any())
    return torch.tensor([1e6 if marked else -1e6])


def _named(kind: str, parts: int, rate: float) -> str:
    return (kind if parts == 1 else f"{parts} {kind}") + ("" if rate == 1 else f", rate {rate:g}")


def _groups(
    epsilon: float, counts: Sequence[int], parts: int = 1, *, rate: float = 1.0
) -> Mechanism:
    schema = table(1)
    return Mechanism(
        name=_named("groups", parts, rate),
        query=Query(label="groups", shape=(1,), over="groups", rate=rate, steps=1, parts=parts),
        schema=schema,
        neighbours=_ADDED,
        epsilon=epsilon,
        asked=GroupSum(_turned, dim=1, bound=1.0, groups=parts),
        pairs=_marked(schema, counts),
        effort=0.4 / parts,  # several parts take as many times longer
    )


def _shards(
    epsilon: float, counts: Sequence[int], parts: int = 1, *, rate: float = 1.0
) -> Mechanism:
    schema = table(1)
    states = ShardStates(lambda shard, earlier, random: None, shards=parts)
    return Mechanism(
        name=_named("shards", parts, rate),
        query=Query(label="shards", shape=(1,), over="shards", rate=rate, steps=1, parts=parts),
        schema=schema,
        neighbours=_ADDED,
        epsilon=epsilon,
        asked=ShardSum(
            lambda shard, state, random: _turned(shard), dim=1, bound=1.0, states=states
        ),
        pairs=_marked(schema, counts),
        effort=0.4 / parts,  # several parts take as many times longer
    )


def _marked(schema: Schema, counts: Sequence[int]) -> tuple[Pair, ...]:
    return tuple(neighbours(schema, _ADDED, [_one(torch.tensor([_MARK]))], counts))
