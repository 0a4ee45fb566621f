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

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators import ClassedGenerator, ConvGenerator
from sfumato.generators.networks import seeded
from sfumato.generators.resnet import ResNetGenerator
from sfumato.methods.base import Method, Workspace
from sfumato.methods.matched import embedded, embedding_query, minimise
from sfumato.methods.mepf_matching import LOSSES, Discriminant, PerceptualDistance, Target
from sfumato.methods.private_encoder import (
    LAYERS,
    PRIVATE,
    encoder_query,
    extractor,
    train_extractor,
)
from sfumato.methods.registry import MethodInfo
from sfumato.methods.saved import part
from sfumato.methods.settings import LARGEST_SEED, setting
from sfumato.privacy import Budget, Gate, Query
from sfumato.public.perceptual import (
    Encoder,
    NetworkEncoder,
    PerceptualFeatures,
    clouds,
    make_encoder,
    public_centre,
    public_rows,
    trained_on,
    weighed_axes,
)

_LABEL, _STOPPING = "perceptual embedding", "early stopping"
_COUNT = 0.1  # what a record adds to its class's count, against 1 for its features
_STOP_SHARE = 0.01  # of the squared noise budget against 1 for all else: ten times the noise
_PUBLIC_RECORDS = 2000  # for a centre and a radius
_METRIC_RECORDS, _DIRECTIONS = 1500, 600
_PHASES, _DECAY = 20, 0.86  # of the training; the learning rate is multiplied by this after each
_REDRAWS, _RULE_AT_ONCE = 4, 128


class Mepf(Method):
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
    TINY: ClassVar = {"steps": 4, "batch": 9, "hidden": 16, "latent": 8, "moments": 1}
    FORMER = {
        "shared_budget": 0.2,
        "basis": "random",
        "anchor": False,
        "directions": ...,
        "memory": ...,
    }

    encoder: str = setting(
        "A public network, a pretrained extractor's file, scattering (no public data), or private (by DP-SGD).",
        default="scattering",
    )
    encoder_budget: float = setting(
        "Share of the squared noise budget for training a private encoder.",
        default=0.3,
        above=0,
        below=1,
    )
    encoder_rate: float = setting(
        "Chance of each record to be in a step of a private encoder's training.",
        default=0.02,
        above=0,
        high=1,
    )
    encoder_steps: int = setting("Steps of a private encoder's training.", default=300, low=1)
    taps: str | None = setting(
        "Layers of the encoder, such as relu1_2,relu2_2; auto: all that come after a ReLU.",
        default=None,
    )
    size: int | None = setting(
        "Side to which images are resized for the network; auto: as the network is used to.",
        default=None,
        low=1,
    )
    pool: int | None = setting(
        "Most places a side that a layer keeps, by averaging; auto: all.", default=None, low=1
    )
    moments: int = setting(
        "1 for the features, 2 for the features and their squares.", default=2, low=1, high=2
    )
    second_weight: float = setting(
        "Length of the second moment's vector against 1 for the first's; less gives it less of the budget.",
        default=1.0,
        above=0,
    )
    balance: bool = setting(
        "Whether every layer is scaled to the same length, not only all together.", default=False
    )
    centre: bool = setting(
        "Whether features are centred on the mean of the public data and clipped to a radius; needs public data.",
        default=False,
    )
    radius: float | None = setting(
        "The clipping radius of centred features, a public constant; auto: covers nine tenths of the public data.",
        default=None,
        above=0,
    )
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
    steps: int = setting("Training steps of the generator.", default=2_000, low=1, free=True)
    batch: int = setting(
        "Generated images per training step, spread evenly over the classes.",
        default=100,
        low=1,
        free=True,
    )
    learning_rate: float = setting(
        "Adam's learning rate at the start; it falls to a twentieth.",
        default=3e-3,
        above=0,
        free=True,
    )
    grain: float = setting(
        "Standard deviation of the grain added to sampled pixels in [0, 1], a public constant; 0 for none.",
        default=0.1,
        low=0,
        high=1,
        free=True,
    )
    device: str = setting(
        "Where to compute features and train: cpu, cuda, or auto for cuda where there is one.",
        default="cpu",
        choices=("cpu", "cuda", "auto"),
        free=True,
    )
    training_seed: int | None = setting(
        "Public seed of the generator's start and training; auto: the same as seed.",
        default=None,
        low=0,
        high=LARGEST_SEED,
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
        phi = self._map(self._encoder(schema, encoder, weights=False))
        return embedding_query(
            label,
            schema,
            phi.dim,
            1.0 if centred else phi.bound,
            _COUNT,
            share=share,
            non_negative=phi.non_negative and not centred,
        )

    def build(self, schema: Schema) -> None:
        self.generator_ = self._network(schema)
        self._plain: PerceptualFeatures | None = None  # φ before it is centred, to check samples
        vars(self).pop("extractor_", None)  # of another fit
        if self.encoder == PRIVATE:
            self.extractor_ = extractor(schema, self.seed)

    def _fit(self, data: Gate, run: Workspace) -> None:
        schema, device = data.schema, _device(self.device)
        if self.encoder == PRIVATE:
            train_extractor(self.extractor_, data, run, seed=self.seed)
        encoder = self._unseen_encoder(schema, self.encoder, run).to(device)
        target = self._target(data, _LABEL, self._centred(encoder, run), run)
        stopping = None
        if self.stop:
            same, name = self._stop_encoder == self.encoder, self._stop_encoder
            other = encoder if same else self._unseen_encoder(schema, name, run).to(device)
            stopping = self._target(data, _STOPPING, self._map(other), run)
        self.shares_ = target.embedding.shares
        self._match(target, stopping, run)
        self.generator_.to("cpu").eval()
        self._plain = self._map(encoder.to("cpu"))

    def _match(self, target: Target, stopping: Target | None, run: Workspace) -> None:
        """Train the generator, and make the rule that its samples are checked by."""
        distance = PerceptualDistance(
            self.generator_,
            target,
            stopping,
            batch=self.batch,
            steps=self.steps,
            loss=self.loss,
            average_rate=self.average_rate,
        ).to(target.phi.device)
        minimise(
            distance,
            distance.loss,
            run,
            steps=self.steps,
            seed=self._training_seed,
            rate=lambda step: self.learning_rate * _DECAY ** (step * _PHASES // self.steps),
        )
        self.loss_ = distance.finish()
        run.log({"event": "matched", "training_seed": self._training_seed, "loss": self.loss_})
        self.rule_: Discriminant | None = distance.rule() if self.checked else None

    # -- features ----------------------------------------------------------------------------------------------------

    @property
    def _stop_encoder(self) -> str:
        return self.stop_encoder or self.encoder

    def _encoder(self, schema: Schema, name: str, *, weights: bool = True, **more: Any) -> Encoder:
        """By its name; without weights for its public facts alone."""
        own = name == self.encoder
        taps = tuple(t.strip() for t in self.taps.split(",") if t.strip()) if self.taps else None
        if name == PRIVATE:
            network = self.extractor_ if weights else extractor(schema)
            return NetworkEncoder(network.eval(), taps or LAYERS, schema.shape, pool=self.pool)
        return make_encoder(
            name,
            schema.shape,
            layers=taps if own else None,
            size=self.size if own else None,
            pool=self.pool if own else None,
            weights=weights,
            **more,
        )

    def _unseen_encoder(self, schema: Schema, name: str, run: Workspace) -> Encoder:
        """The encoder, unless it was trained on the private data."""
        if name != PRIVATE:
            run.check_unseen(f"The network {name}", trained_on(name))
        return self._encoder(schema, name, progress=run.progress)

    def _map(self, encoder: Encoder, **centred: Any) -> PerceptualFeatures:
        return PerceptualFeatures(
            encoder,
            moments=self.moments,
            second_weight=self.second_weight,
            balance=self.balance,
            **centred,
        )

    def _centred(self, encoder: Encoder, run: Workspace) -> PerceptualFeatures:
        phi = self._map(encoder)
        if not self.centre or run.public is None:
            return phi
        centre, radius = public_centre(public_rows(phi, run.public, _PUBLIC_RECORDS))
        return self._map(encoder, centre=centre, radius=self.radius or radius).to(phi.device)

    def _target(self, data: Gate, label: str, phi: PerceptualFeatures, run: Workspace) -> Target:
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

    @property
    def _training_seed(self) -> int:
        return self.seed if self.training_seed is None else self.training_seed

    def _network(self, schema: Schema) -> nn.Module:
        kind, facts = self.network, (schema.shape, schema.n_classes, self.latent)
        if kind == "auto":
            kind = "classed" if max(schema.shape[1:]) <= 28 else "resnet"
        if kind == "resnet":
            return seeded(self._training_seed, ResNetGenerator, *facts, self.width)
        made = ClassedGenerator if kind == "classed" else ConvGenerator
        return seeded(
            self._training_seed,
            lambda: made(*facts, self.hidden, texture=self.texture, warp=self.warp),
        )

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        made = self._pictures(labels, random)  # (n, channels, height, width)
        return made.add_(torch.randn(made.shape, generator=random), alpha=self.grain)

    def _pictures(self, labels: Tensor, random: torch.Generator) -> Tensor:
        """Before grain; what looks like another class is drawn again."""
        made: Tensor = self.generator_(labels, random)
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
                self._plain = self._map(self._encoder(self.schema_, self.encoder))
            except BadInput as error:
                raise BadInput(
                    f"Samples of this run are checked with the network {self.encoder}, which cannot be opened: put it back, or "
                    "train again from the release with checked=false, which is free."
                ) from error
        return self._plain

    def _earlier(self, state: dict[str, Tensor]) -> dict[str, Any]:
        found = super()._earlier(state)
        found["loss_"] = float(state.get("loss", torch.tensor(math.nan)))
        rule = part(state, "rule.")
        found["rule_"] = Discriminant(**rule) if rule else None
        if weights := part(state, "encoder."):  # kept with a rule only, which needs it
            self.extractor_.load_state_dict(weights)
        return found

    def _needs_public(self) -> bool:
        return self.centre

    def _check(self, schema: Schema) -> None:
        if self.radius is not None and not self.centre:
            raise BadInput("mepf's radius goes with centre=true; set that or leave radius out.")
        if self.encoder == PRIVATE and self.size is not None:
            raise BadInput("A private encoder takes images as they are; leave mepf's size out.")
        if self.encoder == PRIVATE and not schema.labelled:
            raise BadInput(
                "A private encoder learns to tell classes apart and these data have none; take encoder=scattering, which needs "
                "neither labels nor public data."
            )
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
