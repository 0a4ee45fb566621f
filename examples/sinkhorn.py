"""DP-Sinkhorn in its own words: generated images move along a noisy gradient of a transport divergence."""

import torch

import sfumato
import sfumato.privacy as dp
from sfumato.generators import ConvGenerator
from sfumato.methods.sinkhorn import squared_distances, transport_gradient, transport_plan

data = sfumato.load("digits:train")  # private: 8×8 images
budget, batch, groups, clip = dp.Budget(epsilon=10.0, delta=1e-5), 40, 4, 0.5
generator = ConvGenerator((1, 8, 8), 0, latent=5, hidden=50)
optimiser = torch.optim.Adam(generator.parameters(), lr=5e-3)
random, labels = torch.Generator().manual_seed(0), torch.zeros(batch, dtype=torch.int64)

# One record may turn a group's clipped gradient round, so it moves the sum by 2 · clip.
sampled = {"label": "gradients", "summands": "groups", "rate": 0.1, "steps": 80}
sampled["bound"] = dp.enforced_group_bound(batch * 64, clip)
noise = dp.calibrate(lambda m: (dp.Charge(noise_multiplier=m, **sampled),), budget)
private = dp.PrivateData(data, ledger := dp.Ledger(budget))


def toward(x, y):  # ∇ of OT(X, Y)
    a, b = (torch.full((len(points),), 1 / len(points)) for points in (x, y))
    return transport_gradient(x, y, transport_plan(squared_distances(x, y), a, b, 0.5, 20))


for step in private.poisson_steps(noise_multiplier=noise, **sampled):
    images = generator(labels, random)
    x = images.detach().flatten(1)
    # ∇ of the debiased divergence for one group of the sample; the wall clips it as one vector.
    ask = lambda group, x=x: (toward(x, group.pixels().flatten(1)) - toward(x, x)).flatten()  # noqa: E731
    noisy = step.noisy_groups(dp.GroupSum(ask, dim=x.numel(), bound=clip, groups=groups))
    optimiser.zero_grad()
    images.backward(noisy.view_as(images) / groups)
    optimiser.step()

print(f"spent epsilon = {ledger.spent():.3f}; images of shape {tuple(images.shape)}")
