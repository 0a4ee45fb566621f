"""The pictures of the report: samples as small PNGs, curves as lines, marks over ε; all inline, none needs a script.

Curves are drawn with the page's own colours, so that they are as readable in the dark as in print, and their labels are
text of the page, not of the drawing, so that they keep their size on a phone.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from sfumato.data import Dataset

# A sample is shown at most this high and wide; larger ones would make a page of many megabytes.
_LARGEST = 112


@dataclass(frozen=True)
class SampleRow:
    """One class (or, unlabelled, one line) of the grid: its name and its images as data URIs."""

    name: str
    images: tuple[str, ...]


def sample_rows(samples: Dataset, per_class: int = 10, most_rows: int = 40) -> list[SampleRow]:
    """The first `per_class` images of every class; of unlabelled sets forty images without names."""
    labels = samples.labels
    if labels is None:
        chosen = [
            ("", np.arange(start, min(start + per_class, len(samples))))
            for start in range(0, 40, per_class)
        ]
    else:
        chosen = [
            (name, np.flatnonzero(labels == code)[:per_class])
            for code, name in enumerate(samples.schema.classes[:most_rows])
        ]
    rows = []
    for name, indices in chosen:
        if labels is None and not len(indices):
            break
        pixels = samples.take(indices).pixels().numpy() if len(indices) else ()
        rows.append(SampleRow(name, tuple(data_uri(to_image(image)) for image in pixels)))
    return rows


def to_image(pixels: np.ndarray[Any, Any]) -> Image.Image:
    """(C, H, W) in [0, 1] as a picture."""
    levels = np.round(np.nan_to_num(pixels) * 255.0).clip(0, 255).astype(np.uint8)
    image = (
        Image.fromarray(levels[0])
        if len(levels) == 1
        else Image.fromarray(levels.transpose(1, 2, 0))
    )
    if max(image.size) > _LARGEST:
        image.thumbnail((_LARGEST, _LARGEST))
    return image


def data_uri(image: Image.Image) -> str:
    stream = io.BytesIO()
    image.save(stream, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


@dataclass(frozen=True)
class Tick:
    """A label and its place, in percent from the left or the top."""

    text: str
    place: float


@dataclass(frozen=True)
class Mark:
    """A point of a plot with its interval, all in percent of the box from the left or the top."""

    text: str
    left: float
    top: float
    high: float
    low: float
    own: bool  # of this run


@dataclass(frozen=True)
class Plot:
    """Marks over a logarithmic ε axis, and at most one line in a box of 1000 × 400."""

    line: str
    marks: tuple[Mark, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


@dataclass(frozen=True)
class Curve:
    """Points in a box of 1000 × 400 that the page stretches to its width, and the labels beside it."""

    raw: str
    smooth: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    logarithmic: bool
    first: float
    last: float


def curve(points: Sequence[tuple[int, float]]) -> Curve | None:
    """The training curve, as logged and smoothed; on a logarithmic scale if the loss fell more than thirtyfold."""
    if len(points) < 2:
        return None
    steps, losses = np.array([p[0] for p in points], float), np.array([p[1] for p in points], float)
    # A page needs no more points than a screen has columns.
    groups = np.array_split(np.arange(len(points)), min(len(points), 400))
    x = np.array([steps[g].mean() for g in groups])
    y = np.array([losses[g].mean() for g in groups])
    logarithmic = bool(y.min() > 0 and y.max() > 30 * y.min())
    if logarithmic:
        y = np.log10(y)
    smooth = _moving_mean(y, max(1, len(y) // 20))
    low, high = float(y.min()), float(y.max())
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    ticks = _log_ticks(low, high) if logarithmic else _ticks(low, high, 4)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    left, right = float(x[0]), float(x[-1])

    def path(values: np.ndarray[Any, Any]) -> str:
        return " ".join(
            f"{1000 * (a - left) / (right - left):.1f},{400 * (high - b) / (high - low):.1f}"
            for a, b in zip(x, values, strict=True)
        )

    x_ticks = [t for t in _ticks(left, right, 5) if left <= t <= right]
    return Curve(
        raw=path(y),
        smooth=path(smooth),
        x_ticks=tuple(Tick(f"{t:,.0f}", 100 * (t - left) / (right - left)) for t in x_ticks),
        y_ticks=tuple(
            Tick(_short(10**t if logarithmic else t), 100 * (high - t) / (high - low))
            for t in ticks
        ),
        logarithmic=logarithmic,
        first=float(losses[0]),
        last=float(losses[-1]),
    )


@dataclass(frozen=True)
class Point:
    """Something measured at a privacy level."""

    text: str
    epsilon: float
    value: float
    low: float
    high: float
    own: bool = False


def epsilon_plot(
    points: Sequence[Point],
    *,
    span: tuple[float, float] | None = None,
    height: tuple[float, float] | None = None,
    line: Callable[[float], float] | None = None,
    share: bool = True,
) -> Plot:
    """Values against ε on a logarithmic axis; `span` and `height` are what the axes show at least.

    A `share` is from 0 to 1 and shown in percent.
    """
    epsilons = [*(p.epsilon for p in points), *(span or ())]
    # Half a step of room on either side, or a mark would sit on the frame.
    left, right = math.log10(min(epsilons)) - 0.1, math.log10(max(epsilons)) + 0.1
    found = [*(p.low for p in points), *(p.high for p in points), *(height or ())]
    low, high = min(found), max(found)
    least = 0.02 if share else 1e-9 + 0.02 * abs(high)
    if high - low < least:
        low, high = low - least / 2, high + least / 2
    ticks = [t for t in _ticks(low, high, 4) if not share or 0 <= t <= 1] or [low, high]
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def across(epsilon: float) -> float:
        return 100 * (math.log10(epsilon) - left) / (right - left)

    def down(value: float) -> float:
        return 100 * (high - value) / (high - low)

    drawn = ""
    if line is not None:
        steps = np.linspace(left, right, 121)
        drawn = " ".join(
            f"{1000 * (x - left) / (right - left):.1f},{4 * down(line(10**x)):.1f}" for x in steps
        )
    return Plot(
        line=drawn,
        marks=tuple(
            Mark(p.text, across(p.epsilon), down(p.value), down(p.high), down(p.low), p.own)
            for p in points
        ),
        x_ticks=tuple(Tick(f"{e:g}", across(e)) for e in _epsilon_ticks(left, right)),
        y_ticks=tuple(Tick(f"{100 * t:.3g} %" if share else _short(t), down(t)) for t in ticks),
    )


def _epsilon_ticks(left: float, right: float) -> list[float]:
    """1, 2, 5 in each power of ten where there is room for them, else the powers alone."""
    powers = range(math.floor(left), math.ceil(right) + 1)
    steps = (1.0, 2.0, 5.0) if right - left <= 3 else (1.0,)
    ticks = [step * 10.0**power for power in powers for step in steps]
    return [t for t in ticks if left <= math.log10(t) <= right]


def _moving_mean(values: np.ndarray[Any, Any], half: int) -> np.ndarray[Any, Any]:
    sums = np.concatenate([[0.0], np.cumsum(values)])
    # Near the ends the window shrinks on both sides alike: a one-sided mean would bend the curve.
    reach = np.minimum(half, np.minimum(np.arange(len(values)), np.arange(len(values))[::-1]))
    here = np.arange(len(values))
    return (sums[here + reach + 1] - sums[here - reach]) / (2 * reach + 1)


def _ticks(low: float, high: float, wanted: int) -> list[float]:
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    stride = min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs(s - rough))
    first, last = math.floor(low / stride + 1e-9), math.ceil(high / stride - 1e-9)
    return [k * stride for k in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(low), math.ceil(high)
    stride = max(1, round((last - first) / 4))
    return [float(t) for t in range(first, last + stride, stride)]


def _short(value: float) -> str:
    return "0" if abs(value) < 1e-15 else f"{value:.4g}"
