"""DP-MERF: differentially private mean embeddings with random features (Harder, Adamczewski and Park 2021; thesis, app. B).

    1.  φ(x) = [cos(Wx), sin(Wx)] / √F        random Fourier features, ‖φ(x)‖ = 1             (public)
    2.  μ̃  = 1/n (Σ φ(xᵢ) ⊗ yᵢ + noise)      one noisy sum, filed by class                    (the release)
    3.  min over θ  ‖ μ̃ − E φ(G_θ(z, y)) ⊗ y ‖²   train a generator to have the same embedding    (free)

Private: the records, in step 2 only. Public: pixel range, shape and classes (Schema), the squared length scale, W's seed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sfumato.data import Schema
from sfumato.embedding import CountedByClass, MeanEmbedding
from sfumato.errors import BadInput
from sfumato.features import FourierFeatures
from sfumato.generators import ConvGenerator, Training, train
from sfumato.methods.base import Synthesizer, Workspace
from sfumato.methods.registry import register
from sfumato.privacy import Plan, PrivateData, charge_of

_LABEL = "mean embedding"


@register(
    "merf",
    title="DP-MERF",
    paper="Harder et al. 2021, “DP-MERF: Differentially Private Mean Embeddings with Random Features”",
    kinds=("images",),
    summary="One noisy mean embedding in random Fourier features; a small generator is trained to match it.",
)
class Merf(Synthesizer):
    """DP-MERF for labelled and unlabelled images.

    **Guarantee**: one release of Σ [φ(x), 0.1] filed by class, with ‖φ(x)‖ = 1, hence bound √1.01; the Gaussian noise is
    calibrated to the budget exactly. Everything after the release is post-processing.

    Differs from the paper: class counts ride in the same release (half a per cent more noise), so imbalanced and absent
    classes are handled and the number of records may be private; the loss leaves out the b self-pairs of a batch; each step
    matches a random block of the frequencies, an unbiased estimate of the same loss at a fraction of its cost; sampled
    pixels get a little grain.
    """

    RELEASED_BY = ("features", "length_scale", "seed")
    HELP = {
        "features": "Number of random features, an even number; more follow the kernel better and take more noise in all.",
        "length_scale": "Squared length scale of the kernel on pixels in [0, 1], a public constant; auto: 127/784 per pixel.",
        "latent": "Normal numbers that go into the generator.",
        "hidden": "Width of the generator's dense layer.",
        "steps": "Training steps of the generator.",
        "batch": "Generated records per training step, spread evenly over the classes.",
        "block": "Frequencies compared in one training step; fewer is faster and noisier.",
        "learning_rate": "Adam's learning rate; multiplied by 0.9 after each fifth of the steps.",
        "grain": "Standard deviation of the grain added to sampled pixels in [0, 1], a public constant; 0 for none.",
        "seed": "Public seed of the frequencies and the generator; privacy noise never has a seed.",
    }

    def __init__(
        self,
        *,
        features: int = 10_000,
        length_scale: float | None = None,
        latent: int = 5,
        hidden: int = 200,
        steps: int = 3_000,
        batch: int = 100,
        block: int = 500,
        learning_rate: float = 0.01,
        grain: float = 0.05,
        seed: int = 0,
    ) -> None:
        self.features = features
        self.length_scale = length_scale
        self.latent = latent
        self.hidden = hidden
        self.steps = steps
        self.batch = batch
        self.block = block
        self.learning_rate = learning_rate
        self.grain = grain
        self.seed = seed

    def plan(self, schema: Schema, noise_multiplier: float) -> Plan:
        self._check()
        return (charge_of(_Shape(schema, self.features), noise_multiplier, label=_LABEL),)

    def _fit(self, data: PrivateData, noise_multiplier: float, workspace: Workspace) -> None:
        fourier = self._fourier(data.schema)
        embedding = MeanEmbedding.release(
            data, CountedByClass(fourier, data.schema.n_classes), noise_multiplier, label=_LABEL
        )
        workspace.log({"event": "release", "label": _LABEL})
        self.shares_ = embedding.shares
        self.generator_ = self._network(data.schema)
        matching = _Matching(self.generator_, fourier, embedding, self.batch, self.block)
        train(
            self.generator_,
            matching.loss,
            Training(
                steps=self.steps,
                learning_rate=self.learning_rate,
                seed=self.seed,
                checkpoint=workspace.checkpoint,
                log=workspace.log,
                progress=workspace.progress,
            ),
        )

    def _sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        labels = apportion(self.shares_, n, generator)
        self.generator_.eval()
        with torch.no_grad():
            images = torch.cat([self.generator_(part, generator) for part in labels.split(1000)])
        # A generator of few dimensions leaves most directions without variance, and a linear classifier trained on its
        # samples builds on them; a little grain takes that away.
        images = images.add_(
            torch.randn(images.shape, generator=generator), alpha=self.grain
        ).clamp_(0, 1)
        return (images * 255).round().to(torch.uint8), labels if self.schema_.labelled else None

    def _state(self) -> dict[str, Tensor]:
        state = {f"network.{name}": value for name, value in self.generator_.state_dict().items()}
        return {**state, "shares": self.shares_}

    def _restore(self, state: dict[str, Tensor]) -> None:
        self.shares_ = state["shares"]
        self.generator_ = self._network(self.schema_)
        self.generator_.load_state_dict(
            {
                name.removeprefix("network."): t
                for name, t in state.items()
                if name.startswith("network.")
            }
        )
        self.generator_.eval()

    def _fourier(self, schema: Schema) -> FourierFeatures:
        # The papers' constant for Fashion-MNIST, scaled by the number of pixels since squared distances grow with it.
        scale = self.length_scale if self.length_scale is not None else 127 / 784 * schema.dim
        return FourierFeatures(schema.dim, self.features, scale, seed=self.seed)

    def _network(self, schema: Schema) -> ConvGenerator:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return ConvGenerator(schema.shape, schema.n_classes, self.latent, self.hidden)

    def _check(self) -> None:
        for name in ("features", "latent", "hidden", "steps", "batch", "block"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadInput(
                    f"merf's {name} must be a whole number of at least 1, not {value!r}."
                )
        if self.features % 2:
            raise BadInput(
                f"merf's features must be even (sines and cosines come in pairs), not {self.features}."
            )
        if not self.learning_rate > 0:
            raise BadInput(f"merf's learning_rate must be positive, not {self.learning_rate}.")
        if not 0 <= self.grain <= 1:
            raise BadInput(f"merf's grain must lie between 0 and 1, not {self.grain}.")
        if self.length_scale is not None and not self.length_scale > 0:
            raise BadInput(f"merf's length_scale must be positive, not {self.length_scale}.")


class _Shape(CountedByClass):
    """The release's shape and bound without its frequencies: enough for a plan."""

    class _Unit(FourierFeatures):
        def __init__(self, features: int) -> None:
            self.dim = features

    def __init__(self, schema: Schema, features: int) -> None:
        super().__init__(self._Unit(features), schema.n_classes)


class _Matching:
    """Step 3's loss: the squared distance between the released embedding and the generator's, on a block of frequencies."""

    def __init__(
        self,
        network: ConvGenerator,
        fourier: FourierFeatures,
        embedding: MeanEmbedding,
        batch: int,
        block: int,
    ) -> None:
        self.network, self.fourier, self.embedding = network, fourier, embedding
        classes = len(embedding.shares)
        self.per_class = max(2, batch // classes)
        self.labels = torch.arange(classes).repeat_interleave(self.per_class)
        self.frequencies = fourier.dim // 2
        self.blocks = max(1, round(self.frequencies / block))

    def loss(self, step: int, generator: torch.Generator) -> Tensor:
        classes = len(self.embedding.shares)
        images = self.network(self.labels, generator)
        # Frequencies are drawn independently, so taking the blocks in turn is a random choice already.
        block = step % self.blocks
        start, stop = (self.frequencies * b // self.blocks for b in (block, block + 1))
        angles = (
            self.fourier.frequencies[start:stop] @ images.flatten(1).T
        )  # (block, classes · per_class)
        waves = torch.cat([angles.cos(), angles.sin()]) / self.frequencies**0.5
        sums = waves.view(len(waves), classes, self.per_class).sum(dim=2).T  # (classes, 2 · block)
        columns = torch.cat(
            [torch.arange(start, stop), torch.arange(start, stop) + self.frequencies]
        )
        share = (stop - start) / self.frequencies
        return self.embedding.mmd2(sums, self.per_class, share, columns) / share


def apportion(shares: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """`n` labels in the proportion of `shares` (largest remainders), in random order."""
    exact = shares.to(torch.float64) / shares.to(torch.float64).sum() * n
    counts = exact.floor().to(torch.int64)
    missing = n - int(counts.sum())
    counts[(exact - counts).argsort(descending=True, stable=True)[:missing]] += 1
    labels = torch.arange(len(shares)).repeat_interleave(counts)
    return labels[torch.randperm(n, generator=generator)]
