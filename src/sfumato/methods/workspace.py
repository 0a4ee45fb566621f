"""What a fit has beside the wall: public data, progress, a log that is published, checkpoints; and the wall's own progress.

Public: all that is kept here, since the log is published with the run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch

from sfumato import published
from sfumato.checkpoints import Checkpoint
from sfumato.data import may_share
from sfumato.errors import BadInput
from sfumato.generators.training import Part, Training
from sfumato.privacy import RunStore
from sfumato.progress import Progress, Stage
from sfumato.public.loading import PublicData

# Of public facts only: what config, statement and log of a run may hold.
_LOG = logging.getLogger(__name__)


class Workspace:
    """What a method may use while it fits besides the wall: public data, progress, a log, a place for checkpoints."""

    def __init__(
        self,
        store: RunStore,
        progress: Progress,
        public: PublicData | None = None,
        private_name: str | None = None,
    ) -> None:
        self.progress = progress
        self.public = public
        self._private_name = private_name  # of a named set, else None
        self._store = store

    def checkpoint_of(self, stage: str = "") -> Checkpoint | None:
        """A place for the checkpoint of one stage of several, or of the only one; None where nobody could go on from it."""
        return None if self._store.folder is None else self._store.checkpoint(stage)

    def resumed(self, stage: str = "") -> bool:
        """Whether a training of this stage was interrupted and goes on: what came before it is in its checkpoint."""
        checkpoint = self.checkpoint_of(stage)
        return checkpoint is not None and checkpoint.exists()

    def training(
        self, title: str, random: torch.Generator, *, stage: str = "", **parts: Part
    ) -> Training:
        """The training loop for these parts; of several stages each but the last has a name, and is not logged."""
        checkpoint, log = self.checkpoint_of(stage), None if stage else self.log
        return Training(
            title, random, checkpoint=checkpoint, progress=self.progress, log=log, **parts
        )

    def check_unseen(self, what: str, trained_on: Iterable[str]) -> None:
        """Raise if `what`, which is taken for public, was trained on the private data, as far as names can tell."""
        name = self._private_name
        if name is not None and any(may_share(name, seen) for seen in trained_on):
            raise BadInput(
                f"{what} was trained on {name}, which is the private data here, so its weights are not public and the "
                "guarantee would be void; take one that was trained on other data."
            )

    def released(self, label: str) -> None:
        _LOG.info("released: %s", label)
        self.log({"event": "release", "label": label})

    def log(self, record: dict[str, Any]) -> None:
        """Keep a record; it is published with the run, so it must be made of released numbers only, under known keys."""
        published.check("log", record)
        self._store.log(record)


class ReadingProgress:
    """Shows the wall's two slow parts, reading and noise, as stages; it is told fractions only."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._title: str | None = None
        self._done = 0.0
        self._open: Any = None
        self._stage: Stage | None = None

    def __enter__(self) -> Callable[[str, float], None]:
        return self._report

    def __exit__(self, *exc: object) -> None:
        self._close()

    def _report(self, title: str, fraction: float) -> None:
        if title != self._title:
            self._close()
            self._title, self._done = title, 0.0
            self._open = self._progress.stage(title, 1.0)
            self._stage = self._open.__enter__()
        assert self._stage is not None
        self._stage.advance(fraction - self._done)
        self._done = fraction
        if fraction >= 1:
            self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = self._stage = self._title = None
