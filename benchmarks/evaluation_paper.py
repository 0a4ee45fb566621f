"""The paper preset, the papers' twelve classifiers and a convolutional network, trained on 60,000 real images.

A check of the judge itself: the rows must come to those of the papers' "real data" columns (thesis, app. B, tables 9 and 10).
About a quarter of an hour a data set on two cores. Usage:

    python benchmarks/evaluation_paper.py [fashion-mnist] [mnist]
"""

from __future__ import annotations

import os
import sys
import time

from sfumato.data import load
from sfumato.evaluation import evaluate

PUBLISHED = {
    "fashion-mnist": {
        "logreg": 84.4, "rf": 87.5, "gnb": 58.5, "bnb": 64.8, "svc": 83.9, "tree": 79.0, "lda": 79.9,
        "adaboost": 56.1, "mlp": 87.9, "bagging": 84.1, "gbm": 83.4, "xgb": 82.6, "mean12": 77.4,
    },
    "mnist": {
        "logreg": 92.5, "bnb": 84.0, "svc": 92.0, "tree": 88.0, "lda": 87.9, "adaboost": 72.9, "mlp": 97.8,
        "bagging": 92.8, "gbm": 90.9, "xgb": 91.2, "mean12": 86.7,
    },
}  # fmt: skip


def main(names: list[str]) -> None:
    print("| data | classifier | accuracy, % | 95 % interval | published, % | seconds |")
    print("|---|---|---|---|---|---|")
    for name in names or list(PUBLISHED):
        train, test = load(f"{name}:train"), load(f"{name}:test")
        began = time.perf_counter()
        found = evaluate(train, test, preset="paper")
        whole = time.perf_counter() - began
        for metric in found:
            short = metric.name.removeprefix("accuracy.")
            known = PUBLISHED.get(name, {}).get(short)
            print(
                f"| {name} | {short} | {100 * metric.value:.1f} | {100 * metric.low:.1f}–{100 * metric.high:.1f} "
                f"| {'' if known is None else known} | {metric.seconds:.0f} |"
            )
        load_now = os.getloadavg()[0]
        print(
            f"| {name} | the whole preset | | | | {whole:.0f} (load {load_now:.1f}) |", flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1:])
