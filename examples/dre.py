"""DP-DRE in its own words: learn privately which public digits are like the private ones, and give out those."""

import numpy as np

import sfumato
from sfumato.data import Dataset

digits = sfumato.load("digits:train")
images, labels = digits.images, digits.labels
half = len(images) // 2

# Private: zeros, ones and twos, without labels. Public: other drawings of all ten digits.
private = Dataset.from_arrays(images[:half][labels[:half] < 3], name="private digits")
public = Dataset.from_arrays(images[half:], labels[half:], classes=10, name="public digits")

method = sfumato.get_method("dre")(codec="pca:16", rate=0.2, steps=150)
method.fit(private, sfumato.Budget(epsilon=5.0, delta=1e-5), public=public)

# How likely each public record is to be drawn, added up by its public label: free, and the paper's sanity check.
weights = method.public_weights()[0].numpy()
share = np.bincount(public.labels, weights=weights, minlength=10)
print("weight on zeros, ones and twos:", round(float(share[:3].sum()), 3))
print(method.sample(100).images.shape)
print(method.statement_.paragraph())
