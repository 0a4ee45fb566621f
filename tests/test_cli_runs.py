"""Whole runs on the command line: plan, fit, sample, evaluate, report, demo on the 8×8 digits with tiny settings."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from runs import BUDGET as ONE
from runs import refused, succeed
from sfumato.cli import demo as demo_cli
from sfumato.data import Dataset
from sfumato.errors import DataUnavailable, SfumatoError
from sfumato.methods import Merf, MethodInfo, SavedRun
from waits import wait_for

pytestmark = pytest.mark.xdist_group("cli-runs")  # one run for all of them

TINY = ("--set", "features=64", "--set", "steps=20")
BUDGET = ("--epsilon", "5", "--delta", "1e-5")
PLAN = ("plan", "merf", "--data", "digits:train")
FIT = ("fit", *PLAN[1:], *BUDGET, *TINY)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    succeed(*FIT, "--out", out, "--quiet")
    return out


# ── methods and plan ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_methods_lists_what_can_be_fitted() -> None:
    table = succeed("methods").stdout
    listed = json.loads(succeed("methods", "--json").stdout)
    assert "merf" in {entry["name"] for entry in listed}
    for entry in listed:
        assert entry["name"] in table
        assert {"title", "paper", "kinds", "public", "sound", "summary"} <= set(entry)
        assert entry["public"] in ("unused", "optional", "required")
        assert entry["public"] in table


def test_a_method_shows_its_settings_with_type_default_and_help() -> None:
    shown = succeed("methods", "merf").stdout
    parameters = json.loads(succeed("methods", "merf", "--json").stdout)["parameters"]
    assert parameters
    for parameter in parameters:
        assert parameter["name"] in shown
        assert parameter["help"]
        assert parameter["type"]


def test_plan_promises_the_statement_that_fit_gives(finished: Path) -> None:
    plan = json.loads(succeed(*PLAN, *BUDGET, *TINY, "--json").stdout)
    statement = json.loads((finished / "statement.json").read_text())
    assert plan["epsilon"] <= 5
    assert plan["epsilon"] == pytest.approx(statement["epsilon"])
    for promised, given in zip(plan["releases"], statement["releases"], strict=True):
        for key in ("label", "bound", "sensitivity", "noise_std", "event"):
            assert promised[key] == given[key]


def test_plan_reads_no_row_and_fetches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "empty"))
    shown = succeed("plan", "merf", "--data", "fashion-mnist:train", *BUDGET).stdout
    assert "No row was read" in shown
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize("neighbours", ["zero-out", "add-remove"])
def test_plan_counts_the_lines_of_a_table_where_their_number_is_public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, neighbours: str
) -> None:
    from sfumato.data.tables import TableFile

    schema = {"kind": "table", "columns": [{"name": "a", "kind": "numerical", "low": 0, "high": 1}]}
    (tmp_path / "t.schema.json").write_text(json.dumps(schema))
    (tmp_path / "t.csv").write_text("a\n" + "0.5\n" * 31)
    words = ("plan", "mixture", "--data", tmp_path / "t.csv", *BUDGET, "--neighbours", neighbours)
    if neighbours == "zero-out":
        assert "(n = 31 records)" in succeed(*words).stdout
        return
    monkeypatch.setattr(TableFile, "__len__", lambda _: pytest.fail("a row was counted"))
    assert "31" not in succeed(*words).stdout.replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("neighbours", "warns"), [("zero-out", True), ("replace-one", True), ("add-remove", False)]
)
def test_delta_of_one_over_n_warns_only_where_n_is_public(neighbours: str, warns: bool) -> None:
    words = (*PLAN, "--epsilon", "1", "--neighbours", neighbours)
    loose = succeed(*words, "--delta", "0.001", "--json")
    assert ("Warning" in loose.stderr) is warns
    json.loads(loose.stdout)
    assert succeed(*words, "--delta", "1e-5").stderr == ""


# ── fit ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_folder_holds_what_is_promised(finished: Path) -> None:
    names = set(files(finished))
    assert {"config.json", "statement.json", "generator.safetensors", "log.jsonl"} <= names
    assert "samples.png" in names
    assert {"run.sqlite", "run.lock"} <= names
    assert not any(n.endswith((".part", ".pkl", ".pt", ".pickle")) for n in names)
    config = json.loads((finished / "config.json").read_text())
    assert config["method"] == "merf"
    assert config["budget"] == {"epsilon": 5.0, "delta": 1e-5, "neighbours": "zero-out"}


def test_fit_refuses_to_touch_a_finished_run(finished: Path) -> None:
    before = files(finished)
    assert "--resume" in refused(6, *FIT, "--out", finished)
    refused(6, *FIT, "--epsilon", "9", "--out", finished, "--resume")  # with another budget
    assert files(finished) == before


def test_fit_prints_for_a_script_or_quietly_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "new"
    printed = json.loads(succeed(*FIT, "--out", out, "--json").stdout)
    statement = json.loads((out / "statement.json").read_text())
    assert printed == {"run": str(out), "statement": statement}
    quiet = succeed(*FIT, "--out", tmp_path / "quiet", "--quiet")
    assert (quiet.stdout.strip(), quiet.stderr) == (str(tmp_path / "quiet"), "")


def test_add_remove_never_tells_the_number_of_records(tmp_path: Path) -> None:
    out = tmp_path / "new"
    result = succeed(*FIT, "--out", out, "--neighbours", "add-remove", "--delta", "1e-3")
    assert json.loads((out / "config.json").read_text())["data"]["size"] is None
    written = "".join(p.read_text() for p in out.glob("*.json*"))
    # As a number of its own, not as some digits of a loss.
    assert not re.search(r"(?<![\d.])1,?437(?![\d.])", result.output + written)


def test_kill_and_resume_spend_nothing_twice(tmp_path: Path) -> None:
    out = tmp_path / "new"
    words = [w if w != "steps=20" else "steps=100000" for w in FIT]
    command = [sys.executable, "-m", "sfumato", *words, "--out", str(out), "--quiet"]
    # What runs in the background of a shell ignores an interrupt, and so would its children.
    heeds = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), "text": True}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **heeds)
    try:
        wait_for(lambda: bool(_answers(out)), "a release", child)
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=300)
    finally:
        child.kill()
    assert "Interrupted; nothing is lost" in told
    # An interrupt inside a C extension's own evaluation makes Python end by the signal itself; a shell shows 130 for both.
    assert child.returncode in (130, -signal.SIGINT)
    assert told.strip().endswith("--resume to go on.")
    released = _answers(out)
    before = _log(out)
    again = subprocess.Popen([*command, "--resume"], stderr=subprocess.PIPE, **heeds)
    try:
        wait_for(lambda: _log(out) != before, "another line of the log", again)
    finally:
        again.kill()
        again.communicate()
    assert _answers(out) == released


def _answers(run: Path) -> list[str]:
    """The digests of what was released; none while nothing was begun."""
    try:
        return [a.digest for a in SavedRun(run, unfinished=True).answers()]
    except SfumatoError:
        return []


def _log(run: Path) -> list[dict[str, Any]]:
    return SavedRun(run, unfinished=True).log


def test_training_again_from_a_release_reads_no_row_and_keeps_the_guarantee(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfumato.data.load", lambda *_, **__: pytest.fail("data were opened"))
    out = tmp_path / "again"
    result = succeed("fit", "merf", "--from-release", finished, "--set", "steps=30", "--out", out)
    assert "no private row was read" in result.stdout
    assert "digits:test" in result.stdout
    old, new = (json.loads((run / "config.json").read_text()) for run in (finished, out))
    assert new["settings"] == {**old["settings"], "steps": 30}
    assert (out / "statement.json").read_bytes() == (finished / "statement.json").read_bytes()
    assert _answers(finished) == _answers(out)


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        (("--epsilon", "1"), "--epsilon"),
        (("--delta", "1e-5"), "--delta"),
        (("--data", "digits:train"), "--data"),
        (("--neighbours", "zero-out"), "--neighbours"),
        (("--image-size", "8"), "--image-size"),
        (("--set", "features=32"), "features=64"),
        (("--seed", "7"), "seed=0"),
    ],
)
def test_a_release_comes_with_its_data_budget_and_shape(
    finished: Path, tmp_path: Path, extra: tuple[str, str], word: str
) -> None:
    words = ("fit", "merf", "--from-release", finished, "--out", tmp_path / "new")
    assert word in refused(2, *words, *extra)
    assert not (tmp_path / "new").exists()


def test_a_release_of_another_method_is_refused(finished: Path, tmp_path: Path) -> None:
    other = _copy(finished, tmp_path / "other")
    with contextlib.closing(sqlite3.connect(other / "run.sqlite")) as db, db:
        db.execute("UPDATE facts SET value = replace(value, '\"merf\"', '\"another\"')")
    words = ("fit", "merf", "--from-release", other, "--out", tmp_path / "new")
    assert "a run of another" in refused(2, *words)


def _copy(run: Path, to: Path) -> Path:
    return Path(shutil.copytree(run, to, dirs_exist_ok=True))


@pytest.fixture
def curious(monkeypatch: pytest.MonkeyPatch) -> type[Merf]:
    """DP-MERF that keeps for the test what public data it was given."""
    from sfumato.methods import registry

    monkeypatch.setattr(registry, "_KNOWN", dict(registry._KNOWN))

    class Curious(Merf):
        info = MethodInfo(
            name="curious", title="Curious", paper="none", summary="x", public="required"
        )
        seen: ClassVar[list[Dataset]] = []

        def _fit(self, data: Any, run: Any) -> None:
            self.seen.append(run.public)
            super()._fit(data, run)

    return Curious


def test_public_data_reach_the_method_in_the_size_of_the_private_ones(
    curious: Any, tmp_path: Path
) -> None:
    (tmp_path / "photos" / "any").mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (20, 30), (number, 90, 200)).save(
            tmp_path / "photos" / "any" / f"{number}.png"
        )
    words = ("fit", "curious", "--data", "digits:train", *BUDGET, *TINY)
    for number, public in enumerate(("digits:test", tmp_path / "photos")):
        succeed(*words, "--public", public, "--out", tmp_path / str(number), "--quiet")
    named, folder = curious.seen
    assert (named.name, folder.name) == ("digits:test", "photos")
    assert folder.schema.shape == (1, 8, 8)
    assert len(folder) == 3
    assert json.loads((tmp_path / "0" / "config.json").read_text())["public"] == "digits:test"
    for extra, word in (((), "--public"), (("--public", "no/where"), "no/where")):
        assert word in refused(2, *words, *extra, "--out", tmp_path / "none")
    useless = (*FIT, "--public", "digits:test", "--out", tmp_path / "none")
    assert "leave --public out" in refused(2, *useless)


# ── sample ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def sampled(run: Path, out: Path, *more: object) -> np.ndarray:
    assert str(out) in succeed("sample", run, "--out", out, *more).stdout
    with np.load(out, allow_pickle=False) as arrays:
        assert arrays["labels"].shape == (len(arrays["images"]),)
        assert set(arrays["labels"]) <= set(range(10))
        return arrays["images"]


def test_the_same_seed_gives_the_same_sample_and_another_another(
    finished: Path, tmp_path: Path
) -> None:
    a, b, c = (
        sampled(finished, tmp_path / f"{name}.npz", "-n", 20, "--seed", seed)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert a.shape == (20, 1, 8, 8)
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_the_likeliest_are_kept_on_request(finished: Path, tmp_path: Path) -> None:
    some = sampled(finished, tmp_path / "k.npz", "-n", 20, "--keep", 0.5)
    drawn = sampled(finished, tmp_path / "all.npz", "-n", 40)
    assert {image.tobytes() for image in some} < {image.tobytes() for image in drawn}
    words = ("sample", finished, "-n", "5", "--keep", "2", "--out", tmp_path / "x.npz", "--quiet")
    assert "keep is the share" in refused(2, *words)
    assert not (tmp_path / "x.npz").exists()


def test_some_classes_are_sampled_by_name(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "some.npz"
    words = ("-n", 30, "--class", "7", "--class", "3", "--class", "7", "--out", out)
    told = succeed("sample", finished, *words).output
    assert "30 synthetic records of 7, 3 from" in told
    with np.load(out, allow_pickle=False) as arrays:
        assert set(arrays["labels"]) <= {3, 7} and len(arrays["labels"]) == 30
    nowhere = tmp_path / "x.npz"
    line = refused(2, "sample", finished, "-n", 5, "--class", "boot", "--out", nowhere)
    assert "no class 'boot'; its classes are 0, 1, 2" in line
    assert not nowhere.exists()


@pytest.mark.parametrize("name", ["s.csv", "s.parquet", "folder"])
def test_sample_writes_every_format(finished: Path, tmp_path: Path, name: str) -> None:
    succeed("sample", finished, "-n", "12", "--out", tmp_path / name, "--quiet")
    made = tmp_path / name
    assert len(list(made.rglob("*.png"))) == 12 if name == "folder" else made.stat().st_size > 0


@pytest.mark.parametrize("name", ["s.jsonl", "s.tiff", "s.idx"])
def test_an_ending_that_means_a_file_makes_no_folder(
    finished: Path, tmp_path: Path, name: str
) -> None:
    assert ".npz" in refused(2, "sample", finished, "-n", 5, "--out", tmp_path / name)
    assert not (tmp_path / name).exists()


def test_sample_replaces_a_file_only_when_told_to(finished: Path, tmp_path: Path) -> None:
    mine = tmp_path / "private.npz"
    mine.write_bytes(b"mine")
    refused(6, "sample", finished, "-n", "5", "--out", mine)
    assert mine.read_bytes() == b"mine"
    succeed("sample", finished, "-n", "5", "--out", mine, "--overwrite")
    assert mine.read_bytes() != b"mine"


def test_measuring_on_what_was_fitted_is_warned_of(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    words = ("evaluate", run, "-n", 50, "--metrics", "accuracy.logreg", "--no-baselines", "--quiet")
    assert "kept aside" in succeed(*words, "--real", "digits:train").stderr
    assert "Warning" not in succeed(*words, "--real", "digits:test").stderr


def test_an_unfinished_run_cannot_be_sampled(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((finished / "config.json").read_bytes())
    for words in (
        ("sample", tmp_path, "-n", "5", "--out", tmp_path / "s.npz"),
        ("report", tmp_path),
    ):
        assert "--resume" in refused(2, *words)


# ── evaluate and report ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def judged(finished: Path) -> dict[str, Any]:
    """The evaluation in a process of its own, so that stray prints of any library would show."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sfumato", "evaluate", str(finished)),
            *("--real", "digits:test", "-n", "200", "--json"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_evaluate_prints_json_only_and_keeps_it(judged: dict[str, Any], finished: Path) -> None:
    named = {metric["name"]: metric for metric in judged["metrics"]}
    assert {"accuracy.logreg", "accuracy.mlp", "accuracy.cnn"} <= set(named)
    for metric in named.values():
        assert "digits:test" in metric["source"]
    assert 0 <= named["accuracy.logreg"]["value"] <= 1
    assert judged["synthetic"] == {"n": 200, "seed": 0}
    assert json.loads((finished / "metrics.json").read_text()) == judged


def test_a_saved_sample_can_be_judged_too(finished: Path, tmp_path: Path) -> None:
    succeed("sample", finished, "-n", "200", "--out", tmp_path / "s.npz", "--quiet")
    result = succeed("evaluate", tmp_path / "s.npz", "--real", "digits:test", "--quiet")
    assert "accuracy.logreg" in result.stdout
    assert not (tmp_path / "metrics.json").exists()


def test_real_pictures_with_labels_in_a_table_need_no_facts_that_the_run_has(
    finished: Path, tmp_path: Path
) -> None:
    home = tmp_path / "flat"
    home.mkdir()
    lines = ["file,digit"]
    for number in range(30):
        pixels = np.random.default_rng(number).integers(0, 256, (12, 12), dtype=np.uint8)
        Image.fromarray(pixels).save(home / f"{number}.png")
        lines.append(f"{number}.png,{number % 10}")
    (home / "labels.csv").write_text("\n".join(lines) + "\n")
    copy = _copy(finished, tmp_path / "copy")
    words = ("--labels", "labels.csv:digit", "--metrics", "accuracy.logreg", "--no-baselines", "-q")
    succeed("evaluate", copy, "--real", home, "-n", 100, *words)
    (metric,) = json.loads((copy / "metrics.json").read_text())["metrics"]
    assert "flat" in metric["source"]


def test_a_report_is_written_and_named(finished: Path, judged: dict[str, Any]) -> None:
    result = succeed("report", finished)
    assert result.stdout.strip() == str(finished / "report.html")
    for suffix in ("html", "md", "json"):
        assert (finished / f"report.{suffix}").stat().st_size > 0


def test_real_images_are_shown_only_with_a_warning_and_never_the_private_ones(
    finished: Path, tmp_path: Path
) -> None:
    copy = _copy(finished, tmp_path / "copy")
    result = succeed("report", copy, "--show-real", "digits:test")
    assert "Warning" in result.stderr
    assert "ε does not cover" in result.stderr
    page = (copy / "report.html").read_bytes()
    assert "REAL records of digits:test" in page.decode()
    for private in ("digits:train", "digits"):
        assert "fitted on" in refused(2, "report", copy, "--show-real", private)
    assert (copy / "report.html").read_bytes() == page


# ── demo ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


PLAIN = ("--set", "refine=false")


def no_fashion(spec: Any, progress: Any, **facts: Any) -> Any:
    from sfumato.data import load

    if str(spec).startswith("fashion-mnist"):
        raise DataUnavailable("Nobody answered; try again later.")
    return load(spec, progress=progress, **facts)


def test_demo_without_a_network_goes_on_with_digits_and_is_quick_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "demo"
    monkeypatch.setattr(demo_cli, "load_data", no_fashion)
    first = succeed("demo", "--out", out, *PLAIN)
    assert "goes on with digits" in first.stderr
    for name in ("report.html", "statement.json", "samples.png"):
        assert str(out / name) in first.stdout
    assert "sfumato sample" in first.stdout
    kept = {n: b for n, b in files(out).items() if not n.startswith("report")}

    second = succeed("demo", "--out", out, *PLAIN)
    assert "fitting is skipped" in second.stderr
    assert {n: b for n, b in files(out).items() if not n.startswith("report")} == kept


def test_demo_moves_a_demo_of_other_settings_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = {"metrics": [{"name": "accuracy.logreg", "value": 0.5, "source": "nowhere"}]}
    monkeypatch.setattr(demo_cli, "judge", lambda *_: judged)
    out = tmp_path / "demo"
    succeed("fit", "mixture", "--data", "digits:train", *ONE, *PLAIN, "--out", out, "--quiet")
    result = succeed("demo", "--data", "digits", "--out", out, *PLAIN, "--set", "candidates=2")
    assert "demo.1" in result.stderr
    assert (tmp_path / "demo.1" / "generator.safetensors").exists()
    assert (out / "report.html").exists()
