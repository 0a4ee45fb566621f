"""`sfumato studio`: a page on this machine to look at runs with."""

from __future__ import annotations

from pathlib import Path

import click

from sfumato.cli.options import debug_option
from sfumato.errors import BadInput


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    help="The port to listen on.  [default: a free one]",
)
@click.option("--open", "opened", is_flag=True, help="Open the page in the browser.")
@debug_option
def studio(folder: Path, port: int | None, opened: bool) -> None:
    """Look at the runs below DIR in a browser: reports, samples by class and ε, plans, progress, comparisons.

    The page is served on 127.0.0.1 only, behind the token in its address, and loads nothing from elsewhere. It reads run folders
    and no private rows, and writes nothing. Ctrl-C ends it. Needs sfumato[studio].

    \b
    Example:
      sfumato studio
      sfumato studio runs --port 8123 --open
    """
    if not folder.is_dir():
        raise BadInput(f"There is no folder {folder}; give the one that holds your runs.")
    try:
        import starlette as starlette
        import uvicorn as uvicorn
    except ImportError:
        raise BadInput(
            "The studio needs Starlette and uvicorn; install them with: pip install 'sfumato[studio]'."
        ) from None
    from sfumato.studio.app import serve

    def tell(address: str) -> None:
        click.echo(f"The studio is at {address}")
        click.echo("Whoever has this address sees it, from this machine only. Ctrl-C ends it.")
        if opened:
            click.launch(address)

    serve(folder, port or 0, tell)
