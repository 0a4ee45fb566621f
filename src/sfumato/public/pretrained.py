"""Extractors that `sfumato pretrain` has trained on a user's public data: a small residual network, by the path of its file.

Group norms in place of batch norms, so that a row depends on no other in training or use; ReLU outputs, so that features are
never negative. Public: the weights come from public data, and the file's header says from which.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sfumato.errors import BadInput, CorruptArtifact
from sfumato.files import atomic_path, sha256_of
from sfumato.public.network import Network, NetworkInfo, Preprocessing

FORMAT = 1
_GROUP = 8
_INPUT = Preprocessing(least=8, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


class SmallResNet(nn.Module):
    """Three stages of `repeats` residual blocks, `width` · (1, 2, 4) channels; gives logits.

    `stride` is that of the first convolution: larger pictures are made smaller at once.
    """

    def __init__(self, classes: int, width: int = 16, repeats: int = 2, stride: int = 1) -> None:
        super().__init__()
        self.stem = _Step(3, width, stride)
        stages: list[nn.Module] = []
        channels = width
        for stage in range(3):
            wide = width * 2**stage
            blocks = [_Block(channels, wide, 2 if stage else 1)]
            blocks += [_Block(wide, wide, 1) for _ in range(repeats - 1)]
            stages.append(nn.Sequential(*blocks))
            channels = wide
        self.stages = nn.Sequential(*stages)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.pool(self.stages(self.stem(images))))


class _Step(nn.Module):
    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.norm = nn.GroupNorm(_GROUP, wide)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.conv(x)))


class _Block(nn.Module):
    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.first = _Step(narrow, wide, stride)
        self.conv = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norm = nn.GroupNorm(_GROUP, wide)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and narrow == wide
            else nn.Conv2d(narrow, wide, 1, stride, bias=False)
        )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.conv(self.first(x))) + self.shortcut(x))


def save_extractor(
    path: Path, body: SmallResNet, settings: Mapping[str, int], card: Mapping[str, Any]
) -> Path:
    """One safetensors file; `settings` are SmallResNet's, `card` says what it was trained on."""
    header = {"format": FORMAT, "settings": dict(settings), "card": dict(card)}
    tensors = {name: value.contiguous() for name, value in body.state_dict().items()}
    with atomic_path(Path(path)) as temporary:
        save_file(tensors, temporary, metadata={"extractor": json.dumps(header)})
    return Path(path)


def load_extractor(path: Path) -> Network:
    """The network that `save_extractor` wrote, frozen."""
    try:
        with safe_open(path, framework="pt") as stored:
            metadata = stored.metadata() or {}
            state = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CorruptArtifact(
            f"{path} is not a whole safetensors file; restore it from a copy or pretrain again."
        ) from error
    if "extractor" not in metadata:
        raise BadInput(
            f"{path} holds no extractor; give a file that `sfumato pretrain --kind extractor` has written."
        )
    try:
        header = json.loads(metadata["extractor"])
        if header["format"] != FORMAT:
            raise ValueError("format")
        build = partial(SmallResNet, **header["settings"])
        with torch.device("meta"):  # no time for random weights that are replaced at once
            body = build()
        body.load_state_dict(state, assign=True)
        card = header["card"]
        info = NetworkInfo(
            name=str(path),
            architecture="small ResNet with group norms",
            about=card["about"],
            trained_on=tuple(card["trained_on"]),
            licence=card["licence"],
            origin="sfumato pretrain",
            sha256=sha256_of(path),
            output=f"logits: (n, {header['settings']['classes']})",
            preprocessing=_INPUT,
            taps=_taps(header["settings"]["repeats"]),
            build=build,
        )
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CorruptArtifact(
            f"{path} has a damaged header or another version's; restore it or pretrain again."
        ) from error
    return Network(info, body.to(memory_format=torch.channels_last))  # type: ignore[call-overload]


def _taps(repeats: int) -> dict[str, str]:
    """Every ReLU, first to last."""
    taps = {"stem": "stem.relu"}
    for stage in range(3):
        for block in range(repeats):
            path = f"stages.{stage}.{block}"
            taps[f"stage{stage + 1}.{block + 1}.inner"] = f"{path}.first.relu"
            taps[f"stage{stage + 1}.{block + 1}"] = f"{path}.relu"
    return taps
