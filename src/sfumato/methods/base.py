"""What every method is: queries, a fit that asks them, and what comes of it: samples, or for a classifier predictions.

    def queries(self, schema, budget)   the promise: every noisy sum that `_fit` will ask for, in order; touches no data
    def build(self, schema)             skeletons of public facts that samples need: networks, maps
    def _fit(self, data, run)           the paper: data.sum(label, rows), data.steps(label), training
    def _sample(self, labels, random)   a record for each label

Written once, here: calibrate the queries to the budget, put the rows behind the wall, let the method work, compare what the
ledger paid with what was promised; save, load, refit, sample. A method sees a `Gate`, never the rows.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import io
import logging
import secrets
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, final

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from torch import Tensor, nn

from sfumato import notebook, published
from sfumato._version import __version__
from sfumato.data import Dataset, Schema, as_dataset
from sfumato.data.adapters import FACTS, READING
from sfumato.data.inspection import refuse_empty_folders, refuse_implausible
from sfumato.data.pictures import sample_grid
from sfumato.data.sources import Array, Rows, Source
from sfumato.data.tables import whole_numbers
from sfumato.data.units import RECORDS, Unit
from sfumato.engines import Engine, LocalEngine, engine_of
from sfumato.errors import BadInput, CorruptArtifact, PlanMismatch, RunConflict, SfumatoError
from sfumato.methods.counts import apportion, class_codes
from sfumato.methods.estimator import Estimator, refuse_search
from sfumato.methods.registry import MethodInfo, get_method, known
from sfumato.methods.run import GENERATOR, SAMPLES, SavedRun, claim, export
from sfumato.methods.saved import learnt, part, restored, saved
from sfumato.methods.selection import check_keep, most_likely
from sfumato.methods.settings import (
    LARGEST_SEED,
    Configured,
    check_number,
    check_seed,
    setting,
    shortened,
)
from sfumato.methods.workspace import ReadingProgress
from sfumato.methods.workspace import Workspace as Workspace
from sfumato.privacy import (
    Budget,
    DataSetLedger,
    Gate,
    Ledger,
    Neighbours,
    Plan,
    PrivacyStatement,
    PrivateData,
    Query,
    Reservation,
    RunStore,
    epsilon_of,
    refuse_overlap,
    refuse_trained_on,
)
from sfumato.privacy.arithmetic import ordinary_torch
from sfumato.privacy.query import calibrated, claimed, plan
from sfumato.privacy.store import FORMAT
from sfumato.privacy.units import size_of
from sfumato.progress import Progress, progress_of
from sfumato.public.codec import codec_from_state
from sfumato.public.loading import load_public

# Of public facts only: what config, statement and log of a run may hold.
_LOG = logging.getLogger(__name__)


class Learnt:
    """The learnt names that methods share; apart, since what a class with settings annotates is taken for a setting."""

    statement_: PrivacyStatement
    schema_: Schema
    log_: list[dict[str, Any]]
    shares_: Tensor  # (classes,): of methods that make records
    generator_: nn.Module
    loss_: float  # of methods that match releases


_KEPT_APART = ("statement_", "schema_", "log_")


class Method(Learnt, Estimator, Configured, ABC):
    """Base of all methods. scikit-learn's contract: settings in the constructor, `fit` returns self, learnt names end in _.

    **Guarantee**: after `fit(data, budget)`, everything reachable from the object, and every sample or prediction's weights, is
    (ε, δ)-differentially private as `statement_` says. Settings marked as unsound (`Query.noise`) have no guarantee worth the
    name, and their statement says that.

    What is learnt is saved and restored by its name (`methods.saved`): tensors, modules that `build` made, plain values, codecs,
    records. A method that makes records learns `shares_`, the classes' shares.
    """

    info: ClassVar[MethodInfo]
    AT_ONCE: ClassVar[int] = 1000  # records that are drawn at a time
    # Settings of earlier versions, and which value is built in now; `...` for one that came after the releases.
    FORMER: ClassVar[Mapping[str, Any]] = {}
    # Whether queries follow the number of records, `schema.records`, where that is public; else it is never asked for.
    FOLLOWS_SIZE: ClassVar[bool] = False
    TINY: ClassVar[Mapping[str, Any]] = {}  # settings with which a fit takes a moment, for tests

    seed: int = setting(
        "Public seed of all that is drawn but privacy noise, which never has one.",
        default=0,
        low=0,
        high=LARGEST_SEED,
    )

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "info" in vars(cls):
            known(cls)

    @classmethod
    def preset(
        cls,
        name: str = "paper",
        *,
        data: str,
        epsilon: float | None = None,
        n: int | None = None,
        **changed: Any,
    ) -> Self:
        """The method as its paper has it for a data set (`methods.presets`); `changed` settings win.

        Warns of every setting of the paper's that is missing here, and of what the preset "fast" changes. Some depend on ε.
        """
        from sfumato.methods.presets import find_preset

        found = find_preset(cls, name, data=data, epsilon=epsilon, n=n, given=changed)
        if remarks := found.remarks():
            warnings.warn(" ".join(remarks), stacklevel=2)
        return cls(**{**found.values, **changed})

    # -- what a method writes ------------------------------------------------------------------------------------

    @abstractmethod
    def queries(self, schema: Schema, budget: Budget) -> Sequence[Query]:
        """The promise: every noisy sum that `_fit` will ask for, in order. Touches no data."""

    @abstractmethod
    def _fit(self, data: Gate, run: Workspace) -> None:
        """The work: the promised sums from `data`, then anything at all with them."""

    def build(self, schema: Schema) -> None:
        """Make what samples need of public facts alone; weights are learnt, or read back from a run."""

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        """A record for each label: float images in [0, 1] or bytes, or rows of a table. A classifier has none."""
        raise AssertionError(f"{self.info.name} makes records and has no _sample")

    def _finished(self, records: Tensor, random: torch.Generator) -> Tensor:
        """What is done to sampled records last of all: by most methods nothing."""
        return records

    def _check(self, schema: Schema) -> None:
        """Refuse settings that do not go together, or not with this schema; each by itself was checked."""

    def _check_machine(self, engine: Engine) -> None:
        """Refuse settings that this machine, or the engine, cannot run: before anything is paid."""

    def _uses_public(self) -> bool:
        """Whether these settings make any use of public data."""
        return self.info.public != "unused"

    def _needs_public(self) -> bool:
        """Whether these settings cannot do without, though the method can."""
        return False

    def _picture(self) -> bytes | None:
        """A PNG of what was learnt, if there is one."""
        if self.schema_.kind != "images":
            return None
        rows = max(1, self.schema_.n_classes)
        return png_of(sample_grid(self.sample(rows * 40, seed=0), per_class=10))

    def _earlier(self, state: dict[str, Tensor]) -> dict[str, Any]:
        """What a run of a version before 0.3 kept, by today's names; `build` was called."""
        found: dict[str, Any] = {"shares_": state["shares"]}
        if weights := part(state, "network."):
            self.generator_.load_state_dict(weights)
            found["generator_"] = self.generator_.eval()
        if codec := part(state, "codec."):
            found["codec_"] = codec_from_state(codec)
        return found

    # -- the promise ---------------------------------------------------------------------------------------------

    @final
    def check(self, schema: Schema) -> None:
        """Raise unless the settings make sense and the method is for data of this kind."""
        self._set(self.get_params())  # attributes may have been written since
        if schema.kind not in self.info.kinds:
            raise BadInput(
                f"{self.info.name} makes {' and '.join(self.info.kinds)} and this data set is "
                f"{'a table' if schema.kind == 'table' else 'of images'}; see `sfumato methods` for one that fits."
            )
        self._check(schema)

    @final
    def promise(
        self, schema: Schema, budget: Budget, unit: Unit = RECORDS, *, size: int | None = None
    ) -> PrivacyStatement:
        """The statement that a fit would end with. Touches no data.

        `size` is the number of records, or units, for methods whose queries follow it; where the relation makes it private it is
        not used.
        """
        if not isinstance(schema, Schema) or not isinstance(budget, Budget):
            raise BadInput(
                f"A promise is made of a Schema and a Budget, not of {type(schema).__name__} and {type(budget).__name__}; pass "
                "data.schema and sfumato.Budget(epsilon=…, delta=…)."
            )
        return self._promised(self._sized(schema, budget, size), budget, unit)[1]

    def _sized(self, schema: Schema, budget: Budget, size: int | None) -> Schema:
        """The schema with the number of records, if that is public and the queries follow it."""
        told = self.FOLLOWS_SIZE and budget.neighbours.size_is_public
        return replace(schema, records=size if told else None)

    def _promised(
        self, schema: Schema, budget: Budget, unit: Unit = RECORDS
    ) -> tuple[float, PrivacyStatement]:
        """The noise that the budget asks for, in units of one sum's bound, and the statement."""
        self.check(schema)
        queries = self.queries(schema, budget)
        if not budget.private and any(query.noise is not None for query in queries):
            raise BadInput(
                "Settings that leave something out of a paper's account have no meaning at epsilon = inf, where nothing is "
                "counted; leave them out, or give a finite epsilon."
            )
        noise = calibrated(queries, budget)
        charges = plan(queries, noise)
        counted = claimed(charges, queries)
        ledger = _ledger(charges, budget, sound=counted is None and budget.private)
        for charge in charges:
            ledger.charge(charge)
        return noise, replace(PrivacyStatement.of(ledger, unit), budget=budget, claimed=counted)

    def check_public(self, schema: Schema, public: Dataset | None) -> None:
        """Raise unless `public` is what this method can use beside private data of `schema`."""
        name, use = self.info.name, self.info.public
        if public is None:
            if use == "required" or self._needs_public():
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

    # -- fit and refit -------------------------------------------------------------------------------------------

    @final
    @ordinary_torch()
    def fit(
        self,
        data: Any,
        y: Any = None,
        budget: Budget | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        neighbours: Neighbours | str | None = None,
        public: Dataset | str | Path | None = None,
        out: Path | str | None = None,
        resume: bool = False,
        allow_empty: bool = False,
        ledger: Path | str | None = None,
        engine: Engine | str | None = None,
        progress: Progress | None = None,
        stand_in: bool = False,
        **facts: Any,
    ) -> Self:
        """Learn from `data` within a budget: a `Budget`, which may stand in the place of `y`, or `epsilon` and `delta`.

        `data` is a `Dataset`, or whatever `sfumato.as_dataset` makes one of, with its labels `y` and the public `facts` that
        it takes (`schema`, `classes`, `value_range`, `image_size`, `unit` …).

        Before anything is paid or written, `data` is looked at: a set that is plainly not what its schema states is refused
        (`refuse_implausible`), and so is one with an empty class unless `allow_empty`.
        `public` is a data set that may be read freely, for the methods that use one. With `out`, the run folder is written
        as the work goes on, and `resume=True` goes on with an interrupted one: a release that was saved is not made again,
        so nothing is spent twice.
        `ledger` is the folder of the data set's ledger (`privacy.dataset_ledger`): before a row is read, even to count, the plan
        is reserved in it, together with all earlier runs on the same data, or refused. (A method whose plan follows the number of
        records counts them before, where that number is public.)
        `engine` says where sums over records run: "local", "ray" (a cluster on this machine), "ray:ADDRESS", or an object of
        `sfumato.engines`; every one gives the same totals.
        A search of scikit-learn's (`GridSearchCV`, `cross_val_score`) is refused, since it fits many times and its choice is a
        release that nobody pays for; `stand_in=True` says that these records are public ones, in place of the private.
        """
        if stand_in is not True:
            refuse_search()
        self._check_call(facts, allow_empty=allow_empty, resume=resume, stand_in=stand_in)
        if resume and out is None:
            raise BadInput("resume=True goes on with a run folder; pass it as out=.")
        progress = progress_of(progress)
        if isinstance(y, Budget) and budget is None:
            y, budget = None, y
        budget = budget_of(budget, epsilon, delta, neighbours)
        data = as_dataset(data, y, **facts)
        schema = data.schema
        self.check(schema)
        if public is not None and not isinstance(public, Dataset):
            public = _opened(public, schema, progress)
        self.check_public(schema, public)
        if not allow_empty:
            refuse_empty_folders(data)
        if public is not None and (
            public is data or (data.published_as and public.published_as == data.published_as)
        ):
            raise BadInput(
                f"{data.name} is given as private and as public data at once, which voids the guarantee; give other public data."
            )
        with _running(engine) as used:
            self._check_machine(used)
            return self._learn(
                data,
                budget,
                public,
                None,
                out,
                resume,
                progress,
                allow_empty,
                ledger,
                engine=used,
            )

    def _check_call(self, facts: Iterable[str], **flags: Any) -> None:
        """Raise unless the arguments of `fit` are some that it has, and those that switch something on or off do."""
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise BadInput(f"`{name}` is {shortened(flag)}; pass True or False.")
        settings = [s.name for s in self.settings()]
        for name in facts:
            if name in settings:
                raise TypeError(
                    f"{name!r} is a setting of {self.info.name}; pass it to {type(self).__name__}({name}=…), or to sfumato.fit."
                )
            if name not in (*FACTS, *READING):
                near = difflib.get_close_matches(name, (*settings, *FACTS, *READING), n=1)
                hint = (
                    f"did you mean {near[0]}?" if near else f"settings are {', '.join(settings)}."
                )
                raise TypeError(
                    f"{self.info.name} has no setting {name!r}, and fit no such argument; {hint}"
                )

    def _refuse_private(self, data: Dataset, public: Dataset | None) -> None:
        """Raise if private records stand in the public data, or in what a file named in the settings was made of."""
        if public is not None:
            refuse_overlap(data, public)
        for value in self.get_params().values():
            if isinstance(value, str):
                refuse_trained_on(data, value)

    def auto_of(self, name: str, schema: Schema) -> Any:
        """The number that a setting left at auto stands for with such data, where releases may have been made with it."""
        return None

    @final
    @ordinary_torch()
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

        The settings that shaped the releases must be those of the run; those marked `free` may differ.
        """
        saved = SavedRun(run)
        config = saved.config
        if config["method"] != self.info.name:
            raise BadInput(
                f"{saved.path} is a run of {config['method']}, not of {self.info.name}; a release serves its own method."
            )
        schema, budget = Schema.from_json(config["schema"]), saved.budget
        sized = self._sized(schema, budget, config["data"]["size"])
        if any(query.steps is not None for query in self.queries(sized, budget)):
            raise BadInput(
                f"{self.info.name} reads the private data while it trains, so it cannot train again from a saved release."
            )
        defaults = {s.name: s.default for s in self.settings()}
        ours, theirs = self.get_params(), {**defaults, **config["settings"]}
        for name in set(theirs) - set(defaults):
            former = self.FORMER.get(name)
            if former is not ... and theirs[name] not in (None, former):
                raise BadInput(
                    f"The release in {saved.path} was made with {name}={theirs[name]}, a setting that this version no longer "
                    "has; train again with the version that made it."
                )
        for name in (s.name for s in self.settings() if not s.free):
            asked = self.auto_of(name, schema) if ours[name] is None else ours[name]
            if theirs[name] not in (ours[name], asked):
                raise BadInput(
                    f"The release in {saved.path} was made with {name}={theirs[name]}, and this asks for {ours[name]}; "
                    "that setting shapes the release, so leave it as it was."
                )
        self.check_public(schema, public)
        self._check_machine(LocalEngine())
        origin = config["data"]
        data = Dataset(_NotAtHand(origin["size"] or 1), schema, origin["name"])
        try:
            return self._learn(data, budget, public, saved, out, resume, progress, unit=saved.unit)
        finally:
            saved.close()

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
        ledger: Path | str | None = None,
        unit: Unit | None = None,
        engine: Engine | None = None,
    ) -> Self:
        """`fit`, or with an `earlier` run, whose releases are taken over, `refit`."""
        progress = progress_of(progress)
        schema = data.schema
        unit = unit or data.unit
        # Only what is public: the folder is claimed before a row is read, even to count.
        known = self._config(schema, budget, unit, public.name if public else None)
        store = RunStore() if out is None else claim(out, known, resume=resume)
        book = reservation = None
        try:
            book = None if ledger is None else DataSetLedger(ledger)
            if store.finished:
                if book is not None:
                    book.settle(store)
                store.tidy()
                export(store, Path(str(out)))
                with_run = SavedRun(str(out))
                self._load_from(with_run)
                with_run.close()
                return self
            # A plan that follows the number of records is made when that is known; it is counted only where it is public.
            first = self.FOLLOWS_SIZE and budget.neighbours.size_is_public
            size = self._public_size(data, budget, earlier) if first else None
            schema = self._sized(schema, budget, size)
            if earlier is None:
                reservation = self._reserve(book, store, schema, budget, unit)
            if not first:
                size = self._public_size(data, budget, earlier)
            if earlier is None:
                # With units the rows are divided inside the wall only, where their shares go with them.
                total = engine.total if engine is not None and data.units is None else None
                refuse_implausible(data, allow_empty=allow_empty, total=total)
                self._refuse_private(data, public)
            if reservation is not None:
                reservation.recognise(data)
            known["data"] = {"name": data.name, "size": size}
            if data.labels_from is not None:
                known["data"]["labels"] = data.labels_from
            if store.begun and store.record("config").get("data") != known["data"]:
                raise RunConflict(
                    f"{out} was begun with other settings (data); resume with the same ones or choose another folder."
                )
            if reservation is not None:
                reservation.begin()
            if not store.begun:
                self._begin(store, schema, budget, earlier, known, unit)
            if earlier is not None:
                store.adopt(earlier.answers())
            self._train(data, schema, store, budget, public, progress, unit, engine)
            if out is not None:
                self._seal(store)
                export(store, Path(out))
                self._store = store.snapshot()
            else:
                self._store = store
            if reservation is not None:
                reservation.finish()
        except BaseException:
            if reservation is not None:
                with contextlib.suppress(
                    SfumatoError
                ):  # it stands then; why the fit failed is told
                    reservation.withdraw()
            raise
        finally:
            if reservation is not None:
                reservation.close()
            if book is not None:
                book.close()
            if store.folder is not None:
                store.close(abandon=True)
        return self

    def _reserve(
        self,
        book: DataSetLedger | None,
        store: RunStore,
        schema: Schema,
        budget: Budget,
        unit: Unit,
    ) -> Reservation | None:
        """The plan's charges in the data set's ledger; reads no row."""
        if book is None:
            if store.entry is not None:
                raise RunConflict(
                    f"The run in {store.folder} has a reservation in a data set's ledger; resume it with that (--ledger)."
                )
            return None
        book.check_kind(budget, unit)
        promised = self._promised(schema, budget)[1]
        if not promised.sound:
            raise BadInput(
                "These settings of a paper do not keep the budget they are given, so no ledger can hold them to a limit; leave "
                "out the setting that makes them unsound, or the ledger."
            )

        def plan_at(other: Budget) -> Plan:
            return self._promised(schema, other)[1].charges

        return book.reserve(
            store,
            promised.charges,
            budget,
            method=self.info.name,
            plan_at=plan_at,
            unit=unit,
        )

    def _public_size(self, data: Dataset, budget: Budget, earlier: SavedRun | None) -> int | None:
        """The number of units where the relation makes it public; a data set without any record is refused."""
        if earlier is not None:
            return earlier.config["data"]["size"]
        if len(data) == 0:
            raise BadInput("The data set holds no record; check the path and the split.")
        # Read even where it is private: a record without a unit stops the fit now, while nothing is paid.
        size = size_of(data)
        return size if budget.neighbours.size_is_public else None

    def _begin(
        self,
        store: RunStore,
        schema: Schema,
        budget: Budget,
        earlier: SavedRun | None,
        config: dict[str, Any],
        unit: Unit,
    ) -> None:
        """Write down the promise: of this plan, or, with an earlier run, that run's own, which was paid for."""
        published.check("config", config)
        if earlier is None:
            noise, promised = self._promised(schema, budget, unit)
            told, charges = promised.to_json(), promised.charges
        else:
            noise = earlier.noise_multiplier or self._promised(schema, budget)[0]
            told, charges = earlier.statement_json, earlier.statement.charges
        published.check("statement", told)
        store.begin(config, told, charges, noise)

    def _train(
        self,
        data: Dataset,
        schema: Schema,
        store: RunStore,
        budget: Budget,
        public: Dataset | None,
        progress: Progress,
        unit: Unit,
        engine: Engine | None,
    ) -> None:
        """Fit within the promise that the store holds, and compare what was spent with it."""
        for name in learnt(self):
            delattr(self, name)  # of an earlier fit: a run keeps what it paid for itself
        store.rewind_log(store.checkpoint().step)
        promised, queries = store.charges, self.queries(schema, budget)
        _LOG.info(
            "fitting %r on %s within epsilon=%g, delta=%g, %s, per %s; releases: %s",
            *(self, data.name, budget.epsilon, budget.delta, budget.neighbours.value, unit.name),
            ", ".join(charge.label for charge in promised),
        )
        counted = claimed(promised, queries)
        ledger = _ledger(promised, budget, sound=counted is None and budget.private)
        self.schema_ = data.schema
        self.build(data.schema)
        with ReadingProgress(progress) as reading:
            private = PrivateData(data, ledger, engine=engine, store=store, on_fraction=reading)
            run = Workspace(store, progress, public, data.published_as)
            gate = Gate(private, queries, promised, budget, run.released)
            try:
                self._fit(gate, run)
            finally:
                gate.close()
        if ledger.charges != promised:
            raise PlanMismatch(
                f"{self.info.name} spent other than it promised; this is a bug in the method, and its result was discarded."
            )
        self.statement_ = PrivacyStatement(
            budget=budget, epsilon=store.epsilon, charges=promised, claimed=counted, unit=unit
        )
        self.log_ = store.read_log()
        _LOG.info("fitted %s: epsilon=%g was spent", self.info.name, store.epsilon)

    def _seal(self, store: RunStore) -> None:
        parts = {GENERATOR: saved(learnt(self, but=_KEPT_APART))}
        picture = self._picture()
        if picture is not None:
            parts[SAMPLES] = picture
        store.finish(parts)

    # -- sample --------------------------------------------------------------------------------------------------

    @final
    @ordinary_torch()
    def sample(
        self,
        n: int | None = None,
        *,
        labels: Any = None,
        classes: Sequence[str | int] | str | int | None = None,
        seed: int | None = None,
        keep: float = 1.0,
    ) -> Dataset:
        """`n` synthetic records. Free: any number of samples costs no privacy.

        Each call draws anew unless `seed` is given; the name of what comes tells the seed that it was drawn with.
        Classes come in their released shares, among all of them or those that `classes` names (names or codes); `labels`, one
        for each record, asks for very ones in place of `n`.
        With `keep` < 1, n ÷ `keep` labelled images are drawn and the n that look most like their class are kept
        (`sfumato.methods.selection`): fewer slips of the generator, and less of what is rare.
        """
        if self.info.makes != "records":
            raise BadInput(
                f"{self.info.name} is a classifier and makes no samples; use `sfumato explain RUN` or, in Python, "
                "sfumato.LocallyLinearMaps.load(RUN), or fit a method that `sfumato methods` lists as making records."
            )
        self._check_fitted()
        wanted = None if labels is None else class_codes(labels, self.schema_, "labels")
        if wanted is not None:
            if classes is not None or n not in (None, len(wanted)) or keep != 1:
                raise BadInput(
                    "`labels` says which records to draw, one for each; leave n, `classes` and `keep` out beside it."
                )
            n = len(wanted)
        check_number(n, self.schema_)
        n = int(n or 0)
        seed = secrets.randbits(32) if seed is None else seed
        check_seed(seed)
        check_keep(keep)
        shares = self._shares(classes)
        random = torch.Generator().manual_seed(int(seed))
        codes: Tensor | None
        if wanted is not None:
            values, codes = self._drawn(wanted, random)
        elif keep == 1:
            values, codes = self._drawn(apportion(shares, n, random), random)
        else:
            values, codes = most_likely(partial(self._labelled, shares), n, keep, random)
        made = Dataset.from_values(
            values.numpy(),
            None if codes is None else codes.numpy(),
            schema=self.schema_,
            name=f"{self.info.name} samples (seed {seed}{'' if keep == 1 else f', keep {keep:g}'})"
            + ("" if self.statement_.private else ", NOT PRIVATE"),
        )
        made.synthetic = True
        _LOG.debug("drew %d %s", n, made.name)
        return made

    def _shares(self, classes: Sequence[str | int] | str | int | None) -> Tensor:
        """The classes' shares; of some classes, among themselves."""
        if classes is None:
            return self.shares_
        chosen = class_codes([classes] if isinstance(classes, str | int) else classes, self.schema_)
        shares = torch.zeros_like(self.shares_)
        shares[chosen] = self.shares_[chosen]
        if not bool(shares.any()):  # of classes too small to be told from noise
            shares[chosen] = 1.0
        return shares

    def _drawn(self, labels: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor | None]:
        made = []
        with torch.no_grad():
            for some in labels.split(self.AT_ONCE):
                records = self._finished(self._sample(some, random), random)
                made.append(as_bytes(records) if self.schema_.kind == "images" else records)
        if self.schema_.kind == "table":
            made = [torch.from_numpy(whole_numbers(part.numpy(), self.schema_)) for part in made]
        return torch.cat(made), labels if self.schema_.labelled else None

    def _labelled(
        self, shares: Tensor, n: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        values, labels = self._drawn(apportion(shares, n, generator), generator)
        if labels is None or self.schema_.kind != "images":
            raise BadInput("Only labelled images can be chosen from; leave keep at 1 here.")
        return values, labels

    def _repr_html_(self) -> str:
        """In a notebook: the settings; when fitted, the statement and some samples, all of it public by the guarantee."""
        told = [notebook.table(("Setting", "Value"), list(self.get_params().items()))]
        if not hasattr(self, "statement_"):
            return notebook.card(f"{type(self).__name__}, not fitted", *told)
        if self.info.makes == "records":
            rows = max(1, self.schema_.n_classes)
            told.insert(0, self.sample(rows * 8, seed=0)._repr_html_())
        return notebook.card(f"{type(self).__name__}, fitted", self.statement_._repr_html_(), *told)

    # -- save and load -------------------------------------------------------------------------------------------

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
    @ordinary_torch()
    def load(path: Path | str) -> Method:
        """The fitted method of a run folder, as its store tells it."""
        run = SavedRun(path)
        try:
            config = run.config
            try:
                cls = get_method(config["method"])
                still = {s.name for s in cls.settings()}
                method = cls(**{k: v for k, v in config["settings"].items() if k in still})
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
        self.log_ = run.log
        self._store = run.snapshot()

    def _take_back(self, content: bytes) -> None:
        """What was saved as learnt; `schema_` is set already."""
        self.build(self.schema_)
        found = restored(content, self)
        vars(self).update(self._earlier(tensors_of(content)) if found is None else found)

    def _config(
        self, schema: Schema, budget: Budget, unit: Unit, public: str | None
    ) -> dict[str, Any]:
        """What a run is begun with, but for the data."""
        return {
            "format": FORMAT,
            "sfumato": __version__,
            "method": self.info.name,
            "settings": self.get_params(),
            "unit": None if unit.single else unit.to_json(),
            "public": public,
            "schema": schema.to_json(),
            "budget": budget.to_json(),
            **({} if self._sound(schema, budget) else {"sound": False}),
        }

    def _check_fitted(self) -> None:
        if not hasattr(self, "statement_"):
            raise BadInput(
                f"This {type(self).__name__} has not been fitted; call fit(data, budget) first."
            )

    def _sound(self, schema: Schema, budget: Budget) -> bool:
        return budget.private and all(query.noise is None for query in self.queries(schema, budget))

    @classmethod
    def _called(cls) -> str:
        return cls.info.name if hasattr(cls, "info") else cls.__name__


load = load_run = Method.load


def fit(
    method: str | Method | type[Method],
    data: Any,
    y: Any = None,
    budget: Budget | None = None,
    **given: Any,
) -> Method:
    """A method by its name, fitted: `sfumato.fit("mixture", X, y, classes=10, epsilon=1, delta=1e-5, seed=3)`.

    Of the keyword arguments those that are settings of the method (`sfumato methods NAME`) go to it, all others to `Method.fit`.
    """
    if isinstance(method, Method):
        return method.fit(data, y, budget, **given)
    if isinstance(method, type) and issubclass(method, Method) and not inspect.isabstract(method):
        cls = method
    elif isinstance(method, str):
        cls = get_method(method)
    else:
        raise BadInput(
            f"The method is {shortened(method)}; pass its name (`sfumato methods` lists them), a class or an object."
        )
    names = {s.name for s in cls.settings()}
    settings = {name: value for name, value in given.items() if name in names}
    rest = {name: value for name, value in given.items() if name not in names}
    return cls(**settings).fit(data, y, budget, **rest)


def budget_of(
    budget: Budget | None,
    epsilon: float | None,
    delta: float | None,
    neighbours: Neighbours | str | None,
) -> Budget:
    """The budget that a caller gave in one of two ways."""
    if budget is None:
        if epsilon is None or delta is None:
            raise BadInput(
                "No budget was given; pass epsilon= and delta= (there is no default, because no default is right), or a Budget."
            )
        relation = Neighbours.parse(neighbours or Neighbours.ZERO_OUT)
        return Budget(epsilon=epsilon, delta=delta, neighbours=relation)
    if not isinstance(budget, Budget):
        raise BadInput(
            f"The budget is {shortened(budget)}; pass epsilon= and delta=, or a sfumato.Budget."
        )
    if any(given is not None for given in (epsilon, delta, neighbours)):
        raise BadInput(
            "A Budget was given and epsilon, delta or neighbours beside it; pass one of the two."
        )
    return budget


def _opened(public: Any, like: Schema, progress: Progress | None) -> Dataset:
    if isinstance(public, (str, Path)):
        return load_public(public, like, progress)
    raise BadInput(
        f"Public data are given as {type(public).__name__}; pass a name, a path, or a Dataset "
        "(sfumato.as_dataset makes one of arrays)."
    )


@contextlib.contextmanager
def _running(engine: Engine | str | None) -> Iterator[Engine]:
    """The engine; one that was made for this fit ends with it."""
    used = engine_of(engine)
    try:
        yield used
    finally:
        if used is not engine:
            used.close()


def _ledger(charges: Plan, budget: Budget, *, sound: bool) -> Ledger:
    if sound:
        return Ledger(budget)
    # What is not sound costs more than was asked for: the ledger takes the plan for what it costs, and no more than it.
    cost = epsilon_of(charges, budget.delta, budget.neighbours)
    asked = budget.epsilon if budget.private else 0.0
    return Ledger(replace(budget, epsilon=max(cost, asked), private=True))


def as_bytes(images: Tensor) -> Tensor:
    """Floats in [0, 1], or a little beside, as samples have them."""
    if not images.is_floating_point():
        return images
    return images.clamp(0, 1).mul_(255).round_().to(torch.uint8)


def png_of(picture: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format="PNG")
    return stream.getvalue()


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
