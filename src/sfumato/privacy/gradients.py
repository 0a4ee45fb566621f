"""Sums of per-example clipped gradients: what DP-SGD needs of the private rows (Abadi et al. 2016), and the trusted code for it.

For the usual layers a record's gradient is made of what went into the layer and of the gradient of what came out, in one pass for
all records (book-keeping: Bu et al. 2023). Where it is a single product of two vectors (a linear layer called once), it is never
formed: its norm is the product of their norms (Goodfellow 2015), and the clipped sum is one product of two matrices. Any other
network goes through `torch.func.vmap`, one gradient per record.

Private: records, activations, gradients, norms, the number of records: nothing of it leaves but through `Step.noisy_gradient`.

**A record changes its own summand and nothing else.** Records go through the network in micro-batches of one public number of
rows, filled up with rows that count for nothing: a library may compute the same row with other last digits in a batch of another
shape, and behind a rectifier a last digit can decide about the whole gradient. Rows are laid out so that their place in the
micro-batch does not matter either (`_aligned`); `GradientSum.check` tries that on the machine at hand, bit for bit, and takes
records one at a time where it does. Which way a layer goes follows from shapes alone. Each summand is then a whole number of
units of a public grid, and whole numbers are added without rounding, in any order and split.

**No summand is longer than `enforced_gradient_bound`**, whatever the network computes. Let C be the bound.

1. Norms are never too small. Squares are added in single precision over at most 1024 numbers, which gives, in any order, at least
   1 − 1027 · 2⁻²⁴ of their sum, and in double precision from there on; the result is multiplied by 1 + 1100 · 2⁻²⁴. A square
   below the smallest normal number may be lost, so 2⁻¹²⁵ is added for each. What is measured is the very vector that is added, so
   its own rounding on the way there does not matter, even where large terms cancel.
2. Hence the scaled vector, rounding of the scaling included (2⁻²² of it), has norm ≤ C · (1 − 2⁻¹⁹). It is made of formed rows,
   of norm f, and of products right ⊗ left of norms c₁, c₂, …: f² + Σ c² ≤ C².
3. Rounding formed rows to their grid moves each of at most `dim` numbers by half a unit: f grows by ≤ √dim · unit ÷ 2 ≤ 2⁻¹² · C.
4. Of a product, the left factor is scaled to norm 1 and the right one to norm c. Rounded to their grids, left ones have
   norm ≤ 1 + 2⁻¹³, and right ones c + e with Σ e² ≤ (2⁻¹³ · C)²; the norm of a product is the product of the norms.
5. By Minkowski's inequality the whole has norm ≤ (C + 2⁻¹³ · C) · (1 + 2⁻¹³) + 2⁻¹² · C < C · (1 + 2⁻¹¹ + 2⁻²⁵).
6. Sums are exact in double precision below 2⁵³ units: for formed rows always, for products up to 2¹³ records in one sample or
   more, by the layer's width. Beyond, an addition is off by at most 2⁻⁵³ of the sum's length, and there is at most one for a
   record, so that two neighbouring samples of n records differ by less than 2 · n² · 2⁻⁵³ · C more: less than 2⁻¹² · C up to
   n = 2²⁰.

Together less than C · (1 + 2⁻¹⁰). Not covered: the floating-point noise that is added (`noise.FastGaussian`).

**A network may lie on a GPU** (`device`). What passes there is the loss and its derivatives: formed gradients and the factors of
products come back to the processor, and 1.–6. speak of these very numbers as they arrived, so that the bound holds whatever a
device computes, in whatever precision. What remains to be shown of it is that a record changes its own summand and nothing else,
and that is tried there, bit for bit, by `check`, with algorithms that add in one order only (`privacy.arithmetic`).

Where a unit has several records, each counts by its share of A (`privacy.units`): its whole units are multiplied by the share,
a whole number, and the sum is divided by A, a power of two, so that neither rounds anything and the bound of a record is that
of a unit. In 6., a sum of u units of n records is then off by at most n · 2⁻⁵³ · u · C: the same bound for u, n ≤ 2²⁰.
"""

from __future__ import annotations

import copy
import math
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.privacy.arithmetic import exact_arithmetic
from sfumato.privacy.bounding import check_shares, grid_of

_SLACK = 2.0**-10
_SQUARES = 1024  # numbers whose squares are added in single precision
_NORM_FACTOR = 1 + (_SQUARES + 76) * 2.0**-24
_NORM_FLOOR = 2.0**-125
_LONGEST = 1e18  # a gradient beyond counts for nothing
# Rows of a micro-batch: few enough for activations to stay in the processor's cache, and for filling up to cost little.
_ROWS = 64
# Numbers of single records that are formed at once, patches included: they should stay in the cache as well.
_FORMED = 2**22
_MATERIALISED = 2**24
_LINE = 16  # single-precision numbers in 64 bytes

Inputs = Callable[[Batch, torch.Generator], tuple[Tensor, ...]]
# (network, one tensor per input with a row per record) → one loss per record. The network may be called several times.
Loss = Callable[..., Tensor]


def records(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
    """The plain inputs: pixels in [0, 1] or table rows, and labels where there are any; a row of no known class is left out."""
    values = batch.pixels() if batch.values.ndim == 4 else batch.values.to(torch.float32)
    if batch.labels is None:
        return (values,)
    unknown = (batch.labels < 0).view(-1, *[1] * (values.ndim - 1))
    return values.masked_fill(unknown, math.nan), batch.labels.clamp(min=0)


class GradientSum:
    """Σ over records of the gradient of `loss` with respect to the network's parameters, each clipped to norm `bound`.

    `inputs` turns a batch and a source of randomness into tensors with one row per record; `loss(network, *inputs)` returns one
    loss per record by the network that it is given: a replica of `network` that shares its parameters, in the mode that it was
    in when this object was made. A loss of two terms (a private record and a generated companion) is clipped as one gradient,
    which is its record's.

    Companions are drawn in `inputs` from the generator given there, which nobody keeps: how much was drawn from a lasting
    generator would tell the size of the sample. Each row needs draws of its own, alike and independent of all others'. A
    record that comes or goes shifts which draws the later ones get, but not their distribution: the sums with and without it can
    be looked at as made with the same draws for everybody else (a coupling), and then differ by one summand.

    **Guarantee**: leaving out any one record moves the result by at most `enforced` in L2 norm, in samples of up to 2²⁰ records,
    provided the network treats records one by one. Modules known not to (batch normalisation in training) and modules that
    change their buffers are refused at every call, and `check` tries the rest on random rows.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        *,
        bound: float,
        inputs: Inputs = records,
        rows_at_once: int = 512,
    ) -> None:
        if not 1e-6 <= bound <= 1e6:
            raise BadInput(
                f"The bound of a clipped gradient must lie between 1e-6 and 1e6, not {bound:g}; scale the loss."
            )
        self.network = network
        self.loss = loss
        self.bound = bound
        self.inputs = inputs
        self.rows_at_once = rows_at_once
        self._named = _trained(network)
        if not self._named:
            raise BadInput("The network has no parameter to train; set requires_grad on some.")
        sizes = [p.numel() for p in self._named.values()]
        self.dim = sum(sizes)
        self.device = _device_of(network)
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._places = {
            id(p): slice(start, start + p.numel())
            for p, start in zip(self._named.values(), starts, strict=True)
        }
        self._fast = _book_keeping_applies(network, self._named)
        self._replica = _replica(network)
        self._modes = _modes(self._replica)
        self._grids = _Grids.of(self._replica, bound, self.dim)
        self._rows = max(1, min(_ROWS, rows_at_once))
        self._path: tuple[object, ...] | None = None
        self._checked = 0  # with how many threads
        self._name = secrets.token_hex(8)  # by which another process knows it again
        _refuse_mixing(self._replica)

    def __reduce__(self) -> tuple[Any, ...]:
        made = (self.network, self.loss, self.bound, self.inputs, self.rows_at_once)
        return _arrived, (self._name, *made)

    @property
    def enforced(self) -> float:
        """The length that no record's contribution exceeds: what the ledger is charged with."""
        return enforced_gradient_bound(self.bound)

    @exact_arithmetic()
    def __call__(self, batch: Batch) -> Tensor:
        """The sum over the batch, (dim,) float64; records with shares count as often as these say."""
        total = torch.zeros(self.dim, dtype=torch.float64)
        # From OS entropy and thrown away: it must not be known afterwards how many numbers were drawn.
        random = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "little"))
        with self._frozen():
            for start in range(0, len(batch), self._rows):
                piece, real, shares = _filled(batch, start, self._rows)
                tensors = tuple(t.to(self.device) for t in self.inputs(piece, random))
                _one_row_each(tensors, self._rows)
                self._add(tensors, real, total, self._grids, shares)
        return total

    def public_parts(self) -> tuple[Tensor, ...]:
        """The parameters: functions of public numbers and of earlier answers."""
        return tuple(self._named.values())

    def assign(self, gradient: Tensor) -> None:
        """Put a flat gradient, as `Step.noisy_gradient` gives it, into the parameters' `.grad`, for an optimiser."""
        parts = gradient.split([p.numel() for p in self._named.values()])
        for parameter, part in zip(self._named.values(), parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.device, parameter.dtype)

    @exact_arithmetic()
    def check(self, schema: Schema) -> None:
        """Refuse a loss that mixes records, choose the way, and try that neither a record's place in a micro-batch nor the rows
        beside it change a bit of what it adds; on random rows, once for each number of threads.

        What libraries do depends on shapes, places and threads and not on values, so random rows speak for all.
        """
        if self._checked == torch.get_num_threads():
            return
        self._checked, self._path = 0, None
        with self._frozen():
            trial = _Trial(schema, self.inputs, self._rows, self.device)
            trial.refuse_mixing()
            few = tuple(t[:3] for t in trial.rows)
            alone = self._loop(few)
            self._refuse_mixed_losses(trial)
            if self._fast:
                # By grids for gradients of this length: those of a bound far beyond would hide a part that is missing.
                squares = _squares(alone)
                grids = _Grids.of(
                    self._replica, float(squares.max().sqrt().clamp(1e-9, 1e9)), self.dim
                )
                expected = _clip_weights(squares, grids.bound) @ alone.to(torch.float64)
                found = torch.zeros(self.dim, dtype=torch.float64)
                self._add(trial.rows, torch.arange(self._rows) < 3, found, grids)
                # Where a layer is used otherwise than by calling it, book-keeping misses a part, and the slow way is taken.
                self._fast = self._fast and _close(found, expected, 1e-2)
            if not self._fast and not _close(self._by_vmap_or_refused(few), alone):
                raise BadInput(_UNCOMPUTABLE)
            if not (trial.place_is_nothing() and self._place_is_nothing(trial)):
                self._rows, self._path = 1, None
                if not self._place_is_nothing(_Trial(schema, self.inputs, 1, self.device)):
                    raise BadInput(_UNCOMPUTABLE)
        self._checked = torch.get_num_threads()

    def _refuse_mixed_losses(self, trial: _Trial) -> None:
        with torch.no_grad():
            whole, changed = (self._losses(self._replica, t) for t in (trial.rows, trial.changed))
            single = self._losses(self._replica, tuple(t[:1] for t in trial.rows))
        if not (_close(changed[:1], whole[:1]) and _close(single, whole[:1])):
            raise BadInput(
                "The loss of one record depends on another record, so no bound holds per record; use layers that treat records "
                "one by one (group normalisation instead of batch normalisation)."
            )

    @torch.no_grad()
    def _place_is_nothing(self, trial: _Trial) -> bool:
        """Whether a record adds the same to the last bit in every place, beside other rows each time."""
        every = torch.ones(self._rows, dtype=torch.bool)
        for record in range(min(3, self._rows)):
            first: dict[tuple[int, int], Tensor] = {}
            for places, tensors in trial.placed(record):
                behind: dict[tuple[int, int], int] = {}
                for part in self._parts(tensors, every, self._grids):
                    # Before rounding and after: the grid would hide the last digits.
                    for number, rows in enumerate((*part.source, *part.rows)):
                        key = (part.place.start, number)
                        start = behind.get(key, 0)
                        behind[key] = start + len(rows)
                        mine = rows[places[start : start + len(rows)]]
                        if len(mine) and not _same(mine, first.setdefault(key, mine[:1].clone())):
                            return False
        return True

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        """The replica as it was made, with the network's present buffers, before and after."""
        named = {n: id(p) for n, p in self._named.items()}
        if {n: id(p) for n, p in _trained(self.network).items()} != named:
            raise BadInput(
                "The network has other parameters to train than before; make a new GradientSum after changing it."
            )
        if _device_of(self.network) != self.device:
            raise BadInput(
                "The network was moved to another device; make a new GradientSum after that."
            )
        _copy_buffers(self.network, self._replica)
        _refuse_mixing(self._replica)
        before = _versions(self._replica)
        try:
            yield
        except Exception:
            self._refuse_changes(before)  # they say more about the cause
            raise
        self._refuse_changes(before)

    def _refuse_changes(self, before: dict[str, tuple[int, int]]) -> None:
        if _versions(self._replica) != before:
            raise BadInput(
                "The network changes its buffers when it is called (running statistics, spectral normalisation in training), and "
                "so remembers records; set it to eval() first, or use layers without buffers."
            )
        if _modes(self._replica) != self._modes:
            raise BadInput(
                "The loss sets the network to another mode; set it before making a GradientSum."
            )

    # -- one micro-batch ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _add(
        self,
        tensors: tuple[Tensor, ...],
        real: Tensor,
        total: Tensor,
        grids: _Grids,
        shares: Tensor | None = None,
    ) -> None:
        """Add the summands of the `real` rows to `total`, each as often as `shares` say."""
        # A record with a number that is not finite counts for nothing, and must not turn sums into NaN.
        fit = real.clone()
        for tensor in tensors:
            if tensor.is_floating_point():
                fit &= torch.isfinite(tensor).flatten(1).all(dim=1).cpu()
        unfit = (real & ~fit).to(self.device)
        tensors = tuple(_without(t, unfit) if t.is_floating_point() else t for t in tensors)
        for part in self._parts(tensors, fit, grids):
            part.add_to(total, None if shares is None else shares[part.records])

    def _parts(self, tensors: tuple[Tensor, ...], fit: Tensor, grids: _Grids) -> Iterator[_Part]:
        """What the records add, in whole units; nothing for rows that are not `fit`."""
        layers = self._recorded_layers(tensors) if self._fast else None
        if layers is not None:
            yield from self._parts_by_layers(layers, fit, grids)
            return
        self._fast = False
        for rows in _slices(self._rows, _MATERIALISED // self.dim):
            each = self._by_vmap(tuple(t[rows] for t in tensors))
            weights = torch.where(fit[rows], _clip_weights(_squares(each), grids.bound), 0.0)
            yield _Formed(slice(0, self.dim), each).units(weights, grids, rows)

    def _parts_by_layers(self, layers: list[_Layer], fit: Tensor, grids: _Grids) -> Iterator[_Part]:
        products = [found.here() for layer in layers for found in layer.products()]
        squares = torch.zeros(self._rows, dtype=torch.float64)
        for product in products:
            squares += product.squares()
        weights = torch.zeros(self._rows, dtype=torch.float64)
        # Some records at a time, through all layers: what is formed of them is used while it is in the cache.
        width = sum(layer.width() for layer in layers)
        for rows in _slices(self._rows, _FORMED // max(1, width)):
            formed = [found.here() for layer in layers for found in layer.formed(rows)]
            length = squares[rows] + sum(_squares(one.rows.flatten(1)) for one in formed)
            weights[rows] = torch.where(fit[rows], _clip_weights(length, grids.bound), 0.0)
            for one in formed:
                yield one.units(weights[rows], grids, rows)
        for product in products:
            yield product.units(weights, grids)

    def _losses(self, network: Callable[..., Any], tensors: tuple[Tensor, ...]) -> Tensor:
        losses = self.loss(network, *tensors)
        if losses.shape != (len(tensors[0]),):
            raise BadInput(
                f"A per-record loss must return one number per record, not a tensor of shape {tuple(losses.shape[1:])} each."
            )
        return losses

    def _loop(self, tensors: tuple[Tensor, ...]) -> Tensor:
        """(n, dim): one gradient after another; slow, and right by construction."""
        found = []
        for i in range(len(tensors[0])):
            loss = self._losses(self._replica, tuple(t[i : i + 1] for t in tensors)).sum()
            grads = torch.autograd.grad(
                loss, list(self._named.values()), allow_unused=True, materialize_grads=True
            )
            found.append(torch.cat([g.detach().flatten().cpu() for g in grads]))
        return torch.stack(found)

    def _by_vmap(self, tensors: tuple[Tensor, ...]) -> Tensor:
        """(n, dim): every record's gradient, materialised."""
        parameters = {name: p.detach() for name, p in self._named.items()}

        def loss_of_one(trained: dict[str, Tensor], *row: Tensor) -> Tensor:
            def network(*args: Any, **kwargs: Any) -> Any:
                return functional_call(self._replica, trained, args, kwargs)

            return self._losses(network, tuple(r[None] for r in row))[0]

        each = vmap(grad(loss_of_one), in_dims=(None, *[0] * len(tensors)))(parameters, *tensors)
        return torch.cat([_single(each[name].flatten(1)).cpu() for name in self._named], dim=1)

    def _by_vmap_or_refused(self, tensors: tuple[Tensor, ...]) -> Tensor:
        try:
            return self._by_vmap(tensors)
        except RuntimeError as error:  # torch's own, such as random numbers inside vmap
            raise BadInput(_UNCOMPUTABLE) from error

    def _recorded_layers(self, tensors: tuple[Tensor, ...]) -> list[_Layer] | None:
        """One pass forth and back; None where something on the way does not allow book-keeping."""
        with _recorded(self._replica) as calls, torch.enable_grad():
            losses = self._losses(self._replica, tensors)
            possible = all(c.inputs.shape[:1] == (self._rows,) and not c.stale for c in calls)
            grads = (
                torch.autograd.grad(losses.sum(), [c.output for c in calls], allow_unused=True)
                if possible
                else ()
            )
        # The way of every layer follows from these shapes, so they must not change with the records.
        path = (
            possible,
            *((id(c.module), c.inputs.shape, c.output.shape) for c in calls),
            *(g is None for g in grads),
        )
        if self._path is None:
            self._path = path
        if path != self._path:
            raise BadInput(
                "The network takes another path for other records, and so mixes them; let it call the same layers with the same "
                "shapes whatever the values."
            )
        if not possible:
            return None
        layers: dict[nn.Module, _Layer] = {}
        for call, gradient in zip(calls, grads, strict=True):
            if gradient is not None:
                kind = _KINDS[type(call.module)]
                layer = layers.setdefault(call.module, kind(call.module, self._places))
                layer.add(_single(call.inputs), _single(gradient))
        return list(layers.values())


_UNCOMPUTABLE = (
    "The gradients of single records cannot be computed for this network; use layers without random numbers of their own that "
    "torch.func.vmap knows, and compute the loss with the network that it is given."
)


# The last ones that came from another process: what was found out about one (`check`) holds when it comes again with the weights
# of the next step.
_ARRIVED: dict[str, GradientSum] = {}
_MOST_ARRIVED = 4


def _arrived(
    name: str, network: nn.Module, loss: Loss, bound: float, inputs: Inputs, rows_at_once: int
) -> GradientSum:
    known = _ARRIVED.pop(name, None)
    if known is None:
        known = GradientSum(network, loss, bound=bound, inputs=inputs, rows_at_once=rows_at_once)
        known._name = name
    else:
        with torch.no_grad():
            for mine, new in zip(known.network.parameters(), network.parameters(), strict=True):
                mine.copy_(new)
        _copy_buffers(network, known.network)
        known.loss, known.inputs = loss, inputs
    _ARRIVED[name] = known
    while len(_ARRIVED) > _MOST_ARRIVED:
        _ARRIVED.pop(next(iter(_ARRIVED)))
    return known


def enforced_gradient_bound(bound: float) -> float:
    """The charged bound of gradients clipped to `bound`: a thousandth more, for rounding (see the module's proof)."""
    return bound * (1 + _SLACK)


# -- whole units ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Grids:
    """The public grids: from the bound and from the shapes of the parameters."""

    bound: float
    digits: int  # of formed rows
    unit: float
    right_unit: float  # of the right factors of products

    @classmethod
    def of(cls, network: nn.Module, bound: float, dim: int) -> _Grids:
        outputs = sum(m.out_features for m in network.modules() if type(m) is nn.Linear)
        digits = max(20, _digits(dim, 12))
        right = max(18, _digits(max(1, outputs), 13))
        return cls(bound, digits, grid_of(bound, digits), grid_of(bound, right))

    def sum(self, units: Tensor) -> Tensor:
        """(n, numbers) → (numbers,): exact. Units are at most 2 to the digits + 1, see `_digits`."""
        if units.shape[1] <= _SQUARES or units.dtype == torch.float64:
            return units.sum(dim=0, dtype=torch.float64)
        together = 2 ** (23 - self.digits)
        if len(units) <= together:
            return units.sum(dim=0)
        total = torch.zeros(units.shape[1], dtype=torch.float64)
        for some in units.split(together):
            total += some.sum(dim=0)
        return total


def _digits(numbers: int, room: int) -> int:
    """Enough for rounding `numbers` of them to move a vector by no more than 2⁻ʳᵒᵒᵐ of its bound: √numbers · 2⁻ᵈ⁻¹ ≤ 2⁻ʳᵒᵒᵐ.

    A vector of norm ≤ bound · (1 − 2⁻¹⁹), which the norms' factor sees to, has no number beyond 2ᵈ⁺¹ units with d ≥ 17 digits
    of the grid between 2⁻ᵈ⁻¹ and 2⁻ᵈ of the bound, rounding included.
    """
    return max(17, math.ceil(room - 1 + math.log2(numbers) / 2))


@dataclass
class _Part:
    """What the records of a block add to a parameter, in whole units: tensors with a row per record, and how to add them up."""

    place: slice  # of the parameter in the whole gradient
    records: slice  # which of the micro-batch
    rows: tuple[Tensor, ...]
    source: tuple[Tensor, ...]  # what they were rounded from, and the weights

    def add_to(self, total: Tensor, shares: Tensor | None) -> None:
        """Add them up, each as often as `shares` (n,) say; None: once."""
        raise NotImplementedError


@dataclass
class _RowUnits(_Part):
    """(n, numbers); or (n, T, numbers) with (n, T) places in a table."""

    grids: _Grids

    def add_to(self, total: Tensor, shares: Tensor | None) -> None:
        units, *index = self.rows
        if shares is not None:
            units = units.to(torch.float64) * shares.view(-1, *[1] * (units.ndim - 1))
        part = total[self.place]
        if index:
            table = part.view(-1, units.shape[-1])
            scaled = units.flatten(0, 1).to(torch.float64) * self.grids.unit
            table.index_add_(0, index[0].flatten(), scaled)
        else:
            part += self.grids.sum(units) * self.grids.unit


@dataclass
class _ProductUnits(_Part):
    """(n, d), (n, p) in double precision."""

    unit: float

    def add_to(self, total: Tensor, shares: Tensor | None) -> None:
        left, right = self.rows
        if shares is not None:
            right = right * shares[:, None]
        total[self.place].view(right.shape[1], -1).addmm_(right.T, left, alpha=self.unit)


@dataclass
class _Formed:
    """Gradients of single records with respect to a parameter."""

    place: slice
    rows: Tensor  # (n, numbers), or (n, T, numbers) with an index (n, T) into a table
    index: Tensor | None = None

    def here(self) -> _Formed:
        """On the processor, and in single precision: what is measured from here on."""
        index = None if self.index is None else self.index.cpu()
        return _Formed(self.place, _single(self.rows).cpu(), index)

    def units(self, weights: Tensor, grids: _Grids, records: slice) -> _Part:
        rows = _without(self.rows, weights == 0)
        scale = (weights / grids.unit).view(-1, *[1] * (rows.ndim - 1))
        if grids.digits <= 23:
            scale = scale.to(torch.float32)
        units = (rows * scale).round_()
        found = (units,) if self.index is None else (units, self.index)
        return _RowUnits(self.place, records, found, (self.rows, weights), grids)


@dataclass
class _Product:
    """Gradients right ⊗ left of single records, never formed."""

    place: slice
    left: Tensor  # (n, d)
    right: Tensor  # (n, p)

    def here(self) -> _Product:
        """As `_Formed.here`."""
        return _Product(self.place, self.left.cpu(), self.right.cpu())

    def squares(self) -> Tensor:
        self.left_squares = _squares(self.left)
        return self.left_squares * _squares(self.right)

    def units(self, weights: Tensor, grids: _Grids) -> _Part:
        left, right = (_without(t, weights == 0) for t in (self.left, self.right))
        # The floor of the norms keeps this from overflowing where the left factor is next to nothing.
        norms = torch.where(weights == 0, 1.0, self.left_squares.sqrt())[:, None]
        unit = 2.0 ** -_digits(left.shape[1], 13)
        units = (left * (1 / (norms * unit)).to(torch.float32)).round_().to(torch.float64)
        others = (right.to(torch.float64) * (weights[:, None] * norms / grids.right_unit)).round_()
        source = (self.left, self.right, weights)
        scale = unit * grids.right_unit
        return _ProductUnits(self.place, slice(None), (units, others), source, scale)


def _squares(rows: Tensor) -> Tensor:
    """(n, numbers) → (n,): squared norms in double precision, never less than the true value (proof above)."""
    n, width = rows.shape
    whole = width - width % _SQUARES
    total = torch.zeros(n, dtype=torch.float64)
    if whole:
        blocks = rows[:, :whole].reshape(n, -1, _SQUARES)
        total += torch.linalg.vector_norm(blocks, dim=2).to(torch.float64).square().sum(dim=1)
    if whole < width:
        total += torch.linalg.vector_norm(rows[:, whole:], dim=1).to(torch.float64).square()
    return total * _NORM_FACTOR + width * _NORM_FLOOR


def _clip_weights(squares: Tensor, bound: float) -> Tensor:
    """min(1, bound ÷ norm), and 0 where the norm is not finite or beyond counting."""
    fit = squares < _LONGEST**2  # false for NaN
    norms = torch.where(fit, squares, 1.0).sqrt()
    return torch.where(fit, (bound / norms).clamp(max=1.0), 0.0)


def _single(tensor: Tensor) -> Tensor:
    """At least single precision: norms of shorter numbers would be rounded to as few digits."""
    return tensor.to(torch.float32) if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _without(tensor: Tensor, unfit: Tensor) -> Tensor:
    """Zeros in the rows that count for nothing: zero times infinity would not be zero."""
    if not bool(unfit.any()):  # saves time and changes no other row
        return tensor
    return tensor.masked_fill(unfit.view(-1, *[1] * (tensor.ndim - 1)), 0)


# -- rows ----------------------------------------------------------------------------------------------------------------


def _filled(batch: Batch, start: int, rows: int) -> tuple[Batch, Tensor, Tensor | None]:
    """`rows` records from `start`, filled up with zeros; which are real, and their shares, if they have any."""
    values = batch.values[start : start + rows]
    labels = None if batch.labels is None else batch.labels[start : start + rows]
    missing = rows - len(values)
    if missing:
        values = torch.cat([values, values.new_zeros(missing, *values.shape[1:])])
        labels = None if labels is None else torch.cat([labels, labels.new_zeros(missing)])
    if batch.shares is not None:
        check_shares(batch.shares, len(batch))
    shares = None if batch.shares is None else batch.shares[start : start + rows]
    if missing and shares is not None:
        shares = torch.cat([shares, shares.new_zeros(missing)])
    return Batch(values, labels), torch.arange(rows) < rows - missing, shares


def _slices(rows: int, most: int) -> Iterator[slice]:
    """Equal slices of at most `most` rows, and at least one."""
    step = max(step for step in range(1, rows + 1) if rows % step == 0 and step <= max(1, most))
    return (slice(start, start + step) for start in range(0, rows, step))


def _one_row_each(tensors: tuple[Tensor, ...], rows: int) -> None:
    if any(len(t) != rows for t in tensors):
        raise BadInput("A per-record loss needs inputs with one row per record; check `inputs`.")


class _DrawnAlike(TorchFunctionMode):
    """Inside, torch draws for every row what it draws for the first, whatever generator it is given.

    Draws for all rows follow one another; those of another length, as for one row after another, are the same in every call.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows
        self._random = torch.Generator().manual_seed(0)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _DRAWS or "generator" not in kwargs:
            return func(*args, **kwargs)
        found = func(*args, **(kwargs | {"generator": torch.Generator().manual_seed(0)}))
        if not (isinstance(found, Tensor) and found.ndim and len(found) == self._rows):
            return found
        found = func(*args, **(kwargs | {"generator": self._random}))
        return found[:1].expand_as(found).clone()


_DRAWS = (torch.rand, torch.randn, torch.randint, torch.normal, torch.bernoulli, torch.multinomial)


class _Trial:
    """A micro-batch of random records, what `inputs` makes of it, and the same with all records but the first exchanged."""

    def __init__(self, schema: Schema, inputs: Inputs, rows: int, device: torch.device) -> None:
        self._inputs, self._device = inputs, device
        source = torch.Generator().manual_seed(0)
        values = torch.rand(rows, *schema.shape, generator=source)
        # Another range: what is computed from all records together would change.
        others = torch.rand(rows, *schema.shape, generator=source) / 2
        others[0] = values[0]
        labels, kinds = (
            torch.randint(schema.n_classes, (rows,), generator=source) if schema.labelled else None
            for _ in range(2)
        )
        if labels is not None and kinds is not None:
            kinds[0] = labels[0]
        self._even = torch.arange(rows) % 2 == 0
        self._batch = Batch(values, labels)
        self.rows = self._made(self._batch)
        self.changed = self._made(Batch(others, kinds))

    def _made(self, batch: Batch, seed: int = 1) -> tuple[Tensor, ...]:
        made = self._inputs(batch, torch.Generator().manual_seed(seed))
        tensors = tuple(t.to(self._device) for t in made)
        _one_row_each(tensors, len(batch))
        return tensors

    def refuse_mixing(self) -> None:
        for one, other in zip(self.rows, self.changed, strict=True):
            if not _same(one[:1], other[:1]):
                raise BadInput(
                    "`inputs` lets one record change another's row; compute each row alone."
                )

    def place_is_nothing(self) -> bool:
        """Whether `inputs` makes the same of a record in every place, if it also draws the same for it there."""
        labels = self._batch.labels
        same = Batch(
            self._batch.values[:1].expand_as(self._batch.values).contiguous(),
            None if labels is None else labels[:1].repeat(len(labels)),
        )
        with _DrawnAlike(len(same)):
            made = self._made(same, 1)
        with _DrawnAlike(len(same)):
            again = self._made(same, 2)
        # What is drawn in some other way cannot be held still, and is not tried.
        drawn = [not _same(one, other) for one, other in zip(made, again, strict=True)]
        return all(d or _same(t, t[:1].expand_as(t)) for t, d in zip(made, drawn, strict=True))

    def placed(self, record: int) -> Iterator[tuple[Tensor, tuple[Tensor, ...]]]:
        """The record in every other place, then in the places between; a micro-batch of one row is made twice."""
        for places in (self._even, ~self._even if len(self._even) > 1 else self._even):
            yield (
                places,
                tuple(
                    _where(places, mine[record : record + 1], other)
                    for mine, other in zip(self.rows, self.changed, strict=True)
                ),
            )


def _where(places: Tensor, first: Tensor, second: Tensor) -> Tensor:
    places = places.to(second.device)
    return torch.where(places.view(-1, *[1] * (second.ndim - 1)), first, second)


def _same(first: Tensor, second: Tensor) -> bool:
    return bool(((first == second) | ((first != first) & (second != second))).all())


def _close(first: Tensor, second: Tensor, tolerance: float = 1e-3) -> bool:
    # Relative to the largest entry: small ones are differences of large ones.
    first, second = first.cpu().to(torch.float64), second.cpu().to(torch.float64)
    scale = float(second.abs().max()) if second.numel() else 0.0
    return torch.allclose(first, second, rtol=tolerance, atol=tolerance * scale + 1e-12)


# -- modules -------------------------------------------------------------------------------------------------------------


def _trained(network: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in network.named_parameters() if p.requires_grad}


def _device_of(network: nn.Module) -> torch.device:
    found = {t.device for t in (*network.parameters(), *network.buffers())}
    if len(found) > 1:
        raise BadInput(
            f"The network lies on several devices ({', '.join(sorted(map(str, found)))}); move all of it to one."
        )
    return found.pop()


def _replica(network: nn.Module) -> nn.Module:
    """A copy that shares the parameters, with linear layers whose rows do not depend on their place."""
    try:
        made = copy.deepcopy(network, {id(p): p for p in network.parameters()})
    except (RuntimeError, TypeError) as error:
        raise BadInput(
            "The network cannot be copied; let its modules hold parameters and buffers and no other computed tensors."
        ) from error
    for module in made.modules():
        if type(module) is nn.Linear:
            module.forward = partial(_aligned, module)  # type: ignore[method-assign]
    return made


def _aligned(layer: nn.Linear, x: Tensor) -> Tensor:
    """x · weightᵀ + bias with widths filled up to whole lines of the processor's cache.

    Small products of matrices begin a row's sum at an aligned address; rows of other widths start at another distance
    from one, each in its place, and are added up in another order. The same holds for the gradient on its way back.
    """
    wider, longer = -layer.in_features % _LINE, -layer.out_features % _LINE
    if not wider and not longer:
        return functional.linear(x, layer.weight, layer.bias)
    weight = functional.pad(layer.weight, (0, wider, 0, longer))
    bias = None if layer.bias is None else functional.pad(layer.bias, (0, longer))
    return functional.linear(functional.pad(x, (0, wider)), weight, bias)[..., : layer.out_features]


def _modes(network: nn.Module) -> list[bool]:
    return [module.training for module in network.modules()]


def _versions(network: nn.Module) -> dict[str, tuple[int, int]]:
    """Which buffers there are, and how often each was written to."""
    return {name: (id(b), b._version) for name, b in network.named_buffers()}


def _copy_buffers(network: nn.Module, replica: nn.Module) -> None:
    theirs, mine = dict(network.named_buffers()), dict(replica.named_buffers())
    if {n: b.shape for n, b in theirs.items()} != {n: b.shape for n, b in mine.items()}:
        raise BadInput(
            "The network has other buffers than before; make a new GradientSum after changing it."
        )
    with torch.no_grad():
        for name, buffer in mine.items():
            buffer.copy_(theirs[name])


def _refuse_mixing(network: nn.Module) -> None:
    for name, module in network.named_modules():
        batch_norm = isinstance(module, nn.modules.batchnorm._NormBase)
        keeps = getattr(module, "track_running_stats", False)
        instance = isinstance(module, nn.modules.instancenorm._InstanceNorm)
        if batch_norm and module.training and (keeps or not instance):
            raise BadInput(
                f"{type(module).__name__} ({name or 'the network itself'}) mixes records in training, so no bound holds per "
                "record; use nn.GroupNorm or nn.LayerNorm."
            )


@dataclass
class _Call:
    """One call of a layer: what went in and what came out."""

    module: nn.Module
    inputs: Tensor
    output: Tensor
    versions: tuple[int, int]

    @property
    def stale(self) -> bool:
        """Whether either was written over since."""
        return self.versions != (self.inputs._version, self.output._version)


@contextmanager
def _recorded(network: nn.Module) -> Iterator[list[_Call]]:
    """The calls of all layers with parameters to train, in order."""
    calls: list[_Call] = []

    def keep(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        if output.requires_grad:
            inputs = given[0].detach()
            calls.append(_Call(module, inputs, output, (inputs._version, output._version)))

    hooks = [
        module.register_forward_hook(keep)
        for module in network.modules()
        if any(p.requires_grad for p in module.parameters(recurse=False))
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _book_keeping_applies(network: nn.Module, trained: dict[str, nn.Parameter]) -> bool:
    """Whether every parameter to train is the weight or bias of one layer of a known kind, and all of that layer's."""
    owners: list[int] = []
    for module in network.modules():
        own = [p for p in module.parameters(recurse=False) if p is not None]
        if any(p.requires_grad for p in own):
            kind = _KINDS.get(type(module))
            if kind is None or not kind.knows(module) or not all(p.requires_grad for p in own):
                return False
            if any(p.dtype != torch.float32 for p in own):
                return False
            owners += [id(p) for p in own]
    return len(owners) == len(set(owners)) == len(trained)


class _Layer:
    """A layer's part of every record's gradient, from inputs and output gradients of all its calls."""

    def __init__(self, module: Any, places: dict[int, slice]) -> None:
        self.module = module
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.weight = places[id(module.weight)]
        self.bias = None if getattr(module, "bias", None) is None else places[id(module.bias)]

    @staticmethod
    def knows(module: Any) -> bool:
        return True

    def add(self, inputs: Tensor, gradient: Tensor) -> None:
        self.pairs.append((inputs, gradient))

    def width(self) -> int:
        """About how many numbers of one record are made in `formed`."""
        return sum(a[0].numel() + g[0].numel() for a, g in self.pairs) + self.module.weight.numel()

    def products(self) -> list[_Product]:
        """What is not formed."""
        return []

    def formed(self, rows: slice) -> list[_Formed]:
        """The gradients of some records with respect to weight and bias."""
        raise NotImplementedError

    def _with_bias(self, weight: list[_Formed], terms: list[Tensor]) -> list[_Formed]:
        """And the bias, or the shift: the sum of (n, p, positions) over positions."""
        return weight if self.bias is None else [*weight, _Formed(self.bias, _added(terms))]


def _added(terms: list[Tensor]) -> Tensor:
    """(n, p, positions) of every call → (n, p): the sum over positions."""
    joined = _cat(terms)
    return joined[:, :, 0] if joined.shape[2] == 1 else joined.sum(dim=2)


def _cat(terms: list[Tensor], dim: int = 2) -> Tensor:
    return torch.cat(terms, dim=dim) if len(terms) > 1 else terms[0]


def _contracted(right: Tensor, left: Tensor) -> Tensor:
    """(n, p, T), (n, d, T) → (n, p, d): Σ over positions, alike in every place (see `_aligned`)."""
    positions = right.shape[2]
    if any(t.shape[1] * positions % _LINE for t in (right, left)):
        more = -positions % _LINE
        right, left = functional.pad(right, (0, more)), functional.pad(left, (0, more))
    return torch.bmm(right, left.mT)


class _Linear(_Layer):
    def products(self) -> list[_Product]:
        if self._positions > 1:
            return []
        (a, g), n = self.pairs[0], len(self.pairs[0][0])
        return [_Product(self.weight, a.reshape(n, -1), g.reshape(n, -1))]

    def formed(self, rows: slice) -> list[_Formed]:
        n = len(self.pairs[0][0][rows])
        left, right = (
            [pair[k][rows].reshape(n, -1, pair[k].shape[-1]).mT for pair in self.pairs]
            for k in range(2)
        )
        weight = []
        if self._positions > 1:
            product = _contracted(_cat(right), _cat(left))
            weight = [_Formed(self.weight, product.flatten(1))]
        return self._with_bias(weight, right)

    def width(self) -> int:
        return super().width() if self._positions > 1 else self.module.out_features

    @property
    def _positions(self) -> int:
        return sum(a[0].numel() for a, _ in self.pairs) // self.module.in_features


class _Conv2d(_Layer):
    @staticmethod
    def knows(module: Any) -> bool:
        return bool(
            module.groups == 1
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
        )

    def patches(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) → (n, d, positions)"""
        m = self.module
        return functional.unfold(
            x, m.kernel_size, stride=m.stride, padding=m.padding, dilation=m.dilation
        )

    def factors(self, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """(n, d, positions), (n, p, positions): the gradient of the weight is Σ right ⊗ left."""
        return self.patches(a), g.flatten(2)

    def formed(self, rows: slice) -> list[_Formed]:
        left, right = zip(*(self.factors(a[rows], g[rows]) for a, g in self.pairs), strict=True)
        product = _contracted(_cat(list(right)), _cat(list(left)))
        weight = [_Formed(self.weight, product.flatten(1))]
        return self._with_bias(weight, [g[rows].flatten(2) for _, g in self.pairs])

    def width(self) -> int:
        depth = self.module.weight[0].numel()  # numbers of a patch
        return super().width() + depth * sum(self.small(a, g)[0, 0].numel() for a, g in self.pairs)

    def small(self, a: Tensor, g: Tensor) -> Tensor:
        """Which of the two has the positions of the patches."""
        return g


class _ConvTranspose2d(_Conv2d):
    """The adjoint of a convolution: the parts of input and output gradient are exchanged."""

    @staticmethod
    def knows(module: Any) -> bool:
        return _Conv2d.knows(module) and not any(module.output_padding)

    def factors(self, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        return self.patches(g), a.flatten(2)

    def small(self, a: Tensor, g: Tensor) -> Tensor:
        return a


class _Scales(_Layer):
    """A normalisation: the gradients of its scale and shift."""

    def terms(self, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """(n, features, positions) of scale and shift."""
        raise NotImplementedError

    def formed(self, rows: slice) -> list[_Formed]:
        scale, shift = zip(*(self.terms(a[rows], g[rows]) for a, g in self.pairs), strict=True)
        return self._with_bias([_Formed(self.weight, _added(list(scale)))], list(shift))


class _GroupNorm(_Scales):
    @staticmethod
    def knows(module: Any) -> bool:
        return bool(module.affine)

    def terms(self, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        normal = functional.group_norm(a, self.module.num_groups, eps=self.module.eps)
        shape = (len(a), a.shape[1], -1)
        return (g * normal).reshape(shape), g.reshape(shape)


class _LayerNorm(_Scales):
    @staticmethod
    def knows(module: Any) -> bool:
        return module.weight is not None

    def terms(self, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        shape = self.module.normalized_shape
        normal = functional.layer_norm(a, shape, eps=self.module.eps)
        size = math.prod(shape)
        return (g * normal).reshape(len(a), -1, size).mT, g.reshape(len(a), -1, size).mT


class _Embedding(_Layer):
    @staticmethod
    def knows(module: Any) -> bool:
        return not (module.max_norm or module.scale_grad_by_freq or module.sparse)

    def add(self, inputs: Tensor, gradient: Tensor) -> None:
        index = inputs.reshape(len(inputs), -1)
        gradient = gradient.reshape(len(inputs), index.shape[1], -1)
        if self.module.padding_idx is not None:
            gradient = gradient.masked_fill((index == self.module.padding_idx)[..., None], 0)
        self.pairs.append((index, gradient))

    def formed(self, rows: slice) -> list[_Formed]:
        """A row of the table for each position, those of the same row joined in the first of them."""
        index = _cat([a[rows] for a, _ in self.pairs], 1)  # (n, T)
        gradient = _cat([g[rows] for _, g in self.pairs], 1)  # (n, T, e)
        if index.shape[1] > 1:
            same = index[:, :, None] == index[:, None, :]
            first = ~same.tril(-1).any(dim=2, keepdim=True)
            gradient = torch.where(
                first, _contracted(same.to(gradient.dtype), gradient.mT.contiguous()), 0.0
            )
        return [_Formed(self.weight, gradient, index)]

    def width(self) -> int:
        positions = sum(a.shape[1] for a, _ in self.pairs)
        return positions * (positions + 2 * self.module.embedding_dim)


_KINDS: dict[type[nn.Module], type[_Layer]] = {
    nn.Linear: _Linear,
    nn.Conv2d: _Conv2d,
    nn.ConvTranspose2d: _ConvTranspose2d,
    nn.GroupNorm: _GroupNorm,
    nn.LayerNorm: _LayerNorm,
    nn.Embedding: _Embedding,
}
