"""The methods that are there, found and not listed by hand.

A method is a class with an `info` in a file of its own: in `sfumato/methods`, or in any installed package that names the file as
an entry point of the group `sfumato.methods`. Top-level names, `sfumato methods`, the docs and the contract tests come from here.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Literal

from sfumato.errors import BadInput

if TYPE_CHECKING:
    from sfumato.methods.base import Method

_KNOWN: dict[str, type[Method]] = {}
PublicUse = Literal["unused", "optional", "required"]
Product = Literal["records", "classifier"]


@dataclass(frozen=True, kw_only=True)
class MethodInfo:
    """What `sfumato methods` shows."""

    name: str
    title: str
    paper: str
    summary: str
    kinds: tuple[str, ...] = ("images",)  # and "table"
    public: PublicUse = "unused"
    sound: bool = True
    makes: Product = "records"  # a classifier has no samples

    @property
    def needs_public(self) -> bool:
        return self.public == "required"


def known(cls: type[Method]) -> None:
    """A class with an `info` of its own was defined."""
    _KNOWN[cls.info.name] = cls


@cache
def _found() -> dict[str, str]:
    """Load every file in which methods are defined; what could not be loaded of other packages, by name, and why."""
    home = importlib.import_module("sfumato.methods")
    for module in pkgutil.iter_modules(home.__path__):
        importlib.import_module(f"sfumato.methods.{module.name}")
    broken = {}
    for entry in entry_points(group="sfumato.methods"):
        try:
            entry.load()
        except Exception as error:  # whatever another package does must not take ours away
            broken[entry.name] = f"{type(error).__name__}: {error}"
    return broken


def find_methods() -> dict[str, type[Method]]:
    """The methods by name, in the order of their names."""
    _found()
    return dict(sorted(_KNOWN.items()))


def list_methods() -> list[MethodInfo]:
    """What `sfumato methods` shows of each method that is there, installed packages' among them."""
    return [cls.info for cls in find_methods().values()]


def get_method(name: str) -> type[Method]:
    """The class of a method by its name: `get_method("merf")` is `sfumato.Merf`."""
    if not isinstance(name, str):
        raise BadInput(f"A method's name is text, not {type(name).__name__}; see list_methods().")
    methods = find_methods()
    try:
        return methods[name.lower()]
    except KeyError:
        if name in _found():
            raise BadInput(
                f"The method {name!r} of another package cannot be loaded ({_found()[name]}); mend or remove that package."
            ) from None
        near = difflib.get_close_matches(name.lower(), methods, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(methods)}."
        raise BadInput(f"There is no method called {name!r}; {hint}") from None
