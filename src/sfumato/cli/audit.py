"""`sfumato audit mechanism`: try to break the wall, and say how far that got.

Everything printed is public: the records are made up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from sfumato.cli.options import debug_option, json_option, progress_for, quiet_option
from sfumato.cli.printing import print_json, print_table, say

if TYPE_CHECKING:
    from sfumato.privacy.audit import Finding

BROKEN = 8
CONFIDENCE = 0.999


class Effort(NamedTuple):
    """Draws on each side: of pairs that stand side by side, and of each of a number of pairs by itself."""

    draws: int
    alone: int
    pairs_alone: int


QUICK = Effort(6_000, 60, 1)
FULL = Effort(40_000, 400, 4)


@click.group(name="audit")
@debug_option
def audit() -> None:
    """Try to break the guarantee: lower bounds on ε to hold against the claims.

    \b
    Example:
      sfumato audit mechanism
      sfumato audit mechanism --full --json
    """


@audit.command()
@click.option(
    "--quick/--full",
    "quick",
    default=True,
    help="Every mechanism within a minute; or all relations, more pairs and seven times the draws within twenty.",
)
@json_option
@quiet_option
@debug_option
@click.pass_context
def mechanism(context: click.Context, /, quick: bool, as_json: bool, quiet: bool) -> None:
    """Audit every mechanism of the wall on made-up neighbours that are as bad as they get.

    For each: the ε that is claimed at δ = 1e-5, and a lower bound on it, found by telling the wall's noisy answers with a
    record from those without it; how far apart two neighbours' sums are, and what is charged for. All lower bounds hold
    together with a confidence of 99.9 %. The exit code is 8 if a lower bound passes its claim, or a distance its sensitivity.

    \b
    Example:
      sfumato audit mechanism
      sfumato audit mechanism --full --json
    """
    from sfumato.privacy.audit import DELTA
    from sfumato.privacy.audit import audit as audited
    from sfumato.testing.neighbours import mechanisms

    effort = QUICK if quick else FULL
    tried = mechanisms(full=not quick)
    with progress_for(quiet or as_json).stage("Auditing mechanisms", len(tried)) as stage:
        found = audited(
            tried,
            draws=effort.draws,
            alone=effort.alone,
            pairs_alone=effort.pairs_alone,
            confidence=CONFIDENCE,
            on_finding=lambda one: stage.advance(),
        )
    broken = [one for one in found if not one.passed]
    if as_json:
        print_json(
            {
                "confidence": CONFIDENCE,
                "delta": DELTA,
                "passed": not broken,
                "mechanisms": [one.to_json() for one in found],
            }
        )
    else:
        print_table(
            (
                "Mechanism",
                "Neighbours",
                "ε claimed",
                "ε measured",
                "Ratio",
                "Sensitivity",
                "Measured",
                "Pairs",
                "Draws",
                "",
            ),
            [row_of(one) for one in found],
        )
        click.echo(
            f"ε at δ = {DELTA:g}; measured from a lower bound to an upper one. All lower bounds hold together "
            f"with a confidence of {CONFIDENCE:.1%}."
        )
    if broken:
        for one in broken:
            say(_sentence(one))
        context.exit(BROKEN)
    if not as_json:
        click.echo(f"No lower bound passes its claim, in {len(found)} mechanisms.")


def row_of(one: Finding) -> tuple[str, ...]:
    best = one.best
    upper = f"{best.upper:.2f}" if best.upper < 100 else "∞"
    return (
        one.mechanism,
        one.neighbours.value,
        f"{one.epsilon:.3g}",
        f"{best.lower:.2f} … {upper}",
        f"{best.lower / one.epsilon:.0%}",
        f"{one.sensitivity:.5f}",
        f"{one.distance:.5f}",
        str(one.pairs),
        f"{sum(bound.draws for bound in one.bounds):,}",
        "" if one.passed else "broken",
    )


def _sentence(one: Finding) -> str:
    name = f"Error: {one.mechanism} under {one.neighbours.value}"
    if one.too_far:
        return (
            f"{name}: one record moves the sum by {one.distance:.6g} and {one.sensitivity:.6g} is charged "
            f"({one.farthest})."
        )
    return f"{name}: ε is at least {one.best.lower:.3g} and {one.epsilon:.3g} is claimed ({one.best.pair})."
