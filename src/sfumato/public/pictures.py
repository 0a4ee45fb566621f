"""Where Private Evolution's pictures come from: something that draws pictures at random, and varies those it is given.

    source = get_source("public", schema, public=photographs)
    pictures = source.random(labels, random)            # (n, C, H, W) in [0, 1], whatever it is able to draw
    others = source.vary(pictures, labels, 0.5, random)   # like them; the degree says how far away, 1 at most

Four of them: public pictures that are bent and moved, a codec in whose vectors one walks, a diffusion model that the user has
(`diffusers`), and any class of the user's own. A source is PUBLIC: it has never seen the private records, and what it is
given are pictures of its own that noisy votes have chosen.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfumato.data import Batch, Dataset, Schema
from sfumato.errors import BadInput
from sfumato.public.bending import bent
from sfumato.public.codec import ImageCodec
from sfumato.public.perceptual import PerceptualFeatures, weighed_axes
from sfumato.public.products import row_product

PUBLIC, CODEC, DIFFUSERS = "public", "codec", "diffusers"
ALLOW_CODE = "SFUMATO_ALLOW_CODE"  # "1": modules that saved runs name are imported
_AT_ONCE = 256
_LOOKED_AT = 2000  # pictures of a source that an embedding's axes are found on
_INFERENCE_STEPS = 50  # of a whole diffusion; a variation takes its share of them


class Source(ABC):
    """Two functions. `trained_on` names the data behind it: a source that has seen the private set is refused.

    To bring one's own, write a subclass whose constructor takes the Schema, and name it "package.module:Class".
    """

    trained_on: tuple[str, ...] = ()

    @abstractmethod
    def random(self, labels: Tensor, random: torch.Generator) -> Tensor:
        """(n,) classes, 0 where there are none → (n, C, H, W) in [0, 1]. A source may know nothing of classes: votes will."""

    @abstractmethod
    def vary(
        self, pictures: Tensor, labels: Tensor, degree: float, random: torch.Generator
    ) -> Tensor:
        """(n, C, H, W) → the same number of others like them; the larger `degree` in [0, 1], the less like them."""


class PublicPictures(Source):
    """Pictures of a public set, each moved, turned and bent. Varying needs no public set: it bends what it is given."""

    def __init__(self, public: Dataset | None = None) -> None:
        self._public = public

    def random(self, labels: Tensor, random: torch.Generator) -> Tensor:
        assert self._public is not None
        chosen = torch.randint(len(self._public), (len(labels),), generator=random)
        pictures = self._public.take(chosen.numpy()).pixels().to(torch.float32)
        return self.vary(pictures, labels, 1.0, random)

    def vary(
        self, pictures: Tensor, labels: Tensor, degree: float, random: torch.Generator
    ) -> Tensor:
        return bent(pictures, degree, random)


class CodecPictures(Source):
    """A walk in the vectors of a public codec: random ones are those of public pictures, or as the codec's prior has them."""

    def __init__(self, codec: ImageCodec, spread: Tensor, public: Dataset | None = None) -> None:
        """`spread` (dim,): how far vectors lie apart in each direction (`spread_of`)."""
        self._codec, self._spread, self._public = codec, spread, public
        self.trained_on = codec.card.trained_on

    @staticmethod
    def spread_of(codec: ImageCodec, public: Dataset | None) -> Tensor:
        if public is None:
            root = codec.prior().sqrt()
            return (0.5 * codec.bound * root / root.norm()).to(torch.float32)
        step = max(1, len(public) // 2000)
        rows = range(0, len(public), step)
        chosen = torch.tensor([*rows]).numpy()
        return codec.encode(public.take(chosen)).std(dim=0)

    def random(self, labels: Tensor, random: torch.Generator) -> Tensor:
        if self._public is None:
            vectors = self._spread * torch.randn(len(labels), len(self._spread), generator=random)
            return self._codec.decode(self._codec.bounded(vectors), generator=random)
        chosen = torch.randint(len(self._public), (len(labels),), generator=random)
        return self._walked(self._public.take(chosen.numpy()), 1.0, random)

    def vary(
        self, pictures: Tensor, labels: Tensor, degree: float, random: torch.Generator
    ) -> Tensor:
        return self._walked(Batch(pictures, None), degree, random)

    def _walked(self, batch: Batch, degree: float, random: torch.Generator) -> Tensor:
        vectors = self._codec.encode(batch)
        # Kept at its length: a walk in many directions would otherwise lead away from everything.
        keep = math.sqrt(1 - 0.75 * degree**2)
        step = self._spread * torch.randn(vectors.shape, generator=random)
        return self._codec.decode(keep * vectors + 0.75 * degree * step, generator=random)


class DiffusionPictures(Source):
    """An unconditional or class-conditional diffusion model in pixels (a `diffusers` UNet2DModel with its scheduler).

    A variation adds the noise of an intermediate step and takes it away again, as in the paper's experiments. `folder` is one
    that diffusers has written (`save_pretrained`); nothing is fetched.
    """

    def __init__(self, folder: Path | str, schema: Schema) -> None:
        try:
            from diffusers import DDIMScheduler, UNet2DModel
        except ImportError as error:
            raise BadInput(
                'A diffusion model is run by diffusers; install it with pip install "sfumato[diffusers]".'
            ) from error
        where = Path(folder)
        if not (where / "unet").is_dir() or not (where / "scheduler").is_dir():
            raise BadInput(
                f"{where} holds no diffusion model of diffusers (folders unet and scheduler); give the folder that its "
                "save_pretrained has written."
            )
        self._unet = UNet2DModel.from_pretrained(where / "unet", local_files_only=True).eval()
        self._scheduler = DDIMScheduler.from_pretrained(where / "scheduler", local_files_only=True)
        self._shape = (schema.shape[0], *schema.shape[1:])
        config = self._unet.config
        sides = config.sample_size
        size = (sides, sides) if isinstance(sides, int) else tuple(sides)
        if (config.in_channels, *size) != self._shape:
            raise BadInput(
                f"The diffusion model in {where} draws pictures of shape {(config.in_channels, *size)}, and the data have "
                f"{self._shape}; take a model of their size, or --image-size."
            )
        self._classes = config.num_class_embeds or 0
        if self._classes and self._classes < schema.n_classes:
            raise BadInput(
                f"The diffusion model in {where} knows {self._classes} classes and the data have {schema.n_classes}; take one "
                "without classes, or one that has them."
            )

    def random(self, labels: Tensor, random: torch.Generator) -> Tensor:
        noise = torch.randn(len(labels), *self._shape, generator=random)
        return self._denoised(noise, labels, 1.0)

    def vary(
        self, pictures: Tensor, labels: Tensor, degree: float, random: torch.Generator
    ) -> Tensor:
        self._scheduler.set_timesteps(_INFERENCE_STEPS)
        left = self._left(degree)
        if not left:
            return pictures
        noise = torch.randn(pictures.shape, generator=random)
        at = torch.full((len(pictures),), int(self._scheduler.timesteps[-left]))
        return self._denoised(
            self._scheduler.add_noise(2 * pictures - 1, noise, at), labels, degree
        )

    @staticmethod
    def _left(degree: float) -> int:
        return min(_INFERENCE_STEPS, round(degree * _INFERENCE_STEPS))

    @torch.no_grad()
    def _denoised(self, noisy: Tensor, labels: Tensor, degree: float) -> Tensor:
        self._scheduler.set_timesteps(_INFERENCE_STEPS)
        steps = self._scheduler.timesteps[-self._left(degree) :]
        found = []
        for part, of in zip(noisy.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True):
            sample = part
            for step in steps:
                known: dict[str, Any] = {"class_labels": of} if self._classes else {}
                noise = self._unet(sample, step, **known).sample
                sample = self._scheduler.step(noise, step, sample).prev_sample
            found.append(sample)
        return ((torch.cat(found) + 1) / 2).clamp(0, 1)


def own_source(spec: str, schema: Schema, *, named_by_run: bool = False) -> Source:
    """The class that "package.module:Class" names, made for a schema.

    Importing a module runs it. Whoever fits has named it; a saved run may be somebody else's (`named_by_run`), so its module
    must be here already, or be allowed.
    """
    module, _, name = spec.partition(":")
    if named_by_run and module not in sys.modules and os.environ.get(ALLOW_CODE) != "1":
        raise BadInput(
            f"This run makes its pictures by code that it names, {spec}. If you trust who made it, import that module first in "
            f"Python, or set {ALLOW_CODE}=1 in the environment."
        )
    try:
        if not all(part.isidentifier() for part in (*module.split("."), name)):
            raise ValueError(spec)
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(
            f"There is no source of pictures {spec!r}; take public, codec, diffusers:FOLDER, or a class of your own as "
            "package.module:Class."
        ) from error
    if not (isinstance(found, type) and issubclass(found, Source)):
        raise BadInput(f"{spec} is no subclass of sfumato.public.pictures.Source; make it one.")
    try:
        return found(schema)  # type: ignore[call-arg]
    except TypeError as error:
        raise BadInput(
            f"{spec} cannot be made of a schema ({error}); write a class with both functions whose constructor takes the Schema "
            "alone."
        ) from error


class Seeing:
    """The embedding on its leading axes. Public; row-wise, as the features are."""

    def __init__(self, features: PerceptualFeatures, axes: Tensor) -> None:
        self._features, self._axes = features, axes

    @classmethod
    def through(
        cls, features: PerceptualFeatures, source: Source, labels: Tensor, axes: int
    ) -> Seeing:
        random = torch.Generator().manual_seed(0)
        of = labels[torch.randint(len(labels), (_LOOKED_AT,), generator=random)]
        rows = features(Batch(source.random(of, random), None))
        return cls(features, weighed_axes(rows, axes, 0.0, 0.0))

    def __call__(self, batch: Batch) -> Tensor:
        return row_product(self._features(batch), self._axes.T)

    def ahead(
        self,
        source: Source,
        pictures: Tensor,
        labels: Tensor,
        degree: float,
        variations: int,
        random: torch.Generator,
    ) -> Tensor:
        """(n, axes): the mean of variations' embeddings, or the pictures' own."""
        if not variations:
            return self(Batch(pictures, None))
        found = [
            self(Batch(source.vary(pictures, labels, degree, random), None))
            for _ in range(variations)
        ]
        return torch.stack(found).mean(0)
