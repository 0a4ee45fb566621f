"""`write_report`: a run folder becomes one self-contained page, its Markdown twin and a JSON for scripts.

The page needs no script and no network (its own content policy forbids both), and every word from a file is escaped. What
it shows is public by the run's guarantee, except the metrics, which wear a badge that says so.
"""

from __future__ import annotations

import math
import platform
import re
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from sfumato.data import Dataset, Schema
from sfumato.errors import BadInput
from sfumato.methods import list_methods, load
from sfumato.report.folder import RunFacts, read_run
from sfumato.report.pictures import curve, sample_rows
from sfumato.storage import write_json, write_text

_SEED = 0
_MOST_CLASSES = 40

_RELATIONS = {
    "zero-out": "one record is left out of every computation; the number of records is public",
    "add-remove": "one record is added or taken away; the number of records is private too",
    "replace-one": "one record is replaced by any other; the number of records is public",
}
_LIBRARIES = ("sfumato", "torch", "numpy", "scipy", "dp-accounting", "opendp")


@dataclass(frozen=True)
class _Share:
    name: str
    count: int
    percent: float
    width: float  # of the bar, in percent of the largest


def write_report(run: Path | str, *, samples: Dataset | None = None) -> Path:
    """Write report.html, report.md and report.json into the run folder; returns the path of the page.

    `samples` are synthetic records to show; by default they are drawn from the run's own generator.
    """
    run = Path(run)
    facts = read_run(run)
    if samples is None:
        samples = load(run).sample(_sample_size(facts.schema), seed=_SEED)
        drawn: dict[str, Any] = {"n": len(samples), "seed": _SEED}
    else:
        drawn = {"n": len(samples)}
    if samples.schema.kind != facts.schema.kind or samples.schema.shape != facts.schema.shape:
        raise BadInput(
            f"The samples given are not of the kind and shape that {run} makes; draw them from this run."
        )
    content = _content(facts, samples)
    page = run / "report.html"
    write_json(run / "report.json", _summary(content, facts, drawn))
    write_text(run / "report.md", _render("report.md.jinja", content, _markdown))
    write_text(page, _render("report.html.jinja", content, None))
    return page


def _sample_size(schema: Schema) -> int:
    # Enough for a full row of each class and for a class balance good to a few percent.
    return min(5000, max(1000, 40 * schema.n_classes)) if schema.labelled else 200


def _content(facts: RunFacts, samples: Dataset) -> dict[str, Any]:
    statement, config = facts.statement, facts.config
    epsilon, delta = float(statement["epsilon"]), float(statement["delta"])
    info = next((m for m in list_methods() if m.name == config["method"]), None)
    metrics = [_metric(metric, facts.schema) for metric in (facts.metrics or {}).get("metrics", [])]
    return {
        "name": config["data"]["name"],
        "method": config["method"],
        "title": info.title if info else config["method"],
        "paper": info.paper if info else "",
        "sound": info.sound if info else True,
        "verdict": _verdict(statement, metrics),
        "statement": statement,
        "epsilon": _bound(epsilon),
        "delta": _power(delta),
        "relation": statement["neighbours"],
        "relation_meaning": _RELATIONS.get(statement["neighbours"], ""),
        "factor": _factor(epsilon),
        "guess": _guess(epsilon, delta),
        "guess_place": 100 * (_guess_share(epsilon, delta) - 0.5) / 0.5,
        "relations": [
            (
                name,
                _RELATIONS.get(name, ""),
                _bound(value),
                _guess(value, delta),
                name == statement["neighbours"],
            )
            for name, value in statement["epsilon_under"].items()
        ],
        "releases": [_release(release) for release in statement["releases"]],
        "rows": sample_rows(samples) if facts.schema.kind == "images" else [],
        "small": facts.schema.kind == "images" and max(facts.schema.shape[1:]) <= 112,
        "table": _table(samples) if facts.schema.kind == "table" else None,
        "more_classes": max(0, facts.schema.n_classes - _MOST_CLASSES),
        "balance": _balance(samples),
        "n_samples": len(samples),
        "curve": curve(facts.losses),
        "steps": facts.losses[-1][0] if facts.losses else 0,
        "duration": _duration(facts.seconds),
        "metrics": metrics,
        "trained_on": _drawn(facts).get("n"),
        "chance": 100 / facts.schema.n_classes if facts.schema.n_classes else None,
        "commands": _commands(facts),
        "evaluate_command": _evaluate_command(facts),
        "facts": _facts(facts),
        "settings": [(key, _plain(value)) for key, value in config["settings"].items()],
        "versions": _versions(config),
        "made": datetime.now(UTC).strftime("%Y-%m-%d"),
        "picture": "samples.png" if (facts.path / "samples.png").exists() else None,
    }


_CLASSIFIERS = {
    "logreg": "logistic regression",
    "mlp": "perceptron",
    "cnn": "convolutional network",
    "resnet9": "residual network",
    "rf": "random forest",
    "gnb": "naive Bayes, Gaussian",
    "bnb": "naive Bayes, Bernoulli",
    "svc": "linear support vectors",
    "lda": "linear discriminant analysis",
    "tree": "decision tree",
    "adaboost": "AdaBoost",
    "bagging": "bagged trees",
    "gbm": "gradient boosting",
    "xgb": "XGBoost",
    "mean12": "mean of the twelve classifiers",
}


def _verdict(statement: dict[str, Any], metrics: list[dict[str, Any]]) -> str:
    text = (
        f"These synthetic records are (ε = {_bound(statement['epsilon'])}, δ = {_power(statement['delta'])})-"
        f"differentially private for {statement['unit']} of the original data"
    )
    scores = [m for m in metrics if m["is_share"] and m["name"] != "accuracy.mean12"]
    if not scores:
        return text + "."
    best = max(scores, key=lambda m: m["share"])
    which = best["title"] + (f", the best of {len(scores)}" if len(scores) > 1 else "")
    return f"{text}; a classifier trained on them alone gets {best['value']} of real records right ({which})."


def _metric(metric: dict[str, Any], schema: Schema) -> dict[str, Any]:
    name, value = metric["name"], float(metric["value"])
    low, high = metric.get("low"), metric.get("high")
    low, high = value if low is None else float(low), value if high is None else float(high)
    is_share = name.startswith("accuracy.") and 0 <= low <= high <= 1

    def shown(x: float) -> str:
        return f"{100 * x:.1f}" if is_share else _number(x)

    return {
        "name": name,
        "title": _CLASSIFIERS.get(name.removeprefix("accuracy."), name),
        "is_share": is_share,
        "share": 100 * value,
        "value": f"{shown(value)} %" if is_share else shown(value),
        "interval": f"{shown(low)} – {shown(high)}{' %' if is_share else ''}" if low < high else "",
        "low": 100 * low,
        "width": max(0.4, 100 * (high - low)),
        "source": metric["source"],
        "note": str(metric.get("note", "")),
    }


def _release(release: dict[str, Any]) -> dict[str, str]:
    dimension = release.get("dimension")
    return {
        "label": release["label"],
        "bound": _number(release["bound"]),
        "sensitivity": _number(release["sensitivity"]),
        "noise_std": _number(release["noise_std"]),
        "event": release["event"],
        "dimension": f"{dimension:,}" if isinstance(dimension, int) else "",
        "noise": str(release.get("noise") or ""),
    }


def _balance(samples: Dataset) -> list[_Share]:
    labels = samples.labels
    if labels is None:
        return []
    counts = np.bincount(labels[labels >= 0], minlength=samples.schema.n_classes)
    largest = max(1, int(counts.max()))
    return [
        _Share(name, int(count), 100 * int(count) / len(labels), 100 * int(count) / largest)
        for name, count in zip(samples.schema.classes[:_MOST_CLASSES], counts, strict=False)
    ]


def _table(samples: Dataset, most: int = 10) -> dict[str, Any]:
    """The first synthetic rows of a table, categories by name."""
    schema = samples.schema
    batch = samples.take(np.arange(min(most, len(samples))))
    rows = []
    for index, values in enumerate(batch.values.tolist()):
        cells = []
        for column, value in zip(schema.columns, values, strict=True):
            if math.isnan(value):
                cells.append("–")
            else:
                cells.append(column.categories[int(value)] if column.categories else _number(value))
        if batch.labels is not None:
            code = int(batch.labels[index])
            cells.append(schema.classes[code] if code >= 0 else "–")
        rows.append(cells)
    return {
        "columns": [c.name for c in schema.columns] + ([schema.label] if schema.label else []),
        "rows": rows,
    }


# ------------------------------------------------------------------------------- how to reproduce


def _commands(facts: RunFacts) -> list[str]:
    config, statement = facts.config, facts.statement
    budget = config.get("budget") or statement
    words = ["sfumato", "fit", config["method"], "--data", config["data"]["name"]]
    words += ["--epsilon", f"{budget['epsilon']:g}", "--delta", f"{budget['delta']:g}"]
    words += ["--neighbours", budget["neighbours"]]
    settings = dict(config["settings"])
    seed = settings.pop("seed", None)
    if seed is not None:
        words += ["--seed", str(seed)]
    for key, value in settings.items():
        if value is not None:
            words += ["--set", f"{key}={_plain(value)}"]
    words += ["--out", _shown_path(facts.path)]
    report = shlex.join(["sfumato", "report", _shown_path(facts.path)])
    return [shlex.join(words), _evaluate_command(facts), report]


def _evaluate_command(facts: RunFacts) -> str:
    name = facts.config["data"]["name"]
    real = name.removesuffix(":train") + ":test" if name.endswith(":train") else "REAL"
    words = ["sfumato", "evaluate", _shown_path(facts.path)]
    if facts.metrics:
        sources = [metric["source"] for metric in facts.metrics["metrics"]]
        found = re.match(r"real data (.+) \([\d,]+ records\)", sources[0] if sources else "")
        real = found[1] if found else real
    for key, option in (("n", "-n"), ("seed", "--seed")):
        if key in _drawn(facts):
            words += [option, str(_drawn(facts)[key])]
    return shlex.join([*words, "--real", real])


def _drawn(facts: RunFacts) -> dict[str, int]:
    """How many synthetic records the metrics were computed with, and their seed, as far as metrics.json says so."""
    described = (facts.metrics or {}).get("synthetic")
    if not isinstance(described, dict):
        return {}
    return {key: value for key, value in described.items() if isinstance(value, int)}


def _shown_path(path: Path) -> str:
    """The run's path as one would type it here; where it lies on this machine is nobody's business."""
    if not path.is_absolute():
        return str(path)
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else path.name


def _facts(facts: RunFacts) -> list[tuple[str, str]]:
    schema, data = facts.schema, facts.config["data"]
    if schema.kind == "images":
        channels, height, width = schema.shape
        what = f"images, {height}×{width}, {'gray' if channels == 1 else 'colour'}"
    else:
        what = f"table, {len(schema.columns)} columns"
    if schema.labelled:
        what += f", {schema.n_classes} classes"
    size = data.get("size")
    private = "private" if size is None else f"{size:,} (public in this run)"
    return [("Private data", data["name"]), ("Kind", what), ("Records", private)]


def _versions(config: dict[str, Any]) -> list[tuple[str, str]]:
    found = [("python", platform.python_version())]
    for name in _LIBRARIES:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    made = config.get("sfumato")
    if made:
        found = [(name, version) for name, version in found if name != "sfumato"]
        found.insert(0, ("sfumato (the fit)", str(made)))
    return found


# ------------------------------------------------------------------------------- numbers as words


def _number(value: float) -> str:
    """Four digits, without a needless exponent."""
    value = float(value)
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return _power(value)
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _bound(value: float) -> str:
    """Like `_number`, but rounded up: a promise must not be shown stronger than it is."""
    value = float(value)
    if value <= 0:
        return _number(value)
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return _number(math.ceil(value / unit - 1e-9) * unit)


def _power(value: float) -> str:
    """1e-5 as 10⁻⁵, 2.5e-6 as 2.5·10⁻⁶."""
    value = float(value)
    if not value or 1e-3 <= abs(value) < 1e6:
        return f"{value:.4g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    high = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    shown = f"{float(mantissa):g}"
    return f"10{high}" if shown == "1" else f"{shown}·10{high}"


def _factor(epsilon: float) -> str:
    if epsilon > 600:
        return "an astronomical number"
    return _number(float(f"{math.exp(epsilon):.3g}"))


def _guess_share(epsilon: float, delta: float) -> float:
    """The best chance to tell two equally likely neighbouring data sets apart: (e^ε + δ)/(e^ε + 1) (Kairouz et al. 2015)."""
    return (1.0 + delta * math.exp(-epsilon)) / (1.0 + math.exp(-epsilon))


def _guess(epsilon: float, delta: float) -> str:
    """Rounded up: a bound must not be shown smaller than it is."""
    percent = 100 * _guess_share(epsilon, delta)
    digits = 1 if percent < 99.9 else 3
    shown = math.ceil(percent * 10**digits - 1e-9) / 10**digits
    return "100 %" if shown >= 100 else f"{shown:.{digits}f} %"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 1 else "less than a second"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return ",".join(_plain(v) for v in value)
    return str(value)


# ------------------------------------------------------------------------------- the three files


def _summary(content: dict[str, Any], facts: RunFacts, drawn: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": 1,
        "verdict": content["verdict"],
        "config": facts.config,
        "statement": facts.statement,
        "metrics": (facts.metrics or {}).get("metrics"),
        "training": {
            "steps": content["steps"],
            "first_loss": facts.losses[0][1] if facts.losses else None,
            "last_loss": facts.losses[-1][1] if facts.losses else None,
            "seconds": facts.seconds,
        },
        "samples": drawn,
        "class_balance": {share.name: share.count for share in content["balance"]},
        "reproduce": content["commands"],
        "versions": dict(content["versions"]),
    }


def _render(template: str, content: dict[str, Any], escape: Any) -> str:
    environment = Environment(
        autoescape=escape is None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=escape,
    )
    source = (files("sfumato.report") / template).read_text(encoding="utf-8")
    return environment.from_string(source).render(content, code=_code)


def _markdown(value: Any) -> Any:
    """Text made harmless in Markdown, its tables and the HTML that Markdown lets through."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    value = value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", value)


def _code(value: str) -> Markup:
    """Text for an indented block, where Markdown takes everything literally but line breaks."""
    return Markup(re.sub(r"\s*[\n\r]\s*", " ", value))
