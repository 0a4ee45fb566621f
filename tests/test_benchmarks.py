"""How results of benchmarks are filed, that what they name is there, and that the README repeats no number wrongly."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from sfumato.report.comparison import read_config
from sfumato.report.reproduce import table_names

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
FILES = sorted([*(BENCHMARKS / "accuracy").glob("*.toml"), *(ROOT / "examples").glob("*.toml")])


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def filed(paths: list[Path]) -> tuple[str, str]:
    return script("run").filed(paths, "python benchmarks/some.py")


def test_rows_of_several_runs_become_one_table(tmp_path):
    first, second = tmp_path / "a.md", tmp_path / "b.md"
    first.write_text(
        "$ python some.py --seed 0\n| x | y |\n|---|---|\n| a | 1 |\n| *known* | 9 |\n"
    )
    second.write_text(
        "$ python some.py --seed 1\n| x | y |\n|---|---|\n| b | 2 |\n| *known* | 9 |\n"
    )
    command, output = filed([first, second])
    assert command == "python some.py --seed 0` and `python some.py --seed 1"
    assert output == "| x | y |\n|---|---|\n| a | 1 |\n| *known* | 9 |\n| b | 2 |"


def test_tables_with_other_headings_stay_apart_and_the_usual_command_stands_in(tmp_path):
    first, second = tmp_path / "a.md", tmp_path / "b.md"
    first.write_text("| x | y |\n|---|---|\n| a | 1 |\n\n| z |\n|---|\n| c |\n")
    second.write_text("| x | w |\n|---|---|\n| a | 1 |\n")
    command, output = filed([first, second])
    assert command == "python benchmarks/some.py"
    tables = output.split("\n\n")
    assert [t.splitlines()[0] for t in tables] == ["| x | y |", "| z |", "| x | w |"]
    assert all(len(t.splitlines()) == 3 for t in tables)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_comparison_can_be_read(path):
    assert read_config(path).variants


def test_every_command_names_files_that_are_there():
    for entry in script("run").BENCHMARKS.values():
        for command in entry["commands"]:
            python, *arguments = shlex.split(command)
            assert python == "python"
            if arguments[:3] == ["-m", "sfumato", "reproduce"]:
                assert arguments[3] in table_names()
                continue
            named = [a for a in arguments if a.endswith((".py", ".toml"))]
            assert named
            assert [a for a in named if not (ROOT / a).exists()] == []


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(path):
    """Most is imported where it is measured, so that a name that moved would be noticed when the measurement is wanted."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sfumato"):
            module = importlib.import_module(str(node.module))
            missing = [a.name for a in node.names if not hasattr(module, a.name)]
            # A module of a package is no attribute before it is imported.
            assert all(importlib.util.find_spec(f"{node.module}.{name}") for name in missing)


def test_results_are_those_kept_and_every_heading_is_in_the_contents():
    text = (BENCHMARKS / "RESULTS.md").read_text(encoding="utf-8")
    assert text == script("run").results(BENCHMARKS / "results")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == re.findall(r"^- \[(.+)\]\(#", text, re.MULTILINE)
    kept = {path.stem for path in (BENCHMARKS / "results").glob("*.md")}
    assert kept <= set(script("run").BENCHMARKS)


def test_tables_of_the_papers_are_made_of_the_filed_cells(tmp_path, monkeypatch):
    papers = script("papers")
    commands = script("run").BENCHMARKS
    for name, entry in commands.items():
        kept = BENCHMARKS / "results" / f"{name}.md"
        if name.startswith("papers_") and kept.exists():
            names = shlex.split(entry["commands"][0])[2:]
            made = "\n".join(filter(None, map(papers.table, names)))
            assert kept.read_text(encoding="utf-8").startswith(made.strip())
    # A cell of another setting, seed or data set is none of the table's, and one that is there twice counts once.
    cells = sorted((papers.PAPERS / "merf-marginals").glob("*/cells/*.json"))
    folder = tmp_path / "merf-marginals" / "copies" / "cells"
    folder.mkdir(parents=True)
    cell = json.loads(cells[0].read_text(encoding="utf-8"))
    for place, change in enumerate(({}, {}, {"seed": 99}, {"train": "adult:train"})):
        other = {**cell, "cell": {**cell["cell"], **change}}
        (folder / f"{place}.json").write_text(json.dumps(other), encoding="utf-8")
    changed = {**cell["cell"], "settings": {**cell["cell"]["settings"], "bins": 3}}
    (folder / "9.json").write_text(json.dumps({**cell, "cell": changed}), encoding="utf-8")
    monkeypatch.setattr(papers, "PAPERS", tmp_path)
    rows = [line for line in papers.table("merf/marginals").splitlines() if line.endswith("| 1 |")]
    assert len(rows) == len(cell["metrics"])
    assert papers.table("hp/table-1") == ""


def test_a_cell_from_before_a_setting_was_there_had_what_is_built_in():
    papers = script("papers")
    config = papers.read_table("merf/table-1").grids[0]
    settings = config.variants["DP-MERF"].at(1.0)
    cell = {"train": config.train, "test": config.test, "method": "merf", "epsilon": 1.0, "seed": 1}
    cell |= {"neighbours": "replace-one", "delta": 1e-5, "samples": config.samples}

    def counts(**settings):
        return papers.is_of({**cell, "settings": settings}, config, "DP-MERF")

    assert counts(**settings) and not counts(**{**settings, "steps": 7})
    assert counts(**{k: v for k, v in settings.items() if k != "restarts"})  # the table has 1
    assert not counts(**{k: v for k, v in settings.items() if k != "widths"})  # it sets 4d,2d


def test_the_readme_repeats_numbers_of_the_results_and_is_two_screens():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 95
    table = readme.partition("## Results")[2].partition("## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    results = (BENCHMARKS / "RESULTS.md").read_text(encoding="utf-8")
    measured = re.compile(r"\d+\.\d \(\d+\.\d–\d+\.\d\)")
    assert len(measured.findall(table)) >= 10
    for row in rows:
        # The accuracies of a row stand side by side in one row of the results.
        found = measured.findall(row)
        if found:
            assert " | ".join(found) in results
        for number in re.findall(r"\*(\d+(?:\.\d)?)\*", row):
            assert f"*{number}*" in results


@pytest.mark.parametrize("vary", [[], ["data=a,b"], ["keep=1,0.9", "epsilons=1,0.5", "seeds=0"]])
def test_variations_are_every_combination(vary):
    accuracy = script("accuracy")
    found = accuracy.variations(vary)
    assert len(found) == {0: 1, 1: 2, 3: 4}[len(vary)]
    assert all(isinstance(f.get("epsilons", []), list) for f in found)
    assert {"keep": 0.9, "epsilons": [0.5], "seeds": [0]} in found or len(vary) < 3


def test_only_keeps_the_methods_whose_names_hold_a_word():
    chosen = script("accuracy").chosen
    assert chosen({"a plain": {}, "b": {}}, ["plain"]) == {"a plain": {}}
    assert chosen([{"name": "m", "label": "x"}, {"name": "m"}], ["m"]) == [{"name": "m"}]
    assert chosen({"a": {}, "b": {}}, [""]) == {"a": {}, "b": {}}
