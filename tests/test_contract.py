"""What every method and every feature map must do, run over all that are registered."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sfumato.data import Batch, Column, Dataset, Schema
from sfumato.data.sources import ArraySource
from sfumato.errors import BadInput, BudgetExceeded, PlanMismatch, RunConflict
from sfumato.files import read_json
from sfumato.generators.embedding import CountedByClass
from sfumato.methods import Merf, SavedRun, Synthesizer, get_method, list_methods
from sfumato.methods.mge import DiagonalMoments
from sfumato.privacy import BoundedSum, Budget, Neighbours, enforced_bound, epsilon_of
from sfumato.privacy.gate import _map_of
from sfumato.public.fourier import FourierFeatures
from sfumato.public.hermite import Hermite, SumKernel
from sfumato.public.linear import DctCodec
from sfumato.public.perceptual import PerceptualFeatures, ScatteringEncoder
from sfumato.public.tabular import encoding_of

TINY = {"merf": {"features": 64, "steps": 12, "batch": 20, "hidden": 16, "block": 16}}
TINY["mixture"] = {"candidates": 2}
TINY["mixture, codec"] = {"candidates": 2, "codec": "dct:16"}  # a method in another setting
TINY["hp"] = {"order": 6, "product_order": 3, "rounds": 2, "steps": 12, "batch": 20, "hidden": 16}
TINY["mge"] = {}
TINY["llm"] = {"maps": 2, "projection": 10, "rate": 0.5, "epochs": 3.0}
TINY["mepf"] = {"steps": 4, "batch": 9, "hidden": 16, "latent": 8, "moments": 1}
TINY["dre"] = {"codec": "dct:16", "rate": 0.5, "steps": 12, "public_batch": 20, "width": 4}
TINY["gan"] = {"rate": 0.5, "steps": 6, "batch": 12, "latent": 4, "width": 4}
TINY["gan-ft"] = {**TINY["gan"], "public_steps": 3}
TINY["gan-mi"] = {"codec": "dct:16", "rate": 0.5, "steps": 6, "batch": 12, "latent": 4, "width": 8}
TINY["dpaf"] = {**TINY["gan"], "asymmetry": 3, "first_phase": "dp-sgd", "first_steps": 2, "maps": 4}
TINY["sinkhorn"] = {"rate": 0.5, "groups": 2, "steps": 5, "batch": 12, "latent": 4, "hidden": 8}
TINY["gs-wgan"] = {"shards": 4, "rate": 0.5, "steps": 5, "batch": 12, "latent": 4, "hidden": 8}
TINY["gs-wgan"] |= {"phase": 2}
EVERY = [*(info.name for info in list_methods()), "mixture, codec"]
METHODS = [name for name in EVERY if get_method(name.partition(",")[0]).info.makes == "records"]
BUDGET = Budget(epsilon=2.0, delta=1e-4)


def tiny(name: str, **more: object) -> Synthesizer:
    assert name in TINY, f"give {name} a tiny setting here, so that the contract is tested on it"
    method = get_method(name.partition(",")[0])(**{**TINY[name], **more})
    if method.info.public == "required":
        plain = method.fit

        def fit(data, budget, **how):
            public = (
                images(50, shape=data.schema.shape, seed=2)
                if data.schema.kind == "images"
                else None
            )
            return plain(data, budget, public=public, **how)

        method.fit = fit
    return method


def images(
    n: int = 60, *, labelled: bool = True, shape: tuple[int, ...] = (1, 8, 8), seed: int = 1
) -> Dataset:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3 if labelled else None
    return Dataset.from_arrays(
        rng.integers(0, 256, size=(n, *shape), dtype=np.uint8),
        labels,
        classes=3 if labelled else None,
    )


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_a_method_spends_what_it_planned_and_no_more_than_its_budget(name, neighbours):
    budget = Budget(epsilon=2.0, delta=1e-4, neighbours=neighbours)
    fitted = tiny(name).fit(images(), budget)
    assert fitted.statement_.charges == fitted.promise(images().schema, budget)[1].charges
    assert fitted.statement_.epsilon <= 2.0
    assert epsilon_of(fitted.statement_.charges, 1e-4, neighbours) == pytest.approx(2.0, rel=2e-3)


@pytest.mark.parametrize("name", EVERY)
def test_a_plan_is_made_from_the_schema_alone(name):
    plan = tiny(name).plan(images().schema, 3.0)
    assert plan
    assert all(c.noise_multiplier > 0 for c in plan)
    assert len({c.label for c in plan}) == len(plan)


@pytest.mark.parametrize("name", EVERY)
def test_a_method_that_strays_from_its_plan_is_caught(name, monkeypatch):
    method = tiny(name)
    honest = method.plan

    def doubled(schema: Schema, noise_multiplier: float):
        return (
            honest(schema, noise_multiplier) * 2
        )  # promises more than it will do, so the ledger cannot refuse

    monkeypatch.setattr(method, "plan", doubled)
    with pytest.raises((PlanMismatch, BudgetExceeded)):
        method.fit(images(), BUDGET)
    assert not hasattr(method, "statement_")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 10, 6)])
def test_samples_look_like_the_schema_and_depend_on_the_seed(name, labelled, shape):
    fitted = tiny(name).fit(images(labelled=labelled, shape=shape), BUDGET)
    sample = fitted.sample(25, seed=3)
    assert sample.schema == fitted.schema_
    assert sample.images.shape == (25, *shape)
    assert (sample.labels is not None) == labelled
    assert np.array_equal(sample.images, fitted.sample(25, seed=3).images)
    assert not np.array_equal(sample.images, fitted.sample(25, seed=4).images)


@pytest.mark.parametrize("name", METHODS)
def test_saving_and_loading_gives_the_same_samples_and_statement(name, tmp_path):
    fitted = tiny(name).fit(images(), BUDGET)
    fitted.save(tmp_path / "run")
    again = Synthesizer.load(tmp_path / "run")
    assert type(again) is type(fitted)
    assert again.get_params() == fitted.get_params()
    assert np.array_equal(again.sample(30, seed=1).images, fitted.sample(30, seed=1).images)
    assert again.statement_ == fitted.statement_


@pytest.mark.parametrize("name", METHODS)
def test_two_fits_with_one_seed_differ_because_noise_has_none(name):
    first, second = (tiny(name, seed=5).fit(images(), BUDGET) for _ in range(2))
    assert not np.array_equal(first.sample(20).images, second.sample(20).images)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_a_run_holds_no_trace_of_a_record_or_of_a_private_count(name, neighbours, tmp_path):
    data = images(59)
    canary = data.images[7].copy()
    budget = Budget(epsilon=2.0, delta=1e-4, neighbours=neighbours)
    tiny(name).fit(data, budget, out=tmp_path / "run")
    pattern = [canary.tobytes(), canary.tobytes()[:16], canary.astype(np.float32).tobytes()[:64]]
    pattern += [(canary / np.float32(255)).astype(np.float32).tobytes()[:64]]
    as_text = ", ".join(str(v) for v in canary.ravel()[:6])
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(p in content for p in pattern), path
            assert as_text.encode() not in content, path
    told = read_json(tmp_path / "run" / "config.json")["data"]["size"]
    assert told == (None if neighbours is Neighbours.ADD_REMOVE else 59)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_folder_holds_what_it_should_and_no_pickle(name, tmp_path):
    tiny(name).fit(images(), BUDGET, out=tmp_path / "run")
    files = {
        str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*") if p.is_file()
    }
    assert {
        "config.json",
        "statement.json",
        "generator.safetensors",
        "log.jsonl",
        "samples.png",
        "run.sqlite",
        "run.lock",
    } == files
    assert all((tmp_path / "run" / f).stat().st_mode & 0o777 == 0o600 for f in files)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    told = read_json(tmp_path / "run" / "statement.json")
    for key in ("epsilon", "delta", "neighbours", "releases"):
        assert key in told
    for release in told["releases"]:
        assert {"label", "bound", "sensitivity", "noise_std", "event"} <= set(release)
    for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines():
        assert "event" in json.loads(line)


@pytest.mark.parametrize("name", METHODS)
def test_lost_or_changed_exports_lose_nothing(name, tmp_path):
    first = tiny(name).fit(images(), BUDGET, out=tmp_path / "run")
    (tmp_path / "run" / "generator.safetensors").unlink()
    (tmp_path / "run" / "statement.json").write_text('{"epsilon": 0.001}')
    again = Synthesizer.load(tmp_path / "run")
    assert again.statement_ == first.statement_
    assert np.array_equal(again.sample(9).images, first.sample(9).images)


@pytest.mark.parametrize("name", EVERY)
def test_a_taken_folder_is_left_alone(name, tmp_path):
    tiny(name).fit(images(), BUDGET, out=tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(RunConflict, match="already holds a run"):
        tiny(name).fit(images(), BUDGET, out=tmp_path / "run")
    with pytest.raises(RunConflict, match="other settings"):
        tiny(name, seed=9).fit(images(), BUDGET, out=tmp_path / "run", resume=True)
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(RunConflict, match="not empty"):
        tiny(name).fit(images(), BUDGET, out=tmp_path / "other")
    with pytest.raises(BadInput, match="nothing to resume"):
        tiny(name).fit(images(), BUDGET, out=tmp_path / "new", resume=True)


@pytest.mark.parametrize("name", METHODS)
def test_resuming_a_finished_run_reads_nothing_and_changes_nothing(name, tmp_path):
    first = tiny(name).fit(images(), BUDGET, out=tmp_path / "run")

    class Unread(Dataset):
        def batches(self, size):
            raise AssertionError("a row was read")

    source = images()
    again = tiny(name).fit(
        Unread(source._source, source.schema, source.name),
        BUDGET,
        out=tmp_path / "run",
        resume=True,
    )
    assert np.array_equal(first.sample(9).images, again.sample(9).images)


@pytest.mark.parametrize("name", [info.name for info in list_methods()])
def test_settings_are_typed_and_explained(name):
    method = get_method(name)
    for parameter in method.parameters():
        assert parameter.help
        assert parameter.help.endswith(".")
    assert method.from_settings({"seed": "7"}).get_params()["seed"] == 7
    with pytest.raises(BadInput, match="has no setting"):
        method.from_settings({"sead": "7"})
    with pytest.raises(BadInput, match="takes int"):
        method.from_settings({"seed": "seven"})


@pytest.mark.parametrize("name", METHODS)
def test_a_class_without_records_gets_next_to_no_sample(name):
    n = 6000
    rng = np.random.default_rng(0)
    data = Dataset.from_arrays(
        rng.integers(0, 256, (n, 1, 8, 8), dtype=np.uint8), np.arange(n) % 2, classes=3
    )
    sample = tiny(name).fit(data, Budget(epsilon=5.0, delta=1e-5), allow_empty=True).sample(300)
    # Noise may lift an empty class over the floor, to a share of a few hundredths at most.
    assert np.bincount(sample.labels, minlength=3)[2] <= 10


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("n", "epsilon"), [(1, 0.05), (2, 50.0), (5, 1e-3), (40, 1e3)])
def test_tiny_data_and_extreme_budgets_work(name, n, epsilon):
    fitted = tiny(name).fit(images(n), Budget(epsilon=epsilon, delta=1e-6), allow_empty=True)
    assert np.isfinite(fitted.sample(12).images.astype(float)).all()


@pytest.mark.parametrize("name", METHODS)
def test_training_again_from_a_release_reads_no_row_and_costs_nothing(name, tmp_path):
    first = tiny(name).fit(images(), BUDGET, out=tmp_path / "run")
    if first.RELEASED_BY is None:
        with pytest.raises(BadInput, match="reads the private data while it trains"):
            tiny(name).refit(tmp_path / "run")
        return
    assert set(first.RELEASED_BY) <= set(first.get_params())
    again = tiny(name).refit(tmp_path / "run", out=tmp_path / "again")
    assert again.statement_ == first.statement_
    assert np.array_equal(again.sample(9).images, first.sample(9).images)
    loaded = Synthesizer.load(tmp_path / "again")
    assert np.array_equal(loaded.sample(9).images, first.sample(9).images)
    digests = [[a.digest for a in SavedRun(tmp_path / r).answers()] for r in ("run", "again")]
    assert digests[0] == digests[1]
    for setting in first.RELEASED_BY:
        if isinstance(first.get_params()[setting], int):
            with pytest.raises(BadInput, match="shapes the release"):
                tiny(name, **{setting: first.get_params()[setting] + 2}).refit(tmp_path / "run")


def test_private_data_are_not_taken_as_public_ones():
    data = images()
    with pytest.raises(BadInput, match="private and as public"):
        tiny("mge").fit(data, BUDGET, public=data)
    with pytest.raises(BadInput, match="no use of public data"):
        tiny("merf").fit(data, BUDGET, public=images())


def test_imbalanced_classes_are_sampled_in_their_proportion():
    n = 8000
    labels = np.repeat([0, 1, 2], [6400, 1200, 400])
    pixels = np.random.default_rng(0).integers(0, 256, (n, 1, 8, 8), dtype=np.uint8)
    sample = (
        tiny("merf")
        .fit(Dataset.from_arrays(pixels, labels, classes=3), Budget(epsilon=5, delta=1e-5))
        .sample(1000)
    )
    assert np.allclose(np.bincount(sample.labels, minlength=3) / 1000, [0.8, 0.15, 0.05], atol=0.03)


@pytest.mark.parametrize("name", [i.name for i in list_methods() if "table" not in i.kinds])
def test_a_method_of_images_refuses_a_table(name):
    with pytest.raises(BadInput, match="makes images"):
        tiny(name).fit(table(), BUDGET)


def test_an_unfitted_method_says_so():
    with pytest.raises(BadInput, match="has not been fitted"):
        Merf().sample(3)


@pytest.mark.parametrize("n", [0, -1, 2.5, True])
def test_a_senseless_number_of_samples_is_refused(n):
    fitted = tiny("merf").fit(images(), BUDGET)
    with pytest.raises(BadInput):
        fitted.sample(n)


@pytest.mark.parametrize("name", ["merf", "mixture"])
def test_the_likeliest_of_many_samples_can_be_kept(name):
    fitted = tiny(name).fit(images(), BUDGET)
    some = fitted.sample(30, seed=3, keep=0.5)
    assert some.images.shape == (30, 1, 8, 8)
    drawn = {image.tobytes() for image in fitted.sample(60, seed=3).images}
    assert all(image.tobytes() in drawn for image in some.images)
    assert np.array_equal(fitted.sample(5, keep=1).images, fitted.sample(5).images)
    with pytest.raises(BadInput, match="keep is the share"):
        fitted.sample(5, keep=0)


def test_only_labelled_images_are_chosen_from():
    for data in (images(labelled=False), table()):
        with pytest.raises(BadInput, match="Only labelled images"):
            tiny("merf").fit(data, BUDGET).sample(5, keep=0.5)


# -- tables ------------------------------------------------------------------------------------------------------

TABLE_METHODS = [i.name for i in list_methods() if "table" in i.kinds and i.makes == "records"]
TABLE = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", low=0, high=90),
        Column(name="gain", kind="numerical", low=0, high=99_999, missing=True),
        Column(name="work", kind="categorical", categories=("a", "b", "c"), missing=True),
        Column(name="sex", kind="categorical", categories=("f", "m")),
        Column(name="level", kind="ordinal", categories=("low", "mid", "high", "top")),
    ),
    label="class",
    classes=("x", "y", "z"),
)


def rows_of_a_table(n: int) -> np.ndarray:
    rng = np.random.default_rng(2)
    gain = np.where(rng.random(n) < 0.2, np.nan, rng.exponential(500, n))
    work = np.where(rng.random(n) < 0.2, np.nan, rng.integers(0, 3, n))
    sex, level = rng.integers(0, 2, n), rng.integers(0, 4, n)
    return np.stack([rng.uniform(0, 90, n), gain, work, sex, level], 1).astype(np.float32)


def table(n: int = 60, *, labelled: bool = True) -> Dataset:
    schema = TABLE if labelled else Schema(kind="table", columns=TABLE.columns)
    labels = np.arange(n) % 3 if labelled else None
    return Dataset.from_values(rows_of_a_table(n), labels, schema=schema)


def same(first: Dataset, second: Dataset) -> bool:
    return np.array_equal(first.values, second.values, equal_nan=True)


@pytest.mark.parametrize("name", TABLE_METHODS)
@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_on_tables_too_a_method_spends_what_it_planned(name, neighbours):
    budget = Budget(epsilon=2.0, delta=1e-4, neighbours=neighbours)
    fitted = tiny(name).fit(table(), budget)
    assert fitted.statement_.charges == fitted.promise(TABLE, budget)[1].charges
    assert epsilon_of(fitted.statement_.charges, 1e-4, neighbours) == pytest.approx(2.0, rel=2e-3)


@pytest.mark.parametrize("name", TABLE_METHODS)
@pytest.mark.parametrize("labelled", [True, False])
def test_a_sampled_table_fits_its_schema_and_depends_on_the_seed(name, labelled):
    # a budget so large that no noise can hide the columns' missing values
    fitted = tiny(name).fit(table(labelled=labelled), Budget(epsilon=1e3, delta=1e-4))
    sample = fitted.sample(200, seed=3)
    sample.check()  # ranges, categories, and no missing value where the schema allows none
    assert sample.schema == fitted.schema_
    assert (sample.labels is not None) == labelled
    assert same(sample, fitted.sample(200, seed=3))
    assert not same(sample, fitted.sample(200, seed=4))
    values = sample.values
    assert np.isnan(values[:, 1]).any()
    assert np.isnan(values[:, 2]).any()
    for column in (3, 4):
        assert np.array_equal(values[:, column], values[:, column].round())


@pytest.mark.parametrize("name", TABLE_METHODS)
def test_saving_and_loading_gives_the_same_table(name, tmp_path):
    fitted = tiny(name).fit(table(), BUDGET)
    fitted.save(tmp_path / "run")
    again = Synthesizer.load(tmp_path / "run")
    assert same(again.sample(30, seed=1), fitted.sample(30, seed=1))
    assert again.statement_ == fitted.statement_


@pytest.mark.parametrize("name", TABLE_METHODS)
def test_a_run_on_a_table_holds_no_trace_of_a_record(name, tmp_path):
    data = table(59)
    row = data.values[7]
    tiny(name).fit(data, BUDGET, out=tmp_path / "run")
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert row.tobytes() not in content, path
            assert row[:1].tobytes() + row[1:2].tobytes() not in content, path
            assert str(float(row[0])).encode() not in content, path


@pytest.mark.parametrize("name", TABLE_METHODS)
@pytest.mark.parametrize(("n", "epsilon"), [(1, 0.05), (2, 50.0), (5, 1e-3), (40, 1e3)])
def test_tiny_tables_and_extreme_budgets_work(name, n, epsilon):
    budget = Budget(epsilon=epsilon, delta=1e-6)
    tiny(name).fit(table(n), budget, allow_empty=True).sample(12).check()


@pytest.mark.parametrize("name", TABLE_METHODS)
def test_streamed_rows_that_break_the_schema_do_no_harm(name):
    rows = rows_of_a_table(60)
    rows[::5] = np.nan
    rows[1::5] = 1e30
    rows[2::5, 0] = -np.inf
    rows[3::5, 2:] = 7.5
    labels = np.arange(60) % 5 - 1  # −1 and 3 are no class
    dirty = Dataset(ArraySource(rows, labels), TABLE, "dirty")
    tiny(name).fit(dirty, BUDGET).sample(20).check()


# -- feature maps --------------------------------------------------------------------------------------------------

MAPS = {
    "hermite, sum kernel": SumKernel(encoding_of(images().schema), Hermite(20, 0.005)),
    "fourier": FourierFeatures(64, 128, 10.0, seed=0),
    "fourier, tiny length": FourierFeatures(64, 32, 1e-4, seed=0),
    "counted by class": CountedByClass(FourierFeatures(64, 128, 10.0, seed=0), 3),
    "perceptual": PerceptualFeatures(ScatteringEncoder((1, 8, 8))),
    "counted, unlabelled": CountedByClass(FourierFeatures(64, 128, 10.0, seed=0), 0),
}
MAPS["moments of a codec"] = _map_of(
    DiagonalMoments.query(DctCodec((1, 8, 8)).facts, 3), DiagonalMoments(DctCodec((1, 8, 8)))
)
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
