"""What audits find: lower bounds on ε, beside what is claimed.

    python benchmarks/audit.py mechanism   every mechanism of the wall, `sfumato audit mechanism --full`

Made-up records only. Prints Markdown; progress goes to standard error.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace

from sfumato.cli.audit import CONFIDENCE, FULL, row_of
from sfumato.privacy.audit import DELTA, Finding, audit
from sfumato.testing.neighbours import mechanisms


def row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def head(*columns: str) -> None:
    row(*columns)
    print("|" + "---|" * len(columns))


def tell(*what: object) -> None:
    print(*what, file=sys.stderr, flush=True)


def mechanism(given: Namespace) -> None:
    every, begun = mechanisms(full=True), time.perf_counter()
    head(
        f"mechanism, δ = {DELTA:g}, confidence {CONFIDENCE:.1%} of all together",
        *("neighbours", "ε claimed", "ε measured", "ratio", "sensitivity", "measured"),
        *("pairs", "draws", "broken?"),
    )

    def found(one: Finding) -> None:
        row(*row_of(one)[:-1], "no" if one.passed else "YES")
        tell(f"{one.mechanism}: {time.perf_counter() - begun:.0f} s so far")

    audit(
        every,
        draws=FULL.draws,
        alone=FULL.alone,
        pairs_alone=FULL.pairs_alone,
        confidence=CONFIDENCE,
        on_finding=found,
    )
    seconds = time.perf_counter() - begun
    row(f"*all {len(every)}: {seconds / 60:.1f} minutes*", *[""] * 9)


STUDIES = {"mechanism": mechanism}


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=STUDIES)
    given = parser.parse_args()
    STUDIES[given.study](given)


if __name__ == "__main__":
    main()
