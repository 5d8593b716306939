"""The web server: textual-serve's terminal in the browser, behind a token; its pages load nothing from elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common import limits
from vramtop.estimator.common.errors import InputError
from vramtop.monitor.export.listen_address import Connections

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiohttp import web

    from .child import Dashboard
    from .guard import Guard

_LOOK_SECONDS = 0.5
MAX_DASHBOARDS = 8
"""Pages at a time: each is a process that reads the driver."""
_CELLS = (20, 500)
"""Columns or lines of a page's terminal."""
_FONT_SIZES = (6, 48)
"""Pixels."""
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


def require_textual_serve() -> None:
    """Check that pages can be served.

    Raises:
        InputError: textual-serve is not installed.
    """
    try:
        import textual_serve.server  # noqa: F401
    except ImportError:
        raise InputError(
            "serve needs textual-serve, which is not installed: pip install 'vramtop-budget[serve]'"
        ) from None


class BrowserServer:
    """Serves dashboards until it is stopped.

    Args:
        guard: decides who may ask.
        flags: command line of each dashboard.
    """

    def __init__(self, guard: Guard, flags: Sequence[str]) -> None:
        import textual_serve

        self._guard = guard
        self._flags = tuple(flags)
        self._files = Path(textual_serve.__file__).parent / "static"
        self._dashboards: set[Dashboard] = set()
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
        from aiohttp import web

        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        watch = asyncio.create_task(self._end_late())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop.set)
        # No log of requests: their paths have the token.
        runner = web.AppRunner(
            self.application(), access_log=None, logger=_server_log(), handle_signals=False, shutdown_timeout=1.0
        )
        await runner.setup()
        try:
            for listening in _listen(host, port, self._connections):
                await web.SockSite(runner, listening).start()
            found = runner.addresses[0]
            on_ready(found[0], found[1])
            await stop.wait()
        except OSError as error:
            raise InputError(
                f"--listen {host}:{port}: cannot listen there: {error.strerror or error}; choose another"
            ) from None
        finally:
            watch.cancel()
            await asyncio.gather(*(each.stop() for each in self._dashboards), return_exceptions=True)
            await runner.cleanup()

    async def _end_late(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._connections.end_late()

    def application(self) -> web.Application:
        """Return the pages: one with the terminal, its script and its styles, and its websocket."""
        from aiohttp import web

        @web.middleware
        async def check(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            return await self._check(request, handler)

        app = web.Application(middlewares=[check], client_max_size=2**16)
        here = Path(__file__).parent
        files = {
            "xterm.css": self._files / "css" / "xterm.css",
            "textual.js": self._files / "js" / "textual.js",
            "font.ttf": self._files / "fonts" / "RobotoMono-VariableFont_wght.ttf",
            "page.css": here / "page.css",
            "page.js": here / "page.js",
        }
        app.router.add_get("/{token}/", self._page)
        app.router.add_get("/{token}/ws", self._socket)
        for name, path in files.items():
            app.router.add_get(f"/{{token}}/{name}", _file(path))
        return app

    async def _check(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer only who knows the token; all others get the same answer, whatever they asked for."""
        from aiohttp import web

        host = request.headers.get("Host")
        if not self._guard.hosts.allow(host):
            raise web.HTTPForbidden(
                text=(
                    "The request uses another host name than this server's. Open the address that vramtop serve "
                    "printed.\n"
                )
            )
        if not self._guard.knows(request.path):
            raise web.HTTPNotFound(text="The address needs its token. Open the address that vramtop serve printed.\n")
        if request.transport is not None:
            self._connections.forget(request.transport.get_extra_info("peername"))
        response = await handler(request)
        if not response.prepared:
            for name, value in _HEADERS.items():
                response.headers[name] = value.format(socket=f"ws://{host} wss://{host}")
        return response

    async def _page(self, request: web.Request) -> web.Response:
        from aiohttp import web
        from markupsafe import escape

        text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        scheme = "wss" if request.headers.get("X-Forwarded-Proto") == "https" else "ws"
        address = f"{scheme}://{request.headers['Host']}/{self._guard.token}/ws"
        size = _within(request.query.get("fontsize"), _FONT_SIZES, 15)
        text = text.replace("{{ websocket }}", str(escape(address))).replace("{{ size }}", str(size))
        return web.Response(text=text, content_type="text/html")

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        from .child import Dashboard

        if not self._guard.allows_origin(request.headers.get("Origin"), request.headers.get("Host")):
            raise web.HTTPForbidden(
                text="Only this server's own pages may request this. Open the address that vramtop serve printed.\n"
            )
        if len(self._dashboards) >= MAX_DASHBOARDS:
            raise web.HTTPServiceUnavailable(
                text=f"{MAX_DASHBOARDS} pages are open, the maximum. Close one, then reload this page.\n"
            )
        from textual_serve.download_manager import DownloadManager

        socket = web.WebSocketResponse(heartbeat=15, max_msg_size=2**16)
        dashboard = Dashboard(
            self._flags,
            write_bytes=socket.send_bytes,
            write_str=socket.send_str,
            close=socket.close,
            download_manager=DownloadManager(),  # has nothing: files are not sent to browsers
        )
        self._dashboards.add(dashboard)  # before anything is awaited: the limit holds
        try:
            await socket.prepare(request)
            await dashboard.start(_cells(request.query.get("width"), 80), _cells(request.query.get("height"), 24))
            await _pass_on(socket, dashboard)
        except (ConnectionError, RuntimeError):  # the page is gone
            pass
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(dashboard.stop())
            self._dashboards.discard(dashboard)
        return socket


def _server_log() -> logging.Logger:
    """Return an aiohttp logger for errors of these pages only: malformed requests would each print a traceback.

    aiohttp's exceptions differ by version and kind; none that a request alone brings about has passed through here.
    """

    def is_ours(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        frames = traceback.walk_tb(error.__traceback__) if error else ()
        return any(frame.f_code.co_filename == __file__ for frame, _ in frames)

    log = logging.getLogger("vramtop.serve")
    log.filters = [is_ours]
    return log


class _Listening(socket.socket):
    """A socket that takes note of the connections that it accepts."""

    connections: Connections

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection."""
        opened, address = super().accept()
        self.connections.add(opened, address)
        return opened, address


def _listen(host: str, port: int, connections: Connections) -> list[_Listening]:
    """Return a socket for each address of a host.

    Raises:
        OSError: nothing can listen there.
    """
    made = []
    for family, _, _, _, address in dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)):
        made.append(listening := _Listening(family, socket.SOCK_STREAM))
        listening.connections = connections
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
    return made


async def _pass_on(socket: web.WebSocketResponse, dashboard: Dashboard) -> None:
    """Pass the page's keys, size and focus on to its dashboard; anything else is left out."""
    from aiohttp import WSMsgType

    async for message in socket:
        if message.type != WSMsgType.TEXT:
            continue
        try:
            match message.json():
                case ["stdin", str(keys)]:
                    await dashboard.send_bytes(keys.encode("utf-8", "ignore"))
                case ["resize", {"width": int(width), "height": int(height)}]:
                    await dashboard.set_terminal_size(_cells(width, 80), _cells(height, 24))
                case ["ping", data]:
                    await socket.send_json(["pong", data])
                case ["blur", *_]:
                    await dashboard.blur()
                case ["focus", *_]:
                    await dashboard.focus()
        except (ValueError, RecursionError):  # no JSON
            continue


def _cells(value: Any, default: int) -> int:
    return _within(value, _CELLS, default)


def _within(value: Any, bounds: tuple[int, int], default: int) -> int:
    """Return a number of the page's within bounds; the default if it is none."""
    low, high = bounds
    try:
        return min(max(int(value), low), high)
    except (TypeError, ValueError):
        return default


def _file(path: Path) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(_: web.Request) -> web.StreamResponse:
        from aiohttp import web

        return web.FileResponse(path)

    return answer
