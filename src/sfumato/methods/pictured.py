"""The part of methods that take pictures from a public source and tell them apart by a public embedding: both are settings.

A saved run keeps the codec that it walked in; a diffusion model or a class of the user's own is opened again for samples. Public:
sources and embeddings. Private: nothing here.
"""

from __future__ import annotations

from torch import Tensor

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.methods.base import Workspace
from sfumato.methods.decoded import Encoded
from sfumato.methods.settings import setting
from sfumato.public.perceptual import SCATTERING, embedding, trained_on
from sfumato.public.pictures import (
    CODEC,
    DIFFUSERS,
    PUBLIC,
    CodecPictures,
    DiffusionPictures,
    PublicPictures,
    Seeing,
    Source,
    own_source,
)


class Pictured(Encoded):
    """A method that takes pictures from a source."""

    source: str = setting(
        "public (pictures of --public, bent), codec (a walk in its vectors), diffusers:FOLDER, or a class of your own as "
        "package.module:Class.",
        default=PUBLIC,
    )
    embedding: str = setting(
        "What tells pictures apart: scattering, or a public network (its pooled features).",
        default="scattering",
    )
    embedding_size: int | None = setting(
        "Side of the pictures that a network of `embedding` sees; auto: their own, at least 64, or the only one it takes.",
        default=None,
        low=1,
        high=4096,
    )
    axes: int = setting("Leading axes of the embedding that are compared.", default=128, low=1)

    def open_source(self, schema: Schema, run: Workspace) -> Source:
        if self.source == CODEC:
            codec = self.open_codec(schema, run)
            self.spread_: Tensor = CodecPictures.spread_of(codec, run.public)
            return CodecPictures(codec, self.spread_, run.public)
        source = PublicPictures(run.public) if self.source == PUBLIC else self._named_source(schema)
        run.check_unseen(f"The source {self.source}", source.trained_on)
        return source

    def source_again(self) -> Source:
        """The source as samples need it: without public data."""
        if self.source == PUBLIC:
            return PublicPictures()
        if self.source == CODEC:
            return CodecPictures(self.codec_, self.spread_)
        return self._named_source(self.schema_, named_by_run=True)

    def _named_source(self, schema: Schema, named_by_run: bool = False) -> Source:
        name, _, rest = self.source.partition(":")
        if name == DIFFUSERS:
            return DiffusionPictures(rest, schema)
        return own_source(self.source, schema, named_by_run=named_by_run)

    def open_embedding(
        self, schema: Schema, source: Source, labels: Tensor, run: Workspace
    ) -> Seeing:
        run.check_unseen(f"The network {self.embedding}", trained_on(self.embedding))
        features = embedding(
            self.embedding, schema.shape, size=self.embedding_size, progress=run.progress
        )
        return Seeing.through(features, source, labels, self.axes)

    def _needs_public(self) -> bool:
        return self.source == PUBLIC

    def _uses_public(self) -> bool:
        return self.source in (PUBLIC, CODEC)

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        if self.embedding_size is not None and self.embedding == SCATTERING:
            raise BadInput(
                f"{self.info.name}'s embedding_size is for networks, and scattering sees pictures as they are; leave it out."
            )
        if (self.source == CODEC) != (self.codec is not None):
            raise BadInput(
                f"{self.info.name} walks in a codec's vectors with source=codec and a codec=, such as dct; give both or neither."
            )
        if self.codec is not None:
            self.codec_facts(schema)
