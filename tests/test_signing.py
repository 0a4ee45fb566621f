"""What is signed: baselines beside accuracies, two sentences, warnings, checks, audit, fingerprints, commands that work."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression

from browser import CHROMIUM
from runs import refused, run, succeed
from sfumato.data import Column, Dataset, Schema
from sfumato.data.units import Unit
from sfumato.errors import BadInput
from sfumato.evaluation import Fitted, evaluate, metrics, preset_metrics, register
from sfumato.evaluation.baselines import outcome
from sfumato.evaluation.metrics import Measurement
from sfumato.privacy import Budget
from sfumato.report import pdf
from sfumato.report.glossary import GLOSSARY
from sfumato.report.signing import Signature, two_sentences

LOGREG = ("accuracy.logreg",)
TABLE = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", low=0, high=100),
        Column(name="town", kind="categorical", categories=("a", "b")),
    ),
    classes=("no", "yes"),
    label="ill",
)


def blobs(n: int, seed: int, spread: float = 40.0) -> Dataset:
    """Three classes of 4×4 pictures around means of their own, the first as large as the others together."""
    draw = np.random.default_rng(seed)
    labels = np.array([0, 1, 0, 2])[np.arange(n) % 4]
    means = np.random.default_rng(7).uniform(60, 200, (3, 1, 4, 4))
    pixels = means[labels] + draw.normal(0, spread, (n, 1, 4, 4))
    return Dataset.from_arrays(pixels.clip(0, 255).astype(np.uint8)[:, 0], labels, classes=3)


# ------------------------------------------------------------------------- baselines


def test_the_majority_is_the_share_of_the_commonest_real_class():
    found = evaluate(blobs(40, 0), blobs(200, 1), metrics=LOGREG, baselines=True)
    assert [m.name for m in found] == ["accuracy.logreg", "baseline.majority", "ceiling.logreg"]
    assert found["baseline.majority"].value == 0.5
    assert all("not covered by ε" in m.source and m.badge for m in found)


def test_the_ceiling_is_the_same_classifier_on_real_records():
    made, train, test = blobs(60, 0), blobs(120, 1), blobs(200, 2)
    given = evaluate(made, test, metrics=LOGREG, baselines=True, train=train)
    alone = evaluate(train, test, metrics=LOGREG)
    assert given["ceiling.logreg"].value == alone["accuracy.logreg"].value
    assert "REAL TRAINING data" in given["ceiling.logreg"].source
    # Without the training records one half of the test records learns and the other is scored.
    halves = evaluate(made, test, metrics=LOGREG, baselines=True, seed=3)["ceiling.logreg"]
    order = np.random.default_rng(3).permutation(200)
    parts = [
        Dataset.from_arrays(test.images[rows], test.labels[rows], classes=3)
        for rows in (order[:100], order[100:])
    ]
    assert halves.value == evaluate(*parts, metrics=LOGREG)["accuracy.logreg"].value
    assert "one half of the held-out records" in halves.note
    assert "TRAINING" not in halves.source


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_class_means_without_noise_are_those_of_the_class_and_with_much_noise_teach_nothing(
    relation,
):
    train, test = blobs(120, 1), blobs(400, 2)

    def score(epsilon: float, seed: int = 0) -> float:
        fitted = Fitted(Budget(epsilon=epsilon, delta=1e-5, neighbours=relation), len(train))
        found = evaluate(
            blobs(8, 0),
            test,
            metrics=["baseline.class-means"],
            train=train,
            fitted=fitted,
            seed=seed,
        )
        return found["baseline.class-means"].value

    rows, labels = train.images.reshape(120, -1) / 255.0, train.labels
    means = np.stack([rows[labels == c].mean(0) for c in range(3)])
    model = LogisticRegression(max_iter=5000).fit(np.tile(means, (400, 1)), np.tile(range(3), 400))
    exact = model.score(test.images.reshape(400, -1) / 255.0, test.labels)
    assert score(1e5) == pytest.approx(exact, abs=0.01)
    assert exact > 0.9
    assert np.mean([score(1e-3, seed) for seed in range(8)]) < 0.6


def test_noise_is_that_of_the_records_fitted_and_not_of_those_at_hand():
    """A release over more records has the same noise and so the better means."""
    test, budget = blobs(200, 2), Budget(epsilon=0.05, delta=1e-5)

    def score(size: int) -> float:
        return float(
            np.mean(
                [
                    evaluate(
                        blobs(8, 0),
                        test,
                        metrics=["baseline.class-means"],
                        fitted=Fitted(budget, size),
                        seed=seed,
                    )["baseline.class-means"].value
                    for seed in range(5)
                ]
            )
        )

    assert score(100_000) > score(50) + 0.2


def test_class_means_of_a_table_and_what_they_need():
    draw = np.random.default_rng(0)
    values = np.stack([draw.uniform(0, 100, 80), draw.integers(0, 2, 80)], 1).astype(np.float32)
    data = Dataset.from_values(values, (values[:, 0] > 50).astype(int), schema=TABLE)
    fitted = Fitted(Budget(epsilon=1e4, delta=1e-5), 80)
    found = evaluate(data, data, metrics=LOGREG, baselines=True, fitted=fitted)
    assert found["baseline.class-means"].value > 0.8
    private = Fitted(Budget(epsilon=1, delta=1e-5, neighbours="add-remove"), None)
    names = [m.name for m in evaluate(data, data, metrics=LOGREG, baselines=True, fitted=private)]
    assert "baseline.class-means" not in names
    for given in (None, private):
        with pytest.raises(BadInput, match="class means need"):
            evaluate(data, data, metrics=["baseline.class-means"], fitted=given)


def test_baselines_are_in_no_preset():
    for preset in ("quick", "paper", "full"):
        names = preset_metrics(preset, blobs(8, 0).schema)
        assert not [name for name in names if name.startswith(("baseline", "ceiling"))]


def test_an_accuracy_of_somebodys_own_has_no_ceiling(monkeypatch):
    monkeypatch.setattr(metrics, "_METRICS", dict(metrics._METRICS))
    register("accuracy.mine", "…")(lambda comparison, seed, step: Measurement(0.5, 0.5, 0.5))
    found = evaluate(blobs(8, 0), blobs(8, 1), metrics=["accuracy.mine"], baselines=True)
    assert [m.name for m in found] == ["accuracy.mine", "baseline.majority"]


@pytest.mark.parametrize(
    ("value", "low", "said"),
    [
        (0.10, 0.08, "no better than always answering with the commonest class"),
        (0.22, 0.18, "not clearly better than always answering with the commonest class"),
        (0.60, 0.58, "no better than a release of noisy class means at the same ε"),
        (0.72, 0.68, "not clearly better than a release of noisy class means"),
        (0.80, 0.78, ""),
    ],
)
def test_a_result_that_is_no_better_than_a_baseline_is_said_to_be(value, low, said):
    metrics: list[dict[str, Any]] = [
        {"name": "accuracy.logreg", "value": value, "low": low},
        {"name": "accuracy.mlp", "value": 0.05, "low": 0.04},
        {"name": "baseline.majority", "value": 0.2},
        {"name": "baseline.class-means", "value": 0.7},
        {"name": "ceiling.logreg", "value": 0.9},
    ]
    found = outcome(metrics)
    assert (said in found) if said else found == ""
    assert outcome([m for m in metrics if not m["name"].startswith("accuracy")]) == ""


# ------------------------------------------------------------------------- the page of a run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data of patients, a run for them, its metrics and samples; δ is far too large."""
    folder = tmp_path_factory.mktemp("signing")
    for name, data in (("train", blobs(120, 1)), ("test", blobs(80, 2))):
        patients = np.arange(len(data)) // 2
        np.savez(
            folder / f"{name}.npz", images=data.images, labels=data.labels, patient_id=patients
        )
    words = ["--classes", "a,b,c", "--unit", "patient_id", "--epsilon", 20.1234567891]
    words += ["--delta", 0.05, "--set", "features=32", "--set", "steps=10"]
    succeed("fit", "merf", "--data", folder / "train.npz", *words, "--out", folder / "run", "-q")
    judge = ["--real", folder / "test.npz", "-n", 60, "--metrics", "accuracy.logreg", "-q"]
    told = succeed("evaluate", folder / "run", *judge).stdout
    assert "baseline.class-means" in told and "ceiling.logreg" in told
    succeed("sample", folder / "run", "-n", 20, "--out", folder / "given.npz", "-q")
    return folder


def report(made: Path, *words: object) -> tuple[str, dict[str, Any]]:
    succeed("report", made / "run", *words, "-q")
    return (
        (made / "run" / "report.html").read_text(encoding="utf-8"),
        json.loads((made / "run" / "report.json").read_text(encoding="utf-8")),
    )


def test_the_page_begins_with_two_sentences_and_the_terminals_warnings(made):
    page, told = report(made)
    header = re.sub(r"<[^>]+>|\s+", " ", page.split("<header>")[1].split("</header>")[0])
    header = re.sub(r" +", " ", header)
    for words in (
        "(ε = 20.13, δ = 0.05)-differentially private for one patient of the original data",
        "whoever knows all records of every other patient and guesses whether its records were used is right at most",
        "about one patient nothing may be concluded beyond that bound",
        "Warning. δ = 0.05 is not below 1/n = 0.017",
    ):
        assert words in header, words
    assert header.index("differentially private") < header.index("Warning")
    assert told["warnings"] and told["verdict"].startswith("These synthetic records are (ε")
    markdown = (made / "run" / "report.md").read_text(encoding="utf-8")
    assert "**Warning.** δ = 0.05" in markdown


def test_a_run_that_is_not_sound_is_to_be_treated_as_the_data():
    statement = {"epsilon": 1e6, "delta": 1e-5, "sound": False, "claimed": {"epsilon": 1.0}}
    first, second = two_sentences(statement, "record", True, "records")
    assert "not private" in first
    assert second == "Treat them as if they showed the private records."


def test_baselines_stand_beside_every_accuracy_and_a_poor_result_is_named(made):
    page, told = report(made)
    (beside,) = re.findall(r'<div class="beside">(.*?)</div>', page)
    for word in ("commonest class", "noisy class means", "trained on real records"):
        assert f"{word} <strong>" in beside
    assert "commonest class <strong>50.0 %" in beside
    assert "Baselines</h3>" not in page  # they stand beside the accuracy, and not by themselves
    file = made / "run" / "metrics.json"
    whole = file.read_text(encoding="utf-8")
    facts = json.loads(whole)
    facts["metrics"][0] |= {"value": 0.4, "low": 0.3, "high": 0.5}
    file.write_text(json.dumps(facts), encoding="utf-8")
    try:
        page, told = report(made)
    finally:
        file.write_text(whole, encoding="utf-8")
    said = "this is no better than always answering with the commonest class (50.0 % right): "
    assert told["no_better"].startswith(said)
    assert f"40.0 % of real records right (logistic regression); <strong>{said}" in page


def test_lines_to_sign_are_empty_or_as_stated(made):
    page, told = report(made)
    assert told["signature"] == {"by": "", "role": "", "date": "", "decision": ""}
    assert page.count("<dd></dd>") == 4 and "<span>do not release</span>" in page
    who = {"by": "A. <b>Steward</b>", "role": "steward", "date": "today", "decision": "release"}
    page, told = report(made, *(w for k, v in who.items() for w in (f"--{k}", v)))
    assert told["signature"] == who
    assert "<dd>A. &lt;b&gt;Steward&lt;/b&gt;</dd>" in page and "<span>do not" not in page
    for bad in ("x" * 301, "two\nlines"):
        with pytest.raises(BadInput, match="one line"):
            Signature(by=bad)


def test_fingerprints_are_of_what_is_released(made):
    folder = made / "pictures"
    if not folder.exists():
        succeed("sample", made / "run", "-n", 4, "--out", folder, "-q")
    page, told = report(made, "--release", made / "given.npz", "--release", folder)
    found = told["fingerprints"]
    assert list(found) == ["generator.safetensors", "given.npz", "pictures"]
    for path in (made / "run" / "generator.safetensors", made / "given.npz"):
        assert found[path.name] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert found[path.name] in page
    (next(folder.rglob("*.png"))).write_bytes(b"another picture")
    assert "was changed" in refused(2, "report", made / "run", "--release", folder)
    # Records that no note tells of may be the private ones: not even their hash is told.
    assert "Nothing says" in refused(2, "report", made / "run", "--release", made / "train.npz")
    data = hashlib.sha256((made / "train.npz").read_bytes()).hexdigest()
    assert data not in page
    assert "There is no" in refused(2, "report", made / "run", "--release", made / "nothing.npz")


def test_what_verify_finds_stands_on_the_page(made):
    page, told = report(made)
    assert told["verified"]["passed"]
    assert [c["check"] for c in told["verified"]["checks"]][-1] == "files"  # not the report itself
    assert '<span class="passed">passed</span>: 7 of 7' in page
    file = made / "run" / "log.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b"{}\n")
    try:
        page, told = report(made)
        assert not told["verified"]["passed"]
        assert "This run does not pass its checks." in page.split("</header>")[0]
        assert str(made) not in page
    finally:
        file.write_bytes(whole)
    report(made)
    succeed("verify", made / "run")


def test_an_audit_stands_on_the_page_only_if_it_is_of_this_run(made):
    epsilon = json.loads((made / "run" / "statement.json").read_text())["epsilon"]
    attack = {"attack": "white-box", "epsilon_lower": 0.0599, "guesses": []}
    outcome = {
        "method": "merf",
        "data": "train.npz",
        "source": "…",
        "epsilon": epsilon,
        "delta": 0.05,
        "neighbours": "zero-out",
        "canaries": 1000,
        "confidence": 0.95,
        "passed": True,
        "white_box": attack,
        "black_box": [attack | {"epsilon_lower": 0.011}],
        "answers": [],
        "seconds": 4.2,
    }
    file = made / "audit.json"
    file.write_text(json.dumps(outcome))
    page, told = report(made, "--audit", file)
    assert "ε ≥ 0.05 from all that was released and ε ≥ 0.01 from samples alone" in page
    assert told["audit"]["badge"] == "computed on real data, not covered by ε"
    assert "seconds" not in json.dumps(told)
    assert "audit" in report(made)[1] and report(made)[1]["audit"] is None
    file.write_text(json.dumps(outcome | {"passed": False}))
    assert "The audit found more than is claimed." in report(made, "--audit", file)[0]
    for other in ({"method": "gan"}, {"epsilon": 3.0}, {"delta": 1e-5}):
        file.write_text(json.dumps(outcome | other))
        assert "not of this run" in refused(2, "report", made / "run", "--audit", file)
    for broken in ({"method": "merf"}, [], {"mechanisms": 3}):
        file.write_text(json.dumps(broken))
        assert "no outcome of an audit" in refused(2, "report", made / "run", "--audit", file)
    mechanisms = {"passed": True, "confidence": 0.999, "mechanisms": [{"ratio": 0.9123}]}
    file.write_text(json.dumps(mechanisms))
    page, told = report(made, "--audit", file)
    assert "the nearest comes to 92 % of it (confidence 99.9 %)" in page
    assert told["audit"]["badge"] == ""  # made-up records


def test_every_word_of_the_glossary_is_reached_by_keyboard_and_explained_on_hover(made):
    page, _ = report(made)
    links = re.findall(r'<a class="term" href="#term-(\w+)" title="([^"]{20,})">', page)
    assert len({key for key, _ in links}) >= 10
    for key, _ in links:
        assert f'id="term-{key}"' in page
    assert page.count('<div id="term-') == len(GLOSSARY)


def test_the_commands_of_the_page_work_as_they_stand(made, monkeypatch):
    """On data given by a path, with units and classes of its own: typed where the data lie."""
    monkeypatch.chdir(made)
    succeed("report", "run", "-q")
    told = json.loads(Path("run/report.json").read_text(encoding="utf-8"))
    assert not Path("run-again").exists()
    commands = [*told["check"], *told["reproduce"]]
    assert [c.split()[1] for c in commands] == ["verify", "sample", "fit", "evaluate", "report"]
    for command in commands:
        succeed(*shlex.split(command)[1:])
    again = [json.loads(Path(run, "config.json").read_text()) for run in ("run", "run-again")]
    assert again[0] == again[1]
    metrics = [
        [m["name"] for m in json.loads(Path(run, "metrics.json").read_text())["metrics"]]
        for run in ("run", "run-again")
    ]
    assert metrics[0] == metrics[1]


def test_the_commands_of_a_folder_with_its_labels_in_a_table_work_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scans").mkdir()
    lines = ["file,finding,who"]
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (24, 6, 5))):
        Image.fromarray(pixels.astype(np.uint8)).save(f"scans/{i}.png")
        lines.append(f"{i}.png,{('well', 'ill')[i % 2]},p{i // 2}")
    Path("scans/labels.csv").write_text("\n".join(lines))
    words = ["--labels", "scans/labels.csv:finding", "--classes", "well,ill", "--unit", "who"]
    words += ["--image-size", 4, "--channels", 1, "--fit", "pad", "--epsilon", 1, "--delta", 1e-5]
    tiny = ["--set", "features=16", "--set", "steps=5", "--out", "one", "-q"]
    succeed("fit", "merf", "--data", "scans", *words, *tiny)
    succeed("report", "one", "-q")
    told = json.loads(Path("one/report.json").read_text(encoding="utf-8"))
    for command in (*told["check"], told["reproduce"][0]):
        succeed(*shlex.split(command)[1:])
    again = [json.loads(Path(run, "config.json").read_text()) for run in ("one", "one-again")]
    assert again[0] == again[1]


@pytest.mark.parametrize(
    ("read_from", "option"),
    [
        ("the DICOM field PatientID", "PatientID"),
        ("the column 'a b' of persons.csv", "persons.csv:a b"),
        ("the column 'who'", "who"),
        ("the array 'who'", "who"),
        ("the innermost folder of each file", "folder"),
        (r"the path of each file, by p(\d+) of (x)", r"p(\d+) of (x)"),
        ("one value for each record", None),
        ("the column __import__('os')", None),
    ],
)
def test_a_unit_tells_what_to_type_for_it(read_from, option):
    assert Unit("patient", read_from, 64).option == option


def test_the_commands_of_a_table_work_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    lines = [
        f"{draw.integers(1, 99)},{draw.choice(['a', 'b'])},{('yes', 'no')[i % 2]}"
        for i in range(60)
    ]
    Path("rows.csv").write_text("age,town,ill\n" + "\n".join(lines))
    Path("public.json").write_text(json.dumps(TABLE.to_json()))
    words = ["--data", "rows.csv", "--schema", "public.json", "--epsilon", 1, "--delta", 1e-5]
    succeed("fit", "merf", *words, "--set", "features=16", "--set", "steps=5", "--out", "one", "-q")
    succeed("report", "one", "-q")
    told = json.loads(Path("one/report.json").read_text(encoding="utf-8"))
    Path("public.json").unlink()
    for command in (*told["check"], told["reproduce"][0], told["reproduce"][2]):
        succeed(*shlex.split(command)[1:])
    assert Path("shown.csv").exists()


# ------------------------------------------------------------------------- PDF


def test_without_a_browser_a_pdf_is_refused_in_one_sentence(made, monkeypatch):
    monkeypatch.setattr(pdf, "find_browser", lambda: None)
    found = run("report", made / "run", "--pdf", "-q")
    assert found.exit_code == 2
    (line,) = found.stderr.strip().splitlines()
    assert "none is installed" in line and "print it" in line
    assert not (made / "run" / "report.pdf").exists()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
def test_a_pdf_tells_no_time(made):
    told = json.loads(succeed("report", made / "run", "--pdf", "--json", "-q").stdout)
    content = Path(told["pdf"]).read_bytes()
    assert content.startswith(b"%PDF-")
    assert re.findall(rb"/Type ?/Page\b", content)
    dates = re.findall(rb"\(D:(\d+)", content)
    assert set(dates) == {b"19800101000000"}
    assert Path(told["pdf"]).stat().st_mode & 0o777 == 0o600
