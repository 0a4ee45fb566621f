"""Where the sum over records runs. An engine adds up whole numbers, so every engine gives the same total."""

from sfumato.engines.local import Engine, LocalEngine, Summand

__all__ = ["Engine", "LocalEngine", "Summand"]
