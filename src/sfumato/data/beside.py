"""A table beside pictures that says something of each file: its class, whose it is.

    labels.csv        file,finding,patient_id
                      00001.png,normal,17

The header is PUBLIC; the lines are PRIVATE, read when the rows are, and no error quotes a cell. What a file is told depends on
the line that names it and on no other: a file without a line is refused by its path, and so is one with two, a line that names
two files, and a table that names a file twice.
Lines of files that are not there say nothing of anybody here and are passed over.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from sfumato.data.tables import PlainTable
from sfumato.errors import BadInput
from sfumato.files import check_file

# Headers of the column with the file's path, in whatever case and with blanks for underscores.
FILE_COLUMNS = (
    "file",
    "file_name",
    "filename",
    "path",
    "file_path",
    "filepath",
    "image",
    "image_index",
    "image_path",
    "image_id",
)
LABEL_COLUMN = "label"
_SPEC = re.compile(r"(.+\.(?:csv|parquet))(?::([^:]+))?(?::([^:]+))?", re.IGNORECASE)


def parse_table(text: str) -> tuple[Path, str | None, str | None] | None:
    """The parts of TABLE.csv:COLUMN:FILE COLUMN, the last two of which may be left out; None where it is no such thing."""
    found = _SPEC.fullmatch(text)
    return None if found is None else (Path(found[1]), found[2], found[3])


class FileTable:
    """A .csv or .parquet with a line for each file."""

    def __init__(self, spec: str, folder: Path) -> None:
        parts = parse_table(spec)
        if parts is None:
            raise BadInput(
                f"Labels are given as TABLE.csv:COLUMN, not {spec!r}; for example --labels labels.csv:finding."
            )
        path, label, file = parts
        if not path.exists() and (folder / path).exists():
            path = folder / path
        if not path.exists():
            raise BadInput(
                f"There is no {path}, neither here nor in {folder}; check the name of the table in TABLE.csv:COLUMN."
            )
        self.path = path
        check_file(path)
        self.header = PlainTable(path).header
        self.file = self._column_of_files(file)
        self.label = LABEL_COLUMN if label is None else label
        self.check(self.label)

    def check(self, column: str) -> None:
        """Raise unless the table has one column of that name."""
        if self.header.count(column) != 1:
            what = "two columns" if column in self.header else "no column"
            raise BadInput(
                f"{self.path} has {what} {column!r} in its first line, the header; name another: TABLE.csv:COLUMN."
            )

    def cells(self, column: str, paths: Iterable[str]) -> Iterator[Any]:
        """The cell of every file in turn; a line names a file by its path or the end of it, the ending aside.

        A line is of one file and a file has one line: what one line says must not reach a second record, and no second line may
        settle what a file is told.
        """
        told, files = self._read(column), list(paths)
        owners = Counter(name for path in files for name in _whole(path))
        spoken_for: set[str] = set()
        for path in files:
            whole = _whole(path)
            # A line with the whole path of another file is that file's.
            names = [name for name in _tails(path) if name in told]
            names = [name for name in names if name in whole or not owners[name]]
            if not names:
                raise BadInput(
                    f"{path} has no line in {self.path}; add one, or move the picture out of the folder."
                )
            if len(names) > 1:
                raise BadInput(f"{path} has two lines in {self.path}; keep one line for each file.")
            if names[0] in spoken_for:
                raise BadInput(
                    f"{self.path} has one line for {path} and for another file; give each a line with its whole path."
                )
            spoken_for.add(names[0])
            yield told[names[0]]

    def _read(self, column: str) -> dict[str, Any]:
        table = PlainTable(self.path)
        told: dict[str, Any] = {}
        # Two passes, so that each column is read as text whatever it holds.
        for file, cell in zip(table.cells(self.file), table.cells(column), strict=True):
            name = "" if file is None else str(file).strip().replace("\\", "/").removeprefix("./")
            if not name:
                continue
            if name in told:
                raise BadInput(
                    f"{self.path} names a file twice in {self.file!r}; keep one line for each."
                )
            told[name] = cell
        return told

    def _column_of_files(self, stated: str | None) -> str:
        if stated is not None:
            self.check(stated)
            return stated
        plain = {name: re.sub(r"[\s_-]+", "_", name.strip().lower()) for name in self.header}
        for wanted in FILE_COLUMNS:
            found = [name for name, bare in plain.items() if bare == wanted]
            if found:
                return found[0]
        raise BadInput(
            f"{self.path} has no column file, filename or path in its first line, the header; say which names the picture: "
            "TABLE.csv:COLUMN:FILE COLUMN."
        )


def _whole(path: str) -> tuple[str, ...]:
    """A path with and without its ending."""
    return tuple(dict.fromkeys((path, str(PurePosixPath(path).with_suffix("")))))


def _tails(path: str) -> list[str]:
    parts = path.split("/")
    tails = ["/".join(parts[start:]) for start in range(len(parts))]
    return list(dict.fromkeys(name for tail in tails for name in _whole(tail)))
