"""Files are whole or absent, private where asked, and what a dead process left is removed by nobody's mistake."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sfumato import files as storage
from sfumato.errors import BadInput, CorruptArtifact, OutOfResources
from sfumato.files import (
    atomic_folder,
    atomic_path,
    check_file,
    make_folder,
    read_json,
    sha256_of,
    sweep,
    write_json,
    write_text,
)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# ── whole or absent ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_write_replaces_the_file_in_one_step(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "down" / "a.json"
    write_json(target, {"a": 1})
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert json.loads(target.read_text()) == {"a": 1}
    assert target.read_text() == "new"
    assert names(target.parent) == ["a.json"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: type[BaseException]
) -> None:
    target = tmp_path / "a.txt"
    write_text(target, "old")
    with pytest.raises(error), atomic_path(target) as temporary:  # noqa: PT012
        temporary.write_text("half")
        (temporary.parent / ".tmpXYZ").write_text("a library's own temporary file")
        raise error
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]
    assert not storage._OPEN


def test_file_and_folders_are_flushed_in_the_order_that_a_power_cut_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(handle: int) -> None:
        done.append(f"fsync {Path(f'/proc/self/fd/{handle}').readlink().name}")
        fsync(handle)

    def watched_replace(self: Path, target: Path) -> Path:
        done.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    write_text(tmp_path / "new" / "a.txt", "x")
    assert done == [f"fsync {tmp_path.name}", "fsync a.txt", "rename", "fsync new"]


def test_permissions_are_the_umasks_or_those_asked_for(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        write_text(tmp_path / "open" / "a", "x")
        write_text(tmp_path / "up" / "closed" / "a", "x", mode=0o600)
        write_json(tmp_path / "open" / "b", 1, mode=0o600)
        with atomic_path(tmp_path / "open" / "c", mode=0o640) as temporary:
            # What a library makes anew (safetensors: 0600) gets the same permissions as the rest.
            save_file({"x": torch.zeros(3)}, temporary)
            assert mode_of(temporary.parent) == 0o700
        with atomic_path(tmp_path / "open" / "d") as temporary:
            save_file({"x": torch.zeros(3)}, temporary)
    finally:
        os.umask(umask)
    found = {str(p.relative_to(tmp_path)): mode_of(p) for p in tmp_path.rglob("*")}
    assert found == {
        "open": 0o755,
        "open/a": 0o644,
        "open/b": 0o600,
        "open/c": 0o640,
        "open/d": 0o644,
        "up": 0o755,
        "up/closed": 0o700,
        "up/closed/a": 0o600,
    }


def test_a_folder_comes_whole_or_not_at_all(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "run", mode=0o600) as folder:
        (folder / "a").write_text("x")
        save_file({"x": torch.zeros(3)}, folder / "b")
        assert len(names(tmp_path)) == 1
        assert sweep(tmp_path) == []
    assert names(tmp_path) == ["run"]
    assert {p.name: mode_of(p) for p in (tmp_path / "run").iterdir()} == {"a": 0o600, "b": 0o600}
    assert mode_of(tmp_path / "run") == 0o700
    make_folder(tmp_path / "run", mode=0o644)  # what exists keeps its permissions
    assert mode_of(tmp_path / "run") == 0o700
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "other") as folder:  # noqa: PT012
        (folder / "a").write_text("half")
        raise KeyboardInterrupt
    with pytest.raises(BadInput, match="Cannot write"), atomic_folder(tmp_path / "run"):
        pass
    assert names(tmp_path) == ["run"]
    assert not storage._OPEN


# ── what cannot be written or read ────────────────────────────────────────────────────────────────────────────────────


def hostile(folder: Path) -> list[Path]:
    (folder / "file").write_text("mine")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    return [
        folder / "a\0b",
        folder / "\ud800",
        folder / ("x" * 5000),
        folder / ("x" * 300),
        folder / "file" / "below",
        folder / "folder",
        folder / "pipe",
        folder / "loop",
        folder / "loop" / "below",
        Path("/dev/null"),
        Path("/proc/none"),
        Path(),
    ]


def test_paths_that_cannot_be_used_get_one_sentence_no_wait_and_stay_as_they_are(
    tmp_path: Path,
) -> None:
    paths = hostile(tmp_path)
    before = names(tmp_path)
    for path in paths:
        with pytest.raises(BadInput, match="Cannot write"):
            write_text(path, "x")
        for read in (check_file, read_json, sha256_of):
            with pytest.raises(BadInput):
                read(path)
    assert names(tmp_path) == before
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert not storage._OPEN


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff\xfe", b"[" * 200_000, b"1" * 5000, b'{"a": NaN}', b"[-Infinity]", b"\0"],
    ids=repr,
)
def test_what_is_no_json_is_a_damaged_file(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text)
    with pytest.raises(CorruptArtifact, match=r"a\.json cannot be read as JSON"):
        read_json(path)


def test_names_that_are_no_utf8_survive_json(tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xe9")
    write_json(tmp_path / odd, {"name": odd})
    assert read_json(tmp_path / odd) == {"name": odd}


@pytest.mark.parametrize("length", [1, 60, 200, 255])
@pytest.mark.parametrize("letter", ["a", "é", "𝄞"])
def test_every_name_that_the_file_system_takes_can_be_written(
    tmp_path: Path, letter: str, length: int
) -> None:
    target = tmp_path / (letter * (length // len(letter.encode()) or 1))
    write_text(target, "x")
    assert names(tmp_path) == [target.name]


# ── a full disk ───────────────────────────────────────────────────────────────────────────────────────────────────────

FULL = """
import resource, sys, torch, sqlite3, numpy, pyarrow, pyarrow.parquet, zipfile, json
from pathlib import Path
from PIL import Image
from safetensors.torch import save_file
from sfumato.errors import OutOfResources
from sfumato.files import atomic_path

noise = numpy.random.default_rng(0).integers(0, 256, (200, 200), dtype=numpy.uint8)

def sqlite(path):
    store = sqlite3.connect(path)
    try:
        with store:
            store.execute("create table t (x)")
            store.executemany("insert into t values (?)", [(noise.tobytes(),)] * 3)
    finally:
        store.close()

def packed(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", noise.tobytes())

def plain(path):
    with path.open("wb") as stream:
        noise.tofile(stream)

writers = {
    "safetensors": lambda p: save_file({"a": torch.from_numpy(noise)}, p),
    "sqlite": sqlite,
    "zip": packed,
    "tofile": plain,
    "npz": lambda p: numpy.savez(p.open("wb"), a=noise),
    "png": lambda p: Image.fromarray(noise).save(p, format="PNG"),
    "parquet": lambda p: pyarrow.parquet.write_table(pyarrow.table({"a": noise.ravel()}), p),
    "torch": lambda p: torch.save({"a": torch.from_numpy(noise)}, p),
    "json": lambda p: p.write_text(json.dumps(noise.tolist())),
}
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
for name, write in writers.items():
    target = Path(sys.argv[1]) / "x"
    try:
        with atomic_path(target) as temporary:
            write(temporary)
    except OutOfResources as error:
        print(name, "ok" if str(target) in str(error) else error)
    except BaseException as error:
        print(name, type(error), error)
    else:
        print(name, "written")
"""


def test_a_file_that_may_not_grow_is_told_alike_whatever_library_writes_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert len(told) == 9, done.stderr
    assert set(told.values()) == {"ok"}, told
    assert names(tmp_path) == []


@pytest.mark.parametrize("full", [OSError(28, "No space left on device"), MemoryError()])
def test_a_library_without_an_errno_is_understood_from_its_cause(
    tmp_path: Path, full: Exception
) -> None:
    with pytest.raises(OutOfResources, match="x"), atomic_path(tmp_path / "x"):  # noqa: PT012
        try:
            raise full
        except Exception:
            raise RuntimeError("cannot encode")  # noqa: B904


# ── leftovers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

WRITER = """
import os, signal, sys
from pathlib import Path
from sfumato.files import atomic_path
with atomic_path(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print("writing", flush=True)
    {then}
"""


def writer(target: Path, then: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER).format(then=then), str(target)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def test_sweep_removes_what_a_killed_writer_left_and_not_what_a_living_one_writes(
    tmp_path: Path,
) -> None:
    process = writer(tmp_path / "a.txt", "sys.stdin.read()")
    [part] = names(tmp_path)
    assert sweep(tmp_path) == []
    assert names(tmp_path) == [part]
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert sweep(tmp_path) == [tmp_path / part]
    assert names(tmp_path) == []
    assert sweep(tmp_path) == []


def test_sweep_leaves_everything_that_is_not_ours(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("a.part", ".hidden", ".a.part", "a.12345678.part", ".tmpABCDEF"):
        (folder / name).write_text("mine")
    (folder / ".a.12345678.part").symlink_to(elsewhere)
    os.mkfifo(folder / ".b.12345678.part")
    before = names(folder)
    assert sweep(folder) == []
    assert names(folder) == before
    assert names(elsewhere) == ["mine"]
    assert sweep(tmp_path / "missing") == []
    # Version 0.1.0 wrote to files of this name.
    (folder / ".generator.safetensors.ab_cd012.part").write_text("half")
    assert [p.name for p in sweep(folder)] == [".generator.safetensors.ab_cd012.part"]


def test_a_writer_swept_before_it_had_its_lock_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, swept = storage.fcntl.flock, []

    def late(handle: int, how: int) -> None:
        if how == storage.fcntl.LOCK_SH and not swept:
            swept.append(sweep(tmp_path))
        real(handle, how)

    monkeypatch.setattr(storage.fcntl, "flock", late)
    write_text(tmp_path / "a", "x")
    assert len(swept[0]) == 1
    assert names(tmp_path) == ["a"]


def test_a_second_signal_inside_the_cleaning_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmdir = Path.rmdir

    def cut_short(_: Path) -> None:
        monkeypatch.setattr(Path, "rmdir", rmdir)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rmdir", cut_short)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "a", "x")
    assert len(names(tmp_path)) == 2
    storage.close_writers()
    assert names(tmp_path) == ["a"]


def test_a_forked_child_does_not_tidy_up_what_its_parent_writes(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a") as temporary:
        child = os.fork()
        if child == 0:
            storage.close_writers()
            os._exit(0)
        os.waitpid(child, 0)
        temporary.write_text("whole")
    assert (tmp_path / "a").read_text() == "whole"
