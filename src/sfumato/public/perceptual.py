"""Perceptual features: what the layers of a public network see in an image, scaled to a fixed length (DP-MEPF; thesis, app. D).

    e(x)            the activations of chosen layers, laid end to end
    φ₁(x)           e(x) / ‖e(x)‖                      first moment
    φ₂(x)           e(x)² / ‖e(x)²‖                    second moment: squares of the raw activations
    φ(x)            [φ₁(x), w φ₂(x)]

`Encoder` gives e(x): a public network with taps on its layers, or wavelet scattering, which has learnt from no data at all.
`PerceptualFeatures` gives φ, and optionally centres it on a public mean. Everything here is public: weights, layers, sizes, mean
and radius come from constants or public data, never from private rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.data import Batch, Dataset
from sfumato.errors import BadInput
from sfumato.privacy import FeatureMap
from sfumato.progress import Progress
from sfumato.public.network import Network, NetworkInfo, activations
from sfumato.public.scattering import Scattering
from sfumato.public.weights import get_network, list_networks

if TYPE_CHECKING:
    from sfumato.public.own_network import OwnEncoder

SCATTERING = "scattering"
CONVOLUTIONS = "convolutions"  # every one larger than 1×1, as DP-MEPF has it (thesis, app. D)
PIXELS = "pixels"  # a tap before the first layer: the image itself
# Layers after a ReLU, or averages of such, in the named networks.
_NON_NEGATIVE = ("relu", "layer", "avgpool", "mixed", "pool")
_ROWS = 128  # images in the encoder at a time: memory stays small whatever the network
_PUBLIC_ROWS = 512  # public records at a time
_POOLED_ROWS = 200  # images in a network of which one layer is kept
_LEAST_SIDE = 32
_EMBEDDED_SIDE = 64
_PLACES, _MOST_OF_A_LAYER = 4, 2048
_RIDGE_NOISE, _RIDGE_VARIANCE = 10.0, 5e-4
_TINY = 1e-20
# What `own_encoder` made known in this process, by name.
OWN: dict[str, OwnEncoder] = {}
_OWN_PREFIX = "own:"


class Encoder(nn.Module, ABC):
    """e(x): pixels (n, channels, height, width) in [0, 1] → one (n, width) tensor for each tap. Row-wise and frozen."""

    taps: tuple[str, ...]
    widths: tuple[int, ...]
    non_negative: bool

    @abstractmethod
    def forward(self, pixels: Tensor) -> list[Tensor]: ...


class ScatteringEncoder(Encoder):
    """Wavelet scattering as an encoder: one tap for each order, so that no public data and no trained network is needed."""

    non_negative = True

    def __init__(self, shape: tuple[int, ...], scales: int | None = None, angles: int = 8) -> None:
        super().__init__()
        if scales is None:
            scales = max(1, min(2, int(math.log2(min(shape[1:])))))
        self.scattering = Scattering(shape, scales, angles)
        order = self.scattering.orders()
        self.taps = tuple(f"order{k}" for k in range(3) if bool((order == k).any()))
        self.widths = tuple(int((order == k).sum()) for k in range(len(self.taps)))
        for k in range(len(self.taps)):
            self.register_buffer(f"columns{k}", (order == k).nonzero()[:, 0], persistent=False)

    def forward(self, pixels: Tensor) -> list[Tensor]:
        # Its products have derivatives written out, of one kind of numbers.
        with torch.autocast(pixels.device.type, enabled=False):
            features = self.scattering(pixels)
        return [features[:, getattr(self, f"columns{k}")] for k in range(len(self.taps))]


class NetworkEncoder(Encoder):
    """Chosen layers of a network, each averaged down to at most `pool` × `pool` places; "pixels" is the image itself.

    `size` resizes images first; `most` is how many numbers a layer may keep, which fewer places see to.

    **Guarantee**: row-wise; a layer that would mix rows (batch normalisation in training mode or without running statistics) is
    refused when the encoder is made and again at every call.
    """

    def __init__(
        self,
        network: nn.Module,
        layers: Sequence[str],
        shape: tuple[int, ...],
        *,
        size: int | None = None,
        pool: int | None = None,
        most: int | None = None,
        non_negative: bool | None = None,
    ) -> None:
        super().__init__()
        if not layers:
            raise BadInput("Perceptual features need at least one layer; name some with layers=.")
        for name, value in (("size", size), ("pool", pool)):
            if value is not None and value < 1:
                raise BadInput(f"{name} must be at least 1, not {value}.")
        self.network = network
        self.taps, self.size, self.pool, self.most = tuple(layers), size, pool, most
        check_row_wise(network)
        network.requires_grad_(False)
        if non_negative is None:
            non_negative = all(_after_relu(network, layer) for layer in layers)
        self.non_negative = non_negative
        device = next((p.device for p in network.parameters()), torch.device("cpu"))
        with (
            torch.no_grad()
        ):  # the widths of the layers: a public fact, found with an image of zeros
            found = self(torch.zeros(1, *shape, device=device))
        self.widths = tuple(part.shape[1] for part in found)

    def train(self, mode: bool = True) -> NetworkEncoder:
        """Stay in evaluation mode."""
        return super().train(False)

    def forward(self, pixels: Tensor) -> list[Tensor]:
        check_row_wise(self.network)
        layers = [tap for tap in self.taps if tap != PIXELS]
        whole = pixels
        if isinstance(self.network, Network):
            found = activations(self.network, pixels, layers, size=self.size)
        else:
            if self.size is not None and pixels.shape[2:] != (self.size, self.size):
                pixels = functional.interpolate(
                    pixels, size=(self.size, self.size), mode="bilinear", antialias=True
                )
            found = _tapped(self.network, pixels, layers)
        found[PIXELS] = whole
        return [self._flat(found[layer], keep=layer == PIXELS) for layer in self.taps]

    def _flat(self, x: Tensor, keep: bool = False) -> Tensor:
        if x.ndim == 4 and not keep:
            side = max(x.shape[2:]) if self.pool is None else self.pool
            if self.most is not None:
                side = min(side, max(1, math.isqrt(self.most // x.shape[1])))
            if max(x.shape[2:]) > side:
                x = functional.adaptive_avg_pool2d(
                    x, (min(x.shape[2], side), min(x.shape[3], side))
                )
        return x.flatten(1)


def check_row_wise(network: nn.Module) -> None:
    """Refuse a network in which one record could influence the features of another (DESIGN, trap 5)."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise BadInput(
                "The encoder has a batch normalisation without running statistics, which mixes records; give it statistics "
                "from public data (track_running_stats=True)."
            )
        if module.training and not isinstance(module, Encoder):
            raise BadInput(
                "The encoder is in training mode, in which records mix or features are random; call .eval() on it first."
            )


def _tapped(network: nn.Module, pixels: Tensor, layers: Sequence[str]) -> dict[str, Tensor]:
    modules = dict(network.named_modules())
    unknown = [layer for layer in layers if layer not in modules]
    if unknown:
        known = ", ".join(name for name in modules if name)
        raise BadInput(f"The network has no layer {unknown[0]!r}; it has {known}.")
    seen: dict[str, Tensor] = {}

    def keep(layer: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            seen[layer] = output

        return hook

    handles = [modules[layer].register_forward_hook(keep(layer)) for layer in layers]
    try:
        network(pixels)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _after_relu(network: nn.Module, layer: str) -> bool:
    if layer == PIXELS:
        return True
    body, path = network, layer
    if isinstance(network, Network):
        body, path = network.body, network.info.taps.get(layer, layer)
        if layer in network.info.taps and layer.startswith(_NON_NEGATIVE):
            return True
    return isinstance(dict(body.named_modules()).get(path), nn.ReLU | nn.ReLU6 | nn.Sigmoid)


def make_encoder(
    name: str,
    shape: tuple[int, ...],
    *,
    layers: Sequence[str] | None = None,
    size: int | None = None,
    pool: int | None = None,
    most: int | None = None,
    weights: bool = True,
    progress: Progress | None = None,
) -> Encoder:
    """The encoder called `name`: "scattering", a network of `sfumato.public`, an extractor's file (`sfumato pretrain`), or
    "own:NAME", which `own_encoder` made known in this process.

    With `weights=False` the network is there in shape only: enough for a plan, and nothing is fetched.
    """
    if name == SCATTERING:
        if any(value is not None for value in (layers, size, pool, most)):
            raise BadInput("The scattering encoder takes no layers, size or pool; leave them out.")
        return ScatteringEncoder(shape)
    if is_own(name):
        return _own(name).again(shape, layers, size, pool, most)
    network = _network(name, weights, progress)
    if layers is not None and tuple(layers) == (CONVOLUTIONS,):
        layers = tuple(
            path
            for path, module in network.body.named_modules()
            if isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1
        )
    if layers is None:
        layers = tuple(
            t for t in network.info.layers if _after_relu(network, t) and "pool" not in t
        )
        if not layers:
            raise BadInput(f"{name} has no usual choice of layers; name some with layers=.")
    return NetworkEncoder(network, layers, shape, size=size, pool=pool, most=most)


def is_own(name: str) -> bool:
    return name.startswith(_OWN_PREFIX)


def _own(name: str) -> OwnEncoder:
    known = name.removeprefix(_OWN_PREFIX)
    if known not in OWN:
        raise BadInput(
            f"The encoder {name} is not known here, since no file holds its code; make it again by "
            f"sfumato.public.own_encoder({known!r}, …) first."
        )
    return OWN[known]


Features = Callable[[Tensor], Tensor]  # pixels (n, C, H, W) → (n, numbers), row-wise


class PooledLayer:
    """One layer of a public network, averaged over places; by default its last before the classes.

    Images smaller than 32 pixels are enlarged to that, since networks halve the side five times.
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], layer: str | None, *, weights: bool = True
    ) -> None:
        size = None if is_own(name) else max(_LEAST_SIDE, *shape[1:])
        made = partial(make_encoder, name, shape, size=size, pool=1, weights=weights)
        self._encoder = made(layers=made().taps[-1:] if layer is None else (layer,))
        self.dim = sum(self._encoder.widths)

    def __call__(self, pixels: Tensor) -> Tensor:
        with torch.no_grad():
            parts = [self._encoder(part)[0] for part in pixels.split(_POOLED_ROWS)]
        return torch.cat(parts)


class Standardised:
    """Features with mean 0 and variance 1 per direction among the public ones, ÷ √dim; clamped, so that none is far out."""

    def __init__(self, public: Tensor) -> None:
        self.mean, spread = public.mean(dim=0), public.std(dim=0, correction=0)
        self.scale = spread.clamp(min=max(1e-3 * float(spread.max()), 1e-12))

    def __call__(self, vectors: Tensor) -> Tensor:
        return ((vectors - self.mean) / self.scale).clamp(-5, 5) / len(self.mean) ** 0.5


def last_pool(name: str) -> tuple[str, ...] | None:
    """The last layer of a public network if that is a pool, as of `fid-inception`; None for any other encoder."""
    last = next((info.layers[-1:] for info in list_networks() if info.name == name), ())
    return last if last and "pool" in last[0] else None


def trained_on(name: str) -> tuple[str, ...]:
    """The names of the data behind an encoder's weights."""
    if name == SCATTERING:
        return ()
    if is_own(name):
        return _own(name).trained_on
    known = {info.name: info for info in list_networks()}
    return (known[name] if name in known else get_network(name).info).trained_on


def _network(name: str, weights: bool, progress: Progress | None) -> Network:
    infos = {info.name: info for info in list_networks()}
    if weights or name not in infos:
        return get_network(name, progress=progress)
    with torch.device("meta"):
        return Network(infos[name], infos[name].build())


class PerceptualFeatures(FeatureMap):
    """φ(x) = [φ₁(x), w φ₂(x)], or φ₁ alone, optionally centred.

    **Guarantee**, in the order of the steps; row-wise because the encoder is.
    - Scaling. φ₁ and φ₂ are divided by their own norm, so each has norm 1 (0 if the vector is zero) for every image whatever the
      network computes; the joint norm is √(1 + w²). With `balance` each of L taps is scaled to 1/√L by itself: Σ 1/L = 1.
    - Centring. (φ − c)/r is clipped to norm 1, so the bound is 1; c and r are public.
    Without centring the features of a non-negative encoder are never negative, so that replacing a record moves their sum by
    √2 · bound at most.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        moments: int = 2,
        second_weight: float = 1.0,
        balance: bool = False,
        centre: Tensor | None = None,
        radius: float | None = None,
    ) -> None:
        if moments not in (1, 2):
            raise BadInput(f"moments must be 1 (φ₁) or 2 (φ₁ and φ₂), not {moments}.")
        if not (second_weight > 0 and math.isfinite(second_weight)):
            raise BadInput(f"second_weight must be positive, not {second_weight}.")
        if (centre is None) != (radius is None):
            raise BadInput(
                "Centring takes a public mean and a public radius; give both or neither."
            )
        if radius is not None and not (radius > 0 and math.isfinite(radius)):
            raise BadInput(f"The public radius must be positive, not {radius}.")
        self.encoder = encoder
        self.moments, self.second_weight, self.balance = moments, second_weight, balance
        self.centre, self.radius = centre, radius
        self.dim = sum(encoder.widths) * moments
        if centre is not None and len(centre) != self.dim:
            raise BadInput(
                f"The public mean has {len(centre)} features, not {self.dim}; make it with these settings."
            )
        self.bound = (
            1.0 if centre is not None else math.hypot(1.0, second_weight if moments == 2 else 0.0)
        )
        self.non_negative = encoder.non_negative and centre is None

    @property
    def device(self) -> torch.device:
        tensors = [*self.encoder.parameters(), *self.encoder.buffers()]
        return tensors[0].device if tensors else torch.device("cpu")

    def to(self, device: torch.device | str) -> PerceptualFeatures:
        """Move to a device, in place; sums come back to the processor."""
        self.encoder.to(device)
        self.centre = None if self.centre is None else self.centre.to(device)
        return self

    def public_parts(self) -> tuple[Tensor, ...]:
        return () if self.centre is None else (self.centre,)

    def __call__(self, batch: Batch) -> Tensor:
        device = self.device
        rows = torch.empty(len(batch), self.dim)
        pixels = batch.pixels()
        with torch.no_grad():
            for start in range(0, len(rows), _ROWS):
                block = slice(start, start + _ROWS)
                rows[block] = self.of(pixels[block].to(device)).cpu()
        return rows

    def of(self, pixels: Tensor) -> Tensor:
        """(n, channels, height, width) in [0, 1] → (n, dim); gradients flow to the pixels."""
        return self.of_layers(self.encoder(pixels))

    def of_layers(self, raw: list[Tensor]) -> Tensor:
        """What the encoder gave, a (n, numbers) for each layer → (n, dim)."""
        features = self._scaled(raw)
        if self.centre is not None and self.radius is not None:
            features = _clipped((features - self.centre) / self.radius, self.bound)
        return features

    def _scaled(self, raw: list[Tensor]) -> Tensor:
        # Squares of large activations overflow: each row is divided by its largest entry first, which changes no direction.
        with torch.no_grad():
            peaks = [part.abs().amax(dim=1, keepdim=True) for part in raw]
            if not self.balance:
                peaks = [torch.stack(peaks).amax(dim=0)] * len(peaks)
        raw = [part / peak.clamp(min=1e-30) for part, peak in zip(raw, peaks, strict=True)]
        parts = self._unit(raw, 1.0)
        if self.moments == 2:
            parts += self._unit([part.square() for part in raw], self.second_weight)
        return torch.cat(parts, dim=1)

    def _unit(self, parts: list[Tensor], length: float) -> list[Tensor]:
        squares = [torch.linalg.vecdot(part, part)[:, None] for part in parts]
        if self.balance:
            length = length / math.sqrt(len(parts))
        else:
            squares = [torch.stack(squares).sum(dim=0)] * len(parts)
        return [
            part * (length * square.clamp(min=_TINY).rsqrt())
            for part, square in zip(parts, squares, strict=True)
        ]


def embedding(
    name: str,
    shape: tuple[int, ...],
    *,
    size: int | None = None,
    progress: Progress | None = None,
) -> PerceptualFeatures:
    """One vector of length 1 for a picture: scattering, or the last pooled layer of a public network.

    The network sees pictures of `size`, or of their own size and at least 64: of a small picture the 224 that networks were
    trained with show no more, for twelve times the work. One that takes a single size gets that.
    """
    if name == SCATTERING:
        return PerceptualFeatures(make_encoder(name, shape), moments=1, balance=True)
    network = _network(name, True, progress)
    pooled = [tap for tap in network.info.layers if "pool" in tap]
    last = pooled[-1:] or list(network.info.layers[-1:])
    size = seen_side(network.info, shape) if size is None else size
    return PerceptualFeatures(NetworkEncoder(network, last, shape, size=size, pool=1), moments=1)


def layers_of(
    name: str,
    shape: tuple[int, ...],
    *,
    size: int | None = None,
    weights: bool = True,
    progress: Progress | None = None,
) -> Encoder:
    """The layers of a public network, averaged over places until each has at most 2,048 numbers."""
    if size is None and not is_own(name):
        size = seen_side(_network(name, False, progress).info, shape)
    made = partial(make_encoder, name, shape, pool=_PLACES, most=_MOST_OF_A_LAYER)
    return made(size=size, weights=weights, progress=progress)


def seen_side(info: NetworkInfo, shape: tuple[int, ...]) -> int | None:
    """The side at which a network looks at pictures of this shape if none is wanted; None for one that knows a single size."""
    how = info.preprocessing
    return None if how is not None and how.fixed else max(_EMBEDDED_SIDE, *shape[1:])


def _clipped(rows: Tensor, bound: float) -> Tensor:
    norms = rows.square().sum(dim=1, keepdim=True).clamp(min=_TINY).sqrt()
    return rows * (bound / norms).clamp(max=1.0)


def public_rows(phi: PerceptualFeatures, public: Dataset, most: int) -> Tensor:
    """φ of at most `most` public records, spread evenly over the set, (n, dim)."""
    step = max(1, len(public) // most)
    chosen = torch.arange(0, len(public), step)[:most].numpy()
    rows = [phi(public.take(part)) for part in _split(chosen, _PUBLIC_ROWS)]
    return torch.cat(rows)


def _split(indices: Any, size: int) -> list[Any]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def public_centre(rows: Tensor, covered: float = 0.9) -> tuple[Tensor, float]:
    """The mean of public features and the radius around it that covers most of them."""
    centre = rows.mean(dim=0)
    distances = (rows - centre).norm(dim=1)
    return centre, max(float(distances.quantile(covered)), 1e-6)


def weighed_axes(rows: Tensor, size: int, power: float, noise: float) -> Tensor:
    """A metric in which rare differences count: at most `size` principal axes, each divided by (variance + ridge)^(power/2).

    `rows` are features of public or of random images, (n, dim); the result is (axes, dim), its first axis of length 1. The ridge
    keeps directions from being stretched in which the released embedding's noise, of variance `noise`, is all there is.
    """
    centred = (rows - rows.mean(dim=0)).to(torch.float64)
    n, dim = centred.shape
    square = centred @ centred.T if n < dim else centred.T @ centred
    values, vectors = torch.linalg.eigh(square / n)
    kept = values > 1e-9 * values[-1]
    values, vectors = values[kept].flip(0)[:size], vectors[:, kept].flip(1)[:, :size]
    axes = vectors.T if n >= dim else (centred.T @ vectors / (n * values).sqrt()).T
    ridge = max(_RIDGE_NOISE * noise, _RIDGE_VARIANCE * float(values[0]))
    scale = ((values + ridge) / (values[0] + ridge)) ** (-power / 2)
    return (axes * scale[:, None]).to(rows.dtype).contiguous()


def clouds(shape: tuple[int, ...], n: int) -> Dataset:
    """`n` random images whose spectrum falls as that of photographs does: something to look at where there is no public data."""
    channels, height, width = shape
    random = torch.Generator().manual_seed(0)
    down, across = torch.fft.fftfreq(height) * height, torch.fft.rfftfreq(width) * width
    fall = (1 + down[:, None] ** 2 + across[None, :] ** 2) ** -0.6
    waves = torch.fft.rfft2(torch.randn(n, channels, height, width, generator=random)) * fall
    fields = torch.fft.irfft2(waves, s=(height, width))
    fields = fields / fields.std().clamp(min=1e-9)
    # Dark and bright images, pale and strong ones.
    level, contrast = torch.rand(2, n, 1, 1, 1, generator=random)
    pixels = (level + (0.1 + 0.4 * contrast) * fields).clamp(0, 1)
    return Dataset.from_arrays(pixels.numpy(), name="random clouds")
