"""Every error a user can meet: one sentence that names the cause and the remedy.

The command line prints the sentence and leaves with `exit_code`; nothing here ever quotes a private value.
"""

from __future__ import annotations


class SfumatoError(Exception):
    """Base of all expected errors; anything else that reaches the user is a bug."""

    exit_code = 1


class BadInput(SfumatoError):
    """What the caller gave cannot be used: a wrong value, shape, type, name or file."""

    exit_code = 2


class DataUnavailable(SfumatoError):
    """A named data set or network could not be fetched from any of its sources."""

    exit_code = 3


class BudgetExceeded(SfumatoError):
    """A release would cost more than the budget has left; raised before a row is read."""

    exit_code = 4


class PlanMismatch(SfumatoError):
    """A method spent something other than its plan promised; a bug in the method."""

    exit_code = 4


class CorruptArtifact(SfumatoError):
    """A saved file is damaged, was tampered with, or belongs to another version."""

    exit_code = 5


class RunConflict(SfumatoError):
    """A run folder already holds other work, or a resumed run was asked for other settings."""

    exit_code = 6
