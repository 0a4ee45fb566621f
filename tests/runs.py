"""What tests of runs and of the wall share: the command line, small files, charges, and samplers without noise."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner, Result
from hypothesis import strategies as st

from sfumato.cli.main import app
from sfumato.privacy import Charge

BUDGET = ("--epsilon", "1", "--delta", "1e-5")


def run(*words: object) -> Result:
    """`sfumato` with these words, in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def succeed(*words: object) -> Result:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result


def refused(code: int, *words: object) -> str:
    """The one line on standard error that such a command ends in; nothing is on standard output."""
    result = run(*words)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("Error: ")
    return line


def arrays_in(folder: Path, size: int = 8, **counts: int) -> dict[str, Path]:
    """A file of random pictures in two classes for each name, with so many records."""
    rng, made = np.random.default_rng(0), {}
    for name, n in counts.items():
        pixels = rng.integers(0, 256, (n, size, size), dtype=np.uint8)
        made[name] = folder / f"{name}.npz"
        np.savez(made[name], images=pixels, labels=np.arange(n) % 2)
    return made


def charge(noise_multiplier: float, **more: Any) -> Charge:
    return Charge(**{"label": "x", "bound": 1.0, "noise_multiplier": noise_multiplier, **more})


@cache
def _transform() -> float:
    """Processor seconds of a Fourier transform of 2²⁰ numbers on this machine."""
    numbers, began = np.ones(1 << 20), time.process_time()
    for _ in range(5):
        np.fft.rfft(numbers)
    return (time.process_time() - began) / 5


@contextmanager
def no_more_work_than(transforms: float) -> Iterator[None]:
    """Fails what takes longer than so many transforms of 2²⁰ numbers do here: no clock that a slow machine would lose against."""
    limit, began = transforms * _transform(), time.process_time()
    yield
    assert time.process_time() - began < limit


# Numbers that a row might hold, among them all that break sums.
_EDGES = (0.0, -0.0, math.nan, math.inf, 1e-45, -1e-40, 1e-30, 3.4e38, 1.0, -1.0, 1e10)
ENTRIES = st.one_of(
    st.sampled_from([*_EDGES, -math.inf, -3.4e38]),
    st.floats(width=32),
    st.floats(-2, 2, width=32),
)


def still(count: int, scale: float, on_fraction: object = None) -> np.ndarray:
    """A discrete sampler whose noise is zero."""
    return np.zeros(count, np.int64)


def silent(shape: Any, std: float) -> np.ndarray:
    """A sampler in floating point whose noise is zero."""
    return np.zeros(shape)
