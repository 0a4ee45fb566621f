"""The wall in the source: rules that are read off the syntax tree, so that nobody has to remember them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import sfumato

SOURCE = Path(sfumato.__file__).parent


def modules(*, inside: bool) -> list[Path]:
    # What tests import may look at everything.
    every = (p for p in SOURCE.rglob("*.py") if p.parent.name != "testing")
    return [p for p in every if (p.parent.name == "privacy") == inside]


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def wall_breaches(source: str) -> list[str]:
    """What in a module outside the wall would go around it."""
    tree = ast.parse(source)
    found = [
        n
        for n in imported(tree)
        if n.split(".")[0] == "opendp"
        or n.startswith(("sfumato.privacy.noise", "sfumato.privacy.memory"))
        or n.endswith((".Remembered", ".RememberedRows"))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_PrivateData__"):
            found.append(node.attr)
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and "_PrivateData__" in node.value
        ):
            found.append(node.value)
        if isinstance(node, ast.Attribute) and node.attr in (
            "discrete_gaussian",
            "FastGaussian",
            "poisson_mask",
            # The gate's four doors are the only ones.
            "_private",
            "noisy_sum",
            "poisson_steps",
            "noisy_gradient",
            "noisy_groups",
            "noisy_shards",
        ):
            found.append(node.attr)
    return found


def written_to(target: ast.expr) -> list[ast.expr]:
    """What an assignment changes: `a.b` of `a.b[c] = …` and of `x, a.b = …`."""
    if isinstance(target, ast.Tuple | ast.List):
        return [place for one in target.elts for place in written_to(one)]
    if isinstance(target, ast.Subscript | ast.Starred):
        return written_to(target.value)
    return [target]


PRIVATE = ("batch", "shard", "group")  # what private rows are called, where no annotation says it


def kept_rows(tree: ast.AST) -> list[str]:
    """Functions that are given a batch of private rows and keep, log, print or tell something of it."""
    found = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        given = [*function.args.args, *function.args.kwonlyargs, *function.args.posonlyargs]
        kinds = [ast.unparse(a.annotation) for a in given if a.annotation is not None]
        private = any(kind.strip("\"'").split(" | ")[0] == "Batch" for kind in kinds)
        if not private and not any(a.arg in PRIVATE and a.annotation is None for a in given):
            continue
        name = getattr(function, "name", "lambda")
        names = (n for n in ast.walk(function) if isinstance(n, ast.Name))
        local = {n.id for n in names if isinstance(n.ctx, ast.Store)} - {"self"}
        for node in ast.walk(function):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AugAssign | ast.AnnAssign):
                targets = [node.target]
            for target in targets:
                for place in written_to(target):
                    outside = isinstance(place, ast.Name) and place.id not in local
                    if isinstance(place, ast.Attribute) or outside:
                        found.append(f"{name} assigns {ast.unparse(place)}")
            if isinstance(node, ast.Global | ast.Nonlocal):
                found.append(f"{name} writes outside itself")
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                owner, _, verb = called.rpartition(".")
                grows = verb in ("append", "extend", "insert", "add", "update", "setdefault")
                in_place = verb.endswith("_") and not verb.startswith("_")
                root = owner.split(".")[0].split("[")[0].split("(")[0]
                kept = (grows or in_place) and bool(root) and root not in local
                if (
                    called in ("print", "setattr")
                    or verb in ("log", "note", "stage")
                    or (kept and not in_place_on_fresh(owner))
                ):
                    found.append(f"{name} calls {called}")
    return found


def in_place_on_fresh(owner: str) -> bool:
    """Whether what is written to in place was just made by a call: `f(x).mul_(2)`, `torch.exp(x).add_(1)`."""
    return owner.endswith(")")


@pytest.mark.parametrize("path", modules(inside=False), ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_function_that_is_given_rows_keeps_logs_and_prints_nothing(path):
    if (
        path.parent.name == "data"
    ):  # readers, and the owner's look at the data before anything is paid
        return
    assert kept_rows(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", modules(inside=False), ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_outside_draws_noise_or_reaches_into_private_data(path):
    assert wall_breaches(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "attempt",
    [
        "import opendp.prelude as dp",
        "from sfumato.privacy.noise import FastGaussian",
        "from sfumato.privacy import noise",
        "rows = data._PrivateData__rows",
        "rows = getattr(data, '_PrivateData__rows')",
        "release = data._private.noisy_sum(phi, 1.0, label='x')",
        "def rows(self, batch: Batch):\n    self.last = batch",
        "def rows(batch: Batch | None):\n    kept.append(batch)",
        "def rows(batch: Batch):\n    print(batch.values.mean())",
        "def rows(batch: Batch):\n    global last\n    last = batch",
        "def rows(batch: 'Batch'):\n    kept['x'] = batch.values",
        "def rows(batch):\n    kept.insert(0, batch)",
        "def rows(batch: Batch):\n    buffer.copy_(batch.values)",
        "rows = lambda batch: kept.append(batch)",
    ],
)
def test_the_check_of_the_source_sees_each_way_around(attempt):
    assert wall_breaches(attempt) + kept_rows(ast.parse(attempt))


@pytest.mark.parametrize("path", modules(inside=True), ids=lambda p: p.name)
def test_nothing_inside_prints_or_logs(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not imported(tree) & {"logging", "warnings", "rich", "sys", "sfumato.progress"}
    calls = [
        n.func.id
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    ]
    assert "print" not in calls


def test_only_the_base_class_hands_rows_to_the_wall():
    for path in (SOURCE / "methods").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        calls = {
            n.func.attr
            for n in ast.walk(tree)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
        }
        if path.name != "base.py":
            assert "fit" not in functions, path
            assert not calls & {"batches", "take"}, path
            assert "sfumato.data.Dataset" not in imported(tree), path
