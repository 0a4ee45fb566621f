"""Opening data by name or path: public facts first, rows later.

`load` reads headers, folder listings and schema files, never a row. What cannot be had that way
(the size of pictures, the classes, the range of a column or of pixels) is a PUBLIC fact that the
caller states, since reading it off private rows would be a leak. A file's own header settles what
it can: a byte is 0 … 255; what it leaves open is refused with the remedy.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np

from sfumato.data.beside import FileTable, parse_table
from sfumato.data.catalogue import NamedSet, find_named, unknown_name
from sfumato.data.dataset import Dataset, stated_range, units_of
from sfumato.data.decoding import SUFFIXES
from sfumato.data.dicom import DICOM, UNIT_FIELDS, UnitTag
from sfumato.data.folders import FolderSource, PictureSource, TarSource, class_folders
from sfumato.data.hub import LABELS, PictureColumn, class_label, picture_column
from sfumato.data.remote import (
    RemoteFolder,
    UrlPath,
    classes_below,
    is_address,
    pictures_below,
    refuse_secrets,
)
from sfumato.data.schema import Fit, Schema, ValueRange, class_names, mistakes
from sfumato.data.sources import (
    JoinedSource,
    Source,
    Stored,
    channels_first,
    check_label_type,
    from_files,
    idx_header,
    image_shape,
    npy_header,
    npz_members,
    pixel_scale,
    read_names,
    read_range,
)
from sfumato.data.tables import PlainTable, TableFile
from sfumato.data.units import FOLDER, RECORD, PathRule, Units, by_column, unit_of
from sfumato.data.writers import schema_beside
from sfumato.errors import BadInput
from sfumato.files import check_file
from sfumato.progress import Progress


def load(
    spec: str | Path,
    *,
    schema: Schema | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    classes: Sequence[str] | int | None = None,
    bits: int | None = None,
    value_range: ValueRange | None = None,
    labels: str | None = None,
    fit: Fit | None = None,
    unit: Any = None,
    per_unit: int | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """A data set by name ("fashion-mnist:test") or path (folder, .npz, .npy, .csv, .parquet, .tar, IDX).

    A folder holds pictures (DICOM among them), or shards: files of one kind and one schema, read one after another in
    the order of their names. A .parquet holds a table, or pictures as Hugging Face keeps them; a .tar is WebDataset's.

    The public facts of a path come from `schema`, else from `schema.json` in the folder or
    `NAME.schema.json` beside the file, else from the other arguments together with folder names
    and file headers. `value_range` (or `bits`, for 0 … 2^bits − 1) says which stored numbers of
    images stand for black and white; it is needed wherever the stored type is not a byte.
    `labels` says where the classes of a flat folder's pictures stand, "labels.csv:finding" (of a Parquet file with pictures, in
    which column); the classes themselves are stated. `fit` says how pictures of another size are brought to `image_size`:
    "stretch", "pad" with black bars, or "crop" to the middle.

    `unit` says whose records these are, where a person may have several and all of them are to be protected together: of a
    folder, a regular expression with one group over each file's path ("patient_(\\d+)"), or "folder" for the innermost folder
    of each file, a DICOM field ("PatientID"), a column of the table that has the labels, or of another one
    ("patients.csv:patient_id"); of a table, a column; of .npz, an array in it; or an array with a value for each record. At most
    `per_unit` records of a unit count (64 if nothing is stated). "record" means that each record stands for itself.
    """
    facts = _Facts(
        schema, image_size, channels, classes, stated_range(bits, value_range), labels, fit
    )
    named = _named(spec, facts)
    if named is not None:
        entry, split = named
        data = entry.load(split, progress=progress)
        if isinstance(unit, str) and unit != RECORD:
            told = entry.unit_values(split, unit)
            data.units = units_of(told, per_unit, len(data), data.name, unit)
            return data
    else:
        data = _at(spec, facts)
        data.labels_from = None if labels is None else re.split(r"[/\\]", labels)[-1]
    data.units = _units(data, spec, unit, per_unit)
    return data


def _units(data: Dataset, spec: str | Path, unit: Any, per_unit: int | None) -> Units | None:
    """Whose records these are, as the caller states it; nothing is read for it yet."""
    if unit is None or (isinstance(unit, str) and unit == RECORD):
        if per_unit is not None:
            raise BadInput(
                "--per-unit says how many records of a unit count; say by --unit what a unit is."
            )
        return None
    if not isinstance(unit, str):
        return units_of(unit, per_unit, len(data), data.name)
    sources = _leaves(data._source)
    if all(isinstance(source, PictureSource) for source in sources):
        return _units_of_pictures(data, Path(spec), sources, unit, per_unit)
    if all(isinstance(source, TableFile) for source in sources):
        for source in sources:
            if unit not in source.header:
                raise BadInput(
                    f"{source.path} has no column {unit!r}; name one that tells the unit (--unit)."
                )
            if source.header.count(unit) > 1:
                raise BadInput(f"{source.path} has two columns {unit!r}; rename or remove one.")
        about = unit_of(unit, f"the column {unit!r}", per_unit)
        cells = lambda: chain.from_iterable(source.cells(unit) for source in sources)  # noqa: E731
        return Units(about, lambda: by_column(cells(), unit), data.name)
    path = Path(spec)
    members = npz_members(path) if path.suffix.lower() == ".npz" and path.is_file() else {}
    if unit not in members:
        known = ", ".join(sorted(set(members) - {"images", "labels", "classes", "value_range"}))
        raise BadInput(
            f"{spec} does not say what a unit {unit!r} is"
            + (f" (it has {known})" if known else "")
            + "; name an array of an .npz file, a column of a table or a rule for a folder's files, or pass an array in Python."
        )
    stored = members[unit]
    if stored.shape != (len(data),) or stored.dtype.kind not in "iuUSb":
        raise BadInput(
            f"The array {unit!r} of {spec} is not one whole number or text for each record; store such a one."
        )
    about = unit_of(unit, f"the array {unit!r}", per_unit)
    return Units(about, lambda: by_column(_cells(stored), unit), data.name)


def _units_of_pictures(
    data: Dataset, folder: Path, sources: list[Any], unit: str, per_unit: int | None
) -> Units:
    """By what their paths say, by a field of their headers, or by a table beside them."""

    def paths() -> Iterator[str]:
        return chain.from_iterable(source.paths() for source in sources)

    told = getattr(sources[0], "told", None)
    column: str | None = unit
    if told is None or unit not in told.header:
        table = parse_table(unit)
        if table is not None:
            told, column = FileTable(unit, folder), table[1]
    if told is not None and column is not None and column in told.header:
        told.check(column)
        about = unit_of(column, f"the column {column!r} of {told.path.name}", per_unit)
        # Members of several archives may be called alike, and are not the same for it.
        named = [(f"{s.home}/" if len(sources) > 1 else "", s) for s in sources]
        files_of = lambda: (home + path for home, s in named for path in s.paths())  # noqa: E731
        return Units(about, lambda: by_column(told.cells(column, files_of()), column), data.name)
    if sources[0].dicom and UnitTag.knows(unit):
        tag = UnitTag(unit)
        about = unit_of(tag.name, tag.read_from, per_unit)
        fields = lambda: chain.from_iterable(s.header_field(tag) for s in sources)  # noqa: E731
        return Units(about, lambda: by_column(fields(), unit), data.name)
    if re.fullmatch(r"\w+", unit) and unit != FOLDER and (sources[0].dicom or told is not None):
        # Columns are not listed: of a table without a header they would be somebody's cells.
        field = sources[0].dicom and difflib.get_close_matches(unit, UNIT_FIELDS, n=1)
        fields_known = f"none of the DICOM fields that name units ({', '.join(UNIT_FIELDS)})"
        where = fields_known if told is None else f"no column of {told.path.name}"
        raise BadInput(
            f"--unit {unit!r} is {where}{f'; did you mean {field[0]!r}' if field else ''}; correct it, or give a rule for each "
            "file's path, such as 'patient_(\\d+)'."
        )
    classed = isinstance(sources[0], FolderSource) and sources[0].told is None
    rule = PathRule(unit, labelled=data.schema.labelled and classed)
    about = unit_of(rule.name, rule.read_from, per_unit)
    return Units(about, lambda: map(rule, paths()), data.name)


def _leaves(source: Source) -> list[Any]:
    """The sources of shards, or the one there is."""
    return list(source.sources) if isinstance(source, JoinedSource) else [source]


def _cells(stored: Stored) -> Iterator[Any]:
    for block in stored.blocks(8192):
        yield from block.tolist()


def load_like(
    spec: str | Path, like: Schema, *, progress: Progress | None = None, **stated: Any
) -> Dataset:
    """A data set beside another one with the schema `like`, by name or path.

    What is not `stated` (as for `load`) is as in `like`; its range serves only where the file's own
    type settles none, so that bytes may stand beside floating point.
    """
    named = _named(spec, _Facts())
    if named is not None:
        return named[0].load(named[1], progress=progress)
    given = stated or {"schema": replace(like, value_range=None)}
    return _at(spec, _Facts(**given, fallback=like.value_range))


def read_schema(file: Path) -> Schema:
    """The schema in a JSON file; a run's config.json has one too, so that a run can be repeated."""
    facts = read_facts(file)
    if isinstance(facts, dict) and "schema" in facts and "budget" in facts:
        facts = facts["schema"]
    return schema_in(file, facts)


def schema_in(file: object, facts: Any) -> Schema:
    try:
        return Schema.from_json(facts)
    except BadInput as error:
        more = len(mistakes(facts)) - 1
        told = f" ({more} more; sfumato schema check {file} lists them.)" if more > 0 else ""
        raise BadInput(f"{file}: {error}{told}") from error


def read_facts(file: Path) -> Any:
    """What a JSON file holds."""
    check_file(file)
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"There is no {file}; check the path of the schema.") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be read as JSON ({error.strerror}); correct it.") from error
    return parsed(file, content)


def parsed(file: object, content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        why = type(error).__name__
        if isinstance(error, json.JSONDecodeError):
            why = f"{error.msg} in line {error.lineno}"
        raise BadInput(f"{file} cannot be read as JSON ({why}); correct it.") from error


def schema_of(
    spec: str | Path,
    *,
    schema: Schema | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    classes: Sequence[str] | int | None = None,
    bits: int | None = None,
    value_range: ValueRange | None = None,
    labels: str | None = None,
    fit: Fit | None = None,
) -> tuple[Schema, int | None]:
    """The schema that `load` would give, and the number of records if no row need be read for it.

    Nothing is downloaded. The number is None for .csv.
    """
    facts = _Facts(
        schema, image_size, channels, classes, stated_range(bits, value_range), labels, fit
    )
    named = _named(spec, facts)
    if named is not None:
        entry, split = named
        return entry.schema, entry.sizes[split]
    data = _at(spec, facts)
    return data.schema, known_size(data._source)


def known_size(source: Source) -> int | None:
    """The number of records where headers and listings tell it; None for .csv."""
    if isinstance(source, JoinedSource):
        sizes = [known_size(shard) for shard in source.sources]
        return None if None in sizes else sum(size or 0 for size in sizes)
    return source.known_size() if isinstance(source, TableFile) else len(source)


@dataclass(frozen=True)
class _Facts:
    """What the caller stated."""

    schema: Schema | None = None
    image_size: int | None = None
    channels: int | None = None
    classes: Sequence[str] | int | None = None
    value_range: ValueRange | None = None
    labels: str | None = None
    fit: Fit | None = None
    fallback: ValueRange | None = None  # where the stored type settles none

    def __post_init__(self) -> None:
        for side in (self.image_size, self.channels):
            if side is not None and (
                isinstance(side, bool) or not isinstance(side, int) or side < 1
            ):
                raise BadInput(
                    "`image_size` and `channels` must be positive whole numbers; pass those."
                )

    @property
    def stated(self) -> bool:
        given = (
            self.schema,
            self.image_size,
            self.channels,
            self.classes,
            self.value_range,
            self.labels,
            self.fit,
        )
        return any(fact is not None for fact in given)

    def range_of(self, path: Path, own: ValueRange | None) -> ValueRange | None:
        """The stated range of pixels: the caller's, or the file's `own`; they must not differ."""
        if None not in (self.value_range, own) and self.value_range != own:
            raise BadInput(
                f"The range given and the one stated in or beside {path} differ; leave the former out or "
                "correct the latter."
            )
        return own if self.value_range is None else self.value_range

    def of_pictures(self, path: Path, known: Schema | None, gray: bool = False) -> Schema:
        """Size, channels, range and fit of pictures that have sizes of their own; no classes yet."""
        if known is not None and known.kind != "images":
            raise BadInput(
                f"{path} holds pictures and its schema is of a table; give a schema of images."
            )
        if known is None and self.image_size is None:
            raise BadInput(
                f"The size of the pictures in {path} is not stated; pass image_size (--image-size 32) "
                "or put a "
                "schema.json into the folder, since reading it off a private picture would be a leak."
            )
        shape = known.shape if known else (1 if gray else 3, 0, 0)
        if self.channels is not None:
            shape = (self.channels, *shape[1:])
        if self.image_size is not None:
            shape = (shape[0], self.image_size, self.image_size)
        return Schema(
            kind="images",
            shape=shape,
            value_range=self.range_of(path, known.value_range if known else None),
            fit=self.fit or (known.fit if known else "stretch"),
        )

    def refuse_for_rows(self, path: Path) -> None:
        """What is said of single pictures has no meaning for arrays and tables."""
        for given, option in ((self.labels, "labels"), (self.fit, "fit")):
            if given is not None:
                raise BadInput(
                    f"{path} holds no single pictures, so `{option}` has no meaning for it; leave --{option} out."
                )

    def names(self) -> tuple[str, ...] | None:
        return None if self.classes is None else class_names(self.classes)


def _named(spec: str | Path, facts: _Facts) -> tuple[NamedSet, str] | None:
    _check_spec(spec)
    if isinstance(spec, Path):
        return None
    found = find_named(spec)
    if found is None:
        if os.path.lexists(spec) or any(mark in spec for mark in "/\\."):
            return None
        raise unknown_name(spec)
    if facts.stated:
        raise BadInput(
            f"The public facts of {found[0].name} are fixed; leave schema, image size, channels, "
            "classes, range, labels and fit out."
        )
    return found


def _check_spec(spec: object) -> None:
    if not isinstance(spec, (str, Path)):
        raise BadInput(
            f"A data set is given by its name or path, not by {type(spec).__name__}; for arrays use "
            "Dataset.from_arrays."
        )
    if spec == "":
        raise BadInput("The name or path of a data set is empty; give one.")
    refuse_secrets(spec)
    if "\0" in str(spec):
        raise BadInput("The path has a NUL character in it; correct it.")


def _at(spec: str | Path, facts: _Facts) -> Dataset:
    """What lies at a path, or behind an address."""
    if is_address(spec) and not os.path.lexists(spec):
        return _open_address(UrlPath(str(spec)), facts)
    return _open(Path(spec), facts)


def _open_address(url: UrlPath, facts: _Facts) -> Dataset:
    """Pictures, a table or a .tar, read as streams; what must be mapped into memory must be here."""
    path = cast("Path", url)  # it has of a path what readers of streams use
    suffix = url.suffix.lower()
    if suffix not in _STREAMED and (suffix in _OPENED or "-ubyte" in url.name):
        raise BadInput(
            f"{url} holds arrays, which are mapped into memory; copy it here and give the path."
        )
    folder = suffix not in _STREAMED and url.is_dir()
    beside = cast("UrlPath", schema_beside(path))
    known = facts.schema
    if known is None and beside.is_file():
        known = schema_in(beside, parsed(beside, beside.read()))
    if suffix in _STREAMED:
        return _OPENED[suffix](path, facts, known)
    if not folder:
        raise BadInput(
            f"{url} is no folder, nor a .csv, .parquet or .tar; check the address, or copy it here."
        )
    if facts.labels is not None:
        raise BadInput(f"Labels in a table are read for folders that are here; copy {url} here.")
    names = pictures_below(url)
    gray = bool(names) and all(Path(name).suffix.lower() in DICOM for name in names)
    schema = facts.of_pictures(path, known, gray=gray)
    classes = known.classes if known else classes_below(url)
    stated = facts.names()
    if stated is not None and set(stated) != set(classes):
        raise BadInput(
            f"The classes given and the folders or schema of {url} differ; make them agree."
        )
    schema = replace(schema, classes=stated or classes)
    return Dataset(RemoteFolder(url, schema, fallback=facts.fallback), schema, url.name)


def _open(path: Path, facts: _Facts) -> Dataset:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise BadInput(
            f"There is no {path}; check the path, or use the name of a known data set."
        ) from None
    except OSError as error:
        raise BadInput(f"Cannot read {path}: {error.strerror}; check the path.") from None
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise BadInput(f"{path} is neither a file nor a folder; give the path of one.")
    known = facts.schema or _schema_file(path)
    if stat.S_ISDIR(mode):
        return _open_folder(path, facts, known)
    if not os.access(path, os.R_OK):
        raise BadInput(f"{path} may not be read; change its permissions.")
    suffix = path.suffix.lower()
    if suffix in _OPENED:
        return _OPENED[suffix](path, facts, known)
    if "-ubyte" in path.name or suffix == ".idx" or path.name.endswith(".idx.gz"):
        return _open_idx(path, facts, known)
    raise BadInput(
        f"{path} is of no kind that sfumato reads; give a folder of pictures, .npz, .npy, "
        ".csv, .parquet, .tar (unpack a compressed one) or an IDX file."
    )


def _schema_file(path: Path) -> Schema | None:
    file = schema_beside(path)
    try:
        there = file.is_file()
    except OSError as error:
        raise BadInput(f"Cannot read {file}: {error.strerror}; check the path.") from None
    return read_schema(file) if there else None


def _shards(folder: Path) -> list[Path]:
    """The data files of a folder in the order of their names; none in a folder of pictures."""
    try:
        entries = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    except OSError as error:
        raise BadInput(f"Cannot read {folder}: {error.strerror}; check the path.") from None
    if any(p.is_dir() or p.suffix.lower() in SUFFIXES for p in entries):
        return []
    shards = [p for p in entries if p.suffix.lower() in _OPENED and not _is_labels(p)]
    if len({p.suffix.lower() for p in shards}) > 1:
        raise BadInput(
            f"{folder} holds data files of several kinds; keep shards of one kind in a folder of their own."
        )
    return shards


def _is_labels(file: Path) -> bool:
    """Whether a .npy file holds the labels of another, see `_open_npy`."""
    images = file.with_name(file.name.replace("labels", "images"))
    return file.suffix.lower() == ".npy" and images != file and images.exists()


def _open_shards(path: Path, shards: list[Path], facts: _Facts, known: Schema | None) -> Dataset:
    """Shards of one schema, one after another; that of the folder, else the one beside each."""
    opened = []
    for shard in shards:
        check_file(shard)
        opened.append(_OPENED[shard.suffix.lower()](shard, facts, known or _schema_file(shard)))
        if opened[-1].schema != opened[0].schema:
            raise BadInput(
                f"{shard} and {shards[0]} have different schemas; keep shards of one schema in a folder."
            )
    return Dataset(JoinedSource([d._source for d in opened]), opened[0].schema, path.name)


def _open_folder(path: Path, facts: _Facts, known: Schema | None) -> Dataset:
    shards = _shards(path)
    if shards:
        return _open_shards(path, shards, facts, known)
    if known is not None and known.kind != "images":
        raise BadInput(
            f"{path} is a folder and its schema is of a table; give the path of the .csv or "
            ".parquet."
        )
    gray = known is None and facts.channels is None and _is_dicom(path)
    schema = facts.of_pictures(path, known, gray=gray)
    if facts.labels is not None:
        classes = facts.names() or (known.classes if known else ())
        if not classes:
            raise BadInput(
                f"The classes of the pictures in {path} are not stated; pass classes (--classes normal,ill), since reading them "
                "off the labels would be a leak."
            )
        schema = replace(schema, classes=classes)
        told = FileTable(facts.labels, path)
        source = FolderSource(path, schema, told=told, fallback=facts.fallback)
        return Dataset(source, schema, path.name)
    names = known.classes if known else class_folders(path)
    stated = facts.names()
    if stated is not None:
        if isinstance(facts.classes, int) and len(stated) == len(names):
            stated = names
        if set(stated) != set(names) and (known is not None or not set(names) <= set(stated)):
            raise BadInput(
                f"The classes given and the folders or schema of {path} differ; make them agree."
            )
        names = stated
    schema = replace(schema, classes=names)
    return Dataset(FolderSource(path, schema, fallback=facts.fallback), schema, path.name)


def _is_dicom(folder: Path) -> bool:
    """Whether the pictures are DICOM files, by their endings; those are gray unless something else is said.

    Both kinds together are refused, so that no single file decides for all.
    """
    names = (Path(name).suffix.lower() for _, _, files in os.walk(folder) for name in files)
    kinds = {suffix in DICOM for suffix in names if suffix in SUFFIXES}
    if len(kinds) == 2:
        raise BadInput(
            f"{folder} holds DICOM files and other pictures; say by channels (--channels 1) whether they are gray."
        )
    return kinds == {True}


def _open_tar(path: Path, facts: _Facts, known: Schema | None) -> Dataset:
    if facts.labels is not None:
        raise BadInput(f"{path} has its labels in .cls files; leave --labels out.")
    schema = facts.of_pictures(path, known)
    schema = replace(schema, classes=facts.names() or (known.classes if known else ()))
    return Dataset(TarSource(path, schema, fallback=facts.fallback), schema, path.name)


def _open_pictures(path: Path, facts: _Facts, known: Schema | None) -> Dataset:
    """Parquet with a picture in a cell."""
    schema = facts.of_pictures(path, known)
    column, names = class_label(path) or (None, ())
    if facts.labels is not None and facts.labels != column:
        column, names = facts.labels, ()
    if column is None:
        header = PlainTable(path).header
        column = next((name for name in LABELS if name in header), LABELS[0])
    stated = facts.names() or (known.classes if known else None)
    if isinstance(facts.classes, int) and len(names) == facts.classes:
        stated = names
    schema = replace(schema, classes=names if stated is None else stated)
    if facts.labels is not None and not schema.labelled:
        raise BadInput(
            f"The classes of {path} are not stated; pass classes (--classes normal,ill), since reading them off the labels would "
            "be a leak."
        )
    source = PictureColumn(path, schema, column if schema.labelled else None, facts.fallback)
    if source.known_size() == 0:
        raise BadInput(f"{path} holds no rows; check the file.")
    return Dataset(source, schema, path.name)


def _open_table(path: Path, facts: _Facts, known: Schema | None) -> Dataset:
    images = known is None or known.kind == "images"
    if images and path.suffix.lower() == ".parquet" and picture_column(path) is not None:
        return _open_pictures(path, facts, known)
    facts.refuse_for_rows(path)
    if known is None:
        raise BadInput(
            f"The columns of {path} are not described; write {schema_beside(path).name} beside it "
            "(ranges, "
            "categories and classes are public facts that must not be read off the rows; sfumato schema draft begins it) or "
            "pass schema."
        )
    stated = facts.names()
    if stated is not None and stated != known.classes:
        raise BadInput(
            f"The classes given and those in the schema of {path} differ; make them agree."
        )
    stated_by = facts.range_of(path, known.value_range)
    if stated_by is not None and known.kind == "images":
        known = replace(known, value_range=stated_by)
    source = TableFile(path, known, fallback=facts.fallback)
    known = source.schema
    if source.known_size() == 0:
        raise BadInput(f"{path} holds no rows; check the file.")
    return Dataset(source, known, path.name)


def _open_npz(path: Path, facts: _Facts, known: Schema | None) -> Dataset:
    members = npz_members(path)
    if "images" not in members:
        raise BadInput(
            f"{path} has no array called images (it has {', '.join(sorted(members)) or 'none'}); "
            "save it with "
            "np.savez(path, images=…, labels=…)."
        )
    inside = read_names(members["classes"]) if "classes" in members else None
    if "value_range" in members:
        stated_by = facts.range_of(path, read_range(members["value_range"]))
        facts = replace(facts, value_range=stated_by)
    return _stored(path, members["images"], members.get("labels"), facts, known, inside)


def _open_npy(path: Path, facts: _Facts, known: Schema | None) -> Dataset:
    """Images in `images-3.npy`, their labels in `labels-3.npy` beside it; without such a name there are no labels."""
    labels = path.with_name(path.name.replace("images", "labels"))
    there = labels.name != path.name and labels.is_file()
    return _stored(
        path, npy_header(path), npy_header(labels) if there else None, facts, known, None
    )


def _open_idx(path: Path, facts: _Facts, known: Schema | None) -> Dataset:
    images = idx_header(path)
    partner = path.name.replace("images", "labels").replace("idx3", "idx1")
    labels = None
    if partner != path.name:
        bare = partner.removesuffix(".gz")
        there = [path.with_name(name) for name in (partner, bare, bare + ".gz")]
        labels = next((idx_header(file) for file in there if file.is_file()), None)
    return _stored(path, images, labels, facts, known, None)


def _stored(
    path: Path,
    images: Stored,
    labels: Stored | None,
    facts: _Facts,
    known: Schema | None,
    inside: tuple[str, ...] | None,
) -> Dataset:
    """Images and labels in arrays: the header gives the shape, the classes must be stated."""
    facts.refuse_for_rows(path)
    try:
        stated_by = facts.range_of(path, known.value_range if known else None)
        if stated_by is None and images.dtype != np.uint8 and images.dtype.kind != "b":
            stated_by = facts.fallback
        scale = pixel_scale(images.dtype, stated_by)
        shape = image_shape(images.shape)
        if labels is not None:
            check_label_type(labels.dtype)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    if images.shape[0] == 0:
        raise BadInput(f"{path} holds no images; check the file.")
    size, channels = facts.image_size, facts.channels
    if (size is not None and shape[1:] != (size, size)) or channels not in (None, shape[0]):
        raise BadInput(f"The images in {path} are {shape}; leave image size and channels out.")
    stated = facts.names()
    if stated is None and known is not None:
        stated = known.classes
    if isinstance(facts.classes, int) and inside is not None and len(inside) == facts.classes:
        stated = inside
    if known is None and stated is None and inside is not None:
        stated = inside
    if labels is None and stated:
        raise BadInput(
            f"{path} has no labels and classes are stated; add the labels or leave classes out."
        )
    if labels is not None and stated is None:
        raise BadInput(
            f"{path} has labels and its classes are not stated; pass classes (--classes 10), "
            "since their number "
            "must be a public fact."
        )
    schema = Schema(kind="images", shape=shape, classes=stated or (), value_range=stated_by)
    if known is not None and replace(schema, value_range=known.value_range) != known:
        raise BadInput(f"The schema of {path} and the file's header differ; make them agree.")
    source: Source = from_files(images, labels if schema.labelled else None, channels_first, scale)
    return Dataset(source, schema, path.name)


# What a single file is, by its ending.
_OPENED: dict[str, Callable[[Path, _Facts, Schema | None], Dataset]] = {
    ".npz": _open_npz,
    ".npy": _open_npy,
    ".csv": _open_table,
    ".parquet": _open_table,
    ".tar": _open_tar,
}
# Those that are read front to back, and so may lie behind an address.
_STREAMED = (".csv", ".parquet", ".tar")
