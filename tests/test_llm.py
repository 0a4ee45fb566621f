"""DP-LLM: its gradient by a second route, its clipping, what it spends, its explanations, and scikit-learn's checks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from sklearn.utils.estimator_checks import check_estimator

import sfumato
from pictures import striped
from plans import plan_of
from sfumato.classifier import LocallyLinearMaps, NotFitted
from sfumato.cli.explain import explain
from sfumato.data import Batch, Column, Dataset, Schema
from sfumato.errors import BadInput, RunConflict
from sfumato.methods import LinearMaps, SavedRun, load
from sfumato.methods.linear_maps import Model
from sfumato.privacy import Budget, Neighbours, OuterSum, enforced_bound
from sfumato.privacy.gate import _map_of
from sfumato.testing.sums import check_map

BUDGET = Budget(epsilon=4.0, delta=1e-4)
TINY = {"maps": 3, "projection": 12, "rate": 0.5, "epochs": 4.0}
TABLE = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", low=0, high=90),
        Column(name="colour", kind="categorical", categories=("red", "green"), missing=True),
        Column(name="size", kind="ordinal", categories=("s", "m", "l"), missing=True),
    ),
    classes=("no", "yes"),
    label="bought",
)


def table(n: int = 80, *, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    rows = np.stack(
        [rng.uniform(0, 90, n), rng.integers(0, 2, n), rng.integers(0, 3, n)], axis=1
    ).astype(np.float32)
    labels = (rows[:, 0] > 45).astype(np.int64)
    rows[::9, 1] = np.nan
    rows[::7, 2] = np.nan
    return Dataset.from_values(rows, labels, schema=TABLE)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A run on images, one on a table, and a few records of each."""
    folder = tmp_path_factory.mktemp("runs")
    LocallyLinearMaps(**TINY).fit(striped(), BUDGET, out=folder / "images")
    LocallyLinearMaps(**TINY).fit(table(), BUDGET, out=folder / "table")
    striped(12).save(folder / "some.npz")
    table(12).save(folder / "some.csv")
    return folder


@pytest.fixture(scope="module")
def fitted(runs) -> LocallyLinearMaps:
    return LocallyLinearMaps.load(runs / "images")


def loss_by_autograd(model: Model, weights: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The paper's equations (3) to (5), a record and a map at a time."""
    plain, projections = model.encode(batch)[0], [torch.eye(len(model.encode(batch)[0]))]
    if model.projection is not None:
        projections = list(model.projection)
    seen = [torch.cat([r @ plain, torch.ones(1)]) for r in projections]
    scores = []
    for k in range(model.classes):
        g = torch.stack(
            [weights[k * model.maps + m] @ seen[m % len(seen)] for m in range(model.maps)]
        )
        sigma = torch.exp(model.beta * g) / torch.exp(model.beta * g).sum()
        scores.append((sigma * g).sum())
    return -torch.log_softmax(torch.stack(scores), dim=0)[int(batch.labels[0])]


@pytest.mark.parametrize("data", [striped(7), striped(7, shape=(3, 10, 6)), table(7)])
@pytest.mark.parametrize("beta", [1 / 30, 1.0, 4.0])
@pytest.mark.parametrize("per_map", [False, True])
def test_the_closed_form_gradient_is_that_of_the_papers_loss(data, beta, per_map):
    model = Model(LinearMaps(**TINY, beta=beta, basis="random", per_map=per_map), data.schema)
    blocks = 3 if per_map and data.schema.kind == "images" else 1
    assert model.blocks == blocks
    left, right = model.gradients(data.take(np.arange(7)))
    assert torch.allclose(right.view(7, blocks, -1).norm(dim=2), torch.ones(7, blocks))
    for i in range(7):
        weights = model.weights.clone().requires_grad_()
        loss_by_autograd(model, weights, data.take([i])).backward()
        sides = (side[i].view(blocks, -1) for side in (left, right))
        whole = torch.stack([torch.outer(*pair) for pair in zip(*sides, strict=True)])
        assert torch.allclose(model.gradient(whole), weights.grad, atol=2e-6)
        # The length of the whole gradient is that of the left factor alone.
        assert left[i].norm() == pytest.approx(float(weights.grad.norm()), rel=1e-4)


@pytest.mark.parametrize("clip", [1e-3, 0.05, 50.0])
def test_no_record_moves_the_sum_by_more_than_the_enforced_bound(clip):
    method = LinearMaps(**TINY, clip=clip)
    (query,) = method.queries(TABLE, BUDGET)
    model = Model(method, TABLE)
    model.weights *= 1e4
    assert query.shape == model.weights.shape
    rows = torch.tensor(
        [[1e30, 0, 0], [-math.inf, 5, 1], [math.nan, math.nan, math.nan], [44, 1, 2]]
    )
    summand = OuterSum(_map_of(query, model.gradients))
    for i in range(4):
        for label in (0, 1, -1):
            one = summand(Batch(rows[i : i + 1], torch.tensor([label]))).double() * summand.grid
            assert one.norm() <= query.enforced
            if label < 0:
                assert not one.any()  # a record of no known class adds nothing


def test_maps_with_projections_of_their_own_are_clipped_together():
    """Weights and images that make every gradient long; what a record adds is priced like one vector of all blocks."""
    data, how = striped(6), LinearMaps(**TINY, basis="random", per_map=True, clip=0.05)
    (query,) = how.queries(data.schema, BUDGET)
    assert query.shape == (3, 3, 13) and query.dim == 3 * 3 * 13
    model = Model(how, data.schema)
    model.weights *= 1e3
    phi = _map_of(query, model.gradients)
    assert enforced_bound(phi) == query.enforced
    check_map(phi, data.schema, records=data.take(np.arange(6)))
    one = OuterSum(phi)(data.take([0])).double() * OuterSum(phi).grid
    assert one.norm() == pytest.approx(0.05, rel=1e-2)  # not shorter than it must be
    with pytest.raises(BadInput, match="goes with basis=random"):
        LinearMaps(**TINY, per_map=True).promise(data.schema, BUDGET)


def test_a_record_does_not_see_the_others_of_its_batch():
    data = striped(6)
    model = Model(LinearMaps(**TINY), data.schema)
    whole, _ = model.gradients(data.take(np.arange(6)))
    for i in (0, 5):
        assert torch.allclose(whole[i], model.gradients(data.take([i]))[0][0], atol=1e-6)


def test_the_plan_is_poisson_sampled_steps_and_needs_no_number_of_records():
    (charge,) = plan_of(LinearMaps(rate=0.05, epochs=3), striped().schema, 1.5)
    assert (charge.rate, charge.steps) == (0.05, 60)
    assert charge.noise_multiplier == pytest.approx(1.5 * 0.05 * math.sqrt(60))
    assert charge.bound == pytest.approx(1e-3, rel=5e-3)
    assert charge.dimension == 3 * 30 * (64 + 1)


def test_more_passes_and_larger_samples_ask_for_more_noise():
    def noise(**settings: float) -> float:
        promised = LinearMaps(**{**TINY, **settings}).promise(striped().schema, BUDGET)
        return promised.charges[0].noise_multiplier

    assert noise() < noise(epochs=8.0)
    assert noise(epochs=1.0) < noise(epochs=2.0, rate=1.0)


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_it_learns_from_images_whatever_the_relation(neighbours):
    budget = Budget(epsilon=100.0, delta=1e-4, neighbours=neighbours)
    fitted = LocallyLinearMaps(maps=2, rate=0.3, epochs=10).fit(striped(600), budget)
    assert fitted.score(striped(90, seed=5)) > 0.9
    assert fitted.statement_.epsilon <= 100.0


def test_it_learns_from_a_table_with_missing_values():
    fitted = LocallyLinearMaps(maps=2, rate=0.3, epochs=40, learning_rate=0.2).fit(
        table(900), Budget(epsilon=50.0, delta=1e-4)
    )
    assert fitted.score(table(200, seed=3)) > 0.85
    assert fitted.filters().features[:3] == ("age", "size", "colour = red")
    top = np.abs(fitted.explain(table(200, seed=3)).contributions()).argmax(axis=1)
    assert (top == 0).mean() > 0.6  # the label is decided by age; 0.79 ± 0.03 over twelve fits


@pytest.mark.parametrize(
    ("basis", "per_map"), [("frequencies", False), ("random", False), ("random", True)]
)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 10, 6)])
def test_the_projection_is_public_and_the_filters_speak_of_pixels(basis, per_map, shape):
    data = striped(60, shape=shape)
    how = {**TINY, "basis": basis, "per_map": per_map}
    fitted = LocallyLinearMaps(**how).fit(data, BUDGET)
    model = fitted.method_.model_
    assert model.projection.shape == (3 if per_map else 1, 12, math.prod(shape))
    again = Model(LinearMaps(**how), data.schema)
    assert torch.equal(model.projection, again.projection)
    if basis == "frequencies":
        (only,) = model.projection
        assert torch.allclose(only @ only.T, torch.eye(12), atol=1e-5)
    elif per_map:
        assert not torch.allclose(model.projection[0], model.projection[1], atol=0.1)
    # Filters applied to pixels give what the classifier computes on projections.
    batch = data.take(np.arange(9))
    by_pixels = np.einsum("nd,kmd->nkm", batch.pixels().flatten(1).numpy(), fitted.coef_)
    g = model.activations(model.inputs(batch)).numpy()
    assert np.allclose(by_pixels + fitted.intercept_, g, atol=1e-3)
    assert fitted.filters().images().shape == (3, 3, *shape)


def test_probabilities_are_the_softmax_of_scores_and_explanations_add_up_to_them(fitted):
    some = striped(10).images
    p, f = fitted.predict_proba(some), fitted.decision_function(some)
    assert np.allclose(p, np.exp(f) / np.exp(f).sum(axis=1, keepdims=True), atol=1e-6)
    assert np.array_equal(fitted.predict(some), p.argmax(axis=1))
    told = fitted.explain(some, top=3)
    assert np.array_equal(told.codes, p.argmax(axis=1))
    assert np.allclose(told.weights.sum(axis=1), 1, atol=1e-6)
    assert (np.diff(told.weights, axis=1) <= 0).all()
    assert np.allclose((told.weights * told.scores).sum(axis=1), f.max(axis=1), atol=1e-5)
    assert (fitted.explain(some, top=1, of=2).codes == 2).all()
    assert fitted.explain(some).to_json()[0]["class"] in striped().schema.classes


def test_pictures_show_a_row_a_record_and_a_row_a_class(fitted, runs):
    explained = fitted.explain(striped(4).images, top=2).picture()
    bank = fitted.filters().picture()
    assert isinstance(explained, Image.Image) and isinstance(bank, Image.Image)
    assert explained.height * 3 == bank.height * 4
    on_table = LocallyLinearMaps.load(runs / "table")
    assert on_table.explain(table(3)).picture().height > 300
    assert on_table.filters().picture(2).width > 200
    with pytest.raises(BadInput, match="at most 20 records"):
        on_table.explain(table(21)).picture()
    with pytest.raises(BadInput, match="no images"):
        on_table.filters().images()


@pytest.mark.parametrize("cls", [LinearMaps, LocallyLinearMaps])
def test_a_saved_run_is_a_classifier_that_tells_steps_only(cls, tmp_path):
    fitted = cls(**TINY).fit(striped(), BUDGET, out=tmp_path / "run")
    again = LocallyLinearMaps.load(tmp_path / "run")
    assert again.statement_ == fitted.statement_
    assert again.classes_.tolist() == [0, 1, 2]
    assert again.n_iter_ == 8
    assert 0 <= again.score(striped(30)) <= 1
    with pytest.raises(BadInput, match="makes no samples"):
        load(tmp_path / "run").sample(3, seed=0)
    log = SavedRun(tmp_path / "run").log
    assert log
    assert {key for record in log for key in record} <= {"event", "step", "steps"}
    told = fitted.statement_.paragraph()
    assert "8 noisy sums (“gradients” in 8 steps)" in told
    assert "generator" not in told and "synthetic" not in told
    other = cls(**TINY).fit(striped(), BUDGET)  # with the same seed: the noise has none
    weights = (m.model_.weights if cls is LinearMaps else m.coef_ for m in (fitted, other))
    assert not np.array_equal(*weights)
    if cls is LocallyLinearMaps:
        assert again.get_params() == fitted.get_params()
        assert np.array_equal(again.predict_proba(striped(9)), fitted.predict_proba(striped(9)))


def test_what_a_classifier_cannot_do_it_says(fitted):
    some = striped(9)
    for message, call in {
        "no labels": lambda: LocallyLinearMaps().fit(Dataset.from_arrays(some.images), BUDGET),
        "second argument is a Budget": lambda: LocallyLinearMaps().fit(some),
        "differ from the budget": lambda: LocallyLinearMaps(epsilon=9.0).fit(some, BUDGET),
        "epochs ÷ rate are more than": lambda: LocallyLinearMaps(rate=1e-9).fit(some, BUDGET),
        "another kind": lambda: fitted.predict(striped(9, shape=(1, 9, 9))),
        "from 1 to 3": lambda: fitted.explain(some, top=4),
        "no class with code": lambda: fitted.explain(some, of=3),
    }.items():
        with pytest.raises(BadInput, match=message):
            call()
    with pytest.raises(NotFitted, match="has not been fitted"):
        LocallyLinearMaps().predict(some.images)


# -- arrays, as scikit-learn has them ----------------------------------------------------------------------------------


X, Y = np.random.default_rng(0).random((50, 4)), np.arange(50) % 2
SPENT = {"epsilon": 2.0, "delta": 1e-5}


@pytest.mark.parametrize(
    ("settings", "y", "message"),
    [
        ({"classes": 2}, Y, "no budget"),
        (SPENT, Y, "which ones occur is private"),
        ({**SPENT, "classes": ["a", "b"]}, np.where(Y == 1, "a", "c"), "none of the stated"),
    ],
)
def test_arrays_need_a_budget_and_public_classes(settings, y, message):
    with pytest.raises(BadInput, match=message):
        LocallyLinearMaps(**settings).fit(X, y)


def test_a_stated_class_without_records_is_a_class_all_the_same():
    model = LocallyLinearMaps(**TINY, **SPENT, classes=["d", "a", "b"])
    model.fit(X, np.array(["b", "d"])[Y])
    assert model.classes_.tolist() == ["a", "b", "d"]
    assert model.predict_proba(X).shape == (50, 3)
    assert set(model.predict(X)) <= {"a", "b", "d"}


def test_values_beyond_the_public_range_count_as_its_ends(tmp_path):
    model = LocallyLinearMaps(**TINY, **SPENT, classes=2, high=3.0).fit(X, Y)
    assert np.array_equal(model.predict_proba(X * 0 + 7), model.predict_proba(X * 0 + 3))
    again = LocallyLinearMaps.load(model.save(tmp_path / "run"))
    assert np.array_equal(again.predict_proba(9 * X), model.predict_proba(9 * X))
    assert again.get_params() == {**model.get_params(), "classes": [0, 1]}


@pytest.mark.parametrize("labels", [["no", "yes"], [3, 7], [1.0, 2.0], [False, True]])
def test_a_saved_classifier_answers_with_the_labels_it_was_given(labels, tmp_path):
    model = LocallyLinearMaps(**TINY, **SPENT, classes=labels)
    model.fit(X, np.array(labels)[Y], out=tmp_path / "run")
    again = LocallyLinearMaps.load(tmp_path / "run")
    assert again.classes_.dtype == model.classes_.dtype == np.array(labels).dtype
    assert again.classes_.tolist() == labels
    assert np.array_equal(again.predict(X), model.predict(X))


def test_a_fit_that_fails_leaves_nothing_of_the_one_before(runs):
    fitted = LocallyLinearMaps.load(runs / "images")
    with pytest.raises(BadInput, match="maps must be"):
        fitted.set_params(maps=0).fit(striped(), BUDGET)
    with pytest.raises(NotFitted):
        fitted.predict(striped(3))
    assert not hasattr(fitted, "statement_")


def test_images_may_come_as_arrays_too():
    data, other = striped(300), striped(60, seed=9)
    how = {"epsilon": 100.0, "delta": 1e-4, "classes": 3}
    model = LocallyLinearMaps(maps=2, rate=0.3, epochs=10, **how)
    model.fit(data.images[:, 0], data.labels)
    assert model.score(other.images, other.labels) > 0.9
    assert model.schema_.shape == (1, 8, 8)


# What scikit-learn asks for and privacy does not allow: each of these fits twice and wants the same classifier.
EXPECTED_FAILURES = dict.fromkeys(
    ("check_fit_idempotent", "check_supervised_y_2d", "check_classifier_data_not_an_array"),
    "privacy noise has no seed, so two fits to the same records differ",
)


def test_scikit_learns_own_checks_pass_as_far_as_privacy_allows():
    """The list of classes in y is declared public, as scikit-learn takes it; the range of the features is stated."""
    estimator = LocallyLinearMaps(
        maps=2,
        rate=1.0,  # whole data sets: no sampling, hence a closed form for the noise
        epochs=5,
        epsilon=50.0,
        delta=1e-5,
        classes="labels",
        low=-10.0,
        high=10.0,
    )
    results = check_estimator(
        estimator, expected_failed_checks=EXPECTED_FAILURES, on_skip=None, on_fail=None
    )
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert not failed
    assert sum(r["status"] == "passed" for r in results) >= 40


def test_the_classifier_has_the_methods_settings_and_no_others():
    own = {"epsilon", "delta", "neighbours", "classes", "low", "high"}
    told = LocallyLinearMaps().get_params()
    assert {k: v for k, v in told.items() if k not in own} == LinearMaps().get_params()
    assert repr(LocallyLinearMaps(maps=3)) == "LocallyLinearMaps(maps=3)"
    with pytest.raises(TypeError, match="no setting mapz"):
        LocallyLinearMaps(mapz=3)


# -- the command -------------------------------------------------------------------------------------------------------


def run(*arguments: object) -> Result:
    return CliRunner().invoke(explain, [str(a) for a in arguments], catch_exceptions=False)


@pytest.mark.parametrize("kind", ["images", "table"])
@pytest.mark.parametrize("end", [".png", ".html"])
def test_the_command_writes_a_picture_or_a_page(runs, kind, end, tmp_path):
    data = runs / ("some.npz" if kind == "images" else "some.csv")
    out = tmp_path / f"why{end}"
    done = run(runs / kind, "--data", data, "-n", 4, "--out", out)
    assert done.exit_code == 0
    assert "Made" in done.stdout and "%" in done.stdout
    if end == ".png":
        assert Image.open(out).width > 100
    else:
        page = out.read_text()
        assert page.count("<img") == 2 and "ε does not cover them" in page
        assert "http" not in page
    with pytest.raises(RunConflict, match="already exists"):
        run(runs / kind, "--data", data, "--out", out)


def test_the_command_shows_filters_alone_and_prints_json(runs, tmp_path):
    assert run(runs / "images", "--out", tmp_path / "filters.png", "-q").exit_code == 0
    how = ("--data", runs / "some.npz", "--out", tmp_path / "w.png", "--json", "-q")
    told = json.loads(run(runs / "images", *how).stdout)["records"]
    assert len(told) == 8 and len(told[0]["maps"]) == 3


def test_the_command_says_what_it_cannot_do(runs, tmp_path):
    some, out = runs / "some.npz", tmp_path / "a.png"
    with pytest.raises(BadInput, match="end --out with"):
        run(runs / "images", "--out", tmp_path / "why.gif")
    with pytest.raises(BadInput, match="no record number"):
        run(runs / "images", "--data", some, "--first", 99, "--out", out)
    sfumato.Merf(**sfumato.Merf.TINY).fit(striped(), BUDGET, out=tmp_path / "merf")
    with pytest.raises(BadInput, match="no explanations"):
        run(tmp_path / "merf", "--out", out)


def test_the_paper_s_schedule_falls_by_a_fifth_every_five_passes():
    method = LinearMaps(schedule="steps", rate=0.1, epochs=20.0)
    rates = [method._cooled(step, 200) for step in range(200)]
    assert rates[0] == rates[49] == 1
    assert rates[50] == pytest.approx(0.8) and rates[199] == pytest.approx(0.8**3)
    half = LinearMaps()._cooled
    assert half(0, 100) == 1 and half(50, 100) == pytest.approx(0.5) and half(99, 100) < 0.001


def test_scaled_inputs_are_what_the_filters_and_the_gradients_speak_of():
    """g and its gradient are those of a model whose weights and inputs trade the factor; the charge is the same."""
    data = sfumato.load("digits:train")
    plain, scaled = (Model(LinearMaps(**TINY, input_scale=s), data.schema) for s in (1.0, 5.0))
    batch = data.take(np.arange(30))
    with torch.no_grad():
        scaled.weights[:, :-1] = plain.weights[:, :-1] / 5
    assert torch.allclose(plain.scores(batch), scaled.scores(batch), atol=1e-5)
    for ours, theirs in zip(plain.filters(), scaled.filters(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    whole = [torch.einsum("na,nb->nab", *m.gradients(batch)) for m in (plain, scaled)]
    assert torch.allclose(5 * whole[0][:, :, :-1], whole[1][:, :, :-1], atol=1e-5)
    assert torch.allclose(whole[0][:, :, -1], whole[1][:, :, -1], atol=1e-6)
    promised = [LinearMaps(**TINY, input_scale=s).promise(data.schema, BUDGET) for s in (1.0, 5.0)]
    assert promised[0] == promised[1]
