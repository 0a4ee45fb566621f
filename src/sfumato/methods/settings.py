"""A setting is declared once: from one line come the constructor, `get_params`, the check and its sentence, `--set`, the docs.

    class Merf(Matched):
        steps: int = setting("Training steps of the generator.", default=3_000, low=1, free=True)

The type is the annotation; `None` in it means that the method chooses (auto). A subclass says what is different and keeps the
rest of its parent's: `steps: int = setting(default=1_000)` has the parent's sentence and limits. `free` settings come after the
releases: a saved release may be used again with other values of them; all others must be as they were, and forgetting `free` is
safe.

Everything here is public.
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self, dataclass_transform, get_args, get_type_hints

from sfumato.errors import BadInput

if TYPE_CHECKING:
    from sfumato.data import Schema

LARGEST_SEED = 2**32 - 1
_OWN = ("codec", "encoder")  # of which `sfumato.public.own_…` takes networks
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is known of one setting; as a class attribute it is also what an object starts with."""

    default: Any
    help: str = ""
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf  # as `low`, itself left out
    below: float = math.inf
    multiple: int = 1
    choices: tuple[str, ...] = ()
    free: bool = False
    name: str = ""
    types: tuple[type, ...] = ()
    said: tuple[str, ...] = ()  # of the fields above, where it was declared

    @property
    def type(self) -> str:
        return " | ".join("None" if t is types.NoneType else t.__name__ for t in self.types)

    @property
    def wanted(self) -> str:
        """The range in words, as errors and docs have it."""
        auto = ", or none for auto" if types.NoneType in self.types else ""
        if self.choices:
            return f"one of {', '.join(self.choices)}{auto}"
        if bool in self.types:
            return "true or false"
        if str in self.types:
            return f"text (a name or path, say){auto}"
        noun = "a whole number" if float not in self.types else "a number"
        if self.multiple > 1:
            noun += f" that {self.multiple} divides"
        limits = {
            "at least": self.low,
            "above": self.above,
            "at most": self.high,
            "below": self.below,
        }
        told = " and ".join(
            f"{word} {end:.12g}" for word, end in limits.items() if math.isfinite(end)
        )
        return f"{noun} {told}".strip() + auto

    def to_json(self) -> dict[str, Any]:
        """What `sfumato methods NAME --json` tells."""
        told = {"name": self.name, "type": self.type, "default": self.default, "help": self.help}
        return {**told, "wanted": self.wanted, "free": self.free}

    def checked(self, value: Any, who: str) -> Any:
        """`value`, as it is kept; raises if it is not of this setting's kind or range.

        An object that has a name among settings (`public.own.OwnCodec`) is kept by that name, so that settings stay plain values.
        """
        if str in self.types and isinstance(named := getattr(value, "spec", None), str):
            value = named
        if not self.allows(value):
            if str in self.types and self.name in _OWN and callable(value):
                raise BadInput(
                    f"{who}'s {self.name} is given as a {type(value).__name__}; give it a name first: {self.name}="
                    f"sfumato.public.own_{self.name}('my-{self.name}', …)."
                )
            raise BadInput(
                f"{who}'s {self.name} must be {self.wanted}, not {shortened(value)}; its default is {self.default}."
            )
        # NumPy's whole numbers become Python's, which JSON has; everything else stays the object that it is.
        whole = isinstance(value, Integral) and not isinstance(value, bool | int)
        return int(value) if whole else value

    def allows(self, value: Any) -> bool:
        if value is None:
            return types.NoneType in self.types
        if isinstance(value, bool) or bool in self.types:
            return isinstance(value, bool) and bool in self.types
        if isinstance(value, str):
            return str in self.types and (not self.choices or value in self.choices)
        if str in self.types or not isinstance(value, Real if float in self.types else Integral):
            return False
        if isinstance(value, Integral) and abs(int(value)) >= 2**63:
            return False
        number = float(value)
        inside = self.low <= number <= self.high and self.above < number < self.below
        return (
            inside and math.isfinite(number) and (self.multiple == 1 or number % self.multiple == 0)
        )

    def parse(self, text: str) -> Any:
        """What `--set name=text` means."""
        try:
            if types.NoneType in self.types and text.lower() in ("none", "auto"):
                return None
            if bool in self.types:
                return _TRUTHS[text.lower()]
            return next(t for t in (int, float, str) if t in self.types)(text)
        except (ValueError, KeyError):
            raise BadInput(
                f"Setting {self.name} takes {self.type}, not {text!r}; its default is {self.default}."
            ) from None


def setting(help: str = "", *, default: Any, **limits: Any) -> Any:  # noqa: A002
    """Declare a setting: a sentence, a default, and limits (`low`, `high`, `above`, `below`, `multiple`, `choices`, `free`)."""
    said = {"default": default, **({"help": help} if help else {}), **limits}
    return Setting(**said, said=tuple(said))


@dataclass_transform(kw_only_default=True, field_specifiers=(setting,))
class Configured:
    """Base of everything with settings: scikit-learn's contract, from the declarations alone."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        own = {n: s for n, s in vars(cls).items() if isinstance(s, Setting)}
        hints = get_type_hints(cls) if own else {}
        for name, found in own.items():
            inherited = (vars(c).get(name) for c in cls.__mro__[1:])
            parent = next((s for s in inherited if isinstance(s, Setting)), None)
            if parent is not None:
                found = replace(parent, **{field: getattr(found, field) for field in found.said})
            elif not found.help:
                raise TypeError(
                    f"{cls.__name__}'s setting {name} has no sentence that explains it."
                )
            kinds = tuple(get_args(hints[name])) or (hints[name],)
            setattr(cls, name, replace(found, name=name, types=kinds))
        parameters = [
            inspect.Parameter(
                s.name, inspect.Parameter.KEYWORD_ONLY, default=s.default, annotation=s.type
            )
            for s in cls.settings()
        ]
        cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]

    def __init__(self, **given: Any) -> None:
        self._set({s.name: s.default for s in self.settings()} | given)

    @classmethod
    def settings(cls) -> list[Setting]:
        """All settings, a class's own before those it shares with its kind; seeds last."""
        found: dict[str, Setting] = {}
        for c in cls.__mro__:
            own = {n: s for n, s in vars(c).items() if isinstance(s, Setting) and n not in found}
            found |= own
        return sorted(found.values(), key=lambda s: s.name in ("training_seed", "seed"))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {s.name: getattr(self, s.name) for s in self.settings()}

    def set_params(self, **given: Any) -> Self:
        self._set(given)
        return self

    @classmethod
    def from_settings(cls, given: Mapping[str, str], **more: Any) -> Self:
        """From text, as `--set key=value` gives it."""
        known = {s.name: s for s in cls.settings()}
        for key in given:
            if key not in known:
                raise BadInput(
                    f"{cls._called()} has no setting {key!r}; it has {', '.join(known)}."
                )
        return cls(**{**more, **{key: known[key].parse(text) for key, text in given.items()}})

    def __repr__(self) -> str:
        changed = {s.name: v for s in self.settings() if (v := getattr(self, s.name)) != s.default}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in changed.items())})"

    @classmethod
    def _called(cls) -> str:
        """The name that sentences have."""
        return cls.__name__

    def _set(self, values: Mapping[str, Any]) -> None:
        """All of them, or none if one is refused."""
        known = {s.name: s for s in self.settings()}
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}."
                raise TypeError(f"{type(self).__name__} has no setting {name!r}; {hint}")
        checked = {n: known[n].checked(value, self._called()) for n, value in values.items()}
        for name, value in checked.items():
            setattr(self, name, value)


# -- what else is asked of a method ------------------------------------------------------------------------------------------


def check_seed(seed: Any) -> None:
    whole = isinstance(seed, Integral) and not isinstance(seed, bool)
    if not whole or not 0 <= int(seed) <= LARGEST_SEED:
        raise BadInput(
            f"A seed is a whole number from 0 to {LARGEST_SEED}, not {shortened(seed)}; 0 will do."
        )


def check_number(n: Any, schema: Schema) -> None:
    """Raise unless `n` records can be asked for and held in this machine's memory."""
    if isinstance(n, bool) or not isinstance(n, Integral) or not 1 <= int(n) < 2**63:
        raise BadInput(f"n must be a whole number of at least 1, not {shortened(n)}.")
    n, each = int(n), 4 * max(1, schema.dim)
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
