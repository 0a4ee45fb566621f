"""The twelve classifiers of the papers' downstream test, by name.

Settings are those of DP-MERF and DP-HP (thesis, app. C, table 10; scikit-learn 0.24, xgboost 0.90). Logistic regression and the
perceptron are the torch versions of `classifiers`, AdaBoost is our own (`adaboost`), the rest are scikit-learn's. xgboost is
optional. Everything here is trained on synthetic rows and reads no real ones.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from sfumato.evaluation.adaboost import AdaBoost
from sfumato.evaluation.classifiers import (
    Array,
    LogisticRegression,
    Perceptron,
    ScoringClassifier,
    Step,
)


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


def _xgboost(n_classes: int, seed: int) -> Any:
    from xgboost import XGBClassifier

    return XGBClassifier(
        n_estimators=50,
        colsample_bytree=0.1,
        # The defaults of the papers' version; today's trees are twice as deep.
        max_depth=3,
        learning_rate=0.1,
        objective="multi:softprob" if n_classes > 2 else "binary:logistic",
        n_jobs=1,
        random_state=seed,
    )


TWELVE: dict[str, tuple[str, Callable[[int], ScoringClassifier]]] = {
    "logreg": ("a logistic regression", LogisticRegression),
    "rf": (
        "a random forest (100 trees)",
        lambda seed: FromScikit(
            lambda k: RandomForestClassifier(
                n_estimators=100, class_weight="balanced", random_state=seed
            )
        ),
    ),
    "gnb": (
        "a Gaussian naive Bayes classifier",
        # In single precision the variances of nearly constant pixels drown in rounding.
        lambda seed: FromScikit(lambda k: GaussianNB(), precise=True),
    ),
    "bnb": (
        "a Bernoulli naive Bayes classifier (threshold 0.5)",
        lambda seed: FromScikit(lambda k: BernoulliNB(binarize=0.5)),
    ),
    "svc": (
        "a linear support vector machine",
        lambda seed: FromScikit(
            lambda k: LinearSVC(
                loss="hinge", dual=True, tol=1e-8, max_iter=10_000, random_state=seed
            ),
            precise=True,
        ),
    ),
    "lda": (
        "a linear discriminant analysis (shrinkage 0.5)",
        lambda seed: FromScikit(
            lambda k: LinearDiscriminantAnalysis(
                solver="eigen", n_components=min(9, k - 1), tol=1e-8, shrinkage=0.5
            ),
            precise=True,
        ),
    ),
    "tree": (
        "a decision tree",
        lambda seed: FromScikit(
            lambda k: DecisionTreeClassifier(class_weight="balanced", random_state=seed)
        ),
    ),
    "adaboost": ("AdaBoost (100 stumps, SAMME.R)", AdaBoost),
    "bagging": (
        "20 bagged trees on 10 % of the records each",
        lambda seed: FromScikit(
            lambda k: BaggingClassifier(max_samples=0.1, n_estimators=20, random_state=seed)
        ),
    ),
    "gbm": (
        "gradient boosting (50 rounds on 10 % of the records)",
        lambda seed: FromScikit(
            lambda k: GradientBoostingClassifier(subsample=0.1, n_estimators=50, random_state=seed)
        ),
    ),
    "mlp": ("a perceptron (100 hidden units)", Perceptron),
    "xgb": (
        "XGBoost (50 rounds on 10 % of the columns)",
        lambda seed: FromScikit(lambda k: _xgboost(k, seed)),
    ),
}
