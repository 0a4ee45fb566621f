"""Judges in short numbers: half the time, nearly the same numbers, and it is told."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sfumato import evaluate
from sfumato.data import Dataset
from sfumato.errors import BadInput
from sfumato.evaluation.metrics import Comparison, numbers
from sfumato.report.comparison import parse_config
from sfumato.report.export import compact
from sfumato.report.grid import compare


@pytest.fixture(scope="module")
def stripes() -> Dataset:
    """Two classes that any network can tell apart."""
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2
    images = rng.integers(0, 100, (400, 3, 16, 16), dtype=np.uint8)
    images[labels == 1, :, ::2] += 120
    return Dataset.from_arrays(images, labels, classes=2)


@pytest.mark.parametrize("name", ["accuracy.cnn", "dpimagebench.resnet"])
def test_a_network_learns_in_short_numbers_and_says_so(stripes, name):
    (short,) = evaluate(stripes, stripes, metrics=[name], precision="bfloat16").metrics
    (whole,) = evaluate(stripes, stripes, metrics=[name]).metrics
    assert short.value > 0.95
    assert whole.value > 0.95
    assert "bfloat16" in short.note
    assert "bfloat16" not in whole.note


def test_networks_really_run_in_short_numbers(stripes):
    seen = []

    def network(pixels):
        seen.append(torch.mm(pixels.flatten(1), pixels.flatten(1).T).dtype)
        return pixels.flatten(1)

    for precision in ("float32", "bfloat16"):
        comparison = Comparison(stripes, stripes, networks={"n": network}, precision=precision)
        assert comparison.features("real", "n", 0, lambda share: None).dtype == torch.float32
    assert set(seen) == {torch.float32, torch.bfloat16}
    assert seen[0] == torch.float32


def test_kept_features_of_the_two_are_kept_apart(monkeypatch, tmp_path):
    monkeypatch.setenv("SFUMATO_CACHE", str(tmp_path))
    data = Dataset.from_arrays(np.zeros((4, 1, 8, 8), np.uint8), [0, 1, 0, 1], classes=2)
    object.__setattr__(data, "published_as", "made:up")
    paths = {
        Comparison(data, data, precision=p)._kept_features("real", "fid-inception", 0, 100)
        for p in ("float32", "bfloat16")
    }
    assert len(paths) == 2


def test_nothing_else_leaves_float32():
    assert not torch.is_autocast_enabled("cpu")
    with numbers("float32"):
        assert not torch.is_autocast_enabled("cpu")
    with numbers("bfloat16"):
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("wrong", ["bf16", "float16", None, 32])
def test_another_precision_is_refused(stripes, wrong):
    with pytest.raises(BadInput, match="float32 or bfloat16"):
        evaluate(stripes, stripes, metrics=["accuracy.cnn"], precision=wrong)
    with pytest.raises(BadInput, match="float32 or bfloat16"):
        parse_config(
            {"data": "digits", "epsilons": [1.0], "delta": 1e-5, "precision": wrong}
            | {"methods": {"mixture": {}}}
        )


def test_cells_of_a_comparison_are_filed_by_it(tmp_path):
    given = {"data": "digits", "epsilons": [1.0], "delta": 1e-5, "samples": 50}
    given |= {"metrics": ["accuracy.cnn"], "methods": {"mixture": {}}}
    whole = compare(parse_config(given), tmp_path, jobs=1)
    short = compare(parse_config(given | {"precision": "bfloat16"}), tmp_path, jobs=1)
    assert (whole.kept, short.kept) == (0, 0)
    assert len(list((tmp_path / "cells").glob("*.json"))) == 2
    assert "bfloat16" in compact(short).title
    assert "bfloat16" in (tmp_path / "comparison.md").read_text()
    assert "bfloat16" not in compact(whole).title


def test_each_number_of_short_networks_says_so_and_the_judge_which_keeps_float32_does_not(stripes):
    def network(pixels):
        return pixels.flatten(1)[:, :8] + torch.linspace(0, 1, 8)

    names = ["fid", "fid.paper", "kid", "frechet.judge", "memorisation"]
    given = {"train": stripes, "networks": {"fid-inception": network}, "precision": "bfloat16"}
    found = {m.name: m.note for m in evaluate(stripes, stripes, metrics=names, **given).metrics}
    said = {name for name, note in found.items() if "bfloat16" in note}
    assert said == {"fid", "fid.paper", "kid"}
