"""The two samplers of differential-privacy noise. Nothing outside `privacy/` may draw from them.

- `discrete_gaussian`: OpenDP's exact discrete Gaussian on the integers, with OS entropy and exact rational arithmetic: no
  floating-point gap an attacker could use (Mironov 2012). The default for everything released once. About 40,000
  draws a second and core; chunks run in parallel threads, since the library works outside Python's lock.
- `FastGaussian`: double-precision normals from a generator (Philox) whose key, all 128 bits of it, is OS entropy, for the
  thousands of DP-SGD steps. Its limit: values are floating-point, so an observer of exact low-order bits could in theory tell
  sums apart; the generator is a good one but not a cryptographic one, and 128 bits is what there is to guess.
- `poisson_mask`: every record joins a sample on its own coin of 64 bits of OS entropy.
- `random_parts`: every record is put into one of several parts, on its own, by OS entropy as well.

No seed is taken, returned, logged or stored: whoever knows the seed subtracts the noise.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHUNK = 8192

DiscreteSampler = Callable[..., NDArray[np.int64]]
FloatSampler = Callable[[tuple[int, ...], float], NDArray[np.float64]]


def _measurement(scale: float) -> Any:
    # Only a fit needs these; they are named one by one because OpenDP's prelude also imports scikit-learn, for 1.5 s.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    return make_gaussian(vector_domain(atom_domain(T="i64")), l2_distance(T=float), scale=scale)


def discrete_gaussian(
    count: int,
    scale: float,
    on_fraction: Callable[[float], None] | None = None,
    workers: int | None = None,
) -> NDArray[np.int64]:
    """`count` exact draws z ∈ ℤ with probability ∝ exp(−z²/2·scale²)."""
    if not scale > 0:
        raise ValueError("scale must be positive")
    if scale > 2.0**55:
        raise ValueError("scale is too large for 64-bit integers")
    result = np.empty(count, dtype=np.int64)
    measurement = _measurement(scale)
    starts = range(0, count, _CHUNK)

    def fill(start: int) -> None:
        stop = min(start + _CHUNK, count)
        result[start:stop] = measurement([0] * (stop - start))

    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        for done, _ in enumerate(pool.map(fill, starts), start=1):
            if on_fraction is not None:
                on_fraction(min(1.0, done * _CHUNK / max(count, 1)))
    return result


class FastGaussian:
    """Normals from a generator keyed once with OS entropy; see the module's limits."""

    def __init__(self) -> None:
        # Philox-4x64 has a key of two words; handed over as they are, none of their bits is lost in mixing.
        key = np.frombuffer(os.urandom(16), dtype=np.uint64)
        self._generator = np.random.Generator(np.random.Philox(key=key))

    def __call__(self, shape: tuple[int, ...], std: float) -> NDArray[np.float64]:
        return self._generator.standard_normal(shape) * std


def poisson_mask(count: int, rate: float) -> NDArray[np.bool_]:
    """Each of `count` records is in with probability `rate`, independently, to within 2⁻⁶⁴."""
    if rate >= 1:
        return np.ones(count, dtype=np.bool_)
    coins = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    return coins < np.uint64(int(rate * 2.0**64))


def random_parts(count: int, parts: int) -> NDArray[np.int64]:
    """For each of `count` records the part, 0 … parts−1, that it falls into, independently of all others."""
    coins = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    return (coins % np.uint64(parts)).astype(np.int64)
