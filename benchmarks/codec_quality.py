"""Codecs: what they give back of pictures they have not seen, and what DP-MGE makes with them. Pictures go to docs/images.

    python benchmarks/codec_quality.py [--codecs FOLDER] [--steps 1200] [--seeds 3] [--only quickdraw]

The autoencoders are trained (minutes each) unless FOLDER holds them already. Everything here is public data: for DP-MGE the font
digits are taken for private, and the codec has seen Quick, Draw! only.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import sfumato
from sfumato.methods import Mge
from sfumato.public.codec import Codec
from sfumato.public.pretraining import Schedule, pretrain_codec
from sfumato.public.resolve import get_codec

IMAGES = Path(__file__).parent.parent / "docs" / "images"
# Public set, numbers in a code, share of --steps, and the sets whose test pictures are encoded.
TRAINED = {
    "quickdraw": (64, 1.0, ("quickdraw", "font-digits", "fashion-mnist")),
    "cifar10": (128, 0.6, ("cifar10",)),
    "faces": (64, 0.2, ("faces",)),
}
SETTINGS = (
    ("dct:64", "diagonal"),
    ("dct:64", "full"),
    ("quickdraw", "diagonal"),
    ("quickdraw", "full"),
    ("quickdraw", "low-rank"),
)


def trained(folder: Path, name: str, steps: int) -> Path:
    dim, share, _ = TRAINED[name]
    path = folder / f"{name}.safetensors"
    if not path.exists():
        how = Schedule(steps=max(1, round(share * steps)), batch=64 if name != "faces" else 32)
        pretrain_codec(sfumato.load(f"{name}:train"), path, how, dim=dim)
    return path


def strip(pixels: torch.Tensor) -> np.ndarray:
    """Pictures side by side, small ones twice as large."""
    scale = 2 if pixels.shape[2] <= 32 else 1
    row = (pixels.expand(-1, 3, -1, -1) * 255).round().to(torch.uint8).numpy()
    return np.concatenate([p.repeat(scale, 1).repeat(scale, 2) for p in row], axis=2).transpose(
        1, 2, 0
    )


def keep(rows: list[np.ndarray], name: str) -> None:
    """One small PNG of the strips, in few levels."""
    picture = Image.fromarray(np.concatenate(rows))
    red, green, blue = picture.split()
    gray = red.tobytes() == green.tobytes() == blue.tobytes()
    picture = red.quantize(24) if gray else picture.quantize(128)
    picture.save(IMAGES / name, optimize=True)


def reconstructions(folder: Path, names: list[str], steps: int, adain: bool) -> None:
    print("| codec | numbers | pictures | mean squared error | ms to encode | ms to decode |")
    print("|---|---|---|---|---|---|")
    for name in names:
        dim, _, shown = TRAINED[name]
        path = trained(folder, name, steps)
        public = sfumato.load(f"{name}:train")
        for data in shown:
            test = sfumato.load(f"{data}:test")
            pixels = test.take(np.linspace(0, len(test) - 1, 256).astype(int)).pixels()
            specs = {"dct": "dct", f"pca:{dim}": f"pca:{dim}", f"autoencoder of {name}": str(path)}
            if adain and data == "cifar10":
                specs["adain"] = "adain"
            rows = [strip(pixels[:16])]
            for title, spec in specs.items():
                codec = get_codec(spec, test.schema, public=public)
                rows.append(strip(measured(title, data, codec, pixels)[:16]))
            keep(rows, f"codec-{data}.png")


def measured(title: str, data: str, codec: Codec, pixels: torch.Tensor) -> torch.Tensor:
    began = time.process_time()
    vectors = codec.encode(pixels)
    middle = time.process_time()
    decoded = codec.decode(vectors)
    done = time.process_time()
    error = float((decoded - pixels).square().mean())
    each = [1000 * s / len(pixels) for s in (middle - began, done - middle)]
    print(
        f"| {title} | {codec.dim} | {data} | {error:.4f} | {each[0]:.1f} | {each[1]:.1f} |",
        flush=True,
    )
    return decoded


def private_digits(folder: Path, steps: int, seeds: int) -> None:
    train, test = sfumato.load("font-digits:train"), sfumato.load("font-digits:test")
    print("\n| DP-MGE on font digits (zero-out, δ = 1e-5) | covariance | ε = 1 | ε = 10 |")
    print("|---|---|---|---|")
    for spec, covariance in SETTINGS:
        path = str(trained(folder, spec, steps)) if spec in TRAINED else spec
        cells = []
        for epsilon in (1.0, 10.0):
            found = []
            for seed in range(seeds):
                method = Mge(codec=path, covariance=covariance, seed=seed)
                method.fit(train, sfumato.Budget(epsilon=epsilon, delta=1e-5))
                sample = method.sample(6000, seed=seed)
                result = sfumato.evaluate(sample, test, metrics=["accuracy.logreg"], seed=seed)
                found.append(100 * result.metrics[0].value)
                print(spec, covariance, epsilon, seed, found[-1], file=sys.stderr, flush=True)
                if seed == 0 and epsilon == 10.0 and (spec, covariance) == ("quickdraw", "full"):
                    picked = [np.flatnonzero(sample.labels == c)[:16] for c in range(10)]
                    keep(
                        [strip(sample.take(rows).pixels()) for rows in picked], "mge-quickdraw.png"
                    )
            spread = f" ({min(found):.1f}–{max(found):.1f})" if seeds > 1 else ""
            cells.append(f"{statistics.mean(found):.1f}{spread}")
        title = f"autoencoder of {spec}" if spec in TRAINED else spec
        print(f"| {title} | {covariance} | {cells[0]} | {cells[1]} |", flush=True)
    print(
        f"\nAccuracy in per cent of a logistic regression on real font digits; mean of {seeds} fits, 6,000 samples each (range)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codecs", type=Path)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=3, help="fits a cell; 0 leaves DP-MGE out")
    parser.add_argument("--only", default=",".join(TRAINED), help="public sets to train on")
    parser.add_argument("--no-adain", action="store_true", help="leave out what fetches VGG19")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.codecs or Path(temporary)
        names = arguments.only.split(",")
        reconstructions(folder, names, arguments.steps, not arguments.no_adain)
        if arguments.seeds:
            private_digits(folder, arguments.steps, arguments.seeds)
        print(
            f"Autoencoders of {', '.join(names)}: {arguments.steps} steps, or as the card of the file in --codecs says."
        )


if __name__ == "__main__":
    main()
