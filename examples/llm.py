"""DP-LLM in its own words: linear maps per class, softmax-weighted, trained on noisy sums of clipped gradients."""

import torch

import sfumato
from sfumato import privacy

train, test = sfumato.load("digits:train"), sfumato.load("digits:test")  # 8×8 images of digits
K, M, D, beta, rate, steps, clip = 10, 5, 64 + 1, 1.0, 0.25, 120, 1e-3
W = torch.randn(K * M, D, generator=torch.Generator().manual_seed(0)) / D**0.5


def maps(batch):
    x = torch.cat([batch.pixels().flatten(1), torch.ones(len(batch), 1)], dim=1)  # 1 for the bias
    g = (x @ W.T).view(-1, K, M)  # M linear maps for each class
    sigma = torch.softmax(beta * g, dim=2)  # weighted by how strongly they answer
    return x, g, sigma, (sigma * g).sum(dim=2)


class Gradient(privacy.OuterMap):  # ∂ loss/∂g ⊗ x: a norm in closed form, one product for the sum
    left, right, left_bound, right_bound = K * M, D, clip, 1.0

    def factors(self, batch):
        x, g, sigma, f = maps(batch)
        error = torch.softmax(f, dim=1) - torch.eye(K)[batch.labels]
        slopes = error[..., None] * sigma * (1 + beta * (g - f[..., None]))
        return privacy.balanced(slopes.flatten(1), x)


phi, budget = Gradient(), privacy.Budget(epsilon=8.0, delta=1e-5)
facts = {"bound": privacy.enforced_bound(phi), "label": "gradients", "dimension": phi.dim}
paid = {"rate": rate, "steps": steps, **facts}
noise = privacy.calibrate(lambda m: (privacy.Charge(noise_multiplier=m, **paid),), budget)
ledger, adam = privacy.Ledger(budget), torch.optim.Adam([W], lr=0.1)
for step in privacy.PrivateData(train, ledger).poisson_steps(noise_multiplier=noise, **paid):
    W.grad = step.noisy_sum(phi).float().view_as(W) / (clip * rate * len(train))
    adam.step()
guesses = maps(test.take(range(len(test))))[3].argmax(dim=1).numpy()
print(f"accuracy {(guesses == test.labels).mean():.3f}, ε = {budget.epsilon:g}")
