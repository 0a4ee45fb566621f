"""Public data that are the private file: found by keyed digests before anything is charged, told to the operator alone."""

from __future__ import annotations

import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sfumato.cli.main import app
from sfumato.data import Dataset, load
from sfumato.data.schema import Column, Schema
from sfumato.data.sources import ArraySource
from sfumato.errors import BadInput, CorruptArtifact, SfumatoError
from sfumato.methods import get_method
from sfumato.privacy import Budget, overlap, refuse_overlap, refuse_trained_on
from sfumato.public.linear import PcaCodec
from sfumato.public.pretraining import Schedule, pretrain_codec, pretrain_extractor, pretrain_pca

BUDGET = Budget(epsilon=1.0, delta=1e-5)


def pixels(n: int = 200, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 8, 8), dtype=np.uint8)


def images(n: int = 200, *, seed: int = 0, name: str = "patients") -> Dataset:
    return Dataset.from_arrays(pixels(n, seed=seed), np.arange(n) % 2, classes=2, name=name)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "made-of"


# -- rows -----------------------------------------------------------------------------------------------------------


def test_other_rows_pass():
    refuse_overlap(images(3000), images(3000, seed=1))


@pytest.mark.parametrize("at", [0, 1, 1022, 1023, 1024, 2047, 2048, 2999])
@pytest.mark.parametrize("where", [0, 1023, 1024, 1499])
def test_one_common_row_anywhere_is_enough(at, where):
    private, public = pixels(3000), pixels(1500, seed=1)
    public[where] = private[at]
    with pytest.raises(BadInput, match="voids the guarantee"):
        refuse_overlap(Dataset.from_arrays(private), Dataset.from_arrays(public))


def test_labels_order_type_and_repetition_do_not_hide_a_copy():
    private = images(300)
    upside_down = pixels(300)[::-1]
    for public in (
        Dataset.from_arrays(upside_down),  # unlabelled, in another order
        Dataset.from_arrays(upside_down, np.ones(300, int), classes=2),
        Dataset.from_arrays(upside_down.astype(np.float32) / 255),
        Dataset.from_arrays(upside_down.astype(np.float64) / 255),
        Dataset.from_arrays(np.repeat(pixels(300)[:1], 5, axis=0)),
        Dataset.from_arrays(pixels(300)[:, None]),
    ):
        with pytest.raises(BadInput):
            refuse_overlap(private, public)
        with pytest.raises(BadInput):
            refuse_overlap(public, private)


def test_images_of_one_colour_are_no_overlap_and_any_other_pair_is():
    rng = np.random.default_rng(3)
    colours = rng.integers(0, 256, (6, 3, 1, 1), dtype=np.uint8)
    blank = np.broadcast_to(colours, (6, 3, 8, 8)).copy()
    private = np.concatenate([rng.integers(0, 256, (9, 3, 8, 8), dtype=np.uint8), blank])
    public = np.concatenate([blank, rng.integers(0, 256, (9, 3, 8, 8), dtype=np.uint8)])
    refuse_overlap(Dataset.from_arrays(private), Dataset.from_arrays(public))
    private[-1, 0, 4, 4] ^= 1  # one pixel is content: a blank scan with its speck is a record
    public[5] = private[-1]
    with pytest.raises(BadInput):
        refuse_overlap(Dataset.from_arrays(private), Dataset.from_arrays(public))


def test_a_record_of_nan_neither_fails_nor_matches():
    rows = np.full((4, 1, 8, 8), np.nan, np.float32)
    private = Dataset(ArraySource(rows, None), Schema(kind="images", shape=(1, 8, 8)), "broken")
    refuse_overlap(private, Dataset.from_arrays(pixels(5)))
    refuse_overlap(private, private)  # blank


def test_tables_are_compared_as_methods_see_them():
    columns = (
        Column(name="age", kind="numerical", low=-10.0, high=100.0, missing=True),
        Column(name="kind", kind="categorical", categories=("a", "b"), missing=True),
    )
    schema = Schema(kind="table", columns=columns)

    def table(*rows: tuple[float, float]) -> Dataset:
        return Dataset.from_values(np.array(rows, np.float32), schema=schema)

    nan = float("nan")
    refuse_overlap(table((1, 0), (nan, nan)), table((1, 1), (nan, nan)))
    for mine, theirs in (((1, 0), (1, 0)), ((0.0, 1), (-0.0, 1)), ((nan, 1), (-nan, 1))):
        with pytest.raises(BadInput):
            refuse_overlap(table((5, 1), mine), table(theirs, (7, 0)))


def test_digests_differ_from_one_comparison_to_the_next():
    """Unkeyed ones could be looked up by whoever guesses a record."""
    data = images(20)
    first, second = (overlap._all_digests(data, key) for key in (b"1" * 32, b"2" * 32))
    assert len(first) == len(second) == 20
    assert not set(first) & set(second)


class Unread(Dataset):
    def __init__(self, source: Dataset) -> None:
        super().__init__(source._source, source.schema, source.name)

    def batches(self, size: int):
        raise AssertionError("a row was read")


# -- fitting --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _copied(tmp_path: Path) -> None:
    images().save(tmp_path / "patients.npz")
    shutil.copy(tmp_path / "patients.npz", tmp_path / "other.npz")


@pytest.mark.usefixtures("_copied")
def test_two_loads_of_one_file_and_a_renamed_copy_are_refused(tmp_path):
    private = load(tmp_path / "patients.npz", classes=2)
    for name in ("patients.npz", "other.npz"):
        how = {"public": load(tmp_path / name, classes=2), "out": tmp_path / "run"}
        with pytest.raises(BadInput, match="voids the guarantee") as told:
            get_method("mge")(codec="pca:4").fit(private, BUDGET, **how)
        assert "200" not in str(told.value)  # not how many
        assert not (tmp_path / "run").exists()  # nothing was begun, let alone charged


@pytest.mark.usefixtures("_copied")
def test_the_command_tells_the_operator_and_writes_nothing(tmp_path):
    words = ["fit", "mge", "--data", str(tmp_path / "patients.npz"), "--classes", "2", "-q"]
    words += ["--public", str(tmp_path / "other.npz"), "--set", "codec=pca:4"]
    words += ["--epsilon", "0.1", "--delta", "1e-6", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "voids the guarantee" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.npz", "patients.npz"]


def test_no_row_is_read_for_it_once_a_run_is_finished(tmp_path):
    method = get_method("mge")(codec="pca:4")
    method.fit(images(), BUDGET, public=images(60, seed=1), out=tmp_path / "run")
    how = {"public": images(60, seed=1), "out": tmp_path / "run", "resume": True}
    again = get_method("mge")(codec="pca:4").fit(Unread(images()), BUDGET, **how)
    assert np.array_equal(again.sample(5, seed=0).images, method.sample(5, seed=0).images)


def test_the_statement_says_whose_word_public_is():
    told = get_method("mge")().fit(images(), BUDGET).statement_.to_json()
    assert any("the word of whoever ran this" in line for line in told["not_covered"])


# -- codecs and networks --------------------------------------------------------------------------------------------


def made(kind: str, public: Dataset, out: Path) -> Path:
    schedule = Schedule(steps=1, batch=4)
    if kind == "codec":
        pretrain_codec(public, out, schedule, dim=4, width=8)
    elif kind == "pca":
        pretrain_pca(public, out, dim=4)
    elif kind == "python":
        PcaCodec.fit(public, 4).save(out)
    else:
        pretrain_extractor(public, out, schedule, width=8)
    return out


@pytest.mark.parametrize("kind", ["codec", "pca", "python", "extractor"])
def test_what_was_trained_on_private_rows_is_refused_under_any_name(kind, cache, tmp_path):
    path = made(kind, images(80), tmp_path / "made.safetensors")
    copy = tmp_path / "from a colleague.safetensors"
    shutil.copy(path, copy)
    mixed = Dataset.from_arrays(np.concatenate([pixels(50, seed=5), pixels(80)[79:]]))
    for artifact in (path, str(copy), f"pca:{path}"):
        refuse_trained_on(images(seed=1), artifact)
        for private in (images(80), mixed):
            with pytest.raises(BadInput, match="not public") as told:
                refuse_trained_on(private, artifact)
            assert "80" not in str(told.value)


@pytest.mark.parametrize(
    ("method", "setting", "kind"),
    [("mge", "codec", "pca"), ("mixture", "codec", "pca"), ("mepf", "encoder", "extractor")],
)
def test_a_fit_refuses_it_before_anything_is_charged(method, setting, kind, cache, tmp_path):
    path = made(kind, images(80), tmp_path / "made.safetensors")
    with pytest.raises(BadInput, match="trained on private records"):
        get_method(method)(**{setting: str(path)}).fit(images(80), BUDGET, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_record_is_local_keyed_and_for_the_user_alone(cache, tmp_path):
    path = made("pca", images(80), tmp_path / "made.safetensors")
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    files = list(cache.iterdir())
    assert len(files) == 2
    assert all(stat.S_IMODE(f.stat().st_mode) == 0o600 for f in files)
    (record,) = (f for f in files if f.name != "secret")
    secret, digests = (cache / "secret").read_bytes(), record.read_bytes()
    assert len(secret) == 32 and len(digests) == 80 * 16
    published = path.read_bytes()
    assert secret not in published
    assert not any(digests[i : i + 16] in published for i in range(0, len(digests), 16))
    # Another cache has another secret, and knows nothing of the file.
    (cache / "secret").unlink()
    refuse_trained_on(images(80), path)


def test_without_a_record_nothing_is_read_and_no_cache_is_made(cache, tmp_path):
    plain = tmp_path / "plain.safetensors"
    plain.write_bytes(b"no record")
    names = ["dct", "dct:64", "pca:4", "resnet18", "", "x" * 5000, "a\0b", str(tmp_path)]

    def ask() -> None:
        for artifact in [*names, str(plain), tmp_path / "none"]:
            refuse_trained_on(Unread(images()), artifact)

    ask()
    assert not cache.exists()
    made("pca", images(80, seed=2), tmp_path / "made.safetensors")
    ask()


def test_damage_to_the_records_is_a_sentence(cache, tmp_path):
    path = made("pca", images(80), tmp_path / "made.safetensors")
    (record,) = (f for f in cache.iterdir() if f.name != "secret")
    for file, damaged in ((record, record.read_bytes()[:-3]), (cache / "secret", b"short")):
        file.write_bytes(damaged)
        with pytest.raises(CorruptArtifact):
            refuse_trained_on(images(80), path)


def test_a_file_that_cannot_be_remembered_is_not_made(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file in the way")
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "cache"))
    for kind in ("pca", "extractor"):
        with pytest.raises(SfumatoError, match="SFUMATO_CACHE"):
            made(kind, images(80), tmp_path / "made.safetensors")
        assert not (tmp_path / "made.safetensors").exists()


def test_processes_that_draw_the_secret_together_agree(cache):
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: overlap._secret(), range(64)))
    assert len(found) == 1
    assert [f.name for f in cache.iterdir()] == ["secret"]
