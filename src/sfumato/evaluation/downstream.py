"""Downstream accuracy: a classifier is trained on synthetic records only and scored on real ones.

This is the number of the papers ("train on synthetic, test on real"). The classifiers never see a real record before the
score; the score itself measures real records and is not covered by ε. Its 95 % interval (Wilson) says how far a finite
test set pins the accuracy down; it does not include the chance in the training of generator or classifier.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.evaluation.classifiers import Classifier, ConvNet, LogisticRegression, Perceptron
from sfumato.evaluation.metrics import Comparison, Measurement, Step, register, wilson


@register("accuracy.logreg", "accuracy of a logistic regression trained on the synthetic data")
def logreg(comparison: Comparison, seed: int, step: Step) -> Measurement:
    return _accuracy(comparison, LogisticRegression(seed), step)


@register(
    "accuracy.mlp", "accuracy of a perceptron (100 hidden units) trained on the synthetic data"
)
def mlp(comparison: Comparison, seed: int, step: Step) -> Measurement:
    return _accuracy(comparison, Perceptron(seed), step)


@register(
    "accuracy.cnn",
    "accuracy of a small convolutional network trained on the synthetic data",
    kinds=("images",),
)
def cnn(comparison: Comparison, seed: int, step: Step) -> Measurement:
    return _accuracy(comparison, ConvNet(seed), step)


def _accuracy(comparison: Comparison, classifier: Classifier, step: Step) -> Measurement:
    schema = comparison.schema
    if not schema.labelled:
        raise BadInput(
            "Accuracy needs labelled data and these have no classes; open both data sets with their classes."
        )
    rows, labels = comparison.synthetic
    assert labels is not None
    present = labels.unique()  # sorted codes of the classes that the synthetic data have
    if schema.n_classes < 2 or len(present) < 2:
        raise BadInput(
            f"All synthetic records are of one class ({schema.classes[int(present[0])]}), so there is nothing to "
            "learn; generate records of at least two classes."
        )
    notes = []
    if len(present) < schema.n_classes:
        absent = [name for code, name in enumerate(schema.classes) if code not in present]
        shown = ", ".join(absent[:5]) + (", …" if len(absent) > 5 else "")
        notes.append(
            f"the synthetic data have no records of {shown}, so real records of "
            f"{'this class' if len(absent) == 1 else 'these classes'} all count as errors"
        )
    if bool((rows == rows[:1]).all()):
        notes.append("all synthetic records are the same")
    prepare = _encoder(schema, rows)
    codes = torch.searchsorted(present, labels)
    classifier.fit(prepare(rows), codes, len(present), step)
    real_rows, real_labels = comparison.real
    assert real_labels is not None
    right = int((present[classifier.predict(prepare(real_rows))] == real_labels).sum())
    low, high = wilson(right, len(real_labels))
    return Measurement(right / len(real_labels), low, high, "; ".join(notes))


def _encoder(schema: Schema, rows: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Images as they are; a table's categories one-hot, its numbers standardised by the *synthetic* rows.

    A missing number becomes the mean and sets an extra column; a missing category sets none of its columns.
    """
    if schema.kind == "images":
        return lambda images: images
    means, scales = rows.nanmean(0), torch.ones(rows.shape[1])
    means = means.nan_to_num(0.0)
    deviations = (rows - means).square().nanmean(0).sqrt().nan_to_num(0.0)
    scales = torch.where(deviations > 0, deviations, torch.ones_like(deviations))

    def encode(table: torch.Tensor) -> torch.Tensor:
        parts = []
        for index, column in enumerate(schema.columns):
            values = table[:, index]
            absent = values.isnan()
            if column.kind == "categorical":
                codes = torch.arange(len(column.categories))
                parts.append((values[:, None] == codes).float())  # NaN equals nothing
                continue
            parts.append(((values - means[index]) / scales[index]).nan_to_num(0.0)[:, None])
            if column.missing:
                parts.append(absent.float()[:, None])
        return torch.cat(parts, 1)

    return encode
