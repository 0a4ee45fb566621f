"""What is learnt is saved by name: every attribute that ends in `_`. No pickle; a header of JSON beside the tensors.

A learnt value is a tensor, a module (built from public facts before its weights are read back), a codec, a plain JSON value, or a
`Record`: a frozen dataclass of such values, found again by its class's name.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor, nn

from sfumato.errors import CorruptArtifact
from sfumato.files import Record as Record
from sfumato.public.codec import ImageCodec, codec_from_state

_HEADER = "learnt"
_PLAIN = (bool, int, float, str, list, tuple, dict, type(None))


def learnt(owner: object, *, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """The learnt attributes of an object, by name."""
    return {
        name: value
        for name, value in vars(owner).items()
        if name.endswith("_") and not name.startswith("_") and name not in but
    }


def saved(values: Mapping[str, Any]) -> bytes:
    """A safetensors file of learnt values."""
    tensors: dict[str, Tensor] = {}
    header = _pack(values, tensors, "")
    # Copies: networks may share memory, which the format does not allow.
    whole = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    return bytes_of(whole, metadata={_HEADER: json.dumps(header)})


def restored(content: bytes, built: object) -> dict[str, Any] | None:
    """What `saved` was given; modules are those that `built` has under their names, with the saved weights.

    None for a file without a header: runs of versions before 0.3 have one tensor after the other, see `Method._earlier`.
    """
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size]).get("__metadata__", {}).get(_HEADER)
    if header is None:
        return None
    return _unpack(json.loads(header), tensors_of(content), built)


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _pack(values: Mapping[str, Any], tensors: dict[str, Tensor], prefix: str) -> dict[str, Any]:
    """A header for `values`; their tensors go into `tensors`."""
    header: dict[str, Any] = {}
    for name, value in values.items():
        path = prefix + name
        if isinstance(value, Tensor):
            tensors[path], header[name] = value, {"tensor": path}
        elif isinstance(value, nn.Module):
            tensors |= {f"{path}.{n}": t for n, t in value.state_dict().items()}
            header[name] = {"module": path}
        elif isinstance(value, ImageCodec):
            tensors |= {f"{path}.{n}": t for n, t in value.state().items()}
            header[name] = {"codec": path}
        elif isinstance(value, Record):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}  # type: ignore[arg-type]
            inner = _pack(fields, tensors, f"{path}.")
            header[name] = {"record": type(value).__name__, "fields": inner}
        elif isinstance(value, _PLAIN):
            header[name] = {"value": value}
        else:
            raise TypeError(
                f"{name} is a {type(value).__name__}, which cannot be saved; make it a Record."
            )
    return header


def _unpack(header: dict[str, Any], tensors: dict[str, Tensor], built: object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, entry in header.items():
        if "tensor" in entry:
            found[name] = tensors[entry["tensor"]]
        elif "module" in entry:
            module = getattr(built, name)
            module.load_state_dict(part(tensors, f"{entry['module']}."))
            found[name] = module.eval()
        elif "codec" in entry:
            found[name] = codec_from_state(part(tensors, f"{entry['codec']}."))
        elif "record" in entry:
            if entry["record"] not in Record.kinds:
                raise CorruptArtifact(
                    f"{name} is a {entry['record']}, which this version does not know; use the one that wrote it."
                )
            fields = _unpack(entry["fields"], tensors, built)
            found[name] = Record.kinds[entry["record"]](**fields)
        else:
            found[name] = entry["value"]
    return found
