"""The arithmetic that the wall's proofs are about, whatever a program around it has switched on.

Sums of whole numbers are exact and norms are never too small because torch computes in the precision that a tensor says. Whoever
trains networks changes that for the whole process: `torch.autocast` computes products of single precision with eight digits,
`torch.set_float32_matmul_precision` allows the same, `torch.set_default_dtype` and `set_default_device` make tensors of another
kind. Inside the wall all of it is as torch has it at first, and comes back behind it. A fit as a whole is at least
`ordinary_torch`: what comes after the releases includes sums and factorisations that eight digits would spoil.

Where a GPU is in use, algorithms that add in an order of their own each time are switched off as well: what a record adds is then
a function of that record, which the wall tries out (`GradientSum.check`, `_Rounded.sizes`) and cannot try for every order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch

from sfumato.errors import BadInput

_KINDS = ("cpu", "cuda", "mps", "xpu")


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
        if (kept := torch.get_default_dtype()) != torch.float32:
            torch.set_default_dtype(torch.float32)
            stack.callback(torch.set_default_dtype, kept)
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """`ordinary_torch` with exact products, and on GPUs the same every time. Also a decorator; costs microseconds."""
    with ExitStack() as stack:
        stack.enter_context(ordinary_torch())
        if (precision := torch.get_float32_matmul_precision()) != "highest":
            torch.set_float32_matmul_precision("highest")
            stack.callback(torch.set_float32_matmul_precision, precision)
        if torch.cuda.is_initialized() or torch.backends.mps.is_available():
            _same_every_time(stack)
        try:
            yield
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            raise BadInput(
                "A layer of this network adds up in another order each time on this device, so no bound holds for a record; "
                f"take device=cpu, or other layers. torch says: {str(error).splitlines()[0]}"
            ) from error


def _same_every_time(stack: ExitStack) -> None:
    cudnn, settings = torch.backends.cudnn, cast(Any, torch.utils.deterministic)
    stack.enter_context(
        cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=False)
    )
    kept = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    stack.callback(torch.use_deterministic_algorithms, kept, warn_only=warned)
    filled = settings.fill_uninitialized_memory  # costs time, and nothing here reads such memory
    settings.fill_uninitialized_memory = False
    stack.callback(setattr, settings, "fill_uninitialized_memory", filled)
