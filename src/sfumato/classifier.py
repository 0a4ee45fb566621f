"""DP-LLM as a scikit-learn classifier: predictions and explanations from the weights that `LinearMaps` learns.

Private: only what goes into `fit`, and only by way of the method behind it. The records that are predicted or explained are the
caller's own choice and no part of the guarantee.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError

from sfumato.data import Batch, Column, Dataset, Schema
from sfumato.data.sources import Array
from sfumato.errors import BadInput
from sfumato.methods import LinearMaps
from sfumato.methods import load as load_run
from sfumato.methods.explanations import Explanation, FilterBank
from sfumato.privacy import Budget, Neighbours, PrivacyStatement
from sfumato.progress import Progress

if TYPE_CHECKING:
    from sklearn.utils import Tags

_ROWS = 4096  # records predicted at once
_MOST_CLASSES = 10_000
_LARGEST = 1e30  # of a feature: beyond it squares leave float32


class NotFitted(BadInput, NotFittedError):
    """A classifier was asked before it was fitted."""


def _with_settings(signature: inspect.Signature) -> inspect.Signature:
    """`signature` with the method's settings, each by its name, in place of the keywords that take them."""
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = inspect.signature(LinearMaps).parameters.values()
    return signature.replace(parameters=[*own, *more])


class LocallyLinearMaps(ClassifierMixin, BaseEstimator):
    """DP-LLM for labelled images and tables; a scikit-learn classifier.

    `fit(data, budget)` takes a sfumato data set and a budget. `fit(X, y)` takes arrays, and these settings in their place, since
    none of them may be read off private records:

    - `epsilon`, `delta`, `neighbours`: the budget; neighbours is zero-out, add-remove or replace-one.
    - `classes`: the classes or their number; the word "labels" declares those in y public.
    - `low`, `high`: the range of the features of a table; what lies beyond counts as its end.

    All other settings are those of the method (`LinearMaps`, `sfumato methods llm`), kept as `method_` once fitted.

    **Guarantee**: that of `method_`, told by `statement_`; what this class adds is computed from its weights.
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        neighbours: str = "zero-out",
        classes: Any = None,
        low: float = 0.0,
        high: float = 1.0,
        **settings: Any,
    ) -> None:
        # As they are: scikit-learn wants values to be looked at in `fit`.
        known = {s.name: s.default for s in LinearMaps.settings()}
        if unknown := settings.keys() - known:
            raise TypeError(f"LocallyLinearMaps has no setting {', '.join(sorted(unknown))}.")
        self.__dict__.update(known | settings)
        self.epsilon = epsilon
        self.delta = delta
        self.neighbours = neighbours
        self.classes = classes
        self.low = low
        self.high = high

    # scikit-learn, and whoever asks for help, reads the settings off the signature.
    __init__.__signature__ = _with_settings(inspect.signature(__init__))  # type: ignore[attr-defined]

    # -- learning ------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        out: Path | str | None = None,
        resume: bool = False,
        allow_empty: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Learn from a labelled data set within a budget: fit(data, budget); or from arrays: fit(X, y).

        As arrays, X is (n, features) with values between `low` and `high`, or images (n, height, width), (n, height, width, 3) or
        (n, channels, height, width), uint8 or in [0, 1]. With `out`, the run folder is written as the work goes on, and
        `resume=True` goes on with an interrupted one. A data set with an empty class is refused unless `allow_empty`.
        """
        arrays = not isinstance(X, Dataset)
        budget = self._own_budget() if arrays else self._given_budget(y)
        self._forget()
        method = LinearMaps(**{s.name: getattr(self, s.name) for s in LinearMaps.settings()})
        data = X
        if arrays:
            data, classes = self._from_arrays(X, y)
            method.known_labels = classes.tolist()
            allow_empty = True  # every label was found among the stated ones, so none is a slip
        return self._keep(
            method.fit(
                data, budget, out=out, resume=resume, allow_empty=allow_empty, progress=progress
            )
        )

    def save(self, path: Path | str) -> Path:
        """Write the run folder; `load` gives back a classifier with the same predictions."""
        return self._fitted().save(path)

    @classmethod
    def load(cls, run: Path | str) -> Self:
        """The classifier of a run folder, made by `save`, `fit(..., out=)` or `sfumato fit llm`."""
        method = load_run(run)
        if not isinstance(method, LinearMaps):
            raise BadInput(
                f"{run} is a run of {method.info.name}, which makes {method.info.makes} and no explanations; "
                "give a run of `sfumato fit llm`."
            )
        settings = method.get_params()
        if method.labels_ is not None:
            budget, schema = method.statement_.budget, method.schema_
            settings |= {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "neighbours": budget.neighbours.value,
                "classes": method.labels_,
            }
            if schema.kind == "table":
                settings |= {"low": schema.columns[0].low, "high": schema.columns[0].high}
        return cls(**settings)._keep(method)

    def _keep(self, method: LinearMaps) -> Self:
        schema, bank = method.schema_, method.filters()
        self.method_ = method
        self.coef_, self.intercept_ = bank.weights, bank.biases
        # A data set's labels are codes; their names are in the schema.
        labels = method.labels_
        self.classes_: Array = np.arange(schema.n_classes) if labels is None else np.array(labels)
        if labels is not None and schema.kind == "table":
            self.n_features_in_ = len(schema.columns)
        (charge,) = method.statement_.charges
        self.n_iter_ = charge.steps
        return self

    def _forget(self) -> None:
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    def _given_budget(self, budget: Any) -> Budget:
        if not isinstance(budget, Budget):
            raise BadInput("With a data set, the second argument is a Budget: fit(data, budget).")
        stated = {"epsilon": self.epsilon, "delta": self.delta}
        if any(v is not None and v != getattr(budget, name) for name, v in stated.items()):
            raise BadInput(
                "The settings epsilon and delta are for fit(X, y) and differ from the budget; leave them out."
            )
        return budget

    def _own_budget(self) -> Budget:
        if self.epsilon is None or self.delta is None:
            raise BadInput(
                "fit(X, y) has no budget; make the classifier with epsilon= and delta=, or call fit(data, budget)."
            )
        return Budget(
            epsilon=self.epsilon, delta=self.delta, neighbours=Neighbours.parse(self.neighbours)
        )

    def _from_arrays(self, X: Any, y: Any) -> tuple[Dataset, Array]:
        """The data set that arrays make with the stated public facts, and its classes."""
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

        pictures = getattr(X, "ndim", 2) in (3, 4)
        if pictures:
            y = column_or_1d(y, warn=True)
            check_consistent_length(X, y)
        else:
            X, y = validate_data(self, X, y, dtype=np.float64)
            y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        classes = self._stated_classes(y)
        if classes.dtype.kind not in "biufUO":
            raise BadInput("Labels are numbers or words; give them as such.")
        try:
            codes = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
        except TypeError:  # words and numbers have no order between them
            codes = np.zeros(len(y), dtype=np.int64)
        if not np.array_equal(classes[codes], y):
            raise BadInput("Some labels are none of the stated `classes`; complete the list.")
        names = [str(name) for name in classes]
        if pictures:
            return Dataset.from_arrays(X, codes, classes=names), classes
        schema = self._table(X.shape[1], names)
        return Dataset.from_values(self._bounded(X), codes, schema=schema), classes

    def _stated_classes(self, y: Array) -> Array:
        """The sorted classes: a public setting, or the labels in y where the caller says that their list is public."""
        if self.classes is None:
            raise BadInput(
                "fit(X, y) needs the classes, since which ones occur is private: set classes=10, a list of them, or "
                'classes="labels" to declare the list of those in y public.'
            )
        if isinstance(self.classes, str):
            if self.classes != "labels":
                raise BadInput('`classes` is a list, a number or the word "labels"; give one.')
            return np.unique(y)
        if isinstance(self.classes, int | np.integer):
            if isinstance(self.classes, bool) or not 1 <= self.classes <= _MOST_CLASSES:
                raise BadInput(f"`classes` as a number runs from 1 to {_MOST_CLASSES:,}.")
            return np.arange(int(self.classes))
        try:
            found = np.unique(np.asarray(self.classes))
        except (TypeError, ValueError, OverflowError):
            found = np.empty(0)
        if found.ndim != 1 or not len(found):
            raise BadInput("`classes` is a list of numbers or of words; give one.")
        return found

    def _table(self, width: int, names: list[str]) -> Schema:
        low: Any = self.low
        high: Any = self.high
        if not (
            all(
                isinstance(end, int | float | np.floating) and abs(float(end)) < _LARGEST
                for end in (low, high)
            )
            and low < high
        ):
            raise BadInput("llm's low must be less than its high, and both finite numbers.")
        columns = getattr(self, "feature_names_in_", [f"x{i}" for i in range(width)])
        return Schema(
            kind="table",
            columns=tuple(
                Column(name=str(c), kind="numerical", low=self.low, high=self.high) for c in columns
            ),
            classes=tuple(names),
            label="class" if "class" not in columns else "class of the record",
        )

    def _bounded(self, X: Array) -> Array:
        low, high = np.float32(self.low), np.float32(self.high)
        return np.clip(X, low, high).astype(np.float32)

    # -- what was learnt -----------------------------------------------------------------------------------------

    @property
    def statement_(self) -> PrivacyStatement:
        """What the weights cost, and whom they protect."""
        return self._fitted().statement_

    @property
    def schema_(self) -> Schema:
        return self._fitted().schema_

    def predict(self, X: Any) -> Array:
        """The most probable class of each record: its code for a data set's classes, else the label as y had it."""
        codes = self.predict_proba(X).argmax(axis=1)
        return self.classes_[codes]

    def predict_proba(self, X: Any) -> Array:
        """(n, classes): p_k(x) of every record."""
        return torch.softmax(self._scores(X), dim=1).to(torch.float64).numpy()

    def decision_function(self, X: Any) -> Array:
        """(n, classes): the class scores f_k(x); for two classes their difference, (n,)."""
        scores = self._scores(X).to(torch.float64)
        return (scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores).numpy()

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy on arrays X and y, or on a labelled data set."""
        if isinstance(X, Dataset) and y is None:
            y = X.labels
        return float(super().score(X, y, sample_weight))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # Noise has no seed, and at a small ε any score may come out.
        tags.non_deterministic = True
        tags.classifier_tags.poor_score = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "method_")

    # -- explanations --------------------------------------------------------------------------------------------

    def explain(self, X: Any, *, top: int | None = None, of: int | None = None) -> Explanation:
        """Why each record gets its class: the `top` maps of the predicted class (or the class with code `of`) by weight.

        Three maps by default, or all where there are fewer.
        """
        model = self._fitted().model_
        top = min(3, model.maps) if top is None else top
        if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= model.maps:
            raise BadInput(f"top must be a whole number from 1 to {model.maps}, not {top!r}.")
        if of is not None and (
            isinstance(of, bool)
            or not isinstance(of, int | np.integer)
            or not 0 <= of < len(self.classes_)
        ):
            raise BadInput(
                f"There is no class with code {of!r}; they run to {len(self.classes_) - 1}."
            )
        probabilities, chosen, maps, weights, scores, inputs = [], [], [], [], [], []
        for batch in self._batches(X):
            g = model.activations(model.inputs(batch))  # (n, classes, maps)
            sigma, f = model.weighted(g)
            code = f.argmax(dim=1) if of is None else torch.full((len(g),), of)
            row = torch.arange(len(g))
            weight, best = sigma[row, code].topk(top, dim=1)
            probabilities.append(torch.softmax(f, dim=1))
            chosen.append(code)
            maps.append(best)
            weights.append(weight)
            scores.append(g[row, code].gather(1, best))
            inputs.append(model.encode(batch))
        codes, best = torch.cat(chosen), torch.cat(maps)
        return Explanation(
            schema=self.schema_,
            features=model.names,
            inputs=torch.cat(inputs).numpy(),
            codes=codes.numpy(),
            probabilities=torch.cat(probabilities).to(torch.float64).numpy(),
            maps=best.numpy(),
            weights=torch.cat(weights).to(torch.float64).numpy(),
            scores=torch.cat(scores).to(torch.float64).numpy(),
            filters=self.coef_[codes.numpy()[:, None], best.numpy()],
        )

    def filters(self) -> FilterBank:
        """All maps of all classes, in the space of the records: the global view."""
        return self._fitted().filters()

    def _fitted(self) -> LinearMaps:
        if not hasattr(self, "method_"):
            raise NotFitted(
                "This LocallyLinearMaps has not been fitted; call fit(data, budget) first."
            )
        return self.method_

    def _scores(self, X: Any) -> torch.Tensor:
        model = self._fitted().model_
        return torch.cat([model.scores(batch) for batch in self._batches(X)])

    def _batches(self, X: Any) -> Iterable[Batch]:
        """Records to look at, which are not covered by the guarantee, as batches."""
        schema = self.schema_
        if isinstance(X, Dataset):
            if (X.schema.kind, X.schema.shape) != (schema.kind, schema.shape) or (
                X.schema.columns != schema.columns
            ):
                raise BadInput(
                    "These records are of another kind, shape or columns than those the classifier was fitted on; give "
                    "records of the same schema."
                )
            return X.batches(_ROWS)
        if schema.kind == "images":
            return Dataset.from_arrays(X).batches(_ROWS)
        if hasattr(self, "n_features_in_"):
            from sklearn.utils.validation import validate_data

            rows = validate_data(self, X, dtype=np.float64, reset=False)
            return (Batch(t, None) for t in torch.from_numpy(self._bounded(rows)).split(_ROWS))
        return (Batch(t, None) for t in torch.as_tensor(X, dtype=torch.float32).split(_ROWS))
