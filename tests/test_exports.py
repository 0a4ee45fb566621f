"""Records written for other tools, read by those tools and by ourselves; a wrong ending is refused before anything is drawn."""

from __future__ import annotations

import csv
import io
import tarfile

import datasets
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import sfumato
from data import digits, shop, stripes
from sfumato.cli.main import app
from sfumato.data import Dataset, load
from sfumato.errors import BadInput

NAMES = (
    "T-shirt/top",
    "ä, b",
    "3",
    "0",
    "1",
    "2",
    "x",
    "y",
    "z",
    "9",
)  # commas, slashes, numbers that count otherwise


def named() -> Dataset:
    data = digits(40)
    return Dataset.from_arrays(data.images, data.labels, classes=NAMES)


def unlabelled() -> Dataset:
    return Dataset.from_arrays(digits(12).images)


@pytest.mark.parametrize("make", [lambda: digits(40), named, unlabelled, lambda: coloured()])
@pytest.mark.parametrize("ending", [".parquet", ".tar", ""])
def test_what_is_saved_is_loaded_again_without_further_words(tmp_path, make, ending):
    data = make()
    data.save(tmp_path / f"made{ending}")
    again = load(tmp_path / f"made{ending}")
    assert again.schema == data.schema
    order = (
        np.arange(len(data))
        if ending or data.labels is None
        else np.argsort(data.labels, kind="stable")  # a folder is read class by class
    )
    assert np.array_equal(again.images, data.images[order])
    if data.labels is not None:
        assert np.array_equal(again.labels, data.labels[order])


def coloured() -> Dataset:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 3, 6, 5), dtype=np.uint8)
    return Dataset.from_arrays(pixels, np.arange(9) % 3, classes=["a", "b", "c"])


def test_hugging_face_opens_the_parquet_file_as_pictures(tmp_path):
    data = named()
    data.save(tmp_path / "made.parquet")
    hf = datasets.Dataset.from_parquet(
        str(tmp_path / "made.parquet"), cache_dir=str(tmp_path / "cache")
    )
    assert hf.features == datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES))}
    )
    assert isinstance(hf[0]["image"], Image.Image)
    assert hf["label"][:] == data.labels.tolist()
    pixels = np.stack([np.asarray(picture) for picture in hf["image"]])
    assert np.array_equal(pixels, data.images[:, 0])


def test_hugging_face_opens_the_folder_by_its_listing(tmp_path):
    data = named()
    data.save(tmp_path / "made")
    with (tmp_path / "made" / "metadata.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 40 and set(rows[0]) == {"file_name", "label"}
    for index, row in enumerate(rows):
        picture = np.asarray(Image.open(tmp_path / "made" / row["file_name"]))
        assert np.array_equal(picture, data.images[index, 0])
        assert row["label"] == NAMES[data.labels[index]]
    hf = datasets.load_dataset(
        "imagefolder",
        data_dir=str(tmp_path / "made"),
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    assert sorted(hf["label"]) == sorted(row["label"] for row in rows)
    unlabelled().save(tmp_path / "bare")
    assert not (tmp_path / "bare" / "metadata.csv").exists()


def test_a_tar_is_webdatasets_pairs_with_the_number_of_the_class(tmp_path):
    data = coloured()
    data.save(tmp_path / "made.tar")
    data.save(tmp_path / "again.tar")
    assert (tmp_path / "made.tar").read_bytes() == (tmp_path / "again.tar").read_bytes()
    with tarfile.open(tmp_path / "made.tar") as archive:
        assert archive.getnames()[:4] == ["00000.png", "00000.cls", "00001.png", "00001.cls"]
        members = {m.name: archive.extractfile(m).read() for m in archive}
        assert {m.mtime for m in archive.getmembers()} == {0}
    for index, code in enumerate(data.labels):
        assert members[f"{index:05d}.cls"] == str(code).encode()
        picture = np.asarray(Image.open(io.BytesIO(members[f"{index:05d}.png"])))
        assert np.array_equal(picture.transpose(2, 0, 1), data.images[index])


def test_floating_point_keeps_its_numbers_in_parquet(tmp_path):
    data = stripes(8)
    data.save(tmp_path / "made.parquet")
    assert np.array_equal(load(tmp_path / "made.parquet").images, data.images)


@pytest.mark.parametrize("name", ["x.npz", "x.tar", "folder", "x.zip"])
def test_a_table_is_no_picture(tmp_path, name):
    with pytest.raises(BadInput, match=r"\.csv or \.parquet"):
        shop(5).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_the_ending_is_checked_before_anything_is_drawn(tmp_path, monkeypatch):
    runs = {"images": digits(60), "table": shop(60)}
    for kind, data in runs.items():
        sfumato.fit("mixture", data, epsilon=5, delta=1e-5, out=tmp_path / kind)

    def drawn(*_, **__):
        raise AssertionError("drawn")

    monkeypatch.setattr("sfumato.methods.base.Method._drawn", drawn)
    for kind, name in (
        ("images", "x.pkl"),
        ("images", "x.parqet"),
        ("images", "x.cvs"),
        ("images", "x.tar.gz"),
        ("table", "x.npz"),
        ("table", "x"),
    ):
        told = CliRunner().invoke(
            app, ["sample", str(tmp_path / kind), "-n", "5", "--out", str(tmp_path / name)]
        )
        assert told.exit_code == 2 and "end the path in" in told.output
