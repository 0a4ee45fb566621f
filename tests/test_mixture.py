"""The mixture: its codec, its moments, their denoising, the draws and the refinement, each by a second route."""

from __future__ import annotations

import gc
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pictures import halves
from plans import plan_of
from sfumato.data import Batch, Column, Dataset, Schema
from sfumato.errors import BadInput
from sfumato.generators.mixture import GaussianMixture, RangeFit
from sfumato.methods import Mixture
from sfumato.methods import mixture as module
from sfumato.methods.base import as_bytes
from sfumato.methods.moments import (
    above_edge,
    counted,
    positive,
    scaled,
    shrunk_moments,
    smoothed,
    symmetric,
    wiener,
)
from sfumato.methods.refinement import LABEL, STEPS, Refinement, record_gradients
from sfumato.privacy import BoundedSum, Budget, Neighbours, OuterSum, Query, enforced_bound
from sfumato.privacy.gate import _map_of
from sfumato.privacy.memory import Remembered
from sfumato.public.linear import MOST_COEFFICIENTS, Axes, CosineCodec, DctCodec, TurnedCodec
from sfumato.public.tabular import TableCodec

SEVERAL = Budget(epsilon=200.0, delta=1e-5)


def pictures(shape: tuple[int, ...] = (1, 8, 8), n: int = 4) -> Batch:
    rng = np.random.default_rng(0)
    return Batch(torch.from_numpy(rng.integers(0, 256, (n, *shape), dtype=np.uint8)), None)


TABLE = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", low=0, high=100),
        Column(name="town", kind="categorical", categories=("a", "b", "c")),
        Column(name="grade", kind="ordinal", categories=("1", "2", "3"), missing=True),
    ),
    label="ill",
    classes=("no", "yes"),
)


def table(n: int = 4000) -> Dataset:
    rng = np.random.default_rng(0)
    ill = np.arange(n) % 2
    values = np.stack(
        [
            np.clip(rng.normal(30 + 40 * ill, 5), 0, 100),
            np.where(rng.random(n) < 0.9, ill, 2),
            np.where(rng.random(n) < 0.25, math.nan, rng.integers(0, 3, n)),
        ],
        axis=1,
    )
    return Dataset.from_values(values, ill, schema=TABLE)


# -- the codec -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 10, 6), (1, 28, 28), (3, 1, 5)])
def test_pixels_come_back_from_their_cosines_and_lengths_are_kept(shape):
    codec, batch = CosineCodec(Schema(kind="images", shape=shape)), pictures(shape)
    vectors = codec.encode(batch)
    centred = (batch.pixels() - 0.5).flatten(1)
    assert torch.allclose(vectors.norm(dim=1), centred.norm(dim=1), rtol=1e-4)
    assert torch.equal(as_bytes(codec.decode(vectors)), batch.values)


def test_extreme_pictures_reach_the_radius_and_none_exceeds_it():
    codec = CosineCodec(Schema(kind="images", shape=(3, 5, 7)))
    white = Batch(torch.full((1, 3, 5, 7), 255, dtype=torch.uint8), None)
    assert float(codec.encode(white).norm()) == pytest.approx(codec.bound, rel=1e-5)
    assert (codec.encode(pictures((3, 5, 7), 50)).norm(dim=1) <= codec.bound).all()


def test_large_pictures_keep_their_low_frequencies():
    codec = CosineCodec(Schema(kind="images", shape=(1, 64, 64)))
    assert codec.dim == MOST_COEFFICIENTS
    assert (codec.prior()[:-1] >= codec.prior()[1:]).all()
    slope = torch.linspace(0, 1, 64).expand(1, 1, 64, 64).contiguous()
    back = codec.raw(codec.encode(Batch(slope, None)))
    assert float((back - slope.flatten(1)).abs().max()) < 0.05


def test_a_table_comes_back_from_its_vectors():
    data = table(50)
    codec = TableCodec(TABLE)
    batch = next(data.batches(50))
    vectors = codec.encode(batch)
    assert (vectors.norm(dim=1) <= codec.bound).all()
    back = codec.decode(vectors, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(back, batch.values, atol=1e-3, equal_nan=True)


# -- moments ---------------------------------------------------------------------------------------------------------


def flat(batch: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
    return batch.values.flatten(1), batch.labels


def test_a_long_vector_is_clipped_and_its_count_is_not():
    query = Query(label="means", shape=(5,), bound=math.hypot(1, 0.4), segments=2)
    phi = _map_of(query, counted(flat, 2.0))
    rows = torch.tensor([[100.0, 0, 0, 0], [0, 1.0, 0, 0], [math.nan, 0, 0, 0]])
    batch = Batch(rows.view(3, 1, 2, 2), torch.tensor([0, 1, 0]))
    total = BoundedSum(phi)(batch).double() * BoundedSum(phi).grid
    wanted = torch.tensor([[1.0, 0, 0, 0, 0.4], [0, 0.5, 0, 0, 0.4]]).double()
    assert torch.allclose(total, wanted, atol=1e-4)
    assert enforced_bound(phi) >= float(total.norm(dim=1).max())


def test_squares_add_up_to_the_second_moment_of_each_class():
    generator = torch.Generator().manual_seed(0)
    values, labels = torch.randn(40, 1, 2, 2, generator=generator), torch.arange(40) % 3
    labels[0] = -1
    query = Query(label="squares", shape=(4, 4), symmetric=True, segments=3)
    phi = _map_of(query, scaled(flat, 10.0))
    total = OuterSum(phi)(Batch(values, labels)).double() * OuterSum(phi).grid * 100
    for code in range(3):
        rows = values.flatten(1)[labels == code].double()
        assert torch.allclose(total[code].view(4, 4), rows.T @ rows, atol=0.02)
    assert phi.replace_ratio == math.sqrt(2)


def test_moving_averages_are_averages():
    values = torch.arange(10.0)
    assert torch.allclose(smoothed(values, 3)[4], torch.tensor(4.0))
    assert torch.equal(smoothed(values, 1), values)
    assert torch.allclose(smoothed(torch.ones(7), 100), torch.ones(7))


def test_wiener_leaves_signal_and_removes_noise():
    generator = torch.Generator().manual_seed(0)
    truth = torch.zeros(10, 400, dtype=torch.float64)
    truth[:, :50] = torch.randn(10, 50, dtype=torch.float64, generator=generator) * 3
    noisy = truth + torch.randn(10, 400, dtype=torch.float64, generator=generator)
    found = wiener(noisy, torch.ones(10, dtype=torch.float64), 4)
    assert float((found - truth).square().mean()) < 0.3 * float((noisy - truth).square().mean())
    assert float(found[:, 50:].abs().mean()) < 0.2
    assert torch.allclose(wiener(truth, torch.full((10,), 1e-6).double(), 4), truth, atol=1e-3)


def test_noise_alone_has_nothing_above_its_edge_and_a_spike_is_found():
    generator = torch.Generator().manual_seed(0)
    noise = symmetric(torch.randn(200, 200, dtype=torch.float64, generator=generator))
    std = 1 / math.sqrt(2)
    assert float(above_edge(noise, std * 1.02).norm()) < 0.1 * float(noise.norm())
    direction = torch.nn.functional.normalize(torch.ones(200, dtype=torch.float64), dim=0)
    truth = 60 * torch.outer(direction, direction)
    found = above_edge(truth + noise, std)
    assert float((found - truth).norm()) < 0.6 * float(noise.norm())
    assert float(direction @ found @ direction) == pytest.approx(60, rel=0.1)


def test_a_repaired_matrix_is_positive_and_a_good_one_is_left_alone():
    good = torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double()
    assert torch.allclose(positive(good, good.diagonal(), 0.02), good)
    bad = torch.tensor([[1.0, 3.0], [3.0, 1.0]]).double()
    values = torch.linalg.eigvalsh(positive(bad, bad.diagonal(), 0.02))
    assert float(values.min()) == pytest.approx(0.02)


# -- the mixture -----------------------------------------------------------------------------------------------------


def test_draws_have_the_moments_of_the_parameters():
    basis = torch.linalg.qr(torch.randn(6, 2, generator=torch.Generator().manual_seed(0)))[0]
    mixture = GaussianMixture(
        means=torch.arange(12.0).view(2, 6),
        basis=basis,
        weights=torch.tensor([[0.25, 0.75], [1.0, 0.0]]),
        offsets=torch.tensor([[[3.0, 0], [-1.0, 0]], [[0.0, 0], [9.0, 9.0]]]),
        factors=torch.tensor([[[[1.0, 0], [0.5, 1.0]]], [[[2.0, 0], [0, 0.1]]]]),
        residual=torch.full((6,), 0.1),
    )
    generator = torch.Generator().manual_seed(0)
    for code in (0, 1):
        x = mixture.draw(torch.full((40_000,), code), generator).double()
        assert torch.allclose(x.mean(0), mixture.means[code].double(), atol=0.05)
        factor = mixture.factors[code, 0].double()
        inside = factor @ factor.T
        for weight, offset in zip(mixture.weights[code], mixture.offsets[code], strict=True):
            inside = inside + weight * torch.outer(offset, offset)
        wanted = basis.double() @ inside @ basis.double().T + 0.01 * torch.eye(6)
        assert torch.allclose(torch.cov(x.T), wanted, atol=0.1)


def test_after_clipping_means_are_what_was_wanted():
    draws = torch.randn(5000, 3, generator=torch.Generator().manual_seed(0)) * 0.3
    centre = torch.tensor([0.05, 0.5, 0.97])
    draws = draws + centre
    plain = draws.clamp(0, 1).mean(0)
    fitted = RangeFit.to(centre, draws)(draws).clamp(0, 1).mean(0)
    assert (plain - centre).abs().max() > 0.05
    assert ((fitted - centre).abs() < 0.6 * (plain - centre).abs() + 1e-3).all()


@pytest.mark.parametrize("own", [0, 10])
@pytest.mark.parametrize("refine", [True, False])
def test_shares_of_the_budget_add_up_to_one(refine, own):
    method = Mixture(refine=refine, tone=False, cluster_directions=own)
    plan = plan_of(method, halves(4).schema, 3.0)
    assert ("cluster second moments" in [charge.label for charge in plan]) == (own > 0)
    spent = sum(charge.steps * (3.0 / charge.noise_multiplier) ** 2 for charge in plan)
    assert spent == pytest.approx(1.0)
    latent = plan_of(method.set_params(codec="dct:16"), halves(4).schema, 3.0)
    assert [c.label for c in latent] == [c.label for c in plan]
    assert latent[0].dimension < plan[0].dimension


@pytest.mark.parametrize("neighbours", [Neighbours.ZERO_OUT, Neighbours.ADD_REMOVE])
def test_with_little_noise_samples_have_the_records_means_and_variances(neighbours):
    data, budget = halves(), replace(SEVERAL, neighbours=neighbours)
    sample = Mixture(refine=False).fit(data, budget).sample(4000, seed=0)
    for code in (0, 1):
        real = data.images[data.labels == code].reshape(-1, 64)
        made = sample.images[sample.labels == code].reshape(-1, 64) / 255
        assert np.abs(real.mean(0) - made.mean(0)).max() < 0.02
        strongest = np.linalg.eigvalsh(np.cov(real.T))[-1]
        assert np.linalg.eigvalsh(np.cov(made.T))[-1] == pytest.approx(strongest, rel=0.3)


def test_clusters_are_found_where_a_class_has_them():
    rng = np.random.default_rng(0)
    shade = np.where(rng.random(4000) < 0.3, 0.85, 0.15)[:, None, None, None]
    images = shade + rng.normal(0, 0.03, (4000, 1, 6, 6))
    data = Dataset.from_arrays(np.clip(images, 0, 1).astype(np.float32))
    made = (
        Mixture(refine=False).fit(data, SEVERAL).sample(3000, seed=0).images.mean(axis=(1, 2, 3))
        / 255
    )
    assert (made > 0.65).mean() == pytest.approx(0.3, abs=0.06)
    assert ((made > 0.35) & (made < 0.65)).mean() < 0.1


def two_ways(n: int = 4000) -> Dataset:
    """Unlabelled 6×6 images: bright ones vary in their left half, dark ones in their right half."""
    rng = np.random.default_rng(0)
    bright = np.arange(n) % 2 == 0
    images = np.where(bright, 0.7, 0.3)[:, None, None, None] + rng.normal(0, 0.02, (n, 1, 6, 6))
    vary = rng.normal(0, 0.1, n)[:, None, None, None]
    images[bright, ..., :3] += vary[bright]
    images[~bright, ..., 3:] += vary[~bright]
    return Dataset.from_arrays(np.clip(images, 0, 1).astype(np.float32))


def test_clusters_vary_as_their_own_records_do_where_they_have_their_own_covariances(monkeypatch):
    plain = module.capacity_of
    monkeypatch.setattr(module, "capacity_of", lambda *facts: replace(plain(*facts), clusters=2))
    ratio = {}
    for own in (0, 8):
        fitted = Mixture(refine=False, cluster_directions=own).fit(two_ways(), SEVERAL)
        made = fitted.sample(3000, seed=0).images.reshape(-1, 6, 6) / 255
        left, right = made[..., :3].mean(axis=(1, 2)), made[..., 3:].mean(axis=(1, 2))
        bright = left + right > 1
        ratio[own] = left[bright].std() / right[bright].std()
        assert fitted.mixture_.factors.shape[1] == (2 if own else 1)
    assert ratio[0] < 1.5
    assert ratio[8] > 2.5


def test_moments_shrink_as_far_as_noise_explains_them():
    generator = torch.Generator().manual_seed(0)
    truth = symmetric(torch.randn(30, 12, 12, dtype=torch.float64, generator=generator))
    noise = symmetric(torch.randn(30, 12, 12, dtype=torch.float64, generator=generator))
    target = torch.zeros(12, 12, dtype=torch.float64)
    clear, drowned = (torch.full((30,), d, dtype=torch.float64) for d in (1e-4, 1.0))
    assert torch.allclose(shrunk_moments(truth, target, clear), truth, atol=1e-3)
    assert float(shrunk_moments(noise, target, drowned).norm()) < 0.3 * float(noise.norm())
    chance = torch.full((30, 12, 12), 1e6, dtype=torch.float64)
    assert float(shrunk_moments(truth, target, clear, chance).abs().max()) == 0


def test_a_table_keeps_ranges_shares_and_missing_values():
    data = table()
    sample = Mixture().fit(data, SEVERAL).sample(4000, seed=0)
    for code in (0, 1):
        real, made = data.values[data.labels == code], sample.values[sample.labels == code]
        assert made[:, 0].mean() == pytest.approx(real[:, 0].mean(), abs=3)
        for town in range(3):
            share = (real[:, 1] == town).mean()
            assert (made[:, 1] == town).mean() == pytest.approx(share, abs=0.06)
        assert np.isnan(made[:, 2]).mean() == pytest.approx(0.25, abs=0.08)
    assert not np.isnan(sample.values[:, :2]).any()


@pytest.mark.parametrize("value", [0, 128, 255])
@pytest.mark.parametrize("refine", [True, False])
def test_constant_pictures_give_nearly_constant_samples(value, refine):
    data = Dataset.from_arrays(np.full((2000, 8, 8), value, dtype=np.uint8))
    made = Mixture(refine=refine).fit(data, SEVERAL).sample(50, seed=0).images.astype(float)
    assert np.abs(made - value).mean() < 12


def test_records_of_no_known_class_count_for_nothing():
    data = halves(2000)
    labels, images = data.labels.copy(), data.images.copy()
    labels[:1000], images[:1000] = -1, 1.0
    odd = Dataset(data._source, data.schema, "odd")
    odd.batches = lambda size: iter([Batch(torch.from_numpy(images), torch.from_numpy(labels))])
    sample = Mixture(refine=False).fit(odd, SEVERAL).sample(500, seed=0).images / 255
    assert sample.mean() < 0.6


# -- refinement ------------------------------------------------------------------------------------------------------


def test_the_best_candidates_of_each_class_are_kept():
    def brightness(records):
        return records.float().mean(dim=(1, 2, 3))

    class Bright(Refinement):
        def scores(self, schema, records, labels):
            return brightness(records)

    refinement = Bright(None, torch.zeros(2, 1))  # type: ignore[arg-type]
    drawn = []

    def draw(labels, generator):
        shades = torch.rand(len(labels), 1, 8, 8, generator=generator)
        drawn.append(shades + labels.view(-1, 1, 1, 1))
        return drawn[-1]

    labels, random = torch.tensor([0, 1, 0, 1, 1]), torch.Generator().manual_seed(0)
    kept = brightness(refinement.draw(halves(4).schema, labels, draw, random, 4))
    assert len(drawn[0]) == 20
    assert torch.equal((kept > 1).long(), labels)
    candidates = brightness(drawn[0])
    best = candidates[candidates < 1].sort(descending=True).values[:2]
    assert torch.allclose(kept[labels == 0].sort(descending=True).values, best)


def gradients_of(weights: torch.Tensor):
    """The map of the refinement's paid steps, for records that are their own features."""
    query = Query(label="gradients", shape=tuple(weights.shape), steps=1)
    return _map_of(query, record_gradients(lambda batch: batch.values, weights))


def test_gradients_are_those_of_the_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 7, generator=generator) * 0.1
    labels = torch.tensor([0, 1, 2, 1, -1])
    weights = torch.randn(6, 7, generator=generator, requires_grad=True)
    phi = gradients_of(weights)
    total = OuterSum(phi)(Batch(rows, labels)).double() * OuterSum(phi).grid
    loss = torch.nn.functional.cross_entropy(rows[:4] @ weights.T, labels[:4], reduction="sum")
    (wanted,) = torch.autograd.grad(loss, weights)
    assert torch.allclose(total.view(6, 7), wanted.double(), atol=1e-3)


def test_a_gradient_is_clipped_as_a_whole():
    phi = gradients_of(torch.zeros(4, 4))
    batch = Batch(torch.full((1, 4), 1e6), torch.tensor([0]))
    total = OuterSum(phi)(batch).double() * OuterSum(phi).grid
    assert float(total.norm()) == pytest.approx(1.0, abs=1e-3)


def test_refinement_prefers_records_to_draws_and_streams(monkeypatch):
    data = halves()
    fitted = Mixture(refine=True).fit(data, SEVERAL)
    records, labels = torch.from_numpy(data.images)[:500], torch.from_numpy(data.labels)[:500]
    real, drawn, wrong = (
        float(fitted.refinement_.scores(data.schema, some, of).mean())
        for some, of in (
            (records, labels),
            (fitted._records(labels, torch.Generator()), labels),
            (records, 1 - labels),
        )
    )
    assert real > drawn
    assert real > wrong + 1
    monkeypatch.setattr(Mixture, "AT_ONCE", 16)
    assert len(fitted.sample(70, seed=2)) == 70


def test_an_interrupted_refinement_goes_on_without_asking_again(tmp_path, monkeypatch):
    asked, honest = [], OuterSum.__call__

    def counted(self, batch):
        asked.extend([1] * (self.phi.kind == LABEL))
        if len(asked) == 4 and self.phi.kind == LABEL:
            raise KeyboardInterrupt
        return honest(self, batch)

    monkeypatch.setattr(OuterSum, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        Mixture(refine=True).fit(halves(100), SEVERAL, out=tmp_path / "run")
    fitted = Mixture(refine=True).fit(halves(100), SEVERAL, out=tmp_path / "run", resume=True)
    assert len(asked) == 4 + STEPS - 3
    assert len(fitted.sample(5, seed=0)) == 5


# -- in the latent of a codec ----------------------------------------------------------------------------------------


def test_axes_are_a_rotation_with_the_largest_public_variance_first():
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(6, 6, generator=generator)
    vectors = torch.randn(4000, 6, generator=generator) @ mixing
    axes, variances = Axes.along(vectors)
    rows = axes.into(vectors)
    assert torch.allclose(rows.norm(dim=1), vectors.norm(dim=1), rtol=1e-4)
    assert torch.allclose(axes.back(rows), vectors, atol=1e-4)
    wanted = torch.linalg.eigvalsh(torch.cov(vectors.T.double())).flip(0)
    assert torch.allclose(rows.double().var(0), wanted, rtol=0.02)
    assert (variances[:-1] >= variances[1:]).all()
    assert float(variances[-1]) >= 1e-3 * float(variances[0])


def test_wide_latents_are_turned_among_their_first_axes_only(monkeypatch):
    monkeypatch.setattr("sfumato.public.linear.MOST_COEFFICIENTS", 3)
    vectors = torch.randn(500, 8, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 9)
    axes, variances = Axes.along(vectors)
    assert axes.turn.shape == (3, 3)
    assert axes.order[:3].sort().values.tolist() == [5, 6, 7]
    assert variances.shape == (8,)
    assert torch.allclose(axes.back(axes.into(vectors)), vectors, atol=1e-4)


def test_a_turned_codec_is_bounded_and_sees_what_the_codec_gives_back():
    shape = (1, 8, 8)
    plain, batch = DctCodec(shape, 10), pictures(shape, 20)
    public = Dataset.from_arrays(pictures(shape, 60).values.numpy())
    turned = TurnedCodec.along(plain, public, seed=0)
    assert (turned.prior()[:-1] >= turned.prior()[1:]).all()
    for codec in (plain, turned):
        vectors = codec.encode(batch)
        assert (vectors.norm(dim=1) <= codec.bound * (1 + 1e-5)).all()
        made = as_bytes(codec.decode(vectors))
        back = plain.decode(plain.encode(batch))
        assert float((made / 255 - back).abs().max()) < 0.003
        assert torch.equal((codec.seen(batch) * 255).round().to(torch.uint8), made)
        nothing = Batch(torch.full((1, *shape), math.nan), None)
        assert codec.seen(nothing).isnan().all()
    again = TurnedCodec(plain, turned.axes)
    assert torch.equal(again.raw(turned.encode(batch)), turned.raw(turned.encode(batch)))


@pytest.mark.parametrize("codec", ["dct:20", "pca:12"])
def test_in_a_latent_too_samples_have_the_records_means(codec):
    data, public = halves(), halves(300, seed=1)
    fitted = Mixture(codec=codec, refine=False).fit(data, SEVERAL, public=public)
    sample = fitted.sample(3000, seed=0)
    seen = fitted.turned.seen(Batch(torch.from_numpy(data.images), None)).numpy()
    for code in (0, 1):
        made = sample.images[sample.labels == code] / 255
        assert np.abs(seen[data.labels == code].mean(0) - made.mean(0)).max() < 0.03


def test_records_are_encoded_once_a_fit_and_not_remembered(monkeypatch):
    calls, honest = [], DctCodec._encode
    monkeypatch.setattr(
        DctCodec,
        "_encode",
        lambda self, pixels: calls.append(pixels.numpy().tobytes()) or honest(self, pixels),
    )
    Mixture(codec="dct:16", refine=False).fit(halves(100), SEVERAL)
    assert len(calls) == len(set(calls))  # the records, and the public ones that the wall tries
    fitted = Mixture(codec="dct:16", refine=True, candidates=2).fit(halves(100), SEVERAL)
    assert fitted.turned is fitted.codec_
    gc.collect()
    assert not [held for held in gc.get_objects() if type(held) is Remembered]


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (7, "name or path"),
        ("", "name or path"),
        ("no-such", "no codec"),
        ("dct:x", "whole number"),
        ("pca:8", "--public"),
    ],
)
def test_a_senseless_codec_is_refused_before_a_row_is_read(codec, message):
    with pytest.raises(BadInput, match=message):
        Mixture(codec=codec).fit(halves(4), SEVERAL)
    with pytest.raises(BadInput, match="no use of public data with these settings"):
        Mixture().fit(halves(4), SEVERAL, public=halves(4, seed=1))
    with pytest.raises(BadInput, match="for images"):
        Mixture(codec="dct").fit(table(20), SEVERAL)
