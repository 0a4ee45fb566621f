"""The owner's look at the data before anything is paid: what is in them, beside what was stated.

Everything here is computed from PRIVATE rows and names files, values and counts. It is for whoever owns the data, on that
person's screen; it is no part of any release, and ε does not cover it. `inspection` is the same look cut down to what stops
a fit.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal

import numpy as np

from sfumato.data.dataset import Dataset
from sfumato.data.decoding import StoredFacts
from sfumato.data.dicom import UnitTag
from sfumato.data.folders import FolderSource, PictureSource
from sfumato.data.schema import MISSING, Column, Schema
from sfumato.data.sources import Array, JoinedSource
from sfumato.data.tables import TableFile, class_code
from sfumato.data.units import FOLDER, PathRule
from sfumato.errors import BadInput
from sfumato.progress import Progress

Level = Literal["problem", "warning", "note"]
_SHOWN = 5
# A class with fewer records is tiny: at no usual ε does its mean stand out of the noise.
TINY = 20
# Columns that look as if they told a person.
_PERSONS = re.compile(
    r"(patient|person|subject|participant|user|customer|client|member|household|family|case)?_?(id|no|nr|number|key)?",
    re.IGNORECASE,
)
_WORDS = ("patient", "person", "subject", "participant", "subj", "sub", "pat", "case", "user", "id")


@dataclass(frozen=True)
class Finding:
    """One thing that was seen. `problem`: a fit would be refused, or would learn something else than was meant."""

    level: Level
    topic: str
    text: str

    def to_json(self) -> dict[str, str]:
        return {"level": self.level, "topic": self.topic, "text": self.text}


@dataclass
class Examination:
    """What the owner was told; PRIVATE."""

    records: int = 0
    units: int | None = None
    by_class: dict[str, int] = field(default_factory=dict)
    readable: bool = True  # whether every record could be read
    findings: list[Finding] = field(default_factory=list)

    def add(self, level: Level, topic: str, text: str) -> None:
        self.findings.append(Finding(level, topic, text))


def examine(data: Dataset, progress: Progress | None = None) -> Examination:
    """Read everything, a record at a time where it lies in a file of its own, and say what is odd."""
    found = Examination()
    progress = progress or Progress()
    leaves = _leaves(data)
    pictures = all(isinstance(leaf, PictureSource) for leaf in leaves)
    cells = data.schema.kind == "table" and all(isinstance(leaf, TableFile) for leaf in leaves)

    def look() -> None:
        found.records = len(data)
        if not found.records:
            raise BadInput(f"{data.name} has a header and no record; check the file.")
        if pictures:
            _pictures(found, data.schema, leaves, progress)
        elif cells:
            _cells(found, data.schema, leaves)

    def rows() -> None:
        if found.readable:
            _rows(found, data, pictures)
        elif pictures and data.schema.labelled:  # the classes stand beside pictures, not in them
            _of_classes(found, data.schema, _labels_beside(data.schema, leaves), leaves)

    # What one of them cannot read says nothing of the others.
    for part in (look, rows, lambda: _whose(found, data, leaves, pictures)):
        try:
            part()
        except BadInput as error:
            found.readable = False
            if not any(str(error) in finding.text for finding in found.findings):
                found.add("problem", "reading", str(error))
        if not found.records:
            break
    return found


# ---------------------------------------------------------------------------------------- pictures


def _pictures(
    found: Examination, schema: Schema, sources: Sequence[PictureSource], progress: Progress
) -> None:
    sizes: Counter[tuple[int, int]] = Counter()
    bits: Counter[int] = Counter()
    bad: dict[str, list[str]] = {}  # by what is wrong, which files
    gray = colour = 0
    low, high = math.inf, -math.inf
    beyond = 0
    stated = schema.value_range
    with progress.stage("Looking at the pictures", found.records) as stage:
        for source in sources:
            for file, facts in source.looked_at():
                stage.advance()
                if not isinstance(facts, StoredFacts):
                    bad.setdefault(str(facts).replace(file, "this file"), []).append(file)
                    continue
                sizes[facts.size] += 1
                bits[facts.bits] += 1
                gray, colour = gray + facts.gray, colour + (not facts.gray)
                low, high = min(low, facts.low), max(high, facts.high)
                if stated is not None and (facts.low < stated[0] or facts.high > stated[1]):
                    beyond += 1
    if bad:
        found.readable = False
        for number, (reason, files) in enumerate(bad.items()):
            if number == _SHOWN:
                left = sum(map(len, list(bad.values())[number:]))
                found.add("problem", "unreadable", f"{_many(left, 'more file')} cannot be read.")
                break
            named = reason.replace("this file", files[0])
            first = named if named != reason else f"{files[0]}: {reason}"
            others = f" So it is with {_listed(files[1:])}." if len(files) > 1 else ""
            found.add(
                "problem",
                "unreadable",
                f"{_many(len(files), 'file')} cannot be read: {first}{others}",
            )
    if not sizes:
        return
    _of_sizes(found, schema, sizes)
    depth = ", ".join(f"{b} bits in {_many(n, 'file')}" for b, n in bits.most_common(4))
    found.add("note", "stored", f"{depth}; numbers from {low:g} to {high:g}.")
    _of_range(found, stated, low, high, beyond, max(bits))
    if schema.shape[0] == 3 and not colour:
        found.add(
            "warning",
            "channels",
            "Every picture is gray and three channels were stated, which asks three times the numbers; state --channels 1.",
        )
    elif schema.shape[0] == 1 and colour:
        found.add("note", "channels", f"{_many(colour, 'picture')} in colour become gray.")


def _of_sizes(found: Examination, schema: Schema, sizes: Counter[tuple[int, int]]) -> None:
    _, height, width = schema.shape
    shown = ", ".join(f"{w}×{h} ({n:,})" for (w, h), n in sizes.most_common(4))
    more = f" and {len(sizes) - 4:,} other sizes" if len(sizes) > 4 else ""
    found.add("note", "sizes", f"{shown}{more} become {width}×{height} by {schema.fit}.")
    small = sum(n for (w, h), n in sizes.items() if w < width or h < height)
    if small:
        found.add(
            "warning",
            "sizes",
            f"{_many(small, 'picture')} are smaller than {width}×{height} and would be enlarged; a smaller --image-size asks "
            "less of the budget and loses nothing.",
        )
    off = sum(n for (w, h), n in sizes.items() if abs(math.log((w / h) / (width / height))) > 0.1)
    if off and schema.fit == "stretch":
        found.add(
            "warning",
            "sizes",
            f"{_many(off, 'picture')} have other proportions than {width}×{height} and are stretched; --fit pad keeps all of "
            "them, --fit crop their middle.",
        )


def _of_range(
    found: Examination,
    stated: tuple[float, float] | None,
    low: float,
    high: float,
    beyond: int,
    bits: int,
) -> None:
    if beyond and stated is not None:
        found.add(
            "note",
            "range",
            f"{_many(beyond, 'picture')} reach beyond the stated {stated[0]:g} … {stated[1]:g}; what lies there becomes black or "
            "white.",
        )
    ends = stated or ((0.0, float(2**bits - 1)) if bits <= 16 else None)
    if ends is None or high <= low:
        if high <= low:
            found.add("problem", "range", "Every pixel of every picture is the same.")
        return
    used = (min(high, ends[1]) - max(low, ends[0])) / (ends[1] - ends[0])
    if used < 0.3:
        found.add(
            "problem" if used <= 0 else "warning",
            "range",
            f"The stored numbers, {low:g} to {high:g}, fill {max(0.0, used):.0%} of the range {ends[0]:g} … {ends[1]:g}, so the "
            "pictures are nearly of one gray; state the range that such a device or file has (--bits 12, --range LOW HIGH), from "
            "its documentation.",
        )


# -------------------------------------------------------------------------------------------- rows


def _rows(found: Examination, data: Dataset, pictures: bool) -> None:
    """What is counted of rows as methods see them."""
    schema = data.schema
    counts = np.zeros(schema.n_classes + 1, np.int64)
    records = odd = 0
    low, high = math.inf, -math.inf
    whole = True
    size = max(1, min(1024, (1 << 22) // schema.dim))
    for batch in data.batches(size):
        records += len(batch)
        if batch.labels is not None:
            counts += np.bincount(batch.labels.numpy() + 1, minlength=len(counts))
        if schema.kind == "images" and not pictures:
            values = batch.values.numpy()
            whole = values.dtype == np.uint8
            if whole:
                values = values / np.float32(255)
            with np.errstate(invalid="ignore"):
                finite = np.isfinite(values).reshape(len(values), -1).all(1)
            odd += int((~finite).sum())
            if finite.any():
                low = min(low, float(values[finite].min()))
                high = max(high, float(values[finite].max()))
    found.records = records
    if odd:
        found.add("problem", "values", f"{_many(odd, 'record')} hold NaN or infinity.")
    if math.isfinite(low):
        stated = schema.value_range or ((0.0, 255.0) if whole else (0.0, 1.0))
        span = stated[1] - stated[0]
        ends = (stated[0] + low * span, stated[0] + high * span)
        found.add("note", "stored", f"Numbers from {ends[0]:g} to {ends[1]:g}.")
        outside = low < 0 or high > 1
        _of_range(found, stated, *ends, 0, 8)
        if outside:
            found.add(
                "warning",
                "range",
                f"Some numbers lie beyond the stated {stated[0]:g} … {stated[1]:g} and become black or white.",
            )
    if schema.labelled:
        _of_classes(found, schema, counts, _leaves(data))


def _leaves(data: Dataset) -> list[Any]:
    source = data._source
    return list(source.sources) if isinstance(source, JoinedSource) else [source]


def _labels_beside(schema: Schema, sources: Sequence[PictureSource]) -> Array:
    """How many pictures have each label, unknown ones first, without a look into a picture."""
    counts = np.zeros(schema.n_classes + 1, np.int64)
    for source in sources:
        labels = source.labels()
        if labels is not None:
            counts += np.bincount(labels + 1, minlength=len(counts))
    return counts


def _unknown_labels(schema: Schema, sources: Sequence[Any]) -> str:
    """How labels in a table beside pictures are spelt that are no class; "" of others."""
    seen: Counter[str] = Counter()
    for source in sources:
        told = getattr(source, "told", None)
        if told is None:
            return ""
        for cell in told.cells(told.label, source.paths()):
            if class_code(cell, schema.classes) < 0:
                seen["" if cell is None else str(cell).strip()] += 1
    return f": {_listed(_spelt(seen, schema.classes))}"


def _of_classes(
    found: Examination, schema: Schema, counts: Array, sources: Sequence[Any] = ()
) -> None:
    unknown, each = int(counts[0]), counts[1:].tolist()
    found.by_class = dict(zip(schema.classes, each, strict=True))
    if unknown:
        found.add(
            "problem" if 2 * unknown > found.records else "warning",
            "classes",
            f"{_many(unknown, 'record')} have a label that is none of the classes, and count for nothing in them"
            f"{_unknown_labels(schema, sources)}.",
        )
    empty = [name for name, n in found.by_class.items() if n == 0]
    tiny = [f"{name} ({n})" for name, n in found.by_class.items() if 0 < n < TINY]
    if empty:
        counted = all(name == str(number) for number, name in enumerate(schema.classes))
        remedy = "labels count from 0, so recode labels that count from 1, " if counted else ""
        found.add(
            "problem",
            "classes",
            f"No record of {_listed(empty)}; {remedy}correct --classes, or pass --allow-empty to fit if that is so.",
        )
    if tiny:
        found.add(
            "warning",
            "classes",
            f"Hardly any records of {_listed(tiny)}: noise will hide them. Join classes, or leave them out.",
        )


# ------------------------------------------------------------------------------------------ tables


def _cells(found: Examination, schema: Schema, files: Sequence[TableFile]) -> None:
    """Cells as they are spelt, column by column, in one pass."""
    columns = list(schema.columns)
    if schema.label is not None:
        label = Column(name=schema.label, kind="categorical", categories=schema.classes)
        columns.append(label)
    seen = {column.name: _Cells(column) for column in columns}
    for file in files:
        for piece in file.texts([column.name for column in columns]):
            for name, cells in piece.items():
                seen[name].look(cells)
    for column_seen in seen.values():
        column_seen.tell(found)


class _Cells:
    """What the cells of one column are."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.count = self.missing = self.outside = self.fractions = 0
        self.low, self.high = math.inf, -math.inf
        self.unknown: Counter[str] = Counter()

    def look(self, cells: Sequence[Any]) -> None:
        column = self.column
        for cell in cells:
            self.count += 1
            text = cell.strip() if isinstance(cell, str) else cell
            known = bool(column.categories) and class_code(text, column.categories) >= 0
            if known:
                continue
            if text is None or text != text or text in MISSING:
                self.missing += 1
            elif column.categories:
                self._keep(str(text))
            else:
                self._number(text)

    def _number(self, cell: Any) -> None:
        column = self.column
        try:
            number = _day_of(cell) if column.type == "date" else float(cell)
        except (TypeError, ValueError, OverflowError):
            self._keep(str(cell))
            return
        if math.isnan(number):  # one of its many spellings
            self.missing += 1
            return
        self.low, self.high = min(self.low, number), max(self.high, number)
        assert column.low is not None and column.high is not None
        self.outside += not column.low <= number <= column.high
        self.fractions += column.type == "integer" and math.isfinite(number) and number % 1 != 0

    def _keep(self, text: str) -> None:
        # A column that was misjudged could hold as many texts as records.
        if text in self.unknown or len(self.unknown) < 10_000:
            self.unknown[text] += 1

    def tell(self, found: Examination) -> None:
        column, name = self.column, self.column.name
        if self.missing and not column.missing:
            found.add(
                "warning",
                "missing",
                f'{name!r} is empty in {_many(self.missing, "record")} of {self.count:,} and is not said to be; add "missing": '
                "true, or complete the records.",
            )
        elif self.missing:
            share = self.missing / self.count
            found.add("note", "missing", f"{name!r} is empty in {share:.1%} of the records.")
        if self.unknown:
            total = sum(self.unknown.values())
            shown = _spelt(self.unknown, column.categories)
            kind = "none of its categories" if column.categories else f"no {_kind(column)}"
            kind = kind.removesuffix("s") if total == 1 and not column.categories else kind
            found.add(
                "problem" if not column.categories or 2 * total > self.count else "warning",
                "values",
                f"{name!r} holds {_many(total, 'cell')} that {'is' if total == 1 else 'are'} {kind}: {_listed(shown)}. "
                + ("Such count as missing." if column.categories else "Such stop the reading."),
            )
        if self.outside:
            found.add(
                "problem" if 2 * self.outside > self.count else "warning",
                "range",
                f"{name!r} runs from {_shown(self.low, column)} to {_shown(self.high, column)}, and its range is "
                f"{_shown(column.low, column)} to {_shown(column.high, column)}: {_many(self.outside, 'cell')} beyond it count "
                "as its ends.",
            )
        if self.fractions:
            found.add(
                "warning",
                "values",
                f"{name!r} is of integers and holds fractions in {_many(self.fractions, 'cell')}.",
            )


def _day_of(cell: Any) -> float:
    day = cell if isinstance(cell, date) else date.fromisoformat(str(cell)[:10])
    return float(day.toordinal() - date(1970, 1, 1).toordinal())


def _shown(number: float | None, column: Column) -> str:
    if column.type == "date" and number is not None:
        try:
            return str(date.fromordinal(int(number) + date(1970, 1, 1).toordinal()))
        except (ValueError, OverflowError):  # before the year 1 or after 9999
            return f"day {number:g} from 1970-01-01"
    return f"{number:g}"


def _kind(column: Column) -> str:
    return "dates" if column.type == "date" else "numbers"


def _spelt(seen: Counter[str], categories: Sequence[str]) -> list[str]:
    """Texts with how often they stand there, the commonest first, and what was probably meant."""
    return [f"{text!r} ({n:,}{_near(text, categories)})" for text, n in seen.most_common()]


def _near(text: str, categories: Sequence[str]) -> str:
    by_case = {name.lower(): name for name in categories}
    near = difflib.get_close_matches(text.lower(), list(by_case), n=1)
    return f", meant {by_case[near[0]]!r}?" if near else ""


# ------------------------------------------------------------------------------------------- units


def _whose(found: Examination, data: Dataset, leaves: Sequence[Any], pictures: bool) -> None:
    if data.units is not None:
        sizes = np.bincount(data.units.codes(found.records))
        found.units = len(sizes)
        about = data.units.about
        found.add(
            "note",
            "units",
            f"{len(sizes):,} {about.plural} with {np.median(sizes):g} records each in the middle and {sizes.max()} at most, by "
            f"{about.read_from}.",
        )
        over = int((sizes > about.at_most).sum())
        if over:
            found.add(
                "note",
                "units",
                f"Of {over:,} of them {about.at_most} records count, drawn at random.",
            )
        if len(sizes) == found.records:
            found.add(
                "note", "units", f"Every {about.name} has one record, so --unit changes nothing."
            )
        return
    suggestion = None
    if pictures:
        suggestion = _suggested_beside(leaves) or suggested_rule(leaves, data.schema)
    elif all(isinstance(leaf, TableFile) for leaf in leaves):
        suggestion = _suggested_column(leaves, data.schema)
    if suggestion is not None:
        rule, units = suggestion
        found.add(
            "warning",
            "units",
            f"It seems that persons have several records: {found.records:,} records, {units:,} different ones by {rule}. If that "
            f"is so, ε protects a record and not a person; state --unit {rule}.",
        )


def suggested_rule(sources: Sequence[Any], schema: Schema) -> tuple[str, int] | None:
    """A way to tell persons by their files, if one divides all of them into units of several records, and how many there are."""
    first = sources[0]
    if first.dicom:
        tag = UnitTag("PatientID")
        told = [field for source in sources for field in source.header_field(tag)]
        if all(told) and len(set(told)) < len(told):
            return "PatientID", len(set(told))
    paths = [path for source in sources for path in source.paths()]
    labelled = schema.labelled and isinstance(first, FolderSource) and first.told is None
    # A rule that finds what the classes are, or a numbering of files, tells no person.
    least = max(2, schema.n_classes + 1, len(paths) / 256)
    for rule in _rules(paths):
        units = set()
        try:
            of = PathRule(rule, labelled=labelled)
            units = {of(path) for path in paths}
        except BadInput:
            continue
        if least <= len(units) <= 0.9 * len(paths):
            return (FOLDER if rule == FOLDER else f"'{rule}'"), len(units)
    return None


def _rules(paths: Sequence[str]) -> Iterator[str]:
    """Rules worth trying, by what the first path looks like; each is then held against all."""
    yield FOLDER
    name = paths[0].rpartition("/")[2].lower()
    for word in _WORDS:
        found = re.search(rf"(?<![a-z]){word}[-_]?\d", name)
        if found:
            yield rf"(?i)(?P<{word}>{word}[-_]?\d+)"
    yield r"(?:^|/)([^/_]+)_[^/]*$"
    yield r"(?:^|/)([^/-]+)-[^/]*$"


def _suggested_column(files: Sequence[TableFile], schema: Schema) -> tuple[str, int] | None:
    features = {column.name for column in schema.columns} | {schema.label}
    for name in files[0].header:
        if name in features or not name or not _PERSONS.fullmatch(name):
            continue
        if any(file.header.count(name) != 1 for file in files):
            continue
        cells = [cell for file in files for cell in file.cells(name)]
        if any(isinstance(cell, (list, dict)) for cell in cells):
            continue  # tells no unit, see `by_column`
        if 1 < len(set(cells)) < len(cells):
            return name, len(set(cells))
    return None


def _suggested_beside(sources: Sequence[Any]) -> tuple[str, int] | None:
    """A column of the table that has the labels, of the files that are there."""
    told = getattr(sources[0], "told", None)
    if told is None or len(sources) != 1:
        return None
    paths = list(sources[0].paths())
    for name in told.header:
        if name in ("", told.label, told.file) or not _PERSONS.fullmatch(name):
            continue
        if told.header.count(name) == 1:
            cells = list(told.cells(name, paths))
            missing = any(cell is None or str(cell).strip() in MISSING for cell in cells)
            if not missing and 1 < len(set(cells)) < len(cells):
                return name, len(set(cells))
    return None


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
