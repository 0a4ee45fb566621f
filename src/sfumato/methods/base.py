"""What every method is: a synthesizer with a plan, a fit that keeps to it, and samples.

`fit` is written once, here: calibrate the plan to the budget, wrap the rows behind the wall, let the method work,
and compare what the ledger paid with what the plan promised. A method sees `PrivateData`, never the rows.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sfumato._version import __version__
from sfumato.data import Dataset, Schema
from sfumato.data.pictures import sample_grid
from sfumato.errors import BadInput, CorruptArtifact, PlanMismatch
from sfumato.generators import checkpoint_step
from sfumato.methods.registry import MethodInfo, get_method
from sfumato.methods.run import FORMAT, RunFolder
from sfumato.privacy import (
    Budget,
    Ledger,
    Plan,
    PrivacyStatement,
    PrivateData,
    ReleaseStore,
    calibrate,
)
from sfumato.progress import Progress, Stage
from sfumato.storage import atomic_path, read_json


@dataclass(frozen=True)
class Parameter:
    """One setting of a method, for `--set` and its help."""

    name: str
    type: str
    default: Any
    help: str


class Workspace:
    """What a method may use while it fits besides the wall: progress, a log, and a place for checkpoints."""

    def __init__(self, run: RunFolder | None, progress: Progress) -> None:
        self.progress = progress
        self.checkpoint = run.checkpoint if run else None
        self.records: list[dict[str, Any]] = []
        self._run = run

    def log(self, record: dict[str, Any]) -> None:
        """Keep a record; it is published with the run, so it must be made of released numbers only."""
        self.records.append(record)
        if self._run is not None:
            self._run.append_log(record)


class Synthesizer(ABC):
    """Base of all methods. scikit-learn's contract: `__init__` stores, `fit` returns self, learned names end in _.

    **Guarantee**: after `fit(data, budget)`, everything reachable from the object, and every sample, is (ε, δ)-differentially
    private as `statement_` says.
    """

    info: ClassVar[MethodInfo]
    HELP: ClassVar[Mapping[str, str]]  # a line for every setting

    seed: int
    statement_: PrivacyStatement
    schema_: Schema
    noise_multiplier_: float
    log_: list[dict[str, Any]]

    # -- what a method writes ------------------------------------------------------------------------------------

    @abstractmethod
    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        """The promise: every charge that `_fit` will make, in order. Touches no data."""

    @abstractmethod
    def _fit(self, data: PrivateData, noise_multiplier: float, workspace: Workspace) -> None:
        """The work: noisy sums from `data`, then anything at all with them."""

    @abstractmethod
    def _sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """`n` records (uint8 or float images, or table rows) and their labels."""

    @abstractmethod
    def _state(self) -> dict[str, Tensor]:
        """The tensors that `_sample` needs."""

    @abstractmethod
    def _restore(self, state: dict[str, Tensor]) -> None:
        """Take back what `_state` gave; `self.schema_` is set already."""

    # -- settings ------------------------------------------------------------------------------------------------

    @classmethod
    def parameters(cls) -> list[Parameter]:
        signature = inspect.signature(cls.__init__, eval_str=True)
        return [
            Parameter(p.name, _type_name(p.annotation), p.default, cls.HELP[p.name])
            for p in signature.parameters.values()
            if p.name != "self"
        ]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {p.name: getattr(self, p.name) for p in self.parameters()}

    @classmethod
    def from_settings(cls, settings: Mapping[str, str], **more: Any) -> Self:
        """A method from text settings, as `--set key=value` gives them."""
        known = {p.name: p for p in cls.parameters()}
        parsed: dict[str, Any] = dict(more)
        for key, text in settings.items():
            if key not in known:
                raise BadInput(
                    f"{cls.info.name} has no setting {key!r}; it has {', '.join(known)}."
                )
            parsed[key] = _parse(text, known[key])
        return cls(**parsed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.get_params().items())})"

    # -- fit, sample, save, load: written once -------------------------------------------------------------------

    @final
    def fit(
        self,
        data: Dataset,
        budget: Budget,
        *,
        out: Path | str | None = None,
        resume: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Learn a generator of records like `data`'s within `budget`.

        With `out`, the run folder is written as the work goes on, and `resume=True` goes on with an interrupted one:
        a release that was saved is not made again, so nothing is spent twice.
        """
        progress = progress or Progress()
        schema = data.schema
        if schema.kind not in self.info.kinds:
            raise BadInput(
                f"{self.info.name} makes {' and '.join(self.info.kinds)} and this data set is "
                f"{'a table' if schema.kind == 'table' else 'of images'}; see `sfumato methods` for one that fits."
            )
        if len(data) == 0:
            raise BadInput("The data set holds no record; check the path and the split.")
        noise_multiplier = calibrate(lambda m: self.plan(schema, m), budget)
        plan = self.plan(schema, noise_multiplier)
        size = len(data) if budget.neighbours.size_is_public else None

        run = RunFolder(out) if out is not None else None
        if run is not None:
            promised = Ledger(budget)
            for charge in plan:
                promised.charge(charge)
            run.begin(
                self._config(schema, budget, data.name, size),
                PrivacyStatement.of(promised).to_json(),
                resume=resume,
            )
            if run.finished:
                self._load_from(run)
                return self
            run.rewind_log(checkpoint_step(run.checkpoint))
        workspace = Workspace(run, progress)
        store = ReleaseStore(run.releases if run else None)
        ledger = Ledger(budget)
        with _ReadingProgress(progress) as reading:
            private = PrivateData(data, ledger, store=store, on_fraction=reading)
            self.schema_ = schema
            self._fit(private, noise_multiplier, workspace)
        if ledger.charges != plan:
            raise PlanMismatch(
                f"{self.info.name} spent other than it planned; this is a bug in the method, and its result was discarded."
            )
        self.noise_multiplier_ = noise_multiplier
        self.statement_ = PrivacyStatement.of(ledger)
        self.log_ = workspace.records
        self._releases = store
        self._origin = (data.name, size)
        if run is not None:
            self._write(run)
        return self

    @final
    def sample(self, n: int, *, seed: int = 0) -> Dataset:
        """`n` synthetic records. Free: any number of samples costs no privacy."""
        self._check_fitted()
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise BadInput(f"n must be a whole number of at least 1, not {n!r}.")
        values, labels = self._sample(n, torch.Generator().manual_seed(int(seed)))
        return Dataset.from_values(
            values.numpy(),
            None if labels is None else labels.numpy(),
            schema=self.schema_,
            name=f"{self.info.name} samples (seed {seed})",
        )

    @final
    def save(self, path: Path | str) -> Path:
        """Write the run folder; `load` gives back an object with the same samples."""
        self._check_fitted()
        run = RunFolder(path)
        name, size = self._origin
        run.begin(
            self._config(self.schema_, self.statement_.budget, name, size),
            self.statement_.to_json(),
            resume=False,
        )
        for record in self.log_:
            run.append_log(record)
        store = ReleaseStore(run.releases)
        for release in self._releases.releases.values():
            store.keep(release)
        self._write(run)
        return run.path

    @staticmethod
    def load(path: Path | str) -> Synthesizer:
        """The fitted method of a run folder, checked against its manifest."""
        run = RunFolder(path)
        run.check()
        config = read_json(run.config)
        try:
            if config["format"] != FORMAT:
                raise CorruptArtifact(
                    f"{run.config} is of format {config['format']}, not {FORMAT}; use the version that wrote it."
                )
            method = get_method(config["method"])(**config["settings"])
        except (KeyError, TypeError) as error:
            raise CorruptArtifact(
                f"{run.config} lacks {error}; restore the run folder from a copy."
            ) from error
        method._load_from(run)
        return method

    def _load_from(self, run: RunFolder) -> None:
        run.check()
        config = read_json(run.config)
        try:
            self.schema_ = Schema.from_json(config["schema"])
            budget = Budget(**config["budget"])
            self.noise_multiplier_ = calibrate(lambda m: self.plan(self.schema_, m), budget)
            ledger = Ledger(budget)
            for charge in self.plan(self.schema_, self.noise_multiplier_):
                ledger.charge(charge)
            self._restore(load_file(run.generator))
            origin = config["data"]
            self._origin = (origin["name"], origin["size"])
        except (KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise CorruptArtifact(
                f"The run in {run.path} is damaged ({error}); restore it from a copy."
            ) from error
        self.statement_ = PrivacyStatement.of(ledger)
        self.log_ = run.read_log()
        self._releases = ReleaseStore(run.releases)
        for charge in ledger.charges:
            self._releases.find(charge)

    def _write(self, run: RunFolder) -> None:
        with atomic_path(run.generator) as temporary:
            save_file({name: t.contiguous() for name, t in self._state().items()}, temporary)
        self._picture(run)
        run.seal()
        run.checkpoint.unlink(missing_ok=True)

    def _picture(self, run: RunFolder) -> None:
        if self.schema_.kind == "images":
            rows = max(1, self.schema_.n_classes)
            picture = sample_grid(self.sample(rows * 40, seed=0), per_class=10)
            with atomic_path(run.samples) as temporary:
                picture.save(temporary, format="PNG")

    def _config(
        self, schema: Schema, budget: Budget, name: str, size: int | None
    ) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "sfumato": __version__,
            "method": self.info.name,
            "settings": self.get_params(),
            "data": {"name": name, "size": size},
            "schema": schema.to_json(),
            "budget": budget.to_json(),
        }

    def _check_fitted(self) -> None:
        if not hasattr(self, "statement_"):
            raise BadInput(
                f"This {type(self).__name__} has not been fitted; call fit(data, budget) first."
            )


load = Synthesizer.load


class _ReadingProgress:
    """Shows the wall's two slow parts, reading and noise, as stages; it is told fractions only."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._title: str | None = None
        self._done = 0.0
        self._open: Any = None
        self._stage: Stage | None = None

    def __enter__(self) -> Callable[[str, float], None]:
        return self._report

    def __exit__(self, *exc: object) -> None:
        self._close()

    def _report(self, title: str, fraction: float) -> None:
        if title != self._title:
            self._close()
            self._title, self._done = title, 0.0
            self._open = self._progress.stage(title, 1.0)
            self._stage = self._open.__enter__()
        assert self._stage is not None
        self._stage.advance(fraction - self._done)
        self._done = fraction
        if fraction >= 1:
            self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = self._stage = self._title = None


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _parse(text: str, parameter: Parameter) -> Any:
    kinds = [kind.strip() for kind in parameter.type.split("|")]
    if "None" in kinds and text.lower() in ("none", "auto"):
        return None
    try:
        if "bool" in kinds:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[
                text.lower()
            ]
        if "int" in kinds:
            return int(text)
        if "float" in kinds:
            return float(text)
    except (ValueError, KeyError):
        raise BadInput(
            f"Setting {parameter.name} takes {parameter.type}, not {text!r}; its default is {parameter.default}."
        ) from None
    return text
