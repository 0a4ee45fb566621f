"""What the pages list is what there is."""

from __future__ import annotations

import importlib
import pydoc
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import sfumato
from sfumato.cli.main import app
from sfumato.methods import find_methods

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", find_methods())
def test_every_method_has_its_row_in_the_readme_and_its_page(name):
    row = re.search(
        rf"^\| \[`{name}`\]\((docs/methods/[\w-]+\.md)\)", (ROOT / "README.md").read_text(), re.M
    )
    assert row is not None
    page = ROOT / row[1]
    assert name in page.read_text().lower()
    assert row[1].removeprefix("docs/") in (ROOT / "mkdocs.yml").read_text()


def test_the_page_of_settings_is_made_of_the_declarations():
    made = CliRunner().invoke(app, ["methods", "--markdown"])
    assert made.exit_code == 0
    assert (ROOT / "docs" / "settings.md").read_text() == made.stdout, "make docs writes it anew"
    page = CliRunner().invoke(app, ["methods", "--markdown", "--preset", "paper"])
    assert (ROOT / "docs" / "presets.md").read_text() == page.stdout, "make docs writes it anew"
    assert "| `order` | `100`, ε = 0.3 | `100` | S3:2754 |" in page.stdout
    for cls in find_methods().values():
        assert all(f"| `{s.name}` | {s.wanted} |" in made.stdout for s in cls.settings())


NAMED = re.findall(
    r"^::: (\S+)$", "\n".join(p.read_text() for p in (ROOT / "docs" / "api").glob("*.md")), re.M
)


@pytest.mark.parametrize("name", NAMED)
def test_the_reference_names_public_things_that_explain_themselves(name):
    assert not any(part.startswith("_") for part in name.split("."))
    found = pydoc.locate(name)
    if found is None:  # loaded on first use
        home, _, last = name.rpartition(".")
        found = getattr(importlib.import_module(home), last)
    assert found.__doc__
    assert len(NAMED) == len(set(NAMED))


def test_every_name_at_the_top_of_the_package_is_in_the_reference():
    methods = {cls.__name__ for cls in find_methods().values()}
    wanted = {f"sfumato.{name}" for name in set(sfumato.__all__) - methods if name[0] != "_"}
    assert wanted <= set(NAMED)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_numbers_with_a_spread_stand_in_what_the_benchmarks_printed(page):
    printed = "\n".join(p.read_text() for p in (ROOT / "benchmarks" / "results").glob("*.md"))
    text = (ROOT / page).read_text().replace(" %", "")
    found = re.findall(r"\d+\.\d \(\d+\.\d–\d+\.\d", text)
    assert found
    assert [number for number in found if number not in printed] == []


def test_the_first_page_is_two_screens():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90
