"""Checks that can be imported: whoever writes a map, a reader or a method elsewhere can hold it against the same contract.

    from sfumato.testing import check_map, check_method

    check_map(MyFeatures(), schema)
    check_method(MyMethod)

Each check raises AssertionError with one sentence, and needs no test runner. The records in it are made up: nothing private.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sfumato.testing.sums import (
    BOUNDARIES,
    COUNTS,
    adversarial_records,
    check_additive,
    check_map,
    shuffled_records,
)

if TYPE_CHECKING:
    from sfumato.testing.methods import check_method

__all__ = [
    "BOUNDARIES",
    "COUNTS",
    "adversarial_records",
    "check_additive",
    "check_map",
    "check_method",
    "shuffled_records",
]


def __getattr__(name: str) -> Any:
    if (
        name == "check_method"
    ):  # on first use: it needs every method, and the audit's records need none
        from sfumato.testing.methods import check_method

        return check_method
    raise AttributeError(f"module 'sfumato.testing' has no attribute {name!r}")
