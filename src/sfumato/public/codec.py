"""What a codec is: a public encoder and decoder of images, with a bound on its vectors and a card of what it has seen.

    codec = get_codec("dct:64", schema)          # or the path of a codec that `sfumato pretrain` has saved, …
    vectors = codec.encode(batch.pixels())       # (n, C, H, W) in [0, 1] → (n, codec.dim), every ‖vector‖ ≤ codec.bound
    pixels = codec.decode(vectors)               # (n, codec.dim) → (n, C, H, W) in [0, 1]

A codec is PUBLIC: made of public data or of none, it is fixed before a private row is read. The pixels it encodes may be
private, so no error here tells anything of their values. `EncodedFeatures(codec)` is the map that goes to the wall.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sfumato._version import __version__
from sfumato.data import Batch, Dataset, find_named
from sfumato.errors import BadInput, CorruptArtifact
from sfumato.files import atomic_path
from sfumato.privacy import FeatureMap, remember

FORMAT = 1
_DESCRIPTION = "description"  # the header as a tensor, where a codec travels inside another file
_ROWS_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a codec or network is made of: all that one must know to judge whether it is public for a private set.

    `trained_on` are the names of the data it saw, `records` how many records of them, `sha256` the hash of their pixels (of
    converted weights: of the weights), `quality` what was measured on public records kept out of the training. A card is
    published with every run that uses the codec, so number and hash of records are told only where all of `trained_on` are sets
    that anyone can fetch by these names; of others they are dropped, from old files too.
    """

    about: str
    trained_on: tuple[str, ...] = ()
    records: int | None = 0  # None: not told
    licence: str = "none needed"
    sha256: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    quality: Mapping[str, float] = field(default_factory=dict)
    sfumato: str = __version__

    def __post_init__(self) -> None:
        if self.records != 0 and not all(map(_is_named, self.trained_on)):
            object.__setattr__(self, "records", None)
            object.__setattr__(self, "sha256", "")

    def saw(self, name: str) -> bool:
        """Whether a data set called `name` ("cifar10", "cifar10:test") is among what this was made of, in any split."""
        return name.partition(":")[0] in {seen.partition(":")[0] for seen in self.trained_on}

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "trained_on": list(self.trained_on)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Card:
        return cls(**{**value, "trained_on": tuple(value["trained_on"])})


def _is_named(name: Any) -> bool:
    try:
        return isinstance(name, str) and find_named(name) is not None
    except BadInput:  # a split that the named set does not have
        return False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The public facts of a codec that a plan needs; reading them loads no weights."""

    kind: str
    shape: tuple[int, ...]
    dim: int
    bound: float
    unit: bool


class Codec(ABC):
    """A public pair of encoder and decoder for images of one shape.

    **Guarantee**: `encode` gives vectors of L2 norm at most `bound` (a public constant) up to rounding, for every finite
    picture: longer ones are scaled down, and with `unit` every vector but zero is scaled to the bound itself. It is
    row-wise: networks stay in evaluation mode and hold no batch norm that learns, so that no row depends on another. The
    wall checks the bound again (`EncodedFeatures`).

    A subclass gives `kind`, `_encode`, `_decode`, `_tensors` and `_from_tensors`.
    """

    kind: ClassVar[str]
    shape: tuple[int, ...]  # (channels, height, width)
    dim: int
    bound: float = 1.0
    unit: bool = False
    card: Card
    made_of: Dataset | None = None  # the public data it was just made of; not saved with it

    @abstractmethod
    def _encode(self, pixels: Tensor) -> Tensor:
        """(n, C, H, W) in [0, 1] → (n, dim), row-wise; `encode` bounds it."""

    @abstractmethod
    def _decode(self, vectors: Tensor, generator: torch.Generator | None) -> Tensor:
        """(n, dim) → (n, C, H, W), about [0, 1]; `decode` clamps it."""

    @abstractmethod
    def _tensors(self) -> dict[str, Tensor]:
        """The weights, without what is known by name."""

    @classmethod
    @abstractmethod
    def _from_tensors(
        cls, tensors: dict[str, Tensor], shape: tuple[int, ...], dim: int, settings: dict[str, Any]
    ) -> Self:
        """What `_tensors` and `_settings` came from; `load` sets the card."""

    def _settings(self) -> dict[str, Any]:
        """What besides shape and weights is needed to build the codec again; JSON."""
        return {}

    # -- use -----------------------------------------------------------------------------------------------------------

    @final
    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """(n, C, H, W) in [0, 1] → (n, dim) float32 with norms ≤ bound. A row with NaN gives NaN, and no other row does."""
        if pixels.ndim != 4 or tuple(pixels.shape[1:]) != tuple(self.shape):
            raise BadInput(
                f"This codec is for pictures of shape {tuple(self.shape)}, and these have {tuple(pixels.shape[1:])}; "
                "resize them or take a codec of their shape."
            )
        parts = [self._encode(part.to(torch.float32)) for part in pixels.split(_ROWS_AT_ONCE)]
        vectors = torch.cat(parts) if parts else torch.empty(0, self.dim)
        return self.bounded(vectors.to(torch.float32))

    @final
    @torch.no_grad()
    def decode(self, vectors: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """(n, dim) → (n, C, H, W) float32 in [0, 1], for any finite vectors.

        Some decoders have a randomness of their own (IC-GAN's noise): `generator` draws it; without one it is left at its mean.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.dim:
            raise BadInput(
                f"This codec decodes vectors of {self.dim} numbers, and these have shape {tuple(vectors.shape)}."
            )
        vectors = self.bounded(vectors.to(torch.float32))
        parts = [self._decode(part, generator) for part in vectors.split(_ROWS_AT_ONCE)]
        pixels = torch.cat(parts) if parts else torch.empty(0, *self.shape)
        return pixels.to(torch.float32).clamp(0, 1)

    @final
    def bounded(self, vectors: Tensor) -> Tensor:
        """Each row scaled down to the bound if it is longer; with `unit` scaled to it in any case (zero stays zero)."""
        lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        factor = self.bound / lengths.clamp(min=1e-12)
        return vectors * (factor if self.unit else factor.clamp(max=1.0))

    @property
    def facts(self) -> Facts:
        return Facts(
            kind=self.kind, shape=tuple(self.shape), dim=self.dim, bound=self.bound, unit=self.unit
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={tuple(self.shape)}, dim={self.dim}, bound={self.bound:g})"

    # -- saving --------------------------------------------------------------------------------------------------------

    @final
    def save(self, path: Path | str) -> Path:
        """One safetensors file, the card in its header; the local cache remembers which rows it was made of."""
        tensors = {name: value.contiguous() for name, value in self._tensors().items()}
        with atomic_path(Path(path)) as temporary:
            save_file(tensors, temporary, metadata={"codec": json.dumps(self._header())})
            if self.made_of is not None:  # before the file is there: none goes without its record
                remember(temporary, self.made_of)
        return Path(path)

    @final
    def state(self) -> dict[str, Tensor]:
        """Weights and header as tensors, for a method that keeps its codec with its own state; `from_state` undoes it."""
        text = json.dumps(self._header()).encode()
        return {**self._tensors(), _DESCRIPTION: torch.tensor(list(text), dtype=torch.uint8)}

    @final
    def _header(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": self.kind,
            "shape": list(self.shape),
            "dim": self.dim,
            "bound": self.bound,
            "unit": self.unit,
            "settings": self._settings(),
            "card": self.card.to_json(),
        }


class EncodedFeatures(FeatureMap):
    """φ(x) = codec.encode(x): the codec as a feature map for the wall.

    **Guarantee**: ‖φ(x)‖₂ ≤ codec.bound for every picture of finite pixels, since `Codec.encode` scales longer rows down;
    row-wise because a codec is.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.dim = codec.dim
        self.bound = codec.bound

    def public_parts(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.codec._tensors().values() if t.is_floating_point())

    def __call__(self, batch: Batch) -> Tensor:
        return self.codec.encode(batch.pixels())


# -- loading -----------------------------------------------------------------------------------------------------------

_KINDS: dict[str, type[Codec]] = {}


def codec_kind(cls: type[Codec]) -> type[Codec]:
    """Class decorator: files of this kind are loaded as this class."""
    _KINDS[cls.kind] = cls
    return cls


def read_header(path: Path | str) -> dict[str, Any]:
    """The header of a saved codec; loads no weights."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(
            f"There is no codec file {path}; check the path, or make one with `sfumato pretrain --kind codec`."
        )
    try:
        with safe_open(path, framework="pt") as stored:
            metadata = stored.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CorruptArtifact(
            f"{path} is not a whole safetensors file; restore it from a copy or pretrain the codec again."
        ) from error
    if "codec" not in metadata:
        raise BadInput(
            f"{path} holds no codec; give a file that `sfumato pretrain --kind codec` has written."
        )
    return _checked(metadata["codec"], str(path))


def facts_of_header(header: Mapping[str, Any]) -> Facts:
    return Facts(
        kind=header["kind"],
        shape=tuple(header["shape"]),
        dim=header["dim"],
        bound=header["bound"],
        unit=header["unit"],
    )


def load_codec(path: Path | str) -> Codec:
    """The codec that `save` wrote to `path`."""
    header = read_header(path)
    with safe_open(path, framework="pt") as stored:
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    return _build(header, tensors, str(path))


def codec_from_state(state: Mapping[str, Tensor]) -> Codec:
    """The codec that `state` described."""
    return _build(header_of_state(state), {n: t for n, t in state.items() if n != _DESCRIPTION}, "")


def header_of_state(state: Mapping[str, Tensor]) -> dict[str, Any]:
    return _checked(bytes(state[_DESCRIPTION].tolist()).decode(), "The codec of this run")


def _checked(text: str, where: str) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(text)
        known = header["format"] == FORMAT and header["kind"] in _KINDS
        facts_of_header(header)
        Card.from_json(header["card"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptArtifact(
            f"{where} has a damaged header ({type(error).__name__}); restore it from a copy."
        ) from error
    if not known:
        raise CorruptArtifact(
            f"{where} is of format {header['format']} and kind {header['kind']!r}, which this version does not know; "
            "use the version that wrote it."
        )
    return header


def _build(header: dict[str, Any], tensors: dict[str, Tensor], where: str) -> Codec:
    build: Callable[..., Codec] = _KINDS[header["kind"]]._from_tensors
    try:
        codec = build(tensors, tuple(header["shape"]), header["dim"], header["settings"])
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise CorruptArtifact(
            f"The codec {where} does not fit its own header; restore the file from a copy."
        ) from error
    codec.card = Card.from_json(header["card"])
    if codec.facts != facts_of_header(header):
        raise CorruptArtifact(
            f"The codec {where} does not fit its own header; restore the file from a copy."
        )
    return codec
