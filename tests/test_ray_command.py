"""`--engine ray` on the command line: a cluster of this machine, started for the fit and gone after it."""

from __future__ import annotations

import signal

import pytest

from runs import arrays_in, succeed

pytest.importorskip("ray", reason="the extra sfumato[ray] is not installed")
from sfumato.engines import ray as rays


@pytest.mark.slow
def test_the_command_line_starts_a_cluster_and_ends_it(tmp_path):
    ray = rays._package()
    assert not ray.is_initialized()
    handler = signal.getsignal(signal.SIGTERM)
    train = arrays_in(tmp_path, train=100)["train"]
    words = ("fit", "merf", "--data", train, "--classes", 2, "--epsilon", 5, "--delta", "1e-5")
    tiny = ("--set", "features=64", "--set", "steps=12", "--engine", "ray", "--quiet")
    result = succeed(*words, *tiny, "--out", tmp_path / "run")
    assert result.stdout.strip() == str(tmp_path / "run")
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is handler
