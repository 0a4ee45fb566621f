"""DP-HP in its own words: every pixel's distribution and pairs of pixels are released, then training is free (one round)."""

import torch

import sfumato
from sfumato.generators import ConvGenerator, Training, train
from sfumato.generators.embedding import CountedByClass, MeanEmbedding
from sfumato.methods.matched import by_class
from sfumato.privacy import Budget, Ledger, PrivacyStatement, PrivateData, calibrate, charge_of
from sfumato.public.hermite import Hermite, ProductKernel, SumKernel
from sfumato.public.tabular import encoding_of

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
pixels, budget = encoding_of(data.schema), Budget(epsilon=5.0, delta=1e-5)
features = Hermite(order=20, length_scale=0.15)  # 1. of one pixel
whole = CountedByClass(SumKernel(pixels, features), n_classes=10)  # 2. of all, and a count
pair = ProductKernel(pixels, features, [27, 36], n_classes=10)  # 3. of two together


def plan(m: float):  # jointly calibrated: 80 % and 20 % of the squared noise budget
    return charge_of(whole, m / 0.8**0.5, label="sum"), charge_of(pair, m / 0.2**0.5, label="pair")


noise = [charge.noise_multiplier for charge in plan(calibrate(plan, budget))]
private = PrivateData(data, ledger := Ledger(budget))
target = MeanEmbedding.release(private, whole, noise[0], label="sum")
beside = target.beside(private.noisy_sum(pair, noise[1], label="pair"))
generator = ConvGenerator(data.schema.shape, n_classes=10, latent=5, hidden=100)


def loss(step: int, random: torch.Generator) -> torch.Tensor:  # 4. match both: free
    x = generator(torch.arange(10).repeat_interleave(10), random).flatten(1)
    two = by_class(torch.einsum("ni,nj->nij", *pair.of(x, x[:, :0])).flatten(1), classes=10)
    every = by_class(features(x).transpose(1, 2).flatten(1) / 8, classes=10)  # 8 = √64 pixels
    matched = 10 * target.mmd2(every[0], 10, every[1], slice(None))
    return matched + beside.mmd2(two[0], 10, two[1], slice(None))


train(generator, loss, Training(steps=300, learning_rate=0.01))
print(PrivacyStatement.of(ledger).paragraph())
