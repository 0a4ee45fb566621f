"""The studio: its pages tell what run folders hold, nobody else gets at them, and nothing else is read or loaded."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import ENTER, RIGHT, TAB, Browser, chromium, needs_driver, served
from data import digits
from runs import refused, succeed
from sfumato.data import Dataset
from sfumato.methods import Merf
from sfumato.privacy import Budget
from sfumato.progress import Progress, Stage

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")
pytest.importorskip("httpx", reason="httpx, of Starlette's test client, is not installed")

from starlette.testclient import TestClient

from sfumato.studio.app import studio
from sfumato.studio.folder import look

TOKEN = "the-token"
HOST = "127.0.0.1:8123"
TINY: dict[str, Any] = {"features": 32, "steps": 20}


class Stopping(Progress):
    """Ends the training in the middle, as Ctrl-C would."""

    @contextlib.contextmanager
    def stage(self, title: str, total: float) -> Iterator[Stage]:
        done = 0.0

        class Middle(Stage):
            def advance(self, amount: float = 1.0, **facts: float | str) -> None:
                nonlocal done
                done += amount
                if done >= 10 and total == TINY["steps"]:
                    raise KeyboardInterrupt

        yield Middle()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one method at two ε, an unfinished one, a ledger, a damaged folder; the data are nowhere to be found."""
    root = tmp_path_factory.mktemp("studio") / "runs"
    data = digits(200)
    for epsilon in (2.0, 8.0):
        budget = Budget(epsilon=epsilon, delta=1e-5)
        Merf(**TINY).fit(data, budget, out=root / f"eps-{epsilon:g}")
    names = ("accuracy.logreg", "baseline.majority")
    for epsilon, value in ((2, 0.41), (8, 0.77)):
        found = [
            {"name": n, "value": v, "low": v - 0.02, "high": v + 0.02, "source": "real data x"}
            for n, v in zip(names, (value, 0.1), strict=True)
        ]
        (root / f"eps-{epsilon}" / "metrics.json").write_text(json.dumps({"metrics": found}))
    with pytest.raises(KeyboardInterrupt):
        Merf(**TINY).fit(
            data, Budget(epsilon=1, delta=1e-5), out=root / "sub" / "going", progress=Stopping()
        )
    succeed("ledger", "init", root / "book", "--epsilon", 3, "--delta", 1e-5)
    (root / "broken").mkdir()
    (root / "broken" / "config.json").write_text("{")
    succeed("report", root / "eps-8", "-q")
    (root.parent / "secret.txt").write_text("nobody's business")
    (root / "link").symlink_to(root.parent, target_is_directory=True)
    return root


@pytest.fixture
def client(folder: Path) -> TestClient:
    app = studio(folder, TOKEN, {HOST, "localhost:8123"})
    return TestClient(app, base_url=f"http://{HOST}/{TOKEN}/", raise_server_exceptions=False)


def text_of(client: TestClient, page: str, status: int = 200) -> str:
    answer = client.get(page)
    assert answer.status_code == status, answer.text
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text))


# ------------------------------------------------------------------------- who gets in


def test_only_whoever_knows_the_token_finds_anything(folder):
    app = studio(folder, TOKEN, {HOST})
    outside = TestClient(app, base_url=f"http://{HOST}")
    assert outside.get(f"/{TOKEN}/").status_code == 200
    for path in ("/", "/studio.js", "/run", "/other-token/", f"/{TOKEN}x/", f"/{TOKEN[:-1]}/"):
        answer = outside.get(path)
        assert answer.status_code == 404
        assert "eps-2" not in answer.text


@pytest.mark.parametrize(
    ("verb", "headers"),
    [
        ("GET", {"Host": "evil.example:8123"}),  # a name that was made to point to this machine
        ("GET", {"Host": "127.0.0.1:9999"}),
        ("GET", {"Host": ""}),
        ("GET", {"Origin": "http://evil.example"}),
        ("GET", {"Origin": "null"}),
        ("GET", {"Sec-Fetch-Site": "cross-site"}),
        ("GET", {"Sec-Fetch-Site": "same-site"}),
        ("POST", {}),
        ("DELETE", {}),
        ("OPTIONS", {"Origin": "http://evil.example"}),
    ],
)
def test_other_hosts_origins_and_verbs_are_refused(client, verb, headers):
    answer = client.request(verb, "plan", headers=headers)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert client.get("plan", headers={"Origin": f"http://{HOST}"}).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        "../secret.txt",
        "..",
        "/etc",
        "link",
        "link/secret.txt",
        "eps-2/../..",
        "eps-2\0",
        "",
        "%2e%2e",
    ],
)
@pytest.mark.parametrize("page", ["run", "report", "samples", "comparison"])
def test_no_name_leads_out_of_the_folder(client, page, name):
    answer = client.get(page, params={"run": name})
    if not (page == "samples" and name == ""):  # which means: any
        assert answer.status_code == 404
    assert "nobody" not in answer.text
    for path in (f"/{TOKEN}/../secret.txt", f"/{TOKEN}/..%2fsecret.txt", f"/{TOKEN}//etc/passwd"):
        assert client.get(f"http://{HOST}{path}").status_code == 404


def test_links_are_not_followed(folder):
    assert not [name for name in look(folder).runs if name.startswith("link")]


def test_pages_forbid_everything_from_elsewhere_and_reports_run_nothing(client, folder):
    page = client.get("")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'")
    assert "script" not in policy  # so the default holds for scripts
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cache-control"] == "no-store"
    for address in ("", "run?run=eps-2", "samples", "plan", "compare?run=eps-2&run=eps-8"):
        text = client.get(address).text
        assert not re.search(r"https?://|<style|\son\w+=|<script>", text)
    sent = folder / "eps-2" / "report.html"
    sent.write_text("<script>alert(1)</script>")
    try:
        answer = client.get("report?run=eps-2")
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert "sandbox" in answer.headers["content-security-policy"]
        assert "allow-scripts" not in answer.headers["content-security-policy"]
    finally:
        sent.unlink()


# ------------------------------------------------------------------------- what it tells


def test_runs_are_listed_with_their_state(client):
    text = text_of(client, "")
    for words in ("eps-2", "eps-8", "sub/going", "step 10 of 20", "77.0 %", "one record", "merf"):
        assert words in text, words
    assert re.search(r"broken There is no \S+statement\.json", text)  # why it cannot be read
    assert "computed on real data, not covered by ε" in text
    assert "data-going" in client.get("").text


def test_a_run_tells_its_guarantee_and_an_unfinished_one_its_progress(client):
    text = text_of(client, "run?run=eps-8")
    assert "(ε = 8, δ = 10⁻⁵)-differentially private for one record" in text
    assert "77.0 %" in text and "majority 10.0 %" in text
    going = text_of(client, "run?run=sub/going")
    assert "1 of 1 releases are made; step 10 of 20" in going
    assert "polyline" in client.get("run?run=sub/going&part=1").text
    assert "<html" not in client.get("run?run=sub/going&part=1").text


def test_the_slider_goes_through_runs_of_one_method_by_epsilon(client):
    page = client.get("samples?run=eps-8").text
    names = re.search(r'data-names="([^"]*)"', page)
    assert names is not None
    assert json.loads(names[1].replace("&#34;", '"')) == ["eps-2", "eps-8"]
    assert 'min="0" max="1"' in page and 'value="1"' in page
    assert page.count('role="img"') == 10  # a strip for each class
    one, other = (client.get(f"samples?part=1&run=eps-{e}").text for e in (2, 8))
    assert "ε = 2" in one and "ε = 8" in other
    assert one.split("img src=")[1] != other.split("img src=")[1]
    assert client.get("samples?part=1&run=eps-8").text == other  # the same seed, the same records


def test_the_plan_is_that_of_the_command_line(client, folder):
    """At another ε, a second route to the same noise."""
    words = ["--data", "digits:train", "--epsilon", 0.5, "--delta", "1e-6", "--json"]
    told = json.loads(succeed("plan", "merf", *words).stdout)
    asked = "method=merf&data=digits:train&epsilon=0.5&delta=1e-6&neighbours=zero-out&unit=record"
    text = text_of(client, f"plan?part=1&{asked}")
    for release in told["releases"]:
        assert release["label"] in text
        assert f"{release['noise_std']:.4g}" in text
    assert f"replace-one: ε = {told['epsilon_under']['replace-one']:.4g}"[:22] in text
    assert "for one patient" in text_of(client, f"plan?part=1&{asked}".replace("record", "patient"))
    assert "Warning. delta = 0.01" in text_of(
        client, "plan?part=1&method=merf&data=digits:train&delta=0.01"
    )
    book = text_of(client, "plan?part=1&method=merf&data=eps-2&epsilon=2&ledger=book")
    assert "ε = 0 of 3 is spent" in book and "bring it to 2" in book
    more = text_of(client, "plan?part=1&method=merf&data=eps-2&epsilon=4&ledger=book")
    assert "it would be refused" in more
    measured = text_of(client, "plan?part=1&method=merf&data=eps-2")
    assert "Recommended: mixture" in measured and "On public sets" in measured
    unknown = text_of(client, "plan?part=1&method=merf&data=eps-2&unit=patient")
    assert "Say how many there are" in unknown
    assert "77.0 – 77.0 %" in measured and "not covered by ε" in measured


def test_a_plan_for_the_data_of_a_run_protects_whom_the_run_does(tmp_path):
    """Its number is that of persons: it must not be taken for one of records."""
    data = digits(200)
    whose = np.arange(200) // 4
    of_persons = Dataset.from_arrays(data.images, data.labels, classes=10, unit=whose)
    Merf(**TINY).fit(of_persons, Budget(epsilon=1, delta=1e-5), out=tmp_path / "one")
    app = studio(tmp_path, TOKEN, {HOST})
    there = TestClient(app, base_url=f"http://{HOST}/{TOKEN}/", raise_server_exceptions=False)
    page = there.get("plan?method=merf&data=one").text
    assert 'name="unit" value="unit"' in page
    told = text_of(there, "plan?part=1&method=merf&data=one")
    assert "50 units" in told and "for one unit" in told
    other = text_of(there, "plan?part=1&method=merf&data=one&unit=record")
    assert (
        "50 units" not in other and "50 records" not in other and "Say how many there are" in other
    )


@pytest.mark.parametrize(
    "asked",
    [
        *("epsilon=x", "epsilon=-1", "delta=2", "method=nothing", "data=nothing"),
        *("ledger=nothing", "neighbours=nothing", "size=many", "epsilon=nan", "epsilon=1e999"),
    ],
)
def test_a_wrong_plan_gets_one_sentence(client, asked):
    key = asked.partition("=")[0]
    base = {"method": "merf", "data": "digits:train", "epsilon": "1"}
    words = "&".join(f"{k}={v}" for k, v in base.items() if k != key)
    answer = client.get(f"plan?part=1&{words}&{asked}")
    assert answer.status_code == 200
    assert answer.text.count('role="alert"') == 1
    assert "Traceback" not in answer.text


def test_runs_stand_side_by_side(client):
    text = text_of(client, "compare?run=eps-2&run=eps-8&run=nothing")
    assert "41.0 % 77.0 %" in text
    assert "Choosing a run by these numbers is not covered either." in text
    assert client.get("compare?run=eps-2&run=eps-8").text.count('class="mark') == 2
    assert "Tick two or more." in text_of(client, "compare")


def test_a_run_that_is_not_private_says_so_wherever_it_is_shown(tmp_path):
    Merf(**TINY).fit(digits(200), Budget.none(delta=1e-5), out=tmp_path / "open")
    client = TestClient(studio(tmp_path, TOKEN, {HOST}), base_url=f"http://{HOST}/{TOKEN}/")
    for page in ("", "run?run=open", "samples", "samples?part=1", "compare?run=open"):
        assert "NOT PRIVATE" in client.get(page).text, page


def test_a_report_is_served_as_it_is(client, folder):
    assert client.get("report?run=eps-8").text == (folder / "eps-8" / "report.html").read_text()
    assert "No report yet" in text_of(client, "report?run=eps-2", status=404)


def test_an_empty_folder_says_how_to_begin(tmp_path):
    client = TestClient(studio(tmp_path, TOKEN, {HOST}), base_url=f"http://{HOST}/{TOKEN}/")
    assert "sfumato fit mixture" in text_of(client, "")
    assert text_of(client, "samples", status=404)
    assert "No run is finished" in text_of(client, "compare")
    assert client.get("plan").status_code == 200


def test_names_from_folders_are_escaped(folder, tmp_path):
    evil = tmp_path / "<img src=x onerror=alert(1)>"
    evil.mkdir()
    (evil / "config.json").write_text("{")
    client = TestClient(studio(tmp_path, TOKEN, {HOST}), base_url=f"http://{HOST}/{TOKEN}/")
    for page in ("", "plan"):
        text = client.get(page).text
        assert "<img src=x" not in text and "&lt;img src=x" in text


def test_nothing_is_written(client, folder):
    def everything() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    before = everything()
    for page in ("", "run?run=eps-2", "samples", "plan", "compare?run=eps-2&run=eps-8"):
        client.get(page)
    assert everything() == before


# ------------------------------------------------------------------------- the command


def test_what_is_no_folder_or_a_port_in_use_gets_one_sentence(tmp_path):
    import socket

    assert "There is no folder" in refused(2, "studio", tmp_path / "nothing")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "--port" in refused(2, "studio", tmp_path, "--port", port)


def test_without_the_extra_the_command_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "sfumato[studio]" in refused(2, "studio", tmp_path)


# ------------------------------------------------------------------------- a real browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder) as found:
        yield found


@pytest.mark.browser
@needs_driver
@pytest.mark.parametrize(
    ("width", "dark"), [(1280, False), (390, False), (1280, True), (390, True)]
)
def test_every_page_fits_is_silent_and_asks_nobody_else(browser, address, width, dark):
    browser.settle()
    browser.face(width=width, dark=dark)
    seen = set()
    for page in (
        *("", "run?run=eps-8", "run?run=sub/going", "samples", "plan?data=digits:train"),
        *("compare?run=eps-2&run=eps-8", "report?run=eps-8"),
    ):
        browser.open(address + page)
        browser.until("document.readyState === 'complete' && document.querySelector('main h1')")
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert browser.run(f"return {wide}") == 0, page
        back = browser.run("return getComputedStyle(document.body).backgroundColor")
        light = sum(int(n) for n in re.findall(r"\d+", back)[:3]) > 384
        assert light is not dark, (page, back)
        assert browser.complaints() == [], page
        seen |= browser.hosts()
    assert seen == {address.split("/")[2]}


@pytest.mark.browser
@needs_driver
def test_the_keyboard_moves_the_slider_and_the_plan(browser, address):
    browser.settle()
    browser.face()
    browser.open(address)
    browser.until("document.querySelector('main h1')")
    browser.press(TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    browser.press(ENTER)
    browser.until("document.activeElement.id === 'main'")

    browser.open(address + "samples?run=eps-2")
    browser.run("document.getElementById('place').focus()")
    browser.press(RIGHT)
    browser.until("document.getElementById('shown').textContent.includes('ε = 8')")
    assert browser.run("return document.getElementById('epsilon').textContent") == "8"
    valued = "document.getElementById('place').getAttribute('aria-valuetext')"
    assert browser.run(f"return {valued}") == "ε = 8"
    browser.until("location.search.includes('eps-8')")

    browser.open(address + "plan?method=merf&data=eps-2&epsilon=1")
    before = browser.run("return document.getElementById('planned').textContent")
    assert "ε = 1," in before
    browser.run("document.querySelector('[data-power]').focus()")
    browser.press(RIGHT)
    browser.until("document.getElementById('planned').textContent.includes('ε = 1.3,')")
    browser.run("document.querySelector('[name=epsilon]').focus()")
    browser.press("\ue010", "\ue003", "\ue003", "\ue003", "x")  # to its end, away with it
    browser.until("document.querySelector('#planned [role=alert]')")
    assert browser.complaints() == []


@pytest.mark.browser
@needs_driver
def test_the_progress_of_a_fit_is_seen_as_it_ends(browser, folder, tmp_path):
    import shutil

    shutil.copytree(folder / "sub" / "going", tmp_path / "going")
    browser.settle()
    with served(tmp_path) as address:
        browser.face()
        browser.open(address + "run?run=going")
        browser.until("document.querySelector('main progress')")
        data = digits(200)
        budget = Budget(epsilon=1, delta=1e-5)
        Merf(**TINY).fit(data, budget, out=tmp_path / "going", resume=True)
        browser.until("document.querySelector('main').textContent.includes('Best guess')")
        assert browser.run("return document.querySelector('main progress')") is None
        assert browser.complaints() == []
        browser.settle()


@pytest.mark.parametrize("size", ["inf", "nan", "1e400", "-5", "0", "many"])
def test_a_plan_for_no_number_of_records_is_a_sentence(size: str) -> None:
    from sfumato.studio import plans
    from sfumato.studio.folder import Found

    asked = plans.Question(data="digits", method="merf", size=size)
    assert "n must be a number" in plans.answer(asked, Found(), []).error
