"""The classifiers of the downstream test that are our own, and the rows as they take them.

The first two are the models of scikit-learn with the settings the papers use, computed in torch because 60,000 images
take scikit-learn's own solvers a quarter of an hour. They are the same models, not similar ones, and the tests hold
them against scikit-learn:

* `LogisticRegression`: mean cross-entropy + ‖W‖²/(2Cn) with C = 1, intercept not penalised, started at zero, L-BFGS
  until no entry of the gradient exceeds 1e-4 (scikit-learn's `tol`) or 5000 iterations. The problem is solved in
  coordinates in which pixels are uncorrelated; the optimum is the same and is reached in a fraction of the steps.
* `Perceptron`: one hidden layer of 100 ReLU units, Adam 1e-3, batches of 200, L2 1e-4, at most 200 epochs, stopped once
  the training loss has not improved by 1e-4 for ten epochs. Weights and shuffles are drawn as scikit-learn draws them,
  so the same seed gives the same training curve.
* `ConvNet`: the small network of the GS-WGAN and DPDM line of papers, whose details differ from paper to paper; ours is
  described in its docstring.
* `ResNet9`: the classifier that the papers train on synthetic colour images.

With two classes there is one logit, as in scikit-learn. Everything here is trained on synthetic rows and reads no
real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from scipy.optimize import minimize
from torch import nn
from torch.nn import functional

from sfumato.data import Schema
from sfumato.evaluation.metrics import PRECISIONS, Array, Step, numbers
from sfumato.generators.resnet import resnet9


class Classifier(Protocol):
    """`fit` calls `step` with the share of the work just done; `predict` gives codes 0 … n_classes − 1."""

    def fit(self, rows: torch.Tensor, codes: torch.Tensor, n_classes: int, step: Step) -> None: ...

    def predict(self, rows: torch.Tensor) -> torch.Tensor: ...


class ScoringClassifier(Classifier, Protocol):
    """One that can also rank: `scores` gives (n, classes), or (n, 1) for two classes, more for likelier ones."""

    def scores(self, rows: torch.Tensor) -> torch.Tensor: ...


def encoder(schema: Schema, rows: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Images as they are; a table's categories one-hot, its numbers standardised by the *synthetic* rows.

    A missing number becomes the mean and sets an extra column; a missing category sets none of its columns.
    """
    if schema.kind == "images":
        return lambda images: images
    means, scales = rows.nanmean(0), torch.ones(rows.shape[1])
    means = means.nan_to_num(0.0)
    deviations = (rows - means).square().nanmean(0).sqrt().nan_to_num(0.0)
    scales = torch.where(deviations > 0, deviations, torch.ones_like(deviations))

    def encode(table: torch.Tensor) -> torch.Tensor:
        parts = []
        for index, column in enumerate(schema.columns):
            values = table[:, index]
            absent = values.isnan()
            if column.kind == "categorical":
                codes = torch.arange(len(column.categories))
                parts.append((values[:, None] == codes).float())  # NaN equals nothing
                continue
            parts.append(((values - means[index]) / scales[index]).nan_to_num(0.0)[:, None])
            if column.missing:
                parts.append(absent.float()[:, None])
        return torch.cat(parts, 1)

    return encode


# ------------------------------------------------------------------------- models of scikit-learn


class _FromLogits:
    """Decisions and scores by logits; with two classes there is one."""

    def _logits(self, rows: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def predict(self, rows: torch.Tensor) -> torch.Tensor:
        logits = self._logits(rows)
        return (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)

    def scores(self, rows: torch.Tensor) -> torch.Tensor:
        """In double precision, where large logits do not all round to 1; one logit stays itself, which ranks alike."""
        logits = self._logits(rows).double()
        return logits if logits.shape[1] == 1 else logits.softmax(1)


class LogisticRegression(_FromLogits):
    """Multinomial logistic regression, scikit-learn's `LogisticRegression(solver="lbfgs", max_iter=5000)`."""

    inverse_penalty = 1.0  # C
    tolerance = 1e-4
    iterations = 5000
    # Decorrelating costs an eigendecomposition, d³; beyond this width plain coordinates are quicker.
    widest_decorrelated = 4096

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed  # the problem is convex and started at zero: nothing random

    def fit(self, rows: torch.Tensor, codes: torch.Tensor, n_classes: int, step: Step) -> None:
        rows = rows.flatten(1)  # (n, d)
        n, dim = rows.shape
        free = _logits(n_classes)
        # Class-major (classes, n): with ten classes the two products run several times faster than row-major.
        target = _targets(codes, n_classes).T.contiguous()
        ridge = 1.0 / (self.inverse_penalty * n)
        centre = rows.mean(0)
        mixing = self._decorrelation(
            rows, centre, ridge
        )  # W = V @ mixing, intercept = b − W·centre

        def weights_of(point: Array) -> tuple[torch.Tensor, torch.Tensor]:
            theta = torch.from_numpy(point).float()
            raw, shift = theta[: free * dim].view(free, dim), theta[free * dim :]
            weight = raw if mixing is None else raw @ mixing
            return weight, shift - weight @ centre

        worst = math.inf
        seen: Array | None = None

        def objective(point: Array) -> tuple[float, Array]:
            nonlocal worst, seen
            weight, intercept = weights_of(point)
            logits = torch.addmm(intercept[:, None], weight, rows.T)  # (free, n)
            loss, residual = _loss_and_residual(logits, target, along=0)
            residual /= n
            loss = loss / n + 0.5 * ridge * float(weight.double().square().sum())
            by_intercept = residual.sum(1)
            by_weight = residual @ rows + ridge * weight
            worst = max(float(by_weight.abs().max()), float(by_intercept.abs().max()))
            seen = point.copy()
            back = by_weight - by_intercept[:, None] * centre
            if mixing is not None:
                back = back @ mixing
            return loss, np.concatenate(
                [back.flatten().double().numpy(), by_intercept.double().numpy()]
            )

        def after_iteration(point: Array) -> None:
            step(0.0)
            # scikit-learn's stopping rule is on the gradient in the original coordinates.
            if worst <= self.tolerance and seen is not None and np.array_equal(point, seen):
                raise StopIteration

        solution = minimize(
            objective,
            np.zeros(free * dim + free),
            jac=True,
            method="L-BFGS-B",
            callback=after_iteration,
            options={
                "maxiter": self.iterations,
                "maxfun": 2 * self.iterations,
                "maxls": 50,
                "gtol": 0.0,
                "ftol": 64 * np.finfo(np.float64).eps,
            },
        )
        self.n_iter_ = int(solution.nit)
        self.loss_ = float(solution.fun)
        self.weight_, self.intercept_ = weights_of(solution.x)
        step(1.0)

    def _decorrelation(
        self, rows: torch.Tensor, centre: torch.Tensor, ridge: float
    ) -> torch.Tensor | None:
        n, dim = rows.shape
        if dim > self.widest_decorrelated:
            return None
        scatter = (rows.T @ rows).double() / n - torch.outer(centre.double(), centre.double())
        values, vectors = torch.linalg.eigh(scatter)
        # A tenth is about the mean curvature p(1 − p) of a softmax under way to its optimum.
        scale = (0.1 * values.clamp(min=0.0) + ridge).rsqrt()
        return ((vectors * scale) @ vectors.T).float()

    def _logits(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.flatten(1) @ self.weight_.T + self.intercept_


class Perceptron(_FromLogits):
    """One hidden layer, scikit-learn's `MLPClassifier()` with all its defaults."""

    hidden = 100
    rate = 1e-3
    penalty = 1e-4
    batch = 200
    epochs = 200
    tolerance = 1e-4
    patience = 10

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, rows: torch.Tensor, codes: torch.Tensor, n_classes: int, step: Step) -> None:
        rows = rows.flatten(1)
        n, dim = rows.shape
        free = _logits(n_classes)
        target = _targets(codes, n_classes)
        draw = np.random.RandomState(self.seed)
        w1, b1 = _glorot(draw, dim, self.hidden)
        w2, b2 = _glorot(draw, self.hidden, free)
        # One flat vector for Adam: four small updates a step would cost more than the arithmetic.
        shapes = [w.shape for w in (w1, b1, w2, b2)]
        flat = torch.cat([w.flatten() for w in (w1, b1, w2, b2)])
        gradient = torch.zeros_like(flat)
        w1, b1, w2, b2 = self.weights_ = _views(flat, shapes)
        by_w1, by_b1, by_w2, by_b2 = _views(gradient, shapes)
        flat.grad = gradient
        adam = torch.optim.Adam([flat], lr=self.rate, fused=True)

        batch = min(self.batch, n)
        order = np.arange(n)
        self.loss_curve_: list[float] = []
        best, idle, time = math.inf, 0, 0
        for _ in range(self.epochs):
            shuffle = np.arange(n)
            draw.shuffle(shuffle)
            order = order[shuffle]
            chosen = torch.from_numpy(order)
            total = 0.0
            for start in range(0, n, batch):
                index = chosen[start : start + batch]
                m = len(index)
                x = rows.index_select(0, index)  # (m, d)
                hidden = torch.addmm(b1, x, w1).relu_()
                logits = torch.addmm(b2, hidden, w2)  # (m, classes)
                loss, residual = _loss_and_residual(logits, target.index_select(0, index), along=1)
                squares = float(w1.flatten().dot(w1.flatten()) + w2.flatten().dot(w2.flatten()))
                total += loss + 0.5 * self.penalty * squares
                residual.div_(m)
                below = (residual @ w2.T).mul_(hidden > 0)
                torch.mm(x.T, below, out=by_w1).add_(w1, alpha=self.penalty / m)
                torch.sum(below, 0, out=by_b1)
                torch.mm(hidden.T, residual, out=by_w2).add_(w2, alpha=self.penalty / m)
                torch.sum(residual, 0, out=by_b2)
                time += 1
                # scikit-learn adds its 1e-8 before the bias correction, torch after it.
                adam.param_groups[0]["eps"] = 1e-8 / math.sqrt(1.0 - 0.999**time)
                adam.step()
            self.loss_curve_.append(total / n)
            idle = idle + 1 if self.loss_curve_[-1] > best - self.tolerance else 0
            best = min(best, self.loss_curve_[-1])
            step(1.0 / self.epochs)
            if idle > self.patience:
                break

    def _logits(self, rows: torch.Tensor) -> torch.Tensor:
        w1, b1, w2, b2 = self.weights_
        return torch.addmm(b2, torch.addmm(b1, rows.flatten(1), w1).relu_(), w2)


def _logits(n_classes: int) -> int:
    return 1 if n_classes == 2 else n_classes


def _targets(codes: torch.Tensor, n_classes: int) -> torch.Tensor:
    if n_classes == 2:
        return codes[:, None].float()  # (n, 1)
    return functional.one_hot(codes, n_classes).float()  # (n, classes)


def _loss_and_residual(
    logits: torch.Tensor, target: torch.Tensor, along: int
) -> tuple[float, torch.Tensor]:
    """Summed cross-entropy, and probability − target (its gradient by the logits)."""
    if logits.shape[along] == 1:
        loss = functional.softplus(logits) - logits * target
        return float(loss.double().sum()), logits.sigmoid_().sub_(target)
    log_probability = torch.log_softmax(logits, along)
    loss = -(log_probability * target).sum(dtype=torch.float64)
    return float(loss), log_probability.exp_().sub_(target)


def _glorot(
    draw: np.random.RandomState, inward: int, outward: int
) -> tuple[torch.Tensor, torch.Tensor]:
    bound = math.sqrt(6.0 / (inward + outward))
    weight = draw.uniform(-bound, bound, (inward, outward)).astype(np.float32)
    shift = draw.uniform(-bound, bound, outward).astype(np.float32)
    return torch.from_numpy(weight), torch.from_numpy(shift)


def _views(flat: torch.Tensor, shapes: list[torch.Size]) -> list[torch.Tensor]:
    parts = flat.split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


# ------------------------------------------------------------------------- networks for images


class ImageNetwork(_FromLogits):
    """A network trained with a one-cycle rate; a smaller set is shown more often, as often as shows `least_images`."""

    batch: int
    epochs: int
    most_epochs: int
    least_images = 60_000
    peak: float
    watch: Callable[[int], None] | None = None  # called after each epoch, with its number
    precision = PRECISIONS[0]

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, rows: torch.Tensor, codes: torch.Tensor, n_classes: int, step: Step) -> None:
        n = len(rows)
        epochs = min(self.most_epochs, max(self.epochs, math.ceil(self.least_images / n)))
        batches = math.ceil(n / self.batch)
        # torch's global generator is neither read nor moved: metrics run side by side, and callers have their own seeds.
        draw = torch.Generator().manual_seed(self.seed)
        with torch.device("meta"):
            network = self._build(rows.shape[1:], n_classes)
        self.network_ = _initialised(network, draw)
        optimizer = self._optimizer()
        # A fifth of five steps is a rise of no length, which torch divides by.
        steps = max(epochs * batches + 1, 6)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.peak, total_steps=steps, pct_start=0.2
        )
        for epoch in range(epochs):
            for index in torch.randperm(n, generator=draw).chunk(batches):
                with numbers(self.precision):
                    loss = self._loss(rows[index], codes[index], draw)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                step(1.0 / (epochs * batches))
            if self.watch is not None:
                self.network_.eval()
                self.watch(epoch + 1)
                self.network_.train()
        self.network_.eval()

    def restored(
        self, shape: torch.Size, n_classes: int, state: dict[str, torch.Tensor]
    ) -> nn.Sequential:
        """The network that `fit` trained once for such images, from its weights."""
        self.network_ = self._build(shape, n_classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network_.load_state_dict(state)
        return self.network_.eval()

    @torch.no_grad()
    def _logits(self, rows: torch.Tensor) -> torch.Tensor:
        with numbers(self.precision):
            return torch.cat([self.network_(part).float() for part in rows.split(500)])

    def _build(self, shape: torch.Size, n_classes: int) -> nn.Sequential:
        raise NotImplementedError

    def _optimizer(self) -> torch.optim.Optimizer:
        raise NotImplementedError

    def _loss(
        self, images: torch.Tensor, codes: torch.Tensor, draw: torch.Generator
    ) -> torch.Tensor:
        raise NotImplementedError


class ConvNet(ImageNetwork):
    """Convolutions 3×3, ReLU and 2×2 max-pooling until the map is at most 7 wide, one more convolution, 128 units, classes.

    For 28×28 that is 16, 32 and 32 channels. Adam with a one-cycle rate (peak 3e-3), batches of 128, dropout 0.3 before
    the last layer, 5 epochs, or as many as show 60,000 images if the set is smaller (at most 60 epochs).
    """

    batch = 128
    epochs = 5
    most_epochs = 60
    peak = 3e-3
    dropout = 0.3

    def _build(self, shape: torch.Size, n_classes: int) -> nn.Sequential:
        channels, height, width = shape
        layers: list[nn.Module] = []
        wide = 16
        while max(height, width) > 7:
            # A side that is already short is not halved to nothing because the other is long.
            pool = (2 if height > 3 else 1, 2 if width > 3 else 1)
            layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.MaxPool2d(pool), nn.ReLU()]
            height, width = height // pool[0], width // pool[1]
            channels, wide = wide, 32
        layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU(), nn.Flatten()]
        layers += [nn.Linear(wide * height * width, 128), nn.ReLU()]
        return nn.Sequential(nn.Sequential(*layers), nn.Linear(128, n_classes))

    def _optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.network_.parameters(), lr=self.peak, fused=True)

    def _loss(
        self, images: torch.Tensor, codes: torch.Tensor, draw: torch.Generator
    ) -> torch.Tensor:
        body, head = self.network_
        hidden = body(images)
        kept = torch.rand(hidden.shape, generator=draw) >= self.dropout
        return functional.cross_entropy(head(hidden * kept / (1.0 - self.dropout)).float(), codes)


class ResNet9(ImageNetwork):
    """The layers of the CIFAR-10 example of FFCV, which the papers name, for images of at least 8×8, any number of channels.

    3×3 convolutions with batch norm and ReLU (64; 128 by a 5×5 of stride 2; residual; 256; pool; residual; 128), global
    max-pooling, a linear layer times 0.2. SGD with momentum 0.9, weight decay 5e-4, label smoothing 0.1, flips and shifts by up
    to 2 pixels. Smaller sets are shown more often, at most 40 times.

    Differs from the papers: 8 epochs with a one-cycle rate instead of 24, since these run on a processor, not on a GPU.
    """

    batch = 256
    epochs = 8
    most_epochs = 40
    peak = 0.2
    width = 64

    def _build(self, shape: torch.Size, n_classes: int) -> nn.Sequential:
        return nn.Sequential(
            *resnet9(shape[0], self.width), nn.Linear(2 * self.width, n_classes, bias=False)
        )

    def _optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            self.network_.parameters(), lr=self.peak, momentum=0.9, weight_decay=5e-4
        )

    def _loss(
        self, images: torch.Tensor, codes: torch.Tensor, draw: torch.Generator
    ) -> torch.Tensor:
        logits = 0.2 * self.network_(_jittered(images, draw)).float()
        return functional.cross_entropy(logits, codes, label_smoothing=0.1)


def _jittered(images: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Half of the images mirrored, all shifted by up to two pixels (one shift a batch) with edges repeated."""
    flip = torch.rand(len(images), 1, 1, 1, generator=draw) < 0.5
    images = torch.where(flip, images.flip(3), images)
    down, right = (int(s) for s in torch.randint(0, 5, (2,), generator=draw))
    height, width = images.shape[2:]
    padded = functional.pad(images, (2, 2, 2, 2), mode="replicate")
    moved = padded[:, :, down : down + height, right : right + width]
    return moved.contiguous(memory_format=torch.channels_last)


def _initialised(network: nn.Sequential, draw: torch.Generator) -> nn.Sequential:
    """A network without numbers, with torch's own initialisation drawn from `draw`."""
    network = network.to_empty(device="cpu")
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                bound = 1.0 / math.sqrt(layer.weight[0].numel())
                layer.weight.uniform_(-bound, bound, generator=draw)
                if layer.bias is not None:
                    layer.bias.uniform_(-bound, bound, generator=draw)
            elif isinstance(layer, nn.BatchNorm2d):
                layer.reset_parameters()
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
