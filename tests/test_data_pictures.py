"""Pictures however they come: other sizes, a table of labels beside them, DICOM, WebDataset, Hugging Face's Parquet."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dicoms import write_dicom
from sfumato.data import Dataset, Schema, load, schema_of
from sfumato.data.decoding import decode
from sfumato.data.examination import suggested_rule
from sfumato.data.units import Unit
from sfumato.errors import BadInput
from sfumato.testing.readers import check_reader

FEW = (0, 1, 15, 16, 17, 65)


def png(shade: int, size: tuple[int, int] = (4, 4)) -> bytes:
    stream = io.BytesIO()
    Image.new("L", size, shade).save(stream, "PNG")
    return stream.getvalue()


def write_png(path: Path, shade: int, size: tuple[int, int] = (4, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(shade, size))


def shades(data: Dataset) -> list[int]:
    return data.images[:, 0, 0, 0].tolist()


def people(data: Dataset) -> list[int]:
    """How many records each unit has."""
    assert data.units is not None
    return sorted(np.bincount(data.units.codes(len(data))).tolist())


# ---------------------------------------------------------------------------------------------- fit


def test_fit_says_how_another_size_becomes_the_stated_one(tmp_path):
    file = tmp_path / "wide.png"
    pixels = np.zeros((8, 16), np.uint8)
    pixels[:, 4:12] = 200  # the middle square
    Image.fromarray(pixels).save(file)
    shape = (1, 8, 8)
    crop = decode(str(file), shape, fit="crop")
    assert (crop == 200).all()
    pad = decode(str(file), shape, fit="pad")[0]
    assert (pad[[0, 1, 6, 7]] == 0).all() and pad[2:6, 3:5].min() > 150
    stretch = decode(str(file), shape)[0]
    assert stretch[0, 4] > 150 and stretch[0, 0] < 50
    assert (stretch == decode(str(file), shape, fit="stretch")[0]).all()


@pytest.mark.parametrize("fit", ["stretch", "pad", "crop"])
@pytest.mark.parametrize("size", [(1, 900), (900, 1), (4, 4), (1, 1)])
def test_the_narrowest_strip_fits(tmp_path, fit, size):
    write_png(tmp_path / "x.png", 90, size)
    assert decode(str(tmp_path / "x.png"), (3, 4, 4), fit=fit).shape == (3, 4, 4)


def test_fit_is_a_public_fact_that_goes_with_the_schema(tmp_path):
    write_png(tmp_path / "a" / "0.png", 9, (4, 8))
    data = load(tmp_path, image_size=4, channels=1, fit="pad")
    assert data.schema.fit == "pad" and data.images[0, 0, :, 0].max() == 0
    again = Schema.from_json(data.schema.to_json())
    assert again.fit == "pad"
    assert np.array_equal(load(tmp_path, schema=again).images, data.images)
    assert "fit" not in load(tmp_path, image_size=4, channels=1).schema.to_json()
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 4, 4), np.uint8))
    with pytest.raises(BadInput, match="no single pictures"):
        load(tmp_path / "x.npz", fit="pad")
    with pytest.raises(BadInput, match="stretch, pad or crop"):
        load(tmp_path, image_size=4, fit="squeeze")


# ------------------------------------------------------------------------------- a table beside them


def flat(folder: Path, lines: Sequence[str], header: str = "file,finding,patient_id") -> Path:
    for number in range(4):
        write_png(folder / f"{number}.png", 10 * number)
    (folder / "labels.csv").write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    return folder


LINES = ["2.png,ill,p1", "0.png,well,p1", "gone.png,ill,p9", "3.png, well ,p2", "1.png,odd,p2"]


@pytest.mark.parametrize("place", ["labels.csv", "{folder}/labels.csv"])
def test_labels_and_units_stand_in_a_table(tmp_path, place):
    folder = flat(tmp_path, LINES)
    labels = place.format(folder=folder) + ":finding"
    data = load(
        folder, image_size=4, channels=1, labels=labels, classes=["well", "ill"], unit="patient_id"
    )
    assert shades(data) == [0, 10, 20, 30]
    assert data.labels.tolist() == [0, -1, 1, 0]
    assert data.unit == Unit("patient", "the column 'patient_id' of labels.csv", 64)
    assert people(data) == [2, 2]
    assert data.take([2]).labels.tolist() == [1]
    assert data._source.part(2, 4).take(np.array([0]))[1].tolist() == [1]
    assert schema_of(folder, image_size=4, labels=labels, classes=["well", "ill"])[1] == 4


def test_a_table_of_persons_beside_class_folders(tmp_path):
    for name in ("a/0.png", "a/1.png", "b/0.png"):
        write_png(tmp_path / name, 5)
    table = tmp_path / "persons.csv"
    table.write_text("path,who\na/0.png,x\nb/0.png,x\na/1.png,y\n")
    data = load(tmp_path, image_size=4, channels=1, unit=f"{table}:who")
    assert people(data) == [1, 2] and data.schema.classes == ("a", "b")


def test_a_column_of_files_may_be_named(tmp_path):
    folder = flat(tmp_path, ["0,a", "1,b", "2,a", "3,b"], "scan,kind")
    with pytest.raises(BadInput, match="no column file, filename or path"):
        load(folder, image_size=4, labels="labels.csv:kind", classes=["a", "b"])
    data = load(folder, image_size=4, labels="labels.csv:kind:scan", classes=["a", "b"])
    assert data.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("lines", "stated", "sentence"),
    [
        (LINES[1:], {}, "2.png has no line in"),
        ([*LINES, LINES[0]], {}, "names a file twice"),
        (LINES, {"labels": "labels.csv:nothing"}, "no column 'nothing'"),
        (LINES, {"labels": "labels.txt"}, "TABLE.csv:COLUMN"),
        (LINES, {"labels": "other.csv:finding"}, "There is no"),
        (LINES, {"classes": None}, "reading them off the labels would be a leak"),
        (LINES, {"unit": "nobody"}, "no column of labels.csv"),
        ([*LINES[:-1], "1.png,odd,"], {"unit": "patient_id"}, "Some records have no 'patient_id'"),
    ],
)
def test_a_table_that_does_not_say_it_is_refused(tmp_path, lines, stated, sentence):
    folder = flat(tmp_path, lines)
    facts: dict[str, Any] = {"labels": "labels.csv:finding", "classes": ["well", "ill"], **stated}

    def read() -> None:
        data = load(folder, image_size=4, channels=1, **facts)
        _ = data.labels, data.units and data.units.codes(len(data))

    with pytest.raises(BadInput, match=sentence) as refusal:
        read()
    assert "p1" not in str(refusal.value)


def test_opening_reads_no_line(tmp_path, monkeypatch):
    from sfumato.data.beside import FileTable

    folder = flat(tmp_path, LINES)
    monkeypatch.setattr(FileTable, "_read", lambda *_: pytest.fail("a line was read"))
    load(folder, image_size=4, labels="labels.csv:finding", classes=2, unit="patient_id")


def test_neighbour_pictures_with_lines(tmp_path):
    def open_with(records: Sequence[tuple[bytes, str | None]]) -> Dataset:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        lines = ["file,label"]
        for number, (picture, label) in enumerate(records):
            (folder / f"{number}.png").write_bytes(picture)
            lines += [] if label is None else [f"{number}.png,{label}"]
        (folder / "labels.csv").write_text("\n".join(lines) + "\n")
        return load(folder, image_size=2, channels=1, labels="labels.csv", classes=["a", "b"])

    records = [(png(1), "a"), (png(2), "b"), (png(3), "z"), (png(4), None), (b"no", "a")]
    check_reader(open_with, records, counts=FEW)


# -------------------------------------------------------------------------------------------- DICOM

RAMP = np.linspace(0, 4095, 16).astype(np.uint16).reshape(4, 4)
WANT = np.rint(RAMP / 4095 * 255)


def dicom(folder: Path, pixels: np.ndarray = RAMP, **facts: Any) -> np.ndarray:
    stated = facts.pop("stated", None)
    file = write_dicom(folder / "x.dcm", pixels, **facts)
    return decode(str(file), (1, 4, 4), stated)[0].astype(float)


def test_bits_stored_settle_the_range_of_plain_dicom(tmp_path):
    assert np.abs(dicom(tmp_path) - WANT).max() <= 1
    assert np.abs(dicom(tmp_path, stated=(0.0, 8190.0)) - WANT / 2).max() <= 1
    assert np.abs(dicom(tmp_path, RAMP // 16, bits=8) - WANT).max() <= 1
    window = {"WindowCenter": "100", "WindowWidth": "50"}  # never used
    assert np.array_equal(dicom(tmp_path, **window), dicom(tmp_path))


def test_rescaled_numbers_need_a_range_in_their_own_units(tmp_path):
    ct = {"RescaleSlope": "1", "RescaleIntercept": "-1024"}
    assert np.abs(dicom(tmp_path, stated=(-1024.0, 3071.0), **ct) - WANT).max() <= 1
    lung = dicom(tmp_path, stated=(-1024.0, 0.0), **ct)
    assert (lung[RAMP >= 1024] == 255).all() and lung[0, 1] == round(273 / 1024 * 255)
    double = {"RescaleSlope": "2", "RescaleIntercept": "0"}
    assert np.abs(dicom(tmp_path, stated=(0.0, 8190.0), **double) - WANT).max() <= 1
    signed = (RAMP.astype(np.int16) - 1024).astype(np.int16)
    assert np.abs(dicom(tmp_path, signed, bits=16, stated=(-1024.0, 3071.0)) - WANT).max() <= 1
    for facts in (ct, double, {"pixels": signed}):
        with pytest.raises(BadInput, match="--range -1024 3071"):
            dicom(tmp_path, **facts)


def test_monochrome1_is_inverted(tmp_path):
    inverted = dicom(tmp_path, PhotometricInterpretation="MONOCHROME1")
    assert np.abs(inverted - (255 - WANT)).max() <= 1


def test_dicom_in_colour_becomes_gray_or_stays(tmp_path):
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[..., 0] = 200
    file = write_dicom(tmp_path / "x.dcm", pixels, bits=8)
    assert decode(str(file), (3, 4, 4))[:, 0, 0].tolist() == [200, 0, 0]
    assert decode(str(file), (1, 4, 4))[0, 0, 0] == 60
    with pytest.raises(BadInput, match="convert it to gray"):
        decode(str(file), (1, 4, 4), (0.0, 100.0))


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"pixels": np.stack([RAMP, RAMP]), "NumberOfFrames": "2"}, "several frames"),
        ({"Rows": 60_000, "Columns": 60_000}, "more than"),
        ({"Rows": 0}, "no picture"),
        ({"Rows": 5}, "truncated, damaged"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "convert it to gray"),
        ({"PhotometricInterpretation": None}, "no picture"),
        ({"BitsStored": 0}, "damaged"),
        ({"RescaleSlope": "0", "stated": (0.0, 1.0)}, "damaged"),
    ],
)
def test_dicom_that_cannot_be_read_rightly_is_refused_by_its_path(tmp_path, facts, sentence):
    with pytest.raises(BadInput, match=sentence) as refusal:
        dicom(tmp_path, **facts)
    assert "x.dcm" in str(refusal.value) and "p1" not in str(refusal.value)


def test_a_file_that_could_unpack_to_anything_is_not_unpacked(tmp_path):
    import zlib

    import pydicom
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    file = write_dicom(tmp_path / "x.dcm", RAMP)
    read = pydicom.dcmread(file)
    read.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    read.save_as(file)
    assert zlib  # what pydicom would unpack it with
    with pytest.raises(BadInput, match="deflated"):
        decode(str(file), (1, 4, 4))


def test_a_folder_of_dicom_is_gray_and_knows_its_patients(tmp_path):
    for number, patient in enumerate(["a", "b", "a", "a"]):
        kind = tmp_path / ("ill" if number % 2 else "well")
        kind.mkdir(exist_ok=True)
        write_dicom(kind / f"{number}.dcm", RAMP, PatientID=patient)
    data = load(tmp_path, image_size=4, unit="PatientID")
    assert data.schema.shape == (1, 4, 4) and data.schema.classes == ("ill", "well")
    assert data.unit == Unit("patient", "the DICOM field PatientID", 64)
    assert people(data) == [1, 3]
    write_dicom(tmp_path / "ill" / "9.dcm", RAMP, PatientID="")
    with pytest.raises(BadInput, match="Some records have no 'PatientID'"):
        people(load(tmp_path, image_size=4, unit="PatientID"))
    with pytest.raises(BadInput, match="none of the DICOM fields that name units"):
        load(tmp_path, image_size=4, unit="PixelData")
    write_png(tmp_path / "ill" / "x.png", 3)
    with pytest.raises(BadInput, match="DICOM files and other pictures"):
        load(tmp_path, image_size=4)
    assert len(load(tmp_path, image_size=4, channels=1)) == 6


def test_neighbour_dicom_files(tmp_path):
    kept = [
        write_dicom(tmp_path / "0.dcm", RAMP),
        write_dicom(tmp_path / "1.dcm", RAMP, PhotometricInterpretation="MONOCHROME1"),
        write_dicom(tmp_path / "2.dcm", RAMP[:3], bits=16),
        write_dicom(tmp_path / "3.dcm", RAMP, RescaleSlope="2", RescaleIntercept="1"),
    ]
    records = [file.read_bytes() for file in kept] + [b"no", b""]

    def open_with(some: Sequence[bytes]) -> Dataset:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        for number, content in enumerate(some):
            (folder / f"{number}.dcm").write_bytes(content)
        return load(folder, image_size=4)

    check_reader(open_with, records, counts=(0, 1, 16, 17))


def test_damaged_dicom_ends_in_a_sentence(tmp_path):
    from sfumato.testing.corrupt import CORRUPTIONS, corrupt

    sound = write_dicom(tmp_path / "x.dcm", RAMP).read_bytes()
    file, refused = tmp_path / "y.dcm", 0
    for seed in range(15):
        for kind in CORRUPTIONS:
            file.write_bytes(corrupt(sound, kind, seed, b"\x89PNG"))
            try:
                decode(str(file), (1, 4, 4))
            except BadInput:
                refused += 1
    assert refused > 30


# --------------------------------------------------------------------------------------- WebDataset


def write_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_webdataset_and_its_shards(tmp_path):
    write_tar(
        tmp_path / "a-0.tar",
        [
            ("p1-0.png", png(0)),
            ("p1-0.cls", b"1"),
            ("p1-0.json", b"{}"),
            ("p1-1.png", png(10)),
            ("p1-1.cls", b"0\n"),
        ],
    )
    write_tar(tmp_path / "a-1.tar", [("p2-0.cls", b"dog"), ("p2-0.png", png(20))])
    one = load(tmp_path / "a-0.tar", image_size=4, channels=1, classes=2)
    assert shades(one) == [0, 10] and one.labels.tolist() == [1, 0]
    facts = {"image_size": 4, "channels": 1, "classes": ["cat", "dog"]}
    data = load(tmp_path, **facts, unit=r"(p\d+)-")
    assert shades(data) == [0, 10, 20] and data.labels.tolist() == [1, 0, 1]
    assert people(data) == [1, 2]
    assert data.take([2, 0]).labels.tolist() == [1, 1]
    assert load(tmp_path, image_size=4, channels=1).labels is None


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ([("a.cls", b"1")], "no picture for a"),
        ([("a.png", png(1)), ("a.jpg", png(1)), ("a.cls", b"1")], "several pictures for a"),
        ([("a.png", png(1))], "no a.cls"),
        ([("a.png", png(1)), ("a.cls", b"1"), ("a.png", png(2))], "a.png twice"),
        ([], "holds no pictures"),
        ([("a.png", b"no"), ("a.cls", b"1")], "a.png is truncated, damaged"),
    ],
)
def test_a_tar_that_is_no_webdataset_is_refused(tmp_path, members, sentence):
    file = write_tar(tmp_path / "x.tar", members)
    with pytest.raises(BadInput, match=sentence):
        _ = load(file, image_size=4, channels=1, classes=2).images


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        (["1.png,n"], "has no line"),
        (["1.png,n", "b/1.png,i"], [0, 1]),
        (["1,n", "b/1,i"], [0, 1]),
        (["1.png,n", "1,i", "b/1.png,i"], "two lines"),
        (["1.png,n", "b/1.png,i", "b/1,n"], "two lines"),
    ],
)
def test_a_line_is_of_one_file_and_a_file_has_one_line(tmp_path, lines, outcome):
    folder = tmp_path / "pictures"
    (folder / "b").mkdir(parents=True)
    (folder / "1.png").write_bytes(png(1))
    (folder / "b" / "1.png").write_bytes(png(2))
    (tmp_path / "told.csv").write_text("\n".join(["file,label", *lines, ""]))
    data = load(folder, image_size=4, classes=["n", "i"], labels=f"{tmp_path}/told.csv")
    if isinstance(outcome, str):
        with pytest.raises(BadInput, match=outcome):
            _ = data.labels
    else:
        assert data.labels.tolist() == outcome


def test_a_line_that_fits_files_of_two_folders_is_refused(tmp_path):
    for home in "ab":
        (tmp_path / home).mkdir()
        (tmp_path / home / "1.png").write_bytes(png(1))
    (tmp_path / "told.csv").write_text("file,label\n1.png,n\n")
    data = load(tmp_path, image_size=4, classes=["n", "i"], labels="told.csv")
    with pytest.raises(BadInput, match=r"one line for .* and for another file"):
        _ = data.labels


def test_members_of_two_archives_are_told_by_lines_of_their_own(tmp_path):
    shards = tmp_path / "shards"
    shards.mkdir()
    for shard in range(2):
        write_tar(shards / f"s{shard}.tar", [("0.png", png(shard)), ("1.png", png(2 + shard))])
    told = tmp_path / "told.csv"
    facts = {"image_size": 4, "channels": 1, "unit": f"{told}:patient"}
    told.write_text("file,patient\n0.png,A\n1.png,B\n")
    with pytest.raises(BadInput, match=r"one line for .* and for another file"):
        load(shards, **facts).units.codes(4)
    names = [f"s{shard}.tar/{n}.png" for shard in range(2) for n in range(2)]
    lines = [f"{name},{who}" for name, who in zip(names, "ABCA", strict=True)]
    told.write_text("\n".join(["file,patient", *lines, ""]))
    assert load(shards, **facts).units.codes(4).tolist() == [0, 1, 2, 0]
    told.write_text("file,patient\n0.png,A\n1.png,B\n")
    assert load(shards / "s0.tar", **facts).units.codes(2).tolist() == [0, 1]


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_a_link_in_an_archive_is_refused(tmp_path, kind):
    file = write_tar(tmp_path / "x.tar", [("a.png", png(1))])
    with tarfile.open(file, "a") as archive:
        link = tarfile.TarInfo("b.png")
        link.type, link.linkname = kind, "a.png"
        archive.addfile(link)
    with pytest.raises(BadInput, match=r"b\.png as a link"):
        load(file, image_size=4, channels=1)


def test_a_first_line_that_may_be_a_record_is_not_quoted(tmp_path):
    (tmp_path / "1.png").write_bytes(png(1))
    for spec in ("told.csv", "told.csv:label:file"):
        (tmp_path / "told.csv").write_text("Smith.png,ill\n1.png,n\n")
        with pytest.raises(BadInput, match="in its first line, the header") as refusal:
            load(tmp_path, image_size=4, classes=["n", "ill"], labels=spec)
        assert "Smith" not in str(refusal.value)


def labelled_tar(path, told, ending="cls"):
    members = [(f"{n}.png", png(n)) for n in range(len(told))]
    return write_tar(path, members + [(f"{n}.{ending}", text) for n, text in enumerate(told)])


def test_a_cls_never_names_one_class_and_counts_another(tmp_path):
    file = labelled_tar(tmp_path / "x.tar", [b"0", b"1", b"2"])
    facts = {"image_size": 4, "channels": 1}
    with pytest.raises(BadInput, match="could be a name or a place"):
        load(file, **facts, classes=["1", "2", "3"])
    for classes in (3, ["0", "1", "2"], ["7", "8", "9"]):
        assert load(file, **facts, classes=classes).labels.tolist() == [0, 1, 2]
    named = labelled_tar(tmp_path / "y.tar", [b"3", b"1", b"0"], "cls.txt")
    assert load(named, **facts, classes=["1", "2", "3"]).labels.tolist() == [2, 0, -1]


def test_a_label_of_any_size_that_is_no_class_is_none(tmp_path):
    file = labelled_tar(tmp_path / "x.tar", [b"1", b"9" * 25, b"9" * 4000])
    assert load(file, image_size=4, channels=1, classes=2).labels.tolist() == [1, -1, -1]
    pictures = pa.array([{"bytes": png(1), "path": None}] * 2)
    labels = pa.array([1, 2**64 - 1], pa.uint64())
    pq.write_table(pa.table({"image": pictures, "label": labels}), tmp_path / "x.parquet")
    found = load(tmp_path / "x.parquet", image_size=4, channels=1, classes=["n", "p"])
    assert found.labels.tolist() == [1, -1]
    with pytest.raises(BadInput, match="could be a name or a place"):
        load(tmp_path / "x.parquet", image_size=4, channels=1, classes=["1", "0"])


def test_a_compressed_or_cut_tar_is_refused(tmp_path):
    import gzip

    file = write_tar(tmp_path / "x.tar", [("a.png", png(1)), ("a.cls", b"1")])
    whole = file.read_bytes()
    file.write_bytes(gzip.compress(whole))
    with pytest.raises(BadInput, match="unpack it if it is compressed"):
        load(file, image_size=4, classes=2)
    file.write_bytes(whole[:520])
    with pytest.raises(BadInput, match="truncated, damaged"):
        load(file, image_size=4, classes=2)


def test_neighbour_samples_of_a_tar(tmp_path):
    def open_with(records: Sequence[tuple[bytes, bytes]]) -> Dataset:
        file = Path(tempfile.mkdtemp(dir=tmp_path)) / "x.tar"
        members = [
            (f"{number}.{ending}", content)
            for number, record in enumerate(records)
            for ending, content in zip(("png", "cls"), record, strict=True)
        ]
        return load(write_tar(file, members), image_size=2, channels=1, classes=["a", "b"])

    records = [(png(1), b"0"), (png(2), b"b"), (png(3), b"7"), (png(4), b""), (b"no", b"1")]
    check_reader(open_with, records, counts=FEW)


# ----------------------------------------------------------------------- Hugging Face's image columns


def write_hub(
    path: Path, pictures: Sequence[bytes | None], names: list[str] | None, **columns: Any
):
    cells = [{"bytes": picture, "path": None} for picture in pictures]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(cells, kind), **columns})
    if names is not None:
        feature = {"label": {"names": names, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
        facts = json.dumps({"info": {"features": feature}})
        table = table.replace_schema_metadata({"huggingface": facts})
    pq.write_table(table, path, row_group_size=100)
    return path


def test_pictures_in_a_column_of_parquet(tmp_path):
    file = write_hub(
        tmp_path / "x.parquet",
        [png(0), png(10), png(20)],
        ["cat", "dog"],
        label=[1, 0, 5],
        who=["x", "y", "x"],
    )
    data = load(file, image_size=4, channels=1, unit="who")
    assert data.schema.classes == ("cat", "dog")
    assert shades(data) == [0, 10, 20] and data.labels.tolist() == [1, 0, -1]
    assert people(data) == [1, 2] and schema_of(file, image_size=4)[1] == 3
    assert data.take([2, 0]).labels.tolist() == [-1, 1]
    assert data._source.part(1, 3).take(np.array([1]))[0][0, 0, 0, 0] == 20
    plain = write_hub(tmp_path / "y.parquet", [png(0), png(9)], None, kind=["dog", "cat"])
    assert load(plain, image_size=4).labels is None
    stated = load(plain, image_size=4, labels="kind", classes=["cat", "dog"])
    assert stated.labels.tolist() == [1, 0]
    for facts, sentence in (
        ({"labels": "kind"}, "reading them off the labels"),
        ({"classes": 2}, "no column 'label'"),
    ):
        with pytest.raises(BadInput, match=sentence):
            load(plain, image_size=4, **facts)
    with pytest.raises(BadInput, match="size of the pictures"):
        load(plain)


def test_neighbour_pictures_in_a_column(tmp_path):
    def open_with(records: Sequence[tuple[bytes | None, int | None]]) -> Dataset:
        file = Path(tempfile.mkdtemp(dir=tmp_path)) / "x.parquet"
        labels = pa.array([label for _, label in records], pa.int64())
        write_hub(file, [picture for picture, _ in records], ["a", "b"], label=labels)
        return load(file, image_size=2, channels=1)

    records = [(png(1), 0), (png(2), 1), (png(3), 9), (png(4), None), (b"no", 1), (None, 0)]
    check_reader(open_with, records, counts=(0, 1, 63, 64, 65, 101))


def test_pictures_in_a_column_stream(tmp_path):
    """Packed pictures are held a few at a time, whatever the batch."""
    from sfumato.data.hub import PictureColumn

    file = write_hub(tmp_path / "x.parquet", [png(n % 250) for n in range(300)], None)
    data = load(file, image_size=2, channels=1)
    pieces = []
    source = data._source
    assert isinstance(source, PictureColumn)
    decoded = source._decoded
    source._decoded = lambda piece, pool: pieces.append(len(piece)) or decoded(piece, pool)
    assert [len(batch) for batch in data.batches(128)] == [128, 128, 44]
    assert max(pieces) <= 64


# ------------------------------------------------------------------------------------ behind an address


@pytest.fixture
def bucket(tmp_path):
    """A folder in fsspec's memory, filled from files made here."""
    import fsspec

    files = fsspec.filesystem("memory")

    def put(name: str) -> str:
        if files.exists(f"/bucket/{name}"):
            files.rm(f"/bucket/{name}", recursive=True)
        files.put(str(tmp_path / name), f"/bucket/{name}", recursive=True)
        return f"memory://bucket/{name}"

    yield put
    if files.exists("/bucket"):
        files.rm("/bucket", recursive=True)


def same(one: Dataset, other: Dataset) -> None:
    assert one.schema == other.schema and one.name == other.name
    assert np.array_equal(one.values, other.values, equal_nan=True)
    assert np.array_equal(one.labels, other.labels)
    assert one.take([1, 0]).values.equal(other.take([1, 0]).values)
    assert np.array_equal(one._source.part(1, 2).take(np.array([0]))[0], one.take([1]).values)


def test_pictures_behind_an_address_are_those_of_the_folder(tmp_path, bucket):
    for name in ("set/b/p1_0.png", "set/a/p1_1.png", "set/b/p2_0.png", "set/.hidden/x.png"):
        write_png(tmp_path / name, len(name) + ord(name[4]))
    facts: dict[str, Any] = {"image_size": 4, "channels": 1, "unit": r"(p\d)_"}
    url = bucket("set")
    same(load(url, **facts), load(tmp_path / "set", **facts))
    assert people(load(url, **facts)) == [1, 2]
    assert load(url, image_size=4, classes=["b", "a"]).labels.tolist() == [0, 0, 1]
    with pytest.raises(BadInput, match="differ"):
        load(url, image_size=4, classes=["b", "c"])
    with pytest.raises(BadInput, match="size of the pictures"):
        load(url)
    (tmp_path / "set" / "schema.json").write_text(json.dumps(load(url, **facts).schema.to_json()))
    assert load(bucket("set")).schema.classes == ("a", "b")


def test_patients_of_dicom_files_are_told_wherever_these_lie(tmp_path, bucket):
    """In a folder, behind an address, in an archive: the same people, and what a header lacks is refused everywhere."""
    whose = {"a/1": "X", "a/2": "Y", "b/1": "X", "b/2": "Z", "b/3": "X"}
    (tmp_path / "set/a").mkdir(parents=True)
    (tmp_path / "set/b").mkdir()
    members = []
    for name, patient in whose.items():
        pixels = np.full((4, 4), len(members), np.uint16)
        file = write_dicom(tmp_path / "set" / f"{name}.dcm", pixels, PatientID=patient)
        key = name.replace("/", "")
        members += [(f"{key}.dcm", file.read_bytes()), (f"{key}.cls", name[0].encode())]
    write_tar(tmp_path / "w.tar", members)
    facts: dict[str, Any] = {"image_size": 4, "channels": 1, "unit": "PatientID"}
    url = bucket("set")
    same(load(url, **facts), load(tmp_path / "set", **facts))
    packed = load(tmp_path / "w.tar", classes=["a", "b"], **facts)
    for data in (load(url, **facts), load(tmp_path / "set", **facts), packed):
        assert data.unit == load(url, **facts).unit and data.unit.name == "patient"
        assert data.units.codes(5).tolist() == [0, 1, 0, 2, 0]
    assert suggested_rule([load(url, **facts)._source], packed.schema) == ("PatientID", 3)
    write_dicom(tmp_path / "set/a/1.dcm", np.zeros((4, 4), np.uint16), PatientID=None)
    for place in (bucket("set"), tmp_path / "set"):
        with pytest.raises(BadInput, match="no 'PatientID', so nobody knows"):
            people(load(place, **facts))


def test_tables_and_archives_behind_an_address(tmp_path, bucket):
    (tmp_path / "t.csv").write_text("x,y\n1,a\n2,b\n")
    schema = {
        "kind": "table",
        "columns": [{"name": "x", "kind": "numerical", "low": 0, "high": 9}],
        "label": "y",
        "classes": ["a", "b"],
    }
    (tmp_path / "t.schema.json").write_text(json.dumps(schema))
    bucket("t.schema.json")
    same(load(bucket("t.csv")), load(tmp_path / "t.csv"))
    write_hub(tmp_path / "h.parquet", [png(3), png(9)], ["a", "b"], label=[1, 0])
    facts: dict[str, Any] = {"image_size": 4, "channels": 1}
    same(load(bucket("h.parquet"), **facts), load(tmp_path / "h.parquet", **facts))
    members = [("a.png", png(1)), ("a.cls", b"1"), ("b.png", png(2)), ("b.cls", b"0")]
    write_tar(tmp_path / "w.tar", members)
    facts["classes"] = 2
    same(load(bucket("w.tar"), **facts), load(tmp_path / "w.tar", **facts))


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("memory://bucket/nothing", "no folder, nor a .csv"),
        ("memory://bucket/nothing.csv", "not described"),
        ("memory://bucket/nothing.tar", "nothing at memory://"),
        ("memory://bucket/x.npz", "copy it here"),
        ("nonsense://bucket/x", "Cannot read nonsense://"),
        ("s3://user:secret@bucket/x.tar", "The address s3://bucket/x.tar came with"),
        ("ftp://u:sec/secret@h/x.csv", "The address ftp://h/x.csv came with"),
        ("https://secret@h/x.csv", "environment"),
        ("https://h/x.csv?sig=secret", "The address https://h/x.csv came with"),
        ("filecache::ftp://u:secret@h/x.csv", "environment"),
    ],
)
def test_an_address_that_cannot_be_read_is_one_sentence(address, sentence):
    with pytest.raises(BadInput, match=sentence) as refusal:
        load(address, image_size=4)
    assert "secret" not in str(refusal.value)
