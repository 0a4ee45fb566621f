"""What somebody who has to sign a release must see: two sentences, warnings, checks, fingerprints, and the lines to sign on.

All of it is public by the guarantee, or was stated by whoever signs, but for an audit of the method on its data, which is shown
only if its file is given and then under the badge.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sfumato.errors import BadInput
from sfumato.files import read_json
from sfumato.methods import MethodInfo, SavedRun, list_methods
from sfumato.methods.run import GENERATOR
from sfumato.published import BADGE
from sfumato.report.origin import checked_hash
from sfumato.report.verify import verify
from sfumato.report.words import bound, guess, power, powers, real_data

_LONGEST = 300
# An audit is of this run's claim if the two ε agree so far; accountants of two versions may differ a little.
_SAME_CLAIM = 1e-2


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Who decided what about the release, as they state it; what is empty is left to fill in by hand."""

    by: str = ""
    role: str = ""
    date: str = ""
    decision: str = ""

    def __post_init__(self) -> None:
        for name, text in asdict(self).items():
            if not isinstance(text, str) or len(text) > _LONGEST or not text.isprintable():
                raise BadInput(
                    f"`{name}` of the signature is not one line of at most {_LONGEST} characters; shorten it."
                )

    def lines(self) -> list[tuple[str, str]]:
        return [
            ("Name", self.by),
            ("Role", self.role),
            ("Date", self.date),
            ("Decision", self.decision),
        ]


def info_of(run: SavedRun) -> MethodInfo | None:
    """What is known of the run's method; None of one that is not installed here."""
    return next((m for m in list_methods() if m.name == run.config["method"]), None)


def two_sentences(statement: dict[str, Any], unit: str, single: bool, makes: str) -> list[str]:
    """Who is protected and how strongly; what may be concluded."""
    records = makes == "records"
    what = "These synthetic records are" if records else f"This {makes} is"
    as_if = f"Treat {'them' if records else 'it'} as if {'they' if records else 'it'} showed the private records."
    if not statement.get("private", True):
        return [f"NOT PRIVATE. {what} made at ε = ∞, without noise worth the name.", as_if]
    epsilon, delta = float(statement["epsilon"]), float(statement["delta"])
    if not statement.get("sound", True):
        return [
            f"{what} not private: the paper's claim of ε = {bound(statement['claimed']['epsilon'])} does not hold, and what was "
            f"spent comes to ε = {bound(epsilon)} (δ = {power(delta)}).",
            as_if,
        ]
    others, used = (
        ("all other records", "it was used")
        if single
        else (f"all records of every other {unit}", "its records were used")
    )
    return [
        f"{what} (ε = {bound(epsilon)}, δ = {power(delta)})-differentially private for {statement['unit']} of the original "
        f"data: whoever knows {others} and guesses whether {used} is right at most {guess(epsilon, delta)} of the time, "
        "where a coin is right 50 %.",
        f"What holds of the original data at large may be concluded from {'them' if records else 'it'}, as closely as "
        f"measurements on real data bear it out; about one {unit} nothing may be concluded beyond that bound.",
    ]


def warnings_of(run: SavedRun) -> list[str]:
    """What the terminal warned of when the run was made or measured, as far as it follows from what is public."""
    size = run.config["data"].get("size")
    large = run.budget.warning(size) if run.budget.neighbours.size_is_public else None
    found = [] if large is None else [powers(large).replace("delta", "δ")]
    same = measured_on_itself(run)
    return found if same is None else [*found, same]


def measured_on_itself(run: SavedRun) -> str | None:
    """A warning where the metrics are of real data that are called as those that the run was fitted on."""
    name = run.config["data"]["name"]
    if not any(real_data(metric["source"]) == name for metric in run.metrics):
        return None
    return (
        f"the metrics were measured on {name}, which is what the run was fitted on (or is called so): they flatter it; measure "
        "on records that were kept aside."
    )


def verified(run: SavedRun) -> dict[str, Any] | None:
    """What `sfumato verify` finds now, the report itself aside; None of a run that is not finished."""
    if not run.finished:
        return None
    found = verify(run.path, report=False)
    return {
        "passed": found.passed,
        # Where the run lies on this machine is nobody's business.
        "checks": [
            c.to_json() | {"told": c.sentence.replace(str(run.path), run.path.name)}
            for c in found.checks
        ],
    }


def fingerprints(run: SavedRun, files: Sequence[Path]) -> dict[str, str]:
    """SHA-256 by file name of what is released (never of the data): the generator, and files or folders made with it."""
    found = {}
    if run.finished:
        found[GENERATOR] = hashlib.sha256(run.generator).hexdigest()
    for path in files:
        found[path.name] = checked_hash(run, path)
    return found


def audited(run: SavedRun, file: Path | None) -> dict[str, Any] | None:
    """What a saved `sfumato audit … --json` says, in numbers that are never rounded in our favour."""
    if file is None:
        return None
    told = read_json(file)
    try:
        return _of_mechanisms(told) if "mechanisms" in told else _of_method(run, told, file)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{file} is no outcome of an audit; give what `sfumato audit run … --json` printed."
        ) from error


def _of_mechanisms(told: dict[str, Any]) -> dict[str, Any]:
    return {
        "of": "mechanisms",
        "passed": bool(told["passed"]),
        "confidence": float(told["confidence"]),
        "mechanisms": len(told["mechanisms"]),
        "ratio": max(float(m["ratio"]) for m in told["mechanisms"]),
        "badge": "",  # its records are made up
    }


def _of_method(run: SavedRun, told: dict[str, Any], file: Path) -> dict[str, Any]:
    budget = run.budget
    mine = (run.config["method"], budget.delta, budget.neighbours.value)
    theirs = (told["method"], float(told["delta"]), told["neighbours"])
    claim = float(told["epsilon"])
    if mine != theirs or not math.isclose(
        claim, float(run.statement_json["epsilon"]), rel_tol=_SAME_CLAIM
    ):
        raise BadInput(
            f"{file} is the audit of {told['method']} at ε = {claim:.4g}, δ = {told['delta']:g} under {told['neighbours']}, "
            f"and not of this run; type sfumato audit run {run.path} --data … --json."
        )
    return {
        "of": "method",
        "passed": bool(told["passed"]),
        "confidence": float(told["confidence"]),
        "data": str(told["data"]),
        "canaries": int(told["canaries"]),
        "epsilon": claim,
        "lower": float(told["white_box"]["epsilon_lower"]),
        "lower_from_samples": max(
            (float(a["epsilon_lower"]) for a in told["black_box"]), default=0.0
        ),
        "badge": BADGE,
    }


def audit_sentence(told: dict[str, Any]) -> str:
    sure = f"{100 * told['confidence']:g} %"
    if told["of"] == "mechanisms":
        outcome = "no lower bound on ε passes its claim" if told["passed"] else "A CLAIM IS BROKEN"
        return (
            f"Of {told['mechanisms']} mechanisms of the wall, tried on made-up records, {outcome}; the nearest comes to "
            f"{math.ceil(100 * told['ratio'])} % of it (confidence {sure})."
        )
    outcome = "Nothing passes its claim" if told["passed"] else "THE CLAIM IS BROKEN"
    return (
        f"{outcome}: one training of this method on {told['data']} with {told['canaries']:,} made-up records among the data "
        f"proves ε ≥ {_down(told['lower'])} from all that was released and ε ≥ {_down(told['lower_from_samples'])} from samples "
        f"alone, where ε = {bound(told['epsilon'])} is claimed (confidence {sure}; a low bound proves nothing)."
    )


def _down(lower: float) -> str:
    return f"{math.floor(100 * lower) / 100:g}"
