"""The command line: `sfumato methods · check · plan · fit · sample · evaluate · report · compare · data · demo`.

Here are the group and how a command ends; each command is in the module that `COMMANDS` names.

Results go to standard output, progress and warnings to standard error, and the exit code says what happened (see
`EXIT_CODES`). Everything printed is public: a plan is made from public facts, a statement and a sample come from behind
the wall, and a metric says which real records it was computed from; but for `check`, which shows the owner private data and
says so. An error never quotes a private value: sfumato's own errors are one sentence, anything else is named by its type only.

Torch and scikit-learn take seconds to import, so a verb imports what it needs when it runs and `--help` stays quick.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from sfumato._version import __version__
from sfumato.cli.printing import one_line, say
from sfumato.errors import BadInput, SfumatoError, Terminated, out_of_resources, printable
from sfumato.files import close_writers

# In the order in which one uses them, which is that of the help.
COMMANDS = (
    "fit:methods",
    "check:check",
    "fit:plan",
    "fit:fit",
    "fit:sample",
    "pretrain:pretrain",
    "explain:explain",
    "judge:evaluate",
    "judge:report",
    "card:card",
    "run:verify",
    "run:export",
    "ledger:ledger",
    "audit:audit",
    "compare:compare",
    "compare:published",
    "reproduce:reproduce",
    "studio:studio",
    "data:data",
    "schema:schema",
    "new_method:new_method",
    "demo:demo",
)

EXIT_CODES = {
    0: "done",
    1: "an unexpected error (a bug)",
    2: "bad input: a wrong option, value, name or file",
    3: "a data set could not be fetched from any of its sources",
    4: "the privacy budget would be exceeded, or a method spent something else than it promised",
    5: "a saved file is damaged",
    6: "the output already exists, or a resumed run was asked for other settings",
    7: "the machine ran out of disk space, memory, file handles or threads",
    8: "an audit found a mechanism that gives away more than it claims",
    130: "interrupted (Ctrl-C, SIGINT)",
    143: "ended from outside (SIGTERM)",
}
INTERRUPTED = 130


class _Commands(click.Group):
    """A group whose every ending is one sentence and an exit code, whoever calls it."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> NoReturn:
        given = list(sys.argv[1:] if args is None else args)
        extra.pop("standalone_mode", None)
        extra["prog_name"] = "sfumato"
        for stream in (sys.stdout, sys.stderr):
            # A terminal that cannot show ε shows a question mark; it must not end the command.
            with contextlib.suppress(AttributeError, ValueError):
                stream.reconfigure(errors="replace")  # type: ignore[union-attr]
        with _terminable():
            try:
                _check_words(given)
                code = super().main(given, standalone_mode=False, **extra)
                if sys.stdout is not None:  # it was closed before we began
                    sys.stdout.flush()
            except SystemExit:
                raise
            except BaseException as error:
                if "--debug" in given and isinstance(error, Exception) and not _is_usage(error):
                    raise
                code = _explain(error, given)
            finally:
                close_writers()
                _give_up_streams()
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


def _check_words(words: Sequence[str]) -> None:
    """What no path, name or number can be is refused for every option alike."""
    for word in words:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        where = option or "An argument"
        if not value and (equals or not option):
            raise BadInput(f"{where} is empty; give a value or leave it out.")
        try:
            os.fsencode(word)
        except UnicodeEncodeError:
            raise BadInput(f"{where} holds half a character; type it anew.") from None
        if "\0" in word:
            raise BadInput(f"{where} holds a NUL character; type it anew.")


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM becomes an exception here, as Ctrl-C is one, so that whoever is writing cleans up behind himself.

    Only the first: what cleans up is not to be cut short. A handler of the host program's own is left alone.
    """
    ours = os.getpid()

    def leave(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN if os.getpid() == ours else signal.SIG_DFL)
        if os.getpid() != ours:  # a forked worker has nothing to explain
            os.kill(os.getpid(), number)
            return
        raise Terminated

    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _give_up_streams() -> None:
    """What a full disk or a reader who left did not take is dropped, or Python would fail on it again when it ends."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except ValueError:  # closed
            continue
        except OSError:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _explain(error: BaseException, args: list[str]) -> int:
    """Say on standard error, in one sentence, why the command ended; returns the exit code."""
    again = printable(shlex.join(["sfumato", *args]))
    if next((a for a in args if not a.startswith("-")), "") == "fit" and "--resume" not in args:
        again += " --resume"
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        say(f"Interrupted; nothing is lost: type {again} to go on.")
        return INTERRUPTED
    if isinstance(error, Terminated):
        say(f"Ended from outside; nothing is lost: type {again} to go on.")
        return error.exit_code
    if isinstance(error, click.ClickException):
        message = one_line(error.format_message()).rstrip(".")
        context = getattr(error, "ctx", None)
        verb = context.command_path if context is not None else "sfumato"
        say(f"Error: {message}; type {verb} --help to see what it takes.")
        return error.exit_code
    lack = out_of_resources(error)
    if lack is not None:
        say(f"Error: {one_line(lack.cause)}; {lack.remedy}, then type {again} to go on.")
        return lack.exit_code
    if isinstance(error, SfumatoError):
        say(f"Error: {one_line(error)}")
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        return 1  # the reader (head, less) left: there is nobody to tell
    if isinstance(error, OSError) and error.filename:
        say(
            f"Error: Cannot use {one_line(error.filename)}: {error.strerror or type(error).__name__}; "
            "check the path and its permissions."
        )
        return BadInput.exit_code
    say(
        f"Error: Something unexpected happened ({type(error).__name__}), which is a bug in sfumato; "
        f"type {printable(shlex.join(['sfumato', '--debug', *args]))} to see where."
    )
    return 1


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
      sfumato check scans/ --image-size 64 --epsilon 1 --delta 1e-5
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
    app.add_command(getattr(import_module(f"sfumato.cli.{_module}"), _name))


def main() -> None:
    for handle in range(3):
        # A closed standard stream would give its number to the next file that is opened, and messages would land in it.
        try:
            os.fstat(handle)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    app.main()
