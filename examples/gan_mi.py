"""DP-GAN-MI: an adversarial network in the space of a public codec, here 16 frequencies of an 8×8 image."""

import sfumato

data = sfumato.load("digits:train")  # private
method = sfumato.get_method("gan-mi")(codec="dct:16", rate=0.1, steps=100, width=32)
method.fit(data, sfumato.Budget(epsilon=10.0, delta=1e-5))

sample = method.sample(200)
print(sample.images.shape, sample.schema.n_classes, "classes")
print(method.statement_.paragraph())
