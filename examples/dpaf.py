"""DPAF in its own words: a discriminator that sees records only as noisy sums of normalised feature maps."""

import torch
from torch.nn.functional import softplus

import sfumato
from sfumato.generators.dpaf import Discriminator
from sfumato.generators.gan import ImageGenerator
from sfumato.methods.dpaf_phases import features_by_class
from sfumato.privacy import Budget, Gate, Ledger, PrivateData, Query
from sfumato.privacy.query import calibrated, plan

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
budget, rate, steps = Budget(epsilon=10.0, delta=1e-5), 0.2, 60
generator = ImageGenerator((1, 8, 8), 10, latent=8, width=8)
network = Discriminator((1, 8, 8), 10, maps=8)  # conv1, conv2 (both random here), SIN; conv3, FC
of_head = torch.optim.Adam(network.head.parameters(), lr=2e-3)
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-3)
random, classes = torch.Generator().manual_seed(0), torch.arange(10)
labels = classes.repeat_interleave(8)

# Every feature map of a record has length √(h·w), so a record's features have √(maps·h·w): no gradient needs clipping.
maps, height, width = network.encoder.shape
dim = maps * height * width
query = Query(label="features", shape=(dim,), bound=dim**0.5, segments=10, rate=rate, steps=steps)
ledger = Ledger(budget)
gate = Gate(PrivateData(data, ledger), [query], plan([query], calibrated([query], budget)), budget)
features = features_by_class(network.encoder)

for step in gate.steps("features").begin():
    sums = step.sum(features).float().view(10, *network.encoder.shape)
    made = network.encoder(generator(labels, random))
    average = made.detach().unflatten(0, (10, 8)).mean(dim=1)
    of_head.zero_grad()  # conv3 and FC: post-processing of the noisy sums
    softplus(-network.logit(sums * 10 / (rate * len(data)), classes)).mean().backward()
    softplus(network.logit(average, classes)).mean().backward()
    of_head.step()
    of_generator.zero_grad()  # single images, not averages
    softplus(-network.logit(made, labels)).mean().backward()
    of_generator.step()

print(f"spent epsilon = {ledger.spent():.3f}; images of shape {generator(labels, random).shape}")
