"""Checked samples and moved pictures: Fisher's rule by a second route, what is drawn again, and runs that are loaded."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from pictures import striped
from sfumato.errors import BadInput
from sfumato.generators import ClassedGenerator, ConvGenerator
from sfumato.generators.embedding import MeanEmbedding
from sfumato.generators.networks import Warp
from sfumato.methods import Method, mepf_matching
from sfumato.methods.mepf import Mepf
from sfumato.methods.mepf_matching import _RIDGE, Discriminant, PerceptualDistance, Target
from sfumato.methods.saved import learnt, saved
from sfumato.privacy import Budget
from sfumato.privacy.store import packed
from sfumato.public.perceptual import PerceptualFeatures, ScatteringEncoder
from sfumato.public.pretraining import Schedule, pretrain_extractor

TINY = {"steps": 4, "batch": 12, "hidden": 16, "latent": 8}
GENEROUS = Budget(epsilon=50.0, delta=1e-4)


@pytest.fixture(autouse=True, scope="module")
def _few_records():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mepf, "FINAL", (mepf_matching.FINAL_SEED, 60))
        patch.setattr(mepf_matching, "_RULE_RECORDS", 60)
        patch.setattr(mepf_matching, "_RULE_AGREES", 0.0)
        yield


@pytest.fixture(scope="module")
def fitted(_few_records) -> Mepf:
    return Mepf(**TINY).fit(striped(300), GENEROUS)


@pytest.fixture
def shady(fitted) -> Mepf:
    """A method that draws flat pictures and calls those brighter than ½ class 1."""
    shady = copy.copy(fitted)
    weights = torch.stack([torch.zeros(64), torch.full((64,), 1 / 64), torch.zeros(64)])
    shady.rule_ = Discriminant(weights, torch.tensor([0.5, 0.0, -1.0]))
    shady.generator_ = Shades()
    shady._plain = SimpleNamespace(dim=64, of=lambda pixels: pixels.flatten(1))
    return shady


# -- the rule --------------------------------------------------------------------------------------------------------


def spread_rows(n: int, dim: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    mixing = torch.randn(dim, dim, generator=random)
    labels = torch.arange(n) % classes
    centres = 3 * torch.randn(classes, dim, generator=random)
    return torch.randn(n, dim, generator=random) @ mixing + centres[labels], labels


@pytest.mark.parametrize(("n", "dim"), [(300, 6), (40, 60)])  # more rows than features, and fewer
def test_the_rule_is_the_nearest_released_mean_in_the_spread_of_the_rows(n, dim):
    rows, labels = spread_rows(n, dim, 3)
    shares = torch.tensor([0.5, 0.3, 0.2])
    means = torch.randn(3, dim, generator=torch.Generator().manual_seed(9))
    rule = Discriminant.of(MeanEmbedding(means * shares[:, None], shares, 0.0), rows, labels)

    within = torch.stack([rows[labels == c].mean(dim=0) for c in range(3)])
    around = (rows - within[labels]).double().numpy()
    _, singular, axes = np.linalg.svd(around, full_matrices=False)
    rank = int((singular > 1e-3 * singular[0]).sum())
    axes, variances = axes[:rank], singular[:rank] ** 2 / n
    inverse = (axes.T / (variances + _RIDGE * variances.mean())) @ axes
    off = rows.double().numpy()[:, None] - means.double().numpy()[None]
    distances = np.einsum("ncd,de,nce->nc", off, inverse, off)
    assert np.array_equal(rule(rows).numpy(), distances.argmin(axis=1))
    scores = (rows @ rule.weights.T + rule.offsets).double().numpy()
    gaps = -0.5 * (distances - distances[:, :1])
    assert np.allclose(scores - scores[:, :1], gaps, atol=1e-3 * np.abs(gaps).max())


def test_noise_does_not_push_records_out_of_a_rare_class():
    rows, labels = spread_rows(200, 5, 2)
    shares, means = torch.tensor([0.95, 0.05]), torch.randn(2, 5)
    random = torch.Generator().manual_seed(3)

    def offsets(noise: float) -> torch.Tensor:
        noisy = means * shares[:, None] + noise * torch.randn(2, 5, generator=random)
        return Discriminant.of(MeanEmbedding(noisy, shares, noise), rows, labels).offsets

    found = torch.stack([offsets(0.05) for _ in range(2000)])
    error = found.std(dim=0) / 2000**0.5
    assert bool(((found.mean(dim=0) - offsets(0.0)).abs() < 5 * error).all())


@pytest.mark.parametrize("spread", [True, False])
def test_a_class_without_records_wins_nothing_and_no_spread_does_no_harm(spread):
    rows, labels = spread_rows(60, 4, 3)
    shares = torch.tensor([0.6, 0.4, 0.0])
    means = torch.stack([torch.zeros(4), torch.ones(4), torch.zeros(4)])
    seen = rows if spread else torch.ones(60, 4)
    rule = Discriminant.of(MeanEmbedding(means, shares, 0.1), seen, labels)
    assert set(rule(rows).tolist()) <= {0, 1}
    assert bool(torch.isfinite(rule.weights).all())


def test_a_rule_of_centred_features_is_one_of_plain_features():
    encoder = ScatteringEncoder((1, 8, 8))
    plain = PerceptualFeatures(encoder)
    random = torch.Generator().manual_seed(0)
    centre = torch.rand(plain.dim, generator=random) / plain.dim**0.5
    # So wide a radius that nothing is clipped.
    phi = PerceptualFeatures(encoder, centre=centre, radius=20.0)
    weights = torch.randn(3, plain.dim, generator=random)
    rule = Discriminant(weights, torch.randn(3, generator=random))
    pixels = torch.rand(7, 1, 8, 8, generator=random)
    before = rule.before(phi)
    scores = phi.of(pixels) @ rule.weights.T + rule.offsets
    again = plain.of(pixels) @ before.weights.T + before.offsets
    assert torch.allclose(scores, again, atol=1e-4)


# -- samples that are checked ------------------------------------------------------------------------------------------


class Shades(nn.Module):
    """Flat pictures of a random shade, whatever the label."""

    def forward(self, labels, generator):
        return torch.rand(len(labels), 1, 1, 1, generator=generator).expand(-1, 1, 8, 8).clone()


def test_what_looks_like_another_class_is_drawn_again_four_times(shady):
    labels = torch.arange(4000) % 2
    made = shady.made(labels, torch.Generator().manual_seed(0))
    bright = made.mean(dim=(1, 2, 3)) > 0.5
    slips = int((bright != (labels == 1)).sum())
    assert 70 < slips < 180  # of 4,000 ÷ 2⁵ = 125 on average; 2,000 unless any is drawn again


def test_pictures_are_drawn_again_but_labels_stay(shady):
    checked = shady.sample(90, seed=0)
    assert set(checked.labels) == {0, 1, 2}  # though no picture passes for the third class
    shady.rule_ = None
    plain = shady.sample(90, seed=0)
    assert np.array_equal(checked.labels, plain.labels)
    assert not np.array_equal(checked.images, plain.images)


@pytest.mark.parametrize(("checked", "labelled"), [(False, True), (True, False)])
def test_there_is_a_rule_only_where_there_are_classes_to_check(checked, labelled):
    fitted = Mepf(**TINY, checked=checked).fit(striped(300, labelled=labelled), GENEROUS)
    assert fitted.rule_ is None
    assert len(fitted.sample(5, seed=0)) == 5


def test_a_rule_that_most_pictures_fail_is_not_used(fitted, monkeypatch):
    assert fitted.rule_ is not None
    monkeypatch.setattr(mepf_matching, "_RULE_AGREES", 0.5)
    monkeypatch.setattr(Discriminant, "__call__", lambda self, rows: torch.zeros(len(rows)))
    assert Mepf(**TINY).fit(striped(300), GENEROUS).rule_ is None


def test_classes_without_records_do_not_speak_against_a_rule(monkeypatch):
    monkeypatch.setattr(mepf_matching, "_RULE_AGREES", 0.9)
    labels = torch.arange(200) % 5
    rows = 5 * torch.eye(5)[labels] + 0.1 * torch.randn(200, 5)
    shares = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0])
    embedding = MeanEmbedding(5 * torch.eye(5) * shares[:, None], shares, 1e-3)
    phi = SimpleNamespace(dim=5, centre=None, radius=None)
    distance = PerceptualDistance(Shades(), Target(phi, embedding), batch=10, steps=1)
    monkeypatch.setattr(distance, "made", lambda target, random, records: (rows, labels))
    rule = distance.rule()
    assert rule is not None
    assert rule(rows[labels < 2]).tolist() == labels[labels < 2].tolist()


def test_a_run_whose_network_is_gone_says_what_to_do(tmp_path):
    path = tmp_path / "eye.safetensors"
    pretrain_extractor(striped(60, seed=2), path, Schedule(steps=2, batch=8))
    Mepf(**TINY, encoder=str(path)).fit(striped(300), GENEROUS, out=tmp_path / "run")
    path.rename(tmp_path / "elsewhere.safetensors")
    with pytest.raises(BadInput, match="put it back, or train again"):
        Method.load(tmp_path / "run").sample(5, seed=0)


# -- pictures that are moved -------------------------------------------------------------------------------------------


def test_a_warp_moves_by_as_much_as_it_says_and_leaves_flat_pictures_alone():
    warp, n = Warp(0.1), 4000
    side = 41
    spot = torch.zeros(1, 1, side, side)
    spot[..., side // 2, side // 2] = 1.0
    moved = warp(spot.expand(n, -1, -1, -1), torch.Generator().manual_seed(0))
    weight = moved.sum(dim=(1, 2, 3))
    places = torch.linspace(-1, 1, side) * (side - 1) / side
    across = (moved.sum(dim=(1, 2)) * places).sum(dim=1) / weight
    down = (moved.sum(dim=(1, 3)) * places).sum(dim=1) / weight
    assert abs(float(across.mean())) < 0.02
    assert float(across.std()) == pytest.approx(0.1, rel=0.15)
    assert float(down.std()) == pytest.approx(0.1, rel=0.15)
    flat = torch.full((5, 2, 6, 9), 0.3)
    assert torch.allclose(warp(flat, torch.Generator()), flat)


@pytest.mark.parametrize("cls", [ConvGenerator, ClassedGenerator])
@pytest.mark.parametrize("classes", [0, 3])
def test_a_generator_moves_each_picture_by_itself(cls, classes):
    torch.manual_seed(0)
    network = cls((3, 12, 8), classes, 4, 8, warp=0.3).eval()
    labels = torch.zeros(6, dtype=torch.int64)
    made = network(labels, torch.Generator().manual_seed(1))
    assert made.shape == (6, 3, 12, 8)
    network.warp = None
    unmoved = network(labels, torch.Generator().manual_seed(1))
    assert not torch.allclose(made, unmoved, atol=1e-3)
    # By a second route: maps drawn after the latent numbers, applied to the picture before it is squashed.
    random = torch.Generator().manual_seed(1)
    torch.randn(6, 4, generator=random)
    maps = torch.eye(2, 3) + 0.3 * torch.randn(6, 2, 3, generator=random)
    places = functional.affine_grid(maps, [6, 3, 12, 8], align_corners=False)
    moved = functional.grid_sample(
        torch.logit(unmoved), places, padding_mode="border", align_corners=False
    )
    assert torch.allclose(torch.sigmoid(moved), made, atol=1e-3)


def _as_before(fitted: Mepf, **more: torch.Tensor) -> Mepf:
    """A run of a version before 0.3, opened."""
    weights = {f"network.{name}": value for name, value in fitted.generator_.state_dict().items()}
    again = Mepf(**TINY)
    again.schema_, again.statement_ = fitted.schema_, fitted.statement_
    again._take_back(packed({**weights, "shares": fitted.shares_, **more}))
    return again


def test_a_run_from_before_there_were_warps_and_checks_is_as_it_was():
    plain = Mepf(**TINY, warp=0.0, checked=False).fit(striped(300), GENEROUS)
    again = _as_before(plain)
    assert again.warp == 0.07  # the setting stays what it was
    assert again.rule_ is None
    assert np.array_equal(again.sample(9, seed=0).images, plain.sample(9, seed=0).images)
    anew = Mepf(**TINY)
    anew.schema_, anew.statement_ = plain.schema_, plain.statement_
    anew._take_back(saved(learnt(again, but=("schema_", "statement_"))))
    assert np.array_equal(anew.sample(9, seed=0).images, plain.sample(9, seed=0).images)


def test_a_rule_of_an_earlier_version_still_checks_where_its_features_are_there(fitted):
    rule = {"rule.weights": fitted.rule_.weights, "rule.offsets": fitted.rule_.offsets}
    again = _as_before(fitted, **rule)
    assert np.array_equal(again.sample(60, seed=0).images, fitted.sample(60, seed=0).images)
    anchored = _as_before(fitted, **rule | {"rule.weights": torch.rand(3, fitted._plain.dim + 3)})
    unchecked = copy.copy(fitted)
    unchecked.rule_ = None
    assert np.array_equal(anchored.sample(60, seed=0).images, unchecked.sample(60, seed=0).images)
