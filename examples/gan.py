"""DP-CGAN in its own words: a critic learns from noisy gradients, a generator from the critic."""

import torch
from torch.nn.functional import softplus

import sfumato
from sfumato.generators.gan import ImageCritic, ImageGenerator
from sfumato.privacy import Budget, Charge, GradientSum, Ledger, PrivateData, calibrate

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
budget, rate, steps = Budget(epsilon=10.0, delta=1e-5), 0.1, 60
generator = ImageGenerator((1, 8, 8), 10, latent=8, width=8)
critic = ImageCritic((1, 8, 8), 10, width=8)
of_critic, of_generator = (torch.optim.Adam(n.parameters(), lr=2e-3) for n in (critic, generator))
random = torch.Generator().manual_seed(0)

# Each record's gradient of −log D(x, y), clipped to 1. All steps are paid for before the first row is read.
gradients = GradientSum(critic, lambda net, x, y: softplus(-net(x, y)), bound=1.0)
sampled = {"label": "critic", "bound": gradients.enforced, "rate": rate, "steps": steps}
noise = calibrate(lambda m: (Charge(noise_multiplier=m, **sampled),), budget)
ledger = Ledger(budget)

for step in PrivateData(data, ledger).poisson_steps(noise_multiplier=noise, **sampled):
    gradients.assign(step.noisy_gradient(gradients) / (rate * len(data)))
    labels = torch.randint(10, (64,), generator=random)
    softplus(critic(generator(labels, random).detach(), labels)).mean().backward()
    of_critic.step()  # the noisy gradient of records plus that of generated images
    of_generator.zero_grad()
    softplus(-critic(generator(labels, random), labels)).mean().backward()
    of_generator.step()

print(f"spent epsilon = {ledger.spent():.3f}; images of shape {generator(labels, random).shape}")
