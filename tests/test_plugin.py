"""The example of a package with a method is found as pip would leave it, and works from the command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import sfumato
from runs import BUDGET, succeed
from sfumato.methods import find_methods, registry

ROOT = Path(__file__).parent.parent
PLUGIN = ROOT / "examples" / "plugin"


def installed(place: Path) -> Path:
    """The package and what pip writes beside it, from its own pyproject.toml; nothing is built or fetched."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    shutil.copytree(PLUGIN / "sfumato_pixels", place / "sfumato_pixels")
    info = place / f"sfumato_pixels-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (group, entries), *others = project["entry-points"].items()
    assert not others
    lines = [f"[{group}]", *(f"{name} = {file}" for name, file in entries.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return place


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    find_methods()
    monkeypatch.setattr(registry, "_KNOWN", dict(registry._KNOWN))
    monkeypatch.syspath_prepend(str(installed(tmp_path / "site")))
    registry._found.cache_clear()
    yield tmp_path / "site"
    registry._found.cache_clear()
    for name in [n for n in sys.modules if n.partition(".")[0] == "sfumato_pixels"]:
        del sys.modules[name]


def test_it_is_found_fitted_sampled_and_verified_from_the_command_line(plugin, tmp_path):
    assert "pixels" in succeed("methods").stdout
    assert "spread" in succeed("methods", "pixels").stdout
    run = tmp_path / "run"
    succeed("fit", "pixels", "--data", "digits:train", *BUDGET, "--out", run, "-q")
    succeed("sample", run, "-n", 30, "--out", tmp_path / "made.npz")
    made = sfumato.load(tmp_path / "made.npz")
    assert made.images.shape == (30, 1, 8, 8)
    assert "PASS" in succeed("verify", run).stdout
    assert sfumato.Pixels is find_methods()["pixels"]


@pytest.mark.slow
def test_a_saved_run_is_sampled_by_another_process(plugin, tmp_path):
    """The class is found anew by its entry point: nothing of the process that fitted it is needed."""
    sfumato.fit("pixels", "digits:train", epsilon=1.0, delta=1e-5).save(tmp_path / "run")
    words = ["sample", str(tmp_path / "run"), "-n", "5", "--out", str(tmp_path / "made.npz")]
    paths = [str(plugin), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "sfumato", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert len(sfumato.load(tmp_path / "made.npz")) == 5


@pytest.mark.slow
def test_its_own_tests_pass(plugin):
    paths = [str(plugin), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PLUGIN / "tests")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        cwd=plugin,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
