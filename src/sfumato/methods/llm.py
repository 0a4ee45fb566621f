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

import json
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.data.sources import Array
from sfumato.errors import BadInput
from sfumato.methods.base import PrivateMethod, Workspace, png_of
from sfumato.methods.descent import TrainingState, descend
from sfumato.methods.explanations import FilterBank
from sfumato.methods.registry import register
from sfumato.privacy import Charge, OuterMap, Plan, PrivateData, balanced, enforced_bound
from sfumato.public.cosines import cosines
from sfumato.public.products import row_product
from sfumato.public.tabular import encoding_of

_LABEL = "gradients"
_FAST, _SLOW = 0.9, 0.999  # Adam's two memories
_MEMORY = 0.1  # share of the steps so far that the averaged weights remember
_MOST_STEPS = 1e9


@register(
    "llm",
    title="DP-LLM",
    paper="Harder, Bauer and Park 2020, “Interpretable and Differentially Private Predictions”",
    kinds=("images", "table"),
    summary="A classifier of a few linear maps per class, trained with DP-SGD; its maps explain every prediction.",
    makes="classifier",
)
class LinearMaps(PrivateMethod):
    """DP-LLM for labelled images and tables: the weights. `sfumato.LocallyLinearMaps` predicts and explains with them.

    **Guarantee**: each step releases one sum of outer products over a fresh Poisson sample, each clipped to norm `clip`, with
    Gaussian noise; all steps are composed by privacy loss distributions and calibrated to the budget. The weights are all that
    is learnt, so predictions and explanations of other records are post-processing.

    Differs from the paper: Poisson samples of a public `rate` (never divided by their private size) in place of shuffled
    batches; images are projected on their lowest spatial frequencies, which keep more of an image than as many random
    directions and give smooth filters (`basis="random"` is the paper's); a larger learning rate, falling to zero, and averaged
    weights.
    """

    # What whoever fitted arrays calls the classes, by code: a stated, public list. A data set's labels are the codes themselves.
    labels_: list[Any] | None = None

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
            sampler="floating",
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
        self.model_ = model

    def filters(self) -> FilterBank:
        """All maps of all classes, in the space of the records: the global view."""
        self._check_fitted()
        weights, biases = self.model_.filters()
        return FilterBank(
            schema=self.schema_, features=self.model_.names, weights=weights, biases=biases
        )

    def _state(self) -> dict[str, Tensor]:
        state = {"weights": self.model_.weights}
        if self.labels_ is not None:
            text = json.dumps(self.labels_).encode()
            state["labels"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return state

    def _restore(self, state: dict[str, Tensor]) -> None:
        model = _Model(self, self.schema_, weightless=True)
        if state["weights"].shape != (model.left, model.right):
            raise RuntimeError("the weights are of another shape")
        model.weights = state["weights"]
        self.model_ = model
        if "labels" in state:
            self.labels_ = json.loads(state["labels"].numpy().tobytes())

    def _picture(self) -> bytes | None:
        return png_of(self.filters().picture()) if self.schema_.kind == "images" else None

    @property
    def _steps(self) -> int:
        steps = self.epochs / self.rate
        if not steps <= _MOST_STEPS:
            raise BadInput(
                f"llm's epochs ÷ rate are more than {_MOST_STEPS:.0e} steps; give fewer epochs or a larger rate."
            )
        return max(1, round(steps))

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


class _Model:
    """The maps themselves. Everything in it is public: settings, seed, and weights that were released."""

    def __init__(self, settings: LinearMaps, schema: Schema, *, weightless: bool = False) -> None:
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
            x = row_product(x, self.projection.T)
        return torch.cat([x, x.new_ones(len(x), 1)], dim=1)

    def activations(self, inputs: Tensor) -> Tensor:
        """g, (n, classes, maps)"""
        g = row_product(inputs, self.weights.T)
        return g.view(len(inputs), self.classes, self.maps)

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
    settings: LinearMaps, schema: Schema, wide: int, random: torch.Generator
) -> Tensor | None:
    """R, (projected, encoded), or None where records are small enough. Public: a basis, or drawn from the seed."""
    narrow = int(settings.projection)
    if wide <= narrow:
        return None
    if schema.kind == "table" or settings.basis == "random":
        return torch.randn(narrow, wide, generator=random) / math.sqrt(narrow)
    channels, height, width = schema.shape
    down, across = cosines(height).float(), cosines(width).float()
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
