"""Sums of per-example clipped gradients: what DP-SGD needs of the private rows (Abadi et al. 2016), and the trusted code for it.

For layers whose gradient is a sum of outer products, a record's gradient norm is known from what went into the layer and from the
gradient of what came out, without forming the gradient itself (ghost norms: Goodfellow 2015; Li et al. 2022); the clipped
gradients are then added up by one weighted product per layer from the same two tensors, without a second pass through the network
(book-keeping: Bu et al. 2023). Any other network goes through `torch.func.vmap`, one gradient per record.

Private: records, activations, gradients, norms, the number of records: nothing of it leaves but through `Step.noisy_gradient`.

Limits. Norms are never underestimated: the rounding of their own computation is added to them, and a gradient that is not finite
counts for nothing. The sum of a few hundred single-precision rows is itself rounded, by about 2⁻²⁴ of its size per addition; the
slack of `enforced_bound` covers what tests measure of it by a wide margin, not the worst case of rounding theory. The same holds
for the floating-point noise that is added (`noise.FastGaussian`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput

_UNIT = 2.0**-24  # half a unit in the last place of single precision
_SLACK = 2.0**-10
# Records whose norms are computed at once: their patches should stay in the processor's cache.
_NORM_ROWS = 32
# Numbers of gradients of single records that are formed at once: in one layer, and in the slow way.
_FORMED = 2**22
_MATERIALISED = 2**24

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
    loss per record. A loss of two terms (a private record and a generated companion) is clipped as one gradient, which is its
    record's. Companions are drawn in `inputs` from the generator given there, which nobody keeps: how much was drawn from a
    lasting generator would tell the size of the sample.

    **Guarantee**: leaving out any one record moves the result by at most `enforced` in L2 norm, provided the network treats
    records one by one. Modules known not to (batch normalisation in training) are refused, and `check` tries the rest on
    random rows.
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
        self._named = {n: p for n, p in network.named_parameters() if p.requires_grad}
        if not self._named:
            raise BadInput("The network has no parameter to train; set requires_grad on some.")
        self.dim = sum(p.numel() for p in self._named.values())
        self._fast = _book_keeping_applies(network, self._named)
        self._checked = False
        _refuse_mixing(network)

    @property
    def enforced(self) -> float:
        """The length that no record's contribution exceeds: what the ledger is charged with."""
        return enforced_gradient_bound(self.bound)

    def __call__(self, batch: Batch) -> Tensor:
        """The sum over the batch, (dim,) float64, in micro-batches of `rows_at_once`."""
        total = torch.zeros(self.dim, dtype=torch.float64)
        # From OS entropy and thrown away: it must not be known afterwards how many numbers were drawn.
        random = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "little"))
        for start in range(0, len(batch), self.rows_at_once):
            piece = slice(start, start + self.rows_at_once)
            labels = None if batch.labels is None else batch.labels[piece]
            tensors = self.inputs(Batch(batch.values[piece], labels), random)
            total += self._sum(tensors)
        return total

    def public_parts(self) -> tuple[Tensor, ...]:
        """The parameters: functions of public numbers and of earlier answers."""
        return tuple(self._named.values())

    def assign(self, gradient: Tensor) -> None:
        """Put a flat gradient, as `Step.noisy_gradient` gives it, into the parameters' `.grad`, for an optimiser."""
        parts = gradient.split([p.numel() for p in self._named.values()])
        for parameter, part in zip(self._named.values(), parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)

    def check(self, schema: Schema) -> None:
        """Refuse a loss that mixes records, and check the fast sum against one gradient after another, on random rows; once."""
        if self._checked:
            return
        rows, others = self._random_rows(schema)
        if any(len(t) != len(rows[0]) for t in rows):
            raise BadInput(
                "A per-record loss needs inputs with one row per record; check `inputs`."
            )
        if not all(_close(a[0], b[0]) for a, b in zip(rows, others, strict=True)):
            raise BadInput("`inputs` lets one record change another's row; compute each row alone.")
        alone = self._loop(rows)
        if self._fast:
            self._refuse_mixed_losses(rows, others)
            expected = _clip_weights(_norms(alone), self.bound) @ alone
            found = self._by_book_keeping(rows)
            # Where a layer is used otherwise than by calling it, book-keeping misses a part, and the slow way is taken.
            self._fast = found is not None and _close(found, expected, 1e-2)
        if not self._fast and not _close(self._rows_by_vmap(rows), alone):
            raise BadInput(
                "The gradients of single records cannot be computed for this network; use layers without random numbers of "
                "their own."
            )
        self._checked = True

    def _random_rows(self, schema: Schema) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The inputs of three random records, and again with all but the first exchanged."""
        source = torch.Generator().manual_seed(0)
        labels = (
            torch.randint(schema.n_classes, (3,), generator=source) if schema.labelled else None
        )
        first, second = (torch.rand(3, *schema.shape, generator=source) for _ in range(2))
        mixed = torch.cat([first[:1], second[1:]])
        one, other = (
            self.inputs(Batch(values, labels), torch.Generator().manual_seed(1))
            for values in (first, mixed)
        )
        return one, other

    def _refuse_mixed_losses(self, rows: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> None:
        with torch.no_grad():
            whole, changed = (self._losses(self.network, t) for t in (rows, others))
            single = self._losses(self.network, tuple(t[:1] for t in rows))
        if not (_close(whole[:1], changed[:1]) and _close(whole[:1], single)):
            raise BadInput(
                "The loss of one record depends on another record, so no bound holds per record; use layers that treat records "
                "one by one (group normalisation instead of batch normalisation)."
            )

    # -- one micro-batch ---------------------------------------------------------------------------------------------

    def _sum(self, tensors: tuple[Tensor, ...]) -> Tensor:
        # A record with a number that is not finite counts for nothing, and must not turn sums into NaN.
        fit = torch.ones(len(tensors[0]), dtype=torch.bool)
        for tensor in tensors:
            if tensor.is_floating_point():
                fit &= torch.isfinite(tensor).flatten(1).all(dim=1)
        if not bool(fit.all()):
            tensors = tuple(t[fit] for t in tensors)
        if len(tensors[0]) == 0:
            return torch.zeros(self.dim, dtype=torch.float64)
        total = self._by_book_keeping(tensors) if self._fast else None
        if total is None:
            total = torch.zeros(self.dim, dtype=torch.float64)
            at_once = max(1, _MATERIALISED // self.dim)
            for start in range(0, len(tensors[0]), at_once):
                rows = self._rows_by_vmap(tuple(t[start : start + at_once] for t in tensors))
                norms = _norms(rows)
                kept = _clip_weights(norms, self.bound)
                rows = torch.where((kept > 0)[:, None], rows, 0.0)
                total += kept @ rows
        return total

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
            loss = self._losses(self.network, tuple(t[i : i + 1] for t in tensors)).sum()
            grads = torch.autograd.grad(
                loss, list(self._named.values()), allow_unused=True, materialize_grads=True
            )
            found.append(torch.cat([g.detach().flatten() for g in grads]))
        return torch.stack(found)

    def _rows_by_vmap(self, tensors: tuple[Tensor, ...]) -> Tensor:
        """(n, dim): every record's gradient, materialised."""
        parameters = {name: p.detach() for name, p in self._named.items()}

        def loss_of_one(trained: dict[str, Tensor], *row: Tensor) -> Tensor:
            def network(*args: Any, **kwargs: Any) -> Any:
                return functional_call(self.network, trained, args, kwargs)

            return self._losses(network, tuple(r[None] for r in row))[0]

        each = vmap(grad(loss_of_one), in_dims=(None, *[0] * len(tensors)))(parameters, *tensors)
        return torch.cat([each[name].flatten(1) for name in self._named], dim=1)

    def _by_book_keeping(self, tensors: tuple[Tensor, ...]) -> Tensor | None:
        """The clipped sum by ghost norms; None where something on the way does not allow it."""
        n = len(tensors[0])
        with _recorded(self.network) as calls, torch.enable_grad():
            losses = self._losses(self.network, tensors)
            if any(call.inputs.shape[:1] != (n,) or call.stale for call in calls):
                return None
            outputs = [call.output for call in calls]
            grads = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
        with torch.no_grad():
            ghosts: dict[nn.Module, _Ghost] = {}
            for call, gradient in zip(calls, grads, strict=True):
                if gradient is not None:
                    ghost = ghosts.setdefault(call.module, _KINDS[type(call.module)](call.module))
                    ghost.add(call.inputs, gradient)
            calls.clear()
            kept = torch.empty(n)
            for start in range(0, n, _NORM_ROWS):
                rows = slice(start, start + _NORM_ROWS)
                squares = torch.zeros(len(kept[rows]), dtype=torch.float64)
                for ghost in ghosts.values():
                    squares += ghost.squares(rows)
                kept[rows] = _clip_weights(squares.sqrt(), self.bound)
                for ghost in ghosts.values():
                    ghost.take(kept[rows])
            totals: dict[int, Tensor] = {}
            for module, ghost in ghosts.items():
                ghost.finish(kept)
                totals |= {id(getattr(module, name)): sum_ for name, sum_ in ghost.totals.items()}
            return torch.cat(
                [
                    totals.get(id(p), torch.zeros(p.shape, dtype=torch.float64)).flatten()
                    for p in self._named.values()
                ]
            )


def enforced_gradient_bound(bound: float) -> float:
    """The charged bound of gradients clipped to `bound`: a thousandth more, for rounding (see the module's limits)."""
    return bound * (1 + _SLACK)


def _clip_weights(norms: Tensor, bound: float) -> Tensor:
    """min(1, bound ÷ norm) in single precision, and 0 where the norm is not finite or beyond counting."""
    fit = torch.isfinite(norms) & (norms < 1e18)
    return torch.where(fit, (bound / norms.clamp(min=1e-30)).clamp(max=1.0), 0.0).to(torch.float32)


def _norms(rows: Tensor) -> Tensor:
    """Row norms that neither overflow nor lose small entries."""
    largest = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-30)
    return (torch.linalg.vector_norm(rows / largest, dim=1) * largest[:, 0]).to(torch.float64)


def _close(first: Tensor, second: Tensor, tolerance: float = 1e-3) -> bool:
    # Relative to the largest entry: small ones are differences of large ones.
    first, second = first.to(torch.float64), second.to(torch.float64)
    scale = float(second.abs().max()) if second.numel() else 0.0
    return torch.allclose(first, second, rtol=tolerance, atol=tolerance * scale + 1e-12)


# -- modules -------------------------------------------------------------------------------------------------------------


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
    """Whether every parameter to train is the weight or bias of one layer whose ghost norm is known, and all of that layer's."""
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


class _Ghost:
    """A layer's part of every record's gradient: inputs and output gradients of all its calls.

    `squares` is asked for some records; what it forms of their gradients on the way is added up by `take` as soon as their
    weights are known, while it is in the cache. What it leaves unformed is added up for all records by `finish`.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.totals: dict[str, Tensor] = {}  # by the parameter's name, float64
        self.formed: dict[str, Tensor] = {}  # (records, numbers of the parameter)

    @staticmethod
    def knows(module: Any) -> bool:
        return True

    def add(self, inputs: Tensor, gradient: Tensor) -> None:
        self.pairs.append((inputs, gradient))

    def squares(self, rows: slice) -> Tensor:
        """(records,): squared norms of the layer's gradient, rounding included."""
        raise NotImplementedError

    def take(self, kept: Tensor) -> None:
        for name, formed in self.formed.items():
            self._add(name, kept @ _without(formed, kept == 0))
        self.formed = {}

    def finish(self, kept: Tensor) -> None:
        """Add what was not formed."""

    def _add(self, name: str, part: Tensor) -> None:
        if name not in self.totals:
            shape = getattr(self.module, name).shape
            self.totals[name] = torch.zeros(shape, dtype=torch.float64)
        self.totals[name] += part.view(self.totals[name].shape)


def _without(tensor: Tensor, unfit: Tensor) -> Tensor:
    """Zeros in the rows that count for nothing: zero times infinity would not be zero."""
    if not bool(unfit.any()):
        return tensor
    return tensor.masked_fill(unfit.view(-1, *[1] * (tensor.ndim - 1)), 0)


class _Products(_Ghost):
    """A layer whose gradient is Σ over positions of g ⊗ a: linear layers and convolutions."""

    unformed = False

    def factors(self, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """(n, d, positions), (n, p, positions): the gradient of the weight is Σ right ⊗ left."""
        raise NotImplementedError

    def biases(self, g: Tensor) -> Tensor:
        """(n, p, positions): whose sum over positions is the gradient of the bias."""
        raise NotImplementedError

    def product(self, a: Tensor, g: Tensor) -> Tensor:
        """The gradient of the weight, added up over records."""
        raise NotImplementedError

    def squares(self, rows: slice) -> Tensor:
        parts = [self.factors(a[rows], g[rows]) for a, g in self.pairs]
        left, right = (
            torch.cat(pair, dim=2) if len(parts) > 1 else pair[0]
            for pair in zip(*parts, strict=True)
        )
        (n, d, positions), p = left.shape, right.shape[1]
        # Forming costs T·d·p and some passes over d·p numbers; leaving it unformed costs the inner products now and T·d·p later.
        inner = positions * positions * (d + p)
        self.unformed = positions == 1 or n * d * p > _FORMED or inner < 4 * d * p
        if self.unformed:
            total = _product_squares(left, right)
        else:
            product = torch.bmm(right, left.mT).flatten(1)
            self.formed["weight"] = product
            total = _with_rounding(product, left, right)
        if self.module.bias is not None:
            pieces = [self.biases(g[rows]) for _, g in self.pairs]
            terms = torch.cat(pieces, dim=2) if len(pieces) > 1 else pieces[0]
            self.formed["bias"], squares = _summed(terms)
            total += squares
        return total

    def finish(self, kept: Tensor) -> None:
        if self.unformed:
            unfit = kept == 0
            for a, g in self.pairs:
                weights = kept.view(-1, *[1] * (g.ndim - 1))
                self._add("weight", self.product(_without(a, unfit), _without(g, unfit) * weights))


def _spread(left: Tensor, right: Tensor) -> Tensor:
    """M = ‖left‖²·‖right‖², which bounds every intermediate sum of their product by Cauchy–Schwarz."""
    first, second = (
        torch.linalg.vector_norm(t, dim=(1, 2)).to(torch.float64) for t in (left, right)
    )
    # Beyond this a product can be long though the squares of its other factor vanish; such a record is dropped.
    return torch.where(torch.maximum(first, second) < 1e12, (first * second).square(), math.inf)


def _with_rounding(product: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """‖Σ over t of left ⊗ right‖² from the computed product, never less than the true value.

    Single precision is off by at most k · 2⁻²⁴ · √M in the norm, k the roundings of a sum; twice that is added.
    """
    norms = torch.linalg.vector_norm(product, dim=1).to(torch.float64)
    return (norms + 2 * _depth(left.shape[2]) * _UNIT * _spread(left, right).sqrt()).square()


def _product_squares(left: Tensor, right: Tensor) -> Tensor:
    """(n, d, T), (n, p, T) → (n,): ‖Σ over t of left ⊗ right‖², never less than the true value, without keeping the product.

    By inner products, ‖Σ‖² = Σ over t, t' of ⟨left, left'⟩⟨right, right'⟩; single precision is off by at most k · 2⁻²⁴ · M, k the
    roundings of a sum. Twice that is added, so that the same error in the weighted sum is covered as well.
    """
    (_, d, positions), p = left.shape, right.shape[1]
    spread = _spread(left, right)
    if positions == 1:
        return spread * (1 + 4 * (_depth(d) + _depth(p)) * _UNIT)
    if positions * (d + p) < d * p:
        inner = torch.bmm(left.mT, left) * torch.bmm(right.mT, right)  # (n, T, T)
        error = (_depth(d) + _depth(p) + _depth(positions * positions)) * _UNIT
        return inner.sum(dim=(1, 2)).to(torch.float64).clamp(min=0) + 2 * error * spread
    return _with_rounding(torch.bmm(right, left.mT).flatten(1), left, right)


def _summed(terms: Tensor) -> tuple[Tensor, Tensor]:
    """(n, p, T) → Σ over t (n, p), and its squared norm (n,), never less than the true value."""
    positions = terms.shape[2]
    total = terms[:, :, 0] if positions == 1 else terms.sum(dim=2)
    norms = torch.linalg.vector_norm(total, dim=1).to(torch.float64)
    if positions == 1:
        return total, norms.square()
    size = torch.linalg.vector_norm(terms, dim=(1, 2)) * math.sqrt(positions)
    return total, (norms + 2 * _depth(positions) * _UNIT * size).square()


def _depth(length: int) -> float:
    """How many roundings a number goes through in a sum of `length` terms: sixteen run side by side, at the least."""
    return min(length, 64 + length / 16)


class _Linear(_Products):
    def factors(self, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        n = len(a)
        return a.reshape(n, -1, a.shape[-1]).mT, g.reshape(n, -1, g.shape[-1]).mT

    def biases(self, g: Tensor) -> Tensor:
        return g.reshape(len(g), -1, g.shape[-1]).mT

    def product(self, a: Tensor, g: Tensor) -> Tensor:
        return g.flatten(0, -2).T @ a.flatten(0, -2)


class _Conv2d(_Products):
    @staticmethod
    def knows(module: Any) -> bool:
        return bool(
            module.groups == 1
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
        )

    def geometry(self) -> dict[str, Any]:
        m = self.module
        return {"stride": m.stride, "padding": m.padding, "dilation": m.dilation}

    def factors(self, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        return functional.unfold(a, self.module.kernel_size, **self.geometry()), g.flatten(2)

    def biases(self, g: Tensor) -> Tensor:
        return g.flatten(2)

    def product(self, a: Tensor, g: Tensor) -> Tensor:
        return conv2d_weight(a, self.module.weight.shape, g, **self.geometry())


class _ConvTranspose2d(_Conv2d):
    """The adjoint of a convolution: the parts of input and output gradient are exchanged."""

    @staticmethod
    def knows(module: Any) -> bool:
        return _Conv2d.knows(module) and not any(module.output_padding)

    def factors(self, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        return functional.unfold(g, self.module.kernel_size, **self.geometry()), a.flatten(2)

    def product(self, a: Tensor, g: Tensor) -> Tensor:
        return conv2d_weight(g, self.module.weight.shape, a, **self.geometry())


class _Scales(_Ghost):
    """A normalisation: the gradient of its scale and shift is small and is formed."""

    def terms(self, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """(n, features, positions) of scale and shift."""
        raise NotImplementedError

    def squares(self, rows: slice) -> Tensor:
        pieces = [self.terms(a[rows], g[rows]) for a, g in self.pairs]
        scale, shift = (
            torch.cat(p, dim=2) if len(pieces) > 1 else p[0] for p in zip(*pieces, strict=True)
        )
        self.formed["weight"], total = _summed(scale)
        if self.module.bias is not None:
            self.formed["bias"], squares = _summed(shift)
            total = total + squares
        return total


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


class _Embedding(_Ghost):
    @staticmethod
    def knows(module: Any) -> bool:
        return not (module.max_norm or module.scale_grad_by_freq or module.sparse)

    def add(self, inputs: Tensor, gradient: Tensor) -> None:
        index = inputs.reshape(len(inputs), -1)
        gradient = gradient.reshape(len(inputs), index.shape[1], -1)
        if self.module.padding_idx is not None:
            gradient = gradient * (index != self.module.padding_idx)[..., None]
        self.pairs.append((index, gradient))

    def squares(self, rows: slice) -> Tensor:
        index = torch.cat([a[rows] for a, _ in self.pairs], dim=1)  # (n, T)
        gradient = torch.cat([g[rows] for _, g in self.pairs], dim=1)  # (n, T, e)
        same = index[:, :, None] == index[:, None, :]
        inner = (torch.bmm(gradient, gradient.mT) * same).sum(dim=(1, 2)).to(torch.float64)
        size = gradient.square().sum(dim=(1, 2)).to(torch.float64) * index.shape[1]
        error = (_depth(gradient.shape[2]) + _depth(index.shape[1] ** 2)) * _UNIT
        return inner.clamp(min=0) + 2 * error * size

    def finish(self, kept: Tensor) -> None:
        total = torch.zeros_like(self.module.weight)
        for index, gradient in self.pairs:
            part = _without(gradient, kept == 0) * kept.view(-1, 1, 1)
            total.index_add_(0, index.flatten(), part.flatten(0, 1))
        self._add("weight", total)


_KINDS: dict[type[nn.Module], type[_Ghost]] = {
    nn.Linear: _Linear,
    nn.Conv2d: _Conv2d,
    nn.ConvTranspose2d: _ConvTranspose2d,
    nn.GroupNorm: _GroupNorm,
    nn.LayerNorm: _LayerNorm,
    nn.Embedding: _Embedding,
}
