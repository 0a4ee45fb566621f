"""Comparisons: what the TOML may say, which cells are kept, and what the outputs promise."""

from __future__ import annotations

import csv
import dataclasses
import json
import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from runs import arrays_in
from sfumato import published as whitelist
from sfumato.cli.compare import compare as command
from sfumato.data import Schema
from sfumato.errors import BadInput, BudgetExceeded, RunConflict
from sfumato.methods import Merf, get_method
from sfumato.privacy import Budget, DataSetLedger
from sfumato.progress import Progress, Stage
from sfumato.report import grid
from sfumato.report.comparison import (
    Outcome,
    parse_config,
    read_config,
    remarks,
    rows_of,
    table,
)
from sfumato.report.grid import _changed, _metric_names, compare, run_cell
from sfumato.report.papers import published_numbers

pytestmark = pytest.mark.xdist_group("comparison")  # one interrupted comparison for all of them

Story = tuple[Path, dict[str, int], Outcome]
TINY = {"features": 64, "steps": 10, "batch": 20}


def config(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "data": "digits",
        "epsilons": [1.0],
        "delta": 1e-5,
        "seeds": [0, 1],
        "samples": 200,
        "metrics": ["accuracy.logreg"],
        "methods": {"merf": dict(TINY)},
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


def compared(out: Path, progress: Progress | None = None, **changes: Any) -> Outcome:
    more = {} if progress is None else {"progress": progress}
    return compare(parse_config(config(**changes)), out, **more)


def keys_of(**changes: Any) -> list[str]:
    return [key for key, _, _ in grid._grid(parse_config(config(**changes)), ["fid"])]


def cells_of(out: Path) -> dict[str, int]:
    return {p.name: p.stat().st_mtime_ns for p in (out / "cells").glob("*")}


def serially(
    cells: Any, finished: Callable[..., None], jobs: int, work: Callable[..., Any] = run_cell
) -> None:
    for key, cell in cells.items():
        finished(key, work(cell))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells run in this process, which saves seconds of imports."""
    monkeypatch.setattr(grid, "run_cells", serially)


class _CtrlC(Progress):
    """Interrupts when the second cell comes in, before it is kept."""

    @contextmanager
    def stage(self, title: str, total: float) -> Iterator[Stage]:
        class Counting(Stage):
            count = 0

            def advance(self, amount: float = 1.0, **facts: float | str) -> None:
                self.count += 1
                if self.count == 2:
                    raise KeyboardInterrupt

        yield Counting()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int], Outcome]:
    """An interrupted comparison in real processes, gone on with: folder, cells after Ctrl-C, outcome."""
    out = tmp_path_factory.mktemp("story") / "out"
    with pytest.raises(KeyboardInterrupt):
        compared(out, _CtrlC())
    interrupted = cells_of(out)
    for path in (out / "cells").iterdir():
        json.loads(path.read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "run_cells", serially)
        return out, interrupted, compared(out)


def test_an_interrupted_comparison_leaves_whole_cells_only_and_no_process(
    story: Story,
) -> None:
    _, interrupted, _ = story
    assert len(interrupted) == 1
    assert all(name.endswith(".json") for name in interrupted)
    for process in multiprocessing.active_children():
        process.join(20)
    assert not multiprocessing.active_children()


def test_going_on_keeps_the_finished_cells(story: Story) -> None:
    out, interrupted, outcome = story
    assert outcome.kept == 1 and len(outcome.cells) == 2 and not outcome.failures
    after = cells_of(out)
    assert interrupted.items() < after.items()
    again = compared(out)
    assert again.kept == 2 and cells_of(out) == after
    assert again.rows == outcome.rows


def test_a_row_has_mean_range_epsilon_and_relation(
    story: Story,
) -> None:
    out, _, outcome = story
    (row,) = outcome.rows
    values = [cell["metrics"][0]["value"] for cell in outcome.cells]
    assert row["mean"] == pytest.approx(sum(values) / 2)
    assert (row["low"], row["high"], row["seeds"]) == (min(values), max(values), 2)
    assert (row["epsilon"], row["relation"]) == (1.0, "zero-out")
    with (out / "comparison.csv").open() as stream:
        (line,) = csv.DictReader(stream)
    assert line["relation"] == "zero-out" and float(line["mean"]) == row["mean"]
    assert json.loads((out / "comparison.json").read_text())["rows"] == outcome.rows
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    for name in ("comparison.md", "comparison.csv", "comparison.json", "comparison.html"):
        assert "not covered by ε" in (out / name).read_text()


@pytest.mark.usefixtures("here")
def test_cells_are_kept_made_anew_or_made_again(tmp_path: Path) -> None:
    compared(tmp_path, seeds=[0])
    (name,) = cells_of(tmp_path)
    longer = {"m": {"method": "merf", **TINY, "steps": 11}}
    assert compared(tmp_path, seeds=[0], methods=longer).kept == 0
    assert len(cells_of(tmp_path)) == 2
    (tmp_path / "cells" / name).write_text('{"format": 1, "met')
    assert compared(tmp_path, seeds=[0]).kept == 0
    cell = json.loads((tmp_path / "cells" / name).read_text())
    # A cell of an earlier version is kept without its times.
    cell["seconds"] = cell["metrics"][0]["seconds"] = 47.125
    (tmp_path / "cells" / name).write_text(json.dumps(cell))
    assert compared(tmp_path, seeds=[0]).kept == 1
    for page in tmp_path.glob("comparison.*"):
        assert "47.125" not in page.read_text()
    # Keeping the most typical is another comparison, and says so.
    plain, kept = compared(tmp_path, seeds=[0], keep=1), compared(tmp_path, seeds=[0], keep=0.5)
    assert (plain.kept, kept.kept, len(cells_of(tmp_path))) == (1, 0, 3)
    assert any("most typical 50 %" in remark for remark in remarks(kept))
    assert not any("most typical" in remark for remark in remarks(plain))


def test_the_name_of_a_variant_does_not_decide_its_cells() -> None:
    assert keys_of() == keys_of(methods={"x": {"method": "merf", **TINY}})
    assert not set(keys_of()) & set(keys_of(neighbours="replace-one"))


def test_variants_of_one_method_come_as_a_list_with_labels() -> None:
    entries = [
        {"name": "merf", "settings": dict(TINY)},
        {"name": "merf", "label": "merf, longer", "settings": {**TINY, "steps": 20}},
    ]
    made = parse_config(config(methods=entries)).variants
    assert [(name, v.method, v.settings["steps"]) for name, v in made.items()] == [
        ("merf", "merf", 10),
        ("merf, longer", "merf", 20),
    ]
    tables = {"merf": TINY, "merf, longer": {"method": "merf", **TINY, "steps": 20}}
    assert parse_config(config(methods=tables)).variants == made


def test_public_data_are_checked_first_and_decide_the_cells(tmp_path: Path) -> None:
    methods = {"merf": {**TINY, "public": "digits:test"}}
    assert parse_config(config(methods=methods)).variants["merf"].public == "digits:test"
    assert not set(keys_of(methods=methods)) & set(keys_of())
    with pytest.raises(BadInput, match=r"\[methods.merf\].*no use of public data"):
        compared(tmp_path / "out", methods=methods)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("here")
def test_public_data_reach_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = dataclasses.replace(Merf.info, public="optional")
    monkeypatch.setattr(Merf, "info", info)
    seen = []
    fit = Merf._fit

    def look(self: Merf, data: Any, run: Any) -> None:
        seen.append(run.public.name)
        fit(self, data, run)

    monkeypatch.setattr(Merf, "_fit", look)
    compared(tmp_path / "out", seeds=[0], methods={"merf": {**TINY, "public": "digits:test"}})
    assert seen == ["digits:test"]
    assert "with public data digits:test" in (tmp_path / "out" / "comparison.html").read_text()


def test_a_file_that_changed_makes_new_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.npz"
    path.write_bytes(b"1")
    before = grid._changed(str(path))
    os.utime(path, ns=(1, 10**18 * 3))
    assert grid._changed(str(path)) != before
    os.utime(path, ns=(1, 10**18 * 3))
    after = grid._changed(str(path))
    assert after == grid._changed(str(path))
    assert str(3 * 10**18) not in json.dumps(
        after
    )  # the hash is published, and a time could be guessed
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "another"))
    assert grid._changed(str(path)) != after


def test_no_file_of_a_comparison_tells_how_long_anything_took(
    story: Story,
) -> None:
    out, _, outcome = story
    (took,) = outcome.seconds.values()  # of the one cell that was run now; for the terminal
    assert took["fit"] > 0
    for path in [*out.glob("comparison.*"), *(out / "cells").iterdir()]:
        assert "seconds" not in path.read_text()
    for path in (out / "cells").iterdir():
        whitelist.check("cell", json.loads(path.read_text()))
    whitelist.check("comparison", json.loads((out / "comparison.json").read_text()))


@pytest.mark.usefixtures("here")
def test_a_comparison_under_add_remove_tells_no_number_of_private_records(tmp_path: Path) -> None:
    paths = {name: str(path) for name, path in arrays_in(tmp_path, train=317, test=101).items()}
    given = {**paths, "data": None, "seeds": [0], "classes": 2}
    # With less, a fit now and then takes all records for one class.
    given |= {"metrics": ["accuracy.logreg", "memorisation"], "epsilons": [20.0]}
    compared(tmp_path / "out", neighbours="add-remove", **given)
    compared(tmp_path / "public", **given)
    files = [*(tmp_path / "out" / "cells").iterdir(), *(tmp_path / "out").glob("comparison.*")]
    assert len(files) == 5
    for path in files:
        assert not re.search(r"\b(317|101) records", path.read_text())
    assert "317 records" in (tmp_path / "public" / "comparison.json").read_text()


def test_one_failing_cell_is_a_sentence_and_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def second_fails(cells: Any, finished: Callable[..., None], jobs: int, *_: object) -> None:
        for key, cell in cells.items():
            bad = {"error": "It <failed>; try less.", "exit_code": 4}
            finished(key, bad if cell["seed"] == 1 else run_cell(cell))

    monkeypatch.setattr(grid, "run_cells", second_fails)
    toml = tmp_path / "c.toml"
    toml.write_text(
        'data = "digits"\nepsilons = [1.0]\ndelta = 1e-5\nseeds = [0, 1]\nsamples = 200\n'
        'metrics = ["accuracy.logreg"]\n[methods.merf]\nfeatures = 64\nsteps = 10\nbatch = 20\n'
    )
    result = CliRunner().invoke(command, [str(toml), "--out", str(tmp_path / "out"), "--quiet"])
    assert result.exit_code == 4
    assert result.stderr.strip() == "Error: merf, ε = 1, seed 1: It <failed>; try less."
    assert "accuracy.logreg" in result.stdout and "not covered by ε" in result.stdout
    assert len(cells_of(tmp_path / "out")) == 1
    # Why a cell failed may depend on private records: the operator is told, the files say only that it is missing.
    for path in (tmp_path / "out").glob("comparison.*"):
        assert "failed" not in path.read_text() and "try less" not in path.read_text()
    for name in ("comparison.md", "comparison.html"):
        assert "merf, ε = 1, seed 1" in (tmp_path / "out" / name).read_text()
    told = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert told["missing"] == [{"name": "merf", "epsilon": 1.0, "seed": 1}]


def test_an_unexpected_error_in_a_cell_is_named_by_its_type_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def explode(*_: Any, **__: Any) -> None:
        raise ValueError("record 17 is 0.25")

    monkeypatch.setattr("sfumato.methods.Method.fit", explode)
    result = run_cell(grid._grid(parse_config(config()), ["accuracy.logreg"])[0][2])
    assert result["exit_code"] == 1 and "ValueError" in result["error"]
    assert "17" not in result["error"]


def die_or_work(cell: dict[str, Any]) -> dict[str, Any]:
    if cell["dies"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"threads": os.environ["OMP_NUM_THREADS"]}


def test_a_killed_process_loses_its_own_cell_only() -> None:
    found: dict[str, dict[str, Any]] = {}
    work = {"a": {"dies": True}, "b": {"dies": False}}
    grid.run_cells(work, found.__setitem__, 1, die_or_work)
    assert found["b"] == {"threads": "1"}
    assert "memory" in found["a"]["error"]


@pytest.mark.usefixtures("here")
def test_the_page_escapes_names_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>|$x"
    compared(tmp_path, seeds=[0], methods={evil: {"method": "merf", **TINY}})
    page = (tmp_path / "comparison.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page
    assert not re.search(r"https?://|url\(", page)
    assert not re.findall(r"(?:src|srcset|href)=", page)
    assert "default-src 'none'" in page
    markdown = (tmp_path / "comparison.md").read_text()
    assert "<script" not in markdown and r"\|" in markdown


def test_keep_needs_labelled_images_and_is_refused_before_any_fit(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Only labelled images"):
        compared(tmp_path, data="gaussians-2d", keep=0.5)
    assert not cells_of(tmp_path)


def test_published_rows_appear_only_for_the_matching_data_set_and_metric() -> None:
    metric = {"name": "accuracy.logreg", "value": 0.7, "source": "real; not covered by ε"}
    for data, expected in (("fashion-mnist", True), ("digits", False)):
        made = parse_config(config(data=data))
        rows = rows_of(made, [("merf", {"epsilon": 1.0}, {"metrics": [metric]})])
        theirs = [row for row in rows if row["published"]]
        assert bool(theirs) is expected
        assert all(row["metric"] == "accuracy.logreg" and row["relation"] for row in theirs)
        shown = {(row[3], row[2]) for row in table(rows)}
        assert (("DP-MERF (published)", "replace-one") in shown) is expected
        assert (("PEARL (published)", "relation not stated") in shown) is expected
    splits = parse_config(config(data=None, train="mnist:train", test="mnist:test"))
    assert splits.data == "mnist"
    swapped = parse_config(config(data=None, train="mnist:test", test="mnist:train"))
    assert not published_numbers(swapped.data)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 1.0}, ("'epsilon'", "epsilons")),
        ({"epsilons": None}, ("epsilons", "missing", "write")),
        ({"epsilons": 1.0}, ("epsilons", "list")),
        ({"epsilons": [0.0]}, ("epsilons", "positive")),
        ({"epsilons": [1.0, 1]}, ("epsilons", "different")),
        ({"epsilons": [-float("inf")]}, ("epsilons", "numbers")),
        ({"epsilons": [float("nan")]}, ("epsilons", "numbers")),
        ({"epsilons": ["1"]}, ("epsilons", "numbers")),
        ({"delta": None}, ("delta", "missing")),
        ({"delta": 2.0}, ("delta", "between 0 and 1")),
        ({"neighbours": "swap"}, ("swap", "replace-one")),
        ({"seeds": [-1]}, ("seeds", "whole numbers")),
        ({"seeds": [True]}, ("seeds", "write")),
        ({"samples": 0}, ("samples", "at least 1")),
        ({"keep": 0.0}, ("keep", "share", "0.75")),
        ({"keep": "all"}, ("keep", "share", "0.75")),
        ({"metrics": []}, ("metrics", "empty")),
        ({"metrics": "fid"}, ("metrics", "list")),
        ({"preset": "quick"}, ("metrics and preset", "keep one")),
        ({"data": "digit"}, ("'digit'", "did you mean digits")),
        ({"data": "digits:train"}, ("data", "train =")),
        ({"data": 3}, ("data", "quotes")),
        ({"train": "digits:train"}, ("data", "train =", "test =")),
        ({"methods": {}}, ("[methods.merf]",)),
        ({"methods": {"merv": {}}}, ("[methods.merv]", "did you mean 'merf'", "method =")),
        ({"methods": {"merf": {"seed": 1}}}, ("[methods.merf]", "seeds")),
        ({"methods": {"merf": {"step": 1}}}, ("[methods.merf]", "'step'", "steps")),
        ({"methods": {"merf": {"steps": "x"}}}, ("[methods.merf]", "steps", "int")),
        ({"methods": {"merf": {"steps": [1]}}}, ("[methods.merf]", "steps", "number")),
        ({"methods": {"merf": {"length_scale": float("nan")}}}, ("[methods.merf]", "length_scale")),
        ({"methods": {"merf": 3}}, ("methods.merf", "table")),
        ({"methods": {"merf": {"public": 3}}}, ("[methods.merf]", "public", "quotes")),
        ({"methods": [3]}, ("[[methods]] number 1", "name")),
        ({"methods": [{"label": "x"}]}, ("[[methods]] number 1", "name")),
        ({"methods": [{"name": "merf", "steps": 3}]}, ("'steps'", "settings")),
        ({"methods": [{"name": "merf", "settings": 3}]}, ("settings", "table")),
        ({"methods": [{"name": "merf"}, {"name": "merf"}]}, ("'merf'", "label")),
    ],
)
def test_a_mistake_in_the_file_is_a_sentence_with_key_and_remedy(
    changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(BadInput) as error:
        parse_config(config(**changes))
    for word in words:
        assert word in str(error.value)


def test_a_mistake_that_needs_the_data_shows_before_any_cell_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for changes, word in (
        ({"metrics": ["acuracy"]}, "acuracy"),
        ({"metrics": None, "preset": "fast"}, "fast"),
        ({"methods": {"merf": {"features": 63}}}, r"\[methods.merf\]"),
    ):
        with pytest.raises(BadInput, match=word):
            compared(tmp_path / "out", **changes)
    for changes, word in (
        ({"kinds": ("table",)}, "images"),
        ({"makes": "classifier"}, "no records"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Merf, "info", dataclasses.replace(Merf.info, **changes))
            with pytest.raises(BadInput, match=word):
                compared(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_and_folders_that_will_not_do_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("data = ")
    with pytest.raises(BadInput, match=r"broken.toml is not TOML"):
        read_config(broken)
    with pytest.raises(BadInput, match=r"missing\.toml"):
        read_config(tmp_path / "missing.toml")
    with pytest.raises(RunConflict, match="not empty"):
        compared(tmp_path)
    with pytest.raises(BadInput, match="jobs"):
        compare(parse_config(config()), tmp_path / "new", jobs=0)


def test_the_example_file_is_valid_and_the_help_has_a_runnable_one(tmp_path: Path) -> None:
    example = Path(__file__).parents[1] / "examples" / "compare.toml"
    assert read_config(example).variants["merf, few features"].method == "merf"
    text = CliRunner().invoke(command, ["--help"]).output
    toml = re.search(r"A file for it:\n(.*?)\n\n", text, re.S)
    assert toml is not None
    assert "one a core" in text
    (tmp_path / "help.toml").write_text(toml[1])
    assert read_config(tmp_path / "help.toml").epsilons == (1.0, 10.0)


def test_a_ledger_holds_all_cells_together_to_one_limit_and_refuses_before_the_first(
    tmp_path: Path, here: None
) -> None:
    book = tmp_path / "book"
    DataSetLedger.make(book, Budget(epsilon=1.6, delta=1e-5)).close()
    # Three runs at ε = 1 cost 1.84 together, two 1.47.
    with pytest.raises(BudgetExceeded, match=r"The 3 fits .* epsilon = 1\.8.* no row was read"):
        compare(parse_config(config(seeds=[0, 1, 2])), tmp_path / "three", ledger=book)
    assert not (tmp_path / "three").exists()
    two = compare(parse_config(config()), tmp_path / "two", ledger=book)
    assert not two.failures
    with DataSetLedger(book) as opened:
        assert [run.state for run in opened.runs()] == ["finished", "finished"]
        assert opened.spent() == pytest.approx(1.466, abs=2e-3)
    # What is kept costs nothing more; what is new does.
    again = compare(parse_config(config()), tmp_path / "two", ledger=book)
    assert again.kept == 2
    with pytest.raises(BudgetExceeded, match="The 1 fits"):
        compare(parse_config(config(seeds=[0, 1, 2])), tmp_path / "two", ledger=book)


def test_cells_that_a_ledger_never_saw_are_not_taken_for_paid(tmp_path: Path, here: None) -> None:
    book = tmp_path / "book"
    compare(parse_config(config(seeds=[0])), tmp_path / "out")
    DataSetLedger.make(book, Budget(epsilon=0.1, delta=1e-5)).close()
    with pytest.raises(BudgetExceeded, match="The 1 fits"):
        compare(parse_config(config(seeds=[0])), tmp_path / "out", ledger=book)


def test_a_number_too_large_is_not_no_privacy(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('data = "digits"\nepsilons = [1e999]\ndelta = 1e-5\n[methods.merf]\n')
    with pytest.raises(BadInput, match="too large for a number; write inf"):
        read_config(path)
    path.write_text('data = "digits"\nepsilons = [inf]\ndelta = 1e-5\n[methods.merf]\n')
    assert read_config(path).epsilons == (float("inf"),)


def test_a_comparison_under_a_ledger_stays_on_its_machine(tmp_path: Path) -> None:
    DataSetLedger.make(tmp_path / "book", Budget(epsilon=1.0, delta=1e-5)).close()
    with pytest.raises(BadInput, match="one machine"):
        compare(parse_config(config()), tmp_path / "out", engine="ray", ledger=tmp_path / "book")


@pytest.mark.parametrize("key", ["train", "test", "public"])
def test_an_address_with_a_password_never_reaches_a_comparison(key):
    given: dict[str, Any] = {
        "train": "s3://a/x.csv",
        "test": "s3://a/y.csv",
        "methods": {"merf": {}},
    }
    given |= {"epsilons": [1.0], "delta": 1e-5}
    parse_config(given)
    home = given["methods"]["merf"] if key == "public" else given
    home[key] = "ftp://u:SECRET@h/x.csv"
    with pytest.raises(BadInput, match="came with a user") as refusal:
        parse_config(given)
    assert "SECRET" not in str(refusal.value)


def test_an_address_has_no_time_of_change():
    assert _changed("s3://bucket/x.csv") == ["s3://bucket/x.csv"]


def test_records_through_the_codec_alone_stand_at_no_privacy_and_are_marked(
    tmp_path: Path, here: None
) -> None:
    """The most that a decoder can do. The method behind it is never fitted, and nothing of the records is kept."""
    only = {"method": "mge", "codec": "dct:64", "decoder_only": True}
    few = {"method": "mge", "codec": "dct:2", "decoder_only": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(get_method("mge"), "fit", lambda *_, **__: pytest.fail("fitted"))
        found = compared(
            tmp_path / "out", epsilons=[float("inf")], methods={"all": only, "few": few}, seeds=[0]
        )
    rows = {row["method"]: row for row in found.rows if not row["published"]}
    # 64 cosines are all that digits of 8×8 have: these are the records.
    assert rows["all"]["mean"] > 0.8 > rows["few"]["mean"] + 0.1
    assert {row["epsilon"] for row in rows.values()} == {None}
    assert all("NOT PRIVATE" in row["source"] for row in rows.values())
    assert "NOT PRIVATE" in (tmp_path / "out" / "comparison.html").read_text()
    assert [cell["statement"]["epsilon"] for cell in found.cells] == [None, None]
    assert not [path for path in (tmp_path / "out").rglob("*") if path.suffix in (".npy", ".npz")]
    both = parse_config(config(epsilons=[1.0, float("inf")], methods={"all": only, "mge": {}}))
    cells = [(name, cell["epsilon"]) for _, name, cell in grid._grid(both, ["x"])]
    assert cells.count(("all", None)) == 2 and ("all", 1.0) not in cells and ("mge", 1.0) in cells


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilons": [1.0]}, "add inf to epsilons"),
        ({"methods": {"merf": {"decoder_only": True}}}, "methods with a codec"),
        ({"methods": {"mge": {"decoder_only": 1}}}, "true or false"),
    ],
)
def test_a_decoder_alone_where_it_makes_no_sense_is_a_sentence(
    change: dict[str, Any], words: str
) -> None:
    usual = {"epsilons": [float("inf")], "methods": {"mge": {"decoder_only": True}}}
    with pytest.raises(BadInput, match=words):
        parse_config(config(**usual | change))


def test_a_decoder_alone_is_refused_under_a_ledger(tmp_path: Path, here: None) -> None:
    DataSetLedger.make(tmp_path / "ledger", Budget(epsilon=9.0, delta=1e-4)).close()
    only = {"mge": {"codec": "dct:2", "decoder_only": True}}
    asked = parse_config(config(epsilons=[float("inf")], methods=only))
    with pytest.raises(BadInput):
        compare(asked, tmp_path / "out", ledger=tmp_path / "ledger")


def test_a_metric_that_begins_anothers_name_is_that_metric_alone():
    """`fid` once asked for fid.paper too, which looks at all training images: two hours where ten minutes were wanted."""
    given = {"epsilons": [1.0], "delta": 1e-5, "methods": {"mixture": {}}}
    colour = Schema(kind="images", shape=(3, 32, 32), classes=("a", "b"))
    config = parse_config(given | {"data": "cifar10", "metrics": ["fid", "curve"]})
    found = _metric_names(config, colour)
    assert found[0] == "fid"
    assert "fid.paper" not in found
    assert len([name for name in found if name.startswith("curve.")]) > 2
