"""Settings as a paper has them, by method and data set: presets/NAME.toml beside the methods.

    Merf.preset("paper", data="mnist")               # or: sfumato fit merf --preset paper --data mnist:train …
    sfumato methods merf --preset paper              # every number with the line of the paper that has it

Two presets: `paper`, and `fast`, the paper's with changes that let it run on two cores; what is changed is told. A method that
can be set to another paper's has a preset of that one's name (`dpdm` of `diffusion`). A setting that
the paper has and this package lacks is named under `missing`, and told whenever the preset is used. Rows of a preset may be for
some ε only: that of the nearest ε which the paper prints is taken. A batch may be a share of the records ("0.1 n"), a rate a
fraction ("500/60000"); n is the published size of a named set, never a count of private rows. Everything here is public.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from sfumato.data import find_named
from sfumato.errors import BadInput
from sfumato.methods.settings import Setting

if TYPE_CHECKING:
    from sfumato.methods.base import Method

PAPER, FAST = "paper", "fast"
_ANY = "any"  # for every data set that has no entry of its own
_WHEN = ("epsilon", "epsilon_from", "epsilon_below")


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One setting of a preset; `when` says for which ε, `instead` what the paper has where `fast` has another."""

    name: str
    value: Any
    source: str
    when: Mapping[str, Any] = field(default_factory=dict)
    instead: str | None = None

    @property
    def condition(self) -> str:
        printed = ", ".join(
            "∞" if math.isinf(e) else f"{e:g}" for e in self.when.get("epsilon", ())
        )
        parts = [f"ε = {printed}"] if printed else []
        parts += [f"ε ≥ {self.when['epsilon_from']:g}"] if "epsilon_from" in self.when else []
        parts += [f"ε < {self.when['epsilon_below']:g}"] if "epsilon_below" in self.when else []
        return " and ".join(parts)

    def holds(self, epsilon: float) -> bool:
        low, high = self.when.get("epsilon_from", 0.0), self.when.get("epsilon_below", math.inf)
        return bool(low <= epsilon and (epsilon < high or math.isinf(high)))

    def distance(self, epsilon: float) -> float:
        """How far ε is from those that the paper prints, on a logarithmic scale; without privacy is far from all others."""
        printed = self.when.get("epsilon", (epsilon,))
        if epsilon in printed:
            return 0.0
        finite = [e for e in printed if math.isfinite(e) and math.isfinite(epsilon)]
        return min((abs(math.log(e / epsilon)) for e in finite), default=math.inf)

    def to_json(self) -> dict[str, Any]:
        told = {"name": self.name, "value": self.value, "source": self.source}
        told |= {"when": self.condition} if self.when else {}
        return told | ({} if self.instead is None else {"paper": self.instead})


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The settings of a method for a data set, each with its source, and what is missing of the paper's."""

    method: str
    name: str
    data: str
    protocol: str
    settings: tuple[Chosen, ...]
    missing: Mapping[str, str]

    @property
    def values(self) -> dict[str, Any]:
        return {chosen.name: chosen.value for chosen in self.settings}

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "preset": self.name,
            "data": self.data,
            "protocol": self.protocol,
            "settings": [chosen.to_json() for chosen in self.settings],
            "missing": dict(self.missing),
        }

    def remarks(self) -> list[str]:
        """What whoever uses the preset must know: that it is not the whole paper, and what `fast` changes."""
        title = f"The preset {self.name} of {self.method} for {self.data}"
        said = [f"{title} lacks the paper's {name}: {why}." for name, why in self.missing.items()]
        changed = [
            f"{c.name} = {shown(c.value)} (the paper has {c.instead})"
            for c in self.settings
            if c.instead is not None
        ]
        return [*said, *([f"{title} changes {', '.join(changed)}."] if changed else [])]


def shown(value: Any) -> str:
    """As `--set` would take it."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def preset_names(method: type[Method]) -> dict[str, tuple[str, ...]]:
    """The presets of a method, and the data sets that each knows; empty if there are none."""
    return {name: tuple(blocks) for name, blocks in _file(method.info.name).items()}


def list_presets(method: type[Method], name: str = PAPER) -> list[Preset]:
    """All presets of that name as they are written down: for every data set, every ε, shares of n as such."""
    return [
        _preset(method, name, data, _merged(method, name, data)) for data in _known(method, name)
    ]


def find_preset(
    method: type[Method],
    name: str = PAPER,
    *,
    data: str,
    epsilon: float | None = None,
    n: int | None = None,
    given: Collection[str] = (),
) -> Preset:
    """The preset for a data set ("mnist" or "mnist:train") and ε; what is `given` by the caller is left out of it.

    `n` is the public number of training records; that of a named set is known.
    """
    known = _known(method, name)
    if not isinstance(data, str):
        raise BadInput(
            f"A preset is for a data set's name, not for {type(data).__name__}; it has one for {', '.join(known)}."
        )
    bare = data.partition(":")[0].lower()
    found = bare if bare in known else _ANY
    if found not in known:
        raise BadInput(
            f"{method.info.name} has no preset {name!r} for {bare!r}; it has one for {', '.join(known)}: "
            f"choose one of them, as {name}:{known[0]} on the command line, or leave the preset out."
        )
    named = find_named(bare)
    if n is None and named is not None:
        n = named[0].sizes.get("train")
    limits = {s.name: s for s in method.settings()}
    rows = {
        key: [_settled(_picked(rows, epsilon, method.info.name), limits[key], n, method.info.name)]
        for key, rows in _merged(method, name, found).items()
        if key not in given
    }
    return _preset(method, name, found, rows)


def _known(method: type[Method], name: str) -> tuple[str, ...]:
    names = preset_names(method)
    if name not in names:
        have = f"it has {' and '.join(names)}" if names else "it has none"
        raise BadInput(f"{method.info.name} has no preset {name!r}; {have}.")
    return names[name]


@cache
def _file(method: str) -> dict[str, dict[str, Any]]:
    path = files("sfumato.methods") / "presets" / f"{method}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _chain(method: type[Method], name: str, data: str) -> list[dict[str, Any]]:
    """The paper's entry for a data set, behind those that it is like; `fast` is a change of it."""
    papers = _file(method.info.name)[PAPER if name == FAST else name]
    chain = [papers[data]]
    while "like" in chain[0]:
        chain.insert(0, papers[chain[0]["like"]])
    return chain


def _rows(block: Mapping[str, Any]) -> dict[str, list[Chosen]]:
    found: dict[str, list[Chosen]] = {}
    for row in block.get("settings", ()):
        when = {key: row[key] for key in _WHEN if key in row}
        for key, value in row.items():
            if key != "source" and key not in _WHEN:
                made = Chosen(name=key, value=value, source=row["source"], when=when)
                found.setdefault(key, []).append(made)
    return found


def _merged(method: type[Method], name: str, data: str) -> dict[str, list[Chosen]]:
    """Settings with their rows: an entry's own replace those of the entry that it is like."""
    rows: dict[str, list[Chosen]] = {}
    for block in _chain(method, name, data):
        rows |= _rows(block)
    if name == FAST:
        defaults = {s.name: s.default for s in method.settings()}
        fast = _file(method.info.name)[FAST]
        for key, changes in _rows(fast[fast[data].get("like", data)]).items():
            before = rows[key][0].value if key in rows else defaults[key]
            rows[key] = [replace(change, instead=shown(before)) for change in changes]
    return rows


def _picked(rows: list[Chosen], epsilon: float | None, method: str) -> Chosen:
    if len(rows) == 1 and not rows[0].when:
        return rows[0]
    plain = [row for row in rows if not row.when]  # for every ε but those that another row names
    if epsilon is None and plain:
        return plain[0]
    if epsilon is None:
        raise BadInput(
            f"The paper's {rows[0].name} of {method} depends on ε ({'; '.join(r.condition for r in rows)}); give epsilon=."
        )
    # A row for this very ε before one for every ε.
    fitting = sorted((r for r in rows if r.holds(epsilon)), key=lambda r: not r.when)
    return min(fitting, key=lambda r: r.distance(epsilon))


def _settled(chosen: Chosen, limits: Setting, n: int | None, method: str) -> Chosen:
    """With a number in the place of a fraction or of a share of n."""
    value = chosen.value
    if not isinstance(value, str) or (str in limits.types and value != "auto"):
        return chosen
    if value == "auto":
        return replace(chosen, value=None)
    if "n" in value and n is None:
        raise BadInput(
            f"The paper's {chosen.name} of {method} is {value}, n the number of training records, which is known of named "
            f"sets only; give it by --set {chosen.name}=NUMBER, in Python as n= or {chosen.name}=."
        )
    if value.endswith(" n"):
        return replace(chosen, value=max(1, round(float(value.removesuffix(" n")) * (n or 0))))
    over, _, under = value.partition("/")
    return replace(chosen, value=float(over) / float(n or 1 if under == "n" else under))


def _preset(method: type[Method], name: str, data: str, rows: Mapping[str, list[Chosen]]) -> Preset:
    chain = _chain(method, name, data)
    lacks = {key: value for block in chain for key, value in block.get("lacks", {}).items()}
    told = {key: why for block in chain for key, why in block.get("missing", {}).items()}
    return Preset(
        method=method.info.name,
        name=name,
        data=data,
        protocol=next((b["protocol"] for b in reversed(chain) if "protocol" in b), ""),
        settings=tuple(chosen for each in rows.values() for chosen in each),
        # The paper's number stands with what is missing; an undersampling of 1 is none, and an empty sentence is no lack.
        missing={
            key: f"{key} = {shown(lacks[key])}; {why}" if key in lacks else why
            for key, why in told.items()
            if why and lacks.get(key) != 1.0
        },
    )
