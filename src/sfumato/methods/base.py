"""What every method is: a plan, a fit that keeps to it, and what comes of it: samples, or for a classifier predictions.

Fitting is written once, here: calibrate the plan to the budget, wrap the rows behind the wall, let the method work,
and compare what the ledger paid with what the plan promised. A method sees `PrivateData`, never the rows.
"""

from __future__ import annotations

import inspect
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, final

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from torch import Tensor, nn

from sfumato import published
from sfumato._version import __version__
from sfumato.checkpoints import Checkpoint
from sfumato.data import Dataset, Schema
from sfumato.data.inspection import refuse_implausible
from sfumato.data.pictures import sample_grid
from sfumato.data.sources import Array, Rows, Source
from sfumato.errors import BadInput, CorruptArtifact, PlanMismatch, RunConflict
from sfumato.generators.training import Part, Training
from sfumato.methods.counts import apportion
from sfumato.methods.registry import MethodInfo, get_method, known
from sfumato.methods.run import GENERATOR, SAMPLES, SavedRun, claim, export
from sfumato.methods.saved import learnt, part, restored, saved
from sfumato.methods.selection import check_keep, most_likely
from sfumato.methods.settings import (
    LARGEST_SEED,
    Configured,
    Setting,
    check_number,
    check_seed,
    check_settings,
    setting,
)
from sfumato.privacy import (
    Budget,
    Gate,
    Ledger,
    Plan,
    PrivacyStatement,
    PrivateData,
    Query,
    RunStore,
    calibrate,
    epsilon_of,
    refuse_overlap,
    refuse_trained_on,
)
from sfumato.privacy.query import calibrated, claimed, plan
from sfumato.privacy.store import FORMAT, packed
from sfumato.progress import Progress, Stage
from sfumato.public.codec import codec_from_state


@dataclass(frozen=True)
class Parameter:
    """One setting of a method, for `--set` and its help."""

    name: str
    type: str
    default: Any
    help: str


class Workspace:
    """What a method may use while it fits besides the wall: public data, progress, a log, a place for checkpoints."""

    def __init__(
        self,
        store: RunStore,
        progress: Progress,
        public: Dataset | None = None,
        private_name: str | None = None,
    ) -> None:
        self.progress = progress
        self.public = public
        self._private_name = private_name  # of a named set, else None
        self._store = store

    def checkpoint_of(self, stage: str = "") -> Checkpoint | None:
        """A place for the checkpoint of one stage of several, or of the only one; None where nobody could go on from it."""
        return None if self._store.folder is None else self._store.checkpoint(stage)

    def resumed(self, stage: str = "") -> bool:
        """Whether a training of this stage was interrupted and goes on: what came before it is in its checkpoint."""
        checkpoint = self.checkpoint_of(stage)
        return checkpoint is not None and checkpoint.exists()

    def training(
        self, title: str, random: torch.Generator, *, stage: str = "", **parts: Part
    ) -> Training:
        """The training loop for these parts; of several stages each but the last has a name, and is not logged."""
        checkpoint, log = self.checkpoint_of(stage), None if stage else self.log
        return Training(
            title, random, checkpoint=checkpoint, progress=self.progress, log=log, **parts
        )

    def check_unseen(self, what: str, trained_on: Iterable[str]) -> None:
        """Raise if `what`, which is taken for public, was trained on the private data, as far as names can tell."""
        name = self._private_name
        if name is not None and {name, name.partition(":")[0]} & set(trained_on):
            raise BadInput(
                f"{what} was trained on {name}, which is the private data here, so its weights are not public and the "
                "guarantee would be void; take one that was trained on other data."
            )

    def log(self, record: dict[str, Any]) -> None:
        """Keep a record; it is published with the run, so it must be made of released numbers only, under known keys."""
        published.check("log", record)
        self._store.log(record)


class PrivateMethod(ABC):
    """Base of all methods. scikit-learn's contract: `__init__` stores, `fit` returns self, learned names end in _.

    **Guarantee**: after `fit(data, budget)`, everything reachable from the object, and every sample or prediction's weights, is
    (ε, δ)-differentially private as `statement_` says. Settings marked as unsound (`claimed_plan`) have no guarantee worth the
    name, and their statement says that.
    """

    info: ClassVar[MethodInfo]
    HELP: ClassVar[Mapping[str, str]]  # a line for every setting
    # The settings that shape what is released; all others may change in `refit`. None: the method reads data while it trains.
    RELEASED_BY: ClassVar[tuple[str, ...] | None] = None
    # Settings of earlier versions, and which value is built in now; `...` for one that came after the releases.
    FORMER: ClassVar[Mapping[str, Any]] = {}

    seed: int
    statement_: PrivacyStatement
    schema_: Schema
    noise_multiplier_: float
    log_: list[dict[str, Any]]

    # -- what a method writes ------------------------------------------------------------------------------------

    @abstractmethod
    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        """The promise: every charge that `_fit` will make, in order. Touches no data."""

    def claimed_plan(self, schema: Schema, noise_multiplier: float) -> Plan | None:
        """None for whatever is sound: the plan is all that is counted.

        Settings that follow a paper whose accounting does not hold give here what the paper counts. That is calibrated to the
        budget; all of `plan` is charged all the same, and the statement tells its true ε and calls the rest a claim.
        """
        return None

    def _uses_public(self) -> bool:
        """Whether these settings make any use of public data."""
        return self.info.public != "unused"

    def _reads_while_training(self) -> bool:
        """Whether these settings read the private data while they train, though the method has others that do not."""
        return False

    @abstractmethod
    def _fit(self, data: PrivateData, noise_multiplier: float, workspace: Workspace) -> None:
        """The work: noisy sums from `data`, then anything at all with them."""

    @abstractmethod
    def _state(self) -> dict[str, Tensor]:
        """The tensors that samples or predictions need."""

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

    @classmethod
    def known_settings(cls, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings of a saved run that this version still has."""
        return told

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
        public: Dataset | None = None,
        out: Path | str | None = None,
        resume: bool = False,
        allow_empty: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Learn from `data` within `budget`.

        Before anything is paid or written, `data` is looked at: a set that is plainly not what its schema states is refused
        (`refuse_implausible`), and so is one with an empty class unless `allow_empty`.
        `public` is a data set that may be read freely, for the methods that use one. With `out`, the run folder is written
        as the work goes on, and `resume=True` goes on with an interrupted one: a release that was saved is not made again,
        so nothing is spent twice.
        """
        schema = data.schema
        self.check(schema)
        self.check_public(schema, public)
        if public is not None and (
            public is data or (data.published_as and public.published_as == data.published_as)
        ):
            raise BadInput(
                f"{data.name} is given as private and as public data at once, which voids the guarantee; give other public data."
            )
        return self._learn(data, budget, public, None, out, resume, progress, allow_empty)

    def _refuse_private(self, data: Dataset, public: Dataset | None) -> None:
        """Raise if private records stand in the public data, or in what a file named in the settings was made of."""
        if public is not None:
            refuse_overlap(data, public)
        for value in self.get_params().values():
            if isinstance(value, str):
                refuse_trained_on(data, value)

    @final
    def refit(
        self,
        run: Path | str,
        *,
        public: Dataset | None = None,
        out: Path | str | None = None,
        resume: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Train again from what the run in folder `run` released, with other settings. Reads no private row and costs nothing.

        The settings that shaped the releases (`RELEASED_BY`) must be those of the run; every other one may differ.
        """
        saved = SavedRun(run)
        config = saved.config
        if config["method"] != self.info.name:
            raise BadInput(
                f"{saved.path} is a run of {config['method']}, not of {self.info.name}; a release serves its own method."
            )
        schema, budget = Schema.from_json(config["schema"]), saved.budget
        shaping = self._shaping(schema, budget)
        if shaping is None:
            raise BadInput(
                f"{self.info.name} reads the private data while it trains, so it cannot train again from a saved release."
            )
        defaults = {p.name: p.default for p in self.parameters()}
        ours, theirs = self.get_params(), {**defaults, **config["settings"]}
        for name in set(theirs) - set(defaults):
            former = self.FORMER.get(name)
            if former is not ... and theirs[name] not in (None, former):
                raise BadInput(
                    f"The release in {saved.path} was made with {name}={theirs[name]}, a setting that this version no longer "
                    "has; train again with the version that made it."
                )
        for name in shaping:
            if ours[name] != theirs[name]:
                raise BadInput(
                    f"The release in {saved.path} was made with {name}={theirs[name]}, and this asks for {ours[name]}; "
                    "that setting shapes the release, so leave it as it was."
                )
        self.check_public(schema, public)
        origin = config["data"]
        data = Dataset(_NotAtHand(origin["size"] or 1), schema, origin["name"])
        try:
            return self._learn(data, budget, public, saved, out, resume, progress)
        finally:
            saved.close()

    def _shaping(self, schema: Schema, budget: Budget) -> Sequence[str] | None:
        """The settings that shape what is released; None where the private data are read while training goes on."""
        return None if self._reads_while_training() else self.RELEASED_BY

    def check(self, schema: Schema) -> None:
        """Raise unless the settings are of their kinds and the method is for data of this kind."""
        check_settings(self)
        if schema.kind not in self.info.kinds:
            raise BadInput(
                f"{self.info.name} makes {' and '.join(self.info.kinds)} and this data set is "
                f"{'a table' if schema.kind == 'table' else 'of images'}; see `sfumato methods` for one that fits."
            )

    def promise(self, schema: Schema, budget: Budget) -> tuple[float, PrivacyStatement]:
        """The noise multiplier that `budget` asks for, and the statement that a fit would end with. Touches no data."""
        self.check(schema)
        noise_multiplier = calibrate(
            lambda m: self.claimed_plan(schema, m) or self.plan(schema, m), budget
        )
        plan = self.plan(schema, noise_multiplier)
        claimed = self.claimed_plan(schema, noise_multiplier)
        ledger = self._ledger(plan, budget, sound=claimed is None)
        for charge in plan:
            ledger.charge(charge)
        statement = replace(PrivacyStatement.of(ledger), budget=budget, claimed=claimed)
        return noise_multiplier, statement

    @staticmethod
    def _ledger(plan: Plan, budget: Budget, *, sound: bool) -> Ledger:
        if sound:
            return Ledger(budget)
        # What is not sound costs more than was asked for: the ledger takes the plan for what it costs, and no more than it.
        cost = epsilon_of(plan, budget.delta, budget.neighbours)
        return Ledger(replace(budget, epsilon=max(cost, budget.epsilon)))

    def check_public(self, schema: Schema, public: Dataset | None) -> None:
        """Raise unless `public` is what this method can use beside private data of `schema`."""
        name, use = self.info.name, self.info.public
        if public is None:
            if use == "required":
                raise BadInput(
                    f"{name} needs a public data set of the same kind; give one with --public (in Python: public=)."
                )
            return
        if not self._uses_public():
            how = "" if use == "unused" else " with these settings"
            raise BadInput(f"{name} makes no use of public data{how}; leave --public out.")
        if (public.schema.kind, public.schema.shape) != (schema.kind, schema.shape):
            raise BadInput(
                f"The public data are {public.schema.kind} of shape {public.schema.shape} and the private ones "
                f"{schema.kind} of shape {schema.shape}; give public data of the same shape (--image-size resizes a folder)."
            )
        if len(public) == 0:
            raise BadInput("The public data set holds no record; check the path and the split.")

    def _learn(
        self,
        data: Dataset,
        budget: Budget,
        public: Dataset | None,
        earlier: SavedRun | None,
        out: Path | str | None,
        resume: bool,
        progress: Progress | None,
        allow_empty: bool = True,
    ) -> Self:
        """`fit`, or with an `earlier` run, whose releases are taken over, `refit`."""
        progress = progress or Progress()
        schema = data.schema
        # Only what is public: the folder is claimed before a row is read, even to count.
        known = self._config(schema, budget, data.name, None, public.name if public else None)
        known.pop("data")
        store = RunStore() if out is None else claim(out, known, resume=resume)
        try:
            if store.finished:
                store.tidy()
                export(store, Path(str(out)))
                with_run = SavedRun(str(out))
                self._load_from(with_run)
                with_run.close()
                return self
            size = self._public_size(data, budget, earlier)
            if earlier is None:
                refuse_implausible(data, allow_empty=allow_empty)
                self._refuse_private(data, public)
            known["data"] = {"name": data.name, "size": size}
            if not store.begun:
                self._begin(store, schema, budget, earlier, known)
            elif store.record("config").get("data") != known["data"]:
                raise RunConflict(
                    f"{out} was begun with other settings (data); resume with the same ones or choose another folder."
                )
            if earlier is not None:
                store.adopt(earlier.answers())
            self._train(data, store, budget, public, progress)
            if out is not None:
                self._seal(store)
                export(store, Path(out))
                self._store = store.snapshot()
            else:
                self._store = store
        finally:
            if store.folder is not None:
                store.close(abandon=True)
        return self

    def _public_size(self, data: Dataset, budget: Budget, earlier: SavedRun | None) -> int | None:
        """The number of records where the relation makes it public; a data set without any is refused."""
        if earlier is not None:
            return earlier.config["data"]["size"]
        if len(data) == 0:
            raise BadInput("The data set holds no record; check the path and the split.")
        return len(data) if budget.neighbours.size_is_public else None

    def _begin(
        self,
        store: RunStore,
        schema: Schema,
        budget: Budget,
        earlier: SavedRun | None,
        config: dict[str, Any],
    ) -> None:
        """Write down the promise: of this plan, or, with an earlier run, that run's own, which was paid for."""
        published.check("config", config)
        if earlier is None:
            multiplier, promised = self.promise(schema, budget)
            told, charges = promised.to_json(), promised.charges
        else:
            multiplier = earlier.noise_multiplier or self.promise(schema, budget)[0]
            told, charges = earlier.statement_json, earlier.statement.charges
        published.check("statement", told)
        store.begin(config, told, charges, multiplier)

    def _train(
        self,
        data: Dataset,
        store: RunStore,
        budget: Budget,
        public: Dataset | None,
        progress: Progress,
    ) -> None:
        """Fit within the promise that the store holds, and compare what was spent with it."""
        schema, noise_multiplier = data.schema, store.noise_multiplier
        checkpoint = store.checkpoint()
        store.rewind_log(checkpoint.step)
        promised = store.charges
        claimed = self._claimed(schema, budget, noise_multiplier)
        ledger = self._ledger(promised, budget, sound=claimed is None)
        with _ReadingProgress(progress) as reading:
            private = PrivateData(data, ledger, store=store, on_fraction=reading)
            self.schema_ = schema
            workspace = Workspace(store, progress, public, data.published_as)
            self._work(private, store, budget, workspace)
        if ledger.charges != promised:
            raise PlanMismatch(
                f"{self.info.name} spent other than it planned; this is a bug in the method, and its result was discarded."
            )
        self.noise_multiplier_ = noise_multiplier
        self.statement_ = PrivacyStatement(
            budget=budget, epsilon=store.epsilon, charges=promised, claimed=claimed
        )
        self.log_ = store.read_log()

    def _work(
        self, private: PrivateData, store: RunStore, budget: Budget, workspace: Workspace
    ) -> None:
        self._fit(private, store.noise_multiplier, workspace)

    def _claimed(self, schema: Schema, budget: Budget, noise_multiplier: float) -> Plan | None:
        return self.claimed_plan(schema, noise_multiplier)

    def _product(self) -> bytes:
        """What was learnt, as a file."""
        return packed(self._state())

    def _take_back(self, content: bytes) -> None:
        """What `_product` gave; `schema_` is set already."""
        self._restore(tensors_of(content))

    def _seal(self, store: RunStore) -> None:
        parts = {GENERATOR: self._product()}
        picture = self._picture()
        if picture is not None:
            parts[SAMPLES] = picture
        store.finish(parts)

    def sample(self, n: int, *, seed: int = 0, keep: float = 1.0) -> Dataset:
        """Synthetic records, from the methods that make them."""
        raise BadInput(
            f"{self.info.name} is a classifier and makes no samples; use `sfumato explain RUN` or, in Python, "
            "sfumato.LocallyLinearMaps.load(RUN), or fit a method that `sfumato methods` lists as making records."
        )

    @final
    def save(self, path: Path | str) -> Path:
        """Write the run folder; `load` gives back an object with the same samples."""
        self._check_fitted()
        claim(path, {}, resume=False).close(abandon=True)  # the store has its settings with it
        store = self._store.copy_to(Path(path))
        try:
            if not store.finished:
                self._seal(store)
            export(store, Path(path))
        finally:
            store.close()
        return Path(path)

    @staticmethod
    def load(path: Path | str) -> PrivateMethod:
        """The fitted method of a run folder, as its store tells it."""
        run = SavedRun(path)
        try:
            config = run.config
            try:
                cls = get_method(config["method"])
                method = cls(**cls.known_settings(config["settings"]))
            except TypeError as error:
                raise CorruptArtifact(
                    f"The settings of the run in {path} are not {config['method']}'s ({error}); use the version of sfumato that "
                    "wrote it."
                ) from error
            method._load_from(run)
        finally:
            run.close()
        return method

    def _load_from(self, run: SavedRun) -> None:
        config = run.config
        self.statement_ = run.statement
        try:
            self.schema_ = Schema.from_json(config["schema"])
            self._take_back(run.generator)
        except (
            AttributeError,
            OSError,
            LookupError,
            TypeError,
            ValueError,
            RuntimeError,
            SafetensorError,
        ) as error:
            raise CorruptArtifact(
                f"The run in {run.path} is damaged ({error}); restore it from a copy."
            ) from error
        if run.noise_multiplier is not None:
            self.noise_multiplier_ = run.noise_multiplier
        self.log_ = run.log
        self._store = run.snapshot()

    @abstractmethod
    def _picture(self) -> bytes | None:
        """A PNG of what was learnt, if there is one."""

    def _config(
        self, schema: Schema, budget: Budget, name: str, size: int | None, public: str | None
    ) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "sfumato": __version__,
            "method": self.info.name,
            "settings": self.get_params(),
            "data": {"name": name, "size": size},
            "public": public,
            "schema": schema.to_json(),
            "budget": budget.to_json(),
            **({} if self._claimed(schema, budget, 1.0) is None else {"sound": False}),
        }

    def _check_fitted(self) -> None:
        if not hasattr(self, "statement_"):
            raise BadInput(
                f"This {type(self).__name__} has not been fitted; call fit(data, budget) first."
            )


class Synthesizer(PrivateMethod):
    """A method that makes synthetic records like those it was fitted on."""

    # Learnt by those that need them; named here, since what a class with settings annotates is taken for a setting.
    shares_: Tensor
    generator_: nn.Module

    @abstractmethod
    def _sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """`n` records (uint8 or float images, or table rows) and their labels."""

    @final
    def sample(self, n: int, *, seed: int = 0, keep: float = 1.0) -> Dataset:
        """`n` synthetic records. Free: any number of samples costs no privacy.

        With `keep` < 1, n ÷ `keep` labelled images are drawn and the n that look most like their class are kept
        (`sfumato.methods.selection`): fewer slips of the generator, and less of what is rare.
        """
        self._check_fitted()
        check_number(n, self.schema_)
        check_seed(seed)
        check_keep(keep)
        random = torch.Generator().manual_seed(int(seed))
        if keep == 1:
            values, labels = self._drawn(n, random)
        else:
            values, labels = most_likely(self._labelled, n, keep, random)
        return Dataset.from_values(
            values.numpy(),
            None if labels is None else labels.numpy(),
            schema=self.schema_,
            name=f"{self.info.name} samples (seed {seed}{'' if keep == 1 else f', keep {keep:g}'})",
        )

    def _drawn(self, n: int, random: torch.Generator) -> tuple[Tensor, Tensor | None]:
        return self._sample(n, random)

    def _labelled(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        values, labels = self._drawn(n, generator)
        if labels is None or self.schema_.kind != "images":
            raise BadInput("Only labelled images can be chosen from; leave keep at 1 here.")
        return values, labels

    def _picture(self) -> bytes | None:
        if self.schema_.kind != "images":
            return None
        rows = max(1, self.schema_.n_classes)
        return png_of(sample_grid(self.sample(rows * 40, seed=0), per_class=10))


class Method(Configured, Synthesizer):
    """A method that is declared: settings, queries, public parts, a fit that asks the queries, samples.

        def queries(self, schema, budget)   the promise: every noisy sum that `_fit` will ask for, in order; touches no data
        def build(self, schema)             skeletons of public facts that samples need: networks, maps
        def _fit(self, data, run)           the paper: data.sum(label, rows), data.steps(label), training
        def _sample(self, labels, random)   a record for each label

    What is learnt has a name that ends in `_`, and is saved and restored by that name (`methods.saved`); a method that makes
    records learns `shares_`, the classes' shares.
    """

    seed: int = setting(
        "Public seed of all that is drawn but privacy noise, which never has one.",
        default=0,
        low=0,
        high=LARGEST_SEED,
    )

    AT_ONCE: ClassVar[int] = 1000  # records that are drawn at a time
    _KEPT_APART: ClassVar = ("statement_", "schema_", "log_", "noise_multiplier_")

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "info" in vars(cls):
            known(cls)

    # -- what a method writes ------------------------------------------------------------------------------------

    @abstractmethod
    def queries(self, schema: Schema, budget: Budget) -> Sequence[Query]: ...

    def _check(self, schema: Schema) -> None:
        """Refuse settings that do not go together, or not with this schema; each by itself was checked."""

    def build(self, schema: Schema) -> None:
        """Make what samples need of public facts alone; weights are learnt, or read back from a run."""

    @abstractmethod
    def _fit(self, data: Gate, run: Workspace) -> None: ...  # type: ignore[override]

    @abstractmethod
    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor: ...  # type: ignore[override]

    def _earlier(self, state: dict[str, Tensor]) -> dict[str, Any]:
        """What a run of a version before 0.3 kept, by today's names; `build` was called."""
        found: dict[str, Any] = {"shares_": state["shares"]}
        if weights := part(state, "network."):
            self.generator_.load_state_dict(weights)
            found["generator_"] = self.generator_.eval()
        if codec := part(state, "codec."):
            found["codec_"] = codec_from_state(codec)
        return found

    # -- written once --------------------------------------------------------------------------------------------

    @classmethod
    def parameters(cls) -> list[Setting]:  # type: ignore[override]
        return cls.settings()

    @classmethod
    def known_settings(cls, told: Mapping[str, Any]) -> Mapping[str, Any]:
        names = {s.name for s in cls.settings()}
        return {name: value for name, value in told.items() if name in names}

    @classmethod
    def _called(cls) -> str:
        return cls.info.name if hasattr(cls, "info") else cls.__name__

    @final
    def check(self, schema: Schema) -> None:
        self._set(self.get_params())  # attributes may have been written since
        super().check(schema)
        self._check(schema)

    @final
    def promise(self, schema: Schema, budget: Budget) -> tuple[float, PrivacyStatement]:
        self.check(schema)
        queries = self.queries(schema, budget)
        noise = calibrated(queries, budget)
        charges = plan(queries, noise)
        counted = claimed(charges, queries)
        ledger = self._ledger(charges, budget, sound=counted is None)
        for charge in charges:
            ledger.charge(charge)
        return noise, replace(PrivacyStatement.of(ledger), budget=budget, claimed=counted)

    @final
    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        self.check(schema)
        return plan(self.queries(schema, Budget(epsilon=1.0, delta=1e-5)), noise_multiplier)

    @final
    def claimed_plan(self, schema: Schema, noise_multiplier: float) -> Plan | None:
        return self._claimed(schema, Budget(epsilon=1.0, delta=1e-5), noise_multiplier)

    def _claimed(self, schema: Schema, budget: Budget, noise_multiplier: float) -> Plan | None:
        queries = self.queries(schema, budget)
        if all(q.noise is None for q in queries):
            return None
        return claimed(plan(queries, noise_multiplier), queries)

    def _shaping(self, schema: Schema, budget: Budget) -> Sequence[str] | None:
        if any(query.steps is not None for query in self.queries(schema, budget)):
            return None
        return [s.name for s in self.settings() if not s.free]

    def _work(
        self, private: PrivateData, store: RunStore, budget: Budget, workspace: Workspace
    ) -> None:
        for name in learnt(self, but=("schema_",)):
            delattr(self, name)  # of an earlier fit: a run keeps what it paid for itself
        queries = self.queries(private.schema, budget)
        self.build(private.schema)
        gate = Gate(
            private,
            queries,
            store.charges,
            lambda label: workspace.log({"event": "release", "label": label}),
        )
        try:
            self._fit(gate, workspace)
        finally:
            gate.close()

    def _drawn(self, n: int, random: torch.Generator) -> tuple[Tensor, Tensor | None]:
        labels = apportion(self.shares_, n, random)
        made = []
        with torch.no_grad():
            for some in labels.split(self.AT_ONCE):
                records = self._sample(some, random)
                if self.schema_.kind == "images" and records.is_floating_point():
                    records = records.clamp_(0, 1).mul_(255).round_().to(torch.uint8)
                made.append(records)
        return torch.cat(made), labels if self.schema_.labelled else None

    def _product(self) -> bytes:
        return saved(learnt(self, but=self._KEPT_APART))

    def _take_back(self, content: bytes) -> None:
        self.build(self.schema_)
        found = restored(content, self)
        vars(self).update(self._earlier(tensors_of(content)) if found is None else found)

    def _state(self) -> dict[str, Tensor]:
        raise AssertionError("what is learnt is saved by name")

    def _restore(self, state: dict[str, Tensor]) -> None:
        raise AssertionError("what is learnt is restored by name")


def png_of(picture: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format="PNG")
    return stream.getvalue()


load = PrivateMethod.load


class _NotAtHand(Source):
    """In place of the rows when a saved release is used again: whoever asks for a row is told why there is none."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def blocks(self, size: int) -> Iterator[Rows]:
        raise BadInput(
            "Training again from a saved release reads no private row, and the saved one lacks what these settings need; "
            "fit on the data instead."
        )

    def take(self, indices: Array) -> Rows:
        return next(self.blocks(1))


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
