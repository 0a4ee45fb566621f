"""What methods with a codec share: the codec is a setting, and a run keeps its own copy of it.

A plan needs the codec's facts only (dimension and bound). A saved run holds the codec's weights beside its own, so that it
can be loaded and sampled where the codec's file is gone. Public: the codec. Private: nothing here.
"""

from __future__ import annotations

from torch import Tensor

from sfumato.data import Schema
from sfumato.methods.base import Synthesizer, Workspace
from sfumato.public.codec import Codec, Facts, codec_from_state
from sfumato.public.resolve import codec_facts, get_codec

_PREFIX = "codec."


class LatentSynthesizer(Synthesizer):
    """A method with a setting `codec`; None, where a method allows it, stands for none."""

    codec: str | None
    codec_: Codec

    def _facts(self, schema: Schema) -> Facts:
        """For a plan: read from the codec's header."""
        return codec_facts(self._named(), schema)

    def _named(self) -> str:
        assert self.codec is not None
        return self.codec

    def _open_codec(self, schema: Schema, workspace: Workspace) -> Codec:
        """The codec, ready to encode; what it is made of goes into the log."""
        codec = get_codec(self._named(), schema, public=workspace.public)
        workspace.check_unseen(f"The codec {self.codec}", codec.card.trained_on)
        workspace.log({"event": "codec", "codec": self.codec, "card": codec.card.to_json()})
        if workspace.public is not None and not codec.card.saw(workspace.public.name):
            workspace.progress.note(
                f"Codec {self.codec!r} makes no use of the public data; codec=pca:64 would."
            )
        return codec

    def _codec_state(self) -> dict[str, Tensor]:
        return {_PREFIX + name: value for name, value in self.codec_.state().items()}

    def _restore_codec(self, state: dict[str, Tensor]) -> None:
        self.codec_ = codec_from_state(
            {n.removeprefix(_PREFIX): t for n, t in state.items() if n.startswith(_PREFIX)}
        )
