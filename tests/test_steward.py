"""A steward's walk, from scans of forty patients to what she signs and publishes: every command as she types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlparse

import numpy as np
import pytest
from click.testing import CliRunner, Result

from browser import chromium, needs_driver, served
from sfumato.cli.main import app

pydicom = pytest.importorskip("pydicom", reason="sfumato[dicom] is not installed")
from dicoms import write_dicom  # noqa: E402

pytestmark = pytest.mark.xdist_group("steward")  # one walk for all of them

PATIENTS, SCANS = 40, 4
FACTS = ["--image-size", "16", "--channels", "1", "--unit", "PatientID"]
BUDGET = ["--epsilon", "3", "--delta", "1e-3"]


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12-bit scans in a folder for each finding; one in two patients has several, and one lies in both folders."""
    folder = tmp_path_factory.mktemp("hospital") / "scans"
    random = np.random.default_rng(0)
    for patient in range(PATIENTS):
        for scan in range(1 + (SCANS - 1) * (patient % 2)):
            finding = ("healthy", "ill")[(patient + scan // 3) % 2]
            (folder / finding).mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 1200, (16, 16), dtype=np.uint16)
            pixels[:, slice(0, 8) if finding == "ill" else slice(8, 16)] += 2500
            write_dicom(
                folder / finding / f"{patient:03}-{scan}.dcm", pixels, PatientID=f"MRN-{patient:05}"
            )
    return folder


@pytest.fixture(scope="module")
def walked(scans: Path) -> dict[str, Any]:
    """The whole walk, once; each stop is looked at by a test."""
    home = scans.parent
    run, ledger, release = home / "run", home / "ledger", home / "release.npz"

    def typed(*words: Any, code: int = 0) -> Result:
        told = CliRunner().invoke(app, [str(word) for word in words])
        assert told.exit_code == code, told.output
        return told

    data = ["--data", scans, *FACTS]
    found: dict[str, Any] = {"run": run, "ledger": ledger, "home": home, "release": release}
    found["check"] = typed("check", scans, *FACTS, *BUDGET)
    typed("ledger", "init", ledger, "--epsilon", 4, "--delta", "1e-3", "--unit", "PatientID")
    found["plan"] = typed("plan", "mixture", *data, *BUDGET, "--ledger", ledger, "--json")
    found["fit"] = typed("fit", "mixture", *data, *BUDGET, "--out", run, "--ledger", ledger, "-q")
    typed("sample", run, "-n", 120, "--seed", 1, "--out", release)
    typed(
        *("report", run, "--ledger", ledger, "--release", release, "--by", "A. Steward"),
        *("--role", "data steward", "--decision", "release"),
    )
    found["verify"] = typed("verify", run)
    typed(
        *("card", run, "--release", release, "--curator", "City Hospital", "--out", home / "card")
    )
    found["again"] = typed(
        *("fit", "mixture", *data, *BUDGET, "--out", home / "second", "--ledger", ledger, "-q"),
        code=4,
    )
    return found


def test_the_check_tells_its_owner_of_persons_and_that_it_is_private(
    walked: dict[str, Any],
) -> None:
    told = walked["check"].output
    assert "PRIVATE" in told
    assert "mixture" in told  # what is recommended


def test_the_plan_counts_patients_and_is_kept(walked: dict[str, Any]) -> None:
    plan = json.loads(walked["plan"].stdout)
    statement = json.loads((walked["run"] / "statement.json").read_text())
    assert plan["size"] == PATIENTS and plan["releases"] == statement["releases"]
    assert plan["ledger"]["fits"]


def test_the_run_protects_patients_and_tells_none_of_them(
    walked: dict[str, Any], scans: Path
) -> None:
    statement = json.loads((walked["run"] / "statement.json").read_text())
    assert statement["epsilon"] <= 3 and statement["unit"] == "one patient"
    # Neither a patient, nor a file of theirs, nor how many scans there were.
    names = {p.stem for p in scans.rglob("*.dcm")}
    total = len(names)
    for folder in (walked["run"], walked["home"] / "card"):
        for path in folder.rglob("*"):
            if not path.is_file() or path.suffix in (".sqlite", ".safetensors", ".png", ".lock"):
                continue
            text = path.read_bytes().decode("utf-8", "replace")
            assert "MRN-" not in text, path.name  # no base64 of a picture has a dash
            assert not [n for n in names if n in text], path.name
            assert f"{total} records" not in text, path.name


def test_the_report_is_ready_to_be_signed(walked: dict[str, Any]) -> None:
    page = (walked["run"] / "report.html").read_text()
    for part in ("A. Steward", "data steward", "release.npz", "PatientID", "Glossary"):
        assert part in page, part
    assert "differentially private" in page


def test_the_run_is_verified_and_its_cards_are_there(walked: dict[str, Any]) -> None:
    assert "fail" not in walked["verify"].output
    cards = {p.name for p in (walked["home"] / "card").iterdir()}
    assert {"README.md", "croissant.json"} <= cards


def test_a_second_run_would_pass_the_limit_and_is_refused_before_a_row_is_read(
    walked: dict[str, Any],
) -> None:
    assert "no row was read" in walked["again"].output
    assert not (walked["home"] / "second" / "run.sqlite").exists()


@pytest.mark.browser
@needs_driver
def test_the_studio_shows_it_all_in_a_browser_and_none_of_the_patients(
    walked: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("uvicorn", reason="sfumato[studio] is not installed")
    run = walked["run"].name
    asked = "plan?" + urlencode({"data": run, "epsilon": 3, "delta": "1e-3", "ledger": "ledger"})
    pages = {
        "": ("mixture", "scans", "patient"),
        f"run?run={run}": ("Best guess", "patient"),
        f"samples?run={run}": ("healthy", "ill"),
        asked: ("rough mean", "one patient", f"{PATIENTS} patients", "is spent"),
        f"report?run={run}": ("A. Steward", "PatientID", "For signature"),
    }
    with chromium(tmp_path) as browser, served(walked["home"]) as address:
        host = urlparse(address).netloc
        for width, dark in ((1280, False), (390, True)):
            browser.settle()
            browser.face(width=width, dark=dark)
            for page, words in pages.items():
                browser.open(address + page)
                browser.until("document.readyState === 'complete' && document.querySelector('h1')")
                text = browser.run("return document.body.textContent")
                for word in words:
                    assert word in text, (page, word)
                assert "MRN" not in text, page
                wide = "document.documentElement.scrollWidth - window.innerWidth"
                assert browser.run(f"return {wide}") <= 0, page
                assert browser.complaints() == [], page
            assert browser.hosts() <= {host}
