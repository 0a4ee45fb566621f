"""Run the benchmarks that `benchmarks.toml` lists, and write `benchmarks/RESULTS.md` from what they print.

    python benchmarks/run.py --results  only write RESULTS.md again from what is kept
    python benchmarks/run.py            all benchmarks (days)
    python benchmarks/run.py NAME …     some; the results of the others stay
    python benchmarks/run.py NAME=FILE  what NAME printed when it was run before (long ones are better run alone); a first line
                                        "$ python benchmarks/…" says with which options. NAME=FILE,FILE:
                                        the rows of several runs in one table

A benchmark prints Markdown or plain lines. Its last output is kept in `benchmarks/results/`, which the documentation quotes.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
BENCHMARKS = tomllib.loads((HERE / "benchmarks.toml").read_text(encoding="utf-8"))
HEAD = (
    "# Benchmark results\n\nWritten by `python benchmarks/run.py --results` from what the commands printed; no number is typed "
    "by hand. Where a table has the rows of several runs, its commands are named; what was put together by hand says so.\n"
)


def machine() -> str:
    import torch

    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = re.findall(r"^model name\s*:\s*(.*)$", cpuinfo.read_text(), re.MULTILINE)
        processor = names[0] if names else processor
    return f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"


def filed(paths: list[Path], command: str) -> tuple[str, str]:
    """The commands and the output of earlier runs; tables with the same heading become one."""
    commands: list[str] = []
    tables: dict[str, list[str]] = {}
    for path in paths:
        output = path.read_text(encoding="utf-8").strip()
        if output.startswith("$ "):
            first, _, output = output.partition("\n")
            commands.append(first.removeprefix("$ "))
        for table in output.strip().split("\n\n"):
            heading, *rows = table.splitlines()
            there = tables.get(heading, [])
            tables[heading] = there + [row for row in rows if row not in there]
    output = "\n\n".join("\n".join([heading, *rows]) for heading, rows in tables.items())
    return "` and `".join(commands) or command, output


def printed(commands: list[str]) -> str:
    """What the commands print, run here and now."""
    outputs = []
    for command in commands:
        arguments = [sys.executable, *shlex.split(command)[1:]]
        done = subprocess.run(
            arguments, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=True
        )
        outputs.append(done.stdout.strip())
    return "\n\n".join(outputs)


def results(folder: Path) -> str:
    """RESULTS.md: a table of contents, and what is kept of every benchmark."""
    kept = {name: folder / f"{name}.md" for name in BENCHMARKS}
    kept = {name: path for name, path in kept.items() if path.exists()}
    titles = {name: BENCHMARKS[name]["title"] for name in kept}
    # As GitHub and mkdocs name a heading.
    anchors = {
        name: re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for name, title in titles.items()
    }
    contents = "".join(f"- [{title}](#{anchors[name]})\n" for name, title in titles.items())
    parts = [
        f"## {titles[name]}\n\n{path.read_text(encoding='utf-8')}" for name, path in kept.items()
    ]
    return "\n".join([HEAD, contents, *parts])


def main() -> int:
    given = dict(a.partition("=")[::2] for a in sys.argv[1:]) or dict.fromkeys(BENCHMARKS, "")
    wanted = [name for name in given if name != "--results"]
    unknown = [name for name in wanted if name not in BENCHMARKS]
    if unknown:
        known = ", ".join(BENCHMARKS)
        print(f"No benchmark is called {', '.join(unknown)}; there are {known}.", file=sys.stderr)
        return 2
    folder = HERE / "results"
    for name in wanted:
        commands = BENCHMARKS[name]["commands"]
        command = "` and `".join(commands)
        if given[name]:
            command, output = filed([Path(p) for p in given[name].split(",")], command)
        else:
            print(f"{name} …", file=sys.stderr, flush=True)
            try:
                output = printed(commands)
            except subprocess.CalledProcessError as error:
                print(f"{name} failed; its earlier result stays.", file=sys.stderr)
                return error.returncode
        body = output if output.startswith(("|", "**")) else f"```\n{output}\n```"
        stamp = f"\n\n*`{command}`; {datetime.date.today()}; {machine()}.*\n"
        (folder / f"{name}.md").write_text(body + stamp, encoding="utf-8")
    (HERE / "RESULTS.md").write_text(results(folder), encoding="utf-8")
    print(f"Wrote {HERE / 'RESULTS.md'}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
