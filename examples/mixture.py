"""The mixture's idea in its own words: means and a covariance as noisy sums, then Gaussians (no clusters, no refinement)."""

import torch

import sfumato
from sfumato.generators.moments import FiledSquare, FiledVector, above_edge, symmetric, wiener
from sfumato.privacy import Budget, Ledger, PrivacyStatement, PrivateData, calibrate, charge_of
from sfumato.public.spaces import PixelSpace

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
budget = Budget(epsilon=5.0, delta=1e-5)
space = PixelSpace(data.schema)  # cosine basis: orthonormal, so lengths are those of pixels
radius, within = space.radius, 0.7 * space.radius  # public; `Mixture` releases tighter ones
# 1. The two sums: vectors and counts by class; squares around means that are filled in below.
means = torch.zeros(10, space.dim)
by_class = lambda b: (space.encode(b), b.labels)  # noqa: E731
around = lambda b: (space.encode(b) - means[b.labels], None)  # noqa: E731
sums = FiledVector(space.dim, segments=10, count_weight=0.4, radius=radius, view=by_class)
square = FiledSquare(space.dim, radius=within, view=around)
plan = lambda m: (charge_of(sums, m, label="means"), charge_of(square, m, label="square"))  # noqa: E731
noise, ledger = calibrate(plan, budget), Ledger(budget)
private = PrivateData(data, ledger)
# 2. Class means, shrunk by their signal-to-noise ratio coefficient by coefficient.
release = private.noisy_sum(sums, noise, label="means")
counts = release.value[:, -1] / 0.4
noisy = release.value[:, :-1] * radius / counts[:, None]
means += wiener(noisy, release.noise_std * radius / counts, window=1)
# 3. The covariance within classes, taken out of its noise.
release = private.noisy_sum(square, noise, label="square")
scale = within**2 / float(counts.sum())
moment = symmetric(release.value.view(space.dim, space.dim)) * scale
values, vectors = torch.linalg.eigh(above_edge(moment, release.noise_std * scale / 2**0.5))
# 4. Draws of every digit: post-processing, free.
labels = torch.arange(100) % 10
draws = torch.randn(100, space.dim).double() * values.clamp(min=0).sqrt() @ vectors.T
images = space.finish(space.raw(means[labels] + draws.float()), torch.Generator())
print(tuple(images.shape), PrivacyStatement.of(ledger).paragraph())
