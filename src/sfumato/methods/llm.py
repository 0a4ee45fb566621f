"""DP-LLM: differentially private locally linear maps (Harder, Bauer and Park 2020; thesis, app. A). A classifier one can read.

    1.  x̃ = [R x, 1]                            a public projection to D′ numbers, and a 1 for the bias
    2.  g_m^k(x) = w_m^k · x̃                    M linear maps for each class k
    3.  σ_m^k = softmax_m(β g_m^k),  f_k = Σ_m σ_m^k g_m^k,  p = softmax_k(f)
    4.  repeat: W ← Adam(W, Σ over a Poisson sample of clip(∂ loss/∂W) + noise)                    (the release)

The gradient of one record is an outer product, ∂ loss/∂g ⊗ x̃, so its norm is the product of two norms and the sum of all clipped
ones is a single matrix product: no record's gradient is ever formed.

Private: the records, in step 4 only. Public: ranges, columns and classes (Schema), every setting, R's seed. What comes out is W,
so predictions and explanations of any record are free.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor

from sfumato.data import Batch, Column, Dataset, Schema
from sfumato.data.sources import Array
from sfumato.errors import BadInput
from sfumato.features import encoding_of
from sfumato.methods.base import PrivateMethod, Workspace
from sfumato.methods.descent import TrainingState, descend
from sfumato.methods.explanations import Explanation, FilterBank
from sfumato.methods.registry import register
from sfumato.methods.run import RunFolder
from sfumato.privacy import (
    Budget,
    Charge,
    Neighbours,
    OuterMap,
    Plan,
    PrivateData,
    balanced,
    enforced_bound,
)
from sfumato.progress import Progress
from sfumato.storage import atomic_path

if TYPE_CHECKING:
    from sklearn.utils import Tags

_LABEL = "gradients"
_ROWS = 4096  # records predicted at once
_FAST, _SLOW = 0.9, 0.999  # Adam's two memories
_MEMORY = 0.1  # share of the steps so far that the averaged weights remember


class NotFitted(BadInput, NotFittedError):
    """A classifier was asked before it was fitted."""


@register(
    "llm",
    title="DP-LLM",
    paper="Harder, Bauer and Park 2020, “Interpretable and Differentially Private Predictions”",
    kinds=("images", "table"),
    summary="A classifier of a few linear maps per class, trained with DP-SGD; its maps explain every prediction.",
    makes="classifier",
)
class LocallyLinearMaps(ClassifierMixin, PrivateMethod, BaseEstimator):
    """DP-LLM for labelled images and tables; a scikit-learn classifier.

    `fit(data, budget)` takes a sfumato data set and a budget. `fit(X, y)` takes arrays and the settings `epsilon`, `delta`,
    `neighbours`, `classes`, `low` and `high` in their place, since none of these may be read off private records.

    **Guarantee**: each step releases one sum of outer products over a fresh Poisson sample, each clipped to norm `clip`, with
    Gaussian noise; all steps are composed by privacy loss distributions and calibrated to the budget. The weights are all that
    is learnt, so predictions and explanations of other records are post-processing.

    Differs from the paper: Poisson samples of a public `rate` (never divided by their private size) in place of shuffled
    batches; images are projected on their lowest spatial frequencies, which keep more of an image than as many random
    directions and give smooth filters (`basis="random"` is the paper's); a larger learning rate, falling to zero, and averaged
    weights.
    """

    HELP = {
        "maps": "Linear maps per class; 1 is logistic regression.",
        "projection": "Numbers an image or a wide table is projected to; tables of fewer columns are left as they are.",
        "basis": "frequencies (an image's lowest) or random (as in the paper); tables always take random directions.",
        "beta": "Inverse temperature of the weighting of maps: large values favour a single map.",
        "rate": "Probability of a record to be in a step's sample, a public constant; large samples bear noise better.",
        "epochs": "Passes over the data: epochs ÷ rate steps.",
        "clip": "Largest norm of one record's gradient; Adam makes up for its scale.",
        "learning_rate": "Adam's learning rate at the start; it falls to zero along a half cosine.",
        "seed": "Public seed of the projection and the first weights; privacy noise never has a seed.",
        "epsilon": "For fit(X, y) only: the privacy budget ε.",
        "delta": "For fit(X, y) only: the privacy budget δ.",
        "neighbours": "For fit(X, y) only: zero-out, add-remove or replace-one.",
        "classes": "For fit(X, y) only: the classes or their number, a public fact; the word labels declares those in y public.",
        "low": "For fit(X, y) only: the least value of a feature, a public fact; lower ones count as this.",
        "high": "For fit(X, y) only: the largest value of a feature, a public fact; higher ones count as this.",
    }

    def __init__(
        self,
        *,
        maps: int = 30,
        projection: int = 150,
        basis: str = "frequencies",
        beta: float = 1.0,
        rate: float = 1 / 15,
        epochs: float = 20.0,
        clip: float = 1e-3,
        learning_rate: float = 0.1,
        seed: int = 0,
        epsilon: float | None = None,
        delta: float | None = None,
        neighbours: str = "zero-out",
        classes: Any = None,
        low: float = 0.0,
        high: float = 1.0,
    ) -> None:
        self.maps = maps
        self.projection = projection
        self.basis = basis
        self.beta = beta
        self.rate = rate
        self.epochs = epochs
        self.clip = clip
        self.learning_rate = learning_rate
        self.seed = seed
        self.epsilon = epsilon
        self.delta = delta
        self.neighbours = neighbours
        self.classes = classes
        self.low = low
        self.high = high

    # -- the method ----------------------------------------------------------------------------------------------

    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        self._check(schema)
        phi = _Gradients(_Model(self, schema, weightless=True), self.clip)
        return (self._charge(phi, noise_multiplier),)

    def _charge(self, phi: _Gradients, noise_multiplier: float) -> Charge:
        return Charge(
            label=_LABEL,
            bound=enforced_bound(phi),
            noise_multiplier=noise_multiplier,
            rate=float(self.rate),
            steps=self._steps,
            dimension=phi.dim,
        )

    def _fit(self, data: PrivateData, noise_multiplier: float, workspace: Workspace) -> None:
        model = _Model(self, data.schema)
        phi = _Gradients(model, self.clip)
        charge = self._charge(phi, noise_multiplier)
        adam = _Adam(model.weights)
        state = TrainingState({}, tensors=adam.tensors)
        for step in descend(data, charge, state, workspace, title="Training the classifier"):
            # In units of the noise: a public scale, to which Adam is blind in any case.
            gradient = step.noisy_sum(phi)[0] / charge.noise_std
            cooled = 0.5 * (1 + math.cos(math.pi * step.index / charge.steps))
            adam.move(gradient.view_as(model.weights), self.learning_rate * cooled, step.index + 1)
        model.weights = adam.average
        self._take(model)

    def _take(self, model: _Model) -> None:
        self.model_ = model
        self.coef_, self.intercept_ = model.filters()
        if not hasattr(self, "classes_"):
            # A data set's labels are codes; their names are in the schema.
            self.classes_: Array = np.arange(self.schema_.n_classes)

    def _state(self) -> dict[str, Tensor]:
        state = {"weights": self.model_.weights}
        if self.classes_.dtype.kind in "iuf":
            state["classes"] = torch.from_numpy(np.array(self.classes_))
        return state

    def _restore(self, state: dict[str, Tensor]) -> None:
        model = _Model(self, self.schema_, weightless=True)
        if state["weights"].shape != (model.left, model.right):
            raise RuntimeError("the weights are of another shape")
        model.weights = state["weights"]
        self.classes_ = (
            state["classes"].numpy() if "classes" in state else np.array(self.schema_.classes)
        )
        self._take(model)

    def _picture(self, run: RunFolder) -> None:
        if self.schema_.kind == "images":
            with atomic_path(run.samples) as temporary:
                self.filters().picture().save(temporary, format="PNG")

    @property
    def _steps(self) -> int:
        return max(1, round(self.epochs / self.rate))

    def _check(self, schema: Schema) -> None:
        if not schema.labelled:
            raise BadInput(
                "llm is a classifier and this data set has no labels; give labelled data."
            )
        for name in ("maps", "projection"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise BadInput(f"llm's {name} must be a whole number of at least 1, not {value!r}.")
        if self.basis not in ("frequencies", "random"):
            raise BadInput(f"llm's basis must be frequencies or random, not {self.basis!r}.")
        for name in ("beta", "epochs", "clip", "learning_rate"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise BadInput(f"llm's {name} must be positive and finite, not {value!r}.")
        if not 0 < self.rate <= 1:
            raise BadInput(
                f"llm's rate is a probability in (0, 1], not {self.rate!r}; 1/15 is common."
            )

    # -- scikit-learn --------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        public: Dataset | None = None,
        out: Path | str | None = None,
        resume: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Learn from a labelled data set within a budget: fit(data, budget); or from arrays: fit(X, y).

        As arrays, X is (n, features) with values between `low` and `high`, or images (n, height, width), (n, height, width, 3) or
        (n, channels, height, width), uint8 or in [0, 1]. With `out`, the run folder is written as the work goes on, and
        `resume=True` goes on with an interrupted one.
        """
        if isinstance(X, Dataset):
            if not isinstance(y, Budget):
                raise BadInput(
                    "With a data set, the second argument is a Budget: fit(data, budget)."
                )
            stated = {"epsilon": self.epsilon, "delta": self.delta}
            if any(v is not None and v != getattr(y, name) for name, v in stated.items()):
                raise BadInput(
                    "The settings epsilon and delta are for fit(X, y) and differ from the budget; leave them out."
                )
            self._forget()
            data, budget = X, y
        else:
            budget = self._own_budget()
            data = self._from_arrays(X, y)
        self._fit_within(data, budget, public=public, out=out, resume=resume, progress=progress)
        self.n_iter_ = self._steps
        return self

    def _forget(self) -> None:
        for name in ("classes_", "n_features_in_", "feature_names_in_", "statement_"):
            if hasattr(self, name):
                delattr(self, name)

    def _own_budget(self) -> Budget:
        if self.epsilon is None or self.delta is None:
            raise BadInput(
                "fit(X, y) has no budget; make the classifier with epsilon= and delta=, or call fit(data, budget)."
            )
        return Budget(
            epsilon=self.epsilon, delta=self.delta, neighbours=Neighbours.parse(self.neighbours)
        )

    def _from_arrays(self, X: Any, y: Any) -> Dataset:
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import check_consistent_length, column_or_1d, validate_data

        self._forget()
        pictures = getattr(X, "ndim", 2) in (3, 4)
        if pictures:
            y = column_or_1d(y, warn=True)
            check_consistent_length(X, y)
        else:
            X, y = validate_data(self, X, y, dtype=np.float64)
            y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_ = self._stated_classes(y)
        codes = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        if not np.array_equal(self.classes_[codes], y):
            raise BadInput("Some labels are none of the stated `classes`; complete the list.")
        names = [str(name) for name in self.classes_]
        if pictures:
            return Dataset.from_arrays(X, codes, classes=names)
        return Dataset.from_values(
            self._bounded(X), codes, schema=self._table(X.shape[1], names), name="arrays"
        )

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
            return np.arange(int(self.classes))
        return np.unique(np.asarray(self.classes))

    def _table(self, width: int, names: list[str]) -> Schema:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise BadInput("llm's low must be less than its high, and both finite.")
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

    def predict(self, X: Any) -> Array:
        """The most probable class of each record: its code for a data set's classes, else the label as y had it."""
        codes = self.predict_proba(X).argmax(axis=1)
        return self.classes_[codes]

    def predict_proba(self, X: Any) -> Array:
        """(n, classes): p_k(x) of every record."""
        parts = [torch.softmax(self._model().scores(b), dim=1) for b in self._batches(X)]
        return torch.cat(parts).to(torch.float64).numpy()

    def decision_function(self, X: Any) -> Array:
        """(n, classes): the class scores f_k(x); for two classes their difference, (n,)."""
        scores = torch.cat([self._model().scores(batch) for batch in self._batches(X)])
        scores = scores.to(torch.float64)
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
        return hasattr(self, "statement_")

    # -- explanations --------------------------------------------------------------------------------------------

    def explain(self, X: Any, *, top: int | None = None, of: int | None = None) -> Explanation:
        """Why each record gets its class: the `top` maps of the predicted class (or the class with code `of`) by weight.

        Three maps by default, or all where there are fewer.
        """
        model = self._model()
        top = min(3, self.maps) if top is None else top
        if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= self.maps:
            raise BadInput(f"top must be a whole number from 1 to {self.maps}, not {top!r}.")
        if of is not None and not 0 <= of < len(self.classes_):
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
        model = self._model()
        return FilterBank(
            schema=self.schema_, features=model.names, weights=self.coef_, biases=self.intercept_
        )

    def _model(self) -> _Model:
        if not hasattr(self, "statement_"):
            raise NotFitted(
                "This LocallyLinearMaps has not been fitted; call fit(data, budget) first."
            )
        return self.model_

    def _batches(self, X: Any) -> list[Batch] | Any:
        """Records to look at, which are not covered by the guarantee, as batches."""
        schema = self._model().schema
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


class _Model:
    """The maps themselves. Everything in it is public: settings, seed, and weights that were released."""

    def __init__(
        self, settings: LocallyLinearMaps, schema: Schema, *, weightless: bool = False
    ) -> None:
        self.schema = schema
        self.beta = float(settings.beta)
        self.classes, self.maps = schema.n_classes, int(settings.maps)
        self._encoding = encoding_of(schema)
        wide = self._encoding.numbers + self._encoding.places
        random = torch.Generator().manual_seed(int(settings.seed))
        self.projection = _projection(settings, schema, wide, random)
        self.left = self.classes * self.maps
        self.right = (wide if self.projection is None else len(self.projection)) + 1
        if not weightless:
            # Different from the start, so that the maps of a class grow apart.
            self.weights = torch.randn(self.left, self.right, generator=random)
            self.weights /= math.sqrt(self.right)
            self.weights[:, -1] = 0

    weights: Tensor  # (classes · maps, projected + 1)

    @property
    def names(self) -> tuple[str, ...]:
        """A table's encoded columns; none for images."""
        if self.schema.kind == "images":
            return ()
        numbers, hot = [], []
        for column in self.schema.columns:
            if column.kind == "categorical":
                hot += [f"{column.name} = {category}" for category in column.categories]
                hot += [f"{column.name} missing"] * column.missing
            else:
                numbers.append(column.name)
                hot += [f"{column.name} there", f"{column.name} missing"] * column.missing
        return (*numbers, *hot)

    def encode(self, batch: Batch) -> Tensor:
        """Pixels, or a table's numbers in [0, 1] and one-hot categories; (n, encoded)"""
        numbers, hot = self._encoding.encode(batch)
        return torch.cat([numbers, hot], dim=1) if hot.shape[1] else numbers

    def inputs(self, batch: Batch) -> Tensor:
        """x̃, (n, projected + 1)"""
        x = self.encode(batch)
        if self.projection is not None:
            x = x @ self.projection.T
        return torch.cat([x, x.new_ones(len(x), 1)], dim=1)

    def activations(self, inputs: Tensor) -> Tensor:
        """g, (n, classes, maps)"""
        return (inputs @ self.weights.T).view(len(inputs), self.classes, self.maps)

    def weighted(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """σ, (n, classes, maps), and f, (n, classes)"""
        sigma = torch.softmax(self.beta * g, dim=2)
        return sigma, (sigma * g).sum(dim=2)

    def scores(self, batch: Batch) -> Tensor:
        return self.weighted(self.activations(self.inputs(batch)))[1]

    def filters(self) -> tuple[Array, Array]:
        """The maps in the space of the records: (classes, maps, encoded) and their biases (classes, maps)."""
        weights = self.weights[:, :-1]
        if self.projection is not None:
            weights = weights @ self.projection
        shape = (self.classes, self.maps)
        return (
            weights.to(torch.float64).numpy().reshape(*shape, -1),
            self.weights[:, -1].to(torch.float64).numpy().reshape(shape),
        )


def _projection(
    settings: LocallyLinearMaps, schema: Schema, wide: int, random: torch.Generator
) -> Tensor | None:
    """R, (projected, encoded), or None where records are small enough. Public: a basis, or drawn from the seed."""
    narrow = int(settings.projection)
    if wide <= narrow:
        return None
    if schema.kind == "table" or settings.basis == "random":
        return torch.randn(narrow, wide, generator=random) / math.sqrt(narrow)
    channels, height, width = schema.shape
    down, across = _cosines(height), _cosines(width)
    # Frequencies in waves per picture, lowest first; all channels of one before the next.
    squared = torch.arange(height)[:, None] ** 2 + torch.arange(width)[None, :] ** 2
    order = squared.flatten().argsort(stable=True)[: -(-narrow // channels)]
    waves = torch.einsum("ay,bx->abyx", down, across).flatten(0, 1)[order].flatten(1)
    return (
        torch.kron(waves, torch.eye(channels))
        .view(len(waves), channels, height * width, channels)
        .permute(0, 1, 3, 2)
        .reshape(len(waves) * channels, wide)[:narrow]
        .contiguous()
    )


def _cosines(side: int) -> Tensor:
    """The orthonormal cosine basis of `side` points, lowest frequency first."""
    k = torch.arange(side, dtype=torch.float64)
    waves = torch.cos(math.pi / side * (k[None, :] + 0.5) * k[:, None]) * math.sqrt(2 / side)
    waves[0] /= math.sqrt(2)
    return waves.to(torch.float32)


class _Gradients(OuterMap):
    """A record's gradient of the cross-entropy with respect to the weights: ∂ loss/∂g ⊗ x̃.

    With e = p − y: ∂ loss/∂g_m^k = e_k σ_m^k (1 + β (g_m^k − f_k)).

    **Guarantee**: x̃ is scaled to norm 1 and its length put on the other factor, whose norm is then that of the whole gradient;
    the wall clips it to `clip`. Row-wise, since nothing in it sums over records. A record without a known class adds nothing.
    """

    right_bound = 1.0

    def __init__(self, model: _Model, clip: float) -> None:
        self.model = model
        self.left, self.right, self.left_bound = model.left, model.right, float(clip)

    def factors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        inputs = self.model.inputs(batch)
        g = self.model.activations(inputs)
        sigma, f = self.model.weighted(g)
        labels = batch.labels
        assert labels is not None
        hot = (labels[:, None] == torch.arange(self.model.classes)).to(f.dtype)
        error = (torch.softmax(f, dim=1) - hot) * hot.sum(dim=1, keepdim=True)
        slopes = error[:, :, None] * sigma * (1 + self.model.beta * (g - f[:, :, None]))
        return balanced(slopes.flatten(1), inputs)


class _Adam:
    """Adam, and the average of the weights it moves. torch's own takes seconds to import, more than a small fit."""

    def __init__(self, weights: Tensor) -> None:
        self.weights, self.average = weights, weights.clone()
        self.mean, self.square = torch.zeros_like(weights), torch.zeros_like(weights)

    @property
    def tensors(self) -> dict[str, Tensor]:
        names = ("weights", "average", "mean", "square")
        return {name: getattr(self, name) for name in names}

    def move(self, gradient: Tensor, rate: float, count: int) -> None:
        """The step number `count`, from 1."""
        gradient = gradient.to(torch.float32)
        self.mean.lerp_(gradient, 1 - _FAST)
        self.square.mul_(_SLOW).addcmul_(gradient, gradient, value=1 - _SLOW)
        scale = (self.square / (1 - _SLOW**count)).sqrt_().add_(1e-8)
        self.weights.addcdiv_(self.mean, scale, value=-rate / (1 - _FAST**count))
        self.average.lerp_(self.weights, 1 / max(1.0, _MEMORY * count))
