"""`sfumato verify`: what was edited, swapped, lost or made elsewhere gets its sentence and its exit code."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs import refused, succeed
from runs import run as ask
from sfumato.methods import SavedRun, find_methods
from sfumato.report import write_report
from sfumato.report.verify import verify
from sfumato.testing.methods import BUDGET, small_images

METHODS = ("merf", "gan")
OLD = Path(__file__).parent / "runs-0.1.0.zip"


def fitted(name: str, folder: Path, seed: int = 0) -> Path:
    method = find_methods()[name]
    method(**method.TINY).fit(small_images(seed=seed), BUDGET, out=folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    runs = {name: fitted(name, folder / name) for name in METHODS}
    runs["other"] = fitted("merf", folder / "other", seed=1)
    write_report(runs["merf"])
    write_report(runs["other"])
    return runs


@pytest.fixture
def run(made: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made["merf"], tmp_path / "run"))


def edit(run: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(run / "run.sqlite")) as db, db:
        for statement in statements:
            db.execute(statement)


def told(run: Path) -> tuple[int, str]:
    result = ask("verify", run)
    assert "Traceback" not in result.output
    return result.exit_code, result.stdout.strip().splitlines()[-1] if result.stdout else ""


def swap(run: Path, other: Path, *statements: str) -> None:
    edit(run, f"ATTACH '{other / 'run.sqlite'}' AS other", *statements)


@pytest.mark.parametrize("name", METHODS)
def test_an_untouched_run_passes(name, made):
    found = verify(made[name])
    assert [c.sentence for c in found.checks if not c.passed] == []
    code, verdict = told(made[name])
    assert code == 0
    assert verdict.startswith("PASS")
    assert json.loads(succeed("verify", made[name], "--json").stdout)["passed"] is True


def test_every_run_of_version_0_1_0_passes(tmp_path):
    with zipfile.ZipFile(OLD) as archive:
        archive.extractall(tmp_path)
    for old in sorted(p for p in tmp_path.iterdir() if p.is_dir()):
        found = verify(old)
        assert [c.sentence for c in found.checks if not c.passed] == [], old


def edited_statement(run: Path, other: Path) -> None:
    path = run / "statement.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"epsilon": 0.001}))


def foreign(name: str) -> Callable[[Path, Path], Any]:
    return lambda run, other: shutil.copy(other / name, run / name)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (edited_statement, "statement.json is not what the store says"),
        (
            lambda run, other: swap(
                run, other, "UPDATE answers SET value = (SELECT value FROM other.answers)"
            ),
            "were changed",
        ),
        (
            lambda run, other: swap(
                run, other, "DELETE FROM parts", "INSERT INTO parts SELECT * FROM other.parts"
            ),
            "do not belong together",
        ),
        (foreign("generator.safetensors"), "another generator"),
        (foreign("report.html"), "made of another run"),
    ],
    ids=["statement", "release", "generator in the store", "generator", "report"],
)
def test_what_was_edited_or_comes_from_another_run_is_named(change, word, run, made):
    change(run, made["other"])
    code, verdict = told(run)
    assert (code, word in verdict) == (5, True)
    if change is edited_statement:
        assert SavedRun(run).statement.epsilon > 1.9  # nobody reads the edited one


def test_an_edited_epsilon_in_the_store_costs_more_than_it_says(run):
    stated = json.dumps(SavedRun(run).statement_json["epsilon"])
    edit(
        run,
        f"UPDATE facts SET value = replace(value, '\"epsilon\": {stated}', '\"epsilon\": 0.001')",
    )
    found = {c.name: c for c in verify(run).checks}
    assert "do not belong together" in found["store"].sentence
    assert "cost at least" in found["epsilon"].sentence
    assert found["epsilon"].code == 4
    assert told(run)[0] == 5  # the first that failed


def test_less_noise_than_stated_is_noticed(run):
    edit(
        run,
        "UPDATE plan SET charge = replace(charge, '\"noise_multiplier\": ', '\"noise_multiplier\": 0.0')",
    )
    found = {c.name: c for c in verify(run).checks}
    assert not found["store"].passed
    assert not found["epsilon"].passed
    assert not found["noise"].passed


def test_a_lost_release_is_missed(run):
    edit(run, "DELETE FROM answers")
    found = {c.name: c for c in verify(run).checks}
    assert "0 of 1 promised answers" in found["releases"].sentence


@pytest.mark.parametrize("name", ["statement.json", "generator.safetensors", "samples.png"])
def test_a_missing_file_is_written_again_by_export(name, run):
    whole = (run / name).read_bytes()
    (run / name).unlink()
    code, verdict = told(run)
    assert (code, f"{name} is missing" in verdict) == (5, True)
    assert "sfumato export" in verdict
    succeed("export", run)
    assert (run / name).read_bytes() == whole
    assert told(run)[0] == 0


def test_a_run_of_a_later_version_is_left_to_it(run):
    edit(run, 'UPDATE facts SET value = replace(value, \'"sfumato": "\', \'"sfumato": "99.\')')
    found = {c.name: c for c in verify(run).checks}
    assert "does not know" in found["version"].sentence


def test_what_is_no_finished_run_gets_one_sentence(run, tmp_path):
    assert told(tmp_path / "nowhere")[0] == 2
    edit(run, "UPDATE facts SET value = '\"begun\"' WHERE name = 'state'")
    assert told(run)[0] == 2
    (run / "run.sqlite").write_bytes(b"nonsense" * 100)
    assert told(run)[0] == 5


def test_an_export_to_hand_on_is_whole_and_never_over_something(run, tmp_path):
    out = tmp_path / "to hand on"
    succeed("export", run, "--out", out)
    assert {p.name for p in out.iterdir()} == set(SavedRun(run).exports())
    assert all((out / n).read_bytes() == c for n, c in SavedRun(run).exports().items())
    refused(6, "export", run, "--out", out)
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".part")]
