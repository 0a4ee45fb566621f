"""Maps from records to vectors with a proved norm bound."""

from sfumato.features.fourier import FourierFeatures

__all__ = ["FourierFeatures"]
