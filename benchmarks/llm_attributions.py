"""What a private classifier looks at: filters of DP-LLM beside gradient attributions of a DP-CNN of the same ε.

Fits both to Fashion-MNIST, writes docs/images/llm-attributions.png and docs/images/llm-filters.png, and prints their accuracies
as a Markdown table. The records shown are test images of a public data set.

    python benchmarks/llm_attributions.py [--epsilon 2] [--epochs 8]
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

import sfumato
from sfumato.data import Dataset
from sfumato.privacy import Budget, Charge, GradientSum, Ledger, PrivateData, calibrate

IMAGES = Path(__file__).parent.parent / "docs" / "images"
CLIP, RATE, LEARNING_RATE = 0.1, 1 / 30, 2e-3


def network() -> nn.Module:
    """The small convolutional network that is common for DP-SGD on such images (26,010 parameters)."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.AvgPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.AvgPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def cross_entropy(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(pixels), labels, reduction="none")


def private_cnn(data: Dataset, budget: Budget, epochs: int) -> nn.Module:
    """DP-SGD with Adam on Poisson samples, within the same budget."""
    model = network()
    gradients = GradientSum(
        model, cross_entropy, bound=CLIP, inputs=lambda b, _: (b.pixels(), b.labels)
    )
    steps = round(epochs / RATE)

    def plan(multiplier: float) -> tuple[Charge, ...]:
        return (
            Charge(
                label="cnn",
                bound=gradients.enforced,
                noise_multiplier=multiplier,
                rate=RATE,
                steps=steps,
            ),
        )

    private = PrivateData(data, Ledger(budget))
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    paid = private.poisson_steps(
        RATE, steps, calibrate(plan, budget), bound=gradients.enforced, label="cnn"
    )
    for step in paid:
        gradients.assign(step.noisy_gradient(gradients) / (RATE * private.size * CLIP))
        optimiser.step()
    return model.eval()


def slope(model: nn.Module, x: Tensor, classes: Tensor) -> Tensor:
    """∂ score of its class / ∂ pixels, for each image."""
    x = x.clone().requires_grad_()
    model(x).gather(1, classes[:, None]).sum().backward()
    assert x.grad is not None
    return x.grad


def integrated_gradients(model: nn.Module, x: Tensor, classes: Tensor, points: int = 50) -> Tensor:
    """The mean slope on the way from black to the image (Sundararajan et al. 2017); as in the paper not multiplied by it."""
    shares = (torch.arange(points) + 0.5) / points
    return torch.stack([slope(model, s * x, classes) for s in shares]).mean(dim=0)


def smooth_grad(model: nn.Module, x: Tensor, classes: Tensor, draws: int = 50) -> Tensor:
    """The mean slope around the image, noise of 15 % of the range (Smilkov et al. 2017)."""
    random = torch.Generator().manual_seed(0)
    near = (x + 0.15 * torch.randn(x.shape, generator=random) for _ in range(draws))
    return torch.stack([slope(model, n, classes) for n in near]).mean(dim=0)


def draw(images: Tensor, columns: dict[str, np.ndarray], classes: list[str]) -> Image.Image:
    figure = Figure(figsize=(1.25 * (len(columns) + 1), 1.2 * len(images)), layout="constrained")
    axes = figure.subplots(len(images), len(columns) + 1)
    for i, row in enumerate(axes):
        row[0].imshow(images[i, 0], cmap="gray")
        row[0].set_ylabel(classes[i], fontsize=8)
        for cell, maps in zip(row[1:], columns.values(), strict=True):
            most = np.abs(maps[i]).max()
            cell.imshow(maps[i], cmap="RdBu_r", vmin=-most, vmax=most)
        for cell in row:
            cell.set_xticks([])
            cell.set_yticks([])
    for cell, title in zip(axes[0], ["input", *columns], strict=True):
        cell.set_title(title, fontsize=8)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return Image.open(stream).convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--epochs", type=int, default=8, help="of the DP-CNN")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train, test = (sfumato.load(f"fashion-mnist:{split}") for split in ("train", "test"))
    budget = Budget(epsilon=arguments.epsilon, delta=1e-5)
    llm = sfumato.LocallyLinearMaps().fit(train, budget)
    cnn = private_cnn(train, budget, arguments.epochs)
    with torch.no_grad():
        guesses = torch.cat([cnn(b.pixels()).argmax(dim=1) for b in test.batches(1000)])
    labels = test.labels
    assert labels is not None
    # The first test image of each of six classes.
    chosen = np.array([int(np.flatnonzero(labels == code)[0]) for code in (0, 1, 3, 5, 8, 9)])
    batch = test.take(chosen)
    pixels, truth = batch.pixels(), torch.from_numpy(labels[chosen])
    # Both explain the score of the true class, so that the columns are about the same question.
    told = [llm.explain(test.images[[i]], top=2, of=int(labels[i])) for i in chosen]
    shape = (len(chosen), 28, 28)
    columns = {
        "DP-CNN\nintegrated gr.": integrated_gradients(cnn, pixels, truth).numpy().reshape(shape),
        "DP-CNN\nSmoothGrad": smooth_grad(cnn, pixels, truth).numpy().reshape(shape),
        "DP-LLM\ntop filter": np.stack([t.filters[0, 0] for t in told]).reshape(shape),
        "DP-LLM\nsecond": np.stack([t.filters[0, 1] for t in told]).reshape(shape),
    }
    names = [train.schema.classes[code] for code in labels[chosen]]
    IMAGES.mkdir(exist_ok=True)
    draw(pixels, columns, names).save(IMAGES / "llm-attributions.png", optimize=True)
    llm.filters().picture().save(IMAGES / "llm-filters.png", optimize=True)
    print(f"| Fashion-MNIST, ε = {arguments.epsilon:g}, δ = 1e-5, zero-out, one run | accuracy |")
    print("|---|---|")
    print(f"| DP-LLM | {100 * llm.score(test):.1f} |")
    print(
        f"| DP-CNN ({arguments.epochs} epochs) | {100 * float(np.mean(guesses.numpy() == labels)):.1f} |"
    )


if __name__ == "__main__":
    main()
