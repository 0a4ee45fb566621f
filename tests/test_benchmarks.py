"""How results of benchmarks are filed: rows of several runs become one table, and every command is named."""

from __future__ import annotations

import importlib.util
from pathlib import Path

RUN = Path(__file__).parents[1] / "benchmarks" / "run.py"


def filed(paths: list[Path]) -> tuple[str, str]:
    spec = importlib.util.spec_from_file_location("benchmark_run", RUN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.filed(paths, "python benchmarks/some.py")


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
