"""Tables to be put into papers: a comparison with one row a method, as Markdown or as LaTeX (booktabs).

Each cell is the mean over seeds, with the range where there are several, in the unit of its metric; what papers published stands
below, in italics. What a reader must know beside it (`comparison.remarks`) goes with it: as a list, or as notes.

Public: nothing but what the comparison's own files say. Every number of ours was computed on real data and is NOT covered by ε.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sfumato.evaluation.metrics import family_of
from sfumato.files import write_text
from sfumato.methods import get_method
from sfumato.report.comparison import DEFAULTS, Outcome, Row, remarks, shown_epsilon
from sfumato.report.words import markdown

SHORT = {"accuracy.logreg": "LR", "accuracy.mlp": "MLP", "accuracy.cnn": "CNN"}
_NEAR = 0.05  # a published ε this near to ours, as a share of it, stands in the same column and is named


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as text: its heading, its rows, of which those at `slanted` are published, and what stands below it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    slanted: frozenset[int] = frozenset()
    notes: list[str] = field(default_factory=list)


def compact(outcome: Outcome) -> Table:
    """One row a method, one column an ε and metric."""
    config, rows = outcome.config, outcome.rows
    metrics = list(dict.fromkeys(r["metric"] for r in rows if not r["published"]))
    columns = [(e, m) for e in config.epsilons for m in metrics]
    found = {
        (r["method"], r["published"], column, r["metric"]): r
        for r in rows
        for column in config.epsilons
        if same_epsilon(r["epsilon"], column)
    }
    kept = "" if config.keep == 1 else f", keep {config.keep:g}"
    kept += "" if config.precision == DEFAULTS["precision"] else f", {config.precision}"
    what = f"seeds: {len(config.seeds)}, {config.samples:,} samples{kept}"
    lines = [
        (
            name if variant.decoder_only else f"{get_method(variant.method).info.title} ({name})",
            *(number(found.get((name, False, *column))) for column in columns),
        )
        for name, variant in config.variants.items()
    ]
    ours = len(lines)
    for name in dict.fromkeys(r["method"] for r in rows if r["published"]):
        cells = [number(found.get((name, True, *column))) for column in columns]
        if any(cell != "–" for cell in cells):
            theirs = {r["epsilon"] for r in rows if r["method"] == name and r["published"]}
            odd = sorted(theirs - {None, *config.epsilons})
            near = [e for e in odd if any(same_epsilon(e, ours) for ours in config.epsilons)]
            at = f" at ε = {near[0]:g}" if near else ""
            lines.append((f"{name}, published{at}", *cells))
    return Table(
        title=f"{config.data}, {config.neighbours}, δ = {config.delta:g}, {what}",
        columns=("Method", *(f"{_epsilon(e)}: {SHORT.get(m, m)}" for e, m in columns)),
        rows=lines,
        slanted=frozenset(range(ours, len(lines))),
        notes=remarks(outcome),
    )


def _epsilon(epsilon: float) -> str:
    return f"ε = {shown_epsilon(epsilon)}" + (", NOT PRIVATE" if math.isinf(epsilon) else "")


def same_epsilon(theirs: float | None, ours: float) -> bool:
    if theirs is None or math.isinf(ours):
        return theirs is None and math.isinf(ours)
    return abs(theirs / ours - 1) < _NEAR


def number(row: Row | None) -> str:
    """In the unit of its metric, as accuracies are in per cent; a published one with the digits it was printed with."""
    if row is None:
        return "–"
    scale, form = (100, ".1f") if family_of(row["metric"]).unit == "%" else (1, ".4g")
    if row["published"]:
        digits = max(0, len(row["printed"].partition(".")[2]) - (2 if scale == 100 else 0))
        return f"{scale * row['mean']:.{digits}f}"
    mean, low, high = (f"{scale * row[edge]:{form}}" for edge in ("mean", "low", "high"))
    return f"{mean} ({low}–{high})" if row["seeds"] > 1 else mean


# ------------------------------------------------------------------------- the two formats


def as_markdown(table: Table) -> str:
    lines = [
        f"**{markdown(table.title)}**",
        "",
        _line(table.columns),
        _line(["---"] * len(table.columns), plain=True),
    ]
    for place, row in enumerate(table.rows):
        cells = [markdown(cell) for cell in row]
        slanted = place in table.slanted
        lines.append(_line([f"*{c}*" if slanted and c != "–" else c for c in cells], plain=True))
    lines += ["", *(f"- {markdown(note)}" for note in table.notes)] if table.notes else []
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str], *, plain: bool = False) -> str:
    return "| " + " | ".join(cells if plain else map(markdown, cells)) + " |"


_LATEX: Mapping[str, str] = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "φ": r"$\varphi$",
    "γ": r"$\gamma$",
    "μ": r"$\mu$",
    "α": r"$\alpha$",
    "𝒟": r"$\mathcal{D}$",
    "∞": r"$\infty$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "−": "$-$",
    "±": r"$\pm$",
    "→": r"$\to$",
    "–": "--",
    "…": r"\dots{}",
    "“": "``",
    "”": "''",
    "₁": "$_1$",
    "₂": "$_2$",
}


def latex(text: str) -> str:
    """Text made harmless in LaTeX; what mathematics has letters for is set as such."""
    return re.sub(
        "|".join(map(re.escape, _LATEX)), lambda m: _LATEX[m.group()], " ".join(text.split())
    )


def as_latex(table: Table) -> str:
    """A floating table; its notes stand below it in small print."""
    lines = [
        r"% \usepackage{booktabs} goes into the preamble.",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{latex(table.title)}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"    \toprule",
        f"    {' & '.join(map(latex, table.columns))} \\\\",
        r"    \midrule",
    ]
    for place, row in enumerate(table.rows):
        cells = [latex(cell) for cell in row]
        if place in table.slanted:
            cells = [rf"\emph{{{cell}}}" for cell in cells]
            if place and len(table.slanted) == len(table.rows) - place:
                lines.append(r"    \midrule")  # all that follows is published
        lines.append(f"    {' & '.join(cells)} \\\\")
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    lines += [rf"  \par\footnotesize {latex(note)}" for note in table.notes]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def export(table: Table, latex_file: Path | None = None, markdown_file: Path | None = None) -> None:
    """Write the table to whichever file is named."""
    for path, form in ((latex_file, as_latex), (markdown_file, as_markdown)):
        if path is not None:
            write_text(path, form(table))
