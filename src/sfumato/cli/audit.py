"""`sfumato audit mechanism · run`: try to break the wall, or a whole method, and say how far that got.

What `mechanism` prints is public: its records are made up. What `run` prints depends on the data that it is given, and is for
their owner: it is printed and kept nowhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sfumato.cli.options import (
    budget_of,
    data_option,
    debug_option,
    facts_options,
    fit_budget_options,
    json_option,
    load_data,
    parse_facts,
    parse_settings,
    progress_for,
    public_option,
    quiet_option,
    set_option,
)
from sfumato.cli.printing import print_json, print_table, say
from sfumato.errors import BadInput
from sfumato.files import read_json

if TYPE_CHECKING:
    from sfumato.methods import Method
    from sfumato.privacy import Budget
    from sfumato.privacy.audit import Finding
    from sfumato.testing.canaries import Attack, RunFinding

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
      sfumato audit run merf --data digits:train --epsilon 8 --delta 1e-5
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


@audit.command()
@click.argument("config", metavar="METHOD|RUN|CONFIG.JSON")
@data_option
@fit_budget_options
@set_option
@public_option
@click.option(
    "--canaries",
    type=click.IntRange(24, 20_000),
    default=1_000,
    help="How many made-up records are hidden among the data, each by a coin.",
)
@facts_options
@json_option
@quiet_option
@debug_option
@click.pass_context
def run(
    context: click.Context,
    /,
    config: str,
    spec: str,
    epsilon: float | None,
    delta: float | None,
    neighbours: str,
    settings: tuple[str, ...],
    public_spec: str | None,
    canaries: int,
    as_json: bool,
    quiet: bool,
    **facts: Any,
) -> None:
    """Audit a whole method in one training: made-up records come by coins, and the coins are guessed.

    The method is fitted once on the data with canaries among them. Then the coins are guessed from all that the wall
    answered (white-box), and from samples alone (black-box): how many guesses are right gives a lower bound on ε, with a
    confidence of 95 %. Besides, the noise is held against what is charged, and the sums against what their records add. The
    exit code is 8 if anything passes its claim. A run folder or its config.json stands for the method, settings and budget of
    that run; what is given beside it replaces them.

    The outcome is computed on the data and NOT covered by ε; it is printed and written nowhere.

    \b
    Example:
      sfumato audit run merf --data digits:train --epsilon 8 --delta 1e-5
      sfumato audit run gan --data digits:train --epsilon 8 --delta 1e-5 --set steps=300 --set rate=0.1 --canaries 500
      sfumato audit run runs/first --data digits:train --json
    """
    from sfumato.public.loading import load_public
    from sfumato.testing.canaries import audit_method

    given = parse_settings(settings)
    budget = None if epsilon is None or delta is None else budget_of(epsilon, delta, neighbours)
    method, budget = _method_and_budget(config, given, budget)
    if not budget.private:
        raise BadInput(
            "A fit at epsilon = inf claims nothing that an audit could refute; give a finite --epsilon and a --delta."
        )
    progress = progress_for(quiet or as_json)
    data = load_data(spec, progress, **parse_facts(**facts))
    public = None if public_spec is None else load_public(public_spec, data.schema, progress)
    found = audit_method(method, data, budget, canaries=canaries, public=public, progress=progress)
    if as_json:
        print_json(found.to_json())
    else:
        _tell_run(found)
    if not found.passed:
        for sentence in found.sentences():
            say(f"Error: {found.method}: {sentence}.")
        context.exit(BROKEN)


def _method_and_budget(
    config: str, given: dict[str, str], budget: Budget | None
) -> tuple[Method, Budget]:
    """From the name of a method, or from the configuration of a run, whose settings and budget those given replace."""
    from sfumato.methods import SavedRun, get_method
    from sfumato.privacy import Budget

    path = Path(config)
    if not path.exists():
        if budget is None:
            raise BadInput(
                "--epsilon or --delta is missing and has no default; give both, or a run folder, which has them."
            )
        return get_method(config).from_settings(given), budget
    if path.is_dir():
        with SavedRun(path, unfinished=True) as saved:
            told: Any = saved.config
    else:
        told = read_json(path)
    try:
        cls = get_method(told["method"])
        known = {s.name for s in cls.settings()}
        earlier = {k: v for k, v in told["settings"].items() if k in known}
        return cls.from_settings(given, **earlier), budget or Budget.from_json(told["budget"])
    except (AttributeError, KeyError, TypeError) as error:
        raise BadInput(
            f"{config} is no configuration of a run ({error}); give a run folder, its config.json, or a method's name."
        ) from error


def _tell_run(found: RunFinding) -> None:
    delta, relation = found.budget.delta, found.budget.neighbours.value
    click.echo(
        f"{found.method} on {found.data}: ε = {found.epsilon:.4g} claimed at δ = {delta:g} under {relation}; "
        f"{found.canaries:,} canaries, {found.seconds:.0f} s."
    )
    print_table(
        ("Guessed from", "ε at least", "Assuming nothing", "Ratio", "Right guesses"),
        [_attack_row(one, found.epsilon) for one in found.attacks],
    )
    print_table(
        ("Release", "Noise ÷ charged", "Sensitivity", "Measured", "Canaries' part known?", ""),
        [
            (
                one.charge.label,
                f"{one.noise:.3f}",
                f"{one.charge.sensitivity(found.budget.neighbours):.5f}",
                f"{one.moved:.5f}" if one.moved else "–",
                "yes" if one.scored else "no",
                "broken" if one.broken else "",
            )
            for one in found.answers
        ],
    )
    click.echo(
        "All lower bounds hold together with a confidence of 95 %; a low one proves nothing. "
        "Computed on the data: NOT covered by ε."
    )
    if found.passed:
        click.echo("Nothing passes its claim.")


def _attack_row(one: Attack, epsilon: float) -> tuple[str, ...]:
    right = ", ".join(f"{g.right} of {g.guessed}" for g in one.guesses)
    return (
        one.name,
        f"{one.lower:.2f}",
        f"{one.region:.2f}",
        f"{one.lower / epsilon:.0%}",
        right,
    )
