"""DP-LLM: differentially private locally linear maps (Harder, Bauer and Park 2020; thesis, app. A). A classifier one can read.

    1.  x̃_m = [R_m x, 1]                        public projections to D′ numbers (or one for all m), and a 1 for the bias
    2.  g_m^k(x) = w_m^k · x̃_m                  M linear maps for each class k
    3.  σ_m^k = softmax_m(β g_m^k),  f_k = Σ_m σ_m^k g_m^k,  p = softmax_k(f)
    4.  repeat: W ← Adam(W, Σ over a Poisson sample of clip(∂ loss/∂W) + noise)                    (the release)

The gradient of one record is an outer product, ∂ loss/∂g_m ⊗ x̃_m, for every projection, so its squared norm is Σ_m of products of
two squared norms and the sum of all clipped ones is one matrix product each: no record's gradient is ever formed.

Private: the records, in step 4 only. Public: ranges, columns and classes (Schema), every setting, R's seed. What comes out is W,
so predictions and explanations of any record are free.
"""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.methods.base import Workspace, png_of
from sfumato.methods.explanations import FilterBank
from sfumato.methods.linear_maps import AveragedAdam, Model, block_sizes
from sfumato.methods.parts import Trained
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query

_LABEL = "gradients"
_MOST_STEPS = 1e9


class LinearMaps(Trained):
    """DP-LLM for labelled images and tables: the weights. `sfumato.LocallyLinearMaps` predicts and explains with them.

    **Guarantee**: each step releases one sum of outer products over a fresh Poisson sample, each clipped to norm `clip`, with
    Gaussian noise; all steps are composed by privacy loss distributions and calibrated to the budget. The weights are all that
    is learnt, so predictions and explanations of other records are post-processing.

    Differs from the paper: Poisson samples of a public `rate` (never divided by their private size) in place of shuffled
    batches; images are projected on their lowest spatial frequencies, which keep more of an image than as many random
    directions and give smooth filters, by one projection for all maps (`basis="random"` with `per_map` is the paper's); a larger
    learning rate, falling to zero (`schedule="steps"` is the paper's), and averaged weights.
    """

    info = MethodInfo(
        name="llm",
        title="DP-LLM",
        paper="Harder, Bauer and Park 2020, “Interpretable and Differentially Private Predictions”",
        kinds=("images", "table"),
        summary="A classifier of a few linear maps per class, trained with DP-SGD; its maps explain every prediction.",
        makes="classifier",
    )
    TINY: ClassVar = {"maps": 2, "projection": 10, "rate": 0.5, "epochs": 3.0}

    maps: int = setting(
        "Linear maps per class; 1 is logistic regression.",
        default=30,
        low=1,
    )
    projection: int = setting(
        "Numbers an image or a wide table is projected to; tables of fewer columns are left as they are.",
        default=150,
        low=1,
    )
    basis: str = setting(
        "frequencies (an image's lowest) or random (as in the paper); tables always take random directions.",
        default="frequencies",
        choices=("frequencies", "random"),
    )
    per_map: bool = setting(
        "Whether every map has random directions of its own, which its classes share, as in the paper; it takes as many times "
        "the work.",
        default=False,
    )
    beta: float = setting(
        "Inverse temperature of the weighting of maps: large values favour a single map.",
        default=1.0,
        above=0,
    )
    rate: float = setting(
        "Probability of a record to be in a step's sample, a public constant; large samples bear noise better.",
        default=1 / 15,
        above=0,
        high=1,
    )
    epochs: float = setting("Passes over the data: epochs ÷ rate steps.", default=20.0, above=0)
    clip: float = setting(
        "Largest norm of one record's gradient; Adam makes up for its scale.", default=1e-3, above=0
    )
    learning_rate: float = setting(
        "Adam's learning rate at the start; `schedule` says how it falls.", default=0.1, above=0
    )
    schedule: str = setting(
        "How the learning rate falls: cosine (half of one, to zero) or steps (by a fifth every five passes, as in the paper).",
        default="cosine",
        choices=("cosine", "steps"),
    )
    input_scale: float = setting(
        "What projected inputs are multiplied by, a public constant: Adam's steps have one size, so larger inputs learn faster.",
        default=1.0,
        above=0,
    )

    # What whoever fits arrays calls the classes, by code: a stated, public list. A data set's labels are the codes themselves.
    known_labels = cast("list[Any] | None", None)

    def _check(self, schema: Schema) -> None:
        if not schema.labelled:
            raise BadInput(
                "llm is a classifier and this data set has no labels; give labelled data."
            )
        if self.per_map and schema.kind == "images" and self.basis != "random":
            raise BadInput("llm's per_map goes with basis=random; set that or leave per_map out.")
        if not self.epochs / self.rate <= _MOST_STEPS:
            raise BadInput(
                f"llm's epochs ÷ rate are more than {_MOST_STEPS:.0e} steps; give fewer epochs or a larger rate."
            )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        blocks, projected = block_sizes(self, schema)
        rows = schema.n_classes * self.maps // blocks
        gradients = Query(
            label=_LABEL,
            shape=(rows, projected + 1) if blocks == 1 else (blocks, rows, projected + 1),
            bound=float(self.clip),
            rate=float(self.rate),
            steps=max(1, round(self.epochs / self.rate)),
        )
        return [gradients]

    def build(self, schema: Schema) -> None:
        self.model_ = Model(self, schema)

    def _fit(self, data: Gate, run: Workspace) -> None:
        self.labels_ = self.known_labels
        model = self.model_.to(self.place)
        adam = AveragedAdam(model.weights)
        series = data.steps(_LABEL)
        training = run.training(
            "Training the classifier",
            torch.Generator(),
            weights=adam.weights,
            average=adam.average,
            mean=adam.mean,
            square=adam.square,
        )
        for step in training(series):
            # In units of the noise: a public scale, to which Adam is blind in any case.
            gradient = model.gradient(step.sum(model.gradients)[0]) / series.noise_std
            rate = self.learning_rate * self._cooled(step.index, len(series))
            adam.move(gradient, rate, step.index + 1)
        model.weights = adam.average
        model.cpu()

    def _cooled(self, step: int, steps: int) -> float:
        if self.schedule == "steps":
            return 0.8 ** math.floor(step * self.rate / 5 + 1e-9)
        return 0.5 * (1 + math.cos(math.pi * step / steps))

    def filters(self) -> FilterBank:
        """All maps of all classes, in the space of the records: the global view."""
        self._check_fitted()
        weights, biases = self.model_.filters()
        return FilterBank(
            schema=self.schema_, features=self.model_.names, weights=weights, biases=biases
        )

    def _picture(self) -> bytes | None:
        return png_of(self.filters().picture()) if self.schema_.kind == "images" else None

    def _earlier(self, state: dict[str, Tensor]) -> dict[str, Any]:
        self.model_.load_state_dict({"weights": state["weights"]})
        known = state["labels"].numpy().tobytes() if "labels" in state else b"null"
        return {"model_": self.model_.eval(), "labels_": json.loads(known)}
