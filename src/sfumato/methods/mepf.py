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

from torch import nn

from sfumato.data import Schema
from sfumato.methods.base import Workspace
from sfumato.methods.matched import embedded, embedding_query
from sfumato.methods.mepf_generator import CheckedImages
from sfumato.methods.mepf_matching import (
    FINAL_RECORDS,
    FINAL_SEED,
    LOSSES,
    PerceptualDistance,
    Target,
)
from sfumato.methods.mepf_stopping import Stopped
from sfumato.methods.parts import Shortened
from sfumato.methods.private_encoder import PRIVATE, encoder_query, extractor, train_extractor
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query
from sfumato.public.perceptual import PerceptualFeatures, clouds, public_rows, weighed_axes

_LABEL, _STOPPING = "perceptual embedding", "early stopping"
_COUNT = 0.1  # what a record adds to its class's count, against 1 for its features
_STOP_SHARE = 0.01  # of the squared noise budget against 1 for all else: ten times the noise
_METRIC_RECORDS, _DIRECTIONS = 1500, 600


class Mepf(Shortened, Stopped, CheckedImages):
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
    and clipped to a public radius (`centre`); the encoder may be wavelet scattering, which needs no public data; the learning
    rate falls (`decays=1` is the paper's constant one); sampled pixels get grain.
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
    batch: int = setting("Generated images per training step, as many of each class.", default=100)
    learning_rate: float = setting(default=3e-3)
    decays: int = setting(
        "How many equal parts the training has; the learning rate is multiplied by 0.86 after each.",
        default=20,
    )
    grain: float = setting(default=0.1)

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        """The training of a private encoder, the embedding, the one for early stopping."""
        first, rest = [], 1.0
        if self.encoder == PRIVATE:
            share, rest = self.encoder_budget, 1 - self.encoder_budget
            rate, steps = self.encoder_rate, self.encoder_steps
            first = [encoder_query(extractor(schema), share=share, rate=rate, steps=steps)]
        # Size and sign of Σ φ are public facts of an encoder, which is made without weights.
        phi, centred = self.features(self.opened(schema, self.encoder, weights=False)), self.centre
        bound = 1.0 if centred else phi.bound
        how: dict[str, Any] = {"share": rest, "non_negative": phi.non_negative and not centred}
        releases = [embedding_query(_LABEL, schema, phi.dim, bound, _COUNT, **how)]
        if self.stop:
            phi, classes = self.stop_features(schema), self.stop_classes(schema)
            how = {"share": _STOP_SHARE, "non_negative": phi.non_negative, "classes": classes}
            releases.append(embedding_query(_STOPPING, schema, phi.dim, phi.bound, _COUNT, **how))
        return self.with_tone(schema, [*first, *releases])

    def _fit(self, data: Gate, run: Workspace) -> None:
        schema, device = data.schema, self.place
        if self.encoder == PRIVATE:
            train_extractor(self.extractor_.to(device), data, run, seed=self.seed)
        encoder = self.unseen(schema, self.encoder, run).to(device)
        self._target = self._asked(data, _LABEL, self.centred(encoder, run), run)
        self._stopping: Target | None = None
        if self.stop:
            phi = self.stop_features(schema, run, encoder).to(device)
            classes = self.stop_classes(schema)
            self._stopping = self._asked(data, _STOPPING, phi, run, classes)
        self.shares_ = self._target.embedding.shares
        self.take_rule(cast(PerceptualDistance, self.match(schema, run)))
        self.generator_.to("cpu").eval()
        self._plain = self.features(encoder.to("cpu"))
        del self._target, self._stopping
        self.learn_tone(data)

    def distance(self, network: nn.Module) -> PerceptualDistance:
        return PerceptualDistance(
            network,
            self._target,
            self._stopping,
            batch=self.batch,
            steps=self.steps,
            loss=self.loss,
            average_rate=self.average_rate,
            checks=self.stop_checks,
            stop_records=self.stop_records,
            short=self.in_short,
        ).to(self._target.phi.device)

    def _asked(
        self,
        data: Gate,
        label: str,
        phi: PerceptualFeatures,
        run: Workspace,
        classes: int | None = None,
    ) -> Target:
        """Ask for an embedding. In which directions differences count is chosen afterwards: the principal axes of public images,
        or of random ones, weighed."""
        learnt = tuple(self.extractor_.parameters()) if self.encoder == PRIVATE else ()
        embedding = embedded(data, label, phi, _COUNT, given=learnt, classes=classes)
        if self.weigh == 0:
            return Target(phi, embedding)
        images = run.public or clouds(data.schema.shape, _METRIC_RECORDS)
        rows = public_rows(phi, images, _METRIC_RECORDS)
        noise = (embedding.noise_std * len(embedding.shares)) ** 2
        return Target(phi, embedding, weighed_axes(rows, _DIRECTIONS, self.weigh, noise))
