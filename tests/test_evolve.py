"""Private Evolution: one vote a record for the nearest picture of its class, sources of pictures, and what votes choose."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pictures import halves
from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.methods import Evolve, load
from sfumato.methods.evolve import nearest
from sfumato.privacy import Budget, Neighbours
from sfumato.public import perceptual
from sfumato.public.network import Network
from sfumato.public.pictures import (
    CodecPictures,
    DiffusionPictures,
    PublicPictures,
    Source,
    bent,
    own_source,
)
from sfumato.public.resolve import get_codec
from sfumato.public.weights import list_networks

BUDGET = Budget(epsilon=10.0, delta=1e-4)


class Sides(Source):
    """Pictures of the user's own: one side is bright, whatever class is asked for."""

    def __init__(self, schema: Schema) -> None:
        self._shape = schema.shape

    def random(self, labels: Tensor, random: torch.Generator) -> Tensor:
        side = torch.rand(len(labels), generator=random) < 0.5
        pictures = torch.full((len(labels), *self._shape), 0.3)
        pictures[side, ..., :4] = 0.6
        pictures[~side, ..., 4:] = 0.6
        return pictures

    def vary(
        self, pictures: Tensor, labels: Tensor, degree: float, random: torch.Generator
    ) -> Tensor:
        noise = 0.05 * degree * torch.randn(pictures.shape, generator=random)
        return (pictures + noise).clamp(0, 1)


def test_a_record_votes_once_for_the_nearest_picture_of_its_own_class() -> None:
    rng = np.random.default_rng(0)
    rows, known = rng.normal(size=(40, 5)), rng.normal(size=(3 * 7, 5))
    labels = rng.integers(-1, 3, 40)
    rows[5], labels[5] = np.nan, 1
    batch = Batch(torch.tensor(rows, dtype=torch.float32), torch.tensor(labels))
    votes = nearest(lambda b: b.values, torch.tensor(known, dtype=torch.float32), 3)
    ones, segment = votes(batch)
    assert ones.shape == (40, 1) and bool((ones == 1).all())
    for place, (row, label) in enumerate(zip(rows, labels, strict=True)):
        if label < 0 or np.isnan(row).any():
            assert segment[place] == -1
            continue
        distance = np.linalg.norm(known[7 * label : 7 * label + 7] - row, axis=1)
        assert segment[place] == 7 * label + int(distance.argmin())


def test_the_bound_of_a_histogram_is_one_and_a_replaced_record_moves_it_by_root_two() -> None:
    data = halves(400)
    budget = Budget(epsilon=1.0, delta=1e-4, neighbours=Neighbours.REPLACE_ONE)
    promised = Evolve(source="codec", codec="dct:8", rounds=3).promise(data.schema, budget)
    assert [c.label for c in promised.charges] == [f"votes, round {k}" for k in (1, 2, 3)]
    for charge in promised.charges:
        assert charge.bound == pytest.approx(1.0, abs=1e-3)
        assert charge.sensitivity(budget.neighbours) == pytest.approx(2**0.5, abs=1e-3)
    assert promised.epsilon == pytest.approx(1.0, abs=1e-3)


def test_the_population_follows_the_records_over_their_noise() -> None:
    schema = halves(10).schema

    def asked(size: int, epsilon: float) -> int:
        budget = Budget(epsilon=epsilon, delta=1e-6)
        made = Evolve(source="codec", codec="dct:8").promise(schema, budget, size=size)
        return made.charges[0].dimension

    assert asked(1_000, 1.0) < asked(10_000, 1.0) < asked(100_000, 1.0)
    assert asked(10_000, 0.5) < asked(10_000, 2.0)


def test_votes_give_each_class_its_own_pictures() -> None:
    data = halves(1200)
    made = Evolve(source=f"{__name__}:Sides", population=6, rounds=3, look_ahead=2)
    sampled = made.fit(data, BUDGET).sample(200, seed=1)
    pixels = torch.from_numpy(np.asarray(sampled.images)).float()
    left = pixels[..., :4].mean((1, 2, 3)) > pixels[..., 4:].mean((1, 2, 3))
    assert sampled.labels is not None
    # Of the source half would be right.
    assert float((left.numpy() == (sampled.labels == 0)).mean()) > 0.95


def test_a_saved_run_draws_the_same_without_its_public_data(tmp_path: Path) -> None:
    made = Evolve(source="codec", codec="pca:8", population=5, rounds=2)
    made.fit(halves(300), BUDGET, public=halves(200, seed=5), out=tmp_path / "run")
    again = load(tmp_path / "run")
    assert np.array_equal(made.sample(30, seed=4).images, again.sample(30, seed=4).images)


def test_public_pictures_are_bent_by_no_more_than_the_degree_says() -> None:
    random = torch.Generator().manual_seed(0)
    # A soft spot: neighbouring pixels are alike, so that a small move changes little.
    spot = torch.exp(-(torch.linspace(-2, 2, 28) ** 2))
    pictures = (spot[:, None] * spot).expand(50, 1, 28, 28)
    apart = [
        float((bent(pictures, degree, random) - pictures).abs().mean())
        for degree in (0.0, 0.2, 1.0)
    ]
    assert apart[0] < 1e-5 < apart[1] < apart[2]
    drawn = PublicPictures(halves(40)).random(torch.zeros(7, dtype=torch.int64), random)
    assert drawn.shape == (7, 1, 8, 8) and float(drawn.min()) >= 0 and float(drawn.max()) <= 1


def test_a_walk_in_a_codec_stays_near_for_small_degrees() -> None:
    data = halves(200)
    codec = get_codec("dct:16", data.schema)
    source = CodecPictures(codec, CodecPictures.spread_of(codec, data))
    labels, random = torch.zeros(200, dtype=torch.int64), torch.Generator().manual_seed(0)
    pictures = codec.decode(codec.encode(data.take(np.arange(200))))

    def moved(degree: float) -> float:
        return float((source.vary(pictures, labels, degree, random) - pictures).square().mean())

    assert moved(0.0) < 1e-6 < moved(0.1) < moved(1.0)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"source": "codec"}, "give both or neither"),
        ({"codec": "dct"}, "give both or neither"),
        ({"source": "no.such.module:Thing"}, "no source of pictures"),
        ({"source": "sfumato.data:Schema"}, "no subclass"),
        ({"source": "diffusers:/nowhere"}, "holds no diffusion model|install it"),
    ],
)
def test_what_is_no_source_is_refused_in_a_sentence(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        Evolve(**settings, population=2, rounds=1).fit(halves(40), BUDGET)


def test_bent_public_pictures_need_public_data() -> None:
    with pytest.raises(BadInput, match="--public"):
        Evolve().fit(halves(40), BUDGET)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason="diffusers is an extra")
def test_a_diffusion_model_of_the_users_draws_and_varies(tmp_path: Path) -> None:
    from diffusers import DDIMScheduler, UNet2DModel

    torch.manual_seed(0)
    UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    ).save_pretrained(tmp_path / "unet")
    DDIMScheduler().save_pretrained(tmp_path / "scheduler")
    data = halves(60)
    source = DiffusionPictures(tmp_path, data.schema)
    labels, random = torch.zeros(3, dtype=torch.int64), torch.Generator().manual_seed(0)
    pictures = torch.rand(3, 1, 8, 8, generator=random)
    assert torch.equal(source.vary(pictures, labels, 0.0, random), pictures)
    near, far = (
        float((source.vary(pictures, labels, degree, random) - pictures).abs().mean())
        for degree in (0.05, 0.8)
    )
    assert near < far
    made = Evolve(source=f"diffusers:{tmp_path}", population=2, rounds=1, look_ahead=0)
    assert len(made.fit(data, BUDGET).sample(4)) == 4
    with pytest.raises(BadInput, match="of their size"):
        DiffusionPictures(tmp_path, Schema(kind="images", shape=(3, 8, 8)))


class Wider(Sides):
    def __init__(self, schema: Schema, width: int) -> None: ...


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (".foo:Bar", "no source of pictures"),
        ("a..b:C", "no source of pictures"),
        (":C", "no source of pictures"),
        ("os:", "no source of pictures"),
        (f"{__name__}:Wider", "cannot be made of a schema"),
        ("sfumato.public.pictures:Source", "cannot be made of a schema"),
    ],
)
def test_a_source_that_cannot_be_made_gets_a_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        own_source(spec, Schema(kind="images", shape=(1, 8, 8)))


def test_code_that_a_saved_run_names_is_not_run_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"from {__name__} import Sides\nclass Theirs(Sides): ..."
    (tmp_path / "their_source.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    schema = Schema(kind="images", shape=(1, 8, 8))
    made = Evolve(source="their_source:Theirs")
    made.schema_ = schema
    with pytest.raises(BadInput, match="code that it names, their_source:Theirs"):
        made.source_again()
    assert "their_source" not in sys.modules
    monkeypatch.setenv("SFUMATO_ALLOW_CODE", "1")
    assert type(made.source_again()).__name__ == "Theirs"
    monkeypatch.delenv("SFUMATO_ALLOW_CODE")
    assert type(made.source_again()).__name__ == "Theirs"  # it is here now
    del sys.modules["their_source"]


def test_a_network_sees_small_pictures_at_64_pixels_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    infos = {info.name: info for info in list_networks()}

    def untrained(name: str, weights: bool, progress: Any) -> Network:
        return Network(infos[name], infos[name].build())

    monkeypatch.setattr(perceptual, "_network", untrained)

    def side(name: str, shape: tuple[int, ...], size: int | None = None) -> int | None:
        sides: list[int] = []
        features = perceptual.embedding(name, shape, size=size)
        body = features.encoder.network.body
        body.register_forward_pre_hook(lambda module, inputs: sides.append(inputs[0].shape[-1]))
        assert torch.isfinite(features.of(torch.rand(2, *shape))).all()
        return sides[0]

    assert side("resnet18", (3, 32, 32)) == 64
    assert side("resnet18", (3, 80, 80)) == 80
    assert side("resnet18", (3, 32, 32), size=96) == 96
    assert side("fid-inception", (3, 32, 32)) == 299  # it takes no other


def test_scattering_takes_no_size() -> None:
    schema = Schema(kind="images", shape=(1, 8, 8), classes=("a", "b"))
    with pytest.raises(BadInput, match="embedding_size is for networks"):
        Evolve(source="codec", codec="dct:16", embedding_size=64).promise(schema, BUDGET)
