"""A codec of one's own: any `nn.Module` or callable as encoder and decoder, frozen before a private row is read.

    codec = own_codec("my-ae", encoder, decoder, shape=(1, 28, 28), dim=32, trained_on=["quickdraw"])
    sfumato.Mixture(codec=codec).fit(…)          # or codec="own:my-ae"

PUBLIC: the networks, which must have been made without the private records; `trained_on` is the operator's word. What is given
is copied, put into evaluation mode and frozen, and tried on public noise: an encoder that mixes the rows of a batch (a batch norm
that takes their mean), that draws (dropout), or that gives no finite vector of the stated size is refused. Longer vectors than
`bound` are scaled down to it, here and again by the wall. A network forgets what it saw after every call; a plain function is the
caller's word: it must keep nothing of its rows.

A run keeps the weights and the name, no code: to load it, make the codec again under its name. The code is then the caller's
word.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from sfumato.errors import BadInput
from sfumato.public.codec import Card, Facts, ImageCodec, codec_kind

Map = Callable[[Tensor], Tensor]
PREFIX = "own"
_TRIED = 6  # rows of noise
_MOST_NUMBERS = 1 << 20
# How much a row may differ, against its length, by the batch it is computed with: kernels add in another order.
_ROUNDING = 1e-4
_OWN: dict[str, OwnCodec] = {}


@codec_kind
class OwnCodec(ImageCodec):
    """The codec that `own_codec` makes."""

    kind = PREFIX

    def __init__(
        self,
        name: str,
        encoder: Map,
        decoder: Map,
        shape: tuple[int, ...],
        dim: int,
        bound: float,
        unit: bool,
        card: Card,
    ) -> None:
        self.name, self.shape, self.dim, self.bound, self.unit = name, shape, dim, bound, unit
        self.encoder, self.decoder = _frozen(encoder), _frozen(decoder)
        self.card = card

    @property
    def spec(self) -> str:
        """What stands for it in a setting."""
        return f"{PREFIX}:{self.name}"

    def _encode(self, pixels: Tensor) -> Tensor:
        return self.encoder(pixels)

    def _decode(self, vectors: Tensor, generator: torch.Generator | None) -> Tensor:
        return self.decoder(vectors)

    def _tensors(self) -> dict[str, Tensor]:
        parts = {"encoder": self.encoder, "decoder": self.decoder}
        return {
            f"{part}.{name}": tensor.contiguous()
            for part, map_ in parts.items()
            if isinstance(map_, nn.Module)
            for name, tensor in map_.state_dict().items()
        }

    def _settings(self) -> dict[str, Any]:
        return {"name": self.name}

    @classmethod
    def _from_tensors(
        cls, tensors: dict[str, Tensor], shape: tuple[int, ...], dim: int, settings: dict[str, Any]
    ) -> Self:
        known = find_own(settings["name"])
        again = copy.copy(known)
        for part in ("encoder", "decoder"):
            map_ = copy.deepcopy(getattr(known, part))
            weights = {
                name.removeprefix(f"{part}."): tensor
                for name, tensor in tensors.items()
                if name.startswith(f"{part}.")
            }
            if isinstance(map_, nn.Module):
                map_.load_state_dict(weights)
            elif weights:
                raise ValueError("weights for a function that has none")
            setattr(again, part, map_)
        return again  # type: ignore[return-value]


def own_codec(
    name: str,
    encoder: Map,
    decoder: Map,
    *,
    shape: Sequence[int],
    dim: int,
    bound: float = 1.0,
    unit: bool = False,
    trained_on: Sequence[str] = (),
    about: str = "a codec of one's own",
    licence: str = "not stated",
) -> OwnCodec:
    """Make a codec of your own networks known under `name`, and return it; methods take it as their setting `codec`.

    `encoder` maps float pictures (n, C, H, W) in [0, 1] to (n, `dim`), `decoder` back; both row by row. Vectors are scaled down
    to the length `bound` where they are longer, with `unit` all to it. `trained_on` names the data that they were trained on:
    named sets (`"cifar10"`) are compared with the private one.
    """
    check_name("A codec's", name)
    sides = check_shape(shape)
    if type(dim) is not int or not 1 <= dim <= _MOST_NUMBERS:
        raise BadInput(f"`dim` is {dim!r}; pass how many numbers the encoder gives for a picture.")
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < 1e6:
        raise BadInput(f"`bound` is {bound!r}; pass the greatest length of a vector, 1 say.")
    if not callable(encoder) or not callable(decoder):
        raise BadInput("The encoder or decoder cannot be called; pass an nn.Module or a function.")
    if isinstance(trained_on, str):
        trained_on = (trained_on,)
    card = Card(
        about=about,
        trained_on=tuple(trained_on),
        records=None if trained_on else 0,
        licence=licence,
        settings={"dim": dim, "bound": float(bound), "unit": bool(unit)},
    )
    codec = OwnCodec(name, encoder, decoder, sides, dim, float(bound), bool(unit), card)
    _try(codec)
    _OWN[name] = codec
    return codec


def find_own(name: str) -> OwnCodec:
    if name not in _OWN:
        raise BadInput(
            f"The codec own:{name} is not known here, since no file holds its code; make it again by "
            f"sfumato.public.own_codec({name!r}, …) first."
        )
    return _OWN[name]


def own_facts(name: str) -> Facts:
    return find_own(name).facts


class _Frozen(nn.Module):
    """A copy of a network in evaluation mode, and it stays there: in training mode a batch norm would mix the rows.

    Each call is answered by a replica that is thrown away: what a network writes down of the rows it sees, in a buffer or
    elsewhere, is neither there for the next rows nor in the weights that a run keeps.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).cpu().eval().requires_grad_(False)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = copy.deepcopy(self.network)(rows)
        return found

    def train(self, mode: bool = True) -> Self:
        return self


def _frozen(map_: Map) -> Map:
    """A network as a copy that nobody else can change; a function stays what it is."""
    return _Frozen(map_) if isinstance(map_, nn.Module) else map_


@torch.no_grad()
def _try(codec: OwnCodec) -> None:
    """Encode and decode public noise."""
    who, noise = f"of {codec.spec}", public_noise(codec.shape)
    vectors = tried(f"The encoder {who}", codec.encoder, noise, (codec.dim,))
    tried(f"The decoder {who}", codec.decoder, codec.bounded(vectors), codec.shape)


# -- for whatever is somebody's own -----------------------------------------------------------------------------------------


def check_name(whose: str, name: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
        raise BadInput(f"{whose} name is a word such as my-ae, not {name!r}; choose another.")


def check_shape(shape: Any) -> tuple[int, ...]:
    sides = tuple(shape) if isinstance(shape, Sequence) else ()
    if len(sides) != 3 or not all(type(side) is int and side > 0 for side in sides):
        raise BadInput(f"`shape` is {shape!r}; pass (channels, height, width).")
    return sides


def public_noise(shape: tuple[int, ...]) -> Tensor:
    """A few pictures to try networks on, black and white ones among them."""
    random = torch.Generator().manual_seed(0)
    pixels = torch.rand(_TRIED, *shape, generator=random)
    pixels[0] = 0.0
    pixels[1] = 1.0
    return pixels


def tried(who: str, map_: Map, given: Tensor, wanted: tuple[int, ...]) -> Tensor:
    """What `map_` makes of the rows; raises unless each is computed from itself alone, always the same, and finite."""

    def apply(rows: Tensor) -> Tensor:
        try:
            made = map_(rows.clone())
        except Exception as error:
            raise BadInput(
                f"{who} fails on {len(rows)} rows of shape {tuple(rows.shape[1:])} "
                f"({type(error).__name__}: {error}); it must take any number of rows."
            ) from error
        if not isinstance(made, Tensor) or made.shape != (len(rows), *wanted):
            found = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise BadInput(
                f"{who} gives {found} for {len(rows)} rows, not {(len(rows), *wanted)}; correct `dim` or "
                "`shape`, or the network."
            )
        if not made.is_floating_point() or not bool(torch.isfinite(made).all()):
            raise BadInput(f"{who} gives numbers that are not finite floating point; correct it.")
        return made.float()

    whole = apply(given)
    alone = torch.cat([apply(row[None]) for row in given])
    scale = 1 + whole.flatten(1).norm(dim=1)
    if bool(((apply(given) - whole).flatten(1).norm(dim=1) > _ROUNDING * scale).any()):
        raise BadInput(
            f"{who} gives other numbers each time; leave out what it draws (dropout, noise)."
        )
    if bool(((alone - whole).flatten(1).norm(dim=1) > _ROUNDING * scale).any()):
        raise BadInput(
            f"{who} mixes the rows of a batch, so that no bound on one record's part holds; leave out "
            "what computes over the batch (a batch norm without running statistics)."
        )
    return whole
