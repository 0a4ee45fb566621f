"""Evaluation: the classifiers are scikit-learn's, the numbers carry their interval and source, bad input is named."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression as ReferenceRegression
from sklearn.neural_network import MLPClassifier

from data import SHOP, digits, shop, stripes
from sfumato import Merf, published
from sfumato.data import Dataset
from sfumato.data.sources import ArraySource
from sfumato.errors import BadInput
from sfumato.evaluation import default_metrics, evaluate, list_metrics, wilson
from sfumato.evaluation.classifiers import LogisticRegression, Perceptron
from sfumato.progress import Progress, Stage

FAST = ("accuracy.logreg",)


@pytest.fixture(scope="module")
def rows_and_codes() -> tuple[torch.Tensor, torch.Tensor]:
    batch = digits().take(range(1797))
    return batch.pixels(), batch.labels


def cycle(n: int, classes: int = 3) -> np.ndarray:
    return np.arange(n) % classes


# ------------------------------------------------------------------------- the same models


@pytest.mark.parametrize(("classes", "widest"), [(10, 4096), (10, 0), (2, 4096)])
def test_logistic_regression_finds_the_optimum_of_scikit_learn(rows_and_codes, classes, widest):
    rows, codes = rows_and_codes
    rows, codes = rows[codes < classes], codes[codes < classes]
    ours = LogisticRegression()
    ours.tolerance, ours.widest_decorrelated = 1e-7, widest
    ours.fit(rows, codes, classes, lambda _: None)
    theirs = ReferenceRegression(max_iter=5000, tol=1e-8).fit(
        rows.flatten(1).double().numpy(), codes
    )
    np.testing.assert_allclose(ours.weight_.numpy(), theirs.coef_, atol=2e-3)
    assert (ours.predict(rows).numpy() == theirs.predict(rows.flatten(1).numpy())).mean() > 0.999


def test_logistic_regression_stops_where_scikit_learn_stops(rows_and_codes):
    rows, codes = rows_and_codes
    ours = LogisticRegression()
    ours.fit(rows, codes, 10, lambda _: None)
    theirs = ReferenceRegression(max_iter=5000).fit(rows.flatten(1).double().numpy(), codes)

    def objective(weight: np.ndarray, intercept: np.ndarray) -> float:
        logits = rows.flatten(1).double().numpy() @ weight.T + intercept
        losses = np.logaddexp.reduce(logits, 1) - logits[np.arange(len(codes)), codes]
        return float(losses.sum() + 0.5 * (weight**2).sum())

    best = objective(theirs.coef_, theirs.intercept_)
    found = objective(ours.weight_.double().numpy(), ours.intercept_.double().numpy())
    assert found == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("classes", [10, 2], ids=["ten classes", "two classes"])
def test_perceptron_has_the_training_curve_of_scikit_learn(rows_and_codes, classes):
    rows, codes = rows_and_codes
    rows, codes = rows[codes < classes], codes[codes < classes]
    ours = Perceptron(seed=3)
    ours.epochs = 25
    ours.fit(rows, codes, classes, lambda _: None)
    theirs = MLPClassifier(max_iter=25, random_state=3)
    with pytest.warns(ConvergenceWarning):
        theirs.fit(rows.flatten(1).numpy(), codes.numpy())
    np.testing.assert_allclose(ours.loss_curve_, theirs.loss_curve_, rtol=1e-3)
    assert (ours.predict(rows).numpy() == theirs.predict(rows.flatten(1).numpy())).mean() > 0.999


def test_perceptron_stops_by_scikit_learns_rule(rows_and_codes):
    rows, codes = rows_and_codes
    rows, codes = rows[:60], (codes[:60] % 2)
    ours = Perceptron(seed=0)
    ours.tolerance = 0.02
    ours.fit(rows, codes, 2, lambda _: None)
    theirs = MLPClassifier(random_state=0, tol=0.02).fit(rows.flatten(1).numpy(), codes.numpy())
    assert len(ours.loss_curve_) == len(theirs.loss_curve_) < 200


# ------------------------------------------------------------------------- evaluate


def test_all_three_learn_what_can_be_learnt():
    result = evaluate(stripes(300), stripes(150, 1), size_is_public=True)
    assert [m.name for m in result.metrics] == ["accuracy.logreg", "accuracy.mlp", "accuracy.cnn"]
    for metric in result:
        assert metric.value > 0.95
        assert metric.low < metric.value <= metric.high <= 1
        assert metric.source == "real data stripes-1 (150 records); not covered by ε"
        assert metric.seconds > 0
        assert metric.note == ""


def test_labels_without_meaning_give_chance():
    shuffled = np.random.default_rng(0).permutation(cycle(600))
    wrong = Dataset.from_arrays(stripes(600).images, shuffled, classes=3)
    metric = evaluate(wrong, stripes(600, 1), metrics=FAST)["accuracy.logreg"]
    assert metric.value < 0.6


def test_the_same_seed_gives_the_same_numbers_and_threads_are_given_back():
    threads = torch.get_num_threads()
    values = [[m.value for m in evaluate(stripes(90), stripes(60, 1), seed=5)] for _ in range(2)]
    assert values[0] == values[1]
    assert torch.get_num_threads() == threads


def test_metrics_json_has_the_agreed_fields():
    facts = evaluate(stripes(60), stripes(30, 1), metrics=FAST, seed=4).to_json()
    assert facts["synthetic"] == {"n": 60, "seed": 4}
    assert set(facts["metrics"][0]) == {
        "name",
        "value",
        "low",
        "high",
        "source",
        "badge",
        "by_class",
    }
    assert facts["metrics_are"] == facts["metrics"][0]["badge"]
    assert "not covered by ε" in facts["metrics_are"]
    assert 0 <= facts["metrics"][0]["value"] <= 1
    published.check("metrics", facts)


def test_the_number_of_real_records_is_told_where_it_is_public_and_nowhere_else():
    synthetic, real, train = stripes(60), stripes(41, 1), stripes(317, 2)
    metrics = ["accuracy.logreg", "memorisation", "curve.effective"]

    def told(**how: bool) -> str:
        return json.dumps(evaluate(synthetic, real, metrics=metrics, train=train, **how).to_json())

    assert "(41 records)" in told(size_is_public=True)
    assert "(317 records)" in told(size_is_public=True)
    facts = json.loads(told())
    for metric in facts["metrics"]:
        words = f"{metric['source']} {metric.get('note')}"
        assert "stripes-1" in words and "records)" not in words
        assert "317" not in words and "41 " not in words
        # Not as a number either: the whole training set is no point of the curve.
        assert not {317.0} & {round(metric[key], 6) for key in ("value", "low", "high")}
    # A set published under a name has a number that anyone can look up.
    real.published_as = real.name = "digits:test"
    assert "digits:test (41 records)" in told() and "stripes-2 (" not in told()


def test_real_records_come_from_anything_and_the_samples_tell_what_they_are(tmp_path):
    made, real = stripes(60, 0), stripes(45, 1)
    wanted = evaluate(made, real, metrics=FAST)["accuracy.logreg"].value
    assert real.labels is not None
    labels = torch.from_numpy(real.labels)
    real.save(tmp_path / "real.npz")
    for what in (
        (real.images, real.labels),
        (torch.from_numpy(real.images), labels),
        torch.utils.data.TensorDataset(torch.from_numpy(real.images), labels),
        tmp_path / "real.npz",
        str(tmp_path / "real.npz"),
    ):
        assert evaluate(made, what, metrics=FAST)["accuracy.logreg"].value == wanted
    told = evaluate(made, (real.images, real.labels), metrics=FAST).to_pandas()
    assert told.loc["accuracy.logreg", "value"] == wanted
    assert list(told.columns) == ["value", "low", "high", "source", "note"]


@pytest.mark.parametrize(
    ("made", "real", "words"),
    [
        (None, None, "given as a NoneType; pass a Dataset"),
        (np.zeros((9, 8, 8)), None, "as_dataset"),
        (Merf(), None, r"model\.sample"),
        (stripes(6), None, "None is no data set"),
        (stripes(6), 7, "An int is no data set"),
        (stripes(6), np.zeros((9, 8, 8), np.uint8), "labels"),
        (stripes(6), (np.zeros((9, 4, 4), np.uint8), cycle(9)), "make them agree"),
    ],
)
def test_what_is_no_data_set_gets_a_sentence(made, real, words):
    with pytest.raises(BadInput, match=words):
        evaluate(made, real, metrics=FAST)


def test_classes_in_another_order_are_matched_by_name():
    turned = Dataset.from_arrays(stripes(240).images, (cycle(240) + 1) % 3, classes=["2", "0", "1"])
    assert evaluate(turned, stripes(90, 1), metrics=FAST)["accuracy.logreg"].value > 0.95


def test_an_absent_class_counts_as_errors_and_is_named():
    names = ["cat", "dog", "ox"]
    two = Dataset.from_arrays(stripes(200, classes=2).images, cycle(200, 2), classes=names)
    for metric in evaluate(
        two, Dataset.from_arrays(stripes(90, 1).images, cycle(90), classes=names)
    ):
        assert metric.value == pytest.approx(2 / 3, abs=0.03)
        assert "no records of ox" in metric.note


def test_equal_images_are_scored_and_said_to_be_equal():
    flat = Dataset.from_arrays(np.full((40, 8, 8), 7, np.uint8), cycle(40, 2), classes=2)
    for metric in evaluate(flat, stripes(40, classes=2)):
        assert metric.value == pytest.approx(0.5, abs=0.2)
        assert "the same" in metric.note


def test_a_family_name_stands_for_its_members_and_names_are_not_repeated():
    result = evaluate(stripes(30), stripes(30), metrics=("prdc-pixels.recall", "prdc-pixels"))
    assert [m.name.removeprefix("prdc-pixels.") for m in result] == [
        "recall",
        "precision",
        "density",
        "coverage",
    ]
    assert {"accuracy.logreg", "accuracy.mlp", "accuracy.cnn"} <= {
        info.name for info in list_metrics()
    }


# ------------------------------------------------------------------------- tables


def purchases(n: int, seed: int) -> Dataset:
    """Only the middle colour buys: a code taken as a number could not be separated by a line."""
    rows = shop(n, seed).values
    wrong = np.random.default_rng(seed).uniform(size=n) < 0.02
    return Dataset.from_values(rows, ((rows[:, 1] == 1) ^ wrong).astype(np.int64), schema=SHOP)


def test_tables_are_scored_by_regression_and_perceptron():
    result = evaluate(purchases(500, 0), purchases(300, 1))
    names = ["accuracy.logreg", "accuracy.mlp"]
    assert [m.name for m in result] == list(default_metrics(SHOP)) == names
    assert all(metric.value > 0.9 for metric in result)


# ------------------------------------------------------------------------- bad input

BARE = Dataset.from_arrays(np.zeros((9, 8, 8), np.uint8))
ALIKE = Dataset.from_arrays(BARE.images, np.zeros(9, int), classes=3)


@pytest.mark.parametrize(
    ("make", "metrics", "words"),
    [
        (shop, "accuracy.cnn", r"cnn does not exist for tables; .*accuracy\.logreg"),
        (stripes, "accuracy.cnm", r"\.cnm.*did you mean accuracy\.cnn.*\.logreg, accuracy\.mlp"),
        (stripes, "acuracy", r"did you mean accuracy\? There are accuracy, roc, (?!.*marginals)"),
        (stripes, (), "No metric was asked for; choose from accuracy, roc"),
    ],
)
def test_a_metric_that_is_none_is_answered_with_those_that_are(make, metrics, words):
    with pytest.raises(BadInput, match=words):
        evaluate(make(9), make(9), metrics=metrics)


def test_what_was_not_measured_and_no_labels_get_a_sentence_and_no_time_is_shown():
    found = evaluate(stripes(20), stripes(20), metrics="accuracy.logreg")
    with pytest.raises(
        BadInput, match=r"'accuracy\.mlp' was not measured; there are accuracy\.logreg"
    ):
        found["accuracy.mlp"]
    assert "value=" in repr(found) and "seconds" not in repr(
        found
    )  # how long it took depends on the records
    with pytest.raises(BadInput, match=r"real records came without labels; pass a pair \(X, y\)"):
        evaluate(stripes(20), stripes(20).images)
    with pytest.raises(BadInput, match="networks are given as int"):
        evaluate(stripes(20), stripes(20), networks=3)
    with pytest.raises(BadInput, match="Progress is given as bool"):
        evaluate(stripes(20), stripes(20), progress=True)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (BARE, BARE, "needs labelled data"),
        (stripes(9), shop(9), "images and the real data tables"),
        (stripes(9, size=10), stripes(9), "10×10 with 1 channel and the real ones 8×8"),
        (stripes(9, channels=3), stripes(9), "3 channels and the real ones 8×8 with 1 channel"),
        (stripes(9, classes=4), stripes(9), "only in one of them: 3"),
        (BARE, stripes(9), "different classes"),
        (ALIKE, stripes(9), "one class"),
    ],
)
def test_data_that_cannot_be_compared_are_refused_in_one_sentence(first, second, words):
    with pytest.raises(BadInput, match=words) as error:
        evaluate(first, second)
    assert "\n" not in str(error.value)
    assert ";" in str(error.value)


def broken(values: np.ndarray, labels: np.ndarray) -> Dataset:
    """Whatever it is given, as a broken file would."""
    return Dataset(ArraySource(values, labels), stripes(3).schema, "broken")


def test_nan_strange_labels_and_nothing_are_refused():
    good = stripes(9)
    nan = good.images.copy()
    nan[4, 0, 2, 2] = math.nan
    with pytest.raises(BadInput, match="real images of broken hold NaN"):
        evaluate(good, broken(nan, cycle(9)))
    with pytest.raises(BadInput, match="labels of the synthetic data set broken are none of its"):
        evaluate(broken(good.images, np.full(9, 7)), good)
    with pytest.raises(BadInput, match="synthetic data set broken is empty"):
        evaluate(broken(good.images[:0], cycle(0)), good)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(BadInput, match="The seed is"):
        evaluate(stripes(9), stripes(9), seed=seed)


# ------------------------------------------------------------------------- intervals and stopping


@pytest.mark.parametrize(("right", "trials"), [(0, 10), (10, 10), (7, 10), (843, 1000), (1, 1)])
def test_wilson_ends_are_where_the_score_test_turns(right, trials):
    low, high = wilson(right, trials)
    share = right / trials
    assert 0 <= low <= share <= high <= 1

    def score(p: float) -> float:
        return (share - p) ** 2 - 1.959963984540054**2 * p * (1 - p) / trials

    if right:
        assert low == pytest.approx(brentq(score, 1e-12, share - 1e-9))
    if right < trials:
        assert high == pytest.approx(brentq(score, share + 1e-9, 1 - 1e-12))


def test_an_interrupt_stops_the_other_metrics_too():
    started = threading.Event()

    class Interrupting(Progress):
        @contextmanager
        def stage(self, title: str, total: float) -> Iterator[Stage]:
            class Stop(Stage):
                def advance(self, amount: float = 1.0, **facts: float | str) -> None:
                    started.set()
                    raise KeyboardInterrupt

            yield Stop()

    with pytest.raises(KeyboardInterrupt):
        evaluate(stripes(3000), stripes(30), progress=Interrupting())
    assert started.is_set()
    assert not [t for t in threading.enumerate() if t.name.startswith("ThreadPoolExecutor")]


@pytest.mark.slow
@pytest.mark.network
def test_trained_on_real_fashion_mnist_the_classifiers_reach_their_known_accuracy():
    from sfumato.data import load

    result = evaluate(load("fashion-mnist:train"), load("fashion-mnist:test"))
    assert result["accuracy.logreg"].value == pytest.approx(0.844, abs=0.015)
    assert result["accuracy.mlp"].value == pytest.approx(0.880, abs=0.015)
    assert result["accuracy.cnn"].value >= 0.90
