"""The range of stored numbers is a public fact: stated or settled by the file's own header, never guessed."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from data import png
from sfumato.cli.main import app
from sfumato.data import Dataset, Schema, load, schema_of
from sfumato.data.decoding import decode
from sfumato.data.loading import load_like
from sfumato.errors import BadInput
from sfumato.public.loading import load_public

RAMP = np.linspace(0, 1, 64).reshape(8, 8)
WANT = (RAMP * 255).round()[None]
SHAPE = (1, 8, 8)


# ------------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    ("stored", "facts"),
    [
        (RAMP.astype(np.float32), {"value_range": (0, 1)}),
        (RAMP.astype(np.float16), {"value_range": (0, 1)}),
        (RAMP.astype(">f8"), {"value_range": (0, 1)}),
        (RAMP * 255, {"value_range": (0, 255)}),
        (RAMP * 2 - 1, {"value_range": (-1, 1)}),
        ((RAMP * 4095).round().astype(np.uint16), {"bits": 12}),
        ((RAMP * 65535).round().astype(">u2"), {"bits": 16}),
        ((RAMP * 4095 - 1024).round().astype(np.int16), {"value_range": (-1024, 3071)}),
        ((RAMP * 4095 - 1024).round().astype(np.int32), {"value_range": (-1024, 3071)}),
        ((RAMP * 16).round().astype(np.uint8), {"value_range": (0, 16)}),
        ((RAMP * 255).round().astype(np.uint8), {}),
        ((RAMP * 255).round().astype(np.uint8), {"bits": 8}),
    ],
    ids=lambda value: getattr(getattr(value, "dtype", None), "str", None),
)
@pytest.mark.parametrize("writer", [np.savez, np.savez_compressed])
def test_a_stated_range_makes_black_zero_and_white_one(tmp_path, stored, facts, writer):
    step = 0.04 if stored.max() == 16 else 0.003
    images = np.stack([stored, stored[::-1]])
    in_memory = Dataset.from_arrays(images, **facts)
    writer(tmp_path / "x.npz", images=images)
    for data in (in_memory, load(tmp_path / "x.npz", **facts)):
        (batch,) = data.batches(2)
        assert np.abs(batch.pixels().numpy()[0, 0] - RAMP).max() < step
        assert np.abs(data.take([1, 0]).pixels().numpy()[1, 0] - RAMP).max() < step
        assert data.schema == in_memory.schema
        data.check()


@pytest.mark.parametrize("kind", ["u2", "i2", "i4", "u4", "i8", "f2", "f4", "f8"])
def test_a_file_whose_type_settles_no_range_is_refused_with_the_remedy(tmp_path, kind):
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 3, 3), kind))
    remedy = "--bits 12" if kind[0] in "iu" else "--range 0 1"
    for opener in (load, schema_of):
        with pytest.raises(BadInput, match=remedy):
            opener(tmp_path / "x.npz")
    bare = Schema(kind="images", shape=(1, 3, 3))
    with pytest.raises(BadInput, match=remedy):
        load(tmp_path / "x.npz", schema=bare)
    (tmp_path / "x.schema.json").write_text(json.dumps(bare.to_json() | {"value_range": [0, 9]}))
    assert load(tmp_path / "x.npz").schema.value_range == (0.0, 9.0)


def test_booleans_settle_their_range_and_bytes_can_be_stated_narrower(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.array([[[True, False]]]))
    assert next(load(tmp_path / "x.npz").batches(1)).pixels().tolist() == [[[[1.0, 0.0]]]]
    np.savez(tmp_path / "y.npz", images=np.array([[[1, 0]]], np.uint8))
    data = load(tmp_path / "y.npz", bits=1)
    assert next(data.batches(1)).pixels().tolist() == [[[[1.0, 0.0]]]]


@pytest.mark.parametrize(
    "facts",
    [
        *({"bits": bits} for bits in (0, 12, 33, True)),
        *({"value_range": ends} for ends in ((-1, 255), (1, 1), (2, 1), (0,), "01", 5)),
        *({"value_range": (0, end)} for end in (float("nan"), 10**400)),
        {"value_range": (-1e308, 1.7e308)},
        {"bits": 8, "value_range": (0, 255)},
    ],
)
def test_a_range_that_is_none_or_that_bytes_cannot_hold_is_refused(tmp_path, facts):
    images = np.zeros((2, 3, 3), np.uint8)
    np.savez(tmp_path / "x.npz", images=images)
    with pytest.raises(BadInput, match=r"\.$"):
        load(tmp_path / "x.npz", **facts)
    with pytest.raises(BadInput, match=r"\.$"):
        Dataset.from_arrays(images, **facts)


def test_a_range_given_and_one_in_the_file_must_agree(tmp_path):
    path = Dataset.from_arrays(RAMP[None], value_range=(0, 1)).save(tmp_path / "x.npz")
    assert load(path, value_range=(0, 1)).schema == load(path).schema
    with pytest.raises(BadInput, match="differ"):
        load(path, value_range=(0, 4095))


def test_floating_point_in_memory_is_checked_against_its_range():
    assert Dataset.from_arrays(RAMP[None]).schema.value_range == (0.0, 1.0)
    for wrong in (RAMP * 255, RAMP * 2 - 1):
        with pytest.raises(BadInput, match="value_range"):
            Dataset.from_arrays(wrong[None])


@pytest.mark.parametrize("end", [".npz", ".parquet"])
def test_what_is_saved_has_the_units_of_its_range_and_states_it(tmp_path, end):
    schema = Schema(kind="images", shape=SHAPE, value_range=(-1024, 3071))
    data = Dataset.from_values(RAMP[None, None].astype(np.float32), schema=schema)
    back = load(data.save(tmp_path / f"x{end}"))
    assert back.schema == schema
    assert np.abs(back.images - data.images).max() < 1e-6
    if end == ".npz":
        with np.load(tmp_path / "x.npz") as stored:
            assert np.allclose(stored["images"][0, 0], RAMP * 4095 - 1024, atol=1e-3)
            assert stored["value_range"].tolist() == [-1024, 3071]
    eight = load(data.save(tmp_path / "x.csv"))
    assert eight.schema.value_range is None
    assert np.array_equal(eight.images[0], WANT)


def test_a_schema_without_a_range_reads_as_it_did():
    old = {"kind": "images", "shape": [1, 8, 8], "classes": ["a"]}
    schema = Schema.from_json(old)
    assert schema.value_range is None
    assert schema.to_json() == old
    data = Dataset.from_values(RAMP[None, None], [0], schema=schema)
    assert np.allclose(next(data.batches(1)).pixels()[0, 0], RAMP)
    ranged = Schema.from_json({**old, "value_range": [0, 4095]})
    assert Schema.from_json(json.loads(json.dumps(ranged.to_json()))) == ranged
    with pytest.raises(BadInput, match="`low` and `high`"):
        Schema.from_json({"kind": "table", "columns": [], "value_range": [0, 1]})


def test_data_beside_others_keep_what_their_own_type_settles(tmp_path):
    like = Schema(kind="images", shape=SHAPE, value_range=(0, 1))
    np.savez(tmp_path / "bytes.npz", images=WANT.astype(np.uint8))
    np.savez(tmp_path / "floats.npz", images=RAMP[None])
    for name in ("bytes", "floats"):
        for opened in (
            load_like(tmp_path / f"{name}.npz", like),
            load_public(tmp_path / f"{name}.npz", like),
        ):
            assert np.abs(next(opened.batches(1)).pixels().numpy()[0, 0] - RAMP).max() < 0.003


# ----------------------------------------------------------------------------------------- pictures


def png16(kind: int, channels: np.ndarray, *chunks: tuple[bytes, bytes]) -> bytes:
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in channels)
    return png(8, 16, kind, rows, *chunks)


def tiff(data: bytes, bits: int, *, order: str = "<", photometric: int = 1, form: int = 1) -> bytes:
    tags = {256: 8, 257: 8, 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1, 278: 8}
    tags |= {279: len(data), 339: form}
    body = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8 + len(data)) + data
    body += struct.pack(order + "H", len(tags))
    for tag, value in tags.items():
        body += struct.pack(order + "HHI", tag, 3, 1) + struct.pack(order + "HH", value, 0)
    return body + bytes(4)


def deep(kind: str, low: float = 0, high: float = 65535) -> bytes:
    return (low + RAMP * (high - low)).round().astype(kind).tobytes()


def floating(high: float) -> bytes:
    return (RAMP * high).astype("<f4").tobytes()


FULL, TWELVE, HOUNSFIELD = (0.0, 65535.0), (0.0, 4095.0), (-1024.0, 3071.0)
GRAY, COLOUR = (RAMP * 65535).round(), np.repeat((RAMP * 65535).round()[..., None], 3, 2)
PICTURES: dict[str, tuple[str, bytes, Any]] = {
    "16-bit png": ("png", png16(0, GRAY), FULL),
    "12 of 16 bits": ("png", png16(0, (RAMP * 4095).round()), TWELVE),
    "16-bit colour": ("png", png16(2, COLOUR), FULL),
    "16-bit with alpha": ("png", png16(4, np.stack([GRAY, GRAY * 0 + 65535], 2)), FULL),
    "16-bit tiff": ("tif", tiff(deep("<u2"), 16), FULL),
    "big-endian": ("tif", tiff(deep(">u2"), 16, order=">"), FULL),
    "12 of 16 bits tiff": ("tif", tiff(deep("<u2", 0, 4095), 16), TWELVE),
    "white is zero, deep": ("tif", tiff(deep("<u2", 4095, 0), 16, photometric=0), TWELVE),
    "signed": ("tif", tiff(deep("<i2", -1024, 3071), 16, form=2), HOUNSFIELD),
    "signed, long": ("tif", tiff(deep("<i4", -1024, 3071), 32, form=2), HOUNSFIELD),
    "unsigned, long": ("tif", tiff(deep("<u4", 0, 2**32 - 1), 32), (0.0, 2.0**32 - 1)),
    "floating point": ("tif", tiff(floating(1), 32, form=3), (0.0, 1.0)),
    "floating 0..255": ("tif", tiff(floating(255), 32, form=3), (0.0, 255.0)),
}
SETTLED: dict[str, tuple[str, bytes]] = {
    "white is zero": ("tif", tiff((255 - WANT).astype(np.uint8).tobytes(), 8, photometric=0)),
    "maxval 4095": ("pgm", b"P5 8 8 4095\n" + deep(">u2", 0, 4095)),
    "maxval 4095, remark": ("pgm", b"P5\n# 1 2\n8 8\n4095\n" + deep(">u2", 0, 4095)),
    "maxval 65535": ("pgm", b"P5 8 8 65535\n" + deep(">u2")),
    "maxval 100": ("pgm", b"P5 8 8 100\n" + deep("u1", 0, 100)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_deep_picture_is_right_in_its_stated_range_and_refused_without(tmp_path, name):
    end, data, stated = PICTURES[name]
    file = tmp_path / f"x.{end}"
    file.write_bytes(data)
    assert np.abs(decode(str(file), SHAPE, stated).astype(float) - WANT).max() <= 1
    with pytest.raises(BadInput, match=r"--bits|--range"):
        decode(str(file), SHAPE)
    with pytest.raises(BadInput, match=r"--bits|--range"):
        list(load(tmp_path, image_size=8, channels=1).batches(1))
    (batch,) = load(tmp_path, image_size=8, channels=1, value_range=stated).batches(1)
    assert np.abs(batch.values.numpy()[0].astype(float) - WANT).max() <= 1


@pytest.mark.parametrize("name", SETTLED)
def test_a_header_that_settles_the_range_is_believed(tmp_path, name):
    end, data = SETTLED[name]
    file = tmp_path / f"x.{end}"
    file.write_bytes(data)
    worst = 2 if name == "maxval 100" else 1
    assert np.abs(decode(str(file), SHAPE).astype(float) - WANT).max() <= worst
    if end == "pgm" and name != "maxval 100":
        # The statement of the user comes before the header.
        twice = decode(str(file), SHAPE, (0.0, 2 * 65535.0 if "65535" in name else 2 * 4095.0))
        assert np.abs(twice - WANT / 2).max() <= 1


@pytest.mark.parametrize(
    ("end", "data", "stated"),
    [
        ("png", png16(2, COLOUR // 16), TWELVE),  # Pillow keeps the upper eight bits of colour
        ("png", png16(0, GRAY), HOUNSFIELD),
        ("tif", tiff(WANT.astype(np.uint8).tobytes(), 8, form=2), None),
        ("tif", tiff((255 - WANT).astype(np.uint8).tobytes(), 8, photometric=0), (0.0, 16.0)),
        ("pgm", b"P5 8 8 100\n" + deep("u1", 0, 100), (0.0, 50.0)),
        ("tif", tiff(WANT.astype(np.uint8).tobytes(), 8), TWELVE),
    ],
)
def test_what_cannot_be_read_right_is_refused(tmp_path, end, data, stated):
    file = tmp_path / f"x.{end}"
    file.write_bytes(data)
    with pytest.raises(BadInput, match=r"range|bits"):
        decode(str(file), SHAPE, stated)


def test_odd_colours_are_right_or_refused(tmp_path):
    byte = Image.fromarray(WANT[0].astype(np.uint8))
    colour = Image.merge("RGB", [byte] * 3)
    for name, picture, worst in (
        ("a.tif", colour.convert("CMYK"), 1),
        ("b.gif", byte.convert("P"), 0),
        ("c.png", byte, 0),
    ):
        picture.save(tmp_path / name)
        assert np.abs(decode(str(tmp_path / name), SHAPE).astype(float) - WANT).max() <= worst
    lab = Image.merge("LAB", [byte, byte, byte])
    lab.save(tmp_path / "d.tif")
    byte.save(tmp_path / "e.tif", save_all=True, append_images=[byte])
    for name in ("d.tif", "e.tif"):
        with pytest.raises(BadInput, match=r"convert it|save each"):
            decode(str(tmp_path / name), SHAPE)
    clear = png16(0, GRAY, (b"tRNS", b"\0\0"))
    (tmp_path / "f.png").write_bytes(clear)
    shown = decode(str(tmp_path / "f.png"), SHAPE, FULL)
    assert shown[0, 0, 0] == 255, "transparent is white"
    assert np.abs(shown.astype(float) - WANT).reshape(-1)[1:].max() <= 1


def test_a_byte_picture_can_be_stated_narrower(tmp_path):
    Image.fromarray((RAMP * 16).round().astype(np.uint8)).save(tmp_path / "x.png")
    assert np.abs(decode(str(tmp_path / "x.png"), SHAPE, (0.0, 16.0)) - WANT).max() <= 9


# ------------------------------------------------------------------------------------- command line


def test_the_command_line_states_the_range(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, images=(np.zeros((40, 8, 8)) - 500).astype(np.int16))
    plan = ["plan", "mixture", "--data", str(path), "--epsilon", "1", "--delta", "1e-5"]
    for words, code, said in (
        ("", 2, "--bits 12"),
        ("--range -1024 3071", 0, ""),
        ("--bits 12", 0, ""),
        ("--bits 12 --range 0 1", 2, ""),
    ):
        done = CliRunner().invoke(app, [*plan, *words.split()])
        assert done.exit_code == code, done.output
        assert said in done.output
