"""What is published passes a list of keys: nothing else leaves, in files of a run, a comparison or a report."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from runs import BUDGET, arrays_in, succeed
from sfumato import published
from sfumato.errors import NotPublishable, PlanMismatch

STEP = {"event": "step", "step": 5, "steps": 10, "loss": 0.5}


@pytest.mark.parametrize(
    "record",
    [
        STEP,
        STEP | {"restart": 1},
        {"event": "step", "step": 5, "steps": 10, "critic loss, generated": 0.1},
        {"event": "release", "label": "counts"},
        {"event": "matched", "training_seed": 0, "loss": 0.1},
        {"event": "weights", "of public classes": [0.5, 0.5]},
        {
            "event": "codec",
            "codec": "dct",
            "card": {"about": "…", "trained_on": [], "settings": {"dim": 3}},
        },
    ],
)
def test_the_log_takes_what_methods_log_today(record: dict[str, Any]) -> None:
    published.check("log", record)


@pytest.mark.parametrize(
    "record",
    [
        STEP | {"seconds": 1.5},
        STEP | {"time": 1700000000.0},
        STEP | {"records": 317},
        STEP | {"clipped fraction": 0.2},
        STEP | {"loss": {"seconds": 1.0}},
        STEP | {"loss": [{"seconds": 1.0}]},
        {},
        {"step": 1},
        {"event": "read"},
        {"event": None},
    ],
)
def test_the_log_refuses_every_other_key_and_event(record: dict[str, Any]) -> None:
    with pytest.raises(NotPublishable) as caught:
        published.check("log", record)
    assert isinstance(caught.value, PlanMismatch)
    assert "1.5" not in str(caught.value) and "317" not in str(caught.value)  # no value is quoted


def test_a_key_deep_inside_is_found() -> None:
    good = {"name": "accuracy.cnn", "value": 0.5, "low": 0.4, "high": 0.6, "source": "…"}
    published.check("metrics", {"metrics": [good], "synthetic": {"n": 10, "seed": 0}})
    for bad in (
        {"metrics": [good | {"seconds": 1.0}]},
        {"metrics": [good], "synthetic": {"n": 10, "private": 317}},
        {"metrics": good},
    ):
        with pytest.raises(NotPublishable):
            published.check("metrics", bad)


def test_what_earlier_versions_wrote_is_read_without_what_must_not_be_published() -> None:
    old = {"metrics": [{"name": "a", "value": 1.0, "seconds": 3.2}], "host": "…"}
    assert published.only("metrics", old) == {"metrics": [{"name": "a", "value": 1.0}]}
    assert published.only("log", STEP | {"time": 1.0, "seconds": 2.0}) == STEP
    assert published.only("log", {"event": "read", "records": 317}) == {}
    variant = {"method": "merf", "settings": {"steps": 1}, "host": "…"}
    kept = published.only("comparison", {"config": {"variants": {"mine": variant}}})
    assert kept["config"]["variants"]["mine"] == {"method": "merf", "settings": {"steps": 1}}


# -- a run from end to end ----------------------------------------------------------------------------------------------

N_TRAIN, N_TEST = 317, 211


@pytest.fixture(scope="module", params=["add-remove", "zero-out"])
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run on unpublished files, judged with its training data and reported; what was said on the way."""
    folder = tmp_path_factory.mktemp(request.param)
    # Public pictures that are not published under a name: neither their number nor their hash is told.
    data = arrays_in(folder, train=N_TRAIN, test=N_TEST, public=173)
    words = ["--data", data["train"], "--classes", 2, "--neighbours", request.param]
    words += ["--public", data["public"], "--set", "codec=pca:4"]
    succeed("fit", "mge", *words, *BUDGET, "--out", folder / "run", "-q")
    words = ["--real", data["test"], "--train", data["train"], "-n", 200]
    words += ["--metrics", "accuracy.logreg,memorisation,curve.effective"]
    told = succeed("evaluate", folder / "run", *words, "-q")
    succeed("report", folder / "run", "-q")
    return request.param, folder / "run", told


def test_under_add_remove_no_file_of_a_run_tells_the_number_of_records(judged: Any) -> None:
    relation, run, _ = judged
    counts = "|".join(str(n) for n in (N_TRAIN, N_TEST))
    found = [
        path.name
        for path in run.rglob("*")
        if path.is_file() and path.suffix in (".json", ".jsonl", ".html", ".md")
        if re.search(rf"\b({counts}) records|: ({counts})(\.0)?[,\n}}]", path.read_text())
    ]
    if relation == "add-remove":
        assert found == []
    else:  # the size is public: it is told, so that the check above sees something
        assert {"config.json", "metrics.json", "report.html", "report.md"} <= set(found)
    assert json.loads((run / "config.json").read_text())["data"]["size"] == (
        None if relation == "add-remove" else N_TRAIN
    )


def test_neither_number_nor_hash_of_unpublished_public_rows_is_told(judged: Any) -> None:
    _, run, _ = judged
    for path in run.rglob("*"):
        if path.is_file():
            assert b'"records": 173' not in path.read_bytes()  # the codec travels in the generator
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    (card,) = (record["card"] for record in log if record["event"] == "codec")
    assert (card["records"], card["sha256"]) == (None, "")


def test_every_record_of_a_run_is_on_the_list(judged: Any) -> None:
    _, run, _ = judged
    for name in ("config", "statement", "metrics", "report"):
        published.check(name, json.loads((run / f"{name}.json").read_text()))
    for name in ("metrics.json", "report.json", "report.md", "report.html"):
        assert "seconds" not in (run / name).read_text()


def test_every_metric_wears_its_badge_on_the_terminal_and_in_the_file(judged: Any) -> None:
    _, run, told = judged
    assert (
        told.stdout.count("not covered by ε") >= 6
    )  # each line of the table, and the line below it
    for metric in json.loads((run / "metrics.json").read_text())["metrics"]:
        assert metric["badge"] == published.BADGE
