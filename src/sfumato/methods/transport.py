"""Transport: draws of the mixture, moved by a small network until their textures are the records'; sfumato's own.

    0.  `mixture`: means, covariances and clusters of each class, and the tones          (its releases: a part of the budget)
    1.  class means of textures, and their second moment: scattering features and local   (two releases)
        tones, and if wanted what a public network sees
    2.  a network T(x, noise), trained on draws x until those of T(x) are the released:   (free)
        ⟨m₁ − m, m₂ − m⟩ + ⟨S₁ − S, S₂ − S⟩ + stay · ‖T(x) − x‖²,   1, 2 two batches of draws
    3.  draw of the mixture, move (but for a share `unmoved`), map to the released tones  (free)

Gaussians have the right means and covariances of pixels and no edges; features that see edges are means of bounded vectors and
cost little. This is DP-MERF's and DP-MEPF's idea with a generator that begins as a mixture: what is left to learn is the look of
things, the same for all classes, so that the network is not told the class. Two batches, since the square of one batch's distance
would reward draws that vary less. Private: the records, in 0 and 1 only.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from sfumato.data import Schema
from sfumato.generators.denoiser import Denoiser
from sfumato.generators.devices import moved
from sfumato.generators.networks import seeded
from sfumato.methods.base import Workspace
from sfumato.methods.capacity import usual_records
from sfumato.methods.matched import minimise
from sfumato.methods.on_mixture import OnMixture
from sfumato.methods.parts import Trained
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.methods.textures import Target, Textured, Textures
from sfumato.privacy import Budget, Gate, Query
from sfumato.privacy.query import gaussian_noise

_PART = 0.75  # of the squared noise budget, for the mixture
_SEEN = 300.0  # records ÷ noise a class, below which textures would drown
_LENGTH = 0.5  # of a move, where the network says 1
_BEYOND = 0.02  # slope of what features see of pixels beyond the range, so that these come back


class Transport(Textured, Trained, OnMixture):
    """A mixture whose draws are moved until they look like the records.

    **Guarantee**: the sums of `mixture` (its own guarantee), a sum of vectors of norm ≤ 1 by class, and one of products a ⊗ a of
    such vectors, all calibrated jointly. The features' units come from draws of the mixture, which was released before. The
    network is trained on draws and released numbers, samples are made of draws: post-processing.
    """

    info = MethodInfo(
        name="transport",
        title="Transport",
        paper="sfumato's own",
        summary="Draws of the mixture, moved by a network until their scattering features and tones are the records'.",
    )
    TINY: ClassVar = {"steps": 1, "batch": 2, "width": 4}
    FOLLOWS_SIZE = True
    AT_ONCE = 2000

    share: float | None = setting(
        "Share of the squared noise budget that the mixture has; none for auto: three quarters.",
        default=None,
    )
    steps: int = setting("Training steps of the network.", default=1_000, low=1, free=True)
    batch: int = setting(
        "Draws of all classes in each half of a step.", default=120, low=1, free=True
    )
    width: int = setting(
        "Channels of the network at half size; twice as many at a quarter.",
        default=24,
        low=1,
        free=True,
    )
    learning_rate: float = setting(
        "Adam's learning rate; it falls to zero in the second half.",
        default=2e-3,
        above=0,
        free=True,
    )
    stay: float = setting(
        "Weight of the mean square by which pixels are moved, against the distance of the textures.",
        default=0.2,
        low=0,
        free=True,
    )
    unmoved: float = setting(
        "Share of samples that stay draws of the mixture: simple classifiers learn more from both kinds; looks suffer.",
        default=0.0,
        low=0,
        high=1,
        free=True,
    )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        part = self._part(schema, budget, schema.records)
        asked = self.mixture_queries(schema, budget, part)
        if part == 1:
            return asked
        whole = sum(query.share for query in asked)
        return [*asked, *self.texture_queries(schema, whole * (1 - part) / part)]

    def _part(self, schema: Schema, budget: Budget, records: int | None) -> float:
        """The mixture's, by what is public; 1 where textures would drown."""
        n = records or usual_records(budget.delta)
        each = n / gaussian_noise(budget) / max(1, schema.n_classes)
        return 1.0 if each < _SEEN else self.share or _PART

    def build(self, schema: Schema) -> None:
        self.network_: nn.Module = seeded(self.seed, Denoiser, schema.shape, 1, self.width, 2)

    def _fit(self, data: Gate, run: Workspace) -> None:
        self.check_unseen(run)
        part = self._part(data.schema, data.budget, data.public_size)
        size = self.fit_mixture(data, run, part)
        if part == 1:
            run.progress.note(
                "transport: so few records for so much noise show no textures; samples are the mixture's."
            )
            return
        random = torch.Generator().manual_seed(self.seed)
        texture = self.texture(data.schema, progress=run.progress)
        textures = Textures.of(texture, self.shares_, self.drawn_images, random)
        target = moved(textures.asked(data, self.shares_, size), self.place)
        textures = moved(textures, self.place)
        minimise(
            self.network_.to(self.place),
            lambda step, random: self._distance(textures, target, random),
            run,
            steps=self.steps,
            seed=self.seed,
            rate=lambda step: self.learning_rate * min(1.0, 2 * (1 - step / self.steps)),
        )
        self.network_.cpu()
        self.tone_again(self._made)

    def _distance(self, textures: Textures, target: Target, random: torch.Generator) -> Tensor:
        """Of the textures of moved draws from the target: its square without bias, of two batches; and how far they moved."""
        present = (self.shares_ > 0).nonzero().squeeze(1)
        each = max(1, self.batch // len(present))
        labels = present.repeat_interleave(each)
        weights = (self.shares_[labels] / self.shares_[labels].sum())[:, None].to(self.place)
        lengths = target.moment.diagonal().rsqrt()
        means, moments, moves = [], [], []
        for _ in range(2):
            starts = self._starts(labels, random).to(self.place)
            made = self._moved(starts, random)
            inside = made.clamp(0, 1)
            features = textures.features(inside + _BEYOND * (made - inside), self.in_short)
            coordinates = textures.coordinates(features, labels.to(self.place))
            moment = (coordinates * weights).T @ coordinates
            means.append(
                features.view(len(present), each, -1).mean(1) - target.means[present.to(self.place)]
            )
            moments.append((moment - target.moment) * lengths[:, None] * lengths)
            moves.append((made - starts).square().mean())
        apart = (means[0] * means[1]).mean() + (moments[0] * moments[1]).mean()
        return apart + self.stay * (moves[0] + moves[1]) / 2

    def _starts(self, labels: Tensor, random: torch.Generator) -> Tensor:
        return self.drawn_images(labels, random).to(torch.float32) / 255

    def _moved(self, pixels: Tensor, random: torch.Generator) -> Tensor:
        """(n, C, H, W), about [0, 1]"""
        drawn = torch.randn(pixels.shape, generator=random).to(pixels.device)
        alike = torch.ones(len(pixels), device=pixels.device)
        moves: Tensor = self.network_(
            torch.cat([2 * pixels - 1, drawn], dim=1), alike, torch.zeros_like(alike).long()
        )
        return pixels + _LENGTH * moves

    def _made(self, labels: Tensor, random: torch.Generator) -> Tensor:
        return self._moved(self._starts(labels, random), random)

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        starts = self._starts(labels, random)
        made = self.toned(self._moved(starts, random))
        if not self.unmoved:
            return made
        stay = torch.rand(len(labels), 1, 1, 1, generator=random) < self.unmoved
        return torch.where(stay, starts, made)
