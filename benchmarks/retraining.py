"""Several generators from one DP-MERF release, and the choice among them by the private loss alone.

    python benchmarks/retraining.py

The 8×8 digits, ε = 5: one fit pays for the release, the other generators are trained from its run folder (`refit`) and cost
nothing. The test accuracy beside each loss is for the reader's eye; the choice does not use it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import sfumato
from sfumato.methods import get_method

RELEASED = {"features": 2_000, "seed": 0}  # what shaped the release stays
GENERATORS = [
    {"hidden": hidden, "training_seed": seed} for hidden in (20, 100, 300) for seed in (0, 1)
]


def main() -> None:
    torch.set_num_threads(1)
    train, test = (sfumato.load(f"digits:{split}") for split in ("train", "test"))
    budget = sfumato.Budget(epsilon=5.0, delta=1e-5)
    print("| generator | privacy spent | final matching loss | logreg, % |\n|---|---|---|---|")
    best: tuple[float, str] | None = None
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        for settings in GENERATORS:
            method = get_method("merf")(**RELEASED, **settings, steps=1_000)
            paid = not run.exists()
            fitted = method.fit(train, budget, out=run) if paid else method.refit(run)
            made = fitted.sample(2_000, seed=0)
            (accuracy,) = sfumato.evaluate(made, test, metrics=["accuracy.logreg"]).metrics
            title = ", ".join(f"{name}={value}" for name, value in settings.items())
            spent = f"ε = {budget.epsilon:g}" if paid else "nothing more"
            print(f"| {title} | {spent} | {fitted.loss_:.5f} | {100 * accuracy.value:.1f} |")
            if best is None or fitted.loss_ < best[0]:
                best = fitted.loss_, title
    assert best is not None
    print(f"| *chosen by the least loss: {best[1]}* | | *{best[0]:.5f}* | |")


if __name__ == "__main__":
    main()
