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
from collections.abc import Sequence
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
from sfumato.report.page import first_rows
from sfumato.report.pictures import Point, curve, epsilon_plot, sample_rows
from sfumato.report.words import bound, guess, number, power, typeset

EVIL = "<script>alert(1)</script> & \"x\" 'y' |"
CLASSES = ("cat", EVIL, "ox")
SOURCE = "real data zoo:test (1,000 records); not covered by ε"


def samples_of(
    schema: Schema, n: int = 60, absent: int | None = None, name: str = "synthetic"
) -> Dataset:
    draw = np.random.default_rng(0)
    labels = np.arange(n) % schema.n_classes
    if absent is not None:
        labels[labels == absent] = (absent + 1) % schema.n_classes
    pixels = draw.integers(0, 256, (n, *schema.shape), dtype=np.uint8)
    return Dataset.from_values(pixels, labels, schema=schema, name=name)


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


IMAGES = Schema(kind="images", shape=(1, 8, 8), classes=CLASSES)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_in(tmp_path)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of an untouched run."""
    return Report(run_in(tmp_path_factory.mktemp("report")))


def run_in(place: Path) -> Path:
    folder = place / "runs" / "first"
    folder.mkdir(parents=True)
    config = {
        "format": 1,
        "sfumato": "0.1.0",
        "method": "merf",
        "settings": {"steps": 500, "rate": 0.01, "seed": 3, "note": EVIL, "public": None},
        "data": {"name": "zoo:train", "size": 60000},
        "schema": IMAGES.to_json(),
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
    measured(folder, "accuracy.cnn", seconds=3.0)
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    put(folder / "metrics.json", metrics | {"synthetic": {"n": 60000, "seed": 4}})
    return folder


def put(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def config_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_text(encoding="utf-8"))


def measured(run: Path, *names: str, **facts: Any) -> None:
    """Metrics of these names, alike in all else."""
    metric = {"value": 0.7312, "low": 0.7024, "high": 0.7601, "source": SOURCE, **facts}
    put(run / "metrics.json", {"metrics": [{"name": name, **metric} for name in names]})


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


class Report(_Page):
    """The report of a run, written now: its page parsed and as it stands, its Markdown and its JSON."""

    def __init__(self, run: Path, samples: Dataset | None = None, **how: Any) -> None:
        super().__init__()
        if samples is None:
            samples = samples_of(Schema.from_json(config_of(run)["schema"]))
        self.path = write_report(run, samples=samples, **how)
        assert self.path == run / "report.html"
        self.page, self.markdown, told = self.files = [
            (run / f"report.{suffix}").read_text(encoding="utf-8")
            for suffix in ("html", "md", "json")
        ]
        self.facts = json.loads(told)
        self.feed(self.page)
        assert self._open == []
        self.text = re.sub(r"\s+", " ", self.text)


def test_the_page_says_what_was_promised_measured_and_done(told):
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
        assert words in told.text, words


def test_no_number_on_real_data_stands_without_its_badge(run):
    """The headline puts an accuracy beside ε; whoever quotes it quotes the badge with it."""
    measured(run, "accuracy.cnn", "roc.logreg", "fid", "unheard-of")
    facts = json.loads((run / "metrics.json").read_text(encoding="utf-8"))["metrics"]
    alone = "synthetic data only; no record of zoo:test was read"
    facts.append({"name": "nll", "value": 2.5, "low": 2.5, "high": 2.5, "source": alone})
    put(run / "metrics.json", {"metrics": facts})
    told = Report(run, beside=[another(run, "second")])
    badge = "computed on real data, not covered by ε"
    (headline,) = re.findall(r'<p class="finding">(.*?)</p>', told.page)
    assert "73.1 % of real records right" in headline
    assert headline.endswith(f'<span class="badge">{badge}</span>')
    families = re.findall(r'<section class="family">(.*?)</section>', told.page, re.S)
    assert [badge in family for family in families] == [True, True, True, True, False]
    (utility,) = re.findall(r"<h3>Privacy and utility(.*?)</h3>", told.page)
    assert badge in utility
    first = told.markdown.split("##")[0]
    assert f"of real records right (convolutional network) – **{badge}**." in first
    assert f"(**{badge}**):" in told.markdown  # the table of privacy and utility
    assert "value (not covered by ε)" in told.markdown
    assert told.facts["verdict"].endswith(f"(convolutional network) – {badge}.")
    assert told.facts["metrics_are"] == badge
    assert [m.get("badge") for m in told.facts["metrics"]] == [badge] * 4 + [None]
    assert all(row[-1] == badge for row in told.facts["utility"])


def by_class(names: Sequence[str]) -> dict[str, Any]:
    """Every tenth record of a class is taken for the next one."""
    size = len(names)
    table = [[0.0] * size for _ in names]
    for code in range(size):
        table[code][code], table[code][(code + 1) % size] = 0.9, 0.1
    return {
        "classes": [*names],
        "recall": [0.9] * size,
        "precision": [0.75] * size,
        "confusion": table,
    }


def test_the_page_shows_under_the_badge_what_each_class_was_taken_for(run):
    measured(run, "accuracy.logreg", "accuracy.cnn", by_class=by_class(CLASSES))
    facts = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    facts["metrics"][0]["value"] = 0.71  # the second is the best, and open
    put(run / "metrics.json", facts)
    told = Report(run)
    (family,) = re.findall(r'<section class="family">(.*?)</section>', told.page, re.S)
    assert "computed on real data, not covered by ε" in family
    assert re.findall(r'<details class="classes"( open)?>', family) == ["", " open"]
    first = re.findall(r"<tbody>(.*?)</tbody>", family, re.S)[0]
    shown = [
        re.findall(r'<td class="(\w+)" style="--s:([\d.]+)">(\d*)<', r)
        for r in first.split("</tr>")
    ]
    for code, cells in enumerate(shown[: len(CLASSES)]):
        assert cells[code] == ("right", "0.90", "90")
        assert cells[(code + 1) % len(CLASSES)] == ("wrong", "0.10", "10")
        assert sum(text != "" for *_, text in cells) == 2
    assert "90.0 % | 75.0 %" in told.markdown and "(10.0 %) |" in told.markdown
    assert EVIL not in told.page and told.facts["metrics"][0]["by_class"]["recall"] == [0.9] * len(
        CLASSES
    )


def test_of_many_classes_the_page_tells_what_each_is_most_often_taken_for(run):
    names = [f"kind {code}" for code in range(45)]
    measured(run, "accuracy.cnn", by_class=by_class(names))
    page = Report(run).page
    assert 'class="confusion"' not in page
    assert "kind 8 (10.0 %)" in page and "kind 40</td>" not in page
    assert "5 further classes are not shown" in page


@pytest.mark.parametrize(
    "broken", [{"classes": ["a"]}, {"recall": [1]}, {"confusion": [[1]]}, {"precision": "x"}]
)
def test_classes_that_cannot_be_read_are_one_sentence_and_no_page(run, broken):
    measured(run, "accuracy.cnn", by_class=by_class(CLASSES) | broken)
    with pytest.raises(CorruptArtifact, match=r"metrics\.json is damaged"):
        Report(run)
    assert not (run / "report.html").exists()


@pytest.mark.parametrize(("name", "warns"), [("zoo:train", True), ("zoo:test", False)])
def test_metrics_on_what_the_run_was_fitted_on_are_warned_of(run, name, warns):
    measured(run, "accuracy.cnn", source=f"real data {name} (360 records); not covered by ε")
    told = Report(run)
    assert any("records that were kept aside" in line for line in told.facts["warnings"]) is warns
    assert ("they flatter it" in told.text) is warns


def test_powers_are_raised_and_everything_else_is_escaped():
    text = "at most e^ε <b> δ = 1e-05, 2.5e-6; (e^ε + δ); file-1e5b, v1.2e3"
    assert typeset(text) == (
        "at most e<sup>ε</sup> &lt;b&gt; δ = 10⁻⁵, 2.5·10⁻⁶; (e<sup>ε</sup> + δ); file-1e5b, v1.2e3"
    )


def test_no_file_of_the_report_tells_a_time_or_a_place(told):
    """The run is of an earlier version: its log and its metrics hold seconds."""
    for text in told.files:
        assert not re.search(r"\b(seconds|50 s|\d+ min)\b|20\d\d-\d\d-\d\d", text)
        assert str(told.path.parent.parent) not in text
    published.check("report", told.facts)


def test_what_a_run_folder_holds_beyond_the_list_is_not_carried_on(run):
    put(run / "config.json", config_of(run) | {"host": "private-host"})
    put(run / "statement.json", statement(started="yesterday"))
    for text in Report(run).files:
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
def test_the_command_of_the_evaluation_names_its_real_data(run, source, real):
    measured(run, "accuracy.cnn", source=source)
    assert f"--real {real} " in Report(run).facts["reproduce"][1] + " "


@pytest.mark.parametrize("told", [{"epsilon_k": {"2": 2.1549, "5": 6.168, "10": 14.43}}, {}])
def test_several_records_of_a_person_stand_in_the_report_of_old_and_new_runs(run, told):
    # Version 0.1.0 had no such field, and a sentence that was false.
    false = (
        "The unit is one record: a person with k records has at most k times the ε (group privacy)."
    )
    put(run / "statement.json", statement(not_covered=["The schema is public.", false], **told))
    report = Report(run)
    for shown in (report.text, report.markdown):
        assert "at most k times" not in shown
        assert "may have more than k times the ε" in shown
        for words in ("records of one person", "2.155", "6.168", "14.43"):
            assert words in shown, words


def test_the_commands_can_be_typed_as_they_stand(run, monkeypatch):
    monkeypatch.chdir(run.parent.parent)
    fit, evaluate, report = Report(Path("runs/first")).facts["reproduce"]
    assert fit.startswith(
        "sfumato fit merf --data zoo:train --schema runs/first/config.json "
        "--epsilon 1 --delta 1e-05 --neighbours zero-out --seed 3"
    )
    assert "--set steps=500 --set rate=0.01" in fit
    assert "public" not in fit
    assert fit.endswith("--out runs/first-again")
    assert evaluate == (
        "sfumato evaluate runs/first-again -n 60000 --seed 4 --real zoo:test --metrics accuracy.cnn"
    )
    assert report == "sfumato report runs/first-again"


def test_nothing_is_loaded_and_nothing_runs(told):
    assert not {"script", "link", "iframe"} & set(told.tags)
    assert told.resources
    # Pictures that are inside, and links to places of the page itself.
    assert all(r.startswith(("data:image/png;base64,", "#term-")) for r in told.resources)
    assert not re.search(r"https?://|url\(|@import", told.page)
    assert "default-src 'none'" in told.page


def test_words_from_files_are_escaped(told):
    for text in (told.page, told.markdown):
        prose = "\n".join(line for line in text.splitlines() if not line.startswith("    sfumato"))
        assert "<script" not in prose
        assert "&lt;script&gt;" in prose
    assert EVIL in told.text
    lines = told.markdown.splitlines()
    rows = [line for line in lines if line.startswith("| ") and "script" in line]
    assert rows
    assert all(len(re.findall(r"(?<!\\)\|", row)) in {3, 7} for row in rows)


def picture_of(source: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(source.split(",")[1])))


def test_the_grid_of_the_page_has_ten_images_a_class_as_they_were_drawn(told):
    samples = samples_of(IMAGES)
    rows = sample_rows(samples)
    assert [row.name for row in rows] == list(CLASSES)
    assert [len(row.images) for row in rows] == [10, 10, 10]
    third = np.flatnonzero(samples.labels == 1)[2]
    picture = np.asarray(picture_of(rows[1].images[2]))
    np.testing.assert_array_equal(picture, samples.images[third, 0])
    assert told.tags.count("img") == 30


def test_a_class_without_samples_is_said_to_have_none(run):
    text = Report(run, samples_of(IMAGES, absent=2)).text
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
    rows = sample_rows(Dataset.from_values(np.zeros((13, 3, 300, 200), np.uint8), schema=schema))
    assert [(row.name, len(row.images)) for row in rows] == [("", 10), ("", 3)]
    assert max(picture_of(rows[0].images[0]).size) == 112


def test_without_metrics_the_page_tells_how_to_get_them(run):
    (run / "metrics.json").unlink()
    told = Report(run)
    assert "Not measured yet" in told.text and "Not measured yet" in told.markdown
    assert "sfumato evaluate first --real zoo:test" in told.text
    assert "computed on real data, not covered by ε" not in told.text
    assert told.facts["metrics"] is None


def test_a_note_on_a_metric_and_a_metric_that_is_no_share_are_shown(run):
    measured(run, "fid", value=29.13, low=None, high=None, note="no records of ox")
    text = Report(run).text
    assert "29.13" in text
    assert "29.13 %" not in text
    assert "no records of ox" in text


def test_every_metric_has_a_title_in_plain_words():
    for metric in list_metrics():
        assert title_of(metric.name) not in ("", metric.name)
        assert family_of(metric.name).reading, metric.name
    assert title_of("novel.thing") == "novel.thing"


def test_metrics_stand_under_their_family_and_a_shared_source_is_told_once(run):
    names = ("accuracy.cnn", "accuracy.mlp", "prdc.recall", "nll")
    measured(run, *names, value=0.25, low=0.2, high=0.3)
    text = Report(run).text
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


def another(run: Path, name: str, **changes: Any) -> Path:
    """A copy of the run with a changed statement or metric."""
    other = Path(shutil.copytree(run, run.parent / name))
    facts = statement(epsilon=2.0, epsilon_under={"zero-out": 2.0, "replace-one": 4.5})
    put(other / "statement.json", facts)
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    metrics["metrics"][0] |= {"value": 0.8, "low": 0.75, "high": 0.85} | changes
    put(other / "metrics.json", metrics)
    return other


def test_other_runs_are_plotted_against_epsilon_if_measured_alike(run):
    good = another(run, "good")
    elsewhere = another(run, "elsewhere", source="real data ark:test (9 records); not covered by ε")
    told = Report(run, beside=[good, elsewhere])
    assert "Accuracy, convolutional network, on the same real records" in told.text
    assert re.search(r"good\s*2\s*merf\s*2\s*80.0 %\s*75.0 – 85.0 %", told.text)
    assert "Left out" in told.text
    assert "elsewhere" in told.text
    assert [row[1] for row in told.facts["utility"]] == ["first (this run)", "good"]
    with pytest.raises(BadInput, match="the same --real"):
        Report(run, beside=[elsewhere])


def test_a_comparison_can_stand_beside_a_run(run, tmp_path):
    folder = tmp_path / "cmp"
    folder.mkdir()
    row = {"metric": "accuracy.cnn", "epsilon": 5.0, "method": "merf, long", "mean": 0.9}
    row |= {"low": 0.88, "high": 0.92, "published": False, "source": SOURCE}
    paper = row | {"published": True, "method": "theirs", "low": None, "high": None}
    settings = {"train": "zoo:train", "neighbours": "zero-out", "delta": 1e-5}
    put(folder / "comparison.json", {"config": settings, "rows": [row, paper]})
    text = Report(run, beside=[folder]).text
    assert re.search(r"cmp\s*2\s*merf, long\s*5\s*90.0 %", text)
    assert "theirs" not in text
    put(folder / "comparison.json", {"rows": []})
    with pytest.raises(CorruptArtifact, match=r"comparison\.json"):
        Report(run, beside=[folder])


def test_real_images_are_shown_only_when_asked_and_under_a_warning(run, told):
    assert "REAL records" not in told.text
    shown = Report(run, real=samples_of(IMAGES, name="zoo:test"))
    assert shown.tags.count("img") == 60
    assert "This page publishes real records. 30 images of zoo:test" in shown.text
    assert "The 30 real images of zoo:test on this page." in shown.text
    assert "publishes real records" in shown.markdown
    assert shown.facts["real_records_shown"] == "zoo:test"
    other = Schema(kind="images", shape=(1, 8, 8), classes=("x", "y"))
    shown = Report(run, real=samples_of(other))
    assert "REAL records of synthetic, to compare with" in shown.text
    assert shown.tags.count("img") == 50


def test_the_private_records_themselves_are_never_shown(run):
    with pytest.raises(BadInput, match="fitted on"):
        Report(run, real=samples_of(IMAGES, name="zoo:train"))
    assert not (run / "report.html").exists()


def test_a_method_that_is_not_sound_has_a_banner(run, told, monkeypatch):
    assert "Not sound." not in told.text
    monkeypatch.setattr(Merf, "info", dataclasses.replace(Merf.info, sound=False))
    unsound = Report(run)
    assert "Not sound." in unsound.text
    assert "**Not sound.**" in unsound.markdown


def test_a_classifier_has_a_report_without_samples(run, monkeypatch):
    monkeypatch.setattr(Merf, "info", dataclasses.replace(Merf.info, makes="classifier"))
    page = _Page()
    page.feed(write_report(run).read_text(encoding="utf-8"))
    assert "This classifier is (ε = 1" in page.text
    assert "img" not in page.tags
    assert "drawn from the generator" not in page.text


def test_public_data_and_public_networks_are_named(run, told):
    assert re.search(r"Public data\s*none", told.text)
    used = {"public": "font-digits:train", "settings": {"extractor": "vgg19", "seed": 3}}
    put(run / "config.json", config_of(run) | used)
    named = Report(run)
    assert "Also used, and not protected by this ε: public data font-digits:train; " in named.text
    assert re.search(r"public network vgg19, trained on [\w-]+", named.text)
    assert "--public font-digits:train" in named.facts["reproduce"][0]


def test_a_run_without_training_and_a_cut_log_are_no_obstacle(run):
    (run / "log.jsonl").write_text('{"event": "step", "step": 1, "loss"', encoding="utf-8")
    assert "no training curve" in Report(run).text
    (run / "log.jsonl").unlink()
    assert "no training curve" in Report(run).text


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
    put(run / "config.json", config_of(run) | {"schema": schema.to_json()})
    rows = np.array([[12.5, 1], [np.nan, 0]], np.float32)
    told = Report(run, Dataset.from_values(rows, np.array([1, 0]), schema=schema))
    assert "img" not in told.tags
    assert re.search(r"age\s*colour\s*bought", told.text)
    assert "12.5" + EVIL + "yes" in told.text
    assert "–redno" in told.text


def test_dates_of_a_table_are_shown_as_dates():
    columns = (
        Column(name="age", kind="numerical", type="integer", low=0, high=100, missing=True),
        Column(name="day", kind="numerical", type="date", low=18000, high=20000, missing=True),
    )
    rows = np.array([[41, 18993.2], [np.nan, np.nan]], np.float32)
    data = Dataset.from_values(rows, None, schema=Schema(kind="table", columns=columns))
    assert first_rows(data)["rows"] == [["41", "2022-01-01"], ["–", "–"]]


def without(field: str) -> str:
    return json.dumps({key: value for key, value in statement().items() if key != field})


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("statement.json", "{", ""),
        ("statement.json", "[]", ""),
        *(("statement.json", without(field), f'"{field}"') for field in sorted(statement())),
        ("statement.json", json.dumps(statement(epsilon="1")), ""),
        ("statement.json", json.dumps(statement(epsilon=-1)), ""),
        ("statement.json", json.dumps(statement(delta=2)), ""),
        ("statement.json", json.dumps(statement(releases=[{"label": "x"}])), ""),
        ("statement.json", json.dumps(statement(epsilon_under={"zero-out": None})), ""),
        ("statement.json", json.dumps(statement(epsilon=float("nan"))), ""),
        ("statement.json", json.dumps(statement(epsilon_k="no numbers")), "epsilon_k"),
        ("statement.json", json.dumps(statement(epsilon_k={"2": "two"})), "epsilon_k"),
        ("statement.json", json.dumps(statement(epsilon_k=[2.1])), "epsilon_k"),
        ("config.json", "{}", ""),
        ("metrics.json", '{"metrics": [{"name": "x"}]}', ""),
        ("metrics.json", '{"metrics": 3}', ""),
    ],
)
def test_a_damaged_file_is_named_in_one_sentence(run, name, content, word):
    (run / name).write_text(content, encoding="utf-8")
    with pytest.raises(CorruptArtifact) as error:
        write_report(run, samples=samples_of(IMAGES))
    assert name in str(error.value) and word in str(error.value)
    assert "\n" not in str(error.value)
    assert not (run / "report.html").exists()


def test_what_is_no_run_is_refused(run, tmp_path):
    samples = samples_of(IMAGES)
    with pytest.raises(BadInput, match="no run folder"):
        write_report(tmp_path / "nowhere", samples=samples)
    other = Schema(kind="images", shape=(1, 9, 9), classes=CLASSES)
    with pytest.raises(BadInput, match="not of the kind and shape"):
        Report(run, samples_of(other))
    (run / "statement.json").unlink()
    with pytest.raises(BadInput, match=r"There is no .*statement\.json"):
        Report(run, samples)


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


CHROMIUM = shutil.which("/usr/bin/chromium") or shutil.which("chromium")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium")


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize("width", [1200, 375])
def test_a_browser_renders_the_page(told, tmp_path, width):
    path = told.path
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
@needs_browser
def test_a_browser_renders_real_images_and_the_comparison(run, tmp_path):
    real = samples_of(IMAGES, name="zoo:test")
    path = Report(run, real=real, beside=[another(run, "good")]).path
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
        [CHROMIUM, *flags, f"--user-data-dir={profile}", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    # A blocked request is a console message too, since the page's own policy forbids every request.
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout
