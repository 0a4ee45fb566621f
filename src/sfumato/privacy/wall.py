"""The wall. Private rows are on one side; noisy sums, paid for in advance, come out on the other.

`PrivateData` holds the rows and answers two questions only: a noisy sum over all records, and a series of noisy
sums over fresh Poisson samples, of records, of groups of them or of fixed shards. Each is charged to the ledger before a row is
read. Counts, clipped fractions and the sizes of the samples stay inside. Where a person may have several records, it is persons
that are counted, sampled and divided (`privacy.units`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfumato.data import Batch, Dataset, Schema
from sfumato.engines import Engine, LocalEngine
from sfumato.errors import BadInput, PlanMismatch
from sfumato.privacy import noise
from sfumato.privacy.accounting import Charge, Sampler, Summands
from sfumato.privacy.bounding import FeatureMap, OuterMap, RecordMap, enforced_bound, summand_of
from sfumato.privacy.gradients import GradientSum
from sfumato.privacy.groups import GroupSum, ShardStates, ShardSum
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.release import Release
from sfumato.privacy.sampling import PoissonSum
from sfumato.privacy.store import Question, RunStore, StepAnswers
from sfumato.privacy.units import UnitRows

OnFraction = Callable[[str, float], None]
_Summed = RecordMap | GradientSum | GroupSum | ShardSum
_SampledSum = Callable[[Charge, int, _Summed], Tensor]


class PrivateData:
    """Private rows behind a gate that answers noisy sums.

    **Guarantee**: everything that any caller learns through this class is (ε, δ)-differentially private with the ε that the
    ledger adds up, under the ledger's relation; when the ledger refuses, no row has gone into any answer. (A file without a count
    of its own, such as CSV, is gone through once to know how many records it has; that stays inside unless the relation makes it
    public.)

    The samplers can be replaced in tests; in use, noise and samples come from OS entropy.
    """

    def __init__(
        self,
        rows: Dataset,
        ledger: Ledger,
        *,
        engine: Engine | None = None,
        store: RunStore | None = None,
        on_fraction: OnFraction | None = None,
        discrete_sampler: noise.DiscreteSampler = noise.discrete_gaussian,
        fast_sampler: noise.FloatSampler | None = None,
    ) -> None:
        self.__rows = UnitRows(rows)
        self.__ledger = ledger
        self.__engine = engine or LocalEngine()
        self.__store = store or RunStore()
        self.__on_fraction = on_fraction
        self.__discrete = discrete_sampler
        self.__fast = fast_sampler or noise.FastGaussian()
        self.__parts: dict[int, NDArray[np.int64]] = {}  # number of shards → the shard of each unit
        self.__states: dict[tuple[ShardStates, int], Any] = {}
        self.schema: Schema = rows.schema

    @property
    def size(self) -> int:
        """The number of units (records, if nothing else was stated), where the relation makes it public."""
        if not self.__ledger.budget.neighbours.size_is_public:
            raise BadInput(
                "Under add-remove the number of records is private; release a noisy count, or choose zero-out or replace-one."
            )
        return self.__rows.count

    @property
    def public_size(self) -> int | None:
        """The number of units, or None where it is private."""
        return self.size if self.__ledger.budget.neighbours.size_is_public else None

    def noisy_sum(self, phi: RecordMap, noise_multiplier: float, *, label: str) -> Release:
        """Σ φ(record) over all records, each clipped to φ.bound, plus exact discrete Gaussian noise.

        A release that the run's store holds under this label is returned as it is: no row is read and nothing new is learnt,
        though the ledger still lists its charge. A new one is in the store, for good, before it is returned.
        """
        charge = self.__store.settled(charge_of(phi, noise_multiplier, label=label))
        _check_sampler(charge, "discrete")
        if any(earlier.label == label for earlier in self.__ledger.charges):
            raise PlanMismatch(
                f"Two releases are both called {label!r}; every release needs a label of its own."
            )
        self.__ledger.charge(charge)
        question = Question.of(phi)
        saved = self.__store.find(charge, question)
        if saved is not None:
            return saved
        summand = summand_of(phi, self.__rows.shares)
        if self.__rows.count * charge.bound / summand.grid >= 2.0**62:
            raise BadInput(
                f"{label!r} is a sum over more records than whole numbers of 64 bits can add up; fit on a part of the data."
            )
        total = self.__engine.total(
            self.__rows,
            summand,
            on_fraction=self.__reporter(f"Reading records ({label})"),
        )
        drawn = self.__discrete(
            phi.segments * phi.dim,
            charge.noise_std / summand.grid,
            self.__reporter(f"Drawing exact noise ({label})"),
        )
        units = total + torch.from_numpy(drawn).reshape(summand.shape)
        release = Release(units=units, grid=summand.grid, charge=charge)
        self.__store.keep(release, question)
        return release

    def poisson_steps(
        self,
        rate: float,
        steps: int,
        noise_multiplier: float,
        *,
        bound: float,
        label: str,
        dimension: int = 0,
        summands: Summands = "records",
        start: int = 0,
    ) -> PaidSteps:
        """`steps` chances to sum over a fresh Poisson sample of `rate`; all are paid for before the first is handed out.

        `bound` is the enforced bound (`enforced_bound(phi)`, `GradientSum.enforced`) of what will be summed, and `summands` says
        whether that is over records, over groups of the sample, or over a sample of shards (`privacy.groups`). A run that goes on
        from a checkpoint gives the number of steps behind it as `start`; with a store, steps that were answered after it are
        answered the same again, and no row is read for them.
        """
        charge = Charge(
            label=label,
            bound=bound,
            noise_multiplier=noise_multiplier,
            rate=rate,
            steps=steps,
            dimension=dimension,
            summands=summands,
            sampler="floating",
        )
        charge = self.__store.settled(charge)
        _check_sampler(charge, "floating")
        self.__ledger.charge(charge)
        return PaidSteps(charge, self.__sampled_sum, self.__store.steps(charge), start)

    def __sampled_sum(self, charge: Charge, index: int, phi: _Summed) -> Tensor:
        if isinstance(phi, GroupSum | ShardSum):
            total = (
                self.__over_groups(charge, phi)
                if isinstance(phi, GroupSum)
                else self.__over_shards(charge, index, phi)
            )
            drawn = self.__fast((phi.dim,), charge.noise_std)
            return (total.to(torch.float64) * phi.grid + torch.from_numpy(drawn)).to(torch.float32)
        # A unit may have records in every part of the data, so units are drawn where all of them are.
        engine = self.__engine if self.__rows.units is None else LocalEngine()
        if isinstance(phi, GradientSum):
            phi.check(
                self.schema
            )  # here as well: what is refused is refused before any worker is asked
            value = engine.total(self.__rows, PoissonSum(phi, charge.rate))
            value /= self.__rows.shares or 1
            drawn = self.__fast((phi.dim,), charge.noise_std)
            return (value + torch.from_numpy(drawn)).to(torch.float32)
        summand = summand_of(phi, self.__rows.shares)
        total = engine.total(self.__rows, PoissonSum(summand, charge.rate))
        value = total.to(torch.float64) * summand.grid
        return value + torch.from_numpy(self.__fast(summand.shape, charge.noise_std))

    def __over_groups(self, charge: Charge, phi: GroupSum) -> Tensor:
        """Every unit is in on its own coin, and falls into a group on another."""
        units = self.__rows.count
        chosen = self.__rows.records_of(noise.poisson_mask(units, charge.rate))
        group_of = self.__rows.of_records(noise.random_parts(units, phi.parts), chosen)
        total = torch.zeros(phi.dim, dtype=torch.int64)
        for _, group in self.__divided(chosen, group_of):
            total += phi(group)
        return total

    def __over_shards(self, charge: Charge, index: int, phi: ShardSum) -> Tensor:
        """Every shard is drawn on its own coin; the shard of each unit was drawn once, on coins of their own."""
        if phi.parts not in self.__parts:
            self.__parts[phi.parts] = noise.random_parts(self.__rows.count, phi.parts)
        shard_of = self.__parts[phi.parts]
        chosen = self.__rows.records_of(noise.poisson_mask(phi.parts, charge.rate)[shard_of])
        total = torch.zeros(phi.dim, dtype=torch.int64)
        for number, shard in self.__divided(chosen, self.__rows.of_records(shard_of, chosen)):
            total += phi(shard, self.__state(phi.states, shard, number), index, number)
        return total

    def __divided(
        self, chosen: NDArray[np.int64], part: NDArray[np.int64]
    ) -> Iterator[tuple[int, Batch]]:
        """The chosen records by part, without empty parts."""
        if len(chosen) == 0:
            return
        rows = self.__rows.take(chosen)
        for number in np.unique(part).tolist():
            inside = torch.from_numpy(part == number)
            labels = None if rows.labels is None else rows.labels[inside]
            yield number, Batch(rows.values[inside], labels)

    def __state(self, states: ShardStates, shard: Batch, number: int) -> Any:
        """The shard's state, with all earlier ones that it sets out from made up for; these are then forgotten."""
        missing: list[ShardStates] = []
        known: ShardStates | None = states
        while known is not None and (known, number) not in self.__states:
            missing.append(known)
            known = known.earlier
        state = None if known is None else self.__states.pop((known, number))
        for one in reversed(missing):
            state = one.prepared(shard, state, number)
        self.__states[states, number] = state
        return state

    def __reporter(self, title: str) -> Callable[[float], None] | None:
        if self.__on_fraction is None:
            return None
        report = self.__on_fraction
        return lambda fraction: report(title, fraction)


class PaidSteps(Iterator["Step"]):
    """A series of steps that is paid for as a whole; each is handed out once, in order."""

    def __init__(
        self, charge: Charge, answer: _SampledSum, answers: StepAnswers, start: int
    ) -> None:
        if not 0 <= start <= charge.steps:
            raise BadInput(f"There are {charge.steps} steps, so none can go on after {start}.")
        answers.begin(start)
        self._charge, self._answer, self._answers = charge, answer, answers
        self._next = start
        self._current: Step | None = None

    def __iter__(self) -> PaidSteps:
        return self

    def __next__(self) -> Step:
        if self._current is not None:
            self._current.close()
        if self._next == self._charge.steps:
            raise StopIteration
        self._current = Step(self._next, self._charge, self._recorded_sum)
        self._next += 1
        return self._current

    def forget(self, before: int) -> None:
        """The answers to the steps before `before` are no longer needed: what came of them is in a checkpoint."""
        self._answers.forget(before)

    def _recorded_sum(self, index: int, phi: _Summed) -> Tensor:
        question = Question.of(phi)
        answer = self._answers.find(index, question)
        if answer is None:
            answer = self._answer(self._charge, index, phi)
            self._answers.keep(index, answer, question)
        return answer


class Step:
    """One paid step over one Poisson sample. It answers once; the size of its sample is never told."""

    def __init__(
        self, index: int, charge: Charge, answer: Callable[[int, _Summed], Tensor]
    ) -> None:
        self.index = index
        self.expected_share = charge.rate
        self._charge = charge
        self._answer: Callable[[int, _Summed], Tensor] | None = answer

    def noisy_sum(self, phi: RecordMap) -> Tensor:
        """Σ φ over this step's sample, each row clipped to φ.bound, plus Gaussian noise; (segments, dim) float64."""
        return self._answered(phi, enforced_bound(phi), "records")

    def noisy_gradient(self, gradients: GradientSum) -> Tensor:
        """Σ of the clipped gradients of this step's sample plus Gaussian noise; (parameters,) float32, see `GradientSum.assign`.

        Divide it by the *expected* size of the sample: the real one is private.
        """
        return self._answered(gradients, gradients.enforced, "records")

    def noisy_groups(self, groups: GroupSum) -> Tensor:
        """Σ of a clipped function of each group of this step's sample plus Gaussian noise; (dim,) float32."""
        return self._answered(groups, groups.enforced, "groups")

    def noisy_shards(self, shards: ShardSum) -> Tensor:
        """Σ of a clipped function of each shard that this step draws plus Gaussian noise; (dim,) float32."""
        return self._answered(shards, shards.enforced, "shards")

    def _answered(self, phi: _Summed, bound: float, summands: Summands) -> Tensor:
        if self._answer is None:
            raise PlanMismatch(
                f"Step {self.index} of {self._charge.label!r} was used already; one sum was paid for."
            )
        if bound > self._charge.bound:
            raise PlanMismatch(
                f"Step {self.index} of {self._charge.label!r} was paid for with bound {self._charge.bound:g}, not {bound:g}."
            )
        if summands != self._charge.summands:
            raise PlanMismatch(
                f"Step {self.index} of {self._charge.label!r} was paid for as a sum over {self._charge.summands}, not over "
                f"{summands}, which one record moves otherwise."
            )
        _check_sampler(self._charge, "floating")
        answer, self._answer = self._answer, None
        return answer(self.index, phi)

    def close(self) -> None:
        """A step that is over cannot be used later."""
        self._answer = None


def charge_of(phi: RecordMap, noise_multiplier: float, *, label: str) -> Charge:
    """What one noisy sum of φ over all records costs: the same object in a plan and in the ledger."""
    # Asked of the base class: what a map says of itself is not believed.
    ratio = OuterMap.replace_ratio if isinstance(phi, OuterMap) else FeatureMap.replace_ratio
    return Charge(
        label=label,
        bound=enforced_bound(phi),
        noise_multiplier=noise_multiplier,
        dimension=phi.segments * phi.dim,
        replace_ratio=ratio.__get__(phi),
        sampler="discrete",
    )


def _check_sampler(charge: Charge, used: Sampler) -> None:
    """The sampler is part of the charge: what was promised discrete is not answered with floating-point noise."""
    if charge.sampler != used:
        raise PlanMismatch(
            f"Release {charge.label!r} was paid for with {charge.sampler} noise and would be answered with {used} noise; "
            "charge what is drawn."
        )
