"""A device that is none: its tensors lie on the processor and say otherwise, and nothing may meet a tensor from elsewhere.

There is no GPU to test on. torch's `meta` device refuses what was left behind as well, but has no numbers, so that whatever looks
at one (a `nonzero`, a loop over labels) cannot be tried on it. This one computes by the processor's own kernels: a whole fit runs
on it, and ends with the very bits that it has on the processor. Indices from elsewhere, which cuda would take, are refused too.
`double=False` is mps, which has no double precision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as trees
from torch.utils import backend_registration

NAME = "pretend"
PRODUCTS = {f"aten::{name}" for name in ("mm", "addmm", "bmm", "convolution")}
OPERATIONS: Counter[str] = Counter()  # what was computed on the device


class PretendTensor(torch.Tensor):
    """`raw` has the numbers."""

    raw: torch.Tensor
    double = True  # whether the device has it
    wrong: Callable[[torch.Tensor], torch.Tensor] | None = None  # what it makes of its products

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> PretendTensor:
        if raw.dtype == torch.float64 and not PretendTensor.double:
            raise TypeError(f"{NAME} has no double precision")
        made: PretendTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        made.raw = raw
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(op, *args, **(kwargs or {}))

    def tolist(self) -> Any:
        return self.raw.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"can't convert {NAME} device type tensor to numpy")


def _raw(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.raw if isinstance(value, PretendTensor) else value


def _computed(op: Any, *args: Any, **kwargs: Any) -> Any:
    name = op.name().partition(".")[0]
    if name == "aten::_to_copy":
        where = kwargs.pop("device", None) or args[0].device
        made = op(_raw(args[0]), **kwargs)
        return PretendTensor(made) if torch.device(where).type == NAME else made
    if name == "aten::copy_":
        _raw(args[0]).copy_(_raw(args[1]), *args[2:])
        return args[0]
    OPERATIONS[name] += 1
    given = [t for t in trees.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if any(t.dim() and not isinstance(t, PretendTensor) for t in given):
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, {NAME} and cpu")
    known = {id(t.raw): t for t in given if isinstance(t, PretendTensor)}
    args, kwargs = trees.tree_map(_raw, (args, kwargs))

    def there(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return known.get(id(value)) if id(value) in known else PretendTensor(value)
        return value

    found = op(*args, **kwargs)
    if PretendTensor.wrong is not None and name in PRODUCTS:
        found = PretendTensor.wrong(found)
    return trees.tree_map(there, found)


def _copied(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _raw(target).copy_(_raw(source))
    return target


def _registered() -> torch.library.Library:
    """At import, since torch starts a thread for each device that there is when it first computes a gradient."""
    backend_registration._setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("aten", "IMPL")
    for name, op in (
        ("empty.memory_format", torch.ops.aten.empty.memory_format),
        ("empty_strided", torch.ops.aten.empty_strided.default),
    ):
        library.impl(name, partial(_computed, op), "PrivateUse1")
    library.impl("_copy_from", _copied, "PrivateUse1")
    return library


_LIBRARY = _registered()


@contextmanager
def pretended(
    *, double: bool = True, wrong: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> Iterator[torch.device]:
    """The device, for as long as it is needed; `wrong` is done to all products of matrices that it computes."""
    kept = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    PretendTensor.double, PretendTensor.wrong = double, wrong
    try:
        yield torch.device(NAME, 0)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(kept)
        PretendTensor.double, PretendTensor.wrong = True, None
