"""What a run survives, counted: kills, full disks and power cuts at every file operation, pairs of processes, hostile calls.

    python benchmarks/robustness.py [--cells FOLDER] [--calls 10000] [--pairs 34]

Each cell (an experiment on one fit) is a process of its own (`sfumato.testing.crash`, `sfumato.testing.fuzz`) whose counts are
kept as JSON; what is there already is not run again, so an interrupted sweep goes on where it was. All together take
about two hours of one core. Needs Linux and strace.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

FITS = ("merf", "gan", "mixture")
TITLES = {
    "kill": "SIGKILL at every file operation, then `--resume`",
    "full": "disk full from every write on, then `--resume`",
    "power": "power cut after every operation, each in six ways",
    "pairs": "two processes on one folder",
}
BAD = ("stuck", "strays", "half files", "second answers", "lost answers", "not verified")


def cell(path: Path, command: list[str]) -> dict[str, object]:
    if not path.exists():
        subprocess.run([sys.executable, "-m", *command], check=False, stdout=sys.stderr)
    return json.loads(path.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=Path, default=Path("benchmarks/results/robustness"))
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=34)
    given = parser.parse_args()
    given.cells.mkdir(parents=True, exist_ok=True)
    print("| experiment | fit | tried | " + " | ".join(BAD) + " |")
    print("|---|---|---|" + "---|" * len(BAD))
    for name, title in TITLES.items():
        for fit in FITS:
            path = given.cells / f"{name}-{fit}.json"
            command = ["sfumato.testing.crash", name, fit, "--json", str(path)]
            counts = cell(path, [*command, "--pairs", str(given.pairs)])[name][fit]
            shown = [str(counts[b]) if b in counts else "–" for b in BAD]
            print(f"| {title} | {fit} | {counts['struck']} | " + " | ".join(shown) + " |")
    path = given.cells / "fuzz.json"
    command = ["sfumato.testing.fuzz", "--calls", str(given.calls), "--seed", "0"]
    fuzz = cell(path, [*command, "--out", str(path)])
    print()
    print(
        f"Hostile calls (command line, Python, damaged files of every format): {fuzz['calls']:,}; ended well "
        f"{fuzz['ended well']:,}, in one sentence {sum(fuzz['one-sentence errors by exit code'].values()):,}, tracebacks "
        f"{fuzz['tracebacks']}, hangs over 60 s {fuzz['hangs']}."
    )


if __name__ == "__main__":
    main()
