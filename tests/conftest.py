"""What all tests share: an isolated cache, one thread per worker, a patient hypothesis."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Before torch is imported: pytest-xdist runs a worker per core, and threads inside the workers would fight over them.
if os.environ.get("PYTEST_XDIST_WORKER"):
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, "1")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

from sfumato.privacy import PrivateData

# A shared machine stalls now and then; a stall is not a failure.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

_USERS_CACHE = os.environ.get("SFUMATO_CACHE")


@pytest.fixture(scope="session", autouse=True)
def _isolated_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Quick tests neither see nor fill the user's cache, so they pass or fail alike everywhere."""
    os.environ["SFUMATO_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    _restore()


@pytest.fixture(autouse=True)
def _users_cache_for_big_tests(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow and network tests use what was already fetched."""
    if request.node.get_closest_marker("slow") or request.node.get_closest_marker("network"):
        if _USERS_CACHE is None:
            monkeypatch.delenv("SFUMATO_CACHE", raising=False)
        else:
            monkeypatch.setenv("SFUMATO_CACHE", _USERS_CACHE)


def _restore() -> None:
    if _USERS_CACHE is None:
        os.environ.pop("SFUMATO_CACHE", None)
    else:
        os.environ["SFUMATO_CACHE"] = _USERS_CACHE


@pytest.fixture
def quick_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded normals in place of exact draws, of which a core makes 40,000 a second: where noise plays no part in a test."""
    random = np.random.default_rng()

    def rounded(count: int, scale: float, *_: object, **__: object) -> NDArray[np.int64]:
        return np.rint(random.normal(0, scale, count)).astype(np.int64)

    monkeypatch.setitem(PrivateData.__init__.__kwdefaults__, "discrete_sampler", rounded)  # type: ignore[arg-type]
