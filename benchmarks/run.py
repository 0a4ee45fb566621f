"""Run the benchmarks and write `benchmarks/RESULTS.md` from what they print.

    python benchmarks/run.py            all of them
    python benchmarks/run.py NAME …     some; the results of the others stay
    python benchmarks/run.py NAME=FILE  what NAME printed when it was run before (long ones are better run alone); a first line
                                        "$ python benchmarks/NAME.py …" says with which options. NAME=FILE,FILE:
                                        the rows of several runs in one table

Each benchmark is a script beside this one that prints Markdown or plain lines. Its last output is kept in `benchmarks/results/`.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BENCHMARKS = {
    "every_method": "Methods that make images, side by side",
    "embedding_pass": "The embedding pass, as a share of the matrix-product peak",
    "robustness": "What a run survives: kills, full disks, power cuts, two processes, hostile calls",
    "noise_speed": "Exact noise",
    "merf_speed": "The whole DP-MERF fit, against a plain implementation",
    "mepf_speed": "A DP-MEPF step, against one pass of its encoder and generator",
    "mepf_accuracy": "DP-MEPF on Fashion-MNIST and MNIST",
    "mepf_cifar": "DP-MEPF on CIFAR-10: FID against steps",
    "mepf_choices": "DP-MEPF's choices, one at a time",
    "mixture_accuracy": "The mixture on Fashion-MNIST and MNIST",
    "mixture_xray": "The mixture on chest X-rays: a small medical set",
    "mixture_proxies": "The mixture's settings on public stand-ins",
    "mixture_latent": "The mixture in the latent of a public autoencoder",
    "mixture_capacity": "The mixture's capacity where noise is low",
    "merf_accuracy": "DP-MERF on Fashion-MNIST",
    "hp_accuracy": "DP-HP on MNIST and Fashion-MNIST",
    "hp_kernel": "Hermite and random Fourier features against the exact kernel",
    "table_accuracy": "DP-MERF and DP-HP on tables",
    "gaussians": "DP-MERF and DP-HP on 25 Gaussians",
    "retraining": "Several generators from one DP-MERF release",
    "llm_accuracy": "DP-LLM on MNIST and Fashion-MNIST",
    "dpsgd_speed": "A DP-SGD step, against the same step without privacy",
    "dre_modes": "DP-DRE and DP-MGE on some classes of a public superset",
    "llm_attributions": "DP-LLM filters beside attributions of a DP-CNN",
    "evaluation_speed": "Evaluation: real-data accuracy of the classifiers, and their time",
    "evaluation_paper": "Evaluation: the paper preset on real data, beside the papers' own real-data rows",
    "fid_speed": "Evaluation: Inception features and FID",
    "codec_quality": "Codecs: reconstructions, and DP-MGE on font digits",
}


def machine() -> str:
    import torch

    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in cpuinfo.read_text().splitlines()
            if line.startswith("model name")
        ]
        processor = names[0] if names else processor
    return f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"


def quote_in_readme(results: Path) -> None:
    """Put each result the README quotes between its marks."""
    readme = HERE.parent / "README.md"
    text = readme.read_text(encoding="utf-8")
    for name in BENCHMARKS:
        mark, path = f"<!-- results:{name} -->\n", results / f"{name}.md"
        if mark in text and path.exists():
            before, rest = text.split(mark)
            after = rest.split("<!-- /results -->", 1)[1]
            text = f"{before}{mark}{path.read_text(encoding='utf-8')}<!-- /results -->{after}"
    readme.write_text(text, encoding="utf-8")


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


def main() -> int:
    given = dict(a.partition("=")[::2] for a in sys.argv[1:]) or dict.fromkeys(BENCHMARKS, "")
    wanted = list(given)
    unknown = [name for name in wanted if name not in BENCHMARKS]
    if unknown:
        print(
            f"No benchmark is called {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}.",
            file=sys.stderr,
        )
        return 2
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    for name in wanted:
        command = f"python benchmarks/{name}.py"
        if given[name]:
            command, output = filed([Path(p) for p in given[name].split(",")], command)
        else:
            print(f"{name} …", file=sys.stderr, flush=True)
            done = subprocess.run(
                [sys.executable, HERE / f"{name}.py"], stdout=subprocess.PIPE, text=True
            )
            if done.returncode:
                print(f"{name} failed; its earlier result stays.", file=sys.stderr)
                return done.returncode
            output = done.stdout.strip()
        body = output if output.startswith("|") else f"```\n{output}\n```"
        stamp = f"\n\n*`{command}`; {datetime.date.today()}; {machine()}.*\n"
        (results / f"{name}.md").write_text(body + stamp, encoding="utf-8")
    parts = [
        "# Benchmark results\n\nWritten by `benchmarks/run.py` from what the commands printed; no number is typed by hand. "
        "Where a table has the rows of several runs, its commands are named.\n"
    ]
    for name, title in BENCHMARKS.items():
        path = results / f"{name}.md"
        if path.exists():
            parts.append(f"## {title}\n\n{path.read_text(encoding='utf-8')}")
    (HERE / "RESULTS.md").write_text("\n".join(parts), encoding="utf-8")
    quote_in_readme(results)
    print(f"Wrote {HERE / 'RESULTS.md'}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
