"""sfumato: turn a private data set into a synthetic one, with a differential-privacy guarantee anyone can check.

import sfumato
data = sfumato.load("fashion-mnist:train")
model = sfumato.Merf().fit(data, sfumato.Budget(epsilon=1.0, delta=1e-5))
synthetic = model.sample(60_000, seed=0)
print(model.statement_.paragraph())
print(sfumato.evaluate(synthetic, sfumato.load("fashion-mnist:test")))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sfumato._version import __version__

if TYPE_CHECKING:
    from sfumato.classifier import LocallyLinearMaps
    from sfumato.data import Column, Dataset, Schema, load
    from sfumato.errors import SfumatoError
    from sfumato.evaluation import evaluate
    from sfumato.methods import (
        Dre,
        Gan,
        GanFt,
        GanMi,
        Hp,
        Mepf,
        Merf,
        Mge,
        Mixture,
        Synthesizer,
        get_method,
        list_methods,
        suggest_features,
    )
    from sfumato.privacy import Budget, Neighbours

# Loaded on first use, so that `import sfumato` and the command line's help do not wait for torch.
_HOME = {
    "Budget": "sfumato.privacy",
    "Column": "sfumato.data",
    "Dataset": "sfumato.data",
    "Dre": "sfumato.methods",
    "Gan": "sfumato.methods",
    "GanFt": "sfumato.methods",
    "GanMi": "sfumato.methods",
    "Hp": "sfumato.methods",
    "LocallyLinearMaps": "sfumato.classifier",
    "Mepf": "sfumato.methods",
    "Merf": "sfumato.methods",
    "Mge": "sfumato.methods",
    "Mixture": "sfumato.methods",
    "Neighbours": "sfumato.privacy",
    "Schema": "sfumato.data",
    "SfumatoError": "sfumato.errors",
    "Synthesizer": "sfumato.methods",
    "evaluate": "sfumato.evaluation",
    "get_method": "sfumato.methods",
    "list_methods": "sfumato.methods",
    "load": "sfumato.data",
    "suggest_features": "sfumato.methods",
}

__all__ = [  # noqa: RUF022
    "__version__",
    "Budget",
    "Column",
    "Dataset",
    "Dre",
    "Gan",
    "GanFt",
    "GanMi",
    "Hp",
    "LocallyLinearMaps",
    "Mepf",
    "Merf",
    "Mge",
    "Mixture",
    "Neighbours",
    "Schema",
    "SfumatoError",
    "Synthesizer",
    "evaluate",
    "get_method",
    "list_methods",
    "load",
    "suggest_features",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'sfumato' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
