"""The list of methods: what each is, and how to find it by name. Adding a method is one file with `@register`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from sfumato.errors import BadInput

if TYPE_CHECKING:
    from sfumato.methods.base import PrivateMethod

_METHODS: dict[str, type[PrivateMethod]] = {}
_Class = TypeVar("_Class", bound="type[PrivateMethod]")
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


def register(
    name: str,
    *,
    title: str,
    paper: str,
    kinds: tuple[str, ...],
    summary: str,
    public: PublicUse = "unused",
    sound: bool = True,
    makes: Product = "records",
) -> Callable[[_Class], _Class]:
    """Class decorator that makes a method known under `name`; the contract tests pick it up from here."""

    def add(cls: _Class) -> _Class:
        cls.info = MethodInfo(
            name=name,
            title=title,
            paper=paper,
            kinds=kinds,
            public=public,
            sound=sound,
            summary=summary,
            makes=makes,
        )
        _METHODS[name] = cls
        return cls

    return add


def known(cls: type[PrivateMethod]) -> None:
    """Make a class with an `info` of its own known by its name."""
    _METHODS[cls.info.name] = cls


def list_methods() -> list[MethodInfo]:
    return [cls.info for cls in _METHODS.values()]


def get_method(name: str) -> type[PrivateMethod]:
    if not isinstance(name, str):
        raise BadInput(f"A method's name is text, not {type(name).__name__}; see list_methods().")
    try:
        return _METHODS[name.lower()]
    except KeyError:
        near = difflib.get_close_matches(name.lower(), _METHODS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(_METHODS)}."
        raise BadInput(f"There is no method called {name!r}; {hint}") from None
