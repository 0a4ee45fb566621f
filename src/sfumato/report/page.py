"""`write_report`: a run folder becomes one self-contained page, its Markdown twin and a JSON for scripts.

The page needs no script and no network (its own content policy forbids both), and every word from a file is escaped. What
it shows is public by the run's guarantee, except the metrics, which wear a badge that says so wherever one stands, and real
images, which it shows only when asked to and under a warning. It tells no time: how long something took, and so when the page
was written, depends on the private records.
"""

from __future__ import annotations

import math
import platform
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from sfumato import published
from sfumato._version import __version__
from sfumato.data import Column, Dataset, Schema
from sfumato.data.catalogue import find_named
from sfumato.data.schema import EPOCH
from sfumato.data.units import RECORD
from sfumato.errors import BadInput
from sfumato.evaluation import default_metrics
from sfumato.evaluation.baselines import CEILING, CLASS_MEANS, MAJORITY, held_against, outcome
from sfumato.evaluation.metrics import badge_of, family_of, title_of
from sfumato.files import write_json, write_text
from sfumato.methods import MethodInfo, SavedRun, load
from sfumato.privacy import DataSetLedger, Neighbours
from sfumato.privacy.statement import told_epsilon_k
from sfumato.public.weights import list_networks
from sfumato.published import BADGE
from sfumato.report.by_class import class_table
from sfumato.report.glossary import GLOSSARY
from sfumato.report.pictures import Plot, Point, SampleRow, curve, epsilon_plot, sample_rows
from sfumato.report.signing import (
    Signature,
    audit_sentence,
    audited,
    fingerprints,
    info_of,
    two_sentences,
    verified,
    warnings_of,
)
from sfumato.report.utility import utility
from sfumato.report.words import (
    bound,
    corrected,
    factor,
    guess,
    guess_share,
    markdown,
    markdown_code,
    number,
    plain,
    power,
    real_data,
    render,
    typeset,
)

_SEED = 0
_MOST_CLASSES = 40

_LIBRARIES = ("sfumato", "torch", "numpy", "scipy", "dp-accounting", "opendp")


@dataclass(frozen=True)
class _Share:
    name: str
    count: int
    percent: float
    width: float  # of the bar, in percent of the largest


def write_report(
    run: Path | str,
    *,
    samples: Dataset | None = None,
    real: Dataset | None = None,
    beside: Sequence[Path | str] = (),
    ledger: Path | str | None = None,
    audit: Path | str | None = None,
    releases: Sequence[Path | str] = (),
    signature: Signature | None = None,
) -> Path:
    """Write report.html, report.md and report.json into the run folder; returns the path of the page.

    `samples` are synthetic records to show; by default they are drawn from the run's own generator. `beside` are other
    run folders or comparisons, whose accuracy is plotted against ε with this run's. `real` are REAL images, test or
    public ones, to show beside the synthetic: the page then publishes them, which ε does not cover. `ledger` is the folder of
    the data set's ledger, if the run stands in one: the page then tells what all runs on the data cost together. `audit` is
    what `sfumato audit … --json` printed, in a file; of a method on its data it is not covered by ε, and the page says so.
    `releases` are files made with the run that are to be given away: the page names them by their SHA-256. `signature` fills in
    who decides what; without it there are lines to do so by hand.
    """
    with SavedRun(run, unfinished=True) as saved:
        # What is damaged shows before any work is done, and before a line of the page is written.
        _ = saved.schema, saved.told_statement, saved.metrics
        if real is not None:
            _check_real(saved, real)
        drawn: dict[str, Any] = {}
        if samples is None and _makes(saved) == "records":
            samples = load(saved.path).sample(_sample_size(saved.schema), seed=_SEED)
            drawn = {"n": len(samples), "seed": _SEED}
        elif samples is not None:
            drawn = {"n": len(samples)}
        if samples is not None and (
            (samples.schema.kind, samples.schema.shape) != (saved.schema.kind, saved.schema.shape)
        ):
            raise BadInput(
                f"The samples given are not of the kind and shape that {saved.path} makes; draw them from this run."
            )
        content = _content(saved, samples, real, [Path(path) for path in beside])
        content["ledger"] = _ledger(saved, ledger)
        content["signature"] = signature or Signature()
        content["fingerprints"] = fingerprints(saved, [Path(path) for path in releases])
        content["verified"] = verified(saved)
        content["audit"] = audited(saved, None if audit is None else Path(audit))
        content["audit_sentence"] = content["audit"] and audit_sentence(content["audit"])
        content["drawn"] = drawn
        content["checks"] = _check_commands(saved, drawn)
        summary = _summary(content, saved, drawn)
    published.check("report", summary)
    page = saved.path / "report.html"
    # For its owner's eyes, as the rest of the run: whoever publishes it decides so.
    write_json(page.with_suffix(".json"), summary, mode=0o600)
    text = render("report.md.jinja", content | {"code": markdown_code}, escape=markdown)
    write_text(page.with_suffix(".md"), text, mode=0o600)
    write_text(page, render("report.html.jinja", content), mode=0o600)
    return page


def _check_real(run: SavedRun, real: Dataset) -> None:
    if real.name == run.config["data"]["name"]:
        raise BadInput(
            f"{real.name} is what this run was fitted on, and showing it would publish the private records; "
            "give test or public images."
        )
    if run.schema.kind != "images" or real.schema.kind != "images":
        raise BadInput(
            "Only images can be shown beside the samples; leave real records of tables out."
        )


def _makes(run: SavedRun) -> str:
    info = info_of(run)
    return info.makes if info else "records"


def _sample_size(schema: Schema) -> int:
    # Enough for a full row of each class and for a class balance good to a few percent.
    return min(5000, max(1000, 40 * schema.n_classes)) if schema.labelled else 200


def _content(
    run: SavedRun, samples: Dataset | None, real: Dataset | None, beside: Sequence[Path]
) -> dict[str, Any]:
    statement, config = run.told_statement, run.config
    epsilon, delta = float(statement["epsilon"]), float(statement["delta"])
    info = info_of(run)
    metrics = [
        _metric(metric, run.metrics)
        | {"by_class": class_table(metric, run.path / "metrics.json"), "best": False}
        for metric in run.metrics
    ]
    if scores := _scores(metrics):
        max(scores, key=lambda m: m["share"])["best"] = True
    pictured = samples is not None and run.schema.kind == "images"
    rows = sample_rows(samples) if samples is not None and pictured else []
    unit = run.unit
    relations = {r.value: f"{r.change(unit)}; {r.told_size(unit)}" for r in Neighbours}
    return {
        "name": config["data"]["name"],
        "fingerprint": run.fingerprint if run.finished else "",
        "method": config["method"],
        "title": info.title if info else config["method"],
        "paper": info.paper if info else "",
        "alarm": _alarm(statement, info),
        "sentences": two_sentences(statement, run.unit.name, run.unit.single, _makes(run)),
        "warnings": warnings_of(run),
        "alarm_word": "Not sound." if statement.get("private", True) else "NOT PRIVATE.",
        "best": _best(metrics) if statement.get("sound", True) else "",
        "no_better": outcome(run.metrics),
        "glossary": GLOSSARY,
        "typeset": typeset,
        "badge": BADGE,
        "makes": _makes(run),
        "statement": statement,
        "epsilon": bound(epsilon) if statement.get("private", True) else "∞",
        "delta": power(delta),
        "relation": statement["neighbours"],
        "relation_meaning": relations.get(statement["neighbours"], ""),
        "factor": factor(epsilon),
        "guess": guess(epsilon, delta),
        "guess_plot": _guess_plot(statement),
        "relations": [
            (
                name,
                relations.get(name, ""),
                bound(value),
                guess(value, delta),
                name == statement["neighbours"],
            )
            for name, value in statement["epsilon_under"].items()
        ],
        "unit": unit,
        "together": "records of one person" if unit.single else f"{unit.plural} together",
        "several": [
            (count, bound(value), guess(value, delta))
            for count, value in (told_epsilon_k(statement) or {}).items()
        ],
        "not_covered": [corrected(line) for line in statement["not_covered"]],
        "releases": [_release(release) for release in statement["releases"]],
        "rows": rows,
        "real": _real(real, rows) if real is not None else None,
        "small": run.schema.kind == "images" and max(run.schema.shape[1:]) <= 112,
        "table": first_rows(samples) if samples is not None and not pictured else None,
        "more_classes": max(0, run.schema.n_classes - _MOST_CLASSES),
        "balance": _balance(samples) if samples is not None else [],
        "n_samples": len(samples) if samples is not None else 0,
        "curve": curve(run.losses),
        "steps": run.losses[-1][0] if run.losses else 0,
        "metrics": metrics,
        "families": _families(metrics),
        "utility": utility(run, beside),
        "public": _public(config),
        "trained_on": _drawn(run).get("n"),
        "chance": 100 / run.schema.n_classes if run.schema.n_classes else None,
        "commands": _commands(run),
        "evaluate_command": _evaluate_command(run),
        "facts": _facts(run),
        "settings": [
            (key, "auto" if value is None else plain(value))
            for key, value in config["settings"].items()
        ],
        "versions": _versions(config),
        "version": __version__,
        "picture": "samples.png" if (run.path / "samples.png").exists() else None,
    }


def _alarm(statement: dict[str, Any], info: MethodInfo | None) -> str:
    """What is said first of a run that is not sound; nothing of one that is."""
    if not statement.get("private", True):
        return (
            "This run was made at ε = ∞, with next to no noise, to be compared with a paper's row. It protects nobody: treat "
            "this page and everything else in the run as if it showed the private records, and give none of it away."
        )
    if not statement.get("sound", True):
        return (
            "This run follows a paper that leaves some of what it reads out of its account. The ε that the paper claims is not a "
            "guarantee; the ε below is what was really spent, and protects nobody."
        )
    if info is not None and not info.sound:
        return (
            "This method is accounted as its paper has it, which counts too little: the true ε is larger than the one printed "
            "here."
        )
    return ""


def _best(metrics: list[dict[str, Any]]) -> str:
    """The headline's second sentence, which is never shown without the badge; empty where no accuracy was measured."""
    scores = _scores(metrics)
    if not scores:
        return ""
    best = max(scores, key=lambda m: m["share"])
    which = best["title"] + (f", the best of {len(scores)}" if len(scores) > 1 else "")
    return (
        f"A classifier trained on them alone gets {best['value']} of real records right ({which})"
    )


def _scores(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The accuracies of single classifiers."""
    scores = [m for m in metrics if m["name"].startswith("accuracy.") and m["percent"]]
    return [m for m in scores if m["name"] != "accuracy.mean12"]


def _metric(metric: dict[str, Any], measured: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    name, value = metric["name"], float(metric["value"])
    low, high = metric.get("low"), metric.get("high")
    low, high = value if low is None else float(low), value if high is None else float(high)
    unit = family_of(name).unit if 0 <= low <= high <= 1 else ""
    percent = unit == "%"

    def shown(x: float) -> str:
        if percent:
            return f"{100 * x:.1f}"
        return f"{x:.3f}" if unit else number(x)

    return {
        "name": name,
        "title": title_of(name),
        "percent": percent,
        "is_share": bool(unit),
        "share": 100 * value,
        "value": f"{shown(value)} %" if percent else shown(value),
        "interval": f"{shown(low)} – {shown(high)}{' %' if percent else ''}" if low < high else "",
        "low": 100 * low,
        "width": max(0.4, 100 * (high - low)),
        "source": metric["source"],
        "badge": badge_of(metric),
        "note": str(metric.get("note", "")),
        "beside": _beside(name, measured) if name.startswith("accuracy.") else [],
    }


def _beside(name: str, measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What an accuracy is held against: the word for it and its place in the glossary, its number, its note."""
    words = {MAJORITY: ("majority", "commonest class"), CLASS_MEANS: ("means", "noisy class means")}
    found = []
    for baseline, metric in held_against(measured, name).items():
        key, word = words.get(baseline, ("ceiling", "trained on real records"))
        share = 100 * float(metric["value"])
        found.append({"term": key, "word": word, "share": share, "value": f"{share:.1f} %"})
    return found


def _families(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The metrics under their families' headings, with the source that most of a family share."""
    groups: dict[str, list[dict[str, Any]]] = {}
    held = any(metric["beside"] for metric in metrics)
    for metric in metrics:
        if held and metric["name"].startswith(("baseline.", CEILING)):
            continue  # they stand beside the accuracies
        groups.setdefault(family_of(metric["name"]).title, []).append(metric)
    found = []
    for title, members in groups.items():
        sources = [metric["source"] for metric in members]
        found.append(
            {
                "title": title,
                "reading": family_of(members[0]["name"]).reading,
                "metrics": members,
                "badge": next((metric["badge"] for metric in members if metric["badge"]), ""),
                "source": max(sources, key=sources.count),
                "accuracy": members[0]["name"].startswith("accuracy."),
                "beside": _note_of_baselines(metrics) if members[0]["beside"] else "",
            }
        )
    return found


def _note_of_baselines(metrics: list[dict[str, Any]]) -> str:
    """Where the baselines come from, once for all of them."""
    found = (m for m in metrics if m["name"].startswith(("baseline.", CEILING)) and m["note"])
    return next((f"{m['note']}; from {m['source']}" for m in found), "")


def _guess_plot(statement: dict[str, Any]) -> Plot | None:
    """The best guess as a function of ε (the thesis' Table 1.1, with δ), this run marked under every relation."""
    delta, promised = float(statement["delta"]), statement["neighbours"]
    under = {promised: statement["epsilon"], **statement["epsilon_under"]}
    points = []
    for relation, epsilon in under.items():
        if epsilon > 0:
            share = guess_share(epsilon, delta)
            points.append(Point(relation, epsilon, share, share, share, own=relation == promised))
    if not points or max(p.epsilon for p in points) > 1000:
        return None
    return epsilon_plot(
        points, span=(0.1, 10), height=(0.5, 1), line=lambda e: guess_share(e, delta)
    )


def _real(real: Dataset, rows: list[SampleRow]) -> dict[str, Any]:
    """Real images in the samples' rows where the classes are the same, else in rows of their own."""
    theirs = sample_rows(real)
    by_name = {row.name: row.images for row in theirs}
    paired = real.schema.labelled and set(by_name) == {row.name for row in rows}
    return {
        "name": real.name,
        "shown": sum(len(row.images) for row in theirs),
        "beside": [by_name[row.name] for row in rows] if paired else None,
        "rows": [] if paired else theirs,
    }


def _public(config: dict[str, Any]) -> list[tuple[str, str]]:
    """What else the generator was made from: public data, and public networks named in the settings."""
    found = [("Public data", str(config["public"]))] if config.get("public") else []
    networks = {info.name: info for info in list_networks()}
    for value in config["settings"].values():
        if isinstance(value, str) and value in networks:
            trained_on = ", ".join(networks[value].trained_on)
            found.append(("Public network", f"{value}, trained on {trained_on}"))
        elif isinstance(value, str) and value.startswith("torchvision:"):
            found.append(("Public network", value))
    return found


def _release(release: dict[str, Any]) -> dict[str, str]:
    dimension = release.get("dimension")
    return {
        "label": release["label"],
        "bound": number(release["bound"]),
        "sensitivity": number(release["sensitivity"]),
        "noise_std": number(release["noise_std"]),
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


def _cell(column: Column, value: float) -> str:
    if column.categories:
        return column.categories[int(value)]
    if column.type == "date":
        return str(EPOCH + timedelta(days=round(value)))
    return number(value)


def first_rows(samples: Dataset, most: int = 10) -> dict[str, Any]:
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
                cells.append(_cell(column, value))
        if batch.labels is not None:
            code = int(batch.labels[index])
            cells.append(schema.classes[code] if code >= 0 else "–")
        rows.append(cells)
    return {
        "columns": [c.name for c in schema.columns] + ([schema.label] if schema.label else []),
        "rows": rows,
    }


# ------------------------------------------------------------------------------- how to reproduce


def _commands(run: SavedRun) -> list[str]:
    """With the data: the same once more, in a folder of its own."""
    config, statement = run.config, run.told_statement
    budget = config.get("budget") or statement
    words = ["sfumato", "fit", config["method"], "--data", config["data"]["name"]]
    if not _is_named(config["data"]["name"]):
        words += ["--schema", f"{_shown_path(run.path)}/config.json"]
        words += ["--labels", config["data"]["labels"]] if config["data"].get("labels") else []
    if run.unit.option is not None:
        words += ["--unit", run.unit.option, "--per-unit", str(run.unit.at_most)]
    epsilon = "inf" if budget["epsilon"] is None else _exact(budget["epsilon"])
    words += ["--epsilon", epsilon, "--delta", _exact(budget["delta"])]
    words += ["--neighbours", budget["neighbours"]]
    if config.get("public"):
        words += ["--public", str(config["public"])]
    settings = dict(config["settings"])
    seed = settings.pop("seed", None)
    if seed is not None:
        words += ["--seed", str(seed)]
    for key, value in settings.items():
        if value is not None:
            words += ["--set", f"{key}={plain(value)}"]
    again = f"{_shown_path(run.path)}-again"
    words += ["--out", again]
    report = shlex.join(["sfumato", "report", again])
    return [shlex.join(words), _evaluate_command(run, again), report]


def _check_commands(run: SavedRun, drawn: dict[str, Any]) -> list[str]:
    """Without the data: the checks again, and the records that the page shows."""
    path = _shown_path(run.path)
    found = [["sfumato", "verify", path]]
    if "seed" in drawn:
        file = "shown.npz" if run.schema.kind == "images" else "shown.csv"
        words = ["sfumato", "sample", path, "-n", str(drawn["n"]), "--seed", str(drawn["seed"])]
        found.append([*words, "--out", file])
    return [shlex.join(words) for words in found]


def _is_named(name: str) -> bool:
    try:
        return find_named(name) is not None
    except BadInput:  # a name with another split
        return True


def _exact(number: float) -> str:
    """The shortest text that gives the same number."""
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number))


def _evaluate_command(run: SavedRun, path: str | None = None) -> str:
    name = run.config["data"]["name"]
    real = name.removesuffix(":train") + ":test" if name.endswith(":train") else "REAL"
    words = ["sfumato", "evaluate", path or _shown_path(run.path)]
    if run.metrics:
        real = real_data(run.metrics[0]["source"]) or real
    for key, option in (("n", "-n"), ("seed", "--seed")):
        if key in _drawn(run):
            words += [option, str(_drawn(run)[key])]
    words += ["--real", real]
    names = [metric["name"] for metric in run.metrics]
    if any(name.startswith("accuracy.") for name in names):  # which bring their baselines
        names = [name for name in names if not name.startswith(("baseline.", CEILING))]
    if names and set(names) != set(default_metrics(run.schema)):
        words += ["--metrics", ",".join(names)]
    if any("REAL TRAINING data" in m["source"] for m in run.metrics):
        words += ["--train", name]
    return shlex.join(words)


def _drawn(run: SavedRun) -> dict[str, int]:
    """How many synthetic records the metrics were computed with, and their seed, as far as metrics.json says so."""
    described = run.metrics_json.get("synthetic")
    if not isinstance(described, dict):
        return {}
    return {key: value for key, value in described.items() if isinstance(value, int)}


def _shown_path(path: Path) -> str:
    """The run's path as one would type it here; where it lies on this machine is nobody's business."""
    if not path.is_absolute():
        return str(path)
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else path.name


def _facts(run: SavedRun) -> list[tuple[str, str]]:
    schema, data = run.schema, run.config["data"]
    if schema.kind == "images":
        channels, height, width = schema.shape
        what = f"images, {height}×{width}, {'gray' if channels == 1 else 'colour'}"
    else:
        what = f"table, {len(schema.columns)} columns"
    if schema.labelled:
        what += f", {schema.n_classes} classes"
    size = data.get("size")
    private = "private" if size is None else f"{size:,} (public in this run)"
    counted = run.unit.plural.capitalize()
    private_facts = [("Private data", data["name"]), ("Kind", what), (counted, private)]
    if not run.unit.single:
        told = f"one {run.unit.name}: {run.unit.read_from} tells whose a record is; at most {run.unit.at_most} of each count"
        private_facts.append(("Protected", told))
    return private_facts + (_public(run.config) or [("Public data", "none")])


def _ledger(run: SavedRun, folder: Path | str | None) -> dict[str, Any] | None:
    """The run's place among all runs on its data; None where it stands in no ledger. Without the folder only that it does."""
    if not run.ledger_name:
        if folder is not None:
            raise BadInput(
                f"The run in {run.path} stands in no ledger; leave --ledger out, or fit with --ledger."
            )
        return None
    if folder is None:
        return {"name": run.ledger_name, "told": None}
    with DataSetLedger(folder) as book:
        ours = next((one for one in book.runs() if one.run[:8] == run.ledger_name), None)
        if ours is None:
            raise BadInput(
                f"The run in {run.path} does not stand in the ledger in {folder}; give the one that it was fitted with."
            )
        limit, spent = book.limit, book.spent()
        left = max(0.0, limit.epsilon - spent)
        told: dict[str, Any] = {
            "this_run": book.alone(ours),
            "together": spent,
            "limit": limit.epsilon,
            "left": left,
            "delta": limit.delta,
            "neighbours": limit.neighbours.value,
            "unit": book.unit or RECORD,
            "adaptive": book.adaptive,
        }
    shown = {key: bound(told[key]) for key in ("this_run", "together")} | {
        # Rounded down: what is left must not look like more.
        "left": f"{math.floor(left * 1e4) / 1e4:g}",
        "limit": f"{limit.epsilon:g}",
        "delta": power(limit.delta),
        "width": min(100.0, 100 * spent / limit.epsilon),
    }
    return {"name": run.ledger_name, "told": told, "shown": shown}


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


# ------------------------------------------------------------------------------- the three files


def _summary(content: dict[str, Any], run: SavedRun, drawn: dict[str, Any]) -> dict[str, Any]:
    best = f" {content['best']} – {BADGE}." if content["best"] else ""
    return {
        "format": 1,
        "verdict": " ".join(content["sentences"]) + best,
        "warnings": content["warnings"],
        "no_better": content["no_better"],
        "signature": asdict(content["signature"]),
        "fingerprints": content["fingerprints"],
        "verified": content["verified"],
        "audit": content["audit"],
        "config": published.only("config", run.config),
        "statement": published.only("statement", run.told_statement),
        "metrics_are": BADGE,
        "metrics": [_published(metric) for metric in run.metrics] or None,
        "training": {
            "steps": content["steps"],
            "first_loss": run.losses[0][1] if run.losses else None,
            "last_loss": run.losses[-1][1] if run.losses else None,
        },
        "samples": drawn,
        "real_records_shown": content["real"]["name"] if content["real"] else None,
        "ledger": content["ledger"] and content["ledger"]["told"],
        "utility": content["utility"] and [[*row, BADGE] for row in content["utility"].rows],
        "public": [list(pair) for pair in content["public"]],
        "class_balance": {share.name: share.count for share in content["balance"]},
        "reproduce": content["commands"],
        "check": content["checks"],
        "versions": dict(content["versions"]),
    }


def _published(metric: dict[str, Any]) -> dict[str, Any]:
    """A metric of metrics.json, which an earlier version may have written, with its badge and without what tells a time."""
    badge = badge_of(metric)
    return published.only("metric", metric) | ({"badge": badge} if badge else {})
