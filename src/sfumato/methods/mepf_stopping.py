"""DP-MEPF's early stopping: a second release, at ten times the noise, that judges the generators on the way.

A part of the method, as `mepf_features` is. The paper's is made of the last pool of Inception, of both moments and of all classes
together: 4,097 numbers with the count. Public: the encoder, its layers, and everything after the release.
"""

from __future__ import annotations

from sfumato.data import Schema
from sfumato.errors import BadInput
from sfumato.methods.base import Workspace
from sfumato.methods.mepf_features import Perceived, named_layers
from sfumato.methods.private_encoder import PRIVATE
from sfumato.methods.settings import setting
from sfumato.public.perceptual import Encoder, PerceptualFeatures, last_pool


class Stopped(Perceived):
    """A method that may keep an earlier generator than its last."""

    stop: bool = setting(
        "Whether a second release, at about ten times the noise multiplier, picks the best generator on the way.",
        default=False,
    )
    stop_encoder: str | None = setting(
        "The encoder for early stopping, such as fid-inception as in the paper; auto: the same as for training.",
        default=None,
    )
    stop_taps: str | None = setting(
        "Layers of that encoder whose two moments are released of all classes together, such as pool3; auto: its last if that is "
        "a pool, or else what the training has of it, by class.",
        default=None,
    )
    stop_checks: int = setting(
        "How many times in training, from step 0 on, the generator is judged; once more at the end.",
        default=20,
        low=1,
        free=True,
    )
    stop_records: int = setting(
        "Generated images that it is judged by.", default=1_000, low=2, free=True
    )

    @property
    def stopping_encoder(self) -> str:
        return self.stop_encoder or self.encoder

    @property
    def stop_layers(self) -> tuple[str, ...] | None:
        """Those of which all classes together are released; None for what the training has, by class."""
        if self.stop_taps is None and self.stopping_encoder == self.encoder:
            return None
        return named_layers(self.stop_taps) or last_pool(self.stopping_encoder)

    def stop_features(
        self, schema: Schema, run: Workspace | None = None, same: Encoder | None = None
    ) -> PerceptualFeatures:
        """φ of the second release; without a run for its public facts alone, with `same` where that is the training's encoder."""
        name, layers = self.stopping_encoder, self.stop_layers
        more = {"layers": layers} if layers else {}
        if run is None:
            encoder = self.opened(schema, name, weights=False, **more)
        elif same is not None and name == self.encoder and layers is None:
            encoder = same
        else:
            encoder = self.unseen(schema, name, run, **more)
        return PerceptualFeatures(encoder) if layers else self.features(encoder)

    def stop_classes(self, schema: Schema) -> int:
        """By how many classes it is filed."""
        return 0 if self.stop_layers else schema.n_classes

    def _check(self, schema: Schema) -> None:
        super()._check(schema)
        if self.stop_encoder == PRIVATE:
            raise BadInput("mepf's stop_encoder must be a public network or scattering.")
        for name in ("stop_encoder", "stop_taps"):
            if getattr(self, name) is not None and not self.stop:
                raise BadInput(f"mepf's {name} goes with stop=true; set that or leave it out.")
