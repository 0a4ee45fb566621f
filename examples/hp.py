"""DP-HP in its own words: every pixel's distribution and pairs of pixels are released, then training is free (one round)."""

import torch

import sfumato
from sfumato.generators import ConvGenerator, Training
from sfumato.generators.embedding import CountedByClass, MeanEmbedding
from sfumato.methods.matched import by_class
from sfumato.privacy import Budget, Gate, Ledger, PrivacyStatement, PrivateData, Query
from sfumato.privacy.query import calibrated, plan
from sfumato.public.hermite import Hermite, ProductKernel, SumKernel
from sfumato.public.tabular import plain_codec

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
pixels, budget = plain_codec(data.schema), Budget(epsilon=5.0, delta=1e-5)
features = Hermite(order=20, length_scale=0.15)  # 1. of one pixel
whole = CountedByClass(SumKernel(pixels, features), n_classes=10)  # 2. of all, and a count
pair = ProductKernel(pixels, features, [27, 36], n_classes=10)  # 3. of two together


queries = [  # jointly calibrated: 80 % and 20 % of the squared noise budget
    Query(label="sum", shape=(whole.dim,), bound=whole.bound, segments=10, share=0.8),
    Query(label="pair", shape=(pair.left, pair.right), bound=pair.bound, segments=10, share=0.2),
]
private = PrivateData(data, ledger := Ledger(budget))
gate = Gate(private, queries, plan(queries, calibrated(queries, budget)), budget)
target = MeanEmbedding.of(gate.sum("sum", whole), whole, size=gate.public_size)
beside = target.beside(gate.sum("pair", pair))
generator = ConvGenerator(data.schema.shape, n_classes=10, latent=5, hidden=100)


def loss(random: torch.Generator) -> torch.Tensor:  # 4. match both: free
    x = generator(torch.arange(10).repeat_interleave(10), random).flatten(1)
    two = by_class(torch.einsum("ni,nj->nij", *pair.of(x, x[:, :0])).flatten(1), classes=10)
    every = by_class(features(x).transpose(1, 2).flatten(1) / 8, classes=10)  # 8 = √64 pixels
    matched = 10 * target.mmd2(every[0], 10, every[1], slice(None))
    return matched + beside.mmd2(two[0], 10, two[1], slice(None))


random, adam = torch.Generator().manual_seed(0), torch.optim.Adam(generator.parameters(), lr=0.01)
for _ in Training("Training", random, generator=generator, adam=adam)(300):
    adam.zero_grad()
    loss(random).backward()
    adam.step()
print(PrivacyStatement.of(ledger).paragraph())
