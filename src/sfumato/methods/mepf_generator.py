"""DP-MEPF's generators, and the check of what they draw: a part of the method, as `mepf_features` is.

A picture that a linear rule of the released embeddings (`mepf_matching.Discriminant`) takes for another class than the one it was
drawn for is drawn again. Settings and numbers here come after the releases: all of it is public and free.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.generators import ClassedGenerator, ConvGenerator
from sfumato.generators.resnet import ResNetGenerator
from sfumato.methods.matched import MatchedImages
from sfumato.methods.mepf_features import Perceived
from sfumato.methods.mepf_matching import Discriminant, PerceptualDistance
from sfumato.methods.saved import part
from sfumato.methods.settings import setting
from sfumato.public.perceptual import PerceptualFeatures

_REDRAWS, _RULE_AT_ONCE = 4, 128


class CheckedImages(Perceived, MatchedImages):
    """Images of a generator, of which `rule_`, if there is one, has a say."""

    network: str = setting(
        "The generator: auto (classed up to 28 pixels, else resnet), conv, classed (own layers per class), resnet.",
        default="auto",
        choices=("auto", "conv", "classed", "resnet"),
    )
    latent: int = setting("Normal numbers that go into the generator.", default=90)
    hidden: int = setting("Width of the conv generator's dense layer.", default=500)
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

    def build(self, schema: Schema) -> None:
        super().build(schema)
        self._plain: PerceptualFeatures | None = None  # φ before it is centred, to check samples

    def auto(self, schema: Schema) -> str:
        return "classed" if max(schema.shape[1:]) <= 28 else "resnet"

    def generator(self, kind: str, schema: Schema) -> nn.Module:
        facts = (schema.shape, schema.n_classes, self.latent)
        if kind == "resnet":
            return ResNetGenerator(*facts, self.width)
        made = ClassedGenerator if kind == "classed" else ConvGenerator
        return made(*facts, self.hidden, texture=self.texture, warp=self.warp)

    def take_rule(self, distance: PerceptualDistance) -> None:
        """Of the generator that is kept, to check its samples by."""
        self.rule_: Discriminant | None = distance.rule() if self.checked else None

    def made(self, labels: Tensor, random: torch.Generator) -> Tensor:
        """Before grain; what looks like another class is drawn again."""
        made = super().made(labels, random)
        rule = self.rule_
        if rule is None:
            return made
        phi = self._checking_features()
        # A rule of a version before 0.3 may be one of features that there are no more (anchored, or of fewer layers).
        if rule.weights.shape[1] != phi.dim:
            return made
        doubtful = torch.arange(len(labels))
        for _ in range(_REDRAWS):
            found = [rule(phi.of(some)) for some in made[doubtful].split(_RULE_AT_ONCE)]
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
