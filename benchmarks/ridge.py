"""Closed-form learning in place of `diffusion`'s paid steps: ridge regressions on fixed local features, one a noise level.

    python benchmarks/ridge.py [--rows NAME,…] [--epsilons E,…] [--only-show]

A study of public data (Fashion-MNIST) outside the wall: it simulates what a release would say, and is no method. A mixture has
the part of the budget that `diffusion` gives it, M is its posterior mean of a noisy picture, and (clean − M) ÷ c(s) is told from
features φ of every pixel, with weights that all pixels share: patches of the noisy picture and of M, and ReLU of random 7 × 7
filters of both; `two`: the same of half the size beside it; `layers`, `two`: what the last ridge made is a third picture.

A record would give two sums for each level and layer, its means over pixels of φφᵀ and of φ (clean − M) ÷ c(s), scaled together
until both are within their bounds; what the mixture leaves of the budget (δ = 1e-5, zero-out) is shared evenly by these. The mean
over 1,000 pictures stands for that over 55,000, with the noise of a sum over 55,000, which no number of records changes. Draws of
the mixture, toned, are free: they whiten φ, give the bounds (medians), and a first readout, towards which the ridge is drawn.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusion import DELTA, HELD_OUT, LEVELS, halves
from diffusion import KEPT as STEPS
from local_readout import AT_ONCE, NOISES, Features, Ridge
from torch import Tensor

import sfumato
from sfumato.data import Dataset
from sfumato.files import write_json
from sfumato.methods.base import Method
from sfumato.methods.denoising import scale
from sfumato.methods.posterior import Known
from sfumato.privacy.accounting import epsilon_of_gaussian
from sfumato.privacy.query import Query, calibrated, gaussian_noise, plan

KEPT = Path(__file__).parent / "results" / "ridge"
ALL, RECORDS, DRAWS = 55_000, 1000, 300
# Random filters, at half size too?, layers, and which of the first features are tried; all of them if none is named.
ROWS: dict[str, tuple[int, bool, int, tuple[int, ...]]] = {
    "fine": (256, False, 1, (19, 51, 99, 163, 227, 355)),
    "wide": (512, False, 1, ()),
    "two": (64, True, 2, ()),
    "layers": (128, False, 3, ()),
}
PATCHES = {19: "patches 3 × 3", 51: "patches 5 × 5", 99: "patches 7 × 7"}


def budgeted(epsilon: float, sums: int) -> tuple[sfumato.Budget, float]:
    """The mixture's budget, and the noise multiplier of each of so many sums in the rest."""
    budget = sfumato.Budget(epsilon=epsilon, delta=DELTA)
    part = sfumato.Diffusion().part(budget)
    queries = [Query(label="mixture", shape=(1,), share=part)]
    queries += [Query(label=f"{i}", shape=(1,), share=(1 - part) / sums) for i in range(sums)]
    noise = plan(queries, calibrated(queries, budget))[-1].noise_multiplier
    own = epsilon_of_gaussian(math.sqrt(part) / gaussian_noise(budget), DELTA)
    return sfumato.Budget(epsilon=own, delta=DELTA), noise


class Pictures:
    """What is seen of records at one noise level, and what remains to be told."""

    def __init__(self, data: Dataset, n: int, prior: Known, level: int, seed: int) -> None:
        clean = torch.from_numpy(np.asarray(data.images[:n])).float() / 127.5 - 1
        labels = torch.from_numpy(np.asarray(data.labels[:n])).long()
        random, s = torch.Generator().manual_seed(seed), LEVELS[level]
        noisy = clean + s * torch.randn(clean.shape, generator=random)
        self.made, self.unit = prior.mean_at(noisy, labels, level), float(scale(torch.tensor([s])))
        self.seen = torch.cat([noisy / math.sqrt(s**2 + 0.5), self.made], 1)
        self.wanted = ((clean - self.made) / self.unit).flatten(1)  # (n, pixels)

    def add(self, told: Tensor) -> None:
        """A layer's answer: the next one sees it, and is to tell the rest."""
        self.wanted = self.wanted - told
        self.made = self.made + self.unit * told.view_as(self.made)
        self.seen = torch.cat([self.seen[:, :2], self.made], 1)


def cell(row: str, epsilon: float, level: int, data: tuple[Dataset, Dataset]) -> dict[str, Any]:
    """Losses at one level by layer and number of features."""
    filters, half, layers, ends = ROWS[row]
    own, noise = budgeted(epsilon, 2 * len(LEVELS) * layers)
    out = Path("runs/ridge") / f"mixture-{epsilon:g}"
    known = out / "statement.json"
    mixture: Any = (
        Method.load(out) if known.exists() else sfumato.Mixture().fit(data[0], own, out=out)
    )
    prior = Known(mixture.mixture_, mixture.schema_, list(LEVELS))
    sizes = zip((*data, mixture.sample(DRAWS, seed=0)), (RECORDS, HELD_OUT, DRAWS), strict=True)
    parts = [Pictures(some, n, prior, level, seed) for seed, (some, n) in enumerate(sizes)]
    records, held, draws = parts
    found: dict[str, Any] = {"closed form": round(float(held.wanted.square().mean()), 4)}
    for layer in range(1, layers + 1):
        ridge = Ridge(Features(draws.seen, filters, (1, 2) if half else (1,), layer), ends, draws)
        weights = ridge.learn(records, draws, noise / ALL)
        told = ridge.tell(held, [w for some in weights.values() for w in some])
        pairs = zip(held.wanted.split(AT_ONCE), told, strict=True)
        loss = torch.cat([(wanted[..., None] - said).square().mean(1) for wanted, said in pairs])
        each = iter([round(v, 4) for v in loss.mean(0).tolist()])
        by = {kind: [next(each) for _ in some] for kind, some in weights.items()}
        for i, e in enumerate(ridge.ends):
            noisy = by["noisy"][NOISES * i :][:NOISES]
            found[f"{layer}/{e}"] = {k: by[k][i] for k in ("draws", "none")} | {"noisy": noisy}
        for some in parts if layer < layers else ():
            some.add(torch.cat(list(ridge.tell(some, weights["noisy"][:1])))[..., 0])
    return found


def title(row: str, layer: int, p: int) -> str:
    filters, half, layers, _ = ROWS[row]
    if layers > 1:
        return f"{filters} filters{' a size, two sizes' if half else ''}, layer {layer} of {layers}"
    return PATCHES.get(p) or f"{p - 99} filters"


def table(cells: dict[tuple[str, float], list[dict[str, Any]]]) -> Iterator[str]:
    """A line a set of features, a column an ε and what is learnt of; losses by level."""
    kinds = {"draws": "draws alone", "none": "no noise", "noisy": "noise"}
    epsilons = sorted({epsilon for _, epsilon in cells}, reverse=True)
    heads = [f"ε = {epsilon:g}: {kind}" for epsilon in epsilons for kind in kinds.values()]
    yield " | ".join(["| Fashion-MNIST, δ = 1e-5", "numbers released", *heads]) + " |"
    yield "|---" * (2 + len(heads)) + "|"
    lines: dict[tuple[str, str], dict[tuple[float, str], list[float]]] = {}
    for (row, epsilon), own in cells.items():
        closed = lines.setdefault(("closed form of the mixture", "–"), {})
        closed[epsilon, "noisy"] = [level["closed form"] for level in own]
        steps = STEPS / f"minutes-{epsilon:g}-0.json"
        if steps.exists():
            known = json.loads(steps.read_text(encoding="utf-8"))["loss"]["denoiser"]
            lines.setdefault(("DP-SGD, `diffusion`", "–"), {})[epsilon, "noisy"] = known
        for key in [k for k in own[0] if "/" in k]:
            layer, p = map(int, key.split("/"))
            widths = [int(k.split("/")[1]) for k in own[0] if "/" in k and int(k[0]) <= layer]
            used = widths if ROWS[row][2] > 1 else [p]
            numbers = len(LEVELS) * sum(e * (e + 1) // 2 + e for e in used)
            found = lines.setdefault((title(row, layer, p), f"{numbers:,}"), {})
            for kind in kinds:
                found[epsilon, kind] = [float(np.mean(level[key][kind])) for level in own]
    for heading, by in lines.items():
        told = [by.get((epsilon, kind), ()) for epsilon in epsilons for kind in kinds]
        losses = [" / ".join(f"{v:.3f}".lstrip("0") for v in some) or "–" for some in told]
        yield " | ".join(["| " + heading[0], heading[1], *losses]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--epsilons", default="10,1")
    parser.add_argument("--only-show", action="store_true", help="make no cell")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    cells: dict[tuple[str, float], list[dict[str, Any]]] = {}
    data = None
    for epsilon in map(float, arguments.epsilons.split(",")):
        for row in arguments.rows.split(","):
            paths = [KEPT / f"{row}-{epsilon:g}-{s:g}.json" for s in LEVELS]
            for level, path in enumerate(paths):
                if not path.exists() and not arguments.only_show:
                    data = data or halves()
                    write_json(path, cell(row, epsilon, level, data))
            if all(path.exists() for path in paths):
                cells[row, epsilon] = [json.loads(p.read_text(encoding="utf-8")) for p in paths]
    print("\n".join(table(cells)))


if __name__ == "__main__":
    main()
