"""Generator networks. They see random numbers and labels, never a record."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

_Made = TypeVar("_Made")


def seeded(seed: int, make: Callable[..., _Made], *facts: Any) -> _Made:
    """`make(*facts)` with weights that are drawn from a public seed, and no trace of it in the common source."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(*facts)


class ConvGenerator(nn.Module):
    """The generator of DP-MERF (thesis, app. B).

    Normals and a one-hot label → two dense layers → two upsampling convolutions → [0, 1].

    For 28×28: 16 channels at 7×7, twice bilinear ×2 and a 5×5 convolution (16 → 8 → channels). Other sizes start from a
    quarter of the size, rounded up, and are cut to it at the end. With `texture` the image gets random grain before it is
    squashed, fine and coarse, whose strength at each pixel is learnt for each class: what no smooth function of few numbers
    can draw. With `warp` each picture is moved, turned and stretched at random before that (`Warp`).
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        n_classes: int,
        latent: int,
        hidden: int,
        *,
        texture: bool = False,
        warp: float = 0.0,
    ) -> None:
        super().__init__()
        channels, height, width = shape
        self.shape = (channels, height, width)
        self.n_classes = n_classes
        self.latent = latent
        self.base = (math.ceil(height / 4), math.ceil(width / 4))
        self.dense = nn.Sequential(
            nn.Linear(latent + n_classes, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, 16 * self.base[0] * self.base[1]),
            nn.BatchNorm1d(16 * self.base[0] * self.base[1]),
        )
        self.first = nn.Conv2d(16, 8, 5, padding=2)
        self.second = DoublingConv(8, channels)
        self.texture = Texture(channels, self.base, n_classes) if texture else None
        self.warp = Warp(warp) if warp else None
        # Measured: half the time of the default layout for these narrow convolutions on a CPU.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """(n,) labels → (n, channels, height, width) in [0, 1]"""
        noise = torch.randn(len(labels), self.latent, generator=generator).to(labels.device)
        x = self.dense(self._begin(noise, labels)).view(-1, 16, *self.base)
        x = x.contiguous(memory_format=torch.channels_last)
        x = functional.relu(self.first(_twice(x)))
        x = self._finish(self.second(x), labels)
        if self.warp is not None:
            x = self.warp(x, generator)
        if self.texture is not None:
            x = x + self.texture(labels, generator)
        return torch.sigmoid(x)[:, :, : self.shape[1], : self.shape[2]]

    def load_state_dict(self, state_dict: Mapping[str, Any], *more: Any, **how: Any) -> Any:
        """As always; weights of a network that was trained when pictures were not moved yet leave them unmoved."""
        if "warp.spread" not in state_dict:
            self.warp = None
        return super().load_state_dict(state_dict, *more, **how)

    def _begin(self, noise: Tensor, labels: Tensor) -> Tensor:
        """What the dense layers get."""
        if not self.n_classes:
            return noise
        return torch.cat([noise, functional.one_hot(labels, self.n_classes).to(noise.dtype)], dim=1)

    def _finish(self, drawn: Tensor, labels: Tensor) -> Tensor:
        """The picture before it is squashed."""
        return drawn


class ClassedGenerator(ConvGenerator):
    """A `ConvGenerator` in which each class has a first layer and a template of its own.

    A one-hot label beside the normals only shifts what the first layer makes of them, and batch normalisation over all
    classes together then takes the differences between classes for the spread within one. Here the first layer of a class is a
    common matrix plus its own, without batch normalisation; the template is added to the picture before it is squashed.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        n_classes: int,
        latent: int,
        hidden: int,
        *,
        texture: bool = False,
        warp: float = 0.0,
    ) -> None:
        super().__init__(shape, n_classes, latent, hidden, texture=texture, warp=warp)
        classes, (high, wide) = max(1, n_classes), self.base
        self.dense = nn.Sequential(
            nn.Linear(hidden, 16 * high * wide), nn.BatchNorm1d(16 * high * wide)
        )
        self.common = nn.Parameter(torch.randn(latent, hidden) / math.sqrt(latent))
        self.own = nn.Parameter(torch.zeros(classes, latent, hidden))
        self.shift = nn.Parameter(0.3 * torch.randn(classes, hidden))
        self.gain = nn.Parameter(torch.ones(classes, hidden))
        self.template = nn.Parameter(torch.zeros(classes, shape[0], 4 * high, 4 * wide))

    def _begin(self, noise: Tensor, labels: Tensor) -> Tensor:
        which = self._which(labels)
        # Class by class: a matrix for each record would not fit the memory.
        places = [(which == c).nonzero()[:, 0] for c in range(len(self.own))]
        parts = [noise[at] @ matrix for at, matrix in zip(places, self.own, strict=True)]
        own = torch.cat(parts)[torch.cat(places).argsort()]
        return functional.relu((noise @ self.common + own) * self.gain[which] + self.shift[which])

    def _finish(self, drawn: Tensor, labels: Tensor) -> Tensor:
        return drawn + self.template[self._which(labels)]

    def _which(self, labels: Tensor) -> Tensor:
        return labels if self.n_classes else torch.zeros_like(labels)


class Warp(nn.Module):
    """Each picture under a random affine map of its own: x → x + A x + b, the entries of A and b normal.

    `spread` is their standard deviation, a picture reaching from −1 to 1: at 0.07 one of 28 pixels a side moves by one. Things
    are hardly ever in one place only, but means of features tell little of that: a network left to itself draws each class in
    one pose and makes up for it with grain. Beyond its edge a picture goes on as at the edge.
    """

    spread: Tensor

    def __init__(self, spread: float) -> None:
        super().__init__()
        self.register_buffer("spread", torch.tensor(spread))

    def forward(self, pictures: Tensor, generator: torch.Generator) -> Tensor:
        """(n, channels, height, width) → the same shape"""
        entries = torch.randn(len(pictures), 2, 3, generator=generator).to(pictures.device)
        maps = torch.eye(2, 3, device=pictures.device) + self.spread * entries
        places = functional.affine_grid(maps, list(pictures.shape), align_corners=False)
        return functional.grid_sample(pictures, places, padding_mode="border", align_corners=False)


class Texture(nn.Module):
    """Random grain at full and at half size, its strength learnt for each class and pixel."""

    def __init__(self, channels: int, base: tuple[int, int], n_classes: int) -> None:
        super().__init__()
        height, width = base
        self.labelled = n_classes > 0
        shapes = [(channels, 2 * k * height, 2 * k * width) for k in (1, 2)]
        # Softplus of −2: grain that can just be seen, to start with.
        self.coarse, self.fine = (
            nn.Parameter(torch.full((max(1, n_classes), *shape), -2.0)) for shape in shapes
        )

    def forward(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """(n,) labels → (n, channels, height, width)"""
        which = labels if self.labelled else torch.zeros_like(labels)
        coarse, fine = (
            functional.softplus(strength)[which]
            * torch.randn(len(labels), *strength.shape[1:], generator=generator).to(labels.device)
            for strength in (self.coarse, self.fine)
        )
        return _twice(coarse) + fine


class _Columns(nn.Module):
    """What a generator of pixels or of a table's columns makes of its raw numbers.

    The output of a table is a vector of `numbers` in [0, 1], then for each of `blocks` the
    probabilities of its categories. `optional` names numbers that may be missing and their blocks (present, missing) by first
    place: there the choice is drawn, the gradient passes straight through, and a missing number is put at ½, as the encoding
    of records has it.
    """

    def __init__(
        self,
        numbers: int,
        n_classes: int,
        *,
        blocks: Sequence[int] = (),
        optional: Sequence[tuple[int, int]] = (),
        shape: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.numbers, self.n_classes = numbers, n_classes
        self.blocks, self.optional = tuple(blocks), tuple(optional)
        self.shape = shape

    @abstractmethod
    def raw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """(n,) labels → (n, numbers + places), any numbers"""

    def forward(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """(n,) labels → (n, numbers + places), or (n, *shape)"""
        raw = self.raw(labels, generator)
        numbers = torch.sigmoid(raw[:, : self.numbers])
        if self.shape is not None:
            return numbers.view(-1, *self.shape)
        parts = [part.softmax(dim=1) for part in raw[:, self.numbers :].split(self.blocks, dim=1)]
        if self.optional:
            starts = [sum(self.blocks[:i]) for i in range(len(self.blocks))]
            columns = list(numbers.unbind(dim=1))
            for number, start in self.optional:
                block = starts.index(start)
                missing = parts[block][:, 1]
                draw = torch.rand(len(labels), generator=generator).to(missing.device)
                drawn = (draw < missing).to(missing.dtype)
                missing = drawn + (missing - missing.detach())
                parts[block] = torch.stack([1 - missing, missing], dim=1)
                columns[number] = columns[number] * (1 - missing) + 0.5 * missing
            numbers = torch.stack(columns, dim=1)
        return torch.cat([numbers, *parts], dim=1)


class DenseGenerator(_Columns):
    """Normals and a one-hot label → dense layers with batch normalisation → pixels, or the columns of a table."""

    def __init__(
        self, numbers: int, n_classes: int, latent: int, widths: Sequence[int], **form: Any
    ) -> None:
        super().__init__(numbers, n_classes, **form)
        self.latent = latent
        layers: list[nn.Module] = []
        width = latent + n_classes
        for wide in widths:
            layers += [nn.Linear(width, wide), nn.BatchNorm1d(wide), nn.ReLU()]
            width = wide
        self.layers = nn.Sequential(*layers, nn.Linear(width, numbers + sum(self.blocks)))

    def raw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        # Drawn on the processor, so that a seed gives the same noise on every device.
        noise = torch.randn(len(labels), self.latent, generator=generator).to(labels.device)
        if self.n_classes:
            label = functional.one_hot(labels, self.n_classes).to(noise.dtype)
            noise = torch.cat([noise, label], dim=1)
        made: Tensor = self.layers(noise)
        return made


class PointsGenerator(_Columns):
    """No network: so many points of each class, which are moved themselves; a record is one of its class's, drawn at random.

    Balog, Tolstikhin and Schölkopf 2018, algorithm 2: a kernel mean released as synthetic points, here of equal weight. They
    begin evenly spread over [0, 1].
    """

    def __init__(self, numbers: int, n_classes: int, points: int, **form: Any) -> None:
        super().__init__(numbers, n_classes, **form)
        start = torch.rand(max(1, n_classes), points, numbers + sum(self.blocks))
        self.points = nn.Parameter(torch.logit(start, eps=1e-3))

    def raw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        drawn = torch.randint(self.points.shape[1], (len(labels),), generator=generator)
        return self.points[labels if self.n_classes else 0, drawn.to(labels.device)]


class DoublingConv(nn.Module):
    """Bilinear ×2 and then a 5×5 convolution, computed as one convolution at the small size.

    Both are linear, so for each of the four positions of a pixel within its 2×2 block the two together are a 5×5 convolution
    of the small image; the four results are interleaved. Two to three times as fast for few output channels.
    Differs from the paper: beyond the edge the image continues as at the edge, where a padded convolution sees zeros.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 5)
        fold = torch.zeros(2, 5, 5)  # (position, tap at the small size, tap at the large size)
        for position in range(2):
            for tap in range(5):
                cell, half = divmod(position + tap - 2, 2)
                # Bilinear: an even pixel takes a quarter from the left neighbour, an odd one from the right.
                fold[position, cell + 2, tap] += 0.75
                fold[position, cell + (1 if half == 0 else 3), tap] += 0.25
        self.register_buffer("fold", fold, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.convolution.weight, self.convolution.bias
        assert bias is not None
        outputs, inputs = weight.shape[:2]
        four = torch.einsum("pas,qbt,oist->opqiab", self.fold, self.fold, weight)
        four = four.reshape(4 * outputs, inputs, 5, 5).contiguous(memory_format=torch.channels_last)
        x = functional.pad(x, (2, 2, 2, 2), mode="replicate")
        return functional.pixel_shuffle(
            functional.conv2d(x, four, bias.repeat_interleave(4)),
            2,
        )


def _twice(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2, mode="bilinear")
