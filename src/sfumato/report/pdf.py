"""A page as PDF, printed by a browser that is installed already: the page has a face for paper, and browsers print it best.

A library would be a second layout of the same page to keep, and the good ones need system libraries of their own. What a browser
writes into a PDF besides the page is when it did so; that is set to 1980, since no file of a run tells a time.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from sfumato.errors import BadInput
from sfumato.files import atomic_path

_BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "microsoft-edge",
    "msedge",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-pdf-header-footer",
)
_SECONDS = 120
# Of the same length, so that the file's table of offsets stays right.
_CLOCK, _NO_CLOCK = re.compile(rb"\(D:\d{14}"), b"(D:19800101000000"


def find_browser() -> str | None:
    return next((found for name in _BROWSERS if (found := shutil.which(name))), None)


def write_pdf(page: Path) -> Path:
    """`page`, an HTML file that needs nothing else, as a PDF of the same name beside it."""
    browser = find_browser()
    if browser is None:
        raise BadInput(
            f"A PDF is printed by Chromium, Chrome or Edge, and none is installed; install one, or open {page} in any browser "
            "and print it."
        )
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "page.pdf"
        # Chromium's own sandbox does not start for root; the page has no script and loads nothing.
        root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        words = [browser, *_FLAGS, *root, f"--user-data-dir={folder}/profile"]
        words += [f"--print-to-pdf={made}", page.resolve().as_uri()]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(words, capture_output=True, timeout=_SECONDS, check=False)
        content = made.read_bytes() if made.is_file() else b""
    if not content.startswith(b"%PDF-"):
        raise BadInput(
            f"{browser} did not print the page; open {page} in any browser and print it from there."
        )
    out = page.with_suffix(".pdf")
    with atomic_path(out, mode=0o600) as temporary:
        temporary.write_bytes(_CLOCK.sub(_NO_CLOCK, content))
    return out
