"""The tutorials run, and their pages are of the notebooks beside them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
sys.path.insert(0, str(ROOT / "benchmarks"))

tutorials = pytest.importorskip("tutorials", reason="nbclient and nbformat are in .[dev]")


def test_every_notebook_is_known_and_in_the_menu():
    assert {p.stem for p in TUTORIALS.glob("*.ipynb")} == set(tutorials.NAMES)
    menu = (ROOT / "mkdocs.yml").read_text()
    assert all(f"tutorials/{name}.md" in menu for name in tutorials.NAMES)


@pytest.mark.parametrize("name", tutorials.NAMES)
def test_a_page_shows_its_notebook_whole_and_the_notebook_keeps_no_output(name):
    notebook = json.loads((TUTORIALS / f"{name}.ipynb").read_text())
    page = (TUTORIALS / f"{name}.md").read_text()
    place = 0
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            text = tutorials.source(text)
        elif place == 0:
            text = text.partition("\n")[2].strip()
        assert text in page[place:], f"make tutorials writes {name}.md anew"
        place = page.index(text, place) + len(text)


@pytest.mark.parametrize("name", tutorials.NAMES)
def test_a_page_tells_nothing_of_the_machine_it_was_made_on(name):
    page = (TUTORIALS / f"{name}.md").read_text()
    assert "\x1b" not in page and "Traceback" not in page
    assert not re.search(r"(?<![\w.])/(tmp|home|root|Users|work|var)/", page)
    for picture in re.findall(r"\]\(([\w-]+\.png)\)", page):
        assert (TUTORIALS / picture).stat().st_size < 200_000


def test_a_page_has_commands_with_a_prompt_pictures_beside_it_and_clean_text():
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

    pixel = "iVBORw0KGgo="
    shown = new_output("display_data", data={"image/png": pixel, "text/plain": "<Figure>"})
    printed = [new_output("stream", text=t) for t in ("\x1b[1mone\x1b[0m\r\n", " 10%\r100%\n")]
    notebook = new_notebook(
        cells=[
            new_markdown_cell("# Title\n\nWhy."),
            new_code_cell("!sfumato methods", outputs=printed),
            new_code_cell("plot()", outputs=[shown]),
        ]
    )
    page, pictures = tutorials.page(notebook, "x")
    assert "# Title\n\n*This page is a notebook" in page
    assert "```console\n$ sfumato methods\n```\n\n``` { .text .output }\none\n100%\n```" in page
    assert "```python\nplot()\n```\n\n![What the cell above shows](x-1.png)" in page
    assert pictures == {"x-1.png": b"\x89PNG\r\n\x1a\n"}


@pytest.mark.slow
@pytest.mark.parametrize("name", tutorials.NAMES)
def test_a_tutorial_runs(name):
    cells = tutorials.executed(TUTORIALS / f"{name}.ipynb").cells
    assert all(cell.execution_count for cell in cells if cell.cell_type == "code")
