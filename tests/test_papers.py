"""The papers' numbers: whole, with their digits, and where the papers have them.

The papers' texts are not in this repository, so two things are checked. `SEEN` was typed from the texts a second time, by hand,
not from the file under test: line, number, and a few words of what stands there. And where the texts are at hand, in the folder
that SFUMATO_PAPERS names, every number of the file is looked up in the line that it claims.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from sfumato.cli.main import app
from sfumato.data import list_named
from sfumato.evaluation import list_metrics
from sfumato.report.comparison import _curve, _panels, _protocols, parse_config, rows_of, table
from sfumato.report.papers import Published, all_published, paper_titles, published_numbers

# Line, number as printed, data, what it is (method begins with, ε, metric), words that stand in that line.
INF = math.inf
SEEN = [
    ("S3:1437", "0.650", "adult", ("DP-MERF", 1, "roc-hard.mean12"), "adult 0.730 0.639"),
    ("S3:1437", "0.564", "adult", ("DP-MERF", 1, "prc-hard.mean12"), "0.650 0.564"),
    ("S3:1437", "0.570", "adult", ("DP-MERF", INF, "prc-hard.mean12"), "0.653 0.570"),
    ("S3:1437", "0.730", "adult", ("real data", INF, "roc-hard.mean12"), "adult 0.730"),
    ("S3:1438", "0.216", "census", ("DP-CGAN", 1, "prc-hard.mean12"), "census 0.747 0.415 0.655"),
    ("S3:1440", "0.772", "credit", ("DP-MERF", 1, "roc-hard.mean12"), "credit 0.923 0.874"),
    ("S3:1444", "0.492", "covtype", ("DP-GAN", 1, "f1-weighted.mean12"), "0.643 0.285"),
    ("S3:1877", "0.769", "mnist", ("DP-MERF", 1, "accuracy.logreg"), "Logistic Regression 0.930"),
    ("S3:1884", "0.170", "mnist", ("GS-WGAN", 10, "accuracy.adaboost"), "Adaboost 0.729"),
    ("S3:1889", "0.610", "mnist", ("DP-MERF", 0.2, "accuracy.mean12"), "Average 0.870"),
    ("S3:1894", "0.728", "fashion-mnist", ("DP-MERF", 1, "accuracy.logreg"), "Regression 0.844"),
    ("S3:1902", "0.738", "fashion-mnist", ("DP-MERF", 1, "accuracy.mlp"), "MLP 0.879"),
    ("S3:1906", "0.616", "fashion-mnist", ("DP-MERF", 1, "accuracy.mean12"), "Average 0.780"),
    ("S3:1822", "0.787", "credit", ("DP-MERF", 1, "roc-hard.adaboost"), "Adaboost 0.912 0.828"),
    ("S3:1923", "0.405", "adult-discrete", ("DP-MERF", 0.3, "marginals-paper.3way"), "α=3 0.275"),
    ("S3:1923", "0.131", "census-discrete", ("PrivBayes", 1, "marginals-paper.2way"), "α=2 0.131"),
    ("S3:1925", "0.235", "adult-discrete-15", ("DP-MERF", 1, "marginals-paper.3way"), "0.182"),
    ("S3:1926", "0.453", "adult-discrete-15", ("DP-MERF", 0.1, "marginals-paper.4way"), "0.401"),
    ("S3:2179", "0.332", "adult-discrete", ("DP-HP", 0.3, "marginals-paper.3way"), "0.405 0.480"),
    ("S3:2799", "0.632", "adult", ("DP-HP", 1, "prc-hard.mean12"), "0.688 0.632"),
    ("S3:2800", "0.32", "census", ("DP-HP", INF, "prc-hard.mean12"), "0.707 0.32"),
    ("S3:2802", "0.744", "credit", ("DP-HP", 1, "prc-hard.mean12"), "0.786 0.744"),
    ("S3:3502", "0.825", "mnist", ("DP-MEPF φ1,φ2", 1, "accuracy.logreg"), "82.5 ± 0.5"),
    ("S3:3500", "0.914", "mnist", ("DP-MEPF φ1,φ2", INF, "accuracy.mlp"), "91.4 ± 0.3"),
    ("S3:3520", "0.750", "fashion-mnist", ("DP-MEPF φ1", 1, "accuracy.mlp"), "75.0 ± 1.8"),
    ("S3:3539", "54.0", "cifar10", ("DP-MEPF φ1,φ2, labelled", 1, "fid.paper"), "54.0 ± 1.3"),
    ("S3:3559", "67.3", "cifar10", ("DP-MEPF φ1,φ2, unlabelled", 0.2, "fid.paper"), "67.3 ± 2.6"),
    ("S3:3145", "54.6", "cifar10", ("DP-GAN, pre-trained", 10, "fid.paper"), "DP-GAN 54.6"),
    ("S3:619", "15.1", "cifar10", ("fine-tuned diffusion", 5, "fid"), "an FID of 15.1"),
    ("S3:623", "25.2", "cifar10", ("latent diffusion", 1, "fid"), "an FID score of 25.2"),
    ("S3:3545", "0.530", "cifar10", ("DP-MEPF φ1,φ2", 10, "accuracy.resnet9"), "53.0 ± 2.8"),
    ("S3:3542", "0.883", "cifar10", ("real data", INF, "accuracy.resnet9"), "accuracy is 88.3%"),
    ("S3:3527", "19.0", "celeba-32", ("DP-MEPF φ1,φ2", 1, "fid.paper"), "19.0 ± 0.5"),
    ("S0:249", "38.6", "cifar10", ("DP-MEPF φ1,φ2, labelled", 1, "fid.paper"), "27.6 38.6 64.4"),
    ("S1:2120", "412.8", "cifar10", ("DP-MERF, labelled", 0.2, "fid.paper"), "412.8 ± 0.8"),
    ("S2:155", "16.6", "cifar10", ("IC-GAN", INF, "fid"), "Non-private IC-GAN 16.6"),
    ("S2:160", "20.9", "cifar10", ("DP-DRE", 1, "fid"), "DP-DRE 19.8 21.2 21.0 20.9"),
    ("S2:159", "166.4", "pet-128", ("DP-MGE", 0.1, "fid"), "76.1 109.7 166.4"),
    ("S2:182", "0.969", "cifar10", ("IC-GAN", INF, "prd.f8"), "Recall: 0.969"),
    ("S2:187", "0.946", "cifar10", ("DP-DRE", 10, "prd.f1-8"), "0.950 0.933 0.946"),
    ("S2:221", "0.97", "bird-128", ("DP-DRE", 1, "superclass.weight"), "Bird 0.98 0.99"),
    ("S2:211", "37.9", "cifar10", ("public images", INF, "fid"), "37.9 (Cifar10)"),
    ("S2:466", "0.849", "objects-autumn-128", ("DP-DRE", 0.1, "prd.f8"), "0.910 0.849"),
    ("S4:118", "0.501", "mnist", ("DPAF", 1, "accuracy.cnn"), "0.782 0.501"),
    ("S4:118", "0.654", "mnist", ("DP-Sinkhorn", 1, "accuracy.cnn"), "0.588 0.654"),
    ("S4:121", "0.748", "fashion-mnist", ("P3GM", 10, "accuracy.cnn"), "MNIST 10 0.658 0.616"),
    ("S4:145", "298", "celeba-gender-64", ("DPAF", 10, "fid"), "320 341 302 298"),
    ("S4:157", "0.646", "ffhq-gender-128", ("DPAF", 10, "accuracy.cnn"), "Gender 10 0.511"),
    ("S4:228", "0.782", "celeba-gender-64", ("DPAF, split (40 %, 20 %", 10, "accuracy.cnn"), "0.7"),
    ("S4:238", "0.668", "celeba-hair-64", ("DPAF, μ = 20", 10, "accuracy.cnn"), "0.668 ± 0.020"),
]


@pytest.mark.parametrize(("place", "printed", "data", "what", "words"), SEEN)
def test_numbers_are_those_that_were_read_in_the_papers(
    place: str, printed: str, data: str, what: tuple[str, float, str], words: str
) -> None:
    method, epsilon, metric = what
    paper, _, line = place.partition(":")
    assert any(
        (n.paper, n.line, n.printed, n.epsilon, n.metric)
        == (paper, int(line), printed, epsilon, metric)
        and n.method.startswith(method)
        for n in published_numbers(data, everything=True)
    ), words


FILES = {
    "S0": "dp-mepf-anonymous.txt",
    "S1": "dp-mepf-with-supplement.txt",
    "S2": "public-data-dp-mge-dp-dre.txt",
    "S3": "thesis-llm-merf-hp-mepf.txt",
    "S4": "dpaf.txt",
}


@pytest.mark.skipif("SFUMATO_PAPERS" not in os.environ, reason="needs the papers' texts")
def test_every_number_stands_in_the_line_that_it_claims() -> None:
    folder = Path(os.environ["SFUMATO_PAPERS"])
    lines = {key: (folder / name).read_text().split("\n") for key, name in FILES.items()}
    looked = 0
    for number in all_published():
        # Figures have no text, and that of S4's Table 7 is in pieces.
        if number.paper not in FILES or number.figure or "damaged" in number.protocol:
            continue
        assert number.line is not None
        text = lines[number.paper][number.line - 1]
        told = {number.printed, *_in_per_cent(number)}
        assert any(re.search(rf"(?<![\d.]){re.escape(t)}(?!\d)", text) for t in told), number
        looked += 1
    assert looked > 2000
    for place, _, _, _, words in SEEN:
        paper, _, line = place.partition(":")
        text = lines[paper][int(line) - 1]
        for word in re.findall(r"\d+\.\d+", words):
            assert word in text, (place, word)


def _in_per_cent(number: Published) -> Iterable[str]:
    """Shares may have been printed in per cent, with two digits fewer."""
    digits = len(number.printed.partition(".")[2])
    if digits >= 2:
        yield f"{100 * number.value:.{digits - 2}f}"


# Numbers of the papers that `evaluate` has no name for.
ELSEWHERE = {"classifier.accuracy", "superclass.weight"}


def test_every_entry_is_whole_and_of_a_known_kind() -> None:
    metrics = {m.name for m in list_metrics()} | ELSEWHERE
    numbers = all_published()
    assert len(numbers) > 2000
    for number in numbers:
        assert number.metric in metrics, number
        assert number.paper in paper_titles()
        assert number.relation in ("replace-one", "add-remove", "not stated", "none")
        assert (number.relation == "none") == math.isinf(number.epsilon)
        assert number.source and (number.line or number.paper in ("own", "bench"))
        assert number.metric.startswith("fid") or 0 <= number.value <= 1
        assert float(number.printed) == pytest.approx(number.value)
    keys = [
        (n.data, n.method, n.epsilon, n.metric)
        for named in {n.data for n in numbers}
        for n in published_numbers(named)
    ]
    assert len(keys) == len({*keys})  # of two numbers for one thing, one is superseded or renamed
    assert {"adult", "census", "credit", "mnist", "cifar10", "adult-discrete"} <= {
        entry.name for entry in list_named() if published_numbers(entry.name)
    }


def test_every_table_of_the_papers_is_there() -> None:
    tables = {(n.paper, n.source.partition(", ")[2]) for n in all_published()}
    wanted = {("S4", f"Table {k}") for k in range(1, 9)}
    wanted |= {("S2", f"Table {k}") for k in (1, 2, 3, 5)}  # 4 holds settings, not results
    wanted |= {("S3", f"app. B, Table {k}") for k in (1, 3, 5, 6, 7, 8, 9, 10)}
    wanted |= {("S3", f"app. C, Table {k}") for k in (1, 2, 5, 7, 8)}
    wanted |= {("S3", f"app. D, Table {k}") for k in (*range(1, 7), *range(10, 20))}
    assert wanted <= tables


def test_areas_of_the_papers_tables_are_of_hard_decisions_and_beside_no_other() -> None:
    assert not [n for n in all_published() if n.metric.startswith(("roc.", "prc.", "f1."))]
    assert not [n for n in all_published() if n.metric.startswith("marginals.")]


def test_what_a_later_text_supersedes_is_shown_when_asked_for_only() -> None:
    shown, whole = published_numbers("cifar10"), published_numbers("cifar10", everything=True)
    assert not [n for n in shown if n.paper in ("S0", "S1") or n.superseded or n.ablation]
    old = [n for n in whole if n.superseded and n.line == 249 and n.epsilon == 1]
    assert [n.printed for n in old] == ["38.6"]
    assert "corrected" in old[0].superseded
    metric = {"name": "fid.paper", "value": 70.0, "source": "real; not covered by ε"}
    config = parse_config(
        {"data": "cifar10", "epsilons": [1.0], "delta": 1e-5, "methods": {"merf": {}}}
    )
    results = [("merf", {"epsilon": 1.0}, {"metrics": [metric]})]
    for everything in (False, True):
        rows = rows_of(config, results, all_published=everything)
        text = "\n".join(" ".join(cells) for cells in table(rows))
        assert "54.0" in text and "S3:3539" in text
        assert ("SUPERSEDED" in text) is everything and ("S0:249" in text) is everything


def test_a_comparison_tells_place_protocol_and_what_is_not_private() -> None:
    metric = {"name": "accuracy.mean12", "value": 0.7, "source": "real; not covered by ε"}
    config = parse_config(
        {"data": "mnist", "epsilons": [1.0], "delta": 1e-5, "methods": {"merf": {}}}
    )
    rows = rows_of(config, [("merf", {"epsilon": 1.0}, {"metrics": [metric]})])
    shown = {(cells[3], cells[1]): cells for cells in table(rows)}
    real = shown["real data (published)", "∞"]
    assert real[2] == "NOT PRIVATE" and real[4] == "0.870" and "S3:1889" in real[7]
    assert shown["DP-MERF (published)", "1"][4] == "0.652"
    assert shown["merf", "1"][4] == "0.7"
    remarks = " ".join(_protocols(rows))
    assert "S3 is F. Harder, thesis" in remarks and "S4 is" not in remarks
    assert "60,000 samples" in remarks and "app. B, Table 9" in remarks
    # No guarantee, no place on the axis; the table keeps the row.
    (panel,) = _panels(rows)
    assert not [name for name, theirs, _ in panel["series"] if name == "real data"]
    assert len(panel["rows"]) == len(rows)
    assert _curve(rows).startswith(b"\x89PNG")


def test_the_command_line_lists_published_numbers() -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(app, ["published", *words])
        assert result.exit_code == 0, result.stderr
        return result.stdout

    assert "celeba-64" in run() and json.loads(run("--json"))["ffhq-gender-128"] == 4
    text = run("cifar10:train", "--metric", "fid")
    assert "29.1 ± 1.3" in text and "S3:3539" in text and "∞" in text and "S0:" not in text
    assert "accuracy" not in text
    assert "S0:249, Table 5; superseded" in run("cifar10", "--all")
    told = json.loads(run("adult", "--metric", "roc-hard", "--json"))
    assert {n["metric"] for n in told} == {"roc-hard.mean12"}
    assert all(n["protocol"] for n in told)
    assert [n["epsilon"] for n in told if n["method"] == "real data"] == [None]
    wrong = CliRunner().invoke(app, ["published", "digits"])
    assert wrong.exit_code == 2 and "sfumato published" in wrong.stderr
