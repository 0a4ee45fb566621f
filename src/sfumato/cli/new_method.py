"""`sfumato new-method`: the files of a new method, which work as they are written. Touches no data."""

from __future__ import annotations

import keyword
import os
import re
from pathlib import Path
from string import Template

import click

from sfumato.cli.options import debug_option
from sfumato.errors import BadInput, RunConflict
from sfumato.files import write_text

KINDS = {
    "sums": "a few noisy sums, and what is read off them",
    "matched": "one noisy mean embedding, and a generator that matches it",
    "adversarial": "a critic trained with noisy gradients, and a generator",
    "taught": "a generator that learns from noisy gradients of its images",
}
_TEMPLATES = Path(__file__).parent / "templates"


@click.command("new-method")
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    default="sums",
    show_default=True,
    help="What it is made of: "
    + "; ".join(f"{kind}: {what}" for kind, what in KINDS.items())
    + ".",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Folder of a package; in a clone of sfumato the files go where its methods, tests and docs are.",
)
@debug_option
def new_method(name: str, kind: str, out: Path) -> None:
    """Write a method called NAME that works: the method, its test, its page of documentation.

    \b
    Example:
      sfumato new-method my-means --kind sums
      sfumato new-method my-gan --kind adversarial --out mypackage
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise BadInput(
            f"A method's name has small letters, digits and hyphens (my-means), which {name!r} has not."
        )
    from sfumato.methods import find_methods

    if name in find_methods():
        raise BadInput(f"There is a method called {name!r} already; choose another name.")
    written = write_method(name, kind, out)
    for path in written.values():
        click.echo(f"Wrote {path}")
    click.echo(f"Try it: pytest {written['test']}")
    if not _is_clone(out):
        click.echo(
            "So that sfumato finds it, add to the package's pyproject.toml, and install the package:\n"
            f'  [project.entry-points."sfumato.methods"]\n  {name} = "{_place(out, name)}"'
        )


def write_method(name: str, kind: str, out: Path) -> dict[str, Path]:
    """The three files, by what they are; nothing is written over."""
    clone = _is_clone(out)
    methods, tests, docs = (
        (out / "src/sfumato/methods", out / "tests", out / "docs/methods") if clone else (out,) * 3
    )
    module = _module(name)
    places = {
        "method": (methods / f"{module}.py", f"{kind}.py.txt"),
        "test": (tests / f"test_{module}.py", "test.py.txt"),
        "page": (docs / f"{name}.md", "page.md.txt"),
    }
    for path, _ in places.values():
        if path.exists():
            raise RunConflict(f"{path} exists already; choose another name, or remove it first.")
    words = {
        "name": name,
        "Class": "".join(part.capitalize() for part in name.split("-")),
        "Title": name.replace("-", " ").capitalize(),
        "module": f"sfumato.methods.{module}" if clone else _place(out, name),
    }
    for path, template in places.values():
        text = (_TEMPLATES / template).read_text(encoding="utf-8")
        write_text(path, Template(text).substitute(words))
    return {what: path for what, (path, _) in places.items()}


def _is_clone(out: Path) -> bool:
    return (out / "src/sfumato/methods").is_dir()


def _package(out: Path) -> str:
    """The package that a folder is, as far as its __init__.py files tell; empty for a folder of scripts."""
    parts: list[str] = []
    folder = Path(os.path.realpath(out))  # `resolve` raises at a loop of links
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _place(out: Path, name: str) -> str:
    return f"{_package(out)}.{_module(name)}".lstrip(".")


def _module(name: str) -> str:
    return name.replace("-", "_")
