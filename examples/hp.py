"""DP-HP in its own words: every pixel's distribution and a few pairs of pixels are released, then training is free."""

import torch

import sfumato
from sfumato.embedding import CountedByClass, MeanEmbedding
from sfumato.features import Hermite, ProductKernel, SumKernel, encoding_of
from sfumato.privacy import Budget, Ledger, PrivacyStatement, PrivateData, calibrate, charge_of

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
budget = Budget(epsilon=5.0, delta=1e-5)
pixels = encoding_of(data.schema)

# 1. Hermite features of one pixel, with the bound that is proved for [0, 1].
features = Hermite(order=20, length_scale=0.15)
print(f"a pixel's {features.order + 1} features have norm at most {features.bound:.4f}")

# 2. The sum kernel over all pixels, filed by class with a count; 3. product kernels over random pairs of pixels.
whole = CountedByClass(SumKernel(pixels, features), n_classes=10)
pairs = [torch.randperm(64)[:2].tolist() for _ in range(3)]
products = [ProductKernel(pixels, features, pair, n_classes=10) for pair in pairs]


def plan(m: float):
    rounds = [charge_of(p, m / (0.2 / 3) ** 0.5, label=f"pair {i}") for i, p in enumerate(products)]
    return (charge_of(whole, m / 0.8**0.5, label="sum kernel"), *rounds)


charges = plan(calibrate(plan, budget))  # jointly: 80 % and 20 % of the squared noise budget
ledger = Ledger(budget)
private = PrivateData(data, ledger)
embedding = MeanEmbedding.release(private, whole, charges[0].noise_multiplier, label="sum kernel")
for phi, charge in zip(products, charges[1:], strict=True):
    rest = embedding.beside(private.noisy_sum(phi, charge.noise_multiplier, label=charge.label))
print(PrivacyStatement.of(ledger).paragraph())

# 4. `sfumato.methods.Hp` does all this and trains a generator to match; its matching loss is free to look at.
fitted = sfumato.get_method("hp")(order=20, steps=300).fit(data, budget)
print(
    f"matching loss {fitted.loss_:.3g}; classes of 100 samples: {fitted.sample(100).labels[:10]} …"
)
