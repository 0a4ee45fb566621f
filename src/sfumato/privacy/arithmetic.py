"""The arithmetic that the wall's proofs are about, whatever a program around it has switched on.

Sums of whole numbers are exact and norms are never too small because torch computes in the precision that a tensor says. Whoever
trains networks changes that for the whole process: `torch.autocast` computes products of single precision with eight digits,
`torch.set_float32_matmul_precision` and `torch.backends.….fp32_precision` allow the same, `torch.set_default_dtype` and
`set_default_device` make tensors of another kind. Inside the wall all of it is as torch has it at first, and comes back behind
it. A fit as a whole is at least `ordinary_torch`: what comes after the releases includes sums and factorisations that eight
digits would spoil.

Where a GPU is in use, algorithms that add in an order of their own each time are switched off as well: what a record adds is then
a function of that record, which the wall tries out (`GradientSum.check`, `_Rounded.sizes`) and cannot try for every order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any

import torch

from sfumato.errors import BadInput

_KINDS = ("cpu", "cuda", "mps", "xpu")


class _ProcessWide:
    """Switches of the whole process: set when the first thread comes in, and back when the last one leaves."""

    def __init__(self) -> None:
        self._lock, self._inside, self._kept = Lock(), 0, ExitStack()

    @contextmanager
    def set(self, switches: Callable[[ExitStack], None]) -> Iterator[None]:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                switches(self._kept)
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._kept.close()


_DEFAULTS, _PRECISION = _ProcessWide(), _ProcessWide()


@contextmanager
def ordinary_torch() -> Iterator[None]:
    """Single precision on the processor where nothing else is said, no less of it, and gradients where they are asked for."""
    with ExitStack() as stack:
        for kind in _KINDS:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(_DEFAULTS.set(_single))
        yield


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """`ordinary_torch` with exact products, and on GPUs the same every time. Also a decorator; costs microseconds."""
    with ordinary_torch(), _PRECISION.set(_exact):
        try:
            yield
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            raise BadInput(
                "A layer of this network adds up in another order each time on this device, so no bound holds for a record; "
                f"take device=cpu, or other layers. torch says: {str(error).splitlines()[0]}"
            ) from error


def _single(stack: ExitStack) -> None:
    if (kept := torch.get_default_dtype()) != torch.float32:
        torch.set_default_dtype(torch.float32)
        stack.callback(torch.set_default_dtype, kept)


def _exact(stack: ExitStack) -> None:
    on_gpu = torch.cuda.is_initialized() or torch.backends.mps.is_available()
    libraries = [
        torch.backends.mkldnn,
        *((torch.backends.cuda, torch.backends.cudnn) if on_gpu else ()),
    ]
    for library in libraries:
        for operation in ("matmul", "conv", "rnn"):
            found = getattr(library, operation, None)
            if getattr(found, "fp32_precision", "none") not in ("none", "ieee"):
                _switch(stack, found, "fp32_precision", "ieee")
    if not hasattr(
        torch.backends.mkldnn, "matmul"
    ):  # before torch 2.9 there was one switch for all
        kept = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        stack.callback(torch.set_float32_matmul_precision, kept)
    if not on_gpu:
        return
    for name, value in (("deterministic", True), ("benchmark", False)):
        _switch(stack, torch.backends.cudnn, name, value)
    kept_ = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    stack.callback(torch.use_deterministic_algorithms, kept_, warn_only=warned)
    # Filling memory costs time, and nothing here reads what was not written.
    _switch(stack, torch.utils.deterministic, "fill_uninitialized_memory", False)


def _switch(stack: ExitStack, owner: Any, name: str, value: object) -> None:
    kept = getattr(owner, name)
    setattr(owner, name, value)
    stack.callback(setattr, owner, name, kept)
