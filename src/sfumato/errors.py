"""Every error a user can meet: one sentence that names the cause and the remedy.

The command line prints the sentence and leaves with `exit_code`; nothing here ever quotes a private value.

A machine that has run out of something is nobody's mistake and no bug. Every library says it in its own way (an errno, a class,
a sentence inside an exception of its own), so `out_of_resources` is the one place that recognises it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator


def printable(text: str) -> str:
    """The same in characters that every stream takes and no terminal obeys, however odd a name or value it quotes."""
    text = text.encode("utf-8", errors="backslashreplace").decode()
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


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
    """A release would cost more than the budget has left; raised before a row enters a sum."""

    exit_code = 4


class PlanMismatch(SfumatoError):
    """A method spent something other than its plan promised; a bug in the method."""

    exit_code = 4


class NotPublishable(PlanMismatch):
    """Something would have been published that is not on the list of what may be; a bug in the method."""


class CorruptArtifact(SfumatoError):
    """A saved file is damaged, was tampered with, or belongs to another version."""

    exit_code = 5


class RunConflict(SfumatoError):
    """A run folder already holds other work, or a resumed run was asked for other settings."""

    exit_code = 6


class OutOfResources(SfumatoError):
    """The machine has no more disk, memory, file handles or threads; what was finished is kept."""

    exit_code = 7

    def __init__(self, resource: str, where: str = "") -> None:
        super().__init__(resource, where)
        cause, self.remedy = _RESOURCES[resource]
        self.cause = f"{cause} while using {where}" if where else cause

    def __str__(self) -> str:
        return f"{self.cause}; {self.remedy}."


class ClusterFailed(SfumatoError):
    """The machines that should do the work cannot be reached, or were lost; what was finished is kept."""

    exit_code = 7


class Terminated(BaseException):
    """SIGTERM arrived. Like `KeyboardInterrupt` no `Exception`, so that `finally` cleans up and nobody swallows it."""

    exit_code = 143


_RESOURCES = {
    "disk": ("The disk is full", "free some space"),
    "size": (
        "A file grew beyond the size that this machine allows",
        "raise the limit (ulimit -f)",
    ),
    "device": ("The disk failed to read or write", "check the disk or use another one"),
    "memory": (
        "The machine ran out of memory",
        "close other programs, or make the batches or the method smaller "
        "(sfumato methods NAME lists its settings for --set)",
    ),
    "files": (
        "The machine ran out of file handles",
        "close other programs or raise the limit (ulimit -n)",
    ),
    "threads": (
        "The machine ran out of threads or processes",
        "close other programs or raise the limit (ulimit -u)",
    ),
}
_BY_ERRNO = {
    errno.ENOSPC: "disk",
    errno.EDQUOT: "disk",
    errno.EFBIG: "size",
    errno.EIO: "device",
    errno.ENOMEM: "memory",
    errno.EMFILE: "files",
    errno.ENFILE: "files",
}
# Rust and Arrow write the number into the sentence: "(os error 28)", "[errno 28]".
_NUMBER = re.compile(r"\b(?:os error|errno) (\d+)", re.IGNORECASE)
_BY_WORDS = (
    # The last two are torch's archive writer, which loses the errno.
    (
        "disk",
        (
            "no space left",
            "disk is full",
            "disk quota exceeded",
            "pytorchstreamwriter failed",
            "unexpected pos ",
        ),
    ),
    ("size", ("file too large",)),
    ("device", ("disk i/o error", "input/output error")),
    # "failed to map segment": a library that the loader found no room for.
    ("memory", ("allocate memory", "out of memory", "bad_alloc", "failed to map segment")),
    ("files", ("too many open files",)),
    ("threads", ("can't start new thread", "pthread_create")),
)
# numpy counts what a full disk did not take: "1024 requested and 512 written".
_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")
# Exceptions whose sentence is about values, which may be the user's words, rather than the machine.
_NEVER = (SfumatoError, ValueError, TypeError, LookupError, AttributeError, SyntaxError)


def out_of_resources(error: BaseException) -> OutOfResources | None:
    """The same failure as one of ours, if `error`, or what it was raised from, says that the machine ran out of something.

    A sentence of ours is believed unless the system itself contradicts it by an errno: whoever caught a `MemoryError` and spoke
    of the file that asked for it knew more.
    """
    ours = isinstance(error, SfumatoError)
    for link in _chain(error):
        if isinstance(link, OutOfResources):
            return link
        resource = _of_system(link) or (None if ours else _of_library(link))
        if resource is not None:
            name = getattr(link, "filename", None)
            return OutOfResources(resource, name if isinstance(name, str) else "")
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _of_system(error: BaseException) -> str | None:
    if isinstance(error, OSError):
        number = error.errno
    elif isinstance(error, _NEVER):
        return None
    else:
        found = _NUMBER.search(str(error))
        number = int(found[1]) if found else None
    return None if number is None else _BY_ERRNO.get(number)


def _of_library(error: BaseException) -> str | None:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "memory"
    if isinstance(error, _NEVER):
        return None
    text = str(error).lower()
    if _SHORT_WRITE.search(text):
        return "disk"
    return next((kind for kind, words in _BY_WORDS if any(w in text for w in words)), None)
