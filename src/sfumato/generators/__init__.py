"""Networks that turn noise into records, and the one loop that trains them. Knows nothing of privacy."""

from sfumato.generators.networks import ClassedGenerator, ConvGenerator, DenseGenerator
from sfumato.generators.resnet import ResNetGenerator
from sfumato.generators.training import Training

__all__ = ["ClassedGenerator", "ConvGenerator", "DenseGenerator", "ResNetGenerator", "Training"]
