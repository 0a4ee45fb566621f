"""IC-GAN (Casanova et al. 2021) as a codec, where the user has its files: a ResNet50 encodes, the instance-conditioned
BigGAN decodes.

`convert_ic_gan` reads the published generator and a ResNet50 with torchvision's names once, folds the spectral norms into the
weights, and writes one safetensors file that `get_codec("ic-gan:PATH", …)` opens. The sizes of all layers are read off the
file. Everything here is public: both networks were trained on public pictures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.data import Batch
from sfumato.errors import BadInput, CorruptArtifact
from sfumato.files import sha256_of
from sfumato.public.architectures import ResNet
from sfumato.public.codec import Card, ImageCodec, codec_kind
from sfumato.public.foreign import read_checkpoint
from sfumato.public.network import Preprocessing

_BOTTOM = 4  # BigGAN starts from 4×4
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@codec_kind
class IcGanCodec(ImageCodec):
    """v = h(x) / ‖h(x)‖ with h a ResNet's pooled features; decoded by G(z, v) with z of the generator's own noise.

    **Guarantee**: ‖v‖ = 1 for every finite picture, by `Codec.encode`; both networks stay in evaluation mode.
    """

    kind = "ic-gan"
    unit = True

    def __init__(
        self, encoder: nn.Module, generator: InstanceGenerator, shape: tuple[int, ...], side: int
    ) -> None:
        self.encoder = encoder.eval().requires_grad_(False)
        self.generator = generator.eval().requires_grad_(False)
        self.shape = tuple(shape)
        self.side = side
        self.dim = generator.instance
        self._prepare = Preprocessing(size=side, least=8, mean=_MEAN, std=_STD)

    def _encode(self, pixels: Tensor) -> Tensor:
        return self.encoder(self._prepare(pixels))

    def _decode(self, vectors: Tensor, generator: torch.Generator | None) -> Tensor:
        size = (len(vectors), self.generator.noise)
        z = torch.zeros(size) if generator is None else torch.randn(size, generator=generator)
        pixels = (self.generator(z, vectors) + 1) / 2
        if pixels.shape[2:] != self.shape[1:]:
            pixels = F.interpolate(
                pixels, size=self.shape[1:], mode="bilinear", align_corners=False, antialias=True
            )
        return pixels if self.shape[0] == 3 else pixels.mean(dim=1, keepdim=True)

    def _tensors(self) -> dict[str, Tensor]:
        encoder = {f"encoder.{k}": v for k, v in self.encoder.state_dict().items()}
        return encoder | {f"generator.{k}": v for k, v in self.generator.state_dict().items()}

    def _settings(self) -> dict[str, Any]:
        return {"side": self.side}

    @classmethod
    def _from_tensors(
        cls, tensors: dict[str, Tensor], shape: tuple[int, ...], dim: int, settings: dict[str, Any]
    ) -> Self:
        return cls(
            _encoder(_under(tensors, "encoder.")),
            InstanceGenerator.of(_under(tensors, "generator.")),
            shape,
            settings["side"],
        )


def convert_ic_gan(
    generator: Path | str,
    encoder: Path | str,
    out: Path | str,
    *,
    shape: tuple[int, ...],
    side: int = 224,
    trained_on: tuple[str, ...] = ("imagenet-1k",),
    licence: str = "as the files' own (IC-GAN: CC BY-NC 4.0)",
) -> IcGanCodec:
    """Make a codec for pictures of `shape` of a published IC-GAN generator and its encoder, and save it to `out`.

    `generator` is the state of an IC-GAN with BigGAN's backbone that is conditioned on the instance only (`G_ema.pth`),
    `encoder` a ResNet's in torchvision's names (SwAV's ResNet50 for the published ones); .pth or .safetensors. `side` is the
    size that pictures are enlarged to before they are encoded. A .pth is read as plain tensors: no code in it is run.
    """
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise BadInput(
            f"A codec's shape is (1 or 3, height, width), not {shape}; give that of your data."
        )
    state = {name.removeprefix("module."): t for name, t in _read(Path(generator)).items()}
    network = InstanceGenerator.of(_folded(state))
    body = {name.removeprefix("module."): t for name, t in _read(Path(encoder)).items()}
    body = {name: t for name, t in body.items() if re.match(r"(conv1|bn1|layer\d)\.", name)}
    try:
        codec = IcGanCodec(_encoder(body), network, shape, side)
    except (KeyError, RuntimeError, ValueError) as error:
        raise BadInput(
            f"{encoder} is not the state of a ResNet in torchvision's names; give the encoder that belongs to the generator."
        ) from error
    width = len(codec.encode(Batch(torch.zeros(1, *shape), None))[0])
    if width != network.instance:
        raise BadInput(
            f"The encoder gives {width} features and the generator takes {network.instance}; give the pair that belongs together."
        )
    codec.card = Card(
        about=f"IC-GAN of {network.resolution}×{network.resolution} pixels with its ResNet encoder",
        trained_on=trained_on,
        licence=licence,
        sha256=sha256_of(Path(generator)),
        settings={"encoder_sha256": sha256_of(Path(encoder)), "side": side},
    )
    codec.save(out)
    return codec


class InstanceGenerator(nn.Module):
    """BigGAN's generator (Brock et al. 2019) with the class replaced by an instance's features, in the published key names.

    Noise is cut into equal pieces: the first starts the picture, the others go with the instance's embedding into the
    conditional norms of the blocks. Batch norms use stored statistics only.
    """

    def __init__(
        self,
        blocks: list[tuple[int, int, bool]],  # channels in, channels out, attention after it
        *,
        chunk: int,
        instance: int,
        embedding: int,
    ) -> None:
        super().__init__()
        self.chunk, self.instance = chunk, instance
        self.noise = chunk * (len(blocks) + 1)
        self.resolution = _BOTTOM * 2 ** len(blocks)
        self.shared_feat = nn.Linear(instance, embedding)
        self.linear = nn.Linear(chunk, blocks[0][0] * _BOTTOM**2)
        self.blocks = nn.ModuleList()
        for narrow, wide, attention in blocks:
            parts: list[nn.Module] = [_Block(narrow, wide, chunk + embedding)]
            self.blocks.append(nn.ModuleList([*parts, _Attention(wide)] if attention else parts))
        last = blocks[-1][1]
        self.output_layer = nn.Sequential(_Norm(last), nn.ReLU(), nn.Conv2d(last, 3, 3, padding=1))

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> InstanceGenerator:
        """The generator whose folded weights are `state`; its layers' sizes are read off the weights."""
        try:
            numbers = sorted({int(k.split(".")[1]) for k in state if k.startswith("blocks.")})
            blocks = []
            for number in numbers:
                wide, narrow = state[f"blocks.{number}.0.conv1.weight"].shape[:2]
                blocks.append((narrow, wide, f"blocks.{number}.1.theta.weight" in state))
            embedding, instance = state["shared_feat.weight"].shape
            chunk = state["linear.weight"].shape[1]
            if state["blocks.0.0.bn1.gain.weight"].shape[1] != chunk + embedding:
                raise BadInput(
                    "This IC-GAN is conditioned on a class as well; give one that is conditioned on the instance only."
                )
            with torch.device("meta"):
                network = cls(blocks, chunk=chunk, instance=instance, embedding=embedding)
            wanted = network.state_dict().keys()
            network.load_state_dict({k: state[k] for k in wanted}, assign=True)
        except (KeyError, IndexError, RuntimeError, ValueError) as error:
            raise BadInput(
                "The file is not the state of an instance-conditioned BigGAN generator (IC-GAN); give its G_ema.pth."
            ) from error
        return network

    def forward(self, z: Tensor, instance: Tensor) -> Tensor:
        """(n, noise), (n, instance) → (n, 3, resolution, resolution) in [−1, 1]"""
        embedded = self.shared_feat(instance)
        pieces = z.split(self.chunk, dim=1)
        x = self.linear(pieces[0]).view(len(z), -1, _BOTTOM, _BOTTOM)
        for layers, piece in zip(self.blocks, pieces[1:], strict=True):
            y = torch.cat([embedded, piece], dim=1)
            for layer in layers:  # type: ignore[attr-defined]
                x = layer(x, y)
        return torch.tanh(self.output_layer(x))


class _Block(nn.Module):
    def __init__(self, narrow: int, wide: int, condition: int) -> None:
        super().__init__()
        self.bn1 = _ConditionalNorm(narrow, condition)
        self.bn2 = _ConditionalNorm(wide, condition)
        self.conv1 = nn.Conv2d(narrow, wide, 3, padding=1)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1)
        self.conv_sc = nn.Conv2d(narrow, wide, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = F.interpolate(F.relu(self.bn1(x, y)), scale_factor=2)
        h = self.conv2(F.relu(self.bn2(self.conv1(h), y)))
        return h + self.conv_sc(F.interpolate(x, scale_factor=2))


class _Norm(nn.Module):
    """Batch norm from stored statistics."""

    def __init__(self, width: int, *, own_gain: bool = True) -> None:
        super().__init__()
        self.register_buffer("stored_mean", torch.zeros(width))
        self.register_buffer("stored_var", torch.ones(width))
        if own_gain:
            self.gain = nn.Parameter(torch.ones(width))
            self.bias = nn.Parameter(torch.zeros(width))

    def normalised(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.stored_mean, self.stored_var)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.normalised(x) * self.gain[:, None, None] + self.bias[:, None, None]


class _ConditionalNorm(_Norm):
    def __init__(self, width: int, condition: int) -> None:
        super().__init__(width, own_gain=False)
        self.gain = nn.Linear(condition, width, bias=False)  # type: ignore[assignment]
        self.bias = nn.Linear(condition, width, bias=False)  # type: ignore[assignment]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        gain, bias = (1 + self.gain(y))[:, :, None, None], self.bias(y)[:, :, None, None]  # type: ignore[operator]
        return self.normalised(x) * gain + bias


class _Attention(nn.Module):
    """Self-attention over positions, keys and values at half the size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.theta = nn.Conv2d(width, width // 8, 1, bias=False)
        self.phi = nn.Conv2d(width, width // 8, 1, bias=False)
        self.g = nn.Conv2d(width, width // 2, 1, bias=False)
        self.o = nn.Conv2d(width // 2, width, 1, bias=False)
        self.gamma = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        query = self.theta(x).flatten(2)  # (n, width/8, positions)
        key = F.max_pool2d(self.phi(x), 2).flatten(2)
        value = F.max_pool2d(self.g(x), 2).flatten(2)
        weights = torch.softmax(query.transpose(1, 2) @ key, dim=2)  # (n, positions, positions/4)
        seen = (value @ weights.transpose(1, 2)).view(len(x), -1, *x.shape[2:])
        return self.gamma * self.o(seen) + x


# -- reading the published files ---------------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise BadInput(f"There is no file {path}; check the path.")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise CorruptArtifact(
                f"{path} is not a whole safetensors file; fetch it again."
            ) from error
    state: Any = read_checkpoint(path.read_bytes(), path.name)
    state = state.get("state_dict", state)
    if not all(isinstance(value, Tensor) for value in state.values()):
        raise BadInput(f"{path} holds more than the weights of one network; give its state alone.")
    return state


def _folded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Spectral norms divided out, as the generator does itself in evaluation: one power step from the stored vector.

    Standard batch norms inside conditional ones (the "cross replica" files) take the plain names.
    """
    folded = {}
    for name, value in state.items():
        name = name.replace(".bn.running_mean", ".stored_mean")
        name = name.replace(".bn.running_var", ".stored_var")
        name = re.sub(r"^(output_layer\.0)\.bn\.weight$", r"\1.gain", name)
        name = re.sub(r"^(output_layer\.0)\.bn\.bias$", r"\1.bias", name)
        owner = name.removesuffix(".weight")
        if name.endswith(".weight") and f"{owner}.u0" in state:
            matrix = value.flatten(1)
            right = F.normalize(state[f"{owner}.u0"] @ matrix)
            left = F.normalize(right @ matrix.T)
            value = value / (right @ matrix.T @ left.T).squeeze()
        folded[name] = value
    return folded


def _encoder(state: Mapping[str, Tensor]) -> nn.Module:
    repeats = [
        1 + max(int(k.split(".")[1]) for k in state if k.startswith(f"layer{stage}."))
        for stage in (1, 2, 3, 4)
    ]
    with torch.device("meta"):
        network = ResNet(
            repeats,
            bottleneck="layer1.0.conv3.weight" in state,
            small_stem=state["conv1.weight"].shape[2] == 3,
        )
        network.fc = nn.Identity()  # type: ignore[assignment]
    wanted = network.state_dict()
    # `num_batches_tracked` is missing in old files and of no use here.
    full = {k: state.get(k, torch.tensor(0)) for k in wanted if k in state or "tracked" in k}
    network.load_state_dict(full, assign=True)
    return network


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
