"""DP-MEPF with a network of your own: trained on public pictures, frozen, tried, and then shown private ones."""

import torch
from torch import nn

import sfumato
from sfumato.public import own_encoder

# A network, trained on something public: here digits of a computer's fonts, to tell them apart.
public = sfumato.load("font-digits")
images = nn.functional.adaptive_avg_pool2d(torch.from_numpy(public.images).float() / 255, 8)
labels = torch.from_numpy(public.labels)
network = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(512, 10),
)
adam = torch.optim.Adam(network.parameters(), lr=3e-3)
for step in range(60):
    some = torch.randint(len(images), (128,), generator=torch.Generator().manual_seed(step))
    adam.zero_grad()
    nn.functional.cross_entropy(network(images[some]), labels[some]).backward()
    adam.step()

# Its two rectified layers are the features; what it was trained on is your word.
encoder = own_encoder(
    "my-digits", network, shape=(1, 8, 8), layers=["1", "3"], trained_on=["font-digits"]
)
model = sfumato.fit("mepf", "digits:train", epsilon=5, delta=1e-5, encoder=encoder, steps=200)
print(model.statement_.paragraph())
model.sample(100, seed=0).save("samples.npz")
