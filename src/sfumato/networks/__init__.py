"""Public pretrained networks by name, frozen and row-wise. See docs/networks.md."""

from sfumato.networks.network import (
    Network,
    NetworkInfo,
    Preprocessing,
    activations,
    lpips,
)
from sfumato.networks.registry import get_network, list_networks

__all__ = [
    "Network",
    "NetworkInfo",
    "Preprocessing",
    "activations",
    "get_network",
    "list_networks",
    "lpips",
]
