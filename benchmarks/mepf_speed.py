"""A DP-MEPF training step against one forward and backward pass of its encoder and generator at the same batch, one thread.

Prints a Markdown table. The pass is what no implementation can do without: images from the generator, activations from the
encoder, and the gradient of their sum back to the generator's weights. Processor seconds, so that a busy machine does not matter.

    python benchmarks/mepf_speed.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from sfumato.generators import ConvGenerator, ResNetGenerator
from sfumato.generators.embedding import MeanEmbedding
from sfumato.methods.mepf_matching import PerceptualDistance, Target
from sfumato.public.perceptual import (
    PerceptualFeatures,
    clouds,
    make_encoder,
    public_rows,
    weighed_axes,
)

RESNET = {"layers": ("relu", "layer1", "layer2"), "size": 32, "pool": 8}
VGG = {"layers": ("relu1_2", "relu2_2", "relu3_4")}
DIRECTIONS, RECORDS = 600, 700
CASES: list[tuple[str, str, dict[str, Any], tuple[int, int, int], int]] = [
    ("28 px gray, resnet18 at 32 px, 3 taps", "resnet18", RESNET, (1, 28, 28), 100),
    ("28 px gray, scattering", "scattering", {}, (1, 28, 28), 100),
    ("32 px colour, vgg19, 3 taps", "vgg19", VGG, (3, 32, 32), 100),
]


def seconds_of(functions: list[Callable[[], None]], rounds: int) -> list[float]:
    """The median processor seconds of each, taken in turn."""
    for function in functions:
        function()
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, found in zip(functions, times, strict=True):
            began = time.process_time()
            function()
            found.append(time.process_time() - began)
    return [statistics.median(found) for found in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print("| | batch | features | one pass, ms | a step, ms | ratio |")
    print("|---|---|---|---|---|---|")
    for title, name, settings, shape, batch in CASES:
        encoder = make_encoder(name, shape, **settings)
        phi = PerceptualFeatures(encoder, balance=True)
        small = shape[1] <= 28
        network = (
            ConvGenerator(shape, 10, 90, 500, texture=True, warp=0.07)
            if small
            else ResNetGenerator(shape, 10, 90)
        )
        embedding = MeanEmbedding(
            mean=torch.rand(10, phi.dim) / phi.dim**0.5,
            shares=torch.full((10,), 0.1),
            noise_std=1e-4,
        )
        rows = public_rows(phi, clouds(shape, RECORDS), RECORDS)
        metric = weighed_axes(rows, DIRECTIONS, 0.5, 0.0)
        target = Target(phi, embedding, metric)
        distance = PerceptualDistance(network, target, batch=batch, steps=1, loss="averaged")
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)
        labels, random = torch.arange(10).repeat_interleave(batch // 10), torch.Generator()

        def step(loss: Callable[[], torch.Tensor], optimiser: torch.optim.Optimizer) -> None:
            optimiser.zero_grad(set_to_none=True)
            loss().backward()
            optimiser.step()

        def whole(
            distance: PerceptualDistance = distance, random: torch.Generator = random
        ) -> torch.Tensor:
            return distance.loss(0, random)

        def bare(encoder=encoder, network=network, labels=labels, random=random) -> torch.Tensor:  # type: ignore[no-untyped-def]
            return sum(part.sum() for part in encoder(network(labels, random)))

        least, full = seconds_of(
            [lambda b=bare, o=optimiser: step(b, o), lambda w=whole, o=optimiser: step(w, o)],  # type: ignore[misc]
            rounds,
        )
        print(
            f"| {title} | {batch} | {phi.dim:,} | {1000 * least:.0f} | {1000 * full:.0f} | {full / least:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
