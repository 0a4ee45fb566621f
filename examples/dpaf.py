"""DPAF in its own words: a discriminator that sees records only as noisy sums of normalised feature maps."""

import torch
from torch.nn.functional import softplus

import sfumato
from sfumato.generators.dpaf import Discriminator
from sfumato.generators.gan import ImageGenerator
from sfumato.methods.aggregation import AggregatedFeatures
from sfumato.privacy import Budget, Charge, Ledger, PrivateData, calibrate, enforced_bound

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
budget, rate, steps = Budget(epsilon=10.0, delta=1e-5), 0.2, 60
generator = ImageGenerator((1, 8, 8), 10, latent=8, width=8)
network = Discriminator((1, 8, 8), 10, maps=8)  # conv1, conv2 (both random here), SIN; conv3, FC
of_head = torch.optim.Adam(network.head.parameters(), lr=2e-3)
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-3)
random, classes = torch.Generator().manual_seed(0), torch.arange(10)
labels = classes.repeat_interleave(8)

# Every feature map of a record has length √(h·w), so a record's features have √(maps·h·w): no gradient needs clipping.
features = AggregatedFeatures(network.encoder, data.schema)
sampled = {"label": "features", "bound": enforced_bound(features), "rate": rate, "steps": steps}
noise = calibrate(lambda m: (Charge(noise_multiplier=m, **sampled),), budget)
ledger = Ledger(budget)

for step in PrivateData(data, ledger).poisson_steps(noise_multiplier=noise, **sampled):
    sums = step.noisy_sum(features).float().view(10, *network.encoder.shape)
    made = network.encoder(generator(labels, random))
    average = made.detach().unflatten(0, (10, 8)).mean(dim=1)
    of_head.zero_grad()  # conv3 and FC: post-processing of the noisy sums
    softplus(-network.verdict(sums * 10 / (rate * len(data)), classes)).mean().backward()
    softplus(network.verdict(average, classes)).mean().backward()
    of_head.step()
    of_generator.zero_grad()  # single images, not averages
    softplus(-network.verdict(made, labels)).mean().backward()
    of_generator.step()

print(f"spent epsilon = {ledger.spent():.3f}; images of shape {generator(labels, random).shape}")
