"""Diffusion in a few lines: a mixture, and a denoiser beside it, on digits of 8 × 8 pixels."""

import sfumato

data = sfumato.load("digits:train")  # private: 8×8 images of ten digits
budget = sfumato.Budget(epsilon=10.0, delta=1e-5)

# So small and so quick that a look at it costs seconds; `effort=` sets these numbers by time for real sets.
method = sfumato.Diffusion(steps=30, rate=0.2, width=8, free_steps=50)
promised = method.promise(data.schema, budget, size=len(data))
for charge in promised.charges[-2:]:
    print(
        f"{charge.label}: noise {charge.noise_multiplier:.3g} of its bound, {charge.steps} step(s)"
    )

method.fit(data, budget)
print(
    f"spent epsilon = {method.statement_.epsilon:.3f}; images of shape {method.sample(10).images.shape}"
)
