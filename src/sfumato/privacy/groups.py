"""Sums over groups of records: each summand is any function of its group, clipped as a whole, and one record is in one group.

Some methods need more of the private rows than a sum of vectors of single records: the gradient of an optimal-transport plan
(DP-Sinkhorn), or what a critic trained on a part of the data says (GS-WGAN). What bounds such an answer is its own length: the
wall clips it to norm C, so whatever one record does, the answer stays inside a ball of radius C. Two kinds, each priced by its
`Charge.summands`; σ is the noise, q the rate, and all proofs are for one step, given everything released before it.

**Groups** (`GroupSum`). Each record enters a step's sample with probability q and, if in, falls into one of k groups at random,
each by its own coins; the answer is Σ f(group), ‖f‖ ≤ C. *Proof.* Fix the coins of all other records and the group that record x
would fall into. Without x the sum is u. With x it is u with probability 1 − q, and else v = u − f(g) + f(g ∪ x), so
‖v − u‖ ≤ 2C. The two laws are N(u, σ²) and (1 − q)·N(u, σ²) + q·N(v, σ²): a Poisson-sampled Gaussian with sensitivity 2C under
add-remove. Averaging over the coins that were fixed cannot raise the hockey-stick divergence (joint convexity). Leaving a record
out (zero-out) is the same. Replaced by x', the record moves the sum from u to v or to w with ‖v − u‖, ‖w − u‖ ≤ 2C: no worse than
the replacement of a record whose contributions have norm 2C, which is what is charged (‖v − w‖ ≤ 2C too, so this errs on the
safe side).

**Shards** (`ShardSum`). Each record is put into one of K shards once, by its own coin, so that no other record moves when it
comes or goes. In every step each shard is drawn with probability q, in secret; the answer is Σ f(shard), ‖f‖ ≤ C. *Proof.* Fix
all other coins and the shard of x. Whether x is added, left out or replaced, one shard's value changes from f to f', both in the
ball, and with u the sum over the other drawn shards the laws are (1 − q)·N(u, σ²) + q·N(u + f, σ²) and the same with f': those
of a sum over "records" of norm C of which one was replaced. So the charge is that of replace-one *under every relation*.
For the steps to compose, f may depend on its shard and on what was released before (and on public seeds), but not on which steps
happened to draw the shard: those draws are the secret that q stands for, and a critic that went on learning only when drawn would
carry them from step to step. Hence a shard's lasting state (`ShardStates`) is a function of the shard and of what was released
before, the same whenever it is computed: that it is computed only when first needed saves time and changes nothing. A later state
may set out from an earlier one, which is made up for if the shard was not drawn meanwhile; and every answer works on a copy that
is thrown away. A resumed run divides the data anew; the proof is for each step by itself, so that changes nothing.

Private: groups, shards, their sizes, how many were drawn, and all prepared states: these live in the wall's memory only.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sfumato.data import Batch
from sfumato.errors import BadInput
from sfumato.privacy.arithmetic import exact_arithmetic
from sfumato.privacy.bounding import check_bound, clipped, grid_of

# Far below any noise, and sums of millions of groups stay exact in 64 bits.
_DIGITS = 30

Answer = Callable[[Batch], Tensor]
Prepare = Callable[[Batch, Any, torch.Generator], Any]
ShardAnswer = Callable[[Batch, Any, torch.Generator], Tensor]


def enforced_group_bound(dim: int, bound: float) -> float:
    """The length that no summand of `dim` numbers exceeds after clipping to `bound` and rounding to the grid.

    Proof: `clipped` in double precision, ≤ bound · (1 + 2⁻⁴⁰) for any `dim` (its norm is a tree of additions); rounding moves
    each entry by at most grid/2 ≤ bound · 2⁻³¹, hence the vector by at most √dim · bound · 2⁻³¹.
    """
    return bound * (1 + 2.0**-30 + math.sqrt(dim) * 2.0 ** -(_DIGITS + 1))


class _ClippedSum:
    """What groups and shards have in common: summands of one length, clipped as a whole, on a grid."""

    def __init__(self, *, dim: int, bound: float, parts: int) -> None:
        check_bound(bound)
        if parts < 1:
            raise BadInput(f"Records are divided into at least one part, not into {parts}.")
        self.dim, self.bound, self.parts = dim, bound, parts
        self.grid = grid_of(bound, _DIGITS)

    @property
    def enforced(self) -> float:
        """What the ledger is charged with."""
        return enforced_group_bound(self.dim, self.bound)

    def units(self, value: Tensor) -> Tensor:
        """One summand in whole grid units, (dim,) int64: clipped to the bound, and zero if any number is not finite."""
        if value.shape != (self.dim,):
            raise ValueError(f"A function of a group must return {self.dim} numbers.")
        # On the processor, whatever device it was computed on: the bound is of the numbers as they arrive here.
        kept = clipped(value.detach().cpu()[None], self.bound)[0]
        return kept.div_(self.grid).round_().to(torch.int64)


class GroupSum(_ClippedSum):
    """Σ answer(group) over `groups` parts of a Poisson sample, each summand clipped as a whole to norm `bound`.

    **Guarantee**: a record that enters, leaves or changes moves the sum by at most 2 · `enforced`, whatever function of its group
    `answer` is. It must be one: what it kept of another group, or drew from a source of its own, would join the two.
    """

    def __init__(self, answer: Answer, *, dim: int, bound: float, groups: int = 1) -> None:
        super().__init__(dim=dim, bound=bound, parts=groups)
        self._answer = answer

    @exact_arithmetic()
    def __call__(self, group: Batch) -> Tensor:
        """The summand of one group in grid units; an empty one is not asked, and counts for nothing."""
        # What a function draws from the common source of random numbers must not tell how many groups there were.
        with torch.random.fork_rng(devices=[]):
            return self.units(self._answer(group))


class ShardStates:
    """What is kept of each of `shards` fixed parts of the data between steps: private, in the wall's memory only.

    `prepare(shard, earlier, random)` makes the state of one shard from the one it had among `earlier` states (None: the first).
    It must be a function of these and of what was released before; `random` is seeded with the shard's number.
    """

    def __init__(
        self, prepare: Prepare, *, shards: int, earlier: ShardStates | None = None
    ) -> None:
        if earlier is not None and earlier.shards != shards:
            raise BadInput("States are taken over only if the data are divided as before.")
        self.shards: int = shards
        self.earlier = earlier
        self._prepare = prepare
        self._phase: int = 0 if earlier is None else earlier._phase + 1

    @exact_arithmetic()
    def prepared(self, shard: Batch, earlier: Any, number: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            return self._prepare(shard, earlier, _seeded(2 * self._phase, number))


class ShardSum(_ClippedSum):
    """Σ answer(shard, state) over the drawn ones of fixed shards of the data, each clipped as a whole to norm `bound`.

    `answer(shard, state, random)` is given a copy of the shard's state, and must be a function of its arguments and of what was
    released before; `random` is seeded with the step and the shard's number.

    **Guarantee**: a record that comes, goes or changes moves one summand, from anywhere in the ball of radius `enforced` to
    anywhere else in it.
    """

    def __init__(self, answer: ShardAnswer, *, dim: int, bound: float, states: ShardStates) -> None:
        super().__init__(dim=dim, bound=bound, parts=states.shards)
        self.states = states
        self._answer = answer

    @exact_arithmetic()
    def __call__(self, shard: Batch, state: Any, step: int, number: int) -> Tensor:
        """The summand of one shard in grid units; `state` is left as it is."""
        with torch.random.fork_rng(devices=[]):
            value = self._answer(shard, copy.deepcopy(state), _seeded(2 * step + 1, number))
        return self.units(value)


def _seeded(time: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed(time << 32 | number)
