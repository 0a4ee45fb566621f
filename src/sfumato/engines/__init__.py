"""Where the sum over records runs. An engine adds up whole numbers, so every engine gives the same total."""

from __future__ import annotations

from sfumato.engines.local import Engine, LocalEngine, SampledSummand, Summand, summed
from sfumato.errors import BadInput

__all__ = ["Engine", "LocalEngine", "SampledSummand", "Summand", "engine_of", "summed"]


def engine_of(spec: str | Engine | None) -> Engine:
    """An engine by its name: "local", "ray" (a cluster on this machine, for as long as it is needed) or "ray:ADDRESS"."""
    if spec is None:
        return LocalEngine()
    if not isinstance(spec, str):
        if isinstance(spec, type) or not all(
            hasattr(spec, name) for name in ("total", "each", "close")
        ):
            raise BadInput(
                f"The engine is given as {type(spec).__name__}; pass local, ray, ray:ADDRESS or an object of sfumato.engines."
            )
        return spec
    name, _, address = spec.partition(":")
    if name == "local" and not address:
        return LocalEngine()
    if name == "ray":
        from sfumato.engines.ray import RayEngine  # the package may not be there

        return RayEngine(address or None)
    raise BadInput(f"There is no engine {spec!r}; use local, ray, or ray:ADDRESS.")
