"""DP-MERF in its own words: release a mean embedding once, then train a generator for free."""

import torch

import sfumato
from sfumato.generators import ConvGenerator, Training, train
from sfumato.generators.embedding import CountedByClass, MeanEmbedding
from sfumato.privacy import Budget, Ledger, PrivacyStatement, PrivateData, calibrate, charge_of
from sfumato.public.fourier import FourierFeatures

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
budget = Budget(epsilon=5.0, delta=1e-5)

# 1. Random Fourier features, filed by class with a count: norm √(1 + 0.1²) for every record.
fourier = FourierFeatures(data.schema.dim, features=2_000, length_scale=10.0, seed=0)
phi = CountedByClass(fourier, n_classes=10)

# 2. The release: one noisy sum over all records, paid for before a row is read.
noise = calibrate(lambda m: (charge_of(phi, m, label="mean embedding"),), budget)
ledger = Ledger(budget)
embedding = MeanEmbedding.release(PrivateData(data, ledger), phi, noise, label="mean embedding")

# 3. Match the generator's embedding to the released one: post-processing, free.
generator = ConvGenerator(data.schema.shape, n_classes=10, latent=5, hidden=100)
labels = torch.arange(10).repeat_interleave(10)


def loss(step: int, random: torch.Generator) -> torch.Tensor:
    angles = fourier.frequencies @ generator(labels, random).flatten(1).T
    features = torch.cat([angles.cos(), angles.sin()]) / 1_000**0.5  # (features, 100)
    sums = features.view(-1, 10, 10).sum(dim=2).T  # (classes, features)
    return embedding.mmd2(sums, per_class=10, norm2=1.0, columns=slice(None))


train(generator, loss, Training(steps=600, learning_rate=0.01))
print(PrivacyStatement.of(ledger).paragraph())
