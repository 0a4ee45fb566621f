"""How pages word things: numbers, Markdown, and the templates that are filled in.

Bounds are rounded up: a promise must not be shown stronger than it is. Every word from a file is escaped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from markupsafe import escape as escaped

from sfumato.privacy.statement import rounded_up

_REAL = re.compile(
    r"real data (.+?)(?: \([\d,]+ records\))?(?: and the REAL TRAINING data .+)?; not covered by ε"
)


def number(value: float) -> str:
    """Four digits, without a needless exponent."""
    value = float(value)
    if not math.isfinite(value):
        return f"{value:g}"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return power(value)
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def bound(value: float, digits: int = 4) -> str:
    """Like `number`, but rounded up."""
    return number(rounded_up(float(value), digits))


def power(value: float) -> str:
    """1e-5 as 10⁻⁵, 2.5e-6 as 2.5·10⁻⁶."""
    value = float(value)
    if not value or 1e-3 <= abs(value) < 1e6:
        return f"{value:.4g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    high = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    shown = f"{float(mantissa):g}"
    return f"10{high}" if shown == "1" else f"{shown}·10{high}"


def factor(epsilon: float) -> str:
    if epsilon > 600:
        return "an astronomical number"
    return bound(math.exp(epsilon), digits=3)


def guess_share(epsilon: float, delta: float) -> float:
    """The best chance to tell two equally likely neighbouring data sets apart: (e^ε + δ)/(e^ε + 1) (Kairouz et al. 2015)."""
    return (1.0 + delta * math.exp(-epsilon)) / (1.0 + math.exp(-epsilon))


def guess(epsilon: float, delta: float) -> str:
    """Rounded up: a bound must not be shown smaller than it is."""
    percent = 100 * guess_share(epsilon, delta)
    digits = 1 if percent < 99.9 else 3
    shown = math.ceil(percent * 10**digits - 1e-9) / 10**digits
    return "100 %" if shown >= 100 else f"{shown:.{digits}f} %"


def corrected(line: str) -> str:
    """A line of a saved statement; one of version 0.1.0 is false, and is put right."""
    if line.startswith("The unit is one record: a person with k records has at most k times"):
        return (
            "The unit is one record: a person with k records is protected less, and may have more than "
            "k times the ε at the same δ (group privacy)."
        )
    return line


def plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return ",".join(plain(v) for v in value)
    return str(value)


def powers(text: str) -> str:
    """A sentence with 1e-05 as 10⁻⁵."""
    found = r"(?<![\w.])\d(?:\.\d+)?e-?\d+(?![\w.]*\w)"
    return re.sub(found, lambda number: power(float(number[0])), text)


def typeset(text: str) -> Markup:
    """A sentence for a page: powers as such, e^ε raised, and all else escaped."""
    return Markup(powers(str(escaped(text))).replace("e^ε", "e<sup>ε</sup>"))


def real_data(source: str) -> str | None:
    """The name of the real data in a metric's source, with or without their number, alone or with the training data."""
    found = _REAL.match(source)
    return found[1] if found else None


def markdown(value: Any) -> Any:
    """Text made harmless in Markdown, its tables and the HTML that Markdown lets through."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    value = value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", value)


def markdown_code(value: str) -> Markup:
    """Text for an indented block, where Markdown takes everything literally but line breaks."""
    return Markup(re.sub(r"\s*[\n\r]\s*", " ", value))


def render(
    template: str,
    content: Mapping[str, Any],
    *,
    escape: Callable[[Any], Any] | None = None,
    package: str = "sfumato.report",
) -> str:
    """The template with `content`; HTML is escaped, another format by its own function `escape`.

    Templates of another `package` may include those that stand here.
    """
    environment = Environment(
        autoescape=escape is None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=escape,
        loader=FunctionLoader(lambda name: package_text(name, package)),
    )
    return environment.get_template(template).render(content)


def package_text(name: str, package: str = "sfumato.report") -> str:
    """A template or table that stands beside this file, or in another package."""
    own = files(package) / name
    return (own if own.is_file() else files("sfumato.report") / name).read_text(encoding="utf-8")
