"""How long `evaluate` takes with 60,000 images of 28×28, and what its classifiers reach when trained on real ones.

The accuracies are a check of the classifiers themselves: trained on the real training set they must come to the known
numbers (Fashion-MNIST: 84.4 / 88.0 / at least 90; MNIST: 92.5 / 97.8). Usage:

    python benchmarks/evaluation_speed.py [fashion-mnist] [mnist]
"""

from __future__ import annotations

import os
import sys
import time

from sfumato.data import load
from sfumato.evaluation import evaluate


def main(names: list[str]) -> None:
    for name in names or ["fashion-mnist"]:
        train, test = load(f"{name}:train"), load(f"{name}:test")
        wall, cpu = time.perf_counter(), time.process_time()
        result = evaluate(train, test)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"{name}, trained on {result.n:,} real images (load {os.getloadavg()[0]:.1f}):")
        for metric in result:
            share, interval = 100 * metric.value, f"{100 * metric.low:.1f}–{100 * metric.high:.1f}"
            print(f"  {metric.name:16} {share:5.2f} %  ({interval})  {metric.seconds:6.1f} s")
        print(f"  all              {wall:6.1f} s wall, {cpu:6.1f} s of processor time", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
