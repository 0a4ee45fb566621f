"""Waiting for another process without a clock: until it is ready, until it ends, or until it has plainly gone wrong.

A busy machine makes a process late and not wrong, so what is limited is the process's own computing, and standing still.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMPUTING = 600.0  # seconds of its own that a child may need
STILL = 300.0  # seconds in which it computes nothing at all


def wait_for(ready: Callable[[], Any], what: str, child: subprocess.Popen[Any]) -> None:
    """Return once `ready()`; fail, saying `what` was waited for, if `child` ends first, stands still or computes for ever."""
    spent, since = 0.0, time.monotonic()
    while not ready():
        if child.poll() is not None:
            if ready():  # between the two looks
                return
            told = child.stderr.read() if child.stderr is not None else ""
            raise AssertionError(f"The process ended ({child.returncode}) before {what}: {told}")
        now = _computed(child.pid)
        if now != spent:
            spent, since = now, time.monotonic()
        if spent > COMPUTING:
            raise AssertionError(f"The process computed for {spent:.0f} s without {what}.")
        if time.monotonic() - since > STILL:
            raise AssertionError(f"The process stood still for {STILL:.0f} s before {what}.")
        time.sleep(0.02)


def _computed(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # just ended, or no /proc: then only its end is noticed
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
