"""How fast the private embedding pass runs, as a share of the machine's own f32 matrix-product peak.

Both are measured in one process, taking turns, and the medians are compared: the pass reads all of Fashion-MNIST, computes 10,000
random Fourier features of every image, bounds them, puts them on the grid and sums them by class, all that the wall does
before noise. The peak is the best of three shapes of plain f32 products, each kept up for a second.

    python benchmarks/embedding_pass.py [--rows 60000] [--features 10000] [--repeat 5]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time

import torch

import sfumato
from sfumato.data import Dataset
from sfumato.engines import LocalEngine
from sfumato.generators.embedding import CountedByClass
from sfumato.privacy import BoundedSum
from sfumato.public.fourier import FourierFeatures

SHAPES = ((4096, 4096, 4096), (5000, 784, 2048), (2048, 2048, 2048))


def product_gflops(shape: tuple[int, int, int]) -> float:
    """The rate of plain f32 products of one shape over about a second, result allocated beforehand."""
    rows, inner, columns = shape
    a, b = torch.randn(rows, inner), torch.randn(columns, inner).T
    out = torch.empty(rows, columns)
    torch.mm(a, b, out=out)
    began, products = time.perf_counter(), 0
    while time.perf_counter() - began < 1.0:
        torch.mm(a, b, out=out)
        products += 1
    return 2 * rows * inner * columns * products / (time.perf_counter() - began) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--features", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    whole = sfumato.load("fashion-mnist:train")
    batch = whole.take(range(arguments.rows))
    data = Dataset.from_values(batch.values.numpy(), batch.labels.numpy(), schema=whole.schema)
    phi = CountedByClass(FourierFeatures(784, arguments.features, 127.0, seed=0), 10)
    flops = 2 * arguments.rows * 784 * arguments.features / 2
    peaks, passes, memory = [], [], []
    for _ in range(arguments.repeat):
        peaks.append(max(product_gflops(shape) for shape in SHAPES))
        began = time.perf_counter()
        LocalEngine().total(data, BoundedSum(phi))
        passes.append(flops / (time.perf_counter() - began) / 1e9)
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
    shares = [p / q for p, q in zip(passes, peaks, strict=True)]
    print(
        f"threads {torch.get_num_threads()}, rows {arguments.rows}, features {arguments.features}"
    )
    print(
        f"peak product   {statistics.median(peaks):8.1f} GFLOP/s  (min {min(peaks):.1f}, max {max(peaks):.1f})"
    )
    print(
        f"embedding pass {statistics.median(passes):8.1f} GFLOP/s  (min {min(passes):.1f}, max {max(passes):.1f})"
    )
    print(
        f"share of peak  {statistics.median(shares):8.1%}  (min {min(shares):.1%}, max {max(shares):.1%})"
    )
    print(
        f"peak memory    {memory[0]:8.2f} GiB after the first pass, {memory[-1]:.2f} GiB after the last"
    )


if __name__ == "__main__":
    main()
