"""DP-MGE in its own words: a Gaussian of public features, released once, sampled and decoded for free."""

import torch

import sfumato
from sfumato.methods.mge import OuterMoments
from sfumato.privacy import Budget, Gate, Ledger, PrivacyStatement, PrivateData
from sfumato.privacy.query import calibrated, plan
from sfumato.public.resolve import get_codec

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
budget = Budget(epsilon=5.0, delta=1e-5)

# 1. A public codec: here the 32 lowest frequencies; with the path of a pretrained one, its code on the unit sphere.
codec = get_codec("dct:32", data.schema)
rows = OuterMoments(codec)  # [v, 1] of a record, whose square is filed by class
query = rows.query(codec.facts, data.schema.n_classes)

# 2. The release: means, second moments and counts in one noisy sum, calibrated jointly.
ledger = Ledger(budget)
gate = Gate(PrivateData(data, ledger), [query], plan([query], calibrated([query], budget)), budget)
moments = rows.read(gate.sum(query.label, rows))

# 3. A Gaussian for every class; its covariance is repaired, not recomputed from the data.
mean, root = moments.means(), moments.roots(codec.unit, rank=None)

# 4. Sample and decode.
normal = torch.randn(10, 8, codec.dim, dtype=torch.float64)
vectors = mean[:, None] + torch.einsum("cij,cnj->cni", root, normal)
images = codec.decode(vectors.flatten(0, 1))
print(PrivacyStatement.of(ledger).paragraph())
print("images:", tuple(images.shape))
