"""A query is declared once: all that an accountant must know of a noisy sum, and nothing of how its rows are computed.

A method lists its queries from public facts; the list is the promise. Plan, noise, statement and the ledger's charges follow from
it. The row function comes when the sum is asked for (`Gate.sum(label, rows)`), and what the query says of its rows is enforced
there: length by clipping, sign by clamping, a ⊗ a by using one factor. Everything here is public.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sfumato.errors import BadInput
from sfumato.privacy.accounting import Charge, Plan, calibrate
from sfumato.privacy.bounding import enforced_product_bound, enforced_vector_bound
from sfumato.privacy.budget import Budget
from sfumato.privacy.gradients import enforced_gradient_bound
from sfumato.privacy.groups import enforced_group_bound

if TYPE_CHECKING:
    from torch import nn

Over = Literal["records", "gradients", "groups", "shards"]


@dataclass(frozen=True, kw_only=True)
class Query:
    """One noisy sum of bounded vectors over all records, or a series of them over Poisson samples.

    `shape` is that of one summand: (d,) for a vector, (a, b) for a product of two vectors of which the second has norm ≤ 1,
    (blocks, a, b) for several such products side by side, clipped together.
    `share` is of the squared noise budget μ², against the shares of the method's other queries; they need not add up to 1.
    """

    label: str
    shape: tuple[int, ...]
    bound: float = 1.0
    segments: int = 1
    share: float = 1.0
    rate: float = 1.0
    steps: int | None = (
        None  # of a series (`Gate.steps`); None: asked once, of all records (`Gate.sum`)
    )
    over: Over = "records"
    parts: int = 1  # groups that a sample is divided into, or shards of the data
    non_negative: bool = False  # of vectors: enforced by clamping
    symmetric: bool = False  # of products: a ⊗ a, enforced by using one factor
    noise: float | None = (
        None  # UNSOUND: read with this noise multiplier, out of the budget, as a paper does
    )

    def __post_init__(self) -> None:
        if not (self.share > 0 and math.isfinite(self.share)):
            raise BadInput(
                f"Query {self.label!r}: its share of the budget must be positive, not {self.share}."
            )
        if self.steps is None and (self.rate < 1 or self.over != "records"):
            raise BadInput(f"Query {self.label!r} takes samples, so it must say in how many steps.")
        product = self.product
        if not 1 <= len(self.shape) <= 3 or min(self.shape) < 1 or (product and self.non_negative):
            raise BadInput(
                f"Query {self.label!r}: a summand is a vector, or a product of two vectors of any sign."
            )
        if self.symmetric and (len(self.shape) != 2 or self.shape[0] != self.shape[1]):
            raise BadInput(
                f"Query {self.label!r}: only a product of a vector with itself is symmetric."
            )
        if self.over != "records" and (product or self.non_negative or self.segments != 1):
            raise BadInput(
                f"Query {self.label!r}: of {self.over} a summand is one vector of any sign, in one segment."
            )
        if (
            not 0 < self.rate <= 1
            or min(self.segments, self.parts, 1 if self.steps is None else self.steps) < 1
        ):
            raise BadInput(
                f"Query {self.label!r}: the rate lies in (0, 1], and segments, parts and steps are at least 1."
            )

    @property
    def dim(self) -> int:
        return math.prod(self.shape)

    @property
    def product(self) -> bool:
        """Whether summands are products of two vectors."""
        return len(self.shape) > 1

    @property
    def factor_bounds(self) -> tuple[float, float]:
        """Of a product: the bounds of its two factors."""
        root = math.sqrt(self.bound)
        return (root, root) if self.symmetric else (self.bound, 1.0)

    @property
    def enforced(self) -> float:
        """The norm that no summand exceeds once the wall has clipped and rounded it."""
        if self.over == "gradients":
            return enforced_gradient_bound(self.bound)
        if self.over in ("groups", "shards"):
            return enforced_group_bound(self.dim, self.bound)
        if self.product:
            *left, right = self.shape
            return enforced_product_bound(math.prod(left), right, *self.factor_bounds)
        return enforced_vector_bound(self.bound)

    def charge(self, noise_multiplier: float) -> Charge:
        once = self.steps is None
        return Charge(
            label=self.label,
            bound=self.enforced,
            noise_multiplier=noise_multiplier,
            rate=self.rate,
            steps=1 if self.steps is None else self.steps,
            dimension=self.segments * self.dim,
            replace_ratio=math.sqrt(2) if once and (self.non_negative or self.symmetric) else 2.0,
            summands="records" if self.over == "gradients" else self.over,
            sampler="discrete" if once else "floating",
        )


def gradient_query(
    label: str, network: nn.Module, *, over: Over = "gradients", **more: Any
) -> Query:
    """Each record's gradient with respect to all parameters of the network; "records" where a method's own rows make it."""
    numbers = sum(p.numel() for p in network.parameters())
    return Query(label=label, shape=(numbers,), over=over, **more)


def plan(queries: Sequence[Query], noise: float) -> Plan:
    """The charges at which all queries together cost what one Gaussian sum of noise multiplier `noise` would.

    A step over a sample of rate q with noise multiplier m spends about (q ÷ m)² of μ², exactly so at rate 1 or large noise;
    `calibrate` then finds the `noise` at which the exact account of the list meets the budget.
    """
    whole = math.fsum(q.share for q in queries if q.noise is None)
    return tuple(
        q.charge(
            q.noise
            if q.noise is not None
            else noise * q.rate * math.sqrt((q.steps or 1) * whole / q.share)
        )
        for q in queries
    )


def calibrated(queries: Sequence[Query], budget: Budget) -> float:
    """The `noise` at which what is counted of the queries costs the budget."""
    counted = [q for q in queries if q.noise is None]
    return calibrate(lambda noise: plan(counted, noise), budget)


def claimed(charges: Plan, queries: Sequence[Query]) -> Plan | None:
    """What a paper counts, where that is not everything; None for whatever is sound."""
    if all(q.noise is None for q in queries):
        return None
    uncounted = {q.label for q in queries if q.noise is not None}
    return tuple(c for c in charges if c.label not in uncounted)


def gaussian_noise(budget: Budget) -> float:
    """The noise multiplier of one Gaussian sum at this budget: how loud noise is, before any method is chosen."""
    return calibrated([Query(label="one sum", shape=(1,))], budget)
