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
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression as ReferenceRegression
from sklearn.neural_network import MLPClassifier

from sfumato import published
from sfumato.data import Column, Dataset, Schema
from sfumato.errors import BadInput
from sfumato.evaluation import default_metrics, evaluate, list_metrics, wilson
from sfumato.evaluation.classifiers import ConvNet, LogisticRegression, Perceptron
from sfumato.progress import Progress, Stage

FAST = ("accuracy.logreg",)


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    images, codes = load_digits(return_X_y=True)
    return torch.from_numpy(images / 16.0).float().view(-1, 1, 8, 8), torch.from_numpy(codes)


def images_of(
    codes: np.ndarray,
    classes: int = 3,
    size: int = 8,
    channels: int = 1,
    name: str = "made",
    seed: int = 0,
) -> Dataset:
    """Images that are easy to tell apart: a bright row whose place is the class, in noise."""
    draw = np.random.default_rng(seed)
    pixels = draw.uniform(0, 0.3, (len(codes), channels, size, size)).astype(np.float32)
    pixels[np.arange(len(codes)), :, codes] += 0.6
    return Dataset.from_arrays(pixels, codes, classes=classes, name=name)


def cycle(n: int, classes: int = 3) -> np.ndarray:
    return np.arange(n) % classes


# ------------------------------------------------------------------------- the same models


@pytest.mark.parametrize("classes", [10, 2], ids=["ten classes", "two classes"])
def test_logistic_regression_finds_the_optimum_of_scikit_learn(digits, classes):
    rows, codes = digits
    rows, codes = rows[codes < classes], codes[codes < classes]
    ours = LogisticRegression()
    ours.tolerance = 1e-7
    ours.fit(rows, codes, classes, lambda _: None)
    theirs = ReferenceRegression(max_iter=5000, tol=1e-8).fit(
        rows.flatten(1).double().numpy(), codes
    )
    np.testing.assert_allclose(ours.weight_.numpy(), theirs.coef_, atol=2e-3)
    assert (ours.predict(rows).numpy() == theirs.predict(rows.flatten(1).numpy())).mean() > 0.999


def test_logistic_regression_stops_where_scikit_learn_stops(digits):
    rows, codes = digits
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


def test_decorrelating_the_pixels_does_not_move_the_optimum(digits):
    rows, codes = digits
    found = []
    for widest in (0, 4096):
        model = LogisticRegression()
        model.tolerance, model.widest_decorrelated = 1e-6, widest
        model.fit(rows, codes, 10, lambda _: None)
        found.append(model.weight_)
    torch.testing.assert_close(found[0], found[1], atol=5e-3, rtol=0)


@pytest.mark.parametrize("classes", [10, 2], ids=["ten classes", "two classes"])
def test_perceptron_has_the_training_curve_of_scikit_learn(digits, classes):
    rows, codes = digits
    rows, codes = rows[codes < classes], codes[codes < classes]
    ours = Perceptron(seed=3)
    ours.epochs = 25
    ours.fit(rows, codes, classes, lambda _: None)
    theirs = MLPClassifier(max_iter=25, random_state=3)
    with pytest.warns(ConvergenceWarning):
        theirs.fit(rows.flatten(1).numpy(), codes.numpy())
    np.testing.assert_allclose(ours.loss_curve_, theirs.loss_curve_, rtol=1e-3)
    assert (ours.predict(rows).numpy() == theirs.predict(rows.flatten(1).numpy())).mean() > 0.999


def test_perceptron_stops_by_scikit_learns_rule(digits):
    rows, codes = digits
    rows, codes = rows[:60], (codes[:60] % 2)
    ours = Perceptron(seed=0)
    ours.tolerance = 0.02
    ours.fit(rows, codes, 2, lambda _: None)
    theirs = MLPClassifier(random_state=0, tol=0.02).fit(rows.flatten(1).numpy(), codes.numpy())
    assert len(ours.loss_curve_) == len(theirs.loss_curve_) < 200


def test_convnet_is_determined_by_its_seed_and_leaves_the_global_one_alone():
    rows, codes = torch.rand(64, 1, 8, 8), torch.arange(64) % 3
    before = torch.random.get_rng_state()
    outputs = []
    for seed in (1, 1, 2):
        model = ConvNet(seed)
        model.least_images = 128
        model.fit(rows, codes, 3, lambda _: None)
        outputs.append(model.network_(rows))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (3, 8, 8), (1, 9, 64), (3, 64, 2), (1, 28, 28), (3, 33, 47)]
)
def test_convnet_takes_any_channels_and_sizes(shape):
    rows, codes = torch.rand(6, *shape), torch.arange(6) % 4
    model = ConvNet()
    model.least_images = 6
    model.fit(rows, codes, 4, lambda _: None)
    assert model.predict(rows).shape == (6,)


# ------------------------------------------------------------------------- evaluate


def test_all_three_learn_what_can_be_learnt():
    held_out = images_of(cycle(150), name="held-out", seed=1)
    result = evaluate(images_of(cycle(300)), held_out, size_is_public=True)
    assert [m.name for m in result.metrics] == ["accuracy.logreg", "accuracy.mlp", "accuracy.cnn"]
    for metric in result:
        assert metric.value > 0.95
        assert metric.low < metric.value <= metric.high <= 1
        assert metric.source == "real data held-out (150 records); not covered by ε"
        assert metric.seconds > 0
        assert metric.note == ""


def test_labels_without_meaning_give_chance():
    shuffled = images_of(cycle(600))
    wrong = Dataset.from_arrays(
        shuffled.images, np.random.default_rng(0).permutation(cycle(600)), classes=3
    )
    metric = evaluate(wrong, images_of(cycle(600), seed=1), metrics=FAST)["accuracy.logreg"]
    assert metric.value < 0.6


def test_the_same_seed_gives_the_same_numbers_and_threads_are_given_back():
    threads = torch.get_num_threads()
    values = [
        [m.value for m in evaluate(images_of(cycle(90)), images_of(cycle(60), seed=1), seed=5)]
        for _ in range(2)
    ]
    assert values[0] == values[1]
    assert torch.get_num_threads() == threads


def test_metrics_json_has_the_agreed_fields():
    facts = evaluate(
        images_of(cycle(60)), images_of(cycle(30), seed=1), metrics=FAST, seed=4
    ).to_json()
    assert facts["synthetic"] == {"n": 60, "seed": 4}
    assert set(facts["metrics"][0]) == {"name", "value", "low", "high", "source", "badge"}
    assert facts["metrics_are"] == facts["metrics"][0]["badge"]
    assert "not covered by ε" in facts["metrics_are"]
    assert 0 <= facts["metrics"][0]["value"] <= 1
    published.check("metrics", facts)


def test_the_number_of_real_records_is_told_where_it_is_public_and_nowhere_else():
    synthetic, real, train = (
        images_of(cycle(n), name=name, seed=seed)
        for seed, (n, name) in enumerate([(60, "made"), (41, "held-out"), (317, "private")])
    )
    metrics = ["accuracy.logreg", "memorisation", "curve.effective"]

    def told(**how: bool) -> str:
        return json.dumps(evaluate(synthetic, real, metrics=metrics, train=train, **how).to_json())

    assert "(41 records)" in told(size_is_public=True)
    assert "(317 records)" in told(size_is_public=True)
    facts = json.loads(told())
    for metric in facts["metrics"]:
        words = f"{metric['source']} {metric.get('note')}"
        assert "held-out" in words and "records)" not in words
        assert "317" not in words and "41 " not in words
        # Not as a number either: the whole training set is no point of the curve.
        assert not {317.0} & {round(metric[key], 6) for key in ("value", "low", "high")}
    # A set published under a name has a number that anyone can look up.
    real.published_as = real.name = "digits:test"
    assert "digits:test (41 records)" in told() and "private (" not in told()


def test_classes_in_another_order_are_matched_by_name():
    codes = cycle(240)
    synthetic = images_of(codes)
    turned = Dataset.from_arrays(synthetic.images, (codes + 1) % 3, classes=["2", "0", "1"])
    assert (
        evaluate(turned, images_of(cycle(90), seed=1), metrics=FAST)["accuracy.logreg"].value > 0.95
    )


def test_an_absent_class_counts_as_errors_and_is_named():
    synthetic = Dataset.from_arrays(
        images_of(cycle(200, 2)).images, cycle(200, 2), classes=["cat", "dog", "ox"]
    )
    real = Dataset.from_arrays(
        images_of(cycle(90), seed=1).images, cycle(90), classes=["cat", "dog", "ox"]
    )
    for metric in evaluate(synthetic, real):
        assert metric.value == pytest.approx(2 / 3, abs=0.03)
        assert "no records of ox" in metric.note


def test_equal_images_are_scored_and_said_to_be_equal():
    flat = Dataset.from_arrays(np.full((40, 8, 8), 7, np.uint8), cycle(40, 2), classes=2)
    for metric in evaluate(flat, images_of(cycle(40, 2), classes=2)):
        assert metric.value == pytest.approx(0.5, abs=0.2)
        assert "the same" in metric.note


def test_a_family_name_stands_for_its_members_and_names_are_not_repeated():
    result = evaluate(
        images_of(cycle(30)), images_of(cycle(30)), metrics=("prdc-pixels.recall", "prdc-pixels")
    )
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


@pytest.fixture(scope="module")
def tables() -> tuple[Dataset, Dataset]:
    schema = Schema(
        kind="table",
        columns=(
            Column(name="age", kind="numerical", low=0, high=100, missing=True),
            Column(
                name="colour", kind="categorical", categories=("red", "green", "blue"), missing=True
            ),
            Column(name="size", kind="ordinal", categories=("s", "m", "l")),
        ),
        classes=("no", "yes"),
        label="bought",
    )

    def make(n: int, seed: int) -> Dataset:
        draw = np.random.default_rng(seed)
        values = np.stack(
            [
                draw.uniform(0, 100, n),
                draw.integers(0, 3, n).astype(float),
                draw.integers(0, 3, n).astype(float),
            ],
            1,
        )
        labels = ((values[:, 1] == 1) ^ (draw.uniform(size=n) < 0.02)).astype(np.int64)
        values[draw.uniform(size=n) < 0.1, 0] = np.nan
        return Dataset.from_values(values.astype(np.float32), labels, schema=schema, name="shop")

    return make(500, 0), make(300, 1)


def test_tables_are_scored_by_regression_and_perceptron(tables):
    result = evaluate(*tables)
    assert (
        [m.name for m in result]
        == list(default_metrics(tables[1].schema))
        == ["accuracy.logreg", "accuracy.mlp"]
    )
    # Only the middle category says yes: a code taken as a number could not be separated by a line.
    assert all(metric.value > 0.9 for metric in result)


def test_a_network_for_images_is_refused_on_tables(tables):
    with pytest.raises(
        BadInput, match=r"accuracy\.cnn does not exist for tables; choose from accuracy\.logreg"
    ):
        evaluate(*tables, metrics=("accuracy.cnn",))


# ------------------------------------------------------------------------- bad input


def test_an_unknown_metric_lists_the_known_ones():
    with pytest.raises(
        BadInput,
        match=r"accuracy\.cnm.*did you mean accuracy\.cnn.*accuracy\.logreg, accuracy\.mlp",
    ):
        evaluate(images_of(cycle(9)), images_of(cycle(9)), metrics=("accuracy.cnm",))
    with pytest.raises(BadInput, match="No metric was asked for"):
        evaluate(images_of(cycle(9)), images_of(cycle(9)), metrics=())


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (images_of(cycle(9), size=10), "10×10 with 1 channel and the real ones 8×8"),
        (
            images_of(cycle(9), channels=3),
            "8×8 with 3 channels and the real ones 8×8 with 1 channel",
        ),
        (images_of(cycle(9), classes=4), "only in one of them: 3"),
        (Dataset.from_arrays(np.zeros((9, 8, 8), np.uint8)), "different classes"),
        (images_of(np.zeros(9, np.int64)), "one class"),
    ],
    ids=["size", "channels", "classes", "unlabelled", "one class"],
)
def test_data_that_cannot_be_compared_are_refused_in_one_sentence(other, words):
    with pytest.raises(BadInput, match=words) as error:
        evaluate(other, images_of(cycle(9)))
    assert "\n" not in str(error.value)
    assert ";" in str(error.value)


def test_unlabelled_data_are_refused():
    bare = Dataset.from_arrays(np.zeros((9, 8, 8), np.uint8))
    with pytest.raises(BadInput, match="needs labelled data"):
        evaluate(bare, bare)


def test_images_against_a_table_are_refused(tables):
    with pytest.raises(BadInput, match="images and the real data tables"):
        evaluate(images_of(cycle(9)), tables[1])


class _Rows:
    """A source that hands out whatever it was given, as a broken file would."""

    random_access = True

    def __init__(self, values: np.ndarray, labels: np.ndarray) -> None:
        self.values, self.labels = values, labels

    def __len__(self) -> int:
        return len(self.values)

    def blocks(self, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(self), size):
            yield self.values[start : start + size], self.labels[start : start + size]

    def take(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.values[indices], self.labels[indices]


def broken(values: np.ndarray, labels: np.ndarray) -> Dataset:
    schema = Schema(kind="images", shape=(1, 8, 8), classes=("0", "1", "2"))
    return Dataset(_Rows(values, labels), schema, "broken")


def test_nan_strange_labels_and_nothing_are_refused():
    good = images_of(cycle(9))
    nan = good.images.copy()
    nan[4, 0, 2, 2] = math.nan
    with pytest.raises(BadInput, match="real images of broken hold NaN"):
        evaluate(good, broken(nan, cycle(9)))
    with pytest.raises(
        BadInput, match="labels of the synthetic data set broken are none of its classes"
    ):
        evaluate(broken(good.images, np.full(9, 7)), good)
    with pytest.raises(BadInput, match="synthetic data set broken is empty"):
        evaluate(broken(good.images[:0], cycle(0)), good)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(BadInput, match="The seed is"):
        evaluate(images_of(cycle(9)), images_of(cycle(9)), seed=seed)


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
        evaluate(images_of(cycle(3000)), images_of(cycle(30)), progress=Interrupting())
    assert started.is_set()
    assert not [t for t in threading.enumerate() if t.name.startswith("ThreadPoolExecutor")]


def test_progress_reaches_its_total():
    class Counting(Progress):
        done = 0.0

        @contextmanager
        def stage(self, title: str, total: float) -> Iterator[Stage]:
            counter = self

            class Count(Stage):
                def advance(self, amount: float = 1.0, **facts: float | str) -> None:
                    counter.done += amount

            yield Count()

    progress = Counting()
    evaluate(
        images_of(cycle(60)),
        images_of(cycle(30)),
        metrics=("accuracy.logreg", "accuracy.cnn"),
        progress=progress,
    )
    assert progress.done == pytest.approx(2.0)


@pytest.mark.slow
@pytest.mark.network
def test_trained_on_real_fashion_mnist_the_classifiers_reach_their_known_accuracy():
    from sfumato.data import load

    result = evaluate(load("fashion-mnist:train"), load("fashion-mnist:test"))
    assert result["accuracy.logreg"].value == pytest.approx(0.844, abs=0.015)
    assert result["accuracy.mlp"].value == pytest.approx(0.880, abs=0.015)
    assert result["accuracy.cnn"].value >= 0.90
