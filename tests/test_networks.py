"""Public networks: shapes, preprocessing, taps and the row-wise promise, with random weights."""

from __future__ import annotations

import pickle
import sys
import tarfile
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from sfumato.data.fetch import SourceFailed
from sfumato.errors import BadInput, CorruptArtifact, DataUnavailable
from sfumato.files import sha256_of
from sfumato.public import weights as registry
from sfumato.public.architectures import (
    VGG,
    VGG16_BLOCKS,
    AlexNet,
    ResNet,
    fold_batch_norms,
)
from sfumato.public.foreign import read_members, read_pickle
from sfumato.public.network import Network, NetworkInfo, Preprocessing, activations, lpips
from sfumato.public.networks import Origin, resnet50_from_keras
from sfumato.public.weights import get_network, list_networks

INFOS = {info.name: info for info in list_networks()}
PICTURES = [name for name, info in INFOS.items() if info.preprocessing is not None]


def untrained(name: str) -> Network:
    """The network with random weights, and batch norms that have seen something."""
    torch.manual_seed(0)
    body = INFOS[name].build()
    for module in body.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    if hasattr(body, "heads"):
        for head in body.heads:
            nn.init.uniform_(head)
    return Network(INFOS[name], body)


def pictures(n: int = 2, channels: int = 3, side: int = 32) -> torch.Tensor:
    return torch.rand(n, channels, side, side, generator=torch.Generator().manual_seed(1))


def small_size(name: str) -> int | None:
    preprocessing = INFOS[name].preprocessing
    return None if preprocessing is None or preprocessing.fixed else 32


# ---------------------------------------------------------------------------------------- entries


def test_every_entry_says_where_it_comes_from_and_what_trained_it():
    names = [info.name for info in list_networks()]
    assert len(names) == len(set(names))
    assert {"fid-inception", *PARAMETERS} <= set(names)
    for info in list_networks():
        assert info.trained_on and info.licence and info.origin and info.output and info.input
        assert len(bytes.fromhex(info.sha256)) == 32
    assert INFOS["resnet18-cifar10"].trained_on == ("cifar10",)  # the name that sfumato.data uses


PARAMETERS = {
    "vgg16": 14_714_688,
    "vgg19": 20_024_384,
    "alexnet": 2_469_696,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "resnet18-cifar10": 11_173_962,
}


@pytest.mark.parametrize("name", INFOS)
def test_every_tap_is_a_module_and_parameters_are_as_many_as_published(name):
    with torch.device("meta"):
        body = INFOS[name].build()
    assert set(INFOS[name].taps.values()) <= set(dict(body.named_modules()))
    count = sum(p.numel() for p in body.parameters())
    assert count == PARAMETERS.get(name, count)


def test_keys_are_torchvisions():
    with torch.device("meta"):
        resnet, vgg, alexnet = ResNet((2, 2, 2, 2)), VGG(VGG16_BLOCKS), AlexNet()
    assert {"layer2.0.downsample.1.running_var", "layer4.1.bn2.weight", "fc.bias"} <= set(
        resnet.state_dict()
    )
    assert len(resnet.state_dict()) == 122
    assert {"features.0.weight", "features.28.bias"} <= set(vgg.state_dict())
    assert [k for k in alexnet.state_dict() if k.endswith("bias")] == [
        f"features.{i}.bias" for i in (0, 3, 6, 8, 10)
    ]


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(BadInput, match="did you mean resnet50"):
        get_network("resnet51")


# ----------------------------------------------------------------------------------- preprocessing


def test_pixels_are_scaled_shifted_and_turned_to_bgr():
    gray, pixels = pictures(channels=1), pictures()
    assert torch.equal(Preprocessing()(gray), Preprocessing()(gray.repeat(1, 3, 1, 1)))
    prepare = Preprocessing(scale=255.0, mean=(1.0, 2.0, 3.0), std=(1.0, 2.0, 4.0), bgr=True)
    ready = prepare(pixels)
    for ours, (channel, mean, std) in enumerate(((2, 1, 1), (1, 2, 2), (0, 3, 4))):
        expected = (255 * pixels[:, channel] - mean) / std
        torch.testing.assert_close(ready[:, ours], expected)


def test_lpips_shift_is_imagenets():
    """LPIPS shifts and scales [−1, 1]; that is ImageNet's mean and deviation on [0, 1]."""
    pixels = pictures()
    shift = torch.tensor([-0.030, -0.088, -0.188]).view(3, 1, 1)
    scale = torch.tensor([0.458, 0.448, 0.450]).view(3, 1, 1)
    theirs = (2 * pixels - 1 - shift) / scale
    torch.testing.assert_close(INFOS["vgg16"].preprocessing(pixels), theirs)


def test_pictures_are_resized_to_the_networks_size_or_the_one_asked_for():
    prepare = Preprocessing(size=64, least=16)
    assert prepare(pictures()).shape == (2, 3, 64, 64)
    assert prepare(pictures(), size=48).shape == (2, 3, 48, 48)
    assert Preprocessing()(pictures(side=20)).shape == (2, 3, 20, 20)
    ready = Preprocessing(size=50)(torch.full((1, 3, 28, 28), 0.25))  # constant stays constant
    torch.testing.assert_close(ready, torch.full((1, 3, 50, 50), 0.25))


@pytest.mark.parametrize(
    "bad",
    [
        torch.zeros(2, 3, 32, 32, dtype=torch.uint8),
        torch.zeros(3, 32, 32),
        torch.zeros(2, 2, 32, 32),
        torch.zeros(2, 3, 0, 32),
        np.zeros((2, 3, 32, 32), np.float32),
    ],
)
def test_other_things_than_pixels_are_refused(bad):
    with pytest.raises(BadInput):
        Preprocessing()(bad)


def test_too_small_pictures_are_refused_with_the_remedy():
    with pytest.raises(BadInput, match="pass size=32"):
        INFOS["alexnet"].preprocessing(pictures(side=28))
    with pytest.raises(BadInput, match="299×299 only"):
        INFOS["fid-inception"].preprocessing(pictures(), size=64)


# --------------------------------------------------------------------------------------- row-wise


@pytest.mark.parametrize("name", PICTURES)
def test_no_row_influences_another(name):
    network = untrained(name)
    layers = network.info.layers
    first = pictures(2)
    second = first.clone()
    second[0] = torch.nan
    before = activations(network, first, layers, size=small_size(name))
    after = activations(network, second, layers, size=small_size(name))
    if name == "fid-inception":
        assert before[layers[-1]].shape == (2, 2048)
    for layer in layers:
        assert len(before[layer]) == 2
        assert before[layer][1].isfinite().all()
        assert torch.equal(before[layer][1], after[layer][1])
        assert not torch.equal(before[layer][0], after[layer][0])


@pytest.mark.parametrize("name", ["resnet18-cifar10", "alexnet", "lpips-alexnet"])
def test_a_row_alone_gives_the_same_as_in_a_batch(name):
    network = untrained(name)
    pixels = pictures(3)
    together = network(pixels, size=32)
    alone = torch.cat([network(row[None], size=32) for row in pixels])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_a_network_never_leaves_evaluation_mode():
    network = untrained("resnet18-cifar10")
    holder = nn.Sequential(network).train()
    assert holder.training
    assert not any(module.training for module in network.modules())
    before = network.body.bn1.running_mean.clone()
    network(pictures())
    assert torch.equal(network.body.bn1.running_mean, before)


def test_gradients_reach_the_pixels_and_not_the_weights():
    network = untrained("lpips-alexnet")
    pixels = torch.zeros(1, 3, 32, 32, requires_grad=True)
    network(pixels).sum().backward()
    assert pixels.grad.isfinite().all()
    assert pixels.grad.abs().sum() > 0
    assert not any(p.requires_grad for p in network.parameters())


# ------------------------------------------------------------------------------------------- taps


def test_activations_are_what_the_layers_give():
    network = untrained("vgg16")
    pixels = pictures()
    found = activations(network, pixels, ["relu2_1", "relu1_1"])
    assert list(found) == ["relu2_1", "relu1_1"]
    x = network.preprocess(pixels)
    layers = network.body.features
    torch.testing.assert_close(found["relu1_1"], layers[:2](x))
    torch.testing.assert_close(found["relu2_1"], layers[:7](x))
    assert found["relu2_1"].shape == (2, 128, 16, 16)


def test_work_stops_at_the_last_layer_needed():
    network = untrained("vgg16")
    ran = []
    network.body.features[4].register_forward_hook(lambda *_: ran.append("pool1"))
    activations(network, pictures(), ["relu1_2"])
    assert not ran
    activations(network, pictures(), ["relu2_1"])
    assert ran == ["pool1"]


def test_any_module_can_be_tapped_and_hooks_are_taken_off_again():
    network = untrained("resnet18-cifar10")
    pixels = pictures()
    found = activations(network, pixels, ["layer1.0.relu", "layer1"])
    assert found["layer1.0.relu"].shape == found["layer1"].shape
    block = activations(network, pixels, ["layer1.0"])["layer1.0"]
    assert torch.equal(found["layer1.0.relu"], block)  # the block's second and last ReLU
    assert not any(module._forward_hooks for module in network.modules())
    assert activations(network, pixels, []) == {}
    with pytest.raises(BadInput, match="its layers are relu, layer1"):
        activations(network, pixels, ["layer9"])
    with pytest.raises(BadInput):
        activations(network, pixels, [""])


def test_the_last_tap_is_the_output():
    for name, tap in (("resnet18-cifar10", "fc"), ("alexnet", "relu5")):
        network = untrained(name)
        found = activations(network, pictures(), [tap])[tap]
        torch.testing.assert_close(found, network(pictures()))


# ------------------------------------------------------------------------------------------ LPIPS


def test_the_embedding_measures_lpips():
    """Squared distances of the embedding against the formula written out."""
    network = untrained("lpips-alexnet")
    first, second = pictures(2, side=40), pictures(2, side=40).flip(3)
    total = torch.zeros(2)
    taps = network.info.layers
    a, b = (activations(network, x, taps) for x in (first, second))
    for tap, head in zip(taps, network.body.heads, strict=True):
        unit = [x[tap] / (x[tap].norm(dim=1, keepdim=True) + 1e-10) for x in (a, b)]
        difference = (unit[0] - unit[1]).square() * head.view(1, -1, 1, 1)
        total += difference.sum(1).mean((1, 2))
    torch.testing.assert_close(lpips(network, first, second), total)
    assert torch.equal(lpips(network, first, first), torch.zeros(2))


def test_the_embeddings_norm_is_bounded_as_promised():
    network = untrained("lpips-vgg16")
    bound = sum(head.max().item() for head in network.body.heads)
    rows = torch.cat([pictures(), torch.zeros(1, 3, 32, 32), torch.ones(1, 3, 32, 32)])
    assert (network(rows).square().sum(1) <= bound * (1 + 1e-5)).all()


def test_lpips_needs_an_lpips_network():
    with pytest.raises(BadInput, match="lpips-alexnet"):
        lpips(untrained("alexnet"), pictures(), pictures())


# ------------------------------------------------------------------------------------ conversions


def test_folded_batch_norms_give_the_same():
    torch.manual_seed(0)
    weight, beta, mean = torch.randn(4, 3, 3, 3), torch.randn(4), torch.randn(4)
    var = torch.rand(4) + 0.1
    parts = {"weight": weight, "beta": beta, "mean": mean, "var": var}
    folded = fold_batch_norms({f"a.conv.{name}": part for name, part in parts.items()})
    assert set(folded) == {"a.conv.weight", "a.conv.bias"}
    x = torch.randn(2, 3, 8, 8)
    expected = F.batch_norm(F.conv2d(x, weight), mean, var, None, beta, False, 0.1, 1e-3)
    ours = F.conv2d(x, folded["a.conv.weight"], folded["a.conv.bias"])
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def keras_source() -> dict[str, torch.Tensor]:
    """Tiny stand-ins under Keras's names."""
    names = [("conv1", "bn_conv1")]
    for stage, blocks in zip("2345", ("abc", "abcd", "abcdef", "abc"), strict=True):
        for letter in blocks:
            branches = ["2a", "2b", "2c"] + (["1"] if letter == "a" else [])
            names += [
                (f"res{stage}{letter}_branch{b}", f"bn{stage}{letter}_branch{b}") for b in branches
            ]
    source = {"fc1000/kernel": torch.rand(5, 2), "fc1000/bias": torch.rand(2)}
    for conv, norm in names:
        source |= {f"{conv}/kernel": torch.rand(1, 1, 3, 2), f"{conv}/bias": torch.rand(2)}
        parts = ("gamma", "beta", "moving_mean", "moving_variance")
        source |= {f"{norm}/{part}": torch.rand(2) for part in parts}
    return source


def test_keras_names_become_torchvisions_and_biases_move_into_the_batch_norms():
    source = keras_source()
    state = resnet50_from_keras(source)
    with torch.device("meta"):
        assert set(state) == set(INFOS["resnet50"].build().state_dict())
    assert state["fc.weight"].shape == (2, 5)
    assert state["layer2.0.downsample.0.weight"].shape == (2, 3, 1, 1)
    assert torch.equal(state["layer3.5.bn3.bias"], source["bn4f_branch2c/beta"])
    x = torch.randn(1, 3, 4, 4)
    kernel = source["res2a_branch1/kernel"].permute(3, 2, 0, 1)
    names = ("moving_mean", "moving_variance", "gamma", "beta")
    norm = [source[f"bn2a_branch1/{part}"] for part in names]
    convolved = F.conv2d(x, kernel, source["res2a_branch1/bias"])
    theirs = F.batch_norm(convolved, norm[0], norm[1], norm[2], norm[3], eps=1e-3)
    names = ("running_mean", "running_var", "weight", "bias")
    norm = [state[f"layer1.0.downsample.1.{part}"] for part in names]
    convolved = F.conv2d(x, state["layer1.0.downsample.0.weight"])
    ours = F.batch_norm(convolved, norm[0], norm[1], norm[2], norm[3], eps=1e-3)
    torch.testing.assert_close(ours, theirs)


# ------------------------------------------------------------------------------------------ cache


class Parcel:
    """A package of one pickle; counts how often it is asked for."""

    about = "a parcel"
    archive = "tiny-1.0.tar.gz"

    def __init__(self, archive: Path, sha256: str) -> None:
        self._path = archive
        self.sha256 = sha256
        self.fetched = 0
        self.present = True

    def fetch(self, staging, names, progress):
        self.fetched += 1
        if not self.present:
            raise SourceFailed("no connection")
        (staging / self.archive).write_bytes(self._path.read_bytes())


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A network of one layer called "tiny", in an empty cache."""
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "cache"))
    weights = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.ones(2, "f4")}
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(weights))
    with tarfile.open(tmp_path / "tiny.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "w.pkl", "tiny-1.0/weights/w.pkl")
    sha256 = sha256_of(tmp_path / "tiny.tar.gz")
    info = NetworkInfo(
        name="tiny",
        architecture="a linear layer",
        about="for tests",
        trained_on=("nothing",),
        licence="none",
        origin="a parcel",
        sha256=sha256,
        output="(n, 2)",
        preprocessing=None,
        taps={},
        build=lambda: nn.Linear(3, 2),
    )
    parcel = Parcel(tmp_path / "tiny.tar.gz", sha256)

    def convert(archive):
        return {"tiny": read_pickle(read_members(archive, "tiny-1.0/weights")["w.pkl"], "w.pkl")}

    monkeypatch.setattr(registry, "_REGISTRY", {"tiny": (info, Origin(parcel, convert, (info,)))})
    return parcel


def converted() -> Path:
    return registry.cache_folder() / "networks" / "tiny.safetensors"


def test_a_network_is_fetched_and_converted_once(tiny, monkeypatch):
    network = get_network("tiny")
    assert network.body.weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not list(registry.cache_folder().rglob("*.tar.gz"))  # the archive is not kept
    with safe_open(converted(), framework="pt") as file:
        assert file.metadata()["source_sha256"] == tiny.sha256

    def forbidden(*_):
        raise AssertionError("a second load must not unpickle")

    monkeypatch.setattr("sfumato.public.foreign._Reader.__init__", forbidden)
    again = get_network("tiny")
    assert torch.equal(again.body.weight, network.body.weight)
    assert tiny.fetched == 1


def test_a_damaged_cache_file_is_made_anew(tiny):
    get_network("tiny")
    converted().write_bytes(converted().read_bytes()[:100])
    assert get_network("tiny").body.bias.tolist() == [1, 1]
    assert tiny.fetched == 2


def test_weights_from_another_source_are_not_used(tiny):
    converted().parent.mkdir(parents=True)
    wrong = {"format": "1", "network": "tiny", "source_sha256": "0" * 64}
    save_file({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, converted(), metadata=wrong)
    assert get_network("tiny").body.bias.tolist() == [1, 1]


def test_weights_of_another_shape_are_refused(tiny):
    get_network("tiny")
    with safe_open(converted(), framework="pt") as file:
        facts = file.metadata()
    save_file({"weight": torch.zeros(1, 3), "bias": torch.zeros(2)}, converted(), metadata=facts)
    with pytest.raises(CorruptArtifact, match="does not fit a linear layer"):
        get_network("tiny")


def test_a_tampered_package_is_not_read(tiny):
    tiny._path.write_bytes(tiny._path.read_bytes() + b"x")
    with pytest.raises(DataUnavailable, match="tiny"):
        get_network("tiny")
    assert not converted().exists()


def test_no_connection_is_said_in_words(tiny):
    tiny.present = False
    with pytest.raises(DataUnavailable, match=r"tiny cannot be had.*no connection.*by hand"):
        get_network("tiny")


def test_a_network_can_be_sent_to_another_process():
    network = untrained("alexnet")
    copy = pickle.loads(pickle.dumps(network))  # noqa: S301
    assert torch.equal(copy(pictures()), network(pictures()))


# ------------------------------------------------------------------------------------ torchvision


def test_without_torchvision_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(DataUnavailable, match=r"sfumato\[torchvision\]"):
        get_network("torchvision:resnet34")


class FakeWeights:
    meta = {"categories": ["cat", "dog"], "min_size": (1, 1)}

    def __str__(self) -> str:
        return "Small_Weights.IMAGENET1K_V1"

    def get_state_dict(self, *, progress, check_hash, weights_only):
        assert check_hash
        assert weights_only
        return small_network().state_dict()

    def transforms(self):
        return types.SimpleNamespace(crop_size=[8], mean=[0.5] * 3, std=[0.25] * 3)


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    )


@pytest.fixture
def torchvision(monkeypatch):
    models = types.ModuleType("torchvision.models")
    models.list_models = lambda module: ["small", "smaller"]
    models.get_model_weights = lambda name: types.SimpleNamespace(DEFAULT=FakeWeights())
    models.get_model = lambda name, weights: small_network()
    package = types.ModuleType("torchvision")
    package.models = models
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


@pytest.mark.usefixtures("torchvision")
def test_torchvisions_networks_come_frozen_and_preprocessed():
    network = get_network("torchvision:small")
    assert network.info.trained_on == ("imagenet-1k",)
    assert network.info.output == "logits: (n, 2)"
    pixels = pictures(side=8)
    torch.testing.assert_close(network(pixels), small_network()((pixels - 0.5) / 0.25))
    convolved = activations(network, pixels, ["0"])["0"]
    assert (convolved < 0).any()  # a ReLU in place would have cut it
    with pytest.raises(BadInput, match="did you mean small"):
        get_network("torchvision:smal")
