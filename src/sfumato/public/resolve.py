"""Codecs by name, so that a method can take `codec: str` as a setting."""

from __future__ import annotations

from pathlib import Path

from sfumato.data import Dataset, Schema
from sfumato.errors import BadInput
from sfumato.files import as_path
from sfumato.public.adain import AdainCodec, check_adain
from sfumato.public.codec import Facts, ImageCodec, facts_of_header, load_codec, read_header
from sfumato.public.linear import DctCodec, PcaCodec, dct_dim, pca_dim
from sfumato.public.own import PREFIX, find_own, own_facts

_WITH_PATH = ("pca", "adain", "ic-gan")


def get_codec(spec: str, schema: Schema, *, public: Dataset | None = None) -> ImageCodec:
    """The codec that `spec` names, for images of `schema`.

    - "dct", "dct:K": K lowest frequencies (auto: 64, in colour 96); needs nothing;
    - "pca", "pca:K": K principal components (auto: 64) of the data set `public`; "pca:PATH": saved ones;
    - "adain": VGG19 and the decoder of AdaIN, 8,192 numbers; "adain:K": K components of them, learnt on `public`; the
    networks are
      fetched on first use;
    - "ic-gan:PATH": a converted IC-GAN generator and its ResNet50 encoder; see `IcGanCodec`;
    - "own:NAME": one that `own_codec` made known in this process;
    - the path of any saved codec (`sfumato pretrain --kind codec`).
    """
    facts = codec_facts(spec, schema)
    name, _, rest = spec.partition(":")
    if name == PREFIX and rest:
        return find_own(rest)
    if name == "dct":
        return DctCodec(schema.shape, facts.dim)
    if name == "adain" and not rest:
        return AdainCodec(schema.shape)
    if name in ("pca", "adain") and _is_number(rest):
        if public is None:
            raise BadInput(
                f"Codec {spec!r} is fitted on public data; give some with --public (in Python: public=), or take 'dct'."
            )
        if public.schema.shape != schema.shape:
            raise BadInput(
                f"The public data have shape {public.schema.shape} and the data {schema.shape}; give public data of that shape."
            )
        return (PcaCodec if name == "pca" else AdainCodec).fit(public, facts.dim)
    return load_codec(_path(spec))


def codec_facts(spec: str, schema: Schema) -> Facts:
    """Dimension and bound of the codec that `spec` names, for a plan: reads a header at most, no data and no weights."""
    if schema.kind != "images":
        raise BadInput("A codec is for images, and this data set is a table.")
    if not isinstance(spec, str) or not spec:
        raise BadInput(f"A codec is given by its name or path, not {spec!r}; 'dct' always works.")
    name, _, rest = spec.partition(":")
    if name == "dct":
        if not _is_number(rest):
            raise BadInput(f"Codec {spec!r} must be dct or dct:K with a whole number K.")
        dim = dct_dim(schema.shape, int(rest) if rest else None)
        return Facts(kind="dct", shape=schema.shape, dim=dim, bound=1.0, unit=False)
    if name == "pca" and _is_number(rest):
        dim = pca_dim(schema.shape, int(rest) if rest else None)
        return Facts(kind="pca", shape=schema.shape, dim=dim, bound=1.0, unit=False)
    if name == "adain" and _is_number(rest):
        dim = check_adain(schema.shape, int(rest) if rest else None)
        return Facts(kind="adain", shape=schema.shape, dim=dim, bound=1.0, unit=False)
    own = name == PREFIX and rest
    facts = own_facts(rest) if own else facts_of_header(read_header(_path(spec)))
    if name in _WITH_PATH and rest and facts.kind != name:
        raise BadInput(
            f"{rest} holds a codec of kind {facts.kind}, not {name}; give its path alone."
        )
    if facts.shape != schema.shape:
        raise BadInput(
            f"Codec {spec!r} is for pictures of shape {facts.shape}, and the data have {schema.shape}; "
            "pretrain one of that shape."
        )
    return facts


def _is_number(text: str) -> bool:
    return text == "" or (text.isascii() and text.isdigit())


def _path(spec: str) -> Path:
    name, _, rest = spec.partition(":")
    path = as_path(rest if name in _WITH_PATH and rest else spec)
    if not path.suffix and not path.exists():
        raise BadInput(
            f"There is no codec called {spec!r}; use dct, dct:K, pca, pca:K, pca:PATH, adain, adain:K, ic-gan:PATH, own:NAME or "
            "the path of a codec that `sfumato pretrain` has saved."
        )
    return path
