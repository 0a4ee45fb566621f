"""The mixture's idea in its own words: means and a covariance as noisy sums, then Gaussians (no clusters, no refinement)."""

import torch

import sfumato
from sfumato.features.moments import FiledSquare, FiledVector, above_edge, symmetric, wiener
from sfumato.features.spaces import PixelSpace
from sfumato.privacy import Budget, Ledger, PrivacyStatement, PrivateData, calibrate, charge_of

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
budget = Budget(epsilon=5.0, delta=1e-5)
space = PixelSpace(data.schema)  # cosine basis: orthonormal, so lengths are those of pixels
radius, within = space.radius, 0.7 * space.radius  # public; `Mixture` releases tighter ones
# 1. The plan, before a row is read: class sums with counts, and the second moment around the class means.
sums = FiledVector(space.dim, segments=10, count_weight=0.4)
square = FiledSquare(space.dim)
charges = lambda m: (charge_of(sums, m, label="means"), charge_of(square, m, label="moment"))  # noqa: E731
noise, ledger = calibrate(charges, budget), Ledger(budget)
private = PrivateData(data, ledger)

# 2. Class means, shrunk by their signal-to-noise ratio coefficient by coefficient.
view = lambda b: (space.encode(b), b.labels)  # noqa: E731
sums = FiledVector(space.dim, segments=10, count_weight=0.4, radius=radius, view=view)
release = private.noisy_sum(sums, noise, label="means")
counts = release.value[:, -1] / 0.4
means = release.value[:, :-1] * radius / counts[:, None]
means = wiener(means, release.noise_std * radius / counts, window=1).float()

# 3. The covariance within classes, taken out of its noise.
around = lambda b: (space.encode(b) - means[b.labels], None)  # noqa: E731
release = private.noisy_sum(
    FiledSquare(space.dim, radius=within, view=around), noise, label="moment"
)
scale = within**2 / float(counts.sum())
moment = symmetric(release.value.view(space.dim, space.dim)) * scale
moment = above_edge(moment, release.noise_std * scale / 2**0.5)

# 4. Draws of every digit: post-processing, free.
values, vectors = torch.linalg.eigh(moment)
draws = torch.randn(100, space.dim) * values.clamp(min=0).sqrt().float() @ vectors.T.float()
labels = torch.arange(100) % 10
images = space.finish(space.raw(means[labels] + draws), torch.Generator())
print(images.shape, PrivacyStatement.of(ledger).paragraph())
