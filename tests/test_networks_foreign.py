"""Foreign files give numbers or nothing: no name in them is ever called."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.errors import CorruptArtifact
from sfumato.public.foreign import (
    read_checkpoint,
    read_members,
    read_pickle,
    read_tfjs,
    read_torchscript,
)


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def payloads(trace):
    return {
        "system": Call(os.system, f"touch {trace}"),
        "eval": Call(eval, f"open({str(trace)!r}, 'w')"),
        "getattr": Call(getattr, "x", "upper"),  # modules do not pickle
        "open": Call(open, str(trace), "w"),
        "torch.load": Call(torch.load, str(trace)),
        "numpy.load": Call(np.load, str(trace)),
        "object": object(),
    }


@pytest.mark.parametrize("name", sorted(payloads("x")))
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_calls_something_is_refused_and_not_run(tmp_path, name, protocol):
    trace = tmp_path / "trace"
    # The call comes first: protocol 5 packs the array in a way that is refused by itself.
    data = pickle.dumps({"bad": payloads(trace)[name], "weight": np.zeros(2, "f4")}, protocol)
    with pytest.raises(CorruptArtifact, match="system" if name == "system" else "was not loaded"):
        read_pickle(data, "weights.pkl")
    assert not trace.exists()


def saved(content, **how):
    stream = io.BytesIO()
    torch.save(content, stream, **how)
    return stream.getvalue()


def script_of(call):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("net/data.pkl", pickle.dumps(call))
    return stream.getvalue()


def smuggled(call):
    """`torch.storage._load_from_bytes` loads a pickle inside the pickle; ours is restricted too."""
    inner = saved(call, _use_new_zipfile_serialization=False)
    return pickle.dumps({"a": Call(torch.storage._load_from_bytes, inner)})


@pytest.mark.parametrize(
    ("read", "pack", "words"),
    [
        (read_checkpoint, lambda call: saved({"w": torch.zeros(2), "bad": call}), "was not loaded"),
        (read_torchscript, script_of, None),
        (read_pickle, smuggled, None),
    ],
    ids=["checkpoint", "torchscript", "storage"],
)
def test_no_wrapping_smuggles_a_call(tmp_path, read, pack, words):
    trace = tmp_path / "trace"
    with pytest.raises(CorruptArtifact, match=words):
        read(pack(Call(os.system, f"touch {trace}")), "weights")
    assert not trace.exists()


def test_a_tensor_cannot_reach_past_its_storage():
    good = pickle.dumps({"a": torch.arange(4.0)})
    assert good.count(b"K\x04\x85") == 1  # the size (4,)
    with pytest.raises(CorruptArtifact):
        read_pickle(good.replace(b"K\x04\x85", b"K\xff\x85"), "weights.pkl")


def test_arrays_of_objects_and_texts_are_refused():
    for array in (np.array([object], dtype=object), np.array(["a"])):
        with pytest.raises(CorruptArtifact):
            read_pickle(pickle.dumps({"a": array}), "weights.pkl")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"not a pickle", pickle.dumps([1, 2])])
def test_damaged_bytes_are_refused(data):
    for read in (read_pickle, read_checkpoint, read_torchscript):
        with pytest.raises(CorruptArtifact):
            read(data, "weights")


@pytest.mark.parametrize("protocol", [0, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "f8", "i8", "u1", "?"])
def test_arrays_survive(protocol, dtype):
    generator = np.random.default_rng(0)
    array = generator.integers(0, 9, (2, 3, 4)).astype(dtype)
    nested = {"Conv_0": {"kernel": array, "turned": np.asfortranarray(array)}}
    found = read_pickle(pickle.dumps(nested, protocol), "weights.ckpt")
    assert list(found) == ["Conv_0.kernel", "Conv_0.turned"]
    for tensor in found.values():
        assert np.array_equal(tensor.numpy(), array)


def test_old_numpys_module_name_is_known():
    data = pickle.dumps({"a": np.ones(3, "f4")}, 2)
    assert b"numpy._core.multiarray" in data
    old = data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert read_pickle(old, "weights.ckpt")["a"].tolist() == [1, 1, 1]


def test_a_plainly_pickled_state_dict_survives():
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 3)
    state = OrderedDict((k, v.detach()) for k, v in layer.state_dict().items())
    state["turned"] = state["weight"].permute(3, 2, 1, 0)
    found = read_pickle(pickle.dumps(state, 4), "state.pkl")
    assert set(found) == set(state)
    for key, value in state.items():
        assert torch.equal(found[key], value)


def test_a_checkpoint_survives():
    state = nn.BatchNorm2d(3).state_dict()
    found = read_checkpoint(saved(state), "weights.pth")
    assert all(torch.equal(found[key], value) for key, value in state.items())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_gives_its_tensors():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3))
    stream = io.BytesIO()
    torch.jit.save(torch.jit.trace(body.eval(), torch.zeros(1, 2, 4, 4)), stream)
    found = read_torchscript(stream.getvalue(), "network.pt")
    for key, value in body.state_dict().items():
        assert torch.equal(found[key], value)


# ------------------------------------------------------------------------------- TensorFlow.js


def tfjs(**changes):
    weights = [
        {"name": "fc/kernel", "shape": [2, 3], "dtype": "float32"},
        {"name": "fc/bias", "shape": [3], "dtype": "float32"},
    ]
    weights[0] |= changes
    data = np.arange(9, dtype="<f4").tobytes()
    manifest = [{"paths": ["one.bin", "two.bin"], "weights": weights}]
    # The cut falls inside a weight, as it does in real files.
    files = {"one.bin": data[:10], "two.bin": data[10:]}
    return files | {"model.json": json.dumps({"weightsManifest": manifest}).encode()}


def test_tfjs_shards_are_joined():
    found = read_tfjs(tfjs().__getitem__, "model.json")
    assert found["fc/kernel"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["fc/bias"].tolist() == [6, 7, 8]


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "int32"},
        {"quantization": {"dtype": "uint8"}},
        {"shape": [9, 9]},
        {"shape": [1, 3]},
    ],
)
def test_other_tfjs_weights_are_refused(changes):
    with pytest.raises(CorruptArtifact):
        read_tfjs(tfjs(**changes).__getitem__, "model.json")
    missing = tfjs()
    del missing["two.bin"]
    with pytest.raises(CorruptArtifact):
        read_tfjs(missing.__getitem__, "model.json")


# -------------------------------------------------------------------------------------- archives


def test_members_are_read_from_one_folder_only(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        for name in ("pkg/w/a.bin", "pkg/b.bin", "pkg/w/deep/c.bin"):
            wheel.writestr(name, name)
    assert read_members(tmp_path / "a.whl", "pkg/w") == {"a.bin": b"pkg/w/a.bin"}
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "a.whl", "pkg/w/a.whl")
        link = tarfile.TarInfo("pkg/w/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        tar.add(tmp_path / "a.whl", "pkg/b.whl")
    with pytest.raises(CorruptArtifact):  # a link out of the archive is not followed
        read_members(tmp_path / "a.tar.gz", "pkg/w")
    assert set(read_members(tmp_path / "a.tar.gz", "pkg")) == {"b.whl"}


def test_a_damaged_archive_is_refused(tmp_path):
    for name in ("a.whl", "a.tar.gz"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(CorruptArtifact):
            read_members(tmp_path / name, "pkg")
