"""Every command that the pages show is one that the command line takes; and all but those listed here, with a reason, are run.

A command is a line of a fenced block that begins with `sfumato` or `$ sfumato`. Nothing has to be marked on a page: a new command
is parsed at once, and run by the slow test, with settings made tiny (`TINY`), in a folder with what the page takes for granted.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import click
import numpy as np
import pytest

import sfumato
from runs import BUDGET, run, succeed
from sfumato.cli.main import app
from sfumato.testing.methods import small_table

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "plugin" / "README.md",
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.parent.name != "tutorials"),
]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
_BLOCK = re.compile(r"^ *``` *(\w*)[^\n]*\n(.*?)^ *```", re.M | re.S)
_INLINE = re.compile(r"`(sfumato [a-z][^`\n]*)`")

# What is not run here, and why.
NOT_RUN = {
    "audit mechanism": "a minute; the auditor's tutorial runs it",
    "reproduce merf/table-3": "minutes to hours; test_reproduce.py runs one small",
    "data get": "fetches; test_data_named.py does, marked network",
    "new-method": "test_new_method.py follows CONTRIBUTING to the letter",
    "--engine ray": "a cluster; test_ray_command.py starts one",
    "device=cuda": "a GPU",
    "ledger release-unused": "of a run that was killed; test_ledger_of_a_data_set.py kills one",
    "studio runs": "serves until it is stopped; test_studio.py starts and stops one",
    "fit pixels": "of another package; test_plugin.py installs it",
    "methods pixels": "the same",
    "sample runs/pixels": "the same",
}
# The same commands at a size that takes seconds: sets that need no download, few samples, few steps.
TINY = (
    (r"(?<![\w-])(fashion-mnist|mnist|chest-xray):", "digits:"),
    (r"--data mnist ", "--data digits:train "),
    (r"--unit patient ", ""),  # digits have none
    (r"(quickdraw|cifar10|font-digits:train)(?=\s)", "public.npz"),
    (r"adult:train", "table.csv"),
    (r"-n 60000", "-n 100"),
    (r'--class "Ankle boot" --class Sandal', "--class 9 --class 5"),  # of digits
    (r"--real digits:test", "--real digits:test --metrics accuracy.logreg --no-baselines"),
    (r"(fit merf) (?=--data(?!.*--set))", r"\1 --set features=100 --set steps=10 "),
    (r"(audit run merf)", r"\1 --set features=100 --set steps=10 --canaries 24"),
    (r"(audit run runs/first)", r"\1 --canaries 24"),
    (r"steps=6000", "steps=20"),
    (r"(fit pearl)", r"\1 --set features=100 --set steps=10"),
    (r"(fit evolve)", r"\1 --set rounds=1 --set population=8"),
    (r"(fit llm)", r"\1 --set epochs=1"),
    (
        r"(fit gan-ft) --data cifar10:train --public photos:train --preset ([\w-]+)",
        r"\1 --data digits:train --public public.npz --preset \2:cifar10 --set steps=2 --set public_steps=2 --set width=4",
    ),
    (r"(pretrain (?!.*pca).*--out)", r"--steps 5 --width 8 \1"),
    (r"--steps 5 --width 8 pretrain", "pretrain --steps 5 --width 8"),
    (r"examples/compare.toml", "compare.toml"),
)


def commands(text: str) -> list[tuple[str, bool]]:
    """The commands of a page's blocks in order, each with whether the page shows it fail."""
    found = []
    for language, body in _BLOCK.findall(text):
        if language not in ("", "console", "bash", "sh"):
            continue
        lines = body.replace("\\\n", " ").splitlines()
        for line, after in zip(lines, [*lines[1:], ""], strict=True):
            if typed := re.match(r"\s*(?:\$ )?(sfumato .*)", line):
                found.append((typed[1], after.startswith("Error:")))
    return found


def words_of(command: str) -> list[str]:
    """What the shell would hand over: without comments, pipes and redirections."""
    words = shlex.split(command, comments=True)[1:]
    end = next((i for i, w in enumerate(words) if w in ("|", "&&", ">") or w[:2] == "2>"), None)
    return words[:end]


def understood(words: list[str]) -> None:
    """Raises what click raises for an unknown command, option, choice or number, or a missing argument; runs nothing."""
    context: click.Context = app.make_context("sfumato", list(words))
    command: click.Command = app
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_of_a_page_is_understood(page):
    for command, _ in commands(page.read_text()):
        understood(words_of(command))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_command_of_a_tutorial_is_understood(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    lines = [line for cell in cells for line in "".join(cell["source"]).splitlines()]
    typed = [line[1:] for line in lines if line.startswith("!sfumato")]
    for command in typed:
        understood(words_of(command))
    assert typed or notebook.stem == "engineer"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_prose_says_of_options_is_so(page):
    """Commands within a sentence are cut short (`sfumato fit … --resume`): their verb and their options must be there."""
    for inline in _INLINE.findall(page.read_text()):
        words = [w.strip("[]…,") for w in inline.split()[1:]]
        verbs = re.split(r"`?,? ", inline)[1:2] if "," in inline.split()[1] else words[:1]
        command: click.Command | None = app.get_command(click.Context(app), verbs[0].strip("`,…"))
        assert command is not None, inline
        if isinstance(command, click.Group) and len(words) > 1:
            command = command.get_command(click.Context(command), words[1].rstrip(","))
            assert command is not None, inline
        known = {
            name for option in command.params for name in (*option.opts, *option.secondary_opts)
        }
        for word in words:
            if word.startswith("-") and word != "-":
                assert word.partition("=")[0] in known | {"--help", "--debug"}, inline


@pytest.mark.parametrize(
    "wrong",
    ["fit merf --datta x", "plam merf", "sample runs/x -n many --out y", "ledger burn x", "report"],
)
def test_a_command_that_is_none_is_noticed(wrong):
    with pytest.raises((click.ClickException, sfumato.SfumatoError)):
        understood(words_of(f"sfumato {wrong}"))


def test_a_page_is_read_as_the_reader_does():
    typed = "$ sfumato card runs/first \\\n    --out x   # why\n$ make demo\n$ sfumato verify x 2>/dev/null"
    page = f"```console\n{typed}\nError: no.\n```\n"
    (first, fails), (second, failing) = commands(page)
    assert words_of(first) == ["card", "runs/first", "--out", "x"] and not fails
    assert words_of(second) == ["verify", "x"] and failing


def reason_not_to_run(command: str) -> str | None:
    return next((why for part, why in NOT_RUN.items() if part in command), None)


def test_whatever_is_left_out_is_on_a_page():
    shown = " ".join(command for page in PAGES for command, _ in commands(page.read_text()))
    assert not [part for part in NOT_RUN if part not in shown]


def furnished(folder: Path, page: Path) -> None:
    """What a page takes for granted: a run, folders of pictures, public pictures, a table, a comparison's file."""
    rng = np.random.default_rng(0)
    public = rng.integers(0, 256, (100, 8, 8), dtype=np.uint8)
    sfumato.Dataset.from_arrays(public, np.arange(100) % 10, classes=10).save(folder / "public.npz")
    small_table(200).save(folder / "table.csv")
    (folder / "visits.csv").write_text("age,2019,outcome\n" + "67,3,home\n" * 20)
    text = page.read_text()
    channels = 3 if "--channels 3" in text else 1
    for name in ("scans", "photos"):
        pictures = rng.integers(0, 256, (40, channels, 16, 16), dtype=np.uint8)
        sfumato.Dataset.from_arrays(pictures, np.arange(40) % 2, classes=("ill", "normal")).save(
            folder / name
        )
    if "--labels labels.csv" in text:  # then they lie flat
        (folder / "photos").rename(folder / "sorted")
        (folder / "photos").mkdir()
        lines = ["file,finding,patient_id"]
        for i, path in enumerate(sorted((folder / "sorted").rglob("*.png"))):
            shutil.copy(path, folder / "photos" / f"{i}.png")
            lines.append(f"{i}.png,{path.parent.name},p{i // 2}")
        (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    compared = (ROOT / "examples" / "compare.toml").read_text()
    for pattern, tiny in ((r"steps = \d+", "steps = 5"), (r"features = \d+", "features = 50")):
        compared = re.sub(pattern, tiny, compared)
    compared = re.sub(r"epsilons = .*", "epsilons = [1.0]", compared)
    compared = re.sub(r"seeds = .*", "seeds = [0]", compared)
    compared = re.sub(r"metrics = .*", 'metrics = ["accuracy.logreg"]', compared)
    (folder / "compare.toml").write_text(compared)


RUN_PAGES = [
    page
    for page in PAGES
    if any(not reason_not_to_run(command) for command, _ in commands(page.read_text()))
]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_commands_of_a_page_work_one_after_another(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    furnished(tmp_path, page)
    wanted = [(c, f) for c, f in commands(page.read_text()) if not reason_not_to_run(c)]
    first = next((c for c, _ in wanted if "runs/first" in c), "")
    if first and "--out runs/first" not in first:
        succeed("fit", "mixture", "--data", "digits:train", *BUDGET, "--out", "runs/first")
    for command, fails in wanted:
        for pattern, tiny in TINY:
            command = re.sub(pattern, tiny, command)
        words = words_of(command)
        for i, word in enumerate(words[:-1]):  # a page may begin anew in the same folder
            if word == "--out" and words[0] == "fit" and Path(words[i + 1]).exists():
                shutil.rmtree(words[i + 1])
        done = run(*words)
        assert (done.exit_code != 0) == fails, f"{shlex.join(words)}\n{done.output}"
