"""The journal of paid steps: what each step answered since the last checkpoint, so that going on neither repeats nor skips one.

A series of steps is paid for as a whole before its first; a step that was answered must not be answered again with fresh noise
(that would be a second release), nor be lost. So every answer is appended here before the method sees it, and a resumed run is
given the answers again, without a row being read, until it has caught up. When the method's state is safe in a checkpoint, the
answers before it are forgotten. All of it is noisy and paid for, hence public by the guarantee; a finished run deletes it all
the same.

Layout: one line of JSON (the charge, and the first step that is not forgotten), then records of a fixed head, the numbers and a
checksum. A record is handed to the operating system whole before its answer is used, so kill -9 loses nothing; a record torn
by it was never used, and is cut off. If the machine itself loses power, answers that were only in its memory go with it.
"""

from __future__ import annotations

import fcntl
import io
import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from sfumato.errors import CorruptArtifact, RunConflict
from sfumato.privacy.accounting import Charge
from sfumato.storage import atomic_path

_HEAD = struct.Struct("<4sQBB6x4Q")  # mark, step, type, number of dimensions, sizes
_CHECK = struct.Struct("<I")
_MARK = b"STEP"
_TYPES: tuple[np.dtype[Any], ...] = (np.dtype("<f8"), np.dtype("<f4"))
_FORMAT = 1


class Journal:
    """The answers to one series of steps, on disk; held by one process at a time."""

    def __init__(self, path: Path, charge: Charge) -> None:
        self.path = path
        self.charge = charge
        self.first = 0  # the first step whose answer is not forgotten
        self._places: dict[int, int] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = path.with_suffix(".lock").open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise RunConflict(
                f"Another process is working on the run in {path.parent.parent}; wait for it or stop it, then resume."
            ) from None
        self._is_new = not path.exists()
        if self._is_new:
            self._start(0, {})
        self._stream: BinaryIO = path.open("r+b")
        self._scan()

    def begin(self, start: int) -> None:
        """Check that the series can go on at step `start`: no answer from there on may have been forgotten."""
        if start < self.first or (self._is_new and start > 0):
            raise CorruptArtifact(
                f"The checkpoint and the journal of paid steps in {self.path.parent.parent} do not belong together; restore both "
                "files, or begin a new run, which spends the budget anew."
            )

    def find(self, step: int) -> Tensor | None:
        """The answer that this step was given, if it was answered before."""
        place = self._places.get(step)
        if place is None:
            return None
        self._stream.seek(place)
        found = _read(self._stream)
        assert found is not None  # it was read whole when the journal was opened
        return torch.from_numpy(found[1])

    def keep(self, step: int, answer: Tensor) -> None:
        """Write down the answer to `step`; only then may it be used."""
        place = self._stream.seek(0, io.SEEK_END)
        self._stream.write(_record(step, answer))
        self._stream.flush()
        self._places[step] = place

    def forget(self, before: int) -> None:
        """Drop the answers to steps before `before`: a checkpoint holds what came of them."""
        if before <= self.first:
            return
        kept = {step: self.find(step) for step in self._places if step >= before}
        self._stream.close()
        self._start(before, {s: a for s, a in kept.items() if a is not None})
        self._stream = self.path.open("r+b")
        self._scan()

    def close(self) -> None:
        self._stream.close()
        self._lock.close()

    def _start(self, first: int, answers: dict[int, Tensor]) -> None:
        head = {"format": _FORMAT, "charge": self.charge.to_json(), "first": first}
        with atomic_path(self.path) as temporary:
            content = [json.dumps(head).encode() + b"\n"]
            content += [_record(step, answer) for step, answer in sorted(answers.items())]
            temporary.write_bytes(b"".join(content))

    def _scan(self) -> None:
        """Read every record; cut off a torn last one."""
        self._places = {}
        self._stream.seek(0)
        try:
            head = json.loads(self._stream.readline())
            charge, self.first = Charge(**head["charge"]), int(head["first"])
            right = head["format"] == _FORMAT
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged() from error
        if not right or charge != self.charge:
            raise CorruptArtifact(
                f"The paid steps in {self.path} were made under another plan; resume with the settings of the first run or use a "
                "new folder."
            )
        size = self.path.stat().st_size
        while (place := self._stream.tell()) < size:
            found = _read(self._stream)
            if found is None:
                if not self._is_last(place, size):
                    raise self._damaged()
                self._stream.truncate(place)
                break
            self._places[found[0]] = place

    def _is_last(self, place: int, size: int) -> bool:
        """Whether the unreadable record at `place` reaches to the end of the file, as one that was torn does."""
        # Not by its own word alone: its length may be what was damaged.
        if self._whole_record_after(place):
            return False
        self._stream.seek(place)
        head = self._stream.read(_HEAD.size)
        if len(head) < _HEAD.size or not any(head):
            return True
        mark, _, kind, dims, *sizes = _HEAD.unpack(head)
        if mark != _MARK or kind >= len(_TYPES) or dims > 4:
            return False
        length = math.prod(sizes[:dims]) * _TYPES[kind].itemsize
        return place + _HEAD.size + length + _CHECK.size >= size

    def _whole_record_after(self, place: int) -> bool:
        self._stream.seek(place + 1)
        rest = self._stream.read()
        found = rest.find(_MARK)
        while found >= 0:
            if _read(io.BytesIO(rest[found:])) is not None:
                return True
            found = rest.find(_MARK, found + 1)
        return False

    def _damaged(self) -> CorruptArtifact:
        return CorruptArtifact(
            f"{self.path} is damaged; restore the file, since answering its steps again spends the budget again."
        )


def _record(step: int, answer: Tensor) -> bytes:
    values = answer.detach().numpy()
    kind = _TYPES.index(values.dtype)
    sizes = [*values.shape, 0, 0, 0, 0][:4]
    content = _HEAD.pack(_MARK, step, kind, values.ndim, *sizes) + values.tobytes()
    return content + _CHECK.pack(zlib.crc32(content))


def _read(stream: BinaryIO) -> tuple[int, np.ndarray] | None:
    """The record at the stream's place; None if it is not whole."""
    head = stream.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    mark, step, kind, dims, *sizes = _HEAD.unpack(head)
    if mark != _MARK or kind >= len(_TYPES) or dims > 4:
        return None
    length = math.prod(sizes[:dims]) * _TYPES[kind].itemsize
    here, end = stream.tell(), stream.seek(0, io.SEEK_END)
    stream.seek(here)
    if length > end - here:
        return None
    content, check = stream.read(length), stream.read(_CHECK.size)
    if len(content) < length or len(check) < _CHECK.size:
        return None
    if _CHECK.unpack(check)[0] != zlib.crc32(head + content):
        return None
    values = np.frombuffer(content, _TYPES[kind]).reshape(sizes[:dims])
    return step, values.copy()
