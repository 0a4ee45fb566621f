"""The whole DP-MERF fit against a plain implementation of the paper's recipe, side by side in one process.

The plain version is what one writes from the paper: features with frequencies as columns, the outer product with the
one-hot label, 3,000 steps of batch 100 over all frequencies, the default memory layout. It is timed on a slice and scaled
up (its cost is proportional to records and steps); the fit is timed whole, release and exact noise included. The two
take turns.

    python benchmarks/merf_speed.py [--repeat 3]
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

import sfumato

FEATURES, STEPS, BATCH, CLASSES = 10_000, 3_000, 100, 10


class PlainGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Sequential(
            nn.Linear(5 + CLASSES, 200),
            nn.BatchNorm1d(200),
            nn.ReLU(),
            nn.Linear(200, 784),
            nn.BatchNorm1d(784),
        )
        self.convolutions = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(16, 8, 5, padding=2),
            nn.ReLU(),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(8, 1, 5, padding=2),
            nn.Sigmoid(),
        )

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return self.convolutions(self.dense(codes).view(-1, 16, 7, 7)).flatten(1)


def plain_embedding(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    angles = x @ w.T
    phi = torch.cat([torch.cos(angles), torch.sin(angles)], dim=1) / math.sqrt(FEATURES / 2)
    return torch.einsum("nd,nc->dc", phi, functional.one_hot(y, CLASSES).float()) / len(x)


def plain_seconds(pixels: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Seconds of the embedding of 60,000 records and of 3,000 steps, scaled up from slices."""
    w = torch.randn(FEATURES // 2, 784) / math.sqrt(127)
    part = 4_000
    began = time.perf_counter()
    for start in range(0, part, 500):
        plain_embedding(pixels[start : start + 500], labels[start : start + 500], w)
    embedding = (time.perf_counter() - began) * len(pixels) / part
    target = torch.randn(FEATURES, CLASSES) * 1e-3
    network = PlainGenerator()
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    steps = 40
    for step in range(steps + 5):
        if step == 5:
            began = time.perf_counter()
        y = torch.randint(CLASSES, (BATCH,))
        codes = torch.cat([torch.randn(BATCH, 5), functional.one_hot(y, CLASSES).float()], dim=1)
        loss = (target - plain_embedding(network(codes), y, w)).square().sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return embedding, (time.perf_counter() - began) * STEPS / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=2)
    arguments = parser.parse_args()
    data = sfumato.load("fashion-mnist:train")
    pixels = torch.from_numpy(data.images).flatten(1).float() / 255
    labels = torch.from_numpy(data.labels)
    ratios, fits, plains, embeddings = [], [], [], []
    for turn in range(arguments.repeat):
        embedding, training = plain_seconds(pixels, labels)
        began = time.perf_counter()
        sfumato.Merf(seed=turn).fit(data, sfumato.Budget(epsilon=1.0, delta=1e-5))
        fits.append(time.perf_counter() - began)
        plains.append(embedding + training)
        embeddings.append(embedding)
        ratios.append(plains[-1] / fits[-1])
    print(
        f"plain: embedding {statistics.median(embeddings):.1f} s, whole {statistics.median(plains):.0f} s (scaled up from slices)"
    )
    print(
        f"sfumato: whole fit {statistics.median(fits):.1f} s (min {min(fits):.1f}, max {max(fits):.1f})"
    )
    print(
        f"ratio to plain, side by side: {statistics.median(ratios):.1f}× (min {min(ratios):.1f}, max {max(ratios):.1f})"
    )
    reference = 35 + STEPS * 0.145
    print(
        f"ratio to the reference code's {reference:.0f} s (35 s + 3,000 × 145 ms, as measured earlier): "
        f"{reference / statistics.median(fits):.1f}×"
    )


if __name__ == "__main__":
    main()
