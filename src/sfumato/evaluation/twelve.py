"""The twelve classifiers of the papers' downstream test, by name.

DP-MERF and DP-HP test images with the settings of the thesis, app. C, table 10, and tables with the defaults of scikit-learn 0.24
and xgboost 0.90 (their code). Logistic regression and the perceptron are the torch versions of `classifiers`, AdaBoost is our
own, the rest are scikit-learn's. xgboost is optional. Everything here is trained on synthetic rows and reads no real ones.

AdaBoost is that of the papers: boosted stumps by SAMME.R (Zhu et al. 2009, algorithm 4), scikit-learn's default until 1.5, which
has since dropped the variant, so it is rebuilt here. Where columns have few distinct values, as pixels do, a stump is
found from histograms: the same stump that scikit-learn's exact search over sorted columns finds, twenty times as fast.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from scipy.special import xlogy
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from sfumato.data import Schema
from sfumato.evaluation.classifiers import LogisticRegression, Perceptron, ScoringClassifier
from sfumato.evaluation.metrics import Array, Step

STUMPS = 1000  # of AdaBoost on images; minutes for 60,000 of 28×28
_MOST_VALUES = 256  # distinct ones of a column that histograms are made of
_TINY = np.finfo(np.float64).eps


# ------------------------------------------------------------------------- AdaBoost


class _Learner(Protocol):
    def fit(self, weights: Array, draw: np.random.RandomState) -> Any: ...


@dataclass(frozen=True)
class Stump:
    """One question, x[column] ≤ threshold, and the class probabilities after either answer."""

    column: int
    threshold: float
    leaves: Array  # (2, classes): answer yes, answer no

    def predict_proba(self, table: Array) -> Array:
        return self.leaves[(table[:, self.column] > self.threshold).astype(np.int64)]


class Histograms:
    """Finds the best stump for given weights: the split with the least weighted Gini impurity."""

    def __init__(self, values: list[Array], slots: Array, targets: Array, n_classes: int) -> None:
        self.values = values  # sorted distinct values of each column
        self.slots = slots  # (columns, n): place among the values · classes + class
        self.targets = targets
        self.n_classes = n_classes

    @classmethod
    def of(cls, table: Array, targets: Array, n_classes: int) -> Histograms | None:
        """None where a column has too many distinct values."""
        values = []
        slots = np.empty((table.shape[1], len(table)), np.uint16)
        if _MOST_VALUES * n_classes > np.iinfo(np.uint16).max:
            return None
        for column in range(table.shape[1]):
            found, places = np.unique(table[:, column], return_inverse=True)
            if len(found) > _MOST_VALUES:
                return None
            values.append(found)
            slots[column] = places * n_classes + targets
        return cls(values, slots, targets, n_classes)

    def fit(self, weights: Array, draw: np.random.RandomState) -> Stump:
        whole = np.bincount(self.targets, weights, minlength=self.n_classes)
        best, found = -np.inf, None
        for column in draw.permutation(len(self.slots)):  # which of two equal splits wins is chance
            values = self.values[column]
            if len(values) < 2:
                continue
            counts = np.bincount(
                self.slots[column], weights, minlength=len(values) * self.n_classes
            )
            counts = counts.reshape(len(values), self.n_classes)
            # Added up from either end: the difference to the whole would drown small weights, and here they span 16 digits.
            left, right = counts.cumsum(0)[:-1], counts[::-1].cumsum(0)[::-1][1:]
            # Least impurity is greatest Σ left²/Σ left + Σ right²/Σ right.
            score = sum(
                np.square(side).sum(1) / side.sum(1).clip(_TINY**2) for side in (left, right)
            )
            place = int(score.argmax())
            if score[place] > best:
                best = float(score[place])
                found = (int(column), place, left[place], right[place])
        if found is None:  # all records are the same
            return Stump(0, np.inf, np.stack([whole / whole.sum()] * 2))
        column, place, below, above = found
        threshold = (float(self.values[column][place]) + float(self.values[column][place + 1])) / 2
        sides = np.stack([below, above])
        return Stump(column, threshold, sides / sides.sum(1, keepdims=True).clip(_TINY**2))


class _Exact:
    """scikit-learn's stumps, for columns of any numbers."""

    def __init__(self, table: Array, targets: Array) -> None:
        self.table, self.targets = table, targets

    def fit(self, weights: Array, draw: np.random.RandomState) -> DecisionTreeClassifier:
        stump = DecisionTreeClassifier(max_depth=1, random_state=draw.randint(2**31 - 1))
        return stump.fit(self.table, self.targets, sample_weight=weights)


class AdaBoost:
    """Boosted stumps by SAMME.R; `rate` shrinks each step of the records' weights."""

    def __init__(self, seed: int = 0, stumps: int = 50, rate: float = 1.0) -> None:
        self.seed = seed
        self.stumps = stumps
        self.rate = rate

    def fit(self, rows: torch.Tensor, codes: torch.Tensor, n_classes: int, step: Step) -> None:
        table, targets = rows.flatten(1).numpy(), codes.numpy()
        learner: _Learner = Histograms.of(table, targets, n_classes) or _Exact(table, targets)
        draw = np.random.RandomState(self.seed)
        weights = np.full(len(table), 1.0 / len(table))
        coding = np.full((len(table), n_classes), -1.0 / (n_classes - 1))
        coding[np.arange(len(table)), targets] = 1.0
        self.n_classes_ = n_classes
        self.stumps_: list[Any] = []
        done = 0.0
        for _ in range(self.stumps):
            # Without a floor, records once classified well never count again (scikit-learn's own remedy from 1.0 on).
            weights = weights.clip(_TINY, None)
            stump = learner.fit(weights, draw)
            self.stumps_.append(stump)
            step(1.0 / self.stumps)
            done += 1.0 / self.stumps
            probability = stump.predict_proba(table).clip(_TINY, None)
            if not ((probability.argmax(1) != targets) @ weights > 0):
                break
            scale = -self.rate * (n_classes - 1) / n_classes
            weights *= np.exp(scale * xlogy(coding, probability).sum(1))
            weights /= weights.sum()
        step(max(0.0, 1.0 - done))

    def _votes(self, rows: torch.Tensor) -> torch.Tensor:
        table = rows.flatten(1).numpy()
        total = np.zeros((len(table), self.n_classes_))
        for stump in self.stumps_:
            logs = np.log(stump.predict_proba(table).clip(_TINY, None))
            total += (self.n_classes_ - 1) * (logs - logs.mean(1, keepdims=True))
        return torch.from_numpy(total / len(self.stumps_))

    def predict(self, rows: torch.Tensor) -> torch.Tensor:
        return self._votes(rows).argmax(1)

    def scores(self, rows: torch.Tensor) -> torch.Tensor:
        votes = self._votes(rows)
        return votes[:, 1:] if votes.shape[1] == 2 else votes


# ------------------------------------------------------------------------- the twelve


class FromScikit:
    """A scikit-learn estimator as a classifier of torch rows."""

    def __init__(self, build: Callable[[int], Any], precise: bool = False) -> None:
        self.build = build  # from the number of classes
        self.precise = precise

    def fit(self, rows: torch.Tensor, codes: torch.Tensor, n_classes: int, step: Step) -> None:
        self.estimator_ = self.build(n_classes)
        more: dict[str, Any] = {}
        left = 1.0
        if isinstance(self.estimator_, GradientBoostingClassifier):
            share = 1.0 / self.estimator_.n_estimators
            left = 0.0

            def monitor(stage: int, estimator: Any, local: Any) -> bool:
                step(share)
                return False

            more["monitor"] = monitor
        self.estimator_.fit(self._array(rows), codes.numpy(), **more)
        step(left)

    def predict(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self.estimator_.predict(self._array(rows)), np.int64))

    def scores(self, rows: torch.Tensor) -> torch.Tensor:
        model = self.estimator_
        scorer = model.predict_proba if hasattr(model, "predict_proba") else model.decision_function
        found = np.asarray(scorer(self._array(rows)), np.float64)
        if found.ndim == 1:
            found = found[:, None]
        return torch.from_numpy(found[:, 1:] if found.shape[1] == 2 else found)

    def _array(self, rows: torch.Tensor) -> Array:
        found = rows.flatten(1).numpy()
        return found.astype(np.float64) if self.precise else found


def has_xgboost() -> bool:
    return importlib.util.find_spec("xgboost") is not None


def _xgboost(n_classes: int, seed: int, **changed: Any) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(
        # The defaults of the papers' version; today's trees are twice as deep.
        max_depth=3,
        learning_rate=0.1,
        objective="multi:softprob" if n_classes > 2 else "binary:logistic",
        n_jobs=1,
        random_state=seed,
        **changed,
    )


Build = Callable[[int], ScoringClassifier]  # from a seed


class Kind(NamedTuple):
    """A classifier: its name in a heading, in a sentence, and how to make one for images and for tables."""

    title: str
    described: str
    images: Build
    tables: Build

    def build(self, schema: Schema) -> Build:
        return self.images if schema.kind == "images" else self.tables


def _scikit(build: Callable[[int, int], Any], precise: bool = False) -> Build:
    """One of scikit-learn's, built from the number of classes and the seed."""
    return lambda seed: FromScikit(lambda k: build(k, seed), precise=precise)


# In single precision the variances of nearly constant pixels drown in rounding, hence `precise`.
TWELVE = {
    "logreg": Kind(
        "logistic regression", "a logistic regression", LogisticRegression, LogisticRegression
    ),
    "rf": Kind(
        "random forest",
        "a random forest (100 trees)",
        _scikit(
            lambda k, seed: RandomForestClassifier(
                n_estimators=100, class_weight="balanced", random_state=seed
            )
        ),
        _scikit(lambda k, seed: RandomForestClassifier(random_state=seed)),
    ),
    "gnb": Kind(
        "naive Bayes, Gaussian",
        "a Gaussian naive Bayes classifier",
        _scikit(lambda k, seed: GaussianNB(), precise=True),
        _scikit(lambda k, seed: GaussianNB(), precise=True),
    ),
    "bnb": Kind(
        "naive Bayes, Bernoulli",
        "a Bernoulli naive Bayes classifier",
        _scikit(lambda k, seed: BernoulliNB(binarize=0.5)),
        _scikit(lambda k, seed: BernoulliNB()),
    ),
    "svc": Kind(
        "linear support vectors",
        "a linear support vector machine",
        _scikit(
            lambda k, seed: LinearSVC(
                loss="hinge", dual=True, tol=1e-8, max_iter=10_000, random_state=seed
            ),
            precise=True,
        ),
        # `dual` is the default of 0.24, "auto" since: the same optimum by another way.
        _scikit(lambda k, seed: LinearSVC(dual="auto", random_state=seed), precise=True),
    ),
    "lda": Kind(
        "linear discriminant analysis",
        "a linear discriminant analysis",
        _scikit(
            lambda k, seed: LinearDiscriminantAnalysis(
                solver="eigen", n_components=min(9, k - 1), tol=1e-8, shrinkage=0.5
            ),
            precise=True,
        ),
        _scikit(lambda k, seed: LinearDiscriminantAnalysis(), precise=True),
    ),
    "tree": Kind(
        "decision tree",
        "a decision tree",
        _scikit(lambda k, seed: DecisionTreeClassifier(class_weight="balanced", random_state=seed)),
        _scikit(lambda k, seed: DecisionTreeClassifier(random_state=seed)),
    ),
    "adaboost": Kind(
        "AdaBoost",
        "AdaBoost (SAMME.R)",
        lambda seed: AdaBoost(seed, stumps=STUMPS, rate=0.7),
        AdaBoost,
    ),
    "bagging": Kind(
        "bagged trees",
        "bagged trees",
        _scikit(
            lambda k, seed: BaggingClassifier(max_samples=0.1, n_estimators=20, random_state=seed)
        ),
        _scikit(lambda k, seed: BaggingClassifier(random_state=seed)),
    ),
    "gbm": Kind(
        "gradient boosting",
        "gradient boosting",
        _scikit(
            lambda k, seed: GradientBoostingClassifier(
                subsample=0.1, n_estimators=50, random_state=seed
            )
        ),
        _scikit(lambda k, seed: GradientBoostingClassifier(random_state=seed)),
    ),
    "mlp": Kind("perceptron", "a perceptron (100 hidden units)", Perceptron, Perceptron),
    "xgb": Kind(
        "XGBoost",
        "XGBoost",
        _scikit(lambda k, seed: _xgboost(k, seed, n_estimators=50, colsample_bytree=0.1)),
        _scikit(_xgboost),
    ),
}
