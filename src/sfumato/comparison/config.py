"""The TOML file of a comparison, checked: anything wrong with it is a sentence that names the key."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.errors import BadInput
from sfumato.files import as_path, check_file

DEFAULTS = {
    "neighbours": "zero-out",
    "seeds": [0],
    "samples": 60_000,
    "keep": 1.0,
    "preset": "quick",
}
FACTS = ("image_size", "channels", "classes", "bits", "value_range")
_KEYS = ("data", "train", "test", "epsilons", "delta", "neighbours", "seeds", "samples", "keep")
_ENTRY = ("name", "label", "public", "settings")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A method with its settings, all of them but the seed, and the public data it gets."""

    method: str
    settings: dict[str, Any]
    public: str | None = None


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a comparison's TOML file says, checked. `variants` are the methods by the names shown."""

    data: str  # as shown; a named set's name, so that its published numbers are found
    train: str
    test: str
    facts: dict[str, Any]
    epsilons: tuple[float, ...]
    delta: float
    neighbours: str
    seeds: tuple[int, ...]
    samples: int
    keep: float
    metrics: tuple[str, ...]
    preset: str
    variants: dict[str, Variant]


def read_config(path: Path | str) -> Config:
    """A comparison's TOML file; anything wrong with it is a sentence that names the key."""
    path = as_path(path)
    try:
        check_file(path)
        return parse_config(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadInput(f"Cannot read {path}: {error.strerror}; check the path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not TOML ({error}); correct it there.") from error
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def parse_config(given: Mapping[str, Any]) -> Config:
    """The same from a mapping."""
    known = (*_KEYS, "metrics", "preset", *FACTS, "methods")
    for key in given:
        if key not in known:
            raise BadInput(f"There is no key {key!r}; the keys are {', '.join(known)}.")
    if "metrics" in given and "preset" in given:
        raise BadInput("Both metrics and preset are given; keep one of the two.")
    values = {**DEFAULTS, **given}
    shown, train, test = _data(given)
    epsilons = _numbers(values, "epsilons", "[0.2, 1.0, 10.0]")
    if min(epsilons) <= 0:
        raise BadInput("epsilons must be positive numbers; write epsilons = [1.0].")
    (delta,) = _numbers({"delta": [given["delta"]]} if "delta" in given else {}, "delta", "1e-5")
    seeds = _numbers(values, "seeds", "[0, 1, 2]")
    if not all(isinstance(s, int) and 0 <= s < 2**32 for s in seeds):
        raise BadInput("seeds must be whole numbers from 0 to 4294967295; write seeds = [0, 1, 2].")
    samples = values["samples"]
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise BadInput("samples must be a whole number of at least 1; write samples = 60000.")
    metrics = values.get("metrics", [])
    if not isinstance(metrics, list) or not all(isinstance(m, str) for m in metrics):
        raise BadInput('metrics must be a list of names; write metrics = ["accuracy.logreg"].')
    if "metrics" in given and not metrics:
        raise BadInput('metrics is empty; name one or write preset = "quick" in its place.')
    from sfumato.methods.selection import check_keep
    from sfumato.privacy import Budget, Neighbours

    check_keep(values["keep"])
    budget = Budget(epsilon=1.0, delta=delta, neighbours=Neighbours.parse(values["neighbours"]))
    return Config(
        data=shown,
        train=train,
        test=test,
        facts={key: given[key] for key in FACTS if key in given},
        epsilons=tuple(sorted(float(e) for e in epsilons)),
        delta=budget.delta,
        neighbours=budget.neighbours.value,
        seeds=tuple(int(s) for s in seeds),
        samples=samples,
        keep=float(values["keep"]),
        metrics=tuple(metrics),
        preset="" if metrics else str(values["preset"]),
        variants=_variants(given.get("methods")),
    )


def _numbers(values: Mapping[str, Any], key: str, example: str) -> tuple[int | float, ...]:
    found = values.get(key)
    numbers = [x for x in found if _is_number(x)] if isinstance(found, list) else []
    if not numbers or len({*numbers}) != len(found or []):
        what = "a number" if key == "delta" else "a list of different numbers"
        missing = "is missing; it " if found is None else ""
        raise BadInput(f"{key} {missing}must be {what}; write {key} = {example}.")
    return tuple(numbers)


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)


def _data(given: Mapping[str, Any]) -> tuple[str, str, str]:
    from sfumato.data import find_named
    from sfumato.data.catalogue import unknown_set

    specs = {key: given[key] for key in ("data", "train", "test") if key in given}
    for key, spec in specs.items():
        if not isinstance(spec, str) or not spec:
            raise BadInput(f'{key} must be a name or path in quotes; write {key} = "digits".')
    if set(specs) == {"train", "test"}:
        private, held_out = find_named(specs["train"]), find_named(specs["test"])
        # Published numbers are for this way round only.
        splits = (private[1], held_out[1]) if private and held_out else None
        if private and held_out and private[0] is held_out[0] and splits == ("train", "test"):
            return private[0].name, specs["train"], specs["test"]
        return specs["train"], specs["train"], specs["test"]
    if set(specs) != {"data"}:
        raise BadInput('Give the data by data = "digits" alone, or by both train = and test =.')
    name = specs["data"]
    found = find_named(name.partition(":")[0])
    if found is None:
        raise unknown_set(name)
    if ":" in name or not {"train", "test"} <= set(found[0].splits):
        raise BadInput(
            f"data = {name!r} must be a set with train and test; else use train = and test =."
        )
    return found[0].name, f"{found[0].name}:train", f"{found[0].name}:test"


def _variants(tables: Any) -> dict[str, Variant]:
    """From [methods.NAME] tables, or a list of [[methods]] with name, label, public and settings."""
    if not isinstance(tables, dict | list) or not tables:
        raise BadInput("No method is named; add a table such as [methods.merf].")
    if isinstance(tables, dict):
        return {name: _variant(name, f"methods.{name}", table) for name, table in tables.items()}
    found: dict[str, Variant] = {}
    for number, entry in enumerate(tables, 1):
        where = f"methods {number}"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise BadInput(f'[[methods]] number {number} has no name; write name = "merf".')
        for key in entry:
            if key not in _ENTRY:
                raise BadInput(
                    f"[[methods]] number {number} has no key {key!r}; its keys are {', '.join(_ENTRY)}."
                )
        label: Any = entry.get("label", entry["name"])
        settings = entry.get("settings", {})
        if not isinstance(settings, dict):
            raise BadInput(
                f"settings of [[methods]] number {number} must be a table; write settings = {{ steps = 500 }}."
            )
        if label in found:
            raise BadInput(f"Two [[methods]] are called {label!r}; give one of them a label.")
        public = {"public": entry["public"]} if "public" in entry else {}
        found[label] = _variant(label, where, {**settings, **public, "method": entry["name"]})
    return found


def _variant(name: Any, where: str, table: Any) -> Variant:
    from sfumato.methods import get_method

    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise BadInput(f"[{where}] must have a name that can be shown.")
    if not isinstance(table, dict):
        raise BadInput(f"{where} must be a table of settings; write [methods.merf].")
    settings = dict(table)
    method, public = settings.pop("method", name), settings.pop("public", None)
    if public is not None and (not isinstance(public, str) or not public):
        raise BadInput(
            f'[{where}] public must be a name or path in quotes; write public = "mnist".'
        )
    if "seed" in settings:
        raise BadInput(f"[{where}] sets seed; the list seeds does that for all methods.")
    texts = {}
    for key, value in settings.items():
        if not isinstance(value, str | bool) and not _is_number(value):
            raise BadInput(f"[{where}] {key} must be a number, text, true or false.")
        texts[key] = str(value).lower() if isinstance(value, bool) else str(value)
    hint = "" if "method" in table else f' (or name it by method = "…" in [{where}])'
    try:
        cls = get_method(str(method))
        hint = ""
        full = cls.from_settings(texts).get_params()
    except BadInput as error:
        raise BadInput(f"[{where}] {error}{hint}") from error
    full.pop("seed", None)
    return Variant(method=cls.info.name, settings=full, public=public)
