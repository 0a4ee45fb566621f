"""The built wheel in an environment of its own: its declared requirements suffice, its files are all there, a fit works.

Nothing but the builder is downloaded: the new environment is given, by links, the packages that the wheel requires and those
that they require, and none of the rest that a developer has.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.slow


def required(
    found: Distribution | None, requirements: list[str], seen: dict[str, Distribution]
) -> None:
    """Add what these requirements need, and so on; extras only where they are asked for."""
    for text in requirements:
        wanted = Requirement(text)
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        extras = wanted.extras or {""}
        if wanted.marker and not any(wanted.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        if name in seen:
            continue
        try:
            seen[name] = distribution(wanted.name)
        except PackageNotFoundError:
            if found is None:
                raise
            continue  # of another platform
        required(seen[name], seen[name].requires or [], seen)


def linked(packages: dict[str, Distribution], site: Path) -> None:
    for package in packages.values():
        home = Path(str(package.locate_file("")))
        for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            if not (site / top).exists() and (home / top).exists():
                (site / top).symlink_to(home / top)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(place), str(ROOT))
    (wheel,) = place.glob("sfumato-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
        archive_names = archive.namelist()
    assert "sfumato/py.typed" in archive_names
    run(sys.executable, "-m", "venv", "--without-pip", str(place / "env"))
    python = place / "env" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    packages: dict[str, Distribution] = {}
    required(None, re.findall(r"^Requires-Dist: (.+)$", text, re.M), packages)
    linked(packages, site)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return python


def run(*command: object, **more: str) -> str:
    found = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **more},
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_the_wheel_is_what_is_imported_and_nothing_else_of_a_developers(python):
    told = run(python, "-c", "import sfumato; print(sfumato.__file__)").strip()
    assert Path(told).is_relative_to(python.parent.parent)
    code = "import importlib.util as u; print([n for n in ('pytest', 'polars', 'datasets', 'ray') if u.find_spec(n)])"
    assert run(python, "-c", code).strip() == "[]"


def test_a_run_from_plan_to_report_with_the_wheel_alone(python, tmp_path):
    def sfumato(*arguments: object) -> str:
        return run(python, "-m", "sfumato", *arguments, SFUMATO_CACHE=str(tmp_path / "cache"))

    assert "mixture" in sfumato("methods")
    budget = ("--epsilon", 2, "--delta", "1e-5")
    folder = tmp_path / "run"
    sfumato("fit", "mixture", "--data", "digits:train", *budget, "--out", folder, "--quiet")
    sfumato("sample", folder, "-n", 400, "--out", tmp_path / "some.npz", "--quiet")
    sfumato("evaluate", folder, "--real", "digits:test", "-n", 400, "--metrics", "accuracy.logreg")
    sfumato("report", folder, "--quiet")
    assert (folder / "report.html").stat().st_size > 10_000
    told = json.loads(sfumato("verify", folder, "--json"))
    assert told
    code = f"import sfumato; print(len(sfumato.load_run({str(folder)!r}).sample(3)))"
    assert run(python, "-c", code).strip() == "3"
