"""The tutorials: notebooks without outputs, run, and written as pages with what they printed and drew.

    python benchmarks/tutorials.py [NAME …] [--out FOLDER]

Each notebook docs/tutorials/NAME.ipynb is run in an empty folder of its own and becomes docs/tutorials/NAME.md, with its pictures
beside it. The notebook is the source; the page is not edited. Noise is fresh in every run, so numbers differ from run to run.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import socket
import sys
import tempfile
from pathlib import Path
from textwrap import fill
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
NAMES = ("steward", "engineer", "researcher", "auditor")
_SECONDS = 900  # of one cell, on a machine with other work to do
_WIDTH = 100
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def executed(path: Path) -> Any:
    """The notebook with its outputs; a cell that fails raises, with what it printed."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="tutorial-") as folder:
        client = NotebookClient(
            notebook,
            timeout=_SECONDS,
            resources={"metadata": {"path": folder}},
            # A command that fails is a cell that fails, unless its tag (raises-exception) says that it should.
            extra_arguments=["--InteractiveShell.system_raise_on_error=True"],
        )
        commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        client.execute(env={**os.environ, "PATH": commands, "COLUMNS": "120", "NO_COLOR": "1"})
        _refuse_traces(notebook, folder)
    return notebook


def _refuse_traces(notebook: Any, folder: str) -> None:
    """A page tells nothing of the machine it was made on."""
    told = "".join(_raw(output) for cell in notebook.cells for output in cell.get("outputs", []))
    for trace in (folder, str(ROOT), str(Path.home()), socket.gethostname()):
        if re.search(rf"(?<!\w){re.escape(trace)}(?!\w)", told):
            raise SystemExit(
                f"The outputs name {trace!r}; change the notebook so that they do not."
            )


def _raw(output: Any) -> str:
    if output.output_type == "stream":
        return output.text
    return output.get("data", {}).get("text/plain", "")


def _plain(text: str) -> str:
    """Without colours; of a line that was written over what stood there last; and long sentences broken, tables not."""
    lines = _COLOURS.sub("", text).replace("\r\n", "\n").split("\n")
    kept = (line.rpartition("\r")[2].rstrip() for line in lines)
    broken = (
        fill(line, _WIDTH, subsequent_indent="    ") if len(line) > _WIDTH + 20 else line
        for line in kept
    )
    return "\n".join(broken).strip("\n")


def source(code: str) -> str:
    """A cell as the page shows it: commands of the shell with a prompt, else Python."""
    lines = code.splitlines()
    if all(line.startswith("!") for line in lines):
        return "```console\n" + "\n".join(f"$ {line[1:]}" for line in lines) + "\n```"
    return f"```python\n{code}\n```"


def page(notebook: Any, name: str) -> tuple[str, dict[str, bytes]]:
    """The Markdown, and the pictures by file name."""
    pictures: dict[str, bytes] = {}
    head, *rest = notebook.cells
    title, _, more = head.source.partition("\n")
    parts = [
        f"<!-- Written by `make tutorials` from {name}.ipynb; edit that. -->",
        title,
        f"*This page is a notebook that was run: [{name}.ipynb]({name}.ipynb).*",
        more.strip(),
    ]
    for cell in rest:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(source(cell.source))
        for kind, text in _outputs(cell):
            if kind == "picture":
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(text)
                parts.append(f"![What the cell above shows]({file})")
            elif text:
                parts.append(f"``` {{ .text .output }}\n{text}\n```")
    return "\n\n".join(part for part in parts if part) + "\n", pictures


def _outputs(cell: Any) -> list[tuple[str, str]]:
    """What a cell printed, joined where a stream came in pieces, and its pictures, in order."""
    found: list[tuple[str, str]] = []
    for output in cell.outputs:
        if output.output_type == "error":
            continue  # it was expected, and what the command printed says more
        if "image/png" in output.get("data", {}):
            found.append(("picture", output.data["image/png"]))
        elif output.output_type == "stream" and found and found[-1][0] == "stream":
            found[-1] = ("stream", found[-1][1] + output.text)
        elif output.output_type == "stream":
            found.append(("stream", output.text))
        else:
            found.append(("value", _raw(output)))
    return [(kind, text if kind == "picture" else _plain(text)) for kind, text in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--out", type=Path, default=TUTORIALS)
    arguments = parser.parse_args()
    for name in arguments.names or NAMES:
        text, pictures = page(executed(TUTORIALS / f"{name}.ipynb"), name)
        for old in arguments.out.glob(f"{name}-*.png"):
            old.unlink()
        for file, content in pictures.items():
            (arguments.out / file).write_bytes(content)
        (arguments.out / f"{name}.md").write_text(text, encoding="utf-8")
        print(f"Wrote {arguments.out / name}.md")


if __name__ == "__main__":
    main()
