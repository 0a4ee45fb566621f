"""`compare`: methods × ε × seeds on one data set, as a table and a privacy–utility curve.

`config` reads the TOML file, `grid` runs the cells that are not there yet, `cells` is one of them and the processes,
`outcome` makes the table, `page` writes the files.

Public: the samples' guarantee, settings, plans. NOT covered by ε: every metric, since it reads real records; each output
says so. Every cell is a release of its own.
"""

from sfumato.comparison.config import Config, Variant, parse_config, read_config
from sfumato.comparison.grid import compare
from sfumato.comparison.outcome import (
    COLUMNS,
    Outcome,
    failure_sentence,
    published,
    remarks,
    table,
)

__all__ = [
    "COLUMNS",
    "Config",
    "Outcome",
    "Variant",
    "compare",
    "failure_sentence",
    "parse_config",
    "published",
    "read_config",
    "remarks",
    "table",
]
