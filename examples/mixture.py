"""The mixture's idea in its own words: means and a covariance as noisy sums, then Gaussians (no clusters, no refinement)."""

import torch

import sfumato
from sfumato.methods.moments import above_edge, counted, scaled, symmetric, wiener
from sfumato.privacy import Budget, Gate, Ledger, PrivacyStatement, PrivateData, Query
from sfumato.privacy.query import calibrated, plan
from sfumato.public.linear import CosineCodec

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
budget = Budget(epsilon=5.0, delta=1e-5)
codec = CosineCodec(data.schema)  # cosine basis: orthonormal, so lengths are those of pixels
radius, within = codec.bound, 0.7 * codec.bound  # public; `Mixture` releases tighter ones
# 1. The two queries: vectors and counts by class; squares around the class means.
dim = codec.dim
means = Query(label="means", shape=(dim + 1,), bound=1.16**0.5, segments=10)
square = Query(label="square", shape=(dim, dim), symmetric=True)
ledger, queries = Ledger(budget), [means, square]
gate = Gate(PrivateData(data, ledger), queries, plan(queries, calibrated(queries, budget)), budget)
# 2. Class means, shrunk by their signal-to-noise ratio coefficient by coefficient.
release = gate.sum("means", counted(lambda b: (codec.encode(b), b.labels), radius, 0.4))
counts = release.value[:, -1] / 0.4
noisy = release.value[:, :-1] * radius / counts[:, None]
centres = wiener(noisy, release.noise_std * radius / counts, window=1).float()
# 3. The covariance within classes, taken out of its noise.
around = scaled(lambda b: (codec.encode(b) - centres[b.labels], None), within)
release = gate.sum("square", around, given=(centres,))
scale = within**2 / float(counts.sum())
moment = symmetric(release.value.view(dim, dim)) * scale
values, vectors = torch.linalg.eigh(above_edge(moment, release.noise_std * scale / 2**0.5))
# 4. Draws of every digit: post-processing, free.
labels = torch.arange(100) % 10
draws = torch.randn(100, dim).double() * values.clamp(min=0).sqrt() @ vectors.T
images = codec.decode(centres[labels] + draws.float())
print(tuple(images.shape), PrivacyStatement.of(ledger).paragraph())
