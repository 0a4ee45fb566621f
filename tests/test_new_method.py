"""`sfumato new-method` writes what works: CONTRIBUTING is followed to the letter."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

import sfumato
from runs import refused
from sfumato.cli.main import app
from sfumato.cli.new_method import KINDS, write_method
from sfumato.methods import Method, find_methods, registry
from sfumato.testing.methods import BUDGET, CHECKS, cases_of, small_images

ROOT = Path(__file__).parent.parent


def opened(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _nothing_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    find_methods()
    monkeypatch.setattr(registry, "_KNOWN", dict(registry._KNOWN))


@pytest.mark.parametrize("kind", KINDS)
def test_a_method_from_each_template_keeps_the_contract(kind, tmp_path):
    written = write_method("my-own", kind, tmp_path)
    cls = opened(written["method"]).MyOwn
    assert find_methods()["my-own"] is cls
    for case in cases_of(cls):
        for check in CHECKS.values():
            check(case)


def test_the_files_go_where_a_clone_has_its_own(tmp_path):
    (tmp_path / "src/sfumato/methods").mkdir(parents=True)
    written = write_method("my-means", "sums", tmp_path)
    found = {what: str(path.relative_to(tmp_path)) for what, path in written.items()}
    assert found == {
        "method": "src/sfumato/methods/my_means.py",
        "test": "tests/test_my_means.py",
        "page": "docs/methods/my-means.md",
    }
    assert "from sfumato.methods.my_means import MyMeans" in written["test"].read_text()


def test_contributing_is_followed_to_the_letter(tmp_path):
    """The two commands under *Add a method*, in an empty folder, as a newcomer types them."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.split("## Add a method")[1].split("##")[0]
    assert "sfumato new-method my-means --kind sums" in section
    made = CliRunner().invoke(
        app, ["new-method", "my-means", "--kind", "sums", "--out", str(tmp_path)]
    )
    assert made.exit_code == 0, made.output
    assert '[project.entry-points."sfumato.methods"]\n  my-means = "my_means"\n' in made.output
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_means.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["My-Means", "9lives", "a b", "../x", "", "class"])
def test_names_that_make_no_module_are_refused(name, tmp_path):
    result = CliRunner().invoke(app, ["new-method", name, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_a_loop_of_links_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    line = refused(2, "new-method", "my-means", "--out", tmp_path / "loop")
    assert "Too many levels of symbolic links" in line


def test_nothing_is_written_over_and_no_name_is_taken_twice(tmp_path):
    assert CliRunner().invoke(app, ["new-method", "merf", "--out", str(tmp_path)]).exit_code == 2
    arguments = ["new-method", "mine", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    assert CliRunner().invoke(app, arguments).exit_code == 6
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


# -- methods of other packages ------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with one method that works and one that does not, as pip leaves it."""
    home = tmp_path / "site"
    (home / "elsewhere").mkdir(parents=True)
    (home / "elsewhere" / "__init__.py").touch()
    write_method("from-elsewhere", "sums", home / "elsewhere")
    info = home / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[sfumato.methods]\nfrom-elsewhere = elsewhere.from_elsewhere\nlost = elsewhere.no_such_file\n"
    )
    monkeypatch.syspath_prepend(str(home))
    registry._found.cache_clear()
    yield home
    registry._found.cache_clear()


def test_a_method_of_another_package_is_found_fitted_and_sampled(package, tmp_path):
    assert sfumato.get_method("from-elsewhere").info.title == "From elsewhere"
    fitted = sfumato.get_method("from-elsewhere")().fit(
        small_images(), BUDGET, out=tmp_path / "run"
    )
    again = Method.load(tmp_path / "run")
    assert (again.sample(5, seed=0).images == fitted.sample(5, seed=0).images).all()
    arguments = ["sample", str(tmp_path / "run"), "-n", "3", "--out", str(tmp_path / "x.npz")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert (tmp_path / "x.npz").exists()


def test_a_broken_package_takes_nothing_away_and_is_named(package):
    assert sfumato.get_method("merf").info.name == "merf"
    with pytest.raises(sfumato.SfumatoError, match="another package cannot be loaded"):
        sfumato.get_method("lost")
