"""How fast the exact discrete Gaussian is drawn: one thread, all cores, and the time for a million coordinates.

python benchmarks/noise_speed.py [--draws 100000] [--repeat 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

from sfumato.privacy.noise import FastGaussian, discrete_gaussian


def rate(draw, count: int) -> float:
    began = time.perf_counter()
    draw(count)
    return count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    scale = 3.73 * 2**18
    fast = FastGaussian()
    one, all_cores, quick = [], [], []
    for _ in range(arguments.repeat):
        one.append(rate(lambda n: discrete_gaussian(n, scale, workers=1), arguments.draws))
        all_cores.append(rate(lambda n: discrete_gaussian(n, scale), arguments.draws))
        quick.append(rate(lambda n: fast((n,), 3.73), 20 * arguments.draws))
    for name, rates in (
        ("exact, 1 thread", one),
        (f"exact, {os.cpu_count()} threads", all_cores),
        ("fast", quick),
    ):
        middle = statistics.median(rates)
        print(
            f"{name:18} {middle:14,.0f} draws/s  ({min(rates):,.0f} to {max(rates):,.0f}); a million in {1e6 / middle:.2f} s"
        )
    print(
        f"speed-up of {os.cpu_count()} threads: {statistics.median(a / b for a, b in zip(all_cores, one, strict=True)):.2f}×"
    )


if __name__ == "__main__":
    main()
