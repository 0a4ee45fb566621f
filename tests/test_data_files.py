"""Data sets in files: they come back as they were, stream in constant memory, and damage is named."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tracemalloc
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from data import digits, write_idx
from sfumato.data import Column, Dataset, Schema, load, schema_of
from sfumato.data.folders import FolderSource
from sfumato.data.sources import ArraySource
from sfumato.errors import BadInput

RNG = np.random.default_rng(0)
MIB = 1 << 20


def same(a: Dataset, b: Dataset) -> bool:
    if a.schema != b.schema or len(a) != len(b):
        return False
    labels = (a.labels is None and b.labels is None) or np.array_equal(a.labels, b.labels)
    return labels and np.array_equal(a.values, b.values, equal_nan=a.values.dtype != np.uint8)


def by_content(data: Dataset) -> list[tuple[bytes, int]]:
    labels = data.labels if data.labels is not None else np.full(len(data), -1)
    return sorted(
        (row.tobytes(), int(label)) for row, label in zip(data.values, labels, strict=True)
    )


# ------------------------------------------------------------------------------------ round trips

names = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=6)


@st.composite
def image_sets(draw: st.DrawFn) -> Dataset:
    shape = (
        draw(st.integers(1, 6)),
        draw(st.sampled_from([1, 3])),
        *draw(st.tuples(st.integers(1, 5), st.integers(1, 5))),
    )
    if draw(st.booleans()):
        images = draw(hnp.arrays(np.uint8, shape))
    else:
        images = draw(hnp.arrays(np.float32, shape, elements=st.floats(0, 1, width=32)))
    if draw(st.booleans()):
        return Dataset.from_arrays(images)
    classes = draw(st.lists(names, min_size=1, max_size=4, unique_by=str.casefold))
    labels = draw(hnp.arrays(np.int64, shape[0], elements=st.integers(0, len(classes) - 1)))
    return Dataset.from_arrays(images, labels, classes=classes)


@st.composite
def tables(draw: st.DrawFn) -> Dataset:
    rows = draw(st.integers(1, 6))
    used = draw(st.lists(names, min_size=2, max_size=5, unique=True))
    columns, values = [], []
    for name in used[1:]:
        missing = draw(st.booleans())
        if draw(st.booleans()):
            column = Column(name=name, kind="numerical", low=-100, high=100, missing=missing)
            cell = st.floats(-100, 100, width=32)
        else:
            categories = tuple(draw(st.lists(names, min_size=1, max_size=3, unique=True)))
            column = Column(name=name, kind="categorical", categories=categories, missing=missing)
            cell = st.integers(0, len(categories) - 1).map(float)
        cells = cell | st.just(float("nan")) if missing else cell
        columns.append(column)
        values.append(draw(st.lists(cells, min_size=rows, max_size=rows)))
    classes = tuple(draw(st.lists(names, max_size=3, unique=True)))
    schema = Schema(
        kind="table", columns=tuple(columns), classes=classes, label=used[0] if classes else None
    )
    labels = draw(hnp.arrays(np.int64, rows, elements=st.integers(0, max(0, len(classes) - 1))))
    array = np.array(values, np.float32).T
    return Dataset.from_values(array, labels if classes else None, schema=schema)


quick = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(data=image_sets(), suffix=st.sampled_from([".npz", ".parquet"]))
@settings(parent=quick, max_examples=50)
def test_images_come_back_bit_for_bit(tmp_path, data, suffix):
    assert same(load(data.save(tmp_path / f"{suffix[1:]}{suffix}")), data)


@given(data=image_sets())
@quick
def test_images_come_back_from_csv_and_folders_in_eight_bits(tmp_path, data):
    shutil.rmtree(tmp_path / "x", ignore_errors=True)
    table, folder = load(data.save(tmp_path / "x.csv")), load(data.save(tmp_path / "x"))
    scale = np.float32(1 if data.images.dtype == np.uint8 else 255)
    expected = Dataset(
        ArraySource(np.rint(data.images * scale).astype(np.uint8), data.labels),
        replace(data.schema, value_range=None),
        "in eight bits",
    )
    assert same(table, expected)
    assert folder.schema == expected.schema
    assert by_content(folder) == by_content(expected)  # up to order


@given(data=tables(), suffix=st.sampled_from([".csv", ".parquet"]))
@settings(parent=quick, max_examples=60)
def test_tables_come_back_from_csv_and_parquet(tmp_path, data, suffix):
    assert same(load(data.save(tmp_path / f"t{suffix}")), data)


def test_numpy_reads_what_we_write_and_the_same_data_give_the_same_bytes(tmp_path):
    data = digits(60)
    path = data.save(tmp_path / "x.npz")
    with np.load(path, allow_pickle=False) as archive:
        assert set(archive) == {"images", "labels", "classes"}
        assert np.array_equal(archive["images"], data.images)
        assert archive["classes"].tolist() == list(data.schema.classes)
    assert digits(60).save(tmp_path / "y.npz").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("writer", [np.savez, np.savez_compressed])
def test_we_read_what_numpy_writes(tmp_path, writer):
    data = digits(60)
    path = tmp_path / "x.npz"
    writer(path, images=data.images[:, 0] / 255.0, labels=data.labels.astype(np.uint8))
    with pytest.raises(BadInput, match="--range 0 1"):
        load(path, classes=10)
    back = load(path, classes=10, value_range=(0, 1))
    assert back.values.dtype == np.float32
    assert np.allclose(back.images * 255, data.images, atol=1e-4)
    assert np.array_equal(back.labels, data.labels)
    taken = back.take(np.array([59, 0, 59]))
    assert np.allclose(taken.values.numpy(), back.images[[59, 0, 59]])
    assert schema_of(path, classes=10, value_range=(0, 1)) == (back.schema, 60)


def test_stored_npz_is_mapped_without_copy_and_cannot_change_the_file(tmp_path):
    path = digits(60).save(tmp_path / "x.npz")
    before = path.read_bytes()
    data = load(path)
    assert data.random_access
    batch = next(data.batches(60))
    assert isinstance(data._source.values, np.memmap)
    assert np.shares_memory(batch.values.numpy(), data.images)
    batch.values.zero_()
    assert path.read_bytes() == before


def test_a_mapped_dataset_travels_to_another_process_as_a_path(tmp_path):
    images = RNG.integers(0, 256, (2000, 32, 32), dtype=np.uint8)
    data = load(Dataset.from_arrays(images).save(tmp_path / "x.npz"))
    parcel = pickle.dumps(data)
    assert len(parcel) < 5000
    assert np.array_equal(pickle.loads(parcel).images[:, 0], images)  # noqa: S301


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_pairs_are_read_plain_and_packed(tmp_path, end):
    data = digits(60)
    path = tmp_path / f"train-images-idx3-ubyte{end}"
    write_idx(path, data.images[:, 0])
    write_idx(tmp_path / f"train-labels-idx1-ubyte{end}", data.labels)
    back = load(path, classes=10)
    assert same(back, data)
    assert back.random_access is not bool(end)
    with pytest.raises(BadInput, match="classes"):
        load(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BadInput, match="truncated"):
        list(load(path, classes=10).batches(16))


# ---------------------------------------------------------------------------------------- folders


def test_a_plain_class_folder_needs_only_an_image_size(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for index in range(3):
            shade = 40 * index + (100 if name == "dog" else 0)
            Image.new("L", (20, 10), shade).save(tmp_path / name / f"{index}.png")
    (tmp_path / "notes.txt").write_text("not a picture")
    (tmp_path / ".hidden").mkdir()
    with pytest.raises(BadInput, match="--image-size"):
        load(tmp_path)
    data = load(tmp_path, image_size=8, channels=1)
    assert data.schema == Schema(kind="images", shape=(1, 8, 8), classes=("cat", "dog"))
    assert data.images[:, 0, 0, 0].tolist() == [0, 40, 80, 100, 140, 180]
    assert data.labels is not None
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert load(tmp_path, image_size=8).schema.shape == (3, 8, 8)
    assert schema_of(tmp_path, image_size=8, channels=1) == (data.schema, 6)
    assert data.take(np.array([5, 0])).values[:, 0, 0, 0].tolist() == [180, 0]


def test_the_classes_of_a_folder_are_sorted_as_people_count(tmp_path):
    for name in ("10", "9", "0"):
        (tmp_path / name).mkdir()
        Image.new("L", (2, 2)).save(tmp_path / name / "a.png")
    for classes in (None, 3):
        found = load(tmp_path, image_size=2, classes=classes)
        assert found.schema.classes == ("0", "9", "10")
    assert load(tmp_path, image_size=2, classes=["9", "10", "0", "1"]).schema.n_classes == 4
    for classes in (["9", "10"], 4):
        with pytest.raises(BadInput, match="classes"):
            load(tmp_path, image_size=2, classes=classes)


def test_every_kind_of_picture_becomes_gray_or_rgb_bytes(tmp_path):
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "a_clear.png")
    Image.fromarray(np.full((4, 4), 0x8000, np.uint16)).save(tmp_path / "b_deep.png")
    Image.new("1", (4, 4), 1).save(tmp_path / "c_bits.png")
    Image.new("P", (4, 4)).save(tmp_path / "d_palette.gif")
    Image.new("CMYK", (4, 4)).save(tmp_path / "e_print.jpg")
    with pytest.raises(BadInput, match=r"b_deep\.png .*--bits 12"):
        _ = load(tmp_path, image_size=4, channels=1).images
    (tmp_path / "b_deep.png").unlink()
    gray = load(tmp_path, image_size=4, channels=1).images
    assert gray.shape == (4, 1, 4, 4)
    assert gray[:3, 0, 0, 0].tolist() == [255, 255, 0]
    colour = load(tmp_path, image_size=4, channels=3).images
    assert colour[0, :, 0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("threads", [1, 5])
def test_decoding_in_threads_keeps_the_order(tmp_path, threads):
    schema = Schema(kind="images", shape=(1, 3, 3))
    for index in range(200):
        Image.new("L", (3, 3), index).save(tmp_path / f"{index:03d}.png")
    source = FolderSource(tmp_path, schema, threads=threads)
    for size in (1, 7, 64, 1000):
        values = np.concatenate([rows for rows, _ in source.blocks(size)])
        assert values[:, 0, 0, 0].tolist() == list(range(200))
    order = RNG.permutation(200)
    assert source.take(order)[0][:, 0, 0, 0].tolist() == order.tolist()
    half = source.blocks(10)
    next(half)
    half.close()


def test_a_damaged_picture_is_named(tmp_path):
    folder = digits(60).save(tmp_path / "x")
    victim = next((folder / "3").iterdir())
    whole = victim.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"no picture"):
        victim.write_bytes(broken)
        with pytest.raises(BadInput, match=victim.name):
            list(load(folder).batches(7))
        with pytest.raises(BadInput, match=victim.name):
            load(folder).take(np.arange(60))


def test_folders_that_contradict_their_schema_are_refused(tmp_path):
    folder = digits(60).save(tmp_path / "x")
    (folder / "eleven").mkdir()
    with pytest.raises(BadInput, match="eleven"):
        load(folder)
    (folder / "eleven").rmdir()
    stray = folder / "stray.png"
    Image.new("L", (8, 8)).save(stray)
    with pytest.raises(BadInput, match=r"stray\.png"):
        load(folder)
    stray.unlink()
    shutil.rmtree(folder / "7")
    assert load(folder).schema.n_classes == 10, "a class may have no pictures"
    for text in ("{", '{"kind": "images", "shape": [1, 8]}'):
        (folder / "schema.json").write_text(text)
        with pytest.raises(BadInput, match=r"schema\.json"):
            load(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no pictures"):
        load(tmp_path / "empty", image_size=8)


# --------------------------------------------------------------------------------- tables in files

SCHEMA = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", low=0, high=120),
        Column(name="sex", kind="categorical", categories=("Female", "Male"), missing=True),
    ),
    label="income",
    classes=("<=50K", ">50K"),
)


def test_a_csv_as_it_comes_is_read_by_its_schema(tmp_path):
    path = tmp_path / "adult.csv"
    path.write_text("id,sex,age,income\n1, Male,39, <=50K\n2,?,50,>50K\n3,Female,,unheard of\n")
    with pytest.raises(BadInput, match=r"adult\.schema\.json"):
        load(path)
    (tmp_path / "adult.schema.json").write_text(json.dumps(SCHEMA.to_json()))
    assert schema_of(path) == (SCHEMA, None)
    data = load(path)
    assert len(data) == 3
    expected = [[39, 1], [50, np.nan], [np.nan, 0]]
    assert np.array_equal(data.values, expected, equal_nan=True)
    assert data.labels is not None
    assert data.labels.tolist() == [0, 1, -1]
    assert data.take(np.array([2, 0])).labels.tolist() == [-1, 0]
    with pytest.raises(BadInput):
        data.check()
    assert data.torch()[1][1] == 1


def test_a_cell_that_is_no_number_is_named_by_column_and_never_quoted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("sex,junk,age,income\nMale,x,39,<=50K\nMale,x,secret-cell,<=50K\n")
    with pytest.raises(BadInput) as caught:
        list(load(path, schema=SCHEMA).batches(10))
    assert "'age'" in str(caught.value)
    whole_story = f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__suppress_context__}"
    assert "secret-cell" not in whole_story
    assert "True" in whole_story


def test_tables_with_absent_columns_or_damage_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    for text in ("", "age,sex\n1,Male\n", "\n\n"):
        path.write_text(text)
        with pytest.raises(BadInput, match="income"):
            load(path, schema=SCHEMA)
    for line, words in ((b"1,Male\n", None), (b"", "no rows"), (b"1,\xff\xfe,\xff\n", None)):
        path.write_bytes(b"age,sex,income\n" + line)
        with pytest.raises(BadInput, match=words):
            _ = load(path, schema=SCHEMA).values
    rows = {"age": [1.0, 2.0], "sex": ["Male", "Female"], "income": [">50K", ">50K"]}
    good = Dataset.from_table(rows, SCHEMA).save(tmp_path / "p.parquet")
    assert schema_of(good) == (SCHEMA, 2)
    load(good).check()
    good.write_bytes(good.read_bytes()[:-30])
    with pytest.raises(BadInput, match="truncated"):
        load(good)


def test_pixels_in_a_csv_must_be_bytes(tmp_path):
    path = tmp_path / "x.csv"
    schema = Schema(kind="images", shape=(1, 1, 2))
    for cell in ("256", "-1", "0.5", ""):
        path.write_text(f"pixel_0,pixel_1\n1,{cell}\n")
        with pytest.raises(BadInput):
            list(load(path, schema=schema).batches(4))


def test_check_finds_what_streaming_lets_through(tmp_path):
    path = tmp_path / "t.csv"
    for row in ("500,Male,>50K", ",Male,>50K", "inf,Male,>50K", "5,Male,odd"):
        path.write_text(f"age,sex,income\n5,Male,>50K\n{row}\n")
        with pytest.raises(BadInput, match=r"\.$"):
            load(path, schema=SCHEMA).check()
    images = np.full((2, 3, 3), 0.5)
    images[1] = np.nan
    np.savez(tmp_path / "x.npz", images=images)
    data = load(tmp_path / "x.npz", value_range=(0, 1))
    assert np.isnan(data.images[1]).all()
    with pytest.raises(BadInput):
        data.check()


# --------------------------------------------------------------------------------- damaged npz files


@pytest.mark.parametrize("compressed", [False, True])
def test_a_truncated_npz_is_refused(tmp_path, compressed):
    path = tmp_path / "x.npz"
    (np.savez_compressed if compressed else np.savez)(path, images=digits(60).images)
    whole = path.read_bytes()
    for keep in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(BadInput, match="damaged"):
            load(path)


def test_a_rotten_compressed_npz_is_refused_while_reading(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, images=RNG.integers(0, 9, (500, 9, 9), dtype=np.uint8))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(BadInput, match="damaged"):
        list(load(path).batches(100))


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.zeros((2, 3, 3), np.uint8)},
        {"images": np.zeros((2, 3, 3), np.int32)},
        {"images": np.zeros((2, 3), np.uint8)},
        {"images": np.zeros((0, 3, 3), np.uint8)},
        {"images": np.zeros((2, 3, 3), np.uint8), "labels": np.zeros(3, np.int64)},
        {"images": np.zeros((2, 3, 3), np.uint8), "labels": np.zeros(2)},
        {"images": np.zeros((2, 3, 3), np.uint8), "labels": np.zeros((2, 1), int)},
        {"images": np.array([{}, []], dtype=object)},
    ],
)
def test_an_npz_of_other_things_is_refused(tmp_path, arrays):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(BadInput):
        load(tmp_path / "x.npz", classes=2 if "labels" in arrays else None)


def test_labels_outside_the_classes_become_minus_one(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((3, 2, 2), np.uint8), labels=np.array([0, 7, -5]))
    data = load(tmp_path / "x.npz", classes=2)
    assert data.labels is not None
    assert data.labels.tolist() == [0, -1, -1]
    with pytest.raises(BadInput, match="classes"):
        load(tmp_path / "x.npz")
    with pytest.raises(BadInput, match="classes"):
        data.check()
    with pytest.raises(BadInput, match="class folder"):
        data.save(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


# --------------------------------------------------------------------------------------- saving


def test_a_full_folder_is_never_overwritten(tmp_path):
    folder = digits(60).save(tmp_path / "x")
    with pytest.raises(BadInput, match="not an empty folder"):
        digits(60).save(folder)
    (tmp_path / "empty").mkdir()
    assert len(load(digits(60).save(tmp_path / "empty"))) == 60


def test_saving_that_breaks_off_leaves_nothing(tmp_path):
    class Broken(Dataset):
        def batches(self, size: int) -> Iterator[Any]:
            yield from list(super().batches(20))[:2]
            if size > 1:
                raise KeyboardInterrupt

    data = digits(60)
    broken = Broken(data._source, data.schema, "x")
    for name in ("x.npz", "x.csv", "x.parquet", "x"):
        with pytest.raises(KeyboardInterrupt):
            broken.save(tmp_path / name)
        assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written_to_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    places = [tmp_path / "file" / name for name in ("x.npz", "x.csv", "x")]
    if os.geteuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o500)
        places.append(tmp_path / "x.npz")
    for place in places:
        with pytest.raises(BadInput, match="Cannot write"):
            digits(60).save(place)


def test_tables_and_pictures_go_only_where_they_fit(tmp_path):
    table = Dataset.from_values(np.zeros((1, 2)), np.array([0]), schema=SCHEMA)
    for data, names, words in (
        (table, ("x.npz", "x"), "table"),
        (digits(60), ("x.png", "x.json"), "Cannot save"),
    ):
        for name in names:
            with pytest.raises(BadInput, match=words):
                data.save(tmp_path / name)


def test_paths_that_hold_nothing_known_are_refused(tmp_path):
    (tmp_path / "x.docx").write_text("")
    path = digits(60).save(tmp_path / "x.npz")
    other = Schema(kind="images", shape=(1, 9, 9), classes=digits(60).schema.classes)
    for place, facts, words in (
        (tmp_path / "nothing.npz", {}, "There is no"),
        ("./nothing", {}, "There is no"),
        (tmp_path / "x.docx", {}, "no kind"),
        (path, {"schema": other}, "agree"),
        (path, {"image_size": 9}, "image size"),
    ):
        with pytest.raises(BadInput, match=words):
            load(place, **facts)


# ------------------------------------------------------------------------------ constant memory


def peak_of(data: Dataset, size: int) -> tuple[int, int]:
    """The most memory held while streaming, by Python and numpy and by Arrow, in bytes."""
    arrow = before = pa.total_allocated_bytes()
    tracemalloc.start()
    seen = 0
    for batch in data.batches(size):
        seen += int(batch.values.shape[0])
        arrow = max(arrow, pa.total_allocated_bytes())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen == len(data)
    return peak, arrow - before


def test_a_compressed_npz_streams_in_constant_memory(tmp_path):
    path = tmp_path / "big.npz"
    row = RNG.integers(0, 256, (64, 64), dtype=np.uint8)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("images.npy", "w") as stream,
    ):
        header = {"descr": "|u1", "fortran_order": False, "shape": (16000, 64, 64)}
        np.lib.format.write_array_header_1_0(stream, header)
        for _ in range(16):
            stream.write(np.repeat(row[None], 1000, axis=0).tobytes())
    assert peak_of(load(path), 256)[0] < 6 * MIB  # the images are 62 MiB


def test_a_folder_streams_in_constant_memory(tmp_path):
    one = tmp_path / "000.png"
    Image.fromarray(RNG.integers(0, 256, (128, 128, 3), dtype=np.uint8)).save(one)
    for index in range(1, 400):
        os.link(one, tmp_path / f"{index:03d}.png")
    data = load(tmp_path, image_size=128)
    assert peak_of(data, 32)[0] < 8 * MIB  # the images are 18 MiB, two batches 3 MiB


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_file_streams_in_constant_memory(tmp_path, suffix):
    columns = tuple(Column(name=f"c{i}", kind="numerical", low=0, high=1) for i in range(20))
    schema = Schema(kind="table", columns=columns)
    values = RNG.random((150_000, 20), dtype=np.float32)
    path = Dataset.from_values(values, schema=schema).save(tmp_path / f"t{suffix}")
    data = load(path)
    python, arrow = peak_of(data, 1000)
    assert python < 3 * MIB  # the rows are 11 MiB as float32, 30 MiB as text
    assert arrow < 14 * MIB
    assert np.array_equal(next(data.batches(1000)).values.numpy(), values[:1000])


def test_saving_a_stream_needs_no_more_memory_than_reading_it(tmp_path):
    row = RNG.integers(0, 256, (64, 64), dtype=np.uint8)
    np.savez_compressed(tmp_path / "a.npz", images=np.repeat(row[None], 10_000, axis=0))
    data = load(tmp_path / "a.npz")
    tracemalloc.start()
    data.save(tmp_path / "b.npz")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * MIB  # the images are 39 MiB
