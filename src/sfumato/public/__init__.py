"""What is learnt from public data or from nothing: codecs, networks, features, and their training.

See docs/codecs.md and docs/networks.md.
"""

from sfumato.public.codec import Codec, load_codec
from sfumato.public.icgan import convert_ic_gan
from sfumato.public.loading import load_public
from sfumato.public.network import Network, activations, lpips
from sfumato.public.own import own_codec
from sfumato.public.own_network import own_encoder
from sfumato.public.resolve import get_codec
from sfumato.public.weights import get_network, list_networks

__all__ = [
    "Codec",
    "Network",
    "activations",
    "convert_ic_gan",
    "get_codec",
    "get_network",
    "list_networks",
    "load_codec",
    "load_public",
    "lpips",
    "own_codec",
    "own_encoder",
]
