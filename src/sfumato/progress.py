"""Progress on long work, drawn on standard error and only there.

Library code takes a `Progress` and reports through it; the base class is silent, the console draws. Nothing here may be
given a number made from private rows: a stage knows its share done, not what was seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as RichProgress,
)

from sfumato.errors import BadInput


class Stage:
    """One piece of work with a known length."""

    def advance(self, amount: float = 1.0, **facts: float | str) -> None:
        """Move on by `amount` and show `facts` (a loss, a speed) beside the bar."""


class Progress:
    """The silent reporter, and the interface of the others."""

    @contextlib.contextmanager
    def stage(self, title: str, total: float) -> Iterator[Stage]:
        yield Stage()

    def note(self, text: str) -> None:
        """Say one line."""


def progress_of(given: Progress | None) -> Progress:
    """What a caller passed as `progress=`; the silent one for None."""
    if given is None or isinstance(given, Progress):
        return given or Progress()
    raise BadInput(
        f"Progress is given as {type(given).__name__}; pass sfumato.progress.ConsoleProgress(), or leave it out."
    )


class _ConsoleStage(Stage):
    def __init__(self, bars: RichProgress, task: int) -> None:
        self._bars = bars
        self._task = task

    def advance(self, amount: float = 1.0, **facts: float | str) -> None:
        self._bars.update(self._task, advance=amount)  # type: ignore[arg-type]
        if facts:
            shown = "  ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in facts.items()
            )
            self._bars.update(self._task, facts=shown)  # type: ignore[arg-type]


class ConsoleProgress(Progress):
    """Bars on a terminal; one line at the start and end of each stage elsewhere."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)

    @contextlib.contextmanager
    def stage(self, title: str, total: float) -> Iterator[Stage]:
        if not self.console.is_terminal:
            self.console.print(f"{title} …", highlight=False)
            yield Stage()
            return
        with RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[facts]}"),
            console=self.console,
            transient=False,
        ) as bars:
            task = bars.add_task(title, total=total, facts="")
            yield _ConsoleStage(bars, task)
            bars.update(task, completed=total)

    def note(self, text: str) -> None:
        self.console.print(text, highlight=False)
