"""Why the first phase that DPAF's paper prints is not private: an attack on it at a claimed ε = 1, in seconds.

Each record's gradient of conv1 is clipped to C, so the paper takes C for the most that one record changes their sum. But *every*
record's gradient passes through parts that are computed from all records without noise. The attacker knows all records but one,
plays the training again with and without it along the released steps, and says which is likelier.
"""

import math

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import sfumato
from sfumato.data import Batch
from sfumato.generators.dpaf import Discriminator
from sfumato.privacy import Budget, Charge, GradientSum, calibrate

STEPS, RUNS, C, RATE, CONV1_RATE = 20, 40, 1e-4, 4.0, 0.01
counted = {"label": "conv1", "bound": C, "steps": STEPS}  # all that the paper counts
multiplier = calibrate(
    lambda m: (Charge(noise_multiplier=m, **counted),), Budget(epsilon=1, delta=1e-5)
)
digits = sfumato.load("digits:train")
known = (digits.labels < 2).nonzero()[0][
    :25
]  # a batch of 24, as in the paper, and the record in question


class Replay:
    """The published first phase on the first `count` records, but for the noise."""

    def __init__(self, count: int) -> None:
        torch.manual_seed(0)
        self.batch, self.network = digits.take(known[:count]), Discriminator((1, 8, 8), 2, maps=4)
        self.encoder, self.head = self.network.encoder, self.network.head
        self.shares = torch.bincount(self.batch.labels, minlength=2) / count

    def conv1_sum(self) -> torch.Tensor:
        """Σ of the records' clipped gradients of conv1; the other parts make a step of plain SGD."""
        aggregate = self.encoder(self.batch.pixels()).mean(dim=0, keepdim=True)
        loss = (self.head(aggregate).softmax(dim=1)[0] - self.shares).square().mean()
        rest = [*self.encoder.conv2.parameters(), *self.head.parameters()]
        slope, *grads = torch.autograd.grad(loss, [aggregate, *rest])
        self.encoder.conv2.requires_grad_(False)
        along = GradientSum(
            self.encoder, lambda e, x: (e(x) * slope).flatten(1).sum(dim=1), bound=C
        )
        total = along(Batch(self.batch.values, None)).float()
        self.encoder.conv2.requires_grad_(True)
        for parameter, gradient in zip(rest, grads, strict=True):
            parameter.data -= RATE * gradient
        return total

    def move_conv1(self, released: torch.Tensor) -> None:
        conv1 = list(self.encoder.conv1.parameters())
        moved = parameters_to_vector(conv1).detach() - CONV1_RATE * released / (24 * C)
        vector_to_parameters(moved, conv1)


right, farthest = 0, 0.0
for run in range(RUNS):
    noise, evidence, pair = torch.Generator().manual_seed(run), 0.0, (Replay(24), Replay(25))
    for _ in range(STEPS):
        first, second = (replay.conv1_sum() for replay in pair)
        released = second if run % 2 else first  # the truth, by turns
        released = released + multiplier * C * torch.randn(released.shape, generator=noise)
        evidence += float((released - first).square().sum() - (released - second).square().sum())
        farthest = max(farthest, float((first - second).norm()) / C)
        for replay in pair:
            replay.move_conv1(released)
    right += (evidence > 0) == bool(run % 2)

print(f"claimed: one record moves a sum by at most C; seen: by {farthest:.1f} C")
allowed = (math.e + 1e-5) / (math.e + 1)
print(f"(1, 1e-5)-DP allows {allowed:.1%} of guesses to be right; {right} of {RUNS} are")
