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
from sfumato.report.papers import all_published
from sfumato.report.reproduce import read_table, table_names

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


def test_every_table_of_the_papers_has_its_row_with_a_command_or_a_reason():
    page = (ROOT / "docs" / "papers.md").read_text()
    assert "papers.md" in (ROOT / "mkdocs.yml").read_text()
    rows: dict[tuple[str, str], list[str]] = {}
    paper = ""
    for line in page.splitlines():
        if heading := re.match(r"## (S\d)", line):
            paper = heading[1]
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or len(cells) != 3 or cells[0] == "table or figure":
            continue
        assert cells[1] in ("reproduce", "study", "published only", "–") and cells[2], line
        for name in cells[0].split("; "):
            rows.setdefault((paper, name.partition(":")[0]), []).append(" ".join(cells[1:]))
    # Every table of which there are published numbers (S0 and S1 are earlier texts of S3), and every file.
    printed = {(n.paper, n.source.partition(", ")[2]) for n in all_published()}
    printed = {key for key in printed if key[0] in ("S2", "S3", "S4")}
    assert printed <= set(rows)
    named = {name for told in rows.values() for name in re.findall(r"`(\w+/[\w-]+)`", str(told))}
    assert named == set(table_names())
    for name in table_names():
        table = read_table(name)
        for place in table.tables:
            assert any(f"`{name}`" in told for told in rows[table.paper, place]), name
    for file in re.findall(r"benchmarks/[\w/-]+\.(?:toml|py|md)", page):
        assert (ROOT / file).exists(), file


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
