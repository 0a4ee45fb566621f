"""`compare`: methods × ε × seeds on one data set, as a table and a privacy–utility curve.

A cell is one fit, its samples and their metrics. Finished cells are kept in `cells/`, filed by a hash of everything that
decides their numbers, so that an interrupted comparison goes on where it stopped and a changed setting makes new cells.

Public: the samples' guarantee, settings, plans. NOT covered by ε: every metric, since it reads real records; each output
says so. The hash holds when a private file was last changed, never what is in it. Every cell is a release of its own.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import math
import multiprocessing
import os
import re
import signal
import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from sfumato._version import __version__
from sfumato.errors import BadInput, CorruptArtifact, RunConflict, SfumatoError
from sfumato.progress import Progress
from sfumato.storage import atomic_path, read_json, write_json, write_text

FORMAT = 1
NOT_COVERED = "computed on real data, not covered by ε"
DEFAULTS = {"neighbours": "zero-out", "seeds": [0], "samples": 60_000, "preset": "quick"}
FACTS = ("image_size", "channels", "classes")
_KEYS = ("data", "train", "test", "epsilons", "delta", "neighbours", "seeds", "samples", "metrics")
_MOST_PANELS = 6

Cell = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a comparison's TOML file says, checked. `variants` maps a shown name to a method and its settings."""

    data: str  # as shown; a named set's name, so that its published numbers are found
    train: str
    test: str
    facts: dict[str, Any]
    epsilons: tuple[float, ...]
    delta: float
    neighbours: str
    seeds: tuple[int, ...]
    samples: int
    metrics: tuple[str, ...]
    preset: str
    variants: dict[str, tuple[str, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What `compare` found: a row for each metric, ε and method, the cells, and a sentence for each cell that failed."""

    config: Config
    rows: list[Row]
    cells: list[Cell]
    failures: list[dict[str, Any]]
    notes: list[str]
    kept: int
    folder: Path

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "sfumato": __version__,
            "metrics_are": NOT_COVERED,
            "config": asdict(self.config),
            "rows": self.rows,
            "cells": self.cells,
            "failures": self.failures,
            "notes": self.notes,
        }


# ── the TOML file ─────────────────────────────────────────────────────────────────────────────────────────────────────


def read_config(path: Path | str) -> Config:
    """A comparison's TOML file; anything wrong with it is a sentence that names the key."""
    path = Path(path)
    try:
        return parse_config(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadInput(f"Cannot read {path}: {error.strerror}; check the path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not TOML ({error}); correct it there.") from error
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def parse_config(given: Mapping[str, Any]) -> Config:
    """The same from a mapping."""
    known = (*_KEYS, "preset", *FACTS, "methods")
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
    from sfumato.privacy import Budget, Neighbours

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
    from sfumato.data.named import unknown_set

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


def _variants(tables: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    from sfumato.methods import get_method

    if not isinstance(tables, dict) or not tables:
        raise BadInput("No method is named; add a table such as [methods.merf].")
    found = {}
    for name, table in tables.items():
        if not isinstance(table, dict) or not name.strip() or not name.isprintable():
            raise BadInput(f"methods.{name} must be a table of settings; write [methods.merf].")
        settings = dict(table)
        method = settings.pop("method", name)
        if "seed" in settings:
            raise BadInput(f"[methods.{name}] sets seed; the list seeds does that for all methods.")
        texts = {}
        for key, value in settings.items():
            if not isinstance(value, str | bool) and not _is_number(value):
                raise BadInput(f"[methods.{name}] {key} must be a number, text, true or false.")
            texts[key] = str(value).lower() if isinstance(value, bool) else str(value)
        hint = "" if "method" in table else f' (or name it by method = "…" in [methods.{name}])'
        try:
            cls = get_method(str(method))
            hint = ""
            full = cls.from_settings(texts).get_params()
        except BadInput as error:
            raise BadInput(f"[methods.{name}] {error}{hint}") from error
        full.pop("seed", None)
        found[name] = (cls.info.name, full)
    return found


# ── the cells ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def compare(
    config: Config | Path | str,
    out: Path | str,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run the cells that `out` does not hold yet, in `jobs` processes (at most one a core), and write the comparison.

    A cell that fails is a sentence in `failures`; it does not stop the others and is tried again next time.
    """
    from sfumato.data import load, schema_of
    from sfumato.privacy import Budget, Neighbours

    if not isinstance(config, Config):
        config = read_config(config)
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise BadInput(f"jobs must be a whole number of at least 1, not {jobs!r}; leave it out.")
    out, progress = Path(out), progress or Progress()
    _check_folder(out)
    schema, size = schema_of(config.train, **config.facts)
    metrics = _metric_names(config, schema)
    _check_plans(config, schema)
    for spec in (config.train, config.test):  # fetched once, here, rather than by every process
        load(spec, **config.facts, progress=progress)

    try:
        (out / "cells").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"Cannot write to {out}: {error.strerror}; choose another folder."
        ) from error
    grid = _grid(config, metrics)
    cells = {key: cell for key, _, cell in grid}
    done = {key: found for key in cells if (found := _kept(out / "cells" / f"{key}.json"))}
    kept = len(done)
    failed: dict[str, dict[str, Any]] = {}

    def finished(key: str, result: dict[str, Any]) -> None:
        stage.advance()
        if "error" in result:
            failed[key] = result
        else:
            done[key] = {"format": FORMAT, "sfumato": __version__, "cell": cells[key], **result}
            write_json(out / "cells" / f"{key}.json", done[key])

    if kept:
        progress.note(f"{kept} of {len(cells)} cells were there already and are kept.")
    waiting = {key: cell for key, cell in cells.items() if key not in done}
    with progress.stage(f"Comparing on {config.data}", len(waiting) or 1) as stage:
        run_cells(waiting, finished, min(jobs or 10**6, _cores()))

    budget = Budget(epsilon=1.0, delta=config.delta, neighbours=Neighbours(config.neighbours))
    warning = budget.warning(size) if budget.neighbours.size_is_public else None
    outcome = Outcome(
        config=config,
        rows=_rows(config, [(name, cell, done[key]) for key, name, cell in grid if key in done]),
        cells=[{"name": name, "key": key, **done[key]} for key, name, _ in grid if key in done],
        failures=[
            {"name": name, "epsilon": cell["epsilon"], "seed": cell["seed"], **failed[key]}
            for key, name, cell in grid
            if key in failed
        ],
        notes=[warning] if warning else [],
        kept=kept,
        folder=out,
    )
    _write(outcome)
    return outcome


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise BadInput(f"{out} is a file; give --out a folder.")
    if out.is_dir() and any(out.iterdir()) and not (out / "cells").is_dir():
        raise RunConflict(f"{out} is not empty and holds no comparison; choose another folder.")


def _metric_names(config: Config, schema: Any) -> tuple[str, ...]:
    from sfumato.evaluation import list_metrics, preset_metrics

    if config.preset:
        return preset_metrics(config.preset, schema, train=True)
    usable = [m.name for m in list_metrics() if m.applies(schema)]
    found: dict[str, None] = {}
    for name in config.metrics:
        family = [m for m in usable if name in (m, m.split(".")[0])]
        if not family:
            raise BadInput(
                f"metrics names {name!r}, unknown for {config.data}; choose from {', '.join(usable)}."
            )
        found.update(dict.fromkeys(family))
    return tuple(found)


def _check_plans(config: Config, schema: Any) -> None:
    from sfumato.methods import get_method

    for name, (method, settings) in config.variants.items():
        cls = get_method(method)
        if schema.kind not in cls.info.kinds:
            raise BadInput(
                f"[methods.{name}] {method} does not make {schema.kind}; leave it out for {config.data}."
            )
        try:
            cls(**settings).plan(schema, 1.0)
        except BadInput as error:
            raise BadInput(f"[methods.{name}] {error}") from error


def _grid(config: Config, metrics: Sequence[str]) -> list[tuple[str, str, Cell]]:
    """Key, shown name and content of every cell."""
    changed = [_changed(config.train), _changed(config.test)]
    grid = []
    for name, epsilon, seed in product(config.variants, config.epsilons, config.seeds):
        method, settings = config.variants[name]
        cell = {"method": method, "settings": settings, "epsilon": epsilon, "delta": config.delta}
        cell |= {"neighbours": config.neighbours, "train": config.train, "test": config.test}
        cell |= {"facts": config.facts, "samples": config.samples, "metrics": [*metrics]}
        cell |= {"seed": seed}
        text = json.dumps([FORMAT, __version__, cell, changed], sort_keys=True)
        grid.append((hashlib.sha256(text.encode()).hexdigest()[:32], name, cell))
    return grid


def _changed(spec: str) -> list[str | int]:
    """Where a path leads and when it last changed; a named set is fixed by its name."""
    from sfumato.data import find_named

    if find_named(spec) is not None:
        return []
    path = Path(spec).resolve()
    parts = [path, *(path.rglob("*") if path.is_dir() else path.parent.glob(f"{path.stem}*"))]
    return [str(path), max(part.stat().st_mtime_ns for part in parts)]


def _kept(path: Path) -> Cell | None:
    try:
        found = read_json(path) if path.exists() else None
        return found if found and found["format"] == FORMAT and found["metrics"] else None
    except (CorruptArtifact, KeyError, TypeError):
        return None  # damaged from outside: made again


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_cells(
    cells: Mapping[str, Cell],
    finished: Callable[[str, dict[str, Any]], None],
    jobs: int,
    work: Callable[[Cell], dict[str, Any]] | None = None,
) -> None:
    """Call `finished` with the result of every cell, as they come, from up to `jobs` fresh processes."""
    work = work or run_cell
    lost = _run_pool(cells, finished, min(jobs, len(cells)), work)
    # One killed process takes its neighbours' work along, so each of those gets a process of its own.
    for key in lost:
        if _run_pool({key: cells[key]}, finished, 1, work):
            cause = "its process was ended from outside, most likely for lack of memory"
            finished(key, {"error": f"{cause}; use --jobs 1 or smaller settings.", "exit_code": 7})


def _run_pool(
    cells: Mapping[str, Cell],
    finished: Callable[[str, dict[str, Any]], None],
    jobs: int,
    work: Callable[[Cell], dict[str, Any]],
) -> list[str]:
    if not cells:
        return []
    lost: list[str] = []
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker)
    try:
        futures = {pool.submit(work, cell): key for key, cell in cells.items()}
        for future in as_completed(futures):
            try:
                result = future.result()
            except BrokenProcessPool:
                lost.append(futures[future])
            else:
                finished(futures[future], result)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    pool.shutdown()
    return lost


def _start_worker() -> None:
    # Before torch is imported: cells run side by side, so each keeps to one thread.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    parent = multiprocessing.parent_process()

    def leave_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


def run_cell(cell: Cell) -> dict[str, Any]:
    """Fit, sample, judge. An error becomes a sentence, which never quotes what an unexpected one says."""
    import torch

    from sfumato.data import load
    from sfumato.evaluation import evaluate, list_metrics
    from sfumato.methods import get_method
    from sfumato.privacy import Budget, Neighbours

    torch.set_num_threads(1)
    relation = Neighbours(cell["neighbours"])
    try:
        start = time.perf_counter()
        train = load(cell["train"], **cell["facts"])
        model = get_method(cell["method"])(**{**cell["settings"], "seed": cell["seed"]})
        model.fit(train, Budget(epsilon=cell["epsilon"], delta=cell["delta"], neighbours=relation))
        fitted = time.perf_counter()
        reads_train = any(m.reads == "train" for m in list_metrics() if m.name in cell["metrics"])
        found = evaluate(
            model.sample(cell["samples"], seed=cell["seed"]),
            load(cell["test"], **cell["facts"]),
            metrics=cell["metrics"],
            train=train if reads_train else None,
            seed=cell["seed"],
        )
        metrics = found.to_json()["metrics"]
        if not all(math.isfinite(m[part]) for m in metrics for part in ("value", "low", "high")):
            raise BadInput("A metric is not a finite number; draw more samples or leave it out.")
    except SfumatoError as error:
        return {"error": " ".join(str(error).split()), "exit_code": error.exit_code}
    except MemoryError:
        return {"error": "Memory ran out; use --jobs 1 or smaller settings.", "exit_code": 7}
    except Exception as error:
        text = f"Something unexpected happened ({type(error).__name__}); try it by sfumato fit."
        return {"error": text, "exit_code": 1}
    seconds = {"fit": round(fitted - start, 2), "judge": round(time.perf_counter() - fitted, 2)}
    statement = model.statement_.to_json()
    promise = {key: statement[key] for key in ("epsilon", "delta", "neighbours", "epsilon_under")}
    return {"statement": promise, "metrics": metrics, "seconds": seconds}


# ── what is written ───────────────────────────────────────────────────────────────────────────────────────────────────


def published(data: str) -> list[dict[str, Any]]:
    """The papers' numbers on a named data set."""
    text = (files("sfumato") / "published.toml").read_text(encoding="utf-8")
    return [number for number in tomllib.loads(text)["numbers"] if number["data"] == data]


def _rows(config: Config, results: Sequence[tuple[str, Cell, Cell]]) -> list[Row]:
    from sfumato.methods import get_method

    values: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    for name, cell, result in results:
        for metric in result["metrics"]:
            values.setdefault((metric["name"], cell["epsilon"], name), []).append(metric)
    rows: list[Row] = []
    for (metric, epsilon, name), found in values.items():
        numbers = [m["value"] for m in found]
        mean, low, high = sum(numbers) / len(numbers), min(numbers), max(numbers)
        row = {"metric": metric, "epsilon": epsilon, "relation": config.neighbours, "method": name}
        row |= {"mean": mean, "low": low, "high": high, "seeds": len(numbers), "published": False}
        sound = get_method(config.variants[name][0]).info.sound
        rows.append(
            row | {"source": found[0]["source"] + ("" if sound else "; ACCOUNTING NOT SOUND")}
        )
    order = list(dict.fromkeys(row["metric"] for row in rows))
    for number in published(config.data) if order else []:
        if number["metric"] in order:
            row = {key: number[key] for key in ("metric", "epsilon", "relation", "method")}
            row |= {"mean": number["value"], "low": None, "high": None, "seeds": None}
            rows.append(row | {"published": True, "source": f"published: {number['source']}"})
    return sorted(rows, key=lambda r: (order.index(r["metric"]), r["epsilon"], r["published"]))


COLUMNS = ("Metric", "ε", "Relation", "Method", "Mean", "Range over seeds", "Seeds", "Source")


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The rows as text, under `COLUMNS`."""
    return [
        (
            row["metric"],
            f"{row['epsilon']:g}",
            row["relation"],
            row["method"] + (" (published)" if row["published"] else ""),
            f"{row['mean']:.4g}",
            "–" if row["published"] else f"{row['low']:.4g} … {row['high']:.4g}",
            "–" if row["published"] else str(row["seeds"]),
            row["source"],
        )
        for row in rows
    ]


def remarks(outcome: Outcome) -> list[str]:
    """What a reader must know beside the table."""
    config = outcome.config
    return [
        f"Each row of ours is {config.neighbours} (ε, δ)-differential privacy with δ = {config.delta:g} for the samples of "
        f"ONE fit; the {len(outcome.cells)} fits made here are as many releases of the same data, and add up.",
        f"Every number of ours is {NOT_COVERED}; choosing a method or setting by it is not covered either.",
        f"Mean and range are over {len(config.seeds)} seed(s), {config.samples:,} synthetic records each. Published numbers come "
        "with the papers' own accounting, relation and protocol.",
        *outcome.notes,
    ]


def _write(outcome: Outcome) -> None:
    from jinja2 import Environment, StrictUndefined

    out, config = outcome.folder, outcome.config
    write_json(out / "comparison.json", outcome.to_json())
    keys = ("metric", "epsilon", "relation", "method", "mean", "low", "high", "seeds", "published")
    text = io.StringIO()
    writer = csv.DictWriter(text, [*keys, "delta", "source"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"delta": None if r["published"] else config.delta, **r} for r in outcome.rows)
    write_text(out / "comparison.csv", text.getvalue())

    lines = [f"# Comparison on {_markdown(config.data)}", ""]
    lines += [f"- {_markdown(remark)}" for remark in remarks(outcome)]
    lines += ["", _line(COLUMNS), _line(["---"] * len(COLUMNS)), *map(_line, table(outcome.rows))]
    lines += ["", "![Privacy and utility](curve.png)"] if outcome.cells else []
    lines += [f"\n**Failed**: {_markdown(failure_sentence(f))}" for f in outcome.failures]
    write_text(out / "comparison.md", "\n".join(lines) + "\n")

    pictures = {}
    for theme in ("light", "dark") if outcome.cells else ():
        picture = _curve(outcome.rows, theme)
        pictures[theme] = base64.b64encode(picture).decode()
        if theme == "light":
            with atomic_path(out / "curve.png") as temporary:
                temporary.write_bytes(picture)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    source = (files("sfumato") / "comparison.html.jinja").read_text(encoding="utf-8")
    page = environment.from_string(source).render(
        config=config,
        columns=COLUMNS,
        rows=list(zip(table(outcome.rows), outcome.rows, strict=True)),
        remarks=remarks(outcome),
        failures=[failure_sentence(f) for f in outcome.failures],
        pictures=pictures,
        badge=NOT_COVERED,
        version=__version__,
    )
    write_text(out / "comparison.html", page)


def failure_sentence(failure: Mapping[str, Any]) -> str:
    return (
        f"{failure['name']}, ε = {failure['epsilon']:g}, seed {failure['seed']}: {failure['error']}"
    )


def _markdown(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_markdown, cells)) + " |"


def _curve(rows: Sequence[Row], theme: str) -> bytes:
    """Each metric against ε: a line and a band (the range over seeds) per method, hollow marks for published numbers."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    paper, ink = {"light": ("#fffdfa", "#2a2420"), "dark": ("#201b18", "#ede5db")}[theme]
    metrics = list(dict.fromkeys(row["metric"] for row in rows))[:_MOST_PANELS]
    figure = Figure(figsize=(8, 3.6 * len(metrics)), facecolor=paper, layout="constrained")
    axes = figure.subplots(len(metrics), squeeze=False)[:, 0]
    for axis, metric in zip(axes, metrics, strict=True):
        lines: dict[tuple[bool, str], list[Row]] = {}
        for row in rows:
            if row["metric"] == metric:
                lines.setdefault((row["published"], row["method"]), []).append(row)
        for i, ((theirs, name), line) in enumerate(sorted(lines.items())):
            x, mean = [row["epsilon"] for row in line], [row["mean"] for row in line]
            colour = colormaps["tab10"](i % 10)
            name = name.replace("$", r"\$")
            if theirs:
                style = {"marker": "osD^v<>P*X"[i % 10], "mfc": "none", "color": colour, "ls": ":"}
                axis.plot(x, mean, lw=0.8, label=f"{name} (published)", **style)
            else:
                low, high = (
                    [r["mean"] - r["low"] for r in line],
                    [r["high"] - r["mean"] for r in line],
                )
                axis.errorbar(x, mean, (low, high), marker="o", capsize=4, color=colour, label=name)
        axis.set(xscale="log", xlabel="ε (log scale)", facecolor=paper)
        ticks = sorted({row["epsilon"] for line in lines.values() for row in line})
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.set_title(f"{metric} – on real data, not covered by ε", color=ink, fontsize=10)
        axis.tick_params(which="both", colors=ink)
        axis.xaxis.label.set_color(ink)
        for spine in axis.spines.values():
            spine.set_color(ink)
        axis.grid(alpha=0.25)
        place = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "frameon": False}
        axis.legend(labelcolor=ink, fontsize=8, **place)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    return buffer.getvalue()
