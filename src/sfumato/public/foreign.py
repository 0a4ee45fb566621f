"""Reading weights out of other people's files without running anything that is in them.

A pickle is a program: it names functions and calls them. The reader here knows a handful of names
and maps each to an inert stand-in of our own (numpy's and torch's own rebuilding code is not called
either), so that a file can build numbers and nothing else; any other name is refused. TorchScript is
read in the same way: the tensors are taken, the code is not. The files are public.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import tarfile
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.data.fetch import archive_members
from sfumato.errors import CorruptArtifact

_KINDS = frozenset({"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"})
# What damaged or hostile bytes can make an unpickler raise.
_UNREADABLE = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
)


class _Dtype:
    """Stands for numpy.dtype; keeps the code ("f4") and the byte order."""

    def __init__(self, code: str, *flags: object) -> None:
        if code not in _KINDS:
            raise ValueError("not a number type")
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.code = (state[1] if state[1] in "<>" else "") + self.code


class _Array:
    """Stands for numpy.ndarray; becomes a tensor from plain bytes."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise TypeError("not an array of numbers")
        array = np.frombuffer(data, dtype=dtype.code).reshape(shape, order="F" if fortran else "C")
        native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        self.tensor = torch.from_numpy(native.copy())


class _Record:
    """Stands for a TorchScript module; keeps its attributes."""


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _rebuild_tensor(
    storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: object
) -> Tensor:
    if not isinstance(storage, Tensor):
        raise TypeError("not a tensor of numbers")
    return torch.as_strided(storage, size, stride, offset).clone()  # refuses to leave the storage


def _storage_from_bytes(data: bytes) -> Tensor:
    storage = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return torch.tensor([], dtype=storage.dtype).set_(storage)


def _encode(text: str, encoding: str) -> bytes:
    """How protocol 2 writes bytes."""
    if encoding != "latin1":
        raise ValueError("unknown encoding")
    return text.encode("latin1")


_ARRAYS: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch.storage", "_load_from_bytes"): _storage_from_bytes,
}
_TORCHSCRIPT: Mapping[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch", "FloatStorage"): torch.float32,
    ("torch", "LongStorage"): torch.int64,
    ("torch.jit._pickle", "build_intlist"): list,
}


class _Reader(pickle.Unpickler):
    """An unpickler that knows the names of `allowed` and refuses all others."""

    def __init__(
        self,
        data: bytes,
        allowed: Mapping[tuple[str, str], Any],
        storage: Callable[[str, torch.dtype], Tensor] | None = None,
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._allowed = allowed
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        if self._storage is not None and module.split(".")[0] == "__torch__":
            return _Record
        try:
            return self._allowed[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None

    def persistent_load(self, key: Any) -> Tensor:
        if self._storage is None:
            raise pickle.UnpicklingError("it asks for an outside object")
        _, dtype, name, *_ = key
        return self._storage(name, dtype)


def read_members(archive: Path, folder: str) -> dict[str, bytes]:
    """The files right inside one folder of a wheel, sdist or npm archive, by their names."""
    try:
        found = archive_members(archive, lambda path: path.rpartition("/")[0] == folder)
        return {path.rpartition("/")[2]: packed.read() for path, packed in found}
    except (EOFError, KeyError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise _refused(str(archive), error) from error


def read_pickle(data: bytes, about: str) -> dict[str, Tensor]:
    """The arrays or tensors of a pickled (nested) dictionary, as {"a.b.c": tensor}."""
    try:
        return _flatten(_Reader(data, _ARRAYS).load())
    except _UNREADABLE as error:
        raise _refused(about, error) from error


def read_checkpoint(data: bytes, about: str) -> dict[str, Tensor]:
    """The tensors of a file written with torch.save; torch's own restricted reader loads it."""
    try:
        return _flatten(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
    except _UNREADABLE as error:
        raise _refused(about, error) from error


def read_torchscript(data: bytes, about: str) -> dict[str, Tensor]:
    """The parameters and buffers of a TorchScript archive; its code is not loaded."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            (root,) = (
                name[: -len("/data.pkl")]
                for name in archive.namelist()
                if name.endswith("/data.pkl") and name.count("/") == 1
            )

            def storage(name: str, dtype: torch.dtype) -> Tensor:
                return torch.frombuffer(
                    bytearray(archive.read(f"{root}/data/{int(name)}")), dtype=dtype
                )

            return _flatten(_Reader(archive.read(f"{root}/data.pkl"), _TORCHSCRIPT, storage).load())
    except _UNREADABLE as error:
        raise _refused(about, error) from error


def read_tfjs(read: Callable[[str], bytes], about: str) -> dict[str, Tensor]:
    """The weights of a TensorFlow.js model: `read` gives model.json and the shards it names."""
    try:
        weights: dict[str, Tensor] = {}
        for group in json.loads(read("model.json"))["weightsManifest"]:
            data = b"".join(read(path) for path in group["paths"])
            start = 0
            for entry in group["weights"]:
                if entry["dtype"] != "float32" or "quantization" in entry:
                    raise ValueError("not plain float32")
                count = math.prod(entry["shape"])
                array = np.frombuffer(data, "<f4", count, start).reshape(entry["shape"])
                weights[entry["name"]] = torch.from_numpy(array.copy())
                start += 4 * count
            if start != len(data):
                raise ValueError("the shards are longer than the weights")
        return weights
    except _UNREADABLE as error:
        raise _refused(about, error) from error


def _flatten(value: Any, prefix: str = "") -> dict[str, Tensor]:
    if isinstance(value, _Record):
        value = vars(value)
    if isinstance(value, _Array):
        value = value.tensor
    if isinstance(value, Tensor):
        return {prefix: value.detach().contiguous()}
    flat: dict[str, Tensor] = {}
    if isinstance(value, dict):
        for key, item in value.items():
            flat |= _flatten(item, f"{prefix}.{key}" if prefix else str(key))
    elif not prefix:
        raise TypeError("it holds no dictionary")
    return flat


def _refused(about: str, error: Exception) -> CorruptArtifact:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return CorruptArtifact(
        f"{about} was not loaded, since it is damaged or holds more than numbers ({reason}); "
        "remove the file and fetch it again."
    )
