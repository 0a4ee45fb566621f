"""Where free training runs: on the processor, or on a GPU where torch can use one.

Only what comes after the releases is ever moved: generators, released numbers, public maps. Sums over private records, and the
gradients of private records that paid steps ask for, are computed by the wall on the processor, whose whole-number arithmetic
its proofs are about.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.errors import BadInput

DEVICES = ("cpu", "cuda", "mps", "auto")


def device_of(name: str) -> torch.device:
    """The device that a setting names; `auto` is the first that there is of cuda, mps and cpu."""
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, available in there.items() if available))
    if not there[name]:
        raise BadInput(
            f"device={name} needs a GPU of that kind that torch can use; take device=auto, or cpu."
        )
    return torch.device(name)


def moved(value: Any, device: torch.device) -> Any:
    """`value` with every tensor in it on `device`: networks in place, objects of ours and containers as copies."""
    if isinstance(value, nn.Module):
        value.to(device)
        for name, part in list(vars(value).items()):
            if not name.startswith(
                "_"
            ):  # what torch does not know of: tensors that are no parameters, objects that hold some
                setattr(value, name, moved(part, device))
        return value
    if isinstance(value, Tensor):
        if device.type == "mps" and value.dtype == torch.float64:
            value = value.to(torch.float32)  # which is all that it has
        return value.to(device)
    if isinstance(value, list | tuple):
        return type(value)(moved(part, device) for part in value)
    if isinstance(value, dict):
        return {key: moved(part, device) for key, part in value.items()}
    if type(value).__module__.startswith("sfumato.") and hasattr(value, "__dict__"):
        made = copy.copy(value)
        for name, part in vars(value).items():
            object.__setattr__(made, name, moved(part, device))
        return made
    return value
