"""The gate as a method sees it: `data.sum(label, rows)`, `data.steps(label)`, `data.noise_std(label)`, `data.remember(…)`.

A method says which of its promised queries it asks, and how a record becomes a vector; nothing of noise, bounds or sampling. What
the query says of its rows is enforced by the wall (`privacy.bounding`, `gradients`, `groups`), never believed.

Private: records, and what rows are computed of them. Public: labels, queries, noise; answers once they are given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from sfumato.data import Batch
from sfumato.errors import PlanMismatch
from sfumato.privacy.accounting import Charge, Plan
from sfumato.privacy.bounding import FeatureMap, OuterMap, Pieces, RecordMap
from sfumato.privacy.budget import Budget
from sfumato.privacy.gradients import GradientSum, Inputs, Loss, records
from sfumato.privacy.groups import Answer, GroupSum, ShardAnswer, ShardStates, ShardSum
from sfumato.privacy.memory import Remembered, RememberedRows
from sfumato.privacy.query import Query
from sfumato.privacy.release import Release
from sfumato.privacy.wall import PaidSteps, PrivateData, Step

# (n records) → rows (n, d), or factors ((n, a), (n, b)), of blocks ((n, blocks · a), (n, blocks · b)); where there are segments,
# (these, the segment (n,) of each). A segment outside 0 … segments − 1 drops its record. A `FeatureMap` is such a function too,
# with a faster way for wide rows; an `OuterMap` tells its factors.
Rows = Callable[[Batch], Any] | OuterMap


class Gate:
    """What `_fit` is given. **Guarantee**: that of `PrivateData`; each query is asked once, as it was promised."""

    def __init__(
        self,
        private: PrivateData,
        queries: Sequence[Query],
        charges: Plan,
        budget: Budget,
        on_release: Callable[[str], None] | None = None,
    ) -> None:
        self._private, self._on_release = private, on_release
        labels = [q.label for q in queries]
        if labels != [c.label for c in charges]:
            raise PlanMismatch(
                "The run's promise lists other queries than this method has; go on with the version that began it."
            )
        self._promises = {q.label: (q, c) for q, c in zip(queries, charges, strict=True)}
        self._memories: list[Remembered | RememberedRows] = []
        self.schema, self.budget = private.schema, budget  # the public facts that `queries` had

    @property
    def public_size(self) -> int | None:
        """The number of records, or None where it is private."""
        return self._private.public_size

    def noise_std(self, label: str) -> float:
        """The standard deviation of the noise in each number of an answer: public before a row is read."""
        return self._promised(label)[1].noise_std

    def sum(self, label: str, rows: Rows, *, given: Sequence[Tensor | float] = ()) -> Release:
        """Σ rows over all records, clipped and noisy, as the query `label` promised it.

        `given` are the released or public numbers that `rows` is made with: a run that is gone on with other ones is refused.
        """
        query, charge = self._promised(label)
        if query.steps is not None:
            raise PlanMismatch(f"{label!r} was promised as a series of steps; ask data.steps.")
        asked = _map_of(query, rows, given)
        release = self._private.noisy_sum(asked, charge.noise_multiplier, label=label)
        if self._on_release is not None:
            self._on_release(label)
        return release

    def steps(self, label: str) -> Series:
        """The paid steps that the query `label` promised."""
        query, charge = self._promised(label)
        if query.steps is None:
            raise PlanMismatch(f"{label!r} was promised as one sum over all records; ask data.sum.")
        return Series(self._private, query, charge)

    @overload
    def remember(self, compute: Callable[[Batch], Tensor]) -> Callable[[Batch], Tensor]: ...
    @overload
    def remember(
        self, compute: Callable[[Tensor], Tensor], each: Literal["record"]
    ) -> Callable[[Tensor], Tensor]: ...
    def remember(self, compute: Callable[[Any], Tensor], each: str = "batch") -> Any:
        """`compute`, once for each batch (or record): its values are private, stay here, and are forgotten when the fit ends."""
        memory = RememberedRows(compute) if each == "record" else Remembered(compute)
        self._memories.append(memory)
        return memory

    def close(self) -> None:
        """The fit is over: what was remembered is forgotten, and nothing is answered any more."""
        for memory in self._memories:
            memory.forget()
        self._promises.clear()

    def _promised(self, label: str) -> tuple[Query, Charge]:
        if label not in self._promises:
            known = ", ".join(self._promises) or "none, since the fit is over"
            raise PlanMismatch(f"{label!r} was not promised; the queries are: {known}.")
        return self._promises[label]


class Series:
    """The paid steps of one query, for the training loop, which says where to begin."""

    def __init__(self, private: PrivateData, query: Query, charge: Charge) -> None:
        self._private, self.query, self._charge = private, query, charge
        self._steps: PaidSteps | None = None
        self._map: RecordMap | None = None
        self._rows: Rows | None = None
        self._gradients: GradientSum | None = None

    def __len__(self) -> int:
        return self._charge.steps

    @property
    def noise_std(self) -> float:
        return self._charge.noise_std

    def begin(self, start: int = 0) -> Iterator[Paid]:
        """Pay for all steps; those before `start` were answered already."""
        charge = self._charge
        self._steps = self._private.poisson_steps(
            charge.rate,
            charge.steps,
            charge.noise_multiplier,
            bound=self.query.enforced,
            label=charge.label,
            dimension=charge.dimension,
            summands=charge.summands,
            start=start,
        )
        return iter(self)

    def __iter__(self) -> Iterator[Paid]:
        return self

    def __next__(self) -> Paid:
        if self._steps is None:
            raise PlanMismatch(f"The steps of {self.query.label!r} were not begun.")
        return Paid(self, next(self._steps))

    def forget(self, before: int) -> None:
        assert self._steps is not None
        self._steps.forget(before)

    def map_of(self, rows: Rows) -> RecordMap:
        """One map for all steps with the same rows: what the wall finds out about a map, it finds out once."""
        if self._map is None or self._rows != rows:
            self._map, self._rows = _map_of(self.query, rows), rows
        return self._map

    def gradients_of(self, network: nn.Module, loss: Loss, inputs: Inputs) -> GradientSum:
        known = self._gradients
        if known is None or (known.network, known.loss, known.inputs) != (network, loss, inputs):
            known = GradientSum(network, loss, bound=self.query.bound, inputs=inputs)
            if known.dim != self.query.dim:
                raise PlanMismatch(
                    f"{self.query.label!r} was promised for {self.query.dim} parameters, and there are {known.dim}."
                )
            self._gradients = known
        return known


class Paid:
    """One paid step: it answers once, by the kind of sum that was promised."""

    def __init__(self, series: Series, step: Step) -> None:
        self.index, self._series, self._step = step.index, series, step

    def sum(self, rows: Rows) -> Tensor:
        """Σ rows over this step's sample, clipped and noisy; (segments, dim) float64."""
        return self._step.noisy_sum(self._series.map_of(rows))

    def gradient(
        self, network: nn.Module, loss: Loss, *, inputs: Inputs = records, over: float = 1.0
    ) -> None:
        """Into the network's `.grad`: Σ of clipped gradients + noise, ÷ `over`, the *expected* size of a sample."""
        gradients = self._series.gradients_of(network, loss, inputs)
        gradients.assign(self._step.noisy_gradient(gradients) / over)

    def groups(self, answer: Answer) -> Tensor:
        """Σ of a clipped function of each group of this step's sample + noise; (dim,) float32."""
        query = self._series.query
        return self._step.noisy_groups(
            GroupSum(answer, dim=query.dim, bound=query.bound, groups=query.parts)
        )

    def shards(self, answer: ShardAnswer, states: ShardStates) -> Tensor:
        """Σ of a clipped function of each shard that this step draws + noise; (dim,) float32."""
        query = self._series.query
        if states.shards != query.parts:
            raise PlanMismatch(
                f"{query.label!r} was promised for {query.parts} shards, not for {states.shards}."
            )
        return self._step.noisy_shards(
            ShardSum(answer, dim=query.dim, bound=query.bound, states=states)
        )


# -- a query and its rows as the wall's maps -----------------------------------------------------------------------------------


def _map_of(query: Query, rows: Rows, given: Sequence[Tensor | float] = ()) -> RecordMap:
    return (_Products if query.product else _Vectors)(query, rows, given)


class _Asked:
    """What both maps have in common: rows and segments of a batch by one call."""

    def __init__(self, query: Query, rows: Rows, given: Sequence[Tensor | float]) -> None:
        self.rows, self._query, self._given = rows, query, given
        self.segments = query.segments

    @property
    def kind(self) -> str:
        """What the store knows the question by."""
        plain = isinstance(self.rows, type(_map_of)) or hasattr(self.rows, "__self__")
        return self._query.label if plain else type(self.rows).__name__

    def public_parts(self) -> tuple[Tensor, ...]:
        own: tuple[Tensor, ...] = getattr(self.rows, "public_parts", tuple)()
        return (*own, *(torch.as_tensor(part) for part in self._given))

    def _found(self, batch: Batch) -> tuple[Any, Tensor | None]:
        """What `rows` says of a batch, and the segment of each record."""
        assert callable(self.rows)
        found = self.rows(batch)
        product = self._query.product and not self._query.symmetric
        alone = isinstance(found, Tensor) or (
            product and all(isinstance(part, Tensor) and part.ndim == 2 for part in found)
        )
        what, segment = (found, None) if alone else found
        # Rows may be computed on a GPU; what is bounded and added up is what arrives here.
        what = what.cpu() if isinstance(what, Tensor) else tuple(part.cpu() for part in what)
        segment = None if segment is None else segment.cpu()
        if segment is None and self.segments > 1:
            raise ValueError(f"{self._query.label!r} files its rows, and these have no segment")
        return what, segment


class _Vectors(_Asked, FeatureMap):
    def __init__(self, query: Query, rows: Rows, given: Sequence[Tensor | float]) -> None:
        super().__init__(query, rows, given)
        (self.dim,), self.bound = query.shape, query.bound
        self.non_negative = query.non_negative

    def __call__(self, batch: Batch) -> Tensor:
        found: Tensor = self._found(batch)[0]
        return found

    def filed(self, batch: Batch) -> tuple[Tensor | None, Pieces]:
        if isinstance(self.rows, FeatureMap):
            if (self.rows.dim, self.rows.segments) != (self.dim, self.segments):
                raise ValueError(
                    f"{self._query.label!r} was promised rows of {self.dim} numbers in {self.segments} segments, and they "
                    f"have {self.rows.dim} in {self.rows.segments}"
                )
            return self.rows.filed(batch)
        rows, segment = self._found(batch)
        return segment, Pieces(lambda: self._in_pieces(rows, len(batch)))


class _Products(_Asked, OuterMap):
    def __init__(self, query: Query, rows: Rows, given: Sequence[Tensor | float]) -> None:
        super().__init__(query, rows, given)
        *blocks, self.left, self.right = query.shape
        self.blocks = math.prod(blocks)
        self.symmetric = query.symmetric
        # A map may divide the bound over its factors otherwise; what is enforced is their product.
        bounds = query.factor_bounds
        if isinstance(rows, OuterMap) and not self.symmetric:
            bounds = rows.left_bound, rows.right_bound
        if bounds[0] * bounds[1] > query.bound * (1 + 1e-12):
            raise PlanMismatch(
                f"{query.label!r} was promised products of norm {query.bound:g}, and these are longer."
            )
        self.left_bound, self.right_bound = bounds

    def factors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.filed(batch)[1]

    def filed(self, batch: Batch) -> tuple[Tensor | None, tuple[Tensor, Tensor]]:
        if isinstance(self.rows, OuterMap):
            if self.rows.segments != self.segments:
                raise ValueError(
                    f"{self._query.label!r} was promised {self.segments} segments, not {self.rows.segments}"
                )
            return self.rows.filed(batch)
        what, segment = self._found(batch)
        left, right = (what, what) if self.symmetric else what
        return segment, (left, right)
