"""DP-MEPF: private mean embeddings with perceptual features (Harder, Jalali, Sutherland and Park 2023; thesis, app. D).

    1.  φ(x) = [e(x)/‖e(x)‖, e(x)²/‖e(x)²‖]      layers e of a public network, or of wavelet scattering       (public)
    2.  μ̃  = 1/n (Σ φ(xᵢ) ⊗ yᵢ + noise)          one noisy sum, filed by class                                (the release)
    3.  min over θ  ‖ μ̃ − E φ(G_θ(z, y)) ⊗ y ‖²   train a generator to have the same embedding                 (free)
    4.  of the generators on the way, keep the one nearest to a second, noisier embedding                     (early stopping)
    5.  sample G_θ(z, y); draw again what is nearer to another class's embedding than to that of y            (free)

Private: the records, in step 2 and, if asked for, in the second release of step 4. Public: the network and its training data,
which must not be the private ones; the data set `public`, if given, for a centre or a basis of the features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators import ClassedGenerator, ConvGenerator, Training, train
from sfumato.generators.embedding import CountedByClass, MeanEmbedding
from sfumato.generators.resnet import ResNetGenerator
from sfumato.methods.base import Workspace
from sfumato.methods.discriminant import Discriminant
from sfumato.methods.matching import Matched
from sfumato.methods.perceptual_matching import FINAL_SEED, LOSSES, Part, PerceptualMatching
from sfumato.methods.private_encoder import (
    PRIVATE,
    extractor,
    extractor_encoder,
    private_charge,
    train_extractor,
)
from sfumato.methods.registry import register
from sfumato.privacy import Charge, Plan, PrivateData, charge_of
from sfumato.public.perceptual import (
    Encoder,
    FeatureFacts,
    PerceptualFeatures,
    clouds,
    make_encoder,
    public_basis,
    public_centre,
    public_rows,
    random_basis,
    trained_on,
    weighed_axes,
)

_LABEL, _SHARED, _STOPPING = "perceptual embedding", "shared layers", "early stopping"
_PUBLIC_RECORDS = 2000  # for a centre and a radius; a basis takes at least twice its size
_FINAL_RECORDS = 1000
_METRIC_RECORDS = 1500
# The rule for checking samples: generated records that it is made from, and numbers that their features may take.
_RULE_RECORDS, _RULE_NUMBERS = 3000, 2**26
_RULE_AT_ONCE = 128
_RULE_AGREES = 0.5  # with this share of the generator's pictures, or it is not used
_REDRAWS = 4
_WHOLE = ("latent", "hidden", "width", "directions", "steps", "batch", "encoder_steps")
_WHOLE_OR_AUTO = ("size", "pool", "projection")


@register(
    "mepf",
    title="DP-MEPF",
    paper="Harder et al. 2023, “Pre-trained Perceptual Features Improve Differentially Private Image Generation”",
    kinds=("images",),
    public="optional",
    summary="One noisy mean embedding in the features of a public network or of wavelets; a generator is trained to match it.",
)
class Mepf(Matched):
    """DP-MEPF for images of 8 to 128 pixels, gray or colour, labelled or not.

    **Guarantee**: one release of Σ [φ₁(x), w φ₂(x), 0.1] filed by class, where ‖φ₁‖ = ‖φ₂‖ = 1 because each is divided by its own
    norm, hence bound √(1 + w² + 0.01); with `shared` a second release of the same kind, not filed by class; with `stop` one
    more at ten times the noise multiplier; with `encoder="private"`, before them, the noisy gradient steps of its training. All
    are calibrated jointly. Activations after a ReLU are never negative, so under replace-one the sensitivity is √2 times the
    bound, not twice. Everything after the releases is post-processing. A public network must not have been trained on the
    private data.

    Differs from the paper: counts ride in the release; √2 under replacement; distances are measured with rare directions of the
    features stretched (`weigh`), at a running mean of the generator's embedding (`loss="averaged"`; `"mmd"` leaves out the
    self-pairs of a batch, `"moving-average"` is the paper's); the conv generator learns grain of its own (`texture`) and moves
    its pictures a little at random (`warp`); a picture that a linear discriminant of the released embeddings takes for another
    class is drawn again (`checked`); layers may be averaged over places, weighed alike (`balance`), centred on a public mean and
    clipped to a public radius (`centre`), projected onto a public or random basis (`projection`), or, for low layers, shared by
    all classes (`shared`); the encoder may be wavelet scattering, which needs no public data; sampled pixels get grain.
    """

    HELP = {
        "encoder": "A public network, a pretrained extractor's file, scattering (no public data), or private (by DP-SGD).",
        "encoder_budget": "Share of the squared noise budget for training a private encoder.",
        "encoder_rate": "Chance of each record to be in a step of a private encoder's training.",
        "encoder_steps": "Steps of a private encoder's training.",
        "taps": "Layers of the encoder, such as relu1_2,relu2_2; auto: all that come after a ReLU.",
        "shared": "Layers that are released once for all classes together; none: all layers are filed by class.",
        "shared_budget": "Share of the squared noise budget that the shared layers take.",
        "size": "Side to which images are resized for the network; auto: as the network is used to.",
        "pool": "Most places a side that a layer keeps, by averaging; auto: all.",
        "moments": "1 for the features, 2 for the features and their squares.",
        "second_weight": "Length of the second moment's vector against 1 for the first's; less gives it less of the budget.",
        "balance": "Whether every layer is scaled to the same length, not only all together.",
        "anchor": "Whether a constant beside each layer keeps its strength, which scaling to length 1 forgets.",
        "centre": "Whether features are centred on the mean of the public data and clipped to a radius; needs public data.",
        "radius": "The clipping radius of centred features, a public constant; auto: covers nine tenths of the public data.",
        "projection": "Number of directions to which features are projected; auto: no projection.",
        "basis": "The directions: random, or public for the principal axes of the public data.",
        "stop": "Whether a second release, at ten times the noise multiplier, picks the best generator on the way.",
        "stop_encoder": "The encoder for early stopping; auto: the same as for training.",
        "network": "The generator: auto (classed up to 28 pixels, else resnet), conv, classed (own layers per class), resnet.",
        "latent": "Normal numbers that go into the generator.",
        "hidden": "Width of the conv generator's dense layer.",
        "width": "Channels of the resnet generator at full size; eight times as many at the smallest.",
        "texture": "Whether the conv generator adds grain of its own, its strength learnt for each class and pixel.",
        "warp": "How far the conv generator moves and turns its pictures at random: 0.07 is a pixel in 28, 0 not at all.",
        "checked": "Whether a sampled picture that looks like another class to the released embeddings is drawn again.",
        "weigh": "How far rare directions of the features are stretched when distances are measured: 0 not at all, 1 all alike.",
        "directions": "Directions of the features in which distances are measured, when weigh is above 0.",
        "loss": "averaged: at a running mean; mmd: squared distance without self-pairs; moving-average: of dos Santos et al.",
        "memory": "Share of the running mean that a step keeps.",
        "average_rate": "Learning rate of the moving average.",
        "steps": "Training steps of the generator.",
        "batch": "Generated images per training step, spread evenly over the classes.",
        "learning_rate": "Adam's learning rate at the start; it falls to a twentieth.",
        "grain": "Standard deviation of the grain added to sampled pixels in [0, 1], a public constant; 0 for none.",
        "device": "Where to compute features and train: cpu, cuda, or auto for cuda where there is one.",
        "training_seed": "Public seed of the generator's start and training; auto: the same as seed.",
        "seed": "Public seed of a random basis and the generator; privacy noise never has a seed.",
    }
    RELEASED_BY = (
        "encoder",
        "encoder_budget",
        "encoder_rate",
        "encoder_steps",
        "taps",
        "shared",
        "shared_budget",
        "size",
        "pool",
        "moments",
        "second_weight",
        "balance",
        "anchor",
        "centre",
        "radius",
        "projection",
        "basis",
        "stop",
        "stop_encoder",
        "seed",
    )

    def __init__(
        self,
        *,
        encoder: str = "scattering",
        encoder_budget: float = 0.3,
        encoder_rate: float = 0.02,
        encoder_steps: int = 300,
        taps: str | None = None,
        shared: str | None = None,
        shared_budget: float = 0.2,
        size: int | None = None,
        pool: int | None = None,
        moments: int = 2,
        second_weight: float = 1.0,
        balance: bool = False,
        anchor: bool = False,
        centre: bool = False,
        radius: float | None = None,
        projection: int | None = None,
        basis: str = "random",
        stop: bool = False,
        stop_encoder: str | None = None,
        network: str = "auto",
        latent: int = 90,
        hidden: int = 500,
        width: int = 64,
        texture: bool = True,
        warp: float = 0.07,
        checked: bool = True,
        weigh: float = 0.0,
        directions: int = 600,
        loss: str = "averaged",
        memory: float = 0.7,
        average_rate: float = 1e-3,
        steps: int = 2_000,
        batch: int = 100,
        learning_rate: float = 3e-3,
        grain: float = 0.1,
        device: str = "cpu",
        training_seed: int | None = None,
        seed: int = 0,
    ) -> None:
        self.encoder = encoder
        self.encoder_budget = encoder_budget
        self.encoder_rate = encoder_rate
        self.encoder_steps = encoder_steps
        self.taps = taps
        self.shared = shared
        self.shared_budget = shared_budget
        self.size = size
        self.pool = pool
        self.moments = moments
        self.second_weight = second_weight
        self.balance = balance
        self.anchor = anchor
        self.centre = centre
        self.radius = radius
        self.projection = projection
        self.basis = basis
        self.stop = stop
        self.stop_encoder = stop_encoder
        self.network = network
        self.latent = latent
        self.hidden = hidden
        self.width = width
        self.texture = texture
        self.warp = warp
        self.checked = checked
        self.weigh = weigh
        self.directions = directions
        self.loss = loss
        self.memory = memory
        self.average_rate = average_rate
        self.steps = steps
        self.batch = batch
        self.learning_rate = learning_rate
        self.grain = grain
        self.device = device
        self.training_seed = training_seed
        self.seed = seed

    rule_: Discriminant | None = None  # for checking samples
    _eye: PerceptualFeatures | None = None  # the features that it looks at
    _extractor: nn.Module | None = None  # a private encoder

    # -- the promise -----------------------------------------------------------------------------------------------

    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        self._check(schema)
        releases = (
            charge_of(counted, noise_multiplier * factor, label=label)
            for label, counted, factor in self._outline(schema)
        )
        return (*self._encoder_charge(schema, noise_multiplier), *releases)

    def _reads_while_training(self) -> bool:
        return self.encoder == PRIVATE

    def _encoder_charge(self, schema: Schema, noise_multiplier: float) -> tuple[Charge, ...]:
        if self.encoder != PRIVATE:
            return ()
        charge = private_charge(
            schema,
            noise_multiplier,
            share=self.encoder_budget,
            rate=self.encoder_rate,
            steps=self.encoder_steps,
        )
        return (charge,)

    def _outline(self, schema: Schema) -> list[tuple[str, CountedByClass, float]]:
        """Label, map in outline and noise factor of every release."""
        classed, shared = _names(self.taps), _names(self.shared) or ()
        widths = self._widths(schema, self.encoder, self._all_taps())
        every = tuple(tap for tap in widths if tap not in shared) if classed is None else classed
        parts = [(_LABEL, every, schema.n_classes, 1.0)]
        if shared:
            parts = [
                (_LABEL, every, schema.n_classes, 1 / math.sqrt(1 - self.shared_budget)),
                (_SHARED, shared, 0, 1 / math.sqrt(self.shared_budget)),
            ]
        rest = 1.0 - (self.encoder_budget if self.encoder == PRIVATE else 0.0)
        found = [
            (label, CountedByClass(self._facts(widths, chosen), classes), factor / math.sqrt(rest))
            for label, chosen, classes, factor in parts
        ]
        if self.stop:
            widths = self._widths(schema, self._stop_name(), self._stop_taps())
            facts = self._facts(widths, tuple(widths), plain=True)
            found.append((_STOPPING, CountedByClass(facts, schema.n_classes), 10.0))
        return found

    def _facts(
        self, widths: dict[str, tuple[int, bool]], taps: Sequence[str], *, plain: bool = False
    ) -> FeatureFacts:
        dim = self.moments * sum(widths[tap][0] for tap in taps)
        bound = math.hypot(1.0, self.second_weight if self.moments == 2 else 0.0)
        non_negative = next(iter(widths.values()))[1]
        if plain:
            return FeatureFacts(dim, bound, non_negative)
        if self.projection is not None and self.projection > dim:
            raise BadInput(
                f"mepf's projection asks for {self.projection} directions and there are {dim} features; ask for fewer."
            )
        return FeatureFacts(
            self.projection or dim,
            1.0 if self.centre else bound,
            non_negative and not self.centre and self.projection is None,
        )

    def _widths(
        self, schema: Schema, encoder: str, taps: tuple[str, ...] | None
    ) -> dict[str, tuple[int, bool]]:
        own = encoder == self.encoder
        return _widths(
            encoder,
            schema,
            taps,
            self.size if own else None,
            self.pool if own else None,
            self.anchor,
        )

    def _all_taps(self) -> tuple[str, ...] | None:
        """The layers that one pass must give; None for the encoder's usual ones."""
        taps = _names(self.taps)
        return None if taps is None else (*taps, *(_names(self.shared) or ()))

    def _stop_name(self) -> str:
        return self.stop_encoder or self.encoder

    def _stop_taps(self) -> tuple[str, ...] | None:
        return self._all_taps() if self._stop_name() == self.encoder else None

    # -- the work --------------------------------------------------------------------------------------------------

    def _fit(self, data: PrivateData, noise_multiplier: float, workspace: Workspace) -> None:
        schema = data.schema
        device = _device(self.device)
        self._extractor = None
        if workspace.public is None and (self.centre or self._public_basis):
            raise BadInput(
                "mepf's centre and basis=public are made from public data; give some with --public (in Python: public=)."
            )
        encoder = self._own_encoder(data, noise_multiplier, workspace).to(device)
        outline = {label: (counted, factor) for label, counted, factor in self._outline(schema)}
        shared = _names(self.shared) or ()
        classed = tuple(tap for tap in encoder.taps if tap not in shared)
        parts = [self._feature_map(encoder, classed, workspace)]
        if shared:
            parts.append(self._feature_map(encoder, shared, workspace))
        stopping: PerceptualFeatures | None = None
        if self.stop:
            judge = encoder
            if self._stop_name() != self.encoder:
                judge = self._make_encoder(schema, self._stop_name(), None, workspace).to(device)
            stopping = PerceptualFeatures(
                judge, moments=self.moments, second_weight=self.second_weight, balance=self.balance
            )

        released: list[Part] = []
        for (label, (counted, factor)), phi in zip(
            outline.items(), [*parts, *([stopping] if stopping else [])], strict=True
        ):
            classes = schema.n_classes if counted.labelled else 0
            embedding = MeanEmbedding.release(
                data, CountedByClass(phi, classes), noise_multiplier * factor, label=label
            )
            workspace.log({"event": "release", "label": label})
            released.append(
                Part(
                    phi,
                    embedding,
                    label == _SHARED,
                    self._metric(phi, embedding, schema, workspace),
                )
            )
        judged = released.pop() if self.stop else None

        seed = self.seed if self.training_seed is None else self.training_seed
        generator = self._network(schema, self._kind(schema), seed).to(device)
        matching = PerceptualMatching(
            generator,
            encoder,
            released,
            judged,
            batch=self.batch,
            steps=self.steps,
            loss=self.loss,
            average_rate=self.average_rate,
            memory=self.memory,
        ).to(device)
        train(
            matching,
            matching.step_loss,
            Training(
                steps=self.steps,
                learning_rate=self.learning_rate,
                rounds=20,
                decay=0.86,
                seed=seed,
                checkpoint=workspace.checkpoint_of(),
                log=workspace.log,
                progress=workspace.progress,
            ),
        )
        matching.finish()
        self.loss_ = matching.final(torch.Generator().manual_seed(FINAL_SEED), _FINAL_RECORDS)
        workspace.log({"event": "matched", "training_seed": seed, "loss": self.loss_})
        self.shares_ = released[0].embedding.shares
        self.rule_ = self._rule(matching, released[0]) if self.checked else None
        self.generator_ = generator.to("cpu").eval()
        self._eye = self._plain_map(encoder.to("cpu"), classed)

    # -- samples that look like their class ------------------------------------------------------------------------

    def _rule(self, matching: PerceptualMatching, part: Part) -> Discriminant | None:
        """How to tell a picture's class by the released embeddings; None where there are no classes to tell apart.

        Where most pictures fail, because the noise is large or the generator poor, drawing again costs much and helps little:
        then there is none either.
        """
        there = part.embedding.shares > 0
        if int(there.sum()) < 2:
            return None
        some = max(2, min(_RULE_RECORDS, _RULE_NUMBERS // part.phi.dim))
        rows, labels = matching.made(part, torch.Generator().manual_seed(FINAL_SEED + 1), some)
        rows, labels = rows[there[labels]], labels[there[labels]]
        rule = Discriminant.of(part.embedding, rows, labels)
        if float((rule(rows) == labels).float().mean()) < _RULE_AGREES:
            return None
        plain = rule.before(part.phi)
        return Discriminant(plain.weights.cpu(), plain.offsets.cpu())

    def _draw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        made = super()._draw(labels, generator)
        if self.rule_ is None:
            return made
        eye = self._eye or self._opened_eye()
        doubtful = torch.arange(len(labels))
        for _ in range(_REDRAWS):
            found = [self.rule_(eye.of(some)) for some in made[doubtful].split(_RULE_AT_ONCE)]
            doubtful = doubtful[torch.cat(found) != labels[doubtful]]
            if len(doubtful) == 0:
                break
            made[doubtful] = super()._draw(labels[doubtful], generator)
        return made

    def _opened_eye(self) -> PerceptualFeatures:
        """The features in which samples are checked, for a run that was loaded."""
        schema, taps = self.schema_, self._all_taps()
        if self._extractor is not None:
            encoder = extractor_encoder(
                self._extractor, schema.shape, taps=taps, pool=self.pool, anchor=self.anchor
            )
        else:
            try:
                encoder = make_encoder(
                    self.encoder,
                    schema.shape,
                    layers=taps,
                    size=self.size,
                    pool=self.pool,
                    anchor=self.anchor,
                )
            except BadInput as error:
                raise BadInput(
                    f"Samples of this run are checked with the network {self.encoder}, which cannot be opened: put it back, or "
                    "train again from the release with checked=false, which is free."
                ) from error
        shared = _names(self.shared) or ()
        classed = tuple(tap for tap in encoder.taps if tap not in shared)
        self._eye = self._plain_map(encoder, classed)
        return self._eye

    def _plain_map(self, encoder: Encoder, taps: tuple[str, ...]) -> PerceptualFeatures:
        """φ before it is centred and projected."""
        return PerceptualFeatures(
            encoder,
            taps=taps,
            moments=self.moments,
            second_weight=self.second_weight,
            balance=self.balance,
        )

    def _state(self) -> dict[str, Tensor]:
        state = super()._state()
        if self.rule_ is not None:
            state |= {"rule.weights": self.rule_.weights, "rule.offsets": self.rule_.offsets}
            if self._extractor is not None:
                weights = self._extractor.state_dict()
                state |= {f"encoder.{name}": value for name, value in weights.items()}
        return state

    def _restore(self, state: dict[str, Tensor]) -> None:
        if self._kind(self.schema_) != "resnet" and "network.warp.spread" not in state:
            self.warp = 0.0  # as it was before there was any
        super()._restore(state)
        self._eye = self._extractor = self.rule_ = None
        if "rule.weights" in state:
            self.rule_ = Discriminant(state["rule.weights"], state["rule.offsets"])
            if self.encoder == PRIVATE:
                self._extractor = extractor(self.schema_)
                self._extractor.load_state_dict(
                    {
                        name.removeprefix("encoder."): value
                        for name, value in state.items()
                        if name.startswith("encoder.")
                    }
                )

    @property
    def _public_basis(self) -> bool:
        return self.projection is not None and self.basis == "public"

    def _own_encoder(
        self, data: PrivateData, noise_multiplier: float, workspace: Workspace
    ) -> Encoder:
        taps = self._all_taps()
        for charge in self._encoder_charge(data.schema, noise_multiplier):
            self._extractor = network = train_extractor(data, charge, workspace, seed=self.seed)
            workspace.log({"event": "release", "label": charge.label})
            return extractor_encoder(
                network, data.schema.shape, taps=taps, pool=self.pool, anchor=self.anchor
            )
        return self._make_encoder(data.schema, self.encoder, taps, workspace)

    def _make_encoder(
        self, schema: Schema, name: str, taps: tuple[str, ...] | None, workspace: Workspace
    ) -> Encoder:
        own = name == self.encoder
        workspace.check_unseen(f"The network {name}", trained_on(name))
        return make_encoder(
            name,
            schema.shape,
            layers=taps,
            size=self.size if own else None,
            pool=self.pool if own else None,
            anchor=self.anchor,
            progress=workspace.progress,
        )

    def _feature_map(
        self, encoder: Encoder, taps: tuple[str, ...], workspace: Workspace
    ) -> PerceptualFeatures:
        settings: dict[str, Any] = {
            "taps": taps,
            "moments": self.moments,
            "second_weight": self.second_weight,
            "balance": self.balance,
        }
        phi = PerceptualFeatures(encoder, **settings)
        device = phi.device
        public = workspace.public
        if public is not None and (self.centre or self._public_basis):
            most = max(_PUBLIC_RECORDS, 2 * (self.projection or 0) if self._public_basis else 0)
            rows = public_rows(phi, public, most)
            if self.centre:
                centre, radius = public_centre(rows)
                settings |= {"centre": centre, "radius": self.radius or radius}
                rows = rows - centre
            if self._public_basis:
                settings["basis"] = public_basis(rows, self.projection or 1)
        if self.projection is not None and not self._public_basis:
            settings["basis"] = random_basis(phi.full, self.projection, self.seed)
        return PerceptualFeatures(encoder, **settings).to(device)

    def _metric(
        self,
        phi: PerceptualFeatures,
        embedding: MeanEmbedding,
        schema: Schema,
        workspace: Workspace,
    ) -> Tensor | None:
        """In which directions differences count: the principal axes of public images, or of random ones, weighed."""
        if self.weigh == 0:
            return None
        images = workspace.public or clouds(schema.shape, _METRIC_RECORDS)
        rows = public_rows(phi, images, _METRIC_RECORDS)
        noise = (embedding.noise_std * len(embedding.shares)) ** 2
        return weighed_axes(rows, self.directions, self.weigh, noise).to(phi.device)

    def _auto(self, schema: Schema) -> str:
        return "classed" if max(schema.shape[1:]) <= 28 else "resnet"

    def _network(self, schema: Schema, kind: str, seed: int = 0) -> nn.Module:
        latent = self._latent(schema)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if kind != "resnet":
                made = ClassedGenerator if kind == "classed" else ConvGenerator
                settings: dict[str, Any] = {"texture": self.texture, "warp": self.warp}
                return made(schema.shape, schema.n_classes, latent, self.hidden, **settings)
            return ResNetGenerator(schema.shape, schema.n_classes, latent, self.width)

    def _latent(self, schema: Schema) -> int:
        return 90 if self.latent is None else self.latent

    def _check(self, schema: Schema) -> None:
        for name in (*_WHOLE, *_WHOLE_OR_AUTO):
            value: Any = getattr(self, name)
            if value is None and name in _WHOLE_OR_AUTO:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise self._bad(name, "a whole number of at least 1")
        if self.moments not in (1, 2):
            raise self._bad("moments", "1 or 2")
        for name in ("learning_rate", "average_rate", "second_weight"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise self._bad(name, "positive")
        if self.radius is not None and not self.radius > 0:
            raise self._bad("radius", "positive, or auto")
        if self.radius is not None and not self.centre:
            raise BadInput("mepf's radius goes with centre=true; set that or leave radius out.")
        for name in ("grain", "warp", "weigh"):
            if not 0 <= getattr(self, name) <= 1:
                raise self._bad(name, "between 0 and 1")
        if not 0 <= self.memory < 1:
            raise self._bad("memory", "at least 0 and below 1")
        for name in ("shared_budget", "encoder_budget"):
            if not 0 < getattr(self, name) < 1:
                raise self._bad(name, "between 0 and 1")
        if not 0 < self.encoder_rate <= 1:
            raise self._bad("encoder_rate", "above 0 and at most 1")
        for name, known in (
            ("network", ("auto", "conv", "classed", "resnet")),
            ("loss", LOSSES),
            ("basis", ("random", "public")),
            ("device", ("cpu", "cuda", "auto")),
        ):
            if getattr(self, name) not in known:
                raise self._bad(name, f"one of {', '.join(known)}")
        if self.encoder == PRIVATE and self.size is not None:
            raise BadInput("A private encoder takes images as they are; leave mepf's size out.")
        if self.stop_encoder == PRIVATE:
            raise self._bad("stop_encoder", "a public network or scattering")
        if self.stop_encoder is not None and not self.stop:
            raise BadInput("mepf's stop_encoder goes with stop=true; set that or leave it out.")
        shared, classed = _names(self.shared), _names(self.taps)
        if shared is not None:
            known_taps = self._widths(schema, self.encoder, self._all_taps())
            if any(tap not in known_taps for tap in shared) or set(shared) & set(classed or ()):
                raise self._bad(
                    "shared",
                    f"layers of the encoder ({', '.join(known_taps)}) that taps leaves out",
                )
            if set(shared) == set(known_taps):
                raise self._bad("shared", "some of the layers; one at least must be filed by class")


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip())


@lru_cache(maxsize=64)
def _widths(
    encoder: str,
    schema: Schema,
    taps: tuple[str, ...] | None,
    size: int | None,
    pool: int | None,
    anchor: bool,
) -> dict[str, tuple[int, bool]]:
    """Each layer's width and whether it is never negative: public facts of the network, found without its weights."""
    if encoder == PRIVATE:
        network = extractor(schema)
        made = extractor_encoder(network, schema.shape, taps=taps, pool=pool, anchor=anchor)
    else:
        made = make_encoder(
            encoder, schema.shape, layers=taps, size=size, pool=pool, anchor=anchor, weights=False
        )
    return {
        tap: (width, made.non_negative) for tap, width in zip(made.taps, made.widths, strict=True)
    }


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput("mepf's device=cuda needs a GPU that torch can use; take device=auto.")
    return torch.device(name)
