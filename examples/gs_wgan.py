"""GS-WGAN in its own words: critics of secret shards tell a generator, through noise, what to make better."""

import torch

import sfumato
import sfumato.privacy as dp
from sfumato.generators import ConvGenerator

data = sfumato.load("digits:train")  # private: 8×8 images
budget, batch, shards, clip = dp.Budget(epsilon=10.0, delta=1e-5), 40, 20, 1.0
generator = ConvGenerator((1, 8, 8), 0, latent=5, hidden=50)
optimiser = torch.optim.Adam(generator.parameters(), lr=5e-3)
random, labels = torch.Generator().manual_seed(0), torch.zeros(batch, dtype=torch.int64)

sampled = {"label": "gradients", "summands": "shards", "rate": 0.2, "steps": 80}
sampled["bound"] = dp.enforced_group_bound(batch * 64, clip)
noise = dp.calibrate(lambda m: (dp.Charge(noise_multiplier=m, **sampled),), budget)
private = dp.PrivateData(data, ledger := dp.Ledger(budget))

# The simplest critic of slope 1 is linear, from the generated mean to the shard's. Trained ones: method gs-wgan.
# What lasts of a shard is made from the shard alone; the wall keeps it and hands out copies.
means = dp.ShardStates(lambda shard, *_: shard.pixels().flatten(1).mean(dim=0), shards=shards)

for step in private.poisson_steps(noise_multiplier=noise, **sampled):
    images = generator(labels, random)
    made = images.detach().flatten(1)

    def opinion(shard, mean, random, made=made):  # ∇ of −Σ D(x); the wall clips it as one vector
        slope = torch.nn.functional.normalize(mean - made.mean(dim=0), dim=0)
        return -slope.repeat(len(made)) / len(made) ** 0.5

    noisy = step.noisy_shards(dp.ShardSum(opinion, dim=made.numel(), bound=clip, states=means))
    optimiser.zero_grad()
    images.backward(noisy.view_as(images) / (shards * 0.2))
    optimiser.step()

print(f"spent epsilon = {ledger.spent():.3f}; images of shape {tuple(images.shape)}")
