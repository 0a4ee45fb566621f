"""Audit of a whole method in one training: records that were made up come by coins, and somebody guesses the coins.

The wall itself is audited by `privacy.audit`. Here a method is fitted as anyone would fit it, on the auditor's own records
among which *canaries* are hidden: pictures of pure noise, rows drawn evenly from all that the schema allows. Each is in the
data by a coin of OS entropy. Three things are looked at:

1. *Guesses* (`privacy.one_run`). **White-box**: everything that the wall answered, projected on what each canary adds to it
   (its clipped row, its clipped gradient), with what all records that are known to be there add taken away, and canaries told
   apart from each other by least squares. **Black-box**: samples alone; how near they come to the canary, and what a
   classifier that was trained on them says of its class, each against the same of the records that are there anyway. What
   makes a score good or bad cannot make the bound wrong: that needs only that scores are a function of the answers.
2. *Noise*. The auditor knows the sums, so the noise in a release is known: its length against that charged for. Of steps only
   what the answer is at least: ‖S + noise‖ is, for any S, stochastically at least ‖noise‖ (Anderson 1955).
3. *Sums*. Over the whole data a sum must be what it is without canaries plus what each of them adds by itself, to the last
   unit of the grid, and no canary adds more than the bound.

Relations: under add-remove a canary is there or not. Under zero-out it is there or nothing is in its place: the method is
told the same number of records either way. Under replace-one another canary is in its place.

PRIVATE: the outcome depends on the records that are given. It is for their owner, NOT covered by any ε, and written nowhere
by itself.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import chi2
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from sfumato.data import Batch, Dataset, Schema
from sfumato.data.sources import ArraySource
from sfumato.engines import LocalEngine
from sfumato.errors import BadInput
from sfumato.evaluation.neighbours import nearest
from sfumato.methods import Method, base
from sfumato.privacy import Budget, GradientSum, Neighbours, PrivateData, RecordMap, Release
from sfumato.privacy.accounting import Charge
from sfumato.privacy.bounding import BoundedSum, OuterSum, clipped, summand_of
from sfumato.privacy.one_run import Guesses, claim_lower, epsilon_lower, guess
from sfumato.privacy.units import size_of
from sfumato.privacy.wall import PaidSteps
from sfumato.progress import Progress

NOT_COVERED = "computed on the data and canaries of the auditor; NOT covered by ε"
CONFIDENCE = 0.95
# The noise of an honest run is found wanting once in a million times.
_NOISE_FAILURE = 1e-6
# Of a longer series so many steps are looked at, evenly spaced; each takes the gradients of all canaries.
_STEPS = 300
_BACKGROUND = 256  # records that stand for all, in the gradient of those that are known to be there
_AT_ONCE = 128
_SAMPLES = 5_000
_FEWEST = 24

Coins = NDArray[np.bool_]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Attack:
    """What one kind of guesser could tell: two lower bounds on ε, and the guesses they come from."""

    name: str
    region: float  # at (ε, δ), assuming nothing
    curve: float  # at the trade-off that the plan claims
    guesses: tuple[Guesses, ...]

    @property
    def lower(self) -> float:
        return max(self.region, self.curve)

    def to_json(self) -> dict[str, Any]:
        told = [
            {"guessed": g.guessed, "right": g.right, "canaries": g.canaries} for g in self.guesses
        ]
        return {
            "attack": self.name,
            "epsilon_lower": self.lower,
            "epsilon_lower_region": self.region,
            "epsilon_lower_curve": self.curve,
            "guesses": told,
        }


@dataclass
class Answered:
    """What was seen of the answers under one label."""

    charge: Charge
    neighbours: Neighbours
    scored: bool  # whether the canaries' own parts are known
    squares: float = 0.0  # Σ ‖answer − what is expected without noise‖² ÷ noise²
    numbers: int = 0
    moved: float = 0.0  # by the canary that moves the sum most
    off: float = 0.0  # how far the sum is from what its records add up to

    @property
    def noise(self) -> float:
        """The noise that was found ÷ the noise that is charged; of steps with what the records themselves add."""
        return float(np.sqrt(self.squares / self.numbers)) if self.numbers else 1.0

    @property
    def quiet(self) -> bool:
        below = chi2.cdf(self.squares, self.numbers) if self.numbers else 1.0
        return float(below) < _NOISE_FAILURE

    @property
    def too_far(self) -> bool:
        return self.moved > self.charge.sensitivity(self.neighbours) * (1 + 1e-9)

    @property
    def broken(self) -> bool:
        return self.quiet or self.too_far or self.off > 0

    def sentence(self) -> str:
        label = repr(self.charge.label)
        if self.quiet:
            return f"the noise of {label} is {self.noise:.3g} times what is charged for"
        if self.off > 0:
            return f"{label} is {self.off:.3g} away from what its records add up to one by one"
        allowed = self.charge.sensitivity(self.neighbours)
        return f"one canary moves {label} by {self.moved:.6g}, and {allowed:.6g} is charged for"

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.charge.label,
            "scored": self.scored,
            "noise_ratio": self.noise,
            "noise_numbers": self.numbers,
            "noise_too_small": self.quiet,
            "sensitivity": self.charge.sensitivity(self.neighbours),
            "sensitivity_measured": self.moved,
            "sum_off_by": self.off,
        }


@dataclass(frozen=True)
class RunFinding:
    """What the audit of one method found."""

    method: str
    data: str
    budget: Budget
    epsilon: float
    canaries: int
    white_box: Attack
    black_box: tuple[Attack, ...]
    answers: tuple[Answered, ...]
    seconds: float

    @property
    def attacks(self) -> tuple[Attack, ...]:
        return (self.white_box, *self.black_box)

    @property
    def samples_lower(self) -> float | None:
        return max((a.lower for a in self.black_box), default=None)

    @property
    def told_apart(self) -> bool:
        return any(a.lower > self.epsilon for a in self.attacks)

    @property
    def passed(self) -> bool:
        return not self.told_apart and not any(a.broken for a in self.answers)

    def sentences(self) -> list[str]:
        """Why it did not pass."""
        told = [one.sentence() for one in self.answers if one.broken]
        return told + [
            f"ε is at least {a.lower:.3g} and {self.epsilon:.3g} is claimed ({a.name})"
            for a in self.attacks
            if a.lower > self.epsilon
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "data": self.data,
            "source": NOT_COVERED,
            "epsilon": self.epsilon,
            "delta": self.budget.delta,
            "neighbours": self.budget.neighbours.value,
            "canaries": self.canaries,
            "confidence": CONFIDENCE,
            "passed": self.passed,
            "white_box": self.white_box.to_json(),
            "black_box": [a.to_json() for a in self.black_box],
            "answers": [a.to_json() for a in self.answers],
            "seconds": self.seconds,
        }


# -- the audit -------------------------------------------------------------------------------------------------------------


def audit_method(
    method: Method,
    data: Dataset,
    budget: Budget,
    *,
    canaries: int = 1_000,
    public: Dataset | None = None,
    samples: int = _SAMPLES,
    progress: Progress | None = None,
    coins: Coins | None = None,
) -> RunFinding:
    """Fit `method` once on `data` with canaries among them, and tell how well they are told from those left out.

    If the claim holds, all lower bounds are at most the claim with probability ≥ `CONFIDENCE`. `coins` are for tests.
    """
    if canaries < _FEWEST:
        raise BadInput(
            f"Of {canaries} canaries nothing can be told; give at least {_FEWEST}, better a thousand."
        )
    if data.units is not None:
        raise BadInput(
            "Canaries are single records, and these data have units of several; load them without a unit for the audit."
        )
    begun = time.perf_counter()
    if coins is None:
        coins = np.unpackbits(np.frombuffer(os.urandom(-(-canaries // 8)), np.uint8))[:canaries] > 0
    hidden = Canaries.among(data, canaries, budget.neighbours)
    watch = Watch(hidden, data, budget, coins)
    with watch.watching():
        method.fit(
            hidden.inserted(coins), budget, public=public, allow_empty=True, progress=progress
        )
    statement = method.statement_
    if not statement.sound:
        raise BadInput(
            "These settings of a paper do not keep the budget they are given, so there is no claim to hold an audit against; "
            "leave out the setting that makes them unsound."
        )
    makes = method.info.makes == "records"
    attacks: dict[str, Numbers] = {"answers of the wall": watch.scores()}
    if makes:
        attacks |= _from_samples(method.sample(samples, seed=0), hidden.present, data)
    # A third of the failures for each of the three guessers, with two bounds of as many guesses as there are shares.
    found = []
    for name, scores in attacks.items():
        guesses = guess(scores, coins)
        failure = (1 - CONFIDENCE) / (3 * 2 * len(guesses))
        region = max(epsilon_lower(one, budget.delta, failure) for one in guesses)
        curve = claim_lower(guesses, statement.charges, budget.delta, budget.neighbours, failure)
        found.append(Attack(name, region, curve, guesses))
    return RunFinding(
        method.info.name,
        data.name,
        budget,
        statement.epsilon,
        canaries,
        found[0],
        tuple(found[1:]),
        tuple(watch.answers.values()),
        time.perf_counter() - begun,
    )


@dataclass(frozen=True)
class Canaries:
    """Made-up records, and for replace-one those that take their place, among the records that are there anyway."""

    data: Dataset
    present: Batch
    other: Batch | None
    neighbours: Neighbours

    @classmethod
    def among(cls, data: Dataset, count: int, neighbours: Neighbours) -> Canaries:
        """The canaries are public: by a seed."""
        replaced = neighbours is Neighbours.REPLACE_ONE
        made = made_up(data.schema, count * (2 if replaced else 1))
        if not replaced:
            return cls(data, made, None, neighbours)
        first, second = slice(0, count), slice(count, 2 * count)
        labels = made.labels
        return cls(
            data,
            Batch(made.values[first], None if labels is None else labels[first]),
            # Of the same class, so that it is the record itself that makes the difference.
            Batch(made.values[second], None if labels is None else labels[first]),
            neighbours,
        )

    def __len__(self) -> int:
        return len(self.present)

    @property
    def both(self) -> Batch:
        if self.other is None:
            return self.present
        labels = self.present.labels
        return Batch(
            torch.cat([self.present.values, self.other.values]),
            None if labels is None else torch.cat([labels, labels]),
        )

    def inserted(self, coins: Coins) -> Dataset:
        """The data with the canaries that the coins choose, at places of a public seed."""
        chosen = torch.from_numpy(coins.copy())
        values, labels = self.present.values[chosen], self.present.labels
        if self.other is not None:
            values = torch.cat([values, self.other.values[~chosen]])
        if labels is not None:
            labels = torch.cat([labels[chosen], labels[~chosen]]) if self.other else labels[chosen]
        fixed = _records_of(self.data)
        rows = np.concatenate([fixed.values.numpy(), values.to(fixed.values.dtype).numpy()])
        codes = None
        if labels is not None and fixed.labels is not None:
            codes = np.concatenate([fixed.labels.numpy(), labels.numpy()])
        # A record's place must not tell its coin: the canaries' own places do not depend on the others' coins.
        keys = np.random.default_rng(1).random(len(fixed) + 2 * len(self))
        out = keys[len(fixed) :][np.concatenate([coins, ~coins & (self.other is not None)])]
        order = np.argsort(np.concatenate([keys[: len(fixed)], out]), kind="stable")
        source = ArraySource(rows[order], None if codes is None else codes[order])
        return Dataset(source, self.data.schema, f"{self.data.name} with canaries")

    def signed(self, of_both: Tensor) -> Tensor:
        """(…) of `both` → of the canaries: what one adds, less what the other in its place does."""
        return of_both if self.other is None else of_both[: len(self)] - of_both[len(self) :]


def made_up(schema: Schema, count: int, seed: int = 0) -> Batch:
    """Records that nobody has: black and white noise, or table rows from one end of what is possible to the other."""
    random = np.random.default_rng(seed)
    if schema.kind == "images":
        values = torch.from_numpy(_noise(random, count, schema.shape))
    else:
        columns = [
            random.integers(0, len(c.categories), count)
            if c.categories
            else random.uniform(c.low or 0.0, c.high if c.high is not None else 1.0, count)
            for c in schema.columns
        ]
        values = torch.from_numpy(np.stack(columns, 1).astype(np.float32))
    if not schema.labelled:
        return Batch(values, None)
    return Batch(values, torch.from_numpy(random.integers(0, schema.n_classes, count)))


def _noise(random: np.random.Generator, count: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Noise of all sorts: half of it fine, in which no two pictures are alike, half in blocks, sparse or dense, lest networks
    see one texture in all of it."""
    channels, height, width = shape
    made = random.integers(0, 2, (count, *shape), dtype=np.uint8) * np.uint8(255)
    for picture in made[1::2]:
        block = 2 ** int(random.integers(0, max(1, min(height, width).bit_length() - 1)))
        coarse = -(-height // block), -(-width // block)
        spots = random.random((channels, *coarse)) < random.uniform(0.1, 0.9)
        large = np.repeat(np.repeat(spots, block, 1), block, 2)[:, :height, :width]
        dots = random.random(shape) < 0.05  # no two alike, though few large blocks may be
        picture[:] = 255 * (large ^ dots)
    return made


def _records_of(data: Dataset) -> Batch:
    return data.take(np.arange(len(data)))


# -- what the wall answered ------------------------------------------------------------------------------------------------


class Watched(PrivateData):
    """The wall as it is, with somebody who looks over its shoulder."""

    def __init__(self, rows: Dataset, *given: Any, watch: Watch, **more: Any) -> None:
        super().__init__(rows, *given, **more)
        self._watch, self._all = watch, rows

    @property
    def size(self) -> int:
        """As always; under zero-out with those in whose place nothing is."""
        found = super().size
        return self._watch.size if self._watch.budget.neighbours is Neighbours.ZERO_OUT else found

    def noisy_sum(self, phi: RecordMap, noise_multiplier: float, *, label: str) -> Release:
        release = super().noisy_sum(phi, noise_multiplier, label=label)
        self._watch.saw(phi, release, self._all)
        return release

    def poisson_steps(self, *given: Any, **more: Any) -> PaidSteps:
        steps = super().poisson_steps(*given, **more)
        honest = steps._answer

        def answer(charge: Charge, index: int, phi: Any) -> Tensor:
            value = honest(charge, index, phi)
            self._watch.saw_step(phi, charge, index, value)
            return value

        steps._answer = answer
        return steps


@dataclass
class Watch:
    """Gathers what each canary's part in the answers looks like, in deviations of the noise."""

    canaries: Canaries
    data: Dataset
    budget: Budget
    coins: Coins
    answers: dict[str, Answered] = field(default_factory=dict)

    def __post_init__(self) -> None:
        m = len(self.canaries)
        self._inner = torch.zeros(
            m, m, dtype=torch.float64
        )  # of what canaries add, with each other
        self._seen = torch.zeros(m, dtype=torch.float64)  # with the answers
        few = np.random.default_rng(2).permutation(len(self.data))[:_BACKGROUND]
        self._few = self.data.take(few)

    @property
    def size(self) -> int:
        return len(self.data) + len(self.canaries)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Fits inside are watched; none of them is another's, since a process audits one method at a time."""

        def watched(rows: Dataset, *given: Any, **more: Any) -> Watched:
            return Watched(rows, *given, watch=self, **more)

        def told(data: Dataset) -> int:
            return self.size if self.budget.neighbours is Neighbours.ZERO_OUT else size_of(data)

        # A plan may follow the number of records, and the wall tells it too: one number, for both.
        with mock.patch.multiple(base, PrivateData=watched, size_of=told):
            yield

    def scores(self) -> Numbers:
        """The coins' least-squares estimates, each ± ½ before anything was seen: (G ÷ 4 + 1)⁻¹ b."""
        m = len(self.canaries)
        matrix = self._inner / 4 + torch.eye(m, dtype=torch.float64)
        found: Numbers = torch.linalg.solve(matrix, self._seen).numpy()
        return found

    def _of(self, charge: Charge, scored: bool) -> Answered:
        if charge.label not in self.answers:
            self.answers[charge.label] = Answered(charge, self.budget.neighbours, scored)
        return self.answers[charge.label]

    def _farthest(self, inner: Tensor) -> float:
        signed = self.canaries.signed
        return float(signed(signed(inner).T).diagonal().clamp(min=0).max().sqrt())

    def _add(self, inner: Tensor, seen: Tensor, std: float) -> None:
        """Products of what both kinds of canaries add (k, k), and of these with the answer less what is expected of it (k,)."""
        signed = self.canaries.signed
        self._seen += signed(seen) / std**2
        self._inner += signed(signed(inner).T).T / std**2

    def saw(self, phi: RecordMap, release: Release, rows: Dataset) -> None:
        """A sum over all records: everything about it is known."""
        charge, summand, engine = release.charge, summand_of(phi), LocalEngine()
        known = engine.total(self.data, summand)
        parts = _Parts.of(summand, self.canaries.both)
        total = engine.total(rows, summand)
        one = self._of(charge, scored=True)
        one.numbers += total.numel()
        one.squares += float(
            ((release.units - total).to(torch.float64) * summand.grid / charge.noise_std)
            .square()
            .sum()
        )
        inner = parts.inner() * summand.grid**2
        one.moved = max(one.moved, self._farthest(inner))
        # The one place where the coins are looked at; scores must not know them.
        chosen = self.coins if self.canaries.other is None else np.append(self.coins, ~self.coins)
        off = (total - known).to(torch.float64) - parts.sum(
            torch.from_numpy(chosen).double(), summand.shape
        )
        one.off = max(one.off, float(off.norm()) * summand.grid)
        rest = (release.units - known).to(torch.float64)
        seen = parts.with_answer(rest) * summand.grid**2
        # What is expected of the canaries: half of them all.
        self._add(inner, seen - inner.sum(1) / 2, charge.noise_std)

    def saw_step(self, phi: Any, charge: Charge, index: int, value: Tensor) -> None:
        """A sum over a sample: who was in it is not known, so expectations stand for it, and its chance is noise as well.

        With W the records that may be in it, each times √(rate (1 − rate)), the answer has the covariance σ² + Wᵀ W; products
        under its inverse are x·y − x Wᵀ (σ² + W Wᵀ)⁻¹ W y, over σ² (Woodbury).
        """
        scored = isinstance(phi, GradientSum | RecordMap)
        one = self._of(charge, scored)
        answer, known, rate = value.to(torch.float64).flatten(), len(self._few), charge.rate
        if scored and index % -(-charge.steps // _STEPS) == 0:
            everyone = _joined(self._few, self.canaries.both)
            inner, product, together = _products(phi, everyone)
            # Some records stand for all that are there anyway; of the canaries half are there.
            weights = torch.full((len(inner),), 0.5, dtype=torch.float64)
            weights[:known] = len(self.data) / known
            one.moved = max(one.moved, self._farthest(inner[known:, known:]))
            answer = answer - rate * together(weights * (torch.arange(len(inner)) < known))
            seen = product(answer)
            if rate < 1:
                w = (rate * (1 - rate) * weights).sqrt()
                matrix = w[:, None] * inner * w + charge.noise_std**2 * torch.eye(len(w))
                across = inner * w
                turned = torch.linalg.solve(matrix, across.T)  # (everyone, everyone)
                seen = seen - turned.T @ (w * seen)
                expected = inner[known:].T.sum(1) / 2
                expected = expected - turned.T @ (w * expected)
                inner = inner - across @ turned
            else:
                expected = inner[known:].T.sum(1) / 2
            # A canary is in a sample by the rate; what it adds on average is what a guesser can hope for.
            self._add(
                inner[known:, known:] * rate**2,
                (seen - rate * expected)[known:] * rate,
                charge.noise_std,
            )
        one.numbers += answer.numel()
        one.squares += float(answer.square().sum()) / charge.noise_std**2


Product = Callable[[Tensor], Tensor]


def _products(phi: Any, records: Batch) -> tuple[Tensor, Product, Product]:
    """Of what each record adds: the products with each other (k, k), those with an answer, and the sum under weights (k,)."""
    if isinstance(phi, GradientSum):
        rows = gradients_of(phi, records).to(torch.float64)  # (k, dim)
        return rows @ rows.T, lambda answer: rows @ answer, lambda weights: weights @ rows
    summand = summand_of(phi)
    parts, grid = _Parts.of(summand, records), summand.grid
    return (
        parts.inner() * grid**2,
        lambda answer: parts.with_answer(answer.view(summand.shape)) * grid,
        lambda weights: parts.sum(weights, summand.shape).flatten() * grid,
    )


def _joined(first: Batch, second: Batch) -> Batch:
    labels = None
    if first.labels is not None and second.labels is not None:
        labels = torch.cat([first.labels, second.labels])
    return Batch(torch.cat([first.values, second.values.to(first.values.dtype)]), labels)


@dataclass(frozen=True)
class _Parts:
    """What each of some records adds to a sum, in grid units: vectors, or pairs of factors, and the segment of each."""

    left: Tensor  # (k, dim), or the first factor (k, blocks, a)
    right: Tensor | None  # (k, blocks, b)
    segment: Tensor  # (k,), −1 for a record that is left out

    @classmethod
    def of(cls, summand: BoundedSum | OuterSum, records: Batch) -> _Parts:
        if isinstance(summand, OuterSum):
            found = [
                summand._bounded(records, start)
                for start in range(0, len(records), summand.rows_at_once)
            ]
            left, right, segment = (torch.cat(one) for one in zip(*found, strict=True))
            blocks = (summand.phi.blocks, -1)
            sides = left.unflatten(1, blocks), right.unflatten(1, blocks)
            return cls(*sides, _inside(segment, summand.phi.segments))
        left = summand.rows(records).to(torch.float64)
        filed = summand.phi.filed(records)[0]
        codes = torch.zeros(len(left), dtype=torch.int64) if filed is None else filed
        return cls(left, None, _inside(codes, summand.phi.segments))

    def inner(self) -> Tensor:
        """(k, k): products of what each adds with what each other does."""
        if self.right is None:
            found = self.left @ self.left.T
        else:
            sides = (side.transpose(0, 1) for side in (self.left, self.right))  # (blocks, k, …)
            found = torch.stack([s @ s.mT for s in sides]).prod(0).sum(0)
        same = (self.segment[:, None] == self.segment) & (self.segment >= 0)[:, None]
        return found * same

    def sum(self, weights: Tensor, shape: tuple[int, ...]) -> Tensor:
        """(segments, dim): what they add together, each times its weight; of whole numbers exact in double precision."""
        total = torch.zeros(shape, dtype=torch.float64)
        for code in self.segment.unique().tolist():
            if code >= 0:
                rows = self.segment == code
                if self.right is None:
                    total[code] = weights[rows] @ self.left[rows]
                else:
                    factors = weights[rows], self.left[rows], self.right[rows]
                    total[code] = torch.einsum("k,kma,kmb->mab", *factors).flatten()
        return total

    def with_answer(self, answer: Tensor) -> Tensor:
        """(k,): products with an answer (segments, dim)."""
        found = torch.zeros(len(self.left), dtype=torch.float64)
        for code in self.segment.unique().tolist():
            if code < 0:
                continue
            chosen = self.segment == code
            block = answer[code].to(torch.float64)
            if self.right is None:
                found[chosen] = self.left[chosen] @ block
            else:
                left, right = self.left[chosen], self.right[chosen]
                shape = *left.shape[1:], right.shape[2]
                found[chosen] = torch.einsum("kma,mab,kmb->k", left, block.view(shape), right)
        return found


def _inside(segment: Tensor, segments: int) -> Tensor:
    return torch.where((segment >= 0) & (segment < segments), segment, -1)


def gradients_of(phi: GradientSum, records: Batch) -> Tensor:
    """(k, dim): the clipped gradient of each record."""
    random = torch.Generator().manual_seed(0)
    found = []
    with phi._frozen():
        for start in range(0, len(records), _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            labels = None if records.labels is None else records.labels[rows]
            tensors = phi.inputs(Batch(records.values[rows], labels), random)
            found.append(clipped(phi._by_vmap(tensors).detach(), phi.bound).to(torch.float32))
    return torch.cat(found)


# -- samples alone -----------------------------------------------------------------------------------------------------------


def _from_samples(made: Dataset, canaries: Batch, known: Dataset) -> dict[str, Numbers]:
    """Scores that grow with how much the samples know of a canary, each against the same of the records that are known."""
    there = _records_of(known)
    records = _flat(canaries, known.schema)
    samples, others = _flat(_records_of(made), known.schema), _flat(there, known.schema)
    near = nearest(records, others) - nearest(records, samples)
    found = {"samples: nearest distance": near.numpy()}
    if canaries.labels is not None and there.labels is not None and made.labels is not None:
        labels = canaries.labels.numpy()
        learnt = [
            _log_chances(rows, codes, records, labels)
            for rows, codes in ((samples, made.labels), (others, there.labels.numpy()))
        ]
        found["samples: classifier"] = learnt[0] - learnt[1]
    return found


def _flat(records: Batch, schema: Schema) -> Tensor:
    """Numbers from 0 to 1, whatever the records are."""
    if schema.kind == "images":
        return records.pixels().flatten(1)
    low = torch.tensor([0.0 if c.categories else (c.low or 0.0) for c in schema.columns])
    high = torch.tensor(
        [float(len(c.categories) - 1) if c.categories else (c.high or 1.0) for c in schema.columns]
    )
    return ((records.values - low) / (high - low).clamp(min=1e-12)).nan_to_num(-1.0)


def _log_chances(rows: Tensor, codes: Any, records: Tensor, labels: Any) -> Numbers:
    """What a classifier of `rows` says of the records' own classes; nothing, where it knows fewer than two."""
    known = np.unique(codes)
    if len(known) < 2:
        return np.zeros(len(records))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # any classifier will do
        classifier = LogisticRegression(max_iter=100).fit(rows.numpy(), codes)
    with np.errstate(divide="ignore"):  # of a chance of 0
        chances = classifier.predict_log_proba(records.numpy())
    places = np.searchsorted(known, labels).clip(max=len(known) - 1)
    found: Numbers = np.where(
        known[places] == labels, chances[np.arange(len(labels)), places], -50.0
    )
    return found
