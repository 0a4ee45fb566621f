"""The tone curve: its rows, its quantiles, its doubt of noise, and what it does to draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pictures import halves
from plans import plan_of
from sfumato.data import Batch, Dataset, Schema
from sfumato.methods import Merf, Method, Mge, Mixture, find_methods
from sfumato.methods.presets import list_presets, preset_names
from sfumato.methods.tone import LABEL, LEVELS, ToneCurve, Toned, believed, gray_levels, tone_query
from sfumato.privacy import BoundedSum, Budget, enforced_bound
from sfumato.privacy.gate import _map_of

GRAY = Schema(kind="images", shape=(1, 8, 8))
COLOUR = Schema(kind="images", shape=(3, 6, 6))


def bytes_like(schema: Schema, n: int = 20, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (n, *schema.shape), dtype=np.uint8))


@pytest.mark.parametrize("schema", [GRAY, COLOUR])
def test_a_row_counts_pixels_by_level_and_the_ends_stand_alone(schema):
    values = bytes_like(schema)
    values[0] = 0
    values[1] = 255
    values[2, :, :3] = 1
    rows = gray_levels(Batch(values, None))[0].view(len(values), schema.shape[0], LEVELS)
    assert torch.allclose(rows.sum(2), torch.tensor(1 / math.sqrt(schema.shape[0])), atol=1e-5)
    assert torch.equal(rows[0, 0].nonzero().flatten(), torch.tensor([0]))
    assert torch.equal(rows[1, 0].nonzero().flatten(), torch.tensor([LEVELS - 1]))
    scale = math.sqrt(schema.shape[0]) * math.prod(schema.shape[1:])
    black = (values == 0).flatten(2).sum(2)
    white = (values == 255).flatten(2).sum(2)
    assert torch.allclose(rows[..., 0] * scale, black.float(), atol=1e-3)
    assert torch.allclose(rows[..., -1] * scale, white.float(), atol=1e-3)


@pytest.mark.parametrize("schema", [GRAY, COLOUR])
def test_the_longest_row_has_the_bound_and_a_picture_with_nan_counts_for_nothing(schema):
    phi = _map_of(tone_query(schema, 1.0), gray_levels)
    assert phi.replace_ratio == math.sqrt(2)
    flat = torch.full((1, *schema.shape), 0.4)
    total = BoundedSum(phi)(Batch(flat, None)).double() * BoundedSum(phi).grid
    assert float(total.norm()) == pytest.approx(1.0, abs=1e-3)
    assert float(total.norm()) <= enforced_bound(phi)
    flat[0, 0, 0, 0] = math.nan
    assert float(BoundedSum(phi)(Batch(flat, None)).abs().sum()) == 0


def test_without_noise_toned_draws_have_the_records_histogram():
    """Draws are half-tones around ½, records are two thirds black; the curve takes the one to the other, in order."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(4000, 64, generator=generator) * 0.2 + 0.5
    seen = torch.zeros(1, LEVELS, dtype=torch.float64)
    seen[0, 0], seen[0, 20], seen[0, -1] = 0.65, 0.3, 0.05
    curve = ToneCurve.to(seen, 1e-9, draws)
    toned = curve(draws)
    assert float((toned * 255 < 0.5).float().mean()) == pytest.approx(0.65, abs=0.01)
    assert float((toned * 255 > 254.5).float().mean()) == pytest.approx(0.05, abs=0.01)
    middle = toned[(toned > 0.01) & (toned < 0.99)]
    low, high = (float(curve.target[i]) for i in (19, 20))
    assert float(((middle >= low - 1e-4) & (middle <= high + 1e-4)).float().mean()) > 0.97
    order = draws.flatten().argsort()
    assert bool((toned.flatten()[order].diff() >= 0).all())


def test_a_histogram_that_draws_have_already_leaves_them_as_they_are():
    draws = torch.rand(4000, 64, generator=torch.Generator().manual_seed(0))
    seen = torch.full((1, LEVELS), 1.0 / (LEVELS - 2), dtype=torch.float64)
    seen[0, 0] = seen[0, -1] = 0.5 / 255
    seen /= seen.sum()
    toned = ToneCurve.to(seen, 1e-6, draws)(draws)
    assert float((toned - draws).abs().max()) < 0.02


def test_channels_have_curves_of_their_own():
    draws = torch.rand(3000, 3 * 16, generator=torch.Generator().manual_seed(0))
    seen = torch.zeros(3, LEVELS, dtype=torch.float64)
    for channel, level in enumerate((5, 15, 25)):
        seen[channel, level] = 1.0
    toned = ToneCurve.to(seen, 1e-9, draws)(draws).view(3000, 3, 16)
    assert [round(float(v) * 30) for v in toned.mean((0, 2))] == pytest.approx([5, 15, 25], abs=1)


def test_noise_alone_makes_no_curve_and_a_clear_signal_is_kept():
    generator = torch.Generator().manual_seed(0)
    own = torch.full((LEVELS,), 1 / LEVELS, dtype=torch.float64)
    far = []
    for _ in range(50):
        noise = 0.05 * torch.randn(LEVELS, dtype=torch.float64, generator=generator)
        found = believed(own + noise, own, 0.05)
        assert float(found.sum()) == pytest.approx(1) and float(found.min()) >= 0
        far.append(float((found - own).abs().sum() / noise.abs().sum()))
    assert np.mean(far) < 0.25
    truth = torch.zeros_like(own)
    truth[0], truth[1:] = 0.5, 0.5 / (LEVELS - 1)
    noisy = truth + 0.01 * torch.randn(LEVELS, dtype=torch.float64, generator=generator)
    assert float(believed(noisy, own, 0.01)[0]) == pytest.approx(0.5, abs=0.05)


def inked(n: int = 3000, classes: int | None = None) -> Dataset:
    """Black and white alone: two thirds are black."""
    ink = np.random.default_rng(0).random((n, 1, 8, 8)) < np.linspace(0.05, 0.6, 64).reshape(8, 8)
    labels = None if classes is None else np.arange(n) % classes
    return Dataset.from_arrays((ink * 255).astype(np.uint8), labels, classes=classes)


def test_a_mixture_of_two_toned_pictures_is_two_toned_with_the_curve_only():
    data = inked()
    budget = Budget(epsilon=20.0, delta=1e-5)
    grays = {}
    for tone in (False, True):
        fitted = Mixture(tone=tone).fit(data, budget)
        images = fitted.sample(1000, seed=0).images
        grays[tone] = float(((images > 8) & (images < 247)).mean())
    assert grays[False] > 0.15
    assert grays[True] < 0.05


def test_pictures_without_pixels_at_the_ends_are_left_as_they_are():
    budget = Budget(epsilon=50.0, delta=1e-5)
    fitted = Mixture().fit(halves(), budget)
    assert LABEL in [charge.label for charge in fitted.statement_.charges]
    assert fitted.tone_ is None


def test_the_curve_is_one_query_of_a_small_share_and_tables_have_none(tmp_path):
    labels = [c.label for c in plan_of(Mixture(), halves(4).schema, 3.0)]
    assert LABEL in labels
    assert LABEL not in [c.label for c in plan_of(Mixture(tone=False), halves(4).schema, 3.0)]
    fitted = Mixture().fit(halves(500), Budget(epsilon=50.0, delta=1e-5), out=tmp_path / "run")
    again = Mixture.load(tmp_path / "run")
    assert np.array_equal(fitted.sample(20, seed=0).images, again.sample(20, seed=0).images)
    del again.tone_  # as a run of 0.3 is read back
    assert len(again.sample(5, seed=0)) == 5


# -- the part that other methods have ----------------------------------------------------------------------------------------

USERS = {n: c for n, c in find_methods().items() if issubclass(c, Toned)}
OTHERS = {
    n: c for n, c in USERS.items() if n not in ("mixture", "diffusion", "transport")
}  # which ask by themselves


def test_methods_that_draw_pixels_have_the_curve_and_those_of_public_pictures_do_not():
    drawing = (
        "diffusion dpaf gan gan-ft gan-mi gs-wgan hp mepf merf mge mixture pearl sinkhorn transport"
    )
    assert set(USERS) == set(drawing.split())


@pytest.mark.parametrize("name", OTHERS)
def test_the_histogram_is_the_last_query_and_has_half_a_per_cent_of_what_the_others_have(name):
    cls, schema = OTHERS[name], inked(4, 2).schema
    plain, toned = (plan_of(cls(**cls.TINY, tone=tone), schema, 3.0) for tone in (False, True))
    assert [c.label for c in toned] == [*(c.label for c in plain), LABEL]
    spent = [c.steps * (c.rate / c.noise_multiplier) ** 2 for c in toned]  # of μ²
    assert spent[-1] / math.fsum(spent[:-1]) == pytest.approx(0.005)
    assert math.fsum(spent) == pytest.approx(1 / 9)
    for before, now in zip(plain, toned, strict=False):
        ratio = (now.noise_multiplier / before.noise_multiplier) ** 2
        assert ratio == pytest.approx(1.005)


@pytest.mark.parametrize("name", ["gan-mi", "mepf", "merf", "mge", "sinkhorn"])
def test_samples_have_the_records_black_and_a_run_keeps_its_curve(name, tmp_path):
    cls, data = OTHERS[name], inked(600, 3)
    budget = Budget(epsilon=50.0, delta=1e-5)
    fitted = cls(**cls.TINY, tone=True).fit(data, budget, out=tmp_path / "run")
    black = float((data.images == 0).mean())
    assert float((fitted.sample(500, seed=0).images == 0).mean()) == pytest.approx(black, abs=0.05)
    again = Method.load(tmp_path / "run")
    assert np.array_equal(again.sample(20, seed=0).images, fitted.sample(20, seed=0).images)
    del again.tone_  # as a run that was made before there was a curve
    plain = again.sample(500, seed=0).images
    assert float((plain == 0).mean()) < black - 0.2


def test_where_the_number_of_records_is_private_the_histogram_tells_it():
    data = inked(600, 3)
    found = {}
    for relation in ("zero-out", "add-remove"):
        fitted = Mge(codec="dct:16", tone=True)
        fitted.fit(data, epsilon=50.0, delta=1e-5, neighbours=relation)
        found[relation] = float((fitted.sample(500, seed=0).images == 0).mean())
    assert found["add-remove"] == pytest.approx(found["zero-out"], abs=0.05)


def test_a_curve_is_learnt_again_when_a_release_is_used_again(tmp_path):
    tiny = {**Merf.TINY, "tone": True}
    first = Merf(**tiny).fit(inked(600, 3), epsilon=50.0, delta=1e-5, out=tmp_path / "run")
    again = Merf(**{**tiny, "steps": 20}).refit(tmp_path / "run")
    assert not torch.equal(first.tone_.source, again.tone_.source)
    assert again.statement_ == first.statement_


@pytest.mark.parametrize("name", [n for n, c in USERS.items() if preset_names(c)])
def test_what_a_paper_has_is_without_a_curve(name):
    cls = USERS[name]
    for preset in preset_names(cls):
        for entry in list_presets(cls, preset):
            tone = entry.values.get("tone", {s.name: s.default for s in cls.settings()}["tone"])
            assert tone is False or entry.values.get("base") == "none", (entry.data, preset)
