"""Filling in a template, escaped; pages of other packages may include what is in this one (the plots)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined


def render(
    template: str,
    content: Mapping[str, Any],
    *,
    package: str = "sfumato.report",
    escape: Callable[[Any], Any] | None = None,
) -> str:
    """The template of `package` with `content`; HTML is escaped, another format by its own function `escape`."""
    environment = Environment(
        autoescape=escape is None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=escape,
        loader=FunctionLoader(lambda name: _source("sfumato.report", name)),
    )
    return environment.from_string(_source(package, template)).render(content)


def _source(package: str, name: str) -> str:
    return (files(package) / name).read_text(encoding="utf-8")
