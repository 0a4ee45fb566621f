"""A public pretrained network: its facts, its frozen body, and taps on its layers.

**Guarantee**: row-wise. A network stays in evaluation mode whatever is asked of it, so batch norms
use their stored statistics and dropout is off: what a row gives does not depend on the other rows.
The weights are public; the pixels may be private, so no error here says anything about their values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How RGB pixels in [0, 1] become a network's input: (scale · pixels − mean) / std.

    `size` is the side that pictures are resized to when the caller names none (None: left as they
    are), `least` the smallest side that the network can take. `fixed` networks know one size only.
    """

    size: int | None = None
    least: int = 1
    fixed: bool = False
    scale: float = 1.0
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    bgr: bool = False
    antialias: bool = True

    def __call__(self, pixels: Tensor, *, size: int | None = None) -> Tensor:
        """float (n, 1 or 3, height, width) in [0, 1] → (n, 3, side, side), ready for the body."""
        _check_pixels(pixels)
        side = self._side(pixels, size)
        if side is not None and pixels.shape[2:] != (side, side):
            pixels = F.interpolate(
                pixels,
                size=(side, side),
                mode="bilinear",
                align_corners=False,
                antialias=self.antialias,
            )
        if pixels.shape[1] == 1:
            pixels = pixels.expand(-1, 3, -1, -1)
        if self.bgr:
            pixels = pixels.flip(1)
        mean, std = (pixels.new_tensor(v).view(1, 3, 1, 1) for v in (self.mean, self.std))
        ready = (pixels * self.scale - mean) / std  # (n, 3, side, side)
        return ready.contiguous(memory_format=torch.channels_last)

    def _side(self, pixels: Tensor, size: int | None) -> int | None:
        if self.fixed and size not in (None, self.size):
            raise BadInput(
                f"This network takes pictures of {self.size}×{self.size} only; leave out size."
            )
        side = self.size if size is None else size
        smallest = min(pixels.shape[2:]) if side is None else side
        if smallest < self.least:
            raise BadInput(
                f"This network needs pictures of at least {self.least}×{self.least}, and these would "
                f"be {smallest} on a side; pass size={max(self.least, 32)} or more to enlarge them."
            )
        return side

    def describe(self) -> str:
        """The input in words."""
        order = "BGR" if self.bgr else "RGB"
        side = (
            f"{self.size}×{self.size}" if self.size else f"any size from {self.least}×{self.least}"
        )
        if self.size and not self.fixed:
            side += f" (or another from {self.least})"
        steps = "" if self.scale == 1 else f" × {self.scale:g}"
        if any(self.mean):
            steps += f" − {_plain(self.mean)}"
        if any(value != 1 for value in self.std):
            steps += f", / {_plain(self.std)}"
        return f"{side}, {order} in [0, 1]{steps}"


def _plain(values: tuple[float, float, float]) -> str:
    if len(set(values)) == 1:
        return f"{values[0]:g}"
    return f"({', '.join(f'{value:g}' for value in values)})"


def _check_pixels(pixels: Tensor) -> None:
    if not isinstance(pixels, Tensor) or not pixels.is_floating_point():
        raise BadInput("A network takes a float tensor of pixels in [0, 1]; use Batch.pixels().")
    if pixels.ndim != 4 or pixels.shape[1] not in (1, 3) or 0 in pixels.shape[2:]:
        raise BadInput(
            "A network takes pixels of shape (n, 1 or 3, height, width), and these have shape "
            f"{tuple(pixels.shape)}; reshape them first."
        )


@dataclass(frozen=True, kw_only=True)
class NetworkInfo:
    """The public facts of a network.

    `trained_on` names the public data behind the weights, with the names of `sfumato.data` where a
    set has one: a network is no public knowledge about a private set that it was trained on.
    `taps` maps a layer's name to the path of its module inside the body.
    """

    name: str
    architecture: str
    about: str
    trained_on: tuple[str, ...]
    licence: str
    origin: str
    sha256: str
    output: str
    preprocessing: Preprocessing | None
    taps: Mapping[str, str]
    build: Callable[[], nn.Module] = field(repr=False)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that `activations` knows by name, first to last."""
        return tuple(self.taps)

    @property
    def input(self) -> str:
        """What goes in, in words."""
        return "features" if self.preprocessing is None else self.preprocessing.describe()


class Network(nn.Module):
    """A frozen public network: `network(pixels)` takes pixels in [0, 1], gray or RGB.

    `body` is the plain torch module, for those who preprocess themselves. Gradients flow to the
    pixels, never to the weights.
    """

    def __init__(self, info: NetworkInfo, body: nn.Module) -> None:
        super().__init__()
        self.info = info
        self.body = body.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: in training mode a batch norm would mix the rows."""
        return super().train(False)

    def preprocess(self, pixels: Tensor, *, size: int | None = None) -> Tensor:
        """What the body takes, from pixels in [0, 1]; `size` overrides the usual resizing."""
        if self.info.preprocessing is None:
            return pixels
        return self.info.preprocessing(pixels, size=size)

    def forward(self, pixels: Tensor, *, size: int | None = None) -> Tensor:
        return self.body(self.preprocess(pixels, size=size))


class _Enough(Exception):
    """Every layer asked for has been seen."""


def activations(
    network: Network, pixels: Tensor, layers: Sequence[str], *, size: int | None = None
) -> dict[str, Tensor]:
    """What the named layers give for pixels in [0, 1], in the order asked for; rows stay rows.

    A layer is one of `network.info.layers` or the path of any module of the body. Work stops at the
    last layer needed. A module that runs more than once gives its last output.
    """
    modules = dict(network.body.named_modules())
    chosen: dict[str, nn.Module] = {}
    for layer in layers:
        path = network.info.taps.get(layer, layer)
        if not path or path not in modules:
            known = ", ".join(network.info.layers) or "see the body's named_modules()"
            raise BadInput(f"{network.info.name} has no layer {layer!r}; its layers are {known}.")
        chosen[layer] = modules[path]
    # A tap runs once in a pass, so the pass may end when all have run; other modules may run again.
    may_stop = all(layer in network.info.taps for layer in layers)
    seen: dict[str, Tensor] = {}

    def keep(layer: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            seen[layer] = output
            if may_stop and len(seen) == len(chosen):
                raise _Enough

        return hook

    if not chosen:
        return {}
    ready = network.preprocess(pixels, size=size)
    handles = [module.register_forward_hook(keep(layer)) for layer, module in chosen.items()]
    try:
        network.body(ready)
    except _Enough:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return {layer: seen[layer] for layer in layers}


def lpips(network: Network, first: Tensor, second: Tensor, *, size: int | None = None) -> Tensor:
    """LPIPS distance of `first[i]` and `second[i]` by an "lpips-…" network: (n,)."""
    if not network.info.name.startswith("lpips"):
        raise BadInput(
            f"{network.info.name} does not measure LPIPS; take get_network('lpips-alexnet') or 'lpips-vgg16'."
        )
    return (network(first, size=size) - network(second, size=size)).square().sum(1)
