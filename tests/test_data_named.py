"""Named data sets: known without a download, fetched whole or not at all, checked byte by byte."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import http.server
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from sfumato.data import (
    builders,
    catalogue,
    fetch,
    find_named,
    list_named,
    load,
    may_share,
    schema_of,
)
from sfumato.data.fetch import Built, NpmPackage, SourceFailed, Web, ensure
from sfumato.errors import BadInput, DataUnavailable
from sfumato.files import sha256_of
from sfumato.progress import Progress

CONTENT = {"a.bin": b"alpha" * 1000, "b.bin": b"beta" * 500}
FILES = {name: hashlib.sha256(data).hexdigest() for name, data in CONTENT.items()}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data" / "toy"


@dataclass
class Fake:
    """A source that writes what it is told, or fails halfway."""

    content: dict[str, bytes]
    failure: BaseException | None = None
    about: str = "a fake"
    calls: list[Path] = field(default_factory=list)

    def fetch(self, staging: Path, names: tuple[str, ...], progress: Progress) -> None:
        self.calls.append(staging)
        for name in names:
            (staging / name).write_bytes(self.content.get(name, b""))
            if self.failure is not None:
                raise self.failure


def left_in(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()} - {".lock", "verified.json"}


# ------------------------------------------------------------------------------------------ names


def test_public_facts_of_named_sets_need_no_download(cache):
    schema, size = schema_of("fashion-mnist:test")
    assert (schema.shape, schema.n_classes, size) == ((1, 28, 28), 10, 10_000)
    assert schema_of("fashion-mnist") == schema_of("fashion-mnist:train")
    assert not cache.parent.exists()
    for entry in list_named():
        assert entry.licence and entry.about and not entry.cached
        assert set(entry.splits) == {"train", "test"}
        assert entry.sources
        assert all(len(sha) == 64 for sha in entry.files.values())
        assert schema_of(entry.name) == (entry.schema, entry.sizes[entry.splits[0]])


def test_the_catalogue_names_every_builder_and_no_other():
    built = {
        source.prepare.func
        for entry in list_named()
        for source in entry.sources
        if isinstance(source, fetch.Prepared)
    }
    assert built == set(catalogue._BUILDERS.values())
    # A column that is left out stands in the file and not in the set.
    census, _ = schema_of("census")
    prepare = find_named("census")[0].sources[0].prepare
    (contents,) = prepare.args
    assert set(contents.header) - {column.name for column in census.columns} == {
        "instance weight",
        "income",
    }


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("fashon-mnist", "did you mean fashion-mnist"),
        ("fashionmnist:train", "did you mean fashion-mnist"),
        ("digit", "did you mean digits"),
        ("", "name or path of a data set is empty"),
        ("zzz", "; the known names are fashion-mnist, mnist, digits"),
        ("digits:valid", "digits:train or digits:test"),
        ("digits:", "digits:train or digits:test"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_ones(spec, hint):
    for ask in (load, schema_of):
        with pytest.raises(BadInput, match=hint):
            ask(spec)


def test_the_facts_of_a_named_set_cannot_be_overruled():
    with pytest.raises(BadInput, match="fixed"):
        load("digits", image_size=16)


def test_digits_are_the_real_ones_split_by_every_fifth(cache):
    from sklearn.datasets import load_digits

    raw = load_digits()
    test = np.arange(1797) % 5 == 0
    for split, chosen in (("train", ~test), ("test", test)):
        data = load(f"digits:{split}")
        assert data.name == f"digits:{split}"
        assert (data.schema, len(data)) == schema_of(data.name)
        assert np.array_equal(np.rint(data.images[:, 0] * (16 / 255)), raw.images[chosen])
        assert np.array_equal(data.labels, raw.target[chosen])
        assert data.random_access
        data.check()


# --------------------------------------------------------------------------------------- fetching


def test_a_fetched_set_is_cached_and_not_fetched_again(cache):
    source = Fake(CONTENT)
    for _ in range(3):
        assert ensure("toy", FILES, (source,)) == cache
    assert len(source.calls) == 1
    assert left_in(cache) == set(FILES)
    assert (cache / "a.bin").read_bytes() == CONTENT["a.bin"]


def test_wrong_bytes_are_refused_and_the_next_source_is_asked(cache):
    wrong = Fake({**CONTENT, "b.bin": b"tampered"}, about="a mirror")
    with pytest.raises(DataUnavailable) as caught:
        ensure("toy", FILES, (wrong,))
    assert "a mirror: b.bin has another SHA-256" in str(caught.value)
    assert str(cache) in str(caught.value)
    assert left_in(cache) == set(), "not even the good file is kept from a bad source"
    ensure("toy", FILES, (wrong, Fake(CONTENT)))
    assert left_in(cache) == set(FILES)


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), SourceFailed("it broke"), MemoryError()])
def test_an_interrupted_fetch_leaves_no_half_file(cache, failure):
    kind = DataUnavailable if isinstance(failure, SourceFailed) else type(failure)
    with pytest.raises(kind):
        ensure("toy", FILES, (Fake(CONTENT, failure),))
    assert left_in(cache) == set()
    assert not (cache / "verified.json").exists()


def test_the_leftovers_of_a_killed_process_are_swept_away(cache):
    (cache / ".fetch-dead").mkdir(parents=True)
    (cache / ".fetch-dead" / "a.bin").write_bytes(b"half")
    ensure("toy", FILES, (Fake(CONTENT),))
    assert left_in(cache) == set(FILES)


def test_a_file_that_changed_in_the_cache_is_noticed(cache):
    ensure("toy", FILES, (Fake(CONTENT),))
    (cache / "a.bin").write_bytes(b"x" * 5000)
    source = Fake(CONTENT)
    ensure("toy", FILES, (source,))
    assert len(source.calls) == 1
    assert (cache / "a.bin").read_bytes() == CONTENT["a.bin"]
    (cache / "verified.json").write_text("{")
    ensure("toy", FILES, (source,))
    assert len(source.calls) == 1, "whole files need only a new receipt"


def test_files_placed_by_hand_are_used_after_a_check(cache):
    cache.mkdir(parents=True)
    (cache / "a.bin").write_bytes(CONTENT["a.bin"])
    (cache / "b.bin.gz").write_bytes(gzip.compress(CONTENT["b.bin"]))
    ensure("toy", FILES, ())
    assert (cache / "b.bin").read_bytes() == CONTENT["b.bin"]
    (cache / "verified.json").unlink()
    (cache / "b.bin").write_bytes(b"something else")
    with pytest.raises(DataUnavailable, match=r"the cache folder: b\.bin has another SHA-256"):
        ensure("toy", FILES, ())


def test_many_at_once_fetch_once(cache):
    source = Fake(CONTENT)
    with ThreadPoolExecutor(6) as pool:
        found = pool.map(lambda _: ensure("toy", FILES, (source,)), range(6))
        assert list(found) == [cache] * 6
    assert len(source.calls) == 1


def test_a_cache_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / "file"))
    with pytest.raises(BadInput, match="SFUMATO_CACHE"):
        ensure("toy", FILES, (Fake(CONTENT),))


def test_tools_that_are_absent_or_fail_are_reasons_not_crashes(tmp_path, monkeypatch):
    for command, seconds, words in (
        ("no-such-tool-here", 60, "not installed"),
        ("false", 60, "failed"),
        ("sleep 5", 0.05, "in time"),
    ):
        monkeypatch.setattr(fetch, "TOOL_SECONDS", seconds)
        with pytest.raises(SourceFailed, match=words):
            fetch.run_tool(command.split(), tmp_path)
    monkeypatch.setattr(
        fetch, "run_tool", lambda _, folder: (folder / "x.tgz").write_bytes(b"other")
    )
    with pytest.raises(SourceFailed, match="another SHA-256"):
        NpmPackage("toy@1", "0" * 64, "package").fetch(tmp_path, tuple(FILES), Progress())

    def needs_a_package(_: Path) -> None:
        raise ImportError(name="nothing")

    with pytest.raises(SourceFailed, match="nothing is not installed"):
        Built("a build", needs_a_package).fetch(tmp_path, tuple(FILES), Progress())


# ------------------------------------------------------------------------ a server on this machine


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.rsplit("/", 1)[1].removesuffix(".gz")
        if name not in CONTENT:
            self.send_error(404)
            return
        data = gzip.compress(CONTENT[name])
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        broken = "/broken/" in self.path and name == "b.bin"
        self.wfile.write(data[: len(data) // 2] if broken else data)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_files_come_over_http_and_a_cut_connection_leaves_nothing(cache, server, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(DataUnavailable, match=r"damaged|broke off"):
        ensure("toy", FILES, (Web(f"{server}/broken/"),))
    assert left_in(cache) == set()
    nowhere = "http://127.0.0.1:9"
    for files, place, words in (
        ({"c.bin": "0" * 64}, server, "answered 404"),
        (FILES, nowhere, "no connection"),
    ):
        with pytest.raises(DataUnavailable, match=words):
            ensure("toy", files, (Web(f"{place}/"),))
    ensure("toy", FILES, (Web(f"{server}/whole/"),))
    assert (cache / "b.bin").read_bytes() == CONTENT["b.bin"]


# ------------------------------------------------------------------------------------------ parts


def test_a_part_of_a_set_is_every_second_record_of_its_classes(tmp_path):
    labels = np.array([2, 9, 0, 8, 1, 2, 9, 0, 2, 8])
    values = np.arange(10, dtype=np.uint8).repeat(3 * 32 * 32).reshape(10, 3, 32, 32)
    builders.write_arrays(tmp_path, "train", values, labels)
    found = {}
    for name in ("cifar10-vehicles", "cifar10-birds", "cifar10-half"):
        entry = find_named(name)[0]
        ((rows, codes),) = entry.open(tmp_path, "train").blocks(99)
        found[name] = set(rows[:, 0, 0, 0].tolist())
        known = find_named("cifar10")[0].schema.classes
        assert [known[labels[row]] for row in rows[:, 0, 0, 0]] == [
            entry.schema.classes[code] for code in codes
        ]
        assert entry.store == "cifar10" and entry.files == find_named("cifar10")[0].files
    assert found == {
        "cifar10-vehicles": {2, 4, 6},
        "cifar10-birds": {0, 8},
        "cifar10-half": {1, 3, 5, 7, 9},
    }


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("cifar10:train", "cifar10", True),
        ("cifar10:train", "cifar10:test", False),
        ("cifar10-vehicles:train", "cifar10", True),  # a network trained on the whole
        ("cifar10", "cifar10-half:train", True),
        ("cifar10-vehicles:train", "cifar10-birds:train", True),  # by name they may
        ("cifar10-vehicles:train", "cifar10-half:train", False),
        ("chest-xray-28:train", "chest-xray", True),  # the same pictures, smaller
        ("mnist:train", "fashion-mnist", False),
        ("mine", "mine", True),
        ("mine", "cifar10", False),
    ],
)
def test_names_tell_whether_two_sets_may_have_records_in_common(first, second, shared):
    assert may_share(first, second) is may_share(second, first) is shared


# ------------------------------------------------------------------------------ the real thing


@pytest.mark.network
@pytest.mark.parametrize("name", [entry.name for entry in list_named() if not entry.store])
def test_each_source_that_answers_gives_the_registered_records(name, tmp_path, monkeypatch):
    entry = find_named(name)[0]
    answered = []
    for index, source in enumerate(entry.sources):
        monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path / str(index)))
        try:
            folder = dataclasses.replace(entry, sources=(source,)).fetch()
        except DataUnavailable as error:
            if "SHA-256" in str(error):
                raise
            continue
        answered.append(source.about)
        assert left_in(folder) == set(entry.files)
        if entry.exact:
            hashes = {file: sha256_of(folder / file) for file in entry.files}
            assert hashes == dict(entry.files)
        for split, size in entry.sizes.items():
            data = load(f"{name}:{split}")
            assert (len(data), data.schema) == (size, entry.schema)
            assert data.take([0, size - 1]).values.shape == (2, *entry.schema.shape)
            data.check()
        shutil.rmtree(folder)
    assert answered
