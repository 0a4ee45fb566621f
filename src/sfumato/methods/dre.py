"""DP-DRE: a density ratio between private and public features re-weights the public ones ("Large-scale public data improves
differentially private image generation quality", §3.2 and algorithm 1).

    1.  v = codec.encode(x), or a layer of a public network, standardised by the public features         (public)
    2.  D(v): a two-layer network tells private from public features; every step adds the clipped gradients of a Poisson sample
        of the records, noise, and the plain gradient of a public batch                                  (the paid steps)
    3.  p_private(v) ≈ D(v) / (1 − D(v)) · p_public(v): weights on the public features                    (free)
    4.  draw public features by weight, decode them                                                      (free)

Private: the records, in step 2 (and in a noisy count of the classes). Public: codec, public data and their features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.methods.base import Workspace
from sfumato.methods.counting import count, with_counts
from sfumato.methods.counts import apportion
from sfumato.methods.descent import TrainingState, descend
from sfumato.methods.latent import LatentSynthesizer
from sfumato.methods.registry import register
from sfumato.privacy import Charge, GradientSum, Plan, PrivateData, enforced_gradient_bound, records
from sfumato.privacy.memory import RememberedRows
from sfumato.public.perceptual import Encoder, make_encoder, trained_on

_LABEL = "discriminator gradients"
_AT_ONCE = 200  # images in the encoder at a time
_LEAST_SIDE = 32  # smaller images are enlarged to it: networks halve the side five times
Look = Callable[[Tensor], Tensor]


@register(
    "dre",
    title="DP-DRE",
    paper="“Large-Scale Public Data Improves Differentially Private Image Generation Quality”, §3.2",
    kinds=("images",),
    public="required",
    summary="A small private discriminator re-weights public features, which a public decoder turns into images.",
)
class Dre(LatentSynthesizer):
    """DP-DRE for labelled and unlabelled images, with public data whose support covers the private.

    **Guarantee**: two charges, composed and calibrated jointly: noisy class counts (bound 1), and `steps` Poisson-sampled sums of
    the discriminator's gradients, each record's clipped to `clip`. Sums are divided by the expected size of a sample.

    Differs from the paper: only the private half of the loss is clipped and noised, since the public half needs neither (the
    paper clips a record together with a public partner); the weights are averaged over the second half of the steps, against
    the noise; features are standardised by the public ones; with labels there is one ratio per class,
    log p(v | y) / p_public(v), on a common hidden layer, so that public data need no labels; the discriminator may look with
    another public network (`encoder`) than the codec that draws; the largest ratios are capped and the rest raised to a power
    (`cap=False, sharpness=1` is the paper's), which suits private data that are a part of the public ones, noise or no noise.
    """

    HELP = {
        "codec": "Public codec: dct, dct:K, pca:K, adain, ic-gan:PATH or the path of a pretrained one.",
        "encoder": "Public network that the discriminator looks with; none: the codec itself.",
        "layer": "Layer of that network, averaged over places; auto: its last before the classes.",
        "width": "Hidden units of the discriminator, 1 to 16 in the paper; more follow the ratio better and take more noise.",
        "rate": "Share of the records in a step's Poisson sample; expected batch = rate × number of records.",
        "steps": "Discriminator steps.",
        "clip": "Norm to which each record's gradient is clipped.",
        "learning_rate": "Adam's learning rate.",
        "public_batch": "Public records per step.",
        "public_records": "Public records that are kept as candidates for samples.",
        "sharpness": "Power of the ratio that weighs public records; 1 as in the paper, above 1: surer.",
        "cap": "Whether ratios above their median under the weights count as that median, so that few records cannot take all.",
        "grain": "Standard deviation of the grain added to sampled pixels in [0, 1], a public constant; 0 for none.",
        "seed": "Public seed of the discriminator's start and of public batches; privacy noise never has a seed.",
    }

    def __init__(
        self,
        *,
        codec: str = "pca:64",
        encoder: str | None = None,
        layer: str | None = None,
        width: int = 16,
        rate: float = 0.05,
        steps: int = 400,
        clip: float = 1.0,
        learning_rate: float = 0.03,
        public_batch: int = 1000,
        public_records: int = 30_000,
        sharpness: float = 1.5,
        cap: bool = True,
        grain: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.codec = codec
        self.encoder = encoder
        self.layer = layer
        self.width = width
        self.rate = rate
        self.steps = steps
        self.clip = clip
        self.learning_rate = learning_rate
        self.public_batch = public_batch
        self.public_records = public_records
        self.sharpness = sharpness
        self.cap = cap
        self.grain = grain
        self.seed = seed

    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        self._check()
        return self._charges(schema, noise_multiplier)

    def _charges(self, schema: Schema, noise_multiplier: float) -> tuple[Charge, Charge]:
        heads = max(1, schema.n_classes)
        steps = Charge(
            label=_LABEL,
            bound=enforced_gradient_bound(self.clip),
            noise_multiplier=noise_multiplier,
            rate=self.rate,
            steps=self.steps,
            dimension=(self._looks(schema) + 1) * self.width + (self.width + 1) * heads,
            sampler="floating",
        )
        return with_counts(schema, steps)

    def _fit(self, data: PrivateData, noise_multiplier: float, workspace: Workspace) -> None:
        counts, steps = self._charges(data.schema, noise_multiplier)
        self.codec_ = self._open_codec(data.schema, workspace)
        counted = count(data, counts)
        workspace.log({"event": "release", "label": counts.label})
        self.shares_ = counted.shares

        random = torch.Generator().manual_seed(self.seed)
        pixels, kinds = self._public_images(workspace, random)
        vectors = self.codec_.encode(pixels)
        look = self._look(data.schema, workspace)
        seen = vectors if self.encoder is None else look(pixels)
        # The memory is private and ends with this function.
        features = _Standardised(look if self.encoder is None else RememberedRows(look), seen)
        public = features(seen)
        network = self._network(features.dim)
        average = copy.deepcopy(network).requires_grad_(False)
        optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        gradients = GradientSum(network, _taken_for_public, bound=self.clip, inputs=features.inputs)
        state = TrainingState(
            {"discriminator": network, "average": average},
            {"discriminator": optimiser},
            random=random,
        )
        for step in descend(data, steps, state, workspace, title="Training the discriminator"):
            noisy = step.noisy_gradient(gradients) / (self.rate * counted.size)
            gradients.assign(noisy)
            chosen = torch.randint(len(public), (self.public_batch,), generator=random)
            # Each class is told from the same public records, weighted as often as it occurs itself.
            loss = (functional.softplus(network(public[chosen])) @ self.shares_).mean()
            loss.backward()
            optimiser.step()
            _average(average, network, step.index, self.steps)
            state.facts["public loss"] = float(loss.detach())
        with torch.no_grad():
            ratios = torch.cat([average(part) for part in public.split(10_000)])  # log D/(1 − D)
        self.vectors_, self.log_ratio_ = vectors, ratios
        for fact in self._sanity(kinds):
            workspace.log(fact)

    def public_weights(self) -> Tensor:
        """(classes, public records): the chance that a sample of each class is that public record; rows sum to 1."""
        ratios = self.log_ratio_.T.to(torch.float64)  # (classes, records)
        if self.cap:
            ratios = torch.minimum(ratios, _weighted_median(ratios))
        return (ratios * self.sharpness).softmax(dim=1)

    def _sanity(self, kinds: Tensor | None) -> list[dict[str, object]]:
        """The paper's check: how much weight falls on each class of the public data, where these have classes."""
        if kinds is None:
            return []
        weights = self.shares_.to(torch.float64) @ self.public_weights()
        total = torch.zeros(int(kinds.max()) + 1, dtype=torch.float64)
        total.index_add_(0, kinds.clamp(min=0), torch.where(kinds >= 0, weights, 0.0))
        return [{"event": "weights", "of public classes": [round(w, 4) for w in total.tolist()]}]

    def _sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        labels = apportion(self.shares_, n, generator)
        weights = self.public_weights()
        chosen = torch.empty(n, dtype=torch.int64)
        for label in labels.unique().tolist():
            places = (labels == label).nonzero()[:, 0]
            chosen[places] = torch.multinomial(
                weights[label], len(places), replacement=True, generator=generator
            )
        images = torch.empty(n, *self.schema_.shape, dtype=torch.uint8)
        for at in torch.arange(n).split(1000):
            pixels = self.codec_.decode(self.vectors_[chosen[at]], generator=generator)
            pixels += torch.randn(pixels.shape, generator=generator) * self.grain
            images[at] = (pixels.clamp_(0, 1) * 255).round().to(torch.uint8)
        return images, labels if self.schema_.labelled else None

    def _state(self) -> dict[str, Tensor]:
        ours = {"shares": self.shares_, "vectors": self.vectors_, "log_ratio": self.log_ratio_}
        return {**ours, **self._codec_state()}

    def _restore(self, state: dict[str, Tensor]) -> None:
        self.shares_, self.vectors_ = state["shares"], state["vectors"]
        self.log_ratio_ = state["log_ratio"]
        self._restore_codec(state)

    def _encoder(self, schema: Schema, *, weights: bool = True) -> Encoder:
        assert self.encoder is not None
        made = partial(
            make_encoder,
            self.encoder,
            schema.shape,
            size=max(_LEAST_SIDE, *schema.shape[1:]),
            pool=1,
            weights=weights,
        )
        return made(layers=made().taps[-1:] if self.layer is None else (self.layer,))

    def _looks(self, schema: Schema) -> int:
        """How many numbers the discriminator sees of a record."""
        if self.encoder is None:
            return self._facts(schema).dim
        return sum(self._encoder(schema, weights=False).widths)

    def _look(self, schema: Schema, workspace: Workspace) -> Look:
        if self.encoder is None:
            return self.codec_.encode
        workspace.check_unseen(f"The network {self.encoder}", trained_on(self.encoder))
        encoder = self._encoder(schema)

        def look(pixels: Tensor) -> Tensor:
            with torch.no_grad():
                return torch.cat([encoder(part)[0] for part in pixels.split(_AT_ONCE)])

        return look

    def _public_images(
        self, workspace: Workspace, random: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """Pixels (records, …), and their public labels if they have any."""
        public = workspace.public
        assert public is not None  # `fit` saw to it
        chosen = torch.randperm(len(public), generator=random)[: self.public_records].sort().values
        images, labels = torch.from_numpy(public.images[chosen.numpy()]), public.labels
        kinds = None if labels is None else torch.from_numpy(labels[chosen.numpy()])
        return Batch(images, None).pixels(), kinds

    def _network(self, dim: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            hidden = nn.Linear(dim, self.width)
        heads = nn.Linear(self.width, len(self.shares_))
        # Ratio 1 everywhere to begin with.
        nn.init.zeros_(heads.weight)
        nn.init.zeros_(heads.bias)
        return nn.Sequential(hidden, nn.LeakyReLU(0.2), heads)

    def _check(self) -> None:
        for name in ("width", "steps", "public_batch", "public_records"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadInput(f"dre's {name} must be a whole number of at least 1, not {value!r}.")
        for name in ("clip", "learning_rate", "sharpness"):
            if not getattr(self, name) > 0:
                raise BadInput(f"dre's {name} must be positive, not {getattr(self, name)}.")
        if self.layer is not None and self.encoder is None:
            raise BadInput("dre's layer goes with an encoder; name one or leave layer out.")
        if not 0 < self.rate <= 1:
            raise BadInput(f"dre's rate must lie in (0, 1], not {self.rate}.")
        if not 0 <= self.grain <= 1:
            raise BadInput(f"dre's grain must lie between 0 and 1, not {self.grain}.")


class _Standardised:
    """What is seen of records, with mean 0 and variance 1 per direction among the public ones, ÷ √dim; clamped, so that none is
    far out."""

    def __init__(self, look: Look, public: Tensor) -> None:
        self.look = look
        self.mean = public.mean(dim=0)
        spread = public.std(dim=0, correction=0)
        self.scale = spread.clamp(min=max(1e-3 * float(spread.max()), 1e-12))
        self.dim = public.shape[1]

    def __call__(self, vectors: Tensor) -> Tensor:
        return ((vectors - self.mean) / self.scale).clamp(-5, 5) / self.dim**0.5

    def inputs(self, batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
        pixels, *labels = records(batch, random)
        label = labels[0] if labels else torch.zeros(len(pixels), dtype=torch.int64)
        return self(self.look(pixels)), label


def _taken_for_public(network: nn.Module, features: Tensor, label: Tensor) -> Tensor:
    """−log D(v): large where a private record looks public; by the head of its class."""
    return functional.softplus(-network(features).gather(1, label[:, None])[:, 0])


def _weighted_median(ratios: Tensor) -> Tensor:
    """(classes, 1): the log-ratio that half of the weight lies above, where weights are the ratios themselves."""
    down = ratios.sort(dim=1, descending=True).values
    half = (down.softmax(dim=1).cumsum(dim=1) < 0.5).sum(dim=1, keepdim=True)
    return down.gather(1, half.clamp(max=down.shape[1] - 1))


def _average(average: nn.Module, network: nn.Module, step: int, steps: int) -> None:
    """The mean of the weights over the second half of the steps."""
    behind = step - steps // 2
    with torch.no_grad():
        for kept, new in zip(average.parameters(), network.parameters(), strict=True):
            kept.lerp_(new, 1.0 if behind <= 0 else 1 / (behind + 1))
