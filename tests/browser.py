"""A real browser for tests: Chromium by its driver, spoken to over plain HTTP (the W3C's WebDriver), without another library."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from waits import wait_for

DRIVER = shutil.which("chromedriver")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_driver = pytest.mark.skipif(
    DRIVER is None or CHROMIUM is None, reason="no chromium with its chromedriver is installed"
)
TAB, ENTER, RIGHT = "\ue004", "\ue007", "\ue014"


class Browser:
    def __init__(self, port: int, profile: Path) -> None:
        self._root = f"http://127.0.0.1:{port}"
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
        flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        flags += [f"--user-data-dir={profile}"]
        told = self._ask(
            "POST",
            "/session",
            {
                "capabilities": {
                    "alwaysMatch": {
                        "goog:chromeOptions": {"binary": CHROMIUM, "args": flags},
                        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
                    }
                }
            },
        )
        self._session = f"/session/{told['sessionId']}"

    def _ask(self, verb: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data=data, method=verb)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def do(self, path: str, **body: Any) -> Any:
        return self._ask("POST", self._session + path, body)

    def devtools(self, command: str, **params: Any) -> Any:
        return self.do("/goog/cdp/execute", cmd=command, params=params)

    def face(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """How wide the window is, and whether the reader likes it dark."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        self.do("/url", url=address)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.do("/execute/sync", script=script, args=list(arguments))

    def press(self, *keys: str) -> None:
        strokes = [{"type": kind, "value": k} for k in keys for kind in ("keyDown", "keyUp")]
        self.do("/actions", actions=[{"type": "key", "id": "keys", "actions": strokes}])

    def until(self, script: str, seconds: float = 30.0) -> Any:
        """What `script` returns once that is true."""
        end = time.monotonic() + seconds
        while not (found := self.run(f"return ({script})")):
            assert time.monotonic() < end, f"still not so: {script}"
            time.sleep(0.05)
        return found

    def shot(self, path: Path, *, whole: bool = True) -> None:
        told = self.devtools("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(told["data"]))

    def complaints(self) -> list[str]:
        """What the console said since this was last asked."""
        told = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in told]

    def hosts(self) -> set[str]:
        """Every host that a request was sent to since this was last asked."""
        told = self._ask("POST", f"{self._session}/se/log", {"type": "performance"})
        found = set()
        for entry in told:
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = urllib.request.urlparse(message["params"]["request"]["url"])
                if url.scheme not in ("data", "about", "file"):
                    found.add(url.netloc)
        return found

    def settle(self) -> None:
        """Away from every page, and forget what was said so far."""
        self.open("about:blank")
        self.complaints()
        self.hosts()

    def close(self) -> None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            self._ask("DELETE", self._session)


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert DRIVER is not None
    driver = subprocess.Popen(
        [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    browser = None
    try:
        for _ in range(200):
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5).close()
                break
            time.sleep(0.05)
        browser = Browser(port, folder / "profile")
        yield browser
    finally:
        if browser is not None:
            browser.close()
        driver.terminate()
        driver.wait(30)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a studio in a process of its own."""
    words = [sys.executable, "-m", "sfumato", "studio", str(folder)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    lines: list[str] = []
    assert child.stdout is not None
    reader = threading.Thread(target=lambda: lines.extend(iter(child.stdout.readline, "")))
    reader.start()
    try:
        wait_for(lambda: any("http" in line for line in lines), "the address", child)
        yield re.search(r"http://\S+", "".join(lines))[0]
    finally:
        child.terminate()
        child.wait(60)
        reader.join(10)
        child.stdout.close()
