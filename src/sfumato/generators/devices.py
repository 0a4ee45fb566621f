"""Where networks are trained: on the processor, or on a GPU where torch can use one.

What lies there are networks, released numbers and public maps, and, while a step is asked, what networks are given of a record
and what they say of it. Clipping, rounding and adding up are the wall's, on the processor, whose arithmetic its proofs are about
(`privacy.gradients`); so is all that is drawn at random, so that a seed gives the same numbers on every device.
"""

from __future__ import annotations

import copy
import os
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
        name = next(kind for kind, available in there.items() if available)
    if not there[name]:
        raise BadInput(
            f"device={name} needs a GPU of that kind that torch can use; take device=auto, or cpu."
        )
    if name == "cuda":
        # What torch asks for before it multiplies in one order only (`privacy.arithmetic`); read when CUDA is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device(name)


def precise(device: torch.device) -> torch.dtype:
    """The most digits that the device computes with: mps has no double precision."""
    return torch.float32 if device.type == "mps" else torch.float64


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
        if value.dtype == torch.float64:
            value = value.to(precise(device))
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
