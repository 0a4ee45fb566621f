"""An encoder of one's own for perceptual features: any `nn.Module` or callable, frozen before a private row is read.

    encoder = own_encoder("my-net", network, shape=(1, 28, 28), trained_on=["quickdraw"])
    sfumato.Mepf(encoder=encoder).fit(…)          # or encoder="own:my-net"; DP-DRE takes it as well

PUBLIC: the network, which must have been made without the private records; `trained_on` is the operator's word. As a codec of
one's own (`public.own`) it is copied, put into evaluation mode, frozen, and tried on public noise. What it gives needs no bound:
features are divided by their own length (`PerceptualFeatures`), and the wall clips what it is given. A network forgets what it
saw after every call but those of a generator's training, which sees made-up pictures; a plain function is the caller's word.

A run keeps the weights and the name, no code: to load it, make the encoder again under its name.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from sfumato.errors import BadInput
from sfumato.public.own import PREFIX, Map, check_name, check_shape, public_noise, tried
from sfumato.public.perceptual import OWN, NetworkEncoder

OUTPUT = "output"  # the layer that a network ends with


class OwnEncoder(NetworkEncoder):
    """The encoder that `own_encoder` makes."""

    def __init__(
        self,
        name: str,
        network: nn.Module,
        shape: tuple[int, ...],
        layers: tuple[str, ...],
        non_negative: bool | None,
        trained_on: tuple[str, ...],
        **more: Any,
    ) -> None:
        self.name, self.shape, self.trained_on = name, shape, trained_on
        super().__init__(network, layers, shape, non_negative=non_negative, **more)

    @property
    def spec(self) -> str:
        """What stands for it in a setting."""
        return f"{PREFIX}:{self.name}"

    def forward(self, pixels: Tensor) -> list[Tensor]:
        if torch.is_grad_enabled():
            return super().forward(pixels)  # a generator learns from its own pictures
        # A replica that is thrown away: what a network writes down of the rows it sees is nowhere afterwards.
        replica = copy.copy(self)
        replica._modules = {"network": copy.deepcopy(self.network)}
        return NetworkEncoder.forward(replica, pixels)

    def again(
        self,
        shape: tuple[int, ...],
        layers: Sequence[str] | None,
        size: int | None,
        pool: int | None,
        most: int | None = None,
    ) -> Self:
        """A copy with weights of its own, for pictures of this shape, perhaps of other layers."""
        if shape != self.shape:
            raise BadInput(
                f"The encoder {self.spec} was made for pictures of shape {self.shape}, and these are {shape}; make another."
            )
        taps = self.taps if layers is None else tuple(layers)
        positive = self.non_negative if taps == self.taps else None
        facts = self.name, copy.deepcopy(self.network), shape, taps, positive, self.trained_on
        return type(self)(*facts, size=size, pool=pool, most=most)


def own_encoder(
    name: str,
    network: Map,
    *,
    shape: Sequence[int],
    layers: Sequence[str] | None = None,
    non_negative: bool | None = None,
    trained_on: Sequence[str] = (),
) -> OwnEncoder:
    """Make your own network known under `name`, and return it as an encoder; methods take it as their setting `encoder`.

    `network` maps float pictures (n, C, H, W) in [0, 1] to a row of any shape for each, row by row, and can be differentiated:
    the generator learns through it. `layers` names modules whose outputs are the features, in place of what comes out at the end.
    `non_negative` says that no feature is negative, which saves noise under replace-one: the wall sets to zero what is. None: so
    if all layers are rectifiers. `trained_on` names the data that it was trained on: named sets (`"cifar10"`) are compared with
    the private one.
    """
    check_name("An encoder's", name)
    sides = check_shape(shape)
    if not callable(network):
        raise BadInput("The network cannot be called; pass an nn.Module or a function.")
    if layers is not None and not isinstance(network, nn.Module):
        raise BadInput("A function has no layers; leave `layers` out, or pass an nn.Module.")
    if isinstance(trained_on, str):
        trained_on = (trained_on,)
    who, taps = f"The encoder {PREFIX}:{name}", (OUTPUT,) if layers is None else tuple(layers)
    noise = public_noise(sides)
    try:
        body = _frozen(network, at_the_end=layers is None)
        encoder = OwnEncoder(name, body, sides, taps, non_negative, tuple(trained_on))
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"{who} fails on a picture of shape {sides} ({type(error).__name__}: {error}); correct `shape`, or the network."
        ) from error
    with torch.no_grad():
        tried(who, lambda rows: torch.cat(encoder(rows), dim=1), noise, (sum(encoder.widths),))
    _refuse_flat(who, encoder, noise)
    OWN[name] = encoder
    return encoder


class _Ending(nn.Module):
    """A network, or a function, whose end has a name among layers."""

    def __init__(self, network: Map) -> None:
        super().__init__()
        self.network = network
        self.output = nn.Identity()

    def forward(self, pixels: Tensor) -> Tensor:
        made = self.network(pixels)
        if not isinstance(made, Tensor):
            raise TypeError(f"it gives a {type(made).__name__}, and should give a tensor")
        return self.output(made)


def _frozen(network: Map, *, at_the_end: bool) -> nn.Module:
    """A network as a copy that nobody else can change; a function stays what it is."""
    held = copy.deepcopy(network).cpu() if isinstance(network, nn.Module) else network
    body = _Ending(held) if at_the_end or not isinstance(held, nn.Module) else held
    return body.eval().requires_grad_(False)


def _refuse_flat(who: str, encoder: OwnEncoder, noise: Tensor) -> None:
    pixels = noise.clone().requires_grad_()
    with torch.enable_grad():
        found = torch.cat(encoder(pixels), dim=1)
        slope = (
            torch.autograd.grad(found.square().sum(), pixels, allow_unused=True)[0]
            if found.requires_grad
            else None
        )
    if slope is None or not bool(torch.isfinite(slope).all()) or not bool(slope.any()):
        raise BadInput(
            f"{who} has no finite derivative with respect to the pixels, so that no generator can learn through it; compute in "
            "torch, without no_grad, detach or rounding."
        )
