"""The report: complete, escaped, self-contained, and honest about what is missing or damaged."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sfumato import published
from sfumato.data import Column, Dataset, Schema
from sfumato.errors import BadInput, CorruptArtifact
from sfumato.evaluation import list_metrics
from sfumato.evaluation.metrics import family_of, title_of
from sfumato.methods import Merf
from sfumato.report import sample_grid, write_report
from sfumato.report.comparison import Outcome, parse_config, rows_of, write_comparison
from sfumato.report.pictures import Point, curve, epsilon_plot, sample_rows
from sfumato.report.words import bound, guess, number, power

EVIL = "<script>alert(1)</script> & \"x\" 'y' |"
CLASSES = ("cat", EVIL, "ox")
SOURCE = "real data zoo:test (1,000 records); not covered by ε"


def samples_of(schema: Schema, n: int = 60, absent: int | None = None) -> Dataset:
    draw = np.random.default_rng(0)
    labels = np.arange(n) % schema.n_classes
    if absent is not None:
        labels[labels == absent] = (absent + 1) % schema.n_classes
    pixels = draw.integers(0, 256, (n, *schema.shape), dtype=np.uint8)
    return Dataset.from_values(pixels, labels, schema=schema, name="synthetic")


def statement(**changes: Any) -> dict[str, Any]:
    facts = {
        "epsilon": 0.99997,
        "delta": 1e-5,
        "neighbours": "zero-out",
        "unit": "one record",
        "releases": [
            {
                "label": f"mean embedding {EVIL}",
                "bound": 1.0,
                "sensitivity": 1.0,
                "noise_std": 3.7306,
                "noise_multiplier": 3.7306,
                "rate": 1.0,
                "steps": 1,
                "dimension": 100000,
                "noise": "exact discrete Gaussian",
                "event": "Gaussian(noise_multiplier=3.7306)",
            }
        ],
        "epsilon_under": {"zero-out": 0.99997, "replace-one": 2.1549},
        "not_covered": ["The schema is public.", f"Also not {EVIL}."],
        "paragraph": "Everything is private, says this paragraph.",
    }
    return facts | changes


@pytest.fixture
def schema() -> Schema:
    return Schema(kind="images", shape=(1, 8, 8), classes=CLASSES)


@pytest.fixture
def run(tmp_path: Path, schema: Schema) -> Path:
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    config = {
        "format": 1,
        "sfumato": "0.1.0",
        "method": "merf",
        "settings": {"steps": 500, "rate": 0.01, "seed": 3, "note": EVIL, "public": None},
        "data": {"name": "zoo:train", "size": 60000},
        "schema": schema.to_json(),
        "budget": {"epsilon": 1.0, "delta": 1e-5, "neighbours": "zero-out"},
        "noise_multiplier": 3.73,
    }
    put(folder / "config.json", config)
    put(folder / "statement.json", statement())
    steps = [
        {"event": "step", "step": k, "steps": 500, "loss": 1 / k + 0.2, "seconds": k / 10}
        for k in range(1, 501)
    ]
    lines = [{"event": "release", "label": "mean embedding", "seconds": 2.0}, *steps]
    (folder / "log.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
    metric = {
        "name": "accuracy.cnn",
        "value": 0.7312,
        "low": 0.7024,
        "high": 0.7601,
        "source": SOURCE,
        "seconds": 3.0,
    }
    put(folder / "metrics.json", {"metrics": [metric], "synthetic": {"n": 60000, "seed": 4}})
    return folder


def put(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


class _Page(HTMLParser):
    """Tags, attributes that could load something, and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.resources: list[str] = []
        self.text = ""
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"img", "meta", "line", "polyline", "path", "br"}:
            self._open.append(tag)
        self.resources += [
            value or ""
            for key, value in attrs
            if key in {"src", "href", "srcset", "data", "poster"}
        ]
        assert not any(key.startswith("on") for key, _ in attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data


def page_of(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    assert page._open == []
    page.text = re.sub(r"\s+", " ", page.text)
    return page


def test_the_page_says_what_was_promised_measured_and_done(run, schema):
    path = write_report(run, samples=samples_of(schema))
    assert path == run / "report.html"
    text = page_of(path).text
    for words in (
        "Synthetic zoo:train",
        "(ε = 1, δ = 10⁻⁵)-differentially private for one record",
        "73.1 % of real records right (convolutional network)",
        "Everything is private, says this paragraph.",
        "at most 73.2 %",
        "2.72 times",
        "2.155",
        "3.731",
        "100,000",
        "Gaussian(noise_multiplier=3.7306)",
        "computed on real data, not covered by ε",
        "95 % interval 70.2 – 76.0 %",
        SOURCE,
        "The schema is public.",
        "500 steps, loss from",
        "60,000 (public in this run)",
        "33.3 %",
    ):
        assert words in text, words


def test_no_number_on_real_data_stands_without_its_badge(run, schema):
    """The headline puts an accuracy beside ε; whoever quotes it quotes the badge with it."""
    facts = [
        {"name": n, "value": 0.7312, "low": 0.7, "high": 0.76, "source": SOURCE}
        for n in ("accuracy.cnn", "roc.logreg", "fid", "unheard-of")
    ]
    alone = "synthetic data only; no record of zoo:test was read"
    facts.append({"name": "nll", "value": 2.5, "low": 2.5, "high": 2.5, "source": alone})
    put(run / "metrics.json", {"metrics": facts})
    source = write_report(run, samples=samples_of(schema), beside=[another(run, "second")])
    page, badge = source.read_text(encoding="utf-8"), "computed on real data, not covered by ε"
    (headline,) = re.findall(r'<p class="headline">(.*?)</p>', page)
    assert "73.1 % of real records right" in headline
    assert headline.endswith(f'<span class="badge">{badge}</span>')
    families = re.findall(r'<section class="family">(.*?)</section>', page, re.S)
    assert [badge in family for family in families] == [True, True, True, True, False]
    (utility,) = re.findall(r"<h3>Privacy and utility(.*?)</h3>", page)
    assert badge in utility
    text = (run / "report.md").read_text(encoding="utf-8")
    assert f"of real records right (convolutional network) – **{badge}**." in text.split("##")[0]
    assert f"(**{badge}**):" in text  # the table of privacy and utility
    assert "value (not covered by ε)" in text
    told = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert told["verdict"].endswith(f"(convolutional network) – {badge}.")
    assert told["metrics_are"] == badge
    assert [m.get("badge") for m in told["metrics"]] == [badge] * 4 + [None]
    assert all(row[-1] == badge for row in told["utility"])


def test_no_file_of_the_report_tells_a_time(run, schema):
    """The run is of an earlier version: its log and its metrics hold seconds."""
    write_report(run, samples=samples_of(schema))
    for suffix in ("html", "md", "json"):
        text = (run / f"report.{suffix}").read_text(encoding="utf-8")
        assert not re.search(r"\b(seconds|50 s|\d+ min)\b|20\d\d-\d\d-\d\d", text), suffix
    published.check("report", json.loads((run / "report.json").read_text(encoding="utf-8")))


def test_what_a_run_folder_holds_beyond_the_list_is_not_carried_on(run, schema):
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    put(run / "config.json", config | {"host": "private-host"})
    put(run / "statement.json", statement(started="yesterday"))
    write_report(run, samples=samples_of(schema))
    for suffix in ("html", "md", "json"):
        text = (run / f"report.{suffix}").read_text(encoding="utf-8")
        assert "private-host" not in text and "yesterday" not in text


@pytest.mark.parametrize(
    ("source", "real"),
    [
        ("real data rows.npz; not covered by ε", "rows.npz"),
        ("real data rows.npz (1,000 records); not covered by ε", "rows.npz"),
        ("real data a (b).npz and the REAL TRAINING data c; not covered by ε", "'a (b).npz'"),
        ("real data a (9 records) and the REAL TRAINING data c (8 records); not covered by ε", "a"),
    ],
)
def test_the_command_of_the_evaluation_names_its_real_data(run, schema, source, real):
    metric = {"name": "accuracy.cnn", "value": 0.5, "low": 0.4, "high": 0.6, "source": source}
    put(run / "metrics.json", {"metrics": [metric]})
    write_report(run, samples=samples_of(schema))
    told = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert f"--real {real} " in told["reproduce"][1] + " "


@pytest.mark.parametrize("told", [{"epsilon_k": {"2": 2.1549, "5": 6.168, "10": 14.43}}, {}])
def test_several_records_of_a_person_stand_in_the_report_of_old_and_new_runs(run, schema, told):
    # Version 0.1.0 had no such field, and a sentence that was false.
    false = (
        "The unit is one record: a person with k records has at most k times the ε (group privacy)."
    )
    put(run / "statement.json", statement(not_covered=["The schema is public.", false], **told))
    text = page_of(write_report(run, samples=samples_of(schema))).text
    plain = (run / "report.md").read_text(encoding="utf-8")
    for shown in (text, plain):
        assert "at most k times" not in shown
        assert "may have more than k times the ε" in shown
        for words in ("records of one person", "2.155", "6.168", "14.43"):
            assert words in shown, words


@pytest.mark.parametrize("several", ["no numbers", {"2": "two"}, [2.1]])
def test_a_statement_with_senseless_numbers_for_several_records_is_refused(run, schema, several):
    put(run / "statement.json", statement(epsilon_k=several))
    with pytest.raises(CorruptArtifact, match="epsilon_k"):
        write_report(run, samples=samples_of(schema))


def test_the_commands_can_be_typed_as_they_stand(run, schema, monkeypatch):
    monkeypatch.chdir(run.parent.parent)
    write_report(Path("runs/first"), samples=samples_of(schema))
    fit, evaluate, report = json.loads((run / "report.json").read_text(encoding="utf-8"))[
        "reproduce"
    ]
    assert fit.startswith(
        "sfumato fit merf --data zoo:train --epsilon 1 --delta 1e-05 --neighbours zero-out --seed 3"
    )
    assert "--set steps=500 --set rate=0.01" in fit
    assert "public" not in fit
    assert fit.endswith("--out runs/first")
    assert evaluate == (
        "sfumato evaluate runs/first -n 60000 --seed 4 --real zoo:test --metrics accuracy.cnn"
    )
    assert report == "sfumato report runs/first"


def test_an_absolute_path_does_not_reach_the_report(run, schema):
    write_report(run, samples=samples_of(schema))
    for suffix in ("html", "md", "json"):
        assert str(run.parent) not in (run / f"report.{suffix}").read_text(encoding="utf-8")


def test_nothing_is_loaded_and_nothing_runs(run, schema):
    path = write_report(run, samples=samples_of(schema))
    page = page_of(path)
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert "iframe" not in page.tags
    assert page.resources
    assert all(resource.startswith("data:image/png;base64,") for resource in page.resources)
    source = path.read_text(encoding="utf-8")
    assert not re.search(r"https?://|url\(|@import", source)
    assert "default-src 'none'" in source


def test_words_from_files_are_escaped(run, schema):
    path = write_report(run, samples=samples_of(schema))
    markdown = (run / "report.md").read_text(encoding="utf-8")
    for text in (path.read_text(encoding="utf-8"), markdown):
        prose = "\n".join(line for line in text.splitlines() if not line.startswith("    sfumato"))
        assert "<script" not in prose
        assert "&lt;script&gt;" in prose
    assert EVIL in page_of(path).text
    rows = [line for line in markdown.splitlines() if line.startswith("| ") and "script" in line]
    assert rows
    assert all(len(re.findall(r"(?<!\\)\|", row)) in {3, 7} for row in rows)


def test_the_grid_of_the_page_has_ten_images_a_class_as_they_were_drawn(run, schema):
    samples = samples_of(schema)
    rows = sample_rows(samples)
    assert [row.name for row in rows] == list(CLASSES)
    assert [len(row.images) for row in rows] == [10, 10, 10]
    labels = samples.labels
    third = np.flatnonzero(labels == 1)[2]
    picture = Image.open(io.BytesIO(base64.b64decode(rows[1].images[2].split(",")[1])))
    np.testing.assert_array_equal(np.asarray(picture), samples.images[third, 0])
    assert page_of(write_report(run, samples=samples)).tags.count("img") == 30


def test_a_class_without_samples_is_said_to_have_none(run, schema):
    text = page_of(write_report(run, samples=samples_of(schema, absent=2))).text
    assert "none among the samples drawn" in text
    assert "0.0 %" in text


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 16), (3, 64)])
def test_sample_grid_has_a_cell_for_every_image(channels, size):
    schema = Schema(kind="images", shape=(channels, size, size), classes=("a", "b", "c"))
    small = sample_grid(samples_of(schema), per_class=4)
    wide = sample_grid(samples_of(schema), per_class=8)
    scale = max(1, -(-44 // size))
    assert wide.width - small.width == 4 * (size * scale + 2)
    assert small.height == wide.height == 3 * (size * scale + 2) + 2


def test_large_images_are_made_small_and_unlabelled_ones_have_no_names():
    schema = Schema(kind="images", shape=(3, 300, 200))
    data = Dataset.from_values(np.zeros((13, 3, 300, 200), np.uint8), schema=schema)
    rows = sample_rows(data)
    assert [(row.name, len(row.images)) for row in rows] == [("", 10), ("", 3)]
    picture = Image.open(io.BytesIO(base64.b64decode(rows[0].images[0].split(",")[1])))
    assert max(picture.size) == 112


def test_without_metrics_the_page_tells_how_to_get_them(run, schema):
    (run / "metrics.json").unlink()
    path = write_report(run, samples=samples_of(schema))
    text = page_of(path).text
    assert "Not measured yet" in text
    assert "sfumato evaluate first --real zoo:test" in text
    assert "computed on real data, not covered by ε" not in text
    assert "Not measured yet" in (run / "report.md").read_text(encoding="utf-8")
    assert json.loads((run / "report.json").read_text(encoding="utf-8"))["metrics"] is None


def test_a_note_on_a_metric_and_a_metric_that_is_no_share_are_shown(run, schema):
    metrics = [
        {"name": "fid", "value": 29.13, "low": 29.13, "high": 29.13, "source": SOURCE},
        {
            "name": "accuracy.mlp",
            "value": 0.5,
            "low": None,
            "high": None,
            "source": SOURCE,
            "note": "no records of ox",
        },
    ]
    put(run / "metrics.json", {"metrics": metrics})
    text = page_of(write_report(run, samples=samples_of(schema))).text
    assert "29.13" in text
    assert "29.13 %" not in text
    assert "no records of ox" in text


def test_every_metric_has_a_title_in_plain_words():
    for metric in list_metrics():
        title = title_of(metric.name)
        assert title
        assert title != metric.name, metric.name
        assert family_of(metric.name).reading, metric.name
    assert title_of("novel.thing") == "novel.thing"


def test_metrics_stand_under_their_family_and_a_shared_source_is_told_once(run, schema):
    names = ("accuracy.cnn", "accuracy.mlp", "prdc.recall", "nll")
    facts = [{"name": n, "value": 0.25, "low": 0.2, "high": 0.3, "source": SOURCE} for n in names]
    put(run / "metrics.json", {"metrics": facts})
    text = page_of(write_report(run, samples=samples_of(schema))).text
    for words in ("Accuracy", "Fidelity and diversity", "Likelihood under the exact density"):
        assert words in text
    assert text.count(SOURCE) == 3
    assert text.count("25.0 %") == 3  # two metrics and the verdict
    assert "95 % interval 0.200 – 0.300" in text


def test_the_picture_of_epsilon_marks_the_run_at_its_best_guess():
    plot = epsilon_plot(
        [Point("zero-out", 1.0, 0.75, 0.75, 0.75, own=True)],
        span=(0.1, 10),
        height=(0.5, 1),
        line=lambda e: 0.75,
    )
    (mark,) = plot.marks
    assert (mark.left, mark.top) == (pytest.approx(50), pytest.approx(50))
    assert all(point.endswith(",200.0") for point in plot.line.split())
    assert [tick.text for tick in plot.x_ticks] == ["0.1", "0.2", "0.5", "1", "2", "5", "10"]
    assert all(0 <= tick.place <= 100 for tick in (*plot.x_ticks, *plot.y_ticks))


@pytest.mark.parametrize("values", [(0.5, 0.5), (0.0, 1.0), (0.999, 1.0)])
@pytest.mark.parametrize("share", [True, False])
def test_any_values_can_be_drawn_against_epsilon(values, share):
    points = [Point("x", e, v, v, v) for e, v in zip((1e-3, 50.0), values, strict=True)]
    plot = epsilon_plot(points, share=share)
    assert all(0 <= m.top <= 100 and 0 <= m.left <= 100 for m in plot.marks)
    assert len(plot.y_ticks) >= 2


def another(run, name, **changes):
    """A copy of the run with a changed statement or metric."""
    other = run.parent / name
    shutil.copytree(run, other)
    facts = statement(epsilon=2.0, epsilon_under={"zero-out": 2.0, "replace-one": 4.5})
    put(other / "statement.json", facts | changes.pop("statement", {}))
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    metrics["metrics"][0] |= {"value": 0.8, "low": 0.75, "high": 0.85} | changes
    put(other / "metrics.json", metrics)
    return other


def test_other_runs_are_plotted_against_epsilon_if_measured_alike(run, schema):
    good = another(run, "good")
    elsewhere = another(run, "elsewhere", source="real data ark:test (9 records); not covered by ε")
    page = page_of(write_report(run, samples=samples_of(schema), beside=[good, elsewhere]))
    assert "Accuracy, convolutional network, on the same real records" in page.text
    assert re.search(r"good\s*2\s*merf\s*2\s*80.0 %\s*75.0 – 85.0 %", page.text)
    assert "Left out" in page.text
    assert "elsewhere" in page.text
    rows = json.loads((run / "report.json").read_text(encoding="utf-8"))["utility"]
    assert [row[1] for row in rows] == ["first (this run)", "good"]
    with pytest.raises(BadInput, match="the same --real"):
        write_report(run, samples=samples_of(schema), beside=[elsewhere])


def test_a_comparison_can_stand_beside_a_run(run, schema, tmp_path):
    folder = tmp_path / "cmp"
    folder.mkdir()
    row = {"metric": "accuracy.cnn", "epsilon": 5.0, "method": "merf, long", "mean": 0.9}
    row |= {"low": 0.88, "high": 0.92, "published": False, "source": SOURCE}
    paper = row | {"published": True, "method": "theirs", "low": None, "high": None}
    settings = {"train": "zoo:train", "neighbours": "zero-out", "delta": 1e-5}
    put(folder / "comparison.json", {"config": settings, "rows": [row, paper]})
    text = page_of(write_report(run, samples=samples_of(schema), beside=[folder])).text
    assert re.search(r"cmp\s*2\s*merf, long\s*5\s*90.0 %", text)
    assert "theirs" not in text
    put(folder / "comparison.json", {"rows": []})
    with pytest.raises(CorruptArtifact, match=r"comparison\.json"):
        write_report(run, samples=samples_of(schema), beside=[folder])


def test_real_images_are_shown_only_when_asked_and_under_a_warning(run, schema):
    samples = samples_of(schema)
    assert "REAL records" not in page_of(write_report(run, samples=samples)).text
    real = Dataset.from_values(samples.images, samples.labels, schema=schema, name="zoo:test")
    page = page_of(write_report(run, samples=samples, real=real))
    assert page.tags.count("img") == 60
    assert "This page publishes real records. 30 images of zoo:test" in page.text
    assert "The 30 real images of zoo:test on this page." in page.text
    markdown = (run / "report.md").read_text(encoding="utf-8")
    assert "publishes real records" in markdown
    facts = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert facts["real_records_shown"] == "zoo:test"


def test_real_images_of_other_classes_stand_by_themselves(run, schema):
    other = Schema(kind="images", shape=(1, 8, 8), classes=("x", "y"))
    page = page_of(write_report(run, samples=samples_of(schema), real=samples_of(other)))
    assert "REAL records of synthetic, to compare with" in page.text
    assert page.tags.count("img") == 50


def test_the_private_records_themselves_are_never_shown(run, schema):
    samples = samples_of(schema)
    private = Dataset.from_values(samples.images, samples.labels, schema=schema, name="zoo:train")
    with pytest.raises(BadInput, match="fitted on"):
        write_report(run, samples=samples, real=private)
    assert not (run / "report.html").exists()


def test_a_method_that_is_not_sound_has_a_banner(run, schema, monkeypatch):
    assert "Not sound." not in page_of(write_report(run, samples=samples_of(schema))).text
    monkeypatch.setattr(Merf, "info", dataclasses.replace(Merf.info, sound=False))
    assert "Not sound." in page_of(write_report(run, samples=samples_of(schema))).text
    assert "**Not sound.**" in (run / "report.md").read_text(encoding="utf-8")


def test_a_classifier_has_a_report_without_samples(run, monkeypatch):
    monkeypatch.setattr(Merf, "info", dataclasses.replace(Merf.info, makes="classifier"))
    page = page_of(write_report(run))
    assert "This classifier is (ε = 1" in page.text
    assert "img" not in page.tags
    assert "drawn from the generator" not in page.text


def test_public_data_and_public_networks_are_named(run, schema):
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    text = page_of(write_report(run, samples=samples_of(schema))).text
    assert re.search(r"Public data\s*none", text)
    config |= {"public": "font-digits:train", "settings": {"extractor": "vgg19", "seed": 3}}
    put(run / "config.json", config)
    text = page_of(write_report(run, samples=samples_of(schema))).text
    assert "Also used, and not protected by this ε: public data font-digits:train; " in text
    assert re.search(r"public network vgg19, trained on [\w-]+", text)
    commands = json.loads((run / "report.json").read_text(encoding="utf-8"))["reproduce"]
    assert "--public font-digits:train" in commands[0]


def test_a_run_without_training_and_a_cut_log_are_no_obstacle(run, schema):
    (run / "log.jsonl").write_text('{"event": "step", "step": 1, "loss"', encoding="utf-8")
    assert "no training curve" in page_of(write_report(run, samples=samples_of(schema))).text
    (run / "log.jsonl").unlink()
    assert "no training curve" in page_of(write_report(run, samples=samples_of(schema))).text


def test_a_table_is_shown_by_its_first_rows(run):
    schema = Schema(
        kind="table",
        columns=(
            Column(name="age", kind="numerical", low=0, high=100, missing=True),
            Column(name="colour", kind="categorical", categories=("red", EVIL)),
        ),
        classes=("no", "yes"),
        label="bought",
    )
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    put(run / "config.json", config | {"schema": schema.to_json()})
    samples = Dataset.from_values(
        np.array([[12.5, 1], [np.nan, 0]], np.float32), np.array([1, 0]), schema=schema
    )
    page = page_of(write_report(run, samples=samples))
    assert "img" not in page.tags
    assert re.search(r"age\s*colour\s*bought", page.text)
    assert "12.5" + EVIL + "yes" in page.text
    assert "–redno" in page.text


@pytest.mark.parametrize("field", sorted(statement()))
def test_a_statement_without_one_of_its_fields_is_refused(run, schema, field):
    facts = statement()
    del facts[field]
    put(run / "statement.json", facts)
    with pytest.raises(CorruptArtifact, match=f'"{field}"'):
        write_report(run, samples=samples_of(schema))
    assert not (run / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("statement.json", "{"),
        ("statement.json", "[]"),
        ("statement.json", json.dumps(statement(epsilon="1"))),
        ("statement.json", json.dumps(statement(epsilon=-1))),
        ("statement.json", json.dumps(statement(delta=2))),
        ("statement.json", json.dumps(statement(releases=[{"label": "x"}]))),
        ("statement.json", json.dumps(statement(epsilon_under={"zero-out": None}))),
        ("statement.json", json.dumps(statement(epsilon=float("nan")))),
        ("config.json", "{}"),
        ("metrics.json", '{"metrics": [{"name": "x"}]}'),
        ("metrics.json", '{"metrics": 3}'),
    ],
)
def test_a_damaged_file_is_named_in_one_sentence(run, schema, name, content):
    (run / name).write_text(content, encoding="utf-8")
    with pytest.raises(CorruptArtifact) as error:
        write_report(run, samples=samples_of(schema))
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_run_is_refused(run, schema, tmp_path):
    with pytest.raises(BadInput, match="no run folder"):
        write_report(tmp_path / "nowhere", samples=samples_of(schema))
    (run / "statement.json").unlink()
    with pytest.raises(BadInput, match=r"There is no .*statement\.json"):
        write_report(run, samples=samples_of(schema))
    other = Schema(kind="images", shape=(1, 9, 9), classes=CLASSES)
    put(run / "statement.json", statement())
    with pytest.raises(BadInput, match="not of the kind and shape"):
        write_report(run, samples=samples_of(other))


# ------------------------------------------------------------------------- numbers and curves


def test_numbers_are_short_and_bounds_are_never_rounded_down():
    assert [power(x) for x in (1e-5, 2.5e-6, 0.01, 3e7)] == ["10⁻⁵", "2.5·10⁻⁶", "0.01", "3·10⁷"]
    assert [number(x) for x in (3.73061, 12345.6, 0.00012, 0)] == [
        "3.731",
        "12,346",
        "1.2·10⁻⁴",
        "0",
    ]
    assert [bound(x) for x in (1.00001, 0.99997, 2.1549, 10.0)] == ["1.001", "1", "2.155", "10"]
    assert [guess(x, 1e-5) for x in (0.0, 1.0, 10.0, 60.0)] == [
        "50.1 %",
        "73.2 %",
        "99.996 %",
        "100 %",
    ]


def test_the_curve_spans_its_box_and_goes_down_with_the_loss():
    drawn = curve([(k, 2.0 - k / 1000) for k in range(1, 1001)])
    assert drawn is not None
    points = [tuple(map(float, p.split(","))) for p in drawn.smooth.split()]
    assert points[0][0] == 0.0
    assert points[-1][0] == 1000.0
    assert all(0 <= y <= 400 for _, y in points)
    assert all(a[1] <= b[1] for a, b in pairwise(points))
    assert not drawn.logarithmic
    assert len(points) <= 400


@pytest.mark.parametrize(
    "losses", [[3.0, 3.0], [0.0, 0.0, 0.0], [-1.0, 2.0], [1e-8, 5.0, 1e4], [1e-12, 1.1e-12]]
)
def test_any_losses_can_be_drawn(losses):
    drawn = curve(list(enumerate(losses)))
    assert drawn is not None
    assert len(drawn.y_ticks) >= 2
    assert all(0 <= tick.place <= 100 for tick in (*drawn.x_ticks, *drawn.y_ticks))
    assert curve([(1, losses[0])]) is None


# ------------------------------------------------------------------------- a real browser


@pytest.mark.browser
@pytest.mark.skipif(
    not Path("/usr/bin/chromium").exists() and not shutil.which("chromium"), reason="no chromium"
)
@pytest.mark.parametrize("width", [1200, 375])
def test_a_browser_renders_the_page(run, schema, tmp_path, width):
    path = write_report(run, samples=samples_of(schema))
    # The page as it is, in a frame of the wanted width (a window has a least one); its parent measures it.
    probe = tmp_path / "probe.html"
    probe.write_text(
        f'<!doctype html><title></title><iframe style="width:{width}px;height:900px;border:0" '
        f'srcdoc="{html.escape(path.read_text(encoding="utf-8"))}"></iframe><script>'
        "onload = () => { const page = frames[0].document, root = page.documentElement;"
        "document.title = [root.scrollWidth - root.clientWidth, page.images.length, "
        "[...page.images].filter(i => i.naturalWidth === 8).length, "
        "frames[0].getComputedStyle(page.body).overflowWrap].join(' ') }</script>",
        encoding="utf-8",
    )
    shot = tmp_path / "shot.png"
    title = re.search(r"<title>(.*?)</title>", _chromium(tmp_path, "--dump-dom", probe.as_uri()))
    assert title is not None
    assert title[1] == "0 30 30 break-word", "too wide, images missing, or no style"
    dom = _chromium(tmp_path, "--dump-dom", path.as_uri())
    assert "Everything is private, says this paragraph." in dom
    _chromium(
        tmp_path,
        f"--window-size={width},2400",
        "--hide-scrollbars",
        f"--screenshot={shot}",
        path.as_uri(),
    )
    picture = np.asarray(Image.open(shot).convert("L"))
    assert picture.shape == (2400, width)
    assert picture.std() > 10


@pytest.mark.browser
@pytest.mark.skipif(
    not Path("/usr/bin/chromium").exists() and not shutil.which("chromium"), reason="no chromium"
)
def test_a_browser_renders_real_images_and_the_comparison(run, schema, tmp_path):
    samples = samples_of(schema)
    real = Dataset.from_values(samples.images, samples.labels, schema=schema, name="zoo:test")
    path = write_report(run, samples=samples, real=real, beside=[another(run, "good")])
    dom = _chromium(tmp_path, "--dump-dom", path.as_uri())
    assert "This page publishes real records." in dom
    assert dom.count('class="mark') == 4  # two relations, two runs

    config = parse_config(
        {"data": "mnist", "epsilons": [1.0], "delta": 1e-5, "methods": {"merf": {}}}
    )
    metric = {"name": "accuracy.logreg", "value": 0.7, "source": SOURCE}
    rows = rows_of(config, [("merf", {"epsilon": 1.0}, {"metrics": [metric]})])
    outcome = Outcome(
        config=config, rows=rows, cells=[{}], failures=[], notes=[], kept=0, folder=tmp_path
    )
    write_comparison(outcome)
    dom = _chromium(tmp_path, "--dump-dom", (tmp_path / "comparison.html").as_uri())
    assert "relation not stated" in dom
    assert "published-badge" in dom


def _chromium(folder: Path, *words: str) -> str:
    program = "/usr/bin/chromium" if Path("/usr/bin/chromium").exists() else "chromium"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += [
        "--enable-logging=stderr",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    profile = folder / f"profile-{len(list(folder.glob('profile-*')))}"
    profile.mkdir()
    done = subprocess.run(
        [program, *flags, f"--user-data-dir={profile}", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    # A blocked request is a console message too, since the page's own policy forbids every request.
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout
