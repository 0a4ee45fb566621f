"""Data in and out: schemas, datasets, readers, writers and public data sets known by name."""

from sfumato.data.adapters import as_dataset
from sfumato.data.catalogue import NamedSet, find_named, list_named, may_share
from sfumato.data.dataset import Batch, Dataset
from sfumato.data.loading import load, schema_of
from sfumato.data.schema import Column, Schema

__all__ = [
    "Batch",
    "Column",
    "Dataset",
    "NamedSet",
    "Schema",
    "as_dataset",
    "find_named",
    "list_named",
    "load",
    "may_share",
    "schema_of",
]
