"""What is asked of a method, checked before anything else: the kind of each setting, the number of samples, a seed.

Ranges are the method's own business; here is what holds for all. Everything is public.
"""

from __future__ import annotations

import numbers
import os
from typing import TYPE_CHECKING, Any

from sfumato.errors import BadInput

if TYPE_CHECKING:
    from sfumato.data import Schema
    from sfumato.methods.base import PrivateMethod

LARGEST_SEED = 2**32 - 1
_SEEDS = ("seed", "training_seed")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text (a name or path, say)",
    "bool": "true or false",
}


def check_settings(method: PrivateMethod) -> None:
    """Raise unless every setting is of the kind that its annotation says."""
    for parameter in method.parameters():
        value = getattr(method, parameter.name)
        kinds = [kind.strip() for kind in parameter.type.split("|")]
        if not any(_is(kind, value) for kind in kinds):
            wanted = " or ".join(_WORDS.get(kind, kind) for kind in kinds)
            raise BadInput(
                f"{method.info.name}'s {parameter.name} must be {wanted}, not {shortened(value)}; its default is "
                f"{parameter.default}."
            )
        if parameter.name in _SEEDS and value is not None:
            check_seed(value)


def check_seed(seed: Any) -> None:
    if not _is("int", seed) or not 0 <= seed <= LARGEST_SEED:
        raise BadInput(
            f"A seed is a whole number from 0 to {LARGEST_SEED}, not {shortened(seed)}; 0 will do."
        )


def check_number(n: Any, schema: Schema) -> None:
    """Raise unless `n` records can be asked for and held in this machine's memory."""
    if not _is("int", n) or n < 1:
        raise BadInput(f"n must be a whole number of at least 1, not {shortened(n)}.")
    each = 4 * max(1, schema.dim)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if n * each > memory:
        raise BadInput(
            f"{n:,} records take {n * each / 2**30:,.0f} GB, more than this machine's memory; draw at most "
            f"{memory // each:,} at a time, with another seed each time."
        )


def shortened(value: Any) -> str:
    """`repr`, of a length to read."""
    try:
        text = repr(value)
    except Exception:  # a number with thousands of digits, an object that cannot show itself
        text = type(value).__name__
    return text if len(text) <= 80 else f"{text[:60]}…{text[-10:]}"


def _is(kind: str, value: Any) -> bool:
    if kind == "None":
        return value is None
    if kind == "bool" or isinstance(value, bool):
        return kind == "bool" and isinstance(value, bool)
    if kind == "int":
        return isinstance(value, numbers.Integral) and abs(int(value)) < 2**63
    if kind == "float":
        # NaN and infinity are numbers here; whether they make sense is the method's own range.
        return isinstance(value, numbers.Real) and not (
            isinstance(value, numbers.Integral) and abs(int(value)) >= 2**63
        )
    # A kind unknown here is the method's own to check.
    return isinstance(value, str) if kind == "str" else True
