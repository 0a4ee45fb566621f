"""DP-MEPF: private mean embeddings with perceptual features (Harder, Jalali, Sutherland and Park 2023; thesis, app. D).

    1.  φ(x) = [e(x)/‖e(x)‖, e(x)²/‖e(x)²‖]      layers e of a public network, or of wavelet scattering       (public)
    2.  μ̃  = 1/n (Σ φ(xᵢ) ⊗ yᵢ + noise)          one noisy sum, filed by class                                (the release)
    3.  min over θ  ‖ μ̃ − E φ(G_θ(z, y)) ⊗ y ‖²   train a generator to have the same embedding                 (free)
    4.  of the generators on the way, keep the one nearest to a second, noisier embedding                     (early stopping)
    5.  sample G_θ(z, y); draw again what is nearer to another class's embedding than to that of y            (free)

Private: the records, in step 2 and, if asked for, in the second release of step 4 and in training e. Public: the network and its
training data, which must not be the private ones; the data set `public`, if given, for a centre or a metric of the features.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators import ClassedGenerator, ConvGenerator
from sfumato.generators.resnet import ResNetGenerator
from sfumato.methods.base import Workspace
from sfumato.methods.matched import MatchedImages, embedded, embedding_query
from sfumato.methods.mepf_features import Perceived
from sfumato.methods.mepf_matching import (
    FINAL_RECORDS,
    FINAL_SEED,
    LOSSES,
    Discriminant,
    PerceptualDistance,
    Target,
)
from sfumato.methods.private_encoder import PRIVATE, encoder_query, extractor, train_extractor
from sfumato.methods.registry import MethodInfo
from sfumato.methods.saved import part
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query
from sfumato.public.perceptual import PerceptualFeatures, clouds, public_rows, weighed_axes

_LABEL, _STOPPING = "perceptual embedding", "early stopping"
_COUNT = 0.1  # what a record adds to its class's count, against 1 for its features
_STOP_SHARE = 0.01  # of the squared noise budget against 1 for all else: ten times the noise
_METRIC_RECORDS, _DIRECTIONS = 1500, 600
_REDRAWS, _RULE_AT_ONCE = 4, 128


class Mepf(Perceived, MatchedImages):
    """DP-MEPF for images of 8 to 128 pixels, gray or colour, labelled or not.

    **Guarantee**: one release of Σ [φ₁(x), w φ₂(x), 0.1] filed by class, where ‖φ₁‖ = ‖φ₂‖ = 1 because each is divided by its own
    norm, hence bound √(1 + w² + 0.01); with `stop` one more of the same kind at about ten times the noise multiplier; with
    `encoder="private"`, before them, the noisy gradient steps of its training. All are calibrated jointly. Activations after a
    ReLU are never negative, so under replace-one the sensitivity is √2 times the bound, not twice. Everything after the releases
    is post-processing. A public network must not have been trained on the private data.

    Differs from the paper: counts ride in the release; √2 under replacement; distances are measured with rare directions of the
    features stretched (`weigh`), at a running mean of the generator's embedding (`loss="averaged"`; `"mmd"` leaves out the
    self-pairs of a batch, `"moving-average"` is the paper's); the conv generator learns grain of its own (`texture`) and moves
    its pictures a little at random (`warp`); a picture that a linear discriminant of the released embeddings takes for another
    class is drawn again (`checked`); layers may be averaged over places, weighed alike (`balance`), or centred on a public mean
    and clipped to a public radius (`centre`); the encoder may be wavelet scattering, which needs no public data; sampled pixels
    get grain.
    """

    info = MethodInfo(
        name="mepf",
        title="DP-MEPF",
        paper="Harder et al. 2023, “Pre-trained Perceptual Features Improve Differentially Private Image Generation”",
        kinds=("images",),
        public="optional",
        summary="One noisy mean embedding in the features of a public network or of wavelets; a generator is trained to match "
        "it.",
    )
    DECAY, FINAL = 0.86, (FINAL_SEED, FINAL_RECORDS)
    TINY: ClassVar = {"steps": 4, "batch": 9, "hidden": 16, "latent": 8, "moments": 1}
    FORMER = {
        "shared_budget": 0.2,
        "basis": "random",
        "anchor": False,
        "directions": ...,
        "memory": ...,
    }

    stop: bool = setting(
        "Whether a second release, at about ten times the noise multiplier, picks the best generator on the way.",
        default=False,
    )
    stop_encoder: str | None = setting(
        "The encoder for early stopping; auto: the same as for training.", default=None
    )
    network: str = setting(
        "The generator: auto (classed up to 28 pixels, else resnet), conv, classed (own layers per class), resnet.",
        default="auto",
        choices=("auto", "conv", "classed", "resnet"),
        free=True,
    )
    latent: int = setting(
        "Normal numbers that go into the generator.", default=90, low=1, free=True
    )
    hidden: int = setting(
        "Width of the conv generator's dense layer.", default=500, low=1, free=True
    )
    width: int = setting(
        "Channels of the resnet generator at full size; eight times as many at the smallest.",
        default=64,
        low=1,
        free=True,
    )
    texture: bool = setting(
        "Whether the conv generator adds grain of its own, its strength learnt for each class and pixel.",
        default=True,
        free=True,
    )
    warp: float = setting(
        "How far the conv generator moves and turns its pictures at random: 0.07 is a pixel in 28, 0 not at all.",
        default=0.07,
        low=0,
        high=1,
        free=True,
    )
    checked: bool = setting(
        "Whether a sampled picture that looks like another class to the released embeddings is drawn again.",
        default=True,
        free=True,
    )
    weigh: float = setting(
        "How far rare directions of the features are stretched when distances are measured: 0 not at all, 1 all alike.",
        default=0.0,
        low=0,
        high=1,
        free=True,
    )
    loss: str = setting(
        "averaged: at a running mean; mmd: squared distance without self-pairs; moving-average: of dos Santos et al.",
        default="averaged",
        choices=LOSSES,
        free=True,
    )
    average_rate: float = setting(
        "Learning rate of the moving average.", default=1e-3, above=0, free=True
    )
    steps: int = setting(default=2_000)
    batch: int = setting(
        "Generated images per training step, as many of each class.", default=100, low=1, free=True
    )
    learning_rate: float = setting(default=3e-3)
    decays: int = setting(
        "How many equal parts the training has; the learning rate is multiplied by 0.86 after each.",
        default=20,
        low=1,
        free=True,
    )
    grain: float = setting(default=0.1)
    device: str = setting(
        "Where to compute features and train: cpu, cuda, or auto for cuda where there is one.",
        default="cpu",
        choices=("cpu", "cuda", "auto"),
        free=True,
    )

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        """The training of a private encoder, the embedding, the one for early stopping."""
        first, rest = [], 1.0
        if self.encoder == PRIVATE:
            share, rest = self.encoder_budget, 1 - self.encoder_budget
            rate, steps = self.encoder_rate, self.encoder_steps
            first = [encoder_query(extractor(schema), share=share, rate=rate, steps=steps)]
        releases = [self._query(_LABEL, schema, self.encoder, rest, centred=self.centre)]
        if self.stop:
            releases.append(self._query(_STOPPING, schema, self._stop_encoder, _STOP_SHARE))
        return [*first, *releases]

    def _query(
        self, label: str, schema: Schema, encoder: str, share: float, *, centred: bool = False
    ) -> Query:
        """Of Σ φ: its size and sign are public facts of the encoder, which is made without weights."""
        phi = self.features(self.opened(schema, encoder, weights=False))
        positive = phi.non_negative and not centred
        bound = 1.0 if centred else phi.bound
        return embedding_query(
            label, schema, phi.dim, bound, _COUNT, share=share, non_negative=positive
        )

    def build(self, schema: Schema) -> None:
        super().build(schema)
        self._plain: PerceptualFeatures | None = None  # φ before it is centred, to check samples

    def _fit(self, data: Gate, run: Workspace) -> None:
        schema, device = data.schema, _device(self.device)
        if self.encoder == PRIVATE:
            train_extractor(self.extractor_, data, run, seed=self.seed)
        encoder = self.unseen(schema, self.encoder, run).to(device)
        self._target = self._asked(data, _LABEL, self.centred(encoder, run), run)
        self._stopping: Target | None = None
        if self.stop:
            same, name = self._stop_encoder == self.encoder, self._stop_encoder
            other = encoder if same else self.unseen(schema, name, run).to(device)
            self._stopping = self._asked(data, _STOPPING, self.features(other), run)
        self.shares_ = self._target.embedding.shares
        best = cast(PerceptualDistance, self.match(schema, run))
        self.rule_: Discriminant | None = best.rule() if self.checked else None
        self.generator_.to("cpu").eval()
        self._plain = self.features(encoder.to("cpu"))
        del self._target, self._stopping

    def distance(self, network: nn.Module) -> PerceptualDistance:
        return PerceptualDistance(
            network,
            self._target,
            self._stopping,
            batch=self.batch,
            steps=self.steps,
            loss=self.loss,
            average_rate=self.average_rate,
        ).to(self._target.phi.device)

    @property
    def _stop_encoder(self) -> str:
        return self.stop_encoder or self.encoder

    def _asked(self, data: Gate, label: str, phi: PerceptualFeatures, run: Workspace) -> Target:
        """Ask for an embedding. In which directions differences count is chosen afterwards: the principal axes of public images,
        or of random ones, weighed."""
        learnt = tuple(self.extractor_.parameters()) if self.encoder == PRIVATE else ()
        embedding = embedded(data, label, phi, _COUNT, given=learnt)
        if self.weigh == 0:
            return Target(phi, embedding)
        images = run.public or clouds(data.schema.shape, _METRIC_RECORDS)
        rows = public_rows(phi, images, _METRIC_RECORDS)
        noise = (embedding.noise_std * len(embedding.shares)) ** 2
        return Target(phi, embedding, weighed_axes(rows, _DIRECTIONS, self.weigh, noise))

    # -- the generator and its samples -------------------------------------------------------------------------------

    def auto(self, schema: Schema) -> str:
        return "classed" if max(schema.shape[1:]) <= 28 else "resnet"

    def generator(self, kind: str, schema: Schema) -> nn.Module:
        facts = (schema.shape, schema.n_classes, self.latent)
        if kind == "resnet":
            return ResNetGenerator(*facts, self.width)
        made = ClassedGenerator if kind == "classed" else ConvGenerator
        return made(*facts, self.hidden, texture=self.texture, warp=self.warp)

    def made(self, labels: Tensor, random: torch.Generator) -> Tensor:
        """Before grain; what looks like another class is drawn again."""
        made = super().made(labels, random)
        if self.rule_ is None:
            return made
        phi = self._checking_features()
        # A rule of a version before 0.3 may be one of features that there are no more (anchored, or of fewer layers).
        if self.rule_.weights.shape[1] != phi.dim:
            return made
        doubtful = torch.arange(len(labels))
        for _ in range(_REDRAWS):
            found = [self.rule_(phi.of(some)) for some in made[doubtful].split(_RULE_AT_ONCE)]
            doubtful = doubtful[torch.cat(found) != labels[doubtful]]
            if len(doubtful) == 0:
                break
            made[doubtful] = self.generator_(labels[doubtful], random)
        return made

    def _checking_features(self) -> PerceptualFeatures:
        if self._plain is None:
            try:
                self._plain = self.features(self.opened(self.schema_, self.encoder))
            except BadInput as error:
                raise BadInput(
                    f"Samples of this run are checked with the network {self.encoder}, which cannot be opened: put it back, or "
                    "train again from the release with checked=false, which is free."
                ) from error
        return self._plain

    def _earlier(self, state: dict[str, Tensor]) -> dict[str, Any]:
        found = super()._earlier(state)
        rule = part(state, "rule.")
        found["rule_"] = Discriminant(**rule) if rule else None
        if weights := part(state, "encoder."):  # kept with a rule only, which needs it
            self.extractor_.load_state_dict(weights)
        return found

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        if self.stop_encoder == PRIVATE:
            raise BadInput("mepf's stop_encoder must be a public network or scattering.")
        if self.stop_encoder is not None and not self.stop:
            raise BadInput("mepf's stop_encoder goes with stop=true; set that or leave it out.")


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput("mepf's device=cuda needs a GPU that torch can use; take device=auto.")
    return torch.device(name)
