"""Make a codec of public pictures and use it on private ones: the private data are seen through it, never by it."""

import tempfile
from pathlib import Path

import sfumato
from sfumato.methods import Mge
from sfumato.public.pretraining import Schedule, pretrain_codec

public = sfumato.load("digits:test")  # stands for public pictures of the same shape
private = sfumato.load("digits:train")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.safetensors"
    # The same as: sfumato pretrain --public digits:test --dim 16 --steps 150 --out digits.safetensors
    codec = pretrain_codec(public, path, Schedule(steps=150), dim=16, width=16)
    print("card:", codec.card.to_json())

    method = Mge(codec=str(path), covariance="full")
    method.fit(private, sfumato.Budget(epsilon=5.0, delta=1e-5))
    synthetic = method.sample(1000)
    print(method.statement_.paragraph())
    print("synthetic:", synthetic.images.shape)
