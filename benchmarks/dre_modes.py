"""DP-DRE against DP-MGE where the private data are some classes of a public superset: their paper's setting, at a small size.

Private: some classes of the first half of a training set, unlabelled. Public: the second half, all classes; no record is in
both. Both methods use one codec (64 principal components of the public half). Compared with the test images of those classes:
`FD` is the Fréchet distance and PRD the precision and recall of distributions, both in those 64 components; NDB in pixels. With
--inception N, FID and PRD in Inception's features as well, of N images on either side (about 10 images a second on a core; those
of the real side are computed once). `weight` is the share of DRE's weight that falls on public records of the right classes.
ε = 1000 stands for no privacy. Prints a Markdown table for each set.

`fashion-mnist` with classes 1, 7, 8 is where cap, sharpness and learning rate of DP-DRE were set. `cifar10` (private: vehicles)
and `quickdraw` (private: ten kinds of food) are independent: settings were frozen before either was looked at. On `cifar10` the
discriminator looks with ImageNet's ResNet18 (`--codec-only`: with the codec, which cannot tell vehicles from animals), and FD and
PRD are given in another layer of that network as well.

    python benchmarks/dre_modes.py [--data fashion-mnist,cifar10] [--classes 1,7,8] [--seeds 1] [--epsilons 1000,10,3,1,0.1]
                                   [--inception 2000]
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

import sfumato
from sfumato.data import Dataset
from sfumato.public.perceptual import make_encoder
from sfumato.public.resolve import get_codec

CODEC = "pca:64"
# The private classes of each set, by name or code.
SPLITS = {
    "fashion-mnist": "1,7,8",
    "cifar10": "airplane,automobile,ship,truck",
    "quickdraw": "apple,banana,blueberry,carrot,grapes,mushroom,onion,pear,pineapple,strawberry",
}
# The pixels' principal components do not tell vehicles from animals: there the discriminator looks with a public network.
LOOKS = {"cifar10": {"encoder": "resnet18", "layer": "layer3"}}
METRICS = {"fid": "FD", "prd.f8": "PRD F8", "prd.f1-8": "PRD F1/8", "ndb": "NDB/K"}
RESNET = {"fid": "FD, ResNet18", "prd.f8": "F8, ResNet18", "prd.f1-8": "F1/8, ResNet18"}
INCEPTION = {"fid": "FID", "prd.f8": "F8, Inception", "prd.f1-8": "F1/8, Inception"}


def codes_of(classes: str, known: tuple[str, ...]) -> list[int]:
    return [int(c) if c.isdigit() else known.index(c) for c in classes.split(",")]


def halves(name: str, codes: list[int]) -> tuple[Dataset, Dataset, Dataset]:
    """Private, public, and held-out records."""
    train, test = (sfumato.load(f"{name}:{split}") for split in ("train", "test"))
    # Some sets are stored class by class.
    order = np.random.default_rng(0).permutation(len(train))
    if name == "fashion-mnist":
        order = np.arange(len(train))
    first, second = np.array_split(order, 2)
    images, labels = train.images, train.labels
    assert labels is not None
    private = Dataset.from_arrays(images[first][np.isin(labels[first], codes)], name="private")
    public = Dataset.from_arrays(
        images[second], labels[second], classes=train.schema.classes, name="public"
    )
    return private, public, Dataset.from_arrays(test.images[np.isin(test.labels, codes)])


def remembering(network: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A network that computes the features of the same pictures once."""
    known: dict[bytes, Tensor] = {}

    def features(pixels: Tensor) -> Tensor:
        key = hashlib.blake2b(pixels.numpy().tobytes(), digest_size=16).digest()
        if key not in known:
            known[key] = network(pixels)
        return known[key]

    return features


def some(data: Dataset, n: int) -> Dataset:
    rows = np.sort(np.random.default_rng(0).permutation(len(data))[:n])
    return Dataset.from_arrays(data.images[rows])


class Bench:
    """One private and public split, and the two methods on it."""

    def __init__(self, name: str, classes: str, inception: int, *, look: bool) -> None:
        self.codes = codes_of(classes, sfumato.load(f"{name}:train").schema.classes)
        self.private, self.public, self.held_out = halves(name, self.codes)
        components = get_codec(CODEC, self.public.schema, public=self.public).encode
        self.judged = [(METRICS, self.held_out, components)]
        self.look = LOOKS.get(name, {}) if look else {}
        if self.look:
            shape = self.public.schema.shape
            encoder = make_encoder("resnet18", shape, layers=("layer4",), size=32, pool=1)

            def features(pixels: Tensor) -> Tensor:
                with torch.no_grad():
                    return torch.cat([encoder(part)[0] for part in pixels.split(200)])

            self.judged.append((RESNET, self.held_out, remembering(features)))
        if inception:
            from sfumato.public.weights import get_network

            network = remembering(get_network("fid-inception"))
            self.judged.append((INCEPTION, some(self.held_out, inception), network))
        self.columns = ["weight", *(t for m, _, _ in self.judged for t in m.values()), "fit, CPU s"]

    def cell(self, method: str, epsilon: float, seed: int) -> list[float]:
        began = time.process_time()
        settings = self.look if method == "dre" else {}
        model = sfumato.get_method(method)(codec=CODEC, seed=seed, grain=0.0, **settings)
        model.fit(self.private, sfumato.Budget(epsilon=epsilon, delta=1e-5), public=self.public)
        seconds = time.process_time() - began
        row = [float("nan")]
        if method == "dre":
            told = next(r for r in model.log_ if r["event"] == "weights")
            row = [sum(told["of public classes"][c] for c in self.codes)]
        for metrics, real, network in self.judged:
            sample = model.sample(len(real), seed=seed)
            found = sfumato.evaluate(
                sample, real, metrics=list(metrics), networks={"fid-inception": network}, seed=seed
            )
            row += [m.value for m in found.metrics]
        print(method, epsilon, seed, row, seconds, file=sys.stderr, flush=True)
        return [*row, seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="fashion-mnist,cifar10")
    parser.add_argument("--classes", help="of one set: names or codes")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epsilons", default="1000,10,3,1,0.1")
    parser.add_argument("--inception", type=int, default=0, help="images for FID; 0: none")
    parser.add_argument("--codec-only", action="store_true", help="look with the codec everywhere")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.data.split(","):
        classes = arguments.classes or SPLITS[name]
        bench = Bench(name, classes, arguments.inception, look=not arguments.codec_only)
        print(f"| {name}, private classes {classes} | " + " | ".join(bench.columns) + " |")
        print("|---|" + "---|" * len(bench.columns))
        for epsilon in (float(e) for e in arguments.epsilons.split(",")):
            for method in ("dre", "mge"):
                rows = [bench.cell(method, epsilon, seed) for seed in range(arguments.seeds)]
                means = [statistics.mean(column) for column in zip(*rows, strict=True)]
                shown = ["–" if v != v else f"{v:.3g}" for v in means]
                title = sfumato.get_method(method).info.title
                print(f"| {title}, ε = {epsilon:g} | " + " | ".join(shown) + " |", flush=True)
        print()


if __name__ == "__main__":
    main()
