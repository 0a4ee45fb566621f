"""Class by class: held against scikit-learn; shares and no counts; the area under the ROC curve of images."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sklearn.metrics import confusion_matrix, precision_score, recall_score, roc_auc_score

from data import digits, stripes
from sfumato import published
from sfumato.cli.main import app
from sfumato.errors import BadInput
from sfumato.evaluation import evaluate
from sfumato.evaluation.classifiers import ConvNet, LogisticRegression
from sfumato.evaluation.metrics import ByClass


def test_the_shares_are_scikit_learns():
    draw = np.random.default_rng(0)
    real = draw.integers(0, 4, 300)
    predicted = np.where(draw.uniform(size=300) < 0.6, real, draw.integers(0, 3, 300))
    told = ByClass.of(torch.from_numpy(real), torch.from_numpy(predicted), "abcd")
    assert np.allclose(
        told.confusion, confusion_matrix(real, predicted, normalize="true"), atol=5e-5
    )
    assert np.allclose(told.recall, recall_score(real, predicted, average=None), atol=5e-5)
    assert np.allclose(told.precision, precision_score(real, predicted, average=None), atol=5e-5)
    assert ByClass.from_json(json.loads(json.dumps(told.to_json()))) == told


def test_a_class_without_records_or_guesses_has_no_share():
    told = ByClass.of(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), "abc")
    assert told.recall == (0.5, 1.0, None) and told.precision == (1.0, 0.5, None)
    assert told.confusion == ((0.5, 0.5, 0.0), (0.0, 1.0, 0.0), (None, None, None))
    assert told.rows()[0] == ("a", "0.5000", "1.0000", "b (0.5000)")
    assert told.rows()[2] == ("c", "–", "–", "–")


def test_of_many_classes_the_confusion_stays_out_of_files():
    codes = torch.arange(60)
    told = ByClass.of(codes, codes, [str(code) for code in range(60)])
    assert "confusion" not in told.to_json()
    assert ByClass.from_json(told.to_json()).rows()[7][:3] == ("7", "1.0000", "1.0000")


@pytest.fixture(scope="module")
def found():
    real, train = stripes(90, 1), stripes(60, 2)
    return evaluate(train, real, metrics=("accuracy.logreg", "roc.logreg")), real


def test_every_accuracy_is_told_by_class_and_may_be_published(found):
    result, real = found
    told = result.by_class("accuracy.logreg")
    shares = np.bincount(real.labels) / len(real)
    assert np.dot(told.recall, shares) == pytest.approx(result["accuracy.logreg"].value, abs=1e-4)
    with pytest.raises(BadInput, match="accuracy"):
        result.by_class("roc.logreg")
    told = result.to_json()
    published.check("metrics", told)
    assert told["metrics"][0]["badge"] and told["metrics"][0]["by_class"]["classes"] == [
        "0",
        "1",
        "2",
    ]


@pytest.mark.parametrize(
    ("classes", "name", "build"), [(2, "cnn", ConvNet), (3, "logreg", LogisticRegression)]
)
def test_the_area_of_images_is_that_of_the_scores(classes, name, build):
    """Noise on both sides, so that the ranking is neither perfect nor by chance; held against scikit-learn's own."""
    draw = np.random.default_rng(5)

    def noisy(seed):
        data = stripes(90, seed, classes=classes)
        images = np.clip(data.images + draw.normal(0, 0.6, data.images.shape), 0, 1)
        return type(data).from_arrays(images.astype(np.float32), data.labels, classes=classes)

    train, real = noisy(1), noisy(2)
    classifier = build(0)
    classifier.fit(torch.tensor(train.images), torch.tensor(train.labels), classes, lambda _: None)
    scores = classifier.scores(torch.tensor(real.images)).numpy()
    ranked = scores[:, -1] if classes == 2 else scores
    wanted = roc_auc_score(real.labels, ranked, multi_class="ovr")
    found = evaluate(train, real, metrics=f"roc.{name}")[f"roc.{name}"]
    assert found.value == pytest.approx(wanted, abs=0.02)
    assert 0.5 < wanted < 1


def test_the_command_prints_classes(tmp_path):
    digits(150).save(tmp_path / "a.npz")
    arguments = ["evaluate", str(tmp_path / "a.npz"), "--real", str(tmp_path / "a.npz")]
    arguments += ["--metrics", "accuracy.logreg", "--by-class", "-q"]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0, told.output
    assert "accuracy.logreg by class" in told.output and "Most often taken for" in told.output
