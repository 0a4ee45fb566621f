"""sfumato: turn a private data set into a synthetic one, with a differential-privacy guarantee anyone can check.

import sfumato
model = sfumato.fit("mixture", "fashion-mnist:train", epsilon=1.0, delta=1e-5)
synthetic = model.sample(60_000, seed=0)
print(model.statement_.paragraph())
print(sfumato.evaluate(synthetic, sfumato.load("fashion-mnist:test")))
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from sfumato._version import __version__

if TYPE_CHECKING:
    from sfumato.classifier import LocallyLinearMaps
    from sfumato.data import Column, Dataset, Schema, as_dataset, load
    from sfumato.errors import SfumatoError
    from sfumato.evaluation import evaluate
    from sfumato.generators.embedding import suggest_features
    from sfumato.methods import (
        Diffusion,
        Dpaf,
        Dre,
        Evolve,
        Gan,
        GanFt,
        GanMi,
        GsWgan,
        Hp,
        Mepf,
        Merf,
        Method,
        Mge,
        Mixture,
        Pearl,
        Privbayes,
        Sinkhorn,
        Transport,
        fit,
        get_method,
        list_methods,
        load_run,
    )
    from sfumato.privacy import Budget, Neighbours
    from sfumato.report.checking import check

# Silent unless the program that uses sfumato sets up logging; what is logged is public (docs/quickstart.md).
logging.getLogger("sfumato").addHandler(logging.NullHandler())

# Loaded on first use, so that `import sfumato` and the command line's help do not wait for torch. The classes of methods are not
# listed: any other name is looked for among the methods that are found.
_HOME = {
    "Budget": "sfumato.privacy",
    "Column": "sfumato.data",
    "Dataset": "sfumato.data",
    "LocallyLinearMaps": "sfumato.classifier",
    "Method": "sfumato.methods",
    "Neighbours": "sfumato.privacy",
    "Schema": "sfumato.data",
    "SfumatoError": "sfumato.errors",
    "as_dataset": "sfumato.data",
    "check": "sfumato.report.checking",
    "evaluate": "sfumato.evaluation",
    "fit": "sfumato.methods",
    "get_method": "sfumato.methods",
    "list_methods": "sfumato.methods",
    "load": "sfumato.data",
    "load_run": "sfumato.methods",
    "suggest_features": "sfumato.generators.embedding",
}

__all__ = [  # noqa: RUF022
    "__version__",
    "Budget",
    "Column",
    "Dataset",
    "Diffusion",
    "Dpaf",
    "Dre",
    "Evolve",
    "Gan",
    "GanFt",
    "GanMi",
    "GsWgan",
    "Hp",
    "LocallyLinearMaps",
    "Mepf",
    "Merf",
    "Method",
    "Mge",
    "Mixture",
    "Neighbours",
    "Pearl",
    "Privbayes",
    "Schema",
    "SfumatoError",
    "Sinkhorn",
    "Transport",
    "as_dataset",
    "check",
    "evaluate",
    "fit",
    "get_method",
    "list_methods",
    "load",
    "load_run",
    "suggest_features",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name[:1].isupper():
        methods = importlib.import_module("sfumato.methods")
        if hasattr(methods, name):
            return getattr(methods, name)
    raise AttributeError(f"module 'sfumato' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
