"""DP-MEPF on CIFAR-10 (32 px, colour, labelled) with ImageNet's VGG: FID against steps, at ε = 10 and 1.

The paper trains 200,000 steps of 128 images on a GPU; a processor makes a few thousand of a cheaper step (fewer taps) in hours.
From one release per ε the generator is trained for growing numbers of steps, which costs no privacy.

    python benchmarks/mepf_cifar.py [--epsilons 10,1] [--steps 500,2000,8000] [--encoder vgg16] [--taps relu1_2,relu2_2,relu3_3]
        [--network classed] [--samples 5000] [--device cpu] [--runs FOLDER]

On a GPU, the paper's run: --encoder vgg19 --taps all --network resnet --steps 200000 --batch 128 --loss moving-average
--learning-rate 1e-3 --device cuda.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import sfumato
from sfumato.methods import Mepf, Synthesizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilons", default="10,1")
    parser.add_argument("--steps", default="500,2000,8000")
    parser.add_argument("--encoder", default="vgg16")
    parser.add_argument("--taps", default="relu1_2,relu2_2,relu3_3")
    parser.add_argument("--pool", type=int, default=16)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--loss", default="mmd")
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument(
        "--network", default="classed", help="resnet, as the paper's, takes half as long again"
    )
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--records", type=int, default=50_000, help="private records used")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", help="keep the runs here; a finished one is not made again")
    arguments = parser.parse_args()
    train, test = (sfumato.load(f"cifar10:{split}") for split in ("train", "test"))
    if arguments.records < len(train):
        images, labels = train.images, train.labels
        assert labels is not None
        train = sfumato.Dataset.from_arrays(
            images[: arguments.records],
            labels[: arguments.records],
            classes=train.schema.classes,
        )
    settings = {
        "encoder": arguments.encoder,
        "taps": None if arguments.taps == "all" else arguments.taps,
        "pool": arguments.pool,
        "balance": True,
        "batch": arguments.batch,
        "width": arguments.width,
        "loss": arguments.loss,
        "network": arguments.network,
        "learning_rate": arguments.learning_rate,
        "grain": 0.0,
        "warp": 0.0,
        "checked": False,
        "device": arguments.device,
    }
    print(f"| cifar10, {arguments.encoder}, zero-out, δ = 1e-5 | steps | FID | fit, CPU s |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.runs or temporary)
        for epsilon in (float(e) for e in arguments.epsilons.split(",")):
            first: Path | None = None
            for steps in (int(s) for s in arguments.steps.split(",")):
                began = time.process_time()
                method: Synthesizer = Mepf(steps=steps, **settings)
                out = folder / f"epsilon-{epsilon:g}-steps-{steps}"
                made = not (out / "manifest.json").exists()
                if not made:
                    method = Synthesizer.load(out)
                elif first is None:
                    method.fit(train, sfumato.Budget(epsilon=epsilon, delta=1e-5), out=out)
                else:
                    method.refit(first, out=out)
                first = first or out
                seconds = f"{time.process_time() - began:.0f}" if made else "–"
                sample = method.sample(arguments.samples)
                result = sfumato.evaluate(sample, test, metrics=["fid"], seed=0)
                value = result.metrics[0].value
                print(f"| ε = {epsilon:g} | {steps:,} | {value:.1f} | {seconds} |", flush=True)
                print(epsilon, steps, value, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
