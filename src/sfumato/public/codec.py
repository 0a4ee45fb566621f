"""What a codec is: a public way from a record to a vector of bounded length, and back.

    codec = get_codec("dct:64", schema)          # or the path of a codec that `sfumato pretrain` has saved, …
    vectors = codec.encode(batch)                # records → (n, codec.dim), every ‖vector‖ ≤ codec.bound
    records = codec.decode(vectors)              # (n, codec.dim) → images (n, C, H, W) in [0, 1], or rows of a table

Pixels in cosines, principal components, columns of a table, autoencoders, AdaIN and IC-GAN are codecs. Those of images that have
a name or a file (`ImageCodec`) carry a card of what they have seen and are saved; the others are formulas of a Schema.

A codec is PUBLIC: made of public data or of none, it is fixed before a private row is read. The records it encodes may be
private, so no error here tells anything of their values.
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
from sfumato.privacy import remember

FORMAT = 1
_DESCRIPTION = "description"  # the header as a tensor, where a codec travels inside another file
_AT_ONCE = 256  # rows


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
    """Records ↔ vectors of `dim` numbers.

    **Guarantee**: `encode` gives vectors of L2 norm at most `bound` (a public constant) up to rounding, for every record without
    NaN. It is row-wise: no row depends on another. (The wall clips in any case.)

    Decoding has two halves, between which a mixture moves numbers into their range: `raw`, the numbers that a vector stands for,
    and `finish`, which makes records of them.
    """

    dim: int
    bound: float = 1.0
    ranged: bool = False  # whether `raw` gives the record's own numbers, each in [0, 1]

    @abstractmethod
    def encode(self, batch: Batch) -> Tensor:
        """(n records) → (n, dim) float32. A row with NaN gives NaN, and no other row does."""

    def raw(self, vectors: Tensor) -> Tensor:
        """(n, dim) → (n, numbers); `ranged` ones may still lie outside [0, 1]."""
        return vectors

    @abstractmethod
    def finish(self, raw: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(n, numbers) → float32 images in [0, 1], or rows of a table; clips what must be clipped.

        Some have a randomness of their own (IC-GAN's noise, categories): `generator` draws it.
        """

    @final
    def decode(self, vectors: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """(n, dim) → records, for any finite vectors."""
        return self.finish(self.raw(vectors), generator)

    def prior(self) -> Tensor:
        """(dim,) float64: how variance is expected to fall along the axes, up to a common factor, largest first."""
        return torch.ones(self.dim, dtype=torch.float64)

    def seen(self, batch: Batch) -> Tensor:
        """(n, C, H, W) in [0, 1]: what the codec gives back of images, in the levels that samples have; NaN stays."""
        return self.decode(self.encode(batch)).mul_(255).round_().div_(255)


class ImageCodec(Codec):
    """A codec for images of one shape that has a name or a file, and a card.

    **Guarantee**: as `Codec`: longer vectors are scaled down to `bound`, and with `unit` every vector but zero is scaled to the
    bound itself. Networks stay in evaluation mode and hold no batch norm that learns, so that no row depends on another.

    A subclass gives `kind`, `_encode`, `_decode`, `_tensors` and `_from_tensors`.
    """

    kind: ClassVar[str]
    shape: tuple[int, ...]  # (channels, height, width)
    unit: bool = False
    card: Card
    made_of: Dataset | None = None  # the public data it was just made of; not saved with it

    @abstractmethod
    def _encode(self, pixels: Tensor) -> Tensor:
        """(n, C, H, W) in [0, 1] → (n, dim), row-wise; `encode` bounds it."""

    @abstractmethod
    def _decode(self, vectors: Tensor, generator: torch.Generator | None) -> Tensor:
        """(n, dim) → (n, C, H, W), about [0, 1]; `finish` clamps it."""

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
    def encode(self, batch: Batch) -> Tensor:
        shape = tuple(batch.values.shape[1:])
        if shape != tuple(self.shape):
            raise BadInput(
                f"This codec is for pictures of shape {tuple(self.shape)}, and these have {shape}; "
                "resize them or take a codec of their shape."
            )
        parts = [self._encode(part.to(torch.float32)) for part in batch.pixels().split(_AT_ONCE)]
        vectors = torch.cat(parts) if parts else torch.empty(0, self.dim)
        return self.bounded(vectors.to(torch.float32))

    @final
    @torch.no_grad()
    def finish(self, raw: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Without a generator, what a decoder draws of its own is left at its mean."""
        if raw.ndim != 2 or raw.shape[1] != self.dim:
            raise BadInput(
                f"This codec decodes vectors of {self.dim} numbers, and these have shape {tuple(raw.shape)}."
            )
        vectors = self.bounded(raw.to(torch.float32))
        parts = [self._decode(part, generator) for part in vectors.split(_AT_ONCE)]
        pixels = torch.cat(parts) if parts else torch.empty(0, *self.shape)
        return pixels.to(torch.float32).clamp(0, 1)

    @final
    def bounded(self, vectors: Tensor) -> Tensor:
        """Each row scaled down to the bound if it is longer; with `unit` scaled to it in any case (zero stays zero)."""
        lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        factor = self.bound / lengths.clamp(min=1e-12)
        return vectors * (factor if self.unit else factor.clamp(max=1.0))

    def public_parts(self) -> tuple[Tensor, ...]:
        """What the wall knows an encoder by: rows that are made with it hand these on."""
        return tuple(t for t in self._tensors().values() if t.is_floating_point())

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


# -- loading -----------------------------------------------------------------------------------------------------------

_KINDS: dict[str, type[ImageCodec]] = {}


def codec_kind(cls: type[ImageCodec]) -> type[ImageCodec]:
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


def load_codec(path: Path | str) -> ImageCodec:
    """The codec that `save` wrote to `path`."""
    header = read_header(path)
    with safe_open(path, framework="pt") as stored:
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    return _build(header, tensors, str(path))


def codec_from_state(state: Mapping[str, Tensor]) -> ImageCodec:
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


def _build(header: dict[str, Any], tensors: dict[str, Tensor], where: str) -> ImageCodec:
    build: Callable[..., ImageCodec] = _KINDS[header["kind"]]._from_tensors
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
