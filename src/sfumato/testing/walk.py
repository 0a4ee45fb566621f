"""The walk of a record: which functions see private rows on the way from the data set to a noisy sum, and where they stand.

    python -m sfumato.testing.walk            # docs/walk.md, as it should read now
    python -m sfumato.testing.walk --json     # the counts

One small fit is followed call by call; the page is made of what was seen, so it stays true.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import sfumato
from sfumato.data import Batch
from sfumato.methods import get_method
from sfumato.privacy import PrivateData
from sfumato.testing.methods import OF_MANY, small_images

_ROOT = str(Path(sfumato.__file__).parent)


@dataclass(frozen=True)
class Station:
    """A function that was entered: its file in the package, its name, the line where it begins."""

    file: str
    function: str
    line: int
    holds: bool  # a batch of private rows, in its arguments
    caller: str  # the room that it was entered from

    @property
    def room(self) -> str:
        return _room(self.file)


@dataclass
class Walk:
    """What was seen while one method was fitted."""

    sums: dict[str, list[Station]]  # by label: all stations of that sum, in order
    holders: set[Station]  # every function that held a batch, in any sum

    def outside(self) -> list[Station]:
        """The functions outside `privacy/` and the readers of `data/` that hold private rows."""
        rooms = ("privacy", "data", "engines")
        found = {(s.file, s.line): s for s in self.holders if s.room not in rooms}
        return [station for _, station in sorted(found.items())]

    def changes_of_room(self, label: str) -> int:
        """How often a call hands the records of one batch on to another room; and once more, back to the wall."""
        return sum(s.holds and s.room != s.caller for s in self.one_batch(label)[1:]) + 1

    def one_batch(self, label: str) -> list[Station]:
        """The stations of the first batch, from the wall to the rows and back; how long a batch is, is asked all the time."""
        ends = {"BoundedSum._of_part": "BoundedSum._unfit", "OuterSum._bounded": "OuterSum._units"}
        stations = [s for s in self.sums[label] if s.function != "Batch.__len__"]
        start = next(i for i, s in enumerate(stations) if s.function in ends)
        last = ends[stations[start].function]
        end = next(i for i, s in enumerate(stations) if i > start and s.function == last)
        return stations[start : end + 1]


def follow(name: str, **settings: Any) -> Walk:
    """Fit a method on a few images and watch."""
    walk, label = Walk({}, set()), [""]
    # A map that is met for the first time is tried on public rows: that is not the walk of a record.
    trying = [0]

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(_ROOT) or "/testing/" in code.co_filename:
            return
        trial = code.co_qualname.endswith(("_good_sizes", "GradientSum.check"))
        if trial:
            trying[0] += 1 if event == "call" else -1 if event == "return" else 0
        if event != "call" or trying[0] or not label[0] or code.co_name.startswith("<"):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        holds = any(isinstance(frame.f_locals.get(n), Batch) for n in names)
        file = code.co_filename[len(_ROOT) + 1 :]
        name = code.co_qualname.replace(".<locals>", "")
        station = Station(file, name, code.co_firstlineno, holds, _caller(frame))
        walk.sums[label[0]].append(station)
        if holds:
            walk.holders.add(station)

    with _labelled(walk, label):
        sys.setprofile(watch)
        try:
            get_method(name)(**settings).fit(small_images(), OF_MANY)
        finally:
            sys.setprofile(None)
    return walk


def _room(file: str) -> str:
    return file.partition("/")[0].removesuffix(".py")


def _caller(frame: FrameType) -> str:
    """The room of the nearest function of ours that called."""
    back = frame.f_back
    while back is not None and not back.f_code.co_filename.startswith(_ROOT):
        back = back.f_back
    return "" if back is None else _room(back.f_code.co_filename[len(_ROOT) + 1 :])


@contextmanager
def _labelled(walk: Walk, label: list[str]) -> Iterator[None]:
    """Know which sum is being asked."""
    honest = PrivateData.noisy_sum

    def noisy_sum(self: PrivateData, *given: Any, **named: Any) -> Any:
        label[0] = named["label"]
        walk.sums.setdefault(label[0], [])
        try:
            return honest(self, *given, **named)
        finally:
            label[0] = ""

    PrivateData.noisy_sum = noisy_sum  # type: ignore[method-assign]
    try:
        yield
    finally:
        PrivateData.noisy_sum = honest  # type: ignore[method-assign]


def page(walk: Walk, label: str = "class means") -> str:
    """docs/walk.md"""
    stations = walk.one_batch(label)
    rows, room = [], ""
    for station in stations:
        arrow = "**" if station.room != room else ""
        room = station.room
        where = f"`{station.file}:{station.line}`"
        rows.append(
            f"| {arrow}{room}{arrow} | `{station.function}` | {where} | {'yes' if station.holds else ''} |"
        )
    outside = walk.outside()
    held = "\n".join(f"- `{s.function}` in `{s.file}:{s.line}`" for s in outside)
    files = len({s.file for s in outside})
    return f"""# The walk of a record

One record through `mixture`, from the wall to its vector and into the sum “{label}”: every function that is entered while one
batch is turned into whole grid units, in order. The page is made by `python -m sfumato.testing.walk`, which follows a small fit
call by call; a test compares.

The question is asked by `Gate.sum` (`privacy/gate.py`): it is charged to the ledger before a row is read (`privacy/wall.py`), the
engine streams the rows past (`engines/local.py`), and each batch goes this way:

| room | function | place | holds private rows |
|---|---|---|---|
{chr(10).join(rows)}

A call hands the records on to another room {walk.changes_of_room(label) - 1} times, and then the way goes back:
{walk.changes_of_room(label)} changes of room. Noise is then drawn once, for the whole sum, and the release is on the disk
before the method sees it (`privacy/store.py`).

## Who holds private rows

In the whole fit, {len(outside)} functions outside `privacy/` and the readers in `data/` are given a batch of private rows, in
{files} files. Each is a pure function from a batch to rows: a test reads the source and refuses any that keeps something.

{held}
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sfumato.testing.walk", description=__doc__)
    parser.add_argument("method", nargs="?", default="mixture")
    parser.add_argument("--json", action="store_true", help="the counts instead of the page")
    given = parser.parse_args()
    walk = follow(given.method)
    if given.json:
        outside = walk.outside()
        counts = {
            "changes of room": {label: walk.changes_of_room(label) for label in walk.sums},
            "functions that hold a batch outside privacy": len(outside),
            "in files": len({s.file for s in outside}),
        }
        sys.stdout.write(json.dumps(counts, indent=1) + "\n")
    else:
        sys.stdout.write(page(walk))


if __name__ == "__main__":
    main()
