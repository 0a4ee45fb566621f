"""How well Hermite and random Fourier features follow the Gaussian kernel, at equal numbers of features (DP-HP, figure 1).

    python benchmarks/hp_kernel.py [--out docs/images/hp-kernel.png]

100 points from N(0, 1), the squared length scale their median squared distance; the mean absolute error over all pairs; random
features averaged over 100 draws. No private data is involved.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from sfumato.data import Batch
from sfumato.public.fourier import FourierFeatures
from sfumato.public.hermite import hermite, rho_of

POINTS, DRAWS = 100, 100
NUMBERS = (2, 4, 6, 8, 10, 14, 20, 30, 50, 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parent.parent / "docs" / "images" / "hp-kernel.png"
    parser.add_argument("--out", type=Path, default=default)
    out = parser.parse_args().out
    x = torch.randn(POINTS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    squares = (x[:, None] - x).square()
    scale = float(squares[squares > 0].median())
    exact = torch.exp(-squares / (2 * scale))

    def error(phi: torch.Tensor) -> float:
        return float((phi @ phi.T - exact).abs().mean())

    rows = []
    for features in NUMBERS:
        series = torch.stack(list(hermite(x, features - 1, rho_of(scale))), dim=1)
        random = [
            error(
                FourierFeatures(1, features, scale, seed=seed)(
                    Batch(x[:, None].float(), None)
                ).double()
            )
            for seed in range(DRAWS)
        ]
        rows.append((features, error(series), sum(random) / DRAWS))
    print("| features | Hermite | random Fourier (mean of 100 draws) |\n|---|---|---|")
    for features, ours, theirs in rows:
        print(f"| {features} | {ours:.1e} | {theirs:.1e} |")
    figure, axes = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
    axes.semilogy(
        NUMBERS, [r[2] for r in rows], "o-", label="random Fourier features", color="tab:gray"
    )
    # Beyond double precision there is nothing to see.
    axes.semilogy(
        NUMBERS, [max(r[1], 1e-16) for r in rows], "o-", label="Hermite features", color="tab:brown"
    )
    axes.set_xscale("log")
    axes.set_xlabel("number of features")
    axes.set_ylabel("mean absolute error of the kernel")
    axes.set_title("Gaussian kernel on 100 points of N(0, 1)", fontsize=10)
    axes.legend(frameon=False)
    figure.savefig(out, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
