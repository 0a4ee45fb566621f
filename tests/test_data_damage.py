"""Bombs, links, odd paths and damaged files: each ends in one sentence, before much memory is taken."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from data import png
from sfumato.cli.main import app
from sfumato.data import Dataset, Schema, load, schema_of
from sfumato.data.decoding import MOST_PIXELS, decode
from sfumato.errors import BadInput
from sfumato.testing.corrupt import CORRUPTIONS, corrupt, fuzz_files, read_whole, sound_files

MIB = 1 << 20


# -------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize("opener", [load, schema_of])
@pytest.mark.parametrize(
    "spec",
    [
        *(1, None, 1.5, b"x.npz", ["x.npz"], object(), ""),
        *("x\0.npz", Path("x\0.npz"), "\0", "digits\0"),
        *("a" * 5000, "/" + "a" * 300 + ".npz", "x/" * 3000, "/dev/null", "./nothing.npz"),
    ],
    ids=lambda spec: repr(spec)[:20],
)
def test_what_is_no_path_gets_a_sentence(opener, spec):
    with pytest.raises(BadInput, match=r"^[^\n]*\.$"):
        opener(spec)


def test_the_command_line_says_so_too(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((4, 4, 4), np.uint8))
    plan = ["plan", "mixture", "--epsilon", "1", "--delta", "1e-5", "--data"]
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "long.json").write_text('{"kind": "images", "shape": [1, 1, ' + "9" * 5000 + "]}")
    for more in (
        ["x\0.npz"],
        [str(tmp_path / "x.npz"), "--schema", str(tmp_path / "deep.json")],
        [str(tmp_path / "x.npz"), "--schema", str(tmp_path / "long.json")],
        [str(tmp_path / "x.npz"), "--classes", "9" * 30],
        ["a" * 5000],
    ):
        result = CliRunner().invoke(app, [*plan, *more])
        assert result.exit_code == 2, result.output
        assert "Traceback" not in result.output


def test_what_is_neither_file_nor_folder_is_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.csv")
    with socket.socket(socket.AF_UNIX) as plug:
        monkeypatch.chdir(tmp_path)  # the path of a socket may not be long
        plug.bind("plug.npz")
        for name in ("pipe.csv", "plug.npz"):
            with pytest.raises(BadInput, match="neither a file nor a folder"):
                load(tmp_path / name)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(BadInput, match=r"pipe\.png is no file"):
        load(tmp_path, image_size=4)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_what_may_not_be_read_is_named(tmp_path):
    for name in ("x.npz", "x.csv", "x.parquet"):
        (tmp_path / name).write_bytes(b"")
        (tmp_path / name).chmod(0)
        with pytest.raises(BadInput, match="permissions"):
            load(tmp_path / name)


# -------------------------------------------------------------------------------------------- links


def class_folders(root: Path) -> None:
    for name in ("a", "b"):
        (root / name).mkdir()
        Image.new("L", (4, 4)).save(root / name / "0.png")


def test_a_link_that_would_count_a_picture_twice_is_refused(tmp_path):
    class_folders(tmp_path)
    for link, target in (
        ("a/again", tmp_path / "b"),
        ("c", tmp_path / "a"),
        ("a/up", tmp_path),
        ("a/self", tmp_path / "a"),
        ("a/1.png", tmp_path / "a" / "0.png"),
        ("b/1.png", tmp_path / "a" / "0.png"),
    ):
        (tmp_path / link).symlink_to(target)
        with pytest.raises(BadInput, match=r"twice|none of the classes"):
            load(tmp_path, image_size=4)
        (tmp_path / link).unlink()
    flat = tmp_path / "flat"
    flat.mkdir()
    Image.new("L", (4, 4)).save(flat / "x.png")
    (flat / "y.png").symlink_to("x.png")
    with pytest.raises(BadInput, match="twice"):
        load(flat, image_size=4, schema=Schema(kind="images", shape=(1, 4, 4)))


def test_a_loop_of_links_is_named(tmp_path):
    class_folders(tmp_path)
    (tmp_path / "a" / "loop").symlink_to("loop")
    with pytest.raises(BadInput, match="loop"):
        load(tmp_path, image_size=4)
    with pytest.raises(BadInput, match=r"loop|levels"):
        load(tmp_path / "a" / "loop")


def test_pictures_kept_elsewhere_and_linked_once_are_read(tmp_path):
    store, data = tmp_path / "store", tmp_path / "data"
    store.mkdir()
    class_folders(store)
    data.mkdir()
    (data / "a").symlink_to(store / "a")
    (data / "b").mkdir()
    # Two records with the same contents, as a store of contents keeps them, are two records.
    for name in ("1.png", "2.png"):
        (data / "b" / name).symlink_to(store / "b" / "0.png")
    assert len(load(data, image_size=4)) == 3
    (data / "b" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(BadInput, match=r"gone\.png"):
        list(load(data, image_size=4).batches(4))


# -------------------------------------------------------------------------------------------- bombs


def peak(action: Any) -> int:
    tracemalloc.start()
    with pytest.raises(BadInput, match=r"\.$"):
        action()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def npz(path: Path, members: dict[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", packing, compresslevel=9) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def header(text: str, version: int = 1) -> bytes:
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode("latin1")


IMAGES = npy(np.zeros((2, 3, 3), np.uint8))
HUGE = 64 * MIB


@pytest.mark.parametrize(
    "members",
    [
        {"images": b"\x93NUMPY\x02\0" + struct.pack("<I", HUGE) + b" " * HUGE},
        {"labels": npy(np.zeros(2, int)), "classes": npy(np.zeros(HUGE, np.uint8))},
        {"classes": npy(np.array(["x" * (HUGE // 4)]))},
        {"value_range": npy(np.zeros(HUGE // 8))},
        {"images": npy(np.zeros((1, 8192, 8192), np.uint8))},
    ],
    ids=["header", "names", "name", "range", "row"],
)
def test_a_small_npz_does_not_unpack_to_much(tmp_path, members):
    path = npz(tmp_path / "x.npz", {"images": IMAGES} | members)
    assert path.stat().st_size < MIB
    classes = 2 if "labels" in members else None
    assert peak(lambda: load(path, classes=classes)) < 4 * MIB


BYTES = "{'descr': '|u1', 'fortran_order': False, 'shape': "
OTHER = "{'descr': %s, 'fortran_order': False, 'shape': %s}\n"


@pytest.mark.parametrize(
    "text",
    [
        *(BYTES + "(2, 3, 3), ", BYTES + "(2, 3, 3", BYTES + "(-2, 3, 3)}\n"),
        *(BYTES + "(10000000000000, 3, 3)}\n", BYTES + "(True, 3, 3)}\n"),
        *(OTHER % (kind, "(2, 3, 3)") for kind in ("'|O'", "'nonsense'")),
        *(OTHER % ("'|V9'", "(2,)"), OTHER % ("[('a', '|u1')]", "(18,)")),
        *("(" * 9000, "'" * 3, "\0" * 40, ""),
    ],
    ids=lambda text: text[40:60],
)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_bad_npy_header_is_a_sentence(tmp_path, text, version):
    for packing in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        path = npz(tmp_path / "x.npz", {"images": header(text, version) + bytes(18)}, packing)
        with pytest.raises(BadInput, match=r"^[^\n]*\.$"):
            list(load(path).batches(2))


def test_other_packings_and_locked_archives_are_refused(tmp_path):
    for packing in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with pytest.raises(BadInput, match="savez_compressed"):
            load(npz(tmp_path / "x.npz", {"images": IMAGES}, packing))
    raw = bytearray(npz(tmp_path / "x.npz", {"images": IMAGES}).read_bytes())
    for mark in (b"PK\x03\x04", b"PK\x01\x02"):
        raw[raw.index(mark) + (6 if mark[2] == 3 else 8)] |= 1  # says that it is encrypted
    (tmp_path / "x.npz").write_bytes(raw)
    with pytest.raises(BadInput, match="damaged"):
        load(tmp_path / "x.npz")


def test_a_picture_is_measured_before_it_is_decoded(tmp_path):
    side = int(MOST_PIXELS**0.5) + 1
    file = tmp_path / "x.png"
    file.write_bytes(png(side, 8, 0, bytes(side * (side + 1))))
    assert peak(lambda: decode(str(file), (1, 8, 8))) < 4 * MIB
    with pytest.raises(BadInput, match="pixels by its header"):
        decode(str(file), (1, 8, 8))


def test_other_kinds_of_file_under_a_picture_s_name_are_not_tried(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "x.png", "ICO")
    with pytest.raises(BadInput, match=r"x\.png"):
        decode(str(tmp_path / "x.png"), (1, 4, 4))


def test_a_line_without_an_end_is_refused_in_little_memory(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"pixel_0\n1\n" + b"7" * HUGE)
    schema = Schema(kind="images", shape=(1, 1, 1))
    assert peak(lambda: len(load(path, schema=schema))) < 8 * MIB
    assert peak(lambda: list(load(path, schema=schema).batches(4))) < 8 * MIB
    path.write_bytes(b"x" * HUGE)
    assert peak(lambda: load(path, schema=schema)) < 64 * MIB


def test_public_facts_that_would_exhaust_the_memory_are_refused():
    column = {"name": "a", "kind": "numerical", "low": 0, "high": 10**400}
    for facts in (
        {"kind": "images", "shape": [1, 2**20, 2**20]},
        {"kind": "images", "shape": [3, 10**400, 1]},
        {"kind": "images", "shape": [1, 2, 2], "value_range": [0, 10**400]},
        {"kind": "table", "columns": [column]},
    ):
        with pytest.raises(BadInput, match=r"^[^\n]*\.$"):
            Schema.from_json(facts)
    with pytest.raises(BadInput, match="classes"):
        Dataset.from_arrays(np.zeros((1, 2, 2), np.uint8), [0], classes=10**9)


# -------------------------------------------------------------------------------------------- damage


def test_every_sound_file_is_read(tmp_path):
    for index, (name, data) in enumerate(sound_files().items()):
        folder = tmp_path / str(index)
        folder.mkdir()
        assert read_whole(folder, name, data) > 0


def test_the_damage_is_the_same_every_time():
    data = sound_files()["stored.npz"]
    assert sound_files()["stored.npz"] == data
    for kind in CORRUPTIONS:
        first = [corrupt(data, kind, seed, b"other") for seed in range(20)]
        assert first == [corrupt(data, kind, seed, b"other") for seed in range(20)]
        assert any(damaged != data for damaged in first)


def test_three_hundred_damaged_files_end_in_records_or_a_sentence(tmp_path):
    ends = fuzz_files(tmp_path, 325, seed=12)
    assert ends.total() == 325
    assert ends["BadInput"] > 100
    assert ends["records"] > 20


def test_a_schema_that_is_damaged_ends_in_a_sentence(tmp_path):
    sound = json.dumps(
        Schema(kind="images", shape=(1, 2, 2), value_range=(0, 1)).to_json()
    ).encode()
    for kind in CORRUPTIONS:
        for seed in range(10):
            folder = tmp_path / f"{kind}{seed}"
            folder.mkdir()
            with contextlib.suppress(BadInput):
                read_whole(folder, "schema.json", corrupt(sound, kind, seed, b"{}"))
