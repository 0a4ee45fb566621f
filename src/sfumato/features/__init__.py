"""Maps from records to vectors with a proved norm bound."""

from sfumato.features.fourier import FourierFeatures
from sfumato.features.hermite import Hermite, ProductKernel, SumKernel
from sfumato.features.tabular import HeterogeneousFourier, TableEncoding, encoding_of

__all__ = [
    "FourierFeatures",
    "Hermite",
    "HeterogeneousFourier",
    "ProductKernel",
    "SumKernel",
    "TableEncoding",
    "encoding_of",
]
