"""DP-MERF in its own words: release a mean embedding once, then train a generator for free."""

import torch

import sfumato
from sfumato.generators import ConvGenerator, Training
from sfumato.generators.embedding import CountedByClass, MeanEmbedding
from sfumato.privacy import Budget, Gate, Ledger, PrivacyStatement, PrivateData, Query
from sfumato.privacy.query import calibrated, plan
from sfumato.public.fourier import FourierFeatures

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
budget = Budget(epsilon=5.0, delta=1e-5)

# 1. Random Fourier features, filed by class with a count: norm √(1 + 0.1²) for every record.
fourier = FourierFeatures(data.schema.dim, features=2_000, length_scale=10.0, seed=0)
phi = CountedByClass(fourier, n_classes=10)

# 2. The release: one noisy sum over all records, paid for before a row is read.
queries = [Query(label="mean embedding", shape=(phi.dim,), bound=phi.bound, segments=10)]
ledger = Ledger(budget)
private = Gate(
    PrivateData(data, ledger), queries, plan(queries, calibrated(queries, budget)), budget
)
embedding = MeanEmbedding.of(private.sum("mean embedding", phi), phi, size=private.public_size)

# 3. Match the generator's embedding to the released one: post-processing, free.
generator = ConvGenerator(data.schema.shape, n_classes=10, latent=5, hidden=100)
labels = torch.arange(10).repeat_interleave(10)


def loss(random: torch.Generator) -> torch.Tensor:
    angles = fourier.frequencies @ generator(labels, random).flatten(1).T
    features = torch.cat([angles.cos(), angles.sin()]) / 1_000**0.5  # (features, 100)
    sums = features.view(-1, 10, 10).sum(dim=2).T  # (classes, features)
    return embedding.mmd2(sums, per_class=10, norm2=1.0, columns=slice(None))


random, adam = torch.Generator().manual_seed(0), torch.optim.Adam(generator.parameters(), lr=0.01)
for _ in Training("Training", random, generator=generator, adam=adam)(600):
    adam.zero_grad()
    loss(random).backward()
    adam.step()
print(PrivacyStatement.of(ledger).paragraph())
