"""Public encoder–decoder pairs behind one interface. See docs/codecs.md."""

from sfumato.codecs.adain import AdainCodec
from sfumato.codecs.autoencoder import AutoencoderCodec
from sfumato.codecs.codec import (
    Card,
    Codec,
    EncodedFeatures,
    Facts,
    codec_from_state,
    facts_of_header,
    header_of_state,
    load_codec,
    read_header,
)
from sfumato.codecs.icgan import IcGanCodec, convert_ic_gan
from sfumato.codecs.linear import DctCodec, PcaCodec
from sfumato.codecs.origin import card_of
from sfumato.codecs.resolve import codec_facts, get_codec
from sfumato.codecs.space import CodecSpace

__all__ = [
    "AdainCodec",
    "AutoencoderCodec",
    "Card",
    "Codec",
    "CodecSpace",
    "DctCodec",
    "EncodedFeatures",
    "Facts",
    "IcGanCodec",
    "PcaCodec",
    "card_of",
    "codec_facts",
    "codec_from_state",
    "convert_ic_gan",
    "facts_of_header",
    "get_codec",
    "header_of_state",
    "load_codec",
    "read_header",
]
