"""Metrics by name, and `evaluate`, which computes them.

A family of metrics is one file that registers its names; `evaluate` looks them up, checks that the two data sets can be
compared, and times each. The synthetic set is safe to look at; the real set is not: every number here is a measurement
of real records, NOT COVERED by ε, and each metric carries that sentence in its `source`. Errors name public facts only.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import torch

from sfumato.data import Dataset, Schema
from sfumato.errors import BadInput
from sfumato.progress import Progress, Stage

Step = Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number about real data, with its 95 % interval (both ends equal the value where there is none)."""

    name: str
    value: float
    low: float
    high: float
    source: str
    seconds: float
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "name": self.name,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "source": self.source,
            "seconds": round(self.seconds, 3),
        }
        return facts | ({"note": self.note} if self.note else {})


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What `evaluate` found."""

    metrics: tuple[Metric, ...]
    n: int  # synthetic records
    seed: int

    def __iter__(self) -> Iterator[Metric]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def __getitem__(self, name: str) -> Metric:
        for metric in self.metrics:
            if metric.name == name:
                return metric
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """The content of metrics.json."""
        return {
            "metrics": [metric.to_json() for metric in self.metrics],
            "synthetic": {"n": self.n, "seed": self.seed},
        }


@dataclass(frozen=True)
class Measurement:
    """What a metric's function returns: the number, its interval, and a remark for the reader."""

    value: float
    low: float
    high: float
    note: str = ""


@dataclass(frozen=True)
class MetricInfo:
    """A metric as the list of metrics shows it; `measure` does the work."""

    name: str
    summary: str
    kinds: tuple[str, ...]
    measure: Callable[[Comparison, int, Step], Measurement]


class Comparison:
    """A synthetic and a real data set that have been checked to be of one kind, read once and kept in memory.

    Labels of both sets are codes of the real set's classes.
    """

    def __init__(self, synthetic: Dataset, real: Dataset) -> None:
        _check_comparable(synthetic.schema, real.schema)
        self.schema = real.schema
        self._synthetic = synthetic
        self._real = real

    @cached_property
    def synthetic(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows as float32 (images in [0, 1]) and labels int64."""
        rows, labels = _read(self._synthetic, "synthetic")
        if labels is not None:
            # The same classes may stand in another order, as sub-folders sorted by name do.
            names = self._synthetic.schema.classes
            labels = torch.tensor([self.schema.classes.index(name) for name in names])[labels]
        return rows, labels

    @cached_property
    def real(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows as float32 (images in [0, 1]) and labels int64."""
        return _read(self._real, "real")

    def read(self) -> None:
        """Read both sets now; what is wrong with them shows before any work is done."""
        _ = self.synthetic, self.real

    def source(self) -> str:
        return f"real data {self._real.name} ({len(self._real):,} records); not covered by ε"


_METRICS: dict[str, MetricInfo] = {}


def register(
    name: str, summary: str, *, kinds: tuple[str, ...] = ("images", "table")
) -> Callable[
    [Callable[[Comparison, int, Step], Measurement]],
    Callable[[Comparison, int, Step], Measurement],
]:
    """Make a function (comparison, seed, step) → Measurement known by `name`; `step` takes shares of 1 as work is done."""

    def add(
        measure: Callable[[Comparison, int, Step], Measurement],
    ) -> Callable[[Comparison, int, Step], Measurement]:
        if name in _METRICS:
            raise ValueError(f"two metrics are called {name}")
        _METRICS[name] = MetricInfo(name, summary, kinds, measure)
        return measure

    return add


def list_metrics() -> list[MetricInfo]:
    """Every metric, in the order of registration."""
    return list(_METRICS.values())


def default_metrics(schema: Schema) -> tuple[str, ...]:
    """The downstream accuracies that exist for this kind of data."""
    return tuple(
        info.name
        for info in _METRICS.values()
        if schema.kind in info.kinds and info.name.startswith("accuracy.")
    )


def evaluate(
    synthetic: Dataset,
    real: Dataset,
    *,
    metrics: Sequence[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Evaluation:
    """Compare `synthetic` with `real`, a set of records that the synthesizer was not fitted to.

    `metrics` are names from `list_metrics()`; the first part of a name ("accuracy") stands for its whole family. By
    default these are accuracy.logreg, accuracy.mlp and, for images, accuracy.cnn. `seed` fixes everything random.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise BadInput(f"The seed is {seed!r}; pass a whole number from 0 to 4294967295.")
    chosen = _choose(metrics, real.schema)
    comparison = Comparison(synthetic, real)
    comparison.read()
    progress = progress or Progress()
    threads = torch.get_num_threads()
    cancelled = threading.Event()

    # One thread a metric and the metrics side by side: small matrices gain little from more threads and lose much
    # when the cores are shared, and results do not depend on the number of cores.
    def compute(info: MetricInfo, stage: Stage) -> Metric:
        torch.set_num_threads(1)

        def step(share: float) -> None:
            if cancelled.is_set():
                raise _CancelledError
            stage.advance(share)

        start = time.perf_counter()
        found = info.measure(comparison, seed, step)
        return Metric(
            name=info.name,
            value=found.value,
            low=found.low,
            high=found.high,
            source=comparison.source(),
            seconds=time.perf_counter() - start,
            note=found.note,
        )

    workers = max(1, min(len(chosen), threads))
    title = "Evaluating " + ", ".join(info.name for info in chosen)
    try:
        with (
            progress.stage(title, float(len(chosen))) as stage,
            ThreadPoolExecutor(workers) as pool,
        ):
            futures = [pool.submit(compute, info, stage) for info in chosen]
            try:
                found = tuple(future.result() for future in futures)
            except BaseException:
                # Ctrl-C or an error in one metric: the others stop at their next step.
                cancelled.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)
    return Evaluation(metrics=found, n=len(synthetic), seed=seed)


class _CancelledError(Exception):
    """Raised inside a metric that nobody waits for any more."""


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927): honest near 0 and 1, where the textbook one leaves [0, 1]."""
    z = 1.959963984540054
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = (
        z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    )
    # At a share of exactly 0 or 1 the end of the interval is that number; rounding must not pass it.
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def _choose(metrics: Sequence[str] | None, schema: Schema) -> list[MetricInfo]:
    if metrics is None:
        metrics = default_metrics(schema)
    elif isinstance(metrics, str):
        metrics = (metrics,)
    chosen: dict[str, MetricInfo] = {}
    for name in metrics:
        family = [
            m for m in _METRICS.values() if m.name.split(".")[0] == name and schema.kind in m.kinds
        ]
        if name in _METRICS:
            family = [_METRICS[name]]
        if not family:
            close = get_close_matches(str(name), _METRICS, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise BadInput(f"There is no metric {name!r}{hint}; choose from {', '.join(_METRICS)}.")
        for info in family:
            if schema.kind not in info.kinds:
                usable = ", ".join(m.name for m in _METRICS.values() if schema.kind in m.kinds)
                raise BadInput(
                    f"The metric {info.name} does not exist for {_words(schema.kind)}; choose from {usable}."
                )
            chosen[info.name] = info
    if not chosen:
        raise BadInput(f"No metric was asked for; choose from {', '.join(_METRICS)}.")
    return list(chosen.values())


def _check_comparable(synthetic: Schema, real: Schema) -> None:
    if synthetic.kind != real.kind:
        raise BadInput(
            f"The synthetic data are {_words(synthetic.kind)} and the real data {_words(real.kind)}; "
            "give two data sets of one kind."
        )
    if synthetic.kind == "images" and synthetic.shape != real.shape:
        raise BadInput(
            f"The synthetic images are {_size(synthetic.shape)} and the real ones {_size(real.shape)}; open the "
            "real data with the image size and channels of the synthetic set."
        )
    if synthetic.kind == "table" and synthetic.columns != real.columns:
        raise BadInput(
            "The synthetic table and the real one differ in their columns, ranges or categories; open both with "
            "one schema."
        )
    if set(synthetic.classes) != set(real.classes):
        only = sorted(set(synthetic.classes) ^ set(real.classes))
        shown = ", ".join(only[:5]) + (", …" if len(only) > 5 else "")
        raise BadInput(
            "The synthetic and the real data have different classes "
            f"(only in one of them: {shown}); open both with the same classes."
        )


def _read(data: Dataset, role: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    if len(data) == 0:
        raise BadInput(f"The {role} data set {data.name} is empty; give at least one record.")
    rows: torch.Tensor | None = None
    labels = torch.empty(len(data), dtype=torch.int64) if data.schema.labelled else None
    start = 0
    for batch in data.batches(4096):
        values = batch.pixels() if data.schema.kind == "images" else batch.values.float()
        if rows is None:
            rows = torch.empty(len(data), *values.shape[1:])
        stop = start + len(batch)
        rows[start:stop] = values
        if labels is not None and batch.labels is not None:
            labels[start:stop] = batch.labels
        start = stop
    if rows is None or start != len(data):
        raise BadInput(f"The {role} data set {data.name} ended early; check the file.")
    if data.schema.kind == "images" and not bool(torch.isfinite(rows).all()):
        raise BadInput(
            f"Some {role} images of {data.name} hold NaN or infinity; replace these pixels or drop the records."
        )
    if labels is not None and bool((labels < 0).any()):
        raise BadInput(
            f"Some labels of the {role} data set {data.name} are none of its classes; add the class to the schema "
            "or drop the records."
        )
    return rows, labels


def _words(kind: str) -> str:
    return {"images": "images", "table": "tables"}[kind]


def _size(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{height}×{width} with {channels} channel{'s' if channels > 1 else ''}"
