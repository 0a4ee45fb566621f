"""Waiting for another process: for as long as it lives and works, however slow the machine."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

_HANGS = 1800  # seconds: a stalled machine is waited for, a test that hangs for ever is not


def wait_for(ready: Callable[[], bool], what: str, child: subprocess.Popen) -> None:
    """Return when `ready()`; fail, saying for what, if the child ends before."""
    begun = time.monotonic()
    while not ready():
        assert child.poll() is None or ready(), f"the process ended before {what}"
        assert time.monotonic() - begun < _HANGS, f"waited {_HANGS} s for {what}"
        time.sleep(0.02)
