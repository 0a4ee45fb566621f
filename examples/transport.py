"""Transport in a few lines: a mixture whose draws are moved until they look like the records, on digits of 8 × 8 pixels."""

import sfumato

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
budget = sfumato.Budget(epsilon=10.0, delta=1e-5)

# So small and so quick that a look at it costs seconds; the defaults are for thousands of records.
method = sfumato.Transport(steps=30, width=8, batch=60)
promised = method.promise(data.schema, budget, size=len(data))
for charge in promised.charges[-2:]:
    print(f"{charge.label}: noise {charge.noise_multiplier:.3g} of its bound")

method.fit(data, budget)
print(
    f"spent epsilon = {method.statement_.epsilon:.3f}; images of shape {method.sample(10).images.shape}"
)
