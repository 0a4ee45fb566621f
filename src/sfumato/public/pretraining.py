"""Training on PUBLIC data: an autoencoder that becomes a codec, or a classifier that becomes a perceptual extractor.

Nothing here knows of privacy: every record given to these functions is treated as public, and what they make carries no
guarantee for it. The card that goes with the result says what it saw, and the local cache remembers the rows by keyed
digests, so that nobody takes it for public later where it is not. A run is a function of its data, settings and seed; a
checkpoint beside the output lets it go on where it was stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.checkpoints import FileCheckpoint
from sfumato.data import Batch, Dataset
from sfumato.errors import BadInput, RunConflict
from sfumato.files import atomic_path
from sfumato.generators.training import Training
from sfumato.privacy import remember
from sfumato.progress import Progress
from sfumato.public.autoencoder import AutoencoderCodec
from sfumato.public.codec import Card
from sfumato.public.linear import PcaCodec
from sfumato.public.network import Network, lpips
from sfumato.public.origin import card_of
from sfumato.public.pretrained import SmallResNet, load_extractor, save_extractor
from sfumato.public.weights import get_network

# Every twentieth public record, up to a thousand, is kept out of training to measure what was learnt.
_KEPT_OUT, _KEPT_OUT_MOST = 20, 1000
_IN_MEMORY = 2**30  # bytes of public pixels that are held at once
# The learning rate is multiplied by this after each of so many parts: to a fortieth in all, so that the last steps settle.
_DECAY, _PARTS = 0.82, 20
_SEER = "lpips-vgg16"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and how fast to train, and where to keep what is needed to go on."""

    steps: int
    batch: int = 64
    learning_rate: float = 2e-3
    precision: str = "float32"
    seed: int = 0
    resume: bool = False
    log: Callable[[dict[str, Any]], None] = field(default=lambda record: None)
    progress: Progress = field(default_factory=Progress)

    def checkpoint(self, out: Path) -> FileCheckpoint:
        return FileCheckpoint(out.with_name(f".{out.name}.checkpoint"))

    def minimise(
        self, loss: Callable[[torch.Generator], Tensor], network: nn.Module, out: Path, title: str
    ) -> None:
        """Train `network` in place, from where an interrupted training for `out` left off if `resume`."""
        checkpoint = self.checkpoint(out)
        if not self.resume:
            checkpoint.remove()
        adam = torch.optim.Adam(network.parameters(), lr=self.learning_rate, fused=True)
        training = Training(
            title,
            torch.Generator().manual_seed(self.seed),
            checkpoint=checkpoint,
            progress=self.progress,
            log=self.log,
            network=network,
            adam=adam,
        )
        network.train()
        for step in training(self.steps):
            rate = self.learning_rate * _DECAY ** (step * _PARTS // self.steps)
            adam.param_groups[0]["lr"] = rate
            adam.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bfloat16"):
                value = loss(training.random)
            value.backward()
            adam.step()
            training.facts["loss"] = value.detach()
        network.eval()


def pretrain_codec(
    public: Dataset,
    out: Path | str,
    schedule: Schedule,
    *,
    dim: int = 64,
    width: int = 32,
    noise: float = 0.2,
    perceptual: float = 0.0,
) -> AutoencoderCodec:
    """Train an autoencoder on public pictures and save it to `out` as a codec.

    `noise` is the length of the random step on the unit sphere that a vector takes in training before it is decoded: more makes
    decoding smoother and blurrier. `perceptual` is the weight of LPIPS, by a public VGG16, beside the squared error of pixels: a
    mean of all pictures that are possible is blurred, and does not look like one.
    """
    out, feed = _ready(public, out, schedule), _Feed(public, labelled=False)
    if not 0 <= noise < 2:
        raise BadInput(f"noise must lie between 0 and 2, not {noise}.")
    if not 0 <= perceptual < math.inf:
        raise BadInput(f"perceptual must be 0 or more, not {perceptual}.")
    seer = _perceiving(public, schedule.progress) if perceptual else None
    codec = AutoencoderCodec.untrained(public.schema.shape, dim, width, seed=schedule.seed)
    network = codec.network.requires_grad_(True)

    def loss(generator: torch.Generator) -> Tensor:
        pixels = _varied(feed.draw(schedule.batch, generator)[0], generator)
        vectors = F.normalize(network.encode(pixels), dim=1)
        strayed = vectors + torch.randn(vectors.shape, generator=generator) * (noise / dim**0.5)
        # Differences of neighbouring pixels count too: they keep outlines, which the eye and a classifier go by.
        decoded = network.decode(F.normalize(strayed, dim=1)).float()
        wrong = decoded - pixels
        edges = wrong.diff(dim=2).square().mean() + wrong.diff(dim=3).square().mean()
        seen_apart = 0.0 if seer is None else lpips(seer, decoded, pixels).float().mean()
        return wrong.square().mean() + 0.5 * edges + perceptual * seen_apart

    schedule.minimise(loss, network, out, "Training the codec")
    codec = AutoencoderCodec(network)
    pixels = feed.kept_out()[0]
    given_back = codec.decode(codec.encode(Batch(pixels, None)))
    quality = {"mean_squared_error": (given_back - pixels).square().mean()}
    if seer is not None:
        pairs = zip(given_back.split(100), pixels.split(100), strict=True)
        with torch.no_grad():
            quality["lpips"] = torch.cat([lpips(seer, *pair) for pair in pairs]).mean()
    codec.card = card_of(
        public,
        f"a convolutional autoencoder of {dim} numbers on the unit sphere",
        feed.seen(),
        quality={name: round(float(value), 6) for name, value in quality.items()},
        also=() if seer is None else seer.info.trained_on,
        dim=dim,
        width=width,
        noise=noise,
        perceptual=perceptual,
        **_facts(schedule),
    )
    codec.made_of = public
    codec.save(out)
    schedule.checkpoint(out).remove()
    return codec


def _perceiving(public: Dataset, progress: Progress) -> Network:
    """The network whose squared distances are LPIPS; it has derivatives, and does not learn."""
    network = get_network(_SEER, progress=progress)
    preprocessing, side = network.info.preprocessing, min(public.schema.shape[1:])
    if preprocessing is not None and side < preprocessing.least:
        raise BadInput(
            f"perceptual compares pictures of at least {preprocessing.least} pixels a side, and these have {side}; leave it out."
        )
    return network


def pretrain_pca(public: Dataset, out: Path | str, *, dim: int = 64, seed: int = 0) -> PcaCodec:
    """Save the principal components of public pictures to `out` as a codec."""
    out = _new(out)
    codec = PcaCodec.fit(public, dim, seed=seed)
    codec.save(out)
    return codec


def pretrain_extractor(
    public: Dataset, out: Path | str, schedule: Schedule, *, width: int = 16, repeats: int = 1
) -> tuple[Network, Card]:
    """Train a classifier on labelled public pictures and save it to `out`; `get_network(out)` gives it back as an extractor."""
    out = _ready(public, out, schedule)
    if not public.schema.labelled:
        raise BadInput(
            "An extractor is trained to tell classes apart, and this public data set has no labels; give a labelled one."
        )
    if width < 8 or width % 8 or repeats < 1:
        raise BadInput("width must be a multiple of 8, and repeats at least 1.")
    feed = _Feed(public, labelled=True)
    settings = {
        "classes": public.schema.n_classes,
        "width": width,
        "repeats": repeats,
        "stride": max(1, max(public.schema.shape[1:]) // 32),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(schedule.seed)
        network = SmallResNet(**settings)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def loss(generator: torch.Generator) -> Tensor:
        pixels, labels = feed.draw(schedule.batch, generator)
        assert labels is not None
        return F.cross_entropy(network(_as_input(_varied(pixels, generator))), labels)

    schedule.minimise(loss, network, out, "Training the extractor")
    pixels, labels = feed.kept_out()
    assert labels is not None
    with torch.no_grad():
        guess = torch.cat([network(_as_input(part)).argmax(dim=1) for part in pixels.split(256)])
    card = card_of(
        public,
        f"a small ResNet trained to tell {public.schema.n_classes} classes apart",
        feed.seen(),
        quality={"accuracy": round(float(torch.eq(guess, labels).float().mean()), 4)},
        width=width,
        repeats=repeats,
        **_facts(schedule),
    )
    with atomic_path(out) as temporary:
        save_extractor(temporary, network, settings, card.to_json())
        remember(temporary, public)  # before the file is there: none goes without its record
    schedule.checkpoint(out).remove()
    return load_extractor(out), card


def _ready(public: Dataset, out: Path | str, schedule: Schedule) -> Path:
    if public.schema.kind != "images":
        raise BadInput("Only pictures can be pretrained on, and this public data set is a table.")
    if schedule.steps < 1 or schedule.batch < 2 or not schedule.learning_rate > 0:
        raise BadInput(
            "Pretraining needs at least one step, a batch of two and a positive learning rate."
        )
    if schedule.precision not in ("float32", "bfloat16"):
        raise BadInput(f"precision is float32 or bfloat16, not {schedule.precision!r}.")
    if len(public) < 2 * _KEPT_OUT:
        raise BadInput(
            f"The public data set has fewer than {2 * _KEPT_OUT} records, too few to learn from; give more."
        )
    return _new(out)


def _new(out: Path | str) -> Path:
    out = Path(out)
    if out.exists():
        raise RunConflict(f"{out} exists already; choose another file, or delete it first.")
    return out


def _facts(schedule: Schedule) -> dict[str, Any]:
    return {
        "steps": schedule.steps,
        "batch": schedule.batch,
        "learning_rate": schedule.learning_rate,
        "precision": schedule.precision,
        "seed": schedule.seed,
    }


def _varied(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Half of the pictures mirrored, and each moved by up to two pixels: what stays a picture of the same kind."""
    mirror = torch.rand(len(pixels), generator=generator) < 0.5
    pixels = torch.where(mirror[:, None, None, None], pixels.flip(3), pixels)
    down, right = torch.randint(-2, 3, (2,), generator=generator).tolist()
    moved = F.pad(pixels, (2, 2, 2, 2), mode="replicate")
    height, width = pixels.shape[2:]
    return moved[:, :, 2 + down : 2 + down + height, 2 + right : 2 + right + width]


def _as_input(pixels: Tensor) -> Tensor:
    """What `load_extractor`'s network is given: three channels in [−1, 1]."""
    if pixels.shape[1] == 1:
        pixels = pixels.expand(-1, 3, -1, -1)
    return (2 * pixels - 1).contiguous(memory_format=torch.channels_last)


class _Feed:
    """Public records in random batches; some are kept out."""

    def __init__(self, public: Dataset, *, labelled: bool) -> None:
        rows = np.arange(len(public))
        kept = rows[:: max(_KEPT_OUT, len(rows) // _KEPT_OUT_MOST)][:_KEPT_OUT_MOST]
        self._kept = public.take(kept)
        self._rows = np.setdiff1d(rows, kept)
        self._public = public
        self._held: Batch | None = None
        if len(rows) * public.schema.dim <= _IN_MEMORY // 4 or not public.random_access:
            self._held = public.take(self._rows)
        if labelled and self._kept.labels is not None and bool((self._kept.labels < 0).any()):
            raise BadInput("Some public labels are not among the classes; correct the schema.")

    def draw(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        at = torch.randint(len(self._rows), (size,), generator=generator)
        if self._held is None:
            batch = self._public.take(self._rows[at.numpy()])
        else:
            labels = self._held.labels
            batch = Batch(self._held.values[at], None if labels is None else labels[at])
        return batch.pixels(), batch.labels

    def kept_out(self) -> tuple[Tensor, Tensor | None]:
        return self._kept.pixels(), self._kept.labels

    def seen(self) -> Iterator[Batch]:
        """The records of the training, in order, for the card."""
        for part in np.array_split(self._rows, 1 + len(self._rows) // 4096):
            yield self._public.take(part)
