"""Checks that can be imported: whoever writes a map, a reader or a method elsewhere can hold it against the same contract.

    from sfumato.testing import check_map

    check_map(MyFeatures(), schema)

Each check raises AssertionError with one sentence, and needs no test runner. The records in it are made up: nothing private.
"""

from sfumato.testing.sums import (
    BOUNDARIES,
    COUNTS,
    adversarial_records,
    check_additive,
    check_map,
    shuffled_records,
)

__all__ = [
    "BOUNDARIES",
    "COUNTS",
    "adversarial_records",
    "check_additive",
    "check_map",
    "shuffled_records",
]
