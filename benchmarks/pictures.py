"""Pictures of the documentation, with the numbers that belong to them; synthetic records, or test images of public sets.

    python benchmarks/pictures.py NAME [--out FOLDER] [--sets SET,…] [--run FOLDER]

- `epsilons`: DP-MERF on Fashion-MNIST at five ε, the same latent numbers in every row;
- `gaussians`: the mixture of 25 Gaussians beside points of DP-MERF and DP-HP (settings of accuracy/gaussians.toml, seed 0);
- `kernel`: Hermite and random Fourier features against the Gaussian kernel (DP-HP, figure 1): 100 points from N(0, 1), the
  squared length scale their median squared distance, mean absolute error over all pairs, random ones over 100 draws;
- `attributions`: filters of DP-LLM beside gradient attributions of a DP-CNN of the same ε = 2, on Fashion-MNIST;
- `bend`: draws of one mixture of MNIST at ε = 1, the same in every row, bent by 0, 0.25, 0.5 and 1;
- `samples`: twenty a class of `transport` on Fashion-MNIST at ε = 1, or of a run (`--run FOLDER`);
- `gallery`: the mixture by its defaults at four ε on each set of the gallery, or of `--sets`, the first samples of each class.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from studies import private_cnn
from torch import Tensor, nn

import sfumato
from sfumato.methods import Method, get_method
from sfumato.methods.base import as_bytes
from sfumato.privacy import Budget

HERE = Path(__file__).parent
EPSILONS = (10, 3, 1, 0.2)
TEN = "quickdraw-ten"  # by `prepare.py quickdraw-ten`
GALLERY = ("digits", "chest-xray", "mnist", "fashion-mnist", TEN, "cifar10", "faces")


def epsilons(out: Path) -> None:
    data, wanted = sfumato.load("fashion-mnist:train"), (10, 5, 2, 1, 0.2)
    figure, axes = plt.subplots(len(wanted), 1, figsize=(10, 0.62 * len(wanted)))
    for axis, epsilon in zip(axes, wanted, strict=True):
        made = sfumato.Merf(seed=0).fit(data, Budget(epsilon=epsilon, delta=1e-5)).sample(1_000)
        two = [image for c in range(10) for image in made.images[made.labels == c][:2, 0]]
        axis.imshow(np.concatenate(two, axis=1), cmap="gray", vmin=0, vmax=255)
        axis.set(xticks=[], yticks=[])
        axis.set_ylabel(f"ε = {epsilon}", rotation=0, ha="right", va="center", fontsize=9)
    figure.subplots_adjust(left=0.08, right=0.995, top=0.99, bottom=0.01, hspace=0.05)
    figure.savefig(out / "merf-epsilons.png", dpi=100, metadata={"Software": None})


def gaussians(out: Path) -> None:
    methods = tomllib.loads((HERE / "accuracy" / "gaussians.toml").read_text())["methods"]
    train, test = (sfumato.load(f"gaussians-2d:{split}") for split in ("train", "test"))
    pictures = {"the mixture itself": test}
    for name, settings in methods.items():
        for relation in sfumato.Neighbours("replace-one"), sfumato.Neighbours("zero-out"):
            budget = Budget(epsilon=1.0, delta=1e-5, neighbours=relation)
            made = get_method(name)(**settings, seed=0).fit(train, budget).sample(10_000, seed=0)
            (loss,) = sfumato.evaluate(made, test, metrics=["nll"], seed=0).metrics
            title = get_method(name).info.title
            pictures[f"{title}, {relation.value}: {loss.value:.2f}"] = made
    figure, axes = plt.subplots(1, 5, figsize=(15, 3.2), layout="constrained")
    for axis, (title, points) in zip(axes, pictures.items(), strict=True):
        x, y = points.values[:4000].T
        axis.scatter(x, y, c=points.labels[:4000], s=1, cmap="tab10", vmax=9, lw=0)
        axis.set(xlim=(-1, 5), ylim=(-1, 5), xticks=[], yticks=[], aspect="equal")
        axis.set_title(title, fontsize=9)
    figure.savefig(out / "gaussians.png", dpi=100, metadata={"Software": None})


def kernel(out: Path) -> None:
    from sfumato.data import Batch
    from sfumato.public.fourier import FourierFeatures
    from sfumato.public.hermite import hermite, rho_of

    numbers = (2, 4, 6, 8, 10, 14, 20, 30, 50, 100)
    x = torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    squares, points = (x[:, None] - x).square(), Batch(x[:, None].float(), None)
    scale = float(squares[squares > 0].median())

    def error(phi: Tensor) -> float:
        return float((phi @ phi.T - torch.exp(-squares / (2 * scale))).abs().mean())

    def random(n: int) -> float:
        maps = (FourierFeatures(1, n, scale, seed=seed) for seed in range(100))
        return sum(error(phi(points).double()) for phi in maps) / 100

    errors = {
        "random Fourier features": [random(n) for n in numbers],
        "Hermite features": [
            error(torch.stack(list(hermite(x, n - 1, rho_of(scale))), dim=1)) for n in numbers
        ],
    }
    print("| features | Hermite | random Fourier (mean of 100 draws) |\n|---|---|---|")
    for n, theirs, ours in zip(numbers, *errors.values(), strict=True):
        print(f"| {n} | {ours:.1e} | {theirs:.1e} |")
    figure, axes = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
    for (label, values), colour in zip(errors.items(), ("tab:gray", "tab:brown"), strict=True):
        # Beyond double precision there is nothing to see.
        axes.loglog(numbers, np.maximum(values, 1e-16), "o-", label=label, color=colour)
    axes.set(xlabel="number of features", ylabel="mean absolute error of the kernel")
    axes.set_title("Gaussian kernel on 100 points of N(0, 1)", fontsize=10)
    axes.legend(frameon=False)
    figure.savefig(out / "hp-kernel.png", dpi=110, metadata={"Software": None})


def small_cnn() -> nn.Sequential:
    """The network that is common for DP-SGD (26,010 parameters)."""
    first, second = nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Conv2d(16, 32, 4, stride=2)
    model = nn.Sequential(first, nn.Tanh(), nn.AvgPool2d(2, 1), second, nn.Tanh())
    model.extend([nn.AvgPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.Tanh()])
    return model.append(nn.Linear(32, 10))


def mean_slope(model: nn.Module, images: list[Tensor], classes: Tensor) -> np.ndarray:
    """The mean of ∂ score of its class / ∂ pixels over variants of each image."""
    total = torch.zeros_like(images[0])
    for x in images:
        x.requires_grad_()
        total += torch.autograd.grad(model(x).gather(1, classes[:, None]).sum(), x)[0]
    return (total / len(images)).numpy()[:, 0]


def attributions(out: Path) -> None:
    train, test = (sfumato.load(f"fashion-mnist:{split}") for split in ("train", "test"))
    budget, epochs = Budget(epsilon=2.0, delta=1e-5), 8
    llm = sfumato.LocallyLinearMaps().fit(train, budget)
    torch.manual_seed(0)
    cnn = private_cnn(small_cnn(), train, budget, epochs)
    labels = test.labels
    assert labels is not None
    with torch.no_grad():
        guesses = torch.cat([cnn(b.pixels()).argmax(dim=1) for b in test.batches(1000)]).numpy()
    chosen = [int(np.flatnonzero(labels == code)[0]) for code in (0, 1, 3, 5, 8, 9)]
    x, truth = test.take(np.array(chosen)).pixels(), torch.from_numpy(labels[chosen])
    # Both explain the score of the true class. Integrated gradients (Sundararajan et al. 2017) are, as in the paper, not
    # multiplied by the image; SmoothGrad (Smilkov et al. 2017) has noise of 15 % of the range.
    told = [llm.explain(test.images[[i]], top=2, of=int(labels[i])) for i in chosen]
    random = torch.Generator().manual_seed(0)
    near = [x + 0.15 * torch.randn(x.shape, generator=random) for _ in range(50)]
    columns = {
        "DP-CNN\nintegrated gr.": mean_slope(cnn, [(i + 0.5) / 50 * x for i in range(50)], truth),
        "DP-CNN\nSmoothGrad": mean_slope(cnn, near, truth),
        "DP-LLM\ntop filter": np.stack([t.filters[0, 0].reshape(28, 28) for t in told]),
        "DP-LLM\nsecond": np.stack([t.filters[0, 1].reshape(28, 28) for t in told]),
    }
    figure, axes = plt.subplots(6, 5, figsize=(6.25, 7.2), layout="constrained")
    for i, row in enumerate(axes):
        row[0].imshow(x[i, 0], cmap="gray")
        row[0].set_ylabel(train.schema.classes[truth[i]], fontsize=8)
        for axis, (title, maps) in zip(row[1:], columns.items(), strict=True):
            most = np.abs(maps[i]).max()
            axis.imshow(maps[i], cmap="RdBu_r", vmin=-most, vmax=most)
            axis.set_title(title if i == 0 else "", fontsize=8)
    plt.setp(axes, xticks=[], yticks=[])
    figure.savefig(out / "llm-attributions.png", dpi=110)
    llm.filters().picture().save(out / "llm-filters.png", optimize=True)
    print("| Fashion-MNIST, ε = 2, δ = 1e-5, zero-out, one run | accuracy |\n|---|---|")
    print(f"| DP-LLM | {100 * llm.score(test):.1f} |")
    print(f"| DP-CNN ({epochs} epochs) | {100 * np.mean(guesses == labels):.1f} |")


def gallery(out: Path, sets: Sequence[str] = GALLERY) -> None:
    for name in sets:
        if name == TEN:
            kept = np.load(Path("runs/data") / f"{TEN}-train.npz")
            data = sfumato.Dataset.from_arrays(kept["images"], kept["labels"], classes=10)
        else:
            data = sfumato.load(f"{name}:train")
        classes, (colours, height, width) = data.schema.n_classes, data.schema.shape
        lines = (
            2 if classes == 2 else 1
        )  # about twenty samples an ε: in one line, or a line a class
        labels = np.repeat(np.arange(classes), 20 // classes)
        size = (10, len(EPSILONS) * lines**2 * 9.2 / len(labels) * height / width + 0.1)
        figure, axes = plt.subplots(len(EPSILONS), 1, figsize=size)
        for axis, epsilon in zip(axes, EPSILONS, strict=True):
            model = sfumato.Mixture(seed=0).fit(data, Budget(epsilon=epsilon, delta=1e-5))
            images = model.sample(labels=labels, seed=0).images.transpose(0, 2, 3, 1)
            rows = [np.concatenate(list(line), axis=1) for line in np.split(images, lines)]
            axis.imshow(np.concatenate(rows), cmap="gray", vmin=0, vmax=255)
            axis.set(xticks=[], yticks=[])
            axis.set_ylabel(f"ε = {epsilon}", rotation=0, ha="right", va="center", fontsize=9)
        figure.subplots_adjust(left=0.075, right=0.995, top=0.99, bottom=0.01, hspace=0.04)
        figure.savefig(out / f"gallery-{name}.png", dpi=100, metadata={"Software": None})
        plt.close(figure)
        with Image.open(out / f"gallery-{name}.png") as made:  # small enough for a page
            small = (
                made.convert("L").quantize(32)
                if colours == 1
                else made.convert("RGB").quantize(256)
            )
        small.save(out / f"gallery-{name}.png", optimize=True)


def samples(
    out: Path,
    sets: Sequence[str] = ("fashion-mnist",),
    method: str = "transport",
    run: Path | None = None,
) -> None:
    if run is not None:
        shown(sfumato.load_run(run), out / f"{run.name}-samples.png")
    for name in () if run else sets:
        data = sfumato.load(f"{name}:train")
        model = get_method(method)(seed=0).fit(data, Budget(epsilon=1.0, delta=1e-5))
        shown(model, out / f"{method}-{name}-samples.png")


def shown(model: Method, path: Path) -> None:
    """Twenty samples a class, a row a class."""
    classes = model.schema_.n_classes
    images = model.sample(labels=np.repeat(np.arange(classes), 20), seed=0).images
    lines = np.split(images.transpose(0, 2, 3, 1), classes)
    rows = [np.concatenate(list(line), axis=1) for line in lines]
    picture = Image.fromarray(np.concatenate(rows).squeeze())
    picture = picture.resize((2 * picture.width, 2 * picture.height), Image.Resampling.NEAREST)
    picture.quantize(64 if images.shape[1] == 1 else 256).save(path, optimize=True)


def bend(out: Path) -> None:
    data = sfumato.load("mnist:train")
    model = sfumato.Mixture(seed=0).fit(data, Budget(epsilon=1.0, delta=1e-5))
    made = model.sample(labels=np.repeat(np.arange(10), 2), seed=0)
    pixels = torch.from_numpy(made.images).float() / 255
    rows = []
    for degree in (0, 0.25, 0.5, 1):
        model.bend = degree
        bent = model._finished(pixels, torch.Generator().manual_seed(0))
        rows.append(np.concatenate(list(as_bytes(bent)[:, 0].numpy()), axis=1))
    picture = Image.fromarray(np.concatenate(rows))
    picture = picture.resize((2 * picture.width, 2 * picture.height), Image.Resampling.NEAREST)
    picture.quantize(64).save(out / "bend-mnist.png", optimize=True)


PICTURES: tuple[Callable[[Path], None], ...] = (
    epsilons,
    gaussians,
    kernel,
    attributions,
    bend,
    gallery,
    samples,
)


def main() -> None:
    names = {picture.__name__: picture for picture in PICTURES}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=names, metavar="NAME")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "images")
    parser.add_argument(
        "--sets", type=lambda text: text.split(","), help="gallery, samples: of these only"
    )
    parser.add_argument("--run", type=Path, help="samples: of this run, which is fitted already")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.run:
        names["samples"] = partial(samples, run=arguments.run)
    if arguments.sets:
        names["gallery"] = partial(gallery, sets=arguments.sets)
    names[arguments.name](arguments.out)


if __name__ == "__main__":
    main()
