"""One file per paper; each registers itself here."""

from sfumato.methods.base import Parameter, PrivateMethod, Synthesizer, load
from sfumato.methods.dpaf import Dpaf
from sfumato.methods.dre import Dre
from sfumato.methods.gan import Gan, GanFt
from sfumato.methods.gan_mi import GanMi
from sfumato.methods.gswgan import GsWgan
from sfumato.methods.hp import Hp
from sfumato.methods.llm import LinearMaps
from sfumato.methods.mepf import Mepf
from sfumato.methods.merf import Merf, suggest_features
from sfumato.methods.mge import Mge
from sfumato.methods.mixture import Mixture
from sfumato.methods.registry import MethodInfo, get_method, list_methods, register
from sfumato.methods.run import SavedRun, export, is_run
from sfumato.methods.sinkhorn import Sinkhorn

__all__ = [
    "Dpaf",
    "Dre",
    "Gan",
    "GanFt",
    "GanMi",
    "GsWgan",
    "Hp",
    "LinearMaps",
    "Mepf",
    "Merf",
    "MethodInfo",
    "Mge",
    "Mixture",
    "Parameter",
    "PrivateMethod",
    "SavedRun",
    "Sinkhorn",
    "Synthesizer",
    "export",
    "get_method",
    "is_run",
    "list_methods",
    "load",
    "register",
    "suggest_features",
]
