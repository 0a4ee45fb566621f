"""What every method and every feature map must do, run over all that are found."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sfumato
from sfumato.data import Batch, Dataset
from sfumato.errors import BadInput, RunConflict
from sfumato.generators.embedding import CountedByClass
from sfumato.methods import Merf, Method, find_methods
from sfumato.privacy import BoundedSum, Budget, enforced_bound
from sfumato.public.autoencoder import AutoencoderCodec
from sfumato.public.fourier import FourierFeatures
from sfumato.public.hermite import Hermite, SumKernel
from sfumato.public.perceptual import PerceptualFeatures, ScatteringEncoder
from sfumato.public.tabular import plain_codec
from sfumato.testing.methods import BUDGET, CHECKS, Case, cases_of, small_images, small_table

# Every method on every kind of data that it is for, and some in settings that go another way.
CASES = {
    f"{name}, {'table' if case.table else 'images'}": case
    for name, cls in find_methods().items()
    for case in cases_of(cls)
}
CASES["mixture, codec"] = Case(sfumato.Mixture, {"codec": "dct:16"})
CASES["mixture, codec and refined"] = Case(
    sfumato.Mixture, {"refine": True, "candidates": 2, "codec": "dct:16"}
)
CASES["mge, toned"] = Case(sfumato.Mge, {"tone": True})
CASES["gan-ft, codec"] = Case(
    sfumato.GanFt,
    {**sfumato.GanFt.TINY, "codec": "dct:16", "loss": "wasserstein", "penalty_at": "record"},
)
CASES["mixture, refined"] = Case(sfumato.Mixture, {"refine": True, "candidates": 2})

# gan-mi has the same networks and loss, a codec and the refinement are each tried by themselves: every time.
SLOW = ("gan-ft, codec", "mixture, codec and refined")

# Checks in which exact noise plays no part, and which fit again for themselves.
NOISELESS = (
    "a_fit_spends_what_it_promised",
    "a_neighbour_moves_every_sum_by_its_own_summand",
    "samples_look_like_the_schema_and_depend_on_the_seed",
    "a_class_without_records_gets_next_to_no_sample",
    "tiny_data_and_extreme_budgets_work",
    "a_run_holds_no_trace_of_a_record_or_of_a_private_count",
)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in CASES]
)
def test_the_contract_of_a_method(name, check, request):
    if check in NOISELESS:
        request.getfixturevalue("quick_noise")
    CHECKS[check](CASES[name])


# What is paid in steps: at a rate of 1 every step reads once; how often in all.
STEPS = {
    "diffusion": (sfumato.Diffusion, {"base": "none", "steps": 6}, 6),
    "gan": (sfumato.Gan, {}, 6),
    "gan-ft": (sfumato.GanFt, {}, 6),
    "gan-mi": (sfumato.GanMi, {}, 6),
    "sinkhorn": (sfumato.Sinkhorn, {"groups": 1}, 5),
    "gswgan": (sfumato.GsWgan, {"shards": 1}, 5),
    "dpaf": (sfumato.Dpaf, {"first_phase": "dp-sgd"}, 2 + 6 + 2),
    "dpaf, as published": (sfumato.Dpaf, {"paper_variant": True}, 3 * 2 + 6 + 2),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_torn_fit_goes_on_and_reads_only_what_was_not_answered(name, tmp_path):
    cls, settings, reads = STEPS[name]
    case = Case(cls, {**cls.TINY, "rate": 1.0, **settings})

    class Torn(Dataset):
        left = 0

        def take(self, indices):
            if Torn.left == 0:
                raise KeyboardInterrupt
            Torn.left -= 1
            return super().take(indices)

    plain = case.data()
    data = Torn(plain._source, plain.schema, plain.name)
    # Torn in two places, the first phase of dpaf among them.
    for Torn.left, resume in ((3, False), (reads - 4, True)):
        with pytest.raises(KeyboardInterrupt):
            case.fit(data, out=tmp_path / "run", resume=resume)
    Torn.left = 1
    fitted = case.fit(data, out=tmp_path / "run", resume=True)
    assert Torn.left == 0
    again = Method.load(tmp_path / "run")
    assert np.array_equal(again.sample(7, seed=0).images, fitted.sample(7, seed=0).images)
    assert again.statement_ == fitted.statement_


# Of methods that train from a release: settings that may change afterwards, and, beside numbers, some that may not.
FREE = {
    "merf": ({"steps": 20, "hidden": 24, "training_seed": 7}, [{"length_scales": "3"}]),
    "hp": ({"gamma": 1.0, "network": "dense", "training_seed": 3}, [{"length_scale": 0.1}]),
    "mepf": ({"steps": 6, "loss": "moving-average", "network": "resnet"}, [{"balance": True}]),
    "mge": ({"rank": 2, "spread": 0.5}, [{"codec": "dct:9"}, {"covariance": "full"}]),
}


@pytest.mark.parametrize("name", FREE)
def test_free_settings_may_change_on_a_saved_release(name, tmp_path):
    free, shaping = FREE[name]
    cls = find_methods()[name]
    settings = {**cls.TINY, **({"covariance": "low-rank"} if name == "mge" else {})}
    # So much budget that noise leaves a covariance to spread.
    budget = Budget(epsilon=1e3, delta=1e-4)
    first = cls(**settings).fit(small_images(600), budget, out=tmp_path / "first")
    again = cls(**{**settings, **free}).refit(tmp_path / "first", out=tmp_path / "second")
    assert again.statement_ == first.statement_
    assert not np.array_equal(first.sample(9, seed=0).images, again.sample(9, seed=0).images)
    loaded = Method.load(tmp_path / "second")
    assert np.array_equal(loaded.sample(9, seed=0).images, again.sample(9, seed=0).images)
    for other in shaping:
        with pytest.raises(BadInput, match="shapes the release"):
            cls(**{**settings, **other}).refit(tmp_path / "first")


WITH_CODECS = [n for n, c in find_methods().items() if any(s.name == "codec" for s in c.settings())]


@pytest.mark.parametrize("name", WITH_CODECS)
def test_a_run_outlives_the_file_of_its_codec(name, tmp_path):
    path = AutoencoderCodec.untrained((1, 8, 8), 6, 8, seed=0).save(tmp_path / "codec.safetensors")
    cls = find_methods()[name]
    case = Case(cls, {**cls.TINY, "codec": str(path)})
    fitted = case.fit(out=tmp_path / "run")
    path.unlink()
    Method.load(tmp_path / "run").save(tmp_path / "copy")
    for run in ("run", "copy"):
        again = Method.load(tmp_path / run)
        assert np.array_equal(again.sample(9, seed=0).images, fitted.sample(9, seed=0).images)
        assert again.statement_ == fitted.statement_
    with pytest.raises(BadInput, match="no codec file"):
        case.fit()


# -- for all methods alike, tried on one ------------------------------------------------------------------------------


def tiny(**more: object) -> Merf:
    return Merf(**{**Merf.TINY, **more})


def test_a_method_whose_queries_keep_something_for_its_fit_is_caught():
    class Keeping(Merf):
        def queries(self, schema, budget):
            self._noted = budget
            return super().queries(schema, budget)

    (case, _) = cases_of(Keeping)
    with pytest.raises(AssertionError, match="queries keeps _noted"):
        CHECKS["a_promise_leaves_nothing_behind"](case)


def test_a_folder_of_others_is_left_alone(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(RunConflict, match="not empty"):
        tiny().fit(small_images(), BUDGET, out=tmp_path / "other")
    with pytest.raises(BadInput, match="nothing to resume"):
        tiny().fit(small_images(), BUDGET, out=tmp_path / "new", resume=True)


def test_private_data_are_not_taken_as_public_ones():
    data = small_images()
    with pytest.raises(BadInput, match="private and as public"):
        sfumato.Mge().fit(data, BUDGET, public=data)
    with pytest.raises(BadInput, match="no use of public data"):
        tiny().fit(data, BUDGET, public=small_images())


def test_imbalanced_classes_are_sampled_in_their_proportion():
    n = 8000
    labels = np.repeat([0, 1, 2], [6400, 1200, 400])
    pixels = np.random.default_rng(0).integers(0, 256, (n, 1, 8, 8), dtype=np.uint8)
    data = Dataset.from_arrays(pixels, labels, classes=3)
    sample = tiny().fit(data, Budget(epsilon=5, delta=1e-5)).sample(1000, seed=0)
    assert np.allclose(np.bincount(sample.labels, minlength=3) / 1000, [0.8, 0.15, 0.05], atol=0.03)


def test_senseless_requests_are_refused_in_a_sentence():
    with pytest.raises(BadInput, match="has not been fitted"):
        Merf().sample(3, seed=0)
    with pytest.raises(TypeError, match="did you mean steps"):
        Merf(stepz=3)
    unlabelled, table = (
        tiny().fit(data, BUDGET) for data in (small_images(labelled=False), small_table())
    )
    for n in (0, -1, 2.5, True):
        with pytest.raises(BadInput):
            unlabelled.sample(n, seed=0)
    for fitted in (unlabelled, table):
        with pytest.raises(BadInput, match="Only labelled images"):
            fitted.sample(5, keep=0.5, seed=0)


@pytest.mark.parametrize("name", ["merf", "mixture"])
def test_the_likeliest_of_many_samples_can_be_kept(name):
    cls = find_methods()[name]
    fitted = cls(**cls.TINY).fit(small_images(), BUDGET)
    some = fitted.sample(30, seed=3, keep=0.5)
    assert some.images.shape == (30, 1, 8, 8)
    drawn = {image.tobytes() for image in fitted.sample(60, seed=3).images}
    assert all(image.tobytes() in drawn for image in some.images)
    assert np.array_equal(fitted.sample(5, keep=1, seed=0).images, fitted.sample(5, seed=0).images)
    with pytest.raises(BadInput, match="keep is the share"):
        fitted.sample(5, keep=0, seed=0)


# -- found, not listed -------------------------------------------------------------------------------------------------


def test_every_method_that_is_found_has_its_name_at_the_top_and_can_be_tried_in_a_moment():
    found = {cls.__name__: cls for cls in find_methods().values()}
    for name, cls in found.items():
        assert getattr(sfumato.methods, name) is cls
        assert getattr(sfumato, name) is cls
        assert cls.TINY or name == "Mge", name
    listed = {n for n in sfumato.__all__ if n in found}
    assert listed == set(found) - {"LinearMaps"}  # whose face is LocallyLinearMaps
    with pytest.raises(AttributeError):
        _ = sfumato.NoSuchMethod


# -- feature maps --------------------------------------------------------------------------------------------------

MAPS = {
    "hermite, sum kernel": SumKernel(plain_codec(small_images().schema), Hermite(20, 0.005)),
    "fourier": FourierFeatures(64, 128, 10.0, seed=0),
    "fourier, tiny length": FourierFeatures(64, 32, 1e-4, seed=0),
    "counted by class": CountedByClass(FourierFeatures(64, 128, 10.0, seed=0), 3),
    "perceptual": PerceptualFeatures(ScatteringEncoder((1, 8, 8))),
    "counted, unlabelled": CountedByClass(FourierFeatures(64, 128, 10.0, seed=0), 0),
}
PIXELS = st.one_of(
    st.sampled_from([0.0, 1.0, math.nan, math.inf, 1e-40, -5.0, 1e30]), st.floats(0, 1, width=32)
)
ROWS = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 5), st.just(1), st.just(8), st.just(8)), elements=PIXELS
)


@pytest.mark.parametrize("name", MAPS)
@given(rows=ROWS)
@settings(max_examples=60, deadline=None)
def test_the_bound_of_a_map_holds_on_adversarial_rows(name, rows):
    phi = MAPS[name]
    batch = Batch(torch.from_numpy(rows), torch.zeros(len(rows), dtype=torch.int64))
    finite = torch.isfinite(batch.pixels()).flatten(1).all(dim=1)
    norms = phi(batch).double().norm(dim=1)
    # The map's own proof, where pixels are numbers at all …
    assert (norms[finite] <= phi.bound * (1 + 1e-5)).all()
    # … and the wall's, in any case.
    units = BoundedSum(phi).rows(batch).double() * BoundedSum(phi).grid
    assert (units.norm(dim=1) <= enforced_bound(phi)).all()


@pytest.mark.parametrize("name", MAPS)
def test_a_map_is_row_wise(name):
    phi = MAPS[name]
    values = torch.rand(7, 1, 8, 8)
    labels = torch.arange(7) % 3
    whole = phi(Batch(values, labels))
    for i in (0, 3, 6):
        alone = phi(Batch(values[i : i + 1], labels[i : i + 1]))
        # Angles of several hundred radians lose their last digits to the shape of the batch.
        assert torch.allclose(whole[i], alone[0], atol=1e-3 if "tiny" in name else 1e-5)
    others = values.clone()
    others[1:] = math.nan
    assert torch.equal(phi(Batch(others, labels))[0], whole[0])
