"""Downstream tests: a classifier is trained on synthetic records only and scored on real ones.

This is the number of the papers ("train on synthetic, test on real"): accuracy, and for tables the area under the ROC curve,
average precision (PRC) and F1, with the twelve classifiers of the papers and the mean over them; a convolutional network
for images, ResNet9 for colour; and accuracy as a function of the synthetic set's size. Each classifier is trained once
for all its metrics. The classifiers never see a real record before the score; the score itself measures real records and is not
covered by ε. Its 95 % interval says how far a finite test set pins the number down; it does not include the chance in
the training of generator or classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.evaluation.classifiers import (
    Classifier,
    ConvNet,
    ImageNetwork,
    LogisticRegression,
    ResNet9,
    encoder,
)
from sfumato.evaluation.metrics import (
    Array,
    ByClass,
    Comparison,
    Family,
    Measurement,
    Preset,
    Step,
    around,
    colour,
    first_few,
    in_short,
    joined,
    normal,
    register,
)
from sfumato.evaluation.twelve import TWELVE, has_xgboost

_REPLICATES = 100
SIZES = (100, 300, 1000, 3000, 10_000, 30_000)


@dataclass(frozen=True)
class Outcome:
    """What a classifier says about the real records, in codes of the schema's classes."""

    predicted: torch.Tensor  # (n,)
    scores: torch.Tensor | None  # (n, classes); classes that the synthetic data lack score lowest
    notes: tuple[str, ...]


def _outcome(
    comparison: Comparison, name: str, build: Callable[[int], Classifier], seed: int, step: Step
) -> Outcome:
    left = 1.0

    def counted(share: float) -> None:
        nonlocal left
        left -= share
        step(share)

    found = comparison.once(
        ("classifier", name, seed),
        lambda: train_on(comparison, build(seed), comparison.synthetic, counted),
    )
    step(max(0.0, left))
    return found


def train_on(
    comparison: Comparison,
    classifier: Classifier,
    given: tuple[torch.Tensor, torch.Tensor | None],
    step: Step,
) -> Outcome:
    schema = comparison.schema
    if not schema.labelled:
        raise BadInput(
            "Accuracy needs labelled data and these have no classes; open both data sets with their classes."
        )
    rows, labels = given
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
        notes.append(
            f"the synthetic data have no records of {first_few(absent)}, so real records of "
            f"{'this class' if len(absent) == 1 else 'these classes'} all count as errors"
        )
    if bool((rows == rows[:1]).all()):
        notes.append("all synthetic records are the same")
    prepare = encoder(schema, rows)
    codes = torch.searchsorted(present, labels)
    real_rows = prepare(comparison.real[0])
    if isinstance(classifier, ImageNetwork):
        classifier.precision = comparison.precision
        notes += filter(None, [in_short(comparison.precision)])
    try:
        classifier.fit(prepare(rows), codes, len(present), step)
        predicted = present[classifier.predict(real_rows)]
        scores = _spread(schema, present, getattr(classifier, "scores", None), real_rows)
    except (ValueError, np.linalg.LinAlgError):
        # A degenerate set (constant records, say) must not end an evaluation of many metrics.
        notes.append(
            "the classifier cannot be fitted to these data, so it answers with the commonest class"
        )
        predicted = labels.mode().values.expand(len(real_rows))
        scores = torch.zeros(len(real_rows), schema.n_classes, dtype=torch.float64)
    return Outcome(predicted, scores, tuple(notes))


def _spread(
    schema: Schema,
    present: torch.Tensor,
    scorer: Callable[[torch.Tensor], torch.Tensor] | None,
    rows: torch.Tensor,
) -> torch.Tensor | None:
    """Scores of the classes present, put in the columns of all classes."""
    if scorer is None:
        return None
    found = scorer(rows).double()
    if found.shape[1] == 1:
        found = torch.cat([-found, found], 1)
    full = torch.full((len(rows), schema.n_classes), float(found.min()), dtype=torch.float64)
    full[:, present] = found
    return full


# ------------------------------------------------------------------------- accuracy


def _accuracy(
    name: str, build: Callable[[int], Classifier], comparison: Comparison, seed: int, step: Step
) -> Measurement:
    _need_xgboost(name)
    outcome = _outcome(comparison, name, build, seed, step)
    labels = comparison.real[1]
    assert labels is not None
    told = ByClass.of(labels, outcome.predicted, comparison.schema.classes)
    return replace(_share_right(comparison, outcome), by_class=told)


def _accuracy_of_twelve(name: str, comparison: Comparison, seed: int, step: Step) -> Measurement:
    return _accuracy(name, TWELVE[name].build(comparison.schema), comparison, seed, step)


def _share_right(comparison: Comparison, outcome: Outcome, *more: str) -> Measurement:
    labels = comparison.real[1]
    assert labels is not None
    return Measurement.of_hits(outcome.predicted == labels, *outcome.notes, *more)


def _need_xgboost(name: str) -> None:
    if name == "xgb" and not has_xgboost():
        raise BadInput(
            "This metric needs xgboost, which is not installed; install sfumato[xgboost] or leave it out."
        )


def _twelve(
    comparison: Comparison, seed: int, step: Step
) -> tuple[dict[str, Outcome], tuple[str, ...]]:
    """The outcomes of the classifiers at hand, and what to remark."""
    names = [name for name in TWELVE if name != "xgb" or has_xgboost()]
    found = {
        name: _outcome(
            comparison,
            name,
            TWELVE[name].build(comparison.schema),
            seed,
            lambda share: step(share / len(names)),
        )
        for name in names
    }
    notes = dict.fromkeys(note for outcome in found.values() for note in outcome.notes)
    if len(names) < len(TWELVE):
        notes["the mean is over 11 classifiers: xgboost is not installed"] = None
    return found, tuple(notes)


def _mean_accuracy(comparison: Comparison, seed: int, step: Step) -> Measurement:
    found, notes = _twelve(comparison, seed, step)
    labels = comparison.real[1]
    assert labels is not None
    right = torch.stack([outcome.predicted.eq(labels) for outcome in found.values()]).double()
    # A real record is the unit of chance: it is hard or easy for all classifiers at once.
    each = right.mean(0).numpy()
    return Measurement.of_share(float(each.mean()), normal(each), *notes)


# ------------------------------------------------------------------------- ROC, PRC, F1

Score = Callable[[Array, Outcome, Array], float]  # real labels, outcome, weights of the records


def _by_class(
    score: Callable[..., float], hard: bool, labels: Array, outcome: Outcome, weights: Array
) -> float:
    """The score of the second of two classes, or the mean over classes, each against the rest."""
    assert outcome.scores is not None
    classes = outcome.scores.shape[1]
    values = []
    for code in range(classes) if classes > 2 else (1,):
        truth = labels == code
        if not (weights[truth].any() and weights[~truth].any()):
            continue  # without both there is nothing to rank
        ranked = (outcome.predicted == code).double() if hard else outcome.scores[:, code]
        values.append(score(truth, ranked.numpy(), sample_weight=weights))
    return float(np.mean(values)) if values else 0.5


def _f1(average: str, labels: Array, outcome: Outcome, weights: Array) -> float:
    assert outcome.scores is not None
    two = outcome.scores.shape[1] == 2 and average != "weighted"
    return float(
        f1_score(
            labels,
            outcome.predicted.numpy(),
            labels=None if two else np.unique(labels),
            average="binary" if two else average,
            sample_weight=weights,
            zero_division=0.0,
        )
    )


_TRAINED = (
    "Each classifier is trained on synthetic records only and scored on real ones; more is better."
)
_ROC, _PRC = "Area under the ROC curve", "Average precision"


@dataclass(frozen=True)
class _Ranking:
    """A score of a classifier's ranking: its heading, what it is called in a sentence, and how it is computed."""

    title: str
    described: str
    score: Score


_SCORES = {
    "roc": _Ranking(_ROC, "area under the ROC curve", partial(_by_class, roc_auc_score, False)),
    "prc": _Ranking(_PRC, "average precision", partial(_by_class, average_precision_score, False)),
    "f1": _Ranking("F1 score", "F1", partial(_f1, "macro")),
    # What the papers' code computes for sets of more than two classes.
    "f1-weighted": _Ranking(
        "F1 score, weighted by class", "F1 weighted by class", partial(_f1, "weighted")
    ),
    # The values in the papers' tables are these: their code scores `model.predict`, a curve through a single point.
    "roc-hard": _Ranking(
        f"{_ROC}, hard decisions",
        "area under the ROC curve of hard decisions",
        partial(_by_class, roc_auc_score, True),
    ),
    "prc-hard": _Ranking(
        f"{_PRC}, hard decisions",
        "average precision of hard decisions",
        partial(_by_class, average_precision_score, True),
    ),
}


def _replicates(
    comparison: Comparison, family: str, name: str, outcome: Outcome, seed: int, step: Step
) -> Array:
    """The score, then its bootstrap replicates; all classifiers see the same resamples, so that their mean has them too."""

    def compute() -> Array:
        labels = comparison.real[1]
        assert labels is not None
        real = labels.numpy()
        if len(np.unique(real)) < 2:
            raise BadInput(
                "All real records are of one class, so nothing can be ranked; give real records of both classes."
            )
        score = _SCORES[family].score
        draw = np.random.default_rng(seed)
        found = [score(real, outcome, np.ones(len(real)))]
        for _ in range(_REPLICATES):
            counts = draw.multinomial(len(real), np.full(len(real), 1 / len(real)))
            found.append(score(real, outcome, counts.astype(np.float64)))
            step(0.0)
        return np.array(found)

    return comparison.once(("score", family, name, seed), compute)


def _ranked(family: str, name: str, comparison: Comparison, seed: int, step: Step) -> Measurement:
    if name == "mean12":
        outcomes, notes = _twelve(comparison, seed, step)
    else:
        _need_xgboost(name)
        build = ConvNet if name == "cnn" else TWELVE[name].build(comparison.schema)
        outcome = _outcome(comparison, name, build, seed, step)
        outcomes, notes = {name: outcome}, outcome.notes
    found = np.mean(
        [_replicates(comparison, family, n, o, seed, step) for n, o in outcomes.items()], axis=0
    )
    value = float(found[0])
    return Measurement.of_share(value, around(value, found[1:]), *notes)


# ------------------------------------------------------------------------- size of the synthetic set


def _some(
    given: tuple[torch.Tensor, torch.Tensor | None], size: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    rows, labels = given
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(rows))[:size])
    return rows[order], None if labels is None else labels[order]


def _curve(size: int, comparison: Comparison, seed: int, step: Step) -> Measurement:
    given = comparison.synthetic
    outcome = train_on(comparison, LogisticRegression(seed), _some(given, size, seed), step)
    short = f"the set has {len(given[0]):,} records only" if len(given[0]) < size else ""
    return _share_right(comparison, outcome, short)


def _effective(comparison: Comparison, seed: int, step: Step) -> Measurement:
    """How many real training records teach a logistic regression as much as the whole synthetic set does."""
    size, ladder = len(comparison.train[0]), (30, *SIZES)
    if comparison.tells_size("train"):
        sizes = sorted({min(s, size) for s in ladder} | {size})
    else:  # the answer may be the largest of them, so none is the number of records
        sizes = [s for s in ladder if s <= size] or [ladder[0]]
    share = 1.0 / (len(sizes) + 1)

    def part(done: float) -> None:
        step(done * share)

    own = _outcome(comparison, "logreg", LogisticRegression, seed, part)
    reached = _share_right(comparison, own)
    curve = []
    for some in sizes:
        try:
            outcome = train_on(
                comparison, LogisticRegression(seed), _some(comparison.train, some, seed), part
            )
        except BadInput:  # a small draw may be of one class
            part(1.0)
            curve.append(0.0)
            continue
        curve.append(_share_right(comparison, outcome).value)
    rising = np.maximum.accumulate(curve) + 1e-9 * np.arange(len(curve))

    def size_for(accuracy: float) -> float:
        return float(np.exp(np.interp(accuracy, rising, np.log(sizes))))

    note = ""
    if reached.value >= rising[-1]:
        whole = "the whole training set" if comparison.tells_size("train") else "the most looked at"
        note = f"as good as {whole}, so this is a lower bound"
    elif reached.value <= rising[0]:
        note = f"worse than {sizes[0]} real records, so this is an upper bound"
    loud = "READS THE REAL TRAINING DATA: it measures them, so publish it only where that is acceptable"
    low, high = size_for(reached.low), size_for(reached.high)
    return Measurement(size_for(reached.value), low, high, joined((loud, note, *own.notes)))


# ------------------------------------------------------------------------- names


def _papers(schema: Schema) -> Sequence[Preset]:
    return ("paper",) if schema.kind == "images" else ()


def labelled(schema: Schema) -> bool:
    return schema.labelled


def _labelled_for_xgboost(schema: Schema) -> bool:
    return schema.labelled and has_xgboost()


def _quick_or_papers(schema: Schema) -> Sequence[Preset]:
    return ("quick", *_papers(schema))


_register_accuracy = partial(register, family=Family("Accuracy", _TRAINED, "%"))
_MEAN = "mean of the twelve classifiers"


def _register_twelve(name: str, presets: Callable[[Schema], Sequence[Preset]]) -> None:
    kind = TWELVE[name]
    _register_accuracy(
        f"accuracy.{name}",
        f"accuracy of {kind.described} trained on the synthetic data",
        title=kind.title,
        presets=presets,
        where=_labelled_for_xgboost if name == "xgb" else labelled,
    )(partial(_accuracy_of_twelve, name))


for _name in ("logreg", "mlp"):
    _register_twelve(_name, _quick_or_papers)
_register_accuracy(
    "accuracy.cnn",
    "accuracy of a small convolutional network trained on the synthetic data",
    title="convolutional network",
    kinds=("images",),
    presets=_quick_or_papers,
    where=labelled,
)(partial(_accuracy, "cnn", ConvNet))
for _name in TWELVE:
    if _name not in ("logreg", "mlp"):
        _register_twelve(_name, _papers)
_register_accuracy(
    "accuracy.mean12",
    "mean accuracy of the twelve classifiers of the papers",
    title=_MEAN,
    presets=_papers,
    where=labelled,
)(_mean_accuracy)
_register_accuracy(
    "accuracy.resnet9",
    "accuracy of ResNet9 trained on the synthetic data",
    title="residual network",
    kinds=("images",),
    presets=("paper",),
    where=lambda schema: schema.labelled and colour(schema),
)(partial(_accuracy, "resnet9", ResNet9))


def _table_preset(family: str, schema: Schema) -> Sequence[Preset]:
    """The papers give ROC and PRC for two classes, F1 for more, and of images none of them."""
    if schema.kind == "images":
        return ()
    ranked = ("roc", "prc", "roc-hard", "prc-hard")
    wanted = ("f1", "f1-weighted") if schema.n_classes > 2 else ranked
    return ("paper",) if family in wanted else ()


# Of images, these scores of the classifiers that `quick` trains anyway.
_OF_IMAGES = ("roc", "prc", "f1")
for _prefix, _ranking in _SCORES.items():
    _family = Family(_ranking.title, _TRAINED, "share")
    if _prefix in _OF_IMAGES:
        register(
            f"{_prefix}.cnn",
            f"{_ranking.described}, a small convolutional network trained on the synthetic data",
            title="convolutional network",
            family=_family,
            kinds=("images",),
            where=labelled,
        )(partial(_ranked, _prefix, "cnn"))
    for _name in (*TWELVE, "mean12"):
        _mean = _name == "mean12"
        _who = "the mean of the twelve" if _mean else TWELVE[_name].described
        register(
            f"{_prefix}.{_name}",
            f"{_ranking.described}, {_who} trained on the synthetic data",
            title=_MEAN if _mean else TWELVE[_name].title,
            family=_family,
            kinds=("table", "images")
            if _prefix in _OF_IMAGES and _name in ("logreg", "mlp")
            else ("table",),
            presets=partial(_table_preset, _prefix),
            where=_labelled_for_xgboost if _name == "xgb" else labelled,
        )(partial(_ranked, _prefix, _name))

_register_curve = partial(
    register,
    family=Family(
        "Accuracy by the number of records",
        "A logistic regression trained on so many synthetic records and scored on real ones; and how many real records "
        "would teach it as much.",
        "%",
    ),
    where=labelled,
)
for _size in SIZES:
    _register_curve(
        f"curve.{_size}",
        f"accuracy of a logistic regression trained on {_size:,} of the synthetic records",
        title=f"{_size:,} records",
    )(partial(_curve, _size))
_register_curve(
    "curve.effective",
    "how many real training records teach a logistic regression as much; reads the training data",
    title="worth so many real records",
    reads="train",
)(_effective)
