"""One file per paper; each is found (`methods.registry`), none is listed. `sfumato.methods.Merf` and the like are found too."""

from typing import TYPE_CHECKING, Any

from sfumato.methods.base import Method, Workspace, fit, load, load_run
from sfumato.methods.registry import MethodInfo, find_methods, get_method, list_methods
from sfumato.methods.run import SavedRun, export, is_run

if TYPE_CHECKING:  # what is found, for type checkers; a test compares
    from sfumato.methods.diffusion import Diffusion as Diffusion
    from sfumato.methods.dpaf import Dpaf as Dpaf
    from sfumato.methods.dre import Dre as Dre
    from sfumato.methods.evolve import Evolve as Evolve
    from sfumato.methods.gan import Gan as Gan
    from sfumato.methods.gan import GanFt as GanFt
    from sfumato.methods.gan_mi import GanMi as GanMi
    from sfumato.methods.gswgan import GsWgan as GsWgan
    from sfumato.methods.hp import Hp as Hp
    from sfumato.methods.llm import LinearMaps as LinearMaps
    from sfumato.methods.mepf import Mepf as Mepf
    from sfumato.methods.merf import Merf as Merf
    from sfumato.methods.mge import Mge as Mge
    from sfumato.methods.mixture import Mixture as Mixture
    from sfumato.methods.pearl import Pearl as Pearl
    from sfumato.methods.privbayes import Privbayes as Privbayes
    from sfumato.methods.sinkhorn import Sinkhorn as Sinkhorn
    from sfumato.methods.transport import Transport as Transport

__all__ = [
    "Method",
    "MethodInfo",
    "SavedRun",
    "Workspace",
    "export",
    "find_methods",
    "fit",
    "get_method",
    "is_run",
    "list_methods",
    "load",
    "load_run",
]


def __getattr__(name: str) -> Any:
    if name[:1].isupper():
        for cls in find_methods().values():
            if cls.__name__ == name:
                return cls
    raise AttributeError(f"module 'sfumato.methods' has no attribute {name!r}")
