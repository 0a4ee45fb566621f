"""Hostile calls by the thousand: every command, every option, every setting, damaged files; none may end in a traceback or hang.

    python -m sfumato.testing.fuzz --calls 10000 --seed 0 --out fuzz.json

What may be given to an option is read off its declaration (click's own), and the settings off the methods, so a new one is tried
without a line here. Every call is decided by the seed and its number alone and runs in a forked child with warm imports, its own
folder, no network, and a limit on memory and time; `--only NUMBER` runs one of them again and shows what it prints.

Well ended is a call that did its work or was refused by one sentence of ours. Everything here is public: the data are noise.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import importlib
import io
import json
import math
import os
import random
import resource
import shlex
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

SECONDS = 60  # of one call's own computing, or of waiting for nothing
PATIENCE = 600  # on a machine that is busy with other things
MEMORY = 2 << 30  # beyond what the warm parent holds
BUG = 97  # exit code of a child that ended in something else than an error of ours
SHOWN = 10  # offending calls in the report

# Imported before the first fork, for speed; what does not exist is left out.
WARM = (
    "sfumato.cli.main",
    "sfumato.methods",
    "sfumato.classifier",
    "sfumato.evaluation",
    "sfumato.report.grid",
    "sfumato.public",
    "sfumato.public.pretraining",
    "sfumato.data",
    "sfumato.privacy",
    "sfumato.testing.corrupt",
    "sklearn.linear_model",
    "sklearn.neural_network",
    "sklearn.tree",
    "sklearn.utils.validation",
    "pyarrow.csv",
    "pyarrow.parquet",
    "PIL.Image",
    "PIL.PngImagePlugin",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "rich.table",
    "jinja2",
    "torch",
    "safetensors.torch",
    "sqlite3",
    "dp_accounting",
    "multiprocessing.spawn",
)

PATHS = (
    "a\0b",
    "\ud800",
    "caf\udce9",
    "x" * 300,
    "x/" * 3000,
    "",
    " ",
    ".",
    "..",
    "/",
    "~nobody/x",
    "/dev/null",
    "/dev/full",
    "/dev/zero",
    "/dev/stdin",
    "/proc/none/x",
    "/proc/self/mem",
    "{fifo}",
    "{loop}",
    "{loop}/x",
    "{dangling}",
    "{file}",
    "{file}/x",
    "{folder}",
    "{missing}/a/b",
    "line\nbreak",
    "\x1b[2J",
    "-",
    "--",
    "C:\\x",
    "http://localhost:1/x.npz",
    "{npz}",
    "{csv}",
    "{png}",
    "{pictures}",
    "{started}",
    "{damaged}",
    "{damaged}",
    "{damaged_data}",
    "{damaged_data}",
)
OUTPUTS = ("{new}", "{new}.npz", "{new}.csv", "{new}.png", "{new}.html", "{new}.safetensors")
WORDS = (
    "",
    " ",
    "nonsense",
    "é",
    "\ud800",
    "a\0b",
    "a,b",
    ",",
    "None",
    "{}",
    "%s",
    "x" * 5000,
    "0",
)
WHOLE = ("0", "-1", "1", "2", "3", "1.5", "1e3", "nan", "", "x", "0x10", "１", " 2", "1_0", "-0")
HUGE = ("2147483648", "4294967296", "9223372036854775808", "1" + "0" * 30, "1" * 5000)
REAL = (
    "nan",
    "inf",
    "-inf",
    "1e400",
    "0",
    "-1",
    "1",
    "0.5",
    "1e-5",
    "",
    "x",
    "1e",
    "1,5",
    "٣",
    "-0.0",
)
TINY = ("1e-300", "1e300", "5e-324", "1e18")
JUNK: tuple[Any, ...] = (
    None,
    True,
    [],
    {},
    "",
    "x",
    "a\0b",
    -1,
    0,
    1.5,
    1e308,
    2**70,
    [[]],
    [None],
    {"a": []},
    ["x"] * 3,
    "../../etc/passwd",
)
# Values in Python that are no text.
OBJECTS: tuple[Any, ...] = (
    *JUNK,
    math.nan,
    math.inf,
    -math.inf,
    10**400,
    2**31,
    b"x",
    object,
    (),
    1j,
    print,
)

# Settings that keep each method's fit within a fraction of a second; a large number of steps is a wish, not a mistake.
CHEAP: Mapping[str, Sequence[str]] = {
    "mixture": ("refine=false",),
    "merf": ("features=20", "steps=2", "batch=4", "hidden=4"),
    "mge": (),
    "hp": ("order=4", "rounds=1", "steps=2", "batch=4", "hidden=4", "product_order=2"),
    "gan": ("steps=2", "batch=4", "width=4", "critic_steps=1"),
    "llm": ("maps=2", "projection=4", "epochs=0.5", "rate=0.5"),
    "sinkhorn": ("steps=2", "batch=4", "groups=2", "hidden=4", "rate=0.2"),
}
BUDGET = {"epsilon": "1", "delta": "1e-5"}
DATA = {"spec": "{npz}", "classes": "2"}
FLAT = {
    "spec": "{flat}",
    "image_size": "8",
    "channels": "1",
    "labels": "labels.csv:kind",
    "classes": "a,b",
}
PICTURES = {"image_size": "8", "channels": "1", "classes": "2"}
# Options whose values follow no declared type: some that are right, and some that nearly are.
NEAR: Mapping[str, Sequence[str]] = {
    "unit": (
        "record",
        "folder",
        "(\\d+)",
        "(?P<who>[0-9])",
        "who",
        "sort",
        "PatientID",
        "PixelData",
        "labels.csv:who",
        "{flat}/labels.csv:who",
        "a(",
        "(a)(b)",
        "(a*)*b",
        "labels",
    ),
    # A cluster that is started takes seconds.
    "engine": ("local", "ray:", "ray:nowhere:1", "spark", "Local"),
    "preset": (
        "paper",
        "fast",
        "paper:mnist",
        "paper:adult",
        "paper:nowhere",
        "Paper",
        ":",
        "fast:",
    ),
    "labels": (
        "labels.csv:kind",
        "labels.csv",
        "labels.csv:who:file",
        "{csv}:sort",
        "label",
        "a:b:c:d",
    ),
    "label": ("income", "sort", "Income"),
}
# A call of each command that works; whatever it does not name is tried from its declaration.
WORKING: Mapping[str, Sequence[dict[str, Any]]] = {
    "methods": ({}, {"name": "{method}"}),
    "plan": ({"method": "{cheap}", **DATA, **BUDGET},) * 3
    + ({"method": "{method}", **DATA, **BUDGET}, {"method": "{cheap}", "spec": "{csv}", **BUDGET}),
    "check": (
        {**DATA, **BUDGET},
        {**FLAT, **BUDGET, "unit": "who"},
        {"spec": "{csv}"},
        {"spec": "{tar}", **PICTURES},
        {"spec": "{hub}", "image_size": "8"},
        {"spec": "{dicom}", "image_size": "8", "unit": "PatientID"},
        {"spec": "{damaged_data}", **PICTURES},
        {**DATA, "public_spec": "{npz}"},
    ),
    "schema draft": (
        {"table": "{csv}", "out": "{new}.json"},
        {"table": "{damaged_data}", "out": "-"},
    ),
    "schema check": ({"file": "{schema}"}, {"file": "{file}"}),
    "schema json": ({},),
    "ledger init": ({"folder": "{new}", **BUDGET},),
    "published": ({}, {"data": "mnist"}, {"data": "adult", "everything": True}),
    "fit": ({"method": "{cheap}", **DATA, **BUDGET, "out": "{new}", "quiet": True},) * 2
    + (
        {"method": "{cheap}", **FLAT, **BUDGET, "out": "{new}", "unit": "who", "engine": "local"},
        {"method": "{cheap}", "spec": "{dicom}", "image_size": "8", **BUDGET, "out": "{new}"},
        {"method": "mixture", "earlier": "{run}", "out": "{new}"},
        {"method": "merf", "earlier": "{damaged}", "out": "{new}"},
        {"method": "mixture", **DATA, **BUDGET, "out": "{damaged}", "resume": True},
        {"method": "mixture", **DATA, **BUDGET, "out": "{started}", "resume": True},
        {"method": "mixture", "spec": "{damaged_data}", "classes": "2", **BUDGET, "out": "{new}"},
    ),
    "sample": ({"run": "{run}", "n": "3", "out": "{new}.npz"},)
    + ({"run": "{damaged}", "n": "3", "out": "{new}.npz"},) * 3,
    "pretrain": (
        {"spec": "{npz}", "out": "{new}.safetensors", "kind": "pca", "steps": "1", "classes": "2"},
        {
            "spec": "{npz}",
            "out": "{new}.safetensors",
            "steps": "1",
            "dim": "2",
            "width": "8",
            "classes": "2",
        },
        {"spec": "{damaged_data}", "out": "{new}.safetensors", "kind": "pca", "steps": "1"},
    ),
    "explain": (
        {"run": "{classifier}", "out": "{new}.png"},
        {"run": "{classifier}", "spec": "{npz}", "classes": "2", "n": "2", "out": "{new}.html"},
        {"run": "{damaged}", "out": "{new}.png"},
    ),
    "evaluate": (
        {
            "target": "{run}",
            "real": "{npz}",
            "classes": "2",
            "n": "20",
            "metrics": "accuracy.logreg",
        },
        {"target": "{damaged_data}", "real": "{npz}", "classes": "2", "metrics": "accuracy.logreg"},
        {"target": "{damaged}", "real": "{npz}", "n": "20", "metrics": "accuracy.logreg"},
    ),
    "report": ({"run": "{run}"}, {"run": "{damaged}"}, {"run": "{run}", "beside": "{damaged}"}),
    "compare": ({"file": "{toml}", "out": "{new}"},),
    "data list": ({},),
    "data get": ({"names": "digits"},),
    "data info": ({"name": "digits"}, {"name": "adult"}),
    "demo": ({"out": "{started}", "name": "nonsense"},),
    # An audit draws noise for a minute or more; what it is given by mistake is refused before.
    "audit mechanism": ({"name": "nonsense"},),
    "audit run": (
        {"config": "mixture", **DATA, **BUDGET, "canaries": "4"},
        {"config": "{run}", "spec": "{npz}", "classes": "2", "canaries": "4"},
        {"config": "{damaged}", "spec": "{damaged_data}", "classes": "2"},
    ),
}
# How often a command is drawn: those that take seconds when nothing is wrong are drawn less.
WEIGHT = {
    "demo": 1,
    "compare": 2,
    "pretrain": 1,
    "evaluate": 3,
    "report": 3,
    "data get": 1,
    "data list": 1,
    "audit run": 1,
    "schema json": 1,
}
USUAL_WEIGHT = 8
# Commands whose answer may be no: it is on standard output, and the exit code says it too.
VERDICTS = {"verify"}
# A large number here is a wish for long work, which is granted.
WORK = {"steps", "n", "jobs", "canaries"}


@dataclass(frozen=True)
class Call:
    """One call: words for the command line, or a function of Python with its arguments, both with places to fill in."""

    number: int
    words: tuple[str, ...] = ()
    function: str = ""
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        if self.function:
            return f"{self.function}{self.arguments!r}"[:400]
        return (
            shlex.join(["sfumato", *self.words])[:400].encode("utf-8", "backslashreplace").decode()
        )


@dataclass
class Outcome:
    """How a call ended."""

    call: Call
    code: int
    told: str
    seconds: float
    hung: bool = False
    strays: list[str] = field(default_factory=list)
    computed: float = 0.0

    @property
    def bug(self) -> str:
        """What is wrong with it; empty if nothing."""
        if self.hung:
            return "hang"
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        if "Traceback" in self.told or self.code in (1, BUG) or "bug in sfumato" in self.told:
            return "traceback"
        if self.strays:
            return f"left {', '.join(self.strays)}"
        if self.call.words[:1] and self.call.words[0] in VERDICTS:
            return ""
        if self.code and sum(line.startswith("Error: ") for line in self.told.splitlines()) != 1:
            return "no sentence"
        return ""


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def calls(number: int, seed: int) -> Iterator[Call]:
    """The first `number` calls of `seed`."""
    for i in range(number):
        yield make_call(i, seed)


def make_call(number: int, seed: int) -> Call:
    draw = random.Random(f"{seed}:{number}")
    if draw.random() < 0.25:
        return _python_call(number, draw)
    commands = _commands()
    names = sorted(commands)
    name = draw.choices(names, [WEIGHT.get(n, USUAL_WEIGHT) for n in names])[0]
    return Call(number, words=tuple(_words(name, commands[name], draw)))


def _commands() -> dict[str, click.Command]:
    from sfumato.cli.main import app

    found: dict[str, click.Command] = {}

    def walk(prefix: str, command: click.Command) -> None:
        if isinstance(command, click.Group):
            for name, child in command.commands.items():
                walk(f"{prefix} {name}".strip(), child)
        else:
            found[prefix] = command

    walk("", app)
    return found


def _words(name: str, command: click.Command, draw: random.Random) -> list[str]:
    values = dict(draw.choice(WORKING[name])) if name in WORKING else {}
    parameters = {p.name: p for p in command.params if p.name not in ("debug", "help") and p.name}
    for key, parameter in parameters.items():
        if parameter.required and key not in values and name not in WORKING:
            values[key] = _hostile(name, parameter, draw)
    if "settings" in parameters and draw.random() < 0.5:
        values["settings"] = [_setting(values.get("method"), name, draw)]
    for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
        key = draw.choice(sorted(parameters) or [""])
        if key and key not in WORK and draw.random() < 0.1:
            values.pop(key, None)
        elif key:
            values[key] = _hostile(name, parameters[key], draw)
    words = name.split()
    method = str(values.get("method", ""))
    if method == "{cheap}":
        # Networks are trained now and then: even two steps take a second.
        quick = ("mixture", "mixture", "mge", "merf") if draw.random() < 0.9 else sorted(CHEAP)
        method = values["method"] = draw.choice(quick)
        cheap = [s for s in CHEAP[method] if "settings" in parameters]
        given = {s.partition("=")[0] for s in values.get("settings", [])}
        values["settings"] = [s for s in cheap if s.partition("=")[0] not in given] + list(
            values.get("settings", [])
        )
    if method == "{method}":
        values["method"] = draw.choice(_methods())
    for key, value in values.items():
        parameter = parameters.get(key) or click.Option([f"--{key}"])
        many = value if isinstance(value, list) else [value]
        for one in many:
            if isinstance(parameter, click.Argument):
                words.append(str(one))
            elif getattr(parameter, "is_flag", False):
                words += [parameter.opts[0]] if one else []
            else:
                option = draw.choice(parameter.opts)
                words += (
                    [f"{option}={one}"]
                    if option.startswith("--") and draw.random() < 0.2
                    else [option, str(one)]
                )
    if draw.random() < 0.02:
        words.insert(draw.randrange(len(words) + 1), draw.choice(("--nonsense", "", "extra", "-")))
    return words


def _methods() -> list[str]:
    from sfumato.methods import list_methods

    return sorted(info.name for info in list_methods())


def _hostile(command: str, parameter: click.Parameter, draw: random.Random) -> Any:
    """A value for `parameter`, by its declared type."""
    kind = parameter.type
    if getattr(parameter, "is_flag", False):
        return True
    if parameter.name in NEAR and draw.random() < 0.7:
        return draw.choice(NEAR[str(parameter.name)])
    if parameter.name == "settings":
        return [_setting(None, command, draw) for _ in range(draw.choice((1, 1, 2)))]
    if isinstance(kind, click.Choice):
        return draw.choice((*map(str, kind.choices), *WORDS))
    if isinstance(kind, click.types.IntParamType):
        huge = () if parameter.name in WORK and draw.random() < 0.9 else HUGE
        small = [v for v in WHOLE if parameter.name not in WORK or v not in ("1e3", "0x10")]
        return draw.choice((*small, *huge))
    if isinstance(kind, click.types.FloatParamType):
        return draw.choice((*REAL, *REAL, *TINY))
    if isinstance(kind, click.Path):
        return draw.choice((*PATHS, *OUTPUTS))
    near = ("digits", "digits:train", "digits:x", ":", "nonsense:train", *_methods())
    return draw.choice((*WORDS, *PATHS, *near, *WHOLE, "accuracy.logreg", "fid", "2", "a,b"))


def _setting(method: str | None, command: str, draw: random.Random) -> str:
    from sfumato.methods import get_method

    name = method if method in _methods() else draw.choice(sorted(CHEAP))
    setting = draw.choice(get_method(str(name)).settings())
    value = draw.choice(
        (*WHOLE, *REAL, *WORDS, "true", "auto", *(HUGE if command == "plan" else ()))
    )
    if draw.random() < 0.1:
        return draw.choice((f"nonsense={value}", "=", setting.name, f"{setting.name}=", value))
    return f"{setting.name}={value}"


# ── Python calls ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _python_call(number: int, draw: random.Random) -> Call:
    name = draw.choice(sorted(PYTHON))
    arguments = tuple(_argument(draw) for _ in range(PYTHON[name].__code__.co_argcount - 1))
    return Call(number, function=name, arguments=arguments)


def _argument(draw: random.Random) -> Any:
    return draw.choice(
        (draw.choice(OBJECTS), draw.choice(PATHS), draw.choice((0, 1, 2, 3, 0.5)), draw.random())
    )


def _method_class(ground: Ground, pick: Any) -> Any:
    from sfumato.methods import get_method

    names = sorted(CHEAP)
    return get_method(
        names[hash(str(pick)) % len(names)] if not isinstance(pick, str) else "mixture"
    )


def _try_budget(ground: Ground, epsilon: Any, delta: Any, neighbours: Any) -> None:
    import sfumato

    sfumato.Budget(epsilon=epsilon, delta=1e-5)
    sfumato.Budget(epsilon=1.0, delta=delta)
    sfumato.Budget(epsilon=1.0, delta=1e-5, neighbours=neighbours)


def _try_promise(ground: Ground, epsilon: Any, delta: Any) -> None:
    import sfumato

    data = sfumato.load(ground.of("{npz}"), classes=2)
    sfumato.Mixture(refine=False).promise(data.schema, sfumato.Budget(epsilon=epsilon, delta=delta))


def _try_load(ground: Ground, spec: Any, image_size: Any, channels: Any, classes: Any) -> None:
    import sfumato

    sfumato.load(ground.of(spec), classes=2)
    sfumato.load(ground.of("{pictures}"), image_size=image_size, channels=1)
    sfumato.load(ground.of("{pictures}"), image_size=8, channels=channels)
    sfumato.load(ground.of("{npz}"), classes=classes)


def _try_damaged_data(ground: Ground, spec: Any) -> None:
    import sfumato

    data = sfumato.load(ground.of("{damaged_data}"), classes=2)
    for batch in data.batches(16):
        _ = batch.values.sum()


def _try_every_format(ground: Ground, spec: Any) -> None:
    try:
        corrupt = importlib.import_module("sfumato.testing.corrupt")
    except ImportError:
        return
    files = corrupt.sound_files()
    name, other = (ground.draw.choice(sorted(files)) for _ in range(2))
    kind = ground.draw.choice(sorted(corrupt.CORRUPTIONS))
    damaged = corrupt.corrupt(files[name], kind, ground.draw.randrange(2**32), files[other])
    corrupt.read_whole(ground.scratch, name, damaged)


def _try_setting(ground: Ground, method: Any, which: Any, value: Any) -> None:
    import sfumato
    from sfumato.methods import get_method

    name = ground.draw.choice(_methods())
    cls = get_method(name)
    setting = ground.draw.choice(cls.settings())
    model = cls(**{setting.name: value})
    model.get_params()
    repr(model)
    model.promise(
        sfumato.load(ground.of("{npz}"), classes=2).schema, sfumato.Budget(epsilon=1, delta=1e-5)
    )


def _try_text_setting(ground: Ground, method: Any) -> None:
    from sfumato.methods import get_method

    cls = get_method(ground.draw.choice(_methods()))
    name = ground.draw.choice(cls.settings()).name
    cls.from_settings({name: ground.draw.choice((*WHOLE, *REAL, *WORDS, *HUGE))})


def _try_get_method(ground: Ground, name: Any) -> None:
    from sfumato.methods import get_method

    get_method(name)


def _try_load_run(ground: Ground, path: Any) -> None:
    from sfumato.methods import load

    load(ground.of(path)).sample(2, seed=0)


def _try_damaged_run(ground: Ground, path: Any) -> None:
    from sfumato.methods import load

    load(ground.of("{damaged}")).sample(2, seed=0)


def _try_damaged_report(ground: Ground, path: Any) -> None:
    from sfumato.report import write_report

    write_report(Path(ground.of("{damaged}")))


def _try_sample(ground: Ground, n: Any, seed: Any, keep: Any) -> None:
    from sfumato.methods import load

    model = load(ground.of("{run}"))
    if keep == 0.5:
        n = 3
    which = ground.draw.randrange(3)
    model.sample(
        n if which == 0 else 2, seed=seed if which == 1 else 0, keep=keep if which == 2 else 1.0
    )


def _try_save(ground: Ground, path: Any) -> None:
    from sfumato.methods import load

    model = load(ground.of("{run}"))
    model.sample(2, seed=0).save(ground.of(path))
    model.save(ground.of(path))


def _try_classifier(ground: Ground, path: Any, top: Any, of: Any) -> None:
    import sfumato

    model = sfumato.LocallyLinearMaps.load(ground.of(path if top == 1 else "{classifier}"))
    data = sfumato.load(ground.of("{npz}"), classes=2)
    model.explain(data, top=top)
    model.explain(data, of=of)


def _try_classifier_setting(ground: Ground, which: Any, value: Any) -> None:
    import numpy as np

    import sfumato

    model = sfumato.LocallyLinearMaps(
        epsilon=1.0, delta=1e-5, classes=2, maps=2, projection=2, epochs=0.5, rate=0.5
    )
    names = sorted(model.get_params())
    model.set_params(**{ground.draw.choice(names): value})
    model.fit(np.linspace(0, 1, 40).reshape(20, 2), np.arange(20) % 2)


def _try_schema(ground: Ground, value: Any) -> None:
    from sfumato.data import Schema

    good = json.loads(Path(ground.of("{schema}")).read_text())
    Schema.from_json(value if ground.draw.random() < 0.2 else _spoil(good, ground.draw))


def _try_config(ground: Ground, path: Any) -> None:
    from sfumato.report.comparison import read_config

    read_config(ground.of(path if ground.draw.random() < 0.3 else "{toml}"))


def _try_evaluate(ground: Ground, metrics: Any, preset: Any, seed: Any) -> None:
    import sfumato

    data = sfumato.load(ground.of("{npz}"), classes=2)
    which = ground.draw.randrange(3)
    cheap = ["accuracy.logreg"]
    if which == 0:
        sfumato.evaluate(data, data, metrics=metrics)
    elif which == 1:
        sfumato.evaluate(data, data, metrics=cheap, seed=seed)
    else:
        sfumato.evaluate(data, data, metrics=cheap, preset=preset)


def _try_files(ground: Ground, path: Any) -> None:
    from sfumato import files as storage

    if isinstance(path, str):
        place = Path(ground.of(path))
        storage.write_json(place, {"a": 1}) if ground.draw.random() < 0.5 else storage.read_json(
            place
        )


PYTHON: dict[str, Callable[..., None]] = {
    name.removeprefix("_try_"): value
    for name, value in globals().items()
    if name.startswith("_try_")
}


# ── the ground: tiny data, finished runs, odd files ───────────────────────────────────────────────────────────────────


class Ground:
    """Fills in the places of a call: `{npz}`, `{run}`, `{damaged}`; what may be changed is copied for the call."""

    def __init__(self, home: Path, scratch: Path, draw: random.Random) -> None:
        self.home, self.scratch, self.draw = home, scratch, draw
        self._made: dict[str, Path] = {}

    def of(self, value: Any) -> Any:
        """`value` with its places filled in, if it is text."""
        if not isinstance(value, str) or "{" not in value:
            return value
        for place in PLACES:
            while f"{{{place}}}" in value:
                value = value.replace(f"{{{place}}}", str(self._place(place)), 1)
        return value

    def _place(self, name: str) -> Path:
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Path:
        plain = {
            "npz": "pictures.npz",
            "csv": "table.csv",
            "toml": "compare.toml",
            "pictures": "folder",
            "flat": "flat",
            "tar": "samples.tar",
            "hub": "hub.parquet",
            "dicom": "dicom",
        }
        plain |= {
            "schema": "table.schema.json",
            "file": "file",
            "folder": "empty",
            "png": "folder/a/0.png",
        }
        if name in plain:
            source = self.home / plain[name]
            if name == "toml" and self.draw.random() < 0.9:
                return _spoil_text(source, self.scratch / "odd.toml", self.draw)
            return source
        if name in ("new", "missing"):
            return self.scratch / name
        path = self.scratch / f"{name}.d"
        if name == "fifo":
            os.mkfifo(path)
        elif name == "loop":
            path.symlink_to(path.name)
        elif name == "dangling":
            path.symlink_to("nowhere")
        elif name == "damaged_data":
            return self._damaged_data()
        else:
            kind = "classifier" if name == "classifier" else "mixture"
            if name == "damaged":
                kind = self.draw.choice(("mixture", "merf", "classifier", "mixture"))
            shutil.copytree(self.home / "runs" / kind, path)
            if name == "started":
                for part in ("manifest.json", "generator.safetensors", "samples.png"):
                    (path / part).unlink(missing_ok=True)
            if name == "damaged":
                for _ in range(self.draw.choice((1, 1, 2))):
                    damage_run(path, self.draw)
        return path

    def _damaged_data(self) -> Path:
        sources = (
            "pictures.npz",
            "table.csv",
            "table.parquet",
            "folder",
            "images-idx3-ubyte",
            "a.npy",
            "flat",
            "samples.tar",
            "hub.parquet",
            "dicom",
        )
        source = self.home / self.draw.choice(sources)
        path = self.scratch / source.name
        if source.is_dir():
            shutil.copytree(source, path)
            damage_file(
                self.draw.choice(sorted(p for p in path.rglob("*.*") if p.is_file())), self.draw
            )
            return path
        shutil.copy(source, path)
        if source.name.startswith("table"):
            shutil.copy(self.home / "table.schema.json", self.scratch)
            if self.draw.random() < 0.3:
                damage_file(self.scratch / "table.schema.json", self.draw)
                return path
        damage_file(path, self.draw)
        return path


PLACES = (
    "flat",
    "tar",
    "hub",
    "dicom",
    "npz",
    "csv",
    "toml",
    "pictures",
    "schema",
    "file",
    "folder",
    "png",
    "new",
    "missing",
    "fifo",
    "loop",
    "dangling",
    "damaged_data",
    "run",
    "classifier",
    "damaged",
    "started",
)


def damage_run(run: Path, draw: random.Random) -> None:
    """Spoil one file of a run folder; half the time the digests are made to agree again, so that readers see the damage."""
    files = sorted(p for p in run.rglob("*") if p.is_file() and not p.is_symlink())
    if not files:
        return
    stores = [p for p in files if _is_store(p)]
    damage_file(draw.choice(stores if stores and draw.random() < 0.6 else files), draw)
    manifest = run / "manifest.json"
    if draw.random() < 0.6 and manifest.is_file():
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, KeyError):
            import hashlib

            known = json.loads(manifest.read_text())
            known["sha256"] = {
                name: hashlib.sha256((run / name).read_bytes()).hexdigest()
                for name in known["sha256"]
                if (run / name).is_file()
            }
            manifest.write_text(json.dumps(known))


def damage_file(path: Path, draw: random.Random) -> None:
    """Truncate, flip, empty, replace; and where it is JSON, put values of another kind in it."""
    if path.suffix in (".json", ".jsonl") and draw.random() < 0.7:
        with contextlib.suppress(ValueError):
            path.write_text(json.dumps(_spoil(json.loads(path.read_text()), draw)))
            return
    if _is_store(path) and draw.random() < 0.6:
        with contextlib.suppress(sqlite3.Error):
            _spoil_store(path, draw)
            return
    content = path.read_bytes()
    where = draw.randrange(len(content) + 1)
    how = draw.choice(
        (
            "cut",
            "cut",
            "flip",
            "flip",
            "flip",
            "empty",
            "gone",
            "folder",
            "loop",
            "junk",
            "pipe",
            "text",
        )
    )
    if how == "cut":
        path.write_bytes(content[:where])
    elif how == "flip" and content:
        changed = bytearray(content)
        # Headers are where readers believe what they are told.
        span = len(content) if draw.random() < 0.5 else min(200, len(content))
        for _ in range(draw.choice((1, 1, 4, 40))):
            changed[draw.randrange(span)] = draw.choice((0, 255, draw.randrange(256)))
        path.write_bytes(changed)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "junk":
        path.write_bytes(draw.randbytes(300))
    elif how == "text":
        path.write_bytes(
            draw.choice(
                (b"[" * 100_000, b"null", b"[]", b"{}", b'"', b"NaN", b"\xff\xfe", b"9" * 5000)
            )
        )
    else:
        path.unlink()
        if how == "folder":
            path.mkdir()
        elif how == "loop":
            path.symlink_to(path.name)
        elif how == "pipe":
            os.mkfifo(path)


def _spoil(value: Any, draw: random.Random) -> Any:
    """JSON with one value, somewhere, replaced by one of another kind, removed, or added to."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.05:
        return draw.choice(JUNK)
    changed = dict(value) if isinstance(value, dict) else list(value)
    key = (
        draw.choice(sorted(changed)) if isinstance(changed, dict) else draw.randrange(len(changed))
    )
    how = draw.random()
    if how < 0.15:
        del changed[key]
    elif how < 0.2 and isinstance(changed, dict):
        changed["nonsense"] = draw.choice(JUNK)
    elif how < 0.4:
        changed[key] = draw.choice(JUNK)
    else:
        changed[key] = _spoil(changed[key], draw)
    return changed


def _is_store(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(15) == b"SQLite format 3"


def _spoil_store(path: Path, draw: random.Random) -> None:
    """A value of another kind in one row, or a row, column or table less."""
    store = sqlite3.connect(path)
    try:
        found = store.execute("select name from sqlite_master where type = 'table'").fetchall()
        table = draw.choice(sorted(name for (name,) in found))
        columns = [row[1] for row in store.execute(f'pragma table_info("{table}")')]
        column, rows = draw.choice(columns), f'select rowid from "{table}"'
        row = draw.choice([r for (r,) in store.execute(rows).fetchall()] or [0])
        old = store.execute(f'select "{column}" from "{table}" where rowid = ?', (row,)).fetchone()
        value = draw.choice((None, "", "x", -1, 2**62, 1e308, b"", b"x", "[]", "{}", "null", "NaN"))
        if old and isinstance(old[0], str) and draw.random() < 0.5:
            with contextlib.suppress(ValueError):
                value = json.dumps(_spoil(json.loads(old[0]), draw))
        how = draw.random()
        with store:
            if how < 0.8:
                change = f'update "{table}" set "{column}" = ? where rowid = ?'
                store.execute(change, (value, row))
            elif how < 0.9:
                store.execute(f'delete from "{table}" where rowid = ?', (row,))
            else:
                store.execute(f'drop table "{table}"')
    finally:
        store.close()


def _spoil_text(source: Path, target: Path, draw: random.Random) -> Path:
    lines = source.read_text().splitlines()
    # One mistake stays, so that no comparison is run: its processes would take half a minute.
    at = draw.choice([i for i, line in enumerate(lines) if not line.startswith("keep")])
    key = lines[at].partition("=")[0]
    values = (
        "[]",
        '""',
        '"a\\u0000b"',
        "nan",
        "-1",
        "true",
        "{}",
        "[1, [2]]",
        "1e400",
        "9" * 30,
        "'x'",
        "[",
        '"/dev/zero"',
    )
    lines[at] = draw.choice(
        (
            "",
            "=",
            f"{key} = {draw.choice(values)}",
            f"nonsense = {draw.choice(values)}",
            "[methods]",
        )
    )
    target.write_text("\n".join(lines))
    return target


def build(home: Path) -> None:
    """Tiny data in every format and three finished runs."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as parquet
    from PIL import Image

    import sfumato
    from sfumato.data import Column, Schema

    draw = np.random.default_rng(0)
    pictures = draw.integers(0, 256, (40, 8, 8), dtype=np.uint8)
    labels = np.arange(40) % 2
    np.savez(home / "pictures.npz", images=pictures, labels=labels)
    np.save(home / "a.npy", pictures)
    header = np.array([0x803, 40, 8, 8], dtype=">u4").tobytes()
    (home / "images-idx3-ubyte").write_bytes(header + pictures.tobytes())
    for i in range(6):
        path = home / "folder" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pictures[i]).save(path)
    from sfumato.testing.corrupt import sound_files

    sound = sound_files()
    for part in ("flat", "dicom"):
        (home / part).mkdir()
    for i in range(6):
        Image.fromarray(pictures[i]).save(home / "flat" / f"{i}.png")
        # Without pydicom there is none, and the folder holds what is no picture.
        (home / "dicom" / f"{i}.dcm").write_bytes(sound.get("gray.dcm", b""))
    lines = [f"{i}.png,{'ab'[i % 2]},p{i // 2}" for i in range(6)]
    (home / "flat" / "labels.csv").write_text("\n".join(["file,kind,who", *lines]) + "\n")
    (home / "samples.tar").write_bytes(sound["sample.tar"])
    (home / "hub.parquet").write_bytes(sound["hub.parquet"])
    age, kind = draw.uniform(0, 9, 30), [("u", "v")[i % 2] for i in range(30)]
    rows = [f"{a:.2f},{k},{k}" for a, k in zip(age, kind, strict=True)]
    (home / "table.csv").write_text("\n".join(["age,sort,income", *rows]) + "\n")
    parquet.write_table(
        pa.table({"age": age, "sort": kind, "income": kind}), home / "table.parquet"
    )
    schema = Schema(
        kind="table",
        columns=(
            Column(name="age", kind="numerical", low=0, high=9),
            Column(name="sort", kind="categorical", categories=("u", "v")),
        ),
        classes=("u", "v"),
        label="income",
    )
    (home / "table.schema.json").write_text(json.dumps(schema.to_json()))
    (home / "file").write_text("text")
    (home / "empty").mkdir()
    (home / "compare.toml").write_text(
        f'train = "{home}/pictures.npz"\ntest = "{home}/pictures.npz"\nclasses = 2\nepsilons = [1.0]\ndelta = 1e-5\n'
        'samples = 20\nseeds = [0]\nmetrics = ["accuracy.logreg"]\nkeep = 2\n[methods.mixture]\nrefine = false\n'
    )
    data = sfumato.load(home / "pictures.npz", classes=2)
    budget = sfumato.Budget(epsilon=1.0, delta=1e-5)
    for name in ("mixture", "merf", "llm"):
        method = sfumato.get_method(name).from_settings(dict(s.split("=") for s in CHEAP[name]))
        out = home / "runs" / ("classifier" if name == "llm" else name)
        method.fit(data, budget, out=out)


# ── running ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def perform(call: Call, home: Path, scratch: Path, seed: int) -> int:
    """Make the call, here and now; returns the exit code. Anything but an error of ours leaves its traceback."""
    ground = Ground(home, scratch, random.Random(f"ground:{seed}:{call.number}"))
    from sfumato.errors import SfumatoError

    try:
        if call.function:
            PYTHON[call.function](ground, *call.arguments)
            return 0
        from sfumato.cli import main as cli

        explain = cli._explain

        def explained(error: BaseException, words: list[str]) -> int:
            code = explain(error, words)
            if code == 1:
                traceback.print_exception(error)
            return code

        cli._explain = explained  # type: ignore[assignment]
        cli.app.main([ground.of(word) for word in call.words])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except SfumatoError as error:
        text = " ".join(str(error).split()).encode("utf-8", "backslashreplace").decode()
        os.write(2, f"Error: {text}\n".encode())
        return error.exit_code
    except BaseException:
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
        return BUG


def run(call: Call, home: Path, scratch: Path, seed: int, seconds: float = SECONDS) -> Outcome:
    """Make the call in a forked child and wait for it, but not for ever."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    printed = scratch.with_name("printed")
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        code = BUG
        try:
            _isolate(scratch, printed)
            faulthandler.dump_traceback_later(0.9 * seconds)  # where it hangs
            code = perform(call, home, scratch, seed)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            os._exit(code)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code, hung = _wait(child, began, seconds)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = printed.read_text(encoding="utf-8", errors="replace")
    strays = [str(p.relative_to(scratch)) for p in scratch.rglob("*") if p.name.endswith(".part")]
    computed = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Outcome(call, code, told, time.monotonic() - began, hung, strays, computed)


def _isolate(scratch: Path, printed: Path) -> None:
    """A process group, folder, output, memory limit of its own, and no network."""
    import socket

    os.setpgid(0, 0)
    os.chdir(scratch)
    output = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = io.TextIOWrapper(
        io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True
    )
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False), encoding="utf-8", write_through=True
    )
    held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def nowhere(*_: Any, **__: Any) -> Any:
        raise OSError(101, "Network is unreachable")

    socket.socket.connect = nowhere  # type: ignore[method-assign]
    socket.getaddrinfo = nowhere


def _wait(child: int, began: float, seconds: float) -> tuple[int, bool]:
    """Exit code, and whether it had to be ended: for computing too long, or for waiting on nothing."""
    pause = 0.001
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            _end_group(child)
            return os.waitstatus_to_exitcode(status), False
        waited = time.monotonic() - began
        if waited > seconds:
            computed = _computed(child)
            if computed > seconds or waited > PATIENCE or computed < seconds / 10:
                _end_group(child)
                os.waitpid(child, 0)
                return 0, True
        time.sleep(pause)
        pause = min(0.02, pause * 1.3)


def _computed(child: int) -> float:
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _end_group(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def warm() -> None:
    """Import what calls need, on one thread: threads do not survive a fork."""
    for name in WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


def _fetch_nothing() -> None:
    """A demo on a real data set is work for minutes and no hostile call."""
    from sfumato.data import fetch

    def refuse(*_: Any, **__: Any) -> Any:
        raise fetch.SourceFailed("nothing is fetched here")

    for tool in ("run_tool", "ask_tool", "download"):
        setattr(fetch, tool, refuse)
    # A page that is served waits for whoever looks at it: here it is made ready, and nobody comes.
    with contextlib.suppress(ImportError):
        server: Any = importlib.import_module("uvicorn").Server
        server.run = lambda *_, **__: None
    browser: Any = importlib.import_module("webbrowser")
    browser.open = lambda *_, **__: False


def fuzz(
    number: int,
    seed: int,
    *,
    report: Callable[[Outcome], None],
    only: Sequence[int] = (),
    seconds: float = SECONDS,
) -> list[Outcome]:
    """Make `number` calls and say how each ended."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="sfumato-fuzz-") as place:
        home = Path(place).resolve() / "home"
        home.mkdir()
        os.environ["SFUMATO_CACHE"] = str(home / "cache")
        warm()
        _fetch_nothing()
        child = os.fork()  # training starts threads, which no later fork would survive
        if child == 0:
            code = BUG
            try:
                build(home)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise RuntimeError("the data and runs to be tried could not be made")
        # What was found before Ctrl-C is told.
        with contextlib.suppress(KeyboardInterrupt):
            for call in (make_call(i, seed) for i in only) if only else calls(number, seed):
                outcome = run(call, home, Path(place) / "scratch", seed, seconds)
                report(outcome)
                outcomes.append(outcome)
    return outcomes


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Counts, and the first calls that ended badly."""
    bad = [o for o in outcomes if o.bug]
    codes = Counter(o.code for o in outcomes if not o.bug)
    return {
        "calls": len(outcomes),
        "ended well": codes.pop(0, 0),
        "one-sentence errors by exit code": {str(code): codes[code] for code in sorted(codes)},
        "tracebacks": sum(o.bug != "hang" for o in bad),
        "hangs": sum(o.bug == "hang" for o in bad),
        "offending": [
            {"number": o.call.number, "call": str(o.call), "how": o.bug, "told": o.told[-1500:]}
            for o in bad[:SHOWN]
        ],
    }


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sfumato.testing.fuzz", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, help="JSON file for the counts and every offending call."
    )
    parser.add_argument(
        "--only", type=int, nargs="+", default=[], help="Run these calls and show what they print."
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="When a call hangs.")
    parser.add_argument(
        "--slow", type=float, default=math.inf, help="Name calls that took more seconds than this."
    )
    given = parser.parse_args(words)
    began = time.monotonic()

    def report(outcome: Outcome) -> None:
        if outcome.bug or given.only or outcome.seconds > given.slow:
            say = f"{outcome.call.number} {outcome.bug or 'slow'} {outcome.seconds:.1f} s: {outcome.call}\n"
            sys.stderr.write(say + (outcome.told[-3000:] + "\n" if given.only else ""))
        if outcome.call.number % 500 == 499:
            sys.stderr.write(f"{outcome.call.number + 1} calls, {time.monotonic() - began:.0f} s\n")

    outcomes = fuzz(given.calls, given.seed, report=report, only=given.only, seconds=given.seconds)
    found = summary(outcomes)
    found["seconds"] = round(time.monotonic() - began, 1)
    found["seconds of computing"] = round(sum(o.computed for o in outcomes), 1)
    if given.out:
        every = [
            {"number": o.call.number, "call": str(o.call), "how": o.bug, "told": o.told[-3000:]}
            for o in outcomes
            if o.bug
        ]
        given.out.write_text(json.dumps({**found, "offending": every}, indent=2) + "\n")
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 1 if found["tracebacks"] or found["hangs"] else 0


if __name__ == "__main__":
    sys.exit(main())
