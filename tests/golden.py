"""What every method does today, pinned: the charges it promises, and what it samples when the noise of the wall is fixed.

`python tests/golden.py --write` writes `tests/golden/charges.json` and `tests/golden/samples.json` anew; `test_golden` compares
with them. Write anew only where a method is meant to change, and look at the difference.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from sfumato.classifier import LocallyLinearMaps
from sfumato.data import Column, Dataset, Schema
from sfumato.errors import BadInput
from sfumato.methods import get_method, gswgan, list_methods, taught
from sfumato.privacy import Budget, Charge, Neighbours, PrivateData, gradients, noise

FOLDER = Path(__file__).parent / "golden"
CHARGES, SAMPLES = FOLDER / "charges.json", FOLDER / "samples.json"

# -- charges -----------------------------------------------------------------------------------------------------------

EPSILON, DELTA = 1.0, 1e-5
REFUSED = "refused"
EXACT = ("label", "rate", "steps", "dimension", "replace_ratio", "summands", "sampler")
WITHIN = {"bound": 1e-12, "noise_multiplier": 1e-4}  # relative

SCHEMAS = {
    "gray": Schema(kind="images", shape=(1, 28, 28), classes=tuple("0123456789")),
    "colour": Schema(kind="images", shape=(3, 16, 16)),
    "colour labelled": Schema(kind="images", shape=(3, 16, 16), classes=("cat", "dog", "owl")),
    "table": Schema(
        kind="table",
        columns=(
            Column(name="age", kind="numerical", low=0, high=100),
            Column(name="income", kind="numerical", low=-10, high=1000, missing=True),
            Column(name="work", kind="categorical", categories=("none", "part", "full")),
            Column(name="school", kind="ordinal", categories=("low", "middle", "high", "top")),
        ),
        label="owner",
        classes=("no", "yes"),
    ),
}

# Beside every method as it comes: settings that give plans of another structure, or of other sizes. The names are for good, so
# that a setting can be renamed without pinning anew.
_MORE = {"encoder_steps": 50, "encoder_rate": 0.1, "encoder_budget": 0.5}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "merf": {
        "few features": {"features": 500},
        "length scales": {"length_scales": "2,8", "seed": 3},
    },
    "hp": {
        "low orders": {"order": 10, "product_order": 5, "rounds": 3},
        "no products": {"rounds": 0},
    },
    "mepf": {
        "stop": {"stop": True},
        "one moment": {"moments": 1},
        "small second moment": {"second_weight": 0.5, "balance": True},
        "private encoder": {"encoder": "private"},
        "private encoder, larger share": {"encoder": "private", **_MORE},
        "private encoder, stop": {"encoder": "private", "stop": True},
        "centred": {"centre": True, "radius": 0.5},
    },
    "mixture": {
        "not refined": {"refine": False},
        "own directions": {"cluster_directions": 20},
        "own directions, not refined": {"cluster_directions": 20, "refine": False},
        "dct:16": {"codec": "dct:16"},
        "dct:16, own directions": {"codec": "dct:16", "cluster_directions": 8},
        "pca:32": {"codec": "pca:32"},
    },
    "gan": {"small": {"steps": 60, "rate": 0.1, "width": 4, "clip": 0.5}},
    "gan-ft": {"small": {"steps": 500, "public_steps": 5, "width": 4}},
    "gan-mi": {"dct:16": {"codec": "dct:16", "width": 8, "clip": 2.0}},
    "dpaf": {
        "dp-sgd": {"first_phase": "dp-sgd"},
        "small": {
            "asymmetry": 3,
            "steps": 100,
            "rate": 0.5,
            "maps": 4,
            "keep": 1.0,
            "filter_share": 0.3,
        },
        "paper": {"paper_variant": True},
    },
    "sinkhorn": {"small": {"groups": 2, "steps": 50, "rate": 0.1, "clip": 1.0}},
    "gs-wgan": {
        "few shards": {"shards": 10, "rate": 0.3, "steps": 40, "clip": 1.0},
        "not shrunk": {"shrink": 1, "batch": 20},
    },
    "mge": {
        "full": {"covariance": "full"},
        "low-rank": {"covariance": "low-rank"},
        "dct:16": {"codec": "dct:16"},
        "pca:8, full": {"codec": "pca:8", "covariance": "full"},
    },
    "dre": {"dct:16": {"codec": "dct:16", "width": 4, "rate": 0.2, "steps": 50}},
    "llm": {
        "one map": {"maps": 1, "basis": "random"},
        "small": {"projection": 10, "rate": 0.5, "epochs": 3.0},
    },
}


@dataclass(frozen=True)
class Promise:
    """One method, in one setting, for one kind of data and one relation."""

    method: str
    schema: str
    neighbours: Neighbours
    variant: str = ""

    def __str__(self) -> str:
        return _named(self.method, self.variant, self.schema, self.neighbours)

    def made(self) -> Any:
        """In numbers and text: the charges, or that the method refuses."""
        budget = Budget(epsilon=EPSILON, delta=DELTA, neighbours=self.neighbours)
        settings = VARIANTS[self.method][self.variant] if self.variant else {}
        try:
            found = charges_of(get_method(self.method)(**settings), SCHEMAS[self.schema], budget)
        except BadInput:
            return REFUSED
        return [{name: getattr(charge, name) for name in (*EXACT, *WITHIN)} for charge in found]


def charges_of(method: Any, schema: Schema, budget: Budget) -> tuple[Charge, ...]:
    """What a fit of `method` would be charged with."""
    statement = method.promise(schema, budget)
    return tuple(statement.charges)


def promises(method: str) -> list[Promise]:
    return [
        Promise(method, schema, neighbours, variant)
        for variant in ("", *VARIANTS[method])
        for schema in SCHEMAS
        for neighbours in Neighbours
    ]


def differences(made: Any, known: Any) -> list[str]:
    """What is other in `made` than in `known`, in words."""
    if REFUSED in (made, known):
        now, then = ("refused" if one == REFUSED else "a plan" for one in (made, known))
        return [] if now == then else [f"{now} and was {then}"]
    labels, were = ([charge["label"] for charge in one] for one in (made, known))
    if labels != were:
        return [f"releases {labels}, were {were}"]
    return [
        f"{one['label']}: {name} {one[name]}, was {other[name]}"
        for one, other in zip(made, known, strict=True)
        for name in (*EXACT, *WITHIN)
        if not _agree(one[name], other[name], WITHIN.get(name, 0.0))
    ]


def _agree(one: Any, other: Any, tolerance: float) -> bool:
    return one == other if not tolerance else abs(one - other) <= tolerance * abs(other)


# Constants that fits of a few steps need otherwise: large steps and a short memory show in the samples.
QUICKER: list[tuple[Any, str, Any]] = [
    (taught, "DECAY", 0.5),
    *((gswgan, *one) for one in (("WARM_STEPS", 2), ("PHASE_STEPS", 1), ("CRITIC_WIDTH", 8))),
]

# -- the wall without chance -------------------------------------------------------------------------------------------


@contextmanager
def fixed_wall(*, louder: float = 1.0) -> Iterator[None]:
    """All that the wall draws is a function of what is drawn, of how often it was drawn before, and of the shape.

    Noise is standard normal numbers times the deviation asked for, so that a deviation that is a little other gives noise that
    is a little other; `louder` times as much, to try just that. Everything is as it was afterwards.
    """
    calls: dict[str, int] = {}

    def generator(what: str, *shape: int) -> np.random.Generator:
        calls[what] = calls.get(what, 0) + 1
        return np.random.default_rng([*what.encode(), calls[what], *shape])

    def discrete(count: int, scale: float, *_: Any, **__: Any) -> NDArray[np.int64]:
        drawn = generator("discrete", count).standard_normal(count)
        return np.rint(drawn * scale * louder).astype(np.int64)

    class Fast:
        def __call__(self, shape: tuple[int, ...], std: float) -> NDArray[np.float64]:
            return generator("fast", *shape).standard_normal(shape) * std * louder

    def mask(count: int, rate: float) -> NDArray[np.bool_]:
        return generator("mask", count).random(count) < rate

    def parts(count: int, number: int) -> NDArray[np.int64]:
        return generator("parts", count, number).integers(0, number, count)

    def entropy(count: int) -> bytes:
        return generator("entropy", count).bytes(count)

    threads = torch.get_num_threads()
    defaults = PrivateData.__init__.__kwdefaults__
    with ExitStack() as stack, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        stack.callback(torch.set_num_threads, threads)
        stack.enter_context(patch.dict(defaults, {"discrete_sampler": discrete}))
        stack.enter_context(patch.object(noise, "discrete_gaussian", discrete))
        stack.enter_context(patch.object(noise, "FastGaussian", Fast))
        stack.enter_context(patch.object(noise, "poisson_mask", mask))
        stack.enter_context(patch.object(noise, "random_parts", parts))
        stack.enter_context(patch.object(gradients, "os", SimpleNamespace(urandom=entropy)))
        for module, name, value in QUICKER:
            stack.enter_context(patch.object(module, name, value))
        yield


# -- samples -----------------------------------------------------------------------------------------------------------

RECORDS, DRAWN, SEED = 400, 50, 2
LEVELS = 2  # by which a value may differ, of 255; a probability, of 10,000
SHARE = 0.99  # of the values
_MISSING = -1000

# Large steps and a short memory, so that a few steps show in the samples.
_ADAM = {"learning_rate": 0.02, "decay": 0.5}
_GAN = {"rate": 0.25, "steps": 8, "critic_steps": 2, "batch": 12, "latent": 4, "width": 4, **_ADAM}
_GAN |= {"critic_rate": 0.02}
_DPAF = {**_GAN, "asymmetry": 3, "first_steps": 3, "maps": 4}
_DRE = {"rate": 0.25, "steps": 20, "public_batch": 20, "width": 4}
_MATCHED = {"steps": 20, "batch": 20, "hidden": 16, "latent": 5, "learning_rate": 0.015}
_MERF = {**_MATCHED, "features": 64, "block": 16}
_HP = {**_MATCHED, "order": 6, "product_order": 3, "rounds": 2}
_MEPF = {"steps": 10, "batch": 9, "hidden": 16, "latent": 8, "learning_rate": 0.03}
_PRIVATE = {"encoder": "private", "encoder_rate": 0.25, "encoder_steps": 6}
_MI = {"rate": 0.25, "steps": 8, "batch": 12, "latent": 4, "width": 8, **_ADAM}
_TAUGHT = {"batch": 12, "latent": 4, "hidden": 8, "learning_rate": 0.004}
_SINKHORN = {"rate": 0.25, "groups": 2, "steps": 8, **_TAUGHT}
_SHARDS = {"shards": 4, "rate": 0.5, "steps": 6, "phase": 2, **_TAUGHT}
_LLM = {"maps": 2, "projection": 10, "rate": 0.25, "epochs": 3.0}
_MIXTURE = {"candidates": 2}
_CLUSTERS = {"cluster_directions": 5, "refine": False}
_UNDER_EVERY_RELATION: list[tuple[str, str, dict[str, Any]]] = [
    ("merf", "", _MERF),
    ("hp", "", _HP),
    ("mge", "", {}),
    ("mixture", "not refined", {"refine": False}),
    ("gan", "", _GAN),
    ("sinkhorn", "", _SINKHORN),
]


@dataclass(frozen=True)
class Fit:
    """One fit of one method, with a fixed wall."""

    method: str
    data: str
    settings: dict[str, Any]
    variant: str = ""
    public: bool = False  # whether public data go with it
    neighbours: Neighbours = Neighbours.ZERO_OUT

    def __str__(self) -> str:
        return _named(self.method, self.variant, self.data, self.neighbours)

    def made(self) -> dict[str, Any]:
        """In numbers and text. Call it inside `fixed_wall`."""
        values, labels = sampled(self)
        levels = _levels(values, data_of(self.data).schema)
        return {
            "sha256 of values": _digest(values),
            "sha256 of labels": None if labels is None else _digest(labels),
            "mean": round(float(levels[levels != _MISSING].mean()), 3),
            "classes": None if labels is None else np.bincount(labels).tolist(),
            "labels": None if labels is None else labels.tolist(),
            "values": _packed(levels),
        }


def sampled(fit: Fit) -> tuple[NDArray, NDArray[np.int64] | None]:
    """Values and labels of samples; of a classifier, the probabilities that it gives to records, and its choices."""
    data = data_of(fit.data)
    budget = Budget(epsilon=3.0, delta=1e-4, neighbours=fit.neighbours)
    if get_method(fit.method).info.makes == "classifier":
        classifier = LocallyLinearMaps(**fit.settings).fit(data, budget)
        probabilities = classifier.predict_proba(data)[:DRAWN]
        return probabilities, probabilities.argmax(axis=1)
    public = data_of(fit.data, seed=8) if fit.public else None
    made = get_method(fit.method)(**fit.settings).fit(data, budget, public=public)
    sample = made.sample(DRAWN, seed=SEED)
    return sample.values, sample.labels


FITS = [
    *(Fit("merf", data, _MERF) for data in ("gray", "colour", "table")),
    Fit("merf", "gray", {**_MERF, "restarts": 2, "network": "conv"}, "restarts"),
    Fit("merf", "gray", {**_MERF, "length_scales": "2,8", "network": "dense"}, "length scales"),
    *(Fit("hp", data, _HP) for data in ("gray", "colour", "table")),
    Fit("hp", "gray", {**_HP, "network": "dense"}, "dense"),
    *(Fit("mepf", data, _MEPF) for data in ("gray", "colour")),
    Fit("mepf", "gray", {**_MEPF, "stop": True, "loss": "mmd", "weigh": 0.5}, "stop"),
    Fit("mepf", "gray", {**_MEPF, "moments": 1, "network": "resnet", "width": 4}, "one moment"),
    Fit("mepf", "gray", {**_MEPF, "loss": "moving-average", "warp": 0.0}, "moving average"),
    Fit("mepf", "gray", {**_MEPF, **_PRIVATE, "checked": False}, "private encoder"),
    *(Fit("mixture", data, _MIXTURE) for data in ("gray", "table")),
    # Refined images are chosen one after the other: there, noise that is other by a billionth can change them all.
    *(Fit("mixture", data, {"refine": False}, "not refined") for data in ("gray", "colour")),
    Fit("mixture", "gray", {**_MIXTURE, "codec": "dct:16"}, "dct:16"),
    Fit("mixture", "gray", {**_MIXTURE, "codec": "pca:8"}, "pca:8", public=True),
    *(Fit("mixture", data, _CLUSTERS, "own directions") for data in ("gray", "table")),
    *(Fit("gan", data, _GAN) for data in ("gray", "colour")),
    Fit("gan-ft", "gray", {**_GAN, "public_steps": 3}, public=True),
    *(Fit("gan-mi", data, {**_MI, "codec": "dct:16"}) for data in ("gray", "colour")),
    Fit("gan-mi", "gray", {**_MI, "codec": "pca:8", "clip": 0.1}, "pca:8", public=True),
    *(Fit("dpaf", data, _DPAF) for data in ("gray", "colour")),
    Fit("dpaf", "gray", {**_DPAF, "first_phase": "dp-sgd"}, "dp-sgd"),
    Fit("dpaf", "gray", {**_DPAF, "paper_variant": True}, "paper"),
    *(Fit("sinkhorn", data, _SINKHORN) for data in ("gray", "colour")),
    *(Fit("gs-wgan", data, _SHARDS) for data in ("gray", "colour")),
    *(Fit("mge", data, {}) for data in ("gray", "colour")),
    Fit("mge", "gray", {"covariance": "full", "codec": "dct:16"}, "full"),
    Fit("mge", "gray", {"covariance": "low-rank", "rank": 3, "codec": "pca:8"}, "low", public=True),
    Fit("dre", "gray", {**_DRE, "codec": "dct:16"}, public=True),
    Fit("dre", "colour", {**_DRE, "codec": "pca:8", "cap": False}, "pca:8", public=True),
    *(Fit("llm", data, _LLM) for data in ("gray", "table")),
    Fit("llm", "gray", {**_LLM, "basis": "random"}, "random"),
    # Where the number of records is private, and where a record is replaced.
    *(
        Fit(method, "gray", settings, variant, neighbours=neighbours)
        for method, variant, settings in _UNDER_EVERY_RELATION
        for neighbours in (Neighbours.ADD_REMOVE, Neighbours.REPLACE_ONE)
    ),
]


@cache
def data_of(kind: str, seed: int = 1) -> Dataset:
    """Three classes of images, or two of rows, that are easy to tell apart."""
    rng = np.random.default_rng(seed)
    if kind == "table":
        labels = rng.integers(0, 2, RECORDS)
        age = np.clip(rng.normal(30 + 30 * labels, 10), 0, 100)
        income = np.clip(rng.normal(200 + 3 * age, 50), -10, 1000)
        income[rng.random(RECORDS) < 0.1] = np.nan
        work, school = rng.integers(0, 3, RECORDS), np.minimum(rng.integers(0, 4, RECORDS), 3)
        values = np.stack([age, income, work, np.where(labels, 3, school)], axis=1)
        return Dataset.from_values(values.astype(np.float32), labels, schema=SCHEMAS["table"])
    shape = (1, 8, 8) if kind == "gray" else (3, 10, 6)
    labels = np.arange(RECORDS) % 3
    prototypes = 255 * np.random.default_rng(0).random((3, *shape))  # the same for public images
    noisy = prototypes[labels] + rng.normal(0, 30, (RECORDS, *shape))
    images = np.clip(noisy, 0, 255).astype(np.uint8)
    if kind == "gray":
        return Dataset.from_arrays(images, labels, classes=3)
    return Dataset.from_arrays(images)


def far(made: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """What is other in the samples, in words; nothing where labels are the same and nearly all values nearly so."""
    if made["labels"] != known["labels"]:
        return [f"labels {made['classes']}, were {known['classes']}"]
    values, were = (_unpacked(one["values"]).astype(int) for one in (made, known))
    if values.shape != were.shape:
        return [f"values of shape {values.shape}, were {were.shape}"]
    distance = np.abs(values - were)
    share = float((distance <= LEVELS).mean())
    if share >= SHARE:
        return []
    return [
        f"{share:.1%} of the values are within {LEVELS} levels; the mean is {made['mean']} and was {known['mean']}, "
        f"the mean distance {distance.mean():.2f}, the largest {distance.max()}"
    ]


def _levels(values: NDArray, schema: Schema) -> NDArray:
    """Whole numbers: an image's own; 0 … 255 between the ends of a table's column; 0 … 10,000 for a probability."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.float64:
        return np.rint(values * 10_000).astype(np.int16)
    ends = [
        (c.low, c.high) if c.kind == "numerical" else (0, len(c.categories) - 1)
        for c in schema.columns
    ]
    low, high = np.array(ends, dtype=float).T
    scaled = np.rint((values - low) / (high - low) * 255)
    return np.where(np.isnan(scaled), _MISSING, scaled).astype(np.int16)


def _digest(array: NDArray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _packed(array: NDArray) -> dict[str, Any]:
    squeezed = zlib.compress(np.ascontiguousarray(array).tobytes(), 9)
    text = base64.b64encode(squeezed).decode()
    return {"shape": list(array.shape), "dtype": str(array.dtype), "zlib": text}


def _unpacked(packed: dict[str, Any]) -> NDArray:
    content = zlib.decompress(base64.b64decode(packed["zlib"]))
    return np.frombuffer(content, dtype=packed["dtype"]).reshape(packed["shape"])


# -- the files ---------------------------------------------------------------------------------------------------------


@cache
def known(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def methods() -> list[str]:
    return sorted(info.name for info in list_methods())


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    charges = {str(one): one.made() for name in methods() for one in promises(name)}
    _write(CHARGES, charges)
    samples = {}
    for fit in FITS:
        with fixed_wall():
            samples[str(fit)] = fit.made()
    _write(SAMPLES, samples)


def _write(path: Path, content: dict[str, Any]) -> None:
    """A line for every entry, so that differences can be read."""
    lines = (f"{json.dumps(k)}: {_laid_out(v)}" for k, v in content.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _laid_out(value: Any) -> str:
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(f"  {json.dumps(one)}" for one in value) + "\n]"


def _named(method: str, variant: str, data: str, neighbours: Neighbours) -> str:
    return f"{method}{f' ({variant})' if variant else ''}: {data}, {neighbours.value}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files anew")
    if not parser.parse_args().write:
        parser.error("this writes the pinned results anew; say --write if that is meant")
    write()
