"""A set that is plainly not what was stated is refused before anything is paid; a single bad record never is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import sfumato
from sfumato.cli.main import app
from sfumato.data import Column, Dataset, Schema, load
from sfumato.data.inspection import refuse_implausible
from sfumato.data.sources import ArraySource
from sfumato.errors import BadInput

RNG = np.random.default_rng(0)
IMAGES = RNG.random((60, 8, 8)).astype(np.float32)
LABELS = np.arange(60) % 10


def stored(tmp_path: Path, images: Any, labels: Any = LABELS, **facts: Any) -> Dataset:
    np.savez(tmp_path / "x.npz", images=images, labels=labels)
    facts.setdefault("value_range", (0, 1))
    return load(tmp_path / "x.npz", classes=10, **facts)


FAR_OFF = {
    "0..255": IMAGES * 255,
    "-1..1": IMAGES * 2 - 1,
    "z-scores": (IMAGES - IMAGES.mean()) / IMAGES.std(),
    "NaN": IMAGES * np.nan,
    "inf": IMAGES + np.inf,
    "negative": IMAGES - 5,
}


@pytest.mark.parametrize("kind", FAR_OFF)
def test_images_far_off_their_range_are_refused(tmp_path, kind):
    with pytest.raises(BadInput, match=r"range 0 … 1 .*--range"):
        refuse_implausible(stored(tmp_path, FAR_OFF[kind]))


def test_single_bad_records_are_let_through(tmp_path):
    images = IMAGES.copy()
    for index, bad in enumerate((np.nan, np.inf, -np.inf, 7.0, 1e30)):
        images[index] = bad
    labels = LABELS.copy()
    labels[10:15] = (99, -1, 10, -(2**60), 2**60)
    refuse_implausible(stored(tmp_path, images, labels))
    schema = Schema(kind="images", shape=(1, 8, 8))
    lone = ArraySource(np.full((1, *schema.shape), np.nan, np.float32), None)
    refuse_implausible(Dataset(lone, schema, "one"))


def test_the_black_corners_of_a_round_scan_may_lie_below_the_range(tmp_path):
    y, x = np.mgrid[-1:1:64j, -1:1:64j]
    scan = np.where(x**2 + y**2 <= 1, 40.0, -2000.0).astype(np.float32)
    refuse_implausible(stored(tmp_path, np.repeat(scan[None], 60, 0), value_range=(-1024, 3071)))


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_labels_that_count_from_one_are_refused(tmp_path, kind):
    facts = {} if kind is np.float32 else {"value_range": None}
    images = IMAGES if kind is np.float32 else (IMAGES * 255).astype(np.uint8)
    data = stored(tmp_path, images, LABELS + 1, **facts)
    with pytest.raises(BadInput, match=r"count from 0.*--allow-empty"):
        refuse_implausible(data)
    refuse_implausible(data, allow_empty=True)
    with pytest.raises(BadInput, match="Most labels"):
        refuse_implausible(stored(tmp_path, images, LABELS + 90, **facts), allow_empty=True)


TABLE = Schema(
    kind="table",
    columns=(
        Column(name="age", kind="numerical", low=0, high=120),
        Column(name="job", kind="categorical", categories=("clerk", "nurse"), missing=True),
        Column(name="sex", kind="categorical", categories=("f", "m")),
    ),
    label="ill",
    classes=("no", "yes"),
)


def table(folder: Path, lines: list[str]) -> Dataset:
    (folder / "t.csv").write_text("age,job,sex,ill\n" + "\n".join(lines) + "\n")
    return load(folder / "t.csv", schema=TABLE)


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("4000,clerk,f,%s", "'age'"),
        (",clerk,f,%s", "'age'"),
        ("40,Clerk,f,%s", "'job'"),
        ("40,clerk,female,%s", "'sex'"),
        ("40,clerk,f,1%s", "Most labels"),
    ],
)
def test_a_table_whose_column_is_not_what_the_schema_says_is_refused_by_name(
    tmp_path, line, column
):
    good = [f"40,nurse,m,{label}" for label in ("yes", "no") * 20]
    bad = [line % label for label in ("yes", "no") * 200]
    with pytest.raises(BadInput, match=column) as caught:
        refuse_implausible(table(tmp_path, bad))
    for private in ("4000", "Clerk", "female", "1yes"):
        assert private not in str(caught.value)
    refuse_implausible(table(tmp_path, good + bad[:30]))


def test_a_column_that_may_be_empty_may_be_mostly_so(tmp_path):
    lines = [f"40,{'nurse' if n % 20 == 0 else ''},m,{('yes', 'no')[n % 2]}" for n in range(200)]
    refuse_implausible(table(tmp_path, lines))


# ---------------------------------------------------------------------------------------- where it acts


def fit(data: Dataset, **more: Any) -> Any:
    method = sfumato.Mixture(refine=False, seed=0)
    return method.fit(data, sfumato.Budget(epsilon=5, delta=1e-4), **more)


def test_fit_refuses_before_it_pays_and_writes_nothing(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(BadInput, match="Most records"):
        fit(stored(tmp_path, IMAGES * 255), out=run)
    assert not run.exists()
    empty = stored(tmp_path, IMAGES, np.minimum(LABELS, 8))
    with pytest.raises(BadInput, match="without any record"):
        fit(empty, out=run)
    assert not run.exists()
    fit(empty, out=run, allow_empty=True)
    # A finished run is merely loaded, so nobody looks at rows.
    fit(empty, out=run, resume=True)


def test_the_command_line_can_allow_an_empty_class(tmp_path):
    stored(tmp_path, (IMAGES * 255).astype(np.uint8), np.minimum(LABELS, 8), value_range=None)
    path, run = str(tmp_path / "x.npz"), str(tmp_path / "run")
    args = ["fit", "mixture", "--data", path, "--classes", "10", "--epsilon", "5", "--delta"]
    args += ["1e-4", "--set", "refine=false", "--out", run, "--json"]
    refused = CliRunner().invoke(app, args)
    assert refused.exit_code == 2
    assert "--allow-empty" in refused.output
    assert not Path(run).exists()
    made = CliRunner().invoke(app, [*args, "--allow-empty"])
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["run"] == run


def test_a_comparison_tells_the_operator_and_writes_nothing(tmp_path):
    from sfumato.report.comparison import parse_config
    from sfumato.report.grid import compare

    stored(tmp_path, IMAGES * 255)
    path = str(tmp_path / "x.npz")
    config = {"train": path, "test": path, "classes": 10, "value_range": [0, 1]}
    config |= {"epsilons": [1.0], "delta": 1e-5, "methods": {"mixture": {}}}
    with pytest.raises(BadInput, match="Most records"):
        compare(parse_config(config), tmp_path / "out")
    assert not (tmp_path / "out").exists()
