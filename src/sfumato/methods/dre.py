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
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from sfumato.data import Batch, Schema
from sfumato.errors import BadInput
from sfumato.generators.gan import RatioNetwork, move_average
from sfumato.generators.networks import seeded
from sfumato.methods.adversarial_losses import labelled
from sfumato.methods.base import Workspace
from sfumato.methods.counts import count, count_query
from sfumato.methods.decoded import Decoded
from sfumato.methods.parts import Stepped
from sfumato.methods.registry import MethodInfo
from sfumato.methods.settings import setting
from sfumato.privacy import Budget, Gate, Query, gradient_query
from sfumato.public.perceptual import Features, PooledLayer, Standardised, trained_on

_LABEL = "discriminator gradients"


class Dre(Decoded, Stepped):
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

    info = MethodInfo(
        name="dre",
        title="DP-DRE",
        paper="“Large-Scale Public Data Improves Differentially Private Image Generation Quality”, §3.2",
        kinds=("images",),
        public="required",
        summary="A small private discriminator re-weights public features, which a public decoder turns into images.",
    )
    TINY: ClassVar = {"codec": "dct:16", "rate": 0.5, "steps": 12, "public_batch": 20, "width": 4}

    codec: str = setting(default="pca:64")
    encoder: str | None = setting(
        "Public network that the discriminator looks with; none: the codec itself.", default=None
    )
    layer: str | None = setting(
        "Layer of that network, averaged over places; auto: its last before the classes.",
        default=None,
    )
    width: int = setting(
        "Hidden units of the discriminator, 1 to 16 in the paper; more follow the ratio better and take more noise.",
        default=16,
        low=1,
    )
    rate: float = setting(default=0.05)
    steps: int = setting("Discriminator steps.", default=400)
    learning_rate: float = setting("Adam's learning rate.", default=0.03, above=0)
    public_batch: int = setting("Public records per step.", default=1000, low=1)
    public_records: int = setting(
        "Public records that are kept as candidates for samples, at most; more are drawn from by the public seed.",
        default=30_000,
        low=1,
    )
    sharpness: float = setting(
        "Power of the ratio that weighs public records; 1 as in the paper, above 1: surer; 0: all alike, the paper's check.",
        default=1.5,
        low=0,
    )
    cap: bool = setting(
        "Whether ratios above their median under the weights count as that median, so that few records cannot take all.",
        default=True,
    )
    grain: float = setting(default=0.0)

    def _check(self, schema: Schema) -> None:
        if self.layer is not None and self.encoder is None:
            raise BadInput("dre's layer goes with an encoder; name one or leave layer out.")

    def queries(self, schema: Schema, budget: Budget) -> list[Query]:
        if self.encoder is None:
            seen = self.codec_facts(schema).dim
        else:
            seen = PooledLayer(self.encoder, schema.shape, self.layer, weights=False).dim
        network = RatioNetwork(seen, self.width, max(1, schema.n_classes))
        return [count_query(schema), gradient_query(_LABEL, network, **self.sampled)]

    def _fit(self, data: Gate, run: Workspace) -> None:
        codec = self.open_codec(data.schema, run)
        counts = count(data)
        self.shares_ = counts.shares
        random = torch.Generator().manual_seed(self.seed)
        pixels, kinds = _public_images(run, random, self.public_records)
        of_records: Features = lambda pixels: codec.encode(Batch(pixels, None))  # noqa: E731
        seen = self.vectors_ = of_records(pixels)
        if self.encoder is not None:
            run.check_unseen(f"The network {self.encoder}", trained_on(self.encoder))
            layer = PooledLayer(self.encoder, data.schema.shape, self.layer)
            seen, of_records = layer(pixels), data.remember(layer, each="record")
        standardised = Standardised(seen)
        public = standardised(seen)

        def inputs(batch: Batch, random: torch.Generator) -> tuple[Tensor, ...]:
            images, labels = labelled(batch, random)
            return standardised(of_records(images)), labels

        network = seeded(self.seed, RatioNetwork, public.shape[1], self.width, len(self.shares_))
        network, public = network.to(self.place), public.to(self.place)
        average = copy.deepcopy(network).requires_grad_(False)
        adam = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        training = run.training(
            "Training the discriminator", random, network=network, average=average, adam=adam
        )
        for step in training(data.steps(_LABEL)):
            step.gradient(network, _looks_public, inputs=inputs, over=self.rate * counts.size)
            chosen = torch.randint(len(public), (self.public_batch,), generator=random)
            # Each class is told from the same public records, weighted as often as it occurs itself.
            told = functional.softplus(network(public[chosen.to(self.place)]))
            loss = (told @ self.shares_.to(self.place)).mean()
            loss.backward()
            adam.step()
            # The mean of the weights over the second half of the steps.
            move_average(average, network, 1 - 1 / (1 + max(0, step.index - self.steps // 2)))
            training.facts["public loss"] = loss.detach()
        with torch.no_grad():
            ratios = [average(some) for some in public.split(10_000)]
        self.log_ratio_ = torch.cat(ratios).cpu()  # log D ÷ (1 − D), (public records, classes)
        if kinds is not None:
            run.log({"event": "weights", "of public classes": self._weights_of(kinds)})

    def public_weights(self) -> Tensor:
        """(classes, public records): the chance that a sample of each class is that public record; rows sum to 1."""
        ratios = self.log_ratio_.T.to(torch.float64)  # (classes, records)
        if self.cap:
            ratios = torch.minimum(ratios, _weighted_median(ratios))
        return (ratios * self.sharpness).softmax(dim=1)

    def _weights_of(self, kinds: Tensor) -> list[float]:
        """The paper's check: how much weight falls on each class of the public data."""
        weights = self.shares_.to(torch.float64) @ self.public_weights()
        total = torch.zeros(int(kinds.max()) + 1, dtype=torch.float64)
        total.index_add_(0, kinds.clamp(min=0), torch.where(kinds >= 0, weights, 0.0))
        return [round(weight, 4) for weight in total.tolist()]

    def _sample(self, labels: Tensor, random: torch.Generator) -> Tensor:
        weights = self.public_weights()
        chosen = torch.empty_like(labels)
        for label in labels.unique().tolist():
            places = (labels == label).nonzero()[:, 0]
            chosen[places] = torch.multinomial(
                weights[label], len(places), replacement=True, generator=random
            )
        return self.decode(self.vectors_[chosen], random)

    def _earlier(self, state: dict[str, Tensor]) -> dict[str, Any]:
        own = {"vectors_": state["vectors"], "log_ratio_": state["log_ratio"]}
        return {**super()._earlier(state), **own}


def _public_images(
    run: Workspace, random: torch.Generator, most: int
) -> tuple[Tensor, Tensor | None]:
    """Pixels (records, …), and their public labels if they have any."""
    public = run.public
    assert public is not None  # `fit` saw to it
    chosen = torch.randperm(len(public), generator=random)[:most].sort().values.numpy()
    kinds = None if public.labels is None else torch.from_numpy(public.labels[chosen])
    return Batch(torch.from_numpy(public.images[chosen]), None).pixels(), kinds


def _looks_public(network: nn.Module, features: Tensor, label: Tensor) -> Tensor:
    """−log D(v): large where a private record looks public; by the head of its class."""
    return functional.softplus(-network(features).gather(1, label[:, None])[:, 0])


def _weighted_median(ratios: Tensor) -> Tensor:
    """(classes, 1): the log-ratio that half of the weight lies above, where weights are the ratios themselves."""
    down = ratios.sort(dim=1, descending=True).values
    half = (down.softmax(dim=1).cumsum(dim=1) < 0.5).sum(dim=1, keepdim=True)
    return down.gather(1, half.clamp(max=down.shape[1] - 1))
