"""What sfumato may write into a file that is published: the keys of every record, in one place.

A run folder, a comparison and a report are given away. Whatever stands there must be public by the guarantee or carry
the badge of a number computed on real data, so nothing is written there that is not named here: no clock, no duration,
no count, size or order that private rows influence. A new key is added here or it does not leave the house.

    published.check("log", {"event": "step", "step": 10, "steps": 100, "loss": 0.3})      # fine
    published.check("log", {"event": "step", "step": 10, "seconds": 4.2})                 # raises NotPublishable

Public: names of keys. This module sees values only to learn their kind, and never quotes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sfumato.errors import NotPublishable

# Beside every number that was computed on real records: in headlines, tables, files and on the terminal.
BADGE = "computed on real data, not covered by ε"

Kind = Literal[
    "log",
    "card",
    "config",
    "statement",
    "metric",
    "metrics",
    "result",
    "cell",
    "comparison",
    "reproduction",
    "report",
    "released",
]


@dataclass(frozen=True)
class _Plain:
    """A number, text, truth value, nothing, or a list of these."""


@dataclass(frozen=True)
class _Record:
    """A record with these keys at most."""

    keys: Mapping[str, _Form]


@dataclass(frozen=True)
class _Each:
    """A list of records of one form, or nothing."""

    form: _Form


@dataclass(frozen=True)
class _Named:
    """Values of one form under public names that are not known here: settings, relations, classes."""

    form: _Form


@dataclass(frozen=True)
class _Events:
    """A record whose key "event" says which keys it may have besides."""

    forms: Mapping[str, _Record]


@dataclass(frozen=True)
class _Free:
    """Made and checked elsewhere, of public facts only."""


_Form = _Plain | _Record | _Each | _Named | _Events | _Free
_PLAIN = _Plain()


def _record(*plain: str, **forms: _Form) -> _Record:
    return _Record({**dict.fromkeys(plain, _PLAIN), **forms})


_CARD = _record(
    *("about", "trained_on", "records", "licence", "sha256", "sfumato"),
    settings=_Named(_PLAIN),
    quality=_record("mean_squared_error", "accuracy"),
)
_LOG = _Events(
    {
        "release": _record("event", "label"),
        "codec": _record("event", "codec", card=_CARD),
        # Losses are those of released or generated records; of private ones none is known outside the wall.
        "step": _record(
            *("event", "step", "steps", "restart", "loss", "generator loss", "discriminator loss"),
            *("critic loss, generated", "public loss"),
        ),
        "matched": _record("event", "training_seed", "loss"),
        "weights": _record("event", "of public classes"),
    }
)
_BUDGET = _record("epsilon", "delta", "neighbours", "private")
_UNIT = _record("name", "read_from", "at_most")
_CONFIG = _record(
    *("format", "sfumato", "method", "public", "sound"),
    settings=_Named(_PLAIN),
    # The size, of units, only where the relation makes it public; that of records never where a unit has several.
    # `labels`: where the classes stand, as it was stated.
    data=_record("name", "size", "labels"),
    unit=_UNIT,
    schema=_Free(),  # `Schema.from_json` has a whitelist of its own
    budget=_BUDGET,
)
_STATEMENT = _record(
    *("epsilon", "delta", "neighbours", "unit", "not_covered", "paragraph", "sound", "private"),
    budget=_BUDGET,
    units=_UNIT,
    releases=_Each(
        _record(
            *("label", "bound", "sensitivity", "noise_std", "noise_multiplier", "rate", "steps"),
            *("dimension", "replace_ratio", "summands", "sampler", "noise", "event"),
        )
    ),
    epsilon_under=_Named(_PLAIN),
    epsilon_k=_Named(_PLAIN),
    claimed=_record("epsilon", "counted", "not_counted"),
)
_METRIC = _record(
    *("name", "value", "low", "high", "source", "badge", "note"),
    by_class=_record("classes", "recall", "precision", "confusion"),  # shares, under the badge
)
_METRICS = _record("metrics_are", metrics=_Each(_METRIC), synthetic=_record("n", "seed"))
_RESULT = _record(
    statement=_record("epsilon", "delta", "neighbours", epsilon_under=_Named(_PLAIN)),
    metrics=_Each(_METRIC),
)
_WORK = _record(
    *("method", "public", "epsilon", "delta", "neighbours", "train", "test", "samples"),
    *("metrics", "seed", "keep", "precision", "decoder_only"),
    settings=_Named(_PLAIN),
    facts=_Named(_PLAIN),
)
_CELL = _record("format", "sfumato", "name", "key", cell=_WORK, **_RESULT.keys)
_COMPARISON = _record(
    *("format", "sfumato", "metrics_are", "notes"),
    config=_record(
        *("data", "train", "test", "epsilons", "delta", "neighbours", "seeds", "samples", "keep"),
        "precision",
        *("metrics", "preset"),
        facts=_Named(_PLAIN),
        variants=_Named(
            _record(
                *("method", "public", "decoder_only"),
                settings=_Named(_PLAIN),
                by_epsilon=_Named(_Named(_PLAIN)),
            )
        ),
    ),
    rows=_Each(
        _record(
            *("metric", "epsilon", "relation", "method", "mean", "low", "high", "seeds"),
            *("published", "source", "badge", "printed", "protocol", "superseded"),
        )
    ),
    cells=_Each(_CELL),
    missing=_Each(_record("name", "epsilon", "seed")),
)
_REPRODUCTION = _record(
    *("sfumato", "name", "title", "quick", "metrics_are", "notes"),
    rows=_Each(
        _record(
            *("data", "metric", "method", "epsilon", "paper", "printed", "spread", "source"),
            *("mean", "low", "high", "seeds"),
        )
    ),
)
_REPORT = _record(
    *("format", "verdict", "metrics_are", "real_records_shown", "utility", "public", "reproduce"),
    *("check", "warnings", "no_better"),
    # What whoever signs states.
    signature=_record("by", "role", "date", "decision"),
    fingerprints=_Named(_PLAIN),  # of what is released, never of the data
    verified=_record("passed", checks=_Each(_record("check", "passed", "told"))),
    audit=_record(
        *(
            "of",
            "passed",
            "confidence",
            "badge",
            "mechanisms",
            "ratio",
            "data",
            "canaries",
            "epsilon",
        ),
        *("lower", "lower_from_samples"),
    ),
    config=_CONFIG,
    statement=_STATEMENT,
    metrics=_Each(_METRIC),
    training=_record("steps", "first_loss", "last_loss"),
    samples=_record("n", "seed"),
    class_balance=_Named(_PLAIN),
    ledger=_record(
        *("this_run", "together", "limit", "left", "delta", "neighbours", "unit", "adaptive")
    ),
    versions=_Named(_PLAIN),
)
# What stands on the cards of a release: nothing else of a run gets there.
_RELEASED = _record(
    *("file", "records"),  # of the synthetic file
    config=_CONFIG,
    statement=_STATEMENT,
    fingerprints=_Named(_PLAIN),
    metrics=_Each(_METRIC),
)
_KINDS: Mapping[Kind, _Form] = {
    "log": _LOG,
    "card": _CARD,
    "config": _CONFIG,
    "statement": _STATEMENT,
    "metric": _METRIC,
    "metrics": _METRICS,
    "result": _RESULT,
    "cell": _CELL,
    "comparison": _COMPARISON,
    "reproduction": _REPRODUCTION,
    "report": _REPORT,
    "released": _RELEASED,
}


def check(kind: Kind, record: Mapping[str, Any]) -> None:
    """Raise NotPublishable unless every key of `record`, however deep, is one that a record of this kind may have."""
    _check(_KINDS[kind], record, kind)


def only(kind: Kind, record: Mapping[str, Any]) -> dict[str, Any]:
    """`record` without the keys that must not be published: for files that earlier versions wrote."""
    kept = _kept(_KINDS[kind], record)
    return kept if isinstance(kept, dict) else {}


def _check(form: _Form, value: Any, place: str) -> None:
    if isinstance(form, _Events):
        event = value.get("event") if isinstance(value, Mapping) else None
        if not isinstance(event, str) or event not in form.forms:
            raise _refusal(f"{place}: event")
        form = form.forms[event]
    if isinstance(form, _Free) or value is None:
        return
    if isinstance(form, _Plain):
        good = _is_plain(value)
    else:
        good = isinstance(value, list | tuple if isinstance(form, _Each) else Mapping)
    if not good:
        raise _refusal(place)
    if isinstance(form, _Each):
        for item in value:
            _check(form.form, item, place)
    elif isinstance(form, _Named):
        for key in value:
            _check(form.form, value[key], f"{place}: {key}")
    elif isinstance(form, _Record):
        for key in value:
            if key not in form.keys:
                raise _refusal(f"{place}: {key}")
            _check(form.keys[key], value[key], f"{place}: {key}")


def _kept(form: _Form, value: Any) -> Any:
    if isinstance(form, _Events):
        event = value.get("event") if isinstance(value, Mapping) else None
        known = isinstance(event, str) and event in form.forms
        return _kept(form.forms[str(event)], value) if known else None
    if isinstance(form, _Named) and isinstance(value, Mapping):
        return {key: _kept(form.form, value[key]) for key in value}
    if isinstance(form, _Each) and isinstance(value, list | tuple):
        return [_kept(form.form, item) for item in value]
    if isinstance(form, _Record) and isinstance(value, Mapping):
        return {key: _kept(form.keys[key], value[key]) for key in value if key in form.keys}
    return value


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def _refusal(place: str) -> NotPublishable:
    return NotPublishable(
        f"This would be published and is not on the list of what may be ({place}); leave it out, or add it to "
        "sfumato.published if private rows have no influence on it."
    )
