"""Whose records these are: the unit of privacy, where it is more than one record.

A unit (a patient, a household) may bring any number of records, anywhere in the data. What is told of it is PUBLIC: what a unit
is called, how it was read, how many of its records count at most. Which record is whose, and how many each has, is PRIVATE: it is
read once, when the wall asks for it, and no error quotes a name.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfumato.data.schema import MISSING
from sfumato.data.sources import Array
from sfumato.errors import BadInput

RECORD = "record"
FOLDER = "folder"
_UNNAMED = "unit"  # by a rule whose group has no name
# Of a unit with more records so many are drawn. A unit counts once however many there are, so a large number costs time only.
PER_UNIT = 64
MOST_PER_UNIT = 256
_BY_FOLDER, _BY_PATH = "the innermost folder of each file", "the path of each file, by "


@dataclass(frozen=True)
class Unit:
    """What the unit of privacy is; public."""

    name: str = RECORD  # one of them: "record", "patient"
    read_from: str = ""  # "the column 'patient_id'"
    at_most: int = 1  # records that count

    @property
    def single(self) -> bool:
        """Whether every record stands for itself."""
        return self.name == RECORD and not self.read_from

    @property
    def whole(self) -> str:
        """One unit, as sentences about neighbouring data sets need it."""
        return "record" if self.single else f"{self.name} with all its records"

    @property
    def plural(self) -> str:
        if self.name.endswith("s"):
            return self.name
        return f"{self.name[:-1]}ies" if self.name.endswith("y") else f"{self.name}s"

    @property
    def option(self) -> str | None:
        """What `--unit` was given; None of single records, and of an array that was passed in Python."""
        if self.read_from.startswith(_BY_PATH):
            return self.read_from.removeprefix(_BY_PATH)
        told = re.fullmatch(
            r"the (?:DICOM field (\w+)|(?:column|array) (.+?)(?: of (.+))?)", self.read_from
        )
        if told is not None:
            field, quoted, table = told.groups()
            with contextlib.suppress(SyntaxError, ValueError):
                column = field or str(ast.literal_eval(quoted))
                return f"{table}:{column}" if table else column
        return FOLDER if self.read_from == _BY_FOLDER else None

    @property
    def by_unnamed_rule(self) -> bool:
        """Whether a rule for paths tells it and gives it no name."""
        return self.read_from.startswith(_BY_PATH) and self.name == _UNNAMED

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "read_from": self.read_from, "at_most": self.at_most}

    @classmethod
    def from_json(cls, found: object) -> Unit:
        """As it was saved; a run that says nothing of units protects single records."""
        if found is None:
            return RECORDS
        if isinstance(found, dict) and set(found) == {"name", "read_from", "at_most"}:
            name, read_from, at_most = found["name"], found["read_from"], found["at_most"]
            if isinstance(name, str) and isinstance(read_from, str) and type(at_most) is int:
                return cls(name, read_from, at_most)
        raise BadInput("What is saved of the unit of privacy cannot be read.")


RECORDS = Unit()


class Units:
    """The unit of every record: what it is, and, for the wall alone, whose each record is."""

    def __init__(self, about: Unit, keys: Callable[[], Iterable[Hashable]], name: str) -> None:
        self.about = about
        self._keys, self._name = keys, name
        self._codes: Array | None = None

    def __repr__(self) -> str:
        return f"Units({self.about.name!r})"

    def codes(self, records: int) -> Array:
        """(records,) whole numbers from 0: the same for records of one unit. PRIVATE, and so is how many there are of each."""
        if self._codes is None:
            known: dict[Hashable, int] = {}
            found = [known.setdefault(key, len(known)) for key in self._keys()]
            if len(found) != records:
                raise BadInput(
                    f"The units of {self._name} are not as many as its records; give every record one."
                )
            self._codes = np.array(found, np.int64)
        return self._codes


def unit_name(told: str) -> str:
    """One of them, by the column or field that tells: PatientID and patient_id are a patient, StudyInstanceUID a study."""
    bare = re.sub(r"_id$|(?<=[a-z])(Instance)?U?ID$", "", told) or told
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", bare)
    return words.lower() if words != bare or re.fullmatch(r"[A-Z][a-z]+", bare) else bare


def unit_stated(option: str) -> str:
    """What a fit would call the unit that `--unit` states so: a name, a column, a table's column, a field or a rule."""
    told = option.strip()
    if re.search(r"\(.*[\\[.*+?]", told):  # a name may have parentheses too
        told = PathRule(told, labelled=False).name
    table = re.fullmatch(r".+\.(?:csv|parquet):([^:]+)(?::[^:]+)?", told, re.IGNORECASE)
    return unit_name(table[1] if table else told)


def unit_of(name: str, read_from: str, at_most: int | None) -> Unit:
    """A unit as a caller states it."""
    most = PER_UNIT if at_most is None else at_most
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST_PER_UNIT:
        raise BadInput(
            f"At most 1 to {MOST_PER_UNIT} records of a unit may count, not {most!r}; correct --per-unit (per_unit=)."
        )
    try:
        read_from.encode()
    except UnicodeEncodeError:
        raise BadInput(
            "What a unit is called must be text in UTF-8; correct --unit (unit=)."
        ) from None
    return Unit(unit_name(name), read_from, most)


def missing(what: str) -> BadInput:
    return BadInput(
        f"Some records have no {what}, so nobody knows whom they are about; give every record one, or leave those out."
    )


def by_column(values: Iterable[Any], column: str) -> Iterable[Hashable]:
    """Cells of a column as keys, blanks around text aside; a missing one is refused, however it is written.

    Records of nobody in particular must not become one person: each of them would be protected as a part of it only.
    """
    for value in values:
        key = value.strip() if isinstance(value, (str, bytes)) else value
        try:
            absent = key is None or key == b"" or bool(key != key)
            hash(key)
        except (TypeError, ValueError):
            raise BadInput(
                f"{column!r} holds something else than numbers or text, which tells no unit; convert it."
            ) from None
        if absent or (isinstance(key, str) and key in MISSING):
            raise missing(f"{column!r}")
        yield key


class PathRule:
    """The unit of a file by its path below the data's folder: one group of a regular expression, or its folder."""

    def __init__(self, rule: str, *, labelled: bool) -> None:
        self._skipped = 1 if labelled else 0  # the class folder
        self._pattern: re.Pattern[str] | None = None
        self.name, self.read_from = FOLDER, _BY_FOLDER
        if rule == FOLDER:
            return
        try:
            self._pattern = re.compile(rule)
        except (re.error, OverflowError, RecursionError) as error:
            raise BadInput(
                f"--unit {rule!r} is no regular expression ({error}); for example --unit 'patient_(\\d+)'."
            ) from None
        if self._pattern.groups != 1:
            raise BadInput(
                f"--unit {rule!r} needs exactly one group in parentheses, which tells the unit; for example 'patient_(\\d+)'."
            )
        self.name = next(iter(self._pattern.groupindex), _UNNAMED)
        self.read_from = f"{_BY_PATH}{rule}"

    def __call__(self, path: str) -> str:
        """The unit of one file; `path` has / between its parts."""
        if self._pattern is None:
            folders = path.split("/")[self._skipped : -1]
            if not folders:
                raise missing("folder of their own below the class")
            return "/".join(folders)
        found = self._pattern.search(path)
        if found is None or not found[1]:
            raise missing("unit by that rule in their path")
        return found[1]
