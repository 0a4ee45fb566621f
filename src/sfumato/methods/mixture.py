"""Mixture: Gaussians in a privately learnt basis, sfumato's own default. No network, no public data, seconds to fit.

With `codec`, the Gaussians live in the latent of a public codec, and its decoder makes the images.

    0.  where the records lie, and how far they spread: a rough mean and three lengths            (four small releases)
    1.  class sums and counts, shrunk coefficient by coefficient towards the pooled mean           (release)
    2.  the pooled second moment around the class means, taken out of its noise: a basis           (release)
    3.  each class's second moment in that basis, shrunk towards the pooled one                    (release)
    4.  Lloyd's algorithm in each class, a few coordinates, started from draws of step 3            (a release a round)
    5.  draw: class, cluster, Gaussian in the basis, residual around it, back to records            (free)
    6.  refine: learn to tell draws from records, and keep the draws that look most like them       (paid gradient steps)

Everything private is a sum of bounded vectors behind the wall. What a step needs to know of the records (a radius to clip to, a
centre) it has from the releases before it, so the plan is fixed before a row is read.

Public: the schema, the space's prior (how variance falls with frequency in pictures), the codec if there is one, all settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators.mixture import GaussianMixture, RangeFit
from sfumato.methods.base import Workspace
from sfumato.methods.counts import apportion
from sfumato.methods.estimation import Capacity, Estimation, all_shares, releases
from sfumato.methods.latent import LatentSynthesizer
from sfumato.methods.refinement import STEPS, Selection, charge_for, refinable
from sfumato.methods.registry import register
from sfumato.privacy import Plan, PrivateData, charge_of
from sfumato.public.remembered import RememberingSpace
from sfumato.public.space import CodecSpace
from sfumato.public.spaces import Space, space_of

_REFINEMENT = 1 / 3  # of the squared noise budget beside the others' 1: a quarter of the whole
_CHUNK = 4000  # records drawn at a time
_MOST_NUMBERS = 50_000_000  # in covariances of all clusters


@register(
    "mixture",
    title="Mixture",
    paper="sfumato's own",
    kinds=("images", "table"),
    public="optional",
    summary="Private means, covariances and clusters of each class in a private basis; samples in seconds, no network.",
)
class Mixture(LatentSynthesizer):
    """Gaussian mixtures by class in a privately learnt basis.

    **Guarantee**: ten sums over all records (an eleventh with `cluster_directions`, and 60 gradients with `refine`), each of
    vectors of norm ≤ 1, of such a vector and a count (≤ √1.16), or of products of two vectors of norm ≤ 1, each with Gaussian
    noise; their noise multipliers are m ÷ √share with shares that add up to 1, and m is calibrated to the budget exactly.
    Centres, radii and bases that a sum uses were released before it or are public, so composition is the adaptive one of
    Gaussian mechanisms. All else is post-processing.
    """

    HELP = {
        "refine": "Whether to draw more images than wanted and keep those most like the private ones; tables are not refined.",
        "candidates": "With refine: how many images are drawn for each one kept.",
        "codec": "Public codec whose latent replaces pixels: none, dct:K, pca:K (with --public), or a pretrained one's path.",
        "cluster_directions": "Directions in which each cluster has a covariance of its own; 50 may pay from ε = 10 on; 0: none.",
        "seed": "Public seed of the clusters' starting points; privacy noise never has a seed.",
    }

    def __init__(
        self,
        *,
        refine: bool = True,
        candidates: int = 4,
        codec: str | None = None,
        cluster_directions: int = 0,
        seed: int = 0,
    ) -> None:
        self.refine = refine
        self.candidates = candidates
        self.codec = codec
        self.cluster_directions = cluster_directions
        self.seed = seed

    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        self._check()
        dim = space_of(schema).dim if self.codec is None else self._facts(schema).dim
        capacity = self._capacity(dim, schema, noise_multiplier)
        maps = releases(dim, schema.n_classes, capacity)
        noise = self._noise(schema, capacity, noise_multiplier)
        plan = tuple(charge_of(phi, noise(share), label=label) for label, phi, share in maps)
        if self._refines(schema):
            plan += (charge_for(schema, noise(self._refinement(capacity))),)
        return plan

    def _check(self) -> None:
        if not isinstance(self.refine, bool):
            raise BadInput(f"mixture's refine must be true or false, not {self.refine!r}.")
        each = self.candidates
        if isinstance(each, bool) or not isinstance(each, int) or not 1 <= each <= 100:
            raise BadInput(
                f"mixture's candidates must be a whole number from 1 to 100, not {each!r}."
            )
        own = self.cluster_directions
        if isinstance(own, bool) or not isinstance(own, int) or own < 0:
            raise BadInput(
                f"mixture's cluster_directions must be a whole number of at least 0, not {own!r}."
            )

    def _capacity(self, dim: int, schema: Schema, noise_multiplier: float) -> Capacity:
        capacity = Capacity.of(dim, schema.n_classes, noise_multiplier, self.cluster_directions)
        held = max(1, schema.n_classes) * capacity.clusters * capacity.basis**2
        if capacity.own and held > _MOST_NUMBERS:
            raise BadInput(
                "mixture's cluster_directions are too much for so many classes and clusters; set it to 0."
            )
        return capacity

    def _uses_public(self) -> bool:
        return self.codec is not None

    def _refines(self, schema: Schema) -> bool:
        return self.refine and refinable(schema)

    def _refinement(self, capacity: Capacity) -> float:
        return _REFINEMENT * all_shares(capacity)

    def _noise(
        self, schema: Schema, capacity: Capacity, noise_multiplier: float
    ) -> Callable[[float], float]:
        """From a release's share of the squared budget to its noise multiplier; the shares of all releases add up to `whole`."""
        whole = all_shares(capacity)
        if self._refines(schema):
            whole += self._refinement(capacity)
        return lambda share: noise_multiplier * math.sqrt(whole / share)

    def _fit(self, data: PrivateData, noise_multiplier: float, workspace: Workspace) -> None:
        schema = data.schema
        self.space_ = space = self._space(schema, workspace)
        if self.codec is not None:
            # For the length of the fit only: what it remembers is private.
            space = RememberingSpace(space)
        capacity = self._capacity(space.dim, schema, noise_multiplier)
        noise = self._noise(schema, capacity, noise_multiplier)
        estimation = Estimation(data, space, capacity, noise, workspace, self.seed)
        self.mixture_ = estimation.mixture()
        self.shares_ = estimation.shares.to(torch.float32)
        self.range_ = self._range_fit()
        self.selection_: Selection | None = None
        if self._refines(schema):
            with workspace.progress.stage("Telling draws from records", STEPS) as stage:
                self.selection_ = Selection.learnt(
                    data,
                    noise(self._refinement(capacity)),
                    self.shares_,
                    estimation.size,
                    self._records,
                    self.space_.seen,
                    self.seed,
                    lambda _: stage.advance(),
                )
            workspace.log({"event": "release", "label": "refinement"})

    def _space(self, schema: Schema, workspace: Workspace) -> Space:
        if self.codec is None:
            return space_of(schema)
        self.codec_ = self._open_codec(schema, workspace)
        return CodecSpace.ordered(self.codec_, workspace.public, seed=self.seed)

    def _range_fit(self) -> RangeFit:
        """One for all classes: of a class's own, the noise in its mean would make a mark that tells the class."""
        if not self.space_.ranged:
            return RangeFit.none(self.space_.places)
        random = torch.Generator().manual_seed(self.seed)
        labels = apportion(self.shares_, 4000, random)
        draws = self.space_.raw(self.mixture_.draw(labels, random))
        centre = self.shares_ @ self.space_.raw(self.mixture_.means)
        return RangeFit.to(centre, draws)

    def _sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        labels = apportion(self.shares_, n, generator)
        parts = []
        for part in labels.split(_CHUNK):
            if self.selection_ is None:
                parts.append(self._records(part, generator))
            else:
                parts.append(self.selection_.draw(part, self._records, generator, self.candidates))
        return torch.cat(parts), labels if self.schema_.labelled else None

    def _records(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        raw = self.space_.raw(self.mixture_.draw(labels, generator))
        return self.space_.finish(self.range_(raw), generator)

    def _state(self) -> dict[str, Tensor]:
        chosen = self.selection_.tensors() if self.selection_ else {}
        if self.codec is not None:
            chosen |= self._codec_state()
        return {
            **self.mixture_.tensors(),
            **self.range_.tensors(),
            **self.space_.tensors(),
            **chosen,
            "shares": self.shares_,
        }

    def _restore(self, state: dict[str, Tensor]) -> None:
        if self.codec is None:
            self.space_ = space_of(self.schema_)
        else:
            self._restore_codec(state)
            self.space_ = CodecSpace.restored(self.codec_, state)
        self.mixture_ = GaussianMixture.of(state)
        self.range_ = RangeFit.of(state)
        self.shares_ = state["shares"]
        refines = self._refines(self.schema_)
        self.selection_ = Selection.restored(state, self.schema_) if refines else None
