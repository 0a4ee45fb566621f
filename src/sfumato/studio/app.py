"""The studio's server: a few pages about the runs in a folder, for whoever sits at this machine.

It listens on 127.0.0.1 alone, and all its addresses begin with a token that is drawn when it starts: who does not know the token
finds nothing. Other sites cannot reach it through the browser either: a request must name this host (or a name that was made to
point here could read the answers), must not come from another origin, and can only ask, since nothing here changes anything.
Pages load from nowhere else (their content policy says so) and run no script but the studio's own.

Reads run folders, never private rows; writes nothing.
"""

from __future__ import annotations

import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from sfumato._version import __version__
from sfumato.errors import BadInput, SfumatoError
from sfumato.methods import SavedRun
from sfumato.published import BADGE
from sfumato.report.utility import utility
from sfumato.report.words import package_text, render
from sfumato.studio import plans
from sfumato.studio.folder import Found, Run, look, named, read_run, samples_of

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]

# Plots place their marks by style attributes, so styles may stand in the page; scripts may not.
_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
# A report is a file that somebody may have sent: it gets no script, no form and no request.
_FILE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox allow-same-origin"
)
_MOST_COMPARED = 6


def studio(root: Path, token: str, hosts: set[str]) -> App:
    """The application for the runs below `root`; `hosts` are the names, with port, that it may be asked by."""
    pages = [
        Route("/", _Pages(root).runs),
        Route("/run", _Pages(root).run),
        Route("/report", _Pages(root).report),
        Route("/samples", _Pages(root).samples),
        Route("/plan", _Pages(root).plan),
        Route("/compare", _Pages(root).compare),
        Route("/comparison", _Pages(root).comparison),
        Route("/studio.css", _style),
        Route("/studio.js", _script),
    ]
    inner = Starlette(
        routes=[Mount(f"/{token}", routes=pages)],
        exception_handlers={SfumatoError: _explained},
    )
    return _guarded(inner, hosts)


def _guarded(inner: App, hosts: set[str]) -> App:
    """Only questions, only from this machine's own pages; and what every answer says about itself."""

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await inner(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        origin = headers.get("origin")
        refused = (
            scope["method"] not in ("GET", "HEAD")
            or headers.get("host", "") not in hosts
            or (origin is not None and origin.removeprefix("http://") not in hosts)
            or headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        )
        if refused:
            await PlainTextResponse("Not from here.\n", 403)(scope, receive, send)
            return

        async def told(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = {k.lower() for k, _ in message["headers"]}
                said = {
                    b"content-security-policy": _POLICY.encode(),
                    b"cache-control": b"no-store",
                    b"referrer-policy": b"no-referrer",
                    b"x-content-type-options": b"nosniff",
                    b"cross-origin-resource-policy": b"same-origin",
                }
                message["headers"] += [(k, v) for k, v in said.items() if k not in given]
            await send(message)

        await inner(scope, receive, told)

    return app


def _explained(request: Request, error: Exception) -> Response:
    return _page("error.html.jinja", request, "", {"error": str(error)}, status=404)


def _style(request: Request) -> Response:
    text = render("studio.css.jinja", {}, package=__package__)
    return Response(text, media_type="text/css")


def _script(request: Request) -> Response:
    return Response(package_text("studio.js", __package__), media_type="text/javascript")


def _page(
    template: str, request: Request, here: str, content: dict[str, Any], status: int = 200
) -> Response:
    """A whole page, or, where the script asks, the part of it that changes."""
    part = request.query_params.get("part") == "1"
    base = {"here": here, "badge": BADGE, "version": __version__, "part": part, "path": here}
    return HTMLResponse(render(template, base | content, package=__package__), status)


class _Pages:
    """Each looks at the folder anew, so that a fit that is going on is seen. Plain functions: they run in threads."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _all(self) -> tuple[Found, list[Run]]:
        found = look(self._root)
        return found, [read_run(name, path) for name, path in found.runs.items()]

    def _one(self, request: Request) -> Run:
        name = request.query_params.get("run")
        found = look(self._root)
        run = read_run(str(name), named(found.runs, name))
        if run.error:
            raise BadInput(run.error)
        return run

    def runs(self, request: Request) -> Response:
        found, runs = self._all()
        content = {"runs": runs, "comparisons": list(found.comparisons), "folder": self._root.name}
        return _page("runs.html.jinja", request, "runs", content)

    def run(self, request: Request) -> Response:
        return _page("run.html.jinja", request, "runs", {"run": self._one(request)})

    def report(self, request: Request) -> Response:
        run = self._one(request)
        if not run.has_report:
            return _page("run.html.jinja", request, "runs", {"run": run}, status=404)
        return _file(run.path / "report.html")

    def comparison(self, request: Request) -> Response:
        paths = look(self._root).comparisons
        return _file(named(paths, request.query_params.get("run")) / "comparison.html")

    def samples(self, request: Request) -> Response:
        """Samples of one run, and a slider through its kin: the same method on the same data at other ε."""
        _, runs = self._all()
        able = [r for r in runs if r.finished and r.told["makes"] == "records"]
        name = request.query_params.get("run")
        here = next((r for r in able if r.name == name), able[0] if able and not name else None)
        if here is None:
            why = (
                "No finished run in this folder makes records."
                if not able
                else "There is no such run here."
            )
            raise BadInput(why)
        kin = sorted((r for r in able if r.kin == here.kin), key=lambda r: (r.epsilon, r.name))
        families: dict[tuple[Any, ...], Run] = {}
        for run in able:
            families.setdefault(run.kin, run)
        content = {
            "run": here,
            "kin": kin,
            "place": kin.index(here),
            "families": [f if f.kin != here.kin else here for f in families.values()],
            "samples": samples_of(here),
        }
        return _page("samples.html.jinja", request, "samples", content)

    def plan(self, request: Request) -> Response:
        found, runs = self._all()
        offered = plans.choices(found)
        asked = plans.Question.of(request.query_params)
        if not asked.data:
            first = (offered["runs"] or offered["sets"])[0]
            asked = plans.Question.of({**request.query_params, "data": first})
        asked = plans.completed(asked, found)
        content = {"asked": asked, "offered": offered, "answer": plans.answer(asked, found, runs)}
        return _page("plan.html.jinja", request, "plan", content)

    def compare(self, request: Request) -> Response:
        _, runs = self._all()
        names = request.query_params.getlist("run")[:_MOST_COMPARED]
        chosen = [r for r in runs if r.name in names and r.finished]
        metrics = dict.fromkeys(m["name"] for r in chosen for m in r.metrics)
        titles = {m["name"]: m["title"] for r in chosen for m in r.metrics}
        pictured = [(r, samples_of(r)) for r in chosen if r.told["makes"] == "records"]
        plot, sentence = None, ""
        if len(chosen) > 1:
            try:
                with SavedRun(chosen[0].path) as first:
                    plot = utility(first, [r.path for r in chosen[1:]])
            except SfumatoError as error:
                sentence = str(error)
        content = {
            "runs": [r for r in runs if r.finished],
            "chosen": chosen,
            "metrics": [
                (titles[name], name, [_value(run, name) for run in chosen]) for name in metrics
            ],
            "pictured": pictured,
            "plot": plot,
            "sentence": sentence,
        }
        return _page("compare.html.jinja", request, "compare", content)


def _value(run: Run, name: str) -> str:
    found = next((m["value"] for m in run.metrics if m["name"] == name), None)
    if found is None:
        return "–"
    shares = ("accuracy.", "baseline.", "ceiling.")
    return f"{100 * found:.1f} %" if name.startswith(shares) else f"{found:.4g}"


def _file(path: Path) -> Response:
    text = path.read_text(encoding="utf-8", errors="replace")
    return HTMLResponse(text, headers={"Content-Security-Policy": _FILE_POLICY})


def serve(root: Path, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `on_ready` is told the address, token and all, once the port is ours."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise BadInput(
            f"Port {port} of this machine cannot be used ({error.strerror}); give --port another number, or leave it out."
        ) from None
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(24)
    app = studio(root, token, {f"127.0.0.1:{port}", f"localhost:{port}"})
    config = uvicorn.Config(app, log_level="error", access_log=False, server_header=False)
    on_ready(f"http://127.0.0.1:{port}/{token}/")
    sys.stdout.flush()
    uvicorn.Server(config).run(sockets=[listener])
