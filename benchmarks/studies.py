"""Accuracies that `sfumato compare` cannot measure, because their protocol is their own; each prints Markdown.

    python benchmarks/studies.py NAME [--data SET,…] [--epsilons E,…] [--seeds N]

- `tables`: DP-MERF and DP-HP on tables as the papers judge them: the commonest class is thinned out to a fixed share, among the
  synthetic and the test records alike (the fit sees the whole training set), at most 10,000 of either, drawn by the seed; ROC and
  PRC are means of the twelve classifiers, of hard decisions as the papers' numbers are ("hard") and of scores;
- `xray`: the mixture, or `--methods`, on chest X-rays, samples bent by `--bend`: area under the ROC curve (chance: 50), accuracy
  of a CNN;
- `units`: the same with patients protected in place of pictures, by the files' own numbers and in made-up groups of one class;
- `llm`: accuracy of DP-LLM, which is a classifier and makes no records;
- `cnn`: the network that DP-LLM's paper compares it with, by DP-SGD; steps, clip and rates are the paper's in nothing, for it
  tells none of them;
- `retraining`: generators trained from one DP-MERF release (`refit`), and the choice among them by the private loss alone;
- `subsets`: DP-DRE and DP-MGE where the private data are some classes of a public superset (their paper's setting, small), in the
  64 principal components of the public half; `--inception N`: also in Inception's features, of N images on either side;
- `gswgan`: what GS-WGAN's distance from its paper is made of: noise, accounting, steps, critics, one at a time and together;
  small, with the noise of a step's mean gradient as 60,000 records have it (`--only 'WORDS;…'`: rows with these in their names);
- `real`: the paper preset on 60,000 real images; it must come to the papers' "real data" columns (thesis, app. B);
- `codecs`: what codecs give back of pictures they have not seen; the autoencoders must be there (`TRAINED` says how);
- `shares`: what `transport`'s distance from real pictures is made of: real pictures, moved or not, draws, labels;
- `tone`: samples of one and the same fit with and without the tone curve, by method, on stand-ins (`prepare.py` made them).

Published numbers come with the papers' own accounting. δ = 1e-5; zero-out unless a table says otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sfumato
from sfumato.data import Batch, Dataset, Schema
from sfumato.evaluation.classifiers import ConvNet
from sfumato.evaluation.frechet import frechet
from sfumato.methods import LinearMaps, Method, Mge, get_method
from sfumato.methods.base import as_bytes
from sfumato.methods.presets import find_preset
from sfumato.privacy import Budget, Charge, GradientSum, Ledger, PrivateData, calibrate
from sfumato.privacy.accounting import epsilon_of
from sfumato.privacy.units import size_of
from sfumato.public.codec import ImageCodec
from sfumato.public.resolve import get_codec
from sfumato.report.papers import published_numbers

IMAGES = Path(__file__).parent.parent / "docs" / "images"


def parts(name: str) -> tuple[Dataset, Dataset]:
    return sfumato.load(f"{name}:train"), sfumato.load(f"{name}:test")


def budget(epsilon: float, neighbours: str = "zero-out") -> sfumato.Budget:
    relation = sfumato.Neighbours(neighbours)
    return sfumato.Budget(epsilon=epsilon, delta=1e-5, neighbours=relation)


def head(*columns: str) -> None:
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns), flush=True)


def row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def spreads(rows: Iterable[Iterable[float]], form: str) -> list[str]:
    """Mean and range of each column."""
    return [
        f"{statistics.mean(v):{form}} ({min(v):{form}}–{max(v):{form}})"
        for v in zip(*rows, strict=True)
    ]


def tell(*what: object) -> None:
    print(*what, file=sys.stderr, flush=True)


# Tables

THINNED = {"adult": 0.4, "census": 0.4, "credit": 0.005}
MOST = 10_000
TABLE_METRICS = ("roc-hard.mean12", "prc-hard.mean12", "roc.mean12", "prc.mean12")


def table_published(data: str, method: str) -> list[str]:
    """The hard areas of the papers at ε = 1 (thesis, app. B table 1 and app. C table 7)."""
    label = {"merf": "DP-MERF", "hp": "DP-HP"}[method]
    found = {(n.method, n.epsilon, n.metric): n.printed for n in published_numbers(data)}
    return [found[label, 1.0, metric] for metric in TABLE_METRICS[:2]]


def thinned(data: Dataset, common: int, share: float, seed: int) -> Dataset:
    """At most MOST records, of the commonest class only `share` of those there are."""
    draw = np.random.default_rng(seed)
    labels = data.labels
    assert labels is not None
    kept = np.flatnonzero((labels != common) | (draw.random(len(labels)) < share))
    batch = data.take(np.sort(draw.permutation(kept)[:MOST]))
    assert batch.labels is not None
    return Dataset.from_values(batch.values.numpy(), batch.labels.numpy(), schema=data.schema)


def tables(given: Namespace) -> None:
    head("δ = 1e-5, mean (range)", *(m.split(".")[0] for m in TABLE_METRICS))
    for data in given.data or THINNED:
        train, test = parts(data)
        common = int(np.bincount(test.labels).argmax())
        for name in ("merf", "hp"):
            for epsilon in given.epsilons or (1.0,):
                found = []
                for seed in range(given.seeds or 3):
                    method = get_method(name)(seed=seed).fit(train, budget(epsilon, "replace-one"))
                    made = method.sample(len(train), seed=seed)
                    judged = [thinned(d, common, THINNED[data], seed) for d in (made, test)]
                    result = sfumato.evaluate(*judged, metrics=list(TABLE_METRICS), seed=seed)
                    found.append([metric.value for metric in result.metrics])
                    tell(data, name, epsilon, seed, found[-1])
                title = f"{data}, {name}, ε = {epsilon:g}, replace-one, {len(found)} seeds"
                row(title, *spreads(found, ".3f"))
                if epsilon == 1:
                    numbers = (f"*{p}*" for p in table_published(data, name))
                    row(f"*{data}, {name}, ε = 1, published, replace-one*", *numbers, "", "")


# Chest X-rays


def judged(synthetic: Dataset, test: Dataset, seed: int) -> tuple[float, float]:
    """Area under the ROC curve and accuracy, in per cent, on the real test images."""
    from sklearn.metrics import roc_auc_score

    from sfumato.evaluation.classifiers import ConvNet

    classifier = ConvNet(seed)
    pixels = torch.from_numpy(synthetic.images).float() / 255
    assert synthetic.labels is not None and test.labels is not None
    classifier.fit(pixels, torch.from_numpy(synthetic.labels), 2, lambda _: None)
    with torch.no_grad():
        chunks = (torch.from_numpy(test.images).float() / 255).split(500)
        logits = torch.cat([classifier.network_(chunk) for chunk in chunks])
    scores = (logits[:, 1] - logits[:, 0]).numpy()
    right = (scores > 0) == test.labels
    return 100 * float(roc_auc_score(test.labels, scores)), 100 * float(np.mean(right))


def xray(given: Namespace) -> None:
    train, test = parts("chest-xray")
    head("chest-xray, 64 px, δ = 1e-5, zero-out", "AUC", "accuracy")
    for method, epsilon in product(
        given.methods or ["mixture"], given.epsilons or (1.0, 3.0, 10.0)
    ):
        found = xray_fits(train, test, epsilon, given, method)
        bent = f", bend={given.bend:g}" if given.bend else ""
        name = f"{method}{bent}, ε = {epsilon:g}, {len(found)} seeds: mean (range)"
        row(name, *spreads(found, ".1f"))
    larger = 100 * max(np.bincount(test.labels)) / len(test)
    row("*larger class*", "*50.0*", f"*{larger:.1f}*")


def units(given: Namespace) -> None:
    epsilons = given.epsilons or (1.0, 3.0, 10.0)
    train, test = parts("chest-xray")
    order = np.argsort(train.labels, kind="stable")
    sets = {"pictures": train, "patients": sfumato.load("chest-xray:train", unit="patient")}
    for size in (3, 10):
        group = np.empty(len(train), np.int64)
        group[order] = np.arange(len(train)) // size
        sets[f"groups of {size}"] = sfumato.load("chest-xray:train", unit=group)
    seeds = given.seeds or 3
    head(f"AUC, {seeds} seeds: mean (range)", "units", *(f"ε = {e:g}" for e in epsilons))
    for name, data in sets.items():
        found = [xray_fits(data, test, epsilon, given) for epsilon in epsilons]
        row(name, f"{size_of(data):,}", *(spreads(some, ".1f")[0] for some in found))


def xray_fits(
    train: Dataset, test: Dataset, epsilon: float, given: Namespace, method: str = "mixture"
) -> list[list[float]]:
    found = []
    for seed in range(given.seeds or 3):
        model = get_method(method)(seed=seed, bend=given.bend).fit(train, budget(epsilon))
        found.append(judged(model.sample(5000, seed=seed), test, seed))
        tell(method, epsilon, seed, found[-1])
    return found


# DP-LLM

# Thesis, app. A: moments accountant, shuffled batches. It prints 80.7 for Fashion-MNIST at ε = 2 and 83.2 at 0.5, which must be
# the other way round.
LLM_PUBLISHED = {
    ("mnist", 2.0): "94.2",
    ("mnist", 0.5): "91.8",
    ("fashion-mnist", 2.0): "83.2",
    ("fashion-mnist", 0.5): "80.7",
}


def llm(given: Namespace) -> None:
    seeds = given.seeds or 3
    accuracy = f"accuracy, {seeds} seeds: mean (range)"
    head("δ = 1e-5, zero-out", accuracy, "published", "fit, CPU s (1 thread)")
    for name in given.data or ("mnist", "fashion-mnist"):
        train, test = parts(name)
        for epsilon in given.epsilons or (2.0, 0.5):
            found, seconds = [], []
            for seed in range(seeds):
                began = time.process_time()
                settings = {}
                if given.preset:
                    chosen = find_preset(LinearMaps, given.preset, data=name, epsilon=epsilon)
                    settings = chosen.values
                model = sfumato.LocallyLinearMaps(seed=seed, **settings)
                model.fit(train, budget(epsilon))
                seconds.append(time.process_time() - began)
                found.append([100 * model.score(test)])
                tell(name, epsilon, seed, found[-1], seconds[-1])
            published = f"*{LLM_PUBLISHED.get((name, epsilon), '–')}*"
            shown = spreads(found, ".1f")[0]
            row(f"{name}, ε = {epsilon:g}", shown, published, f"{statistics.median(seconds):.0f}")


# The network that DP-LLM is compared with


def paper_cnn() -> nn.Sequential:
    """The thesis' (S3:1055): 5×5 convolutions of 20 and 50 channels with max-pooling, 500 units; 431,080 parameters."""
    model = nn.Sequential(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5))
    model.extend([nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 500), nn.ReLU()])
    return model.append(nn.Linear(500, 10))


def private_cnn(model: nn.Module, data: Dataset, within: Budget, epochs: float) -> nn.Module:
    """A classifier trained by Adam on noisy gradients of Poisson samples, through the wall, within the budget."""

    def losses(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(pixels), labels, reduction="none")

    clip, rate = 0.1, 1 / 30
    gradients = GradientSum(model, losses, bound=clip, inputs=lambda b, _: (b.pixels(), b.labels))
    kept = {"label": "cnn", "bound": gradients.enforced}
    steps = {"rate": rate, "steps": round(epochs / rate)}
    noise = calibrate(lambda m: (Charge(noise_multiplier=m, **kept, **steps),), within)
    private = PrivateData(data, Ledger(within))
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in private.poisson_steps(noise_multiplier=noise, **kept, **steps):
        gradients.assign(step.noisy_gradient(gradients) / (rate * private.size * clip))
        optimiser.step()
    return model.eval()


def cnn(given: Namespace) -> None:
    seeds, epochs = given.seeds or 1, 8
    accuracy = f"accuracy, {seeds} seed(s): mean (range)"
    head(f"δ = 1e-5, zero-out, {epochs} epochs", accuracy, "fit, CPU s (1 thread)")
    for name in given.data or ("mnist", "fashion-mnist"):
        train, test = parts(name)
        for epsilon in given.epsilons or (2.0, 0.5):
            found, seconds = [], []
            for seed in range(seeds):
                torch.manual_seed(seed)
                began = time.process_time()
                model = private_cnn(paper_cnn(), train, budget(epsilon), epochs)
                seconds.append(time.process_time() - began)
                guesses = hidden(model, test).argmax(dim=1).numpy()
                found.append([100 * float(np.mean(guesses == test.labels))])
                tell(name, epsilon, seed, found[-1], seconds[-1])
            took = f"{statistics.median(seconds):.0f}"
            row(f"{name}, ε = {epsilon:g}", spreads(found, ".1f")[0], took)


# Retraining


def retraining(given: Namespace) -> None:
    train, test = parts("digits")
    head("generator", "privacy spent", "final matching loss", "logreg, %")
    losses: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        for hidden in (20, 100, 300):
            for seed in (0, 1):
                # What shaped the release stays.
                method = get_method("merf")(
                    features=2_000, seed=0, hidden=hidden, training_seed=seed, steps=1_000
                )
                paid = not run.exists()
                fitted = method.fit(train, budget(5.0), out=run) if paid else method.refit(run)
                made = fitted.sample(2_000, seed=0)
                # For the reader's eye; the choice does not use it.
                (accuracy,) = sfumato.evaluate(made, test, metrics=["accuracy.logreg"]).metrics
                title = f"hidden={hidden}, training_seed={seed}"
                losses[title] = fitted.loss_
                spent = "ε = 5" if paid else "nothing more"
                row(title, spent, f"{fitted.loss_:.5f}", f"{100 * accuracy.value:.1f}")
    best = min(losses, key=lambda title: losses[title])
    row(f"*chosen by the least loss: {best}*", "", f"*{losses[best]:.5f}*", "")


# Some classes of a public superset

CODEC = "pca:64"
# The private classes of each set. Fashion-MNIST's are where cap, sharpness and learning rate of DP-DRE were set; settings were
# frozen before either other set was looked at.
SPLITS = {
    "fashion-mnist": "1,7,8",
    "cifar10": "airplane,automobile,ship,truck",
    "quickdraw": "apple,banana,blueberry,carrot,grapes,mushroom,onion,pear,pineapple,strawberry",
}
# The pixels' principal components do not tell vehicles from animals: there the discriminator looks with a public network.
LOOKS = {"cifar10": {"encoder": "resnet18", "layer": "layer3"}}
COMPONENTS = {"fid": "FD", "prd.f8": "PRD F8", "prd.f1-8": "PRD F1/8", "ndb": "NDB/K"}
RESNET = {"fid": "FD, ResNet18", "prd.f8": "F8, ResNet18", "prd.f1-8": "F1/8, ResNet18"}
INCEPTION = {"fid": "FID", "prd.f8": "F8, Inception", "prd.f1-8": "F1/8, Inception"}


def halves(name: str) -> tuple[Dataset, Dataset, Dataset, list[int]]:
    """Private records (some classes of one half, unlabelled), public ones (the other half), held-out ones, the classes."""
    train, test = parts(name)
    known, wanted = train.schema.classes, SPLITS[name].split(",")
    codes = [int(c) if c.isdigit() else known.index(c) for c in wanted]
    # Some sets are stored class by class.
    order = np.random.default_rng(0).permutation(len(train))
    order = np.arange(len(train)) if name == "fashion-mnist" else order
    first, second = np.array_split(order, 2)
    images, labels = train.images, train.labels
    assert labels is not None
    private = Dataset.from_arrays(images[first][np.isin(labels[first], codes)], name="private")
    public = Dataset.from_arrays(images[second], labels[second], classes=known, name="public")
    return private, public, Dataset.from_arrays(test.images[np.isin(test.labels, codes)]), codes


def remembering(network: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A network that computes the features of the same pictures once."""
    known: dict[bytes, Tensor] = {}

    def features(pixels: Tensor) -> Tensor:
        key = hashlib.blake2b(pixels.numpy().tobytes(), digest_size=16).digest()
        if key not in known:
            known[key] = network(pixels)
        return known[key]

    return features


def resnet_features(shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    from sfumato.public.perceptual import make_encoder

    encoder = make_encoder("resnet18", shape, layers=("layer4",), size=32, pool=1)

    def features(pixels: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([encoder(part)[0] for part in pixels.split(200)])

    return remembering(features)


def subsets(given: Namespace) -> None:
    for name in given.data or ("fashion-mnist", "cifar10"):
        private, public, held_out, codes = halves(name)
        codec = get_codec(CODEC, public.schema, public=public)

        def components(pixels: Tensor, codec: ImageCodec = codec) -> Tensor:
            return codec.encode(Batch(pixels, None))

        views: list[tuple[dict[str, str], Dataset, Any]] = [(COMPONENTS, held_out, components)]
        look = {} if given.codec_only else LOOKS.get(name, {})
        if look:
            views.append((RESNET, held_out, resnet_features(public.schema.shape)))
        if given.inception:
            from sfumato.public.weights import get_network

            some = np.random.default_rng(0).permutation(len(held_out))[: given.inception]
            few = Dataset.from_arrays(held_out.images[np.sort(some)])
            views.append((INCEPTION, few, remembering(get_network("fid-inception"))))
        titles = [title for metrics, _, _ in views for title in metrics.values()]
        head(f"{name}, private classes {SPLITS[name]}", "weight", *titles, "fit, CPU s")
        for epsilon in given.epsilons or (1000.0, 10.0, 3.0, 1.0, 0.1):  # 1000: no privacy
            for method in ("dre", "mge"):
                found = []
                for seed in range(given.seeds or 1):
                    began = time.process_time()
                    settings = look if method == "dre" else {}
                    model = get_method(method)(codec=CODEC, seed=seed, grain=0.0, **settings)
                    model.fit(private, budget(epsilon), public=public)
                    seconds = time.process_time() - began
                    told = [r for r in model.log_ if r["event"] == "weights"]
                    # The share of DRE's weight that falls on public records of the right classes.
                    right = sum(told[0]["of public classes"][c] for c in codes) if told else np.nan
                    values = [float(right)]
                    for metrics, real, network in views:
                        result = sfumato.evaluate(
                            model.sample(len(real), seed=seed),
                            real,
                            metrics=list(metrics),
                            networks={"fid-inception": network},
                            seed=seed,
                        )
                        values += [m.value for m in result.metrics]
                    found.append([*values, seconds])
                    tell(method, epsilon, seed, found[-1])
                means = [statistics.mean(column) for column in zip(*found, strict=True)]
                title = f"{get_method(method).info.title}, ε = {epsilon:g}"
                row(title, *("–" if v != v else f"{v:.3g}" for v in means))
        print()


# GS-WGAN and its paper

# 60 records a critic as in the default, but a tenth of the critics; twenty are asked in a step.
SMALL = {"shards": 100, "rate": 0.2}
FEWER = {"shards": 20, "rate": 1.0}  # 300 records each, all asked
ONE = {"shards": 1, "rate": 1.0}
# name, settings, constants of the method's file, and at which ε the noise is that of 60,000 records in 1,000 shards (None: none)
GSWGAN_ROWS: dict[str, tuple[dict[str, Any], dict[str, int], float | None]] = {
    "200 steps, noise of ε = 10": (SMALL, {}, 10.0),
    "200 steps": (SMALL, {}, None),
    "600 steps": (SMALL | {"steps": 600}, {}, None),
    "200 steps, critics begin with 300 steps": (SMALL, {"WARM_STEPS": 300}, None),
    "200 steps, critics catch up by 10 steps": (SMALL, {"PHASE_STEPS": 10}, None),
    "200 steps, critics see all pixels": (SMALL | {"shrink": 1}, {}, None),
    "200 steps, 300 records a critic": (FEWER, {}, None),
    "2,000 steps, 300 records a critic": (FEWER | {"steps": 2000}, {}, None),
    "2,000 steps, 300 records a critic, noise of ε = 10": (FEWER | {"steps": 2000}, {}, 10.0),
    "2,000 steps, one critic, five steps for each": (
        ONE | {"steps": 2000, "phase": 1}, {"PHASE_STEPS": 5}, None,
    ),
}  # fmt: skip
# Of the paper and its code: steps, images a step, shards, noise ÷ (2 · an image's bound).
PAPER_STEPS, PAPER_BATCH, PAPER_SHARDS, PAPER_NOISE = 20_000, 32, 1_000, 1.07


def mean_noise(model: Method, schema: Schema, epsilon: float) -> float:
    """Standard deviation of the noise on a number of a step's mean gradient, where an image's has norm 1."""
    charge = model.promise(schema, budget(epsilon)).charges[-1]
    return charge.noise_std / (model.shards * model.rate)  # type: ignore[attr-defined]


def epsilon_with(noise: float, model: Method, schema: Schema) -> float:
    """The ε at which `model` has that noise: a small model with the noise of a large one claims no privacy that matters."""
    low, high = 0.1, 1e5
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if mean_noise(model, schema, middle) > noise else (low, middle)
    return high


def gswgan_accounting(schema: Schema) -> None:
    """What the two ways to account say of each other's noise, without a record."""
    GsWgan = get_method("gs-wgan")
    head("ε, steps × images, shards drawn", "noise, one charge a batch", "noise, a charge an image")
    for steps, batch, rate in ((200, 100, 0.1), (2000, 100, 0.1), (PAPER_STEPS, PAPER_BATCH, 1e-3)):
        facts = {"rate": rate, "shards": PAPER_SHARDS}
        joint = GsWgan(steps=steps, batch=batch, clip=batch**0.5, **facts)
        alone = GsWgan(steps=steps * batch, batch=2, clip=1.0, **facts)
        noises = [mean_noise(model, schema, 10.0) for model in (joint, alone)]
        row(f"10, {steps:,} × {batch}, {1000 * rate:g} of 1,000", *(f"{n:.3g}" for n in noises))
    model = GsWgan(
        steps=PAPER_STEPS, batch=PAPER_BATCH, clip=PAPER_BATCH**0.5, rate=1e-3, shards=PAPER_SHARDS
    )
    charge = model.promise(schema, budget(10.0)).charges[-1]
    real = replace(charge, noise_multiplier=2 * PAPER_NOISE / PAPER_BATCH**0.5)
    print(
        f"\nThe paper's noise, one charge a batch: ε = {epsilon_of((real,), 1e-5, sfumato.Neighbours.ZERO_OUT):.3g}\n"
    )


def gswgan(given: Namespace) -> None:
    from sfumato.methods import gswgan as module

    usual = {name: getattr(module, name) for name in ("WARM_STEPS", "PHASE_STEPS")}
    for name in given.data or ("mnist",):
        train, test = parts(name)
        if not given.only:
            gswgan_accounting(train.schema)
        some = np.sort(np.random.default_rng(0).permutation(len(train))[:6_000])
        assert train.labels is not None
        private = Dataset.from_arrays(
            train.images[some], train.labels[some], classes=train.schema.classes
        )
        head(f"{name}, 6,000 records", "logreg", "CNN", "fit, CPU s")
        for title, (settings, constants, epsilon) in GSWGAN_ROWS.items():
            if not any(word in title for word in given.only or ("",)):
                continue
            for constant, value in {**usual, **constants}.items():
                setattr(module, constant, value)
            found = []
            for seed in range(given.seeds or 1):
                model = module.GsWgan(**settings, seed=seed)
                spent = sfumato.Budget.none(delta=1e-5)
                if epsilon is not None:
                    large = module.GsWgan(**settings | {"shards": 1000, "rate": 0.1})
                    noise = mean_noise(large, train.schema, epsilon)
                    spent = budget(epsilon_with(noise, model, train.schema))
                began = time.process_time()
                model.fit(private, spent)
                seconds = time.process_time() - began
                result = sfumato.evaluate(
                    model.sample(5_000, seed=seed),
                    test,
                    metrics=["accuracy.logreg", "accuracy.cnn"],
                    seed=seed,
                )
                found.append([*(100 * m.value for m in result.metrics), seconds])
                tell(title, seed, found[-1])
            row(title, *spreads(found, ".1f"))


# The judge itself

REAL_PUBLISHED = {
    "fashion-mnist": {
        "logreg": 84.4, "rf": 87.5, "gnb": 58.5, "bnb": 64.8, "svc": 83.9, "tree": 79.0, "lda": 79.9,
        "adaboost": 56.1, "mlp": 87.9, "bagging": 84.1, "gbm": 83.4, "xgb": 82.6, "mean12": 77.4,
    },
    "mnist": {
        "logreg": 92.5, "bnb": 84.0, "svc": 92.0, "tree": 88.0, "lda": 87.9, "adaboost": 72.9, "mlp": 97.8,
        "bagging": 92.8, "gbm": 90.9, "xgb": 91.2, "mean12": 86.7,
    },
}  # fmt: skip


def real(given: Namespace) -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    head("data", "classifier", "accuracy, %", "95 % interval", "published, %", "seconds")
    for name in given.data or REAL_PUBLISHED:
        train, test = parts(name)
        began = time.perf_counter()
        found = sfumato.evaluate(train, test, preset="paper")
        whole = f"{time.perf_counter() - began:.0f} (load {os.getloadavg()[0]:.1f})"
        for metric in found:
            short = metric.name.removeprefix("accuracy.")
            known = str(REAL_PUBLISHED.get(name, {}).get(short, ""))
            interval = f"{100 * metric.low:.1f}–{100 * metric.high:.1f}"
            value, seconds = f"{100 * metric.value:.1f}", f"{metric.seconds:.0f}"
            row(name, short, value, interval, known, seconds)
        row(name, "the whole preset", "", "", "", whole)


# Codecs

# Public set: numbers in a code, and the sets whose test pictures are encoded. Before, for quickdraw (the others: --dim 128
# --steps 720; --steps 240 --batch 32):
# sfumato pretrain --public quickdraw:train --dim 64 --steps 1200 --out runs/public/quickdraw-codec.safetensors
TRAINED = {
    "quickdraw": (64, ("quickdraw", "font-digits", "fashion-mnist")),
    "cifar10": (128, ("cifar10",)),
    "faces": (64, ("faces",)),
}


def strip(pixels: Tensor) -> np.ndarray:
    """Pictures side by side, small ones twice as large."""
    scale = 2 if pixels.shape[2] <= 32 else 1
    each = (pixels.expand(-1, 3, -1, -1) * 255).round().to(torch.uint8).numpy()
    wide = [p.repeat(scale, 1).repeat(scale, 2) for p in each]
    return np.concatenate(wide, axis=2).transpose(1, 2, 0)


def keep(rows: list[np.ndarray], name: str) -> None:
    """One small PNG of the strips, in few levels."""
    from PIL import Image

    picture = Image.fromarray(np.concatenate(rows))
    red, green, blue = picture.split()
    gray = red.tobytes() == green.tobytes() == blue.tobytes()
    picture = red.quantize(24) if gray else picture.quantize(128)
    picture.save(IMAGES / name, optimize=True)


def codecs(given: Namespace) -> None:
    head("codec", "numbers", "pictures", "mean squared error", "ms to encode", "ms to decode")
    for name in given.data or TRAINED:
        dim, shown = TRAINED[name]
        path, public = f"runs/public/{name}-codec.safetensors", sfumato.load(f"{name}:train")
        specs = {"dct": "dct", f"pca:{dim}": f"pca:{dim}", f"autoencoder of {name}": path}
        specs |= {"adain": "adain"} if name == "cifar10" else {}
        for data in shown:
            test = sfumato.load(f"{data}:test")
            pixels = test.take(np.linspace(0, len(test) - 1, 256).astype(int)).pixels()
            rows = [strip(pixels[:16])]
            for title, spec in specs.items():
                codec = get_codec(spec, test.schema, public=public)
                began = time.process_time()
                vectors = codec.encode(Batch(pixels, None))
                middle = time.process_time()
                decoded = codec.decode(vectors)
                done = time.process_time()
                error = f"{float((decoded - pixels).square().mean()):.4f}"
                each = [1000 * s / len(pixels) for s in (middle - began, done - middle)]
                row(title, str(codec.dim), data, error, *(f"{ms:.1f}" for ms in each))
                rows.append(strip(decoded[:16]))
            keep(rows, f"codec-{data}.png")
        if name == "quickdraw":
            method = Mge(codec=path, covariance="full", seed=0)
            made = method.fit(sfumato.load("font-digits:train"), budget(10.0)).sample(6000, seed=0)
            chosen = [np.flatnonzero(made.labels == code)[:16] for code in range(10)]
            keep([strip(made.take(rows).pixels()) for rows in chosen], "mge-quickdraw.png")


# The tone curve

STAND_INS = {"fashion-mnist": 10_000, "quickdraw-ten": 10_000, "font-digits": 5_740}
# Short fits: what the curve changes is to be seen, not how good a method can be.
SHORT: dict[str, dict[str, Any]] = {
    "mge": {"codec": "dct:100"},
    "merf": {"features": 4_000, "steps": 800},
    "hp": {"steps": 400, "length_scale": 0.15, "batch": 100},
    "sinkhorn": {"rate": 0.05, "steps": 400},
    "gan": {"rate": 0.03, "steps": 150, "critic_steps": 1, "learning_rate": 2e-3},
}


def tone(given: Namespace) -> None:
    """At the noise per record of 60,000 records and ε = 1; judged by records of the stand-in that no fit saw."""
    from capacity import halves as stand_in
    from capacity import some
    from prepare import stand_in_epsilon

    head("stand-in, method", "at the ends, %", "frechet.judge", "logreg, %", "cnn, %")
    for name in given.data or STAND_INS:
        train, test = stand_in(name, Path("runs/data"))
        train, test = some(train, STAND_INS[name], seed=0), some(test, 5_000, seed=0)
        epsilon = stand_in_epsilon(len(train), 1.0)
        judge = taught(train)  # as `frechet.judge` has it, trained once for all methods
        seen = partial(hidden, judge.network_[0])
        real = seen(test)
        row(
            f"{name}, *real records*", ends(test), f"{frechet(seen(train), real).value:.1f}", "", ""
        )
        for method in given.methods or SHORT:
            fitted = get_method(method)(**SHORT[method], tone=True, seed=0).fit(
                train, budget(epsilon)
            )
            curve = fitted.tone_
            for fitted.tone_ in (None, curve):
                made = fitted.sample(5_000, seed=0)
                found = sfumato.evaluate(made, test, metrics=["accuracy.logreg", "accuracy.cnn"])
                row(
                    f"{name}, ε = {epsilon:.3g}, {method}{'' if fitted.tone_ is None else ', toned'}",
                    ends(made),
                    f"{frechet(seen(made), real).value:.1f}",
                    *(f"{100 * metric.value:.1f}" for metric in found.metrics),
                )


def taught(data: Dataset) -> ConvNet:
    judge = ConvNet(0)
    labels = torch.from_numpy(data.labels).to(torch.int64)
    pixels = Batch(torch.from_numpy(data.images), None).pixels()
    judge.fit(pixels, labels, data.schema.n_classes, lambda share: None)
    return judge


def shares(given: Namespace) -> None:
    """One seed; 30,000 pictures a row, judged by the 10,000 training images of Fashion-MNIST that no fit saw."""
    whole = sfumato.load("fashion-mnist:train")
    train, held = (
        Dataset.from_arrays(whole.images[part], whole.labels[part], classes=10)
        for part in (slice(50_000), slice(50_000, None))
    )
    judge = taught(train)
    seen = partial(hidden, judge.network_[0])
    real, n = seen(held), 30_000

    def line(name: str, images: np.ndarray, labels: np.ndarray) -> None:
        made = Dataset.from_arrays(images, labels, classes=10)
        right = sfumato.evaluate(made, held, metrics=["accuracy.cnn"]).metrics[0].value
        row(name, f"{100 * right:.1f}", f"{frechet(seen(made), real).value:.1f}")

    head("pictures, labels", "cnn, %", "frechet.judge")
    line("real, their own", train.images[:n], train.labels[:n])
    for epsilon in given.epsilons or (1.0, 10.0, 1000.0):
        fitted = sfumato.Transport(seed=0).fit(train, budget(epsilon))
        moved = fitted.sample(n, seed=0)
        line(f"ε = {epsilon:g}: moved draws, their own", moved.images, moved.labels)
        with torch.no_grad():
            told = judge.network_[1](seen(moved)).argmax(1).numpy()
        line(f"ε = {epsilon:g}: moved draws, by a CNN of real pictures", moved.images, told)
        random = torch.Generator().manual_seed(0)
        draws = fitted.drawn_images(torch.from_numpy(moved.labels), random).numpy()
        line(f"ε = {epsilon:g}: draws, their own", draws, moved.labels)
        with torch.no_grad():
            parts = torch.from_numpy(train.images[:n]).float().div(255).split(2000)
            images = torch.cat([fitted._moved(some, random) for some in parts])
        toned = as_bytes(fitted.toned(images)).numpy()
        line(f"ε = {epsilon:g}: real, moved, their own", toned, train.labels[:n])


def hidden(body: torch.nn.Module, data: Dataset) -> Tensor:
    with torch.no_grad():
        return torch.cat([body(batch.pixels()) for batch in data.batches(500)])


def ends(data: Dataset) -> str:
    """Pixels that are black or white."""
    return f"{100 * np.isin(data.images, (0, 255)).mean():.0f}"


STUDIES = {
    s.__name__: s
    for s in (
        tables,
        xray,
        units,
        llm,
        cnn,
        retraining,
        subsets,
        gswgan,
        real,
        codecs,
        tone,
        shares,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=STUDIES, metavar="NAME")
    parser.add_argument("--data", type=lambda text: text.split(","))
    parser.add_argument("--epsilons", type=lambda text: [float(e) for e in text.split(",")])
    parser.add_argument("--seeds", type=int)
    parser.add_argument(
        "--methods", type=lambda text: text.split(","), help="tone, xray: of these only"
    )
    parser.add_argument("--bend", type=float, default=0.0, help="xray: degree")
    parser.add_argument("--only", type=lambda text: text.split(";"), help="gswgan: rows")
    parser.add_argument("--preset", help="llm: settings of a preset, such as paper")
    parser.add_argument("--inception", type=int, default=0, help="subsets: images for FID")
    parser.add_argument("--codec-only", action="store_true", help="subsets: DRE looks with it")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    STUDIES[arguments.name](arguments)


if __name__ == "__main__":
    main()
