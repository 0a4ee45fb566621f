"""The tone curve: one released histogram of pixel values, and drawn pixels mapped to its quantiles.

What Gaussians draw has the right means and covariances and the wrong histogram: gray veils where the records are exactly black,
no white at all. The shares of gray levels are a mean of bounded vectors and cost next to nothing of a budget.

    1.  each record's shares of its pixels by gray level, a channel at a time                 (the release: 0.5 % of μ²)
    2.  drawn towards the draws' own shares where noise drowns it, made a distribution        (free)
    3.  the draws' values mapped to its quantiles, one curve a channel for all classes        (free)

One curve for all classes: a class's own would carry the noise in its histogram as a mark that tells the class. The first and
the last level are the ends of the range alone, since pictures of ink, cloth or bone have many pixels that are exactly black.

Private: the records, in step 1 only. Any method that draws pixels of its own can use it, as a part:

    class Merf(Toned):
        queries:  return self.with_tone(schema, […])       the histogram's query behind the others
        _fit:     self.learn_tone(data)                    at the end: of its own draws; learnt as `tone_`
        _sample:  return self.toned(pixels)                as they are without a curve

Methods whose samples are public pictures (`dre`, `evolve`) have no use for it: those have tones of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.files import Record
from sfumato.methods.counts import apportion
from sfumato.methods.moments import smoothed
from sfumato.methods.parts import Bent
from sfumato.methods.settings import setting
from sfumato.privacy import Gate, Query

LABEL = "tone"
LEVELS = 32
# The inner edges of the levels: half a step of a byte off the ends, evenly spaced between.
_EDGES = torch.linspace(0.5 / 255, 254.5 / 255, LEVELS - 1)
_AT_THE_ENDS = 0.2  # of pixels; drawings, digits and clothes have half of theirs there and more, X-rays a twentieth
_DOUBT = 3.0  # a level's departure counts for nothing up to √3 deviations of its noise
_MOST_VALUES = 2_000_000  # of draws, that quantiles are taken of
_SHARE = 0.005  # of what the others have of μ²: 60,000 records at ε = 1 tell a level to a thousandth of the pixels
_DRAWS = 1000  # that a curve is learnt of


def tone_query(schema: Schema, share: float) -> Query:
    """Shares of gray levels: a channel's add up to 1, so their norm is at most 1, and ÷ √channels the whole row's."""
    return Query(label=LABEL, shape=(schema.shape[0] * LEVELS,), non_negative=True, share=share)


def gray_levels(batch: Batch) -> tuple[Tensor, Tensor | None]:
    """(n, channels · LEVELS): each record's shares of its pixels, ÷ √channels.

    **Guarantee**: no entry is negative and a channel's add up to 1, so the norm is at most 1 (pictures of one value a
    channel have it). Row-wise. A record with NaN gives NaN, which the wall drops.
    """
    pixels = batch.pixels().flatten(2)  # (n, channels, places)
    n, channels, places = pixels.shape
    level = torch.bucketize(pixels, _EDGES)
    shares = torch.zeros(n, channels, LEVELS)
    shares.scatter_add_(2, level, torch.ones_like(pixels))
    shares = shares / (places * math.sqrt(channels)) + 0 * pixels.sum(2, keepdim=True)
    segment = None if batch.labels is None else batch.labels.clamp(max=0)
    return shares.flatten(1), segment


@dataclass(frozen=True)
class ToneCurve(Record):
    """A monotone curve for each channel, through (source, target); beyond the ends it is level.

    Post-processing of what was released and drawn.
    """

    source: Tensor  # (channels, LEVELS − 1) rising: the draws' quantiles at the edges of the levels
    target: Tensor  # (LEVELS − 1,) rising: the edges

    @classmethod
    def learnt(cls, data: Gate, size: float | None, draws: Tensor) -> ToneCurve | None:
        """Ask for the histogram; `draws` (n, channels · places) are pixels before clipping, `size` the number of records, None
        where the histogram's own sum has to tell it.

        None where hardly a pixel lies at the ends of the range: what is drawn of such pictures (X-rays, photographs) has about
        the right tones already, and a curve through all of them does more harm than good.
        """
        release = data.sum(LABEL, gray_levels)
        channels = data.schema.shape[0]
        known = float(release.value.sum()) / math.sqrt(channels) if size is None else size
        unit = math.sqrt(channels) / max(1.0, known)
        seen = release.value.view(channels, LEVELS) * unit
        if float(seen[:, 0].mean() + seen[:, -1].mean()) < _AT_THE_ENDS:
            return None
        return cls.to(seen, release.noise_std * unit, draws)

    @classmethod
    def to(cls, seen: Tensor, noise_std: float, draws: Tensor) -> ToneCurve:
        """From noisy shares (channels, LEVELS) and draws (n, channels · places)."""
        channels = len(seen)
        values = draws[: max(1, _MOST_VALUES // draws.shape[1])].view(
            -1, channels, draws.shape[1] // channels
        )
        source = torch.empty(channels, LEVELS - 1)
        for channel in range(channels):
            ordered = values[:, channel].flatten().sort().values
            ends = torch.searchsorted(ordered, _EDGES, right=True) / len(ordered)
            own = torch.diff(ends, prepend=torch.zeros(1), append=torch.ones(1)).double()
            shares = believed(seen[channel].double(), own, noise_std)
            place = shares.cumsum(0)[:-1] * len(ordered)
            source[channel] = ordered[place.round().long().clamp(0, len(ordered) - 1)]
        # The values must rise: ties, of draws without any spread, are a step.
        return cls(source.cummax(1).values.contiguous(), _EDGES.clone())

    def __call__(self, draws: Tensor) -> Tensor:
        """(n, channels · places), or (n, channels, height, width) → the same in [0, 1]"""
        channels = len(self.source)
        values = draws.reshape(len(draws), channels, -1)
        toned = torch.empty_like(values)
        for channel, source in enumerate(self.source):
            toned[:, channel] = _interpolated(values[:, channel].contiguous(), source, self.target)
        return toned.reshape(draws.shape)


class Toned(Bent):
    """A method whose drawn pixels may be mapped to a released histogram."""

    tone: bool = setting(
        "Whether drawn pixels are mapped to a released histogram of gray levels, where a fifth of the pixels are black or white; "
        "not for tables.",
        default=False,
    )

    def tones(self, schema: Schema) -> bool:
        """Whether these settings ask for the histogram."""
        return self.tone and schema.kind == "images"

    def with_tone(self, schema: Schema, asked: list[Query]) -> list[Query]:
        """These queries and, if it is asked for, the histogram's: half a per cent of what they have together."""
        if not self.tones(schema):
            return asked
        share = _SHARE * math.fsum(query.share for query in asked if query.noise is None)
        return [*asked, tone_query(schema, share)]

    def learn_tone(self, data: Gate) -> None:
        """`tone_`, of what `_sample` draws without it: when all else is learnt."""
        self.tone_: ToneCurve | None = None
        if not self.tones(data.schema):
            return
        random = torch.Generator().manual_seed(self.seed)
        labels = apportion(self.shares_, _DRAWS, random)
        with torch.no_grad():
            draws = [self._sample(some, random) for some in labels.split(self.AT_ONCE)]
        self.tone_ = ToneCurve.learnt(data, data.public_size, torch.cat(draws).flatten(1))

    def toned(self, pixels: Tensor) -> Tensor:
        """With the curve, if there is one; runs of earlier versions have none."""
        tone: ToneCurve | None = getattr(self, "tone_", None)
        return pixels if tone is None else tone(pixels)


def believed(seen: Tensor, own: Tensor, noise_std: float) -> Tensor:
    """Noisy shares drawn to the draws' own, level by level, by signal² ÷ (signal² + noise²), and made a distribution.

    The ends stand for themselves, of the levels between, neighbours tell how strong the signal is. What departs from the draws'
    shares by no more than noise would is not believed, so a curve of nothing but noise is no curve.
    """
    departure = seen - own
    energy = departure.square() - noise_std**2 * _DOUBT
    energy[1:-1] = smoothed(energy[1:-1], 5)
    signal = energy.clamp(min=0)
    shares = own + departure * (signal / (signal + noise_std**2).clamp(min=1e-300))
    shares = shares.clamp(min=0)
    # The ends are the clearest numbers and keep theirs; the levels between share what is left as they would have.
    ends = shares[0] + shares[-1]
    left = (1 - ends).clamp(min=0)
    inner = shares[1:-1] * (left / shares[1:-1].sum().clamp(min=1e-12))
    shares = torch.cat([shares[:1], inner, shares[-1:]])
    return shares / shares.sum().clamp(min=1e-12)


def _interpolated(values: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Piecewise linear through (source, target); 0 below the first, 1 above the last."""
    above = torch.searchsorted(source, values)
    left = (above - 1).clamp(0, len(source) - 2)
    low, high = source[left], source[left + 1]
    part = ((values - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    inner = target[left] + part * (target[left + 1] - target[left])
    return torch.where(above == 0, 0.0, torch.where(above == len(source), 1.0, inner))
