"""Metrics by name, and `evaluate`, which computes them.

A family of metrics is one file that registers its names, with what they are called in plain words and how they are read;
`evaluate` looks them up, checks that the two data sets can be compared, and times each. The synthetic set is safe to look at;
the real set is not: a number made from real records is NOT COVERED by ε. It wears a badge that says so, and its `source` names
the real records that it read, with their number only where that is public. Errors name public facts only.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from sfumato import notebook
from sfumato.data import Dataset, Schema, as_dataset
from sfumato.engines import Engine, engine_of
from sfumato.errors import BadInput, SfumatoError
from sfumato.files import atomic_path, cache_folder
from sfumato.progress import Progress, Stage, progress_of
from sfumato.published import BADGE

if TYPE_CHECKING:
    from sfumato.privacy import Budget

Array = np.ndarray[Any, Any]
Step = Callable[[float], None]
Features = Callable[[torch.Tensor], torch.Tensor]
Preset = Literal["quick", "paper", "dpimagebench", "full"]
Reads = Literal["test", "train", "either", "nothing"]
Role = Literal["synthetic", "real", "train"]
Result = TypeVar("Result")
EVALUATED = ("Metric", "Value", "95 % interval", "From")
PRECISIONS = ("float32", "bfloat16")  # of the networks that look at images or learn them
NORMAL_95 = (
    1.959963984540054  # 95 % of a normal distribution lie within so many deviations of its mean
)


# With more classes the confusion is kept out of files, where it would be most of them.
_MOST_CONFUSED = 50


@dataclass(frozen=True)
class ByClass:
    """How a classifier did class by class, as shares: no number of real records is kept.

    `confusion[a][b]` is the share of the real records of class a that were taken for b. `recall` is its diagonal; `precision`
    is the share of what was taken for a class that is of it. None stands where there is nothing to take a share of.
    """

    classes: tuple[str, ...]
    recall: tuple[float | None, ...]
    precision: tuple[float | None, ...]
    confusion: tuple[tuple[float | None, ...], ...]

    @classmethod
    def of(cls, real: torch.Tensor, predicted: torch.Tensor, classes: Sequence[str]) -> ByClass:
        size = len(classes)
        counts = torch.bincount(real * size + predicted, minlength=size * size).view(size, size)
        rows, columns = counts.sum(1), counts.sum(0)
        confusion = tuple(
            tuple(_share(int(found), int(of)) for found in row)
            for row, of in zip(counts, rows, strict=True)
        )
        right = counts.diagonal().tolist()
        return cls(
            tuple(classes),
            tuple(_share(hits, int(of)) for hits, of in zip(right, rows, strict=True)),
            tuple(_share(hits, int(of)) for hits, of in zip(right, columns, strict=True)),
            confusion,
        )

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "classes": list(self.classes),
            "recall": list(self.recall),
            "precision": list(self.precision),
        }
        if len(self.classes) <= _MOST_CONFUSED:
            told["confusion"] = [list(row) for row in self.confusion]
        return told

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> ByClass:
        size = len(told["classes"])
        confusion = told.get("confusion", [[None] * size] * size)
        names, recall, precision = (
            tuple(told[part]) for part in ("classes", "recall", "precision")
        )
        return cls(names, recall, precision, tuple(tuple(row) for row in confusion))

    def rows(self) -> list[tuple[str, str, str, str]]:
        """For a table: class, recall, precision, and what it is most often taken for."""
        shown = []
        for code, name in enumerate(self.classes):
            others = [
                (share, self.classes[other])
                for other, share in enumerate(self.confusion[code])
                if other != code and share
            ]
            share, other = max(others, key=lambda found: found[0], default=(0.0, ""))
            ends = (self.recall[code], self.precision[code])
            shown.append(
                (
                    name,
                    *("–" if end is None else f"{end:.4f}" for end in ends),
                    f"{other} ({share:.4f})" if other else "–",
                )
            )
        return shown  # type: ignore[return-value]


BY_CLASS = ("Class", "Recall", "Precision", "Most often taken for")


def _share(hits: int, of: int) -> float | None:
    return round(hits / of, 4) if of else None


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number about real data, with its 95 % interval (both ends equal the value where there is none).

    `badge` says that it is not covered by ε; it is empty for the few that read no real record. `seconds` is for the terminal:
    how long something took depends on the records, so it is never written to a file.
    """

    name: str
    value: float
    low: float
    high: float
    source: str
    seconds: float = field(repr=False)  # a notebook's output is a file too
    note: str = ""
    badge: str = BADGE
    by_class: ByClass | None = None

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "name": self.name,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "source": self.source,
        }
        marks = {"badge": self.badge, "note": self.note}
        facts |= {key: text for key, text in marks.items() if text}
        return facts if self.by_class is None else facts | {"by_class": self.by_class.to_json()}


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
        raise BadInput(
            f"{name!r} was not measured; there are {', '.join(m.name for m in self.metrics)}, and evaluate(…, metrics=[…]) adds "
            "others."
        )

    def by_class(self, name: str) -> ByClass:
        """How the classifier of a metric ("accuracy.cnn") did class by class."""
        found = self[name].by_class
        if found is None:
            raise BadInput(f"{name} is not told by class; the metrics accuracy.* are.")
        return found

    def _rows(self) -> list[tuple[str, str, str, str]]:
        return [
            (
                metric.name,
                f"{metric.value:.4f}",
                "–" if metric.low == metric.high else f"{metric.low:.4f} – {metric.high:.4f}",
                metric.source + (f" ({metric.note})" if metric.note else ""),
            )
            for metric in self.metrics
        ]

    def __str__(self) -> str:
        """A table for people, with what the numbers were computed from."""
        rows = [EVALUATED, *self._rows()]
        wide = [max(len(row[column]) for row in rows) for column in range(len(EVALUATED) - 1)]
        lines = [
            "  ".join((*(cell.ljust(w) for cell, w in zip(row, wide, strict=False)), row[-1]))
            for row in rows
        ]
        rule = "  ".join("─" * w for w in (*wide, len(EVALUATED[-1])))
        return "\n".join((lines[0], rule, *lines[1:], self._told()))

    def _repr_html_(self) -> str:
        return notebook.card(
            "Evaluation", notebook.table(EVALUATED, self._rows()), notebook.paragraph(self._told())
        )

    def _told(self) -> str:
        badge = f"{BADGE[0].upper()}{BADGE[1:]}, unless it says “synthetic data only”."
        return f"{self.n:,} synthetic records, seed {self.seed}. {badge}"

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each metric, by its name: value, interval, and what it was computed from."""
        import pandas

        rows = [(m.name, m.value, m.low, m.high, m.source, m.note) for m in self.metrics]
        named = ("metric", "value", "low", "high", "source", "note")
        return pandas.DataFrame(rows, columns=list(named)).set_index("metric")

    def to_json(self) -> dict[str, Any]:
        """The content of metrics.json."""
        return {
            "metrics_are": BADGE,
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
    by_class: ByClass | None = None

    @classmethod
    def of_share(cls, value: float, interval: tuple[float, float], *notes: str) -> Measurement:
        """A number from 0 to 1, cut to that with its interval (rounding may pass 1), and the remarks that are not empty."""
        value, low, high = (min(1.0, max(0.0, end)) for end in (value, *interval))
        return cls(value, low, high, joined(notes))

    @classmethod
    def of_hits(cls, marks: torch.Tensor | Array, *notes: str) -> Measurement:
        """The share of marks that are set."""
        hits = int(marks.sum())
        return cls(hits / len(marks), *wilson(hits, len(marks)), joined(notes))


Measure = Callable[["Comparison", int, Step], Measurement]


@dataclass(frozen=True)
class Family:
    """The metrics whose names begin alike: their heading, how they are read (is more better, or less?) and their unit.

    `unit`: "%" (a share, told in percent), "share" (from 0 to 1) or "" (any number).
    """

    title: str
    reading: str
    unit: str = ""


_OTHER = Family("Other measurements", "")


@dataclass(frozen=True)
class MetricInfo:
    """A metric as the list of metrics shows it; `measure` does the work.

    `title` names it in plain words under the heading of its `family`. `presets` are those that hold it besides "full", which
    holds every metric that applies. `reads` says which real records it needs: the held-out ones, the TRAINING set as well
    (or, if there is none, the held-out ones alone: "either"), or none. `where` narrows `kinds` by other public facts. What
    comes `beside` another metric, to hold it against, is in no preset.
    """

    name: str
    summary: str
    kinds: tuple[str, ...]
    measure: Measure
    presets: Callable[[Schema], Sequence[Preset]] = lambda schema: ()
    reads: Reads = "test"
    where: Callable[[Schema], bool] = lambda schema: True
    title: str = ""
    family: Family = _OTHER
    beside: bool = False

    def applies(self, schema: Schema) -> bool:
        return schema.kind in self.kinds and self.where(schema)


@dataclass(frozen=True)
class Fitted:
    """What the synthetic records were made under: the budget, and how many units were fitted where that is public."""

    budget: Budget
    size: int | None = None


class Comparison:
    """A synthetic and a real data set that have been checked to be of one kind, read once and kept in memory.

    Labels of all sets are codes of the real set's classes. `train`, the real records that the synthesizer was fitted to,
    is there for the metrics that ask for it. `networks` replaces pretrained networks by other functions of pixels. Unless
    `size_is_public`, the number of real records is told only of sets that are published under a name.
    What several metrics share (features, trained classifiers) is computed once, through `once`.
    """

    # Networks see at most so many records of each set: Inception takes minutes for each 10,000 on a small machine.
    most_embedded = 10_000

    def __init__(
        self,
        synthetic: Dataset,
        real: Dataset,
        *,
        train: Dataset | None = None,
        networks: Mapping[str, Features] | None = None,
        size_is_public: bool = False,
        fitted: Fitted | None = None,
        progress: Progress | None = None,
        threads: int = 1,
        precision: str = PRECISIONS[0],
    ) -> None:
        _check_comparable(synthetic.schema, real.schema)
        if train is not None:
            _check_comparable(train.schema, real.schema, "training")
        self.schema = real.schema
        self.fitted = fitted
        self._synthetic = synthetic
        self._real = real
        self._train = train
        self._networks = dict(networks or {})
        self._size_is_public = size_is_public
        self._progress = progress or Progress()
        self._threads = threads
        self.precision = precision
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._known: dict[Hashable, Any] = {}

    @cached_property
    def synthetic(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows as float32 (images in [0, 1]) and labels int64."""
        return self._matched(self._synthetic, "synthetic")

    @cached_property
    def real(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows as float32 (images in [0, 1]) and labels int64."""
        return _read(self._real, "real")

    @cached_property
    def train(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows and labels of the REAL TRAINING data."""
        if self._train is None:
            raise BadInput(
                "This metric compares with the real training data and none were given; pass train=, the data set "
                "that the synthesizer was fitted to."
            )
        return self._matched(self._train, "training")

    @property
    def has_train(self) -> bool:
        return self._train is not None

    def _matched(self, data: Dataset, role: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows, labels = _read(data, role)
        if labels is not None:
            # The same classes may stand in another order, as sub-folders sorted by name do.
            names = data.schema.classes
            labels = torch.tensor([self.schema.classes.index(name) for name in names])[labels]
        return rows, labels

    def real_alone(self, seed: int) -> Comparison:
        """Real records in the place of the synthetic ones, to learn from: the training records if they are at hand.

        Without them one half of the held-out records is learnt from, and only the other half is left to score by.
        """

        def make() -> Comparison:
            other = copy(self)
            other._locks, other._known = {}, {}
            if self.has_train:
                other.synthetic = self.train
                return other
            rows, labels = self.real
            order = torch.from_numpy(np.random.default_rng(seed).permutation(len(rows)))
            half = len(rows) // 2
            for role, index in (("synthetic", order[: max(1, half)]), ("real", order[half:])):
                setattr(other, role, (rows[index], None if labels is None else labels[index]))
            return other

        return self.once(("real alone", seed), make)

    def read(self) -> None:
        """Read the sets now; what is wrong with them shows before any work is done."""
        _ = self.synthetic, self.real
        if self.has_train:
            _ = self.train

    def source(self, reads: Reads = "test") -> str:
        if reads == "nothing":
            return f"synthetic data only; no record of {self._real.name} was read"
        records = f"real data {self._described('real', self._real)}"
        if reads in ("train", "either") and self._train is not None:
            records += f" and the REAL TRAINING data {self._described('train', self._train)}"
        return f"{records}; not covered by ε"

    def _described(self, role: Literal["real", "train"], data: Dataset) -> str:
        return f"{data.name} ({len(data):,} records)" if self.tells_size(role) else data.name

    def tells_size(self, role: Literal["real", "train"]) -> bool:
        """Whether the number of records of that set may be written down, in whatever form."""
        data = self._real if role == "real" else self._train
        return self._size_is_public or (data is not None and data.published_as is not None)

    def once(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """`make()`, computed by the first metric that asks for `key`; the others wait for it and share it."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._known:
                self._known[key] = make()
            return self._known[key]

    def network(self, name: str) -> Features:
        """A pretrained public network as a function of pixels in [0, 1]."""
        if name in self._networks:
            return self._networks[name]

        def open_network() -> Features:
            from sfumato.public.weights import get_network

            return get_network(name, progress=self._progress)

        return self.once(("network", name), open_network)

    def chosen(self, role: Role, seed: int, most: int | None = None) -> torch.Tensor:
        """Which records networks and neighbour searches see: all, or `most` (`most_embedded`) drawn by `seed`."""
        size, most = len(getattr(self, role)[0]), most or self.most_embedded
        if size <= most:
            return torch.arange(size)
        draw = np.random.default_rng([seed, _ROLES.index(role)])
        return torch.from_numpy(np.sort(draw.choice(size, most, replace=False)))

    def features(
        self,
        role: Role,
        name: str,
        seed: int,
        step: Step,
        batch: int = 50,
        most: int | None = None,
    ) -> torch.Tensor:
        """(n, dim) float32: the network `name`, or "pixels", of the chosen records; `step` is told when work is done."""

        def compute() -> torch.Tensor:
            rows = getattr(self, role)[0]
            index = self.chosen(role, seed, most)
            if name == "pixels":
                return rows[index].flatten(1)
            kept = self._kept_features(role, name, seed, most or self.most_embedded)
            if kept is not None and kept.exists():
                try:
                    return load_file(kept)["features"]
                except (SafetensorError, KeyError, OSError):
                    kept.unlink(missing_ok=True)  # damaged: compute it again
            network = self.network(name)
            parts = []
            before = torch.get_num_threads()
            # Other metrics wait for these features, so their threads are free.
            torch.set_num_threads(self._threads)
            try:
                with torch.inference_mode(), numbers(self.precision):
                    for part in index.split(batch):
                        parts.append(network(rows[part]).float().cpu())
                        step(0.0)
            finally:
                torch.set_num_threads(before)
            found = torch.cat(parts).clone()
            if found.ndim != 2 or not bool(torch.isfinite(found).all()):
                raise BadInput(
                    f"The features of {name} are not one finite vector a record; check the network."
                )
            if kept is not None:
                with suppress(SfumatoError, OSError), atomic_path(kept) as temporary:
                    save_file({"features": found}, temporary)
            return found

        return self.once(("features", role, name, seed, most or self.most_embedded), compute)

    def both_features(
        self, name: str, seed: int, step: Step, least: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of the synthetic and the real records, computed once for all metrics; nine tenths of a metric's work."""
        if min(len(self.synthetic[0]), len(self.real[0])) < least:
            raise BadInput(
                f"This metric needs at least {least} images of each set; give more records."
            )
        synthetic = self.features("synthetic", name, seed, step)
        step(0.45)
        real = self.features("real", name, seed, step)
        step(0.45)
        return synthetic, real

    def _kept_features(self, role: Role, name: str, seed: int, most: int) -> Path | None:
        """Where the features of a published set lie in the cache; None for any other set, of which nothing is kept."""
        data = {"synthetic": None, "real": self._real, "train": self._train}[role]
        if data is None or data.published_as is None or name in self._networks:
            return None
        drawn = "" if len(getattr(self, role)[0]) <= most else f".{most}.seed{seed}"
        drawn += "" if self.precision == PRECISIONS[0] else f".{self.precision}"
        return _cached("features", data.published_as, f"{name}{drawn}")

    def kept_judge(self, name: str) -> Path | None:
        """Where a network that learnt from a published training set lies in the cache; None for any other set."""
        published = None if self._train is None else self._train.published_as
        return None if published is None else _cached("judges", published, name)

    def drawn_note(self, features: str = "pixels") -> str:
        """A remark when not every record was looked at, or may not have been, or by a network in short numbers; else empty."""
        short = "" if features == "pixels" else in_short(self.precision)
        sizes = (len(self._synthetic), len(self._real))
        if not self.tells_size("real"):
            drawn = f"computed from at most {self.most_embedded:,} records of each set"
        elif max(sizes) <= self.most_embedded:
            drawn = ""
        else:
            drawn = f"computed from {self.most_embedded:,} records drawn from each larger set"
        return joined((drawn, short))


def _cached(folder: str, published: str, what: str) -> Path:
    return cache_folder() / folder / f"{published.replace(':', '-')}.{what}.safetensors"


_ROLES: tuple[Role, ...] = ("synthetic", "real", "train")
_METRICS: dict[str, MetricInfo] = {}


def register(
    name: str,
    summary: str,
    *,
    title: str = "",
    family: Family = _OTHER,
    kinds: tuple[str, ...] = ("images", "table"),
    presets: Sequence[Preset] | Callable[[Schema], Sequence[Preset]] = (),
    reads: Reads = "test",
    where: Callable[[Schema], bool] = lambda schema: True,
    beside: bool = False,
) -> Callable[[Measure], Measure]:
    """Make a function (comparison, seed, step) → Measurement known by `name`; `step` takes shares of 1 as work is done.

    `title` and `family` say how a report calls it; without a title it keeps its name. The rest is as in `MetricInfo`.
    """

    def add(measure: Measure) -> Measure:
        if name in _METRICS:
            raise ValueError(f"two metrics are called {name}")
        held = presets if callable(presets) else lambda schema: presets
        _METRICS[name] = MetricInfo(
            name, summary, kinds, measure, held, reads, where, title or name, family, beside
        )
        return measure

    return add


def title_of(name: str) -> str:
    """In plain words under the family's heading; an unknown metric keeps its name."""
    return _METRICS[name].title if name in _METRICS else name


def family_of(name: str) -> Family:
    """Also of a metric that only an earlier version knew, by the first part of its name."""
    return next((m.family for m in _members(name.partition(".")[0])), _OTHER)


def badge_of(metric: Mapping[str, Any]) -> str:
    """What stands beside a saved metric's number wherever that is shown; empty where no real record was read.

    Files of earlier versions have no badge; what does not say that it read synthetic data only gets one.
    """
    return "" if str(metric["source"]).startswith("synthetic data only") else BADGE


def _members(family: str) -> list[MetricInfo]:
    return [m for m in _METRICS.values() if m.name.partition(".")[0] == family]


def list_metrics() -> list[MetricInfo]:
    """Every metric, in the order of registration."""
    return list(_METRICS.values())


def preset_metrics(preset: str, schema: Schema, *, train: bool = False) -> tuple[str, ...]:
    """The names that a preset stands for on data of this schema; `train` says whether the training set is at hand.

    "quick" is what `evaluate` does by default, "paper" the protocol of the papers for this kind of data, "dpimagebench" the
    judges of that benchmark in small, "full" everything that applies.
    """
    if preset not in get_args(Preset):
        raise BadInput(f"There is no preset {preset!r}; choose from {', '.join(get_args(Preset))}.")
    return tuple(
        info.name
        for info in _METRICS.values()
        # What the default lacks (labels, say) is told by its metrics, rather than leaving nothing to do.
        if (info.applies(schema) or (preset == "quick" and schema.kind in info.kinds))
        and (preset == "full" or preset in info.presets(schema))
        and not info.beside
        and (info.reads != "train" or train)
    )


def default_metrics(schema: Schema) -> tuple[str, ...]:
    """The quick preset: accuracy.logreg, accuracy.mlp and, for images, accuracy.cnn."""
    return preset_metrics("quick", schema)


def _records(what: Any, role: str, like: Schema | None = None) -> Dataset:
    """`what` as a data set; arrays are of the schema `like`."""
    if isinstance(what, Dataset):
        return what
    if hasattr(what, "sample") and hasattr(what, "get_params"):
        raise BadInput(
            f"The {role} are given as a {type(what).__name__}; draw some of it: evaluate(model.sample(10_000), real)."
        )
    if isinstance(what, (str, Path)):
        return as_dataset(what)
    if like is None:
        raise BadInput(
            f"The {role} are given as a {type(what).__name__}; pass a Dataset (model.sample(n) is one, sfumato.as_dataset makes "
            "one of arrays), a path or a name."
        )
    pair = what if isinstance(what, tuple) and len(what) == 2 else (what, None)
    if like.labelled and pair[1] is None and isinstance(what, (np.ndarray, torch.Tensor, list)):
        raise BadInput(f"The {role} came without labels; pass a pair (X, y).")
    return as_dataset(*pair, schema=like)


def evaluate(
    synthetic: Any,
    real: Any,
    *,
    metrics: Sequence[str] | None = None,
    preset: str | None = None,
    train: Any = None,
    networks: Mapping[str, Features] | None = None,
    size_is_public: bool = False,
    baselines: bool = False,
    fitted: Fitted | None = None,
    seed: int = 0,
    precision: str = PRECISIONS[0],
    engine: Engine | str | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Compare `synthetic` with `real`, a set of records that the synthesizer was not fitted to.

    Each is a `Dataset`, a path or a name; `real` and `train` may be (X, y) as well, or whatever `as_dataset` takes, of which the
    schema of the synthetic records tells what the numbers are.
    `metrics` are names from `list_metrics()`; the first part of a name ("accuracy") stands for its whole family. `preset`
    ("quick", "paper", "dpimagebench", "full") adds those of `preset_metrics`; with neither it is "quick". `train` is the set
    that the synthesizer WAS fitted to, read by the metrics that say so (`reads`). `networks` replaces a pretrained network
    ("fid-inception", "lpips-alexnet") by another function of pixels. `size_is_public` says that the numbers of real records
    may be written down (never so under add-remove); without it they are told of named sets only. `baselines` adds what each
    accuracy is to be held against (`baseline.*`, `ceiling.*`), noisy class means only where `fitted` tells the budget of the
    synthetic records. `seed` fixes everything random. `precision="bfloat16"` has the networks that look at images or learn
    them in short numbers: twice as fast on processors that have these, and no longer to the last digits. With an `engine` ("ray",
    "ray:ADDRESS") each family of metrics is computed there, with the same numbers.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise BadInput(f"The seed is {seed!r}; pass a whole number from 0 to 4294967295.")
    check_precision(precision)
    if networks is not None and not isinstance(networks, Mapping):
        raise BadInput(
            f"The networks are given as {type(networks).__name__}; pass a dict of a network's name and a function of pixels."
        )
    if fitted is not None and not isinstance(fitted, Fitted):
        raise BadInput(
            f"`fitted` is given as {type(fitted).__name__}; pass sfumato.evaluation.Fitted(budget, size)."
        )
    synthetic = _records(synthetic, "synthetic records")
    real = _records(real, "real records", synthetic.schema)
    train = None if train is None else _records(train, "train", synthetic.schema)
    if preset is not None:
        named = (metrics,) if isinstance(metrics, str) else tuple(metrics or ())
        metrics = (*preset_metrics(preset, real.schema, train=train is not None), *named)
    chosen = _choose(metrics, real.schema, train is not None)
    if baselines:
        chosen += _beside(chosen, fitted, train is not None)
    progress = progress_of(progress)
    if engine is not None:
        task = _Task(synthetic, real, train, networks, size_is_public, fitted, seed, precision)
        measured = _measured_on(engine, task, [info.name for info in chosen], progress)
        return Evaluation(metrics=measured, n=len(synthetic), seed=seed)
    threads = torch.get_num_threads()
    comparison = Comparison(
        synthetic,
        real,
        train=train,
        networks=networks,
        size_is_public=size_is_public,
        fitted=fitted,
        progress=progress,
        threads=threads,
        precision=precision,
    )
    comparison.read()
    cancelled = threading.Event()

    # One thread a metric and the metrics side by side: small matrices gain little from more threads and lose much
    # when the cores are shared, and results do not depend on the number of cores.
    def compute(info: MetricInfo, stage: Stage) -> Metric:
        torch.set_num_threads(1)
        threadpool_limits(1, user_api="openmp")  # holds in this thread, and ends with it

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
            source=comparison.source(info.reads),
            seconds=time.perf_counter() - start,
            note=found.note,
            by_class=found.by_class,
            badge="" if info.reads == "nothing" else BADGE,
        )

    workers = max(1, min(len(chosen), threads))
    shown = ", ".join(info.name for info in chosen[:4])
    title = f"Evaluating {shown}" + (f" and {len(chosen) - 4} more" if len(chosen) > 4 else "")
    try:
        with (
            warnings.catch_warnings(),
            threadpool_limits(1, user_api="blas"),
            progress.stage(title, float(len(chosen))) as stage,
            ThreadPoolExecutor(workers) as pool,
        ):
            # Solvers with an iteration limit reach it by design.
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.filterwarnings("ignore", "Using the fractional value max_samples")
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


@dataclass(frozen=True)
class _Task:
    """The metrics of one family, wherever this runs: what they share is computed once for them."""

    synthetic: Dataset
    real: Dataset
    train: Dataset | None
    networks: Mapping[str, Features] | None
    size_is_public: bool
    fitted: Fitted | None
    seed: int
    precision: str

    def __call__(self, names: Sequence[str]) -> tuple[Metric, ...]:
        return evaluate(
            self.synthetic,
            self.real,
            metrics=names,
            train=self.train,
            networks=self.networks,
            size_is_public=self.size_is_public,
            fitted=self.fitted,
            seed=self.seed,
            precision=self.precision,
        ).metrics


def _measured_on(
    engine: Engine | str, task: _Task, names: Sequence[str], progress: Progress
) -> tuple[Metric, ...]:
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.split(".")[0], []).append(name)
    found: dict[str, Metric] = {}
    used = engine_of(engine)
    try:
        with progress.stage("Evaluating", float(len(names))) as stage:
            for _, metrics in used.each(task, families.values()):
                found |= {metric.name: metric for metric in metrics}
                stage.advance(len(metrics))
    finally:
        if used is not engine:
            used.close()
    return tuple(found[name] for name in names)


def check_precision(precision: Any) -> None:
    if precision not in PRECISIONS:
        raise BadInput(f"precision is {' or '.join(PRECISIONS)}, not {precision!r}.")


def numbers(precision: str) -> torch.autocast:
    """Where networks run: in float32, or products in short numbers and sums in float32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=precision != PRECISIONS[0])


def in_short(precision: str) -> str:
    """A remark; empty in float32."""
    return "" if precision == PRECISIONS[0] else f"networks in {precision}"


class _CancelledError(Exception):
    """Raised inside a metric that nobody waits for any more."""


def colour(schema: Schema) -> bool:
    """Whether the data are colour images."""
    return schema.kind == "images" and schema.shape[0] == 3


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927): honest near 0 and 1, where the textbook one leaves [0, 1]."""
    z = NORMAL_95
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = (
        z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    )
    # At a share of exactly 0 or 1 the end of the interval is that number; rounding must not pass it.
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))


def normal(values: Any, value: float | None = None) -> tuple[float, float]:
    """The 95 % interval of a mean of independent values, around `value` (the mean if not given)."""
    values = np.asarray(values, np.float64)
    middle = float(values.mean()) if value is None else value
    if len(values) < 2:
        return middle, middle
    half = NORMAL_95 * float(values.std(ddof=1)) / math.sqrt(len(values))
    return middle - half, middle + half


def around(value: float, replicates: Any) -> tuple[float, float]:
    """The 95 % interval from bootstrap replicates: their spread put around the value, since resampling shifts the middle."""
    half = NORMAL_95 * float(np.std(np.asarray(replicates, np.float64), ddof=1))
    return value - half, value + half


def joined(notes: Iterable[str]) -> str:
    """The remarks that are not empty, as one."""
    return "; ".join(filter(None, notes))


def first_few(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def _choose(
    metrics: Sequence[str] | None, schema: Schema, has_train: bool = False
) -> list[MetricInfo]:
    if metrics is None:
        metrics = default_metrics(schema)
    elif isinstance(metrics, str):
        metrics = (metrics,)
    elif not isinstance(metrics, Sequence) or not all(isinstance(name, str) for name in metrics):
        raise BadInput("`metrics` is a list of names; list_metrics() gives them.")
    chosen: dict[str, MetricInfo] = {}
    for name in metrics:
        family = [
            m for m in _members(name) if m.applies(schema) and (m.reads != "train" or has_train)
        ]
        if name in _METRICS:
            family = [_METRICS[name]]
        if not family:
            _refuse_family(name, schema)
            raise BadInput(f"There is no metric {name!r}; {_choice(name, schema)}")
        for info in family:
            if schema.kind not in info.kinds:
                raise BadInput(
                    f"The metric {info.name} does not exist for {_words(schema.kind)}; {_choice(name, schema)}"
                )
            chosen[info.name] = info
    if not chosen:
        raise BadInput(f"No metric was asked for; {_choice('', schema)}")
    return list(chosen.values())


def choice_of(name: str, usable: Sequence[str]) -> str:
    """What to take in place of a name that is no metric, or none of `usable`: all of its family, else the families."""
    family = name.partition(".")[0]
    said = [metric for metric in usable if metric.partition(".")[0] == family]
    if not said:
        said = list(dict.fromkeys(metric.partition(".")[0] for metric in usable))
    near = get_close_matches(name, (*said, *usable), n=1)
    hint = f"did you mean {near[0]}? There are" if near and near[0] != name else "choose from"
    return f"{hint} {', '.join(said)} (docs/evaluation.md describes all)."


def _choice(name: str, schema: Schema) -> str:
    return choice_of(name, [m.name for m in _METRICS.values() if m.applies(schema)])


def _beside(
    chosen: Sequence[MetricInfo], fitted: Fitted | None, has_train: bool
) -> list[MetricInfo]:
    """What the accuracies among `chosen` are held against, as far as there is what it needs."""
    classifiers = [m.name.partition(".")[2] for m in chosen if m.name.startswith("accuracy.")]
    if not classifiers:
        return []
    played = fitted is not None and (has_train or fitted.size is not None)
    names = ["baseline.majority", *(["baseline.class-means"] if played else [])]
    names += [f"ceiling.{name}" for name in classifiers]
    known = {m.name for m in chosen}
    # A metric of somebody's own may be an accuracy and have no ceiling.
    return [_METRICS[name] for name in names if name in _METRICS and name not in known]


def _refuse_family(name: str, schema: Schema) -> None:
    members = _members(name)
    if any(m.reads == "train" and m.applies(schema) for m in members):
        raise BadInput(
            f"The metrics {name} compare with the real training data and none were given; pass train=, the data set "
            "that the synthesizer was fitted to."
        )
    if members:
        raise BadInput(f"The metrics {name} do not exist for these data; {_choice(name, schema)}")


def _check_comparable(synthetic: Schema, real: Schema, role: str = "synthetic") -> None:
    if synthetic.kind != real.kind:
        raise BadInput(
            f"The {role} data are {_words(synthetic.kind)} and the real data {_words(real.kind)}; "
            "give two data sets of one kind."
        )
    if synthetic.kind == "images" and synthetic.shape != real.shape:
        raise BadInput(
            f"The {role} images are {_size(synthetic.shape)} and the real ones {_size(real.shape)}; open the "
            f"real data with the image size and channels of the {role} set."
        )
    if synthetic.kind == "table" and synthetic.columns != real.columns:
        raise BadInput(
            f"The {role} table and the real one differ in their columns, ranges or categories; open both with "
            "one schema."
        )
    if set(synthetic.classes) != set(real.classes):
        shown = first_few(sorted(set(synthetic.classes) ^ set(real.classes)))
        raise BadInput(
            f"The {role} and the real data have different classes "
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
