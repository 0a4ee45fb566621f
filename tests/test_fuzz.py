"""No call, however hostile, ends in a traceback or hangs: a slice of the fuzz harness, and that the harness itself can tell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from sfumato.cli import main as cli
from sfumato.errors import BadInput
from sfumato.testing import fuzz
from sfumato.testing.fuzz import BUG, Call, Outcome, make_call, run, summary


@pytest.mark.parametrize("calls", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_hostile_calls_end_in_work_or_one_sentence(tmp_path: Path, calls: int) -> None:
    out = tmp_path / "found.json"
    words = ["--calls", str(calls), "--seed", "12", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "sfumato.testing.fuzz", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert out.exists(), done.stderr
    found = json.loads(out.read_text())
    assert found["offending"] == []
    assert (found["calls"], found["tracebacks"], found["hangs"]) == (calls, 0, 0)
    assert done.returncode == 0
    # It tries things: some work, and several kinds of refusal occur.
    assert found["ended well"] > calls / 10
    assert len(found["one-sentence errors by exit code"]) > 1


def test_a_call_is_decided_by_its_number_and_seed_alone() -> None:
    assert [make_call(i, 5) for i in range(40)] == [make_call(i, 5) for i in range(40)]
    assert [make_call(i, 5) for i in range(40)] != [make_call(i, 6) for i in range(40)]


def test_every_command_and_a_new_option_are_tried_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @click.command()
    @click.argument("place", type=click.Path(path_type=Path))
    @click.option("--depth", type=click.IntRange(1), required=True)
    def dig(place: Path, depth: int) -> None: ...

    monkeypatch.setitem(cli.app.commands, "dig", dig)
    drawn = [make_call(i, 0).words for i in range(1500)]
    assert {" ".join(w[:2]) if w[:1] == ("data",) else w[0] for w in drawn if w} >= {
        *(name for name in cli.app.commands if name != "data"),
        "data list",
        "data get",
        "data info",
    }
    digging = [w for w in drawn if w[:1] == ("dig",)]
    assert len({w for w in digging if any(word.startswith("--depth") for word in w)}) > 10


def raise_(error: Exception) -> None:
    raise error


def raise_key_error(*_: object, **__: object) -> None:
    raise KeyError("x")


def outcome_of(call: Call, tmp_path: Path, **more: float) -> Outcome:
    return run(call, tmp_path, tmp_path / "scratch", 0, **more)


def test_the_harness_tells_an_error_of_ours_from_a_bug_a_crash_and_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = {
        "well": lambda _: None,
        "refused": lambda _: raise_(BadInput("A is wrong; use B.")),
        "bug": raise_key_error,
        "crash": lambda _: os.kill(os.getpid(), signal.SIGKILL),
        "hang": lambda _: time.sleep(3600),
        "litter": lambda _: Path(".a.12345678.part").mkdir(),
    }
    monkeypatch.setattr(fuzz, "PYTHON", tried)
    found = {
        name: outcome_of(Call(0, function=name), tmp_path, seconds=0.5 if name == "hang" else 60)
        for name in tried
    }
    assert {name: o.bug.partition(" ")[0] for name, o in found.items()} == {
        "well": "",
        "refused": "",
        "bug": "traceback",
        "crash": "killed",
        "hang": "hang",
        "litter": "left",
    }
    assert (found["refused"].code, found["bug"].code) == (2, BUG)
    told = summary(list(found.values()))
    assert (told["calls"], told["ended well"], told["tracebacks"], told["hangs"]) == (6, 1, 3, 1)
    assert told["one-sentence errors by exit code"] == {"2": 1}


def test_a_bug_behind_the_command_line_is_seen_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfumato.cli.judge.write_page", raise_key_error)
    outcome = outcome_of(Call(0, words=("report", "x")), tmp_path)
    assert outcome.bug == "traceback"
    assert "in raise_key_error" in outcome.told
