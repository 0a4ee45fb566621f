"""DP-MEPF in its own words: release a mean of perceptual features once, then train a generator for free."""

import torch

import sfumato
from sfumato.generators import ConvGenerator, Training
from sfumato.generators.embedding import CountedByClass, MeanEmbedding
from sfumato.privacy import Budget, Gate, Ledger, PrivacyStatement, PrivateData, Query
from sfumato.privacy.query import calibrated, plan
from sfumato.public.perceptual import PerceptualFeatures, make_encoder

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
budget = Budget(epsilon=5.0, delta=1e-5)

# 1. Features and their squares, each scaled to length 1. "scattering" needs no public data; "vgg16" is a public network.
encoder = make_encoder("scattering", data.schema.shape)
features = PerceptualFeatures(encoder, moments=2)
phi = CountedByClass(features, n_classes=10)

# 2. The release: one noisy sum over all records, paid for before a row is read.
queries = [Query(label="mean embedding", shape=(phi.dim,), bound=phi.bound, segments=10)]
ledger = Ledger(budget)
private = Gate(
    PrivateData(data, ledger), queries, plan(queries, calibrated(queries, budget)), budget
)
embedding = MeanEmbedding.of(private.sum("mean embedding", phi), phi, size=private.public_size)

# 3. Match the generator's embedding to the released one: post-processing, free.
generator = ConvGenerator(data.schema.shape, n_classes=10, latent=20, hidden=100)
labels = torch.arange(10).repeat_interleave(10)


def loss(random: torch.Generator) -> torch.Tensor:
    rows = features.of(generator(labels, random)).view(10, 10, -1)  # (classes, each, features)
    norm2 = rows.square().sum(dim=2).mean(dim=1)
    return embedding.mmd2(rows.sum(dim=1), per_class=10, norm2=norm2, columns=slice(None))


random, adam = torch.Generator().manual_seed(0), torch.optim.Adam(generator.parameters(), lr=0.01)
for _ in Training("Training", random, generator=generator, adam=adam)(400):
    adam.zero_grad()
    loss(random).backward()
    adam.step()
print(PrivacyStatement.of(ledger).paragraph())
