"""The dashboard in the browser: textual-serve's server behind a token, with pages that load nothing from elsewhere."""

import asyncio
import hmac
import logging
import os
import secrets
import shlex
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import textual_serve
from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.server import Server

from vramtop.estimator.common import limits
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.trace.start_python import safe_environment
from vramtop.monitor.export.connections import Connections
from vramtop.monitor.export.listen_address import HostNames

from ..tty.served import SERVED_DRIVER

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MAX_DASHBOARDS = 8
"""Pages at a time: each is a process that reads the driver."""
_OPENING = "Open the address that vramtop serve printed.\n"
_TOO_MANY = f"{MAX_DASHBOARDS} pages are open, the maximum. Close one, then reload this page.\n"
_LOOK_SECONDS = 0.5
_END_SECONDS = 5.0
"""Time in which dashboards end with the server; their pipes are closed then, and each ends by itself."""
_STATIC = Path(textual_serve.__file__).parent / "static"
_FILES = {
    "": Path(__file__).with_name("page.html"),
    "page.css": Path(__file__).with_name("page.css"),
    "page.js": Path(__file__).with_name("page.js"),
    "xterm.css": _STATIC / "css" / "xterm.css",
    "textual.js": _STATIC / "js" / "textual.js",
    "font.ttf": _STATIC / "fonts" / "RobotoMono-VariableFont_wght.ttf",
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self' {socket}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class BrowserServer(Server):
    """Serves a dashboard to each page that knows the token, until it is stopped.

    Args:
        hosts: names by which this machine may be asked.
        flags: command line of each dashboard.
    """

    def __init__(self, hosts: HostNames, flags: Sequence[str]) -> None:
        super().__init__(_command(flags))
        self.token, self.flags = secrets.token_urlsafe(32), tuple(flags)
        self._hosts, self._pages = hosts, 0
        self._connections = Connections(limits.SERVE_REQUESTS, limits.SERVE_CLIENT)

    def run(self, host: str, port: int, on_ready: Callable[[str, int], object]) -> None:
        """Serve until SIGINT, SIGTERM or SIGHUP; the dashboards end with it.

        Args:
            host: address to listen on.
            port: port; 0: a free one.
            on_ready: called with the address and the port once pages are served.

        Raises:
            InputError: nothing can listen there.
        """
        asyncio.run(self._serve(host, port, on_ready))

    async def _serve(self, host: str, port: int, on_ready: Callable[[str, int], object]) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        stopped = asyncio.ensure_future(stop.wait())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop.set)
        # No log of requests: their paths have the token.
        settings: dict[str, Any] = {"access_log": None, "logger": _server_log(), "shutdown_timeout": 1.0}
        runner = web.AppRunner(self.application(), handle_signals=False, **settings)
        await runner.setup()
        try:
            self._note_connections(runner.server)
            await web.TCPSite(runner, host, port).start()
            on_ready(*runner.addresses[0][:2])
            while not stopped.done():
                self._connections.end_late()
                await asyncio.wait([stopped], timeout=_LOOK_SECONDS)
        except OSError as error:
            code = error.errno or 0  # whose words asyncio replaces
            reason = os.strerror(code) if code > 0 else error.strerror or error
            raise InputError(f"--listen {host}:{port}: cannot listen there: {reason}; choose another") from None
        finally:
            stopped.cancel()
            await asyncio.wait([asyncio.ensure_future(runner.cleanup())], timeout=_END_SECONDS)

    def _note_connections(self, server: Any) -> None:
        def note(handler: object, transport: asyncio.Transport) -> None:
            self._connections.add(transport.get_extra_info("peername"), transport.abort)
            made(handler, transport)

        made, server.connection_made = server.connection_made, note

    def application(self) -> web.Application:
        """Return the pages: one with the terminal, its script and its styles, and its websocket."""
        app = web.Application(middlewares=[self._check], client_max_size=2**16)
        for name, path in _FILES.items():
            app.router.add_get(f"/{{token}}/{name}", partial(_file, path))
        app.router.add_get("/{token}/ws", self.handle_websocket)
        return app

    @web.middleware
    async def _check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer only who knows the token; all others get the same answer, whatever they asked for."""
        host = request.headers.get("Host")
        if not self._hosts.allow(host):
            raise web.HTTPForbidden(text=f"The request uses another host name than this server's. {_OPENING}")
        given = request.path.partition("/")[2].partition("/")[0]
        if not hmac.compare_digest(given.encode(errors="replace"), self.token.encode()):
            raise web.HTTPNotFound(text=f"The address needs its token. {_OPENING}")
        if request.path.endswith("/ws"):
            if not is_own_page(request.headers.get("Origin"), host):
                raise web.HTTPForbidden(text=f"Only this server's own pages may request this. {_OPENING}")
            if self._pages >= MAX_DASHBOARDS:
                raise web.HTTPServiceUnavailable(text=_TOO_MANY)
        if request.transport is not None:
            self._connections.forget(request.transport.get_extra_info("peername"))
        response = await handler(request)
        if not response.prepared:
            for name, value in _HEADERS.items():
                response.headers[name] = value.format(socket=f"ws://{host} wss://{host}")
        return response

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Show a dashboard until its page or the dashboard ends."""
        self._pages += 1
        try:
            return await super().handle_websocket(request)
        finally:
            self._pages -= 1

    async def _process_messages(self, websocket: web.WebSocketResponse, app_service: AppService) -> None:
        """Pass on what the page sends until it is closed, or close it when its dashboard has ended by itself."""
        reading = asyncio.ensure_future(super()._process_messages(websocket, app_service))
        ended = app_service._task or reading
        try:
            await asyncio.wait([reading, ended], return_when=asyncio.FIRST_COMPLETED)
            sys.stdout.flush()  # what the dashboard said when it failed
            await websocket.close()
        finally:
            reading.cancel()


def is_own_page(origin: str | None, host: str | None) -> bool:
    """Return True if a websocket is asked for by a page of this server: the ``Origin`` is the ``Host``.

    Browsers let every page open a websocket to every server, and send the page's origin with it.
    """
    return bool(host) and (origin or "").lower() in (f"http://{host}".lower(), f"https://{host}".lower())


_RUN = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; sys.argv[0] = 'vramtop'; "
    "from vramtop.tui.cli import main; sys.exit(main())"
)
"""Runs vramtop where paths mean the same as for the server, without imports from the current folder."""
_NOT_PASSED_ON = ("LINES", "NO_COLOR", "TEXTUAL", "TEXTUAL_LOG", "TEXTUAL_THEME", "TMUX", "STY")
"""Variables about the terminal in which the server was started."""
_OWN_VARIABLES = {"TEXTUAL_DRIVER": SERVED_DRIVER, "TERM": "xterm-256color", "COLORTERM": "truecolor"}


def _command(flags: Sequence[str]) -> str:
    """Return the command of a dashboard for a shell."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    wanted = safe_environment(kept, Path(sys.executable)) | _OWN_VARIABLES
    removed = [word for name in os.environ if name not in wanted for word in ("-u", name)]
    # textual-serve sets some of these itself
    new = [f"{name}={value}" for name, value in wanted.items() if name in _OWN_VARIABLES or kept.get(name) != value]
    return f"exec {shlex.join(['/usr/bin/env', *removed, *new, sys.executable, '-c', _RUN, *flags])}"


def _server_log() -> logging.Logger:
    """Return an aiohttp logger for errors of these pages only: malformed requests would each print a traceback."""

    def is_ours(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        frames = traceback.walk_tb(error.__traceback__) if error else ()
        return any(frame.f_code.co_filename == __file__ for frame, _ in frames)

    log = logging.getLogger("vramtop.serve")
    log.filters = [is_ours]
    return log


async def _file(path: Path, _: web.Request) -> web.StreamResponse:
    return web.FileResponse(path)
