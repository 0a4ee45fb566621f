"""What is published passes a list of keys: nothing else leaves, in files of a run, a comparison or a report."""

from __future__ import annotations

from typing import Any

import pytest

from sfumato import published
from sfumato.errors import NotPublishable, PlanMismatch

STEP = {"event": "step", "step": 5, "steps": 10, "loss": 0.5}


@pytest.mark.parametrize(
    "record",
    [
        STEP,
        STEP | {"restart": 1},
        {"event": "step", "step": 5, "steps": 10, "critic loss, generated": 0.1},
        {"event": "release", "label": "counts"},
        {"event": "matched", "training_seed": 0, "loss": 0.1},
        {"event": "weights", "of public classes": [0.5, 0.5]},
        {
            "event": "codec",
            "codec": "dct",
            "card": {"about": "…", "trained_on": [], "settings": {"dim": 3}},
        },
    ],
)
def test_the_log_takes_what_methods_log_today(record: dict[str, Any]) -> None:
    published.check("log", record)


@pytest.mark.parametrize(
    "more",
    [
        {"seconds": 1.5},
        {"time": 1700000000.0},
        {"records": 317},
        {"clipped fraction": 0.2},
        {"loss": {"seconds": 1.0}},
        {"loss": [{"seconds": 1.0}]},
    ],
)
def test_the_log_refuses_every_other_key(more: dict[str, Any]) -> None:
    with pytest.raises(NotPublishable) as caught:
        published.check("log", STEP | more)
    assert isinstance(caught.value, PlanMismatch)
    assert "1.5" not in str(caught.value) and "317" not in str(caught.value)  # no value is quoted


@pytest.mark.parametrize("record", [{}, {"step": 1}, {"event": "read"}, {"event": None}])
def test_the_log_refuses_an_unknown_event(record: dict[str, Any]) -> None:
    with pytest.raises(NotPublishable):
        published.check("log", record)


def test_a_key_deep_inside_is_found() -> None:
    good = {"name": "accuracy.cnn", "value": 0.5, "low": 0.4, "high": 0.6, "source": "…"}
    published.check("metrics", {"metrics": [good], "synthetic": {"n": 10, "seed": 0}})
    for bad in (
        {"metrics": [good | {"seconds": 1.0}]},
        {"metrics": [good], "synthetic": {"n": 10, "private": 317}},
        {"metrics": good},
    ):
        with pytest.raises(NotPublishable):
            published.check("metrics", bad)


def test_what_earlier_versions_wrote_is_read_without_what_must_not_be_published() -> None:
    old = {"metrics": [{"name": "a", "value": 1.0, "seconds": 3.2}], "host": "…"}
    assert published.only("metrics", old) == {"metrics": [{"name": "a", "value": 1.0}]}
