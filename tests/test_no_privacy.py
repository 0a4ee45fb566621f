"""ε = ∞, the papers' rows without privacy: it must be asked for by name, says so wherever it shows, and reaches no ledger.

The attacks: a slip of the keyboard, a number too large for a float, a run that is gone on with at another ε, a statement that was
edited, a ledger that is asked in each of its ways.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from sfumato import Budget, Dataset, Merf, load
from sfumato.cli.main import app
from sfumato.errors import BadInput, CorruptArtifact, RunConflict
from sfumato.methods import Method, get_method
from sfumato.methods.base import load as load_run
from sfumato.privacy import DataSetLedger, Neighbours
from sfumato.privacy.accounting import LARGEST_EPSILON, NO_NOISE
from sfumato.report import grid
from sfumato.report.comparison import parse_config, remarks, rows_of, table
from sfumato.report.export import as_latex, as_markdown, compact
from sfumato.report.page import write_report
from sfumato.report.verify import verify

NONE = Budget.none(delta=1e-5)
TINY: dict[str, Any] = {"features": 64, "steps": 5, "batch": 20, "hidden": 16}
FIT = ["fit", "merf", "--data", "digits:train", "--delta", "1e-5"]
SETS = [word for pair in TINY.items() for word in ("--set", f"{pair[0]}={pair[1]}")]


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("none") / "run"
    Merf(**TINY).fit(load("digits:train"), NONE, out=out)
    return out


# ------------------------------------------------------------------------- it must be asked for by name


@pytest.mark.parametrize("epsilon", [math.inf, 1e308 * 10, 0.0, -math.inf, math.nan])
def test_no_number_is_a_budget_without_privacy(epsilon: float) -> None:
    with pytest.raises(BadInput, match="epsilon"):
        Budget(epsilon=epsilon, delta=1e-5)


def test_neither_half_of_it_is_enough() -> None:
    for epsilon in (1.0, 1e6):
        with pytest.raises(BadInput, match=r"Budget\.none"):
            Budget(epsilon=epsilon, delta=1e-5, private=False)
    with pytest.raises(BadInput):
        dataclasses.replace(NONE, private=True)
    with pytest.raises(BadInput):
        dataclasses.replace(NONE, epsilon=1.0)
    with pytest.raises(BadInput, match="true or false"):
        Budget(epsilon=1.0, delta=1e-5, private=0)  # type: ignore[arg-type]


def test_it_is_read_back_as_it_was_written_and_no_other_way() -> None:
    told = NONE.to_json()
    assert told == {"epsilon": None, "delta": 1e-5, "neighbours": "zero-out", "private": False}
    assert Budget.from_json(json.loads(json.dumps(told))) == NONE
    usual = Budget(epsilon=1.0, delta=1e-5)
    assert usual.to_json() == {"epsilon": 1.0, "delta": 1e-5, "neighbours": "zero-out"}
    assert Budget.from_json(usual.to_json()) == usual
    for change in ({"private": True}, {"epsilon": 1.0}, {"epsilon": "inf"}):
        with pytest.raises((BadInput, TypeError)):
            Budget.from_json(told | change)
    with pytest.raises((BadInput, TypeError)):
        Budget.from_json({key: told[key] for key in ("epsilon", "delta", "neighbours")})


@pytest.mark.parametrize("word", ["1e999", "Infinity", "INF", "+inf", "-inf", "nan", "none"])
def test_no_other_word_is_taken_for_inf(word: str, tmp_path: Path) -> None:
    found = run(*FIT, f"--epsilon={word}", "--out", tmp_path / "run", *SETS)
    assert found.exit_code == 2 and "epsilon" in found.output
    assert not (tmp_path / "run").exists()


def test_every_ordinary_budget_has_more_noise_by_far() -> None:
    schema = load("digits:train").schema
    loudest = Merf(**TINY).promise(schema, NONE).charges[0]
    least = Merf(**TINY).promise(schema, Budget(epsilon=LARGEST_EPSILON, delta=0.5)).charges[0]
    assert loudest.noise_multiplier == pytest.approx(NO_NOISE)
    assert least.noise_multiplier > 300 * loudest.noise_multiplier


def test_a_paper_that_leaves_something_out_has_no_meaning_without_a_budget() -> None:
    dpaf = get_method("dpaf")
    method = dpaf(**{**dpaf.TINY, "paper_variant": True})
    with pytest.raises(BadInput, match="epsilon = inf"):
        method.promise(load("digits:train").schema, NONE)


# ------------------------------------------------------------------------- it says so wherever it shows


def test_the_statement_says_it_and_keeps_no_promise(folder: Path) -> None:
    model = load_run(folder)
    statement = model.statement_
    assert not statement.private and not statement.sound and statement.claimed is None
    assert statement.paragraph().startswith("NOT PRIVATE")
    assert any("ε = ∞" in line for line in statement.not_covered)
    told = json.loads((folder / "statement.json").read_text())
    assert told["private"] is False and told["sound"] is False
    assert told["epsilon"] > 1e11  # who reads the number alone is not misled either
    assert told["budget"]["epsilon"] is None
    assert json.loads((folder / "config.json").read_text())["sound"] is False
    assert model.sample(5).name.endswith("NOT PRIVATE")


def test_an_ordinary_statement_has_no_word_of_it() -> None:
    usual = Merf(**TINY).promise(load("digits:train").schema, Budget(epsilon=1.0, delta=1e-5))
    told = usual.to_json()
    assert usual.private and usual.sound
    assert "private" not in told and "sound" not in told
    assert "NOT PRIVATE" not in json.dumps(told, ensure_ascii=False)


def test_report_verify_and_export_repeat_it(folder: Path, tmp_path: Path) -> None:
    write_report(folder)
    page = (folder / "report.html").read_text()
    assert page.count("NOT PRIVATE") >= 4 and 'class="everywhere"' in page
    assert "ε = ∞" in page and "differentially private for" not in page
    assert (folder / "report.md").read_text().count("NOT PRIVATE") >= 3
    found = verify(folder)
    assert found.passed, found.outcome
    assert "NOT PRIVATE" in found.outcome and found.to_json()["private"] is False
    handed = run("export", folder, "--out", tmp_path / "on")
    assert handed.exit_code == 0
    assert "NOT PRIVATE" in (tmp_path / "on" / "statement.json").read_text()


def test_an_ordinary_report_has_no_banner(tmp_path: Path) -> None:
    Merf(**TINY).fit(load("digits:train"), Budget(epsilon=1.0, delta=1e-5), out=tmp_path / "run")
    write_report(tmp_path / "run")
    assert 'class="everywhere"' not in (tmp_path / "run" / "report.html").read_text()
    assert "NOT PRIVATE" not in verify(tmp_path / "run").outcome


def test_the_commands_say_it_even_when_quiet(folder: Path, tmp_path: Path) -> None:
    made = run(*FIT, "--epsilon", "inf", "--out", tmp_path / "run", "-q", *SETS)
    assert made.exit_code == 0 and "NOT PRIVATE" in made.stderr
    plan = ["plan", *FIT[1:], "--epsilon", "inf", *SETS]
    assert "NOT PRIVATE" in run(*plan).output
    told = json.loads(run(*plan, "--json").stdout)
    assert told["private"] is False and told["sound"] is False
    for more in (["--out", tmp_path / "a.npz"], ["--out", tmp_path / "b", "--shard-size", 5]):
        drawn = run("sample", folder, "-n", 10, "-q", *more)
        assert drawn.exit_code == 0 and "NOT PRIVATE" in drawn.stderr
    assert "NOT PRIVATE" in run("verify", folder).output


def test_what_is_trained_again_from_it_is_not_private_either(folder: Path, tmp_path: Path) -> None:
    again = Merf(**{**TINY, "steps": 6}).refit(folder, out=tmp_path / "again")
    assert not again.statement_.private
    assert verify(tmp_path / "again").passed
    assert "NOT PRIVATE" in (tmp_path / "again" / "statement.json").read_text()


# ------------------------------------------------------------------------- no run changes its ε


def test_a_run_is_not_gone_on_with_at_another_epsilon(folder: Path, tmp_path: Path) -> None:
    data, usual = load("digits:train"), Budget(epsilon=1.0, delta=1e-5)
    with pytest.raises(RunConflict):
        Merf(**TINY).fit(data, usual, out=folder, resume=True)
    Merf(**TINY).fit(data, usual, out=tmp_path / "run")
    with pytest.raises(RunConflict):
        Merf(**TINY).fit(data, NONE, out=tmp_path / "run", resume=True)


def test_an_interrupted_run_stays_what_it_was(tmp_path: Path, monkeypatch: Any) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    data, out = load("digits:train"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Merf, "match", stop)
        with pytest.raises(KeyboardInterrupt):
            Merf(**TINY).fit(data, NONE, out=out)
    with pytest.raises(RunConflict):
        Merf(**TINY).fit(data, Budget(epsilon=1.0, delta=1e-5), out=out, resume=True)
    assert not Merf(**TINY).fit(data, NONE, out=out, resume=True).statement_.private


def test_an_edited_statement_is_found(folder: Path) -> None:
    from sfumato.methods import SavedRun

    for change in ({"private": None, "sound": None}, {"epsilon": 1.0}):
        with SavedRun(folder) as saved:
            told = dict(saved.statement_json) | change
            told = {key: value for key, value in told.items() if value is not None}
            vars(saved)["statement_json"] = told  # a cached property
            if "epsilon" in change:
                with pytest.raises(CorruptArtifact):
                    _ = saved.statement
            else:
                from sfumato.report.verify import _statement

                with pytest.raises(CorruptArtifact, match="sound"):
                    _statement(saved)
    with SavedRun(folder) as saved:
        config = dict(saved.config) | {"budget": Budget(epsilon=1.0, delta=1e-5).to_json()}
        vars(saved)["config"] = config
        with pytest.raises(CorruptArtifact):
            _ = saved.statement


# ------------------------------------------------------------------------- no ledger takes it


def test_a_ledger_refuses_it_in_each_of_its_ways(folder: Path, tmp_path: Path) -> None:
    book = tmp_path / "book"
    DataSetLedger.make(book, Budget(epsilon=1e6, delta=1e-5)).close()
    data = load("digits:train")
    with pytest.raises(BadInput, match="no privacy"):
        Merf(**TINY).fit(data, NONE, ledger=book)
    found = run(*FIT, "--epsilon", "inf", "--ledger", book, "--out", tmp_path / "run", *SETS)
    assert found.exit_code == 2 and "no privacy" in found.output
    planned = run("plan", *FIT[1:], "--epsilon", "inf", "--ledger", book, *SETS)
    assert planned.exit_code == 2 and "no privacy" in planned.output
    with pytest.raises(BadInput, match="no privacy"):
        grid.compare(parse_config(_comparison([math.inf])), tmp_path / "compared", ledger=book)
    with DataSetLedger(book) as opened:
        assert opened.runs() == [] and opened.spent() == 0
        with pytest.raises(BadInput, match="no privacy"):
            opened.check_kind(NONE)


def test_no_ledger_has_such_a_limit_and_no_audit_such_a_claim(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="limit"):
        DataSetLedger.make(tmp_path / "book", NONE)
    made = run("ledger", "init", tmp_path / "book", "--epsilon", "inf", "--delta", "1e-5")
    assert made.exit_code == 2 and not (tmp_path / "book").exists()
    audited = run("audit", "run", *FIT[1:], "--epsilon", "inf", *SETS)
    assert audited.exit_code == 2 and "claims nothing" in audited.output


# ------------------------------------------------------------------------- what it is for


def test_the_bounds_are_those_of_a_private_run() -> None:
    schema = load("digits:train").schema
    for relation in Neighbours:
        with_noise = Merf(**TINY).promise(
            schema, Budget(epsilon=1.0, delta=1e-5, neighbours=relation)
        )
        without = Merf(**TINY).promise(schema, Budget.none(delta=1e-5, neighbours=relation))
        for ours, theirs in zip(without.charges, with_noise.charges, strict=True):
            assert dataclasses.replace(ours, noise_multiplier=theirs.noise_multiplier) == theirs


def test_nothing_is_seen_of_the_noise() -> None:
    """The released sum is that of the records, counted a second time, to within a few millionths."""
    images = np.zeros((30, 4, 4), np.uint8)
    data = Dataset.from_arrays(images, np.arange(30) % 3, classes=3)
    method = get_method("mge")(codec="dct:4").fit(data, NONE)
    assert method.shares_.tolist() == pytest.approx([1 / 3] * 3, abs=1e-4)


def _comparison(epsilons: list[float]) -> dict[str, Any]:
    return {
        "data": "digits",
        "epsilons": epsilons,
        "delta": 1e-5,
        "samples": 100,
        "metrics": ["accuracy.logreg"],
        "methods": {"merf": dict(TINY)},
    }


def test_a_comparison_has_such_rows_and_marks_them(tmp_path: Path, monkeypatch: Any) -> None:
    def serially(cells: Any, finished: Any, jobs: int, work: Any = grid.run_cell) -> None:
        for key, cell in cells.items():
            finished(key, work(cell))

    monkeypatch.setattr(grid, "run_cells", serially)
    outcome = grid.compare(parse_config(_comparison([1.0, math.inf])), tmp_path / "out")
    assert not outcome.failures
    assert [row["epsilon"] for row in outcome.rows] == [1.0, None]
    assert [row["relation"] for row in outcome.rows] == ["zero-out", "none"]
    assert [line[1:3] for line in table(outcome.rows)] == [("1", "zero-out"), ("∞", "NOT PRIVATE")]
    assert any("NOT PRIVATE" in remark for remark in remarks(outcome))
    for name in ("comparison.md", "comparison.html", "comparison.json"):
        assert "NOT PRIVATE" in (tmp_path / "out" / name).read_text()
    for text in (as_markdown(compact(outcome)), as_latex(compact(outcome))):
        assert text.count("NOT PRIVATE") >= 2
    again = grid.compare(parse_config(_comparison([1.0, math.inf])), tmp_path / "out")
    assert again.kept == 2 and again.rows == outcome.rows
    plain = rows_of(outcome.config, [])
    assert plain == []


@pytest.mark.slow
def test_every_method_fits_without_noise() -> None:
    from sfumato.methods import list_methods

    data, public = load("digits:train"), load("digits:test")
    for info in list_methods():
        cls = get_method(info.name)
        if "images" in info.kinds:
            given = public if info.public == "required" else None
            model: Method = cls(**cls.TINY).fit(data, NONE, public=given)
            assert not model.statement_.sound, info.name
            if info.makes == "records":
                assert np.isfinite(model.sample(20).values).all(), info.name


def test_no_card_is_made_of_it(folder: Path, tmp_path: Path) -> None:
    made = run("card", folder, "--out", tmp_path / "card")
    assert made.exit_code != 0 and "not sound" in made.output
    assert not (tmp_path / "card").exists()
