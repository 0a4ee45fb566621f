"""Checking a run that one was handed: is everything there, does it belong together, and does it cost what it says?

Nothing is believed that can be worked out: hashes are taken again, ε is computed from the charges by a second route that shares
no code with calibration, and what people read (statement, generator, samples, report) is compared with the store it came from.

Reads what is public by the guarantee, and no data. It cannot tell whether the noise was really drawn: whoever could change the
program could also have kept the noise.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato._version import __version__
from sfumato.errors import BudgetExceeded, CorruptArtifact, SfumatoError
from sfumato.files import sha256_of
from sfumato.methods import SavedRun
from sfumato.privacy.statement import NOT_PRIVATE
from sfumato.privacy.store import is_release
from sfumato.privacy.verification import agrees, second_epsilon

_REPORT_MARK = re.compile(r'<meta name="sfumato-release" content="([0-9a-f]{64})"')
# The second route may differ from the first by the width of its own bounds.
_ROUTES = 1e-3


@dataclass(frozen=True)
class Check:
    """One line of the outcome."""

    name: str
    passed: bool
    sentence: str
    code: int = 0  # the exit code if it failed

    def to_json(self) -> dict[str, Any]:
        return {"check": self.name, "passed": self.passed, "told": self.sentence}


@dataclass(frozen=True)
class Verification:
    run: Path
    checks: tuple[Check, ...]
    private: bool = True  # not at ε = ∞, where there is nothing to keep

    @property
    def passed(self) -> bool:
        return all(c.passed for c in self.checks)

    @property
    def code(self) -> int:
        return next((c.code for c in self.checks if not c.passed), 0)

    @property
    def outcome(self) -> str:
        failed = [c for c in self.checks if not c.passed]
        if not failed:
            told = "" if self.private else f" {NOT_PRIVATE}"
            return f"PASS: {self.run} is whole, and its releases cost no more than it states.{told}"
        return f"FAIL: {failed[0].sentence}"

    def to_json(self) -> dict[str, Any]:
        return {
            "run": str(self.run),
            "passed": self.passed,
            "verdict": self.outcome,
            "checks": [c.to_json() for c in self.checks],
            **({} if self.private else {"private": False}),
        }


def verify(path: Path | str, *, report: bool = True) -> Verification:
    """Check the finished run in `path`, and its `report`; raises only if there is none."""
    run = SavedRun(path)
    checks, private = [], True
    try:
        for name, check in _CHECKS.items():
            if name == "report" and not report:
                continue
            try:
                checks.append(Check(name, True, check(run)))
            except SfumatoError as error:
                checks.append(Check(name, False, str(error), error.exit_code))
        with contextlib.suppress(SfumatoError):  # then a check has failed and says why
            private = run.budget.private
    finally:
        run.close()
    return Verification(run.path, tuple(checks), private)


def _store(run: SavedRun) -> str:
    if run.version == 1:
        return "A run of version 0.1.0: every file is the one its manifest names (it has no store)."
    run.check_store()
    return f"The store is whole; its seal is {run.fingerprint[:16]}…"


def _version(run: SavedRun) -> str:
    made = run.config.get("sfumato")
    if not isinstance(made, str) or _numbers(made) > _numbers(__version__):
        raise CorruptArtifact(
            f"The run was made by sfumato {made}, which this version ({__version__}) does not know; verify it with that one."
        )
    return f"Made by sfumato {made}, read by {__version__}."


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])


def _answers(run: SavedRun) -> str:
    """Every promised release was made, once, under the promised charge, and nothing else was."""
    answered: dict[str, list[Any]] = {c.label: [] for c in run.charges}
    for answer in run.answers():
        if answer.label not in answered:
            raise CorruptArtifact(
                f"The run holds a release {answer.label!r} that was not promised."
            )
        answered[answer.label].append(answer)
    for charge in run.charges:
        found = answered[charge.label]
        if run.version == 1 and not is_release(charge):
            continue  # the answers of steps were not kept
        if sorted(a.step for a in found) != list(range(charge.steps)):
            raise CorruptArtifact(
                f"Of {charge.label!r} {len(found)} of {charge.steps} promised answers are there."
            )
        for answer in found:
            if answer.charge != charge:
                raise CorruptArtifact(
                    f"{charge.label!r} was answered under another charge than the plan's."
                )
            if answer.value is not None and charge.dimension not in (0, answer.value.numel()):
                raise CorruptArtifact(
                    f"{charge.label!r} has {answer.value.numel()} numbers and {charge.dimension} were promised."
                )
    return f"All {len(run.charges)} promised releases were made, once each."


def _noise(run: SavedRun) -> str:
    """What the statement tells of each release is what its charge says."""
    told = run.statement_json["releases"]
    if len(told) != len(run.charges):
        raise CorruptArtifact("The statement lists other releases than were charged.")
    for line, charge in zip(told, run.charges, strict=True):
        facts = {
            **charge.to_json(),
            "noise_std": charge.noise_std,
            "sensitivity": charge.sensitivity(run.budget.neighbours),
        }
        for name, value in facts.items():
            found = line.get(name, value) if isinstance(line, dict) else None
            same = (
                math.isclose(found, value, rel_tol=1e-9)
                if isinstance(value, float) and isinstance(found, int | float)
                else found == value
            )
            if not same:
                raise CorruptArtifact(
                    f"The statement tells another {name} of {charge.label!r} than was charged."
                )
    return "Bound, noise, sampling and sensitivity of every release are what was charged."


def _epsilon(run: SavedRun) -> str:
    stated, delta = float(run.statement_json["epsilon"]), run.budget.delta
    low, high = second_epsilon(run.charges, delta, run.budget.neighbours)
    if not stated >= low * (1 - 1e-7):
        raise BudgetExceeded(
            f"The statement promises ε = {stated:.6g}, and by a second route its releases cost at least ε = {low:.6g}."
        )
    sound = run.statement_json.get("sound", True)
    if sound and stated > run.budget.epsilon * (1 + 1e-9):
        raise BudgetExceeded(
            f"The statement promises ε = {stated:.6g}, more than the budget of {run.budget.epsilon:.6g}."
        )
    if not agrees(stated, (low, high)):
        raise CorruptArtifact(
            f"The statement promises ε = {stated:.6g}, far above what its releases cost by a second route ({high:.6g})."
        )
    known = "" if run.budget.private else "NOT PRIVATE, ε = ∞ was asked for: "
    return f"{known}ε = {stated:.6g} at δ = {delta:g}; by a second route between {low:.6g} and {high:.6g}."


def _statement(run: SavedRun) -> str:
    if run.statement.sound != run.statement_json.get("sound", True):
        raise CorruptArtifact("The statement does not say whether the run is sound.")
    for relation, value in run.statement.epsilon_under().items():
        told = run.statement_json.get("epsilon_under", {}).get(relation)
        if not isinstance(told, int | float) or not told >= value * (1 - _ROUTES):
            raise BudgetExceeded(
                f"Under {relation} the statement tells ε = {told}, and the releases cost {value:.6g}."
            )
    return "The statement is that of these charges, under every relation."


def _exports(run: SavedRun) -> str:
    for name, content in run.exports().items():
        path = run.path / name
        if not path.is_file():
            raise CorruptArtifact(
                f"{name} is missing; `sfumato export {run.path}` writes it again from the store."
            )
        if path.read_bytes() != content:
            what = (
                "is another generator than this run's"
                if name == "generator.safetensors"
                else "is not what the store says"
            )
            raise CorruptArtifact(
                f"{name} {what}; `sfumato export {run.path}` writes it again from the store."
            )
    return "Statement, settings, generator, samples and log are those of the store."


def _report(run: SavedRun) -> str:
    page = run.path / "report.html"
    if not page.exists():
        return "There is no report.html to compare."
    found = _REPORT_MARK.search(page.read_text(encoding="utf-8", errors="replace"))
    if found is None:
        raise CorruptArtifact(
            "report.html does not name the run it was made of; make it again with `sfumato report`."
        )
    if found[1] != run.fingerprint:
        raise CorruptArtifact(
            "report.html was made of another run or another state of this one; make it again with `sfumato report`."
        )
    return f"report.html ({sha256_of(page)[:16]}…) was made of this run."


_CHECKS: dict[str, Callable[[SavedRun], str]] = {
    "store": _store,
    "version": _version,
    "releases": _answers,
    "noise": _noise,
    "epsilon": _epsilon,
    "statement": _statement,
    "files": _exports,
    "report": _report,
}


def lines(verification: Verification) -> Iterator[str]:
    """For the terminal: a line a check, then the outcome."""
    for check in verification.checks:
        yield f"{'pass' if check.passed else 'FAIL'}  {check.name:<9}  {check.sentence}"
    yield verification.outcome
