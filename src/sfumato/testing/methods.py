"""What every method must do, whoever wrote it: `check_method(MyMethod)` in one test of one's own.

Each check is a function of a `Case` (a method, small settings, small data), so that a suite may run them one by one (`CHECKS`).
Checks that only look share one fit. The records are made up: nothing private.
"""

from __future__ import annotations

import json
import math
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone

from sfumato.data import Column, Dataset, Schema
from sfumato.data.sources import ArraySource
from sfumato.errors import BadInput, BudgetExceeded, PlanMismatch, RunConflict, SfumatoError
from sfumato.methods import Method, SavedRun
from sfumato.methods.settings import Setting
from sfumato.privacy import (
    Budget,
    Neighbours,
    PrivateData,
    Query,
    RecordMap,
    RunStore,
    Step,
    enforced_bound,
    epsilon_of,
)
from sfumato.privacy.bounding import summand_of
from sfumato.testing.sums import BOUNDARIES, adversarial_records, check_additive

BUDGET = Budget(epsilon=2.0, delta=1e-4)
# For methods whose queries follow the number of records: that is private here, so they ask for all that they would of many.
OF_MANY = Budget(epsilon=50.0, delta=1e-5, neighbours=Neighbours.ADD_REMOVE)
SHAPE = (1, 8, 8)
TABLE = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", low=0, high=90),
        Column(name="gain", kind="numerical", low=0, high=5000, missing=True),
        Column(name="work", kind="categorical", categories=("a", "b", "c"), missing=True),
        Column(name="sex", kind="categorical", categories=("f", "m")),
        Column(name="level", kind="ordinal", categories=("low", "mid", "high", "top")),
    ),
    label="class",
    classes=("x", "y", "z"),
)


def small_images(
    n: int = 60, *, labelled: bool = True, shape: tuple[int, ...] = SHAPE, seed: int = 1
) -> Dataset:
    """Random pixels; class c of three has every third record."""
    pixels = np.random.default_rng(seed).integers(0, 256, size=(n, *shape), dtype=np.uint8)
    labels = np.arange(n) % 3 if labelled else None
    return Dataset.from_arrays(pixels, labels, classes=3 if labelled else None)


def small_table(n: int = 60, *, labelled: bool = True) -> Dataset:
    """Numbers, categories, an order, and missing values."""
    schema = TABLE if labelled else Schema(kind="table", columns=TABLE.columns)
    labels = np.arange(n) % 3 if labelled else None
    return Dataset.from_values(_table_rows(n), labels, schema=schema)


def _table_rows(n: int) -> np.ndarray:
    rng = np.random.default_rng(2)
    gain = np.where(rng.random(n) < 0.2, np.nan, rng.exponential(500, n))
    work = np.where(rng.random(n) < 0.2, np.nan, rng.integers(0, 3, n))
    sex, level = rng.integers(0, 2, n), rng.integers(0, 4, n)
    return np.stack([rng.uniform(0, 90, n), gain, work, sex, level], 1).astype(np.float32)


@dataclass
class Case:
    """A method to check: with which settings, and on images or a table."""

    cls: type[Method]
    settings: Mapping[str, Any] = field(default_factory=dict)
    table: bool = False

    def method(self, **more: Any) -> Method:
        return self.cls(**{**self.settings, **more})

    def data(self, n: int = 60, **how: Any) -> Dataset:
        return small_table(n, **how) if self.table else small_images(n, **how)

    def fit(self, data: Dataset | None = None, budget: Budget = BUDGET, **how: Any) -> Method:
        return self.fitted(self.method(), data or self.data(), budget, **how)

    def fitted(self, method: Method, data: Dataset, budget: Budget = BUDGET, **how: Any) -> Method:
        if method.info.public == "required":
            how.setdefault("public", small_images(50, shape=data.schema.shape, seed=2))
        return method.fit(data, budget, **how)

    @property
    def samples(self) -> bool:
        return self.cls.info.makes == "records"

    @cached_property
    def run(self) -> tuple[Method, Path]:
        """One fit, and its folder, for all checks that leave both as they are."""
        self._place = tempfile.TemporaryDirectory(prefix="sfumato-check-")
        folder = Path(self._place.name) / "run"
        return self.fit(out=folder), folder


Check = Callable[[Case], None]


def check_method(
    cls: type[Method], tiny: Mapping[str, Any] | None = None, *, table: bool | None = None
) -> None:
    """Run every check on a method; `tiny` are settings with which a fit takes a moment (else the class's own `TINY`)."""
    for case in cases_of(cls, tiny):
        if table is None or case.table == table:
            for check in CHECKS.values():
                check(case)


def cases_of(cls: type[Method], tiny: Mapping[str, Any] | None = None) -> list[Case]:
    """A case for each kind of data that the method is for."""
    settings = cls.TINY if tiny is None else tiny
    return [Case(cls, settings, table=kind == "table") for kind in cls.info.kinds]


# -- settings ------------------------------------------------------------------------------------------------------------------


def wrong_values(s: Setting) -> Iterator[Any]:
    """Values that the declaration of a setting rules out: every one of them must be refused in a sentence."""
    if str in s.types:
        yield from (7, *(("no such choice",) if s.choices else ()))
    else:
        yield "many"
    if types.NoneType not in s.types:
        yield None
    if bool not in s.types:
        yield True
    if float in s.types or int in s.types:
        yield from (math.nan, math.inf, 10**400)
        for end, inside in ((s.low, False), (s.above, True)):
            if math.isfinite(end):
                yield end if inside else end - 1
        for end, inside in ((s.high, False), (s.below, True)):
            if math.isfinite(end):
                yield end if inside else end + 1
    if int in s.types and float not in s.types:
        yield 1.5
    if s.multiple > 1:
        yield s.multiple + 1


def settings_are_explained_and_checked(case: Case) -> None:
    cls, name = case.cls, case.cls.info.name
    for s in cls.settings():
        _claim(s.help.endswith("."), f"{name}'s {s.name} is not explained by a sentence.")
        _claim(s.allows(s.default), f"The default of {name}'s {s.name} is refused.")
        for wrong in wrong_values(s):
            said = _refusal(partial(case.method, **{s.name: wrong}))
            _claim(
                s.name in said, f"{name} takes {s.name}={wrong!r}, or refuses it otherwise: {said}"
            )
    _claim(cls.from_settings({"seed": "7"}).seed == 7, f"{name} does not take seed=7 as text.")
    _claim(
        "has no setting" in _refusal(lambda: cls.from_settings({"sead": "7"})), "No hint at a typo."
    )
    _claim(
        "takes int" in _refusal(lambda: cls.from_settings({"seed": "seven"})), "A word is a seed."
    )


def settings_can_be_cloned_and_changed(case: Case) -> None:
    method = case.method(seed=5)
    _claim(clone(method).get_params() == method.get_params(), "A clone has other settings.")
    _claim(method.set_params(seed=6).seed == 6, "set_params does not set.")
    before = method.get_params()
    _claim(
        "seed" in _refusal(lambda: method.set_params(seed=-1)), "set_params takes a wrong value."
    )
    _claim(method.get_params() == before, "A refused value was set all the same.")


# -- the promise -----------------------------------------------------------------------------------------------------------------


def a_promise_is_made_from_the_schema_alone(case: Case) -> None:
    schema = case.data().schema
    for relation in Neighbours:
        budget = replace(BUDGET, neighbours=relation)
        promised = case.method().promise(schema, budget)
        labels = [c.label for c in promised.charges]
        _claim(len(set(labels)) == len(labels) > 0, "Queries need labels of their own.")
        _claim(promised.epsilon <= budget.epsilon, "More is promised than the budget has.")
        spent = epsilon_of(promised.charges, budget.delta, relation)
        _claim(abs(spent / budget.epsilon - 1) < 2e-3, "The budget is not used up.")


def a_promise_leaves_nothing_behind(case: Case) -> None:
    """What `_fit` needs it is given: a promise that was asked for last, at another budget say, must not shape it."""
    method, schema = case.method(), case.data().schema
    before = dict(vars(method))
    method.check(schema)
    method.queries(schema, BUDGET)
    kept = [name for name, value in vars(method).items() if before.get(name, vars) is not value]
    _claim(
        not kept,
        f"queries keeps {', '.join(kept)} for the fit; data.schema and data.budget say it.",
    )


def a_fit_spends_what_it_promised(case: Case) -> None:
    for relation in Neighbours:
        budget = replace(BUDGET, neighbours=relation)
        data = case.data()
        promised = case.method().promise(data.schema, budget, size=len(data))
        _claim(case.fit(budget=budget).statement_ == promised, "A fit spent other than promised.")


def a_fit_that_strays_from_its_promise_is_caught(case: Case) -> None:
    honest = case.method()

    def more(schema: Schema, budget: Budget) -> list[Query]:
        asked = list(type(honest).queries(honest, schema, budget))
        return [*asked, Query(label="never asked", shape=(1,), share=asked[0].share)]

    honest.queries = more  # type: ignore[method-assign]
    try:
        case.fitted(honest, case.data())
    except (PlanMismatch, BudgetExceeded):
        _claim(not hasattr(honest, "statement_"), "A fit that strayed has a statement.")
        return
    raise AssertionError("A query that was promised and never asked went unnoticed.")


# On both sides of the size of every chunk that records go through.
_COUNTS = tuple(sorted({0, 1, 2, *(size + d for size in BOUNDARIES for d in (-1, 0, 1))}))


def a_neighbour_moves_every_sum_by_its_own_summand(case: Case) -> None:
    """Every map that the method hands to the wall is held against S(A ∪ {x}) − S(A) = S({x}), with records made to break it."""
    schema = case.data().schema
    budget = OF_MANY if case.cls.FOLLOWS_SIZE else BUDGET
    honest_sum, honest_step = PrivateData.noisy_sum, Step.noisy_sum
    seen: set[str] = set()

    def held(phi: RecordMap, label: str) -> None:
        if label in seen:
            return
        seen.add(label)
        summand = summand_of(phi)
        alone = check_additive(summand, adversarial_records(schema), counts=_COUNTS, splits=1)
        lengths = (alone.to(torch.float64) * summand.grid).flatten(1).norm(dim=1)
        _claim(bool((lengths <= enforced_bound(phi)).all()), f"A summand of {label!r} is too long.")

    def noisy_sum(self: PrivateData, phi: RecordMap, *rest: Any, **named: Any) -> Any:
        held(phi, named["label"])
        return honest_sum(self, phi, *rest, **named)

    def step_sum(self: Step, phi: RecordMap) -> Any:
        # The first step, when weights may still be zero, and the last.
        held(phi, self._charge.label)
        if self.index == self._charge.steps - 1:
            held(phi, f"{self._charge.label}, the last step")
        return honest_step(self, phi)

    PrivateData.noisy_sum, Step.noisy_sum = noisy_sum, step_sum  # type: ignore[method-assign]
    try:
        case.fit(budget=budget)
    finally:
        PrivateData.noisy_sum, Step.noisy_sum = honest_sum, honest_step  # type: ignore[method-assign]
    asked = [q for q in case.method().queries(schema, budget) if q.over == "records"]
    _claim(seen >= {q.label for q in asked}, "Some sum was never looked at.")


# -- samples ---------------------------------------------------------------------------------------------------------------------


def samples_look_like_the_schema_and_depend_on_the_seed(case: Case) -> None:
    if not case.samples:
        return
    shapes: list[dict[str, Any]] = [{}] if case.table else [{"shape": SHAPE}, {"shape": (3, 10, 6)}]
    for how in shapes:
        for labelled in (True, False):
            data = case.data(labelled=labelled, **how)
            # So much budget that no noise can hide a table's missing values.
            fitted = case.fit(data, replace(BUDGET, epsilon=1e3 if case.table else 2.0))
            sample = fitted.sample(200 if case.table else 25, seed=3)
            sample.check()
            _claim(sample.schema == fitted.schema_ == data.schema, "Samples have another schema.")
            _claim(
                (sample.labels is not None) == labelled, "Samples have labels, or have lost them."
            )
            again, other = (fitted.sample(len(sample), seed=seed) for seed in (3, 4))
            _claim(_same(sample, again), "The same seed gives other samples.")
            _claim(not _same(sample, other), "Another seed gives the same samples.")


def two_fits_with_one_seed_differ_because_noise_has_none(case: Case) -> None:
    if case.samples:
        first, second = (case.fitted(case.method(seed=5), case.data()) for _ in range(2))
        _claim(
            not _same(first.sample(20, seed=0), second.sample(20, seed=0)), "The noise has a seed."
        )


def a_class_without_records_gets_next_to_no_sample(case: Case) -> None:
    if not case.samples or case.table:
        return
    pixels = np.random.default_rng(0).integers(0, 256, (6000, *SHAPE), dtype=np.uint8)
    data = Dataset.from_arrays(pixels, np.arange(6000) % 2, classes=3)
    sample = case.fit(data, Budget(epsilon=5.0, delta=1e-5), allow_empty=True).sample(300, seed=0)
    assert sample.labels is not None
    # Noise may lift an empty class over the floor, to a share of a few hundredths at most.
    _claim(np.bincount(sample.labels, minlength=3)[2] <= 10, "An empty class is sampled.")


def tiny_data_and_extreme_budgets_work(case: Case) -> None:
    for n, epsilon in ((1, 0.05), (2, 50.0), (5, 1e-3), (40, 1e3)):
        fitted = case.fit(case.data(n), Budget(epsilon=epsilon, delta=1e-6), allow_empty=True)
        if case.samples:
            sample = fitted.sample(12, seed=0)
            sample.check()
            _claim(
                case.table or np.isfinite(sample.values.astype(float)).all(), "Pixels of no value."
            )


def rows_that_break_the_schema_do_no_harm(case: Case) -> None:
    if not case.table or not case.samples:
        return
    rows = _table_rows(60)
    rows[::5] = np.nan
    rows[1::5] = 1e30
    rows[2::5, 0] = -np.inf
    rows[3::5, 2:] = 7.5
    labels = np.arange(60) % 5 - 1  # −1 and 3 are no class
    case.fit(Dataset(ArraySource(rows, labels), TABLE, "dirty")).sample(20, seed=0).check()


# -- the run folder --------------------------------------------------------------------------------------------------------------


def a_saved_run_is_loaded_as_it_was(case: Case) -> None:
    fitted, folder = case.run
    again = Method.load(folder)
    _claim(type(again) is type(fitted), "Another method was loaded.")
    _claim(again.get_params() == fitted.get_params(), "Other settings were loaded.")
    _claim(again.statement_ == fitted.statement_, "Another statement was loaded.")
    if case.samples:
        _claim(_same(again.sample(30, seed=1), fitted.sample(30, seed=1)), "Other samples came.")
        with tempfile.TemporaryDirectory() as place:
            case.fit().save(Path(place) / "saved")
            Method.load(Path(place) / "saved").sample(3, seed=0)


def a_run_holds_no_trace_of_a_record_or_of_a_private_count(case: Case) -> None:
    data = case.data(59)
    record = data.values[7]
    pattern = [record.tobytes(), record.astype(np.float32).tobytes()[:64]]
    if not case.table:
        pattern += [
            record.tobytes()[:16],
            (record / np.float32(255)).astype(np.float32).tobytes()[:64],
        ]
    pattern.append(", ".join(str(v) for v in record.ravel()[:6]).encode())
    for relation in Neighbours:
        with tempfile.TemporaryDirectory() as place:
            case.fit(data, replace(BUDGET, neighbours=relation), out=Path(place) / "run")
            for path in (p for p in (Path(place) / "run").rglob("*") if p.is_file()):
                content = path.read_bytes()
                _claim(not any(p in content for p in pattern), f"A record stands in {path.name}.")
            told = json.loads((Path(place) / "run" / "config.json").read_text())["data"]["size"]
            _claim(
                told == (59 if relation.size_is_public else None), "The number of records is told."
            )


def a_run_folder_is_its_owners_and_holds_what_it_should(case: Case) -> None:
    _, folder = case.run
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    wanted = {"config.json", "statement.json", "generator.safetensors", "log.jsonl"}
    wanted |= {"run.sqlite", "run.lock"} | (set() if case.table else {"samples.png"})
    _claim(files == wanted, f"The folder holds {sorted(files ^ wanted)} too much or too little.")
    modes = {(folder / f).stat().st_mode & 0o777 for f in files}
    _claim(modes == {0o600} and folder.stat().st_mode & 0o777 == 0o700, "Others may read the run.")
    for line in (folder / "log.jsonl").read_text().splitlines():
        _claim("event" in json.loads(line), "A line of the log has no event.")


def lost_or_changed_exports_lose_nothing(case: Case) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        first = case.fit(out=folder)
        (folder / "generator.safetensors").unlink()
        (folder / "statement.json").write_text('{"epsilon": 0.001}')
        again = Method.load(folder)
        _claim(again.statement_ == first.statement_, "An edited statement was believed.")
        if case.samples:
            _claim(
                _same(again.sample(9, seed=0), first.sample(9, seed=0)),
                "A lost export changed the samples.",
            )


def a_taken_folder_is_left_alone(case: Case) -> None:
    _, folder = case.run
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    _claim(
        "already holds a run" in _refusal(lambda: case.fit(out=folder)), "A run was overwritten."
    )
    other = case.method(seed=9)
    said = _refusal(lambda: case.fitted(other, case.data(), out=folder, resume=True))
    _claim("other settings" in said, "A run was gone on with under other settings.")
    _claim(
        {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before, "It was changed."
    )


def resuming_a_finished_run_reads_nothing(case: Case) -> None:
    first, folder = case.run
    source = case.data()

    class Unread(Dataset):
        def batches(self, size: int) -> Iterator[Any]:
            raise AssertionError("A row was read though the run is finished.")

    unread = Unread(source._source, source.schema, source.name)
    again = case.fitted(case.method(), unread, out=folder, resume=True)
    _claim(again.statement_ == first.statement_, "Resuming changed the statement.")


def an_interrupted_fit_goes_on_and_answers_nothing_twice(case: Case) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        honest, kept = RunStore._keep, list[str]()

        def interrupted(self: RunStore, *answer: Any) -> None:
            honest(self, *answer)
            kept.append(answer[0].label)
            if len(kept) == 2:
                raise KeyboardInterrupt

        RunStore._keep = interrupted  # type: ignore[method-assign, assignment]
        try:
            case.fit(out=folder)
        except KeyboardInterrupt:
            pass
        finally:
            RunStore._keep = honest  # type: ignore[method-assign]
        if len(kept) < 2:  # one answer is all that this method asks for
            return
        before = _digests(folder)
        case.fit(out=folder, resume=True)
        after = _digests(folder)
        _claim(len(after) >= len(before) == 2, "Answers that were kept are gone.")
        _claim(
            all(after[key] == digest for key, digest in before.items()),
            "A second answer was given.",
        )


def training_again_from_a_release_reads_no_row_and_costs_nothing(case: Case) -> None:
    first, folder = case.run
    if any(q.steps is not None for q in first.queries(first.schema_, BUDGET)):
        said = _refusal(lambda: case.method().refit(folder))
        _claim("reads the private data while it trains" in said, "Paid steps were taken again.")
        return
    public = small_images(50, shape=SHAPE, seed=2) if first.info.public == "required" else None
    with tempfile.TemporaryDirectory() as place:
        again = case.method().refit(folder, public=public, out=Path(place) / "again")
        _claim(again.statement_ == first.statement_, "Training again changed the statement.")
        _claim(
            _same(again.sample(9, seed=0), first.sample(9, seed=0)),
            "The same release gave other samples.",
        )
        _claim(_digests(Path(place) / "again") == _digests(folder), "The release is another one.")
    for s in first.settings():
        value = getattr(first, s.name)
        if (
            not s.free
            and isinstance(value, int)
            and not isinstance(value, bool)
            and s.multiple == 1
        ):
            if not s.allows(value + 1):
                continue
            other = case.method(**{s.name: value + 1})
            said = _refusal(partial(other.refit, folder))
            _claim("shapes the release" in said, f"{s.name} was changed on a saved release: {said}")


def a_table_is_refused_by_a_method_of_images(case: Case) -> None:
    if "table" not in case.cls.info.kinds:
        said = _refusal(lambda: case.method().fit(small_table(), BUDGET))
        _claim("makes images" in said, "A method of images takes a table.")


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        settings_are_explained_and_checked,
        settings_can_be_cloned_and_changed,
        a_promise_is_made_from_the_schema_alone,
        a_promise_leaves_nothing_behind,
        a_fit_spends_what_it_promised,
        a_fit_that_strays_from_its_promise_is_caught,
        a_neighbour_moves_every_sum_by_its_own_summand,
        samples_look_like_the_schema_and_depend_on_the_seed,
        two_fits_with_one_seed_differ_because_noise_has_none,
        a_class_without_records_gets_next_to_no_sample,
        tiny_data_and_extreme_budgets_work,
        rows_that_break_the_schema_do_no_harm,
        a_saved_run_is_loaded_as_it_was,
        a_run_holds_no_trace_of_a_record_or_of_a_private_count,
        a_run_folder_is_its_owners_and_holds_what_it_should,
        lost_or_changed_exports_lose_nothing,
        a_taken_folder_is_left_alone,
        resuming_a_finished_run_reads_nothing,
        an_interrupted_fit_goes_on_and_answers_nothing_twice,
        training_again_from_a_release_reads_no_row_and_costs_nothing,
        a_table_is_refused_by_a_method_of_images,
    )
}


def _digests(folder: Path) -> dict[tuple[str, int], str]:
    run = SavedRun(folder, unfinished=True)
    try:
        return {(a.label, a.step): a.digest for a in run.answers()}
    finally:
        run.close()


def _refusal(call: Callable[[], Any]) -> str:
    """What a call is refused with; empty if it is not."""
    try:
        call()
    except (BadInput, RunConflict, PlanMismatch) as error:
        return str(error)
    except SfumatoError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _same(first: Dataset, second: Dataset) -> bool:
    return np.array_equal(first.values, second.values, equal_nan=first.values.dtype.kind == "f")


def _claim(truth: bool, otherwise: str) -> None:
    if not truth:
        raise AssertionError(otherwise)
