"""A method among scikit-learn's: cloned, in a pipeline; a search on private records is refused before a row is read."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import (
    GridSearchCV,
    RandomizedSearchCV,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from data import digits
from sfumato import Merf, Mixture
from sfumato.errors import BadInput

GIVEN = {"classes": 10, "epsilon": 5.0, "delta": 1e-5, "allow_empty": True}


@pytest.fixture(scope="module")
def records() -> tuple[np.ndarray, np.ndarray]:
    data = digits(60)
    return data.images, data.labels


def test_clone_copies_settings_and_nothing_learnt(records):
    fitted = Mixture(seed=3, tone=False).fit(*records, **GIVEN)
    copied = clone(fitted)
    assert copied.get_params() == fitted.get_params()
    assert not hasattr(copied, "statement_")
    check_is_fitted(fitted)
    with pytest.raises(NotFittedError):
        check_is_fitted(copied)
    assert copied.set_params(seed=4).seed == 4 and fitted.seed == 3
    assert not is_classifier(fitted) and get_tags(fitted).non_deterministic


def test_a_pipeline_hands_facts_and_budget_to_its_last_step(records):
    images, labels = records
    line = make_pipeline(FunctionTransformer(lambda x: 255 - x), Mixture())
    line.fit(images, labels, **{f"mixture__{name}": value for name, value in GIVEN.items()})
    made = line[-1].sample(400, seed=0)
    assert made.images.mean() > 128 > images.mean()  # of the negatives
    assert clone(line)[-1].get_params() == line[-1].get_params()


@pytest.mark.parametrize(
    "search",
    [
        lambda x, y: GridSearchCV(Mixture(), {"seed": [0, 1]}, cv=2, error_score="raise").fit(
            x, y, **GIVEN
        ),
        lambda x, y: GridSearchCV(Mixture(), {"seed": [0]}, cv=2).fit(x, y, **GIVEN),
        lambda x, y: GridSearchCV(
            make_pipeline(FunctionTransformer(), Mixture()), {"mixture__seed": [0]}, cv=2
        ).fit(x, y),
        lambda x, y: RandomizedSearchCV(
            Mixture(), {"seed": [0]}, n_iter=1, cv=2, scoring=lambda *_: 0.0
        ).fit(x, y, **GIVEN),
        lambda x, y: cross_val_score(Merf(), x, y, cv=2, params=GIVEN, scoring=lambda *_: 0.0),
        lambda x, y: cross_validate(Mixture(), x, y, cv=2, params=GIVEN, error_score="raise"),
    ],
)
def test_a_search_is_refused_with_the_reason_and_the_way(records, monkeypatch, search):
    def read(*_, **__):
        raise AssertionError("the data were looked at")

    monkeypatch.setattr("sfumato.methods.base.as_dataset", read)
    # By the tags, before the first fit: its error the search would wrap in one of its own, of models that are misconfigured.
    with pytest.raises(BadInput, match=r"sfumato compare --ledger") as refused:
        search(*records)
    assert "stand_in=True" in str(refused.value)


def test_a_pipeline_that_would_learn_is_not_fitted_in_a_search_either(records):
    class Learning(FunctionTransformer):
        def fit(self, *_, **__):
            raise AssertionError("the records were looked at")

    line = make_pipeline(Learning(), Mixture())
    with pytest.raises(BadInput, match="stand_in=True"):
        GridSearchCV(line, {"mixture__seed": [0]}, cv=2).fit(*records)
    assert (
        get_tags(GridSearchCV(Mixture(), {})).estimator_type is None
    )  # to be shown, a search need not be fitted


def test_a_fit_refuses_a_search_that_asks_no_tags(records, monkeypatch):
    monkeypatch.setattr("sfumato.methods.estimator.refuse_starting_search", lambda: None)
    with pytest.raises(BadInput, match="stand_in=True"):
        cross_validate(Mixture(), *records, cv=2, params=GIVEN, error_score="raise")


def test_stand_ins_reach_the_last_step_of_a_pipeline(records):
    given = {f"mixture__{name}": value for name, value in {**GIVEN, "stand_in": True}.items()}
    search = GridSearchCV(
        make_pipeline(FunctionTransformer(), Mixture()),
        {"mixture__tone": [True]},
        cv=2,
        scoring=lambda *_: 0.0,
    )
    assert search.fit(*records, **given).best_score_ == 0


def test_public_stand_ins_may_be_searched_on(records):
    """The number to go by is the caller's; the method itself has none."""

    def likeness(model, images, labels):
        return -abs(float(model.sample(200, seed=0).images.mean()) - float(images.mean()))

    search = GridSearchCV(Mixture(), {"tone": [True, False]}, cv=2, scoring=likeness)
    search.fit(*records, **GIVEN, stand_in=True)
    assert search.best_score_ > -20 and hasattr(search.best_estimator_, "statement_")
    with pytest.raises(BadInput, match="evaluate"):
        search.best_estimator_.score(*records)
