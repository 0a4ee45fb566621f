"""The three classifiers of the downstream test: logistic regression, a perceptron, a small convolutional network.

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

With two classes there is one logit, as in scikit-learn. Everything here is trained on synthetic rows and reads no
real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from scipy.optimize import minimize
from torch import nn
from torch.nn import functional

Array = np.ndarray[Any, Any]
Step = Callable[[float], None]


class Classifier(Protocol):
    """`fit` calls `step` with the share of the work just done; `predict` gives codes 0 … n_classes − 1."""

    def fit(self, rows: torch.Tensor, codes: torch.Tensor, n_classes: int, step: Step) -> None: ...

    def predict(self, rows: torch.Tensor) -> torch.Tensor: ...


class LogisticRegression:
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
        mixing = self._decorrelation(rows, centre, ridge)  # W = V @ mixing, intercept = b − W·centre

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
            return loss, np.concatenate([back.flatten().double().numpy(), by_intercept.double().numpy()])

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

    def _decorrelation(self, rows: torch.Tensor, centre: torch.Tensor, ridge: float) -> torch.Tensor | None:
        n, dim = rows.shape
        if dim > self.widest_decorrelated:
            return None
        scatter = (rows.T @ rows).double() / n - torch.outer(centre.double(), centre.double())
        values, vectors = torch.linalg.eigh(scatter)
        # A tenth is about the mean curvature p(1 − p) of a softmax under way to its optimum.
        scale = (0.1 * values.clamp(min=0.0) + ridge).rsqrt()
        return ((vectors * scale) @ vectors.T).float()

    def predict(self, rows: torch.Tensor) -> torch.Tensor:
        return _decide(rows.flatten(1) @ self.weight_.T + self.intercept_)


class Perceptron:
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
        self.weights_ = (w1, b1, w2, b2)
        # One flat vector for Adam: four small updates a step would cost more than the arithmetic.
        flat = torch.cat([w.flatten() for w in self.weights_])
        gradient = torch.empty_like(flat)
        sizes = [w.numel() for w in self.weights_]
        shapes = [w.shape for w in self.weights_]
        w1, b1, w2, b2 = (part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True))
        g1, h1, g2, h2 = (part.view(shape) for part, shape in zip(gradient.split(sizes), shapes, strict=True))
        self.weights_ = (w1, b1, w2, b2)
        first, second = torch.zeros_like(flat), torch.zeros_like(flat)

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
                x = rows[index]  # (m, d)
                hidden = torch.addmm(b1, x, w1).relu_()
                loss, residual = _loss_and_residual(torch.addmm(b2, hidden, w2), target[index], along=1)
                squares = float(torch.dot(w1.flatten(), w1.flatten()) + torch.dot(w2.flatten(), w2.flatten()))
                total += loss + 0.5 * self.penalty * squares
                torch.mm(hidden.T, residual, out=g2)
                torch.sum(residual, 0, out=h2)
                # (W₂ᵀ residual) only where the unit was on.
                below = (residual @ w2.T).mul_(hidden > 0)
                torch.mm(x.T, below, out=g1)
                torch.sum(below, 0, out=h1)
                g1.add_(w1, alpha=self.penalty)
                g2.add_(w2, alpha=self.penalty)
                gradient.div_(m)
                time += 1
                first.lerp_(gradient, 0.1)
                second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                rate = self.rate * math.sqrt(1.0 - 0.999**time) / (1.0 - 0.9**time)
                flat.addcdiv_(first, second.sqrt().add_(1e-8), value=-rate)
            self.loss_curve_.append(total / n)
            idle = idle + 1 if self.loss_curve_[-1] > best - self.tolerance else 0
            best = min(best, self.loss_curve_[-1])
            step(1.0 / self.epochs)
            if idle > self.patience:
                break

    def predict(self, rows: torch.Tensor) -> torch.Tensor:
        w1, b1, w2, b2 = self.weights_
        return _decide(torch.addmm(b2, torch.addmm(b1, rows.flatten(1), w1).relu_(), w2))


class ConvNet:
    """Convolutions 3×3 with batch norm, ReLU and 2×2 max-pooling until the map is at most 7 wide, one more, then 128 units.

    For 28×28 that is 32, 64 and 64 channels. Adam with a one-cycle rate (peak 3e-3), batches of 128, dropout ½ before
    the last layer, 5 epochs, or as many as show 60,000 images if the set is smaller (at most 60 epochs).
    """

    batch = 128
    epochs = 5
    most_epochs = 60
    least_images = 60_000
    peak = 3e-3

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, rows: torch.Tensor, codes: torch.Tensor, n_classes: int, step: Step) -> None:
        n = len(rows)
        epochs = min(self.most_epochs, max(self.epochs, math.ceil(self.least_images / n)))
        # The seeds below must not disturb, nor depend on, what the caller draws from torch's global generator.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.network_ = _conv_network(rows.shape[1:], n_classes).to(memory_format=torch.channels_last)
            optimiser = torch.optim.Adam(self.network_.parameters(), lr=self.peak, fused=True)
            batches = math.ceil(n / self.batch)
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimiser, max_lr=self.peak, total_steps=epochs * batches + 1, pct_start=0.2
            )
            self.network_.train()
            for _ in range(epochs):
                for index in torch.randperm(n).chunk(batches):
                    loss = functional.cross_entropy(self.network_(rows[index]), codes[index])
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
                    schedule.step()
                    step(1.0 / (epochs * batches))
            self.network_.eval()

    @torch.no_grad()
    def predict(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.network_(part).argmax(1) for part in rows.split(1000)])


def _conv_network(shape: torch.Size, n_classes: int) -> nn.Sequential:
    channels, height, width = shape
    layers: list[nn.Module] = []
    wide = 32
    while max(height, width) > 7:
        layers += [nn.Conv2d(channels, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
        # A side already short is not halved to nothing when the other is long.
        stride = (2 if height > 3 else 1, 2 if width > 3 else 1)
        layers.append(nn.MaxPool2d(stride))
        height, width = height // stride[0], width // stride[1]
        channels, wide = wide, min(2 * wide, 64)
    layers += [nn.Conv2d(channels, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(), nn.Flatten()]
    layers += [nn.Linear(wide * height * width, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, n_classes)]
    return nn.Sequential(*layers)


def _logits(n_classes: int) -> int:
    return 1 if n_classes == 2 else n_classes


def _targets(codes: torch.Tensor, n_classes: int) -> torch.Tensor:
    if n_classes == 2:
        return codes[:, None].float()  # (n, 1)
    return functional.one_hot(codes, n_classes).float()  # (n, classes)


def _loss_and_residual(logits: torch.Tensor, target: torch.Tensor, along: int) -> tuple[float, torch.Tensor]:
    """Summed cross-entropy, and probability − target (its gradient by the logits)."""
    if logits.shape[along] == 1:
        loss = functional.softplus(logits) - logits * target
        return float(loss.double().sum()), logits.sigmoid_().sub_(target)
    log_probability = torch.log_softmax(logits, along)
    loss = -(log_probability * target).sum(dtype=torch.float64)
    return float(loss), log_probability.exp_().sub_(target)


def _decide(logits: torch.Tensor) -> torch.Tensor:
    return (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)


def _glorot(draw: np.random.RandomState, inward: int, outward: int) -> tuple[torch.Tensor, torch.Tensor]:
    bound = math.sqrt(6.0 / (inward + outward))
    weight = draw.uniform(-bound, bound, (inward, outward)).astype(np.float32)
    shift = draw.uniform(-bound, bound, outward).astype(np.float32)
    return torch.from_numpy(weight), torch.from_numpy(shift)
