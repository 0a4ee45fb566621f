"""DP-MEPF's features: which encoder, of which layers, which moments of them, and where they are centred.

A part of the method, as `decoded` is of others: the settings that shape the map φ, and the map itself. Public: the encoder and
its training data, or none (scattering); a private encoder was paid for (`private_encoder`).
"""

from __future__ import annotations

from typing import Any

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.methods.base import Method, Workspace
from sfumato.methods.private_encoder import LAYERS, PRIVATE, extractor
from sfumato.methods.settings import setting
from sfumato.public.perceptual import (
    Encoder,
    NetworkEncoder,
    PerceptualFeatures,
    is_own,
    make_encoder,
    public_centre,
    public_rows,
    trained_on,
)

_PUBLIC_RECORDS = 2000  # for a centre and a radius


def named_layers(taps: str | None) -> tuple[str, ...] | None:
    """As settings name them, with commas between."""
    return tuple(t.strip() for t in taps.split(",") if t.strip()) if taps else None


class Perceived(Method):
    """A method that sees images through an encoder."""

    encoder: str = setting(
        "A public network, a pretrained extractor's file, own:NAME (`own_encoder`), scattering (no public data), or private "
        "(by DP-SGD).",
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
        "Layers of the encoder, such as relu1_2,relu2_2; convolutions: every one larger than 1×1, as in the paper for ResNets; "
        "auto: all that come after a ReLU.",
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

    def build(self, schema: Schema) -> None:
        super().build(schema)
        for name in ("extractor_", "encoder_"):
            vars(self).pop(name, None)  # of another fit
        if self.encoder == PRIVATE:
            self.extractor_ = extractor(schema, self.seed)
        if is_own(self.encoder):  # no file holds it, so the run does
            self.encoder_ = self.opened(schema, self.encoder)

    def opened(self, schema: Schema, name: str, *, weights: bool = True, **more: Any) -> Encoder:
        """By its name; without weights for its public facts alone. `more`: other layers than `taps`, …"""
        if name == self.encoder and is_own(name) and hasattr(self, "encoder_"):
            return self.encoder_
        if name == PRIVATE:
            network = self.extractor_ if weights else extractor(schema)
            layers = more.get("layers") or named_layers(self.taps) or LAYERS
            return NetworkEncoder(network.eval(), layers, schema.shape, pool=self.pool)
        if name == self.encoder:
            more = {"layers": named_layers(self.taps), "size": self.size, "pool": self.pool} | more
        return make_encoder(name, schema.shape, weights=weights, **more)

    def unseen(self, schema: Schema, name: str, run: Workspace, **more: Any) -> Encoder:
        """The encoder, unless it was trained on the private data."""
        if name != PRIVATE:
            run.check_unseen(f"The network {name}", trained_on(name))
        return self.opened(schema, name, progress=run.progress, **more)

    def features(self, encoder: Encoder, **centred: Any) -> PerceptualFeatures:
        return PerceptualFeatures(
            encoder,
            moments=self.moments,
            second_weight=self.second_weight,
            balance=self.balance,
            **centred,
        )

    def centred(self, encoder: Encoder, run: Workspace) -> PerceptualFeatures:
        phi = self.features(encoder)
        if not self.centre or run.public is None:
            return phi
        centre, radius = public_centre(public_rows(phi, run.public, _PUBLIC_RECORDS))
        return self.features(encoder, centre=centre, radius=self.radius or radius).to(phi.device)

    def _needs_public(self) -> bool:
        return self.centre

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        if self.radius is not None and not self.centre:
            raise BadInput("mepf's radius goes with centre=true; set that or leave radius out.")
        if self.encoder == PRIVATE and self.size is not None:
            raise BadInput("A private encoder takes images as they are; leave mepf's size out.")
        if self.encoder == PRIVATE and not schema.labelled:
            raise BadInput(
                "A private encoder learns to tell classes apart and these data have none; take encoder=scattering, which needs "
                "neither labels nor public data."
            )
