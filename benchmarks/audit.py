"""What audits find: lower bounds on ε, beside what is claimed.

    python benchmarks/audit.py mechanism   every mechanism of the wall, `sfumato audit mechanism --full`
    python benchmarks/audit.py methods     whole methods on digits, each in one training, `sfumato audit run`; three times each
    python benchmarks/audit.py peers       the same guesses judged by sfumato and by jax_privacy (which must be installed, or
                                           its Python be named by --peer)

Made-up records, and digits, which are public. Prints Markdown; progress goes to standard error.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace

import torch

import sfumato
from sfumato.cli.audit import CONFIDENCE, FULL, row_of
from sfumato.methods import get_method
from sfumato.privacy import Neighbours
from sfumato.privacy.audit import DELTA, Asked, Finding, audit
from sfumato.privacy.one_run import claim_lower, epsilon_lower, guess
from sfumato.testing.canaries import audit_method
from sfumato.testing.neighbours import mechanisms


def row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def head(*columns: str) -> None:
    row(*columns)
    print("|" + "---|" * len(columns))


def tell(*what: object) -> None:
    print(*what, file=sys.stderr, flush=True)


def mechanism(given: Namespace) -> None:
    every, begun, worked = mechanisms(full=True), time.perf_counter(), time.process_time()
    asked = [m for m in every if not given.only or m.name in given.only]
    # Some of them may fail no more often than they may among all.
    failure = (1 - CONFIDENCE) * (1 if asked == every else len(asked) / len(every) / 2)
    head(
        f"mechanism, δ = {DELTA:g}, confidence {CONFIDENCE:.1%} of all together",
        *("neighbours", "ε claimed", "ε measured", "ratio", "sensitivity", "measured"),
        *("pairs", "draws", "broken?"),
    )

    def found(one: Finding) -> None:
        row(*row_of(one)[:-1], "no" if one.passed else "YES")
        tell(f"{one.mechanism}: {time.perf_counter() - begun:.0f} s so far")

    audit(
        asked,
        draws=FULL.draws,
        alone=FULL.alone,
        pairs_alone=FULL.pairs_alone,
        confidence=1 - failure,
        on_finding=found,
    )
    seconds, busy = time.perf_counter() - begun, time.process_time() - worked
    row(
        f"*{'all' if asked == every else 'of these'} {len(asked)}: {busy / 60:.1f} minutes of processor, "
        f"{seconds / 60:.1f} by the clock*",
        *[""] * 9,
    )


# Method: settings that make a fit short, and how many canaries; the gradients of all of them are taken in every step.
METHODS: dict[str, tuple[dict[str, str], int]] = {
    "merf": ({"steps": "200"}, 1_000),
    "hp": ({"steps": "200"}, 1_000),
    "mixture": ({"refine": "false"}, 1_000),
    "gan": ({"steps": "150", "rate": "0.1"}, 500),
    "dpaf": ({"steps": "150", "rate": "0.1"}, 300),
    "sinkhorn": ({"steps": "100"}, 300),
    "llm": ({"rate": "0.1"}, 300),
}


def methods(given: Namespace) -> None:
    data = sfumato.load("digits:train")
    head(
        f"digits, ε = {given.epsilon:g}, δ = 1e-5, zero-out, {given.runs} runs",
        *("canaries", "ε at least: answers", "assuming nothing", "samples alone"),
        *("least noise ÷ charged", "passed", "seconds"),
    )
    for name in given.only or METHODS:
        settings, count = METHODS[name]
        found = []
        for _ in range(given.runs):
            method = get_method(name).from_settings(settings)
            budget = sfumato.Budget(epsilon=given.epsilon, delta=1e-5)
            found.append(audit_method(method, data, budget, canaries=count))
            tell(name, found[-1].white_box.lower, f"{found[-1].seconds:.0f} s")
        told = " ".join(f"{k}={v}" for k, v in settings.items())
        black = [f.samples_lower for f in found if f.samples_lower is not None]
        row(
            f"`{name}` ({told})",
            f"{count:,}",
            spread([f.white_box.lower for f in found]),
            spread([f.white_box.region for f in found]),
            spread(black) if black else "makes none",
            f"{min(a.noise for f in found for a in f.answers if a.numbers > 1_000 or a.quiet):.3f}",
            "yes" if all(f.passed for f in found) else "NO",
            f"{statistics.mean(f.seconds for f in found):.0f}",
        )


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ({min(values):.2f}–{max(values):.2f})"


# -- a peer ----------------------------------------------------------------------------------------------------------------

# What the peer is asked, in its own Python: lines of JSON with the scores of canaries that are in and out.
PEER = """
import json, sys
import numpy as np
from jax_privacy import auditing
for line in sys.stdin:
    told = json.loads(line)
    auditor = auditing.CanaryScoreAuditor(np.array(told["in"]), np.array(told["out"]))
    found = [getattr(auditor, name)(significance=0.05, delta=1e-5) for name in ("epsilon_one_run", "epsilon_one_run_fdp")]
    found.append(auditor.epsilon_clopper_pearson(significance=0.05, delta=1e-5))
    print(json.dumps([float(x) for x in found]), flush=True)
"""


def peers(given: Namespace) -> None:
    """A sum over a thousand canaries through the wall, 20 times; all judge the same projections, at 95 %."""
    mechanism_ = {m.epsilon: m for m in mechanisms(counts=(0,)) if m.name == "sum"}
    random = torch.Generator().manual_seed(0)
    head(
        "256 canaries a sum, 4 sums, 20 times, δ = 1e-5, 95 %",
        *("sfumato: one run, assuming nothing", "sfumato: one run, curve", "jax_privacy: one run"),
        *("jax_privacy: one run, f-DP", "jax_privacy: Clopper–Pearson"),
    )
    for epsilon in (1, 2, 4):
        asked = Asked(mechanism_[epsilon])
        pairs = mechanism_[epsilon].side_by_side
        assert pairs is not None
        ours, lines = [], []
        for _ in range(20):
            scores, coins = [], []
            for _ in range(4):
                coin = torch.randint(0, 2, (pairs.count,), generator=random) == 1
                scores.append(pairs.directions @ asked.answers(pairs.records(coin), 1)[0])
                coins.append(coin)
            z, c = torch.cat(scores).numpy(), torch.cat(coins).numpy()
            seen = guess(z, c)
            failure = 0.05 / len(seen)
            curve = claim_lower(seen, (asked.charge,), 1e-5, Neighbours.ZERO_OUT, failure)
            ours.append((max(epsilon_lower(s, 1e-5, failure) for s in seen), curve))
            lines.append(json.dumps({"in": z[c].tolist(), "out": z[~c].tolist()}))
        told = subprocess.run(
            [given.peer, "-c", PEER],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        theirs = [json.loads(line) for line in told]
        cells = [spread(list(v)) for v in (*zip(*ours, strict=True), *zip(*theirs, strict=True))]
        row(f"sum, ε = {epsilon}", *cells)


STUDIES = {"mechanism": mechanism, "methods": methods, "peers": peers}


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--only", type=lambda text: text.split(";"), help="some of them, with ; between"
    )
    parser.add_argument("--peer", default=sys.executable, help="peers: a Python with jax_privacy")
    given = parser.parse_args()
    torch.set_num_threads(1)
    STUDIES[given.study](given)


if __name__ == "__main__":
    main()
