"""The metric families hold against closed forms and second implementations."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from data import stripes
from sfumato.data import Dataset
from sfumato.errors import BadInput
from sfumato.evaluation import evaluate
from sfumato.evaluation.classifiers import ConvNet
from sfumato.evaluation.distributions import (
    cluster_counts,
    different_bins,
    prd_curve,
    prd_scores,
)
from sfumato.evaluation.frechet import (
    Moments,
    _mmd,
    frechet,
    frechet_distance,
    kernel_distance,
    moments_of,
)
from sfumato.evaluation.metrics import Comparison
from sfumato.evaluation.neighbours import manifolds, nearest

DRAW = np.random.default_rng


def gaussian(n: int, dim: int, seed: int, shift: float = 0.0, scale: float = 1.0) -> np.ndarray:
    return shift + scale * DRAW(seed).standard_normal((n, dim))


def exact(points: int, dim: int, seed: int) -> np.ndarray:
    """Rows whose sample mean is 0 and whose sample covariance is I, exactly."""
    rows = gaussian(points, dim, seed)
    rows -= rows.mean(0)
    return rows @ np.linalg.inv(np.linalg.cholesky(np.cov(rows, rowvar=False))).T


def fake_inception(pixels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.avg_pool2d(pixels, 4).flatten(1)


NETWORKS = {"fid-inception": fake_inception, "lpips-alexnet": lambda pixels: pixels.flatten(1)}


# ------------------------------------------------------------------------- FID and KID


def plain_fid(first: np.ndarray, second: np.ndarray) -> float:
    """The formula as published, with scipy's square root of the unsymmetric product."""
    m1, m2 = first.mean(0), second.mean(0)
    s1, s2 = np.cov(first, rowvar=False), np.cov(second, rowvar=False)
    root = sqrtm(s1 @ s2)
    return float(((m1 - m2) ** 2).sum() + np.trace(s1 + s2 - 2 * root.real))


@pytest.mark.parametrize("dim", [2, 30, 64])
def test_fid_agrees_with_the_published_formula(dim):
    mix = DRAW(5).standard_normal((dim, dim))
    first, second = gaussian(400, dim, 0) @ mix, gaussian(300, dim, 1, 0.3, 1.4)
    expected = plain_fid(first, second)
    assert frechet(first, second).value == pytest.approx(expected, rel=1e-8)
    assert frechet_distance(moments_of(first), moments_of(second)) == pytest.approx(
        expected, rel=1e-8
    )


def test_fid_of_shifted_and_scaled_gaussians_is_known():
    rows, shift = exact(200, 6, 0), np.array([1.0, -2.0, 0.5, 0, 0, 3.0])
    assert frechet(rows, rows + shift).value == pytest.approx(float(shift @ shift), rel=1e-9)
    assert frechet(rows, 3 * rows).value == pytest.approx(6 * (3 - 1) ** 2, rel=1e-9)
    assert frechet(rows, rows).value == pytest.approx(0, abs=1e-9)


def test_moments_do_not_depend_on_the_cut_or_on_a_large_offset():
    rows = gaussian(101, 5, 2, shift=1e6)
    whole, pieces = moments_of(rows, chunk=1000), Moments()
    for part in np.split(rows, [1, 4, 50, 50, 99]):
        pieces.add(part)
    np.testing.assert_allclose(pieces.mean, rows.mean(0), rtol=1e-14)
    np.testing.assert_allclose(pieces.covariance, np.cov(rows, rowvar=False), atol=1e-8)
    np.testing.assert_allclose(pieces.covariance, whole.covariance, atol=1e-8)


def test_fid_interval_and_bias_describe_repeated_draws():
    found = [
        frechet(gaussian(300, 4, 2 * i, 0.2, 1.2), gaussian(400, 4, 2 * i + 1)) for i in range(150)
    ]
    spread = np.std([f.value for f in found])
    assert np.mean([f.error for f in found]) == pytest.approx(spread, rel=0.25)
    same = [frechet(gaussian(300, 4, 2 * i), gaussian(400, 4, 2 * i + 1)) for i in range(150)]
    assert np.mean([f.value for f in same]) == pytest.approx(
        np.mean([f.bias for f in same]), rel=0.15
    )


def test_fid_of_fewer_records_than_features_works():
    first, second = gaussian(10, 40, 0), gaussian(12, 40, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = plain_fid(first, second)
    # The product is singular, where the plain route is good to few digits.
    assert frechet(first, second).value == pytest.approx(expected, rel=1e-3)
    assert math.isfinite(frechet(first, second).error)


def test_a_metric_with_fewer_records_than_features_says_so():
    def note(n: int, size: int, **how: bool) -> str:
        sets = stripes(n, size=size), stripes(n + 1, 1, size=size)
        return evaluate(*sets, metrics="fid", networks=NETWORKS, **how)["fid"].note

    assert "rank at most 3 of 16" in note(4, 16, size_is_public=True)
    for told in (note(4, 16, size_is_public=True), note(4, 16)):
        assert "too high, by roughly" in told
    assert "rank" not in note(4, 16) + note(80, 8)


def test_the_papers_fid_is_of_5000_samples_against_the_training_images(monkeypatch):
    monkeypatch.setattr("sfumato.evaluation.frechet.PAPER_SAMPLES", 60)
    made, test, train = stripes(90), stripes(50, 1), stripes(80, 2)
    with pytest.raises(BadInput, match="real training data and none were given"):
        evaluate(made, test, metrics="fid.paper", networks=NETWORKS)
    how = {"metrics": ["fid", "fid.paper"], "networks": NETWORKS, "train": train}
    found = evaluate(made, test, **how, size_is_public=True)
    seen = Comparison(made, test, train=train)
    features = [fake_inception(rows).numpy() for rows, _ in (seen.synthetic, seen.train)]
    sixty = seen.chosen("synthetic", 0, 60)
    assert len(sixty) == 60
    expected = plain_fid(features[0][sixty], features[1])
    assert found["fid.paper"].value == pytest.approx(expected, rel=1e-4)
    assert "TRAINING" in found["fid.paper"].note and "samples where" not in found["fid.paper"].note
    assert "REAL TRAINING" in found["fid.paper"].source
    assert found["fid"].value != pytest.approx(expected, rel=1e-2)
    few = evaluate(stripes(40), test, **how)["fid.paper"]
    assert "of 40 samples where the papers have 60" in few.note and "roughly" not in few.note


@pytest.mark.parametrize("name", ["fid", "kid"])
def test_one_image_is_too_few(name):
    one = Dataset.from_arrays(np.zeros((1, 8, 8), np.uint8), [0], classes=3)
    with pytest.raises(BadInput, match="at least two"):
        evaluate(one, stripes(), metrics=name, networks=NETWORKS)


def test_kid_is_centred_on_zero_for_equal_distributions_and_covers_it():
    found = [
        kernel_distance(gaussian(200, 5, 2 * i), gaussian(200, 5, 2 * i + 1), seed=i, subsets=20)
        for i in range(60)
    ]
    values = np.array([f[0] for f in found])
    assert abs(values.mean()) < 3 * values.std() / math.sqrt(len(values))
    assert np.mean([low <= 0 <= high for _, low, high in found]) > 0.85
    value, low, _ = kernel_distance(gaussian(200, 5, 0, 1.0), gaussian(200, 5, 1), seed=0)
    assert value > low > 0


def test_kid_on_one_subset_is_the_double_sum():
    x, y = gaussian(4, 3, 0), gaussian(4, 3, 1)

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return (float(a @ b) / 3 + 1) ** 3

    pairs = [(i, j) for i in range(4) for j in range(4)]
    expected = (
        sum(kernel(x[i], x[j]) + kernel(y[i], y[j]) for i, j in pairs if i != j) / 12
        - 2 * sum(kernel(x[i], y[j]) for i, j in pairs) / 16
    )
    assert _mmd(x, y) == pytest.approx(expected, rel=1e-12)


# ------------------------------------------------------------------------- neighbours


def test_equal_sets_have_all_four_at_one_and_far_sets_at_zero():
    rows = torch.from_numpy(gaussian(80, 5, 0))
    same = manifolds(rows, rows)
    assert same.precise.all() and same.recalled.all() and same.covered.all()
    # An open ball holds its owner and the four nearest; the fifth is on the rim.
    assert float(same.dense.mean()) == pytest.approx(1.0)
    far = manifolds(rows + 1000, rows)
    assert not (far.precise.any() or far.recalled.any() or far.covered.any() or far.dense.any())


def test_manifolds_agree_with_full_distance_matrices_and_do_not_depend_on_blocks():
    fake, true = torch.from_numpy(gaussian(50, 4, 0, 0.5)), torch.from_numpy(gaussian(70, 4, 1))
    between = torch.cdist(fake, true)
    reach_true = torch.cdist(true, true).sort(1).values[:, 5]
    reach_fake = torch.cdist(fake, fake).sort(1).values[:, 5]
    for block in (1, 7, 1000):
        found = manifolds(fake, true, block=block)
        assert torch.equal(found.precise, (between < reach_true).any(1))
        assert torch.equal(found.recalled, (between < reach_fake[:, None]).any(0))
        assert torch.equal(found.covered, between.min(0).values < reach_true)
        assert torch.equal(found.dense, (between < reach_true).sum(1) / 5)


def test_copies_are_at_distance_zero_whatever_their_size():
    rows = torch.from_numpy(gaussian(40, 30, 0, 1e3))
    assert torch.equal(nearest(rows, rows), torch.zeros(40, dtype=torch.float64))
    flat = torch.full((10, 4), 0.3)
    assert manifolds(flat, flat).precise.all()


def test_too_few_records_for_five_neighbours_are_refused():
    with pytest.raises(BadInput, match="at least 6 records"):
        evaluate(stripes(5), stripes(), metrics="prdc-pixels")


def test_copies_of_the_training_set_are_found_and_fresh_records_are_not():
    train, test = stripes(150, 0), stripes(120, 1)
    copied = evaluate(train, test, metrics="memorisation", train=train)
    assert copied["memorisation.share"].value == 1
    assert copied["memorisation.p"].value < 1e-6
    assert copied["memorisation.nearer"].low > 0.5
    fresh = evaluate(stripes(120, 2), test, metrics="memorisation", train=train)
    assert fresh["memorisation.share"].value < 0.06
    assert fresh["memorisation.p"].value > 0.001
    assert fresh["memorisation.nearer"].low < 0.5 < fresh["memorisation.nearer"].high
    for metric in copied:
        assert metric.source.endswith("REAL TRAINING data stripes-0; not covered by ε")
        assert metric.note.startswith("READS THE REAL TRAINING DATA")


def test_memorisation_without_the_training_set_says_what_to_pass():
    for name in ("memorisation", "memorisation.p"):
        with pytest.raises(BadInput, match="pass train="):
            evaluate(stripes(), stripes(60, 1), metrics=name)
    with pytest.raises(BadInput, match="training images are 9×9"):
        evaluate(stripes(), stripes(), metrics="memorisation", train=stripes(size=9))


# ------------------------------------------------------------------------- PRD and NDB


def test_prd_of_equal_histograms_is_one_and_of_disjoint_zero():
    p, q = np.array([0.5, 0.5, 0, 0]), np.array([0, 0, 0.3, 0.7])
    assert prd_scores(p, p) == pytest.approx((1, 1), abs=1e-4)
    assert prd_scores(p, q) == pytest.approx((0, 0), abs=1e-12)


def test_prd_curve_is_the_definition_and_the_two_scores_tell_which_side_fails():
    p, q = np.array([0.6, 0.4]), np.array([1.0, 0.0])  # the synthetic set has one mode of two
    precision, recall = prd_curve(p, q)
    slope = np.tan(np.linspace(1e-6, math.pi / 2 - 1e-6, 1001))
    for i in (10, 500, 900):
        assert precision[i] == pytest.approx(
            sum(min(slope[i] * a, b) for a, b in zip(p, q, strict=True))
        )
        assert recall[i] == pytest.approx(
            sum(min(a, b / slope[i]) for a, b in zip(p, q, strict=True))
        )
    recall_heavy, precision_heavy = prd_scores(p, q)
    assert recall_heavy < 0.65 < 0.95 < precision_heavy
    assert prd_scores(q, p) == pytest.approx((precision_heavy, recall_heavy), abs=1e-3)


def test_ndb_calls_few_bins_of_equal_distributions_different():
    shares = []
    for seed in range(20):
        rows = gaussian(1200, 2, seed)
        counts = cluster_counts(rows[:600], rows[600:], 20, seed, on="real")
        shares.append(different_bins(*counts).mean())
    assert 0.01 < np.mean(shares) < 0.1
    exactly = DRAW(0).multinomial(5000, np.full(50, 0.02), (400, 2))
    assert different_bins(exactly[:, 0], exactly[:, 1]).mean() == pytest.approx(0.05, abs=0.006)


def test_distribution_metrics_know_the_same_from_the_other():
    same = evaluate(stripes(200), stripes(200, 1), metrics=("prd", "ndb"), networks=NETWORKS)
    assert same["prd.f8"].value > 0.85 and same["prd.f1-8"].value > 0.85
    assert same["ndb"].value < 0.3
    flat = Dataset.from_arrays(np.zeros((60, 8, 8), np.uint8), np.arange(60) % 3, classes=3)
    other = evaluate(flat, stripes(200, 1), metrics=("prd", "ndb"), networks=NETWORKS)
    assert other["prd.f8"].value < 0.2
    assert "same features" in other["prd.f8"].note
    with pytest.raises(BadInput, match="at least 50 images"):
        evaluate(stripes(30), stripes(200, 1), metrics="ndb")


# ------------------------------------------------------------------------- what metrics share


def counting() -> tuple[list[int], Callable[[torch.Tensor], torch.Tensor]]:
    """A network, and how many images it has seen at each call."""
    seen: list[int] = []

    def counted(pixels: torch.Tensor) -> torch.Tensor:
        seen.append(len(pixels))
        return fake_inception(pixels)

    return seen, counted


def test_features_do_not_depend_on_the_batch_and_are_computed_once():
    seen, counted = counting()
    found = []
    for batch in (1, 7, 100):
        comparison = Comparison(stripes(20), stripes(30), networks={"n": counted})
        found.append(comparison.features("real", "n", 0, lambda _: None, batch))
        again = comparison.features("real", "n", 0, lambda _: None, batch)
        assert again is found[-1]
    assert sum(seen) == 90
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(found[0], found[2], rtol=1e-6, atol=1e-7)


def test_large_sets_are_drawn_from_by_the_seed_and_the_note_says_so(monkeypatch):
    monkeypatch.setattr(Comparison, "most_embedded", 40)
    found = [
        evaluate(stripes(90), stripes(60, 1), metrics="prdc-pixels", seed=seed, size_is_public=True)
        for seed in (0, 0, 1)
    ]
    values = [[m.value for m in result] for result in found]
    assert values[0] == values[1] != values[2]
    assert all("40 records drawn" in m.note for m in found[0])


def test_a_network_that_gives_nan_is_named():
    broken = {"fid-inception": lambda pixels: pixels.flatten(1) * math.nan}
    with pytest.raises(BadInput, match="features of fid-inception are not one finite vector"):
        evaluate(stripes(), stripes(), metrics="fid", networks=broken)


def test_features_are_kept_for_published_sets_only(monkeypatch, tmp_path):
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path))
    seen, counted = counting()
    monkeypatch.setattr("sfumato.public.weights.get_network", lambda name, progress=None: counted)
    published, synthetic = stripes(40, 1), stripes(30, 2)
    published.published_as = "some-set:test"
    first = evaluate(synthetic, published, metrics="fid")["fid"].value
    assert sum(seen) == 70
    assert evaluate(synthetic, published, metrics="fid")["fid"].value == first
    assert sum(seen) == 100  # only the synthetic ones again
    kept = list((tmp_path / "features").iterdir())
    assert [p.name for p in kept] == ["some-set-test.fid-inception.safetensors"]
    kept[0].write_bytes(b"torn")
    assert evaluate(synthetic, published, metrics="fid")["fid"].value == first
    evaluate(synthetic, stripes(40, 3), metrics="fid")
    assert len(list((tmp_path / "features").iterdir())) == 1


def test_the_judge_is_a_fixed_network_of_the_training_images(monkeypatch, tmp_path):
    """The distance is that of the features of a `ConvNet` trained by hand; other run seeds and a kept network change nothing."""
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path))
    monkeypatch.setattr(ConvNet, "least_images", 300)
    monkeypatch.setattr(ConvNet, "epochs", 2)
    real, train = stripes(120, 1), stripes(140, 2)
    grey = 0.5 * stripes(150).images + 0.3
    synthetic = Dataset.from_arrays(
        grey.astype(np.float32), stripes(150).labels, classes=real.schema.classes
    )

    def distance(**how):
        return evaluate(synthetic, real, metrics="frechet.judge", train=train, **how)[
            "frechet.judge"
        ]

    own = ConvNet(0)
    rows = [next(d.batches(len(d))).pixels() for d in (train, synthetic, real)]
    own.fit(rows[0], torch.from_numpy(train.labels), train.schema.n_classes, lambda share: None)
    with torch.no_grad():
        features = [own.network_[0](part).double().numpy() for part in rows[1:]]
    expected = frechet_distance(*map(moments_of, features))
    assert expected > 1e-3
    found = distance()
    assert found.value == pytest.approx(expected, rel=1e-3)
    assert "TRAINING" in found.source and "READS THE REAL TRAINING DATA" in found.note
    assert distance(seed=5).value == pytest.approx(found.value, rel=1e-6)
    assert not (tmp_path / "judges").exists()
    train.published_as = "some-set:train"
    assert distance().value == pytest.approx(found.value, rel=1e-6)
    assert [p.name for p in (tmp_path / "judges").iterdir()] == [
        "some-set-train.cnn.seed0.safetensors"
    ]
    monkeypatch.setattr(ConvNet, "fit", None)  # from here on it is read, not trained
    assert distance().value == pytest.approx(found.value, rel=1e-6)


def test_the_judge_needs_the_training_images():
    with pytest.raises(BadInput, match="training data"):
        evaluate(stripes(30), stripes(30, 1), metrics="frechet.judge")
