"""What a run folder survives: a kill, a full disk or a power cut at every file operation of a fit, and two processes at once.

    python -m sfumato.testing.crash kill mixture merf gan      # SIGKILL at each operation, then --resume
    python -m sfumato.testing.crash full mixture merf gan      # from each write on the disk is full; then it has room again
    python -m sfumato.testing.crash power mixture merf gan     # every state that a power cut may leave on the disk
    python -m sfumato.testing.crash pairs mixture gan          # fit beside fit, fit beside --resume, two --resume

Needs Linux and `strace`. A fit of a tiny method on scikit-learn's digits runs in a child process whose system calls strace lists;
then the same fit is run again for each of them, struck at that very call, and gone on with. Counted are: stuck (no way to go on),
strays (files that nobody asked for), second answers (two different answers to one charge, or one that was drawn again though it
was kept), lost answers (shown to the method and then gone) and half-written files. All should be 0.

A power cut is replayed from the trace: whatever was not synced may or may not be on the disk, in any combination, and a name is
safe only when its folder was synced. What a run had shown to its method by then must be there.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfumato.files import write_json

FITS = {
    "mixture": ("mixture", "--set", "refine=false"),
    "merf": ("merf", "--set", "features=100", "--set", "steps=6"),
    "gan": (
        "gan",
        *(w for s in ("steps=6", "rate=0.05", "batch=8", "width=4") for w in ("--set", s)),
    ),
}
_CALLS = "openat,write,pwrite64,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,fsync,fdatasync,ftruncate,fchmod"
_PATIENCE = 300.0  # seconds that one fit may take before it counts as hanging


def command(fit: str, run: Path, *, resume: bool = False) -> list[str]:
    words = ["fit", *FITS[fit], "--data", "digits:train", "--epsilon", "1", "--delta", "1e-4"]
    return [*words, "--out", str(run), "--quiet", *(["--resume"] if resume else [])]


# -- children ----------------------------------------------------------------------------------------------------------------


def _child(words: list[str], told: Path, marks: Path | None, ready: int | None = None) -> int:
    """Fork and run the command line there; what is kept is noted in `marks`, outside the run, after it was committed."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        if ready is not None:
            os.read(ready, 1)
        handle = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        if marks is not None:
            _note_answers(marks)
        _draw_quickly()
        from sfumato.cli.main import app

        app.main(words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    finally:
        os._exit(code)


def _draw_quickly() -> None:
    """Ordinary normals for exact ones, which ask the system three quarters of a million times, and strace stops at each.

    What is looked at here is what a run keeps, not what it drew; the operations on its files are the same.
    """
    import numpy as np

    from sfumato.privacy import noise

    random = np.random.default_rng()
    noise._measurement = lambda scale: lambda zeros: np.rint(random.normal(0, scale, len(zeros)))


def _note_answers(marks: Path) -> None:
    from sfumato.privacy import Charge, RunStore

    honest = RunStore._keep
    handle = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def keep(self: RunStore, charge: Charge, step: int, *rest: Any) -> None:
        honest(self, charge, step, *rest)
        if self.folder is not None:
            found = self._answer(charge.label, step)
            assert found is not None
            os.write(handle, f"{os.getpid()}\t{charge.label}\t{step}\t{found.digest}\n".encode())

    RunStore._keep = keep  # type: ignore[method-assign, assignment]


def _wait(child: int) -> int:
    """The exit code; minus the signal that ended it; 1000 for one that hung."""
    begun = time.monotonic()
    while time.monotonic() - begun < _PATIENCE:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 1000


def _run(words: list[str], told: Path, marks: Path | None = None) -> int:
    return _wait(_child(words, told, marks))


def _traced(words: list[str], told: Path, trace: Path, marks: Path | None, *options: str) -> int:
    receive, send = os.pipe()
    child = _child(words, told, marks, ready=receive)
    os.close(receive)
    tracer = subprocess.Popen(
        ["strace", "-f", "-y", "-p", str(child), "-o", trace, "-e", f"trace={_CALLS}", *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr is not None
    while (line := tracer.stderr.readline()) and "attached" not in line:
        pass
    os.write(send, b"x")
    os.close(send)
    code = _wait(child)
    tracer.communicate(timeout=60)
    return code


def _warm(fit: str, place: Path) -> None:
    """One fit in this process, so that its children find everything imported."""
    from sfumato.cli.main import app
    from sfumato.report.verify import verify

    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        app.main(command(fit, place / "warm"))
    verify(place / "warm")


_LINE = re.compile(r"(\d+)\s+(\w+)\((.*)")


def _operations(trace: Path, run: Path) -> list[tuple[str, int, str]]:
    """(call, how many of its kind before and with it, line) of those that may change the run folder, of the main thread."""
    counts: collections.Counter[str] = collections.Counter()
    found = []
    main = ""
    for line in trace.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        main = main or match[1]
        if match[1] != main:
            continue
        counts[match[2]] += 1
        reads = match[2] == "openat" and "O_CREAT" not in line and "O_RDWR" not in line
        if str(run) in line and not reads:
            found.append((match[2], counts[match[2]], line))
    return found


# -- what a folder holds ----------------------------------------------------------------------------------------------------


def answers(run: Path) -> dict[tuple[str, int], str]:
    """Digests by label and step, read from a copy: looking must not repair anything."""
    from sfumato.errors import SfumatoError
    from sfumato.privacy.store import STORE, SavedStore

    if not (run / STORE).exists():
        return {}
    with tempfile.TemporaryDirectory() as place:
        for name in (STORE, f"{STORE}-journal"):
            if (run / name).exists():
                shutil.copy(run / name, Path(place) / name)
        try:
            store = SavedStore(Path(place))
        except SfumatoError:
            return {}
        found = {(a.label, a.step): a.digest for a in store.answers()}
        store.close()
        return found


def strays(run: Path) -> list[str]:
    from sfumato.methods.run import EXPORTS
    from sfumato.privacy.claim import LOCK
    from sfumato.privacy.store import STORE

    if not run.exists():
        return []
    known = {STORE, LOCK, *EXPORTS}
    return [str(p.relative_to(run)) for p in run.rglob("*") if str(p.relative_to(run)) not in known]


def faults_after(run: Path) -> list[str]:
    """What is wrong with a finished run, by its own account."""
    from sfumato.report.verify import verify

    return [c.sentence for c in verify(run).checks if not c.passed]


def marked(marks: Path) -> dict[tuple[str, int], set[str]]:
    """What was kept and then shown to a method, by label and step."""
    found: dict[tuple[str, int], set[str]] = collections.defaultdict(set)
    if marks.exists():
        for line in marks.read_text().splitlines():
            _, label, step, digest = line.split("\t")
            found[label, int(step)].add(digest)
    return found


@dataclass
class Tally:
    """Counts of one experiment, and the first examples of what went wrong."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, name: str, bad: bool, example: str = "") -> None:
        self.counts[name] += bool(bad)
        if bad and len(self.examples) < 10:
            self.examples.append(f"{name}: {example}")


def _judge(
    tally: Tally, run: Path, marks: Path, before: dict, code: int, told: Path, at: str
) -> None:
    after = answers(run)
    message = told.read_text(errors="replace").strip()[-300:]
    tally.add("stuck", code != 0, f"{at} → exit {code}: {message}")
    tally.add("strays", bool(strays(run)), f"{at} → {strays(run)}")
    shown = marked(marks)
    second = [k for k, d in shown.items() if len(d) > 1]
    second += [k for k, d in before.items() if after.get(k) != d]
    tally.add("second answers", bool(second), f"{at} → {second}")
    lost = [k for k, d in shown.items() if after.get(k) not in d]
    tally.add("lost answers", bool(lost), f"{at} → {lost}")
    broken = faults_after(run) if code == 0 else []
    tally.add("not verified", bool(broken), f"{at} → {broken}")


# -- experiments ----------------------------------------------------------------------------------------------------------


def struck(
    fit: str, place: Path, *, full: bool, stride: int = 1, progress: Path | None = None
) -> Tally:
    """The fit, killed at (or with a full disk from) each of its file operations in turn, then gone on with.

    With `progress`, a file that an interrupted sweep over as many operations left is gone on from, and removed at the end.
    """
    tally, told, trace = Tally(), place / "told", place / "trace"
    run, marks = place / "run", place / "marks"
    _warm(fit, place)
    assert _traced(command(fit, run), told, trace, None) == 0, told.read_text()
    calls = [
        o for o in _operations(trace, run) if not full or o[0] in ("write", "pwrite64", "mkdir")
    ]
    calls, done = calls[::stride], 0
    if progress is not None and progress.exists():
        kept = json.loads(progress.read_text())
        if kept["operations"] == len(calls):
            done, tally.examples = kept["done"], kept["examples"]
            tally.counts.update(kept["counts"])
    for at, (call, number, line) in enumerate(calls[done:], done):
        if progress is not None:
            state = {"operations": len(calls), "done": at, "examples": tally.examples}
            write_json(progress, {**state, "counts": dict(tally.counts)})
        shutil.rmtree(run, ignore_errors=True)
        marks.unlink(missing_ok=True)
        what = f"error=ENOSPC:when={number}+" if full else f"signal=KILL:when={number}"
        code = _traced(command(fit, run), told, trace, marks, "-e", f"inject={call}:{what}")
        if not full and code != -signal.SIGKILL:
            tally.counts["not struck"] += 1
            continue
        tally.counts["struck"] += 1
        if full:
            message = told.read_text(errors="replace")
            honest = code in (0, 7) and "bug" not in message and "Traceback" not in message
            tally.add(
                "called otherwise", not honest, f"{line[:150]} → exit {code}: {message[-200:]}"
            )
            half = [s for s in strays(run) if not s.endswith("-journal")]
            tally.add("half files", bool(half), f"{line[:150]} → {half}")
        before = answers(run)
        again = _run(command(fit, run, resume=True), told, marks)
        _judge(tally, run, marks, before, again, told, line[:150])
    if progress is not None:
        progress.unlink(missing_ok=True)
    return tally


def pairs(fit: str, place: Path, *, count: int) -> Tally:
    """Two processes on one folder: fit beside fit, fit beside --resume, two --resume after a kill, in turn."""
    tally, told, other = Tally(), place / "told", place / "other"
    marks = place / "marks"
    _warm(fit, place)
    for number in range(count):
        run = place / f"run{number}"
        marks.unlink(missing_ok=True)
        kind = ("fit beside fit", "fit beside --resume", "two --resume")[number % 3]
        if kind == "two --resume":
            killed = _child(command(fit, run), told, marks)
            while not (run / "run.sqlite").exists():
                time.sleep(0.001)
            time.sleep(random.uniform(0, 0.5))
            os.kill(killed, signal.SIGKILL)
            os.waitpid(killed, 0)
        first = _child(command(fit, run, resume=kind == "two --resume"), told, marks)
        if kind == "fit beside --resume":
            while not (run / "run.sqlite").exists():
                time.sleep(0.001)
        time.sleep(random.choice([0, 0, 0.005, 0.05, 0.2]))
        second = _child(command(fit, run, resume=kind != "fit beside fit"), other, marks)
        codes = sorted((_wait(first), _wait(second)))
        tally.counts["struck"] += 1
        # One does the work; the other is told so (6), or comes late and finds it done.
        tally.add(
            "unexpected ends",
            codes[0] != 0 or codes[1] not in (0, 6),
            f"{kind}: {codes} {told.read_text()} {other.read_text()}",
        )
        _judge(tally, run, marks, {}, codes[0], told, kind)
        shutil.rmtree(run)
    return tally


# -- a power cut ------------------------------------------------------------------------------------------------------------


@dataclass
class _File:
    """An inode: what is on the disk for sure, and what was written since."""

    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(
        default_factory=list
    )  # (place, bytes), or (size, None) for a cut

    def now(self) -> bytes:
        return _applied(self.durable, self.pending)


def _applied(content: bytes, pending: list[tuple[int, bytes | None]]) -> bytes:
    out = bytearray(content)
    for place, data in pending:
        if data is None:
            out[place:] = b""
            out.extend(bytes(place - len(out)))
        else:
            out.extend(bytes(max(0, place + len(data) - len(out))))
            out[place : place + len(data)] = data
    return bytes(out)


class Disk:
    """The run folder as a disk may hold it: names are durable once their folder is synced, contents once their file is."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.names: dict[str, _File | None] = {}  # now; None: a folder
        self.durable: dict[str, _File | None] = {}
        self.pending: list[
            tuple[str, dict[str, _File | None], list[str]]
        ] = []  # (folder, added, removed)

    def create(self, name: str, node: _File | None) -> None:
        self._change(name, {name: node}, [])

    def remove(self, name: str) -> None:
        self._change(name, {}, [n for n in self.names if n == name or n.startswith(name + "/")])

    def rename(self, old: str, new: str) -> None:
        moved = {
            new + n[len(old) :]: v
            for n, v in self.names.items()
            if n == old or n.startswith(old + "/")
        }
        self._change(new, moved, [n for n in self.names if n == old or n.startswith(old + "/")])

    def sync_folder(self, folder: str) -> None:
        kept = []
        for change in self.pending:
            if change[0] == folder:
                self._apply(self.durable, change)
            else:
                kept.append(change)
        self.pending = kept

    def sync(self, name: str) -> None:
        node = self.names.get(name)
        if node is None:
            self.sync_folder(name)
        else:
            node.durable, node.pending = node.now(), []

    def after_a_cut(self, choose: Callable[[], bool]) -> dict[str, bytes | None]:
        """A state that the disk may be in: `choose` decides of everything that was not synced."""
        names = dict(self.durable)
        for change in self.pending:
            if choose():
                self._apply(names, change)
        whole = {n: v for n, v in names.items() if n == self.root or str(Path(n).parent) in names}
        return {
            n: None if v is None else _applied(v.durable, [w for w in v.pending if choose()])
            for n, v in whole.items()
        }

    def _change(self, name: str, added: dict[str, _File | None], removed: list[str]) -> None:
        change = (str(Path(name).parent), added, removed)
        self._apply(self.names, change)
        self.pending.append(change)

    @staticmethod
    def _apply(names: dict[str, _File | None], change: tuple[str, dict, list[str]]) -> None:
        for name in change[2]:
            names.pop(name, None)
        names.update(change[1])


_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_HANDLE = re.compile(r"(?:\d+|AT_FDCWD)<([^>]*)>")


def _text(quoted: str) -> str:
    return bytes.fromhex(quoted.replace("\\x", "")).decode(errors="surrogateescape")


def _replayed(
    trace: Path, run: Path, marks: Path
) -> Iterator[tuple[Disk, set[tuple[str, int, str]], str]]:
    """The disk after every operation, with what had been shown to the method by then."""
    root = str(run)
    disk, shown = Disk(root), set[tuple[str, int, str]]()
    places: dict[str, int] = collections.defaultdict(int)  # by name: where write() goes on
    for line in _whole_lines(trace):
        match = _LINE.match(line)
        if match is None:
            continue
        call, rest = match[2], match[3]
        result = rest.rpartition(" = ")[2].split()[0] if " = " in rest else "-1"
        if result.startswith("-"):
            continue
        quoted = [_text(q) for q in _QUOTED.findall(rest)]
        handle = _HANDLE.search(rest)
        name = _decoded(handle[1]) if handle else ""
        if call == "write" and name == str(marks):
            for mark in quoted[0].splitlines():
                _, label, step, digest = mark.split("\t")
                shown.add((label, int(step), digest))
            continue
        if call in (
            "openat",
            "mkdir",
            "mkdirat",
            "rename",
            "renameat",
            "renameat2",
            "unlink",
            "unlinkat",
            "rmdir",
        ):
            base = name if call.endswith("at") or call == "renameat2" else ""
            paths = [q if q.startswith("/") else str(Path(base or Path.cwd()) / q) for q in quoted]
            if not paths or not (paths[-1] == root or paths[-1].startswith(root + "/")):
                continue
            if call == "openat":
                places[paths[0]] = 0
                if "O_CREAT" in rest and paths[0] not in disk.names:
                    disk.create(paths[0], _File())
                elif "O_TRUNC" in rest and isinstance(disk.names.get(paths[0]), _File):
                    disk.names[paths[0]].pending.append((0, None))  # type: ignore[union-attr]
            elif call.startswith("mkdir"):
                disk.create(paths[0], None)
            elif call.startswith("rename"):
                disk.rename(paths[0], paths[1])
            else:
                disk.remove(paths[0])
        elif name == root or name.startswith(root + "/") or call in ("fsync", "fdatasync"):
            node = disk.names.get(name)
            if call == "pwrite64" and node is not None:
                node.pending.append(
                    (int(rest.rpartition(")")[0].rpartition(", ")[2]), _bytes(rest))
                )
            elif call == "write" and node is not None:
                data = _bytes(rest)
                node.pending.append((places[name], data))
                places[name] += len(data)
            elif call == "ftruncate" and node is not None:
                node.pending.append((int(rest.partition(", ")[2].partition(")")[0]), None))
            elif call in ("fsync", "fdatasync"):
                disk.sync(name)
        else:
            continue
        yield disk, set(shown), line[:150]


def _whole_lines(trace: Path) -> Iterator[str]:
    """strace cuts a call in two when another thread makes one meanwhile; here it stands where it ended."""
    begun: dict[str, str] = {}
    for line in trace.read_text(errors="surrogateescape").splitlines():
        thread = line.partition(" ")[0]
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix("<unfinished ...>")
        elif (rest := re.match(r"\d+\s+<\.\.\. \w+ resumed>(.*)", line)) and thread in begun:
            yield begun.pop(thread) + rest[1]
        else:
            yield line


def _decoded(name: str) -> str:
    return _text(name) if "\\x" in name else name


def _bytes(rest: str) -> bytes:
    found = _QUOTED.search(rest)
    assert found is not None
    return bytes.fromhex(found[1].replace("\\x", ""))


def power(fit: str, place: Path, *, variants: int = 4) -> Tally:
    """Every state that a power cut during the fit may leave: what was shown must be there, and the folder usable."""
    from sfumato.errors import SfumatoError
    from sfumato.privacy.store import RunStore

    tally, told, trace = Tally(), place / "told", place / "trace"
    run, marks = place / "run", place / "marks"
    _warm(fit, place)
    code = _traced(command(fit, run), told, trace, marks, "-xx", "-s", "1000000000")
    assert code == 0, told.read_text()
    source = random.Random(0)
    for disk, shown, line in _replayed(trace, run, marks):
        choices: list[Callable[[], bool]] = [lambda: False, lambda: True]
        choices += [lambda: source.random() < 0.5] * variants
        for choose in choices:
            tally.counts["struck"] += 1
            left = place / "left"
            shutil.rmtree(left, ignore_errors=True)
            for name, content in sorted(disk.after_a_cut(choose).items()):
                path = left / os.path.relpath(name, run)
                if content is None:
                    path.mkdir(parents=True, exist_ok=True)
                else:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
            try:
                store = RunStore(left)
                kept = (
                    {(a.label, a.step, a.digest) for a in store.answers()} if store.begun else set()
                )
                store.close()
            except SfumatoError as error:
                tally.add("stuck", True, f"{line} → {error}")
                continue
            tally.add("stuck", False)
            lost = shown - kept
            tally.add("lost answers", bool(lost), f"{line} → {sorted(lost)[:2]}")
    return tally


# -- the command ------------------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sfumato.testing.crash", description="What a run folder survives."
    )
    parser.add_argument("experiment", choices=("kill", "full", "power", "pairs"))
    parser.add_argument("fits", nargs="+", choices=sorted(FITS))
    parser.add_argument("--stride", type=int, default=1, help="strike at every N-th operation only")
    parser.add_argument("--pairs", type=int, default=50, help="pairs of processes for each fit")
    parser.add_argument(
        "--json",
        type=Path,
        help="write the counts here as well; beside it, how far an interrupted sweep got",
    )
    given = parser.parse_args(arguments)
    if shutil.which("strace") is None and given.experiment != "pairs":
        parser.error("strace is not installed (on Debian and Ubuntu: apt-get install strace)")
    # Imported before the first fork, so that children start at once.
    import torch

    import sfumato.cli.main
    import sfumato.methods
    import sfumato.report.verify  # noqa: F401

    torch.set_num_threads(1)
    total: dict[str, dict[str, int]] = {}
    for fit in given.fits:
        with tempfile.TemporaryDirectory(prefix="sfumato-crash-") as folder:
            place = Path(folder)
            if given.experiment == "pairs":
                tally = pairs(fit, place, count=given.pairs)
            elif given.experiment == "power":
                tally = power(fit, place)
            else:
                progress = given.json and given.json.with_suffix(f".{fit}.part.json")
                full = given.experiment == "full"
                tally = struck(fit, place, full=full, stride=given.stride, progress=progress)
        total[fit] = dict(tally.counts)
        told = ", ".join(f"{name} {count}" for name, count in tally.counts.items())
        print(f"{given.experiment} {fit}: {told}", flush=True)  # noqa: T201
        for example in tally.examples:
            print(f"  {example}", flush=True)  # noqa: T201
    if given.json is not None:
        given.json.write_text(json.dumps({given.experiment: total}, indent=1) + "\n")
    bad = {name for counts in total.values() for name, count in counts.items() if count}
    return 1 if bad - {"struck", "not struck"} else 0


if __name__ == "__main__":
    sys.exit(main())
