"""The command line from outside: what is printed where, which exit code, and that no mistake ends in a traceback."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from safetensors import SafetensorError

from runs import BUDGET, refused, run, succeed
from sfumato import __version__
from sfumato.cli import fit as fit_cli
from sfumato.cli import judge as judge_cli
from sfumato.cli import main as cli
from sfumato.errors import (
    BadInput,
    CorruptArtifact,
    DataUnavailable,
    OutOfResources,
    SfumatoError,
)

VERBS = tuple(cli.app.commands)
PLAN = ("plan", "merf", "--data", "digits:train")
FIT = ("fit", *PLAN[1:], *BUDGET)


def raise_(error: BaseException) -> None:
    raise error


# ── help ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_relations_offered_are_those_of_the_wall() -> None:
    from sfumato.cli.options import NEIGHBOURS
    from sfumato.privacy import Neighbours

    assert set(NEIGHBOURS) == {relation.value for relation in Neighbours}


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from sfumato.cli.main import app\n"
        "try: app.main(['--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'sklearn', 'scipy', 'numpy', 'matplotlib', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        # What a fit needs of them, and no more: scikit-learn alone takes a second.
        "from sfumato.methods import find_methods; from sfumato.privacy import noise\n"
        "assert find_methods() and len(noise.discrete_gaussian(2, 1.0)) == 2\n"
        "assert not {'sklearn', 'pandas', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_no_command_shows_help_and_lists_every_verb() -> None:
    assert len(VERBS) >= 14
    shown = succeed().stdout
    for verb in VERBS:
        assert re.search(rf"^  {verb} ", shown, re.MULTILINE)


def examples(verb: str) -> list[list[str]]:
    text = run(verb, "--help").stdout if verb else run("--help").stdout
    block = text.split("Example:\n", 1)[1].split("\n\n", 1)[0]
    return [shlex.split(line.strip()) for line in block.splitlines()]


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_every_help_has_an_example_whose_words_exist(verb: str) -> None:
    found = examples(verb)
    assert found
    for words in found:
        assert words[0] == "sfumato"
        assert words[1] in cli.app.commands
        if verb:
            assert words[1] == verb
        command = cli.app.commands[words[1]]
        # Parsing fails on an unknown option, a missing one, or a value of the wrong type; nothing is run.
        command.make_context(verb, words[2:], resilient_parsing=False)


@pytest.mark.parametrize("verb", VERBS)
def test_every_default_is_shown(verb: str) -> None:
    text = run(verb, "--help").stdout
    for parameter in cli.app.commands[verb].params:
        if not isinstance(parameter, click.Option) or parameter.hidden or parameter.is_flag:
            continue
        assert parameter.help, f"{verb} {parameter.name} has no help"
        if parameter.default not in (None, ()) and str(parameter.default) != "Sentinel.UNSET":
            assert re.search(rf"\[default:\s+{re.escape(str(parameter.default))}", text), (
                parameter.name
            )


@pytest.mark.parametrize("verb", ["plan", "fit"])
@pytest.mark.parametrize("missing", ["--epsilon", "--delta"])
def test_epsilon_and_delta_have_no_default(verb: str, missing: str) -> None:
    words = [verb, *PLAN[1:], *BUDGET, *(("--out", "x") if verb == "fit" else ())]
    at = words.index(missing)
    assert missing in refused(2, *words[:at], *words[at + 2 :])


def test_version_is_the_package_version() -> None:
    assert __version__ in succeed("--version").stdout


# ── mistakes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "hints"),
    [
        (["fti"], ["fit"]),
        (["fit"], ["METHOD", "sfumato fit --help"]),
        *(
            ([*PLAN, "--epsilon", value, "--delta", "1e-5"], [hint])
            for value, hint in [
                ("one", "one"),
                *(
                    (senseless, "epsilon")
                    for senseless in ("0", "nan", "infinity", "1e999", "-inf", "-1")
                ),
            ]
        ),
        *(([*PLAN, "--epsilon", "1", "--delta", value], ["delta"]) for value in ("0", "1")),
        *(
            ([*PLAN, *BUDGET, *more.split()], hints)
            for more, *hints in [
                ("--neighbors zero-out", "--neighbours"),
                ("--neighbours swap", "zero-out"),
                ("--set steps", "KEY=VALUE"),
                ("--set =3", "KEY=VALUE"),
                ("--set nonsense=3", "nonsense", "steps"),
                ("--set steps=many", "steps"),
                ("--set steps=1 --set steps=2", "twice"),
            ]
        ),
        (["plan", "nerf", "--data", "digits:train", *BUDGET], ["nerf", "merf"]),
        *(
            (["plan", "merf", "--data", *data.split(), *BUDGET], [hint])
            for data, hint in [
                ("digit:train", "digits"),
                ("digits:validation", "digits:train"),
                ("no/such/folder", "no/such/folder"),
                ("x/ --classes a,,b", "--classes"),
                ("x/ --channels 2", "--channels"),
                ("x/ --schema no-such.json", "no-such.json"),
            ]
        ),
        (["methods", "nerf"], ["nerf", "merf"]),
        (["sample", "no/run", "-n", "5", "--out", "x.npz"], ["no/run", "sfumato fit"]),
        (["sample", "no/run", "-n", "0", "--out", "x.npz"], ["-n"]),
        (["sample", "no/run", "-n", "5", "--out", "x.png"], [".npz"]),
        (["report", "no/run"], ["no/run"]),
        (["report", Path(__file__).parent], ["not a run folder"]),
        (["evaluate", "no/run", "--real", "digits:test"], ["no/run"]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(words: list[str], hints: list[str]) -> None:
    line = refused(2, *words)
    assert all(hint in line for hint in hints)


@pytest.mark.parametrize(
    "words", [FIT, (*FIT, "--resume"), ("demo", "--data", "digits", "--quiet")], ids=" ".join
)
def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path, words: Any) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert str(tmp_path) in refused(6, *words, "--out", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


# ── how unexpected ends are told ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (BadInput("A is wrong; use B."), 2, "Error: A is wrong; use B."),
        (DataUnavailable("None\nanswered; try again."), 3, "Error: None answered; try again."),
        (CorruptArtifact("It is damaged; make it again."), 5, "damaged"),
        (SfumatoError("Odd."), 1, "Error: Odd."),
        (MemoryError(), 7, "out of memory"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), 7, "disk is full"),
        (SafetensorError("Cannot allocate memory (os error 12)"), 7, "out of memory"),
        (sqlite3.OperationalError("database or disk is full"), 7, "disk is full"),
        (sqlite3.OperationalError("disk I/O error"), 7, "disk failed"),
        (OSError(errno.EMFILE, "Too many open files"), 7, "file handles"),
        (OSError(errno.EFBIG, "File too large", "runs/x"), 7, "using runs/x"),
        (OSError("4096 requested and 512 written"), 7, "disk is full"),
        (ImportError("libx.so: failed to map segment from shared object"), 7, "out of memory"),
        (RuntimeError("can't start new thread"), 7, "threads"),
        (OutOfResources("disk", "runs/x"), 7, "using runs/x"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"),
            7,
            "out of memory",
        ),
        (OSError(errno.ENOSPC, "No space left on device", "runs/x/release"), 7, "disk is full"),
        (
            PermissionError(errno.EACCES, "Permission denied", "runs/x"),
            2,
            "runs/x: Permission denied",
        ),
        (KeyError("secret value of a record"), 1, "sfumato --debug report x"),
        # A value that speaks of memory is no lack of it.
        (ValueError("unknown word 'out of memory'"), 1, "ValueError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_every_error_ends_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, words: str
) -> None:
    monkeypatch.setattr(judge_cli, "write_page", lambda *_, **__: raise_(error))
    line = refused(code, "report", "x")
    assert words in line
    # An exception we did not write may carry a private value, so only its type is shown.
    assert "secret" not in line


def wrapped(error: Exception, cause: BaseException, explicit: bool) -> Exception:
    try:
        try:
            raise cause
        except type(cause) as caught:
            if explicit:
                raise error from caught
            raise error  # noqa: B904
    except type(error) as made:
        return made


@pytest.mark.parametrize("explicit", [True, False])
def test_a_full_disk_is_told_even_if_a_reader_or_writer_took_it_for_something_else(
    monkeypatch: pytest.MonkeyPatch, explicit: bool
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "runs/x")
    for error in (CorruptArtifact("It is damaged; restore it."), RuntimeError("cannot encode")):
        made = wrapped(error, full, explicit)
        monkeypatch.setattr(judge_cli, "write_page", lambda *_, made=made, **__: raise_(made))
        line = refused(7, "report", "x")
        assert "disk is full" in line and "runs/x" in line
    # Whoever caught a lack of memory and spoke of the file that asked for it knew more.
    made = wrapped(BadInput("x.npz claims too much; check it."), MemoryError(), explicit)
    monkeypatch.setattr(judge_cli, "write_page", lambda *_, **__: raise_(made))
    assert "claims too much" in refused(2, "report", "x")


@pytest.mark.parametrize(
    ("words", "hints"),
    [
        (["report", "a\0b"], ["NUL"]),
        (["sample", "x", "-n", "1", "--out=a\0b.npz"], ["--out", "NUL"]),
        (["report", "\ud800"], ["half a character"]),
        (["report", ""], ["empty"]),
        (["sample", "x", "-n", "1", "--out="], ["--out", "empty"]),
        (["report", "x/" * 3000], ["File name too long"]),
        (["report", "x\x1b[2J\ny"], ["\\x1b[2J"]),
        (["report", "caf\udce9"], ["caf"]),
    ],
    ids=ascii,
)
def test_what_no_path_can_be_is_refused_in_printable_words(
    words: list[str], hints: list[str]
) -> None:
    line = refused(2, *words)
    assert all(hint in line for hint in hints)
    assert line.isprintable()
    assert len(line) < 7_000


WRITING = """
import os, sys, time
from pathlib import Path
from sfumato.cli import judge as judge_cli
from sfumato.cli import main as cli
from sfumato.files import atomic_path

def page(*_, **__):
    with atomic_path(Path(sys.argv[1]) / "page.html") as temporary:
        temporary.write_text("half")
        worker = os.fork() if "fork" in sys.argv else 0
        os.write(1, f"writing {worker}\\n".encode())
        time.sleep(3600)

judge_cli.write_page = page
cli.app.main(["report", "x"])
"""


def writing(folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITING, str(folder), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGINT, 130, "Interrupted"), (signal.SIGTERM, 143, "Ended from outside")],
)
def test_signals_end_in_one_sentence_and_leave_nothing_half_written(
    tmp_path: Path, number: int, code: int, words: str
) -> None:
    child = writing(tmp_path)
    assert child.stdout.readline().startswith("writing")
    assert len(list(tmp_path.iterdir())) == 1
    child.send_signal(number)
    _, told = child.communicate()
    assert child.returncode == code
    assert told.split() == f"{words}; nothing is lost: type sfumato report x to go on.".split()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_worker_is_ended_by_sigterm_as_ever(tmp_path: Path) -> None:
    child = writing(tmp_path, "fork")
    told = sorted(int(child.stdout.readline().split()[1]) for _ in range(2))
    assert told[0] == 0
    os.kill(told[1], signal.SIGTERM)
    child.send_signal(signal.SIGTERM)
    assert child.wait() == 143
    child.communicate()
    assert list(tmp_path.iterdir()) == []


def test_a_host_program_keeps_its_own_handler_of_sigterm() -> None:
    def mine(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        run("--version")
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)
    run("--version")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("where", "code", "told"),
    [
        (">/dev/full", 7, "The disk is full"),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        (">/dev/full 2>/dev/full", 7, ""),
    ],
)
def test_streams_that_are_full_or_closed_are_no_bug(where: str, code: int, told: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m sfumato --help {where}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=300)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert told in done.stderr


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_cli, "write_page", lambda *_, **__: raise_(KeyError("inside")))
    for words in (["--debug", "report", "x"], ["report", "x", "--debug"]):
        result = run(*words)
        assert isinstance(result.exception, KeyError)
        assert result.exc_info is not None
        assert result.exc_info[2] is not None


def test_ctrl_c_gives_the_exact_command_that_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fit_cli, "load_data", lambda *_, **__: raise_(KeyboardInterrupt()))
    out = tmp_path / "my run"
    result = run(*FIT, "--out", out)
    assert result.exit_code == 130
    command = (
        f"sfumato fit merf --data digits:train --epsilon 1 --delta 1e-5 --out '{out}' --resume"
    )
    assert f"Interrupted; nothing is lost: type {command} to go on." in result.stderr


def test_a_reader_who_leaves_early_causes_no_noise() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sfumato", "--help"],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=300,
        )
    finally:
        os.close(write)
    assert done.stderr == b""
