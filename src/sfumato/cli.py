"""The command line: `sfumato methods · plan · fit · sample · evaluate · report · compare · data · demo`.

Here are the group and how a command ends; each command is in the module that `COMMANDS` names.

Results go to standard output, progress and warnings to standard error, and the exit code says what happened (see
`EXIT_CODES`). Everything printed is public: a plan is made from public facts, a statement and a sample come from behind
the wall, and a metric says which real records it was computed from. An error never quotes a private value: sfumato's
own errors are one sentence, anything else is named by its type only.

Torch and scikit-learn take seconds to import, so a verb imports what it needs when it runs and `--help` stays quick.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from sfumato._version import __version__
from sfumato.errors import BadInput, SfumatoError
from sfumato.printing import one_line, say

# In the order in which one uses them, which is that of the help.
COMMANDS = (
    "fit_cli:methods",
    "fit_cli:plan",
    "fit_cli:fit",
    "fit_cli:sample",
    "pretrain_cli:pretrain",
    "explain_cli:explain",
    "judge_cli:evaluate",
    "judge_cli:report",
    "run_cli:verify",
    "run_cli:export",
    "compare_cli:compare",
    "data_cli:data",
    "demo_cli:demo",
)

EXIT_CODES = {
    0: "done",
    1: "an unexpected error (a bug)",
    2: "bad input: a wrong option, value, name or file",
    3: "a data set could not be fetched from any of its sources",
    4: "the privacy budget would be exceeded, or a method spent something else than it promised",
    5: "a saved file is damaged",
    6: "the output already exists, or a resumed run was asked for other settings",
    7: "the machine ran out of memory or disk space",
    130: "interrupted",
}
OUT_OF_RESOURCES = 7
INTERRUPTED = 130


class _Commands(click.Group):
    """A group whose every ending is one sentence and an exit code, whoever calls it."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> NoReturn:
        given = list(sys.argv[1:] if args is None else args)
        extra.pop("standalone_mode", None)
        extra["prog_name"] = "sfumato"
        try:
            code = super().main(given, standalone_mode=False, **extra)
            sys.stdout.flush()
        except BaseException as error:
            if isinstance(error, SystemExit):
                raise
            if "--debug" in given and isinstance(error, Exception) and not _is_usage(error):
                raise
            code = _explain(error, given)
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            guess = f"Did you mean {near[0]}? " if near else ""
            raise BadInput(
                f"There is no command {name!r}. {guess}The commands are "
                f"{', '.join(self.list_commands(ctx))}; type sfumato --help."
            )
        return super().resolve_command(ctx, args)


def _is_usage(error: BaseException) -> bool:
    return isinstance(error, click.exceptions.Exit | click.Abort | click.ClickException)


def _explain(error: BaseException, args: list[str]) -> int:
    """Say on standard error, in one sentence, why the command ended; returns the exit code."""
    again = shlex.join(["sfumato", *args])
    if next((a for a in args if not a.startswith("-")), "") == "fit" and "--resume" not in args:
        again += " --resume"
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SfumatoError):
        say(f"Error: {one_line(error)}")
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        say(f"Interrupted; nothing is lost: type {again} to go on.")
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        message = one_line(error.format_message()).rstrip(".")
        context = getattr(error, "ctx", None)
        verb = context.command_path if context is not None else "sfumato"
        say(f"Error: {message}; type {verb} --help to see what it takes.")
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        # The reader (head, less) left: there is nobody to tell, and the last flush must not fail either.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" while writing {error.filename}" if error.filename else ""
        say(f"Error: The disk is full{where}; free some space and type {again} to go on.")
        return OUT_OF_RESOURCES
    if _is_out_of_memory(error):
        say(
            "Error: The machine ran out of memory; close other programs, or make the batches or the "
            "method smaller (sfumato methods NAME lists its settings for --set)."
        )
        return OUT_OF_RESOURCES
    if isinstance(error, OSError) and error.filename:
        say(
            f"Error: Cannot use {error.filename}: {error.strerror or type(error).__name__}; "
            "check the path and its permissions."
        )
        return BadInput.exit_code
    say(
        f"Error: Something unexpected happened ({type(error).__name__}), which is a bug in sfumato; "
        f"type {shlex.join(['sfumato', '--debug', *args])} to see where."
    )
    return 1


def _is_out_of_memory(error: BaseException) -> bool:
    # Torch reports a failed allocation on the CPU as a plain RuntimeError.
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error))
    )


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog="Exit codes: "
    + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    + ".",
)
@click.version_option(__version__, prog_name="sfumato")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.pass_context
def app(context: click.Context) -> None:
    """Differentially private synthetic data with a guarantee that anyone can check.

    \b
    Example:
      sfumato demo
      sfumato methods
      sfumato plan merf --data fashion-mnist:train --epsilon 1 --delta 1e-5
      sfumato fit merf --data fashion-mnist:train --epsilon 1 --delta 1e-5 --out runs/first
      sfumato sample runs/first -n 60000 --out synthetic.npz
      sfumato evaluate runs/first --real fashion-mnist:test
      sfumato report runs/first
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _place in COMMANDS:
    _module, _, _name = _place.partition(":")
    app.add_command(getattr(import_module(f"sfumato.{_module}"), _name))


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show ε shows a question mark; it must not end the command.
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    app.main()
