"""Tables of the papers made again: the files say what the papers say, and ours stands beside the right number."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from sfumato.cli.main import app
from sfumato.data import Dataset, find_named
from sfumato.errors import BadInput, DataUnavailable
from sfumato.evaluation.classified import CLASSIFIER, SUPERCLASS, judge_weights
from sfumato.methods import Dre
from sfumato.privacy import Budget
from sfumato.report import grid
from sfumato.report.comparison import parse_config
from sfumato.report.export import Table, as_latex, as_markdown, latex
from sfumato.report.grid import run_cell
from sfumato.report.papers import all_published
from sfumato.report.reproduce import part_of, read_table, reproduce, table_names

# Of every paper at least one: S2, S4, and of the thesis (S3) A, B, C and D.
QUICK = (
    "llm/text", "merf/table-3", "hp/table-1", "mepf/table-10", "mge/table-1", "mge/table-3", "dpaf/table-1",
)  # fmt: skip

OWN = """
title = "DP-MERF on small digits"
paper = "S3"
tables = ["app. B, Table 9"]
differs = ["digits are not MNIST"]
epsilons = [1.0]
delta = 1e-5
neighbours = "replace-one"
seeds = [1, 2]
samples = 200
metrics = ["accuracy.logreg"]

[methods."DP-MERF"]
method = "merf"
features = 64
steps = 10
batch = 20

[[grids]]
data = "digits"
beside = "mnist"

[quick]
seeds = [1]
[quick.methods."DP-MERF"]
steps = 5
"""


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    def serially(cells: Any, finished: Any, jobs: int, work: Any = run_cell) -> None:
        for key, cell in cells.items():
            finished(key, work(cell))

    monkeypatch.setattr(grid, "run_cells", serially)


@pytest.mark.parametrize("name", table_names())
def test_every_table_can_be_read_and_has_the_papers_numbers_beside_each_method(name: str) -> None:
    table = read_table(name)
    theirs = {(number.data, number.method) for number in table.numbers()}
    for config, data in zip(table.grids, table.beside, strict=True):
        assert {(data, variant) for variant in config.variants} <= theirs
        assert find_named(config.data) is not None


@pytest.mark.parametrize("name", table_names())
def test_the_budgets_of_a_table_are_the_papers(name: str) -> None:
    table = read_table(name)
    for config, data in zip(table.grids, table.beside, strict=True):
        printed = {n.epsilon for n in table.numbers() if n.data == data}
        assert set(config.epsilons) <= printed


def test_quick_is_a_smaller_run_of_the_same() -> None:
    whole, quick = read_table("merf/table-3"), read_table("merf/table-3", quick=True)
    assert quick.quick and len(quick.grids) < len(whole.grids)
    first, small = whole.grids[0], quick.grids[0]
    assert small.data == first.data and small.samples < first.samples
    assert small.variants["DP-MERF"].settings["steps"] < 3_000
    assert first.variants["DP-MERF"].settings["steps"] == 3_000  # the paper's
    assert first.variants["DP-MERF"].settings["length_scales"] == "105"


def test_a_setting_that_follows_epsilon_does_so_within_one_comparison() -> None:
    config = read_table("hp/table-1").grids[0]
    variant = config.variants["DP-HP"]
    assert variant.at(0.3)["product_order"] == 10
    assert variant.at(0.1)["product_order"] == 5
    cells = {c["epsilon"]: c for _, name, c in grid._grid(config, ["x"]) if name == "DP-HP"}
    assert cells[0.3]["settings"] == variant.at(0.3)
    assert cells[0.1]["settings"] == variant.at(0.1)


@pytest.mark.usefixtures("_here")
def test_ours_stands_beside_the_papers_number_and_finished_cells_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN, encoding="utf-8")
    found = reproduce(read_table(str(file)), tmp_path / "out")
    (row,) = [r for r in found.rows if r["mean"] is not None]
    printed = next(
        n
        for n in all_published()
        if (n.data, n.metric, n.method, n.epsilon) == ("mnist", "accuracy.logreg", "DP-MERF", 1)
    )
    assert row["paper"] == printed.value == 0.769 and row["source"] == printed.source
    assert row["data"] == "digits (the paper's: mnist)"
    values = [cell["metrics"][0]["value"] for cell in found.outcomes[0].cells]
    assert row["mean"] == pytest.approx(sum(values) / 2) and row["seeds"] == 2
    others = {r["method"] for r in found.rows if r["mean"] is None}
    assert {"real data", "DP-CGAN"} <= others
    facts = json.loads((tmp_path / "out" / "reproduction.json").read_text())
    assert facts["rows"] == found.rows
    assert "Differs: digits are not MNIST." in facts["notes"]
    for ending in ("md", "tex"):
        text = (tmp_path / "out" / f"reproduction.{ending}").read_text()
        assert "0.769" in text and f"{row['mean']:.3f}" in text and "not covered by" in text
    again = reproduce(read_table(str(file)), tmp_path / "out")
    assert again.outcomes[0].kept == 2 and again.rows == found.rows


@pytest.mark.usefixtures("_here")
def test_the_command_prints_the_table_and_says_that_quick_is_no_result(tmp_path: Path) -> None:
    file, tex = tmp_path / "own.toml", tmp_path / "table.tex"
    file.write_text(OWN, encoding="utf-8")
    options = ["--quick", "-q", "--out", str(tmp_path / "out"), "--latex", str(tex)]
    done = CliRunner().invoke(app, ["reproduce", str(file), *options])
    assert done.exit_code == 0, done.output
    assert "0.769" in done.output and "QUICK" in done.output
    assert "The paper's protocol: mean of 5 runs" in done.output
    assert r"\begin{tabular}" in tex.read_text() and "QUICK" in tex.read_text()


def test_a_part_of_a_table_has_the_cells_of_the_whole() -> None:
    whole = read_table("merf/table-3")
    part = part_of(whole, seeds=2, data="fashion-mnist")
    (config,) = part.grids
    assert config.seeds == (1, 2) and part.beside == ("fashion-mnist",)
    keys = {key for key, *_ in grid._grid(config, ["x"])}
    assert keys < {key for key, *_ in grid._grid(whole.grids[1], ["x"])}
    (only,) = part_of(read_table("hp/table-7"), only="DP-HP,PrivBayes", data="adult").grids
    assert set(only.variants) == {"DP-HP", "DP-MERF (as run for DP-HP)"}  # both names hold it
    with pytest.raises(BadInput, match="it has methods DP-MERF"):
        part_of(whole, only="PrivBayes")
    part = part_of(whole, epsilons="1,inf", metrics="accuracy.mlp,accuracy.cnn")
    assert [g.epsilons for g in part.grids] == [(1.0, math.inf)] * 2
    assert {g.metrics for g in part.grids} == {("accuracy.mlp",)}
    assert {number.metric for number in part.numbers()} == {"accuracy.mlp"}
    with pytest.raises(BadInput, match=r"ε 0.2, 1, ∞"):
        part_of(whole, epsilons="3")
    with pytest.raises(BadInput, match="numbers with commas"):
        part_of(whole, epsilons="one")


def test_the_list_names_every_file_and_a_wrong_name_gets_a_sentence() -> None:
    done = CliRunner().invoke(app, ["reproduce", "--list", "--json"])
    assert json.loads(done.output) == table_names() and set(QUICK) <= set(table_names())
    wrong = CliRunner().invoke(app, ["reproduce", "merf/table-99"])
    assert wrong.exit_code == 2 and "--list" in wrong.output
    unnamed = CliRunner().invoke(app, ["reproduce"])
    assert unnamed.exit_code == 2 and "merf/table-3" in unnamed.output


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (('paper = "S3"', 'paper = "S9"'), "paper"),
        (('title = "DP-MERF on small digits"', ""), "title"),
        (("steps = 10", "stops = 10"), "stops"),
        (("[[grids]]", "[[grid]]"), "grids"),
    ],
)
def test_a_wrong_file_gets_a_sentence(tmp_path: Path, change: tuple[str, str], word: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN.replace(*change), encoding="utf-8")
    with pytest.raises(BadInput, match=word):
        read_table(str(file))


@pytest.mark.usefixtures("_here")
def test_a_private_classifier_is_compared_by_its_own_accuracy(tmp_path: Path) -> None:
    given = {
        "data": "digits",
        "epsilons": [8.0],
        "delta": 1e-5,
        "metrics": [CLASSIFIER],
        "methods": {"llm": {"maps": 2, "rate": 0.2, "epochs": 10.0, "learning_rate": 0.1}},
    }
    outcome = grid.compare(parse_config(given), tmp_path / "a")
    (row,) = outcome.rows
    assert 0.5 < row["mean"] <= 1 and "not covered by ε" in row["source"]
    (metric,) = outcome.cells[0]["metrics"]
    assert metric["low"] < metric["value"] < metric["high"]
    for metrics, methods in ((["accuracy.logreg"], {"llm": {}}), ([CLASSIFIER], {"merf": {}})):
        with pytest.raises(BadInput, match="classifier"):
            grid.compare(
                parse_config(given | {"metrics": metrics, "methods": methods}), tmp_path / "b"
            )


@pytest.mark.usefixtures("_here")
def test_the_weight_of_the_private_superclass_is_the_share_of_samples_of_its_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Private are two kinds of small pictures, public five; by a second route: of what samples are drawn."""
    names = ("black", "dark", "gray", "pale", "white")
    kinds = np.arange(600) % 5
    pixels = np.random.default_rng(0).integers(0, 40, (600, 1, 8, 8), dtype=np.uint8)
    pixels += (50 * kinds[:, None, None, None]).astype(np.uint8)
    public = Dataset.from_arrays(pixels, kinds, classes=names, name="public")
    wanted = np.flatnonzero(kinds >= 3)
    # None of them is public: eight pixels are brighter.
    changed = pixels[wanted] + np.eye(8, dtype=np.uint8)
    private = Dataset.from_arrays(changed, kinds[wanted] - 3, classes=("pale", "white"))
    model = Dre(codec="dct:16", rate=0.5, steps=60, learning_rate=0.05).fit(
        private, Budget.none(delta=1e-4), public=public
    )
    found = judge_weights(model, public)
    assert found.name == SUPERCLASS and found.badge == "" and "no private record" in found.source
    # What samples look like: their mean brightness is that of the kind that they were drawn from.
    made = model.sample(4_000, seed=0).images.mean(axis=(1, 2, 3))
    drawn = np.clip(np.round((made - 20) / 50), 0, 4).astype(int)
    assert found.value == pytest.approx(np.mean(drawn >= 3), abs=0.05)
    assert found.value > 0.6  # of two fifths of the records
    with pytest.raises(BadInput, match="no class that the private data have"):
        judge_weights(model, Dataset.from_arrays(pixels, kinds, classes=5, name="public"))
    with pytest.raises(BadInput, match="labelled public data"):
        judge_weights(model, None)


@pytest.mark.parametrize(
    ("metrics", "method", "word"),
    [
        (["superclass.weight", "fid"], "dre", "name it alone"),
        (["superclass.weight"], "merf", "judges dre's weights"),
    ],
)
def test_the_weight_of_a_superclass_is_of_dre_and_stands_alone(
    tmp_path: Path, metrics: list[str], method: str, word: str
) -> None:
    given = {"data": "digits", "epsilons": [1.0], "delta": 1e-5, "metrics": metrics}
    with pytest.raises(BadInput, match=word):
        grid.compare(parse_config(given | {"methods": {method: {}}}), tmp_path / "out")


def test_latex_is_escaped_and_has_a_cell_for_every_column() -> None:
    table = Table(
        title="50 % of a_b & c, ε = 1",
        columns=("Method", "ε = 1: LR"),
        rows=[("x_y {}", "81.2 (80.1–82.3)"), ("DP-MEPF φ1, published", "–")],
        slanted=frozenset({1}),
        notes=["a \\ b ~ ^ # $"],
    )
    text = as_latex(table)
    assert r"50 \% of a\_b \& c, $\varepsilon$ = 1" in text
    assert r"x\_y \{\} & 81.2 (80.1--82.3) \\" in text
    assert r"\emph{DP-MEPF $\varphi$1, published} & \emph{--} \\" in text
    assert r"a \textbackslash{} b \textasciitilde{} \textasciicircum{} \# \$" in text
    assert all(line.count(" & ") == 1 for line in text.splitlines() if line.endswith(r"\\"))
    assert latex("two\nlines") == "two lines"
    lines = as_markdown(table).splitlines()
    assert lines[4] == "| x\\_y {} | 81.2 (80.1–82.3) |"
    assert lines[5] == "| *DP-MEPF φ1, published* | – |"


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_quick_table_of_every_paper_runs(name: str, tmp_path: Path) -> None:
    try:
        found = reproduce(read_table(name, quick=True), tmp_path / "out")
    except DataUnavailable as error:
        pytest.skip(str(error))
    assert not found.failures
    ours = [row for row in found.rows if row["mean"] is not None]
    assert len(ours) == sum(len(g.variants) * len(g.metrics) for g in found.table.grids)


GRID = 'data = "digits", epsilons = [1.0], delta = 1e-5'


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (f"grids = [{{{GRID}, methods = [1]}}]", "methods"),
        (f"grids = [{{{GRID}, methods = {{merf = 1}}}}]", "methods"),
        ("grids = [1]", "grids"),
        (
            'grids = [{epsilons = [1.0], delta = 1e-5, methods = {merf = {preset = "paper"}}}]',
            "data",
        ),
        (
            'grids = [{data = "mnist", delta = 1e-5, methods = {merf = {preset = "paper"}}}]',
            "epsilons",
        ),
        (f"differs = 3\ngrids = [{{{GRID}, methods = {{merf = {{}}}}}}]", "differs"),
        (f"quick = 3\ngrids = [{{{GRID}, methods = {{merf = {{}}}}}}]", "quick"),
        (f'quick = {{grids = "x"}}\ngrids = [{{{GRID}, methods = {{merf = {{}}}}}}]', "quick"),
        (f"grids = [{{{GRID}, beside = 3, methods = {{merf = {{}}}}}}]", "beside"),
    ],
)
def test_a_file_with_things_of_another_kind_gets_a_sentence(
    tmp_path: Path, body: str, word: str
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f'title = "x"\npaper = "S3"\ntables = ["t"]\n{body}\n')
    with pytest.raises(BadInput, match=word):
        read_table(str(file), quick="quick" in body)
