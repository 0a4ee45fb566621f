"""One file per paper; each registers itself here."""

from sfumato.methods.base import Parameter, Synthesizer, load
from sfumato.methods.merf import Merf
from sfumato.methods.registry import MethodInfo, get_method, list_methods, register
from sfumato.methods.run import RunFolder

__all__ = [
    "Merf",
    "MethodInfo",
    "Parameter",
    "RunFolder",
    "Synthesizer",
    "get_method",
    "list_methods",
    "load",
    "register",
]
