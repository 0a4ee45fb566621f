"""The files of a comparison: comparison.json, .csv, .md, .html and curve.png."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from typing import Any

from sfumato import published
from sfumato._version import __version__
from sfumato.comparison.outcome import (
    COLUMNS,
    Outcome,
    Row,
    missing_sentence,
    remarks,
    table,
)
from sfumato.evaluation.metrics import family_of, title_of
from sfumato.files import atomic_path, write_json, write_text
from sfumato.report.pictures import Mark, Point, epsilon_plot
from sfumato.report.templates import render

_MOST_PANELS = 6


def write_comparison(outcome: Outcome) -> None:
    out, config = outcome.folder, outcome.config
    facts = outcome.to_json()
    published.check("comparison", facts)
    write_json(out / "comparison.json", facts)
    keys = ("metric", "epsilon", "relation", "method", "mean", "low", "high", "seeds", "published")
    text = io.StringIO()
    writer = csv.DictWriter(text, [*keys, "delta", "source", "badge"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({"delta": None if r["published"] else config.delta, **r} for r in outcome.rows)
    write_text(out / "comparison.csv", text.getvalue())

    lines = [f"# Comparison on {_markdown(config.data)}", ""]
    lines += [f"- {_markdown(remark)}" for remark in remarks(outcome)]
    lines += ["", _line(COLUMNS), _line(["---"] * len(COLUMNS)), *map(_line, table(outcome.rows))]
    lines += ["", "![Privacy and utility](curve.png)"] if outcome.cells else []
    write_text(out / "comparison.md", "\n".join(lines) + "\n")

    if outcome.cells:
        with atomic_path(out / "curve.png") as temporary:
            temporary.write_bytes(_curve(outcome.rows))
    content = {
        "config": config,
        "panels": _panels(outcome.rows) if outcome.cells else [],
        "remarks": remarks(outcome),
        "missing": missing_sentence(outcome),
        "version": __version__,
    }
    write_text(
        out / "comparison.html",
        render("comparison.html.jinja", content, package="sfumato.comparison"),
    )


def _panels(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One metric each: its title, its plot with a line per method, and its rows as text."""
    panels = []
    for metric in dict.fromkeys(row["metric"] for row in rows):
        ours_first = sorted(
            (row for row in rows if row["metric"] == metric),
            key=lambda row: (row["published"], row["method"]),
        )
        points = [
            Point(
                row["method"],
                row["epsilon"],
                row["mean"],
                row["mean"] if row["low"] is None else row["low"],
                row["mean"] if row["high"] is None else row["high"],
                own=not row["published"],
            )
            for row in ours_first
        ]
        family = family_of(metric)
        share = bool(family.unit) and all(p.low >= 0 and p.high <= 1 for p in points)
        plot = epsilon_plot(points, share=share)
        series: dict[tuple[str, bool], list[Mark]] = {}
        for row, mark in zip(ours_first, plot.marks, strict=True):
            series.setdefault((row["method"], row["published"]), []).append(mark)
        panels.append(
            {
                "name": metric,
                "title": f"{family.title}: {title_of(metric)}",
                "reading": family.reading,
                "badge": next((row["badge"] for row in ours_first if row["badge"]), ""),
                "sources": list(
                    dict.fromkeys(r["source"] for r in ours_first if not r["published"])
                ),
                "plot": plot,
                "series": [(*key, marks) for key, marks in series.items()],
                "rows": [
                    (cells, row)
                    for cells, row in zip(table(rows), rows, strict=True)
                    if row["metric"] == metric
                ],
            }
        )
    return panels


def _markdown(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_markdown, cells)) + " |"


def _curve(rows: Sequence[Row]) -> bytes:
    """For Markdown, each metric against ε: a line per method with its range over seeds, hollow marks for published numbers."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    paper, ink = "#fffdfa", "#2a2420"
    metrics = list(dict.fromkeys(row["metric"] for row in rows))[:_MOST_PANELS]
    figure = Figure(figsize=(8, 3.6 * len(metrics)), facecolor=paper, layout="constrained")
    axes = figure.subplots(len(metrics), squeeze=False)[:, 0]
    places: dict[tuple[bool, str], int] = {}  # one look for a method in all panels
    for axis, metric in zip(axes, metrics, strict=True):
        lines: dict[tuple[bool, str], list[Row]] = {}
        for row in rows:
            if row["metric"] == metric:
                lines.setdefault((row["published"], row["method"]), []).append(row)
        # In the order of the last point, as the eye meets them from above.
        order = sorted(lines.items(), key=lambda item: (item[0][0], -item[1][-1]["mean"]))
        for (theirs, name), line in order:
            i = places.setdefault((theirs, name), sum(theirs == known for known, _ in places))
            x, mean = [row["epsilon"] for row in line], [row["mean"] for row in line]
            name = name.replace("$", r"\$")
            style: dict[str, Any] = {"color": colormaps["tab10"](i % 10), "lw": 0.8}
            if theirs:
                style |= {"marker": "osD^v<>P*X"[i % 10], "mfc": "none", "ls": ":"}
                axis.plot(x, mean, label=f"{name} (published)", **style)
            else:
                low, high = (
                    [r["mean"] - r["low"] for r in line],
                    [r["high"] - r["mean"] for r in line],
                )
                style |= {"marker": "osD^"[i // 10 % 4], "ls": ("-", "--")[i // 10 % 2], "lw": 1.6}
                # A little aside, so that marks do not hide each other.
                aside = [e * (1 + 0.015 * (i % 10 - 4.5)) for e in x]
                axis.errorbar(aside, mean, (low, high), capsize=3, label=name, **style)
        axis.set(xscale="log", xlabel="ε (log scale)", facecolor=paper)
        ours = {row["epsilon"] for (theirs, _), line in lines.items() if not theirs for row in line}
        others = {row["epsilon"] for line in lines.values() for row in line} - ours
        ticks = sorted(ours | {e for e in others if all(abs(e / o - 1) > 0.2 for o in ours)})
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
