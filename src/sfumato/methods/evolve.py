"""Private Evolution: the records vote for the pictures that are most like them ("Differentially Private Synthetic Data via
Foundation Model APIs 1: Images", Lin, Gopi, Kulkarni, Nori, Yekhanin 2024).

    1.  S = m random pictures a class, of any source that draws pictures                            (public)
    2.  e(s) = mean embedding of a few variations of s (look-ahead, eq. 3)                          (free)
    3.  each record votes for the nearest e(s) of its class: a histogram + noise                    (a release a round)
    4.  votes below H are taken back; parents are drawn by what is left, and varied: the new S      (free)
    5.  2–4 again, each round with smaller variations; samples are variations of the last parents   (free)

Nothing is trained, and the source may be a model that nobody here could train. Private: the records, in step 3 only. Public: the
source, the embedding, the Schema.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sfumato.data import Batch, Schema
from sfumato.methods.base import Workspace
from sfumato.methods.capacity import usual_records
from sfumato.methods.counts import Counts, apportion
from sfumato.methods.pictured import Pictured
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query, decides
from sfumato.privacy.query import gaussian_noise
from sfumato.public.products import row_product

_FEWEST, _MOST = 8, 500  # pictures a class, where the number of records decides
_VOTES_SEEN = 3.0  # usual votes of a picture ÷ their noise, that many pictures are asked about


class Evolve(Pictured):
    """Private Evolution for labelled and unlabelled images.

    **Guarantee**: in each round a record adds 1 to one number of a histogram, so the bound is 1, and under replace-one two
    records differ by √2. All rounds are calibrated together to the budget. What follows is post-processing: pictures are made
    by a public source, and chosen by released votes.

    Differs from the paper: the number of pictures follows the number of records where that is public, so that a usual picture's
    votes stand above their noise (the paper takes as many as are wanted); H is told in standard deviations of the noise; parents
    are apportioned to votes, not drawn; samples are variations of the last parents, as many as one likes. Embeddings are of
    length 1 and reduced to their leading axes on pictures of the source. Classes' shares come from the votes.
    """

    info = MethodInfo(
        name="evolve",
        title="Private Evolution",
        paper="“Differentially Private Synthetic Data via Foundation Model APIs 1: Images”, 2024",
        kinds=("images",),
        public="optional",
        summary="Records vote for the pictures of a public source that are most like them; those are varied, round after round.",
    )
    FOLLOWS_SIZE = True
    TINY = {"source": "codec", "codec": "dct:16", "rounds": 2, "population": 5, "look_ahead": 2}

    rounds: int = setting("Rounds of votes.", default=6, low=1, high=1000)
    population: int | None = setting(
        "Pictures a class that are voted for; auto: so many that their votes stand above the noise.",
        default=None,
        low=1,
    )
    look_ahead: int = setting(
        "Variations of a picture whose mean embedding stands for it; 0: the picture itself.",
        default=4,
        low=0,
    )
    threshold: float = setting(
        "H: votes below it are taken back, in standard deviations of their noise.",
        default=1.5,
        low=0,
    )
    first_degree: float = setting(
        "How far variations go in the first round.", default=1.0, low=0, high=1
    )
    last_degree: float = setting(
        "How far variations go in the last round, and in samples.", default=0.3, low=0, high=1
    )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        segments = max(1, schema.n_classes) * self._population(schema, budget, schema.records)
        return [
            Query(label=_label(number), shape=(1,), segments=segments, non_negative=True)
            for number in range(self.rounds)
        ]

    def _fit(self, data: Gate, run: Workspace) -> None:
        random = torch.Generator().manual_seed(self.seed)
        classes = max(1, data.schema.n_classes)
        each = self._population(data.schema, data.budget, data.public_size)
        labels = torch.arange(classes).repeat_interleave(each)
        source = self.open_source(data.schema, run)
        see = self.open_embedding(data.schema, source, labels, run)
        private = data.remember(see)
        pictures = source.random(labels, random)
        seen = torch.zeros(classes, dtype=torch.float64)
        with run.progress.stage("Evolving", self.rounds) as stage:
            for number in range(self.rounds):
                degree = self._degree(number)
                known = see.ahead(source, pictures, labels, degree, self.look_ahead, random)
                release = data.sum(_label(number), nearest(private, known, classes), given=(known,))
                votes = release.value.view(classes, each)
                seen += votes.sum(1) / self.rounds
                chosen = (votes - self.threshold * release.noise_std).clamp(min=0)
                # Of a class in which nothing stands above its noise, all are as good.
                chosen[chosen.sum(1) <= 0] = 1.0
                if number + 1 < self.rounds:
                    parents = [apportion(c, each, random) + k * each for k, c in enumerate(chosen)]
                    pictures = source.vary(pictures[torch.cat(parents)], labels, degree, random)
                stage.advance()
        doubt = data.noise_std(_label(0)) * math.sqrt(each / self.rounds)
        self.shares_ = Counts.of(seen, doubt, data.public_size).shares
        self.parents_ = pictures.mul(255).round().to(torch.uint8).unflatten(0, (classes, each))
        self.votes_ = (chosen / chosen.sum(1, keepdim=True)).to(torch.float32)

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        parents = torch.multinomial(self.votes_[labels], 1, generator=random)[:, 0]
        pictures = self.parents_[labels, parents].to(torch.float32) / 255
        return self.source_again().vary(pictures, labels, self.last_degree, random)

    def _population(self, schema: Schema, budget: Budget, size: int | None) -> int:
        if self.population is not None:
            return self.population
        records = size or usual_records(budget.delta)
        noise = gaussian_noise(budget) * math.sqrt(self.rounds)
        each = records / max(1, schema.n_classes) / (_VOTES_SEEN * noise)
        return min(_MOST, max(_FEWEST, round(each)))

    def _degree(self, number: int) -> float:
        part = number / max(1, self.rounds - 1)
        return self.first_degree + part * (self.last_degree - self.first_degree)


def _label(number: int) -> str:
    return f"votes, round {number + 1}"


def nearest(
    see: Callable[[Batch], Tensor], known: Tensor, classes: int
) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    """1 for every record, filed under the nearest of its class's pictures `known` (classes · each, axes)."""
    each = len(known) // classes
    half = known.square().sum(1) / 2

    def votes(batch: Batch) -> tuple[Tensor, Tensor]:
        # Of all classes, so that no shape in here depends on a label.
        likeness = decides(row_product(decides(see(batch)), known.T) - half)
        likeness = likeness.unflatten(1, (classes, each))
        labels = batch.labels
        if labels is None:
            labels = torch.zeros(len(batch), dtype=torch.int64)
        of_class = labels.clamp(min=0)
        own = likeness[torch.arange(len(batch)), of_class]  # (n, each)
        valid = (labels >= 0) & own.isfinite().all(1)
        place = of_class * each + own.nan_to_num().argmax(1)
        return torch.ones(len(batch), 1), torch.where(valid, place, -1)

    return votes
