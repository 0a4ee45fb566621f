"""A method among scikit-learn's estimators: what `clone`, `Pipeline` and the display of it ask for, and what is refused.

`get_params`, `set_params` and the constructor come from the declared settings (`methods.settings`). A search fits on parts of
the private records again and again and picks by what it finds there: many releases, and a choice that is one more, none of them
in any statement. scikit-learn hands a fit nothing that says so, so the fit looks who calls it.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from sfumato.errors import BadInput

_SEARCHES = "sklearn.model_selection"


class Estimator:
    """What scikit-learn asks of an estimator besides settings and `fit`."""

    def __sklearn_tags__(self) -> Any:
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
    frame = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_SEARCHES):
            raise BadInput(
                "A search by scikit-learn fits on the private records many times and chooses by what it sees, so none of its "
                "fits has the ε that it states; compare settings by `sfumato compare --ledger DIR`, which holds all fits "
                "together to one limit, or search on public records in their place and pass stand_in=True to fit."
            )
        frame = frame.f_back  # type: ignore[assignment]
