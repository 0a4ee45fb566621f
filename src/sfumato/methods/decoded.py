"""The part of methods that work on the vectors of a public codec: the codec is a setting, and a run keeps its own copy of it.

    class Mge(Decoded):
        queries:  facts = self.codec_facts(schema)          dimension and bound, of the setting: no weights are loaded
        _fit:     codec = self.open_codec(data.schema, run)   ready to encode; learnt as `codec_`
        _sample:  return self.decode(vectors, random)          images with grain

A saved run holds the codec's weights beside its own, so that it can be loaded and sampled where the codec's file is gone. Public:
the codec. Private: nothing here.
"""

from __future__ import annotations

import torch
from safetensors.torch import load as tensors_of
from torch import Tensor

from sfumato.data import Schema
from sfumato.methods.base import Method, Workspace
from sfumato.methods.parts import Grained
from sfumato.methods.saved import part
from sfumato.methods.settings import setting
from sfumato.public.codec import Codec, Facts, ImageCodec, codec_from_state
from sfumato.public.linear import Axes, TurnedCodec, schema_codec
from sfumato.public.resolve import codec_facts, get_codec


class Encoded(Method):
    """A method that may encode records by a public codec; None stands for none."""

    codec: str | None = setting(
        "Public codec: dct, dct:K, pca:K (with --public), adain, ic-gan:PATH or the path of a pretrained one.",
        default=None,
    )

    def codec_facts(self, schema: Schema) -> Facts:
        """Of the codec that the settings name: for queries, read from its header."""
        assert self.codec is not None
        return codec_facts(self.codec, schema)

    def open_codec(self, schema: Schema, run: Workspace) -> ImageCodec:
        """The codec, ready to encode, which is `codec_` from now on; what it is made of goes into the log."""
        assert self.codec is not None
        codec = get_codec(self.codec, schema, public=run.public)
        run.check_unseen(f"The codec {self.codec}", codec.card.trained_on)
        run.log({"event": "codec", "codec": self.codec, "card": codec.card.to_json()})
        if run.public is not None and not codec.card.saw(run.public.name):
            run.progress.note(
                f"Codec {self.codec!r} makes no use of the public data; codec=pca:64 would."
            )
        self.codec_: ImageCodec = codec
        return codec

    def _take_back(self, content: bytes) -> None:
        # Before anything is built: networks are as wide as the codec's vectors, and its file may be gone.
        kept = tensors_of(content)
        if own := part(kept, "codec_.") or part(kept, "codec."):  # the latter before version 0.3
            self.codec_ = codec_from_state(own)
        super()._take_back(content)


class Turned(Encoded):
    """A method of vectors whose first numbers matter most: a schema's own codec, or a named one turned along public records."""

    codec: str | None = setting(
        "Public codec whose latent replaces pixels: none, dct:K, pca:K (with --public), or a pretrained one's path.",
        default=None,
    )

    def turned_dim(self, schema: Schema) -> int:
        return schema_codec(schema).dim if self.codec is None else self.codec_facts(schema).dim

    def turned_codec(self, schema: Schema, run: Workspace) -> Codec:
        """The codec with a prior, which only a fit needs: from public records, where there are any."""
        if self.codec is None:
            return schema_codec(schema)
        codec = self.open_codec(schema, run)
        if run.public is None:
            self.axes_: Axes | None = None
            return codec
        turned = TurnedCodec.along(codec, run.public, seed=self.seed)
        self.axes_ = turned.axes
        return turned

    @property
    def turned(self) -> Codec:
        """The same, without a prior, of a fitted method."""
        if self.codec is None:
            return schema_codec(self.schema_)
        return self.codec_ if self.axes_ is None else TurnedCodec(self.codec_, self.axes_)

    def _uses_public(self) -> bool:
        return self.codec is not None


class Decoded(Encoded, Grained):
    """A method whose samples are vectors that the codec decodes."""

    codec: str = setting(default="dct")

    def decode(self, vectors: Tensor, random: torch.Generator) -> Tensor:
        """(n, dim) → (n, C, H, W), about [0, 1]"""
        pixels = self.codec_.decode(vectors, generator=random)
        return self.grained(pixels, random)
