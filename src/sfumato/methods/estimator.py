"""A method among scikit-learn's estimators: what `clone`, `Pipeline` and the display of it ask for, and what is refused.

`get_params`, `set_params` and the constructor come from the declared settings (`methods.settings`). A search fits on parts of
the private records again and again and picks by what it finds there: many releases, and a choice that is one more, none of them
in any statement. scikit-learn hands a fit nothing that says so, so the fit looks who calls it, and so do the tags.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

from sfumato.errors import BadInput

_SEARCHES = "sklearn.model_selection"
_STARTS = (
    "fit",
    "cross_validate",
    "cross_val_predict",
    "learning_curve",
    "validation_curve",
    "permutation_test_score",
)
_REFUSED = (
    "A search by scikit-learn fits on the private records many times and chooses by what it sees, so none of its fits has the ε "
    "that it states; compare settings by `sfumato compare --ledger DIR`, which holds all fits together to one limit, or search "
    "on public records in their place and pass stand_in=True to fit."
)


class Estimator:
    """What scikit-learn asks of an estimator besides settings and `fit`."""

    def __sklearn_tags__(self) -> Any:
        """What every search asks before it touches a record."""
        refuse_starting_search()
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=None,
            regressor_tags=None,
            classifier_tags=None,
            input_tags=InputTags(two_d_array=True, three_d_array=True, allow_nan=True),
            non_deterministic=True,  # privacy noise has no seed
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "statement_")

    def score(self, *_: Any, **__: Any) -> NoReturn:
        """There is no number that a search could go by; asking says what to do instead."""
        raise BadInput(
            "A method has no score of its own: measure its samples against held-out records by sfumato.evaluate(model.sample(n), "
            "real), which ε does not cover."
        )


def refuse_search() -> None:
    """Raise if this call comes from one of scikit-learn's searches or cross-validations."""
    if next(_searching(), None) is not None:
        raise BadInput(_REFUSED)


def refuse_starting_search() -> None:
    """The same where a search only begins, unless `stand_in` is among what it will hand to each fit.

    The error of a fit is wrapped by the search into one of its own, long and about models that are misconfigured.
    """
    starting = [frame for frame in _searching() if frame.f_code.co_name in _STARTS]
    handed = [
        given for frame in starting for given in frame.f_locals.values() if isinstance(given, dict)
    ]
    if starting and not any(str(name).endswith("stand_in") for given in handed for name in given):
        raise BadInput(_REFUSED)


def _searching() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_SEARCHES):
            yield frame
        frame = frame.f_back
