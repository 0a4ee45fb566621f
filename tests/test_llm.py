"""DP-LLM: its gradient by a second route, its clipping, what it spends, its explanations, and scikit-learn's checks."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

import sfumato
from plans import plan_of
from sfumato.classifier import LocallyLinearMaps, NotFitted
from sfumato.cli.explain import explain
from sfumato.data import Batch, Column, Dataset, Schema
from sfumato.errors import BadInput, RunConflict
from sfumato.files import read_json
from sfumato.methods import LinearMaps, load
from sfumato.methods.llm import Model
from sfumato.methods.run import EXPORTS
from sfumato.privacy import Budget, Neighbours, OuterSum
from sfumato.privacy.gate import _map_of

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


def images(n: int = 90, *, seed: int = 1, shape: tuple[int, ...] = (1, 8, 8)) -> Dataset:
    """Three classes told apart by which third of the picture is bright."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    pixels = rng.integers(0, 100, size=(n, *shape), dtype=np.uint8)
    third = shape[1] // 3
    for row, label in zip(pixels, labels, strict=True):
        row[:, third * label : third * (label + 1)] += 120
    return Dataset.from_arrays(pixels, labels, classes=3)


def table(n: int = 80, *, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    rows = np.stack(
        [rng.uniform(0, 90, n), rng.integers(0, 2, n), rng.integers(0, 3, n)], axis=1
    ).astype(np.float32)
    labels = (rows[:, 0] > 45).astype(np.int64)
    rows[::9, 1] = np.nan
    rows[::7, 2] = np.nan
    return Dataset.from_values(rows, labels, schema=TABLE)


def loss_by_autograd(model: Model, weights: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The paper's equations (3) to (5), a record and a map at a time."""
    x = torch.cat([model.encode(batch)[0], torch.ones(1)])
    if model.projection is not None:
        x = torch.cat([model.projection @ x[:-1], torch.ones(1)])
    scores = []
    for k in range(model.classes):
        g = torch.stack([weights[k * model.maps + m] @ x for m in range(model.maps)])
        sigma = torch.exp(model.beta * g) / torch.exp(model.beta * g).sum()
        scores.append((sigma * g).sum())
    return -torch.log_softmax(torch.stack(scores), dim=0)[int(batch.labels[0])]


@pytest.mark.parametrize("data", [images(7), images(7, shape=(3, 10, 6)), table(7)])
@pytest.mark.parametrize("beta", [1 / 30, 1.0, 4.0])
def test_the_closed_form_gradient_is_that_of_the_papers_loss(data, beta):
    model = Model(LinearMaps(**TINY, beta=beta), data.schema)
    left, right = model.gradients(data.take(np.arange(7)))
    assert torch.allclose(right.norm(dim=1), torch.ones(7))
    for i in range(7):
        weights = model.weights.clone().requires_grad_()
        loss_by_autograd(model, weights, data.take([i])).backward()
        assert torch.allclose(torch.outer(left[i], right[i]), weights.grad, atol=2e-6)
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


def test_a_record_does_not_see_the_others_of_its_batch():
    data = images(6)
    model = Model(LinearMaps(**TINY), data.schema)
    whole, _ = model.gradients(data.take(np.arange(6)))
    for i in (0, 5):
        assert torch.allclose(whole[i], model.gradients(data.take([i]))[0][0], atol=1e-6)


def test_the_plan_is_poisson_sampled_steps_and_needs_no_number_of_records():
    (charge,) = plan_of(LinearMaps(rate=0.05, epochs=3), images().schema, 1.5)
    assert (charge.rate, charge.steps) == (0.05, 60)
    assert charge.noise_multiplier == pytest.approx(1.5 * 0.05 * math.sqrt(60))
    assert charge.bound == pytest.approx(1e-3, rel=5e-3)
    assert charge.dimension == 3 * 30 * (64 + 1)


def test_more_passes_and_larger_samples_ask_for_more_noise():
    def noise(**settings: float) -> float:
        promised = LinearMaps(**{**TINY, **settings}).promise(images().schema, BUDGET)
        return promised.charges[0].noise_multiplier

    assert noise() < noise(epochs=8.0)
    assert noise(epochs=1.0) < noise(epochs=2.0, rate=1.0)


@pytest.mark.parametrize("neighbours", list(Neighbours))
def test_it_learns_from_images_whatever_the_relation(neighbours):
    budget = Budget(epsilon=100.0, delta=1e-4, neighbours=neighbours)
    fitted = LocallyLinearMaps(maps=2, rate=0.3, epochs=10).fit(images(600), budget)
    assert fitted.score(images(90, seed=5)) > 0.9
    assert fitted.statement_.epsilon <= 100.0


def test_it_learns_from_a_table_with_missing_values():
    fitted = LocallyLinearMaps(maps=2, rate=0.3, epochs=40, learning_rate=0.2).fit(
        table(900), Budget(epsilon=50.0, delta=1e-4)
    )
    assert fitted.score(table(200, seed=3)) > 0.85
    assert fitted.filters().features[:3] == ("age", "size", "colour = red")
    top = np.abs(fitted.explain(table(5)).contributions()).argmax(axis=1)
    assert (top == 0).sum() >= 3  # the label is decided by age


@pytest.mark.parametrize("basis", ["frequencies", "random"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 10, 6)])
def test_the_projection_is_public_and_the_filters_speak_of_pixels(basis, shape):
    data = images(60, shape=shape)
    fitted = LocallyLinearMaps(**TINY, basis=basis).fit(data, BUDGET)
    assert fitted.method_.model_.projection.shape == (12, math.prod(shape))
    again = Model(LinearMaps(**TINY, basis=basis), data.schema)
    assert torch.equal(fitted.method_.model_.projection, again.projection)
    if basis == "frequencies":
        gram = fitted.method_.model_.projection @ fitted.method_.model_.projection.T
        assert torch.allclose(gram, torch.eye(12), atol=1e-5)
    # Filters applied to pixels give what the classifier computes on projections.
    batch = data.take(np.arange(9))
    g = fitted.method_.model_.activations(fitted.method_.model_.inputs(batch)).numpy()
    by_pixels = np.einsum("nd,kmd->nkm", batch.pixels().flatten(1).numpy(), fitted.coef_)
    assert np.allclose(by_pixels + fitted.intercept_, g, atol=1e-3)
    assert fitted.filters().images().shape == (3, 3, *shape)


def test_probabilities_are_the_softmax_of_scores_and_explanations_add_up_to_them():
    fitted = LocallyLinearMaps(**TINY).fit(images(), BUDGET)
    some = images(10).images
    p, f = fitted.predict_proba(some), fitted.decision_function(some)
    assert np.allclose(p, np.exp(f) / np.exp(f).sum(axis=1, keepdims=True), atol=1e-6)
    assert np.array_equal(fitted.predict(some), p.argmax(axis=1))
    told = fitted.explain(some, top=3)
    assert np.array_equal(told.codes, p.argmax(axis=1))
    assert np.allclose(told.weights.sum(axis=1), 1, atol=1e-6)
    assert (np.diff(told.weights, axis=1) <= 0).all()
    assert np.allclose((told.weights * told.scores).sum(axis=1), f.max(axis=1), atol=1e-5)
    assert (fitted.explain(some, top=1, of=2).codes == 2).all()
    assert fitted.explain(some).to_json()[0]["class"] in images().schema.classes


def test_pictures_show_a_row_a_record_and_a_row_a_class():
    fitted = LocallyLinearMaps(**TINY).fit(images(), BUDGET)
    explained = fitted.explain(images(4).images, top=2).picture()
    bank = fitted.filters().picture()
    assert isinstance(explained, Image.Image) and isinstance(bank, Image.Image)
    assert explained.height * 3 == bank.height * 4
    on_table = LocallyLinearMaps(**TINY).fit(table(), BUDGET)
    assert on_table.explain(table(3)).picture().height > 300
    assert on_table.filters().picture(2).width > 200
    with pytest.raises(BadInput, match="at most 20 records"):
        on_table.explain(table(21)).picture()
    with pytest.raises(BadInput, match="no images"):
        on_table.filters().images()


def test_a_saved_classifier_predicts_the_same_and_makes_no_samples(tmp_path):
    fitted = LocallyLinearMaps(**TINY).fit(images(), BUDGET, out=tmp_path / "run")
    again = LocallyLinearMaps.load(tmp_path / "run")
    assert again.get_params() == fitted.get_params()
    assert np.array_equal(again.predict_proba(images(9)), fitted.predict_proba(images(9)))
    assert again.statement_ == fitted.statement_
    assert (tmp_path / "run" / "samples.png").exists()
    with pytest.raises(BadInput, match="makes no samples"):
        load(tmp_path / "run").sample(3)
    files = {p.name for p in (tmp_path / "run").iterdir()}
    assert files == {"run.sqlite", "run.lock", *EXPORTS}


def test_the_log_tells_steps_only():
    fitted = LinearMaps(**TINY).fit(images(), BUDGET)
    assert fitted.log_
    assert {key for record in fitted.log_ for key in record} <= {"event", "step", "steps"}


def test_an_interrupted_fit_goes_on_where_it_was(tmp_path, monkeypatch):
    import sfumato.methods.llm as module

    honest, count = module._Adam.move, []

    def fails_once(self, *rest):
        count.append(rest[-1])
        if len(count) == 6:
            raise KeyboardInterrupt
        honest(self, *rest)

    monkeypatch.setattr(module._Adam, "move", fails_once)
    with pytest.raises(KeyboardInterrupt):
        LocallyLinearMaps(**TINY).fit(images(), BUDGET, out=tmp_path / "run")
    fitted = LocallyLinearMaps(**TINY).fit(images(), BUDGET, out=tmp_path / "run", resume=True)
    assert count == [1, 2, 3, 4, 5, 6, *range(1, 9)]  # no checkpoint yet: answers are given again
    assert fitted.statement_.epsilon <= BUDGET.epsilon
    assert LocallyLinearMaps.load(tmp_path / "run").get_params() == fitted.get_params()


def test_two_fits_with_one_seed_differ_because_noise_has_none():
    first, second = (LocallyLinearMaps(**TINY, seed=3).fit(images(), BUDGET) for _ in range(2))
    assert not np.array_equal(first.coef_, second.coef_)


def test_senseless_settings_are_refused_before_a_row_is_read():
    with pytest.raises(BadInput, match="llm's basis must be one of frequencies, random"):
        LocallyLinearMaps(basis="wavelets").fit(images(), BUDGET)
    with pytest.raises(BadInput, match="epochs ÷ rate are more than"):
        LocallyLinearMaps(rate=1e-9).fit(images(), BUDGET)


def test_what_a_classifier_cannot_do_it_says():
    with pytest.raises(BadInput, match="no labels"):
        LocallyLinearMaps().fit(Dataset.from_arrays(images(9).images), BUDGET)
    with pytest.raises(BadInput, match="second argument is a Budget"):
        LocallyLinearMaps().fit(images(9))
    with pytest.raises(BadInput, match="differ from the budget"):
        LocallyLinearMaps(epsilon=9.0).fit(images(9), BUDGET)
    with pytest.raises(NotFitted, match="has not been fitted"):
        LocallyLinearMaps().predict(images(9).images)
    fitted = LocallyLinearMaps(**TINY).fit(images(), BUDGET)
    with pytest.raises(BadInput, match="another kind"):
        fitted.predict(images(9, shape=(1, 9, 9)))
    with pytest.raises(BadInput, match="from 1 to 3"):
        fitted.explain(images(2), top=4)
    with pytest.raises(BadInput, match="no class with code"):
        fitted.explain(images(2), of=3)


# -- arrays, as scikit-learn has them ----------------------------------------------------------------------------------


def test_arrays_need_a_budget_and_public_classes():
    X, y = np.random.default_rng(0).random((50, 4)), np.arange(50) % 2
    with pytest.raises(BadInput, match="no budget"):
        LocallyLinearMaps(classes=2).fit(X, y)
    with pytest.raises(BadInput, match="which ones occur is private"):
        LocallyLinearMaps(epsilon=1.0, delta=1e-5).fit(X, y)
    with pytest.raises(BadInput, match="none of the stated"):
        LocallyLinearMaps(epsilon=1.0, delta=1e-5, classes=["a", "b"]).fit(
            X, np.where(y == 1, "a", "c")
        )


def test_a_stated_class_without_records_is_a_class_all_the_same():
    X, y = np.random.default_rng(0).random((50, 4)), np.array(["b", "d"])[np.arange(50) % 2]
    fitted = LocallyLinearMaps(**TINY, epsilon=1.0, delta=1e-5, classes=["d", "a", "b"]).fit(X, y)
    assert fitted.classes_.tolist() == ["a", "b", "d"]
    assert fitted.predict_proba(X).shape == (50, 3)
    assert set(fitted.predict(X)) <= {"a", "b", "d"}


def test_values_beyond_the_public_range_count_as_its_ends(tmp_path):
    X, y = np.random.default_rng(0).random((50, 4)), np.arange(50) % 2
    fitted = LocallyLinearMaps(**TINY, epsilon=2.0, delta=1e-5, classes=2, high=3.0).fit(X, y)
    assert np.array_equal(fitted.predict_proba(X * 0 + 7), fitted.predict_proba(X * 0 + 3))
    fitted.save(tmp_path / "run")
    again = LocallyLinearMaps.load(tmp_path / "run")
    assert np.array_equal(again.predict_proba(9 * X), fitted.predict_proba(9 * X))
    assert again.get_params() == {**fitted.get_params(), "classes": [0, 1]}


@pytest.mark.parametrize("labels", [["no", "yes"], [3, 7], [1.0, 2.0], [False, True]])
def test_a_saved_classifier_answers_with_the_labels_it_was_given(labels, tmp_path):
    X, y = np.random.default_rng(0).random((50, 4)), np.array(labels)[np.arange(50) % 2]
    fitted = LocallyLinearMaps(**TINY, epsilon=2.0, delta=1e-5, classes=labels)
    fitted.fit(X, y, out=tmp_path / "run")
    again = LocallyLinearMaps.load(tmp_path / "run")
    assert again.classes_.dtype == fitted.classes_.dtype == np.array(labels).dtype
    assert again.classes_.tolist() == labels
    assert np.array_equal(again.predict(X), fitted.predict(X))


def test_a_run_of_the_method_alone_is_a_classifier_too(tmp_path):
    method = LinearMaps(**TINY).fit(images(), BUDGET, out=tmp_path / "run")
    model = LocallyLinearMaps.load(tmp_path / "run")
    assert model.statement_ == method.statement_
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.n_iter_ == 8
    assert 0 <= model.score(images(30)) <= 1


def test_the_statement_counts_steps_and_speaks_of_no_generator():
    told = LinearMaps(**TINY).fit(images(), BUDGET).statement_.paragraph()
    assert "8 noisy sums (“gradients” in 8 steps)" in told
    assert "generator" not in told and "synthetic" not in told


def test_a_fit_that_fails_leaves_nothing_of_the_one_before():
    fitted = LocallyLinearMaps(**TINY).fit(images(), BUDGET)
    with pytest.raises(BadInput, match="maps must be"):
        fitted.set_params(maps=0).fit(images(), BUDGET)
    with pytest.raises(NotFitted):
        fitted.predict(images(3))
    assert not hasattr(fitted, "statement_")


def test_images_may_come_as_arrays_too():
    data = images(300)
    fitted = LocallyLinearMaps(
        maps=2, rate=0.3, epochs=10, epsilon=100.0, delta=1e-4, classes=3
    ).fit(data.images[:, 0], data.labels)
    assert fitted.score(images(60, seed=9).images, images(60, seed=9).labels) > 0.9
    assert fitted.schema_.shape == (1, 8, 8)


# What scikit-learn asks for and privacy does not allow: each of these fits twice and wants the same classifier.
_NO_SEED = "privacy noise has no seed, so two fits to the same records differ"
EXPECTED_FAILURES = dict.fromkeys(
    ("check_fit_idempotent", "check_supervised_y_2d", "check_classifier_data_not_an_array"),
    _NO_SEED,
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


def test_a_clone_has_the_same_settings_and_nothing_learnt():
    fitted = LocallyLinearMaps(**TINY, classes=3).fit(images(), BUDGET)
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "statement_")
    assert copy.set_params(beta=2.0).beta == 2.0


def test_the_classifier_has_the_methods_settings_and_no_others():
    own = {"epsilon", "delta", "neighbours", "classes", "low", "high"}
    told = LocallyLinearMaps().get_params()
    assert {k: v for k, v in told.items() if k not in own} == LinearMaps().get_params()
    assert repr(LocallyLinearMaps(maps=3)) == "LocallyLinearMaps(maps=3)"
    with pytest.raises(TypeError, match="no setting mapz"):
        LocallyLinearMaps(mapz=3)


def test_it_is_listed_as_a_classifier():
    info = LinearMaps.info
    assert info in sfumato.list_methods()
    assert info.makes == "classifier"


def test_a_run_says_whose_it_is(tmp_path):
    LocallyLinearMaps(**TINY).fit(table(), BUDGET, out=tmp_path / "run")
    assert read_json(tmp_path / "run" / "config.json")["method"] == "llm"
    assert not (tmp_path / "run" / "samples.png").exists()


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    LocallyLinearMaps(**TINY).fit(images(), BUDGET, out=folder / "images")
    LocallyLinearMaps(**TINY).fit(table(), BUDGET, out=folder / "table")
    images(12).save(folder / "some.npz")
    table(12).save(folder / "some.csv")
    return folder


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
    done = run(
        runs / "images", "--data", runs / "some.npz", "--out", tmp_path / "w.png", "--json", "-q"
    )
    told = json.loads(done.stdout)["records"]
    assert len(told) == 8 and len(told[0]["maps"]) == 3


def test_the_command_says_what_it_cannot_do(runs, tmp_path):
    with pytest.raises(BadInput, match="end --out with"):
        run(runs / "images", "--out", tmp_path / "why.gif")
    with pytest.raises(BadInput, match="no record number"):
        run(
            runs / "images", "--data", runs / "some.npz", "--first", 99, "--out", tmp_path / "a.png"
        )
    sfumato.Merf(features=16, steps=2, batch=6, hidden=4).fit(
        images(), BUDGET, out=tmp_path / "merf"
    )
    with pytest.raises(BadInput, match="no explanations"):
        run(tmp_path / "merf", "--out", tmp_path / "why.png")
